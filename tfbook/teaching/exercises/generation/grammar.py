"""The exercise of chapter 12 on the tokens that a grammar allows."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong

# allowed-tokens ---------------------------------------------------------------------------------

Table = dict[tuple[int, str], int]


def allowed_tokens(
    table: dict[tuple[int, str], int], state: int, tokens: list[str]
) -> dict[int, int]:
    """Say which tokens may come next, and to which state each of them leads.

    table: a dictionary from (state, character) to the next state; a pair that is not in it is not
    allowed. state: where the text is now. tokens: the texts of the vocabulary; an empty one is
    never allowed.
    Returns: a dictionary from the index of each allowed token to the state behind it.
    """
    ...


# A string in quotes, a comma, a number of at most two digits: "ab",12
STRING: Table = {
    (0, '"'): 1, (1, "a"): 1, (1, "b"): 1, (1, '"'): 2, (2, ","): 3, (3, "1"): 4, (3, "2"): 4,
    (4, "1"): 5, (4, "2"): 5,
}  # fmt: skip
TOKENS = ["a", '"', '",', "ab", "1", '",1', "a1", '"a', ",", "b,", '"2', "12", '",12', "121", "c"]


def _walk(table: Table, state: int, text: str) -> int | None:
    at: int | None = state
    for char in text:
        at = table.get((at, char)) if at is not None else None
    return at


def _wanted(table: Table, state: int, tokens: list[str]) -> dict[int, int]:
    found = {index: _walk(table, state, text) for index, text in enumerate(tokens) if text}
    return {index: at for index, at in found.items() if at is not None}


def _expect(got: Any, wanted: dict[int, int], mistakes: dict[str, Any], otherwise: str, given: Any):
    message = ""
    if not isinstance(got, dict):
        message = (
            f"The result is a {type(got).__name__}. Return a dictionary from the index of each "
            "allowed token to the state behind it."
        )
    elif got != wanted:
        slips = (words for words, value in mistakes.items() if got == value and value != wanted)
        message = next(slips, otherwise)
    if message:
        raise Wrong(message, given=given, got=got, wanted=wanted)


def _first_alone(table: Table, state: int, tokens: list[str]) -> dict[int, int]:
    return {i: table[state, t[0]] for i, t in enumerate(tokens) if t and (state, t[0]) in table}


def _standing(table: Table, state: int, tokens: list[str]) -> dict[int, int]:
    """Look up each character from the state at the beginning."""
    return {
        i: table[state, t[-1]] for i, t in enumerate(tokens)
        if t and all((state, char) in table for char in t)
    }  # fmt: skip


def _skipping(table: Table, state: int, tokens: list[str]) -> dict[int, int]:
    """Pass over the characters that are not allowed."""
    found = {}
    for i, text in enumerate(tokens):
        at, moved = state, False
        for char in text:
            if (at, char) in table:
                at, moved = table[at, char], True
        if moved:
            found[i] = at
    return found


def _walks(answer: Any) -> None:
    """A token is allowed if all its characters lead on, each from the state behind the last."""
    for state in (1, 0, 3):
        wanted = _wanted(STRING, state, TOKENS)
        got = answer(dict(STRING), state, list(TOKENS))
        reversed_ = {
            i: at for i, t in enumerate(TOKENS)
            if t and (at := _walk(STRING, state, t[::-1])) is not None
        }  # fmt: skip
        _expect(
            got,
            wanted,
            {
                "Only the first character of each token was looked at. The others must lead on as "
                "well.": _first_alone(STRING, state, TOKENS),
                "Each character was looked up from the state at the beginning. The second one "
                "starts from the state behind the first.": _standing(STRING, state, TOKENS),
                "A character that is not allowed was passed over. It rules the whole token out.":
                    _skipping(STRING, state, TOKENS),
                "The states are those before the tokens. Return the state behind each.":
                    dict.fromkeys(wanted, state),
                "The keys are the tokens' texts. Return their indices.":
                    {TOKENS[i]: at for i, at in wanted.items()},
                "Tokens of one character are right, longer ones are missing. A token may hold "
                "several symbols of the grammar.":
                    {i: at for i, at in wanted.items() if len(TOKENS[i]) == 1},
                "The characters were read from the end of the token.": reversed_,
            },
            "These are not the tokens whose characters all lead on, with the states behind them.",
            {"table": STRING, "state": state, "tokens": TOKENS},
        )  # fmt: skip


def _empty(answer: Any) -> None:
    """An empty token is never allowed: with it a text would not get on."""
    tokens = ["", "a", ""]
    given = {"table": STRING, "state": 1, "tokens": tokens}
    got = answer(dict(STRING), 1, list(tokens))
    _expect(
        got,
        {1: 1},
        {"An empty token was allowed. It leads nowhere, again and again.": {0: 1, 1: 1, 2: 1}},
        "Of an empty token, a, and another empty one, only a is allowed.",
        given,
    )


def _dead(answer: Any) -> None:
    """Where nothing can follow, nothing is allowed."""
    for state in (5, 2):
        wanted = {8: 3} if state == 2 else {}
        got = answer(dict(STRING), state, list(TOKENS))
        given = {"table": STRING, "state": state, "tokens": TOKENS}
        _expect(got, wanted, {}, f"From state {state} these tokens do not lead on.", given)


def _any(answer: Any) -> None:
    """It works for any automaton, one with loops and states 0 behind a token among them."""
    generator = torch.Generator("cpu").manual_seed(77)
    for _ in range(6):
        moves = torch.randint(0, 5, (5, 4), generator=generator).tolist()
        table = {
            (s, c): moves[s][k] - 1 for s in range(5) for k, c in enumerate("wxyz")
            if moves[s][k] > 0
        }  # fmt: skip
        lengths = torch.randint(0, 5, (12,), generator=generator).tolist()
        tokens = [
            "".join("wxyz"[k] for k in torch.randint(0, 4, (n,), generator=generator).tolist())
            for n in lengths
        ]
        for state in (0, 3):
            got = answer(dict(table), state, list(tokens))
            wanted = _wanted(table, state, tokens)
            no_zero = {i: at for i, at in wanted.items() if at}
            _expect(
                got,
                wanted,
                {"Tokens that lead to state 0 are missing. Ask whether a state is None.": no_zero},
                "With another automaton the result differs.",
                {"table": table, "state": state, "tokens": tokens},
            )


ALLOWED_TOKENS = Exercise(
    name="allowed-tokens",
    title="Which tokens are allowed?",
    level=2,
    section='chapters/12_generation_deeper, section "Only what the grammar allows"',
    stub=allowed_tokens,
    properties=(_walks, _empty, _dead, _any),
    hints=(
        "Take one token. Which state are you in after its first character? And where does the "
        "second one start from?",
        "`table.get((at, char))` is None where a character is not allowed. From there on, the "
        "token is lost.",
        "Keep the token's index if the walk through all its characters ended in a state. State 0 "
        "is a state: compare with `None`.",
    ),
)

EXERCISES = (ALLOWED_TOKENS,)
