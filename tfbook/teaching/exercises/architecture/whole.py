"""The exercises of chapter 05 on a whole GPT: one that trains, a fault, and other families."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tfbook.teaching.exercises._spec import (
    Exercise,
    NotStarted,
    Wrong,
    expect,
    expect_tensor,
    numbers,
    plain_attention,
)

# off-by-one -------------------------------------------------------------------------------------


def next_token_loss(
    decode: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """Compute the loss of a decoder that names the next token at every position.

    decode: from tokens (B, N) to logits (B, N, V), with a causal mask inside.
    tokens: (B, M), int64, the texts.
    Returns: the mean of -log p(next token), a tensor of shape ().
    """
    logits = decode(tokens)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _copies(tokens: torch.Tensor) -> torch.Tensor:
    """Return logits of a model that names the token it has just read."""
    return 20.0 * F.one_hot(tokens, 9).double()


def _knows_order(tokens: torch.Tensor) -> torch.Tensor:
    """Return logits of a model that names the successor of the token it has read."""
    return 20.0 * F.one_hot((tokens + 1) % 9, 9).double()


def _off_copy(loss: Any) -> None:
    """A model that copies what it reads has a large loss."""
    tokens = torch.tensor([[1, 4, 2, 8], [3, 5, 0, 7]])
    if loss(_copies, tokens) < 1.0:
        raise Wrong(
            "A model that names the token which it has just read gets a loss of nearly 0. It has "
            "to be asked for the token behind it.",
            given={"tokens": tokens},
        )


def _off_next(loss: Any) -> None:
    """A model that names the next token has a loss of nearly 0."""
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 1]])
    got = loss(_knows_order, tokens)
    if got > 1e-3:
        before = loss(lambda t: 20.0 * F.one_hot((t - 1) % 9, 9).double(), tokens)
        words = (
            "The target is the token before, not the one behind."
            if before < 1e-3
            else "A model that always names the next token rightly should have a loss of nearly 0."
        )
        raise Wrong(words, got=got, given={"tokens": tokens})


def _off_values(loss: Any) -> None:
    """The loss is the mean over all positions that have a next token."""
    tokens, table = torch.tensor([[1, 3, 2, 0], [2, 2, 1, 3]]), numbers(4, 4, seed=481)
    each = F.cross_entropy(table[tokens[:, :-1]].mT, tokens[:, 1:], reduction="none")
    expect(
        loss(lambda t: table[t], tokens),
        each.mean(),
        "The loss is not the mean of -log p over the positions that have a next token.",
        what="The loss",
        given={"tokens": tokens},
        mistakes={
            "The targets were rolled round: the last position is asked for the first token.":
                F.cross_entropy(table[tokens].mT, tokens.roll(-1, 1)),
            "This is the sum. The loss is the mean, so that it does not grow with the batch.":
                each.sum(),
            "The texts were joined: the last position of one is asked for the first token of the "
            "next.": F.cross_entropy(table[tokens].flatten(0, 1)[:-1], tokens.flatten()[1:]),
        },
    )  # fmt: skip


OFF_BY_ONE = Exercise(
    name="off-by-one",
    title="Too good to be true",
    level=1,
    section='chapters/05_architecture, section "Does it read only the past?"',
    stub=next_token_loss,
    properties=(_off_copy, _off_next, _off_values),
    hints=(
        "Which token has position i read, and which one is it asked for?",
        "A causal mask allows the diagonal. What can a model do that is asked for its own token?",
        "Look at `batch` in the chapter: what is the difference between `x` and `y`?",
    ),
    broken=True,
)

# two-lines-to-an-encoder ------------------------------------------------------------------------


def encoder_loss(
    model: Callable[..., torch.Tensor], ids: torch.Tensor, hidden: torch.Tensor, mark: int
) -> torch.Tensor:
    """Compute the loss of an encoder that names hidden tokens.

    model: from ids (B, N) and `causal`, True or False, to logits (B, N, V).
    ids: (B, N), int64, the texts. hidden: (B, N), True where a token is to be hidden.
    mark: the number of the mark.
    Returns: the mean of -log p(hidden token), a tensor of shape ().
    """
    logits = model(ids[:, :-1], causal=True)
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


LINES_IDS = torch.tensor([[1, 4, 2, 7, 5], [3, 5, 0, 7, 2]])
LINES_HIDDEN = torch.tensor([[0, 1, 0, 0, 1], [1, 0, 0, 0, 0]]).bool()


def _lines_reads(loss: Any) -> None:
    """The model reads whole texts, without a causal mask, and not what is hidden."""
    calls = []

    def model(ids: torch.Tensor, causal: bool = True) -> torch.Tensor:
        calls.append((ids.clone(), causal))
        return torch.zeros(*ids.shape, 9, dtype=torch.float64)

    loss(model, LINES_IDS.clone(), LINES_HIDDEN.clone(), 8)
    if not calls:
        raise Wrong("The model was not called.")
    ids, causal = calls[0]
    given = {"ids": LINES_IDS, "hidden": LINES_HIDDEN, "mark": 8}
    if causal:
        raise Wrong("The model was called with causal=True: an encoder reads both sides.",
                    given=given)  # fmt: skip
    if ids.shape != LINES_IDS.shape:
        raise Wrong("The model did not read the whole texts. No target is shifted here.",
                    got=ids, given=given)  # fmt: skip
    right = torch.where(LINES_HIDDEN, 8, LINES_IDS)
    if torch.equal(ids, right):
        return
    if torch.equal(ids, LINES_IDS):
        words = "The model reads the tokens that it has to name. Put the mark in their places."
    elif torch.equal(ids, torch.where(LINES_HIDDEN, LINES_IDS, 8)):
        words = "The mark stands where nothing is hidden. The two texts of `where` are exchanged."
    else:
        words = "The model does not read the texts with the mark where a token is hidden."
    raise Wrong(words, got=ids, given=given)


def _lines_values(loss: Any) -> None:
    """The loss is the mean over the hidden tokens, and the target is the token itself."""
    table = numbers(2, 5, 9, seed=487)
    damaged = torch.where(LINES_HIDDEN, 8, LINES_IDS)
    each = F.cross_entropy(table.mT, LINES_IDS, reduction="none")
    following = F.cross_entropy(table.mT, LINES_IDS.roll(-1, 1), reduction="none")
    expect(
        loss(lambda ids, causal=True: table[:, : ids.shape[1]], LINES_IDS, LINES_HIDDEN, 8),
        each[LINES_HIDDEN].mean(),
        "The loss is not the mean of -log p(token) over the hidden tokens.",
        what="The loss",
        given={"ids": LINES_IDS, "hidden": LINES_HIDDEN, "mark": 8},
        mistakes={
            "All tokens are asked for. Those that are not hidden need only be copied: ask for the "
            "hidden ones.": each.mean(),
            "The tokens that are *not* hidden are asked for.": each[~LINES_HIDDEN].mean(),
            "The target is the next token. A hidden token is its own target.":
                (following[LINES_HIDDEN].mean(), following[:, :-1].mean()),
            "The model is asked for the mark. The target is the token that the mark hides.":
                F.cross_entropy(table.mT, damaged, reduction="none")[LINES_HIDDEN].mean(),
            "This is the sum. The loss is the mean over the hidden tokens.":
                each[LINES_HIDDEN].sum(),
            "The sum is divided by all tokens. Divide by the number of the hidden ones.":
                (each * LINES_HIDDEN).mean(),
        },
    )  # fmt: skip


TWO_LINES = Exercise(
    name="two-lines-to-an-encoder",
    title="Two lines to an encoder",
    level=1,
    section='chapters/05_architecture, section "BERT: no mask, another question"',
    stub=encoder_loss,
    properties=(_lines_reads, _lines_values),
    hints=(
        "What may a token of an encoder read, and what has to be missing so that naming it is a "
        "task?",
        "In the training loop of the small BERT, three lines are marked as new.",
        "`torch.where(hidden, mark, ids)` hides; `logits[hidden]` picks the positions that are "
        "asked.",
    ),
    broken=True,
    task="Change two lines of `encoder_loss`",
)

# prefix-attention -------------------------------------------------------------------------------


def prefix_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prefix: int
) -> torch.Tensor:
    """Attend as a prefix model does: both ways inside the prompt, causally behind it.

    q: queries (B, h, N, d). k: keys, likewise. v: values, likewise.
    prefix: the length of the prompt, 0 ≤ prefix ≤ N.
    Returns: (B, h, N, d).
    """
    ...


def _seen_by_prefix(n: int, prefix: int) -> torch.Tensor:
    at = torch.arange(n)
    return (at <= at[:, None]) | (at < prefix)


def _compare_prefix(attend: Any, n: int, prefix: int, seed: int) -> None:
    q, k, v = (numbers(2, 2, n, 4, seed=seed + i) for i in range(3))
    causal, everything = _seen_by_prefix(n, 0), torch.ones(n, n, dtype=torch.bool)
    at = torch.arange(n)
    apart = causal & ((at < prefix) == (at < prefix)[:, None]) | (
        (at < prefix) & (at < prefix)[:, None]
    )
    masks = {
        "This is causal everywhere: a token of the prompt does not read those behind it.": causal,
        "Every token reads every token: what comes after the prompt sees its own future.":
            everything,
        "What comes after the prompt does not read the prompt.": apart,
        "The prompt is one token too short.": _seen_by_prefix(n, prefix - 1),
        "The prompt is one token too long.": _seen_by_prefix(n, prefix + 1),
        "The mask is turned round: mask[i, j] says whether i may read j.":
            _seen_by_prefix(n, prefix).mT,
    }  # fmt: skip
    right = plain_attention(q, k, v, _seen_by_prefix(n, prefix))
    expect(
        attend(q, k, v, prefix),
        right,
        "Not every token reads what it may. Which columns may row i read, if i < prefix, and "
        "which if not?",
        given={"N": n, "prefix": prefix},
        mistakes={
            words: y
            for words, mask in masks.items()
            if not torch.equal(y := plain_attention(q, k, v, mask), right)
        },
    )


def _prefix_inside(attend: Any) -> None:
    """A prompt of 3 tokens among 6."""
    _compare_prefix(attend, 6, 3, seed=491)


def _prefix_ends(attend: Any) -> None:
    """Without a prompt it is causal; a prompt as long as the text is read both ways."""
    for prefix in (0, 5):
        _compare_prefix(attend, 5, prefix, seed=495)


PREFIX_ATTENTION = Exercise(
    name="prefix-attention",
    title="Between GPT and BERT",
    level=2,
    section='chapters/05_architecture, section "Three families, by the lines that change"',
    stub=prefix_attention,
    properties=(_prefix_inside, _prefix_ends),
    hints=(
        "Draw the grid for six tokens and a prompt of three: which cells have a dot?",
        "Token i may read token j for either of two reasons.",
        "`F.scaled_dot_product_attention` takes `attn_mask`, a boolean tensor (N, N), True where "
        "row i may read column j. Compare two `torch.arange(N)`, one of them as a column.",
    ),
)

# small-gpt --------------------------------------------------------------------------------------


def small_gpt(
    vocab_size: int, d_model: int, n_layers: int, n_heads: int, context: int
) -> torch.nn.Module:
    """Build a GPT: embeddings, blocks with residual connections and norms, a map to logits.

    vocab_size: tokens of the vocabulary. d_model: width. n_layers: blocks. n_heads: heads of each
    attention. context: positions.
    Returns: a module that maps tokens (B, N), N ≤ context, to logits (B, N, vocab_size).
    """
    ...


SIZES = {"vocab_size": 7, "d_model": 16, "n_layers": 2, "n_heads": 2, "context": 12}


def _built(build: Any, **changes: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build(*(SIZES | changes).values())
    if module is None:
        raise NotStarted
    if not isinstance(module, nn.Module):
        raise Wrong(
            f"The result is a {type(module).__name__}. Hand over the class of your model, or a "
            "function that returns one: an `nn.Module`.",
            got=module,
        )
    return module


def _logits(module: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    y = module(tokens)
    if y is None:
        raise NotStarted
    kind = y.dtype if isinstance(y, torch.Tensor) else torch.float32
    expect_tensor(y, (*tokens.shape, SIZES["vocab_size"]), kind, what="The logits")
    return y


def _gpt_shapes(build: Any) -> None:
    """Tokens (B, N) become logits (B, N, V), also where N is less than the context."""
    module = _built(build)
    for n in (12, 5):
        with torch.no_grad():
            _logits(module, torch.arange(2 * n).view(2, n) % 7)


def _gpt_causal(build: Any) -> None:
    """Changing a token changes no logits before it, and those at it and behind it."""
    module = _built(build).eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 0, 1]])
    other = tokens.clone()
    other[0, 4] = 0
    with torch.no_grad():
        moved = (_logits(module, tokens) - _logits(module, other))[0].abs().amax(-1) > 1e-6
    if moved[:4].any():
        raise Wrong(
            "Token 4 was changed, and logits of a position before it moved: the future leaks into "
            "the past. Is the attention causal?"
        )
    if not moved[4]:
        raise Wrong("Token 4 was changed, and the logits at position 4 did not move.")
    if not moved[5:].any():
        raise Wrong(
            "Token 4 was changed, and no logits behind it moved: nothing is carried from one "
            "position to another. Where is the attention?"
        )


def _gpt_order(build: Any) -> None:
    """The order of the tokens before matters."""
    module = _built(build, n_layers=1).eval()
    with torch.no_grad():
        one = _logits(module, torch.tensor([[1, 2, 3, 4]]))[0, -1]
        two = _logits(module, torch.tensor([[2, 3, 1, 4]]))[0, -1]
    if (one - two).abs().max() < 1e-6:
        raise Wrong(
            "The tokens before the last one were put into another order, and its logits stayed the "
            "same: the model does not know positions."
        )


def _gpt_residual(build: Any) -> None:
    """The gradient reaches the embedding of a model with 24 blocks."""
    module = _built(build, n_layers=24)
    tokens = torch.arange(24).view(2, 12) % 7
    F.cross_entropy(_logits(module, tokens).mT, tokens.roll(-1, 1)).backward()
    sizes = [p.grad.norm().item() for p in module.parameters() if p.grad is not None]
    if len(sizes) < 24:
        raise Wrong(
            "A model with 24 blocks has fewer than 24 parameters with a gradient. "
            "Are the blocks in an `nn.ModuleList`, and are all of them called?"
        )
    tables = [p for p in module.parameters() if p.grad is not None and p.shape == (7, 16)]
    first = min((table.grad.norm().item() for table in tables), default=0.0)
    if not math.isfinite(max(sizes)) or first < 1e-4:
        raise Wrong(
            "With 24 blocks the gradient that reaches the embedding is nearly 0. Does each part "
            "add its output to its input?",
            got=first,
        )


def _gpt_learns(build: Any) -> None:
    """It learns: after 150 steps it knows a text that repeats itself after three tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = _built(build)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        for _ in range(150):
            tokens = torch.randint(7, (32, 3)).repeat(1, 4)
            loss = F.cross_entropy(_logits(module, tokens)[:, 2:-1].mT, tokens[:, 3:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if not loss < 0.5:
        raise Wrong(
            "After 150 steps it does not know a text that repeats itself after three tokens: the "
            f"loss is still {loss.item():.2f} nats (guessing costs {math.log(7):.2f})."
        )


SMALL_GPT = Exercise(
    name="small-gpt",
    called="SmallGPT",
    title="A GPT of your own",
    level=3,
    section='chapters/05_architecture, section "A GPT in sixty lines"',
    stub=small_gpt,
    properties=(_gpt_shapes, _gpt_causal, _gpt_order, _gpt_residual, _gpt_learns),
    hints=(
        "Write the parts in the order in which data meet them, and print the shape after each.",
        "Which three things does a block do with x, and which of them would a model of 24 blocks "
        "miss first?",
        "Blocks in a plain list are invisible to the optimizer; `nn.ModuleList` is not.",
    ),
)

EXERCISES = (OFF_BY_ONE, TWO_LINES, PREFIX_ATTENTION, SMALL_GPT)
