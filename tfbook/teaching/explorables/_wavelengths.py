"""encoding_wavelengths: the sinusoidal encoding as clocks that turn at different speeds."""

import math

import torch

from tfbook.positions import rotary_frequencies, sinusoidal_encoding, sinusoidal_wavelengths
from tfbook.teaching.explorables._base import Explorable, number, whole, wrapped

TITLE = "A position read from clocks"


def encoding_wavelengths(
    *,
    d_model: int = 32,
    base: float = 10_000.0,
    n_positions: int = 128,
    position: int = 10,
    pair: int = 3,
) -> Explorable:
    r"""Return a figure of the sinusoidal encoding: a clock for each pair of entries, and a curve.

    Pair $i$ holds $\sin(p\,\omega_i)$ and $\cos(p\,\omega_i)$ with
    $\omega_i = \text{base}^{-2i/d}$, so it turns once every
    $\lambda_i = 2\pi\,\text{base}^{2i/d}$ positions. On a dial whose hand starts on the right
    and turns counter-clockwise, the two entries are the hand's tip: up and across.

    Args:
        d_model: Number of entries, even, 4 to 64.
        base: From 2 to 1 000 000.
        n_positions: How many positions the curve shows, 16 to 512.
        position: From 0 to `n_positions` - 1.
        pair: Which pair the curve shows, 0 to `d_model` / 2 - 1.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [vaswani2017attention].
    Explained in: chapters/04_positions, section "Sinusoidal encoding".
    """
    d = whole("d_model", 4, 64)(d_model)
    if d % 2:
        raise ValueError(f"d_model must be even, got {d}")
    n = whole("n_positions", 16, 512)(n_positions)
    checks = {
        "position": whole("position", 0, n - 1),
        "pair": whole("pair", 0, d // 2 - 1),
        "base": number("base", 2, 1e6),
    }
    given = {"position": position, "pair": pair, "base": base}
    state = {name: check(given[name]) for name, check in checks.items()}

    def results(now: dict) -> dict:
        base, positions = now["base"], torch.tensor([now["position"]])
        frequency = rotary_frequencies(d, base=base)[now["pair"]].item()
        angle = now["position"] * frequency
        code = sinusoidal_encoding(positions, d, base=base, dtype=torch.double)[0]
        return {
            "frequency": frequency,
            "wavelength": waves_of(now)[now["pair"]],
            "angle": angle,
            "turns": angle / (2 * math.pi),
            "encoding": code.tolist(),
        }

    def waves_of(now: dict) -> list[float]:
        return sinusoidal_wavelengths(d, base=now["base"])[::2].tolist()

    def text(now: dict) -> str:
        got = results(now)
        waves = waves_of(now)
        i = now["pair"]
        return wrapped(f"""{TITLE}

        {d // 2} clocks encode a position in {d} numbers. With base {now["base"]:g} the
        first clock turns once every {waves[0]:.2f} positions and the last once every
        {waves[-1]:,.0f}. Clock {i} has the wavelength {waves[i]:.2f}; at position
        {now["position"]} it has made {got["turns"]:.3f} turns, so its numbers are
        sin = {got["encoding"][2 * i]:.3f} and cos = {got["encoding"][2 * i + 1]:.3f}.

        In the page, sliders move the position from 0 to {n - 1}, choose the clock and change the
        base; a dial for each clock turns with the position.""")

    data = {"title": TITLE, "d_model": d, "n_positions": n}
    return Explorable(
        "encoding_wavelengths", data=data, state=state, checks=checks, results=results, text=text
    )
