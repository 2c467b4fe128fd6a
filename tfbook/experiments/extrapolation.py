"""Trained on 64 tokens, what does each way to tell positions do at 512?

One small causal transformer, the same for all but for the positions: two layers, four heads, width
48. Each scheme is trained on pieces of 64 tokens and then reads pieces of 512, with three seeds.
Two tasks ask for different things:

* "text": predict the next letter of Shakespeare's plays. Near letters help most.
* "recall": each token is a symbol and a number k from 1 to 3; name the symbol k tokens back. It
  takes exact places, near ones; guessing gives 1/8.

T5's last bucket begins before distance 32 and Shaw's clip is at 16, both within the trained length.
Every bucket and row that the long pieces use has been trained. The learned table has 512 rows, of
which the short pieces train the first 64. `replaced` asks whether the far text is used at all: it
is the rise of the loss at the last 64 of 512 letters when the first 384 come from another place.
`short` is the loss of letters 257 to 512 when they are read in pieces of 64, the trained length.

One setting differs between the schemes: T5's table learns with ten times the step size of the other
weights, since a bias has to move by several units to matter. `same_step` holds what comes out
without that.

With the rotary models the log also holds, on text, what four changes do that need no training
("linear", "NTK", "YaRN": angles stretched for eight times the length; for the learned table,
"stretched": its 64 rows interpolated to 512), and 40 further steps at length 512 with the plain and
with the divided angles ("tuned", "tuned linear").

Explained in: chapters/04_positions, section "Train short, test long".
"""

import copy
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.attention import MultiHeadAttention
from tfbook.data import shakespeare
from tfbook.positions import (
    ALiBi,
    ConcatenatedPositions,
    LearnedPositions,
    LinearScaling,
    NoPositions,
    NTKScaling,
    RotaryPositions,
    RotaryScaling,
    ShawPositions,
    SinusoidalPositions,
    T5Bias,
    TransformerXLPositions,
    YarnScaling,
)

__all__ = [
    "LENGTH",
    "LONG",
    "SCHEMES",
    "SMOKE",
    "Reader",
    "by_place",
    "far_text_effect",
    "fit",
    "recall_batch",
    "rescale",
    "rounded",
    "run",
    "short_reading",
    "test_pieces",
    "text_batch",
    "train",
]

LENGTH, LONG = 64, 512
D_MODEL, N_HEADS = 48, 4
D_HEAD = D_MODEL // N_HEADS
SYMBOLS, FARTHEST, RATE = 8, 3, 5e-3
STRETCH = 32  # positions that one number of the log averages over

ENTRANCE = {  # before the first layer
    "none": NoPositions,
    "sinusoidal": lambda: SinusoidalPositions(D_MODEL),
    "learned": lambda: LearnedPositions(LONG, D_MODEL),
    "concatenated": lambda: ConcatenatedPositions(D_MODEL, D_MODEL // 2),
}
INSIDE = {  # within each layer's attention
    "Shaw": lambda: ShawPositions(D_HEAD, max_distance=16),
    "Transformer-XL": lambda: TransformerXLPositions(N_HEADS, D_HEAD),
    "T5": lambda: T5Bias(N_HEADS, n_buckets=16, max_distance=32, bidirectional=False),
    "ALiBi": lambda: ALiBi(N_HEADS),
    "rotary": lambda: RotaryPositions(D_HEAD),
}
SCHEMES = (*ENTRANCE, *INSIDE)
SMOKE = {"schemes": ("none", "learned", "T5", "rotary"), "seeds": (0,), "steps": 3,
         "extra_steps": 1, "pieces": 2}  # fmt: skip
CARD = {
    "model": "transformer, {layers} layers of width {d_model}, 62,751 to 87,327 parameters",
    "data": "Shakespeare, windows of {trained} characters, and a task of recall",
    "rate": "rate {RATE:g}",
}


class Layer(nn.Module):
    """Attention, then a network for each token, each added to what came before."""

    def __init__(self, position: nn.Module | None):
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)
        self.attention = MultiHeadAttention(D_MODEL, N_HEADS, causal=True, position=position)
        self.network = nn.Sequential(
            nn.Linear(D_MODEL, 4 * D_MODEL), nn.GELU(), nn.Linear(4 * D_MODEL, D_MODEL)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, d_model) to the same shape."""
        x = x + self.attention(self.norm(x))[0]
        return x + self.network(self.second_norm(x))


class Reader(nn.Module):
    """A causal transformer of two layers that is told positions in one of the ways."""

    def __init__(self, scheme: str, n_ids: int, n_answers: int):
        """Make the parts; T5's layers share one table of biases.

        Raises:
            ValueError: for a scheme that is not one of SCHEMES.
        """
        super().__init__()
        if scheme not in SCHEMES:
            raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
        self.embedding = nn.Embedding(n_ids, D_MODEL)
        self.entrance = ENTRANCE.get(scheme, NoPositions)()
        inside = INSIDE.get(scheme, lambda: None)
        first = inside()
        self.layers = nn.ModuleList([Layer(first), Layer(first if scheme == "T5" else inside())])
        if scheme == "T5":  # its scores are not divided by √d_head, so its queries begin smaller
            with torch.no_grad():
                for layer in self.layers:
                    layer.attention.q_proj.weight /= math.sqrt(D_HEAD)
        self.norm, self.to_answer = nn.LayerNorm(D_MODEL), nn.Linear(D_MODEL, n_answers)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, N) to the scores of the answers (B, N, n_answers)."""
        x = self.entrance(self.embedding(ids))
        for layer in self.layers:
            x = layer(x)
        return self.to_answer(self.norm(x))


def letters(split: str) -> Tensor:
    """Return a part of Shakespeare's plays as ids of its letters."""
    ids = {letter: i for i, letter in enumerate(sorted(set(shakespeare("all"))))}
    return torch.tensor([ids[letter] for letter in shakespeare(split)])


def text_batch(text: Tensor, size: int, length: int, generator: torch.Generator) -> tuple:
    """Draw pieces of a text and, at each letter, the one that comes next, both (size, length)."""
    start = torch.randint(len(text) - length, (size, 1), generator=generator)
    piece = text[start + torch.arange(length + 1)]
    return piece[:, :-1], piece[:, 1:]


def recall_batch(size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw symbols with numbers k, and the symbol that stands k before; −100 where there is none.

    The id of a token is symbol · 3 + k − 1.
    """
    symbol = torch.randint(SYMBOLS, (size, length), generator=generator)
    back = torch.randint(1, FARTHEST + 1, (size, length), generator=generator)
    place = torch.arange(length) - back
    answer = symbol.gather(1, place.clamp(min=0)).masked_fill(place < 0, -100)
    return symbol * FARTHEST + back - 1, answer


def train(
    task: str,
    scheme: str,
    *,
    seed: int = 0,
    steps: int = 350,
    table_rate: float = 10.0,
    tables: type[nn.Module] = T5Bias,
    begun: float | None = None,
    length: int = LENGTH,
    text: Tensor | None = None,
    rate: float = RATE,
) -> Reader:
    """Train one model on pieces of some length; the global random state stays as it was.

    Args:
        task: "text" or "recall".
        scheme: one of SCHEMES.
        seed: of the initial weights and the batches.
        steps: of 32 pieces of 64 tokens each, or of as many tokens in longer pieces.
        table_rate: step size of a table of positions over that of all other weights.
        tables: which kind of table it is.
        begun: standard deviation with which a learned table begins, as it is when omitted.
        length: of a piece.
        text: the ids of the training text, read anew when omitted.
        rate: step size of all weights that are no table of positions.
    """
    if task == "text":
        text = letters("train") if text is None else text
        sizes = (len(set(shakespeare("all"))),) * 2
    else:
        sizes = (SYMBOLS * FARTHEST, SYMBOLS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Reader(scheme, *sizes)
        if begun is not None:
            nn.init.normal_(model.entrance.weight, std=begun)
    generator, size = torch.Generator().manual_seed(seed), 32 * LENGTH // length
    if task == "text":
        batches = (text_batch(text, size, length, generator) for _ in range(steps))
    else:
        batches = (recall_batch(size, length, generator) for _ in range(steps))
    fit(model, batches, steps, rate, table_rate, tables)
    return model


def fit(
    model: Reader,
    batches: Iterable[tuple[Tensor, Tensor]],
    steps: int,
    rate: float,
    table_rate: float = 1.0,
    kind: type[nn.Module] = T5Bias,
) -> None:
    """Train on batches of ids and targets, (B, N); tables of one kind with a rate of their own.

    The rate rises over a twelfth of the steps and falls along a cosine to a twentieth.
    `table_rate` is the rate of the tables of `kind`, in multiples of `rate`.
    """
    tables = [part.weight for part in model.modules() if isinstance(part, kind)]
    others = [p for p in model.parameters() if all(p is not table for table in tables)]
    groups = [{"params": others}, {"params": tables, "lr": table_rate * rate}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=rate, weight_decay=0.01)
    warm = max(1, steps // 12)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(1.0, (i + 1) / warm) * (0.05 + 0.475 * (1 + math.cos(math.pi * i / steps))),
    )
    for ids, target in batches:
        loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def test_pieces(task: str, pieces: int = 64) -> tuple[Tensor, Tensor]:
    """Return pieces of 512 tokens that no model has seen, and their answers."""
    if task == "recall":
        return recall_batch(pieces, LONG, torch.Generator().manual_seed(10_000))
    text = letters("test")
    start = torch.linspace(0, len(text) - LONG - 1, pieces).long()[:, None]
    piece = text[start + torch.arange(LONG + 1)]
    return piece[:, :-1], piece[:, 1:]


@torch.no_grad()
def _losses(model: nn.Module, ids: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss at each place and whether the best answer was right, both (pieces, N)."""
    scores = torch.cat([model(part) for part in ids.split(16)]).transpose(1, 2)
    loss = F.cross_entropy(scores, target, reduction="none")
    return loss, (scores.argmax(dim=1) == target).float()


def by_place(model: nn.Module, task: str, pieces: int = 64) -> list[float]:
    """Return the mean loss ("text") or accuracy ("recall") of each stretch of 32 positions."""
    ids, target = test_pieces(task, pieces)
    loss, right = _losses(model, ids, target)
    known = target >= 0  # the first tokens of "recall" have nothing before them
    value = loss if task == "text" else right
    sums = (value * known).unflatten(1, (-1, STRETCH)).sum(dim=(0, 2))
    return (sums / known.unflatten(1, (-1, STRETCH)).sum(dim=(0, 2))).tolist()


def far_text_effect(model: nn.Module, pieces: int = 64) -> float:
    """Return how much the loss of the last 64 letters rises when the first 384 are another text."""
    ids, target = test_pieces("text", pieces)
    swapped = ids.clone()
    swapped[:, : LONG - 2 * LENGTH] = ids.roll(pieces // 2, 0)[:, : LONG - 2 * LENGTH]
    end = slice(LONG - LENGTH, None)
    right, wrong = (_losses(model, x, target)[0][:, end].mean() for x in (ids, swapped))
    return (wrong - right).item()


def short_reading(model: nn.Module, pieces: int = 64) -> float:
    """Return the loss of letters 257-512 when only 32 to 63 letters before each are read."""
    ids, target = test_pieces("text", pieces)
    half, middle = LENGTH // 2, LONG // 2
    windows = (x[:, middle - half :].unfold(1, LENGTH, half) for x in (ids, target))
    loss, _ = _losses(model, *(x.flatten(0, 1) for x in windows))  # pieces of 64 letters
    return loss[:, half:].mean().item()


def rescale(model: Reader, scaling: RotaryScaling | None) -> Reader:
    """Return a copy of a rotary model whose angles are changed for a longer context."""
    model = copy.deepcopy(model)
    for layer in model.layers:
        layer.attention.position = RotaryPositions(D_HEAD, scaling=scaling)
    return model


def _longer(model: Reader, steps: int, seed: int, text: Tensor, pieces: int) -> dict:
    """Return the losses of a rotary model with its angles changed, and tuned on long pieces."""
    factor = LONG / LENGTH
    scalings = {
        "linear": LinearScaling(factor),
        "NTK": NTKScaling(factor),
        "YaRN": YarnScaling(factor, LENGTH),
    }
    found = {name: by_place(rescale(model, s), "text", pieces) for name, s in scalings.items()}
    for name, scaling in (("tuned", None), ("tuned linear", scalings["linear"])):
        tuned = rescale(model, scaling)
        generator = torch.Generator().manual_seed(1000 + seed)
        batches = (text_batch(text, 4, LONG, generator) for _ in range(steps))
        fit(tuned, batches, steps, 2e-3)
        found[name] = by_place(tuned, "text", pieces)
    return found


def _stretched(model: Reader) -> Reader:
    model = copy.deepcopy(model)
    table = model.entrance
    with torch.no_grad():
        table.weight = nn.Parameter(table.weight[:LENGTH].clone())
        model.entrance = table.interpolated(LONG)
    return model


def run(
    *,
    schemes: tuple[str, ...] = SCHEMES,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 350,
    extra_steps: int = 40,
    pieces: int = 64,
) -> tuple[dict, dict[str, Tensor]]:
    """Train every scheme on both tasks with every seed, and read long pieces.

    Returns:
        the log: `text[scheme]` and `recall[scheme]` are lists over seeds of lists over stretches of
        32 positions (their middles are `places`), `longer[change]` likewise, `replaced[scheme]` and
        `short[scheme]` lists over seeds; and of seed 0, trained on text, the weights of the rotary
        model, the learned table and T5's.
    """
    text = letters("train")
    names = ("text", "short", "replaced", "recall", "same_step", "longer")
    log: dict = {name: {} for name in names}
    weights: dict[str, Tensor] = {}
    for scheme in schemes:
        for seed in seeds:
            model = train("text", scheme, seed=seed, steps=steps, text=text)
            results = {"text": by_place(model, "text", pieces)}
            results["replaced"] = far_text_effect(model, pieces)
            results["short"] = short_reading(model, pieces)
            recaller = train("recall", scheme, seed=seed, steps=steps)
            results["recall"] = by_place(recaller, "recall", pieces)
            for what, result in results.items():
                log[what].setdefault(scheme, []).append(rounded(result))
            if scheme == "T5":
                for task in ("text", "recall"):
                    plain = train(task, scheme, seed=seed, steps=steps, table_rate=1.0, text=text)
                    result = rounded(by_place(plain, task, pieces))
                    log["same_step"].setdefault(task, []).append(result)
            changes = {}
            if scheme == "rotary":
                changes = _longer(model, extra_steps, seed, text, pieces)
            if scheme == "learned":
                changes = {"stretched": by_place(_stretched(model), "text", pieces)}
            for change, result in changes.items():
                log["longer"].setdefault(change, []).append(rounded(result))
            if seed == seeds[0] and scheme == "rotary":
                weights |= {f"rotary.{key}": w.detach() for key, w in model.state_dict().items()}
            if seed == seeds[0] and scheme == "learned":
                weights["learned"] = model.entrance.weight.detach()
            if seed == seeds[0] and scheme == "T5":
                weights["T5"] = model.layers[0].attention.position.weight.detach()
    settings = {"trained": LENGTH, "tested": LONG, "steps": steps, "batch": 32, "d_model": D_MODEL,
                "n_heads": N_HEADS, "layers": 2, "extra_steps": extra_steps}  # fmt: skip
    places = [STRETCH * i + STRETCH // 2 for i in range(LONG // STRETCH)]
    return {"settings": settings, "seeds": list(seeds), "places": places, **log}, weights


def rounded(values: float | list[float]) -> float | list[float]:
    """Round what goes into a log: one loss to four places, a curve to three."""
    if isinstance(values, float):
        return round(values, 4)
    return [round(value, 3) for value in values]
