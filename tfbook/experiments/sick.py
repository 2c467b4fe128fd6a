"""What does a fault in the loop look like, on the curves of its loss?

The model of the experiment `ingredients`, a decoder of one layer, learns to predict the letters of
Shakespeare: once soundly, and once with each of eight faults. Nothing is clipped and the rate is
constant, so that the curves show the fault and no remedy.

The log holds by fault the training loss of each step and the held-out loss (4,096 letters, nats a
letter) after every 10 steps as the faulty program itself reports them, the longest gradient, and
the loss on the same held-out letters measured by a sound program at the end. `forgotten` is another
run, with dropout, and its held-out loss with dropout off, and left on by mistake.

Explained in: chapters/11_training, section "Eight sick curves".
"""

import torch
from torch import Tensor, nn

from tfbook.data import Windows, rows
from tfbook.experiments.ingredients import ADAMW, BATCH, LENGTH, begin
from tfbook.experiments.warmup import letters
from tfbook.models import DecoderOnly

__all__ = ["FAULTS", "SMOKE", "run", "train"]

STEPS, RATE, EVERY, DROPOUT = 200, 0.003, 10, 0.1
AT, SHORT = 100, 2000  # the step of what happens once, and the letters of a short text
FAULTS = (
    "sound",
    "targets not shifted",
    "no causal mask",
    "no zero_grad",
    "rate times 30",
    "rate over 30",
    "short text, read often",
    "one odd batch",
    "resumed without Adam's state",
)
SMOKE = {"steps": 20, "faults": ("sound", "no causal mask")}
CARD = {
    "model": "decoder, one layer of width 96, 117,792 parameters",
    "data": "Shakespeare, windows of {LENGTH} characters",
    "rate": "rate {RATE:g}",
}


def _loss(model: nn.Module, batch: Tensor, *, shift: int = 1) -> Tensor:
    """Mean loss of the letters of a batch, (B, N + 1) → ()."""
    scores = model(batch[:, :-1])[0]
    targets = batch[:, shift : shift + scores.shape[1]]
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


@torch.no_grad()
def _held_out(model: nn.Module, **fault: int) -> float:
    return _loss(model, rows(letters("valid"), LENGTH)[:64], **fault).item()


def _new_adam(model: nn.Module, fault: str) -> torch.optim.AdamW:
    rate = RATE * {"rate times 30": 30, "rate over 30": 1 / 30}.get(fault, 1)
    return torch.optim.AdamW(model.parameters(), lr=rate, **ADAMW)


def train(fault: str, steps: int = STEPS, seed: int = 0) -> tuple[DecoderOnly, dict[str, list]]:
    """Train with one of the FAULTS; return the model and its curves."""
    model, text = begin(seed), letters("train")
    shifted = {"shift": 0} if fault == "targets not shifted" else {}
    if fault == "no causal mask":
        model.stack.blocks[0].mixer.causal = False
    if fault == "short text, read often":
        text = text[:SHORT]
    drawn = Windows(text, LENGTH, batch_size=BATCH, seed=seed)
    optimizer = _new_adam(model, fault)
    curves = {"train": [], "held": [_held_out(model, **shifted)], "norms": []}
    for step in range(steps):
        batch = drawn(step)
        if step == AT and fault == "one odd batch":  # a file in another alphabet
            batch = (batch * 7 + 5) % 63
        if step == AT and fault == "resumed without Adam's state":
            optimizer = _new_adam(model, fault)
        loss = _loss(model, batch, **shifted)
        if fault != "no zero_grad":
            optimizer.zero_grad()
        loss.backward()
        curves["norms"].append(nn.utils.get_total_norm(w.grad for w in model.parameters()).item())
        optimizer.step()
        curves["train"].append(loss.item())
        if (step + 1) % EVERY == 0:
            curves["held"].append(_held_out(model, **shifted))
    return model, curves


def _forgotten(steps: int) -> dict[str, float]:
    """Train with dropout; return the held-out loss with dropout off and left on."""
    model = begin(0, DROPOUT)
    optimizer = _new_adam(model, "")
    drawn = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=0)
    for step in range(steps):
        optimizer.zero_grad()
        _loss(model, drawn(step)).backward()
        optimizer.step()
    left_on = _held_out(model)
    return {"off": round(_held_out(model.eval()), 3), "left on": round(left_on, 3)}


def run(
    *, steps: int = STEPS, faults: tuple[str, ...] = FAULTS, seed: int = 0
) -> tuple[dict, None]:
    """Train with every fault, and once with dropout.

    Returns:
        the log: `train`, `held`, `norm` and `truly` by fault, and `forgotten`.
    """
    log: dict[str, dict] = {"train": {}, "held": {}, "norm": {}, "truly": {}}
    for fault in faults:
        model, curves = train(fault, steps, seed)
        model.stack.blocks[0].mixer.causal = True
        log["train"][fault] = [round(loss, 3) for loss in curves["train"]]
        log["held"][fault] = [round(loss, 3) for loss in curves["held"]]
        log["norm"][fault] = round(max(curves["norms"]), 2)
        log["truly"][fault] = round(_held_out(model), 3)
    settings = {"steps": steps, "batch": BATCH, "seed": seed}
    return {"settings": settings, "forgotten": _forgotten(steps), **log}, None
