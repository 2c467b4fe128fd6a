"""An adapter alone in a file: a few megabytes beside a model of hundreds, and nothing pickled.

The file is safetensors. It holds the trained tensors of LoRA, DoRA, bottlenecks or a prefix under
the names of their layers, and in its header what has to be made to take them. It is written whole
or not at all.

Explained in: chapters/18_practice, section "Low-rank adapters".
"""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from tfbook._checks import check_module
from tfbook.practice.adapters import Prefixed, add_bottlenecks, bottlenecks, remove_adapters
from tfbook.practice.lora import add_lora, lora_layers
from tfbook.pretrained import read_safetensors
from tfbook.training import read_json, write_bytes

__all__ = ["adapter_tensors", "load_adapter", "save_adapter"]

MADE_BY, FORMAT = "tfbook.practice.adapter_files", 1
PARTS = ("lora_a", "lora_b", "magnitude")


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that belong to the adapters of a model and not to the model, by name.

    Args:
        model: with LoRA, DoRA, bottlenecks, or a :class:`Prefixed` one.

    Returns:
        The tensors themselves, detached.

    Raises:
        TypeError: if model is no module.
        ValueError: if it has no adapters.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    check_module("model", model)
    if isinstance(model, Prefixed):
        return {name: x.detach() for name, x in model.prefix.named_parameters("prefix")}
    found = {}
    for name, layer in lora_layers(model).items():
        own = ((part, getattr(layer, part)) for part in PARTS)
        found |= {f"{name}.{part}": x.detach() for part, x in own if x is not None}
    for name, layer in bottlenecks(model).items():
        for part in ("down", "up"):
            own = getattr(layer, part).named_parameters(f"{name}.{part}")
            found |= {full: x.detach() for full, x in own}
    if not found:
        raise ValueError("model must have adapters, got none")
    return found


def save_adapter(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write the adapters of a model into a file, whole or not at all.

    Args:
        model: see :func:`adapter_tensors`.
        path: of the file; one that is there is replaced when the new one is complete.

    Returns:
        Where it lies.

    Raises:
        TypeError: for a wrong type.
        ValueError: if the model has no adapters, or two kinds of them.
        OSError: if it cannot be written; what was there is as it was.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a path, got {type(path).__name__}")
    tensors = {name: x.cpu().contiguous() for name, x in adapter_tensors(model).items()}
    about = {"made_by": MADE_BY, "format": FORMAT, "adapter": _settings(model)}
    content = save(tensors, metadata={"adapter": json.dumps(about)})
    path = Path(path)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_bytes(new, content)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
    return path


def load_adapter(model: nn.Module, path: str | os.PathLike[str]) -> list[str]:
    """Read adapters from a file and put them on a model, in place, which is frozen.

    Args:
        model: the one that they were trained on, without adapters or with those of the same kind;
            for a prefix a :class:`Prefixed` one.
        path: of the file.

    Returns:
        The names of the tensors.

    Raises:
        TypeError: for a wrong type.
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or of another kind, or does not fit the model, which then
            is as it was.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    check_module("model", model)
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a path, got {type(path).__name__}")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    tensors, metadata = read_safetensors(path)
    settings = _read_settings(path, metadata)
    if _has_any(model):
        if (here := _settings(model)) != settings:
            raise ValueError(f"{path.name} holds {settings}, and the model has {here}")
        _fill(adapter_tensors(model), tensors, path)
        return list(tensors)
    trained = {weight: weight.requires_grad for weight in model.parameters()}
    _add(model, settings, path)
    try:
        _fill(adapter_tensors(model), tensors, path)
    except ValueError:
        remove_adapters(model)
        for weight, wanted in trained.items():
            weight.requires_grad_(wanted)
        raise
    return list(tensors)


def _fill(here: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    shapes = [{name: tuple(x.shape) for name, x in each.items()} for each in (here, tensors)]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        mine, theirs = (each.get(name) for each in shapes)
        if mine != theirs:
            raise ValueError(
                f"{path.name} does not fit: {name} has shape {theirs} there and {mine} here"
            )
    for name, x in tensors.items():
        here[name].copy_(x)


def _has_any(model: nn.Module) -> bool:
    return isinstance(model, Prefixed) or bool(lora_layers(model) or bottlenecks(model))


def _settings(model: nn.Module) -> dict[str, object]:
    """Return what has to be known to make the adapters anew."""
    if isinstance(model, Prefixed):
        return {"kind": "prefix", "length": model.prefix.length}
    thin, bent = lora_layers(model), bottlenecks(model)
    if thin and bent:
        raise ValueError("model must have adapters of one kind, got LoRA and bottlenecks")
    layers = thin or bent
    names = list(layers)
    if bent:
        return {"kind": "bottleneck", "size": layers[names[0]].size, "where": names}
    first = layers[names[0]]
    dora = first.magnitude is not None
    return {"kind": "lora", "rank": first.rank, "alpha": first.alpha, "dora": dora, "where": names}


def _add(model: nn.Module, settings: dict[str, object], path: Path) -> None:
    choices = {name: value for name, value in settings.items() if name != "kind"}
    try:
        if settings["kind"] == "lora":
            add_lora(model, choices.pop("rank"), **choices)
        elif settings["kind"] == "bottleneck":
            add_bottlenecks(model, choices.pop("size"), **choices)
        else:
            raise ValueError("a prefix goes to a Prefixed model")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} does not fit the model: {error}") from None


def _read_settings(path: Path, metadata: Mapping[str, str]) -> dict[str, object]:
    try:
        about = read_json(metadata["adapter"].encode())
        settings = dict(about["adapter"])
        known = about["made_by"] == MADE_BY and settings["kind"] in ("lora", "bottleneck", "prefix")
    except (KeyError, TypeError, ValueError):
        known, about = False, {}
    if not known:
        raise ValueError(f"{path.name} holds no adapter of tfbook.practice")
    if about.get("format") != FORMAT:
        raise ValueError(f"{path.name} has format {about.get('format')!r}, and {FORMAT} is read")
    return settings
