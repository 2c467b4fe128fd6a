"""optimizer_paths: where optimizers go from one point of a surface, step by step."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.optim import Optimizer

from tfbook.optimization import SGD, Adam, AdamW, Lion
from tfbook.teaching.explorables._base import Explorable, number, one_of, vector, whole, wrapped
from tfbook.teaching.explorables._chance import uniforms

TITLE = "Paths of optimizers on one surface"
STEPS = 200
REACH = 2.2  # the start lies between -REACH and REACH, across and up
FARTHEST = 1e6  # a path ends where a coordinate exceeds this
LOWEST = (1.0, 0.5)  # where both surfaces are 0
EPS = 1e-8
LABELS = {
    "sgd": "SGD", "momentum": "SGD with momentum", "adam": "Adam", "adamw": "AdamW", "lion": "Lion",
}  # fmt: skip
FORMULAS = {
    "sgd": "w ← w − η (g + λw)",
    "momentum": "m ← μm + g + λw;  w ← w − ηm",
    "adam": "g ← g + λw;  w ← w − η m̂ / (√v̂ + ε)",
    "adamw": "w ← (1 − ηλ) w − η m̂ / (√v̂ + ε)",
    "lion": "w ← (1 − ηλ) w − η sign(β₁m + (1 − β₁)g)",
}
SURFACES = {"bowl": "a bowl", "valley": "a curved valley"}
RATES = [m * 10**e / 1000 for e in range(3) for m in (1, 1.5, 2, 3, 5, 7)] + [1.0]
STOPS = {
    "lr": RATES,
    "against_lr": RATES,
    "momentum": [0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99],
    "beta2": [0.5, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999],
    "weight_decay": [0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1],
    "condition": [1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100],
    "noise": [0, 0.1, 0.2, 0.5, 1, 2, 5],
}


def optimizer_paths(
    optimizer: str = "adam",
    *,
    against: str = "sgd",
    surface: str = "bowl",
    lr: float = 0.05,
    against_lr: float = 0.05,
    momentum: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    condition: float = 20,
    tilt: int = 0,
    noise: float = 0.0,
    seed: int = 0,
    start: Sequence[float] = (-1.5, 1.2),
    step: int = 60,
) -> Explorable:
    r"""Return a figure of the paths that two optimizers take down a surface of two numbers.

    The bowl is $\tfrac12(u^2 + \kappa v^2)$ with its lowest point at (1, ½) and $u, v$ along axes
    turned by `tilt`; the valley is $\tfrac12(1 - x)^2 + \tfrac\kappa2(y - \tfrac12x^2)^2$. To each
    entry of a gradient noise of a standard deviation is added, uniformly distributed and the same
    for both. The steps are those of `tfbook.optimization.optimizers`: SGD and Adam take the weight
    decay as an L2 penalty, AdamW and Lion shrink the weights. The loss that is shown is that of
    the surface, without noise and penalty.

    Args:
        optimizer: "sgd", "momentum", "adam", "adamw" or "lion".
        against: Another one, or "none".
        surface: "bowl" or "valley".
        lr: Learning rate of the first, 0.001 to 1.
        against_lr: That of the other.
        momentum: μ of momentum, and β₁ of Adam, AdamW and Lion; 0 to 0.99.
        beta2: β₂ of Adam, AdamW and Lion, 0.5 to 0.999.
        weight_decay: λ, 0 to 1.
        condition: κ, 1 to 100: how many times steeper one direction is than the other.
        tilt: Degrees by which the bowl is turned, 0 to 45.
        noise: Standard deviation, 0 to 5.
        seed: Of the noise, 0 to 9999.
        start: The point where both begin, from -2.2 to 2.2 each.
        step: The one that is read, of 0 to 200.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [kingma2015adam], [loshchilov2019decoupled], [chen2023symbolic].
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """
    checks = {
        "optimizer": one_of("optimizer", *LABELS),
        "against": one_of("against", "none", *LABELS),
        "surface": one_of("surface", *SURFACES),
        "lr": number("lr", 0.001, 1),
        "against_lr": number("against_lr", 0.001, 1),
        "momentum": number("momentum", 0, 0.99),
        "beta2": number("beta2", 0.5, 0.999),
        "weight_decay": number("weight_decay", 0, 1),
        "condition": number("condition", 1, 100),
        "tilt": whole("tilt", 0, 45),
        "noise": number("noise", 0, 5),
        "seed": whole("seed", 0, 9999),
        "start": vector("start", 2, -REACH, REACH),
        "step": whole("step", 0, STEPS),
    }
    given = (optimizer, against, surface, lr, against_lr, momentum, beta2, weight_decay, condition,
             tilt, noise, seed, start, step)  # fmt: skip
    state = {name: check(v) for (name, check), v in zip(checks.items(), given, strict=True)}

    def results(now: dict) -> dict:
        path = walk(now["optimizer"], now["lr"], now)
        losses = [value(w, now)[0] for w in path]
        other = [] if now["against"] == "none" else walk(now["against"], now["against_lr"], now)
        here, there = (_at(p, now["step"]) for p in (path, other))
        return {
            "loss": None if here is None else value(here, now)[0],
            "w": here,
            "gradient": None if here is None else value(here, now)[1],
            "path": path,
            "losses": losses,
            "diverged": len(path) if len(path) <= STEPS else None,
            "against_loss": None if there is None else value(there, now)[0],
            "against_w": there,
        }

    def text(now: dict) -> str:
        found = results(now)

        def told(name: str, rate: float, loss: float | None, w: list | None) -> str:
            begin = f"{LABELS[name]} with learning rate {rate:g}"
            if loss is None:
                return f"{begin} has left, beyond {FARTHEST:g}"
            return f"{begin} stands at ({w[0]:.2f}, {w[1]:.2f}), where the loss is {loss:.3g}"

        ends = told(now["optimizer"], now["lr"], found["loss"], found["w"])
        if now["against"] != "none":
            ends += "; " + told(
                now["against"], now["against_lr"], found["against_loss"], found["against_w"]
            )
        form = f"{SURFACES[now['surface']]}, {now['condition']:g} times as steep one way as the"
        turned = f", turned by {now['tilt']}°" if now["tilt"] and now["surface"] == "bowl" else ""
        return wrapped(f"""{TITLE}

        The surface is {form} other{turned}, 0 at (1, 0.5). From
        ({now["start"][0]:g}, {now["start"][1]:g}), with momentum or β₁ {now["momentum"]:g},
        β₂ {now["beta2"]:g}, weight decay {now["weight_decay"]:g} and noise {now["noise"]:g} in
        the gradients, after {now["step"]} steps {ends}.

        In the page you choose two optimizers and their learning rates, shape the surface, move the
        start, and read the loss at any of {STEPS} steps.""")

    data = {
        "title": TITLE, "labels": LABELS, "formulas": FORMULAS, "surfaces": SURFACES,
        "stops": STOPS, "steps": STEPS, "reach": REACH, "farthest": FARTHEST,
        "lowest": LOWEST, "eps": EPS,
    }  # fmt: skip
    return Explorable(
        "optimizer_paths", data=data, state=state, checks=checks, results=results, text=text
    )


def value(w: Sequence[float], now: Mapping) -> tuple[float, list[float]]:
    """Return the loss and its gradient at a point."""
    kappa = now["condition"]
    dx, dy = w[0] - LOWEST[0], w[1] - LOWEST[1]
    if now["surface"] == "valley":
        r = w[1] - 0.5 * w[0] * w[0]
        return 0.5 * (dx * dx + kappa * r * r), [dx - kappa * r * w[0], kappa * r]
    cos, sin = math.cos(math.radians(now["tilt"])), math.sin(math.radians(now["tilt"]))
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    gradient = [cos * u - sin * kappa * v, sin * u + cos * kappa * v]
    return 0.5 * (u * u + kappa * v * v), gradient


def walk(optimizer: str, rate: float, now: Mapping) -> list[list[float]]:
    """Return the points after 0, 1, … STEPS steps, or up to where the path leaves."""
    # Uniform numbers of variance 1; two for each step, whatever the optimizer.
    chance = [math.sqrt(3) * (2 * u - 1) for u in uniforms(now["seed"], 2 * STEPS)]
    w = torch.tensor(now["start"], dtype=torch.double, requires_grad=True)
    moving, path = made(optimizer, w, rate, now), [list(now["start"])]
    for t in range(STEPS):
        _, gradient = value(path[-1], now)
        luck = chance[2 * t : 2 * t + 2]
        noisy = [g + now["noise"] * c for g, c in zip(gradient, luck, strict=True)]
        w.grad = torch.tensor(noisy, dtype=torch.double)
        moving.step()
        if not all(abs(x) <= FARTHEST for x in w.tolist()):
            break
        path.append(w.tolist())
    return path


def made(optimizer: str, w: torch.Tensor, rate: float, now: Mapping) -> Optimizer:
    """Return the package's optimizer of that name for one point."""
    choices = {"lr": rate, "weight_decay": now["weight_decay"]}
    if optimizer in ("sgd", "momentum"):
        return SGD([w], momentum=now["momentum"] if optimizer == "momentum" else 0.0, **choices)
    betas = (now["momentum"], now["beta2"])
    if optimizer == "lion":
        return Lion([w], betas=betas, **choices)
    return {"adam": Adam, "adamw": AdamW}[optimizer]([w], betas=betas, eps=EPS, **choices)


def _at(path: list, step: int) -> list | None:
    return path[step] if step < len(path) else None
