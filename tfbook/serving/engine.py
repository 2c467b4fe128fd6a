"""A thread that runs the scheduler, and tickets by which other threads ask it and get tokens.

The scheduler of :class:`tfbook.serving.Server` belongs to one thread. Whoever answers a client has
a thread of its own, asks here, and waits for its tokens; it may go away at any time.

Explained in: chapters/17_hardware, section "Serving many".
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from tfbook._checks import check_number
from tfbook.generation import GREEDY, Sampling
from tfbook.serving.batching import Server, Streamed

__all__ = ["Engine", "Overloaded", "Stopped", "Ticket"]

MOST = 2**31
GLANCE = 0.1  # seconds after which one who waits looks whether there is still somebody to answer


class Overloaded(RuntimeError):
    """As many requests are under way as there is room for: ask again later.

    Explained in: chapters/17_hardware, section "Serving many".
    """


class Stopped(RuntimeError):
    """No more tokens come: the engine was closed, or the model failed.

    Explained in: chapters/17_hardware, section "Serving many".
    """


class Ticket:
    """A request under way: its tokens as they are made.

    Made by :meth:`Engine.ask`.

    Attributes:
        prompt: the tokens to begin with.
        ended: whether the last token has been handed out.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(self, prompt: Sequence[int], choices: dict[str, object]):
        """Wait for a number."""
        self.prompt, self.choices, self.ended = prompt, choices, False
        self.number: int | None = None
        self._come: queue.SimpleQueue[Streamed | Exception] = queue.SimpleQueue()

    def tokens(self, glance: Callable[[], object] | None = None) -> Iterator[int]:
        """Yield the tokens as they come.

        Args:
            glance: called again and again meanwhile, ten times a second where nothing comes; what
                it raises ends the waiting.

        Raises:
            Stopped: if no more come though the request has not ended.
        """
        while not self.ended:
            if glance is not None:
                glance()
            try:
                come = self._come.get(timeout=None if glance is None else GLANCE)
            except queue.Empty:
                continue
            if isinstance(come, Exception):
                raise come
            self.ended = come.last
            yield come.token


class Engine:
    """A thread in which a server computes, for others that ask.

    Close it at the end, or use it as a context: ``with Engine(server) as engine``.

    Args:
        server: the scheduler; nobody else may use it meanwhile.
        queue: how many requests may wait beside those that run.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))])).eval()
        >>> with Engine(Server(model, n_pages=8, page_size=4)) as engine:
        ...     (ticket,) = engine.ask([[3, 1, 4]], 5)
        ...     len(list(ticket.tokens()))
        5

    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(self, server: Server, *, queue: int = 64):
        """Start the thread."""
        if not isinstance(server, Server):
            raise TypeError(f"server must be a Server, got {type(server).__name__}")
        check_number("queue", queue, 0, MOST, whole=True)
        self.server, self.most = server, server.max_running + queue
        self._changed = threading.Condition()
        self._asked: list[Ticket] = []  # not handed to the server yet
        self._given_up: list[Ticket] = []
        self._under_way: dict[int, Ticket] = {}
        self._closing: float | None = None  # when what is under way is given up
        self._thread = threading.Thread(target=self._work, name="tfbook engine", daemon=True)
        self._thread.start()

    @property
    def open(self) -> bool:
        """Return whether it can be asked."""
        return self._closing is None and self._thread.is_alive()

    @property
    def under_way(self) -> int:
        """Return how many requests run or wait."""
        with self._changed:
            return len(self._asked) + len(self._under_way)

    def ask(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        stop: Collection[int] = (),
        sampling: Sampling = GREEDY,
        seeds: Sequence[int] | None = None,
    ) -> list[Ticket]:
        """Ask for continuations, all of them or none.

        Args:
            prompts: tokens of each.
            max_new_tokens: of each, at most.
            stop: tokens that end a text; the one that does is handed out.
            sampling: how tokens are chosen.
            seeds: one for each prompt; chosen by chance when omitted.

        Returns:
            A ticket for each prompt.

        Raises:
            TypeError: for an argument of a wrong type.
            ValueError: for a number out of range, or what could never fit the cache.
            Overloaded: if too many are under way.
            Stopped: if the engine is closed.
        """
        choices = {"stop": stop, "sampling": sampling}
        for prompt in prompts:
            self.server.check(prompt, max_new_tokens, **choices)
        choices["max_new_tokens"] = max_new_tokens
        seeds = [None] * len(prompts) if seeds is None else list(seeds)
        if len(seeds) != len(prompts):
            raise ValueError(f"seeds must be {len(prompts)}, one for each, got {len(seeds)}")
        for seed in seeds:
            if seed is not None:
                check_number("a seed of seeds", seed, 0, whole=True)
        tickets = [
            Ticket(prompt, choices | {"seed": seed})
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        with self._changed:
            if not self.open:
                raise Stopped("the server is stopping and takes no more requests")
            taken = len(self._asked) + len(self._under_way)
            if taken + len(tickets) > self.most:
                raise Overloaded(
                    f"{taken} requests are under way and {self.most} may be: ask again later"
                )
            self._asked += tickets
            self._changed.notify()
        return tickets

    def give_up(self, tickets: Sequence[Ticket]) -> None:
        """Let nobody compute any more for these; what has ended stays as it is."""
        with self._changed:
            self._given_up += [ticket for ticket in tickets if not ticket.ended]
            self._changed.notify()

    def close(self, grace: float = 0.0) -> None:
        """Take no more requests, finish those under way, and end the thread.

        Args:
            grace: seconds after which those that have not ended are given up.

        Raises:
            TypeError: if it is no number.
            ValueError: if it is negative.
        """
        check_number("grace", grace, 0)
        with self._changed:
            self._closing = time.monotonic() + grace
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> "Engine":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it without waiting for what is under way."""
        self.close()

    def _work(self):
        """Hand requests in and tokens out, until it is closed."""
        error = Stopped("the server was stopped before the answer had ended")
        try:
            while self._hand_over():
                try:
                    self._hand_out(self.server.step())
                except Exception as failure:  # of the model: those under way fail, others may come
                    self._fail(Stopped(f"the model failed: {failure}"))
        finally:
            with self._changed:
                self._closing = time.monotonic()
            self._fail(error)

    def _hand_over(self):
        """Wait for something to do, tell the server what was asked; return whether to go on."""
        with self._changed:
            while not (self._asked or self._given_up or self.server.busy or self._closing):
                self._changed.wait()
            if self._closing is not None:
                left = self._asked or self._under_way
                if not left or time.monotonic() >= self._closing:
                    return False
            for ticket in self._given_up:
                if ticket in self._asked:
                    self._asked.remove(ticket)
                elif self._under_way.pop(ticket.number, None):
                    self.server.cancel(ticket.number)
            for ticket in self._asked:
                ticket.number = self.server.submit(ticket.prompt, **ticket.choices)
                self._under_way[ticket.number] = ticket
            self._asked, self._given_up = [], []
        return True

    def _hand_out(self, come):
        with self._changed:
            for each in come:
                ticket = self._under_way[each.request]
                if each.last:
                    del self._under_way[each.request]
                ticket._come.put(each)

    def _fail(self, error):
        """End all that is under way with an error."""
        with self._changed:
            self.server.clear()
            for ticket in (*self._asked, *self._under_way.values()):
                ticket._come.put(error)
            self._asked, self._under_way = [], {}
