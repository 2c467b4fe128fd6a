"""The runs behind chapter 09: what the tasks ask, what mixers carry on, what the logs show."""

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import (
    associative_recall,
    copying,
    hybrid_controls,
    hybrid_share,
    new_story,
    recall_again,
    state_sizes,
    told_again,
    two_token_hybrids,
    two_tokens,
    update_rules,
)
from tfbook.recurrent import DeltaMixer, Mamba2Mixer

RECALL, SHARE, COPYING = map(experiments.log, ("associative_recall", "hybrid_share", "copying"))
AGAIN_RECALL, TWO = map(experiments.log, ("recall_again", "two_tokens"))
RULES, CONTROLS = map(experiments.log, ("update_rules", "hybrid_controls"))
INSIDE = experiments.log("inside_mamba")
SIZES, STORY, AGAIN = map(experiments.log, ("state_sizes", "new_story", "told_again"))


def drawn(draw, count, size=50):
    return draw(count, size, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("count", [4, 64])
def test_every_key_of_the_pairs_is_asked_for_once(count):
    keys, values, asked, wanted = drawn(associative_recall.pairs_of, count)
    for row in range(len(keys)):
        told = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))
        assert len(told) == count and sorted(asked[row].tolist()) == sorted(told)
        assert [told[key] for key in asked[row].tolist()] == wanted[row].tolist()


@pytest.mark.parametrize("count", [4, 16, 32, 64])
def test_told_again_the_last_value_counts(count):
    keys, values, asked, wanted = drawn(told_again.again_of, count)
    assert keys.shape[1] + asked.shape[1] == told_again.length_of(count)
    for row in range(len(keys)):
        told = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))  # the last stays
        assert len(told) == min(told_again.PEOPLE, count)
        assert all(keys[row].tolist().count(key) == count // len(told) for key in told)
        assert [told[key] for key in asked[row].tolist()] == wanted[row].tolist()


@pytest.mark.parametrize("old", [0, 16, 48])
def test_of_a_new_story_counts_what_is_said_in_earnest(old):
    keys, values, marks, asked, wanted = drawn(new_story.story_of, old)
    assert keys.shape[1] + asked.shape[1] == new_story.length_of(old)
    for row in range(len(keys)):
        begin = marks[row].tolist().index(new_story.BEGINS)
        assert begin == old and (marks[row, :old] == new_story.SAID).all()
        now = [
            (key, value)
            for key, value, mark in zip(*(x[row, old:].tolist() for x in (keys, values, marks)),
                                        strict=True)
            if mark != new_story.JEST
        ]  # fmt: skip
        assert len(now) == len(dict(now)) == new_story.NEW
        jests = keys[row][marks[row] == new_story.JEST].tolist()
        assert sorted(jests) == sorted(dict(now)) == sorted(asked[row].tolist())
        assert [dict(now)[key] for key in asked[row].tolist()] == wanted[row].tolist()


def test_what_is_to_be_copied_stands_on_both_sides_of_the_marker():
    tokens = copying.letters_of(5, 7, torch.Generator().manual_seed(0))
    assert tokens.shape == (7, 11) and (tokens[:, 5] == copying.LETTERS).all()
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


@pytest.mark.parametrize(
    "part",
    [RECALL, *(SHARE[part] for part in ("joined", "apart", "apart_longer")),
     RULES, SIZES, STORY, AGAIN],
)  # fmt: skip
def test_the_rate_is_the_best_of_those_that_were_tried(part):
    for name, tried in part["rates"].items():
        assert tried[f"{part['rate'][name]:g}"] == max(tried.values())
        assert all(0 <= share <= 1 for run in part["recall"][name] for share in run)


def test_one_layer_of_attention_recalls_what_states_do_not():
    shares = {name: max(run[-1] for run in runs) for name, runs in RECALL["recall"].items()}
    assert shares.pop("attention") > 0.99 > 0.8 > max(shares.values())


def test_states_of_a_size_hold_what_their_names_say():
    for name, numbers in SIZES["numbers"].items():
        kind, _, said = name.partition(", ")
        assert kind == "attention" or numbers == [int(said.replace(",", ""))] * 3


def test_states_that_are_compared_are_of_equal_size():
    for log in (STORY, AGAIN):
        for name, numbers in log["numbers"].items():
            assert name == "attention" or all(abs(number - 512) <= 32 for number in numbers)


def test_every_place_was_tried_with_five_seeds_at_both_rates():
    assert list(SHARE["places"]) == [f"{rate:g}" for rate in SHARE["settings"]["rates"]]
    for found in SHARE["places"].values():
        assert set(found["recall"]) == set(found["curve"]) == set(hybrid_share.ROAD)
        for runs in found["recall"].values():
            assert len(runs) == len(SHARE["seeds"]) == 5
            assert all(0 <= share <= 1 for *_, share in runs)


def test_the_first_seed_comes_out_alike_where_it_was_run_twice():
    for name in hybrid_share.ROAD:
        (once,) = SHARE["joined"]["recall"][name]
        again, *_ = SHARE["places"][f"{SHARE['joined']['rate'][name]:g}"]["recall"][name]
        assert again == pytest.approx(once, abs=0.02)


@pytest.mark.parametrize(
    ("log", "module"), [(RECALL, associative_recall), (AGAIN, told_again), (STORY, new_story)]
)
def test_longer_runs_are_of_all_that_had_not_learned_enough(log, module):
    assert set(log["long"]["recall"]) == set(log["recall"]) - set(module.ENOUGH)
    assert log["long"]["curve"].keys() == log["long"]["recall"].keys()
    for name, (shares,) in log["long"]["recall"].items():
        assert len(shares) == len(log["recall"][name][0]) and all(0 <= x <= 1 for x in shares)
        assert log["long"]["curve"][name][-1] < log["curve"][name][-1]


def test_longer_hybrids_are_those_that_the_module_names():
    assert set(SHARE["longer"]["recall"]) == set(hybrid_share.LONGER)
    assert set(SHARE["apart_longer"]["recall"]) == set(hybrid_share.APART_LONGER)


def test_the_steps_of_mamba_are_told_for_each_kind_of_row():
    (learned,) = STORY["learned"]
    assert learned.keys() == {"pair", "beginning", "jest"}
    for means in learned.values():
        assert all(0 <= x <= 1 for x in means["left"]) and all(x >= 0 for x in means["step"])


def test_narrow_mamba_has_keys_as_long_as_the_others():
    mixer = associative_recall.MIXERS["Mamba-2"]
    net = associative_recall.Recaller([mixer])
    found = [part for part in net.modules() if isinstance(part, Mamba2Mixer)]
    assert [(part.n_heads, part.d_state, part.d_head) for part in found] == [(2, 16, 16)]


def test_copied_letters_are_shares_of_each_model_and_length():
    assert COPYING["copied"].keys() == set(copying.COPIERS)
    for runs in COPYING["copied"].values():
        assert len(runs) == len(COPYING["seeds"])
        assert all(len(run) == 3 and 0 < share <= 1 for run in runs for share in run)


@pytest.mark.parametrize("name", state_sizes.names_of())
def test_sizes_are_compared_at_equal_memory(name):
    said = int(name.partition(", ")[2].replace(",", ""))
    mixer = state_sizes.mixer_of(name)
    assert associative_recall.numbers_of([mixer], state_sizes.PAIRS) == said


def test_a_second_seed_is_of_all_that_learned_longer():
    for name in set(RECALL["long"]["recall"]) - {"retention"}:
        assert recall_again.LAYERS[name] == (
            associative_recall.MIXERS[name], RECALL["rate"][name]
        )  # fmt: skip
    assert AGAIN_RECALL["recall"].keys() == set(recall_again.LAYERS)
    assert AGAIN_RECALL["settings"]["steps"] == RECALL["settings"]["long_steps"]
    assert not set(AGAIN_RECALL["seeds"]) & set(RECALL["seeds"][:1])


def test_positive_keys_are_the_only_difference_of_adding_with_them():
    kinds = associative_recall.Adder, recall_again.PositiveAdder
    adder, positive = (kind(16, 2, kernel=1) for kind in kinds)
    assert adder.state_dict().keys() == positive.state_dict().keys()
    x = torch.randn(3, 2, 5, 8)
    assert (positive.features(x) > 0).all() and (adder.features(x) < 0).any()
    for each in (adder, positive):
        torch.testing.assert_close(each.features(x).norm(dim=-1), torch.ones(3, 2, 5))


@pytest.mark.parametrize("name", recall_again.LAYERS)
def test_what_a_trained_layer_chose_is_in_its_bounds(name):
    learned = AGAIN_RECALL["learned"][name]
    assert all(len(each) == 2 for each in learned.values())
    for what in {"kept", "left", "beta", "overlap_size"} & learned.keys():
        assert all(0 <= x <= 1 for x in learned[what])
    assert all(x < 0 for x in learned.get("a", ()))


def test_stacks_of_two_layers_have_equal_steps_and_seeds():
    assert TWO["recall"].keys() == set(two_tokens.STACKS)
    assert all(len(runs) == len(TWO["seeds"]) for runs in TWO["recall"].values())


def test_attention_recalls_just_above_a_convolution_and_not_in_the_last_layer():
    log = experiments.log("two_token_hybrids")
    low, last = two_token_hybrids.LISTS
    for found in log["recall"].values():
        assert all(run[-1] == 1 for run in found[low])
        assert all(run[-1] < 0.1 for run in found[last])
    assert log["numbers"][low] == log["numbers"][last]


def test_a_short_run_is_the_same_again():
    one, other = (
        associative_recall.trial([associative_recall.MIXERS["delta rule"]], 0.005, 0, 4, (4, 8))
        for _ in range(2)
    )
    assert one == other


def test_of_revised_facts_the_last_counts():
    keys, values, asked, wanted = update_rules.revised_of(50, torch.Generator().manual_seed(3))
    for row in range(len(keys)):
        told = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))  # the last stays
        assert all(keys[row].tolist().count(key) == update_rules.TOLD for key in told)
        assert sorted(told) == sorted(asked[row].tolist())
        assert [told[key] for key in asked[row].tolist()] == wanted[row].tolist()


def test_of_a_new_story_only_what_follows_the_mark_is_asked_for():
    keys, values, asked, wanted = update_rules.story_of(50, torch.Generator().manual_seed(3))
    for row in range(len(keys)):
        begin = keys[row].tolist().index(update_rules.MARK) + 1
        told = dict(zip(keys[row, begin:].tolist(), values[row, begin:].tolist(), strict=True))
        assert len(told) == update_rules.STORY and sorted(told) == sorted(asked[row].tolist())
        assert sorted(told) == sorted(keys[row, : begin - 1].tolist())  # the same people
        assert [told[key] for key in asked[row].tolist()] == wanted[row].tolist()


@pytest.mark.parametrize("rule", update_rules.RULES[1:])
def test_a_rule_computed_at_once_is_its_loop(rule):
    torch.manual_seed(0)
    memory, x, told = update_rules.Memory(rule), torch.randn(1, 7, update_rules.WIDTH), 5
    with torch.no_grad():
        q, k, v = memory.to_qkv(x)[0].chunk(3, dim=-1)
        q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))
        keep, write = (each[0] for each in memory.chosen(x))
        state, read = torch.zeros(update_rules.SIDE, update_rules.SIDE), []
        for t in range(7):
            if t < told:  # the others are questions, which leave the state alone
                state = keep[t].exp() * state
                there = k[t] @ state if "delta" in rule else 0.0
                state = state + write[t] * torch.outer(k[t], v[t] - there)
            read.append(q[t] @ state)
        looped = torch.nn.functional.rms_norm(torch.stack(read), (update_rules.SIDE,))
        torch.testing.assert_close(
            memory(x, told)[0], memory.out_proj(looped), rtol=1e-4, atol=1e-5
        )


def test_all_rules_hold_as_many_numbers_when_the_questions_begin():
    told = update_rules.PEOPLE * update_rules.TOLD
    assert {update_rules.numbers_of(rule, told) for rule in update_rules.RULES} == {256}


def test_each_rule_does_what_it_was_made_for():
    """Every seed of one side is beyond every seed of the other."""
    once, story, revised = (
        {rule: [run[place] for run in found] for rule, found in RULES["recall"].items()}
        for place in (3, 5, 6)
    )
    states = [rule for rule in RULES["recall"] if rule != "attention"]
    assert min(once["attention"]) > 0.99 > 0.8 > max(max(once[rule]) for rule in states)
    assert min(story["Mamba-2"]) > max(story["linear attention"])
    assert min(story["gated delta rule"]) > max(max(story[r]) for r in ("retention", "delta rule"))
    rest = [rule for rule in states if "delta" not in rule]
    assert min(revised["delta rule"]) > max(max(revised[rule]) for rule in rest)


def test_controls_of_the_rules_change_what_their_names_say():
    assert set(RULES["controls"]) == set(update_rules.CONTROLS)
    for name, changed in update_rules.CONTROLS.items():
        assert name.startswith(changed["rule"])
        assert all(len(run) == len(RULES["counts"]) + 2 for run in RULES["controls"][name])
        numbers = changed.get("side", update_rules.SIDE) ** 2
        assert (f"{numbers:,} numbers" in name) == ("side" in changed)


def test_inside_mamba_trains_the_networks_of_the_rules():
    """The same means as there; the mark is written less than a fact would be at its step."""
    for seed, run in enumerate(INSIDE["inside"][:2]):
        keep, step = RULES["decay"]["Mamba-2"][seed], RULES["write"]["Mamba-2"][seed]
        assert abs(run["mark"]["keep"] - keep[1]) < 1e-3 > abs(run["mark"]["step"] - step[1])
    assert all(run["mark"]["value"] < 0.05 * run["fact"]["value"] for run in INSIDE["inside"])
    assert max(run[3] for run in INSIDE["alone"]) < 0.8


def test_without_a_slope_the_distance_makes_no_difference():
    torch.manual_seed(0)
    memory = update_rules.Memory("attention", slope=False)
    x = torch.randn(2, 6, update_rules.WIDTH)
    mixed = x[:, [2, 0, 1, 3, 4, 5]]  # the facts in another order, then the questions
    with torch.no_grad():
        torch.testing.assert_close(memory(x, 3)[:, 3:], memory(mixed, 3)[:, 3:])


def test_silent_states_pass_nothing_on_and_large_ones_hold_more_than_a_hybrid():
    net = hybrid_controls.model_of("third, silent states below")
    for block in list(net.stack.blocks)[:2]:
        assert not block.mixer.out_proj.weight.requires_grad
        assert not block.mixer.out_proj.weight.any()
    assert all(len(runs) == len(CONTROLS["seeds"]) == 5 for runs in CONTROLS["recall"].values())
    large, hybrid = CONTROLS["numbers"].values()
    assert large[-1] > hybrid[-1] == SHARE["joined"]["numbers"]["1 of 4, third"][-1]
