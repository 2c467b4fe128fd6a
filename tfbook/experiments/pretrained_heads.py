"""What do the heads of two real models look at?

MiniLM-L6 (6 layers of 12 heads, no mask) and SmolLM2-135M (30 layers of 9 heads, causal) read two
short texts; the log holds the attention weights of all heads. Nothing is trained. It is shipped
because the last digits of a forward pass differ between processors, and the figures that show the
weights shall not.

Explained in: chapters/03_multi_head, section "What the heads of a small model do".
"""

import torch

from tfbook import pretrained
from tfbook.teaching.explorables import pack_weights

__all__ = ["MODELS", "SMOKE", "TEXTS", "read", "run"]

SMOKE = {"texts": ("one two one two",)}
CARD = {
    "model": "MiniLM-L6 and SmolLM2-135M as they are, 22,713,216 and 134,515,008 parameters",
    "data": "two short texts",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
MODELS = {"minilm": "minilm-l6", "smollm2": "smollm2-135m"}
TEXTS = (
    "The cat sat on the mat, and then the cat slept.",
    "one two three four five one two three four",
)


def read(language: pretrained.Pretrained, text: str) -> torch.Tensor:
    """Return the weights of every head on a text, (L, H, N, N)."""
    with torch.no_grad():
        weights = language.model.attention_weights(language.encode(text))  # L of (1, H, N, N)
    return torch.cat(weights)


def run(texts: tuple[str, ...] = TEXTS) -> tuple[dict, None]:
    """Return the log: for each model the texts, as `head_viewer` takes them."""
    log = {}
    for key, name in MODELS.items():
        language = pretrained.load(name)
        log[key] = [
            {
                "title": text,
                "tokens": language.tokens(text),
                "weights": pack_weights(read(language, text).double()),
            }
            for text in texts
        ]
    return log, None
