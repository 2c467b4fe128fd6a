"""How good is it? Perplexity, bits per byte, accuracy, F1, BLEU and chrF, each written to be read.

Explained in: chapters/11_training_deeper, section "Is it any good?".
"""

from tfbook.metrics.labels import accuracy, f1, span_f1, spans
from tfbook.metrics.likelihood import bits_per_byte, perplexity
from tfbook.metrics.text import Bleu, bleu, chrf, words_13a

__all__ = [
    "bits_per_byte",
    "perplexity",
    "accuracy",
    "f1",
    "span_f1",
    "spans",
    "Bleu",
    "bleu",
    "chrf",
    "words_13a",
]
