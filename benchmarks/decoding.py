"""SmolLM2 in 4 bits, 8 bits and float32, token by token: by its modules and in few operations.

Setting: one sequence behind a prompt of 128 tokens, a static cache, one thread, no gradients. The
modules are what runs while a hook is registered; without one a token passes the layers as
:mod:`tfbook.blocks.stepping` does it. All variants are timed in turn, on the same tokens, and what
they say is compared first. Where llama-cpp-python is installed, llama.cpp decodes the same tokens
from the same file, in the same rounds. The last column is the memory of a fresh process that loads
the model and decodes, beyond that of one that has imported PyTorch and this package.
"""

import importlib.util
import subprocess
import sys

import torch
from torch import Tensor, nn

from benchmarks.measure import machine, time_ratios
from tfbook import data, pretrained
from tfbook.attention import StaticCache

WEIGHTS = ("float32", "int8", "int4")
PROMPT, NEW, ROUNDS = 128, 8, 9
LEAST = {"int8": 2.0, "int4": 4.0}  # times as fast as the modules in float32
APART = {"float32": 1e-4, "int8": 0.05, "int4": 0.05}  # of the norm of the logits
MOST = {"int4": 250.0}  # MiB beyond the libraries
PEER, PEER_LEAST = "llama.cpp", {"int4": 0.7}  # times as fast as llama.cpp, on the same file
MEMORY = """
import sys, torch, tokenizers, tfbook.generation
from tfbook import pretrained
def held():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
torch.set_num_threads(1)
before = held()
if sys.argv[1]:
    model = pretrained.load("smollm2-135m", weights=sys.argv[1])
    tfbook.generation.generate(model, list(range(1, 129)), max_new_tokens=8, stop=[])
print(held() - before)
"""


class Decoder:
    """A model behind a prompt, from where it decodes the same tokens again and again."""

    def __init__(self, weights: str):
        """Read the prompt."""
        smol = pretrained.load("smollm2-135m", weights=weights)
        self.model: nn.Module = smol.model
        self.ids = smol.encode(data.shakespeare()[:2000])[:, : PROMPT + NEW]
        room = self.model.empty_state(1, cache=StaticCache(PROMPT + NEW))
        _, self.start = self.model(self.ids[:, :PROMPT], room, last=True)

    def run(self, *, hooked: bool = False) -> Tensor:
        """Decode, and return the last logits; with a hook, which the modules are needed for."""
        handle = self.model.stack.register_forward_hook(lambda *_: None) if hooked else None
        for layer in self.start.layers:  # nobody goes on from here: the room may be filled again
            layer.mixer.room.filled = self.start.length
        state = self.start
        for i in range(PROMPT, PROMPT + NEW):
            found, state = self.model(self.ids[:, i : i + 1], state, last=True)
        if handle is not None:
            handle.remove()
        return found


class Peer:
    """llama.cpp with the same file, behind the same prompt, on one thread."""

    def __init__(self, ids: Tensor):
        """Read the prompt."""
        from llama_cpp import Llama

        name = "SmolLM2-135M-Instruct.Q4_1.gguf"
        path = next(path for path in pretrained.find_package("smollm2-135m") if path.name == name)
        self.ids = ids[0].tolist()
        choices = {"n_threads": 1, "n_threads_batch": 1, "n_ctx": 256, "verbose": False}
        self.llama = Llama(str(path), **choices)
        self.llama.eval(self.ids[:PROMPT])

    def run(self) -> Tensor:
        """Decode, and return the last logits."""
        self.llama.n_tokens = PROMPT  # what stands behind is forgotten
        for i in range(PROMPT, PROMPT + NEW):
            self.llama.eval([self.ids[i]])
        vocabulary = self.llama.n_vocab()
        pointer = self.llama._ctx.get_logits()  # of the last token
        return torch.tensor(pointer[:vocabulary])


def _memory(weights: str) -> float | None:
    """Return the MiB of a process that decodes, beyond its libraries; None where none are told."""
    run = [sys.executable, "-c", MEMORY, weights]
    found = subprocess.run(run, capture_output=True, text=True)
    return float(found.stdout) if found.returncode == 0 else None


@torch.no_grad()
def run(rounds: int = ROUNDS) -> dict[str, object]:
    """Measure each kind of weights both ways.

    Args:
        rounds: how often each is timed.

    Returns:
        The setting, the machine and a row for each kind.
    """
    decoders = {weights: Decoder(weights) for weights in WEIGHTS}
    apart = {}
    for weights, decoder in decoders.items():
        right = decoder.run(hooked=True)
        apart[weights] = float((decoder.run() - right).norm() / right.norm())
        assert apart[weights] <= APART[weights], (weights, apart[weights])
    calls = {f"{w}, modules": lambda d=d: d.run(hooked=True) for w, d in decoders.items()}
    calls |= {w: d.run for w, d in decoders.items()}
    if importlib.util.find_spec("llama_cpp"):
        peer = Peer(decoders["int4"].ids)
        right, said = decoders["float32"].run().flatten(), peer.run()
        apart[PEER] = float((said - right).norm() / right.norm())
        assert apart[PEER] <= APART["int4"], apart[PEER]
        calls[PEER] = peer.run
    baseline = "float32, modules"
    against = time_ratios(calls, baseline, rounds)
    rows = []
    for weights in WEIGHTS:
        ours, modules = against[weights], against[f"{weights}, modules"]
        speed, memory = 1 / ours["ratio"], _memory(weights)
        row = {
            "weights": weights,
            "tokens/s": NEW / ours["ms"] * 1e3,
            "tokens/s by modules": NEW / modules["ms"] * 1e3,
            "times float32 by modules": speed,
            "spread": [1 / ratio for ratio in reversed(ours["spread"])],
            "times float32": against["float32"]["ms"] / ours["ms"],
            "apart": apart[weights],
            "MiB": memory,
            "targets": {},
        }
        if PEER in against:
            row[f"times {PEER}"] = against[PEER]["ms"] / ours["ms"]
            if weights in PEER_LEAST:
                limit = PEER_LEAST[weights]
                target = {"limit": limit, "met": row[f"times {PEER}"] >= limit}
                row["targets"][f"times {PEER}"] = target
        if weights in LEAST:
            limit = LEAST[weights]
            row["targets"]["times float32 by modules"] = {"limit": limit, "met": speed >= limit}
        if weights in MOST and memory is not None:
            row["targets"]["MiB"] = {"limit": MOST[weights], "met": memory <= MOST[weights]}
        rows.append(row)
    setting = {"prompt": PROMPT, "new tokens": NEW, "cache": "static", "baseline": baseline}
    if PEER in against:
        setting[f"{PEER} tokens/s"] = NEW / against[PEER]["ms"] * 1e3
        setting[f"{PEER} apart"] = apart[PEER]
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    lines = [
        f"{'weights':<8} {'tokens/s':>9} {'by modules':>11} {'× float32 by modules':>21} "
        f"{'× float32':>10} {'MiB':>10} {f'× {PEER}':>12}"
    ]
    for row in results["rows"]:
        told = {}
        signs = ("times float32 by modules", "≥"), ("MiB", "≤"), (f"times {PEER}", "≥")
        for name, sign in signs:
            target = row["targets"].get(name)
            told[name] = "" if row.get(name) is None else f"{row[name]:.2f}"
            if target:
                told[name] += f" {sign}{target['limit']:g}{' ' if target['met'] else '!'}"
        lines.append(
            f"{row['weights']:<8} {row['tokens/s']:>9.1f} {row['tokens/s by modules']:>11.1f} "
            f"{told['times float32 by modules']:>21} {row['times float32']:>10.2f} "
            f"{told['MiB']:>10} {told[f'times {PEER}']:>12}"
        )
    return "\n".join(lines)
