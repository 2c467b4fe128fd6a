"""What generation is given: prompts, stop conditions, a model; read, checked and padded.

Explained in: chapters/12_generation, section "One token at a time".
"""

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tfbook._checks import check_number, check_token_mask
from tfbook.attention import Cache, SlidingCache

__all__ = [
    "Asked",
    "LanguageModel",
    "Prompt",
    "Stop",
    "TextModel",
    "check_model",
    "check_room",
    "context_of",
    "device_of",
    "forgets",
    "make_generator",
    "make_generators",
    "pad",
    "read_asked",
    "read_prompts",
    "read_stop",
    "start_state",
    "stop_count",
]

Prompt = Sequence[int] | Sequence[Sequence[int]] | Tensor
Stop = int | Sequence[int | Sequence[int]] | Callable[[list[int]], bool]
MANY = 256  # tokens that are added where nobody says how many


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


@runtime_checkable
class TextModel(Protocol):
    """A language model with its tokenizer, such as :class:`tfbook.pretrained.Pretrained`.

    Attributes:
        name: what it is called.
        model: the model alone.
        eos_ids: tokens that end a text.
        pad_id: what fills short sequences up.

    Explained in: chapters/12_generation, section "One token at a time".
    """

    name: str
    model: LanguageModel
    eos_ids: tuple[int, ...]
    pad_id: int

    def encode(self, text: str) -> Tensor:
        """Return the ids of a text, (1, N)."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
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
        TypeError: if it has no ``decode``, or is a :class:`TextModel`.
        ValueError: if it is in training mode.
    """
    if isinstance(model, TextModel):
        raise TypeError(
            f"model must be the model alone, got a {type(model).__name__}: give its .model"
        )
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
    model: object,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | None,
    state: object = None,
    *,
    endless: bool = False,
) -> int:
    """Check the model and that prompt and new tokens fit its context; return how many to add.

    Args:
        model: see :class:`LanguageModel`.
        prompts: ids of each sequence.
        max_new_tokens: how many are asked for; None for 256, or as many as there is room for.
        state: what was read before them.
        endless: whether old tokens make room for new ones, so that only the prompt must fit.

    Raises:
        TypeError: if max_new_tokens is not an integer, or as :func:`check_model`.
        ValueError: if it is below 1, or they do not fit.
    """
    check_model(model)
    longest, limit = max(len(prompt) for prompt in prompts), context_of(model)
    past = getattr(state, "reach", getattr(state, "length", 0))
    free = MANY if limit is None or endless else limit - past - longest
    if max_new_tokens is None:
        max_new_tokens = max(1, min(MANY, free))
    check_number("max_new_tokens", max_new_tokens, 1, whole=True)
    wanted = longest if endless else past + longest + max_new_tokens
    if limit is not None and wanted > limit:
        before = f"{past} tokens in the state, " if past else ""
        raise ValueError(
            f"the model's context holds {limit} tokens, got {before}a prompt of {longest} and "
            f"max_new_tokens = {max_new_tokens}: {past + longest + max_new_tokens} together; "
            "generate and stream go on with crop=True"
        )
    return max_new_tokens


def forgets(model: object, cache: Cache | None) -> bool:
    """Return whether with this cache the model never sees further than its context.

    True for ``SlidingCache(window)`` with a window inside of the context and no sinks, where order
    is told by distance alone (rotary positions, biases): then a text may be of any length.
    """
    added = getattr(getattr(getattr(model, "config", None), "embedding", None), "position", None)
    sliding = isinstance(cache, SlidingCache) and not cache.sinks and added is None
    return sliding and cache.window <= (context_of(model) or cache.window)


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


def make_generators(
    seed: int | Sequence[int] | torch.Generator | None, n: int
) -> list[torch.Generator]:
    """Return a generator for each of n sequences, so that what one draws depends on no other.

    Sequence i begins at seed + i, or at seed i of a list. Where a generator is given, or none, it
    draws the first seed.

    Raises:
        TypeError: if a seed is no integer, and not a generator either.
        ValueError: if it is negative, or a list has another number of seeds.
    """
    if isinstance(seed, (list, tuple)):
        for each in seed:
            check_number("seed", each, 0, whole=True)
        if n and len(seed) != n:
            raise ValueError(f"seed must be one, or one for each of {n} sequences, got {len(seed)}")
        return [torch.Generator().manual_seed(each) for each in seed]
    source = make_generator(seed)
    first = seed
    if n and not isinstance(seed, int):
        first = int(torch.randint(2**62, (), generator=source))
    return [torch.Generator().manual_seed((first + i) % 2**64) for i in range(n)]


class Asked(NamedTuple):
    """What generation was asked for, read and checked.

    Attributes:
        model: the model alone.
        prompts: ids of each sequence, without padding.
        stop: when a sequence ends.
        pad_id: what fills up short sequences.

    Explained in: chapters/12_generation, section "One token at a time".
    """

    model: LanguageModel
    prompts: list[list[int]]
    stop: Stop
    pad_id: int


def read_asked(
    model: LanguageModel | TextModel,
    prompt: Prompt | str | Sequence[str],
    mask: Bool[Tensor, "B N"] | None,
    stop: Stop | None,
    pad_id: int | None,
) -> Asked:
    """Read a prompt for a model, or for a model with its tokenizer, which knows more.

    A :class:`TextModel` turns texts into ids, and says what ends a text and what
    fills up short ones. Ids that are filled up come with their mask, which takes the padding off;
    where the padding is known and no mask is there, they are refused.

    Raises:
        TypeError: for a prompt or a mask of a wrong type.
        ValueError: for an empty prompt, padding without a mask, or a mask with holes.
    """
    own = model if isinstance(model, TextModel) else None
    texts = [prompt] if isinstance(prompt, str) else prompt
    if own is not None and _are_texts(texts):
        if mask is not None:
            raise ValueError("mask is for ids; texts need none")
        if hasattr(own.model, "remember"):
            raise ValueError(
                f"{own.name} reads one text and writes another: give "
                "state=model.remember(source) and ids to begin with"
            )
        prompt = [own.encode(text)[0].tolist() for text in texts]
    if own is not None:
        stop = own.eos_ids if stop is None else stop
        pad_id = own.pad_id if pad_id is None else pad_id
    if pad_id is not None:
        check_number("pad_id", pad_id, 0, whole=True)
    prompts = read_prompts(prompt, mask=mask, pad_id=pad_id)
    return Asked(model if own is None else own.model, prompts, stop or (), pad_id or 0)


def _are_texts(prompt: object) -> bool:
    return isinstance(prompt, list | tuple) and all(isinstance(text, str) for text in prompt)


def read_prompts(
    prompt: object,
    *,
    name: str = "prompt",
    shortest: int = 1,
    mask: Tensor | None = None,
    pad_id: int | None = None,
) -> list[list[int]]:
    """Return ids as a list of lists, whether they came as one, as several or as a tensor.

    Args:
        prompt: ids.
        name: of the argument, for messages.
        shortest: how many each must have.
        mask: for ids (B, N), True = token: what is none is left out.
        pad_id: the id of padding, where it is known.

    Raises:
        TypeError: if they are no integers, or the mask is not boolean.
        ValueError: if there is none, or a sequence is shorter than ``shortest``; for a mask that
            does not fit, or padding without one.
    """
    if isinstance(prompt, tuple) and any(isinstance(part, Tensor) for part in prompt):
        raise TypeError(
            f"{name} must hold integer ids, got a tuple of {len(prompt)}; "
            "ids and mask are given apart: ids, mask=mask"
        )
    if isinstance(prompt, Tensor):
        if prompt.is_floating_point() or prompt.dtype == torch.bool or prompt.ndim not in (1, 2):
            raise TypeError(
                f"{name} must hold integer ids of shape (N,) or (B, N), "
                f"got {prompt.dtype} of shape {tuple(prompt.shape)}"
            )
        prompt = prompt.tolist() if mask is None else _without_padding(name, prompt, mask)
        if mask is None and pad_id is not None:
            _check_unpadded(name, prompt, pad_id)
    elif mask is not None:
        raise ValueError(f"mask is for ids in a tensor (B, N); lists hold no padding, got {name}")
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


def _without_padding(name: str, ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Return the tokens of each row; padding may stand before or behind them."""
    if ids.ndim == 1:
        raise ValueError(f"mask is for {name} of shape (B, N), got {tuple(ids.shape)}")
    check_token_mask(mask, ids.shape, "(B, N)")
    begun = mask.cummax(dim=1).values  # (B, N): at the first token or behind it
    left = mask.flip(1).cummax(dim=1).values.flip(1)  # at the last token or before it
    if bool((begun & left & ~mask).any()):
        raise ValueError("mask must be True from the first token of a row to its last")
    return [row[kept].tolist() for row, kept in zip(ids, mask, strict=True)]


def _check_unpadded(name: str, rows: list, pad_id: int) -> None:
    """Raise ValueError where one of several rows begins or ends with padding."""
    for number, row in enumerate(rows if rows and isinstance(rows[0], list) else ()):
        if len(rows) > 1 and row and pad_id in (row[0], row[-1]):
            raise ValueError(
                f"row {number} of {name} begins or ends with {pad_id}, which is padding and would "
                "be read as text: give mask=, or a list of ids for each sequence"
            )


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
