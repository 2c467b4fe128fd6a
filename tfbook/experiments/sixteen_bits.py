"""What happens to small gradients in training with 16 bits?

The loss of a large model is a mean over millions of tokens, which are summed up in many
micro-batches: the loss of each is divided by the number of micro-batches, and so are the gradients
of its backward pass. A decoder learns the letters of Shakespeare so: each loss is divided by 4,096
(`MICRO_BATCHES`). To save time a step is made after each micro-batch, with 4,096 times its
gradient, multiplied in float32. Without rounding this is training as usual.

The ways differ in the format of products and activations: float32; bf16; fp16; and fp16 with loss
scaling, where the loss is multiplied by S before the backward pass and gradients are divided by S
in float32. S begins at 2^16. A step with an infinite gradient is left out, and S is halved; after
50 good steps it is doubled. Weights are kept in float32 in all ways.

The log holds for each way and seed the loss of each micro-batch (`losses`), not divided, and the
share of gradients that are 0 in each step (`zeros`), and for fp16 with loss scaling the S of each
step (`scales`) and the steps left out (`left_out`).

One small model: how much fp16 loses depends on the sizes of the gradients.

Source: [micikevicius2018mixed]
Explained in: chapters/17_hardware_deeper, section "Block formats".
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tfbook import data
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

__all__ = ["MICRO_BATCHES", "SMOKE", "WAYS", "model_of", "run", "train"]

MICRO_BATCHES = 4096
BATCH, N, AGAIN = 8, 64, 50
WAYS = {
    "float32": (torch.float32, False),
    "bf16": (torch.bfloat16, False),
    "fp16": (torch.float16, False),
    "fp16, loss scaling": (torch.float16, True),
}
SMOKE = {"seeds": (0,), "steps": 2}
CARD = {
    "model": "decoder of width 64, 2 layers, 112,384 parameters",
    "data": "letters of Shakespeare",
    "batch": "micro-batches of {BATCH} texts of {N} letters, losses divided by {MICRO_BATCHES:,}",
}


def model_of() -> DecoderOnly:
    """Build the decoder."""
    layer = Layer(Attention(4), FFN(256))
    sizes = {"decoder": [layer] * 2, "embedding": Tokens(Learned()), "max_len": N}
    return build(TransformerConfig(128, 64, **sizes))


def train(way: str, letters: Tensor, seed: int, steps: int, rate: float) -> dict[str, list]:
    """Train in one way and return what the log holds of it."""
    torch.manual_seed(seed)
    dtype, scaled = WAYS[way]
    model, chance = model_of(), torch.Generator().manual_seed(seed)
    adam = torch.optim.AdamW(model.parameters(), lr=rate)
    scale, good = 2.0**16 if scaled else 1.0, 0
    losses, zeros, scales, left_out = [], [], [], []
    for step in range(steps):
        places = torch.randint(len(letters) - N - 1, (BATCH, 1), generator=chance)
        texts = letters[places + torch.arange(N + 1)]
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            logits, _ = model(texts[:, :-1])
        loss = F.cross_entropy(logits.float().mT, texts[:, 1:])
        adam.zero_grad()
        (loss / MICRO_BATCHES * scale).backward()
        gradients = [part.grad for part in model.parameters()]
        losses.append(round(loss.item(), 4))
        flat = torch.cat([each.flatten() for each in gradients])
        zeros.append(round(flat.eq(0).float().mean().item(), 4))
        scales.append(scale)
        if not flat.isfinite().all():
            left_out.append(step)
            scale, good = scale / 2, 0
            continue
        for each in gradients:
            each.mul_(MICRO_BATCHES / scale)
        adam.step()
        good += 1
        if scaled and good == AGAIN:
            scale, good = 2 * scale, 0
    return {"losses": losses, "zeros": zeros, "scales": scales, "left_out": left_out}


def run(
    *, ways: tuple[str, ...] = tuple(WAYS), seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 400, rate: float = 1e-3,
) -> tuple[dict, None]:  # fmt: skip
    """Train in each way with each seed.

    Returns:
        the log: `losses[way]` and `zeros[way]` are lists over seeds of lists over steps.
    """
    letters = torch.tensor(list(data.shakespeare().encode()))[:400_000]
    found = {way: [train(way, letters, seed, steps, rate) for seed in seeds] for way in ways}
    scaled = found["fp16, loss scaling"]
    return {
        "settings": {"steps": steps, "batch": BATCH, "rate": rate, "seeds": list(seeds)},
        **{what: {way: [each[what] for each in runs] for way, runs in found.items()}
           for what in ("losses", "zeros")},
        **{what: [each[what] for each in scaled] for what in ("scales", "left_out")},
    }, None  # fmt: skip
