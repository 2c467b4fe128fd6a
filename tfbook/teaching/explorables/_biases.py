"""relative_bias_shapes: what is added to a score, as a function of the distance alone."""

import torch
from torch import Tensor

from tfbook.attention import masked_softmax
from tfbook.positions import alibi_slopes, shaw_clip, t5_bucket
from tfbook.teaching.explorables._base import (
    Explorable,
    boolean,
    matrix,
    one_of,
    whole,
    wrapped,
)

TITLE = "What a distance adds to the score"
SCHEMES = ("none", "alibi", "t5", "shaw")


def relative_bias_shapes(
    *,
    scheme: str = "alibi",
    head: int = 0,
    n_heads: int = 8,
    distance: int = -12,
    n_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = False,
    clip: int = 16,
    reach: int = 64,
    t5_table=None,
    shaw_table=None,
) -> Explorable:
    r"""Return a figure of the bias that a relative scheme adds to a score at each distance.

    The arguments count $\delta = j - i$, the key's position less the query's; the figure shows the
    distance $-\delta$. ALiBi adds
    $-m_h|\delta|$ with a slope for each head; T5 adds a learned number for each of a few buckets,
    fine for near keys and logarithmic for far ones; Shaw's vectors are chosen by $\delta$ clipped
    to $[-k, k]$. Where there are numbers, a second picture shows their softmax: the weights if the
    contents of all keys scored alike.

    Args:
        scheme: "none", "alibi", "t5" or "shaw".
        head: Which head, from 0; a scheme with fewer heads shows its last.
        n_heads: Heads of ALiBi, 1 to 16.
        distance: The distance that is read off, from -`reach` to `reach`.
        n_buckets: Buckets of T5, even, 4 to 64.
        max_distance: T5's maximum distance, at which its last bucket has begun, up to 512.
        bidirectional: Show keys after the query too; T5 halves its buckets for that.
        clip: The $k$ at which Shaw clips distances, 1 to 64.
        reach: How far the picture goes, 16 to 256.
        t5_table: Learned biases `(n_buckets, heads)`, a tensor or nested lists; without them the
            buckets' numbers are shown.
        shaw_table: $q \cdot a_\delta$ for $\delta = -k..k$, `(2 clip + 1, heads)`; without it the
            clipped distances are shown.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range or a table does not fit.

    Source: [press2022train], [raffel2020exploring], [shaw2018self].
    Explained in: chapters/04_positions, section "Relative positions".
    """
    reach = whole("reach", 16, 256)(reach)
    buckets = _buckets_check
    checks = {
        "scheme": one_of("scheme", *SCHEMES),
        "head": whole("head", 0, 63),
        "n_heads": whole("n_heads", 1, 16),
        "distance": whole("distance", -reach, reach),
        "n_buckets": buckets,
        "max_distance": whole("max_distance", 2, 512),
        "bidirectional": boolean("bidirectional"),
        "clip": whole("clip", 1, 64),
    }
    given = {
        "scheme": scheme, "head": head, "n_heads": n_heads, "distance": distance,
        "n_buckets": n_buckets, "max_distance": max_distance, "bidirectional": bidirectional,
        "clip": clip,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}
    exact = n_buckets // (4 if bidirectional else 2)
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must exceed the {exact} distances with a bucket of their own, "
            f"got {max_distance}"
        )
    if distance > 0 and not bidirectional:
        raise ValueError(f"distance must be at most 0 unless bidirectional, got {distance}")
    if t5_table is not None:
        t5_table = matrix("t5_table", n_buckets)(t5_table)
        # The table belongs to one way of counting buckets.
        checks["n_buckets"] = _only("n_buckets", n_buckets)
        checks["bidirectional"] = _only("bidirectional", bidirectional)
    if shaw_table is not None:
        shaw_table = matrix("shaw_table", 2 * clip + 1)(shaw_table)
        checks["clip"] = _only("clip", clip)

    def at(now: dict, deltas: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The biases and the buckets of some distances, if there are such."""
        kind, head = now["scheme"], now["head"]
        if kind == "alibi":
            return -_own(alibi_slopes(now["n_heads"]), head) * deltas.abs().double(), None
        if kind == "t5":
            buckets = buckets_of(now, deltas)
            return t5_table and _column(t5_table, head)[buckets], buckets
        if kind == "shaw":
            rows = shaw_clip(deltas, now["clip"])
            return shaw_table and _column(shaw_table, head)[rows], rows - now["clip"]
        return torch.zeros(len(deltas), dtype=torch.double), None

    def results(now: dict) -> dict:
        delta = now["distance"] if now["bidirectional"] else min(0, now["distance"])
        deltas = torch.arange(-reach, (reach if now["bidirectional"] else 0) + 1)
        biases, buckets = at(now, deltas)
        here = delta + reach
        return {
            "bias": None if biases is None else biases[here].item(),
            "bucket": None if buckets is None else buckets[here].item(),
            "weights": None if biases is None else masked_softmax(biases[None])[0].tolist(),
            "slope": None
            if now["scheme"] != "alibi"
            else _own(alibi_slopes(now["n_heads"]), now["head"]),
        }

    def text(now: dict) -> str:
        slopes = ", ".join(f"{s:.4g}" for s in alibi_slopes(now["n_heads"]))
        far = torch.tensor([1, 8, 16, 32, 64, 128])
        pairs = zip(far.tolist(), buckets_of(now, -far).tolist(), strict=True)
        numbers = ", ".join(f"{x} → {bucket}" for x, bucket in pairs)
        shaw = f"""Shaw's scheme tells distances apart up to {now["clip"]} in each direction, and
        all farther ones look like {now["clip"]}. """ if "shaw" in offered else ""  # fmt: skip
        return wrapped(f"""{TITLE}

        Distance is the query's position less the key's. ALiBi with {now["n_heads"]} heads takes off
        a slope for each position of distance; the slopes are {slopes}. T5 has {now["n_buckets"]}
        buckets with a learned number each; keys so far before the query fall into these buckets:
        {numbers}. {shaw}Without a scheme every distance adds 0.

        In the page you choose the scheme and the head, change the number of heads, the buckets and
        where they end, and read off the bias at each distance.""")

    # Beside a learned table of T5's, Shaw's clipped distances say nothing of their own.
    offered = [s for s in SCHEMES if s != "shaw" or shaw_table is not None or t5_table is None]
    data = {
        "title": TITLE, "reach": reach, "schemes": offered, "t5_table": t5_table,
        "shaw_table": shaw_table,
    }  # fmt: skip
    return Explorable(
        "relative_bias_shapes", data=data, state=state, checks=checks, results=results, text=text
    )


def buckets_of(now: dict, deltas: Tensor) -> Tensor:
    """Return T5's buckets of some distances, key less query."""
    both, count = now["bidirectional"], now["n_buckets"]
    # A control may stand below what can be; then the last bucket begins right after the exact ones.
    furthest = max(now["max_distance"], count // (4 if both else 2) + 1)
    return t5_bucket(deltas, bidirectional=both, n_buckets=count, max_distance=furthest)


def _own(numbers, head: int):
    """Return what belongs to a head, or to the last one there is."""
    return numbers[min(head, len(numbers) - 1)]


def _column(table: list[list[float]], head: int) -> Tensor:
    """Return the column of a head, or the last one."""
    return torch.tensor([_own(row, head) for row in table], dtype=torch.double)


def _buckets_check(value):
    value = whole("n_buckets", 4, 64)(value)
    if value % 2:
        raise ValueError(f"n_buckets must be even, got {value}")
    return value


def _only(name: str, wanted):
    def check(value):
        if value != wanted or type(value) is not type(wanted):
            raise ValueError(f"{name} is fixed to {wanted} by the table, got {value}")
        return value

    return check
