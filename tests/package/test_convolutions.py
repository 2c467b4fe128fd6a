"""Convolutions beside attention: the causal one with a state, the Conformer's layer, CvT's q, k, v.

A check is `check(kit)`, with `kit` the modules, or copies of them with a planted bug.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import tfbook.attention
import tfbook.models
import tfbook.models.conv_attention
import tfbook.models.convolutions
import tfbook.recurrent.convolution

DOUBLE = torch.float64
CHECKS, PARITY = {}, {}


def kit_of(*modules):
    """Put what the modules name side by side."""
    named = {name: getattr(module, name) for module in modules for name in module.__all__}
    return SimpleNamespace(**named)


@pytest.fixture
def kit():
    models = tfbook.models.convolutions, tfbook.models.conv_attention
    return kit_of(tfbook.recurrent.convolution, *models)


def check(run):
    CHECKS[run.__name__] = run
    return run


def normal(*shape, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=DOUBLE).to(dtype)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0.0)


def filled(module, seed=0):
    """Return a module with every weight and running mean random, in float64, for evaluation."""
    for number, (name, value) in enumerate(module.double().state_dict().items()):
        if value.is_floating_point():
            drawn = normal(*value.shape, seed=seed + number) / 2
            value.copy_(drawn.abs() + 0.5 if "running_var" in name else drawn)
    return module.eval()


def attention(d_model=8, n_heads=2, **choices):
    return tfbook.attention.MultiHeadAttention(d_model, n_heads, **choices)


def ffn(d_model=8, d_ff=12):
    return tfbook.blocks.FeedForward(d_model, d_ff, kind="silu")


# The causal convolution --------------------------------------------------------------------------


@check
def test_a_causal_convolution_is_its_sum(kit):
    for width, n in ((1, 4), (4, 7), (5, 2)):
        conv, x = filled(kit.CausalConv(3, width)), normal(2, n, 3, seed=9)
        y, state = conv(x)
        for t in range(n):
            wanted = conv.bias.expand(2, 3)
            for back in range(min(t + 1, width)):
                wanted = wanted + conv.weight[:, width - 1 - back] * x[:, t - back]
            close(y[:, t], wanted)
        assert state.length == n and state.rows.shape == (2, width - 1, 3)


def test_a_causal_convolution_is_that_of_torch(kit):
    conv = filled(kit.CausalConv(5, 4))
    twin = nn.Conv1d(5, 5, 4, groups=5, padding=3).double()
    twin.weight.data, twin.bias.data = conv.weight.data[:, None], conv.bias.data
    x = normal(2, 9, 5)
    close(conv(x)[0], twin(x.mT).mT[:, :9])


@check
def test_pieces_of_a_convolution_give_the_whole(kit):
    conv = filled(kit.CausalConv(3, 4))
    x = normal(2, 11, 3).requires_grad_()
    for sizes in ([4, 1, 6], [1] * 11, [11], [2, 9]):
        state, found = None, []
        for piece in x.split(sizes, 1):
            y, state = conv(piece, state)
            found.append(y)
        whole, last = conv(x)
        close(torch.cat(found, 1), whole)
        close(state.rows, last.rows)
        assert state.length == 11
        wanted = torch.autograd.grad((whole * normal(2, 11, 3, seed=1)).sum(), x)
        pieces = (torch.cat(found, 1) * normal(2, 11, 3, seed=1)).sum()
        close(torch.autograd.grad(pieces, x)[0], wanted[0])


@check
def test_rows_that_are_no_tokens_are_as_if_not_there(kit):
    conv, x = filled(kit.CausalConv(3, 4)), normal(2, 7, 3)
    before = conv(normal(2, 5, 3, seed=3))[1]
    mask = torch.tensor([[1, 1, 0, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0]]).bool()
    for state in (None, before):
        y, after = conv(x, state, mask=mask[:, None])
        for b in range(2):
            own = None if state is None else state.select(torch.tensor([b]))
            wanted, held = conv(x[b : b + 1, mask[b]], own)
            close(y[b, mask[b]], wanted[0])
            close(after.rows[b], held.rows[0])
            assert not y[b, ~mask[b]].any()
    none = conv(x, before, mask=torch.zeros(2, 1, 7).bool())[1]
    close(none.rows, before.rows)


@check
def test_the_state_is_small_and_stays(kit):
    conv = kit.CausalConv(6, 4)
    _, state = conv(torch.randn(3, 50, 6))
    assert state.nbytes == 4 * 3 * 3 * 6 == state.rows.untyped_storage().nbytes()
    kept = state.rows.clone()
    conv(torch.randn(3, 2, 6), state)
    close(state.rows, kept, 0.0)
    close(state.select(torch.tensor([2, 0])).rows, kept[[2, 0]], 0.0)


def test_half_precision_is_computed_in_float32(kit):
    conv, x = kit.CausalConv(4, 31), torch.randn(2, 40, 4)
    for dtype in (torch.float16, torch.bfloat16):
        narrow = kit.CausalConv(4, 31).to(dtype)
        narrow.load_state_dict(conv.state_dict())
        conv.load_state_dict(narrow.state_dict())
        found, _ = narrow(x.to(dtype))
        assert found.dtype == dtype
        close(found, conv(x.to(dtype).float())[0].to(dtype), 0.0)


# The Conformer -----------------------------------------------------------------------------------


@check
def test_the_module_is_its_formula(kit):
    for causal in (False, True):
        part, x = filled(kit.ConvolutionModule(4, 3, causal=causal)), normal(2, 6, 4)
        up = x @ part.up_proj.weight.T + part.up_proj.bias
        gated = up[..., :4] * torch.sigmoid(up[..., 4:])
        ahead = 0 if causal else 1
        rows = functional.pad(gated, (0, 0, 2 - ahead, ahead))
        mixed = sum(rows[:, j : j + 6] * part.conv.weight[:, j] for j in range(3))
        norm = part.norm
        scaled = (mixed - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        scaled = scaled * norm.weight + norm.bias
        wanted = (scaled * torch.sigmoid(scaled)) @ part.down_proj.weight.T + part.down_proj.bias
        close(part(x)[0], wanted)


@check
def test_padding_changes_nothing_and_is_left_out_of_the_mean(kit):
    x, lengths = normal(3, 7, 4), [7, 3, 5]
    mask = tfbook.attention.padding_mask(lengths)
    for norm in ("batch", "layer"):
        part = filled(kit.ConvolutionModule(4, 5, norm=norm))
        y, _ = part(x, mask=mask)
        for row, n in enumerate(lengths):
            close(y[row, :n], part(x[row : row + 1, :n])[0][0])
    part = filled(kit.ConvolutionModule(4, 1)).train()  # a width of 1: rows do not mix
    y, _ = part(x, mask=mask)
    tokens = torch.cat([x[row, :n] for row, n in enumerate(lengths)])
    close(torch.cat([y[row, :n] for row, n in enumerate(lengths)]), part(tokens[None])[0][0])


@check
def test_a_conformer_layer_is_its_four_steps(kit):
    block = kit.ConformerBlock(attention(), ffn(), ffn(), kit.ConvolutionModule(8, 3))
    block, x = filled(block), normal(2, 6, 8)
    norms = (
        block.first_ffn_residual.norm,
        block.mixer_residual.norm,
        block.convolution_residual.norm,
        block.ffn_residual.norm,
    )
    steps = (
        lambda x: block.first_ffn(x) / 2,
        lambda x: block.mixer(x)[0],
        lambda x: block.convolution(x)[0],
        lambda x: block.ffn(x) / 2,
    )
    wanted = x
    for norm, step in zip(norms, steps, strict=True):
        wanted = wanted + step(norm(wanted))
    y, _ = block(x)
    close(y, block.final_norm(wanted))
    first = x + steps[0](norms[0](x))
    close(block.weights(x)[0], block.mixer.weights(norms[1](first)))


@check
def test_a_conformer_that_hides_the_future_goes_on_from_its_state(kit):
    convolution = kit.ConvolutionModule(8, 4, causal=True)
    block = filled(kit.ConformerBlock(attention(causal=True), ffn(), ffn(), convolution))
    x = normal(2, 9, 8)
    whole, _ = block(x)
    state, found = None, []
    for piece in x.split([4, 1, 4], 1):
        y, state = block(piece, state)
        found.append(y)
    close(torch.cat(found, 1), whole)
    swapped = state.select(torch.tensor([1, 0]))
    close(block(x[[1, 0], :1], swapped)[0], block(x[:, :1], state)[0][[1, 0]])
    assert state.mixer.nbytes == 8 * 2 * (2 * 9 * 8 + 3 * 8)
    reached = torch.autograd.functional.jacobian(lambda x: block(x)[0].sum((0, 2)), x)
    assert not reached.abs().sum((1, 3)).triu(1).any()


def test_a_conformer_layer_is_that_of_transformers(kit):
    from transformers import Wav2Vec2ConformerConfig
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as theirs

    config = Wav2Vec2ConformerConfig(
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=12,
        hidden_act="silu",
        conv_depthwise_kernel_size=5,
        position_embeddings_type=None,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
    )
    twin = filled(theirs.Wav2Vec2ConformerEncoderLayer(config), 30)
    convolution = kit.ConvolutionModule(8, 5, bias=False)
    block = filled(kit.ConformerBlock(attention(), ffn(), ffn(), convolution))
    their = twin.conv_module
    convolution.up_proj.weight.data = their.pointwise_conv1.weight.data[..., 0]
    convolution.conv.weight.data = their.depthwise_conv.weight.data[:, 0]
    convolution.down_proj.weight.data = their.pointwise_conv2.weight.data[..., 0]
    convolution.norm.load_state_dict(their.batch_norm.state_dict())
    pairs = [(block.final_norm, twin.final_layer_norm)]
    pairs += [(block.convolution_residual.norm, their.layer_norm)]
    pairs += [(block.mixer_residual.norm, twin.self_attn_layer_norm)]
    names = {"q_proj": "linear_q", "k_proj": "linear_k", "v_proj": "linear_v"}
    for own, other in (names | {"out_proj": "linear_out"}).items():
        pairs.append((getattr(block.mixer, own), getattr(twin.self_attn, other)))
    for own, norm, other in (
        (block.first_ffn, block.first_ffn_residual.norm, "ffn1"),
        (block.ffn, block.ffn_residual.norm, "ffn2"),
    ):
        part = getattr(twin, other)
        pairs.append((norm, getattr(twin, f"{other}_layer_norm")))
        pairs.append((own.up_proj, part.intermediate_dense))
        pairs.append((own.down_proj, part.output_dense))
    for own, other in pairs:
        own.load_state_dict(other.state_dict())
    x = normal(2, 9, 8)
    close(block(x)[0], twin(x))


# CvT ---------------------------------------------------------------------------------------------


@check
def test_strides_leave_fewer_keys_in_their_places(kit):
    mixer = filled(kit.ConvAttention(attention(d_memory=8), (5, 7), stride=2, first=1))
    for conv in (mixer.q_conv, mixer.k_conv, mixer.v_conv):  # filters that see the middle alone
        conv[0].weight.data = functional.pad(torch.ones(8, 1, 1, 1, dtype=DOUBLE), (1, 1, 1, 1))
        conv[1].reset_running_stats()
        conv[1].eps = 0.0
        conv[1].weight.data.fill_(1.0)
        conv[1].bias.data.fill_(0.0)
    x = normal(2, 36, 8)
    cells = x[:, 1:].view(2, 5, 7, 8)[:, ::2, ::2].reshape(2, 12, 8)
    keys = torch.cat([x[:, :1], cells], 1)
    inner = mixer.attention
    close(mixer(x)[0], inner(x, inner.remember(keys))[0])
    assert mixer.weights(x).shape == (2, 2, 36, 13)


@check
def test_a_projection_by_convolution_moves_with_the_picture(kit):
    mixer = filled(kit.ConvAttention(attention(d_memory=8), (6, 6), stride=1, width=3))
    x = torch.zeros(1, 6, 6, 8, dtype=DOUBLE)
    x[:, 1:3, 1:4] = normal(1, 2, 3, 8)
    y = mixer(x.flatten(1, 2))[0].view(1, 6, 6, 8)
    moved = mixer(x.roll((2, 1), (1, 2)).flatten(1, 2))[0].view(1, 6, 6, 8)
    close(moved[:, 2:5, 1:6], y[:, :3, :5])


def test_cvt_attention_is_that_of_transformers(kit):
    from transformers.models.cvt.modeling_cvt import CvtSelfAttention

    for grid, stride in (((5, 7), 2), ((4, 4), 1), ((7, 6), 3)):
        twin = filled(CvtSelfAttention(2, 8, 3, 1, 1, 1, stride, "dw_bn", True, 0.0), 30)
        inner = attention(d_memory=8, scale=8**-0.5)  # theirs divides by the root of d_model
        mixer = filled(kit.ConvAttention(inner, grid, stride=stride, first=1))
        for own, other in (("q", "query"), ("k", "key"), ("v", "value")):
            their = getattr(twin, f"convolution_projection_{other}").convolution_projection
            conv = getattr(mixer, f"{own}_conv")
            conv[0].weight.data = their.convolution.weight.data
            conv[1].load_state_dict(their.normalization.state_dict())
            linear = getattr(inner, f"{own}_proj")
            linear.load_state_dict(getattr(twin, f"projection_{other}").state_dict())
        inner.out_proj.weight.data = torch.eye(8, dtype=DOUBLE)
        inner.out_proj.bias.data.zero_()
        x = normal(2, 1 + grid[0] * grid[1], 8)
        close(mixer(x)[0], twin(x, *grid))


# As parts of a model -----------------------------------------------------------------------------


def encoder_of(kit):
    """Return a config with all three descriptions, of an encoder."""
    Attention, FFN, Layer = tfbook.models.Attention, tfbook.models.FFN, tfbook.models.Layer
    own = Attention(2, attend="reference")
    conformer = kit.ConformerLayer(own, FFN(12, "silu"), convolution=kit.Convolution(5))
    cvt = Layer(kit.ConvProjection(own, (3, 4), first=1), FFN(12))
    beside = Layer(kit.Convolution(3, norm="layer", bias=False), FFN(9))
    return tfbook.models.TransformerConfig(23, 8, encoder=[conformer, cvt, beside], head=None)


def test_descriptions_are_counted_like_what_they_build(kit):
    config = encoder_of(kit)
    model = tfbook.models.build(config).eval()
    assert config.count_parameters() == model.count_parameters()
    ids = torch.randint(23, (2, 13))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    assert config.flops(13, 2) == counter.get_total_flops()
    names = {name for name, _ in model.named_modules()}
    for layer, stack in enumerate(config.encoder):
        run = tfbook.models.Run(8, 2, 13)
        block = {each for each in names if f"blocks.{layer}" in each}
        for part in stack.price("x", run):
            taps = part.name.split(".")[-1] in ("scores", "z")
            assert taps or any(each.endswith(part.name[2:]) for each in block), part.name


def test_a_decoder_of_conformers_is_counted_and_generates(kit):
    Attention, FFN = tfbook.models.Attention, tfbook.models.FFN
    own = Attention(2, position=tfbook.models.Rotary(), attend="reference")
    layer = kit.ConformerLayer(own, FFN(12, "silu"), convolution=kit.Convolution(4, norm="layer"))
    config = tfbook.models.TransformerConfig(23, 8, decoder=[layer] * 2)
    assert tfbook.models.TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == (
        config
    )
    torch.manual_seed(0)
    model, ids = tfbook.models.build(config).eval(), torch.randint(23, (2, 9))
    assert config.count_parameters() == model.count_parameters()
    whole, state = model(ids)
    first, state = model(ids[:, :4])
    rest, state = model(ids[:, 4:], state)
    close(torch.cat([first, rest], 1), whole, 1e-4)


def test_bytes_of_a_convolution_state_are_counted(kit):
    spec = kit.Convolution(4)
    site = tfbook.models.Site(8, causal=True)
    for n in (1, 9):
        _, state = spec.build(site).eval()(torch.randn(3, n, 8))
        assert state.nbytes == 3 * 4 * spec.held(8, n)


@pytest.mark.untyped
def test_bad_input_is_refused_in_a_sentence(kit):
    x, mask = torch.randn(2, 6, 8), torch.ones(6, 6).bool()
    conv, part = kit.CausalConv(8, 3), kit.ConvolutionModule(8, 3)
    cvt = kit.ConvAttention(attention(d_memory=8), (2, 3))
    block = kit.ConformerBlock(attention(), ffn(), ffn(), part)
    Attention, FFN, Site = tfbook.models.Attention, tfbook.models.FFN, tfbook.models.Site
    for wrong, error in (
        (lambda: kit.CausalConv(8, 0), "width must be at least 1"),
        (lambda: kit.CausalConv(True, 2), "d must be an integer"),
        (lambda: conv(x[..., :5]), r"x must have shape \(B, N, 8\)"),
        (lambda: conv(x[0]), r"pass x\[None\]"),
        (lambda: conv(x, x), "state must be a ConvState"),
        (lambda: conv(x, conv(x[:1])[1]), "state.rows must have shape"),
        (lambda: conv(x, mask=mask), "mask must say which rows are tokens"),
        (lambda: conv(x, mask=mask[None, :1].float()), "mask must be boolean"),
        (lambda: kit.ConvolutionModule(8, 4), "width must be odd"),
        (lambda: kit.ConvolutionModule(8, 3, norm="group"), "norm must be one of"),
        (lambda: part(x, conv(x)[1]), "state must be None"),
        (lambda: part(x, mask=mask), "mask must say which rows are tokens"),
        (lambda: block(x, x), "state must be a BlockState"),
        (lambda: kit.ConvAttention(attention(), (2, 3)), "attention must be made with d_memory"),
        (lambda: kit.ConvAttention(attention(d_memory=8), 6), "grid must be a pair"),
        (lambda: cvt(x[:, :5]), "x must have 0 \\+ 2 · 3 = 6 rows"),
        (lambda: cvt(x, mask=mask), "mask must be None"),
        (lambda: kit.Convolution(4).check(Site(8)), "width must be odd"),
        (lambda: kit.Convolution(3).check(Site(8).of_memory()), "looks into no memory"),
        (lambda: kit.ConvProjection(Attention(2), (2, 3)).check(Site(8, causal=True)), "encoder"),
        (lambda: kit.ConformerLayer(Attention(2), FFN(9), place="post"), "has place 'pre'"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            wrong()
