"""The experiment on told attention: its labels are what a stack says, and its model can learn."""

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import brackets
from tfbook.experiments.brackets import INKS, KINDS, LENGTH, asked, texts, train, wrong_links


def closing(token):
    return token < KINDS * INKS


def test_labels_are_those_of_a_stack():
    tokens, links, kinds, depths = texts(40, seed=3)
    assert tokens.shape == (40, LENGTH) and int(tokens.max()) < brackets.VOCAB
    for row in range(40):
        stack = []
        for i, token in enumerate(tokens[row].tolist()):
            if closing(token):
                place = stack.pop()
                assert tokens[row, place] % KINDS == token % KINDS  # of the same kind, …
            else:
                stack.append(i)
            assert len(stack) == depths[row, i] <= brackets.DEEPEST
            assert links[row, i] == (stack[-1] if stack else -1)
            assert kinds[row, i] == (tokens[row, stack[-1]] % KINDS if stack else -1)
    inks = tokens // KINDS % INKS
    assert abs(float(inks.double().mean()) - 0.5) < 0.05  # … of any ink


def test_places_are_asked_behind_a_closing_bracket():
    tokens, links, _, _ = texts(40, seed=3)
    found = asked(tokens, links)
    assert torch.equal(found >= 0, (tokens < KINDS * INKS) & (links >= 0))
    assert bool((found < torch.arange(LENGTH)).all())


def test_texts_are_the_same_again_and_others_for_another_seed():
    one, again, other = (texts(5, seed=s)[0] for s in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_wrong_links_are_other_brackets_that_were_opened_before():
    tokens, links, _, _ = texts(200, seed=4)
    right = asked(tokens, links)
    wrong = wrong_links(right, tokens, 0)
    there = wrong >= 0
    assert float(there.sum()) > 0.7 * float((right >= 0).sum())
    assert bool((right >= 0)[there].all()) and not bool((wrong == right)[there].any())
    assert bool((wrong < torch.arange(LENGTH))[there].all())
    assert bool((tokens.gather(1, wrong.clamp(min=0)) >= KINDS * INKS)[there].all())
    some = wrong[0][there[0]].tolist()
    assert len(set(wrong_links(right, tokens, s)[0][there[0]].sum().item() for s in range(9))) > 1
    assert some


def test_a_told_head_looks_more_often_where_it_is_told():
    data = texts(60, seed=0)
    right = asked(*data[:2])
    given = {"steps": 40, "batch": 16, "seed": 0}
    plain = brackets.measure(train("kind", data, **given), "kind", data)
    told = brackets.measure(train("kind", data, told=right, **given), "kind", data)
    assert told["looks"] > plain["looks"] + 0.1


def test_the_shipped_model_does_what_the_log_says():
    log = experiments.log("brackets")
    settings = log["settings"]
    new = texts(settings["tested"], seed=brackets.NEW)
    size = str(max(settings["sizes"]))
    for i, seed in enumerate(log["seeds"]):
        found = brackets.measure(brackets.trained(seed), "kind", new)
        noted = {key: each[i] for key, each in log["runs"]["kind"]["plain"][size].items()}
        assert found == pytest.approx(noted, abs=0.003)
