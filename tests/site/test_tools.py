"""What the book's Sphinx extension does, on small inputs and without a browser."""

import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from book.tools import assets, code_links, pages, rooms, site, stills
from tfbook import experiments
from tfbook.teaching import explorables

WORDS = set(re.findall(r"[\w-]+", '<div class="kept" id="here">'))


@pytest.mark.parametrize("alt", ["", "  ", "plot", "Figure 3.", "the image", "Output", "short"])
def test_texts_that_say_nothing_are_weak(alt):
    assert site.weak_alt(alt)


def test_a_text_that_says_what_a_picture_shows_is_not_weak():
    assert not site.weak_alt("Two curves that cross at 4.")


@pytest.mark.parametrize(
    ("css", "thinner"),
    [
        (".kept{a:1}.gone{a:1}", ".kept{a:1}"),
        (".gone,.kept{a:1}", ".kept{a:1}"),
        (".kept.gone{a:1}", ""),
        ("#here{a:1}#there{a:1}", "#here{a:1}"),
        (".kept:not(.gone){a:1}", ".kept:not(.gone){a:1}"),
        (":is(.gone,.kept) p{a:1}", ":is(.gone,.kept) p{a:1}"),
        ("@media print{.gone{a:1}}", ""),
        ("@media print{.kept{a:1}.gone{a:1}}", "@media print{.kept{a:1}}"),
        ("p[class*=gone]{a:1}", "p[class*=gone]{a:1}"),
        (".fa-kept:before{content:'x'}", ""),
        ("@font-face{font-family:Font Awesome}", ""),
        ("@font-face{font-family:Mine}", "@font-face{font-family:Mine}"),
        ("@keyframes fa-spin{to{a:1}}", ""),
        ("@keyframes mine{50%{a:1}to{a:2}}", "@keyframes mine{50%{a:1}to{a:2}}"),
        (".show{a:1}", ".show{a:1}"),
    ],
)  # fmt: skip
def test_thin_keeps_what_can_match(css, thinner):
    assert assets.thin(css, WORDS) == thinner


def test_icons_are_drawn_for_the_names_in_the_pages():
    style = assets.icon_style(['<i class="fa-solid fa-bars fa-lg"></i><i class="fas fa-download">'])
    assert ".fa-bars{--icon:" in style and ".fa-download{--icon:" in style
    assert ".fa-moon{" not in style and ".fa-lg{--icon" not in style


def test_an_unknown_icon_is_an_error():
    with pytest.raises(KeyError, match="no-such-icon"):
        assets.icon_style(['<i class="fa-solid fa-no-such-icon"></i>'])


def test_wrapped_modules_carry_the_module_unchanged(tmp_path):
    assets.wrap_modules(tmp_path)
    for name in explorables.NAMES:
        script = (tmp_path / f"{name}.js").read_text(encoding="utf-8")
        start, _, rest = script.partition(" = ")
        assert start == f'(window.tfbookModules ||= {{}})["{name}"]'
        assert json.loads(rest.rstrip(";\n")) == explorables.module_source(name)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("The `weights` sum to 1.", "The ``weights`` sum to 1."),
        ("The ``weights``.", "The ``weights``."),
        ("A norm |x|² and *args.", r"A norm \|x\|² and \*args."),
        ("As $q \\cdot k$.", "As :math:`q \\cdot k`."),
        ("Source: [vaswani2017attention]", "Source: :cite:t:`vaswani2017attention`"),
        ("See :func:`attend` here.", "See :func:`attend` here."),
        ("**True = allowed**", "**True = allowed**"),
        ("a: one thing\nb: two\n    lines", "Args:\n    a: one thing\n    b: two\n        lines"),
        ("Text.\n\n    code(*x)", "Text.\n\n::\n\n    code(*x)"),
        ("Args:\n    x: a number.", "Args:\n    x: a number."),
        (
            "Explained in: chapters/02_attention, Masks.",
            "Explained in: :doc:`chapters/02_attention </chapters/02_attention>`, Masks.",
        ),
        ("Explained in: chapters/77_none.", "Explained in: chapters/77_none."),
    ],
)
def test_docstrings_written_as_text_become_restructured_text(written, read):
    env = SimpleNamespace(found_docs={"chapters/02_attention"})
    app = SimpleNamespace(env=env, srcdir="nowhere")
    lines = written.split("\n")
    site.read_docstring(app, "function", "f", None, None, lines)
    assert "\n".join(lines) == read


def test_outputs_link_to_where_code_is_documented():
    entry = lambda page, anchor: SimpleNamespace(docname=page, node_id=anchor)  # noqa: E731
    known = {
        "tfbook.a.f": entry("book/api/a", "tfbook.a.f"),
        "tfbook.a.m": entry("book/api/a", "module-tfbook.a.m"),
        "tfbook.experiments.x_y": entry("book/api/e", "module-tfbook.experiments.x_y"),
    }
    assert code_links.find("tfbook.a.f", known) == ("book/api/a", "tfbook.a.f")
    assert code_links.find("tfbook.a.m._hidden", known) == ("book/api/a", "module-tfbook.a.m")
    assert code_links.find("tfbook.experiments.x_y", known) == ("book/api/e", "code-of-x-y")
    assert code_links.find("tfbook.b.g", known) is None


def test_the_code_of_an_experiment_stands_on_its_page_where_links_lead():
    text = rooms.document("tfbook.experiments")
    for name in rooms.modules_of(experiments):
        anchor = code_links.code_of(name)
        assert f'id="{anchor}"' in text and f"/tfbook/experiments/{name}.py\n" in text
    assert "literalinclude" not in rooms.document("tfbook.teaching")


def test_docstrings_lead_to_the_page_that_has_their_section(tmp_path):
    cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "## Far away"}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "02_a_deeper.ipynb").write_text(json.dumps(notebook))
    app = SimpleNamespace(env=SimpleNamespace(found_docs={"chapters/02_a"}), srcdir=str(tmp_path))
    places = {"Far\naway": "02_a_deeper", "Far away": "02_a_deeper", "Near": "02_a"}
    for section, page in places.items():
        lines = [*f'Explained in: chapters/02_a, section "{section}".'.split("\n")]
        site.read_docstring(app, "function", "f", None, None, lines)
        assert f":doc:`chapters/02_a </chapters/{page}>`, section" in "\n".join(lines)


def test_signatures_name_types_without_their_modules():
    signature = "(x: ~collections.abc.Mapping[str, torch.Tensor], y: int = 0.5)"
    short = site.shorten_signature(None, "", "", None, None, signature, "jaxtyping.Float[Tensor]")
    assert short == ("(x: Mapping[str, Tensor], y: int = 0.5)", "Float[Tensor]")


def test_mend_repairs_lists_heads_and_repeated_ids():
    page = (
        '<div role="list"><div role="doc-biblioentry"></div></div>'
        '<section id="exercise-content">1</section><section id="exercise-content">2</section>'
        '<th class="head"><p></p></th><th class="head"><p>name</p></th>'
        '<dl>\n<dd><em class="sig-param">x</em>,</dd>\n'
        '<dd><em class="sig-param">y</em>,</dd>\n</dl>'
        '<span id="id1"></span><span id="id2"></span><span id="id1"></span><a href="#id1"></a>'
    )
    mended = site.mend(page)
    assert 'role="listitem"' in mended and "biblioentry" not in mended
    assert "exercise-content" not in mended
    assert mended.count("<th") == 1 and "name" in mended
    assert mended.count("<li>") == mended.count("</li>") == 2 and "<dl>" not in mended
    assert mended.count('id="id1"') == mended.count('id="id2"') == 1


def test_the_line_of_a_folded_output_says_what_it_folds():
    line = (
        '<summary><span class="collapsed">Show the code</span><span class="expanded">Hide the code'
    )
    code, output = (f'<details class="hide {where}-input">\n{line}' for where in ("above", "below"))
    assert site.mend(code) == code
    assert site.mend(output) == output.replace("the code", "the output")


@pytest.mark.parametrize("url", ["", "https://github.com/someone/book"])
def test_buttons_that_need_the_address_appear_with_it(url):
    options = {"repository_url": url, "launch_buttons": {"colab_url": "https://x.example"}}
    site.settle_repository(None, SimpleNamespace(html_theme_options=options))
    assert bool(options["launch_buttons"]) is bool(url)
    assert options["use_repository_button"] is bool(url)


def test_chapters_are_numbered_as_their_files_and_equations_as_their_tags():
    title, entry = {"secnumber": (1,)}, {"secnumber": [1, 3]}
    toc = SimpleNamespace(findall=lambda kind: [entry, {}])
    env = SimpleNamespace(
        all_docs=["book/preface", "chapters/07_efficient", "chapters/lab_shakespeare"],
        toc_secnumbers={"chapters/07_efficient": {"": (1,), "#a": (1, 3), "#b": None}},
        toc_fignumbers={"chapters/07_efficient": {"displaymath": {"eq": (1, 2), "b": (1, 3)}}},
        tfbook_numbers={"chapters/07_efficient": {"eq": (7, 1)}},
        titles={"chapters/07_efficient": title},
        tocs={"chapters/07_efficient": toc},
    )
    assert site.number_chapters(None, env) == []
    assert env.toc_secnumbers["chapters/07_efficient"] == {"": (7,), "#a": (7, 3), "#b": None}
    numbers = env.toc_fignumbers["chapters/07_efficient"]["displaymath"]
    assert numbers == {"eq": (7, 1), "b": (1, 3)}
    assert title["secnumber"] == (7,) and entry["secnumber"] == (7, 3)


def test_values_of_claims_are_read_from_the_outputs(tmp_path):
    text = "claim a-b: One | two. | measured 3 | expected 3 ± 0.1 | not 4"
    cell = {
        "cell_type": "code", "id": "x", "metadata": {}, "source": "", "execution_count": 1,
        "outputs": [{"output_type": "display_data", "metadata": {}, "data": {"text/plain": text}}],
    }  # fmt: skip
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "01_x.ipynb").write_text(json.dumps(notebook))
    assert pages.shown_values(tmp_path) == {"a-b": "measured 3 · expected 3 ± 0.1 · not 4"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("softmax(QK^T/√d_k)V", "softmax(QK{T}/√d[k])V"),
        ("Σ_i α_ij v_j", "Σ[i] α[ij] v[j]"),
        ("W_V∈R^{d_model×d_k}", "W[V]∈R{d[model]×d[k]}"),
        ("scores.masked_fill(attn_mask)", "scores.masked_fill(attn_mask)"),
        ("d_v = 7, n_heads = 2, 10^-4", "d[v] = 7, n[heads] = 2, 10{-4}"),
    ],
)
def test_indices_are_lowered_and_names_of_code_are_not(text, shown):
    def write(node):
        inside = "".join(map(write, node.children)) or node.astext()
        return {"subscript": f"[{inside}]", "superscript": f"{{{inside}}}"}.get(
            node.tagname, inside
        )

    assert "".join(map(write, pages.typeset(text))) == shown


# ------------------------------------------------------------------------------------------ stills

PAGE = "chapters/02_x"


@pytest.fixture
def card():
    """A figure as a page has it."""
    body = explorables.softmax_temperature(d_k=64)._repr_mimebundle_()["text/html"]
    return f"<h2>Before</h2>{body}<p>After</p>"


def put_stills(folder, text, size=(1050, 300)):
    for figure, _ in stills.figures(PAGE, text):
        for file in stills.files(figure):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, "white").save(folder / file)


def test_the_mark_of_a_still_depends_on_what_decides_how_it_looks(card, monkeypatch):
    module, mark = "softmax_temperature", stills.mark
    first = mark(module, '{"a": 1.0, "b": [2, 3]}')
    assert first == mark(module, '{ "b": [2,3], "a": 1.0 }')  # as data, not as they are written
    assert first != mark(module, '{"a": 1.0, "b": [3, 2]}')
    assert first != mark("stepper", '{"a": 1.0, "b": [2, 3]}')
    for name in ("module_source", "style_source"):
        with monkeypatch.context() as patch:
            patch.setattr(stills.explorables, name, lambda *_: "other", raising=False)
            stills._common.cache_clear()
            assert first != mark(module, '{"a": 1.0, "b": [2, 3]}'), name
        stills._common.cache_clear()
    assert re.fullmatch(r"[0-9a-f]{10}", first)


def test_a_figure_without_a_still_shows_its_text_alone(card, tmp_path):
    assert stills.show(PAGE, card, tmp_path) == card
    (figure,) = [figure for figure, _ in stills.figures(PAGE, card)]
    put_stills(tmp_path, card)
    (tmp_path / stills.files(figure)[1]).unlink()  # half of it is none
    assert stills.show(PAGE, card, tmp_path) == card


def test_a_still_stands_before_the_text_once(card, tmp_path):
    put_stills(tmp_path, card)
    shown = stills.show(PAGE, card, tmp_path)
    assert stills.show(PAGE, shown, tmp_path) == shown
    (element,) = re.findall(r"<noscript>.*</noscript>", shown)
    assert shown.replace(f"{element}\n", "") == card
    assert f'</script>\n{element}\n<div class="tfx-text"' in shown
    assert 'width="700" height="200" loading="lazy"' in element
    assert 'alt="How large scores saturate the softmax"' in element
    named = re.findall(r'(?:src|srcset)="\.\./_static/stills/([^"]+)"', element)
    assert [name.rpartition("-")[2] for name in named] == ["dark.webp", "light.webp"]
    stills.ship(tmp_path, tmp_path / "out", [shown])
    shipped = tmp_path / "out" / stills.SHIPPED
    assert sorted(named) == sorted(
        path.relative_to(shipped).as_posix() for path in shipped.rglob("*.webp")
    )


def test_what_shows_nothing_at_first_has_no_still(card):
    folded = f"<details><summary>More</summary><noscript>{card}</noscript></details>"
    waiting = card.replace('"application/json">{', '"application/json">{"asked": false, ')
    others = [card.replace("softmax_temperature", name) for name in ("quiz", "live_training")]
    assert waiting != card
    for text in (folded, waiting, *others):
        assert [*stills.figures(PAGE, text)] == []


def test_a_still_keeps_its_grounds_and_stays_small():
    drawn = Image.new("RGB", (300, 200), (255, 255, 255))
    drawn.paste((243, 244, 244), (0, 100, 300, 200))
    shades = np.random.default_rng(0).integers(0, 256, 200)
    for x, shade in enumerate(shades):
        drawn.putpixel((50 + x, 50), (int(shade),) * 3)
    few = stills.few_colours(drawn)
    assert few.getpixel((0, 0)) == (255, 255, 255) and few.getpixel((0, 150)) == (243, 244, 244)
    assert len(few.getcolors()) < 12 < len(drawn.getcolors())
    assert np.abs(np.asarray(few).astype(int) - np.asarray(drawn)).max() < stills.APART
    file = io.BytesIO()
    drawn.save(file, format="PNG")
    smaller = Image.open(io.BytesIO(stills.packed(file.getvalue())))
    assert smaller.format == "WEBP" and smaller.convert("RGB").tobytes() == few.tobytes()
