"""Which sign of a run that does not learn belongs to which fault, and which repair brings it back?

A small decoder learns sums of two numbers below 20. The program that trains it has five faults;
they are repaired one after the other, and the whole run is repeated after each repair:

- "weights": all matrices but those of queries and keys are drawn 30 times too large;
- "rate": 0.05, without a warm-up and without clipping, where 0.005 with both is right;
- "positions": nothing tells the places of the digits apart;
- "mask": every place sees the answer that it is asked for;
- "scores": queries and keys are drawn 12 times too large, and QK-norm is the repair.

Two remedies that do not repair are run beside them: batches four times as large instead of a lower
rate, and dropout of attention weights instead of QK-norm. A third, "plain start", repairs the last
fault at its root: queries and keys are drawn as everything else, without QK-norm. "Rate alone" is
0.005 at every step, without the warm-up and the clipping.

Last, four of the programs are trained longer: as found, without the last repair, with all of
them, and with "plain start" as the last.

The log holds for each run a list over seeds of `loss` and `norm`, means of 10 steps of the training
loss and of the gradient's length; of `entropy`, the mean entropy of the attention weights of each
layer as a share of that of even attention, at the end; and of what becomes of 80 sums that were
kept apart: `held`, their loss, and `exact`, the share that is answered rightly. Under `longer` it
holds for each program that is trained on, and each seed, that share after each number of steps of
`at`.

Explained in: chapters/18_practice, section "A run that does not learn".
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from tfbook.interpret import capture
from tfbook.models import FFN, Attention, DecoderOnly, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.practice import answer_batch, arithmetic_tokenizer
from tfbook.training import IGNORE, evaluating

__all__ = [
    "FAULTS",
    "SMOKE",
    "Questions",
    "answer",
    "exact",
    "learn",
    "loss_of",
    "model_of",
    "questions",
    "run",
    "spread",
]

FAULTS = ("weights", "rate", "positions", "mask", "scores")
REMEDIES = {  # name → what is repaired, and what is done in addition
    "rate alone": (("weights", "rate"), {"plain": True}),
    "larger batches": (("weights",), {"batch": 128}),
    "dropout": (FAULTS[:4], {"dropout": 0.1}),
    "plain start": ((*FAULTS[:4], "plain start"), {}),
}
LONGER = {  # trained on
    "as found": (), "mask": FAULTS[:4], "scores": FAULTS,
    "plain start": (*FAULTS[:4], "plain start"),
}  # fmt: skip
WIDTH, LAYERS, LARGEST, EVERY = 48, 2, 19, 10
KEPT_APART, BATCH, RATE, WRONG_RATE = 80, 32, 0.005, 0.05
SMOKE = {"seeds": (0,), "steps": 20, "at": (10, 20), "n_test": 5}
CARD = {
    "model": "decoder, {LAYERS} layers of width {WIDTH}, 57,264 to 57,312 parameters",
    "data": "sums of two numbers below 20",
    "steps": "{steps:,} steps, four programs also {at_last:,}",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g} or {WRONG_RATE:g}",
}


class Questions(NamedTuple):
    """All sums of two numbers, as a batch and divided.

    Attributes:
        texts: questions such as "3+8=".
        inputs: tokens (400, N).
        targets: the tokens of the answers, IGNORE elsewhere, (400, N).
        train: which are learned from.
        test: which are kept apart.
    """

    texts: list[str]
    inputs: Int[Tensor, "Q N"]
    targets: Int[Tensor, "Q N"]
    train: Int[Tensor, " T"]
    test: Int[Tensor, " H"]


def questions() -> Questions:
    """Return all sums of two numbers below 20, of which 80 are kept apart."""
    tokenizer, numbers = arithmetic_tokenizer(), range(LARGEST + 1)
    pairs = [(f"{a}+{b}=", f"{a + b}\n") for a in numbers for b in numbers]
    batch = answer_batch([(tokenizer.encode(q + a).ids, len(q)) for q, a in pairs])
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(7))
    return Questions([q for q, _ in pairs], *batch, order[KEPT_APART:], order[:KEPT_APART])


def model_of(
    repaired: Sequence[str] = FAULTS, seed: int = 0, *, width: int = WIDTH, dropout: float = 0.0
) -> DecoderOnly:
    """Return a model that has the faults which are not repaired."""
    torch.manual_seed(seed)
    attention = Attention(
        4,
        position=Rotary() if "positions" in repaired else None,
        qk_norm=Norm("rms") if "scores" in repaired else None,
        dropout=dropout,
    )
    layer = Layer(attention, FFN(4 * width, "gelu"), norm=Norm())
    model = build(TransformerConfig(13, width, decoder=[layer] * LAYERS, init="gpt2"))
    large = not {"scores", "plain start"} & set(repaired)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight *= 12 if large else 1
            elif weight.ndim == 2 and "weights" not in repaired:
                weight *= 30
    for block in model.stack.blocks:
        block.mixer.causal = "mask" in repaired
    return model


def loss_of(model: DecoderOnly, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the tokens of the answers."""
    return functional.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())


@torch.no_grad()
def answer(model: DecoderOnly, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return what a model writes for the answers, the likeliest token each time, (Q, N).

    Every token is a whole pass over what stands before it, so no later one can be seen.
    """
    asked = targets != IGNORE
    start = asked.float().argmax(1)  # the place that reads "="
    behind = torch.arange(inputs.shape[1]) > start[:, None]
    text = inputs.masked_fill(behind, 0)
    written = torch.full_like(targets, IGNORE)
    with evaluating(model):
        for place in range(inputs.shape[1]):
            best = model(text[:, : place + 1])[0][:, -1].argmax(-1)
            written[:, place] = torch.where(asked[:, place], best, IGNORE)
            if place + 1 < inputs.shape[1]:
                text[:, place + 1] = torch.where(asked[:, place], best, text[:, place + 1])
    return written


def exact(model: DecoderOnly, inputs: Tensor, targets: Tensor) -> float:
    """Return the share of sums whose answer is right in every token."""
    return (answer(model, inputs, targets) == targets).all(1).float().mean().item()


@torch.no_grad()
def spread(model: DecoderOnly, inputs: Tensor) -> list[float]:
    """Return each layer's mean entropy of attention, as a share of that of even attention."""
    with evaluating(model), capture(model, "*.pattern") as seen:
        model(inputs)
    found = []
    for weights in seen.values():  # (B, H, N, N)
        keys = torch.arange(1, weights.shape[-1] + 1).log()[1:]
        entropy = torch.special.entr(weights).sum(-1)[..., 1:]
        found.append(round((entropy / keys).mean().item(), 4))
    return found


def learn(
    repaired: Sequence[str], seed: int, steps: int, *, batch: int = BATCH, dropout: float = 0.0,
    plain: bool = False, rate: float = RATE, model: DecoderOnly | None = None,
    known: Questions | None = None,
    look: Callable[[int, DecoderOnly], None] | None = None,
) -> tuple[DecoderOnly, list[float], list[float]]:  # fmt: skip
    """Train a model, and return it with the loss and the gradient norm of every step.

    A right rate comes with a warm-up, a fall and clipping, unless it is `plain`. A `model` that is
    given is trained in place of the one that has the faults. After each step `look` is called with
    the number of steps and the model.
    """
    known = questions() if known is None else known
    model = model_of(repaired, seed, dropout=dropout) if model is None else model
    right = "rate" in repaired
    optimizer = torch.optim.AdamW(model.parameters(), lr=WRONG_RATE, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    losses, norms = [], []
    for step in range(steps):
        if right:
            rise, fall = min(1.0, (step + 1) / 50), 1 - 0.9 * step / steps
            optimizer.param_groups[0]["lr"] = rate * (1.0 if plain else rise * fall)
        chosen = known.train[torch.randint(len(known.train), (batch,), generator=generator)]
        loss = loss_of(model, known.inputs[chosen], known.targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        longest = 1.0 if right and not plain else float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), longest).item())
        optimizer.step()
        losses.append(loss.item())
        if look is not None:
            look(step + 1, model)
    return model.eval(), losses, norms


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 320,
    at: Sequence[int] = (100, 200, 400, 800, 1200, 1600, 2000, 2400),
    n_test: int = KEPT_APART,
) -> tuple[dict, None]:
    """Repeat the run after each repair and with each other remedy, and train four programs on."""
    known = questions()
    test = known.test[:n_test]
    repaired = {"as found": ()} | {FAULTS[i]: FAULTS[: i + 1] for i in range(len(FAULTS))}
    todo = {name: (done, {}) for name, done in repaired.items()} | REMEDIES
    settings = {"seeds": list(seeds), "steps": steps, "at": list(at)}
    log = {"settings": settings, "every": EVERY, "runs": {}, "longer": {}}
    for name, (done, more) in todo.items():
        found = {"first": [], "loss": [], "norm": [], "entropy": [], "held": [], "exact": []}
        for seed in seeds:
            model, *rows = learn(done, seed, steps, known=known, **more)
            found["first"].append(round(rows[0][0], 4))
            for key, row in zip(("loss", "norm"), rows, strict=True):
                means = torch.tensor(row).view(-1, EVERY).mean(1)
                found[key].append([round(value, 4) for value in means.tolist()])
            found["entropy"].append(spread(model, known.inputs[test]))
            with torch.no_grad():
                held = loss_of(model, known.inputs[test], known.targets[test]).item()
            found["held"].append(round(held, 4))
            found["exact"].append(round(exact(model, known.inputs[test], known.targets[test]), 4))
        log["runs"][name] = found
    for name, done in LONGER.items():
        log["longer"][name] = []
        for seed in seeds:
            shares = []

            def look(step: int, model: DecoderOnly, shares: list = shares) -> None:
                if step in at:
                    shares.append(round(exact(model, known.inputs[test], known.targets[test]), 4))

            learn(done, seed, max(at), known=known, look=look)
            log["longer"][name].append(shares)
    return log, None
