"""Several processes that train one model: each reads its share of a batch, and gradients are added.

``torchrun --nproc-per-node=2 script.py`` starts the script twice. Every process makes the same
model and reads the same batches; :meth:`Ranks.share` gives each its rows. Since a mean over tokens
is a sum divided by a count, both of which can be added up over processes, W of them compute what
one does, up to the order of the additions.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import atexit
import os
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, distributed, nn

from tfbook.blocks import Block

__all__ = ["DEVICES", "Ranks", "choose_device", "device_of", "move"]

DEVICES = ("auto", "cuda", "mps", "cpu")
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """The processes of a run, seen from one of them; a single one where torchrun started none.

    Attributes:
        rank: the number of this process.
        size: how many there are.
        cut: whether each holds a part of the weights only.

    Raises:
        ValueError: if the environment says so in something that is no number.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    def __init__(self):
        """Find the other processes, if torchrun says that there are some."""
        several = all(name in os.environ for name in ENVIRONMENT)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if several else ():
            if not os.environ.get(name, "0").isdecimal():
                raise ValueError(
                    f"{name} must be a number as torchrun sets it, got {os.environ[name]!r}"
                )
        if several and int(os.environ["WORLD_SIZE"]) > 1 and not distributed.is_initialized():
            on_gpu = torch.cuda.is_available()
            if on_gpu:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            # Both, for what is no tensor of the model is added up on the CPU.
            distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
            atexit.register(distributed.destroy_process_group)
        joined = distributed.is_initialized()
        self.rank = distributed.get_rank() if joined else 0
        self.size = distributed.get_world_size() if joined else 1
        self.cut = False

    def share(self, batch: object) -> tuple[object, float]:
        """Return this process's rows of a batch, and what part of all rows they are.

        Args:
            batch: a tensor (B, …), or a tuple, list or dictionary of such; B ≥ W.

        Raises:
            TypeError: if it is something else and there are several processes.
            ValueError: if there are fewer rows than processes, or tensors differ in their rows.
        """
        if self.size == 1:
            return batch, 1.0
        tensors = list(_tensors(batch))
        rows = {len(tensor) for tensor in tensors}
        if len(rows) != 1 or min(rows) < self.size:
            raise ValueError(
                f"the tensors of a batch must have the same number of rows, at least one for each "
                f"of {self.size} processes, got {', '.join(map(str, sorted(rows))) or 'no tensor'}"
            )
        (all_rows,) = rows
        start, stop = (all_rows * r // self.size for r in (self.rank, self.rank + 1))
        return _map(batch, lambda tensor: tensor[start:stop]), (stop - start) / all_rows

    def add(self, numbers: Sequence[float]) -> list[float]:
        """Return each number summed over the processes, in float64."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(total)
        return total.tolist()

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of the processes, those of all parameters in one message.

        A parameter without a gradient in one process counts as 0 there.
        """
        if self.size == 1:
            return
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        kinds = {(parameter.dtype, parameter.device) for parameter in wanted}
        for kind in sorted(kinds, key=str):
            grads = [p.grad for p in wanted if (p.dtype, p.device) == kind]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            distributed.all_reduce(flat)
            for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
                grad.copy_(part.view_as(grad))

    def same(self, model: nn.Module) -> None:
        """Give every process the weights and buffers of the first."""
        if self.size == 1:
            return
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                distributed.broadcast(tensor, src=0)

    def gather(self, thing: object) -> list[object]:
        """Return what each process holds, in every process."""
        if self.size == 1:
            return [thing]
        found = [None] * self.size
        distributed.all_gather_object(found, thing)
        return found

    def split(self, model: nn.Module) -> None:
        """Cut the weights of each block, and of what is left, into one part for each process.

        Whole weights of a block exist only while it computes; gradients and what the optimizer
        remembers are cut likewise, so that each process holds 1/W of them.

        Raises:
            ValueError: if there is only one process.

        Source: [zhao2023fsdp]
        """
        if self.size == 1:
            raise ValueError(
                "shard=True cuts weights into one part for each process, and there is one: "
                "start several with torchrun --nproc-per-node=2"
            )
        from torch.distributed.fsdp import fully_shard  # slow to import, and seldom wanted

        self.cut = True
        for module in model.modules():
            if isinstance(module, Block):
                fully_shard(module)
        fully_shard(model)

    def collect(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
        """Return the whole state of a model and of its optimizer, put together where it was cut."""
        if not self.cut:
            return model.state_dict(), optimizer.state_dict()
        from torch.distributed.checkpoint import state_dict as whole
        from torch.distributed.tensor import DTensor
        from torch.utils._pytree import tree_map

        def put_together(part: object) -> object:
            # One after the other: gloo may mix up messages of unlike size.
            return part.full_tensor().cpu() if isinstance(part, DTensor) else part

        parts = whole.get_state_dict(model, optimizer)
        return tuple(tree_map(put_together, each) for each in parts)

    def restore(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict, state: dict
    ) -> None:
        """Load what :meth:`collect` returned."""
        if not self.cut:
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
            return
        from torch.distributed.checkpoint import state_dict as whole
        from torch.distributed.tensor import DTensor, distribute_tensor
        from torch.utils._pytree import tree_map

        # Each cuts its own part, in one order: PyTorch's way for whole states exchanges messages
        # in an order that differs between processes.
        def cut(part: object, full: object) -> object:
            if not isinstance(part, DTensor):
                return full
            mesh, places = part.device_mesh, part.placements
            return distribute_tensor(full.to(part.device), mesh, places, src_data_rank=None)

        own = whole.get_state_dict(model, optimizer)
        weights, state = (tree_map(cut, *pair) for pair in zip(own, (weights, state), strict=True))
        whole.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)



def choose_device(name: str = "auto") -> torch.device:
    """Return where to compute: "auto" is CUDA where there is one, then MPS, then the CPU.

    Args:
        name: one of :data:`DEVICES`.

    Raises:
        ValueError: for another name, or a device that is not there.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    if name not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {name!r}")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    there["cpu"] = True
    if name == "auto":
        name = next(each for each in DEVICES if there.get(each))
    if not there[name]:
        have = ", ".join(each for each in DEVICES if there.get(each))
        raise ValueError(f"device {name} is not there: PyTorch finds {have}")
    return torch.device(name)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's weights lie.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    return next(model.parameters()).device


def move(batch: object, device: torch.device) -> object:
    """Return the batch with each of its tensors on a device; what holds none stays as it is.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    return _map(batch, lambda tensor: tensor.to(device))


def _tensors(batch):
    """Yield the tensors in a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for each in batch.values():
            yield from _tensors(each)
    elif isinstance(batch, list | tuple):
        for each in batch:
            yield from _tensors(each)
    elif batch is not None:
        raise TypeError(
            "several processes can share a batch of tensors, tuples, lists and dictionaries of "
            f"them, got {type(batch).__name__}"
        )


def _map(batch, change):
    """Return the batch with each tensor changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: _map(each, change) for key, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(each, change) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_map(each, change) for each in batch)
    return batch
