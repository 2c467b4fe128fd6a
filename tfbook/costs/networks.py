"""What recurrent and convolutional layers cost, and how far a signal has to travel in them.

Explained in: chapters/06_complexity_deeper, section "Beside recurrence and convolution".
"""

from tfbook._checks import check_bool, check_choice, check_number
from tfbook.costs.caches import check_sizes

__all__ = [
    "convolution_flops",
    "convolution_parameters",
    "path_length",
    "recurrent_flops",
    "recurrent_parameters",
    "sequential_steps",
]

GATES = {"rnn": 1, "gru": 3, "lstm": 4}  # vectors of size d_hidden that a step computes
KINDS = ("attention", "recurrent", "convolution")


def recurrent_parameters(d_in: int, d_hidden: int, kind: str, *, bias: bool = True) -> int:
    """Count the parameters of one recurrent layer in one direction, as in PyTorch.

    gates · (d_in · d_hidden + d_hidden² + 2 · d_hidden): 1 gate for "rnn", 3 for "gru", 4 for
    "lstm". PyTorch gives each gate two vectors of biases, one beside each matrix.

    Args:
        d_in: size of an input.
        d_hidden: size of the state.
        kind: "rnn" (Elman), "gru" or "lstm".
        bias: whether there are biases.

    Raises:
        TypeError: if a size is not an integer, or ``bias`` not True or False.
        ValueError: if a size is below 1, or there is no such kind.

    Example:
        >>> [recurrent_parameters(512, 512, kind) for kind in ("rnn", "gru", "lstm")]
        [525312, 1575936, 2101248]

    Source: [hochreiter1997long]
    Explained in: chapters/06_complexity_deeper, section "Beside recurrence and convolution".
    """
    check_bool("bias", bias)
    gates = _gates(kind, d_in, d_hidden)
    return gates * (d_in * d_hidden + d_hidden**2 + 2 * d_hidden * bias)


def recurrent_flops(n: int, d_in: int, d_hidden: int, kind: str, *, batch: int = 1) -> int:
    """Count the FLOPs of one recurrent layer that reads n inputs, its matrix products.

    2 · batch · n · gates · (d_in · d_hidden + d_hidden²): with d_in = d_hidden = d of the order of
    n · d², where attention's two products are of the order of n² · d.

    Args:
        n: inputs, read one after the other.
        d_in: size of an input.
        d_hidden: size of the state.
        kind: "rnn" (Elman), "gru" or "lstm".
        batch: sequences.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is too small, or there is no such kind.

    Example:
        >>> recurrent_flops(100, 512, 512, "lstm") // recurrent_flops(100, 512, 512, "rnn")
        4

    Source: [vaswani2017attention], Table 1
    Explained in: chapters/06_complexity_deeper, section "Beside recurrence and convolution".
    """
    _check_counts(n, batch)
    return 2 * batch * n * _gates(kind, d_in, d_hidden) * (d_in * d_hidden + d_hidden**2)


def convolution_parameters(
    d_in: int, d_out: int, kernel: int, *, groups: int = 1, bias: bool = True
) -> int:
    """Count the parameters of a convolution along a sequence, as in PyTorch.

    kernel · d_in · d_out / groups, and d_out biases.

    Args:
        d_in: size of an input.
        d_out: size of an output.
        kernel: positions that an output sees.
        groups: parts of an input and of an output that are connected to each other only.
        bias: whether there are biases.

    Raises:
        TypeError: if a size is not an integer, or ``bias`` not True or False.
        ValueError: if a size is below 1, or the groups do not divide both.

    Example:
        >>> convolution_parameters(512, 512, 3)
        786944

    Source: [gehring2017convolutional]
    Explained in: chapters/06_complexity_deeper, section "Beside recurrence and convolution".
    """
    check_bool("bias", bias)
    return _weights(d_in, d_out, kernel, groups) + d_out * bias


def convolution_flops(
    n: int, d_in: int, d_out: int, kernel: int, *, batch: int = 1, groups: int = 1
) -> int:
    """Count the FLOPs of a convolution along a sequence with as many outputs as inputs.

    2 · batch · n · kernel · d_in · d_out / groups. The zeros beyond the ends are counted like
    inputs, and a dilation changes nothing. A separable convolution is two, one for each number by
    itself, groups = d_in = d_out, and one that mixes them, kernel = 1.

    Args:
        n: positions.
        d_in: size of an input.
        d_out: size of an output.
        kernel: positions that an output sees.
        batch: sequences.
        groups: parts of an input and of an output that are connected to each other only.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is too small, or the groups do not divide both.

    Example:
        >>> convolution_flops(100, 512, 512, 3) // convolution_flops(100, 512, 512, 1)
        3

    Source: [vaswani2017attention], Table 1
    Explained in: chapters/06_complexity_deeper, section "Beside recurrence and convolution".
    """
    _check_counts(n, batch)
    return 2 * batch * n * _weights(d_in, d_out, kernel, groups)


def sequential_steps(kind: str, n: int) -> int:
    """Count the steps of one layer over n positions that have to wait for one another.

    n for a recurrent layer, whose step t needs the state of step t − 1. 1 for attention and for a
    convolution, which compute all positions at once; inside of that step there are always the same
    few products, whatever n is.

    Args:
        kind: "attention", "recurrent" or "convolution".
        n: positions.

    Raises:
        TypeError: if n is not an integer.
        ValueError: if n is below 1, or there is no such kind.

    Example:
        >>> [sequential_steps(kind, 1000) for kind in ("attention", "recurrent", "convolution")]
        [1, 1000, 1]

    Source: [vaswani2017attention], Table 1
    Explained in: chapters/06_complexity_deeper, section "Beside recurrence and convolution".
    """
    check_choice("kind", kind, KINDS)
    check_number("n", n, 1, whole=True)
    return n if kind == "recurrent" else 1


def path_length(kind: str, n: int, *, kernel: int | None = None, dilated: bool = False) -> int:
    """Count the moves that take a signal from the first of n positions to the last, the farthest.

    One move is one pass through a layer of attention or convolution, or one step of a recurrent
    layer from a state to the next; reading an input into the state of its own position is none.

    - attention: 1, for each position sees each other.
    - recurrent: n − 1.
    - convolution: ⌈(n − 1) / (k − 1)⌉ layers, each of which reaches k − 1 positions back.
    - convolution, dilated: ⌈log_k n⌉ layers. Layer l = 0, 1, 2, … sees k positions k^l apart, so
      that L layers reach each of the distances 0 … k^L − 1 by its L digits in base k.

    Convolutions are causal here, the last of the k positions being the own one. A centred kernel
    reaches (k − 1) / 2 to each side, half as far. Attention in a causal window of k keys reaches as
    far as the contiguous convolution. With n = 1 there is nowhere to go: 0.

    Args:
        kind: "attention", "recurrent" or "convolution".
        n: positions.
        kernel: k, of a convolution.
        dilated: whether each layer of a convolution looks k times as far apart as the one below.

    Raises:
        TypeError: if a number is not an integer, or ``dilated`` not True or False.
        ValueError: if one is too small, there is no such kind, or a choice does not belong to it.

    Example:
        >>> [path_length(kind, 1000) for kind in ("attention", "recurrent")]
        [1, 999]
        >>> [path_length("convolution", 1000, kernel=3, dilated=each) for each in (False, True)]
        [500, 7]

    Source: [vaswani2017attention], Table 1 and section 4
    Explained in: chapters/06_complexity_deeper, section "Beside recurrence and convolution".
    """
    check_choice("kind", kind, KINDS)
    check_number("n", n, 1, whole=True)
    check_bool("dilated", dilated)
    if kind != "convolution":
        if kernel is not None or dilated:
            raise ValueError(f"kernel and dilated are for a convolution, got kind {kind!r}")
        return n - 1 if kind == "recurrent" else min(n - 1, 1)
    if kernel is None:
        raise ValueError("kernel must be given for a convolution, got None")
    check_number("kernel", kernel, 2, whole=True)  # one position alone reaches no other
    if not dilated:
        return -(-(n - 1) // (kernel - 1))
    layers, seen = 0, 1
    while seen < n:  # in integers, for a rounded logarithm is one too many now and then
        layers, seen = layers + 1, seen * kernel
    return layers


def _gates(kind: str, d_in: int, d_hidden: int) -> int:
    check_choice("kind", kind, GATES)
    check_sizes(d_in=d_in, d_hidden=d_hidden)
    return GATES[kind]


def _weights(d_in: int, d_out: int, kernel: int, groups: int) -> int:
    check_sizes(d_in=d_in, d_out=d_out, kernel=kernel, groups=groups)
    if d_in % groups or d_out % groups:
        raise ValueError(f"groups must divide d_in and d_out, got {groups}, {d_in} and {d_out}")
    return kernel * d_in * d_out // groups


def _check_counts(n: int, batch: int) -> None:
    check_number("n", n, 0, whole=True)
    check_number("batch", batch, 0, whole=True)
