"""The experiment of chapter 05: its problems are what it says, and the model cannot cheat."""

import pytest
import torch

from tfbook.experiments import in_context
from tfbook.experiments.in_context import Regressor, least_squares, problems


def drawn(count=5, examples=7, seed=2):
    return problems(count, examples, torch.Generator().manual_seed(seed))


def test_each_text_has_one_rule_and_texts_have_different_ones():
    x, y = drawn()
    rules = torch.linalg.lstsq(x.double(), y[..., None].double()).solution[..., 0]  # (5, 3)
    torch.testing.assert_close((x.double() @ rules[..., None])[..., 0], y.double())
    assert torch.pdist(rules).min() > 0.05


def test_answers_have_variance_one():
    assert problems(20_000, 1, torch.Generator().manual_seed(0))[1].var() == pytest.approx(1, 0.05)


def test_least_squares_is_exact_once_the_rule_is_determined():
    x, y = drawn()
    torch.testing.assert_close(least_squares(x, y)[:, 3:], y[:, 3:], atol=1e-4, rtol=0)


def test_least_squares_with_few_examples_is_what_is_known_of_the_rule():
    """After i of 3 directions are seen, the part of w outside them is missing: 1 - i / 3."""
    x, y = drawn(20_000, 3)
    missing = (least_squares(x, y) - y).pow(2).mean(dim=0)
    torch.testing.assert_close(missing, torch.tensor([3.0, 2.0, 1.0]) / 3, atol=0.05, rtol=0)


@pytest.mark.parametrize("place", [0, 3, 6])
def test_no_answer_depends_on_itself_or_on_what_follows(place):
    torch.manual_seed(1)
    model, (x, y) = Regressor(width=24, n_layers=2, n_heads=2), drawn()
    later_x, later_y = x.clone(), y.clone()
    later_x[:, place + 1 :] += 1
    later_y[:, place:] += 1
    with torch.no_grad():
        before, after = model(x, y), model(later_x, later_y)
    torch.testing.assert_close(after[:, : place + 1], before[:, : place + 1], atol=1e-5, rtol=0)
    if place < 6:
        assert (after - before)[:, place + 1 :].abs().max() > 1e-4


def test_earlier_answers_are_read():
    torch.manual_seed(1)
    model, (x, y) = Regressor(width=24, n_layers=2, n_heads=2), drawn()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    other = y.clone()
    other[:, 0] += 1
    with torch.no_grad():
        moved = (model(x, y) - model(x, other)).abs()
    assert moved[:, 0].max() == 0
    assert moved[:, 1:].min() > 0


def test_errors_are_counted_by_examples_read():
    """A model that repeats the last answer it has read has the error of doing so."""

    class Repeats(torch.nn.Module):
        def forward(self, x, y):
            return torch.cat([torch.zeros_like(y[:, :1]), y[:, :-1]], dim=1)

    x, y = drawn(50)
    shown = y + 1
    found = in_context._errors(Repeats(), x, y, shown)
    wanted = [y[:, 0].pow(2).mean()] + [
        (shown[:, i - 1] - y[:, i]).pow(2).mean() for i in range(1, 7)
    ]
    assert found == pytest.approx([float(w) for w in wanted], rel=0.01)
