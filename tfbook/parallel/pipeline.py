"""Pipeline parallelism: each process has some layers, and micro-batches pass through them.

A stage does what its schedule says: it receives what the stage before has made of a micro-batch,
computes, and sends it on; on the way back it receives a gradient and sends one. PyTorch has this as
``torch.distributed.pipelining``.

Explained in: chapters/17_hardware, section "Many devices".
"""

import copy
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfbook._checks import check_callable, check_ids, check_number
from tfbook.models import DecoderOnly
from tfbook.parallel.groups import Group, check_group
from tfbook.parallel.schedules import PipelineTask, check_schedule, one_forward_one_backward

__all__ = ["Stage", "add_tied_gradients", "layers_of", "run_pipeline"]

Loss = Callable[[Tensor, Tensor], Tensor]


def layers_of(n_layers: int, p: int, stage: int) -> range:
    """Return which layers a stage has: as many as the others, or one more.

    Args:
        n_layers: of the whole model, at least p.
        p: stages.
        stage: which of them.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if one is out of range.

    Example:
        >>> [list(layers_of(5, 2, stage)) for stage in range(2)]
        [[0, 1], [2, 3, 4]]

    Source: [huang2019gpipe]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_number("n_layers", n_layers, 1, 2**31, whole=True)
    check_number("p", p, 1, n_layers, whole=True)
    check_number("stage", stage, 0, p - 1, whole=True)
    return range(n_layers * stage // p, n_layers * (stage + 1) // p)


class Stage(nn.Module):
    """Some layers of a decoder; the first stage reads tokens, the last one scores them.

    Args:
        model: the whole one, alike in every process; the own parts are copied.
        p: stages.
        number: which of them this is.

    Attributes:
        entrance: the embedding, in the first stage; else None.
        blocks: the own layers.
        final_norm, head: in the last stage; else None.
        table: the table that a tied head shares with the embedding, in the first and in the last
            stage, which must be kept alike, see :func:`add_tied_gradients`; else None.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> first, last = Stage(model, 2, 0), Stage(model, 2, 1)
        >>> last(first(torch.tensor([[3, 1, 4]]))).shape
        torch.Size([1, 3, 11])

    Source: [huang2019gpipe]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(self, model: DecoderOnly, p: int, number: int):
        """Copy the own parts."""
        super().__init__()
        if not isinstance(model, DecoderOnly):
            raise TypeError(f"model must be a DecoderOnly, got {type(model).__name__}")
        own, first = layers_of(len(model.stack.blocks), p, number), number == 0
        last = number == p - 1
        # In one copy, so that what is shared stays shared.
        (entrance,), tied = model._entrances, model.head.tied
        table = model.embed.weight if tied and (first or last) else None
        found = copy.deepcopy((
            entrance if first else None,
            nn.ModuleList([model.stack.blocks[i] for i in own]),
            model.stack.final_norm if last else None,
            model.head if last else None,
            table,
        ))  # fmt: skip
        self.entrance, self.blocks, self.final_norm, self.head, self.table = found
        self.d_model = model.config.d_model

    def forward(
        self, x: Int[Tensor, "B N"] | Float[Tensor, "B N D"]
    ) -> Float[Tensor, "B N D"] | Float[Tensor, "B N V"]:
        """Return what the own layers make of tokens, or of what the stage before has made."""
        if self.entrance is not None:
            x = self.entrance(x).x
        for block in self.blocks:
            x, _ = block(x)
        x = x if self.final_norm is None else self.final_norm(x)
        return x if self.head is None else self.head(x, self.table)


def run_pipeline(
    stage: Stage,
    tokens: Int[Tensor, "B N"],
    targets: Int[Tensor, "B N"],
    loss: Loss,
    group: Group,
    *,
    micro_batches: int,
    schedule: Sequence[Sequence[PipelineTask]] | None = None,
) -> Float[Tensor, ""] | None:
    """Pass a batch forwards and backwards through all stages, and add up the gradients.

    Sending does not wait, receiving does: so two stages that send to each other do not block.

    Args:
        stage: of this process, of as many as there are processes.
        tokens: the batch, alike in every process.
        targets: what the loss compares the logits with; read by the last stage.
        loss: of logits (b, N, V) and targets (b, N), a mean over them.
        group: the processes, in the order of the stages.
        micro_batches: m, how many pieces of equal size the batch is cut into.
        schedule: :func:`one_forward_one_backward` when omitted.

    Returns:
        The loss of the whole batch in the last stage, None in the others. Gradients are in the
        stage's weights, added to what was there.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for shapes that do not fit, or a batch that cannot be cut.
        PeerLost: if a process is gone.

    Cost: for each micro-batch one message of b · N · d_model numbers forward and one backward,
        between each two stages.

    Example:
        >>> from torch.nn import functional
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))]))
        >>> tokens = torch.zeros(2, 4, dtype=torch.long)
        >>> loss = lambda logits, wanted: functional.cross_entropy(logits.mT, wanted)
        >>> run_pipeline(Stage(model, 1, 0), tokens, tokens, loss, Group(), micro_batches=2).ndim
        0

    Source: [huang2019gpipe], [narayanan2019pipedream]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(stage, Stage):
        raise TypeError(f"stage must be a Stage, got {type(stage).__name__}")
    check_ids("tokens", tokens)
    check_ids("targets", targets)
    check_callable("loss", loss)
    check_group(group)
    check_number("micro_batches", micro_batches, 1, 2**20, whole=True)
    if len(tokens) % micro_batches or tokens.shape != targets.shape:
        raise ValueError(
            f"tokens must be of the shape of targets and their rows a multiple of {micro_batches}, "
            f"got {tuple(tokens.shape)} and {tuple(targets.shape)}"
        )
    p, r, m = group.size, group.rank, micro_batches
    schedule = one_forward_one_backward(p, m) if schedule is None else schedule
    check_schedule(schedule, p, m)
    texts, wanted = tokens.chunk(m), targets.chunk(m)
    weight = next(stage.parameters())
    like = weight.new_empty(*texts[0].shape, stage.d_model)  # what passes between stages
    entered, made, sendings, losses = {}, {}, [], []
    for task in schedule[r]:
        i = task.micro
        if task.kind == "F":
            entered[i] = texts[i] if r == 0 else group.receive(like, r - 1).requires_grad_()
            made[i] = stage(entered[i])
            if r < p - 1:
                sendings.append(group.send(made[i], r + 1))
            else:
                made[i] = loss(made[i], wanted[i]) / m
                losses.append(made[i].detach())
        else:
            y, x = made.pop(i), entered.pop(i)  # from here on their memory is free
            y.backward(group.receive(like, r + 1) if r < p - 1 else None)
            if r > 0:
                sendings.append(group.send(x.grad, r - 1))
    for sending in sendings:
        sending.wait()
    return torch.stack(losses).sum() if losses else None


def add_tied_gradients(stage: Stage, group: Group) -> None:
    """Add up the gradients of a table that the first and the last stage both have.

    After it both have the gradient of the whole model, and the same step keeps their tables alike.
    Without a tied head nothing happens.

    Args:
        stage: of this process, after its backward passes.
        group: the processes, in the order of the stages.

    Raises:
        TypeError: for an argument of a wrong type.
        PeerLost: if a process is gone.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))]))
        >>> add_tied_gradients(Stage(model, 1, 0), Group())

    Source: [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(stage, Stage):
        raise TypeError(f"stage must be a Stage, got {type(stage).__name__}")
    check_group(group)
    if stage.table is None or group.size == 1:
        return
    other = group.size - 1 if group.rank == 0 else 0
    stage.table.grad += group.exchange(stage.table.grad, other, other)
