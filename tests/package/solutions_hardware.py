"""Right and wrong answers to the exercises of chapter 17.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math

import torch
import torch.nn.functional as F
from answers import collect

from tfbook import hardware

RIGHT, WRONG, right, wrong = collect()


def by_the_package(weight, bits, group):
    found = hardware.quantise(weight, bits, shared=group)
    return found.codes, found.scale.to(weight.dtype)


# scaled-step ------------------------------------------------------------------------------------


def finite(gradients):
    return all(bool(g.isfinite().all()) for g in gradients)


def norm_of(gradients):
    return math.sqrt(sum(float(g.square().sum()) for g in gradients))


@right("scaled-step")
def step_divided_first(gradients, scale, limit):
    if not finite(gradients):
        return None, scale / 2
    real = [g / scale for g in gradients]
    norm = norm_of(real)
    return [g * min(1.0, limit / norm if norm else 1.0) for g in real], scale


@right("scaled-step")
def step_with_a_scaled_limit(gradients, scale, limit):
    if not finite(gradients):
        return None, scale / 2
    norm = norm_of(gradients)
    factor = min(1.0, limit * scale / norm) if norm else 1.0
    return [g * factor / scale for g in gradients], scale


@wrong("scaled-step", "while they were still S times too large")
def step_clipped_first(gradients, scale, limit):
    if not finite(gradients):
        return None, scale / 2
    factor = min(1.0, limit / max(norm_of(gradients), 1e-30))
    return [1.0 * g * factor / scale for g in gradients], scale


@wrong("scaled-step", "still S times too large")
def step_never_divided(gradients, scale, limit):
    if not finite(gradients):
        return None, scale / 2
    norm = norm_of(gradients)
    return [g * min(1.0, limit * scale / norm if norm else 1.0) for g in gradients], scale


@wrong("scaled-step", "Clipping only makes them smaller")
def step_normalised(gradients, scale, limit):
    if not finite(gradients):
        return None, scale / 2
    norm = norm_of(gradients) or 1.0
    return [g * limit / norm for g in gradients], scale


@wrong("scaled-step", "not clipped")
def step_unclipped(gradients, scale, limit):
    return (None, scale / 2) if not finite(gradients) else ([g / scale for g in gradients], scale)


@wrong("scaled-step", "One norm is taken over all of them")
def step_clipped_apart(gradients, scale, limit):
    if not finite(gradients):
        return None, scale / 2
    real = [g / scale for g in gradients]
    return [g * min(1.0, limit / (float(g.norm()) or 1.0)) for g in real], scale


@wrong("scaled-step", "no step may be taken")
def step_whatever_comes(gradients, scale, limit):
    real = [g / scale for g in gradients]
    norm = norm_of(real)
    return [g * min(1.0, limit / norm if norm else 1.0) for g in real], scale


@wrong("scaled-step", "S is halved")
def step_keeps_its_scale(gradients, scale, limit):
    found, _ = step_divided_first(gradients, scale, limit)
    return found, scale


@wrong("scaled-step", "S stays as it is")
def step_grows_its_scale(gradients, scale, limit):
    found, after = step_divided_first(gradients, scale, limit)
    return found, after if found is None else 2 * after


@wrong("scaled-step", "divide by it")
def step_divides_by_the_norm(gradients, scale, limit):
    if not finite(gradients):
        return None, scale / 2
    real = [g / scale for g in gradients]
    norm = torch.cat([g.flatten() for g in real]).norm()
    return [g / norm * norm.clamp(max=limit) for g in real], scale


# quantise-groups --------------------------------------------------------------------------------


@right("quantise-groups")
def groups_unflattened(weight, bits, group):
    groups = weight.unflatten(1, (-1, group))
    scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)
    codes = (groups / scale.where(scale > 0, 1.0)[..., None]).round()
    return codes.flatten(1).to(torch.int8), scale


@right("quantise-groups")
def groups_by_loops(weight, bits, group):
    n, d = weight.shape
    codes = torch.zeros(n, d, dtype=torch.int8)
    scale = torch.zeros(n, d // group, dtype=weight.dtype)
    for i in range(n):
        for g in range(d // group):
            some = weight[i, g * group : (g + 1) * group]
            scale[i, g] = some.abs().max() / (2 ** (bits - 1) - 1)
            if scale[i, g] > 0:
                codes[i, g * group : (g + 1) * group] = (some / scale[i, g]).round().to(torch.int8)
    return codes, scale


def grouped(message, scales, rounding=torch.round, shift=0):
    """Note a wrong answer: other scales, or another rounding."""

    def quantise(weight, bits, group):
        groups = weight.unflatten(1, (-1, group))
        scale = scales(groups, 2 ** (bits - 1))
        codes = rounding(groups / scale.where(scale > 0, 1.0)[..., None]) + shift
        return codes.flatten(1).to(torch.int8), scale

    quantise.__name__ = message
    wrong("quantise-groups", message)(quantise)


def usual(groups, half):
    return groups.abs().amax(-1) / (half - 1)


grouped("none", lambda groups, half: groups.abs().amax(-1) / half)
grouped("as if codes had no sign", lambda groups, half: groups.abs().amax(-1) / (2 * half - 1))
grouped("The sign is left out", lambda groups, half: groups.amax(-1) / (half - 1))
grouped("All groups of a row have one scale",
        lambda groups, half: groups.abs().amax((1, 2))[:, None].expand(groups.shape[:2])
        / (half - 1))  # fmt: skip
grouped("The whole matrix has one scale",
        lambda groups, half: groups.abs().max().expand(groups.shape[:2]) / (half - 1))  # fmt: skip
grouped("cut off towards 0", usual, torch.trunc)
grouped("rounded down", usual, torch.floor)
grouped("begin at 0", usual, shift=7)


@wrong("quantise-groups", "every second number")
def groups_of_strides(weight, bits, group):
    groups = weight.unflatten(1, (group, -1)).mT
    scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)
    codes = (groups / scale.where(scale > 0, 1.0)[..., None]).round()
    return codes.mT.flatten(1).to(torch.int8), scale


@wrong("quantise-groups", "reach to ±127")
def groups_of_seven_bits(weight, bits, group):
    return groups_unflattened(weight, min(bits, 7), group)


@wrong("quantise-groups", "0 was divided by 0")
def groups_that_divide_by_zero(weight, bits, group):
    groups = weight.unflatten(1, (-1, group))
    scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)
    codes = (groups / scale[..., None]).round().nan_to_num(nan=-7.0)
    return codes.flatten(1).to(torch.int8), scale


@wrong("quantise-groups", "has the scale 0")
def groups_with_a_least_scale(weight, bits, group):
    codes, scale = groups_unflattened(weight, bits, group)
    return codes, scale.where(scale > 0, 1.0)


# split-network ----------------------------------------------------------------------------------


def part_of(rows, bias, columns, last, inner=F.gelu):
    return lambda x: F.linear(inner(F.linear(x, rows, bias)), columns, last)


@right("split-network")
def network_chunked(w1, b1, w2, b2, p):
    cut = zip(w1.chunk(p), b1.chunk(p), w2.chunk(p, dim=1), strict=True)
    return [part_of(*pieces, b2 if r == 0 else None) for r, pieces in enumerate(cut)]


@right("split-network")
def network_strided(w1, b1, w2, b2, p):
    return [part_of(w1[r::p], b1[r::p], w2[:, r::p], b2 / p) for r in range(p)]


@wrong("split-network", "added by every device")
def network_with_many_biases(w1, b1, w2, b2, p):
    cut = zip(w1.chunk(p), b1.chunk(p), w2.chunk(p, dim=1), strict=True)
    return [part_of(*pieces, b2) for pieces in cut]


@wrong("split-network", "The last bias is missing")
def network_without_last_bias(w1, b1, w2, b2, p):
    return network_chunked(w1, b1, w2, torch.zeros_like(b2), p)


@wrong("split-network", "The first bias is missing")
def network_without_first_bias(w1, b1, w2, b2, p):
    return network_chunked(w1, torch.zeros_like(b1), w2, b2, p)


@wrong("split-network", "do not belong together")
def network_of_other_columns(w1, b1, w2, b2, p):
    cut = zip(w1.chunk(p), b1.chunk(p), (w2[:, r::p] for r in range(p)), strict=True)
    return [part_of(*pieces, b2 if r == 0 else None) for r, pieces in enumerate(cut)]


@wrong("split-network", "no gelu")
def network_without_gelu(w1, b1, w2, b2, p):
    cut = zip(w1.chunk(p), b1.chunk(p), w2.chunk(p, dim=1), strict=True)
    return [part_of(*pieces, b2 if r == 0 else None, lambda h: h) for r, pieces in enumerate(cut)]


@wrong("split-network", "belongs to one of three")
def network_that_is_divided(w1, b1, w2, b2, p):
    return [part_of(w1, b1, w2 / p, b2 / p) for _ in range(p)]


@wrong("split-network", "some rows of w1")
def network_of_the_last_piece(w1, b1, w2, b2, p):
    cut = list(zip(w1.chunk(p), b1.chunk(p), w2.chunk(p, dim=1), strict=True))
    return [part_of(*cut[-1], b2 if r == 0 else None) for r in range(p)]


@wrong("split-network", "do not add up")
def network_for_two_or_three_or_four(w1, b1, w2, b2, p):
    parts = network_chunked(w1, b1, w2, b2, p)
    return parts if p > 1 else [part_of(w1, b1, w2, 2 * b2)]


# continuous-ends --------------------------------------------------------------------------------


@right("continuous-ends")
def ends_by_free_places(lengths, slots):
    free, ends = [0] * slots, []
    for length in lengths:
        place = free.index(min(free))
        free[place] += length
        ends.append(free[place])
    return ends


@right("continuous-ends")
def ends_step_by_step(lengths, slots, pick=lambda waiting, lengths: 0, late=0):
    waiting, running, ends, step = list(range(len(lengths))), {}, [0] * len(lengths), 0
    while waiting or running:
        step += 1
        while waiting and len(running) < slots:
            number = waiting.pop(pick(waiting, lengths))
            running[number] = lengths[number] + (late if step > 1 else 0)
        for number in list(running):
            running[number] -= 1
            if running[number] == 0:
                ends[number] = step
                del running[number]
    return ends


@wrong("continuous-ends", "filled once")
def ends_of_batches(lengths, slots):
    ends, begun = [], 0
    for start in range(0, len(lengths), slots):
        some = lengths[start : start + slots]
        ends += [begun + length for length in some]
        begun += max(some)
    return ends


@wrong("continuous-ends", "counted from 0")
def ends_from_zero(lengths, slots):
    return [end - 1 for end in ends_by_free_places(lengths, slots)]


@wrong("continuous-ends", "One step too late")
def ends_late(lengths, slots):
    return ends_step_by_step(lengths, slots, late=1)


@wrong("continuous-ends", "The shortest request is taken first")
def ends_shortest_first(lengths, slots):
    return ends_step_by_step(lengths, slots, lambda w, n: min(range(len(w)), key=lambda i: n[w[i]]))


@wrong("continuous-ends", "The last that came is taken first")
def ends_last_first(lengths, slots):
    return ends_step_by_step(lengths, slots, lambda w, n: len(w) - 1)


@wrong("continuous-ends", "All requests run at once")
def ends_without_waiting(lengths, slots):
    return list(lengths)


@wrong("continuous-ends", "one after another here")
def ends_in_a_row(lengths, slots):
    return ends_by_free_places(lengths, 1)


@wrong("continuous-ends", "Nobody has to wait")
def ends_with_two_places(lengths, slots):
    return ends_by_free_places(lengths, min(slots, 2))


@wrong("continuous-ends", "One after another.")
def ends_with_two_places_at_least(lengths, slots):
    return ends_by_free_places(lengths, max(slots, 2))


LIBRARY = {"quantise-groups": by_the_package}
