"""Often got wrong: the section of a chapter in which its errata stand, as a table.

    ## Often got wrong

    | You may hear | What holds | Verified |
    |---|---|---|
    | The weights are the output. | They are what mixes the values. | [✓](#claim-weights-mix) |

The metadata of the cell names the erratum of each row by its claim, which rejects the wrong value:
`{"tfbook": {"wrong": {"weights-mix": "E015"}}}`. The claim may stand on the chapter's other page,
`[✓](02_attention_deeper.ipynb#claim-weights-mix)`. A row may end with several, where one mistake
has several forms. The corrections page is made from these rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SECTION = "Often got wrong"
HEAD = ["You may hear", "What holds", "Verified"]
CELL = re.compile(r"(?<!\\)\|")
LINK = re.compile(r"\[✓\]\((?:(?P<page>[\w-]+)\.ipynb)?#claim-(?P<slug>[a-z0-9-]+)\)")


@dataclass(frozen=True)
class Row:
    """A row of the table: a statement, what holds, the claim that decides, and the erratum."""

    place: Any
    says: str
    holds: str
    page: str
    slug: str
    erratum: str


def read(source: str, named: Mapping[str, str], place: Any) -> tuple[list[Row], list[str]]:
    """Read the rows of a cell; what is wrong with their form comes beside."""
    rows, faults = [], []
    if place.section != SECTION:
        faults.append(f"the metadata `wrong` belongs into the section {SECTION!r}")
    cells = _table(source)
    if len(cells) < 3 or not has_table(source):
        return [], [*faults, f"has no table with the head {' | '.join(HEAD)}"]
    left = {slug.removeprefix("claim-"): erratum for slug, erratum in named.items()}
    for cell in cells[2:]:
        links = list(LINK.finditer(cell[2])) if len(cell) == 3 else []
        if not links or LINK.sub("", cell[2]).strip():
            faults.append(f"a row has to end with [✓](#claim-slug), got {cell[-1]!r}")
            continue
        says, holds = (text.replace(r"\|", "|") for text in cell[:2])
        for link in links:  # one for each form in which the same thing is said
            if link["slug"] not in left:
                faults.append(f"the metadata names no erratum for the row of {link['slug']}")
                continue
            page = link["page"] or place.page
            rows.append(Row(place, says, holds, page, link["slug"], left.pop(link["slug"])))
    faults += [f"no row links to {slug}, which the metadata names" for slug in left]
    return rows, faults


def has_table(source: str) -> bool:
    """Tell whether a cell holds the table of this section."""
    return _table(source)[:1] == [HEAD]


def _table(source: str) -> list[list[str]]:
    lines = [line.strip() for line in source.splitlines() if line.strip().startswith("|")]
    return [[part.strip() for part in CELL.split(line)[1:-1]] for line in lines]


def problems(index: Any, errata: Mapping[str, Any]) -> Iterator[str]:
    """Yield, in words, what keeps the rows from saying what they promise."""
    claims = {claim.slug: claim for claim in index.claims}
    for row in index.wrongs:
        claim = claims.get(row.slug)
        if not claim or claim.place.page != row.page:
            yield f"{row.place}: {row.page} makes no claim {row.slug}"
        elif claim.place.chapter != row.place.chapter:
            yield f"{row.place}: the claim {row.slug} is one of another chapter, {row.page}"
        elif not claim.corrects:
            yield f"{row.place}: the claim {row.slug} rejects no wrong value, it has no `wrong=`"
        homes = {place.chapter for place in index.errata.get(row.erratum, ())}
        if row.erratum not in errata:
            yield f"{row.place} names erratum {row.erratum}, which does not exist"
        elif row.place.chapter not in homes:
            yield f"{row.place} corrects {row.erratum}, which is not at home in this chapter"
    yield from lost(index, errata)


def lost(index: Any, errata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errata without a row, in chapters that have the section; or with two."""
    rows = Counter(row.erratum for row in index.wrongs)
    with_rows = {row.place.chapter for row in index.wrongs}
    for name, places in index.errata.items():
        wanted = places[0].chapter in with_rows and name in errata
        if wanted and errata[name].check == "claim" and not rows[name]:
            yield f"erratum {name} has its home in {places[0]} and no row in {SECTION!r}"
    yield from (f"erratum {name} has {n} rows in {SECTION!r}" for name, n in rows.items() if n > 1)
