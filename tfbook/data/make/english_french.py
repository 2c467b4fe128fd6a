"""Make en-fr_gnome.tsv: sentence pairs from GNOME's English help pages and their French versions.

    python tfbook/data/make/english_french.py gnome-user-docs_43.0-2_all.deb [FILE]

Reads the pinned package of Debian 12 (`apt-get download gnome-user-docs`) without installing it;
writes FILE, by default the committed file beside this script. The same input gives the same bytes.

The French pages are generated from catalogues of translated messages, so a page has the same tree
of elements in both languages: its n-th paragraph, title or description belongs to the n-th of the
other. Both are cut into sentences, and paragraphs with equally many of them give pairs. Pairs that
are very short, long or unequal in length, or hold placeholders, markup or addresses, are left out,
and so are repetitions.
"""

import hashlib
import io
import re
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path

SHA256 = "0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f"
ENGLISH = "./usr/share/help/C/gnome-help/"
FRENCH = "./usr/share/help/fr/gnome-help/"
PARAGRAPHS = {"p", "title", "desc"}
LEFT_OUT = {"revision", "credit", "link", "include", "code", "screen", "media", "comment"}
PLACEHOLDER = "\0"  # for an inline element without text, which the viewer fills in
MOST_WORDS = 25
UNWANTED = re.compile(r"[\t|<>{}\0]|https?:|www\.")
TYPOGRAPHY = str.maketrans(
    {"\u00a0": " ", "\u202f": " ", "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "–": "-"}
    | {"…": "..."}
)


def read_pages(package: bytes) -> dict[str, bytes]:
    """Return the pages of a Debian package by their path.

    Raises:
        ValueError: if the package is not the pinned one.
    """
    digest = hashlib.sha256(package).hexdigest()
    if digest != SHA256:
        raise ValueError(f"the package must have sha256 {SHA256}, got {digest}")
    # An ar archive: 8 bytes, then for each member a header of 60 bytes and its content.
    at = 8
    while not package[at : at + 16].startswith(b"data.tar"):
        size = int(package[at + 48 : at + 58])
        at += 60 + size + size % 2
    content = package[at + 60 : at + 60 + int(package[at + 48 : at + 58])]
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {
            member.name: archive.extractfile(member).read()
            for member in archive
            if member.isfile() and member.name.endswith(".page")
        }


def paragraphs(page: bytes) -> list[tuple[str, str]]:
    """Return kind and text of each paragraph, title and description of a page, in order."""

    def walk(element: ET.Element) -> Iterator[tuple[str, str]]:
        kind = element.tag.rsplit("}", 1)[-1]
        if kind in LEFT_OUT:
            return
        if kind not in PARAGRAPHS:
            for child in element:
                yield from walk(child)
            return
        for inner in element.iter():
            if inner is not element and not (inner.text or "").strip() and len(inner) == 0:
                inner.text = PLACEHOLDER
        yield kind, " ".join("".join(element.itertext()).split())

    return list(walk(ET.fromstring(page)))


def tidy(text: str) -> str:
    """Replace typographic marks by plain ones and runs of space by one."""
    text = text.translate(TYPOGRAPHY).replace("« ", '"').replace(" »", '"')
    return re.sub(r"\s+", " ", text).strip()


def sentences(text: str) -> list[str]:
    """Cut a paragraph behind full stops that a capital letter or a quotation mark follows."""
    return re.split(r'(?<=[.!?])\s+(?=[A-ZÀ-Ý"])', text)


def fits(english: str, french: str) -> bool:
    """Say whether a pair is worth keeping."""
    n_english, n_french = len(english.split()), len(french.split())
    return (
        english != french
        and 2 <= n_english <= MOST_WORDS
        and 2 <= n_french <= MOST_WORDS + 8
        and 0.4 <= len(french) / len(english) <= 2.6
        and not UNWANTED.search(english + french)
    )


def pair_up(english: bytes, french: bytes) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of one page, if both versions have the same paragraphs."""
    ours, theirs = paragraphs(english), paragraphs(french)
    if [kind for kind, _ in ours] != [kind for kind, _ in theirs]:
        return
    for (_, source), (_, target) in zip(ours, theirs, strict=True):
        source, target = sentences(tidy(source)), sentences(tidy(target))
        if len(source) == len(target):
            yield from (pair for pair in zip(source, target, strict=True) if fits(*pair))


def make(pages: Mapping[str, bytes]) -> str:
    """Return the text of en-fr_gnome.tsv: one pair a line, English, tab, French."""
    pairs = {}  # a dictionary keeps the order and drops repetitions
    for path in sorted(pages):
        translated = FRENCH + path.removeprefix(ENGLISH)
        if path.startswith(ENGLISH) and translated in pages:
            pairs |= dict.fromkeys(pair_up(pages[path], pages[translated]))
    return "".join(f"{english}\t{french}\n" for english, french in pairs)


if __name__ == "__main__":
    beside = Path(__file__).parents[1] / "en-fr_gnome.tsv"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else beside
    pages = read_pages(Path(sys.argv[1]).read_bytes())
    target.write_text(make(pages), encoding="utf-8", newline="\n")
