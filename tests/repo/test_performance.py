"""The page of measurements: every result that is kept stands in it, as it was kept."""

import json

import pytest
from repofiles import ROOT

from book.tools import performance

PAGE = (ROOT / "book" / "performance.md").read_text(encoding="utf-8")
SHOWN_BY_CHAPTERS = {"efficient"}  # chapter 07 draws how each form grows


def test_every_kept_result_is_shown():
    kept = {path.stem for path in performance.RESULTS.glob("*.json")}
    named = performance.PLACE.findall(PAGE)
    assert len(set(named)) == len(named)
    assert {name for name, _ in named} == kept - SHOWN_BY_CHAPTERS
    assert [part for name, part in named if name == "gpu"] == list(performance.GPU)


@pytest.mark.parametrize(
    "name", [name for name, part in performance.PLACE.findall(PAGE) if not part]
)
def test_tables_have_a_row_for_each_that_was_measured(name):
    lead, _, head, rule, *rows = performance.document(name).splitlines()
    found = json.loads((performance.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert found["machine"]["torch"] in lead and f"python -m benchmarks {name}" in lead
    assert len(rows) == len(found["rows"])
    widths = {line.count("|") for line in (head, rule, *rows)}
    assert len(widths) == 1 and widths.pop() > 3
    assert all(cell.strip() for line in rows for cell in line.strip("|").split("|"))


def test_a_gpu_is_shown_part_by_part():
    found = json.loads((performance.RESULTS / "gpu.json").read_text(encoding="utf-8"))
    tables = {part: performance.document("gpu", part).splitlines() for part in performance.GPU}
    lead = tables["products"][0]
    assert found["machine"]["gpu"] in lead and "python -m benchmarks.gpu" in lead
    assert not any(lines[0] for part, lines in tables.items() if part != "products")
    for lines in tables.values():
        assert len({line.count("|") for line in lines[2:]}) == 1 and len(lines) > 5
    rate = max(r["TFLOP/s"] for r in found["products"] if r["format"] == "bfloat16")
    assert f"| {rate:.0f} |" in "\n".join(tables["products"])
    row = next(line for line in tables["attention"] if line.startswith("| 8192 | backward"))
    assert row.split(" | ")[-1] == "– |"  # our kernel has no backward pass
    with pytest.raises(ValueError, match="got 'gpu cooking'"):
        performance.document("gpu", "cooking")


def test_numbers_carry_their_spread_and_missed_targets_are_marked(tmp_path):
    rows = [
        {"n": 5, "variant": "a", "forward ms": 1.26, "forward ratio": 1.5,
         "forward spread": [1.25, 1.75], "training ratio": None,
         "targets": {"forward ratio": {"limit": 1.3, "met": False}}},
        {"n": 5, "variant": "b", "forward ms": 1.0, "forward ratio": 1.0, "training ratio": 2.0,
         "targets": {"forward ratio": {"limit": 1.3, "met": True}}},
    ]  # fmt: skip
    machine = {"cpu": "C", "threads": 2, "cores": 4, "vector_instructions": "V"}
    machine |= {"system": "S", "python": "3", "torch": "2"}
    run = {"date": "2026-01-02", "command": "python -m benchmarks linear --threads 2"}
    text = json.dumps({"machine": machine, "run": run, "rows": rows})
    (tmp_path / "linear.json").write_text(text, encoding="utf-8")
    assert performance.document("linear", folder=tmp_path).splitlines() == [
        "On 2026-01-02, with `python -m benchmarks linear --threads 2`: "
        "C, 2 threads of 4 cores, V, S, Python 3, PyTorch 2.",
        "",
        "| n | form | forward, ms | forward, ratio | with backward, ratio |",
        "| --- | --- | --- | --- | --- |",
        "| 5 | a | 1.3 | 1.50 (1.25 to 1.75), target missed: 1.3 | – |",
        "| 5 | b | 1.0 | 1.00 | 2.00 |",
    ]
    with pytest.raises(ValueError, match="must name a kept result"):
        performance.document("cooking", folder=tmp_path)
