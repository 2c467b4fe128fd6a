"""The exercise of chapter 10 on probes: what a control task is, and what a test is."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect_plain, numbers

# leaky-probe ------------------------------------------------------------------------------------


def selectivity(
    rows: torch.Tensor, labels: torch.Tensor, types: torch.Tensor, coins: torch.Tensor
) -> float:
    """Measure how much better a probe reads a label than it learns a random list of words.

    The probe takes the class whose mean is nearer. The first half of the rows is for fitting.

    rows: (n, d). labels: (n,), 0 or 1. types: (n,), the word of each row, from 0 to V - 1.
    coins: (V,), 0 or 1 for each word.
    Returns: a float, the accuracy for the labels less that for the control task.
    """
    half, found = len(rows) // 2, []
    for y in (labels, coins[torch.arange(len(rows)) % len(coins)]):
        means = [rows[:half][y[:half] == k].mean(0) for k in (0, 1)]
        near = (rows - means[1]).norm(dim=1) < (rows - means[0]).norm(dim=1)
        found.append(float((near == (y == 1)).double().mean()))
    return found[0] - found[1]


def _selective(
    rows: torch.Tensor, labels: torch.Tensor, types: torch.Tensor, coins: torch.Tensor,
    slip: str = "",
) -> float:  # fmt: skip
    n = len(rows)
    fit = slice(0, n if slip == "all" else n // 2)
    test = slice(0 if slip in ("tested", "both", "all") else n // 2, n)
    control = coins[torch.arange(n) % len(coins)] if slip in ("row", "both") else coins[types]

    def accuracy(y: torch.Tensor, truth: torch.Tensor) -> float:
        far = [(rows[test] - rows[fit][y[fit] == k].mean(0)).norm(dim=1) for k in (0, 1)]
        return float(((far[1] < far[0]) == (truth[test] == 1)).double().mean())

    kept = accuracy(labels, labels)
    other = accuracy(control, labels if slip == "truth" else control)
    return other - kept if slip == "sign" else kept if slip == "alone" else kept - other


_SLIPS = {
    "both": "Nothing is mended yet: look at which rows are tested, and at what the control task "
            "asks.",
    "tested": "The control task is right now. But the rows that fitted the probe are tested, too: "
              "what it has learned by heart counts as read.",
    "row": "The test is right now. But each row has a coin of its own, so that there is nothing to "
           "learn: the control task gives every word one label, wherever it stands.",
    "all": "All rows were used for fitting. The second half is for the test.",
    "truth": "The probe of the control task was tested on the labels. It is tested on the coins.",
    "sign": "The sign is turned: it should be the labels' accuracy less the control's.",
    "alone": "This is the accuracy alone. Take off what the control task reaches.",
}  # fmt: skip


def _selectivity_check(make: Any, n: int, d: int, n_words: int, seed: int) -> None:
    words = numbers(n_words, d, seed=seed)
    types = torch.arange(n) * 5 % n_words
    labels = ((torch.arange(n) * 3 + 1) % 4 < 2).long()
    rows = words[types] + numbers(n, d, seed=seed + 1) * 0.5 + labels[:, None] * 0.8
    coins = (torch.arange(n_words) % 3 == 0).long()
    given = {
        "rows": rows.mul(100).round() / 100, "labels": labels, "types": types, "coins": coins
    }  # fmt: skip
    wanted = _selective(**given)
    slips = {words: _selective(**given, slip=slip) for slip, words in _SLIPS.items()}
    mistakes = {words: x for words, x in slips.items() if abs(x - wanted) > 1e-9}
    expect_plain(make, given, wanted, "Write down which rows are tested, and on which labels.",
                 mistakes=mistakes)  # fmt: skip


def _selectivity_few(make: Any) -> None:
    """A few words that come again and again."""
    _selectivity_check(make, 20, 2, 7, 1811)


def _selectivity_more(make: Any) -> None:
    """More rows, words and numbers."""
    _selectivity_check(make, 60, 4, 11, 1141)


LEAKY_PROBE = Exercise(
    name="leaky-probe",
    title="A probe that is too good",
    level=2,
    section='chapters/10_interpretability_deeper, section "A probe and its control"',
    stub=selectivity,
    properties=(_selectivity_few, _selectivity_more),
    hints=(
        "Two questions: which rows has the probe seen before it is tested? And could anybody "
        "learn the labels of the control task?",
        "A control task must be learnable from the word alone. So every row of one word has the "
        "same label.",
        "`types` says which word stands in a row; `coins[types]` gives each row the coin of its "
        "word. Of `near` and `y` only the entries from `half` on are a test.",
    ),
    broken=True,
)

EXERCISES = (LEAKY_PROBE,)
