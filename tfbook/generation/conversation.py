"""Talking with a chat model: the history, its template, and answers that come as they are written.

Explained in: chapters/12_generation_deeper, section "Talking to a chat model".
"""

from collections.abc import Callable, Iterator
from contextlib import closing

import torch

from tfbook._checks import check_number
from tfbook.generation.decoding import stream
from tfbook.generation.prompts import TextModel, context_of, make_generator
from tfbook.generation.sampling import Sampling, check_sampling
from tfbook.generation.streaming import pieces

__all__ = ["Conversation", "converse"]

# What SmolLM2's makers advise, and a penalty: a small model falls into circles easily.
CAREFUL = Sampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1)


class Conversation:
    """A conversation with a chat model, which remembers what was said.

    Every answer is a continuation of all that was said before it, written down by the model's
    template. Only the template makes tokens that control it: what looks like one in a message, such
    as ``<|im_end|>``, stays text. Where the context is full, the oldest messages are left out of
    what the model reads, but for the system's.

    Args:
        model: one that was trained on conversations, such as
            :func:`tfbook.pretrained.load` ("smollm2-135m").
        system: how it is to behave; its own words when omitted.
        max_new_tokens: the longest answer.
        sampling: how tokens are chosen; when omitted temperature 0.2, the nucleus of 0.9 and a
            repetition penalty of 1.1.
        seed: makes the answers repeatable; or where random numbers come from.

    Attributes:
        messages: what was said, as :meth:`tfbook.pretrained.Pretrained.chat` takes it.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if the model knows no conversations, or a number is out of range.

    Source: [allal2025smollm2]
    Explained in: chapters/12_generation_deeper, section "Talking to a chat model".
    """

    def __init__(
        self,
        model: TextModel,
        *,
        system: str | None = None,
        max_new_tokens: int = 512,
        sampling: Sampling = CAREFUL,
        seed: int | torch.Generator | None = None,
    ):
        """Begin, with nothing said but what the system is told."""
        if not (isinstance(model, TextModel) and hasattr(model, "encode_chat")):
            raise TypeError(
                "model must have a tokenizer and a template, such as load('smollm2-135m'), "
                f"got {type(model).__name__}"
            )
        check_number("max_new_tokens", max_new_tokens, 1, whole=True)
        check_sampling(sampling)
        self.model, self.max_new_tokens, self.sampling = model, max_new_tokens, sampling
        self.generator = make_generator(seed)
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        self._prompt({"role": "user", "content": "?"})  # refuses a model that cannot

    def say(self, text: str) -> Iterator[str]:
        """Say something, and yield the answer in pieces, as it is written.

        Stop asking, and the answer ends there; it is remembered as far as it came.

        Raises:
            TypeError: if text is no string.
            ValueError: if it is no Unicode, or alone too long for the context.
        """
        message = {"role": "user", "content": text}
        prompt = self._prompt(message)
        return self._answer(message, prompt)

    def _answer(self, message, prompt):
        said, model = [], self.model
        tokens = stream(
            model,
            prompt,
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            seed=self.generator,
        )
        try:
            for piece in pieces(tokens, model.decode):
                said.append(piece)
                yield piece
        finally:  # also where it is interrupted
            self.messages += [message, {"role": "assistant", "content": "".join(said)}]

    def _prompt(self, message):
        """Return the ids of the conversation with a new message, as much of it as has room."""
        messages = [*self.messages, message]
        first = int(messages[0]["role"] == "system")  # which stays
        limit = context_of(self.model.model)
        while True:
            ids = self.model.encode_chat(messages)
            needed = ids.shape[1] + self.max_new_tokens
            if limit is None or needed <= limit:
                return ids
            if len(messages) <= first + 1:
                raise ValueError(
                    f"the message must fit into the context of {self.model.name}, {limit:,} "
                    f"tokens, with an answer of {self.max_new_tokens:,}; it takes {ids.shape[1]:,}"
                )
            del messages[first : first + 2]  # a question with its answer


def converse(
    conversation: Conversation, ask: Callable[[], str], write: Callable[[str], object]
) -> None:
    """Ask and answer in turn, until there is nothing more to ask.

    An interruption (Ctrl-C) while an answer is written ends that answer; at a question it ends the
    conversation, as the end of the input does. What cannot be said is told, and one goes on.

    Args:
        conversation: with whom.
        ask: returns what the user says next, such as ``input``; EOFError ends the conversation.
        write: takes a piece of text.

    Explained in: chapters/12_generation_deeper, section "Talking to a chat model".
    """
    while True:
        try:
            text = ask()
        except (EOFError, KeyboardInterrupt):
            write("\n")
            return
        if not text.strip():
            continue
        try:
            with closing(conversation.say(text)) as answer:
                for piece in answer:
                    write(piece)
        except KeyboardInterrupt:
            write(" …")
        except ValueError as error:
            write(f"error: {error}")
        write("\n")
