"""Checks of probes, similarity and links proved: planted bugs, each caught."""

import functools

import fresh
import pytest
import test_interpret_probing
import test_interpret_similarity
import test_interpret_supervision
from fresh import Mutant

PROBING = "tfbook.interpret.probing"
SIMILARITY = "tfbook.interpret.similarity"
SUPERVISION = "tfbook.interpret.supervision"
FILES = {
    PROBING: test_interpret_probing,
    SIMILARITY: test_interpret_similarity,
    SUPERVISION: test_interpret_supervision,
}

MUTANTS = [
    Mutant(
        "strength and its inverse exchanged",
        PROBING,
        "C=1 / strength",
        "C=strength",
        "test_the_probe_is_where_the_slope_of_its_objective_is_zero",
    ),
    Mutant(
        "rows are not brought to one scale",
        PROBING,
        "model.fit(((rows - mean) / spread).numpy(), which.numpy())",
        "model.fit((rows - mean).numpy(), which.numpy())",
        "test_units_and_constants_do_not_matter",
    ),
    Mutant(
        "the mean stays in the bias",
        PROBING,
        "bias - weight @ mean",
        "bias",
        "test_units_and_constants_do_not_matter",
    ),
    Mutant(
        "classes by number instead of by label",
        PROBING,
        "return self.classes[self.log_probs(x).argmax(-1)]",
        "return self.log_probs(x).argmax(-1)",
        "test_a_probe_tells_its_classes_by_their_labels",
    ),
    Mutant(
        "the control task gives each token a label of its own",
        PROBING,
        "kinds, which = types.unique(return_inverse=True)",
        "kinds = types.flatten()\n    which = torch.arange(len(kinds)).view(types.shape)",
        "test_a_control_task_gives_a_word_one_label_at_random",
    ),
    Mutant(
        "labels of the control task all alike frequent",
        PROBING,
        "return labels.flatten()[drawn.to(labels.device)][which]",
        "every = labels.unique()\n    return every[drawn.to(labels.device) % len(every)][which]",
        "test_a_control_task_gives_a_word_one_label_at_random",
    ),
    Mutant(
        "rows are split, not texts",
        PROBING,
        "kinds, which = texts.unique(return_inverse=True)\n    if len(kinds) < 2:",
        "kinds, which = torch.arange(len(texts)).unique(return_inverse=True)\n"
        "    if len(kinds) < 2:",
        "test_no_text_is_in_both_parts",
    ),
    Mutant(
        "tested on what was learned",
        PROBING,
        "return (fitted.predict(rows[~train]) == labels[~train]).double()",
        "return (fitted.predict(rows[train]) == labels[train]).double()",
        "test_no_text_is_in_both_parts",
    ),
    Mutant(
        "an interval of rows, as if they were independent",
        PROBING,
        "_, which = text.unique(return_inverse=True)",
        "which = torch.arange(len(text))",
        "test_the_interval_is_that_of_independent_texts",
    ),
    Mutant(
        "directions are taken for orthonormal",
        PROBING,
        "basis = _basis(directions).to(x.dtype)",
        "basis = (directions / directions.norm(dim=1, keepdim=True)).to(x.dtype)",
        "test_directions_are_gone_and_nothing_else",
    ),
    Mutant(
        "the row around which they are taken out is subtracted",
        PROBING,
        "return x - (moved @ basis.mT) @ basis",
        "return moved - (moved @ basis.mT) @ basis",
        "test_all_rows_get_the_coordinates_of_one",
    ),
    Mutant(
        "each probe sees the rows as they were",
        PROBING,
        "left = remove_directions(rows, found, around=centre)",
        "left = rows",
        "test_after_the_nullspace_no_linear_probe_reads_the_label",
    ),
    Mutant(
        "it stops when frequent labels are right",
        PROBING,
        "return float(np.mean([_share(said[labels == each] == each) for each in labels.unique()]))",
        "return _share(said == labels) - _share(labels == labels.mode().values) + 1 / 2",
        "test_a_rare_label_is_taken_out_too",
    ),
    Mutant(
        "columns keep their means",
        SIMILARITY,
        "moved = x - x.mean(0)",
        "moved = x",
        "test_cka_is_the_cosine_of_centred_gram_matrices",
    ),
    Mutant(
        "rows are centred instead of columns",
        SIMILARITY,
        "moved = x - x.mean(0)",
        "moved = x - x.mean(1, keepdim=True)",
        "test_what_changes_neither",
    ),
    Mutant(
        "the norm is not squared",
        SIMILARITY,
        "(y.mT @ x).square().sum() /",
        "(y.mT @ x).norm() /",
        "test_cka_is_the_cosine_of_centred_gram_matrices",
    ),
    Mutant(
        "diagonals stay",
        SIMILARITY,
        "gram = gram - torch.diag(gram.diagonal())\n    sums",
        "sums",
        "test_unbiased_cka_is_made_of_unbiased_estimates",
    ),
    Mutant(
        "Frobenius instead of the sum of singular values",
        SIMILARITY,
        ".mT @ (x / x.norm())).sum()",
        ".mT @ (x / x.norm())).square().sum()",
        "test_procrustes_is_the_distance_after_the_best_turn",
    ),
    Mutant(
        "the table turned over",
        SIMILARITY,
        "for y in ys]) for x in xs]",
        "for x in xs]) for y in ys]",
        "test_a_table_is_made_of_pairs",
    ),
    Mutant(
        "queries without a link count as misses",
        SUPERVISION,
        "return hits.to(weights.dtype) / counted.sum()",
        "return hits.to(weights.dtype) / counted.numel()",
        "test_accuracy_counts_queries_with_a_link_over_the_batch",
    ),
    Mutant(
        "an even head gets credit for every key",
        SUPERVISION,
        "hits = weights.argmax(-1) == links[:, None].to(weights.device)",
        "at = links[:, None, :, None].clamp(min=0).expand(*weights.shape[:-1], 1)\n"
        "    hits = (weights.gather(-1, at) == weights.amax(-1, keepdim=True))[..., 0]",
        "test_a_head_that_looks_everywhere_hits_only_the_first_key",
    ),
    Mutant(
        "offsets have the other sign",
        SUPERVISION,
        "steps = (links - torch.arange(links.shape[1], device=links.device))[counted]",
        "steps = (torch.arange(links.shape[1], device=links.device) - links)[counted]",
        "test_the_best_offset_is_the_most_frequent_step",
    ),
    Mutant(
        "queries without a target count in the mean",
        SUPERVISION,
        "return each[counted].mean()",
        "return each.mean()",
        "test_the_loss_is_a_mean_over_queries_that_have_a_target",
    ),
    Mutant(
        "the divergence the other way round",
        SUPERVISION,
        "    each = -(t * a.clamp(min=least).log()).sum(-1)",
        '    a, t = (t, a) if kind == "kl" else (a, t)\n'
        "    each = -(t * a.clamp(min=least).log()).sum(-1)",
        "test_the_loss_is_a_mean_over_queries_that_have_a_target",
    ),
    Mutant(
        "the first layers of the teacher",
        SUPERVISION,
        "// n_student - 1) for i in",
        "// n_student - n_teacher // n_student) for i in",
        "test_layers_are_spread_as_in_tinybert",
    ),
    Mutant(
        "the teacher learns too",
        SUPERVISION,
        '_weights("teacher", teacher.detach())',
        '_weights("teacher", teacher)',
        "test_no_gradient_reaches_the_teacher",
    ),
    Mutant(
        "padding keys masked instead of queries",
        SUPERVISION,
        "mask[:, None, :, None]",
        "mask[:, None, None, :]",
        "test_distillation_is_a_mean_of_divergences",
    ),
]


def copied(package, edits=None):
    """Return a kit of copies of the three modules, with the edits made."""
    fresh.copies(package, list(FILES), edits)
    modules = map(functools.partial(fresh.copy_of, package), FILES)
    return test_interpret_probing.kit_of(*modules)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    kit = copied("sick_tfbook", mutant.edits)
    with pytest.raises((AssertionError, ValueError, RuntimeError, UserWarning)):
        FILES[mutant.module].CHECKS[mutant.caught_by](kit)


def test_the_copies_without_a_bug_pass():
    kit = copied("healthy_tfbook")
    for module, name in {(mutant.module, mutant.caught_by) for mutant in MUTANTS}:
        FILES[module].CHECKS[name](kit)
