"""float_bits: a number in a format bit by bit, with its error and its neighbours."""

import math

import torch

from tfbook.hardware import FORMATS, IntFormat, decode, encode
from tfbook.teaching.explorables._base import Explorable, number, one_of, whole, wrapped

TITLE = "A number, bit by bit"
NAMES = ("fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2", "e2m1", "int8", "int4")
LABELS = {"e4m3": "fp8 e4m3", "e5m2": "fp8 e5m2", "e2m1": "fp4 e2m1"}
SCALES = [base * 10.0**power for power in range(-3, 1) for base in (1, 2, 5)]
# What a format does to them is worth seeing: see EXAMPLES in the order of the buttons.
EXAMPLES = [0.1, 1.0, 1 / 3, 257.0, 65_519.0, 65_520.0, 1e-8, 3e38]
LARGEST = 1e300


def float_bits(
    value: float = 0.1,
    *,
    format: str = "fp16",
    code: int | None = None,
    scale: float = 0.01,
) -> Explorable:
    r"""Return a figure of a number bit by bit: sign, exponent and fraction can be switched.

    With $E$ and $M$ the fields of $e$ and $m$ bits read as whole numbers, a floating-point pattern
    stands for $\pm 2^{E - \text{bias}} (1 + M / 2^m)$, and for $\pm 2^{1 - \text{bias}} M / 2^m$ if
    $E = 0$. A whole number $c$ stands for $s c$. The figure shows the number of the format that is
    nearest to `value`, how far it is off and how far its neighbours are.

    Args:
        value: The number that is wanted.
        format: "fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2", "e2m1", "int8" or "int4".
        code: The pattern that is shown, of which the page may switch each bit; the nearest to
            `value` when omitted.
        scale: s, which whole numbers are multiplied by, 0.001 to 5.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Example:
        >>> figure = float_bits(65_520.0, format="fp16")
        >>> figure.shown, figure.event
        (inf, 'overflow')
        >>> figure.format = "bf16"
        >>> figure.shown, figure.spacing
        (65536.0, 512.0)

    Source: of 8 bits: [micikevicius2022fp8], of 4: [rouhani2023microscaling].
    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """
    if code is not None:
        one_of("format", *NAMES)(format)
        whole("code", 0, 2 ** FORMATS[format].bits - 1)(code)
    checks = {
        "format": one_of("format", *NAMES),
        "value": number("value", -LARGEST, LARGEST),
        "code": whole("code", -1, 2**32 - 1),  # -1: the nearest
        "scale": number("scale", SCALES[0], SCALES[-1]),
    }
    given = {"format": format, "value": value, "code": -1 if code is None else code, "scale": scale}
    state = {name: check(given[name]) for name, check in checks.items()}
    data = {
        "title": TITLE, "scales": SCALES, "examples": EXAMPLES,
        "formats": {name: _described(name) for name in NAMES},
    }  # fmt: skip
    return Explorable(
        "float_bits", data=data, state=state, checks=checks, results=_results, text=_text
    )


def _described(name: str) -> dict:
    """What the browser needs to know of a format."""
    form = FORMATS[name]
    if isinstance(form, IntFormat):
        return {"label": name, "bits": form.bits, "whole": True}
    return {
        "label": LABELS.get(name, name), "bits": form.bits, "exponent": form.exponent,
        "mantissa": form.mantissa, "bias": form.bias, "special": form.special, "last": form.last,
    }  # fmt: skip


def _number(code: int, form, scale: float) -> float:
    return scale * decode(torch.tensor(code), form, dtype=torch.float64).item()


def _nearest(wanted: float, form, scale: float) -> int:
    return int(encode(torch.tensor(wanted / scale, dtype=torch.float64), form))


def _next(code: int, form, steps: int) -> int | None:
    """The pattern of the next finite number above or below; None where there is none."""
    if isinstance(form, IntFormat):
        place = code - 2**form.bits * (code > form.largest) + steps
        return place % 2**form.bits if -form.largest - 1 <= place <= form.largest else None
    sign = 2 ** (form.bits - 1)
    size = code % sign
    place = (-size if code >= sign else size) + steps
    if size > form.last or abs(place) > form.last:
        return None
    return place if place >= 0 else -place + sign


def _results(now: dict) -> dict:
    form, wanted = FORMATS[now["format"]], now["value"]
    is_whole = isinstance(form, IntFormat)
    scale = now["scale"] if is_whole else 1.0
    chosen = 0 <= now["code"] < 2**form.bits
    code = now["code"] if chosen else _nearest(wanted, form, scale)
    shown = _number(code, form, scale)
    below, above = (_next(code, form, steps) for steps in (-1, 1))
    below, above = (None if c is None else _number(c, form, scale) for c in (below, above))
    gaps = [None if x is None else abs(x - shown) for x in (below, above)]
    outward, inward = gaps if math.copysign(1, shown) < 0 else gaps[::-1]
    fields = {"sign": None, "exponent": None, "fraction": None}
    if not is_whole:
        sizes = form.exponent, form.mantissa
        fields = {
            "sign": code >> (form.bits - 1), "exponent": code >> sizes[1] & (2 ** sizes[0] - 1),
            "fraction": code & (2 ** sizes[1] - 1),
        }  # fmt: skip
    finite = math.isfinite(shown)
    return {
        "pattern": code,
        **fields,
        "shown": shown,
        "error": shown - wanted if finite else None,
        "relative": abs(shown - wanted) / abs(wanted) if finite and wanted else None,
        "spacing": inward if outward is None else outward,
        "below": below,
        "above": above,
        "kind": _kind(shown, fields["exponent"]),
        "event": _event(wanted, shown, chosen, form, scale),
        "largest": scale * form.largest,
        "least": scale * (1 if is_whole else form.least),
        "all": {name: _rounded(wanted, name, now["scale"]) for name in NAMES},
    }


def _rounded(wanted: float, name: str, scale: float) -> float:
    """The nearest number of a format."""
    form = FORMATS[name]
    scale = scale if isinstance(form, IntFormat) else 1.0
    return _number(_nearest(wanted, form, scale), form, scale)


def _kind(shown: float, exponent: int | None) -> str:
    if not math.isfinite(shown):
        return "NaN" if math.isnan(shown) else "infinity"
    if shown == 0:
        return "zero"
    return "whole" if exponent is None else "normal" if exponent else "subnormal"


def _event(wanted: float, shown: float, chosen: bool, form, scale: float) -> str:
    if shown == wanted:
        return "exact"
    if chosen:
        return "chosen"
    ends = isinstance(form, IntFormat) or form.beyond is None  # what is too large is held there
    most = scale * (form.largest + (isinstance(form, IntFormat) and wanted < 0))
    if not math.isfinite(shown) or (ends and abs(wanted) > most):
        return "overflow"
    return "underflow" if shown == 0 else "rounded"


def _text(now: dict) -> str:
    found, name = _results(now), LABELS.get(now["format"], now["format"])
    form = FORMATS[now["format"]]
    bits = f"{found['pattern']:0{form.bits}b}"
    if found["sign"] is not None:
        bits = " ".join((bits[0], bits[1 : 1 + form.exponent], bits[1 + form.exponent :]))
    said = {
        "exact": "exactly the number that is wanted",
        "chosen": f"{now['value']:.6g} was wanted",
        "overflow": f"{now['value']:.6g} is beyond the largest number, {found['largest']:.6g}",
        "underflow": f"{now['value']:.6g} is nearer to 0 than to the least number, "
        f"{found['least']:.6g}",
        "rounded": f"{now['value']:.10g} was wanted",
    }[found["event"]]
    near = ""
    if found["spacing"] is not None:
        near = f" The next number is {found['spacing']:.6g} away."
    return wrapped(f"""{TITLE}

    The bits {bits} in {name} stand for {found["shown"]:.10g}: {said}.{near} The largest finite
    number of this format is {found["largest"]:.6g}, the least positive one {found["least"]:.6g}.

    In the page you choose the format, type a number and switch its bits: sign, exponent and
    fraction, with the value they stand for, its error and its neighbours.""")
