"""The checks of training and its checkpoints proved by planted bugs, each caught by one of them."""

from functools import cache

import fresh
import pytest
import runaway
import test_runs
import test_training
from fresh import Mutant

import tfbook.training.checkpoints

MODULES = ["tfbook.training"]
DAMAGE = test_runs.DAMAGES
RUNS = [name for name in tfbook.training.checkpoints.__all__ if hasattr(test_runs, name)]
BATCHES = "test_the_place_in_a_list_and_of_a_function_is_kept"

# What a parametrized check is called with, behind its folder.
ARGUMENTS = {
    "test_a_run_in_parts_is_the_run_with_any_optimizer": ["AdamW"],
    "test_a_scheduler_goes_on_where_it_was": [
        lambda optimizer: test_training.CosineAnnealingLR(optimizer, T_max=5)
    ],
    "test_the_checkpoint_of_another_run_is_refused_and_kept": ["clip is 0.9 there and 1.1 here"],
    "test_a_step_of_gradient_descent_is_never_longer_than_clip_allows": [0.7],
    "test_a_loss_that_is_no_number_ends_the_run_before_the_weights_are_touched": [
        float("nan"),
        "loss",
    ],
    BATCHES: ["list"],
}
WITHOUT_FOLDER = {
    "test_it_is_the_loop_that_one_would_write_by_hand",
    "test_accumulated_batches_of_unequal_size_are_one_large_batch",
    "test_a_step_of_gradient_descent_is_never_longer_than_clip_allows",
    "test_a_loss_that_is_no_number_ends_the_run_before_the_weights_are_touched",
    "test_looking_on_does_not_change_the_run",
}

MUTANTS = [
    Mutant(
        "changed bytes are believed",
        "tfbook.training.checkpoints",
        'if _digest(content) != wanted["blake2b"]:',
        "if False:",
        "damage: a bit of the weights",
    ),
    Mutant(
        "a changed text is believed",
        "tfbook.training.checkpoints",
        'if whole.get("blake2b") != _digest(_canonical(contents)):',
        "if False:",
        "damage: another state",
    ),
    Mutant(
        "damaged ones still count",
        "tfbook.training.checkpoints",
        "            _set_aside(damaged)\n",
        "            pass\n",
        "damage: no weights",
    ),
    Mutant(
        "one too few is kept",
        "tfbook.training.checkpoints",
        "<= checkpoint.step][:-keep]",
        "<= checkpoint.step][: 1 - keep or None]",
        "test_the_last_ones_are_kept",
    ),
    Mutant(
        "shared memory is not copied",
        "tfbook.training.checkpoints",
        "tensor.clone() if address in seen else tensor",
        "tensor",
        "test_tensors_that_share_memory_are_written_both",
    ),
    Mutant(
        "tuples come back as lists",
        "tfbook.training.checkpoints",
        '{"$tuple": packed}',
        "packed",
        "test_everything_comes_back_as_it_was",
    ),
    Mutant(
        "the weights are not restored",
        "tfbook.training.processes",
        "model.load_state_dict(weights)",
        "pass",
        "test_a_run_in_parts_is_the_run_with_any_optimizer",
    ),
    Mutant(
        "the optimizer is not restored",
        "tfbook.training.processes",
        "optimizer.load_state_dict(state)",
        "pass",
        "test_a_run_in_parts_is_the_run_with_any_optimizer",
    ),
    Mutant(
        "PyTorch's random numbers are not restored",
        "tfbook.training.states",
        'torch.set_rng_state(state["torch"])',
        "pass",
        "test_a_run_in_parts_is_the_run_with_any_optimizer",
    ),
    Mutant(
        "Python's random numbers are not restored",
        "tfbook.training.states",
        'random.setstate(state["python"])',
        "pass",
        "test_random_numbers_of_python_and_numpy_go_on_too",
    ),
    Mutant(
        "NumPy's random numbers are not restored",
        "tfbook.training.states",
        'np.random.set_state(state["numpy"])',
        "pass",
        "test_random_numbers_of_python_and_numpy_go_on_too",
    ),
    Mutant(
        "the loader begins again",
        "tfbook.training.states",
        'self.batches.load_state_dict(state["batches"])',
        "pass",
        "test_a_run_in_parts_is_the_run_with_any_optimizer",
    ),
    Mutant(
        "the list begins again",
        "tfbook.training.states",
        'self.drawn, self.iterator = state["drawn"], None',
        "self.iterator = None",
        BATCHES,
    ),
    Mutant(
        "the scheduler begins again",
        "tfbook.training.states",
        "self.scheduler.load_state_dict(state)",
        "pass",
        "test_a_scheduler_goes_on_where_it_was",
    ),
    Mutant(
        "looking on draws from the run's random numbers",
        "tfbook.training.monitoring",
        "        set_random(before)\n",
        "",
        "test_looking_on_does_not_change_the_run",
    ),
    Mutant(
        "looking on in training mode",
        "tfbook.training.monitoring",
        "    model.eval()\n",
        "",
        "test_looking_on_does_not_change_the_run",
    ),
    Mutant(
        "the log keeps what is computed again",
        "tfbook.training.history",
        " if after <= step)",
        ")",
        "test_the_log_has_a_line_for_each_step_and_evaluation",
    ),
    Mutant(
        "another run's settings are taken for one's own",
        "tfbook.training.resuming",
        "        if differing:\n",
        "        if False:\n",
        "test_the_checkpoint_of_another_run_is_refused_and_kept",
    ),
    Mutant(
        "a new run begins over an old one",
        "tfbook.training.resuming",
        "if steps_in(self.folder):",
        "if False:",
        "test_a_run_does_not_begin_over_another",
    ),
    Mutant(
        "patience lasts one evaluation longer",
        "tfbook.training.states",
        "self.waited >= self.patience",
        "self.waited > self.patience",
        "test_a_run_that_gets_no_better_stops_and_goes_back_to_its_best",
    ),
    Mutant(
        "the best weights are the last ones",
        "tfbook.training.states",
        "x.detach().clone()",
        "x.detach()",
        "test_a_run_that_gets_no_better_stops_and_goes_back_to_its_best",
    ),
    Mutant(
        "the mean of means",
        "tfbook.training.gradients",
        "value, terms = found[0], float(found[1])",
        "value, terms = found[0] / found[1], 1.0",
        "test_accumulated_batches_of_unequal_size_are_one_large_batch",
    ),
    Mutant(
        "gradients of the step before stay",
        "tfbook.training.loop",
        "    run.optimizer.zero_grad(set_to_none=True)\n",
        "",
        "test_it_is_the_loop_that_one_would_write_by_hand",
    ),
    Mutant(
        "the schedule is a step ahead",
        "tfbook.training.loop",
        "run.rates.set(step)",
        "run.rates.set(step + 1)",
        "test_it_is_the_loop_that_one_would_write_by_hand",
    ),
    Mutant(
        "clipped to twice the length",
        "tfbook.training.loop",
        "clip_grads_with_norm_(weights, clip, norm)",
        "clip_grads_with_norm_(weights, 2 * clip, norm)",
        "test_a_step_of_gradient_descent_is_never_longer_than_clip_allows",
    ),
    Mutant(
        "a loss that is no number is followed",
        "tfbook.training.loop",
        "    check_finite(step, mean, norm.item())\n",
        "",
        "test_a_loss_that_is_no_number_ends_the_run_before_the_weights_are_touched",
    ),
    Mutant(
        "looking on a step late",
        "tfbook.training.loop",
        "if (step + 1) % monitoring.every == 0",
        "if step % monitoring.every == 0",
        "test_looking_on_does_not_change_the_run",
    ),
    Mutant(
        "a step takes one batch however many it should",
        "tfbook.training.gradients",
        "for _ in range(execution.accumulate):",
        "for _ in range(1):",
        "test_accumulated_batches_of_unequal_size_are_one_large_batch",
    ),
    Mutant(
        "the place in the data is not restored",
        "tfbook.training.resuming",
        '            self.source.load_state_dict(saved["data"])\n',
        "",
        BATCHES,
    ),
    Mutant(
        "saved at the end only",
        "tfbook.training.resuming",
        "return done == steps or self.best.over or often",
        "return done == steps or self.best.over",
        "test_a_damaged_checkpoint_costs_its_steps_and_nothing_else",
    ),
    Mutant(
        "no more is kept than the default",
        "tfbook.training.resuming",
        "checkpoint, keep=self.chosen.keep)",
        "checkpoint)",
        "test_as_many_checkpoints_are_kept_as_were_asked_for",
    ),
    Mutant(
        "what begins anew begins over what is there",
        "tfbook.training.resuming",
        "if not self.chosen.resume:",
        "if False:",
        "test_a_run_does_not_begin_over_another",
    ),
]


def check(name, folder):
    """Run one of the checks in a folder of its own."""
    folder.mkdir()
    if name.startswith("damage: "):
        test = test_runs.test_a_damaged_checkpoint_is_passed_over_and_the_one_before_it_used
        return test(folder, DAMAGE[name.removeprefix("damage: ")])
    test = getattr(test_training, name, None) or getattr(test_runs, name)
    return test(*[folder] * (name not in WITHOUT_FOLDER), *ARGUMENTS.get(name, []))


def use(package, monkeypatch):
    """Let the checks see a copy of the modules instead of the modules."""
    training = fresh.copy_of(package, "tfbook.training")
    monkeypatch.setattr(test_runs, "checkpoints", training.checkpoints)
    for name in RUNS:
        monkeypatch.setattr(test_runs, name, getattr(training.checkpoints, name))
    for name in ("fit", "Checkpointing", "Execution", "Monitoring"):
        monkeypatch.setattr(runaway, name, getattr(training, name))
    monkeypatch.setattr(test_training, "fit", training.fit)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Run a check on a copy without a bug, once: what is caught is the bug, not the copy."""
    fresh.copies("healthy_training", MODULES)

    @cache
    def healthy(name):
        with pytest.MonkeyPatch.context() as patch:
            use("healthy_training", patch)
            check(name, tmp_path_factory.mktemp("healthy") / "run")

    return healthy


@pytest.mark.untyped
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, healthy, tmp_path, monkeypatch):
    healthy(mutant.caught_by)
    fresh.copies("sick_training", MODULES, mutant.edits)
    use("sick_training", monkeypatch)
    # A check may fail by what it asserts, by an error that it meets, or by one that it misses.
    with pytest.raises((AssertionError, RuntimeError, ValueError, pytest.fail.Exception)):
        check(mutant.caught_by, tmp_path / "sick")
