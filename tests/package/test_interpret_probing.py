"""Probes: the objective they minimise, what a split by texts prevents, and what removal leaves.

A test that takes `kit` alone is put through planted bugs too (test_interpret_probe_mutants.py).
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from tfbook.interpret import probing, similarity, supervision

CHECKS = {}
DOUBLE = torch.float64


def kit_of(*modules):
    return SimpleNamespace(**{n: getattr(m, n) for m in modules for n in m.__all__})


@pytest.fixture
def kit():
    return kit_of(probing, similarity, supervision)


def check(run):
    CHECKS[run.__name__] = run
    return run


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def classes(n, kinds=3, seed=1):
    return torch.randint(kinds, (n,), generator=torch.Generator().manual_seed(seed))


def labelled(n=300, d=6, kinds=3, seed=0, apart=1.5):
    """Rows around one centre for each label."""
    labels = classes(n, kinds, seed + 1)
    return apart * drawn(kinds, d, seed=seed + 2)[labels] + drawn(n, d, seed=seed), labels


# the probe


@check
def test_the_probe_is_where_the_slope_of_its_objective_is_zero(kit):
    for kinds, strength in ((2, 30.0), (3, 5.0), (4, 0.5)):
        x, labels = labelled(kinds=kinds)
        x = x * torch.tensor([1, 10, 0.1, 1, 3, 1]) + torch.arange(6)
        found = kit.fit_probe(x, labels, strength=strength)
        spread = x.std(0, correction=0)
        rows = (x - x.mean(0)) / spread
        weight = (found.weight * spread).requires_grad_()
        bias = (found.bias + found.weight @ x.mean(0)).requires_grad_()
        own = weight[1] - weight[0] if kinds == 2 else weight
        data = functional.cross_entropy(rows @ weight.mT + bias, labels, reduction="sum")
        loss = data + strength / 2 * own.square().sum()
        slopes = torch.autograd.grad(loss, (weight, bias))
        assert max(float(each.abs().max()) for each in slopes) < 0.05 < data.item()


@check
def test_a_probe_tells_its_classes_by_their_labels(kit):
    x, labels = labelled(apart=6.0)
    found = kit.fit_probe(x, labels * 10 - 7)
    assert found.classes.tolist() == [-7, 3, 13]
    assert float((found.predict(x) == labels * 10 - 7).double().mean()) > 0.97
    probs = found.log_probs(x[:5].view(1, 5, 6)).exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(1, 5, dtype=DOUBLE))
    assert torch.equal(found.predict(x[:5].float()), found.predict(x[:5]))


@check
def test_units_and_constants_do_not_matter(kit):
    x, labels = labelled()
    wanted = kit.fit_probe(x, labels).log_probs(x)
    moved = torch.cat([x * torch.tensor([1, 1e-3, 1e4, 1, 2, 1]) + 50, torch.full((300, 1), 9)], 1)
    found = kit.fit_probe(moved, labels).log_probs(moved)
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


# the control task


@check
def test_a_control_task_gives_a_word_one_label_at_random(kit):
    types, labels = classes(5000, 400, seed=3), (classes(5000, 10, seed=4) < 3).long() + 5
    found = kit.control_labels(types, labels, seed=1)
    of_type = {}
    for word, label in zip(types.tolist(), found.tolist(), strict=True):
        of_type.setdefault(word, set()).add(label)
    assert all(len(each) == 1 for each in of_type.values())
    share = sum(6 in each for each in of_type.values()) / len(of_type)
    assert abs(share - float((labels == 6).double().mean())) < 0.08
    assert torch.equal(found, kit.control_labels(types, labels, seed=1))
    other = kit.control_labels(types, labels, seed=2)
    assert 0.05 < float((found != other).double().mean()) < 0.9
    square = kit.control_labels(types.view(50, 100), labels.view(50, 100), seed=1)
    assert torch.equal(square.flatten(), found)


@check
def test_selectivity_tells_reading_from_learning_by_heart(kit):
    """Rows that say which word it is allow both tasks; rows that say only the label allow one."""
    types = classes(2000, 40, seed=2)
    labels = (types % 2 + classes(2000, 2, seed=5)) % 2
    words = functional.one_hot(types, 40).double()
    told = torch.stack([labels, 1 - labels], 1).double() + 0.3 * drawn(2000, 2)
    by_heart = kit.probe(words, types % 2, types=types)
    read = kit.probe(told, labels, types=types)
    assert by_heart.accuracy == by_heart.control == 1 and by_heart.selectivity == 0
    assert read.accuracy > 0.95 and read.control < 0.65
    assert abs(read.selectivity - (read.accuracy - read.control)) < 1e-12
    assert abs(kit.probe(words, labels, types=types).accuracy - 0.5) < 0.1
    assert math.isnan(kit.probe(told, labels).control)


# training and test


@check
def test_no_text_is_in_both_parts(kit):
    """A label that hangs on the text alone can be learned by heart, and says nothing of others."""
    texts = torch.arange(60).repeat_interleave(20)
    labels = classes(60, 2, seed=7)[texts]
    rows = drawn(60, 80, seed=1)[texts] + 0.1 * drawn(1200, 80, seed=2)
    assert kit.probe(rows, labels).accuracy > 0.95
    honest = kit.probe(rows, labels, texts=texts, seed=1)
    assert honest.accuracy < 0.75 and honest.low < 0.6


@check
def test_the_interval_is_that_of_independent_texts(kit):
    n = 1200
    labels = classes(n, 2)
    right = torch.rand(n, generator=torch.Generator().manual_seed(5)) < 0.8
    rows = torch.where(right, labels, 1 - labels)[:, None].double()
    found = kit.probe(rows, labels)
    half = 1.96 * math.sqrt(found.accuracy * (1 - found.accuracy) / (n / 2))
    assert abs(found.accuracy - 0.8) < 0.05
    assert abs(found.high - found.accuracy - half) < 0.2 * half
    assert abs(found.accuracy - found.low - half) < 0.2 * half
    again = rows.repeat(9, 1), labels.repeat(9)  # nine copies tell nothing new
    copies = kit.probe(*again, texts=torch.arange(n).repeat(9))
    assert abs((copies.high - copies.low) / (found.high - found.low) - 1) < 0.1


@check
def test_the_majority_is_that_of_training(kit):
    labels = torch.tensor([3] * 700 + [8] * 300)
    found = kit.probe(drawn(1000, 4), labels)
    assert abs(found.majority - 0.7) < 0.04 and abs(found.accuracy - found.majority) < 0.02


@check
def test_more_texts_for_training_leave_fewer_to_test(kit):
    x, labels = labelled(1000, apart=0.6)
    wide, tight = (kit.probe(x, labels, share=share) for share in (0.95, 0.3))
    assert wide.high - wide.low > 2 * (tight.high - tight.low)


@check
def test_layers_are_probed_on_the_same_texts_without_padding(kit):
    streams, labels = drawn(3, 30, 8, 5), classes(240, 2).view(30, 8)
    streams[1, ..., 2] += 2 * labels
    streams[2, ..., 2] += 8 * labels
    counted = torch.arange(8) < torch.randint(2, 9, (30, 1), generator=torch.manual_seed(0))
    streams[:, ~counted] = torch.nan
    types = classes(240, 20, seed=3).view(30, 8)
    found = kit.probe_layers(streams, labels, counted=counted, types=types, seed=4)
    assert found[0].accuracy < 0.65 < 0.75 < found[1].accuracy < 0.95 < found[2].accuracy
    texts = torch.arange(30)[:, None].expand(30, 8)[counted]
    asked = {"texts": texts, "types": types[counted], "seed": 4}
    assert found[1] == kit.probe(streams[1][counted], labels[counted], **asked)


# directions taken out


@check
def test_directions_are_gone_and_nothing_else(kit):
    x, directions = drawn(4, 7, 9), drawn(3, 9, seed=1)
    found = kit.remove_directions(x, directions)
    assert float((found @ directions.mT).abs().max()) < 1e-12
    fit = torch.linalg.lstsq(directions.mT, x.flatten(0, 1).mT).solution  # the part in their span
    torch.testing.assert_close(found.flatten(0, 1), x.flatten(0, 1) - (directions.mT @ fit).mT)
    torch.testing.assert_close(kit.remove_directions(found, directions), found)
    more = torch.cat([1e3 * directions, directions[:1] + directions[1:2], torch.zeros(1, 9)])
    torch.testing.assert_close(kit.remove_directions(x, more), found)
    assert torch.equal(kit.remove_directions(x, directions[:0]), x)


@check
def test_all_rows_get_the_coordinates_of_one(kit):
    x, directions, around = drawn(6, 5), drawn(2, 5, seed=1), drawn(5, seed=2)
    found = kit.remove_directions(x, directions, around=around)
    wanted = (directions @ around).expand(6, 2)
    torch.testing.assert_close(found @ directions.mT, wanted)
    torch.testing.assert_close(
        found - kit.remove_directions(x, directions),
        (around - kit.remove_directions(around, directions)).expand(6, 5),
    )


@check
def test_removal_lets_gradients_through_and_keeps_the_dtype(kit):
    x = drawn(3, 4).float().requires_grad_()
    found = kit.remove_directions(x, torch.eye(4)[:1])
    assert found.dtype == torch.float32
    found.sum().backward()
    assert x.grad.tolist() == [[0, 1, 1, 1]] * 3


@check
def test_after_the_nullspace_no_linear_probe_reads_the_label(kit):
    """Two labels in one set of rows: one is taken out, the other stays."""
    x, labels = labelled(3000, 12, apart=1.0)
    other = classes(3000, 2, seed=9)
    x = x + 2 * other[:, None] * drawn(12, seed=8)
    directions = kit.nullspace(x, labels)
    torch.testing.assert_close(directions @ directions.mT, torch.eye(len(directions), dtype=DOUBLE))
    assert 2 <= len(directions) <= 8
    left = kit.remove_directions(x, directions)
    before, after = kit.probe(x, labels), kit.probe(left, labels)
    assert before.accuracy > 0.8 and after.accuracy < after.majority + 0.04
    assert kit.probe(left, other).accuracy > 0.9
    random = kit.remove_directions(x, drawn(len(directions), 12, seed=11))
    assert kit.probe(random, labels).accuracy > after.accuracy + 0.2


@check
def test_a_label_that_is_not_there_has_no_directions(kit):
    assert len(kit.nullspace(drawn(6000, 4), classes(6000, 2))) == 0


@check
def test_a_rare_label_is_taken_out_too(kit):
    labels = (classes(4000, 20) == 0).long()
    x = drawn(4000, 5) + 1.5 * labels[:, None] * torch.eye(5, dtype=DOUBLE)[0]
    found = kit.nullspace(x, labels, steps=1)
    assert len(found) == 1 and float(found[0, 0].abs()) > 0.95


@check
def test_at_most_as_many_steps_as_asked(kit):
    x, labels = labelled(200, 30, apart=2.0)
    assert len(kit.nullspace(x, labels, steps=1)) == 2
    assert len(kit.nullspace(x, labels, steps=2)) <= 4


# what is refused, in words


@pytest.mark.untyped
def test_bad_arguments_are_refused_in_words():
    x, labels = labelled(20)
    fit, run = probing.fit_probe, probing.probe
    streams = torch.zeros(2, 3, 4, 5)
    bad = {
        "x must have shape": lambda: fit(x[0], labels),
        "x must be finite": lambda: fit(x / 0, labels),
        "labels must be integers": lambda: fit(x, labels.double()),
        "labels must have shape": lambda: fit(x, labels[1:]),
        "at least two kinds": lambda: fit(x, labels * 0),
        "strength must be": lambda: fit(x, labels, strength=0.0),
        "x must have rows of 6": lambda: fit(x, labels).predict(torch.zeros(2, 5)),
        "texts must be at least two": lambda: run(x, labels, texts=labels * 0),
        "texts must be integers": lambda: run(x, labels, texts=labels > 0),
        "types must have shape": lambda: run(x, labels, types=labels[:3]),
        "share must be": lambda: run(x, labels, share=1.0),
        "seed must be": lambda: run(x, labels, seed=-1),
        "types must not be empty": lambda: probing.control_labels(labels[:0], labels[:0]),
        "streams must have shape": lambda: probing.probe_layers(streams[0], labels),
        "counted must be boolean": lambda: probing.probe_layers(
            streams, classes(12).view(3, 4), counted=torch.ones(3, 4)
        ),
        "directions must have shape": lambda: probing.remove_directions(x, x[:, :3]),
        "directions must be finite": lambda: probing.remove_directions(x, x / 0),
        "around must have shape": lambda: probing.remove_directions(x, x, around=x),
        "steps must be": lambda: probing.nullspace(x, labels, steps=0),
    }
    for words, call in bad.items():
        with pytest.raises((TypeError, ValueError), match=words):
            call()
