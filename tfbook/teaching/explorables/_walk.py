"""attention_walk: one query through attention, step by step with the package's numbers."""

import math
from collections.abc import Sequence

import torch

from tfbook.attention import attend, dot_scores, masked_softmax, scaled_dot_scores
from tfbook.teaching.explorables._base import Explorable, matrix, vector
from tfbook.teaching.explorables._stepper import LARGEST, walk

WIDEST = 6


def attention_walk(
    q: Sequence[float] | torch.Tensor,
    keys: Sequence[Sequence[float]] | torch.Tensor,
    values: Sequence[Sequence[float]] | torch.Tensor,
    tokens: Sequence[str],
    scale: bool = True,
    *,
    of: str | None = None,
    slug: str = "attention-walk",
    title: str | None = None,
    step: int = 0,
) -> Explorable:
    r"""Return a walk of one query through $\mathrm{softmax}(qK^\top/\sqrt{d_k})V$.

    The steps: query and keys, scores, division by √d_k, softmax, values, their weighted sum. Its
    numbers are those of `tfbook.attention` in float64; `figure.scores`, `figure.scaled`,
    `figure.weights` and `figure.output` are all of them, and `figure.step` is the step that shows.

    Args:
        q: The query, `(d_k,)`, one to six numbers.
        keys: `(m, d_k)`, two to eight keys.
        values: `(m, d_v)`, one to six numbers each.
        tokens: `m` names, of keys and values.
        scale: Divide the scores by √d_k; without, that step is left out.
        of: The token whose query it is, for the words.
        slug: A short name in lower case with hyphens.
        title: What is shown; by default it says so with `of`.
        step: Where it begins, from 0.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if shapes do not fit, or something is too large.

    Explained in: chapters/02_attention_deeper, section "One query through three matrices".
    """
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise TypeError(f"tokens must be a list of strings, got {type(tokens).__name__}")
    if not isinstance(scale, bool):
        raise TypeError(f"scale must be True or False, got {type(scale).__name__}")
    names = [str(token) for token in tokens]
    m = len(names)
    if not 2 <= m <= LARGEST:
        raise ValueError(f"tokens must be 2 to {LARGEST}, got {m}")
    asked = vector("q", None)(q)
    k, v = matrix("keys", m, len(asked))(keys), matrix("values", m)(values)
    for name, row in (("q", asked), ("values", v[0])):
        if len(row) > WIDEST:
            raise ValueError(f"{name} must be at most {WIDEST} wide, got {len(row)}")
    one, ks, vs = (torch.tensor(x, dtype=torch.double) for x in ([asked], k, v))
    scores = dot_scores(one, ks)[0].tolist()
    scaled = scaled_dot_scores(one, ks)[0].tolist() if scale else scores
    weights = masked_softmax(torch.tensor([scaled], dtype=torch.double))[0].tolist()
    output = attend(one, ks, vs, scale=None if scale else 1.0)[0].tolist()
    results = {"scores": scores, "scaled": scaled, "weights": weights, "output": output}

    best = max(range(m), key=weights.__getitem__)
    token, d = f"“{names[best]}”", len(asked)
    root = f"√{d} = {math.sqrt(d):.3g}"
    whose = f"The query of “{of}”" if of else "One query"
    rows = {"rows": names, "highlight": None}
    chosen = {"highlight": best}
    steps = [
        {
            "caption": f"{whose} is a vector of {d} numbers. Each of the {m} tokens has a key of "
            "the same width: what it can be found by.",
            "parts": [
                {"matrix": "q", "values": asked, "at": (0, 0)},
                {"matrix": "K", "values": k, "at": (1, 0), **rows},
            ],
        },
        {
            "caption": "A product says how well a key fits: query times key, number by number, "
            f"added up. For {token}: {_sum(zip(asked, k[best], strict=True), scores[best])}.",
            "formula": "q · k_j" if scale else "s_j = q · k_j",
            "parts": [
                "q", {"matrix": "K", **chosen},
                {"bars": "scores", "values": scores, "at": (1, 1), **rows, **chosen, "digits": 2,
                 "label": "products" if scale else "scores"},
            ],
            "arrows": [("q", "K"), ("K", "scores", "q · k_j")],
        },
        {
            "caption": f"A score is a product divided by {root}: so scores keep the spread that a "
            f"single product has, however wide the keys are. For {token}: {_n(scores[best])} "
            f"becomes {_n(scaled[best])}.",
            "formula": "s_j = q · k_j / √d_k",
            "parts": [{"bars": "scores", "values": scaled, "label": "scores"}],
            "pale": ["q", "K"],
        },
        {
            "caption": "The softmax makes weights of the scores: the exponential of each, divided "
            f"by their sum. All are positive, and together they are 1. {token} gets "
            f"{_n(weights[best])}.",
            "formula": "α_j = exp(s_j) / (exp(s_1) + … + exp(s_m))",
            "parts": [
                "scores",
                {"bars": "weights", "values": weights, "at": (1, 2), **rows, **chosen, "digits": 2,
                 "reach": 1.0},
            ],
            "pale": ["q", "K"],
            "arrows": [("scores", "weights", "softmax")],
        },
        {
            "caption": "Each token also has a value: what it has to give. It will count with the "
            f"weight of its row, that of {token} the most.",
            "parts": [
                "weights", {"matrix": "V", "values": v, "at": (1, 3), **rows, **chosen},
            ],
            "pale": ["q", "K", "scores"],
            "arrows": [("weights", "V", "times")],
        },
        {
            "caption": "The output is the sum of the values, each times its weight. Its first "
            f"number: {_sum(zip(weights, (row[0] for row in v), strict=True), output[0])}.",
            "formula": "o = α_1 v_1 + … + α_m v_m",
            "parts": [
                {"bars": "weights", "highlight": None}, {"matrix": "V", "highlight": None},
                {"matrix": "output", "values": output, "at": (2, 3), "digits": 2},
            ],
            "pale": ["q", "K", "scores"],
            "arrows": [("weights", "V", "times"), ("V", "output", "add up")],
        },
    ]  # fmt: skip
    if not scale:
        del steps[2]
    return walk(
        slug,
        steps=steps,
        title=title or f"{whose} through attention",
        alt=f"A query of {d} numbers meets {m} keys; scores, weights, values and the output stand "
        "beside them in rows, one row for each token, and appear step by step.",
        step=step,
        results=results,
    )  # fmt: skip


def _n(x: float) -> str:
    """Write a number as a sentence has it."""
    text = f"{round(x, 2) + 0.0:.2f}"
    short = text.rstrip("0").rstrip(".") if abs(round(x, 2) - x) < 1e-9 else text
    return short.replace("-", "−")


def _sum(pairs, total: float) -> str:
    """Write a sum of products, and whether rounded numbers stand in it."""
    pairs = [tuple(pair) for pair in pairs]
    terms = [
        "·".join(f"({_n(x)})" if x < 0 and (i or j) else _n(x) for j, x in enumerate(pair))
        for i, pair in enumerate(pairs)
    ]
    exact = all(abs(round(x, 2) - x) < 1e-9 for x in (total, *(x for p in pairs for x in p)))
    return f"{' + '.join(terms)} {'=' if exact else '≈'} {_n(total)}"
