"""Which trace of a run gives a planted fault away: the loss, the gradient, or the attention?

A small decoder learns to predict the next letter of Shakespeare for 300 steps, once as it should
and once with each of seven faults:

- "rate": the learning rate is 50 times too high, without a warm-up;
- "mask": every place sees the letters behind it, the one that it is asked for among them;
- "shift": the targets are the inputs themselves, not moved by one;
- "scores": queries and keys are drawn 40 times too large;
- "gradients": they are never set to 0, so that those of all steps add up;
- "frozen": no gradient reaches the layers, only the embedding and the head learn;
- "head": the table of letters, which is the head too, is drawn 30 times too large.

Runs of one seed begin with the same weights, but for those that a fault changes, and read the same
batches. The log holds for each run and seed four traces, a value for every 5 steps: `loss`, nats a
letter, and `norm`, the length of the gradient, as means over the 5; `entropy`, that of the
attention weights as a share of that of even attention, and `score`, the largest before the softmax,
of 8 windows that are kept apart. `found` is what the check of `tfbook.practice` for this fault says
of the run of the first seed: what is wrong, where, and the number that shows it; null where no
check looks for it or it finds nothing.

Explained in: chapters/18_practice, section "A checklist that finds the fault".
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tfbook.data import Windows, rows
from tfbook.experiments.warmup import letters
from tfbook.interpret import capture
from tfbook.models import FFN, Attention, DecoderOnly, Layer, Rotary, TransformerConfig, build
from tfbook.practice import (
    entropy_collapse,
    gradient_flow,
    leaks,
    rate_spikes,
    start_loss,
    wrong_shift,
)
from tfbook.training import History, evaluating

__all__ = ["FAULTS", "SMOKE", "TRACES", "learn", "model_of", "run"]

FAULTS = ("rate", "mask", "shift", "scores", "gradients", "frozen", "head")
TRACES = ("loss", "norm", "entropy", "score")
WIDTH, LAYERS, LENGTH, BATCH, EVERY = 64, 2, 32, 16, 5
RATE, RISE = 2e-3, 30
SMOKE = {"seeds": (0,), "steps": 10}
CARD = {
    "model": "decoder, {LAYERS} layers of width {WIDTH}, 87,616 parameters",
    "data": "Shakespeare, windows of {LENGTH} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}


def model_of(fault: str | None, seed: int) -> DecoderOnly:
    """Return an untrained model with a fault, as far as it lies in the model."""
    torch.manual_seed(seed)
    layer = Layer(Attention(4, position=Rotary()), FFN(3 * WIDTH, "gelu"))
    size = int(letters("train").max()) + 1
    model = build(TransformerConfig(size, WIDTH, decoder=[layer] * LAYERS, init="gpt2"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if fault == "scores" and name.endswith(("q_proj.weight", "k_proj.weight")):
                weight *= 40
            if fault == "head" and name == "embed.weight":
                weight *= 30
            if fault == "frozen" and ".blocks." in name:
                weight.requires_grad_(False)
    for block in model.stack.blocks:
        block.mixer.causal = fault != "mask"
    return model


def loss_of(model: DecoderOnly, tokens: Tensor, fault: str | None) -> Tensor:
    """Return the mean loss of a batch (B, N + 1)."""
    inputs = tokens[:, :-1]
    targets = inputs if fault == "shift" else tokens[:, 1:]
    return functional.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())


@torch.no_grad()
def look(model: DecoderOnly, inputs: Tensor) -> tuple[float, float]:
    """Return the entropy of attention, as a share of that of even attention, and the top score."""
    with evaluating(model), capture(model, "*.pattern") as weights, capture(model, "*.scores") as s:
        model(inputs)
    keys = torch.arange(1, inputs.shape[1] + 1).log()[1:]
    if not model.stack.blocks[0].mixer.causal:
        keys = torch.full_like(keys, math.log(inputs.shape[1]))
    shares = [(torch.special.entr(p).sum(-1)[..., 1:] / keys).mean() for p in weights.values()]
    top = max(scores[scores.isfinite()].max() for scores in s.values())
    return torch.stack(shares).mean().item(), top.item()


def learn(fault: str | None, seed: int, steps: int) -> tuple[DecoderOnly, dict, History]:
    """Train a model with a fault, and return it with its traces and its history."""
    model = model_of(fault, seed)
    drawn = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed)
    apart = rows(letters("valid"), LENGTH)[:8, :-1]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.98))
    losses, norms, rates = [], [], []
    traces: dict[str, list[float]] = {name: [] for name in TRACES}
    for step in range(steps):
        rate = 50 * RATE if fault == "rate" else RATE * min(1, (step + 1) / RISE)
        optimizer.param_groups[0]["lr"] = rate
        if step % EVERY == 0:
            for name, value in zip(("entropy", "score"), look(model, apart), strict=True):
                traces[name].append(_short(value))
        loss = loss_of(model, drawn(step), fault)
        if fault != "gradients":
            optimizer.zero_grad()
        loss.backward()
        longest = torch.nn.utils.get_total_norm([weight.grad for weight in weights])
        optimizer.step()
        losses.append(loss.item())
        norms.append(longest.item())
        rates.append(rate)
    for name, values in (("loss", losses), ("norm", norms)):
        means = torch.tensor(values).view(-1, EVERY).mean(1)
        traces[name] = [_short(value) for value in means.tolist()]
    return model, traces, History(losses, learning_rates=rates)


def _short(value: float) -> float:
    """Round to four digits that count."""
    return float(f"{value:.4g}")


def found_in(fault: str, model: DecoderOnly, history: History, seed: int) -> list | None:
    """Return what the check for a fault says: what, where, and how much."""
    tokens = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed)(0)
    inputs, size = tokens[:, :-1], model.config.vocab_size

    def loss(other):
        return loss_of(other, tokens, fault)

    findings = {
        "rate": lambda: rate_spikes(history) or entropy_collapse(model, inputs),
        "mask": lambda: leaks(model, inputs),
        "shift": lambda: wrong_shift(inputs, inputs),
        "scores": lambda: entropy_collapse(model, inputs),
        "gradients": list,
        "frozen": lambda: gradient_flow(model, loss),
        "head": lambda: start_loss(model_of(fault, seed), loss, size),
    }[fault]()
    if not findings:
        return None
    what, where, measured = findings[0][:3]
    return [what, where, _short(measured) if math.isfinite(measured) else None]


def run(*, seeds: Sequence[int] = (0, 1, 2), steps: int = 300) -> tuple[dict, None]:
    """Train with each fault, and as it should be ("none")."""
    log: dict = {"settings": {"seeds": list(seeds), "steps": steps}, "every": EVERY, "runs": {}}
    log["even"] = round(math.log(int(letters("train").max()) + 1), 4)
    log["found"] = {}
    for fault in (None, *FAULTS):
        runs: dict[str, list] = {name: [] for name in TRACES}
        for seed in seeds:
            model, traces, history = learn(fault, seed, steps)
            for name in TRACES:
                runs[name].append(traces[name])
            if fault and seed == seeds[0]:
                log["found"][fault] = found_in(fault, model, history, seed)
        log["runs"][fault or "none"] = runs
    return log, None
