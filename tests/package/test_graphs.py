"""Graphs: masks, distances, Laplacians, graph attention, positions, biases, messages.

A check is `check(g)`, with `g` the module `tfbook.graphs` or a copy of it with a planted bug.
"""

import itertools
import math

import networkx
import pytest
import torch

import tfbook.graphs
from tfbook.attention import (
    MultiHeadAttention,
    additive_scores,
    attend,
    attend_sdpa,
    document_mask,
)
from tfbook.models import FFN, Attention, Given, GraphTransformer, Layer

DOUBLE = torch.float64
CHECKS, PARITY = {}, {}


@pytest.fixture
def g():
    return tfbook.graphs


def check(run):
    CHECKS[run.__name__] = run
    return run


def parity(run):
    PARITY[run.__name__] = run
    return run


def normal(*shape, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=DOUBLE).to(dtype)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0.0)


def random_graph(n=9, seed=0, chance=0.25, directed=False):
    """Return networkx's graph and its edges; the last node has none."""
    made = networkx.gnp_random_graph(n - 1, chance, seed=seed, directed=directed)
    made.add_node(n - 1)
    return made, torch.tensor(list(made.edges), dtype=torch.long).view(-1, 2)


def order(n, seed=0):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def filled(module, seed=0):
    """Return a module with every weight random, in float64."""
    for number, weight in enumerate(module.double().parameters()):
        weight.data = normal(*weight.shape, seed=seed + number) / 2
    return module.eval()


def renumbered(table, new, dims=2):
    """Return a table of pairs whose row i is the old row new[i]; nodes stand at dims −2, −1."""
    return table[..., new, :][..., :, new] if dims == 2 else table[..., new, :]


# Graphs as masks ---------------------------------------------------------------------------------


@check
def test_a_node_sees_itself_and_its_neighbours(g):
    for seed in range(4):
        made, edges = random_graph(seed=seed)
        mask = g.graph_mask(edges, 9)
        wanted = [[i == j or made.has_edge(i, j) for j in range(9)] for i in range(9)]
        assert mask.tolist() == wanted
        bare = g.graph_mask(edges, 9, self_loops=False)
        assert not bare.diagonal().any() and torch.equal(bare | torch.eye(9).bool(), mask)


@check
def test_the_target_of_an_edge_sees_its_source(g):
    mask = g.graph_mask(torch.tensor([[0, 1]]), 2, directed=True)
    assert mask.tolist() == [[True, False], [True, True]]
    table = g.edge_matrix(torch.tensor([[0, 1]]), torch.tensor([5.0]), 2, directed=True)
    assert table.tolist() == [[0, 0], [5, 0]]


@check
def test_a_lonely_node_keeps_itself_and_without_a_loop_gets_zeros(g):
    x = normal(3, 4).requires_grad_()
    edges = torch.tensor([[0, 1]])
    y = attend(x, x, x, mask=g.graph_mask(edges, 3))
    close(y[2], x[2])
    y = attend(x, x, x, mask=g.graph_mask(edges, 3, self_loops=False))
    assert y[2].tolist() == [0.0] * 4
    y.sum().backward()
    assert x.grad.isfinite().all() and x.grad[2].tolist() == [0.0] * 4


@pytest.mark.untyped
def test_zeros_and_ones_are_no_mask():
    x, edges = normal(3, 4), torch.tensor([[0, 1]])
    zeros_and_ones = tfbook.graphs.graph_mask(edges, 3).float()
    for wrong in (zeros_and_ones.double(), zeros_and_ones.long()):
        with pytest.raises(TypeError, match="mask must be boolean with True = allowed"):
            attend(x, x, x, mask=wrong)
        with pytest.raises(TypeError, match="mask must be boolean"):
            tfbook.graphs.shortest_paths(wrong)


@check
def test_edge_tables_hold_what_edges_carry(g):
    edges = torch.tensor([[0, 1], [2, 2], [0, 1], [2, 1]])
    table = g.edge_matrix(edges, torch.tensor([1.0, 2.0, 4.0, 8.0]), 3)
    assert table.tolist() == [[0, 5, 0], [5, 0, 8], [0, 8, 2]]
    carried = normal(4, 3).requires_grad_()
    table = g.edge_matrix(edges, carried, 3)
    close(table[1, 2], carried[3])
    table.sum().backward()
    assert carried.grad.tolist() == [[2.0] * 3, [1.0] * 3, [2.0] * 3, [2.0] * 3]


@check
def test_a_distance_is_the_number_of_layers_until_a_node_is_known(g):
    for seed, directed in itertools.product(range(3), (False, True)):
        _, edges = random_graph(8, seed, 0.2, directed)
        mask = g.graph_mask(edges, 8, directed=directed)
        x = normal(8, 3, seed=seed)
        known = torch.eye(8).bool()
        distance = g.shortest_paths(mask)
        for layers in range(1, 8):

            def run(x, layers=layers, mask=mask):
                for _ in range(layers):
                    x = attend(x, x, x, mask=mask)
                return x.sum(-1)

            now = torch.autograd.functional.jacobian(run, x).abs().sum(-1) > 0
            assert torch.equal(now & ~known, distance == layers)
            known = now
        assert torch.equal(known, distance >= 0)


@parity
def test_degrees_distances_and_laplacians_are_those_of_networkx(g):
    for seed, directed in itertools.product(range(4), (False, True)):
        made, edges = random_graph(12, seed, 0.15, directed)
        mask = g.graph_mask(edges, 12, directed=directed)
        into = dict(made.in_degree if directed else made.degree)
        assert g.degrees(mask).tolist() == [into[i] for i in range(12)]
        lengths = dict(networkx.all_pairs_shortest_path_length(made))
        wanted = [[lengths[j].get(i, -1) for j in range(12)] for i in range(12)]  # along edges
        assert g.shortest_paths(mask).tolist() == wanted
        if directed:
            continue
        for a, b in made.edges:
            made[a][b]["weight"] = (a + 1.5) * (b + 0.5)
        weights = torch.tensor([made[a][b]["weight"] for a, b in made.edges], dtype=DOUBLE)
        table = g.edge_matrix(edges, weights, 12)
        laws = networkx.laplacian_matrix, networkx.normalized_laplacian_matrix
        for normalized, law in enumerate(laws):
            wanted = law(made, nodelist=range(12)).toarray()
            close(
                g.laplacian(table, normalized=bool(normalized)), torch.tensor(wanted, dtype=DOUBLE)
            )


@check
def test_a_laplacian_measures_how_neighbours_differ(g):
    _, edges = random_graph(9, 3, 0.4)
    weights = normal(len(edges)).abs()
    table = g.edge_matrix(edges, weights, 9) + torch.eye(9, dtype=DOUBLE)  # loops do not count
    f = normal(9, seed=1)
    jumps = sum(w * (f[a] - f[b]) ** 2 for (a, b), w in zip(edges, weights, strict=True))
    close(f @ g.laplacian(table) @ f, jumps)
    sums = weights.new_zeros(9).index_add(0, edges.flatten(), weights.repeat_interleave(2))
    scaled = f / sums.clamp(min=1e-9).sqrt()
    jumps = sum(w * (scaled[a] - scaled[b]) ** 2 for (a, b), w in zip(edges, weights, strict=True))
    close(f @ g.laplacian(table, normalized=True) @ f, jumps)


@check
def test_each_part_of_a_graph_has_an_eigenvalue_of_zero(g):
    for seed in range(3):
        made, edges = random_graph(10, seed, 0.15)
        for normalized in (False, True):
            matrix = g.laplacian(g.graph_mask(edges, 10), normalized=normalized).double()
            values = torch.linalg.eigvalsh(matrix)
            assert int((values.abs() < 1e-6).sum()) == networkx.number_connected_components(made)
            assert not normalized or values.max() <= 2 + 1e-6


@check
def test_graphs_in_a_row_and_in_a_batch_are_the_graphs_alone(g):
    sizes = (4, 1, 6)
    masks = [g.graph_mask(random_graph(n + 1, n, 0.5)[1] % n, n) for n in sizes]
    rows = [normal(n, 3, seed=n) for n in sizes]
    alone = [attend(x, x, x, mask=mask) for x, mask in zip(rows, masks, strict=True)]
    joined, ids = g.join_graphs(masks)
    x = torch.cat(rows)
    close(attend(x, x, x, mask=joined), torch.cat(alone))
    assert not (joined & ~document_mask(ids)).any() and ids.bincount().tolist() == list(sizes)
    stacked = g.stack_graphs(masks)
    x = torch.stack([torch.nn.functional.pad(x, (0, 0, 0, 6 - len(x)), value=9.0) for x in rows])
    y = attend(x, x, x, mask=stacked)
    for found, wanted, n in zip(y, alone, sizes, strict=True):
        close(found[:n], wanted)
        assert not found[n:].any()


# Graph attention ---------------------------------------------------------------------------------


@check
def test_all_queries_of_gat_rank_the_keys_alike(g):
    for seed in range(5):
        q, k = normal(7, 4, seed=seed), normal(11, 4, seed=seed + 50)
        scores = g.gat_scores(q, k, normal(4, seed=90), normal(4, seed=91))
        assert torch.equal(scores.argsort(-1), scores.argsort(-1)[:1].expand(7, 11))


@check
def test_queries_of_gatv2_have_rankings_of_their_own(g):
    """Each query finds the key that is equal to it, as in a dictionary; GAT cannot."""
    n = 5
    x = torch.eye(n, dtype=DOUBLE)
    both = torch.cat([x, x], 1)  # |1 − x| is 0 for the right key alone
    scores = g.gatv2_scores(
        torch.cat([x, -x], 1), torch.cat([-x, x], 1), -torch.ones(2 * n, dtype=DOUBLE), slope=0.0
    )
    assert scores.argmax(-1).tolist() == list(range(n))
    for seed in range(5):
        scores = g.gat_scores(both, both, normal(2 * n, seed=seed), normal(2 * n, seed=seed + 9))
        assert len(scores.argmax(-1).unique()) == 1


@check
def test_scores_are_their_formulas_pair_by_pair(g):
    q, k = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1)
    a_q, a_k = normal(3, 5, seed=2), normal(3, 5, seed=3)
    static, dynamic = g.gat_scores(q, k, a_q, a_k), g.gatv2_scores(q, k, a_k)
    for b, h, i, j in itertools.product(range(2), range(3), range(4), range(6)):
        inner = float(a_q[h] @ q[b, h, i] + a_k[h] @ k[b, h, j])
        assert math.isclose(static[b, h, i, j], max(inner, 0.2 * inner), abs_tol=1e-9)
        hidden = q[b, h, i] + k[b, h, j]
        wanted = float(torch.where(hidden > 0, hidden, 0.2 * hidden) @ a_k[h])
        assert math.isclose(dynamic[b, h, i, j], wanted, abs_tol=1e-9)


@check
def test_gatv2_with_tanh_is_the_additive_score(g):
    q, k, w_q, w_k, w_a = (
        normal(*shape, seed=i) for i, shape in enumerate([(4, 3), (6, 5), (7, 3), (7, 5), (7,)])
    )
    found = g.gatv2_scores(q @ w_q.T, k @ w_k.T, w_a, activation=torch.tanh)
    close(found, additive_scores(q, k, w_q, w_k, w_a))


# GATConv and GATv2Conv of torch_geometric 2.8.1 on this graph: weights are cos(0 + c), cos(1 + c),
# …, with c the last dimension, the biases of lin_l and lin_r 0.
FOUR = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 1]])
GEOMETRIC = {
    "gat": [
        [-0.2647637703038742, 0.5220206238597245, -0.23179449470704372, 1.3770843096686045],
        [-0.5602643548830157, 0.44426891898456566, -0.06066688326259395, 1.271593664227769],
        [-0.5755044880657672, 0.4402589562321365, 0.6335811989810103, 0.8436283716968571],
        [-1.6042114115875172, 0.16958701412883997, 2.0056821207330273, -0.0021954589745097897],
    ],
    "gatv2": [
        [-0.5093977061050112, 0.4576528812173596, 0.0721449217152822, 1.1897225803563827],
        [-0.8925121857127398, 0.3568483295299759, 0.22492957538051617, 1.0955393471974721],
        [-0.6038216346885611, 0.43280818780046726, 0.6447228973068643, 0.8367601349594855],
        [-1.6042114115875172, 0.16958701412883997, 2.0056821207330273, -0.0021954589745097897],
    ],
}


def cosines(weight):
    numbers = torch.arange(weight.numel(), dtype=DOUBLE) + weight.shape[-1]
    weight.data = numbers.cos().view_as(weight)


@parity
def test_layers_are_those_of_torch_geometric(g):
    x = torch.arange(8, dtype=DOUBLE).view(1, 4, 2) / 4 - 1
    for kind, wanted in GEOMETRIC.items():
        layer = g.GraphAttention(2, 2, d_head=2, kind=kind).double()
        for weight in layer.parameters():
            cosines(weight)
        y, _ = layer(x, mask=g.graph_mask(FOUR, 4, directed=True))
        close(y[0], torch.tensor(wanted, dtype=DOUBLE))
    layer = g.GraphConvolution(2, 3).double()
    cosines(layer.proj.weight)
    cosines(layer.proj.bias)
    wanted = [
        [-0.5547659586579339, -0.4091656695967042, -0.35504180452978557],
        [-0.9491517237402727, -0.48225116800907675, 0.1001725584761135],
        [-0.5547659586579339, -0.4091656695967042, -0.35504180452978557],
        [-1.3042075284806975, -0.6202046791962134, 0.5700461977587337],
    ]
    close(layer(x, mask=g.graph_mask(FOUR, 4))[0][0], torch.tensor(wanted, dtype=DOUBLE))


@check
def test_graph_attention_is_a_loop_over_neighbours(g):
    made, edges = random_graph(6, 2, 0.5)
    x, mask = normal(1, 6, 4), g.graph_mask(edges, 6)
    for kind, join in itertools.product(("gat", "gatv2"), ("concat", "mean")):
        layer = filled(g.GraphAttention(4, 2, d_head=3, kind=kind, join=join))
        y, state = layer(x, mask=mask)
        assert state is None
        wanted = []
        for i in range(6):
            near, heads = [i, *made.neighbors(i)], []
            for h in range(2):
                rows = slice(3 * h, 3 * h + 3)
                values = x[0] @ layer.k_proj.weight[rows].T
                if kind == "gat":
                    s = [layer.a_q[h] @ values[i] + layer.a_k[h] @ values[j] for j in near]
                    s = torch.nn.functional.leaky_relu(torch.stack(s), 0.2)
                else:
                    q = x[0, i] @ layer.q_proj.weight[rows].T
                    s = [torch.nn.functional.leaky_relu(q + values[j], 0.2) for j in near]
                    s = torch.stack(s) @ layer.a_k[h]
                heads.append(s.softmax(0) @ values[near])
            wanted.append(torch.cat(heads) if join == "concat" else sum(heads) / 2)
        close(y[0], torch.stack(wanted) + layer.bias)


@check
def test_weights_of_a_layer_are_seen_and_dropped_in_training_alone(g):
    _, edges = random_graph(6, 2, 0.5)
    x, mask = normal(2, 6, 4), g.graph_mask(edges, 6)
    layer = filled(g.GraphAttention(4, 2, dropout=0.5))
    p = layer.weights(x, mask=mask)
    close(p.sum(-1), torch.ones(2, 2, 6, dtype=DOUBLE))
    assert not p[..., ~mask].any()
    close(layer(x, mask=mask)[0], layer(x, mask=mask)[0])
    torch.manual_seed(0)
    layer.train()
    assert not torch.equal(layer(x, mask=mask)[0], layer(x, mask=mask)[0])
    empty = layer.eval()(x, mask=torch.zeros(6, 6).bool())[0]
    close(empty, layer.bias.expand(2, 6, 4))


LAYERS = {
    "gat": lambda g: g.GraphAttention(4, 2),
    "gatv2": lambda g: g.GraphAttention(4, 2, kind="gatv2"),
    "convolution": lambda g: g.GraphConvolution(4),
    "mean": lambda g: g.MessagePassing(4, kind="mean"),
    "sum": lambda g: g.MessagePassing(4, kind="sum"),
    "max": lambda g: g.MessagePassing(4, kind="max"),
    "both": lambda g: g.LocalGlobal(g.MessagePassing(4), MultiHeadAttention(4, 2)),
}


@check
def test_renumbered_nodes_give_renumbered_rows(g):
    _, edges = random_graph(9, 5, 0.3, directed=True)
    x, mask, new = normal(2, 9, 4), g.graph_mask(edges, 9, directed=True), order(9)
    for name, make in LAYERS.items():
        layer = filled(make(g))
        y = layer(x, mask=mask)[0]
        again = layer(x[:, new], mask=renumbered(mask, new))[0]
        close(again, y[:, new])
        if name != "both":
            seen = torch.autograd.functional.jacobian(
                lambda x, layer=layer: layer(x, mask=mask)[0].sum((0, 2)), x
            )
            assert not (seen.abs().sum((1, 3)) > 1e-12)[~mask].any()


@check
def test_one_graph_for_all_is_the_same_graph_for_each(g):
    _, edges = random_graph(6, 2, 0.5)
    x, mask = normal(2, 6, 4), g.graph_mask(edges, 6)
    for make in LAYERS.values():
        layer = filled(make(g))
        close(layer(x, mask=mask)[0], layer(x, mask=mask.expand(2, 6, 6))[0])


# Positions ---------------------------------------------------------------------------------------


@check
def test_positions_of_a_path_are_cosines(g):
    n, k = 12, 5
    path = g.graph_mask(torch.stack([torch.arange(n - 1), torch.arange(1, n)], 1), n)
    vectors, values = g.laplacian_positions(path, k, normalized=False)
    place, turn = torch.arange(n) + 0.5, torch.arange(1, k + 1) * math.pi / n
    wanted = torch.cos(place[:, None] * turn) * math.sqrt(2 / n)
    close((vectors * wanted).sum(0).abs(), torch.ones(k), 1e-4)  # but for the sign
    close(values, 2 - 2 * torch.cos(turn), 1e-4)


@check
def test_positions_are_eigenvectors_and_only_projectors_are_sure(g):
    circle = g.graph_mask(torch.tensor([[i, (i + 1) % 8] for i in range(8)]), 8)
    table = circle.double() - torch.eye(8, dtype=DOUBLE)
    new = order(8, 1)
    for normalized in (False, True):
        vectors, values = g.laplacian_positions(table, 4, normalized=normalized)
        matrix = g.laplacian(table, normalized=normalized)
        close(matrix @ vectors, vectors * values)
        close(vectors.T @ vectors, torch.eye(4, dtype=DOUBLE))
        other, _ = g.laplacian_positions(renumbered(table, new), 4, normalized=normalized)
        # The eigenvalues of a circle come in pairs, so the vectors differ but their span does not.
        assert (other.abs() - vectors[new].abs()).abs().max() > 1e-3
        for pair in (slice(0, 2), slice(2, 4)):
            span = vectors[:, pair] @ vectors[:, pair].T
            close(other[:, pair] @ other[:, pair].T, renumbered(span, new))


@check
def test_flips_change_whole_columns_and_both_ways(g):
    vectors = normal(3, 7, 5)
    generator = torch.Generator().manual_seed(1)
    signs = torch.stack([g.flip_signs(vectors, generator=generator) for _ in range(40)]) / vectors
    close(signs, signs[..., :1, :].expand_as(signs))
    assert set(signs.round().flatten().tolist()) == {1.0, -1.0}
    assert (signs[..., 0, :].mean(0).abs() < 0.7).all()
    assert not torch.equal(signs[:, 0], signs[:, 1]) and not torch.equal(signs[0], signs[1])


@check
def test_a_walk_is_counted_path_by_path(g):
    made, edges = random_graph(6, 4, 0.5)
    found = g.random_walk_positions(g.graph_mask(edges, 6), 4)
    near = {i: list(made.neighbors(i)) for i in made}

    def back(at, home, steps):
        if steps == 0:
            return float(at == home)
        return sum(back(j, home, steps - 1) for j in near[at]) / max(len(near[at]), 1)

    wanted = [[back(i, i, t) if near[i] else 0.0 for t in range(1, 5)] for i in range(6)]
    close(found, torch.tensor(wanted), 1e-6)


@check
def test_degrees_are_told_and_clipped(g):
    star = g.graph_mask(torch.tensor([[0, i] for i in range(1, 5)]), 6)
    part = filled(g.CentralityEmbedding(3, max_degree=3))
    x = normal(2, 6, 3)
    wanted = part.weight[torch.tensor([3, 1, 1, 1, 1, 0])]
    close(part(x, star) - x, wanted.expand(2, 6, 3))
    part = filled(g.CentralityEmbedding(3, max_degree=9, directed=True))
    star = g.graph_mask(torch.tensor([[0, i] for i in range(1, 5)]), 6, directed=True)
    into, out = torch.tensor([0, 1, 1, 1, 1, 0]), torch.tensor([4, 0, 0, 0, 0, 0])
    close(part(x, star) - x, (part.weight[into] + part.weight_out[out]).expand(2, 6, 3))


# The graph as a bias -----------------------------------------------------------------------------


@check
def test_a_bias_is_a_number_for_each_distance(g):
    made, edges = random_graph(10, 1, 0.2)
    distances = g.shortest_paths(g.graph_mask(edges, 10))
    part = filled(g.SpatialBias(3, max_distance=2))
    bias = part(distances)
    for i, j in itertools.product(range(10), range(10)):
        joined = networkx.has_path(made, i, j)
        row = min(networkx.shortest_path_length(made, i, j), 2) if joined else 3
        close(bias[:, i, j], part.weight[row])


@check
def test_edges_count_along_all_shortest_paths(g):
    made, edges = random_graph(9, 7, 0.35)
    mask, carried = g.graph_mask(edges, 9), normal(len(edges), 4)
    table = g.edge_matrix(edges, carried, 9)
    for most in (2, 6):
        part = filled(g.EdgeBias(2, d_edge=4, max_distance=most))
        bias = part(mask, table + 7 * (table == 0))  # where no edge is, nothing is looked at
        for i, j in itertools.product(range(9), range(9)):
            wanted = torch.zeros(2, dtype=DOUBLE)
            if i != j and networkx.has_path(made, i, j):
                paths = list(networkx.all_shortest_paths(made, i, j))
                for path in paths:
                    steps = list(itertools.pairwise(path))[:most]
                    for step, (a, b) in enumerate(steps):
                        wanted += part.weight[:, step] @ table[a, b] / len(steps) / len(paths)
            close(bias[:, i, j], wanted)


@check
def test_a_given_bias_is_added_to_the_scores_of_one_pass(g):
    given = g.GivenBias()
    mha = filled(MultiHeadAttention(6, 2, position=given))
    plain = filled(MultiHeadAttention(6, 2))
    x, bias = normal(2, 5, 6), normal(2, 2, 5, 5, seed=1)
    with given.during(bias):
        y = mha(x)[0]
    own = plain.attend
    plain.attend = lambda q, k, v, **kw: own(q, k, v, **(kw | {"bias": bias}))
    close(y, plain(x)[0])
    with pytest.raises(ValueError, match="no bias is given"):
        mha(x)
    with given.during(bias[..., :3, :3]), pytest.raises(ValueError, match="bias must be for"):
        mha(x)


@check
def test_a_biased_attention_does_not_mind_the_numbering(g):
    _, edges = random_graph(9, 5, 0.3)
    x, mask, new = normal(1, 9, 4), g.graph_mask(edges, 9), order(9)
    table = g.edge_matrix(edges, normal(len(edges), 2), 9)
    spatial, edge = filled(g.SpatialBias(2, 3)), filled(g.EdgeBias(2, 2, 3), 5)
    given = g.GivenBias()
    mha = filled(MultiHeadAttention(4, 2, position=given, attend=attend_sdpa))

    def run(x, mask, table):
        with given.during(spatial(g.shortest_paths(mask)) + edge(mask, table)):
            return mha(x)[0]

    moved = renumbered(table.movedim(-1, 0), new).movedim(0, -1)
    close(run(x[:, new], renumbered(mask, new), moved), run(x, mask, table)[:, new])


# Messages ----------------------------------------------------------------------------------------


@check
def test_the_mean_is_attention_with_equal_scores(g):
    for seed in range(3):
        _, edges = random_graph(9, seed, 0.3)
        mask = g.graph_mask(edges, 9, self_loops=False)  # the last node hears nobody
        x, nothing = normal(2, 9, 4, seed=seed), torch.zeros(2, 9, 3, dtype=DOUBLE)
        mean = g.aggregate(x, mask)
        close(mean, attend(nothing, nothing, x, mask=mask))
        assert not mean[:, -1].any()
        close(g.aggregate(x, mask, "sum"), mean * g.degrees(mask)[:, None])
        largest = g.aggregate(x, mask, "max")
        for i, row in enumerate(mask):
            wanted = x[:, row].amax(1) if row.any() else torch.zeros(2, 4, dtype=DOUBLE)
            close(largest[:, i], wanted)


@check
def test_a_layer_passes_messages_of_others(g):
    x = normal(1, 3, 4)
    layer = filled(g.MessagePassing(4, 5, kind="sum"))
    own, heard = layer.own_proj, layer.heard_proj.weight
    y, _ = layer(x, mask=g.graph_mask(torch.tensor([[0, 1], [0, 2]]), 3))
    close(y[0, 0], own(x[0, 0]) + heard @ (x[0, 1] + x[0, 2]))
    close(y[0, 1], own(x[0, 1]) + heard @ x[0, 0])


@check
def test_graph_convolutions_keep_the_roots_of_the_degrees(g):
    _, edges = random_graph(9, 1, 0.3)
    for loops in (True, False):
        mask = g.graph_mask(edges, 9, self_loops=loops)
        w, roots = g.gcn_weights(mask), (g.degrees(mask) + 1.0).sqrt()
        close(w @ roots, roots, 1e-5)
        close(w, w.T, 0.0)
        assert torch.equal(w > 0, g.graph_mask(edges, 9))
        # Attention with bias −½ log(d_j + 1) has these weights but for the sum of each row.
        bias = -roots.log().expand(9, 9)
        x = normal(9, 2, dtype=torch.float32)
        nothing = torch.zeros(9, 1)
        looped = g.graph_mask(edges, 9)
        close(attend(nothing, nothing, x, bias=bias, mask=looped), w @ x / w.sum(1)[:, None], 1e-5)


@check
def test_near_and_far_are_added_and_far_passes_over_padding(g):
    masks = [g.graph_mask(random_graph(n + 1, n, 0.5)[1] % n, n) for n in (4, 6)]
    both = filled(LAYERS["both"](g))
    x, stacked = normal(2, 6, 4), g.stack_graphs(masks)
    y, _ = both(x, mask=stacked)
    alone = both.near(x[:1, :4], mask=masks[0])[0] + both.far(x[:1, :4])[0]
    close(y[:1, :4], alone)
    joined, ids = g.join_graphs(masks)
    row = torch.cat([x[0, :4], x[1]])[None]
    y_row, _ = both(row, mask=joined, together=document_mask(ids))
    close(y_row[0], torch.cat([y[0, :4], y[1]]))


# The whole model, and bad input ------------------------------------------------------------------


def model(**choices):
    torch.manual_seed(0)
    layers = [Layer(Attention(2, position=Given()), FFN(16))] * 2
    return filled(GraphTransformer(3, 8, layers, d_out=5, max_distance=3, **choices))


def test_a_graph_transformer_does_not_mind_the_numbering():
    g, n = tfbook.graphs, 9
    _, edges = random_graph(n, 5, 0.3)
    net = model(d_edge=2, d_position=4)
    x, mask, new = normal(2, n, 3), g.graph_mask(edges, n), order(n)
    table = g.edge_matrix(edges, normal(len(edges), 2), n)
    places = g.random_walk_positions(mask, 4).double()
    y = net(x, mask, carried=table, positions=places)
    moved = renumbered(table.movedim(-1, 0), new).movedim(0, -1)
    again = net(x[:, new], renumbered(mask, new), carried=moved, positions=places[new])
    close(again, y[:, new])
    other = net(x[:, new], mask, carried=table, positions=places)  # it does mind the graph
    assert (other - y[:, new]).abs().max() > 1e-3


def test_a_graph_transformer_sees_all_and_passes_over_padding():
    g = tfbook.graphs
    masks = [g.graph_mask(random_graph(n + 1, n, 0.4)[1] % n, n) for n in (4, 7)]
    net, x = model(), normal(2, 7, 3)
    y = net(x, g.stack_graphs(masks))
    close(y[:1, :4], net(x[:1, :4], masks[0]))
    reached = torch.autograd.functional.jacobian(lambda x: net(x, masks[1]).sum((0, 2)), x[1:])
    assert (reached.abs().sum((1, 3)) > 1e-9).all()


def test_distances_that_are_known_may_be_passed_and_every_weight_is_trained():
    g = tfbook.graphs
    _, edges = random_graph(9, 5, 0.3)
    mask, net, x = g.graph_mask(edges, 9), model(), normal(1, 9, 3)
    close(net(x, mask, distances=g.shortest_paths(mask)), net(x, mask))
    (net(x, mask) * normal(1, 9, 5, seed=3)).sum().backward()
    still = [name for name, weight in net.named_parameters() if weight.grad is None]
    assert still == []
    with pytest.raises(ValueError, match="carried must be left out"):
        net(x, mask, carried=normal(9, 9, 2))
    with pytest.raises(ValueError, match="layers must be"):
        GraphTransformer(3, 8, [], d_out=5)


def test_half_precision_is_computed_in_float32():
    g = tfbook.graphs
    mask = g.graph_mask(random_graph(40, 0, 0.5)[1], 40)
    x = normal(40, 8)
    for dtype in (torch.float16, torch.bfloat16):
        half = x.to(dtype)
        for kind in g.AGGREGATIONS:
            found = g.aggregate(half, mask, kind)
            assert found.dtype == dtype
            close(found, g.aggregate(half.float(), mask, kind).to(dtype))
        a = half[0]
        assert g.gat_scores(half, half, a, a).dtype == torch.float32
        assert g.gatv2_scores(half, half, a).dtype == torch.float32


@pytest.mark.untyped
def test_bad_input_is_refused_in_a_sentence():
    g, edges = tfbook.graphs, torch.tensor([[0, 1]])
    mask, x = g.graph_mask(edges, 3), torch.randn(1, 3, 4)
    for wrong, error in (
        (lambda: g.graph_mask(edges, 1), "edges must name nodes from 0 to 0"),
        (lambda: g.graph_mask(-edges, 3), "edges must name nodes"),
        (lambda: g.graph_mask(edges.T, 3), r"edges must be pairs, of shape \(E, 2\)"),
        (lambda: g.graph_mask(edges.float(), 3), "edges must be integers"),
        (lambda: g.graph_mask(edges, True), "n_nodes must be an integer"),
        (lambda: g.edge_matrix(edges, torch.ones(2), 3), "weights must have shape"),
        (lambda: g.laplacian(torch.tensor([[0.0, 1.0], [2.0, 0.0]])), "weights must be symmetric"),
        (lambda: g.laplacian(-torch.ones(2, 2)), "weights must be finite and not negative"),
        (lambda: g.laplacian(torch.ones(2, 2) * torch.nan), "weights must be symmetric"),
        (lambda: g.degrees(mask[:2]), "mask must have shape"),
        (lambda: g.laplacian_positions(mask, 3), "k must be from 1 to 2"),
        (lambda: g.join_graphs([]), "at least one graph"),
        (lambda: g.GraphAttention(5, 2), "n_heads must divide d_model"),
        (lambda: g.GraphAttention(4, 2)(x, x), "state must be None"),
        (lambda: g.GraphAttention(4, 2)(x, mask=mask.float()), "mask must be boolean"),
        (lambda: g.MessagePassing(4)(x, mask=mask[:2, :2]), "mask must have shape"),
        (lambda: g.MessagePassing(4)(x, mask=None), "mask must be a tensor"),
        (lambda: g.aggregate(x, mask, "median"), "kind must be one of"),
        (lambda: g.aggregate(x, mask[:, :2]), "mask must have shape"),
        (lambda: g.SpatialBias(2, 3)(mask.float()), "distances must be integers"),
        (lambda: g.EdgeBias(2, 1, 3)(mask, torch.ones(3, 3)), "carried must have shape"),
        (lambda: g.gat_scores(x, x, x[0, 0, :3], x[0, 0]), "a_q must end in d = 4"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            wrong()
