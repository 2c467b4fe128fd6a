"""When do features share a dimension? Small models of one layer, trained for many sparsities.

Each model is x̂ = ReLU(Wᵀ W x + b), see :mod:`tfbook.interpret.superposition`: n features, which
are on with a probability, their density, are squeezed into m numbers and brought back.

Three questions. `phases`: two features, one number. The first feature counts 1, the second less;
for each importance of the second (`ratios`) and each density the log holds the two weights of each
start (`starts`), and the exact loss. `polygons`: five features of nearly the same importance in two
dimensions; for each density the lengths of the five directions, and the share of a dimension that
each has, for every seed. `packed`: eighty features in twenty dimensions, all alike; for each
density how many features are kept for each dimension, and for the first seed the shares in order.

Explained in: chapters/05_architecture_deeper, section "The residual stream".
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tfbook.interpret import (
    SuperpositionModel,
    expected_loss,
    fit_superposition,
    packing,
)

__all__ = ["SMOKE", "run", "state_of"]

SMOKE = {
    "densities": (0.1, 1.0), "ratios": (1.0,), "sparser": (1.0, 0.05), "seeds": (0,),
    "starts": (0,), "steps": 3,
}  # fmt: skip
CARD = {
    "model": "x̂ = ReLU(Wᵀ W x + b): {two[0]} features in {two[1]} dimension, {five[0]} in "
    "{five[1]}, or {many[0]} in {many[1]}, which are {largest:,} parameters",
    "data": "features uniform between 0 and 1 with a probability, else 0",
    "batch": "batches of {batch} for each model",
    "rate": "rate {rate:g}, falling along a cosine",
}
SPARSER = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
ON = 0.5  # a direction at least as long is a feature that is represented


def state_of(weight: Sequence[float]) -> str:
    """Return which of two features have a direction: "both", "first", "second" or "none"."""
    first, second = (abs(each) > ON for each in weight)
    return {(1, 1): "both", (1, 0): "first", (0, 1): "second", (0, 0): "none"}[first, second]


def train(
    size: tuple[int, int], density: Tensor, importance: Tensor, seed: int, **how
) -> SuperpositionModel:
    """Train one model for each density (I,), all at once."""
    generator = torch.Generator().manual_seed(seed)
    model = SuperpositionModel(*size, len(density), generator=generator)
    fit_superposition(model, density, importance, generator=generator, **how)
    return model.requires_grad_(False)


def rounded(values: Tensor) -> list | float:
    """Return numbers with three digits behind the point."""
    return [rounded(each) for each in values] if values.ndim else round(values.item(), 3)


def run(
    *,
    densities: Sequence[float] = tuple(round(0.1 * i, 1) for i in range(1, 11)),
    ratios: Sequence[float] = tuple(round(0.1 * i, 1) for i in range(1, 11)),
    sparser: Sequence[float] = SPARSER,
    two: tuple[int, int] = (2, 1),
    five: tuple[int, int] = (5, 2),
    many: tuple[int, int] = (80, 20),
    seeds: Sequence[int] = (0, 1, 2),
    starts: Sequence[int] = tuple(range(10)),
    steps: int = 1500,
    batch: int = 256,
    rate: float = 2e-2,
) -> tuple[dict, None]:
    """Train the models of all three questions with every seed."""
    how = {"steps": steps, "batch": batch, "lr": rate}
    sizes = [m * n + n for n, m in (two, five, many)]
    log: dict = {
        "settings": {
            "densities": list(densities), "ratios": list(ratios), "sparser": list(sparser),
            "two": list(two), "five": list(five), "many": list(many), "steps": steps,
            "batch": batch, "rate": rate, "largest": max(sizes),
        },
        "seeds": list(seeds), "starts": list(starts), "parameters": max(sizes),
        "phases": {"weights": [], "losses": []},
        "polygons": {"norms": [], "shares": []},
        "packed": {"kept": [], "shares": []},
    }  # fmt: skip
    grid = torch.tensor([p for _ in ratios for p in densities])
    importance = torch.tensor([[1.0, r] for r in ratios for _ in densities])
    for seed in starts:
        model = train(two, grid, importance, seed, **how)
        shape = (len(ratios), len(densities))
        log["phases"]["weights"].append(rounded(model.weight[:, 0].unflatten(0, shape)))
        exact = [
            expected_loss(w, b, float(p), each)
            for w, b, p, each in zip(model.weight, model.bias, grid, importance, strict=True)
        ]
        by_ratio = torch.tensor(exact, dtype=torch.float64).view(shape).tolist()
        log["phases"]["losses"].append([[round(loss, 5) for loss in row] for row in by_ratio])
    shares = torch.tensor(sparser)
    for seed in seeds:
        model = train(five, shares, 0.95 ** torch.arange(five[0]), seed, **how)
        found = packing(model.weight)
        log["polygons"]["norms"].append(rounded(found.norms))
        log["polygons"]["shares"].append(rounded(found.dimensions))
        model = train(many, shares, torch.ones(many[0]), seed, **how)
        found = packing(model.weight)
        log["packed"]["kept"].append(rounded((found.norms > ON).sum(-1) / many[1]))
        if seed == seeds[0]:
            log["packed"]["shares"] = rounded(found.dimensions.sort(-1, descending=True)[0])
    return log, None
