"""What the command line understands, and what it says about itself.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import argparse
from functools import partial

import tfbook
from tfbook import pretrained
from tfbook.models import PRESETS
from tfbook.practice import TUNING
from tfbook.training import DEFAULTS, DEVICES, MEANINGS

__all__ = ["ABOUT", "languages", "parser"]

ABOUT = """\
The Executable Transformer, from the command line.

  train      teach a model, stop it, go on with it
             python -m tfbook train lm runs/shakespeare
  finetune   teach a pretrained model your own examples
             python -m tfbook finetune runs/mine --data mine.jsonl
  generate   let a trained model write
             python -m tfbook generate runs/shakespeare --prompt "ROMEO:"
  chat       talk with a chat model
             python -m tfbook chat
  serve      answer programs over HTTP, as servers of language models do
             python -m tfbook serve
  inspect    look at the parts of a model, and count them
             python -m tfbook inspect gpt2
  bench      measure how fast this machine trains and writes
             python -m tfbook bench

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

With --steps 2000 it goes on to more steps than it was begun with: the learning rate then falls to
the new end, so it may rise first.

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

FINETUNE = """\
Teach a pretrained model your own examples: lines with a label, questions with answers, or a text.

  python -m tfbook finetune runs/mine --data mine.jsonl
  python -m tfbook generate runs/mine --prompt "What is a fjord?"

| ends in    | holds                                                                     |
| .tsv .csv  | a first line that names the columns text and label, then a line for each  |
| .jsonl     | {"text": …, "label": …} in each line                                      |
|            | or {"prompt": …, "answer": …}, or {"messages": [{"role": …, "content": …}]} |
| .txt .md   | a text to go on with                                                      |

Labels are learned by MiniLM, with all its weights; answers and texts by SmolLM2, with adapters of
rank 8 (LoRA). --lora RANK, --full and --freeze 'PATTERN PATTERN' choose another way. Of answers
only the answer is learned, not the question. A tenth of the examples is kept for testing.

The folder keeps checkpoints of what is trained and a log; with --full these are three times the
model. Ctrl-C saves, and a run that was stopped in any way goes on with

  python -m tfbook finetune runs/mine --resume"""

OTHER_NAMES = {"lr": ("--rate",)}
METAVARS = {"model": "NAME", "freeze": "PATTERNS"}
SHORT = {"bf16": "bfloat16", "fp32": "float32"}


def parser() -> argparse.ArgumentParser:
    """Return what reads the arguments; its help texts are the manual.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    top = _parser(argparse.ArgumentParser, prog="python -m tfbook", description=ABOUT)
    top.add_argument("--version", action="version", version=f"tfbook {tfbook.__version__}")
    commands = top.add_subparsers(dest="command", metavar="command")
    new = partial(_parser, commands.add_parser)

    train = new("train", help="teach a model", description="Teach a model. Choose a task:")
    tasks = train.add_subparsers(dest="task", required=True, metavar="task")
    for name, text in TRAIN.items():
        one = _parser(tasks.add_parser, name, help=text.split(".")[0], description=text)
        one.add_argument("folder", help="where the run is kept; a new one for each run")
        one.add_argument("--resume", action="store_true", help="go on where the run stopped")
        one.add_argument("--shard", action="store_true", help="under torchrun: cut the weights")
        one.add_argument("--quiet", action="store_true", help="show no bar")
        _add_device(one)
        for choice, default in DEFAULTS[name].items():
            _add_choice(one, choice, default, *MEANINGS[choice])
    tune = new("finetune", help="teach a pretrained model your examples", description=FINETUNE)
    tune.add_argument("folder", help="where the run is kept; a new one for each run")
    tune.add_argument("--resume", action="store_true", help="go on where the run stopped")
    tune.add_argument("--quiet", action="store_true", help="show no bar")
    _add_device(tune)
    for choice, (default, kind, meaning) in TUNING.items():
        if kind is bool:
            flag = f"--{choice.replace('_', '-')}"
            missing = {"action": "store_true", "default": argparse.SUPPRESS}
            tune.add_argument(flag, dest=choice, help=meaning, **missing)
        else:
            _add_choice(tune, choice, default, kind, meaning)

    write = new("generate", help="let a model write", description=GENERATE)
    write.add_argument("model", help=f"a run's folder, or one of {', '.join(languages())}")
    write.add_argument("--prompt", default="\n", help="what the text begins with")
    chat = new("chat", help="talk with a chat model", description=CHAT)
    chat.add_argument("model", nargs="?", default="smollm2-135m", help="its name or its folder")
    chat.add_argument("--system", metavar="TEXT", help="how it is to behave")
    _add_sampling(write, "how many (300, or as many as the model has room for)", None, 0.8)
    _add_sampling(chat, "of an answer at most (512)", 512, 0.2)
    _add_device(write)

    _add_serving(new("serve", help="answer programs over HTTP", description=SERVE))

    look = new("inspect", help="look at the parts of a model", description=INSPECT)
    look.add_argument("model", help=f"a run's folder, or one of {', '.join(PRESETS)}")
    look.add_argument("--length", type=int, metavar="N", help="tokens (256, or what it reads)")

    bench = new("bench", help="measure this machine", description=BENCH)
    bench.add_argument("--seconds", type=float, default=5.0, metavar="X", help="for each (5)")
    bench.add_argument("--threads", type=int, metavar="N", help="how many to use")
    return top


def _add_device(command):
    where = "where to compute (auto: CUDA, else MPS, else the CPU)"
    command.add_argument("--device", choices=DEVICES, default="auto", help=where)


def _add_sampling(command, many, tokens, heat):
    """Add how much is written and how tokens are drawn."""
    command.add_argument("--tokens", type=int, default=tokens, metavar="N", help=many)
    taste = f"0 takes the likeliest token, 1 draws as the model believes ({heat})"
    command.add_argument("--temperature", type=float, default=heat, metavar="X", help=taste)
    command.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest only")
    command.add_argument("--top-p", type=float, metavar="X", help="… from those that make up X")
    command.add_argument("--seed", type=int, metavar="N", help="draw the same again")


def _add_serving(serve):
    """Add where a server listens, and how much it takes on at once."""
    serve.add_argument("model", nargs="?", default="smollm2-135m", help="its name or its folder")
    bits = "of SmolLM2: 4 or 8 bits a number write about twice as fast (float32)"
    serve.add_argument(
        "--weights", choices=("float32", "int8", "int4"), default="float32", help=bits
    )
    where = "the address to listen at; another than the loopback lets other machines in (127.0.0.1)"
    serve.add_argument("--host", default="127.0.0.1", help=where)
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="0 for any free (8000)")
    for name, default, meaning in (
        ("slots", 8, "texts that are written at once"),
        ("queue", 64, "requests that may wait; one more is told to come later"),
        ("cache", 512, "MiB for keys and values"),
    ):
        help = f"{meaning} ({default})"
        serve.add_argument(f"--{name}", type=int, default=default, metavar="N", help=help)
    bits = "give each text the same bits whoever is served beside it, which takes longer"
    serve.add_argument("--invariant", action="store_true", help=bits)
    grace = "seconds to finish what is under way when it is stopped (5)"
    serve.add_argument("--grace", type=float, default=5.0, metavar="X", help=grace)
    serve.add_argument("--threads", type=int, metavar="N", help="how many to use")
    _add_device(serve)


def _add_choice(command, choice, default, kind, meaning):
    """Add one of a run's choices to a command."""
    named = isinstance(kind, tuple)
    command.add_argument(
        f"--{choice.replace('_', '-')}",
        *OTHER_NAMES.get(choice, ()),
        dest=choice,
        type=(lambda name: SHORT.get(name, name)) if named else kind,
        choices=kind if named else None,
        default=argparse.SUPPRESS,  # to tell what was asked for from what was not
        metavar=None if named else METAVARS.get(choice, {int: "N", float: "X", str: "FILE"}[kind]),
        help=meaning + ("" if default is None else f" ({default})"),
    )


GENERATE = """\
Let a trained model write, token by token, as it is computed. A translator translates the prompt,
and a classifier says how positive it is; one that was fine-tuned says how likely each label is, and
what learned answers gives an answer.

  python -m tfbook generate runs/shakespeare --prompt "JULIET:" --temperature 0.7"""
CHAT = """\
Talk with a chat model, by default SmolLM2. Ctrl-C ends an answer, at a question it ends the chat,
as Ctrl-D does.

  python -m tfbook chat --system "Answer in one sentence."
"""
SERVE = """\
Answer programs over HTTP, by the usual interface of completions: POST /v1/completions and
/v1/chat/completions, streamed or not, GET /v1/models and /health. Requests that come together are
computed together. Ctrl-C or SIGTERM finishes what is under way.

  python -m tfbook serve --weights int4
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2-135m", "messages": [{"role": "user", "content": "What is a fjord?"}]}'

It speaks plain HTTP and asks for no key, so it listens to this machine alone."""
INSPECT = """\
Show a model part by part: shape, parameters, and floating-point operations of one pass.

  python -m tfbook inspect gpt2 --length 1024"""
BENCH = """\
Measure how many tokens a second the model of `train lm` trains on and writes, on this machine."""


def languages() -> list[str]:
    """Return the names of the pretrained models that write.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    return [
        name
        for name in pretrained.names()
        if name not in PRESETS or PRESETS[name].kind == "decoder"
    ]


def _parser(make, *args, **choices):
    return make(*args, formatter_class=argparse.RawDescriptionHelpFormatter, **choices)
