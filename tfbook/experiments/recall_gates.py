"""What does training do to the gates of a network that has to recall a symbol?

In the experiment `recall` the GRU learns to recall over 16 tokens and the LSTM does not, although
the gates that keep the old numbers begin near a half in both. Here the same networks are trained
again at this distance, and their gates are read on the way. What a number keeps over the distance
is the product of its gates at the plain tokens after the mark: of the forget gate f in an LSTM, of
the gate z in a GRU. The log holds this share for the number that keeps most, as the mean over 200
rows, and the share of symbols that are recalled.

Explained in: chapters/01_motivation, section "How far back can it remember?".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.experiments.recall import RATE, Recaller, accuracy, batch_of

__all__ = ["KINDS", "SMOKE", "keep_gates", "kept", "run", "train"]

KINDS = ("GRU", "LSTM", "LSTM, open gates")
SMOKE = {"distance": 3, "seeds": (0, 1), "stops": (0, 1, 2)}
CARD = {
    "model": "one recurrent layer of width {width}, 7,144 to 9,256 parameters",
    "data": "rows of random symbols, one of them marked, {distance} tokens back",
    "steps": "{stops_last:,} steps",
    "batch": "batches of {size}",
    "rate": "rate {RATE:g}, falling",
}


@torch.no_grad()
def keep_gates(mixer: nn.GRU | nn.LSTM, x: Tensor) -> Tensor:
    """Return the gates that keep the old numbers, z or f, for inputs (B, N, d): (B, N, d)."""
    h = c = x.new_zeros(len(x), mixer.hidden_size)
    gates = []
    for inputs in x.unbind(1):
        of_x = inputs @ mixer.weight_ih_l0.T + mixer.bias_ih_l0
        of_h = h @ mixer.weight_hh_l0.T + mixer.bias_hh_l0
        if isinstance(mixer, nn.GRU):
            (r_x, z_x, n_x), (r_h, z_h, n_h) = of_x.chunk(3, dim=-1), of_h.chunk(3, dim=-1)
            keep = torch.sigmoid(z_x + z_h)
            h = keep * h + (1 - keep) * torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
        else:
            write, keep, new, show = (of_x + of_h).chunk(4, dim=-1)
            keep = torch.sigmoid(keep)
            c = keep * c + torch.sigmoid(write) * torch.tanh(new)
            h = torch.sigmoid(show) * torch.tanh(c)
        gates.append(keep)
    return torch.stack(gates, dim=1)


@torch.no_grad()
def kept(model: Recaller, distance: int) -> float:
    """Return what the number that keeps most has left after the distance, mean over 200 rows."""
    ids, _ = batch_of(200, distance, torch.Generator().manual_seed(5))
    gates = keep_gates(model.mixer, model.embedding(ids))
    return gates[:, -distance - 1 : -1].prod(dim=1).mean(dim=0).max().item()


def train(
    model: Recaller, distance: int, stops: tuple[int, ...], size: int, seed: int
) -> list[tuple[float, float]]:
    """Train as `recall` does; at each stop, a number of steps, give (kept, share recalled)."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=stops[-1])
    found = []
    for step in range(stops[-1] + 1):
        if step in stops:
            found.append((kept(model, distance), accuracy(model, distance, seed)))
        if step < stops[-1]:
            ids, marked = batch_of(size, distance, generator)
            loss = F.cross_entropy(model(model.embedding(ids)), marked)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return found


def run(
    *,
    distance: int = 16,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    stops: tuple[int, ...] = (0, 50, 100, 150, 200, 250, 300, 400, 500, 700, 1000),
    size: int = 32,
    width: int = 32,
) -> tuple[dict, None]:
    """Train each kind of network with every seed.

    Returns:
        the log: `kept[kind]` and `recalled[kind]` are lists over seeds of lists over the stops.
    """
    shares: dict[str, list] = {kind: [] for kind in KINDS}
    recalled: dict[str, list] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        for seed in seeds:
            torch.manual_seed(seed)
            found = train(Recaller(kind, width), distance, stops, size, seed)
            shares[kind].append([float(f"{share:.3g}") for share, _ in found])
            recalled[kind].append([round(share, 3) for _, share in found])
    return {
        "settings": {"distance": distance, "size": size, "width": width},
        "stops": list(stops),
        "seeds": list(seeds),
        "kept": shares,
        "recalled": recalled,
    }, None
