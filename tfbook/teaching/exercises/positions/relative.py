"""The exercises of chapter 04 on a shift as a rotation, and on scores by distance."""

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

# look-back-head ---------------------------------------------------------------------------------


def look_back(r: int, c: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Build the matrices of a head that reads the word r positions back.

    A word is a row of c numbers of content and then d numbers, its sinusoidal code.

    r: how far back, at least 1. c: numbers of content. d: size of a code, even.
    Returns: W_q and W_k, each (c + d, d), so that for a query at position r or later the
    key r positions before it has the largest score (x W_q) · (y W_k), whatever the words
    are.
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
    """Without content each query finds the key r positions before it."""
    for k in (1, 5):
        found, first = _found(build, k, 3, 8, content=0.0)
        at = torch.arange(40)
        if torch.equal(found, at):
            raise Wrong("Each word reads itself. Where does r enter?", given={"r": k})
        if not torch.equal(found[first:], at[:-k]):
            raise Wrong(
                f"For r = {k} some query does not read the word {k} positions back. The query "
                "should be the code of the position r before its own.",
                given={"r": k, "c": 3, "d": 8}, got=found[first:], wanted=at[:-k],
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
        "the key r positions back best?",
        "T_r moves a code that is a column. Which M does the same for a row, `code @ M`?",
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

EXERCISES = (SHIFT_BY_ROTATION, LOOK_BACK_HEAD, RELATIVE_SHIFT)
