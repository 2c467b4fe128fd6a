"""Real weights: files, the names that families give to parts, and two models that are ready to use.

Explained in: chapters/05_architecture.
"""

from tfbook.pretrained.conversion import (
    config_from,
    family_of,
    fill_model,
    weights_from,
    weights_to,
)
from tfbook.pretrained.decoders import MODERN, Modern
from tfbook.pretrained.families import FAMILIES, Family
from tfbook.pretrained.files import (
    PACKAGES,
    ModelPackage,
    cache_folder,
    check_package,
    check_sha256,
    find_package,
    keep,
    read_checkpoint,
    read_gguf,
    read_safetensors,
)
from tfbook.pretrained.loading import Pretrained, load, load_directory, names
from tfbook.pretrained.packing import Blocks, pack_rows, read_rows, split_blocks
from tfbook.pretrained.rounding import RoundedRows, restore_rows, round_model, round_rows

__all__ = [
    "PACKAGES",
    "ModelPackage",
    "cache_folder",
    "check_sha256",
    "find_package",
    "check_package",
    "keep",
    "read_checkpoint",
    "read_gguf",
    "read_safetensors",
    "MODERN",
    "Modern",
    "FAMILIES",
    "Family",
    "config_from",
    "family_of",
    "fill_model",
    "weights_from",
    "weights_to",
    "RoundedRows",
    "restore_rows",
    "round_model",
    "round_rows",
    "Blocks",
    "pack_rows",
    "read_rows",
    "split_blocks",
    "Pretrained",
    "load",
    "load_directory",
    "names",
]
