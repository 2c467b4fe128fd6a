"""Other people's names for the same numbers: checkpoints of `transformers`, read and written.

A checkpoint is a ``config.json`` and a dictionary of named tensors. :func:`config_from` reads the
first, :func:`weights_from` renames the second, :func:`weights_to` renames them back. Four families
differ from our parts in more than names: GPT-2 stores the transposes of its matrices, with queries,
keys and values side by side in one; LLaMA rotates pairs that lie half a head apart, where ours lie
side by side; T5 keeps the table of its position bias in the first block; ViT maps patches with a
convolution.

Explained in: chapters/05_architecture, section "Two real models".
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfbook.models import GATES, TransformerConfig, build
from tfbook.positions import half_to_interleaved, interleaved_to_half
from tfbook.pretrained.families import FAMILIES

__all__ = ["config_from", "family_of", "fill_model", "weights_from", "weights_to"]

Settings = Mapping[str, object]
StateDict = dict[str, Tensor]


def family_of(settings: Settings) -> str:
    """Return the family that a ``config.json`` names.

    Raises:
        ValueError: if it is none of ``FAMILIES``.

    Example:
        >>> family_of({"model_type": "gpt2"})
        'gpt2'
    """
    found = settings.get("model_type")
    if found not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)}, got {found!r}")
    return found


def config_from(
    settings: Settings, weights: Mapping[str, Tensor] | None = None
) -> TransformerConfig:
    """Read a ``config.json`` as one of our configs.

    Dropout is left out: a loaded model computes the same in training as in evaluation until
    ``config.replace(dropout=…)`` says otherwise. Whether there is a pooler or a head is seen from
    the names of the weights, and without them from "architectures".

    Args:
        settings: what the file holds.
        weights: the named tensors that belong to it.

    Raises:
        ValueError: for another family, a missing entry, or a choice that is not known here.

    Explained in: chapters/05_architecture, section "Two real models".
    """
    family = family_of(settings)
    try:
        return FAMILIES[family].config(settings, weights)
    except KeyError as error:
        raise ValueError(f"the config.json of a {family} must hold {error}") from None


def weights_from(
    weights: Mapping[str, Tensor], config: TransformerConfig, family: str
) -> StateDict:
    """Rename a checkpoint's tensors to the names of the model that ``build(config)`` makes.

    Args:
        weights: named tensors as `transformers` saves them, with or without a head's prefix.
        config: from :func:`config_from`, or one that differs in ``rope_layout``.
        family: a name out of ``FAMILIES``.

    Returns:
        A state dict; tensors that need no rearranging are the given ones, not copies.

    Raises:
        ValueError: if a tensor is missing, is not known, has another shape, or is tied to another
            one by the config and differs from it.

    Explained in: chapters/05_architecture, section "Two real models".
    """
    shapes = {name: value.shape for name, value in _empty(config).state_dict().items()}
    return _rename(weights, shapes, config, family)


def _rename(weights, shapes, config, family):
    """Take our names and shapes from the model itself, so that none can be forgotten."""
    know, names = FAMILIES[family], _names(config, family)
    theirs = {name.removeprefix(know.prefix): value for name, value in weights.items()}
    found, used = {}, set()
    for ours, shape in shapes.items():
        name, part = _their_name(ours, names)
        if name not in theirs:
            raise ValueError(f"the checkpoint has no tensor {name}, which becomes {ours}")
        used.add(name)
        value = _arrange(theirs[name], ours, shape, family, part, config)
        if value is None or value.shape != shape:
            raise ValueError(
                f"{name} must become {ours} of shape {tuple(shape)}, "
                f"got {tuple(theirs[name].shape)}"
            )
        found[ours] = value
    for name in theirs.keys() - used:
        original = know.copies.get(name)
        if original in used:
            if not torch.equal(theirs[name], theirs[original]):
                raise ValueError(
                    f"{name} differs from {original}, but the config says that they are one "
                    "(tie_word_embeddings)"
                )
        elif not re.search(know.ignored, name):
            raise ValueError(f"the checkpoint has a tensor that is not known here: {name}")
    return found


def weights_to(weights: Mapping[str, Tensor], config: TransformerConfig, family: str) -> StateDict:
    """Rename the tensors of one of our models to the names of `transformers`.

    Undoes :func:`weights_from`, but for copies of tied weights, which are not written.

    Args:
        weights: a state dict of the model that ``build(config)`` makes.
        config: its config.
        family: a name out of ``FAMILIES``.

    Raises:
        ValueError: if the family has no name for one of the tensors.

    Explained in: chapters/05_architecture, section "Two real models".
    """
    know, names = FAMILIES[family], _names(config, family)
    found = {}
    for ours, value in weights.items():
        name, _ = _their_name(ours, names)
        if config.output is not None and not name.startswith(know.heads):
            name = know.prefix + name
        found.setdefault(name, []).append(_arrange_back(value, ours, family, config))
    # Only what is packed has several parts, and a state dict holds them in the order q, k, v.
    return {name: torch.cat(parts, dim=-1).contiguous() for name, parts in found.items()}


def fill_model(settings: Settings, weights: Mapping[str, Tensor]) -> nn.Module:
    """Build the model of a checkpoint around its tensors, without drawing any weights first.

    Args:
        settings: its ``config.json``.
        weights: its named tensors.

    Returns:
        The model; its ``config`` is what :func:`config_from` returned.

    Raises:
        ValueError: if settings or weights are not known here or do not fit each other.

    Explained in: chapters/05_architecture, section "Two real models".
    """
    config = config_from(settings, weights)
    model = _empty(config)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    model.load_state_dict(_rename(weights, shapes, config, family_of(settings)), assign=True)
    return model


class _NothingDrawn(TorchFunctionMode):
    """Leave out every initialisation: on the meta device it takes seconds and draws nothing."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def _empty(config: TransformerConfig) -> nn.Module:
    """Build the model without any numbers in it."""
    with torch.device("meta"), _NothingDrawn():
        return build(config)


# Names.


def _names(config: TransformerConfig, family: str) -> Mapping[str, str]:
    names = FAMILIES[family].names
    if family == "t5" and config.ffn not in GATES:
        names = {ours: theirs.replace(".wi_1", ".wi") for ours, theirs in names.items()}
    return names


def _their_name(ours: str, names: Mapping[str, str]) -> tuple[str, int | None]:
    """Return their name of our tensor, and which third of it ours is where three are packed."""
    numbers = re.findall(r"\.(\d+)\.", ours)
    pattern = re.sub(r"\.\d+\.", ".{i}.", ours)
    parts = pattern.split(".")
    for cut in range(len(parts), 0, -1):
        known, rest = ".".join(parts[:cut]), parts[cut:]
        if known in names:
            theirs = ".".join([names[known], *rest]).replace("{i}", "".join(numbers))
            packed = re.search(r"mixer\.([qkv])_proj$", known) if "c_attn" in theirs else None
            return theirs, packed and "qkv".index(packed[1])
    raise ValueError(f"this family of checkpoints has no name for {ours}")


# Numbers that are stored in another arrangement.


def _arrange(value, ours, shape, family, part, config):
    """Return a tensor of theirs as ours, or None where its shape makes that impossible."""
    matrix = family == "gpt2" and "_proj." in ours and value.ndim == 2
    if part is not None:
        value = value.chunk(3, dim=-1)[part] if value.shape[-1] % 3 == 0 else None
    if matrix and value is not None:
        value = value.T.contiguous()  # their Conv1D computes x W, nn.Linear x Wᵀ
    if value is None or (family == "vit" and value.numel() != shape.numel()):
        return None
    if family == "vit":  # a class token (1, 1, D), positions (1, N, D), a convolution (D, C, p, p)
        return value.reshape(shape)
    if value.shape == shape and _is_rotated(ours, config):
        n_heads, n_kv_heads, _ = config.heads
        heads = n_heads if "q_proj" in ours else n_kv_heads
        return half_to_interleaved(value, dim=0, n_heads=heads).contiguous()
    return value


def _arrange_back(value, ours, family, config):
    """Return a tensor of ours as theirs; packed ones are still apart."""
    if family == "gpt2" and "_proj." in ours and value.ndim == 2:
        return value.T
    if family == "vit" and ours == "embed.proj.weight":
        patches = config.patches
        return value.reshape(-1, patches.n_channels, patches.patch_size, patches.patch_size)
    if family == "vit" and ours in ("embed.class_token", "position.weight"):
        return value.reshape(1, -1, value.shape[-1])
    if _is_rotated(ours, config):
        n_heads, n_kv_heads, _ = config.heads
        heads = n_heads if "q_proj" in ours else n_kv_heads
        return interleaved_to_half(value, dim=0, n_heads=heads)
    return value


def _is_rotated(ours, config):
    rotary = config.position == "rotary" and config.rope_layout == "interleaved"
    return rotary and re.search(r"mixer\.[qk]_proj", ours)
