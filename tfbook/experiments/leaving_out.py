"""Can a model do with fewer layers, if layers were left out while it was trained?

A small transformer of six layers reads Shakespeare one character at a time. It is trained plainly;
with LayerDrop, where each layer is left out of a step with a chance of one quarter; and with
stochastic depth, where sequences go around sublayers with a chance that grows with depth. Then
some layers are taken out for good, evenly spread, and the held-out loss is measured with what is
left, nothing retrained.

Source: [fan2020reducing], [huang2016stochastic]
Explained in: chapters/11_training_deeper, section "Leaving out whole layers".
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from tfbook import data
from tfbook.data import Windows, char_tokenizer, rows
from tfbook.models import FFN, Attention, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.training import keep_layers, layer_drop, stochastic_depth

__all__ = ["SMOKE", "WAYS", "run", "spread"]

SMOKE = {"seeds": (0,), "steps": 3, "held": 4}
CARD = {
    "model": "decoder, {LAYERS} layers of width 48, 169,536 parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
}
WAYS = ("plain", "LayerDrop", "stochastic depth")
LAYERS, CONTEXT = 6, 48


def spread(n_layers: int, kept: int) -> list[int]:
    """Return which layers to keep: the first and the last, and others evenly between them."""
    if kept == 1:
        return [0]
    return [round(i * (n_layers - 1) / (kept - 1)) for i in range(kept)]


def _loss(net, tokens):
    return functional.cross_entropy(net(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten())


def _train(ids, vocabulary, way, seed, steps, batch, rate, chance) -> nn.Module:
    torch.manual_seed(seed)
    attention = Attention(4, position=Rotary(), bias=False)
    layer = Layer(attention, FFN(128, "swiglu", bias=False), norm=Norm("rms"))
    net = build(TransformerConfig(vocabulary, 48, decoder=[layer] * LAYERS, init="gpt2"))
    if way == "LayerDrop":
        layer_drop(net, chance)
    elif way == "stochastic depth":
        stochastic_depth(net, chance)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    windows = Windows(ids, CONTEXT, batch_size=batch, seed=seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 30, 1) * (1 - step / steps)
        optimizer.zero_grad()
        _loss(net, windows(step)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return net.eval()


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int = 256,
    batch: int = 8,
    rate: float = 5e-3,
    chance: float = 0.25,
    held: int = 200,
) -> tuple[dict, None]:
    """Train in each way, and measure with 6, 5, … 1 layers."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    text = data.shakespeare("train")
    tokenizer = char_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    tests = rows(torch.tensor(tokenizer.encode(data.shakespeare("valid")).ids), CONTEXT)
    tests = tests[:: len(tests) // held][:held]
    kept = list(range(LAYERS, 0, -1))
    found = {way: [] for way in WAYS}
    for way in WAYS:
        for seed in seeds:
            net = _train(ids, tokenizer.get_vocab_size(), way, seed, steps, batch, rate, chance)
            whole, losses = net.stack, []
            for count in kept:
                net.stack = keep_layers(whole, spread(LAYERS, count))
                with torch.no_grad():
                    losses.append(round(_loss(net, tests).item(), 4))
            found[way].append(losses)
    return {"settings": settings, "layers": kept, "loss": found}, None
