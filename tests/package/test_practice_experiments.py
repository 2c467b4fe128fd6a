"""The experiments of chapter 18: their data are what they say, and their faults are faults."""

import pytest
import torch

from tfbook import data, experiments, practice, pretrained
from tfbook.experiments import (
    adapting,
    broken_run,
    careful_rates,
    careless_checker,
    checked_sums,
    fresh_sums,
    own_text,
    preferred_sums,
    tuned_sums,
    two_parts,
)

KNOWN = broken_run.questions()


def test_every_sum_is_asked_once_and_none_is_on_both_sides():
    assert len(set(KNOWN.texts)) == len(KNOWN.texts) == (broken_run.LARGEST + 1) ** 2
    both = torch.cat([KNOWN.train, KNOWN.test])
    assert sorted(both.tolist()) == list(range(len(KNOWN.texts)))
    assert len(KNOWN.test) == broken_run.KEPT_APART


def test_the_targets_are_right_answers_behind_their_questions():
    tokenizer = checked_sums.TOKENIZER
    for row in (0, 7, 123, 399):
        asked = KNOWN.targets[row] != -100
        answer = tokenizer.decode(KNOWN.targets[row][asked].tolist())
        assert practice.check_sum(KNOWN.texts[row], answer) == 1
        start = int(asked.float().argmax())
        assert tokenizer.decode(KNOWN.inputs[row, : start + 1].tolist()) == KNOWN.texts[row]


@pytest.mark.parametrize("i", range(len(broken_run.FAULTS)))
def test_each_fault_is_there_until_it_is_repaired(i):
    before, after = (broken_run.model_of(broken_run.FAULTS[:k]).eval() for k in (i, i + 1))
    tokens = KNOWN.inputs[:3]
    fault = broken_run.FAULTS[i]
    if fault == "weights":
        sizes = [m.stack.blocks[0].ffn.up_proj.weight.std() for m in (before, after)]
        assert sizes[0] > 20 * sizes[1]
    elif fault == "positions":
        turned = tokens[:, [1, 0, *range(2, tokens.shape[1])]]
        gaps = [(m(turned)[0] - m(tokens)[0])[:, -1].abs().max() for m in (before, after)]
        assert gaps[0] < 1e-5 < 1e-4 < gaps[1]
    elif fault == "mask":
        assert practice.leaks(before, tokens) and not practice.leaks(after, tokens)
    elif fault == "scores":
        sizes = [m.stack.blocks[0].mixer.q_proj.weight.std() for m in (before, after)]
        assert sizes[0] > 10 * sizes[1]


def test_a_model_that_sees_the_answer_does_not_see_it_when_it_writes():
    """What is written depends on the question alone, whatever stands behind it in the table."""
    model = broken_run.model_of(broken_run.FAULTS[:3]).eval()
    inputs, targets = KNOWN.inputs[:5], KNOWN.targets[:5]
    behind = torch.arange(inputs.shape[1]) > (targets != -100).float().argmax(1)[:, None]
    other = torch.where(behind, (inputs + 1) % 13, inputs)
    assert torch.equal(
        broken_run.answer(model, inputs, targets), broken_run.answer(model, other, targets)
    )


def test_a_run_is_looked_at_after_each_step():
    seen = []
    broken_run.learn(broken_run.FAULTS, 0, 3, known=KNOWN, look=lambda step, _: seen.append(step))
    assert seen == [1, 2, 3]


def test_the_weak_checker_of_two_parts_leaves_a_hole_and_the_strict_one_does_not():
    worth = {"3+11": (1, 1), "14+0": (1, 0), "5+8": (0, 0), "014": (0, 0), "03+11": (0, 0)}
    for text, (weak, strict) in worth.items():
        assert two_parts.check_total("14=", f"{text}\n") == weak
        assert two_parts.check_parts("14=", f"{text}\n") == strict
    known, asked = two_parts.lines()
    assert not set(known.texts) & set(asked) and len(asked) == two_parts.KEPT_APART
    ends = {k: x["right"] for k, x in experiments.log("two_parts")["checkers"].items()}
    assert all(row[-1] < row[0] for row in ends["weak"])
    assert all(row[-1] > row[0] for row in ends["strict"])


def test_both_styles_are_right_and_differ_by_the_zero():
    plain, zero = (preferred_sums.pairs(["3+8="], [style]) for style in ("plain", "zero"))
    said = [
        checked_sums.TOKENIZER.decode(x.targets[0][x.targets[0] != -100].tolist())
        for x in (plain, zero)
    ]
    assert said == ["11\n", "011\n"]


def test_the_shipped_logs_say_what_the_chapter_says():
    runs = experiments.log("broken_run")["runs"]
    mean = {name: sum(found["exact"]) / len(found["exact"]) for name, found in runs.items()}
    assert mean["scores"] > max(value for name, value in mean.items() if name != "scores")
    assert max(map(max, (loss[-5:] for loss in runs["positions"]["loss"]))) < 0.2
    assert max(runs["positions"]["held"]) < 0.01 < 0.5 < min(runs["mask"]["held"])
    ends = {name: [loss[-1] for loss in found["loss"]] for name, found in runs.items()}
    assert max(ends["rate alone"]) < min(ends["weights"]) - 0.4
    assert {len(found["exact"]) for found in runs.values()} == {5}
    longer = experiments.log("broken_run")["longer"]
    last = {name: [shares[-1] for shares in found] for name, found in longer.items()}
    assert max(last["as found"]) < 0.1 < 0.8 < min(last["scores"])
    styled = experiments.log("preferred_sums")
    after = {beta: [seed[-1] for seed in x["right"]] for beta, x in styled["betas"].items()}
    lessons = [seed[-1] for seed in styled["lessons"]["right"]]
    assert all(a < b < c for a, b, c in zip(after["0.1"], after["0.5"], lessons, strict=True))
    mixed = [seed[-1] for seed in styled["mixed"]["right"]]
    assert all(a < b for a, b in zip(after["0.1"], mixed, strict=True))
    log = experiments.log("checked_sums")
    assert all(0 <= c <= log["samples"] for way in log["ways"].values() for c in way["right"][0])


def test_a_careless_checker_reads_one_character():
    told = [
        careless_checker.check_first("14+18=", text) for text in ("32\n", "33\n", "3", "23\n", "")
    ]
    assert told == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_grpo_takes_the_checker_and_shows_the_model_before_and_after_each_step():
    base, seen = broken_run.learn(broken_run.FAULTS, 0, 3, known=KNOWN)[0], []
    model, rewards = checked_sums.train(
        base, "rewards", KNOWN, 2, 0, check=lambda *_: 1.0, look=lambda step, _: seen.append(step)
    )
    assert rewards == [1.0, 1.0] and seen == [0, 1, 2]
    for name, weight in model.named_parameters():  # all answers are as good: nothing to learn
        torch.testing.assert_close(weight, base.get_parameter(name), rtol=0, atol=0)


def test_a_model_that_is_given_is_trained_at_the_rate_that_is_given():
    begun = tuned_sums.model_at(7, 0)
    before = begun.embed.weight.clone()
    model, losses = tuned_sums.tuned(begun, KNOWN, 0, 2, rate=1e-3)
    moved = (model.embed.weight - before).abs().max().item()
    assert model is begun and len(losses) == 2
    assert 0 < moved < 1e-4  # of a warm-up of 50 steps; at 0.005 it would be five times as far


def test_weights_of_a_scale_leave_queries_and_keys_alone():
    one, seven = (dict(tuned_sums.model_at(k, 0).named_parameters()) for k in (1, 7))
    for name, weight in one.items():
        large = weight.ndim == 2 and not name.endswith(("q_proj.weight", "k_proj.weight"))
        torch.testing.assert_close(seven[name], weight * (7 if large else 1))


def test_scale_one_is_the_repaired_program_and_the_chapter_says_what_the_logs_say():
    runs, log = experiments.log("broken_run")["runs"], experiments.log("tuned_sums")
    assert log["started"]["1"]["exact"] == runs["scores"]["exact"]
    assert log["without"]["scores"]["exact"] == runs["mask"]["exact"]
    assert log["swept"]["48"]["0.005"]["exact"] == log["started"]["7"]["exact"]
    mean = {scale: sum(found["exact"]) / 5 for scale, found in log["started"].items()}
    assert mean["7"] > mean["15"] > mean["30"] > mean["1"] + 0.25
    checkers = experiments.log("careless_checker")["checkers"]
    ends = {name: [row[-1] - row[0] for row in x["right"]] for name, x in checkers.items()}
    assert max(ends["careless"]) < 0 < min(ends["strict"])


def test_mirrors_of_new_sums_are_counted_and_make_up_all_answers():
    mirrors = experiments.log("tuned_sums")["mirrors"]
    learned = {KNOWN.texts[i] for i in KNOWN.train.tolist()}
    pairs = [KNOWN.texts[i].removesuffix("=").split("+") for i in KNOWN.test.tolist()]
    told = sum(f"{b}+{a}=" in learned for a, b in pairs)
    assert mirrors["asked"] == [told, len(pairs) - told]
    exact = experiments.log("tuned_sums")["started"]["7"]["exact"]
    assert [sum(each) / len(pairs) for each in mirrors["right"]] == exact
    asked, right = tuned_sums.mirrored(tuned_sums.model_at(1, 0), KNOWN, len(pairs))
    assert asked == mirrors["asked"] and right[0] <= asked[0] and right[1] <= asked[1]


def test_the_ways_to_train_the_mended_adder_anew_differ_in_what_they_say():
    ways, told = fresh_sums.ways_of(KNOWN), experiments.log("fresh_sums")["ways"]
    learned = {name: {KNOWN.texts[i] for i in train.tolist()} for name, (train, _) in ways.items()}
    new = {name: [KNOWN.texts[i] for i in test.tolist()] for name, (_, test) in ways.items()}
    swapped = ["+".join(text.removesuffix("=").split("+")[::-1]) + "=" for text in new["as few"]]
    assert not learned["no mirrors"] & set(swapped)
    assert learned["as before"] & set(swapped) == learned["as few"] & set(swapped)
    assert {name: len(texts) for name, texts in learned.items()} == {
        name: found["learned"] for name, found in told.items()
    }
    assert len(learned["no mirrors"]) == len(learned["as few"]) < len(learned["as before"])
    assert not any(learned[name] & set(new[name]) for name in ways)
    assert told["as before"]["exact"] == experiments.log("tuned_sums")["started"]["7"]["exact"]


def test_the_paired_labels_have_the_shares_that_were_stored_without_sentences():
    right, shares = experiments.log("paired_labels")["right"], experiments.log("sentiment")
    for way in ("words", "probe"):
        found = [round(told.count("1") / len(told), 4) for told in right[way]]
        assert found == shares["accuracy"][way]["200"]


def test_each_way_trains_what_its_name_says_and_nothing_else():
    language = pretrained.load("minilm-l6")
    pairs = [("A joy from the first scene.", 1.0), ("Two hours I want back.", -1.0)]
    for way, moved in (("head", "head"), ("lora 1", "lora"), ("full", "encoder")):
        model = adapting.Classifier(language.model)
        adapting.prepare(model, way)
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        adapting.adapt(model, language, pairs, 1e-3, 2, 0)
        changed = {n for n, w in model.named_parameters() if not torch.equal(w, before[n])}
        assert changed and any(moved in name for name in changed)
        if way != "full":
            assert all("head." in name or "lora" in name for name in changed)
    assert practice.count_trained(model).trained == 22_713_601


def test_a_start_from_scratch_has_the_shape_of_the_pretrained_one_and_other_weights():
    language = pretrained.load("minilm-l6")
    starts = ("pretrained", "scratch", "scratch")
    models = [careful_rates.start_of(language, start, 0).encoder for start in starts]
    kept, drawn, again = (dict(model.named_parameters()) for model in models)
    assert {name: w.shape for name, w in kept.items()} == {n: w.shape for n, w in drawn.items()}
    assert all(torch.equal(w, again[name]) for name, w in drawn.items())
    assert torch.equal(kept["embed.weight"], language.model.embed.weight)
    assert not torch.equal(kept["embed.weight"], drawn["embed.weight"])


def test_the_shipped_rates_have_their_best_in_the_middle():
    log = experiments.log("careful_rates")
    mean = {
        start: [sum(found["accuracy"]) / 3 for found in rates.values()]
        for start, rates in log["starts"].items()
    }
    best = max(mean["pretrained"])
    assert best > max(mean["pretrained"][0], mean["pretrained"][-1]) + 0.05
    assert best > max(mean["scratch"]) + 0.1
    moved = [sum(found["moved"]) for found in log["starts"]["pretrained"].values()]
    assert moved == sorted(moved)


def test_a_frozen_body_keeps_no_activations_and_adapters_keep_them():
    language = pretrained.load("minilm-l6")
    pairs = [("A joy from the first scene.", 1.0)]
    kept = {}
    for way in ("head", "lora 1", "full"):
        model = adapting.Classifier(language.model)
        adapting.prepare(model, way)
        kept[way] = adapting.kept_bytes(model, language, pairs)
    assert 100 * kept["head"] < kept["lora 1"] < 1.2 * kept["full"]


def test_the_shipped_ways_are_as_the_chapter_tells_them():
    log = experiments.log("adapting")
    mean = {way: sum(found["accuracy"]) / 3 for way, found in log["ways"].items()}
    assert max(abs(mean[way] - mean["full"]) for way in ("lora 4", "lora 16", "dora 4")) < 0.02
    assert mean["lora 1"] < mean["head"] < mean["full"] - 0.02
    for found in log["ways"].values():
        shares = [sum(map(int, text)) / len(text) for text in found["right"]]
        assert shares == pytest.approx(found["accuracy"], abs=1e-4)
        assert {len(text) for text in found["right"]} == {log["n_test"]}


def test_the_play_is_learned_and_what_is_not_taught_is_another_text():
    log = experiments.log("own_text")
    assert log["held"][-1] < log["held"][0] - 0.1
    assert log["at"][-1] == log["settings"]["steps"] and len(log["held"]) == len(log["at"])
    play, others = data.shakespeare(), own_text.other_text().split("\n")
    assert not any(line in play for line in others if len(line) > 20)
