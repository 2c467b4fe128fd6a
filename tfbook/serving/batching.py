"""Continuous batching: a request joins the batch when there is room, and leaves it when it ends.

Sequences of a batch that is filled once wait for the longest of them. Here the batch is made anew
for every token: whoever has ended is gone, and whoever waits is read in. Each gets the tokens that
it would get alone.

Explained in: chapters/17_hardware, section "Serving many".
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from tfbook._checks import check_list, check_number
from tfbook.blocks import ModelState
from tfbook.models import DecoderOnly
from tfbook.serving.paged import PagedCache
from tfbook.serving.pages import OutOfPages, PageTable

__all__ = ["Server", "ServerStats", "Streamed"]

MOST = 2**31


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
    made: list[int] = field(default_factory=list)


class Server:
    """A decoder that serves many requests at once, greedily, out of one cache in pages.

    A step reads in those who wait, as long as there is room, and then computes one token for each
    sequence that runs. Where no page is left, the youngest sequence gives its pages back and waits
    in front of the others; it is read again later, and goes on where it was.

    Args:
        model: a decoder of :class:`tfbook.attention.MultiHeadAttention`, in evaluation mode.
        n_pages: pages of the cache.
        page_size: tokens of a page.
        max_running: the most sequences of a batch.
        share: whether sequences that begin alike share pages.

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
    ):
        """Set the cache aside."""
        check_number("max_running", max_running, 1, MOST, whole=True)
        self.table = PageTable(n_pages, page_size, share=share)
        self.cache = PagedCache(model, n_pages, page_size)
        if model.training:
            raise ValueError("model must be in evaluation mode, call model.eval() first; got train")
        self.model, self.max_running, self.stats = model, max_running, ServerStats()
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._submitted = 0

    @property
    def busy(self) -> bool:
        """Return whether somebody runs or waits."""
        return bool(self._running or self._waiting)

    def submit(
        self, prompt: Sequence[int], max_new_tokens: int, *, stop: Collection[int] = ()
    ) -> int:
        """Let a request wait for its turn, and return its number.

        Args:
            prompt: tokens, at least one.
            max_new_tokens: the most that are made of it.
            stop: tokens that end it; the one that does is handed out.

        Raises:
            TypeError: for an argument of a wrong type.
            ValueError: for a number out of range, or a request that could never fit the cache.
        """
        check_list("prompt", prompt)
        check_list("stop", stop)
        check_number("max_new_tokens", max_new_tokens, 1, MOST, whole=True)
        prompt, stop = [int(each) for each in prompt], frozenset(stop)
        for token in prompt:
            check_number(
                "a token of prompt", token, 0, self.model.config.vocab_size - 1, whole=True
            )
        for token in stop:
            check_number("a token of stop", token, 0, whole=True)
        longest = len(prompt) + max_new_tokens - 1  # the last one is handed out, never read
        room = self.table.n_pages * self.table.page_size
        limit = min(room, self.model.config.max_len or room)
        if not prompt or longest > limit:
            raise ValueError(
                f"prompt and new tokens must be from 1 to {limit} positions, got {len(prompt)} and "
                f"{max_new_tokens}"
            )
        request = _Request(self._submitted, prompt, max_new_tokens, stop)
        self._submitted += 1
        self._waiting.append(request)
        return request.number

    def run(self) -> Iterator[Streamed]:
        """Yield tokens of all requests as they come, until none runs or waits.

        Requests may be submitted meanwhile.
        """
        while self.busy:
            yield from self.step()

    @torch.no_grad()
    def step(self) -> list[Streamed]:
        """Read in who waits, then compute a token for each that runs; return the new tokens."""
        found = self._admit()
        running = self._make_room()
        if running:
            tables = [self.table.pages(each.number) for each in running]
            lengths = [self.table.length(each.number) for each in running]
            # The last token of each has its page already, and is not in it yet.
            state = self.cache.read(tables, [length - 1 for length in lengths])
            tokens = torch.tensor([[each.made[-1]] for each in running])
            logits, state = self.model(tokens, state)
            for row, (request, length) in enumerate(zip(running, lengths, strict=True)):
                self.cache.write(state, row, length - 1, tables[row], length)
                self.table.settle(request.number)
            self.stats.steps += 1
            self.stats.slots += len(running)
            best = logits[:, -1].argmax(-1).tolist()
            found += [self._add(each, token) for each, token in zip(running, best, strict=True)]
        return found

    def _admit(self) -> list[Streamed]:
        """Read the prompts of those who wait, as long as there is room."""
        found = []
        while self._waiting and len(self._running) < self.max_running:
            request = self._waiting[0]
            tokens = request.tokens + request.made
            try:
                shared = self.table.open(request.number, tokens)
            except OutOfPages:
                break
            self._waiting.popleft()
            pages, state = self.table.pages(request.number), ModelState()
            if shared:
                held = self.cache.read([pages], [shared])
                state = ModelState(held.layers, shared)  # all of one length: nothing is padded
            logits, state = self.model(torch.tensor([tokens[shared:]]), state, last=True)
            self.cache.write(state, 0, shared, pages, len(tokens))
            self.table.settle(request.number)
            self.stats.read += len(tokens) - shared
            self.stats.shared += shared
            self._running.append(request)
            self.stats.most_pages = max(self.stats.most_pages, self.table.held)
            found.append(self._add(request, int(logits[0, -1].argmax())))
        return found

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
