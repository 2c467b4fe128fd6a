"""A planner: which ways of splitting a training fit into memory, and how long a step would take.

It is a model of a model: products run at a share of the peak, everything beside them at the speed
of memory, messages cost latency and bandwidth, a pipeline has its bubble; these times are added.
Against published runs it is right to some ten per cent, which is enough to see which ways are worth
a try, and why.

Explained in: chapters/17_hardware, section "Many devices".
"""

from dataclasses import dataclass

from tfbook._checks import check_bool, check_list, check_number
from tfbook.costs import Machine
from tfbook.models import TransformerConfig
from tfbook.parallel.links import LINKS, Link
from tfbook.parallel.schedules import bubble_fraction
from tfbook.parallel.splits import (
    MIXED,
    RECOMPUTED,
    Bytes,
    Split,
    StageAccount,
    check_decoder,
    stage_accounts,
    step_traffic,
)

__all__ = ["Cluster", "Plan", "estimate", "plans"]

MOST = 2**20


@dataclass(frozen=True)
class Cluster:
    """Devices in nodes: fast ways inside of a node, slower ones between nodes.

    Args:
        machine: one device, with its memory.
        devices: how many in all, a multiple of ``per_node`` or fewer.
        per_node: how many in a node.
        inside: the way between devices of a node.
        between: the way that each device has to those of other nodes.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or a machine whose memory is not known.

    Example:
        >>> from tfbook.costs import MACHINES
        >>> Cluster(MACHINES["A100 80GB SXM"], 16).link(16).name
        'InfiniBand HDR'

    Source: [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    machine: Machine
    devices: int
    per_node: int = 8
    inside: Link = LINKS["NVLink 3"]
    between: Link = LINKS["InfiniBand HDR"]

    def __post_init__(self) -> None:
        """Check the parts."""
        if not isinstance(self.machine, Machine):
            raise TypeError(f"machine must be a Machine, got {type(self.machine).__name__}")
        if self.machine.memory is None:
            raise ValueError("machine must have a memory that is known, got None")
        check_number("devices", self.devices, 1, MOST, whole=True)
        check_number("per_node", self.per_node, 1, MOST, whole=True)
        for name in ("inside", "between"):
            if not isinstance(getattr(self, name), Link):
                raise TypeError(f"{name} must be a Link, got {type(getattr(self, name)).__name__}")
        if self.devices > self.per_node and self.devices % self.per_node:
            raise ValueError(
                f"devices must be a multiple of per_node = {self.per_node}, got {self.devices}"
            )

    def link(self, neighbours: int) -> Link:
        """Return the slowest way between so many devices that follow one another.

        Raises:
            TypeError: if it is no integer.
            ValueError: if it is below 1.
        """
        check_number("neighbours", neighbours, 1, whole=True)
        return self.inside if neighbours <= self.per_node else self.between


@dataclass(frozen=True)
class Plan:
    """A split with what it would need.

    Attributes:
        split: how the training is dealt out.
        weights, gradients, optimizer, activations: bytes on the device that holds most.
        bubble: the share of the time in which a stage waits for others.
        computing: seconds of a step in products and beside them, without waiting.
        tensor, pipeline, data: seconds of a step in messages along each axis.
        seconds: of a step, all of it.
        utilisation: FLOPs of forward and backward pass, recomputing not counted, as a share of
            what all devices could do in that time.
        sent: bytes that the busiest device sends in a step, by axis.

    Explained in: chapters/17_hardware, section "Many devices".
    """

    split: Split
    weights: float
    gradients: float
    optimizer: float
    activations: float
    bubble: float
    computing: float
    tensor: float
    pipeline: float
    data: float
    seconds: float
    utilisation: float
    sent: dict[str, float]

    @property
    def memory(self) -> float:
        """Return the bytes on the device that holds most."""
        return self.weights + self.gradients + self.optimizer + self.activations


def estimate(
    config: TransformerConfig,
    split: Split,
    cluster: Cluster,
    batch: int,
    n: int,
    *,
    each: Bytes = MIXED,
    efficiency: float = 0.7,
) -> Plan:
    """Estimate memory and time of one step of training.

    seconds = (m + (p − 1)/v) · (F / (e · peak) + bytes / bandwidth + tensor) + m · pipeline + data
    + update, for the slowest stage; nothing is taken to overlap.

    Args:
        config: of a decoder.
        split: how it is dealt out, over as many devices as the cluster has.
        cluster: where it runs.
        batch: sequences of a step.
        n: tokens of a sequence.
        each: bytes for each number.
        efficiency: e, the share of the peak that products of matrices reach. It is measured, not
            known: 0.7 is about what the runs below come to.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if something cannot be cut as the split wants it, or a number is out of range.

    Example:
        >>> from tfbook.costs import MACHINES
        >>> from tfbook.models import preset
        >>> cluster = Cluster(MACHINES["A100 80GB SXM"], 8)
        >>> plan = estimate(preset("llama-7b"), Split(data=8, zero=1), cluster, 256, 2048)
        >>> 0.4 < plan.utilisation < 0.7, plan.memory < 80e9
        (True, True)

    Source: [narayanan2021efficient], [korthikanti2022reducing], [touvron2023llama]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(cluster, Cluster):
        raise TypeError(f"cluster must be a Cluster, got {type(cluster).__name__}")
    check_number("efficiency", efficiency, above=0, high=1)
    accounts = stage_accounts(config, split, batch, n, each=each)
    if split.devices != cluster.devices:
        raise ValueError(
            f"split must be for the cluster's {cluster.devices} devices, got {split.devices}"
        )
    return _plan(3 * config.flops(n, batch), split, cluster, batch, each, efficiency, accounts)


def _plan(useful, split, cluster, batch, each, efficiency, accounts) -> Plan:
    machine, m = cluster.machine, split.micro_batches(batch)
    held = max((_held(account, split, each) for account in accounts), key=sum)
    once = [a.flops / (efficiency * machine.flops) + a.moved / machine.bandwidth for a in accounts]
    ways = {
        "tensor": cluster.link(split.tensor),
        "data": cluster.link(min(split.data * split.tensor, cluster.devices)),
        "pipeline": cluster.link(split.devices),
    }
    sent = [step_traffic(account, split, batch, each=each) for account in accounts]
    waits = [{name: ways[name].seconds(each_way[name]) for name in ways} for each_way in sent]
    slowest = max(range(len(accounts)), key=lambda i: m * once[i] + waits[i]["tensor"])
    bubble = bubble_fraction(split.pipeline, m, chunks=split.chunks)
    computing = m * once[slowest]
    tensor = waits[slowest]["tensor"]
    pipeline, data = (max(wait[name] for wait in waits) for name in ("pipeline", "data"))
    # The optimizer reads and writes what it holds.
    update = 2 * (held[2] + each.weight * accounts[slowest].weights) / machine.bandwidth
    seconds = (computing + tensor) / (1 - bubble) + pipeline + data + update
    return Plan(
        split, *held, bubble, computing, tensor, pipeline, data, seconds,
        useful / (cluster.devices * machine.flops * seconds),
        {name: max(each_way[name].bytes for each_way in sent) for name in ways},
    )  # fmt: skip


def _held(account: StageAccount, split: Split, each: Bytes) -> tuple[float, ...]:
    """Return the bytes of weights, gradients, optimizer and activations of a stage."""
    shares = [split.data if split.zero >= stage else 1 for stage in (3, 2, 1)]
    sizes = (each.weight, each.gradient, each.optimizer)
    state = (account.weights * size / by for size, by in zip(sizes, shares, strict=True))
    return *state, account.in_flight * account.kept + account.working


def plans(
    config: TransformerConfig,
    cluster: Cluster,
    batch: int,
    n: int,
    *,
    each: Bytes = MIXED,
    efficiency: float = 0.7,
    headroom: float = 0.1,
    micro_batches: list[int] | tuple[int, ...] = (1, 2, 4, 8),
    flash: bool = True,
) -> list[Plan]:
    """List the splits that fit into memory, the fastest first.

    Tensors are cut within a node only. Of ZeRO, stages 2 and 3 are not combined with a pipeline,
    which would send gradients or weights for every micro-batch.

    Args:
        config: of a decoder.
        cluster: where it runs.
        batch: sequences of a step.
        n: tokens of a sequence.
        each: bytes for each number.
        efficiency: the share of the peak that products of matrices reach.
        headroom: the share of the memory that is left for what is not counted.
        micro_batches: sizes of micro-batches to try.
        flash: whether attention never writes its weights.

    Returns:
        The plans; an empty list where nothing fits.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> from tfbook.costs import MACHINES
        >>> from tfbook.models import preset
        >>> best = plans(preset("llama-7b"), Cluster(MACHINES["A100 80GB SXM"], 8), 64, 2048)[0]
        >>> best.split.devices, best.memory < 72e9
        (8, True)

    Source: [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_decoder(config)
    if not isinstance(cluster, Cluster):
        raise TypeError(f"cluster must be a Cluster, got {type(cluster).__name__}")
    check_number("batch", batch, 1, 2**31, whole=True)
    check_number("n", n, 1, config.max_len or 2**31, whole=True)
    check_number("headroom", headroom, 0, below=1)
    check_bool("flash", flash)
    check_number("efficiency", efficiency, above=0, high=1)
    if not isinstance(each, Bytes):
        raise TypeError(f"each must be Bytes, got {type(each).__name__}")
    check_list("micro_batches", micro_batches)
    for size in micro_batches:
        check_number("a size of micro_batches", size, 1, 2**31, whole=True)
    found, counted, useful = [], {}, 3 * config.flops(n, batch)
    for split in _splits(config, cluster, batch, micro_batches, flash):
        # Accounts do not depend on replicas, but for how many micro-batches there are.
        m = split.micro_batches(batch)
        key = split.tensor, split.pipeline, split.micro_batch, split.recompute, m
        if key not in counted:
            counted[key] = stage_accounts(config, split, batch, n, each=each)
        plan = _plan(useful, split, cluster, batch, each, efficiency, counted[key])
        if plan.memory <= (1 - headroom) * cluster.machine.memory:
            found.append(plan)
    return sorted(found, key=lambda plan: plan.seconds)


def _splits(config, cluster, batch, micro_batches, flash):
    """Yield the splits that are worth an estimate."""
    devices, heads = cluster.devices, [layer.mixer.heads(config.d_model) for layer in config.layers]
    for tensor in _divisors(min(cluster.per_node, devices)):
        cuts = all(each.n_heads % tensor == each.n_kv_heads % tensor == 0 for each in heads)
        if not cuts or any(layer.ffn.d_ff % tensor for layer in config.layers):
            continue
        for pipeline in _divisors(devices // tensor) if devices % tensor == 0 else ():
            data = devices // tensor // pipeline
            if pipeline > config.n_layers:
                continue
            for micro in micro_batches:
                if batch % (data * micro):
                    continue
                for recompute in RECOMPUTED:
                    if flash and recompute == "attention":
                        continue  # nothing of it is kept anyway
                    for zero in range(4 if pipeline == 1 else 2) if data > 1 else (0,):
                        yield Split(
                            data, tensor, pipeline, zero, micro, sequence=tensor > 1,
                            recompute=recompute, flash=flash,
                        )  # fmt: skip


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
