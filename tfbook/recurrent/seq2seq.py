"""Translation before the Transformer: an encoder, a decoder, and attention between the two.

:class:`Seq2Seq` reads a source sentence with a bidirectional GRU and writes a target sentence with
another GRU. What the decoder sees of the source is the choice ``attention``:

- None: one fixed vector for the whole sentence, however long.
- "bahdanau": a weighted mean of the encoder's states, chosen anew before each step by s_{t−1}.
- "luong": the same, chosen after each step by s_t.

Sentences are ids (B, M), padded on the right; targets start with the begin token when they go in.

Explained in: chapters/01_motivation, section "The fixed vector".
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import check_float, check_number, check_same, check_shape, check_tensor
from tfbook.attention import bilinear_scores, masked_softmax, padding_mask
from tfbook.recurrent.cells import GRUCell
from tfbook.recurrent.networks import Bidirectional

__all__ = ["Decoder", "Encoder", "Memory", "Seq2Seq"]

KINDS = (None, "bahdanau", "luong")


class Memory(NamedTuple):
    """What a decoder needs of the source, computed once for a sentence."""

    values: Float[Tensor, "B M E"]  # the annotations h_j
    keys: Float[Tensor, "B M K"]  # what they are scored by
    mask: Bool[Tensor, "B 1 M"]  # True at real tokens
    summary: Float[Tensor, "B E"]  # the whole sentence in one vector


class Encoder(nn.Module):
    """Read a sentence from both sides: h_j = [h→_j ; h←_j], and c = [h→_M ; h←_1] of all of it.

    Args:
        vocab_size: number of source tokens.
        d_embed: size of a token's vector.
        d_hidden: size of each direction's state.
        dropout: share of the embeddings' numbers set to 0 in training.
        pad_id: the token of the padding.

    Source: [bahdanau2015neural]
    Explained in: chapters/01_motivation, section "Bahdanau's alignment".
    """

    def __init__(
        self,
        vocab_size: int,
        d_embed: int,
        d_hidden: int,
        *,
        dropout: float = 0.0,
        pad_id: int = 0,
    ):
        """Make an encoder with parameters drawn as PyTorch draws them."""
        super().__init__()
        check_number("vocab_size", vocab_size, 1, whole=True)
        _check_special("pad_id", pad_id, vocab_size)
        self.d_memory = 2 * d_hidden
        self.embedding = nn.Embedding(vocab_size, d_embed, padding_idx=pad_id)
        self.dropout = nn.Dropout(dropout)
        self.layer = Bidirectional(GRUCell(d_embed, d_hidden), GRUCell(d_embed, d_hidden))

    def forward(
        self, source: Int[Tensor, "B M"], lengths: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B M E"], Float[Tensor, "B E"]]:
        """Return the annotations h_j, (B, M, 2 · d_hidden), and the summary c, (B, 2 · d_hidden).

        Raises:
            TypeError: if ids or lengths are no integer tensors.
            ValueError: for a wrong shape, an id outside of the vocabulary, or a length that is not
                between 1 and M.
        """
        _check_ids("source", source, self.embedding.num_embeddings)
        _check_lengths(lengths, source)
        x = self.dropout(self.embedding(source))  # (B, M, d_embed)
        mask = padding_mask(lengths, source.shape[1])  # (B, 1, M)
        annotations, (last, first) = self.layer(x, mask=mask)
        return annotations, torch.cat([last, first], dim=-1)


class Decoder(nn.Module):
    """Write a sentence token by token, each from the tokens before it and a view of the source.

    With y the embedding of the token before, s the GRU's state and h_j the source's annotations:

    - fixed:    c the summary;                                        s_t = GRU([y ; c], s_{t−1})
    - bahdanau: e_tj = w_a · tanh(W_a s_{t−1} + U_a h_j), c_t = Σ_j α_tj h_j,
                                                                      s_t = GRU([y ; c_t], s_{t−1})
    - luong:    s_t = GRU(y, s_{t−1}), e_tj = s_t W_a h_j, c_t = Σ_j α_tj h_j

    with α_t = softmax(e_t) over the real tokens. Scores of the next token are W_o r_t, with
    r_t = tanh(W_r [s_t ; c_t ; y]); Luong's r_t leaves y out. The first state is s_0 = tanh(W_s c),
    where Bahdanau's uses the second half of c only; his r_t is a maxout layer. Luong's decoder can
    also be fed r_{t−1}, which is left out here.

    Args:
        vocab_size: number of target tokens.
        d_embed: size of a token's vector.
        d_hidden: size of the state, of the hidden layer of the score and of r_t.
        d_memory: size of an annotation and of the summary.
        attention: None, "bahdanau" or "luong".
        dropout: share of the numbers of y and r_t set to 0 in training.
        pad_id: the token of the padding.

    Raises:
        ValueError: if the attention is none of the three.

    Source: [cho2014learning], [bahdanau2015neural], [luong2015effective]
    Explained in: chapters/01_motivation, section "Bahdanau's alignment".
    """

    def __init__(
        self,
        vocab_size: int,
        d_embed: int,
        d_hidden: int,
        d_memory: int,
        *,
        attention: str | None = None,
        dropout: float = 0.0,
        pad_id: int = 0,
    ):
        """Make a decoder with parameters drawn as PyTorch draws them."""
        super().__init__()
        check_number("vocab_size", vocab_size, 1, whole=True)
        _check_special("pad_id", pad_id, vocab_size)
        if attention not in KINDS:
            raise ValueError(f"attention must be None, 'bahdanau' or 'luong', got {attention!r}")
        luong = attention == "luong"
        self.attention = attention
        self.embedding = nn.Embedding(vocab_size, d_embed, padding_idx=pad_id)
        self.dropout = nn.Dropout(dropout)
        self.to_first = nn.Linear(d_memory, d_hidden)  # W_s
        self.cell = GRUCell(d_embed if luong else d_embed + d_memory, d_hidden)
        self.to_readout = nn.Linear(d_hidden + d_memory + (0 if luong else d_embed), d_hidden)
        self.to_scores = nn.Linear(d_hidden, vocab_size)  # W_o
        if attention == "bahdanau":
            self.query = nn.Linear(d_hidden, d_hidden, bias=False)  # W_a
            self.key = nn.Linear(d_memory, d_hidden, bias=False)  # U_a
            self.energy = nn.Parameter(torch.empty(d_hidden).uniform_(-1, 1) * d_hidden**-0.5)
        if luong:
            self.bilinear = nn.Parameter(torch.empty(d_hidden, d_memory))  # W_a
            nn.init.xavier_uniform_(self.bilinear)

    def remember(
        self,
        annotations: Float[Tensor, "B M E"],
        summary: Float[Tensor, "B E"],
        mask: Bool[Tensor, "B 1 M"],
    ) -> tuple[Memory, Float[Tensor, "B S"]]:
        """Compute what all steps share, and the state before the first one.

        Args:
            annotations: what the encoder knows at each source token, (B, M, d_memory).
            summary: what it knows of the whole sentence, (B, d_memory).
            mask: True at real source tokens, (B, 1, M).

        Returns:
            The memory, and s_0 (B, d_hidden).
        """
        # The keys do not depend on the step, so Bahdanau's U_a h_j is computed here, once.
        keys = self.key(annotations) if self.attention == "bahdanau" else annotations
        return Memory(annotations, keys, mask, summary), torch.tanh(self.to_first(summary))

    def align(
        self, state: Float[Tensor, "B S"], memory: Memory
    ) -> tuple[Float[Tensor, "B E"], Float[Tensor, "B M"] | None]:
        """Look at the source with a state: return the context (B, d_memory) and weights (B, M).

        Without attention the context is the summary and the weights are None.
        """
        if self.attention is None:
            return memory.summary, None
        if self.attention == "bahdanau":  # scores.additive_scores, with its key half done before
            hidden = torch.tanh(self.query(state).unsqueeze(1) + memory.keys)  # (B, M, d_hidden)
            scores = (hidden @ self.energy).unsqueeze(1)  # (B, 1, M)
        else:
            scores = bilinear_scores(state.unsqueeze(1), memory.keys, self.bilinear)  # (B, 1, M)
        weights = masked_softmax(scores, memory.mask)  # (B, 1, M)
        return (weights @ memory.values).squeeze(1), weights.squeeze(1)

    def step(
        self, y: Float[Tensor, "B D"], state: Float[Tensor, "B S"], memory: Memory
    ) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B E"], Float[Tensor, "B M"] | None]:
        """Take in one embedded token: return the new state s_t, the context c_t and the weights."""
        if self.attention == "luong":
            state, _ = self.cell(y, state)
            return state, *self.align(state, memory)
        context, weights = self.align(state, memory)  # by the state before: s_t is not there yet
        state, _ = self.cell(torch.cat([y, context], dim=-1), state)
        return state, context, weights

    def readout(
        self,
        y: Float[Tensor, "*B D"],
        state: Float[Tensor, "*B S"],
        context: Float[Tensor, "*B E"],
    ) -> Float[Tensor, "*B V"]:
        """Score every target token as the next one."""
        seen = [state, context] if self.attention == "luong" else [state, context, y]
        readout = torch.tanh(self.to_readout(torch.cat(seen, dim=-1)))  # (..., d_hidden)
        return self.to_scores(self.dropout(readout))  # (..., V)

    def embed(self, tokens: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        """Give each target token its vector."""
        return self.dropout(self.embedding(tokens))

    def forward(
        self,
        tokens: Int[Tensor, "B N"],
        state: Float[Tensor, "B S"],
        memory: Memory,
    ) -> tuple[Float[Tensor, "B N V"], Float[Tensor, "B N M"] | None]:
        """Take in given tokens one after another and score the next one after each.

        Args:
            tokens: target ids (B, N), the begin token first.
            state: s_0 (B, d_hidden), from :meth:`remember`.
            memory: from :meth:`remember`.

        Returns:
            Scores (B, N, V), and weights (B, N, M) or None without attention.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a wrong shape or an id outside of the vocabulary.
        """
        _check_ids("tokens", tokens, self.embedding.num_embeddings)
        check_float("state", state)
        check_same(state=state, values=memory.values)
        check_shape("state", state, (len(tokens), self.cell.d_hidden), "(B, d_hidden)")
        y = self.embed(tokens)  # (B, N, d_embed)
        states, contexts, alignments = [], [], []
        for y_t in y.unbind(1):  # no step can start before the last one's state is there
            state, context, weights = self.step(y_t, state, memory)
            states.append(state)
            contexts.append(context)
            alignments.append(weights)
        # The readout needs no state of its own, so all its steps are one multiplication.
        logits = self.readout(y, torch.stack(states, dim=1), torch.stack(contexts, dim=1))
        return logits, None if self.attention is None else torch.stack(alignments, dim=1)


class Seq2Seq(nn.Module):
    """Translate by an encoder and a decoder that are trained together.

    p(target | source) = Π_t p(y_t | y_1 … y_{t−1}, source), each factor a softmax over the target
    vocabulary.

    Args:
        source_vocab: number of source tokens.
        target_vocab: number of target tokens.
        d_embed: size of a token's vector, in both languages.
        d_hidden: size of the decoder's state and of each of the encoder's two.
        attention: None for one fixed vector, "bahdanau" or "luong".
        dropout: share of numbers set to 0 in training, at the embeddings and before the scores.
        pad_id: the token of the padding.
        bos_id: the token a translation starts from.
        eos_id: the token it ends with.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, a special id is outside of a vocabulary, or the attention
            is none of the three.

    Source: [cho2014learning], [sutskever2014sequence], [bahdanau2015neural], [luong2015effective]
    Explained in: chapters/01_motivation, section "The fixed vector".
    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        d_embed: int,
        d_hidden: int,
        *,
        attention: str | None = "bahdanau",
        dropout: float = 0.0,
        pad_id: int = 0,
        bos_id: int = 1,
        eos_id: int = 2,
    ):
        """Make both halves with parameters drawn as PyTorch draws them."""
        super().__init__()
        for name, size in (("d_embed", d_embed), ("d_hidden", d_hidden)):
            check_number(name, size, 1, whole=True)
        check_number("target_vocab", target_vocab, 1, whole=True)
        for name, token in (("bos_id", bos_id), ("eos_id", eos_id)):
            _check_special(name, token, target_vocab)
        self.pad_id, self.bos_id, self.eos_id = pad_id, bos_id, eos_id
        common = {"dropout": dropout, "pad_id": pad_id}
        self.encoder = Encoder(source_vocab, d_embed, d_hidden, **common)
        self.decoder = Decoder(
            target_vocab, d_embed, d_hidden, self.encoder.d_memory, attention=attention, **common
        )

    def encode(
        self, source: Int[Tensor, "B M"], source_lengths: Int[Tensor, " B"]
    ) -> tuple[Memory, Float[Tensor, "B S"]]:
        """Read the source: return what the decoder remembers of it, and the decoder's first state.

        Raises:
            TypeError: if ids or lengths are no integer tensors.
            ValueError: for a wrong shape, an id outside of the vocabulary, or a length that is not
                between 1 and M.
        """
        annotations, summary = self.encoder(source, source_lengths)
        mask = padding_mask(source_lengths, source.shape[1])  # (B, 1, M)
        return self.decoder.remember(annotations, summary, mask)

    def forward(
        self,
        source: Int[Tensor, "B M"],
        source_lengths: Int[Tensor, " B"],
        target_in: Int[Tensor, "B N"],
    ) -> tuple[Float[Tensor, "B N V"], Float[Tensor, "B N M"] | None]:
        """Score the next target token after each given one, as in training.

        Args:
            source: ids (B, M), padded on the right.
            source_lengths: how many of them are real, (B,).
            target_in: the target shifted right, (B, N): the begin token, then all but the last.

        Returns:
            Scores (B, N, V); row t is for the token after target_in[:, t]. Weights (B, N, M), row
            t those of that step, or None without attention.

        Raises:
            TypeError: if ids or lengths are no integer tensors.
            ValueError: for a wrong shape, an id outside of the vocabulary, a length that is not
                between 1 and M, or another number of targets than of sources.
        """
        _check_ids("target_in", target_in, self.decoder.embedding.num_embeddings)
        memory, state = self.encode(source, source_lengths)
        if len(target_in) != len(source):
            raise ValueError(
                "source and target_in must hold equally many sentences, got "
                f"{len(source)} and {len(target_in)}"
            )
        return self.decoder(target_in, state, memory)

    @torch.no_grad()
    def translate(
        self, source: Int[Tensor, "B M"], source_lengths: Int[Tensor, " B"], *, max_len: int = 50
    ) -> tuple[Int[Tensor, "B N"], Float[Tensor, "B N M"] | None]:
        """Translate greedily: feed back the best token until every sentence has ended.

        Works without dropout, whatever mode the model is in. A begin token or padding is never
        chosen.

        Args:
            source: ids (B, M), padded on the right.
            source_lengths: how many of them are real, (B,).
            max_len: write at most so many tokens, the end token among them.

        Returns:
            ids (B, N), N ≤ max_len, each row up to its end token and then padding; weights
            (B, N, M), zeros at that padding, or None without attention.

        Raises:
            TypeError: if ids or lengths are no integer tensors, or max_len no integer.
            ValueError: for a wrong shape, an id outside of the vocabulary, a length that is not
                between 1 and M, or max_len below 1.
        """
        check_number("max_len", max_len, 1, whole=True)
        training = self.training
        self.eval()
        try:
            return self._greedy(source, source_lengths, max_len)
        finally:
            self.train(training)

    def _greedy(self, source, source_lengths, max_len):
        decoder = self.decoder
        memory, state = self.encode(source, source_lengths)
        token = source.new_full((len(source),), self.bos_id)  # (B,)
        ended = torch.zeros_like(token, dtype=torch.bool)
        ids, alignments = [], []
        while len(ids) < max_len and not (ids and bool(ended.all())):
            y = decoder.embed(token)
            state, context, weights = decoder.step(y, state, memory)
            logits = decoder.readout(y, state, context)  # (B, V)
            logits[:, [self.bos_id, self.pad_id]] = -torch.inf
            token = logits.argmax(dim=-1).masked_fill(ended, self.pad_id)
            ids.append(token)
            if weights is not None:
                alignments.append(weights.masked_fill(ended[:, None], 0.0))
            ended = ended | (token == self.eos_id)
        return torch.stack(ids, dim=1), torch.stack(alignments, dim=1) if alignments else None


def _check_special(name: str, token: object, vocab_size: int) -> None:
    check_number(name, token, 0, whole=True)
    if token >= vocab_size:
        raise ValueError(f"{name} must be below the vocabulary's size, {vocab_size}, got {token}")


def _check_ids(name: str, ids: object, vocab_size: int) -> None:
    check_tensor(name, ids)
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must hold integer ids (int64 or int32), got {ids.dtype}")
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(
            f"{name} must have shape (B, length) with a length of 1 or more, got {tuple(ids.shape)}"
        )
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"{name} must hold ids from 0 to {vocab_size - 1} (the vocabulary), "
                f"got {low if low < 0 else high}"
            )


def _check_lengths(lengths: object, source: Tensor) -> None:
    check_tensor("lengths", lengths)
    if lengths.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"lengths must be integers, got {lengths.dtype}")
    if lengths.device != source.device:
        raise ValueError(
            f"lengths must be on the device of source, {source.device}, got {lengths.device}"
        )
    check_shape("lengths", lengths, (len(source),), "(B,)")
    if lengths.numel() and not 1 <= int(lengths.min()) <= int(lengths.max()) <= source.shape[1]:
        raise ValueError(
            f"lengths must be between 1 and M = {source.shape[1]}, "
            f"got {int(lengths.min())} to {int(lengths.max())}"
        )
