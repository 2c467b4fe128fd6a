"""The properties of mixtures of experts proved: planted bugs, each caught without a library."""

from types import SimpleNamespace

import fresh
import pytest
from fresh import Mutant
from test_experts import CHECKS

MODULES = ["tfbook.blocks.experts"]
ROUTING, EXPERTS = "tfbook.blocks.routing", "tfbook.blocks.experts"
MUTANTS = [
    Mutant(
        "rows sent back to their neighbours",
        EXPERTS,
        "rows = order % n_rows",
        "rows = order // routing.chosen.shape[1]",
        "both_forms_equal_a_loop",
    ),
    Mutant(
        "weights in the order of rows and not of experts",
        EXPERTS,
        "weights = routing.weights.T.flatten()[order]",
        "weights = routing.weights.T.flatten()[: len(order)]",
        "both_forms_equal_a_loop",
    ),
    Mutant(
        "dropped choices served all the same",
        EXPERTS,
        "asked = torch.where(kept, routing.chosen.T.flatten(), len(experts))",
        "asked = routing.chosen.T.flatten()",
        "both_forms_equal_a_loop",
    ),
    Mutant(
        "shared experts forgotten",
        EXPERTS,
        "y = y + self.shared(rows)",
        "y = y + 0 * self.shared(rows)",
        "both_forms_equal_a_loop",
    ),
    Mutant(
        "weights of the chosen do not sum to 1",
        ROUTING,
        "weights = torch.softmax(logits.gather(1, chosen), dim=-1)",
        "weights = torch.softmax(logits, dim=-1).gather(1, chosen)",
        "equal_experts_are_one_network",
    ),
    Mutant(
        "the bias leaks into the weights",
        ROUTING,
        "weights = raw.gather(1, chosen)  # (T, K)",
        "weights = (raw if bias is None else raw + bias).gather(1, chosen)",
        "the_bias_moves_choices_and_never_weights",
    ),
    Mutant(
        "rows in a queue by rows, second choices before later first ones",
        ROUTING,
        "kept = _queue(chosen, logits.shape[1]) < capacity",
        "kept = _queue(chosen.reshape(-1, 1), logits.shape[1]).view(chosen.shape) < capacity",
        "a_full_expert_drops_the_last_choices",
    ),
    Mutant(
        "one more row than there is room",
        ROUTING,
        "kept = _queue(chosen, logits.shape[1]) < capacity",
        "kept = _queue(chosen, logits.shape[1]) <= capacity",
        "a_full_expert_drops_the_last_choices",
    ),
    Mutant(
        "capacity without K",
        ROUTING,
        "self.capacity_factor * self.top_k * rows / self.n_experts",
        "self.capacity_factor * rows / self.n_experts",
        "capacity_is_the_mean_load_times_the_factor",
    ),
    Mutant(
        "loss of what was served",
        ROUTING,
        "demand = routing.demand.to(routing.scores.dtype)",
        "demand = routing.load.to(routing.scores.dtype)",
        "a_loss_of_one_is_a_uniform_load",
    ),
    Mutant(
        "loss without the number of experts",
        ROUTING,
        "return routing.n_experts * (share * routing.scores.mean(0)).sum()",
        "return (share * routing.scores.mean(0)).sum()",
        "a_loss_of_one_is_a_uniform_load",
    ),
    Mutant(
        "square of the mean",
        ROUTING,
        "return routing.logits.logsumexp(-1).square().mean()",
        "return routing.logits.logsumexp(-1).mean().square()",
        "the_z_loss_is_the_square_of_the_log_of_the_sum",
    ),
    Mutant(
        "bias moved towards the load",
        EXPERTS,
        "rate * (demand.mean() - demand).sign()",
        "rate * (demand - demand.mean()).sign()",
        "updates_of_the_bias_make_loads_equal",
    ),
    Mutant(
        "the first pass remembered for ever",
        EXPERTS,
        "        self.records.append(routing)\n",
        "        self.records or self.records.append(routing)\n",
        "losses_are_of_the_last_pass",
    ),
    Mutant(
        "rows choose where experts should",
        ROUTING,
        "taken = liked.topk(min(room, rows), dim=0).indices  # (C, E)\n"
        "    kept = torch.zeros_like(liked, dtype=torch.bool).scatter(0, taken, True)",
        "taken = liked.topk(top_k, dim=1).indices\n"
        "    kept = torch.zeros_like(liked, dtype=torch.bool).scatter(1, taken, True)",
        "every_expert_takes_as_many_rows_where_experts_choose",
    ),
]


def kit_of(package, edits=None):
    fresh.copies(package, MODULES, edits)
    return SimpleNamespace(
        experts=fresh.copy_of(package, EXPERTS), routing=fresh.copy_of(package, ROUTING)
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = kit_of("sick_experts", mutant.edits)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        CHECKS[mutant.caught_by](sick)


def test_the_copy_without_a_bug_passes():
    healthy = kit_of("healthy_experts")
    for name in {mutant.caught_by for mutant in MUTANTS}:
        CHECKS[name](healthy)
