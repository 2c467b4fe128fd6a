"""The exercises of chapter 01 on the attention of Bahdanau, Cho and Bengio."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_gradients,
    expect_tensor,
    numbers,
)

# context-vector ---------------------------------------------------------------------------------


def context_vector(weights: torch.Tensor, annotations: torch.Tensor) -> torch.Tensor:
    """Mix the annotations of each source sentence into one context vector.

    The context of a sentence is the sum of its annotations, each times its weight. The weights of
    a sentence are already a softmax: they are not negative and sum to one.

    weights: (B, M), one for each source word. annotations: (B, M, D).
    Returns: (B, D).
    """
    ...


def _context_case(batch: int, m: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights with one decimal that sum to one, and annotations."""
    tenths = torch.ones(batch, m)
    for row in range(batch):
        tenths[row, (2 * row + 1) % m] += 10 - m
    return tenths.to(torch.float64) / 10, numbers(batch, m, d, seed=231)


def _context_average(mix: Any) -> None:
    """The context is the weighted sum over the source words."""
    weights, annotations = _context_case(2, 3, 3)
    rows = torch.arange(2)
    again = torch.softmax(weights, -1)
    expect(
        mix(weights, annotations),
        torch.stack([w @ h for w, h in zip(weights, annotations, strict=True)]),
        "The context is not Σ_j α_j h_j.",
        mistakes={
            "Every annotation counts fully: this is the plain sum. Multiply each annotation by "
            "its weight first.": annotations.sum(1),
            "Every annotation counts the same: this is the plain mean. The weights were not "
            "used.": annotations.mean(1),
            "The sum ran over the features. It runs over the source words, axis 1.":
                (weights[..., None] * annotations).sum(-1),
            "The weights met the features instead of the words: give them a last axis of size 1.":
                (weights[:, None] * annotations).sum(1),
            "The weights met the features and the sum ran over them: this is h α for each word.":
                (weights[:, None] * annotations).sum(-1),
            "A softmax was applied to the weights. They are one already: a second softmax makes "
            "them more equal.": (again[..., None] * annotations).sum(1),
            "The sum was divided by the number of words. The weights sum to one: nothing is left "
            "to divide.": (weights[..., None] * annotations).mean(1),
            "The annotation with the largest weight came back alone. Let every word count, by its "
            "weight.": annotations[rows, weights.argmax(-1)],
            "The annotations are weighted but not added: sum over the words.":
                weights[..., None] * annotations,
            "Each sentence was mixed with the weights of all sentences. Weights and annotations "
            "share the batch axis.": weights @ annotations,
        },
    )


def _context_sizes(mix: Any) -> None:
    """The numbers of words and of features may differ."""
    for sizes in ((2, 5, 3), (3, 2, 7), (1, 1, 2)):
        weights, annotations = _context_case(*sizes)
        expect(mix(weights, annotations), (weights[..., None] * annotations).sum(1))


def _context_padding(mix: Any) -> None:
    """A word of weight 0 leaves no trace."""
    weights, annotations = _context_case(2, 3, 5)
    weights[:, 2] = 0.0
    changed = annotations.clone()
    changed[:, 2] = 1e6
    expect(mix(weights, changed), mix(weights, annotations).detach(), tolerance=1e-9)


def _context_gradients(mix: Any) -> None:
    """Gradients reach the weights and the annotations."""
    weights, annotations = _context_case(2, 3, 5)
    expect_gradients(mix, weights=weights, annotations=annotations)


CONTEXT_VECTOR = Exercise(
    name="context-vector",
    title="From weights to a context",
    level=1,
    section='''chapters/01_motivation, section "Bahdanau's alignment"''',
    stub=context_vector,
    properties=(_context_average, _context_sizes, _context_padding, _context_gradients),
    hints=(
        "Which axis of the annotations counts the source words? That axis disappears.",
        "Give the weights a last axis of size 1, so that one weight multiplies all features of a "
        "word.",
        "`(weights[..., None] * annotations).sum(dim=1)`, or the batched product "
        "`(weights[:, None, :] @ annotations)[:, 0]`.",
    ),
)

# alignment-weights ------------------------------------------------------------------------------


def alignment_weights(
    states: torch.Tensor, annotations: torch.Tensor, W_a: torch.Tensor, U_a: torch.Tensor,
    w_a: torch.Tensor,
) -> torch.Tensor:
    """Compute the alignment of all target words to all source words, as Bahdanau et al. do.

    The score of source word j for target word t is e_tj = w_a · tanh(W_a s_(t-1) + U_a h_j). The
    weights of target word t are the softmax of its scores over the source words. The decoder's
    states s_0, s_1, ..., s_N stand in the rows of `states`; the target words are t = 1, ..., N.

    states: (N+1, E). annotations: (M, D), the rows h_j. W_a: (A, E). U_a: (A, D). w_a: (A,).
    Returns: (N, M), row t - 1 for target word t.
    """
    ...


def _alignment_case(n: int, m: int, e: int, d: int, a: int) -> tuple[torch.Tensor, ...]:
    shapes = (n + 1, e), (m, d), (a, e), (a, d), (a,)
    return tuple(numbers(*shape, seed=241 + i) for i, shape in enumerate(shapes))


def _hidden(s: Any, h: Any, W_a: Any, U_a: Any) -> torch.Tensor:
    return (s @ W_a.T)[:, None] + (h @ U_a.T)[None]  # (N, M, A)


def _aligned(s: Any, h: Any, W_a: Any, U_a: Any, w_a: Any) -> torch.Tensor:
    return torch.softmax(_hidden(s[:-1], h, W_a, U_a).tanh() @ w_a, -1)


def _alignment_values(align: Any) -> None:
    """The weights are the softmax of w_a · tanh(W_a s_(t-1) + U_a h_j) over j."""
    s, h, W_a, U_a, w_a = case = _alignment_case(3, 4, 2, 2, 2)
    before, after = _hidden(s[:-1], h, W_a, U_a), _hidden(s[1:], h, W_a, U_a)
    scores = before.tanh() @ w_a
    expect(
        align(*case),
        torch.softmax(scores, -1),
        "The weights are not softmax_j(w_a · tanh(W_a s_(t-1) + U_a h_j)).",
        mistakes={
            "The alignment of word t used s_t. That state is computed from the context c_t, which "
            "these weights are for: use s_(t-1).": torch.softmax(after.tanh() @ w_a, -1),
            "There is a row for each state, s_0 to s_N. The last state s_N is not asked: it would "
            "align the word after the end.":
                torch.softmax(_hidden(s, h, W_a, U_a).tanh() @ w_a, -1),
            "These are the scores. The softmax over the source words is missing.": scores,
            "The softmax ran over the target words. It runs over the source words, so that each "
            "row sums to one.": torch.softmax(scores, 0),
            "Each score went through a softmax of its own, which is always 1.":
                torch.ones_like(scores),
            "One softmax ran over all scores together. Each target word has weights of its own.":
                torch.softmax(scores.flatten(), 0).view_as(scores),
            "The tanh is missing: without it the state s adds the same number to all scores of a "
            "row and cannot change the weights.": torch.softmax(before @ w_a, -1),
            "w_a was not used: the hidden units were added up.":
                torch.softmax(before.tanh().sum(-1), -1),
            "Every target word gets the same weights. Either the decoder's state was not used, or "
            "state and annotation were squashed one by one, so that a state adds the same number "
            "to all scores of its row: add them first, then take one tanh.":
                torch.softmax((h @ U_a.T).tanh() @ w_a, -1).expand_as(scores),
            "W_a and U_a are exchanged: W_a belongs to the state, U_a to the annotation.":
                torch.softmax(_hidden(s[:-1], h, U_a, W_a).tanh() @ w_a, -1),
            "Rows and columns are exchanged: target words belong in the rows.":
                torch.softmax(scores, -1).T,
        },
    )


def _alignment_sizes(align: Any) -> None:
    """State, annotation and hidden layer may have different sizes."""
    for sizes in ((2, 5, 3, 7, 11), (1, 3, 5, 2, 1)):
        case = _alignment_case(*sizes)
        expect(align(*case), _aligned(*case))


def _alignment_last_state(align: Any) -> None:
    """The last state changes nothing, the first one the first row alone."""
    s, *rest = _alignment_case(3, 5, 2, 3, 7)
    weights = align(s, *rest)
    expect_tensor(weights, (3, 5), torch.float64, what="The result")
    for row in (0, 3):
        moved = s.clone()
        moved[row] += 1.0
        changed = (align(moved, *rest) - weights).abs().amax(-1) > 1e-9
        if changed.tolist() != [row == 0, False, False]:
            raise Wrong(f"Moving s_{row} should change the rows of the words that it is asked for.")


def _alignment_large(align: Any) -> None:
    """Large scores stay finite."""
    s, h, W_a, U_a, w_a = _alignment_case(2, 3, 2, 3, 5)
    case = s, h, W_a, U_a, w_a * 1e4
    expect(
        align(*case), _aligned(*case),
        "Scores of some thousands overflow: subtract the largest score of each row before taking "
        "the exponential, or use `torch.softmax`.",
    )


def _alignment_gradients(align: Any) -> None:
    """Gradients reach states, annotations and weights."""
    names = ("states", "annotations", "W_a", "U_a", "w_a")
    expect_gradients(align, **dict(zip(names, _alignment_case(2, 3, 2, 3, 5), strict=True)))


ALIGNMENT_WEIGHTS = Exercise(
    name="alignment-weights",
    title="Which words does the decoder look at?",
    level=2,
    section='''chapters/01_motivation, section "Bahdanau's alignment"''',
    stub=alignment_weights,
    properties=(
        _alignment_values, _alignment_sizes, _alignment_last_state, _alignment_large,
        _alignment_gradients,
    ),
    hints=(
        "N + 1 states come in and N rows go out. Which state is known before word t is written?",
        "Every state meets every annotation: give one of them a new axis, (N, 1, A) + (1, M, A). "
        "The axis A disappears in the product with w_a.",
        "`hidden = (states[:-1] @ W_a.T)[:, None] + annotations @ U_a.T`, then "
        "`torch.softmax(torch.tanh(hidden) @ w_a, dim=-1)`.",
    ),
)

# look-back --------------------------------------------------------------------------------------


def look_back(
    s: torch.Tensor, h: torch.Tensor, W_a: torch.Tensor, U_a: torch.Tensor, w_a: torch.Tensor
) -> torch.Tensor:
    """Compute a step's context of each sentence in a batch; this one has a fault.

    s: (B, E), the states that ask. h: (B, M, H), the annotations. W_a: (A, E). U_a: (A, H).
    w_a: (A,).
    Returns: (B, H), the contexts.
    """
    hidden = torch.tanh((s @ W_a.T)[:, None] + h @ U_a.T)  # (B, M, A)
    scores = hidden @ w_a  # (B, M)
    alpha = torch.softmax(scores, dim=0)
    return (alpha[:, None] @ h)[:, 0]


def _step_case(batch: int, m: int, e: int, d: int, a: int) -> tuple[torch.Tensor, ...]:
    shapes = (batch, e), (batch, m, d), (a, e), (a, d), (a,)
    return tuple(numbers(*shape, seed=251 + i) for i, shape in enumerate(shapes))


def _step_scores(s: Any, h: Any, W_a: Any, U_a: Any, w_a: Any) -> torch.Tensor:
    return torch.tanh((s @ W_a.T)[:, None] + h @ U_a.T) @ w_a  # (B, M)


def _mixed(alpha: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return (alpha[..., None] * h).sum(1)


def _back_alone(look: Any) -> None:
    """A sentence alone gets the average of its annotations."""
    s, h, *weights = _step_case(1, 4, 3, 2, 5)
    scores = _step_scores(s, h, *weights)
    expect(
        look(s, h, *weights), _mixed(torch.softmax(scores, -1), h),
        "A batch of one sentence does not get the weighted average of its annotations.",
        mistakes={
            "The context is the plain sum of the annotations: every weight is 1. What do the "
            "weights of one sentence add up to?": h.sum(1),
            "The scores were used as weights. A softmax makes shares of them.": _mixed(scores, h),
            "Every annotation counts the same: the scores were not used.": h.mean(1),
        },
    )


def _back_batch(look: Any) -> None:
    """A sentence gets the same context in a batch as alone."""
    s, h, *weights = _step_case(3, 4, 3, 2, 5)
    scores = _step_scores(s, h, *weights)
    together = torch.softmax(scores.flatten(), 0).view_as(scores)
    expect(
        look(s, h, *weights), _mixed(torch.softmax(scores, -1), h),
        "The contexts of a batch are not those of its sentences.",
        mistakes={
            "Sentences of one batch share their weights: which axis did the softmax run over?":
                _mixed(torch.softmax(scores, 0), h),
            "One softmax ran over all sentences together. Each has weights of its own.":
                _mixed(together, h),
        },
    )


LOOK_BACK = Exercise(
    name="look-back",
    title="A decoder that looks astray",
    level=1,
    section='chapters/01_motivation, section "What the alignment has learned"',
    stub=look_back,
    properties=(_back_alone, _back_batch),
    hints=(
        "Print the sums of the weights of one sentence. What should they be?",
        "Try a batch of one sentence. Which of the weights is not 1, and why is none?",
        "`scores` is (B, M). Which of the two axes holds the words that share the weight?",
    ),
    broken=True,
)

# decoder-step -----------------------------------------------------------------------------------


def decoder_step(
    y: torch.Tensor, s: torch.Tensor, h: torch.Tensor, W_a: torch.Tensor, U_a: torch.Tensor,
    w_a: torch.Tensor, cell: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a whole step of Bahdanau's decoder, for a batch: ask, share, average, go on.

    y: (B, D), the vectors of the words written last. s: (B, E), the states before the step.
    h: (B, M, H), the annotations. W_a: (A, E). U_a: (A, H). w_a: (A,).
    cell: called as cell(x, s), with x (B, D + H), word first; returns the new states.
    Returns: the new states (B, E), the contexts (B, H) and the weights (B, M).
    """
    ...


def _cell_of(d: int, e: int) -> Any:
    given, kept = numbers(e, d, seed=261), numbers(e, e, seed=262)

    def cell(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ given.T / 2 + s @ kept.T / 2)

    return cell


def _whole_case() -> tuple[Any, ...]:
    s, h, *weights = _step_case(2, 4, 3, 5, 4)
    return numbers(2, 6, seed=263), s, h, *weights, _cell_of(11, 3)


def _three_of(result: Any) -> tuple[Any, Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise Wrong("Return three tensors: `return s_t, c_t, alpha`.")
    return tuple(result)


def _whole_weights(step: Any) -> None:
    """The weights are those by which the state before the step asks."""
    case = _whole_case()
    y, s, h, *weights, cell = case
    scores = _step_scores(s, h, *weights)
    late = cell(torch.cat([y, _mixed(torch.softmax(scores, -1), h)], -1), s)
    expect(
        _three_of(step(*case))[2], torch.softmax(scores, -1),
        "The weights are not the softmax of the scores over the source words.",
        what="The third result, the weights,",
        mistakes={
            "The new state asked. It is computed from the context, so the old one has to ask.":
                torch.softmax(_step_scores(late, h, *weights), -1),
            "These are the scores: the softmax is missing.": scores,
            "The softmax ran over the sentences of the batch.": torch.softmax(scores, 0),
        },
    )


def _whole_context(step: Any) -> None:
    """The context is the average of the annotations by these weights."""
    case = _whole_case()
    _, s, h, *weights, _ = case
    alpha = torch.softmax(_step_scores(s, h, *weights), -1)
    expect(
        _three_of(step(*case))[1], _mixed(alpha, h), "The context is not Σ_j α_j h_j.",
        what="The second result, the context,",
        mistakes={
            "The context is the annotation with the largest weight. Let every word count, by its "
            "weight.": h[torch.arange(2), alpha.argmax(-1)],
            "The context is the plain mean: the weights were not used.": h.mean(1),
        },
    )


def _whole_state(step: Any) -> None:
    """The new state is made of the word, the context and the old state."""
    case = _whole_case()
    y, s, h, *weights, cell = case
    c = _mixed(torch.softmax(_step_scores(s, h, *weights), -1), h)
    expect(
        _three_of(step(*case))[0], cell(torch.cat([y, c], -1), s),
        "The new state is not cell([y ; c_t], s).", what="The first result, the state,",
        mistakes={
            "The old state came back. The cell makes the new one.": s,
            "Context and word are exchanged: the word stands first.":
                cell(torch.cat([c, y], -1), s),
            "The context did not enter the cell.": cell(torch.cat([y, 0 * c], -1), s),
            "The cell started from a state of zeros.": cell(torch.cat([y, c], -1), 0 * s),
        },
    )


DECODER_STEP = Exercise(
    name="decoder-step",
    title="A whole step of the decoder",
    level=3,
    section='chapters/01_motivation_deeper, section "Exercises"',
    stub=decoder_step,
    properties=(_whole_weights, _whole_context, _whole_state),
    hints=(
        "Three results, and each needs the one before: weights, context, state. Return them in "
        "the other order.",
        "Scores compare every annotation with one state. Give the state's part an axis for the "
        "words, (B, 1, A), so that it is added to all M of them.",
        "`torch.cat` along the last axis joins what goes into the cell. Which state goes in "
        "beside it?",
    ),
)

EXERCISES = (CONTEXT_VECTOR, ALIGNMENT_WEIGHTS, LOOK_BACK, DECODER_STEP)
