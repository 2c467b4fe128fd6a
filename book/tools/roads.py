"""Roads: chapters that a reader finishes in one sitting, and what of them stands open on the page.

    python book/tools/roads.py [02_attention ...]

counts the built pages of chapters and says what a road may not be. What is open is what one sees
before anything is unfolded; the line of a fold is open, what it folds is not. `ROADS` names the
chapters that keep the limits below, which `tests/site/test_roads.py` holds them to.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, Tag

ROADS: tuple[str, ...] = (
    "02_attention",
    "04_positions",
    "05_architecture",
    "06_complexity",
    "07_efficient_attention",
    "08_architectural_variants",
    "09_hybrids",
    "10_interpretability",
    "11_training",
    "12_generation",
    "13_language",
    "17_hardware",
    "18_practice",
    "01_motivation",
    "03_multi_head",
)

# Of a road: what, at least, at most.
LIMITS = {
    "prose words": (0, 5_000),
    "open words": (0, 11_000),
    "open code cells": (0, 45),
    "open claims": (8, 25),
    "drawings": (5, None),
    "explorables": (2, None),
    "predictions": (3, None),
    "exercises": (6, 8),
    "kinds of exercises": (4, None),
}
CODE_LINES = 20
DEEPER_WORDS = 8_000  # of a section with all that stands below its heading
# Half the pace at which adults read a text without formulas: readers stop, go back and work it out.
WORDS_A_MINUTE, LINES_A_MINUTE, TIME_TOLERANCE = 125, 7, 0.2
QUESTIONS = ("quiz", "predict", "explain")  # which are no figures with controls
# How the text of an exercise begins: *By hand.* …
KINDS = {
    "by hand": "by hand",
    "predict": "predict",
    "draw": "explain",
    "explain": "explain",
    "code": "code",
    "build": "build",
    "break it": "break it",
}
# Quarrels with somebody who is not there; what others say wrongly has a section of its own.
ABSENT = re.compile(
    r"\b(some (texts?|books?|sources|slides|pages) (say|write|print|give|claim)"
    r"|one (sometimes |often )?(reads|finds|sees)|(often|usually|sometimes|commonly) "
    r"(printed|written|read)|in circulation|circulates?|is (often )?misprinted|mistranslated"
    r"|has lost the|a listing that|say the tips|the tips say|for which we found no source"
    r"|you may have read)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"\w[\w'’-]*")
READING = re.compile(r"reading time:?\s*(?:about |some )?(\d+)\s*min", re.IGNORECASE)
# Most elements of a page are the coloured words of its code.
PRE, SPAN = re.compile(r"<pre\b.*?</pre>", re.DOTALL), re.compile(r"</?span\b[^>]*>")
NO_TEXT = "script, style, a.headerlink, .prev-next-area"


@dataclass(frozen=True)
class Page:
    """What a reader meets on a page."""

    counts: dict[str, int]
    long_cells: list[int]
    sections: dict[str, int]
    absent: list[str]
    unknown: list[str]
    minutes: float
    promised: int | None


def measure(html: str) -> Page:
    """Count what stands on a built page."""
    page = BeautifulSoup(PRE.sub(_without_colours, html), "html.parser")
    body = page.select_one("article") or page
    for node in body.select(NO_TEXT):
        node.decompose()
    cells = [cell for cell in body.select("div.cell_input") if not folded(cell)]
    lines = [sum(bool(line.strip()) for line in cell.get_text().splitlines()) for cell in cells]
    figures = [each.get("data-module") for each in body.select(".tfbook-explorable")]
    kinds = [_kind(exercise) for exercise in body.select("div.exercise")]
    counts = {
        "prose words": 0,
        "open words": words(body),
        "open code cells": len(cells),
        "open claims": sum(not folded(claim) for claim in body.select(".tfbook-claim")),
        "drawings": sum(not folded(picture) for picture in body.select("img.tfbook-drawing")),
        "explorables": sum(figure not in QUESTIONS for figure in figures),
        "predictions": figures.count("predict"),
        "exercises": len(kinds),
        "kinds of exercises": len({kind for kind in kinds if kind in KINDS.values()}),
    }
    sections = {_title(part): words(part) for part in body.select("section:has(> h2)")}
    outputs = sum(words(cell) for cell in body.select("div.cell_output"))
    for cell in body.select("div.cell"):
        cell.decompose()
    counts["prose words"] = words(body)
    for part in body.select("section:has(> h2)"):
        if _title(part) == "Often got wrong":
            part.decompose()
    prose = body.get_text(" ")
    promised = READING.search(prose)
    return Page(
        counts=counts,
        long_cells=[number for number in lines if number > CODE_LINES],
        sections=sections,
        absent=[match[0] for match in ABSENT.finditer(prose)],
        unknown=[kind for kind in kinds if kind not in KINDS.values()],
        minutes=(counts["prose words"] + outputs) / WORDS_A_MINUTE + sum(lines) / LINES_A_MINUTE,
        promised=int(promised[1]) if promised else None,
    )


def _without_colours(code: re.Match) -> str:
    return SPAN.sub(" ", code[0])


def words(node: Tag) -> int:
    """Count the words of a part of a page that are open."""
    return len(WORD.findall(" ".join(t for t in node.find_all(string=True) if not folded(t))))


def folded(node: Tag) -> bool:
    """Tell whether a reader has to unfold something before seeing this."""
    below = node
    for above in node.parents:
        closed = above.name == "details" and not above.has_attr("open")
        if closed and below.name != "summary":
            return True
        title = "admonition-title" in (below.get("class") or ()) if below.name else False
        if "dropdown" in (above.get("class") or ()) and not title:
            return True
        below = above
    return False


def _title(section: Tag) -> str:
    """Return the heading of a section, without its number."""
    heading = section.find("h2")
    for number in heading.select(".section-number"):
        number.decompose()
    return heading.get_text().strip()


def _kind(exercise: Tag) -> str:
    """Return the kind of an exercise, which its text begins with; or what stands there instead."""
    first = exercise.select_one("p:not(.admonition-title)")
    said = first.find("em") if first else None
    return kind(said.get_text()) if said else "none"


def kind(said: str) -> str:
    """Return the kind that an exercise names, as in *Draw or explain.*; or what it says instead."""
    text = said.strip().rstrip(".").lower()
    return KINDS.get(re.split(r",|/| or ", text)[0].strip(), text)


def faults(page: Page) -> Iterator[str]:
    """Yield what a road may not be."""
    for what, (least, most) in LIMITS.items():
        found = page.counts[what]
        if found < least:
            yield f"{found:,} {what}, at least {least:,}"
        if most is not None and found > most:
            yield f"{found:,} {what}, at most {most:,}"
    yield from (f"a code cell of {n} lines, at most {CODE_LINES}" for n in page.long_cells)
    yield from (f"quarrels with the absent: {words!r}" for words in page.absent)
    yield from (f"an exercise of no known kind: {kind!r}" for kind in page.unknown)
    if page.promised is None:
        yield f"its box names no reading time; it is {page.minutes:.0f} minutes"
    elif abs(page.promised - page.minutes) > TIME_TOLERANCE * page.minutes:
        yield f"promises {page.promised} minutes of reading, and takes {page.minutes:.0f}"


def deeper_faults(page: Page) -> Iterator[str]:
    """Yield what a deeper page may not be."""
    for title, number in page.sections.items():
        if number > DEEPER_WORDS:
            yield f"{number:,} open words in {title!r}, at most {DEEPER_WORDS:,}: make it two"
    yield from (f"a code cell of {n} lines, at most {CODE_LINES}" for n in page.long_cells)
    yield from (f"quarrels with the absent: {words!r}" for words in page.absent)


def main(names: list[str]) -> None:
    """Print counts and faults of built pages."""
    folder = Path(__file__).resolve().parents[2] / "_build" / "html" / "chapters"
    for path in sorted(folder.glob("[0-9]*.html")):
        if names and path.stem not in names:
            continue
        page = measure(path.read_text(encoding="utf-8"))
        counted = ", ".join(f"{number:,} {what}" for what, number in page.counts.items())
        print(f"{path.stem}: {counted}, {page.minutes:.0f} minutes")
        look = deeper_faults if path.stem.endswith("_deeper") else faults
        for fault in look(page):
            print(f"    {fault}")


if __name__ == "__main__":
    main(sys.argv[1:])
