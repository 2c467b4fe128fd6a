"""An HTTP server in front of the scheduler: the usual interface of completions, on the loopback.

Python's own server, with a thread for each connection; none of them computes. It speaks plain HTTP
and knows no keys, so it listens to this machine alone unless one says otherwise, and answers no
web page: a request has to say that it brings JSON, and to name a host that is its own.

Explained in: chapters/17_hardware, section "Serving many".
"""

import threading
import time
from collections.abc import Callable

from tfbook._checks import check_number
from tfbook.pretrained import Pretrained
from tfbook.serving.answering import Handler
from tfbook.serving.engine import Engine
from tfbook.serving.listening import Listener

__all__ = ["Endpoint"]

PARTING = 2.0  # seconds for answers to be sent when the server ends


class Endpoint:
    """An HTTP server that answers completions; close it at the end, or use it as a context.

    ``POST /v1/completions`` continues texts, ``POST /v1/chat/completions`` answers a conversation,
    ``GET /v1/models`` names the model, and ``GET /health`` says whether requests are taken and how
    many are under way.

    Errors are JSON, ``{"error": {"message", "type", "param", "code"}}``. A request beyond the
    queue gets 429, one beyond the connections or while it ends 503, both with ``Retry-After``. When
    a client goes away, its place in the batch and its pages are free.

    Args:
        found: the model and its tokenizer, a decoder.
        engine: what runs it.
        host: the address to listen at; other machines reach another than the loopback.
        port: the number to listen at, 0 for any that is free.
        largest: the most bytes of a request's body.
        connections: the most clients at once.
        patience: seconds that a silent client is waited for.

    Attributes:
        url: where clients find it, such as "http://127.0.0.1:8000/v1".

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.
        OSError: if the address is taken or not this machine's.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(
        self,
        found: Pretrained,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        largest: int = 2**20,
        connections: int = 128,
        patience: float = 30.0,
    ):
        """Take the address; nobody is answered before :meth:`start`."""
        for name, value, kind in (("found", found, Pretrained), ("engine", engine, Engine)):
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
        if not isinstance(host, str):
            raise TypeError(f"host must be a string, got {type(host).__name__}")
        check_number("port", port, 0, 65535, whole=True)
        check_number("largest", largest, 1, 2**31, whole=True)
        check_number("connections", connections, 1, 2**16, whole=True)
        check_number("patience", patience, above=0)
        self.engine = engine
        bounds = {"largest": largest, "connections": connections, "patience": patience}
        self._listener = Listener(Handler, found, engine, (host, port), **bounds)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Return where clients find it."""
        host, port = self._listener.server_address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def start(self) -> "Endpoint":
        """Answer clients, in threads of their own; return itself."""
        self._listener.server_activate()
        self._thread = threading.Thread(
            target=self._listener.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="tfbook endpoint",
            daemon=True,
        )
        self._thread.start()
        return self

    def close(self, grace: float = 0.0) -> None:
        """Take no more requests, finish those under way, and give the address back.

        Args:
            grace: seconds after which answers that have not ended are broken off.

        Raises:
            TypeError: if it is no number.
            ValueError: if it is negative.
        """
        listener = self._listener
        self.engine.close(grace)  # what comes now gets 503
        _wait(lambda: not listener.answering)
        if self._thread is not None:
            listener.shutdown()
            self._thread.join()
        listener.server_close()
        listener.hang_up()
        _wait(lambda: not listener.connected)

    def __enter__(self) -> "Endpoint":
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Close it without waiting for what is under way."""
        self.close()


def _wait(done: Callable[[], bool]) -> None:
    """Wait for what takes a moment, but not forever."""
    end = time.monotonic() + PARTING
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
