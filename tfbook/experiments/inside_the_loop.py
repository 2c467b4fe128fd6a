"""What happens inside a training loop: in its first steps, at a long gradient, after a crash?

The decoder of `ingredients`, with its loops, batches and seeds, is watched more closely:

- `first`: the first 40 steps at the rate 0.01 without clipping, with a warm-up and without. After
  each step the held-out loss; for each step how far it lowers the loss of its own batch, and how
  far the slope promised that it would.
- `parts`: the constant rate 0.01 where only some matrices are warmed up, without clipping.
- `written`: how long a token's embedding is, and what attention and feed-forward network add to it
  (root mean square over the held-out letters), after some steps of those runs.
- `limits`: warm-up without decay, where gradients are clipped to a limit, where only the longest
  gradient of the run is clipped, to 1, and where every gradient, long or short, is brought to
  norm 1 ("always 1"). `norms` are those of the gradients before clipping.
- `place`: the norms of gradients of 30 other batches on the weights of the longest gradient.
- `restart`: the finished loop stops after four fifths of its steps and goes on with all of its
  state, without Adam's means, or with the weights alone, when its schedule begins anew.
- `batches`: larger batches for as many steps, and batches of 16 for 1.8 times the steps.
- `momentum`: gradient descent with momentum at large rates, in a short run and a longer one.
- `short_warmup`: ten times the steps at 0.03, with a tenth of them as warm-up and with a hundredth.
- `blocks`: the held-out loss of the finished loop less that of the constant rate 0.003, clipped, on
  five other blocks of as many letters.
- `guess`: the surprise of a letter after eight true ones, and after eight of which the last is the
  model's own most probable wrong one.

Losses are on 4,096 letters of the validation text, in nats a letter, where nothing else is said;
lists are over seeds. `milliseconds` is the time of a step by its windows.

Explained in: chapters/11_training, section "The first steps: warm-up".
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.data import Windows, rows
from tfbook.experiments import ingredients
from tfbook.experiments.ingredients import ADAMW, BATCH, LENGTH, MOMENTUM, STEPS, begin, held_out
from tfbook.experiments.warmup import letters
from tfbook.optimization import schedule
from tfbook.training import causal_loss

__all__ = ["SMOKE", "run", "walk"]

SEEN, OTHERS, BLOCKS, TRUE = 40, 30, 5, 8
LIMITS = (math.inf, 10.0, 3.0, 1.0, 0.3)
LARGER = {(64, 0.003): 1.0, (64, 0.01): 1.0, (16, 0.01): 1.8}  # windows and rate → share of steps
FAST = (0.2, 0.3, 0.4)  # rates with momentum
PARTS = {
    "embedding": ("embed",), "queries and keys": ("q_proj", "k_proj"),
    "values and output": ("v_proj", "out_proj"), "feed-forward": (".up_proj", ".down_proj"),
}
AT = (0, 3, 20, 200)  # steps, when it is measured how long the parts of the stream are
SMOKE = {"seeds": (0,), "steps": 4, "fast": (0.2,)}
CARD = {**ingredients.CARD, "batch": "batches of {BATCH}"}


def _loss(model: nn.Module, batch: object) -> Tensor:
    total, count = causal_loss(model, batch)
    return total / count


def walk(
    seed: int, course: Callable[[int], float], *, rate: float = 0.01, clip: float = 1.0,
    size: int = BATCH, only: int | None = None, always: bool = False, start: int = 0,
    model: nn.Module | None = None, state: dict | None = None,
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> Iterator[tuple[nn.Module, torch.optim.Optimizer, float]]:
    """Yield model, optimizer and norm of the gradient before each update, without an end.

    Each step is taken when the next one is asked for.

    `course` is the share of the rate in each step. `only` is the one step that is clipped, of all
    where it is None. `always` brings every gradient to the norm `clip`, short ones too. A run goes
    on from step `start` with `model`, and with the optimizer's `state` if it is given.
    """
    model = begin(seed) if model is None else model
    more = ADAMW if kind is torch.optim.AdamW else {}
    optimizer = kind(model.parameters(), lr=rate, **more)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    drawn, step = Windows(letters("train"), LENGTH, batch_size=size, seed=seed), start
    while True:
        optimizer.param_groups[0]["lr"] = rate * course(step)
        optimizer.zero_grad()
        _loss(model, drawn(step)).backward()
        gradients = [w.grad for w in model.parameters()]
        norm = nn.utils.get_total_norm(gradients).item()
        yield model, optimizer, norm
        if only is None or step == only:
            share = clip / norm if always else min(1.0, clip / (norm + 1e-6))
            for g in gradients if share != 1.0 else ():
                g.mul_(share)
        optimizer.step()
        step += 1


def _after(steps: int, walked: Iterator[tuple]) -> tuple[nn.Module, torch.optim.Optimizer, list]:
    """Take a number of steps; return the model, the optimizer and the norms of all gradients."""
    norms = []
    for k, (model, optimizer, norm) in enumerate(walked):
        if k == steps:
            return model, optimizer, norms
        norms.append(norm)
    raise AssertionError("a walk has no end")


def _ended(steps: int, walked: Iterator[tuple]) -> float | None:
    """Return the held-out loss after a number of steps, or None where it is no number."""
    for k, (model, _, norm) in enumerate(walked):
        if not math.isfinite(norm):
            return None
        if k == steps:
            return round(held_out(model), 3)
    raise AssertionError("a walk has no end")


def _courses(steps: int) -> dict[str, Callable[[int], float]]:
    whole, rise = schedule("cosine", steps=steps, warmup=steps // 10), steps // 10
    return {
        "constant": lambda _: 1.0,
        "rise": lambda step: whole(step) if step < rise else 1.0,
        "cosine": lambda step: whole(min(step, steps - 1)),
    }


def _first(seed: int, course: Callable[[int], float], seen: int) -> dict[str, list[float]]:
    """Watch the first steps: held-out losses, and of each step what it promised and did."""
    told: dict[str, list[float]] = {"held": [], "fell": [], "promised": []}
    drawn = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed)
    before, gradients, loss = [], [], 0.0
    for step, (model, _, _) in enumerate(walk(seed, course, clip=math.inf)):
        weights = list(model.parameters())
        with torch.no_grad():
            if step > 0:
                moved = zip(gradients, weights, before, strict=True)
                promised = -sum((g * (w - b)).sum() for g, w, b in moved).item()
                told["promised"].append(round(promised, 3))
                told["fell"].append(round(loss - _loss(model, drawn(step - 1)).item(), 3))
            told["held"].append(round(held_out(model), 3))
            loss = _loss(model, drawn(step)).item()
        before = [w.detach().clone() for w in weights]
        gradients = [w.grad.clone() for w in weights]
        if step == seen:
            return told
    raise AssertionError("a walk has no end")


def _warmed(seed: int, names: Sequence[str], rise: Callable[[int], float], steps: int) -> nn.Module:
    """Train at the constant rate 0.01, with a warm-up for the matrices of these names alone."""
    model = begin(seed)
    groups: list[list[Tensor]] = [[], []]
    for name, weight in model.named_parameters():
        groups[any(part in name for part in names)].append(weight)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=0.01, **ADAMW)
    drawn = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed)
    for step in range(steps):
        optimizer.param_groups[1]["lr"] = 0.01 * rise(step)
        optimizer.zero_grad()
        _loss(model, drawn(step)).backward()
        optimizer.step()
    return model


@torch.no_grad()
def _written(model: nn.Module) -> list[float]:
    """Return the lengths of the embedding, of what attention adds, and the feed-forward network."""
    block, told = model.stack.blocks[0], []
    parts = (model.embed, block.mixer, block.ffn)
    hooks = [
        part.register_forward_hook(
            lambda _, __, out: told.append(out[0] if isinstance(out, tuple) else out)
        )
        for part in parts
    ]
    model(rows(letters("valid"), LENGTH)[:64][:, :-1])
    for hook in hooks:
        hook.remove()
    return [round(each.square().sum(-1).mean().sqrt().item(), 2) for each in told[:3]]


def _place(seed: int, steps: int, course: Callable[[int], float]) -> dict[str, object]:
    """Return the longest gradient's step, and the norms of other batches there and a step later."""
    _, _, norms = _after(steps, walk(seed, course, clip=math.inf))
    longest = max(range(len(norms)), key=norms.__getitem__)
    told: dict[str, object] = {"step": longest, "norm": round(norms[longest], 2)}
    drawn = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed)
    for name, at in (("there", longest), ("a step later", longest + 1)):
        model, _, _ = _after(at, walk(seed, course, clip=math.inf))
        found = []
        for other in range(1000, 1000 + OTHERS):
            model.zero_grad()
            _loss(model, drawn(other)).backward()
            found.append(nn.utils.get_total_norm([w.grad for w in model.parameters()]).item())
        told[name] = [round(each, 2) for each in sorted(found)]
    return told


def _restart(seed: int, steps: int) -> dict[str, list[float]]:
    """Stop after four fifths of the steps; held-out losses of what follows, from there on."""
    course, stop = _courses(steps)["cosine"], steps * 4 // 5
    model, optimizer, _ = _after(stop, walk(seed, course))
    saved, means = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    told = {}
    for name, (start, state) in {
        "all": (stop, means), "without the optimizer": (stop, None), "the weights alone": (0, None),
    }.items():
        model = begin(seed)
        model.load_state_dict(saved)
        told[name] = []
        going_on = walk(seed, course, start=start, model=model, state=state)
        for k, (gone_on, _, _) in enumerate(going_on):
            told[name].append(round(held_out(gone_on), 3))
            if k == steps - stop:
                break
    return told


def _milliseconds(size: int, steps: int) -> float:
    """Return the processor time of a step, without any measuring."""
    walked = walk(0, lambda _: 1.0, size=size)
    _after(2, walked)
    began = time.process_time()
    _after(steps, walked)
    return round(1000 * (time.process_time() - began) / (steps + 1), 1)


@torch.no_grad()
def _guess(model: nn.Module) -> list[float]:
    """Return the surprise of a letter after true ones, and after its own wrong guess, and how many.

    Eight letters are read. The last is replaced where the model's first guess for it was wrong.
    """
    windows = rows(letters("valid"), TRUE)[:4096]  # (W, 9)
    guessed = model(windows[:, : TRUE - 1])[0][:, -1].argmax(dim=-1)
    wrong = guessed != windows[:, TRUE - 1]
    true, told = windows[wrong], []
    own = true.clone()
    own[:, TRUE - 1] = guessed[wrong]
    for read in (true, own):
        scores = model(read[:, :TRUE])[0][:, -1]
        told.append(round(functional.cross_entropy(scores, true[:, TRUE]).item(), 3))
    return [*told, int(wrong.sum())]


@torch.no_grad()
def _blocks(models: Sequence[nn.Module]) -> list[float]:
    """Return the loss of the first model less that of the second, on blocks that come later."""
    windows, told = rows(letters("valid"), LENGTH), []
    for k in range(1, 1 + BLOCKS):
        one, other = (_loss(m, windows[64 * k : 64 * (k + 1)]).item() for m in models)
        told.append(round(one - other, 3))
    return told


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = STEPS, fast: Sequence[float] = FAST
) -> tuple[dict, None]:
    """Watch all of it, with every seed."""
    courses, seen = _courses(steps), min(SEEN, steps)
    log: dict[str, object] = {}
    log["first"] = {
        name: [_first(seed, courses[name], seen) for seed in seeds] for name in ("constant", "rise")
    }
    log["parts"] = {
        part: [round(held_out(_warmed(s, names, courses["rise"], steps)), 3) for s in seeds]
        for part, names in PARTS.items()
    }
    log["written"] = {
        name: {
            str(at): [_written(_after(at, walk(s, courses[name], clip=math.inf))[0]) for s in seeds]
            for at in AT
            if at <= steps
        }
        for name in ("constant", "rise")
    }
    limits: dict[str, list] = {}
    norms: dict[str, list] = {}
    ways = {f"{limit:g}": {"clip": limit} for limit in LIMITS} | {"always 1": {"always": True}}
    for name in (*ways, "only the longest"):
        limits[name], norms[name] = [], []
        for k, seed in enumerate(seeds):
            longest = max(range(steps), key=norms["inf"][k].__getitem__) if norms["inf"][k:] else 0
            more = ways.get(name, {"only": longest})
            model, _, found = _after(steps, walk(seed, courses["rise"], **more))
            limits[name].append(round(held_out(model), 3))
            norms[name].append([round(each, 2) for each in found])
    log |= {"limits": limits, "norms": norms}
    log["place"] = [_place(seed, seen, courses["rise"]) for seed in seeds]
    log["restart"] = [_restart(seed, steps) for seed in seeds]
    log["batches"] = {
        f"{size} windows, rate {rate:g}": [
            round(held_out(_after(n, walk(s, _courses(n)["cosine"], rate=rate, size=size))[0]), 3)
            for s in seeds
        ]
        for (size, rate), share in LARGER.items()
        for n in (round(share * steps),)
    }
    log["milliseconds"] = {str(size): _milliseconds(size, steps // 5) for size in (4, 16, 64)}
    log["momentum"] = {
        f"{rate:g}": {
            name: [
                _ended(n, walk(s, courses["constant"], rate=rate, clip=math.inf, kind=MOMENTUM))
                for s in seeds
            ]
            for name, n in (("short", steps), ("long", 10 * steps))
        }
        for rate in fast
    }
    log["short_warmup"] = {
        str(warmup): [
            round(held_out(_after(10 * steps, walk(s, whole, rate=0.03))[0]), 3) for s in seeds
        ]
        for warmup in (steps // 10,)
        for whole in (schedule("cosine", steps=10 * steps, warmup=warmup),)
    }
    ended = [_after(steps, walk(seed, courses["cosine"]))[0] for seed in seeds]
    steady = [_after(steps, walk(seed, courses["constant"], rate=0.003))[0] for seed in seeds]
    log["blocks"] = [_blocks(pair) for pair in zip(ended, steady, strict=True)]
    log["guess"] = [_guess(model) for model in ended]
    settings = {"steps": steps, "batch": BATCH}
    return {"settings": settings, "seeds": list(seeds), **log}, None
