"""What does a token take that is read, one that is written, and one that is learned from?

One thread, float32, SmolLM2 as it is, and a text of so many tokens, drawn at random, since the
numbers do not change the time. `reading` is one pass over all of them, with the scores of the
vocabulary for the last one only. `writing` is one token more, behind as many in a KV cache whose
room was set aside beforehand, and `alone` one behind the 20 tokens of the experiment
:mod:`tfbook.experiments.one_pass`, to compare with it. All three are timed as
:mod:`tfbook.experiments.long_texts` does it: `products` with parameters, `attention` (scores,
softmax and sums of values, tile by tile and without the pairs that the causal mask throws away),
and the `rest` add up to the `whole`.

`learning` is one step of training on the text: the `forward` pass to the cross-entropy of each next
token, the `backward` pass, and the step of the `optimizer`, AdamW, which clears the gradients as
well. They add up to the `whole`. Nothing is saved by checkpointing.

Of all rounds, after one to warm up, the log holds the fastest, in processor seconds of the one
thread: other programs that share the memory can only slow one down. `slowest` is the whole of the
step that took longest. `core` holds the FLOPs and bytes a second of the core, measured in the same
run.

Explained in: chapters/06_complexity, section "Reading a prompt, writing an answer".
"""

from collections.abc import Sequence
from time import process_time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook import costs, pretrained
from tfbook.experiments.long_texts import fastest_round, writer
from tfbook.experiments.one_pass import SEEN

__all__ = ["SMOKE", "run"]

PARTS = ("forward", "backward", "optimizer")
RATE = 1e-6  # so small that the model stays what it is
SMOKE = {"length": 4, "rounds": 1, "steps": 1, "measuring": 0.05}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters in float32",
    "data": "a text of {length:,} tokens: read in one pass, one token written after it, "
    "one step of training",
    "steps": "nothing is trained beyond that; the fastest of up to {rounds} passes and of {steps} "
    "steps, in processor time",
    "batch": "",
    "rate": "",
}


def step_of(model: nn.Module, adamw: torch.optim.Optimizer, tokens: Tensor) -> dict[str, float]:
    """Take one step of training, and return the seconds of its parts and of the whole."""
    times = [process_time()]
    logits, _ = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    times.append(process_time())
    loss.backward()
    times.append(process_time())
    adamw.step()
    adamw.zero_grad()
    times.append(process_time())
    parts = [b - a for a, b in zip(times, times[1:], strict=False)]
    return {"whole": times[-1] - times[0], **dict(zip(PARTS, parts, strict=True))}


def learn(model: nn.Module, tokens: Tensor, steps: int) -> tuple[dict[str, float], float]:
    """Return the parts of the fastest of so many steps on one text, and the slowest whole."""
    adamw = torch.optim.AdamW(model.parameters(), lr=RATE)
    found = [step_of(model, adamw, tokens) for _ in range(steps + 1)][1:]
    found.sort(key=lambda one: one["whole"])
    best = {name: round(seconds, 6) for name, seconds in found[0].items()}
    return best, round(found[-1]["whole"], 6)


def written(model: nn.Module, behind: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """Return the parts of the fastest pass of one token behind so many, for each number."""
    found = []
    for count in behind:
        write = writer(model, count, rounds)
        write()
        found.append(fastest_round(write, rounds))
    return found


def run(
    *, length: int = 1000, rounds: int = 15, steps: int = 7, measuring: float = 3.0
) -> tuple[dict, None]:
    """Time a pass over a text, of one token behind it, and a step of training on it.

    Args:
        length: tokens of the text.
        rounds: of which the fastest is taken; fewer of long passes.
        steps: of training, of which the fastest is taken.
        measuring: seconds for the two numbers of the machine.
    """
    torch.manual_seed(0)
    core = costs.measure_machine(threads=1, seconds=measuring)
    model = pretrained.load("smollm2-135m").model
    tokens = torch.randint(49_152, (1, length + 1))
    with torch.no_grad():
        alone, writing = written(model, (SEEN, length), rounds)
        model.decode(tokens[:, :-1], last=True)
        reading = fastest_round(lambda: model.decode(tokens[:, :-1], last=True), rounds)
    learning, slowest = learn(model.train().requires_grad_(True), tokens, steps)
    return {
        "settings": {"length": length, "rounds": rounds, "steps": steps},
        "reading": reading, "writing": writing, "alone": alone,
        "learning": learning, "slowest": slowest,
        "core": {"flops": core.flops, "bandwidth": core.bandwidth},
    }, None  # fmt: skip
