"""What one device holds, computes and sends when a training is split in a given way.

A :class:`Split` says how a decoder, its batch and its state are dealt out; the functions here count
numbers, FLOPs and messages of each pipeline stage from the account of the model's parts,
:meth:`tfbook.models.TransformerConfig.parts`. The counts of weights and messages are those of the
modules of this room.

Explained in: chapters/17_hardware, section "Many devices".
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from tfbook._checks import check_bool, check_choice, check_number, chosen_names
from tfbook.models import FFN, Attention, Part, TransformerConfig
from tfbook.parallel.links import Traffic, collective_traffic
from tfbook.parallel.pipeline import layers_of

__all__ = ["RECOMPUTED", "Bytes", "Split", "StageAccount", "stage_accounts", "step_traffic"]

#: What a backward pass may compute again, see :class:`tfbook.parallel.Split`.
RECOMPUTED = ("none", "attention", "full")
MOST = 2**31
PROJECTIONS = ("q", "k", "v", "out")
# Parts of which tensor parallelism cuts what they compute and keep, by the end of their names.
CUT = ("q_proj", "k_proj", "v_proj", "scores", "z", "out_proj", "gate_proj", "up_proj", "down_proj")
CUT_INPUTS = ("scores", "z", "out_proj", "down_proj", "q_norm", "k_norm")


class Bytes(NamedTuple):
    """How many bytes a training holds for each number.

    The usual ones are those of mixed precision with Adam: weights, gradients and activations of two
    bytes, and for each weight a copy in float32 and two moments.

    Attributes:
        weight: of a weight.
        gradient: of its gradient.
        optimizer: of what the optimizer holds for it.
        activation: of a number that is computed, kept or sent.

    Source: [rajbhandari2020zero]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    weight: int = 2
    gradient: int = 2
    optimizer: int = 12
    activation: int = 2


MIXED = Bytes()


@dataclass(frozen=True)
class Split:
    """How a training is dealt out over data · tensor · pipeline devices.

    Args:
        data: replicas, each with its share of the batch.
        tensor: parts of each layer.
        pipeline: stages.
        zero: what replicas hold only a part of: 0 nothing, 1 the optimizer's state, 2 gradients
            too, 3 weights too.
        micro_batch: sequences that pass a stage at once.
        chunks: pieces of the model of each stage, see :func:`tfbook.parallel.bubble_fraction`.
        sequence: whether rows are cut too where tensors are not, see
            :func:`tfbook.parallel.split_model`.
        recompute: what the backward pass computes again instead of keeping it: "none",
            "attention" (scores and weights) or "full" (all but what enters a layer).
        flash: whether attention never writes its weights.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range or an unknown name.

    Example:
        >>> Split(data=4, tensor=8, pipeline=2).devices
        64

    Source: [narayanan2021efficient], sequence and recompute: [korthikanti2022reducing]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    micro_batch: int = 1
    chunks: int = 1
    sequence: bool = False
    recompute: str = "none"
    flash: bool = True

    def __post_init__(self) -> None:
        """Check the choices."""
        for name in ("data", "tensor", "pipeline", "micro_batch", "chunks"):
            check_number(name, getattr(self, name), 1, MOST, whole=True)
        check_number("zero", self.zero, 0, 3, whole=True)
        check_bool("sequence", self.sequence)
        check_bool("flash", self.flash)
        check_choice("recompute", self.recompute, RECOMPUTED)
        if self.chunks > 1 and self.pipeline == 1:
            raise ValueError(f"chunks are for several stages, got {self.chunks} and one stage")

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return self.data * self.tensor * self.pipeline

    def micro_batches(self, batch: int) -> int:
        """Return how many micro-batches of a batch each replica has.

        Raises:
            TypeError: if batch is no integer.
            ValueError: if it cannot be dealt out.
        """
        check_number("batch", batch, 1, MOST, whole=True)
        each = self.data * self.micro_batch
        if batch % each:
            raise ValueError(
                f"batch must be a multiple of data · micro_batch = {each}, got {batch}"
            )
        return batch // each


class StageAccount(NamedTuple):
    """What one device of a stage holds and does.

    Attributes:
        weights: numbers of the weights that the stage needs, before ZeRO deals them out.
        flops: of one micro-batch forward and backward, what is recomputed included.
        moved: bytes that steps beside the products read and write for one micro-batch.
        kept: bytes that one micro-batch keeps for the backward pass.
        working: bytes beside these, while one micro-batch is worked on.
        in_flight: of how many micro-batches activations are kept at most.
        tensor: messages of one micro-batch within a layer.
        pipeline: messages of one micro-batch to other stages.

    Explained in: chapters/17_hardware, section "Many devices".
    """

    weights: int
    flops: float
    moved: float
    kept: float
    working: float
    in_flight: float
    tensor: Traffic
    pipeline: Traffic


def stage_accounts(
    config: TransformerConfig, split: Split, batch: int, n: int, *, each: Bytes = MIXED
) -> list[StageAccount]:
    """Account for one device of each stage.

    FLOPs are those of the products, three times the forward pass and what is recomputed. Bytes that
    are moved beside them are estimated from what is kept: each number that a layer keeps was
    written and read once forward, and read, with its gradient read and written, backward: 5 passes,
    and 2 more where it is computed again.

    Args:
        config: of a decoder of :class:`tfbook.models.Attention` and :class:`tfbook.models.FFN`.
        split: how it is dealt out.
        batch: sequences of a step, over all replicas.
        n: tokens of a sequence.
        each: bytes for each number.

    Returns:
        One account for each stage.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if something cannot be cut as the split wants it.

    Example:
        >>> from tfbook.models import preset
        >>> gpt3 = preset("gpt3-175b")
        >>> accounts = stage_accounts(gpt3, Split(tensor=8, pipeline=8, micro_batch=1), 64, 2048)
        >>> f"{max(a.weights for a in accounts) * 18 / 1e9:.0f} GB"  # with gradients in float32
        '51 GB'

    Source: [korthikanti2022reducing], [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(config, split, n, each)
    m, t, p = split.micro_batches(batch), split.tensor, split.pipeline
    size = {"bytes_per_number": each.activation, "mask_bytes": 1}
    short = replace(config, decoder=tuple(dict.fromkeys(config.decoder)))  # equal layers once
    parts = short.parts(n, split.micro_batch, stores_weights=not split.flash, **size)
    lean = parts  # what is kept where attention is computed again
    if split.recompute == "attention":
        lean = short.parts(n, split.micro_batch, stores_weights=False, **size)
    once = {
        layer: _Layer(short, split, n, i, parts, lean, each)
        for i, layer in enumerate(short.decoder)
    }
    layers = [once[layer] for layer in config.decoder]
    rows = split.micro_batch * n * config.d_model * each.activation  # of one whole stream
    ends = [part for part in parts if ".blocks." not in part.name]
    found = []
    for stage in range(p):
        own = [layers[i] for i in layers_of(config.n_layers, p, stage)]
        first, last = stage == 0, stage == p - 1
        weights = sum(layer.weights for layer in own)
        flops = sum(layer.flops for layer in own)
        kept, working = sum(layer.kept for layer in own), max(layer.working for layer in own)
        sums = sum(layer.sums for layer in own)
        for part in ends:
            at_end = part.name in ("head", "stack.final_norm")
            if (at_end and last) or (not at_end and first):
                weights += _cut(part.parameters, t) if part.name in ENDS_CUT else part.parameters
                flops += 3 * part.flops / t
                kept += part.saved / (t if split.sequence else 1)
        tensor = Traffic(0, 0)
        if last:
            tied = config.head.tie_embeddings and not first
            weights += _cut(config.vocab_size * config.d_model, t) if tied else 0
            logits = split.micro_batch * n * _cut(config.vocab_size, t)
            working = max(working, 2 * max(4, each.activation) * logits)
        if t > 1:
            tensor = _times(collective_traffic("all_reduce", rows, t), sums + first + last)
            if last:  # maximum, sum and right score of each place
                places = split.micro_batch * n * each.activation
                tensor += _times(collective_traffic("all_reduce", places, t), 3)
        turns = split.chunks * (2 if split.chunks > 1 else (not first) + (not last))
        flight = min(m, p - stage) + (min(m, p - 1) / split.chunks if split.chunks > 1 else 0)
        account = StageAccount(
            weights, flops, sum(layer.moved for layer in own), kept, working, flight, tensor,
            Traffic(turns, turns * rows),
        )  # fmt: skip
        found.append(account)
    return found


ENDS_CUT = ("embed", "head")


class _Layer:
    """What one device holds and does of one layer."""

    def __init__(self, config, split, n, number, parts, lean, each):
        t, prefix = split.tensor, f"stack.blocks.{number}."
        layer = config.layers[number]
        self.weights, self.flops, saved, self.kept = 0, 0.0, 0.0, 0.0
        for part, less in zip(parts, lean, strict=True):
            if not part.name.startswith(prefix):
                continue
            name = part.name.rsplit(".", 1)[-1]
            self.weights += self._held(part, name, layer, config.d_model, t)
            again = split.recompute == "full" or (
                split.recompute == "attention" and name in ("scores", "z")
            )
            self.flops += (3 + again) * part.flops / t
            whole = split.micro_batch * n * config.d_model * (layer.dropout > 0)
            whole *= name in ("out_proj", "down_proj")  # masks of dropout of the whole rows
            saved += self._share(part.saved, whole, name, split)
            self.kept += self._share(less.saved, whole, name, split)
        self.moved = (5 + 2 * (split.recompute == "full")) * saved
        self.working = 0.0
        if split.recompute == "attention":
            self.working = saved - self.kept
        elif split.recompute == "full":
            self.working = saved
            self.kept = split.micro_batch * n * config.d_model * each.activation
            self.kept /= t if split.sequence else 1
        self.sums = 4 + 2 * (split.recompute == "full")

    @staticmethod
    def _held(part: Part, name: str, layer, d_model: int, t: int) -> int:
        if name not in CUT:
            return part.parameters
        if name == "out_proj":
            whole = d_model * ("out" in chosen_names("bias", layer.mixer.bias, PROJECTIONS))
        else:
            whole = d_model * (name == "down_proj" and layer.ffn.bias)
        return _cut(part.parameters - whole, t) + whole

    @staticmethod
    def _share(saved: float, whole: float, name: str, split: Split) -> float:
        """Return what of the bytes that a part keeps is on one device."""
        if split.sequence:
            return saved / split.tensor
        return (saved - whole) / split.tensor + whole if name in CUT_INPUTS else saved


def step_traffic(
    account: StageAccount, split: Split, batch: int, *, each: Bytes = MIXED
) -> dict[str, Traffic]:
    """Count what one device sends in a step, by the axis along which it sends.

    Gradients are summed once a step; with ZeRO 2, which keeps no others', after each micro-batch.
    With ZeRO 3 weights are gathered for each pass of each micro-batch as well.

    Args:
        account: of the device's stage.
        split: how the training is dealt out.
        batch: sequences of a step.
        each: bytes for each number.

    Returns:
        :class:`tfbook.parallel.Traffic` for "tensor", "pipeline" and "data".

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if the batch cannot be dealt out.

    Example:
        >>> from tfbook.models import preset
        >>> split = Split(data=2)
        >>> (account,) = stage_accounts(preset("gpt2"), split, 2, 1024)
        >>> round(step_traffic(account, split, 2)["data"].bytes / account.weights, 6)
        2.0

    Source: [rajbhandari2020zero]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(account, StageAccount):
        raise TypeError(f"account must be a StageAccount, got {type(account).__name__}")
    _check_split(split, each)
    m, d = split.micro_batches(batch), split.data
    scattered = collective_traffic("reduce_scatter", account.weights * each.gradient, d)
    gathered = collective_traffic("all_gather", account.weights * each.weight, d)
    if split.zero == 3:  # for each micro-batch forward, backward and the gradients
        data = _times(gathered + gathered + scattered, m)
    elif split.zero == 2:  # nobody keeps the gradients of the others until the last micro-batch
        data = _times(scattered, m) + gathered
    elif split.zero:
        data = scattered + gathered
    else:
        data = collective_traffic("all_reduce", account.weights * each.gradient, d)
    return {
        "tensor": _times(account.tensor, m),
        "pipeline": _times(account.pipeline, m),
        "data": data,
    }


def _times(traffic: Traffic, times: float) -> Traffic:
    return Traffic(traffic.messages * times, traffic.bytes * times)


def _cut(number: int, t: int) -> int:
    """Return a t-th, rounded up: what cannot be cut evenly is filled up."""
    return -(-number // t)


def _check_split(split: object, each: object) -> None:
    if not isinstance(split, Split):
        raise TypeError(f"split must be a Split, got {type(split).__name__}")
    if not isinstance(each, Bytes):
        raise TypeError(f"each must be Bytes, got {type(each).__name__}")
    for name, value in each._asdict().items():
        check_number(f"bytes of {name}", value, 1, 64, whole=True)


def _check(config: object, split: object, n: object, each: object) -> None:
    check_decoder(config)
    _check_split(split, each)
    check_number("n", n, 1, config.max_len or MOST, whole=True)
    if split.pipeline > config.n_layers:
        raise ValueError(
            f"pipeline must be at most the {config.n_layers} layers, got {split.pipeline}"
        )
    for layer in config.decoder:
        heads = layer.mixer.heads(config.d_model)
        sizes = {"n_heads": heads.n_heads, "n_kv_heads": heads.n_kv_heads, "d_ff": layer.ffn.d_ff}
        for name, value in sizes.items():
            if value % split.tensor:
                raise ValueError(f"tensor must divide {name} = {value}, got {split.tensor}")


def check_decoder(config: object) -> None:
    """Raise unless a config is that of a decoder whose parts can be cut.

    Raises:
        TypeError: if it is no config, or a part is of another kind.
        ValueError: if it is no decoder.
    """
    if not isinstance(config, TransformerConfig):
        raise TypeError(f"config must be a TransformerConfig, got {type(config).__name__}")
    if config.kind != "decoder":
        raise ValueError(f"config must be of kind 'decoder', got {config.kind!r}")
    for layer in config.decoder:
        for part, kind in ((layer.mixer, Attention), (layer.ffn, FFN)):
            if not isinstance(part, kind):
                raise TypeError(
                    f"config must be of {kind.__name__} parts, got {type(part).__name__}"
                )
