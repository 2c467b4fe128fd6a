"""From data to weights: losses, optimizers, schedules, the loop, and checkpoints that resume exactly.

Explained in: chapters/11_training.
"""

from tfbook.training import schedules
from tfbook.training.checkpoints import (
    Checkpoint,
    DamagedCheckpoint,
    last_checkpoint,
    read_checkpoint,
    steps_in,
    write_checkpoint,
)
from tfbook.training.denoising import (
    corrupt_spans,
    delete_tokens,
    fill_spans,
    infill,
    mask_tokens,
    permute_sentences,
    rotate,
)
from tfbook.training.loop import (
    PRECISIONS,
    History,
    attention_entropy,
    fit,
)
from tfbook.training.muon import (
    Muon,
    muon_groups,
    orthogonalize,
)
from tfbook.training.objectives import (
    IGNORE,
    Example,
    causal_loss,
    cross_entropy,
    distillation,
    info_nce,
    masked_loss,
    next_tokens,
    smooth_targets,
    translation_loss,
)
from tfbook.training.optimizers import (
    SGD,
    Adafactor,
    Adam,
    AdamW,
    Lion,
    RAdam,
    Written,
    decay_groups,
)
from tfbook.training.processes import (
    Ranks,
    move,
)
from tfbook.training.recipes import (
    DEFAULTS,
    TASKS,
    Task,
    load_run,
    make_task,
    read_choices,
    write_choices,
)
from tfbook.training.resuming import (
    Best,
    Ending,
    Log,
    Rates,
    Saver,
    Source,
    evaluating,
    get_random,
    seed_all,
    set_random,
)
from tfbook.training.schedules import (
    SCHEDULES,
    schedule,
)
from tfbook.training.skipping import (
    keep_layers,
    layer_drop,
    stochastic_depth,
)
from tfbook.training.sophia import (
    Sophia,
    gauss_newton_bartlett,
    hutchinson,
)

__all__ = [
    "schedules",
    "schedule",
    "SCHEDULES",
    "IGNORE",
    "Example",
    "causal_loss",
    "cross_entropy",
    "distillation",
    "info_nce",
    "masked_loss",
    "next_tokens",
    "smooth_targets",
    "translation_loss",
    "corrupt_spans",
    "delete_tokens",
    "fill_spans",
    "infill",
    "mask_tokens",
    "permute_sentences",
    "rotate",
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
    "keep_layers",
    "layer_drop",
    "stochastic_depth",
    "Ranks",
    "move",
    "Checkpoint",
    "DamagedCheckpoint",
    "last_checkpoint",
    "read_checkpoint",
    "steps_in",
    "write_checkpoint",
    "Best",
    "Ending",
    "Log",
    "Rates",
    "Saver",
    "Source",
    "evaluating",
    "get_random",
    "seed_all",
    "set_random",
    "History",
    "attention_entropy",
    "fit",
    "PRECISIONS",
    "DEFAULTS",
    "TASKS",
    "Task",
    "load_run",
    "make_task",
    "read_choices",
    "write_choices",
]
