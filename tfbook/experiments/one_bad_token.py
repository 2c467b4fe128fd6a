"""What does one improbable token do to the text behind it, and what do many?

SmolLM2-135M as it is. Each of 24 film reviews and 24 passages of plays is read for 24 tokens of its
author. Then one token is drawn: among those that top-p 0.9 keeps (`kept`), among those that it cuts
off (`cut off`), or among all beyond the 1,000 best (`tail`). Behind it the model writes 30 tokens
with top-p 0.9. In `uncut` all are drawn without a cut. Everywhere the random numbers are the same,
and no text may end. The log holds, by these names,

* `at_once`: the surprise in nats of the author's own next 20 tokens, right behind the one token,
  at each place, the mean of all texts; `own` stands for the author's own token;
* `later`: the mean surprise of the same 20 tokens, for each text, behind the one token and the 30
  written ones: how far the text still leads on to the author's. `another` is the control: they
  stand behind what was written in another text of the same sort (`kept`);
* `beyond`: at each of the 30 places, the probability of all but the 1,000 best tokens;
* `share`: which share of the tokens lies outside top-p 0.9, and which beyond the 1,000 best: of the
  texts that are drawn without a cut, and of those of their authors at the same places;
* `texts`: the first three texts of each sort, with the one token in brackets, and in `uncut` all
  that top-p would have cut off.

It does not show what readers think of the texts, and nothing about a large model.

Explained in: chapters/12_generation_deeper, section "One bad token".
"""

import math
from typing import Any

import torch
from torch import Tensor

from tfbook import data, pretrained

__all__ = ["KINDS", "SMOKE", "draw_between", "run"]

P, BEST = 0.9, 1000
KINDS = ("kept", "cut off", "tail", "uncut")
SMOKE = {"texts": 1, "seen": 12, "new": 2, "scored": 3}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "{texts} film reviews and as many passages of plays, {seen} tokens of each",
    "steps": "nothing is trained; {new} tokens are written behind one",
    "batch": "",
    "rate": "",
}


def draw_between(scores: Tensor, kind: str, spots: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token of each row with the numbers `spots`, (B,), among those of a kind.

    Returns: the tokens (B, 1), and whether top-p leaves each out, (B,).
    """
    values, order = scores.softmax(-1).sort(-1, descending=True)
    sums = values.double().cumsum(-1)
    kept = (sums - values < P).sum(-1, keepdim=True)  # how many top-p keeps
    border = sums.gather(1, kept - 1)
    low, high = torch.zeros_like(border), sums[:, -1:]
    if kind == "kept":
        high = border
    elif kind == "cut off":
        low = border
    elif kind == "tail":
        low = sums[:, BEST - 1 : BEST]
    place = torch.searchsorted(sums, low + spots[:, None] * (high - low), right=True)
    place = place.clamp_max(scores.shape[-1] - 1)
    return order.gather(1, place), (place >= kept)[:, 0]


def _passages(language: pretrained.Pretrained, texts: int, length: int) -> Tensor:
    plays = language.encode(data.shakespeare("test").partition("\n\n")[2][:20_000])[0]
    reviews = (
        language.encode(t)[0] for t, _ in data.movie_sentiment("test") if len(t) > 4 * length
    )
    long_ones = (ids[:length] for ids in reviews if len(ids) >= length)
    found = [ids for ids, _ in zip(long_ones, range(texts), strict=False)]
    return torch.stack([*found, *(plays[150 * i : 150 * i + length] for i in range(texts))])


@torch.no_grad()
def run(
    *, texts: int = 24, seen: int = 24, new: int = 30, scored: int = 20, shown: int = 3
) -> tuple[dict, None]:
    """Return the log.

    Args:
        texts: how many of each sort.
        seen: tokens that are read of each.
        new: tokens that are written behind the one.
        scored: of the author's.
        shown: texts of each sort that the log holds.
    """
    language = pretrained.load("smollm2-135m")
    model, ends = language.model, list(language.eos_ids)
    ids = _passages(language, texts, seen + 1 + scored)
    rows, own = torch.arange(2 * texts), ids[:, seen + 1 :]
    spots = torch.rand(
        new + 1, 2 * texts, generator=torch.Generator().manual_seed(0), dtype=torch.double
    )

    def after(tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        logits, state = model.decode(tokens, state)
        logits[..., ends] = -math.inf
        return logits[:, -1], state

    def surprise(scores: Tensor, state: Any, theirs: Tensor = own) -> Tensor:
        """Return that of each author's next tokens after these scores: (B, scored)."""
        logits, _ = model.decode(theirs[:, :-1], state.select(rows))
        logits = torch.cat([scores[:, None], logits], 1)
        right = logits.gather(-1, theirs[..., None])[..., 0]
        return logits.logsumexp(-1) - right

    def means(values: Tensor) -> list[float]:
        return [round(x, 3) for x in values.tolist()]

    first, begun = after(ids[:, :seen])
    log: dict = {"at_once": {}, "later": {}, "beyond": {}, "share": {}, "texts": {}}
    log["at_once"]["own"] = means(
        surprise(*after(ids[:, seen : seen + 1], begun.select(rows))).mean(0)
    )
    for kind in KINDS:
        token, out = draw_between(first, kind, spots[0])
        scores, state = after(token, begun.select(rows))
        if kind != "uncut":
            log["at_once"][kind] = means(surprise(scores, state).mean(0))
        written, outside, beyond, rare = [token], [out], [], []
        for spot in spots[1:]:
            p = scores.softmax(-1)
            level = p.topk(BEST).values[:, -1:]
            beyond.append(round(p.masked_fill(p >= level, 0).sum(-1).mean().item(), 4))
            token, out = draw_between(scores, "uncut" if kind == "uncut" else "kept", spot)
            written.append(token)
            outside.append(out)
            rare.append((p < level).gather(1, token)[:, 0])
            scores, state = after(token, state)
        log["beyond"][kind] = beyond
        log["later"][kind] = means(surprise(scores, state).mean(1))
        if kind == "kept":
            turned = own.view(2, texts, -1).roll(1, dims=1).flatten(0, 1)  # of the same sort
            log["later"]["another"] = means(surprise(scores, state, turned).mean(1))
        if kind == "uncut":
            marks = torch.stack([torch.stack(outside[1:]), torch.stack(rare)])
            log["share"]["drawn"] = means(marks.float().mean((1, 2)))
        log["texts"][kind] = [
            _marked(
                language, ids[i, :seen], torch.cat(written, 1)[i], torch.stack(outside)[:, i], kind
            )
            for i in [*range(min(shown, texts)), *range(texts, texts + min(shown, texts))]
        ]
    p = model.decode(ids[:, :-1])[0][:, seen:].softmax(-1)
    better = p > p.gather(-1, own[..., None])
    marks = torch.stack([(p * better).sum(-1) >= P, better.sum(-1) >= BEST])
    log["share"]["author"] = means(marks.float().mean((1, 2)))
    log["settings"] = {"texts": texts, "seen": seen, "new": new, "scored": scored}
    return log, None


def _marked(
    language: pretrained.Pretrained, begun: Tensor, new: Tensor, outside: Tensor, kind: str
) -> str:
    """Return a text, with the first new token in brackets, or all that top-p leaves out."""
    words = language.decode(begun.tolist())
    for at, (token, out) in enumerate(zip(new.tolist(), outside.tolist(), strict=True)):
        word = language.decode([token])
        words += f"[{word}]" if (out if kind == "uncut" else at == 0) else word
    return words
