"""Many processes that train one model: what they say to each other, and what that costs.

Collectives are written from sends and receives, and everything else from collectives: replicas of
the data, ZeRO, layers cut by tensors, sequences cut by rows, layers in a pipeline, experts on
several devices. Each is a few lines for reading; PyTorch has them all, and the tests compare. A
planner says which ways of splitting a training fit, and how long a step would take.

Explained in: chapters/17_hardware, section "Many devices".
"""

from tfbook.parallel.collectives import (
    all_to_all,
    doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from tfbook.parallel.conjugates import copy_to, gather, scatter, scatter_sum, sum_over, swap
from tfbook.parallel.context import ORDERS, attend_ring, attend_ulysses, ring_pairs, rows_of
from tfbook.parallel.expert_parallel import SplitExperts
from tfbook.parallel.groups import Grid, Group, PeerLost
from tfbook.parallel.links import (
    COLLECTIVES,
    LINKS,
    Link,
    Traffic,
    collective_traffic,
    crossing_bytes,
)
from tfbook.parallel.pipeline import Stage, add_tied_gradients, layers_of, run_pipeline
from tfbook.parallel.planner import Cluster, Plan, estimate, plans
from tfbook.parallel.processes import launch
from tfbook.parallel.replicas import average_gradients, gradient_buckets, same_weights
from tfbook.parallel.schedules import (
    PipelineTask,
    bubble_fraction,
    gpipe,
    idle_share,
    in_flight,
    one_forward_one_backward,
    schedule_table,
    timeline,
)
from tfbook.parallel.splits import (
    RECOMPUTED,
    Bytes,
    Split,
    StageAccount,
    stage_accounts,
    step_traffic,
)
from tfbook.parallel.tensor_parallel import PartialSum, split_attention, split_ffn, split_model
from tfbook.parallel.vocabulary import SplitEmbedding, SplitHead, split_loss
from tfbook.parallel.zero import Sharded, ZeroOptimizer, shard

__all__ = [
    "COLLECTIVES",
    "LINKS",
    "Link",
    "Traffic",
    "collective_traffic",
    "crossing_bytes",
    "launch",
    "Grid",
    "Group",
    "PeerLost",
    "all_to_all",
    "doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "copy_to",
    "gather",
    "scatter",
    "scatter_sum",
    "sum_over",
    "swap",
    "average_gradients",
    "gradient_buckets",
    "same_weights",
    "Sharded",
    "ZeroOptimizer",
    "shard",
    "SplitEmbedding",
    "SplitHead",
    "split_loss",
    "PartialSum",
    "split_attention",
    "split_ffn",
    "split_model",
    "ORDERS",
    "attend_ring",
    "attend_ulysses",
    "ring_pairs",
    "rows_of",
    "PipelineTask",
    "bubble_fraction",
    "gpipe",
    "idle_share",
    "in_flight",
    "one_forward_one_backward",
    "schedule_table",
    "timeline",
    "Stage",
    "add_tied_gradients",
    "layers_of",
    "run_pipeline",
    "SplitExperts",
    "RECOMPUTED",
    "Bytes",
    "Split",
    "StageAccount",
    "stage_accounts",
    "step_traffic",
    "Cluster",
    "Plan",
    "estimate",
    "plans",
]
