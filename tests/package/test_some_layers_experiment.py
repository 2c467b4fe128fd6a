"""The run behind "Windows in some layers" of chapter 07: who sees whom, and what the log shows."""

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import some_layers
from tfbook.experiments.associative_recall import MIXERS, Recaller

LOG = experiments.log("some_layers")


def seen_by(kind, n=128):
    """Which keys (n, n) have any influence on which query."""
    q, k = torch.randn(2, 1, 1, n, 8, generator=torch.Generator().manual_seed(0))
    weights = some_layers.function_of(kind)(q, k, torch.eye(n)[None, None])
    return weights[0, 0] > 0


@pytest.mark.parametrize(
    ("kind", "keys"),
    [("all", 128), ("window", 8), ("strided", 9 + 14), ("blocks", 4 * 8)],
)
def test_a_query_sees_at_most_so_many_keys_and_no_later_one(kind, keys):
    seen = seen_by(kind)
    assert not seen.triu(1).any() and seen.diagonal().all()
    assert keys - 3 <= seen.sum(-1).max() <= keys


def test_a_window_sees_what_is_near():
    gap = torch.arange(128)[:, None] - torch.arange(128)
    assert torch.equal(seen_by("window"), (gap >= 0) & (gap < some_layers.WINDOW))


def test_the_plans_share_the_layers_out_as_they_say():
    counts = [len(full) for full in some_layers.PLANS.values()]
    assert counts == [30, 15, 15, 10, 5, 10, 10, 0]
    ends = [set(some_layers.PLANS[f"the {part} 10"]) for part in ("first", "last")]
    assert ends == [set(range(10)), set(range(20, some_layers.DEPTH))]


def test_layers_get_the_functions_of_their_way():
    net = Recaller([MIXERS["attention"]] * some_layers.LAYERS)
    functions = [some_layers.function_of(kind) for kind in ("window", "all")]
    some_layers.use(net.stack, functions)
    assert [block.mixer.attend for block in net.stack.blocks] == functions


def test_right_answers_are_counted_by_their_distance():
    class Near(torch.nn.Module):
        """Answers what stands in the last 16 pairs."""

        def forward(self, keys, values, asked):
            scores = torch.zeros(*asked.shape, 64)
            for row, at in torch.cartesian_prod(*map(torch.arange, asked.shape)).tolist():
                place = (keys[row] == asked[row, at]).nonzero().item()
                right = values[row, place] if place >= 48 else (values[row, place] + 1) % 64
                scores[row, at, right] = 1.0
            return scores

    shares = some_layers.by_distance(Near(), 64, 4, 0)
    assert shares[0] == 1 and shares[1] > shares[2] > shares[3]


def test_the_log_has_every_plan_and_every_way():
    assert list(LOG["finished"]) == list(some_layers.PLANS)
    seeds = len(LOG["settings"]["seeds"])
    for part in ("trained", "exchanged"):
        assert set(LOG[part]) == set(some_layers.WAYS)
        for shares in LOG[part].values():
            assert [len(row) for row in shares] == [len(some_layers.BINS)] * seeds
    assert LOG["trained"]["all pairs"] == LOG["exchanged"]["all pairs"]
    for plan, row in LOG["finished"].items():
        assert row["full"] == len(some_layers.PLANS[plan])
        assert all(0 <= right <= row["of"] for right in row["right"])
