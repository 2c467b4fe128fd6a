"""The exercises of chapter 12 on which tokens may be drawn."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, numbers

NEVER = -math.inf

# top-k ------------------------------------------------------------------------------------------


def top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Cut all tokens but the k most likely ones.

    A token that is cut gets the logit -∞; the others keep theirs. What ties with the k-th largest
    logit stays too, and where k is larger than the vocabulary all tokens stay.

    logits: (B, V). k: how many tokens to keep, at least 1.
    Returns: (B, V).
    """
    ...


def _kept(logits: torch.Tensor, k: int) -> torch.Tensor:
    border = logits.sort(-1, descending=True).values[:, min(k, logits.shape[1]) - 1]
    return logits.masked_fill(logits < border[:, None], NEVER)


def _top_rows(cut: Any) -> None:
    """In every row the k largest logits stay, and the others become -∞."""
    logits, k = torch.tensor([[0.5, 2.0, -1.0, 1.5, 0.0], [-3.0, 2.6, 1.7, -4.0, 2.5]]), 2
    right = _kept(logits, k)
    ordered = logits.sort(-1, descending=True).values
    flat = torch.zeros(10, dtype=torch.bool)
    flat[logits.flatten().topk(k).indices] = True
    chosen = right != NEVER
    expect(
        cut(logits, k),
        right,
        "The two largest logits of each row should stay, and the others be -∞.",
        mistakes={
            "The cut logits are 0, and e⁰ = 1: these tokens can still be drawn. Set them to -∞.":
                right.masked_fill(~chosen, 0.0),
            "The smallest logits were kept.": -_kept(-logits, k),
            "The result holds the k logits without their places. It has one logit for each token.":
                (ordered[:, :k], logits.topk(k).indices),
            "The logits come back sorted, so they belong to other tokens.":
                ordered.masked_fill(torch.arange(5) >= k, NEVER),
            "These are probabilities. Return logits, so that the steps can be combined.":
                (torch.softmax(right, -1), torch.softmax(logits, -1) * chosen),
            "The k-th token was cut too: k tokens stay.": _kept(logits, k - 1),
            "One token too many stays.": _kept(logits, k + 1),
            "The first k tokens of the vocabulary stay, not the most likely ones.":
                logits.masked_fill((torch.arange(5) >= k).expand(2, 5), NEVER),
            "The k largest logits of the whole batch stay. Each row has its own.":
                logits.masked_fill(~flat.view(2, 5), NEVER),
            "The border of the first row was used for every row.":
                logits.masked_fill(logits < ordered[0, k - 1], NEVER),
            "The largest logits were cut and the others stay.": logits.masked_fill(chosen, NEVER),
        },
    )


def _top_ties(cut: Any) -> None:
    """What ties with the k-th largest stays."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    right = _kept(logits, 2)
    expect(
        cut(logits, 2),
        right,
        "Three tokens share the second place in the first row, and all five in the second. None "
        "of them is less likely than another, so all stay: compare with the k-th largest logit.",
        mistakes={
            "Tokens that tie with the k-th were cut: keep what is equal to it, too.":
                logits.masked_fill(logits <= torch.tensor([[2.0], [0.0]]), NEVER),
        },
    )


def _top_all(cut: Any) -> None:
    """With k as large as the vocabulary, or larger, all tokens stay."""
    logits = numbers(3, 5, seed=471)
    for k in (5, 6, 50):
        expect(cut(logits, k), logits, f"With k = {k} and 5 tokens all stay.")


def _top_one(cut: Any) -> None:
    """With k = 1 the most likely token alone stays, and cut tokens stay cut."""
    logits = torch.tensor([[1.0, NEVER, 2.0, NEVER], [NEVER, -1.0, NEVER, NEVER]])
    for k in (1, 2):
        expect(cut(logits, k), _kept(logits, k), "A token that was cut before stays cut.")


TOP_K = Exercise(
    name="top-k",
    title="Keep the k most likely tokens",
    level=1,
    section='chapters/12_generation, section "Choosing the next token"',
    stub=top_k,
    properties=(_top_rows, _top_ties, _top_all, _top_one),
    hints=(
        "Which logit stands at the border between what stays and what goes?",
        "`logits.topk(k)` gives the k largest of each row in falling order; the last of them is "
        "the border. It refuses a k larger than the vocabulary.",
        "Keep the border as a column, (B, 1), so that each row is compared with its own; `min` "
        "takes care of a large k.",
    ),
)

# nucleus ----------------------------------------------------------------------------------------


def top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Cut all tokens outside the nucleus, the fewest tokens whose probabilities reach p.

    Take the tokens from the most to the least likely. A token stays if the probabilities of those
    before it sum to less than p. So the token with which the sum reaches p stays, and the first
    one always. Cut tokens get the logit -∞; the others keep theirs.

    logits: (B, V), without ties. p: above 0, at most 1.
    Returns: (B, V).
    """
    ...


def _nucleus(logits: torch.Tensor, p: float) -> torch.Tensor:
    kept = torch.zeros_like(logits, dtype=torch.bool)
    for row, probabilities in enumerate(torch.softmax(logits.double(), -1).tolist()):
        total = 0.0
        for token in sorted(range(len(probabilities)), key=lambda i: -probabilities[i]):
            if total >= p:
                break
            kept[row, token] = True
            total += probabilities[token]
    return logits.masked_fill(~kept, NEVER)


def _probable(*rows: tuple[float, ...]) -> torch.Tensor:
    """Return logits whose softmax gives these probabilities, with a constant added to each row."""
    shift = torch.arange(1, 1 + len(rows)).double()[:, None]
    return torch.tensor(rows).double().log() + shift


def _nucleus_rows(cut: Any) -> None:
    """The fewest likely tokens that reach p stay."""
    logits, p = _probable((0.15, 0.4, 0.05, 0.1, 0.3), (0.02, 0.03, 0.6, 0.25, 0.1)), 0.8
    right = _nucleus(logits, p)
    probabilities = torch.softmax(logits, -1)
    ordered, order = probabilities.sort(-1, descending=True)
    sums = ordered.cumsum(-1)

    def keep(sorted_mask: torch.Tensor) -> torch.Tensor:
        places = torch.zeros_like(sorted_mask).scatter(-1, order, sorted_mask)
        return logits.masked_fill(~places, NEVER)

    rising = probabilities.sort(-1)
    early = rising.values.cumsum(-1) - rising.values < p
    least = logits.masked_fill(~torch.zeros_like(early).scatter(-1, rising.indices, early), NEVER)
    one = probabilities.cumsum(-1)
    expect(
        cut(logits, p),
        right,
        "In falling order a token stays while the sum of those before it is below p.",
        mistakes={
            "The token that crosses p was cut: what stays sums to less than p. Compare p with the "
            "sum of the tokens before it.": keep(sums <= p),
            "The most likely token was cut: the mask was moved by `roll`, which goes around, so "
            "that what left at the end came in at the front. The first token always stays.":
                keep((sums < p).roll(1, -1)),
            "One token too many stays: the sum had reached p without it.":
                keep(torch.nn.functional.pad(sums, (2, -2)) < p),
            "The mask belongs to the sorted tokens, but it was applied to the tokens in their own "
            "order. Bring it back to their places.":
                (logits.masked_fill(sums - ordered >= p, NEVER),
                 logits.masked_fill(sums > p, NEVER)),
            "The logits come back sorted, so they belong to other tokens.":
                logits.sort(-1, descending=True).values.masked_fill(sums - ordered >= p, NEVER),
            "The tokens were not sorted: the sum runs in the order of the vocabulary.":
                (logits.masked_fill(one > p, NEVER),
                 logits.masked_fill(one - probabilities >= p, NEVER)),
            "The sum began with the least likely tokens: sort in falling order.": least,
            "The logits themselves were summed. Sum the probabilities, their softmax.":
                keep(logits.sort(-1, descending=True).values.cumsum(-1) <= p),
            "Each probability was compared with p. That is not a sum; p times the largest one "
            "would be min-p.":
                (logits.masked_fill(probabilities < p, NEVER),
                 logits.masked_fill(probabilities < p * ordered[:, :1], NEVER),
                 logits.masked_fill(probabilities < 1 - p, NEVER)),
            "The cut logits are 0, and e⁰ = 1: these tokens can still be drawn. Set them to -∞.":
                right.masked_fill(right == NEVER, 0.0),
            "These are probabilities. Return logits, so that the steps can be combined.":
                (torch.softmax(right, -1), probabilities * (right != NEVER)),
            "What should stay was cut, and the rest stays.":
                logits.masked_fill(right != NEVER, NEVER),
            "The number of tokens that the first row keeps was used for every row.":
                keep((torch.arange(5) < int((right[0] != NEVER).sum())).expand(2, 5)),
        },
    )


def _nucleus_first(cut: Any) -> None:
    """The most likely token always stays."""
    logits = _probable((0.2, 0.7, 0.1), (0.5, 0.2, 0.3))
    for p in (0.05, 0.1):
        right = _nucleus(logits, p)
        expect(
            cut(logits, p), right,
            f"With p = {p} the first token alone is more than enough, and stays.",
            mistakes={
                "Every token was cut. Nothing could be drawn: the most likely token has to stay.":
                    torch.full_like(logits, NEVER),
            },
        )


def _nucleus_one(cut: Any) -> None:
    """With p = 1 all tokens stay."""
    logits = numbers(2, 7, seed=473)
    expect(cut(logits, 1.0), logits, "With p = 1 all tokens are needed.")


def _nucleus_sizes(cut: Any) -> None:
    """Batches and vocabularies may have any size, and tokens may have been cut before."""
    generator = torch.Generator("cpu").manual_seed(474)
    for b, v, p in ((1, 11, 0.5), (3, 23, 0.9), (5, 2, 0.7)):
        logits = 2 * torch.randn(b, v, generator=generator, dtype=torch.float64)
        expect(cut(logits, p), _nucleus(logits, p), f"With {v} tokens and p = {p}, a row differs.")
    logits = torch.tensor([[2.0, NEVER, 1.0, 0.5]]).double()
    expect(cut(logits, 0.7), _nucleus(logits, 0.7), "A token that was cut before stays cut.")


NUCLEUS = Exercise(
    name="nucleus",
    title="Keep the nucleus",
    level=2,
    section='chapters/12_generation, section "Choosing the next token"',
    stub=top_p,
    properties=(_nucleus_rows, _nucleus_first, _nucleus_one, _nucleus_sizes),
    hints=(
        "Sort the probabilities in falling order. For each, how much is there before it?",
        "`cumsum` includes the token itself; subtract it again. The mask you get is in sorted "
        "order, so it cannot be used on the logits as they stand.",
        "In a sorted row the tokens that stay are the first ones. How many are they? `gather` "
        "fetches the last of them, and every logit below it goes.",
    ),
)

EXERCISES = (TOP_K, NUCLEUS)
