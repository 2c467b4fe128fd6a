"""Weights of small models as a script that a page loads when its reader asks."""

import base64
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from tfbook import pretrained
from tfbook.data import BOS, BYTES, EOS, PAD, SPECIALS, byte_pair_tokenizer, english_french
from tfbook.models import (
    FFN,
    Attention,
    Layer,
    NextToken,
    Norm,
    Rotary,
    Tokens,
    TransformerConfig,
    build,
)
from tfbook.pretrained import round_rows

LARGEST_SCRIPT = 2_000_000  # bytes
RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def model_file(loaded: pretrained.Pretrained) -> dict:
    """Return a model of characters with 8 bits a number, as language_model.js reads it.

    Matrices become whole numbers with a scale for each row (:func:`round_rows`); the gains of
    norms stay in float32. All stand in one string of bytes in base64, little-endian: first what has
    four bytes a number, then what has one.

    Args:
        loaded: a decoder of characters with pre-norm, rotary positions, norms of queries and keys,
            a gated feed-forward network, tied embeddings and no biases, such as "shakespeare".

    Returns:
        `config`, `characters` in the order of their ids, `tensors` with their places among the
        bytes, and `data`.

    Raises:
        TypeError: if it is no pretrained model.
        ValueError: if the model is built in another way.
    """
    if not isinstance(loaded, pretrained.Pretrained):
        raise TypeError(f"loaded must be a Pretrained, got {type(loaded).__name__}")
    layer = _layer_of(loaded.config)
    attention, d_model = layer.mixer, loaded.config.d_model
    d_head = attention.d_head or d_model // attention.n_heads
    config = {
        "d_model": d_model, "n_layers": len(loaded.config.decoder), "n_heads": attention.n_heads,
        "d_head": d_head, "d_ff": layer.ffn.d_ff, "eps": layer.norm.eps,
        "scale": attention.scale or d_head**-0.5, "base": attention.position.base,
        "window": attention.window,
    }  # fmt: skip
    tensors, data = pack_weights8(loaded.model.state_dict())
    words = loaded.tokenizer.get_vocab()
    return {
        "config": config,
        "characters": sorted(words, key=words.get),
        "tensors": tensors,
        "data": data,
    }


def pack_weights8(weights: Mapping[str, Tensor]) -> tuple[list[dict], str]:
    """Return where each weight stands among the bytes, and the bytes in base64."""
    floats, wholes, tensors = [], [], []
    for name, weight in weights.items():
        if weight.ndim == 2:
            values, scale = round_rows(weight)
            tensors.append({"name": name, "rows": len(values), "cols": values.shape[1]})
            floats.append(scale.numpy().astype("<f4").tobytes())
            wholes.append(values.numpy().tobytes())
        else:
            tensors.append({"name": name, "rows": len(weight), "cols": 0})
            floats.append(weight.to(torch.float32).numpy().astype("<f4").tobytes())
    at, after = 0, sum(map(len, floats))
    whole = iter(wholes)
    for tensor, numbers in zip(tensors, floats, strict=True):
        tensor["scale" if tensor["cols"] else "numbers"] = at
        at += len(numbers)
        if tensor["cols"]:
            tensor["numbers"] = after
            after += len(next(whole))
    return tensors, base64.b64encode(b"".join([*floats, *wholes])).decode("ascii")


def _layer_of(config):
    """Return what all layers are, after checking that the browser's model computes the same."""
    layers = set(config.decoder)
    layer = next(iter(layers), None)
    head, embedding = config.head, config.embedding
    fits = (
        config.kind == "decoder"
        and len(layers) == 1
        and isinstance(layer.mixer, Attention)
        and isinstance(layer.mixer.position, Rotary)
        and isinstance(layer.ffn, FFN)
        and isinstance(layer.norm, Norm)
        and layer.place == "pre"
        and not (layer.parallel or layer.one_norm or layer.cross)
        and layer.multiplier == 1
        and layer.norm.kind == "rms"
        and layer.mixer.qk_norm == layer.norm
        and not layer.mixer.qk_norm_whole
        and layer.mixer.n_kv_heads in (None, layer.mixer.n_heads)
        and layer.mixer.d_value is None
        and layer.mixer.window is not None
        and not (layer.mixer.bias or layer.ffn.bias or head.bias)
        and layer.mixer.position.layout == "interleaved"
        and layer.mixer.position.scaling is None
        and layer.mixer.position.share == 1
        and layer.ffn.kind == "swiglu"
        and embedding.position is None
        and embedding.norm is None
        and embedding.scale == "sqrt(d_model)"
        and head.tie_embeddings
        and head.scale is None
        and config.final_norm is None
    )
    if not fits:
        raise ValueError("loaded must be a model as language_model.js computes it")
    return layer


def load_translator(dtype: torch.dtype = torch.float32) -> pretrained.Pretrained:
    """Return the translator that ships with the package, with its tokenizer.

    It was trained by ``python -m tfbook.experiments translator``.
    """
    log = json.loads((RESULTS / "translator.json").read_text(encoding="utf-8"))
    config = TransformerConfig.from_dict(log["config"])
    weights, _ = pretrained.read_safetensors(RESULTS / "translator.safetensors")
    model = build(config)
    model.load_state_dict(weights)
    texts = [text for pair in english_french("train") for text in pair]
    tokenizer = byte_pair_tokenizer(texts, vocab_size=config.vocab_size)
    return pretrained.Pretrained(
        "translator", model.to(dtype).eval(), tokenizer, config, (EOS,), PAD
    )


def translator_file(loaded: pretrained.Pretrained) -> dict:
    """Return a translator with 8 bits a number, as translation_model.js reads it.

    Args:
        loaded: an encoder-decoder with pre-norm, rotary positions within each side and none
            between them, layer norms, a network with relu, one table for both languages and for
            the scores, and byte pairs, such as :func:`load_translator`.

    Returns:
        `config`; `tokenizer` with the ids of the 256 bytes and the merges, each as the ids of left,
        right and both; `tensors` and `data` as in :func:`model_file`.

    Raises:
        TypeError: if it is no pretrained model.
        ValueError: if the model is built in another way.
    """
    if not isinstance(loaded, pretrained.Pretrained):
        raise TypeError(f"loaded must be a Pretrained, got {type(loaded).__name__}")
    layer = _translators_layer(loaded.config)
    attention, d_model = layer.mixer, loaded.config.d_model
    d_head = d_model // attention.n_heads
    config = {
        "d_model": d_model, "n_layers": len(loaded.config.decoder), "n_heads": attention.n_heads,
        "d_head": d_head, "d_ff": layer.ffn.d_ff, "eps": layer.norm.eps, "scale": d_head**-0.5,
        "base": attention.position.base, "bos": BOS, "eos": EOS,
    }  # fmt: skip
    words = loaded.tokenizer.get_vocab()
    merges = json.loads(loaded.tokenizer.to_str())["model"]["merges"]
    names = dict(zip(BYTES, sorted(ByteLevel.alphabet()), strict=True))  # as tokens write them
    tensors, data = pack_weights8(loaded.model.state_dict())
    return {
        "config": config,
        "tokenizer": {
            "specials": list(SPECIALS),
            "bytes": [words[names[byte]] for byte in range(256)],
            "merges": [[words[left], words[right], words[left + right]] for left, right in merges],
        },
        "tensors": tensors,
        "data": data,
    }


def _translators_layer(config):
    """Return what all layers of the decoder are, after checking as :func:`_layer_of` does."""
    layers = set(config.decoder)
    layer = next(iter(layers), None)
    plain = isinstance(layer, Layer) and isinstance(layer.mixer, Attention)
    known = plain and Layer(
        Attention(
            layer.mixer.n_heads, position=Rotary(base=getattr(layer.mixer.position, "base", 1e4))
        ),
        FFN(layer.ffn.d_ff) if isinstance(layer.ffn, FFN) else layer.ffn,
        norm=Norm(eps=getattr(layer.norm, "eps", 1e-5)),
        dropout=layer.dropout,
    )
    fits = (
        plain
        and config.kind == "encoder-decoder"
        and layers == {known.with_cross()}
        and set(config.encoder) == {known}
        and len(config.encoder) == len(config.decoder)
        and config.embedding == Tokens(dropout=config.embedding.dropout)
        and config.share_embeddings
        and config.head == NextToken()
        and config.final_norm is None
    )
    if not fits:
        raise ValueError("loaded must be a model as translation_model.js computes it")
    return layer


@cache
def live_script(name: str = "shakespeare") -> str:
    """Return a script that leaves the weights of a model where the figures that run it find them.

    A classic script, since pages opened from a disk may not load anything else.

    Args:
        name: "translator", or one of :func:`tfbook.pretrained.load`, of which "shakespeare" fits.

    Raises:
        ValueError: if the model is unknown or built in another way, or the script is too long.

    Explained in: book/live_models, section "What eight bits cost".
    """
    own = name == "translator"
    file = translator_file(load_translator()) if own else model_file(pretrained.load(name))
    content = json.dumps(file, ensure_ascii=False)
    script = f'(window.tfbookWeights ||= {{}})["{name}"] = {content};\n'
    if len(script.encode()) > LARGEST_SCRIPT:
        raise ValueError(
            f"name must be a model whose script has at most {LARGEST_SCRIPT} bytes, "
            f"got {len(script.encode())}"
        )
    return script
