"""Graphs: whom a node may look at as a mask, how far it is as a bias, where it stands as a row.

Attention knows no order, so it takes a graph as it takes a sentence. A graph is a boolean mask of
all pairs of nodes, with loops; layers are called like every mixer, ``layer(x, mask=mask)``, and
have no state.

Explained in: chapters/09_hybrids.
"""

from tfbook.graphs.adjacency import (
    degrees,
    edge_matrix,
    graph_mask,
    join_graphs,
    laplacian,
    shortest_paths,
    stack_graphs,
)
from tfbook.graphs.attention import GraphAttention, gat_scores, gatv2_scores
from tfbook.graphs.messages import (
    AGGREGATIONS,
    GraphConvolution,
    LocalGlobal,
    MessagePassing,
    aggregate,
    gcn_weights,
)
from tfbook.graphs.positions import (
    CentralityEmbedding,
    flip_signs,
    laplacian_positions,
    random_walk_positions,
)
from tfbook.graphs.structure import EdgeBias, GivenBias, SpatialBias

__all__ = [
    "degrees",
    "edge_matrix",
    "graph_mask",
    "join_graphs",
    "laplacian",
    "shortest_paths",
    "stack_graphs",
    "GraphAttention",
    "gat_scores",
    "gatv2_scores",
    "CentralityEmbedding",
    "flip_signs",
    "laplacian_positions",
    "random_walk_positions",
    "EdgeBias",
    "GivenBias",
    "SpatialBias",
    "AGGREGATIONS",
    "GraphConvolution",
    "LocalGlobal",
    "MessagePassing",
    "aggregate",
    "gcn_weights",
]
