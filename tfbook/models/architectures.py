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

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import check_bool, check_ids, check_number
from tfbook.attention import Cache
from tfbook.blocks import ModelState, SharedBias, Stack, Steps, TokenEmbedding, initialise
from tfbook.models.config import TransformerConfig
from tfbook.models.ends import Classes
from tfbook.models.layers import Layer

__all__ = [
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "Transformer",
    "build",
    "make_stack",
    "shift_right",
]


class EncoderDecoder(NamedTuple):
    """Something for each layer of an encoder and of a decoder.

    Attributes:
        encoder: of the encoder's layers.
        decoder: of the decoder's layers.
        cross: of the decoder's cross-attentions, where they have it.

    Explained in: chapters/05_architecture_deeper, section "The decoder".
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
    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """
    check_ids("targets", targets)
    check_number("bos", bos, 0, whole=True)
    first = torch.full_like(targets[:, :1], bos)  # (B, 1)
    return torch.cat([first, targets[:, :-1]], dim=1)


def make_stack(config: TransformerConfig, layers: Sequence[Layer], *, causal: bool) -> Stack:
    """Make the blocks of an encoder or a decoder, and the norm behind them.

    Explained in: chapters/05_architecture_deeper, section "The encoder".
    """
    site, norm = config.site(causal=causal), config.norm_behind
    blocks = [layer.build(site) for layer in layers]
    shared = [part for part in site.shared.values() if isinstance(part, SharedBias)]
    return Stack(blocks, None if norm is None else norm.make(config.d_model), shared=shared)


class _Model(nn.Module):
    """What the three kinds of models have in common.

    A model owns the parts of its embeddings itself, so that weights have short names; the
    embeddings that use them stand in ``_entrances``, which is not searched for weights.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config, self._entrances = config, ()

    def count_parameters(self) -> int:
        """Count the parameters, shared ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_repr(self) -> str:
        """Show how many parameters there are."""
        return f"{self.count_parameters():,} parameters"

    def _own(self, entrance: TokenEmbedding, stack: Stack) -> None:
        """Own the parts of the embedding, and the position that the layers share."""
        self._entrances = (entrance,)
        self.embed, self.segments = entrance.embed, entrance.segments
        self.position = entrance.position or _shared_part(stack)
        self.embed_norm, self.embed_dropout = entrance.embed_norm, entrance.embed_dropout
        self.stack = stack

    def _finish(self) -> None:
        """Draw the weights."""
        config = self.config
        initialise(self, config.init, len(config.decoder or config.encoder))


def _shared_part(stack: Stack) -> nn.Module | None:
    """Return the bias that the layers of a stack share."""
    return stack.shared[0].part if stack.shared else None


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
    Explained in: chapters/05_architecture_deeper, section "Encoder only: BERT".
    """

    def __init__(self, config: TransformerConfig):
        """Make the parts and draw their weights."""
        _check_config(config, "encoder")
        super().__init__(config)
        entrance = config.embedding.build(config.site())
        self._own(entrance, make_stack(config, config.encoder, causal=False))
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooler else None
        self.head = None if config.head is None else config.head.build(config.site())
        self._finish()

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
            Hidden states (B, N, d_model); with the head MaskedToken logits (B, N, V), with the head
            Classes logits (B, n_classes) of the whole sequence.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape or a number that does not fit, or too long a sequence.
        """
        x = self.hidden(tokens, mask=mask, segments=segments)
        if isinstance(self.config.head, Classes):
            return self.head(self.pooled(x))
        return x if self.head is None else self.head(x, self.embed.weight)

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
        (entrance,) = self._entrances
        return entrance(tokens, mask=mask, segments=segments)[:2]


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
        >>> from tfbook.models import FFN, Attention
        >>> config = TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2)
        >>> model = DecoderOnly(config).eval()
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> whole, _ = model(tokens)
        >>> start, state = model(tokens[:, :3])
        >>> rest, state = model(tokens[:, 3:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-5)
        True

    Source: [radford2019language], [touvron2023llama]
    Explained in: chapters/05_architecture_deeper, section "Decoder only: GPT and LLaMA".
    """

    def __init__(self, config: TransformerConfig):
        """Make the parts and draw their weights."""
        _check_config(config, "decoder")
        super().__init__(config)
        entrance = config.embedding.build(config.site())
        self._own(entrance, make_stack(config, config.decoder, causal=True))
        self.head = config.head.build(config.site())
        self._steps = Steps()
        self._finish()

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
        (entrance,), past = self._entrances, state or ModelState()
        before = {"seen": past.seen, "reach": past.reach, "counts": past.counts}
        x, mask, counts = entrance(tokens, mask=mask, **before)
        step = self._steps.find(self.stack, x, past.layers) if mask is None else None
        x, layers = step(x, past.layers) if step else self.stack(x, past.layers, mask=mask)
        logits = self.head(x[:, -1:] if last else x, self.embed.weight)
        return logits, ModelState(layers, past.seen + tokens.shape[1], counts)

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

        Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
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
        x, mask, _ = self._entrances[0](tokens, mask=mask)
        return self.stack.trace(x, mask=mask).states

    def attention_weights(
        self, tokens: Int[Tensor, "B N"], mask: Bool[Tensor, "..."] | None = None
    ) -> list[Float[Tensor, "B H N M"]]:
        """Return the weights of each layer: L of (B, H, N, N)."""
        x, mask, _ = self._entrances[0](tokens, mask=mask)
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
    Explained in: chapters/05_architecture_deeper, section "The whole model learns".
    """

    def __init__(self, config: TransformerConfig):
        """Make the parts and draw their weights."""
        _check_config(config, "encoder-decoder")
        super().__init__(config)
        site, embedding = config.site(), config.embedding
        source = embedding.build(site)
        target = embedding.build(site, source.embed if config.share_embeddings else None)
        encoder = make_stack(config, config.encoder, causal=False)
        decoder = make_stack(config, config.decoder, causal=True)
        self._entrances = (source, target)
        self.embed = source.embed
        self.target_embed = None if config.share_embeddings else target.embed
        self.position = source.position or _shared_part(encoder)
        self.target_position = target.position or _shared_part(decoder)
        self.embed_norm, self.embed_dropout = source.embed_norm, source.embed_dropout
        self.target_embed_norm, target.embed_dropout = target.embed_norm, source.embed_dropout
        self.encoder, self.decoder = encoder, decoder
        self.head = config.head.build(site)
        self._finish()

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
        x, mask, _ = self._entrances[0](source, mask=mask, name="source")
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
        before = {"seen": state.seen, "reach": state.reach, "counts": state.counts}
        entrance = self._entrances[1]
        x, mask, counts = entrance(tokens, mask=mask, **before, name="target")
        x, layers = self.decoder(x, state.layers, mask=mask)
        logits = self.head(x[:, -1:] if last else x, entrance.embed.weight)
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
        x, mask, _ = self._entrances[0](source, mask=source_mask, name="source")
        encoder = self.encoder.trace(x, mask=mask, **asked)
        state = self.remember(source, mask=source_mask)
        x, mask, _ = self._entrances[1](target, mask=target_mask, name="target")
        return encoder, self.decoder.trace(x, state.layers, mask=mask, **asked)


_KINDS = {"encoder": EncoderOnly, "decoder": DecoderOnly, "encoder-decoder": Transformer}


def build(config: TransformerConfig) -> EncoderOnly | DecoderOnly | Transformer:
    """Make the model that a config describes, with new weights.

    Under ``torch.device("meta")`` no memory is taken, whatever the size.

    Raises:
        TypeError: if config is no config.

    Example:
        >>> from tfbook.models import FFN, Attention
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> type(model).__name__, model.count_parameters() == model.config.count_parameters()
        ('DecoderOnly', True)

    Explained in: chapters/05_architecture_deeper, section "The whole model learns".
    """
    _check_config(config)
    return _KINDS[config.kind](config)


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
