"""The measurement of pages on a slow phone, on one small page whose numbers are known."""

import pytest

from benchmarks import phone

pytestmark = pytest.mark.browser
# A task after the first paint: the browser does not always tell of one before it.
BUSY = """<script>new PerformanceObserver(() => setTimeout(() => {
  const until = performance.now() + %d; while (performance.now() < until);
}, 0)).observe({ type: 'paint', buffered: true })</script>"""
PAGE = """<!DOCTYPE html><html lang="en"><title>A page</title><link rel="icon" href="data:,">
<main id="main-content"><p>Words.</p><math><mi>x</mi></math>%s<div style="height: 3000px"></div>
%s</main></html>"""
PICTURE = '<img class="tfbook-picture" src="picture.svg" alt="A square">'
LATER = """<script>addEventListener('scroll', () => {
  const until = performance.now() + 400; while (performance.now() < until);
}, { once: true });</script>"""


@pytest.fixture
def measured(browser, tmp_path):
    def visit(text):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        square = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
        (tmp_path / "picture.svg").write_text(square, encoding="utf-8")
        with phone.served(tmp_path) as home:
            return phone.row(browser, home, "page", 1)

    return visit


def test_a_small_page_is_measured(measured):
    found = measured(PAGE % (PICTURE, "x" * 50_000 + LATER))
    assert found["requests"] == 2 and 9 <= found["nodes"] < 15
    assert 0.15 < found["first paint, s"] <= found["largest paint, s"]  # the line's delay
    assert found["formulas, s"] > 0.15 and found["figure, s"] > 0.3  # which is asked for later
    assert found["MB"] < 0.005  # 50 kB of one letter, compressed
    assert found["task while scrolling, ms"] >= 390
    assert not found["targets"]["task while scrolling, ms"]["met"]
    assert found["targets"]["MB"] == {"limit": 0.45, "met": True}


def test_a_plain_page_has_no_figure_and_a_lower_limit(measured):
    found = measured(PAGE % (BUSY % 600, ""))
    assert found["figure, s"] is None and found["targets"]["MB"]["limit"] == phone.PLAIN_MB
    assert found["task while loading, ms"] >= 590
    assert not found["targets"]["task while loading, ms"]["met"]
    assert found["task while scrolling, ms"] < found["task while loading, ms"]
    assert "≤200!" in phone.table({
        "setting": {"times slower": 4, "runs": 1, "browser": "1", "load before": [0.0],
                    "load after": [0.0]},
        "rows": [found],
    })  # fmt: skip
