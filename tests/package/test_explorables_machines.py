"""The figures of machines: bits of a number, a pipeline, requests, a plan, weights in few bits.

What JavaScript computes is compared with the package in Node, and planted bugs must be seen.
"""

import functools
import json
import math
import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.package.figures_in_node import Figures
from tests.package.node import NODE
from tfbook import pretrained
from tfbook.costs import MACHINES
from tfbook.hardware import FORMATS, FloatFormat, decode, encode, pack, quantise
from tfbook.parallel import schedule_table
from tfbook.serving import static_batches
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _bits, _planning, _quantising, _samples, _serving
from tfbook.teaching.explorables._pipeline import SCHEDULES

X, near = explorables, pytest.approx
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")


@pytest.fixture(scope="module")
def figures():
    """Node, which the tests of this file share."""
    found = Figures()
    yield found
    found.close()


def same(mine, theirs, rel=1e-12):
    """Whether JavaScript and Python have the same numbers; NaN is NaN."""
    if isinstance(mine, dict):
        return all(same(mine[key], theirs[key], rel) for key in mine)
    if isinstance(mine, list | tuple):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    if isinstance(mine, float) and isinstance(theirs, int | float):
        return theirs == near(mine, rel=rel, abs=0, nan_ok=True)
    return mine == theirs


def differ(figures, name, cases, rel=1e-12):
    """Where a module's numbers differ from the package's; None where they never do."""
    for now, mine in cases:
        theirs = figures.call(name, "numbers", now)
        if not same(mine, theirs, rel):
            return now, mine, theirs
    return None


SIZES = {
    "float_bits": 3000,
    "pipeline_schedule": 2000,
    "continuous_batching": 2200,
    "training_planner": 12_000,
    "quantisation_error": 7000,
}


@pytest.mark.parametrize("name", SIZES)
def test_what_a_cell_stores_carries_all_that_the_figure_needs(name):
    make = getattr(X, name)
    figure = make()
    bundle = figure._repr_mimebundle_()
    assert bundle == make()._repr_mimebundle_() and bundle["text/plain"] == repr(figure)
    payload = re.search(r'json">(.*?)</script>', bundle["text/html"], flags=re.S)[1]
    payload = json.loads(payload)
    assert payload.pop("data") == json.loads(json.dumps(figure.data))
    assert payload == figure._now()
    assert max(map(len, repr(figure).splitlines())) <= 88
    assert len(bundle["text/html"]) < SIZES[name]  # in every notebook that shows it
    for key, value in payload.items():
        setattr(figure, key, value)


# ---------------------------------------------------------------------- float_bits

FORMAT = st.sampled_from(_bits.NAMES)
CASTS = (torch.float32, torch.float16, torch.bfloat16)
WANTED = st.one_of(
    st.floats(-1e300, 1e300),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-1e-3, 1e-3),
    st.integers(-70_000, 70_000).map(float),
    st.sampled_from([0.0, -0.0, 65_519.0, 65_520.0, 464.0, 464.1, 2.0**-24, 2.0**-25, 0.125]),
)


@settings(max_examples=60)
@given(FORMAT, WANTED, st.sampled_from(_bits.SCALES))
def test_bits_are_those_of_the_nearest_number(name, wanted, scale):
    figure, form = X.float_bits(wanted, format=name, scale=scale), FORMATS[name]
    by = 1.0 if isinstance(form, FloatFormat) else scale
    code = encode(torch.tensor(wanted / by, dtype=torch.double), form)
    assert figure.pattern == code
    value = by * decode(code, form, dtype=torch.double).item()
    assert figure.shown == near(value, rel=0, abs=0, nan_ok=True)
    if math.isfinite(value):
        assert figure.error == value - wanted
        if figure.event == "rounded":  # the nearest, so at most half way to its neighbours
            room = [x for x in (figure.below, figure.above) if x is not None]
            assert all(abs(figure.error) <= abs(x - wanted) * (1 + 1e-12) for x in room)
    if form.dtype in CASTS:
        theirs = torch.tensor(wanted, dtype=torch.double).to(form.dtype).double().item()
        assert figure.shown == near(theirs, rel=0, abs=0, nan_ok=True)


@settings(max_examples=60)
@given(FORMAT, st.integers(0, 2**32 - 1), st.sampled_from(_bits.SCALES))
def test_neighbours_of_a_pattern_are_the_next_numbers(name, code, scale):
    form = FORMATS[name]
    figure = X.float_bits(0.3, format=name, code=code % 2**form.bits, scale=scale)
    assert figure.pattern == code % 2**form.bits
    if not math.isfinite(figure.shown):
        assert figure.below is figure.above is figure.spacing is figure.error is None
        return
    if form.dtype in (torch.float32, torch.bfloat16):
        here = torch.tensor(figure.shown, dtype=form.dtype)
        for side, found in ((math.inf, figure.above), (-math.inf, figure.below)):
            theirs = torch.nextafter(here, torch.tensor(side, dtype=form.dtype)).item()
            assert found == (theirs if math.isfinite(theirs) else None)
    if figure.above is not None and figure.below is not None:
        assert figure.below < figure.shown < figure.above
        assert figure.spacing in (
            near(figure.above - figure.shown), near(figure.shown - figure.below)
        )  # fmt: skip
    if isinstance(form, FloatFormat):
        field = max(1, figure.exponent)
        assert figure.spacing == 2.0 ** (field - form.bias - form.mantissa)
        lead = figure.exponent > 0
        size = 2.0 ** (field - form.bias) * (lead + figure.fraction / 2**form.mantissa)
        assert abs(figure.shown) == size and (math.copysign(1, figure.shown) < 0) == figure.sign


@pytest.mark.parametrize(
    ("wanted", "name", "shown", "event", "kind"),
    [
        (1.0, "bf16", 1.0, "exact", "normal"),
        (0.1, "fp16", 0.0999755859375, "rounded", "normal"),
        (65_519.0, "fp16", 65_504.0, "rounded", "normal"),
        (65_520.0, "fp16", math.inf, "overflow", "infinity"),
        (-1e39, "fp32", -math.inf, "overflow", "infinity"),
        (500.0, "e4m3", math.nan, "overflow", "NaN"),
        (7.5, "e2m1", 6.0, "overflow", "normal"),
        (1e-8, "fp16", 0.0, "underflow", "zero"),
        (1e-7, "fp16", 2.0**-23, "rounded", "subnormal"),
        (257.0, "bf16", 256.0, "rounded", "normal"),
        (0.337, "int8", 0.34, "rounded", "whole"),
        (3.0, "int8", 1.27, "overflow", "whole"),
        (-1.28, "int8", -1.28, "exact", "whole"),
        (-1.3, "int8", -1.28, "overflow", "whole"),
    ],
)
def test_numbers_known_by_hand(wanted, name, shown, event, kind):
    figure = X.float_bits(wanted, format=name)
    assert figure.shown == near(shown, rel=1e-15, nan_ok=True)
    assert (figure.event, figure.kind) == (event, kind)
    assert figure.all[name] == near(shown, rel=1e-15, nan_ok=True)


def test_a_pattern_of_another_format_is_left_behind():
    figure = X.float_bits(1.5, format="fp32", code=0x7F800000)
    assert figure.shown == math.inf and figure.event == "chosen"
    figure.format = "fp16"  # which has no such pattern
    assert figure.shown == 1.5 and figure.event == "exact"


@functools.cache
def bits_cases():
    """What the package says of some numbers and patterns: (given, results)."""
    drawn = torch.Generator().manual_seed(0)
    tries = [0.1, -0.1, 65_519.0, 65_520.0, -65_520.0, 1e-8, 3e38, 6.5, -7.5, 0.0, -0.0, 464.0, 2.5]
    tries += [465.0, 2.0**-25, 3 * 2.0**-25, 1.27, -2.555, 1e-40, 3.5]
    tries += [x * 10.0**p for p in (-7, 0, 4) for x in torch.randn(3, generator=drawn).tolist()]
    found = []
    for name, form in X.float_bits().data["formats"].items():
        most = 2 ** form["bits"]
        codes = {0, 1, most // 2, most // 2 + 1, most - 1}
        codes |= {int(most * u) for u in torch.rand(6, generator=drawn).tolist()}
        codes |= {
            form["last"] + i for i in (-1, 0, 1) if "last" in form and i + form["last"] < most
        }
        for wanted, code in [(x, -1) for x in tries] + [(0.7, code) for code in sorted(codes)]:
            figure = X.float_bits(wanted, format=name, code=None if code < 0 else code, scale=0.02)
            mine = figure.results()
            del mine["all"]
            found.append(({"f": form, "wanted": wanted, "code": code, "scale": 0.02}, mine))
    return found


def bits_differ(figures, edits=()):
    """Where the module's numbers differ from the package's; None where they never do."""
    figures.load("float_bits", "numbers", tuple(edits))
    for now, mine in bits_cases():
        theirs = figures.call("float_bits", "numbers", now)
        theirs |= {key: theirs["fields"].get(key) for key in ("sign", "exponent", "fraction")}
        if not same(mine, theirs):
            return now, mine, theirs
    return None


@needs_node
def test_the_page_has_the_same_bits(figures):
    assert bits_differ(figures) is None


BITS_MUTANTS = [
    ("low + (low % 2)", "low + 1"),
    ("1 - f.bias);\n  let code", "-f.bias);\n  let code"),
    ('(f.special === "none" ? 0 : 1)', "1"),
    ("if (code > f.last) code", "if (code > f.last + 1) code"),
    ("(x < 0 || Object.is(x, -0)", "(x < 0"),
    ("(exponent > 0) + fraction", "1 + fraction"),
    ("Math.max(exponent, 1) - f.bias", "exponent - f.bias"),
    ('f.special === "ieee" && size', "size"),
    ("place >= 0 ? place : half - place", "Math.abs(place)"),
    ("Math.abs(place) > f.last) return", "Math.abs(place) > f.last + 1) return"),
    ("outward === null ? inward : outward", "inward === null ? outward : inward"),
    ("f.whole && wanted < 0 ? most + by : most", "most"),
    ("Math.min(half - 1, Math", "Math.min(half, Math"),
    ("code < 0 ? code + 2 * half : code + 0", "Math.abs(code)"),
    ("const by = f.whole ? scale : 1;\n  const chosen", "const by = scale;\n  const chosen"),
]


@needs_node
@pytest.mark.parametrize("edit", BITS_MUTANTS, ids=[old for old, _ in BITS_MUTANTS])
def test_a_planted_bug_in_the_bits_is_seen(figures, edit):
    assert bits_differ(figures, [edit]) is not None


# ---------------------------------------------------------------------- pipeline_schedule

PLANS = [("gpipe", 1, 1, 2), ("1f1b", 1, 5, 1), ("gpipe", 4, 8, 2), ("1f1b", 4, 8, 2)]
PLANS += [("1f1b", 8, 3, 3), ("gpipe", 5, 2, 1), ("1f1b", 3, 24, 3), ("1f1b", 6, 6, 1)]


@pytest.mark.parametrize(("name", "p", "m", "backward"), PLANS)
def test_pipeline_is_that_of_the_table(name, p, m, backward):
    """The printed table of the package says for each unit of time who does what."""
    given = {"stages": p, "micro_batches": m, "backward": backward}
    figure = X.pipeline_schedule(name, **given)
    table = schedule_table(SCHEDULES[name](p, m), backward=backward)
    rows = [line.split() for line in table.splitlines()]
    assert figure.total == max(map(len, rows))
    for moment in range(figure.total):
        figure.moment = moment
        units = [row[moment] if moment < len(row) else "." for row in rows]
        assert figure.doing == [unit.strip(".") for unit in units]
    assert figure.bubble == near(figure.formula) == near((p - 1) / (m + p - 1))
    assert figure.kept == [m if name == "gpipe" else min(m, p - stage) for stage in range(p)]


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 8), st.integers(1, 24), st.integers(1, 3))
@settings(max_examples=20)
def test_a_stage_keeps_at_most_what_it_ever_holds(name, p, m, backward):
    figure = X.pipeline_schedule(name, stages=p, micro_batches=m, backward=backward)
    held = []
    for moment in range(figure.total):
        figure.moment = moment
        held.append(figure.held)
    assert [max(stage) for stage in zip(*held, strict=True)] == figure.kept
    figure.moment = 99  # past the end stands for the last unit
    assert figure.moment_shown == figure.total - 1
    assert figure.held[0] == 1 and figure.doing[0] == f"B{m - 1}"


@functools.cache
def pipeline_cases():
    found = []
    for name, p, m, backward in PLANS:
        for moment in (0, 2, 3, p, 7, 12, 20, 99):
            given = {"stages": p, "micro_batches": m, "backward": backward, "moment": moment}
            mine = X.pipeline_schedule(name, **given).results()
            found.append((given | {"schedule": name}, mine))
    return found


def pipelines_differ(figures, edits=()):
    figures.load("pipeline_schedule", "numbers", tuple(edits))
    return differ(figures, "pipeline_schedule", pipeline_cases())


@needs_node
def test_the_page_has_the_same_pipelines(figures):
    assert pipelines_differ(figures) is None


PIPELINE_MUTANTS = [
    ("Math.min(m, p - 1 - stage)", "Math.min(m, p - stage)"),
    ("if (first + i < m)", "if (first + i < m - 1)"),
    ('["F", "B"].flatMap', '["B", "F"].flatMap'),
    ('(kind === "B" ? 1 : -1);', '(kind === "B" ? -1 : 1);'),
    ("if (need && !ends.has(need)) return;", ""),
    ("need ? ends.get(need) : 0", "0"),
    ("done[stage].at(-1)?.end ?? 0", "0"),
    ('start + (kind === "B" ? backward : 1)', "start + 1"),
    ("most = Math.max(most, kept)", "most = kept"),
    ("start <= moment && moment < end", "start <= moment && moment <= end"),
    ('s.kind === "B" && s.end <= moment', 's.kind === "B" && s.end < moment'),
    ('s.kind === "F" && s.start <= moment', 's.kind === "F" && s.end <= moment'),
    ("Math.min(at, total - 1)", "at"),
    ("1 - busy / (total * p)", "1 - busy / total"),
    ("(p - 1) / (m + p - 1)", "(p - 1) / m"),
    ("share: Math.max(...kept) / m", "share: Math.max(...kept) / p"),
]


@needs_node
@pytest.mark.parametrize("edit", PIPELINE_MUTANTS, ids=[old for old, _ in PIPELINE_MUTANTS])
def test_a_planted_bug_in_the_pipeline_is_seen(figures, edit):
    try:
        assert pipelines_differ(figures, [edit]) is not None
    except RuntimeError:
        pass  # one that no longer runs is seen too


# ---------------------------------------------------------------------- continuous_batching

ANSWERS = st.sampled_from(list(_serving.ANSWERS))


@given(ANSWERS, st.integers(1, 8), st.integers(1, 9999))
@settings(max_examples=12)
def test_static_batches_cost_what_the_package_counts(answers, slots, seed):
    figure = X.continuous_batching("static", answers=answers, slots=slots, seed=seed)
    counted = static_batches(*_serving.requests(answers, seed), slots)
    assert (figure.steps, figure.useful, figure.peak) == counted[:1] + counted[2:4]
    assert figure.computed == counted.slots and figure.wasted == counted.slots - counted.useful
    filled = reserved = 0
    for start in sorted({span[2] for span in figure.spans}):
        # When a batch ends, each has written all that it ever will.
        figure.step = next(end for _, _, begin, _, end in figure.spans if begin == start) - 1
        filled += sum(rows for _, _, rows, _ in figure.running)
        reserved += figure.held
    assert (filled, reserved) == (counted.filled, counted.reserved)


@given(ANSWERS, st.integers(1, 8), st.sampled_from(_serving.PAGES), st.integers(1, 9999))
@settings(max_examples=12)
def test_continuous_batches_waste_nothing_and_are_never_slower(answers, slots, size, seed):
    given = {"answers": answers, "slots": slots, "page_size": size, "seed": seed}
    figure = X.continuous_batching("continuous", **given)
    once = X.continuous_batching("static", **given)
    assert figure.wasted == 0 and figure.steps <= once.steps and figure.useful == once.useful
    assert figure.mean_end <= once.mean_end
    prompts, asked = _serving.requests(answers, seed)
    most = 0
    for step in range(figure.steps):
        figure.step = step
        assert len(figure.running) <= slots
        assert len({slot for _, slot, _, _ in figure.running}) == len(figure.running)
        for request, _, rows, held in figure.running:
            assert prompts[request] < rows < prompts[request] + asked[request]
            assert rows <= held < rows + size
        most = max(most, figure.held)
    assert most == figure.peak  # counted by the server
    assert figure.finished == 16
    if answers == "equal" and 16 % slots == 0:
        assert figure.steps == once.steps and once.wasted == 0


def test_requests_known_by_hand():
    figure = X.continuous_batching("static", answers="equal", slots=8, page_size=1)
    assert figure.steps == 2 * 11 and figure.wasted == 0 and figure.tokens_a_step == 8
    figure.step = 21
    assert figure.finished == 16 and figure.step_shown == 21
    figure.policy = "continuous"
    assert figure.steps == 22 and figure.empty == 0
    figure.slots = 1
    assert figure.steps == 16 * 11 and figure.mean_end == 11 * 8.5


@functools.cache
def serving_cases():
    found = []
    tries = [("heavy", 4, 4, 7), ("mixed", 3, 8, 1), ("equal", 5, 16, 9999), ("heavy", 8, 1, 42)]
    for policy in _serving.POLICIES:
        for answers, slots, size, seed in tries:
            for step in (0, 1, 9, 20, 999):
                given = {"answers": answers, "slots": slots, "page_size": size, "seed": seed}
                given |= {"policy": policy, "step": step}
                mine = X.continuous_batching(**given).results()
                found.append((given | {"n": _serving.REQUESTS}, mine))
    return found


def servings_differ(figures, edits=()):
    figures.load("continuous_batching", "numbers", tuple(edits))
    return differ(figures, "continuous_batching", serving_cases())


@needs_node
def test_the_page_serves_as_the_server_does(figures):
    assert servings_differ(figures) is None


SERVING_MUTANTS = [
    ("2 + Math.floor(14 * u)", "1 + Math.floor(14 * u)"),
    ("38 * u * u * u", "38 * u * u"),
    ("drawn[n + i]", "drawn[i]"),
    ("highest(part, (r) => r.asked) - 1;\n    const", "highest(part, (r) => r.asked);\n    const"),
    ("[start, all] = [end, rest]", "[start, all] = [end - 1, rest]"),
    ("done: start + r.asked - 1, end, rows", "done: end, end, rows"),
    ("const start = Math.min(...free);", "const start = Math.max(...free);"),
    ("free.indexOf(start)", "free.lastIndexOf(start)"),
    ("Math.min(step + 1, s.done)", "step + 1"),
    ("Math.ceil(filled / size) * size", "filled"),
    ("isStatic ? s.rows", "isStatic ? filled"),
    ("Math.min(at, steps - 1)", "at"),
    ("wasted: computed - useful", "wasted: computed"),
    ("s.done <= step + 1", "s.done <= step"),
    ("s.start <= step && step < s.end", "s.start <= step && step <= s.end"),
    ("sum(spans, (s) => s.done) / n", "sum(spans, (s) => s.end) / n"),
    ("length: steps }, (_, i) => sum(look(i)", "length: 1 }, (_, i) => sum(look(i)"),
]


@needs_node
@pytest.mark.parametrize("edit", SERVING_MUTANTS, ids=[old for old, _ in SERVING_MUTANTS])
def test_a_planted_bug_in_the_batches_is_seen(figures, edit):
    assert servings_differ(figures, [edit]) is not None


# ---------------------------------------------------------------------- training_planner

STOPS = _planning.STOPS
CHOICES = st.fixed_dictionaries({
    "model": st.sampled_from(list(_planning.MODELS)),
    "machine": st.sampled_from(list(_planning.DEVICES)),
    **{name: st.sampled_from(stops) for name, stops in STOPS.items()},
    "zero": st.integers(0, 3),
    "recompute": st.sampled_from(list(_planning.RECOMPUTE)),
    "precision": st.sampled_from(list(_planning.PRECISIONS)),
})  # fmt: skip


@given(CHOICES)
@settings(max_examples=40)
def test_a_plan_adds_up(now):
    figure = X.training_planner(**now)
    found = figure.results()
    assert found["devices"] <= now["replicas"] * now["tensor"] * now["pipeline"]
    parts = [found[key] for key in ("weights", "gradients", "optimizer", "activations")]
    assert sum(parts) == near(found["memory"])
    assert sum(found["times"].values()) == near(found["seconds"])
    assert min(found["times"].values()) >= 0 and 0 < found["utilisation"] < 0.7
    assert now["batch"] % (found["used_replicas"] * found["used_micro_batch"]) == 0
    n = found["tokens"] * found["seconds"] / now["batch"]
    assert n == near(1024 if now["model"] == "gpt2-medium" else 2048)
    config = _planning._config(now["model"])
    useful = 3 * config.flops(config.max_len, now["batch"])
    peak = MACHINES[now["machine"]].flops * found["devices"]
    assert found["utilisation"] == near(useful / found["seconds"] / peak)


def test_plans_known_by_hand():
    figure = X.training_planner("llama-7b", replicas=64)
    count = _planning._config("llama-7b").count_parameters()
    assert count == 6_738_415_616
    assert (figure.weights, figure.gradients) == (2 * count, 2 * count)
    assert figure.optimizer == 12 * count
    for zero, shared in ((1, "optimizer"), (2, "gradients"), (3, "weights")):
        before = getattr(figure, shared)
        figure.zero = zero
        assert getattr(figure, shared) == before / 64
    figure.precision = "low"
    assert figure.optimizer == 4 * count / 64
    figure.pipeline = 4  # with stages only the optimizer is shared
    assert figure.used_zero == 1 and figure.devices == 256
    assert figure.bubble == near(3 / (256 / 64 + 3))
    figure.replicas, figure.batch, figure.micro_batch = 256, 64, 8
    assert (figure.used_replicas, figure.used_micro_batch) == (64, 1)
    assert _planning._config("llama-65b").count_parameters() == near(65.3e9, rel=1e-3)


def test_recomputing_saves_activations_and_costs_a_third():
    figure = X.training_planner("llama-7b", micro_batch=8)
    kept, computing = figure.activations, figure.times["computing"]
    figure.recompute = "full"
    assert figure.activations < kept / 5
    assert 1.25 < figure.times["computing"] / computing < 1.4


@functools.cache
def plan_cases():
    """Plans of all kinds, drawn with a seed."""
    drawn = torch.Generator().manual_seed(1)

    def one_of(options):
        return options[int(torch.randint(len(options), (), generator=drawn))]

    found = []
    for i in range(160):
        now = {name: one_of(stops) for name, stops in STOPS.items()}
        now |= {"model": one_of(list(_planning.MODELS)), "zero": i % 4}
        now |= {"machine": one_of(list(_planning.DEVICES)), "pipeline": STOPS["pipeline"][i % 5]}
        now |= {"recompute": one_of(["none", "full"])}
        now |= {"precision": one_of(list(_planning.PRECISIONS))}
        found.append((now, X.training_planner(**now).results()))
    return found


def plans_differ(figures, edits=()):
    figures.load("training_planner", "numbers", tuple(edits))
    data = X.training_planner().data
    for now, mine in plan_cases():
        theirs = figures.call("training_planner", "numbers", data, now)
        if not same(mine, theirs, 1e-9):
            return now, mine, theirs
    return None


@needs_node
def test_the_page_plans_as_the_package_does(figures):
    assert plans_differ(figures) is None


PLAN_MUTANTS = [
    ("Math.floor(now.batch / replicas)", "now.batch"),
    ("now.pipeline > 1 ? Math.min(now.zero, 1) : now.zero", "now.zero"),
    ("stage(s + 1) - stage(s)", "model.layers / p"),
    ("p === 1 ? row.tied : 0", "0"),
    ("flops: b * all", "flops: all"),
    ("moved: b * own * moved", "moved: own * moved"),
    ("kept: b * all", "kept: all"),
    ("(b - 1) * row.once", "0"),
    ("s === p - 1 ? row.working : 0", "0"),
    ("Math.min(m, p - s)", "m"),
    ("Math.min(m, p - s)", "p - s"),
    ("[all(messages, 3), b * all(sent, 4)]", "[all(messages, 3), all(sent, 4)]"),
    ("pipeline: [(s > 0) + (s < p - 1), (", "pipeline: [2, ("),
    ("((s > 0) + (s < p - 1)) * b * model", "((s > 0) + (s < p - 1)) * model"),
    ("[rounds * (p - 1), (rounds", "[rounds * p, (rounds"),
    ("(rounds * (p - 1) * size) / p", "rounds * size"),
    ("neighbours <= data.per_node ? machine.inside", "true ? machine.inside"),
    ("(c.zero >= zero ? c.replicas : 1)", "(c.zero > zero ? c.replicas : 1)"),
    ("a.flight * a.kept + a.working", "a.flight * a.kept"),
    ("times(both(gathered, gathered, scattered), m)", "both(gathered, gathered, scattered)"),
    ("both(gathered, gathered, scattered)", "both(gathered, scattered)"),
    ("c.zero ? both(times(scattered, c.zero === 2 ? m : 1), gathered) :", ""),
    ("times(scattered, c.zero === 2 ? m : 1)", "scattered"),
    ("seconds(times(a.tensor, m), c.tensor)", "seconds(a.tensor, c.tensor)"),
    ("seconds(times(a.pipeline, m), devices)", "seconds(times(a.pipeline, m), c.pipeline)"),
    ("seconds(sent, c.replicas * c.tensor)", "seconds(sent, c.replicas)"),
    ("(data.efficiency * machine.flops)", "machine.flops"),
    (" + a.moved / machine.bandwidth)", ")"),
    ("(c.pipeline - 1) / (m + c.pipeline - 1)", "(c.pipeline - 1) / m"),
    ("(1 - bubble), tensor", "1, tensor"),
    ("(2 * (most.held[2] + each", "(most.held[2] + (each"),
    ("most.memory <= machine.memory", "most.memory <= 0.9 * machine.memory"),
    ("(3 * c.batch * model.flops)", "(4 * c.batch * model.flops)"),
]


@needs_node
@pytest.mark.parametrize("edit", PLAN_MUTANTS, ids=[old for old, _ in PLAN_MUTANTS])
def test_a_planted_bug_in_the_plan_is_seen(figures, edit):
    assert plans_differ(figures, [edit]) is not None


# ---------------------------------------------------------------------- quantisation_error

SHARED = list(_quantising.SHARED)


def test_samples_are_weights_of_the_model():
    model = pretrained.load("minilm-l6").model
    for name, (matrix, row, column) in _samples.PLACES.items():
        whole = dict(model.named_parameters())[matrix].detach()
        shown = whole[row : row + 4, column : column + _samples.COLUMNS]
        assert torch.equal(_samples.sample(name), shown.bfloat16().float())


@pytest.mark.parametrize("name", _quantising.LABELS)
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("symmetric", [True, False])
def test_errors_are_at_most_half_a_step_and_fall_with_the_bits(name, shared, symmetric):
    figure = X.quantisation_error(name, shared=shared, symmetric=symmetric, bits=5)
    matrix = _samples.sample(name)
    off = torch.tensor(figure.off, dtype=torch.double)
    assert figure.relative == near((off.norm() / matrix.double().norm()).item())
    together = matrix.numel() // figure.groups
    restored = matrix.flatten().double() + off
    assert figure.zeros == (restored.abs() < 1e-9).double().mean().item()
    steps = []
    for group in range(figure.groups):
        figure.group = group
        part = slice(group * together, (group + 1) * together)
        steps.append(figure.scale)
        # The zero point is rounded too, so that an end may lie half a step outside of the grid.
        assert off[part].abs().max() <= figure.scale * (0.5 if symmetric else 1) * (1 + 1e-6)
        grid = torch.tensor(figure.grid, dtype=torch.double)
        assert len(grid) == 31 + (not symmetric) and grid.diff().min() > 0
        gaps = (restored[part][:, None] - grid).abs().amin(1)
        assert gaps.max() < 1e-6 * figure.scale + 1e-8
        assert (grid == 0).any()
    assert figure.largest == off.abs().max()
    for curve in figure.curves.values():
        assert all(a > b for a, b in pairwise(curve))
    assert figure.relative == figure.curves["symmetric" if symmetric else "zero_point"][3]


def test_effective_bits_are_those_of_packed_weights():
    figure = X.quantisation_error("ordinary", bits=4, shared=32, symmetric=False)
    matrix = _samples.sample("ordinary").repeat(4, 1)  # the kernels want 16 rows
    for shared, symmetric, bits in ((32, False, 4), (64, False, 4), ("channel", True, 8)):
        figure.bits, figure.shared, figure.symmetric = bits, shared, symmetric
        packed = pack(quantise(matrix, bits, shared=shared, symmetric=symmetric))
        assert 8 * packed.nbytes / matrix.numel() == figure.effective_bits


def test_an_outlier_sets_the_step_of_all_who_share_its_scale():
    figure = X.quantisation_error("outlier", bits=4, shared="tensor")
    for symmetric, shared, zeros in ((True, "tensor", 0.48), (True, 32, 0.17)):
        figure.symmetric, figure.shared = symmetric, shared
        assert figure.zeros == near(zeros, abs=0.01)
    assert X.quantisation_error("ordinary").relative < 0.6 * X.quantisation_error().relative


@functools.cache
def quantised_cases():
    found = []
    for name in _quantising.LABELS:
        for shared in SHARED:
            for symmetric in (True, False):
                for bits, group in ((2, 0), (3, 1), (4, 63), (8, 2)):
                    now = {"weights": name, "shared": shared, "symmetric": symmetric}
                    now |= {"bits": bits, "group": group}
                    found.append((now, X.quantisation_error(**now).results()))
    return found


def quantised_differ(figures, edits=()):
    figures.load("quantisation_error", "numbers", tuple(edits))
    data = X.quantisation_error().data
    for now, mine in quantised_cases():
        theirs = figures.call("quantisation_error", "numbers", data, now)
        if not same(mine, theirs, 1e-9):
            return now
    return None


@needs_node
def test_the_page_rounds_weights_as_the_package_does(figures):
    assert quantised_differ(figures) is None


QUANTISED_MUTANTS = [
    ("(Math.abs(low) % 2)", "1"),
    ('shared === "channel" ? columns', 'shared === "channel" ? all'),
    ("[Math.min(0, ...weights)", "[Math.min(...weights.map(Math.abs))"),
    ("Math.max(-least, most) / (half - 1)", "Math.max(-least, most) / half"),
    ("Math.max(-least, most) / (half - 1)", "most / (half - 1)"),
    ("(most - least) / (2 * half - 1)", "(most - least) / (2 * half)"),
    ("symmetric ? 1 - half : -half;", "-half;"),
    ("-half - even(least", "-half + even(least"),
    ("even(w / (scale || 1)) + zero", "even(w / (scale || 1))"),
    ("Math.max(low, even(w", "Math.max(low + 1, even(w"),
    ("Math.fround((c - zero) * scale)", "Math.fround(c * scale)"),
    ("weights.slice(i * size, (i + 1) * size)", "weights.slice(0, size)"),
    ("Math.min(at, groups.length - 1)", "0"),
    ("Math.fround(scale * (low + i - zero))", "Math.fround(scale * (low + i))"),
    ("norm(off) / norm(weights)", "norm(off)"),
    ("Math.max(...off.map(Math.abs))", "Math.max(...off)"),
    ("(symmetric ? 1 : 2)) / size", "1) / size"),
    ("new Set(codes).size", "codes.length"),
]


@needs_node
@pytest.mark.parametrize("edit", QUANTISED_MUTANTS, ids=[old for old, _ in QUANTISED_MUTANTS])
def test_a_planted_bug_in_the_rounding_is_seen(figures, edit):
    assert quantised_differ(figures, [edit]) is not None


# ---------------------------------------------------------------------- what is refused

BAD = [
    (lambda: X.float_bits("1"), TypeError, "value must be a number, got str"),
    (lambda: X.float_bits(math.inf), ValueError, "value must be between"),
    (lambda: X.float_bits(format="fp64"), ValueError, "format must be one of fp32, tf32"),
    (lambda: X.float_bits(format="e4m3", code=256), ValueError, "code must be between 0 and 255"),
    (lambda: X.float_bits(code=1.0), TypeError, "code must be a whole number, got float"),
    (lambda: X.pipeline_schedule("zb"), ValueError, "schedule must be one of gpipe, 1f1b"),
    (lambda: X.pipeline_schedule(stages=9), ValueError, "stages must be between 1 and 8, got 9"),
    (lambda: X.pipeline_schedule(micro_batches=0), ValueError, "micro_batches must be between 1"),
    (lambda: X.pipeline_schedule(moment=0.5), TypeError, "moment must be a whole number"),
    (lambda: X.continuous_batching("auto"), ValueError, "policy must be one of static, contin"),
    (lambda: X.continuous_batching(page_size=3), ValueError, "page_size must be one of .1, 2, 4"),
    (lambda: X.continuous_batching(slots=9), ValueError, "slots must be between 1 and 8, got 9"),
    (lambda: X.continuous_batching(answers="short"), ValueError, "answers must be one of equal"),
    (lambda: X.continuous_batching(seed=0), ValueError, "seed must be between 1 and 9999"),
    (lambda: X.training_planner("gpt5"), ValueError, "model must be one of gpt2-medium, llama"),
    (lambda: X.training_planner(machine="TPU"), ValueError, "machine must be one of A100 80GB"),
    (lambda: X.training_planner(tensor=3), ValueError, "tensor must be one of .1, 2, 4, 8., got 3"),
    (lambda: X.training_planner(replicas=True), TypeError, "replicas must be a whole number"),
    (lambda: X.training_planner(zero=4), ValueError, "zero must be between 0 and 3, got 4"),
    (lambda: X.training_planner(recompute="some"), ValueError, "recompute must be one of none"),
    (lambda: X.quantisation_error("real"), ValueError, "weights must be one of ordinary, outlier"),
    (lambda: X.quantisation_error(bits=1), ValueError, "bits must be between 2 and 8, got 1"),
    (lambda: X.quantisation_error(shared=7), ValueError, "shared must be one of tensor, channel"),
    (lambda: X.quantisation_error(symmetric=1), TypeError, "symmetric must be True or False"),
    (lambda: X.quantisation_error(group=64), ValueError, "group must be between 0 and 63, got 64"),
    (lambda: X.float_bits(scale=0), ValueError, "scale must be between 0.001 and 5, got 0"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
