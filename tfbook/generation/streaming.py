"""From ids to text as they come: no piece of text is handed out before it is whole.

Explained in: chapters/12_generation, section "One token at a time".
"""

from collections.abc import Callable, Iterable, Iterator

from tfbook._checks import check_number

__all__ = ["pieces"]

UNFINISHED = "\ufffd"  # what a decoder writes for bytes that are no whole character


def pieces(ids: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """Yield the text of ids as they come, each piece as soon as it is finished.

    A token of byte-level BPE may end within a character: "é" is two bytes, an emoji four. Such
    bytes are held back until the character is whole, and left out if it never is. Together the
    pieces are the decoded text.

    Args:
        ids: token ids, such as those of :func:`tfbook.generation.stream`.
        decode: from a list of ids to text, such as that of a tokenizer or of a
            :class:`tfbook.pretrained.Pretrained`.

    Yields:
        Pieces of text, none of them empty.

    Raises:
        TypeError: if decode is no function, or ids are not whole numbers.
        ValueError: for an id below zero.

    Example:
        >>> list(pieces([104, 195, 169, 226, 130], lambda ids: bytes(ids).decode(errors="replace")))
        ['h', 'é']

    Explained in: chapters/12_generation, section "One token at a time".
    """
    if not callable(decode):
        raise TypeError(f"decode must be a function of ids, got {type(decode).__name__}")
    if not isinstance(ids, Iterable):
        raise TypeError(f"ids must be token ids, one after another, got {type(ids).__name__}")
    return _pieces(ids, decode)


def _pieces(ids, decode):
    # A token may look different behind another one (a space before a word), so the tokens of the
    # piece before are decoded again with the new ones, and what they say is taken off.
    before, held, shown = [], [], 0
    for token in ids:
        check_number("ids", token, 0, whole=True)
        held.append(token)
        text = decode(before + held)[len(decode(before)) :]
        # Of bytes that are no text a decoder writes one sign for each stretch: only the last one
        # can still become something else.
        ready = text.removesuffix(UNFINISHED)
        if len(ready) > shown:
            yield ready[shown:]
            shown = len(ready)
        if text and ready == text:
            before, held, shown = held, [], 0
