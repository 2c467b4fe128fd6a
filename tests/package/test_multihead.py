"""Multi-head attention: its properties, its agreement with PyTorch and transformers, its refusals.

The properties stand in multihead_properties.py.
"""

import functools
import math
from dataclasses import replace

import fresh
import pytest
import torch
from attention_properties import torch_may_warn
from multihead_properties import (
    CHECKS,
    DK,
    DV,
    B,
    D,
    H,
    Kit,
    M,
    N,
    by_the_book,
    close,
    in_pieces,
    normal,
    randomised,
    watch,
)
from torch import nn
from torch.nn import functional

import tfbook.attention.latent
import tfbook.attention.multihead
from tfbook.attention import (
    VARIANTS,
    KVState,
    MultiHeadAttention,
    attend,
    attend_rows,
    attend_topk,
    causal_mask,
    kept_groups,
    merge_heads,
    padding_mask,
    register,
    scores_of,
    split_heads,
)
from tfbook.blocks import RMSNorm
from tfbook.positions import ALiBi, RotaryPositions, T5Bias

KIT = Kit(tfbook.attention.multihead, tfbook.attention.latent)


@pytest.mark.parametrize("name", CHECKS)
def test_property(name):
    CHECKS[name](KIT)


# PyTorch's module


TORCH = {
    "self": {},
    "no bias": {"bias": False},
    "not batch first": {"batch_first": False},
    "other keys": {"kdim": 11},
    "other values": {"vdim": 5},
    "both other": {"kdim": 11, "vdim": 5, "bias": False},
    "same memory": {"cross": True},
}


def torch_module(kdim=None, vdim=None, batch_first=True, bias=True):
    module = nn.MultiheadAttention(
        24, H, bias=bias, kdim=kdim, vdim=vdim, batch_first=batch_first, dtype=torch.float64
    )
    return randomised(module, 7)


@pytest.mark.parametrize("options", TORCH.values(), ids=list(TORCH))
def test_it_equals_pytorchs_module_forward_and_backward_there_and_back(options):
    options = dict(options)
    cross = options.pop("cross", None)
    theirs = torch_module(**options)
    ours = MultiHeadAttention.from_torch(theirs, cross=cross)
    back = ours.to_torch(batch_first=theirs.batch_first)
    assert {n: t.shape for n, t in back.state_dict().items()} == {
        n: t.shape for n, t in theirs.state_dict().items()
    }
    x, hidden = normal(B, N, 24).requires_grad_(), padding_mask([3, M if ours.is_cross else N])
    if ours.is_cross:
        memory, values = normal(B, M, theirs.kdim, seed=2), normal(B, M, theirs.vdim, seed=3)
        state = ours.remember(memory, values, mask=hidden)
        blocked = torch.zeros(N, M, dtype=torch.bool)
        y, weights = ours(x, state)[0], ours.weights(x, state)
    else:
        memory = values = x
        blocked = ~causal_mask(N)
        ours.causal = True
        y, weights = ours(x, mask=hidden)[0], ours.weights(x, mask=hidden)
    for module in (theirs, back):
        inputs = (x, memory, values)
        if not module.batch_first:
            inputs = tuple(t.transpose(0, 1) for t in inputs)
        wanted, wanted_weights = module(
            *inputs,
            key_padding_mask=~hidden.squeeze(1),
            attn_mask=blocked,
            average_attn_weights=False,
        )
        wanted = wanted if module.batch_first else wanted.transpose(0, 1)
        close(y, wanted)
        close(weights, wanted_weights)
        (mine,), (other,) = (
            torch.autograd.grad(out.square().sum(), x, retain_graph=True) for out in (y, wanted)
        )
        close(mine, other, atol=1e-10)


def test_gradients_of_the_weights_equal_pytorchs():
    theirs = torch_module()
    ours = MultiHeadAttention.from_torch(theirs)
    x = normal(B, N, 24)
    ours(x)[0].square().sum().backward()
    theirs(x, x, x)[0].square().sum().backward()
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    for kind in ("weight", "bias"):
        mine = torch.cat([getattr(p, kind).grad for p in projections])
        close(mine, getattr(theirs, f"in_proj_{kind}").grad, atol=1e-10)
        close(getattr(ours.out_proj, kind).grad, getattr(theirs.out_proj, kind).grad, atol=1e-10)


def test_converting_copies_and_draws_no_random_numbers():
    theirs = torch_module().eval()
    before = torch.get_rng_state()
    ours = MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch()
    assert torch.equal(torch.get_rng_state(), before)
    assert not ours.training and not back.training
    kept = theirs.in_proj_weight.clone()
    ours.q_proj.weight.data += 1
    back.in_proj_weight.data += 1
    close(theirs.in_proj_weight, kept, atol=0)
    assert all(p.is_leaf and p.requires_grad for p in [*ours.parameters(), *back.parameters()])


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False, ("q", "out")])
def test_shared_heads_and_missing_biases_are_written_out_for_pytorch(n_kv_heads, bias):
    ours = randomised(MultiHeadAttention(24, H, n_kv_heads=n_kv_heads, bias=bias), 3)
    x = normal(B, N, 24)
    close(ours.to_torch()(x, x, x)[0], ours(x)[0])


def test_grouped_heads_equal_pytorchs_grouped_attention():
    mha = KIT.mha(n_kv_heads=2)
    x = normal(B, N, D)
    q, k, v = (
        p(x).unflatten(-1, (-1, size)).transpose(1, 2)
        for p, size in ((mha.q_proj, DK), (mha.k_proj, DK), (mha.v_proj, DV))
    )
    z = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    close(mha(x)[0], mha.out_proj(z.transpose(1, 2).flatten(2)))


def test_float32_equals_the_float64_formula():
    for n_kv_heads in (2, 6):
        mha = KIT.mha(n_kv_heads=n_kv_heads).float()
        x = normal(B, N, D).float()
        wanted = by_the_book(mha.double(), x.double(), allowed=causal_mask(N))
        mha = mha.float()
        close(mha(x)[0].double(), wanted, atol=5e-6)
        close(in_pieces(mha, x, [1] * N)[0].double(), wanted, atol=5e-6)


# transformers


def test_it_equals_a_llama_attention_with_a_cache():
    from transformers import DynamicCache, LlamaConfig
    from transformers.models.llama import modeling_llama

    config = LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=4,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = randomised(modeling_llama.LlamaAttention(config, 0), 1)
    rotary = modeling_llama.LlamaRotaryEmbedding(config)
    ours = MultiHeadAttention(
        24, 6, n_kv_heads=2, causal=True, bias=False, position=RotaryPositions(4, layout="half")
    ).double()
    ours.load_state_dict(
        {k.replace("o_proj", "out_proj"): v for k, v in theirs.state_dict().items()}
    )
    x, cache, state = normal(B, N, 24), DynamicCache(config=config), None
    for start, stop in ((0, 4), (4, 6), (6, 7)):
        ids = torch.arange(start, stop)[None]
        blocked = ~causal_mask(stop - start, stop)
        wanted, _ = theirs(
            x[:, start:stop],
            position_embeddings=rotary(x, ids),
            attention_mask=blocked.double().mul(-1e300)[None, None],
            past_key_values=cache,
        )
        y, state = ours(x[:, start:stop], state)
        close(y, wanted, atol=1e-6)  # their cosines are made in float32


def test_with_norms_it_equals_a_qwen3_attention_with_a_cache():
    from transformers import DynamicCache, Qwen3Config
    from transformers.models.qwen3 import modeling_qwen3

    config = Qwen3Config(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=4,
        rms_norm_eps=1e-3, attn_implementation="eager",
    )  # fmt: skip
    theirs = randomised(modeling_qwen3.Qwen3Attention(config, 0), 1)
    rotary = modeling_qwen3.Qwen3RotaryEmbedding(config)
    ours = MultiHeadAttention(
        24, 6, n_kv_heads=2, causal=True, bias=False,
        position=RotaryPositions(4, layout="half"), qk_norm=functools.partial(RMSNorm, eps=1e-3),
    ).double()  # fmt: skip
    ours.load_state_dict(
        {k.replace("o_proj", "out_proj"): v for k, v in theirs.state_dict().items()}
    )
    x, cache, state = normal(B, N, 24), DynamicCache(config=config), None
    for start, stop in ((0, 4), (4, 6), (6, 7)):
        blocked = ~causal_mask(stop - start, stop)
        wanted, _ = theirs(
            x[:, start:stop],
            position_embeddings=rotary(x, torch.arange(start, stop)[None]),
            attention_mask=blocked.double().mul(-1e300)[None, None],
            past_key_values=cache,
        )
        y, state = ours(x[:, start:stop], state)
        close(y, wanted, atol=1e-6)  # their cosines and norms are made in float32


def test_it_equals_a_t5_attention():
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=D, d_kv=DK, num_heads=H, dropout_rate=0.0)
    theirs = randomised(T5Attention(config, has_relative_attention_bias=True, layer_idx=0), 1)
    ours = MultiHeadAttention(D, H, d_head=DK, bias=False, position=T5Bias(H)).double()
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
    for mine, other in names.items():
        getattr(ours, mine).weight.data = getattr(theirs, other).weight.data
    ours.position.weight.data = theirs.relative_attention_bias.weight.data
    x = normal(B, N, D)
    close(ours(x)[0], theirs(x)[0])
    # Its cross-attention has no position, and no scale either.
    theirs = randomised(T5Attention(config, has_relative_attention_bias=False, layer_idx=0), 2)
    theirs.is_decoder = True
    ours = MultiHeadAttention(D, H, d_head=DK, d_memory=D, bias=False, scale=1.0).double()
    for mine, other in names.items():
        getattr(ours, mine).weight.data = getattr(theirs, other).weight.data
    memory = normal(B, M, D, seed=2)
    close(ours(x, ours.remember(memory))[0], theirs(x, key_value_states=memory)[0])


# any attention function


def bound(variant):
    """Bind a variant's options and random weights of the right shapes."""
    sizes = {"d_q": DK, "d_k": DK, "d_hidden": 5}
    weights = {
        name: normal(*(sizes[s] for s in shape), seed=9)
        for name, shape in variant.parameters.items()
    }
    options = dict(variant.options) | weights
    return functools.partial(variant.fn, **options) if options else variant.fn


CAUSAL = [variant for variant in VARIANTS.values() if "causal" in variant.has]
FULL = [variant for variant in VARIANTS.values() if "causal" in variant.lacks]


@pytest.mark.parametrize("variant", CAUSAL, ids=lambda v: v.name)
def test_every_attention_function_fits(variant):
    fn, x = bound(variant), normal(B, N, D)
    for n_kv_heads in (2, H):
        mha = KIT.mha(attend=fn, n_kv_heads=n_kv_heads)
        q = split_heads(mha.q_proj(x), H)
        k, v = (split_heads(p(x), n_kv_heads) for p in (mha.k_proj, mha.v_proj))
        k, v = (t.repeat_interleave(H // n_kv_heads, 1) for t in (k, v))
        close(mha(x)[0], mha.out_proj(merge_heads(fn(q, k, v, causal=True))))
        close(in_pieces(mha, x, [3, 1, 1, 2])[0], mha(x)[0])
        if scores_of(fn) is not None:
            weights = mha.weights(x)
            close(weights @ v, fn(q, k, v, causal=True))
        if "exact" in variant.has:
            close(mha(x)[0], KIT.mha(n_kv_heads=n_kv_heads)(x)[0])


@pytest.mark.parametrize("variant", FULL, ids=lambda v: v.name)
def test_a_function_that_hides_nothing_fits_where_nothing_is_hidden(variant):
    fn, x = bound(variant), normal(B, N, D)
    mha = KIT.mha(attend=fn, causal=False)
    q, k, v = (split_heads(p(x), H) for p in (mha.q_proj, mha.k_proj, mha.v_proj))
    close(mha(x)[0], mha.out_proj(merge_heads(fn(q, k, v))))


def test_a_function_that_cannot_hide_the_future_says_so():
    mha = KIT.mha(attend=bound(VARIANTS["nystrom"]))
    with pytest.raises(ValueError, match="attend_nystrom .* cannot serve causal=True"):
        mha(normal(B, N, D))


def test_a_function_registered_without_weights_refuses_to_show_them(monkeypatch):
    def attend_mean(q, k, v, **_):
        return v.mean(-2, keepdim=True).expand(*v.shape[:-2], q.shape[-2], v.shape[-1])

    monkeypatch.delitem(VARIANTS, "mean", raising=False)
    x, lacks = normal(B, N, D), {"weights": "all keys count alike"}
    register("mean", attend_mean, lacks=lacks)
    try:
        mha = KIT.mha(attend=functools.partial(attend_mean))
        mha(x)
        message = r"attend 'mean' forms no weights \(all keys count alike\)"
        with pytest.raises(ValueError, match=message):
            mha.weights(x)
        for tap in ("pattern", "scores"):
            hook = getattr(mha, tap).register_forward_hook(lambda *_: None)
            with pytest.raises(ValueError, match=message if tap == "pattern" else "`scores`"):
                mha(x)
            hook.remove()
        mha = KIT.mha(attend=attend_mean, dropout=0.5).train()
        with pytest.raises(ValueError, match=message):
            mha(x)
        mha.eval()(x)
    finally:
        del VARIANTS["mean"]


FORMING = [variant for variant in CAUSAL if scores_of(variant.fn) is not None]


@pytest.mark.parametrize("variant", FORMING, ids=lambda v: v.name)
def test_every_function_shows_scores_and_pattern(variant):
    x = normal(B, N, D)
    for n_kv_heads in (2, H):
        mha = KIT.mha(attend=bound(variant), n_kv_heads=n_kv_heads)
        wanted, seen = mha(x)[0], watch(mha, "scores", "pattern")
        close(mha(x)[0], wanted)
        close(seen["pattern"], torch.softmax(seen["scores"], -1))


def test_an_attention_function_may_be_a_module_with_weights():
    class Bilinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(DK))

        def forward(self, q, k, v, **keywords):
            return VARIANTS["bilinear"].fn(q, k, v, weight=self.weight, **keywords)

    mha = MultiHeadAttention(D, H, d_head=DK, attend=Bilinear()).double()
    assert "attend.weight" in mha.state_dict()
    mha(normal(B, N, D))[0].sum().backward()
    assert mha.attend.weight.grad.abs().max() > 0
    seen = {}
    mha.pattern.register_forward_hook(lambda _, __, p: seen.update(pattern=p))
    mha(normal(B, N, D))  # it has no `scores`, but returns its weights when asked
    close(seen["pattern"], mha.weights(normal(B, N, D)))


def test_weights_of_an_exact_function_are_the_references():
    x = normal(B, N, D)
    for fn in (attend_rows, functools.partial(attend_rows, rows=2)):
        close(KIT.mha(attend=fn).weights(x), KIT.mha(attend=attend).weights(x))
    few = KIT.mha(attend=functools.partial(attend_topk, top=2)).weights(x)
    assert (few > 0).sum(-1).max() == 2


# compile, precision, devices


@pytest.fixture(scope="module")
def plain():
    """The modules as a reader has them, without the tests' check of shapes."""
    fresh.copies("plain_multihead", Kit.MODULES)
    return Kit(*(fresh.copy_of("plain_multihead", name) for name in Kit.MODULES))


@pytest.mark.slow
@pytest.mark.untyped
def test_it_compiles_without_a_graph_break(plain):
    rotary = fresh.copy_of("plain_multihead", "tfbook.positions").RotaryPositions(DK)
    mha = plain.mha(position=rotary, n_kv_heads=2)
    x, mask = normal(B, N, D), padding_mask([4, N])
    wanted = mha(x, mask=mask)[0]
    with torch_may_warn(), torch.no_grad():
        compiled = torch.compile(mha, backend="eager", fullgraph=True, dynamic=False)
        y, state = compiled(x[:, :5], mask=mask[..., :5])
        rest, _ = compiled(x[:, 5:], state, mask=mask[..., 5:])
    close(torch.cat([y, rest], 1), wanted)


@pytest.mark.slow
@pytest.mark.untyped
def test_a_compiled_module_shows_its_pattern(plain):
    mha, x, seen = plain.mha(n_kv_heads=2), normal(B, N, D), {}
    wanted, weights = mha(x)[0], mha.weights(x)
    mha.pattern.register_forward_hook(lambda _, __, p: seen.update(pattern=p))
    torch.compiler.reset()  # a compiled module knows the hooks of the time when it was compiled
    with torch_may_warn(), torch.no_grad():
        close(torch.compile(mha, backend="aot_eager")(x)[0], wanted)
    close(seen["pattern"], weights)
    torch.compiler.reset()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_pattern_of_half_precision_is_formed_in_float32(dtype):
    mha, x, seen = KIT.mha(n_kv_heads=2, position=RotaryPositions(DK)), normal(B, N, D), {}
    wanted, weights = mha(x)[0], mha.weights(x)
    mha.pattern.register_forward_hook(lambda _, __, p: seen.update(pattern=p))
    y, _ = mha.to(dtype)(x.to(dtype))
    assert y.dtype == mha.weights(x.to(dtype)).dtype == dtype
    assert seen["pattern"].dtype == torch.float32
    close(y.double(), wanted, atol=6e-2)
    close(seen["pattern"].double(), weights, atol=3e-2)
    close(seen["pattern"].sum(-1), torch.ones(B, H, N), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_the_float64_result(dtype):
    x = normal(B, N, D)
    mha = KIT.mha(n_kv_heads=2, position=RotaryPositions(DK))
    wanted = mha(x)[0]
    y, state = mha.to(dtype)(x.to(dtype))
    assert y.dtype == state.k.dtype == dtype
    close(y.double(), wanted, atol=6e-2)


@pytest.mark.untyped
def test_it_runs_under_autocast(plain):
    mha = plain.mha(position=ALiBi(H), n_kv_heads=2).float()
    x = normal(B, N, D).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = mha(x)
    assert y.dtype == torch.bfloat16
    close(y.float(), mha(x)[0], atol=6e-2)


def test_it_can_be_made_without_memory():
    with torch.device("meta"):
        mha = MultiHeadAttention(D, 2, n_kv_heads=1)
    assert all(p.is_meta for p in mha.parameters())


def test_weights_begin_as_xavier_has_them_and_biases_at_zero():
    torch.manual_seed(0)
    mha = MultiHeadAttention(64, 4, n_kv_heads=2)
    for projection in (mha.q_proj, mha.k_proj, mha.v_proj, mha.out_proj):
        bound = math.sqrt(6 / (projection.in_features + projection.out_features))
        assert 0.95 * bound < projection.weight.abs().max() <= bound
        assert (projection.bias == 0).all()


def test_biases_are_where_they_were_asked_for():
    for bias in (True, False, ("q", "k", "v"), ["out"], {"v"}):
        mha = MultiHeadAttention(D, 2, bias=bias)
        chosen = {"q", "k", "v", "out"} if bias is True else set(bias or ())
        for name in ("q", "k", "v", "out"):
            assert (getattr(mha, f"{name}_proj").bias is not None) == (name in chosen)


def test_its_sizes_are_shown():
    shown = repr(MultiHeadAttention(8, 4, n_kv_heads=2, causal=True))
    assert "d_model=8, n_heads=4, n_kv_heads=2, d_head=2, d_value=2, causal=True" in shown


def test_no_rows_and_no_sequences_work():
    mha = KIT.mha(n_kv_heads=2, position=RotaryPositions(DK))
    y, state = mha(normal(B, 0, D))
    assert y.shape == (B, 0, D)
    close(mha(normal(B, N, D), state)[0], mha(normal(B, N, D))[0])
    assert mha(normal(0, N, D))[0].shape == (0, N, D)


def test_a_group_cut_unevenly_holds_its_keys_twice():
    assert kept_groups([0, 1, 2], 6, 3) == [0, 0, 1]
    assert kept_groups([0, 1, 2, 3], 6, 3) == [0, 1]


# refusals

BUILD = {
    "heads do not divide": (
        {"n_heads": 4},
        ValueError,
        "n_heads must divide d_model, got 4 and 26",
    ),
    "no heads": ({"n_heads": 0}, ValueError, "n_heads must be at least 1"),
    "size not an integer": ({"n_heads": 2.0}, TypeError, "n_heads must be an integer"),
    "groups do not divide": ({"n_kv_heads": 4}, ValueError, "n_kv_heads must divide n_heads"),
    "empty heads": ({"d_head": 0}, ValueError, "d_head must be at least 1"),
    "empty values": ({"d_value": 0}, ValueError, "d_value must be at least 1"),
    "causal not boolean": ({"causal": 1}, TypeError, "causal must be True or False"),
    "causal cross-attention": ({"d_memory": 3, "causal": True}, ValueError, "neither causal nor"),
    "rotated cross-attention": (
        {"d_memory": 3, "position": RotaryPositions(DK)},
        ValueError,
        "neither causal nor position",
    ),
    "memory of three sizes": ({"d_memory": (1, 2, 3)}, ValueError, "pair of sizes"),
    "memory without size": ({"d_memory": 0}, ValueError, "d_memory must be at least 1"),
    "no function": ({"attend": "sdpa"}, TypeError, "attend must be callable, got str"),
    "function without its weights": (
        {"attend": "bilinear, bare"},
        ValueError,
        r"needs weights of its own: bind them with functools.partial\(attend, weight=…\)",
    ),
    "position is a name": ({"position": "rope"}, TypeError, "rotate or bias, got str"),
    "bias of an unknown name": ({"bias": ("q", "o")}, ValueError, "bias must be True, False or"),
    "bias is a string": ({"bias": "qkv"}, ValueError, "bias must be True, False or names"),
    "a norm that is none": ({"qk_norm": True}, TypeError, "qk_norm must make a norm of a size"),
    "scale is zero": ({"scale": 0.0}, ValueError, "scale must be finite and above 0"),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", BUILD)
def test_building_refuses(plain, name):
    choices, error, message = BUILD[name]
    if choices.get("attend") == "bilinear, bare":
        choices = {"attend": plain.attention.VARIANTS["bilinear"].fn}
    choices = {"n_heads": H, "d_head": None if "n_heads" in choices else DK} | choices
    with pytest.raises(error, match=message):
        plain.attention.MultiHeadAttention(D, **choices)


def hooked(module, tap):
    getattr(module, tap).register_forward_hook(lambda *_: None)
    return module


def cross(kit, **choices):
    return kit.mha(d_memory=11, **choices)


CALLS = {
    "one sequence without batch": (
        lambda kit, x: kit.mha()(x[0]),
        ValueError,
        r"x must have shape \(B, N, 26\), got \(7, 26\); for a single sequence pass x\[None\]",
    ),
    "wrong features": (
        lambda kit, x: kit.mha()(x[..., :9]),
        ValueError,
        r"x must have shape \(B, N, 26\), got \(2, 7, 9\)",
    ),
    "integers": (lambda kit, x: kit.mha()(x.long()), TypeError, "x must have a floating-point"),
    "not a tensor": (lambda kit, x: kit.mha()(x.tolist()), TypeError, "x must be a tensor"),
    "another dtype": (lambda kit, x: kit.mha()(x.float()), TypeError, "x and the weights must"),
    "a float mask": (
        lambda kit, x: kit.mha()(x, mask=torch.zeros(N, N)),
        TypeError,
        "mask must be boolean with True = allowed, got torch.float32",
    ),
    "PyTorch's key_padding_mask": (
        lambda kit, x: kit.mha()(x, mask=torch.ones(B, N, dtype=torch.bool)),
        ValueError,
        r"one row for each sequence of the batch needs mask\[:, None, None, :\]",
    ),
    "PyTorch's mask for all heads": (
        lambda kit, x: kit.mha()(x, mask=torch.ones(B * H, N, N, dtype=torch.bool)),
        ValueError,
        r"read as \(B, N, M\).*~mask.unflatten\(0, \(2, 6\)\)",
    ),
    "a mask for each head without batch": (
        lambda kit, x: kit.mha()(x, mask=torch.ones(H, N, N, dtype=torch.bool)),
        ValueError,
        r"one mask for each head is mask\[None\]",
    ),
    "a mask of five dimensions": (
        lambda kit, x: kit.mha()(x, mask=torch.ones(1, B, H, N, N, dtype=torch.bool)),
        ValueError,
        "mask must broadcast to the scores",
    ),
    "keys before queries": (
        lambda kit, x: cross(kit)(
            x, cross(kit).remember(normal(B, M, 11)), mask=torch.ones(M, N, dtype=torch.bool)
        ),
        ValueError,
        "queries come before keys, try mask.mT",
    ),
    "a mask that is too short for the state": (
        lambda kit, x: kit.mha()(x, kit.mha()(x)[1], mask=torch.ones(N, 13, dtype=torch.bool)),
        ValueError,
        r"mask must broadcast to the scores, \(..., n, m\) = \(2, 6, 7, 14\), got \(7, 13\)",
    ),
    "cross-attention without state": (
        lambda kit, x: cross(kit)(x),
        ValueError,
        r"cross-attention needs state=mha.remember\(memory\), got None",
    ),
    "the memory itself as state": (
        lambda kit, x: cross(kit)(x, normal(B, M, 11)),
        TypeError,
        r"state must be a KVState, got Tensor; .* remember\(memory\)",
    ),
    "state of another batch": (
        lambda kit, x: kit.mha()(x, kit.mha()(x[:1])[1]),
        ValueError,
        r"state.k must have shape \(B, n_kv_heads, M, d_head\) = \(2, 6, 7, 4\), got \(1, ",
    ),
    "state of a module with other heads": (
        lambda kit, x: kit.mha(n_kv_heads=2)(x, kit.mha()(x)[1]),
        ValueError,
        "state.k must have shape",
    ),
    "state of a module with other values": (
        lambda kit, x: kit.mha(d_value=5)(x, kit.mha()(x)[1]),
        ValueError,
        "state.v must have shape",
    ),
    "a state of another dtype": (
        lambda kit, x: kit.mha()(x, kit.mha().float()(x.float())[1]),
        TypeError,
        "x and state.k must have the same dtype, got torch.float64 and torch.float32",
    ),
    "values of another dtype": (
        lambda kit, x: kit.mha()(x, replace(s := kit.mha()(x)[1], v=s.v.float())),
        TypeError,
        "x and state.v must have the same dtype, got torch.float64 and torch.float32",
    ),
    "a memory of another dtype": (
        lambda kit, x: cross(kit)(x, cross(kit).float().remember(normal(B, M, 11).float())),
        TypeError,
        "x and state.k must have the same dtype",
    ),
    "a memory for self-attention": (
        lambda kit, x: kit.mha().remember(x),
        ValueError,
        "self-attention has no memory; build with d_memory=",
    ),
    "a memory of another size": (
        lambda kit, x: cross(kit).remember(x),
        ValueError,
        r"memory must have shape \(B, N, 11\), got \(2, 7, 26\)",
    ),
    "other values than keys": (
        lambda kit, x: cross(kit).remember(normal(B, M, 11), normal(B, 3, 11)),
        ValueError,
        "values must have shape",
    ),
    "a memory mask for queries": (
        lambda kit, x: cross(kit).remember(
            normal(B, M, 11), mask=torch.ones(N, M, dtype=torch.bool)
        ),
        ValueError,
        "mask must broadcast",
    ),
    "head mask of the wrong length": (
        lambda kit, x: kit.mha()(x, head_mask=torch.ones(5)),
        ValueError,
        r"head_mask must have shape \(H,\) = \(6,\), got \(5,\)",
    ),
    "head mask of integers": (
        lambda kit, x: kit.mha()(x, head_mask=torch.ones(6, dtype=torch.int64)),
        TypeError,
        "head_mask must be floating point or boolean",
    ),
    "head mask as a list": (
        lambda kit, x: kit.mha()(x, head_mask=[1] * 6),
        TypeError,
        "head_mask must be a tensor",
    ),
    "nothing left": (lambda kit, x: kit.mha().prune_heads([]), ValueError, "at least one head"),
    "a head that is not there": (
        lambda kit, x: kit.mha().prune_heads([0, 6]),
        ValueError,
        "from 0 to 5, got",
    ),
    "a head twice": (lambda kit, x: kit.mha().prune_heads([1, 1]), ValueError, "none twice"),
    "a head of negative number": (
        lambda kit, x: kit.mha().prune_heads([-1]),
        ValueError,
        "keep must be at least 0",
    ),
    "weights that nobody has": (
        lambda kit, x: kit.mha(attend=lambda q, k, v, **_: v).weights(x),
        ValueError,
        "did not return its weights",
    ),
    "scores that nobody has": (
        lambda kit, x: hooked(kit.mha(attend=lambda q, k, v, **_: v), "scores")(x),
        ValueError,
        "attend <lambda> does not say how its scores are formed, so the tap `scores` has nothing",
    ),
    "a pattern that nobody has": (
        lambda kit, x: hooked(kit.mha(attend=lambda q, k, v, **_: v), "pattern")(x),
        ValueError,
        "attend <lambda> did not return its weights, asked with return_weights=True",
    ),
    "splitting unevenly": (
        lambda kit, x: kit.attention.split_heads(x, 4),
        ValueError,
        "n_heads must divide the last dimension of x, got 4",
    ),
    "merging too few dimensions": (
        lambda kit, x: kit.attention.merge_heads(x[0]),
        ValueError,
        "x needs at least 3 dimensions",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", CALLS)
def test_calling_refuses(plain, name):
    call, error, message = CALLS[name]
    with pytest.raises(error, match=message):
        call(plain, normal(B, N, D))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
    ],
)
def test_what_has_no_place_here_is_not_taken_from_pytorch(plain, options, message):
    with pytest.raises(ValueError, match=message):
        plain.attention.MultiHeadAttention.from_torch(nn.MultiheadAttention(24, 6, **options))


def test_dropout_drops_the_same_weights_as_pytorchs():
    theirs = nn.MultiheadAttention(24, 6, dropout=0.4, batch_first=True).double()
    ours = MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch()
    x = normal(B, N, 24)
    found = []
    for module in (theirs, back):
        torch.manual_seed(5)
        found.append(module(x, x, x, need_weights=True)[0])
    torch.manual_seed(5)
    found.append(ours(x)[0])
    torch.testing.assert_close(found[2], found[0])
    torch.testing.assert_close(found[1], found[0])
    whole = ours.eval()(x)[0]
    assert not torch.allclose(whole, found[0])
    torch.testing.assert_close(whole, theirs.eval()(x, x, x)[0])


def test_dropout_leaves_the_mean_of_what_is_found():
    mha = MultiHeadAttention(6, 2, dropout=0.5).double()
    x = normal(1, 5, 6).expand(4000, -1, -1)
    torch.manual_seed(0)
    mean = mha(x)[0].mean(0)
    torch.testing.assert_close(mean, mha.eval()(x[:1])[0][0], atol=0.05, rtol=0)


@pytest.mark.parametrize("window", [1, 3, 7, 11])
def test_a_window_hides_what_is_farther_back(window):
    mha = MultiHeadAttention(D, H, d_head=DK, causal=True, window=window).double()
    weights = mha.weights(normal(B, N, D))
    seen = torch.arange(N)[:, None] - torch.arange(N)  # how far back key j is from query i
    assert ((weights > 0) == ((seen >= 0) & (seen < window))).all()


@pytest.mark.parametrize("cuts", [[1] * N, [3, 4], [6, 1], [1, 6]], ids=str)
def test_a_window_counts_back_through_the_state(cuts):
    mha = MultiHeadAttention(
        D, H, n_kv_heads=2, d_head=DK, causal=True, window=3, position=RotaryPositions(DK)
    ).double()
    x, state, pieces = normal(B, N, D), None, []
    for piece in x.split(cuts, dim=1):
        y, state = mha(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), mha(x)[0])


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"dropout": 1.0}, ValueError, "dropout must be from 0 up to below 1, got 1.0"),
        ({"dropout": "a"}, TypeError, "dropout must be a number, got str"),
        ({"window": 0, "causal": True}, ValueError, "window must be at least 1, got 0"),
        ({"window": 2.0, "causal": True}, TypeError, "window must be an integer, got float"),
        ({"window": 2}, ValueError, "needs causal=True"),
    ],
)
def test_dropout_and_window_are_checked(plain, choices, error, message):
    with pytest.raises(error, match=message):
        plain.attention.MultiHeadAttention(24, 6, **choices)


@pytest.mark.untyped
def test_only_pytorchs_module_is_taken_and_only_as_what_it_is(plain):
    take = plain.attention.MultiHeadAttention.from_torch
    with pytest.raises(TypeError, match="got Linear"):
        take(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="need cross-attention, got cross=False"):
        take(nn.MultiheadAttention(24, 6, kdim=5), cross=False)


@pytest.mark.untyped
@pytest.mark.parametrize(
    "choices",
    [
        {"d_head": 3},
        {"d_head": 4, "d_value": 3},
        {"position": ALiBi(6)},
        {"scale": 1.0},
        {"qk_norm": RMSNorm},
    ],
    ids=str,
)
def test_what_pytorch_has_no_place_for_is_not_given_to_it(plain, choices):
    mha = plain.attention.MultiHeadAttention(24, 6, **choices)
    with pytest.raises(ValueError, match="nn.MultiheadAttention has no position, scale or qk_norm"):
        mha.to_torch()


def test_a_state_can_be_made_by_hand():
    mha, x = KIT.mha(n_kv_heads=2), normal(B, N, D)
    k, v = (split_heads(p(x[:, :5]), 2) for p in (mha.k_proj, mha.v_proj))
    close(mha(x[:, 5:], KVState(k, v, None, 5))[0], mha(x)[0][:, 5:])


def test_one_norm_over_all_heads_sees_the_row_before_it_is_split():
    torch.manual_seed(4)
    mha = MultiHeadAttention(12, 3, n_kv_heads=1, qk_norm=RMSNorm, qk_norm_whole=True)
    assert mha.q_norm.norm.weight.shape == (12,) and mha.k_norm.norm.weight.shape == (4,)
    seen, x = {}, torch.randn(2, 5, 12)
    mha.q.register_forward_hook(lambda module, args, out: seen.update(q=out))
    nn.init.normal_(mha.q_norm.norm.weight)
    mha(x)
    wanted = mha.q_norm.norm(mha.q_proj(x)).unflatten(-1, (3, 4)).transpose(1, 2)
    torch.testing.assert_close(seen["q"], wanted)
    each = MultiHeadAttention(12, 3, n_kv_heads=1, qk_norm=RMSNorm)
    assert each.q_norm.weight.shape == (4,)
