"""One connection: requests are read, checked, asked of the engine, and answered as its tokens come.

Explained in: chapters/17_hardware, section "Serving many".
"""

import contextlib
import json
import select
import socket
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from tfbook.generation import pieces
from tfbook.serving.completions import (
    BadRequest,
    CompletionRequest,
    error_body,
    read_completion,
)
from tfbook.serving.endings import Until
from tfbook.serving.engine import Overloaded, Stopped, Ticket
from tfbook.serving.listening import Listener, is_loopback

__all__ = ["Handler"]

AGAIN = {"Retry-After": "1"}
CHATS, TEXTS, MODELS, HEALTH = "/v1/chat/completions", "/v1/completions", "/v1/models", "/health"
READ_ON = 16  # times the largest body that are read and thrown away, so that the answer arrives


class _Gone(ConnectionError):
    """Nobody is there any more to be answered."""


class Handler(BaseHTTPRequestHandler):
    """What a client of :class:`tfbook.serving.Endpoint` talks to.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    protocol_version = "HTTP/1.1"
    server_version = "tfbook"
    disable_nagle_algorithm = True
    server: Listener

    def setup(self):
        """Bound how long a silent client is waited for."""
        self.timeout = self.server.patience
        super().setup()

    def version_string(self):
        """Name the package, and not Python's version."""
        return self.server_version

    def log_message(self, *_):
        """Say nothing."""

    def send_error(self, code, message=None, explain=None):
        """Answer what is no HTTP in the usual shape too."""
        self.close_connection, self.begun = True, False
        self.request_version = "HTTP/1.0"  # so that a status is sent, whatever it was
        self._send_error(BadRequest(message or "no HTTP that is understood", int(code)))

    def do_GET(self):
        """Answer what is asked for."""
        self._respond("GET")

    def do_POST(self):
        """Answer what is asked with a body."""
        self._respond("POST")

    def do_other(self):
        """Refuse what is neither, in words."""
        self._respond("other")

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_other

    def _respond(self, method):
        self.begun = False
        try:
            with self.server.answer():
                self._route(method)
        except BadRequest as error:
            self._send_error(error)
        except Overloaded as error:
            self._send_error(BadRequest(str(error), 429, headers=AGAIN))
        except Stopped as error:
            self.close_connection = True
            failed = self.server.engine.open
            self._send_error(BadRequest(str(error), 500 if failed else 503, headers=AGAIN))
        except OSError:  # the client has gone, or is silent
            self.close_connection = True
        except Exception as error:
            self.close_connection = True
            self._send_error(BadRequest(f"{type(error).__name__} while answering", 500))
            raise

    def _route(self, method):
        path = unquote(urlsplit(self.path).path)
        posted = path in (CHATS, TEXTS)
        body = self._body()  # read in any case, or the next request would begin with it
        if self.server.local and not self._is_own_host():
            raise BadRequest(f"this is no server of {self.headers['Host']!r}"[:200], 421)
        if posted or path in (MODELS, HEALTH) or path.startswith(MODELS + "/"):
            wanted = "POST" if posted else "GET"
            if method != wanted:
                raise BadRequest(f"{path[:60]} takes {wanted}", 405, headers={"Allow": wanted})
        if posted:
            self._complete(self._json(body), path == CHATS)
        elif path == MODELS:
            self._send({"object": "list", "data": [self._model()]})
        elif path.startswith(MODELS + "/"):
            name = path.removeprefix(MODELS + "/")
            if name != self.server.found.name:
                message = f"there is no model {name[:60]!r} here"
                raise BadRequest(message, 404, param="model", code="model_not_found")
            self._send(self._model())
        elif path == HEALTH:
            engine = self.server.engine
            status = "ok" if engine.open else "stopping"
            found = {"status": status, "running": engine.server.running}
            found["waiting"] = max(0, engine.under_way - found["running"])
            self._send(found, 200 if engine.open else 503)
        else:
            raise BadRequest(f"there is nothing at {path[:100]!r}", 404)

    def _model(self):
        own = {"object": "model", "created": 0, "owned_by": "tfbook"}
        return {"id": self.server.found.name} | own

    def _is_own_host(self):
        """Tell whether the request names this machine: a page of another site would name that."""
        host = urlsplit("//" + (self.headers["Host"] or "localhost")).hostname or ""
        return host == "localhost" or is_loopback(host)

    def _body(self):
        """Return the bytes of the body, all of which must be announced."""
        length, chunked = self.headers["Content-Length"], self.headers["Transfer-Encoding"]
        if length is None and chunked is None:
            return b""
        if chunked is not None or not (length.isascii() and length.isdigit()):
            self.close_connection = True
            raise BadRequest("a body needs a Content-Length", 411)
        length = int(length[:20])
        if length > self.server.largest:
            self.close_connection = True
            self._throw_away(min(length, READ_ON * self.server.largest))
            limit = self.server.largest
            raise BadRequest(f"a body may have {limit:,} bytes, got {length:,}", 413)
        body = self.rfile.read(length)
        if len(body) < length:
            raise _Gone
        return body

    def _throw_away(self, length):
        while length > 0 and (some := self.rfile.read(min(length, 2**16))):
            length -= len(some)

    def _json(self, body):
        kind = self.headers.get_content_type()
        if "Content-Type" not in self.headers or kind != "application/json":
            raise BadRequest("the Content-Type must be application/json", 415)
        try:
            return json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is no JSON: {str(error)[:200]}", code="bad_json") from None

    def _complete(self, body, chat):
        found, engine = self.server.found, self.server.engine
        asked = read_completion(body, found, chat=chat, limit=engine.server.limit)
        tickets = engine.ask(
            asked.prompts,
            asked.max_tokens,
            stop=found.eos_ids,
            sampling=asked.sampling,
            seeds=asked.seeds,
        )
        try:
            if asked.stream:
                self._stream(asked, tickets)
            else:
                answers = [self._answer(asked, ticket) for ticket in tickets]
                texts = [("".join(answer), answer.reason) for answer in answers]
                self._send(asked.whole(texts, sum(answer.made for answer in answers)))
        finally:
            engine.give_up(tickets)  # what has ended stays as it is

    def _answer(self, asked: CompletionRequest, ticket: Ticket) -> "_Answer":
        server = self.server
        return _Answer(asked, ticket, server.found, server.engine, self._glance)

    def _stream(self, asked: CompletionRequest, tickets: list[Ticket]):
        """Send pieces as they come; of several choices one after the other, though made at once."""
        self._send_head(200, {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        made = 0
        try:
            for index, ticket in enumerate(tickets):
                self._send_events(asked.begin(index))
                answer = self._answer(asked, ticket)
                for piece in answer:
                    self._send_events(asked.piece(index, piece))
                self._send_events(asked.end(index, answer.reason))
                made += answer.made
            self._send_events(asked.count(made))
        except Stopped as error:  # too late for another status
            self._send_events([error_body(BadRequest(str(error), 503))])
        self._send_chunk(b"data: [DONE]\n\n")
        self._send_chunk(b"")

    def _glance(self):
        """Raise if the client has closed its connection."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        if ready and not self.connection.recv(1, socket.MSG_PEEK):
            raise _Gone

    def _send_error(self, error: BadRequest):
        if self.begun:  # an answer has begun, and can only be broken off
            self.close_connection = True
            return
        with contextlib.suppress(OSError):
            self._send(error_body(error), error.status, error.headers)

    def _send(self, body, status=200, headers=None):
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | (headers or {})
        self._send_head(status, headers | {"Content-Length": str(len(data))})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send_head(self, status, headers):
        self.begun = True
        self.send_response(status)
        self._chunked = "Content-Length" not in headers and self.request_version == "HTTP/1.1"
        if self._chunked:
            headers = headers | {"Transfer-Encoding": "chunked"}
        elif "Content-Length" not in headers:
            self.close_connection = True  # the end of the connection is that of the answer
        if self.close_connection:
            headers = headers | {"Connection": "close"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_events(self, bodies: Iterable[dict[str, object]]):
        for body in bodies:
            self._send_chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def _send_chunk(self, data: bytes):
        """Send a part of an answer whose length nobody knows yet; an empty one ends it."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)


class _Answer:
    """The text of one choice in pieces; behind them, why it ended and how many tokens it took."""

    def __init__(self, asked, ticket, found, engine, glance):
        self.ticket, self.engine, self.ends = ticket, engine, found.eos_ids
        self.made, self.last = 0, None
        self.text = Until(pieces(self._count(ticket.tokens(glance)), found.decode), asked.stops)

    def _count(self, tokens):
        for token in tokens:
            self.made, self.last = self.made + 1, token
            yield token

    def __iter__(self):
        yield from self.text
        self.engine.give_up([self.ticket])  # where a string ended it

    @property
    def reason(self):
        return "stop" if self.text.met is not None or self.last in self.ends else "length"


def _no_number(name: str):
    raise ValueError(f"{name} is no JSON")
