"""Grammars against Python's own expressions, and guides against each token walked by itself."""

import itertools
import json
import re

import pytest
import torch

from tfbook.generation import Grammar, Guide

a, b, c = (Grammar.text(char) for char in "abc")
# A grammar, and Python's expression for the same texts.
PAIRS = {
    "text": (Grammar.text("abc"), "abc"),
    "empty": (Grammar.text(""), ""),
    "one of": (Grammar.one_of("ab") + c, "[ab]c"),
    "either": (a + b | a + c | b, "ab|ac|b"),
    "any number": ((a | b + c).repeat(), "(a|bc)*"),
    "between": (Grammar.one_of("ab").repeat(1, 3) + c.repeat(0, 1), "[ab]{1,3}c?"),
    "at least": ((a + b).repeat(2), "(ab){2,}"),
    "none": (a.repeat(0, 0) + b, "b"),
    "nested": ((a.repeat() + b).repeat(0, 2) + c, "(a*b){0,2}c"),
    "of what may be empty": (a.repeat(0, 1).repeat() + b, "(a?)*b"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_grammar_matches_what_pythons_expression_matches(name):
    grammar, pattern = PAIRS[name]
    for n in range(6):
        for text in map("".join, itertools.product("abc", repeat=n)):
            assert grammar.matches(text) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize("name", PAIRS)
def test_a_beginning_is_dead_just_where_no_text_goes_on_from_it(name):
    grammar, pattern = PAIRS[name]
    texts = [t for n in range(8) for t in map("".join, itertools.product("abc", repeat=n))]
    right = [text for text in texts if re.fullmatch(pattern, text)]
    for text in texts[:364]:  # up to five characters; none needs more than two others
        alive = any(other.startswith(text) for other in right)
        after = grammar.after(text)
        assert alive == bool(after.ends or after.starts), text


def test_starts_are_the_characters_that_something_begins_with():
    assert PAIRS["nested"][0].starts == {"a", "b", "c"}
    assert PAIRS["text"][0].starts == {"a"} and not Grammar.text("").starts
    assert PAIRS["nested"][0].after("ab").starts == {"a", "b", "c"}


def test_grammars_of_equal_parts_are_equal_and_so_are_states_met_twice():
    assert (a + b) + c == a + (b + c) == Grammar.text("abc")
    assert a | b == b | a == b | a | b and hash(a | b) == hash(b | a)
    loop = (a + b).repeat()
    assert loop.after("abab") == loop


TOKENS = ["a", "b", "c", "ab", "bc", "abc", "ca", "cab", "", "aa", "<end>", "bcb"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_guide_allows_just_the_tokens_that_live_when_walked_alone(name):
    grammar = PAIRS[name][0]
    guide, end = Guide(grammar, TOKENS, end=[10]), 10
    waiting, met = [(0, "")], set()
    while waiting:
        state, text = waiting.pop()
        met.add(state)
        mask = guide.allowed(state)
        for token, word in enumerate(TOKENS):
            after = grammar.after(text + word)
            alive = bool(word) and token != end and bool(after.ends or after.starts)
            wanted = grammar.matches(text) if token == end else alive
            assert bool(mask[token]) == wanted, (text, word)
            if alive and (behind := guide.step(state, token)) not in met and len(text) < 8:
                waiting.append((behind, text + word))
        assert guide.ends(state) == grammar.matches(text)
    assert guide.n_states <= 40


def test_texts_that_a_guide_leads_are_valid_and_all_of_them_are_reached():
    grammar = (a | b + c).repeat(1, 3)
    guide = Guide(grammar, TOKENS, end=[10])
    found, waiting = set(), [(0, "")]
    while waiting:
        state, text = waiting.pop()
        for token in guide.allowed(state).nonzero()[:, 0].tolist():
            if token == 10:
                found.add(text)
            else:
                waiting.append((guide.step(state, token), text + TOKENS[token]))
    texts = (t for n in range(1, 7) for t in map("".join, itertools.product("abc", repeat=n)))
    assert found == {text for text in texts if re.fullmatch("(a|bc){1,3}", text)}


def test_random_texts_under_a_guide_can_be_read_as_json():
    digit = Grammar.one_of("0123456789")
    number = Grammar.one_of("123456789") + digit.repeat(0, 3)
    numbers = Grammar.text("[") + (number + Grammar.text(", ")).repeat(0, 3) + number
    whole = Grammar.text('{"n": ') + (number | numbers + Grammar.text("]")) + Grammar.text("}")
    tokens = ['{"', "n", '":', " ", " [", "1", "23", "0", ", ", ",", "]}", "]", "}", "{", '"', "[",
              ":", "<end>"]  # fmt: skip
    guide = Guide(whole, tokens, end=[17])
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        state, text = 0, ""
        while True:
            allowed = guide.allowed(state).double()
            token = int(torch.multinomial(allowed, 1, generator=generator))
            state = guide.step(state, token)
            if token == 17:
                break
            text += tokens[token]
        assert json.loads(text)["n"]


def test_a_vocabulary_without_single_characters_can_end_in_a_state_without_tokens():
    guide = Guide(Grammar.text("abc"), ["ab", "bc", "a"])
    assert guide.allowed(guide.step(0, 0)).sum() == 0


def test_a_state_is_walked_once():
    guide = Guide(Grammar.text("ab"), TOKENS)
    assert guide.allowed(0) is guide.allowed(0)
    assert guide.n_states == 3  # a token of both characters has met them all


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Grammar.text(3), TypeError, "value must be a text, got int"),
        (lambda: Grammar.one_of([]), ValueError, "chars must be characters, at least one"),
        (lambda: Grammar.one_of(["ab"]), ValueError, "chars must be characters"),
        (lambda: Grammar.one_of([1]), TypeError, "chars must be a text, got int"),
        (lambda: a.repeat(-1), ValueError, "least"),
        (lambda: a.repeat(2, 1), ValueError, "most"),
        (lambda: a + "b", TypeError, "unsupported operand"),
        (lambda: a | 3, TypeError, "unsupported operand"),
        (lambda: Guide("ab", TOKENS), TypeError, "grammar must be a Grammar, got str"),
        (lambda: Guide(a.after("b"), TOKENS), ValueError, "at least one text"),
        (lambda: Guide(a, ["a", 3]), TypeError, "tokens must be a text, got int"),
        (lambda: Guide(a, TOKENS, end=[12]), ValueError, "end"),
        (lambda: Guide(a, TOKENS, end=["a"]), TypeError, "end"),
        (lambda: Guide(a, TOKENS, end=3), TypeError, "end must be a list, got int"),
        (lambda: Guide(a, 3), TypeError, "tokens must be a list, got int"),
        (lambda: Grammar.one_of(3), TypeError, "chars must be a list, got int"),
        (lambda: Guide(a, TOKENS).allowed(5), ValueError, "state"),
        (lambda: Guide(a, TOKENS).step(0, 1), ValueError, "token 1 is not allowed in state 0"),
        (lambda: Guide(a, TOKENS).step(0, 99), ValueError, "token"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
