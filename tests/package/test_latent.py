"""Latent attention: its properties, its agreement with transformers, its refusals.

The properties stand in multihead_properties.py.
"""

import functools

import fresh
import pytest
import torch
from multihead_properties import LATENT, B, D, Kit, N, close, normal, randomised
from torch import nn

import tfbook.attention.latent
import tfbook.attention.multihead
from tfbook.attention import VARIANTS, LatentAttention, attend, attend_topk, causal_mask
from tfbook.positions import ALiBi, RotaryPositions

KIT = Kit(tfbook.attention.multihead, tfbook.attention.latent)


@pytest.mark.parametrize("name", LATENT)
def test_property(name):
    LATENT[name](KIT)


@pytest.mark.parametrize("q_rank", [13, None])
def test_it_equals_a_deepseek_attention(q_rank):
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    config = DeepseekV3Config(
        hidden_size=D, num_attention_heads=6, num_key_value_heads=6, q_lora_rank=q_rank,
        kv_lora_rank=11, qk_nope_head_dim=5, qk_rope_head_dim=4, v_head_dim=3,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = randomised(deepseek.DeepseekV3Attention(config, 0), 1)
    ours = LatentAttention(
        D, 6, d_latent=11, d_rope=4, d_head=5, d_value=3, d_query_latent=q_rank, causal=True,
        norm=functools.partial(nn.RMSNorm, eps=1e-6), position=RotaryPositions(4),
    ).double()  # fmt: skip
    weights = theirs.state_dict()
    down, rope = weights["kv_a_proj_with_mqa.weight"].split([11, 4])
    k_up, v_up = weights["kv_b_proj.weight"].unflatten(0, (6, 8)).split([5, 3], dim=1)
    copied = {
        "kv_down.weight": down,
        "k_rope_proj.weight": rope,
        "kv_norm.weight": weights["kv_a_layernorm.weight"],
        "k_up.weight": k_up.flatten(0, 1),
        "v_up.weight": v_up.flatten(0, 1),
        "out_proj.weight": weights["o_proj.weight"],
        "q_proj.weight": weights["q_b_proj.weight" if q_rank else "q_proj.weight"],
    }
    if q_rank:
        copied["q_down.0.weight"] = weights["q_a_proj.weight"]
        copied["q_down.1.weight"] = weights["q_a_layernorm.weight"]
    ours.load_state_dict(copied)
    x = normal(B, N, D)
    cos_sin = deepseek.DeepseekV3RotaryEmbedding(config)(x, torch.arange(N)[None])
    blocked = (~causal_mask(N)).double().mul(-1e300)[None, None]
    wanted, wanted_weights = theirs(x, position_embeddings=cos_sin, attention_mask=blocked)
    for absorbed in (True, False):
        ours.absorbed = absorbed
        close(ours(x)[0], wanted, atol=1e-6)  # their norm and cosines are made in float32
        close(ours.weights(x), wanted_weights, atol=1e-6)


@pytest.mark.parametrize("name", ["reference", "sdpa", "rows", "online"])
def test_exact_attention_functions_fit(name):
    variant, x = VARIANTS[name], normal(B, N, D)
    fn = functools.partial(variant.fn, **variant.options)
    for absorbed in (True, False):
        close(KIT.mla(attend=fn, absorbed=absorbed)(x)[0], KIT.mla(attend=attend)(x)[0])


def test_weights_are_shares_and_mix_the_values():
    x = normal(B, N, D)
    mla = KIT.mla()
    seen = {}
    mla.z.register_forward_hook(lambda _, __, z: seen.update(z=z))
    _, state = mla(x)
    weights = mla.weights(x)
    close(weights.sum(-1), torch.ones(B, 6, N, dtype=torch.float64))
    values = mla.v_up(state.latent).unflatten(-1, (6, 3)).transpose(1, 2)
    close(weights @ values, seen["z"])
    few = KIT.mla(attend=functools.partial(attend_topk, top=2)).weights(x)
    assert (few > 0).sum(-1).max() == 2


def test_the_latent_is_kept_normalised():
    mla, x = KIT.mla(norm=nn.RMSNorm), normal(B, N, D)
    _, state = mla(x)
    close(state.latent, mla.kv_norm(mla.kv_down(x)))


def test_its_sizes_are_shown():
    shown = repr(LatentAttention(8, 2, d_latent=3))
    assert "d_model=8, n_heads=2, d_latent=3, d_rope=0, d_head=4, d_value=4" in shown


@pytest.fixture(scope="module")
def plain():
    """The modules as a reader has them, without the tests' check of shapes."""
    fresh.copies("plain_latent", Kit.MODULES)
    return Kit(*(fresh.copy_of("plain_latent", name) for name in Kit.MODULES))


REFUSED = {
    "no latent": (lambda kit, x: kit.mla(d_latent=0), ValueError, "d_latent must be at least 1"),
    "rotation without a position": (
        lambda kit, x: kit.mla(position=None),
        ValueError,
        "d_rope and a position with rotate go together, got d_rope = 4 and position None",
    ),
    "a position without rotation": (
        lambda kit, x: kit.mla(position=ALiBi(6)),
        ValueError,
        "d_rope and a position with rotate go together",
    ),
    "a position without a part for it": (
        lambda kit, x: kit.mla(d_rope=0),
        ValueError,
        "d_rope and a position with rotate go together, got d_rope = 0",
    ),
    "a form that is no choice": (
        lambda kit, x: kit.mla(absorbed="yes"),
        TypeError,
        "absorbed must be True or False",
    ),
    "no function": (lambda kit, x: kit.mla(attend=3), TypeError, "attend must be callable"),
    "one sequence without batch": (
        lambda kit, x: kit.mla()(x[0]),
        ValueError,
        r"x must have shape \(B, N, 26\), got \(7, 26\); for a single sequence pass x\[None\]",
    ),
    "a float mask": (
        lambda kit, x: kit.mla()(x, mask=torch.zeros(N, N)),
        TypeError,
        "mask must be boolean",
    ),
    "a state of keys and values": (
        lambda kit, x: kit.mla()(x, kit.mha()(x)[1]),
        TypeError,
        "state must be a LatentState, got KVState",
    ),
    "state of another batch": (
        lambda kit, x: kit.mla()(x, kit.mla()(x[:1])[1]),
        ValueError,
        "state.latent must have shape",
    ),
    "state of a module with another rotated part": (
        lambda kit, x: kit.mla()(x, kit.mla(d_rope=0, position=None)(x)[1]),
        ValueError,
        "state.k_rope must have shape",
    ),
    "weights that nobody has": (
        lambda kit, x: kit.mla(absorbed=False, attend=lambda q, k, v, **_: v).weights(x),
        ValueError,
        "did not return its weights",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(plain, name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(plain, normal(B, N, D))
