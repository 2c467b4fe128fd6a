"""The two ceilings of a roofline: products of matrices by format, and copying; and few-bit weights.

What a data sheet promises is not what a product reaches; the shares elsewhere are of what is
measured here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.tools import Bench, Row, measured, require_close

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@contextmanager
def tensor_float(allowed: bool) -> Iterator[None]:
    """Let products in float32 be rounded to TensorFloat-32, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def products(bench: Bench) -> list[Row]:
    """Measure products of square matrices in each format, in 10¹² FLOPs a second."""
    rows = []
    for n in (64, 96) if bench.tiny else (1024, 4096, 8192, 16384):
        a, b = bench.draw(n, n), bench.draw(n, n, seed=1)
        forms: dict[str, Callable[[], Row]] = {
            "float32": lambda a=a, b=b: _product(bench, a, b, 1e-4, torch.mm),
            "tf32": lambda a=a, b=b: _product(bench, a, b, 1e-2, torch.mm, allowed=True),
            "int8": lambda a=a, b=b: _int8(bench, a, b),
            "float8_e4m3": lambda a=a, b=b: _float8(bench, a, b),
        }
        for name, dtype in HALF.items():
            forms[name] = lambda a=a, b=b, dtype=dtype: _product(
                bench, a.to(dtype), b.to(dtype), 2e-2, torch.mm
            )
        rows += [measured({"format": name, "n": n}, run) for name, run in forms.items()]
    return rows


def _product(bench, a, b, most, multiply, *, allowed=False):
    with tensor_float(allowed):
        error = require_close(multiply(a, b)[:8], a[:8].double() @ b.double(), most)
        return _rate(bench, len(a), lambda: multiply(a, b)) | {"error": error}


def _int8(bench, a, b):
    a, b = ((30 * x).round().clamp(-127, 127).to(torch.int8) for x in (a, b))
    b = b.T.contiguous().T  # as the kernel wants it
    require_close(torch._int_mm(a, b)[:8], a[:8].double() @ b.double(), 1e-6)
    return _rate(bench, len(a), lambda: torch._int_mm(a, b))


def _float8(bench, a, b):
    a, b = a.to(torch.float8_e4m3fn), b.T.contiguous().to(torch.float8_e4m3fn).T
    one = torch.ones((), device=bench.device)

    def multiply():
        return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    require_close(multiply()[:8], a[:8].double() @ b.double(), 2e-2)
    return _rate(bench, len(a), multiply)


def _rate(bench, n, run):
    taken = bench.time(run)
    return taken | {"TFLOP/s": 2 * n**3 / taken["ms"] / 1e9}


def copies(bench: Bench) -> list[Row]:
    """Measure copying, in 10⁹ bytes read and written a second."""
    rows = []
    for size in (2**16,) if bench.tiny else (2**26, 2**28, 2**30):
        source = bench.draw(size // 4)
        target = torch.empty_like(source)

        def run(source=source, target=target):
            taken = bench.time(lambda: target.copy_(source))
            return taken | {"GB/s": 2 * source.nbytes / taken["ms"] / 1e6}

        rows.append(measured({"bytes": source.nbytes}, run))
    return rows


def few_bits(bench: Bench) -> list[Row]:
    """Measure products with weights in 4 bits against bfloat16, for few rows and for many."""
    rows, (out, size), group = [], (64, 128) if bench.tiny else (4096, 4096), 32
    codes = torch.randint(0, 16, (out, size), generator=torch.Generator().manual_seed(1))
    scales = torch.rand(size // group, out, generator=torch.Generator().manual_seed(2)) / 16
    spread = scales.T.repeat_interleave(group, dim=1)
    weight = ((codes - 8) * spread).to(bench.device, torch.bfloat16)
    packed = torch.stack([scales, torch.zeros_like(scales)], -1).to(bench.device, torch.bfloat16)
    for count in (1, 3) if bench.tiny else (1, 4, 16, 64, 256):
        x = bench.draw(count, size, dtype=torch.bfloat16)
        forms = {
            "bfloat16": lambda x=x: _against(bench, x, weight, functional.linear, (weight,)),
            "int4": lambda x=x: _against(bench, x, weight, *_int4(bench, codes, packed, group)),
        }
        for name, run in forms.items():
            what = {"format": name, "rows": count, "weight": [out, size]}
            rows.append(measured(what, run))
    return rows


def _int4(bench: Bench, codes: Tensor, packed: Tensor, group: int):
    """Return the device's product with 4-bit weights, and what it takes behind x."""
    if bench.device == "cpu":
        bits = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        return torch._weight_int4pack_mm_for_cpu, (bits, group, packed)
    digits = codes.to(bench.device, torch.int32)
    pairs = (digits[:, ::2] << 4 | digits[:, 1::2]).to(torch.uint8)
    return torch._weight_int4pack_mm, (torch._convert_weight_to_int4pack(pairs, 8), group, packed)


def _against(bench, x, weight, multiply, given):
    error = require_close(multiply(x, *given), x.double() @ weight.double().T, 2e-2)
    return bench.time(lambda: multiply(x, *given)) | {"error": error}
