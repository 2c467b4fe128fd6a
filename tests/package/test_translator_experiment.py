"""The translator: what is read off texts, by hand, and the shipped model against its log."""

import pytest
import torch

from tfbook import data, experiments, metrics
from tfbook.data import BOS, EOS
from tfbook.experiments import translator

PAIRS = [
    ("open the panel", "ouvrez le panneau"),
    ("close the window", "fermez la fenêtre"),
    ("open the window", "ouvrez la fenêtre"),
]


@pytest.fixture(scope="module")
def shipped():
    return translator.trained()


@pytest.fixture(scope="module")
def log():
    return experiments.log("translator")


def test_the_memory_gives_the_translation_of_the_most_similar_sentence():
    asked = ["close a window", "panel", "Open the window!"]
    assert translator.memory(PAIRS, asked) == [PAIRS[1][1], PAIRS[0][1], PAIRS[2][1]]


def test_the_memory_knows_what_it_was_given():
    pairs = data.english_french("train")[:53]
    told = translator.memory(pairs, [english for english, _ in pairs])
    assert sum(a == b for a, (_, b) in zip(told, pairs, strict=True)) >= 50  # but repeated ones


def test_rare_words_count_more():
    pairs = [("the the the cat", "a"), ("the dog", "b"), ("the bird", "c")]
    assert translator.memory(pairs, ["the the the dog"]) == ["b"]


def test_words_are_cut_as_in_chapter_01():
    assert translator.words("L’icône s'affiche.") == "l' icône s' affiche ."


def test_greedy_is_one_beam_and_keeps_the_order(shipped):
    sentences = [english for english, _ in data.english_french("test")[:5]]
    sentences.sort(key=len, reverse=True)
    together = translator.translate(*shipped, sentences, most=12)
    alone = [translator.translate(*shipped, [each], most=12)[0] for each in sentences]
    assert together == alone


def test_alignments_are_rows_of_distributions_of_the_right_sizes(shipped):
    model, tokenizer = shipped
    read, wrote, layers = translator.alignment(model, tokenizer, *PAIRS[1])
    assert read[-1] == wrote[-1] == "<eos>"
    assert "".join(read[:-1]) == PAIRS[1][0]
    for weights in layers:
        assert weights.shape == (translator.CONFIG.choice("n_heads"), len(wrote), len(read))
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), 0, 1e-5)


def test_a_row_of_an_alignment_is_of_the_step_that_writes_the_token(shipped):
    model, tokenizer = shipped
    source, target = PAIRS[0]
    _, wrote, layers = translator.alignment(model, tokenizer, source, target)
    # The first token is written from <bos> alone, whatever follows.
    _, _, other = translator.alignment(model, tokenizer, source, PAIRS[1][1])
    assert torch.allclose(layers[0][:, 0], other[0][:, 0], 0, 1e-6)
    ids = torch.tensor([[BOS, *tokenizer.encode(target).ids]])
    read = torch.tensor([[*tokenizer.encode(source).ids, EOS]])
    assert layers[0].shape[1] == ids.shape[1] == len(wrote)
    assert torch.equal(layers[1], model.attention_weights(read, ids).cross[1][0])


def test_the_shipped_model_scores_as_the_log_says(shipped, log):
    test = data.english_french("test")
    english, wanted = [list(side) for side in zip(*test, strict=True)]
    written = translator.translate(*shipped, english)
    logged = log["scores"]["transformer"][0]
    assert metrics.bleu(written, wanted).score == pytest.approx(logged["bleu"], abs=0.3)
    assert metrics.chrf(written, wanted) == pytest.approx(logged["chrf"], abs=0.3)


def test_the_memory_scores_as_the_log_says(log):
    test = data.english_french("test")
    english, wanted = [list(side) for side in zip(*test, strict=True)]
    told = translator.memory(data.english_french("train"), english)
    logged = log["scores"]["memory"][0]["bleu"]
    assert metrics.bleu(told, wanted).score == pytest.approx(logged, abs=0.05)


def test_every_translator_was_scored_on_the_same_lengths(log):
    rows = [run["by_length"] for runs in log["scores"].values() for run in runs]
    assert {len(row) for row in rows} == {len(log["buckets"])}
    assert len(log["scores"]["transformer"]) == len(log["seeds"]) == len(log["curves"])
    assert len(log["scores"]["recurrent"]) == len(log["recurrent_seeds"])


def test_the_shipped_weights_are_halves():
    assert {w.dtype for w in experiments.weights("translator").values()} == {torch.float16}
