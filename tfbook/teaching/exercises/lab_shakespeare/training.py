"""Step 8 of the Shakespeare lab: a training run."""

from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong

# lab-train --------------------------------------------------------------------------------------


def train(
    model: torch.nn.Module,
    loss_of: Callable[[torch.nn.Module, object], torch.Tensor],
    batches: Callable[[int], object],
    steps: int,
    rate: float,
) -> list[float]:
    """Train a model in place.

    Step i takes the batch batches(i), computes loss_of(model, batch) and its gradients, and changes
    the weights once. The learning rate is never above `rate`; optimizer and schedule are yours.

    model: to be trained, in training mode. loss_of: from a model and a batch to a tensor of shape
    (). batches: from the number of a step, 0, 1, …, to its batch. steps: how many. rate: the
    highest learning rate.
    Returns: the losses, one float for each step, each from before the weights were changed.
    """
    ...


class _Toy(torch.nn.Module):
    """Predicts the next of six characters from the present one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(6, 16)
        self.hidden = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(self.embed(tokens))))


class _Run:
    """A small task that writes down what a training run does with it."""

    def __init__(self) -> None:
        self.model, self.numbers, self.values = _Toy(), [], []
        self.model.eval()
        self.modes: list[bool] = []
        generator = torch.Generator().manual_seed(9)
        self.rows = torch.randint(6, (200, 4, 8), generator=generator)

    def batches(self, number: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(number, bool) or not isinstance(number, int):
            raise Wrong(f"`batches` takes the number of a step. It got {type(number).__name__}.")
        self.numbers.append(number)
        x = self.rows[number % 200]
        return x, (5 * x + 2) % 6

    def loss(self, model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if model is not self.model:
            raise Wrong("`loss_of` was given another model. Train the one that came, in place.")
        x, y = batch
        self.modes.append(model.training)
        value = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        self.values.append(value.item())
        return value


def _train_run(train: Any, steps: int, rate: float = 0.01) -> tuple[_Run, list[float]]:
    run = _Run()
    losses = train(run.model, run.loss, run.batches, steps, rate)
    if not isinstance(losses, list) or not all(isinstance(x, float) for x in losses):
        kind = type(losses).__name__
        raise Wrong(f"The result is a {kind}. Return a list of floats, one for each step.")
    if len(losses) != steps:
        raise Wrong(f"{steps} steps give {steps} losses, and {len(losses)} came back.")
    return run, losses


def _train_learns(train: Any) -> None:
    """The loss falls, because the weights change."""
    run, losses = _train_run(train, 80)
    fresh = _Toy().state_dict()
    same = all(torch.equal(fresh[name], w) for name, w in run.model.state_dict().items())
    if same:
        raise Wrong("After 80 steps the weights are what they were. Who calls `optimizer.step()`?")
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    if not last < 0.7 * first:
        raise Wrong(
            "The next character follows from the present one, which 80 steps are enough to find "
            "out, and the loss did not fall by a third. Are the gradients cleared between steps, "
            "and before `backward`? The rate here is 0.01, which suits AdamW and not plain SGD.",
            got=last, wanted=f"below {0.7 * first:.3f}",
        )


def _train_clears(train: Any) -> None:
    """A step moves the weights by the gradients of its own batch."""
    run = _Run()
    run.rows = torch.arange(6)[:, None, None].expand(6, 4, 8).repeat(34, 1, 1)  # one token a batch
    train(run.model, run.loss, run.batches, 3, 0.01)
    gradient = run.model.embed.weight.grad  # batch i reads row i of the table, and no other
    if gradient is None or not run.numbers:
        return
    other = torch.arange(6) != run.numbers[-1] % 6
    if gradient[other].any():
        raise Wrong(
            "Batch i of this check consists of character i alone, so that its gradient reaches one "
            "row of the embedding. After the last step the rows of earlier batches still have "
            "gradients: they were added up from step to step. Clear them in each step, with "
            "`optimizer.zero_grad()` before `loss.backward()`.",
            given={"steps": 3, "batches": "character 0, then 1, then 2"},
            got=f"gradients in rows {gradient.any(dim=1).nonzero().flatten().tolist()}",
            wanted=f"gradients in row {run.numbers[-1] % 6}",
        )


def _train_batches(train: Any) -> None:
    """Step i takes batch i, each once."""
    run, _ = _train_run(train, 7)
    if run.numbers != list(range(7)):
        words = "The batches were not taken as 0, 1, 2, …, each once."
        if len(set(run.numbers)) == 1:
            words = "Every step took the same batch: the model would learn it by heart."
        elif run.numbers and min(run.numbers) == 1:
            words = "The first step has the number 0."
        raise Wrong(words, got=run.numbers, wanted=list(range(7)))


def _train_losses(train: Any) -> None:
    """What comes back are the losses of the steps, and the model was in training mode."""
    run, losses = _train_run(train, 12)
    if len(run.values) != 12:
        raise Wrong(f"The loss was computed {len(run.values)} times in 12 steps.")
    if not torch.allclose(torch.tensor(losses), torch.tensor(run.values), rtol=1e-4):
        raise Wrong("These are not the losses of the steps.", got=losses, wanted=run.values)
    if not all(run.modes):
        raise Wrong("The model was in evaluation mode. Call `model.train()`: dropout belongs here.")


def _train_rate(train: Any) -> None:
    """`rate` says how far a step goes."""
    run, _ = _train_run(train, 6, rate=0.0)
    fresh = _Toy().state_dict()
    if not all(torch.equal(fresh[name], w) for name, w in run.model.state_dict().items()):
        raise Wrong(
            "With rate = 0 the weights should stay as they are, and they moved. Give the optimizer "
            "`lr=rate`, and multiply what a schedule says by `rate`.", given={"rate": 0.0},
        )


LAB_TRAIN = Exercise(
    name="lab-train",
    title="A training run",
    level=2,
    section='chapters/lab_shakespeare, section "Step 8: train"',
    stub=train,
    properties=(_train_learns, _train_clears, _train_batches, _train_losses, _train_rate),
    warm=("torch._dynamo",),  # loaded by the first optimizer of PyTorch, in seconds
    hints=(
        "It is the loop of chapter 11: which of its lines must stand before the loop, and which "
        "inside?",
        "Before the loop, make the optimizer once, `torch.optim.AdamW(model.parameters(), "
        "lr=rate)`. Inside: the loss, `zero_grad`, `backward`, `step`, and `loss.item()` into a "
        "list. `backward` adds to the gradients that are there.",
        "A schedule is one line at the beginning of a step: for each group of "
        "`optimizer.param_groups`, `group['lr'] = rate * factor(step)`, where `factor = "
        "schedule('cosine', steps=steps, warmup=steps // 10)` is made before the loop.",
    ),
)

EXERCISES = (LAB_TRAIN,)
