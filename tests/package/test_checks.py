"""Bad input: every attention variant refuses it with a message that names what is wrong."""

import beartype
import jaxtyping
import pytest
import shapecheck
import torch
from attention_properties import Bound
from jaxtyping import Float
from torch import Tensor

from tfbook import _checks
from tfbook.attention import VARIANTS, attend, attention_with, merge_partials
from tfbook.models import preset

B, H, N, M, D, E = 2, 3, 5, 7, 11, 13
INF, NAN = float("inf"), float("nan")
BOUNDS = {name: Bound(variant.fn, variant) for name, variant in VARIANTS.items()}
DOT = [name for name in BOUNDS if not VARIANTS[name].parameters]  # d_q and d_k must agree


def inputs(**changed):
    given = {
        "q": torch.randn(B, H, N, D),
        "k": torch.randn(B, H, M, D),
        "v": torch.randn(B, H, M, E),
    }
    return given | changed


BAD = {
    "not a tensor": (inputs(q=[[1.0]]), TypeError, "q must be a tensor, got list"),
    "None": (inputs(v=None), TypeError, "v must be a tensor, got NoneType"),
    "integers": (
        inputs(k=torch.ones(B, H, M, D, dtype=torch.int64)),
        TypeError,
        r"k must have a floating-point dtype, got torch.int64; convert it with k.float\(\)",
    ),
    "complex": (
        inputs(v=torch.randn(B, H, M, E, dtype=torch.complex64)),
        TypeError,
        "v must have a floating-point dtype, got torch.complex64",
    ),
    "a vector": (inputs(q=torch.randn(D)), ValueError, r"q needs at least 2 dimensions, got .*11"),
    "mixed dtypes": (
        inputs(k=torch.randn(B, H, M, D).double()),
        TypeError,
        "q and k must have the same dtype, got torch.float32 and torch.float64",
    ),
    "two devices": (
        inputs(v=torch.empty(B, H, M, E, device="meta")),
        ValueError,
        "q and v must be on the same device, got cpu and meta",
    ),
    "more keys than values": (
        inputs(v=torch.randn(B, H, M - 1, E)),
        ValueError,
        r"one value for each key.*k \(2, 3, 7, 11\) and v \(2, 3, 6, 13\)",
    ),
    "batches that do not fit": (
        inputs(k=torch.randn(4, H, M, D)),
        ValueError,
        r"leading dimensions do not broadcast: q \(2, 3\), k \(4, 3\), v \(2, 3\)",
    ),
    "a float mask": (
        inputs(mask=torch.zeros(N, M)),
        TypeError,
        "mask must be boolean with True = allowed, got torch.float32;.*to_boolean.*bias=",
    ),
    "an integer mask": (
        inputs(mask=torch.ones(N, M, dtype=torch.int64)),
        TypeError,
        "mask must be boolean",
    ),
    "a mask as a list": (inputs(mask=[[True]]), TypeError, "mask must be a tensor, got list"),
    "a mask of another size": (
        inputs(mask=torch.ones(N, M + 1, dtype=torch.bool)),
        ValueError,
        r"mask must broadcast to the scores, \(..., n, m\) = \(2, 3, 5, 7\), got \(5, 8\)",
    ),
    "a mask with keys before queries": (
        inputs(mask=torch.ones(M, N, dtype=torch.bool)),
        ValueError,
        "queries come before keys, try mask.mT",
    ),
    "a padding mask (B, M)": (
        inputs(mask=torch.ones(B, M, dtype=torch.bool)),
        ValueError,
        r"got \(2, 7\); one row for each sequence of the batch needs mask\[:, None, None, :\]",
    ),
    "a padding mask (B, 1, M)": (
        inputs(mask=torch.ones(B, 1, M, dtype=torch.bool)),
        ValueError,
        r"add a head dimension with mask.unsqueeze\(1\)",
    ),
    "a mask with more dimensions than the scores": (
        inputs(mask=torch.ones(1, B, H, N, M, dtype=torch.bool)),
        ValueError,
        "mask must broadcast to the scores",
    ),
    "a mask larger than the batch": (
        inputs(
            q=torch.randn(1, H, N, D),
            k=torch.randn(1, H, M, D),
            v=torch.randn(1, H, M, E),
            mask=torch.ones(B, 1, 1, M, dtype=torch.bool),
        ),
        ValueError,
        "mask must broadcast to the scores",
    ),
    "a mask on another device": (
        inputs(mask=torch.ones(N, M, dtype=torch.bool, device="meta")),
        ValueError,
        "mask must be on the device of q, cpu, got meta",
    ),
    "a boolean bias": (
        inputs(bias=torch.ones(N, M, dtype=torch.bool)),
        TypeError,
        "bias must have a floating-point dtype, got torch.bool; pass booleans as mask=",
    ),
    "a bias of another size": (
        inputs(bias=torch.zeros(N + 1, M)),
        ValueError,
        "bias must broadcast to the scores",
    ),
    "a bias of another dtype": (
        inputs(bias=torch.zeros(N, M).double()),
        TypeError,
        "q and bias must have the same dtype",
    ),
    "a mask as causal": (
        inputs(causal=torch.ones(N, M, dtype=torch.bool)),
        TypeError,
        "causal must be True or False, got Tensor",
    ),
    "scale NaN": (
        inputs(scale=float("nan")),
        ValueError,
        "scale must be finite and above 0, got nan",
    ),
    "scale infinite": (inputs(scale=float("inf")), ValueError, "scale must be finite .* got inf"),
    "scale zero": (inputs(scale=0.0), ValueError, "scale must be finite and above 0, got 0.0"),
    "scale negative": (inputs(scale=-1), ValueError, "scale must be finite and above 0, got -1"),
    "scale a tensor": (
        inputs(scale=torch.tensor(1.0)),
        TypeError,
        "scale must be a number, got Tensor",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", BOUNDS)
def test_every_variant_refuses(name, bad):
    given, error, message = BAD[bad]
    variant = BOUNDS[name]
    weights = variant.weights(*(inputs()[x] for x in "qk"))
    with pytest.raises(error, match=message):
        variant.fn(**given, **weights, **variant.options)


@pytest.mark.untyped
@pytest.mark.parametrize("name", DOT)
def test_queries_and_keys_of_different_size_are_refused_where_a_dot_product_is_taken(name):
    with pytest.raises(ValueError, match=r"same last dimension .* q \(2, 3, 5, 11\) and k"):
        BOUNDS[name](**inputs(k=torch.randn(B, H, M, D - 1)))


def test_a_padding_mask_without_heads_is_told_what_it_needs():
    with pytest.raises(ValueError, match=r"needs mask\[:, None, :\]"):
        _checks.check_mask(torch.ones(B, M, dtype=torch.bool), (B, N, M))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("name", "keywords", "error", "message"),
    [
        ("rows", {"rows": 0}, ValueError, "rows must be at least 1, got 0"),
        ("rows", {"rows": 2.0}, TypeError, "rows must be an integer, got float"),
        ("online", {"cols": -1}, ValueError, "cols must be at least 1, got -1"),
        ("online", {"rows": True}, TypeError, "rows must be an integer, got bool"),
        ("topk", {"top": 0}, ValueError, "top must be at least 1, got 0"),
    ],
)
def test_impossible_options_are_refused(name, keywords, error, message):
    with pytest.raises(error, match=message):
        VARIANTS[name].fn(**inputs(), **keywords)


@pytest.mark.untyped
def test_a_score_must_be_callable():
    with pytest.raises(TypeError, match="score must be callable, got str"):
        attention_with("dot")


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("outputs", "log_sum_exps", "message"),
    [
        ([], [], "equally many and at least one, got 0 and 0"),
        ([torch.ones(5, 2)], [], "equally many and at least one, got 1 and 0"),
        ([torch.ones(5, 2)], [torch.ones(5, 1)], r"log_sum_exps\[0\] must have shape"),
        (
            [torch.ones(5, 2), torch.ones(5, 3)],
            [torch.ones(5)] * 2,
            r"outputs\[1\] must have shape",
        ),
    ],
)
def test_parts_that_do_not_fit_are_not_merged(outputs, log_sum_exps, message):
    with pytest.raises(ValueError, match=message):
        merge_partials(outputs, log_sum_exps)


def test_the_tests_check_the_shapes_in_the_signatures():
    with pytest.raises(jaxtyping.TypeCheckError):
        attend(**inputs(v=torch.randn(B, H, M - 1, E)))


def test_of_many_calls_one_in_so_many_is_looked_at():
    good, bad = inputs(), inputs(v=torch.randn(B, H, M - 1, E))
    for _ in range(shapecheck.ALL):
        attend(**good)
    for _ in range(shapecheck.ONE_IN):
        with pytest.raises((ValueError, jaxtyping.TypeCheckError)) as seen:
            attend(**bad)
    assert seen.type is jaxtyping.TypeCheckError


def test_what_comes_back_is_compared_with_what_went_in():
    def halves(x: Float[Tensor, "n"], wrong: int = 0) -> Float[Tensor, "n"]:  # noqa: F821
        return x[wrong:] / 2

    seen = shapecheck.checked(halves, typechecker=shapecheck.check)
    assert torch.equal(seen(torch.ones(3)), torch.full((3,), 0.5))
    with pytest.raises(jaxtyping.TypeCheckError, match="halves"):
        seen(torch.ones(3), 1)


def test_what_names_no_array_has_its_types_checked():
    with pytest.raises(beartype.roar.BeartypeCallHintParamViolation):
        preset(3)


def test_a_shape_is_seen_wherever_it_stands_in_a_signature():
    row = Float[Tensor, "n"]  # noqa: F821
    with_shapes = [row, tuple[str, row], list[row | None], "LaterInTheModule"]
    for hint, seen in [(hint, True) for hint in with_shapes] + [(Tensor, False), (int, False)]:

        def function(x, y=None):
            pass

        for name in ("x", "return"):
            function.__annotations__ = {name: hint}
            assert shapecheck.names_an_array(function) is seen, (name, hint)


def test_a_good_number_passes_and_nothing_comes_back():
    assert _checks.check_number("n", 3) is None
    assert _checks.check_number("n", 3, whole=True) is None


RANGES = {
    "of a count": ({"low": 0, "whole": True}, [0, 7], [-1], "n must be at least 0, got -1"),
    "of a size": ({"low": 1, "whole": True}, [1], [0], "n must be at least 1, got 0"),
    "between": ({"low": 0, "high": 1}, [0, 0.5, 1], [-0.1, 1.1, NAN], "n must be from 0 to 1, got"),
    "below": ({"low": 0, "below": 1}, [0, 0.99], [1, -1, INF], "from 0 up to below 1, got"),
    "above": ({"above": 0}, [1e-9, 5], [0, -2.0, INF, NAN], "n must be finite and above 0, got"),
    "share": ({"high": 1, "above": 0}, [1, 0.1], [0, 1.5], "n must be above 0 and at most 1, got"),
    "finite": ({}, [-3, 0, 1e30], [INF, -INF, NAN], "n must be finite, got"),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_is_refused_out_of_its_range(name):
    bounds, good, bad, message = RANGES[name]
    for value in good:
        _checks.check_number("n", value, **bounds)
    for value in bad:
        with pytest.raises(ValueError, match=message):
            _checks.check_number("n", value, **bounds)


@pytest.mark.parametrize("value", [True, "1", None, torch.tensor(1), 1j])
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_no_number_is_refused(value, whole):
    wanted = "an integer" if whole else "a number"
    with pytest.raises(TypeError, match=f"n must be {wanted}, got {type(value).__name__}"):
        _checks.check_number("n", value, whole=whole)


def test_what_need_not_be_finite_is_still_a_number():
    _checks.check_number("n", INF, 0, finite=False)
    for value in (NAN, -1.0, -INF):
        with pytest.raises(ValueError, match="n must be at least 0, got"):
            _checks.check_number("n", value, 0, finite=False)


def test_a_count_is_no_fraction():
    with pytest.raises(TypeError, match="n must be an integer, got float"):
        _checks.check_number("n", 2.0, whole=True)


def test_leading_dimensions_broadcast_as_those_of_tensors():
    for shapes in ([(2, 3), (3,)], [(), (5,)], [(4, 1, 3), (2, 1)], [(0,), (1,)], [(7,)]):
        named = {f"x{i}": shape for i, shape in enumerate(shapes)}
        assert _checks.broadcast_batch(**named) == tuple(torch.broadcast_shapes(*shapes))
