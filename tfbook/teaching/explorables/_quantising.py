"""quantisation_error: real weights on the grid of a few bits, and how far off they are."""

import torch

from tfbook.hardware import quantise, restore
from tfbook.teaching.explorables._base import Explorable, boolean, one_of, whole, wrapped
from tfbook.teaching.explorables._samples import CODES, COLUMNS, sample

TITLE = "Weights in few bits"
LABELS = {
    "ordinary": "layer 2, values",
    "outlier": "layer 2, FFN, with an outlier",
}
SHARED = {
    "tensor": "all 512", "channel": "a row of 128", 64: "64", 32: "32", 16: "16", 8: "8",
}  # fmt: skip
BITS = range(2, 9)
SCALE_BITS = 16  # of a scale, and of a zero point, as the packed weights hold them


def quantisation_error(
    weights: str = "outlier",
    *,
    bits: int = 4,
    shared: str | int = "tensor",
    symmetric: bool = True,
    group: int = 0,
) -> Explorable:
    r"""Return a figure of 512 weights of MiniLM-L6 that are rounded to whole numbers with scales.

    A weight $w$ becomes $\hat w = s (c - z)$ with a whole number $c$ of $b$ bits; $s$, and the
    zero point $z$ where it is not 0, are shared by all, by a row, or by a group of neighbours. The
    figure shows the grid of a group, the error of each weight, and
    $\lVert \hat W - W \rVert / \lVert W \rVert$ for 2 to 8 bits. A number takes
    $b + 16 / g$ bits with a scale for $g$ numbers, $b + 32 / g$ with a zero point too.

    Args:
        weights: "ordinary" or "outlier": which 4 rows of 128 weights.
        bits: b, 2 to 8.
        shared: Who shares a scale: "tensor", "channel" (a row), or 64, 32, 16 or 8 neighbours.
        symmetric: Whether 0 is in the middle of the grid; else there is a zero point.
        group: The group that is shown, from 0; at most the last one.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Example:
        >>> figure = quantisation_error("outlier", bits=4, shared="tensor")
        >>> round(figure.relative, 2), figure.zeros, figure.effective_bits
        (0.36, 0.484375, 4.03125)
        >>> figure.shared = 32
        >>> round(figure.relative, 2), figure.zeros, figure.effective_bits
        (0.12, 0.166015625, 4.5)

    Source: [jacob2018quantization]; the weights: [wang2020minilm].
    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    checks = {
        "weights": one_of("weights", *LABELS),
        "bits": whole("bits", BITS[0], BITS[-1]),
        "shared": _shared,
        "symmetric": boolean("symmetric"),
        "group": whole("group", 0, 63),
    }
    given = {
        "weights": weights, "bits": bits, "shared": shared, "symmetric": symmetric, "group": group,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}
    data = {
        "title": TITLE, "labels": LABELS, "columns": COLUMNS, "codes": CODES,
        "shared": list(SHARED.items()), "scale_bits": SCALE_BITS,
    }  # fmt: skip
    return Explorable(
        "quantisation_error", data=data, state=state, checks=checks, results=_results, text=_text
    )


def _shared(value):
    if isinstance(value, bool) or value not in SHARED:
        raise ValueError(f"shared must be one of {', '.join(map(str, SHARED))}, got {value!r}")
    return value


def _relative(matrix, **how) -> float:
    off = restore(quantise(matrix, **how)).double() - matrix.double()
    return (off.norm() / matrix.double().norm()).item()


def _results(now: dict) -> dict:
    matrix, bits = sample(now["weights"]), now["bits"]
    how = {"shared": now["shared"], "symmetric": now["symmetric"]}
    found = quantise(matrix, bits, **how)
    together = matrix.numel() // found.scale.numel()
    group = min(now["group"], found.scale.numel() - 1)
    # Flat, groups follow one another: each is of neighbours in a row, a row, or everything.
    scale, zero = (x.flatten()[group] for x in (found.scale, found.zero))
    codes = found.codes.flatten()[group * together : (group + 1) * together]
    low = -(2 ** (bits - 1)) + now["symmetric"]
    grid = scale * (torch.arange(low, 2 ** (bits - 1)) - zero)
    off = (restore(found).double() - matrix.double()).flatten()
    return {
        "group_shown": group,
        "groups": found.scale.numel(),
        "scale": scale.item(),
        "zero": int(zero),
        "grid": grid.tolist(),
        "used": int(codes.unique().numel()),
        "off": off.tolist(),
        "relative": _relative(matrix, bits=bits, **how),
        "largest": off.abs().max().item(),
        "zeros": (restore(found) == 0).double().mean().item(),
        "effective_bits": bits + SCALE_BITS * (1 if now["symmetric"] else 2) / together,
        "curves": {
            name: [
                _relative(matrix, bits=b, shared=now["shared"], symmetric=name == "symmetric")
                for b in BITS
            ]
            for name in ("symmetric", "zero_point")
        },
    }


def _text(now: dict) -> str:
    found = _results(now)
    how = "with 0 in the middle" if now["symmetric"] else "with a zero point"
    return wrapped(f"""{TITLE}

    512 weights of MiniLM-L6 ({LABELS[now["weights"]]}) in {now["bits"]} bits {how},
    a scale shared by {SHARED[now["shared"]]}: the error is {found["relative"]:.1%} of the weights,
    root mean square, and {found["zeros"]:.0%} of the weights become 0. A number takes
    {found["effective_bits"]:.3g} bits with its share of the scales. The grid of group
    {found["group_shown"]} of {found["groups"]} has steps of {found["scale"]:.3g}, and
    {found["used"]} of its {len(found["grid"])} numbers are used.

    In the page you choose the bits, who shares a scale and where 0 is, and see the histogram of the
    weights above the grid, and the error of each weight.""")
