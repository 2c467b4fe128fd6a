"""Computing twice: the same values and gradients, the bytes that are kept, and what a step holds.

A check is `check(kit)`, with `kit` the module, or a copy of it with a planted bug.
"""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import tfbook.hardware.memory
from tfbook.models import build, preset
from tfbook.optimization import AdamW

CHECKS = {}
SMALL = {"d_model": 24, "n_heads": 4, "n_layers": 6, "d_ff": 40, "vocab_size": 13}
CONFIGS = {
    "gpt2": preset("gpt2", **SMALL, dropout=0.0, attention_dropout=0.0, ffn_dropout=0.0),
    "llama": preset("smollm2-135m", **SMALL | {"n_kv_heads": 2}),
    "bert": preset("bert-base", pooler=False, **SMALL).replace(dropout=0.0, attention_dropout=0.0),
}


@pytest.fixture
def kit():
    return tfbook.hardware.memory


def check(run):
    CHECKS[run.__name__] = run
    return run


def own(kit, config):
    """Return a config of the kit's own class."""
    return kit.TransformerConfig.from_dict(config.to_dict())


def layers(count=7, width=5, dropout=0.0, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout))
            for _ in range(count)
        ).double()


def plain(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def gradients(blocks, run):
    """Output, and gradients of x and of every weight, from one seed."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x.requires_grad_()
    blocks.zero_grad()
    torch.manual_seed(2)
    y = run(blocks, x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(weight.grad for weight in blocks.parameters())]


@check
def test_gradients_are_those_of_the_plain_loop(kit):
    for rate in (0.0, 0.5):
        blocks = layers(dropout=rate)
        right = gradients(blocks, plain)
        ways = [lambda b, x: kit.recompute(lambda x: plain(b, x), x)]
        segments = (None, 1, 2, 3, 7, 9)
        ways += [lambda b, x, k=k: kit.run_checkpointed(b, x, every=k) for k in segments]
        ways += [lambda b, x: plain([lambda x, f=f: kit.recompute(f, x) for f in b], x)]
        with torch.random.fork_rng():
            right = gradients(blocks, plain)
            for way in ways:
                found = gradients(blocks, way)
                assert all(map(torch.equal, found, right)), rate


@check
def test_recomputing_leaves_the_random_numbers_as_they_were(kit):
    """What is drawn after the backward pass is what is drawn without recomputing."""
    drawn = []
    blocks, x = layers(dropout=0.5), torch.ones(3, 5, dtype=torch.float64, requires_grad=True)
    for way in (plain, lambda b, x: kit.recompute(lambda x: plain(b, x), x)):
        with torch.random.fork_rng():
            torch.manual_seed(2)
            y = way(blocks, x).sum()
            drawn.append([torch.rand(3), y.backward(), torch.rand(3)][::2])
    assert all(map(torch.equal, *drawn))


@check
def test_a_recomputed_function_has_right_gradients(kit):
    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kit.recompute(lambda x: (x * x.sin()).exp(), x), (x,))


@check
def test_only_the_inputs_of_segments_are_kept(kit):
    blocks, x = layers(12), torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    for every in (1, 2, 3, 4, 5, 12):
        kept = kit.saved_bytes(
            lambda k=every: kit.run_checkpointed(blocks, x, every=k), besides=blocks.parameters()
        )
        assert kept == math.ceil(12 / every) * x.nbytes, every
    assert kit.saved_bytes(lambda: kit.recompute(lambda x: plain(blocks, x), x)) == x.nbytes
    assert kit.saved_bytes(lambda: plain(blocks, x), besides=blocks.parameters()) == 13 * x.nbytes
    theirs = kit.saved_bytes(lambda: checkpoint(lambda x: plain(blocks, x), x, use_reentrant=False))
    assert theirs == x.nbytes


@check
def test_the_best_segment_is_the_best_of_all(kit):
    for n in range(1, 130):
        held = {k: math.ceil(n / k) + k for k in range(1, n + 1)}
        k = kit.best_segment(n)
        assert held[k] == min(held.values())
        assert abs(k - n**0.5) < 2


@check
def test_the_account_is_what_is_kept_at_the_worst_moment(kit):
    """Inputs of segments, the inside of one, and what stands outside, measured each by itself."""
    for name, config in CONFIGS.items():
        config_of_kit = own(kit, config)
        model, tokens = build(config).train(), torch.zeros(3, 5, dtype=torch.long)
        model(tokens)  # tables are made
        x = torch.randn(3, 5, 24, requires_grad=True)
        besides = list(model.parameters())
        tables = {t.untyped_storage().data_ptr(): t for t in seen_twice(model, x)}
        besides += list(tables.values())
        blocks = model.stack.blocks
        outside = config.saved_bytes(5, 3) - sum(
            part.saved for part in config.parts(5, 3) if ".blocks." in part.name
        )
        assert kit.checkpointed_bytes(config_of_kit, 5, 3) == config.saved_bytes(5, 3)
        outputs = [lambda x, b=b: b(x)[0] for b in blocks]
        for every in (1, 2, 4, 6):
            inputs = kit.saved_bytes(partial(kit.run_checkpointed, blocks, x, every=every))
            assert inputs == math.ceil(6 / every) * x.nbytes
            inside = kit.saved_bytes(partial(plain, outputs[:every], x), besides=besides)
            counted = kit.checkpointed_bytes(config_of_kit, 5, 3, every=every)
            assert abs(counted - (outside + inputs - x.nbytes + inside)) <= x.nbytes, (name, every)


def seen_twice(model, x):
    """Tensors that two passes hand to autograd alike: weights and rotary tables."""
    def pass_():
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = plain([lambda x, b=b: b(x)[0] for b in model.stack.blocks], x)
        return y, kept

    first, second = pass_(), pass_()
    known = {t.untyped_storage().data_ptr() for t in first[1]}
    own = x.untyped_storage().data_ptr()
    return [t for t in second[1] if t.untyped_storage().data_ptr() in known - {own}]


@check
def test_checkpoints_save_memory_and_the_square_root_saves_most_of_plain_sums(kit):
    config = own(kit, preset("gpt2"))
    held = {k: kit.checkpointed_bytes(config, 256, every=k) for k in range(1, 13)}
    assert held[1] < held[3] < held[6] < held[12]
    assert held[12] == config.saved_bytes(256)


@check
def test_weights_gradients_and_optimizer_are_what_a_step_leaves_behind(kit):
    config = CONFIGS["gpt2"]
    model = build(config)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    model(torch.zeros(1, 4, dtype=torch.long))[0].sum().backward()
    optimizer.step()
    found = kit.training_memory(own(kit, config), 4)
    held = [x.nbytes for s in optimizer.state.values() for x in s.values()
            if isinstance(x, torch.Tensor) and x.ndim]  # fmt: skip
    weights = list(model.parameters())
    assert found.weights == sum(w.nbytes for w in weights)
    assert found.gradients == sum(w.grad.nbytes for w in weights)
    assert found.optimizer == sum(held)
    assert found.activations == config.saved_bytes(4)
    assert found.total == sum(found)


@check
def test_mixed_precision_moves_bytes_from_activations_to_the_optimizer(kit):
    config = own(kit, CONFIGS["llama"])
    full, mixed = (kit.training_memory(config, 7, 2, precision=p) for p in ("float32", "mixed"))
    n = config.count_parameters()
    assert (mixed.weights, mixed.gradients, mixed.optimizer) == (2 * n, 2 * n, 12 * n)
    assert (full.weights, full.gradients, full.optimizer) == (4 * n, 4 * n, 8 * n)
    assert mixed.activations == config.saved_bytes(7, 2, bytes_per_number=2) < full.activations
    assert kit.training_memory(config, 7, optimizer="sgd").optimizer == 0


@check
def test_the_loss_keeps_a_number_for_each_token_and_word(kit):
    """And a model without a head has none."""
    config, ids = CONFIGS["llama"], torch.zeros(3, 5, dtype=torch.long)
    logits, _ = build(config).train()(ids)
    kept = kit.saved_bytes(lambda: F.cross_entropy(logits.mT, ids), besides=[logits, ids])
    for precision in ("float32", "mixed"):
        found = kit.training_memory(own(kit, config), 5, 3, precision=precision).logits
        assert found == 3 * 5 * 13 * 4
    assert abs(kept - found) <= 4  # the sum of weights, a number
    assert kit.training_memory(own(kit, CONFIGS["bert"]), 5, 3).logits == 0


@check
def test_the_largest_batch_fits_and_one_more_does_not(kit):
    for name, config in ((name, own(kit, each)) for name, each in CONFIGS.items()):
        for every in (None, 2):
            for room in (1e6, 3.7e6, 2e7):
                batch = kit.largest_batch(config, room, 5, every=every)
                total = [kit.training_memory(config, 5, b, every=every).total if b else 0
                         for b in (batch, batch + 1)]  # fmt: skip
                assert total[0] <= room < total[1], name
    assert kit.largest_batch(own(kit, CONFIGS["gpt2"]), 1.0, 5) == 0


@pytest.mark.untyped
def test_what_does_not_fit_is_refused_in_words(kit):
    x, config = torch.ones(3, requires_grad=True), CONFIGS["gpt2"]
    wrong = [
        (lambda: kit.recompute(3, x), TypeError, "function must be a function"),
        (lambda: kit.recompute(torch.sin, x.detach()), ValueError, "requires_grad=True"),
        (lambda: kit.run_checkpointed([], x), ValueError, "at least one block"),
        (lambda: kit.run_checkpointed([3], x), TypeError, r"blocks\[0\] must be a function"),
        (lambda: kit.run_checkpointed([torch.sin], x, every=0), ValueError, "every must be"),
        (lambda: kit.saved_bytes(3), TypeError, "run must be a function"),
        (lambda: kit.saved_bytes(x.sin, besides=[3]), TypeError, "besides must hold tensors"),
        (lambda: kit.training_memory("gpt2"), TypeError, "config must be"),
        (lambda: kit.training_memory(config, 5, optimizer="lion"), ValueError, "optimizer must"),
        (lambda: kit.training_memory(config, 5, precision="fp8"), ValueError, "precision must"),
        (lambda: kit.largest_batch(config, 0, 5), ValueError, "memory must be"),
        (lambda: kit.best_segment(0), ValueError, "n_layers must be"),
        (
            lambda: kit.checkpointed_bytes(preset("t5-small"), 5, every=1),
            ValueError,
            "an encoder or a decoder",
        ),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            call()
