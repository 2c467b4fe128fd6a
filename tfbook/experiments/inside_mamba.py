"""How does the Mamba-2 of `update_rules` treat facts and the mark, and what is told once alone?

The same layers, tasks, steps and rate as in `update_rules`, five seeds. Of Mamba-2, trained on all
tasks, the log keeps for facts and for the mark of a new story: the mean factor by which the state
is multiplied, the mean step, the mean norm of the value, and the mean norm of what is written, the
step times the value; and the mean absolute dot product of a question with the key of the mark.
Linear attention is trained on facts told once alone, as retention was there.

The log holds `inside[seed]`, with `fact` and `mark`, each with `keep`, `step`, `value` and
`written`, and `overlap`; and `alone[seed]`, the shares of right answers for each of `counts`.

Source: [dao2024transformers], [arora2023zoology]
Explained in: chapters/09_hybrids, section "Five states, three tasks".
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from tfbook.experiments import update_rules
from tfbook.experiments.update_rules import BATCH, MARK, PEOPLE, TOLD, WIDTH, Network  # noqa: F401

__all__ = ["SMOKE", "run", "written_by"]

SMOKE = {"seeds": (0,), "steps": 4}
CARD = {
    "model": "one layer of width {WIDTH}, Mamba-2 or linear attention, {smallest:,} to "
    "{largest:,} parameters",
    "data": "8 to 32 tokens with facts, then the questions",
    "batch": "batches of {BATCH} sequences",
    "rate": "rate {rates_first:g}, rising, then falling",
}


@torch.no_grad()
def written_by(net: Network) -> dict:
    """Return what facts and the mark of a new story do to the state, as means over sequences."""
    keys, values, asked, _ = update_rules.story_of(200, torch.Generator().manual_seed(30_000))
    x = torch.cat([net.keys(keys), net.values(values)], dim=-1)
    questions = torch.cat([net.keys(asked), net.ask.expand(*asked.shape, -1)], dim=-1)
    memory, norm = net.block.memory, net.block.norms[0]
    _, k, v = memory.to_qkv(norm(x)).chunk(3, dim=-1)
    q = memory.to_qkv(norm(questions)).chunk(3, dim=-1)[0]
    log_keep, step = memory.chosen(norm(x))
    size, is_mark = v.norm(dim=-1), keys == MARK
    numbers = {"keep": log_keep.exp(), "step": step, "value": size, "written": step * size}
    found: dict = {
        kind: {name: round(each[chosen].mean().item(), 4) for name, each in numbers.items()}
        for kind, chosen in (("fact", ~is_mark), ("mark", is_mark))
    }
    of_mark = functional.normalize(k[is_mark], dim=-1)[:, :, None]  # one a sequence
    overlap = (functional.normalize(q, dim=-1) @ of_mark).abs().mean().item()
    return found | {"overlap": round(overlap, 4)}


def run(
    *,
    counts: Sequence[int] = (4, 8, 16, 32, 64),
    rates: Sequence[float] = (0.015,),
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 1000,
) -> tuple[dict, None]:
    """Train Mamba-2 on all tasks and linear attention on one, with every seed."""
    inside, alone, sizes = [], [], set()
    for seed in seeds:
        net = update_rules.trained("Mamba-2", rates[0], seed, steps)
        inside.append(written_by(net))
        sizes.add(sum(w.numel() for w in net.parameters()))
        net = update_rules.trained(
            "linear attention", rates[0], seed, steps, tasks=(PEOPLE, PEOPLE * TOLD)
        )
        alone.append([update_rules.right(net, count, 10_000 + seed) for count in counts])
        sizes.add(sum(w.numel() for w in net.parameters()))
    log = {"inside": inside, "alone": alone, "smallest": min(sizes), "largest": max(sizes)}
    settings = {"rates": list(rates), "steps": steps}
    return {"settings": settings, "counts": list(counts), "seeds": list(seeds), **log}, None
