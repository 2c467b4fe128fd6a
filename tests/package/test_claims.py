"""Claims: what passes, what must not, what is shown, and what nbval may overlook."""

import html
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nbval.plugin import get_sanitize_patterns

from tfbook.teaching import Claim, ClaimError, claim, claims
from tfbook.teaching.claims import evaluate

SANITIZE = Path(__file__).parent.parent / "chapters" / "sanitize.cfg"
SENTENCE = "The rows sum to 1."


def make(measured, expected, *rest, **named):
    return evaluate("rows-sum", SENTENCE, measured, expected, *rest, **named)


def false(measured, expected, *rest, **named):
    with pytest.raises(ClaimError) as caught:
        make(measured, expected, *rest, **named)
    return str(caught.value)


# --- equality ---------------------------------------------------------------------------------


@given(
    expected=st.floats(-1e6, 1e6),
    tolerance=st.floats(1e-6, 10),
    share=st.floats(-0.99, 0.99),
)
def test_a_measurement_within_the_tolerance_holds(expected, tolerance, share):
    make(expected + share * tolerance, expected, tolerance)


@given(
    expected=st.floats(-1e6, 1e6),
    tolerance=st.floats(1e-6, 10),
    times=st.floats(1.01, 1e3),
    sign=st.sampled_from([-1, 1]),
)
def test_a_measurement_outside_of_the_tolerance_fails(expected, tolerance, times, sign):
    false(expected + sign * times * tolerance, expected, tolerance)


def test_the_tolerance_is_absolute_not_relative():
    false(1e6 + 1, 1e6, 0.5)
    make(1e-9, 0, 1e-6)


def test_without_a_tolerance_equality_is_exact():
    make(3, 3)
    false(3 + 1e-12, 3)


def test_one_bad_entry_makes_an_array_fail():
    expected = torch.linspace(0, 1, 35).reshape(5, 7)
    measured = expected.clone()
    measured[4, 2] += 1e-3
    make(expected + 1e-5, expected, 1e-4)
    false(measured, expected, 1e-4)


def test_equal_numbers_in_another_shape_are_not_equal():
    false(torch.ones(3, 5), torch.ones(5, 3))
    false(torch.ones(3), 1.0)
    false(torch.ones(1, 3), torch.ones(3))


def test_large_integers_are_compared_without_rounding():
    big = 2**53
    make(big + 1, big + 1)
    false(big + 1, big)
    false(np.array([big + 1, 1]), np.array([big, 1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_is_compared_in_double_precision(dtype):
    make(torch.full((3,), 0.5, dtype=dtype), [0.5, 0.5, 0.5])


def test_a_small_difference_is_not_rounded_away():
    false(torch.tensor([1 + 1e-9], dtype=torch.float64), [1.0], 1e-10)
    make(torch.tensor([1 + 1e-9], dtype=torch.float64), [1.0], 1e-8)


def test_gradients_and_views_do_not_matter():
    measured = torch.ones(5, 3, requires_grad=True).T
    make(measured, np.ones((3, 5)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_measurement_that_is_not_finite_fails_however_wide_the_tolerance(bad):
    false(bad, 1.0, 1e300)
    false(torch.tensor([1.0, bad]), [1.0, 1.0], 1e300)
    false(bad, 1.0, relation="above")
    false(bad, 1.0, relation="below")


@pytest.mark.parametrize("value", [True, False, "Kopf", ["the", "cat"], [["a"], ["b", "c"]]])
def test_booleans_and_texts_are_equal_exactly(value):
    make(value, value if isinstance(value, bool | str) else list(value))


def test_other_booleans_and_texts_fail():
    false(True, False)
    false("cat", "Cat")
    false(["the", "cat"], ["the", "mat"])
    false(torch.tensor([True, False]), torch.tensor([True, True]))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("measured", "expected"),
    [(True, 1), (1.0, True), ("1", 1), (torch.ones(2, dtype=torch.bool), torch.ones(2))],
)
def test_things_of_different_kinds_are_not_compared(measured, expected):
    with pytest.raises(TypeError):
        make(measured, expected)


# --- the other relations ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "holding", "failing"),
    [
        ("at most", [0.9, 1.0, 1.05], [1.11, 5]),
        ("at least", [0.95, 1.0, 3], [0.89, -1]),
    ],
)
def test_a_bound_may_be_missed_by_the_tolerance(relation, holding, failing):
    for value in holding:
        make(value, 1.0, 0.1, relation=relation)
    for value in failing:
        false(value, 1.0, 0.1, relation=relation)


@pytest.mark.parametrize(
    ("relation", "holding", "failing"), [("above", 1.001, [1.0, 0.9]), ("below", 0.999, [1.0, 1.1])]
)
def test_above_and_below_are_strict(relation, holding, failing):
    make(holding, 1.0, relation=relation)
    for value in failing:
        false(value, 1.0, relation=relation)


def test_a_bound_holds_for_every_entry_of_an_array():
    make(torch.tensor([0.1, 0.9]), 1.0, relation="below")
    false(torch.tensor([0.1, 1.9]), 1.0, relation="below")
    false(torch.tensor([0.1, 0.9]), torch.tensor([1.0]), relation="below")


# --- wrong values -----------------------------------------------------------------------------


@given(
    expected=st.floats(-100, 100),
    gap=st.floats(0.01, 10),
    share=st.floats(0.01, 0.9),
    sign=st.sampled_from([-1, 1]),
)
def test_a_claim_rejects_the_wrong_value_or_fails(expected, gap, share, sign):
    make(expected, expected, share * gap, wrong=expected + sign * gap)
    false(expected, expected, gap / share, wrong=expected + sign * gap)


def test_a_wrong_value_near_the_measurement_is_no_rejection():
    false(0.95, 1.0, 0.1, wrong=0.89)


@pytest.mark.parametrize(
    ("measured", "expected", "wrong"),
    [
        (True, True, False),
        ("row", "row", "column"),
        (["a", "b"], ["a", "b"], ["b", "a"]),
        ((3, 2), (3, 2), (2,)),
        (torch.tensor([True, False]), torch.tensor([True, False]), torch.tensor([False, True])),
        (torch.zeros(3, 5), torch.zeros(3, 5), torch.ones(3, 5)),
        (0.0, 0.0, float("nan")),
    ],
)
def test_wrong_values_of_every_kind_are_rejected(measured, expected, wrong):
    expected = expected.clone() if isinstance(expected, torch.Tensor) else expected
    assert make(measured, expected, wrong=wrong).wrong is not None
    false(measured, expected, wrong=expected)


def test_a_wrong_bound_is_rejected_by_the_same_comparison():
    make(0.3, 0.5, relation="at most", wrong=0.8)
    false(0.3, 0.5, relation="at most", wrong=0.4)


def test_a_wrong_value_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="wrong is text"):
        make(1.0, 1.0, wrong="two")
    with pytest.raises(TypeError, match="wrong is number"):
        make(torch.ones(3), [1.0, 1, 1], 0.1, wrong=2)


# --- claims that make no sense ----------------------------------------------------------------


def test_a_thing_is_not_compared_with_itself():
    x, y, z = torch.ones(3, 3), np.ones(3), [1.0, 2.0]
    for measured, expected in [(x, x), (x, x.view(3, 3)), (x, x.detach()), (y, y[:]), (z, z)]:
        with pytest.raises(ValueError, match="one and the same"):
            make(measured, expected)
    make(x, x.T)
    make(x, x.clone())
    make(2, 2)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"slug": "Not A Slug"}, "slug"),
        ({"slug": "two--hyphens"}, "slug"),
        ({"sentence": "  "}, "sentence"),
        ({"sentence": "two\nlines"}, "sentence"),
        ({"sentence": "a | measured b"}, "sentence"),
        ({"tolerance": -1e-6}, "tolerance"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"tolerance": "1e-6"}, "tolerance"),
        ({"relation": "about"}, "relation"),
        ({"relation": "above", "tolerance": 0.1}, "strict"),
        ({"digits": 0}, "digits"),
        ({"expected": float("inf")}, "finite"),
        ({"measured": [], "expected": []}, "empty"),
        ({"measured": [[1], [1, 2]]}, "ragged"),
        ({"measured": ["a", 1]}, "mixes"),
        ({"measured": 1j}, "complex"),
        ({"measured": torch.ones(3, dtype=torch.complex64)}, "complex"),
        ({"measured": None}, "NoneType"),
        ({"measured": True, "expected": True, "tolerance": 0.1}, "exactly"),
        ({"measured": "a", "expected": "a", "relation": "at most"}, "exactly"),
    ],
)
def test_arguments_without_sense_are_refused_by_name(named, message):
    given = {"slug": "a", "sentence": SENTENCE, "measured": 1.0, "expected": 1.0} | named
    with pytest.raises((TypeError, ValueError), match=message):
        evaluate(**given)


# --- what is shown ----------------------------------------------------------------------------


def test_the_text_form_is_one_stable_line():
    shown = make(0.57561234, 0.5756, 1e-4, wrong=0.574)
    assert str(shown) == (
        "claim rows-sum: The rows sum to 1. | measured 0.5756 | expected 0.5756 ± 0.0001"
        " | not 0.574"
    )
    assert repr(shown).startswith("Claim(")
    assert shown._repr_mimebundle_()["text/plain"] == str(shown)


@pytest.mark.parametrize(
    ("measured", "expected", "named", "text"),
    [
        (3, 3, {}, "3"),
        (1234567, 1234567, {}, "1234567"),
        (2 / 3, 0.6667, {"tolerance": 1e-3, "digits": 2}, "0.67"),
        (123456.0, 123456, {"tolerance": 1}, "123456"),
        (-0.0, 0, {}, "0"),
        (torch.tensor([0.25, 0.75]), [0.25, 0.75], {}, "[0.25, 0.75]"),
        (torch.zeros(3, 5), torch.zeros(3, 5), {}, "0 apart at most"),
        (torch.arange(20.0), 19, {"relation": "at most"}, "19 at the extreme"),
        (torch.arange(20.0), 0, {"relation": "at least"}, "0 at the extreme"),
        (torch.eye(5).bool(), torch.eye(5).bool(), {}, "5 of 25 true, in shape (5, 5)"),
        (True, True, {}, "yes"),
        ("the cat", "the cat", {}, "'the cat'"),
    ],
)
def test_numbers_are_rounded_for_reading(measured, expected, named, text):
    assert make(measured, expected, **named).measured == text


def test_a_false_claim_says_what_was_measured_and_what_was_expected():
    assert false(0.25, 1.0, 1e-3) == (
        "claim rows-sum is false: The rows sum to 1. Measured 0.25, expected 1 ± 0.001."
    )


def test_a_claim_made_without_its_checks_is_escaped_whole():
    hostile = '"><img src=x onerror=alert(1)>'
    page = claims.Claim(hostile, hostile, hostile, hostile, hostile)._repr_mimebundle_()
    assert "<img" not in page["text/html"]


def test_the_html_form_escapes_and_has_an_anchor():
    shown = evaluate("a-b", 'Is <i>1 & 2</i> "half"?', "<b>", "<b>")
    page = shown._repr_mimebundle_()["text/html"]
    assert 'id="claim-a-b"' in page
    assert "<i>" not in page
    assert "<b>" not in page
    assert "&lt;i&gt;1 &amp; 2" in page


def line_and_fold(shown):
    """What a claim shows at once, and what stands in its fold."""
    page = shown._repr_mimebundle_()["text/html"]
    before, summary, fold = re.fullmatch(
        r"(.*)<details[^>]*>(<summary.*</summary>)(.*)</details></div>", page
    ).groups()
    return [html.unescape(re.sub(r"<[^>]+>", "", p)).strip() for p in (before + summary, fold)]


@pytest.mark.parametrize(
    ("measured", "expected", "named", "shown"),
    [
        (0.31, 0.3, {"tolerance": 0.1}, "0.31"),
        (1234567, 1234567, {}, "1234567"),
        ([3, 2, 4, 1], [3, 2, 4, 1], {}, "[3, 2, 4, 1]"),
        ([[3, 2], [4, 1]], [[3, 2], [4, 1]], {}, "[[3, 2], [4, 1]]"),
        ("cat", "cat", {}, "'cat'"),
        (0.7, 0, {"relation": "above"}, "0.7"),
        (-0.2, 0, {"relation": "below"}, "-0.2"),
        (2e-4, 1e-3, {"relation": "below"}, "0.0002"),
        (0.97, 1, {"tolerance": 0.15, "sentence": "The variance is 1."}, "0.97"),
        # What had to be nothing, and what is no number:
        (torch.full((3, 5), 1e-7), torch.zeros(3, 5), {"tolerance": 1e-6}, "numbers"),
        (1e-9, 0, {"tolerance": 1e-6}, "numbers"),
        ([0.0, 1e-9], [0, 0], {"tolerance": 1e-6}, "numbers"),
        (1e-9, 1e-6, {"relation": "below"}, "numbers"),
        (1e-9, 0, {"tolerance": 1e-6, "sentence": "They differ by at most"}, "1e-09"),
        (1e-9, 0, {"tolerance": 1e-6, "sentence": "The largest difference:"}, "1e-09"),
        (0, 0, {"sentence": "of six so many fail"}, "0"),
        ([True, False], [True, False], {"sentence": "does each hold"}, "[yes, no]"),
        (-0.2, 0, {"relation": "at most", "tolerance": 1e-5}, "numbers"),
        (True, True, {}, "numbers"),
        ([3, 2, 4, 1, 5], [3, 2, 4, 1, 5], {}, "numbers"),
        (["a", "b"], ["a", "b"], {}, "numbers"),
        (torch.arange(20.0), 19, {"relation": "at most"}, "numbers"),
        (torch.eye(5).bool(), torch.eye(5).bool(), {}, "numbers"),
        # What the sentence says already:
        (512, 512, {"sentence": "Eight of 64 are 512 wide."}, "numbers"),
        (1 + 1e-7, 1, {"tolerance": 1e-6, "sentence": "The rows sum to 1."}, "numbers"),
    ],
)
def test_the_line_shows_a_number_only_where_it_says_something(measured, expected, named, shown):
    given = {"slug": "a", "sentence": "It is so.", "wrong": None} | named
    made = evaluate(measured=measured, expected=expected, **given)
    line, fold = line_and_fold(made)
    assert line == f"✓ {given['sentence']} {shown}"
    told = "" if shown == made.measured else f"measured {made.measured}; "
    assert fold == f"{told}expected {made.expected}"


def test_whether_it_shows_the_number_does_not_depend_on_the_machine():
    """Two machines measure a little differently, and the lines are compared."""
    for expected, digits in ((1.0, 4), (0.3, 1), (0, 4), (1e-6, 4)):
        near = {
            claims.speaks(evaluate("a", "It is 1.", expected + d, expected, 1e-5, digits=digits))
            for d in (0, 1e-9, -9e-6, 9e-6)
        }
        assert len(near) == 1


def test_a_wrong_value_stands_in_the_fold():
    line, fold = line_and_fold(make(0.5, 0.5, 0.1, wrong=0.7))
    assert "0.7" not in line and fold == "expected 0.5 ± 0.1; not 0.7"


def test_the_line_is_calm():
    """No dot begins a wrapped line, the fold opens by keyboard, styles are inline and plain."""
    page = make(0.5, 0.5, 0.1, wrong=0.7)._repr_mimebundle_()["text/html"]
    assert "·" not in page and " open" not in page
    assert page.count("<details") == page.count("<summary") == page.count("</summary>") == 1
    assert page.count("tfbook-claim-measured") == 1
    assert not re.search(r"var\(|<script|<style|tabindex|aria-label", page)


@pytest.mark.parametrize(
    ("sentence", "measured", "said"),
    [
        ("It gains {} nats.", 0.25, "It gains 0.25 nats."),
        ("Of 100, {} and {} are.", [8, 41], "Of 100, 8 and 41 are."),
        ("{1:.0%} after {0:.1f} steps.", [2.04, 0.876], "88% after 2.0 steps."),
        ("{0:,} weights, of {0} counted.", 1234567, "1,234,567 weights, of 1234567 counted."),
        ("It falls by {:.2f}.", -0.5, "It falls by −0.50."),
        ("No number in {{braces}}.", 1, "No number in {braces}."),
    ],
)
def test_the_sentence_takes_its_numbers_in(sentence, measured, said):
    made = evaluate("a", sentence, measured, np.array(measured), 1e-3)
    page = made._repr_mimebundle_()["text/html"]
    shown = re.search(r'claim-sentence">(.*)</span> <details', page)[1]
    assert re.sub("<[^>]*>", "", shown) == said
    assert ">numbers</summary>" in page or "{{" in sentence
    assert sanitize(page) == sanitize(page.replace(">8<", ">9<"))


@pytest.mark.parametrize(
    ("sentence", "measured", "message"),
    [
        ("Of {} one.", [1, 2], "sentence shows 1 numbers, measured holds 2"),
        ("Of {} and {}.", 1, "sentence shows 2 numbers"),
        ("Of {0} and {}.", [1, 2], "all or none"),
        ("Of {1}.", 1, "sentence shows 1"),
        ("Of {:q}.", 1, "field {:q}"),
        ("Of {.", 1, "braces"),
        ("It is {}.", "text", "measured is str"),
    ],
)
def test_fields_fit_the_numbers(sentence, measured, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        claim(
            "a", sentence, measured, measured if isinstance(measured, str) else np.array(measured)
        )


def test_claim_shows_itself_once_in_a_notebook_and_returns_nothing(monkeypatch):
    ipython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(ipython.display, "display", shown.append)
    monkeypatch.setattr(ipython, "get_ipython", lambda: object())
    assert claim("a", SENTENCE, 1, 1) is None
    assert [type(item) for item in shown] == [Claim]
    monkeypatch.setattr(ipython, "get_ipython", lambda: None)
    claim("a", SENTENCE, 1, 1)
    assert len(shown) == 1


def test_claims_work_where_ipython_is_missing():
    code = (
        "import sys; sys.modules['IPython'] = None\n"
        "from tfbook.teaching.claims import claim\n"
        "assert claim('a', 'One is one.', 1, 1) is None"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- what nbval may overlook ------------------------------------------------------------------


def sanitize(text):
    for pattern, replacement in get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8")):
        text = re.sub(pattern, replacement, text)
    return text


def forms(**changes):
    fields = {"slug": "a-b", "sentence": "S.", "measured": "1", "expected": "2", "wrong": "3"}
    return claims.Claim(**fields | changes)._repr_mimebundle_()


@pytest.mark.parametrize("form", ["text/plain", "text/html"])
def test_the_measured_figure_is_sanitised(form):
    assert sanitize(forms(measured="0.5")[form]) == sanitize(forms(measured="[7, 8]")[form])
    assert "MEASURED" in sanitize(forms()[form])


@pytest.mark.parametrize("form", ["text/plain", "text/html"])
@pytest.mark.parametrize(
    "change", [{"slug": "a-c"}, {"sentence": "T."}, {"expected": "2.1"}, {"wrong": "4"}]
)
def test_nothing_but_the_measured_figure_is_sanitised(form, change):
    assert sanitize(forms(**change)[form]) != sanitize(forms()[form])


@pytest.mark.parametrize(
    "text",
    [
        "measured 0.5 | expected 0.5",
        "the claim a: b | measured 0.5 | expected 0.5",
        "tensor([0.5]) measured",
        '<span class="measured">0.5</span>',
        "claim 0.5 of the estate",
    ],
)
def test_other_outputs_are_left_alone(text):
    assert sanitize(text) == text


def test_only_the_line_of_the_claim_is_touched():
    line = forms()["text/plain"]
    assert sanitize(f"0.25\n{line}\n0.75") == f"0.25\n{sanitize(line)}\n0.75"
