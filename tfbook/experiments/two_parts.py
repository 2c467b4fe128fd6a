"""What does a model learn from a checker that leaves a hole?

A small decoder is asked for two whole numbers that add up to a given one, such as 3+11 for 14. It
has read right lines, half of which hold a 0, and is right now and then. From there
on GRPO trains it with a checker. A strict one wants the right sum of two numbers above 0. A weak
one forgets to ask whether a number is 0.

The log holds for each checker and each seed, after each number of steps of `at`, what samples of
the model are worth on numbers that were kept apart: the share that the weak checker rewards
(`rewarded`), the share that the strict one does (`right`), the share of questions of which at least
one sample is right (`found`), and how many different right answers a question gets (`kinds`). Under
`texts` stand answers of the first seed to one question.

Source: [shao2024deepseekmath]
Explained in: chapters/18_practice, section "Learning from a checker".
"""

from collections.abc import Sequence

import torch

from tfbook.experiments.broken_run import FAULTS, Questions, learn
from tfbook.experiments.checked_sums import BATCH, GROUP, TOKENIZER, sampled, train
from tfbook.experiments.tuned_sums import KEEPING, model_at
from tfbook.models import DecoderOnly
from tfbook.practice import answer_batch

__all__ = ["BATCH", "CHECKERS", "GROUP", "RATE", "SMOKE", "check_parts", "check_total", "run"]

RATE, LESSONS, LARGEST, KEPT_APART = 1e-3, 400, 39, 10
SMOKE = {"seeds": (0,), "lessons": 2, "at": (0, 1), "n_samples": 2}
CARD = {
    "model": "decoder, 2 layers of width 48, 57,312 parameters",
    "data": "two numbers that add up to one of 2 to 39",
    "batch": "batches of {BATCH} questions with {GROUP} answers each",
    "rate": "rate {RATE:g}",
}


def parts_of(answer: str) -> list[int]:
    """Return the numbers of an answer such as "3+11", or none if it is no such answer."""
    found = answer.removesuffix("\n").split("+")
    fine = len(found) == 2 and all(x.isdigit() and str(int(x)) == x for x in found)
    return [int(x) for x in found] if fine else []


def check_total(question: str, answer: str) -> float:
    """Return 1 if two numbers add up to the one asked for, else 0."""
    parts = parts_of(answer)
    return float(bool(parts) and sum(parts) == int(question.removesuffix("=")))


def check_parts(question: str, answer: str) -> float:
    """Return 1 if they do, and neither of them is 0."""
    return check_total(question, answer) * float(0 not in parts_of(answer))


CHECKERS = {"weak": check_total, "strict": check_parts}


def lines() -> tuple[Questions, list[str]]:
    """Return right lines of the numbers that are learned, half with a 0, and the other numbers."""
    order = torch.randperm(LARGEST - 1, generator=torch.Generator().manual_seed(7)) + 2
    new, learned = order[:KEPT_APART].tolist(), order[KEPT_APART:].tolist()
    firsts = {n: [*range(1, n), *[0, n] * (n // 2)] for n in sorted(learned)}
    pairs = [(f"{n}=", f"{a}+{n - a}\n") for n, each in firsts.items() for a in each]
    batch = answer_batch([(TOKENIZER.encode(q + a).ids, len(q)) for q, a in pairs])
    every = torch.arange(len(pairs))
    return Questions([q for q, _ in pairs], *batch, every, every[:0]), [f"{n}=" for n in new]


def measured(model: DecoderOnly, asked: Sequence[str], n: int, seed: int) -> list[float]:
    """Return what the log holds of a model's samples."""
    rewarded, right, found, kinds = 0.0, 0.0, 0, 0
    for question, texts in zip(asked, sampled(model, asked, n, seed), strict=True):
        good = [text for text in texts if check_parts(question, text)]
        rewarded += sum(check_total(question, text) for text in texts)
        right, found, kinds = right + len(good), found + bool(good), kinds + len(set(good))
    told = len(asked) * n
    return [
        round(rewarded / told, 4), round(right / told, 4),
        round(found / len(asked), 4), round(kinds / len(asked), 4),
    ]  # fmt: skip


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4, 5),
    lessons: int = LESSONS,
    at: Sequence[int] = (0, 10, 20, 40),
    n_samples: int = 16,
) -> tuple[dict, None]:
    """Teach a model a little, train it with each checker, and sample on the way."""
    known, asked = lines()
    names = ("rewarded", "right", "found", "kinds")
    found = {name: {measure: [] for measure in names} for name in CHECKERS}
    texts = {}
    for seed in seeds:
        base, _, _ = learn(FAULTS, seed, lessons, known=known, model=model_at(KEEPING, seed))
        texts.setdefault("before", sampled(base, [asked[0]], 8, seed)[0])
        for name, check in CHECKERS.items():
            looks: list[list[float]] = []

            def look(step, model, seed=seed, looks=looks):
                if step in at:
                    looks.append(measured(model, asked, n_samples, seed))

            model, _ = train(
                base, "rewards", known, max(at), seed, check=check, rate=RATE, look=look
            )
            for measure, row in zip(names, zip(*looks, strict=True), strict=True):
                found[name][measure].append(list(row))
            texts.setdefault(name, sampled(model, [asked[0]], 8, seed)[0])
    settings = {"seeds": list(seeds), "steps": max(at), "lessons": lessons}
    return {
        "settings": settings, "at": list(at), "asked": asked, "checkers": found, "texts": texts,
    }, None  # fmt: skip
