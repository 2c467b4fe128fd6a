"""Blocks and stacks: parity with PyTorch's layers, any mixer, states, and what is refused."""

import copy

import fresh
import pytest
import torch
from model_properties import DK, B, D, F, H, M, N, normal, randomised
from torch import nn

from tfbook.attention import (
    KVState,
    LatentAttention,
    LatentState,
    MultiHeadAttention,
    SlidingCache,
    StaticCache,
    causal_mask,
    padding_mask,
)
from tfbook.blocks import (
    Block,
    BlockState,
    FeedForward,
    LayerNorm,
    ModelState,
    RMSNorm,
    SharedBias,
    Stack,
)
from tfbook.positions import ALiBi, RotaryPositions, T5Bias
from tfbook.recurrent import LSTMCell, Recurrent

E = 24  # d_model here: PyTorch's heads have to divide it


def copied(target, source):
    """Copy weight and bias."""
    target.load_state_dict(source.state_dict())


def block_of(layer):
    """Make a block of ours with the weights of a layer of PyTorch's."""
    cross = getattr(layer, "multihead_attn", None)
    kind = "relu" if layer.activation is torch.nn.functional.relu else "gelu"
    block = Block(
        MultiHeadAttention.from_torch(layer.self_attn),
        FeedForward(E, F, kind=kind),
        cross=None if cross is None else MultiHeadAttention.from_torch(cross, cross=True),
        place="pre" if layer.norm_first else "post",
    ).double()
    copied(block.ffn.up_proj, layer.linear1)
    copied(block.ffn.down_proj, layer.linear2)
    norms = [layer.norm1, layer.norm2] + ([layer.norm3] if cross is not None else [])
    residuals = [block.mixer_residual, block.cross_residual, block.ffn_residual]
    residuals = [each for each in residuals if each is not None]
    for residual, norm in zip(residuals, norms, strict=True):
        copied(residual.norm, norm)
    return block.train(layer.training)


def same_gradients(ours, theirs, inputs):
    """Assert that two scalars have the same gradients."""
    for a, b in zip(
        torch.autograd.grad(ours.sin().sum(), inputs),
        torch.autograd.grad(theirs.sin().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("masked", ["none", "causal", "padding", "both"])
def test_a_block_is_pytorchs_encoder_layer(activation, norm_first, masked):
    layer = randomised(
        nn.TransformerEncoderLayer(
            E, H, F, 0.0, activation, norm_first=norm_first, batch_first=True
        )
    )
    block, x = block_of(layer), normal(B, N, E).requires_grad_()
    causal = causal_mask(N) if masked in ("causal", "both") else None
    padding = padding_mask([N, 4]) if masked in ("padding", "both") else None
    mask = {"none": None, "causal": causal, "padding": padding}.get(masked)
    mask = causal & padding if masked == "both" else mask
    theirs = layer(
        x,
        src_mask=None if causal is None else ~causal,
        src_key_padding_mask=None if padding is None else ~padding[:, 0],
    )
    ours, _ = block(x, mask=mask)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    same_gradients(ours, theirs, [x])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_a_block_with_a_memory_is_pytorchs_decoder_layer(activation, norm_first):
    layer = randomised(
        nn.TransformerDecoderLayer(
            E, H, F, 0.0, activation, norm_first=norm_first, batch_first=True
        )
    )
    block = block_of(layer)
    x, memory = normal(B, N, E).requires_grad_(), normal(B, M, E, seed=2).requires_grad_()
    seen, own = padding_mask([M, 3]), causal_mask(N) & padding_mask([N, 6])
    theirs = layer(
        x,
        memory,
        tgt_mask=~causal_mask(N),
        tgt_key_padding_mask=~padding_mask([N, 6])[:, 0],
        memory_key_padding_mask=~seen[:, 0],
    )
    ours, _ = block(x, block.remember(memory, seen), mask=own)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    same_gradients(ours, theirs, [x, memory])


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_stacks_are_pytorchs_encoder_and_decoder(norm_first):
    options = {"norm_first": norm_first, "batch_first": True}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(E, H, F, 0.0, **options),
        3,
        nn.LayerNorm(E),
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(E, H, F, 0.0, **options), 2, nn.LayerNorm(E)
    )
    encoder, decoder = randomised(encoder), randomised(decoder, seed=3)
    ours = []
    for theirs in (encoder, decoder):
        stack = Stack([block_of(layer) for layer in theirs.layers], LayerNorm(E).double())
        copied(stack.final_norm, theirs.norm)
        ours.append(stack)
    x, source = normal(B, N, E).requires_grad_(), normal(B, M, E, seed=2).requires_grad_()
    seen = padding_mask([M, 3])
    memory = encoder(source, src_key_padding_mask=~seen[:, 0])
    torch.testing.assert_close(ours[0].encode(source, mask=seen), memory)
    theirs = decoder(x, memory, tgt_mask=~causal_mask(N), memory_key_padding_mask=~seen[:, 0])
    state = ours[1].remember(ours[0].encode(source, mask=seen), seen)
    found, _ = ours[1](x, state, mask=causal_mask(N))
    torch.testing.assert_close(found, theirs, atol=1e-9, rtol=1e-9)
    same_gradients(found, theirs, [x, source])


MIXERS = {
    "attention": lambda: MultiHeadAttention(D, H, d_head=DK, causal=True),
    "latent": lambda: LatentAttention(
        D, H, d_latent=11, d_rope=4, d_head=5, causal=True, position=RotaryPositions(4)
    ),
    "recurrent": lambda: Recurrent(LSTMCell(D, D)),
}


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("place", ["pre", "post"])
def test_any_mixer_fits_and_goes_on_from_its_state(name, place):
    stack = Stack(
        [
            randomised(Block(MIXERS[name](), FeedForward(D, F), norm=RMSNorm, place=place), seed)
            for seed in range(2)
        ]
    )
    x = normal(3, N, D)
    whole, end = stack(x)
    state, pieces = None, []
    for piece in x.split([2, 1, 4], dim=1):
        y, state = stack(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    assert sum(each.nbytes for each in state) == sum(each.nbytes for each in end) > 0
    rows = torch.tensor([2, 0])
    chosen = tuple(each.select(rows) for each in state)
    new = normal(3, 1, D, seed=9)
    torch.testing.assert_close(stack(new[rows], chosen)[0], stack(new, state)[0][rows])


def test_a_hybrid_is_a_list_of_blocks():
    stack = Stack(
        [randomised(Block(make(), FeedForward(D, F), place="pre")) for make in MIXERS.values()],
        LayerNorm(D).double(),
    )
    x = normal(B, N, D)
    whole, state = stack(x)
    kinds = (KVState, LatentState, tuple)
    assert all(isinstance(a.mixer, kind) for a, kind in zip(state, kinds, strict=True))
    start, state = stack(x[:, :4])
    torch.testing.assert_close(torch.cat([start, stack(x[:, 4:], state)[0]], 1), whole)
    with pytest.raises(TypeError, match="of type Recurrent has no weights to show"):
        stack.trace(x, weights=True)


@pytest.mark.parametrize("cache", [None, StaticCache(N), SlidingCache(N)], ids=str)
def test_an_empty_state_is_a_start(cache):
    stack = Stack([randomised(Block(MIXERS["attention"](), FeedForward(D, F)))])
    x = normal(B, N, D)
    with torch.no_grad():
        found, _ = stack(x, stack.empty_state(B, cache=cache))
        torch.testing.assert_close(found, stack(x)[0])
    assert Block(MIXERS["recurrent"](), FeedForward(D, F)).empty_state(B) == BlockState()


def test_a_hook_on_a_tap_replaces_the_stream():
    block = randomised(Block(MIXERS["attention"](), FeedForward(D, F), place="none"))
    x = normal(B, N, D)
    hook = block.resid_mid.register_forward_hook(lambda module, args, out: torch.zeros_like(out))
    torch.testing.assert_close(block(x)[0], block.ffn(torch.zeros_like(x)))
    hook.remove()
    assert (block(x)[0] - block.ffn(torch.zeros_like(x))).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["alibi", "t5"])
def test_a_handle_is_the_part_and_owns_nothing(kind):
    part = ALiBi(H) if kind == "alibi" else T5Bias(H, bidirectional=False)
    handle = SharedBias(part)
    mha = MultiHeadAttention(D, H, d_head=DK, causal=True, position=handle).double()
    assert not [name for name in mha.state_dict() if "position" in name]
    alone = MultiHeadAttention(D, H, d_head=DK, causal=True, position=part).double()
    alone.load_state_dict(mha.state_dict(), strict=False)
    x = normal(B, N, D)
    handle.begin()
    first = mha(x)[0]
    torch.testing.assert_close(mha(x)[0], first)
    handle.end()
    torch.testing.assert_close(first, alone(x)[0])
    torch.testing.assert_close(mha(x)[0], first)  # outside of a pass
    torch.testing.assert_close(copy.deepcopy(mha)(x)[0], first)
    handle.begin()  # another length, other places and another dtype in the same pass
    torch.testing.assert_close(mha(x[:, :3])[0], alone(x[:, :3])[0])
    torch.testing.assert_close(mha(x)[0], first)
    q, places = normal(1, H, 3, DK), torch.arange(3)
    for keys in (places, 2 * places):
        for dtype in (torch.float64, torch.float32):
            found = handle.bias(q.to(dtype), places, keys)
            torch.testing.assert_close(found, part.bias(q.to(dtype), places, keys))
            assert found.dtype == dtype


def test_a_stack_forgets_the_bias_when_a_pass_fails():
    handle = SharedBias(T5Bias(H, bidirectional=False))
    mha = MultiHeadAttention(D, H, d_head=DK, causal=True, position=handle)
    stack = Stack([Block(mha, FeedForward(D, F))] * 2, shared=[handle])

    def fail(*_):
        assert handle._running and handle._bias is not None
        raise RuntimeError("on the way")

    stack.blocks[1].resid_mid.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="on the way"):
        stack(normal(B, N, D).float())
    assert not handle._running and handle._bias is None


def test_a_state_of_a_model_counts_bytes_and_goes_back():
    block = randomised(Block(MIXERS["attention"](), FeedForward(D, F)))
    x = normal(B, N, D)
    _, after = block(x)
    state = ModelState((after,), N)
    assert state.length == N and state.nbytes == 2 * B * H * N * DK * 8
    back = state.truncate(4)
    torch.testing.assert_close(block(x[:, 4:], back.layers[0])[0], block(x)[0][:, 4:])
    with pytest.raises(ValueError, match="padded batch cannot go back"):
        ModelState((after,), N, torch.tensor([N, 3])).truncate(4)


@pytest.fixture(scope="module")
def plain():
    names = ["tfbook.attention", "tfbook.blocks"]
    return fresh.copies("plain_blocks", names)


def make(module, **choices):
    """Make a block of the copied modules."""
    package = module.__name__.split(".")[0]
    attention = fresh.copy_of(package, "tfbook.attention").MultiHeadAttention(6, 2)
    return module.Block(attention, module.FeedForward(6, 5), **choices)


X = torch.ones(1, 3, 6)
MISTAKES = {
    "mixer": (lambda m: m.Block("mha", make(m).ffn), TypeError, "mixer must be a module, got str"),
    "place": (lambda m: make(m, place="mid"), ValueError, "place must be one of pre, post, inside"),
    "rate": (lambda m: make(m, dropout=1.5), ValueError, "dropout must be from 0 up to below 1"),
    "state": (lambda m: make(m)(X, (None, None)), TypeError, "must be a BlockState, got tuple"),
    "remember": (lambda m: make(m).remember(X), ValueError, "no cross-attention"),
    "memory": (
        lambda m: make(m, cross=make(m).mixer)(X),
        ValueError,
        r"starts from state=remember\(memory\)",
    ),
    "no blocks": (lambda m: m.Stack([]), ValueError, "at least one block"),
    "states": (
        lambda m: m.Stack([make(m)])(X, ()),
        ValueError,
        "one part for each of the 1 blocks, got 0",
    ),
    "one state": (
        lambda m: m.Stack([make(m), make(m)])(X, m.BlockState()),
        TypeError,
        "sequence of BlockStates, got BlockState",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(plain, name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call(plain)
