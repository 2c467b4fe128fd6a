"""compute_budget: a loss by parameters and tokens, and how best to spend a number of FLOPs."""

from collections.abc import Sequence
from dataclasses import astuple

from tfbook.costs import HOFFMANN, ChinchillaLaw, compute_optimal, training_flops
from tfbook.teaching.explorables._base import Explorable, number, wrapped

TITLE = "How to spend a number of FLOPs"
CONSTANTS = ("e", "a", "alpha", "b", "beta")  # as the page calls them
PARAMETERS = (1e6, 1e13)
TOKENS = (1e8, 1e15)
COMPUTE = (1e18, 1e26)
# Name, parameters and tokens of training, as their papers say.
MODELS = (
    ("Chinchilla", 70e9, 1.4e12),
    ("GPT-3", 175e9, 300e9),
    ("LLaMA 3 8B", 8e9, 15e12),
)
ABOVE = (0.06, 0.11, 0.21, 0.31, 0.51, 0.81, 1.31, 2.31, 4.31)  # loss of the lines less E


def compute_budget(
    compute: float = 1e21,
    parameters: float = 3e8,
    *,
    law: ChinchillaLaw = HOFFMANN,
    models: Sequence[tuple[str, float, float]] = MODELS,
) -> Explorable:
    r"""Return a figure of the loss that a number of FLOPs buys, by how it is spent.

    The law is $L(N, D) = E + A / N^\alpha + B / D^\beta$ for $N$ parameters and $D$ tokens, which
    take $C = 6 N D$ FLOPs of training. On the line of one $C$ the loss is lowest at
    $N^* = G (C / 6)^{\beta / (\alpha + \beta)}$ with $G = (\alpha A / (\beta B))^{1 / (\alpha +
    \beta)}$, and $D^* = C / (6 N^*)$.

    Args:
        compute: C, FLOPs of training, 1e18 to 1e26.
        parameters: N, 1e6 to 1e13, with 1e8 to 1e15 tokens for this C.
        law: The constants, a :class:`tfbook.costs.ChinchillaLaw`; those of Hoffmann et al. when
            omitted.
        models: Up to 6 models that are marked: (name, parameters, tokens).

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [hoffmann2022training]; the marked models [brown2020language], [grattafiori2024llama].
    Explained in: chapters/06_complexity, section "Splitting a budget".
    """
    if not isinstance(law, ChinchillaLaw):
        raise TypeError(f"law must be a ChinchillaLaw, got {type(law).__name__}")
    marked = _checked(models)
    checks = {
        "compute": number("compute", *COMPUTE),
        "parameters": number("parameters", *PARAMETERS),
    }
    state = {"compute": checks["compute"](compute), "parameters": checks["parameters"](parameters)}
    low, high = reach(state["compute"])
    if not low <= state["parameters"] <= high:
        raise ValueError(
            f"parameters must be between {low:g} and {high:g} for compute = {compute:g}, got "
            f"{parameters:g}"
        )

    def results(now: dict) -> dict:
        c = now["compute"]
        low, high = reach(c)
        n = min(max(now["parameters"], low), high)
        here, best = _spent(law, n, c / (6 * n)), _spent(law, *compute_optimal(law, c))
        rows = []
        for name, n, d in marked:
            row, lowest = _spent(law, n, d), compute_optimal(law, training_flops(n, d))
            rows.append({"name": name, **row, "best_loss": law.loss(*lowest)})
        return here | {f"best_{key}": x for key, x in best.items()} | {"models": rows}

    def text(now: dict) -> str:
        found = results(now)
        others = " ".join(
            f"{row['name']}, {row['ratio']:,.1f} tokens a parameter, stands at {row['loss']:.3f}, "
            f"the best for as many FLOPs at {row['best_loss']:.3f}."
            for row in found["models"]
        )
        return wrapped(f"""{TITLE}

        The law is L = {law.floor:g} + {law.n_scale:g} / N^{law.n_exponent:g} + {law.d_scale:g} /
        D^{law.d_exponent:g}, with 6 N D FLOPs of training. Of {now["compute"]:.3g} FLOPs, a model
        of {found["size"]:.3g} parameters gets {found["tokens"]:.3g} tokens,
        {found["ratio"]:,.1f} a parameter, and reaches a loss of {found["loss"]:.3f}. The best is
        {found["best_loss"]:.3f}, with {found["best_size"]:.3g} parameters and
        {found["best_tokens"]:.3g} tokens, {found["best_ratio"]:,.1f} a parameter. {others}

        In the page lines of equal loss stand over parameters and tokens; a slider moves the line
        of equal work, and a handle goes along it.""")

    data = {
        "title": TITLE, "law": dict(zip(CONSTANTS, astuple(law), strict=True)),
        "models": [list(row) for row in marked],
        "ranges": {"parameters": PARAMETERS, "tokens": TOKENS, "compute": COMPUTE},
        "levels": sorted({round(law.floor + above, 2) for above in ABOVE}),
    }  # fmt: skip
    return Explorable(
        "compute_budget", data=data, state=state, checks=checks, results=results, text=text
    )


def reach(compute: float) -> tuple[float, float]:
    """Return the fewest and the most parameters for which the line of this C is in the picture."""
    low, high = (compute / (6 * d) for d in reversed(TOKENS))
    return max(PARAMETERS[0], low), min(PARAMETERS[1], high)


def _spent(law: ChinchillaLaw, n: float, d: float) -> dict[str, float]:
    """Return what a model of N parameters comes to after D tokens."""
    return {"size": n, "tokens": d, "ratio": d / n, "loss": law.loss(n, d)}


def _checked(models: Sequence) -> list[tuple[str, float, float]]:
    """Return the marked models, each checked."""
    if isinstance(models, str) or not isinstance(models, Sequence):
        raise TypeError(f"models must be a list of models, got {type(models).__name__}")
    if len(models) > 6:
        raise ValueError(f"models must be at most 6, got {len(models)}")
    found = []
    for i, row in enumerate(models):
        wanted = f"models[{i}] must be (name, parameters, tokens)"
        if not isinstance(row, (tuple, list)):
            raise TypeError(f"{wanted}, got {type(row).__name__}")
        if len(row) != 3:
            raise ValueError(f"{wanted}, got {len(row)} items")
        name, n, d = row
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"models[{i}] name must be a text, got {name!r}")
        n = number(f"models[{i}] parameters", *PARAMETERS)(n)
        found.append((name, n, number(f"models[{i}] tokens", *TOKENS)(d)))
    return found
