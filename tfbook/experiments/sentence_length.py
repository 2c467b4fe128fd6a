"""How does the length of a sentence tell on a translator, with one vector and with attention?

The small language of chapter 01, English to French: a document, up to three places with up to two
adjectives each, a verb and a date. The chapter trains its two translators once, for 400 steps.
Here each is trained with three seeds, and five questions are asked besides. Do more steps help
the one vector, four times or ten times as many? (Every batch is new, so that more steps are more
sentences, too.) Does what stands at the beginning survive because the encoder also reads
backwards? Would as many parameters as attention has do? And does attention need the vector from
which the decoder begins? The log holds, for each kind of sentence and seed, the share of
sentences without a mistake and the share of right words, and for the longest kind of training
the share at each French place.

Explained in: chapters/01_motivation, section "Longer sentences, worse translations".
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "BEYOND", "READ", "RUNS", "SHAPES", "SMOKE", "WRITE", "Encoder", "LooksBack", "Translator",
    "as_ids", "batch", "length_of", "model_of", "number_of", "pair_of", "read_id", "run", "shares",
    "train", "write_id",
]  # fmt: skip

DOCUMENTS = {
    "agreement": "accord", "report": "rapport", "treaty": "traité", "plan": "projet",
    "law": "loi-", "letter": "lettre-", "decision": "décision-", "map": "carte-",
}  # fmt: skip
PLACES = {
    "area": "zone-", "city": "ville-", "region": "région-", "border": "frontière-",
    "market": "marché", "council": "conseil", "port": "port", "river": "fleuve",
}  # fmt: skip
ADJECTIVES = {  # masculine and feminine; a hyphen above marks a feminine noun
    "European": ("européen", "européenne"), "economic": ("économique", "économique"),
    "political": ("politique", "politique"), "national": ("national", "nationale"),
    "rural": ("rural", "rurale"), "industrial": ("industriel", "industrielle"),
    "Spanish": ("espagnol", "espagnole"), "maritime": ("maritime", "maritime"),
}  # fmt: skip
VERBS = {
    "signed": "signé", "published": "publié", "criticised": "critiqué", "cited": "cité",
    "changed": "changé", "voted": "voté", "refused": "refusé", "printed": "imprimé",
}  # fmt: skip
PREPOSITIONS = {"on": "sur", "for": "pour", "against": "contre", "with": "avec"}
MONTHS = {
    "January": "janvier", "March": "mars", "April": "avril", "May": "mai",
    "June": "juin", "August": "août", "October": "octobre", "December": "décembre",
}  # fmt: skip
YEARS = [str(year) for year in range(1988, 1996)]
# Kinds of sentences: the number of adjectives of each place.
SHAPES = [(), (0,), (1,), (2,), (0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (1, 1, 1)]
SHAPES += [(2, 1, 2), (2, 2, 2)]
BEYOND = [(1, 1, 1, 1), (2, 1, 2, 1), (2, 2, 2, 2)]  # four places: not trained


def article(noun: str) -> str:
    """Return the French article of a noun, whose hyphen says that it is feminine."""
    return "l'" if noun[0] in "aé" else "la" if noun.endswith("-") else "le"


def pair_of(shape: tuple[int, ...], chance: random.Random) -> tuple[list[str], list[str]]:
    """Make a pair of sentences: `shape` has the number of adjectives of each place."""
    lists: tuple[list[str], ...] = list(DOCUMENTS), list(VERBS), list(MONTHS), YEARS
    document, verb, month, year = [chance.choice(each) for each in lists]
    noun = DOCUMENTS[document]
    read, write = ["the", document], [article(noun), noun.rstrip("-")]
    for number in shape:
        preposition, place = chance.choice(list(PREPOSITIONS)), chance.choice(list(PLACES))
        adjectives = chance.sample(list(ADJECTIVES), number)
        feminine = PLACES[place].endswith("-")
        agreeing = [ADJECTIVES[word][feminine] for word in reversed(adjectives)]
        read += [preposition, "the", *adjectives, place]
        write += [PREPOSITIONS[preposition], article(PLACES[place])]
        write += [PLACES[place].rstrip("-"), *agreeing]
    participle = VERBS[verb] + ("e" if noun.endswith("-") else "")
    read += ["was", verb, "in", month, year]
    return read, [*write, "a", "été", participle, "en", MONTHS[month], year]


def number_of(shape: tuple[int, ...]) -> int:
    """Count the different English sentences of one kind."""
    ways = len(DOCUMENTS) * len(VERBS) * len(MONTHS) * len(YEARS)
    for number in shape:
        ways *= len(PREPOSITIONS) * len(PLACES)
        for taken in range(number):
            ways *= len(ADJECTIVES) - taken
    return ways


def length_of(shape: tuple[int, ...]) -> int:
    """Count the words of an English sentence of one kind."""
    return 7 + sum(3 + number for number in shape)


_many = [pair_of(shape, random.Random(i)) for shape in SHAPES for i in range(300)]
READ = ["<end>", *sorted({word for read, _ in _many for word in read})]
WRITE = ["<begin>", "<end>", *sorted({word for _, write in _many for word in write})]
read_id, write_id = ({w: i for i, w in enumerate(known)} for known in (READ, WRITE))


def as_ids(pairs: list[tuple[list[str], list[str]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Give sources, what goes into the decoder, and what it has to write; all of one length."""
    source = [[read_id[word] for word in read] + [0] for read, _ in pairs]
    target = [[write_id[word] for word in write] + [1] for _, write in pairs]
    written_before = [[0, *row[:-1]] for row in target]  # <begin>, then all but the last
    return torch.tensor(source), torch.tensor(written_before), torch.tensor(target)


def batch(
    shape: tuple[int, ...], size: int, chance: random.Random
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pairs of one kind, as numbers."""
    return as_ids([pair_of(shape, chance) for _ in range(size)])


class Encoder(nn.Module):
    """The chapter's encoder; or one that reads forwards only, with a context of the same size."""

    def __init__(self, d: int, both: bool = True):
        """Make one of width `d`."""
        super().__init__()
        self.read = nn.Embedding(len(READ), d)
        self.layer = nn.GRU(d, d if both else 2 * d, bidirectional=both, batch_first=True)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Give all states (B, M, 2d), and the context of the last ones (B, 2d)."""
        h, last = self.layer(self.read(source))
        return h, torch.cat(list(last), dim=-1)


class Translator(nn.Module):
    """The chapter's translator, whose decoder gets one vector of the source."""

    def __init__(self, d: int = 48, both: bool = True):
        """Make one of width `d`."""
        super().__init__()
        self.encoder, self.first = Encoder(d, both), nn.Linear(2 * d, d)
        self.write = nn.Embedding(len(WRITE), d)
        self.cell = nn.GRUCell(d + 2 * d, d)
        self.g = nn.Linear(d + 2 * d, len(WRITE))

    def context(self, s: Tensor, h: Tensor, c: Tensor) -> Tensor:
        """Give the decoder its context: here always the same."""
        return c

    def begin(self, c: Tensor) -> Tensor:
        """Give the decoder's state before the first word."""
        return torch.tanh(self.first(c))

    def forward(self, source: Tensor, written_before: Tensor) -> Tensor:
        """Give the logits of each French word (B, N, |WRITE|), the words before it being given."""
        h, c = self.encoder(source)
        s, logits = self.begin(c), []
        for y in self.write(written_before).unbind(1):
            c_t = self.context(s, h, c)
            s = self.cell(torch.cat([y, c_t], dim=-1), s)
            logits.append(self.g(torch.cat([s, c_t], dim=-1)))
        return torch.stack(logits, dim=1)


class LooksBack(Translator):
    """The chapter's translator with attention; `told`: whether the vector is its first state."""

    def __init__(self, d: int = 48, told: bool = True):
        """Make one of width `d`."""
        super().__init__(d)
        self.told = told
        self.W_a = nn.Linear(d, d, bias=False)
        self.U_a = nn.Linear(2 * d, d, bias=False)
        self.w_a = nn.Linear(d, 1, bias=False)

    def begin(self, c: Tensor) -> Tensor:
        """Give the decoder's state before the first word: of the vector, or zeros."""
        begun = super().begin(c)
        return begun if self.told else torch.zeros_like(begun)

    def context(self, s: Tensor, h: Tensor, c: Tensor) -> Tensor:
        """Average the annotations by weights that the state asks for."""
        hidden = torch.tanh(self.W_a(s)[:, None] + self.U_a(h))
        alpha = torch.softmax(self.w_a(hidden)[..., 0], dim=-1)
        return (alpha[:, None] @ h)[:, 0]


# Name → the model, and which of the numbers of steps it is trained for.
RUNS = {
    "one vector": ("one vector", 0),
    "one vector, more steps": ("one vector", 1),
    "one vector, most steps": ("one vector", 2),
    "one vector, read forwards only": ("forwards only", 0),
    "one vector, as many parameters": ("wider", 0),
    "looks back": ("looks back", 0),
    "looks back, begins with zeros": ("begins with zeros", 0),
}
BATCH, RATE = 32, 0.01
SMOKE = {"steps": (2, 3, 4), "seeds": (0, 1), "size": 4}
CARD = {
    "model": "encoder-decoder of GRUs, width 48 or 51, 77,593 to 91,417 parameters",
    "data": "a small language, sentences of 7 to 22 words",
    "steps": "{steps_first:,}, {steps_middle:,} or {steps_last:,} steps",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g} at most",
}


def model_of(kind: str) -> Translator:
    """Make one of the translators, untrained.

    Raises:
        ValueError: if there is no translator of that kind.
    """
    makers = {
        "one vector": lambda: Translator(),
        "forwards only": lambda: Translator(both=False),
        "wider": lambda: Translator(51),
        "looks back": lambda: LooksBack(),
        "begins with zeros": lambda: LooksBack(told=False),
    }
    if kind not in makers:
        raise ValueError(f"kind must be one of {', '.join(makers)}, got {kind!r}")
    return makers[kind]()


def train(model: Translator, steps: int, seed: int) -> Translator:
    """Train as the chapter does: each batch is new, and of one kind."""
    chance = random.Random(seed)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    for _ in range(steps):
        source, written_before, target = batch(chance.choice(SHAPES), BATCH, chance)
        logits = model(source, written_before)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def shares(
    model: Translator, shape: tuple[int, ...], size: int = 200
) -> tuple[float, float, list[float]]:
    """Return the share of faultless sentences, of right words, and of right words by place.

    Each word is written after the true ones. A sentence is faultless in this way exactly if the
    translator writes it without a mistake after its own words. The end mark counts as a word.
    """
    source, written_before, target = batch(shape, size, random.Random(77))
    right = model(source, written_before).argmax(dim=-1) == target
    by_place = right.double().mean(dim=0)
    faultless = right.all(dim=1).double().mean().item()
    return faultless, by_place.mean().item(), by_place.tolist()


def run(
    *,
    steps: tuple[int, ...] = (400, 1600, 4000),
    seeds: tuple[int, ...] = (0, 1, 2),
    size: int = 200,
) -> tuple[dict, None]:
    """Train every translator with every seed.

    Returns:
        the log: `faultless[run]` and `words[run]` are lists over kinds of lists over seeds, first
        the kinds of training, then those beyond; `places[run]` is a list over seeds of the shares
        at the French places of the longest kind of training.
    """
    kinds = [*SHAPES, *BEYOND]
    faultless: dict[str, list] = {}
    words: dict[str, list] = {}
    places: dict[str, list] = {}
    for name, (kind, which) in RUNS.items():
        found = []
        for seed in seeds:
            torch.manual_seed(seed)
            model = train(model_of(kind), steps[which], seed)
            found.append([shares(model, shape, size) for shape in kinds])
        by_kind = list(zip(*found, strict=True))
        faultless[name] = [[round(each[0], 4) for each in row] for row in by_kind]
        words[name] = [[round(each[1], 4) for each in row] for row in by_kind]
        longest = by_kind[SHAPES.index((2, 2, 2))]
        places[name] = [[round(share, 3) for share in each[2]] for each in longest]
    return {
        "settings": {"steps": list(steps), "steps_middle": steps[1], "sentences": size},
        "kinds": [list(shape) for shape in kinds],
        "lengths": [length_of(shape) for shape in kinds],
        "trained": len(SHAPES),
        "seeds": list(seeds),
        "faultless": faultless,
        "words": words,
        "places": places,
    }, None
