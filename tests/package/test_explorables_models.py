"""The figures of sizes, caches and next tokens: their numbers are those of models that run."""

import math
from bisect import bisect_right
from collections import Counter
from itertools import accumulate

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tfbook.models import TransformerConfig, build, preset
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _cache, _chance, _sampling, _shapes, _sizes

PHASES = (Phase.explicit, Phase.generate)  # a failing case is readable as it is drawn
NAMES = tuple(_sizes.PRESETS)
# The end of a submodule's name, and the part of the figure that it belongs to.
ENDS = {
    "embed": "embed", "target_embed": "embed", "position": "position", "segments": "segments",
    "target_position": "position", "embed_norm": "embedding_norm", "mixer_residual.norm": "norm_1",
    "target_embed_norm": "embedding_norm", "cross_residual.norm": "norm_x", "head": "head",
    "ffn_residual.norm": "norm_2", "gate_proj": "up", "up_proj": "up", "down_proj": "down",
    "final_norm": "final_norm", "pooler": "pooler", "q_proj": "qkv", "k_proj": "qkv",
    "v_proj": "qkv", "scores": "scores", "z": "mix", "out_proj": "out",
}  # fmt: skip


def key_of(name: str) -> tuple[str, bool] | None:
    """The figure's key of a submodule, and whether it is in the second of two stacks."""
    ends = [e for e in ENDS if name == e or name.endswith("." + e)]
    if not ends:
        return None
    key = "cross_" * (".cross." in name) + ENDS[max(ends, key=len)]
    return key, name.startswith("decoder.")


def ran(config: TransformerConfig, n: int, batch: int) -> tuple[Counter, Counter, Counter, int]:
    """Build the model and run it: parameters, numbers and calls of its parts, and its FLOPs."""
    model = build(config).eval()
    parameters, numbers, calls = Counter(), Counter(), Counter()
    for name, parameter in model.named_parameters():
        owner = key_of(name.rpartition(".")[0]) or key_of(name)
        parameters[owner] += parameter.numel()

    def saw(key):
        def hook(module, args, out):
            numbers[key] += out.numel()
            calls[key] += 1

        return hook

    for name, module in model.named_modules():
        if key_of(name) and not name.endswith(".scores"):  # formed only where they are looked at
            module.register_forward_hook(saw(key_of(name)))
    tokens = [torch.zeros(batch, n, dtype=torch.long)] * (2 if len(named(model)) > 1 else 1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*tokens)
    return parameters, numbers, calls, counter.get_total_flops()


def named(model) -> set[str]:
    """The stacks of a model."""
    return {name for name, _ in model.named_children()} & {"stack", "encoder", "decoder"}


def traced(figure) -> dict:
    """Parameters, numbers and calls of the figure's parts."""
    two = figure.sizes["kind"] == "encoder-decoder"
    entrance = {"embed", "position", "embedding_norm"}  # the model has no stack there
    totals = {}
    for part in figure.parts:
        second = two and part["stack"] == "decoder" and part["key"] not in entrance
        sums = totals.setdefault((part["key"], second), Counter())
        sums.update({key: part[key] for key in ("parameters", "numbers", "times")})
    return totals


# ---------------------------------------------------------------------- shape_tracer


@settings(max_examples=3, deadline=None, phases=PHASES)
@given(st.data())
@pytest.mark.parametrize("name", NAMES)
def test_every_part_is_that_of_a_model_that_runs(name, data):
    def drawn(low, high):
        return data.draw(st.integers(low, high))

    heads = drawn(1, 5)
    shared = data.draw(st.sampled_from([g for g in range(1, heads + 1) if heads % g == 0]))
    changes = {
        "n_heads": heads, "n_kv_heads": shared, "d_model": 2 * heads * drawn(4, 7),
        "n_layers": drawn(1, 3), "d_ff": drawn(1, 61), "vocab_size": drawn(2, 57),
    }  # fmt: skip
    n, batch, tied = drawn(1, 17), drawn(1, 3), data.draw(st.booleans())
    figure = explorables.shape_tracer(name, length=n, batch=batch, tied=tied, **changes)
    config = preset(name, attend="reference", **changes)
    if hasattr(config.head, "tie_embeddings"):
        config = config.replace(tie_embeddings=tied)
    parameters, numbers, calls, flops = ran(config, n, batch)
    found = traced(figure)
    if figure.data["presets"][name]["position"] == "rotary":
        turns = found.pop(("position", False))  # no module of its own in the package
        assert turns == {"parameters": 0, "numbers": n * figure.sizes["d_head"], "times": 1}
    pooled = found.pop(("pooler", False), None)  # there, but it does not run
    if pooled:
        d = changes["d_model"]
        assert pooled["numbers"] == batch * d and pooled["times"] == 1
        assert pooled["parameters"] == parameters.pop(("pooler", False)) == d * d + d
    assert {key: sums["parameters"] for key, sums in found.items()} == {
        key: parameters[key] for key in found
    }
    assert sum(parameters.values()) == sum(sums["parameters"] for sums in found.values())
    # Not called as modules, or formed only where they are looked at.
    d, stacks = changes["d_model"], 2 if ("norm_x", True) in found else 1
    quiet = {"scores": heads * batch * n * n, "segments": batch * n * d, "position": heads * n * n}
    for key in set(found) - set(numbers):
        part = key[0].removeprefix("cross_")
        calls[key] = {"scores": changes["n_layers"], "segments": 1, "position": stacks}[part]
        numbers[key] = calls[key] * quiet[part]
    assert {key: sums["numbers"] for key, sums in found.items()} == dict(numbers)
    assert figure.flops == flops
    several = {"qkv": 3, "cross_qkv": 3, "up": 1 + figure.data["presets"][name]["gated"]}
    assert {key: sums["times"] * several.get(key[0], 1) for key, sums in found.items()} == calls


# What the released weights hold; of the first one, what its paper's sizes come to by hand.
COUNTS = {
    "transformer-base": 63_082_496,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "minilm-l6": 22_713_216,
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "llama-7b": 6_738_415_616,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_has_as_many_parameters_as_the_released_model(name):
    assert explorables.shape_tracer(name, length=1).parameters == COUNTS[name]


def test_work_and_memory_of_a_known_model_by_hand():
    n, d, f, v = 300, 768, 3072, 50_257  # GPT-2: 12 blocks, 12 heads of 64 numbers
    figure = explorables.shape_tracer("gpt2", length=n, batch=2)
    block = {
        "qkv": 2 * d * 3 * d, "scores": 2 * n * d, "mix": 2 * n * d, "out": 2 * d * d,
        "up": 2 * d * f, "down": 2 * d * f,
    }  # fmt: skip
    parts = {part["key"]: part for part in figure.parts}
    assert {key: parts[key]["flops"] for key in block} == {
        key: 12 * 2 * n * flops for key, flops in block.items()
    }
    assert parts["head"]["flops"] == 2 * 2 * n * d * v
    assert [parts[key]["shape"] for key in ("qkv", "scores", "mix", "out", "up", "head")] == [
        [2, 12, n, 64], [2, 12, n, n], [2, n, d], [2, n, d], [2, n, f], [2, n, v],
    ]  # fmt: skip
    assert list(parts) == [
        "embed", "position", "norm_1", "qkv", "scores", "mix", "out", "norm_2", "up", "down",
        "final_norm", "head",
    ]  # fmt: skip
    assert figure.activation_bytes == 4 * 2 * n * v
    assert figure.cache_bytes == 4 * 2 * 12 * n * d * 2  # keys and values


def test_a_cache_holds_keys_and_values_of_both_sides_by_hand():
    sizes = {"length": 50, "batch": 3, "precision": "float16"}
    bytes_ = {name: explorables.shape_tracer(name, **sizes).cache_bytes for name in NAMES}
    one = 2 * 50 * 3 * 2  # keys and values of 50 tokens in 3 sequences, 2 bytes each
    assert bytes_["smollm2-135m"] == one * 30 * 3 * 64
    assert bytes_["gpt2-xl"] == one * 48 * 1600
    assert bytes_["t5-small"] == 2 * one * 6 * 512  # of the decoder's own tokens, and the source's
    assert bytes_["transformer-big"] == 2 * one * 6 * 1024
    assert bytes_["bert-base"] == bytes_["minilm-l6"] == 0


def test_parts_stand_in_the_order_in_which_data_meets_them():
    keys = [part["key"] for part in explorables.shape_tracer("bert-base").parts]
    assert keys == [
        "embed", "position", "segments", "embedding_norm", "qkv", "scores", "mix", "out", "norm_1",
        "up", "down", "norm_2", "pooler",
    ]  # fmt: skip
    stacks = [(p["stack"], p["key"]) for p in explorables.shape_tracer("t5-small").parts]
    block = ["norm_1", "qkv", "scores", "mix", "out"]
    cross = ["norm_x", *(f"cross_{key}" for key in block[1:])]
    end = ["norm_2", "up", "down", "final_norm"]
    assert stacks == [
        *(("encoder", key) for key in ("embed", "position", *block, *end)),
        *(("decoder", key) for key in ("embed", "position", *block, *cross, *end)),
        ("", "head"),
    ]


KNOWN = {
    "transformer-base": (
        "Transformer base (2017)", "encoder-decoder", None, "layer", "post", False, False, False,
        True, "ReLU", "sinusoidal", None, True, True, 0, False, True, 0, 512, 6, 8, 2048, 37_000,
    ),
    "bert-base": (
        "BERT base", "encoder", None, "layer", "post", False, True, False, True, "GELU", "learned",
        512, True, False, 2, True, False, 0, 768, 12, 12, 3072, 30_522,
    ),
    "gpt": (
        "GPT", "decoder", None, "layer", "post", False, False, False, True, "GELU", "learned", 512,
        True, False, 0, False, True, 0, 768, 12, 12, 3072, 40_478,
    ),
    "gpt3-175b": (
        "GPT-3", "decoder", None, "layer", "pre", True, False, False, True, "GELU", "learned",
        2048, True, False, 0, False, True, 0, 12_288, 96, 96, 49_152, 50_257,
    ),
    "t5-base": (
        "T5 base", "encoder-decoder", None, "rms", "pre", True, False, False, False, "ReLU", "t5",
        None, True, True, 0, False, True, 32, 768, 12, 12, 3072, 32_128,
    ),
    "llama-7b": (
        "LLaMA 7B", "decoder", None, "rms", "pre", True, False, True, False, "SiLU", "rotary",
        2048, False, False, 0, False, True, 0, 4096, 32, 32, 11_008, 32_000,
    ),
    "smollm2-135m": (
        "SmolLM2 135M", "decoder", 3, "rms", "pre", True, False, True, False, "SiLU", "rotary",
        8192, True, False, 0, False, True, 0, 576, 30, 9, 1536, 49_152,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_page_gets_what_the_papers_say(name):
    """The browser counts with these by itself, so each of them has to be right."""
    assert tuple(explorables.shape_tracer().data["presets"][name].values()) == KNOWN[name]


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
    assert figure.parameters == COUNTS["llama-7b"]


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
    d = 768
    assert figure.flops == 12 * 512 * (2 * 12 * d * d + 4 * 512 * d)


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


def counted(model, tokens, state=None):
    """What a model gives for some tokens, and the FLOPs that took."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = model.decode(tokens, state)
    return out[1], counter.get_total_flops()


def grown(name, figure):
    """Compare a figure of a few layers and tokens with a model that generates."""
    sizes, t, batch = _cache._model(figure._now()), figure.length, figure.batch
    keys = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff")
    config = preset(name, vocab_size=50, attend="reference", **{key: sizes[key] for key in keys})
    model, wanted = build(config).eval(), sizes["vocab_size"]
    d, rows = sizes["d_model"], torch.zeros(batch, t, dtype=torch.long)

    def scores(positions, vocabulary):
        return 2 * batch * positions * d * vocabulary

    state, with_cache, without = None, [], []
    for s in range(1, t + 1):
        state, flops = counted(model, rows[:, :1], state)
        with_cache.append(flops + scores(1, wanted) - scores(1, 50))
        _, flops = counted(model, rows[:, :s])
        without.append(flops + scores(1, wanted) - scores(s, 50))  # of the last position only
    assert figure.step_cached == with_cache[-1]
    assert figure.step_uncached == without[-1]
    assert figure.total_cached == sum(with_cache)
    assert figure.total_uncached == sum(without)
    tables = 2 if not figure.data["presets"][name]["tied"] else 1
    parameters = sum(p.numel() for p in model.parameters()) + (wanted - 50) * d * tables
    assert figure.parameters == parameters
    size = {"float32": 4, "float16": 2, "int8": 1}[figure.precision]
    assert figure.weight_bytes == size * parameters

    def kept(heads, length):
        return 2 * sizes["n_layers"] * heads * sizes["d_head"] * length * batch * size

    assert figure.cache_bytes == kept(sizes["n_kv_heads"], t)
    assert figure.multi_head_bytes == kept(sizes["n_heads"], t)
    assert figure.multi_query_bytes == kept(1, t)
    assert figure.window_bytes == kept(sizes["n_kv_heads"], min(t, figure.window))
    weight = figure.break_even * kept(sizes["n_kv_heads"], 1)
    assert weight == pytest.approx(figure.weight_bytes, rel=1e-12)


@settings(max_examples=2, deadline=None, phases=PHASES)
@given(st.data())
@pytest.mark.parametrize("name", _cache.DECODERS)
def test_growth_is_that_of_a_model_that_generates(name, data):
    heads = data.draw(st.integers(1, 6))
    figure = explorables.cache_growth(
        name,
        n_heads=heads,
        n_kv_heads=data.draw(st.sampled_from([g for g in range(1, heads + 1) if heads % g == 0])),
        d_head=2 * data.draw(st.integers(1, 6)),
        n_layers=data.draw(st.integers(1, 3)),
        length=data.draw(st.integers(1, 19)),
        batch=data.draw(st.integers(1, 3)),
        precision=data.draw(st.sampled_from(list(_sizes.BYTES))),
        window=16,
    )
    grown(name, figure)


@pytest.mark.parametrize("name", _cache.DECODERS)
def test_growth_of_every_preset_adds_up(name):
    """The sums over all tokens are closed formulas; here they are added one by one."""
    steps = [explorables.cache_growth(name, length=t, batch=2).results() for t in range(1, 6)]
    assert steps[-1]["total_cached"] == sum(step["step_cached"] for step in steps)
    assert steps[-1]["total_uncached"] == sum(step["step_uncached"] for step in steps)


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


def spread(prompt) -> list[float]:
    """Every token's log-probability as the figure holds it, likeliest first."""
    return [x for count, x in _sampling.entries_of(prompt) for _ in range(count)]


def cut(logs, temperature, top_k, top_p, min_p) -> list[float]:
    """Each token's probability after the settings, token by token and in their order."""
    powers = [math.exp((x - logs[0]) / temperature) for x in logs]

    def normal(powers):
        total = math.fsum(powers)
        return [x / total for x in powers]

    p = normal(powers)
    if top_k:
        smallest = p[top_k - 1]
        p = normal([x if x >= smallest else 0.0 for x in p])
    if top_p < 1:
        before, nucleus = 0.0, []
        for x in p:
            nucleus.append(x if before < top_p else 0.0)
            before += x
        p = normal(nucleus)
    if min_p:
        p = normal([x if x >= min_p * p[0] else 0.0 for x in p])
    return p


def entropy(p) -> float:
    return -math.fsum(x * math.log(x) for x in p if x)


@settings(max_examples=20, deadline=None, phases=PHASES)
@given(CUTS)
@example({"temperature": 1.3, "top_k": 0, "top_p": 0.95, "min_p": 0.0})  # the cut is in a group
def test_what_is_kept_is_what_the_steps_leave_token_by_token(cuts):
    figure = explorables.next_token_sampling([PACKED], **cuts)
    logs = spread(PACKED)
    p, plain = cut(logs, **cuts), cut(logs, cuts["temperature"], 0, 1, 0)
    assert figure.probabilities == pytest.approx(p[:20], abs=1e-12)
    assert figure.kept == sum(x > 0 for x in p)
    assert figure.entropy == pytest.approx(entropy(p), abs=1e-9)
    mass = math.fsum(x for x, kept in zip(plain, p, strict=True) if kept)
    assert figure.mass == pytest.approx(mass, abs=1e-9)
    assert figure.entropy_before == pytest.approx(entropy(cut(logs, 1, 0, 1, 0)), abs=1e-9)


@settings(max_examples=20, deadline=None, phases=PHASES)
@given(CUTS)
def test_groups_stand_for_the_whole_vocabulary(cuts):
    figure = explorables.next_token_sampling([PACKED], **cuts)
    p = cut(LOGITS.sort(descending=True).values.tolist(), **cuts)
    assert figure.probabilities == pytest.approx(p[:20], abs=1e-3)
    assert figure.entropy == pytest.approx(entropy(p), abs=0.02)
    assert figure.kept == pytest.approx(sum(x > 0 for x in p), rel=0.06, abs=2)


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
    kept = explorables.next_token_sampling([packed], temperature=1.0, top_p=1.0)
    assert kept.kept == 3
    assert kept.probabilities == pytest.approx(logits.softmax(0)[[2, 4]].tolist(), abs=1e-4)


@settings(max_examples=20, deadline=None, phases=PHASES)
@given(CUTS, st.integers(0, 9999), st.integers(0, 80))
def test_a_draw_is_the_token_at_which_the_running_sum_passes_its_number(cuts, seed, draws):
    figure = explorables.next_token_sampling([PACKED], seed=seed, draws=draws, **cuts)
    sums = list(accumulate(cut(spread(PACKED), **cuts)))
    ids = [bisect_right(sums, u * sums[-1]) for u in _chance.uniforms(seed, draws)]
    names = [PACKED["tokens"][i] if i < 20 else "…" for i in ids]
    assert figure.tally == dict(Counter(names))
    assert figure.drawn == (names[-1] if names else None)


def test_tally_approaches_the_probabilities():
    now = {"top_k": 5, "top_p": 1.0, "temperature": 2.0}
    figure = explorables.next_token_sampling([PACKED], draws=10_000, **now)
    p = torch.tensor(figure.probabilities[:5]).double()
    seen = torch.tensor([figure.tally[t] for t in PACKED["tokens"][:5]]).double()
    chi_square = ((seen - 10_000 * p) ** 2 / (10_000 * p)).sum().item()
    assert seen.sum() == 10_000 and chi_square < 18.5  # 0.1% of the time above, 4 degrees


def test_numbers_look_uniform_and_differ_between_seeds():
    many = torch.tensor([_chance.uniforms(seed, 2000) for seed in (0, 1, 9999)]).double()
    assert many.min() > 0 and many.max() < 1
    assert (many.mean(1) - 0.5).abs().max() < 4 / math.sqrt(12 * 2000)
    counts = torch.stack([row.histc(10, 0, 1) for row in many])
    assert ((counts - 200) ** 2 / 200).sum(1).max() < 27.9  # 0.1% of the time above, 9 degrees
    assert (torch.corrcoef(many) - torch.eye(3)).abs().max() < 5 / math.sqrt(2000)
    assert _chance.uniforms(7, 3) == _chance.uniforms(7, 30)[:3]


def test_numbers_are_those_of_the_published_hash():
    """mulberry32 in whole numbers of Python, as its author wrote it in C."""

    def mulberry(state):
        t = (state ^ (state >> 15)) * (state | 1) & 0xFFFFFFFF
        t ^= (t + ((t ^ (t >> 7)) * (t | 61) & 0xFFFFFFFF)) & 0xFFFFFFFF
        return t ^ (t >> 14)

    states = [(7 * 0x9E3779B9 + i * 0x6D2B79F5) & 0xFFFFFFFF for i in (1, 2, 3)]
    assert _chance.uniforms(7, 3) == [(mulberry(a) + 0.5) / 2**32 for a in states]
