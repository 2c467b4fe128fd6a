"""Multi-head attention: several attentions side by side, each in its own small space.

One module serves self-attention, causal or not, cross-attention and cached decoding, with any
attention function, any kind of position and fewer heads for keys and values than for queries. Like
every token mixer of this package it is called as ``mixer(x, state=None, *, mask=None)`` and returns
``(y, state)``: feeding a sequence in pieces, each with the state of the piece before, gives what
the whole sequence gives at once, and a caller need not know what the state holds.

Heads stand at dimension −3: queries are (B, H, N, d_head). Where heads share keys and values, they
stand in groups, (B, n_kv_heads, G, N, d_head), and broadcasting does the rest.

Explained in: chapters/03_multi_head.
"""

import copy
from collections.abc import Callable, Collection, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_head_mask,
    check_number,
    check_rows,
    check_same,
    check_shape,
    check_window,
    chosen_names,
    head_sizes,
    memory_sizes,
)
from tfbook.attention.caches import Cache, make_empty
from tfbook.attention.exact import attend_sdpa
from tfbook.attention.explicit import attend_explicit
from tfbook.attention.head_surgery import (
    SomeHeads,
    Weights,
    fill,
    keep_heads,
    kept_groups,
    pack_torch,
    unpack_torch,
)
from tfbook.attention.heads import HeadsTogether, group_heads, merge_heads, split_heads
from tfbook.attention.masks import band_mask, combine_masks
from tfbook.attention.registry import VARIANTS
from tfbook.attention.states import KVState, read_mask, with_head_axis
from tfbook.attention.taps import Tap
from tfbook.positions import AddedPosition, BiasPosition, RotaryPosition, places_for

__all__ = ["MultiHeadAttention"]

Attend = Callable[..., Tensor | tuple[Tensor, ...]]
Position = AddedPosition | RotaryPosition | BiasPosition
PROJECTIONS = ("q", "k", "v", "out")


class MultiHeadAttention(nn.Module):
    r"""Attend with several heads at once, then mix what they found.

    head_h = attend(x W_q^h, m W_k^h, m W_v^h), y = [head_1, …, head_H] W_out = Σ_h head_h W_out^h,
    with m = x for self-attention and the memory for cross-attention.

    Args:
        d_model: features of x and y.
        n_heads: H, heads for the queries.
        n_kv_heads: heads for keys and values, a divisor of H; query head h uses key-value head
            ⌊h · n_kv_heads / H⌋. H when omitted; 1 is multi-query attention, between them grouped.
        d_head: features of a query and of a key; d_model / H when omitted.
        d_value: features of a value; d_head when omitted.
        d_memory: features of the memory, which makes this cross-attention; a pair when keys and
            values are made from different rows.
        causal: hide the future, aligned to the last key.
        attend: the attention function, of the signature of :func:`tfbook.attention.attend`; a
            module that owns weights may be given, or a ``functools.partial``.
        position: None or a part that knows positions: applied to queries and keys if it has
            ``rotate`` (rotary), added to the scores if it has ``bias`` (ALiBi, T5, Shaw), and
            else added to x at the entrance. Positions count on through the state.
        bias: whether the projections have one: True, False or names out of "q", "k", "v", "out".
        scale: factor on q kᵀ; when omitted 1/√d_head, or 1 where the position is not ``scaled``.
        dropout: share of the weights that training sets to 0, the others grow by 1/(1 − dropout).
            The attention function must be able to form its weights.
        window: how many keys a query sees, itself and those just before it; all when omitted.
            It needs ``causal``.
        qk_norm: makes a norm of a given size, such as :class:`tfbook.blocks.RMSNorm`, for the
            queries and the keys of each head, before they are rotated. Their lengths, and with
            them the scores, then cannot grow without bound in training.
        qk_norm_whole: whether these norms are over all heads together, as in OLMo 2.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: the four linear maps.
        q_norm, k_norm: the norms of queries and keys, shared by the heads; None without.
        q, k, v, z: identities that pass on queries (B, H, N, d_head), keys and values
            (B, n_kv_heads, N, d), normalised but not rotated, and what each head found
            (B, H, N, d_value). A forward hook on them reads or replaces what passes.
        scores, pattern: two more, that pass on the scores (B, H, N, M), scaled, biased and −∞ where
            not allowed, and their softmax, before dropout; both in float32 at least. Only while one
            of them has a hook are they formed, by a path that gives the same numbers and takes
            n · m numbers of memory for each head. A hook is an error where ``attend`` forms none.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit.

    Cost: parameters and FLOPs as :mod:`tfbook.costs` counts them, neither depends on H.

    Example:
        >>> mha = MultiHeadAttention(d_model=8, n_heads=2, causal=True)
        >>> x = torch.randn(1, 5, 8)
        >>> whole, _ = mha(x)
        >>> start, state = mha(x[:, :3])
        >>> rest, state = mha(x[:, 3:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-6)
        True

    Source: [vaswani2017attention], grouped: [shazeer2019fast], [ainslie2023gqa], normalised:
    [henry2020query]
    Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_value: int | None = None,
        d_memory: int | tuple[int, int] | None = None,
        causal: bool = False,
        attend: Attend = attend_sdpa,
        position: Position | None = None,
        bias: bool | Collection[str] = True,
        scale: float | None = None,
        dropout: float = 0.0,
        window: int | None = None,
        qk_norm: Callable[[int], nn.Module] | None = None,
        qk_norm_whole: bool = False,
    ):
        """Make the projections, Xavier uniform with biases at 0."""
        super().__init__()
        n_kv_heads, d_head, d_value = head_sizes(d_model, n_heads, n_kv_heads, d_head, d_value)
        rows = (d_model, d_model) if d_memory is None else memory_sizes(d_memory)
        if d_memory is not None and (causal or position is not None):
            raise ValueError(
                "cross-attention (d_memory is set) takes neither causal nor position: the queries "
                "and the memory have no order in common"
            )
        check_bool("causal", causal)
        check_bool("qk_norm_whole", qk_norm_whole)
        if scale is not None:
            check_number("scale", scale, above=0)
        check_number("dropout", dropout, 0, below=1)
        _check_attend(attend)
        check_window(window, causal)
        if not (qk_norm is None or callable(qk_norm)):
            raise TypeError(f"qk_norm must make a norm of a size, got {type(qk_norm).__name__}")
        knows = callable(position) or _has(position, "rotate") or _has(position, "bias")
        if position is not None and not knows:
            raise TypeError(
                "position must be callable or have a method rotate or bias, got "
                f"{type(position).__name__}"
            )
        self.d_model, self.n_heads, self.n_kv_heads = d_model, n_heads, n_kv_heads
        self.d_head, self.d_value, self.d_memory = d_head, d_value, d_memory
        self.causal, self.attend, self.position, self.scale = causal, attend, position, scale
        self.dropout, self.window, self.qk_norm = dropout, window, qk_norm
        self.bias = chosen_names("bias", bias, PROJECTIONS)
        self.q_proj = nn.Linear(d_model, n_heads * d_head, bias="q" in self.bias)
        self.k_proj = nn.Linear(rows[0], n_kv_heads * d_head, bias="k" in self.bias)
        self.v_proj = nn.Linear(rows[1], n_kv_heads * d_value, bias="v" in self.bias)
        self.out_proj = nn.Linear(n_heads * d_value, d_model, bias="out" in self.bias)
        self.qk_norm_whole = qk_norm_whole
        make = HeadsTogether.making(qk_norm) if qk_norm_whole else qk_norm
        over = (n_heads * d_head, n_kv_heads * d_head) if qk_norm_whole else (d_head, d_head)
        self.q_norm, self.k_norm = (None if qk_norm is None else make(size) for size in over)
        self.q, self.k, self.v, self.scores, self.pattern, self.z = (Tap() for _ in range(6))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, Xavier uniform, and set the biases to 0."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def extra_repr(self) -> str:
        """Show the sizes."""
        sizes = f"d_model={self.d_model}, n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}"
        return f"{sizes}, d_head={self.d_head}, d_value={self.d_value}, causal={self.causal}"

    @property
    def is_cross(self) -> bool:
        """Return whether keys and values come from a memory."""
        return self.d_memory is not None

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: KVState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        head_mask: Float[Tensor, " H"] | Bool[Tensor, " H"] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], KVState]:
        """Mix the rows of x, continuing from a state or, with cross-attention, looking into it.

        The keys are those of the state and, in self-attention, those of x behind them: M in all.
        Without ``causal`` a row sees later rows of its own piece, but those of later pieces do not
        exist yet; only a causal module gives the same for every way to cut a sequence.

        Args:
            x: (B, N, d_model).
            state: what the call before returned, None at the start of a sequence; for
                cross-attention what :meth:`remember` returned.
            mask: boolean, True = allowed (``nn.MultiheadAttention`` has True = blocked),
                broadcasting to (B, H, N, M); with three dimensions it is (B, N, M), with two
                (N, M). M may be the N keys of x alone: the state's stay as visible as they were.
                A mask of these that is the same for all queries and heads, such as
                ``padding_mask``'s (B, 1, N), is kept in the state and hides its keys later too.
            head_mask: (H,), a factor on what each head found; 0 or False switches it off.

        Returns:
            y (B, N, d_model), and the state to continue from (cross-attention: the same state).

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or cross-attention without a state.

        Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
        """
        q, state, given = self._project(x, state, mask)  # (B, H, N, d_head); k and v in the state
        z = self.z(self._attend(q, state.k, state.v, **given))  # (B, H, N, d_value)
        if head_mask is not None:
            check_head_mask(head_mask, self.n_heads)
            z = z * head_mask.to(z.dtype)[:, None, None]
        return self.out_proj(merge_heads(z)), state.trim()  # (B, N, d_model)

    def remember(
        self,
        memory: Float[Tensor, "B M Dk"],
        values: Float[Tensor, "B M Dv"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> KVState:
        """Make the state of cross-attention: the keys and values of a memory, computed once.

        Args:
            memory: the rows to look into, (B, M, d_memory).
            values: the rows to make values from when they are other ones, (B, M, d_memory).
            mask: which rows may be seen, boolean, broadcasting to (B, 1, M), as ``padding_mask``.

        Returns:
            The state for :meth:`forward`, any number of times.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or if this is self-attention.

        Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
        """
        if not self.is_cross:
            raise ValueError("self-attention has no memory; build with d_memory= for that")
        values = memory if values is None else values
        check_rows("memory", memory, self.k_proj.weight)
        check_rows("values", values, self.v_proj.weight)
        check_shape("values", values, (*memory.shape[:2], values.shape[-1]), "(B, M, d_memory)")
        batch, m, _ = memory.shape
        if mask is not None:
            mask = with_head_axis(mask, (batch, 1, 1, m)).expand(batch, 1, 1, m)
        k, v = self._keys_values(memory, values)
        return KVState(k, v, mask, m)

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> KVState:
        """Return a state of self-attention with no keys yet, in the cache of one's choice.

        Args:
            batch: how many sequences.
            cache: ``DynamicCache()`` when omitted, ``StaticCache(max_len)`` or
                ``SlidingCache(window)``.

        Returns:
            What :meth:`forward` continues from, with the weights' dtype and device.

        Raises:
            TypeError: if batch is not an integer, or the cache cannot make states.
            ValueError: if batch is below 1, or this is cross-attention.

        Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
        """
        if self.is_cross:
            raise ValueError("the state of cross-attention is remember(memory), never empty")
        sizes = (self.n_kv_heads, self.d_head, self.d_value)
        return make_empty(cache, batch, *sizes, like=self.k_proj.weight)

    def weights(
        self,
        x: Float[Tensor, "B N D"],
        state: KVState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B H N M"]:
        """Return how much each head lets each query take from each key.

        Arguments and errors are those of :meth:`forward`. It is what passes the tap ``pattern``,
        which hooks there see and may replace.

        Returns:
            The weights (B, H, N, M), rows sum to 1, or are all 0 where nothing is allowed.

        Explained in: chapters/03_multi_head, section "What the heads of a small model do".
        """
        q, state, given = self._project(x, state, mask)
        return self._attend_explicit(q, state.k, state.v, **given)[1].to(state.v.dtype)

    def head_outputs(
        self,
        x: Float[Tensor, "B N D"],
        state: KVState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        """Return what each head adds to y: head_h W_out^h, with W_out^h its rows of W_out.

        y = Σ_h head_outputs[:, h] + the bias of ``out_proj``. Arguments and errors are those of
        :meth:`forward`.

        Returns:
            One term for each head, (B, H, N, d_model).

        Source: [elhage2021mathematical]
        Explained in: chapters/03_multi_head, section "A sum of heads".
        """
        q, state, given = self._project(x, state, mask)
        z = self.z(self._attend(q, state.k, state.v, **given))  # (B, H, N, d_value)
        return z @ split_heads(self.out_proj.weight, self.n_heads).mT  # (B, H, N, d_model)

    def prune_heads(self, keep: Sequence[int]) -> "MultiHeadAttention":
        """Return a smaller module with the heads in ``keep`` only; this one stays as it is.

        It computes what ``head_mask`` computes with 0 for all other heads. Key-value heads that no
        query head uses go too; where the groups become uneven, some are held more than once.

        Args:
            keep: the numbers of the heads to keep, at least one, in any order.

        Raises:
            TypeError: if a number is not an integer.
            ValueError: if none is kept, one is out of range, or one is named twice.

        Source: [michel2019sixteen]
        Explained in: chapters/03_multi_head_deeper, section "Pruning heads".
        """
        keep = sorted(keep)
        n_kv_heads = len(kept_groups(keep, self.n_heads, self.n_kv_heads))
        position = copy.deepcopy(self.position)
        if _has(position, "bias"):
            position = SomeHeads(position, self.n_heads, keep)
        pruned = self._like(n_heads=len(keep), n_kv_heads=n_kv_heads, position=position)
        return fill(pruned, keep_heads(self._weights(), keep, self.n_heads, self.n_kv_heads))

    @classmethod
    def from_torch(
        cls,
        module: nn.MultiheadAttention,
        *,
        cross: bool | None = None,
        causal: bool = False,
        attend: Attend = attend_sdpa,
    ) -> "MultiHeadAttention":
        """Copy the weights of PyTorch's module into a new one that computes the same.

        The new one is called batch first, whatever ``batch_first`` says, and its masks have
        True = allowed: pass ``~attn_mask`` and ``~key_padding_mask[:, None, :]``.

        Args:
            module: PyTorch's module.
            cross: whether to make cross-attention; when omitted, if ``kdim`` or ``vdim`` are not
                those of self-attention.
            causal: hide the future.
            attend: the attention function.

        Raises:
            TypeError: if module is not an ``nn.MultiheadAttention``.
            ValueError: if it has ``add_bias_kv`` or ``add_zero_attn``, which have no place here.

        Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
        """
        weights = unpack_torch(module)
        sizes = (module.kdim, module.vdim)
        other = sizes != (module.embed_dim, module.embed_dim)
        if other and cross is False:
            raise ValueError(f"kdim and vdim, {sizes}, need cross-attention, got cross=False")
        with torch.device("meta"):
            new = cls(
                module.embed_dim,
                module.num_heads,
                d_memory=sizes if other or cross else None,
                causal=causal,
                attend=attend,
                bias=module.in_proj_bias is not None,
                dropout=module.dropout,
            )
        return fill(new, weights).train(module.training)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """Copy the weights into a new ``nn.MultiheadAttention`` that computes the same.

        Shared key-value heads are written out once for each query head, and a missing bias beside
        others becomes zeros. The dropout goes with them; the causal mask, a window and the
        attention function are the caller's to bring.

        Raises:
            ValueError: if it has no room for this module: another ``d_head`` than d_model / H,
                another ``d_value``, a position, a scale or norms of queries and keys.

        Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
        """
        narrow = self.d_head * self.n_heads != self.d_model or self.d_value != self.d_head
        names = ("position", "scale", "qk_norm")
        if narrow or any(getattr(self, name) is not None for name in names):
            had = ", ".join(f"{x} {getattr(self, x)}" for x in (*names, "d_head", "d_value"))
            raise ValueError(
                "nn.MultiheadAttention has no position, scale or qk_norm, and heads of size "
                f"d_model / n_heads = {self.d_model / self.n_heads:g}; here {had}"
            )
        new = pack_torch(self._weights(), self.n_heads, self.n_kv_heads, batch_first=batch_first)
        new.dropout = self.dropout
        return new.train(self.training)

    def _weights(self) -> Weights:
        """Return weights and biases of the four projections and of the norms by name."""
        own = ("q_proj.", "k_proj.", "v_proj.", "out_proj.", "q_norm.", "k_norm.")
        return {name: x for name, x in self.named_parameters() if name.startswith(own)}

    def _like(self, **changes: object) -> "MultiHeadAttention":
        """Make a module of the same choices, but for the changes, without any numbers in it."""
        names = "d_model n_heads n_kv_heads d_head d_value d_memory causal attend position bias "
        names += "qk_norm_whole"
        names = f"{names} scale dropout window qk_norm".split()
        chosen = {name: getattr(self, name) for name in names}
        with torch.device("meta"):
            return type(self)(**(chosen | changes)).train(self.training)

    def _project(self, x, state, mask):
        """Return the queries, the state with the keys they meet, and what restricts the scores."""
        check_rows("x", x, self.q_proj.weight)
        self._check_state(x, state)
        if self.is_cross:
            q, bias = self._queries(x), None  # (B, H, N, d_head)
            if mask is not None:
                mask = with_head_axis(mask, (*q.shape[:3], state.length))
        else:
            q, state, mask, bias = self._continue(x, state, mask)
        mask = combine_masks(state.mask, mask)  # broadcasts to (B, H, N, M)
        scale = self.scale
        if scale is None and bias is not None and not self.position.scaled:
            scale = 1.0
        return q, state, {"mask": mask, "bias": bias, "causal": self.causal, "scale": scale}

    def _queries(self, x):
        q = split_heads(self.q_proj(x), self.n_heads)  # (B, H, N, d_head)
        return self.q(q if self.q_norm is None else self.q_norm(q))

    def _keys_values(self, for_keys, for_values):
        k = split_heads(self.k_proj(for_keys), self.n_kv_heads)  # (B, n_kv_heads, M, d)
        k = self.k(k if self.k_norm is None else self.k_norm(k))
        v = self.v(split_heads(self.v_proj(for_values), self.n_kv_heads))
        return k, v

    def _continue(self, x, state, mask):
        """Put the keys and values of x behind those of the state, each at its position."""
        batch, n, _ = x.shape
        past, seen = (0, 0) if state is None else (state.length, state.seen)
        part = self.position
        rotates, biases = _has(part, "rotate"), _has(part, "bias")
        if part is not None:
            own = places_for(part, seen, seen + n, x.device)  # (N,), of the rows of x
            ragged = state is not None and state.counts is not None
            if ragged:  # each sequence has its own, (B, N)
                own = (state.counts[:, None] + torch.arange(n, device=x.device)).clamp(min=0)
            if not (rotates or biases):
                x = part(x, own)
        q, (k, v), bias = self._queries(x), self._keys_values(x, x), None
        if rotates:
            q, k = part.rotate(q, own), part.rotate(k, own)
        if biases:
            places = places_for(part, 0, seen + n, x.device)  # (M,), of the keys
            if seen > past or ragged:  # the state knows which keys are left
                places = torch.cat([state.positions(device=x.device), own], -1)
            bias = part.bias(q, own, places)  # broadcasts to (B, H, N, M)
        kept, mask = read_mask(mask, batch, self.n_heads, n, past)
        state = KVState(k, v, kept, n) if state is None else state.extend(k, v, kept)
        if self.window is not None and state.length > self.window:
            mask = combine_masks(mask, band_mask(n, state.length, self.window, device=x.device))
        return q, state, mask, bias

    def _attend(self, q, k, v, **given):
        """Return what the heads find, by the function chosen unless its weights have to be seen."""
        drops = self.dropout > 0 and self.training
        if drops or self.scores.watched or self.pattern.watched:
            return self._attend_explicit(q, k, v, **given)[0]
        q, k, v, given = self._group(q, k, v, given)
        z = self.attend(q, k, v, **given)  # (B, H, N, d_value), or with H as groups
        return z if z.ndim == 4 else z.flatten(1, -3)

    def _attend_explicit(self, q, k, v, **given):
        """Return what the heads find, and by which weights (B, H, N, M)."""
        q, k, v, given = self._group(q, k, v, given)
        taps = {"scores": self.scores, "pattern": self.pattern}
        dropout = self.dropout if self.training else 0.0
        z, weights = attend_explicit(self.attend, q, k, v, dropout=dropout, **taps, **given)
        return z.flatten(1, -3), weights

    def _group(self, q, k, v, given):
        """Put the query heads that share keys and values side by side, for broadcasting."""
        groups = self.n_kv_heads
        if groups == self.n_heads:
            return q, k, v, given
        mask, bias = (group_heads(given[name], groups) for name in ("mask", "bias"))
        q, k, v = group_heads(q, groups), k.unsqueeze(2), v.unsqueeze(2)  # (B, groups, G or 1, …)
        return q, k, v, given | {"mask": mask, "bias": bias}

    def _check_state(self, x, state):
        if state is None and self.is_cross:
            raise ValueError("cross-attention needs state=mha.remember(memory), got None")
        if state is None:
            return
        if not isinstance(state, KVState):
            raise TypeError(
                f"state must be a KVState, got {type(state).__name__}; "
                "the memory of cross-attention becomes one with remember(memory)"
            )
        for name, held, size in (("k", state.k, "d_head"), ("v", state.v, "d_value")):
            shape = (len(x), self.n_kv_heads, state.length, getattr(self, size))
            if held.shape != shape:  # asked here, for this runs with every token
                check_shape(f"state.{name}", held, shape, f"(B, n_kv_heads, M, {size})")
            check_same(**{"x": x, f"state.{name}": held})


def _has(part: object, method: str) -> bool:
    return callable(getattr(part, method, None))


def _check_attend(attend: object) -> None:
    if not callable(attend):
        raise TypeError(f"attend must be callable, got {type(attend).__name__}")
    for variant in VARIANTS.values():
        if variant.fn is attend and variant.parameters:
            weights = ", ".join(f"{name}=…" for name in variant.parameters)
            raise ValueError(
                f"attend {variant.name!r} needs weights of its own: bind them with "
                f"functools.partial(attend, {weights}), or pass a module that owns them"
            )
