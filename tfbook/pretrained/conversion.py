"""Other people's names for the same numbers: checkpoints of `transformers`, read and written.

A checkpoint is a ``config.json`` and a dictionary of named tensors. :func:`config_from` reads the
first, :func:`weights_from` renames the second, :func:`weights_to` renames them back. Some families
differ from our parts in more than names: GPT-2 stores the transposes of its matrices, with queries,
keys and values side by side in one, GPT-NeoX stacks these head by head; LLaMA rotates pairs that
lie half a head apart, where ours lie side by side; T5 keeps the table of its position bias in the
first block; ViT maps patches with a convolution; Gemma stores the weights of norms less 1; RoBERTa
begins to count positions at 2; Jamba calls what mixes rows otherwise in each kind of layer; GPT-OSS
keeps all experts of a layer in one tensor, gates and what they gate in turns.

Explained in: chapters/05_architecture_deeper, section "Two real models".
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfbook._checks import check_choice, check_number
from tfbook.blocks import GATES
from tfbook.models import Rotary, TransformerConfig, build
from tfbook.positions import half_to_interleaved, interleaved_to_half
from tfbook.pretrained.families import FAMILIES

__all__ = ["config_from", "family_of", "fill_model", "weights_from", "weights_to"]

Settings = Mapping[str, object]
StateDict = dict[str, Tensor]

# What lists of layers and experts are made of; a number from a damaged file would fill the memory.
COUNTS = {"num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer", "n_layers"}
COUNTS |= {"num_experts", "num_local_experts"}


def family_of(settings: Settings) -> str:
    """Return the family that a ``config.json`` names.

    Raises:
        TypeError: if settings are no dictionary.
        ValueError: if it is none of ``FAMILIES``.

    Example:
        >>> family_of({"model_type": "gpt2"})
        'gpt2'
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dictionary, got {type(settings).__name__}")
    found = settings.get("model_type")
    check_choice("model_type", found, FAMILIES)
    return found


def config_from(
    settings: Settings, weights: Mapping[str, Tensor] | None = None
) -> TransformerConfig:
    """Read a ``config.json`` as one of our configs.

    Dropout is left out, and what else is for training only, such as a router's noise: a loaded
    model computes the same in training as in evaluation until ``config.replace(dropout=…)`` says
    otherwise. Whether there is a pooler or a head is seen from
    the names of the weights, and without them from "architectures".

    Args:
        settings: what the file holds.
        weights: the named tensors that belong to it.

    Raises:
        TypeError: if a number of layers or experts is no integer.
        ValueError: for another family, a missing entry, a number of layers or experts out of its
            bounds, or a choice that is not known here.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    family = family_of(settings)
    for name in COUNTS & set(settings):
        if settings[name] is not None:
            check_number(name, settings[name], 1, 10_000, whole=True)
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
        config: from :func:`config_from`, or one with another layout of rotary pairs.
        family: a name out of ``FAMILIES``.

    Returns:
        A state dict; tensors that need no rearranging are the given ones, not copies.

    Raises:
        ValueError: if a tensor is missing, is not known, has another shape, or is tied to another
            one by the config and differs from it.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    shapes = {name: value.shape for name, value in empty_model(config).state_dict().items()}
    return _rename(weights, shapes, config, family)


def _rename(weights, shapes, config, family):
    """Take our names and shapes from the model itself, so that none can be forgotten."""
    know = FAMILIES[family]
    theirs = {name.removeprefix(know.prefix): value for name, value in weights.items()}
    theirs = {know.older.get(name, name): value for name, value in theirs.items()}
    theirs = know.apart(theirs)
    found, used = {}, set()
    for ours, shape in shapes.items():
        name, part = _their_name(ours, _names(ours, config, family))
        if name not in theirs:
            raise ValueError(f"the checkpoint has no tensor {name}, which becomes {ours}")
        used.add(name)
        if not theirs[name].is_floating_point():
            raise ValueError(f"{name} must be floating point, got {theirs[name].dtype}")
        if theirs[name].ndim < 1:
            raise ValueError(f"{name} must become {ours} of shape {tuple(shape)}, got one number")
        value = _arrange(theirs[name], ours, shape, know, part, config)
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

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    know, found = FAMILIES[family], {}
    for ours, value in weights.items():
        name, _ = _their_name(ours, _names(ours, config, family))
        if config.head is not None and not name.startswith(know.heads):
            name = know.prefix + name
        found.setdefault(name, []).append(_arrange_back(value, ours, know, config))
    # Only what is packed has several parts, and a state dict holds them in the order q, k, v.
    if know.by_head:
        n_heads = config.choice("n_heads")
        return {name: _by_head(parts, n_heads) for name, parts in found.items()}
    found = {name: torch.cat(parts, dim=-1).contiguous() for name, parts in found.items()}
    return know.together(found)


def _by_head(parts, n_heads):
    """Stack queries, keys and values head by head, if there are three."""
    if len(parts) == 1:
        return parts[0].contiguous()
    return torch.stack([part.unflatten(0, (n_heads, -1)) for part in parts], 1).flatten(0, 2)


def fill_model(settings: Settings, weights: Mapping[str, Tensor]) -> nn.Module:
    """Build the model of a checkpoint around its tensors, without drawing any weights first.

    Args:
        settings: its ``config.json``.
        weights: its named tensors.

    Returns:
        The model; its ``config`` is what :func:`config_from` returned.

    Raises:
        ValueError: if settings or weights are not known here or do not fit each other.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    config = config_from(settings, weights)
    model = empty_model(config)
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


def empty_model(config: TransformerConfig) -> nn.Module:
    """Build a model without any numbers in it, to be filled with ``assign=True``."""
    with torch.device("meta"), _NothingDrawn():
        return build(config)


# Names.


def _names(ours: str, config: TransformerConfig, family: str) -> Mapping[str, str]:
    """Return the names that hold where one of our tensors stands."""
    names, mixers = FAMILIES[family].names, FAMILIES[family].mixers
    block = re.match(r"stack\.blocks\.(\d+)\.", ours) if mixers else None
    if block:
        return names | mixers.get(config.layers[int(block[1])].mixer.word, {})
    if family == "t5" and config.choice("ffn_kind") not in GATES:
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
            theirs = ".".join([names[known], *rest]).replace("{i}", "{}").format(*numbers)
            which = re.search(r"mixer\.([qkv])_proj$", known)
            packed = which and list(names.values()).count(names[known]) == 3
            return theirs, "qkv".index(which[1]) if packed else None
    raise ValueError(f"this family of checkpoints has no name for {ours}")


# Numbers that are stored in another arrangement.

CONVOLVED, SINK = "mixer.conv.weight", "mixer.attend.sink"


def _arrange(value, ours, shape, know, part, config):
    """Return a tensor of theirs as ours, or None where its shape makes that impossible."""
    if part is not None and know.by_head:
        n_heads = config.choice("n_heads")
        fits = value.shape[0] == 3 * shape[0]
        value = value.unflatten(0, (n_heads, 3, -1))[:, part].flatten(0, 1) if fits else None
    elif part is not None:
        value = value.chunk(3, dim=-1)[part] if value.shape[-1] % 3 == 0 else None
    if value is not None and know.transposed and "_proj." in ours and value.ndim == 2:
        value = value.T.contiguous()  # their Conv1D computes x W, nn.Linear x Wᵀ
    if value is None or (know.reshaped and value.numel() != shape.numel()):
        return None
    if know.reshaped:  # a class token (1, 1, D), positions (1, N, D), a convolution (D, C, p, p)
        return value.reshape(shape)
    if ours.endswith(CONVOLVED) and value.ndim == 3 and value.shape[1] == 1:
        value = value[:, 0]  # their Conv1d counts the columns that a filter sees, (D, 1, width)
    if ours.endswith(SINK) and value.ndim == 1:
        value = value[:, None]  # one sink for each head
    if know.first_place and ours == "position.weight":
        value = value[know.first_place :]
    if know.centred and re.search(r"norm(_after)?\.weight$", ours):
        value = value + 1
    return _turned(value, ours, config, know.layout) if value.shape == shape else value


def _arrange_back(value, ours, know, config):
    """Return a tensor of ours as theirs; packed ones are still apart."""
    if know.transposed and "_proj." in ours and value.ndim == 2:
        return value.T
    if know.reshaped and ours == "embed.proj.weight":
        patches = config.embedding
        return value.reshape(-1, patches.n_channels, patches.patch_size, patches.patch_size)
    if know.reshaped and ours in ("embed.class_token", "position.weight"):
        return value.reshape(1, -1, value.shape[-1])
    if ours.endswith(CONVOLVED):
        return value[:, None]
    if ours.endswith(SINK):
        return value[:, 0]
    if know.first_place and ours == "position.weight":  # nothing reads the rows before them
        return torch.cat([torch.zeros_like(value[: know.first_place]), value])
    if know.centred and re.search(r"norm(_after)?\.weight$", ours):
        value = value - 1
    return _turned(value, ours, config, know.layout, back=True)


def _turned(value, ours, config, layout, *, back=False):
    """Put the rows that make rotated pairs side by side, or apart, where the layouts differ."""
    found = re.search(r"blocks\.(\d+)\.mixer\.([qk])_(proj|norm)", ours)
    layers = config.encoder if config.kind == "encoder" else config.decoder
    mixer = layers[int(found[1])].mixer if found else None
    position = getattr(mixer, "position", None)
    if not isinstance(position, Rotary) or position.layout == layout:
        return value
    interleaved = (position.layout == "interleaved") != back
    swap = half_to_interleaved if interleaved else interleaved_to_half
    d_head = mixer.heads(config.d_model).d_head
    heads = value.unflatten(0, (-1, d_head))  # (H, d_head, ...), of a norm of each head (1, d_head)
    first, rest = heads.split([position.turned(d_head), d_head - position.turned(d_head)], dim=1)
    return torch.cat([swap(first, dim=1), rest], dim=1).flatten(0, 1).contiguous()
