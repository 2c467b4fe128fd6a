"""Taps: places in a model where what passes can be read, or replaced.

A tap is a module that passes its input on, so that a forward hook on it sees the tensor by a name,
such as ``stack.blocks.3.mixer.z``. While nobody listens it costs next to nothing. Hooks are
registered before a model is compiled: ``torch.compile`` keeps those it has met.

Explained in: chapters/05_architecture_deeper, section "The residual stream".
"""

from torch import Tensor, nn
from torch.nn.modules import module as hooks

__all__ = ["Tap"]


class Tap(nn.Identity):
    """Pass on a tensor, and show it to whoever has registered a hook here.

    Example:
        >>> import torch
        >>> tap = Tap()
        >>> handle = tap.register_forward_hook(lambda module, args, x: 2 * x)
        >>> tap(torch.ones(2))
        tensor([2., 2.])

    Cost: without a hook a few dictionary look-ups; a module's usual call takes five times as long,
        and a model that decodes one token calls some hundred taps.

    Explained in: chapters/05_architecture_deeper, section "The residual stream".
    """

    @property
    def watched(self) -> bool:
        """Return whether a hook is registered here: then what passes has to be there to be seen."""
        return bool(
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return x, or what the hooks make of it."""
        if self.watched or hooks._has_any_global_hook():  # a profiler's, say, on every module
            return super().__call__(x)
        return x
