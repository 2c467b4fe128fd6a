"""How weights move: learning-rate schedules, and optimizers from SGD to Muon and Sophia.

Explained in: chapters/11_training.
"""

from tfbook.optimization import optimizers, schedules
from tfbook.optimization.muon import Muon, muon_groups, orthogonalize
from tfbook.optimization.optimizers import (
    SGD,
    Adafactor,
    Adam,
    AdamW,
    Lion,
    RAdam,
    Written,
    decay_groups,
)
from tfbook.optimization.schedules import SCHEDULES, schedule
from tfbook.optimization.sophia import Sophia, gauss_newton_bartlett, hutchinson

__all__ = [
    "optimizers",
    "schedules",
    "schedule",
    "SCHEDULES",
    "Adafactor",
    "Adam",
    "AdamW",
    "Lion",
    "RAdam",
    "SGD",
    "Written",
    "decay_groups",
    "Muon",
    "muon_groups",
    "orthogonalize",
    "Sophia",
    "gauss_newton_bartlett",
    "hutchinson",
]
