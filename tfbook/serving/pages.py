"""Pages of a cache: who holds which, who shares which, and which are free.

Memory for keys and values is cut into pages of a few tokens. A sequence has a table of pages, in
the order of its tokens, wherever they lie; it takes a page when it needs one, so that less than one
page of each sequence is empty. Sequences that begin alike share the pages that they have in common.

Explained in: chapters/17_hardware, section "Serving many".
"""

from collections.abc import Sequence

from tfbook._checks import check_list, check_number

__all__ = ["OutOfPages", "PageTable"]

MOST = 2**31


class OutOfPages(RuntimeError):
    """No page is free.

    Explained in: chapters/17_hardware, section "Serving many".
    """


class PageTable:
    """The pages of all sequences, as numbers.

    A page that is full is known by all tokens up to its end, so a sequence that begins with the
    same tokens finds it. A full page that nobody holds any more can be found until it is needed
    for something else; those that were left first are taken first.

    Args:
        n_pages: how many there are.
        page_size: tokens of a page.
        share: whether sequences share pages.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number below 1.

    Example:
        >>> table = PageTable(n_pages=4, page_size=2)
        >>> table.open("a", [5, 6, 7]), table.pages("a")
        (0, [0, 1])
        >>> table.settle("a")  # its pages are written
        >>> table.open("b", [5, 6, 8]), table.pages("b")
        (2, [0, 2])

    Source: [kwon2023efficient]
    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(self, n_pages: int, page_size: int, *, share: bool = True):
        """Begin with all pages free."""
        check_number("n_pages", n_pages, 1, MOST, whole=True)
        check_number("page_size", page_size, 1, MOST, whole=True)
        if not isinstance(share, bool):
            raise TypeError(f"share must be True or False, got {type(share).__name__}")
        self.n_pages, self.page_size, self.share = n_pages, page_size, share
        self._holders = [0] * n_pages
        self._free = dict.fromkeys(range(n_pages))  # in the order in which they are taken
        self._known: dict[tuple[int, ...], int] = {}  # all tokens up to the end of a full page
        self._names: dict[int, tuple[int, ...]] = {}
        self._tables: dict[object, list[int]] = {}
        self._tokens: dict[object, list[int]] = {}

    @property
    def free(self) -> int:
        """Return how many pages nobody holds."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Return how many pages somebody holds, shared ones once."""
        return self.n_pages - len(self._free)

    def pages(self, name: object) -> list[int]:
        """Return the pages of a sequence, in the order of its tokens.

        Raises:
            KeyError: if there is no such sequence.
        """
        return list(self._tables[name])

    def length(self, name: object) -> int:
        """Return how many tokens a sequence has.

        Raises:
            KeyError: if there is no such sequence.
        """
        return len(self._tokens[name])

    def open(self, name: object, tokens: Sequence[int]) -> int:
        """Begin a sequence, and return how many of its tokens lie in pages that it shares.

        The last token is never taken from a shared page: it has to be read, to say what follows.
        What is in its own pages has to be written, and :meth:`settle` told when it is.

        Args:
            name: of the sequence, any that is not there.
            tokens: to begin with, at least one.

        Raises:
            TypeError: if a token is no integer.
            ValueError: if there is no token, or the name is taken.
            OutOfPages: if too few pages are free; nothing has changed then.
        """
        check_list("tokens", tokens)
        tokens = list(tokens)
        for token in tokens:
            check_number("a token of tokens", token, 0, whole=True)
        if not tokens or name in self._tables:
            raise ValueError(
                f"a sequence needs a new name and one token, got {name!r} and {len(tokens)} tokens"
            )
        size, shared = self.page_size, []
        while self.share and (len(shared) + 1) * size < len(tokens):
            page = self._known.get(tuple(tokens[: (len(shared) + 1) * size]))
            if page is None:
                break
            shared.append(page)
        needed = -(-len(tokens) // size) - len(shared)
        if needed > len(self._free) - sum(page in self._free for page in shared):
            raise OutOfPages(f"{needed} pages are needed for {name!r}, {self.free} are free")
        for page in shared:
            self._holders[page] += 1
            self._free.pop(page, None)
        self._tables[name] = shared + [self._take() for _ in range(needed)]
        self._tokens[name] = tokens
        return len(shared) * size

    def append(self, name: object, token: int) -> tuple[int, int]:
        """Add a token to a sequence, and return in which page and row its key and value belong.

        Args:
            name: of the sequence.
            token: the next one.

        Raises:
            KeyError: if there is no such sequence.
            OutOfPages: if a page is needed and none is free; nothing has changed then.
        """
        place = len(self._tokens[name])
        page, row = divmod(place, self.page_size)
        if page == len(self._tables[name]):
            if not self._free:
                raise OutOfPages(f"a page is needed for {name!r}, none is free")
            self._tables[name].append(self._take())
        self._tokens[name].append(token)
        return self._tables[name][page], row

    def settle(self, name: object) -> None:
        """Let others find the full pages of a sequence, now that they have been written.

        Raises:
            KeyError: if there is no such sequence.
        """
        tokens = self._tokens[name]
        for i, page in enumerate(self._tables[name][: len(tokens) // self.page_size]):
            prefix = tuple(tokens[: (i + 1) * self.page_size])
            if page not in self._names and prefix not in self._known:
                self._known[prefix], self._names[page] = page, prefix

    def close(self, name: object) -> None:
        """End a sequence: its pages are free, but for those that others hold.

        Raises:
            KeyError: if there is no such sequence.
        """
        for page in reversed(self._tables.pop(name)):  # the end of a text is asked for least
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free[page] = None
        del self._tokens[name]

    def _take(self) -> int:
        """Return a page that is free, unknown ones first; what it was known by is forgotten."""
        page = next((page for page in self._free if page not in self._names), None)
        page = next(iter(self._free)) if page is None else page
        del self._free[page]
        if page in self._names:
            del self._known[self._names.pop(page)]
        self._holders[page] = 1
        return page
