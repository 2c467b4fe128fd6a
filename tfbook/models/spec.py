"""What the description of a part of a model is: it builds the part's module and prices it.

A description is a frozen dataclass, a few numbers and names. Those of this package stand in
:mod:`tfbook.models.layers` and :mod:`tfbook.models.ends`; another one, such as a new mixer, needs
nothing but to be written the same way.

Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from torch import nn

from tfbook.positions import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling

__all__ = ["Part", "Run", "Site", "Spec", "fold", "table"]

SCALINGS = {x.__name__: x for x in (LinearScaling, NTKScaling, YarnScaling, Llama3Scaling)}


class Part(NamedTuple):
    """One part of a model in one forward pass.

    Attributes:
        name: of the submodule; "scores" and "z" of an attention have no weights.
        shape: of what the part returns.
        parameters: how many it owns; a weight used twice is counted where it is met first.
        flops: 2 for each multiplication with its addition.
        bytes: of what it returns.
        moved: bytes that it reads and writes when it stands alone: inputs, weights, output.
        saved: bytes that training keeps of it for the backward pass, and no part before it does.

    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    Explained in: chapters/06_complexity, section "What training costs".
    """

    name: str
    shape: tuple[int, ...]
    parameters: int
    flops: int
    bytes: int
    moved: int = 0
    saved: int = 0

    @property
    def intensity(self) -> float:
        """Return the FLOPs for each byte that is moved; 0 where none is."""
        return self.flops / self.moved if self.moved else 0.0


@dataclass(frozen=True)
class Site:
    """Where a part is built.

    Attributes:
        d_model: size of a row.
        vocab_size: different tokens; None for a model of images.
        max_len: the longest sequence; None for no limit.
        causal: whether the part must hide the future.
        memory: whether it looks into a memory and not at its own rows.
        shared: the parts that the layers of a stack share, by what describes them.

    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """

    d_model: int
    vocab_size: int | None = None
    max_len: int | None = None
    causal: bool = False
    memory: bool = False
    shared: dict = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], object]) -> object:
        """Return what the first layer of the stack made of this key."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    def of_memory(self) -> "Site":
        """Return the place for a part that looks into a memory."""
        return dataclasses.replace(self, causal=False, memory=True)


@dataclass(frozen=True)
class Run:
    """A forward pass in which a part is priced.

    Attributes:
        d_model: size of a row.
        batch: sequences.
        n: rows of each that are computed.
        past: rows before them, of which a state is held.
        m: rows of the memory that is looked into; None for none.
        bytes_per_number: 4 for single precision.
        vocab_size: different tokens; None for a model of images.
        max_len: the longest sequence; None for no limit.
        causal: whether the future is hidden.
        stores_weights: whether attention weights are written down; None for what each attention
            function does.
        mask_bytes: of what dropout keeps for a number; bytes_per_number when None.

    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """

    d_model: int
    batch: int
    n: int
    past: int = 0
    m: int | None = None
    bytes_per_number: int = 4
    vocab_size: int | None = None
    max_len: int | None = None
    causal: bool = False
    stores_weights: bool | None = None
    mask_bytes: int | None = None

    def part(
        self,
        name: str,
        shape: Sequence[int],
        parameters: int = 0,
        flops: int = 0,
        *,
        moves: int | None = None,
        keeps: int = 0,
        masks: int = 0,
    ) -> Part:
        """Return a row of the account.

        Args:
            name: of the submodule.
            shape: of what it returns.
            parameters: how many it owns.
            flops: of the pass.
            moves: numbers that it reads and writes; when omitted it reads its parameters and as
                much as it returns.
            keeps: numbers that it keeps for the backward pass.
            masks: bytes of masks and indices that it keeps beside them.
        """
        size, each = math.prod(shape), self.bytes_per_number
        moves = 2 * size + parameters if moves is None else moves
        saved = keeps * each + masks
        return Part(name, tuple(shape), parameters, flops, size * each, moves * each, saved)

    def rows(self, name: str, parameters: int = 0, flops: int = 0, **memory: int | None) -> Part:
        """Return a row of the account for a part that gives (batch, n, d_model)."""
        return self.part(name, (self.batch, self.n, self.d_model), parameters, flops, **memory)

    def linear(
        self, name: str, inputs: int, outputs: int, *, bias: bool = True, keeps: int | None = None
    ) -> Part:
        """Return that of a linear map of every row: 2 · rows · inputs · outputs FLOPs.

        It keeps its inputs, for the gradient of its weights, unless ``keeps`` says another number.
        """
        rows, weights = self.batch * self.n, inputs * outputs
        parameters, flops = weights + outputs * bias, 2 * rows * weights
        memory = {"moves": rows * (inputs + outputs) + parameters}
        memory["keeps"] = rows * inputs if keeps is None else keeps
        return self.part(name, (self.batch, self.n, outputs), parameters, flops, **memory)

    def dropped(self, rate: float, numbers: int) -> int:
        """Return the bytes that dropout keeps of so many numbers: which of them it set to 0."""
        each = self.bytes_per_number if self.mask_bytes is None else self.mask_bytes
        return numbers * each * (rate > 0)


class Spec:
    """The description of a part; a frozen dataclass inherits from it.

    What a description of a mixer or a feed-forward part has to say:

    * ``build(site)`` makes the module, for the place that :class:`Site` describes;
    * ``price(name, run)`` yields a :class:`Part` for each step of a forward pass;
    * ``held(d_model, length)`` counts the numbers that its state holds of one sequence after
      ``length`` rows: 0 when it has none;
    * ``check(site)`` raises an error where it does not fit the place.

    A class that inherits is known by its name, so that configs that hold it survive JSON.

    Attributes:
        word: stands before a choice's name where several parts have one of that name, as in
            ``attention_dropout``.

    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """

    KNOWN: ClassVar[dict[str, type]] = {}
    word: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Remember the class by its name."""
        super().__init_subclass__()
        Spec.KNOWN[cls.__name__] = cls

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield what the part costs in one forward pass, in the order of the data."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it costs")

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers in the state of one sequence after so many rows."""
        return 0

    def check(self, site: Site) -> None:
        """Raise an error where the part does not fit its place."""

    def to_dict(self) -> dict[str, object]:
        """Return the choices as plain numbers, names, lists and dictionaries."""
        return {"part": type(self).__name__} | {
            each.name: plain(getattr(self, each.name)) for each in dataclasses.fields(self)
        }


def plain(value: object) -> object:
    """Write a choice as JSON can hold it; equal layers in a row are written once."""
    if isinstance(value, Spec):
        return value.to_dict()
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        if type(value).__name__ not in SCALINGS:
            raise ValueError(
                f"scaling must be one of {', '.join(SCALINGS)}, got {type(value).__name__}"
            )
        return {"part": type(value).__name__} | dataclasses.asdict(value)
    return value


def unplain(value: object) -> object:
    """Undo :func:`plain`.

    Raises:
        ValueError: for a part that is not known, or a choice that it does not have.
    """
    if isinstance(value, list | tuple):
        return tuple(unplain(each) for each in value)
    if not isinstance(value, Mapping):
        return value
    choices, known = dict(value), Spec.KNOWN | SCALINGS
    name = choices.pop("part", None)
    if name not in known:
        raise ValueError(f"part must be one of {', '.join(sorted(known))}, got {name!r}")
    names = {each.name for each in dataclasses.fields(known[name])}
    if unknown := sorted(set(choices) - names):
        raise ValueError(f"a {name} has no choice {', '.join(unknown)}; it has {sorted(names)}")
    return known[name](**{key: unplain(each) for key, each in choices.items()})


def fold(parts: Sequence[Part]) -> list[tuple[Part, int]]:
    """Keep the first of equal blocks of a stack, with the number of them; other parts have 1."""
    blocks: dict[tuple[str, str], list[tuple]] = {}
    for part in parts:
        block, rest = _split(part.name)
        if block:
            blocks.setdefault(block, []).append((rest, *part[1:]))
    contents = {block: (block[0], *rows) for block, rows in blocks.items()}
    first = {}
    for block, content in contents.items():
        first.setdefault(content, block)
    times = {block: list(contents.values()).count(content) for content, block in first.items()}
    kept = [(part, _split(part.name)[0]) for part in parts]
    return [(part, times.get(block, 1)) for part, block in kept if not block or block in times]


def _split(name: str) -> tuple[tuple[str, str] | None, str]:
    """Return stack and number of the block that a part is of, and its name in it."""
    stack, _, rest = name.partition(".blocks.")
    number, _, rest = rest.partition(".")
    return ((stack, number) if number else None), rest


def table(parts: Sequence[Part]) -> str:
    """Return a table of the parts, equal blocks written once, and the totals."""
    lines = [_line("part", "shape", "parameters", "FLOPs")]
    for part, times in fold(parts):
        name = part.name + (f"  × {times}" if times > 1 else "")
        shape = " × ".join(map(str, part.shape))
        lines.append(_line(name, shape, f"{part.parameters:,}", f"{part.flops:,}"))
    total = (sum(part.parameters for part in parts), sum(part.flops for part in parts))
    lines.append(_line("total", "", *(f"{each:,}" for each in total)))
    return "\n".join(line.rstrip() for line in lines)


def _line(name: str, shape: str, parameters: str, flops: str) -> str:
    return f"{name:<44}{shape:<22}{parameters:>16}{flops:>22}"
