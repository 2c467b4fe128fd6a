"""What does it buy a summariser to copy from its source, when the source names someone new?

The texts are synthetic, and each has one true summary. A text is four reports, one of them marked
as urgent. The summary is that report without the mark and without the word that says how or when.
An encoder-decoder learns to write it from the text, once from its vocabulary alone, once with a
copy head as in [see2017get]: a share c of its probability comes from attention to the source,

    p(w) = (1 − c) softmax(z)_w + c Σ_{j: x_j = w} a_j.

Names are drawn from two lists. Those of the second stand in no training text; their rows of the
embedding are as they were drawn. The log holds, for new texts with names of either list: the share
of summaries that are exactly right, the share of right names, and how much the words overlap with
those of the truth (F1 of the longest common subsequence, as ROUGE-L has it, [lin2004rouge]).

Explained in: chapters/13_language_deeper, section "Shorter, and still true".
"""

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfbook.blocks import ModelState
from tfbook.data import BOS, EOS, PAD, SPECIALS, pad_batch
from tfbook.models import FFN, Attention, Layer, Rotary, TransformerConfig, build
from tfbook.optimization import schedule
from tfbook.training import fit

__all__ = ["SMOKE", "Summariser", "overlap", "report", "run"]

SMOKE = {"seeds": (0,), "steps": 2, "n_test": 4}
CARD = {
    "model": "encoder-decoder, 2 layers of width 64 each, 172,352 parameters, with a copy head "
    "180,609 parameters",
    "data": "synthetic reports, none twice",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}
BATCH, RATE = 32, 2e-3
NAMES = (
    "anna ben carla omar lucy ravi nora tom elena kofi sven aiko paul rosa igor lena amir joan "
    "felix dora mona karl tess yusuf olga hans maya luis petra noah".split(),
    "mia victor priya hugo ines samir grace emil zoe otto".split(),
)
VERBS = "sold found painted lost repaired bought hid cleaned".split()
THINGS = "boat violin house camera piano lamp bridge tent clock garden".split()
MANNERS = "yesterday quietly twice again today slowly".split()
WORDS = [
    *SPECIALS,
    "summarise",
    ":",
    "urgent",
    ".",
    "the",
    *NAMES[0],
    *NAMES[1],
    *VERBS,
    *THINGS,
    *MANNERS,
]
IDS = {word: i for i, word in enumerate(WORDS)}


def report(generator: random.Random, *, names: int = 0) -> tuple[list[str], list[str]]:
    """Draw a text and its summary, as words.

    Args:
        generator: of the random choices.
        names: 0 for the names of training, 1 for others.
    """
    draw = generator.sample
    facts = [
        [who, verb, "the", thing, how]
        for who, verb, thing, how in zip(
            draw(NAMES[names], 4), draw(VERBS, 4), draw(THINGS, 4), draw(MANNERS, 4), strict=True
        )
    ]
    chosen = generator.choice(facts)
    text = ["summarise", ":"]
    for fact in facts:
        text += [*["urgent"] * (fact is chosen), *fact, "."]
    return text, chosen[:-1]


class _Rows(nn.Module):
    """In the place of a head: hands on the decoder's last rows."""

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return x


class Summariser(nn.Module):
    """A small Transformer that can also point at a word of its source.

    Attributes:
        model: encoder and decoder.
        query, key: of the copy head.
        gate: the logit of c, the share of copying; None for a model that cannot copy.
    """

    def __init__(self, *, copies: bool, width: int = 64):
        """Draw the weights; those of the Transformer first, so that both kinds begin alike."""
        super().__init__()
        layer = Layer(Attention(4, position=Rotary()), FFN(2 * width))
        encoder, decoder = [layer] * 2, [layer.with_cross()] * 2
        self.model = build(TransformerConfig(len(WORDS), width, encoder=encoder, decoder=decoder))
        self.model.head = _Rows()
        self.query, self.key, self.gate = None, None, None
        if copies:
            self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
            self.gate = nn.Linear(width, 1)

    def forward(
        self, source: Int[Tensor, "B M"], target: Int[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N V"], Float[Tensor, "B N M"] | None, Float[Tensor, "B N"] | None]:
        """Return log-probabilities of the next words, weights a over the source, and shares c."""
        mask = source != PAD  # (B, M)
        memory = self.model.encode(source, mask=mask)  # (B, M, D)
        layers = self.model.decoder.remember(memory, mask[:, None, :])
        x, _ = self.model.decode(target, ModelState(layers))  # (B, N, D)
        written = (x @ self.model.embed.weight.T).log_softmax(-1)  # (B, N, V)
        if self.gate is None:
            return written, None, None
        scores = self.query(x) @ self.key(memory).mT / x.shape[-1] ** 0.5  # (B, N, M)
        a = scores.masked_fill(~mask[:, None, :], -torch.inf).softmax(-1)
        share = self.gate(x)  # (B, N, 1)
        place = source[:, None, :].expand_as(a)
        copied = torch.zeros_like(written).scatter_add(-1, place, a)  # (B, N, V)
        written, copied = (
            written + F.logsigmoid(-share),
            (copied + 1e-9).log() + F.logsigmoid(share),
        )
        return torch.logaddexp(written, copied), a, share.sigmoid()[..., 0]

    @torch.no_grad()
    def write(self, texts: Sequence[Sequence[str]], longest: int = 6) -> list[list[str]]:
        """Summarise texts, the likeliest word first."""
        source, _ = pad_batch([[IDS[word] for word in text] for text in texts])
        target = torch.full((len(texts), 1), BOS)
        for _ in range(longest):
            best = self(source, target)[0][:, -1].argmax(-1, keepdim=True)
            target = torch.cat((target, best), dim=1)
        found = []
        for row in target[:, 1:].tolist():
            row = row[: row.index(EOS)] if EOS in row else row
            found.append([WORDS[i] for i in row])
        return found


def batch_of(pairs: Sequence[tuple[list[str], list[str]]]) -> tuple[Tensor, Tensor]:
    """Turn texts and summaries into ids, (B, M) and (B, N)."""
    source, _ = pad_batch([[IDS[word] for word in text] for text, _ in pairs])
    target, _ = pad_batch([[BOS, *(IDS[word] for word in words), EOS] for _, words in pairs])
    return source, target


def overlap(written: Sequence[str], wanted: Sequence[str]) -> float:
    """Return the F1 of the longest common subsequence of two rows of words."""
    rows = [[0] * (len(wanted) + 1) for _ in range(len(written) + 1)]
    for i, word in enumerate(written):
        for j, other in enumerate(wanted):
            rows[i + 1][j + 1] = (
                rows[i][j] + 1 if word == other else max(rows[i][j + 1], rows[i + 1][j])
            )
    return 2 * rows[-1][-1] / (len(written) + len(wanted))


def train(*, copies: bool, steps: int, seed: int) -> Summariser:
    """Train a summariser on texts that never come twice."""
    torch.manual_seed(seed)
    model = Summariser(copies=copies)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        generator = random.Random(f"{seed} {number}")
        return batch_of([report(generator) for _ in range(BATCH)])

    def loss(model, pair):
        source, target = pair
        logs, *_ = model(source, target[:, :-1])
        return F.nll_loss(logs.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)

    fit(
        model,
        batch,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=RATE),
        steps=steps,
        schedule=schedule("cosine", steps=steps, warmup=min(50, steps // 2)),
        clip=1.0,
        progress=False,
    )
    return model.eval()


def measure(model: Summariser, pairs: Sequence[tuple[list[str], list[str]]]) -> dict[str, float]:
    """Return shares of exact summaries and of right names, and the mean overlap."""
    written = model.write([text for text, _ in pairs])
    wanted = [words for _, words in pairs]
    both = list(zip(written, wanted, strict=True))
    found = {
        "exact": sum(a == b for a, b in both),
        "name": sum(a[:1] == b[:1] for a, b in both),
        "overlap": sum(overlap(a, b) for a, b in both),
    }
    return {key: round(value / len(both), 4) for key, value in found.items()}


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = 300, n_test: int = 200
) -> tuple[dict, None]:
    """Train both kinds with each seed, and test them.

    Returns:
        the log: `tests`, for "vocabulary" and "copy" and for each list of names, one entry a seed
        as :func:`measure` gives it; `example`, one text with new names, its summary, what both
        kinds write, and the copy head's weights and shares as it writes.
    """
    kinds, lists = {"vocabulary": False, "copy": True}, ("names of training", "new names")
    tests = []
    for names in range(2):
        generator = random.Random(99 + names)
        tests.append([report(generator, names=names) for _ in range(n_test)])
    found = {kind: {title: [] for title in lists} for kind in kinds}
    example: dict[str, object] = {}
    for seed in seeds:
        for kind, copies in kinds.items():
            model = train(copies=copies, steps=steps, seed=seed)
            for title, part in zip(lists, tests, strict=True):
                found[kind][title].append(measure(model, part))
            if seed == seeds[0]:
                text, wanted = tests[1][0]
                (words,) = model.write([text])
                example |= {"text": text, "summary": wanted, kind: words}
                if copies:
                    with torch.no_grad():
                        source, target = batch_of([(text, words)])
                        _, a, share = model(source, target[:, :-1])
                    example["weights"] = [[round(w, 3) for w in row] for row in a[0].tolist()]
                    example["share"] = [round(c, 3) for c in share[0].tolist()]
    log = {
        "seeds": list(seeds),
        "steps": steps,
        "names": [len(names) for names in NAMES],
        "tests": found,
        "example": example,
    }
    return log, None
