"""What a model makes of a text: the log-probability of each token, and perplexity.

Explained in: chapters/12_generation_deeper, section "How surprised is the model?".
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_number
from tfbook.generation.prompts import (
    LanguageModel,
    Prompt,
    check_model,
    context_of,
    device_of,
    pad,
    read_prompts,
)
from tfbook.generation.sampling import log_prob_of

__all__ = ["perplexity", "score"]


# Of how many rows logits are held at a time: 256 rows of 50,000 numbers are 50 MB.
MOST_ROWS = 256


@torch.no_grad()
def score(
    model: LanguageModel,
    tokens: Prompt,
    *,
    state: Any = None,
    context: int | None = None,
    stride: int | None = None,
    pad_id: int = 0,
) -> Float[Tensor, "B T"]:
    """Return the log-probability of each token given those before it.

    scores[b, i] = ln p(token i + 1 | tokens 0 … i). Where a text is longer than the context,
    windows of that length move over it by ``stride``, and each token is scored in the first
    window that holds it, with at least context − stride tokens before it.

    Args:
        model: see :class:`tfbook.generation.LanguageModel`; in evaluation mode.
        tokens: ids of one sequence, of several, or (B, N), N at least 2.
        state: what the model has read before, such as ``model.remember(source)``; then the
            tokens must fit one window.
        context: length of a window; when omitted the model's ``config.max_len``, or N.
        stride: from 1 to context − 1; half the context when omitted.
        pad_id: the id that fills up short sequences behind; it is masked.

    Returns:
        Nats, (B, N − 1), in falling surprise from −∞ to 0; 0 behind the end of a shorter sequence.

    Raises:
        ValueError: for a model in training mode, sequences of fewer than two tokens, or a number
            out of its range.

    Cost: one forward pass over each window, in pieces, so that few logits are held at a time.

    Example:
        >>> from tfbook.generation import TableModel
        >>> fair = TableModel(torch.zeros(2, 2))
        >>> score(fair, [0, 1, 1]).exp()
        tensor([[0.5000, 0.5000]])

    Explained in: chapters/12_generation_deeper, section "How surprised is the model?".
    """
    sequences = read_prompts(tokens, name="tokens", shortest=2)
    check_model(model)
    check_number("pad_id", pad_id, 0, whole=True)
    ids, mask = pad(sequences, pad_id, device_of(model), left=False)  # (B, N) both
    n = ids.shape[1]
    context = min(context_of(model) or n, n) if context is None else context
    check_number("context", context, 2, whole=True)
    stride = max(context // 2, 1) if stride is None else stride
    check_number("stride", stride, 1, whole=True)
    if stride >= context:
        raise ValueError(f"stride must be below context = {context}, got {stride}")
    if state is not None and n > context:
        raise ValueError(f"behind a state the tokens must fit one window of {context}, got {n}")
    found, done, start = [], 1, 0  # tokens before `done` are scored; the first has none before it
    while done < n:
        window = slice(start, start + context)
        part = None if mask is None else mask[:, window]
        scores = _score_window(model, ids[:, window], part, state)  # (B, W − 1)
        found.append(scores[:, done - 1 - start :])  # the others stand in an earlier window
        done, start = start + context, start + stride
    scores = torch.cat(found, dim=1)  # (B, N − 1)
    return scores if mask is None else scores.masked_fill(~mask[:, 1:], 0.0)


def _score_window(model, ids, mask, state):
    """Return ln p of the tokens behind the first, (B, W − 1)."""
    found = []
    for first in range(0, ids.shape[1] - 1, MOST_ROWS):
        rows = slice(first, min(first + MOST_ROWS, ids.shape[1] - 1))
        part = None if mask is None else mask[:, rows]
        logits, state = model.decode(ids[:, rows], state, mask=part)  # (B, R, V)
        found.append(log_prob_of(logits, ids[:, rows.start + 1 : rows.stop + 1]))
    return torch.cat(found, dim=1)


def perplexity(
    model: LanguageModel,
    tokens: Prompt,
    *,
    context: int | None = None,
    stride: int | None = None,
) -> float:
    """Return exp of the mean surprise per token: as unsure as between so many equal choices.

    PPL = exp(−(1/T) Σ_t ln p(x_t | x_<t)), over all T tokens that have one before them.

    Args:
        model: see :class:`tfbook.generation.LanguageModel`; in evaluation mode.
        tokens: ids of one sequence, of several, or (B, N).
        context: see :func:`score`.
        stride: see :func:`score`.

    Returns:
        From 1, no surprise, to ∞; V for a model that knows nothing.

    Raises:
        ValueError: as :func:`score`.

    Example:
        >>> from tfbook.generation import TableModel
        >>> round(perplexity(TableModel(torch.zeros(5, 5)), [0, 3, 1, 4]), 4)
        5.0

    Explained in: chapters/12_generation_deeper, section "How surprised is the model?".
    """
    sequences = read_prompts(tokens, name="tokens", shortest=2)
    scores = score(model, sequences, context=context, stride=stride).double()
    return math.exp(-scores.sum().item() / sum(len(sequence) - 1 for sequence in sequences))
