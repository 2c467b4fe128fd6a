"""The experiment of chapter 04: its tasks are what it says, and its models differ in one thing."""

import pytest
import torch

from tfbook.data import shakespeare
from tfbook.experiments import extrapolation
from tfbook.experiments.extrapolation import SCHEMES, Reader
from tfbook.positions import LinearScaling


def reader(scheme, n_ids=24, n_answers=8):
    torch.manual_seed(1)
    return Reader(scheme, n_ids, n_answers).eval()


def test_the_answer_is_the_symbol_k_tokens_back():
    ids, answer = extrapolation.recall_batch(5, 31, torch.Generator().manual_seed(2))
    symbol, back = ids // extrapolation.FARTHEST, ids % extrapolation.FARTHEST + 1
    for b in range(5):
        for i in range(31):
            place = i - int(back[b, i])
            assert answer[b, i] == (symbol[b, place] if place >= 0 else -100)


def test_recall_cannot_be_guessed_from_the_token_itself():
    ids, answer = extrapolation.recall_batch(64, 64, torch.Generator().manual_seed(2))
    known = answer >= 0
    same = (ids // extrapolation.FARTHEST == answer)[known].float().mean()
    assert abs(same - 1 / extrapolation.SYMBOLS) < 0.03


def test_the_target_of_a_letter_is_the_next_one():
    text = extrapolation.letters("valid")
    ids, target = extrapolation.text_batch(text, 7, 13, torch.Generator().manual_seed(3))
    assert ids.shape == target.shape == (7, 13)
    assert torch.equal(ids[:, 1:], target[:, :-1])


def test_the_test_pieces_are_no_training_text():
    ids, target = extrapolation.test_pieces("text", pieces=3)
    letters = sorted(set(shakespeare("all")))
    for piece in ids:
        text = "".join(letters[i] for i in piece.tolist())
        assert text in shakespeare("test")
        assert text not in shakespeare("train")
    assert torch.equal(ids[:, 1:], target[:, :-1])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_scheme_reads_the_future(scheme):
    model, ids = reader(scheme), torch.randint(24, (2, 17))
    other = ids.clone()
    other[:, 11:] = torch.randint(24, (2, 6))
    with torch.no_grad():
        before, after = model(ids), model(other)
    torch.testing.assert_close(before[:, :11], after[:, :11], atol=1e-5, rtol=0)
    assert (before[:, 11:] - after[:, 11:]).abs().max() > 1e-3


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "none"])
def test_order_matters_to_each_scheme_but_none(scheme):
    """With the mask taken away, the last output changes when earlier tokens are reversed."""
    model, ids = reader(scheme), torch.randint(24, (1, 13))
    for layer in model.layers:
        layer.attention.causal = False
    for parameter in model.parameters():  # tables start so small that order hardly shows
        torch.nn.init.normal_(parameter, std=0.3)
    turned = torch.cat([ids[:, :12].flip(1), ids[:, 12:]], dim=1)
    with torch.no_grad():
        assert (model(ids)[:, 12] - model(turned)[:, 12]).abs().max() > 1e-3


def test_without_positions_and_mask_order_does_not_matter():
    model, ids = reader("none"), torch.randint(24, (1, 13))
    for layer in model.layers:
        layer.attention.causal = False
    turned = torch.cat([ids[:, :12].flip(1), ids[:, 12:]], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[:, 12], model(turned)[:, 12], atol=1e-5, rtol=0)


def test_the_schemes_differ_in_their_positions_only():
    def rest(scheme):
        parts = ("position", "entrance")
        named = reader(scheme).named_parameters()
        return {name: p.shape for name, p in named if not any(part in name for part in parts)}

    assert all(rest(scheme) == rest("none") for scheme in SCHEMES)


def test_t5_layers_share_their_table_and_only_its_step_size_is_another():
    model = reader("T5")
    first, second = (layer.attention.position for layer in model.layers)
    assert first is second
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    extrapolation.fit(
        model, [extrapolation.recall_batch(2, 8, torch.Generator().manual_seed(0))], 1, 1e-3, 7.0
    )
    moved = {n: (p - before[n]).abs().max().item() for n, p in model.named_parameters()}
    table = moved.pop("layers.0.attention.position.weight")
    assert table == pytest.approx(7e-3, rel=0.05)
    assert max(moved.values()) == pytest.approx(1e-3, rel=0.05)


def test_training_is_repeatable_and_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = extrapolation.train("recall", "ALiBi", seed=3, steps=2)
    assert torch.equal(torch.rand(1), expected)
    second = extrapolation.train("recall", "ALiBi", seed=3, steps=2)
    other = extrapolation.train("recall", "ALiBi", seed=4, steps=2)
    pairs = list(zip(first.parameters(), second.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_rescaling_leaves_the_model_as_it_was():
    model, ids = reader("rotary"), torch.randint(24, (1, 9))
    with torch.no_grad():
        before = model(ids)
        other = extrapolation.rescale(model, LinearScaling(8.0))(ids)
        assert torch.equal(model(ids), before)
        same = extrapolation.rescale(model, None)(ids)
    torch.testing.assert_close(same, before)
    assert (other - before).abs().max() > 1e-3


def test_a_stretched_table_has_the_trained_rows_at_its_ends():
    model = reader("learned")
    stretched = extrapolation._stretched(model).entrance.weight
    assert len(stretched) == extrapolation.LONG
    torch.testing.assert_close(stretched[0], model.entrance.weight[0])
    torch.testing.assert_close(stretched[-1], model.entrance.weight[extrapolation.LENGTH - 1])


def test_places_are_counted_without_those_that_have_no_answer():
    """A model that is right wherever there is an answer has accuracy 1 everywhere."""

    class Oracle(torch.nn.Module):
        def forward(self, ids):
            symbol, back = ids // extrapolation.FARTHEST, ids % extrapolation.FARTHEST + 1
            place = (torch.arange(ids.shape[1]) - back).clamp(min=0)
            right = symbol.gather(1, place)
            return torch.nn.functional.one_hot(right, extrapolation.SYMBOLS).float()

    assert extrapolation.by_place(Oracle(), "recall", pieces=4) == [1.0] * 16


def test_short_reading_reads_the_same_letters_with_little_before_them():
    """A model that only looks at the letter before has one loss, however much it is given."""

    class Near(torch.nn.Module):
        def forward(self, ids):
            torch.manual_seed(0)
            return torch.randn(63, 63)[ids]

    long = extrapolation.by_place(Near(), "text", pieces=5)[8:]
    short = extrapolation.short_reading(Near(), pieces=5)
    assert short == pytest.approx(sum(long) / len(long), abs=1e-4)


@pytest.mark.untyped
def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="scheme must be one of none, .*got 'absolute'"):
        Reader("absolute", 4, 4)
