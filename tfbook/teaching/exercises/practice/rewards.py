"""The exercises of chapter 18 on preferences and rewards: what a pair counts, a group's loss."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_gradients, numbers

# preference-weight ------------------------------------------------------------------------------


def preference_weight(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    reference_chosen: torch.Tensor,
    reference_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """How much each pair counts in the gradient of DPO.

    chosen: log-probabilities of whole answers, (B,). rejected: the same of the others.
    reference_chosen: of the first by the reference. reference_rejected: of the others.
    beta: a number above 0.
    Returns: (B,), each between 0 and beta.
    """
    ...


def _counted(w, l, ref_w, ref_l, beta: float, slip: str = "") -> torch.Tensor:  # noqa: E741
    gap = (w - l) if slip == "free" else (w - ref_w) - (l - ref_l)
    h = (1 if slip == "unscaled" else beta) * gap
    found = torch.sigmoid(h if slip == "sign" else -h)
    return found if slip == "plain" else beta * found


_COUNTED = {
    "sign": "The sign of h is turned: as it is, pairs that are told apart already count most.",
    "plain": "The factor beta is missing: h grows by beta with the log-probability.",
    "free": "The reference is missing: what counts is the gain on it.",
    "unscaled": "Inside of the logistic function beta is missing too: h = beta times the "
                "difference of the gains.",
}  # fmt: skip


def _weight_check(make: Any, size: int, beta: float, seed: int) -> None:
    rows = [-3 + numbers(size, seed=seed + i) for i in range(4)]
    wanted = _counted(*rows, beta)
    mistakes = {words: _counted(*rows, beta, slip) for slip, words in _COUNTED.items()}
    names = ("chosen", "rejected", "reference_chosen", "reference_rejected")
    expect(
        make(*(row.clone() for row in rows), beta), wanted,
        "It should be beta times the chance that (18.2) gives to the wrong order.",
        mistakes=mistakes, given=dict(zip(names, rows, strict=True)) | {"beta": beta},
    )  # fmt: skip


def _weight_usual(make: Any) -> None:
    """A few pairs."""
    _weight_check(make, 5, 0.3, 1831)


def _weight_other(make: Any) -> None:
    """Another beta."""
    _weight_check(make, 7, 2.0, 1841)


PREFERENCE_WEIGHT = Exercise(
    name="preference-weight",
    title="Which pairs still teach?",
    level=2,
    section='chapters/18_practice, section "Learning from comparisons"',
    stub=preference_weight,
    properties=(_weight_usual, _weight_other),
    hints=(
        "What is the derivative of −ln σ(h) with respect to h? Try it at h = 0 with autograd.",
        "By how much does h change when ln π of the preferred answer grows by one?",
        "A pair with a large h is told apart. `torch.sigmoid` of which number goes to 0 there?",
    ),
)

# group-loss -------------------------------------------------------------------------------------


def group_loss(
    log_probs: torch.Tensor,
    old: torch.Tensor,
    drawn: torch.Tensor,
    rewards: torch.Tensor,
    group: int,
    longest: int,
) -> torch.Tensor:
    """Loss (18.4) of answers to several questions.

    log_probs: (B, N), of the drawn tokens now. old: (B, N), when they were drawn. drawn:
    (B, N), True where there is a token. rewards: (B,). group: how many answers to one
    question stand one after the other. longest: L.
    Returns: one number, a tensor; the gradient flows to log_probs alone.
    """
    ...


def _grouped(log_probs, old, drawn, rewards, group, longest, slip: str = "") -> torch.Tensor:
    groups = rewards.view(-1, group)
    mean = rewards.mean() if slip == "batch" else groups.mean(1, keepdim=True)
    gain = (groups - mean).flatten()[:, None]
    ratio = (log_probs - old).exp()
    clipped = ratio.clamp(0.8, 1.2) * gain
    each = torch.minimum(ratio * gain, clipped)
    if slip == "clip":
        each = clipped
    if slip == "free":
        each = ratio * gain
    each = each if slip == "padding" else each * drawn
    if slip == "length":
        return -(each.sum(1) / drawn.sum(1)).mean()
    total = -each.sum() / (len(rewards) * longest)
    return -total if slip == "sign" else total


_GROUPED = {
    "batch": "The mean is that of all rewards. Each group has its own.",
    "free": "Nothing is clipped: a token may gain without end.",
    "clip": "Take the smaller of the two products, not the clipped one alone: a token that went "
            "the wrong way has to be able to come back.",
    "padding": "Places without a token count as well. Leave them out with `drawn`.",
    "length": "Each answer is divided by its own length. (18.4) divides by B and L, the same for "
              "all.",
    "sign": "The sign is turned: what minimises this makes worse answers likelier.",
}  # fmt: skip


def _group_given(questions: int, group: int, n: int, seed: int) -> dict[str, Any]:
    size = questions * group
    lengths = 1 + (numbers(size, seed=seed).abs() * 97).long() % n
    drawn = torch.arange(n) < lengths[:, None]
    old = (-1 - numbers(size, n, seed=seed + 1).abs()) * drawn
    rewards = (numbers(size, seed=seed + 2) > 0).to(old.dtype)
    rewards[::group], rewards[1::group] = 1.0, 0.0  # no group of equals
    return {
        "log_probs": (old + 0.5 * numbers(size, n, seed=seed + 3)) * drawn,
        "old": old, "drawn": drawn, "rewards": rewards, "group": group, "longest": n + 2,
    }  # fmt: skip


def _group_check(make: Any, **sizes: int) -> None:
    given = _group_given(**sizes)
    wanted = _grouped(**given)
    slips = {words: _grouped(**given, slip=slip) for slip, words in _GROUPED.items()}
    mistakes = {words: x for words, x in slips.items() if not torch.allclose(x, wanted)}
    expect(
        make(*given.values()), wanted, "It should be (18.4).", mistakes=mistakes, given=given
    )  # fmt: skip


def _group_two(make: Any) -> None:
    """Two questions with three answers each."""
    _group_check(make, questions=2, group=3, n=4, seed=1851)


def _group_more(make: Any) -> None:
    """More of both."""
    _group_check(make, questions=3, group=4, n=5, seed=1861)


def _group_gradient(make: Any) -> None:
    """The gradient reaches the log-probabilities."""
    given = _group_given(questions=2, group=3, n=4, seed=1871)
    log_probs = given.pop("log_probs")
    expect_gradients(lambda log_probs: make(log_probs, *given.values()), log_probs=log_probs)


GROUP_LOSS = Exercise(
    name="group-loss",
    title="The loss of a group",
    level=3,
    section='chapters/18_practice, section "Learning from a checker"',
    stub=group_loss,
    properties=(_group_two, _group_more, _group_gradient),
    hints=(
        "`rewards.view(-1, group)` has a row for each question. Which mean do you subtract?",
        "The ratio of two probabilities is e to the difference of their logarithms. Where nothing "
        "was drawn it says nothing.",
        "Compute both products and take `torch.minimum`, token by token; then think of the sign "
        "of what is minimised.",
    ),
)

EXERCISES = (PREFERENCE_WEIGHT, GROUP_LOSS)
