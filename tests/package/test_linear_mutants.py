"""Linear and low-rank attention with planted bugs, each caught without another implementation."""

import functools
import itertools

import fresh
import pytest
import torch
from attention_properties import DOUBLE, NEVER, SINGLE, close, gradients
from fresh import Mutant

LINEAR, FEATURES, LOW_RANK = (
    f"tfbook.efficient.{name}" for name in ("linear", "random_features", "low_rank")
)
FORMS = ("recurrent", "chunked", "parallel")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def decayed(n=7):
    q, k, v = normal(n, 3), normal(n, 3, seed=1), normal(n, 2, seed=2)
    return q, k, v, -normal(n, seed=3).abs(), normal(3, 2, seed=4)


def pieces_are_the_whole(linear, *_):
    q, k, v, decay, state = decayed()
    for form in (linear.state_parallel, functools.partial(linear.state_chunked, chunk=2)):
        for g in (None, decay):
            whole, last = form(q, k, v, log_decay=g, state=state)
            now, ys = state, []
            for a, b in itertools.pairwise((0, 1, 4, 7)):
                cut = None if g is None else g[a:b]
                y, now = form(q[a:b], k[a:b], v[a:b], log_decay=cut, state=now)
                ys.append(y)
            close(torch.cat(ys), whole)
            close(now, last)


def one_token_is_on_paper(linear, *_):
    q, k, v, decay, state = decayed(1)
    new = decay.exp() * state + torch.outer(k[0], v[0])
    for form in (linear.state_parallel, linear.state_chunked, linear.state_recurrent):
        y, last = form(q, k, v, log_decay=decay, state=state)
        close(y, q @ new)
        close(last, new)
        y, last = form(q, k, v, state=state)
        close(y, q @ last)
        close(last, state + torch.outer(k[0], v[0]))


def the_past_fades_whole(linear, *_):
    """A decay of −∞ leaves nothing, and no NaN."""
    q, k, v, decay, state = decayed()
    decay[3] = NEVER
    for form in (linear.state_parallel, linear.state_chunked, linear.state_recurrent):
        y, _ = form(q, k, v, log_decay=decay, state=state)
        close(y[3:], form(q[3:], k[3:], v[3:], log_decay=decay[3:])[0])


def equal_values_come_out(linear, features, _):
    """Weights sum to one: values that are all alike come out as they are."""
    q, k = normal(6, 3), normal(6, 3, seed=1)
    for fn, form in itertools.product((linear.attend_linear, features.attend_features), FORMS):
        out = fn(q, k, torch.ones(6, 2, dtype=DOUBLE), form=form, chunk=2, causal=True)
        close(out, torch.ones(6, 2, dtype=DOUBLE))


def the_last_queries_see_all(linear, features, _):
    q, k, v = normal(7, 3), normal(7, 3, seed=1), normal(7, 2, seed=2)
    for fn, form in itertools.product((linear.attend_linear, features.attend_features), FORMS):
        full = fn(q, k, v, form=form, causal=True, chunk=2)
        close(fn(q[4:], k, v, form=form, causal=True, chunk=2), full[4:])
        extra = fn(torch.cat([q, q]), k, v, form=form, causal=True, chunk=2)
        assert (extra[:7] == 0).all()
        close(extra[7:], full)


def the_future_is_unseen(linear, features, _):
    q, k, v = normal(6, 3), normal(6, 3, seed=1), normal(6, 2, seed=2)
    late = k.clone()
    late[4:] *= 30  # the largest key so far is not the largest of all
    for fn, form in itertools.product((linear.attend_linear, features.attend_features), FORMS):
        one, other = (fn(q, x, v, form=form, causal=True, chunk=3) for x in (k, late))
        close(one[:4], other[:4], atol=0)


def hidden_keys_are_gone(linear, features, low_rank):
    q, k, v = normal(6, 3), normal(6, 3, seed=1), normal(6, 2, seed=2)
    k[1] *= 20
    keep = torch.tensor([1, 0, 0, 1, 1, 1], dtype=torch.bool)
    for form in FORMS:
        for fn in (linear.attend_linear, features.attend_features):
            close(fn(q, k, v, mask=keep, form=form), fn(q, k[keep], v[keep], form=form))
    for landmarks in (2, 5):
        fn = functools.partial(low_rank.attend_nystrom, landmarks=landmarks)
        close(fn(q, k, v, mask=keep), fn(q, k[keep], v[keep]))


def nothing_is_nan(linear, features, _):
    q, k, v = (x.to(SINGLE).requires_grad_() for x in (normal(6, 3), normal(6, 3), normal(6, 2)))
    for size, form in itertools.product((1.0, 100.0, 1e4), FORMS):
        for fn in (
            functools.partial(linear.attend_linear, feature="relu"),
            linear.attend_linear,
            features.attend_features,
        ):
            output = fn(-size * q.abs(), size * k, v, form=form, causal=True)
            assert output.isfinite().all()
            assert not any(g.isnan().any() for g in gradients(output, (q, k, v)))


def the_mean_of_many_estimates_is_the_kernel(_, features, __):
    x, y = normal(3) / 2, normal(3, seed=1) / 2
    for orthogonal in (False, True):
        w = features.draw_projection(60_000, 3, orthogonal=orthogonal, dtype=DOUBLE)
        found = features.positive_features(x, w) @ features.positive_features(y, w)
        close(found, (x @ y).exp(), atol=0.06)
        found = features.fourier_features(x, w) @ features.fourier_features(y, w)
        close(found, (-(x - y).square().sum() / 2).exp(), atol=0.06)


def each_step_comes_nearer(_, __, low_rank):
    a = torch.softmax(normal(4, 4), -1)
    left = [(a @ low_rank.newton_inverse(a, s) - torch.eye(4)).norm() for s in (0, 5, 10, 30)]
    assert left[0] > left[1] > left[2] > left[3] and left[3] < 1e-6


def a_row_each_is_the_softmax(_, __, low_rank):
    q, k, v = normal(5, 3), normal(5, 3, seed=1), normal(5, 2, seed=2)
    out = low_rank.attend_nystrom(q, k, v, landmarks=5, inverse="exact")
    close(out, torch.softmax(q @ k.T / 3**0.5, -1) @ v)


CHECKS = {
    check.__name__: check
    for check in (
        pieces_are_the_whole, one_token_is_on_paper, the_past_fades_whole, equal_values_come_out,
        the_last_queries_see_all, the_future_is_unseen, hidden_keys_are_gone, nothing_is_nan,
        the_mean_of_many_estimates_is_the_kernel, each_step_comes_nearer, a_row_each_is_the_softmax,
    )
}  # fmt: skip

MUTANTS = [
    Mutant(
        "a chunk that sees its own future",
        LINEAR,
        "multiply_shared(scores.tril(), v) + read",
        "multiply_shared(scores, v) + read",
        "the_future_is_unseen",
    ),
    Mutant(
        "a chunk that does not see itself",
        LINEAR,
        "multiply_shared(scores.tril(), v) + read",
        "multiply_shared(scores.tril(-1), v) + read",
        "one_token_is_on_paper",
    ),
    Mutant(
        "a state that does not fade between chunks",
        LINEAR,
        "total.to(q.dtype).exp()[..., None] * state + left.mT @ v",
        "state + left.mT @ v",
        "pieces_are_the_whole",
    ),
    Mutant(
        "a state read before its decay",
        LINEAR,
        "log_decay.to(q.dtype).exp()[..., None] * read",
        "read",
        "one_token_is_on_paper",
    ),
    Mutant(
        "a decay of minus infinity in sums",
        LINEAR,
        "log_decay.to(exact).clamp(min=FORGOTTEN)",
        "log_decay.to(exact)",
        "the_past_fades_whole",
    ),
    Mutant(
        "a sum of weights that is not guarded",
        LINEAR,
        "none = total.abs() < _nothing(total)",
        "none = total.isnan()",
        "nothing_is_nan",
    ),
    Mutant(
        "a sum of weights with something added",
        LINEAR,
        "(x / total.masked_fill(none, 1.0))",
        "(x / (total + 1e-6).masked_fill(none, 1.0))",
        "equal_values_come_out",
    ),
    Mutant(
        "queries that see nothing put last",
        LINEAR,
        "functional.pad(y, (0, 0, blind, 0))",
        "functional.pad(y, (0, 0, 0, blind))",
        "the_last_queries_see_all",
    ),
    Mutant(
        "the largest of all keys instead of the largest so far",
        LINEAR,
        "tops = logs.detach().cummax(-1).values",
        "tops = logs.detach().amax(-1, keepdim=True).expand(logs.shape)",
        "the_future_is_unseen",
    ),
    Mutant(
        "a state that does not fade as the largest key grows",
        LINEAR,
        "functional.pad(-tops.diff(dim=-1), (1, 0))",
        "0 * functional.pad(-tops.diff(dim=-1), (1, 0))",
        "pieces_with_growing_keys",
    ),
    Mutant(
        "hidden keys count in the sum",
        LINEAR,
        "phi_k = torch.where(there[..., None], phi_k, 0.0)",
        "values = torch.where(there[..., None], values, 0.0 * values + values[..., -1:])",
        "hidden_keys_are_gone",
    ),
    Mutant(
        "features without their norm",
        FEATURES,
        "x @ projection.mT - x.square().sum(-1, keepdim=True) / 2",
        "x @ projection.mT",
        "the_mean_of_many_estimates_is_the_kernel",
    ),
    Mutant(
        "orthogonal vectors all of one length",
        FEATURES,
        "lengths = np.linalg.norm(rng.normal(size=(n_features, d)), axis=1)",
        "lengths = np.ones(n_features)",
        "the_mean_of_many_estimates_is_the_kernel",
    ),
    Mutant(
        "a wrong number in Newton's step",
        LOW_RANK,
        "(15 * eye - az @ (7 * eye - az))",
        "(15 * eye - az @ (9 * eye - az))",
        "each_step_comes_nearer",
    ),
    Mutant(
        "segments that count hidden keys",
        LOW_RANK,
        "there.sum(-1, keepdim=True), there.cumsum(-1) - 1",
        "torch.full_like(there[..., :1], n, dtype=int), torch.arange(n)",
        "hidden_keys_are_gone",
    ),
    Mutant(
        "landmarks in the wrong order between",
        LOW_RANK,
        "scaled_dot_scores(q_means, k_means, scale=scale), filled)",
        "scaled_dot_scores(k_means, q_means, scale=scale), filled)",
        "a_row_each_is_the_softmax",
    ),
]  # fmt: skip


def pieces_with_growing_keys(linear, features, _):
    """The last query of a causal run sees what it sees without causal."""
    q, k, v = normal(6, 3), normal(6, 3, seed=1), normal(6, 2, seed=2)
    k = k * torch.arange(1, 7)[:, None]
    for form in FORMS:
        causal = features.attend_features(q, k, v, causal=True, form=form, chunk=2)
        close(causal[-1:], features.attend_features(q[-1:], k, v))


CHECKS["pieces_with_growing_keys"] = pieces_with_growing_keys


def copy(name, edits=None):
    fresh.copies(name, [LINEAR, FEATURES, LOW_RANK], edits)
    return [fresh.copy_of(name, each) for each in (LINEAR, FEATURES, LOW_RANK)]


@pytest.fixture(scope="module")
def healthy():
    return copy("healthy_linear")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, healthy):
    check = CHECKS[mutant.caught_by]
    check(*healthy)  # what is caught is the bug, not the copy
    sick = copy("sick_linear", mutant.edits)
    with pytest.raises(AssertionError):
        check(*sick)


def test_every_check_is_needed():
    assert {mutant.caught_by for mutant in MUTANTS} == set(CHECKS)
