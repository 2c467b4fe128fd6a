"""The command line: `python -m tfbook train | finetune | generate | chat | serve | inspect | …`."""

import contextlib
import os
import sys
from collections.abc import Sequence
from functools import partial

import torch

from tfbook import pretrained
from tfbook.commands import ABOUT, bench, finetune, inspect, languages, parser, say, serve, train
from tfbook.data import BOS, EOS
from tfbook.generation import GREEDY, Conversation, Sampling, converse, pieces, stream
from tfbook.models import Classes
from tfbook.practice import holds_tuning, load_tuned
from tfbook.training import choose_device, load_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return 0, 1 for an error, 130 after Ctrl-C."""
    chosen = parser().parse_args(arguments)
    if chosen.command is None:
        print(ABOUT)
        return 0
    do = {"train": train, "finetune": finetune, "generate": _generate, "chat": _chat}
    do |= {"serve": serve, "inspect": inspect, "bench": bench}
    try:
        do[chosen.command](chosen)
    except KeyboardInterrupt as stop:
        say((str(stop) or "stopped").capitalize())
        return 130
    except (ArithmeticError, ImportError, OSError, TypeError, ValueError) as error:
        if os.environ.get("TFBOOK_TRACEBACK"):
            raise
        say(f"error: {error}")
        return 1
    except (MemoryError, RuntimeError) as error:
        lacking = isinstance(error, MemoryError) or "alloc" in str(error) or "memory" in str(error)
        if not lacking or os.environ.get("TFBOOK_TRACEBACK"):
            raise
        say("error: there is not enough memory: choose a smaller model, batch or context")
        return 1
    return 0


def _generate(chosen):
    if holds_tuning(chosen.model):
        tuned = load_tuned(chosen.model)
        if tuned.kind == "labels":
            tuned.found.model.to(choose_device(chosen.device))
            for label, p in zip(tuned.labels, tuned.classify(chosen.prompt)[0], strict=True):
                print(f"{label} with probability {p:.3f}")
            return
        if tuned.kind == "answers" and tuned.found.chat_template is not None:
            _answer(chosen, tuned.found)
            return
    model, encode, decode, ends, state = _read_model(chosen.model)
    device = choose_device(chosen.device)
    model.to(device)
    prompt = encode(chosen.prompt)
    if isinstance(model.config.head, Classes):
        ids = [BOS, *prompt][: model.config.max_len]  # as it was trained
        with torch.no_grad():
            positive = model(torch.tensor([ids], device=device)).softmax(-1)[0, 1]  # of (1, 2)
        print(f"positive with probability {positive:.3f}")
        return
    sampling = GREEDY
    if chosen.temperature != 0:
        sampling = Sampling(temperature=chosen.temperature, top_k=chosen.top_k, top_p=chosen.top_p)
    if hasattr(model, "remember"):
        source = torch.tensor([[*prompt, EOS]], device=device)
        _room(model, len(prompt) + 1, 0)
        with torch.no_grad():
            state, prompt = model.remember(source), [BOS]
    tokens = _room(model, len(prompt), chosen.tokens)
    if state is None:
        print(chosen.prompt, end="", flush=True)
    more = {"stop": ends, "seed": chosen.seed, "state": state}
    written = stream(model, prompt, max_new_tokens=tokens, sampling=sampling, **more)
    for piece in pieces(written, decode):
        print(piece, end="", flush=True)
    print()


def _answer(chosen, found):
    """Write the answer to one question, as the model was taught to."""
    found.model.to(choose_device(chosen.device))
    prompt = found.encode_chat([{"role": "user", "content": chosen.prompt}])[0].tolist()
    sampling = GREEDY
    if chosen.temperature != 0:
        sampling = Sampling(temperature=chosen.temperature, top_k=chosen.top_k, top_p=chosen.top_p)
    tokens = _room(found.model, len(prompt), chosen.tokens)
    written = stream(
        found.model, prompt, max_new_tokens=tokens, sampling=sampling, stop=found.eos_ids,
        seed=chosen.seed,
    )  # fmt: skip
    for piece in pieces(written, found.decode):
        print(piece, end="", flush=True)
    print()


def _chat(chosen):
    load = pretrained.load_directory if os.path.isdir(chosen.model) else pretrained.load
    if holds_tuning(chosen.model):
        load = lambda folder: load_tuned(folder).found  # noqa: E731
    taste = {"temperature": chosen.temperature, "top_k": chosen.top_k, "top_p": chosen.top_p}
    sampling = Sampling(repetition_penalty=1.1, **taste)
    choices = {"system": chosen.system, "max_new_tokens": chosen.tokens, "seed": chosen.seed}
    conversation = Conversation(load(chosen.model), sampling=sampling, **choices)
    converse(conversation, lambda: input("> "), partial(print, end="", flush=True))


def _room(model, used, asked):
    """Return how many tokens to write: as many as asked for, or 300, or what there is room for."""
    limit = model.config.max_len
    if limit is None:
        return 300 if asked is None else asked
    if used + (1 if asked is None else asked) > limit:
        raise ValueError(
            f"the model was trained on {limit:,} tokens at once, and beyond them it writes "
            f"nonsense: the prompt has {used:,}, so --tokens is {max(limit - used, 0):,} at most"
        )
    return min(300, limit - used) if asked is None else asked


def _read_model(name):
    """Return a model that writes, from text to ids and back, which ids end it, and its state."""
    if name in languages() or holds_tuning(name):
        found = load_tuned(name).found if holds_tuning(name) else pretrained.load(name)
        ids_of = lambda text: found.encode(text)[0].tolist()  # noqa: E731
        return found.model, ids_of, found.decode, found.eos_ids, None
    if not os.path.isdir(name):
        raise ValueError(
            f"model must be a run's folder or one of {', '.join(languages())}, got {name!r}"
        )
    model, tokenizer, _ = load_run(name)

    def encode(text):
        try:
            ids = tokenizer.encode(text).ids
        except Exception as error:  # the library raises nothing more precise
            known = tokenizer.get_vocab()
            new = [repr(each) for each in dict.fromkeys(text) if each not in known]
            raise ValueError(
                f"the prompt has a character that the model never saw: {', '.join(new) or error}"
            ) from None
        if not ids:
            raise ValueError("the prompt must hold at least one character")
        return ids

    ends = (EOS,) if hasattr(model, "remember") else ()
    return model, encode, tokenizer.decode, ends, None


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
