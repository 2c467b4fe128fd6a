"""Tensor parallelism: a layer that is cut, each process computing its part for every token.

y = W₂ f(W₁ x). With the rows of W₁ and the columns of W₂ cut alike, process r computes
W₂ʳ f(W₁ʳ x), and y is the sum: one all-reduce for two products, since f treats each number by
itself. Attention is cut by heads, and its sum of heads is the same sum. PyTorch has this as
``torch.distributed.tensor.parallel``.

With ``sequence`` the rows between the cut parts, in norms and dropout, are cut too: each process
keeps N/p tokens. The all-reduce becomes a reduce-scatter at the end of one part and an all-gather
at the beginning of the next, which send the same bytes.

Explained in: chapters/17_hardware, section "Many devices".
"""

import copy

from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import check_bool
from tfbook.attention import MultiHeadAttention
from tfbook.blocks import Block, FeedForward, LanguageHead
from tfbook.models import DecoderOnly
from tfbook.parallel.collectives import ring_all_reduce
from tfbook.parallel.conjugates import copy_to, gather, scatter, scatter_sum, sum_over
from tfbook.parallel.groups import Group, check_group, check_parts
from tfbook.parallel.vocabulary import SplitEmbedding, SplitHead, own_part

__all__ = ["PartialSum", "split_attention", "split_ffn", "split_model"]


class PartialSum(nn.Module):
    """A part of a layer whose answers are added up over the processes: y = Σ_r part_r(x) + b.

    Args:
        part: the own part, without the bias of its last map.
        bias: b, (d_model,); None without.
        group: the processes.
        sequence: whether x holds this process's rows only, and y shall too.

    Raises:
        TypeError: for an argument of a wrong type.

    Cost: an all-reduce of y forward, and one of x's gradient backward; with ``sequence`` an
        all-gather and a reduce-scatter, each.

    Example:
        >>> import torch
        >>> part = PartialSum(nn.Linear(3, 3, bias=False), torch.zeros(3), Group())
        >>> part(torch.ones(1, 2, 3)).shape
        torch.Size([1, 2, 3])

    Source: [shoeybi2019megatron], sequence: [korthikanti2022reducing]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(
        self, part: nn.Module, bias: Tensor | None, group: Group, *, sequence: bool = False
    ):
        """Keep the part and the bias."""
        super().__init__()
        if not isinstance(part, nn.Module):
            raise TypeError(f"part must be a module, got {type(part).__name__}")
        if not (bias is None or isinstance(bias, Tensor)):
            raise TypeError(f"bias must be a tensor or None, got {type(bias).__name__}")
        check_group(group)
        check_bool("sequence", sequence)
        self.part, self.group, self.sequence = part, group, sequence
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.d_model = getattr(part, "d_model", None)

    def forward(
        self, x: Float[Tensor, "B N D"], *rest: object, mask: Bool[Tensor, "..."] | None = None
    ) -> Tensor | tuple[Tensor, object]:
        """Return y, beside a state if the part has one; arguments are those of the part."""
        x = gather(x, self.group, 1) if self.sequence else copy_to(x, self.group)
        found = self.part(x, *rest) if mask is None else self.part(x, *rest, mask=mask)
        y, *state = found if isinstance(found, tuple) else (found,)
        y = scatter_sum(y, self.group, 1) if self.sequence else sum_over(y, self.group)
        y = y if self.bias is None else y + self.bias
        return (y, *state) if state else y


def split_ffn(ffn: FeedForward, group: Group, *, sequence: bool = False) -> PartialSum:
    """Cut a feed-forward network: each process has d_ff/p of the inner layer.

    Args:
        ffn: alike in every process.
        group: the processes.
        sequence: as for :class:`PartialSum`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if d_ff is no multiple of the processes.

    Example:
        >>> import torch
        >>> split_ffn(FeedForward(3, 4), Group())(torch.ones(1, 2, 3)).shape
        torch.Size([1, 2, 3])

    Source: [shoeybi2019megatron]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(ffn, FeedForward):
        raise TypeError(f"ffn must be a FeedForward, got {type(ffn).__name__}")
    check_parts("d_ff", ffn.d_ff, group)
    part, down = copy.deepcopy(ffn), ffn.down_proj
    part.d_ff //= group.size
    for linear in (part.up_proj, part.gate_proj):  # rows of W₁, outputs
        if linear is not None:
            linear.weight = own_part(linear.weight, group, 0)
            linear.bias = None if linear.bias is None else own_part(linear.bias, group, 0)
            linear.out_features //= group.size
    part.down_proj.weight = own_part(down.weight, group, 1)  # columns of W₂, inputs
    part.down_proj.bias = None
    part.down_proj.in_features //= group.size
    return PartialSum(part, down.bias, group, sequence=sequence)


def split_attention(
    attention: MultiHeadAttention, group: Group, *, sequence: bool = False
) -> PartialSum:
    """Cut attention by heads: each process has H/p heads, with their keys and values.

    Args:
        attention: self-attention, alike in every process.
        group: the processes.
        sequence: as for :class:`PartialSum`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if the heads, or those of keys and values, are no multiple of the processes, or
            a norm is over all heads together.

    Example:
        >>> import torch
        >>> attention = split_attention(MultiHeadAttention(4, 2), Group())
        >>> y, state = attention(torch.ones(1, 3, 4))
        >>> y.shape
        torch.Size([1, 3, 4])

    Source: [shoeybi2019megatron]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention must be MultiHeadAttention, got {type(attention).__name__}")
    check_parts("n_heads", attention.n_heads, group)
    check_parts("n_kv_heads", attention.n_kv_heads, group)
    if attention.qk_norm_whole and group.size > 1:
        raise ValueError("attention must have no norm over all heads together, got qk_norm_whole")
    each = attention.n_heads // group.size
    part = attention.prune_heads(range(group.rank * each, (group.rank + 1) * each))
    part.out_proj.bias = None
    return PartialSum(part, attention.out_proj.bias, group, sequence=sequence)


def split_model(model: DecoderOnly, group: Group, *, sequence: bool = False) -> DecoderOnly:
    """Cut a decoder: attention by heads, feed-forward parts by their inner layer, the vocabulary.

    Norms, positions and biases of whole rows stay whole, the same in every process.

    Args:
        model: of :class:`tfbook.attention.MultiHeadAttention` and
            :class:`tfbook.blocks.FeedForward`, without dropout, alike in every process.
        group: the processes.
        sequence: whether what stands between the cut parts keeps N/p tokens; N must be a multiple
            of the processes then.

    Returns:
        A model whose logits are those of the own V/p tokens, for :func:`split_loss`. Its gradients
        are those of the whole model's parts.

    Raises:
        TypeError: for an argument of a wrong type, or a part of another kind.
        ValueError: if something cannot be cut into equal parts, or the model drops out.

    Cost: in each layer two all-reduces of (B, N, d_model) forward and two backward.

    Example:
        >>> import torch
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> config = TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))])
        >>> logits, _ = split_model(build(config), Group())(torch.tensor([[3, 1, 4]]))
        >>> logits.shape
        torch.Size([1, 3, 11])

    Source: [shoeybi2019megatron], sequence: [korthikanti2022reducing]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(model, DecoderOnly):
        raise TypeError(f"model must be a DecoderOnly, got {type(model).__name__}")
    check_group(group)
    check_bool("sequence", sequence)
    if drops(model):
        raise ValueError("model must have no dropout, which parts would draw apart; got some")
    model = copy.deepcopy(model)
    for block in model.stack.blocks:
        if not isinstance(block, Block):
            raise TypeError(f"model must be made of Blocks, got {type(block).__name__}")
        block.mixer = split_attention(block.mixer, group, sequence=sequence)
        block.ffn = split_ffn(block.ffn, group, sequence=sequence)
    (entrance,) = model._entrances
    model.embed = entrance.embed = SplitEmbedding(model.embed, group)
    if not isinstance(model.head, LanguageHead):
        raise TypeError(f"head must be a LanguageHead, got {type(model.head).__name__}")
    model.head = SplitHead(model.head, group, sequence=sequence)
    if sequence:
        model.stack.register_forward_pre_hook(
            lambda stack, given: (scatter(given[0], group, 1), *given[1:])
        )
        for weight in _of_rows(model):  # each process has seen its rows only
            weight.register_hook(lambda grad: ring_all_reduce(grad, group))
    return model


def _of_rows(model: DecoderOnly) -> list[nn.Parameter]:
    """Return the weights that meet cut rows: those of norms, and the biases of sums."""
    inside = set()
    for part in model.modules():
        if isinstance(part, PartialSum):
            inside |= set(part.part.parameters())
    return [weight for weight in model.stack.parameters() if weight not in inside]


def drops(model: nn.Module) -> bool:
    """Tell whether a model drops something out in training."""
    rates = (getattr(each, "dropout", 0.0) for each in model.modules())
    plain = any(isinstance(rate, float) and rate > 0 for rate in rates)
    return plain or any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
