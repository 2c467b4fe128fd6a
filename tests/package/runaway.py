"""A tiny training run as a program, for tests that kill it: `python runaway.py FOLDER JSON`.

The JSON says how many steps, and where the process kills itself: "at" the start of a step, or in
the middle of writing a checkpoint, at the nth "call" of a function of the operating system.
"""

import itertools
import json
import os
import signal
import sys
from dataclasses import fields

import torch
from torch.nn import functional

from tfbook.models import FFN, Attention, Layer, Rotary, Tokens, TransformerConfig, build
from tfbook.training import Checkpointing, Execution, History, Monitoring, fit

MODULES = ["torch._dynamo", "tfbook.models", "tfbook.training"]  # what takes long to import


def model(dropout=0.1):
    torch.manual_seed(3)
    layer = Layer(Attention(2, position=Rotary()), FFN(16), dropout=dropout)
    embedding = Tokens(dropout=dropout)
    return build(TransformerConfig(13, 8, decoder=[layer] * 2, embedding=embedding))


class Loader:
    """Batches in an order drawn anew for each pass over the data, and which is next."""

    def __init__(self, seed=7, rows=29, size=6):
        drawn = torch.Generator().manual_seed(seed)
        self.data = torch.randint(0, 13, (rows, 11), generator=drawn)
        self.seed, self.size, self.epoch, self.start = seed, size, 0, 0

    def __iter__(self):
        while self.start + self.size <= len(self.data):
            order = torch.Generator().manual_seed(self.seed + self.epoch)
            rows = torch.randperm(len(self.data), generator=order)
            rows = rows[self.start : self.start + self.size]
            self.start += self.size
            yield self.data[rows]
        self.epoch, self.start = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "start": self.start}

    def load_state_dict(self, state):
        self.epoch, self.start = state["epoch"], state["start"]


def loss(model, tokens):
    logits, _ = model(tokens[:, :-1])  # (B, N, V)
    terms = tokens[:, 1:].flatten()  # (B N,)
    return functional.cross_entropy(logits.flatten(0, 1), terms, reduction="sum"), len(terms)


def mean_loss(model, tokens):
    value, count = loss(model, tokens)
    return value / count


def grouped(folder=None, **choices):
    """Return the arguments of `fit` from choices without groups: how often to save is `save_every`.

    A choice of saving without a folder is none that `fit` can be given.
    """
    saving = {"save_every": "every", "keep": "keep", "resume": "resume"}
    saving = {saving[name]: choices.pop(name) for name in saving if name in choices}
    for name, group in (("execution", Execution), ("monitoring", Monitoring)):
        known = {each.name for each in fields(group)}
        choices[name] = group(**{each: choices.pop(each) for each in known if each in choices})
    if folder is not None:
        choices["checkpointing"] = Checkpointing(folder, **saving)
    return choices


def train(folder, *, steps=11, save_every=2, batches=None, **choices) -> History:
    """Train for some steps; every choice of the run is in here."""
    defaults = {
        "loss": loss,
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        "schedule": lambda step: min(1.0, (step + 1) / 5),
        "clip": 0.9,
        "accumulate": 2,
        "seed": 5,
        "progress": False,
        "save_every": save_every,
        "log": None if folder is None else os.path.join(folder, "log.jsonl"),
    }
    net = choices.pop("model", None)
    return fit(
        model() if net is None else net,
        batches or Loader(),
        steps=steps,
        **grouped(folder, **defaults | choices),
    )


def die(*ignored):
    """End as if the power failed."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(name, number):
    """Kill the process before the nth call of a function of `os`."""
    real, calls = getattr(os, name), itertools.count(1)

    def call(*args, **kwargs):
        if next(calls) == number:
            die()
        return real(*args, **kwargs)

    setattr(os, name, call)


def run(folder, how, said=None):
    """Train as told, and write what was measured into a file, or print it."""
    torch.set_num_threads(1)
    if said is not None:
        sys.stdout = sys.stderr = open(said, "w", encoding="utf-8", buffering=1)
    os.environ.update(how.get("environment", {}))
    choices = {"steps": how["steps"], "shard": how.get("shard", False)}
    choices["model"] = model(how.get("dropout", 0.1))
    if how.get("mean"):
        choices |= {"loss": mean_loss, "batches": Loader(size=5)}
    if "call" in how:
        die_at_call(*how["call"])
    if "at" in how:

        def schedule(step):
            if step == how["at"] and os.environ.get("RANK", "0") == how.get("rank", "0"):
                os.kill(os.getpid(), how["signal"])
            return min(1.0, (step + 1) / 5)

        choices["schedule"] = schedule
    if "largest" in how:  # the system refuses to write a file beyond so many bytes
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (how["largest"], how["largest"]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    found = train(folder, **choices)
    if how.get("held"):
        held = (each.to_local() if how["shard"] else each for each in choices["model"].parameters())
        print(sum(each.numel() for each in held))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"losses": found.losses, "norms": found.gradient_norms}))


if __name__ == "__main__":
    run(sys.argv[1], json.loads(sys.argv[2]))
