"""The exercise of chapter 11 on gradients that are too long."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers, parts, same

# clip-norm --------------------------------------------------------------------------------------


def clip_norm(
    gradients: list[torch.Tensor], limit: float
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Shorten a gradient that is too long, and keep its direction.

    The gradients of all parameters together are one long vector. Where its length, the root of
    the sum of the squares of all numbers, is above the limit, all are multiplied by limit / length.
    A shorter gradient stays as it is.

    gradients: tensors of any shapes, at least one. limit: the longest length, above 0.
    Returns: the gradients afterwards, a list, and the length before, a tensor of shape ().
    """
    ...


def _length(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([g.flatten() for g in gradients]).square().sum().sqrt()


def _clipped(clip: Any, gradients: list[torch.Tensor], limit: float) -> tuple[Any, Any]:
    """Call the reader's function, and see that it returns a list and a length."""
    got = parts(clip([g.clone() for g in gradients], limit), "gradients", "length")
    if not isinstance(got[0], list | tuple) or len(got[0]) != len(gradients):
        raise Wrong(
            "The first result is a list with one tensor for each gradient.", got=got[0],
            given={"gradients": gradients, "limit": limit},
        )
    return got


def _scaled(gradients: list[torch.Tensor], factor: Any) -> list[torch.Tensor]:
    return [g * factor for g in gradients]


def _clip_check(
    clip: Any, gradients: list[torch.Tensor], limit: float, otherwise: str,
    mistakes: dict[str, list[torch.Tensor]],
) -> None:
    """Compare all clipped gradients, the known slips as whole lists first."""
    got = _clipped(clip, gradients, limit)[0]
    right = _scaled(gradients, min(1.0, limit / max(_length(gradients).item(), 1e-30)))
    given = {"gradients": gradients, "limit": limit}
    if all(isinstance(g, torch.Tensor) for g in got):
        pairs = list(zip(got, right, strict=True))
        if not all(same(a, b, 1e-6) for a, b in pairs):
            for words, slip in mistakes.items():
                if all(same(a, b, 1e-6) for a, b in zip(got, slip, strict=True)):
                    raise Wrong(words, given=given, got=got, wanted=right)
    for place, (g, wanted) in enumerate(zip(got, right, strict=True)):
        expect(g, wanted, otherwise, what=f"Gradient {place}", given=given)


LONG = ([3.0, -4.0], [[1.0, 2.0], [-0.5, 4.0]], [1.5])


def _clip_length(clip: Any) -> None:
    """The length is that of all gradients together, before clipping."""
    gradients = [torch.tensor(g) for g in LONG]
    lengths = torch.stack([g.norm() for g in gradients])
    flat = torch.cat([g.flatten() for g in gradients])
    expect(
        _clipped(clip, gradients, 2.0)[1],
        _length(gradients),
        "The length is the root of the sum of all squares.",
        what="The second result, the length,",
        given={"gradients": gradients, "limit": 2.0},
        mistakes={
            "The lengths of the tensors were added. Their squares add up, and the root comes "
            "last.": lengths.sum(),
            "The root is missing.": flat.square().sum(),
            "These are the lengths of the single tensors. One length is wanted, of all together.":
                lengths,
            "This is the length of the longest tensor. All together are longer.": lengths.amax(),
            "This is the largest number. The length is the root of the sum of squares.":
                flat.abs().amax(),
            "The absolute values were added. The length is the root of the sum of squares.":
                flat.abs().sum(),
            "The squares were averaged. Add them up.": flat.square().mean().sqrt(),
            "This is the length after clipping. The one before it tells how the run goes.":
                torch.tensor(2.0),
            "This is the length of the last tensor alone.": lengths[-1],
        },
    )


def _clip_long(clip: Any) -> None:
    """A gradient that is too long is multiplied by one factor."""
    gradients = [torch.tensor(g) for g in LONG]
    length = _length(gradients)
    _clip_check(
        clip, gradients, 2.0,
        "All gradients should be multiplied by the same number, limit / length.",
        {
            "Nothing was shortened.": gradients,
            "Each tensor was shortened by itself, which turns the gradient: the parameters no "
            "longer move in proportion. One factor for all.":
                [g * min(1.0, 2.0 / g.norm().item()) for g in gradients],
            "Each tensor was made as long as the limit. One factor for all.":
                [g * 2.0 / g.norm() for g in gradients],
            "Each number was cut off at the limit, which turns the gradient. Multiply all by one "
            "factor.": [g.clamp(-2.0, 2.0) for g in gradients],
            "The factor is upside down: multiply by limit / length.":
                _scaled(gradients, length / 2.0),
            "The gradients were divided by their length, but not multiplied by the limit.":
                _scaled(gradients, 1 / length),
            "The gradients were multiplied by the limit, but not divided by their length.":
                _scaled(gradients, 2.0),
            "The factor has the squared length in it: multiply by limit / length.":
                _scaled(gradients, 2.0 / length**2),
            "A gradient that is too long was set to 0. Shorten it.": _scaled(gradients, 0.0),
        },
    )


def _clip_short(clip: Any) -> None:
    """A gradient that is short enough stays as it is."""
    gradients = [torch.tensor([0.3, -0.4]).double(), torch.tensor([[1.2]]).double()]
    for limit in (1.3001, 5.0):
        _clip_check(
            clip, gradients, limit,
            f"The length is 1.3 and the limit {limit}: nothing should change.",
            {
                "A short gradient was made as long as the limit. It stays: the factor is at most "
                "1.": _scaled(gradients, limit / 1.3),
                "A short gradient was shortened further. It stays.":
                    _scaled(gradients, 1.3 / limit),
            },
        )


def _clip_zero(clip: Any) -> None:
    """A gradient of zeros stays one."""
    gradients = [torch.zeros(2, 3).double(), torch.zeros(()).double()]
    _clip_check(
        clip, gradients, 1.0, "The length is 0, and limit / length does not exist. Nothing should "
        "change.", {},
    )


def _clip_many(clip: Any) -> None:
    """Any number of tensors, and afterwards none is longer than the limit."""
    for count, limit in ((1, 0.1), (5, 3.0), (3, 1e-4)):
        shapes = ((2, 3), (), (7,), (1, 2, 2), (3,))[:count]
        gradients = [numbers(*shape, seed=541 + i) for i, shape in enumerate(shapes)]
        _clip_check(
            clip, gradients, limit, f"With {count} tensors and the limit {limit} it differs.", {},
        )
        expect(
            _clipped(clip, gradients, limit)[1], _length(gradients),
            f"With {count} tensors the length differs.", what="The length",
        )


CLIP_NORM = Exercise(
    name="clip-norm",
    title="Clip a gradient",
    level=2,
    section='chapters/11_training, section "Clipping"',
    stub=clip_norm,
    properties=(_clip_length, _clip_long, _clip_short, _clip_zero, _clip_many),
    hints=(
        "One length, one factor. The direction of a vector stays when all its numbers are "
        "multiplied by the same.",
        "The squared lengths of the tensors add up: `sum(g.square().sum() for g in gradients)`. "
        "The factor is limit / length, but never above 1.",
        "One formula serves all three cases, too long, short enough and zero, if the length in the "
        "denominator is never below the limit: `clamp` has a `min`.",
    ),
)

EXERCISES = (CLIP_NORM,)
