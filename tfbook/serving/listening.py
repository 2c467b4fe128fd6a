"""A socket that clients connect to: so many at once, a thread for each, and all hung up at the end.

Explained in: chapters/17_hardware, section "Serving many".
"""

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

from tfbook.pretrained import Pretrained
from tfbook.serving.completions import BadRequest, error_body
from tfbook.serving.engine import Engine

__all__ = ["Listener", "is_loopback"]


class Listener(ThreadingHTTPServer):
    """Python's server, with bounds, and with what its handlers need.

    Args:
        handler: answers one connection.
        found: the model.
        engine: what runs it.
        address: host and port.
        largest: the most bytes of a body.
        connections: the most at once.
        patience: seconds that a silent client is waited for.

    Raises:
        OSError: if the address is taken or not this machine's.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = sys.platform != "win32"  # where it would share the port with another

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        found: Pretrained,
        engine: Engine,
        address: tuple[str, int],
        *,
        largest: int,
        connections: int,
        patience: float,
    ):
        """Take the address, and answer nobody yet."""
        self.found, self.engine, self.largest, self.patience = found, engine, largest, patience
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler, bind_and_activate=False)
        try:
            self.server_bind()
        except BaseException:
            self.server_close()
            raise
        self.local = is_loopback(self.server_address[0])
        self.answering, self.connected, self._lock = 0, set(), threading.Lock()
        self._places = threading.Semaphore(connections)

    def server_bind(self) -> None:
        """Take the address, and ask nobody for a name of it."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, self.allow_reuse_address)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]

    def process_request(self, request, client_address):
        """Answer in a thread, or that there are too many."""
        if self._places.acquire(blocking=False):
            return super().process_request(request, client_address)
        body = json.dumps(error_body(BadRequest("too many connections: try again", 503))).encode()
        head = f"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        with contextlib.suppress(OSError):
            request.settimeout(0.1)
            request.sendall(head.encode() + body)
        self.shutdown_request(request)

    def process_request_thread(self, request, client_address):
        """Answer a connection, and leave its place."""
        with self._lock:
            self.connected.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self.connected.discard(request)
            self._places.release()

    def hang_up(self) -> None:
        """End all connections, which ends their threads."""
        with self._lock:
            for request in self.connected:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        """Say nothing of clients that have gone; what else goes wrong is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @contextlib.contextmanager
    def answer(self) -> Iterator[None]:
        """Count who is being answered."""
        with self._lock:
            self.answering += 1
        try:
            yield
        finally:
            with self._lock:
                self.answering -= 1


def is_loopback(host: str) -> bool:
    """Return whether an address is one that only this machine reaches.

    Raises:
        TypeError: if it is no string.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("192.0.2.1")
        (True, True, False)

    Explained in: chapters/17_hardware, section "Serving many".
    """
    if not isinstance(host, str):
        raise TypeError(f"host must be a string, got {type(host).__name__}")
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return False
