"""Where numbers live: formats bit by bit, memory of training, and weights in few bits.

Explained in: chapters/17_hardware.
"""

from tfbook.hardware.blocks import BLOCK_FORMATS, BlockCodes, decode_blocks, encode_blocks
from tfbook.hardware.calibration import Scaled, awq, gptq, hadamard, output_error, rotate
from tfbook.hardware.formats import (
    FORMATS,
    FloatFormat,
    IntFormat,
    decode,
    encode,
    round_to,
    to_torch,
)
from tfbook.hardware.kernels import attend_triton, softmax_triton, triton_kernel, triton_runs
from tfbook.hardware.memory import (
    OPTIMIZER_BYTES,
    PRECISIONS,
    TrainingMemory,
    best_segment,
    checkpointed_bytes,
    largest_batch,
    recompute,
    run_checkpointed,
    saved_bytes,
    training_memory,
)
from tfbook.hardware.quantisation import (
    Quantised,
    QuantisedLinear,
    linear_outliers,
    pack,
    pack_model,
    quantise,
    quantise_model,
    restore,
)
from tfbook.hardware.scaling import LossScaler

__all__ = [
    "FORMATS",
    "FloatFormat",
    "IntFormat",
    "decode",
    "encode",
    "round_to",
    "to_torch",
    "BLOCK_FORMATS",
    "BlockCodes",
    "decode_blocks",
    "encode_blocks",
    "LossScaler",
    "OPTIMIZER_BYTES",
    "PRECISIONS",
    "TrainingMemory",
    "best_segment",
    "checkpointed_bytes",
    "largest_batch",
    "recompute",
    "run_checkpointed",
    "saved_bytes",
    "training_memory",
    "Quantised",
    "QuantisedLinear",
    "linear_outliers",
    "pack",
    "pack_model",
    "quantise",
    "quantise_model",
    "restore",
    "Scaled",
    "awq",
    "gptq",
    "hadamard",
    "output_error",
    "rotate",
    "attend_triton",
    "softmax_triton",
    "triton_kernel",
    "triton_runs",
]
