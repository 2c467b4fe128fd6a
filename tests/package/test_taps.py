"""Taps pass on what they get, and every kind of hook on them is called."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks

from tfbook.attention import Tap


def test_without_a_hook_the_tensor_itself_passes():
    x = torch.randn(3, 5)
    assert Tap()(x) is x
    assert not list(Tap().parameters()) and not Tap().state_dict()


def test_forward_hooks_read_and_replace():
    x, seen, tap = torch.randn(3, 5), [], Tap()
    handle = tap.register_forward_hook(lambda module, args, y: seen.append(y))
    assert tap(x) is x and seen[0] is x
    handle.remove()
    tap(x)
    assert len(seen) == 1
    tap.register_forward_hook(lambda module, args, y: 2 * y)
    assert torch.equal(tap(x), 2 * x)


def test_hooks_before_the_call_replace_too():
    x, tap = torch.randn(3, 5), Tap()
    tap.register_forward_pre_hook(lambda module, args: (-args[0],))
    assert torch.equal(tap(x), -x)


@pytest.mark.parametrize(
    "register", ["register_full_backward_hook", "register_full_backward_pre_hook"]
)
def test_backward_hooks_see_the_gradient(register):
    x, seen, tap = torch.randn(3, 5, requires_grad=True), [], Tap()
    getattr(tap, register)(lambda module, *gradients: seen.append(gradients[-1][0]))
    (3 * tap(x)).sum().backward()
    assert torch.equal(seen[0], torch.full((3, 5), 3.0))


def test_hooks_on_all_modules_are_called():
    seen, tap = [], Tap()
    handle = hooks.register_module_forward_hook(lambda module, args, y: seen.append(module))
    try:
        nn.Sequential(tap)(torch.randn(3))
    finally:
        handle.remove()
    assert tap in seen


def test_a_tap_compiles_without_a_break():
    compiled = torch.compile(nn.Sequential(Tap(), nn.Linear(5, 7)), backend="eager", fullgraph=True)
    assert compiled(torch.randn(3, 5)).shape == (3, 7)
