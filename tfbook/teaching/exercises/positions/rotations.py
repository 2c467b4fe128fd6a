"""The exercises of chapter 04 on rotations."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    NotStarted,
    expect,
    expect_gradients,
    expect_tensor,
    numbers,
    parts,
)

# rotate-pairs -----------------------------------------------------------------------------------


def rotate_pairs(
    x: torch.Tensor, positions: torch.Tensor, base: float = 10000.0
) -> torch.Tensor:
    """Apply rotary embeddings to queries or keys.

    At position p, the pair of numbers (a, b) = (x[2i], x[2i + 1]) becomes
    (a cos pω - b sin pω, a sin pω + b cos pω) with ω = base^(-2i/d).

    x: (..., n, d), d even. positions: (n,), integers. base: a number above 1.
    Returns: (..., n, d).
    """
    ...


def _turn(
    x: torch.Tensor, places: torch.Tensor, *, base: float = 10000.0, step: int = 2,
    sign: int = 1, half: bool = False,
) -> torch.Tensor:
    """Rotate, or make one of the known slips."""
    d = x.shape[-1]
    omegas = torch.tensor([base ** (-step * i / d) for i in range(d // 2)], dtype=torch.float64)
    angles = sign * places[:, None] * omegas
    a, b = x.chunk(2, -1) if half else (x[..., 0::2], x[..., 1::2])
    first = a * angles.cos() - b * angles.sin()
    second = a * angles.sin() + b * angles.cos()
    if half:
        return torch.cat((first, second), -1)
    return torch.stack((first, second), -1).flatten(-2)


def _rotate_formula(rotate: Any) -> None:
    """Each pair of neighbours turns by its own angle."""
    x, places = numbers(3, 4, seed=411), torch.arange(3)
    right = _turn(x, places)
    apart = right.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    angles = places[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    cos, sin = (wave.repeat_interleave(2, -1) for wave in (angles.cos(), angles.sin()))
    signs = torch.tensor([-1.0, 1.0]).repeat(2)
    expect(
        rotate(x, places), right, "The pairs are not turned as the formula says.",
        mistakes={
            "The pairs are numbers i and i + d/2, the layout of LLaMA. Here the pairs are "
            "neighbours, 2i and 2i + 1.": _turn(x, places, half=True),
            "The pairs turn the wrong way: the minus belongs to the first number of the pair.":
                _turn(x, places, sign=-1),
            "The numbers are turned correctly but come back in another order: first and second "
            "numbers of the pairs have to alternate again.": apart,
            "The exponent is -i/d. It should be -2i/d, with i the number of the pair.":
                _turn(x, places, step=1),
            "All pairs turn by the same angle: use one frequency for each pair.":
                _turn(x, places, step=0),
            "Each number was multiplied by its own cosine and sine, x cos + x sin. A rotation "
            "mixes the two numbers of a pair.": x * cos + x * sin,
            "Only the cosines were used, so the vectors got shorter. A rotation keeps their "
            "length.": x * cos,
            "The sinusoidal code was added. Rotary embeddings turn the vectors instead.":
                x + torch.stack((angles.sin(), angles.cos()), -1).flatten(-2),
            "The other number of a pair was taken with `roll`, which reaches into the next pair, "
            "and around the end. Exchange the two numbers within each pair.": tuple(
                x * cos + x.roll(by, -1) * signs * sin for by in (-1, 1)
            ),
            "The positions start at 1: position 0 should turn nothing.": _turn(x, places + 1),
        },
    )


def _rotate_positions(rotate: Any) -> None:
    """The angles follow the positions that are given."""
    x, places = numbers(3, 4, seed=412), torch.tensor([7, 2, 30])
    expect(
        rotate(x, places), _turn(x, places),
        mistakes={
            "The positions were ignored and counted from 0. With a cache a new token does not "
            "stand at 0.": _turn(x, torch.arange(3)),
        },
    )


def _rotate_batches(rotate: Any) -> None:
    """Leading axes are batch and heads."""
    x, places = numbers(2, 3, 5, 6, seed=413), torch.arange(4, 9)
    expect(rotate(x, places), _turn(x, places))


def _rotate_base(rotate: Any) -> None:
    """The base can be chosen."""
    x, places = numbers(3, 6, seed=414), torch.arange(3)
    expect(
        rotate(x, places, base=50.0), _turn(x, places, base=50.0),
        mistakes={"The base was ignored: 10000 was used.": _turn(x, places)},
    )


def _rotate_distance(rotate: Any) -> None:
    """The inner product depends on the distance of the positions alone."""
    q, k = numbers(1, 6, seed=415), numbers(1, 6, seed=416)
    near, far = (
        rotate(q, torch.tensor([p])) @ rotate(k, torch.tensor([p + 4])).T for p in (0, 1000)
    )
    expect(far, near.detach())


def _rotate_gradients(rotate: Any) -> None:
    """Gradients reach the vectors."""
    expect_gradients(lambda x: rotate(x, torch.arange(3)), x=numbers(3, 4, seed=411))


ROTATE_PAIRS = Exercise(
    name="rotate-pairs",
    title="Rotary embeddings",
    level=2,
    section='chapters/04_positions, section "Rotary embeddings"',
    stub=rotate_pairs,
    properties=(
        _rotate_formula, _rotate_positions, _rotate_batches, _rotate_base, _rotate_distance,
        _rotate_gradients,
    ),
    hints=(
        "All angles form a table of shape (n, d/2): positions times frequencies.",
        "`x[..., 0::2]` and `x[..., 1::2]` are the first and the second numbers of all pairs.",
        "Put the two results side by side with `torch.stack((first, second), dim=-1)` and join "
        "the last two axes with `.flatten(-2)`: then they alternate.",
    ),
)

# rotary-cache -----------------------------------------------------------------------------------


def scores_with_cache(
    q: torch.Tensor, k: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute rotary scores of new tokens against all tokens so far.

    q: (n, d), queries of the n newest tokens, not turned; d even. k: (n, d), their keys.
    kept: (t, d), the turned keys of the t tokens before them; t may be 0.
    Returns: the scores (n, t + n), and the turned keys to keep, (t + n, d).
    """
    d = q.shape[-1]
    omega = 10000.0 ** (-torch.arange(0, d, 2, dtype=q.dtype) / d)
    angles = torch.arange(len(q))[:, None] * omega
    cos, sin, turned = angles.cos(), angles.sin(), []
    for x in (q, k):
        a, b = x[:, 0::2], x[:, 1::2]
        turned.append(torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2))
    keys = torch.cat((kept, turned[1]))
    return turned[0] @ keys.T / math.sqrt(d), keys


def _cached(
    q: torch.Tensor,
    k: torch.Tensor,
    kept: torch.Tensor,
    *,
    of_q: int,
    of_k: int,
    again: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score with a cache; the places of queries and keys begin where they are told to."""
    before = _turn(kept, torch.arange(len(kept))) if again else kept
    keys = torch.cat((before, _turn(k, torch.arange(len(k)) + of_k)))
    scores = _turn(q, torch.arange(len(q)) + of_q) @ keys.T / math.sqrt(q.shape[-1])
    return scores, keys


def _pair(function: Any, q: torch.Tensor, k: torch.Tensor, kept: torch.Tensor) -> tuple:
    """Call the function, and see that it returns two tensors of the right shapes."""
    given = function(q.clone(), k.clone(), kept.clone())
    if given is None:
        raise NotStarted
    got = parts(given, "scores", "keys")
    total = len(kept) + len(q)
    expect_tensor(got[0], (len(q), total), q.dtype, what="The first result, the scores,")
    expect_tensor(got[1], (total, q.shape[1]), q.dtype, what="The second result, the keys,")
    return got


def _cache_whole(function: Any) -> None:
    """With an empty cache it is rotary attention's scores of a whole text."""
    q, k = numbers(5, 6, seed=421), numbers(5, 6, seed=422)
    scores, keys = _pair(function, q, k, numbers(0, 6, seed=423))
    right = _cached(q, k, q[:0], of_q=0, of_k=0)
    expect(scores, right[0], "With an empty cache the scores are not those of the whole text.")
    expect(keys, right[1], "With an empty cache the kept keys are not the turned keys.")


def _cache_pieces(function: Any) -> None:
    """New tokens stand behind those that are kept."""
    q, k = numbers(3, 6, seed=424), numbers(3, 6, seed=425)
    kept = _turn(numbers(4, 6, seed=426), torch.arange(4))
    scores, keys = _pair(function, q, k, kept)
    right = _cached(q, k, kept, of_q=4, of_k=4)
    expect(
        scores, right[0], "With four kept tokens the scores of the new ones are wrong.",
        mistakes={
            "Read in pieces, the text begins anew with each piece: where do the new tokens stand "
            "when four are kept?": _cached(q, k, kept, of_q=0, of_k=0)[0],
            "The queries stand at the right places now, and the new keys still begin at 0.":
                _cached(q, k, kept, of_q=4, of_k=0)[0],
            "The new keys stand at the right places now, and the queries still begin at 0.":
                _cached(q, k, kept, of_q=0, of_k=4)[0],
            "The new tokens stand one place too far: the first of them comes right after the "
            "last kept one.": _cached(q, k, kept, of_q=5, of_k=5)[0],
            "The new tokens stand one place too early, the first of them on the last kept one.":
                _cached(q, k, kept, of_q=3, of_k=3)[0],
            "The kept keys were turned a second time. They come turned.":
                _cached(q, k, kept, of_q=4, of_k=4, again=True)[0],
        },
    )  # fmt: skip
    expect(keys, right[1], "The scores are right, but the keys to keep are not the turned keys.")


ROTARY_CACHE = Exercise(
    name="rotary-cache",
    title="A cache that forgets where it is",
    level=2,
    section='chapters/04_positions, section "Rotary embeddings"',
    stub=scores_with_cache,
    properties=(_cache_whole, _cache_pieces),
    hints=(
        "Call it once with five tokens, and once with three and then with two. Which rows of the "
        "scores differ?",
        "Which position does the function give to the first new token? Which one should it have "
        "when t tokens are kept?",
        "The kept keys are right as they are. How many rows has `kept`?",
    ),
    broken=True,
)

# rotary-layout ----------------------------------------------------------------------------------


def to_half_layout(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Reorder a projection for the other layout of rotary embeddings.

    The projection y = weight @ x makes the queries of all heads, head h in numbers
    h·d ... (h + 1)·d - 1. So far the pairs of a head are its numbers (2i, 2i + 1). Reorder the
    weight so that pair i becomes the numbers (i, i + d/2) of the same head.

    weight: (n_heads · d, d_model). n_heads: how many heads.
    Returns: a weight of the same shape, with the same numbers.
    """
    ...


def _layout(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    heads = weight.split(len(weight) // n_heads)
    return torch.cat([part for head in heads for part in (head[0::2], head[1::2])])


def _layout_order(reorder: Any) -> None:
    """Even rows of a head come first, then its odd rows."""
    weight = numbers(12, 2, seed=421)
    heads = weight.split(6)
    back = [0, 3, 1, 4, 2, 5]
    expect(
        reorder(weight, 2), _layout(weight, 2),
        "The rows of a head should be 0, 2, 4, ... and then 1, 3, 5, ...",
        mistakes={
            "The rows were reordered across the heads: a head now holds rows of another one. "
            "Split into heads first.": _layout(weight, 1),
            "This is the way back, from the layout (i, i + d/2) to (2i, 2i + 1).":
                torch.cat([head[back] for head in heads]),
            "The odd rows come first. Pair i is to become (i, i + d/2), its first number in "
            "front.": torch.cat([part for head in heads for part in (head[1::2], head[0::2])]),
            "Nothing was reordered.": weight,
            "The rows were only read in another shape: nothing keeps a row together.":
                weight.reshape(2, 3, 2, 2).permute(0, 3, 1, 2).reshape(12, 2),
        },
    )


def _layout_scores(reorder: Any) -> None:
    """Turned in the new layout, queries and keys give the old scores."""
    x, places, d = numbers(5, 7, seed=422), torch.arange(5), 10
    w_q, w_k = numbers(3 * d, 7, seed=423), numbers(3 * d, 7, seed=424)

    def scores(w_q: torch.Tensor, w_k: torch.Tensor, half: bool) -> torch.Tensor:
        q, k = (
            _turn((x @ w.T).unflatten(-1, (3, d)).transpose(0, 1), places, half=half)
            for w in (w_q, w_k)
        )
        return q @ k.mT  # (3, 5, 5)

    expect(
        scores(reorder(w_q, 3), reorder(w_k, 3), half=True), scores(w_q, w_k, half=False),
        "With three heads of size 10 the scores of the reordered model are not the old ones.",
        what="The matrix of scores",
    )


LAYOUT = Exercise(
    name="rotary-layout",
    title="The same model in the other layout",
    level=3,
    section='chapters/04_positions, section "Rotary embeddings"',
    stub=to_half_layout,
    properties=(_layout_order, _layout_scores),
    hints=(
        "Write down the new order of the rows for one head of size 6.",
        "`weight.unflatten(0, (n_heads, -1))` has an axis for the heads; reorder along the next.",
        "`weight.unflatten(0, (n_heads, -1, 2))` has the pairs apart too. Exchange axes 1 and 2 "
        "and join the first three with `.flatten(0, 2)`: even rows come before the odd ones.",
    ),
)

EXERCISES = (ROTATE_PAIRS, ROTARY_CACHE, LAYOUT)
