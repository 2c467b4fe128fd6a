"""The checks of the room `parallel` proved: planted bugs, each caught in processes of its own.

Each mutant runs in a launch; what is caught by "grids" takes four processes, others two or one.
A mutant may also leave processes waiting for each other: the patience ends that, and it is caught.
"""

import re
import sys

import parallel_checks
import pytest
from fresh import Mutant
from test_parallel import launch

ROOM = "tfbook.parallel."
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo is tested on POSIX")

MUTANTS = [
    Mutant(
        "the piece of another is kept",
        ROOM + "collectives",
        "out, into = (r - step - 1) % p, (r - step - 2) % p",
        "out, into = (r - step) % p, (r - step - 1) % p",
        "collectives",
    ),
    Mutant(
        "pieces are gathered in the order of their arrival",
        ROOM + "collectives",
        "out, into = (r - step) % p, (r - step - 1) % p",
        "out, into = (r + step) % p, (r + step + 1) % p",
        "collectives:3",
    ),
    Mutant(
        "always the sum",
        ROOM + "collectives",
        "pieces[into] = reduce(pieces[into], heard)",
        "pieces[into] = pieces[into] + heard",
        "collectives",
    ),
    Mutant(
        "the argument takes the sum",
        ROOM + "collectives",
        "pieces[into] = reduce(pieces[into], heard)",
        "pieces[into] = pieces[into].copy_(reduce(pieces[into], heard))",
        "collectives",
    ),
    Mutant(
        "all_to_all keeps what was for another",
        ROOM + "collectives",
        "found = [pieces[r].detach().clone()] * p",
        "found = [pieces[0].detach().clone()] * p",
        "collectives",
    ),
    Mutant(
        "doubling with a neighbour each time",
        ROOM + "collectives",
        "partner = group.rank ^ apart",
        "partner = group.rank ^ 1",
        "collectives:4",
    ),
    Mutant(
        "bytes are not counted",
        ROOM + "groups",
        "self.traffic += Traffic(1, x.nbytes)",
        "self.traffic += Traffic(1, x.numel())",
        "collectives",
    ),
    Mutant(
        "data and tensor axes exchanged",
        ROOM + "groups",
        'self.sizes = {"pipeline": pipeline, "data": data, "tensor": tensor}',
        'self.sizes = {"pipeline": pipeline, "tensor": tensor, "data": data}',
        "grids",
    ),
    Mutant(
        "a gradient of a copy is that of one process",
        ROOM + "conjugates",
        "lambda x: x.view_as(x), lambda g: ring_all_reduce(g, group)",
        "lambda x: x.view_as(x), lambda g: g",
        "tensors",
    ),
    Mutant(
        "a gradient of a sum is summed again",
        ROOM + "conjugates",
        "lambda x: ring_all_reduce(x, group), lambda g: g)",
        "lambda x: ring_all_reduce(x, group), lambda g: ring_all_reduce(g, group))",
        "transposes",
    ),
    Mutant(
        "gathered along the first dimension",
        ROOM + "conjugates",
        "return torch.cat(ring_all_gather(x, group), dim)",
        "return torch.cat(ring_all_gather(x, group), 0)",
        "transposes",
    ),
    Mutant(
        "rows are not brought to the front before they are cut",
        ROOM + "conjugates",
        "own = ring_reduce_scatter(rows.contiguous(), group)",
        "own = ring_reduce_scatter(x.contiguous(), group)",
        "transposes",
    ),
    Mutant(
        "swapped back the wrong way",
        ROOM + "conjugates",
        "lambda g: swapped(g, join, cut))",
        "lambda g: swapped(g, cut, join))",
        "transposes",
    ),
    Mutant(
        "gradients are summed",
        ROOM + "replicas",
        "share = 1 / group.size if weight is None else weight",
        "share = 1 if weight is None else weight",
        "replicas",
    ),
    Mutant(
        "shares of other sizes count alike",
        ROOM + "replicas",
        "share = 1 / group.size if weight is None else weight",
        "share = 1 / group.size",
        "replicas:3",
    ),
    Mutant(
        "each keeps its own weights",
        ROOM + "replicas",
        "ring_all_gather(parameter, group)[0]",
        "ring_all_gather(parameter, group)[group.rank]",
        "replicas",
    ),
    Mutant(
        "all pieces are updated, not the own one",
        ROOM + "zero",
        "self.pieces = [nn.Parameter(_own(_line(p, group), group)) for p in self.parameters]",
        "self.pieces = [nn.Parameter(_line(p, group)) for p in self.parameters]",
        "zero",
    ),
    Mutant(
        "gradients of pieces are sums",
        ROOM + "zero",
        "piece.grad = ring_reduce_scatter(line, self.group) / self.group.size",
        "piece.grad = ring_reduce_scatter(line, self.group)",
        "zero",
    ),
    Mutant(
        "gradients stay whole in stage 2",
        ROOM + "zero",
        "            parameter.grad = None\n\n        return reduce",
        "\n        return reduce",
        "zero",
    ),
    Mutant(
        "whole weights are kept for the backward pass",
        ROOM + "zero",
        "            if x.untyped_storage().data_ptr() != home:\n                return x\n",
        "            if True:\n                return x\n",
        "sharded",
    ),
    Mutant(
        "whole weights stay after the backward pass",
        ROOM + "zero",
        "ctx.owner._again = None  # the backward pass through the module is over",
        "pass",
        "sharded",
    ),
    Mutant(
        "gathered anew for each product of the backward pass",
        ROOM + "zero",
        "        if self._again is None:\n",
        "        if True:\n",
        "sharded",
    ),
    Mutant(
        "blocks are not sharded by themselves",
        ROOM + "zero",
        "if isinstance(child, Block):",
        "if isinstance(child, Sharded):",
        "sharded",
    ),
    Mutant(
        "tokens of others are looked up here",
        ROOM + "vocabulary",
        "return sum_over(rows * own[..., None], self.group)",
        "return sum_over(rows, self.group)",
        "tensors",
    ),
    Mutant(
        "the maximum of the own scores",
        ROOM + "vocabulary",
        "highest = ring_all_reduce(logits.amax(-1), group, reduce=torch.maximum)",
        "highest = logits.amax(-1)",
        "tensors",
    ),
    Mutant(
        "scores are not shifted",
        ROOM + "vocabulary",
        "shifted = logits - highest[..., None]",
        "shifted = logits - 0 * highest[..., None]",
        "test_the_loss_of_a_cut_vocabulary_withstands_large_scores:1",
    ),
    Mutant(
        "the right score of another counts",
        ROOM + "vocabulary",
        "right = sum_over(found.where(own, 0.0), group)",
        "right = sum_over(found, group)",
        "tensors_of_torch",
    ),
    Mutant(
        "the bias is added by each process",
        ROOM + "tensor_parallel",
        "    part.out_proj.bias = None\n",
        "",
        "tensors_of_torch",
    ),
    Mutant(
        "the same heads in every process",
        ROOM + "tensor_parallel",
        "range(group.rank * each, (group.rank + 1) * each)",
        "range(each)",
        "tensors_of_torch",
    ),
    Mutant(
        "rows of the second map are cut",
        ROOM + "tensor_parallel",
        "own_part(down.weight, group, 1)  # columns of W₂, inputs",
        "own_part(down.weight.view(-1, group.size, len(down.weight)).transpose(1, 2)"
        ".reshape(down.weight.shape), group, 1)",
        "tensors_of_torch",
    ),
    Mutant(
        "norms keep the gradients of their own rows",
        ROOM + "tensor_parallel",
        "weight.register_hook(lambda grad: ring_all_reduce(grad, group))",
        "weight.register_hook(lambda grad: grad)",
        "tensors",
    ),
    Mutant(
        "pieces of attention are averaged",
        ROOM + "context",
        "out, lse = found if out is None else merge_partials(",
        "out, lse = found if out is None else (lambda a, b: ((a[0] + a[1]) / 2, b[0]))(",
        "rings",
    ),
    Mutant(
        "keys go round the other way",
        ROOM + "context",
        "yield (group.rank - step) % group.size, (k, v)",
        "yield (group.rank + step) % group.size, (k, v)",
        "rings:3",
    ),
    Mutant(
        "gradients of keys stay where they were computed",
        ROOM + "context",
        "travelling = _pass_on(group, dk, dv)  # after p steps they are at home",
        "travelling = dk, dv",
        "rings",
    ),
    Mutant(
        "the softmax of each piece by itself",
        ROOM + "context",
        "weights = (scores - lse[..., None]).exp()",
        "weights = scores.softmax(-1)",
        "rings",
    ),
    Mutant(
        "the slope of the softmax is forgotten",
        ROOM + "context",
        "slopes = scale * weights * (grad @ v_s.mT - delta)",
        "slopes = scale * weights * (grad @ v_s.mT)",
        "rings",
    ),
    Mutant(
        "early and early",
        ROOM + "context",
        'own = (rank,) if order == "plain" else (rank, pieces - 1 - rank)',
        'own = (rank,) if order == "plain" else (2 * rank, 2 * rank + 1)',
        "test_zigzag_gives_all_the_same_work:1",
    ),
    Mutant(
        "1F1B with one forward pass too many",
        ROOM + "schedules",
        "first = min(m, p - 1 - stage)",
        "first = min(m, p - stage)",
        "test_one_forward_one_backward_keeps_few:1",
    ),
    Mutant(
        "a backward pass need not wait",
        ROOM + "schedules",
        'needs = [(stage, PipelineTask("F", task.micro))] if task.kind == "B" else []',
        "needs = []",
        "test_a_schedule_that_never_ends_is_refused:1",
    ),
    Mutant(
        "backward passes in the order of the stages",
        ROOM + "schedules",
        'other = stage + (1 if task.kind == "B" else -1)',
        "other = stage - 1",
        "test_no_stage_begins_before_it_can:1",
    ),
    Mutant(
        "a bubble without the last stages",
        ROOM + "schedules",
        "return (p - 1) / (chunks * m + p - 1)",
        "return (p - 1) / (chunks * m)",
        "test_the_bubble_is_the_formula_whatever_a_pass_takes:1",
    ),
    Mutant(
        "micro-batches count whole",
        ROOM + "pipeline",
        "made[i] = loss(made[i], wanted[i]) / m",
        "made[i] = loss(made[i], wanted[i])",
        "pipelines",
    ),
    Mutant(
        "the table of each end by itself",
        ROOM + "pipeline",
        "stage.table.grad += group.exchange(stage.table.grad, other, other)",
        "group.exchange(stage.table.grad, other, other)",
        "pipelines",
    ),
    Mutant(
        "a layer is lost between stages",
        ROOM + "pipeline",
        "return range(n_layers * stage // p, n_layers * (stage + 1) // p)",
        "return range(n_layers // p * stage, n_layers // p * (stage + 1))",
        "test_layers_are_dealt_out_evenly:1",
    ),
    Mutant(
        "answers come back unsorted",
        ROOM + "expert_parallel",
        "return torch.cat(made)[order.argsort()]",
        "return torch.cat(made)",
        "experts",
    ),
    Mutant(
        "each answer weighs the same",
        ROOM + "expert_parallel",
        "weighted = found * routing.weights.flatten()[order, None]",
        "weighted = found * routing.weights.mean()",
        "experts",
    ),
    Mutant(
        "gradients do not travel back",
        ROOM + "expert_parallel",
        "group, out, back = ctx.given\n        return _Travel.apply(",
        "group, out, back = ctx.given\n        return 0 * _Travel.apply(",
        "experts",
    ),
    Mutant(
        "an all-reduce is counted as one turn of the ring",
        ROOM + "links",
        '"all_reduce": _ring(2),',
        '"all_reduce": _ring(1),',
        "test_what_collectives_send:1",
    ),
    Mutant(
        "three sums a layer",
        ROOM + "splits",
        'self.sums = 4 + 2 * (split.recompute == "full")',
        'self.sums = 3 + 2 * (split.recompute == "full")',
        "tensors",
    ),
    Mutant(
        "all biases are cut",
        ROOM + "splits",
        "return _cut(part.parameters - whole, t) + whole",
        "return _cut(part.parameters, t)",
        "tensors",
    ),
    Mutant(
        "inputs of cut products are cut",
        ROOM + "splits",
        'CUT_INPUTS = ("scores", "z", "out_proj", "down_proj", "q_norm", "k_norm")',
        'CUT_INPUTS = ("scores", "z", "out_proj", "down_proj", "q_proj", "up_proj")',
        "test_activations_are_those_of_the_formulas:1",
    ),
    Mutant(
        "every stage keeps all micro-batches",
        ROOM + "splits",
        "flight = min(m, p - stage)",
        "flight = m",
        "test_stages_hold_what_fits_their_layers:1",
    ),
    Mutant(
        "nothing is recomputed",
        ROOM + "splits",
        "self.flops += (3 + again) * part.flops / t",
        "self.flops += 3 * part.flops / t",
        "test_megatron_runs_as_fast_as_was_published:1",
    ),
    Mutant(
        "ZeRO cuts weights first",
        ROOM + "planner",
        "for stage in (3, 2, 1)]",
        "for stage in (1, 2, 3)]",
        "test_zero_divides_state_then_gradients_then_weights:1",
    ),
    Mutant(
        "no bubble",
        ROOM + "planner",
        "seconds = (computing + tensor) / (1 - bubble)",
        "seconds = (computing + tensor)",
        "test_less_of_everything_is_never_slower:1",
    ),
    Mutant(
        "plans that do not fit",
        ROOM + "planner",
        "if plan.memory <= (1 - headroom) * cluster.machine.memory:",
        "if plan.memory <= 2 * cluster.machine.memory:",
        "test_plans_fit_and_the_fastest_comes_first:1",
    ),
]
# A launch of four processes costs more than two; what needs more than two says so behind a colon.
DEFAULT = {"grids": 4}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    name, _, p = mutant.caught_by.partition(":")
    p = int(p or DEFAULT.get(name, 2))
    with pytest.raises(RuntimeError, match="process") as found:
        launch(p, name, edits=mutant.edits, patience=5.0)
    # By what was asserted, not because the text could not be changed or run.
    assert not re.search("not once|SyntaxError|NameError|AttributeError", str(found.value))


def test_checks_pass_where_nothing_is_planted():
    """A module that is read anew without a change passes what its mutants fail."""
    for name in ("collectives", "rings", "experts"):
        launch(2, name, edits={ROOM + "links": []})
    assert {m.caught_by.partition(":")[0] for m in MUTANTS} > {"collectives", "rings", "experts"}
    known = set(parallel_checks.CHECKS) | {"test_"}
    for mutant in MUTANTS:
        assert any(mutant.caught_by.startswith(each) for each in known)
