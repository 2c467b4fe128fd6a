"""Where a text ends that comes in pieces: at the first of some strings, wherever pieces are cut.

Explained in: chapters/17_hardware, section "Serving many".
"""

from collections.abc import Iterable, Iterator, Sequence

from tfbook._checks import check_list

__all__ = ["Until"]


class Until:
    """The pieces of a text, up to the first string that ends it, which is left out.

    Of several strings the one counts whose last character comes first, and of two that end there
    the longer. What may be the beginning of one is held back until it is none, so that nothing is
    handed out that would have to be taken back.

    Args:
        pieces: the text, gone through once.
        stops: the strings that end it, none of them empty.

    Attributes:
        met: the string that ended the text, or None where its pieces ended by themselves.

    Raises:
        TypeError: if pieces are none, or stops no strings.
        ValueError: if a string is empty.

    Example:
        >>> text = Until(["To b", "e, o", "r not"], ["or", " to be"])
        >>> list(text), text.met
        (['To b', 'e, '], 'or')

    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(self, pieces: Iterable[str], stops: Sequence[str]):
        """Begin, with nothing read yet."""
        if isinstance(pieces, str) or not isinstance(pieces, Iterable):
            raise TypeError(f"pieces must be strings, one by one, got {type(pieces).__name__}")
        check_list("stops", stops)
        for stop in stops:
            if not isinstance(stop, str):
                raise TypeError(f"stops must be strings, got {type(stop).__name__}")
            if not stop:
                raise ValueError("stops must hold no empty string, which every text begins with")
        self.pieces, self.stops, self.met = pieces, list(stops), None

    def __iter__(self) -> Iterator[str]:
        """Yield the pieces, none of them empty."""
        held = ""
        for piece in self.pieces:
            held += piece
            found = [(held.find(stop) + len(stop), -len(stop)) for stop in self.stops]
            found = [(end, minus) for end, minus in found if end + minus >= 0]
            if found:
                end, minus = min(found)
                self.met = held[end + minus : end]
                held = held[: end + minus]
                break
            ready = len(held) - self._open(held)
            if ready:
                yield held[:ready]
                held = held[ready:]
        if held:
            yield held

    def _open(self, text):
        """Return how many characters at the end of a text may be the beginning of a stop."""
        begun = (k for stop in self.stops for k in range(1, len(stop)) if text.endswith(stop[:k]))
        return max(begun, default=0)
