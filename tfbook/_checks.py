"""Checks for public entries: one clear message for each kind of bad input.

Every message names the argument, says what was given and what was wanted. The checks read shapes,
dtypes and devices only, never values, so they cost a few microseconds and work under
``torch.compile`` and ``torch.vmap``.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


def check_tensor(name: str, value: object, *, min_dims: int = 0) -> None:
    """Raise unless ``value`` is a tensor of at least ``min_dims`` dimensions.

    Raises:
        TypeError: if it is not a tensor.
        ValueError: if it has too few dimensions.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.ndim < min_dims:
        raise ValueError(
            f"{name} needs at least {min_dims} dimensions, got shape {tuple(value.shape)}"
        )


def check_float(name: str, value: object, *, min_dims: int = 0) -> None:
    """Raise unless ``value`` is a real floating-point tensor of at least ``min_dims`` dimensions.

    Raises:
        TypeError: if it is not a tensor or its dtype is not floating point.
        ValueError: if it has too few dimensions.
    """
    if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= min_dims:
        return  # the usual case, and a fast one
    check_tensor(name, value, min_dims=min_dims)
    if not value.is_floating_point():
        raise TypeError(
            f"{name} must have a floating-point dtype, got {value.dtype}; "
            f"convert it with {name}.float()"
        )


def check_bool(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")


def check_scale(name: str, value: object) -> None:
    """Raise unless ``value`` is a positive number that float32 can multiply and divide by.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is not positive and finite, or products with it would overflow.
    """
    check_number(name, value, above=0)
    check_number(name, value, 1e-18, 1e18)


def check_list(name: str, value: object, *, sized: bool = True) -> None:
    """Raise TypeError unless ``value`` is a list or the like; a string and a mapping are none.

    With ``sized=False`` it may be anything to go through once, such as a generator.
    """
    fits = isinstance(value, Iterable) and (isinstance(value, Sized) or not sized)
    if isinstance(value, Tensor):
        fits = value.ndim > 0
    if not fits or isinstance(value, str | bytes | Mapping):
        raise TypeError(f"{name} must be a list, got {_kind(value)}")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of the known names."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_generator(value: object) -> None:
    """Raise TypeError unless ``value``, the argument ``generator``, is one or None."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(value).__name__}")


def check_module(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is a module of PyTorch."""
    if not isinstance(value, nn.Module):
        raise TypeError(f"{name} must be a module, got {type(value).__name__}")


def check_callable(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {type(value).__name__}")


def check_dtype(value: object) -> None:
    """Raise TypeError unless ``value``, the argument ``dtype``, is a floating-point one or None."""
    if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise TypeError(f"dtype must be floating point, got {value!r}")


def check_device(value: object) -> None:
    """Raise unless ``value``, the argument ``device``, names a device or is None.

    Raises:
        TypeError: if it is no name.
        ValueError: if PyTorch knows none of that name.
    """
    if value is None or isinstance(value, torch.device):
        return  # the usual case, and a fast one
    if not isinstance(value, str):
        raise TypeError(f"device must be a torch.device or its name, got {value!r}")
    try:
        torch.device(value)
    except RuntimeError:
        raise ValueError(f"device must be one that PyTorch knows, got {value!r}") from None


def _kind(value: object) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else (type(value).__name__)
    )


def check_number(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
    finite: bool = True,
) -> None:
    """Raise unless ``value`` is a number from ``low`` to ``high``, an integer if ``whole``.

    ``above`` and ``below`` are bounds that are themselves left out. It must be finite, unless
    that is not asked for.

    Raises:
        TypeError: if it is not a Python number, or not an integer where one is wanted.
        ValueError: if it is out of range, NaN, or not finite.
    """
    kinds, wanted = ((int, torch.SymInt), "an integer") if whole else ((int, float), "a number")
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    fits = low <= value <= high and (whole or not finite or math.isfinite(value))
    fits = fits and (above is None or value > above) and (below is None or value < below)
    if not fits:
        bounds = _bounds(low, high, above, below, finite=finite and not whole)
        raise ValueError(f"{name} must be {bounds}, got {value}")


def _bounds(
    low: float, high: float, above: float | None, below: float | None, *, finite: bool
) -> str:
    """Return a range in words, such as "from 0 up to below 1"."""
    open_above = high == math.inf and below is None
    first = f"above {above}" if above is not None else f"at least {low}" * (low > -math.inf)
    last = f"below {below}" if below is not None else f"at most {high}" * (high < math.inf)
    if above is None and first and last:
        return f"from {low} to {high}" if below is None else f"from {low} up to {last}"
    words = [word for word in ("finite" * (finite and open_above), first, last) if word]
    return " and ".join(words)


def check_even(name: str, value: object) -> None:
    """Raise unless ``value`` is an even integer of at least 2.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is odd or below 2.
    """
    check_number(name, value, 2, whole=True)
    if value % 2:
        raise ValueError(f"{name} must be even, its numbers are taken in pairs, got {value}")


def check_positions(
    name: str,
    value: object,
    *,
    shape: Sequence[int | None] | None = None,
    device: torch.device | None = None,
    whole: bool = True,
) -> None:
    """Raise unless ``value`` holds positions, as integers or with ``whole=False`` as real numbers.

    With ``shape``, that of the tokens (B, ..., N), they must have shape (N,) or (B, N); None for N
    leaves the length open.

    Raises:
        TypeError: if it is not a tensor of such numbers.
        ValueError: if its shape does not fit, or it lies on another device.
    """
    check_tensor(name, value)
    if value.dtype == torch.bool or value.is_complex() or (whole and value.is_floating_point()):
        wanted = "integers" if whole else "integers or real numbers"
        raise TypeError(f"{name} must be {wanted}, got {value.dtype}")
    if device is not None and value.device != device:
        raise ValueError(
            f"{name} must be on the device of the tokens, {device}, got {value.device}"
        )
    if shape is None:
        return
    *batch, n = shape
    long_enough = value.ndim > 0 and n in (None, value.shape[-1])
    fits = value.ndim == 1 or (value.ndim == 2 and batch and value.shape[0] in (1, batch[0]))
    if not (long_enough and fits):
        length = "N" if n is None else n
        each = f" or (B, N) = ({batch[0]}, {length})" if batch else ""
        raise ValueError(
            f"{name} must have shape (N,) = ({length},){each}, got {tuple(value.shape)}"
        )


def check_ids(name: str, value: object, below: int | None = None) -> None:
    """Raise unless ``value`` holds numbers of tokens, integers (B, N), none of them missing.

    With ``below`` they must lie in 0 … below − 1. This looks at values, which would make a GPU
    wait and cannot be done in a compiled graph; there the lookup itself refuses.

    Raises:
        TypeError: if it is not a tensor of integers.
        ValueError: if it is empty, has another shape, or a number is out of range.
    """
    check_tensor(name, value)
    if value.dtype == torch.bool or value.is_floating_point() or value.is_complex():
        raise TypeError(f"{name} must be integers, got {value.dtype}")
    if value.ndim != 2:
        hint = f"; for a single sequence pass {name}[None]" if value.ndim == 1 else ""
        raise ValueError(f"{name} must have shape (B, N), got {tuple(value.shape)}{hint}")
    if 0 in value.shape:
        raise ValueError(f"{name} must not be empty, got shape {tuple(value.shape)}")
    if below is None or value.device.type != "cpu" or torch.compiler.is_compiling():
        return
    lowest, highest = (int(end) for end in value.aminmax())
    if lowest < 0 or highest >= below:
        raise ValueError(f"{name} must be from 0 to {below - 1}, got {lowest} to {highest}")


def check_window(window: object, causal: bool) -> None:
    """Raise unless ``window`` is None, or an integer of at least 1 and the attention causal.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below 1, or the attention sees the future.
    """
    if window is None:
        return
    check_number("window", window, 1, whole=True)
    if not causal:
        raise ValueError("window counts keys back from the query, so it needs causal=True")


def chosen_names(name: str, value: object, known: Sequence[str]) -> frozenset[str]:
    """Return the chosen ones of the known names: all for True, none for False.

    Raises:
        ValueError: if ``value`` is neither a boolean nor a collection of known names.
    """
    if isinstance(value, bool):
        return frozenset(known if value else ())
    fits = isinstance(value, Collection) and not isinstance(value, str)
    if not fits or not all(each in known for each in value):
        raise ValueError(f"{name} must be True, False or names out of {known}, got {value!r}")
    return frozenset(value)


def head_sizes(
    d_model: object, n_heads: object, n_kv_heads: object, d_head: object, d_value: object
) -> tuple[int, int, int]:
    """Return n_kv_heads, d_head and d_value of multi-head attention, none of them open.

    None stands for the usual ones: n_heads, d_model / n_heads and d_head.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, or one does not divide another that it must.
    """
    check_number("d_model", d_model, 1, whole=True)
    check_number("n_heads", n_heads, 1, whole=True)
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    check_number("n_kv_heads", n_kv_heads, 1, whole=True)
    if n_heads % n_kv_heads:
        raise ValueError(f"n_kv_heads must divide n_heads, got {n_kv_heads} and {n_heads}")
    if d_head is None and d_model % n_heads:
        raise ValueError(
            f"n_heads must divide d_model, got {n_heads} and {d_model}; "
            "or choose the size of a head with d_head="
        )
    d_head = d_model // n_heads if d_head is None else d_head
    d_value = d_head if d_value is None else d_value
    check_number("d_head", d_head, 1, whole=True)
    check_number("d_value", d_value, 1, whole=True)
    return n_kv_heads, d_head, d_value


def check_head_mask(head_mask: object, n_heads: int) -> None:
    """Raise unless ``head_mask`` holds a factor or a boolean for each head.

    Raises:
        TypeError: if it is not such a tensor.
        ValueError: if it has another shape.
    """
    check_tensor("head_mask", head_mask)
    if not (head_mask.is_floating_point() or head_mask.dtype == torch.bool):
        raise TypeError(f"head_mask must be floating point or boolean, got {head_mask.dtype}")
    check_shape("head_mask", head_mask, (n_heads,), "(H,)")


def memory_sizes(d_memory: object) -> tuple[int, int]:
    """Return the sizes of a memory's rows, for keys and for values.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, or there are not two.
    """
    sizes = d_memory if isinstance(d_memory, tuple) else (d_memory, d_memory)
    if len(sizes) != 2:
        raise ValueError(f"d_memory must be a size or a pair of sizes, got {d_memory}")
    for size in sizes:
        check_number("d_memory", size, 1, whole=True)
    return sizes


def check_shape(name: str, value: Tensor, wanted: Sequence[int], letters: str) -> None:
    """Raise ValueError unless ``value`` has exactly the shape ``wanted``, described by letters."""
    if tuple(value.shape) != tuple(wanted):
        raise ValueError(
            f"{name} must have shape {letters} = {tuple(wanted)}, got {tuple(value.shape)}"
        )


def check_rows(name: str, value: object, weight: Tensor) -> None:
    """Raise unless ``value`` is a batch of sequences, (B, N, D), that a weight (…, D) can take.

    Raises:
        TypeError: if it is not a floating-point tensor of the weight's dtype.
        ValueError: if it has another shape, or lies on another device.
    """
    check_float(name, value)
    if value.ndim != 3 or value.shape[-1] != weight.shape[-1]:
        hint = f"; for a single sequence pass {name}[None]" if value.ndim == 2 else ""
        raise ValueError(
            f"{name} must have shape (B, N, {weight.shape[-1]}), got {tuple(value.shape)}{hint}"
        )
    check_same(**{name: value, "the weights": weight})


def check_same(**tensors: Tensor) -> None:
    """Raise unless all named tensors share one device and one dtype.

    Under autocast different floating dtypes may meet, as they do in PyTorch's own operations.

    Raises:
        TypeError: if two dtypes differ.
        ValueError: if two devices differ.
    """
    (first, one), *rest = tensors.items()
    if all([other.device == one.device and other.dtype == one.dtype for _, other in rest]):
        return  # the usual case, and a fast one
    for name, other in rest:
        if other.device != one.device:
            raise ValueError(
                f"{first} and {name} must be on the same device, "
                f"got {one.device} and {other.device}"
            )
        if other.dtype != one.dtype and not torch.is_autocast_enabled(one.device.type):
            raise TypeError(
                f"{first} and {name} must have the same dtype, got {one.dtype} and {other.dtype}"
            )


def broadcast_batch(**shapes: Sequence[int]) -> Shape:
    """Return the broadcast of the named leading dimensions.

    Raises:
        ValueError: if they do not broadcast.
    """
    longest = max([0, *[len(shape) for shape in shapes.values()]])
    padded = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes.values()]
    batch = []
    for sizes in zip(*padded, strict=True):
        size = 1
        for each in sizes:
            if each != 1 and size not in (1, each):
                listing = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
                raise ValueError(f"leading dimensions do not broadcast: {listing}")
            size = size if each == 1 else each
        batch.append(size)
    return tuple(batch)


def scores_shape(q: Tensor, k: Tensor, v: Tensor) -> Shape:
    """Return the shape of the scores of q (..., n, d_q) and k (..., m, d_k): (..., n, m).

    Raises:
        ValueError: if the leading dimensions do not broadcast.
    """
    batch = broadcast_batch(q=q.shape[:-2], k=k.shape[:-2], v=v.shape[:-2])
    return (*batch, q.shape[-2], k.shape[-2])


def check_mask(
    mask: object, scores_shape: Sequence[int], *, device: torch.device | None = None
) -> None:
    """Raise unless ``mask`` is boolean and broadcasts to the scores, (..., n, m).

    Raises:
        TypeError: if it is not a boolean tensor.
        ValueError: if its shape does not broadcast, or it lies on another device.
    """
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean with True = allowed, got {mask.dtype}; turn an additive mask "
            "into a boolean one with tfbook.attention.to_boolean, or pass numbers as bias="
        )
    _check_broadcasts("mask", mask, tuple(scores_shape), device)


def check_token_mask(mask: object, shape: Sequence[int], letters: str = "(B, N)") -> None:
    """Raise unless ``mask`` is boolean, True = token, and has the shape of the tokens.

    Raises:
        TypeError: if it is not a boolean tensor.
        ValueError: if it has another shape.
    """
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean with True = token, got {mask.dtype}")
    check_shape("mask", mask, shape, letters)


def check_bias(
    bias: object, scores_shape: Sequence[int], *, device: torch.device | None = None
) -> None:
    """Raise unless ``bias`` is floating point and broadcasts to the scores, (..., n, m).

    Raises:
        TypeError: if it is not a floating-point tensor.
        ValueError: if its shape does not broadcast, or it lies on another device.
    """
    check_tensor("bias", bias)
    if not bias.is_floating_point():
        raise TypeError(
            f"bias must have a floating-point dtype, got {bias.dtype}; pass booleans as mask="
        )
    _check_broadcasts("bias", bias, tuple(scores_shape), device)


def check_attention(
    q: object,
    k: object,
    v: object,
    *,
    mask: object = None,
    bias: object = None,
    causal: object = False,
    scale: object = None,
    same_depth: bool = True,
) -> None:
    """Raise unless every argument of an attention call fits the others.

    Shapes: q (..., n, d_q), k (..., m, d_k), v (..., m, d_v); mask and bias broadcast to
    (..., n, m). With ``same_depth`` d_q and d_k must be equal, as a dot product needs.

    Raises:
        TypeError: for a non-tensor, an integer tensor, mixed dtypes, a mask that is not boolean.
        ValueError: for a wrong rank, shape, device or scale.
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        check_float(name, value, min_dims=2)
    check_same(q=q, k=k, v=v)
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "k and v must have the same number of rows (one value for each key), got "
            f"k {tuple(k.shape)} and v {tuple(v.shape)}"
        )
    if same_depth and q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have the same last dimension for a dot product, got "
            f"q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    shape = scores_shape(q, k, v)
    if mask is not None:
        check_mask(mask, shape, device=q.device)
    if bias is not None:
        check_bias(bias, shape, device=q.device)
        check_same(q=q, bias=bias)
    check_bool("causal", causal)
    if scale is not None:
        check_scale("scale", scale)


def _check_broadcasts(
    name: str, value: Tensor, scores_shape: Shape, device: torch.device | None
) -> None:
    if device is not None and value.device != device:
        raise ValueError(f"{name} must be on the device of q, {device}, got {value.device}")
    shape = tuple(value.shape)
    padded = (1,) * (len(scores_shape) - len(shape)) + shape
    fits = len(padded) == len(scores_shape) and all(
        size in (1, wanted) for size, wanted in zip(padded, scores_shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name} must broadcast to the scores, (..., n, m) = {scores_shape}, got {shape}"
            + _hint(name, shape, scores_shape)
        )


def _hint(name: str, shape: Shape, scores_shape: Shape) -> str:
    """Guess what was meant by a mask that does not fit."""
    if len(scores_shape) < 2:
        return ""
    *batch, n, m = scores_shape
    if batch and shape == (batch[0], m):
        missing = ", ".join([":"] + ["None"] * len(batch) + [":"])
        return f"; one row for each sequence of the batch needs {name}[{missing}]"
    if len(batch) == 2 and len(shape) == 3 and shape[0] == batch[0] and shape[-1] == m:
        return f"; add a head dimension with {name}.unsqueeze(1)"
    if shape[-2:] == (m, n):
        return f"; queries come before keys, try {name}.mT"
    return ""
