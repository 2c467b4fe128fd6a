"""Well-known models as a figure needs them: their sizes to begin with, other ones, and each part.

Everything is read off the rows of :class:`tfbook.models.TransformerConfig`.
"""

import math
from collections.abc import Callable, Mapping

from tfbook.models import PRESETS as CONFIGS
from tfbook.models import Part, TransformerConfig, preset
from tfbook.teaching.explorables._base import whole

BYTES = {"float32": 4, "float16": 2, "int8": 1}
LONGEST = 32_768
LIMITS = {
    "d_model": (8, 16_384), "n_layers": (1, 128), "n_heads": (1, 128), "n_kv_heads": (1, 128),
    "d_ff": (1, 65_536), "vocab_size": (2, 300_000),
}  # fmt: skip
SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff", "vocab_size")
EVEN = ("d_model", "d_head")
# What no row says: how a reader calls the model, and its activation.
CALLED = {
    "transformer-base": ("Transformer base (2017)", "ReLU"),
    "transformer-big": ("Transformer big (2017)", "ReLU"),
    "bert-base": ("BERT base", "GELU"),
    "bert-large": ("BERT large", "GELU"),
    "minilm-l6": ("MiniLM-L6", "GELU"),
    "gpt": ("GPT", "GELU"),
    "gpt2": ("GPT-2", "GELU"),
    "gpt2-xl": ("GPT-2 XL", "GELU"),
    "gpt3-175b": ("GPT-3", "GELU"),
    "t5-small": ("T5 small", "ReLU"),
    "t5-base": ("T5 base", "ReLU"),
    "llama-7b": ("LLaMA 7B", "SiLU"),
    "smollm2-135m": ("SmolLM2 135M", "SiLU"),
}
# The end of a row's name, and the part of the figure that it belongs to.
KEYS = {
    "embed": "embed", "target_embed": "embed", "position": "position", "segments": "segments",
    "target_position": "position", "embed_norm": "embedding_norm", "mixer_residual.norm": "norm_1",
    "target_embed_norm": "embedding_norm", "cross_residual.norm": "norm_x", "head": "head",
    "ffn_residual.norm": "norm_2", "gate_proj": "up", "up_proj": "up", "down_proj": "down",
    "final_norm": "final_norm", "pooler": "pooler", "q_proj": "qkv", "k_proj": "qkv",
    "v_proj": "qkv", "scores": "scores", "z": "mix", "out_proj": "out",
}  # fmt: skip


def described(config: TransformerConfig, label: str, act: str) -> dict:
    """Return the sizes and choices of a config, which the page changes and counts by itself."""
    rows = config.parts(1)
    first: dict[str, Part] = {}
    for row in rows:
        first.setdefault(_end(row), row)
    names = [_end(row) for row in rows]
    d_model, vocab_size = first["embed"].shape[-1], first["embed"].parameters
    vocab_size //= d_model
    _, n_heads, _, d_head = first["z"].shape
    n_kv_heads = first["k_proj"].shape[-1] // d_head
    position = _position(first, d_model)
    max_len = first["position"].parameters // d_model if position == "learned" else None
    second = [row.parameters for row in rows if KEYS[_end(row)] == "embed"][1:]
    head, blocks = first.get("head"), names.count("q_proj") - names.count("cross_residual.norm")
    kind = "encoder-decoder" if second else "decoder" if head else "encoder"
    return {
        "label": label,
        "kind": kind,
        "n_kv_heads": None if n_kv_heads == n_heads else n_kv_heads,
        "norm": "rms" if first["mixer_residual.norm"].parameters == d_model else "layer",
        "place": "pre" if names.index("mixer_residual.norm") < names.index("q_proj") else "post",
        "final_norm": "final_norm" in first,
        "embedding_norm": "embed_norm" in first,
        "gated": "gate_proj" in first,
        "bias": first["q_proj"].parameters > d_model * n_heads * d_head,
        "act": act,
        "position": position,
        "max_len": config.max_len if position == "rotary" else max_len,
        "tied": not (head and head.parameters),
        "shared": second == [0],
        "segments": first["segments"].parameters // d_model if "segments" in first else 0,
        "pooler": "pooler" in first,
        "head": head is not None,
        "n_buckets": first["position"].parameters // n_heads if position == "t5" else 0,
        "d_model": d_model,
        "n_layers": blocks // (2 if second else 1),
        "n_heads": n_heads,
        "d_ff": first["up_proj"].shape[-1],
        "vocab_size": vocab_size,
    }


def _end(row: Part) -> str:
    """Return the end of a row's name by which its kind is known, as KEYS has it."""
    name = row.name.rpartition(".blocks.")[2]
    return name if name in KEYS else next(e for e in _LONGEST_FIRST if name.endswith("." + e))


_LONGEST_FIRST = sorted(KEYS, key=len, reverse=True)


def _position(first: Mapping[str, Part], d_model: int) -> str:
    """Return the scheme of positions: rotary ones are the only ones here without a row."""
    if "position" not in first:
        return "rotary"
    if first["position"].shape[-1] != d_model:
        return "t5"
    return "learned" if first["position"].parameters else "sinusoidal"


PRESETS = {name: described(CONFIGS[name], *called) for name, called in CALLED.items()}


def optional(name: str, low: int, high: int) -> Callable:
    """Return a check that lets None, for the preset's own, or a whole number through."""
    inner = whole(name, low, high)

    def check(value):
        if value is None:
            return None
        if inner(value) % 2 and name in EVEN:
            raise ValueError(f"{name} must be even, got {value}")
        return value

    return check


def divisor(number: int, wanted: int, fits: Callable[[int], bool] = bool) -> int:
    """Return the largest divisor of a number that is at most `wanted` and fits, else 1."""
    return max(
        (d for d in range(1, wanted + 1) if number % d == 0 and fits(number // d)), default=1
    )


def settled(now: dict) -> dict:
    """Return the model that the controls describe: the preset, with what was changed.

    Heads are as many as asked for, or fewer: a divisor of d_model that leaves an even size, and
    heads of keys and values a divisor of that.
    """
    model = dict(PRESETS[now["preset"]])
    model |= {key: now[key] for key in (*SIZES, "tied") if now.get(key) is not None}
    model["n_heads"] = divisor(model["d_model"], model["n_heads"], lambda size: size % 2 == 0)
    model["n_kv_heads"] = divisor(model["n_heads"], model["n_kv_heads"] or model["n_heads"])
    model["d_head"] = model["d_model"] // model["n_heads"]
    model["length"] = min(now["length"], model["max_len"] or LONGEST)
    return model | {"batch": now["batch"], "preset": now["preset"]}


def config_of(model: Mapping) -> TransformerConfig:
    """Return a settled model as a config: the preset of its name with these sizes."""
    changes = {key: model[key] for key in SIZES}
    if model["head"]:
        changes["tie_embeddings"] = model["tied"]
    return preset(model["preset"], **changes)


def parts_of(model: Mapping) -> list[dict]:
    """Return the parts of one forward pass in the order in which data flows through them.

    A part has a key, the stack it stands in ("encoder", "decoder", or "" behind them), how many
    `times` it is there, the shape of what it gives, and `parameters`, `flops` and `numbers` (of
    that shape) for all of these times together.
    """
    found: dict[tuple[str, str], dict] = {}
    stack = "decoder" if model["kind"] == "decoder" else "encoder"
    for row in config_of(model).parts(model["length"], model["batch"]):
        end = _end(row)
        key = "cross_" * (".cross." in row.name) + KEYS[end]
        if key == "embed" and (stack, key) in found:
            stack = "decoder"
        place = "" if key in ("head", "pooler") else stack
        part = found.setdefault((place, key), {
            "key": key, "stack": place, "times": 0, "shape": list(row.shape), "parameters": 0,
            "flops": 0, "numbers": 0,
        })  # fmt: skip
        part["parameters"] += row.parameters
        part["flops"] += row.flops
        part["numbers"] += math.prod(row.shape)
        part["times"] += end not in ("gate_proj", "k_proj", "v_proj")  # with up_proj and q_proj
        if key == "embed" and model["position"] == "rotary":
            found[stack, "position"] = _turns(model, stack)
    for (place, key), part in found.items():
        if key.endswith("qkv"):  # split into heads, which the mixed values no longer are
            mix = found[place, key.replace("qkv", "mix")]
            part["shape"], mix["shape"] = mix["shape"], part["shape"]
    parts = list(found.values())
    keys = [part["key"] for part in parts]
    if "segments" in keys:  # the page shows them behind the positions, which are added after them
        i = keys.index("segments")
        parts[i], parts[i + 1] = parts[i + 1], parts[i]
    return parts


def _turns(model: Mapping, stack: str) -> dict:
    """Return the part that rotary positions are: angles, and no row in the package."""
    shape = [model["length"], model["d_head"]]
    return {
        "key": "position", "stack": stack, "times": 1, "shape": shape, "parameters": 0,
        "flops": 0, "numbers": math.prod(shape),
    }  # fmt: skip


def cache_bytes(model: Mapping, size: int) -> int:
    """Return the bytes of the keys and values of all positions: 0 without a decoder."""
    if model["kind"] == "encoder":
        return 0
    source = model["length"] if model["kind"] == "encoder-decoder" else 0
    return config_of(model).kv_cache_bytes(model["length"], model["batch"], size, m=source)
