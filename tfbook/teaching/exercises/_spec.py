"""What an exercise is, and the comparisons its hidden properties are made of."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

LEVELS = {1: "warm-up", 2: "standard", 3: "challenge"}


class Wrong(Exception):
    """Raised by a property: what is wrong with the reader's answer, in words.

    `given`, `got` and `wanted` fill the card. Where `given` or `got` is None, the card shows the
    arguments or the result of the last call.
    """

    def __init__(
        self, message: str, *, given: Mapping[str, Any] | None = None, got: Any = None,
        wanted: Any = None,
    ) -> None:
        """Keep the sentence and the three values that illustrate it."""
        super().__init__(message)
        self.given, self.got, self.wanted = given, got, wanted


class Slip(Wrong):
    """Raised by a comparison where what came back is what a known slip gives."""


class NotStarted(Exception):
    """Raised when the reader's function is still the stub."""


@dataclass(frozen=True, eq=False)
class Exercise:
    """One graded exercise.

    stub: the function the reader starts from; its signature and docstring are the task.
    properties: functions of the reader's function that raise `Wrong`; the first line of each
        docstring names the property. They run in order, so the most telling one comes first.
    hints: from a nudge to nearly the solution.
    warm: modules that a right answer may load by a first call, such as that of an optimizer of
        PyTorch; a check loads them before its clock starts.
    broken: the stub is a whole function with a planted fault, which the reader finds and mends; as
        long as it is unchanged, the exercise counts as not started.
    called: what the notebook calls the answer, where that is a class.
    task: what to do with the stub, in a few words, where the usual ones do not fit.

    Raises ValueError when a part is missing.
    """

    name: str
    title: str
    level: int
    section: str
    stub: Callable[..., Any]
    properties: tuple[Callable[..., None], ...]
    hints: tuple[str, ...]
    warm: tuple[str, ...] = ()
    broken: bool = False
    called: str = ""
    task: str = ""

    @property
    def begin(self) -> str:
        """What to do with the stub, in words."""
        name = self.called or self.stub.__name__
        if self.task:
            return self.task
        return f"Find the fault in `{name}` and mend it" if self.broken else f"Fill in `{name}`"

    def __post_init__(self) -> None:
        """Refuse an exercise that could not be shown or checked."""
        if self.level not in LEVELS:
            raise ValueError(f"level of {self.name!r} must be one of {list(LEVELS)}: {self.level}")
        if not self.properties or not self.hints:
            raise ValueError(f"exercise {self.name!r} needs properties and hints")
        if not all(part.__doc__ for part in (self.stub, *self.properties)):
            raise ValueError(f"the stub and each property of {self.name!r} need a docstring")


def property_name(test: Callable[..., None]) -> str:
    """Return the words that name a property: the first line of its docstring."""
    words = (test.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return words[:1].lower() + words[1:]


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Draw normal numbers with one decimal from a generator of their own, on the CPU.

    One decimal, so that the reader can type in the input that a card shows.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return (drawn.mul(10).round() / 10).to(dtype)


def plain_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute attention as the formula says, to compare with; a query without keys gives zeros."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is None:
        return torch.softmax(scores, -1) @ v
    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), -1)
    return weights.masked_fill(~mask, 0.0) @ v


def same(left: torch.Tensor, right: torch.Tensor, tolerance: float) -> bool:
    """Tell whether two tensors agree in shape, in being boolean or not, and in value."""
    if left.shape != right.shape or (left.dtype == torch.bool) != (right.dtype == torch.bool):
        return False
    left, right = left.detach().to("cpu", torch.float64), right.to(torch.float64)
    return torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)


def expect_tensor(got: Any, shape: tuple[int, ...], dtype: torch.dtype, *, what: str) -> None:
    """Raise `Wrong` unless `got` is a tensor of this shape and dtype."""
    if not isinstance(got, torch.Tensor):
        raise Wrong(_of_another_kind(got, torch.Tensor, "Return a torch tensor.", what))
    if tuple(got.shape) != tuple(shape):
        raise Wrong(f"{what} has shape {tuple(got.shape)}. It should be {tuple(shape)}.")
    if got.dtype != dtype:
        raise Wrong(f"{what} has dtype {_short(got.dtype)}. It should be {_short(dtype)}.")


def expect(
    got: Any,
    wanted: torch.Tensor,
    otherwise: str = "",
    *,
    mistakes: Mapping[str, torch.Tensor | tuple[torch.Tensor, ...]] | None = None,
    tolerance: float = 1e-6,
    what: str = "The result",
    given: Mapping[str, Any] | None = None,
) -> None:
    """Raise `Wrong` unless `got` equals `wanted`.

    mistakes: what known slips would give, by the sentence that explains each. They are compared
        first, so that the reader hears what went wrong before how far off the numbers are.
    otherwise: the sentence for a difference that no known slip explains.
    """
    try:
        if isinstance(got, torch.Tensor) and not same(got, wanted, tolerance):
            for sentence, values in (mistakes or {}).items():
                values = (values,) if isinstance(values, torch.Tensor) else values
                if any(same(got, value, tolerance) for value in values):
                    raise Slip(sentence)
        expect_tensor(got, tuple(wanted.shape), wanted.dtype, what=what)
        if bool(got.isnan().any()):
            raise Wrong(f"{what} contains NaN. {otherwise}".strip())
        if not same(got, wanted, tolerance):
            left, right = got.detach().to(torch.float64), wanted.to(torch.float64)
            difference = (left - right).abs().masked_fill(left == right, 0.0).max()  # ∞ - ∞ is NaN
            counts = wanted.dtype != torch.bool and bool(difference.isfinite())
            off = f" It is off by up to {difference:.3g}." if counts else ""
            if wanted.dtype == torch.float64 and same(got, wanted, 1e-4):
                off += (
                    " So small a difference comes from rounding to float32 on the way, or from a "
                    "small number added where none belongs: keep the dtype of what you are given."
                )
            raise Wrong(otherwise + off if otherwise else f"{what} is not what was wanted.{off}")
    except Wrong as wrong:
        wrong.got = got
        wrong.wanted = wanted if wrong.wanted is None else wrong.wanted
        wrong.given = given if wrong.given is None else wrong.given
        raise


def expect_number(
    function: Any, arguments: Mapping[str, Any], wanted: int,
    mistakes: Mapping[str, int | tuple[int, ...]],
) -> None:
    """Raise `Wrong` unless the function returns this whole number.

    mistakes: what known slips would give, by the sentence that explains each.
    """
    got = function(**arguments)
    message = ""
    if isinstance(got, bool) or not isinstance(got, int):
        message = _of_another_kind(got, int, "Return a whole number, an int.")
        if isinstance(got, float) and got == wanted:
            message = "The number is right, but it is a float: divide with `//`, or not at all."
    elif got != wanted:
        found = (
            words for words, slips in mistakes.items()
            if got in (slips if isinstance(slips, tuple) else (slips,))
        )
        message = next(found, f"{got} is not what was wanted: {wanted}.")
    if message:
        raise Wrong(message, given=arguments, got=got, wanted=wanted)


def expect_plain(
    function: Any, arguments: Mapping[str, Any], wanted: Any, otherwise: str = "",
    *, mistakes: Mapping[str, Any] | None = None,
) -> None:
    """Raise `Wrong` unless the function returns this number, list, tuple or dictionary.

    Floats may differ by rounding. mistakes: what known slips would give, by the sentence that
    explains each; a slip that is what was wanted, too, is never heard.
    """
    kept = {name: copy.deepcopy(value) for name, value in arguments.items()}
    # What the function may change is its own: the next check compares with the same `arguments`.
    own = {
        name: copy.deepcopy(value) if isinstance(value, list | dict | set) else value
        for name, value in arguments.items()
    }
    got = function(*own.values())
    kind = "number" if isinstance(wanted, float) else type(wanted).__name__
    fits = isinstance(got, int | float if kind == "number" else type(wanted))
    if not fits or isinstance(got, bool):
        message = _of_another_kind(got, type(wanted), f"Return a {kind}.")
        if kind == "number" and isinstance(got, torch.Tensor) and got.numel() == 1:
            message = "The result is a tensor. Return a number: take it out with `.item()`."
    elif _alike(got, wanted):
        return
    else:
        for words, slip in (mistakes or {}).items():
            if _alike(got, slip):
                raise Slip(words, given=kept, got=got, wanted=wanted)
        message = otherwise or "The result is not what was wanted."
    raise Wrong(message, given=kept, got=got, wanted=wanted)


def _alike(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return isinstance(got, int | float) and math.isclose(got, wanted, rel_tol=1e-6)
    return bool(got == wanted)


def _of_another_kind(got: Any, kind: type, wish: str, what: str = "The result") -> str:
    """Say what came back instead of a value of this kind, and how it may have come about."""
    told = f"{what} is a {type(got).__name__}"
    inside = isinstance(got, tuple | list) and all(isinstance(entry, kind) for entry in got)
    if isinstance(got, tuple) and len(got) == 1:
        return f"{told} with one entry. Is there a comma behind what you return? {wish}"
    if isinstance(got, tuple) and inside and got and kind is not list:
        return f"{told} of {len(got)} results, and one alone is asked for. {wish}"
    if isinstance(got, list) and inside and got and kind is torch.Tensor:
        return f"{told} of tensors. {wish} `torch.stack` makes one of them."
    return f"{told}. {wish}"


def parts(result: Any, *names: str) -> tuple[Any, ...]:
    """Return what the reader's function returned as a tuple, or raise `Wrong` naming its parts."""
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise Wrong(f"Return {len(names)} results: `return {', '.join(names)}`.")
    return tuple(result)


def expect_gradients(function: Callable[..., Any], **arguments: torch.Tensor) -> None:
    r"""Raise `Wrong` unless autograd through the reader's function agrees with differences of it.

    For every argument x and one random direction u:
    <df/dx, u> = (f(x + eps u) - f(x - eps u)) / (2 eps), in float64.
    """
    leaves = {
        name: value.detach().clone().requires_grad_(value.is_floating_point())
        for name, value in arguments.items()
    }
    output = function(*leaves.values())
    if not isinstance(output, torch.Tensor):
        expect_tensor(output, (), torch.float64, what="The result")
    if not output.requires_grad:
        raise Wrong(
            "The result carries no gradient. Something cuts it off from the inputs: `.detach()`, "
            "`.data`, `.item()`, `.tolist()`, NumPy, `torch.tensor(...)` or `torch.no_grad()`."
        )
    upstream = numbers(*output.shape, seed=101)
    floats = [name for name, leaf in leaves.items() if leaf.requires_grad]
    found = torch.autograd.grad(
        output, [leaves[name] for name in floats], upstream, allow_unused=True
    )
    step = 1e-5
    for index, (name, gradient) in enumerate(zip(floats, found, strict=True)):
        direction = numbers(*arguments[name].shape, seed=103 + index)
        ahead, behind = (
            function(*{**arguments, name: arguments[name] + sign * direction}.values())
            for sign in (step, -step)
        )
        wanted = ((ahead - behind) * upstream).sum().item() / (2 * step)
        got = 0.0 if gradient is None else (gradient * direction).sum().item()
        if not math.isclose(got, wanted, rel_tol=1e-4, abs_tol=1e-6):
            raise Wrong(
                f"The gradient with respect to `{name}` is not the slope of your own function. "
                "Along one direction autograd's slope came back; a finite difference gives the "
                "slope that is wanted. A part of the computation is detached, or is NaN.",
                given=arguments, got=got, wanted=wanted,
            )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
