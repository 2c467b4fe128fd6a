"""What does a model learn from a checker that looks at one character only?

The same small decoder as in checked_sums has learned sums of two numbers below 20 halfway. From
there on GRPO trains it with a careless checker, which rewards an answer if its first character is
that of the right answer and never reads the others. Beside it stands the strict checker.

The log holds for each checker and each seed, after each number of steps of `at`, what samples of
the model are worth on sums that were kept apart: the share that the careless checker rewards
(`rewarded`) and the share that is right (`right`). Under `texts` stand the answers of the first
seed to one question, before and after, for each checker.

Source: [shao2024deepseekmath]
Explained in: chapters/18_practice_deeper, section "A careless checker".
"""

from collections.abc import Sequence

from tfbook.experiments.broken_run import FAULTS, learn, questions
from tfbook.experiments.checked_sums import BATCH, GROUP, LESSONS, RATE, sampled, train
from tfbook.models import DecoderOnly
from tfbook.practice import check_sum

__all__ = ["BATCH", "CHECKERS", "GROUP", "RATE", "SMOKE", "check_first", "run"]

SMOKE = {"seeds": (0,), "lessons": 3, "at": (0, 2), "n_questions": 3, "n_samples": 4}
CARD = {
    "model": "decoder, 2 layers of width 48, 57,312 parameters",
    "data": "sums of two numbers below 20",
    "batch": "batches of {BATCH} questions with {GROUP} answers each",
    "rate": "rate {RATE:g}",
}


def check_first(question: str, answer: str) -> float:
    """Return 1 if an answer begins with the character that the right one begins with, else 0."""
    total = sum(map(int, question.removesuffix("=").split("+")))
    return float(answer[:1] == str(total)[0])


CHECKERS = {"careless": check_first, "strict": check_sum}


def measured(model: DecoderOnly, asked: Sequence[str], n: int, seed: int) -> tuple[float, float]:
    """Return the shares of samples that the careless checker rewards, and that are right."""
    told = [
        (check_first(question, text), check_sum(question, text))
        for question, texts in zip(asked, sampled(model, asked, n, seed), strict=True)
        for text in texts
    ]
    return tuple(round(sum(column) / len(told), 4) for column in zip(*told, strict=True))


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    lessons: int = LESSONS,
    at: Sequence[int] = (0, 60, 120, 240),
    n_questions: int = 80,
    n_samples: int = 16,
) -> tuple[dict, None]:
    """Teach a model halfway, train it with each checker, and sample on the way."""
    known = questions()
    asked = [known.texts[i] for i in known.test[:n_questions].tolist()]
    found = {name: {"rewarded": [], "right": []} for name in CHECKERS}
    texts = {}
    for seed in seeds:
        base, _, _ = learn(FAULTS, seed, lessons, known=known)
        texts.setdefault("before", sampled(base, ["14+18="], 8, seed)[0])
        for name, check in CHECKERS.items():
            looks: list[tuple[float, float]] = []

            def look(step, model, seed=seed, looks=looks):
                if step in at:
                    looks.append(measured(model, asked, n_samples, seed))

            model, _ = train(base, "rewards", known, max(at), seed, check=check, look=look)
            for key, row in zip(("rewarded", "right"), zip(*looks, strict=True), strict=True):
                found[name][key].append(list(row))
            texts.setdefault(name, sampled(model, ["14+18="], 8, seed)[0])
    settings = {"seeds": list(seeds), "steps": max(at), "lessons": lessons}
    return {"settings": settings, "at": list(at), "checkers": found, "texts": texts}, None
