"""The exercises of chapter 04 on codes, tables and distances."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_gradients, numbers

# sinusoidal-encoding ----------------------------------------------------------------------------


def sinusoidal_encoding(n: int, d: int) -> torch.Tensor:
    """Encode the positions 0 ... n - 1 by sines and cosines.

    PE[p, 2i] = sin(p / 10000^(2i/d)) and PE[p, 2i + 1] = cos(p / 10000^(2i/d)),
    for i = 0, ..., d/2 - 1.

    n: how many positions. d: the size of a code, even.
    Returns: (n, d), float32.
    """
    ...


def _codes(n: int, exponents: list[float], *, first: int = 0) -> torch.Tensor:
    """Encode positions, where pair i has the wavelength 2π · 10000^exponents[i]."""
    return torch.tensor(
        [[wave(p / 10000**e) for e in exponents for wave in (math.sin, math.cos)]
         for p in range(first, first + n)], dtype=torch.float32,
    ).reshape(n, 2 * len(exponents))


def _by_column(n: int, exponents: list[float]) -> torch.Tensor:
    """Encode positions with an exponent for each number instead of each pair."""
    return torch.tensor(
        [[(math.sin, math.cos)[c % 2](p / 10000**e) for c, e in enumerate(exponents)]
         for p in range(n)], dtype=torch.float32,
    )


def _encoding_formula(encode: Any) -> None:
    """Every number follows the formula."""
    n, d = 5, 6
    right = _codes(n, [2 * i / d for i in range(d // 2)])
    cosines_first = right.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    blocks = torch.cat((right[:, ::2], right[:, 1::2]), -1)
    turn = math.log(2 * math.pi, 10000)  # as an exponent, one factor 2π
    expect(
        encode(n, d), right, "The numbers do not follow the formula.", tolerance=1e-5,
        mistakes={
            "All sines come first and all cosines after them. In the formula they alternate: sine "
            "in number 2i, cosine in number 2i + 1.": blocks,
            "Sine and cosine are exchanged: the even numbers hold the sine.": cosines_first,
            "Each number got a wavelength of its own. The sine and the cosine of a pair share "
            "theirs: number 2i + 1 has the exponent 2i/d too.":
                _by_column(n, [c / d for c in range(d)]),
            "The exponent was doubled once more: 2i is already the number of the column, so "
            "column c has the exponent c/d, or (c - 1)/d if c is odd.": (
                _by_column(n, [2 * c / d for c in range(d)]),
                _codes(n, [4 * i / d for i in range(d // 2)]),
            ),
            "The exponent is i/d. It should be 2i/d, with i the number of the pair.":
                _codes(n, [i / d for i in range(d // 2)]),
            "The positions were multiplied by 10000^(2i/d). Divide: the later pairs are slower.":
                _codes(n, [-2 * i / d for i in range(d // 2)]),
            "The last pair got the wavelength 2π·10000. The exponent goes up to (d - 2)/d only, "
            "in steps of 2/d.": _codes(n, [i / (d // 2 - 1) for i in range(d // 2)]),
            "The positions start at 1. The first one is 0, with sine 0 and cosine 1.":
                _codes(n, [2 * i / d for i in range(d // 2)], first=1),
            "There is a factor 2π too much: 10000^(2i/d) is the wavelength divided by 2π, so the "
            "angle is p / 10000^(2i/d), in radians.": (
                _codes(n, [2 * i / d + turn for i in range(d // 2)]),
                _codes(n, [2 * i / d - turn for i in range(d // 2)]),
            ),
        },
    )


def _encoding_sizes(encode: Any) -> None:
    """It works for other numbers of positions and other sizes."""
    for n, d in ((7, 2), (1, 10), (3, 4)):
        expect(
            encode(n, d), _codes(n, [2 * i / d for i in range(d // 2)]),
            f"With n = {n} and d = {d} the numbers do not follow the formula.", tolerance=1e-5,
        )


def _encoding_length(encode: Any) -> None:
    """Every code has the length √(d/2), as sin² + cos² = 1 for each pair."""
    expect(encode(97, 22).norm(dim=-1), torch.full((97,), math.sqrt(11.0)), tolerance=1e-4)


SINUSOIDAL_ENCODING = Exercise(
    name="sinusoidal-encoding",
    title="A code for every position",
    level=1,
    section='chapters/04_positions, section "Sinusoidal encoding"',
    stub=sinusoidal_encoding,
    properties=(_encoding_formula, _encoding_sizes, _encoding_length),
    hints=(
        "All angles form a table: one row for each position, one column for each pair.",
        "`torch.arange(0, d, 2) / d` holds the exponents 2i/d. With positions in a column, "
        "`[:, None]`, the division gives all angles at once.",
        "Make zeros of shape (n, d) and assign the sines to `[:, 0::2]`, the cosines to "
        "`[:, 1::2]`.",
    ),
)

# alibi-bias -------------------------------------------------------------------------------------


def alibi_bias(slopes: torch.Tensor, n: int, m: int) -> torch.Tensor:
    """Compute ALiBi's bias for n queries and m keys, the queries being the last n positions.

    bias[h, i, j] = -slopes[h] · (distance between query i and key j)

    With m > n the first m - n keys come from a cache. Distances count both ways.

    slopes: (H,), positive. n: number of queries. m: number of keys, at least n.
    Returns: (H, n, m).
    """
    ...


def _alibi(slopes: torch.Tensor, n: int, m: int) -> torch.Tensor:
    return torch.stack([
        torch.tensor([[-slope * abs(i + m - n - j) for j in range(m)] for i in range(n)])
        for slope in slopes.tolist()
    ]).to(slopes.dtype)


def _alibi_square(bias: Any) -> None:
    """Without a cache, query i stands at key i."""
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64)
    right = _alibi(slopes, 3, 3)
    signed = slopes[:, None, None] * (torch.arange(3) - torch.arange(3)[:, None])
    expect(
        bias(slopes, 3, 3), right, "This is not -slope times distance.",
        mistakes={
            "Distant keys are rewarded: the sign is missing. The farther the key, the lower its "
            "score.": -right,
            "Keys after the query are rewarded: the difference of the positions changes its sign "
            "there. Take its absolute value.": signed,
            "Keys before the query are rewarded: the difference of the positions is negative there "
            "or the wrong way round. Take its absolute value.": -signed,
            "The bias is m·j, without the position of the query. After the softmax that would be "
            "the same for a causal model, but here the bias itself is asked for.":
                (slopes[:, None, None] * torch.arange(3.0)).expand(2, 3, 3),
            "The heads are on the last axis. They belong in front: (H, n, m).":
                right.permute(1, 2, 0),
            "The slopes were used up in one sum. Each head has its own matrix.": right.sum(0),
            "Keys after the query got 0. A causal mask would hide them anyway; the bias counts "
            "the distance both ways.": right.tril(),
        },
    )


def _alibi_cache(bias: Any) -> None:
    """With a cache, the last query stands at the last key."""
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    first = _alibi(slopes, 5, 5)[:, :2]
    expect(
        bias(slopes, 2, 5), _alibi(slopes, 2, 5),
        mistakes={
            "The first query was put at the first key. With a cache the queries are the *last* n "
            "positions: query i stands at key i + m - n.": first,
            "The queries were moved the wrong way: query i stands at key i + m - n, so the last "
            "query is at distance 0 from the last key.":
                -slopes[:, None, None] * (torch.arange(2)[:, None] - 3 - torch.arange(5)).abs(),
        },
    )


def _alibi_one(bias: Any) -> None:
    """One query at the end of many keys, as in generation."""
    slopes = torch.tensor([0.5], dtype=torch.float64)
    expect(bias(slopes, 1, 7), _alibi(slopes, 1, 7))


ALIBI_BIAS = Exercise(
    name="alibi-bias",
    title="A slope for each head, with a cache",
    level=1,
    section='chapters/04_positions, section "ALiBi: a fixed cost for each position back"',
    stub=alibi_bias,
    properties=(_alibi_square, _alibi_cache, _alibi_one),
    hints=(
        "At which position does query i stand when its sequence already has m keys?",
        "`torch.arange(m - n, m)[:, None] - torch.arange(m)` holds the differences of positions, "
        "(n, m).",
        "Multiply the absolute differences by `-slopes[:, None, None]`: the shapes (H, 1, 1) and "
        "(n, m) broadcast to (H, n, m).",
    ),
)

# stretch-positions ------------------------------------------------------------------------------


def stretch_positions(table: torch.Tensor, n_new: int) -> torch.Tensor:
    """Stretch a learned table of positions to n_new rows by linear interpolation.

    The first and the last row stay what they are; the rows between them are spread evenly, and
    each lies on the straight line between its two old neighbours.

    table: (n, d), n at least 2. n_new: the new number of rows, at least 2.
    Returns: (n_new, d).
    """
    ...


def _read(table: torch.Tensor, places: list[float]) -> torch.Tensor:
    """Read a table at real-numbered rows, on straight lines; beyond the ends, the ends."""
    rows = []
    for place in places:
        place = min(max(place, 0.0), len(table) - 1.0)
        before = min(int(place), len(table) - 2)
        share = place - before
        rows.append((1 - share) * table[before] + share * table[before + 1])
    return torch.stack(rows)


def _stretch_longer(stretch: Any) -> None:
    """New rows lie on straight lines between old ones, and the ends stay."""
    table, n, new = numbers(3, 2, seed=401), 3, 6
    places = [j * (n - 1) / (new - 1) for j in range(new)]
    nearest = [min(int(j * n / new), n - 1) for j in range(new)]
    zeros = torch.zeros(new - n, 2, dtype=table.dtype)
    expect(
        stretch(table, new), _read(table, places),
        "The rows are not at j·(n - 1)/(n_new - 1) of the old table.",
        mistakes={
            "The edges were aligned, not the ends: this is `F.interpolate` with its default "
            "`align_corners=False`, which repeats the outer rows.":
                _read(table, [(j + 0.5) * n / new - 0.5 for j in range(new)]),
            "The last row is not the old last row: the step is (n - 1)/(n_new - 1), from end to "
            "end, not (n - 1)/n_new.": _read(table, [j * (n - 1) / new for j in range(new)]),
            "The step is n/n_new, which runs over the end of the table. Between n rows there are "
            "n - 1 steps: use (n - 1)/(n_new - 1).":
                _read(table, [j * n / new for j in range(new)]),
            "After the last old row the first was read again, as in a ring. The new last row is "
            "the old last row: the step is (n - 1)/(n_new - 1).":
                _read(torch.cat((table, table[:1])), [j * n / new for j in range(new)]),
            "Each new row is a copy of an old one. Interpolate between the two neighbours.": (
                table[nearest],
                table[[round(place) for place in places]],
                table[[int(place) for place in places]],
            ),
            "The new rows repeat the old ones from the start. Stretch the table instead.":
                table.repeat(2, 1),
            "The table was filled up with zeros.": torch.cat((table, zeros)),
            "The weights of the two neighbours are exchanged: the closer row counts more.":
                _read(table, [2 * min(int(p), n - 2) + 1 - p for p in places]),
        },
    )


def _stretch_same(stretch: Any) -> None:
    """With as many rows as before, nothing changes."""
    table = numbers(5, 3, seed=402)
    expect(stretch(table, 5), table)


def _stretch_shorter(stretch: Any) -> None:
    """A table can be squeezed too."""
    table = numbers(7, 3, seed=403)
    expect(stretch(table, 4), table[::2])
    expect(stretch(table, 2), table[[0, 6]])


def _stretch_gradients(stretch: Any) -> None:
    """Gradients reach the table, so that it can be trained further."""
    expect_gradients(lambda table: stretch(table, 5), table=numbers(3, 2, seed=401))


STRETCH_POSITIONS = Exercise(
    name="stretch-positions",
    title="A learned table for a longer context",
    level=1,
    section='chapters/04_positions, section "Longer contexts"',
    stub=stretch_positions,
    properties=(_stretch_longer, _stretch_same, _stretch_shorter, _stretch_gradients),
    hints=(
        "New row j stands at a place between two old rows. Where, if the ends stay?",
        "`torch.linspace(0, n - 1, n_new)` holds the places. Their `floor()` is the row before; "
        "what is left over is the weight of the row after it.",
        "Keep the index of the row before at n - 2 at most, so that the row after exists: "
        "`before = places.floor().long().clamp(max=len(table) - 2)`.",
    ),
)

# bucket-distance --------------------------------------------------------------------------------


def bucket_distance(distance: torch.Tensor, n_buckets: int, max_distance: int) -> torch.Tensor:
    """Sort distances into buckets, as T5's decoder does.

    With e = n_buckets // 2, a distance below e has a bucket of its own. From e on the buckets
    widen, e + ⌊(n_buckets - e) · ln(distance / e) / ln(max_distance / e)⌋, and the last bucket,
    n_buckets - 1, takes all that is farther.

    distance: integers from 0 on, any shape. n_buckets: at least 2. max_distance: above e.
    Returns: integers (int64) from 0 to n_buckets - 1, in the same shape.
    """
    ...


def _bucket(r: int, n: int, far: int, *, turn: Any = math.floor, log: bool = True) -> int:
    e = n // 2
    if r < e:
        return r
    share = math.log(r / e) / math.log(far / e) if log else (r - e) / (far - e)
    return min(e + turn((n - e) * share), n - 1)


def _buckets(distances: range, n: int, far: int, **how: Any) -> torch.Tensor:
    return torch.tensor([_bucket(r, n, far, **how) for r in distances])


def _bucket_near(bucket: Any) -> None:
    """Distances below e have a bucket each."""
    expect(
        bucket(torch.arange(4), 8, 32), torch.arange(4),
        "The first half of the buckets should hold one distance each: 0, 1, 2, 3.",
    )


def _bucket_wide(bucket: Any) -> None:
    """From e on the buckets widen with the logarithm of the distance."""
    span = range(4, 31)
    plain = [4 * math.log(r / 4) / math.log(8) for r in span]
    expect(
        bucket(torch.arange(4, 31), 8, 32), _buckets(span, 8, 32),
        "The wide buckets begin at the wrong distances.",
        mistakes={
            "All wide buckets have the same width. They should divide the *logarithm* of the "
            "distance evenly.": _buckets(span, 8, 32, log=False),
            "The numbers were rounded to the nearest bucket. Round down.":
                _buckets(span, 8, 32, turn=round),
            "The numbers were rounded up. Round down: distance e is in bucket e.":
                _buckets(span, 8, 32, turn=math.ceil),
            "The wide buckets begin at 0 again: e has to be added.":
                torch.tensor([math.floor(x) for x in plain]),
            "The logarithm is divided by ln(max_distance). The wide buckets run from e to "
            "max_distance, so divide by ln(max_distance / e).": torch.tensor(
                [min(4 + math.floor(4 * math.log(r / 4) / math.log(32)), 7) for r in span]
            ),
            "The distance was not divided by e inside of the logarithm.": torch.tensor(
                [min(4 + math.floor(4 * math.log(r) / math.log(8)), 7) for r in span]
            ),
            "The logarithm is multiplied by n_buckets. Only n_buckets - e buckets are left for "
            "the wide ones.": torch.tensor(
                [min(4 + math.floor(2 * x), 7) for x in plain]
            ),
            "Every distance from e on is in the last bucket.": torch.full((27,), 7),
        },
    )


def _bucket_far(bucket: Any) -> None:
    """Everything beyond the maximum distance is in the last bucket."""
    far = torch.tensor([33, 50, 500, 100_000])
    grown = torch.tensor([_bucket_open(r) for r in far.tolist()])
    sentence = (
        "Far distances have numbers beyond the last bucket. Cut them off at n_buckets - 1: that "
        "is how a model meets distances it never saw."
    )
    expect(bucket(far, 8, 32), torch.full((4,), 7), mistakes={sentence: grown})


def _bucket_open(r: int) -> int:
    return 4 + math.floor(4 * math.log(r / 4) / math.log(8))


def _bucket_shapes(bucket: Any) -> None:
    """Any shape, and an odd number of buckets."""
    expect(
        bucket(torch.arange(60).reshape(3, 20), 7, 50), _buckets(range(60), 7, 50).reshape(3, 20),
        "With 7 buckets, 3 are of one distance and 4 are wide.",
    )


BUCKET_DISTANCE = Exercise(
    name="bucket-distance",
    title="T5's buckets",
    level=2,
    section='chapters/04_positions, section "Relative positions"',
    stub=bucket_distance,
    properties=(_bucket_near, _bucket_wide, _bucket_far, _bucket_shapes),
    hints=(
        "Compute the wide bucket for every distance, then choose with `torch.where`.",
        "`torch.log` needs floating-point numbers. A distance of 0 gives -∞ there; "
        "`distance.clamp(min=e)` avoids it.",
        "Turn the product into whole numbers with `.floor().long()`, add e, and cut off with "
        "`.clamp(max=n_buckets - 1)`.",
    ),
)

EXERCISES = (SINUSOIDAL_ENCODING, ALIBI_BIAS, STRETCH_POSITIONS, BUCKET_DISTANCE)
