"""The sizes of well-known models, and what each part of a model of some sizes costs.

Not config.TransformerConfig: this package stands below it. A test compares the two.
"""

from collections.abc import Callable

from tfbook.teaching.explorables._base import whole

BYTES = {"float32": 4, "float16": 2, "int8": 1}
LONGEST = 32_768
LIMITS = {
    "d_model": (8, 16_384), "n_layers": (1, 128), "n_heads": (1, 128), "n_kv_heads": (1, 128),
    "d_ff": (1, 65_536), "vocab_size": (2, 300_000),
}  # fmt: skip
BLANK = {
    "kind": "decoder", "n_kv_heads": None, "norm": "layer", "place": "pre", "final_norm": True,
    "embedding_norm": False, "gated": False, "bias": True, "act": "GELU", "position": "learned",
    "max_len": None, "tied": True, "shared": False, "segments": 0, "pooler": False, "head": True,
    "n_buckets": 0,
}  # fmt: skip
ONCE = {"embed", "position", "segments", "embedding_norm", "final_norm", "head", "pooler"}
SIZES = ("d_model", "n_layers", "n_heads", "d_ff", "vocab_size")


def _family(**choices) -> Callable[..., dict]:
    """Return a function from name and sizes to a preset of one family."""

    def preset(label: str, *sizes: int, **more) -> dict:
        return {"label": label, **BLANK, **choices, **dict(zip(SIZES, sizes, strict=True)), **more}

    return preset


_translator = _family(
    kind="encoder-decoder", place="post", final_norm=False, position="sinusoidal", act="ReLU",
    shared=True,
)  # fmt: skip
_bert = _family(
    kind="encoder", place="post", final_norm=False, max_len=512, segments=2, embedding_norm=True,
    pooler=True, head=False,
)  # fmt: skip
_gpt = _family(max_len=1024)
_t5 = _family(
    kind="encoder-decoder", norm="rms", bias=False, position="t5", n_buckets=32, act="ReLU",
    shared=True,
)  # fmt: skip
_llama = _family(norm="rms", bias=False, position="rotary", gated=True, act="SiLU")
PRESETS = {
    "transformer-base": _translator("Transformer base (2017)", 512, 6, 8, 2048, 37_000),
    "transformer-big": _translator("Transformer big (2017)", 1024, 6, 16, 4096, 37_000),
    "bert-base": _bert("BERT base", 768, 12, 12, 3072, 30_522),
    "bert-large": _bert("BERT large", 1024, 24, 16, 4096, 30_522),
    "minilm-l6": _bert("MiniLM-L6", 384, 6, 12, 1536, 30_522),
    "gpt": _gpt("GPT", 768, 12, 12, 3072, 40_478, max_len=512, place="post", final_norm=False),
    "gpt2": _gpt("GPT-2", 768, 12, 12, 3072, 50_257),
    "gpt2-xl": _gpt("GPT-2 XL", 1600, 48, 25, 6400, 50_257),
    "gpt3-175b": _gpt("GPT-3", 12_288, 96, 96, 49_152, 50_257, max_len=2048),
    "t5-small": _t5("T5 small", 512, 6, 8, 2048, 32_128),
    "t5-base": _t5("T5 base", 768, 12, 12, 3072, 32_128),
    "llama-7b": _llama("LLaMA 7B", 4096, 32, 32, 11_008, 32_000, max_len=2048, tied=False),
    "smollm2-135m": _llama("SmolLM2 135M", 576, 30, 9, 1536, 49_152, max_len=8192, n_kv_heads=3),
}


def optional(name: str) -> Callable:
    """Return a check that lets None, for the preset's own, or a whole number through."""
    check = whole(name, *LIMITS[name])
    return lambda value: None if value is None else check(value)


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
    model |= {key: now[key] for key in (*SIZES, "n_kv_heads", "tied") if now.get(key) is not None}
    model["n_heads"] = divisor(model["d_model"], model["n_heads"], lambda size: size % 2 == 0)
    model["n_kv_heads"] = divisor(model["n_heads"], model["n_kv_heads"] or model["n_heads"])
    model["d_head"] = model["d_model"] // model["n_heads"]
    model["length"] = min(now["length"], model["max_len"] or LONGEST)
    return model | {"batch": now["batch"]}


def parts_of(model: dict) -> list[dict]:
    """Return the parts of one forward pass in the order in which data flows through them.

    A part has a key, the stack it stands in ("encoder", "decoder", or "" behind them), how many
    `times` it is there, the shape of what it gives, and `parameters`, `flops` and `numbers` (of
    that shape) for all of these times together.
    """
    d, h, g, dh, f, v, b, n = (
        model[key]
        for key in (
            "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size", "batch", "length"
        )
    )  # fmt: skip
    biased, rows = int(model["bias"]), b * n
    norm_size = d if model["norm"] == "rms" else 2 * d
    parts = []

    def add(key, stack, shape, parameters=0, flops=0, numbers=None):
        times = 1 if key in ONCE else model["n_layers"]
        if numbers is None:
            numbers = 1
            for size in shape:
                numbers *= size
        parts.append({
            "key": key, "stack": stack, "times": times, "shape": shape,
            "parameters": times * parameters, "flops": times * flops, "numbers": times * numbers,
        })  # fmt: skip

    def linear(inputs, outputs):
        """Parameters and FLOPs of one projection."""
        return inputs * outputs + biased * outputs, 2 * rows * inputs * outputs

    def attention(stack, prefix):
        outputs = (h + 2 * g) * dh
        add(prefix + "qkv", stack, [b, h, n, dh], *linear(d, outputs), rows * outputs)
        add(prefix + "scores", stack, [b, h, n, n], 0, 2 * rows * h * n * dh)
        add(prefix + "mix", stack, [b, n, h * dh], 0, 2 * rows * h * n * dh)
        add(prefix + "out", stack, [b, n, d], *linear(h * dh, d))

    def step(stack, norm, inside):
        """A sublayer with its norm before or after it."""
        if model["place"] == "pre":
            add(norm, stack, [b, n, d], norm_size)
        inside()
        if model["place"] == "post":
            add(norm, stack, [b, n, d], norm_size)

    def feed_forward(stack):
        gated = 1 + model["gated"]
        parameters, flops = linear(d, gated * f)
        add("up", stack, [b, n, f], parameters, flops, rows * gated * f)
        add("down", stack, [b, n, d], *linear(f, d))

    def stack_of(stack):
        if model["position"] == "t5":
            add("position", stack, [h, n, n], model["n_buckets"] * h)
        step(stack, "norm_1", lambda: attention(stack, ""))
        if stack == "decoder" and model["kind"] == "encoder-decoder":
            step(stack, "norm_x", lambda: attention(stack, "cross_"))
        step(stack, "norm_2", lambda: feed_forward(stack))
        if model["final_norm"]:
            add("final_norm", stack, [b, n, d], norm_size)

    def entrance(stack):
        """Words to vectors: of the second stack with the first one's table, where they share it."""
        again = stack == "decoder" and model["kind"] == "encoder-decoder" and model["shared"]
        add("embed", stack, [b, n, d], 0 if again else v * d)
        if model["position"] == "learned":
            add("position", stack, [b, n, d], model["max_len"] * d)
        elif model["position"] != "t5":
            add("position", stack, [b, n, d] if model["position"] == "sinusoidal" else [n, dh])
        if model["segments"]:
            add("segments", stack, [b, n, d], model["segments"] * d)
        if model["embedding_norm"]:
            add("embedding_norm", stack, [b, n, d], norm_size)
        stack_of(stack)

    if model["kind"] != "decoder":
        entrance("encoder")
    if model["kind"] != "encoder":
        entrance("decoder")
    if model["head"]:
        add("head", "", [b, n, v], 0 if model["tied"] else v * d, 2 * rows * d * v)
    if model["pooler"]:
        add("pooler", "", [b, d], d * d + d)  # there, but not run for the hidden states
    return parts


def cache_numbers(model: dict) -> int:
    """Return how many numbers the keys and values of all positions are: 0 without a decoder."""
    if model["kind"] == "encoder":
        return 0
    kinds = 2 if model["kind"] == "encoder-decoder" else 1  # of its own tokens and of the memory
    each = 2 * model["n_kv_heads"] * model["d_head"] * model["length"] * model["batch"]
    return kinds * model["n_layers"] * each
