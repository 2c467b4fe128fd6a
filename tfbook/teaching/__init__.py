"""What only a chapter needs: claims, pictures, figures with controls, questions, graded exercises.

A name is imported when it is first used, so that a claim loads nothing that draws, and an exercise
only the file it stands in.

Explained in: the preface, "Three kinds of executable content".
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

# Where each name stands. The three folders are doors of their own.
_HOME = {
    "Claim": "claims",
    "ClaimError": "claims",
    "box": "boxes",
    "claim": "claims",
    "Drawing": "plotting",
    "listing": "listings",
    "bars": "plotting",
    "figure": "plotting",
    "heatmap": "plotting",
    "lines": "plotting",
    "show": "plotting",
    "spreads": "plotting",
    "style": "plotting",
    "tensor_picture": "plotting",
    "who_sees_whom": "plotting",
    "quiz": "explorables",
    "predict": "explorables",
    "explain": "explorables",
    "stepper": "explorables",
    "attention_walk": "explorables",
    "check": "exercises",
    "progress": "exercises",
}
_FOLDERS = ("exercises", "explorables", "plotting")

__all__ = [*_HOME, *_FOLDERS]


def __getattr__(name: str) -> ModuleType | Any:
    """Import what `name` stands for on first use."""
    if name in _FOLDERS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
