"""What do comparisons of answers change in a model: the preferred style, and what else?

A small decoder has learned sums of two numbers below 20 from texts in two styles, half of them
"3+8=11" and half "3+8=011", with a zero before the number. Both are right. Then DPO trains it on
pairs of right answers to the same questions, of which the one without the zero is preferred, with
several strengths beta of the tie to the model as it was. A control, "lessons", takes as many steps
of ordinary training on the preferred answers of the same pairs. "Mixed" adds the loss of those
lessons to that of DPO with beta = 0.1.

The log holds, for each beta and each seed, and under `lessons` for the control and under `mixed`
for both, what is measured after each number of steps of `at`, on samples of the model itself for
sums that were kept apart:
the share of answers in the preferred style (`style`), of right answers in either style (`right`),
the divergence from the model as it was in nats a token (`drift`), and the mean change of the
log-probability of the preferred and of the rejected answers (`chosen`, `rejected`).

Source: [rafailov2023direct]
Explained in: chapters/18_practice, section "Learning from comparisons".
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from tfbook.experiments.broken_run import FAULTS, Questions, loss_of, model_of, questions
from tfbook.experiments.checked_sums import TOKENIZER, sampled
from tfbook.models import DecoderOnly
from tfbook.practice import answer_batch, preference_loss, reference_drift, sequence_log_probs
from tfbook.training import Example, evaluating

__all__ = ["BETAS", "LESSONS", "SMOKE", "followed", "pairs", "run", "taught"]

BETAS = (0.02, 0.1, 0.5)
MIXED = 0.1  # the beta of the way in which both are learned from
LESSONS, RATE, BATCH = 600, 2e-4, 16
SMOKE = {"seeds": (0,), "betas": (0.1,), "lessons": 3, "at": (0, 2), "n_test": 4}
CARD = {
    "model": "decoder, 2 layers of width 48, 57,312 parameters",
    "data": "pairs of right answers to sums of two numbers below 20",
    "batch": "batches of {BATCH} pairs",
    "rate": "rate {RATE:g}",
}


def pairs(texts: Sequence[str], styles: Sequence[str]) -> Example:
    """Return questions with right answers, in the style "plain" or "zero" of each."""
    found = []
    for text, style in zip(texts, styles, strict=True):
        total = sum(map(int, text.removesuffix("=").split("+")))
        answer = f"{'0' * (style == 'zero')}{total}\n"
        found.append((TOKENIZER.encode(text + answer).ids, len(text)))
    return answer_batch(found)


def taught(known, seed: int, lessons: int) -> DecoderOnly:
    """Return a model that has learned both styles."""
    model, generator = model_of(FAULTS, seed), torch.Generator().manual_seed(seed)
    half = torch.rand(len(known.texts), generator=torch.Generator().manual_seed(5)) < 0.5
    batch = pairs(known.texts, ["zero" if x else "plain" for x in half.tolist()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=0.01)
    for step in range(lessons):
        rate = 0.005 * min(1.0, (step + 1) / 50) * (1 - 0.95 * step / lessons)
        optimizer.param_groups[0]["lr"] = rate
        chosen = known.train[torch.randint(len(known.train), (32,), generator=generator)]
        optimizer.zero_grad()
        loss_of(model, batch.inputs[chosen], batch.targets[chosen]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def measure(model: DecoderOnly, base: DecoderOnly, asked: Sequence[str], seed: int) -> list[float]:
    """Return style, right, drift, and the change of both log-probabilities."""
    with evaluating(model):
        drawn = [texts[0] for texts in sampled(model, asked, 1, seed)]
        numbers = [text.removesuffix("\n") for text in drawn]
        totals = [sum(map(int, text.removesuffix("=").split("+"))) for text in asked]
        told = list(zip(numbers, totals, strict=True))
        right = sum(text.isdecimal() and int(text) == total for text, total in told)
        style = sum(not text.startswith("0") or text == "0" for text in numbers)
        ids = [
            (TOKENIZER.encode(question + text).ids, len(question))
            for question, text in zip(asked, drawn, strict=True)
        ]
        own = answer_batch(ids)
        drift = reference_drift(model(own.inputs)[0], base(own.inputs)[0], own.targets >= 0)
        change = []
        for kind in ("plain", "zero"):
            batch = pairs(asked, [kind] * len(asked))
            now, before = (sequence_log_probs(m(batch.inputs)[0], batch.targets)
                           for m in (model, base))  # fmt: skip
            change.append((now - before).mean().item())
    n = len(asked)
    return [round(x, 4) for x in (style / n, right / n, drift.item(), *change)]


def followed(
    base: DecoderOnly, way: float | str, seed: int, known: Questions, asked: Sequence[str],
    at: Sequence[int], rate: float = RATE,
) -> list[list[float]]:  # fmt: skip
    """Train a copy of a model by DPO with this beta, "lessons" or "mixed", and look on the way."""
    model, generator = copy.deepcopy(base), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    looks = []
    for step in range(max(at) + 1):
        if step in at:
            looks.append(measure(model, base, asked, seed))
        drawn = known.train[torch.randint(len(known.train), (BATCH,), generator=generator)]
        texts = [known.texts[i] for i in drawn.tolist()]
        pair = tuple(pairs(texts, [kind] * BATCH) for kind in ("plain", "zero"))
        loss = torch.zeros(())
        if way != "lessons":
            beta = MIXED if way == "mixed" else way
            total, count = preference_loss(model, pair, reference=base, beta=beta)
            loss = loss + total / count
        if way in ("lessons", "mixed"):
            loss = loss + loss_of(model, pair[0].inputs, pair[0].targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return looks


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    betas: Sequence[float] = BETAS,
    lessons: int = LESSONS,
    at: Sequence[int] = (0, 10, 20, 40, 80),
    n_test: int = 80,
) -> tuple[dict, dict[str, Tensor]]:
    """Teach both styles, prefer one, and look on the way."""
    known = questions()
    asked = [known.texts[i] for i in known.test[:n_test].tolist()]
    names = ("style", "right", "drift", "chosen", "rejected")
    ways = [*betas, "mixed", "lessons"]
    found = {way: {name: [] for name in names} for way in ways}
    kept = {}
    for seed in seeds:
        base = taught(known, seed, lessons)
        kept = kept or {name: weight.half() for name, weight in base.state_dict().items()}
        for way in ways:
            looks = followed(base, way, seed, known, asked, at)
            for name, row in zip(names, zip(*looks, strict=True), strict=True):
                found[way][name].append(list(row))
    settings = {"seeds": list(seeds), "steps": max(at), "lessons": lessons}
    others = {way: found.pop(way) for way in ("lessons", "mixed")}
    by_beta = {str(beta): rows for beta, rows in found.items()}
    return {"settings": settings, "at": list(at), "betas": by_beta, **others}, kept
