"""one_average: what one head can return of two words, and how far it stays from a difference."""

from tfbook.teaching.explorables._base import Explorable, number, wrapped

TITLE = "One head, two words"


def one_average(
    *, weight: float = 0.5, factor: float = 1.0, words: tuple[str, str] = ("first", "second")
) -> Explorable:
    r"""Return a figure of one weighted average of two words, against their difference.

    A head gives the weight $\alpha$ to the first word and $1-\alpha$ to the second; a number $c$
    stands behind the average. Wanted is the first minus the second. For independent words of one
    length the error is $\frac12\bigl((\alpha c-1)^2+((1-\alpha)c+1)^2\bigr)$, at least one half.

    Args:
        weight: The weight of the first word, from 0 to 1.
        factor: The number behind the average, from -2 to 2.
        words: What the two words are called.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Explained in: chapters/03_multi_head, section "One head is one average".
    """
    if len(words) != 2:
        raise ValueError(f"words must be two names, got {len(words)}")
    checks = {"weight": number("weight", 0, 1), "factor": number("factor", -2, 2)}
    state = {"weight": checks["weight"](weight), "factor": checks["factor"](factor)}
    data = {"title": TITLE, "words": [str(word) for word in words]}

    def text(now: dict) -> str:
        got = _results(now)
        first, second = data["words"]
        return wrapped(f"""{TITLE}

        A head gives {first} the weight {now["weight"]:g} and {second} the rest; behind the average
        stands the number {now["factor"]:g}. It returns {got["first"]:.2f} of {first} and
        {got["second"]:.2f} of {second}, where +1 and -1 are wanted. The error is
        {got["error"]:.2f}: 0 would be perfect, and returning nothing has 1.

        In the page, two sliders move the weight and the number.""")

    return Explorable(
        "one_average", data=data, state=state, checks=checks, results=_results, text=text
    )


def _results(now: dict) -> dict:
    a, c = now["weight"], now["factor"]
    first, second = a * c, (1 - a) * c
    error = ((first - 1) ** 2 + (second + 1) ** 2) / 2
    return {"first": first, "second": second, "error": error}
