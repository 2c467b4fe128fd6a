"""Figures and quizzes that live in the reader's browser, with or without a kernel.

    explorables.softmax_temperature(d_k=64)

Each is one JavaScript module with two hosts: JupyterLab, where anywidget keeps its values visible
to Python (`figure.temperature`, `figure.weights`), and the static page, which needs no kernel.
What a cell stores is HTML with the data and a text alternative, the same at every run.
"""

from tfbook.teaching.explorables._alignment import alignment_viewer
from tfbook.teaching.explorables._base import NAMES, Explorable, module_source, style_source
from tfbook.teaching.explorables._biases import relative_bias_shapes
from tfbook.teaching.explorables._bytepairs import byte_pairs
from tfbook.teaching.explorables._cache import cache_growth
from tfbook.teaching.explorables._heads import head_viewer
from tfbook.teaching.explorables._optimizers import optimizer_paths
from tfbook.teaching.explorables._packing import pack_weights, unpack_weights
from tfbook.teaching.explorables._plane import soft_lookup_plane
from tfbook.teaching.explorables._quiz import quiz
from tfbook.teaching.explorables._rope import rope_rotation
from tfbook.teaching.explorables._sampling import next_token_sampling, pack_next_tokens
from tfbook.teaching.explorables._schedules import schedule_designer
from tfbook.teaching.explorables._shapes import shape_tracer
from tfbook.teaching.explorables._softmax import softmax_temperature
from tfbook.teaching.explorables._steps import attention_steps
from tfbook.teaching.explorables._wavelengths import encoding_wavelengths

__all__ = [
    "NAMES",
    "Explorable",
    "alignment_viewer",
    "attention_steps",
    "byte_pairs",
    "cache_growth",
    "encoding_wavelengths",
    "head_viewer",
    "module_source",
    "next_token_sampling",
    "optimizer_paths",
    "pack_next_tokens",
    "pack_weights",
    "quiz",
    "relative_bias_shapes",
    "rope_rotation",
    "schedule_designer",
    "shape_tracer",
    "soft_lookup_plane",
    "softmax_temperature",
    "style_source",
    "unpack_weights",
]
