"""Memory of training: what a step holds, and how computing twice makes room.

The backward pass needs what the forward pass computed. Checkpointing keeps only the inputs of some
segments and computes the inside of a segment again when its turn comes: of L blocks in segments of
k, L / k inputs are kept and the inside of one segment at a time, least at k = √L, for one more
forward pass.

Explained in: chapters/17_hardware, section "Memory of a training step".
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tfbook._checks import check_callable, check_choice, check_float, check_list, check_number
from tfbook.models import Part, TransformerConfig

__all__ = [
    "OPTIMIZER_BYTES",
    "PRECISIONS",
    "TrainingMemory",
    "best_segment",
    "checkpointed_bytes",
    "largest_batch",
    "recompute",
    "run_checkpointed",
    "saved_bytes",
    "training_memory",
]

Block = Callable[[Tensor], Tensor | tuple]
#: Bytes that an optimizer holds for each parameter, in float32.
OPTIMIZER_BYTES = {"sgd": 0, "momentum": 4, "adamw": 8}
LOSS_BYTES = 4  # of a log-probability: cross-entropy is computed in float32


class _Precision(NamedTuple):
    """Bytes of a number in weights, gradients, activations, and of a second copy of the weights."""

    weights: int
    gradients: int
    activations: int
    master: int


#: "mixed": 16 bits wherever it is computed, and a copy of the weights in float32 that is updated.
PRECISIONS = {"float32": _Precision(4, 4, 4, 0), "mixed": _Precision(2, 2, 2, 4)}


class _Recompute(torch.autograd.Function):
    """Keep x alone; compute the rest again for the backward pass."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function, ctx.random = function, torch.get_rng_state()
        ctx.save_for_backward(x)
        return function(x)  # no graph is made inside of a Function

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        again = x.detach().requires_grad_(x.requires_grad)
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.random)  # so that dropout drops the same
            y = ctx.function(again)
        torch.autograd.backward(y, gradient)  # reaches the weights too
        return None, again.grad


def recompute(function: Callable[[Tensor], Tensor], x: Float[Tensor, "*S"]) -> Tensor:
    """Return function(x), keeping nothing but x for the backward pass: checkpointing, to read.

    The backward pass calls the function a second time, with the same random numbers, and goes back
    through that. ``torch.utils.checkpoint`` does the same with fewer restrictions: here the result
    is one tensor, x has a gradient, and gradients come by ``backward()`` alone.

    Args:
        function: of one tensor.
        x: any shape, with ``requires_grad``.

    Raises:
        TypeError: if function is none, or x not floating point.
        ValueError: if x has no gradient, for then nothing would be reached.

    Cost: a second forward pass.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> recompute(torch.square, x).sum().backward()
        >>> x.grad
        tensor([2., 4.])

    Source: [chen2016training]
    Explained in: chapters/17_hardware, section "Memory of a training step".
    """
    check_callable("function", function)
    check_float("x", x)
    if not x.requires_grad:
        raise ValueError("x must have requires_grad=True, or the backward pass ends before it")
    return _Recompute.apply(function, x)


def run_checkpointed(
    blocks: Iterable[Block], x: Float[Tensor, "*S"], *, every: int | None = None
) -> Float[Tensor, "*S"]:
    """Send x through blocks one after the other, keeping the input of every k-th one only.

    Values and gradients are those of the plain loop, dropout too.

    Args:
        blocks: functions or modules of one tensor; of a tuple that one returns, such as a block's
            with its state, the first is taken.
        x: what enters the first.
        every: k, blocks of a segment; :func:`best_segment` when omitted.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no block, or ``every`` is below 1.

    Cost: a second forward pass through the blocks, during the backward pass.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> saved_bytes(lambda: run_checkpointed([torch.sin] * 9, x))  # three inputs of 8 bytes
        24

    Source: [chen2016training]
    Explained in: chapters/17_hardware, section "Memory of a training step".
    """
    check_list("blocks", blocks)
    blocks = list(blocks)
    for i, block in enumerate(blocks):
        check_callable(f"blocks[{i}]", block)
    check_float("x", x)
    if not blocks:
        raise ValueError("blocks must hold at least one block, got none")
    if every is None:
        every = best_segment(len(blocks))
    check_number("every", every, 1, whole=True)
    for start in range(0, len(blocks), every):
        segment = blocks[start : start + every]

        def run(x: Tensor, segment: Sequence[Block] = segment) -> Tensor:
            for block in segment:
                y = block(x)
                x = y[0] if isinstance(y, tuple) else y
            return x

        x = checkpoint(run, x, use_reentrant=False)
    return x


def best_segment(n_layers: int) -> int:
    """Return the k at which ⌈L / k⌉ + k is least: about √L blocks in a segment.

    That counts a block's inside as much as an input. Where it is c times as large, ⌈L / k⌉ + c k
    is least at √(L / c).

    Raises:
        TypeError: if it is no integer.
        ValueError: if it is below 1 or above a million.

    Example:
        >>> [best_segment(n) for n in (1, 12, 16, 30)]
        [1, 3, 4, 5]

    Source: [chen2016training]
    Explained in: chapters/17_hardware, section "Memory of a training step".
    """
    check_number("n_layers", n_layers, 1, 10**6, whole=True)
    root = int(n_layers**0.5)
    near = range(max(1, root - 1), root + 3)
    return min(near, key=lambda k: -(-n_layers // k) + k)


def saved_bytes(run: Callable[[], object], *, besides: Iterable[Tensor] = ()) -> int:
    """Measure what a forward pass hands to autograd to keep, each storage once.

    Args:
        run: computes something; what it returns is dropped after counting.
        besides: tensors that are there anyway, such as the parameters.

    Raises:
        TypeError: if run is no function, or besides holds something else than tensors.

    Example:
        >>> x = torch.ones(5, requires_grad=True)
        >>> saved_bytes(lambda: x.exp().sin())  # what exp returned serves both
        20

    Explained in: chapters/17_hardware, section "Memory of a training step".
    """
    check_callable("run", run)
    check_list("besides", besides, sized=False)
    known = set()
    for tensor in besides:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"besides must hold tensors, got {type(tensor).__name__}")
        known.add(tensor.untyped_storage().data_ptr())
    kept = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        result = run()
    total = sum(each.nbytes() for pointer, each in kept.items() if pointer not in known)
    del result
    return total


def checkpointed_bytes(
    config: TransformerConfig,
    n: int | None = None,
    batch: int = 1,
    *,
    every: int | None = None,
    bytes_per_number: int = 4,
) -> int:
    """Count the bytes that training holds at most for the backward pass, with checkpoints.

    The inputs of all segments of k blocks, the inside of the segment that holds most, and what the
    parts outside of the blocks keep. The account of the parts is the config's own.

    Args:
        config: of an encoder or a decoder.
        n: tokens of a sequence; ``max_len`` when omitted.
        batch: sequences.
        every: k; None keeps everything, which is ``config.saved_bytes``.
        bytes_per_number: 4 for single precision.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or an encoder-decoder.

    Example:
        >>> from tfbook.models import preset
        >>> config = preset("gpt2")
        >>> [round(checkpointed_bytes(config, 1024, every=k) / 2**20) for k in (None, 1, 3, 12)]
        [2397, 241, 615, 2397]

    Source: [chen2016training]
    Explained in: chapters/17_hardware, section "Memory of a training step".
    """
    _check_config(config)
    if every is None:
        return config.saved_bytes(n, batch, bytes_per_number=bytes_per_number)
    check_number("every", every, 1, whole=True)
    if config.kind == "encoder-decoder":
        raise ValueError("config must be an encoder or a decoder, got kind 'encoder-decoder'")
    blocks, outside = [0] * config.n_layers, 0
    for part in config.parts(n, batch, bytes_per_number=bytes_per_number):
        if (number := _block_of(part)) is None:
            outside += part.saved
        else:
            blocks[number] += part.saved
    inputs = _rows(config, n, batch) * config.d_model * bytes_per_number
    segments = [sum(blocks[i : i + every]) for i in range(0, len(blocks), every)]
    # The input of the segment that is inside is kept already, by itself.
    return outside + (len(segments) - 1) * inputs + max(segments)


class TrainingMemory(NamedTuple):
    """What a training step holds, in bytes.

    Attributes:
        weights: of the model.
        gradients: one for each parameter.
        optimizer: its means, and with mixed precision the weights in float32.
        activations: what the model keeps for the backward pass.
        logits: what the loss keeps: a log-probability of each word for each token, in float32.

    Explained in: chapters/17_hardware, section "Memory of a training step".
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(self)


def training_memory(
    config: TransformerConfig,
    n: int | None = None,
    batch: int = 1,
    *,
    optimizer: str = "adamw",
    precision: str = "float32",
    every: int | None = None,
) -> TrainingMemory:
    """Count what a training step holds, by category.

    With N parameters: float32 takes 4 N for weights and 4 N for gradients; mixed precision 2 N and
    2 N, and 4 N for the copy that is updated. The optimizer adds 8 N (AdamW), 4 N (momentum) or
    nothing (SGD). Activations are what the config counts, or less with checkpoints. The loss keeps
    4 bytes for each token and word, in either precision, if the model has a head. What a product
    needs while it runs, such as the gradient of the logits, and what the allocator leaves unused,
    comes on top.

    Args:
        config: of the model.
        n: tokens of a sequence; ``max_len`` when omitted.
        batch: sequences.
        optimizer: "sgd", "momentum" or "adamw".
        precision: "float32" or "mixed".
        every: blocks of a segment where activations are checkpointed, see
            :func:`checkpointed_bytes`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range or an unknown name.

    Example:
        >>> from tfbook.models import preset
        >>> memory = training_memory(preset("gpt2"), 1024, precision="mixed")
        >>> [round(part / 2**20) for part in memory], round(memory.total / 2**20)
        ([237, 237, 1424, 1205, 196], 3300)

    Source: [micikevicius2018mixed]
    Explained in: chapters/17_hardware, section "Memory of a training step".
    """
    _check_config(config)
    check_choice("optimizer", optimizer, OPTIMIZER_BYTES)
    check_choice("precision", precision, PRECISIONS)
    each, count = PRECISIONS[precision], config.count_parameters()
    held = checkpointed_bytes(config, n, batch, every=every, bytes_per_number=each.activations)
    kept = OPTIMIZER_BYTES[optimizer] + each.master
    logits = sum(math.prod(p.shape) for p in config.parts(n, batch) if p.name == "head")
    state = (each.weights * count, each.gradients * count, kept * count)
    return TrainingMemory(*state, held, LOSS_BYTES * logits)


def largest_batch(
    config: TransformerConfig,
    memory: float,
    n: int | None = None,
    *,
    optimizer: str = "adamw",
    precision: str = "float32",
    every: int | None = None,
) -> int:
    """Return how many sequences a training step can hold in so many bytes, 0 if not even one.

    Args:
        config: of the model.
        memory: bytes, such as that of a :class:`tfbook.costs.Machine`.
        n: tokens of a sequence; ``max_len`` when omitted.
        optimizer: see :func:`training_memory`.
        precision: see :func:`training_memory`.
        every: see :func:`training_memory`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range or an unknown name.

    Example:
        >>> from tfbook.costs import MACHINES
        >>> from tfbook.models import preset
        >>> room, config = MACHINES["A100 80GB SXM"].memory, preset("gpt2")
        >>> [largest_batch(config, room, 1024, precision="mixed", every=k) for k in (None, 1)]
        [53, 235]

    Explained in: chapters/17_hardware, section "Memory of a training step".
    """
    check_number("memory", memory, above=0)

    def fits(batch: int) -> bool:
        choices = {"optimizer": optimizer, "precision": precision, "every": every}
        return training_memory(config, n, batch, **choices).total <= memory

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _check_config(config: object) -> None:
    if not isinstance(config, TransformerConfig):
        raise TypeError(f"config must be a TransformerConfig, got {type(config).__name__}")


def _block_of(part: Part) -> int | None:
    """Return the number of the block that a part is of."""
    _, found, rest = part.name.partition(".blocks.")
    return int(rest.partition(".")[0]) if found else None


def _rows(config: TransformerConfig, n: int | None, batch: int) -> int:
    """Return how many rows enter a block: those of the last part inside of the first block."""
    first = [part for part in config.parts(n, batch) if _block_of(part) == 0]
    return first[-1].shape[0] * first[-1].shape[1]
