"""Does it help to tell a head where to look, and does it then show what the model uses?

Texts of brackets: three kinds, each in two inks, at most four open at a time. A place is asked
where a bracket has just been closed and another one is still open. There the small decoder says

- "kind": of which kind the innermost open bracket is, which has to be found first; or
- "depth": how many brackets are open, which has to be counted.

The ink means nothing. In both tasks one head of the last layer may be told to look at the innermost
open bracket, by a loss on its pattern; or, for "kind", at some other bracket that was opened
before, drawn at random. A student with few texts is told, for all heads, where a teacher looks.

"kind" has few texts or many, "depth" few. The log holds accuracies on new texts, how often the told
head looks at the right bracket, and how much accuracy is lost when that head is switched off. The
weights are those of the models for "kind" that were told nothing and had the most texts, one for
each seed.

    from tfbook.experiments import brackets
    model = brackets.trained(0)
    tokens, links, kinds, depths = brackets.texts(100, seed=5)

Source: [yao2021self], [liu2016neural]
Explained in: chapters/05_architecture_deeper, section "The residual stream".
"""

import random
from itertools import product

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from tfbook import experiments
from tfbook.interpret import (
    ablated,
    attention_loss,
    capture,
    distillation_loss,
    link_accuracy,
    link_pattern,
    patterns,
)
from tfbook.models import (
    FFN,
    Attention,
    DecoderOnly,
    Layer,
    Learned,
    Tokens,
    TransformerConfig,
    build,
)

__all__ = ["KINDS", "SMOKE", "asked", "model_of", "run", "texts", "trained", "write"]

KINDS, INKS, DEEPEST = 3, 2, 4
VOCAB = 2 * KINDS * INKS  # closing ones first; kind + KINDS · ink
LENGTH = 24
TOLD = (1, 0)  # layer and head
RATE = 3e-3
NEW = 999  # seed of the texts for testing
SMOKE = {"steps": 2, "sizes": (20, 30), "seeds": (0,), "tested": 10, "batch": 4}
CARD = {
    "model": "decoder, 2 layers of width 32, 4 heads each, 18,304 parameters",
    "data": "{sizes_first:,} to {sizes_last:,} texts of {LENGTH} brackets",
    "rate": "rate {RATE:g}",
}


def texts(
    count: int, *, seed: int, length: int = LENGTH
) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"], Int[Tensor, "B N"], Int[Tensor, "B N"]]:
    """Draw texts of brackets, and say for each place what is open after it.

    A bracket is opened or closed with equal chances; only opened if none is open, and only closed
    if four are.

    Returns:
        tokens; the place of the innermost open bracket, −1 for none; its kind, −1 for none; and how
        many are open; each (count, length).
    """
    draw = random.Random(seed)
    found = [_text(draw, length) for _ in range(count)]
    return tuple(torch.tensor([text[i] for text in found]) for i in range(4))


def _text(draw: random.Random, length: int) -> tuple[list[int], ...]:
    tokens, links, kinds, depths = [], [], [], []
    open_ones: list[tuple[int, int]] = []  # place, kind
    for i in range(length):
        ink = draw.randrange(INKS)
        if not open_ones or (len(open_ones) < DEEPEST and draw.random() < 0.5):
            kind = draw.randrange(KINDS)
            open_ones.append((i, kind))
            tokens.append(kind + KINDS * ink + KINDS * INKS)
        else:
            _, kind = open_ones.pop()
            tokens.append(kind + KINDS * ink)
        link, inner = open_ones[-1] if open_ones else (-1, -1)
        links.append(link)
        kinds.append(inner)
        depths.append(len(open_ones))
    return tokens, links, kinds, depths


def asked(tokens: Int[Tensor, "B N"], links: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """Return the links at the places that are asked, −1 at the others: behind a closing bracket."""
    return torch.where(tokens < KINDS * INKS, links, -1)


def write(tokens: Int[Tensor, " N"]) -> str:
    """Write brackets of one text; the second ink in bold would be the same sign here."""
    signs = ")]}" * INKS + "([{" * INKS
    return "".join(signs[token] for token in tokens.tolist())


def model_of(width: int = 32) -> DecoderOnly:
    """Return an untrained decoder of two layers."""
    layer = Layer(Attention(4), FFN(2 * width))
    config = TransformerConfig(
        VOCAB, width, decoder=[layer] * 2, embedding=Tokens(Learned()), max_len=LENGTH
    )
    return build(config)


def trained(seed: int = 0) -> DecoderOnly:
    """Return the shipped model of a seed, which says the kind of the innermost open bracket."""
    model, head = model_of(), f"{seed}."
    shipped = experiments.weights("brackets")
    model.load_state_dict({k[len(head) :]: w for k, w in shipped.items() if k.startswith(head)})
    return model.eval().requires_grad_(False)


def wrong_links(links: Int[Tensor, "B N"], tokens: Int[Tensor, "B N"], seed: int) -> Tensor:
    """Return for each link another bracket that was opened before, drawn at random, or −1."""
    places = torch.arange(tokens.shape[1])
    opened = (tokens >= KINDS * INKS)[:, None, :] & (places < places[:, None])  # (B, N, N)
    other = (opened & (places != links[..., None])).float()
    draws = torch.rand(other.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where((links >= 0) & other.any(-1), (other * draws).argmax(-1), -1)


def train(
    task: str,
    data: tuple[Tensor, ...],
    *,
    steps: int,
    batch: int,
    seed: int,
    told: Tensor | None = None,
    teacher: DecoderOnly | None = None,
) -> DecoderOnly:
    """Train a model on a task, with links for one head or a teacher for all, or with neither."""
    tokens, links, kinds, depths = data
    places = asked(tokens, links) >= 0
    labels = {"kind": kinds, "depth": depths}[task]
    torch.manual_seed(seed)
    model, drawn = model_of(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    name = f"stack.blocks.{TOLD[0]}.mixer.pattern"
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 50, 1.5 * (1 - step / steps))
        some = torch.randint(len(tokens), (batch,), generator=drawn)
        watched = "*.pattern" if teacher else name
        if told is None and teacher is None:
            extra, logits = 0.0, model(tokens[some])[0]
        else:
            with capture(model, watched, grad=True) as seen:
                logits = model(tokens[some])[0]
            if teacher:
                student = torch.stack(list(seen.values()))
                extra = distillation_loss(student, patterns(teacher, tokens[some]))
            else:
                extra = _told_loss(seen[name][:, TOLD[1]], told[some])
        chosen = places[some]
        loss = functional.cross_entropy(logits[chosen], labels[some][chosen]) + extra
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def _told_loss(pattern: Tensor, links: Tensor) -> Tensor | float:
    target = link_pattern(links, links.shape[1])
    return attention_loss(pattern, target) if bool(target.any()) else 0.0


@torch.no_grad()
def measure(model: DecoderOnly, task: str, data: tuple[Tensor, ...]) -> dict[str, float]:
    """Return accuracy at the places that are asked, that of the told head's links, and its use."""
    tokens, links, kinds, depths = data
    wanted = asked(tokens, links)
    labels = {"kind": kinds, "depth": depths}[task]

    def accuracy() -> float:
        said = model(tokens)[0].argmax(-1)
        return (said == labels)[wanted >= 0].double().mean().item()

    whole = accuracy()
    hits = link_accuracy(patterns(model, tokens), wanted)  # (L, H)
    with ablated(model, [TOLD], how="mean", reference=tokens):
        without = accuracy()
    found = {"accuracy": whole, "looks": hits[TOLD].item(), "lost": whole - without}
    found["best_head"] = hits.max().item()
    return {key: round(value, 4) for key, value in found.items()}


def run(
    *,
    steps: int = 500,
    batch: int = 32,
    sizes: tuple[int, ...] = (100, 1600),
    seeds: tuple[int, ...] = (0, 1, 2),
    tested: int = 1000,
) -> tuple[dict, dict[str, Tensor]]:
    """Train each way with each number of texts and each seed.

    Args:
        steps: of training.
        batch: texts a step.
        sizes: numbers of texts to train on.
        seeds: of texts, weights and batches.
        tested: new texts.

    Returns:
        the log: for each task and way, at each size, a list over the seeds; and the weights.
    """
    settings = {"steps": steps, "batch": batch, "sizes": list(sizes), "tested": tested}
    new = texts(tested, seed=NEW)
    runs: dict[str, dict] = {}
    kept, teachers = {}, {}

    def note(task: str, way: str, size: int, model: DecoderOnly) -> None:
        column = runs.setdefault(task, {}).setdefault(way, {}).setdefault(str(size), {})
        for key, value in measure(model, task, new).items():
            column.setdefault(key, []).append(value)

    for seed in seeds:
        pool = texts(max(sizes), seed=seed)
        for task, size in product(("kind", "depth"), sorted(sizes, reverse=True)):
            data = tuple(each[:size] for each in pool)
            right = asked(*data[:2])
            if task == "depth" and size == max(sizes):
                continue
            ways: dict[str, dict] = {"plain": {}, "told": {"told": right}}
            if task == "kind" and size < max(sizes):
                ways["told wrong"] = {"told": wrong_links(right, data[0], seed)}
                ways["from a teacher"] = {"teacher": teachers[seed]}
            for way, given in ways.items():
                model = train(task, data, steps=steps, batch=batch, seed=seed, **given)
                note(task, way, size, model)
                if (task, way, size) == ("kind", "plain", max(sizes)):
                    teachers[seed] = model
                    kept |= {f"{seed}.{name}": w for name, w in model.state_dict().items()}
    return {"settings": settings, "seeds": list(seeds), "runs": runs}, kept
