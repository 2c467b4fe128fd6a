"""Drawings in steps, in Python: what they compute, what they say as text, what is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfbook.teaching.explorables import attention_walk, stepper

Q = [1.5, -0.2, 0.7, 0.1]
KEYS = [[0.1, 1, 0, 0.2], [0, 0.3, 0.1, -0.5], [1.2, 0, 0.4, 0]]
VALUES = [[0.1, 0.9], [0, 0.2], [1, -0.9]]
TOKENS = ["sat", "river", "bank"]
SQUARE = {"matrix": "K", "values": [[1, 2], [3, 4]]}
STEPS = [
    {"caption": "First `this` d_k.", "parts": [SQUARE | {"rows": ["a", "b"], "highlight": 1}]},
    {
        "caption": "Then that.",
        "formula": "s = q · k",
        "parts": ["K", {"bars": "s", "values": [0.125, -1]}, {"matrix": "W", "shape": (2, 3)}],
        "arrows": [("K", "s", "times q")],
    },
    {"caption": "And then.", "parts": [{"bars": "s", "values": [0.5, -1]}], "pale": ["K"]},
]


def drawn(*changes, at=0, **more):
    """The stepper with one step changed."""
    steps = [dict(step) for step in STEPS]
    for change in changes:
        steps[at] |= change
    return stepper("drawn", **{"steps": steps, "title": "A title", "alt": "What is there."} | more)


def part(**changes):
    """The stepper with the first part changed."""
    return drawn({"parts": [{**SQUARE, **changes}]})


# ------------------------------------------------------------------------------------ attention


@pytest.mark.parametrize("scale", [True, False])
def test_the_walk_in_plain_numbers(scale):
    figure = attention_walk(Q, KEYS, VALUES, TOKENS, scale)
    scores = [math.fsum(a * b for a, b in zip(Q, k, strict=True)) for k in KEYS]
    scaled = [s / 2 for s in scores] if scale else scores
    powers = [math.exp(s) for s in scaled]
    weights = [p / math.fsum(powers) for p in powers]
    output = [math.fsum(w * v[i] for w, v in zip(weights, VALUES, strict=True)) for i in (0, 1)]
    for name, wanted in (
        ("scores", scores), ("scaled", scaled), ("weights", weights), ("output", output),
    ):  # fmt: skip
        assert getattr(figure, name) == pytest.approx(wanted, abs=1e-12), name
    assert len(figure.data["steps"]) == 6 - (not scale)
    assert ("√" in repr(figure)) is scale


@given(st.integers(1, 6), st.integers(2, 8), st.integers(1, 6), st.integers(0, 99))
def test_each_number_of_the_walk_is_drawn(d, m, wide, seed):
    make = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(*n, generator=make).double() for n in ((d,), (m, d), (m, wide)))
    figure = attention_walk(q, k, v, [f"t{i}" for i in range(m)])
    seen = {}
    for step in figure.data["steps"]:
        seen |= {name: one["values"] for name, one in step["changes"].items()}
    assert seen == {
        "q": [q.tolist()], "K": k.tolist(), "V": v.tolist(), "scores": figure.scaled,
        "weights": figure.weights, "output": [figure.output],
    }  # fmt: skip
    wanted = torch.softmax(k @ q / math.sqrt(d), 0)
    assert torch.allclose(torch.tensor(figure.weights).double(), wanted)
    assert torch.allclose(torch.tensor(figure.output).double(), wanted @ v)


def test_the_walk_computes_one_number_in_words():
    said = " ".join(repr(attention_walk(Q, KEYS, VALUES, TOKENS, of="bank")).split())
    assert "The query of “bank”" in said
    assert "For “bank”: 1.5·1.2 + (−0.2)·0 + 0.7·0.4 + 0.1·0 = 2.08." in said
    assert "2.08 becomes 1.04." in said and "“bank” gets 0.59." in said
    assert "Its first number: 0.21·0.1 + 0.20·0 + 0.59·1 ≈ 0.61." in said


# ------------------------------------------------------------------------------------ any drawing


def test_a_part_keeps_what_it_is_and_where():
    first, second, third = drawn().data["steps"]
    assert second["changes"].keys() == {"s", "W"} and third["changes"].keys() == {"s"}
    places = {name: one["at"] for step in (first, second) for name, one in step["changes"].items()}
    assert places == {"K": [0, 0], "s": [0, 1], "W": [0, 2]}
    assert third["changes"]["s"] | {"values": 0, "digits": 0} == second["changes"]["s"] | {
        "values": 0, "digits": 0,
    }  # fmt: skip
    assert (third["parts"], third["pale"]) == (["s"], ["K"])


def test_the_room_of_a_part_is_that_of_all_steps():
    assert drawn().data["spans"] == {"K": [0, 4], "s": [-1, 0.5], "W": [0, 0]}
    reach = drawn({"parts": [{"bars": "s", "values": [0.5, -1], "reach": 2.0}]}, at=2)
    assert reach.data["spans"]["s"] == [-2, 2]


def test_numbers_are_written_with_the_digits_they_need():
    digits = [one["digits"] for step in drawn().data["steps"] for one in step["changes"].values()]
    assert digits == [0, 2, 0, 1]
    assert part(digits=3).data["steps"][0]["changes"]["K"]["digits"] == 3


def test_the_text_lists_every_step_with_its_new_numbers():
    said = " ".join(repr(drawn()).split())
    assert said == (
        "A title What is there. "
        "Step 1 of 3. First `this` d_k. K (2 × 2): a 1, 2; b 3, 4. "
        "Step 2 of 3. Then that. s = q · k. s (2): 0.12; -1.00. W (2 × 3). "
        "Step 3 of 3. And then. s (2): 0.5; -1.0."
    )
    html = drawn()._repr_mimebundle_()["text/html"]
    assert html.count("<li>") == 3 and "First <code>this</code> d<sub>k</sub>." in html


def test_tensors_and_rows_are_taken():
    numbers = drawn(
        {"parts": [{"matrix": "q", "values": torch.tensor([1, 2])}]}, {"arrows": []}, at=1
    ).data["steps"][1]["changes"]["q"]
    assert (numbers["values"], numbers["shape"]) == ([[1.0, 2.0]], [1, 2])


def test_the_step_can_be_set():
    figure = drawn(step=1)
    figure.step = 2
    assert figure.step == 2
    with pytest.raises(ValueError, match="step must be between 0 and 2, got 3"):
        figure.step = 3


NONE = {"arrows": []}
BAD = [
    (lambda: drawn(steps=STEPS[:1]), ValueError, "steps must be 2 to 12, got 1"),
    (lambda: drawn(steps={"a": 1}), TypeError, "steps must be a list of dictionaries, got dict"),
    (lambda: drawn(steps=[1, 2]), TypeError, r"steps\[0\] must be a dictionary, got int"),
    (lambda: drawn(title=" "), ValueError, "title must not be empty"),
    (lambda: drawn(alt=3), TypeError, "alt must be a string, got int"),
    (lambda: drawn(step=3), ValueError, "step must be between 0 and 2, got 3"),
    (lambda: drawn({"caption": None}), TypeError, r"steps\[0\] caption must be a string"),
    (lambda: drawn({"picture": 1}), ValueError, r"steps\[0\] has no picture"),
    (lambda: drawn({"parts": []}), ValueError, "parts must be 1 to 8, got 0"),
    (lambda: drawn({"parts": "K"}), TypeError, "parts must be a list, got str"),
    (lambda: drawn({"parts": [3]}), TypeError, "must be a name or a dictionary, got int"),
    (lambda: drawn({"parts": ["Q"]}), ValueError, "names 'Q', which no step before has drawn"),
    (lambda: drawn({"pale": ["Q"]}), ValueError, "pale names 'Q', which no step before"),
    (lambda: drawn({"pale": ["K"]}), ValueError, "has 'K' among its parts and pale"),
    (lambda: drawn({"parts": ["K", "K"]} | NONE, at=1), ValueError, "has the part 'K' twice"),
    (lambda: drawn({"arrows": [("K",)]}), ValueError, r"arrows\[0\] must be \(from, to\)"),
    (lambda: drawn({"arrows": [("K", "s")]}), ValueError, "leads to 's', which the step does not"),
    (
        lambda: drawn({"parts": ["K", {"bars": "s", "values": [1], "at": (0, 0)}]}, at=1),
        ValueError,
        "two parts in one place",
    ),
    (lambda: part(bars="K"), ValueError, "must have one of matrix, bars"),
    (lambda: part(value=1), ValueError, r"parts\[0\] has no value"),
    (lambda: part(values=None), TypeError, "must be a list of rows"),
    (lambda: part(values=[[1, 2], [3]]), ValueError, "row 1 must have 2 numbers"),
    (lambda: part(values=[[math.nan]]), ValueError, "must be between"),
    (lambda: part(values=[[1] * 9]), ValueError, "at most 8 × 8, got 1 × 9"),
    (lambda: part(rows=["a"]), ValueError, "rows must be 2 names, got 1"),
    (lambda: part(columns=list("abc")), ValueError, "columns must be 2 names, got 3"),
    (lambda: part(highlight=2), ValueError, "highlight must be between 0 and 1"),
    (lambda: part(digits=5), ValueError, "digits must be between 0 and 4"),
    (lambda: part(reach=0), ValueError, "reach must be between"),
    (lambda: part(at=(1,)), ValueError, "at must be a row and a column"),
    (lambda: part(at=(0, 8)), ValueError, "at must be between 0 and 7"),
    (lambda: drawn({"parts": [{"matrix": "K"}]}), ValueError, "must have values or a shape"),
    (lambda: drawn({"parts": [{"bars": "K"}]}), ValueError, "must have values$"),
    (
        lambda: drawn({"parts": [{"bars": "K", "values": [1]}]} | NONE, at=1),
        ValueError,
        "makes bars of 'K', which was matrix",
    ),
    (lambda: attention_walk(Q, KEYS, VALUES, "abc"), TypeError, "tokens must be a list of strings"),
    (lambda: attention_walk(Q, KEYS, VALUES, ["a"]), ValueError, "tokens must be 2 to 8, got 1"),
    (lambda: attention_walk(Q[:3], KEYS, VALUES, TOKENS), ValueError, "row 0 must have 3 numbers"),
    (lambda: attention_walk(Q, KEYS[:2], VALUES, TOKENS), ValueError, "keys must have 3 rows"),
    (lambda: attention_walk(Q, KEYS, VALUES[:2], TOKENS), ValueError, "values must have 3 rows"),
    (lambda: attention_walk([1] * 7, [[1] * 7] * 3, VALUES, TOKENS), ValueError, "at most 6 wide"),
    (lambda: attention_walk(Q, KEYS, VALUES, TOKENS, 2), TypeError, "scale must be True or False"),
    (lambda: attention_walk(Q, KEYS, VALUES, TOKENS, slug="A"), ValueError, "slug must be lower"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("make", "error", "words"), BAD)
def test_bad_input_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
