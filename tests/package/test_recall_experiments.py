"""The runs behind chapter 09: what the tasks ask, what mixers carry on, what the logs show."""

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import associative_recall, beyond_recall
from tfbook.recurrent import DeltaMixer

RECALL, SHARE, BEYOND = map(
    experiments.log, ("associative_recall", "hybrid_share", "beyond_recall")
)


def drawn(draw, count, size=50):
    return draw(count, size, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("count", [4, 64])
def test_every_key_of_the_pairs_is_asked_for_once(count):
    keys, values, asked, wanted = drawn(associative_recall.pairs_of, count)
    for row in range(len(keys)):
        told = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))
        assert len(told) == count and sorted(asked[row].tolist()) == sorted(told)
        assert [told[key] for key in asked[row].tolist()] == wanted[row].tolist()


@pytest.mark.parametrize("count", [16, 32, 64])
def test_told_again_the_last_value_counts(count):
    keys, values, asked, wanted = drawn(beyond_recall.again_of, count)
    for row in range(len(keys)):
        told = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))  # the last stays
        assert len(told) == beyond_recall.PEOPLE
        assert all(keys[row].tolist().count(key) == count // 16 for key in told)
        assert [told[key] for key in asked[row].tolist()] == wanted[row].tolist()


def test_what_is_to_be_copied_stands_on_both_sides_of_the_marker():
    tokens = beyond_recall.letters_of(5, 7, torch.Generator().manual_seed(0))
    assert tokens.shape == (7, 11) and (tokens[:, 5] == beyond_recall.LETTERS).all()
    assert torch.equal(tokens[:, :5], tokens[:, 6:]) and (tokens[:, :5] < 26).all()


@pytest.mark.parametrize("joined", [True, False])
def test_a_network_scores_the_questions_and_hides_the_later_ones(joined):
    torch.manual_seed(0)
    net = associative_recall.Recaller("gated linear", joined=joined).eval()
    keys, values, asked, _ = drawn(associative_recall.pairs_of, 6, size=3)
    changed = asked.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % associative_recall.KEYS
    with torch.no_grad():
        before, after = net(keys, values, asked), net(keys, values, changed)
    assert before.shape == (3, 6, associative_recall.VALUES)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_adding_differs_from_the_delta_rule_by_erasing_alone():
    """Where no key meets another, nothing stands under it that could be erased."""
    torch.manual_seed(0)
    delta, adder = (kind(16, 2, kernel=1) for kind in (DeltaMixer, associative_recall.Adder))
    adder.load_state_dict(delta.state_dict())
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        torch.testing.assert_close(delta(x[:, :1])[0], adder(x[:, :1])[0], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(delta(x)[0], adder(x)[0], atol=1e-3)


def test_states_are_of_equal_size():
    for name, numbers in RECALL["numbers"].items():
        assert numbers == [
            associative_recall.numbers_of([associative_recall.MIXERS[name]], 2 * count)
            for count in RECALL["pairs"]
        ]
        assert name == "attention" or all(abs(number - 512) <= 32 for number in numbers)


@pytest.mark.parametrize("part", [RECALL, SHARE["joined"], SHARE["apart"], BEYOND["again"]])
def test_the_rate_is_the_best_of_those_that_were_tried(part):
    for name, tried in part["rates"].items():
        assert tried[f"{part['rate'][name]:g}"] == max(tried.values())
        assert all(0 <= share <= 1 for run in part["recall"][name] for share in run)


def test_one_layer_of_attention_recalls_what_states_do_not():
    shares = {name: max(run[-1] for run in runs) for name, runs in RECALL["recall"].items()}
    assert shares.pop("attention") > 0.99 > 0.8 > max(shares.values())


def test_losses_and_shares_are_in_their_bounds():
    assert BEYOND["text"].keys() == beyond_recall.READERS.keys()
    assert all(1.5 < loss < 3 for loss in BEYOND["text"].values())
    assert BEYOND["copied"].keys() == beyond_recall.COPIERS.keys()
    assert all(0 < share <= 1 for shares in BEYOND["copied"].values() for share in shares)


def test_a_short_run_is_the_same_again():
    one, other = (
        associative_recall.trial([associative_recall.MIXERS["delta rule"]], 0.005, 0, 4, (4, 8))
        for _ in range(2)
    )
    assert one == other
