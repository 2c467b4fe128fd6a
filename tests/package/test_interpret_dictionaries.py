"""Dictionaries and steering: against loops and sums, recovered directions, and what is refused.

A test that takes `kit` gets the modules; planted bugs (test_interpret_dictionary_mutants.py) are
put through the same tests.
"""

import importlib

import pytest
import torch
from test_interpret_lens import checks, ids, kit_of, tiny
from torch.nn import functional

from tfbook import models
from tfbook.interpret import dictionaries, steering

MODULES = {"models": models} | {
    name: importlib.import_module(f"tfbook.interpret.{name}")
    for name in ("capturing", "lens", "dictionaries", "steering")
}
KIT = kit_of(**MODULES)
POST = "stack.blocks.1.resid_post"


@pytest.fixture
def kit():
    return KIT


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sparse_rows(n, count=6, d=4, on=2, seed=0):
    """Return rows that are sums of few of `count` directions, and the directions."""
    generator = seeded(seed)
    directions = functional.normalize(torch.randn(count, d, generator=generator), dim=-1)
    order = torch.rand(n, count, generator=generator).argsort(-1)[:, :on]
    z = torch.zeros(n, count).scatter(1, order, 0.5 + torch.rand(n, on, generator=generator))
    return z @ directions, directions


def random_dictionary(kit, d=12, d_out=None, dtype=torch.float64):
    dictionary = kit.SparseDictionary(d, 20, 5, d_out, generator=seeded(3), dtype=dtype)
    rows = torch.randn(40, d, generator=seeded(4), dtype=dtype)
    wanted = None if d_out is None else torch.randn(40, d_out, generator=seeded(5), dtype=dtype)
    dictionary.standardize(3 * rows + 1, wanted)
    with torch.no_grad():
        dictionary.encoder.bias.copy_(torch.linspace(-0.3, 0.3, 20))
        dictionary.offset.copy_(torch.linspace(-1, 1, d_out or d))
    return dictionary


def test_a_row_is_written_with_its_largest_features(kit):
    """A loop over rows and features."""
    dictionary = random_dictionary(kit)
    x = torch.randn(9, 12, generator=seeded(1), dtype=torch.float64)
    dictionary.requires_grad_(False)
    z, made = dictionary.encode(x), dictionary(x)
    for row, features, written in zip(x, z, made, strict=True):
        scores = []
        for f in range(20):
            read = dictionary.encoder.weight[f] @ ((row - dictionary.mean_in) / dictionary.scale_in)
            scores.append(max(0.0, float(read + dictionary.encoder.bias[f])))
        kept = sorted(range(20), key=lambda f: -scores[f])[:5]
        expected = [scores[f] if f in kept else 0.0 for f in range(20)]
        torch.testing.assert_close(features, torch.tensor(expected, dtype=torch.float64))
        total = dictionary.offset + sum(scores[f] * dictionary.directions[f] for f in kept)
        whole = dictionary.mean_out + dictionary.scale_out * total
        torch.testing.assert_close(written, whole)


def test_means_and_scales_are_those_of_the_rows(kit):
    x = 3 * torch.randn(5000, 4, generator=seeded(2)) + torch.tensor([1.0, 2.0, 3.0, 4.0])
    y = torch.randn(5000, 2, generator=seeded(3)) / 10 - 5
    dictionary = kit.SparseDictionary(4, 8, 2, 2)
    dictionary.standardize(x, y)
    torch.testing.assert_close(dictionary.mean_in, x.mean(0))
    torch.testing.assert_close(dictionary.mean_out, y.mean(0))
    assert dictionary.scale_in.item() == pytest.approx(3, rel=0.03)
    assert dictionary.scale_out.item() == pytest.approx(0.1, rel=0.03)


def test_scale_and_mean_of_the_rows_make_no_difference(kit):
    """Rows that are moved and stretched are learnt as well, up to rounding."""
    x, _ = sparse_rows(400)
    lost = []
    for rows in (x, 1000 * x + 77):
        dictionary = kit.SparseDictionary(4, 12, 2, generator=seeded(1))
        kit.fit_dictionary(dictionary, rows, steps=40, batch=64, lr=0.01, generator=seeded(2))
        lost.append(kit.fidelity(dictionary, rows).unexplained)
    assert lost[0] == pytest.approx(lost[1], rel=0.02)


def test_training_finds_the_directions_that_rows_were_made_of(kit):
    x, directions = sparse_rows(3000, seed=7)
    dictionary = kit.SparseDictionary(4, 12, 2, generator=seeded(1))
    before = kit.fidelity(dictionary, x).unexplained
    kit.fit_dictionary(dictionary, x, steps=400, batch=128, lr=0.02, generator=seeded(2))
    after = kit.fidelity(dictionary, x)
    alike = (directions @ dictionary.directions.detach().T).abs().amax(-1)
    assert after.unexplained < 0.05 < 0.3 < before
    assert after.used <= 2
    assert alike.mean() > 0.9
    torch.testing.assert_close(dictionary.directions.norm(dim=-1), torch.ones(12))


def shadowed(kit, auxiliary):
    """Train with a feature that always says half of what another one says, so is never chosen."""
    v = functional.normalize(torch.tensor([1.0, 2.0, -1.0, 0.5]), dim=0)
    x = torch.randn(300, 1, generator=seeded(3)) * v + 0.1 * torch.randn(
        300, 4, generator=seeded(4)
    )
    dictionary = kit.SparseDictionary(4, 2, 1, generator=seeded(1))
    with torch.no_grad():
        dictionary.encoder.weight.copy_(torch.stack([v, v / 2]))
    before = dictionary.directions[1].clone()
    history = kit.fit_dictionary(
        dictionary, x, steps=8, batch=64, auxiliary=auxiliary, dead_after=3, generator=seeded(2)
    )
    return (dictionary.directions[1] - before).abs().max().item(), history


def test_only_the_auxiliary_loss_reaches_a_dead_feature(kit):
    moved, history = shadowed(kit, 1.0)
    assert moved > 1e-3
    assert shadowed(kit, 0.0)[0] < 1e-6
    assert history.dead.tolist() == [0, 0] + 6 * [0.5]  # after three steps without use
    assert len(history.unexplained) == 8


def test_the_history_begins_with_the_loss_before_training(kit):
    x, _ = sparse_rows(200)
    dictionary = kit.SparseDictionary(4, 12, 2, generator=seeded(1))
    history = kit.fit_dictionary(dictionary, x, steps=1, batch=5000, generator=seeded(2))
    fresh = kit.SparseDictionary(4, 12, 2, generator=seeded(1))
    fresh.standardize(x)
    first = kit.fidelity(fresh, x).unexplained
    assert history.unexplained[0].item() == pytest.approx(first, rel=0.05)


def test_training_goes_on_from_where_it_was(kit):
    """Not standardised again: means of the second half would be others."""
    x, _ = sparse_rows(200)
    dictionary = kit.SparseDictionary(4, 12, 2, generator=seeded(1))
    kit.fit_dictionary(dictionary, x, steps=2, batch=20, generator=seeded(2))
    mean = dictionary.mean_in.clone()
    kit.fit_dictionary(dictionary, x + 5, steps=2, batch=20, standardize=False)
    assert torch.equal(mean, dictionary.mean_in)


def test_fidelity_counts_what_it_says(kit):
    dictionary = random_dictionary(kit).requires_grad_(False)
    x = torch.randn(2500, 12, generator=seeded(6), dtype=torch.float64) * 3 + 1
    found = kit.fidelity(dictionary, x)
    z, made = dictionary.encode(x), dictionary(x)
    assert found.unexplained == pytest.approx(float((x - made).var(0, correction=0).sum()
        + (x - made).mean(0).square().sum()) / float(x.var(0, correction=0).sum()))  # fmt: skip
    assert found.used == pytest.approx(float((z > 0).sum()) / 2500)
    assert found.dead == float((z.amax(0) == 0).double().mean())
    torch.testing.assert_close(found.density, (z > 0).double().mean(0).float())


@pytest.mark.parametrize("kind", ["gpt2", "llama", "multiplier"])
def test_rows_are_those_that_the_parts_read_and_write(kind):
    model = tiny(KIT, kind)
    tokens, block = ids(3, 7), model.stack.blocks[1]
    with KIT.capture(model, "*.1.resid_mid", "*.1.resid_post") as seen:
        model(tokens)
    x, y = KIT.dictionary_rows(model, tokens, 1, "ffn")
    read = block.ffn_residual.norm(seen["stack.blocks.1.resid_mid"])
    wrote = block.ffn(read) * (0.5 if kind == "multiplier" else 1)
    torch.testing.assert_close(x, read.flatten(0, 1))
    torch.testing.assert_close(y, wrote.flatten(0, 1))
    stream, same = KIT.dictionary_rows(model, tokens, 1)
    assert stream is same or torch.equal(stream, same)
    torch.testing.assert_close(stream, seen[POST].flatten(0, 1))


class Perfect:
    """Make a dictionary that copies rows, or the network it stands for."""

    @staticmethod
    def of(kit, d):
        dictionary = kit.SparseDictionary(d, 2 * d, d, dtype=torch.float64)
        basis = torch.eye(d, dtype=torch.float64)
        with torch.no_grad():
            dictionary.directions.copy_(torch.cat([basis, -basis]))
            dictionary.encoder.weight.copy_(dictionary.directions)
        return dictionary


def test_a_perfect_copy_changes_nothing_and_the_mean_row_recovers_nothing(kit):
    model, tokens = tiny(kit, "llama"), ids(4, 7)
    dictionary = Perfect.of(kit, 12)
    expected = model(tokens)[0]
    with kit.spliced(model, dictionary, 1):
        torch.testing.assert_close(model(tokens)[0], expected)
    assert torch.equal(model(tokens)[0], expected)
    found = kit.recovered_loss(model, dictionary, tokens, 1)
    assert found.share == pytest.approx(1)
    logits = model(tokens[:, :-1])[0]
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    assert found.clean == pytest.approx(loss)
    rows, _ = kit.dictionary_rows(model, tokens[:, :-1], 1)
    with torch.no_grad():  # one feature that is always off: the mean row is all it writes
        dictionary.encoder.bias.fill_(-1e9)
        dictionary.mean_out.copy_(rows.mean(0))
    nothing = kit.recovered_loss(model, dictionary, tokens, 1)
    assert nothing.share == pytest.approx(0, abs=1e-9)
    assert nothing.ablated == pytest.approx(nothing.spliced)


def test_a_transcoder_stands_where_the_network_stood(kit):
    """Spliced is the sum of what was there and what it writes, as written out by hand."""
    model, tokens = tiny(kit, "gpt2"), ids(2, 7)
    transcoder = random_dictionary(kit, d_out=12)
    before = model.hidden_states(tokens)[1]
    block = model.stack.blocks[1]
    x = before + block.mixer(block.mixer_residual.norm(before))[0]
    x = x + transcoder(block.ffn_residual.norm(x))
    for each in model.stack.blocks[2:]:
        x, _ = each(x)
    with kit.spliced(model, transcoder, 1, "ffn"):
        torch.testing.assert_close(model(tokens)[0], kit.unembed(model, x))


def test_separation_is_the_share_of_pairs_in_order(kit):
    z = torch.randint(0, 4, (40, 5), generator=seeded(8)).double()
    labels = torch.rand(40, generator=seeded(9)) < 0.3
    found = kit.separation(z, labels)
    for f in range(5):
        wins = [float(a > b) + float(a == b) / 2 for a in z[labels, f] for b in z[~labels, f]]
        assert found[f].item() == pytest.approx(sum(wins) / len(wins))


def test_the_mean_difference_is_one_of_means(kit):
    x = torch.randn(30, 6, generator=seeded(1))
    labels = torch.arange(30) % 3 == 0
    expected = x[::3].sum(0) / 10 - (x.sum(0) - x[::3].sum(0)) / 20
    torch.testing.assert_close(kit.mean_difference(x, labels), expected)


def test_steering_adds_so_much_to_every_row_and_goes_away(kit):
    model, tokens = tiny(kit, "gpt2"), ids(2, 5)
    direction = torch.randn(12, generator=seeded(2), dtype=torch.float64)
    clean = model(tokens)[0]
    with kit.capture(model, POST) as before:
        model(tokens)
    with kit.steered(model, POST, 7 * direction, -2.5), kit.capture(model, POST) as after:
        model(tokens)
    added = after[POST] - before[POST]
    torch.testing.assert_close(added, (-2.5 * direction / direction.norm()).expand(2, 5, 12))
    assert torch.equal(model(tokens)[0], clean)


def test_effects_are_those_of_a_loop(kit):
    model, tokens = tiny(kit, "llama"), ids(20, 6)  # more than one chunk
    direction = torch.randn(12, generator=seeded(2), dtype=torch.float64)
    wanted = torch.arange(19) % 4 == 0
    found = kit.steering_effects(model, tokens, POST, direction, [0.0, 3.0], wanted)
    base = model(tokens[:, :-1])[0].softmax(-1).flatten(0, 1)
    for i, strength in enumerate((0.0, 3.0)):
        with kit.steered(model, POST, direction, strength):
            q = model(tokens[:, :-1])[0].softmax(-1).flatten(0, 1)
        share, others, loss = [], [], []
        for p_row, q_row, token in zip(base, q, tokens[:, 1:].flatten(), strict=True):
            share.append(q_row[wanted].sum())
            p_rest, q_rest = (row[~wanted] / row[~wanted].sum() for row in (p_row, q_row))
            others.append((p_rest * (p_rest.log() - q_rest.log())).sum())
            loss.append(-q_row[token].log())
        for name, each in (("wanted", share), ("others", others), ("loss", loss)):
            expected = torch.stack(each).mean().item()
            assert getattr(found, name)[i].item() == pytest.approx(expected, abs=1e-5)


def test_moving_probability_to_the_wanted_tokens_alone_has_no_side_effect(kit):
    """Behind the last layer of a model without a norm there: the direction is a token's own row."""
    m = kit.models
    layer = m.Layer(m.Attention(2), m.FFN(16), place="none")
    model = m.build(m.TransformerConfig(7, 8, decoder=[layer] * 2, final_norm=False)).double()
    with torch.no_grad():
        model.embed.weight.copy_(torch.eye(7, 8))
    tokens = ids(2, 5) % 7
    found = kit.steering_effects(
        model, tokens, POST, torch.eye(8, dtype=torch.float64)[3], [0.0, 4.0],
        torch.arange(7) == 3,
    )  # fmt: skip
    assert found.wanted[1] > found.wanted[0] + 0.2
    assert found.others.abs().max() < 1e-6


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, m: k.SparseDictionary(4, 8, 9), "k must be from 1 to 8"),
        (lambda k, m: k.SparseDictionary(4, 8, 2)(torch.zeros(3, 5)), "x must have shape"),
        (
            lambda k, m: k.SparseDictionary(4, 8, 2).standardize(torch.ones(3, 4)),
            "rows that differ",
        ),
        (
            lambda k, m: k.fit_dictionary(k.SparseDictionary(4, 8, 2, 4), torch.zeros(3, 4)),
            "y does",
        ),
        (
            lambda k, m: k.fit_dictionary(k.SparseDictionary(4, 8, 2), torch.rand(3, 4), lr=2.0),
            "lr must be",
        ),
        (lambda k, m: k.dictionary_rows(m, ids(1, 3), 3), "layer must be from 0 to 2"),
        (lambda k, m: k.dictionary_rows(m, ids(1, 3), 0, "head"), "part must be one of"),
        (lambda k, m: k.spliced(m, random_dictionary(k), 0, "ffn"), "must be a transcoder"),
        (lambda k, m: k.spliced(m, random_dictionary(k, 11), 0), "rows of 12 numbers"),
        (lambda k, m: k.recovered_loss(m, random_dictionary(k), ids(2, 1), 0), "at least two"),
        (lambda k, m: k.separation(torch.ones(3, 2), torch.ones(3).bool()), "both kinds"),
        (lambda k, m: k.mean_difference(torch.ones(3, 2), torch.ones(2).bool()), "labels must"),
        (lambda k, m: k.steered(m, POST, torch.zeros(12), 1.0), "length above 0"),
        (lambda k, m: k.steered(m, "stack.blocks.1.post", torch.ones(12), 1.0), "no tap"),
        (
            lambda k, m: k.steering_effects(
                m, ids(1, 3), POST, torch.ones(12), [1.0], torch.ones(19).bool()
            ),
            "not all of them",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(KIT, tiny(KIT, "gpt2"))


@pytest.mark.untyped
def test_a_post_norm_model_and_other_types_are_refused():
    with pytest.raises(ValueError, match="pre-norm"):
        dictionaries.dictionary_rows(tiny(KIT, "post"), ids(1, 3), 0)
    with pytest.raises(TypeError, match="dictionary must be a SparseDictionary"):
        dictionaries.fidelity(torch.nn.Linear(2, 2), torch.ones(2, 2))
    with pytest.raises(TypeError, match="wanted must be boolean"):
        steering.steering_effects(
            tiny(KIT, "gpt2"), ids(1, 3), POST, torch.ones(12), [1.0], torch.ones(19)
        )


CHECKS = checks(globals())
