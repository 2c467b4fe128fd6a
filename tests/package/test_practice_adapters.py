"""Adapters: against their formula, against peft, merged and not, and through a file."""

import copy
import sys

import pytest
import torch
from practice_kit import DOUBLE, KIT, checks, close, decoder, ids, normal, trained
from torch import nn
from torch.nn import functional

from tfbook.data import char_tokenizer
from tfbook.models import build, preset
from tfbook.pretrained import Pretrained


@pytest.fixture
def kit():
    return KIT


def linear(d_in=7, d_out=5, bias=True, seed=0):
    layer = nn.Linear(d_in, d_out, bias=bias, dtype=DOUBLE)
    with torch.no_grad():
        layer.weight.copy_(normal(d_out, d_in, seed=seed))
    return layer


def filled(layer, seed=5):
    with torch.no_grad():
        layer.lora_a.copy_(normal(*layer.lora_a.shape, seed=seed))
        layer.lora_b.copy_(normal(*layer.lora_b.shape, seed=seed + 1))
        if layer.magnitude is not None:
            layer.magnitude.mul_(1 + 0.3 * normal(*layer.magnitude.shape, seed=seed + 2))
    return layer


# freezing


def test_only_what_fits_is_frozen_and_counted(kit):
    model = decoder(kit)
    whole = sum(p.numel() for p in model.parameters())
    assert kit.count_trained(model) == (whole, whole)
    names = kit.freeze(model, "*.q_proj.*", "embed.*")
    assert names == ["embed.weight"] + [f"stack.blocks.{i}.mixer.q_proj.weight" for i in (0, 1)]
    frozen = sum(dict(model.named_parameters())[name].numel() for name in names)
    assert kit.count_trained(model) == (whole - frozen, whole)
    assert kit.thaw(model, "embed.*") == ["embed.weight"]
    assert model.embed.weight.requires_grad
    kit.freeze(model)
    assert kit.count_trained(model).trained == 0


def test_rates_fall_layer_by_layer_towards_the_input(kit):
    model = decoder(kit, "gpt2", n_layers=3)
    groups = kit.layer_rates(model, 0.1, decay=0.5, weight_decay=0.3)
    rates = {
        name: (group["lr"], group["weight_decay"])
        for name, weight in model.named_parameters()
        for group in groups
        if any(weight is each for each in group["params"])
    }
    assert len(rates) == len(list(model.parameters()))
    assert sum(len(group["params"]) for group in groups) == len(rates)
    depths = {"embed.": 0, "position.": 0, "stack.blocks.0": 1, "stack.blocks.1": 2,
              "stack.blocks.2": 3, "stack.final_norm": 4, "head": 4}  # fmt: skip
    for name, (rate, decay) in rates.items():
        (depth,) = (each for start, each in depths.items() if name.startswith(start))
        assert rate == pytest.approx(0.1 * 0.5 ** (4 - depth))
        assert decay == (0.3 if dict(model.named_parameters())[name].ndim > 1 else 0.0)
    kit.freeze(model, "embed.*")
    again = kit.layer_rates(model, 0.1)
    assert not any(model.embed.weight is p for group in again for p in group["params"])
    rates = [group["lr"] for group in kit.layer_rates(model, 0.1, decay=1.0)]
    assert rates == pytest.approx([0.1] * len(rates))


def test_frozen_weights_do_not_move_and_slow_ones_move_less(kit):
    model = decoder(kit)
    kit.freeze(model, "stack.blocks.0.*")
    before = copy.deepcopy(model.state_dict())
    groups = kit.layer_rates(model, 0.1, decay=0.1)
    found = kit.training.fit(
        model, [ids(2, 7)], loss=kit.training.causal_loss, steps=1, progress=False,
        optimizer=torch.optim.Adam(groups),
    )  # fmt: skip
    moved = {n: (x - before[n]).abs().max().item() for n, x in model.state_dict().items()}
    assert all(moved[name] == 0 for name in moved if "blocks.0" in name)
    # Adam's first step has the length of its rate.
    assert moved["stack.final_norm.weight"] == pytest.approx(0.1, rel=1e-3)
    assert moved["stack.blocks.1.mixer.q_proj.weight"] == pytest.approx(0.01, rel=1e-3)
    assert moved["embed.weight"] == pytest.approx(0.0001, rel=1e-2)
    assert len(found.losses) == 1


# LoRA and DoRA


def test_lora_is_its_formula(kit):
    for bias in (True, False):
        base = linear(bias=bias)
        layer = filled(kit.LoraLinear(base, 2, alpha=3.0))
        assert kit.count_trained(layer).trained == 2 * (7 + 5)
        x, b = normal(2, 3, 7, seed=9), base.bias if bias else 0.0
        whole = base.weight + 3.0 / 2 * layer.lora_b @ layer.lora_a
        close(layer(x), x @ whole.T + b)
        close(layer.weight, whole)


def test_dora_is_its_formula(kit):
    for bias in (True, False):
        base = linear(bias=bias)
        layer = filled(kit.LoraLinear(base, 2, alpha=3.0, dora=True))
        x, b = normal(3, 7, seed=9), base.bias if bias else 0.0
        v = base.weight + 3.0 / 2 * layer.lora_b @ layer.lora_a
        whole = layer.magnitude[:, None] * v / v.norm(dim=1, keepdim=True)
        close(layer(x), x @ whole.T + b)
        close(layer.weight, whole)


def test_no_gradient_passes_the_lengths_of_dora(kit):
    layer = filled(kit.LoraLinear(linear(), 2, dora=True))
    x, out = normal(3, 7, seed=9), normal(3, 5, seed=8)
    v0 = (layer.base.weight + layer.scale * layer.lora_b @ layer.lora_a).detach()
    fixed = v0.norm(dim=1)  # (d_out,)
    (layer(x) * out).sum().backward()
    a, b, m = (p.detach().clone().requires_grad_() for p in
               (layer.lora_a, layer.lora_b, layer.magnitude))  # fmt: skip
    y = x @ ((m / fixed)[:, None] * (layer.base.weight + layer.scale * b @ a)).T
    (y * out).sum().backward()
    for got, wanted in zip((layer.lora_a, layer.lora_b, layer.magnitude), (a, b, m), strict=True):
        close(got.grad, wanted.grad)


def test_a_fresh_adapter_changes_nothing_and_the_base_gets_no_gradient(kit):
    for dora in (False, True):
        for kind in ("llama", "gpt2"):
            model = decoder(kit, kind, dtype=DOUBLE)
            tokens = ids(2, 7)
            before = model(tokens)[0].detach()
            names = kit.add_lora(model, 2, dora=dora)
            close(model(tokens)[0].detach(), before)
            per_layer = 6 if kind == "gpt2" else 7
            assert len(names) == per_layer * 2
            trained(model)(tokens)[0].square().sum().backward()
            for name, weight in model.named_parameters():
                own = name.split(".")[-1] in ("lora_a", "lora_b", "magnitude")
                assert weight.requires_grad == own == (weight.grad is not None)


def test_the_parameters_of_adapters_are_those_of_the_formula(kit):
    for dora in (False, True):
        model = decoder(kit)
        sizes = {name: tuple(part.weight.shape) for name, part in model.named_modules()
                 if isinstance(part, nn.Linear)}  # fmt: skip
        whole = kit.count_trained(model).total
        names = kit.add_lora(model, 3, where=["*.q_proj", "*.down_proj"], dora=dora)
        assert len(names) == 4
        wanted = sum(3 * sum(sizes[name]) + dora * sizes[name][0] for name in names)
        assert kit.count_trained(model) == (wanted, whole + wanted)


def test_merged_unmerged_and_baked_are_equal(kit):
    for dora in (False, True):
        model = decoder(kit, "gpt2", dtype=DOUBLE)
        original = {name: x.clone() for name, x in model.state_dict().items()}
        kit.add_lora(model, 2, dora=dora)
        trained(model)
        tokens = ids(2, 7)
        apart = model(tokens)[0].detach()
        kit.merge_lora(model)
        merged = model(tokens)[0].detach()
        assert not torch.equal(apart, merged)  # another order of sums
        close(merged, apart)
        layer = model.stack.blocks[0].mixer.q_proj
        assert layer.weight is layer.merged
        kit.unmerge_lora(model)
        assert torch.equal(model(tokens)[0].detach(), apart)
        kit.bake_lora(model)
        assert torch.equal(model(tokens)[0].detach(), merged)
        assert set(model.state_dict()) == set(original)
        changed = {n for n, x in model.state_dict().items() if not torch.equal(x, original[n])}
        assert changed == {n for n in original if n.endswith("_proj.weight")}


def test_removed_adapters_leave_the_model_as_it_was(kit):
    model = decoder(kit, dtype=DOUBLE)
    tokens = ids(2, 7)
    before, weights = model(tokens)[0].detach(), list(model.state_dict())
    for add in (kit.add_lora, kit.add_bottlenecks):
        add(model, 2)
        trained(model)
        assert not torch.allclose(model(tokens)[0], before)
        kit.remove_adapters(model)
        assert (
            torch.equal(model(tokens)[0].detach(), before) and list(model.state_dict()) == weights
        )


def test_dropout_is_on_the_thin_path_alone_and_only_in_training(kit):
    layer = filled(kit.LoraLinear(linear(), 2, dropout=0.5))
    x = normal(400, 7, seed=3)
    plain = layer.base(x)
    whole = layer.eval()(x) - plain
    close(whole, layer.scale * x @ layer.lora_a.T @ layer.lora_b.T)
    torch.manual_seed(0)
    dropped = layer.train()(x) - plain
    assert not torch.allclose(dropped, whole)
    noise = (dropped - whole).mean(0) / (dropped - whole).std(0) * 400**0.5
    assert noise.abs().max() < 4  # the mean is that without dropout
    with torch.no_grad():
        layer.lora_b.zero_()
    assert torch.equal(layer(x), plain)


def test_a_layer_that_is_shared_gets_one_adapter(kit):
    model = nn.ModuleDict({"a_proj": linear(7, 7)})
    model["b_proj"] = model["a_proj"]
    names = kit.add_lora(model, 2)
    assert names == ["a_proj"] and model["a_proj"] is model["b_proj"]
    assert isinstance(model["b_proj"], kit.LoraLinear)


def test_attention_of_pytorch_uses_the_adapted_matrix(kit):
    """It reads out_proj.weight and never calls the layer."""
    attention = nn.MultiheadAttention(6, 2, batch_first=True, dtype=DOUBLE)
    kit.add_lora(attention, 2, where=["out_proj"])
    trained(attention).train()
    x = normal(2, 3, 6)
    got = attention(x, x, x)[0]
    kit.bake_lora(attention)
    close(got, attention(x, x, x)[0])


def test_lora_stands_on_anything_that_acts_like_a_linear_layer(kit):
    base = linear()
    rounded = kit.RoundedLinear(base)
    assert isinstance(rounded, kit.LinearLike) and isinstance(base, kit.LinearLike)
    x = normal(3, 7, seed=4)
    step = base.weight.abs().amax(1) / 127
    assert ((rounded.dense() - base.weight).abs() <= step[:, None] / 2 + 1e-9).all()
    assert not torch.equal(rounded.dense(), base.weight)
    close(rounded(x), functional.linear(x, rounded.dense(), base.bias))
    for dora in (False, True):
        layer = filled(kit.LoraLinear(rounded, 2, dora=dora))
        assert sum(p.numel() for p in layer.parameters()) == 2 * 12 + 5 * dora
        apart = layer(x)
        layer.merge()
        close(layer(x), apart)
        assert rounded.values.dtype == torch.int8
        layer.unmerge()
        assert torch.equal(layer(x), apart)
        close(layer.bake()(x), apart)


class Packed(nn.Module):
    """A frozen map that only its own product can read."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed = [layer]

    def dense(self):
        return self.packed[0].weight.detach()

    def forward(self, x):
        return self.packed[0](x).detach() + (x - x.detach()) @ self.dense().T


def test_a_whole_model_over_a_packed_base_learns(kit):
    model = decoder(kit)
    for part in model.modules():
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Linear):
                setattr(part, name, Packed(child))
    kit.add_lora(model, 2)
    found = kit.training.fit(
        model, [ids(2, 9)], loss=kit.training.causal_loss, steps=30, progress=False,
        optimizer=lambda m: torch.optim.Adam([p for p in m.parameters() if p.requires_grad], 0.02),
    )  # fmt: skip
    assert found.losses[-1] < 0.8 * found.losses[0]


# bottlenecks and prefixes


def test_a_bottleneck_is_its_formula(kit):
    model = decoder(kit, dtype=DOUBLE)
    tokens = ids(2, 7)
    before = model(tokens)[0].detach()
    names = kit.add_bottlenecks(model, 3)
    assert names == [f"stack.blocks.{i}.{part}" for i in (0, 1)
                     for part in ("mixer.out_proj", "ffn.down_proj")]  # fmt: skip
    close(model(tokens)[0].detach(), before)
    assert kit.count_trained(model).trained == 4 * (2 * 12 * 3 + 3 + 12)
    layer = trained(model).stack.blocks[1].mixer.out_proj
    x = normal(5, layer.in_features, seed=2)
    h = x @ layer.base.weight.T
    inner = functional.gelu(h @ layer.down.weight.T + layer.down.bias)
    close(layer(x), h + inner @ layer.up.weight.T + layer.up.bias)


def test_a_prefix_of_a_text_does_what_the_text_does(kit):
    for kind in ("llama", "gpt2"):
        model = decoder(kit, kind, dtype=DOUBLE)
        before, tokens = ids(1, 5), ids(2, 7, seed=8)
        wanted = model(torch.cat([before.expand(2, -1), tokens], 1))[0][:, 5:]
        prefix = kit.Prefix(model, 5)
        prefix.read(model, before)
        close(kit.Prefixed(model, prefix)(tokens)[0], wanted)


def test_a_prefix_is_continued_piece_by_piece_and_padded_as_any_state(kit):
    model = decoder(kit, dtype=DOUBLE)
    whole = kit.Prefixed(model, trained(kit.Prefix(model, 3)))
    tokens = ids(2, 7)
    together = whole(tokens)[0]
    first, state = whole(tokens[:, :4])
    rest, _ = whole(tokens[:, 4:], state)
    close(torch.cat([first, rest], 1), together)
    assert not torch.allclose(together, model(tokens)[0])
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :2] = False
    padded = torch.cat([torch.zeros(2, 2, dtype=torch.long), tokens], 1)
    alone = whole(padded[:1, 2:])[0]
    # Rotary positions count columns, so padding in front lies between prefix and text.
    assert whole(padded, mask=mask)[0][:1, 2:].shape == alone.shape
    changed = padded.clone()
    changed[0, :2] = 7
    close(whole(changed, mask=mask)[0][:1, 2:], whole(padded, mask=mask)[0][:1, 2:])


def test_only_the_prefix_learns_and_generation_begins_behind_it(kit):
    model = decoder(kit)
    whole = kit.Prefixed(model, kit.Prefix(model, 3))
    assert kit.count_trained(whole).trained == 2 * 2 * 3 * 2 * 4  # k and v, L, P, heads, d_head
    before = copy.deepcopy(model.state_dict())
    found = kit.training.fit(
        whole, [ids(2, 9)], loss=kit.training.causal_loss, steps=30, progress=False,
        optimizer=lambda m: torch.optim.Adam(m.prefix.parameters(), 0.1),
    )  # fmt: skip
    assert found.losses[-1] < found.losses[0] - 0.05
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    new = kit.generation.generate(whole.eval(), [[1, 2]], max_new_tokens=3).tokens[0]
    tokens = torch.tensor([[1, 2]])
    for token in new:
        logits, _ = whole(tokens)
        assert logits[0, -1].argmax() == token
        tokens = torch.cat([tokens, torch.tensor([[token]])], 1)


# files


def adapted(kit, how, seed=0):
    model = decoder(kit, "llama", seed=seed)
    if how == "prefix":
        return kit.Prefixed(model, kit.Prefix(model, 3))
    if how is not None:
        adds = {"lora": kit.add_lora, "dora": kit.add_lora, "bottleneck": kit.add_bottlenecks}
        adds[how](model, 2, **({"dora": True} if how == "dora" else {}))
    return model


@pytest.mark.parametrize("how", ["lora", "dora", "bottleneck", "prefix"])
def test_an_adapter_goes_through_a_file_of_its_own(kit, tmp_path, how):
    model, tokens, path = trained(adapted(kit, how)), ids(2, 7), tmp_path / "mine.safetensors"
    assert kit.save_adapter(model, path) == path
    assert [each.name for each in tmp_path.iterdir()] == ["mine.safetensors"]
    numbers = sum(x.numel() for x in kit.adapter_tensors(model).values())
    assert numbers == kit.count_trained(model).trained
    assert 4 * numbers < path.stat().st_size < 4 * numbers + 6000
    for start in (adapted(kit, how), adapted(kit, "prefix" if how == "prefix" else None)):
        kit.load_adapter(start, path)
        assert torch.equal(start(tokens)[0], model(tokens)[0])
    kit.save_adapter(trained(model), path)  # in the place of the old one
    kit.load_adapter(start, path)
    assert torch.equal(start(tokens)[0], model(tokens)[0])


@pytest.mark.untyped
def test_a_file_that_does_not_fit_leaves_the_model_as_it_was(kit, tmp_path):
    path = tmp_path / "mine.safetensors"
    thin = decoder(kit)
    kit.add_lora(thin, 2, where=["*.q_proj", "*.k_proj"])  # keys are wider in the other model
    for model in (adapted(kit, "lora"), adapted(kit, "bottleneck"), thin):
        kit.save_adapter(trained(model), path)
        wide = decoder(kit, "gpt2", n_layers=2 if model is thin else 1)
        before = {name: (x.clone(), type(x)) for name, x in wide.state_dict().items()}
        with pytest.raises(ValueError, match="mine.safetensors does not fit"):
            kit.load_adapter(wide, path)
        assert set(before) == set(wide.state_dict())
        assert kit.count_trained(wide).trained == kit.count_trained(wide).total
    for how, other in (("lora", "bottleneck"), ("lora", "dora"), ("bottleneck", "prefix")):
        kit.save_adapter(adapted(kit, how), path)
        with pytest.raises(ValueError, match="mine.safetensors holds .* and the model has"):
            kit.load_adapter(adapted(kit, other), path)
    whole = path.read_bytes()
    for content in (whole[:-5], b"", whole.replace(b'\\"format\\": 1', b'\\"format\\": 7'),
                    whole.replace(b"tfbook.practice", b"tfbook.nothings")):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(ValueError, match="mine.safetensors"):
            kit.load_adapter(adapted(kit, None), path)
    with pytest.raises(FileNotFoundError):
        kit.load_adapter(adapted(kit, None), tmp_path / "none")


@pytest.mark.untyped
def test_a_file_that_cannot_be_written_is_as_it_was(kit, tmp_path, monkeypatch):
    path = tmp_path / "mine.safetensors"
    path.write_bytes(b"mine")
    module = sys.modules[kit.save_adapter.__module__]

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(module.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        kit.save_adapter(adapted(kit, "lora"), path)
    assert path.read_bytes() == b"mine" and len(list(tmp_path.iterdir())) == 1


# a reference


@pytest.mark.parametrize("dora", [False, True])
def test_peft_computes_the_same(kit, dora):
    """LoRA and DoRA of the Hugging Face library on the same layers with the same numbers."""
    import peft

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.Linear(11, 5, bias=False)).double()
    ours = copy.deepcopy(plain)
    config = peft.LoraConfig(r=3, lora_alpha=4, target_modules=["0", "2"], use_dora=dora)
    theirs = peft.get_peft_model(plain, config)
    kit.add_lora(ours, 3, alpha=4.0, where=["0", "2"], dora=dora)
    trained(ours)
    layers = theirs.base_model.model
    with torch.no_grad():
        for name, own in kit.lora_layers(ours).items():
            layer = layers[int(name)]
            assert torch.equal(layer.base_layer.weight, own.base.weight)
            layer.lora_A["default"].weight.copy_(own.lora_a)
            layer.lora_B["default"].weight.copy_(own.lora_b)
            if dora:
                layer.lora_magnitude_vector["default"].weight.copy_(own.magnitude)
    x = normal(4, 7, seed=2)
    close(ours(x), theirs(x))
    for model in (ours, theirs):
        model(x).square().sum().backward()
    for name, own in kit.lora_layers(ours).items():
        layer = layers[int(name)]
        close(own.lora_a.grad, layer.lora_A["default"].weight.grad)
        close(own.lora_b.grad, layer.lora_B["default"].weight.grad)
        if dora:
            close(own.magnitude.grad, layer.lora_magnitude_vector["default"].weight.grad)
    merged = theirs.merge_and_unload()
    kit.bake_lora(ours)
    close(ours[0].weight, merged[0].weight.detach())


@pytest.mark.untyped
def test_what_does_not_fit_is_refused_in_words(kit):
    model = decoder(kit)
    for make, error, words in (
        (lambda: kit.add_lora(model, 2, where=["*.nothing"]), ValueError, "no name fits the patt"),
        (lambda: kit.add_lora(model, 2, where=[]), ValueError, "at least one pattern"),
        (lambda: kit.add_lora(model, 2, where="*_proj"), TypeError, "patterns must be a list"),
        (lambda: kit.add_lora(model, 13), ValueError, "rank must be from 1 to"),
        (lambda: kit.add_lora(model, 0), ValueError, "rank must be from 1"),
        (lambda: kit.add_lora(model, 2, alpha=0.0), ValueError, "alpha must be"),
        (lambda: kit.LoraLinear(nn.GELU(), 2), TypeError, "base must have in_features"),
        (lambda: kit.merge_lora(model), ValueError, "must have adapters"),
        (lambda: kit.bake_lora(model), ValueError, "must have adapters"),
        (lambda: kit.adapter_tensors(model), ValueError, "must have adapters"),
        (lambda: kit.Prefix(model, 0), ValueError, "length must be from 1"),
        (lambda: kit.Prefix(nn.Linear(3, 3), 2), TypeError, "must be a DecoderOnly"),
        (lambda: kit.layer_rates(nn.Linear(3, 3), 0.1), ValueError, "layers named blocks"),
        (lambda: kit.freeze(model, "zz"), ValueError, "no name fits"),
        (lambda: kit.dense_weight(kit.Bottleneck(nn.Linear(3, 3), 2)), TypeError, "dense"),
    ):
        with pytest.raises(error, match=words):
            make()
    assert kit.count_trained(model).trained == kit.count_trained(model).total
    kit.add_lora(model, 2)
    with pytest.raises(ValueError, match="no LoRA yet"):
        kit.add_lora(model, 2)


def test_a_rank_larger_than_one_layer_changes_none(kit):
    model = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 2))
    with pytest.raises(ValueError, match="rank"):
        kit.add_lora(model, 3, where=["*"])
    assert not kit.lora_layers(model)


def test_an_adapter_of_a_preset_and_a_tokenizer_writes(kit):
    config = preset("smollm2-135m", vocab_size=9, d_model=24, n_layers=2, n_heads=3, n_kv_heads=3,
                    d_ff=32)  # fmt: skip
    model = build(config).eval()
    kit.add_lora(model, 2)
    found = Pretrained("tiny", model, char_tokenizer("abcdefghi"), config)
    assert len(kit.generation.generate(found, "abc", max_new_tokens=4).tokens[0]) == 4


CHECKS = checks(globals())
