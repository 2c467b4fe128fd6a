"""What does a real model hold likely to come next after a few beginnings?

SmolLM2-135M reads each prompt once; the log holds the distribution of the token after it, the
likeliest tokens by name and all others in groups of neighbouring ranks. Nothing is trained. It is
shipped because the last digits of a forward pass differ between processors, and the figure that
shows the distributions shall not.

Explained in: chapters/12_generation, section "Choosing the next token".
"""

import torch

from tfbook import pretrained
from tfbook.teaching.explorables import pack_next_tokens

__all__ = ["PROMPTS", "SMOKE", "run"]

SMOKE = {"prompts": ("The capital of France is",)}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "six beginnings of texts",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a",
    "To be, or not to be,",
    "My favourite book is",
    "She opened the door and",
    "Water boils at",
)


def run(prompts: tuple[str, ...] = PROMPTS, shown: int = 40) -> tuple[dict, None]:
    """Return the log; `shown` tokens of each prompt stand with their names."""
    language = pretrained.load("smollm2-135m")
    packed = []
    for prompt in prompts:
        with torch.no_grad():
            logits, _ = language.model(language.encode(prompt), last=True)  # (1, 1, V)
        packed.append(
            pack_next_tokens(
                prompt,
                logits[0, -1].double(),
                # A token may be some bytes of a character and no text by itself.
                lambda i: language.decode([i], special=True).replace("\ufffd", "⟨byte⟩"),
                shown=shown,
            )
        )
    return {"model": language.name, "prompts": packed}, None
