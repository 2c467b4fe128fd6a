"""A model's account: its rows, equal blocks folded, totals, and the table that shows them.

Every part of a model yields its own rows, see :class:`tfbook.models.Spec`.

Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
"""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Part", "fold", "table"]


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
    Explained in: chapters/06_complexity, section "Where memory goes".
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
