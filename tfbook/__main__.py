"""The command line: `python -m tfbook train | generate | chat | inspect | bench`."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from functools import partial

import torch

from tfbook import pretrained
from tfbook._checks import check_number
from tfbook.data import BOS, EOS
from tfbook.generation import GREEDY, Conversation, Sampling, converse, generate, pieces, stream
from tfbook.models import PRESETS, Classes, Patches, build, preset
from tfbook.training import (
    DEFAULTS,
    PRECISIONS,
    Checkpointing,
    Execution,
    Monitoring,
    Muon,
    decay_groups,
    fit,
    load_run,
    make_task,
    muon_groups,
    read_choices,
    schedule,
    steps_in,
    write_choices,
)

ABOUT = """\
The Executable Transformer, from the command line.

  train      teach a model, stop it, go on with it
  generate   let a trained model write
  chat       talk with a chat model
  inspect    look at the parts of a model, and count them
  bench      measure how fast this machine trains and writes

`python -m tfbook train lm --help` explains every choice."""

TRAIN = {
    "lm": """\
Teach a small decoder-only Transformer to predict the next token of a text.

  python -m tfbook train lm runs/shakespeare --steps 500
  python -m tfbook generate runs/shakespeare --prompt "ROMEO:"

Without --text it reads nine plays of Shakespeare, character by character. A model that knows
nothing loses ln 63 = 4.14 nats a character; below 2 it spells words.

The folder keeps checkpoints and a log, a line of JSON for each step. Ctrl-C lets the step end and
saves. Stopped in any way, even by a power cut, the run goes on with the very losses it would have
had:

  python -m tfbook train lm runs/shakespeare --resume

Two processes share each batch and compute the same (--shard cuts the weights too):

  torchrun --nproc-per-node=2 -m tfbook train lm runs/shakespeare""",
    "mt": """\
Teach a small encoder-decoder Transformer to translate English into French, on sentences from the
help pages of GNOME.

  python -m tfbook train mt runs/french --steps 2000
  python -m tfbook generate runs/french --prompt "Open the file."

There are some three thousand pairs, so the model learns these pages and not French. Ctrl-C saves,
and --resume goes on.""",
    "classifier": """\
Teach a small encoder to tell positive sentences of film reviews from negative ones.

  python -m tfbook train classifier runs/films
  python -m tfbook generate runs/films --prompt "A dull, lifeless film."

Of two classes chance gets half. The run stops when the loss on other sentences no longer falls,
and keeps its best weights. Ctrl-C saves, and --resume goes on.""",
}

# What each choice means, where it says more than its name.
HELP = {
    "text": (str, "a text file (UTF-8) to learn; its last tenth is kept for testing"),
    "vocab": (int, "learn so many tokens by byte-pair encoding (260 or more)"),
    "context": (int, "tokens that the model sees at once; attention costs its square"),
    "d_model": (int, "numbers for each token in the residual stream"),
    "layers": (int, "blocks, each attention and a feed-forward network"),
    "heads": (int, "attention heads of a block; they share d_model among them"),
    "dropout": (float, "how much of what a block adds is dropped; for small data 0.1 to 0.3"),
    "steps": (int, "how often the weights are changed"),
    "batch": (int, "sequences for a step, over all processes"),
    "accumulate": (int, "batches for a step: larger steps in the same memory"),
    "lr": (float, "learning rate at its highest: the choice that matters most"),
    "warmup": (int, "steps in which the learning rate rises to it (a tenth, at most 100)"),
    "schedule": (("constant", "linear", "cosine"), "how it falls after that"),
    "optimizer": (("adamw", "muon"), "how a gradient becomes a step"),
    "weight_decay": (float, "how much matrices shrink at each step, times the learning rate"),
    "clip": (float, "longest gradient: a longer one is shortened to it"),
    "precision": (PRECISIONS, "of products; bfloat16 pays on a GPU, and not on most CPUs"),
    "seed": (int, "of everything that is drawn; the same seed gives the same run"),
    "every": (int, "steps between two evaluations, and between two checkpoints"),
    "patience": (int, "stop after so many evaluations that brought nothing better"),
}


def parser() -> argparse.ArgumentParser:
    """Return what reads the arguments; its help texts are the manual."""
    top = _parser(argparse.ArgumentParser, prog="python -m tfbook", description=ABOUT)
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    new = partial(_parser, commands.add_parser)

    train = new("train", help="teach a model", description="Teach a model. Choose a task:")
    tasks = train.add_subparsers(dest="task", required=True, metavar="task")
    for name, text in TRAIN.items():
        one = _parser(tasks.add_parser, name, help=text.split(".")[0], description=text)
        one.add_argument("folder", help="where the run is kept; a new one for each run")
        one.add_argument("--resume", action="store_true", help="go on where the run stopped")
        one.add_argument("--shard", action="store_true", help="under torchrun: cut the weights")
        one.add_argument("--quiet", action="store_true", help="show no bar")
        for choice, default in DEFAULTS[name].items():
            kind, meaning = HELP[choice]
            named = isinstance(kind, tuple)
            one.add_argument(
                f"--{choice.replace('_', '-')}",
                type=str if named else kind,
                choices=kind if named else None,
                default=argparse.SUPPRESS,  # to tell what was asked for from what was not
                metavar=None if named else {int: "N", float: "X", str: "FILE"}[kind],
                help=meaning + ("" if default is None else f" ({default})"),
            )
    write = new("generate", help="let a model write", description=GENERATE)
    write.add_argument("model", help=f"a run's folder, or one of {', '.join(_languages())}")
    write.add_argument("--prompt", default="\n", help="what the text begins with")
    chat = new("chat", help="talk with a chat model", description=CHAT)
    chat.add_argument("model", nargs="?", default="smollm2-135m", help="its name or its folder")
    chat.add_argument("--system", metavar="TEXT", help="how it is to behave")
    for one, n, heat in ((write, 300, 0.8), (chat, 512, 0.2)):
        one.add_argument("--tokens", type=int, default=n, metavar="N", help=f"at most ({n})")
        taste = f"0 takes the likeliest token, 1 draws as the model believes ({heat})"
        one.add_argument("--temperature", type=float, default=heat, metavar="X", help=taste)
        one.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest only")
        one.add_argument("--top-p", type=float, metavar="X", help="… from those that make up X")
        one.add_argument("--seed", type=int, metavar="N", help="draw the same again")

    look = new("inspect", help="look at the parts of a model", description=INSPECT)
    look.add_argument("model", help=f"a run's folder, or one of {', '.join(PRESETS)}")
    look.add_argument("--length", type=int, default=256, metavar="N", help="tokens (256)")

    bench = new("bench", help="measure this machine", description=BENCH)
    bench.add_argument("--seconds", type=float, default=5.0, metavar="X", help="for each (5)")
    bench.add_argument("--threads", type=int, metavar="N", help="how many to use")
    return top


GENERATE = """\
Let a trained model write, token by token, as it is computed. A translator translates the prompt,
and a classifier says how positive it is.

  python -m tfbook generate runs/shakespeare --prompt "JULIET:" --temperature 0.7"""
CHAT = """\
Talk with a chat model, by default SmolLM2. Ctrl-C ends an answer, at a question it ends the chat,
as Ctrl-D does.

  python -m tfbook chat --system "Answer in one sentence."
"""
INSPECT = """\
Show a model part by part: shape, parameters, and floating-point operations of one pass.

  python -m tfbook inspect gpt2 --length 1024"""
BENCH = """\
Measure how many tokens a second the model of `train lm` trains on and writes, on this machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return 0, 1 for an error, 130 after Ctrl-C."""
    chosen = parser().parse_args(arguments)
    do = {"train": _train, "generate": _generate, "chat": _chat}
    do |= {"inspect": _inspect, "bench": _bench}
    try:
        do[chosen.command](chosen)
    except KeyboardInterrupt as stop:
        _say(f"{stop or 'stopped'}".capitalize())
        return 130
    except (ArithmeticError, ImportError, OSError, TypeError, ValueError) as error:
        if os.environ.get("TFBOOK_TRACEBACK"):
            raise
        _say(f"error: {error}")
        return 1
    return 0


def _train(chosen):
    asked = {name: value for name, value in vars(chosen).items() if name in HELP}
    first = int(os.environ.get("RANK", "0")) == 0
    if chosen.resume:
        task, choices = read_choices(chosen.folder)
        differing = {"task": chosen.task} | asked
        for name, value in differing.items():
            kept = task if name == "task" else choices[name]
            if value != kept:
                raise ValueError(
                    f"the run in {chosen.folder} has {name} {kept!r}, not {value!r}: go on with "
                    "--resume alone, or begin another run in another folder"
                )
    else:
        choices = DEFAULTS[chosen.task] | asked
        if choices["warmup"] is None:
            choices["warmup"] = min(100, choices["steps"] // 10)
    check_number("lr", choices["lr"], above=0)
    ready = make_task(chosen.task, choices)
    course = {"warmup": choices["warmup"]}
    if choices["schedule"] != "constant":
        course["steps"] = choices["steps"]
    falling = schedule(choices["schedule"], **course)
    optimizer = _optimizer(choices, chosen.shard)
    if not chosen.shard:  # which cuts the weights first
        optimizer = optimizer(ready.model)
    if not chosen.resume and first:
        write_choices(chosen.folder, chosen.task, choices, ready.tokenizer)
    if first:
        _say(f"{ready.model.count_parameters():,} parameters, {choices['steps']:,} steps")
        if chosen.resume:
            _say(f"going on after {max(steps_in(chosen.folder), default=0):,} steps")
    found = fit(
        ready.model,
        ready.batches,
        loss=ready.loss,
        optimizer=optimizer,
        steps=choices["steps"],
        schedule=falling,
        clip=choices["clip"],
        seed=choices["seed"],
        execution=Execution(
            accumulate=choices["accumulate"], precision=choices["precision"], shard=chosen.shard
        ),
        monitoring=Monitoring(
            evaluate=ready.evaluate,
            every=choices["every"],
            patience=choices["patience"],
            log=os.path.join(chosen.folder, "log.jsonl"),
        ),
        checkpointing=Checkpointing(chosen.folder, every=choices["every"]),
        progress=not chosen.quiet,
    )
    if first:
        numbers = found.evaluations[-1]
        after = (
            f"after {numbers['after']:,} of {choices['steps']:,} steps and {found.seconds:.0f} s"
        )
        shown = (f"{name} {value:.4f}" for name, value in numbers.items() if name != "after")
        _say(f"{after}: {', '.join(shown)}; kept in {chosen.folder}")


def _optimizer(choices, shard):
    """Return what makes the optimizer of a model."""
    name, lr, decay = (choices[each] for each in ("optimizer", "lr", "weight_decay"))
    if name == "muon" and shard:
        raise ValueError("muon makes whole matrices orthogonal, and --shard cuts them: use adamw")

    def make(model):
        if name == "muon":
            groups = muon_groups(model, lr=lr, adamw_lr=lr, weight_decay=decay)
            return Muon(groups, scale="adamw")
        groups = decay_groups(model, decay)
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99), fused=not shard)

    return make


def _generate(chosen):
    model, encode, decode, ends, state = _read_model(chosen.model)
    prompt = encode(chosen.prompt)
    if isinstance(model.config.head, Classes):
        with torch.no_grad():
            positive = model(torch.tensor([[BOS, *prompt]])).softmax(-1)[0, 1]  # of (1, 2)
        print(f"positive with probability {positive:.3f}")
        return
    sampling = GREEDY
    if chosen.temperature != 0:
        sampling = Sampling(temperature=chosen.temperature, top_k=chosen.top_k, top_p=chosen.top_p)
    if hasattr(model, "remember"):
        source = torch.tensor([[*prompt, EOS]])
        with torch.no_grad():
            state, prompt = model.remember(source), [BOS]
    else:
        print(chosen.prompt, end="", flush=True)
    more = {"stop": ends, "seed": chosen.seed, "state": state}
    tokens = stream(model, prompt, max_new_tokens=chosen.tokens, sampling=sampling, **more)
    for piece in pieces(tokens, decode):
        print(piece, end="", flush=True)
    print()


def _chat(chosen):
    load = pretrained.load_directory if os.path.isdir(chosen.model) else pretrained.load
    taste = {"temperature": chosen.temperature, "top_k": chosen.top_k, "top_p": chosen.top_p}
    sampling = Sampling(repetition_penalty=1.1, **taste)
    choices = {"system": chosen.system, "max_new_tokens": chosen.tokens, "seed": chosen.seed}
    conversation = Conversation(load(chosen.model), sampling=sampling, **choices)
    converse(conversation, lambda: input("> "), partial(print, end="", flush=True))


def _read_model(name):
    """Return a model that writes, from text to ids and back, which ids end it, and its state."""
    if name in _languages():
        found = pretrained.load(name)
        ids_of = lambda text: found.encode(text)[0].tolist()  # noqa: E731
        return found.model, ids_of, found.decode, found.eos_ids, None
    if not os.path.isdir(name):
        raise ValueError(
            f"model must be a run's folder or one of {', '.join(_languages())}, got {name!r}"
        )
    model, tokenizer, _ = load_run(name)

    def encode(text):
        try:
            ids = tokenizer.encode(text).ids
        except Exception as error:  # the library raises nothing more precise
            raise ValueError(
                f"the prompt has a character that the model never saw: {error}"
            ) from None
        if not ids:
            raise ValueError("the prompt must hold at least one character")
        return ids

    ends = (EOS,) if hasattr(model, "remember") else ()
    return model, encode, tokenizer.decode, ends, None


def _inspect(chosen):
    if chosen.model in PRESETS:
        config = PRESETS[chosen.model]
    elif not os.path.isdir(chosen.model):
        raise ValueError(
            f"model must be a run's folder or one of {', '.join(PRESETS)}, got {chosen.model!r}"
        )
    else:
        model, _, step = load_run(chosen.model)
        config = model.config
        _say(f"{chosen.model}: {read_choices(chosen.model)[0]}, after {step:,} steps")
    if chosen.length > (config.max_len or chosen.length):
        raise ValueError(
            f"{chosen.model} reads at most {config.max_len:,} tokens, got --length {chosen.length}"
        )
    # An image has as many tokens as patches.
    images = isinstance(config.embedding, Patches)
    print(config.summary(None if images else chosen.length))


def _bench(chosen):
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    sizes = {"d_model": 128, "n_layers": 4, "n_heads": 4, "n_kv_heads": 4, "d_ff": 344}
    config = preset("smollm2-135m", vocab_size=63, **sizes)
    model, batch = build(config), torch.randint(0, 63, (16, 257))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train():
        optimizer.zero_grad()
        logits, _ = model(batch[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        return 16 * 256

    def write():
        return len(generate(model.eval(), batch[:1, :16], max_new_tokens=32).tokens[0])

    print(f"{config.count_parameters():,} parameters, {torch.get_num_threads()} threads")
    for name, do in (("training", train), ("writing", write)):
        do()  # the first is slower
        begun, tokens = time.perf_counter(), 0
        while time.perf_counter() - begun < chosen.seconds:
            tokens += do()
        print(f"{name:10}{tokens / (time.perf_counter() - begun):>10,.0f} tokens a second")


def _languages():
    """Return the names of the pretrained models that write."""
    return [n for n in pretrained.names() if n not in PRESETS or PRESETS[n].kind == "decoder"]


def _parser(make, *args, **choices):
    return make(*args, formatter_class=argparse.RawDescriptionHelpFormatter, **choices)


def _say(text):
    """Say something that is no result."""
    print(text, file=sys.stderr)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
