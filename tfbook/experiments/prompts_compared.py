r"""How much does the wording of a prompt decide, beside the model that reads it?

SmolLM2-135M-Instruct says whether short sentences of film reviews are positive or negative. It is
not trained: which of the two words it holds likelier behind the prompt is its answer. A prompt may
show k solved examples first, half of them positive, drawn from the training split with each of the
seeds. `asked` are 60 other sentences of at most 9 words, half of them positive.

What is compared: the number of examples in one form, with 0 to 16 examples; four examples of the
first draw in other orders of the same sentences; another form, and the chat template; and four
examples with all labels turned round. The control learns from the same examples without a prompt:
each sentence gets the nearer of two mean vectors of MiniLM ("means").

The log holds in `prompts` for each of them its `form`, the number of `examples`, the `seed` of
their draw, `change` (what is different, or ""), the `order` of the labels as 1 and 0, its length in
`tokens`, the share of right answers (`accuracy`) and of answers that are "positive" (`positive`);
and `calibrated`, the accuracy when the difference of the two log-probabilities is compared with
that of the text "N/A" behind the same prompt, [zhao2021calibrate]. `means` holds the control's
accuracies by k, one for each seed.

Explained in: chapters/18_practice_deeper, section "Prompts".
"""

import random
from collections.abc import Sequence

import torch

from tfbook import pretrained
from tfbook.data import movie_sentiment

__all__ = ["FORMS", "SMOKE", "Prompter", "examples", "prompt", "run", "short_sentences"]

SMOKE = {"counts": (2,), "seeds": (0,), "n_test": 2, "orders": ((1, 1, 0, 0),)}
CARD = {
    "model": "SmolLM2-135M-Instruct, 134,515,008 parameters; nothing is trained",
    "data": "{n_test} sentences of film reviews, 3 draws of examples",
    "steps": "", "batch": "", "rate": "",
}  # fmt: skip
LABELS = (" negative", " positive")
FORMS = {
    "Review … Sentiment": ("Review: {}\nSentiment:", "\n\n"),
    "question": ("Is this film review positive or negative?\n{}\nAnswer:", "\n\n"),
}
PLAIN, OTHER = FORMS
ORDERS = ((1, 1, 0, 0), (0, 0, 1, 1), (1, 0, 1, 0), (0, 1, 0, 1))


def short_sentences(split: str, words: int = 9) -> list[tuple[str, int]]:
    """Return short sentences that people agree on, with 1 for positive ones."""
    found = [(t, r) for t, r in movie_sentiment(split) if len(t.split()) <= words and abs(r) > 1]
    return [(text, int(rating > 0)) for text, rating in found]


def examples(k: int, seed: int, split: str = "train") -> list[tuple[str, int]]:
    """Draw k sentences, half of them positive, in a random order; fewer are the first of more."""
    drawn = random.Random(seed)
    both = [[pair for pair in short_sentences(split) if pair[1] == label] for label in (0, 1)]
    chosen = [drawn.sample(some, 40) for some in both]
    found = [pair for label in (0, 1) for pair in chosen[label][: k // 2]]
    drawn.shuffle(found)
    return found


def prompt(shown: Sequence[tuple[str, int]], form: str = PLAIN) -> str:
    """Write solved examples one below the other."""
    ask, end = FORMS[form]
    return "".join(f"{ask.format(text)}{LABELS[label]}{end}" for text, label in shown)


class Prompter:
    """The model behind one prompt, which it reads once.

    Args:
        language: a pretrained decoder.
        start: the text that stands before each question.
        ask: a form with braces for the sentence.
        labels: the two words, each one token.
    """

    def __init__(self, language, start: str, ask: str, labels: Sequence[str] = LABELS):
        """Read the prompt."""
        self.language, self.ask, self.state, self.tokens = language, ask, None, 0
        self.labels = [language.encode(label)[0].tolist() for label in labels]
        if any(len(label) > 1 for label in self.labels):
            raise ValueError(f"labels must be one token each, got {labels}")
        if start:
            ids = language.encode(start)
            self.tokens = ids.shape[1]
            with torch.no_grad():
                _, self.state = language.model.decode(ids, last=True)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Return ln p(positive) − ln p(negative) behind each sentence, (B,)."""
        ids = [self.language.encode(self.ask.format(text))[0] for text in texts]
        by_length: dict[int, list[int]] = {}
        for i, row in enumerate(ids):
            by_length.setdefault(len(row), []).append(i)
        found = torch.zeros(len(texts))
        for rows in by_length.values():
            same = torch.zeros(len(rows), dtype=torch.long)
            state = None if self.state is None else self.state.select(same)
            together = torch.stack([ids[i] for i in rows])
            logits, _ = self.language.model.decode(together, state, last=True)
            no, yes = (logits[:, -1, label[0]] for label in self.labels)
            found[rows] = yes - no
        return found


def means(language, shown: list[tuple[str, int]], asked: list[tuple[str, int]]) -> float:
    """Return how many sentences are nearer to the mean of the examples with their label."""
    vectors, labels = language.embed([t for t, _ in shown]), torch.tensor([x for _, x in shown])
    centres = torch.stack([vectors[labels == label].mean(0) for label in (0, 1)])
    near = torch.cdist(language.embed([t for t, _ in asked]), centres).argmin(1)
    return round((near == torch.tensor([x for _, x in asked])).double().mean().item(), 4)


def run(
    *, counts: tuple[int, ...] = (2, 4, 16), seeds: tuple[int, ...] = (0, 1, 2),
    n_test: int = 60, orders: tuple[tuple[int, ...], ...] = ORDERS,
) -> tuple[dict, None]:  # fmt: skip
    """Ask behind each prompt."""
    small, mini = pretrained.load("smollm2-135m"), pretrained.load("minilm-l6")
    asked = examples(n_test, 100, "test")
    texts, right = [t for t, _ in asked], torch.tensor([label for _, label in asked])
    log: dict = {"settings": {"n_test": n_test}, "seeds": list(seeds), "prompts": [], "means": {}}

    def ask(start: str, template: str, labels: Sequence[str] = LABELS, **named) -> None:
        prompter = Prompter(small, start, template, labels)
        said, empty = prompter(texts), prompter(["N/A"])
        hits = [((x > 0) == (right == 1)).double().mean().item() for x in (said, said - empty)]
        found = {"accuracy": round(hits[0], 4), "calibrated": round(hits[1], 4)}
        found["positive"] = round((said > 0).double().mean().item(), 4)
        log["prompts"].append({"tokens": prompter.tokens, **named, **found})

    def shown(some, seed, *, form=PLAIN, change="") -> None:
        order = [label for _, label in some]
        named = {"form": form, "examples": len(some), "seed": seed, "change": change}
        ask(prompt(some, form), FORMS[form][0], **named, order=order)

    for form in FORMS:
        shown([], 0, form=form)
    turn = [{"role": "user", "content": "Is this film review positive or negative? @ One word."}]
    chat = small.decode(small.encode_chat(turn)[0].tolist(), special=True)
    chat = chat.replace("{", "{{").replace("}", "}}").replace("@", "{}")
    ask("", chat, ("negative", "positive"), form="chat", examples=0, seed=0, change="", order=[])
    for seed in seeds:
        for k in counts:
            some = examples(k, seed)
            shown(some, seed)
            log["means"].setdefault(str(k), []).append(means(mini, some, asked))
        shown(examples(4, seed), seed, form=OTHER)
        turned = [(text, 1 - label) for text, label in examples(4, seed)]
        shown(turned, seed, change="labels turned round")
    for order in orders:
        both = [[pair for pair in examples(4, seeds[0]) if pair[1] == x] for x in (0, 1)]
        shown([both[label].pop() for label in order], seeds[0], change="order")
    return log, None
