"""The experiment that lets a model read on without end: its attention against one written out."""

import pytest
import torch

from tfbook import experiments
from tfbook.attention import attend_sdpa
from tfbook.efficient import window_mask
from tfbook.experiments import streamed
from tfbook.positions import apply_rotary

N, W = 64, 16


def rows(heads, seed):
    return torch.randn(1, 3, heads, N, 8, generator=torch.Generator().manual_seed(seed))


def rotated(x, places):
    return apply_rotary(x, torch.as_tensor(places), base=streamed.BASE)


@pytest.mark.parametrize("first", [False, True])
def test_blocks_are_the_mask(first):
    q, k, v = rows(3, 0), rows(1, 1), rows(1, 2)
    found = streamed.stream(q, k, v, window=W, first=first, cached=False)
    mask = window_mask(N, window=W - first, sinks=int(first), causal=True)
    assert torch.allclose(found, attend_sdpa(q, k, v, mask=mask), atol=1e-5)


@pytest.mark.parametrize("i", [0, 14, 15, 16, 40, 63])
def test_in_the_cache_keys_stand_side_by_side(i):
    q, k, v = rows(3, 0), rows(1, 1), rows(1, 2)
    turned = (rotated(x, range(N)) for x in (q, k))
    found = streamed.stream(*turned, v, window=W, first=True, cached=True)
    kept = sorted({0, *range(max(0, i - W + 2), i + 1)})
    query = rotated(q[..., i : i + 1, :], [len(kept) - 1])
    keys = rotated(k[..., kept, :], range(len(kept)))
    mixed = (query @ keys.mT / 8**0.5).softmax(-1) @ v[..., kept, :]
    assert torch.allclose(found[..., i, :], mixed[..., 0, :], atol=1e-5)


def test_the_shipped_log_shows_what_the_chapter_says():
    losses = experiments.log("streamed")["losses"]
    assert list(losses) == list(streamed.WAYS)
    whole, _, text, cache = (sum(each[-4:]) / 4 for each in losses.values())
    assert cache - whole < 0.6 and text - whole > 1.8
    early = [sum(losses[name][:16]) / 16 for name in streamed.WAYS[2:]]
    assert abs(early[0] - early[1]) < 0.1
