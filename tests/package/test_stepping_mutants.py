"""Checks of the fast path of decoding and of joined weights proved: planted bugs, each caught."""

import functools

import fresh
import pytest
import test_stepping
from fresh import Mutant

STEPPING = "tfbook.blocks.stepping"
SAME = "test_a_step_computes_what_the_modules_compute"
ASKED = "test_what_more_is_asked_is_left_to_the_modules"
CHANGED = "test_what_was_changed_since_is_noticed"
UNEVEN = "test_sequences_of_different_lengths_and_padded_ones"
NO_LLAMA = "test_what_is_no_llama_is_left_to_the_modules"

MUTANTS = [
    Mutant(
        "the next position",
        STEPPING,
        "range(state.seen, state.seen + 1)",
        "range(state.seen + 1, state.seen + 2)",
        SAME,
    ),
    Mutant(
        "values are turned too",
        STEPPING,
        "turn[..., : -self.n_kv_heads, :] = table",
        "turn[:] = table",
        SAME,
    ),
    Mutant(
        "gate and up exchanged",
        STEPPING,
        "gate, up = self.gate_up",
        "up, gate = self.gate_up",
        SAME,
    ),
    Mutant(
        "queries that share a key dealt out in turn",
        STEPPING,
        "q = q.unflatten(1, (self.n_kv_heads, -1))",
        "q = q.unflatten(1, (-1, self.n_kv_heads)).transpose(1, 2)",
        SAME,
    ),
    Mutant(
        "ε beside the root",
        STEPPING,
        "torch.hypot(length * share, least)",
        "length * share + least",
        SAME,
    ),
    Mutant(
        "the norm behind the layers left out",
        STEPPING,
        "return self._finish(x.unsqueeze(1)), tuple(after)",
        "return x.unsqueeze(1), tuple(after)",
        SAME,
    ),
    Mutant(
        "the second norm reads what the first read",
        STEPPING,
        "self.norm, self.ffn_norm = _norm(block.mixer_residual.norm), "
        "_norm(block.ffn_residual.norm)",
        "self.norm = self.ffn_norm = _norm(block.mixer_residual.norm)",
        SAME,
    ),
    Mutant(
        "another scale forgotten",
        STEPPING,
        "scale=self.scale",
        "scale=None",
        "test_other_layers_of_the_same_kind",
    ),
    Mutant(
        "one table for layers that turn otherwise",
        STEPPING,
        "kind := (layer.position, layer.heads)",
        "kind := 0",
        "test_other_layers_of_the_same_kind",
    ),
    Mutant(
        "rounded before the gate",
        STEPPING,
        "gate, up = self.gate_up(self.ffn_norm(x)).float()",
        "gate, up = self.gate_up(self.ffn_norm(x)).half()",
        "test_packed_weights_round_alike",
    ),
    Mutant(
        "hooks that come before a call are not seen",
        STEPPING,
        'HOOKS = ("_forward_pre_hooks", "_forward_hooks")',
        'HOOKS = ("_forward_hooks",)',
        "test_the_modules_do_the_work_while_one_of_them_has_a_hook",
    ),
    Mutant(
        "hooks of all modules are not seen",
        STEPPING,
        "any(self._hooks) or bool(hooks._has_any_global_hook())",
        "any(self._hooks)",
        "test_the_modules_do_the_work_while_one_of_them_has_a_hook",
    ),
    Mutant(
        "never made anew",
        STEPPING,
        "if step is None or not step.holds(stack):",
        "if step is None:",
        CHANGED,
    ),
    Mutant(
        "new parts are noticed, new weights not",
        STEPPING,
        "for owner in (module._modules, module._parameters):",
        "for owner in (module._modules,):",
        CHANGED,
    ),
    Mutant(
        "choices are not looked at again",
        STEPPING,
        "for name in LLAMA.get(type(module), ()) if name in own",
        "for name in ()",
        CHANGED,
    ),
    Mutant("padding is seen", STEPPING, "if mask is None or mask.all():", "if True:", UNEVEN),
    Mutant(
        "nobody sees itself",
        STEPPING,
        "functional.pad(mask, (0, 1), value=True)",
        "functional.pad(mask, (0, 1), value=False)",
        UNEVEN,
    ),
    Mutant(
        "all go on where the longest does",
        STEPPING,
        "if state.counts is None else state.counts[:, None]",
        "if state.counts is None else state.counts[:, None].amax().expand(len(state.k), 1)",
        UNEVEN,
    ),
    Mutant("caches that forget", STEPPING, " and type(state).trim is KVState.trim", "", ASKED),
    Mutant("the mask of the first layer", STEPPING, " and _equal(a.mask, b.mask)", "", ASKED),
    Mutant("the places of the first layer", STEPPING, " and _equal(a.counts, b.counts)", "", ASKED),
    Mutant(
        "any mask",
        STEPPING,
        "            and _is_missing_or(first.mask, (batch, 1, 1, first.length), torch.bool)\n",
        "",
        ASKED,
    ),
    Mutant(
        "functions that were replaced are not called",
        STEPPING,
        "        or torch._C._len_torch_function_stack()\n",
        "",
        ASKED,
    ),
    Mutant(
        "states of other sequences",
        STEPPING,
        "shape = (batch, layer.n_kv_heads",
        "shape = (len(state.k), layer.n_kv_heads",
        ASKED,
    ),
    Mutant(
        "gradients are lost",
        STEPPING,
        "        or torch.is_grad_enabled()\n",
        "",
        ASKED,
    ),
    Mutant("in training", STEPPING, "stack.shared or stack.training", "stack.shared", ASKED),
    Mutant(
        "biases", STEPPING, '    nn.Linear: {"bias": None},\n', "    nn.Linear: {},\n", NO_LLAMA
    ),
    Mutant("a window", STEPPING, '"window": None,', "", NO_LLAMA),
    Mutant(
        "parts of a head", STEPPING, "part.rotated == mixer.d_head ==", "mixer.d_head ==", NO_LLAMA
    ),
    Mutant(
        "a copy keeps the step of the first",
        STEPPING,
        "    def __reduce__",
        "    def reduced",
        "test_copies_begin_anew",
    ),
]


def copied(package, edits=None):
    """Return a copy of the module."""
    fresh.copies(package, [STEPPING], edits)
    return functools.partial(fresh.copy_of, package)(STEPPING)


@pytest.mark.untyped
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    kit = copied("sick_tfbook", mutant.edits)
    with pytest.raises((AssertionError, ValueError, RuntimeError, TypeError, AttributeError)):
        test_stepping.CHECKS[mutant.caught_by](kit)


@pytest.mark.untyped
def test_the_copy_without_a_bug_passes():
    kit = copied("healthy_tfbook")
    for name in {mutant.caught_by for mutant in MUTANTS}:
        test_stepping.CHECKS[name](kit)
