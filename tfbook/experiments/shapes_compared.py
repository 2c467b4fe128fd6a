"""With equal parameters, should a small language model be deep and narrow or shallow and wide?

Decoders with pre-norm learn to predict the next character of Shakespeare. All have 49,152 weights
in their attentions and feed-forward networks, from one layer of width 64 to sixteen of width 16,
with heads of 8 numbers; they read the same characters. The tables of characters and the norms come
on top, see `all_parameters`. Each shape is tried at each of `rates` with the first seed, and runs
with the other seeds at the rate that was best for it.

The log holds under the name of each shape, "layers × width", its `parameters` and `all_parameters`;
`tried`, the loss on 25,600 characters of another split in nats a character for each rate; the best
`rate`; and `losses` at it, one for each seed. All runs read less than the text once.

Source: [kaplan2020scaling], figure 5, who compare shapes in this way.
Explained in: chapters/18_practice_deeper, section "Depth against width".
"""

import torch
import torch.nn.functional as F

from tfbook.experiments.warmup import letters
from tfbook.models import FFN, Attention, DecoderOnly, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.optimization import schedule

__all__ = ["SHAPES", "SMOKE", "inner_parameters", "model_of", "run", "train"]

CONTEXT, BATCH, D_HEAD = 64, 16, 8
# Name → layers, width, width of the feed-forward network; layers · (4 d² + 2 d d_ff) = 49,152.
SHAPES = {
    "1 × 64": (1, 64, 256), "2 × 48": (2, 48, 160), "4 × 32": (4, 32, 128),
    "16 × 16": (16, 16, 64),
}  # fmt: skip
SMOKE = {"shapes": ("1 × 64", "16 × 16"), "rates": (2e-3, 4e-3), "seeds": (0, 1), "steps": 2}
CARD = {
    "model": "decoders of 1 to 16 layers, {inner:,} parameters in the layers",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rates {rates_first:g} to {rates_last:g}, rising and then falling",
}


def model_of(shape: str) -> DecoderOnly:
    """Make one of `SHAPES`, untrained."""
    layers, width, d_ff = SHAPES[shape]
    attention = Attention(width // D_HEAD, position=Rotary(), bias=False)
    layer = Layer(attention, FFN(d_ff, "gelu", bias=False), norm=Norm("rms"))
    vocabulary = int(letters("train").max()) + 1
    return build(TransformerConfig(vocabulary, width, decoder=[layer] * layers, init="gpt2"))


def inner_parameters(model: DecoderOnly) -> int:
    """Count the weights of the matrices in the layers."""
    return sum(x.numel() for x in model.stack.parameters() if x.ndim == 2)


def train(shape: str, rate: float, seed: int, steps: int) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    torch.manual_seed(seed)
    model, generator = model_of(shape), torch.Generator().manual_seed(seed)
    ids, held = letters("train"), letters("valid")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    factor = schedule("cosine", steps=steps, warmup=min(40, steps // 2))
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for _ in range(steps):
        starts = torch.randint(len(ids) - CONTEXT, (BATCH, 1), generator=generator)
        text = ids[starts + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad()
        F.cross_entropy(model(text[:, :-1])[0].mT, text[:, 1:]).backward()
        optimizer.step()
        falling.step()
    text = held[: 400 * (CONTEXT + 1)].view(400, -1)
    with torch.no_grad():
        return round(F.cross_entropy(model(text[:, :-1])[0].mT, text[:, 1:]).item(), 4)


def run(
    *, shapes: tuple[str, ...] = tuple(SHAPES), rates: tuple[float, ...] = (4e-3, 1e-2),
    seeds: tuple[int, ...] = (0, 1, 2), steps: int = 200,
) -> tuple[dict, None]:  # fmt: skip
    """Search a rate for each shape with the first seed, and train it with the others."""
    log: dict = {"settings": {"steps": steps}, "rates": list(rates), "seeds": list(seeds)}
    for shape in shapes:
        tried = [train(shape, rate, seeds[0], steps) for rate in rates]
        best = min(range(len(rates)), key=lambda i: tried[i])
        more = [train(shape, rates[best], seed, steps) for seed in seeds[1:]]
        model = model_of(shape)
        log["settings"]["inner"] = inner_parameters(model)
        found = {
            "parameters": inner_parameters(model), "tried": tried, "rate": rates[best],
            "all_parameters": sum(x.numel() for x in model.parameters()),
            "losses": [tried[best], *more],
        }  # fmt: skip
        for key, value in found.items():
            log.setdefault(key, {})[shape] = value
    return log, None
