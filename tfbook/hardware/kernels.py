"""Kernels of our own: attention and softmax in Triton, on a GPU or in Triton's interpreter.

The kernels stand in ``tfbook.hardware.triton_kernels``. Here is what stands around them: what
they take is checked, and what one launch of a kernel covers is worked out. Without a GPU they run
in Triton's interpreter, slowly, and give the same numbers: it is for reading, stepping and testing,
and Triton must be told before it is imported, by ``TRITON_INTERPRET=1`` in the environment.

Triton is no requirement of this package: ``pip install triton`` on Linux, 290 MB.

Explained in: chapters/17_hardware, section "Attention as bytes moved".
"""

import math
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import (
    check_attention,
    check_bool,
    check_choice,
    check_float,
    check_number,
    scores_shape,
)

__all__ = ["attend_triton", "softmax_triton", "triton_kernel", "triton_runs"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 2**16  # numbers of a row that a program holds at once
LEAST = 16  # rows and columns of a product that the tensor units take


def triton_runs() -> bool:
    """Return whether Triton is installed and has a GPU, or its interpreter, to run kernels in.

    Example:
        >>> triton_runs() in (True, False)
        True

    Explained in: chapters/17_hardware, section "Attention as bytes moved".
    """
    return find_spec("triton") is not None and (torch.cuda.is_available() or _interprets())


def softmax_triton(x: Float[Tensor, "*B N"]) -> Float[Tensor, "*B N"]:
    """Return the softmax over the last dimension by one kernel: each number is read once.

    y_i = exp(x_i − max x) / Σ_j exp(x_j − max x). Computed step by step, with a tensor for each,
    x is read three times and two more tensors are written and read; here one program holds a row.

    Args:
        x: (..., n), float32, float16 or bfloat16, n at most 65,536.

    Returns:
        y (..., n) in the dtype of x; 0 in rows that hold −∞ alone.

    Raises:
        ModuleNotFoundError: if Triton is not installed.
        TypeError: for another dtype.
        ValueError: for a row that is empty or too long, or an x that asks for a gradient.
        RuntimeError: without a GPU, unless TRITON_INTERPRET=1 was set.

    Cost: 2 · n numbers moved for each row.

    Source: [tillet2019triton], [milakov2018online]
    Explained in: chapters/17_hardware, section "Attention as bytes moved".
    """
    check_float("x", x, min_dims=1)
    _check_plain("softmax_triton", x=x)
    columns = x.shape[-1]
    if not 1 <= columns <= WIDEST:
        raise ValueError(f"x must end in 1 to {WIDEST:,} numbers, got shape {tuple(x.shape)}")
    kernels = _kernels(x)
    rows = _held(x.reshape(-1, columns))  # (R, n)
    y = torch.empty_like(rows)
    if len(rows):
        block = _power(columns)
        kernels.softmax_kernel[(len(rows),)](rows, y, columns, columns, columns, BLOCK=block)
    return y.view(x.shape).to(x.dtype)


def attend_triton(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    rows: int = 64,
    cols: int = 64,
) -> Float[Tensor, "*B N E"] | tuple[Float[Tensor, "*B N E"], Float[Tensor, "*B N"]]:
    """Compute :func:`tfbook.attention.attend` by a kernel in tiles, as FlashAttention does.

    The recurrence is that of :func:`tfbook.attention.attend_online`; here all tiles of queries run
    at once, and a tile's scores stay in fast memory. It is a forward pass, without mask and bias.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_lse: also return the log-sum-exp of each row of scores, (..., n), in float32.
        rows: queries in a tile, a power of two from 16 up.
        cols: keys in a tile, the same.

    Returns:
        The output (..., n, d_v), or (output, lse). A query that may see no key gets zeros.

    Raises:
        ModuleNotFoundError: if Triton is not installed.
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or tile, or where a gradient is asked for.
        RuntimeError: without a GPU, unless TRITON_INTERPRET=1 was set.

    Cost: n · m · 2(d + d_v) FLOPs, half of it when causal; q, out and, once for each tile of
        queries, k and v are moved, and no score.

    Source: [dao2022flashattention], [dao2023flashattention2], [tillet2019triton]
    Explained in: chapters/17_hardware, section "Attention as bytes moved".
    """
    check_attention(q, k, v, causal=causal, scale=scale)
    check_bool("return_lse", return_lse)
    _check_plain("attend_triton", q=q, k=k, v=v)
    for name, size in (("rows", rows), ("cols", cols)):
        check_number(name, size, LEAST, whole=True)
        if size != _power(size):
            raise ValueError(f"{name} must be a power of two, got {size}")
    kernels = _kernels(q)
    *batch, n, m = scores_shape(q, k, v)
    d, d_v = q.shape[-1], v.shape[-1]
    scale = max(d, 1) ** -0.5 if scale is None else scale
    heads = math.prod(batch)
    given = [x.expand(*batch, *x.shape[-2:]).reshape(heads, *x.shape[-2:]) for x in (q, k, v)]
    given = [_held(x) for x in given]  # (H, n, d), (H, m, d), (H, m, d_v)
    out, lse = given[0].new_zeros(heads, n, d_v), q.new_full((heads, n), -torch.inf).float()
    if out.numel() and m:
        grid = (-(-n // rows), heads)
        kernels.attention_kernel[grid](
            *given, out, lse, n, m, d, d_v, scale,
            CAUSAL=causal, EXACT="ieee", ROWS=rows, COLS=cols,
            D=_power(max(d, LEAST)), DV=_power(max(d_v, LEAST)),
        )  # fmt: skip
    out, lse = out.view(*batch, n, d_v).to(q.dtype), lse.view(*batch, n)
    return (out, lse) if return_lse else out


def triton_kernel(name: str) -> Callable[..., None]:
    """Return a kernel as the function that it is written as, to be read; nothing is launched.

    Args:
        name: "softmax" or "attention".

    Raises:
        ValueError: for another name.

    Example:
        >>> triton_kernel("softmax").__name__
        'softmax_kernel'

    Explained in: chapters/17_hardware, section "Attention as bytes moved".
    """
    check_choice("name", name, ("softmax", "attention"))
    kernel = getattr(import_module("tfbook.hardware.triton_kernels"), f"{name}_kernel")
    return getattr(kernel, "fn", kernel)


def _kernels(x: Tensor) -> ModuleType:
    """Return the module with the kernels, if they can run where x is."""
    if find_spec("triton") is None:
        raise ModuleNotFoundError("kernels in Triton need it: pip install triton (on Linux)")
    if not (x.is_cuda or _interprets()):
        raise RuntimeError(
            f"kernels in Triton run on a GPU, and the tensors are on {x.device}; set "
            "TRITON_INTERPRET=1 in the environment, before Python starts, for its interpreter"
        )
    return import_module("tfbook.hardware.triton_kernels")


def _held(x: Tensor) -> Tensor:
    """Return x whole in memory; the interpreter computes with NumPy, which has no bfloat16."""
    return (x.float() if x.dtype == torch.bfloat16 and not x.is_cuda else x).contiguous()


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _power(size: int) -> int:
    """Return the least power of two that is not below a size."""
    return 1 << (size - 1).bit_length()


def _check_plain(name: str, **tensors: Tensor) -> None:
    for own, x in tensors.items():
        if x.dtype not in DTYPES:
            raise TypeError(f"{own} must be float32, float16 or bfloat16, got {x.dtype}")
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} has no backward pass, and {own} asks for a gradient: call it under "
                "torch.no_grad(), or take tfbook.attention.attend_sdpa"
            )
