"""Weights in 4 and 8 bits that stand where a matrix of floating-point numbers stood.

A packed weight is a tensor like any other to look at: it has the shape and the dtype of the matrix
that it stands for. The product x Wᵀ (``functional.linear``, and with it ``nn.Linear``, tied heads
and everything else that calls it) runs in a kernel of PyTorch that reads the few bits; a lookup
(``functional.embedding``) decodes the rows asked for; every other operation decodes the whole
matrix first. So no model needs to know: put a packed weight into any of its linear maps.

The kernels are for CPUs. They take x in bfloat16, 8 bits of mantissa, add up in float32 and round
the sums to bfloat16. What has a gradient, and is not packed, is computed with the decoded matrix.

Explained in: chapters/17_hardware, section "Weights in few bits".
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from tfbook._checks import check_list, check_module, check_shape, check_tensor

__all__ = [
    "GROUPS",
    "GroupedWeight",
    "PackedWeight",
    "RowWeight",
    "can_join",
    "join_rows",
    "set_weight",
]

GROUPS = (32, 64, 128, 256)  # sizes of a group that the kernel knows
ROWS = STEP = 16  # rows in 4 bits and columns in 8 come in multiples, for the kernels' vectors
INT4 = torch._weight_int4pack_mm_for_cpu
INT8 = torch._weight_int8pack_mm
PIECE = 1024  # rows that are packed at once, a multiple of those it puts together
TOGETHER = 64  # rows that the kernel for 4 bits puts together
MIDDLE = 8  # the kernel counts codes from the middle of 0 … 15


class PackedWeight(Tensor):
    """A matrix W (N, D) that is held in few bits; see :class:`GroupedWeight`, :class:`RowWeight`.

    It cannot be changed in place and has no gradient. What it is multiplied with may have one.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    BY_ROW: tuple[str, ...] = ()  # what holds something for each row, rows first
    BY_COLUMN: tuple[str, ...] = ()  # and what has the rows in its second dimension

    def decode(self) -> Float[Tensor, "N D"]:
        """Return the matrix that the bits stand for, in the weight's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it stands for")

    def product(self, x: Tensor) -> Tensor:
        """Return x Wᵀ for rows x (M, D) in bfloat16, by the kernel."""
        raise NotImplementedError(f"{type(self).__name__} has no kernel")

    def look_up(self, ids: Tensor) -> Tensor:
        """Return the rows of these numbers, (..., D)."""
        return self.decode()[ids]

    def same_as(self, dtype: torch.dtype) -> "PackedWeight":
        """Return the same bits as a weight of another dtype."""
        raise NotImplementedError(f"{type(self).__name__} cannot change its dtype")

    @property
    def nbytes(self) -> int:
        """Count the bytes that are held; a tensor of W itself would take 4 · N · D."""
        return sum(x.nbytes for x in vars(self).values() if isinstance(x, Tensor))

    def __repr__(self) -> str:
        """Show what is held, without decoding it."""
        return f"{type(self).__name__}(shape={tuple(self.shape)}, {self.nbytes:,} bytes)"

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Send products and lookups to the kernel, all else on its usual way."""
        if (own := OWN.get(function)) is not None:
            found = own(*args, **kwargs) if kwargs else own(*args)
            if found is not None:
                return found
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        """Pass the bits on where they stay the same; decode them for every other operation."""
        packed, kwargs = args[0] if args else None, dict(kwargs or {})
        if isinstance(packed, PackedWeight):
            if function in PASSED_ON:
                return packed.same_as(packed.dtype)
            if function is torch.ops.aten._to_copy.default:
                _check_cpu(kwargs.get("device"))
                dtype = kwargs.get("dtype") or packed.dtype
                real = dtype.is_floating_point
                return packed.same_as(dtype) if real else packed.decode().to(dtype)
            if function._schema.is_mutable:
                raise TypeError("a packed weight cannot be changed in place: decode() it first")
            if function in SHAPELESS:
                return function(torch.empty(0, dtype=packed.dtype), *args[1:], **kwargs)
        args, kwargs = tree_map_only(PackedWeight, lambda weight: weight.decode(), (args, kwargs))
        return function(*args, **kwargs)


class GroupedWeight(PackedWeight):
    """A matrix in 4 or 8 bits a number, each group of a row with a scale and a least value.

    W_ij = s_ig c_ij + m_ig for column j of group g = ⌊j / group⌋. In 4 bits the codes c are 0 … 15.
    In 8 bits they are −128 … 127 and are held as two digits, c = 16 a + b with a = −8 … 7 and
    b = 0 … 15, so that the same kernel takes them: W x = 16 s a x + (s b + m) x. Scales and least
    values (as m + 8 s, the middle of the group) are rounded to bfloat16 here, as the kernel wants.

    Args:
        codes: c (N, D), integers.
        scale: s (N, D / group).
        low: m (N, D / group); 0 when omitted.
        bits: 4 or 8.
        dtype: of the matrix that it stands for.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a shape or a code that does not fit, a group the kernel does not know, or a
            number of rows that is no multiple of 16.

    Cost: bits / 8 · N · D bytes and 4 bytes a group for each digit; with 8 bits as much again for
        lookups. x Wᵀ for one row takes about as long as reading these.

    Example:
        >>> codes = torch.arange(16)[:, None].expand(16, 32)
        >>> weight = GroupedWeight(codes, torch.ones(16, 1))
        >>> nn.functional.linear(torch.ones(1, 32), weight)[0, :4]
        tensor([ 0., 32., 64., 96.])

    Source: formats of this kind: [dettmers2023case]
    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    BY_ROW, BY_COLUMN = ("packed", "table"), ("scales",)

    @staticmethod
    def __new__(cls, codes, scale, low=None, *, bits=4, dtype=torch.float32):
        """Make a tensor without numbers of its own."""
        _check_packed(codes, dtype)
        return _empty(cls, codes.shape, dtype)

    def __init__(
        self,
        codes: Int[Tensor, "N D"],
        scale: Float[Tensor, "N G"],
        low: Float[Tensor, "N G"] | None = None,
        *,
        bits: int = 4,
        dtype: torch.dtype = torch.float32,
    ):
        """Pack codes and scales as the kernel reads them."""
        if bits not in (4, 8):
            raise ValueError(f"bits must be 4 or 8, got {bits}")
        self.bits, self.group = bits, _check_groups(codes, scale, low)
        least, most = (0, 15) if bits == 4 else (-128, 127)
        if codes.numel() and not (least <= codes.min() and codes.max() <= most):
            raise ValueError(f"codes of {bits} bits must be from {least} to {most}")
        scale = scale.detach().float()
        low = torch.zeros_like(scale) if low is None else low.detach().float()
        scales, middles = scale, low + MIDDLE * scale
        self.table = None
        if bits == 8:
            self.table = codes.to(torch.int8)  # as it stands, for lookups
            scales = torch.cat([16 * scale, scale], dim=1)  # (N, 2 D / group)
            middles = torch.cat([torch.zeros_like(low), middles], dim=1)
        # In pieces, for the kernel wants its digits in 32 bits each before it packs them.
        self.packed = torch.cat([self._pack(some) for some in codes.split(PIECE)])
        pairs = torch.stack([scales, middles], dim=-1)  # (N, G, 2)
        self.scales = pairs.transpose(0, 1).contiguous().to(torch.bfloat16)  # (G, N, 2)

    def _pack(self, codes):
        """Lay out the digits of some rows as the kernel reads them."""
        digits = codes.int()
        if self.bits == 8:
            digits = torch.cat([(digits >> 4) + MIDDLE, digits & 15], dim=1)  # (rows, 2 D)
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(digits, 1)

    def codes(self) -> Int[Tensor, "N D"]:
        """Return c, as int8."""
        if self.table is not None:
            return self.table
        # How the kernel lays its digits out is its own affair: its products with an identity and
        # scales of 1 are the digits.
        ones = torch.ones_like(self.scales)
        ones[..., 1] = 0
        eye = torch.eye(self.shape[1], dtype=torch.bfloat16)
        found = INT4(eye, self.packed, self.group, ones)  # (D, N)
        return (found.T + MIDDLE).to(torch.int8)

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return scale and least value of each group, (N, D / group), as float32."""
        scale, middle = self.scales[-(self.shape[1] // self.group) :].float().unbind(-1)
        return scale.T, (middle - MIDDLE * scale).T

    def decode(self) -> Float[Tensor, "N D"]:
        """Return W."""
        return self._restore(self.codes(), *self.parts())

    def look_up(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        """Return the rows of these numbers, (..., D)."""
        if self.table is None:
            return self.decode()[ids]
        scale, middle = self.scales[-(self.shape[1] // self.group) :, ids].float().unbind(-1)
        low = middle - MIDDLE * scale  # (G, ...)
        return self._restore(self.table[ids], scale.movedim(0, -1), low.movedim(0, -1))

    def product(self, x: Tensor) -> Tensor:
        """Return x Wᵀ for rows x (M, D) in bfloat16."""
        x = torch.cat([x, x], dim=-1) if self.bits == 8 else x
        return INT4(x, self.packed, self.group, self.scales.contiguous())

    def same_as(self, dtype: torch.dtype) -> "GroupedWeight":
        """Return the same bits as a weight of another dtype."""
        return _alike(self, dtype)

    def _restore(self, codes, scale, low):
        groups = codes.float().unflatten(-1, (-1, self.group))  # (..., G, group)
        return torch.addcmul(low[..., None], groups, scale[..., None]).flatten(-2).to(self.dtype)


class RowWeight(PackedWeight):
    """A matrix in 8 bits a number, each row with a scale: W_ij = s_i c_ij.

    Args:
        codes: c (N, D), int8.
        scale: s (N,); it is rounded to bfloat16 here, as the kernel wants.
        dtype: of the matrix that it stands for.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a shape that does not fit, or a D that is no multiple of 16; the kernel
            would read beyond the end.

    Cost: N · D bytes. x Wᵀ for one row takes about as long as reading these.

    Example:
        >>> codes = torch.tensor([[127] * 16, [-64] * 16], dtype=torch.int8)
        >>> weight = RowWeight(codes, torch.tensor([0.5, 1.0]))
        >>> nn.functional.linear(torch.eye(16)[:1], weight)
        tensor([[ 63.5000, -64.0000]])

    Source: [dettmers2022llm]
    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    BY_ROW = ("codes", "scale")

    @staticmethod
    def __new__(cls, codes, scale, *, dtype=torch.float32):
        """Make a tensor without numbers of its own."""
        _check_packed(codes, dtype)
        return _empty(cls, codes.shape, dtype)

    def __init__(
        self,
        codes: Int8[Tensor, "N D"],
        scale: Float[Tensor, " N"],
        *,
        dtype: torch.dtype = torch.float32,
    ):
        """Keep codes and scales."""
        if codes.dtype != torch.int8:
            raise TypeError(f"codes must be int8, got {codes.dtype}")
        _check_scale("scale", scale, codes.shape[:1], "(N,)")
        if codes.shape[1] % STEP:
            raise ValueError(f"codes must have a multiple of {STEP} columns, got {codes.shape[1]}")
        self.codes = codes.contiguous()
        self.scale = scale.detach().to(torch.bfloat16)

    def decode(self) -> Float[Tensor, "N D"]:
        """Return W."""
        return (self.codes.float() * self.scale.float()[:, None]).to(self.dtype)

    def look_up(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        """Return the rows of these numbers, (..., D)."""
        return (self.codes[ids].float() * self.scale[ids].float()[..., None]).to(self.dtype)

    def product(self, x: Tensor) -> Tensor:
        """Return x Wᵀ for rows x (M, D) in bfloat16."""
        return INT8(x, self.codes, self.scale)

    def same_as(self, dtype: torch.dtype) -> "RowWeight":
        """Return the same bits as a weight of another dtype."""
        return _alike(self, dtype)


def set_weight(model: nn.Module, name: str, weight: PackedWeight) -> None:
    """Put a packed weight in the place of a parameter; it is kept out of training.

    Args:
        model: any module that uses the parameter in linear maps or lookups.
        name: of the parameter, such as ``"stack.blocks.0.ffn.up_proj.weight"``.
        weight: of the parameter's shape.

    Raises:
        TypeError: if model is no module, or weight not packed.
        ValueError: if there is no such parameter, or it has another shape.

    Example:
        >>> layer = nn.Linear(16, 1, bias=False)
        >>> codes = torch.tensor([[127] * 15 + [-64]], dtype=torch.int8)
        >>> set_weight(layer, "weight", RowWeight(codes, torch.tensor([0.5])))
        >>> layer(torch.eye(16)[-1:])
        tensor([[-32.]])

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    check_module("model", model)
    if not isinstance(weight, PackedWeight):
        raise TypeError(f"weight must be a PackedWeight, got {type(weight).__name__}")
    known = dict(model.named_parameters(remove_duplicate=False))
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"name must be that of a parameter of the model, got {name!r}")
    check_shape("weight", weight, known[name].shape, f"that of {name}")
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, nn.Parameter(weight, requires_grad=False))


def can_join(weights: Sequence[Tensor]) -> bool:
    """Return whether :func:`join_rows` can put weights into one.

    They are packed alike, have as many columns, and all but the last have a multiple of 64 rows:
    so many the kernel for 4 bits puts together.

    Args:
        weights: packed ones, or others.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    if not (weights and all(isinstance(weight, PackedWeight) for weight in weights)):
        return False
    kinds = {
        (type(w), w.columns, w.dtype, getattr(w, "bits", 8), getattr(w, "group", 0))
        for w in weights
    }
    return len(kinds) == 1 and all(len(weight) % TOGETHER == 0 for weight in weights[:-1])


def join_rows(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Put packed weights below each other: one product with x in the place of several.

    W = [W_1; W_2; …], so x Wᵀ = [x W_1ᵀ, x W_2ᵀ, …]. The bits are held once: the weights given
    become views into those of the whole, and mean what they meant.

    Args:
        weights: of which :func:`can_join` says yes.

    Returns:
        The whole; the weight itself where there is one.

    Raises:
        TypeError: if weights is no list.
        ValueError: if they cannot be joined.

    Example:
        >>> codes = torch.arange(64, dtype=torch.int8)[:, None].expand(64, 16)
        >>> whole = join_rows([RowWeight(codes, torch.ones(64)) for _ in range(2)])
        >>> whole.shape
        torch.Size([128, 16])

    Cost: no memory, and for a product with one of the parts a copy of its scales.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    check_list("weights", weights)
    if not can_join(weights):
        found = ", ".join(str(tuple(getattr(w, "shape", ()))) for w in weights) or "none"
        raise ValueError(
            f"weights must be packed alike, in multiples of {TOGETHER} rows, got shapes {found}"
        )
    if len(weights) == 1:
        return weights[0]
    first, ends = weights[0], [len(weight) for weight in weights]
    whole = _empty(type(first), torch.Size((sum(ends), first.columns)), first.dtype)
    vars(whole).update({name: x for name, x in vars(first).items() if name != "_is_param"})
    held = [(name, 0) for name in first.BY_ROW] + [(name, 1) for name in first.BY_COLUMN]
    for name, dim in held:
        if getattr(first, name) is not None:
            joined = torch.cat([getattr(weight, name) for weight in weights], dim=dim)
            setattr(whole, name, joined)
            for weight, own in zip(weights, joined.split(ends, dim=dim), strict=True):
                setattr(weight, name, own)
    return whole


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Return x Wᵀ + b by the kernel, or None where the usual way has to be taken."""
    x = input
    if not isinstance(weight, PackedWeight) or (x.requires_grad and torch.is_grad_enabled()):
        return None
    *batch, columns = x.shape
    if columns != weight.columns or 0 in batch or isinstance(x, PackedWeight):
        return None
    rows = x.reshape(-1, columns)  # (M, D)
    y = weight.product(rows if x.dtype == torch.bfloat16 else rows.bfloat16())
    y = y.to(x.dtype).view(*batch, -1)
    return y if bias is None else y + bias


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *_: object,
    **__: object,
) -> Tensor | None:
    """Return rows of the table; None where the table would have to be changed on the way."""
    return weight.look_up(input) if max_norm is None else None


def _decoded(function: Callable) -> Callable:
    """Return a function of numbers outside of PyTorch that decodes a packed weight first."""
    return lambda weight, *args, **kwargs: function(weight.decode(), *args, **kwargs)


OWN: dict[Callable, Callable] = {functional.linear: _linear, functional.embedding: _embedding}
OWN |= {f: _decoded(f) for f in (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.item)}
ATEN = torch.ops.aten
PASSED_ON = {ATEN.detach.default, ATEN.clone.default, ATEN.alias.default}
SHAPELESS = {ATEN.new_empty.default, ATEN.new_zeros.default, ATEN.new_ones.default}


def _empty(cls: type, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    new = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
    new.columns = shape[1]
    return new


def _alike(weight: PackedWeight, dtype: torch.dtype) -> PackedWeight:
    """Return a weight that shares the bits of another one, which nothing changes."""
    new = _empty(type(weight), weight.shape, dtype)
    held = {name: x for name, x in vars(weight).items() if name != "_is_param"}
    vars(new).update(held)
    return new


def _check_cpu(device: torch.device | None) -> None:
    if device is not None and device.type != "cpu":
        raise ValueError(f"a packed weight is laid out for CPUs; decode() it for {device}")


def _check_packed(codes: object, dtype: object) -> None:
    check_tensor("codes", codes)
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise TypeError(f"codes must be integers, got {codes.dtype}")
    if codes.ndim != 2 or 0 in codes.shape:
        raise ValueError(f"codes must have shape (N, D), got {tuple(codes.shape)}")
    _check_cpu(codes.device)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {dtype}")


def _check_groups(codes: Tensor, scale: object, low: object) -> int:
    """Return how many columns a group has."""
    rows, columns = codes.shape
    check_tensor("scale", scale)
    if scale.ndim != 2 or 0 in scale.shape or columns % scale.shape[1]:
        raise ValueError(
            f"scale must have shape (N, G) = ({rows}, a divisor of {columns}), "
            f"got {tuple(scale.shape)}"
        )
    for name, value in (("scale", scale), ("low", low)):
        if value is not None:
            _check_scale(name, value, (rows, scale.shape[1]), "(N, G)")
    group = columns // scale.shape[1]
    if group not in GROUPS:
        raise ValueError(f"a group must have {GROUPS} columns, got {group} (D / G)")
    if rows % ROWS:
        raise ValueError(f"codes must have a multiple of {ROWS} rows, got {rows}")
    return group


def _check_scale(name: str, value: object, shape: tuple[int, ...], letters: str) -> None:
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {value.dtype}")
    check_shape(name, value, shape, letters)
    if not value.isfinite().all():
        raise ValueError(f"{name} must be finite, got inf or nan")
