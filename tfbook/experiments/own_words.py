"""Should a student learn from its teacher's texts, or from the teacher's word on its own?

The larger decoder of the experiment `long_sums` teaches the small one, which has half as many
layers. The student goes on from where it was left, on batches of 32 questions that are answered
either by the teacher or by the student itself, at temperature 1. Behind each token of the answers
teacher and student are compared over the whole vocabulary, by KL(teacher ‖ student), which asks the
student to cover all that the teacher might say, or by KL(student ‖ teacher), which asks it to say
nothing that the teacher would not. "right texts" are new texts that are right, with the usual loss:
what the same number of answers teaches without a teacher.

The log holds for each of `ways` and each seed, at the looks `after`, the share of 200 new questions
that end with the right number, by the most likely tokens (`greedy`) and by a sample (`sampled`);
and the mean KL(student ‖ teacher) in nats a token on the student's own answers (`own`) and on the
teacher's (`teachers`). `tokens` are those that each way was trained on, `teacher` is how many of
the questions the teacher answers rightly.

Source: [agarwal2024policy].
Explained in: chapters/18_practice_deeper, section "On-policy distillation".
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tfbook.experiments.long_sums import draw, learn, said, test, text_batch, trained
from tfbook.models import DecoderOnly
from tfbook.practice import answer_loss, reference_drift
from tfbook.training import IGNORE

__all__ = ["SMOKE", "WAYS", "divergence", "run", "train"]

# Name → whose texts, whether the divergence is taken from the teacher to the student.
WAYS: dict[str, tuple[str, bool]] = {
    "right texts": ("right", True),
    "teacher's texts, KL(teacher ‖ student)": ("teacher", True),
    "teacher's texts, KL(student ‖ teacher)": ("teacher", False),
    "own texts, KL(teacher ‖ student)": ("student", True),
    "own texts, KL(student ‖ teacher)": ("student", False),
}
SMOKE = {"seeds": (0,), "steps": 2, "looks": 1, "n_test": 4}
CARD = {
    "model": "a decoder of 2 layers, {student_size:,} parameters, teacher of 4 layers, "
    "{teacher_size:,} parameters",
    "data": "sums of four digits with working",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}, rising and then falling",
}
BATCH, RATE = 32, 1e-3


def divergence(
    student: nn.Module, teacher: nn.Module, questions: Sequence[str], texts: Sequence[str],
    *, forward: bool,
) -> Tensor:  # fmt: skip
    """Return the mean divergence over the tokens of answers, from the teacher or to it."""
    inputs, targets = text_batch(questions, texts)
    with torch.no_grad():
        wanted = teacher(inputs)[0]
    both = student(inputs)[0], wanted
    return reference_drift(*(both[::-1] if forward else both), targets != IGNORE)


def train(
    way: str, seed: int, teacher: DecoderOnly, *, steps: int, looks: int, n_test: int
) -> dict[str, list[float]]:
    """Train one student, and look at it on the way."""
    whose, forward = WAYS[way]
    student, generator = trained("small", seed), torch.Generator().manual_seed(500 + seed)
    seen: dict = {name: [] for name in ("after", "greedy", "sampled", "own", "teachers", "tokens")}
    spent = 0

    def look(step: int) -> None:
        found = test(student.eval(), n_test, seed=20_000)
        questions, *_ = draw(40, torch.Generator().manual_seed(21_000))
        with torch.no_grad():
            for name, writer in (("own", student), ("teachers", teacher)):
                texts = said(writer, questions, seed=3)
                far = divergence(student, teacher, questions, texts, forward=False)
                seen[name].append(round(far.item(), 4))
        for name in ("greedy", "sampled"):
            seen[name].append(found[name])
        seen["after"].append(step)
        seen["tokens"].append(spent)

    def loss(step: int) -> Tensor:
        nonlocal spent
        if step % max(1, steps // looks) == 0:
            look(step)
        questions, texts, _ = draw(BATCH, generator)
        if whose != "right":
            writer = student if whose == "student" else teacher
            texts = said(writer, questions, seed=10_000 * seed + step)
        spent += sum(map(len, texts))
        if whose == "right":
            total, count = answer_loss(student, text_batch(questions, texts))
            return total / count
        return divergence(student, teacher, questions, texts, forward=forward)

    learn(student, loss, steps, rate=RATE)
    look(steps)
    return seen


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = 100, looks: int = 1, n_test: int = 200
) -> tuple[dict, None]:
    """Train a student in each way with each seed.

    Returns:
        the log: lists over `seeds` by name and way.
    """
    teacher = trained("large").requires_grad_(False)
    sizes = [sum(x.numel() for x in m.parameters()) for m in (trained("small"), teacher)]
    log: dict = {"settings": {"steps": steps, "student_size": sizes[0], "teacher_size": sizes[1]},
                 "seeds": list(seeds), "teacher": test(teacher, n_test, seed=20_000)}  # fmt: skip
    for way in WAYS:
        for seed in seeds:
            found = train(way, seed, teacher, steps=steps, looks=looks, n_test=n_test)
            log["after"] = found.pop("after")
            for name, values in found.items():
                log.setdefault(name, {}).setdefault(way, []).append(values)
    return log, None
