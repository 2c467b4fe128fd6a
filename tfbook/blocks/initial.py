"""First weights, by the schemes that families of models begin with.

Explained in: chapters/05_architecture_deeper, section "The whole model learns".
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

from tfbook.attention import MultiHeadAttention
from tfbook.blocks.heads import LanguageHead, MaskedHead
from tfbook.positions import (
    LearnedPositions,
    ShawPositions,
    T5Bias,
    TransformerXLPositions,
)

__all__ = ["SCHEMES", "initialise"]

TABLES = (nn.Embedding, LanguageHead, MaskedHead)
POSITIONS = (LearnedPositions, T5Bias, ShawPositions, TransformerXLPositions)
# What a scheme draws; weights of other modules stay as these made them.
DRAWN = (nn.Linear, *TABLES, *POSITIONS)


def initialise(model: nn.Module, scheme: str, depth: int) -> None:
    """Draw the weights of a model anew by a scheme; biases become 0.

    * "xavier": linear maps uniform in ±√(6 / (inputs + outputs)), tables normal with std
      1/√d_model;
    * "gpt2": normal with std 0.02, and 0.02/√(2L) for the maps that write into the residual stream,
      L layers with two of them each;
    * "bert": normal with std 0.02, cut off at two of them;
    * "t5": normal; with std 1/√inputs for linear maps, but 1/√(d_model · d_head) for queries,
      which takes the place of dividing scores by √d_head; 1 for tables of tokens.

    Norms stay as they were made, and tables of positions are normal: with std 0.02, and for the T5
    bias 1/√d_model. Weights of modules that are not from this package, other than linear maps and
    tables, stay as these modules made them.

    Args:
        model: with an attribute ``config`` that knows d_model.
        scheme: "xavier", "gpt2", "bert" or "t5".
        depth: L.

    Source: [glorot2010understanding], [radford2019language], [devlin2019bert] and
    [raffel2020exploring], in this order
    Explained in: chapters/05_architecture_deeper, section "The whole model learns".
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    modules = dict(model.named_modules())
    for name, weight in model.named_parameters():
        path, _, _ = name.rpartition(".")
        owner, above = modules[path], modules[path.rpartition(".")[0]]
        if weight.ndim > 1 and isinstance(owner, DRAWN):
            SCHEMES[scheme](weight, owner, above, model.config.d_model, depth)


# Each gets a weight, the module that owns it and the one above, d_model and the number of layers.


def _xavier(weight: Tensor, owner: nn.Module, above: nn.Module, d_model: int, depth: int) -> None:
    if isinstance(owner, TABLES):
        nn.init.normal_(weight, std=d_model**-0.5)
    elif isinstance(owner, POSITIONS):
        nn.init.normal_(weight, std=0.02)
    else:
        nn.init.xavier_uniform_(weight)


def _gpt2(weight: Tensor, owner: nn.Module, above: nn.Module, d_model: int, depth: int) -> None:
    writes = owner in (getattr(above, name, None) for name in ("out_proj", "down_proj"))
    nn.init.normal_(weight, std=0.02 / math.sqrt(2 * depth) if writes else 0.02)


def _bert(weight: Tensor, owner: nn.Module, above: nn.Module, d_model: int, depth: int) -> None:
    nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)


def _t5(weight: Tensor, owner: nn.Module, above: nn.Module, d_model: int, depth: int) -> None:
    if isinstance(owner, TABLES):
        std = 1.0
    elif isinstance(owner, POSITIONS):
        std = d_model**-0.5
    elif isinstance(above, MultiHeadAttention) and owner is above.q_proj:
        std = (d_model * above.d_head) ** -0.5
    else:
        std = weight.shape[1] ** -0.5
    nn.init.normal_(weight, std=std)


Draw = Callable[[Tensor, nn.Module, nn.Module, int, int], None]
SCHEMES: dict[str, Draw] = {"xavier": _xavier, "gpt2": _gpt2, "bert": _bert, "t5": _t5}
