"""Pretrained models taught one thing more: classes for an encoder, answers for a decoder.

What is learned from is prepared here, as batches and losses for :func:`tfbook.training.fit`. In
instruction tuning only the answer is learned: the question is read, and no loss is taken on it.

Explained in: chapters/18_practice, section "Fine-tuning on your own data".
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import check_callable, check_list, check_module, check_number
from tfbook.data import pad_batch
from tfbook.models import Classes, build
from tfbook.pretrained import Pretrained
from tfbook.training import IGNORE, Example, cross_entropy

__all__ = [
    "TrainedOnly",
    "answer_batch",
    "answer_ids",
    "answer_loss",
    "class_loss",
    "classifier_from",
]


def classifier_from(found: Pretrained, n_classes: int) -> nn.Module:
    """Make a classifier of a pretrained encoder: its weights, and a new head on its first row.

    logits = tanh(x_0 W_pool) W + b, where the encoder has a pooler, and W, b are new.

    Args:
        found: an encoder, such as MiniLM.
        n_classes: how many classes.

    Returns:
        A model (B, N) → (B, n_classes), in evaluation mode; the pretrained one stays as it is.

    Raises:
        TypeError: if found is no pretrained model.
        ValueError: if it is no encoder, or there are fewer than 2 classes.

    Source: [devlin2019bert]
    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    _check_pretrained(found)
    check_number("n_classes", n_classes, 2, 2**20, whole=True)
    if found.config.kind != "encoder":
        raise ValueError(f"found must be an encoder, got {found.name}, of {found.config.kind}")
    model = build(found.config.replace(head=Classes(n_classes)))
    body = {k: x for k, x in found.model.state_dict().items() if not k.startswith("head.")}
    model.load_state_dict(body | {f"head.{k}": x for k, x in model.head.state_dict().items()})
    return model.eval()


def class_loss(
    model: Callable[..., Tensor],
    batch: tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"], Int[Tensor, " B"]],
) -> tuple[Float[Tensor, ""], int]:
    """Return the sum of −ln p(label) over a batch of texts, and how many there are.

    Args:
        model: of :func:`classifier_from`.
        batch: tokens (B, N), mask (B, N) with True = token, labels (B,).

    Raises:
        TypeError: for a wrong type.
        ValueError: for a shape that does not fit, or a label out of range.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    if not isinstance(batch, tuple | list) or len(batch) != 3:
        raise TypeError("batch must be tokens, mask and labels")
    check_callable("model", model)
    tokens, mask, labels = batch
    loss = cross_entropy(model(tokens, mask=mask), labels, reduction="sum")
    return loss, len(labels)


def answer_ids(found: Pretrained, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], int]:
    """Return the ids of a conversation, and how many of them are read before the last answer.

    With a chat template the first part is what the model will read when it is asked, opening of
    its turn included, and the answer ends with the token that closes a turn. Without one, contents
    follow each other line by line, and the answer ends with the token that ends a text, if the
    model has one.

    Args:
        found: a decoder with its tokenizer.
        messages: with "role" and "content", the last one the assistant's.

    Returns:
        All ids, and where the answer begins; only from there on is anything to be learned.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a conversation that does not end with an answer, or an empty answer.

    Source: [ouyang2022training]
    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    _check_pretrained(found)
    check_list("messages", messages)
    last = messages[-1] if len(messages) > 1 else {}
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        raise ValueError("messages must be at least two and end with one of the assistant")
    *before, answer = messages
    end = list(found.eos_ids[:1])
    if found.chat_template is not None:
        start = found.encode_chat(before)[0].tolist()
    else:
        text = "".join(f"{message['content']}\n" for message in before)
        start = found.encode(text, special=False)[0].tolist()
    return [*start, *found.encode(answer["content"], special=False)[0].tolist(), *end], len(start)


def answer_batch(conversations: Sequence[tuple[Sequence[int], int]], pad_id: int = 0) -> Example:
    """Put conversations into a batch whose targets are the tokens of the answers alone.

    Row t reads token t and is asked for t + 1; what is no token of an answer is IGNORE. Short ones
    are filled up on the right, where no token looks.

    Args:
        conversations: B pairs of ids and of where the answer begins, as :func:`answer_ids` gives.
        pad_id: what fills up.

    Returns:
        Inputs and targets, (B, N − 1).

    Raises:
        TypeError: for a wrong type.
        ValueError: if there are none, or an answer begins at no place of its conversation.

    Example:
        >>> answer_batch([([5, 6, 7, 8], 2), ([5, 9], 1)])
        Example(inputs=tensor([[5, 6, 7],
                [5, 9, 0]]), targets=tensor([[-100,    7,    8],
                [   9, -100, -100]]))

    Source: [ouyang2022training]
    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    check_list("conversations", conversations)
    if not len(conversations):
        raise ValueError("conversations must hold at least one, got none")
    for pair in conversations:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError("conversations must hold pairs of ids and a number")
        check_list("ids", pair[0])
        check_number("the place of an answer", pair[1], 1, max(1, len(pair[0]) - 1), whole=True)
        if len(pair[0]) < 2:
            raise ValueError(f"ids must be at least 2, got {len(pair[0])}")
    ids, lengths = pad_batch([ids for ids, _ in conversations], pad_id)  # (B, N), (B,)
    starts = torch.tensor([start for _, start in conversations])  # (B,)
    place = torch.arange(1, ids.shape[1])  # (N − 1,), of the targets
    answers = (place >= starts[:, None]) & (place < lengths[:, None])  # (B, N − 1)
    return Example(ids[:, :-1], ids[:, 1:].masked_fill(~answers, IGNORE))


def answer_loss(
    model: Callable[..., tuple[Tensor, object]], batch: Example
) -> tuple[Float[Tensor, ""], int]:
    """Return the sum of −ln p over the tokens of the answers, and how many there are.

    Args:
        model: like :class:`tfbook.models.DecoderOnly`.
        batch: of :func:`answer_batch`.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a shape that does not fit.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError("batch must be inputs and targets")
    check_callable("model", model)
    inputs, targets = batch
    logits, _ = model(inputs)  # (B, N, V)
    return cross_entropy(logits, targets, reduction="sum"), int((targets != IGNORE).sum())


class TrainedOnly(nn.Module):
    """A model whose checkpoints hold what is trained and nothing else; called as the model is.

    An adapter's checkpoint is then as small as the adapter. What is frozen has to be brought again
    by whoever loads one.

    Args:
        model: with frozen parameters.

    Raises:
        TypeError: if model is no module.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """

    def __init__(self, model: nn.Module):
        """Keep the model."""
        super().__init__()
        check_module("model", model)
        self.model, self.config = model, getattr(model, "config", None)

    def forward(self, *args: object, **options: object) -> object:
        """Call the model."""
        return self.model(*args, **options)

    def state_dict(self, *args: object, **options: object) -> dict[str, Tensor]:
        """Return the trained parameters, under their names in the model."""
        return {n: x.detach() for n, x in self.model.named_parameters() if x.requires_grad}

    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True, **_: object):
        """Take the trained parameters over.

        Raises:
            ValueError: if others are given than are trained.
        """
        here = self.state_dict()
        shapes = ({name: tuple(x.shape) for name, x in each.items()} for each in (here, state))
        mine, theirs = shapes
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise ValueError(
                    f"state does not fit: {name} has shape {theirs.get(name)} there and "
                    f"{mine.get(name)} here"
                )
        for name, x in here.items():
            x.copy_(state[name])


def _check_pretrained(found: object) -> None:
    if not isinstance(found, Pretrained):
        raise TypeError(f"found must be a Pretrained, got {type(found).__name__}")
