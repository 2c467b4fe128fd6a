"""A choice changed wherever a model has it: in every layer, or at the one part that knows it.

Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from tfbook._checks import check_number
from tfbook.models.ends import Patches, Tokens
from tfbook.models.layers import Layer, Norm
from tfbook.models.placements import InAttention, InEmbedding
from tfbook.models.spec import Spec

__all__ = []

# What several parts have under one name, and means one thing all the same.
COMMON = {"dropout": (Layer, Tokens, Patches), "norm": (), "position": ()}
COUNTS = {
    "n_layers": ("encoder", "decoder"),
    "n_encoder_layers": ("encoder",),
    "n_decoder_layers": ("decoder",),
}
# What the layers of an encoder, or a look into a memory, never have.
NEVER = {"encoder": {"window"}, "cross": {"window", "position"}}


def change(config: object, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a config with changes made wherever their names belong.

    Raises:
        TypeError: for a name that no part of this model has, or that several have.
        ValueError: for a number of layers below 1.
    """
    names = _names(config)
    _check_names(changes, names)
    found = {name: value for name, value in changes.items() if "" in names.get(name, ())}
    rest = {name: value for name, value in changes.items() if name not in found}
    for each in dataclasses.fields(config):
        if each.name not in found:
            value, skip = getattr(config, each.name), NEVER.get(each.name, ())
            found[each.name] = _changed(value, rest, skip)
    for count, stacks in COUNTS.items():
        if count in changes:
            check_number(count, changes[count], 1, whole=True)
            for stack in stacks:
                layers = found[stack]
                repeated = (layers[i % len(layers)] for i in range(changes[count]))
                found[stack] = tuple(repeated) if layers else ()
    return found


def choice(config: object, name: str) -> object:
    """Return the value that a choice has in every part that has it.

    Raises:
        TypeError: for a name that no part of this model has, or that several have.
        ValueError: if the parts differ in it.
    """
    _check_names({name: None}, _names(config))
    values = [
        getattr(part, field)
        for part in _parts(config)
        for field in _fields(part)
        if name in (field, f"{_word(part)}_{field}")
    ]
    if any(value != values[0] for value in values):
        raise ValueError(f"the parts of this model differ in {name}: {values}")
    return values[0]


def _changed(value: object, changes: Mapping[str, object], skip: Collection[str] = ()) -> object:
    """Return a part, or a list of them, with the changes that are its own made."""
    if isinstance(value, tuple):
        new = {key: _changed(each, changes, skip) for key, each in _unlike(value).items()}
        return tuple(new[id(each)] for each in value)
    if isinstance(value, Norm) and "norm" in changes:
        value = changes["norm"]
    if not isinstance(value, Spec):
        return value
    own = {}
    for name in _fields(value):
        long, old = f"{_word(value)}_{name}", getattr(value, name)
        if long in changes and long not in skip and name not in skip:
            own[name] = changes[long]
        elif name == "position" and name in changes and name not in skip:
            given = changes[name]
            kind = InEmbedding if isinstance(value, Tokens | Patches) else InAttention
            other = InAttention if kind is InEmbedding else InEmbedding
            own[name] = None if isinstance(given, other) else given
        elif name in changes and name not in skip and _means(value, name):
            own[name] = changes[name]
        elif name != "cross":
            own[name] = _changed(old, changes, skip)
    if isinstance(value, Layer) and value.cross is not None and "cross" not in own:
        if _follows(value):
            own["cross"] = own["mixer"].of_memory()
        else:
            own["cross"] = _changed(value.cross, changes, NEVER["cross"])
    return dataclasses.replace(value, **own)


def _follows(layer: Layer) -> bool:
    """Return whether a layer's cross is like its mixer, which not every mixer can have."""
    like = getattr(layer.mixer, "of_memory", None)
    try:
        return like is not None and layer.cross == like()
    except ValueError:
        return False


def _means(part: Spec, name: str) -> bool:
    """Return whether a plain name means the choice of this part."""
    return name not in COMMON or isinstance(part, COMMON[name])


def _fields(part: Spec) -> list[str]:
    return [each.name for each in dataclasses.fields(part)]


def _word(part: Spec) -> str:
    return part.word or type(part).__name__.lower()


def _parts(value: object) -> Iterator[Spec]:
    """Yield every description in a config, a repeated one once."""
    if isinstance(value, tuple):
        for each in _unlike(value).values():
            yield from _parts(each)
    elif dataclasses.is_dataclass(value):
        if isinstance(value, Spec):
            yield value
        for each in dataclasses.fields(value):
            yield from _parts(getattr(value, each.name))


def _unlike(layers: tuple) -> dict[int, object]:
    """Return the layers of a stack, which mostly repeats one, each once and by identity."""
    return {id(each): each for each in layers}


def _names(config: object) -> dict[str, set[str]]:
    """Return every name of a choice, and the words of the parts that have it; "" is the config."""
    names: dict[str, set[str]] = {each.name: {""} for each in dataclasses.fields(config)}
    for part in set(_parts(config)):
        for field in _fields(part):
            names.setdefault(field, set()).add(_word(part))
            names.setdefault(f"{_word(part)}_{field}", set()).add(_word(part))
    return names | {name: {"all"} for name in (*COUNTS, *COMMON)}


def _is_short(name: str, names: Mapping[str, set[str]]) -> bool:
    """Return whether a choice has this name and no shorter one."""
    word, _, plain = name.partition("_")
    longer = names[name] == {word} and len(names.get(plain, "  ")) == 1 and plain not in COMMON
    return len(names[name]) == 1 and not longer


def _check_names(changes: Mapping[str, object], names: Mapping[str, set[str]]) -> None:
    short = sorted(name for name in names if _is_short(name, names))
    unknown = sorted(set(changes) - set(names))
    if unknown:
        raise TypeError(
            f"changes must be choices of this model, got {', '.join(unknown)}; "
            f"there are {', '.join(short)}"
        )
    for name in changes:
        if len(names[name]) > 1 and "" not in names[name]:
            long = ", ".join(f"{word}_{name}" for word in sorted(names[name]))
            raise TypeError(f"{name} is a choice of several parts: say which of {long}")
