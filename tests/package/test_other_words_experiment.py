"""The run behind "Choosing what to read" of chapter 07: other words, and long texts."""

import torch

from tfbook import experiments
from tfbook.experiments import other_words, told_earlier

LOG = experiments.log("other_words")


def test_reading_some_queries_at_a_time_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 3, 1030, 8, generator=generator)
    k, v = torch.randn(2, 1, 2, 1, 1030, 8, generator=generator)
    together = told_earlier.best_blocks(q, k, v, top=3)
    torch.testing.assert_close(other_words.best_blocks(q, k, v), together)


def test_the_question_has_other_words():
    fact = "Remember: the key is in the red box.".split()
    asked = other_words.ASKED.replace(",", "").split()
    runs = [asked[i : i + 3] for i in range(len(asked) - 2)]
    assert not any(run == fact[i : i + 3] for run in runs for i in range(len(fact) - 2))


def test_the_log_has_every_way():
    best = "the 3 best blocks of 16, the own and the first"
    assert list(LOG["other words"]) == ["all", best, "window of 63 and the first"]
    assert list(LOG["long"]) == ["all", best]
    for part in ("other words", "long"):
        for row in LOG[part].values():
            assert all(0 <= right <= row["of"] for right in row["right"])
