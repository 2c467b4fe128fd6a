"""What generation is given: prompts, stop conditions, a model; read, checked and padded.

Explained in: chapters/12_generation, section "One token at a time".
"""

from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tfbook._checks import check_number
from tfbook.attention import Cache

__all__ = [
    "LanguageModel",
    "Prompt",
    "Stop",
    "check_model",
    "check_room",
    "context_of",
    "device_of",
    "make_generator",
    "pad",
    "read_prompts",
    "read_stop",
    "start_state",
    "stop_count",
]

Prompt = Sequence[int] | Sequence[Sequence[int]] | Tensor
Stop = int | Sequence[int | Sequence[int]] | Callable[[list[int]], bool]


@runtime_checkable
class LanguageModel(Protocol):
    """What can be asked for the logits of the next token.

    Explained in: chapters/12_generation, section "One token at a time".
    """

    def decode(
        self, tokens: Tensor, state: Any = None, *, mask: Tensor | None = None, last: bool = False
    ) -> tuple[Tensor, Any]:
        """Read tokens (B, N) behind the state; return logits (B, N, V), or the last row's, and it.

        Args:
            tokens: ids, (B, N).
            state: what the call before returned, None at the start.
            mask: which of the tokens are none, (B, N), True = token; None for all.
            last: whether to compute the logits of the last row only, (B, 1, V).
        """
        ...


def start_state(model: object, batch: int, cache: Cache | None, default: Cache) -> Any:
    """Return the empty state to begin with, or None where the model makes its own.

    Raises:
        ValueError: if a cache is asked for and the model has no ``empty_state`` to take it.
    """
    if hasattr(model, "empty_state"):
        return model.empty_state(batch, cache=default if cache is None else cache)
    if cache is not None:
        raise ValueError(f"{type(model).__name__} has no empty_state, so it takes no cache")
    return None


def check_model(model: object) -> None:
    """Raise unless a model can be asked, and is not about to drop out what it knows.

    Raises:
        TypeError: if it has no ``decode``.
        ValueError: if it is in training mode.
    """
    if not callable(getattr(model, "decode", None)):
        raise TypeError(
            "model must have decode(tokens, state, *, mask, last), "
            f"got {type(model).__name__}, which has none"
        )
    if getattr(model, "training", False):
        raise ValueError(
            "the model is in training mode, where dropout changes every answer: call model.eval()"
        )


def context_of(model: object) -> int | None:
    """Return how many tokens the model can read, or None where there is no limit."""
    return getattr(getattr(model, "config", None), "max_len", None)


def check_room(
    model: object, prompts: Sequence[Sequence[int]], max_new_tokens: int, state: object = None
) -> int:
    """Check the model and that prompt and new tokens fit its context; return max_new_tokens.

    Raises:
        TypeError: if max_new_tokens is not an integer, or as :func:`check_model`.
        ValueError: if it is below 1, or they do not fit.
    """
    check_model(model)
    check_number("max_new_tokens", max_new_tokens, 1, whole=True)
    longest, limit = max(len(prompt) for prompt in prompts), context_of(model)
    past = getattr(state, "length", 0)
    if limit is not None and past + longest + max_new_tokens > limit:
        before = f"{past} tokens in the state, " if past else ""
        raise ValueError(
            f"the model's context holds {limit} tokens, got {before}a prompt of {longest} and "
            f"max_new_tokens = {max_new_tokens}: {past + longest + max_new_tokens} together"
        )
    return max_new_tokens


def make_generator(seed: int | torch.Generator | None) -> torch.Generator | None:
    """Return a generator that begins at a seed, or the one given, or None for PyTorch's own.

    Raises:
        TypeError: if the seed is neither an integer nor a generator.
        ValueError: if it is negative.
    """
    if seed is None or isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an integer or a torch.Generator, got {type(seed).__name__}")
    check_number("seed", seed, 0, whole=True)
    return torch.Generator().manual_seed(seed)


def read_prompts(prompt: object, *, name: str = "prompt", shortest: int = 1) -> list[list[int]]:
    """Return ids as a list of lists, whether they came as one, as several or as a tensor.

    Raises:
        TypeError: if they are no integers.
        ValueError: if there is none, or a sequence is shorter than ``shortest``.
    """
    if isinstance(prompt, Tensor):
        if prompt.is_floating_point() or prompt.dtype == torch.bool or prompt.ndim not in (1, 2):
            raise TypeError(
                f"{name} must hold integer ids of shape (N,) or (B, N), "
                f"got {prompt.dtype} of shape {tuple(prompt.shape)}"
            )
        prompt = prompt.tolist()
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        raise TypeError(
            f"{name} must be token ids, got {type(prompt).__name__}; a tokenizer makes ids of text"
        )
    if all(_is_id(item) for item in prompt):
        prompt = [prompt]
    for number, sequence in enumerate(prompt):
        if isinstance(sequence, Tensor):
            sequence = sequence.tolist()
        if not isinstance(sequence, list | tuple) or not all(_is_id(i) for i in sequence):
            raise TypeError(f"{name} must hold integer ids, sequence {number} does not")
        if len(sequence) < shortest:
            raise ValueError(
                f"{name} {number} has {len(sequence)} tokens and needs at least {shortest}; "
                "where there is no text yet, begin with the model's start token"
            )
    return [[int(i) for i in sequence] for sequence in prompt]


def read_stop(stop: Stop) -> Callable[[list[int]], bool]:
    """Return a function that says whether a sequence ends with its last new id.

    Raises:
        TypeError: if a stop is neither an id, nor a sequence of ids, nor a function.
        ValueError: if a sequence is empty.
    """
    if callable(stop):
        return lambda new: bool(stop(new))
    if not _is_id(stop):
        _check_stop(stop)
    endings = []
    for item in [stop] if _is_id(stop) else stop:
        ending = [item] if _is_id(item) else item
        _check_stop(ending)
        if not all(_is_id(i) for i in ending):
            raise TypeError(f"stop must hold ids or sequences of ids, got {item!r}")
        if not len(ending):
            raise ValueError("stop holds an empty sequence, which every text ends with")
        endings.append([int(i) for i in ending])
    return lambda new: any(new[-len(ending) :] == ending for ending in endings)


def stop_count(stop: Stop) -> int:
    """Return with how many different tokens a sequence may end, at least 1."""
    return 1 if callable(stop) or _is_id(stop) else max(len(stop), 1)


def pad(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, left: bool
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"] | None]:
    """Return ids (B, N) filled up to the longest, and which are tokens, None where all are."""
    longest = max(len(sequence) for sequence in sequences)
    short = [longest - len(sequence) for sequence in sequences]
    fill = [[pad_id] * size for size in short]
    pairs = zip(fill, map(list, sequences), strict=True)
    ids = torch.tensor([a + b if left else b + a for a, b in pairs], device=device)
    if not any(short):
        return ids, None
    place, missing = torch.arange(longest), torch.tensor(short)[:, None]
    mask = place >= missing if left else place < longest - missing
    return ids, mask.to(device)


def _check_stop(value: object) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence | Set):
        raise TypeError(f"stop must hold ids or sequences of ids, got {value!r}")


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def device_of(model: object) -> torch.device:
    """Return where the model's weights lie; the CPU where it has none."""
    parameters = getattr(model, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    return torch.device("cpu") if first is None else first.device
