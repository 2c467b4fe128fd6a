"""Figures and questions that live in the reader's browser, with or without a kernel.

    explorables.softmax_temperature(d_k=64)

Each is one JavaScript module with two hosts: JupyterLab, where anywidget keeps its values visible
to Python (`figure.temperature`, `figure.weights`), and the static page, which needs no kernel.
What a cell stores is HTML with the data and a text alternative, the same at every run.

A name is imported when it is first used, with what its numbers come from: a quiz loads no model.

Explained in: the preface, "Three kinds of executable content".
"""

from __future__ import annotations

import importlib
from typing import Any

# Where each name stands.
_HOME = {
    "NAMES": "_base",
    "Explorable": "_base",
    "alignment_viewer": "_alignment",
    "asked_lines": "_asked",
    "attention_script": "_pretrained",
    "attention_steps": "_steps",
    "attention_walk": "_walk",
    "byte_pairs": "_bytepairs",
    "cache_growth": "_cache",
    "compute_budget": "_budget",
    "continuous_batching": "_serving",
    "cost_calculator": "_calculator",
    "debugging_dashboard": "_dashboard",
    "delta_rule": "_delta",
    "encoding_wavelengths": "_wavelengths",
    "explain": "_explain",
    "expert_routing": "_routing",
    "float_bits": "_bits",
    "head_viewer": "_heads",
    "induction_head": "_induction",
    "live_model": "_live",
    "live_script": "_weights",
    "live_translator": "_translator",
    "live_training": "_training",
    "module_source": "_base",
    "next_token_sampling": "_sampling",
    "one_average": "_average",
    "optimizer_paths": "_optimizers",
    "pack_bytes": "_pretrained",
    "pack_next_tokens": "_sampling",
    "pack_weights": "_packing",
    "patching_grid": "_patching",
    "pipeline_schedule": "_pipeline",
    "predict": "_predict",
    "pretrained_attention": "_pretrained",
    "quantisation_error": "_quantising",
    "quiz": "_quiz",
    "relative_bias_shapes": "_biases",
    "rollout_stepper": "_rollout",
    "roofline": "_roofline",
    "rope_rotation": "_rope",
    "scan_tree": "_scan",
    "schedule_designer": "_schedules",
    "shape_tracer": "_shapes",
    "soft_lookup_plane": "_plane",
    "softmax_temperature": "_softmax",
    "sparsity_designer": "_sparsity",
    "stepper": "_stepper",
    "style_source": "_base",
    "training_planner": "_planning",
    "unpack_weights": "_packing",
    "write_page": "_kept",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    """Import what `name` stands for on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
