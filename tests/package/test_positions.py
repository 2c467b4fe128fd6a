"""Position schemes: their properties, published tables, other libraries, bad input."""

import copy
import functools
import math

import fresh
import pytest
import torch
from position_properties import CHECKS, DOUBLE, added, biases, close, normal, randomise
from torch import nn

from tfbook import positions
from tfbook.attention import attend


@pytest.mark.parametrize("name", CHECKS)
def test_position_schemes_have(name):
    CHECKS[name](positions)


# order --------------------------------------------------------------------------------------------

ORDER = torch.tensor([3, 0, 4, 1, 2])


def mix(x):
    """One attention with the tokens themselves as queries, keys and values."""
    return attend(x, x, x)


def test_without_positions_attention_is_equivariant():
    x = normal(5, 6)
    plain = positions.NoPositions()
    close(mix(plain(x[ORDER])), mix(plain(x))[ORDER])
    close(mix(plain(x[ORDER])).mean(0), mix(plain(x)).mean(0))


@pytest.mark.parametrize("scheme", [positions.SinusoidalPositions(6), positions.ALiBi(1)], ids=str)
def test_with_positions_it_is_not(scheme):
    x = normal(1, 5, 6)

    def run(x):
        if isinstance(scheme, positions.BiasPosition):
            return attend(x, x, x, bias=scheme.bias(x, torch.arange(5), torch.arange(5)))
        return mix(scheme(x))

    assert (run(x[:, ORDER]) - run(x)[:, ORDER]).abs().max() > 1e-3


def test_alibi_as_its_authors_compute_it_gives_the_same_weights():
    """They add m · j in place of −m · (i − j): m · i is the same for a whole row."""
    q, k, v = normal(2, 4, 7, 5), normal(2, 4, 7, 5, seed=1), normal(2, 4, 7, 5, seed=2)
    places = torch.arange(7)
    slopes = torch.tensor(positions.alibi_slopes(4), dtype=DOUBLE)[:, None, None]
    ours = attend(q, k, v, causal=True, bias=positions.ALiBi(4).bias(q, places, places))
    close(attend(q, k, v, causal=True, bias=slopes * places), ours)


# modules ------------------------------------------------------------------------------------------


def test_schemes_that_learn_nothing_have_no_weights():
    fixed = (
        positions.NoPositions(),
        positions.SinusoidalPositions(6),
        positions.SinusoidalPositions2d(3, 5, 12),
        positions.RotaryPositions(6),
        positions.ALiBi(3),
    )
    assert [list(scheme.state_dict()) for scheme in fixed] == [[]] * 5


def test_weights_have_the_names_and_sizes_that_are_promised():
    shapes = {
        type(scheme).__name__: {name: tuple(w.shape) for name, w in scheme.state_dict().items()}
        for scheme in [*added(positions), *biases(positions)]
    }
    assert shapes["LearnedPositions"] == {"weight": (15, 12)}
    assert shapes["LearnedPositions2d"] == {"weight": (3, 5, 12)}
    assert shapes["ConcatenatedPositions"] == {"proj.weight": (12, 18)}
    assert shapes["T5Bias"] == {"weight": (8, 3)}
    assert shapes["ShawPositions"] == {"weight": (7, 5)}
    assert shapes["TransformerXLPositions"] == {"v": (3, 5), "r_proj.weight": (15, 14)}


@pytest.mark.parametrize("scheme", [*added(positions), *biases(positions)], ids=str)
def test_modules_can_be_copied_and_moved_to_half_precision(scheme):
    copied = copy.deepcopy(scheme).to(torch.float16)
    assert all(weight.dtype == torch.float16 for weight in copied.parameters())
    if isinstance(scheme, positions.BiasPosition):
        x, places = normal(2, 3, 15, 5, dtype=torch.float16), torch.arange(15)
        got, wanted = copied.bias(x, places, places), scheme.bias(x.double(), places, places)
    else:
        x = normal(2, 15, 12, dtype=torch.float16)
        got, wanted = copied(x), scheme(x.double())
    assert got.dtype == torch.float16
    close(got.double(), wanted, atol=0.05)


def test_learned_positions_start_small():
    torch.manual_seed(0)
    weight = positions.LearnedPositions(1000, 50).weight
    assert math.isclose(weight.std().item(), 0.02, rel_tol=0.05)
    assert abs(weight.mean().item()) < 1e-3


def test_each_scheme_follows_its_protocol():
    protocols = (positions.AddedPosition, positions.RotaryPosition, positions.BiasPosition)
    rotary = positions.RotaryPositions(6)
    assert all(isinstance(scheme, protocols[0]) for scheme in added(positions))
    assert isinstance(rotary, protocols[1]) and not isinstance(rotary, protocols[2])
    assert all(isinstance(scheme, protocols[2]) for scheme in biases(positions))
    assert not isinstance(nn.Linear(2, 3), protocols[2])  # although it has a bias


def test_each_scheme_says_what_it_is():
    scaled = positions.RotaryPositions(6, base=500, scaling=positions.LinearScaling(2.0))
    schemes = {
        "d_head=6, base=500, layout='interleaved', scaling=LinearScaling(factor=2.0)": scaled,
        "d_head=6, base=10000, layout='half'": positions.RotaryPositions(6, layout="half"),
        "n_heads=3": positions.ALiBi(3),
        "n_heads=3, n_buckets=32, max_distance=128, bidirectional=True": positions.T5Bias(3),
        "d_head=5, max_distance=2": positions.ShawPositions(5, 2),
        "max_len=7, d_model=5": positions.LearnedPositions(7, 5),
        "rows=2, cols=3, d_model=5": positions.LearnedPositions2d(2, 3, 5),
        "d_model=6, base=10000": positions.SinusoidalPositions(6),
    }
    for words, scheme in schemes.items():
        assert repr(scheme) == f"{type(scheme).__name__}({words})"


def test_codes_come_in_the_default_dtype():
    assert positions.sinusoidal_encoding(3, 4).dtype == torch.float32
    assert positions.shift_matrix(3, 4).dtype == torch.float32
    assert positions.sinusoidal_encoding_2d(2, 3, 4).dtype == torch.float32


def test_learned_positions_load_the_weights_of_an_embedding():
    table, scheme = nn.Embedding(7, 5), positions.LearnedPositions(7, 5)
    scheme.load_state_dict(table.state_dict())
    x, places = torch.randn(2, 3, 5), torch.tensor([6, 0, 2])
    close(scheme(x, places), x + table(places))


def test_rotating_agrees_with_finite_differences():
    x = normal(2, 3, 6).requires_grad_()
    for layout in ("interleaved", "half"):
        turn = functools.partial(positions.apply_rotary, positions=torch.arange(3), layout=layout)
        assert torch.autograd.gradcheck(turn, (x,))
        assert torch.autograd.gradgradcheck(turn, (x,))


def test_rotating_takes_any_strides():
    x = normal(2, 7, 3, 13)[..., 1:7]
    for layout in ("interleaved", "half"):
        turn = functools.partial(positions.apply_rotary, layout=layout, positions=torch.arange(7))
        close(turn(x.transpose(1, 2)), turn(x.transpose(1, 2).contiguous()))
        one = normal(1, 6)
        close(turn(one.expand(7, 6)), turn(one.repeat(7, 1)))


@pytest.mark.untyped
def test_schemes_compile():
    p = fresh.copies("compiled_tfbook", ["tfbook.positions"])
    x, places = normal(2, 3, 15, 12), torch.arange(15)
    compiled = functools.partial(torch.compile, backend="eager", fullgraph=True, dynamic=False)
    for layout in ("interleaved", "half"):
        turn = p.RotaryPositions(12, layout=layout).rotate
        close(compiled(turn)(x, places), turn(x, places))
    for scheme in added(p):
        close(compiled(scheme)(x, places), scheme(x, places))
    for scheme in biases(p, d_head=12)[:-1]:  # Transformer-XL's looks at the positions' values
        bias = compiled(scheme.bias)(x, places, places)
        close(bias, scheme.bias(x, places, places))


# published tables and other libraries -------------------------------------------------------------


def test_alibi_slopes_are_the_published_ones():
    """The paper's example for 8 heads; for 12 and 16 the lists its code gives."""
    assert positions.alibi_slopes(8) == tuple(2.0**-h for h in range(1, 9))
    between = [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    close(
        torch.tensor(positions.alibi_slopes(12)),
        torch.tensor([2.0**-h for h in range(1, 9)] + between),
    )
    close(
        torch.tensor(positions.alibi_slopes(16)),
        torch.tensor([2 ** (-h / 2) for h in range(1, 17)]),
    )


@pytest.mark.parametrize("n_heads", [1, 2, 3, 7, 8, 12, 16, 20, 71])
def test_alibi_slopes_equal_those_of_bloom(n_heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    alibi = bloom.build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)  # (H, 1, 2)
    close(torch.tensor(positions.alibi_slopes(n_heads)), alibi[:, 0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("bidirectional", "n_buckets", "max_distance"),
    [(b, n, m) for b in (True, False) for n, m in ((32, 128), (64, 256), (32, 20), (12, 1000))],
)
def test_buckets_equal_those_of_transformers(bidirectional, n_buckets, max_distance):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = torch.arange(-5000, 5001)
    wanted = t5.T5Attention._relative_position_bucket(
        relative, bidirectional, n_buckets, max_distance
    )
    got = positions.t5_bucket(
        relative, bidirectional=bidirectional, n_buckets=n_buckets, max_distance=max_distance
    )
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_equals_that_of_transformers(bidirectional):
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(num_heads=3, d_model=15, d_kv=5)
    config.is_decoder = not bidirectional
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    ours = randomise(positions.T5Bias(3, bidirectional=bidirectional))
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(ours.weight)
    q, places = normal(1, 3, 200, 5), torch.arange(300)
    wanted = theirs.compute_bias(200, 300)[0]
    close(ours.bias(q, places[:200], places), wanted)


def test_the_relative_shift_equals_that_of_xlnet():
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    x = normal(2, 3, 5, 12)  # XLNet has one column more, for a distance that no key has
    wanted = xlnet.XLNetRelativeAttention.rel_shift_bnij(x, klen=7)
    close(positions.relative_shift(x[..., 1:])[..., :7], wanted)


def llama(**rope):
    """The configuration of a LLaMA of head size 64, with some way of scaling."""
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=rope.pop("length", 512),
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default", **rope},
    )


SCALED = {
    "none": (None, {}),
    "linear": (positions.LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    # At its own length, `dynamic` with factor 1 scales nothing; NTK's factor is 1 + f (L' / L − 1).
    "ntk": (positions.NTKScaling(5.0), {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": (
        positions.YarnScaling(4.0, 512),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    ),
    "llama3": (
        positions.Llama3Scaling(8.0, 512),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
    "llama3, other bounds": (
        positions.Llama3Scaling(32.0, 8192, beta_fast=9.0, beta_slow=0.5),
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 0.5,
            "high_freq_factor": 9.0,
        },
    ),
    "yarn, other bounds": (
        positions.YarnScaling(16.0, 2048, beta_fast=20.0, beta_slow=2.0),
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
        },
    ),
    "yarn, from and to between pairs": (
        positions.YarnScaling(4.0, 512, truncate=False),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "truncate": False,
        },
    ),
}


@pytest.mark.parametrize("name", [name for name in SCALED if name != "none"])
def test_scaled_frequencies_equal_those_of_transformers(name):
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    scaling, parameters = SCALED[name]
    compute = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    # 2 · 1536 / 512 − (2 − 1) = 5
    frequencies, amplitude = compute(llama(**parameters), torch.device("cpu"), seq_len=1536)
    ours = positions.rotary_frequencies(64, scaling=scaling)
    torch.testing.assert_close(ours.float(), frequencies, rtol=2e-6, atol=0)
    assert math.isclose(amplitude, scaling.amplitude)


def test_rotating_in_halves_equals_that_of_transformers():
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = normal(2, 3, 7, 64, dtype=torch.float32), normal(2, 1, 7, 64, dtype=torch.float32)
    places = torch.stack((torch.arange(7), torch.arange(90, 97)))
    cos, sin = modeling.LlamaRotaryEmbedding(llama())(q, places)
    wanted = modeling.apply_rotary_pos_emb(q, k, cos, sin)
    ours = positions.RotaryPositions(64, layout="half")
    for x, theirs in zip((q, k), wanted, strict=True):
        close(ours.rotate(x, places), theirs, atol=5e-5)


def test_rotating_a_share_equals_that_of_gpt_neox():
    modeling = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    from transformers import GPTNeoXConfig

    config = GPTNeoXConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=64,
        rope_parameters={
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25
        },
    )  # fmt: skip
    q, k = normal(2, 2, 7, 32, dtype=torch.float32), normal(2, 2, 7, 32, dtype=torch.float32)
    places = torch.stack((torch.arange(7), torch.arange(30, 37)))
    cos, sin = modeling.GPTNeoXRotaryEmbedding(config)(q, places)
    wanted = modeling.apply_rotary_pos_emb(q, k, cos, sin)
    ours = positions.RotaryPositions(32, rotated=8, base=500.0, layout="half")
    for x, theirs in zip((q, k), wanted, strict=True):
        close(ours.rotate(x, places), theirs, atol=5e-5)
    assert "d_head=32, rotated=8, base=500" in repr(ours)


def test_rotating_neighbours_equals_that_of_gpt_j():
    modeling = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x = normal(2, 7, 3, 10, dtype=torch.float32)  # GPT-J has the heads behind the tokens
    table = modeling.create_sinusoidal_positions(7, 10)
    sin, cos = table.chunk(2, dim=-1)
    wanted = modeling.apply_rotary_pos_emb(x, sin[None], cos[None]).transpose(1, 2)
    close(positions.apply_rotary(x.transpose(1, 2), torch.arange(7)), wanted, atol=1e-5)


def test_interpolating_a_table_equals_that_of_torch():
    table = normal(7, 5)
    wanted = nn.functional.interpolate(table.T[None], size=13, mode="linear", align_corners=True)
    close(positions.interpolate_positions(table, 13), wanted[0].T)


def test_interpolating_a_grid_equals_that_of_vit():
    transformers = pytest.importorskip("transformers")
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    config = transformers.ViTConfig(hidden_size=5, image_size=12, patch_size=4)
    theirs = ViTEmbeddings(config).double()
    grid = normal(3, 3, 5)
    with torch.no_grad():
        theirs.position_embeddings[0, 1:].copy_(grid.flatten(0, 1))
    wanted = theirs.interpolate_pos_encoding(torch.zeros(1, 1 + 5 * 7, 5), 20, 28)[0, 1:]
    close(positions.interpolate_grid(grid, 5, 7), wanted.unflatten(0, (5, 7)))


# bad input ----------------------------------------------------------------------------------------

X, Q, P = torch.randn(2, 5, 6), torch.randn(2, 3, 5, 4), torch.arange(5)
LEARNED, ROTARY = positions.LearnedPositions(7, 6), positions.RotaryPositions(4)
ALIBI, SHAW = positions.ALiBi(3), positions.ShawPositions(4, 2)
GRID = positions.LearnedPositions2d(2, 3, 6)

BAD = {
    "an odd size": (
        lambda: positions.sinusoidal_encoding(5, 7),
        ValueError,
        "d_model must be even, .* got 7",
    ),
    "an odd size of a module": (
        lambda: positions.ConcatenatedPositions(6, 5),
        ValueError,
        "d_position must be even, .* got 5",
    ),
    "an odd size of the wavelengths": (
        lambda: positions.sinusoidal_wavelengths(7),
        ValueError,
        "d_model must be even",
    ),
    "an odd size of the shift": (
        lambda: positions.shift_matrix(2, 7),
        ValueError,
        "d_model must be even",
    ),
    "a base of 1": (
        lambda: positions.sinusoidal_encoding(5, 6, base=1.0),
        ValueError,
        "base must be above 1, got 1.0",
    ),
    "a negative base": (lambda: positions.RotaryPositions(6, base=-1.0), ValueError, "base must"),
    "a negative length": (
        lambda: positions.sinusoidal_encoding(-1, 6),
        ValueError,
        "positions must be at least 0, got -1",
    ),
    "a length that is no integer": (
        lambda: positions.sinusoidal_encoding(5.0, 6),
        TypeError,
        "positions must be an integer, got float",
    ),
    "boolean positions": (
        lambda: positions.sinusoidal_encoding(P > 2, 6),
        TypeError,
        "positions must be integers or real numbers, got torch.bool",
    ),
    "a shift that is a tensor": (
        lambda: positions.shift_matrix(torch.tensor(3), 6),
        TypeError,
        "k must be a number, got Tensor",
    ),
    "a grid size that is not in quarters": (
        lambda: positions.sinusoidal_encoding_2d(2, 3, 6),
        ValueError,
        "d_model must be a multiple of 4, .* got 6",
    ),
    "more tokens than positions": (
        lambda: LEARNED(torch.randn(2, 8, 6)),
        ValueError,
        "x has 8 tokens, but there are only 7 positions",
    ),
    "a position beyond the table": (
        lambda: LEARNED(X, P + 3),
        ValueError,
        "positions must be from 0 to 6, got 3 to 7",
    ),
    "a negative position": (lambda: LEARNED(X, P - 1), ValueError, "from 0 to 6, got -1 to 3"),
    "real positions for a table": (
        lambda: LEARNED(X, P / 2),
        TypeError,
        "positions must be integers, got torch.float32",
    ),
    "embeddings of another size": (
        lambda: LEARNED(torch.randn(2, 5, 4)),
        ValueError,
        r"x must end with d_model = 6 numbers, got shape \(2, 5, 4\)",
    ),
    "token ids for embeddings": (lambda: LEARNED(P[None]), TypeError, "x must have a floating"),
    "positions of another length": (
        lambda: LEARNED(X, P[:4]),
        ValueError,
        r"positions must have shape \(N,\) = \(5,\) or \(B, N\) = \(2, 5\), got \(4,\)",
    ),
    "positions of another batch": (
        lambda: LEARNED(X, P.expand(3, 5)),
        ValueError,
        r"or \(B, N\) = \(2, 5\), got \(3, 5\)",
    ),
    "positions as a list": (
        lambda: LEARNED(X, [0, 1, 2, 3, 4]),
        TypeError,
        "positions must be a tensor, got list",
    ),
    "positions on another device": (
        lambda: ROTARY.rotate(Q, P.to("meta")),
        ValueError,
        "positions must be on the device of the tokens, cpu, got meta",
    ),
    "a table without rows": (
        lambda: positions.LearnedPositions(0, 6),
        ValueError,
        "max_len must be at least 1, got 0",
    ),
    "interpolation to one row": (
        lambda: LEARNED.interpolated(1),
        ValueError,
        "n_new must be at least 2, got 1",
    ),
    "interpolation of a grid as a table": (
        lambda: positions.interpolate_positions(GRID.weight, 5),
        ValueError,
        r"weight must have shape \(n, d\)",
    ),
    "interpolation to no columns": (lambda: GRID.interpolated(2, 0), ValueError, "cols must be"),
    "an unknown interpolation": (
        lambda: positions.interpolate_grid(GRID.weight, 2, 3, mode="nearest"),
        ValueError,
        "mode must be 'bicubic' or 'bilinear', got 'nearest'",
    ),
    "part of a grid without positions": (
        lambda: GRID(X),
        ValueError,
        "x must hold the 2 x 3 = 6 cells of the grid",
    ),
    "a cell outside of the grid": (
        lambda: GRID(X, P + 2),
        ValueError,
        "positions must be from 0 to 5, got 2 to 6",
    ),
    "an odd head": (lambda: positions.RotaryPositions(5), ValueError, "d_head must be even"),
    "an odd share of a head": (
        lambda: positions.RotaryPositions(8, rotated=3),
        ValueError,
        "rotated must be even",
    ),
    "a share larger than the head": (
        lambda: positions.RotaryPositions(8, rotated=10),
        ValueError,
        "rotated must not exceed d_head = 8, got 10",
    ),
    "a range of another length": (
        lambda: ROTARY.rotate(Q, range(4)),
        ValueError,
        r"positions must be a range of 5 in steps of 1, got range\(0, 4\)",
    ),
    "a range in larger steps": (
        lambda: ROTARY.rotate(Q, range(0, 10, 2)),
        ValueError,
        "positions must be a range of 5 in steps of 1",
    ),
    "bounds of LLaMA 3 that are one": (
        lambda: positions.Llama3Scaling(2.0, 64, beta_fast=1.0),
        ValueError,
        "beta_fast must be above beta_slow, got 1.0 for both",
    ),
    "an unknown layout": (
        lambda: positions.RotaryPositions(4, layout="gptj"),
        ValueError,
        "layout must be one of interleaved, half, got 'gptj'",
    ),
    "a scaling by name": (
        lambda: positions.RotaryPositions(4, scaling="yarn"),
        TypeError,
        "scaling must be LinearScaling, NTKScaling, YarnScaling, Llama3Scaling .* got str",
    ),
    "a head of another size": (
        lambda: ROTARY.rotate(X, P),
        ValueError,
        r"x must end with d_head = 4 numbers, got shape \(2, 5, 6\)",
    ),
    "heads behind the tokens": (
        lambda: ROTARY.rotate(Q.transpose(1, 2), P),
        ValueError,
        r"positions must have shape \(N,\) = \(3,\)",
    ),
    "a factor of zero": (lambda: positions.LinearScaling(0.0), ValueError, "factor must be finite"),
    "a factor that shrinks": (
        lambda: positions.YarnScaling(0.5, 512),
        ValueError,
        "factor must be at least 1, got 0.5",
    ),
    "bounds that are exchanged": (
        lambda: positions.YarnScaling(2.0, 512, beta_fast=1.0, beta_slow=32.0),
        ValueError,
        "beta_fast must not be below beta_slow, got beta_fast 1.0 and beta_slow 32.0",
    ),
    "NTK with one pair": (
        lambda: positions.RotaryPositions(2, scaling=positions.NTKScaling(2.0)),
        ValueError,
        "d_head must be at least 4, got 2",
    ),
    "heads that do not divide": (
        lambda: positions.interleaved_to_half(torch.randn(12, 5), dim=0, n_heads=4),
        ValueError,
        r"x must have n_heads = 4 heads of even size along dim 0, got shape \(12, 5\)",
    ),
    "a dimension that is not there": (
        lambda: positions.interleaved_to_half(X, dim=3),
        ValueError,
        r"dim must name a dimension of x, got 3 for shape \(2, 5, 6\)",
    ),
    "too many heads": (
        lambda: ALIBI.bias(torch.randn(2, 4, 5, 4), P, P),
        ValueError,
        r"with n_heads = 3, got \(2, 4, 5, 4\)",
    ),
    "queries without heads": (
        lambda: ALIBI.bias(torch.randn(5, 4), P, P),
        ValueError,
        "q needs at least 3 dimensions",
    ),
    "queries of another size": (
        lambda: SHAW.bias(torch.randn(2, 3, 5, 6), P, P),
        ValueError,
        r"with d_head = 4, got \(2, 3, 5, 6\)",
    ),
    "positions for other queries": (
        lambda: SHAW.bias(Q, P[:1], P),
        ValueError,
        r"q_positions must have shape \(N,\) = \(5,\) or \(B, N\) = \(2, 5\), got \(1,\)",
    ),
    "positions of keys of another batch": (
        lambda: SHAW.bias(Q, P, P.expand(3, 5)),
        ValueError,
        r"k_positions must have shape \(N,\) = \(N,\) or \(B, N\) = \(2, N\), got \(3, 5\)",
    ),
    "real positions of keys": (
        lambda: ALIBI.bias(Q, P, P.float()),
        TypeError,
        "k_positions must be integers, got torch.float32",
    ),
    "no heads": (lambda: positions.ALiBi(0), ValueError, "n_heads must be from 1 to"),
    "an odd number of buckets for two sides": (
        lambda: positions.T5Bias(3, n_buckets=7),
        ValueError,
        "n_buckets must be even",
    ),
    "too few buckets": (
        lambda: positions.t5_bucket(P, bidirectional=False, n_buckets=1),
        ValueError,
        "n_buckets must be at least 2, got 1",
    ),
    "a maximum distance within the exact buckets": (
        lambda: positions.t5_bucket(P, max_distance=8),
        ValueError,
        "max_distance must be at least 9, got 8",
    ),
    "real distances": (lambda: positions.t5_bucket(P / 2), TypeError, "relative must be integers"),
    "real distances to clip": (lambda: positions.shaw_clip(P / 2, 2), TypeError, "relative must"),
    "a clip at zero": (lambda: positions.shaw_clip(P, 0), ValueError, "max_distance must be at"),
    "a shift to more columns": (
        lambda: positions.relative_shift(torch.randn(5, 7), 8),
        ValueError,
        r"n_keys = 8 columns, got shape \(5, 7\)",
    ),
    "a shift with too few columns": (
        lambda: positions.relative_shift(torch.randn(5, 3)),
        ValueError,
        "n_keys must be at least 0, got -1",
    ),
    "too few distances": (
        lambda: positions.transformer_xl_scores(
            torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 4), torch.ones(4), torch.ones(4)
        ),
        ValueError,
        r"each of the n \+ m - 1 = 11 distances, got shape \(7, 4\)",
    ),
    "an odd encoding of distances": (
        lambda: positions.TransformerXLPositions(3, 5),
        ValueError,
        "d_encoding must be even",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


# parts of heads, and LLaMA 3.1's scaling ---------------------------------------------------------


def test_a_part_of_each_head_is_turned_and_the_rest_stays():
    part = positions.RotaryPositions(10, rotated=4, base=50.0)
    x, places = normal(2, 3, 7, 10), torch.arange(5, 12)
    found = part.rotate(x, places)
    close(found[..., 4:], x[..., 4:])
    close(found[..., :4], positions.apply_rotary(x[..., :4].contiguous(), places, base=50.0))
    with pytest.raises(ValueError, match="10"):
        part.rotate(x[..., :3], places)


def test_llama_3_divides_slow_pairs_keeps_fast_ones_and_blends_by_turns():
    scaling = positions.Llama3Scaling(8.0, 100, beta_slow=1.0, beta_fast=4.0)
    plain = positions.rotary_frequencies(32, base=10000.0)
    found, turns = scaling.frequencies(32, 10000.0), 100 * plain / (2 * math.pi)
    assert torch.equal(found[turns >= 4], plain[turns >= 4])
    close(found[turns <= 1], plain[turns <= 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    share = (turns[between] - 1) / 3
    close(found[between], plain[between] * (share + (1 - share) / 8))
