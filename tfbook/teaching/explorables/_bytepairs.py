"""byte_pairs: a text cut into tokens, one learned merge after the other."""

import unicodedata
from collections.abc import Sequence
from functools import cache

from tfbook.data import BYTES, BytePairs, english_french
from tfbook.teaching.explorables._base import Explorable, whole, wrapped

TITLE = "Byte pairs, merge by merge"
TEXTS = (
    "Select the file that you want to open.",
    "Sélectionnez le fichier à déplacer.",
    "naïve café, 12 € → 日本語",
)
MAX_TEXTS, MAX_MERGES, MAX_CHARACTERS = 8, 1000, 300
SENTENCES, LEARNED = 100, 150
SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def byte_pairs(
    tokenizer=None,
    *,
    texts: Sequence[str] = TEXTS,
    text: str | None = None,
    merges: int = 0,
) -> Explorable:
    """Return a figure in which a text becomes fewer and longer tokens, merge by merge.

    The text is cut into pieces, each piece is written as bytes in UTF-8, and the merges that were
    learned are applied in their order: what `BytePairs.encode` does with the first of them.

    Args:
        tokenizer: A trained `tfbook.data.BytePairs` with 1 to 1000 merges; by default 150
            merges from 100 English and 100 French sentences of the GNOME help.
        texts: One to eight examples among which the reader chooses.
        text: What stands in the field, at most 300 characters; by default the first example.
        merges: How many are applied, from 0.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or a text is too long or no valid Unicode.

    Source: [sennrich2016neural], [radford2019language].
    Explained in: chapters/13_language, section "Nothing is unknown".
    """
    tokenizer = _learned() if tokenizer is None else tokenizer
    if not isinstance(tokenizer, BytePairs):
        raise TypeError(f"tokenizer must be a BytePairs, got {type(tokenizer).__name__}")
    if not 1 <= len(tokenizer.merges) <= MAX_MERGES:
        raise ValueError(
            f"tokenizer must have 1 to {MAX_MERGES} merges, got {len(tokenizer.merges)}"
        )
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise TypeError(f"texts must be a list of strings, got {type(texts).__name__}")
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ValueError(f"texts must be 1 to {MAX_TEXTS} strings, got {len(texts)}")
    examples = [_text(f"texts[{i}]")(t) for i, t in enumerate(texts)]
    checks = {"text": _text("text"), "merges": whole("merges", 0, len(tokenizer.merges))}
    state = {
        "text": checks["text"](examples[0] if text is None else text),
        "merges": checks["merges"](merges),
    }
    names = [shown(token) for token in tokenizer.tokens]

    def first(count: int) -> BytePairs:
        return BytePairs(tokenizer.merges[:count], tokenizer.tokens[: len(BYTES) + count])

    def results(now: dict) -> dict:
        count = now["merges"]
        ids = first(count).encode(now["text"])
        merge = None
        if count:
            left, right = tokenizer.merges[count - 1]
            before = len(first(count - 1).encode(now["text"]))
            merge = {"left": names[left], "right": names[right],
                     "new": names[len(BYTES) + count - 1], "places": before - len(ids)}  # fmt: skip
        return {
            "ids": ids,
            "tokens": [names[i] for i in ids],
            "count": len(ids),
            "bytes": len(now["text"].encode("utf-8")),
            "characters": len(now["text"]),
            "merge": merge,
        }

    def said(now: dict) -> str:
        found = results(now)
        last = ""
        if found["merge"]:
            left, right, new, places = found["merge"].values()
            last = (
                f" The last of them joined {left} and {right} to {new}, in {places} "
                f"place{'s' * (places != 1)} of this text."
            )
        return wrapped(f"""{TITLE}

        “{now["text"]}” has {found["characters"]} characters and {found["bytes"]} bytes. After
        {now["merges"]} of {len(tokenizer.merges)} merges it is {found["count"]} tokens:
        {" | ".join(found["tokens"])}.{last}

        In the page you type a text or choose one, apply the merges one by one, and see the number
        of tokens fall. ␣ is a space, ⟨C3⟩ a byte that is no whole character.""")

    data = {
        "title": TITLE, "texts": examples, "names": names, "longest": MAX_CHARACTERS,
        "merges": [list(pair) for pair in tokenizer.merges], "bytes": BYTES,
    }  # fmt: skip
    return Explorable(
        "byte_pairs", data=data, state=state, checks=checks, results=results, text=said
    )


def shown(token: bytes) -> str:
    """Return a token as a reader sees it: signs for white space, hex for what is no character."""
    parts = []
    for character in token.decode("utf-8", errors="surrogateescape"):
        raw = character.encode("utf-8", errors="surrogateescape")
        if character in SIGNS:
            parts.append(SIGNS[character])
        elif character.isprintable():
            # A mark that stands on another letter gets a place to stand.
            stand = "◌" if unicodedata.combining(character) and not parts else ""
            parts.append(stand + character)
        else:
            parts.append("".join(f"⟨{byte:02X}⟩" for byte in raw))
    return "".join(parts)


@cache
def _learned():
    """Learn merges from help pages, once."""
    sentences = [text for pair in english_french()[:SENTENCES] for text in pair]
    return BytePairs.train(sentences, vocab_size=len(BYTES) + LEARNED)


def _text(name: str):
    """Return a check that lets texts through that are valid Unicode and not too long."""

    def check(value):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {type(value).__name__}")
        if len(value) > MAX_CHARACTERS:
            raise ValueError(
                f"{name} must have at most {MAX_CHARACTERS} characters, got {len(value)}"
            )
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError(f"{name} must be valid Unicode, got half of a surrogate pair")
        return value

    return check
