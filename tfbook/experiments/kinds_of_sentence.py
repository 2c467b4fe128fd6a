"""Is it the length of a sentence that is hard for a translator, or what the sentence is made of?

In the small language of chapter 01 a longer sentence has more places and adjectives, so length and
structure grow together. Here they are taken apart. With one vector: what if every English sentence
is filled up to 22 words by a word that is not translated, half of the fillers after the document
and half before the verb; and what if French keeps the order of the adjectives? With attention: what
of sentences with four places that are no longer than those of training, and what does a translator
do at 23 words and more when it has seen four places, but never more than 22 words? Everything else
is as in the experiment `sentence_length`.

Explained in: chapters/01_motivation, section "Is it the length?", and
chapters/01_motivation_deeper, section "What of kinds that it never saw?".
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.experiments import sentence_length as language

__all__ = ["FILLER", "RUNS", "SMOKE", "batch", "model_of", "pair_of", "run"]

FILLER, LONGEST = "indeed", 22
SHAPES = language.SHAPES
READ = [*language.READ, FILLER]
NEW = [(0, 0, 0), (2, 2, 1), (0, 0, 0, 0), *language.BEYOND]
FOUR = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 1, 0)]
# Name → the translator, how its sentences are made, and which kinds it is trained on besides.
RUNS = {
    "one vector, all of 22 words": ("one vector", "filled", []),
    "one vector, order kept": ("one vector", "kept", []),
    "looks back": ("looks back", "plain", []),
    "looks back, trained on four places": ("looks back", "plain", FOUR),
}
BATCH, RATE = language.BATCH, language.RATE
SMOKE = {"steps": 2, "seeds": (0, 1), "size": 4}
CARD = {
    "model": "encoder-decoder of GRUs, width 48, 77,641 to 84,601 parameters",
    "data": "a small language, sentences of 7 to 22 words",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g} at most",
}


def pair_of(
    shape: tuple[int, ...], chance: random.Random, made: str = "plain"
) -> tuple[list[str], list[str]]:
    """Make a pair of sentences of one kind: plain, filled up, or with the order kept."""
    read, write = language.pair_of(shape, chance)
    if made == "filled":
        missing = LONGEST - len(read)
        after = missing - missing // 2
        verb = len(read) - 5
        read = [*read[:2], *[FILLER] * after, *read[2:verb], *[FILLER] * (missing // 2),
                *read[verb:]]  # fmt: skip
    elif made == "kept":
        at = 2
        for number in shape:
            first, at = at + 3, at + 3 + number
            write[first:at] = reversed(write[first:at])
    return read, write


def batch(
    shape: tuple[int, ...], size: int, chance: random.Random, made: str = "plain"
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pairs of one kind, as numbers: sources, what was written before, what to write."""
    pairs = [pair_of(shape, chance, made) for _ in range(size)]
    number_of = {word: i for i, word in enumerate(READ)}
    source = torch.tensor([[number_of[word] for word in read] + [0] for read, _ in pairs])
    targets = [[language.write_id[word] for word in write] + [1] for _, write in pairs]
    written_before = torch.tensor([[0, *row[:-1]] for row in targets])
    return source, written_before, torch.tensor(targets)


def model_of(kind: str) -> language.Translator:
    """Make a translator that also knows the filler."""
    model = language.model_of(kind)
    model.encoder.read = nn.Embedding(len(READ), model.encoder.read.embedding_dim)
    return model


def train(
    model: language.Translator, shapes: list[tuple[int, ...]], made: str, steps: int, seed: int
) -> None:
    """Train as the chapter does: each batch is new, and of one kind."""
    chance = random.Random(seed)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    for _ in range(steps):
        source, written_before, target = batch(chance.choice(shapes), BATCH, chance, made)
        logits = model(source, written_before)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def shares(
    model: language.Translator, shape: tuple[int, ...], made: str, size: int
) -> tuple[float, float]:
    """Return the share of faultless sentences, and of right words, after the true ones."""
    source, written_before, target = batch(shape, size, random.Random(77), made)
    right = model(source, written_before).argmax(dim=-1) == target
    return right.all(dim=1).double().mean().item(), right.double().mean().item()


def run(
    *, steps: int = 400, seeds: tuple[int, ...] = (0, 1, 2), size: int = 200
) -> tuple[dict, None]:
    """Train every translator with every seed.

    Returns:
        the log: `kinds[run]` and `lengths[run]` (English words) are lists over kinds;
        `faultless[run]` and `words[run]` are lists over the same kinds of lists over seeds.
    """
    log: dict[str, dict] = {"kinds": {}, "lengths": {}, "faultless": {}, "words": {}}
    for name, (kind, made, besides) in RUNS.items():
        kinds = [*SHAPES, *(NEW if made == "plain" else [])]
        found = []
        for seed in seeds:
            torch.manual_seed(seed)
            model = model_of(kind)
            train(model, [*SHAPES, *besides], made, steps, seed)
            found.append([shares(model, shape, made, size) for shape in kinds])
        by_kind = list(zip(*found, strict=True))
        log["kinds"][name] = [list(shape) for shape in kinds]
        log["lengths"][name] = [len(pair_of(shape, random.Random(0), made)[0]) for shape in kinds]
        log["faultless"][name] = [[round(each[0], 4) for each in row] for row in by_kind]
        log["words"][name] = [[round(each[1], 4) for each in row] for row in by_kind]
    return {
        "settings": {"steps": steps, "sentences": size},
        "seeds": list(seeds),
        **log,
    }, None
