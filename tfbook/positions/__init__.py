"""How order gets into a model: positions added to tokens, turned into q and k, or put on scores.

Attention alone treats its input as a set. Three protocols bring order in, and a model names one.
Positions are integer tensors (N,), or (B, N) where each sequence counts by itself, so a cache, an
offset or left padding needs no special case.

Explained in: chapters/04_positions.
"""

from tfbook.positions.added import (
    ConcatenatedPositions,
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
    interpolate_positions,
    shift_matrix,
    sinusoidal_encoding,
    sinusoidal_wavelengths,
)
from tfbook.positions.frequencies import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    RotaryScaling,
    YarnScaling,
    check_base,
    rotary_frequencies,
)
from tfbook.positions.grids import (
    LearnedPositions2d,
    SinusoidalPositions2d,
    interpolate_grid,
    sinusoidal_encoding_2d,
)
from tfbook.positions.protocols import AddedPosition, BiasPosition, RotaryPosition, places_for
from tfbook.positions.relative import (
    ALiBi,
    ShawPositions,
    T5Bias,
    TransformerXLPositions,
    alibi_slopes,
    relative_shift,
    shaw_clip,
    t5_bucket,
    transformer_xl_scores,
)
from tfbook.positions.rotary import (
    LAYOUTS,
    RotaryPositions,
    apply_rotary,
    half_to_interleaved,
    interleaved_to_half,
    rotary_table,
)

__all__ = [
    "AddedPosition",
    "BiasPosition",
    "RotaryPosition",
    "places_for",
    "ConcatenatedPositions",
    "LearnedPositions",
    "NoPositions",
    "SinusoidalPositions",
    "interpolate_positions",
    "shift_matrix",
    "sinusoidal_encoding",
    "sinusoidal_wavelengths",
    "LearnedPositions2d",
    "SinusoidalPositions2d",
    "interpolate_grid",
    "sinusoidal_encoding_2d",
    "LinearScaling",
    "Llama3Scaling",
    "NTKScaling",
    "RotaryPositions",
    "RotaryScaling",
    "YarnScaling",
    "apply_rotary",
    "half_to_interleaved",
    "interleaved_to_half",
    "rotary_frequencies",
    "rotary_table",
    "LAYOUTS",
    "check_base",
    "ALiBi",
    "ShawPositions",
    "T5Bias",
    "TransformerXLPositions",
    "alibi_slopes",
    "relative_shift",
    "shaw_clip",
    "t5_bucket",
    "transformer_xl_scores",
]
