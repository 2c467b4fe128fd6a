"""A mixture of experts as a part of a layer: what it holds, and what of it works for one row.

``Layer(Attention(8), Experts(512, n_experts=8, top_k=2))`` is a layer of a sparse model.

Explained in: chapters/08_architectural_variants, section "A mixture of experts".
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace

from torch import nn

from tfbook._checks import check_bool, check_choice, check_number
from tfbook.blocks import FEED_FORWARDS, MixtureOfExperts, check_router, feed_forward_parameters
from tfbook.models.layers import FFN
from tfbook.models.spec import Part, Run, Site, Spec

__all__ = ["Experts", "active_parameters"]


@dataclass(frozen=True)
class Experts(Spec):
    """A mixture of experts, see :class:`tfbook.blocks.MixtureOfExperts`.

    Args:
        d_ff: size of the inner layer of one expert.
        n_experts: how many there are.
        top_k: how many of them a row passes.
        kind: an activation or a gate out of ``tfbook.blocks.FEED_FORWARDS``.
        router: one of ``tfbook.blocks.ROUTERS``.
        n_shared: experts for all rows, beside the chosen ones.
        bias: whether the linear maps of the experts have one.
        dropout: rate on the inner layers.
        capacity_factor: how much more than the mean an expert may treat in training; None for no
            limit.
        scale: factor on the weights.
        balanced: whether the router has a bias on its choice.
        router_bias: whether its linear map has one.

    Example:
        >>> Experts(14336, n_experts=8, top_k=2, kind="swiglu", bias=False).active_parameters(4096)
        352354304

    Source: [jiang2024mixtral], shared: [dai2024deepseekmoe]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """

    d_ff: int
    n_experts: int
    top_k: int
    kind: str = "relu"
    _: KW_ONLY
    router: str = "top_k"
    n_shared: int = 0
    bias: bool = True
    dropout: float = 0.0
    capacity_factor: float | None = None
    scale: float = 1.0
    balanced: bool = False
    router_bias: bool = False
    word = "experts"

    def __post_init__(self) -> None:
        """Check the choices."""
        check_number("d_ff", self.d_ff, 1, whole=True)
        check_number("n_experts", self.n_experts, 1, whole=True)
        check_router(self.router, self.n_experts, self.top_k)
        check_choice("experts kind", self.kind, FEED_FORWARDS)
        check_number("n_shared", self.n_shared, 0, whole=True)
        check_bool("experts_bias", self.bias)
        check_number("experts_dropout", self.dropout, 0, below=1)
        if self.capacity_factor is not None:
            check_number("capacity_factor", self.capacity_factor, above=0)
        check_number("experts_scale", self.scale, above=0)
        check_bool("balanced", self.balanced)
        check_bool("router_bias", self.router_bias)
        if self.balanced and self.router == "expert_choice":
            raise ValueError("balanced is not for expert_choice, whose loads are equal anyway")

    def check(self, site: Site) -> None:
        """Raise ValueError where experts would look at later rows to choose."""
        if site.causal and self.router == "expert_choice":
            raise ValueError(
                "expert_choice compares all rows of a sequence, so it is not for a decoder, which "
                "hides the future"
            )

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        names = "kind router n_shared bias dropout capacity_factor scale balanced router_bias"
        choices = {name: getattr(self, name) for name in names.split()}
        return MixtureOfExperts(site.d_model, self.d_ff, self.n_experts, self.top_k, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the router, the experts with what K of them do for each row, and the shared ones.

        That no choice is dropped is taken for granted, and that every expert is read that can be.
        Router and sorting keep for the backward pass scores, weights, and a few indices of 8 bytes.
        """
        each, d, k = run.bytes_per_number, run.d_model, self.top_k
        # In evaluation there is no noise, and nothing of it is computed.
        keeps = 0 if self.n_shared else None  # what all read is kept once
        choices = {"bias": self.router_bias, "keeps": keeps}
        row = run.linear(f"{name}.router.proj", d, self.n_experts, **choices)
        softmax_of_chosen = self.router not in ("softmax", "switch")
        sorting = self.n_experts * each + k * 3 * 8 + softmax_of_chosen * k * (each + 8)
        yield row._replace(saved=row.saved + run.batch * run.n * sorting)
        if self.router == "noisy":
            noise = run.linear(f"{name}.router.noise_proj", d, self.n_experts, bias=False)
            yield noise._replace(flops=0, moved=0, saved=0)
        passed = replace(run, n=run.n * k)  # every row K times
        choices = {"bias": self.bias, "dropout": self.dropout}
        rows = run.batch * passed.n
        others = min(self.n_experts, rows) - 1  # that are read beside the first
        for part in FFN(self.d_ff, self.kind, **choices).price(f"{name}.experts", passed):
            owned, moved = part.parameters * self.n_experts, part.parameters * others * each
            answers = rows * (d + 1) * each * part.name.endswith("down_proj")  # and their weights
            yield part._replace(
                parameters=owned, moved=part.moved + moved, saved=part.saved + answers
            )
        if self.n_shared:
            shared = FFN(self.n_shared * self.d_ff, self.kind, **choices)
            yield from shared.price(f"{name}.shared", run)

    def idle_parameters(self, d_model: int) -> int:
        """Count the parameters of the experts that one row does not pass.

        Experts that choose their rows treat K a row in the mean.
        """
        each = feed_forward_parameters(d_model, self.d_ff, kind=self.kind, bias=self.bias)
        return (self.n_experts - self.top_k) * each

    def active_parameters(self, d_model: int) -> int:
        """Count the parameters that one row passes: router, K experts, and the shared ones."""
        choices = {"kind": self.kind, "bias": self.bias}
        found = self.top_k * feed_forward_parameters(d_model, self.d_ff, **choices)
        found += d_model * self.n_experts * (2 if self.router == "noisy" else 1)
        found += self.n_experts * self.router_bias
        if self.n_shared:
            found += feed_forward_parameters(d_model, self.n_shared * self.d_ff, **choices)
        return found


def active_parameters(config: object) -> int:
    """Count the parameters of a model that one token passes: all but those of idle experts.

    Args:
        config: a :class:`tfbook.models.TransformerConfig`.

    Raises:
        TypeError: if it is no config.

    Example:
        >>> from tfbook.models import Attention, Layer, TransformerConfig
        >>> sparse = [Layer(Attention(2), Experts(16, 4, 1))]
        >>> config = TransformerConfig(11, 8, decoder=sparse)
        >>> config.count_parameters() - active_parameters(config)
        840

    Source: [jiang2024mixtral]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """
    if not callable(getattr(config, "count_parameters", None)) or not hasattr(config, "layers"):
        raise TypeError(f"config must be a TransformerConfig, got {type(config).__name__}")
    idle = 0
    for stack in (config.encoder, config.decoder):
        for i, layer in enumerate(stack):
            owner = getattr(layer, "owner", getattr(layer.ffn, "owner", i))
            if hasattr(layer.ffn, "idle_parameters") and owner == i:  # shared weights count once
                idle += layer.ffn.idle_parameters(config.d_model)
    return config.count_parameters() - idle
