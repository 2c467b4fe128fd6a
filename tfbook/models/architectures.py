"""Whole models: the same parts, put together as a config says.

:func:`build` makes an :class:`EncoderOnly` (BERT, ViT), a :class:`DecoderOnly` (GPT, LLaMA) or a
:class:`Transformer` with both (2017, T5). What predicts tokens carries a :class:`ModelState` from
one piece of a sequence to the next, so generation never reads a token twice; reading a sequence in
pieces gives what reading it at once gives.

Sequences of different lengths are padded, and a mask (B, N) says where the tokens are, True =
token. Absolute positions count tokens, so padding may stand on either side. Rotary positions and
biases on the scores count columns: what is to be continued is padded in front, so that no padding
comes to lie between two tokens.

Explained in: chapters/05_architecture.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import check_bool, check_count, check_ids, check_shape, check_tensor
from tfbook.attention import Cache
from tfbook.models.assembly import (
    initialise,
    make_embed_norm,
    make_embedding,
    make_head,
    make_position,
    make_stack,
)
from tfbook.models.blocks import ModelState
from tfbook.models.config import ADDED, TransformerConfig

__all__ = [
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "Transformer",
    "build",
    "shift_right",
]


class EncoderDecoder(NamedTuple):
    """Something for each layer of an encoder and of a decoder.

    Attributes:
        encoder: of the encoder's layers.
        decoder: of the decoder's layers.
        cross: of the decoder's cross-attentions, where they have it.

    Explained in: chapters/05_architecture, section "The decoder".
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor] | None = None


def shift_right(targets: Int[Tensor, "B N"], bos: int) -> Int[Tensor, "B N"]:
    """Return what a decoder reads to predict the targets: ``bos``, then all but the last.

    out[:, 0] = bos, out[:, i] = targets[:, i − 1], so that row i may see all that it reads.

    Args:
        targets: tokens (B, N).
        bos: the token that begins every sequence.

    Raises:
        TypeError: if targets or bos are not integers.
        ValueError: if targets is empty or has another shape, or bos is negative.

    Example:
        >>> shift_right(torch.tensor([[5, 6, 7]]), bos=1)
        tensor([[1, 5, 6]])

    Source: [vaswani2017attention]
    Explained in: chapters/05_architecture, section "From words in to words out".
    """
    check_ids("targets", targets)
    check_count("bos", bos)
    first = torch.full_like(targets[:, :1], bos)  # (B, 1)
    return torch.cat([first, targets[:, :-1]], dim=1)


class _Ends(NamedTuple):
    """What turns tokens into rows with positions: an encoder's or a decoder's."""

    embed: nn.Module
    position: nn.Module | None
    norm: nn.Module | None


class _Model(nn.Module):
    """What the three kinds of models have in common."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config

    def count_parameters(self) -> int:
        """Count the parameters, shared ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_repr(self) -> str:
        """Show how many parameters there are."""
        return f"{self.count_parameters():,} parameters"

    def _enter(self, name, tokens, ends, mask=None, state=None, segments=None):
        """Return rows (B, N, d_model), the mask for attention, and the counts of the next state."""
        check_ids(name, tokens, self.config.vocab_size)
        seen, before = (0, None) if state is None else (state.seen, state.counts)
        n, places, counts = tokens.shape[1], None, None
        mask, padded = _read_mask(mask, tokens)
        if padded is not None:
            start = seen if before is None else before[:, None]
            steps = start + padded.cumsum(-1)  # (B, N), tokens so far
            places, counts = (steps - 1).clamp(min=0), steps[:, -1]
        elif before is not None:
            places, counts = before[:, None] + torch.arange(n, device=tokens.device), before + n
        elif seen:
            places = torch.arange(seen, seen + n, device=tokens.device)
        self._check_length(name, seen + n, counts)
        x = ends.embed(tokens)  # (B, N, d_model)
        if self.config.scale_embeddings:
            x = x * math.sqrt(self.config.d_model)
        return self._place(x if segments is None else x + segments, ends, places), mask, counts

    def _place(self, x, ends, places=None):
        """Add the positions, then apply the norm of the embeddings, if there is one."""
        if self.config.position in ADDED:
            x = ends.position(x, places)
        return self.embed_dropout(x if ends.norm is None else ends.norm(x))

    def _check_length(self, name, columns, counts):
        longest = self.config.max_len
        if longest is None or columns <= longest:
            return
        if counts is not None and self.config.position in ADDED:
            columns = int(counts.max())  # padding takes up no position
        if columns > longest:
            raise ValueError(
                f"{name} must not be longer than max_len = {longest}, got {columns} "
                "with what came before"
            )


class EncoderOnly(_Model):
    """A stack in which every position sees every other one: BERT, MiniLM, ViT.

    Args:
        config: of kind "encoder".

    Attributes:
        embed, segments, position, embed_norm: what makes rows of tokens or of images.
        stack: the blocks, and the norm behind them.
        pooler, head: what follows; None where there is none.

    Raises:
        TypeError: if config is no config.
        ValueError: if it is of another kind.

    Source: [devlin2019bert], [dosovitskiy2021image]
    Explained in: chapters/05_architecture, section "Encoder only: BERT".
    """

    def __init__(self, config: TransformerConfig):
        """Make the parts and draw their weights."""
        _check_config(config, "encoder")
        super().__init__(config)
        self.embed = make_embedding(config)
        self.segments = None
        if config.n_segments is not None:
            self.segments = nn.Embedding(config.n_segments, config.d_model)
        self.position = make_position(config, causal=False)
        self.embed_norm, self.embed_dropout = make_embed_norm(config), nn.Dropout(config.dropout)
        self.stack = make_stack(config, config.n_layers, self.position, causal=False)
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooler else None
        self.head = make_head(config)
        initialise(self, config)

    def forward(
        self,
        tokens: Int[Tensor, "B N"] | Float[Tensor, "B C S S"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        segments: Int[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B ..."]:
        """Return what the head makes of the hidden states, or them where there is no head.

        Args:
            tokens: (B, N), or images (B, C, S, S).
            mask: True = token, (B, N); with three or four dimensions as for
                :meth:`tfbook.attention.MultiHeadAttention.forward`.
            segments: which segment each token belongs to, (B, N); all 0 when omitted.

        Returns:
            Hidden states (B, N, d_model); with head "mlm" logits (B, N, V), with head "classes"
            logits (B, n_classes) of the whole sequence.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape or a number that does not fit, or too long a sequence.
        """
        x = self.hidden(tokens, mask=mask, segments=segments)
        if self.config.output == "mlm":
            return self.head(x, self.embed.weight)
        return x if self.head is None else self.head(self.pooled(x))

    def hidden(
        self,
        tokens: Int[Tensor, "B N"] | Float[Tensor, "B C S S"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        segments: Int[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B N D"]:
        """Return a vector for each position; arguments and errors are those of :meth:`forward`."""
        x, mask = self._begin(tokens, mask, segments)
        return self.stack.encode(x, mask=mask)

    def pooled(self, hidden: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        """Return one vector for the sequence: that of its first position, through the pooler."""
        first = hidden[:, 0]  # (B, d_model)
        return first if self.pooler is None else torch.tanh(self.pooler(first))

    def hidden_states(
        self,
        tokens: Int[Tensor, "B N"] | Float[Tensor, "B C S S"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        segments: Int[Tensor, "B N"] | None = None,
    ) -> list[Float[Tensor, "B N D"]]:
        """Return the embeddings and what each block makes of them: L + 1 of (B, N, d_model).

        The last one is what enters the norm behind the blocks, if there is one.
        """
        x, mask = self._begin(tokens, mask, segments)
        return self.stack.trace(x, mask=mask).states

    def attention_weights(
        self,
        tokens: Int[Tensor, "B N"] | Float[Tensor, "B C S S"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        segments: Int[Tensor, "B N"] | None = None,
    ) -> list[Float[Tensor, "B H N M"]]:
        """Return the weights of each layer: L of (B, H, N, N)."""
        x, mask = self._begin(tokens, mask, segments)
        return self.stack.trace(x, mask=mask, weights=True).weights

    def _begin(self, tokens, mask, segments):
        ends = _Ends(self.embed, self.position, self.embed_norm)
        if self.segments is None and segments is not None:
            raise ValueError("segments were given, but this model has none: n_segments is None")
        if self.config.patches is not None:
            x = self.embed(tokens)  # (B, N, d_model)
            return self._place(x, ends), _read_mask(mask, x[..., 0])[0]
        rows = None
        if segments is not None:
            check_ids("segments", segments, self.config.n_segments)
            if segments.shape != tokens.shape:
                raise ValueError(
                    f"segments must have the shape of tokens, {tuple(tokens.shape)}, "
                    f"got {tuple(segments.shape)}"
                )
            rows = self.segments(segments)
        elif self.segments is not None:
            rows = self.segments.weight[0]
        return self._enter("tokens", tokens, ends, mask, segments=rows)[:2]


class DecoderOnly(_Model):
    """A stack that hides the future and predicts the next token: GPT, LLaMA, SmolLM2.

    Args:
        config: of kind "decoder".

    Attributes:
        embed, position, embed_norm: what makes rows of tokens.
        stack: the blocks, and the norm behind them.
        head: the scores of the next token.

    Raises:
        TypeError: if config is no config.
        ValueError: if it is of another kind.

    Example:
        >>> config = TransformerConfig(11, d_model=8, n_layers=2, n_heads=2, d_ff=16)
        >>> model = DecoderOnly(config).eval()
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> whole, _ = model(tokens)
        >>> start, state = model(tokens[:, :3])
        >>> rest, state = model(tokens[:, 3:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-5)
        True

    Source: [radford2019language], [touvron2023llama]
    Explained in: chapters/05_architecture, section "Decoder only: GPT and LLaMA".
    """

    def __init__(self, config: TransformerConfig):
        """Make the parts and draw their weights."""
        _check_config(config, "decoder")
        super().__init__(config)
        self.embed = make_embedding(config)
        self.position = make_position(config, causal=True)
        self.embed_norm, self.embed_dropout = make_embed_norm(config), nn.Dropout(config.dropout)
        self.stack = make_stack(config, config.decoder_layers, self.position, causal=True)
        self.head = make_head(config)
        initialise(self, config)

    def forward(
        self,
        tokens: Int[Tensor, "B N"],
        state: ModelState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B K V"], ModelState]:
        """Score what follows each token, continuing from a state.

        Args:
            tokens: (B, N), those behind the ones that the state has seen.
            state: what the call before returned; None at the start.
            mask: True = token, (B, N); with three or four dimensions as for
                :meth:`tfbook.attention.MultiHeadAttention.forward`.
            last: score what follows the last column only.

        Returns:
            Logits (B, N, V), or (B, 1, V) with ``last``; and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape or a number that does not fit, or too long a sequence.
        """
        _check_state(state)
        check_bool("last", last)
        ends = _Ends(self.embed, self.position, self.embed_norm)
        x, mask, counts = self._enter("tokens", tokens, ends, mask, state)
        x, layers = self.stack(x, None if state is None else state.layers, mask=mask)
        seen = tokens.shape[1] + (0 if state is None else state.seen)
        logits = self.head(x[:, -1:] if last else x, self.embed.weight)
        return logits, ModelState(layers, seen, counts)

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> ModelState:
        """Return a state with nothing read yet, in the cache of one's choice.

        Args:
            batch: how many sequences.
            cache: ``DynamicCache()`` when omitted, ``StaticCache(max_len)`` or
                ``SlidingCache(window)``.

        Returns:
            What :meth:`forward` continues from.

        Raises:
            TypeError: if batch is not an integer, or the cache cannot make states.
            ValueError: if batch is below 1.

        Explained in: chapters/12_generation, section "Caches that do not grow".
        """
        return ModelState(self.stack.empty_state(batch, cache=cache))

    def decode(
        self,
        tokens: Int[Tensor, "B N"],
        state: ModelState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B K V"], ModelState]:
        """Do what :meth:`forward` does; by this name generation calls every model."""
        return self(tokens, state, mask=mask, last=last)

    def hidden_states(
        self, tokens: Int[Tensor, "B N"], *, mask: Bool[Tensor, "..."] | None = None
    ) -> list[Float[Tensor, "B N D"]]:
        """Return the embeddings and what each block makes of them: L + 1 of (B, N, d_model).

        The last one is what enters the norm behind the blocks, if there is one.
        """
        ends = _Ends(self.embed, self.position, self.embed_norm)
        x, mask, _ = self._enter("tokens", tokens, ends, mask)
        return self.stack.trace(x, mask=mask).states

    def attention_weights(
        self, tokens: Int[Tensor, "B N"], mask: Bool[Tensor, "..."] | None = None
    ) -> list[Float[Tensor, "B H N M"]]:
        """Return the weights of each layer: L of (B, H, N, N)."""
        ends = _Ends(self.embed, self.position, self.embed_norm)
        x, mask, _ = self._enter("tokens", tokens, ends, mask)
        return self.stack.trace(x, mask=mask, weights=True).weights


class Transformer(_Model):
    """An encoder, and a decoder that looks into what the encoder made: 2017, T5.

    Every block of the decoder looks into the encoder's last output, a vector for each token of the
    source; its keys and values are made once.

    Args:
        config: of kind "encoder-decoder".

    Attributes:
        embed, position, embed_norm: what makes rows of the source's tokens.
        target_embed, target_position, target_embed_norm: and of the target's; target_embed is None
            where the embedding is shared.
        encoder, decoder: the blocks, and the norms behind them.
        head: the scores of the next token of the target.

    Raises:
        TypeError: if config is no config.
        ValueError: if it is of another kind.

    Source: [vaswani2017attention], [raffel2020exploring]
    Explained in: chapters/05_architecture, section "The whole model learns".
    """

    def __init__(self, config: TransformerConfig):
        """Make the parts and draw their weights."""
        _check_config(config, "encoder-decoder")
        super().__init__(config)
        self.embed = make_embedding(config)
        self.target_embed = None if config.share_embeddings else make_embedding(config)
        self.position = make_position(config, causal=False)
        self.target_position = make_position(config, causal=True)
        self.embed_norm, self.embed_dropout = make_embed_norm(config), nn.Dropout(config.dropout)
        self.target_embed_norm = make_embed_norm(config)
        self.encoder = make_stack(config, config.n_layers, self.position, causal=False)
        self.decoder = make_stack(
            config, config.decoder_layers, self.target_position, causal=True, cross=True
        )
        self.head = make_head(config)
        initialise(self, config)

    def forward(
        self,
        source: Int[Tensor, "B M"],
        target: Int[Tensor, "B N"],
        *,
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B N V"]:
        """Score what follows each token of the target, given the source.

        Args:
            source: (B, M).
            target: what the decoder reads, (B, N); for training see :func:`shift_right`.
            source_mask: True = token, (B, M); its padding is hidden from the decoder too. With
                three or four dimensions it is for the encoder's attention only.
            target_mask: True = token, (B, N), or one for attention.

        Returns:
            Logits (B, N, V).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape or a number that does not fit, or too long a sequence.
        """
        state = self.remember(source, mask=source_mask)
        logits, _ = self.decode(target, state, mask=target_mask)
        return logits

    def encode(
        self, source: Int[Tensor, "B M"], *, mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B M D"]:
        """Return a vector for each token of the source, (B, M, d_model)."""
        x, mask, _ = self._enter("source", source, self._source_ends, mask)
        return self.encoder.encode(x, mask=mask)

    def remember(
        self,
        source: Int[Tensor, "B M"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        cache: Cache | None = None,
    ) -> ModelState:
        """Read the source, and return the state from which to decode.

        Args:
            source: (B, M).
            mask: as ``source_mask`` of :meth:`forward`.
            cache: how the decoder's own past is held, see :meth:`DecoderOnly.empty_state`.
        """
        memory = self.encode(source, mask=mask)
        keys = mask[:, None, :] if mask is not None and mask.ndim == 2 else None  # (B, 1, M)
        layers = self.decoder.remember(memory, keys)
        if cache is not None:
            own = self.decoder.empty_state(len(memory), cache=cache)
            layers = tuple(a._replace(mixer=b.mixer) for a, b in zip(layers, own, strict=True))
        return ModelState(layers)

    def decode(
        self,
        tokens: Int[Tensor, "B N"],
        state: ModelState,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B K V"], ModelState]:
        """Score what follows each token of the target, continuing from a state.

        Arguments, result and errors are those of :meth:`DecoderOnly.forward`, but that the first
        state comes from :meth:`remember`.
        """
        _check_state(state, needed=True)
        check_bool("last", last)
        x, mask, counts = self._enter("target", tokens, self._target_ends, mask, state)
        x, layers = self.decoder(x, state.layers, mask=mask)
        logits = self.head(x[:, -1:] if last else x, self._target_ends.embed.weight)
        return logits, ModelState(layers, state.seen + tokens.shape[1], counts)

    def hidden_states(
        self,
        source: Int[Tensor, "B M"],
        target: Int[Tensor, "B N"],
        *,
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> EncoderDecoder:
        """Return embeddings and what each block makes of them, of both stacks."""
        traces = self._traces(source, target, source_mask, target_mask)
        return EncoderDecoder(*(trace.states for trace in traces))

    def attention_weights(
        self,
        source: Int[Tensor, "B M"],
        target: Int[Tensor, "B N"],
        *,
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> EncoderDecoder:
        """Return the weights of each layer: encoder (B, H, M, M), decoder (B, H, N, N), cross."""
        encoder, decoder = self._traces(source, target, source_mask, target_mask, weights=True)
        return EncoderDecoder(encoder.weights, decoder.weights, decoder.cross)

    def _traces(self, source, target, source_mask, target_mask, **asked):
        x, mask, _ = self._enter("source", source, self._source_ends, source_mask)
        encoder = self.encoder.trace(x, mask=mask, **asked)
        state = self.remember(source, mask=source_mask)
        x, mask, _ = self._enter("target", target, self._target_ends, target_mask)
        return encoder, self.decoder.trace(x, state.layers, mask=mask, **asked)

    @property
    def _source_ends(self) -> _Ends:
        return _Ends(self.embed, self.position, self.embed_norm)

    @property
    def _target_ends(self) -> _Ends:
        embed = self.embed if self.target_embed is None else self.target_embed
        return _Ends(embed, self.target_position, self.target_embed_norm)


_KINDS = {"encoder": EncoderOnly, "decoder": DecoderOnly, "encoder-decoder": Transformer}


def build(config: TransformerConfig) -> EncoderOnly | DecoderOnly | Transformer:
    """Make the model that a config describes, with new weights.

    Under ``torch.device("meta")`` no memory is taken, whatever the size.

    Raises:
        TypeError: if config is no config.

    Example:
        >>> model = build(TransformerConfig(11, d_model=8, n_layers=2, n_heads=2, d_ff=16))
        >>> type(model).__name__, model.count_parameters() == model.config.count_parameters()
        ('DecoderOnly', True)

    Explained in: chapters/05_architecture, section "The whole model learns".
    """
    _check_config(config)
    return _KINDS[config.kind](config)


def _read_mask(mask: object, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask for attention and, where it says which columns are tokens, that too."""
    if mask is None or (isinstance(mask, Tensor) and mask.ndim > 2):
        return mask, None
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean with True = token, got {mask.dtype}")
    check_shape("mask", mask, tokens.shape, "(B, N)")
    return mask[:, None, :], mask  # (B, 1, N)


def _check_config(config: object, kind: str | None = None) -> None:
    if not isinstance(config, TransformerConfig):
        raise TypeError(f"config must be a TransformerConfig, got {type(config).__name__}")
    if kind not in (None, config.kind):
        raise ValueError(
            f"config must be of kind {kind!r}, got {config.kind!r}; build(config) chooses the class"
        )


def _check_state(state: object, *, needed: bool = False) -> None:
    if state is None and not needed:
        return
    if not isinstance(state, ModelState):
        hint = "; it comes from remember(source)" if needed else ""
        raise TypeError(f"state must be a ModelState, got {type(state).__name__}{hint}")
