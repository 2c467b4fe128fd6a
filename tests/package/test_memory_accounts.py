"""What a model says of memory, compared with what PyTorch keeps and what its products touch.

What is kept is measured: every tensor that a pass hands to autograd, each storage once, less those
that a second pass hands over too (weights, tokens, rotary tables), for they are there anyway.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tfbook.blocks import FEED_FORWARDS
from tfbook.models import (
    FFN,
    PRESETS,
    Attention,
    Classes,
    Layer,
    LinearBias,
    MaskedToken,
    NextToken,
    Norm,
    Part,
    Rotary,
    Shaw,
    Spec,
    T5Buckets,
    TransformerConfig,
    TransformerXL,
    build,
    fold,
    preset,
)

V, D, H, L = 13, 24, 4, 3
SMALL = {"d_model": D, "n_heads": H, "n_layers": L, "d_ff": 40}
WORDS = SMALL | {"vocab_size": V}
FAMILIES = {
    "2017": preset("transformer-base", **WORDS),
    "gpt2": preset("gpt2", **WORDS),
    "llama": preset("smollm2-135m", **WORDS | {"n_heads": 6, "n_kv_heads": 2}),
    "bert": preset("bert-base", head=MaskedToken(), pooler=False, **WORDS),
    "classes": preset("bert-base", head=Classes(3), **WORDS),
    "t5": preset("t5-small", **WORDS),
    "vit": preset("vit-b-16", image_size=8, patch_size=2, n_channels=1, **SMALL),
}
CASES = [
    (name, attend, rate)
    for name in FAMILIES
    for attend in ("reference", "sdpa")
    for rate in (0.0, 0.1)
    if (name, attend, rate) != ("t5", "sdpa", 0.0)  # a bias makes SDPA form its weights, see below
]
PLAIN = TransformerConfig(V, D, decoder=[Layer(Attention(H), FFN(40))] * 2, head=NextToken())


def rates(config, rate):
    return config.replace(dropout=rate, attention_dropout=rate, ffn_dropout=rate)


def read(config, n, batch, m=None):
    """Return what a model reads."""
    if config.vocab_size is None:
        size, channels = config.embedding.image_size, config.embedding.n_channels
        return (torch.zeros(batch, channels, size, size),)
    lengths = (m, n) if config.kind == "encoder-decoder" else (n,)
    return tuple(torch.zeros(batch, length, dtype=torch.long) for length in lengths)


def kept(config, n, batch, m=None):
    """Measure the bytes that a pass of a model in training keeps."""
    model, inputs = build(config).train(), read(config, n, batch, m)

    def handed_over():
        tensors = []
        with saved_tensors_hooks(lambda x: tensors.append(x) or x, lambda x: x):
            out = model(*inputs)
        return out, tensors, {x.untyped_storage().data_ptr(): x for x in tensors}

    handed_over()  # tables are made
    first, second = handed_over(), handed_over()  # both alive, so that no address is used twice
    own = second[2].keys() - first[2].keys()
    return sum(second[2][each].untyped_storage().nbytes() for each in own)


class Touched(TorchDispatchMode):
    """Add up the bytes of the inputs and outputs of some operations."""

    PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "dot")

    def __init__(self, names=PRODUCTS, outputs=None):
        super().__init__()
        self.names, self.outputs, self.bytes = names, outputs, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in self.names:
            results = tree_leaves(found)[: self.outputs]
            tensors = [x for x in (*tree_leaves(args), *results) if isinstance(x, torch.Tensor)]
            self.bytes += sum(x.numel() * x.element_size() for x in tensors)
        return found


@pytest.mark.parametrize(("name", "attend", "rate"), CASES)
def test_what_is_saved_is_what_autograd_keeps_to_the_byte(name, attend, rate):
    config = rates(FAMILIES[name].replace(attend=attend), rate)
    for batch in (1, 3):
        for n, m in ((17, 17),) if name == "vit" else ((5, 7), (12, 4)):
            length = None if name == "vit" else n
            assert config.saved_bytes(length, batch, m=m) == kept(config, n, batch, m)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_every_choice_of_a_layer_is_counted_to_the_byte(rate):
    plain = PLAIN.replace(attend="reference")
    changes = [{"place": x, "norm": norm, "parallel": parallel}
               for x in ("pre", "post", "inside", "both", "none")
               for norm in (Norm(), Norm("rms")) for parallel in (False, True)]  # fmt: skip
    changes += [{"parallel": True, "one_norm": True}, {"d_head": 4, "d_value": 5}]
    changes += [{"qk_norm": Norm("rms"), "n_kv_heads": 2}, {"window": 3}, {"final_norm": False}]
    changes += [{"qk_norm": Norm(), "qk_norm_whole": True}, {"embedding_norm": Norm("rms")}]
    changes += [{"position": T5Buckets(4, max_distance=4)}, {"position": LinearBias()}]
    configs = [plain.replace(**change) for change in changes]
    for kind in FEED_FORWARDS:
        configs.append(plain.replace(decoder=[Layer(Attention(H), FFN(40, kind))]))
        head = MaskedToken(kind)
        configs.append(FAMILIES["bert"].replace(head=head, n_layers=1, attend="reference"))
    configs.append(PLAIN.replace(window=3))
    for config in configs:
        config = rates(config, rate)
        assert config.saved_bytes(5, 2) == kept(config, 5, 2), config
    assert plain.saved_bytes(1) == kept(plain, 1, 1)


def test_explicit_attention_keeps_two_numbers_for_each_pair_of_tokens():
    sdpa = PLAIN.replace(n_layers=1, dropout=0.0)
    explicit = sdpa.replace(attend="reference")
    for batch, n in ((1, 6), (1, 12), (3, 12)):
        lines = batch * H * n
        # Weights before and after empty lines are cleared, which lines these are, what is hidden;
        # the log-sum-exp is needed no more.
        more = 2 * 4 * lines * n + lines + n * n - 4 * lines
        assert kept(explicit, n, batch) - kept(sdpa, n, batch) == more
        assert explicit.saved_bytes(n, batch) - sdpa.saved_bytes(n, batch) == more
        for stores, same in ((True, explicit), (False, sdpa)):  # whatever the function does
            for config in (explicit, sdpa):
                said = config.saved_bytes(n, batch, stores_weights=stores)
                assert said == same.saved_bytes(n, batch)


def test_dropout_of_weights_makes_sdpa_store_them():
    config = PLAIN.replace(attention_dropout=0.1)
    assert config.saved_bytes(5) == config.saved_bytes(5, stores_weights=True)
    assert config.saved_bytes(5) == kept(config, 5, 1)


def test_a_layer_of_gpt2_keeps_what_the_formula_says():
    """34 s b h + 5 a s² b bytes, [korthikanti2022reducing]: half precision, masks of one byte."""
    s, b, a, h = 50, 3, 12, 768
    one, two = (preset("gpt2", n_layers=n_layers) for n_layers in (1, 2))
    half = {"bytes_per_number": 2, "mask_bytes": 1}
    layer = two.saved_bytes(s, b, **half) - one.saved_bytes(s, b, **half)
    spread = 2 * 2 * 2 * s * b  # μ and 1/σ of two norms
    hidden = s * s + a * s * b  # what is hidden, and which lines are empty
    assert layer - spread - hidden == 34 * s * b * h + 5 * a * s**2 * b


def test_what_is_not_counted_is_what_the_docstring_says():
    n, batch, layers = 5, 2, 2
    found = 4 * batch * n * D * layers  # what the heads found, once more
    changes = [{"attend": "rows"}, {"attend": "online"}, {"qk_norm": Norm("rms")}]
    changes += [{"position": Rotary(layout="half")}, {"position": Rotary(share=0.7)}]
    for change in changes:
        config = PLAIN.replace(**change)
        assert kept(config, n, batch) - config.saved_bytes(n, batch) == found, change
    for position in (T5Buckets(4, max_distance=4), LinearBias()):
        config = PLAIN.replace(position=position)
        most = config.saved_bytes(n, batch, stores_weights=True)
        assert config.saved_bytes(n, batch) < kept(config, n, batch) < most
    for position in (Shaw(3), TransformerXL()):
        config = PLAIN.replace(position=position, attend="reference")
        assert config.saved_bytes(n, batch) < kept(config, n, batch)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_products_move_is_what_they_read_and_write(name):
    config = rates(FAMILIES[name].replace(attend="reference"), 0.0)
    model, n, m = build(config).eval(), None if name == "vit" else 5, 7
    inputs = read(config, n, 2, m)
    with Touched() as touched, torch.no_grad():
        model(*inputs)
    parts = config.parts(n, 2, m=m)
    assert sum(part.moved for part in parts if part.flops) == touched.bytes
    norm = {"layer": "native_layer_norm", "rms": None}[config.layers[0].norm.kind]
    if norm:
        with Touched([norm], outputs=1) as touched, torch.no_grad():
            model(*inputs)
        assert sum(part.moved for part in parts if "norm" in part.name) == touched.bytes


@pytest.mark.parametrize("name", ["gpt2", "llama", "2017"])
def test_a_continued_text_reads_the_keys_and_values_of_its_past(name):
    config = rates(FAMILIES[name].replace(attend="reference"), 0.0)
    model, past, n, m = build(config).eval(), 6, 2, 7
    tokens = torch.zeros(3, past, dtype=torch.long)
    state = model.remember(tokens.new_zeros(3, m)) if name == "2017" else None
    _, state = model.decode(tokens, state)
    with Touched() as touched, torch.no_grad():
        model.decode(tokens[:, :n], state)
    parts = config.parts(n, 3, m=m, past=past)
    assert sum(part.moved for part in parts if part.flops) == touched.bytes
    done = [part for part in parts if part.name.startswith("encoder")]
    done += [part for part in parts if part.name.endswith((".cross.k_proj", ".cross.v_proj"))]
    assert not any(part.moved for part in done)
    assert bool(done) == (name == "2017")


def test_attention_that_stores_no_weights_moves_q_k_v_and_its_result():
    config = PLAIN.replace(n_kv_heads=2)
    model = build(config).eval()
    name = "_scaled_dot_product_flash_attention_for_cpu"
    with Touched([name], outputs=1) as touched, torch.no_grad():
        model(*read(config, 9, 3))
    parts = [part for part in config.parts(9, 3) if part.name.endswith((".scores", ".z"))]
    assert sum(part.moved for part in parts) == touched.bytes
    explicit = config.replace(attend="reference")
    more = explicit.moved_bytes(9, 3) - config.moved_bytes(9, 3)
    assert more == 2 * (2 * 4 * 3 * H * 9 * 9)  # written and read again, in two layers
    assert config.moved_bytes(9, 3, stores_weights=True) == explicit.moved_bytes(9, 3)


def test_embeddings_move_the_rows_that_are_looked_up():
    n, batch = 5, 2
    parts = {part.name: part for part in FAMILIES["gpt2"].parts(n, batch)}
    assert parts["embed"].moved == 4 * 2 * batch * n * D  # read, and written elsewhere
    assert parts["position"].moved == 4 * (2 * batch * n * D + n * D)


def test_intensity_is_work_for_each_byte():
    # d FLOPs a row beside 2/d of it: with few rows the weights decide, with many their size does.
    config = preset("gpt2")
    parts = {part.name: part for part in config.parts(1)}
    assert 0.49 < parts["stack.blocks.0.ffn.up_proj"].intensity < 0.5  # 2 FLOPs for 4 bytes
    assert config.flops(1) / config.moved_bytes(1) < 0.5
    assert config.flops(1) / config.moved_bytes(1, bytes_per_number=2) < 1.0
    assert config.flops(1024) / config.moved_bytes(1024) > 20
    assert parts["embed"].intensity == 0.0
    assert Part("empty", (1,), 0, 0, 4).intensity == 0.0


def test_bytes_follow_the_size_of_a_number():
    config = FAMILIES["2017"]
    assert 2 * config.moved_bytes(5, 3, m=7, bytes_per_number=2) == config.moved_bytes(5, 3, m=7)
    wide, narrow = (config.saved_bytes(5, mask_bytes=each) for each in (None, 1))
    assert config.saved_bytes(5, mask_bytes=4) == wide > narrow
    assert rates(config, 0.0).saved_bytes(5, mask_bytes=1) == rates(config, 0.0).saved_bytes(5)


def test_equal_blocks_are_equal_in_memory_too():
    for name, config in FAMILIES.items():
        n = None if name == "vit" else 5
        parts = config.parts(n, 2)
        for each in ("moved", "saved"):
            folded = sum(times * getattr(part, each) for part, times in fold(parts))
            assert folded == sum(getattr(part, each) for part in parts)
        assert len(fold(parts)) < len(parts)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_counted_at_their_width(name):
    config = preset(name, attend="reference", n_layers=2)
    counted = config.replace(position=None) if "t5" in name else config  # the bias is no product
    with torch.device("meta"):
        model, inputs = build(counted).eval(), read(config, 16, 2, 12)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(*inputs)
    n = None if name == "vit-b-16" else 16
    assert config.flops(n, 2, m=12) == counter.get_total_flops()
    assert all(min(part.moved, part.saved) >= 0 for part in config.parts(n, 2, m=12))


class Map(nn.Module):
    """A linear map where others mix."""

    def __init__(self, d_model):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x, state=None, *, mask=None):
        return self.map(x), None


@dataclass(frozen=True)
class MapSpec(Spec):
    """What a config holds of it."""

    def build(self, site):
        return Map(site.d_model)

    def price(self, name, run):
        yield run.linear(f"{name}.map", run.d_model, run.d_model)


def test_a_part_from_outside_is_counted_by_what_its_rows_say():
    for parallel in (False, True):
        layer = Layer(MapSpec(), FFN(40), parallel=parallel)
        config = TransformerConfig(V, D, decoder=[layer, layer])
        assert config.saved_bytes(5, 2) == kept(config, 5, 2)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.saved_bytes(), ValueError, "n is needed"),
        (lambda c: c.saved_bytes(0), ValueError, "n must be at least 1"),
        (lambda c: c.moved_bytes(3, True), TypeError, "batch"),
        (lambda c: c.moved_bytes(3, past=-1), ValueError, "past must be at least 0"),
        (lambda c: c.saved_bytes(3, mask_bytes=0), ValueError, "mask_bytes must be at least 1"),
        (lambda c: c.saved_bytes(3, mask_bytes=1.5), TypeError, "mask_bytes"),
        (lambda c: c.saved_bytes(3, stores_weights=1), TypeError, "stores_weights"),
        (lambda c: c.moved_bytes(3, bytes_per_number=0), ValueError, "bytes_per_number"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(PLAIN)
