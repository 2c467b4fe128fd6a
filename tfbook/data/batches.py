"""Which examples go together: shuffled, of about one length, as many as fit, or packed in a row.

A plan of batches is a list of lists of indices. It says nothing about what the examples are, so
that its padding can be counted before anything is computed: :func:`padding_waste`.

Explained in: chapters/11_training_deeper, section "Batches without waste".
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tfbook._checks import check_bool, check_generator, check_list, check_number

__all__ = [
    "Packed",
    "bucketed",
    "competence",
    "easiest",
    "pack",
    "padding_waste",
    "shuffled",
    "token_budget",
    "warm_length",
]

Lengths = Sequence[int] | Int[Tensor, " T"]


def shuffled(
    n_examples: int,
    batch_size: int,
    *,
    generator: torch.Generator | None = None,
    drop_last: bool = False,
) -> list[list[int]]:
    """Plan batches of a fixed number of examples in random order.

    Args:
        n_examples: how many there are.
        batch_size: how many go together; the last batch may have fewer.
        generator: of the order.
        drop_last: whether to leave a last batch out that is not full.

    Returns:
        Lists of indices, in which each index occurs once (or, dropped, not at all).

    Raises:
        TypeError: if a count is no integer or drop_last not True or False.
        ValueError: if n_examples is negative or batch_size below 1.

    Example:
        >>> shuffled(5, 2, generator=torch.Generator().manual_seed(0))
        [[4, 0], [1, 3], [2]]

    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """
    check_number("n_examples", n_examples, 0, whole=True)
    check_number("batch_size", batch_size, 1, whole=True)
    check_bool("drop_last", drop_last)
    check_generator(generator)
    order = torch.randperm(n_examples, generator=generator).tolist()
    plan = _cut(order, batch_size)
    return plan[:-1] if drop_last and plan and len(plan[-1]) < batch_size else plan


def bucketed(
    lengths: Lengths,
    batch_size: int,
    *,
    pool: int = 50,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Plan batches of examples of about one length, so that little is padded.

    The examples are shuffled; of each `pool` batches' worth the examples are sorted by length and
    cut into batches; all batches are shuffled. With pool=1 that is :func:`shuffled`; the larger the
    pool, the less padding and the less chance in who meets whom.

    Args:
        lengths: of each example, in tokens.
        batch_size: how many examples go together.
        pool: how many batches are sorted together.
        generator: of the order.

    Returns:
        Lists of indices, in which each index occurs once.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a length is negative, or batch_size or pool below 1.

    Example:
        >>> plan = bucketed([9, 1, 8, 2], 2, generator=torch.Generator().manual_seed(0))
        >>> sorted(map(sorted, plan))
        [[0, 2], [1, 3]]

    Source: [khomenko2016accelerating]
    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """
    lengths = _lengths(lengths)
    check_number("batch_size", batch_size, 1, whole=True)
    check_number("pool", pool, 1, whole=True)
    check_generator(generator)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    plan = []
    for pooled in _cut(order, pool * batch_size):
        plan += _cut(sorted(pooled, key=lengths.__getitem__), batch_size)
    return [plan[i] for i in torch.randperm(len(plan), generator=generator).tolist()]


def token_budget(
    lengths: Lengths,
    max_tokens: int,
    *,
    pool: int = 5000,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Plan batches of about one size in tokens: many short examples or few long ones.

    A batch of B examples, the longest of N tokens, costs B · N, padding included; examples, sorted
    by length in pools as in :func:`bucketed`, join a batch as long as B · N ≤ max_tokens.

    Args:
        lengths: of each example, in tokens.
        max_tokens: the budget of a batch; a longer example is refused, since it fits in none.
        pool: how many examples are sorted together.
        generator: of the order.

    Returns:
        Lists of indices, in which each index occurs once.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a length is negative or above max_tokens, or max_tokens or pool below 1.

    Example:
        >>> plan = token_budget([6, 2, 2, 2], 6, generator=torch.Generator().manual_seed(0))
        >>> sorted(map(sorted, plan))
        [[0], [1, 2, 3]]

    Source: [vaswani2017attention], section 5.1
    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """
    lengths = _lengths(lengths)
    check_number("max_tokens", max_tokens, 1, whole=True)
    check_number("pool", pool, 1, whole=True)
    if lengths and max(lengths) > max_tokens:
        raise ValueError(f"lengths must be at most max_tokens = {max_tokens}, got {max(lengths)}")
    check_generator(generator)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    plan = []
    for pooled in _cut(order, pool):
        batch: list[int] = []
        for i in sorted(pooled, key=lengths.__getitem__):
            if (len(batch) + 1) * lengths[i] > max_tokens:  # i is the longest so far
                plan.append(batch)
                batch = []
            batch.append(i)
        plan.append(batch)
    return [plan[i] for i in torch.randperm(len(plan), generator=generator).tolist()]


def padding_waste(lengths: Lengths, plan: Sequence[Sequence[int]]) -> float:
    """Return the share of the positions that is padding when each batch is as wide as its longest.

    waste = 1 − Σ_i length_i / Σ_batches B · max length.

    Args:
        lengths: of each example, in tokens.
        plan: batches of indices.

    Returns:
        From 0 to below 1; 0 where there is no position at all.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a length is negative, or an index stands for no example.

    Example:
        >>> lengths = [9, 1, 9, 1]
        >>> padding_waste(lengths, [[0, 1], [2, 3]]), padding_waste(lengths, [[0, 2], [1, 3]])
        (0.4444444444444444, 0.0)

    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """
    lengths = _lengths(lengths)
    check_list("plan", plan)
    tokens = positions = 0
    for batch in plan:
        check_list("a batch of plan", batch)
        for i in batch:
            check_number("an index in plan", i, 0, whole=True)
            if i >= len(lengths):
                raise ValueError(f"plan must hold indices below {len(lengths)}, got {i}")
        sizes = [lengths[i] for i in batch]
        tokens += sum(sizes)
        positions += len(sizes) * max(sizes, default=0)
    return 1 - tokens / positions if positions else 0.0


class Packed(NamedTuple):
    """Several documents to a row.

    Attributes:
        tokens: (B, N), filled up with padding.
        documents: (B, N), which document of its row a position belongs to, from 0, and −1 for
            padding: for :func:`tfbook.attention.document_mask`.
        positions: (B, N), places within the document, from 0; 0 for padding.
    """

    tokens: Int[Tensor, "B N"]
    documents: Int[Tensor, "B N"]
    positions: Int[Tensor, "B N"]


def pack(sequences: Sequence[Sequence[int]], length: int, *, pad_id: int = 0) -> Packed:
    """Lay sequences one behind the other in rows of a fixed length, none of them cut.

    The longest first, each in the row with the least room that is enough (best fit, decreasing).
    With a mask that keeps documents apart and positions that begin anew, a model computes for each
    sequence what it computes for it alone. O(sequences · length).

    Args:
        sequences: lists of ids.
        length: of a row, N.
        pad_id: what fills a row up.

    Returns:
        See :class:`Packed`; within a row the longest document stands first. Empty sequences leave
        nothing behind.

    Raises:
        TypeError: if length, pad_id or an id is no integer.
        ValueError: if length is below 1, a sequence longer than it, or an id negative.

    Example:
        >>> packed = pack([[5, 6], [7, 8, 9], [4]], 4)
        >>> packed.tokens, packed.documents
        (tensor([[7, 8, 9, 4],
                [5, 6, 0, 0]]), tensor([[ 0,  0,  0,  1],
                [ 0,  0, -1, -1]]))

    Source: [krell2021efficient]
    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """
    check_number("length", length, 1, 2**24, whole=True)
    check_number("pad_id", pad_id, 0, whole=True)
    check_list("sequences", sequences)
    for i, sequence in enumerate(sequences):
        check_list(f"sequences[{i}]", sequence)
        if len(sequence) > length:
            raise ValueError(f"sequences[{i}] must have at most {length} ids, got {len(sequence)}")
        for token in sequence:
            check_number(f"an id of sequences[{i}]", token, 0, whole=True)
    rows: list[list[Sequence[int]]] = []
    with_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by the room they have left
    for sequence in sorted(filter(len, sequences), key=len, reverse=True):
        room = next((r for r in range(len(sequence), length + 1) if with_room[r]), None)
        if room is None:
            rows.append([])
            room, row = length, len(rows) - 1
        else:
            row = with_room[room].pop()
        rows[row].append(sequence)
        with_room[room - len(sequence)].append(row)
    tokens = torch.full((len(rows), length), pad_id)  # (B, N)
    documents = torch.full((len(rows), length), -1)  # (B, N)
    positions = torch.zeros((len(rows), length), dtype=torch.int64)  # (B, N)
    for row, held in enumerate(rows):
        start = 0
        for number, sequence in enumerate(held):
            here = slice(start, start + len(sequence))
            tokens[row, here] = torch.tensor(sequence)
            documents[row, here] = number
            positions[row, here] = torch.arange(len(sequence))
            start += len(sequence)
    return Packed(tokens, documents, positions)


def competence(step: int, steps: int, *, start: float = 0.1) -> float:
    """Return what share of the examples, the easiest, a curriculum draws from at a step.

    c(t) = min(1, √(t (1 − c_0²) / T + c_0²)): new examples come in at a falling rate, so that each
    that has come in keeps about the same share of the training time.

    Args:
        step: t, from 0.
        steps: T, after which all are in.
        start: c_0, above 0 and at most 1.

    Raises:
        TypeError: if a number has the wrong type.
        ValueError: if one is out of range.

    Example:
        >>> competence(0, 100), competence(25, 100), competence(100, 100)
        (0.1, 0.507444578254611, 1.0)

    Source: [platanios2019competence]
    Explained in: chapters/11_training_deeper, section "Does the order matter?".
    """
    check_number("step", step, 0, whole=True)
    check_number("steps", steps, 1, whole=True)
    check_number("start", start, high=1, above=0)
    return min(1.0, (step * (1 - start**2) / steps + start**2) ** 0.5)


def easiest(difficulty: Sequence[float], share: float) -> list[int]:
    """Return the indices of the easiest examples, at least one.

    Args:
        difficulty: of each example, such as its length.
        share: how many of them, above 0 and at most 1, rounded up.

    Returns:
        Indices from the easiest on; of two equally difficult ones the first comes first.

    Raises:
        TypeError: if share is no number.
        ValueError: if share is out of range or there are no examples.

    Example:
        >>> easiest([7, 3, 5, 3], 0.6)
        [1, 3, 2]

    Source: [platanios2019competence]
    Explained in: chapters/11_training_deeper, section "Does the order matter?".
    """
    check_number("share", share, high=1, above=0)
    check_list("difficulty", difficulty)
    for each in difficulty:
        check_number("difficulty", each, finite=False)
    if not len(difficulty):
        raise ValueError("difficulty must be given for at least one example, got none")
    count = -int(-share * len(difficulty) // 1)
    return sorted(range(len(difficulty)), key=difficulty.__getitem__)[:count]


def warm_length(step: int, steps: int, *, first: int, last: int, multiple: int = 8) -> int:
    """Return how long sequences are to be at a step when training begins with short ones.

    length(t) = first + (last − first) min(1, t/T), rounded down to a multiple, at least first.

    Args:
        step: t, from 0.
        steps: T, after which sequences have their full length.
        first: the length at the beginning.
        last: the full length.
        multiple: lengths in between are multiples of this, since odd sizes compute slowly.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if one is out of range, or first above last.

    Example:
        >>> [warm_length(step, 100, first=8, last=64) for step in (0, 30, 99, 100)]
        [8, 24, 56, 64]

    Source: [li2022stability]
    Explained in: chapters/11_training_deeper, section "Does the order matter?".
    """
    check_number("step", step, 0, whole=True)
    for name, value in (("steps", steps), ("first", first), ("multiple", multiple)):
        check_number(name, value, 1, whole=True)
    check_number("last", last, first, whole=True)
    if step >= steps:
        return last
    length = first + (last - first) * step // steps
    return max(first, length - length % multiple)


def _cut(indices: list[int], size: int) -> list[list[int]]:
    return [indices[i : i + size] for i in range(0, len(indices), size)]


def _lengths(lengths: Lengths) -> list[int]:
    check_list("lengths", lengths)
    lengths = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    for length in lengths:
        check_number("a length", length, 0, whole=True)
    return lengths
