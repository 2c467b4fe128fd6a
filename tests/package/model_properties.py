"""What is true of layers, blocks and models, as checks that any such modules can go through.

A check is `check(kit)`, with a kit's modules in the place of the package's; it raises
AssertionError when the property does not hold. The checks run over the package (test_models.py)
and over planted bugs (test_model_mutants.py). All sizes are distinct primes where they may be,
numbers float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

B, N, M, D, DK, F, V = 2, 7, 5, 14, 4, 17, 23
H, KV, L = 6, 3, 2
POSITIONS = ("sinusoidal", "learned", "rotary", "t5", "alibi", "shaw", "transformer-xl", "none")
# Ways to cut N tokens into pieces.
CUTS = ([1] * N, [2, 1, 4])


def position_of(models: ModuleType, name: str, n_buckets: int, max_distance: int) -> object:
    """Make the description of a position, by a short name."""
    return {
        "sinusoidal": models.Sinusoidal,
        "learned": models.Learned,
        "rotary": models.Rotary,
        "t5": lambda: models.T5Buckets(n_buckets, max_distance),
        "alibi": models.LinearBias,
        "shaw": lambda: models.Shaw(max_distance),
        "transformer-xl": models.TransformerXL,
        "none": lambda: None,
    }[name]()


def uniform(
    models: ModuleType,
    vocab_size: int | None,
    d_model: int,
    n_layers: int,
    n_heads: int,
    d_ff: int,
    *,
    kind: str = "decoder",
    n_decoder_layers: int | None = None,
    norm: str = "layer",
    place: str = "pre",
    ffn: str = "relu",
    position: str = "sinusoidal",
    n_buckets: int = 32,
    max_distance: int = 128,
    qk_norm: bool = False,
    embedding_norm: bool = False,
    n_segments: int | None = None,
    head: str | None = None,
    n_classes: int | None = None,
    tie_embeddings: bool = True,
    **changes: object,
) -> object:
    """Make a config whose layers are all alike, of names and numbers; others by `replace`."""
    place_of = position_of(models, position, n_buckets, max_distance)
    added = position in ("sinusoidal", "learned")
    one = models.Norm(norm)
    attention = models.Attention(
        n_heads,
        n_kv_heads=changes.pop("n_kv_heads", None),
        d_head=changes.pop("d_head", None),
        position=None if added else place_of,
        qk_norm=one if qk_norm else None,
    )
    layer = models.Layer(attention, models.FFN(d_ff, ffn), norm=one, place=place)
    heads = {
        "mlm": lambda: models.MaskedToken(ffn, norm=one, tie_embeddings=tie_embeddings),
        "classes": lambda: models.Classes(n_classes),
        None: lambda: (
            None if kind == "encoder" else models.NextToken(tie_embeddings=tie_embeddings)
        ),
    }
    both, encoder = kind == "encoder-decoder", [layer] * (n_layers * (kind != "decoder"))
    decoder = [layer.with_cross() if both else layer] * (kind != "encoder")
    own = ("max_len", "patches", "final_norm", "share_embeddings", "pooler", "init")
    fields = {name: changes.pop(name) for name in own if name in changes}
    tokens = models.Tokens(
        place_of if added else None,
        n_segments=n_segments,
        norm=one if embedding_norm else None,
        scale="sqrt(d_model)" if changes.pop("scale_embeddings", False) else None,
    )
    embedding = fields.pop("patches", None) or tokens
    config = models.TransformerConfig(
        vocab_size,
        d_model,
        encoder=encoder,
        decoder=decoder * (n_layers if n_decoder_layers is None else n_decoder_layers),
        embedding=embedding,
        head=heads[head](),
        **fields,
    )
    return config.replace(**changes)


@dataclass(frozen=True)
class Kit:
    """The modules under test."""

    MODULES = ("tfbook.models", "tfbook.attention", "tfbook.blocks")
    models: ModuleType
    attention: ModuleType
    blocks: ModuleType

    def choices(self, **choices: object) -> object:
        """Make a config of small sizes."""
        usual = {"n_kv_heads": KV, "d_head": DK, "max_len": 19, "max_distance": 5, "n_buckets": 6}
        usual |= {"position": "learned"}
        return uniform(self.models, V, D, L, H, F, **(usual | choices))

    def model(self, *, seed: int = 0, **choices: object) -> nn.Module:
        """Make a model with random weights, biases and norms, in float64, for evaluation."""
        return randomised(self.models.build(self.choices(**choices)), seed).eval()

    def block(self, *, seed: int = 0, cross: bool = False, **choices: object) -> nn.Module:
        """Make a block of attention with random weights, biases and norms, in float64."""
        attention = self.attention.MultiHeadAttention
        block = self.blocks.Block(
            attention(D, H, d_head=DK, causal=True),
            self.blocks.FeedForward(D, F, kind="gelu"),
            cross=attention(D, H, d_head=DK, d_memory=D) if cross else None,
            **choices,
        )
        return randomised(block, seed).eval()


CHECKS: dict[str, Callable[[Kit], None]] = {}
PARITY: set[str] = set()


def check(run: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Put the function below among the checks."""
    CHECKS[run.__name__] = run
    return run


def parity(run: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Say of a check that it compares with another implementation of the whole."""
    PARITY.add(run.__name__)
    return run


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter at random, norms and biases too, and return the module in float64."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = noise / math.sqrt(parameter.shape[-1] if parameter.ndim > 1 else 1)
    return module


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Draw standard normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def ids(*shape: int, seed: int = 1) -> Tensor:
    """Draw tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(V, shape, generator=generator)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    """Assert that two tensors are equal up to rounding in float64."""
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def differ(a: Tensor, b: Tensor) -> None:
    """Assert that two tensors of one shape are not equal up to rounding."""
    assert a.shape == b.shape and (a - b).abs().max() > 1e-6


def logits(model: nn.Module, tokens: Tensor, **options: object) -> Tensor:
    """Return the logits of a decoder."""
    return model(tokens, **options)[0]


# Layers


@check
def test_layer_norm_gives_mean_0_and_variance_1(kit):
    x = 3 + 2 * normal(B, N, D)
    y = kit.blocks.layer_norm(x, eps=1e-12)
    close(y.mean(-1), torch.zeros(B, N, dtype=torch.float64))
    close(y.square().mean(-1), torch.ones(B, N, dtype=torch.float64))
    close(kit.blocks.layer_norm(5 + 3 * x, eps=1e-12), y, 1e-8)


@check
def test_rms_norm_gives_mean_square_1_and_keeps_the_mean(kit):
    x = 3 + 2 * normal(B, N, D)
    y = kit.blocks.rms_norm(x, eps=1e-12)
    close(y.square().mean(-1), torch.ones(B, N, dtype=torch.float64))
    close(kit.blocks.rms_norm(3 * x, eps=1e-12), y)
    close(y / y[..., :1], x / x[..., :1])  # every row keeps its direction


@check
def test_epsilon_stands_under_the_root(kit):
    x = torch.full((1, D), 0.0, dtype=torch.float64)
    x[0, 0], eps = 1e-3, 0.04
    shifted = x - x.mean()
    close(kit.blocks.rms_norm(x, eps=eps), x / math.sqrt(x.square().mean() + eps))
    wanted = shifted / math.sqrt(shifted.square().mean() + eps)
    close(kit.blocks.layer_norm(x, eps=eps), wanted)


@check
def test_norms_with_weights_are_the_functions(kit):
    x = normal(B, N, D)
    for kind in ("layer", "rms"):
        norm = randomised(kit.blocks.make_norm(kind, D, eps=0.03))
        parts = [norm.weight] + ([norm.bias] if kind == "layer" else [])
        function = {"layer": kit.blocks.layer_norm, "rms": kit.blocks.rms_norm}[kind]
        close(norm(x), function(x, *parts, eps=0.03))
        plain = function(x, eps=0.03)
        close(norm(x), plain * parts[0] + (parts[1] if kind == "layer" else 0))


ACTIVATE = {
    "relu": lambda t: max(t, 0.0),
    "gelu": lambda t: t * (1 + math.erf(t / math.sqrt(2))) / 2,
    "gelu_tanh": lambda t: t / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3))),
    "silu": lambda t: t / (1 + math.exp(-t)),
    "sigmoid": lambda t: 1 / (1 + math.exp(-t)),
    "tanh": math.tanh,
    "identity": lambda t: t,
}
GATED = {
    "glu": "sigmoid",
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
    "bilinear": "identity",
}


@check
def test_a_feed_forward_network_is_its_formula(kit):
    x = normal(3, D)
    for kind in (*ACTIVATE, *GATED):
        ffn = randomised(kit.blocks.FeedForward(D, F, kind=kind))
        act = ACTIVATE[GATED.get(kind, kind)]
        up = x @ ffn.up_proj.weight.T + ffn.up_proj.bias
        inner = up
        if kind in GATED:
            inner = x @ ffn.gate_proj.weight.T + ffn.gate_proj.bias
        inner = inner.detach().clone().apply_(act)
        inner = inner * up if kind in GATED else inner
        close(ffn(x), inner @ ffn.down_proj.weight.T + ffn.down_proj.bias)


@check
def test_a_feed_forward_network_treats_each_row_by_itself(kit):
    ffn, x = randomised(kit.blocks.FeedForward(D, F, kind="swiglu")), normal(B, N, D)
    rows = torch.stack([ffn(x[:, i]) for i in range(N)], 1)
    close(ffn(x), rows)
    jacobian = torch.autograd.functional.jacobian(ffn, x[0])  # (N, D, N, D)
    same = torch.eye(N, dtype=torch.bool)
    assert (jacobian.abs().amax((1, 3))[~same] == 0).all()
    close(jacobian[2, :, 2], torch.autograd.functional.jacobian(ffn, x[0, 2]))


@check
def test_a_feed_forward_network_is_two_convolutions_of_width_one(kit):
    x = normal(B, N, D)
    for kind, bias in (("relu", True), ("gelu", False)):
        ffn = randomised(kit.blocks.FeedForward(D, F, kind=kind, bias=bias))
        convolutions = kit.blocks.to_conv1d(ffn)
        assert [type(part).__name__ for part in convolutions][::2] == ["Conv1d", "Conv1d"]
        close(convolutions(x.mT).mT, ffn(x))
        back = kit.blocks.from_conv1d(convolutions[0], convolutions[2], kind=kind)
        close(back(x), ffn(x))


@check
def test_the_norm_stands_where_the_place_says(kit):
    x = normal(B, N, D)
    norm, after = randomised(kit.blocks.LayerNorm(D)), randomised(kit.blocks.RMSNorm(D), 2)
    for f in (torch.sin, torch.zeros_like):
        for place, wanted in {
            "pre": x + 0.3 * f(norm(x)),
            "post": norm(x + 0.3 * f(x)),
            "inside": x + 0.3 * norm(f(x)),
            "both": x + 0.3 * after(f(norm(x))),
            "none": x + 0.3 * f(x),
        }.items():
            own, second = None if place == "none" else norm, after if place == "both" else None
            choices = {"place": place, "norm_after": second, "multiplier": 0.3}
            residual = kit.blocks.Residual(own, **choices)
            close(residual.leave(x, f(residual.enter(x))), wanted)


@check
def test_dropout_falls_on_what_a_sublayer_adds_not_on_x(kit):
    x = normal(B, N, D)
    norm = randomised(kit.blocks.LayerNorm(D))
    almost_all = 1 - 1e-12
    for place, wanted in (("pre", x), ("post", norm(x)), ("none", x)):
        own = None if place == "none" else norm
        residual = kit.blocks.Residual(own, place=place, dropout=almost_all).train()
        close(residual.leave(x, torch.ones_like(x)), wanted)
        close(
            residual.eval().leave(x, torch.ones_like(x)),
            kit.blocks.Residual(own, place=place).leave(x, torch.ones_like(x)),
        )
    ffn = randomised(kit.blocks.FeedForward(D, F, dropout=almost_all)).train()
    close(ffn(x), ffn.down_proj.bias.expand(B, N, D))
    differ(ffn.eval()(x), ffn.down_proj.bias.expand(B, N, D))


# Blocks


@check
def test_a_block_mixes_then_looks_up_then_treats_each_row(kit):
    x, memory = normal(B, N, D), normal(B, M, D, seed=3)
    for place in ("pre", "post", "none"):
        for cross in (False, True):
            block = kit.block(cross=cross, place=place)
            state = block.remember(memory) if cross else None
            y, _ = block(x, state)

            def through(x, residual, f, place=place):
                norm = residual.norm
                if place == "pre":
                    return x + f(norm(x))
                return norm(x + f(x)) if place == "post" else x + f(x)

            z = through(x, block.mixer_residual, lambda x, b=block: b.mixer(x)[0])
            if cross:
                looked = block.cross.remember(memory)
                z = through(z, block.cross_residual, lambda x, b=block, s=looked: b.cross(x, s)[0])
            close(y, through(z, block.ffn_residual, block.ffn))


@check
def test_parallel_branches_read_the_same_rows(kit):
    x = normal(B, N, D)
    for place in ("pre", "post", "inside"):
        block = kit.block(place=place, parallel=True)
        mixer, ffn = block.mixer_residual, block.ffn_residual
        y = mixer.leave(x, block.mixer(mixer.enter(x))[0])
        close(block(x)[0], ffn.leave(y, block.ffn(ffn.enter(x))))
    block = kit.block(place="pre", parallel=True, one_norm=True)
    assert block.ffn_residual.norm is None
    seen = block.mixer_residual.norm(x)
    close(block(x)[0], x + block.mixer(seen)[0] + block.ffn(seen))


@check
def test_an_embedding_stands_alone(kit):
    tokens, mask = ids(B, N), torch.ones(B, N, dtype=torch.bool)
    mask[0, :2] = False
    models = kit.models
    tokens_spec = models.Tokens(models.Learned(), scale=0.3, n_segments=2, norm=models.Norm())
    embedding = randomised(tokens_spec.build(models.Site(D, V, 19)))
    x, hidden, counts = embedding(tokens, mask=mask, segments=tokens % 2)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    wanted = 0.3 * embedding.embed.weight[tokens] + embedding.segments.weight[tokens % 2]
    close(x, embedding.embed_norm(wanted + embedding.position.weight[places]))
    assert torch.equal(hidden, mask[:, None]) and counts.tolist() == [N - 2, N]
    again = embedding(tokens[:, :1], seen=N, counts=counts)
    assert again.counts.tolist() == [N - 1, N + 1]
    wanted = 0.3 * embedding.embed.weight[tokens[:, 0]] + embedding.segments.weight[0]
    close(again.x[:, 0], embedding.embed_norm(wanted + embedding.position.weight[counts]))


@check
def test_taps_show_the_residual_stream(kit):
    x = normal(B, N, D)
    block = kit.block(place="pre")
    seen = {}
    for name in ("resid_pre", "resid_mid", "resid_post"):
        block.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: seen.update({name: out})
        )
    y, _ = block(x)
    close(seen["resid_pre"], x)
    close(seen["resid_post"], y)
    close(seen["resid_mid"], x + block.mixer(block.mixer_residual.norm(x))[0])
    close(y, seen["resid_mid"] + block.ffn(block.ffn_residual.norm(seen["resid_mid"])))


@check
def test_a_stack_is_its_blocks_and_then_its_norm(kit):
    blocks = [kit.block(seed=seed, place="pre") for seed in range(3)]
    norm = randomised(kit.blocks.RMSNorm(D))
    x = y = normal(B, N, D)
    for block in blocks:
        y, _ = block(y)
    stack = kit.blocks.Stack(blocks, norm)
    close(stack(x)[0], norm(y))
    close(stack.encode(x), norm(y))
    close(kit.blocks.Stack(blocks)(x)[0], y)
    close(stack.trace(x).states[-1], y)


# Models


@check
def test_later_tokens_do_not_change_earlier_logits(kit):
    tokens, source = ids(B, N), ids(B, M, seed=2)
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % V
    for position in POSITIONS:
        for place in ("pre", "post"):
            model = kit.model(position=position, place=place)
            before, after = logits(model, tokens), logits(model, other)
            close(after[:, :4], before[:, :4])
            differ(after[:, 4:], before[:, 4:])
        model = kit.model(position=position, kind="encoder-decoder")
        before, after = model(source, tokens), model(source, other)
        close(after[:, :4], before[:, :4])
        differ(after[:, 4:], before[:, 4:])


def dependencies(model: nn.Module, embed: nn.Module, run: Callable[[], Tensor]) -> Tensor:
    """Return how strongly each row of a run depends on each row of an embedding."""
    seen = []
    hook = embed.register_forward_hook(
        lambda module, args, out: seen.append(out.detach().requires_grad_()) or seen[-1]
    )
    out = run()
    hook.remove()
    rows = [
        torch.autograd.grad(out[0, i].sum(), seen[0], retain_graph=True)[0][0].abs().sum(-1)
        for i in range(out.shape[1])
    ]
    return torch.stack(rows)


@check
def test_gradients_flow_from_the_past_only(kit):
    tokens = ids(1, N)
    triangle = torch.ones(N, N, dtype=torch.bool).tril()
    for position in POSITIONS:
        model = kit.model(position=position)
        found = dependencies(model, model.embed, lambda m=model: logits(m, tokens))
        assert ((found > 1e-12) == triangle).all(), position


@check
def test_an_encoder_sees_everything_from_everywhere(kit):
    tokens = ids(1, N)
    for position in POSITIONS:
        model = kit.model(kind="encoder", position=position, place="post")
        found = dependencies(model, model.embed, lambda m=model: m(tokens))
        assert (found > 1e-12).all(), position


@check
def test_the_decoder_sees_the_whole_source_and_the_source_no_target(kit):
    source, target = ids(1, M), ids(1, N, seed=2)
    model = kit.model(kind="encoder-decoder", share_embeddings=False)
    found = dependencies(model, model.embed, lambda: model(source, target))
    assert found.shape == (N, M) and (found > 1e-12).all()
    found = dependencies(model, model.target_embed, lambda: model(source, target))
    assert ((found > 1e-12) == torch.ones(N, N, dtype=torch.bool).tril()).all()
    states = model.hidden_states(source, target)
    close(states.encoder[-1], model.hidden_states(source, target[:, :2]).encoder[-1])


@check
def test_every_decoder_layer_reads_the_last_output_of_the_encoder(kit):
    source, target = ids(B, M), ids(B, N, seed=2)
    model = kit.model(kind="encoder-decoder", n_decoder_layers=2)
    memory = model.encode(source)
    state = model.remember(source)
    assert len(state.layers) == 2
    for block, layer in zip(model.decoder.blocks, state.layers, strict=True):
        keys = memory @ block.cross.k_proj.weight.T + block.cross.k_proj.bias
        close(layer.cross.k.transpose(1, 2).flatten(2), keys)
    close(memory, model.encoder.finish(model.hidden_states(source, target).encoder[-1]))


@check
def test_padding_on_either_side_changes_nothing(kit):
    tokens, source = ids(B, N), ids(B, M, seed=2)
    pad = ids(B, 3, seed=5)
    sides = {
        "left": (lambda x: torch.cat([pad, x], 1), slice(3, None)),
        "right": (lambda x: torch.cat([x, pad], 1), slice(None, -3)),
    }
    for position in POSITIONS:
        decoder = kit.model(position=position)
        encoder = kit.model(position=position, kind="encoder", place="post")
        both = kit.model(position=position, kind="encoder-decoder")
        for put, kept in sides.values():
            longer = put(tokens)
            mask = torch.zeros(longer.shape, dtype=torch.bool)
            mask[:, kept] = True
            close(logits(decoder, longer, mask=mask)[:, kept], logits(decoder, tokens))
            close(encoder(longer, mask=mask)[:, kept], encoder(tokens))
            if position in ("rotary", "alibi", "shaw", "transformer-xl"):
                continue  # in both stacks the layers are the ones above
            found = both(source, longer, target_mask=mask)[:, kept]
            close(found, both(source, tokens))
            source_mask = torch.zeros(B, M + 3, dtype=torch.bool)
            source_mask[:, kept] = True
            close(both(put(source), tokens, source_mask=source_mask), both(source, tokens))


@check
def test_any_way_to_cut_a_text_gives_the_whole(kit):
    tokens, source = ids(B, N), ids(B, M, seed=2)
    for position in POSITIONS:
        model = kit.model(position=position)
        both = kit.model(position=position, kind="encoder-decoder", n_decoder_layers=1)
        for cuts in CUTS:
            for whole, decode, state in (
                (logits(model, tokens), model.decode, None),
                (both(source, tokens), both.decode, both.remember(source)),
            ):
                pieces = []
                for piece in tokens.split(cuts, 1):
                    found, state = decode(piece, state)
                    pieces.append(found)
                close(torch.cat(pieces, 1), whole)
                assert state.length == N


@check
def test_a_padded_batch_can_be_continued(kit):
    tokens, pad = ids(B, N), ids(B, 3, seed=5)
    mask = torch.ones(B, N + 3, dtype=torch.bool)
    mask[0, :3] = False
    alone = torch.cat([pad, tokens], 1)[1:]
    for position in POSITIONS:
        model = kit.model(position=position)
        batch = torch.cat([pad, tokens], 1)
        start, state = model(batch[:, :6], mask=mask[:, :6])
        middle, state = model(batch[:, 6:8], state)
        end, state = model(batch[:, 8:], state, mask=mask[:, 8:])
        found = torch.cat([start, middle, end], 1)
        close(found[:1, 3:], logits(model, tokens[:1]))
        close(found[1:], logits(model, alone))


@check
def test_sequences_of_a_batch_do_not_meet(kit):
    tokens, source = ids(5, N), ids(5, M, seed=2)
    for kind in ("decoder", "encoder", "encoder-decoder"):
        model = kit.model(kind=kind)
        run = {
            "decoder": lambda rows, m=model: logits(m, tokens[rows]),
            "encoder": lambda rows, m=model: m(tokens[rows]),
            "encoder-decoder": lambda rows, m=model: m(source[rows], tokens[rows]),
        }[kind]
        whole = run([0, 1, 2, 3, 4])
        for row in range(5):
            close(run([row])[0], whole[row])


@check
def test_a_chosen_state_goes_on_as_its_sequence(kit):
    tokens, pad = ids(3, N), torch.ones(3, N, dtype=torch.bool)
    pad[1, :2] = False
    rows = torch.tensor([2, 0, 0])
    model = kit.model(position="learned")
    _, state = model(tokens, mask=pad)
    new = ids(3, 2, seed=7)
    close(logits(model, new[rows], state=state.select(rows)), logits(model, new, state=state)[rows])


@check
def test_without_positions_an_encoder_is_blind_to_order(kit):
    tokens = ids(B, N)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    for position in POSITIONS:
        model = kit.model(kind="encoder", position=position)
        found, wanted = model(tokens[:, order]), model(tokens)[:, order]
        if position == "none":
            close(found, wanted)
        else:
            differ(found, wanted)


@check
def test_a_tied_head_is_the_embedding(kit):
    tokens = ids(B, N)
    for kind in ("decoder", "encoder-decoder"):
        run = (lambda m: logits(m, tokens)) if kind == "decoder" else (lambda m: m(tokens, tokens))
        tied, untied = (kit.model(kind=kind, tie_embeddings=choice) for choice in (True, False))
        assert [name for name in tied.state_dict() if name.startswith("head")] == []
        stored = [value.data_ptr() for value in tied.state_dict().values()]
        assert len(stored) == len(set(stored))
        assert untied.count_parameters() - tied.count_parameters() == V * D
        weights = untied.state_dict()
        weights["head.weight"] = weights["embed.weight"]
        untied.load_state_dict(weights)
        tied.load_state_dict({name: weights[name] for name in tied.state_dict()})
        close(run(tied), run(untied))
        grads = []
        for model in (tied, untied):
            model.zero_grad()
            run(model).sin().sum().backward()
            grads.append(model.embed.weight.grad)
        close(grads[0], grads[1] + untied.head.weight.grad)


@check
def test_logits_are_the_head_on_the_last_states(kit):
    tokens = ids(B, N)
    for place, final in (("pre", None), ("pre", False), ("post", None), ("post", True)):
        model = kit.model(place=place, final_norm=final, head_scale=0.3)
        states = model.hidden_states(tokens)
        assert len(states) == L + 1
        last = states[-1]
        if final or (final is None and place == "pre"):
            last = model.stack.final_norm(last)
        else:
            assert model.stack.final_norm is None
        close(logits(model, tokens), 0.3 * last @ model.embed.weight.T)


@check
def test_what_enters_the_first_block_is_scaled_placed_and_normalised(kit):
    tokens = ids(B, N)
    for scaled in (False, True):
        for normed in (False, True):
            model = kit.model(
                kind="encoder", scale_embeddings=scaled, embedding_norm=normed, n_segments=2
            )
            segments = tokens % 2
            x = model.embed.weight[tokens] * (math.sqrt(D) if scaled else 1)
            for given in (None, segments):
                rows = model.segments.weight[torch.zeros_like(tokens) if given is None else given]
                wanted = x + model.position.weight[:N] + rows
                wanted = model.embed_norm(wanted) if normed else wanted
                close(model.hidden_states(tokens, segments=given)[0], wanted)


@check
def test_the_last_logits_can_be_asked_for_alone(kit):
    tokens, source = ids(B, N), ids(B, M, seed=2)
    model, both = kit.model(), kit.model(kind="encoder-decoder")
    close(model(tokens, last=True)[0], logits(model, tokens)[:, -1:])
    close(both.decode(tokens, both.remember(source), last=True)[0], both(source, tokens)[:, -1:])


@check
def test_attention_weights_are_those_that_were_used(kit):
    tokens, source = ids(B, N), ids(B, M, seed=2)
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[0, :2] = False
    for position in ("rotary", "t5", "learned"):
        model = kit.model(position=position)
        found = model.attention_weights(tokens, mask)
        assert [tuple(each.shape) for each in found] == [(B, H, N, N)] * L
        allowed = torch.ones(N, N, dtype=torch.bool).tril() & mask[:, None, None, :]
        for each in found:
            assert (each[~allowed.expand_as(each)] == 0).all()
            sums = each.sum(-1)
            close(sums, allowed.any(-1).expand_as(sums).double())
        # With the same weights, the values give what the hook on z sees.
        for layer, block in enumerate(model.stack.blocks):
            seen = {}
            hooks = [
                block.mixer.v.register_forward_hook(lambda m, a, out, s=seen: s.update(v=out)),
                block.mixer.z.register_forward_hook(lambda m, a, out, s=seen: s.update(z=out)),
            ]
            model(tokens, mask=mask)
            for hook in hooks:
                hook.remove()
            values = seen["v"].repeat_interleave(H // KV, 1)
            close(found[layer] @ values, seen["z"])
    both = kit.model(kind="encoder-decoder", n_decoder_layers=2)
    found = both.attention_weights(source, tokens)
    assert [tuple(x.shape) for x in found.encoder] == [(B, H, M, M)] * L
    assert [tuple(x.shape) for x in found.decoder] == [(B, H, N, N)] * 2
    assert [tuple(x.shape) for x in found.cross] == [(B, H, N, M)] * 2
    block, states = both.decoder.blocks[1], both.hidden_states(source, tokens)
    x = states.decoder[1]
    x = x + block.mixer(block.mixer_residual.norm(x))[0]
    memory = block.cross.remember(both.encode(source))
    close(found.cross[1], block.cross.weights(block.cross_residual.norm(x), memory))


@check
def test_a_window_bounds_what_a_layer_sees(kit):
    tokens = ids(1, N)
    model = kit.model(window=2, position="rotary")
    found = dependencies(model, model.embed, lambda: logits(model, tokens))
    back = torch.arange(N)[:, None] - torch.arange(N)
    assert ((found > 1e-12) == ((back >= 0) & (back <= L))).all()  # one step back a layer


@check
def test_shared_positions_are_computed_once_a_pass_and_never_stale(kit):
    tokens, model = ids(B, N), kit.model(position="t5")
    calls, original = [], model.position.bias
    model.position.bias = lambda *args: calls.append(1) or original(*args)
    before = logits(model, tokens)
    assert len(calls) == 1
    with torch.no_grad():
        model.position.weight += normal(*model.position.weight.shape)
    differ(logits(model, tokens), before)
    assert len(calls) == 2
    rotary = kit.model(position="rotary")
    parts = {id(block.mixer.position) for block in rotary.stack.blocks}
    assert len(parts) == 1  # and what it knows of positions is known to all layers


@check
def test_all_layers_of_a_stack_share_the_t5_bias(kit):
    model = kit.model(kind="encoder-decoder", position="t5")
    names = [name for name in model.state_dict() if "position" in name]
    assert names == ["position.weight", "target_position.weight"]
    q, places = normal(1, H, 3, DK), torch.arange(3)
    ahead, back = (1, 2), (2, 1)  # a key after the query, and one before it
    encoder = model.position.bias(q, places, places)[..., 0, :, :]
    differ(encoder[ahead], encoder[back])
    decoder = model.target_position.bias(q, places, places)[..., 0, :, :]
    close(decoder[ahead], decoder[1, 1])  # no bucket for what the mask hides
    differ(decoder[2, 0], decoder[1, 0])
    own = kit.model(position="shaw")
    names = [name for name in own.state_dict() if "position" in name]
    assert names == [f"stack.blocks.{i}.mixer.position.weight" for i in range(L)]


@check
def test_t5_divides_by_the_root_of_d_nowhere(kit):
    both = kit.model(kind="encoder-decoder", position="t5")
    source, target = ids(B, M), ids(B, N)
    found = both.attention_weights(source, target)
    x = both.decoder.trace(
        both.target_embed.weight[target] if both.target_embed else both.embed.weight[target],
        both.remember(source).layers,
        weights=True,
    )
    block, memory = both.decoder.blocks[0], both.encode(source)
    inner = both.embed.weight[target]
    inner = inner + block.mixer(block.mixer_residual.norm(inner))[0]
    q = block.cross.q_proj(block.cross_residual.norm(inner)).unflatten(-1, (H, DK)).transpose(1, 2)
    k = block.cross.k_proj(memory).unflatten(-1, (KV, DK)).transpose(1, 2)
    k = k.repeat_interleave(H // KV, 1)
    close(found.cross[0], (q @ k.mT).softmax(-1))
    close(x.cross[0], found.cross[0])


@check
def test_heads_of_encoders_are_their_formulas(kit):
    tokens = ids(B, N)
    common = {"kind": "encoder", "place": "post", "ffn": "gelu"}
    model = kit.model(head="mlm", **common)
    x, head = model.hidden(tokens), model.head
    inner = head.norm(functional.gelu(x @ head.dense.weight.T + head.dense.bias))
    close(model(tokens), inner @ model.embed.weight.T + head.bias)
    for pooler in (False, True):
        model = kit.model(head="classes", n_classes=3, pooler=pooler, **common)
        first = model.hidden(tokens)[:, 0]
        if pooler:
            first = torch.tanh(first @ model.pooler.weight.T + model.pooler.bias)
        close(model(tokens), first @ model.head.weight.T + model.head.bias)


@check
def test_patches_are_squares_of_the_image_row_by_row(kit):
    sizes = {"image_size": 6, "patch_size": 2, "n_channels": 3}
    patches = kit.models.Patches(**sizes, position=kit.models.Learned())
    model = randomised(
        kit.models.build(uniform(kit.models, None, D, 1, 2, F, kind="encoder", patches=patches))
    )
    images = normal(B, 3, 6, 6)
    rows = model.embed(images)
    assert rows.shape == (B, 10, D)
    for row in range(3):
        for col in range(3):
            square = images[:, :, 2 * row : 2 * row + 2, 2 * col : 2 * col + 2].flatten(1)
            close(rows[:, 1 + 3 * row + col], model.embed.proj(square))
    close(rows[:, 0], model.embed.class_token.expand(B, D))
    assert model(images).shape == (B, 10, D)


@check
def test_dropout_of_a_model_falls_on_embeddings_sublayers_and_weights(kit):
    tokens, almost_all = ids(B, N), 1 - 1e-12
    model = kit.model(dropout=almost_all)
    assert model.train().hidden_states(tokens)[0].abs().max() == 0
    x = normal(B, N, D)
    close(model.stack.blocks[0](x)[0], x)
    close(logits(model.eval(), tokens), logits(kit.model(), tokens))
    mixer = kit.model(attention_dropout=almost_all).train().stack.blocks[0].mixer
    close(mixer(x)[0], mixer.out_proj.bias.expand(B, N, D))
    ffn = kit.model(ffn_dropout=almost_all).train().stack.blocks[0].ffn
    close(ffn(x), ffn.down_proj.bias.expand(B, N, D))


@check
def test_counts_are_those_of_the_model(kit):
    for kind in ("decoder", "encoder", "encoder-decoder"):
        for position in POSITIONS:
            for extra in ({}, {"norm": "rms", "ffn": "swiglu", "attention_bias": ("q", "v")}):
                choices = {"kind": kind, "position": position, "embedding_norm": True, **extra}
                if kind != "encoder":
                    choices |= {"tie_embeddings": False, "share_embeddings": False}
                model = kit.model(**choices)
                parts = model.config.parts(N, B, m=M)
                assert model.config.count_parameters() == model.count_parameters()
                for part in parts:
                    if part.parameters:
                        module = model.get_submodule(part.name)
                        if part.name != "embed" and hasattr(module, "parameters"):
                            own = sum(p.numel() for p in module.parameters())
                            assert own == part.parameters, part.name


@check
def test_first_weights_have_the_spread_that_the_scheme_says(kit):
    sizes = {"d_head": 32, "n_kv_heads": None, "n_decoder_layers": 2}
    d, f, heads, vocab = 96, 160, 3, 211
    for scheme in ("xavier", "gpt2", "bert", "t5"):
        torch.manual_seed(0)
        config = uniform(
            kit.models,
            vocab,
            d,
            2,
            heads,
            f,
            kind="encoder-decoder",
            tie_embeddings=False,
            position="learned",
            max_len=101,
            init=scheme,
            **sizes,
        )
        model = kit.models.build(config)
        wanted = {
            "embed.weight": {"xavier": d**-0.5, "t5": 1.0},
            "head.weight": {"xavier": d**-0.5, "t5": 1.0},
            "position.weight": {"t5": d**-0.5},
            "decoder.blocks.1.mixer.q_proj.weight": {
                "xavier": math.sqrt(2 / (d + d)),
                "t5": (d * 32) ** -0.5,
            },
            "decoder.blocks.1.cross.k_proj.weight": {
                "xavier": math.sqrt(2 / (d + d)),
                "t5": d**-0.5,
            },
            "encoder.blocks.0.ffn.up_proj.weight": {
                "xavier": math.sqrt(2 / (d + f)),
                "t5": d**-0.5,
            },
            "encoder.blocks.0.ffn.down_proj.weight": {
                "xavier": math.sqrt(2 / (d + f)),
                "t5": f**-0.5,
                "gpt2": 0.02 / math.sqrt(4),
            },
            "decoder.blocks.0.mixer.out_proj.weight": {
                "xavier": math.sqrt(2 / (d + d)),
                "t5": d**-0.5,
                "gpt2": 0.02 / math.sqrt(4),
            },
        }
        parameters = dict(model.named_parameters())
        for name, spread in wanted.items():
            std = spread.get(scheme, 0.02)
            if scheme == "bert":
                std *= 0.8796  # of a normal distribution cut off at two standard deviations
            assert abs(parameters[name].std().item() / std - 1) < 0.05, (scheme, name)
        for name, parameter in parameters.items():
            if parameter.ndim == 1:
                assert (parameter == (1 if name.endswith("norm.weight") else 0)).all(), name
