"""Multi-head attention against PyTorch's module and against bare projections with SDPA.

Setting: one sequence, d_model 512, 8 heads, float32, causal, with biases, one thread. PyTorch's
module runs without its fast path for inference, as it does in training, and returns no weights.
Decoding: one new row against 1023 keys of a cache, with 8 and with 2 key-value heads; the bare
version concatenates the cache as well. So little is computed there that the checks of the arguments
show, a few hundredths of a millisecond a call; it has no target.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import MIB, machine, peak_memory, time_ratios
from tfbook.attention import MultiHeadAttention

D_MODEL, HEADS = 512, 8
LENGTHS = {128: 61, 512: 25, 2048: 9}  # length: rounds
DECODING = 1024
MODULE, BARE, OURS = "nn.MultiheadAttention", "projections + SDPA", "tfbook"
TARGETS = {MODULE: 1.05, BARE: 1.1}


class Bare(nn.Module):
    """Four projections and PyTorch's attention, nothing checked and nothing returned beside y."""

    def __init__(self, ours: MultiHeadAttention):
        """Share the weights."""
        super().__init__()
        self.q, self.k, self.v, self.out = ours.q_proj, ours.k_proj, ours.v_proj, ours.out_proj
        self.d_head, self.grouped = ours.d_head, ours.n_kv_heads < ours.n_heads

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Mix the rows of x (B, N, d_model), causal; with a past, N is 1."""
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        if past is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(past, (k, v), strict=True))
        z = functional.scaled_dot_product_attention(
            q, k, v, is_causal=past is None, enable_gqa=self.grouped
        )
        return self.out(z.transpose(1, 2).flatten(2))


def _forward(call: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return call()


def _training(
    call: Callable[[], Tensor], x: Tensor, parameters: list[Tensor]
) -> tuple[Tensor, ...]:
    y = call()
    return (y, *torch.autograd.grad(y, [x, *parameters], torch.ones_like(y)))


def _rows(n: int, rounds: int) -> list[dict[str, object]]:
    torch.manual_seed(n)
    ours = MultiHeadAttention(D_MODEL, HEADS, causal=True)
    bare, module = Bare(ours), ours.to_torch()
    x = torch.randn(1, n, D_MODEL, requires_grad=True)
    blocked = nn.Transformer.generate_square_subsequent_mask(n)
    calls = {
        MODULE: lambda: module(x, x, x, attn_mask=blocked, is_causal=True, need_weights=False)[0],
        BARE: lambda: bare(x),
        OURS: lambda: ours(x)[0],
    }
    parameters = {MODULE: module, BARE: bare, OURS: ours}
    forward = {name: partial(_forward, call) for name, call in calls.items()}
    training = {
        name: partial(_training, call, x, list(parameters[name].parameters()))
        for name, call in calls.items()
    }
    rows = []
    for what, functions in (("forward", forward), ("training", training)):
        rows += _compared({"n": n, "what": what}, functions, rounds)
    return rows


def _decoding(n_kv_heads: int, rounds: int) -> list[dict[str, object]]:
    torch.manual_seed(n_kv_heads)
    ours = MultiHeadAttention(D_MODEL, HEADS, n_kv_heads=n_kv_heads, causal=True)
    bare, x = Bare(ours), torch.randn(1, DECODING, D_MODEL)
    with torch.no_grad():
        _, state = ours(x[:, :-1])
    new = x[:, -1:]
    calls = {
        BARE: lambda: [bare(new, (state.k, state.v)) for _ in range(20)][-1],
        OURS: lambda: [ours(new, state)[0] for _ in range(20)][-1],
    }
    functions = {name: partial(_forward, call) for name, call in calls.items()}
    what = f"20 decoded, {n_kv_heads} kv heads"
    return _compared({"n": DECODING, "what": what}, functions, rounds, targets={})


def _compared(
    head: dict[str, object],
    functions: dict[str, Callable[[], object]],
    rounds: int,
    targets: dict[str, float] = TARGETS,
) -> list[dict[str, object]]:
    """Compare ours with each of the others, interleaved."""
    rows = []
    ratios = {other: time_ratios(functions, other, rounds) for other in functions if other != OURS}
    for other, taken in ratios.items():
        limit, ratio = targets.get(other), taken[OURS]["ratio"]
        rows.append(
            head
            | {
                "against": other,
                "ms": taken[other]["ms"],
                "our ms": taken[OURS]["ms"],
                "ratio": ratio,
                "target": limit and {"limit": limit, "met": ratio <= limit},
                "MiB": peak_memory(functions[other]) / MIB,
                "our MiB": peak_memory(functions[OURS]) / MIB,
            }
        )
    return rows


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure forward and training at each length, and decoding.

    Args:
        lengths: rounds for each length; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each comparison.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        rows = [row for n, rounds in (lengths or LENGTHS).items() for row in _rows(n, rounds)]
        rows += [row for heads in (HEADS, 2) for row in _decoding(heads, 25)]
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    setting = {"batch": 1, "d_model": D_MODEL, "heads": HEADS, "dtype": "float32", "causal": True}
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its ratio, with a ! where it is missed."""
    lines = [
        "tfbook's MultiHeadAttention, ratio of its time to the other's in the same round",
        f"{'n':>5} {'what':<22} {'against':<22} {'ms':>8} {'our ms':>8} {'ratio':>12} "
        f"{'MiB':>7} {'our MiB':>8}",
    ]
    for row in results["rows"]:
        target = row["target"]
        ratio = f"{row['ratio']:.2f}"
        if target:
            ratio += f" ≤{target['limit']:g}{' ' if target['met'] else '!'}"
        lines.append(
            f"{row['n']:>5} {row['what']:<22} {row['against']:<22} {row['ms']:>8.2f} "
            f"{row['our ms']:>8.2f} {ratio:>12} {row['MiB']:>7.1f} {row['our MiB']:>8.1f}"
        )
    return "\n".join(lines)
