"""Where do the heads of two real models look, in twenty sentences?

MiniLM-L6 (6 layers of 12 heads, no mask) and SmolLM2-135M (30 layers of 9 heads, causal) read each
sentence once. The log holds the tokens, the file beside it the attention weights of all heads in
8 bits each. Nothing is trained. It is shipped because the last digits of a forward pass differ
between processors, and the figure that shows the weights shall not.

Explained in: chapters/03_multi_head, section "What the heads of a small model do".
"""

import torch
from torch import Tensor

from tfbook import pretrained
from tfbook.teaching.explorables import pack_bytes

__all__ = ["MODELS", "SENTENCES", "SMOKE", "run"]

SMOKE = {"sentences": ("one two one two",)}
CARD = {
    "model": "MiniLM-L6 and SmolLM2-135M as they are, 22,713,216 and 134,515,008 parameters",
    "data": "twenty sentences",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
MODELS = ("smollm2-135m", "minilm-l6")
SENTENCES = (
    "The cat sat on the mat because the cat was tired.",
    "one two three four five one two three four",
    "When Mary and John left, John gave the keys to Mary.",
    "The keys to the old wooden cabinet are on the table.",
    "The dog that chased the cats was very tired.",
    "She told him that he should call her tomorrow.",
    "Paris is the capital of France and Rome of Italy.",
    "I did not like the film, but my sister did.",
    "The bank of the river was covered with flowers.",
    "The bank raised its interest rates again last week.",
    "If it rains tomorrow, then we will stay at home.",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday",
    "2 + 3 = 5, 4 + 3 = 7",
    "def add(a, b): return a + b",
    "The doctor asked the nurse a question and she answered.",
    "The trophy does not fit in the case because it is too big.",
    "“Where are you going?” asked the old man.",
    "Colorless green ideas sleep furiously.",
    "a b c d a b c d a b c",
    "Anna met Ben in the park and Ben greeted Anna.",
)


def run(sentences: tuple[str, ...] = SENTENCES) -> tuple[dict, dict[str, Tensor]]:
    """Return the log, for each model the texts, and their weights by model and number."""
    log, kept = {}, {}
    for name in MODELS:
        language = pretrained.load(name)
        log[name] = []
        for i, text in enumerate(sentences):
            with torch.no_grad():
                weights = torch.cat(language.model.attention_weights(language.encode(text)))
            shape, causal, codes = pack_bytes(weights.double())
            log[name].append(
                {
                    "title": text,
                    "tokens": language.tokens(text),
                    "shape": shape,
                    "causal": causal,
                }
            )
            kept[f"{name}.{i}"] = codes
    return log, kept
