"""The exercise of chapter 05 on the loss of a decoder."""

from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_gradients, numbers, same

# shift-right ------------------------------------------------------------------------------------


def next_token_loss(
    decode: Callable[[torch.Tensor], torch.Tensor], targets: torch.Tensor, bos: int, pad: int
) -> torch.Tensor:
    """Compute the loss of a decoder that reads the targets shifted right.

    The decoder reads a start token and then the targets without their last column, so that
    position t has seen the targets before t. Its logits at position t are scored against target t.
    The loss is the mean of -log p(target) over all targets that are not padding.

    decode: from tokens (B, N) to logits (B, N, V). targets: (B, N), int64. bos: the start token.
    pad: the id of padding among the targets.
    Returns: the loss, a tensor of shape ().
    """
    ...


def _targets() -> torch.Tensor:
    return torch.tensor([[3, 1, 4, 2], [2, 3, 0, 0]])


def _decoder(
    table: torch.Tensor, targets: torch.Tensor, bos: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a causal model with logits from a table, which names a wrong input."""
    start = torch.full_like(targets[:, :1], bos)
    wanted = torch.cat([start, targets[:, :-1]], 1)
    slips = {
        "The decoder reads the targets as they are: at position t it sees the very token it should "
        "predict. Shift them right by one position.": targets,
        "The targets were shifted left. The decoder would read the token after the one it "
        "predicts.": torch.cat([targets[:, 1:], start], 1),
        "The shift goes around: the last target came to the front. The front gets `bos`.":
            targets.roll(1, 1),
        "The start token stands in front of all targets, which makes a column too many: the last "
        "target has nothing to predict.": torch.cat([start, targets], 1),
        "The start token is missing: the decoder has nothing to predict the first target from.":
            targets[:, :-1],
        "The rows were shifted instead of the columns.":
            torch.cat([torch.full_like(targets[:1], bos), targets[:-1]], 0),
        "The first target was overwritten by `bos`. Shift the targets: none but the last is lost.":
            torch.cat([start, targets[:, 1:]], 1),
    }

    def decode(tokens: Any) -> torch.Tensor:
        if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.int64:
            kind = getattr(tokens, "dtype", type(tokens).__name__)
            raise Wrong(f"The decoder was given {kind}. It reads int64 tokens of shape (B, N).")
        for sentence, slip in slips.items():
            if same(tokens, slip, 0) and not same(tokens, wanted, 0):
                raise Wrong(sentence, got=tokens, wanted=wanted)
        if not same(tokens, wanted, 0):
            raise Wrong(
                "The decoder does not read the start token followed by the targets but the last.",
                got=tokens, wanted=wanted,
            )
        return table[tokens].cumsum(1)

    return decode


def _loss_parts(
    table: torch.Tensor, targets: torch.Tensor, bos: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return -log p of every target, and the probabilities."""
    tokens = torch.cat([torch.full_like(targets[:, :1], bos), targets[:, :-1]], 1)
    logs = torch.log_softmax(table[tokens].cumsum(1), -1)
    return -logs.gather(-1, targets[..., None])[..., 0], logs.exp()


def _shift_values(loss: Any) -> None:
    """The decoder reads the shifted targets, and the mean is over what is not padding."""
    table, targets = numbers(6, 6, seed=461), _targets()
    each, probabilities = _loss_parts(table, targets, 5)
    real = targets != 0
    right = each[real].mean()
    flat = probabilities.flatten(0, 1)
    rows = (each * real).sum(1)
    shifted = torch.cat([torch.full((2, 1), 5), targets[:, :-1]], 1)
    expect(
        loss(_decoder(table, targets, 5), targets, 5, 0),
        right,
        "The loss is not the mean of -log p(target) over the targets that are not padding.",
        what="The loss",
        given={"targets": targets, "bos": 5, "pad": 0},
        mistakes={
            "Padding was counted: leave the targets that are `pad` out of the mean.": each.mean(),
            "The padding is left out of the sum, but counted in the number of tokens.":
                (each * real).mean(),
            "This is the sum. The loss is the mean, so that it does not grow with the batch.":
                each[real].sum(),
            "The mean was taken for each sequence first, so tokens of short sequences count more.":
                (rows / real.sum(1)).mean(),
            "The sum of each sequence was averaged over the batch. Divide by the tokens.":
                rows.mean(),
            "The sign is reversed: a likely target should give a small loss.": -right,
            "This is the mean of 1 - p or of p. The loss is the mean of -log p.":
                (torch.exp(-each)[real].mean(), 1 - torch.exp(-each)[real].mean()),
            "The softmax was applied twice: `cross_entropy` expects logits.":
                torch.nn.functional.cross_entropy(flat, targets.flatten(), ignore_index=0),
            "The logits were scored against the shifted tokens, which the decoder has read. "
            "Score them against the targets.":
                (-probabilities.log().gather(-1, shifted[..., None])[..., 0][real].mean(),
                 -probabilities.log().gather(-1, shifted[..., None]).mean()),
            "The first position was left out, but it has a target too.":
                each[:, 1:][real[:, 1:]].mean(),
        },
    )


def _shift_same_id(loss: Any) -> None:
    """The start token may be the padding token, as in T5."""
    table, targets = numbers(6, 6, seed=462), _targets()
    right = _loss_parts(table, targets, 0)[0][targets != 0].mean()
    expect(
        loss(_decoder(table, targets, 0), targets, 0, 0), right,
        "Look for padding among the targets, not in what the decoder reads: here the start token "
        "has the same id.",
        what="The loss", given={"targets": targets, "bos": 0, "pad": 0},
    )


def _shift_full(loss: Any) -> None:
    """Without padding all targets count."""
    targets, table = torch.tensor([[1, 2, 3], [3, 3, 4], [2, 1, 1]]), numbers(7, 7, seed=463)
    right = _loss_parts(table, targets, 6)[0].mean()
    expect(
        loss(_decoder(table, targets, 6), targets, 6, 0), right,
        what="The loss", given={"targets": targets, "bos": 6, "pad": 0},
    )


def _shift_gradients(loss: Any) -> None:
    """Gradients reach the model."""
    expect_gradients(
        lambda table: loss(_decoder(table, _targets(), 5), _targets(), 5, 0),
        table=numbers(6, 6, seed=464),
    )


SHIFT_RIGHT = Exercise(
    name="shift-right",
    title="Shift right, then score",
    level=1,
    section='chapters/05_architecture_deeper, section "The whole model learns"',
    stub=next_token_loss,
    properties=(_shift_values, _shift_same_id, _shift_full, _shift_gradients),
    hints=(
        "When the decoder has to predict target t, which tokens may it have read?",
        "Put a column of `bos` in front of `targets[:, :-1]`. The logits have one row for each "
        "target; `cross_entropy` takes the class axis second and can ignore one id.",
        "`tokens = torch.cat([torch.full_like(targets[:, :1], bos), targets[:, :-1]], 1)`; "
        "`F.cross_entropy(decode(tokens).mT, targets, ignore_index=pad)`.",
    ),
)

EXERCISES = (SHIFT_RIGHT,)
