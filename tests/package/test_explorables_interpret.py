"""Figures of the chapter on looking inside: exchanges, rollout, and two heads that copy.

A check is `check(kit)`, with `kit` the three modules, or copies of them with a planted bug.
"""

import base64
import importlib
import json
import math
import re
from types import SimpleNamespace

import fresh
import pytest
import torch
from fresh import Mutant

from tfbook import experiments
from tfbook.interpret import ablated, induction_model, patterns, rollout, with_residual
from tfbook.teaching import explorables

X, near = explorables, pytest.approx
ROOM = "tfbook.teaching.explorables"
HOMES = {
    "patching": "_patching",
    "rollout": "_rollout",
    "induction": "_induction",
    "pretrained": "_pretrained",
}
EFFECTS = {
    "stream": [[0.5, -0.25, 0.0], [1.0, 0.125, -0.75]],
    "attention": [[0.0, 0.1, 0.2], [-0.3, 0.4, 0.5]],
}
MARY = ["Mary", " ", "Mary"]
CHECKS = {}


def kit_of(load):
    return SimpleNamespace(**{key: load(f"{ROOM}.{name}") for key, name in HOMES.items()})


@pytest.fixture
def kit():
    return kit_of(importlib.import_module)


def check(run):
    CHECKS[run.__name__] = run
    return run


def grid(kit, **changes):
    given = {"rows": range(2), "columns": MARY} | changes
    return kit.patching.patching_grid(EFFECTS, **given)


def drawn(n_layers, n, seed=0, causal=False):
    scores = 2 * torch.randn(n_layers, n, n, generator=torch.Generator().manual_seed(seed)).double()
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    return scores.softmax(-1)


# Every figure -------------------------------------------------------------------------------------

MAKE = {
    "patching_grid": lambda: X.patching_grid(EFFECTS, rows=range(2), columns=MARY),
    "rollout_stepper": lambda: X.rollout_stepper(drawn(3, 4), list("abcd"), layer=2),
    "induction_head": X.induction_head,
}


@pytest.mark.parametrize("name", MAKE)
def test_what_a_cell_stores_carries_all_that_the_figure_needs(name):
    figure = MAKE[name]()
    bundle = figure._repr_mimebundle_()
    assert bundle == MAKE[name]()._repr_mimebundle_() and bundle["text/plain"] == repr(figure)
    payload = json.loads(re.search(r'json">(.*?)</script>', bundle["text/html"], flags=re.S)[1])
    assert payload.pop("data") == json.loads(json.dumps(figure.data))
    assert payload == figure._now()
    assert max(map(len, repr(figure).splitlines())) <= 88
    assert len(bundle["text/html"]) < 4000
    for key, value in payload.items():
        setattr(figure, key, value)


def test_large_figures_stay_small():
    effects = {kind: torch.randn(30, 30) for kind in ("a", "b", "c", "d")}
    figure = X.patching_grid(effects, rows=range(30), columns=["word"] * 30)
    assert len(figure._html()) < 40_000
    figure = X.rollout_stepper(drawn(30, 14, causal=True), ["word"] * 14)
    assert len(figure._html()) < 60_000


# patching_grid ------------------------------------------------------------------------------------


@check
def test_a_cell_has_its_row_its_column_and_its_place(kit):
    figure = grid(kit, chosen=(1, 2))
    assert figure.effect == -0.75
    assert figure.row == [1.0, 0.125, -0.75] and figure.column == [0.0, -0.75]
    assert figure.rank == 2
    figure.kind = "attention"
    assert (figure.effect, figure.rank) == (0.5, 1)
    figure.chosen = [0, 0]
    assert (figure.effect, figure.rank) == (0.0, 6)


@check
def test_the_largest_are_those_of_a_sorted_tensor(kit):
    numbers = torch.randn(7, 9, generator=torch.Generator().manual_seed(1))
    figure = kit.patching.patching_grid({"x": numbers}, rows=range(7), columns=range(9))
    order = numbers.abs().flatten().argsort(descending=True)[:5]
    assert [(i, j) for i, j, _ in figure.largest] == [divmod(int(c), 9) for c in order]
    assert [x for *_, x in figure.largest] == near(numbers.flatten()[order].tolist(), rel=1e-3)
    for i, j in ((0, 0), (3, 8), (6, 1)):
        figure.chosen = (i, j)
        assert figure.rank == 1 + int((numbers.abs() > numbers[i, j].abs()).sum())


@check
def test_its_words_say_what_was_patched_and_what_came_of_it(kit):
    words = " ".join(repr(grid(kit, chosen=(1, 2), unit="bits")).split())
    assert "Patched: stream, layer 1, token “Mary” (2). What came of it: -0.75 (bits)" in words
    assert "number 2 of 6 by size" in words
    assert "attention: layer 1, token “Mary” (2): 0.5; layer 1, token space (1): 0.4" in words
    other = repr(grid(kit, columns=["0.1", "0.2", "1.0"], column_name="head", row_name="word"))
    assert "word “0” (0), head 0.1" in " ".join(other.split())


@check
def test_numbers_are_kept_with_four_digits(kit):
    numbers = torch.tensor([[1.23456789, -0.000123456]])
    figure = kit.patching.patching_grid({"x": numbers}, rows=["a"], columns=["b", "c"])
    assert figure.data["effects"]["x"] == [[1.235, -0.0001235]]


# rollout_stepper ----------------------------------------------------------------------------------


@check
@pytest.mark.parametrize("causal", [False, True])
def test_rows_are_those_of_the_packages_rollout(kit, causal):
    given = drawn(4, 5, causal=causal)
    figure = kit.rollout.rollout_stepper(given, list("abcde"))
    kept = torch.tensor(figure.data["patterns"], dtype=torch.double)
    torch.testing.assert_close(kept, given, rtol=0, atol=1e-6)
    every = rollout(kept[:, None], every=True)
    shares = with_residual(kept[:, None])
    assert figure.token == 4
    for layer in range(4):
        figure.layer, figure.step = layer, 3
        backwards = torch.linalg.multi_dot([torch.eye(5).double(), *shares[: layer + 1]])
        for token in range(5):
            figure.token = token
            assert figure.right == near(every[layer, token].tolist(), abs=1e-12)
            assert figure.wrong == near(backwards[token].tolist(), abs=1e-12)
            moved = (every[layer, token] - backwards[token]).abs().sum().item() / 2
            assert figure.difference == near(moved, abs=1e-12)
            assert figure.own == near(every[layer, token, token].item(), abs=1e-12)
            assert sum(figure.right) == near(1) and sum(figure.wrong) == near(1)


@check
def test_a_layer_has_four_steps(kit):
    given = drawn(3, 4, seed=1)
    figure = kit.rollout.rollout_stepper(given, list("abcd"), layer=1, token=2)
    kept = torch.tensor(figure.data["patterns"], dtype=torch.double)
    row = kept[1, 2]
    one = torch.eye(4).double()[2]
    for step, wanted in enumerate((row, row + one, (row + one) / (row.sum() + 1), None)):
        figure.step = step
        shown = figure.right if wanted is None else wanted.tolist()
        assert figure.shown == near(shown, abs=1e-12)
        assert figure.row_sum == near((1, 2, 1, 1)[step], abs=1e-5)


@check
def test_what_a_layer_above_does_not_mix_cannot_have_reached_it(kit):
    below = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    above = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]  # here z stays by itself
    figure = kit.rollout.rollout_stepper([below, above], ["x", "y", "z"], layer=1, step=3)
    assert figure.right == near([0.0, 0.5, 0.5])  # so that x cannot have reached it
    assert figure.wrong == near([0.25, 0.25, 0.5])
    assert figure.difference == near(0.25)


# induction_head -----------------------------------------------------------------------------------

TEXTS = [
    "a red fox saw a blue bird and a red".split(),
    "x y x y x y x".split(),
    "each word only once".split(),
    ["one"],
    "a a a".split(),
    "b c b d b".split(),
]


@check
@pytest.mark.parametrize("words", TEXTS, ids=" ".join)
@pytest.mark.parametrize("on", [True, False])
def test_its_numbers_are_those_of_the_packages_model(kit, words, on):
    vocabulary = list(dict.fromkeys(words))
    size = max(2, len(vocabulary))
    model = induction_model(size, max_len=16).double()
    ids = torch.tensor([[vocabulary.index(word) for word in words]])
    with torch.no_grad(), ablated(model, [] if on else [(0, 0)]):
        logits = model(ids)[0][0]
        looked = patterns(model, ids)[:, 0, 0]
    figure = kit.induction.induction_head(words, first_head=on)
    assert figure.token == len(words) - 1
    for i, row in enumerate(logits):
        figure.token = i
        found = figure.results()
        assert list(found["logits"]) == vocabulary
        assert list(found["logits"].values()) == near(row[: len(vocabulary)].tolist(), abs=1e-9)
        assert found["weights"] == near(looked[1, i, : i + 1].tolist(), abs=1e-9)
        assert found["first_weights"] == near(looked[0, i, : i + 1].tolist(), abs=1e-9)
        shares = torch.softmax(row[: len(vocabulary)], -1).tolist()
        assert list(found["probabilities"].values()) == near(shares, abs=1e-9)


@check
def test_it_says_what_came_after_and_fails_without_the_first_head(kit):
    figure = kit.induction.induction_head(TEXTS[0])
    assert figure.answer == figure.wanted == ["fox"] and figure.found == near(1)
    assert figure.before == ["a", "a", "red", "fox", "saw", "a", "blue", "bird", "and", "a"]
    figure.first_head = False
    assert figure.before == [None] * 10
    assert "fox" not in figure.answer and figure.found < 0.01
    figure.first_head, figure.token = True, 8
    assert figure.answer == figure.wanted == ["red", "blue"] and figure.found == near(1)
    figure.token = 3
    assert figure.wanted == [] and figure.found == 0


@check
def test_scores_are_those_of_the_keys(kit):
    """50 for its own word as the word before, 100 less at place 0, which holds its own word."""
    figure = kit.induction.induction_head("x y x y x".split())
    assert figure.scores == near([-50, 50, 0, 50, 0], abs=1e-12)
    figure.first_head = False
    assert figure.scores == [-100, 0, 0, 0, 0]
    assert figure.weights == near([0, 0.25, 0.25, 0.25, 0.25], abs=1e-12)


@check
def test_its_words_say_where_it_looks(kit):
    figure = kit.induction.induction_head()
    words = " ".join(repr(figure).split())
    assert "At “red” (9) the head of layer 1 looks at “fox” (2) 1.00" in words
    assert "It predicts “fox” (1.000). Earlier, “red” was followed by “fox”." in words
    figure.first_head = False
    words = " ".join(repr(figure).split())
    assert "The head of layer 0 is off." in words and "“a” or “red”" in words


@check
def test_a_new_text_is_read_and_a_token_beyond_it_is_its_last(kit):
    figure = kit.induction.induction_head()
    figure.text = "  b  c\tb "
    assert figure.text == "b c b" and figure.place == 2 and figure.answer == ["c"]


# pretrained_attention -----------------------------------------------------------------------------

MODELS = {"smollm2-135m": "smollm2", "minilm-l6": "minilm"}
COUNTED = 1  # "one two three four five one two three four", which pretrained_heads has read too


@check
@pytest.mark.parametrize("model", MODELS)
def test_eight_bits_say_what_twelve_say(kit, model):
    other = experiments.log("pretrained_heads")[MODELS[model]][COUNTED]
    twelve = torch.tensor(explorables.unpack_weights(other["weights"]), dtype=torch.double)
    figure = kit.pretrained.pretrained_attention(model, sentence=COUNTED)
    assert figure.data["texts"][COUNTED]["tokens"] == other["tokens"]
    n_layers, n_heads, n, _ = twelve.shape
    for layer in range(0, n_layers, 3):
        for head in range(n_heads):
            figure.layer, figure.head = layer, head
            for token in (0, n // 2, n - 1):
                figure.token = token
                row = torch.tensor(figure.weights, dtype=torch.double)
                assert row.sum() == near(1)
                assert (row - twelve[layer, head, token]).abs().max() < 0.006


@check
@pytest.mark.parametrize("causal", [False, True])
def test_codes_are_rounded_roots_row_after_row(kit, causal):
    weights = drawn(6, 5, causal=causal).view(2, 3, 5, 5)
    shape, is_causal, codes = kit.pretrained.pack_bytes(weights)
    assert (shape, is_causal) == ([2, 3, 5, 5], causal)
    wanted = [
        round(255 * math.sqrt(w))
        for rows in weights.view(6, 5, 5).tolist()
        for i, row in enumerate(rows)
        for w in (row[: i + 1] if causal else row)
    ]
    assert codes.dtype == torch.uint8 and codes.tolist() == wanted


@pytest.mark.parametrize("model", MODELS)
def test_what_a_page_loads_is_small_and_holds_every_code(model):
    script = X.attention_script(model)
    assert len(script.encode()) < 600_000
    figure = X.pretrained_attention(model)
    assert figure.data["script"]["size"] == len(script)
    name, codes = re.fullmatch(
        r'\(window\.tfbookWeights \|\|= \{\}\)\["([\w-]+)"\] = "([\w+/=]+)";\n', script
    ).groups()
    assert name == figure.data["script"]["name"] == f"attention-{model}"
    kept = experiments.weights("pretrained_attention")
    whole = torch.cat([kept[f"{model}.{i}"] for i in range(20)])
    assert base64.b64decode(codes) == bytes(whole.tolist())
    assert len(figure._html()) < 8000


def test_a_kernel_gets_the_codes_when_the_reader_asks():
    pytest.importorskip("anywidget")
    figure = X.pretrained_attention("minilm-l6")
    assert "file" not in figure.widget.data
    figure.widget.asked = True
    script = X.attention_script("minilm-l6")
    assert figure.widget.data["file"] in script and len(figure.widget.data["file"]) > 200_000


# Planted bugs -------------------------------------------------------------------------------------


def mutant(bug, home, old, new, caught_by):
    return Mutant(bug, f"{ROOM}.{HOMES[home]}", old, new, caught_by)


CELL = "test_a_cell_has_its_row_its_column_and_its_place"
ROWS = "test_rows_are_those_of_the_packages_rollout"
MODEL = "test_its_numbers_are_those_of_the_packages_model"
GIVEN = {  # what a check of several cases is called with
    MODEL: (TEXTS[0], True),
    ROWS: (False,),
    "test_eight_bits_say_what_twelve_say": ("smollm2-135m",),
    "test_codes_are_rounded_roots_row_after_row": (True,),
}
MUTANTS = [
    mutant("the place by value, not size", "patching",
           "1 + sum(abs(x) > abs(grid[i][j]) for", "1 + sum(x > grid[i][j] for", CELL),
    mutant("the row as the column", "patching",
           '"column": [row[j] for row in grid]', '"column": grid[i]', CELL),
    mutant("the largest without the negative", "patching",
           "cells.sort(key=lambda cell: -abs(cell[2]))", "cells.sort(key=lambda cell: -cell[2])",
           "test_the_largest_are_those_of_a_sorted_tensor"),
    mutant("rounded to hundredths", "patching", '{x:.4g}")', '{x:.2f}")',
           "test_numbers_are_kept_with_four_digits"),
    mutant("the orders exchanged", "rollout", "_times(step, right), _times(wrong, step)",
           "_times(right, step), _times(step, wrong)", ROWS),
    mutant("one order for both", "rollout", "_times(step, right), _times(wrong, step)",
           "_times(step, right), _times(step, wrong)", ROWS),
    mutant("without the residual connection", "rollout",
           "x + (i == j) for j, x", "x for j, x", ROWS),
    mutant("a layer too few", "rollout", "patterns[: layer + 1]", "patterns[: max(1, layer)]",
           ROWS),
    mutant("the difference counted twice", "rollout", "strict=True)) / 2,", "strict=True)),", ROWS),
    mutant("the first head looks at itself", "induction", "(j == place - 1)", "(j == place)",
           MODEL),
    mutant("place 0 not passed over", "induction", "- PASSED * (j == 0)", "", MODEL),
    mutant("layer 1 looks for its word itself", "induction", "scores = [SHARP * (before[j][own]",
           "scores = [SHARP * ((words[j] == words[i])", MODEL),
    mutant("logits not sharpened", "induction", "[SHARP * share for", "[share for", MODEL),
    mutant("the head that is off writes on", "induction",
           'mixed(look_back(j)) if now["first_head"] else nothing', "mixed(look_back(j))",
           "test_it_says_what_came_after_and_fails_without_the_first_head"),
    mutant("heads of a layer skipped", "pretrained", "(layer * n_heads + head) * size",
           "(layer + head) * size", "test_eight_bits_say_what_twelve_say"),
    mutant("codes not squared", "pretrained", "next(codes) ** 2 for", "next(codes) for",
           "test_eight_bits_say_what_twelve_say"),
    mutant("no roots", "pretrained", "weights.clamp(max=1).sqrt()", "weights.clamp(max=1)",
           "test_codes_are_rounded_roots_row_after_row"),
]  # fmt: skip


@pytest.mark.parametrize("planted", MUTANTS, ids=lambda m: m.bug)
def test_planted_bugs_are_caught(planted):
    names = [f"{ROOM}.{name}" for name in HOMES.values()]
    fresh.copies("figures", names, planted.edits)
    kit = kit_of(lambda name: fresh.copy_of("figures", name))
    with pytest.raises((AssertionError, TypeError)):
        CHECKS[planted.caught_by](kit, *GIVEN.get(planted.caught_by, ()))


# Bad input ----------------------------------------------------------------------------------------

EYE = [[1.0, 0.0], [0.0, 1.0]]
BAD = [
    (lambda: X.patching_grid([[1.0]], rows="a", columns="b"), TypeError, "effects must be a dict"),
    (lambda: X.patching_grid({}, rows=["a"], columns=["b"]), ValueError, "1 to 4 kinds, got 0"),
    (lambda: X.patching_grid({1: [[1.0]]}, rows=["a"], columns=["b"]), TypeError, "a kind of eff"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=3, columns=["b"]), TypeError, "rows must be a l"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=["a"], columns="b"), TypeError, "columns must"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=[], columns=["b"]), ValueError, "1 to 40 names"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=[True], columns=["b"]), TypeError, "got bool"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=[1, 2], columns=["b"]), ValueError, "2 rows"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=[1], columns=["b", "c"]), ValueError, "2 number"),
    (lambda: X.patching_grid({"x": [[math.nan]]}, rows=[1], columns=[1]), ValueError, "between"),
    (lambda: X.patching_grid({"x": [["a"]]}, rows=[1], columns=[1]), TypeError, "must be a number"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=[1], columns=[1], unit=""), ValueError, "unit"),
    (lambda: X.patching_grid({"x": [[1.0]]}, rows=[1], columns=[1], row_name=2), TypeError, "row_"),
    (lambda: grid_of(chosen=(2, 0)), ValueError, "row of chosen must be between 0 and 1, got 2"),
    (lambda: grid_of(chosen=(0, -1)), ValueError, "column of chosen must be between 0 and 2"),
    (lambda: grid_of(chosen=3), TypeError, "chosen must be a row and a column, got int"),
    (lambda: grid_of(chosen=(0, 0, 0)), ValueError, "chosen must be a row and a column, got 3"),
    (lambda: grid_of(chosen=(0, 1.0)), TypeError, "column of chosen must be a whole number"),
    (lambda: setattr(grid_of(), "kind", "other"), ValueError, "kind must be one of stream, att"),
    (lambda: X.rollout_stepper(3, ["a", "b"]), TypeError, "patterns must be a list of matrices"),
    (lambda: X.rollout_stepper([], ["a", "b"]), ValueError, "patterns must be 1 to 32 matrices"),
    (lambda: X.rollout_stepper([EYE], "ab"), TypeError, "tokens must be a list of strings"),
    (lambda: X.rollout_stepper([EYE], ["a"]), ValueError, "tokens must have 2 to 24 tokens"),
    (lambda: X.rollout_stepper([EYE], list("abc")), ValueError, r"patterns\[0\] must have 3 rows"),
    (lambda: X.rollout_stepper([[[1, 1], [0, 1]]], ["a", "b"]), ValueError, "row 0 sums to 2.000"),
    (lambda: X.rollout_stepper([[[2, -1], [0, 1]]], ["a", "b"]), ValueError, "rows of weights"),
    (lambda: X.rollout_stepper([EYE], ["a", "b"], token=2), ValueError, "token must be between -2"),
    (lambda: X.rollout_stepper([EYE], ["a", "b"], layer=1), ValueError, "layer must be between 0"),
    (lambda: X.rollout_stepper([EYE], ["a", "b"], step=4), ValueError, "step must be between 0"),
    (lambda: X.rollout_stepper(drawn(32, 20), ["a"] * 20), ValueError, "at most 6000 numbers"),
    (lambda: X.induction_head("a b"), TypeError, "tokens must be a list of words, got str"),
    (lambda: X.induction_head([1]), TypeError, "tokens must be a list of words, got int in it"),
    (lambda: X.induction_head(["a b"]), ValueError, "tokens must be words without spaces"),
    (lambda: X.induction_head([""]), ValueError, "tokens must be words without spaces, got ''"),
    (lambda: X.induction_head([]), ValueError, "must have 1 to 16 words, got 0"),
    (lambda: X.induction_head(["a"] * 17), ValueError, "must have 1 to 16 words, got 17"),
    (lambda: X.induction_head(["a" * 17]), ValueError, "at most 16 letters"),
    (lambda: X.induction_head(token=10), ValueError, "token must be between -10 and 9, got 10"),
    (lambda: X.induction_head(first_head=1), TypeError, "first_head must be True or False"),
    (lambda: X.pretrained_attention("gpt2"), ValueError, "model must be one of smollm2-135m, min"),
    (lambda: X.pretrained_attention(sentence=20), ValueError, "sentence must be between 0 and 19"),
    (
        lambda: X.pretrained_attention(layer=30),
        ValueError,
        "layer must be between 0 and 29, got 30",
    ),
    (
        lambda: X.pretrained_attention("minilm-l6", head=12),
        ValueError,
        "head must be between 0 and",
    ),
    (
        lambda: X.pretrained_attention(token=50),
        ValueError,
        "token must be between 0 and 11, got",
    ),
    (lambda: X.pretrained_attention(direction="up"), ValueError, "direction must be one of from"),
    (
        lambda: X.attention_script("bert"),
        ValueError,
        "model must be one of smollm2-135m, minilm-l6",
    ),
    (lambda: X.pack_bytes([[1.0]]), TypeError, "weights must be a tensor of floats, got list"),
    (lambda: X.pack_bytes(torch.ones(2, 2)), ValueError, r"shape \(L, H, n, n\), got \(2, 2\)"),
    (lambda: X.pack_bytes(torch.ones(1, 1, 2, 2)), ValueError, "not negative and sum to 1"),
    (lambda: setattr(X.induction_head(), "text", 3), TypeError, "text must be words, got int"),
    (lambda: setattr(X.induction_head(), "text", " "), ValueError, "1 to 16 words, got 0"),
]


def grid_of(**changes):
    return X.patching_grid(EFFECTS, rows=range(2), columns=MARY, **changes)


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
