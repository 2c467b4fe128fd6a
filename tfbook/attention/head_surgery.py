"""The weights of multi-head attention taken apart: per head, and in PyTorch's packing.

A projection to n_heads · d features is a stack of n_heads blocks of d rows; the output projection
has a block of d columns for each head. Which heads there are, and how many query heads share one
key-value head, can be changed by picking blocks.

Explained in: chapters/03_multi_head_deeper, section "Pruning heads".
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfbook._checks import check_list, check_number, check_tensor

__all__ = [
    "SomeHeads",
    "Weights",
    "fill",
    "keep_heads",
    "kept_groups",
    "pack_torch",
    "pick_rows",
    "unpack_torch",
]

Weights = dict[str, Tensor]  # "q_proj.weight", "q_proj.bias", …, "out_proj.bias"

NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def pick_rows(
    x: Float[Tensor, "F ..."], n_heads: int, chosen: Sequence[int]
) -> Float[Tensor, "G ..."]:
    """Take the blocks of the chosen heads out of the rows of a projection's weight or bias.

    Args:
        x: (n_heads · d, ...).
        n_heads: how many blocks there are.
        chosen: their numbers, in the order wanted; a number may come twice.

    Returns:
        (len(chosen) · d, ...).

    Raises:
        TypeError: if x is no tensor, or a number not an integer.
        ValueError: if n_heads does not divide the rows, or a head is not there.

    Example:
        >>> pick_rows(torch.tensor([0.0, 1.0, 2.0, 3.0]), 2, [1, 1])
        tensor([2., 3., 2., 3.])
    """
    check_tensor("x", x, min_dims=1)
    check_number("n_heads", n_heads, 1, whole=True)
    if x.shape[0] % n_heads:
        raise ValueError(f"n_heads must divide the rows, got {n_heads} and x {tuple(x.shape)}")
    check_list("chosen", chosen)
    for head in chosen:
        check_number("a head of chosen", head, 0, n_heads - 1, whole=True)
    return x.unflatten(0, (n_heads, x.shape[0] // n_heads))[list(chosen)].flatten(0, 1)


def kept_groups(keep: Sequence[int], n_heads: int, n_kv_heads: int) -> list[int]:
    """Return the key-value heads that the kept query heads need, in their order.

    Each serves the same number of query heads again, as many as the kept groups allow: the greatest
    common divisor of their sizes. A group larger than that has its key-value head more than once.

    Args:
        keep: numbers of query heads, ascending.
        n_heads: how many there were.
        n_kv_heads: how many key-value heads there were.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: unless keep is ascending, not empty and within 0 … n_heads − 1.

    Example:
        >>> kept_groups([0, 1, 4, 5], n_heads=6, n_kv_heads=2)  # two of each group of three
        [0, 1]
        >>> kept_groups([0, 1, 5], n_heads=6, n_kv_heads=2)
        [0, 0, 1]

    Explained in: chapters/03_multi_head_deeper, section "Pruning heads".
    """
    check_list("keep", keep)
    check_number("n_heads", n_heads, 1, whole=True)
    check_number("n_kv_heads", n_kv_heads, 1, whole=True)
    for head in keep:
        check_number("keep", head, 0, whole=True)
    ascending = all(a < b for a, b in zip(keep, keep[1:], strict=False))
    if not keep or keep[-1] >= n_heads or not ascending:
        raise ValueError(
            f"keep must name at least one head, none twice, from 0 to {n_heads - 1}, "
            f"got {list(keep)}"
        )
    used = [head * n_kv_heads // n_heads for head in keep]
    return used[:: math.gcd(*(used.count(head) for head in used))]


def keep_heads(
    weights: Mapping[str, Tensor], keep: Sequence[int], n_heads: int, n_kv_heads: int
) -> Weights:
    """Take the blocks of some heads out of all four projections.

    Args:
        weights: those of the four projections.
        keep: the query heads to keep, ascending.
        n_heads: how many there are.
        n_kv_heads: how many key-value heads there are.

    Returns:
        The weights of a module with fewer heads.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if ``keep`` is empty, not ascending or out of range.

    Source: [michel2019sixteen]
    Explained in: chapters/03_multi_head_deeper, section "Pruning heads".
    """
    groups = kept_groups(keep, n_heads, n_kv_heads)
    chosen = {"q_proj": (n_heads, keep), "k_proj": (n_kv_heads, groups)}
    chosen["v_proj"] = chosen["k_proj"]
    kept = {}
    for name, value in weights.items():
        projection = name.split(".")[0]
        if projection in chosen:
            kept[name] = pick_rows(value, *chosen[projection])
        elif name == "out_proj.weight":
            kept[name] = pick_rows(value.T, n_heads, keep).T  # its columns are the heads'
        else:  # the output's bias, and norms that the heads share
            kept[name] = value
    return kept


def unpack_torch(module: nn.MultiheadAttention) -> Weights:
    """Unpack the weights of PyTorch's module into those of four projections.

    Raises:
        TypeError: if module is not an ``nn.MultiheadAttention``.
        ValueError: if it has ``add_bias_kv`` or ``add_zero_attn``, which have no place among them.

    Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(
            f"module must be a torch.nn.MultiheadAttention, got {type(module).__name__}"
        )
    refused = {
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
    }
    for option, there in refused.items():
        if there:
            raise ValueError(f"module has {option}, which MultiHeadAttention does not know")
    if module.in_proj_weight is None:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        matrices = module.in_proj_weight.chunk(3)
    values = {"weight": (*matrices, module.out_proj.weight)}
    if module.in_proj_bias is not None:
        values["bias"] = (*module.in_proj_bias.chunk(3), module.out_proj.bias)
    return {
        f"{name}.{kind}": value
        for kind, four in values.items()
        for name, value in zip(NAMES, four, strict=True)
    }


def pack_torch(
    weights: Mapping[str, Tensor], n_heads: int, n_kv_heads: int, *, batch_first: bool = True
) -> nn.MultiheadAttention:
    """Pack the weights of four projections into a new module of PyTorch's.

    A key-value head that several query heads share is written out once for each of them, and a
    missing bias beside others becomes zeros.

    Args:
        weights: those of the four projections, with n_heads · d = d_model.
        n_heads: how many query heads.
        n_kv_heads: how many key-value heads.
        batch_first: PyTorch's option.

    Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
    """
    matrices = [weights[f"{name}.weight"] for name in NAMES]
    biases = [
        weights.get(f"{name}.bias", matrix.new_zeros(len(matrix)))
        for name, matrix in zip(NAMES, matrices, strict=True)
    ]
    shared = [head * n_kv_heads // n_heads for head in range(n_heads)]
    for four in (matrices, biases):
        four[1:3] = (pick_rows(x, n_kv_heads, shared) for x in four[1:3])
    with torch.device("meta"):
        module = nn.MultiheadAttention(
            len(matrices[3]),
            n_heads,
            bias=any(name.endswith("bias") for name in weights),
            kdim=matrices[1].shape[1],
            vdim=matrices[2].shape[1],
            batch_first=batch_first,
        )
    packed = {"out_proj.weight": matrices[3]}
    if module.in_proj_weight is None:
        packed |= {f"{name}_weight": x for name, x in zip(NAMES, matrices[:3], strict=False)}
    else:
        packed["in_proj_weight"] = torch.cat(matrices[:3])
    if module.in_proj_bias is not None:
        packed |= {"in_proj_bias": torch.cat(biases[:3]), "out_proj.bias": biases[3]}
    return fill(module, packed)


def fill(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Put copies of the tensors in the place of the parameters of these names; return the module.

    The parameters take over dtype and device, so a module made on the meta device becomes real.
    """
    copies = {name: value.detach().clone() for name, value in weights.items()}
    module.load_state_dict(copies, strict=False, assign=True)
    return module


class SomeHeads(nn.Module):
    """A position that adds to the scores, asked for some of its heads only.

    Args:
        position: a part with ``bias(q, q_positions, k_positions)``.
        n_heads: how many heads it has.
        keep: the numbers of those that are left.
    """

    def __init__(self, position: nn.Module, n_heads: int, keep: Sequence[int]):
        """Keep the position whole, for its weights may belong to the heads in any way."""
        super().__init__()
        self.position, self.n_heads, self.keep = position, n_heads, list(keep)

    @property
    def scaled(self) -> bool:
        """Return whether the scores are divided by √d."""
        return self.position.scaled

    def bias(
        self,
        q: Float[Tensor, "B H N D"],
        q_positions: Int[Tensor, " N"],
        k_positions: Int[Tensor, " M"],
    ) -> Float[Tensor, "... N M"]:
        """Return what to add to the scores of q (B, heads left, N, d)."""
        every = q.new_zeros(q.shape[0], self.n_heads, *q.shape[2:])
        every[:, self.keep] = q
        bias = self.position.bias(every, q_positions, k_positions)  # (…, H or 1, N, M)
        shared = bias.ndim < 3 or bias.shape[-3] == 1
        return bias if shared else bias[..., self.keep, :, :]
