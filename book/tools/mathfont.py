"""The font of formulas: STIX Two Math, cut down to the signs that stand in the book.

Browsers need a font with a table of mathematics to set roots, brackets and sums as high as what
they hold; many machines have none. The font comes with the package ziamath (SIL Open Font
License 1.1), is renamed, as that licence asks of a changed font, and ends as woff2 within the
style sheet, since some browsers load no font file over file://.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

from book.tools.assets import package_folder

FAMILY = "Executable Transformer Math"
FORMULA = re.compile(r"<math\b.*?</math>", re.DOTALL)
RADICAL = 0x221A
ITALIC = {ord("h"): 0x210E}  # its place among the italic letters was taken


def characters(pages: Iterable[str]) -> set[int]:
    """Return the code points that formulas of the pages show, single letters in italics too."""
    text = "".join(re.sub(r"<[^>]+>", "", part) for page in pages for part in FORMULA.findall(page))
    found = {ord(letter) for letter in unescape(text)} | {RADICAL}
    return found | {italic for italic in map(_italic, found) if italic}


def _italic(letter: int) -> int | None:
    """Return the mathematical italic of a Latin or Greek letter."""
    starts = {"A": 0x1D434, "a": 0x1D44E, "Α": 0x1D6E2, "α": 0x1D6FC}
    if letter in ITALIC:
        return ITALIC[letter]
    for first, italic in starts.items():
        if 0 <= letter - ord(first) < (26 if first.isascii() else 25):
            return italic + letter - ord(first)
    return None


def style(pages: Iterable[str]) -> str:
    """Return a style rule that holds the font."""
    source = package_folder("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
    data = b64encode(font(source, characters(pages))).decode()
    return (
        "/* Made from STIX Two Math, SIL Open Font License 1.1, https://openfontlicense.org */\n"
        f'@font-face{{font-family:"{FAMILY}";font-display:swap;'
        f'src:url("data:font/woff2;base64,{data}") format("woff2")}}\n'
    )


def font(source: Path, wanted: set[int]) -> bytes:
    """Cut a font down to code points and what mathematics makes of them; return it as woff2."""
    options = Options(layout_features=["ssty", "dtls", "flac"], hinting=False, notdef_outline=True)
    made = TTFont(source, recalcTimestamp=False)
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=wanted & set(made.getBestCmap()))
    subsetter.subset(made)
    _narrow_roots(made)
    for record in made["name"].names:
        if record.nameID in (1, 3, 4, 6, 16):
            record.string = FAMILY.replace(" ", "") if record.nameID == 6 else FAMILY
    made.flavor = "woff2"
    out = BytesIO()
    made.save(out)
    return out.getvalue()


def _narrow_roots(made: Any) -> None:
    """Draw high root signs as narrow as the low one.

    Chromium leaves as much room for each root as the widest of its signs would take.
    """
    variants = made["MATH"].table.MathVariants
    name = made.getBestCmap()[RADICAL]
    signs = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(name)]
    higher = [record.VariantGlyph for record in signs.MathGlyphVariantRecord]
    higher += [part.glyph for part in signs.GlyphAssembly.PartRecords]
    room = made["hmtx"][name][0]
    for each in set(higher) - {name}:
        glyph, (width, bearing) = made["glyf"][each], made["hmtx"][each]
        glyph.coordinates.scale((room / width, 1.0))
        glyph.coordinates.toInt()
        glyph.recalcBounds(made["glyf"])
        made["hmtx"][each] = (room, round(bearing * room / width))
