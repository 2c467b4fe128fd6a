"""Read what passes inside a model, or put something else in its place.

A model has :class:`tfbook.attention.Tap` modules at the places worth a look: queries, keys, scores,
patterns, the residual stream. Their names in ``model.named_modules()`` are the addresses here, and
``*`` stands for any part of a name. A hook is there only inside a ``with``, so a model is
afterwards what it was.

Explained in: chapters/10_interpretability, section "Reading the stream".
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fnmatch import fnmatchcase

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import check_bool, check_module
from tfbook.attention import Tap

__all__ = ["Captured", "capture", "patched", "patterns", "streams", "taps"]

Change = Tensor | Callable[[Tensor], Tensor]


def taps(model: nn.Module, pattern: str = "*") -> dict[str, Tap]:
    """Return the taps of a model whose names fit a pattern.

    Args:
        model: whose taps are looked for.
        pattern: a name, in which ``*`` stands for any letters, ``?`` for one and ``[02]`` for one
            of those listed, as in the names of files; a ``*`` also stands for dots.

    Returns:
        Taps by name, in the order of ``model.named_modules()``; one that is shared has one name.

    Raises:
        TypeError: if model is no module or pattern no string.
        ValueError: if the model has no taps, or none fits; the message names those that are close.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> list(taps(model, "*.pattern"))
        ['stack.blocks.0.mixer.pattern', 'stack.blocks.1.mixer.pattern']

    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    check_module("model", model)
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be the name of a tap, got {type(pattern).__name__}")
    found = {name: part for name, part in model.named_modules() if isinstance(part, Tap)}
    if not found:
        raise ValueError(f"model has no taps, got a {type(model).__name__}")
    fitting = {name: tap for name, tap in found.items() if fnmatchcase(name, pattern)}
    if not fitting:
        raise ValueError(f"pattern {pattern!r} fits no tap; {_near(pattern, list(found))}")
    return fitting


class Captured(dict):
    """What has passed the taps, by name; a name that is missing says what there is instead."""

    def __missing__(self, name: object) -> Tensor:
        """Raise KeyError for a tap that is not watched, or that nothing has passed yet."""
        there = ", ".join(self) or "nothing yet: call the model first"
        raise KeyError(f"nothing has passed a watched tap {name!r}; what was captured: {there}")


def capture(
    model: nn.Module,
    *patterns: str,
    grad: bool = False,
    to: torch.device | torch.dtype | str | None = None,
    every: bool = False,
) -> AbstractContextManager[dict[str, Tensor]]:
    """Keep what passes the named taps while the model is called.

    What is kept is what leaves the tap, so behind all that :func:`patched` puts there. A tap that
    is passed more than once, in one call of the model or in several, keeps the last tensor, or
    with ``every`` a list of all.

    Args:
        model: the model to watch.
        patterns: names of taps, at least one, as for :func:`taps`.
        grad: keep the tensors in the graph of gradients. Where nothing before the tap needs a
            gradient, the tensor itself is made to need one.
        to: device or dtype to move what is kept to, such as "cpu".
        every: keep a list of all tensors that pass a tap instead of the last one.

    Returns:
        What ``with`` enters: it gives a dictionary that the calls of the model fill, in the order
        in which taps are passed.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if no pattern is given, one fits no tap, or ``grad`` and ``to`` are combined,
            since a moved copy lies beside the graph; and, from the model's call, with ``grad``
            where gradients are switched off.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> with capture(model, "*.1.mixer.pattern", "*.0.resid_pre") as seen:
        ...     _ = model(torch.tensor([[3, 1, 4, 1, 5]]))
        >>> {name: tuple(x.shape) for name, x in seen.items()}
        {'stack.blocks.0.resid_pre': (1, 5, 8), 'stack.blocks.1.mixer.pattern': (1, 2, 5, 5)}

    Cost: memory for what is kept. A tap of scores or of a pattern makes its layer form them.

    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    watched = _fitting(model, patterns)
    check_bool("grad", grad)
    check_bool("every", every)
    _check_to(to, grad)
    return _capturing(watched, grad, to, every)


@contextmanager
def _capturing(
    watched: dict[str, Tap], grad: bool, to: object, every: bool
) -> Iterator[dict[str, Tensor]]:
    seen = Captured()

    def keep(name: str):
        def hook(tap, args, x):
            kept = x = _with_gradient(name, x) if grad else x
            if not grad:
                kept = x.detach() if to is None else x.detach().to(to)
            if every:
                seen.setdefault(name, []).append(kept)
            else:
                seen.pop(name, None)  # so that the order is that of the last call
                seen[name] = kept
            return x

        return hook

    with ExitStack() as hooks:
        for name, tap in watched.items():
            hooks.callback(tap.register_forward_hook(keep(name)).remove)
        yield seen


def patched(model: nn.Module, changes: Mapping[str, Change]) -> AbstractContextManager[None]:
    """Let something else pass the named taps while the model is called.

    Patches on the same tap are applied in the order in which they were made, the outer one first.

    Args:
        model: the model to change for a while.
        changes: by the name of a tap what passes instead: a tensor, or a function that gets the
            tensor and returns another one. Shape, dtype and device must stay. A function that is
            to change a part clones first, ``x = x.clone()``.

    Returns:
        What ``with`` enters.

    Raises:
        TypeError: if changes is no mapping, or a change neither tensor nor function.
        ValueError: if a name is that of no tap; and, from the model's call, if what a tap is to
            pass on has another shape, dtype or device than what arrived.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> with patched(model, {"stack.blocks.1.resid_post": torch.zeros_like}):
        ...     logits, _ = model(tokens)
        >>> bool((logits == logits[:, :1]).all())
        True

    Explained in: chapters/10_interpretability, section "Activation patching".
    """
    known = taps(model)
    if not isinstance(changes, Mapping):
        raise TypeError(f"changes must map names of taps, got {type(changes).__name__}")
    for name, change in changes.items():
        if name not in known:
            raise ValueError(f"changes names no tap with {name!r}; {_near(name, list(known))}")
        if not (isinstance(change, Tensor) or callable(change)):
            raise TypeError(
                f"changes[{name!r}] must be a tensor or a function, got {type(change).__name__}"
            )

    return _patching([(name, known[name], change) for name, change in changes.items()])


@contextmanager
def _patching(changes: list[tuple[str, Tap, Change]]) -> Iterator[None]:
    def put(name: str, change: Change):
        def hook(tap, args):
            (x,) = args
            new = change if isinstance(change, Tensor) else change(x)
            _check_alike(name, new, x)
            return (new,)

        return hook

    with ExitStack() as hooks:
        for name, tap, change in changes:
            hooks.callback(tap.register_forward_pre_hook(put(name, change)).remove)
        yield


@torch.no_grad()
def patterns(
    model: nn.Module, *inputs: object, where: str = "*", **options: object
) -> Float[Tensor, "L ..."]:
    """Return the patterns of all layers: how much each head lets each query take from each key.

    Args:
        model: a model with taps ``pattern``. Its mode stays, so dropout needs ``model.eval()``.
        inputs: what the model is called with.
        where: names of the taps, as for :func:`taps`; a model with an encoder and a decoder needs
            "encoder.*", "decoder.*.mixer.*" or "decoder.*.cross.*".
        options: named arguments of the model, such as ``mask``.

    Returns:
        (layers, B, H, N, M), layers in the order in which they are passed; those whose mixer forms
        no pattern, such as Mamba's, are left out.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no such tap, patterns of different stacks would be mixed, or their
            shapes differ from layer to layer.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> patterns(model, torch.tensor([[3, 1, 4, 1, 5]])).shape
        torch.Size([2, 1, 2, 5, 5])

    Cost: one call of the model, L B H N M numbers.

    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    found = [name for name in taps(model, where) if name.rpartition(".")[2] == "pattern"]
    if not found:
        raise ValueError(f"where {where!r} fits no tap named pattern")
    _check_one_stack(found, where)
    return _stacked("patterns", _in_order(model, found, inputs, options))


@torch.no_grad()
def streams(
    model: nn.Module, *inputs: object, where: str = "*", **options: object
) -> Float[Tensor, "L B N D"]:
    """Return the residual stream: what enters the first layer, and what leaves each.

    A norm behind the last layer is not in it.

    Args:
        model: a model of :class:`tfbook.blocks.Block`. Its mode stays, so dropout needs
            ``model.eval()``.
        inputs: what the model is called with.
        where: names of the taps, as for :func:`taps`; a model with an encoder and a decoder needs
            "encoder.*" or "decoder.*".
        options: named arguments of the model, such as ``mask``.

    Returns:
        (layers + 1, B, N, d_model).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no such tap, streams of different stacks would be mixed, or their
            shapes differ from layer to layer.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> streams(model, torch.tensor([[3, 1, 4, 1, 5]])).shape
        torch.Size([3, 1, 5, 8])

    Cost: one call of the model, (L + 1) B N D numbers.

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    ends = ("resid_pre", "resid_post")
    found = [name for name in taps(model, where) if name.rpartition(".")[2] in ends]
    if not found:
        raise ValueError(f"where {where!r} fits no tap named resid_pre or resid_post")
    _check_one_stack(found, where)
    passed = _in_order(model, found, inputs, options)
    first = [x for name, x in passed if name.endswith("resid_pre")][:1]
    return _stacked("streams", first + [x for name, x in passed if name.endswith("resid_post")])


def _near(name: object, known: list[str]) -> str:
    """Say which names are like one that is not there, or which kinds of names there are."""
    wanted = str(name).replace("*", "0")
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.75)
    if close:
        return f"close to it are {', '.join(close)}"
    kinds = dict.fromkeys(re.sub(r"\b\d+\b", "*", each) for each in known)
    return f"there are {', '.join(kinds)}"


def _fitting(model: nn.Module, patterns: tuple[str, ...]) -> dict[str, Tap]:
    """Return the taps that fit any of the patterns, each of which has to fit one."""
    found = [taps(model, pattern) for pattern in patterns]
    if not found:
        check_module("model", model)
        raise ValueError("capture needs the name of a tap, such as '*.pattern', got none")
    return {name: tap for each in found for name, tap in each.items()}


def _check_to(to: object, grad: bool) -> None:
    if to is None:
        return
    if grad:
        raise ValueError("capture with grad=True keeps the tensors of the graph, not moved copies")
    if isinstance(to, str):
        try:
            torch.device(to)
        except RuntimeError:
            raise ValueError(f"to must name a device that PyTorch knows, got {to!r}") from None
    elif not isinstance(to, torch.device | torch.dtype):
        raise TypeError(f"to must be a device or a dtype, got {type(to).__name__}")


def _with_gradient(name: str, x: Tensor) -> Tensor:
    """Return x if it needs a gradient, else a copy of it that does."""
    if not torch.is_grad_enabled():
        raise ValueError(
            f"capture with grad=True at tap {name} needs gradients, which are switched off here"
        )
    return x if x.requires_grad else x.detach().requires_grad_()


def _check_alike(name: str, new: object, x: Tensor) -> None:
    """Raise unless what a tap is to pass on is like what arrived."""
    if not isinstance(new, Tensor):
        raise TypeError(f"tap {name} must pass on a tensor, got {type(new).__name__}")
    for what in ("shape", "dtype", "device"):
        got, wanted = getattr(new, what), getattr(x, what)
        if got != wanted:
            got, wanted = (tuple(got), tuple(wanted)) if what == "shape" else (got, wanted)
            raise ValueError(f"tap {name} must pass on a tensor of {what} {wanted}, got {got}")


def _check_one_stack(names: list[str], where: str) -> None:
    """Raise if the names are those of several stacks, or of attentions to different keys."""
    kinds = {}
    for name in names:
        number = re.search(r"(^|\.)\d+(\.|$)", name)
        stack = name[: number.start()] if number else ""
        kinds[(stack or "the model") + ", cross-attention" * ("cross" in name.split("."))] = name
    if len(kinds) > 1:
        raise ValueError(
            f"where {where!r} fits taps of {len(kinds)} kinds: {'; '.join(kinds)}. Choose one, "
            "such as where='encoder.*' or 'decoder.*.mixer.*'"
        )


def _in_order(model, names, inputs, options) -> list[tuple[str, Tensor]]:
    """Call the model; return what passes the taps, in order, with their names."""
    passed, known = [], taps(model)

    def note(name):
        return lambda tap, args, x: passed.append((name, x.detach()))

    with ExitStack() as hooks:
        for name in names:
            hooks.callback(known[name].register_forward_hook(note(name)).remove)
        model(*inputs, **options)
    return passed


def _stacked(what: str, passed: list) -> Tensor:
    """Put what passed into one tensor."""
    found = [each[1] if isinstance(each, tuple) else each for each in passed]
    shapes = dict.fromkeys(tuple(x.shape) for x in found)
    if len(shapes) != 1:
        shown = ", ".join(map(str, shapes)) or "none"
        raise ValueError(f"{what} of all layers must have one shape, got {shown}")
    return torch.stack(found)
