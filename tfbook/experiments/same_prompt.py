"""Does a model write the same words for a prompt alone and in a batch of eight?

SmolLM2-135M continues eight prompts of equal length, always with the most likely token, in float32
and in bfloat16: each prompt alone, all eight at once, and all eight again, with linear maps that
multiply each row by itself. The log holds the tokens, and where two ways part, how much more likely
the first choice was than the second. It is shipped because the last digits of a product, and so the
place where two texts part, differ between processors.

Explained in: chapters/17_hardware_deeper, section "The same prompt, other tokens".
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook import data, pretrained

__all__ = ["SMOKE", "OneRow", "run"]

SMOKE = {"prompts": 2, "length": 4, "tokens": 2}
CARD = {
    "model": "SmolLM2-135M as its package brings it, 134,515,008 parameters",
    "data": "{prompts} prompts of {length} tokens, {tokens} tokens written to each",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}


class OneRow(nn.Module):
    """A linear map that multiplies each row by itself, whatever stands beside it."""

    def __init__(self, linear: nn.Linear):
        """Share the weight."""
        super().__init__()
        self.weight, self.bias = linear.weight, None

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with each row of x."""
        rows = x.flatten(0, -2)  # (M, D)
        found = [functional.linear(row[None], self.weight) for row in rows]
        return torch.cat(found).unflatten(0, x.shape[:-1])


def by_rows(model: nn.Module) -> nn.Module:
    """Return a copy in which each linear map multiplies row by row, the output table too."""
    model = copy.deepcopy(model)
    for part in list(model.modules()):
        for name, linear in list(part.named_children()):
            if isinstance(linear, nn.Linear):
                setattr(part, name, OneRow(linear))
    head, table = model.head, model.embed.weight

    class Rows(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return torch.cat([head(row[None, None], table) for row in x[:, -1]])

    model.head = Rows()
    return model


@torch.inference_mode()
def written(model: nn.Module, ids: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the tokens (B, tokens), and the logits of each step (B, tokens, V)."""
    state, found, seen = None, [], []
    for _ in range(tokens):
        logits, state = model(ids, state, last=True)
        ids = logits[:, -1].argmax(-1, keepdim=True)  # (B, 1)
        found.append(ids)
        seen.append(logits[:, -1].float())
    return torch.cat(found, 1), torch.stack(seen, 1)


def parted(one: Tensor, other: Tensor) -> list[int]:
    """Return after how many tokens two texts part, for each row; their length where they do not."""
    same = (one == other).long().cumprod(1)
    return same.sum(1).tolist()


def run(prompts: int = 8, length: int = 12, tokens: int = 32) -> tuple[dict, None]:
    """Return the tokens, and where they part, for both formats."""
    language = pretrained.load("smollm2-135m")
    longer = (english for english, _ in data.english_french("test"))
    ids = [language.encode(text)[0] for text in longer]
    ids = torch.stack([row[:length] for row in ids if len(row) >= length][:prompts])
    log = {"prompts": prompts, "length": length, "tokens": tokens}
    log["texts"] = [language.decode(row.tolist()) for row in ids]
    for dtype in (torch.float32, torch.bfloat16):
        model = language.model.requires_grad_(False).to(dtype)
        alone = [written(model, row[None], tokens) for row in ids]
        alone = tuple(torch.cat(part) for part in zip(*alone, strict=True))
        together, rows = written(model, ids, tokens), by_rows(model)
        fixed = written(rows, ids, tokens)
        fixed_alone = written(rows, ids[:1], tokens)
        top = alone[1].topk(2).values
        after = parted(alone[0], together[0])
        log[str(dtype).removeprefix("torch.")] = {
            "parted": after,
            "parted again": parted(together[0], written(model, ids, tokens)[0]),
            "parted by rows": parted(fixed_alone[0], fixed[0][:1]),
            "logits by rows apart": (fixed_alone[1] - fixed[1][:1]).abs().max().item(),
            "logits apart": (alone[1] - together[1])[:, :2].abs().amax((1, 2)).tolist(),
            "gaps": (top[..., 0] - top[..., 1]).tolist(),
            "alone": [language.decode(row.tolist()) for row in alone[0]],
            "together": [language.decode(row.tolist()) for row in together[0]],
        }
    return log, None
