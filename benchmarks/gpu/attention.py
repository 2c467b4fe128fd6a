"""Attention by length: naive, each backend of PyTorch's, our kernel, against the roofline.

The roofline is the time that the two products take at the measured ceiling of their format, or the
time that queries, keys, values and results take to move, whichever is more; half of the products
where the future is hidden. A backward pass is counted as two and a half forward ones: five products
in the place of two.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.tools import Bench, Row, measured, require_close
from tfbook.attention import attend
from tfbook.costs import attention_work
from tfbook.hardware import attend_triton

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
HEADS, SIZE = 16, 64
MOST_STORED = 2**34  # bytes of scores and weights that a form may write
CHECKED = 256  # the last queries are compared with float64


def forms(causal: bool) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return what is compared, by name."""

    def by(backend: SDPBackend):
        def run(q, k, v):
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    found = {"naive": lambda q, k, v: attend(q, k, v, causal=causal)}
    found |= {f"sdpa {name}": by(backend) for name, backend in BACKENDS.items()}
    return found | {"tfbook triton": lambda q, k, v: attend_triton(q, k, v, causal=causal)}


def lengths(bench: Bench, peak: float | None, bandwidth: float | None) -> list[Row]:
    """Measure each form at each length, forward and backward.

    Args:
        bench: where.
        peak: FLOPs a second of products in the format, None where it was not measured.
        bandwidth: bytes a second.
    """
    dtype = torch.float32 if bench.device == "cpu" else torch.bfloat16
    heads, rows = (2 if bench.tiny else HEADS), []
    for n in (32, 64) if bench.tiny else (512, 1024, 2048, 4096, 8192, 16384, 32768):
        q, k, v = (bench.draw(1, heads, n, SIZE, dtype=dtype, seed=i) for i in range(3))
        for causal in (False, True):
            least = _roofline(n, heads, dtype, causal, peak, bandwidth)
            for name, form in forms(causal).items():
                stores = name in ("naive", "sdpa math")
                what = {"n": n, "causal": causal, "form": name, "dtype": str(dtype)}
                for backward in (False, True):
                    bound = least and least * (2.5 if backward else 1)
                    row = what | {"pass": "backward" if backward else "forward"}
                    rows.append(
                        measured(
                            row,
                            lambda form=form, stores=stores, given=(q, k, v), causal=causal,
                            backward=backward, bound=bound: _one(
                                bench, form, stores, given, causal, backward, bound
                            ),
                        )
                    )  # fmt: skip
    return rows


def _roofline(n, heads, dtype, causal, peak, bandwidth):
    """Return the least milliseconds, or None where a ceiling is missing."""
    if not (peak and bandwidth):
        return None
    work = attention_work(n, n, heads, SIZE, stored=False, bytes_per_number=dtype.itemsize)
    return 1e3 * max(work.flops / (1 + causal) / peak, work.bytes / bandwidth)


def _one(bench, form, stores, given, causal, backward, bound):
    q, k, v = given
    if stores and 3 * q.shape[1] * q.shape[2] ** 2 * 4 > MOST_STORED:
        raise ValueError(f"its scores would take more than {MOST_STORED / 2**30:g} GiB")
    with torch.no_grad():
        last = slice(max(0, q.shape[2] - CHECKED), None)
        right = attend(q[:, :1, last].double(), k[:, :1].double(), v[:, :1].double(), causal=causal)
        error = require_close(form(q, k, v)[:, :1, last], right, 2e-2)
    if not backward:
        with torch.no_grad():
            taken = bench.time(lambda: form(q, k, v)) | {"error": error}
            taken["peak bytes"] = bench.peak_bytes(lambda: form(q, k, v))
    else:
        asked = [x.detach().requires_grad_() for x in given]
        out = form(*asked)
        upstream = torch.ones_like(out)

        def back():
            return torch.autograd.grad(out, asked, upstream, retain_graph=True)

        taken = bench.time(back) | {"error": error, "peak bytes": bench.peak_bytes(back)}
    return taken | {"share of roofline": bound and bound / taken["ms"]}
