"""The run behind "Why, then, many heads?" of chapter 03: one layer, 1 to 8 heads."""

from tfbook import experiments

LOG = experiments.log("one_layer")
TWO = experiments.log("heads")


def test_text_steps_and_seeds_are_those_of_the_two_layers():
    same = ("heads", "seeds", "steps", "batch", "rate", "windows", "width", "context")
    assert {name: LOG["settings"][name] for name in same} == {
        name: TWO["settings"][name] for name in same
    }
    assert (LOG["settings"]["layers"], TWO["settings"]["layers"]) == (1, 2)


def test_every_run_is_worse_than_with_two_layers():
    best = {heads: min(losses) for heads, losses in LOG["held_out_loss"].items()}
    assert list(best) == list(TWO["held_out_loss"])
    assert all(best[heads] > max(TWO["held_out_loss"][heads]) for heads in best)
