"""Completions over HTTP: what clients get, what is refused, and what is left when they have gone.

Most tests ask a small model with random weights, in float64, whose steps they may count out one by
one: nothing waits for a time to pass. All listen on the loopback, at a port that is free.
"""

import contextlib
import dataclasses
import http.client
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import fresh
import pytest
import torch
from fresh import Mutant
from hypothesis import given
from hypothesis import strategies as st

import tfbook.__main__ as command
from tfbook import data, pretrained, serving
from tfbook.generation import Sampling, generate, pieces

openai = pytest.importorskip("openai")

SECONDS = 60  # after which something hangs; nothing here takes long
LONG = 400
TEXTS = ["It is a truth universally acknowledged, that a single man must be in want. é ø"]


def until(true):
    """Wait for something that another thread or process brings about."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def make_tiny(package="tfbook"):
    """A model with random weights, and a tokenizer that knows turns of a conversation."""
    m, kit = (importlib.import_module(f"{package}.{room}") for room in ("models", "pretrained"))
    tokenizer = data.byte_pair_tokenizer(TEXTS, vocab_size=270)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    layer = m.Layer(m.Attention(2, position=m.Rotary()), m.FFN(14))
    vocab = tokenizer.get_vocab_size()
    config = m.TransformerConfig(vocab, 12, decoder=[layer] * 2, max_len=LONG)
    torch.manual_seed(3)
    model = m.build(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.6 * torch.randn(weight.shape) + (weight.ndim == 1))
    end = tokenizer.token_to_id("<|im_end|>")
    return kit.Pretrained("tiny", model, tokenizer, config, (end,), chat_template="<|im_start|>")


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


def counted(room):
    """Return a scheduler that takes a step only when it is let."""

    class Counted(room.Server):
        def __init__(self, *args, **choices):
            super().__init__(*args, **choices)
            self.turns, self.fails = threading.Semaphore(0), False

        def step(self):
            assert self.turns.acquire(timeout=SECONDS)
            if self.fails:
                raise ValueError("no numbers any more")
            return super().step()

    return Counted


@contextlib.contextmanager
def serve(found, *, by_count=False, slots=4, queue=8, room=serving, **choices):
    """Serve a model, with whatever it takes to ask and to look inside."""
    kind = counted(room) if by_count else room.Server
    scheduler = kind(found.model, n_pages=400, page_size=4, max_running=slots)
    with room.Engine(scheduler, queue=queue) as engine:
        endpoint = room.Endpoint(found, engine, port=0, **choices)
        with endpoint:
            host, port = endpoint.url.removeprefix("http://").removesuffix("/v1").split(":")
            client = openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0)
            with client, contextlib.ExitStack() as sockets:

                def connect():
                    made = socket.create_connection((host, int(port)), timeout=SECONDS)
                    return sockets.enter_context(made)

                yield SimpleNamespace(
                    connect=connect,
                    engine=engine,
                    scheduler=scheduler,
                    endpoint=endpoint,
                    client=client,
                    address=(host, int(port)),
                )
            if by_count:  # for what is still under way
                scheduler.turns.release(10**6)


def direct(found, prompt, count, **choices):
    """Return the text of a prompt, by generation itself."""
    g = importlib.import_module(type(found).__module__.split(".")[0] + ".generation")
    sampling = g.Sampling(temperature=choices.pop("temperature", 1.0), **choices.pop("cuts", {}))
    ids = prompt if isinstance(prompt, list) else found.encode(prompt)[0].tolist()
    choices |= {"sampling": sampling, "stop": found.eos_ids}
    made = g.generate(found.model, ids, max_new_tokens=count, **choices)
    return "".join(pieces(made.tokens[0], found.decode))


def raw(address, text):
    """Send bytes and return status, headers and body of the answer."""
    with socket.create_connection(address, timeout=SECONDS) as connection:
        connection.sendall(text if isinstance(text, bytes) else text.encode())
        with http.client.HTTPResponse(connection) as answer:
            answer.begin()
            return answer.status, answer.headers, answer.read()


def post(address, path, body, headers=None):
    """Post a body and return status, headers, and the JSON of the answer."""
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    with contextlib.closing(connection):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(
            "POST", path, body, {"Content-Type": "application/json"} | (headers or {})
        )
        with connection.getresponse() as answer:
            return answer.status, answer.headers, json.loads(answer.read())


def asking(body, path="/v1/completions"):
    """Return the bytes of a request."""
    body = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_a_client_gets_what_generation_makes(tiny):
    with serve(tiny) as s:
        ask = s.client.completions.create
        for choices in (
            {"temperature": 0},
            {"seed": 5},
            {"seed": 7, "temperature": 1.4, "top_p": 0.8},
        ):
            found = ask(model="tiny", prompt="It is", max_tokens=13, **choices)
            cuts = {"top_p": choices["top_p"]} if "top_p" in choices else {}
            own = {k: v for k, v in choices.items() if k != "top_p"}
            assert found.choices[0].text == direct(tiny, "It is", 13, cuts=cuts, **own)
            assert found.usage.total_tokens == found.usage.prompt_tokens + 13
            assert found.choices[0].finish_reason == "length" and found.model == "tiny"
        ids = tiny.encode("want")[0].tolist()
        found = ask(model="tiny", prompt=ids, max_tokens=5, temperature=0).choices[0].text
        assert found == direct(tiny, ids, 5, temperature=0)
        extra = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.2}
        found = ask(model="tiny", prompt="man", max_tokens=9, seed=2, extra_body=extra)
        assert found.choices[0].text == direct(tiny, "man", 9, seed=2, cuts=extra)
        assert [each.id for each in s.client.models.list()] == ["tiny"]
        assert s.client.models.retrieve("tiny").id == "tiny"


def test_several_choices_have_seeds_of_their_own(tiny):
    """Prompt by prompt, as a batch of `generate` with the first seed."""
    prompts = ["It is", "a truth"]
    with serve(tiny) as s:
        found = s.client.completions.create(
            model="tiny", prompt=prompts, n=3, max_tokens=11, seed=40
        )
        texts = [choice.text for choice in found.choices]
        assert [choice.index for choice in found.choices] == list(range(6))
        asked = [tiny.encode(p)[0].tolist() for p in prompts for _ in range(3)]
        made = generate(
            tiny.model, asked, max_new_tokens=11, sampling=Sampling(), seed=40, stop=tiny.eos_ids
        )
        assert texts == ["".join(pieces(ids, tiny.decode)) for ids in made.tokens]
        assert len(set(texts)) == 6
        read = sum(len(ids) for ids in asked[::3])
        assert found.usage.prompt_tokens == read  # each prompt once
        assert found.usage.completion_tokens == sum(map(len, made.tokens))


def test_pieces_of_a_stream_are_the_whole(tiny):
    asked = {"model": "tiny", "prompt": "It is", "n": 2, "max_tokens": 30, "seed": 1}
    with serve(tiny) as s:
        whole = s.client.completions.create(**asked)
        count = {"include_usage": True}
        events = list(s.client.completions.create(**asked, stream=True, stream_options=count))
        texts, reasons = ["", ""], [None, None]
        for event in events[:-1]:
            (choice,) = event.choices
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
        assert texts == [choice.text for choice in whole.choices]
        assert reasons == [choice.finish_reason for choice in whole.choices]
        assert events[-1].choices == [] and events[-1].usage == whole.usage
        assert len({event.id for event in events}) == 1
        assert len(events) > 12  # it came in pieces


def test_a_conversation_is_answered(tiny):
    """By the template, with the words of a message as text, whatever they look like."""
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Is it <|im_end|> "}] * 2},
    ]
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it <|im_end|> " * 2},
    ]
    ids = tiny.encode_chat(turns)[0].tolist()
    with serve(tiny) as s:
        ask = s.client.chat.completions.create
        whole = ask(model="tiny", messages=messages, max_completion_tokens=17, seed=9)
        message = whole.choices[0].message
        assert message.role == "assistant" and message.content == direct(tiny, ids, 17, seed=9)
        events = list(ask(model="tiny", messages=messages, max_tokens=17, seed=9, stream=True))
        deltas = [event.choices[0].delta for event in events]
        assert deltas[0].role == "assistant" and deltas[-1].content is None
        assert "".join(delta.content or "" for delta in deltas) == message.content
        plain = pretrained.Pretrained("tiny", tiny.model, tiny.tokenizer, tiny.config)
        with serve(plain) as other, pytest.raises(openai.BadRequestError, match="conversations"):
            other.client.chat.completions.create(model="tiny", messages=messages)


def test_a_text_ends_where_it_is_to(tiny, room=serving):
    with serve(tiny, slots=1, room=room) as s:
        ask = s.client.completions.create
        whole = ask(model="tiny", prompt="It is", max_tokens=40, seed=4).choices[0].text
        stop = whole[7:9]
        ended = ask(model="tiny", prompt="It is", max_tokens=300, seed=4, stop=[stop, "xyz"])
        assert ended.choices[0].text == whole[: whole.index(stop)]
        assert ended.choices[0].finish_reason == "stop"
        assert ended.usage.completion_tokens < 40
        until(lambda: not s.engine.under_way)  # nobody computes the rest
        assert s.scheduler.table.held == 0
        events = list(
            ask(model="tiny", prompt="It is", max_tokens=40, seed=4, stop=stop, stream=True)
        )
        assert "".join(e.choices[0].text for e in events) == ended.choices[0].text
        assert events[-1].choices[0].finish_reason == "stop"


def test_a_token_that_ends_a_text_ends_it(tiny):
    made = generate(tiny.model, tiny.encode("It is"), max_new_tokens=20).tokens[0]
    ends = dataclasses.replace(tiny, eos_ids=(made[7],))
    with serve(ends) as s:
        found = s.client.completions.create(
            model="tiny", prompt="It is", max_tokens=20, temperature=0
        )
        assert found.choices[0].finish_reason == "stop"
        assert found.choices[0].text == direct(ends, "It is", 20, temperature=0)
        assert found.usage.completion_tokens == made.index(made[7]) + 1


def test_clients_that_come_together_are_computed_together(tiny):
    with serve(tiny, by_count=True) as s:
        found, threads = {}, []

        def ask(i):
            found[i] = s.client.completions.create(
                model="tiny", prompt=TEXTS[0][: 5 + i], max_tokens=20, seed=i
            )

        for i in range(3):
            threads.append(threading.Thread(target=ask, args=(i,)))
            threads[-1].start()
        until(lambda: s.engine.under_way == 3)
        s.scheduler.turns.release(10**6)
        for thread in threads:
            thread.join(SECONDS)
        for i in range(3):
            assert found[i].choices[0].text == direct(tiny, TEXTS[0][: 5 + i], 20, seed=i)
        # The first token comes with the prompt; alone it would have been three times 19 steps.
        assert s.scheduler.stats.steps <= 21


def test_who_goes_away_is_forgotten(tiny, room=serving):
    """One that reads a stream, one that waits for the whole, one that has no slot yet."""
    body = {"model": "tiny", "prompt": "It is", "max_tokens": 300, "seed": 1}
    with serve(tiny, by_count=True, slots=2, room=room) as s:
        clients = []
        for more in ({"stream": True}, {}, {}):
            clients.append(s.connect())
            clients[-1].sendall(asking(body | more))
            until(lambda: s.engine.under_way == len(clients))
        s.scheduler.turns.release(5)
        until(lambda: s.scheduler.stats.steps >= 3)
        assert s.scheduler.running == 2
        assert clients[0].recv(12) == b"HTTP/1.1 200"
        assert s.scheduler.waiting == 1
        for left, client in zip((2, 1, 0), clients[::-1], strict=True):
            client.close()

            def gone(left=left):
                if s.engine._given_up:  # the step in which it waits, and no other
                    s.scheduler.turns.release()
                held = s.scheduler.waiting + s.scheduler.running
                return s.engine.under_way == left == held

            until(gone)
        until(lambda: s.scheduler.table.held == 0)
        assert s.scheduler.stats.slots < 300  # long before the end of one
        s.scheduler.turns.release(10**6)
        text = s.client.completions.create(model="tiny", prompt="It", max_tokens=3, temperature=0)
        assert text.choices[0].text == direct(tiny, "It", 3, temperature=0)


def test_one_too_many_is_told_to_come_later(tiny, room=serving):
    body = {"model": "tiny", "prompt": "It is", "max_tokens": 9}
    with serve(tiny, by_count=True, slots=1, queue=2, room=room) as s:
        clients = [s.connect() for _ in range(3)]
        for client in clients:
            client.sendall(asking(body))
        until(lambda: s.engine.under_way == 3)
        status, headers, said = post(s.address, "/v1/completions", body)
        assert status == 429 and int(headers["Retry-After"]) >= 1
        assert said["error"]["type"] == "rate_limit_error"
        with pytest.raises(openai.RateLimitError):
            s.client.completions.create(**body)
        assert s.engine.under_way == 3
        s.scheduler.turns.release(10**6)
        for client in clients:
            assert client.recv(12) == b"HTTP/1.1 200"
            client.close()
        until(lambda: s.engine.under_way == 0)
        assert post(s.address, "/v1/completions", body)[0] == 200
        # Of choices all or none are taken.
        assert post(s.address, "/v1/completions", body | {"n": 4})[0] == 429
        assert s.engine.under_way == 0


def test_one_connection_too_many_is_told_to_come_later(tiny):
    with serve(tiny, connections=2) as s:
        clients = [s.connect() for _ in range(2)]
        for client in clients:  # each has its thread once it is answered
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        status, headers, said = raw(s.address, b"")
        assert status == 503 and headers["Retry-After"]
        assert json.loads(said)["error"]["type"] == "server_error"
        clients[0].close()

        def answered():
            return raw(s.address, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200

        until(answered)
        clients[1].close()


BODY = {"model": "tiny", "prompt": "It is"}
BAD = [  # status, part that is blamed, words, what differs from a body that is right
    (404, "model", "no model 'gpt'", {"model": "gpt"}),
    (400, "model", "missing", {"model": None}),
    (400, "prompt", "missing", {"prompt": None}),
    (400, "prompt", "at least one token", {"prompt": ""}),
    (400, "prompt", "tokens, at least one", {"prompt": [[]]}),
    (400, "prompt", "from 0 to", {"prompt": [10**6]}),
    (400, "prompt", "lone surrogate", {"prompt": "\ud800"}),
    (400, "prompt", "at most 16", {"prompt": ["a"] * 17}),
    (400, "n", "at most 16 choices", {"prompt": ["a"] * 5, "n": 4}),
    (400, "n", "from 1 to 16, got 0", {"n": 0}),
    (400, "n", "an integer, got true or false", {"n": True}),
    (400, "temperature", "from 0 to 2", {"temperature": -0.1}),
    (400, "temperature", "a number, got a string", {"temperature": "hot"}),
    (400, "top_p", "above 0", {"top_p": 0}),
    (400, "max_tokens", "got a larger number", {"max_tokens": 10**40}),
    (400, "max_tokens", "a text may have 400 tokens", {"max_tokens": 500}),
    (400, "seed", "an integer", {"seed": 0.5}),
    (400, "stop", "none of them empty", {"stop": ["", "a"]}),
    (400, "stop", "at most 4", {"stop": list("abcde")}),
    (400, "stream", "true or false", {"stream": 1}),
    (400, "stream_options", "beside stream", {"stream_options": {"include_usage": True}}),
    (400, "logprobs", "not supported", {"logprobs": 0}),
    (400, "echo", "not supported", {"echo": True}),
    (400, "colour", "not known", {"colour": "red"}),
    (400, "messages", "not known", {"messages": []}),
]


def test_what_cannot_be_meant_is_refused_in_words(tiny):
    with serve(tiny) as s:
        for status, param, words, change in BAD:
            found, _, said = post(s.address, "/v1/completions", BODY | change)
            assert (found, said["error"]["param"]) == (status, param), said
            assert words in said["error"]["message"], said
            assert said["error"]["type"] == "invalid_request_error"
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "?"}]}
        for words, messages in (
            ("at least one", []),
            ("must be a list", "hello"),
            ("messages[0] must have a role", [3]),
            ("the role system, user or assistant", [{"role": "king", "content": "?"}]),
            (
                "messages[0] must be made of text",
                [{"role": "user", "content": [{"type": "image"}]}],
            ),
            ("that are strings", [{"role": "user", "content": 3}]),
        ):
            found, _, said = post(s.address, "/v1/chat/completions", chat | {"messages": messages})
            assert found == 400 and words in said["error"]["message"], said
        assert s.engine.under_way == 0
        with pytest.raises(openai.NotFoundError):
            s.client.completions.create(model="gpt", prompt="a")


def test_what_is_no_request_is_refused_in_the_usual_shape(tiny, room=serving):
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    get = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve(tiny, largest=2000, room=room) as s:
        for status, text in (
            (400, f"{head}Content-Length: 3\r\n\r\n{{x}}"),
            (400, f"{head}Content-Length: 3\r\n\r\nNaN"),
            (400, f"{head}Content-Length: 2\r\n\r\n[]"),
            (400, f"{head}Content-Length: 1\r\n\r\n\xff"),
            (400, f"{head}Content-Length: 1500\r\n\r\n" + "[" * 1500),
            (400, f"{head}Content-Length: 0\r\n\r\n"),
            (400, "nonsense\r\n\r\n"),
            (400, "GET / HTTP/x\r\n\r\n"),
            (404, get.format("/")),
            (404, get.format("/v1/models/gpt")),
            (405, get.format("/v1/completions")),
            (405, "PUT /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            (411, f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            (411, f"{head}Content-Length: -1\r\n\r\n"),
            (413, f"{head}Content-Length: 2001\r\n\r\n" + "x" * 2001),
            (413, f"{head}Content-Length: {10**30}\r\n\r\n" + "x" * 32000),
            (414, "GET /" + "x" * 70000 + " HTTP/1.1\r\n\r\n"),
            (
                415,
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
            ),
            (421, "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
            (431, "GET / HTTP/1.1\r\n" + "A: b\r\n" * 200 + "\r\n"),
            (501, "BREW /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ):
            found, _, said = raw(s.address, text.encode("latin-1"))
            assert found == status, (text[:60], said)
            assert json.loads(said)["error"]["message"], text[:60]
        # A body larger than what is read on is cut off, and nothing waits for it.
        with socket.create_connection(s.address, timeout=SECONDS) as connection:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n".encode() + b"x" * 10)
        assert raw(s.address, get.format("/health"))[0] == 200
        assert s.engine.under_way == 0


def test_a_connection_is_used_again_also_after_an_error(tiny):
    with serve(tiny) as s:
        connection = http.client.HTTPConnection(*s.address, timeout=SECONDS)
        json_kind = {"Content-Type": "application/json"}
        with contextlib.closing(connection):
            for body, status in (
                ("{", 400),
                (json.dumps(BODY | {"max_tokens": 2}), 200),
                ("{", 400),
            ):
                connection.request("POST", "/v1/completions", body, json_kind)
                kept = connection.sock
                answer = connection.getresponse()
                assert answer.status == status and answer.read()
                assert connection.sock is kept is not None
        # An old client gets the stream to the end of the connection.
        text = asking(BODY | {"max_tokens": 3, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
        status, headers, said = raw(s.address, text)
        assert status == 200 and "Transfer-Encoding" not in headers
        assert said.endswith(b"data: [DONE]\n\n")


def test_a_server_that_ends_finishes_what_is_under_way(tiny):
    with serve(tiny, by_count=True) as s:
        found = []
        ask = {"model": "tiny", "prompt": "It is", "max_tokens": 12, "seed": 3}
        thread = threading.Thread(
            target=lambda: found.append(s.client.completions.create(**ask).choices[0].text)
        )
        thread.start()
        until(lambda: s.engine.under_way == 1)
        ends = threading.Thread(target=s.endpoint.close, args=(SECONDS,))
        ends.start()
        until(lambda: not s.engine.open)
        status, headers, said = post(s.address, "/v1/completions", ask)
        assert status == 503 and headers["Retry-After"]
        assert raw(s.address, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 503
        s.scheduler.turns.release(10**6)
        for each in (thread, ends):
            each.join(SECONDS)
        assert found == [direct(tiny, "It is", 12, seed=3)]
        with pytest.raises(ConnectionError):
            socket.create_connection(s.address, timeout=SECONDS)


def test_what_is_given_up_at_the_end_is_told_so(tiny):
    body = {"model": "tiny", "prompt": "It is", "max_tokens": 300}
    with serve(tiny, by_count=True) as s:
        clients = [s.connect() for _ in range(2)]
        for client, more in zip(clients, ({}, {"stream": True}), strict=True):
            client.sendall(asking(body | more))
        until(lambda: s.engine.under_way == 2)
        s.scheduler.turns.release(4)
        until(lambda: s.scheduler.stats.steps >= 3)
        ends = threading.Thread(target=s.endpoint.close)
        ends.start()
        until(lambda: not s.engine.open)
        s.scheduler.turns.release()  # the step in which it waits
        ends.join(SECONDS)
        answers = []
        for client in clients:
            with client, http.client.HTTPResponse(client) as answer:
                answer.begin()
                answers.append((answer.status, answer.read().decode()))
        assert answers[0][0] == 503 and "stopped before" in answers[0][1]
        assert answers[1][0] == 200 and "stopped before" in answers[1][1]
        with pytest.raises(serving.Stopped, match="takes no more"):
            s.engine.ask([[1]], 2)


def test_a_model_that_fails_fails_its_requests_and_no_others(tiny):
    with serve(tiny, by_count=True) as s:
        s.scheduler.fails = True
        s.scheduler.turns.release()
        with pytest.raises(openai.InternalServerError, match="no numbers any more"):
            s.client.completions.create(model="tiny", prompt="It is", max_tokens=5)
        s.scheduler.fails = False
        s.scheduler.turns.release(10**6)
        found = s.client.completions.create(model="tiny", prompt="It", max_tokens=5, temperature=0)
        assert found.choices[0].text == direct(tiny, "It", 5, temperature=0)
        assert s.scheduler.table.held == 0


def test_no_thread_is_left_behind(tiny):
    before = set(threading.enumerate())
    with serve(tiny) as s:
        with socket.create_connection(s.address, timeout=SECONDS) as idle:  # and never asks
            until(lambda: len(set(threading.enumerate()) - before) >= 3)
            s.client.completions.create(model="tiny", prompt="It", max_tokens=2)
            s.endpoint.close()
            assert idle.recv(1) == b""
    until(lambda: set(threading.enumerate()) <= before)


@given(
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=9),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_a_text_ends_at_the_same_place_however_it_is_cut(texts, stops):
    text = "".join(texts)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    end, minus, met = min(ends, default=(len(text), 0, None))
    for cut in (texts, [text], list(text)):
        found = serving.Until(iter(cut), stops)
        said = list(found)
        assert "".join(said) == text[: end + minus] and found.met == met
        assert all(said)
    # What cannot be the beginning of a stop is handed out at once.
    if "b" not in text:
        found = serving.Until(iter(["aaaa", "b", "a"]), ["bb"])
        assert list(found) == ["aaaa", "ba"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run of two steps, as `train` leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    text = folder.parent / "text.txt"
    text.write_text(TEXTS[0] * 20, encoding="utf-8")
    sizes = "--batch 2 --context 33 --layers 1 --d-model 16 --heads 2 --steps 2 --quiet".split()
    assert command.main(["train", "lm", str(folder), "--text", str(text), *sizes]) == 0
    return folder


@contextlib.contextmanager
def process(*arguments):
    """Run `python -m tfbook serve`; give the process and where it answers."""
    more = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tfbook", "serve", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | more,
        # Tests in the background of a shell are deaf to Ctrl-C, and so would it be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        try:
            said = running.stderr.readline()
            assert "answers at http://127.0.0.1:" in said, said
            port = int(said.split("127.0.0.1:")[1].split("/")[0])
            yield running, ("127.0.0.1", port)
        finally:
            running.kill()


def test_a_run_is_served_until_it_is_told_to_stop(run_folder, capfd):
    """By its folder's name; SIGTERM and SIGINT end it, and its port is free again at once."""
    mine = pretrained.load_directory(run_folder)
    body = {"model": "mine", "prompt": "It is", "max_tokens": 9, "temperature": 0}
    with process(run_folder, "--port", 0) as (running, address):
        status, _, said = post(address, "/v1/completions", body)
        assert status == 200
        assert said["choices"][0]["text"] == direct(mine, "It is", 9, temperature=0)
        # Its port is taken.
        assert command.main(["serve", str(run_folder), "--port", str(address[1])]) == 1
        (line,) = capfd.readouterr().err.splitlines()
        assert line == f"error: port {address[1]} of 127.0.0.1 is in use: choose another with " + (
            "--port, or 0 for any"
        )
        running.send_signal(signal.SIGTERM)
        assert running.wait(SECONDS) == 0
        assert running.stderr.read() == ""
    with process(run_folder, "--port", address[1]) as (running, again):
        assert again == address and post(again, "/v1/completions", body)[0] == 200
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == 130
        assert running.stderr.read() == "Stopped\n"


def test_a_server_that_is_killed_leaves_nothing(run_folder):
    body = {"model": "mine", "prompt": "It is", "max_tokens": 20, "stream": True}
    with process(run_folder, "--port", 0) as (running, address):
        children = f"/proc/{running.pid}/task/{running.pid}/children"
        if os.path.exists(children):
            with open(children, encoding="ascii") as file:
                assert file.read() == ""  # it starts no other process
        with socket.create_connection(address, timeout=SECONDS) as client:
            client.sendall(asking(body))
            assert client.recv(12) == b"HTTP/1.1 200"
            running.kill()
            running.wait(SECONDS)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(2**16):  # ends, and nobody holds the connection open
                    pass
        with pytest.raises(ConnectionError):
            socket.create_connection(address, timeout=SECONDS)


@pytest.mark.untyped
@pytest.mark.parametrize(
    "message, arguments",
    [
        ("a run's folder or one of smollm2-135m, shakespeare, got 'nowhere'", ["nowhere"]),
        ("weights 'int4' are for smollm2-135m", ["shakespeare", "--weights", "int4"]),
        ("port must be from 0 to 65535, got 70000", ["shakespeare", "--port", "70000"]),
        ("slots must be from 1 to 1024, got 0", ["shakespeare", "--slots", "0"]),
        ("queue must be from 0", ["shakespeare", "--queue", "-1"]),
        ("cannot be listened at", ["shakespeare", "--host", "192.0.2.1"]),
    ],
)
def test_what_cannot_be_served_is_told_in_a_line(message, arguments, capfd):
    assert command.main(["serve", *arguments]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


def test_smollm_answers_over_http_as_it_does_directly():
    smol = pretrained.load("smollm2-135m", weights="int4")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = smol.encode_chat(question)[0].tolist()
    with serve(smol) as s:
        ask = s.client.chat.completions.create
        asked = {"model": "smollm2-135m", "messages": question, "max_tokens": 12}
        whole = ask(**asked, temperature=0)
        assert whole.choices[0].message.content == direct(smol, ids, 12, temperature=0)
        assert "Paris" in whole.choices[0].message.content
        events = ask(**asked, temperature=0, stream=True)
        said = "".join(event.choices[0].delta.content or "" for event in events)
        assert said == whole.choices[0].message.content


MUTANTS = [
    Mutant(
        "who has gone is computed to the end",
        "tfbook.serving.answering",
        "            engine.give_up(tickets)  # what has ended stays as it is\n",
        "            pass\n",
        "test_who_goes_away_is_forgotten",
    ),
    Mutant(
        "nobody looks whether the client is there",
        "tfbook.serving.answering",
        "if ready and not self.connection.recv(1, socket.MSG_PEEK):",
        "if False:",
        "test_who_goes_away_is_forgotten",
    ),
    Mutant(
        "what waits cannot be given up",
        "tfbook.serving.batching",
        "for held in (self._waiting, self._running):",
        "for held in (self._running,):",
        "test_who_goes_away_is_forgotten",
    ),
    Mutant(
        "one more than there is room for",
        "tfbook.serving.engine",
        "if taken + len(tickets) > self.most:",
        "if taken > self.most:",
        "test_one_too_many_is_told_to_come_later",
    ),
    Mutant(
        "a body of any size is read",
        "tfbook.serving.answering",
        "        if length > self.server.largest:\n",
        "        if False:\n",
        "test_what_is_no_request_is_refused_in_the_usual_shape",
    ),
    Mutant(
        "any page may ask",
        "tfbook.serving.answering",
        '"Content-Type" not in self.headers or kind != "application/json"',
        "False",
        "test_what_is_no_request_is_refused_in_the_usual_shape",
    ),
    Mutant(
        "any name is its own",
        "tfbook.serving.answering",
        "if self.server.local and not self._is_own_host():",
        "if False:",
        "test_what_is_no_request_is_refused_in_the_usual_shape",
    ),
    Mutant(
        "a text that has ended is computed on",
        "tfbook.serving.endings",
        "                break\n",
        "                self.pieces = ()\n",
        "test_a_text_ends_where_it_is_to",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SECONDS", 2)
    room = fresh.copies("sick_http", ["tfbook.serving"], mutant.edits)
    with pytest.raises((AssertionError, KeyError, OSError, openai.APIError)):
        globals()[mutant.caught_by](make_tiny("sick_http"), room=room)
