"""Only what a grammar allows: from a regular grammar to the tokens that may come next.

A :class:`Grammar` describes texts, a character at a time: what may still come after a character is
a grammar again, its derivative. So the grammars that a text leads to are the states of an
automaton. A token is a few characters, and may reach across several parts of the grammar; a
:class:`Guide` walks each token of a vocabulary through the automaton, and keeps for each state
which tokens survive.

Explained in: chapters/12_generation_deeper, section "Only what the grammar allows".
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from tfbook._checks import check_number

__all__ = ["Grammar", "Guide"]


class Grammar:
    """A set of texts, described by its parts: ``+`` joins, ``|`` chooses, :meth:`repeat` repeats.

    Grammars of equal parts are equal. Such a grammar is regular: it can count to a number that was
    fixed beforehand, and not match brackets to any depth.

    Example:
        >>> number = Grammar.one_of("0123456789").repeat(1, 3)
        >>> point = Grammar.text("(") + number + Grammar.text(", ") + number + Grammar.text(")")
        >>> point.matches("(3, 14)"), point.matches("(3, )")
        (True, False)
        >>> point.after("(3").matches(", 14)")
        True

    Source: [brzozowski1964derivatives]
    Explained in: chapters/12_generation_deeper, section "Only what the grammar allows".
    """

    @staticmethod
    def text(value: str) -> "Grammar":
        """Return the grammar of one text.

        Raises:
            TypeError: if it is no text.
        """
        _check_text("value", value)
        found = DONE
        for char in reversed(value):
            found = _then(_OneOf(frozenset(char)), found)
        return found

    @staticmethod
    def one_of(chars: Collection[str]) -> "Grammar":
        """Return the grammar of one character out of these.

        Raises:
            TypeError: if they are no texts.
            ValueError: if there is none, or one is longer than a character.
        """
        _check_several("chars", chars, Collection)
        for char in chars:
            _check_text("chars", char)
        if not chars or any(len(char) != 1 for char in chars):
            raise ValueError(f"chars must be characters, at least one, got {chars!r}")
        return _OneOf(frozenset(chars))

    def __add__(self, other: "Grammar") -> "Grammar":
        """Return the grammar of a text of this one, and behind it one of the other."""
        return _then(self, other) if isinstance(other, Grammar) else NotImplemented

    def __or__(self, other: "Grammar") -> "Grammar":
        """Return the grammar of the texts of both."""
        return _either(self, other) if isinstance(other, Grammar) else NotImplemented

    def repeat(self, least: int = 0, most: int | None = None) -> "Grammar":
        """Return the grammar of several texts of this one in a row.

        Args:
            least: how many there are at least.
            most: at most; None for any number.

        Raises:
            ValueError: if least is negative, or most below it.
        """
        check_number("least", least, 0, whole=True)
        found = _many(self) if most is None else DONE
        if most is not None:
            check_number("most", most, least, whole=True)
            for _ in range(most - least):
                found = _either(DONE, _then(self, found))
        for _ in range(least):
            found = _then(self, found)
        return found

    @property
    def ends(self) -> bool:
        """Whether the empty text is one of the grammar: whether it may end here."""
        raise NotImplementedError

    @property
    def starts(self) -> frozenset[str]:
        """The characters that a text may begin with."""
        raise NotImplementedError

    def after(self, text: str) -> "Grammar":
        """Return what may follow a text: a grammar, without texts where nothing can.

        d_c(a + b) = d_c(a) + b, with d_c(b) besides where a may be empty; d_c(a | b) = d_c(a) |
        d_c(b); d_c(a*) = d_c(a) + a*.
        """
        found = self
        for char in text:
            found = found._derive(char)
        return found

    def matches(self, text: str) -> bool:
        """Return whether the text is one of the grammar."""
        return self.after(text).ends

    def _derive(self, char: str) -> "Grammar":
        raise NotImplementedError


@dataclass(frozen=True)
class _OneOf(Grammar):
    """One of these characters; no text at all where there are none."""

    chars: frozenset[str]
    ends = False

    @property
    def starts(self):
        return self.chars

    def _derive(self, char):
        return DONE if char in self.chars else NOTHING


@dataclass(frozen=True)
class _Done(Grammar):
    """The empty text."""

    ends = True
    starts = frozenset()

    def _derive(self, char):
        return NOTHING


@dataclass(frozen=True)
class _Then(Grammar):
    """A text of the first, and behind it one of the rest."""

    first: Grammar
    rest: Grammar

    @property
    def ends(self):
        return self.first.ends and self.rest.ends

    @property
    def starts(self):
        return self.first.starts | (self.rest.starts if self.first.ends else frozenset())

    def _derive(self, char):
        found = _then(self.first._derive(char), self.rest)
        return _either(found, self.rest._derive(char)) if self.first.ends else found


@dataclass(frozen=True)
class _Either(Grammar):
    """A text of one of the options."""

    options: frozenset[Grammar]

    @property
    def ends(self):
        return any(each.ends for each in self.options)

    @property
    def starts(self):
        return frozenset().union(*(each.starts for each in self.options))

    def _derive(self, char):
        return _either(*(each._derive(char) for each in self.options))


@dataclass(frozen=True)
class _Many(Grammar):
    """Any number of texts of the inner one in a row."""

    inner: Grammar
    ends = True

    @property
    def starts(self):
        return self.inner.starts

    def _derive(self, char):
        return _then(self.inner._derive(char), self)


NOTHING, DONE = _OneOf(frozenset()), _Done()


def _then(first, rest):
    """Join two grammars; NOTHING is the only one without texts, so that it can be told."""
    if NOTHING in (first, rest):
        return NOTHING
    if first == DONE:
        return rest
    if isinstance(first, _Then):  # to the right, so that equal grammars look alike
        return _Then(first.first, _then(first.rest, rest))
    return first if rest == DONE else _Then(first, rest)


def _either(*options):
    found = set()
    for each in options:
        found |= each.options if isinstance(each, _Either) else {each}
    found -= {NOTHING}
    if not found:
        return NOTHING
    return next(iter(found)) if len(found) == 1 else _Either(frozenset(found))


def _many(inner):
    return DONE if inner in (NOTHING, DONE) else _Many(inner)


class Guide:
    """Which tokens may come next, for each state that a grammar can be in.

    States are numbers, 0 at the start. Each is walked once, when it is first asked for.

    Args:
        grammar: of the whole text.
        tokens: the text of each token of the vocabulary; empty texts are never allowed.
        end: ids of the tokens that end a text, whatever their own text is.

    Raises:
        TypeError: if grammar is no grammar, tokens are no list of texts, or ``end`` no list of ids.
        ValueError: if the grammar has no text, or an id of ``end`` is none of the tokens'.

    Example:
        >>> yes = Grammar.text("yes") | Grammar.text("yet")
        >>> guide = Guide(yes, ["y", "ye", "s", "es", "no", "<end>"], end=[5])
        >>> guide.allowed(0).tolist()
        [True, True, False, False, False, False]
        >>> guide.allowed(guide.step(guide.step(0, 1), 2)).tolist()
        [False, False, False, False, False, True]

    Cost: for each state a walk over the tokens that begin as the grammar allows; then a look-up.

    Source: [willard2023efficient]
    Explained in: chapters/12_generation_deeper, section "Only what the grammar allows".
    """

    def __init__(self, grammar: Grammar, tokens: Sequence[str], *, end: Collection[int] = ()):
        """Put the tokens into a tree by their characters."""
        if not isinstance(grammar, Grammar):
            raise TypeError(f"grammar must be a Grammar, got {type(grammar).__name__}")
        if grammar == NOTHING:
            raise ValueError("grammar must have at least one text, got one without any")
        _check_several("tokens", tokens, Sequence)
        _check_several("end", end, Collection)
        for token in end:
            check_number("end", token, 0, len(tokens) - 1, whole=True)
        self.n_tokens, self.end = len(tokens), frozenset(end)
        self._states, self._numbers = [grammar], {grammar: 0}
        self._next: list[dict[str, int | None]] = [{}]  # by state, then character
        self._walked: dict[int, tuple[Tensor, dict[int, int]]] = {}
        self._tree: dict = {}  # from a character on to another such tree; "" has the ids that end
        for token, text in enumerate(tokens):
            _check_text("tokens", text)
            if not text or token in self.end:
                continue
            node = self._tree
            for char in text:
                node = node.setdefault(char, {})
            node.setdefault("", []).append(token)

    @property
    def n_states(self) -> int:
        """How many states were met so far."""
        return len(self._states)

    def ends(self, state: int) -> bool:
        """Return whether a text may end in this state."""
        return self._state(state).ends

    def allowed(self, state: int) -> Bool[Tensor, " V"]:
        """Return which tokens may come next, (V,), True = allowed.

        Where single characters are no tokens there may be none.

        Raises:
            ValueError: for a state that was not met.
        """
        return self._walk(state)[0]

    def step(self, state: int, token: int) -> int:
        """Return the state behind a token.

        Raises:
            ValueError: for a state that was not met, or a token that is not allowed there.
        """
        check_number("token", token, 0, self.n_tokens - 1, whole=True)
        mask, behind = self._walk(state)
        if not mask[token]:
            raise ValueError(f"token {token} is not allowed in state {state}")
        return state if token in self.end else behind[token]

    def _walk(self, state):
        """Return the mask of a state, and for each token allowed the state behind it."""
        if state not in self._walked:
            behind, waiting = {}, [(self._tree, self._number(self._state(state)))]
            while waiting:
                node, at = waiting.pop()
                behind.update(dict.fromkeys(node.get("", ()), at))
                here = self._next[at]
                for char in node:
                    if char and (after := self._after(at, char, here)) is not None:
                        waiting.append((node[char], after))
            mask = torch.zeros(self.n_tokens, dtype=torch.bool)
            mask[list(behind)] = True
            if self.ends(state):
                mask[list(self.end)] = True
            self._walked[state] = mask, behind
        return self._walked[state]

    def _after(self, at, char, known):
        """Return the state behind a character, None where nothing can follow."""
        if char not in known:
            found = self._states[at]._derive(char)
            known[char] = None if found == NOTHING else self._number(found)
        return known[char]

    def _number(self, grammar):
        """Return the number of a state, a new one if it was not met."""
        if grammar not in self._numbers:
            self._numbers[grammar] = len(self._states)
            self._states.append(grammar)
            self._next.append({})
        return self._numbers[grammar]

    def _state(self, number):
        check_number("state", number, 0, len(self._states) - 1, whole=True)
        return self._states[number]


def _check_several(name, value, kind):
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a list, got {type(value).__name__}")


def _check_text(name, value):
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, got {type(value).__name__}")
