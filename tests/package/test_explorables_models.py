"""The figures of sizes, caches and next tokens: their arithmetic against the package's own."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tfbook import costs, generation
from tfbook.models import TransformerConfig, preset
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _cache, _sampling, _shapes, _sizes

PHASES = (Phase.explicit, Phase.generate)  # a failing case is readable as it is drawn
NAMES = tuple(_sizes.PRESETS)
SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff", "vocab_size")
ENDS = {
    "embed": "embed", "target_embed": "embed", "position": "position", "segments": "segments",
    "target_position": "position", "embed_norm": "embedding_norm", "mixer_residual.norm": "norm_1",
    "target_embed_norm": "embedding_norm", "cross_residual.norm": "norm_x", "head": "head",
    "ffn_residual.norm": "norm_2", "gate_proj": "up", "up_proj": "up", "down_proj": "down",
    "final_norm": "final_norm", "pooler": "pooler", "q_proj": "qkv", "k_proj": "qkv",
    "v_proj": "qkv", "scores": "scores", "z": "mix", "out_proj": "out",
}  # fmt: skip


def counted(config: TransformerConfig, n: int, batch: int) -> dict:
    """Parameters, FLOPs and bytes of the package's parts, added up under the figure's names."""
    totals = {}
    for part in config.parts(n, batch):
        end = next(e for e in sorted(ENDS, key=len, reverse=True) if part.name.endswith(e))
        key = "cross_" * (".cross." in part.name) + ENDS[end]
        sums = totals.setdefault((key, part.name.startswith("decoder.")), [0, 0, 0])
        for i, number in enumerate((part.parameters, part.flops, part.bytes)):
            sums[i] += number
    return totals


def traced(figure) -> dict:
    """The same of the figure."""
    two = figure.sizes["kind"] == "encoder-decoder"
    entrance = {"embed", "position", "embedding_norm"}  # the package names no stack there
    totals = {}
    for part in figure.parts:
        second = two and part["stack"] == "decoder" and part["key"] not in entrance
        sums = totals.setdefault((part["key"], second), [0, 0, 0])
        for i, number in enumerate((part["parameters"], part["flops"], part["bytes"])):
            sums[i] += number
    return totals


def agree(figure, config, n, batch):
    found, expected = traced(figure), counted(config, n, batch)
    if config.position == "rotary":
        assert found.pop(("position", False))[:2] == [0, 0]  # no module of its own in the package
    assert found == expected
    assert figure.parameters == config.count_parameters()
    assert figure.flops == config.flops(n, batch)
    assert figure.activation_bytes == largest(config, n, batch)
    if config.kind == "encoder":
        assert figure.cache_bytes == 0
    else:
        m = n if config.kind == "encoder-decoder" else 0
        assert figure.cache_bytes == config.kv_cache_bytes(n, batch, 4, m=m)


def largest(config, n, batch):
    """Bytes of the largest output, where what the figure shows whole is added up again."""
    outputs = Counter()
    for part in config.parts(n, batch):
        place, _, end = part.name.rpartition(".")
        outputs[place, ENDS.get(end, end)] += part.bytes
    return max(outputs.values())


# ---------------------------------------------------------------------- shape_tracer


@pytest.mark.parametrize(("n", "batch"), [(1, 1), (7, 3), (512, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_every_preset_equals_the_packages(name, n, batch):
    agree(explorables.shape_tracer(name, length=n, batch=batch), preset(name), n, batch)


@settings(max_examples=30, deadline=None, phases=PHASES)
@given(st.sampled_from(NAMES), st.data())
def test_parts_of_other_sizes_equal_the_packages(name, data):
    def drawn(low, high):
        return data.draw(st.integers(low, high))

    heads = drawn(1, 13)
    shared = data.draw(st.sampled_from([g for g in range(1, heads + 1) if heads % g == 0]))
    changes = {
        "n_heads": heads, "n_kv_heads": shared, "d_model": 2 * heads * drawn(4, 11),
        "n_layers": drawn(1, 5), "d_ff": drawn(1, 101), "vocab_size": drawn(2, 97),
    }  # fmt: skip
    n, batch, tied = drawn(1, 61), drawn(1, 5), data.draw(st.booleans())
    figure = explorables.shape_tracer(name, length=n, batch=batch, tied=tied, **changes)
    config = preset(name, tie_embeddings=tied, **changes)
    agree(figure, config, n, batch)


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("float16", 2), ("int8", 1)])
def test_bytes_follow_the_precision(precision, size):
    figure = explorables.shape_tracer(precision=precision, length=100)
    assert figure.weight_bytes == size * 134_515_008
    assert figure.cache_bytes == size * 2 * 30 * 3 * 64 * 100
    first = figure.parts[0]
    assert first["key"] == "embed" and first["bytes"] == size * 100 * 576


def test_what_is_not_changed_comes_from_the_preset():
    figure = explorables.shape_tracer("gpt2", n_layers=3)
    figure.preset = "llama-7b"
    assert figure.sizes["n_layers"] == 3 and figure.sizes["d_model"] == 4096
    figure.n_layers = None
    assert figure.parameters == preset("llama-7b").count_parameters()


@given(st.integers(8, 700), st.integers(1, 128), st.integers(1, 128))
def test_heads_that_do_not_fit_become_the_next_fewer_that_do(d_model, heads, shared):
    now = {"preset": "llama-7b", "length": 9, "batch": 1, "d_model": d_model, "n_heads": heads}
    model = _sizes.settled(now | {"n_kv_heads": shared})
    fits = [h for h in range(1, heads + 1) if d_model % h == 0 and d_model // h % 2 == 0]
    assert model["n_heads"] == max(fits, default=1)
    groups = [g for g in range(1, shared + 1) if model["n_heads"] % g == 0]
    assert model["n_kv_heads"] == max(groups)


def test_length_ends_with_the_positions():
    figure = explorables.shape_tracer("gpt3-175b", length=2048)
    figure.preset = "bert-base"
    assert figure.sizes["length"] == 512
    assert figure.flops == preset("bert-base").flops(512)


def test_sliders_stop_at_the_sizes_of_every_preset():
    for name, sizes in _sizes.PRESETS.items():
        for key in ("d_model", "n_layers", "d_ff", "vocab_size"):
            assert sizes[key] in _shapes.STOPS[key], (name, key)
        if name in _cache.DECODERS:
            assert sizes["n_layers"] in _cache.STOPS["n_layers"]
            assert sizes["n_heads"] in _cache.STOPS["n_heads"]
            assert sizes["d_model"] // sizes["n_heads"] in _cache.STOPS["d_head"]
    for stops in (*_shapes.STOPS.values(), *_cache.STOPS.values()):
        assert stops == sorted(set(stops))
    assert _shapes.STOPS["length"][-1] == _sizes.LONGEST
    assert _cache.STOPS["length"][-1] == _cache.LONGEST


# ---------------------------------------------------------------------- cache_growth


def model_of(figure) -> TransformerConfig:
    """The figure's model as a config of the package."""
    sizes = _cache._model(figure._now())
    return preset(figure.preset, **{key: sizes[key] for key in SIZES})


def grown(figure):
    config, t, batch = model_of(figure), figure.length, figure.batch
    spared = 2 * batch * config.d_model * config.vocab_size  # the scores of one position
    with_cache = [config.flops(1, batch, past=s - 1) for s in range(1, t + 1)]
    without = [config.flops(s, batch) - (s - 1) * spared for s in range(1, t + 1)]
    assert figure.step_cached == with_cache[-1]
    assert figure.step_uncached == without[-1]
    assert figure.total_cached == sum(with_cache)
    assert figure.total_uncached == sum(without)
    assert figure.parameters == config.count_parameters()
    size = _sizes.BYTES[figure.precision]
    assert figure.weight_bytes == size * config.count_parameters()
    n_heads, n_kv_heads, d_head = config.heads

    def kept(heads, length):
        return costs.kv_cache_bytes(config.n_layers, heads, d_head, length, batch, size)

    assert figure.cache_bytes == kept(n_kv_heads, t)
    assert figure.multi_head_bytes == kept(n_heads, t)
    assert figure.multi_query_bytes == kept(1, t)
    assert figure.window_bytes == kept(n_kv_heads, min(t, figure.window))
    weight = figure.break_even * kept(n_kv_heads, 1)
    assert weight == pytest.approx(figure.weight_bytes, rel=1e-12)


@pytest.mark.parametrize("name", _cache.DECODERS)
def test_growth_of_every_preset_equals_the_packages(name):
    grown(explorables.cache_growth(name, length=11, batch=2, window=16))


@settings(max_examples=15, deadline=None, phases=PHASES)
@given(st.sampled_from(_cache.DECODERS), st.data())
def test_growth_of_other_sizes_equals_the_packages(name, data):
    heads = data.draw(st.integers(1, 13))
    figure = explorables.cache_growth(
        name,
        n_heads=heads,
        n_kv_heads=data.draw(st.sampled_from([g for g in range(1, heads + 1) if heads % g == 0])),
        d_head=2 * data.draw(st.integers(1, 40)),
        n_layers=data.draw(st.integers(1, 5)),
        length=data.draw(st.integers(1, 29)),
        batch=data.draw(st.integers(1, 4)),
        precision=data.draw(st.sampled_from(list(_sizes.BYTES))),
        window=16,
    )
    grown(figure)


def test_a_window_stops_growing_and_a_cache_does_not():
    found = [explorables.cache_growth(length=t, window=64) for t in (32, 64, 65, 640)]
    assert [f.window_bytes for f in found[1:]] == [found[1].window_bytes] * 3
    assert found[0].window_bytes == found[0].cache_bytes
    assert found[3].cache_bytes == 10 * found[1].cache_bytes


def test_wider_heads_widen_the_whole_model_in_proportion():
    now = explorables.cache_growth("llama-7b", d_head=64)._now()
    assert _cache._model(now)["d_model"] == 2048 and _cache._model(now)["d_ff"] == 5504


# ---------------------------------------------------------------------- next_token_sampling

CUTS = st.fixed_dictionaries({
    "temperature": st.sampled_from([0.1, 0.7, 1.0, 1.3, 5.0]),
    "top_k": st.sampled_from([0, 1, 3, 20]),
    "top_p": st.sampled_from([1.0, 0.95, 0.6, 0.05]),
    "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
})  # fmt: skip


def some_logits(size=5003, seed=5) -> torch.Tensor:
    """Logits (V,) with a head and a long tail, as those of a language model, in random order."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.arange(1, size + 1).double()
    noise = 0.3 * torch.randn(size, generator=generator).double()
    return (noise - 1.4 * ranks.log())[torch.randperm(size, generator=generator)]


LOGITS = some_logits()
PACKED = explorables.pack_next_tokens("so", LOGITS, lambda i: f" {i}", shown=20)


def spread(prompt) -> torch.Tensor:
    """Every token's log-probability as the figure holds it, likeliest first, (V,)."""
    entries = _sampling.entries_of(prompt)
    return torch.cat([torch.full((c,), x, dtype=torch.double) for c, x in entries])


def warped(logits, temperature, top_k, top_p, min_p):
    """The package's logits after the same settings."""
    return generation.warp(
        logits,
        temperature=temperature,
        top_k=top_k or None,
        top_p=top_p if top_p < 1 else None,
        min_p=min_p or None,
    )


@settings(max_examples=30, deadline=None, phases=PHASES)
@given(CUTS)
@example({"temperature": 1.3, "top_k": 0, "top_p": 0.95, "min_p": 0.0})  # the cut is in a group
def test_what_is_kept_equals_the_packages(cuts):
    figure = explorables.next_token_sampling([PACKED], **cuts)
    before = spread(PACKED)
    logits = warped(before, **cuts)
    p = logits.softmax(0)
    assert figure.probabilities == pytest.approx(p[:20].tolist(), abs=1e-12)
    assert figure.kept == (p > 0).sum().item()
    assert figure.entropy == pytest.approx(torch.special.entr(p).sum().item(), abs=1e-9)
    mass = (before / cuts["temperature"]).softmax(0)[p > 0].sum().item()
    assert figure.mass == pytest.approx(mass, abs=1e-9)
    entropy = torch.special.entr(before.softmax(0)).sum().item()
    assert figure.entropy_before == pytest.approx(entropy, abs=1e-9)


@settings(max_examples=30, deadline=None, phases=PHASES)
@given(CUTS)
def test_groups_stand_for_the_whole_vocabulary(cuts):
    figure = explorables.next_token_sampling([PACKED], **cuts)
    p = warped(LOGITS.sort(descending=True).values, **cuts).softmax(0)
    assert figure.probabilities == pytest.approx(p[:20].tolist(), abs=1e-3)
    assert figure.entropy == pytest.approx(torch.special.entr(p).sum().item(), abs=0.02)
    assert figure.kept == pytest.approx((p > 0).sum().item(), rel=0.06, abs=2)


def test_a_packed_distribution_is_that_of_the_logits():
    order = LOGITS.argsort(descending=True)
    logs = LOGITS.log_softmax(0)[order]
    assert PACKED["tokens"] == [f" {i}" for i in order[:20].tolist()]
    assert PACKED["log_probs"] == pytest.approx(logs[:20].tolist(), abs=1e-4)
    assert sum(count for count, _ in PACKED["rest"]) == 5003 - 20
    start = 20
    for count, log_prob in PACKED["rest"]:
        mass = logs[start : start + count].logsumexp(0).item()
        assert log_prob + math.log(count) == pytest.approx(mass, abs=1e-4)
        start += count
    assert len(PACKED["rest"]) < 60
    again = explorables.pack_next_tokens(
        "so", LOGITS + 100, [f" {i}" for i in range(5003)], shown=20
    )
    assert again == PACKED


def test_what_cannot_come_is_left_out():
    logits = torch.tensor([0.0, -math.inf, 1.0, -math.inf, 0.5]).double()
    packed = explorables.pack_next_tokens("x", logits, "abcde", shown=2)
    assert packed["tokens"] == ["c", "e"] and packed["rest"] == [[1, packed["rest"][0][1]]]
    kept = explorables.next_token_sampling([packed])
    assert kept.kept == 3
    assert kept.probabilities == pytest.approx(logits.softmax(0)[[2, 4]].tolist(), abs=1e-4)


@settings(max_examples=20, deadline=None, phases=PHASES)
@given(CUTS, st.integers(0, 9999), st.integers(0, 80))
def test_draws_equal_the_packages(cuts, seed, draws):
    figure = explorables.next_token_sampling([PACKED], seed=seed, draws=draws, **cuts)
    logits = warped(spread(PACKED), **cuts)
    uniform = torch.tensor(_sampling.uniforms(seed, draws), dtype=torch.double)
    ids = generation.draw(logits.expand(draws, -1), uniform).tolist()
    names = [PACKED["tokens"][i] if i < 20 else "…" for i in ids]
    assert figure.tally == dict(Counter(names))
    assert figure.drawn == (names[-1] if names else None)


def test_tally_approaches_the_probabilities():
    figure = explorables.next_token_sampling([PACKED], top_k=5, temperature=2.0, draws=10_000)
    p = torch.tensor(figure.probabilities[:5]).double()
    seen = torch.tensor([figure.tally[t] for t in PACKED["tokens"][:5]]).double()
    chi_square = ((seen - 10_000 * p) ** 2 / (10_000 * p)).sum().item()
    assert seen.sum() == 10_000 and chi_square < 18.5  # 0.1% of the time above, 4 degrees


def test_numbers_look_uniform_and_differ_between_seeds():
    many = torch.tensor([_sampling.uniforms(seed, 2000) for seed in (0, 1, 9999)]).double()
    assert many.min() > 0 and many.max() < 1
    assert (many.mean(1) - 0.5).abs().max() < 4 / math.sqrt(12 * 2000)
    counts = torch.stack([row.histc(10, 0, 1) for row in many])
    assert ((counts - 200) ** 2 / 200).sum(1).max() < 27.9  # 0.1% of the time above, 9 degrees
    assert (torch.corrcoef(many) - torch.eye(3)).abs().max() < 5 / math.sqrt(2000)
    assert _sampling.uniforms(7, 3) == _sampling.uniforms(7, 30)[:3]
