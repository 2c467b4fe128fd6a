"""State spaces: made discrete, as recurrence and as convolution, and what HiPPO remembers."""

import math

import mixer_properties
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tfbook.recurrent import (
    S4DMixer,
    convolve_causal,
    discretize,
    discretize_diagonal,
    hippo_legs,
    legendre_memory,
    legendre_series,
    s4d_initial,
)

DOUBLE = torch.float64


def normal(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def integrate(a, b, x, delta, pieces=300):
    """Follow h' = A h + B x from 0 over one step with x constant: fourth-order Runge and Kutta."""
    h, step = torch.zeros(a.shape[-1], dtype=DOUBLE), delta / pieces
    slope = lambda h: a @ h + b @ x  # noqa: E731
    for _ in range(pieces):
        one = slope(h)
        two = slope(h + step / 2 * one)
        three = slope(h + step / 2 * two)
        four = slope(h + step * three)
        h = h + step / 6 * (one + 2 * two + 2 * three + four)
    return h


# discrete steps


def test_zero_order_hold_is_the_solution_of_the_equation():
    a, b, x, delta = normal(4, 4), normal(4, 2, seed=1), normal(2, seed=2), 0.3
    a[3] = a[2]  # singular, there is no A⁻¹
    steps, inputs = discretize(a, b, delta)
    close(inputs @ x, integrate(a, b, x, delta))
    grown = integrate(a, a, normal(4, seed=3), delta) + normal(4, seed=3)  # from h_0 and no x
    close(steps @ normal(4, seed=3), grown)
    both, _ = discretize(a, b, 2 * delta)
    close(both, steps @ steps)


def test_bilinear_is_the_trapezoid_and_right_to_second_order():
    a, b, x = normal(3, 3), normal(3, 1, seed=1), normal(1, seed=2)
    errors = []
    for delta in (0.1, 0.05):
        steps, inputs = discretize(a, b, delta, method="bilinear")
        h = normal(3, seed=4)
        new = steps @ h + inputs @ x
        close(new - h, delta / 2 * (a @ (h + new)) + delta * b @ x, atol=1e-12)
        errors.append((steps - discretize(a, b, delta)[0]).abs().max())
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.15)  # of one step: Δ³


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_a_diagonal_is_a_matrix(method):
    a, delta = -normal(5).abs(), 0.4
    steps, inputs = discretize(torch.diag(a), torch.ones(5, 1, dtype=DOUBLE), delta, method=method)
    mine = discretize_diagonal(a, torch.tensor(delta, dtype=DOUBLE), method=method)
    close(mine[0], steps.diagonal())
    close(mine[1], inputs[:, 0])
    turning = torch.tensor([-0.3 + 2j], dtype=torch.complex128)  # a pair as a real matrix
    matrix = torch.tensor([[-0.3, -2.0], [2.0, -0.3]], dtype=DOUBLE)
    steps, inputs = discretize(matrix, torch.eye(2, dtype=DOUBLE)[:, :1], delta, method=method)
    mine = discretize_diagonal(turning, torch.tensor(delta, dtype=DOUBLE), method=method)
    close(torch.view_as_real(mine[0])[0], steps[:, 0])
    close(torch.view_as_real(mine[1])[0], inputs[:, 0])


def test_small_steps_lose_no_digits():
    for dtype in (DOUBLE, torch.complex128):
        a = torch.tensor([0.0, 1e-12, -1e-7, -1e-5, -9.9e-5, -1.01e-4, -1e-3, -0.5]).to(dtype)
        a = a.requires_grad_()
        _, inputs = discretize_diagonal(a, torch.ones((), dtype=DOUBLE))
        wanted = [1.0 if x == 0 else math.expm1(x) / x for x in a.detach().real.tolist()]
        close(inputs.real, torch.tensor(wanted, dtype=DOUBLE), atol=1e-12)
        (slope,) = torch.autograd.grad(inputs.real.sum(), a)
        assert slope.isfinite().all() and slope.real[0] == pytest.approx(0.5)


# convolution


def test_the_convolution_is_that_of_torch():
    x, kernel = normal(2, 9, 3).requires_grad_(), normal(3, 9, seed=1).requires_grad_()
    got = convolve_causal(x, kernel)
    padded = functional.pad(x.mT, (8, 0))
    wanted = functional.conv1d(padded, kernel.flip(-1)[:, None], groups=3).mT
    close(got, wanted)
    weights = normal(2, 9, 3, seed=2)
    found = torch.autograd.grad((got * weights).sum(), (x, kernel))
    exact = torch.autograd.grad((wanted * weights).sum(), (x, kernel))
    for mine, theirs in zip(found, exact, strict=True):
        close(mine, theirs)
    short = convolve_causal(x, kernel[:, :2])
    close(short[:, 5], kernel[:, 0] * x[:, 5] + kernel[:, 1] * x[:, 4])
    assert convolve_causal(x[:, :0], kernel).shape == (2, 0, 3)


# S4D


@pytest.mark.parametrize("name", mixer_properties.cases())
def test_s4d_has_the_properties_of_a_mixer(name):
    mixer_properties.CHECKS[name](lambda: S4DMixer(6, 8, delta=(0.05, 0.5)))


def example(kind="lin"):
    torch.manual_seed(0)
    return S4DMixer(5, 8, kind=kind, delta=(0.01, 0.5)).double()


def parts(mixer):
    """Return A, Δ and C from the parameters, in NumPy, with the conjugates written out."""
    a = -np.exp(mixer.log_rate.detach().numpy()) + 1j * mixer.speed.detach().numpy()
    c = mixer.c.detach().numpy() @ np.array([1, 1j])
    delta = np.exp(mixer.log_delta.detach().numpy())
    return np.concatenate([a, a.conj()], -1), delta, np.concatenate([c, c.conj()], -1)


@pytest.mark.parametrize("kind", ["lin", "inv"])
def test_recurrence_and_convolution_are_one_map(kind):
    mixer, x = example(kind), normal(2, 40, 5).requires_grad_()
    whole, end = mixer(x)
    state, rows = None, []
    for row in x.split(1, dim=1):  # a row alone goes the recurrent way
        y, state = mixer(row, state)
        rows.append(y)
    close(torch.cat(rows, 1), whole)
    close(state.h, end.h)
    everything = [x, *mixer.parameters()]
    weights = normal(2, 40, 5, seed=3)
    found = torch.autograd.grad((torch.cat(rows, 1) * weights).sum(), everything)
    exact = torch.autograd.grad((whole * weights).sum(), everything)
    for mine, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-9)


def test_the_kernel_is_c_times_a_power_of_a_times_b_with_matrices():
    mixer = example()
    a, delta, c = parts(mixer)
    kernel = mixer.kernel(6).detach()
    for column in range(5):
        system = torch.diag(torch.from_numpy(a[column]))
        # The pair a ± ib as a real matrix: discretize() takes those.
        matrix = torch.block_diag(
            *[torch.tensor([[z.real, -z.imag], [z.imag, z.real]]) for z in a[column][:4]]
        )
        ones = torch.tensor([[1.0], [0.0]] * 4, dtype=DOUBLE)
        steps, inputs = discretize(matrix, ones, float(delta[column]))
        reads = torch.tensor([[2 * z.real, -2 * z.imag] for z in c[column][:4]]).flatten()
        wanted = [reads @ torch.linalg.matrix_power(steps, power) @ inputs for power in range(6)]
        close(kernel[column], torch.stack(wanted)[:, 0])
        assert system.shape == (8, 8)  # as many numbers as d_state says


def test_z_is_the_convolution_in_numpy():
    mixer, x = example(), normal(1, 12, 5)
    mixer.out_proj = nn.Identity()  # shows GELU(z) to the gate
    z = []
    a, delta, c = parts(mixer)
    for column in range(5):
        steps = np.exp(delta[column] * a[column])
        inputs = (steps - 1) / a[column]
        powers = steps ** np.arange(12)[:, None]
        kernel = (powers @ (c[column] * inputs)).real
        z.append(np.convolve(x[0, :, column].numpy(), kernel)[:12] + x[0, :, column].numpy())
    wanted = functional.gelu(torch.from_numpy(np.stack(z, -1)))
    with torch.no_grad():
        mixer.out_proj = nn.Linear(5, 10).double()
        mixer.out_proj.weight.copy_(torch.cat([torch.eye(5), torch.zeros(5, 5)]))
        mixer.out_proj.bias.copy_(torch.cat([torch.zeros(5), torch.full((5,), 100.0)]))
    close(mixer(x)[0][0].detach(), wanted)


def test_the_first_numbers_are_those_of_the_paper():
    lin, inv = s4d_initial(6), s4d_initial(6, "inv")
    assert (lin.real == -0.5).all() and (inv.real == -0.5).all()
    close(lin.imag, math.pi * torch.arange(3, dtype=DOUBLE))
    wanted = [6 / math.pi * (6 / (2 * n + 1) - 1) for n in range(3)]
    close(inv.imag, torch.tensor(wanted, dtype=DOUBLE))


def test_inv_is_near_the_spectrum_of_hippo():
    """S4D-Inv imitates the imaginary parts of HiPPO-LegS's normal part (Gu et al. 2022)."""
    size = 64
    a, b = hippo_legs(size)
    normal_part = a + b @ b.mT / 2
    speeds = torch.linalg.eigvals(normal_part).imag.sort(descending=True).values[: size // 2]
    mine = s4d_initial(size, "inv").imag
    off = (mine - speeds).abs() / speeds
    assert off[0] < 0.02 and off[: size // 4].max() < 0.25  # near for the fast ones
    shift = normal_part + torch.eye(size, dtype=DOUBLE) / 2
    close(shift, -shift.mT)  # −1/2 and a turn, so all real parts are −1/2


def test_a_state_stays_bounded_however_long_the_sequence():
    mixer = example()
    with torch.no_grad():
        _, state = mixer(torch.ones(1, 3000, 5, dtype=DOUBLE))
        _, same = mixer(torch.ones(1, 500, 5, dtype=DOUBLE), state)
    assert state.nbytes == 5 * 8 * 8 and state.length == 3000
    close(same.h, state.h, atol=1e-3 * float(state.h.abs().max()))


# HiPPO


def basis(n, places):
    one = np.zeros(n + 1)
    one[n] = math.sqrt(2 * n + 1)
    return np.polynomial.legendre.legval(2 * places - 1, one)


def test_the_memory_holds_the_legendre_coefficients_of_what_was_read():
    x = normal(2, 13)
    held = legendre_memory(x, 6)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    for n in range(6):
        total = np.zeros(2)
        for k in range(13):  # exact for polynomials, and x is constant in each piece
            places = (k + (nodes + 1) / 2) / 13
            total += x[:, k].numpy() * (basis(n, places) * weights).sum() / 2 / 13
        close(held[:, n], torch.from_numpy(total))


def test_a_smooth_past_can_be_drawn_again_from_few_numbers():
    places = (torch.arange(400, dtype=DOUBLE) + 0.5) / 400
    past = torch.sin(7 * places) + places**2
    errors = []
    for size in (2, 6, 12):
        drawn = legendre_series(legendre_memory(past, size), places)
        errors.append((drawn - past).abs().max())
    assert errors[0] > 0.3 > errors[1] > 1e-3 > errors[2]


def test_the_series_is_that_of_numpy():
    places, c = torch.linspace(0, 1, 7, dtype=DOUBLE), normal(3, 5)
    wanted = sum(c[:, n : n + 1].numpy() * basis(n, places.numpy()) for n in range(5))
    close(legendre_series(c, places), torch.from_numpy(wanted))
    close(legendre_series(c[:, :1], places), c[:, :1].expand(3, 7))
    close(legendre_series(c[:, :0], places), torch.zeros(3, 7, dtype=DOUBLE))


def test_legs_follows_the_equation_it_stands_for():
    """d/dt of the coefficients of a polynomial on [0, t] is (A h + B x(t)) / t."""
    a, b = hippo_legs(5)
    nodes, weights = np.polynomial.legendre.leggauss(12)

    def coefficients(t):
        places = (nodes + 1) / 2
        values = (t * places) ** 3 - t * places
        return np.array([(values * basis(n, places) * weights).sum() / 2 for n in range(5)])

    t, step = 1.7, 1e-5
    slope = (coefficients(t + step) - coefficients(t - step)) / (2 * step)
    wanted = (a.numpy() @ coefficients(t) + b[:, 0].numpy() * (t**3 - t)) / t
    np.testing.assert_allclose(slope, wanted, atol=1e-8)


@pytest.mark.untyped
def test_what_does_not_fit_is_refused():
    a, b = normal(3, 3), normal(3, 1)
    one = torch.ones((), dtype=DOUBLE)
    for error, name, call in [
        (ValueError, "a must", lambda: discretize(a[:2], b, 0.1)),
        (ValueError, "b must", lambda: discretize(a, b[:2], 0.1)),
        (TypeError, "delta", lambda: discretize(a, b, True)),
        (ValueError, "delta", lambda: discretize(a, b, 0.0)),
        (ValueError, "method", lambda: discretize(a, b, 0.1, method="euler")),
        (ValueError, "broadcast", lambda: discretize(a.expand(2, 3, 3), b.expand(5, 3, 1), 0.1)),
        (TypeError, "a must", lambda: discretize_diagonal(a.long(), one)),
        (TypeError, "equally precise", lambda: discretize_diagonal(a.float(), one)),
        (ValueError, "broadcast", lambda: discretize_diagonal(a, normal(2))),
        (ValueError, "method", lambda: discretize_diagonal(a, one, method="zero")),
        (ValueError, "size", lambda: s4d_initial(5)),
        (ValueError, "kind", lambda: s4d_initial(4, "legs")),
        (ValueError, "kernel", lambda: convolve_causal(normal(4, 3), normal(2, 4))),
        (TypeError, "dtype", lambda: convolve_causal(normal(4, 3), normal(3, 4).float())),
        (TypeError, "size", lambda: hippo_legs(2.0)),
        (TypeError, "dtype", lambda: hippo_legs(2, dtype=torch.int64)),
        (ValueError, "x must hold", lambda: legendre_memory(normal(3, 0), 2)),
        (ValueError, "places", lambda: legendre_series(normal(3), normal(2, 2))),
        (TypeError, "delta", lambda: S4DMixer(4, 4, delta=0.1)),
        (ValueError, "delta", lambda: S4DMixer(4, 4, delta=(0.2, 0.1))),
        (ValueError, "d_model", lambda: S4DMixer(0, 4)),
        (ValueError, "n must", lambda: S4DMixer(4, 4).kernel(-1)),
    ]:
        with pytest.raises(error, match=name):
            call()
