"""Formulas become MathML that browsers set as TeX would, and that can go on in the next line."""

import re
from io import BytesIO
from pathlib import Path

import pytest
from docutils import nodes
from fontTools.ttLib import TTFont
from lxml import etree

from book.tools import bundle, formulas, mathfont
from book.tools.assets import package_folder

FONT = package_folder("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"


def read(tex, display=False):
    """A formula as a tree, its pieces as children."""
    (found,) = formulas.mathml([(tex, display)])
    return etree.fromstring(f"<p>{found}</p>".replace("<wbr>", "<wbr/>"))


def plain(tex, display=False):
    return " ".join(t.strip() for t in read(tex, display).itertext() if t.strip())


def gaps(tex):
    """The names and signs of a formula in their order, a space between them as its width."""
    tags = ("mi", "mn", "mo", "mtext", "mspace")
    return [each.get("width") or each.text for each in read(tex).iter(*tags)]


@pytest.mark.parametrize(
    ("tex", "wanted"),
    [
        (r"\ln p", ["ln", "0.167em", "p"]),
        (r"2\ln p", ["2", "0.167em", "ln", "0.167em", "p"]),
        (r"\ln(p)", ["ln", "(", "p", ")"]),
        (r"-\ln p", ["−", "ln", "0.167em", "p"]),
        (r"\log_2 n", ["log", "2", "0.167em", "n"]),
        (r"\operatorname{softmax}\!\left(x\right)", ["softmax", "-0.167em", "(", "x", ")"]),
        (r"\max_i a_i", ["max", "i", "0.167em", "a", "i"]),
        (r"\frac{\sin x}{2}", ["sin", "0.167em", "x", "2"]),
    ],
)
def test_names_of_functions_stand_apart_from_what_has_no_brackets(tex, wanted):
    assert gaps(tex) == wanted


def test_letters_say_their_kind_themselves():
    assert plain(r"\mathbb E[\mathcal L]") == "𝔼 [ ℒ ]"
    assert not read(r"\mathbb E").xpath("//@mathvariant")
    assert read(r"\mathrm{d}x").xpath("//mi/@mathvariant") == ["normal"]


def test_accents_stand_over_their_letter_and_do_not_stretch():
    for tex, sign in ((r"\hat x", "^"), (r"\tilde x", "~"), (r"\bar x", "¯")):
        (accent,) = read(tex).iter("mo")
        assert (accent.text, accent.get("stretchy")) == (sign, "false"), tex
    assert read(r"\overrightarrow{ab}").xpath("//mo/@stretchy") == []


def test_a_slash_and_a_prime_are_close():
    for tex in ("a/b", "a'"):
        (sign,) = read(tex).iter("mo")
        assert (sign.get("lspace"), sign.get("rspace")) == ("0", "0")


def test_equations_break_before_relations_and_between_formulas():
    pieces = read(r"a=b+c\le d,\qquad e\to f", display=True)
    sides = pieces.findall("span")
    told = [["".join(math.itertext()) for math in side.iter("math")] for side in sides]
    assert told == [["a", "=b+c", "≤d,"], ["e", "→f"]]
    assert all(math.get("displaystyle") == "true" for math in pieces.iter("math"))
    later = [math[0] for math in pieces.iter("math") if math[0].text in "=≤→"]
    assert [sign.get("form") for sign in later] == ["infix"] * 3


def test_a_short_formula_in_a_line_is_one_piece_and_a_long_one_is_not():
    assert len(list(read("a = b").iter("math"))) == 1
    assert len(list(read("a+b+c+d+e+f = g+h+i+j+k").iter("math"))) == 2


@pytest.mark.parametrize("tex", [r"\nosuchcommand{x}", r"\frac{1"])
def test_what_cannot_be_read_is_a_warning_and_stays(tex, caplog):
    assert formulas.mathml([("x", False), (tex, False)])[1] is None
    with caplog.at_level("WARNING", logger="sphinx"):
        assert "<code>" in formulas.Formulas().html(tex, False, nodes.math())


@pytest.mark.parametrize(
    ("tex", "read_as"),
    [
        ("a\n\nb", r"\begin{aligned}a\\b\end{aligned}"),
        (r"a&=b\\ c&=d", r"\begin{aligned}a&=b\\ c&=d\end{aligned}"),
        (r"x\begin{pmatrix}a\\b\end{pmatrix}", r"x\begin{pmatrix}a\\b\end{pmatrix}"),
        (r"\begin{aligned}a\\b\end{aligned}", r"\begin{aligned}a\\b\end{aligned}"),
    ],
)
def test_several_lines_are_aligned(tex, read_as):
    assert formulas.tex_of(nodes.math_block(tex, tex)) == (read_as, True)
    assert formulas.mathml([(read_as, True)]) != [None]


# ------------------------------------------------------------------------------------- the font


@pytest.fixture(scope="module")
def small():
    wanted = mathfont.characters([str(formulas.mathml([(r"\sqrt{\frac{a}{b}}=\sum h", True)])[0])])
    return TTFont(BytesIO(mathfont.font(FONT, wanted)))


def test_the_font_holds_what_formulas_show_and_little_else(small):
    letters = small.getBestCmap()
    italics = {0x1D44E, 0x1D44F, 0x210E}  # a, b, and h, whose italic stands elsewhere
    assert {ord("="), ord("∑"), mathfont.RADICAL} | italics <= letters.keys()
    assert ord("∏") not in letters and len(letters) < 30
    assert small["name"].getDebugName(1) == mathfont.FAMILY
    assert "STIX" not in small["name"].getDebugName(4)


def test_high_roots_take_no_more_room_than_low_ones(small):
    variants = small["MATH"].table.MathVariants
    name = small.getBestCmap()[mathfont.RADICAL]
    signs = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(name)]
    drawn = [record.VariantGlyph for record in signs.MathGlyphVariantRecord]
    drawn += [part.glyph for part in signs.GlyphAssembly.PartRecords]
    assert len(drawn) > 4
    assert {small["hmtx"][each][0] for each in drawn} == {small["hmtx"][name][0]}


# -------------------------------------------------------------------------- styles and scripts

PAGE = """<html lang="en" data-content_root="../" data-theme="auto"><head><title>A</title>
<link rel="stylesheet" href="../_static/a.css?v=1">
<link href="../_static/book.css" rel="stylesheet">
<link rel="icon" href="../_static/favicon.svg">
<script>localStorage.getItem("mode")</script>
<script src="../_static/one.js?v=2"></script><script>let two = 2;</script>
<script>DOCUMENTATION_OPTIONS.pagename = 'chapters/a';</script>
</head><body><script type="application/json">{"kept": 1}</script>
<button onclick="window.print()">Print</button></body></html>
"""


@pytest.fixture
def bundled(tmp_path):
    static = tmp_path / "_static"
    static.mkdir()
    light, dark = 'html[data-theme="light"] p{a:1}', "html[data-theme=dark] p:not(a,.b){a:2}"
    (static / "a.css").write_text(f"{light}p:not(c,d){{a:0}}{dark}")
    (static / "book.css").write_text("p{b:1}")
    (static / "one.js").write_text("var one = 1")
    page = tmp_path / "chapters.html"
    page.write_text(PAGE)
    bundle.bundle(tmp_path, [page])
    return static, page.read_text()


def test_a_page_asks_for_one_style_sheet_and_two_scripts(bundled):
    static, page = bundled
    assert re.findall(r'(?:src|href)="([^"]+)"', page) == [
        f"../_static/{name}" for name in ("early.js", "style.css", "script.js", "favicon.svg")
    ]
    assert page.count("<script") == 3 and '{"kept": 1}' in page and "onclick" not in page
    assert 'data-page="chapters/a"' in page and "data-print" in page
    assert (static / "script.js").read_text().split() == "let two = 2; ; var one = 1".split()
    assert "localStorage" in (static / "early.js").read_text()
    assert sorted(path.name for path in static.iterdir()) == ["early.js", "script.js", "style.css"]


def test_pages_that_were_joined_before_stay_as_they_are(bundled):
    static, page = bundled
    style = (static / "style.css").read_text()
    path = static.parent / "chapters.html"
    bundle.bundle(static.parent, [path])
    assert path.read_text() == page and (static / "style.css").read_text() == style


def test_without_a_choice_of_theme_the_system_chooses(bundled):
    style = (bundled[0] / "style.css").read_text()
    before, _, dark = style.partition("@media (prefers-color-scheme:dark)")
    assert ':is(html[data-theme="light"],html[data-theme="auto"]) p{a:1}' in before
    assert "html[data-theme=dark] p:not(a,.b){a:2}" in before and "p{b:1}" in before
    assert 'html[data-theme="auto"] p:not(a,.b){a:2}' in dark and "a:1" not in dark


def test_the_font_comes_from_a_package_with_its_licence():
    folder = Path(FONT).parent.parent
    assert [path for path in folder.parent.glob("ziamath-*") if "dist-info" in path.name]
