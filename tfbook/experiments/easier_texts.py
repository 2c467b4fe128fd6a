"""What helps a small model to answer from a text: another prompt, or a shorter text?

The 24 questions of `retrieval` are put to SmolLM2 anew, with three prompts:

- "examples": that of `retrieval`, with two examples of a text, a question and a short answer;
- "plain": the text and the question, without examples;
- "chat": a conversation in which a user asks for an answer in a few words, as SmolLM2-Instruct was
  trained to read it.

What stands in front of a question is the nearest paragraph, by MiniLM's vectors as in `retrieval`,
the three nearest paragraphs, the nearest sentence or the three nearest sentences of all pages, the
nearest paragraph that holds the string, or, as a control, a random one that does not. Of several
texts the nearest comes last. An answer is the first line that is written, of at most 32 tokens, and
right if it holds the string. Nothing was chosen by what came out: all that was asked is in the log.
The pages are those that `retrieval` kept.

Nothing is trained.

Explained in: chapters/13_language, section "Is the answer right?".
"""

import random
import re
from collections.abc import Sequence

import torch

from tfbook import experiments, generation, pretrained
from tfbook.experiments.retrieval import holds, paragraphs
from tfbook.experiments.retrieval import prompt as with_examples

__all__ = ["ASKED", "SMOKE", "ask", "run", "sentences", "texts_for"]

NEW = 32  # tokens of an answer at most
BATCH = 8
SHORTEST = 4  # words of a sentence
REQUEST = "Answer the question from the text, in a few words."
# What stands in front, and with which prompts.
ASKED = {
    "one sentence": ("examples", "plain", "chat"),
    "three sentences": ("examples", "plain", "chat"),
    "paragraph": ("examples", "plain", "chat"),
    "random paragraph": ("plain", "chat"),
    "three paragraphs": ("plain",),
    "right paragraph": ("chat",),
}
SMOKE = {"count": 1, "asked": {"one sentence": ("plain",)}}
CARD = {
    "model": "MiniLM-L6 finds, SmolLM2-135M writes, 22,713,216 and 134,515,008 parameters",
    "data": "three pages of this book",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}


def sentences(texts: Sequence[str]) -> list[str]:
    """Return the sentences of paragraphs that have at least four words."""
    parts = [part.strip() for text in texts for part in re.split(r"(?<=[.?!])\s", text)]
    return [part for part in parts if len(part.split()) >= SHORTEST]


def texts_for(cosines: torch.Tensor, texts: Sequence[str], count: int) -> list[str]:
    """Return for each question its nearest texts as one, the nearest last."""
    nearest = cosines.topk(min(count, len(texts)), dim=1).indices.tolist()
    return ["\n".join(texts[i] for i in reversed(row)) for row in nearest]


def ask(writer: pretrained.Pretrained, prompts: Sequence[str]) -> list[str]:
    """Return the first line of what a model writes behind each prompt, greedily."""
    ends = {int(writer.encode(text)[0, 0]) for text in ("\n", "\n\n")} | set(writer.eos_ids)
    found: list[str] = []
    for i in range(0, len(prompts), BATCH):
        rows = [writer.encode(text)[0].tolist() for text in prompts[i : i + BATCH]]
        written = generation.generate(
            writer.model, rows, max_new_tokens=NEW, stop=tuple(sorted(ends))
        )
        found += [(writer.decode(row).strip() or "-").splitlines()[0] for row in written.tokens]
    return found


def run(
    *,
    count: int | None = None,
    asked: dict[str, tuple[str, ...]] = ASKED,
    seed: int = 13,
) -> tuple[dict, None]:
    """Ask each question with each prompt and each kind of text in front of it.

    Args:
        count: how many of the questions are asked; None for all.
        asked: the kinds of texts, each with the prompts that it is tried with.
        seed: of the random paragraphs.

    Returns:
        the log: for each kind of text in how many questions it `holds` the string, and how many
        `tokens` it has on average; and for each kind and prompt the `answers` and how many are
        `right`.
    """
    kept = experiments.log("retrieval")
    questions = kept["questions"][:count]
    whole = paragraphs(kept["pages"])
    pieces = sentences(whole)
    finder, writer = pretrained.load("minilm-l6"), pretrained.load("smollm2-135m")
    vectors = finder.embed([row["question"] for row in questions])
    draw = random.Random(seed)

    def texts_of(kind: str) -> list[str]:
        if kind == "random paragraph":
            return [draw.choice([t for t in whole if not holds(t, q["wanted"])]) for q in questions]
        if kind == "right paragraph":
            orders = (vectors @ finder.embed(whole).T).argsort(dim=1, descending=True).tolist()
            ranked = [[whole[i] for i in order] for order in orders]
            return [
                next((t for t in texts if holds(t, q["wanted"])), texts[0])
                for texts, q in zip(ranked, questions, strict=True)
            ]
        parts = whole if "paragraph" in kind else pieces
        return texts_for(vectors @ finder.embed(parts).T, parts, 3 if "three" in kind else 1)

    def chat(question: str, text: str) -> str:
        said = f"{REQUEST}\n\nText: {text}\n\nQuestion: {question}"
        return writer.chat([{"role": "user", "content": said}])

    forms = {
        "examples": with_examples,
        "plain": lambda question, text: f"Text: {text}\nQuestion: {question}\nAnswer:",
        "chat": chat,
    }
    log: dict[str, dict] = {"holds": {}, "tokens": {}, "right": {}, "answers": {}}
    with torch.no_grad():
        for kind, names in asked.items():
            texts = texts_of(kind)
            log["holds"][kind] = sum(
                holds(t, q["wanted"]) for t, q in zip(texts, questions, strict=True)
            )
            sizes = [writer.encode(text).shape[1] for text in texts]
            log["tokens"][kind] = round(sum(sizes) / len(sizes), 1)
            log["right"][kind], log["answers"][kind] = {}, {}
            for name in names:
                found = ask(writer, [
                    forms[name](q["question"], t) for q, t in zip(questions, texts, strict=True)
                ])  # fmt: skip
                graded = zip(found, questions, strict=True)
                log["right"][kind][name] = sum(holds(text, q["wanted"]) for text, q in graded)
                log["answers"][kind][name] = found
    return log, None
