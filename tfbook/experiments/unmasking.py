"""How good is a text whose characters are revealed in any order, many in one pass?

Two models of one size read Shakespeare for as many steps, the same windows. One is autoregressive:
it predicts each character from those before it. The other is a masked diffusion model: some places
of a window are hidden, it sees both sides of each, and predicts what stands there. A window of N
characters has m hidden, m drawn evenly from 1 … N, and the loss is the mean over the hidden places.
Averaged over m and the places this is a bound on −ln p(text) / N, the same as that of hiding each
place with chance t, t drawn evenly from 0 … 1, and weighting with 1/t. The first character of a
window is given to both, so that both numbers are nats for each of the same characters.

Then both write. The diffusion model begins with all places hidden, and each pass reveals an equal
share of them, either at random places or where it is surest of what it has drawn. The
autoregressive model takes a pass for each character. What is written is read by a judge, the
shipped model of the experiment `shakespeare`: nats a character. A judge alone can be deceived,
since a text that repeats itself costs it little, so two numbers stand beside it: the share of
different ones among the runs of four characters of all texts, and the share of words that the text
of the training holds. The same is measured of held-out Shakespeare. The judge was trained on the
same plays as both models. One seed, and as many steps for both, after which the autoregressive
model has stopped to improve: neither number says how good its kind can become. A few minutes with
a GPU (``--device cuda``), and hours without.

Explained in: chapters/12_generation_deeper, section "Reveal a text in any order".
"""

import math
import re

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from tfbook import data, pretrained
from tfbook.data import char_tokenizer, rows
from tfbook.experiments._characters import begun_as_identity
from tfbook.generation import Sampling, generate
from tfbook.optimization import Muon, muon_groups, schedule
from tfbook.training import causal_loss, fit

__all__ = ["SMOKE", "Unmasker", "bound", "hide", "load", "measures", "network", "run", "unmask"]

CONTEXT, WIDTH, INNER = 256, 128, 336
RATE, MUON_RATE, WARMUP, DROPOUT = 3e-3, 0.03, 100, 0.1
SHARES = 16  # parts of 0 … 1 in which the loss is averaged by the share of hidden places
START = "\n"  # what is given of a text that is to be written
SMOKE = {"steps": 3, "batch": 2, "looks": 1, "draws": 2, "passes": (2, 8), "texts": 2,
         "characters": 3000}  # fmt: skip
CARD = {
    "model": "two models of 4 layers, {WIDTH} wide, {parameters[autoregressive]:,} and "
    "{parameters[unmasking]:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "rate": "rate {RATE:g}, Muon's {MUON_RATE:g}",
}


def network(vocab_size: int, *, causal: bool) -> nn.Module:
    """Make the transformer of both models, which differ in the mask and the head alone."""
    return begun_as_identity(vocab_size, WIDTH, INNER, dropout=DROPOUT, causal=causal)


class Unmasker(nn.Module):
    """A transformer that sees both sides, and scores the characters of all places.

    Args:
        vocab_size: V, different characters.

    Attributes:
        mask: the token of a hidden place, V.
        model: the transformer, with one row more in its table than there are characters.
    """

    def __init__(self, vocab_size: int):
        """Draw the weights."""
        super().__init__()
        self.mask = vocab_size
        self.model = network(vocab_size + 1, causal=False)

    def forward(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        """Score the characters of each place, (B, N, V)."""
        return F.linear(self.model(tokens), self.model.embed.weight[: self.mask])


def hide(n_rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Int[Tensor, " B"]]:
    """Choose the hidden places of each row: m of them, all m evenly spread over the rows.

    Returns:
        hidden (B, length + 1), never the first place; and how many of each row, (B,).
    """
    level = (torch.arange(n_rows) + torch.rand(n_rows, generator=generator)) / n_rows
    m = (level * length).long().clamp(max=length - 1) + 1  # (B,), 1 … length
    m = m[torch.randperm(n_rows, generator=generator)]
    rank = torch.rand(n_rows, length, generator=generator).argsort(1).argsort(1)
    return F.pad(rank < m[:, None], (1, 0)), m


def hidden_nats(
    model: nn.Module, tokens: Int[Tensor, "B N1"], hidden: Tensor
) -> Float[Tensor, " B"]:
    """Return the mean of −ln p over the hidden places of each row, (B,)."""
    scores = model(tokens.masked_fill(hidden, model.mask))  # (B, N + 1, V)
    nats = F.cross_entropy(scores.mT, tokens, reduction="none")
    return (nats * hidden).sum(1) / hidden.sum(1)


def unmasking_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    """Return the bound on the rows of a batch, estimated by one draw of places: a sum, a count."""
    return hidden_nats(model, *batch).sum(), len(batch[0])


@torch.no_grad()
def bound(
    model: nn.Module, texts: Int[Tensor, "R N1"], draws: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Estimate the bound on each row, in nats a character.

    Returns:
        the mean loss of the hidden places (R, draws), and the share of places hidden (R, draws).
    """
    model.eval()
    generator, device = torch.Generator().manual_seed(seed), next(model.parameters()).device
    found, shares, length = [], [], texts.shape[1] - 1
    for _ in range(draws):
        hidden, m = hide(len(texts), length, generator)
        parts = zip(texts.split(64), hidden.split(64), strict=True)
        nats = [hidden_nats(model, x.to(device), h.to(device)).cpu() for x, h in parts]
        found.append(torch.cat(nats))
        shares.append(m / length)
    return torch.stack(found, 1), torch.stack(shares, 1)


@torch.no_grad()
def unmask(
    model: nn.Module,
    n_texts: int,
    passes: int,
    *,
    first: int,
    length: int = CONTEXT,
    surest: bool = False,
    seed: int = 0,
) -> Int[Tensor, "B N1"]:
    """Write texts in so many passes, each of which reveals an equal share of the places.

    Args:
        model: what fills in.
        n_texts: how many to write.
        passes: how many, at most one for each place.
        first: the character that is given.
        length: of each text, without the first.
        surest: reveal the places whose drawn character had the highest probability, and not random
            ones.
        seed: of the draws.

    Returns:
        (B, length + 1).
    """
    model.eval()
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    text = torch.full((n_texts, length + 1), model.mask, device=device)
    text[:, 0] = first
    hidden = text == model.mask
    for k in range(passes):
        p = model(text).softmax(-1)  # (B, N + 1, V)
        drawn = torch.multinomial(p.flatten(0, 1), 1, generator=generator).view_as(text)
        order = torch.rand(text.shape, generator=generator, device=device)
        if surest:
            order = p.gather(-1, drawn[..., None])[..., 0]
        now = length * (k + 1) // passes - length * k // passes  # how many of each row
        places = order.masked_fill(~hidden, -1.0).topk(now, dim=1).indices
        text = text.scatter(1, places, drawn.gather(1, places))
        hidden = hidden.scatter(1, places, False)
    return text.cpu()


def load() -> tuple[Unmasker, Tokenizer]:
    """Return the shipped diffusion model, in evaluation mode, and its tokenizer."""
    from tfbook import experiments

    tokenizer = char_tokenizer(data.shakespeare("all"))
    model = Unmasker(tokenizer.get_vocab_size())
    model.load_state_dict({k: w.float() for k, w in experiments.weights("unmasking").items()})
    return model.eval(), tokenizer


def measures(
    texts: Int[Tensor, "B N1"], judge: nn.Module, decode, known: set[str]
) -> dict[str, float]:
    """Return what the judge says of texts, how much they vary, and which share of words is known.

    Args:
        texts: tokens, the first of each given.
        judge: a model of the next character.
        decode: from tokens to a text.
        known: words.
    """
    device = next(judge.parameters()).device
    with torch.no_grad():
        found = [causal_loss(judge, part.to(device)) for part in texts.split(64)]
    nats = sum(loss.item() for loss, _ in found) / sum(count for _, count in found)
    runs = texts[:, 1:].unfold(1, 4, 1).flatten(0, 1)  # (B · (N − 3), 4)
    words = [word for row in texts.tolist() for word in _words(decode(row))]
    return {
        "nats": round(nats, 4),
        "distinct": round(len(runs.unique(dim=0)) / len(runs), 4),
        "words": round(sum(word in known for word in words) / max(len(words), 1), 4),
    }


def _words(text: str) -> list[str]:
    """Return the words of a text but the first and the last, which may be cut."""
    return re.findall(r"[a-z']+", text.lower())[1:-1]


def run(
    *,
    steps: int = 3000,
    batch: int = 64,
    looks: int = 6,
    draws: int = 16,
    passes: tuple[int, ...] = (4, 16, 64, 256),
    texts: int = 32,
    characters: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> tuple[dict, dict[str, Tensor]]:
    """Train both models, measure both on held-out text, and let both write.

    Args:
        steps: of each training.
        batch: windows of a step.
        looks: how often the losses on "valid" are measured on the way.
        draws: of hidden places for each held-out window at the end.
        passes: in how many the diffusion model writes.
        texts: how many each model writes.
        characters: use so many of each split only.
        seed: of weights, batches and draws.
        device: where to train and write.

    Returns:
        the log, and the diffusion model's weights in half precision.
    """
    tokenizer = char_tokenizer(data.shakespeare("all"))
    vocab = tokenizer.get_vocab_size()
    plays = {s: data.shakespeare(s)[:characters] for s in ("train", "valid", "test")}
    ids = {split: torch.tensor(tokenizer.encode(text).ids) for split, text in plays.items()}
    held = {split: rows(ids[split], CONTEXT) for split in ("valid", "test")}

    def windows(number):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        starts = torch.randint(len(ids["train"]) - CONTEXT, (batch,), generator=generator)
        tokens = ids["train"][starts[:, None] + torch.arange(CONTEXT + 1)]
        return tokens, hide(batch, CONTEXT, generator)[0]

    torch.manual_seed(seed)
    writer, unmasker = network(vocab, causal=True).to(device), Unmasker(vocab).to(device)
    curves: dict[str, list] = {"steps": []}
    curves["autoregressive"] = _train(
        writer,
        writer,
        lambda number: windows(number)[0],
        causal_loss,
        steps,
        looks,
        lambda model: _mean(model, held["valid"]),
    )
    curves["unmasking"] = _train(
        unmasker,
        unmasker.model,
        windows,
        unmasking_loss,
        steps,
        looks,
        lambda model: bound(model, held["valid"], min(draws, 4))[0].mean().item(),
    )
    curves["steps"] = [round(steps * (i + 1) / looks) for i in range(looks)]

    losses: dict[str, dict] = {}
    for split, texts_held in held.items():
        nats, shares = bound(unmasker, texts_held, draws, seed=1)
        each = nats.mean(1)  # (R,)
        losses[split] = {
            "autoregressive": round(_mean(writer, texts_held), 4),
            "bound": round(each.mean().item(), 4),
            "error": round(each.std().item() / math.sqrt(len(each)), 4),
            "draws_error": round(nats.mean(0).std().item() / math.sqrt(draws), 4),
        }
        if split == "valid":
            part = ((shares * SHARES).ceil().long() - 1).flatten()
            sums = torch.zeros(SHARES).index_add(0, part, nats.flatten())
            counts = torch.zeros(SHARES).index_add(0, part, torch.ones(len(part)))
            by_share = [round(x, 4) for x in (sums / counts.clamp_min(1)).tolist()]

    judge = pretrained.load("shakespeare").model.to(device)
    known = set(re.findall(r"[a-z']+", plays["train"].lower()))
    (first,) = tokenizer.encode(START).ids
    told = (judge, tokenizer.decode, known)
    written: list[dict] = []
    for surest in (False, True):
        for k in passes:
            found = unmask(unmasker, texts, k, first=first, surest=surest, seed=seed)
            written.append(
                {"surest": surest, "passes": k}
                | measures(found, *told)
                | {"text": tokenizer.decode(found[0, 1:].tolist())}
            )
    out = generate(
        writer.cpu().eval(),
        [[first]] * texts,
        max_new_tokens=CONTEXT,
        sampling=Sampling(),
        seed=seed,
    )
    told_by_writer = torch.tensor([[first, *row] for row in out.tokens])
    log = {
        "settings": {"steps": steps, "batch": batch, "draws": draws, "texts": texts, "seed": seed},
        "parameters": {
            "autoregressive": sum(w.numel() for w in writer.parameters()),
            "unmasking": sum(w.numel() for w in unmasker.parameters()),
        },
        "curves": curves,
        "losses": losses,
        "by_share": by_share,
        "unmasked": written,
        "autoregressive": measures(told_by_writer, *told)
        | {"text": tokenizer.decode(told_by_writer[0, 1:].tolist())},
        "real": measures(torch.cat([held["test"], held["valid"]])[:texts], *told),
    }
    weights = {name: w.half().cpu() for name, w in unmasker.state_dict().items()}
    return log, weights


def _train(model, inner, batches, loss, steps, looks, look):
    """Train a model in stretches, and return what was seen after each."""
    groups = muon_groups(inner, lr=MUON_RATE, adamw_lr=RATE, weight_decay=0.1)
    optimizer = Muon(groups, precision="full")
    warmup = min(WARMUP, steps // 2)
    course = schedule("wsd", steps=steps, warmup=warmup, decay=steps // 2)
    rates, seen, done = [group["lr"] for group in optimizer.param_groups], [], 0
    for i in range(looks):
        stop, start = round(steps * (i + 1) / looks), done
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        fit(
            model,
            lambda number, start=start: batches(start + number),
            loss=loss,
            optimizer=optimizer,
            steps=stop - start,
            schedule=lambda step, start=start: course(start + step),
            clip=1.0,
            progress=False,
        )
        done = stop
        seen.append(round(look(model), 4))
    return seen


def _mean(model, texts):
    """Return the mean loss of an autoregressive model, in nats a character."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        found = [causal_loss(model, part.to(device)) for part in texts.split(64)]
    return sum(loss.item() for loss, _ in found) / sum(count for _, count in found)
