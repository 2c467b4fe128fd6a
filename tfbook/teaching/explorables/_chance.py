"""Random numbers that the browser draws too, to the last bit."""

import numpy as np

SPREAD = 0x9E3779B9  # how far apart the counters of two seeds begin


def hashed(start: int, count: int) -> np.ndarray:
    """Return numbers between 0 and 1, (count,), float64: mulberry32, a hash of a counter."""
    word = np.uint64(0xFFFFFFFF)
    counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x6D2B79F5)
    a = (np.uint64(start) + counter) & word
    t = ((a ^ (a >> np.uint64(15))) * (a | np.uint64(1))) & word
    t ^= (t + (((t ^ (t >> np.uint64(7))) * (t | np.uint64(61))) & word)) & word
    return ((t ^ (t >> np.uint64(14))).astype(np.float64) + 0.5) / 2.0**32


def uniforms(seed: int, count: int) -> list[float]:
    """Return the first numbers of a seed from 0 to 9999."""
    return hashed(seed * SPREAD, count).tolist()
