"""The checks of graphs and of convolutions proved by planted bugs, each caught by one of them."""

import fresh
import pytest
import test_convolutions
import test_graphs
from fresh import Mutant

GRAPHS = [
    Mutant(
        "the source of an edge sees its target",
        "tfbook.graphs.adjacency",
        "    mask[target, source] = True\n    if not directed:",
        "    mask[source, target] = True\n    if not directed:",
        "test_the_target_of_an_edge_sees_its_source",
    ),
    Mutant(
        "distances against the edges",
        "tfbook.graphs.adjacency",
        "step = without_loops(mask).float()",
        "step = without_loops(mask).mT.float()",
        "test_a_distance_is_the_number_of_layers_until_a_node_is_known",
    ),
    Mutant(
        "a node found again is farther",
        "tfbook.graphs.adjacency",
        "(new.float() @ step > 0) & ~seen  # reached",
        "(new.float() @ step > 0) & ~new  # reached",
        "test_a_distance_is_the_number_of_layers_until_a_node_is_known",
    ),
    Mutant(
        "loops in the Laplacian's degrees",
        "tfbook.graphs.adjacency",
        "    sums = weights.sum(-1)  # (..., n)",
        "    sums = weights.sum(-1) + 1",
        "test_a_laplacian_measures_how_neighbours_differ",
    ),
    Mutant(
        "padding sees itself",
        "tfbook.graphs.adjacency",
        "whole = masks[0].new_zeros(",
        "whole = masks[0].new_ones(",
        "test_graphs_in_a_row_and_in_a_batch_are_the_graphs_alone",
    ),
    Mutant(
        "GAT's nonlinearity before the sum of its two numbers",
        "tfbook.graphs.attention",
        "functional.leaky_relu(of_query[..., :, None] + of_key[..., None, :], slope)",
        "of_query[..., :, None] + functional.leaky_relu(of_key, slope)[..., None, :]",
        "test_scores_are_their_formulas_pair_by_pair",
    ),
    Mutant(
        "GATv2's nonlinearity behind the weighing",
        "tfbook.graphs.attention",
        "return (hidden @ a[..., None, :, None]).squeeze(-1)",
        "hidden = q[..., :, None, :] + k[..., None, :, :]\n"
        "    return functional.leaky_relu((hidden @ a[..., None, :, None]).squeeze(-1), slope)",
        "test_queries_of_gatv2_have_rankings_of_their_own",
    ),
    Mutant(
        "a key weighed by the query's vector",
        "tfbook.graphs.attention",
        "gat_scores(k, k, self.a_q, self.a_k, slope=self.slope)",
        "gat_scores(k, k, self.a_k, self.a_q, slope=self.slope)",
        "test_graph_attention_is_a_loop_over_neighbours",
    ),
    Mutant(
        "the softmax before the mask",
        "tfbook.graphs.attention",
        "return k, masked_softmax(scores, mask)",
        "p = masked_softmax(scores)\n        return k, p if mask is None else p * mask",
        "test_weights_of_a_layer_are_seen_and_dropped_in_training_alone",
    ),
    Mutant(
        "the constant vector among the positions",
        "tfbook.graphs.positions",
        "vectors[..., 1 : k + 1].to(matrix.dtype), values[..., 1 : k + 1]",
        "vectors[..., :k].to(matrix.dtype), values[..., :k]",
        "test_positions_of_a_path_are_cosines",
    ),
    Mutant(
        "a sign for each number instead of each vector",
        "tfbook.graphs.positions",
        "shape = (*vectors.shape[:-2], 1, vectors.shape[-1])",
        "shape = vectors.shape",
        "test_flips_change_whole_columns_and_both_ways",
    ),
    Mutant(
        "unreachable as near as itself",
        "tfbook.graphs.structure",
        "torch.where(distances < 0, self.max_distance + 1, rows)",
        "torch.where(distances < 0, 0, rows)",
        "test_a_bias_is_a_number_for_each_distance",
    ),
    Mutant(
        "edges of a path in the reverse order",
        "tfbook.graphs.structure",
        "at[n] @ by_step[n] @ at[steps - 1 - n]",
        "at[n] @ by_step[used - 1 - n] @ at[steps - 1 - n]",
        "test_edges_count_along_all_shortest_paths",
    ),
    Mutant(
        "the sum over paths, not their mean",
        "tfbook.graphs.structure",
        "paths = torch.where(distance == steps, count, 1.0)",
        "paths = 1.0",
        "test_edges_count_along_all_shortest_paths",
    ),
    Mutant(
        "a bias kept for the next pass",
        "tfbook.graphs.structure",
        "            self._bias = before",
        "            pass",
        "test_a_given_bias_is_added_to_the_scores_of_one_pass",
    ),
    Mutant(
        "the maximum with zero",
        "tfbook.graphs.messages",
        "masked_fill(~mask[..., None], -torch.inf)",
        "masked_fill(~mask[..., None], 0.0)",
        "test_the_mean_is_attention_with_equal_scores",
    ),
    Mutant(
        "a convolution without its loops",
        "tfbook.graphs.messages",
        "scale = (degrees(mask) + 1)",
        "scale = degrees(mask).clamp(min=1)",
        "test_graph_convolutions_keep_the_roots_of_the_degrees",
    ),
    Mutant(
        "far sees padding",
        "tfbook.graphs.messages",
        "together = mask.any(-2, keepdim=True)",
        "together = torch.ones_like(mask)",
        "test_near_and_far_are_added_and_far_passes_over_padding",
    ),
]

CONVOLUTIONS = [
    Mutant(
        "filters the wrong way round",
        "tfbook.recurrent.convolution",
        "filters = at_least_float32(self.weight)[:, None]",
        "filters = at_least_float32(self.weight).flip(-1)[:, None]",
        "test_a_causal_convolution_is_its_sum",
    ),
    Mutant(
        "a state of the first rows",
        "tfbook.recurrent.convolution",
        "ConvState(rows[:, n:].clone(), seen + n)",
        "ConvState(rows[:, : self.width - 1].clone(), seen + n)",
        "test_pieces_of_a_convolution_give_the_whole",
    ),
    Mutant(
        "a state that holds the whole piece",
        "tfbook.recurrent.convolution",
        "rows[:, n:].clone()",
        "rows[:, n:]",
        "test_the_state_is_small_and_stays",
    ),
    Mutant(
        "rows that are no tokens in the state",
        "tfbook.recurrent.convolution",
        "last = tokens.sum(1, keepdim=True) + ",
        "last = 0 * tokens.sum(1, keepdim=True) + n + ",
        "test_rows_that_are_no_tokens_are_as_if_not_there",
    ),
    Mutant(
        "padding in the batch's mean",
        "tfbook.models.convolutions",
        "        if tokens is None:\n            return self.norm(y.flatten",
        "        if True:\n            return self.norm(y.flatten",
        "test_padding_changes_nothing_and_is_left_out_of_the_mean",
    ),
    Mutant(
        "one whole step and one half step",
        "tfbook.models.convolutions",
        "self.first_ffn_residual = Residual(norm(width), multiplier=multiplier, **shared)",
        "self.first_ffn_residual = Residual(norm(width), **shared)",
        "test_a_conformer_layer_is_its_four_steps",
    ),
    Mutant(
        "the convolution's state forgotten",
        "tfbook.models.convolutions",
        "self.convolution(seen, before.convolution, mask=mask)",
        "self.convolution(seen, None, mask=mask)",
        "test_a_conformer_that_hides_the_future_goes_on_from_its_state",
    ),
    Mutant(
        "rows and columns exchanged",
        "tfbook.models.conv_attention",
        "cells.mT.unflatten(-1, self.grid)",
        "cells.mT.unflatten(-1, self.grid[::-1])",
        "test_strides_leave_fewer_keys_in_their_places",
    ),
]


def graphs_of(package, edits=None):
    return fresh.copies(package, ["tfbook.graphs"], edits)


def kit_of(package, edits=None):
    names = "recurrent.convolution models.convolutions models.conv_attention".split()
    fresh.copies(package, [f"tfbook.{name}" for name in names], edits)
    return test_convolutions.kit_of(*(fresh.copy_of(package, f"tfbook.{name}") for name in names))


CAUGHT = (AssertionError, IndexError, RuntimeError, ValueError, pytest.fail.Exception)


@pytest.mark.parametrize("mutant", GRAPHS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_in_graphs_is_caught(mutant):
    with pytest.raises(CAUGHT):
        test_graphs.CHECKS[mutant.caught_by](graphs_of("sick_tfbook", mutant.edits))


@pytest.mark.parametrize("mutant", CONVOLUTIONS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_in_convolutions_is_caught(mutant):
    kit = kit_of("sick_tfbook", mutant.edits)
    with pytest.raises(CAUGHT):
        test_convolutions.CHECKS[mutant.caught_by](kit)


def test_the_copies_without_a_bug_pass():
    healthy = graphs_of("healthy_tfbook")
    for name in {mutant.caught_by for mutant in GRAPHS}:
        test_graphs.CHECKS[name](healthy)
    healthy = kit_of("healthy_tfbook")
    for name in {mutant.caught_by for mutant in CONVOLUTIONS}:
        test_convolutions.CHECKS[name](healthy)
