"""Texts in and out: pieces of text, models with a tokenizer, and conversations."""

import types

import pytest
import torch

from tfbook.generation import (
    Conversation,
    Sampling,
    TableModel,
    beam_search,
    converse,
    generate,
    perplexity,
    pieces,
    speculative_generate,
    stream,
)
from tfbook.pretrained import load

SAID = "Aé日😀!"
END = 0  # what ends a text


def decoded(ids):
    return bytes(ids).decode("utf-8", errors="replace").replace("\0", "")


class Beak:
    """Says SAID byte by byte, then END, and begins again; keeps what it read."""

    def __init__(self, max_len=None):
        self.config, self.read = types.SimpleNamespace(max_len=max_len), []

    def decode(self, tokens, state=None, *, mask=None, last=False):
        self.read.append(tokens[0].tolist())
        said, step = [*SAID.encode(), END], state or 0
        logits = torch.full((len(tokens), 1, 256), -20.0)
        logits[:, :, said[step % len(said)]] = 20.0
        return logits, Step(step + 1)


class Step(int):
    """How much was said."""

    length = 0

    def select(self, rows):
        return self


class Parrot:
    """A chat model with bytes for tokens; those of its template are in no text of Unicode."""

    name, eos_ids, pad_id = "parrot", (END,), 1

    def __init__(self, max_len=None, model=Beak):
        self.model = model(max_len)

    def encode(self, text):
        return torch.tensor([list(text.encode())])

    def encode_chat(self, messages):
        marks, found = {"system": 252, "user": 250, "assistant": 251}, []
        for each in messages:
            found += [marks[each["role"]], *each["content"].encode(), ord(";")]
        return torch.tensor([[*found, marks["assistant"]]])

    def decode(self, ids):
        return decoded(ids)


def test_a_character_comes_when_all_its_bytes_are_there():
    assert list(pieces(SAID.encode(), decoded)) == list(SAID)
    # Invalid bytes are shown once nothing can make them a character; half of one at the end is not.
    assert list(pieces(b"a\xff\xffb", decoded)) == ["a", "\ufffd", "\ufffdb"]
    assert list(pieces(b"a\xe6\x97", decoded)) == ["a"]
    assert list(pieces([], decoded)) == []


@pytest.mark.untyped
def test_pieces_join_to_the_text_with_every_tokenizer():
    """Where a word's first piece loses its space, and where special tokens are no text."""

    def words(ids):  # decodes as SentencePiece does: a space before each word but the first
        return " ".join(filter(None, (["", "one", "two", "three"][i] for i in ids)))

    assert list(pieces([0, 1, 0, 2, 3], words)) == ["one", " two", " three"]
    with pytest.raises(TypeError, match="decode must be a function of ids, got str"):
        pieces([1], "utf-8")


def test_a_text_goes_in_and_text_comes_out():
    parrot = Parrot()
    assert list(stream(parrot, "well?")) == list(SAID)  # it stops by itself
    assert list(stream(parrot, ["well?"])) == list(SAID)
    assert list(stream(parrot, list(b"well?"))) == [*SAID.encode(), END]  # ids to ids
    found = generate(parrot, ["a", "b"])
    assert (found.prompts, found.finished) == ([[97], [98]], [True, True])
    assert found.tokens == [[*SAID.encode(), END]] * 2
    assert generate(parrot, "a", stop=65).tokens == [[65]]
    lazy = Parrot()
    answer = stream(lazy, "well?")
    assert lazy.model.read == []
    next(answer)
    assert len(lazy.model.read) == 1


@pytest.mark.untyped
def test_padding_that_no_mask_tells_is_refused():
    parrot, ids = Parrot(), torch.tensor([[1, 1, 70], [71, 72, 73]])
    mask = ids != 1
    assert generate(parrot, ids, mask=mask, max_new_tokens=1).prompts == [[70], [71, 72, 73]]
    assert generate(parrot, ids.tolist(), max_new_tokens=1).prompts == ids.tolist()  # tokens, then
    assert generate(parrot, ids[:1], max_new_tokens=1).prompts == ids[:1].tolist()
    table = TableModel(torch.zeros(99, 99))
    for model, more in ((parrot, {}), (table, {"pad_id": 1})):
        for padded in (ids, ids.flip(1)):
            with pytest.raises(
                ValueError, match="row 0 of prompt begins or ends with 1, which is pa"
            ):
                generate(model, padded, max_new_tokens=1, **more)
    for prompt, mask_, error, words in (
        ((ids, mask), None, TypeError, "got a tuple of 2; ids and mask are given apart"),
        (ids.tolist(), mask, ValueError, "mask is for ids in a tensor"),
        ("a", mask, ValueError, "mask is for ids; texts need none"),
        (ids[0], mask[0], ValueError, r"mask is for prompt of shape \(B, N\), got \(3,\)"),
        (ids, mask[:, :2], ValueError, r"mask must have shape \(B, N\) = \(2, 3\), got \(2, 2\)"),
        (ids, mask.long(), TypeError, "mask must be boolean"),
        (ids, torch.tensor([[True, False, True]] * 2), ValueError, "from the first token of a row"),
        (ids, mask & False, ValueError, "prompt 0 has 0 tokens"),
    ):
        with pytest.raises(error, match=words):
            generate(parrot, prompt, mask=mask_, max_new_tokens=1)


@pytest.mark.untyped
def test_what_takes_the_model_alone_says_so():
    parrot, table = Parrot(), TableModel(torch.zeros(3, 3))
    parrot.model.remember = None  # as an encoder-decoder has it
    with pytest.raises(ValueError, match="parrot reads one text and writes another: give state="):
        generate(parrot, "a")
    with pytest.raises(TypeError, match="prompt must be token ids, got str; a tokenizer"):
        generate(table, "a")
    for call in (
        lambda: beam_search(parrot, [1], n_beams=1, max_new_tokens=1),
        lambda: perplexity(parrot, [1, 2]),
        lambda: speculative_generate(table, parrot, [1], max_new_tokens=1),
    ):
        with pytest.raises(
            TypeError, match="must be the model alone, got a Parrot: give its .model"
        ):
            call()


@pytest.mark.untyped
def test_as_many_tokens_as_there_is_room_for():
    table = TableModel(torch.zeros(5, 5))
    assert len(generate(table, [1]).tokens[0]) == 256
    table.config = types.SimpleNamespace(max_len=9)
    assert len(generate(table, [1, 2]).tokens[0]) == 7
    assert len(list(stream(table, [1, 2]))) == 7
    for options, error, words in (
        ({"prompt": [1] * 9}, ValueError, "holds 9 tokens, got a prompt of 9 .* crop=True"),
        ({"crop": 1}, TypeError, "crop must be True or False"),
        ({"crop": True, "state": 7}, ValueError, "crop begins anew with an empty state"),
    ):
        with pytest.raises(error, match=words):
            generate(table, **{"prompt": [1]} | options)


# Conversations


def talk(*lines, **choices):
    """Hold a conversation with a parrot; return it and what was written."""
    asked, written = iter(lines), []
    conversation = Conversation(Parrot(choices.pop("max_len", None)), max_new_tokens=40, **choices)

    def ask():
        line = next(asked, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    converse(conversation, ask, written.append)
    return conversation, written


def test_a_conversation_remembers_both_sides():
    conversation, written = talk("Hello", "  ", "More", system="Be a bird.")
    assert "".join(written) == f"{SAID}\n{SAID}\n\n"
    turns = [(each["role"], each["content"]) for each in conversation.messages]
    pair = [("user", "Hello"), ("assistant", SAID)]
    assert turns == [("system", "Be a bird."), *pair, ("user", "More"), ("assistant", SAID)]
    prompts = [bytes(each) for each in conversation.model.model.read if len(each) > 1]
    said = SAID.encode()
    assert prompts[1] == b"\xfcBe a bird.;\xfaHello;\xfb" + said + b";\xfaMore;\xfb"


def test_an_interruption_ends_the_answer_and_not_the_chat():
    conversation = Conversation(Parrot(), max_new_tokens=40)
    lines, written = iter(["first", "second"]), []

    def write(text):
        written.append(text)
        if len(written) == 2:
            raise KeyboardInterrupt

    def ask():
        line = next(lines, None)
        if line is None:
            raise KeyboardInterrupt  # at a question it ends the chat
        return line

    converse(conversation, ask, write)
    assert "".join(written) == f"{SAID[:2]} …\n{SAID}\n\n"
    said = [each["content"] for each in conversation.messages]
    assert said == ["first", SAID[:2], "second", SAID]


def test_what_was_never_asked_for_is_not_remembered():
    conversation = Conversation(Parrot())
    conversation.say("unheard")
    assert conversation.messages == [] and conversation.model.model.read == []


def test_the_oldest_messages_make_room_and_the_system_stays():
    conversation, written = talk("one", "two", "three", system="S", max_len=70)
    assert conversation.messages[1]["content"] == "one"  # it is all there to be read
    prompts = [bytes(each) for each in conversation.model.model.read if len(each) > 1]
    assert prompts[1].startswith(b"\xfcS;\xfaone;") and b"two" in prompts[1]
    assert prompts[2].startswith(b"\xfcS;\xfatwo;") and b"one" not in prompts[2]
    _, written = talk("x" * 60, "two", max_len=70)
    first, *rest = "".join(written).splitlines()
    assert first.startswith("error: the message must fit into the context of parrot, 70 tokens")
    assert rest[0] == SAID


@pytest.mark.untyped
def test_a_conversation_needs_a_model_that_can():
    for model, options, error, words in (
        (TableModel(torch.zeros(2, 2)), {}, TypeError, "a tokenizer and a template.*TableModel"),
        (load("shakespeare"), {}, ValueError, "shakespeare was not trained on conversations"),
        (Parrot(), {"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1"),
        (Parrot(), {"sampling": 0.2}, TypeError, "sampling must be a Sampling"),
        (Parrot(), {"seed": 0.5}, TypeError, "seed must be an integer"),
        (Parrot(7), {}, ValueError, "the message must fit into the context"),
    ):
        with pytest.raises(error, match=words):
            Conversation(model, **options)


def test_a_seed_repeats_a_whole_conversation():
    def answers(seed):
        conversation = Conversation(
            Parrot(model=Noise), max_new_tokens=9, sampling=Sampling(), seed=seed
        )
        return ["".join(conversation.say("?")) for _ in range(2)]

    first = answers(3)
    assert first == answers(3) != answers(4)
    assert first[0] != first[1]


class Noise(Beak):
    """Says any letter."""

    def decode(self, tokens, state=None, *, mask=None, last=False):
        logits = torch.full((len(tokens), 1, 256), -99.0)
        logits[:, :, 97:122] = 0
        return logits, Step()
