"""The exercises of chapter 17 on few bits: weights in groups, and gradients that were scaled."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_tensor, numbers

# quantise-groups --------------------------------------------------------------------------------


def quantise_groups(
    weight: torch.Tensor, bits: int, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a matrix to whole numbers, with a scale for each group in a row.

    weight: (n, d). bits: of a code. group: weights that share a scale;
    d is a multiple of it.
    Returns: codes (n, d), int8, from −(2^(bits−1) − 1) to 2^(bits−1) − 1;
    and scales (n, d / group). A group of zeros has codes 0 and scale 0.
    """
    ...


def _pair(got: Any, weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong("Return two tensors, the codes and the scales.", got=got)
    codes, scale = got
    expect_tensor(codes, tuple(weight.shape), torch.int8, what="The first result, the codes,")
    shape = (weight.shape[0], weight.shape[1] // group)
    expect_tensor(scale, shape, weight.dtype, what="The second result, the scales,")
    return codes, scale


def _scales(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    return weight.unflatten(1, (-1, group)).abs().amax(-1) / (2 ** (bits - 1) - 1)


def _codes(weight: torch.Tensor, scale: torch.Tensor, group: int) -> torch.Tensor:
    width = scale.where(scale > 0, 1.0)
    return weight.unflatten(1, (-1, group)) / width[..., None]


def _groups_scale(quantise: Any) -> None:
    """The largest weight of each group is at the end of the range."""
    weight = numbers(3, 8, seed=1) * torch.tensor([1.0, 1, 1, 1, 5, 5, 5, 5])
    groups = weight.unflatten(1, (-1, 4))
    _, scale = _pair(quantise(weight, 4, 4), weight, 4)
    rows = weight.abs().amax(1, keepdim=True).expand(3, 2) / 7
    expect(scale, _scales(weight, 4, 4), "A scale is the largest absolute value of its group, "
           "divided by the largest code.", what="The second result, the scales,", mistakes={
        "The scales divide by 2^(bits−1) = 8. The codes reach from −7 to 7, so that the largest "
        "weight would get the code 8, which is none.": groups.abs().amax(-1) / 8,
        "The scales divide by 2^bits − 1 = 15, as if codes had no sign.":
            groups.abs().amax(-1) / 15,
        "The sign is left out of account: the largest weight is taken, not the largest absolute "
        "value.": groups.amax(-1) / 7,
        "All groups of a row have one scale here.": rows,
        "The whole matrix has one scale here.": weight.abs().max().expand(3, 2) / 7,
        "Groups are neighbours in a row. Here every second number belongs to one.":
            weight.view(3, 4, 2).abs().amax(1) / 7,
    })  # fmt: skip


def _groups_codes(quantise: Any) -> None:
    """Each code is the nearest whole number."""
    weight = numbers(4, 6, seed=2) + 0.013
    codes, _ = _pair(quantise(weight, 4, 3), weight, 3)
    exact = _codes(weight, _scales(weight, 4, 3), 3).flatten(1)
    expect(codes, exact.round().to(torch.int8), "Divide by the scale of the group, then round.",
           what="The first result, the codes,", mistakes={
        "The codes are cut off towards 0. Round to the nearest: the error is half as large.":
            exact.trunc().to(torch.int8),
        "The codes are rounded down. Round to the nearest.": exact.floor().to(torch.int8),
        "The codes begin at 0 here. They have a sign.": (exact.round() + 7).to(torch.int8),
    })  # fmt: skip


def _groups_eight(quantise: Any) -> None:
    """With eight bits no weight is off by more than half a step."""
    weight = numbers(5, 12, seed=3) / 3
    codes, scale = _pair(quantise(weight, 8, 6), weight, 6)
    back = (codes.unflatten(1, (-1, 6)) * scale[..., None]).flatten(1)
    error = (back - weight).abs().unflatten(1, (-1, 6)).amax(-1)
    if bool((error > 0.5001 * scale).any()) or int(codes.abs().max()) != 127:
        raise Wrong("With 8 bits the codes reach to ±127, and code times scale is at most half a "
                    "scale away from the weight.", got=codes)  # fmt: skip


def _groups_zero(quantise: Any) -> None:
    """A group of zeros stays zero."""
    weight = torch.cat([numbers(2, 4, seed=4), torch.zeros(2, 4, dtype=torch.float64)], 1)
    codes, scale = _pair(quantise(weight, 4, 4), weight, 4)
    if bool(codes[:, 4:].any()):
        raise Wrong("The codes of a group of zeros are not 0. There 0 was divided by 0, which is "
                    "NaN, and NaN as a whole number can be anything.", got=codes)  # fmt: skip
    expect(scale, _scales(weight, 4, 4), "A group of zeros has the scale 0.",
           what="The second result, the scales,")  # fmt: skip


QUANTISE_GROUPS = Exercise(
    name="quantise-groups",
    title="Four bits a weight",
    level=2,
    section='chapters/17_hardware, section "Weights in few bits"',
    stub=quantise_groups,
    properties=(_groups_scale, _groups_codes, _groups_eight, _groups_zero),
    hints=(
        "`weight.unflatten(1, (-1, group))` gives the groups a dimension of their own. Which "
        "dimension is the largest absolute value taken over?",
        "The largest code of 4 bits is 7. What has to stand at the end of a scale, so that groups "
        "and scales can be divided?",
        "Where a scale is 0, divide by 1 instead: `scale.where(scale > 0, 1.0)`.",
    ),
)

# scaled-step ------------------------------------------------------------------------------------


def scaled_step(
    gradients: list[torch.Tensor], scale: float, limit: float
) -> tuple[list[torch.Tensor] | None, float]:
    """Turn scaled gradients into those of a step, clipped to a norm of limit.

    gradients: tensors, S times too large. scale: S. limit: of the norm over
    all tensors.
    Returns: the gradients to step with, and the next S; None and S / 2 if
    one is not finite.
    """
    if not all(g.isfinite().all() for g in gradients):
        return None, scale / 2
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    factor = min(1.0, limit / norm) if norm else 1.0
    return [g * factor / scale for g in gradients], scale


def _two(got: Any) -> tuple[Any, float]:
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong("Return the gradients of the step and the next S.", got=got)
    return got[0], got[1]


def _drawn(seed: int) -> list[torch.Tensor]:
    return [numbers(3, 2, seed=seed), numbers(4, seed=seed + 1)]


def _norm(gradients: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(g.square().sum()) for g in gradients))


def _compare(step: Any, limit: float, wanted: list[torch.Tensor], mistakes: dict) -> None:
    real = _drawn(11)
    found, scale = _two(step([64 * g for g in real], 64.0, limit))
    if not isinstance(found, list | tuple) or len(found) != len(real):
        raise Wrong("Return one gradient for each that was given.", got=found)
    line = torch.cat([torch.as_tensor(g).flatten() for g in found])
    slips = {words: torch.cat([g.flatten() for g in x]) for words, x in mistakes.items()}
    expect(line, torch.cat([g.flatten() for g in wanted]), "Compare with the real gradients, "
           "clipped.", mistakes=slips, what="The gradients, one after another,")  # fmt: skip
    if scale != 64.0:
        raise Wrong("After a step that was taken, S stays as it is.", got=scale, wanted=64.0)


def _step_unclipped(step: Any) -> None:
    """Gradients below the limit come back S times smaller, and no smaller."""
    real = _drawn(11)
    norm = _norm(real)
    _compare(step, 2 * norm, real, {
        "The gradients are too small by a factor: they were measured for clipping while they were "
        "still S times too large.": [g * 2 / 64 for g in real],
        "The gradients are still S times too large.": [64 * g for g in real],
        "The gradients are brought up to the limit. Clipping only makes them smaller.":
            [g * 2 for g in real],
    })  # fmt: skip


def _step_clipped(step: Any) -> None:
    """Gradients above the limit have its norm in the end."""
    real = _drawn(11)
    norm = _norm(real)
    _compare(step, norm / 4, [g / 4 for g in real], {
        "These gradients are not clipped: their norm is four times the limit.": real,
        "The gradients are too small by the factor S: they were clipped before they were divided.":
            [g / 4 / 64 for g in real],
        "Each tensor is clipped by its own norm. One norm is taken over all of them.":
            [g * min(1, norm / 4 / float(g.norm())) for g in real],
    })  # fmt: skip


def _step_infinite(step: Any) -> None:
    """A gradient that is not finite costs the step and half of S."""
    for bad in (math.inf, math.nan):
        gradients = _drawn(15)
        gradients[1][2] = bad
        found, scale = _two(step(gradients, 8.0, 1.0))
        if found is not None:
            raise Wrong("One gradient is infinite or NaN, so no step may be taken: return None.",
                        got=found)  # fmt: skip
        if scale != 4.0:
            raise Wrong("After an infinite gradient S is halved.", got=scale, wanted=4.0)


def _step_zero(step: Any) -> None:
    """Gradients that are all 0 stay 0."""
    found, _ = _two(step([torch.zeros(3, dtype=torch.float64)], 4.0, 1.0))
    expect(found[0], torch.zeros(3, dtype=torch.float64), "Their norm is 0: divide by it and NaN "
           "comes out.", what="The gradient")  # fmt: skip


SCALED_STEP = Exercise(
    name="scaled-step",
    title="A step that learns nothing",
    level=1,
    section='chapters/17_hardware, section "Numbers bit by bit"',
    stub=scaled_step,
    properties=(_step_unclipped, _step_clipped, _step_infinite, _step_zero),
    hints=(
        "Take one gradient, 0.5, with S = 64 and a limit of 1. Follow it through the function by "
        "hand.",
        "Whose norm is compared with the limit: that of the gradients as they came, or that of "
        "the real ones?",
        "The norm belongs to `g / scale`. What has then to be left out of the last line?",
    ),
    broken=True,
)

EXERCISES = (QUANTISE_GROUPS, SCALED_STEP)
