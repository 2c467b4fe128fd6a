"""Which weights are trained: frozen by patterns of their names, counted, each at its own rate.

Explained in: chapters/18_practice, section "Fine-tuning on your own data".
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn

from tfbook._checks import check_list, check_module, check_number

__all__ = ["Trained", "count_trained", "freeze", "layer_rates", "matching", "thaw"]


class Trained(NamedTuple):
    """How many parameters are trained, of how many.

    Attributes:
        trained: those that get a gradient.
        total: all, shared ones once.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """

    trained: int
    total: int


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that fit at least one pattern, in their order.

    Args:
        names: of parameters or parts, such as "stack.blocks.0.mixer.q_proj".
        patterns: ``*`` stands for any letters (dots too), ``?`` for one, ``[02]`` for one of these.

    Returns:
        The names; none twice.

    Raises:
        TypeError: if names or patterns are no lists of strings.
        ValueError: if a pattern fits no name: a slip of the pen would train, or freeze, nothing.

    Example:
        >>> matching(["blocks.0.q_proj", "blocks.0.k_proj", "head"], ["*.q_proj", "he*"])
        ['blocks.0.q_proj', 'head']

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    check_list("names", names, sized=False)
    check_list("patterns", patterns)
    names = list(dict.fromkeys(names))
    for what, texts in (("names", names), ("patterns", patterns)):
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"{what} must hold strings, got {type(text).__name__}")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(names[:4]) or "none at all"
            raise ValueError(f"no name fits the pattern {pattern!r}; there are {known}, …")
    return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]


def freeze(model: nn.Module, *patterns: str) -> list[str]:
    """Let parameters get no gradient any more, in place: all of them, or those of some names.

    Args:
        model: any module.
        patterns: of names, as for :func:`matching`; all parameters when omitted.

    Returns:
        The names of the parameters that fit.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a pattern fits no parameter.

    Example:
        >>> freeze(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), "0.*")
        ['0.weight', '0.bias']

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    return _ask_gradient(model, patterns, wanted=False)


def thaw(model: nn.Module, *patterns: str) -> list[str]:
    """Let parameters get gradients again, in place; see :func:`freeze`.

    Args:
        model: any module.
        patterns: of names, as for :func:`matching`; all parameters when omitted.

    Returns:
        The names of the parameters that fit.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a pattern fits no parameter.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    return _ask_gradient(model, patterns, wanted=True)


def count_trained(model: nn.Module) -> Trained:
    """Count the parameters that are trained, and all of them.

    Args:
        model: any module.

    Returns:
        Both numbers.

    Raises:
        TypeError: if model is no module.

    Example:
        >>> layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        >>> names = freeze(layers, "0.*")
        >>> count_trained(layers)
        Trained(trained=12, total=32)

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    check_module("model", model)
    weights = list(model.parameters())
    return Trained(
        sum(weight.numel() for weight in weights if weight.requires_grad),
        sum(weight.numel() for weight in weights),
    )


def layer_rates(
    model: nn.Module, lr: float, *, decay: float = 0.9, weight_decay: float = 0.0
) -> list[dict[str, object]]:
    """Split parameters into groups whose learning rate falls towards the input.

    lr_l = lr · decay^(L + 1 − l): depth l is 0 for the embeddings, i + 1 for block i of L, and
    L + 1 for what stands behind the blocks. What a pretrained model learned first is general and is
    moved least. With decay 1 there is one rate; matrices decay and vectors do not, as with
    :func:`tfbook.optimization.decay_groups`.

    Args:
        model: a model of this package, or one whose layers are called "….blocks.0.…" and so on.
        lr: the learning rate of the last parts.
        decay: factor from a layer to the one before it, above 0 and at most 1.
        weight_decay: λ of matrices.

    Returns:
        Groups for any optimizer, from the input on; frozen parameters are left out. A schedule
        of :func:`tfbook.training.fit` scales them all alike.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of its range, a model without such layers, or nothing to train.

    Source: [howard2018universal]
    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    check_module("model", model)
    check_number("lr", lr, above=0)
    check_number("decay", decay, 0, 1, above=0)
    check_number("weight_decay", weight_decay, 0)
    depths = {name: _block_of(name) for name, _ in model.named_parameters()}
    last = max((block for block in depths.values() if block is not None), default=None)
    if last is None:
        raise ValueError("model must have layers named blocks.0, blocks.1, …, got none")
    n_layers, behind = last + 1, False
    groups = {}
    for name, weight in model.named_parameters():
        block = depths[name]
        behind |= block is not None
        depth = block + 1 if block is not None else (n_layers + 1 if behind else 0)
        if weight.requires_grad:
            groups.setdefault((depth, weight.ndim >= 2), []).append(weight)
    if not groups:
        raise ValueError("model must have a parameter to train, got frozen ones only")
    return [
        {
            "params": groups[depth, matrix],
            "lr": lr * decay ** (n_layers + 1 - depth),
            "weight_decay": weight_decay if matrix else 0.0,
        }
        for depth, matrix in sorted(groups)
    ]


def _block_of(name: str) -> int | None:
    found = re.search(r"(?:^|\.)blocks\.(\d+)\.", name)
    return None if found is None else int(found[1])


def _ask_gradient(model: nn.Module, patterns: Sequence[str], *, wanted: bool) -> list[str]:
    check_module("model", model)
    weights = dict(model.named_parameters())
    chosen = matching(list(weights), patterns) if patterns else list(weights)
    for name in chosen:
        weights[name].requires_grad_(wanted)
    return chosen
