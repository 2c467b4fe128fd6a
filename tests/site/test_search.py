"""The search page: sections and words before functions, whole words, the right place first."""

import re

import pytest
from docutils import nodes

from book.tools import searching
from book.tools.searching import Entry

# What one types, and the title and the page of what has to come first.
GLOSSARY = "book/glossary"
QUERIES = {
    "LoRA": ("LoRA", GLOSSARY),
    "KV cache": ("key-value cache", GLOSSARY),
    "RoPE": ("rotary positions", GLOSSARY),
    "why divide by sqrt": ("Why divide by the root of the width", "chapters/02_attention"),
    "padding mask": ("padding", GLOSSARY),
    "perplexity": ("perplexity", GLOSSARY),
    "beam search": ("beam search", GLOSSARY),
    "teacher forcing": ("teacher forcing", GLOSSARY),
    "mixture of experts": ("A mixture of experts", "chapters/08_architectural_variants"),
    "induction heads": ("Induction heads", "chapters/10_interpretability"),
    "logit lens": ("logit lens", GLOSSARY),
    "residual stream": ("residual stream", GLOSSARY),
    "attention sink": ("attention sink", GLOSSARY),
    "speculative decoding": ("speculative decoding", GLOSSARY),
    "learning rate warm-up": ("warm-up", GLOSSARY),
    "roofline": ("roofline", GLOSSARY),
    "BLEU": ("BLEU", GLOSSARY),
    "dropout": ("dropout", GLOSSARY),
    "fine-tuning": ("Fine-tuning on your own data", "chapters/18_practice"),
    "attend": ("tfbook.attention.attend", "book/api/attention"),
    "MultiHeadAttention": ("tfbook.attention.MultiHeadAttention", "book/api/attention"),
}


@pytest.fixture(scope="module")
def ask(open_page, server):
    """Return what asks the search page and gives its results: title and page of each."""
    page = open_page()
    page.goto(f"{server}/search.html")
    find = """(query) =>
      tfbookFind(query).slice(0, 20).map((r) => [r[0], r[1].split(".html")[0]])"""

    def ask(query):
        return [tuple(each) for each in page.evaluate(find, query)]

    yield ask
    page.leave()


@pytest.mark.browser
@pytest.mark.parametrize("query", QUERIES)
def test_what_is_looked_for_comes_first(ask, query):
    assert ask(query)[0] == QUERIES[query]


@pytest.mark.browser
def test_the_chapter_about_a_thing_comes_before_one_that_names_it(ask):
    """Chapters 4 and 5 both write *rotary* and *RoPE*; the fourth is about it."""
    chapters = [page for _, page in ask("RoPE") if page.startswith("chapters/")]
    assert chapters[0] == "chapters/04_positions"


@pytest.mark.browser
def test_parts_of_words_are_not_found(ask):
    found = ask("LoRA")
    assert found and not [title for title, _ in found if re.search("explorable", title, re.I)]
    assert ask("plora") == [] and ask("explo") != []


@pytest.mark.browser
def test_the_page_shows_results_with_their_chapter(open_page, server, site):
    page = open_page()
    page.goto(f"{server}/search.html?q=causal+mask")
    first = page.locator(".tfbook-found > li").first
    first.wait_for()
    assert "causal" in first.inner_text().lower()
    assert re.search(
        r"\d+ results? for “causal mask”", page.locator("#search-results").inner_text()
    )
    assert page.locator('form.bd-search input[name="q"]').first.input_value() == "causal mask"
    assert page.log.errors == []
    first.locator("a").click()
    page.wait_for_url(re.compile(r"/(chapters|book)/.*\.html"))
    page.goto(f"{server}/search.html?q=%3Cimg+src%3Dx+onerror%3Dalert%281%29%3E+zzzz")
    page.locator("#search-results [role=status]").wait_for()
    assert page.locator("#search-results img").count() == 0
    page.leave()


# ---------------------------------------------------------------------- the index, no browser


def section(name, *inside):
    made = nodes.section(ids=[nodes.make_id(name)], names=[name])
    made += [nodes.title("", name), *inside]
    return made


def test_each_section_is_a_result_with_its_own_text():
    document = nodes.document(None, None)
    inner = section("Inner", nodes.paragraph("", "The masks of rows."))
    document += section("Outer", nodes.paragraph("", "All heads."), inner)
    found = list(searching.entries(document, "chapters/03_rows"))
    assert found == [
        Entry("Outer", "", "section", "All heads."),
        Entry("Inner", "inner", "section", "The masks of rows."),
    ]
    assert next(searching.entries(document, "chapters/03_rows_deeper")).kind == "deeper"
    assert next(searching.entries(document, "book/claims")).kind == "list"


def test_words_are_stemmed_and_names_also_found_by_their_parts():
    assert list(searching.stems("Masks, masking")) == ["mask", "mask"]
    assert list(searching.stems("MultiHeadAttention d_k")) == [
        *("multiheadattent", "multi", "head", "attent"),
        *("d_k", "d", "k"),
    ]


def test_the_index_counts_words_in_title_and_text():
    pages = {"a": [Entry("A mask", "x", "section", "mask mask row")]}
    made = searching.index(pages, {"a": "The page"})
    assert made["results"] == [["A mask", "a.html#x", 0, "mask mask row", "The page", 3]]
    assert made["words"]["mask"] == [0, 5] and made["words"]["row"] == [0, 2]
    later = {"a": [Entry("x", "", "page", "")] * 3 + [Entry("y", "", "page", "x x")]}
    assert searching.index(later, {"a": "A"})["words"]["x"] == [0, 1, 1, 1, 1, 1, 1, 4]
