"""Recurrent networks: cells and translators, and mixers whose state has a fixed size.

The cells have the names, shapes and gate order of PyTorch's, so state dicts pass both ways. State
spaces, Mamba, retention, RWKV and the delta rule are called like attention,
``mixer(x, state=None, *, mask=None) -> (y, state)``.

Explained in: chapters/01_motivation and chapters/09_hybrids.
"""

from tfbook.recurrent.cells import Cell, ElmanCell, GRUCell, LSTMCell, hidden
from tfbook.recurrent.convolution import CausalConv, ConvState
from tfbook.recurrent.delta_rule import (
    DeltaMixer,
    DeltaState,
    GatedDeltaMixer,
    delta_chunked,
    delta_recurrent,
    delta_wy,
)
from tfbook.recurrent.gradients import gradient_norms, jacobian_products, step_jacobians
from tfbook.recurrent.mamba import (
    Mamba2Mixer,
    MambaMixer,
    MambaState,
    heads_of,
    selective_scan,
    semiseparable_mask,
    state_space_dual,
)
from tfbook.recurrent.networks import Bidirectional, Recurrent, unroll
from tfbook.recurrent.retention import (
    FixedState,
    LinearAttentionMixer,
    MatrixState,
    RetentionMixer,
    StateMixer,
    retention_decays,
)
from tfbook.recurrent.rwkv import (
    ChannelMix,
    ShiftState,
    TimeMix,
    WKVState,
    wkv_parallel,
    wkv_recurrent,
    wkv_scan,
)
from tfbook.recurrent.scan import (
    SCANS,
    ScanTree,
    combine_steps,
    read_tokens,
    scan_blelloch,
    scan_chunked,
    scan_hillis_steele,
    scan_sequential,
    scan_tree,
)
from tfbook.recurrent.seq2seq import Decoder, Encoder, Memory, Seq2Seq
from tfbook.recurrent.state_space import (
    S4DMixer,
    S4DState,
    convolve_causal,
    discretize,
    discretize_diagonal,
    hippo_legs,
    legendre_memory,
    legendre_series,
    s4d_initial,
)

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
    "CausalConv",
    "ConvState",
    "FixedState",
    "LinearAttentionMixer",
    "MatrixState",
    "RetentionMixer",
    "StateMixer",
    "retention_decays",
    "ChannelMix",
    "ShiftState",
    "TimeMix",
    "WKVState",
    "wkv_parallel",
    "wkv_recurrent",
    "wkv_scan",
    "DeltaMixer",
    "DeltaState",
    "GatedDeltaMixer",
    "delta_chunked",
    "delta_recurrent",
    "delta_wy",
    "SCANS",
    "ScanTree",
    "combine_steps",
    "read_tokens",
    "scan_blelloch",
    "scan_chunked",
    "scan_hillis_steele",
    "scan_sequential",
    "scan_tree",
    "S4DMixer",
    "S4DState",
    "convolve_causal",
    "discretize",
    "discretize_diagonal",
    "hippo_legs",
    "legendre_memory",
    "legendre_series",
    "s4d_initial",
    "Mamba2Mixer",
    "MambaMixer",
    "MambaState",
    "selective_scan",
    "semiseparable_mask",
    "state_space_dual",
    "heads_of",
]
