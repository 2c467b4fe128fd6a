"""From data to weights: losses, the loop, several processes, and exact resuming.

Explained in: chapters/11_training.
"""

from tfbook.training.checkpoints import (
    Checkpoint,
    Checkpointing,
    DamagedCheckpoint,
    last_checkpoint,
    read_checkpoint,
    steps_in,
    write_checkpoint,
)
from tfbook.training.choices import (
    DEFAULTS,
    MEANINGS,
    OPTIMIZERS,
    check_choices,
    check_memory,
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
from tfbook.training.files import Hold, new_folder, read_json, write_bytes, write_text
from tfbook.training.gradients import (
    AT_ONCE,
    PRECISIONS,
    Execution,
    check_finite,
    mean_gradients,
    sum_gradients,
)
from tfbook.training.history import History, Log
from tfbook.training.loop import fit
from tfbook.training.monitoring import UNWATCHED, Monitoring, attention_entropy, evaluating
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
from tfbook.training.processes import DEVICES, Ranks, choose_device, device_of, move
from tfbook.training.recipes import TASKS, Task, make_optimizer, make_task
from tfbook.training.resuming import Ending, Run, Saver
from tfbook.training.run_folders import (
    check_data,
    check_empty,
    holds_run,
    lengthen,
    load_run,
    read_choices,
    write_choices,
)
from tfbook.training.skipping import keep_layers, layer_drop, stochastic_depth
from tfbook.training.states import Best, Rates, Source, get_random, seed_all, set_random

__all__ = [
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
    "keep_layers",
    "layer_drop",
    "stochastic_depth",
    "DEVICES",
    "Ranks",
    "choose_device",
    "device_of",
    "move",
    "Checkpoint",
    "Checkpointing",
    "DamagedCheckpoint",
    "last_checkpoint",
    "read_checkpoint",
    "steps_in",
    "write_checkpoint",
    "Hold",
    "new_folder",
    "read_json",
    "write_bytes",
    "write_text",
    "History",
    "Log",
    "Best",
    "Ending",
    "Rates",
    "Run",
    "Saver",
    "Source",
    "get_random",
    "seed_all",
    "set_random",
    "AT_ONCE",
    "PRECISIONS",
    "Execution",
    "check_finite",
    "mean_gradients",
    "sum_gradients",
    "UNWATCHED",
    "Monitoring",
    "attention_entropy",
    "evaluating",
    "fit",
    "DEFAULTS",
    "MEANINGS",
    "OPTIMIZERS",
    "check_choices",
    "check_memory",
    "TASKS",
    "Task",
    "make_optimizer",
    "make_task",
    "check_data",
    "check_empty",
    "holds_run",
    "lengthen",
    "load_run",
    "read_choices",
    "write_choices",
]
