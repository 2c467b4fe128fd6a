"""Recurrent networks, written to be read, and the translators that were made of them.

Parameters have the names, shapes and gate order of PyTorch's cells, so state dicts pass both ways.

Explained in: chapters/01_motivation.
"""

from tfbook.recurrent.cells import Cell, ElmanCell, GRUCell, LSTMCell, hidden
from tfbook.recurrent.gradients import gradient_norms, jacobian_products, step_jacobians
from tfbook.recurrent.networks import Bidirectional, Recurrent, unroll
from tfbook.recurrent.seq2seq import Decoder, Encoder, Memory, Seq2Seq

__all__ = [
    "ElmanCell",
    "GRUCell",
    "LSTMCell",
    "hidden",
    "Cell",
    "Bidirectional",
    "Recurrent",
    "unroll",
    "gradient_norms",
    "jacobian_products",
    "step_jacobians",
    "Decoder",
    "Encoder",
    "Memory",
    "Seq2Seq",
]
