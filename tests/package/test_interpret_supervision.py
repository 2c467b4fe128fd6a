"""Links and losses on attention: heads made by hand, loops, slopes, and a head that learns."""

import copy
import math

import pytest
import torch
from test_interpret_probing import DOUBLE, drawn, kit_of
from torch.nn import functional

from tfbook.interpret import capture, patterns, supervision
from tfbook.models import FFN, Attention, Layer, TransformerConfig, build

CHECKS = {}


@pytest.fixture
def kit():
    return kit_of(supervision)


def check(run):
    CHECKS[run.__name__] = run
    return run


def weights(*shape, seed=0):
    return (2 * drawn(*shape, seed=seed)).softmax(-1)


def linked(*shape, m, seed=0):
    return torch.randint(-1, m, shape, generator=torch.Generator().manual_seed(seed))


def close(one, other, atol=1e-12):
    torch.testing.assert_close(one, torch.as_tensor(other, dtype=one.dtype), atol=atol, rtol=0)


# links


@check
def test_a_pattern_of_links_has_the_links(kit):
    links = linked(3, 5, m=7)
    found = kit.link_pattern(links, 7)
    assert found.shape == (3, 5, 7)
    for b in range(3):
        for i in range(5):
            wanted = [float(j == links[b, i]) for j in range(7)]
            assert found[b, i].tolist() == wanted
    assert kit.link_accuracy(found[:, None], links).tolist() == [1.0]


@check
def test_accuracy_counts_queries_with_a_link_over_the_batch(kit):
    found, links = weights(2, 3, 4, 5, 7), linked(3, 5, m=7, seed=2)
    links[0] = -1  # a sequence without any
    wanted = torch.zeros(2, 4)
    for layer in range(2):
        for head in range(4):
            hits = [
                found[layer, b, head, i].tolist().index(max(found[layer, b, head, i].tolist()))
                == links[b, i]
                for b in range(3)
                for i in range(5)
                if links[b, i] >= 0
            ]
            wanted[layer, head] = sum(map(float, hits)) / len(hits)
    close(kit.link_accuracy(found, links), wanted.double(), atol=1e-7)


@check
def test_a_head_that_looks_everywhere_hits_only_the_first_key(kit):
    even = torch.full((1, 1, 3, 4), 0.25)
    assert kit.link_accuracy(even, torch.tensor([[1, 2, 3]])).item() == 0
    assert kit.link_accuracy(even, torch.tensor([[0, 2, -1]])).item() == 0.5


@check
def test_the_best_offset_is_the_most_frequent_step(kit):
    links = torch.tensor([[-1, 0, 0, 1, 3], [-1, -1, 1, 1, 2]])  # −1 −2 −2 −1 | −1 −2 −2
    assert kit.best_offset(links) == -2
    assert kit.best_offset(torch.tensor([[2, 2, -1]])) == 1  # +2, +1: the nearest, …
    assert kit.best_offset(torch.tensor([[1, 0]])) == -1  # … and back before ahead
    steps = torch.arange(9).expand(4, 9)
    rule = kit.offset_links(torch.where(steps >= 3, steps - 3, -1), -3, 9)
    assert rule[0].tolist() == [-1, -1, -1, 0, 1, 2, 3, 4, 5]
    ahead = kit.offset_links(steps, 2, 9)
    assert ahead[1].tolist() == [2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert kit.best_offset(ahead[:, :7]) == 2


# losses


@check
def test_the_loss_is_a_mean_over_queries_that_have_a_target(kit):
    a, t = weights(2, 3, 4, 6), weights(2, 3, 4, 6, seed=1)
    t[0, 1] = 0
    t[1, 2, 3] = 0
    cross, apart = [], []
    for index in torch.cartesian_prod(*map(torch.arange, (2, 3, 4))).tolist():
        p, q = t[tuple(index)].tolist(), a[tuple(index)].tolist()
        if sum(p):
            cross.append(-sum(x * math.log(y) for x, y in zip(p, q, strict=True)))
            apart.append(sum(x * math.log(x / y) for x, y in zip(p, q, strict=True)))
    close(kit.attention_loss(a, t), sum(cross) / len(cross))
    close(kit.attention_loss(a, t, kind="kl"), sum(apart) / len(apart))
    close(kit.attention_loss(a, t[:1, :1]), kit.attention_loss(a, t[:1, :1].expand(a.shape)))


@check
def test_the_loss_of_itself_is_its_entropy(kit):
    a = weights(2, 5, 5)
    close(kit.attention_loss(a, a, kind="kl"), 0.0)
    close(kit.attention_loss(a, a), -(a * a.log()).sum(-1).mean())
    one = kit.link_pattern(torch.tensor([0, 2]), 3)
    assert (
        kit.attention_loss(one, one).item() == kit.attention_loss(one, one, kind="kl").item() == 0
    )


@check
def test_both_losses_push_scores_by_pattern_minus_target(kit):
    scores, t = drawn(3, 4, 5).requires_grad_(), weights(3, 4, 5, seed=1)
    for kind in ("cross-entropy", "kl"):
        loss = kit.attention_loss(scores.softmax(-1), t, kind=kind)
        (slope,) = torch.autograd.grad(loss, scores)
        close(slope, (scores.softmax(-1) - t).detach() / 12)


@check
def test_a_weight_of_zero_costs_much_and_gives_no_nan(kit):
    scores = torch.tensor([[0.0, -300.0]], requires_grad=True)
    loss = kit.attention_loss(scores.softmax(-1), torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert 80 < loss.item() < 100 and bool(scores.grad.isfinite().all())


# distillation


@check
def test_layers_are_spread_as_in_tinybert(kit):
    assert kit.layer_pairs(4, 12) == [(0, 2), (1, 5), (2, 8), (3, 11)]
    assert kit.layer_pairs(6, 12) == [(i, 2 * i + 1) for i in range(6)]
    assert kit.layer_pairs(3, 3) == [(0, 0), (1, 1), (2, 2)]
    assert kit.layer_pairs(2, 5) == [(0, 2), (1, 4)]
    assert kit.layer_pairs(3, 7, how="last") == [(2, 6)]


@check
def test_distillation_is_a_mean_of_divergences(kit):
    student, teacher = weights(2, 3, 4, 5, 5), weights(4, 3, 4, 5, 5, seed=1)
    mask = torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    for pairs, given in (([(0, 1), (1, 3)], {}), ([(1, 0)], {"pairs": [(1, 0)]})):
        each = torch.stack(
            [
                functional.kl_div(
                    student[s].log(), teacher[t].log(), log_target=True, reduction="none"
                ).sum(-1)
                for s, t in pairs
            ]
        )  # (P, B, H, n)
        close(kit.distillation_loss(student, teacher, **given), each.mean())
        counted = mask[:, None, :].expand(3, 4, 5)
        wanted = each[:, counted].mean()
        close(kit.distillation_loss(student, teacher, mask=mask, **given), wanted)


@check
def test_no_gradient_reaches_the_teacher(kit):
    student, teacher = (drawn(1, 1, 1, 3, 3, seed=s).requires_grad_() for s in (0, 1))
    kit.distillation_loss(student.softmax(-1), teacher.softmax(-1)).backward()
    assert teacher.grad is None and float(student.grad.abs().sum()) > 0


# in training


def tiny(seed=0, layers=1):
    torch.manual_seed(seed)
    return build(TransformerConfig(11, 16, decoder=[Layer(Attention(2), FFN(16))] * layers))


def steps(model, loss, n=60):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


def test_a_head_learns_to_look_where_it_is_told():
    """At token 3, once it has been read; the other head is not told."""
    order = [torch.randperm(11, generator=torch.manual_seed(i)) for i in range(16)]
    tokens = torch.stack(order)  # each token once
    links = torch.where(tokens == 3, torch.arange(11), -1).cummax(-1).values
    target = supervision.link_pattern(links, 11)

    def loss(model):
        with capture(model, "*.0.mixer.pattern", grad=True) as seen:
            model(tokens)
        return supervision.attention_loss(seen["stack.blocks.0.mixer.pattern"][:, 1], target)

    model = tiny()
    before = supervision.link_accuracy(patterns(model, tokens), links)[0]
    steps(model, loss)
    after = supervision.link_accuracy(patterns(model, tokens), links)[0]
    assert float(after[1]) > 0.6 > float(before[1]) and float(after[1] - after[0]) > 0.2


def test_a_student_takes_over_a_teachers_patterns():
    torch.manual_seed(2)
    tokens = torch.randint(11, (8, 10))
    teacher, student = tiny(3, layers=2), tiny(4)
    with torch.no_grad():
        for name, weight in teacher.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight.mul_(6.0)
    wanted, fixed = patterns(teacher, tokens), copy.deepcopy(teacher.state_dict())

    def loss(model):
        with capture(model, "*.pattern", grad=True) as seen:
            model(tokens)
        return supervision.distillation_loss(torch.stack(list(seen.values())), wanted)

    first = loss(student).item()
    steps(student, loss)
    assert loss(student).item() < 0.5 * first
    assert all(torch.equal(weight, fixed[name]) for name, weight in teacher.state_dict().items())


# what is refused, in words


@pytest.mark.untyped
def test_bad_arguments_are_refused_in_words():
    s, one, links = supervision, weights(2, 3, 4, 5), linked(2, 4, m=5)
    stack = one[None]
    bad = {
        "links must be keys from 0 to 3": lambda: s.link_pattern(links + 2, 4),
        "links must be integers": lambda: s.link_pattern(links.double(), 5),
        "links must not be empty": lambda: s.link_pattern(links[:0], 5),
        "n_keys must be": lambda: s.link_pattern(links, 0),
        "links must have shape": lambda: s.link_accuracy(one, links[:, 1:]),
        "patterns must have shape": lambda: s.link_accuracy(one[0], links),
        "patterns must be weights": lambda: s.link_accuracy(3 * one, links),
        "target must be weights": lambda: s.attention_loss(one, 3 * one),
        "links must give one query": lambda: s.best_offset(torch.full((2, 3), -1)),
        "offset must be": lambda: s.offset_links(links, 0.5, 5),
        "kind must be one of": lambda: s.attention_loss(one, one, kind="mse"),
        "target must broadcast": lambda: s.attention_loss(one, one[..., :4, :4]),
        "target must say for one query": lambda: s.attention_loss(one, 0 * one),
        "n_teacher must be at least 3": lambda: s.layer_pairs(3, 2),
        "how must be one of": lambda: s.layer_pairs(2, 2, how="first"),
        "student must have shape": lambda: s.distillation_loss(one, stack),
        "must agree in .B, H, n, m.": lambda: s.distillation_loss(stack, stack[:, :1]),
        "a teacher's layer of pairs": lambda: s.distillation_loss(stack, stack, pairs=[(0, 1)]),
        "pairs must name layers": lambda: s.distillation_loss(stack, stack, pairs=[]),
        "must be two layers": lambda: s.distillation_loss(stack, stack, pairs=[(0,)]),
        "mask must be boolean": lambda: s.distillation_loss(stack, stack, mask=links),
        "mask must have shape": lambda: s.distillation_loss(stack, stack, mask=links[:1] > 0),
    }
    for words, call in bad.items():
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    assert DOUBLE is one.dtype
