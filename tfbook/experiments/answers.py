"""Can a model point at the answer to a question in a text, or only repeat what it was drilled on?

The texts are synthetic: four sentences about three people, made of templates and lists of names. A
question asks for what one of the sentences says, and the answer is a run of its words. MiniLM reads
question and text together; on its last three layers, trained along, stands a linear layer that
scores each token as the first and as the last of the answer. The layers below stay as they are.

Three sets of new texts test it: the wordings and names of training, other names, and other names in
other wordings. Beside exact matches stand those of spans whose ends are chosen one by one, those of
a reader that is not shown the question, and those of SmolLM2, which writes its answer word by word
and was trained on none of this. A fourth set has other wordings with the names of training, to tell
which of the two costs more. Last, each reader points into real text: it is asked about the note
with which the chapter begins, and the 24 questions of `retrieval` about paragraphs of this book, of
which no template was learned.

Explained in: chapters/13_language, section "Where is the answer?".
"""

import copy
import random
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook import experiments, generation, pretrained
from tfbook.data import pad_batch
from tfbook.experiments import retrieval
from tfbook.optimization import decay_groups, schedule
from tfbook.training import fit

__all__ = ["SMOKE", "Example", "Reader", "Span", "best_span", "examples", "run", "same", "show"]

SMOKE = {"seeds": (0,), "n_train": 2, "n_test": 2, "passes": 1, "n_written": 1, "n_pages": 1}
CARD = {
    "model": "the last {TOP} layers of MiniLM-L6 and a linear layer, 5,324,162 parameters",
    "data": "{questions[train]} questions on synthetic texts",
    "steps": "{passes} epochs",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}
TOP = 3  # layers that are trained
LONGEST = 6  # tokens of an answer
BATCH, RATE = 16, 3e-4

# Names of training, and names kept for testing.
NAMES = {
    "person": (
        "Anna, Ben, Carla, Omar, Lucy Hill, Ravi, Nora Lund, Tom, Elena, Kofi",
        "Mia, Victor Stone, Priya, Hugo Berg, Ines, Samir, Grace",
    ),
    "place": (
        "Lisbon, New Haven, Oslo, Kyoto, San Marino, Lima, Cardiff, Nairobi, Turin",
        "Dublin, Porto Novo, Madrid, Quito, East London, Riga",
    ),
    "firm": (
        "Acme Bank, Red River Press, Norton, Helix, Orion Steel, Lund and Sons, Pixel Farm",
        "Delta Mills, Blue Harbour Bank, Vertex, Stone and Co, Quanta",
    ),
    "thing": (
        "red bicycle, violin, small boat, camera, green van, piano, old clock",
        "grey horse, telescope, wooden canoe, drum, silver watch",
    ),
}
# A question and a text that no template has made: those with which the chapter begins.
ASKED = "In which city did Siobhan see the film?"
NOTE = "Siobhan hated the naïve film she saw in Dublin."
# Of each relation: what else it holds, how a text says it, how one asks for it, and for the person;
# in training, and in other words.
RELATIONS = {
    "lives": (
        "place",
        (
            ("{who} lives in {what}.", "The home of {who} is in {what}."),
            ("{who} has a flat in {what}.", "The house of {who} stands in {what}."),
        ),
        (("Where does {who} live?",), ("In which city is {who} at home?",)),
        (("Who lives in {what}?",), ("Who is at home in {what}?",)),
    ),
    "works": (
        "firm",
        (
            ("{who} works for {what}.", "{what} employs {who}."),
            ("{who} has a job at {what}.", "{what} pays the wages of {who}."),
        ),
        (("Who employs {who}?",), ("For which company does {who} work?",)),
        (("Who works for {what}?",), ("Who has a job at {what}?",)),
    ),
    "owns": (
        "thing",
        (
            ("{who} owns a {what}.", "A {what} belongs to {who}."),
            (
                "{who} bought a {what} and kept it.",
                "A {what} is the property of {who}.",
            ),
        ),
        (("What does {who} own?",), ("Which thing did {who} buy?",)),
        (("Who owns the {what}?",), ("Whose property is the {what}?",)),
    ),
}


class Example(NamedTuple):
    """A question, a text, and where in it the answer stands, in characters."""

    question: str
    text: str
    start: int
    end: int

    @property
    def answer(self) -> str:
        """The words of the answer."""
        return self.text[self.start : self.end]


class Span(NamedTuple):
    """What a reader found: the answer, its tokens (end inclusive) and the score of the two ends."""

    answer: str
    start: int
    end: int
    score: float


def examples(
    count: int, *, names: int = 0, wording: int = 0, generator: random.Random
) -> list[Example]:
    """Draw questions on synthetic texts.

    Three sentences say the same of three people, one says something else of one of them, in random
    order. Half of the questions ask for the person.

    Args:
        count: how many.
        names: 0 for the names of training, 1 for others.
        wording: 0 for the templates of training, 1 for others.
        generator: of the random choices.
    """
    found = []
    for _ in range(count):
        draw = generator.sample
        people = draw(NAMES["person"][names].split(", "), 3)
        asked, other = draw(list(RELATIONS), 2)
        facts = []
        for relation, who in ((asked, people), (other, people[:1])):
            kind, says, *_ = RELATIONS[relation]
            things = draw(NAMES[kind][names].split(", "), len(who))
            facts += [
                (generator.choice(says[wording]), dict(who=w, what=t))
                for w, t in zip(who, things, strict=True)
            ]
        wanted = facts[generator.randrange(3)]
        generator.shuffle(facts)
        of_person = generator.random() < 0.5
        question = generator.choice(RELATIONS[asked][3 if of_person else 2][wording])
        key, text, start = "who" if of_person else "what", "", 0
        for fact in facts:
            text += " " * bool(text)
            if fact is wanted:
                before = fact[0].split("{" + key + "}")[0]
                start = len(text) + len(before.format(**fact[1]))
            text += fact[0].format(**fact[1])
        answer = wanted[1][key]
        found.append(Example(question.format(**wanted[1]), text, start, start + len(answer)))
    return found


def best_span(
    start: Float[Tensor, " N"], end: Float[Tensor, " N"], longest: int = LONGEST
) -> tuple[int, int]:
    """Return the ends (i, j) of largest start_i + end_j with i ≤ j < i + longest."""
    scores = start[:, None] + end[None, :]  # (N, N): row i, column j
    allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(longest - 1)
    place = scores.masked_fill(~allowed, -torch.inf).argmax().item()
    return divmod(place, len(start))


class Reader(nn.Module):
    """MiniLM with its last layers of its own, and two scores for each token.

    Attributes:
        top: the layers that are trained.
        ends: from a token's vector to its scores as first and as last of the answer.
    """

    def __init__(self, language: pretrained.Pretrained):
        """Copy the upper layers; those below are used as they are."""
        super().__init__()
        self._language = [language]  # in a list, so that its weights are not the reader's
        self.top = copy.deepcopy(language.model.stack.blocks[-TOP:])
        self.ends = nn.Linear(language.config.d_model, 2)

    def tokens(self, question: str, text: str):
        """Return the tokens of "[CLS] question [SEP] text [SEP]", as `tokenizers` encodes them."""
        return self._language[0].tokenizer.encode(question, text)

    @torch.no_grad()
    def below(self, encoded: Sequence) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the lower layers give (B, N, D), which are tokens, and which of the text."""
        ids, lengths = pad_batch([e.ids for e in encoded], self._language[0].pad_id)
        mask = torch.arange(ids.shape[1]) < lengths[:, None]  # (B, N)
        segments, _ = pad_batch([e.type_ids for e in encoded], 0)
        of_text = torch.zeros_like(mask)
        for row, e in enumerate(encoded):
            of_text[row, : len(e.ids)] = torch.tensor([s == 1 for s in e.sequence_ids])
        states = self._language[0].model.hidden_states(ids, mask=mask, segments=segments)
        return states[-TOP - 1], mask, of_text

    def forward(
        self, x: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"], of_text: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
        """Return the scores of each token as first and as last of the answer; −∞ elsewhere."""
        for block in self.top:
            x, _ = block(x, mask=mask[:, None, None, :])
        scores = self.ends(x).masked_fill(~of_text[..., None], -torch.inf)  # (B, N, 2)
        return scores[..., 0], scores[..., 1]

    @torch.no_grad()
    def scores(
        self, questions: Sequence[str], texts: Sequence[str]
    ) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
        """Return the two scores of each token, for questions each with its text."""
        encoded = [self.tokens(*pair) for pair in zip(questions, texts, strict=True)]
        return self(*self.below(encoded))

    def read(self, question: str, text: str) -> Span:
        """Return the best span of a text as the answer to a question."""
        start, end = (scores[0] for scores in self.scores([question], [text]))
        i, j = best_span(start, end)
        return Span(self.words(question, text, i, j), i, j, (start[i] + end[j]).item())

    def words(self, question: str, text: str, i: int, j: int) -> str:
        """Return what stands in the text from token i to token j; nothing if i > j."""
        offsets = self.tokens(question, text).offsets
        return text[offsets[i][0] : offsets[j][1]]


def same(answer: str, wanted: str) -> bool:
    """Return whether two answers are the same but for capitals, articles and marks."""
    plain = [
        re.sub(r"\b(a|an|the)\b|[^\w\s]", " ", text.lower()).split() for text in (answer, wanted)
    ]
    return plain[0] == plain[1]


def train(language, data: Sequence[Example], passes: int, seed: int) -> Reader:
    """Train a reader on questions with known answers."""
    torch.manual_seed(seed)
    reader = Reader(language)
    generator = torch.Generator().manual_seed(seed)
    ready = []
    for e in data:
        encoded = reader.tokens(e.question, e.text)
        inside = [
            i
            for i, (part, (a, b)) in enumerate(
                zip(encoded.sequence_ids, encoded.offsets, strict=True)
            )
            if part == 1 and e.start <= a and b <= e.end
        ]
        ready.append((encoded, inside[0], inside[-1]))
    batches = []
    fixed = [ready[i : i + BATCH] for i in range(0, len(ready), BATCH)]
    cached = [
        (*reader.below([e for e, _, _ in part]), torch.tensor([p[1:] for p in part]))
        for part in fixed
    ]
    for _ in range(passes):
        batches += [cached[i] for i in torch.randperm(len(cached), generator=generator).tolist()]

    def loss(model, batch):
        *inputs, wanted = batch
        start, end = model(*inputs)
        return F.cross_entropy(start, wanted[:, 0]) + F.cross_entropy(end, wanted[:, 1])

    fit(
        reader,
        batches,
        loss=loss,
        optimizer=torch.optim.AdamW(decay_groups(reader, 0.01), lr=RATE),
        steps=len(batches),
        schedule=schedule("linear", steps=len(batches), warmup=len(batches) // 10),
        clip=1.0,
        progress=False,
    )
    return reader.eval()


def measure(reader: Reader, data: Sequence[Example]) -> dict[str, float]:
    """Return shares of right answers: best span, ends chosen apart, without the question."""
    found = {"exact": 0, "apart": 0, "crossed": 0, "blind": 0}
    for first in range(0, len(data), 50):
        part = data[first : first + 50]
        questions, texts = [e.question for e in part], [e.text for e in part]
        for asked in (questions, ["?"] * len(part)):
            for e, question, *scores in zip(part, asked, *reader.scores(asked, texts), strict=True):
                right = same(reader.words(question, e.text, *best_span(*scores)), e.answer)
                if asked is not questions:
                    found["blind"] += right
                    continue
                i, j = (row.argmax().item() for row in scores)
                found["exact"] += right
                found["apart"] += same(reader.words(question, e.text, i, j), e.answer)
                found["crossed"] += i > j
    return {key: round(value / len(data), 4) for key, value in found.items()}


def show(reader: Reader, e: Example) -> dict[str, object]:
    """Return the two scores of each token of a text, the best span, and what the best ends hold."""
    encoded = reader.tokens(e.question, e.text)
    start, end = (scores[0] for scores in reader.scores([e.question], [e.text]))
    ends = start.argmax().item(), end.argmax().item()
    kept = [i for i, part in enumerate(encoded.sequence_ids) if part == 1]
    return {
        "question": e.question,
        "text": e.text,
        "answer": e.answer,
        "best": reader.words(e.question, e.text, *best_span(start, end)),
        "apart": reader.words(e.question, e.text, *ends),
        "tokens": [encoded.tokens[i] for i in kept],
        "start": [round(start[i].item(), 2) for i in kept],
        "end": [round(end[i].item(), 2) for i in kept],
    }


def ask(writer: pretrained.Pretrained, data: Sequence[Example]) -> list[str]:
    """Return what a chat model writes as the answers."""
    prompts = [
        writer.encode(
            writer.chat(
                [
                    {
                        "role": "user",
                        "content": f"{e.text}\n\n{e.question} Answer with a name or a few words "
                        "from the text.",
                    }
                ]
            )
        )[0].tolist()
        for e in data
    ]
    found = []
    for i in range(0, len(prompts), 10):
        texts = generation.generate(
            writer.model, prompts[i : i + 10], max_new_tokens=20, stop=writer.eos_ids
        ).tokens
        found += [writer.decode(tokens).strip() for tokens in texts]
    return found


def on_pages(language, count: int) -> list[tuple[str, str, str]]:
    """Return the questions of `retrieval`, each with the nearest paragraph and a right one."""
    log = experiments.log("retrieval")
    texts = retrieval.paragraphs(log["pages"])
    asked = log["questions"][:count]
    near = language.embed([row["question"] for row in asked]) @ language.embed(texts).T
    found = []
    for row, order in zip(asked, near.argsort(dim=1, descending=True).tolist(), strict=True):
        right = next(i for i in order if retrieval.holds(texts[i], row["wanted"]))
        found.append((row["question"], texts[row["at"]], texts[right]))
    return found


def run(
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    n_train: int = 640,
    n_test: int = 150,
    passes: int = 6,
    n_written: int = 25,
    n_pages: int = 24,
) -> tuple[dict, None]:
    """Train a reader with each seed and test it on three sets; let SmolLM2 answer some of them.

    Args:
        seeds: of the training questions, and of the weights that are drawn.
        n_train: questions to train on.
        n_test: questions of each test set.
        passes: over the training questions.
        n_written: questions of each test set that SmolLM2 is asked.
        n_pages: questions about the pages of this book.

    Returns:
        the log: `tests`, for each set and seed what :func:`measure` gives; `shown`, the scores of
        the tokens of two questions with other names, by the first seed; `written`, for each set
        the questions, true answers and SmolLM2's; `pages`, for each seed the answers to the
        questions of `retrieval`, with the nearest paragraph (`found`) and with the `right` one;
        `wordings`, for each seed what :func:`measure` gives on other wordings with the names of
        training; `note`, for each seed the answer to the question about the note.
    """
    sets = {
        "same wording, same names": (0, 0),
        "same wording, new names": (1, 0),
        "new wording, new names": (1, 1),
    }
    tests = {
        title: examples(n_test, names=n, wording=w, generator=random.Random(1000 + n + 2 * w))
        for title, (n, w) in sets.items()
    }
    language, writer = pretrained.load("minilm-l6"), pretrained.load("smollm2-135m")
    found: dict[str, list] = {title: [] for title in sets}
    shown: list[dict] = []
    real, pages = on_pages(language, n_pages), []
    readers: list[Reader] = []
    reworded = examples(n_test, names=0, wording=1, generator=random.Random(1002))
    for seed in seeds:
        data = examples(n_train, generator=random.Random(seed))
        reader = train(language, data, passes, seed)
        for title, part in tests.items():
            found[title].append(measure(reader, part))
        readers.append(reader)
        pages.append(
            {
                way: [reader.read(row[0], row[k]).answer for row in real]
                for k, way in ((1, "found"), (2, "right"))
            }
        )
        shown = shown or [show(reader, e) for e in tests["same wording, new names"]]
    # One that only the best span gets right, if there is one, and another.
    order = sorted(shown, key=lambda e: (e["apart"] == e["answer"]) - (e["best"] == e["answer"]))
    written = {}
    for title, part in tests.items():
        asked = part[:n_written]
        written[title] = [
            {"question": e.question, "text": e.text, "answer": e.answer, "written": text}
            for e, text in zip(asked, ask(writer, asked), strict=True)
        ]
    log = {
        "seeds": list(seeds),
        "questions": {"train": n_train, "test": n_test},
        "passes": passes,
        "tests": found,
        "shown": [order[0], order[-1]],
        "written": written,
        "pages": pages,
        "wordings": [measure(reader, reworded) for reader in readers],
        "note": [reader.read(ASKED, NOTE).answer for reader in readers],
    }
    return log, None
