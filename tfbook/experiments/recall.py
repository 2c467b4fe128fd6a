"""How far back can a network recall, and how much gradient reaches that far?

The task: one token of a sequence is marked, `distance` plain tokens follow, then a question mark;
name the marked token. The plain tokens come from the same eight symbols, so that nothing but the
mark says what to keep. Every network is trained from its usual initialisation at each distance
anew, with the same width, steps, batches and optimizer. Beside the accuracy the log holds the
gradient norm ‖∂loss/∂x_t‖ of the input that lies 0, 1, 2, … tokens before the question mark, in
networks that have not been trained, as mean over 100 sequences.

"LSTM, open gates" is the same LSTM with biases of 4 on the forget gates at the start, so that they
begin at σ(4) = 0.98 instead of about a half. The attention layer is one head without positions.

Explained in: chapters/01_motivation, section "How far back can it remember?".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.attention import attend

__all__ = ["MODELS", "SMOKE", "Recaller", "batch_of", "gradient_by_distance", "run"]

MODELS = ("Elman RNN", "GRU", "LSTM", "LSTM, open gates", "attention")
SYMBOLS = 8
RATE = 5e-3
QUESTION = 2 * SYMBOLS
SMOKE = {"distances": (2, 4), "seeds": (0, 1), "steps": 3, "longest": 6}
CARD = {
    "model": "one recurrent or attention layer of width {width}, 2,920 to 9,256 parameters",
    "data": "rows of random symbols, one of them marked",
    "batch": "batches of {size}",
    "rate": "rate {RATE:g}, falling",
}


def batch_of(size: int, distance: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences that end with the question mark, and the symbol that each asks for.

    A marked symbol is the symbol's id plus 8. Before it stand one to four plain tokens, the same
    number in the whole batch, so that its place counted from the start is no help.

    Returns:
        ids `(size, before + 1 + distance + 1)` and the marked symbols `(size,)`.
    """
    before = int(torch.randint(1, 5, (), generator=generator))
    ids = torch.randint(SYMBOLS, (size, before + distance + 2), generator=generator)
    marked = ids[:, before].clone()
    ids[:, before] += SYMBOLS
    ids[:, -1] = QUESTION
    return ids, marked


class Recaller(nn.Module):
    """Embedding, one recurrent or attention layer of width `d`, and eight scores at the end."""

    def __init__(self, kind: str, d: int = 32):
        """Make a network of one of the kinds in `MODELS`, untrained."""
        super().__init__()
        if kind not in MODELS:
            raise ValueError(f"kind must be one of {', '.join(MODELS)}, got {kind!r}")
        self.embedding = nn.Embedding(QUESTION + 1, d)
        self.mixer = self._mixer(kind, d)
        self.to_symbol = nn.Linear(d, SYMBOLS)

    @staticmethod
    def _mixer(kind: str, d: int) -> nn.Module:
        if kind == "attention":
            return nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(3))
        if kind == "Elman RNN":
            return nn.RNN(d, d, batch_first=True)
        if kind == "GRU":
            return nn.GRU(d, d, batch_first=True)
        mixer = nn.LSTM(d, d, batch_first=True)
        if kind == "LSTM, open gates":
            with torch.no_grad():  # the gates stand in the order input, forget, cell, output
                mixer.bias_ih_l0[d : 2 * d] = 4.0
                mixer.bias_hh_l0[d : 2 * d] = 0.0
        return mixer

    def forward(self, x: Tensor) -> Tensor:
        """Map embedded tokens (B, N, d) to the scores of the symbols (B, 8) after the last one."""
        if isinstance(self.mixer, nn.ModuleList):
            W_q, W_k, W_v = self.mixer
            mixed = attend(W_q(x[:, -1:]), W_k(x), W_v(x))  # (B, 1, d)
        else:
            mixed, _ = self.mixer(x)  # (B, N, d)
        return self.to_symbol(mixed[:, -1])


def train(model: Recaller, distance: int, steps: int, size: int, seed: int) -> None:
    """Train a network at one distance, with Adam, clipped gradients and a falling step size."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
    for _ in range(steps):
        ids, marked = batch_of(size, distance, generator)
        loss = F.cross_entropy(model(model.embedding(ids)), marked)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: Recaller, distance: int, seed: int) -> float:
    """Return the share of 500 fresh sequences whose marked symbol is named."""
    ids, marked = batch_of(500, distance, torch.Generator().manual_seed(10_000 + seed))
    return (model(model.embedding(ids)).argmax(dim=-1) == marked).double().mean().item()


def gradient_by_distance(model: Recaller, distance: int, seed: int, size: int = 100) -> list[float]:
    r"""Return the mean of ‖∂loss/∂x_t‖ over sequences, for x_t 0, 1, … tokens before the end.

    In double precision: at the longest distances the norms underflow in single precision.
    """
    model = model.double()
    ids, marked = batch_of(size, distance, torch.Generator().manual_seed(20_000 + seed))
    x = model.embedding(ids).detach().requires_grad_()
    F.cross_entropy(model(x), marked, reduction="sum").backward()
    return x.grad.norm(dim=-1).mean(dim=0).flip(0)[: distance + 1].tolist()


def run(
    *,
    distances: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    steps: int = 1000,
    size: int = 32,
    longest: int = 100,
    width: int = 32,
) -> tuple[dict, None]:
    """Train every network at every distance with every seed.

    Returns:
        the log: `accuracy[model]` is a list over distances of lists over seeds, `gradient[model]`
        a list over seeds of lists over the distance 0 … `longest`.
    """
    scores: dict[str, list] = {name: [] for name in MODELS}
    gradients: dict[str, list] = {name: [] for name in MODELS}
    for name in MODELS:
        for seed in seeds:
            torch.manual_seed(seed)
            norms = gradient_by_distance(Recaller(name, width), longest, seed)
            gradients[name].append([float(f"{norm:.3g}") for norm in norms])
        for distance in distances:
            scores[name].append([])
            for seed in seeds:
                torch.manual_seed(seed)
                model = Recaller(name, width)
                train(model, distance, steps, size, seed)
                scores[name][-1].append(round(accuracy(model, distance, seed), 3))
    settings = {"steps": steps, "size": size, "width": width, "longest": longest}
    return {
        "settings": settings,
        "distances": list(distances),
        "seeds": list(seeds),
        "accuracy": scores,
        "gradient": gradients,
    }, None
