"""Figures and quizzes that live in the reader's browser, with or without a kernel.

    explorables.softmax_temperature(d_k=64)

Each is one JavaScript module with two hosts: JupyterLab, where anywidget keeps its values visible
to Python (`figure.temperature`, `figure.weights`), and the static page, which needs no kernel.
What a cell stores is HTML with the data and a text alternative, the same at every run.
"""

from tfbook.explorables._base import NAMES, Explorable, module_source, style_source
from tfbook.explorables._plane import soft_lookup_plane
from tfbook.explorables._quiz import quiz
from tfbook.explorables._softmax import softmax_temperature
from tfbook.explorables._steps import attention_steps

__all__ = [
    "NAMES",
    "Explorable",
    "attention_steps",
    "module_source",
    "quiz",
    "soft_lookup_plane",
    "softmax_temperature",
    "style_source",
]
