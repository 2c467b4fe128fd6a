"""Does a small model answer better when a page of this book is laid before it?

MiniLM turns each paragraph of three pages of the book into a vector, and each question too. The
paragraph whose vector lies nearest to the question's is put in front of it, and SmolLM2 continues
the text, greedily, behind two examples that show how short an answer should be. The same questions
are asked without a paragraph, with one drawn at random, so that a longer prompt alone is no
difference, and with one that holds the answer, so that finding and reading can be told apart. An
answer is right if it holds the string that the page holds, as whole words. Beside that stands what
this string costs the model, in nats a token. The form of the prompt and the number of paragraphs
were chosen on eight other questions.

Nothing is trained. The log keeps the pages as they were read, so that a chapter which searches them
does not change whenever somebody edits a page.

Explained in: chapters/13_language, section "Write it, and grade it".
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from tfbook import generation, pretrained

__all__ = ["QUESTIONS", "REWORDED", "SMOKE", "ask", "holds", "paragraphs", "plain", "prompt", "run"]

PAGES = ("glossary", "live_models", "preface")
BOOK = Path(__file__).parents[2] / "book"
NEW = 20  # tokens of an answer at most
BATCH = 8
# A text, a question, an answer: what stands before each question.
EXAMPLES = (
    (
        "The lab has four benches. Each seats 12 people.",
        "How many people fit on one bench?",
        "12",
    ),
    (
        "A kernel is a function that says how near two points are.",
        "What does a kernel say?",
        "how near two points are",
    ),
)
# What is asked, and what an answer has to hold.
QUESTIONS = (
    ("How many weights does the decoder trained on plays of Shakespeare have?", "1.25 million"),
    ("From how many given names does the model in the browser learn?", "301"),
    ("At which step does the held-out end of the sonnet cost least?", "110"),
    ("How many of the translations are the same after rounding the weights?", "391"),
    ("What does the translator make of 'Turn off the screen'?", "Activez l'écran"),
    ("What does the translator make of 'My cat sleeps on the sofa'?", "Saisissez"),
    ("Switching off which head makes the s of hast fall to 0.14?", "3.3"),
    ("How much memory does a reader's computer need?", "4 GB"),
    ("Under which licence may the text and figures of the book be shared?", "CC BY 4.0"),
    ("What does the function progress() show?", "passed"),
    ("How many neighbours share one scale in NVFP4?", "16"),
    ("What percentage of the words does BERT choose for hiding?", "15"),
    ("How many nats does guessing evenly among 27 characters cost?", "3.30"),
    ("As how many operations does this book count one multiply-accumulate?", "2"),
    ("By what are the numbers of a token divided in RMSNorm?", "root of their mean square"),
    ("What did T5 replace pieces of a text by?", "marks"),
    ("On how many test sentences was the translator measured?", "454"),
    ("What BLEU do the greedy translations of the shipped weights have?", "7.92"),
    ("How many characters were held out for choosing?", "56 thousand"),
    ("What does a head mask of 0 do to a head?", "off"),
    ("By what is a dot product divided to give the cosine?", "lengths"),
    ("What does ALiBi subtract from a score?", "slope"),
    ("What is made anew for every token in continuous batching?", "batch"),
    ("What does the exponential of the entropy count?", "keys"),
)
# The same questions, in the same order, in words that the pages hardly use.
REWORDED = (
    "What is the size of the network that has read Elizabethan drama?",
    "How long is the list of first names that the example in your page studies?",
    "When does the unseen last part of the poem get its lowest loss?",
    "In how many cases does quantising to eight bits leave the French text unchanged?",
    "Which French does it write for switching a display off?",
    "Which French does it write about a pet that rests on furniture?",
    "Which one must be disabled so that the chance of the verb's ending almost vanishes?",
    "How large must the RAM of my machine be?",
    "Which permission lets people copy and adapt the prose and pictures?",
    "What does one see of one's own results with the command for how far one has come?",
    "In NVIDIA's four-bit type, how many values use a common factor?",
    "Which portion of its input is blanked out in BERT's training?",
    "What is the loss of a uniform choice over the alphabet and one more sign?",
    "A product that is added to a sum: how much arithmetic is that reckoned as?",
    "Which quantity rescales a vector when the average is not taken off first?",
    "What stood in for the stretches of writing that T5 removed?",
    "How large was the collection of unseen phrases for evaluating English to French?",
    "How well does the original network score against human French?",
    "How much of the plays was put aside to pick the best network?",
    "What happens to one part of attention that is multiplied by zero?",
    "What do you take out of an inner product to get the similarity of directions?",
    "What makes far-away tokens count less in ALiBi?",
    "When users come and go while text is produced, what is formed again at each step?",
    "If I take e to the power of how spread out the weights are, what number do I get?",
)
SMOKE = {"questions": QUESTIONS[:1], "pages": ("preface",), "new": 3}
CARD = {
    "model": "MiniLM-L6 finds, SmolLM2-135M writes, 22,713,216 and 134,515,008 parameters",
    "data": "three pages of this book",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}


def plain(text: str) -> str:
    """Return a page without what only its builder reads: roles, directives, marks of style."""
    text = re.sub(r"```\{glossary\}\n(?::\w+:\n)*", "", text)
    text = re.sub(r"```.*?```|\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*\{cite[^}]*\}`[^`]*`", "", text)
    text = re.sub(r"\{[\w:]+\}`([^`<]*?)\s*(?:<[^>]*>)?`", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(?m)^(\S[^\n]*)\n {2}(?=\S)", r"\1: ", text)  # a term and what it means
    text = re.sub(r"(?m)^(#+|\*|\d+\.) |\*\*|[`$]", "", text)
    return re.sub(r"\n{3,}", "\n\n", text.replace("*", "")).strip()


def paragraphs(pages: dict[str, str], least: int = 12) -> list[str]:
    """Return the paragraphs of pages that have at least so many words."""
    parts = [part.strip() for page in pages.values() for part in page.split("\n\n")]
    return [part for part in parts if len(part.split()) >= least]


def prompt(question: str, paragraph: str = "") -> str:
    """Return what the model goes on from: examples, the paragraph if there is one, a question."""
    parts = []
    for text, asked, answer in (*EXAMPLES, (paragraph, question, "")):
        before = f"Text: {text}\n" if paragraph else ""
        parts.append(f"{before}Question: {asked}\nAnswer: {answer}".rstrip())
    return "\n\n".join(parts)


def holds(answer: str, wanted: str) -> bool:
    """Return whether an answer holds a string as whole words, capitals aside."""
    return bool(
        re.search(rf"(?<![\w.,]){re.escape(wanted.lower())}(?![\w]|[.,]\d)", answer.lower())
    )


def ask(writer: pretrained.Pretrained, prompts: Sequence[str], new: int = NEW) -> list[str]:
    """Return the first line of what a model writes behind each prompt, greedily."""
    found: list[str] = []
    for i in range(0, len(prompts), BATCH):
        rows = [writer.encode(text)[0].tolist() for text in prompts[i : i + BATCH]]
        written = generation.generate(writer.model, rows, max_new_tokens=new, stop=writer.eos_ids)
        found += [(writer.decode(row).strip() or "-").splitlines()[0] for row in written.tokens]
    return found


def cost(writer: pretrained.Pretrained, asked: str, wanted: str) -> float:
    """Return what a text costs a model behind another one: the mean of −ln p over its tokens."""
    before, behind = writer.encode(asked), writer.encode(f" {wanted}")
    logits, _ = writer.model(torch.cat([before, behind], dim=1))  # (1, N, V)
    predicted = logits[0, before.shape[1] - 1 : -1]  # the rows in front of its tokens
    return F.cross_entropy(predicted, behind[0]).item()


def run(
    *,
    questions: tuple[tuple[str, str], ...] = QUESTIONS,
    pages: tuple[str, ...] = PAGES,
    seed: int = 13,
    new: int = NEW,
) -> tuple[dict, None]:
    """Ask each question without a paragraph, and with one found, drawn at random, or right.

    Args:
        questions: each with what a right answer holds.
        pages: of the folder `book`, by name.
        seed: of the random paragraphs, which hold no right answer.
        new: tokens of an answer at most.

    Returns:
        the log: `pages`, as they were read; for each of `questions` its string (`wanted`), the
        number of the nearest paragraph (`at`), and what was written with `none`, with the one
        `found`, with a `random` one, and with the nearest one that is `right`; and the `nats` that
        a token of the string costs in each case.
    """
    read = {name: plain((BOOK / f"{name}.md").read_text(encoding="utf-8")) for name in pages}
    texts = paragraphs(read)
    finder, writer = pretrained.load("minilm-l6"), pretrained.load("smollm2-135m")
    similarity = finder.embed([question for question, _ in questions]) @ finder.embed(texts).T
    draw = random.Random(seed)
    rows: list[dict] = []
    prompts: dict[str, list[str]] = {"none": [], "found": [], "random": [], "right": []}
    for (question, wanted), order in zip(
        questions, similarity.argsort(dim=1, descending=True), strict=True
    ):
        order = order.tolist()
        right = [i for i in order if holds(texts[i], wanted)]
        wrong = [i for i in range(len(texts)) if i not in right]
        given = {"found": order[0], "random": draw.choice(wrong), "right": (right or order)[0]}
        rows.append({"question": question, "wanted": wanted, "at": order[0], "nats": {}})
        prompts["none"].append(prompt(question))
        for way, i in given.items():
            prompts[way].append(prompt(question, texts[i]))
    for way, asked in prompts.items():
        with torch.no_grad():
            for row, text, prefix in zip(rows, ask(writer, asked, new), asked, strict=True):
                row[way] = text
                row["nats"][way] = round(cost(writer, prefix, row["wanted"]), 3)
    return {"pages": read, "questions": rows}, None
