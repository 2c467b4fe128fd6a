"""What does it buy to let a model answer many times, and how is one answer chosen?

The decoders of the experiment `long_sums` add four digits and write their working. One more large
one is trained like the first, so that there are two of each size. Each answers new questions
`samples` times at temperature 1, and one answer is chosen of k: the one whose last number is given
most often ("majority"); the one that the decoder itself holds likeliest, by the sum of the
log-probabilities of its tokens ("likeliest"); a right one, if there is one, which takes somebody
who knows ("any").

The log holds for each size and each seed the mean tokens of a question with one answer (`tokens`),
the accuracy of the most likely tokens (`greedy`), and under each rule the accuracy for each k of
`sizes` (`accuracy`), in the mean over 10 draws of the k from all samples. `parameters` are those of
each size. `most_wrong` is the share of questions whose most frequent answer among all samples is
wrong.

Source: [wang2023selfconsistency]; any: [chen2021evaluating].
Explained in: chapters/18_practice_deeper, section "Compute at test time".
"""

import numpy as np
import torch

from tfbook.experiments import long_sums
from tfbook.experiments.long_sums import draw, read, said, test, text_batch, trained
from tfbook.models import DecoderOnly
from tfbook.practice import best_of, majority, sequence_log_probs

__all__ = ["RULES", "SIZES", "SMOKE", "asked", "choose", "run"]

SIZES = (1, 2, 4, 8, 16, 32)
RULES = ("majority", "likeliest", "any")
SMOKE = {"seeds": (0,), "n_test": 3}
CARD = {
    "model": "decoders of width 48, 2 layers, {small:,} parameters, and 4 layers, {large:,} "
    "parameters",
    "data": "sums of four digits with working; {samples} answers to each of {n_test} questions",
    "steps": "{small_steps} and {large_steps} steps",
    "batch": "batches of {batch}",
    "rate": "rate {rate:g}, rising and then falling",
}


def choose(rule: str, numbers: list[str], scores: list[float], right: str) -> bool:
    """Say whether the answer that a rule chooses is the right one."""
    if rule == "any":
        return right in numbers
    return (majority(numbers) if rule == "majority" else best_of(numbers, scores)) == right


@torch.no_grad()
def asked(model: DecoderOnly, n: int, samples: int, seed: int) -> tuple[dict, float, float]:
    """Answer n questions so many times; return accuracies by rule, tokens, and `most_wrong`."""
    questions, _, right = draw(n, torch.Generator().manual_seed(20_000))
    texts, scores = [], []
    for i in range(samples):
        texts.append(said(model, questions, seed=1000 * i + 100_000 * seed))
        inputs, targets = text_batch(questions, texts[-1])
        scores.append(sequence_log_probs(model(inputs)[0], targets).tolist())
    numbers, chance = np.array([[read(t) for t in some] for some in texts]), _chance(seed)
    likely, found = np.array(scores), {rule: [] for rule in RULES}  # (S, Q)
    for k in SIZES:
        hits = dict.fromkeys(RULES, 0)
        for _ in range(draws := 10):
            for q in range(n):
                some = chance.permutation(samples)[:k]
                chosen = numbers[some, q].tolist(), likely[some, q].tolist()
                for rule in RULES:
                    hits[rule] += choose(rule, *chosen, right[q])
        for rule in RULES:
            found[rule].append(round(hits[rule] / draws / n, 4))
    wrong = sum(majority(numbers[:, q].tolist()) != right[q] for q in range(n)) / n
    length = len(questions[0]) + sum(len(t) for some in texts for t in some) / samples / n
    return found, round(length, 2), round(wrong, 4)


def _chance(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def run(
    *, seeds: tuple[int, ...] = (0, 1), n_test: int = 150, samples: int = 32,
    large_steps: int = 900,
) -> tuple[dict, None]:  # fmt: skip
    """Let decoders of both sizes answer the questions."""
    log: dict = {
        "settings": {"n_test": n_test, "samples": samples, "small_steps": 600,
                     "large_steps": large_steps, "batch": long_sums.BATCH,
                     "rate": long_sums.RATE},
        "seeds": list(seeds), "sizes": list(SIZES), "parameters": {},
    }  # fmt: skip
    for name in ("small", "large"):
        for seed in seeds:
            shipped = name == "small" or seed == 0
            make = trained if shipped else lambda n, s: long_sums.train(n, s, large_steps)
            model = make(name, seed)
            accuracy, tokens, wrong = asked(model, n_test, samples, seed)
            greedy = test(model, n_test, seed=20_000)["greedy"]
            found = {"accuracy": accuracy, "tokens": tokens, "most_wrong": wrong, "greedy": greedy}
            for key, value in found.items():
                log.setdefault(key, {}).setdefault(name, []).append(value)
        size = sum(x.numel() for x in model.parameters())
        log["parameters"][name] = log["settings"][name] = size
    return log, None
