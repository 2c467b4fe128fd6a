"""Guess ahead with something cheap, check all guesses in one pass, keep what is right.

A draft proposes a few tokens; the model reads them all at once and each is accepted with a
probability that makes the result exactly what the model alone would have drawn. One pass of the
model then yields several tokens. What the draft is worth decides the speed, never the outcome.

Explained in: chapters/12_generation, section "Guess ahead and check".
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfbook._checks import check_callable, check_float, check_number
from tfbook.attention import Cache, DynamicCache
from tfbook.blocks import Stack
from tfbook.generation.prompts import (
    LanguageModel,
    Prompt,
    Stop,
    check_model,
    check_room,
    device_of,
    make_generator,
    read_prompts,
    read_stop,
    start_state,
)
from tfbook.generation.sampling import GREEDY, Sampling, check_sampling, draw
from tfbook.models import DecoderOnly

__all__ = [
    "FirstLayers",
    "NGramDraft",
    "NGramState",
    "Speculation",
    "accept_probability",
    "residual_distribution",
    "speculative_generate",
]


def accept_probability(p: Float[Tensor, "*B V"], q: Float[Tensor, "*B V"]) -> Tensor:
    """Return with which probability each token that the draft proposes is kept: min(1, p/q).

    Args:
        p: what the model gives each token, (..., V).
        q: what the draft gives it, (..., V).

    Returns:
        (..., V); 1 where q is 0, since such a token is never proposed.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> accept_probability(torch.tensor([0.2, 0.8]), torch.tensor([0.5, 0.5]))
        tensor([0.4000, 1.0000])

    Source: [leviathan2023fast], [chen2023accelerating]
    Explained in: chapters/12_generation, section "When guesses are drawn".
    """
    _check_pair(p, q)
    return torch.where(q > 0, p / q, 1.0).clamp(max=1.0)


def residual_distribution(p: Float[Tensor, "*B V"], q: Float[Tensor, "*B V"]) -> Tensor:
    """Return what to draw from after a rejection: what p has more than q, scaled to sum 1.

    r_i = max(p_i − q_i, 0) / Σ_j max(p_j − q_j, 0). Then q_i · min(1, p_i/q_i) + P(rejected) · r_i
    = min(p_i, q_i) + max(p_i − q_i, 0) = p_i, whatever q is.

    Args:
        p: what the model gives each token, (..., V).
        q: what the draft gives it, (..., V).

    Returns:
        (..., V); p itself where both are equal, for then nothing is rejected.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> residual_distribution(torch.tensor([0.2, 0.7, 0.1]), torch.tensor([0.5, 0.5, 0.0]))
        tensor([0.0000, 0.6667, 0.3333])

    Source: [leviathan2023fast], [chen2023accelerating]
    Explained in: chapters/12_generation, section "When guesses are drawn".
    """
    _check_pair(p, q)
    more = (p - q).clamp(min=0)
    total = more.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, more / total, p)


@dataclass(frozen=True)
class Speculation:
    """What speculative decoding made, and how the guesses fared.

    Attributes:
        prompt: the ids it began with.
        tokens: the new ids, the stop included.
        finished: whether it met a stop condition.
        passes: how often the model read something after the prompt.
        drafted: how many tokens were proposed.
        accepted: how many of them were kept.

    Explained in: chapters/12_generation, section "Guess ahead and check".
    """

    prompt: list[int]
    tokens: list[int]
    finished: bool
    passes: int
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """Return which share of the proposals was kept; 0 where none was made."""
        return self.accepted / max(self.drafted, 1)

    @property
    def tokens_per_pass(self) -> float:
        """Return how many tokens one pass of the model yielded; 1 without drafts."""
        return len(self.tokens) / self.passes


@torch.no_grad()
def speculative_generate(
    model: LanguageModel,
    draft: LanguageModel,
    prompt: Prompt,
    *,
    max_new_tokens: int,
    n_draft: int = 4,
    sampling: Sampling = GREEDY,
    stop: Stop = (),
    seed: int | torch.Generator | None = None,
    cache: Cache | None = None,
    on_token: Callable[[int], object] | None = None,
) -> Speculation:
    """Continue one prompt as the model would, reading several guessed tokens in each pass.

    The draft proposes x_1 … x_k from its distributions q; the model gives p for all k + 1 places
    in one pass; x_i is kept with probability min(1, p_i(x_i)/q_i(x_i)). At the first rejection a
    token is drawn from the residual, max(p − q, 0), and where all are kept one more from p. The
    tokens have the distribution of :func:`tfbook.generation.generate`, and at temperature 0 they
    are its tokens.

    Args:
        model: the model whose distribution counts; its states must have ``truncate(length)``.
        draft: what proposes: another model, :class:`FirstLayers` or :class:`NGramDraft`. Logits
            that are all −∞ propose nothing.
        prompt: ids of one sequence.
        max_new_tokens: how many tokens to add at most.
        n_draft: how many tokens to propose for each pass, k.
        sampling: how the next token is chosen, applied to p and q alike; when omitted the most
            likely one.
        stop: see :func:`tfbook.generation.generate`.
        seed: makes the draws repeatable; or where random numbers come from.
        cache: how both hold the past; dynamic when omitted. A sliding cache cannot go back.
        on_token: called with each new token.

    Returns:
        The tokens, and how many proposals were made and kept.

    Raises:
        ValueError: as :func:`tfbook.generation.generate`; for more than one prompt; for a draft of
            another vocabulary.

    Cost: with share a of the proposals kept, (1 − a^{k+1}) / (1 − a) tokens for one pass of the
        model over k + 1 rows and k passes of the draft, if each is kept independently.

    Source: [leviathan2023fast], [chen2023accelerating]
    Explained in: chapters/12_generation, section "Guess ahead and check".
    """
    prompts = read_prompts(prompt)
    if len(prompts) != 1:
        raise ValueError(f"speculative decoding takes one prompt, got {len(prompts)}")
    check_number("n_draft", n_draft, 1, whole=True)
    check_room(model, prompts, max_new_tokens)
    check_model(draft)
    check_sampling(sampling)
    if on_token is not None:
        check_callable("on_token", on_token)
    chance, ended = _Chance(make_generator(seed)), read_stop(stop)
    reader = _Reader(model, cache)
    guesser = _Reader(draft, cache if hasattr(draft, "empty_state") else None)
    sequence, new, finished = prompts[0], [], False
    drafted = accepted = passes = 0
    if len(sequence) > 1:
        reader.read(sequence[:-1], last=True)
    while not finished and len(new) < max_new_tokens:
        # The last token of all needs no guess: the model's own pass gives it.
        wanted = min(n_draft, max_new_tokens - len(new) - 1)
        guesses, q = _guess(guesser, sequence + new, wanted, sampling, chance)
        logits = reader.read([*sequence, *new, *guesses])  # (k + 1, V)
        p = _distributions(logits, sampling, sequence + new, guesses)  # (k + 1, V)
        if q and q[0].shape != p[0].shape:
            raise ValueError(
                f"model and draft must have one vocabulary, got {len(p[0])} and {len(q[0])} tokens"
            )
        kept = _count_kept(guesses, p, q, chance)
        rest = p[kept] if kept == len(guesses) else residual_distribution(p[kept], q[kept])
        for each in (reader, guesser):
            each.forget(len(sequence) + len(new) + kept)
        passes, drafted, accepted = passes + 1, drafted + len(guesses), accepted + kept
        for token in [*guesses[:kept], chance.draw(rest)]:
            new.append(token)
            if on_token is not None:
                on_token(token)
            finished = ended(new)
            if finished:
                break
    return Speculation(sequence, new, finished, passes, drafted, accepted)


def _guess(guesser, sequence, wanted, sampling, chance):
    """Return up to ``wanted`` proposed ids and the distributions they were drawn from."""
    guesses, found = [], []
    while len(guesses) < wanted:
        logits = guesser.read(sequence + guesses, last=True)  # (1, V)
        if bool((logits == -torch.inf).all()):
            break
        (q,) = _distributions(logits, sampling, sequence + guesses, [])  # (V,)
        guesses.append(chance.draw(q))
        found.append(q)
    return guesses, found


def _distributions(logits, sampling, sequence, guesses):
    """Return what is drawn from behind the sequence, then behind each guess more, (k + 1, V)."""
    seen = [sequence + guesses[:place] for place in range(len(guesses) + 1)]
    return sampling(logits.double(), seen).softmax(dim=-1)


def _count_kept(guesses, p, q, chance):
    """Return how many guesses are accepted before the first rejection."""
    for place, guess in enumerate(guesses):
        if chance.uniform() >= float(accept_probability(p[place], q[place])[guess]):
            return place
    return len(guesses)


class _Reader:
    """A model, its state, and how many tokens of the sequence it has read."""

    def __init__(self, model, cache):
        self.model, self.device = model, device_of(model)
        self.state = start_state(model, 1, cache, DynamicCache())
        self.length = 0

    def read(self, sequence, *, last=False):
        """Read what is new in the sequence; return logits of the new rows, or of the last."""
        tokens = torch.tensor([sequence[self.length :]], device=self.device)
        logits, self.state = self.model.decode(tokens, self.state, last=last)
        self.length = len(sequence)
        return logits[0].cpu()

    def forget(self, length):
        """Go back to the first ``length`` tokens, if more were read."""
        if self.length > length:
            self.state, self.length = self.state.truncate(length), length


@dataclass(frozen=True)
class _Chance:
    """Random numbers, and what is drawn with them."""

    generator: torch.Generator | None

    def uniform(self) -> float:
        """Return a number from 0 to below 1."""
        return float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def draw(self, p: Tensor) -> int:
        """Return an id drawn with probabilities p, (V,)."""
        return int(draw(p.log(), torch.tensor(self.uniform(), dtype=p.dtype)))


class FirstLayers:
    """A model's own first layers as its draft: leave early, through the last norm and the head.

    The weights are the model's, nothing is copied. Nobody trained the head to read the middle of
    the model, so the guesses are as good as the residual stream already is there.

    Args:
        model: a decoder-only model.
        n_layers: how many of its layers to use, below all of them.

    Raises:
        TypeError: for another kind of model.
        ValueError: if there are not so many layers.

    Explained in: chapters/12_generation, section "Guess ahead and check".
    """

    def __init__(self, model: DecoderOnly, n_layers: int):
        """Put the first layers beside the model's other parts."""
        if not isinstance(model, DecoderOnly):
            raise TypeError(f"model must be a DecoderOnly, got {type(model).__name__}")
        check_number("n_layers", n_layers, 1, whole=True)
        stack = model.stack
        if n_layers >= len(stack.blocks):
            raise ValueError(f"n_layers must be below {len(stack.blocks)}, got {n_layers}")
        part = copy.copy(model)
        part._modules = dict(model._modules)  # a shallow copy would share the dictionary
        part.stack = Stack(list(stack.blocks)[:n_layers], stack.final_norm)
        part.stack.shared = stack.shared
        part.config = model.config.replace(n_layers=n_layers)
        part.train(model.training)
        self.model, self.config = part, part.config

    @property
    def training(self) -> bool:
        """Return whether the model is in training mode."""
        return self.model.training

    def parameters(self) -> Any:
        """Return the weights in use."""
        return self.model.parameters()

    def empty_state(self, batch: int, **options: Any) -> Any:
        """Return the state to start from, see ``DecoderOnly.empty_state``."""
        return self.model.empty_state(batch, **options)

    def decode(
        self, tokens: Tensor, state: Any = None, *, mask: Tensor | None = None, last: bool = False
    ) -> tuple[Tensor, Any]:
        """Return logits and state, see :meth:`tfbook.generation.LanguageModel.decode`."""
        return self.model.decode(tokens, state, mask=mask, last=last)


@dataclass(frozen=True, eq=False)
class NGramState:
    """All that was read, (B, M).

    Explained in: chapters/12_generation, section "Guess ahead and check".
    """

    tokens: Int[Tensor, "B M"]

    @property
    def length(self) -> int:
        """Return how many tokens each sequence has."""
        return self.tokens.shape[1]

    def select(self, rows: Int[Tensor, " S"]) -> "NGramState":
        """Return the state of the chosen sequences."""
        return NGramState(self.tokens[rows])

    def truncate(self, length: int) -> "NGramState":
        """Return the state as it was after ``length`` tokens."""
        return NGramState(self.tokens[:, :length])


class NGramDraft:
    """Propose what followed the last tokens before, here or in a text: no weights at all.

    Looks for earlier places with the same last n − 1 tokens, then for the last n − 2, down to one,
    and counts what came next there. Where the last token is new, the logits are all −∞: no guess.

    Args:
        n: length of the n-grams, at least 2.
        vocab_size: V.
        text: ids to look in beside the sequence itself, (T,).

    Raises:
        ValueError: if one is too small.

    Source: [saxena2023prompt]
    Explained in: chapters/12_generation, section "Guess ahead and check".
    """

    def __init__(self, n: int, vocab_size: int, *, text: Tensor | list[int] = ()):
        """Keep the text."""
        check_number("n", n, 2, whole=True)
        check_number("vocab_size", vocab_size, 1, whole=True)
        self.n, self.vocab_size = n, vocab_size
        self.text = torch.as_tensor(text, dtype=torch.long)  # (T,)

    def decode(
        self,
        tokens: Int[Tensor, "B N"],
        state: NGramState | None = None,
        *,
        mask: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B _ V"], NGramState]:
        """Return the logarithms of the counts, as any :class:`tfbook.generation.LanguageModel`."""
        past = 0 if state is None else state.length
        whole = tokens if state is None else torch.cat([state.tokens, tokens], dim=1)  # (B, M)
        m = whole.shape[1]
        ends = [m] if last else range(past + 1, m + 1)
        rows = [torch.stack([self._counts(row[:end]) for end in ends]) for row in whole]
        return torch.stack(rows).log(), NGramState(whole)

    def _counts(self, seen):
        """Return how often each token followed the end of what was seen, (V,)."""
        seen = torch.cat([self.text.to(seen.device), seen])
        for size in range(min(self.n, len(seen)) - 1, 0, -1):
            places = seen[:-1].unfold(0, size, 1)  # (M − size, size)
            same = (places == seen[-size:]).all(dim=1)
            if same.any():
                return seen[size:][same].bincount(minlength=self.vocab_size).float()
        return torch.zeros(self.vocab_size, device=seen.device)


def _check_pair(p: Tensor, q: Tensor) -> None:
    check_float("p", p, min_dims=1)
    check_float("q", q, min_dims=1)
    if p.shape != q.shape:
        raise ValueError(f"p and q must have one shape, got {tuple(p.shape)} and {tuple(q.shape)}")
