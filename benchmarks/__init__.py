"""Measurements of speed and memory as ratios: ``python -m benchmarks attention``."""
