"""The usual interface of completions: what is read from a request, and what is written back.

``POST /v1/completions`` continues texts and ``POST /v1/chat/completions`` answers a conversation.
Here is what stands in their bodies, without any network; names and defaults are those of the
interface that clients and other servers have in common. What is not known is refused, so that
nobody believes in a choice that has no effect.

Explained in: chapters/17_hardware, section "Serving many".
"""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tfbook.generation import Sampling
from tfbook.pretrained import Pretrained

__all__ = ["BadRequest", "CompletionRequest", "error_body", "read_completion"]

TOKENS, CHAT_TOKENS = 16, 512  # where nobody says how many
CHOICES = 16  # the most that one request may ask for
STOPS = 4
SEEDS = 2**62
# Bounds of numbers, and whether they must be whole.
NUMBERS = {
    "temperature": (0, 2, False),
    "top_p": (0, 1, False),
    "min_p": (0, 1, False),
    "repetition_penalty": (0.01, 100, False),
    "top_k": (1, 2**31, True),
    "max_tokens": (1, 2**31, True),
    "max_completion_tokens": (1, 2**31, True),
    "n": (1, CHOICES, True),
    "seed": (-(2**63), 2**64 - 1, True),
}
OTHERS = {"model", "stop", "stream", "stream_options"}
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Choices that have one value here.
FIXED = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "best_of": 1,
    "echo": False,
    "logprobs": False,
    "logit_bias": {},
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
}
ROLES = {"developer": "system"}


class BadRequest(ValueError):
    """A request that cannot be answered, in words for the one who asked.

    Args:
        message: what is wrong.
        status: of HTTP.
        param: which part of the request, if it is one.
        code: a name for the fault, for programs.
        headers: that the answer has besides.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        """Keep them."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})


def error_body(error: BadRequest) -> dict[str, object]:
    """Return what an answer says of an error, in the usual shape.

    Raises:
        TypeError: if it is no :class:`BadRequest`.

    Example:
        >>> error_body(BadRequest("n must be at least 1, got 0", param="n"))["error"]["param"]
        'n'

    Explained in: chapters/17_hardware, section "Serving many".
    """
    if not isinstance(error, BadRequest):
        raise TypeError(f"error must be a BadRequest, got {type(error).__name__}")
    kind = {429: "rate_limit_error"}.get(error.status, "invalid_request_error")
    kind = "server_error" if error.status >= 500 else kind
    said = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return {"error": said}


@dataclass(frozen=True)
class CompletionRequest:
    """What somebody asks for, read and checked, and the bodies of its answer.

    Attributes:
        model: the model's name.
        chat: whether it is a conversation.
        prompts: tokens of each choice.
        max_tokens: of each choice, at most.
        sampling: how tokens are chosen.
        seeds: one for each choice.
        stops: strings that end a text.
        stream: whether the answer comes in pieces.
        counted: whether a last piece says how many tokens there were.
        asked: how many tokens were read, each prompt once.
        name: of the answer.
        created: when, in seconds since 1970.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    model: str
    chat: bool
    prompts: list[list[int]]
    max_tokens: int
    sampling: Sampling
    seeds: list[int]
    stops: list[str]
    stream: bool
    counted: bool
    asked: int
    name: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, texts: Sequence[tuple[str, str]], made: int) -> dict[str, object]:
        """Return the body of an answer that comes at once.

        Args:
            texts: the text of each choice, and why it ended: "stop" or "length".
            made: how many tokens were made.
        """
        choices = []
        for index, (text, reason) in enumerate(texts):
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {}
            choices.append(self._choice(index, said or {"text": text}, reason))
        return self._body(choices, "chat.completion") | {"usage": self._usage(made)}

    def begin(self, index: int) -> list[dict[str, object]]:
        """Return what comes before the pieces of a choice."""
        return self._delta(index, {"role": "assistant", "content": ""}) if self.chat else []

    def piece(self, index: int, text: str) -> list[dict[str, object]]:
        """Return the body of a piece of a choice."""
        return self._delta(index, {"content": text} if self.chat else {"text": text})

    def end(self, index: int, reason: str) -> list[dict[str, object]]:
        """Return what says why a choice has ended."""
        return self._delta(index, {} if self.chat else {"text": ""}, reason)

    def count(self, made: int) -> list[dict[str, object]]:
        """Return what says how many tokens there were, if that was asked for."""
        body = self._body([], "chat.completion.chunk") | {"usage": self._usage(made)}
        return [body] if self.counted else []

    def _delta(self, index, said, reason=None):
        choice = self._choice(index, {"delta": said} if self.chat else said, reason)
        return [self._body([choice], "chat.completion.chunk")]

    def _choice(self, index, said, reason):
        return {"index": index, **said, "logprobs": None, "finish_reason": reason}

    def _body(self, choices, kind):
        kind, prefix = (kind, "chatcmpl") if self.chat else ("text_completion", "cmpl")
        names = {"id": f"{prefix}-{self.name}", "object": kind, "created": self.created}
        return names | {"model": self.model, "choices": choices}

    def _usage(self, made):
        total = self.asked + made
        return {"prompt_tokens": self.asked, "completion_tokens": made, "total_tokens": total}


def read_completion(
    body: object, found: Pretrained, *, chat: bool, limit: int
) -> CompletionRequest:
    """Read the body of a request.

    Args:
        body: what the JSON holds.
        found: the model that is asked.
        chat: whether the body is that of a conversation.
        limit: the most tokens of a prompt and its continuation together.

    Returns:
        What is asked for, with tokens for texts.

    Raises:
        BadRequest: if something is missing, unknown or out of range; the message says what.

    Explained in: chapters/17_hardware, section "Serving many".
    """
    if not isinstance(body, Mapping):
        _refuse(f"the body must be a JSON object, got {_kind(body)}")
    known = {*NUMBERS, *OTHERS, *IGNORED, *FIXED, "messages" if chat else "prompt"}
    for name in body:
        if name not in known:
            _refuse(f"{name[:60]!r} is not known here", name[:60], "unknown_parameter")
    given = {name: value for name, value in body.items() if value is not None}
    for name, only in FIXED.items():
        value = given.get(name, only)
        if value != only or isinstance(value, bool) != isinstance(only, bool):
            _refuse(f"{name} other than {only!r} is not supported", name, "unsupported_parameter")
    _check_model(given, found)
    numbers = {name: _number(name, given[name]) for name in NUMBERS if name in given}
    prompts = _messages(given, found) if chat else _prompts(given, found)
    n = numbers.get("n", 1)
    if n * len(prompts) > CHOICES:
        _refuse(f"at most {CHOICES} choices at once, got {n} of {len(prompts)} prompts", "n")
    most = _most(numbers, max(map(len, prompts)), chat, limit)
    seed = numbers.get("seed", secrets.randbelow(SEEDS))
    stream, counted = _stream(given)
    return CompletionRequest(
        model=found.name,
        chat=chat,
        prompts=[prompt for prompt in prompts for _ in range(n)],
        max_tokens=most,
        sampling=_sampling(numbers),
        seeds=[(seed + i) % 2**64 for i in range(n * len(prompts))],
        stops=_stops(given.get("stop", [])),
        stream=stream,
        counted=counted,
        asked=sum(map(len, prompts)),
    )


def _check_model(given, found):
    if "model" not in given:
        _refuse("model is missing", "model", "missing_parameter")
    if given["model"] != found.name:
        asked = str(given["model"])[:60]
        raise BadRequest(
            f"there is no model {asked!r} here, only {found.name!r}",
            404,
            param="model",
            code="model_not_found",
        )


def _number(name, value):
    low, high, whole = NUMBERS[name]
    wanted = "an integer" if whole else "a number"
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits:
        _refuse(f"{name} must be {wanted}, got {_kind(value)}", name)
    if not (math.isfinite(value) if isinstance(value, float) else True) or not low <= value <= high:
        _refuse(f"{name} must be from {low} to {high}, got {_short(value)}", name)
    return value


def _sampling(numbers):
    """Return how tokens are chosen; at temperature 0 the cuts have nothing to cut."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    chosen = {name: numbers[name] for name in names if name in numbers}
    if chosen.get("temperature") == 0:
        chosen = {name: chosen[name] for name in chosen if name in (names[0], names[-1])}
    if chosen.get("min_p") == 0:  # which cuts nothing
        del chosen["min_p"]
    try:
        return Sampling(**chosen)
    except ValueError as error:
        _refuse(str(error), next((name for name in chosen if name in str(error)), None))


def _most(numbers, longest, chat, limit):
    """Return how many tokens to make at most."""
    left = limit + 1 - longest  # the last token is handed out, and never read
    names = ("max_completion_tokens", "max_tokens")
    name = next((name for name in names if name in numbers), None)
    most = numbers[name] if name else max(1, min(left, CHAT_TOKENS if chat else TOKENS))
    if most > left:
        _refuse(
            f"a text may have {limit:,} tokens here, got a prompt of {longest:,} and {most:,} to "
            "be made",
            "messages" if chat else name or "prompt",
            "context_length_exceeded",
        )
    return most


def _stream(given):
    """Return whether the answer is to come in pieces, and whether they are counted at the end."""
    stream, options = given.get("stream", False), given.get("stream_options", {})
    if not isinstance(stream, bool):
        _refuse(f"stream must be true or false, got {_kind(stream)}", "stream")
    fits = isinstance(options, Mapping) and set(options) <= {"include_usage"}
    counted = options.get("include_usage", False) if fits else None
    if not isinstance(counted, bool) or (options and not stream):
        _refuse(
            'stream_options must be {"include_usage": true or false}, beside stream: true',
            "stream_options",
        )
    return stream, counted


def _stops(value):
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        _refuse("stop must be a string or a list of strings, none of them empty", "stop")
    if len(stops) > STOPS:
        _refuse(f"stop must hold at most {STOPS} strings, got {len(stops)}", "stop")
    return stops


def _prompts(given, found):
    """Return the tokens of each prompt."""
    value = given.get("prompt")
    if value is None:
        _refuse("prompt is missing", "prompt", "missing_parameter")
    several = isinstance(value, list) and value and isinstance(value[0], str | list)
    prompts = value if several else [value]
    if len(prompts) > CHOICES:
        _refuse(f"at most {CHOICES} prompts at once, got {len(prompts)}", "prompt")
    return [_tokens(prompt, found) for prompt in prompts]


def _tokens(prompt, found):
    size = found.config.vocab_size
    if isinstance(prompt, str):
        try:
            return found.encode(prompt)[0].tolist()
        except ValueError as error:
            _refuse(str(error), "prompt")
    whole = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not whole or not prompt or not all(0 <= token < size for token in prompt):
        _refuse(
            "prompt must be a text, a list of texts, or tokens, at least one and each from 0 to "
            f"{size - 1}",
            "prompt",
        )
    return prompt


def _messages(given, found):
    """Return the tokens of a conversation, as the only prompt."""
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse("messages must be a list of messages, at least one", "messages")
    turns = [_message(i, message) for i, message in enumerate(messages)]
    try:
        return [found.encode_chat(turns)[0].tolist()]
    except ValueError as error:
        _refuse(str(error), "messages")


def _message(i, message):
    where = f"messages[{i}]"
    fits = isinstance(message, Mapping) and {"role", "content"} <= set(message)
    if not fits or not set(message) <= {"role", "content", "name"}:
        _refuse(f"{where} must have a role and a content, and nothing else but a name", where)
    role, content = message["role"], message["content"]
    if isinstance(content, list):  # parts, of which texts are known here
        texts = [isinstance(part, Mapping) and part.get("type") == "text" for part in content]
        if not all(texts) or not all(isinstance(part.get("text"), str) for part in content):
            _refuse(f"{where} must be made of text", where)
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not isinstance(role, str):
        _refuse(f"{where} must have a role and a content that are strings", where)
    return {"role": ROLES.get(role, role), "content": content}


def _kind(value):
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    numbers = {int: "an integer", float: "a number", type(None): "null"}
    return (names | numbers).get(type(value), type(value).__name__)


def _short(value):
    return str(value)[:40] if abs(value) < 10**30 else "a larger number"


def _refuse(message: str, param: str | None = None, code: str | None = None) -> NoReturn:
    raise BadRequest(message, param=param, code=code)
