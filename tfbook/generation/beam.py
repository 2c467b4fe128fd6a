"""Beam search: keep several continuations at once, so that a poor start can pay off later.

Explained in: chapters/12_generation, section "Beam search".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tfbook._checks import check_callable, check_number
from tfbook.attention import Cache, DynamicCache
from tfbook.generation.prompts import (
    LanguageModel,
    Prompt,
    Stop,
    check_room,
    device_of,
    read_prompts,
    read_stop,
    start_state,
    stop_count,
)
from tfbook.generation.sampling import greedy

__all__ = ["Hypothesis", "beam_search"]


@dataclass(frozen=True)
class Hypothesis:
    """One continuation that a beam search found.

    Attributes:
        tokens: the new ids, the stop included.
        log_prob: ln p of all of them together, given the prompt.
        score: log_prob / length^length_penalty, by which hypotheses are compared.
        finished: whether it met a stop condition.

    Explained in: chapters/12_generation, section "Beam search".
    """

    tokens: list[int]
    log_prob: float
    score: float
    finished: bool


@torch.no_grad()
def beam_search(
    model: LanguageModel,
    prompt: Prompt,
    *,
    n_beams: int,
    max_new_tokens: int,
    length_penalty: float = 0.0,
    stop: Stop = (),
    state: Any = None,
    cache: Cache | None = None,
    on_step: Callable[[list[Hypothesis], list[Hypothesis]], object] | None = None,
) -> list[list[Hypothesis]]:
    """Find likely continuations: extend the best ``n_beams`` by every token, keep the best again.

    score = ln p(tokens) / length^α with α = ``length_penalty``. All α rank continuations of one
    length alike; between lengths 0 favours short ones, since each token lowers ln p, and larger α
    favours long ones. The search ends when no hypothesis under way can still reach the best
    ``n_beams`` that are finished, which is no guess: ln p only falls.

    One beam is greedy decoding, unless α > 0 and there is a stop: then a stop that is the likeliest
    token ends a hypothesis, and the search goes on beside it, for a longer text may score higher.
    As many beams as there are sequences is exhaustive search.

    Args:
        model: see :class:`tfbook.generation.LanguageModel`; in evaluation mode.
        prompt: ids of one sequence, of several, or (B, N); each is searched by itself.
        n_beams: how many continuations to keep.
        max_new_tokens: how many tokens to add at most.
        length_penalty: α; ``transformers`` has 1 where nothing is said.
        stop: see :func:`tfbook.generation.generate`.
        state: what was read before the prompt, with a row for each of them, such as
            ``model.remember(source)``.
        cache: how the past is held; dynamic when omitted.
        on_step: called after each token with the hypotheses under way and the finished ones.

    Returns:
        For each prompt up to ``n_beams`` hypotheses, the best first.

    Raises:
        ValueError: as :func:`tfbook.generation.generate`.

    Cost: a forward pass over n_beams rows for each token, and n_beams caches.

    Source: [graves2012sequence], length: [wu2016google]
    Explained in: chapters/12_generation, section "Beam search".
    """
    prompts = read_prompts(prompt)
    check_number("n_beams", n_beams, 1, whole=True)
    _check_penalty(length_penalty)
    check_room(model, prompts, max_new_tokens, state)
    if on_step is not None:
        check_callable("on_step", on_step)
    if state is not None and cache is not None:
        raise ValueError("state and cache exclude each other: the state is a cache already")
    search = _Search(
        model, n_beams, max_new_tokens, length_penalty, read_stop(stop), stop_count(stop), on_step
    )
    found = []
    for row, ids in enumerate(prompts):
        tokens = torch.tensor([ids], device=device_of(model))  # (1, N)
        if state is None:
            own = start_state(model, 1, cache, DynamicCache())
        else:
            own = state.select(torch.tensor([row], device=tokens.device))
        found.append(search.run(tokens, own))
    return found


@dataclass(frozen=True)
class _Search:
    model: LanguageModel
    n_beams: int
    max_new_tokens: int
    length_penalty: float
    ended: Callable[[list[int]], bool]
    n_endings: int
    on_step: Callable[[list[Hypothesis], list[Hypothesis]], object] | None

    def run(self, tokens, state):
        """Return the best hypotheses for the prompt ``tokens``, (1, N)."""
        alive, finished = [Hypothesis([], 0.0, 0.0, False)], []
        for length in range(1, self.max_new_tokens + 1):
            logits, state = self.model.decode(tokens, state, last=True)  # (A, 1, V)
            logits = logits[:, -1].cpu()  # (A, V)
            greedy(logits)  # refuses NaN, and rows with nothing left
            sums = torch.tensor([h.log_prob for h in alive], dtype=torch.float64)  # (A,)
            sums = sums[:, None] + logits.double().log_softmax(dim=-1)  # (A, V)
            alive, beams = self._extend(alive, finished, sums, length)
            finished.sort(key=lambda h: -h.score)  # stable: of equals the first found stays
            del finished[self.n_beams :]
            if self.on_step is not None:
                self.on_step(list(alive), list(finished))
            if not alive or self._decided(alive[0], finished, length):
                break
            state = state.select(torch.tensor(beams, device=tokens.device))
            tokens = torch.tensor([h.tokens[-1:] for h in alive], device=tokens.device)  # (A, 1)
        return finished

    def _extend(self, alive, finished, sums, length):
        """Add a token to each; return those under way and which one each came from."""
        # Each beam ends with at most n_endings of its tokens, so that among so many candidates
        # n_beams are still under way.
        width = min(self.n_beams * (1 + self.n_endings), sums.numel())
        values, places = sums.flatten().topk(width)
        following, beams = [], []
        pairs = zip(values.tolist(), places.tolist(), strict=True)
        for rank, (log_prob, place) in enumerate(pairs):
            if log_prob == -math.inf:
                break
            beam, token = divmod(place, sums.shape[1])
            tokens = [*alive[beam].tokens, token]
            over = self.ended(tokens)
            new = Hypothesis(tokens, log_prob, log_prob / length**self.length_penalty, over)
            if over or length == self.max_new_tokens:
                if rank < self.n_beams:  # else it has lost against n_beams better ones
                    finished.append(new)
            elif len(following) < self.n_beams:
                following.append(new)
                beams.append(beam)
        return following, beams

    def _decided(self, best, finished, length):
        """Return whether not even the best one under way can still come in."""
        if len(finished) < self.n_beams:
            return False
        longest = self.max_new_tokens if self.length_penalty > 0 else length + 1
        return best.log_prob / longest**self.length_penalty <= finished[-1].score


def _check_penalty(value: object) -> None:
    check_number("length_penalty", value, -100, 100)
