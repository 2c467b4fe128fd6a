"""The search in front of a model that writes: how pages are cut and answers graded."""

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import easier_texts, retrieval

LOG = experiments.log("retrieval")


@pytest.mark.parametrize(
    ("answer", "wanted", "right"),
    [
        ("It has 1.25 million.", "1.25 million", True),
        ("1.25 Million", "1.25 million", True),
        ("21.25 million", "1.25 million", False),
        ("3", "3.3", False),
        ("3.35", "3.3", False),
        ("3.3.", "3.3", True),
        ("12", "2", False),
        ("2,904 pairs", "2", False),
        ("offline", "off", False),
    ],
)
def test_an_answer_holds_a_string_as_whole_words(answer, wanted, right):
    assert retrieval.holds(answer, wanted) is right


def test_a_page_loses_what_only_its_builder_reads():
    page = (
        "# Words\n\n```{glossary}\n:sorted:\n\nstate\n  What {term}`stays <stay>` {cite}`a2020b`."
        "\n```\n\n**See** {doc}`the lab </lab>` and [this](x.md).\n"
    )
    assert "state: What stays." in retrieval.plain(page)
    assert retrieval.plain(page).endswith("See the lab and this.")
    assert "{" not in retrieval.plain(page)


def test_paragraphs_have_at_least_so_many_words():
    assert retrieval.paragraphs({"a": "one two\n\none two three"}, least=3) == ["one two three"]


def test_a_prompt_shows_texts_only_with_a_paragraph():
    bare, full = retrieval.prompt("Why?"), retrieval.prompt("Why?", "So.")
    assert bare.endswith("Question: Why?\nAnswer:") and "Text:" not in bare
    assert full.endswith("Text: So.\nQuestion: Why?\nAnswer:") and full.count("Text:") == 3


def test_the_log_holds_a_paragraph_for_each_answer():
    texts = retrieval.paragraphs(LOG["pages"])
    for row in LOG["questions"]:
        assert any(retrieval.holds(text, row["wanted"]) for text in texts), row["question"]
        assert 0 <= row["at"] < len(texts)
        assert row["nats"]["right"] < row["nats"]["random"], row["question"]


def test_the_reworded_questions_are_others_in_the_same_order():
    assert len(retrieval.REWORDED) == len(retrieval.QUESTIONS) == len(set(retrieval.REWORDED))
    for again, (question, wanted) in zip(retrieval.REWORDED, retrieval.QUESTIONS, strict=True):
        assert again != question and not retrieval.holds(again, wanted)


def test_paragraphs_are_cut_into_sentences_of_at_least_four_words():
    cut = easier_texts.sentences(["It has 1.25 million weights. Why? Nobody knows it yet!"])
    assert cut == ["It has 1.25 million weights.", "Nobody knows it yet!"]


def test_of_several_texts_the_nearest_comes_last():
    cosines = torch.tensor([[0.1, 0.9, 0.5]])
    assert easier_texts.texts_for(cosines, ["a", "b", "c"], 2) == ["c\nb"]
    assert easier_texts.texts_for(cosines, ["a", "b", "c"], 1) == ["b"]


def test_the_log_of_the_easier_texts_has_an_answer_for_each_question():
    log = experiments.log("easier_texts")
    for kind, names in easier_texts.ASKED.items():
        assert tuple(log["answers"][kind]) == names
        for name in names:
            answers = log["answers"][kind][name]
            right = [
                retrieval.holds(a, q["wanted"])
                for a, q in zip(answers, LOG["questions"], strict=True)
            ]
            assert sum(right) == log["right"][kind][name]
