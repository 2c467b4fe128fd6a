"""How well can a model with four layers learn to predict the next character of Shakespeare?

Three models of the same size, about 0.8 million parameters, read the same text for the same time on
one thread: a plain transformer (layer norm, GELU, learned positions, AdamW); ours, with what this
book teaches (RMSNorm, SwiGLU, rotary positions, normalised queries and keys, Muon); and an LSTM.
The two transformers take turns in one process, so that whatever slows the machine down slows both
down; the time is that of the processor.
Beside them stand n-grams of characters with Kneser-Ney smoothing, which need no training but
counting. The shipped model is ours once more, wider, with dropout and for longer.

All losses are nats for each character, over windows of 256 characters that do not overlap. Trained
on is the first 90 % of the text; "last tenth" is all the rest, the splits "valid" and "test" of
:func:`tfbook.data.shakespeare` together. Rates and sizes were chosen by short runs on "valid";
"test" was looked at at the end only. One seed: differences of a hundredth of a nat say nothing.

    from tfbook import pretrained
    model = pretrained.load("shakespeare")  # the shipped one, with its tokenizer

Explained in: chapters/13_language_deeper, section "Predicting the next character".
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from safetensors.torch import save
from torch import Tensor, nn

from tfbook import data, models
from tfbook.data import Windows, char_tokenizer, rows
from tfbook.experiments._characters import HEADS, LAYERS, begun_as_identity
from tfbook.generation import Sampling, generate
from tfbook.models import FFN, Attention, Layer, Learned, Tokens, TransformerConfig
from tfbook.optimization import Muon, decay_groups, muon_groups, schedule
from tfbook.pretrained import cache_folder
from tfbook.training import Checkpointing, causal_loss, fit, steps_in

__all__ = ["RECIPES", "SMOKE", "CharacterLSTM", "Recipe", "kneser_ney", "make_model", "run"]

CONTEXT = 256
SPLITS = ("valid", "test")
PROMPT, TEMPERATURE = "ROMEO:\n", 0.8


@dataclass(frozen=True)
class Recipe:
    """How one of the models is made and trained.

    Attributes:
        steps: how many; those of "ours" and of the LSTM take as long as the 2,309 of "plain".
        d_model: size of the rows, for the LSTM of its state.
        d_ff: size of the feed-forward network's inner layer; for the LSTM of its embedding.
        plain: whether the model is the plain one.
        lr: learning rate of AdamW.
        muon_lr: of Muon, for the hidden matrices; None where AdamW trains all.
        weight_decay: of all matrices.
        schedule: shape of the learning rate over time.
        warmup: steps of its rise.
        decay: for "wsd", the share of the steps in which it falls.
        clip: the longest gradient.
        dropout: rate behind each sublayer and on the embeddings.
        batch: sequences of a batch.
    """

    steps: int
    d_model: int
    d_ff: int
    plain: bool = False
    lr: float = 3e-3
    muon_lr: float | None = None
    weight_decay: float = 0.1
    schedule: str = "cosine"
    warmup: int = 100
    decay: float = 0.0
    clip: float | None = 1.0
    dropout: float = 0.0
    batch: int = 16


OURS = {
    "batch": 8,
    "muon_lr": 0.04,
    "schedule": "linear",
    "warmup": 50,
    "clip": None,
}
RECIPES = {
    "plain": Recipe(2309, 128, 512, plain=True),
    "ours": Recipe(3650, 128, 344, **OURS),
    "lstm": Recipe(5100, 248, 64),
    "shipped": Recipe(6000, 160, 432, **OURS | {"schedule": "wsd", "decay": 0.7}, dropout=0.1),
}
SMOKE = {"steps": 2, "rounds": 1, "orders": 3, "characters": 700, "sample": 5}
CARD = {
    "model": "three models of {layers} layers or an LSTM, {parameters[ours]:,} to "
    "{parameters[plain]:,} parameters, shipped {parameters[shipped]:,} parameters",
    "data": "Shakespeare, windows of {context} characters",
    "steps": "{plain[steps]:,} to {shipped[steps]:,} steps",
    "batch": "batches of {ours[batch]} or {plain[batch]}",
    "rate": "rate {plain[lr]:g}, Muon's {ours[muon_lr]:g}",
}


class CharacterLSTM(nn.Module):
    """Two layers of LSTM, called like :class:`tfbook.models.DecoderOnly`.

    Args:
        vocab_size: V.
        d_embed: size of the embedding.
        d_hidden: size of each layer's state.
    """

    def __init__(self, vocab_size: int, d_embed: int, d_hidden: int):
        """Draw the weights, as PyTorch does."""
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_embed)
        self.layers = nn.LSTM(d_embed, d_hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(d_hidden, vocab_size)

    def forward(
        self, tokens: Int[Tensor, "B N"], state: tuple | None = None, *, mask: None = None
    ) -> tuple[Tensor, tuple]:
        """Score what follows each token, (B, N, V), continuing from a state."""
        x, state = self.layers(self.embed(tokens), state)
        return self.head(x), state


def make_model(name: str, recipe: Recipe, vocab_size: int) -> nn.Module:
    """Make a model with fresh weights: an LSTM, the plain transformer of chapter 5, or ours."""
    if name == "lstm":
        return CharacterLSTM(vocab_size, recipe.d_ff, recipe.d_model)
    if not recipe.plain:
        sizes = (vocab_size, recipe.d_model, recipe.d_ff)
        return begun_as_identity(*sizes, dropout=recipe.dropout, max_len=CONTEXT)
    layer = Layer(Attention(HEADS), FFN(recipe.d_ff, "gelu"), dropout=recipe.dropout)
    config = TransformerConfig(
        vocab_size,
        recipe.d_model,
        decoder=[layer] * LAYERS,
        embedding=Tokens(Learned(), dropout=recipe.dropout),
        max_len=CONTEXT,
        init="gpt2",
    )
    return models.build(config)


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Make what trains a model."""
    if recipe.muon_lr is None:
        groups = decay_groups(model, recipe.weight_decay)
        return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95), fused=True)
    groups = muon_groups(
        model, lr=recipe.muon_lr, adamw_lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    return Muon(groups, precision="full")


def make_schedule(recipe: Recipe) -> Callable[[int], float]:
    """Make the learning rate's course."""
    choices = {"steps": recipe.steps, "warmup": min(recipe.warmup, recipe.steps - 1)}
    if recipe.schedule == "wsd":
        longest = recipe.steps - choices["warmup"]
        choices["decay"] = min(math.ceil(recipe.decay * recipe.steps), longest)
    return schedule(recipe.schedule, **choices)


@torch.no_grad()
def measure(model: nn.Module, windows: Int[Tensor, "R N1"]) -> float:
    """Return the mean loss over all windows, in nats a character."""
    training = model.training
    model.eval()
    found = [causal_loss(model, batch) for batch in windows.split(16)]
    model.train(training)
    return sum(loss.item() for loss, _ in found) / sum(count for _, count in found)


@dataclass
class Curve:
    """What was measured on the way, after so many steps.

    Attributes:
        steps: taken.
        tokens: read.
        seconds: of the processor, without evaluation.
        train: mean loss of the steps since the last entry.
        valid: loss on the whole of "valid".
    """

    steps: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)


class Training:
    """A model that is trained a stretch at a time, each from where the one before it saved.

    Args:
        name: of the recipe.
        recipe: how.
        ids: the text to train on.
        valid: windows to look at after each stretch.
        folder: where checkpoints and the curve lie.
        seed: of weights and batches.
        vocab_size: V.
    """

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        ids: Int[Tensor, " T"],
        valid: Int[Tensor, "R N1"],
        folder: Path,
        *,
        seed: int,
        vocab_size: int,
    ):
        """Make the model, and read how far it got."""
        torch.manual_seed(seed)
        self.recipe, self.valid = recipe, valid
        self.model = make_model(name, recipe, vocab_size)
        self.optimizer = make_optimizer(self.model, recipe)
        self.windows = Windows(ids, CONTEXT, batch_size=recipe.batch, seed=seed)
        self.folder, self.file = folder / name, folder / f"{name}.json"
        self.curve = Curve()
        if self.file.exists():
            self.curve = Curve(**json.loads(self.file.read_text()))

    def go_on(self, steps: int) -> None:
        """Train until so many steps were taken, and look."""
        before = self.curve.steps[-1] if self.curve.steps else 0
        if before >= steps:
            steps = before  # the weights are read, and nothing else is done
        saved = max(steps_in(self.folder), default=0)  # beyond the curve's end after a Ctrl-C
        began = time.process_time()
        history = fit(
            self.model,
            self.windows,
            loss=causal_loss,
            optimizer=self.optimizer,
            steps=steps,
            schedule=make_schedule(self.recipe),
            clip=self.recipe.clip,
            checkpointing=Checkpointing(self.folder, keep=1),
            progress=False,
        )
        if steps == before:
            return
        # A stretch that was begun by another process is taken to cost what its rest costs a step.
        spent = (time.process_time() - began) * (steps - before) / max(steps - saved, 1)
        spent += self.curve.seconds[-1] if before else 0.0
        losses = history.losses[before:steps]
        found = {
            "steps": steps,
            "tokens": steps * self.recipe.batch * CONTEXT,
            "seconds": round(spent, 2),
            "train": round(sum(losses) / len(losses), 4),
            "valid": round(measure(self.model, self.valid), 4),
        }
        for key, value in found.items():
            getattr(self.curve, key).append(value)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self.curve)))
        os.replace(new, self.file)


def kneser_ney(
    train: Int[np.ndarray, " T"], texts: dict[str, Int[np.ndarray, " S"]], orders: int, vocab: int
) -> tuple[dict[int, dict[str, float]], dict[int, int]]:
    """Return the losses of n-grams of each order, and how many different n-grams each has seen.

    p_k(c | h) = (max(n(hc) − D, 0) + Σ_c' min(D, n(hc')) · p_{k−1}(c | h')) / n(h), h' being h
    without its first character, p_0 = 1 / V. The highest order counts how often hc occurs; lower
    ones after how many different characters it does. D is one of three, for counts of 1, 2 and
    more, estimated from how many n-grams occur once, twice, three and four times.

    Args:
        train: ids of the text to count in.
        texts: ids of the texts to predict, all from character ``orders`` − 1 on.
        orders: the highest n.
        vocab: V, with V^orders below 2^63.

    Source: [kneser1995improved], three discounts: [chen1999empirical]
    """

    def codes(ids, k):
        """Return a number for each k-gram, by the place where it ends, from k − 1 on."""
        found = np.zeros(len(ids) - k + 1, dtype=np.int64)
        for i in range(k):
            found = found * vocab + ids[i : len(ids) - k + 1 + i]
        return found

    types = {k: np.unique(codes(train, k), return_counts=True) for k in range(1, orders + 1)}
    below = {name: np.full(len(ids) - orders + 1, 1 / vocab) for name, ids in texts.items()}
    losses = {}
    for k in range(1, orders + 1):
        told = {}
        for name, ids in texts.items():
            wanted = codes(ids, k)[orders - k :]
            told[name] = _smoothed(*types[k], wanted, below[name], vocab)
            if k < orders:
                # What precedes a k-gram is the first character of the (k + 1)-grams it ends.
                different = np.unique(types[k + 1][0] % vocab**k, return_counts=True)
                below[name] = _smoothed(*different, wanted, below[name], vocab)
        losses[k] = {name: float(-np.log(p).mean()) for name, p in told.items()}
    return losses, {k: len(found[0]) for k, found in types.items()}


def _smoothed(grams, counts, wanted, below, vocab):
    """Return the probability of each wanted n-gram's last character after those before it."""
    n = [int((counts == i).sum()) for i in range(1, 5)]
    cut = [0.5, 0.5, 0.5]  # where too few are rare to tell
    if all(n):
        y = n[0] / (n[0] + 2 * n[1])
        cut = [min(max(i + 1 - (i + 2) * y * n[i + 1] / n[i], 0.0), i + 1.0) for i in range(3)]
    taken = np.minimum(np.array([0.0, *cut])[np.minimum(counts, 3)], counts)
    histories, first = np.unique(grams // vocab, return_index=True)
    seen = np.add.reduceat(counts, first)  # n(h)
    spared = np.add.reduceat(taken, first)  # Σ min(D, n)
    h = np.minimum(np.searchsorted(histories, wanted // vocab), len(histories) - 1)
    g = np.minimum(np.searchsorted(grams, wanted), len(grams) - 1)
    kept = np.where(grams[g] == wanted, counts[g] - taken[g], 0.0)
    known = histories[h] == wanted // vocab
    return np.where(known, (kept + spared[h] * below) / np.where(known, seen[h], 1), below)


def result(found: dict[str, float], sizes: dict[str, int]) -> dict[str, float]:
    """Return the losses on both splits, on them together, and that in bits."""
    whole = sum(found[split] * sizes[split] for split in SPLITS) / sum(sizes.values())
    losses = {split: round(found[split], 4) for split in SPLITS}
    bits = round(whole / math.log(2), 4)
    return losses | {"last_tenth": round(whole, 4), "bits_per_character": bits}


def run(
    *,
    models: tuple[str, ...] = ("plain", "ours", "lstm", "shipped"),
    steps: int | None = None,
    rounds: int = 24,
    orders: int = 8,
    characters: int | None = None,
    sample: int = 600,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[dict, dict[str, Tensor]]:
    """Train the models that are asked for, and measure all that are trained.

    A run that was killed goes on from its last stretch when it is started again.

    Args:
        models: which to train in this process: "plain" and "ours" in turn, then the others.
        steps: for all, instead of the recipes'.
        rounds: stretches of each training, a look at "valid" after each.
        orders: the longest n-grams.
        characters: use so many of each split only.
        sample: how many characters the shipped model writes.
        seed: of weights, batches and the sample.
        folder: where checkpoints lie; when omitted, one in the user's cache folder, which is
            removed at the end.

    Returns:
        The log, and the shipped model's weights in half precision.
    """
    whole = data.shakespeare("all")
    tokenizer = char_tokenizer(whole)
    vocab = tokenizer.get_vocab_size()
    text = {split: data.shakespeare(split)[:characters] for split in ("train", *SPLITS)}
    ids = {split: torch.tensor(tokenizer.encode(each).ids) for split, each in text.items()}
    valid = rows(ids["valid"], CONTEXT)
    keep = folder is not None
    if not keep:  # a short run begins anew, a long one goes on
        folder = cache_folder() / "shakespeare" if steps is None else Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    recipes = {
        name: recipe if steps is None else Recipe(**(asdict(recipe) | {"steps": steps}))
        for name, recipe in RECIPES.items()
    }
    trainings = {
        name: Training(
            name, recipes[name], ids["train"], valid, folder, seed=seed, vocab_size=vocab
        )
        for name in models
    }
    for together in (("plain", "ours"), ("lstm",), ("shipped",)):
        for i in range(rounds):
            for name in (name for name in models if name in together):
                trainings[name].go_on(round(recipes[name].steps * (i + 1) / rounds))
    log, weights = report(trainings, ids, orders=orders, sample=sample, seed=seed)
    log["settings"]["rounds"] = rounds
    if not keep:
        shutil.rmtree(folder)
    return log, weights


def report(
    trainings: dict[str, Training], ids: dict[str, Tensor], *, orders: int, sample: int, seed: int
) -> tuple[dict, dict[str, Tensor]]:
    """Measure what is trained and what n-grams can do, and return the log and the weights to ship.

    Args:
        trainings: by the names of their recipes.
        ids: the text of each split.
        orders: the longest n-grams.
        sample: how many characters the shipped model writes.
        seed: of the sample.
    """
    tokenizer = char_tokenizer(data.shakespeare("all"))
    vocab = tokenizer.get_vocab_size()
    held = {split: rows(ids[split], CONTEXT) for split in SPLITS}
    sizes = {split: held[split].shape[0] * CONTEXT for split in SPLITS}
    log = {
        "settings": {"context": CONTEXT, "layers": LAYERS, "heads": HEADS}
        | {name: asdict(each.recipe) for name, each in trainings.items()},
        "seed": seed,
        "characters": {split: len(each) for split, each in ids.items()},
        "parameters": {},
        "curves": {name: asdict(each.curve) for name, each in trainings.items()},
        "final": {},
    }
    weights = {}
    for name, training in trainings.items():
        model = training.model
        if name == "shipped":  # what is logged is what the shipped half precision does
            weights = {key: w.half() for key, w in model.state_dict().items()}
            model.load_state_dict(weights)
            # Each layer looks back as far as in training, however long the text.
            config = model.config.replace(max_len=None, window=CONTEXT)
            log["settings"][name]["config"] = config.to_dict()
        found = {split: measure(model, held[split]) for split in SPLITS}
        ends = {key: getattr(training.curve, key)[-1] for key in ("seconds", "steps", "tokens")}
        log["final"][name] = result(found, sizes) | ends
        log["parameters"][name] = sum(w.numel() for w in model.parameters())
    losses, counted = _count(ids, orders, vocab)
    log["final"]["ngram"] = {str(k): result(each, sizes) for k, each in losses.items()}
    log["final"]["uniform"] = result(dict.fromkeys(SPLITS, math.log(vocab)), sizes)
    log["parameters"]["ngram"] = {str(k): n for k, n in counted.items()}
    log["best_order"] = min(losses, key=lambda k: losses[k]["valid"])
    if weights:
        log["sha256"] = hashlib.sha256(save(weights)).hexdigest()
        model = models.build(config)
        model.load_state_dict(weights)
        log["sample"] = _sample(model.eval(), tokenizer, sample, seed)
    log["seconds"] = round(sum(each.curve.seconds[-1] for each in trainings.values()))
    return log, weights


def _count(ids, orders, vocab):
    """Return what n-grams make of the text; the first character's past is the end before it."""
    arrays = {split: each.numpy() for split, each in ids.items()}
    before = {"valid": "train", "test": "valid"}
    texts = {
        split: np.concatenate([arrays[last][len(arrays[last]) - orders + 1 :], arrays[split]])
        for split, last in before.items()
    }
    return kneser_ney(arrays["train"], texts, orders, vocab)


def _sample(model, tokenizer, n, seed):
    """Return what the model writes behind the prompt."""
    ids, sampling = tokenizer.encode(PROMPT).ids, Sampling(temperature=TEMPERATURE)
    (new,) = generate(model, ids, max_new_tokens=n, sampling=sampling, seed=seed).tokens
    text = PROMPT + tokenizer.decode(new)
    return {"prompt": PROMPT, "text": text, "temperature": TEMPERATURE, "seed": seed}
