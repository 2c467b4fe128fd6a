"""How much does SmolLM2 lose when its weights, and what they are multiplied with, get few bits?

All 210 linear maps of SmolLM2-135M are rounded to one format after another, first the weights
alone, then the weights and their inputs. After each, the model reads two texts it was not fitted
to: sentences of help pages, and Shakespeare. The log holds the mean loss of each window of
tokens. Embedding, norms, attention and the output table stay as they are.

The weights come from a file in which they have 4 bits already (groups of 32, with a zero point), so
the first row is no model in full precision: what is measured is what a second rounding adds.

Explained in: chapters/17_hardware_deeper, sections "Block formats" and "Second order and rotation".
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook import data, pretrained
from tfbook.hardware import (
    FORMATS,
    decode_blocks,
    encode_blocks,
    quantise,
    restore,
    rotate,
    round_to,
)

__all__ = ["ROUNDINGS", "SMOKE", "WAYS", "Rounded", "losses", "maps_of", "run", "texts"]

SMOKE = {"windows": 1, "length": 8, "layers": 1}
CARD = {
    "model": "SmolLM2-135M as its package brings it, 134,515,008 parameters",
    "data": "two texts of {windows} windows of {length} tokens, read once for each format",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
Rounding = Callable[[Tensor], Tensor]


def scaled(form: str) -> Rounding:
    """Round to a float format, with one scale that brings the largest number to its largest."""

    def rounding(x: Tensor) -> Tensor:
        size = x.abs().max() / FORMATS[form].largest
        return round_to(x / size, FORMATS[form], saturate=True) * size

    return rounding


def whole(bits: int, shared: str | int = "channel") -> Rounding:
    """Round to whole numbers, with a scale for each row."""
    return lambda x: restore(quantise(x, bits, shared=shared))


def block(form: str) -> Rounding:
    """Round to a block format."""
    return lambda x: decode_blocks(encode_blocks(x, form))


#: How a matrix is rounded, by name; a row is one output of a map, or one token.
ROUNDINGS: dict[str, Rounding] = {
    "exact": lambda x: x,
    "e4m3": scaled("e4m3"),
    "e5m2": scaled("e5m2"),
    "int8": whole(8),
    "int4": whole(4),
    "mxfp4": block("mxfp4"),
    "nvfp4": block("nvfp4"),
}
#: Weights, inputs, and whether both are rotated before.
WAYS: dict[str, tuple[str, str, bool]] = {
    "as it is": ("exact", "exact", False),
    "e4m3": ("e4m3", "exact", False),
    "e5m2": ("e5m2", "exact", False),
    "int8": ("int8", "exact", False),
    "nvfp4": ("nvfp4", "exact", False),
    "mxfp4": ("mxfp4", "exact", False),
    "int4": ("int4", "exact", False),
    "int4 rotated": ("int4", "exact", True),
    "e4m3, inputs too": ("e4m3", "e4m3", False),
    "int8, inputs too": ("int8", "int8", False),
    "nvfp4, inputs too": ("nvfp4", "nvfp4", False),
    "mxfp4, inputs too": ("mxfp4", "mxfp4", False),
    "int4, inputs too": ("int4", "int4", False),
    "mxfp4 rotated, inputs too": ("mxfp4", "mxfp4", True),
    "int4 rotated, inputs too": ("int4", "int4", True),
}


class Rounded(nn.Module):
    """A linear map with a rounded weight, which rounds its inputs too."""

    def __init__(self, weight: Tensor, inputs: Rounding, *, turned: bool):
        """Keep the weight."""
        super().__init__()
        self.inputs, self.turned = inputs, turned
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with each row of x, rotated and rounded before."""
        rows = x.flatten(0, -2)  # (M, D)
        rows = self.inputs(rotate(rows) if self.turned else rows)
        return functional.linear(rows, self.weight).unflatten(0, x.shape[:-1])


def texts(language: pretrained.Pretrained, windows: int, length: int) -> dict[str, Tensor]:
    """Return the windows of tokens of the two texts, (windows, length + 1) each."""
    english = " ".join(english for english, _ in data.english_french("test"))
    found = {"help pages": english, "Shakespeare": data.shakespeare("test")}
    count = windows * (length + 1)
    cut = {name: language.encode(text[: 12 * count])[0, :count] for name, text in found.items()}
    return {name: ids.view(windows, length + 1) for name, ids in cut.items()}


def maps_of(model: nn.Module, layers: int) -> dict[str, nn.Linear]:
    """Return the linear maps of the first layers by name."""
    return {
        f"stack.blocks.{layer}.{name}": part
        for layer in range(layers)
        for name, part in model.stack.blocks[layer].named_modules()
        if isinstance(part, nn.Linear)
    }


@torch.inference_mode()
def losses(model: nn.Module, read: dict[str, Tensor]) -> dict[str, list[float]]:
    """Return the mean loss of each window of each text, in nats for a token."""
    found = {}
    for name, ids in read.items():
        logits = model(ids[:, :-1])[0]
        each = functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none")
        found[name] = each.mean(1).tolist()
    return found


def put(model: nn.Module, name: str, part: nn.Module) -> None:
    """Set a part of a model by its name."""
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, part)


def run(windows: int = 8, length: int = 64, layers: int = 30) -> tuple[dict, None]:
    """Return the losses of all ways and texts, by window."""
    language = pretrained.load("smollm2-135m")
    model = language.model.requires_grad_(False)
    read, known = texts(language, windows, length), maps_of(model, layers)
    log = {"windows": windows, "length": length, "losses": {}}
    for way, (of_weights, of_inputs, turned) in WAYS.items():
        for name, part in known.items():
            weight = rotate(part.weight) if turned else part.weight
            rounded = ROUNDINGS[of_weights](weight)
            put(model, name, Rounded(rounded, ROUNDINGS[of_inputs], turned=turned))
        log["losses"][way] = losses(model, read)
    return log, None
