"""Prompts in which one name has to follow: "When Mary and John went out, John gave a drink to".

Two prompts that differ in one token, the name that is repeated, stand side by side token by token,
so that what passes in one can be put into the other.

Explained in: chapters/10_interpretability, section "From layers to heads".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfbook._checks import check_choice, check_generator, check_list, check_number
from tfbook.interpret.patching import logit_difference
from tfbook.pretrained import Pretrained

__all__ = ["NAMES", "TEMPLATES", "Prompts", "indirect_object_prompts"]

NAMES = (
    "Mary John Tom James Paul Anna Kate Laura Peter Mark Sarah David Simon Alice Jack Emma "
    "Robert Michael Daniel Lisa George Frank Rose Henry"
).split()
TEMPLATES = (
    "When{A} and{B} went to the store,{S} gave a drink to",
    "After{A} and{B} had lunch at the park,{S} handed the keys to",
    "Then,{A} and{B} worked at the office, and{S} sent a letter to",
)


@dataclass(frozen=True, eq=False)
class Prompts:
    """Pairs of prompts of one template, token by token beside each other.

    Attributes:
        clean: (B, N).
        corrupted: (B, N).
        right: the token that should follow the clean prompt, (B,).
        wrong: the other name, (B,); where names are swapped, it should follow the corrupted one.
        places: the rows of the words that matter: "first" and "second" name, the "repeated" one,
            and the "end".
        texts: the clean prompts as text.

    Explained in: chapters/10_interpretability, section "From layers to heads".
    """

    clean: Int[Tensor, "B N"]
    corrupted: Int[Tensor, "B N"]
    right: Int[Tensor, " B"]
    wrong: Int[Tensor, " B"]
    places: Mapping[str, int]
    texts: tuple[str, ...]

    def metric(self, logits: Float[Tensor, "B N V"]) -> float:
        """Return the mean of :func:`logit_difference` at the end."""
        return logit_difference(logits, self.right, self.wrong).mean().item()


def indirect_object_prompts(
    language: Pretrained,
    n: int,
    *,
    template: str = TEMPLATES[0],
    names: Sequence[str] = NAMES,
    corrupt: str = "swap",
    generator: torch.Generator | None = None,
) -> Prompts:
    """Make prompts of the kind "When Mary and John went to the store, John gave a drink to".

    The name that stands there once should follow. Half of the prompts, in turn, repeat the first
    name and half the second, so that no place is the answer. Corrupted is the repeated name alone:
    with "swap" it becomes the other one, and the right answer becomes wrong; with "other" a third
    name, and nothing says which of the two is meant.

    Args:
        language: a decoder with its tokenizer.
        n: how many, B.
        template: text with ``{A}`` and ``{B}`` for two names and behind them ``{S}`` for the
            repeated one, each without the space before it.
        names: those that are one token each, with the space before them, are drawn from.
        corrupt: "swap" or "other".
        generator: source of randomness.

    Returns:
        The prompts; all have the same length.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a template without the three places, fewer than three names of one token, a
            number below 1 or an unknown ``corrupt``.

    Source: [wang2022interpretability]
    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    if not isinstance(language, Pretrained):
        raise TypeError(f"language must be a Pretrained, got {type(language).__name__}")
    check_number("n", n, 1, 10_000, whole=True)
    check_choice("corrupt", corrupt, ("swap", "other"))
    check_generator(generator)
    pieces = _read_template(template)
    check_list("names", names)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be texts, got {list(names)}")
    single = {name: _ids(language, f" {name}") for name in dict.fromkeys(names)}
    single = {name: ids[0] for name, ids in single.items() if len(ids) == 1}
    if len(single) < 3:
        raise ValueError(f"names must hold three that are one token each, got {list(single)}")
    known, rows, texts = list(single), [], []
    for i in range(n):
        drawn = torch.randperm(len(known), generator=generator)[:3].tolist()
        a, b, third = (known[each] for each in drawn)
        repeated, once = (a, b) if i % 2 else (b, a)
        instead = once if corrupt == "swap" else third
        texts.append(pieces.format(A=f" {a}", B=f" {b}", S=f" {repeated}"))
        other = pieces.format(A=f" {a}", B=f" {b}", S=f" {instead}")
        rows.append((_ids(language, texts[-1]), _ids(language, other), once, repeated, a, b))
    clean, corrupted = (_stack(language, [row[each] for row in rows]) for each in (0, 1))
    right, wrong = (torch.tensor([single[row[each]] for row in rows]) for each in (2, 3))
    ids, first, second = rows[0][0], single[rows[0][4]], single[rows[0][5]]
    if first not in ids or second not in ids or clean.shape != corrupted.shape:
        raise ValueError(f"template must leave each name a token of its own, got {template!r}")
    repeated = int((clean != corrupted)[0].nonzero()[-1])
    places = {"first": ids.index(first), "second": ids.index(second), "repeated": repeated}
    return Prompts(clean, corrupted, right, wrong, places | {"end": len(ids) - 1}, tuple(texts))


def _read_template(template: object) -> str:
    """Return the template, or raise where it has not each place once and in order."""
    if not isinstance(template, str):
        raise TypeError(f"template must be a text, got {type(template).__name__}")
    found = [template.find(f"{{{name}}}") for name in "ABS"]
    once = all(template.count(f"{{{name}}}") == 1 for name in "ABS")
    if not once or found != sorted(found) or template.count("{") != 3 or template.count("}") != 3:
        raise ValueError(f"template must have {{A}}, {{B}} and {{S}} once, got {template!r}")
    return template


def _ids(language: Pretrained, text: str) -> list[int]:
    return language.encode(text, special=False)[0].tolist()


def _stack(language: Pretrained, rows: list[list[int]]) -> Tensor:
    if len({*map(len, rows)}) > 1:
        raise ValueError(f"template must give prompts of one length, got {[*map(len, rows)]}")
    return torch.tensor(rows)
