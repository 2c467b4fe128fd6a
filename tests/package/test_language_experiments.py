"""The experiments of chapter 13: their data are what they say, and their measures count right."""

import random
from itertools import combinations

import numpy as np
import pytest
import torch

from tfbook import experiments, pretrained
from tfbook.experiments import answers, forty_notes, sentiment, summaries

torch.set_num_threads(1)


def test_padding_does_not_count_in_the_mean():
    torch.manual_seed(3)
    hidden, lengths = torch.randn(5, 7, 3), torch.tensor([1, 7, 2, 5, 3])
    mask = torch.arange(7) < lengths[:, None]
    found = sentiment.masked_mean(hidden, mask)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(found[row], hidden[row, :n].mean(0))


def test_right_answers_are_counted_by_how_sure_people_were():
    pairs = [("a", 0.2), ("b", -0.3), ("c", 0.5), ("d", -3.0), ("e", 4.0)]
    right = np.array([True, False, True, False, True])
    assert sentiment.by_rating(right, pairs) == [0.5, 1.0, None, 0.5]


def test_labels_are_signs():
    assert sentiment.labels([("a", 0.1), ("b", -2.0)]).tolist() == [1, 0]


def test_the_means_of_an_encoder_are_those_that_it_embeds_with():
    minilm = pretrained.load("minilm-l6")
    texts = ["A rare treat.", "It runs for far too long.", "No."]
    found = torch.tensor(sentiment.means(minilm.model, minilm, texts), dtype=torch.float32)
    torch.testing.assert_close(found, minilm.embed(texts), atol=1e-5, rtol=0)


def test_the_untrained_body_was_given_as_many_labels():
    log = experiments.log("sentiment")
    assert set(log["accuracy"]["untrained"]) == {str(size) for size in log["sizes"]}
    assert all(len(runs) == len(log["seeds"]) for runs in log["accuracy"]["untrained"].values())


def test_each_run_has_read_the_note_and_the_new_wordings():
    log = experiments.log("answers")
    assert len(log["note"]) == len(log["wordings"]) == len(log["seeds"])
    assert all(answer in answers.NOTE for answer in log["note"])


@pytest.mark.parametrize("names", [0, 1])
@pytest.mark.parametrize("wording", [0, 1])
def test_an_answer_stands_where_it_is_said_to_stand(names, wording):
    for e in answers.examples(40, names=names, wording=wording, generator=random.Random(5)):
        allowed = {name for lists in answers.NAMES.values() for name in lists[names].split(", ")}
        assert e.answer in allowed
        assert e.answer not in e.question
        assert e.text.count(".") == 4


def test_the_sentence_of_the_answer_holds_what_was_asked_about():
    """A question names the other half of the one sentence that answers it."""
    for e in answers.examples(60, generator=random.Random(7)):
        (holder,) = [s for s in e.text.split(".") if _inside(e, s)]
        named = [n for lists in answers.NAMES.values() for n in lists[0].split(", ")]
        asked = [n for n in named if n in e.question]
        assert any(n in holder for n in asked)


def _inside(e, sentence):
    first = e.text.index(sentence)
    return bool(sentence) and first <= e.start < first + len(sentence)


def test_names_and_wordings_for_testing_are_others():
    for seen, new in answers.NAMES.values():
        assert not set(seen.split(", ")) & set(new.split(", "))
    for _, says, *questions in answers.RELATIONS.values():
        for seen, new in (says, *questions):
            assert not set(seen) & set(new)
    assert not set(summaries.NAMES[0]) & set(summaries.NAMES[1])


@pytest.mark.parametrize("longest", [1, 2, 7])
def test_the_best_span_is_the_best_of_all_spans(longest):
    torch.manual_seed(2)
    for _ in range(20):
        start, end = torch.randn(7), torch.randn(7)
        spans = [(i, j) for i in range(7) for j in range(i, min(i + longest, 7))]
        wanted = max(spans, key=lambda span: start[span[0]] + end[span[1]])
        assert answers.best_span(start, end, longest) == wanted


def test_a_span_does_not_leave_the_text():
    outside = torch.tensor([-torch.inf, -torch.inf, 0.0, 1.0, -torch.inf])
    assert answers.best_span(outside, outside) == (3, 3)


def test_the_same_answer_is_known_in_other_dress():
    assert answers.same("The red bicycle.", "red bicycle")
    assert not answers.same("red boat", "red bicycle")
    assert not answers.same("Acme", "Acme Bank")


@pytest.mark.parametrize("names", [0, 1])
def test_a_summary_is_the_urgent_report_without_its_last_word(names):
    for seed in range(20):
        text, summary = summaries.report(random.Random(seed), names=names)
        place = text.index("urgent") + 1
        assert summary == text[place : place + 4]
        assert text.count("urgent") == 1
        assert summary[0] in summaries.NAMES[names]


@pytest.fixture(params=[False, True], ids=["vocabulary", "copy"])
def summariser(request):
    torch.manual_seed(4)
    model = summaries.Summariser(copies=request.param, width=16)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval().requires_grad_(False)


def test_the_two_parts_make_one_distribution(summariser):
    source, target = summaries.batch_of([summaries.report(random.Random(i)) for i in range(3)])
    logs, *_ = summariser(source, target)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(target.shape), atol=1e-4, rtol=0)


def test_a_word_is_not_known_before_it_is_read(summariser):
    source, target = summaries.batch_of([summaries.report(random.Random(i)) for i in range(3)])
    before, *_ = summariser(source, target)
    target[:, 4:] = 5
    after, *_ = summariser(source, target)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert (after[:, 4:] - before[:, 4:]).abs().max() > 1e-3


def test_copying_gives_a_word_the_weight_of_all_its_places():
    torch.manual_seed(4)
    model = summaries.Summariser(copies=True, width=16).eval().requires_grad_(False)
    model.gate.weight.zero_()
    model.gate.bias.fill_(40.0)  # all is copied
    source, target = torch.tensor([[9, 5, 9, 7]]), torch.tensor([[1]])
    logs, a, share = model(source, target)
    assert share.item() == pytest.approx(1)
    assert logs.exp()[0, 0, 9].item() == pytest.approx((a[0, 0, 0] + a[0, 0, 2]).item(), rel=1e-4)


def test_overlap_is_f1_of_the_longest_common_subsequence():
    def longest(a, b):
        picks = (p for n in range(len(a), 0, -1) for p in combinations(a, n))
        return next((len(p) for p in picks if _within(p, b)), 0)

    generator = random.Random(1)
    for _ in range(30):
        a, b = ([generator.choice("xyz") for _ in range(generator.randint(1, 5))] for _ in "ab")
        wanted = 2 * longest(a, b) / (len(a) + len(b))
        assert summaries.overlap(a, b) == pytest.approx(wanted)


def _within(part, whole):
    rest = iter(whole)
    return all(word in rest for word in part)


@pytest.mark.parametrize("kept", [False, True])
def test_an_answer_of_the_many_wordings_stands_in_its_text(kept):
    for e in forty_notes.examples(60, kept=kept, generator=random.Random(5)):
        assert e.answer and e.answer not in e.question
        assert e.text[e.start : e.end] == e.answer


def test_no_name_of_the_notes_is_used_for_training():
    every = {*forty_notes.GIVEN, *forty_notes.FAMILY, *forty_notes.PLACES}
    for note in forty_notes.NOTES:
        assert not every & {*note.persons, *note.places}
        words, labels = forty_notes.labelled(note.text, note.persons, note.places)
        begun = sum(label.startswith("B-") for label in labels)
        assert len(words) == len(labels) and begun == len(note.persons) + len(note.places)


def test_the_names_for_the_test_are_others():
    for seen, new in zip(forty_notes.names(False), forty_notes.names(True), strict=True):
        assert not set(seen) & set(new)
