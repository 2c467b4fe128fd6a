"""The experiments of the second reading of chapter 18: what they draw, choose and measure."""

import math

import pytest
import torch

from tfbook.experiments import (
    hacked_reward,
    long_sums,
    many_answers,
    own_words,
    prompts_compared,
    shapes_compared,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_texts_with_working_are_right_and_use_each_digit_once():
    questions, texts, right = long_sums.draw(40, seeded())
    for question, text, total in zip(questions, texts, right, strict=True):
        assert long_sums.is_right(question, text) and long_sums.read(text) == total
        used = [text[0]] + [part.split("=")[0] for part in text.strip().split("+")[1:]]
        assert sorted(used) == sorted(question[:-1].split("+"))


def test_an_answer_that_does_not_end_is_none():
    assert long_sums.read("3+8=11") == "" and long_sums.read("3+8=11\n") == "11"
    assert not long_sums.is_right("3+8+1+1=", "3+8=11+1=12+1=14\n")


def test_direct_texts_are_the_last_number_alone():
    _, texts, right = long_sums.draw(5, seeded(), working=False)
    assert texts == [f"{total}\n" for total in right]


@pytest.mark.parametrize(("name", "seed"), [("large", 0), ("small", 2)])
def test_shipped_decoders_do_what_the_log_says(name, seed):
    from tfbook import experiments

    found = long_sums.test(long_sums.trained(name, seed), 200)
    said = experiments.log("long_sums")["greedy"][name][seed]
    assert found["greedy"] == pytest.approx(said, abs=0.1)


@pytest.mark.parametrize(
    ("rule", "expected"), [("majority", True), ("likeliest", False), ("any", True)]
)
def test_rules_choose_differently(rule, expected):
    numbers, scores = ["12", "11", "12"], [-3.0, -0.5, -2.0]
    assert many_answers.choose(rule, numbers, scores, "12") is expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("the lamp is ready .", 2.0),
        ("thanks , the lamp is ready .", 2.7),
        ("thanks , the lamp is ready please .", 3.0),
        ("thanks please sorry , the lamp is ready please .", 2.0),
        ("the boat is ready .", 0.0),
        ("the lamp the boat is ready .", 0.0),
    ],
)
def test_the_worth_of_a_reply(reply, expected):
    assert hacked_reward.worth("lamp", reply.split()) == pytest.approx(expected)


def test_the_grammar_names_wrong_things_and_is_seldom_very_polite():
    texts = hacked_reward.grammar(2000, seeded())
    wrong = sum(thing not in reply for thing, reply in texts) / 2000
    counts = [hacked_reward.polite(reply) for _, reply in texts]
    assert wrong == pytest.approx(hacked_reward.WRONG * 7 / 8, abs=0.03)
    for k, share in enumerate(hacked_reward.SHARES):
        assert counts.count(k) / 2000 == pytest.approx(share, abs=0.04)
    assert max(counts) == 3


def test_the_best_of_n_is_at_a_known_divergence():
    texts = [("lamp", ["the", "lamp", "."])] * 8
    scale = {"reward": 0.0, "reward_std": 1.0}
    found = hacked_reward.best(texts, torch.arange(8.0), scale, 4)
    assert found["reward"] == 5.0  # of 3 and 7
    assert found["kl"] == pytest.approx(math.log(4) - 0.75, abs=1e-3)


def test_examples_are_balanced_and_fewer_are_the_first_of_more():
    few, many = prompts_compared.examples(4, 1), prompts_compared.examples(16, 1)
    assert sum(label for _, label in many) == 8 and set(few) <= set(many)
    test = {text for text, _ in prompts_compared.examples(60, 100, "test")}
    assert len(test) == 60 and not test & {text for text, _ in many}


def test_shapes_have_equal_parameters():
    found = {shapes_compared.inner_parameters(shapes_compared.model_of(s)) for s in
             shapes_compared.SHAPES}  # fmt: skip
    assert found == {49_152}


def test_the_direction_of_the_divergence():
    teacher, student = long_sums.trained("large"), long_sums.trained("small")
    questions, texts, _ = long_sums.draw(3, seeded())
    inputs, targets = long_sums.text_batch(questions, texts)
    p, q = (m(inputs)[0].softmax(-1)[targets != -100] for m in (teacher, student))
    for forward, (a, b) in ((True, (p, q)), (False, (q, p))):
        found = own_words.divergence(student, teacher, questions, texts, forward=forward)
        torch.testing.assert_close(found, (a * (a / b).log()).sum(-1).mean(), rtol=1e-3, atol=1e-4)
