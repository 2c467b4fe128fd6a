"""How much does a text surprise the model that wrote it, and how much one that people wrote?

SmolLM2-135M as it is. It reads the first ten tokens of eight film reviews and of eight passages of
plays, and writes 40 more in each of five ways: with four beams, greedily, by drawing at temperature
0.8 with top-p 0.9, with top-p 0.9 alone, and without a cut. No text may end. `people` are the
authors' own next 40 tokens. The log holds, by these names,

* `surprise`: the mean of -ln p over the new tokens of each text, in nats, as the model reads them
  at temperature 1 and without a cut;
* `repeats`: whether a run of eight tokens occurs twice among the new tokens of each text;
* `texts`: the first two passages of plays, with what was written behind them.

It does not show which texts people would prefer, and nothing about a large model.

Explained in: chapters/12_generation, section "What people write".
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tfbook import data, generation, pretrained
from tfbook.generation import Sampling

__all__ = ["SMOKE", "WAYS", "beams_of_each", "repeats", "run"]

BEAMS, RUN = 4, 8
# Temperature and top-p of each way that draws; at 0.001 the most probable token is drawn.
WAYS = {
    "greedy": (1e-3, 1.0),
    "0.8, top-p 0.9": (0.8, 0.9),
    "top-p 0.9": (1.0, 0.9),
    "drawn": (1.0, 1.0),
}
SMOKE = {"texts": 1, "new": 2}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "{texts} film reviews and as many passages of plays, {seen} tokens of each",
    "steps": "nothing is trained; {new} tokens are written",
    "batch": "",
    "rate": "",
}


def repeats(tokens: list[int], length: int = RUN) -> bool:
    """Return whether a run of so many tokens occurs twice."""
    runs = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return len(set(runs)) < len(runs)


@torch.no_grad()
def beams_of_each(
    model: torch.nn.Module, ids: Tensor, beams: int, steps: int, never: Sequence[int] = ()
) -> list[list[int]]:
    """Search with so many beams behind each row of ids (B, N); tokens of `never` do not come."""

    def scored(logits: Tensor) -> Tensor:
        more = logits[:, -1].log_softmax(-1)
        more[:, list(never)] = -math.inf
        return more

    first_of = torch.arange(len(ids)).repeat_interleave(beams)  # the text of each hypothesis
    logits, state = model.decode(ids)
    total, first = scored(logits).topk(beams)  # (B, beams)
    tokens, state = first.view(-1, 1), state.select(first_of)
    for _ in range(steps - 1):
        logits, state = model.decode(tokens[:, -1:], state)
        more = scored(logits).view(len(ids), beams, -1)
        total, places = (total[..., None] + more).flatten(1).topk(beams)
        parent = (places // more.shape[-1]).flatten() + beams * first_of
        tokens = torch.cat([tokens[parent], (places % more.shape[-1]).view(-1, 1)], 1)
        state = state.select(parent)
    return tokens.view(len(ids), beams, steps)[:, 0].tolist()


def _rule(language: pretrained.Pretrained, texts: int) -> Sampling:
    """Return the rule of a batch in which each way has so many rows."""
    rows = [way for way in WAYS.values() for _ in range(texts)]
    heat, top_p = torch.tensor(rows).T[..., None]
    ends = list(language.eos_ids)

    def rule(scores: Tensor) -> Tensor:
        scores = scores / heat
        scores[:, ends] = -math.inf
        values, order = scores.softmax(-1).sort(-1, descending=True)
        out = values.cumsum(-1) - values >= top_p
        return scores.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -math.inf)

    return Sampling(rule=rule)


def run(*, texts: int = 8, seen: int = 10, new: int = 40) -> tuple[dict, None]:
    """Return the log.

    Args:
        texts: how many reviews, and how many passages of plays.
        seen: tokens that are read of each.
        new: tokens that are written, or read of the author.
    """
    language = pretrained.load("smollm2-135m")
    plays = language.encode(data.shakespeare("test").partition("\n\n")[2][:14_000])[0]
    length = seen + new
    reviews = (language.encode(t)[0] for t, _ in data.movie_sentiment("test") if len(t) > 180)
    long_ones = (ids[:length] for ids in reviews if len(ids) >= length)
    originals = torch.stack(
        [ids for ids, _ in zip(long_ones, range(texts), strict=False)]
        + [plays[400 * i : 400 * i + length] for i in range(texts)]
    )
    begun = originals[:, :seen]
    drawn = generation.generate(
        language.model,
        begun.tolist() * len(WAYS),
        max_new_tokens=new,
        sampling=_rule(language, 2 * texts),
        seed=list(range(2 * texts * len(WAYS))),
    ).tokens
    written = {"four beams": beams_of_each(language.model, begun, BEAMS, new, language.eos_ids)}
    for i, way in enumerate(WAYS):
        written[way] = drawn[2 * texts * i : 2 * texts * (i + 1)]
    written["people"] = originals[:, seen:].tolist()
    log: dict = {"surprise": {}, "repeats": {}, "texts": {}}
    for way, rows in written.items():
        whole = torch.cat([begun, torch.tensor(rows)], 1)
        log_p = generation.score(language.model, whole)[:, seen - 1 :]
        log["surprise"][way] = [round(x, 3) for x in (-log_p.mean(-1)).tolist()]
        log["repeats"][way] = [repeats(row) for row in rows]
        log["texts"][way] = [
            language.decode(row.tolist()) for row in whole[texts : texts + min(2, texts)]
        ]
    log["settings"] = {"texts": texts, "seen": seen, "new": new}
    return log, None
