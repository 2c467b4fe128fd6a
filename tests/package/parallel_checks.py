"""What several processes check together, each in its own: `launch(run, 2, ["collectives"])`.

A check gets the room `tfbook.parallel`, perhaps with a planted bug, and asserts; every process of a
launch runs the same one. One process, float64 and PyTorch's own ways are what it compares with.
"""

import contextlib
import copy
import functools
import importlib
import os
import signal
import sys
import time
import warnings

import fresh
import torch
from torch import distributed, nn
from torch.nn import functional

from tfbook import blocks, models
from tfbook.attention import attend

# What takes long to import and is forked for all.
PRELOADED = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "parallel_checks",
    "test_parallel_planning",
    "tfbook.parallel",
]
EXACT = {"rtol": 1e-9, "atol": 1e-11}
B, N = 6, 12
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def run(name, edits=None, arguments=()):
    """Run a check in this process, with the bugs planted that `edits` describe."""
    warnings.simplefilter("ignore", FutureWarning)
    if edits:
        plant(edits)
    checks = CHECKS
    if name not in checks:  # one of those that need no other process
        checks = vars(importlib.import_module("test_parallel_planning"))
    return checks[name](importlib.import_module("tfbook.parallel"), *arguments)


class Planted:
    """Finds a module's text with its edits made."""

    def __init__(self, edits):
        self.edits = edits

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.edits:
            return None
        file = str(fresh.ROOT.joinpath(*fullname.split(".")).with_suffix(".py"))
        loader = fresh.Copy(fullname, file, "tfbook", self.edits[fullname])
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


def plant(edits):
    """Let the room be imported anew, with bugs; this process has no other use."""
    for name in [each for each in sys.modules if each.startswith("tfbook.parallel")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Planted(edits))


def equal(found, wanted):
    torch.testing.assert_close(found, wanted, **EXACT)


def same(found, wanted, names=None):
    """Compare named tensors, all of them."""
    assert set(found) == set(wanted), set(found) ^ set(wanted)
    for name in found:
        torch.testing.assert_close(
            found[name], wanted[name], msg=lambda m, n=name: f"{n}: {m}", **EXACT
        )


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def decoder(*, llama=True, n_layers=3, tied=False):
    """A small model in float64 of which no weight is what it was initialised to."""
    m = models
    if llama:
        mixer = m.Attention(6, n_kv_heads=2, d_head=4, position=m.Rotary(), bias=False)
        layer = m.Layer(mixer, m.FFN(14, "swiglu", bias=False), norm=m.Norm("rms"))
        embedding = m.Tokens()
    else:
        layer = m.Layer(m.Attention(2), m.FFN(10, "gelu"))
        embedding = m.Tokens(m.Learned())
    config = m.TransformerConfig(
        22, 10, decoder=[layer] * n_layers, embedding=embedding, max_len=N,
        head=m.NextToken(tie_embeddings=tied),
    )  # fmt: skip
    model = m.build(config).double()
    drawing = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape, generator=drawing) + (weight.ndim == 1))
    return model


def texts():
    drawing = torch.Generator().manual_seed(5)
    return torch.randint(0, 22, (2, B, N), generator=drawing)


def mean_loss(logits, targets):
    return functional.cross_entropy(logits.mT, targets)


def one_process(model):
    """Return the loss of the whole batch in one process; gradients are in the model."""
    tokens, targets = texts()
    value = mean_loss(model(tokens)[0], targets)
    value.backward()
    return value.detach()


def of_gradients(model):
    """Return a copy of the model whose weights are the gradients: what cuts weights cuts these."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for own, weight in zip(other.parameters(), model.parameters(), strict=True):
            own.copy_(weight.grad)
    return other


def gradients(module):
    return {name: weight.grad for name, weight in module.named_parameters()}


def weights(module):
    return {name: weight.detach() for name, weight in module.named_parameters()}


def own_rows(group, *tensors):
    return [x.chunk(group.size)[group.rank] for x in tensors]


@check
def collectives(room):
    """Ours are PyTorch's; every process has the same bits, and sends what the formulas say."""
    group = room.Group()
    p, r = group.size, group.rank
    for x in (drawn(r, 7), drawn(r, 2, 5), torch.arange(11) * (r + 1), drawn(r, 1), drawn(r, 0)):
        before = x.clone()
        wanted, pieces = x.clone(), [torch.empty_like(x) for _ in range(p)]
        distributed.all_reduce(wanted)
        found = room.ring_all_reduce(x, group)
        torch.testing.assert_close(found, wanted)
        own = room.ring_reduce_scatter(x, group)
        torch.testing.assert_close(own, wanted.flatten().tensor_split(p)[r])
        distributed.all_gather(pieces, x)
        assert all(map(torch.equal, room.ring_all_gather(x, group), pieces))
        distributed.all_gather(pieces, found)
        assert all(torch.equal(each, found) for each in pieces), "other bits elsewhere"
        assert torch.equal(x, before), "the argument was changed"
    highest = drawn(r, 7)
    found = room.ring_all_reduce(highest, group, reduce=torch.maximum)
    distributed.all_reduce(highest, op=distributed.ReduceOp.MAX)
    assert torch.equal(found, highest)
    sent = [torch.full((3,), 10 * r + to) for to in range(p)]
    found = room.all_to_all(sent, group)
    assert [each[0].item() for each in found] == [10 * source + r for source in range(p)]
    uneven = [torch.full((to + 2 * r,), r) for to in range(p)]
    likes = [torch.empty(r + 2 * source, dtype=torch.long) for source in range(p)]
    found = room.all_to_all(uneven, group, likes=likes)
    assert [each.tolist() for each in found] == [[s] * (r + 2 * s) for s in range(p)]
    whole = drawn(r, 12 * p)
    pieces = whole.chunk(p)
    names = {
        "all_reduce": lambda: room.ring_all_reduce(whole, group),
        "reduce_scatter": lambda: room.ring_reduce_scatter(whole, group),
        "all_gather": lambda: room.ring_all_gather(pieces[0], group),
        "all_to_all": lambda: room.all_to_all(pieces, group),
    }
    if p in (2, 4):
        names["all_reduce_doubling"] = lambda: room.doubling_all_reduce(whole, group)
        wanted = whole.clone()
        distributed.all_reduce(wanted)
        torch.testing.assert_close(room.doubling_all_reduce(whole, group), wanted)
    for name, collective in names.items():
        group.forget()
        collective()
        assert group.traffic == room.collective_traffic(name, whole.nbytes, p), name


@check
def transposes(room):
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩, summed over the processes; and copies and sums are each other's."""
    group = room.Group()
    p, r = group.size, group.rank

    def product(a, b):
        return room.ring_all_reduce((a * b).sum(), group)

    maps = {
        "gather": (lambda x: room.gather(x, group, 1), (5, 3, 2), (5, 3 * p, 2)),
        "scatter_sum": (lambda x: room.scatter_sum(x, group, -2), (5, 3 * p, 2), (5, 3, 2)),
        "swap": (lambda x: room.swap(x, group, 0, 1), (2 * p, 3), (2, 3 * p)),
    }
    for name, (there, inner, outer) in maps.items():
        x, y = drawn(10 + r, *inner).requires_grad_(), drawn(20 + r, *outer)
        found = there(x)
        assert found.shape == y.shape, name
        found.backward(y)
        equal(product(found.detach(), y), product(x.detach(), x.grad))
    whole = [drawn(10 + rank, 5, 3, 2) for rank in range(p)]
    equal(room.gather(whole[r], group, 1), torch.cat(whole, 1))
    cut = [drawn(10 + rank, 5, 3 * p, 2) for rank in range(p)]
    equal(room.scatter_sum(cut[r], group, 1), sum(cut).chunk(p, 1)[r])
    x = drawn(1, 2, p).requires_grad_()
    for there, forward, backward in (
        (room.copy_to(x, group), x, lambda y: sum(y)),
        (room.sum_over(x, group), p * x, lambda y: y[r]),
        (room.scatter(x, group, 1), x[:, r : r + 1], lambda y: torch.cat(y, 1)),
    ):
        equal(there.detach(), forward.detach())
        ys = [drawn(30 + rank, *there.shape) for rank in range(p)]
        (found,) = torch.autograd.grad(there, x, ys[r])
        equal(found, backward(ys))


@check
def replicas(room):
    """Averaged gradients are those of one process, and those of DistributedDataParallel."""
    group = room.Group()
    whole, own, ddp = (decoder(llama=False, tied=True) for _ in range(3))
    one_process(whole)
    if group.rank:  # what differs is made alike
        nn.init.normal_(own.embed.weight)
    room.same_weights(own, group)
    tokens, targets = own_rows(group, *texts())
    for model in (own, nn.parallel.DistributedDataParallel(ddp)):
        mean_loss(model(tokens)[0], targets).backward()
    group.forget()
    room.average_gradients(own.parameters(), group, bucket_bytes=3000)
    same(gradients(own), gradients(whole))
    same(gradients(own), gradients(ddp))
    size = sum(weight.nbytes for weight in own.parameters())
    sent = room.collective_traffic("all_reduce", size, group.size).bytes
    assert abs(group.traffic.bytes - sent) <= 8 * 2 * 99  # what a bucket leaves over
    # Shares of other sizes: weighted by their rows, their mean is the mean over all.
    uneven = decoder(llama=False, tied=True)
    cuts = [0] + [B - group.size + rank for rank in range(1, group.size)] + [B]
    tokens, targets = (x[cuts[group.rank] : cuts[group.rank + 1]] for x in texts())
    mean_loss(uneven(tokens)[0], targets).backward()
    room.average_gradients(uneven.parameters(), group, weight=len(tokens) / B)
    same(gradients(uneven), gradients(whole))


def trained(model, optimizer, tokens, targets):
    for _ in range(3):
        optimizer.zero_grad() if hasattr(optimizer, "zero_grad") else None
        mean_loss(model(tokens)[0], targets).backward()
        optimizer.step()


make_adamw = functools.partial(torch.optim.AdamW, lr=0.03, weight_decay=0.1)


@check
def zero(room):
    """Three steps of AdamW leave the weights of one process, and a p-th of the state in each."""
    group = room.Group()
    whole = decoder(tied=True)
    trained(whole, make_adamw(whole.parameters()), *texts())
    numbers = sum(weight.numel() for weight in whole.parameters())
    padded = sum(-(-weight.numel() // group.size) for weight in whole.parameters())
    for stage in (1, 2):
        model = decoder(tied=True)
        optimizer = room.ZeroOptimizer(model.parameters(), make_adamw, group, stage=stage)
        tokens, targets = own_rows(group, *texts())
        mean_loss(model(tokens)[0], targets).backward()
        kept = sum(weight.grad is not None for weight in model.parameters())
        assert kept == (0 if stage == 2 else len(list(model.parameters())))
        group.forget()
        optimizer.step()
        # Stage 2 has added up its gradients before.
        steps = group.size - 1
        assert group.traffic.bytes == 8 * padded * steps * (1 if stage == 2 else 2)
        assert padded * group.size < 1.1 * numbers
        model = decoder(tied=True)
        optimizer = room.ZeroOptimizer(model.parameters(), make_adamw, group, stage=stage)
        trained(model, optimizer, tokens, targets)
        same(weights(model), weights(whole))
        state = optimizer.optimizer.state.values()
        assert sum(each["exp_avg"].numel() for each in state) == padded


@check
def sharded(room):
    """ZeRO 3: whole weights only while a block computes; gradients of one process and of FSDP."""
    from torch.distributed.fsdp import fully_shard

    group = room.Group()
    whole, fsdp = decoder(llama=False, tied=True), decoder(llama=False, tied=True)
    wanted = one_process(whole)
    model = room.shard(decoder(llama=False, tied=True), group)
    blocks = list(model.module.stack.blocks)
    assert all(isinstance(block, room.Sharded) for block in blocks)
    held = sum(piece.numel() for piece in model.parameters())
    numbers = sum(weight.numel() for weight in whole.parameters())
    assert numbers <= held * group.size < numbers + group.size * (len(blocks) + 1)
    seen = []
    watch = [lambda *_: seen.append([block.is_whole for block in blocks])]
    blocks[1].module.resid_mid.register_forward_hook(watch[0])
    tokens, targets = own_rows(group, *texts())
    group.forget()
    value = mean_loss(model(tokens)[0], targets)
    assert seen == [[False, True, False]]
    assert not any(each.is_whole for each in (*blocks, model))
    value.backward()
    assert not any(each.is_whole for each in (*blocks, model))
    assert [each.gathered for each in (*blocks, model)] == [2] * (len(blocks) + 1)
    assert group.traffic.bytes == 3 * (group.size - 1) * held * 8
    split, each = (
        room.Split(group.size, zero=3, micro_batch=B // group.size),
        room.Bytes(8, 8, 8, 8),
    )
    (account,) = room.stage_accounts(whole.config, split, B, N, each=each)
    planned = room.step_traffic(account, split, B, each=each)["data"].bytes
    assert 0 <= group.traffic.bytes - planned <= 3 * 8 * group.size * (len(blocks) + 1)  # padding
    equal(room.ring_all_reduce(value.detach(), group) / group.size, wanted)
    # Its gradients are a line in the order of the weights.
    for piece, part in zip((*blocks, model), (*whole.stack.blocks, whole), strict=True):
        line = torch.cat(room.ring_all_gather(piece.piece.grad, group))
        inside = set() if part is not whole else set(whole.stack.blocks.parameters())
        own = [x.grad.flatten() for x in part.parameters() if x not in inside]
        equal(line[: sum(map(len, own))], torch.cat(own))
    for block in fsdp.stack.blocks:
        fully_shard(block)
    fully_shard(fsdp)
    mean_loss(fsdp(tokens)[0], targets).backward()
    found = {name: weight.grad.full_tensor() for name, weight in fsdp.named_parameters()}
    same(found, gradients(whole))
    before = group.traffic
    with torch.no_grad():
        model(tokens)
    assert group.traffic.bytes - before.bytes == (group.size - 1) * held * 8


@check
def tensors(room):
    """A model that is cut has the loss and the gradients of one that is not; its bytes counted."""
    for llama, tied, sequence in ((True, False, False), (False, True, False), (False, True, True),
                                  (True, False, True)):  # fmt: skip
        group = room.Group()
        whole = decoder(llama=llama, tied=tied)
        wanted, (tokens, targets) = one_process(whole), texts()
        model = room.split_model(whole, group, sequence=sequence)
        for weight in model.parameters():
            weight.grad = None
        group.forget()
        logits, _ = model(tokens)
        assert logits.shape == (B, N, 22 // group.size)
        value = room.split_loss(logits, targets, group)
        equal(value.detach(), wanted)
        value.backward()
        same(gradients(model), weights(room.split_model(of_gradients(whole), group)))
        split = room.Split(tensor=group.size, sequence=sequence, micro_batch=B)
        (account,) = room.stage_accounts(whole.config, split, B, N, each=room.Bytes(8, 8, 8, 8))
        assert sum(x.numel() for x in model.parameters()) == account.weights
        norms = 8 * 2 * 99 * sequence  # gradients of what is not cut are added up apart
        assert 0 <= group.traffic.bytes - account.tensor.bytes <= norms + 1e4 * sequence
        if not sequence:
            assert group.traffic == account.tensor
    # In pieces, with states, as generation reads it.
    start, state = model(tokens[:, :8])
    rest, _ = model(tokens[:, 8:], state)
    equal(torch.cat([start, rest], 1), model(tokens)[0])


@check
def tensors_of_torch(room):
    """The same plan in DTensor: columns, rows, heads, and the loss over a cut vocabulary."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    group, model = room.Group(), decoder(llama=False)
    mesh, block = init_device_mesh("cpu", (group.size,)), model.stack.blocks[0]
    theirs, x = copy.deepcopy(block), drawn(3, B, N, 10).requires_grad_()
    ours = copy.deepcopy(block)
    ours.mixer = room.split_attention(block.mixer, group)
    ours.ffn = room.split_ffn(block.ffn, group)
    theirs.mixer.n_heads //= group.size
    theirs.mixer.n_kv_heads //= group.size
    plan = dict.fromkeys(("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"), ColwiseParallel())
    plan |= {"mixer.out_proj": RowwiseParallel(), "ffn.up_proj": ColwiseParallel()}
    parallelize_module(theirs, mesh, plan | {"ffn.down_proj": RowwiseParallel()})
    slope, found = drawn(4, B, N, 10), []
    for each in (ours, theirs):
        y, _ = each(x)
        found.append((y.detach(), *torch.autograd.grad(y, x, slope, retain_graph=True)))
        y.backward(slope)
    equal(found[0], found[1])
    mine = gradients(ours)
    for name, weight in theirs.named_parameters():
        part = name.replace("mixer.", "mixer.part.").replace("ffn.", "ffn.part.")
        part = name if name not in mine and part not in mine else part
        part = part if part in mine else name.replace("out_proj.", "").replace("down_proj.", "")
        grad = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
        if name.endswith(("out_proj.bias", "down_proj.bias")):
            grad = weight.grad.full_tensor()
        equal(mine[part], grad)
    logits, targets = drawn(6, B * N, 22), texts()[1].flatten()
    own = logits.chunk(group.size, -1)[group.rank].clone().requires_grad_()
    room.split_loss(own, targets, group).backward()
    theirs = DTensor.from_local(own.detach(), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        value = functional.cross_entropy(theirs, targets)
        value.backward()
    equal(own.grad, theirs.grad.to_local())


@check
def rings(room):
    """Attention over rows that are cut is attention over all; so are its gradients."""
    group = room.Group()
    p, r, size = group.size, group.rank, 4 * group.size
    whole = [
        drawn(seed, 2, 2 * p, size, d).requires_grad_() for seed, d in ((1, 3), (2, 3), (3, 5))
    ]
    slope = drawn(4, 2, 2 * p, size, 5)
    for causal, order, scale in (
        (False, "plain", None),
        (True, "plain", 0.7),
        (True, "zigzag", None),
    ):
        rows = room.rows_of(size, p, r, order=order)
        out = attend(*whole, causal=causal, scale=scale)
        wanted = torch.autograd.grad(out, whole, slope)
        own = [x.detach()[..., rows, :].requires_grad_() for x in whole]
        group.forget()
        found = room.attend_ring(*own, group, causal=causal, order=order, scale=scale)
        each = own[1].nbytes + own[2].nbytes
        assert group.traffic == room.Traffic(p - 1, (p - 1) * each)
        equal(found.detach(), out.detach()[..., rows, :])
        found.backward(slope[..., rows, :])
        for x, y in zip(own, wanted, strict=True):
            equal(x.grad, y[..., rows, :])
        assert group.traffic.bytes == (3 * p - 2) * each if p > 1 else True
        if order == "zigzag":
            continue
        for x in own:
            x.grad = None
        group.forget()
        found = room.attend_ulysses(*own, group, causal=causal, scale=scale)
        equal(found.detach(), out.detach()[..., rows, :])
        bytes = sum(x.nbytes for x in (*own, found)) * (p - 1) // p
        assert group.traffic == room.Traffic(4 * (p - 1), bytes)
        found.backward(slope[..., rows, :])
        for x, y in zip(own, wanted, strict=True):
            equal(x.grad, y[..., rows, :])


@check
def pipelines(room):
    """Both schedules have the loss and the gradients of one process, and send what is counted."""
    group = room.Group()
    p, r = group.size, group.rank
    for tied in (False, True):
        whole = decoder(llama=not tied, tied=tied, n_layers=4)
        wanted, (tokens, targets) = one_process(whole), texts()
        parts = room.Stage(of_gradients(whole), p, r)
        for make in (room.gpipe, room.one_forward_one_backward):
            for m in (1, 3, 6):
                stage = room.Stage(whole, p, r)
                group.forget()
                value = room.run_pipeline(
                    stage, tokens, targets, mean_loss, group, micro_batches=m, schedule=make(p, m)
                )
                split = room.Split(pipeline=p, micro_batch=B // m)
                each = room.Bytes(8, 8, 8, 8)
                account = room.stage_accounts(whole.config, split, B, N, each=each)[r]
                assert sum(x.numel() for x in stage.parameters()) == account.weights
                assert group.traffic == room.step_traffic(account, split, B, each=each)["pipeline"]
                room.add_tied_gradients(stage, group)
                assert (value is None) == (r < p - 1)
                if value is not None:
                    equal(value, wanted)
                found, each = gradients(stage), weights(parts)
                if tied and p > 1 and (r in (0, p - 1)):
                    equal(found["table"], whole.embed.weight.grad)
                same(found, each)


@check
def pipelines_of_torch(room):
    """PyTorch's pipeline runs our stages to the same loss and gradients."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    group, whole = room.Group(), decoder(n_layers=4)
    wanted, (tokens, targets) = one_process(whole), texts()
    p, r, parts = group.size, group.rank, room.Stage(of_gradients(whole), group.size, group.rank)
    for make in (ScheduleGPipe, Schedule1F1B):
        own = room.Stage(whole, p, r)
        stage = PipelineStage(own, r, p, torch.device("cpu"))
        schedule, losses = make(stage, 3, loss_fn=mean_loss), []
        given = {"target": targets, "losses": losses} if r == p - 1 else {}
        schedule.step(*[tokens] * (r == 0), **given)
        if losses:
            equal(sum(losses).detach() / 3, wanted)
        same(gradients(own), weights(parts))


@check
def experts(room):
    """Rows that travel to their experts come back as one process would have made them."""
    group = room.Group()
    p, r = group.size, group.rank
    for router, n_shared in (("top_k", 0), ("sigmoid", 1)):
        torch.manual_seed(3)
        choices = {"kind": "swiglu", "router": router, "n_shared": n_shared}
        whole = blocks.MixtureOfExperts(7, 5, 2 * p, 2, **choices).double()
        x, slope = drawn(1, p, 11, 7), drawn(2, p, 11, 7)
        x[:, :8] += 3 * drawn(5, 7)  # many rows that choose alike
        x.requires_grad_()
        y = whole(x)
        y.backward(slope)
        moe, own = room.SplitExperts(whole, group), x.detach()[r].clone().requires_grad_()
        for weight in moe.parameters():
            weight.grad = None
        group.forget()
        found = moe(own)
        assert sum(moe.heard) == sum(whole.routing.load.view(p, 2)[r].tolist())
        away = moe.routing.chosen.flatten() // 2 != r
        counts = 2 * 8 * (p - 1)  # of rows, told before
        back = sum(count for source, count in enumerate(moe.heard) if source != r)
        assert group.traffic.bytes == 8 * 7 * (int(away.sum()) + back) + counts
        equal(found.detach(), y.detach()[r])
        found.backward(slope[r])
        equal(own.grad, x.grad[r])
        parts = room.SplitExperts(of_gradients(whole), group)
        same(gradients(moe.experts), weights(parts.experts))
        for name in ("router", "shared"):
            module, part = getattr(moe, name), getattr(parts, name)
            for weight, wanted in zip(
                () if module is None else module.parameters(),
                () if part is None else part.parameters(),
                strict=True,
            ):
                equal(room.ring_all_reduce(weight.grad, group), wanted.detach())


@check
def grids(room):
    """Two replicas of a model in two parts: data and tensor parallelism in one step."""
    grid = room.Grid(data=2, tensor=2)
    rank = distributed.get_rank()
    assert grid.place == {"pipeline": 0, "data": rank // 2, "tensor": rank % 2}
    assert grid.group("tensor").ranks == ((0, 1), (2, 3))[rank // 2]
    assert grid.group("data").ranks == ((0, 2), (1, 3))[rank % 2]
    assert grid.group("pipeline").ranks == (rank,)
    whole, (data, parts) = decoder(), (grid.group("data"), grid.group("tensor"))
    wanted, (tokens, targets) = one_process(whole), texts()
    model = room.split_model(whole, parts)
    for weight in model.parameters():
        weight.grad = None
    tokens, targets = own_rows(data, tokens, targets)
    value = room.split_loss(model(tokens)[0], targets, parts)
    value.backward()
    room.average_gradients(model.parameters(), data)
    equal(room.ring_all_reduce(value.detach(), data) / 2, wanted)
    same(gradients(model), weights(room.split_model(of_gradients(whole), parts)))


@check
def sums(room, x):
    """Return what a launch brings home."""
    group = room.Group()
    return {"rank": group.rank, "sum": room.ring_all_reduce(x * (group.rank + 1), group)}


@check
def one_dies(room, folder):
    """One process is killed while the others wait for it."""
    group = room.Group(patience=120)
    note(folder, group.rank)
    if group.rank == 1:
        while len(os.listdir(folder)) < 3:  # all have begun
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    room.ring_all_reduce(torch.ones(3), group)


@check
def one_is_lost(room):
    """A process hears in words that another one has gone."""
    group = room.Group(patience=20)
    if group.rank == 1:
        os._exit(0)
    with contextlib.suppress(room.PeerLost):
        time.sleep(0.3)
        room.ring_all_reduce(torch.ones(3), group)
        return "nothing was noticed"
    return "PeerLost"


@check
def one_is_silent(room, patience):
    """One process does something else, and the others do not wait for ever."""
    group = room.Group(patience=patience)
    if group.rank == 1:
        time.sleep(100)
    room.ring_all_reduce(torch.ones(3), group)


@check
def all_sleep(room, folder):
    note(folder, room.Group().rank)
    time.sleep(300)


@check
def one_raises(room):
    if room.Group().rank == 1:
        raise ValueError("of no use")
    time.sleep(100)


def note(folder, rank):
    """Leave the number of this process where the test finds it."""
    with open(os.path.join(folder, str(rank)), "w") as file:
        file.write(str(os.getpid()))


def launching(folder, seconds):
    """Be a program that launches; for a test that kills it."""
    import tfbook.parallel as room

    room.launch(run, 2, ["all_sleep", None, [folder]], seconds=seconds, modules=["parallel_checks"])


if __name__ == "__main__":  # torchrun parallel_checks.py collectives tensors …
    from tfbook.training import Ranks

    Ranks()
    for name in sys.argv[1:]:
        run(name)
    # In one write: both processes share the output, and what is written in pieces is mixed.
    os.write(1, f"passed {' '.join(sys.argv[1:])}\n".encode())
