"""rope_rotation: a query and a key turn with their positions, their product with the distance."""

import math

import torch

from tfbook.positions import apply_rotary, rotary_frequencies
from tfbook.teaching.explorables._base import Explorable, number, whole, wrapped

TITLE = "Two vectors turn, and only the distance counts"
FURTHEST = 40


def rope_rotation(
    *,
    d_head: int = 16,
    base: float = 10_000.0,
    pair: int = 1,
    q_angle: float = 40.0,
    k_angle: float = 100.0,
    m: int = 6,
    n: int = 2,
) -> Explorable:
    r"""Return a figure of rotary embeddings in the plane of one pair of entries.

    A query $q$ at position $m$ and a key $k$ at position $n$, unit vectors of the plane, are
    rotated counterclockwise by $m\omega_i$ and $n\omega_i$ with
    $\omega_i = \text{base}^{-2i/d}$. Their score is
    $(R_m q)\cdot(R_n k) = \cos(\varphi_q - \varphi_k + (m-n)\,\omega_i)$: moving both by the same
    number of positions leaves it as it is.

    Args:
        d_head: Number of entries of q and k, even, 2 to 128; it decides the frequencies.
        base: From 2 to 1 000 000.
        pair: Which pair of entries, 0 to `d_head` / 2 - 1.
        q_angle: Direction of q before rotation, in degrees from -180 to 180.
        k_angle: Direction of k, likewise.
        m: Position of the query, 0 to 40.
        n: Position of the key, 0 to 40.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [su2024roformer].
    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    d = whole("d_head", 2, 128)(d_head)
    if d % 2:
        raise ValueError(f"d_head must be even, got {d}")
    base = number("base", 2, 1e6)(base)
    checks = {
        "pair": whole("pair", 0, d // 2 - 1),
        "q_angle": number("q_angle", -180, 180),
        "k_angle": number("k_angle", -180, 180),
        "m": whole("m", 0, FURTHEST),
        "n": whole("n", 0, FURTHEST),
    }
    given = {"pair": pair, "q_angle": q_angle, "k_angle": k_angle, "m": m, "n": n}
    state = {name: check(given[name]) for name, check in checks.items()}

    def results(now: dict) -> dict:
        turned, plane = [], slice(2 * now["pair"], 2 * now["pair"] + 2)
        for angle, position in ((now["q_angle"], now["m"]), (now["k_angle"], now["n"])):
            x = torch.zeros(1, d, dtype=torch.double)
            radians = math.radians(angle)
            x[0, plane] = x.new_tensor([math.cos(radians), math.sin(radians)])
            turned.append(apply_rotary(x, torch.tensor([position]), base=base)[0, plane])
        return {
            "frequency": rotary_frequencies(d, base=base)[now["pair"]].item(),
            "rotated_q": turned[0].tolist(),
            "rotated_k": turned[1].tolist(),
            "score": (turned[0] @ turned[1]).item(),
            "unrotated": math.cos(math.radians(now["q_angle"]) - math.radians(now["k_angle"])),
        }

    def text(now: dict) -> str:
        got = results(now)
        m, n, i = now["m"], now["n"], now["pair"]
        return wrapped(f"""{TITLE}

        A query at {now["q_angle"]:g}° and a key at {now["k_angle"]:g}°, both of length 1, have the
        product {got["unrotated"]:.3f}. Clock {i} of {d // 2} turns by {got["frequency"]:.4g}
        radians for each position: at m = {m} the query has turned by
        {math.degrees(m * got["frequency"]):.1f}° and at n = {n} the key by
        {math.degrees(n * got["frequency"]):.1f}°. Now their product is {got["score"]:.3f}, and it
        is the same for all positions at the distance {m - n}.

        In the page, sliders move each position, both together, the two vectors and the clock.""")

    data = {"title": TITLE, "d_head": d, "base": base, "furthest": FURTHEST}
    return Explorable(
        "rope_rotation", data=data, state=state, checks=checks, results=results, text=text
    )
