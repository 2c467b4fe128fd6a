"""The exercises of chapter 04 on rotations and on the shift of relative scores."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    NotStarted,
    Wrong,
    expect,
    expect_gradients,
    expect_tensor,
    numbers,
    parts,
)

# shift-by-rotation ------------------------------------------------------------------------------


def shift_matrix(k: int, d: int) -> torch.Tensor:
    """Build the matrix that moves every sinusoidal code by k positions.

    T @ PE[p] = PE[p + k] for every p, where PE[p] is a column of d numbers,
    PE[p, 2i] = sin(p·ω) and PE[p, 2i + 1] = cos(p·ω) with ω = 10000^(-2i/d).

    k: the shift, possibly negative. d: the size of a code, even.
    Returns: (d, d), float32.
    """
    ...


def _shift(k: int, omegas: list[float]) -> torch.Tensor:
    blocks = [
        torch.tensor([[math.cos(k * w), math.sin(k * w)], [-math.sin(k * w), math.cos(k * w)]])
        for w in omegas
    ]
    return torch.block_diag(*blocks)


def _omegas(d: int) -> list[float]:
    return [10000 ** (-2 * i / d) for i in range(d // 2)]


def _code(p: int, d: int) -> torch.Tensor:
    return torch.tensor([f(p * w) for w in _omegas(d) for f in (math.sin, math.cos)])


def _shift_blocks(matrix: Any) -> None:
    """Each pair of numbers has its own block of two by two."""
    k, d = 3, 4
    right = _shift(k, _omegas(d))
    halves = torch.tensor([0, 2, 1, 3])
    expect(
        matrix(k, d), right, "This matrix does not move the codes by k positions.", tolerance=1e-5,
        mistakes={
            "This matrix moves the codes *back* by k positions: the signs of the sines are "
            "exchanged. Write out sin(pω + kω) and cos(pω + kω) once more.": right.T,
            "All pairs turn by the same angle. Pair i has its own frequency, 10000^(-2i/d).":
                _shift(k, [1.0] * (d // 2)),
            "The exponent is i/d in place of 2i/d: the pairs after the first turn too fast.":
                _shift(k, [10000 ** (-i / d) for i in range(d // 2)]),
            "The pairs are numbers i and i + d/2 here. In the encoding, sine and cosine are "
            "neighbours: 2i and 2i + 1.": (right[halves][:, halves], right[halves][:, halves].T),
            "Both sines have the same sign. In a rotation one is negative.":
                right * torch.where(right.tril(-1) != 0, -1.0, 1.0),
            "The angle is missing the shift: it is k times the frequency.": _shift(1, _omegas(d)),
            "Off the diagonal there is nothing: the sine of one pair needs its cosine too, as "
            "sin(a + b) = sin a cos b + cos a sin b.": torch.diag(right.diagonal()),
        },
    )


def _shift_moves(matrix: Any) -> None:
    """It moves the code of every position."""
    for k, d, p in ((5, 6, 0), (1, 10, 7), (40, 2, 11)):
        expect(
            matrix(k, d) @ _code(p, d), _code(p + k, d),
            f"For d = {d}, the code of position {p} does not arrive at position {p + k}.",
            tolerance=1e-4,
        )


def _shift_back(matrix: Any) -> None:
    """A negative shift moves back, and no shift is the identity."""
    back = "With k = -3 the codes should move back by three positions."
    expect(matrix(-3, 6), _shift(-3, _omegas(6)), back, tolerance=1e-5)
    expect(matrix(0, 6), torch.eye(6), "With k = 0 nothing moves: I is wanted.", tolerance=1e-5)


SHIFT_BY_ROTATION = Exercise(
    name="shift-by-rotation",
    title="A shift as a matrix",
    level=2,
    section='chapters/04_positions, section "A shift is a rotation"',
    stub=shift_matrix,
    properties=(_shift_blocks, _shift_moves, _shift_back),
    hints=(
        "Write sin((p + k)ω) as a sum of a multiple of sin(pω) and a multiple of cos(pω). Do the "
        "same with the cosine.",
        "The two multiples of sin((p + k)ω) are the first row of the block, those of "
        "cos((p + k)ω) the second.",
        "`torch.block_diag` puts d/2 blocks [[cos kω, sin kω], [-sin kω, cos kω]] along the "
        "diagonal.",
    ),
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

    q: (n, d), queries of the n newest tokens, not turned yet; d even. k: (n, d), their keys.
    kept: (t, d), the turned keys of the t tokens before them; t may be 0.
    Returns: the scores (n, t + n), and the turned keys to keep, (t + n, d).
    """
    d = q.shape[-1]
    speeds = 10000.0 ** (-torch.arange(0, d, 2, dtype=q.dtype) / d)
    angles = torch.arange(len(q))[:, None] * speeds
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

# look-back-head ---------------------------------------------------------------------------------


def look_back(k: int, c: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Build the matrices of a head that reads the word k places back.

    A word is a row of c numbers of content and then d numbers, its sinusoidal code.

    k: how far back, at least 1. c: numbers of content. d: size of a code, even.
    Returns: W_q and W_k, each (c + d, d), so that of all keys the one k places before the
    query has the largest score (x W_q) · (y W_k), whatever the words are.
    """
    ...


def _matrices(build: Any, k: int, c: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the function, and see that it returns two matrices of the right shapes."""
    given = build(k, c, d)
    if given is None:
        raise NotStarted
    got = parts(given, "W_q", "W_k")
    for name, matrix in zip(("W_q", "W_k"), got, strict=True):
        expect_tensor(matrix, (c + d, d), torch.float32, what=name)
    return got


def _found(build: Any, k: int, c: int, d: int, *, content: float) -> tuple[torch.Tensor, int]:
    """Which key each query finds, from position k on, and where the first of them stands."""
    w_q, w_k = _matrices(build, k, c, d)
    codes = torch.stack([_code(p, d) for p in range(40)])
    words = torch.cat((content * numbers(40, c, seed=431).float(), codes), 1)
    return ((words @ w_q) @ (words @ w_k).T).argmax(1), k


def _look_places(build: Any) -> None:
    """Without content each query finds the key k places before it."""
    for k in (1, 5):
        found, first = _found(build, k, 3, 8, content=0.0)
        at = torch.arange(40)
        if torch.equal(found, at):
            raise Wrong("Each word reads itself. Where does k enter?", given={"k": k})
        if not torch.equal(found[first:], at[:-k]):
            raise Wrong(
                f"For k = {k} some query does not read the word {k} places back. The query should "
                "be the code of the place k before its own.",
                given={"k": k, "c": 3, "d": 8}, got=found[first:], wanted=at[:-k],
            )  # fmt: skip


def _look_content(build: Any) -> None:
    """What the words say makes no difference."""
    found, first = _found(build, 2, 3, 8, content=5.0)
    if not torch.equal(found[first:], torch.arange(40 - first)):
        raise Wrong(
            "With content in the first c numbers the head reads other words. Take the content out "
            "of the query *and* of the key.",
        )


LOOK_BACK_HEAD = Exercise(
    name="look-back-head",
    title="A head that looks back",
    level=3,
    section='chapters/04_positions, section "A shift is a rotation"',
    stub=look_back,
    properties=(_look_places, _look_content),
    hints=(
        "Which rows of W_q meet the content, and which rows meet the code?",
        "Let the key hand on the code as it is. Which code must the query have, so that it fits "
        "the key k places back best?",
        "T_k moves a code that is a column. Which M does the same for a row, `code @ M`?",
    ),
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

# relative-shift ---------------------------------------------------------------------------------


def relative_shift(x: torch.Tensor) -> torch.Tensor:
    """Go from scores by distance to scores by key.

    Of n queries and m keys, the queries being the last n positions, x[i, c] is the score of query
    i at the distance m - 1 - c. Return the score at the distance between query i and key j,
    y[i, j] = x[i, n - 1 - i + j].

    x: (..., n, n + m - 1).
    Returns: (..., n, m).
    """
    ...


def _shifted(x: torch.Tensor) -> torch.Tensor:
    n, columns = x.shape[-2:]
    m = columns - n + 1
    return torch.stack([x[..., i, n - 1 - i : n - 1 - i + m] for i in range(n)], -2)


def _relative_rows(shift: Any) -> None:
    """Row i is read from column n - 1 - i on."""
    x = numbers(3, 6, seed=431)  # three queries, four keys
    n, m = 3, 4
    starts = torch.arange(n)[:, None] + torch.arange(m)
    expect(
        shift(x), _shifted(x), "Entry (i, j) is not x[i, n - 1 - i + j].",
        mistakes={
            "The rows were shifted the wrong way: this is x[i, i + j]. The first row starts "
            "farthest to the right.": x.gather(-1, starts),
            "The rows were rolled the wrong way: what left at the end came in at the front. Row i "
            "starts at column n - 1 - i.":
                torch.stack([x[i].roll(n - 1 - i)[:m] for i in range(n)]),
            "Nothing was shifted: every row starts at the same column.": (x[:, :m], x[:, n - 1 :]),
            "Every row starts one column too early or too late: the last row starts at column 0.":
                x.roll(-1, -1).gather(-1, starts.flip(0)),
            "The columns are in the opposite order: the distance falls as j grows.":
                _shifted(x).flip(-1),
            "The rows are in the opposite order.": _shifted(x).flip(0),
        },
    )


def _relative_batches(shift: Any) -> None:
    """Leading axes are batch and heads."""
    x = numbers(2, 3, 5, 11, seed=432)
    expect(shift(x), _shifted(x))


def _relative_edges(shift: Any) -> None:
    """One query, and as many queries as keys."""
    one, square = numbers(1, 5, seed=435), numbers(4, 7, seed=434)
    expect(shift(one), one, "A single query keeps its row.")
    expect(shift(square), _shifted(square))


def _relative_distance(shift: Any) -> None:
    """Where the scores are the distances themselves, the result is the table of distances."""
    n, m = 3, 5
    distances = torch.arange(m - 1, -n, -1, dtype=torch.float64).expand(n, n + m - 1).contiguous()
    wanted = torch.arange(m - n, m)[:, None] - torch.arange(m)
    expect(
        shift(distances), wanted.double(),
        "Where the score is the distance itself, entry (i, j) should be i + m - n - j.",
    )


def _relative_gradients(shift: Any) -> None:
    """Gradients reach the scores."""
    expect_gradients(shift, x=numbers(3, 6, seed=431))


RELATIVE_SHIFT = Exercise(
    name="relative-shift",
    title="Transformer-XL's shift",
    level=3,
    section='chapters/04_positions, section "Relative positions"',
    stub=relative_shift,
    properties=(
        _relative_rows, _relative_batches, _relative_edges, _relative_distance, _relative_gradients,
    ),
    hints=(
        "`torch.gather` along the last axis solves it: which column does entry (i, j) read?",
        "There is a way without indices. Add one column behind, and read the numbers, row after "
        "row, as one long line: how many numbers apart are the entries (i, 0) and (i + 1, 0) you "
        "want?",
        "They are one less apart than a padded row is long. Flatten `F.pad(x, (0, 1))`, skip the "
        "first n - 1 numbers, and cut the next n · (n + m - 1) into rows of the old length.",
    ),
)

EXERCISES = (
    SHIFT_BY_ROTATION, ROTATE_PAIRS, ROTARY_CACHE, LAYOUT, RELATIVE_SHIFT, LOOK_BACK_HEAD,
)  # fmt: skip
