"""The exercises of chapter 06 on laws for the loss: fitting one, and splitting a budget by one."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from tfbook.teaching.exercises._spec import Exercise, Slip, Wrong, parts

# split-budget -----------------------------------------------------------------------------------


def split_budget(
    flops: float, floor: float, n_scale: float, n_exponent: float, d_scale: float,
    d_exponent: float,
) -> tuple[float, float]:  # fmt: skip
    """Split a budget of compute between a larger model and more text.

    Training a model of N parameters on D tokens costs 6·N·D FLOPs. Afterwards its loss is
    floor + n_scale / N^n_exponent + d_scale / D^d_exponent. Find the N and D with the least loss
    among those that cost just the budget. They need not be whole numbers.

    flops: the budget. floor: the loss that no N and D go below. n_scale: how much a small model
    adds. n_exponent: how fast that falls with N. d_scale: how much too little text adds.
    d_exponent: how fast that falls with D. All are above 0.
    Returns: parameters N and tokens D, two numbers.
    """
    ...


class _Law(NamedTuple):
    """A loss that falls with parameters and tokens."""

    floor: float
    n_scale: float
    n_exponent: float
    d_scale: float
    d_exponent: float

    def loss(self, n: float, d: float) -> float:
        """Return the loss of a model of n parameters after d tokens."""
        return self.floor + self.n_scale / n**self.n_exponent + self.d_scale / d**self.d_exponent

    def split(self, flops: float) -> tuple[float, float]:
        """Return the best parameters and tokens of a budget."""
        _, a, alpha, b, beta = self
        n = (alpha * a / (beta * b) * (flops / 6) ** beta) ** (1 / (alpha + beta))
        return n, flops / 6 / n


_PLAIN = _Law(1.5, 300.0, 0.4, 500.0, 0.3)
_CHINCHILLA = _Law(1.69, 406.4, 0.34, 410.7, 0.28)


def _given(flops: float, law: _Law) -> dict[str, float]:
    return {"flops": flops, **law._asdict()}


def _two(split: Any, flops: float, law: _Law) -> tuple[float, float]:
    """Call the reader's function, and see that it returns two positive numbers."""
    got = parts(split(*_given(flops, law).values()), "n_parameters", "n_tokens")
    for value in got:
        if isinstance(value, torch.Tensor):
            raise Wrong("Return two numbers, no tensors: take each out with `.item()`.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong(f"Return two numbers. One of yours is a {type(value).__name__}.")
        if not (math.isfinite(value) and value > 0):
            raise Wrong("Both numbers should be positive and finite.")
    return float(got[0]), float(got[1])


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-6)


def _spending(split: Any, flops: float, law: _Law) -> tuple[float, float]:
    """Return the reader's two numbers, which have to cost the budget."""
    n, d = _two(split, flops, law)
    share = 6 * n * d / flops
    case = dict(given=_given(flops, law), got=(n, d), wanted=law.split(flops))
    if _close(share, 3):
        raise Slip(
            "Here 2·N·D is the budget, which pays for the forward pass alone. With the backward "
            "pass, training costs 6·N·D.", **case,
        )  # fmt: skip
    if _close(share, 6):
        raise Slip("The factor 6 is missing: here N·D is the budget, not 6·N·D.", **case)
    if not _close(share, 1):
        words = f"{share:.6g} times the budget: that is more than there is."
        if share < 1:
            words = f"{100 * share:.4g} % of the budget. The rest would still lower the loss."
        raise Slip(f"6·N·D is {words}", **case)
    return n, d


def _expect_split(
    split: Any, flops: float, law: _Law, otherwise: str, mistakes: Mapping[str, float]
) -> tuple[float, float]:
    """Raise `Wrong` unless the reader's two numbers have the least loss; return them.

    mistakes: how many parameters known slips would give, by the sentence that explains each.
    """
    n, d = _spending(split, flops, law)
    wanted = law.split(flops)
    case = dict(given=_given(flops, law), got=(n, d), wanted=wanted)
    for words, slip in mistakes.items():
        if _close(n, slip):
            raise Slip(words, **case)
    loss = law.loss(n, d)
    for change, near in (("larger", n * 1.1), ("smaller", n / 1.1)):
        less = law.loss(near, flops / 6 / near)
        if less < loss:
            raise Wrong(
                f"{otherwise} A model 10 % {change}, with the tokens that the budget then allows, "
                f"would have the loss {less:.6f} instead of {loss:.6f}.", **case,
            )  # fmt: skip
    if loss > law.loss(*wanted) * (1 + 1e-6):
        raise Wrong(f"{otherwise} It is close: search with finer steps.", **case)
    return n, d


def _split_spent(split: Any) -> None:
    """The whole budget is spent, and no more: 6·N·D = flops."""
    for flops in (6e17, 1.2e20):
        _spending(split, flops, _PLAIN)


def _split_least(split: Any) -> None:
    """No other split of the budget has a lower loss."""
    flops, law = 6e17, _PLAIN
    _, a, alpha, b, beta = law
    total, power = flops / 6, 1 / (alpha + beta)
    ratio = alpha * a / (beta * b)
    _expect_split(split, flops, law, "Another split is better.", {
        "D = 20·N, whatever the loss is. That ratio belongs to one loss at one budget: these "
        "constants ask for another.": (total / 20) ** 0.5,
        "N and D are equal. The two terms of the loss are not alike, so neither are N and D.":
            total**0.5,
        "The two terms are equal here. Where the loss is least, their slopes are: as many nats as "
        "one per cent more parameters gains, one per cent fewer tokens loses.":
            (a / b * total**beta) ** power,
        "The exponents are exchanged: the best N grows with the exponent of D, as "
        "flops^(d_exponent / (n_exponent + d_exponent)).": (ratio * total**alpha) ** power,
        "The ratio of the two terms is upside down: a larger n_scale asks for more parameters.":
            (total**beta / ratio) ** power,
    })  # fmt: skip


def _split_more(split: Any) -> None:
    """Ten thousand times the compute goes to both, in unequal parts."""
    flops, law = 6e21, _PLAIN
    before = law.split(flops / 1e4)[0]
    _expect_split(split, flops, law, "With ten thousand times the compute another is better.", {
        "N grew by 100, and D as well. They grow alike only where the exponents are equal.":
            100 * before,
        "N stayed as it was: all that was added went to the tokens.": before,
        "All that was added went to the parameters.": 1e4 * before,
    })  # fmt: skip


def _split_exchanged(split: Any) -> None:
    """Where the two terms exchange their constants, N and D are exchanged as well."""
    floor, a, alpha, b, beta = _PLAIN
    for flops in (3e16, 6e17):
        n, d = _expect_split(
            split, flops, _Law(floor, b, beta, a, alpha),
            "The two terms of the loss have exchanged their constants.", {},
        )  # fmt: skip
        wanted = _PLAIN.split(flops)
        if not math.isclose(n, wanted[1], rel_tol=0.02):
            raise Wrong(
                "With n_scale for d_scale and n_exponent for d_exponent, N should be what D was.",
                got=(n, d), wanted=wanted[::-1],
            )  # fmt: skip


def _split_chinchilla(split: Any) -> None:
    """The constants printed for Chinchilla, at its budget of 5.76e23 FLOPs."""
    _expect_split(split, 5.76e23, _CHINCHILLA, "At Chinchilla's budget another is better.", {})


SPLIT_BUDGET = Exercise(
    name="split-budget",
    title="Spend a budget",
    level=3,
    section='chapters/06_complexity, section "A law of size and text"',
    stub=split_budget,
    properties=(_split_spent, _split_least, _split_more, _split_exchanged, _split_chinchilla),
    hints=(
        "The budget ties D to N, so the loss depends on one number. Draw it over the logarithm of "
        "N: what does the curve look like?",
        "It is a valley. Either search it in log N until the steps are tiny, or write the loss "
        "with D = flops/(6·N), and ask where its derivative is zero.",
        "The derivative is zero where `n_exponent * n_scale / N**n_exponent == d_exponent * "
        "d_scale / D**d_exponent`. Put `D = flops / (6 * N)` into it and solve for N.",
    ),
)

# predict-run ------------------------------------------------------------------------------------


def predict_run(sizes: list[float], losses: list[float], far: float) -> float:
    """Fit a law with a floor to runs, and predict the loss of a model of another size.

    The law is L(N) = E + (a / N)^α, with a floor E of 0 or more. Take the constants for which it
    lies closest to all runs: the least sum of squared differences, of the losses or of their
    logarithms. A size may stand there several times, with other seeds, and the runs come in any
    order.

    sizes: N of the runs, at least three different ones. losses: what the runs reached,
    in the same order. far: the size to predict.
    Returns: the loss that the law gives a model of size far, a float.
    """
    ...


# Sizes N, a sixth of the FLOPs a character, and losses of the chapter's runs on 993,280
# characters; the size of the held-out run.
_RUNS = (
    [7284, 7284, 7284, 15_980, 15_980, 15_980, 34_784, 70_608],
    [2.1515, 2.1430, 2.1804, 2.0527, 2.0262, 2.0588, 1.9759, 1.9111],
)
_APART = 176_064


def _straight(places: list[float], values: list[float]) -> tuple[float, float]:
    """Return offset and slope of the line of least squares."""
    n = len(places)
    x, y = sum(places) / n, sum(values) / n
    slope = sum((p - x) * (v - y) for p, v in zip(places, values, strict=True))
    slope /= sum((p - x) ** 2 for p in places)
    return y - slope * x, slope


def _line_of_logs(sizes: list[float], losses: list[float], far: float) -> float:
    """Predict by a law without a floor: a straight line where both axes are logarithms."""
    offset, slope = _straight([math.log(n) for n in sizes], [math.log(x) for x in losses])
    return math.exp(offset + slope * math.log(far))


def _half_logs(sizes: list[float], losses: list[float], far: float) -> float:
    """Predict by a straight line of the loss over the logarithm of the size."""
    offset, slope = _straight([math.log(n) for n in sizes], losses)
    return offset + slope * math.log(far)


def _expect_loss(
    predict: Any,
    case: tuple[list, list, float],
    wanted: float,
    tolerance: float,
    otherwise: str,
    mistakes: Mapping[str, float],
) -> None:
    """Raise `Wrong` unless the reader's prediction is as near as that.

    mistakes: what known slips would predict, by the sentence that explains each.
    """
    sizes, losses, far = case
    given = dict(sizes=list(sizes), losses=list(losses), far=far)
    got = predict(list(sizes), list(losses), far)
    shown = dict(given=given, got=got, wanted=wanted)
    if isinstance(got, torch.Tensor):
        raise Wrong("Return a number, no tensor: take it out with `.item()`.", **shown)
    if isinstance(got, bool) or not isinstance(got, int | float):
        raise Wrong(f"Return a number. Yours is a {type(got).__name__}.", **shown)
    if math.isfinite(got) and abs(got - wanted) <= tolerance:
        return
    for words, slip in mistakes.items():
        if math.isclose(got, slip, rel_tol=1e-4):
            raise Slip(words, **shown)
    raise Wrong(otherwise, **shown)


def _on_a_law(
    floor: float, scale: float, exponent: float, far: float, first: float = 1e4
) -> tuple[tuple[list, list, float], float]:
    """Make six runs that lie on a law, and return them with what it says of a further size."""
    sizes = [first * 2.5**k for k in range(6)]
    losses = [floor + (scale / n) ** exponent for n in sizes]
    return (sizes, losses, far), floor + (scale / far) ** exponent


def _run_exact(predict: Any) -> None:
    """Where the runs lie on a law with a floor, a run a hundred times as large is predicted."""
    for far in (1e7, 1e8):
        case, wanted = _on_a_law(1.7, 1e4, 0.3, far)
        sizes, losses, _ = case
        _expect_loss(predict, case, wanted, 0.01, "These runs lie on a law with a floor.", {
            "This is a law without a floor: a straight line where both axes are logarithms. These "
            "runs bend: fit E as well.": _line_of_logs(sizes, losses, far),
            "This is a straight line over the logarithm of the size. It falls below any floor.":
                _half_logs(sizes, losses, far),
            "This is what lies above the floor. Add E again.": wanted - 1.7,
            "This is the floor alone. A model of this size still lies above it.": 1.7,
            "This is the loss of the largest run. A larger model does better.": min(losses),
        })  # fmt: skip


def _run_others(predict: Any) -> None:
    """Floor and exponent are found, whatever they are, and a floor of 0 too."""
    for floor, exponent in ((0.4, 0.6), (0.0, 0.08), (2.5, 0.15)):
        case, wanted = _on_a_law(floor, 2e5, exponent, 2e7)
        _expect_loss(
            predict, case, wanted, 0.01,
            f"These runs have a floor of {floor} and an exponent of {exponent}.", {},
        )  # fmt: skip


def _run_large(predict: Any) -> None:
    """Models of billions of parameters obey the same formula."""
    case, wanted = _on_a_law(1.8, 2e8, 0.35, 1e12, first=1e8)
    _expect_loss(predict, case, wanted, 0.01, "These models are ten thousand times as large.", {})


def _run_scattered(predict: Any) -> None:
    """The chapter's runs, whose seeds differ, give the run that was held out."""
    sizes, losses = _RUNS
    _expect_loss(
        predict, (sizes, losses, _APART), 1.8637, 0.012,
        "These runs scatter, and the law should lie closest to all of them. The run that was held "
        "out reached 1.867.", {
            "Only the first run of each size was used. The others show how seeds differ.": 1.84487,
        },
    )  # fmt: skip


def _run_order(predict: Any) -> None:
    """The order of the runs does not matter."""
    (sizes, losses, far), wanted = _on_a_law(1.7, 1e4, 0.3, 1e7)
    order = (3, 0, 5, 1, 4, 2)
    case = [sizes[i] for i in order], [losses[i] for i in order], far
    _expect_loss(predict, case, wanted, 0.01, "The same runs came in another order.", {})


PREDICT_RUN = Exercise(
    name="predict-run",
    title="A held-out run",
    level=3,
    section='chapters/06_complexity_deeper, section "A fit with care"',
    stub=predict_run,
    properties=(_run_exact, _run_others, _run_large, _run_scattered, _run_order),
    hints=(
        "Suppose somebody tells you the floor. What do you draw over the logarithm of the size, so "
        "that a straight line remains to be fitted?",
        "Try many floors between 0 and just below the least loss. For each one fit a straight line "
        "to log(loss − floor). Then measure how far the law, floor included, is from the runs.",
        "For one floor, with `x` the logarithms of the sizes and `y = [math.log(loss - floor) …]`, "
        "least squares give the slope, which is −α. Keep the floor whose law has the least sum of "
        "squared differences in the loss; then search more finely around it.",
    ),
    warm=("torch._dynamo",),  # an optimizer of PyTorch loads it
)

EXERCISES = (SPLIT_BUDGET, PREDICT_RUN)
