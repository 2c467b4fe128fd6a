"""What does learning from a checker add to a model, and what was there before?

A small decoder has learned sums of two numbers below 20 halfway: its samples are right now and
then. From there on it is trained in two ways, for as many steps and on as many questions:
"rewards", by the corrected form of GRPO with a checker as the only teacher, and "lessons", on the
right answers.

The log holds, for each seed, under `before` and under each way the number of right answers among
`samples` to each of `questions` sums that were kept apart (`right`), the mean number of tokens of
wrong answers (`wrong`), and the share of right answers of each step of GRPO (`rewards`).

Source: [shao2024deepseekmath], [liu2025understanding], [yue2025does]
Explained in: chapters/18_practice, section "Learning from a checker".
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tfbook.experiments.broken_run import FAULTS, Questions, learn, loss_of, questions
from tfbook.generation import Sampling, generate
from tfbook.models import DecoderOnly
from tfbook.practice import Sampler, arithmetic_tokenizer, check_sum, rollout_loss

__all__ = ["SMOKE", "WAYS", "checked", "run", "sampled", "train"]

WAYS = ("rewards", "lessons")
LESSONS, RATE, BATCH, GROUP, LONGEST = 250, 2e-4, 16, 16, 6
SMOKE = {"seeds": (0,), "lessons": 3, "steps": 2, "n_questions": 3, "n_samples": 4}
CARD = {
    "model": "decoder, 2 layers of width 48, 57,312 parameters",
    "data": "sums of two numbers below 20",
    "batch": "batches of {BATCH} questions with {GROUP} answers each",
    "rate": "rate {RATE:g}",
}
TOKENIZER = arithmetic_tokenizer()
END = TOKENIZER.token_to_id("\n")


def sampled(model: DecoderOnly, asked: Sequence[str], n: int, seed: int) -> list[list[str]]:
    """Return n answers to each question, drawn at temperature 1."""
    prompts = [TOKENIZER.encode(text).ids for text in asked for _ in range(n)]
    drawn = generate(
        model, prompts, max_new_tokens=LONGEST, sampling=Sampling(), stop=[END], seed=seed
    ).tokens
    texts = [TOKENIZER.decode(tokens) for tokens in drawn]
    return [texts[i : i + n] for i in range(0, len(texts), n)]


def checked(model: DecoderOnly, asked: Sequence[str], n: int, seed: int) -> tuple[list[int], float]:
    """Return how many answers to each question are right, and the mean length of wrong ones."""
    right, lengths = [], []
    for question, texts in zip(asked, sampled(model, asked, n, seed), strict=True):
        good = [check_sum(question, text) for text in texts]
        right.append(int(sum(good)))
        lengths += [len(text) for text, ok in zip(texts, good, strict=True) if not ok]
    return right, round(sum(lengths) / max(1, len(lengths)), 3)


def train(
    model: DecoderOnly, way: str, known: Questions, steps: int, seed: int, *,
    check: Callable[[str, str], float] = check_sum,
    rate: float = RATE,
    look: Callable[[int, DecoderOnly], None] | None = None,
) -> tuple[DecoderOnly, list[float]]:  # fmt: skip
    """Train a copy in one way, and return it with the rewards of its steps.

    Before the first step and after each, `look` is called with the number of steps and the model.
    """
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    pool = [known.texts[i] for i in known.train.tolist()]
    draw = Sampler(
        model, pool, check, tokenizer=TOKENIZER, batch=BATCH, group=GROUP,
        max_new_tokens=LONGEST, stop=END, seed=seed,
    )  # fmt: skip
    if look is not None:
        look(0, model)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 10)
        if way == "lessons":
            chosen = known.train[torch.randint(len(known.train), (BATCH,), generator=generator)]
            loss = loss_of(model, known.inputs[chosen], known.targets[chosen])
        else:
            loss = rollout_loss(model, draw(step), length=LONGEST)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if look is not None:
            look(step + 1, model)
    return model, [round(value, 4) for value in draw.rewards]


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    lessons: int = LESSONS,
    steps: int = 240,
    n_questions: int = 80,
    n_samples: int = 64,
) -> tuple[dict, dict[str, Tensor]]:
    """Teach a model halfway, go on in two ways, and sample before and after."""
    known = questions()
    asked = [known.texts[i] for i in known.test[:n_questions].tolist()]
    found = {way: {"right": [], "wrong": [], "rewards": []} for way in ("before", *WAYS)}
    kept = {}
    for seed in seeds:
        base, _, _ = learn(FAULTS, seed, lessons, known=known)
        kept = kept or {name: weight.half() for name, weight in base.state_dict().items()}
        for way in found:
            model, rewards = (base, []) if way == "before" else train(base, way, known, steps, seed)
            right, wrong = checked(model, asked, n_samples, seed)
            found[way]["right"].append(right)
            found[way]["wrong"].append(wrong)
            found[way]["rewards"].append(rewards)
    log = {
        "settings": {"seeds": list(seeds), "steps": steps, "lessons": lessons},
        "questions": len(asked),
        "samples": n_samples,
        "ways": found,
    }
    return log, kept
