"""Planted bugs in scans and state spaces, each caught without another implementation of the whole.

A check gets the modules of a copy of the package, sound or with the bug. What mixers are put
through (mixer_properties.py) is one of the checks.
"""

from dataclasses import dataclass
from types import ModuleType

import fresh
import mixer_properties
import pytest
import torch
from fresh import Mutant

NAMES = [f"tfbook.recurrent.{name}" for name in ("scan", "state_space", "mamba")]
DOUBLE = torch.float64


@dataclass(frozen=True)
class Kit:
    """The modules under test, as the checks call them."""

    scan: ModuleType
    state_space: ModuleType
    mamba: ModuleType


def kit_of(package: str, edits=None) -> Kit:
    fresh.copies(package, NAMES, edits)
    return Kit(*(fresh.copy_of(package, name) for name in NAMES))


@pytest.fixture(scope="module")
def kit():
    """The package as it is, for the checks as tests of their own."""
    return kit_of("sound_state_space")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def rows(n=7):
    a, b, state = normal(2, n, 3), normal(2, n, 3, seed=1), normal(2, 3, seed=2)
    return [each.requires_grad_() for each in (a, b, state)]


def test_each_row_follows_from_the_one_before(kit):
    for n in (1, 6, 7):
        a, b, state = rows(n)
        for scan in kit.scan.SCANS.values():
            h, last = scan(a, b, state=state)
            before = torch.cat([state[:, None], h[:, :-1]], 1)
            close(h, a * before + b)
            close(last, h[:, -1])


def test_chunks_of_any_size_give_the_same(kit):
    a, b, state = rows()
    for chunk in (1, 2, 3, 100):
        h, _ = kit.scan.scan_chunked(a, b, state=state, chunk=chunk)
        close(h[:, 1:], a[:, 1:] * h[:, :-1] + b[:, 1:])


def test_slopes_are_those_of_finite_differences(kit):
    scan = kit.scan.scan_sequential
    assert torch.autograd.gradcheck(
        lambda a, b, s: scan(a, b, state=s), rows(4), raise_exception=False
    )


def test_slopes_of_slopes_are_too(kit):
    scan = kit.scan.scan_sequential
    assert torch.autograd.gradgradcheck(
        lambda a, b: scan(a, b)[0], rows(3)[:2], raise_exception=False
    )


def test_a_tree_joins_letters_in_order(kit):
    for form in ("sequential", "hillis_steele", "blelloch"):
        for n in (2, 5, 8, 11):
            letters = "abcdefghijk"[:n]
            found = kit.scan.scan_tree(n, form).run(list(letters), str.__add__)
            assert found == [letters[: i + 1] for i in range(n)]


def test_two_half_steps_are_one(kit):
    a, b = normal(3, 3), normal(3, 1, seed=1)
    half, one = (kit.state_space.discretize(a, b, delta) for delta in (0.2, 0.4))
    close(half[0] @ half[0], one[0])
    close(half[0] @ half[1] + half[1], one[1])
    rate, delta = -normal(4).abs(), torch.tensor(0.2, dtype=DOUBLE)
    half, one = (kit.state_space.discretize_diagonal(rate, x) for x in (delta, 2 * delta))
    close(half[0] * half[1] + half[1], one[1])


def test_a_constant_is_remembered_as_a_constant_and_a_line_as_a_line(kit):
    held = kit.state_space.legendre_memory(torch.full((5,), 3.0, dtype=DOUBLE), 4)
    close(held, torch.tensor([3.0, 0.0, 0.0, 0.0], dtype=DOUBLE))
    places = torch.linspace(0, 1, 2001, dtype=DOUBLE)
    line = kit.state_space.legendre_memory(places, 4)
    close(kit.state_space.legendre_series(line, places), places, atol=2e-3)


def test_an_fft_does_not_go_round(kit):
    x, kernel = normal(6, 2), normal(2, 6, seed=1)
    later = torch.cat([x[:5], 100 * x[5:]])
    close(
        kit.state_space.convolve_causal(later, kernel)[:5],
        kit.state_space.convolve_causal(x, kernel)[:5],
    )


def test_a_delta_of_zero_changes_nothing(kit):
    given = [normal(1, 4, 3), torch.zeros(1, 4, 3, dtype=DOUBLE), -normal(3, 2).exp()]
    b, c, state = normal(1, 4, 2), normal(1, 4, 2, seed=3), normal(1, 3, 2)
    y, last = kit.mamba.selective_scan(*given, b, c, state=state)
    close(last, state)
    close(y, torch.einsum("bns,bds->bnd", c, state))


def test_a_long_step_forgets(kit):
    one, delta = torch.ones(1, 4, 1, dtype=DOUBLE), torch.full((1, 4, 1), 60.0, dtype=DOUBLE)
    _, last = kit.mamba.selective_scan(one, delta, -one[0, :1], one, one, state=1e3 * one[:, :1])
    close(last, 60.0 * one[:, :1])


def test_the_dual_is_attention(kit):
    x, b, c = normal(2, 9, 3), normal(2, 9, 4, seed=1), normal(2, 9, 4, seed=2)
    delta, a = normal(2, 9, seed=3).exp(), -normal(2, seed=4).exp()
    fade = (delta * a[:, None]).exp()
    weights = torch.zeros(2, 9, 9, dtype=DOUBLE)
    for t in range(9):
        for s in range(t + 1):
            faded = fade[:, s + 1 : t + 1].prod(-1)
            weights[:, t, s] = faded * (c[:, t] * b[:, s]).sum(-1) * delta[:, s]
    for form in ("parallel", "recurrent", "chunked"):
        close(kit.mamba.state_space_dual(x, delta, a, b, c, form=form)[0], weights @ x)
    mask = kit.mamba.semiseparable_mask(delta * a[:, None])
    close(mask * (c @ b.mT) * delta[:, None], weights)


def test_mixers_are_mixers(kit):
    makes = [
        lambda: kit.state_space.S4DMixer(6, 4, delta=(0.1, 0.5)),
        lambda: kit.mamba.MambaMixer(6, 3, delta=(0.1, 0.9)),
        lambda: kit.mamba.Mamba2Mixer(6, 3, d_head=3, n_groups=2, chunk=3, delta=(0.1, 0.9)),
    ]
    names = ["pieces_with_a_state_are_the_whole", "gaps_are_as_good_as_not_there"]
    for name in [*names, "a_state_can_be_chosen_from"]:
        for make in makes:
            mixer_properties.CHECKS[f"test_{name}"](make)


def test_groups_keep_to_themselves(kit):
    """B and C of one group are seen by its heads alone, so the norm of the other stays."""
    torch.manual_seed(0)
    mixer = kit.mamba.Mamba2Mixer(4, 3, d_head=2, n_groups=2, conv_bias=False).double()
    mixer.out_proj = torch.nn.Identity()
    x = normal(1, 5, 4)
    before, _ = mixer(x)
    with torch.no_grad():  # rows of B of the second group, behind z (8) and v (8), B of the first
        mixer.in_proj.weight[8 + 8 + 3 : 8 + 8 + 6] *= -2
    after, _ = mixer(x)
    close(after[..., :4], before[..., :4])
    assert ((after - before)[..., 4:].abs() > 1e-3).any()
    close(before.unflatten(-1, (2, 4)).square().mean(-1).mean(), torch.ones((), dtype=DOUBLE), 0.2)


CHECKS = {name: each for name, each in list(globals().items()) if name.startswith("test_")}

MUTANTS = [
    Mutant(
        "an operator in the wrong order",
        "tfbook.recurrent.scan",
        "return a_next * a, a_next * b + b_next",
        "return a_next * a, a * b_next + b",
        "test_each_row_follows_from_the_one_before",
    ),
    Mutant(
        "factors of Hillis and Steele that do not grow",
        "tfbook.recurrent.scan",
        "a = a[:, reach:] * a[:, :-reach]",
        "a = a[:, reach:]",
        "test_each_row_follows_from_the_one_before",
    ),
    Mutant(
        "even places of the tree taken one pair too early",
        "tfbook.recurrent.scan",
        "h[:, 2::2] = torch.addcmul(b[:, 2::2], a[:, 2::2], odd[",
        "h[:, 2::2] = torch.addcmul(b[:, 2::2], a[:, 2::2], odd.roll(1, 1)[",
        "test_each_row_follows_from_the_one_before",
    ),
    Mutant(
        "chunks that end with what they began with",
        "tfbook.recurrent.scan",
        "before = torch.cat([start[:, None], ends[:, :-1]], dim=1)[:, :, None]",
        "before = ends[:, :, None]",
        "test_chunks_of_any_size_give_the_same",
    ),
    Mutant(
        "an adjoint with factors that are not shifted",
        "tfbook.recurrent.scan",
        "g = torch.addcmul(slope[t - 1], a[t], g, out=db_t[t - 1])",
        "g = torch.addcmul(slope[t - 1], a[t - 1], g, out=db_t[t - 1])",
        "test_slopes_are_those_of_finite_differences",
    ),
    Mutant(
        "a start without a gradient",
        "tfbook.recurrent.scan",
        "return da, db, a[0] * g",
        "return da, db, torch.zeros_like(start)",
        "test_slopes_are_those_of_finite_differences",
    ),
    Mutant(
        "second derivatives off by one row",
        "tfbook.recurrent.scan",
        "u[:, :-1] * g[:, 1:].conj()], dim=1), u",
        "u[:, 1:] * g[:, 1:].conj()], dim=1), u",
        "test_slopes_of_slopes_are_too",
    ),
    Mutant(
        "a tree that goes down as it went up",
        "tfbook.recurrent.scan",
        "for t in range(3 * s - 1, n, 2 * s)] for s in strides[::-1]]",
        "for t in range(3 * s - 1, n, 2 * s)] for s in strides]",
        "test_a_tree_joins_letters_in_order",
    ),
    Mutant(
        "Euler's B in the place of a zero-order hold",
        "tfbook.recurrent.state_space",
        "return step.exp(), delta * share",
        "return step.exp(), delta * torch.ones_like(share)",
        "test_two_half_steps_are_one",
    ),
    Mutant(
        "a hold of B with half of its time",
        "tfbook.recurrent.state_space",
        "both = torch.linalg.matrix_exp(delta * both)",
        "both = torch.linalg.matrix_exp(delta * both) + 0.01 * both",
        "test_two_half_steps_are_one",
    ),
    Mutant(
        "HiPPO with its triangle turned",
        "tfbook.recurrent.state_space",
        "(root[:, None] * root).tril(-1)",
        "(root[:, None] * root).triu(1)",
        "test_a_constant_is_remembered_as_a_constant_and_a_line_as_a_line",
    ),
    Mutant(
        "an FFT in a circle",
        "tfbook.recurrent.state_space",
        "size = n + kernel.shape[-1] - 1",
        "size = n",
        "test_an_fft_does_not_go_round",
    ),
    Mutant(
        "what is left of a state read one step too early",
        "tfbook.recurrent.state_space",
        "held * c, powers[..., 1:]",
        "held * c, powers[..., :-1]",
        "test_mixers_are_mixers",
    ),
    Mutant(
        "padding that fades",
        "tfbook.recurrent.state_space",
        "a, rows = torch.where(here, a, 1.0), torch.where(here, rows, 0.0)",
        "rows = torch.where(here, rows, 0.0)",
        "test_mixers_are_mixers",
    ),
    Mutant(
        "B without its step",
        "tfbook.recurrent.mamba",
        "written = (delta * x)[..., None] * b[:, :, None]",
        "written = x[..., None] * b[:, :, None]",
        "test_a_delta_of_zero_changes_nothing",
    ),
    Mutant(
        "a past that grows",
        "tfbook.recurrent.mamba",
        "fade = (delta[..., None] * a).exp()",
        "fade = (-delta[..., None] * a).exp()",
        "test_a_long_step_forgets",
    ),
    Mutant(
        "padding in Mamba that fades",
        "tfbook.recurrent.mamba",
        "delta = delta.masked_fill(~tokens[..., None], 0.0)",
        "u = u.masked_fill(~tokens[..., None], 0.0)",
        "test_mixers_are_mixers",
    ),
    Mutant(
        "a convolution that starts anew with each piece",
        "tfbook.recurrent.mamba",
        "v, b, c = functional.silu(u).split(",
        "u, conv = self.conv(u, None, mask=mask)\n        v, b, c = functional.silu(u).split(",
        "test_mixers_are_mixers",
    ),
    Mutant(
        "a mask that fades one step too much",
        "tfbook.recurrent.mamba",
        "masked_fill(~causal.tril(-1), 0.0)",
        "masked_fill(~causal, 0.0)",
        "test_the_dual_is_attention",
    ),
    Mutant(
        "values of the dual without their step",
        "tfbook.recurrent.mamba",
        "c, b, x * delta[..., None], log_decay",
        "c, b, x, log_decay",
        "test_the_dual_is_attention",
    ),
    Mutant(
        "heads that take the groups in turn",
        "tfbook.recurrent.mamba",
        "rows.repeat_interleave(self.n_heads // self.n_groups, dim=1)",
        "rows.repeat(1, self.n_heads // self.n_groups, 1, 1)",
        "test_groups_keep_to_themselves",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_a_planted_bug_is_caught(mutant):
    broken = kit_of("mutant_state_space", mutant.edits)
    with pytest.raises(AssertionError):
        CHECKS[mutant.caught_by](broken)
