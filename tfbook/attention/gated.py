"""Ways to attend to nothing: a sink in the softmax, a softmax plus one, a gate behind the mixing.

A softmax hands out all of its weight, so a head that has found nothing puts it somewhere, often on
the first token. A sink is a place of its own for that weight: one more term in the denominator,
with a value of zero. A gate gives the same freedom behind the mixing.

Explained in: chapters/08_architectural_variants_deeper, section
"A head that may look at nothing".
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import (
    broadcast_batch,
    check_bool,
    check_choice,
    check_float,
    check_number,
    check_rows,
    check_same,
    scores_shape,
)
from tfbook.attention.exact import attend
from tfbook.attention.heads import merge_heads
from tfbook.attention.multihead import MultiHeadAttention
from tfbook.attention.registry import register
from tfbook.attention.scores import at_least_float32, log_sum_exp
from tfbook.attention.states import KVState

__all__ = ["GatedAttention", "SinkAttention", "attend_plus_one", "attend_sink"]

Output = Float[Tensor, "*B N E"] | tuple[Tensor, ...]


def attend_sink(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    sink: Float[Tensor, "*#B S"],
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Output:
    """Attend with sinks: logits that take part in each softmax and have no value.

    With scores s_ij = scale · q_i · k_j + bias, weights_ij = exp(s_ij) / (Σ_l exp(s_il) +
    Σ_t exp(sink_t)) and out = weights v. It is attention with one more key of value zero for each
    sink, and a score that does not depend on the query. A row of weights sums to less than 1.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        sink: logits (..., S), usually one for each head, (H, 1); −∞ is no sink.
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: also return the weights of the keys (..., n, m).
        return_lse: also return the log of the denominator, (..., n).

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device or scale.

    Cost: that of :func:`tfbook.attention.attend`.

    Example:
        >>> q, k, v = torch.zeros(1, 2), torch.zeros(3, 2), torch.ones(3, 1)
        >>> attend_sink(q, k, v, sink=torch.zeros(1))  # three keys and a sink, all alike
        tensor([[0.7500]])

    Source: [openai2025gptoss], the sinks of trained models: [xiao2024efficient]
    Explained in: chapters/08_architectural_variants_deeper, section
    "A head that may look at nothing".
    """
    check_bool("return_weights", return_weights)
    check_bool("return_lse", return_lse)
    given = {"mask": mask, "bias": bias, "causal": causal, "scale": scale}
    output, *weights, lse = attend(
        q, k, v, return_weights=return_weights, return_lse=True, **given
    )  # (..., n, d_v), (..., n, m), (..., n)
    check_float("sink", sink, min_dims=1)
    check_same(q=q, sink=sink)
    batch = scores_shape(q, k, v)[:-2]
    if broadcast_batch(sink=sink.shape[:-1], rows=batch) != batch:
        raise ValueError(
            f"sink must have shape (..., S) with leading dimensions of {batch}, "
            f"got {tuple(sink.shape)}"
        )
    drain = log_sum_exp(at_least_float32(sink)).unsqueeze(-1)  # (..., 1)
    some = lse.masked_fill(lse == -torch.inf, 0.0)  # where no key is allowed, all is 0 already
    share = torch.sigmoid(some - drain).unsqueeze(-1)  # (..., n, 1), what the keys get of the whole
    output = (at_least_float32(output) * share).to(v.dtype)
    extras = [(at_least_float32(each) * share).to(v.dtype) for each in weights]
    if return_lse:
        extras.append(torch.logaddexp(lse, drain))
    return (output, *extras) if extras else output


def attend_plus_one(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Output:
    """Attend with the softmax plus one: a sink whose logit is 0, with nothing to learn.

    weights_ij = exp(s_ij) / (1 + Σ_l exp(s_il)). Where all scores are far below 0 the output is
    nearly zero; where they are far above, it is that of :func:`tfbook.attention.attend`.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: also return the weights of the keys (..., n, m).
        return_lse: also return the log of the denominator, (..., n).

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device or scale.

    Example:
        >>> q, k, v = torch.zeros(1, 2), torch.zeros(3, 2), torch.ones(3, 1)
        >>> attend_plus_one(q, k, v)
        tensor([[0.7500]])

    Source: [miller2023attention]
    Explained in: chapters/08_architectural_variants_deeper, section
    "A head that may look at nothing".
    """
    check_float("q", q, min_dims=2)
    given = {"mask": mask, "bias": bias, "causal": causal, "scale": scale}
    asked = {"return_weights": return_weights, "return_lse": return_lse}
    return attend_sink(q, k, v, sink=q.new_zeros(1), **given, **asked)


class SinkAttention(nn.Module):
    """:func:`attend_sink` with logits of its own, one or more for each head, which are learned.

    It is what ``MultiHeadAttention(..., attend=SinkAttention(n_heads))`` takes.

    Args:
        n_heads: H, heads of the queries.
        n_sinks: how many for each head.

    Attributes:
        sink: the logits, (H, n_sinks), 0 at first.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if one is below 1.

    Example:
        >>> mha = MultiHeadAttention(8, 2, causal=True, attend=SinkAttention(2))
        >>> mha(torch.randn(1, 5, 8))[0].shape
        torch.Size([1, 5, 8])

    Source: [openai2025gptoss]
    Explained in: chapters/08_architectural_variants_deeper, section
    "A head that may look at nothing".
    """

    def __init__(self, n_heads: int, n_sinks: int = 1):
        """Make the logits."""
        super().__init__()
        check_number("n_heads", n_heads, 1, whole=True)
        check_number("n_sinks", n_sinks, 1, whole=True)
        self.n_heads, self.n_sinks = n_heads, n_sinks
        self.sink = nn.Parameter(torch.zeros(n_heads, n_sinks))

    def forward(
        self,
        q: Float[Tensor, "*B N D"],
        k: Float[Tensor, "*C M D"],
        v: Float[Tensor, "*C M E"],
        **options: object,
    ) -> Output:
        """Attend for the heads in q (..., H, n, d), or in groups (..., H / G, G, n, d).

        Arguments and errors are those of :func:`attend_sink`, without ``sink``.
        """
        check_float("q", q, min_dims=3)
        sink = self.sink
        if q.shape[-3] != self.n_heads:
            if q.ndim < 4 or q.shape[-4] * q.shape[-3] != self.n_heads:
                raise ValueError(
                    f"q must have {self.n_heads} heads at dimension -3, got {tuple(q.shape)}"
                )
            sink = sink.unflatten(0, q.shape[-4:-2])  # (H / G, G, S)
        return attend_sink(q, k, v, sink=sink.to(q.dtype), **options)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"n_heads={self.n_heads}, n_sinks={self.n_sinks}"


class GatedAttention(nn.Module):
    """Multi-head attention whose finds pass a gate before they are projected.

    y = (σ(x W_gate) ⊙ [head_1, …, head_H]) W_out. The gate sees the row that asks and not what was
    found, so a head can answer nothing; and between W_v and W_out, two linear maps that were one
    of low rank, now stands something that is not linear.

    Args:
        d_model: features of x and y.
        n_heads: H.
        per: "element" for a gate on each number that a head finds, "head" for one on each head.
        gate_bias: whether the gate has a bias.
        choices: those of :class:`tfbook.attention.MultiHeadAttention`.

    Attributes:
        attention: the multi-head attention, whose own last projection is left out.
        gate_proj: makes the gates from x.
        out_proj: what follows them.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit, an unknown ``per``, or a memory to look into.

    Cost: that of the attention, and 2 · n · d_model · H · d_value FLOPs for gates of elements,
        2 · n · d_model · H for gates of heads.

    Example:
        >>> gated = GatedAttention(8, 2, causal=True, per="head")
        >>> y, state = gated(torch.randn(1, 5, 8))
        >>> y.shape, state.length
        (torch.Size([1, 5, 8]), 5)

    Source: [qiu2025gated]
    Explained in: chapters/08_architectural_variants_deeper, section
    "A head that may look at nothing".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        per: Literal["element", "head"] = "element",
        gate_bias: bool = True,
        **choices: object,
    ):
        """Make the attention, the gates and the projection."""
        super().__init__()
        check_choice("per", per, ("element", "head"))
        check_bool("gate_bias", gate_bias)
        if choices.get("d_memory") is not None:
            raise ValueError(f"d_memory must be left out, got {choices['d_memory']}")
        self.attention = MultiHeadAttention(d_model, n_heads, **choices)
        self.out_proj, self.attention.out_proj = self.attention.out_proj, nn.Identity()
        self.d_model, self.n_heads, self.per = d_model, n_heads, per
        gates = n_heads * (self.attention.d_value if per == "element" else 1)
        self.gate_proj = nn.Linear(d_model, gates, bias=gate_bias)
        nn.init.xavier_uniform_(self.gate_proj.weight)
        if gate_bias:
            nn.init.zeros_(self.gate_proj.bias)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: KVState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], KVState]:
        """Mix the rows of x, continuing from a state.

        Arguments, returns and errors are those of
        :meth:`tfbook.attention.MultiHeadAttention.forward`.
        """
        check_rows("x", x, self.gate_proj.weight)
        part = self.attention
        q, state, given = part._project(x, state, mask)
        found = part.z(part._attend(q, state.k, state.v, **given))  # (B, H, N, d_value)
        found = merge_heads(found)  # (B, N, H · d_value)
        gates = torch.sigmoid(self.gate_proj(x))
        if self.per == "head":
            gates = gates.repeat_interleave(self.attention.d_value, dim=-1)
        return self.out_proj(gates * found), state.trim()

    def empty_state(self, batch: int, *, cache: object = None) -> KVState:
        """Return a state with no keys yet, as :meth:`MultiHeadAttention.empty_state` does."""
        return self.attention.empty_state(batch, cache=cache)

    def weights(
        self,
        x: Float[Tensor, "B N D"],
        state: KVState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B H N M"]:
        """Return how much each head lets each query take from each key, before the gates."""
        return self.attention.weights(x, state, mask=mask)

    def extra_repr(self) -> str:
        """Show what is gated."""
        return f"per={self.per!r}"


_LACKS = {
    "exact": "a share of the weight goes to the sink",
    "weights": "the weights of the keys sum to less than 1",
    "lse": "each part has the sink in its denominator, the whole has it once",
    "convex": "the sink's value, zero, is mixed in",
    "scale": "the sink is not scaled with the scores",
    "default_scale": "the sink is not scaled with the scores",
    "key_shift": "a shift moves all scores, but not the sink",
    "score_shift": "a shift moves all scores, but not the sink",
    "proportional": "the sink takes its share of what a bias adds",
    "extreme_logits": "where all scores are very low, the sink takes everything",
    "small_sizes": "a single key shares with the sink",
    "strides": "its check expects equal values to come out whole, and the sink takes a share",
}

register("sink", attend_sink, lacks=_LACKS, parameters={"sink": ("d_hidden",)})
register("plus_one", attend_plus_one, lacks=_LACKS)
