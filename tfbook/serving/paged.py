"""A cache in pages: keys and values of many sequences in one piece of memory.

Attention reads the pages of a sequence as if they lay behind one another. Here they are gathered
into one tensor for a batch, with room for the tokens that come next, so that they are copied once
for as long as the batch stays together; the kernels of a GPU read them where they are.

Explained in: chapters/17_hardware, section "Serving many".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfbook._checks import check_number
from tfbook.attention import KVState, MultiHeadAttention, join_key_masks
from tfbook.blocks import BlockState, ModelState
from tfbook.models import DecoderOnly

__all__ = ["PagedCache", "RaggedKVState"]


class _Room:
    """Memory for keys, values and which of them are there, and how many columns are taken."""

    def __init__(self, k: Tensor, v: Tensor, mask: Tensor, filled: int):
        self.k, self.v, self.mask, self.filled = k, v, mask, filled

    def takes(self, start: int, stop: int) -> bool:
        """Return whether columns start … stop − 1 are free and the first of those that are."""
        return self.filled == start and stop <= self.k.shape[-2]


@dataclass(frozen=True, eq=False)
class RaggedKVState(KVState):
    """Keys and values of sequences of different lengths, the shorter ones padded in front.

    Attributes:
        k: keys (B, n_kv_heads, M, d_head), each at the position that it has in its sequence.
        v: values (B, n_kv_heads, M, d_value).
        mask: which of them are there, (B, 1, 1, M).
        seen: M, the longest.
        lengths: how many keys each sequence has, (B,).
        room: the memory that k, v and mask are views of.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    lengths: Int[Tensor, " B"]
    room: _Room = field(repr=False)

    @property
    def counts(self) -> Int[Tensor, " B"]:
        """Return at which position each sequence goes on."""
        return self.lengths

    def positions(self, *, device: torch.device | None = None) -> Int[Tensor, "B M"]:
        """Return the position of each key in its sequence; padding stands at 0."""
        steps = torch.arange(-self.length, 0, device=device)
        return (self.lengths[:, None] + steps).clamp(min=0)

    def extend(
        self,
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N E"],
        mask: Bool[Tensor, "B 1 1 N"] | None = None,
    ) -> "RaggedKVState":
        """Return a state with N more keys and values, written in place where there is room."""
        start, stop, room = self.length, self.length + k.shape[-2], self.room
        learns = torch.is_grad_enabled() and (k.requires_grad or v.requires_grad)
        if mask is not None or learns or not room.takes(start, stop):
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
            joined = join_key_masks(self.mask, start, mask, k[:, :, start:])
            room = _Room(k, v, joined, stop)
        else:
            room.k[:, :, start:stop], room.v[:, :, start:stop], room.filled = k, v, stop
        held = (room.k[:, :, :stop], room.v[:, :, :stop], room.mask[..., :stop])
        return RaggedKVState(*held, stop, self.lengths + stop - start, room)

    def select(self, rows: Int[Tensor, " S"]) -> "RaggedKVState":
        """Return a state of the chosen sequences, in memory of its own."""
        room = self.room
        room = _Room(room.k[rows], room.v[rows], room.mask[rows], self.length)
        held = (x[:, :, : self.length] for x in (room.k, room.v))
        mask = room.mask[..., : self.length]
        return RaggedKVState(*held, mask, self.seen, self.lengths[rows], room)


class PagedCache:
    """The memory of pages, for all layers of a model.

    Args:
        model: a decoder whose mixers are :class:`tfbook.attention.MultiHeadAttention`.
        n_pages: how many pages there are.
        page_size: tokens of a page.

    Attributes:
        k: keys of each layer, (n_pages, page_size, n_kv_heads, d_head): the numbers of a token lie
            side by side, for tokens are what is written and read.
        v: values of each layer.

    Raises:
        TypeError: for an argument of a wrong type, or a mixer of another kind.
        ValueError: for a number below 1.

    Cost: 2 · n_kv_heads · d_head numbers a token and layer, whoever holds it.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))]))
        >>> PagedCache(model, n_pages=3, page_size=4).nbytes
        768

    Source: [kwon2023efficient]
    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(self, model: DecoderOnly, n_pages: int, page_size: int):
        """Set the memory aside."""
        if not isinstance(model, DecoderOnly):
            raise TypeError(f"model must be a DecoderOnly, got {type(model).__name__}")
        for name, value in (("n_pages", n_pages), ("page_size", page_size)):
            check_number(name, value, 1, 2**24, whole=True)
        self.page_size, self.k, self.v = page_size, [], []
        for block in model.stack.blocks:
            mixer = getattr(block, "mixer", None)
            if not isinstance(mixer, MultiHeadAttention):
                raise TypeError(f"mixers must be MultiHeadAttention, got {type(mixer).__name__}")
            like, shape = mixer.k_proj.weight, (n_pages, page_size, mixer.n_kv_heads)
            self.k.append(like.new_zeros(*shape, mixer.d_head, requires_grad=False))
            self.v.append(like.new_zeros(*shape, mixer.d_value, requires_grad=False))

    @property
    def nbytes(self) -> int:
        """Return the bytes set aside."""
        return sum(x.nbytes for x in (*self.k, *self.v))

    def write(self, state: ModelState, row: int, start: int, pages: Sequence[int], stop: int):
        """Put the keys and values of positions start … stop − 1 into the pages of a sequence.

        Args:
            state: what the model returned; its last columns are these positions.
            row: of the batch.
            start: the first position.
            pages: all pages of the sequence.
            stop: one behind the last position.
        """
        slots = self._slots(torch.tensor([pages]), torch.arange(start, stop)[None])[0]  # (N,)
        for layer, block in enumerate(state.layers):
            for held, new in ((self.k, block.mixer.k), (self.v, block.mixer.v)):
                last = new[row, :, new.shape[2] - (stop - start) :]  # (H, N, d)
                held[layer].flatten(0, 1).index_copy_(0, slots, last.transpose(0, 1))

    def add(self, state: ModelState, tables: Sequence[Sequence[int]], lengths: Sequence[int]):
        """Put the last key and value of each sequence of a batch into its page.

        Args:
            state: what the model returned; its last column is the last token of each.
            tables: the pages of each sequence.
            lengths: how many tokens each has, this one included.
        """
        slots = self._slots(_table(tables), torch.tensor(lengths)[:, None] - 1)[:, 0]  # (B,)
        for layer, block in enumerate(state.layers):
            for held, new in ((self.k, block.mixer.k), (self.v, block.mixer.v)):
                held[layer].flatten(0, 1).index_copy_(0, slots, new[:, :, -1])  # (B, H, d)

    def read(
        self, tables: Sequence[Sequence[int]], lengths: Sequence[int], *, room: int = 0
    ) -> ModelState:
        """Return a state for a batch of sequences, from their pages.

        Args:
            tables: the pages of each sequence.
            lengths: how many tokens each has; below 0 where the next columns are padding: with −3
                the first token comes in the fourth.
            room: how many more columns are set aside, so that the model writes the keys and values
                of as many tokens in place.

        Returns:
            A state that the model continues from, token by token.
        """
        longest, counts = max(lengths), torch.tensor(lengths)
        # Position of each column in its sequence; negative where that has not begun.
        places = counts[:, None] + torch.arange(-longest, room)  # (B, M + room)
        device = self.k[0].device
        there = (places >= 0)[:, None, None].to(device)
        slots = self._slots(_table(tables), places[:, :longest].clamp(min=0))  # (B, M)
        counts, layers = counts.to(device), []
        for k, v in zip(self.k, self.v, strict=True):
            k, v = (_gather(x, slots, room) for x in (k, v))  # (B, H, M + room, d)
            memory = _Room(k, v, there, longest)
            held = (k[:, :, :longest], v[:, :, :longest], there[..., :longest])
            layers.append(BlockState(RaggedKVState(*held, longest, counts, memory)))
        return ModelState(tuple(layers), longest, counts)

    def _slots(self, table: Int[Tensor, "B P"], places: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """Return where positions lie when all pages lie behind one another."""
        page = table.gather(1, places // self.page_size)
        return (page * self.page_size + places % self.page_size).to(self.k[0].device)


def _table(tables: Sequence[Sequence[int]]) -> Int[Tensor, "B P"]:
    """Return the pages of each sequence, as many as of the longest."""
    wide = max(map(len, tables))
    return torch.tensor([[*pages, *[0] * (wide - len(pages))] for pages in tables])


def _gather(pages, slots, room):
    """Return what lies in these slots of the pages, (B, H, M + room, d); the room is empty."""
    (batch, length), (_, _, n_heads, d) = slots.shape, pages.shape
    found = pages.new_empty(batch, n_heads, length + room, d)
    found[:, :, :length] = pages.flatten(0, 1)[slots].transpose(1, 2)
    return found
