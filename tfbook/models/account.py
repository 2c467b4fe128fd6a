"""A model taken apart on paper: shape, parameters, FLOPs and bytes of each part, in data's order.

Everything is arithmetic on the numbers of a config; no tensor is made. The names are those of the
model's submodules, so each line can be compared with the real thing, and is in the tests.

Explained in: chapters/05_architecture, section "What the sizes add up to".
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from tfbook.costs import attention_flops_parts
from tfbook.models.layers import GATES

__all__ = ["Part", "walk"]


class Part(NamedTuple):
    """One part of a model in one forward pass.

    Attributes:
        name: of the submodule; "scores" and "z" of an attention have no weights.
        shape: of what the part returns.
        parameters: how many it owns; a weight used twice is counted where it is met first.
        flops: 2 for each multiplication with its addition.
        bytes: of what it returns.

    Explained in: chapters/05_architecture, section "What the sizes add up to".
    """

    name: str
    shape: tuple[int, ...]
    parameters: int
    flops: int
    bytes: int


class _Row(NamedTuple):
    """A part before its bytes are known."""

    name: str
    shape: tuple[int, ...]
    parameters: int = 0
    flops: int = 0


def walk(
    config: object, n: int, *, m: int, batch: int, past: int, bytes_per_number: int
) -> Iterator[Part]:
    """Go through a model as data does, and yield its parts.

    Args:
        config: a :class:`tfbook.models.TransformerConfig`.
        n: tokens that are read, in an encoder-decoder those of the target.
        m: tokens of the source, for an encoder-decoder.
        batch: sequences.
        past: tokens before these n whose keys and values are held in a cache; the source has been
            read then.
        bytes_per_number: 4 for single precision.

    Explained in: chapters/05_architecture, section "What the sizes add up to".
    """
    rows = _walk(config, n, m, batch, past)
    for row in rows:
        yield Part(*row, math.prod(row.shape) * bytes_per_number)


def _walk(config, n, m, batch, past):
    if config.kind == "encoder":
        yield from _embedding(config, batch, n)
        yield from _stack(config, "stack", config.n_layers, batch, n, 0)
    elif config.kind == "decoder":
        yield from _embedding(config, batch, n)
        yield from _stack(config, "stack", config.decoder_layers, batch, n, past)
    else:
        encoder = [
            *_embedding(config, batch, m),
            *_stack(config, "encoder", config.n_layers, batch, m, 0),
        ]
        # With a past the encoder has run before: its weights are there, its work is done.
        yield from (row._replace(flops=0) if past else row for row in encoder)
        yield from _embedding(config, batch, n, target=True)
        yield from _stack(config, "decoder", config.decoder_layers, batch, n, past, source=m)
    yield from _head(config, batch, n)


def _embedding(config, batch, n, *, target=False):
    d, shape = config.d_model, (batch, n, config.d_model)
    prefix = "target_" if target else ""
    if config.patches is not None:
        count, numbers = config.patches.count, config.patches.numbers
        yield _Row(
            "embed.proj", (batch, count, d), (numbers + 1) * d, 2 * batch * count * numbers * d
        )
        yield _Row("embed", shape, d)
    elif target and config.share_embeddings:
        yield _Row("embed", shape)
    else:
        yield _Row(f"{prefix}embed", shape, config.vocab_size * d)
    if config.n_segments is not None:
        yield _Row("segments", shape, config.n_segments * d)
    tables = {"sinusoidal": 0, "learned": config.n_positions * d}
    if config.position in tables:
        yield _Row(f"{prefix}position", shape, tables[config.position])
    if config.embedding_norm:
        yield _Row(f"{prefix}embed_norm", shape, config.norm_parameters)


def _stack(config, name, n_layers, batch, n, past, source=None):
    decoder = name == "decoder"
    if config.position == "t5":
        table = config.n_buckets * config.n_heads
        yield _Row(
            "target_position" if decoder else "position", (config.n_heads, n, past + n), table
        )
    for i in range(n_layers):
        yield from _block(config, f"{name}.blocks.{i}", batch, n, past, source)
    if config.has_final_norm:
        yield _Row(f"{name}.final_norm", (batch, n, config.d_model), config.norm_parameters)


def _block(config, name, batch, n, past, source):
    parts = {"mixer": _attention(config, f"{name}.mixer", batch, n, past + n)}
    if source is not None:
        remembered = past > 0
        parts["cross"] = _attention(
            config, f"{name}.cross", batch, n, source, cross=True, remembered=remembered
        )
    parts["ffn"] = _feed_forward(config, f"{name}.ffn", batch, n)
    for part, rows in parts.items():
        norm = _Row(
            f"{name}.{part}_residual.norm", (batch, n, config.d_model), config.norm_parameters
        )
        if config.norm_place == "pre":
            yield norm
        yield from rows
        if config.norm_place == "post":
            yield norm


def _attention(config, name, batch, n, keys, *, cross=False, remembered=False):
    n_heads, n_kv_heads, d_head = config.heads
    d = config.d_model
    sizes = {"n_kv_heads": n_kv_heads, "d_head": d_head, "d_memory": d if cross else None}
    flops = attention_flops_parts(
        n, d, n_heads, m=keys, batch=batch, remembered=remembered, **sizes
    )
    made = keys if cross else n  # rows that keys and values are made of
    inner = {"q": (n, n_heads), "k": (made, n_kv_heads), "v": (made, n_kv_heads)}
    for which, (rows, heads) in inner.items():
        parameters = d * heads * d_head + heads * d_head * (which in config.biased)
        shape = (batch, rows, heads * d_head)
        yield _Row(f"{name}.{which}_proj", shape, parameters, flops[which])
        if config.qk_norm and which in "qk":
            weights = d_head * (2 if config.norm == "layer" else 1)
            yield _Row(f"{name}.{which}_norm", (batch, heads, rows, d_head), weights)
    if not cross:
        yield from _own_position(config, name, batch, n, keys)
    yield _Row(f"{name}.scores", (batch, n_heads, n, keys), 0, flops["scores"])
    yield _Row(f"{name}.z", (batch, n_heads, n, d_head), 0, flops["mix"])
    parameters = n_heads * d_head * d + d * ("out" in config.biased)
    yield _Row(f"{name}.out_proj", (batch, n, d), parameters, flops["out"])


def _own_position(config, name, batch, n, keys):
    """Yield the position part that each layer owns, if that is the scheme."""
    n_heads, _, d_head = config.heads
    shape, queries = (batch, n_heads, n, keys), 2 * batch * n_heads * n * d_head
    if config.position == "shaw":
        rows = 2 * config.max_distance + 1
        yield _Row(f"{name}.position", shape, rows * d_head, queries * rows)
    elif config.position == "transformer-xl":
        width, distances = n_heads * d_head, n + keys - 1
        flops = 2 * distances * width**2 + queries * distances
        yield _Row(f"{name}.position", shape, width**2 + width, flops)


def _feed_forward(config, name, batch, n):
    d, d_ff, bias = config.d_model, config.d_ff, config.ffn_bias
    product = 2 * batch * n * d * d_ff
    for inner in ("gate_proj", "up_proj") if config.ffn in GATES else ("up_proj",):
        yield _Row(f"{name}.{inner}", (batch, n, d_ff), d * d_ff + d_ff * bias, product)
    yield _Row(f"{name}.down_proj", (batch, n, d), d_ff * d + d * bias, product)


def _head(config, batch, n):
    d, vocab = config.d_model, config.vocab_size
    if config.pooler:
        used = config.output == "classes"
        yield _Row("pooler", (batch, d), d * d + d, 2 * batch * d * d * used)
    if config.output == "classes":
        classes = config.n_classes
        yield _Row("head", (batch, classes), d * classes + classes, 2 * batch * d * classes)
    elif config.output is not None:
        masked = config.output == "mlm"
        if masked:
            yield _Row("head.dense", (batch, n, d), d * d + d, 2 * batch * n * d * d)
            yield _Row("head.norm", (batch, n, d), config.norm_parameters)
        own = 0 if config.tie_embeddings else vocab * d
        yield _Row("head", (batch, n, vocab), own + vocab * masked, 2 * batch * n * d * vocab)
