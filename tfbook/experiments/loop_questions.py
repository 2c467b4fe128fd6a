"""Why do warm-up, clipping and decay help, and what does the batch cost in time?

The decoder of `ingredients`, with its loops, batches and seeds, is asked what curves leave open:

- `shortened`: the constant rate 0.01, not clipped. After 20 steps attention's output matrix is
  shortened until attention adds as much as in the run with warm-up ("shortened"), or that of the
  run with warm-up lengthened until it adds as much as without ("lengthened").
- `early`: warm-up and decay, where in the first 40 steps alone a long gradient is shortened to 1
  before it enters one of Adam's means, m or v; and longer warm-ups without clipping.
- `momentum`: gradient descent with momentum, with the warm-up, decay and clipping of the rest.
- `timed`: batches of 16 and 64 windows in the time that 800 steps of 4 windows take.
- `noise`: the length of the gradient of all text (`signal`) and the scatter of single windows
  around it (`scatter`), estimated from 512 windows, on the way of a run of ten times the steps.
- `calmed`: that run, with warm-up and without decay, goes on for 100 steps: as before, with a decay
  to 0, or at the same rate with larger batches.
- `own`: another small text, the first 60,000 characters of sentences out of film reviews. A
  search for the rate in runs of 100 steps, then a run of 1,000 steps at the best of them.

Losses are on 4,096 letters of the validation text (`own`: on the last tenth of its text), in nats a
letter; lists are over seeds.

Explained in: chapters/11_training, section "The first steps: warm-up".
"""

import copy
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tfbook import data
from tfbook.data import Windows, rows
from tfbook.experiments import ingredients
from tfbook.experiments.ingredients import ADAMW, BATCH, LENGTH, MOMENTUM, STEPS, begin, held_out
from tfbook.experiments.inside_the_loop import _after, _courses, _loss, _written, walk
from tfbook.experiments.warmup import letters
from tfbook.models import FFN, Attention, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.optimization import schedule

__all__ = ["SMOKE", "run"]

RATE, EPS = 0.01, 1e-8
EARLY: dict[str, tuple[float, float, float]] = {  # longest in m and in v, warm-up (share of steps)
    "m, first 40": (1.0, math.inf, 0.1),
    "v, first 40": (math.inf, 1.0, 0.1),
    "none, warm-up of 40": (math.inf, math.inf, 0.2),
    "none, warm-up of 60": (math.inf, math.inf, 0.3),
}
TIMED = {(16, 0.01): 259, (64, 0.003): 69, (64, 0.01): 69}  # windows and rate → steps
CALMED = {  # windows, does the rate fall?
    "as before": (16, False), "decay": (16, True), "64 windows": (64, False),
    "256 windows": (256, False),
}  # fmt: skip
SMOKE = {
    "seeds": (0,), "steps": 4, "rates": (0.1,), "windows": 4, "sizes": 1, "long": 4,
    "characters": 2000,
}  # fmt: skip
CARD = {**ingredients.CARD, "batch": "batches of {BATCH}"}


def _output(model: nn.Module) -> Tensor:
    return model.stack.blocks[0].mixer.out_proj.weight


def _shortened(seed: int, steps: int, at: int) -> dict[str, list[float]]:
    """Swap what attention adds between the runs; [loss before, after, at the end, added then]."""
    courses, told = _courses(steps), {}
    added = {
        name: _written(_after(at, walk(seed, courses[name], clip=math.inf))[0])[1]
        for name in ("constant", "rise")
    }
    for said, name, other in (
        ("shortened", "constant", "rise"), ("lengthened", "rise", "constant"),
    ):  # fmt: skip
        for k, (model, _, _) in enumerate(walk(seed, courses[name], clip=math.inf)):
            if k == at:
                before = held_out(model)
                with torch.no_grad():
                    _output(model).mul_(added[other] / added[name])
                told[said] = [before, held_out(model)]
            if k == steps:
                told[said] += [held_out(model), _written(model)[1]]
                break
    return {name: [round(each, 3) for each in found] for name, found in told.items()}


def _early(name: str, seed: int, steps: int, until: int = 40) -> float:
    """Shorten long gradients in one mean of Adam alone, in the first steps."""
    longest, share = EARLY[name][:2], EARLY[name][2]
    model, course = begin(seed), schedule("cosine", steps=steps, warmup=round(share * steps))
    weights, (b1, b2) = list(model.parameters()), ADAMW["betas"]
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    drawn = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed)
    for step in range(steps):
        model.zero_grad()
        _loss(model, drawn(step)).backward()
        norm = nn.utils.get_total_norm([w.grad for w in weights]).item()
        in_m, in_v = (min(1.0, most / norm) if step < until else 1.0 for most in longest)
        lr = RATE * course(step)
        with torch.no_grad():
            for w, m, v in zip(weights, first, second, strict=True):
                m.lerp_(w.grad * in_m, 1 - b1)
                v.lerp_((w.grad * in_v).square(), 1 - b2)
                w.mul_(1 - lr * ADAMW["weight_decay"])
                size = (v / (1 - b2 ** (step + 1))).sqrt() + EPS
                w.sub_(lr * m / (1 - b1 ** (step + 1)) / size)
    return round(held_out(model), 3)


def _scattered(model: nn.Module, windows: int) -> list[float]:
    """Return the length of the true gradient, and the scatter of a single window around it."""
    total, squares = 0.0, 0.0
    drawn = Windows(letters("train"), LENGTH, batch_size=1, seed=12345)
    for k in range(windows):
        model.zero_grad()
        _loss(model, drawn(k)).backward()
        each = torch.cat([w.grad.flatten() for w in model.parameters()]).double()
        total, squares = total + each, squares + each.square().sum().item()
    model.zero_grad()
    mean = (total / windows).square().sum().item()
    scatter = (squares / windows - mean) * windows / (windows - 1)
    signal = max(mean - scatter / windows, 0.0)
    return [round(signal**0.5, 4), round(scatter**0.5, 4)]


def _share(step: int, *, falls: bool, steps: int) -> float:
    """Return the share of the rate in a step: all of it, or falling in a line to 0."""
    return 1 - step / steps if falls else 1.0


def _calmed(seed: int, steps: int, windows: int, sizes: int) -> tuple[dict, dict]:
    """Measure the noise on the way of a long run, and go on from its end in several ways."""
    noise, ends, more = {}, {}, max(steps // 20, 2)
    at = (0, steps // 10, steps // 2, steps)
    going = walk(seed, _courses(steps)["rise"])
    model, optimizer, _ = next(going)
    for k in range(steps + 1):
        if k in at:
            weights = [w.grad.clone() for w in model.parameters()]
            noise[str(k)] = [*_scattered(model, windows), round(held_out(model), 3)]
            for w, kept in zip(model.parameters(), weights, strict=True):
                w.grad = kept
        if k < steps:
            model, optimizer, _ = next(going)
    saved, means = model.state_dict(), optimizer.state_dict()
    for name in list(CALMED)[: sizes + 1]:
        size, falls = CALMED[name]
        own = begin(seed)
        own.load_state_dict(saved)
        share = partial(_share, falls=falls, steps=more)
        going = walk(1000 + seed, share, size=size, model=own, state=means)
        ended = _after(more, going)[0]
        ends[name] = round(held_out(ended), 3)
        if falls:
            noise["after a decay"] = [*_scattered(ended, windows), ends[name]]
    return noise, ends


def _own(characters: int, steps: int, trial: int) -> dict[str, object]:
    """Learn a small text of another kind, as the chapter advises."""
    text = "\n".join(sentence for sentence, _ in data.movie_sentiment("train"))[:characters]
    signs = sorted(set(text))
    ids = torch.tensor([signs.index(c) for c in text])
    split = len(ids) * 9 // 10
    held = rows(ids[split:], LENGTH)

    def learn(rate: float, steps: int, every: int) -> dict[str, list]:
        torch.manual_seed(0)
        layer = Layer(Attention(4, position=Rotary()), FFN(384, "gelu"), norm=Norm("rms"))
        model = build(TransformerConfig(len(signs), 96, decoder=[layer], init="gpt2"))
        course = schedule("cosine", steps=steps, warmup=steps // 10)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, **ADAMW)
        drawn = Windows(ids[:split], LENGTH, batch_size=BATCH, seed=0)
        told: dict[str, list] = {"train": [], "held": [], "wrote": []}
        losses, best = [], {}
        for step in range(steps + 1):
            if step % every == 0:
                with torch.no_grad():
                    told["held"].append(round(_loss(model, held).item(), 3))
                told["train"].append(round(sum(losses) / max(len(losses), 1), 3))
                if min(told["held"]) == told["held"][-1]:
                    best = {name: w.clone() for name, w in model.state_dict().items()}
                losses = []
            optimizer.param_groups[0]["lr"] = rate * course(min(step, steps - 1))
            optimizer.zero_grad()
            loss = _loss(model, drawn(step))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        for state in (best, None) if steps > trial else ():  # at its best, and at the end
            model_of_text = copy.deepcopy(model)
            model_of_text.load_state_dict(state or model.state_dict())
            texts = ingredients.write(model_of_text)[:3].tolist()
            told["wrote"].append(["".join(signs[i] for i in row).strip() for row in texts])
        return told

    found = {rate: learn(rate, trial, trial)["held"][-1] for rate in (0.001, 0.003, 0.01, 0.03)}
    best = min(found, key=found.__getitem__)
    search = {f"{rate:g}": loss for rate, loss in found.items()}
    every = max(steps // 25, 1)
    return {
        "characters": len(text), "signs": len(signs), "search": search, "rate": best,
        "every": every, **learn(best, steps, every),
    }  # fmt: skip


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = STEPS,
    rates: Sequence[float] = (0.1, 0.2, 0.4, 0.8), windows: int = 512, sizes: int = 3,
    long: int = 2000, characters: int = 60_000,
) -> tuple[dict, None]:  # fmt: skip
    """Ask all of it, with every seed."""
    cosine = _courses(steps)["cosine"]
    log: dict[str, object] = {}
    log["shortened"] = [_shortened(seed, steps, max(steps // 10, 1)) for seed in seeds]
    log["early"] = {name: [_early(name, seed, steps) for seed in seeds] for name in EARLY}
    log["momentum"] = {
        f"{rate:g}": [
            round(held_out(_after(steps, walk(s, cosine, rate=rate, kind=MOMENTUM))[0]), 3)
            for s in seeds
        ]
        for rate in rates
    }
    log["timed"] = {
        f"{size} windows, rate {rate:g}": [
            round(held_out(_after(n, walk(s, _courses(n)["cosine"], rate=rate, size=size))[0]), 3)
            for s in seeds
        ]
        for (size, rate), of_200 in TIMED.items()
        for n in (max(of_200 * steps // STEPS, 2),)
    }
    log["own"] = _own(characters, long // 2, max(steps // 2, 1))
    calmed = [_calmed(seed, long, windows, sizes) for seed in seeds]
    log["noise"], log["calmed"] = [noise for noise, _ in calmed], [ends for _, ends in calmed]
    settings = {"steps": steps, "batch": BATCH}
    return {"settings": settings, "seeds": list(seeds), **log}, None
