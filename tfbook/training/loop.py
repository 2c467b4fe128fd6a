"""Training as one loop that can be read, stopped, killed, and gone on with.

:func:`fit` draws a batch, computes a loss and its gradients, and lets the optimizer take a step,
so many times. What stands around that is for real runs: gradients added up over several batches or
several processes, clipping, a schedule, evaluation, a log, and checkpoints from which a run goes on
with the losses that it would have had, to the last bit.

Explained in: chapters/11_training, section "The loop, line by line".
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm import tqdm

from tfbook._checks import check_bool, check_count, check_positive
from tfbook.training.processes import Ranks, move
from tfbook.training.resuming import (
    Best,
    Ending,
    Log,
    Rates,
    Saver,
    Source,
    evaluating,
    get_random,
    seed_all,
    set_random,
)

__all__ = ["History", "attention_entropy", "fit"]

PRECISIONS = ("float32", "bfloat16")


@dataclass
class History:
    """What a run measured, a number for each step; step i is the one taken after i others.

    Attributes:
        losses: mean loss of the step's batches, before the weights were changed.
        gradient_norms: length of the gradient, before it was clipped.
        learning_rates: of the optimizer's first group.
        counts: what the loss was a mean over: tokens, or batches.
        evaluations: what ``evaluate`` returned, with "after", the number of steps before it.
        monitored: what the monitors returned, likewise.
        seconds: spent in all, in this process and those before it.
        best_step: after how many steps "loss" was smallest, with ``patience``.
        stopped: why the run ended: "steps" or "patience".

    Explained in: chapters/11_training, section "The loop, line by line".
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    evaluations: list[dict] = field(default_factory=list)
    monitored: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    best_step: int | None = None
    stopped: str = "steps"

    def __len__(self) -> int:
        """Return how many steps were taken."""
        return len(self.losses)

    def add(self, *, loss: float, gradient_norm: float, learning_rate: float, count: float) -> None:
        """Add a step."""
        self.losses.append(loss)
        self.gradient_norms.append(gradient_norm)
        self.learning_rates.append(learning_rate)
        self.counts.append(count)

    def last(self) -> dict[str, float]:
        """Return what was measured in the last step."""
        return {
            "loss": self.losses[-1],
            "gradient_norm": self.gradient_norms[-1],
            "learning_rate": self.learning_rates[-1],
            "count": self.counts[-1],
        }


def fit(
    model: nn.Module,
    batches: object,
    *,
    loss: Callable[[nn.Module, object], Tensor | tuple[Tensor, int]],
    optimizer: Optimizer | Callable[[nn.Module], Optimizer],
    steps: int,
    schedule: LRScheduler | Callable[[int], float] | None = None,
    accumulate: int = 1,
    clip: float | None = None,
    precision: str = "float32",
    log: str | os.PathLike[str] | None = None,
    monitors: Mapping[str, Callable[[nn.Module, object], object]] | None = None,
    evaluate: Callable[[nn.Module], float | Mapping[str, float]] | None = None,
    every: int = 100,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    keep: int = 2,
    resume: bool = True,
    shard: bool = False,
    progress: bool = True,
    seed: int | None = None,
) -> History:
    """Train a model, in place, and return what was measured on the way.

    A step: g = Σ ∇ℓ / Σ count over ``accumulate`` batches; g ← g · min(1, clip / |g|); the
    optimizer moves the weights by g, with the learning rate times schedule(step).

    A run with a ``checkpoint`` folder that was killed at any moment goes on when the same program
    is started again: weights, optimizer, schedule, random numbers and the place in the data are
    as they were at the last checkpoint. On the same processor, with as many threads, the losses
    are those of a run that never stopped, bit for bit. Ctrl-C and SIGTERM let the step end, save,
    and then raise.

    Started by ``torchrun --nproc-per-node=W``, each of W processes takes its share of the rows of
    every batch, and the gradients are those of one process, up to rounding.

    Args:
        model: any module; it is put into training mode.
        batches: a list or tuple, gone through again and again; a function from the number of the
            batch, 0, 1, …, to the batch; or something to iterate over, again and again, which
            for checkpoints has ``state_dict()`` and ``load_state_dict()``: what is to be drawn
            next. Tensors are moved to where the model is.
        loss: what is to become small, of a model and a batch: a mean, as a tensor without
            dimensions; or a sum and how many terms it has, such as tokens. With the latter,
            batches of unequal size have the weight they ought to have.
        optimizer: for the parameters of the model; or what makes one of the model.
        steps: how many to take in all, those before a resume among them.
        schedule: a factor for each step, from 0, on the learning rate that the optimizer has when
            ``fit`` begins; or a scheduler of PyTorch, stepped after each step.
        accumulate: batches for a step.
        clip: the longest gradient.
        precision: "float32", or "bfloat16" for the matrix products of the forward pass, with
            weights in float32.
        log: a file that gets a line of JSON for each step and each evaluation.
        monitors: named functions of the model and the last batch, called every ``every`` steps
            without gradients, in evaluation mode.
        evaluate: a function of the model, called likewise: a loss, or numbers by name, "loss"
            among them with ``patience``.
        every: how often, in steps; and after the last one.
        patience: stop after so many evaluations in a row that brought no smaller loss, and go
            back to the weights of the best one.
        checkpoint: a folder of its own for this run.
        save_every: how often to save there, in steps; only at the end when omitted.
        keep: how many checkpoints to keep.
        resume: go on from the last checkpoint, if there is one.
        shard: under torchrun, cut the weights into a part for each process (FSDP); ``optimizer``
            is then a function.
        progress: show a bar.
        seed: of Python's, NumPy's and PyTorch's random numbers, plus the number of the process;
            when omitted they go on as they are.

    Returns:
        The history of all steps, those before a resume among them.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, arguments that exclude each other, a batch or a
            loss of a wrong shape, a folder with checkpoints that this run did not make, or in
            which none is whole.
        FloatingPointError: if a loss or gradient is not finite; the weights are those before it.
        OSError: if a checkpoint cannot be written; the last one stays.
        KeyboardInterrupt: after Ctrl-C, when the step has ended and was saved.

    Source: [pascanu2013difficulty], [micikevicius2018mixed]
    Explained in: chapters/11_training, section "The loop, line by line".
    """
    _check_numbers(steps, accumulate, clip, precision, every, patience, save_every, keep)
    for name, value in (("resume", resume), ("shard", shard), ("progress", progress)):
        check_bool(name, value)
    _check_together(model, optimizer, evaluate, patience, checkpoint, save_every, shard)
    ranks = Ranks()
    ranks.split(model) if shard else ranks.same(model)
    optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(model)
    rates, best = Rates(optimizer, schedule), Best(patience)
    source = Source(batches, resumable=checkpoint is not None)
    about = _describe(model, optimizer, rates, accumulate, clip, precision, seed)
    saver = Saver(checkpoint, keep, about, ranks)
    if seed is not None or ranks.size > 1:
        seed_all((torch.initial_seed() if seed is None else seed) + ranks.rank)
    history = History()
    if saved := saver.begin(resume, model, optimizer):
        history = History(**saved["history"])
        source.load_state_dict(saved["data"])
        rates.load_state_dict(saved["schedule"])
        best.load_state_dict(saved["best"])
        if ranks.rank < len(saved["random"]):
            set_random(saved["random"][ranks.rank])
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = weights[0].device
    half = partial(torch.autocast, device.type, torch.bfloat16)
    precise = half if precision == "bfloat16" else nullcontext
    started = time.perf_counter() - history.seconds

    def save():
        history.seconds = time.perf_counter() - started
        state = {
            "history": asdict(history),
            "data": source.state_dict(),
            "schedule": rates.state_dict(),
            "best": best.state_dict(),
            "random": ranks.gather(get_random()),
        }
        saver.save(len(history), state, model, optimizer)

    model.train()
    with (
        Ending(ranks) as ending,
        Log(log, len(history), first=ranks.rank == 0) as lines,
        _bar(progress and ranks.rank == 0, len(history), steps) as bar,
    ):
        while len(history) < steps and not best.over:
            step = len(history)
            rates.set(step)
            optimizer.zero_grad(set_to_none=True)
            total = count = 0.0
            for _ in range(accumulate):
                batch, part = ranks.share(next(source))
                batch = move(batch, device)
                with precise():
                    value, terms = _read_loss(loss(model, batch), part)
                value.backward()
                total, count = total + value.item(), count + terms
            total, count, *asked = ranks.add([total, count, *ending.wishes])
            if not count:
                raise ValueError(f"loss must count at least one term, got none at step {step}")
            mean = total / count
            norm = _finish_gradients(weights, ranks, count)
            _check_finite(step, mean, norm.item())
            if clip is not None:
                clip_grads_with_norm_(weights, clip, norm)
            optimizer.step()

            rate = optimizer.param_groups[0]["lr"]
            history.add(loss=mean, gradient_norm=norm.item(), learning_rate=rate, count=count)
            seconds = round(time.perf_counter() - started, 3)
            lines.write(step=step, **history.last(), seconds=seconds)
            bar.set_postfix_str(f"loss {mean:.4f}", refresh=False)
            bar.update()
            rates.after()
            done = step + 1
            if done % every == 0 or done == steps:
                with evaluating(model):
                    found = _look(model, batch, monitors, evaluate, patience is not None, ranks)
                for name, values in found.items():
                    getattr(history, name).append({"after": done} | values)
                    lines.write(after=done, **values)
                if patience is not None:
                    best.see(done, found["evaluations"]["loss"], model)
            if any(asked):
                save()
                kept = " and saved" * (checkpoint is not None)
                ending.end(f"stopped after {done} steps{kept}", terminated=asked[1] > 0)
            if done == steps or best.over or (save_every is not None and done % save_every == 0):
                save()
    history.seconds = time.perf_counter() - started
    if best.step is not None:
        model.load_state_dict(best.weights)
        history.best_step, history.stopped = best.step, "patience" if best.over else "steps"
    return history


def attention_entropy(model: nn.Module, batch: object) -> list[float]:
    """Return how spread out each layer's attention is: the entropy of its weights, in nats.

    mean over batch, heads and queries of −Σ_j a_j ln a_j: 0 where each query looks at one key, ln m
    where it looks at m keys alike. A layer whose entropy falls to 0 early in training has stopped
    learning where to look.

    Args:
        model: with ``attention_weights(tokens)``, such as :class:`tfbook.models.DecoderOnly`.
        batch: tokens (B, N), or a tuple or list that begins with them; columns beyond the model's
            ``max_len`` are left out.

    Returns:
        A number for each layer.

    Raises:
        TypeError: if the model cannot give its weights.

    Source: [zhai2023stabilizing]
    Explained in: chapters/11_training, section "Gradients that are too large".
    """
    if not hasattr(model, "attention_weights"):
        raise TypeError(
            f"model must have attention_weights(tokens), which {type(model).__name__} has not"
        )
    tokens = batch[0] if isinstance(batch, list | tuple) else batch
    longest = getattr(getattr(model, "config", None), "max_len", None)
    with torch.no_grad():
        layers = model.attention_weights(tokens[:, :longest])  # L of (B, H, N, N)
    return [torch.special.entr(weights.float()).sum(-1).mean().item() for weights in layers]


def _finish_gradients(weights, ranks, count):
    """Make sums of gradients the mean over all terms of the step, and return their length."""
    if not ranks.cut:
        ranks.add_gradients(weights)
    # Gradients that were cut come as means over the processes, all others as sums.
    factor = (ranks.size if ranks.cut else 1) / count
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if factor != 1:
        for grad in grads:
            grad.mul_(factor)
    norm = get_total_norm(grads)
    return norm.full_tensor() if ranks.cut else norm


def _read_loss(found, part):
    """Return a sum that can be added to others, and over how many terms it is."""
    if isinstance(found, tuple) and len(found) == 2:
        value, terms = found[0], float(found[1])
        if not (math.isfinite(terms) and terms >= 0):
            raise ValueError(f"loss must count its terms, got {found[1]}")
    else:
        value, terms = found, part
    if not isinstance(value, Tensor):
        raise TypeError(
            f"loss must return a tensor, or a tensor and a count, got {type(value).__name__}"
        )
    if value.ndim or not value.is_floating_point():
        raise ValueError(
            "loss must return one floating-point number, a tensor of shape (), "
            f"got shape {tuple(value.shape)} and {value.dtype}; take its mean"
        )
    if not value.requires_grad:
        raise ValueError("loss must depend on the weights, got a tensor without a gradient")
    return (value if part == 1 or found is not value else value * part), terms


def _look(model, batch, monitors, evaluate, patient, ranks):
    """Return what the monitors and the evaluation say, as in the first process."""
    found = {}
    if monitors:
        found["monitored"] = {name: each(model, batch) for name, each in monitors.items()}
    if evaluate is not None:
        value = evaluate(model)
        values = dict(value) if isinstance(value, Mapping) else {"loss": value}
        if patient and "loss" not in values:
            raise ValueError(
                'patience needs what evaluate returns to have "loss" among its names, '
                f"got {', '.join(values) or 'none'}"
            )
        found["evaluations"] = {name: float(number) for name, number in values.items()}
    return ranks.gather(found)[0]


def _check_finite(step, loss, norm):
    for name, value in (("loss", loss), ("length of the gradient", norm)):
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the {name} is {value} at step {step}; the weights are those before it. A smaller "
                "learning rate, a longer warm-up or clip= may help"
            )


def _describe(model, optimizer, rates, accumulate, clip, precision, seed):
    """Return what must be the same in a run that goes on."""
    config = getattr(model, "config", None)
    return {
        "model": type(model).__name__,
        "config": config.to_dict() if hasattr(config, "to_dict") else None,
        "optimizer": type(optimizer).__name__,
        "groups": rates.groups,
        "accumulate": accumulate,
        "clip": clip,
        "precision": precision,
        "seed": seed,
    }


def _bar(shown, done, steps):
    return tqdm(total=steps, initial=done, disable=not shown, unit="step", dynamic_ncols=True)


def _check_numbers(steps, accumulate, clip, precision, every, patience, save_every, keep):
    for name, value in (("steps", steps), ("accumulate", accumulate), ("every", every)):
        check_count(name, value, minimum=1)
    for name, value in (("patience", patience), ("save_every", save_every), ("keep", keep)):
        if value is not None:
            check_count(name, value, minimum=1)
    if clip is not None:
        check_positive("clip", clip)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")


def _check_together(model, optimizer, evaluate, patience, checkpoint, save_every, shard):
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model must have a parameter to train, got none")
    made = isinstance(optimizer, Optimizer)
    if not made and not callable(optimizer):
        raise TypeError(
            "optimizer must be an optimizer or a function that makes one of the model, "
            f"got {type(optimizer).__name__}"
        )
    if made:
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if not held & {id(parameter) for parameter in model.parameters()}:
            raise ValueError("optimizer must hold parameters of the model, got others only")
    if patience is not None and evaluate is None:
        raise ValueError("patience waits for a smaller loss of evaluate, which is missing")
    if save_every is not None and checkpoint is None:
        raise ValueError("save_every says how often to save, and checkpoint where: it is missing")
    if shard and (made or patience is not None):
        raise ValueError(
            "shard=True takes optimizer= as a function of the model, which it has cut, "
            "and no patience"
        )
