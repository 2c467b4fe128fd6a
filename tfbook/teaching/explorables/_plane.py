"""soft_lookup_plane: a query moves among keys in the plane, and the result follows."""

from collections.abc import Sequence

import torch

from tfbook.attention import dot_scores, hard_lookup, soft_lookup
from tfbook.teaching.explorables._base import (
    Explorable,
    boolean,
    matrix,
    number,
    vector,
    wrapped,
)

TITLE = "Lookup made soft"
REACH = 1.5  # the plane shown runs from -1.5 to 1.5 in both directions


def soft_lookup_plane(
    *,
    keys: Sequence[Sequence[float]] = (
        (1.1, 0.5),
        (0.3, 1.2),
        (-1.0, 0.7),
        (-0.8, -0.9),
        (0.7, -1.0),
    ),
    values: Sequence[float] = (9.0, 7.0, 4.0, 1.0, 3.0),
    query: Sequence[float] = (0.9, 0.9),
    temperature: float = 0.5,
    hard: bool = False,
) -> Explorable:
    r"""Return a figure of soft lookup: keys in the plane, a query that moves, a mixed value.

    Soft lookup answers $\sum_i w_i v_i$ with weights
    $w = \mathrm{softmax}(q \cdot k_i / \text{temperature})$; hard lookup answers the value of the
    key with the largest dot product. Behind the keys the plane is coloured by the answer a query
    at that place would get.

    Args:
        keys: Two to eight points, coordinates from -1.5 to 1.5.
        values: One number for each key, 0 to 10.
        query: The point where the query starts.
        temperature: From 0.05 to 5.
        hard: Start with hard lookup.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range or the lengths differ.

    Explained in: chapters/02_attention_deeper, section "Lookup made soft".
    """
    points = matrix("keys", None, 2)(keys)
    if not 2 <= len(points) <= 8:
        raise ValueError(f"keys must be 2 to 8 points, got {len(points)}")
    points = [vector(f"keys row {i}", 2, -REACH, REACH)(p) for i, p in enumerate(points)]
    numbers = vector("values", len(points), 0, 10)(values)
    checks = {
        "query": vector("query", 2, -REACH, REACH),
        "temperature": number("temperature", 0.05, 5),
        "hard": boolean("hard"),
    }
    state = {
        name: check(v)
        for (name, check), v in zip(checks.items(), (query, temperature, hard), strict=True)
    }

    k = torch.tensor(points, dtype=torch.double)  # (m, 2)
    v = torch.tensor(numbers, dtype=torch.double)[:, None]  # (m, 1)

    def results(now: dict) -> dict:
        q = torch.tensor([now["query"]], dtype=torch.double)  # (1, 2)
        if now["hard"]:
            output, weights = hard_lookup(q, k, v, return_weights=True)
        else:
            how = {"temperature": now["temperature"], "return_weights": True}
            output, weights = soft_lookup(q, k, v, **how)
        scores = dot_scores(q, k)[0].tolist()
        return {"scores": scores, "weights": weights[0].tolist(), "result": output.item()}

    def text(now: dict) -> str:
        soft, sharp = results({**now, "hard": False}), results({**now, "hard": True})
        places = "; ".join(
            f"key {i} at ({p[0]:g}, {p[1]:g}) with value {v:g}, weight {w:.3f}"
            for i, (p, v, w) in enumerate(
                zip(points, numbers, soft["weights"], strict=True), start=1
            )
        )
        x, y = now["query"]
        return wrapped(f"""{TITLE}

        {len(points)} keys stand in the plane, each with a value. A query at ({x:g}, {y:g}) is
        compared with each key by their dot product. At temperature {now["temperature"]:g} the
        weights are: {places}. Soft lookup answers with the weighted mean {soft["result"]:.3f};
        hard lookup answers with the value of the best key, {sharp["result"]:g}.

        In the page you can drag the query or move it with the arrow keys, change the temperature,
        and switch between soft and hard; the plane is coloured by the answer at each place.""")

    data = {"title": TITLE, "keys": points, "values": numbers, "reach": REACH}
    return Explorable(
        "soft_lookup_plane", data=data, state=state, checks=checks, results=results, text=text
    )
