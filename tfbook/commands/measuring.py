"""Looking at a model and measuring the machine, from the command line.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import argparse
import os
import time

import torch

from tfbook._checks import check_number
from tfbook.commands.training import say
from tfbook.generation import generate
from tfbook.models import PRESETS, Patches, build, preset
from tfbook.training import load_run, read_choices

__all__ = ["bench", "inspect"]


def inspect(chosen: argparse.Namespace) -> None:
    """Print the parts of a model.

    Raises:
        ValueError: for an unknown model, or a length that it does not read.
        OSError: if a run cannot be read.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    if chosen.model in PRESETS:
        config = PRESETS[chosen.model]
    elif not os.path.isdir(chosen.model):
        raise ValueError(
            f"model must be a run's folder or one of {', '.join(PRESETS)}, got {chosen.model!r}"
        )
    else:
        model, _, step = load_run(chosen.model)
        config = model.config
        say(f"{chosen.model}: {read_choices(chosen.model)[0]}, after {step:,} steps")
    length = min(256, config.max_len or 256) if chosen.length is None else chosen.length
    check_number("length", length, 1, 2**40, whole=True)
    if length > (config.max_len or length):
        raise ValueError(
            f"{chosen.model} reads at most {config.max_len:,} tokens, got --length {length}"
        )
    # An image has as many tokens as patches.
    images = isinstance(config.embedding, Patches)
    print(config.summary(None if images else length))


def bench(chosen: argparse.Namespace) -> None:
    """Print how many tokens a second this machine trains on and writes.

    Raises:
        ValueError: for a number out of its bounds.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    check_number("seconds", chosen.seconds, 0, 10**6)
    if chosen.threads is not None:
        check_number("threads", chosen.threads, 1, 1024, whole=True)
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
