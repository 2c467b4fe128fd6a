"""Training as one loop that can be read, stopped, killed, and gone on with.

:func:`fit` draws a batch, computes a loss and its gradients, and lets the optimizer take a step,
so many times. What stands around that is for real runs: gradients added up over several batches or
several processes, clipping, a schedule, evaluation, a log, and checkpoints from which a run goes on
with the losses that it would have had, to the last bit.

Explained in: chapters/11_training, section "The finished loop".
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm import tqdm

from tfbook._checks import check_bool, check_callable, check_module, check_number
from tfbook.training.checkpoints import Checkpointing
from tfbook.training.gradients import (
    AT_ONCE,
    Execution,
    check_finite,
    mean_gradients,
    sum_gradients,
)
from tfbook.training.history import History, Log
from tfbook.training.monitoring import UNWATCHED, Monitoring
from tfbook.training.processes import Ranks
from tfbook.training.resuming import Ending, Run
from tfbook.training.states import seed_all

__all__ = ["fit"]


def fit(
    model: nn.Module,
    batches: object,
    *,
    loss: Callable[[nn.Module, object], Tensor | tuple[Tensor, int]],
    optimizer: Optimizer | Callable[[nn.Module], Optimizer],
    steps: int,
    schedule: LRScheduler | Callable[[int], float] | None = None,
    clip: float | None = None,
    seed: int | None = None,
    execution: Execution = AT_ONCE,
    monitoring: Monitoring = UNWATCHED,
    checkpointing: Checkpointing | None = None,
    progress: bool = True,
) -> History:
    """Train a model, in place, and return what was measured on the way.

    A step: g = Σ ∇ℓ / Σ count over its batches; g ← g · min(1, clip / |g|); the
    optimizer moves the weights by g, with the learning rate times schedule(step).

    A run with ``checkpointing`` that was killed at any moment goes on when the same program is
    started again: weights, optimizer, schedule, random numbers and the place in the data are as
    they were at the last checkpoint. On the same processor, with as many threads, the losses are
    those of a run that never stopped, bit for bit. Ctrl-C and SIGTERM let the step end, save, and
    then raise.

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
        clip: the longest gradient.
        seed: of Python's, NumPy's and PyTorch's random numbers, plus the number of the process;
            when omitted they go on as they are.
        execution: how many batches make a step, in which precision, with weights whole or cut; with
            ``shard`` the optimizer is a function, and there is no patience.
        monitoring: what is looked at on the way, and when that ends the run.
        checkpointing: where and how often to save, and whether to go on from there; None for not
            at all.
        progress: show a bar.

    Returns:
        The history of all steps, those before a resume among them.

    Raises:
        ValueError: for arguments that exclude each other, a loss of a wrong shape, a rate that is
            not finite, a folder with checkpoints that this run did not make, or in which none is
            whole.
        FloatingPointError: if a loss or gradient is not finite; the weights are those before it.
            Or if the loss of an evaluation, or a weight that is to be saved, is not: the last
            checkpoint is as it was.
        BlockingIOError: if another training is writing into the folder.
        FileExistsError: if the log is to take the place of a file that is none.
        OSError: if a checkpoint cannot be written; the last one stays.
        KeyboardInterrupt: after Ctrl-C, when the step has ended and was saved.

    Example:
        >>> line, batch = nn.Linear(1, 1), torch.ones(8, 1)
        >>> found = fit(line, [batch], loss=lambda model, x: (model(x) - 2 * x).square().mean(),
        ...             optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        ...             steps=100, monitoring=Monitoring(evaluate=lambda model: 0.0, every=50),
        ...             progress=False)
        >>> found.losses[-1] < 1e-6, len(found.evaluations)
        (True, 2)

    Source: [pascanu2013difficulty], [micikevicius2018mixed]
    Explained in: chapters/11_training, section "The finished loop".
    """
    _check(
        model, loss, optimizer, steps, clip, seed, execution, monitoring, checkpointing, progress
    )
    run = _prepare(
        model, batches, optimizer, schedule, clip, seed, execution, monitoring, checkpointing
    )
    ranks, first = run.ranks, run.ranks.rank == 0
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    model.train()
    with (
        run,  # where its last checkpoint is
        Ending(ranks) as ending,
        Log(monitoring.log, len(run.history), first=first) as log,
        _bar(progress and first, len(run.history), steps) as bar,
    ):
        history = run.history
        while len(history) < steps and not run.best.over:
            step = len(history)
            mean, norm, count, batch, asked = take_step(run, weights, loss, execution, clip, ending)
            run.took(loss=mean, gradient_norm=norm, count=count, log=log)
            bar.set_postfix_str(f"loss {mean:.4f}", refresh=False)
            bar.update()
            if (step + 1) % monitoring.every == 0 or step + 1 == steps:
                run.saw(monitoring.look(model, batch, ranks), log)
                if first and monitoring.report is not None:
                    monitoring.report(history)
            if any(asked) or run.due(steps):
                run.save()
            if any(asked):
                kept = " and saved" * (checkpointing is not None)
                ending.end(f"stopped after {step + 1} steps{kept}", terminated=asked[1] > 0)
    return run.end()


def take_step(
    run: Run,
    weights: list[nn.Parameter],
    loss: Callable[[nn.Module, object], Tensor | tuple[Tensor, int]],
    execution: Execution,
    clip: float | None,
    ending: Ending,
) -> tuple[float, float, float, object, list[float]]:
    """Take one step of a run.

    Args:
        run: which holds model, optimizer, schedule, batches and processes.
        weights: those that are trained.
        loss: see :func:`fit`.
        execution: how many batches make the step, and in which precision.
        clip: the longest gradient; None for any.
        ending: whether somebody asked to stop, in any process.

    Returns:
        the loss, the length of the gradient before clipping, over how many terms they are, the rows
        of the last batch, and who asked to stop.

    Raises:
        FloatingPointError: if loss or gradient is not finite; the weights are those before.

    Explained in: chapters/11_training, section "The finished loop".
    """
    step = len(run.history)
    run.rates.set(step)  # the learning rate, by the schedule
    run.optimizer.zero_grad(set_to_none=True)
    total, count, batch = sum_gradients(run.model, loss, run.source, run.ranks, execution)  # Σ ∇ℓ
    total, count, *asked = run.ranks.add([total, count, *ending.wishes])
    mean = _mean(total, count, step)  # Σ ℓ / Σ count
    norm = mean_gradients(weights, run.ranks, count)  # |g|, g = Σ ∇ℓ / Σ count
    check_finite(step, mean, norm.item())
    if clip is not None:
        clip_grads_with_norm_(weights, clip, norm)  # g · min(1, clip / |g|)
    run.optimizer.step()
    return mean, norm.item(), count, batch, asked


def _prepare(model, batches, optimizer, schedule, clip, seed, execution, monitoring, checkpointing):
    """Return the run, not yet begun."""
    ranks = Ranks()
    ranks.split(model) if execution.shard else ranks.same(model)
    run = Run(
        model,
        optimizer if isinstance(optimizer, Optimizer) else optimizer(model),
        ranks,
        batches=batches,
        schedule=schedule,
        patience=monitoring.patience,
        checkpointing=checkpointing,
        settings={
            "accumulate": execution.accumulate,
            "clip": clip,
            "precision": execution.precision,
            "seed": seed,
        },
    )
    if seed is not None or ranks.size > 1:
        seed_all((torch.initial_seed() if seed is None else seed) + ranks.rank)
    return run


def _bar(shown, done, steps):
    return tqdm(total=steps, initial=done, disable=not shown, unit="step", dynamic_ncols=True)


def _mean(total, count, step):
    if not count:
        raise ValueError(f"loss must count at least one term, got none at step {step}")
    return total / count


def _check(
    model, loss, optimizer, steps, clip, seed, execution, monitoring, checkpointing, progress
):
    check_number("steps", steps, 1, whole=True)
    if seed is not None:
        check_number("seed", seed, 0, 2**63 - 1, whole=True)
    check_bool("progress", progress)
    if clip is not None:
        check_number("clip", clip, above=0)
    kinds = {"execution": (execution, Execution), "monitoring": (monitoring, Monitoring)}
    if checkpointing is not None:
        kinds["checkpointing"] = checkpointing, Checkpointing
    for name, (value, kind) in kinds.items():
        if not isinstance(value, kind):
            wanted = f"{name} must be of class {kind.__name__}"
            raise TypeError(f"{wanted}, got {type(value).__name__}")
    check_module("model", model)
    check_callable("loss", loss)
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
    if execution.shard and (made or monitoring.patience is not None):
        raise ValueError(
            "shard=True takes optimizer= as a function of the model, which it has cut, "
            "and no patience"
        )
