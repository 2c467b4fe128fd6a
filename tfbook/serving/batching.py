"""Continuous batching: a request joins the batch when there is room, and leaves it when it ends.

Sequences of a batch that is filled once wait for the longest of them. Here the batch is made anew
for every token: whoever has ended is gone, and whoever waits is read in. Each gets the tokens that
it would get alone, for it has random numbers of its own.

Explained in: chapters/17_hardware, section "Serving many".
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_bool, check_list, check_number
from tfbook.blocks import ModelState
from tfbook.generation import (
    GREEDY,
    Sampling,
    check_sampling,
    device_of,
    draw,
    greedy,
    make_generators,
    pad,
)
from tfbook.models import DecoderOnly
from tfbook.serving.invariance import BatchInvariant
from tfbook.serving.paged import PagedCache
from tfbook.serving.pages import OutOfPages, PageTable

__all__ = ["Server", "ServerStats", "Streamed"]

MOST = 2**31
READ = 256  # the most tokens of several prompts, padding included, that one pass reads
ROOM = 64  # tokens that a batch makes before its keys are gathered anew, if it stays together


class Streamed(NamedTuple):
    """A token, as soon as it is there.

    Attributes:
        request: whose it is.
        token: the token.
        last: whether the request has ended with it.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    request: int
    token: int
    last: bool


@dataclass
class ServerStats:
    """What a server has done.

    Attributes:
        steps: passes of the model in which each running sequence got a token.
        slots: tokens that these passes computed, none of them for nothing.
        read: tokens of prompts that were read.
        shared: tokens of prompts that lay in pages of others.
        preempted: how often a sequence lost its pages to an older one, to be read again later.
        most_pages: the most pages that were held at once.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    steps: int = 0
    slots: int = 0
    read: int = 0
    shared: int = 0
    preempted: int = 0
    most_pages: int = 0


@dataclass(eq=False)
class _Request:
    number: int
    tokens: list[int]
    left: int
    stop: frozenset[int]
    sampling: Sampling
    generator: torch.Generator | None
    made: list[int] = field(default_factory=list)


class Server:
    """A decoder that serves many requests at once out of one cache in pages.

    A step reads in those who wait, as long as there is room, short prompts together, and then
    computes one token for each sequence that runs. Where no page is left, the youngest sequence
    gives its pages back and waits in front of the others; it is read again later, and goes on where
    it was.

    Args:
        model: a decoder of :class:`tfbook.attention.MultiHeadAttention`, in evaluation mode.
        n_pages: pages of the cache.
        page_size: tokens of a page.
        max_running: the most sequences of a batch.
        share: whether sequences that begin alike share pages.
        invariant: whether each gets the very bits that it would get alone, which takes longer; see
            :class:`tfbook.serving.BatchInvariant`.

    Attributes:
        stats: what has been done so far, :class:`ServerStats`.

    Raises:
        TypeError: for an argument of a wrong type, or a mixer of another kind.
        ValueError: for a number below 1, or a model in training mode.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))])).eval()
        >>> server = Server(model, n_pages=8, page_size=4)
        >>> numbers = [server.submit([3, 1, 4], 2), server.submit([1, 5], 3)]
        >>> [each.request for each in server.run()]
        [0, 1, 0, 1, 1]

    Source: [yu2022orca], [kwon2023efficient]
    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(
        self,
        model: DecoderOnly,
        *,
        n_pages: int,
        page_size: int = 16,
        max_running: int = 16,
        share: bool = True,
        invariant: bool = False,
    ):
        """Set the cache aside."""
        check_bool("invariant", invariant)
        check_number("max_running", max_running, 1, MOST, whole=True)
        self.table = PageTable(n_pages, page_size, share=share)
        self.cache = PagedCache(model, n_pages, page_size)
        if model.training:
            raise ValueError("model must be in evaluation mode, call model.eval() first; got train")
        self.model, self.max_running, self.stats = model, max_running, ServerStats()
        self.device = device_of(model)
        self._invariant = invariant
        self._sums = BatchInvariant() if invariant else nullcontext()
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._submitted = 0
        self._batch: list[int] = []  # whose keys are gathered in the state
        self._state, self._until = ModelState(), 0  # it has room for that many columns

    @property
    def running(self) -> int:
        """Return how many run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def limit(self) -> int:
        """Return the most positions that one request can have, prompt and new tokens together."""
        room = self.table.n_pages * self.table.page_size
        return min(room, self.model.config.max_len or room)

    @property
    def busy(self) -> bool:
        """Return whether somebody runs or waits."""
        return bool(self._running or self._waiting)

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Collection[int] = (),
        sampling: Sampling = GREEDY,
        seed: int | torch.Generator | None = None,
    ) -> int:
        """Let a request wait for its turn, and return its number.

        Args:
            prompt: tokens, at least one.
            max_new_tokens: the most that are made of it.
            stop: tokens that end it; the one that does is handed out.
            sampling: how its tokens are chosen; when omitted the most likely one.
            seed: makes its draws repeatable, whoever runs beside it: they are those of
                :func:`tfbook.generation.generate` with this seed.

        Raises:
            TypeError: for an argument of a wrong type.
            ValueError: for a number out of range, or a request that could never fit the cache.
        """
        self.check(prompt, max_new_tokens, stop=stop, sampling=sampling)
        generators = make_generators(seed, int(sampling.draws))
        request = _Request(
            self._submitted,
            [int(each) for each in prompt],
            max_new_tokens,
            frozenset(stop),
            sampling,
            generators[0] if generators else None,
        )
        self._submitted += 1
        self._waiting.append(request)
        return request.number

    def check(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Collection[int] = (),
        sampling: Sampling = GREEDY,
    ) -> None:
        """Raise what :meth:`submit` would raise, and change nothing."""
        check_list("prompt", prompt)
        check_list("stop", stop)
        check_number("max_new_tokens", max_new_tokens, 1, MOST, whole=True)
        check_sampling(sampling)
        last = self.model.config.vocab_size - 1
        for token in prompt:
            check_number("a token of prompt", token, 0, last, whole=True)
        for token in stop:
            check_number("a token of stop", token, 0, whole=True)
        longest = len(prompt) + max_new_tokens - 1  # the last one is handed out, never read
        if not len(prompt) or longest > self.limit:
            raise ValueError(
                f"prompt and new tokens must be from 1 to {self.limit} positions, got "
                f"{len(prompt)} and {max_new_tokens}"
            )

    def cancel(self, number: int) -> bool:
        """End a request that nobody waits for any more; return whether it was still there.

        Its place in the batch and its pages are free at once.

        Raises:
            TypeError: if the number is no integer.
        """
        check_number("number", number, whole=True)
        for held in (self._waiting, self._running):
            for request in held:
                if request.number == number:
                    held.remove(request)
                    if held is self._running:
                        self.table.close(number)
                    return True
        return False

    def clear(self) -> None:
        """Forget all requests, as is due when a step was broken off by an error."""
        table = self.table
        self.table = PageTable(table.n_pages, table.page_size, share=table.share)
        self._waiting.clear()
        self._running.clear()
        self._batch, self._state = [], ModelState()

    def run(self) -> Iterator[Streamed]:
        """Yield tokens of all requests as they come, until none runs or waits.

        Requests may be submitted meanwhile.
        """
        while self.busy:
            yield from self.step()

    @torch.no_grad()
    def step(self) -> list[Streamed]:
        """Read in who waits, then compute a token for each that runs; return the new tokens."""
        with self._sums:
            found = self._admit()
            return found + self._advance()

    def _advance(self) -> list[Streamed]:
        """Compute a token for each that runs, in one batch."""
        found, running = [], self._make_room()
        if running:
            tables = [self.table.pages(each.number) for each in running]
            lengths = [self.table.length(each.number) for each in running]
            state = self._gathered([each.number for each in running], tables, lengths)
            tokens = torch.tensor([[each.made[-1]] for each in running], device=self.device)
            logits, self._state = self.model(tokens, state)
            self.cache.add(self._state, tables, lengths)
            for request, length in zip(running, lengths, strict=True):
                if length % self.table.page_size == 0:  # a page is full, and others may find it
                    self.table.settle(request.number)
            self.stats.steps += 1
            self.stats.slots += len(running)
            chosen = self._choose(logits[:, -1], running)
            found = [self._add(each, token) for each, token in zip(running, chosen, strict=True)]
        return found

    def _gathered(self, batch, tables, lengths):
        """Return keys and values of a batch: those of the last step, while it stays together."""
        if batch != self._batch or self._state.seen >= self._until:
            # The last token of each has its page already, and is not in it yet.
            before = [length - 1 for length in lengths]
            self._batch, self._until = batch, max(before) + ROOM
            return self.cache.read(tables, before, room=ROOM)
        return self._state

    def _choose(self, logits: Float[Tensor, "B V"], requests: list[_Request]) -> list[int]:
        """Choose a token for each, by its own rule and its own random numbers."""
        logits, chosen = logits.cpu(), [0] * len(requests)
        alike: dict[Sampling, list[int]] = {}
        for row, request in enumerate(requests):
            alike.setdefault(request.sampling, []).append(row)
        for sampling, rows in alike.items():
            own = [requests[row] for row in rows]
            scores = logits[rows]  # (S, V)
            if sampling != GREEDY:
                scores = sampling(scores, [each.tokens + each.made for each in own])
            if sampling.draws:
                chances = [torch.rand((), generator=r.generator, dtype=torch.float64) for r in own]
                ids = draw(scores, torch.stack(chances))  # (S,)
            else:
                ids = greedy(scores)  # (S,)
            for row, token in zip(rows, ids.tolist(), strict=True):
                chosen[row] = token
        return chosen

    def _admit(self) -> list[Streamed]:
        """Read the prompts of those who wait, as long as there is room, short ones together."""
        found, together = [], []
        while self._waiting and len(self._running) + len(together) < self.max_running:
            request = self._waiting[0]
            tokens = request.tokens + request.made
            shared = None
            if self._go_together([*together, request]):
                with suppress(OutOfPages):
                    shared = self.table.open(request.number, tokens)
            if shared is None:
                if not together:  # there is no page
                    break
                found += self._read(together)  # some may end with their first token
                together = []
                continue
            self._waiting.popleft()
            if shared:
                found += self._read(together) + self._read([request], shared)
                together = []
            else:
                together.append(request)
        return found + self._read(together)

    def _go_together(self, requests: list[_Request]) -> bool:
        """Return whether prompts may be read in one pass; one always may.

        Those that begin alike are read one after the other, so that the second finds the pages of
        the first, and each by itself where a batch must not change a bit.
        """
        if len(requests) == 1:
            return True
        prompts = [each.tokens + each.made for each in requests]
        size = self.table.page_size
        begins = {tuple(prompt[:size]) for prompt in prompts if len(prompt) > size}
        apart = len(begins) == sum(len(prompt) > size for prompt in prompts)
        small = len(prompts) * max(map(len, prompts)) <= READ
        return small and (apart or not self.table.share) and not self._invariant

    def _read(self, requests: list[_Request], shared: int = 0) -> list[Streamed]:
        """Read prompts whose pages are open in one pass, and choose the first token of each."""
        if not requests:
            return []
        prompts = [each.tokens + each.made for each in requests]
        tables, state = [self.table.pages(each.number) for each in requests], ModelState()
        new, _ = pad([prompt[shared:] for prompt in prompts], 0, self.device, left=True)
        if shared:  # of the only one
            held = self.cache.read(tables, [shared])
            state = ModelState(held.layers, shared)  # all of one length: nothing is padded
        elif any(len(prompt) < new.shape[1] for prompt in prompts):
            before = [len(prompt) - new.shape[1] for prompt in prompts]
            state = self.cache.read(tables, before, room=new.shape[1])
        logits, state = self.model(new, state, last=True)
        for row, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            self.cache.write(state, row, shared, tables[row], len(prompt))
            self.table.settle(request.number)
            self.stats.read += len(prompt) - shared
            self.stats.shared += shared
            self._running.append(request)
        self.stats.most_pages = max(self.stats.most_pages, self.table.held)
        chosen = self._choose(logits[:, -1], requests)
        return [self._add(each, token) for each, token in zip(requests, chosen, strict=True)]

    def _make_room(self) -> list[_Request]:
        """Find a place for the last token of each, the oldest first; return who has one."""
        for request in list(self._running):
            while request in self._running:
                try:
                    self.table.append(request.number, request.made[-1])
                    break
                except OutOfPages:
                    self._preempt(self._running[-1])
        self.stats.most_pages = max(self.stats.most_pages, self.table.held)
        return list(self._running)

    def _preempt(self, request: _Request) -> None:
        self.table.close(request.number)
        self._running.remove(request)
        self._waiting.appendleft(request)
        self.stats.preempted += 1

    def _add(self, request: _Request, token: int) -> Streamed:
        """Hand out a token; the pages of who has ended are free."""
        request.made.append(token)
        request.left -= 1
        last = not request.left or token in request.stop
        if last:
            self.table.close(request.number)
            self._running.remove(request)
        return Streamed(request.number, token, last)
