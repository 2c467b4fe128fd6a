"""What is true of every mixer, as checks that any mixer of the book can be put through.

A mixer is `mixer(x, state=None, *, mask=None) -> (y, state)` with rows x (B, N, d_model). A check
is `check(make)`, where `make()` returns a fresh causal mixer with random weights; it raises
AssertionError when the property does not hold. A test file writes

    @pytest.mark.parametrize("name", mixer_properties.cases())
    def test_as_a_mixer(name):
        mixer_properties.CHECKS[name](make)

`cases(lacks=["mask"])` leaves out groups of checks that a mixer is not made for: "state", "causal",
"mask", "gaps" (tokens that are masked in the middle), "half" (16-bit numbers), "state dtype".
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from tfbook.blocks import BlockState

B, N = 3, 7
# Ways to cut N rows into pieces.
CUTS = ([1] * N, [N - 1, 1], [1, N - 1], [3, 4], [2, 0, 1, 4])
DOUBLE = torch.float64
Make = Callable[[], nn.Module]

CHECKS: dict[str, Callable[[Make], None]] = {}
GROUPS: dict[str, str] = {}
UNTYPED: set[str] = set()


def check(group: str = "", *, untyped: bool = False) -> Callable:
    """Put the function below among the checks; it is called with mixer, x and a generator."""

    def keep(run):
        def checked(make: Make) -> None:
            mixer, x = example(make)
            run(mixer, x)

        CHECKS[run.__name__], GROUPS[run.__name__] = checked, group
        if untyped:
            UNTYPED.add(run.__name__)
        return run

    return keep


def cases(lacks: Iterable[str] = ()) -> list:
    """Return the names of the checks as parameters of a test, without some groups."""
    names = [name for name, group in GROUPS.items() if group not in set(lacks)]
    return [
        pytest.param(name, marks=pytest.mark.untyped if name in UNTYPED else ()) for name in names
    ]


def checks(make: Make, lacks: Iterable[str] = ()) -> None:
    """Put a mixer through all checks but some groups; for planted bugs and toys."""
    for case in cases(lacks):
        (name,) = case.values
        try:
            CHECKS[name](make)
        except Exception as error:
            error.add_note(f"in {name}")
            raise


def normal(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=DOUBLE)


def width(mixer: nn.Module) -> int:
    """Find d_model: what the mixer says, or the rows that its first linear map takes."""
    return getattr(mixer, "d_model", None) or next(
        part.in_features for part in mixer.modules() if isinstance(part, nn.Linear)
    )


def example(make: Make) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mixer = make().double().eval()
    return mixer, normal(B, N, width(mixer))


def close(got, wanted, atol=1e-9, rtol=0.0):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=rtol)


def tensors(state: object) -> list[Tensor]:
    """List the tensors that a state is made of."""
    if isinstance(state, Tensor):
        return [state]
    if dataclasses.is_dataclass(state):
        state = [getattr(state, each.name) for each in dataclasses.fields(state)]
    return [t for each in state for t in tensors(each)] if isinstance(state, list | tuple) else []


def in_pieces(mixer, x, cut, mask=None):
    """Feed x piece by piece, each with the part of the padding mask that is its own."""
    state, pieces, start = None, [], 0
    for size in cut:
        own = None if mask is None else mask[:, None, start : start + size]
        y, state = mixer(x[:, start : start + size], state, mask=own)
        pieces.append(y)
        start += size
    return torch.cat(pieces, dim=1), state


def slopes(y, mixer, x):
    """Return the gradients of Σ c y, c fixed random numbers, in x and in all parameters."""
    loss = (y * normal(*y.shape, seed=5)).sum()
    return torch.autograd.grad(loss, [x, *mixer.parameters()], allow_unused=True)


def refused(error, name, call):
    """Assert that a call raises one of ours, which names the argument."""
    with pytest.raises(error) as caught:
        call()
    assert name in str(caught.value), f"{caught.value!r} does not speak of {name}"


# a row for a row


@check()
def test_rows_go_in_and_rows_come_out(mixer, x):
    y, state = mixer(x)
    assert y.shape == x.shape and y.dtype == x.dtype and y.isfinite().all()
    assert state is not None


@check()
def test_the_input_stays_as_it_was(mixer, x):
    before = x.clone()
    mixer(x)
    with torch.no_grad():
        mixer(x)
    close(x, before, atol=0)


@check()
def test_with_and_without_gradients_the_numbers_are_the_same(mixer, x):
    y, state = mixer(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            again, other = mixer(x)
            close(again, y)
            for mine, theirs in zip(tensors(state), tensors(other), strict=True):
                close(theirs, mine)


@check()
def test_sequences_of_a_batch_do_not_meet(mixer, x):
    x.requires_grad_()
    y, _ = mixer(x)
    for i in range(B):
        close(mixer(x[i : i + 1])[0], y[i : i + 1])
        others = torch.arange(B) != i
        assert (torch.autograd.grad(y[i].sum(), x, retain_graph=True)[0][others] == 0).all()


@check()
def test_gradients_are_finite_and_reach_every_parameter(mixer, x):
    x.requires_grad_()
    found = slopes(mixer(x)[0], mixer, x)
    names = ["x", *(name for name, _ in mixer.named_parameters())]
    for name, slope in zip(names, found, strict=True):
        assert slope is not None and slope.isfinite().all(), name
    assert (found[0].abs().amax(-1) > 0).all()


@check()
def test_the_gradient_is_that_of_finite_differences(mixer, x):
    x = x[:1, :4].requires_grad_()
    (slope,) = torch.autograd.grad((mixer(x)[0] * normal(*x.shape, seed=5)).sum(), x)
    way, step = normal(*x.shape, seed=6), 1e-6
    with torch.no_grad():
        up, down = mixer(x + step * way)[0], mixer(x - step * way)[0]
        measured = ((up - down) * normal(*x.shape, seed=5)).sum() / (2 * step)
    close((slope * way).sum(), measured, atol=1e-6, rtol=1e-6)


@check()
def test_one_row_and_no_row_are_sequences_too(mixer, x):
    y, _ = mixer(x[:, :1])
    assert y.shape == (B, 1, x.shape[-1]) and y.isfinite().all()
    y, _ = mixer(x[:, :0])
    assert y.shape == (B, 0, x.shape[-1])


@check()
def test_a_copy_computes_the_same_and_is_one_for_itself(mixer, x):
    twin = copy.deepcopy(mixer)
    y, _ = mixer(x)
    close(twin(x)[0], y, atol=0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    close(mixer(x)[0], y, atol=0)


@check()
def test_weights_pass_through_a_state_dict(mixer, x):
    twin = copy.deepcopy(mixer)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.normal_()
    twin.load_state_dict(mixer.state_dict())
    close(twin(x)[0], mixer(x)[0], atol=0)


# causal


@check("causal")
def test_no_output_depends_on_a_later_row(mixer, x):
    x = x[:1, :5]
    found = torch.autograd.functional.jacobian(lambda rows: mixer(rows)[0], x)[0, :, :, 0]
    reach = found.abs().amax((1, 3))  # (N, N)
    assert (reach.triu(1) < 1e-14).all()  # an FFT rounds
    assert (reach.diagonal() > 1e-9).all() and (reach.diagonal(-1) > 1e-9).all()


@check("causal")
def test_a_loud_future_does_not_change_the_past(mixer, x):
    y, _ = mixer(x)
    for t in range(1, N):
        loud = torch.cat([x[:, :t], 50 * normal(B, N - t, x.shape[-1], seed=t)], dim=1)
        close(mixer(loud)[0][:, :t], y[:, :t])


# state


@check("state")
def test_pieces_with_a_state_are_the_whole(mixer, x):
    x.requires_grad_()
    whole, end = mixer(x)
    wanted = slopes(whole, mixer, x)
    for cut in CUTS:
        y, state = in_pieces(mixer, x, cut)
        close(y, whole)
        for mine, theirs in zip(tensors(state), tensors(end), strict=True):
            close(mine, theirs)
        for mine, theirs in zip(slopes(y, mixer, x), wanted, strict=True):
            close(mine, theirs)
        with torch.no_grad():
            close(in_pieces(mixer, x, cut)[0], whole)


@check("state")
def test_two_continuations_start_from_one_state(mixer, x):
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            _, state = mixer(x[:, :3])
            before = [each.clone() for each in tensors(state)]
            first = mixer(x[:, 3:], state)[0]
            mixer(normal(B, 2, x.shape[-1], seed=8), state)
            for each, kept in zip(tensors(state), before, strict=True):
                close(each, kept, atol=0)
            close(mixer(x[:, 3:], state)[0], first, atol=0)


@check("state")
def test_changing_the_input_afterwards_does_not_change_the_state(mixer, x):
    with torch.no_grad():
        y, state = mixer(x)
        before = [each.clone() for each in tensors(state)]
        x.zero_()
        y.zero_()
    for each, kept in zip(tensors(state), before, strict=True):
        close(each, kept, atol=0)


@check("state")
def test_a_state_can_be_chosen_from(mixer, x):
    _, state = mixer(x[:, :4])
    for rows in ([2, 0], [1, 1, 1, 2], [0]):
        rows = torch.tensor(rows)
        chosen = BlockState(state).select(rows).mixer
        alone = mixer(x[rows, :4])[1]
        for mine, theirs in zip(tensors(chosen), tensors(alone), strict=True):
            close(mine, theirs)
        close(mixer(x[rows, 4:], chosen)[0], mixer(x[:, 4:], state)[0][rows])


@check("state")
def test_a_state_knows_its_bytes_and_its_length(mixer, x):
    for n in (0, 1, N):
        _, state = mixer(x[:, :n])
        numbers = [t for t in tensors(state) if t.is_floating_point() or t.is_complex()]
        assert BlockState(state).nbytes == sum(each.nbytes for each in numbers)
        assert BlockState(state).length == n


# mask


def masks():
    """Give padding on the left, on the right and on both sides; some without any."""
    left = torch.arange(N) >= torch.tensor([[0], [2], [4]])
    right = torch.arange(N) < torch.tensor([[N], [5], [1]])
    return {"left": left, "right": right, "both": left & (torch.arange(N) < N - 1)}


def gaps():
    """Give masks with holes, one of them with a row that has no token in its first piece."""
    holes = torch.ones(B, N, dtype=torch.bool)
    holes[0, 2], holes[1, 1:4], holes[2, ::2] = False, False, False
    return {"holes": holes, "late": torch.arange(N).expand(B, N) % 5 >= torch.arange(B)[:, None]}


def check_masked(mixer, x, found):
    """Assert that masked rows are as good as not there."""
    for mask in found.values():
        y, state = mixer(x, mask=mask[:, None])
        assert y.isfinite().all()
        more = normal(B, 2, x.shape[-1], seed=9)
        after = mixer(more, state)[0]
        for i in range(B):
            alone, end = mixer(x[i : i + 1, mask[i]])
            close(y[i : i + 1, mask[i]], alone)
            close(after[i : i + 1], mixer(more[i : i + 1], end)[0])


@check("mask")
def test_padding_is_as_good_as_not_there(mixer, x):
    check_masked(mixer, x, masks())


@check("gaps")
def test_gaps_are_as_good_as_not_there(mixer, x):
    check_masked(mixer, x, gaps())


@check("mask")
def test_what_a_masked_row_holds_does_not_matter(mixer, x):
    for mask in masks().values():
        rows = x.clone().requires_grad_()
        y, state = mixer(rows, mask=mask[:, None])
        seen = y[mask].square().sum() + mixer(x[:, :2], state)[0].square().sum()
        (slope,) = torch.autograd.grad(seen, rows)
        assert (slope[~mask] == 0).all() and (slope[mask].abs().amax(-1) > 0).all()
        loud = torch.where(mask[..., None], x, 40 * normal(*x.shape, seed=4))
        again, other = mixer(loud, mask=mask[:, None])
        close(again[mask], y[mask])
        close(mixer(x[:, :2], other)[0], mixer(x[:, :2], state)[0])


@check("mask")
def test_pieces_of_a_padded_batch_are_the_whole(mixer, x):
    for mask in masks().values():
        whole, _ = mixer(x, mask=mask[:, None])
        for cut in CUTS:
            y, state = in_pieces(mixer, x, cut, mask)
            close(y[mask], whole[mask])
            assert BlockState(state).length == N


@check("mask")
def test_a_mask_of_true_changes_nothing(mixer, x):
    for shape in ((B, 1, N), (1, 1, N), (B, 1, 1, N)):
        mask = torch.ones(shape, dtype=torch.bool)
        close(mixer(x, mask=mask)[0], mixer(x)[0])


@check("mask")
def test_a_sequence_without_tokens_leaves_the_start(mixer, x):
    mask = torch.ones(B, 1, N, dtype=torch.bool)
    mask[1] = False
    x.requires_grad_()
    y, state = mixer(x, mask=mask)
    after = mixer(x, state)[0][1]
    assert y.isfinite().all()
    close(after, mixer(x)[0][1])
    (slope,) = torch.autograd.grad(y[mask[:, 0]].sum() + after.sum(), x)
    assert slope.isfinite().all()


@check("mask", untyped=True)
def test_a_mask_that_does_not_fit_is_refused(mixer, x):
    refused(TypeError, "mask", lambda: mixer(x, mask=torch.ones(B, 1, N)))
    refused(ValueError, "mask", lambda: mixer(x, mask=torch.ones(B, 1, N + 2, dtype=torch.bool)))
    refused(ValueError, "mask", lambda: mixer(x, mask=torch.ones(B + 1, 1, N, dtype=torch.bool)))
    refused(TypeError, "mask", lambda: mixer(x, mask="all"))


# what does not fit


@check(untyped=True)
def test_rows_that_do_not_fit_are_refused(mixer, x):
    refused(ValueError, "x", lambda: mixer(torch.cat([x, x], dim=-1)))
    refused(ValueError, "x", lambda: mixer(x[..., :-1]))
    refused(ValueError, "x", lambda: mixer(x[0]))
    refused(TypeError, "x", lambda: mixer(x.long()))
    refused(TypeError, "x", lambda: mixer(x.float()))
    refused(TypeError, "x", lambda: mixer(x.tolist()))


@check("state", untyped=True)
def test_a_state_that_does_not_fit_is_refused(mixer, x):
    refused(TypeError, "state", lambda: mixer(x, "state"))
    refused(TypeError, "state", lambda: mixer(x, object()))
    _, state = mixer(x[:2])
    refused(ValueError, "state", lambda: mixer(x, state))


@check("state dtype", untyped=True)
def test_a_state_of_another_dtype_is_refused(mixer, x):
    _, single = copy.deepcopy(mixer).float()(x.float())
    refused(TypeError, "state", lambda: mixer(x, single))


# 16 bits and 32


@check()
def test_float32_is_near_float64(mixer, x):
    y, state = copy.deepcopy(mixer).float()(x.float())
    assert y.dtype == torch.float32
    close(y.double(), mixer(x)[0], atol=1e-4, rtol=1e-4)


@check("half")
def test_bfloat16_is_near_float64(mixer, x):
    half = copy.deepcopy(mixer).bfloat16()
    rounded = copy.deepcopy(half).double()
    y, _ = in_pieces(half, x.bfloat16(), [3, 4])
    assert y.dtype == torch.bfloat16
    wanted = rounded(x.bfloat16().double())[0].detach()
    close(y.double(), wanted, atol=0.05 * max(1.0, float(wanted.abs().max())), rtol=0.05)
