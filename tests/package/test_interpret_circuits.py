"""Circuits: scores against loops, weights against what passes, and a model known by hand."""

import copy

import numpy as np
import pytest
import torch
from test_interpret_lens import KIT, D, V, checks, close, ids, shipped, tiny

from tfbook import models, pretrained
from tfbook.interpret import circuits


@pytest.fixture
def kit():
    return KIT


def distinct(rows, n, vocab_size, seed=0):
    """Return random rows of n tokens, none twice, each row repeated once."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([
        torch.randperm(vocab_size, generator=generator)[:n] for _ in range(rows)
    ]).repeat(1, 2)  # fmt: skip


def without_biases(model):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
    return model


# where heads look


def test_scores_are_loops_over_tokens(kit):
    model, tokens = tiny(kit, "gpt2"), ids(3, 9, high=4)
    weights = torch.stack(model.attention_weights(tokens))  # (L, B, H, N, N)
    rules = {
        "previous_token_scores": lambda row, i, j: j == i - 1,
        "duplicate_token_scores": lambda row, i, j: j < i and row[j] == row[i],
        "prefix_matching_scores": lambda row, i, j: 1 <= j <= i and row[j - 1] == row[i],
    }
    for name, rule in rules.items():
        sums = []
        for b, row in enumerate(tokens.tolist()):
            for i in range(9):
                keys = [j for j in range(9) if rule(row, i, j)]
                if keys:
                    sums.append(weights[:, b, :, i, keys].sum(-1))
        wanted = torch.stack(sums).mean(0)
        close(getattr(kit, name)(model, tokens), wanted)


def test_scores_of_heads_that_look_everywhere_are_counts(kit):
    """Equal weights: the previous token gets 1 / (i + 1), the one copy behind a copy as much."""
    model, n = kit.induction_model(40, 24), 10
    tokens = distinct(5, n, 40)
    previous = sum(1 / (i + 1) for i in range(1, 2 * n)) / (2 * n - 1)
    again = sum(1 / (i + 1) for i in range(n, 2 * n)) / n
    for layer in (0, 1):
        assert abs(float(kit.previous_token_scores(model, tokens)[layer, 1]) - previous) < 1e-6
        for name in ("duplicate_token_scores", "prefix_matching_scores"):
            assert abs(float(getattr(kit, name)(model, tokens)[layer, 1]) - again) < 1e-6


def test_repeated_tokens_repeat(kit):
    tokens = kit.repeated_tokens(7, 5, 4, times=3, first=2, generator=torch.manual_seed(0))
    assert tokens.shape == (4, 16) and bool((tokens[:, 0] == 2).all())
    assert torch.equal(tokens[:, 1:6], tokens[:, 6:11])
    assert torch.equal(tokens[:, 1:6], tokens[:, 11:])
    many = kit.repeated_tokens(7, 4000, generator=torch.manual_seed(0))[0, :4000]
    counts = many.bincount(minlength=7)
    assert len(counts) == 7 and int(counts.min()) > 480 and int(counts.max()) < 660


# the model that is known


def test_the_model_by_hand_is_an_induction_circuit(kit):
    model, n = kit.induction_model(40, 24), 10
    tokens = distinct(5, n, 40)
    previous = kit.previous_token_scores(model, tokens)
    matching = kit.prefix_matching_scores(model, tokens)
    assert abs(float(previous[0, 0]) - 1) < 1e-6 and float(previous[1, 0]) < 0.2
    assert abs(float(matching[1, 0]) - 1) < 1e-6 and float(matching[0, 0]) < 1e-6
    close(kit.copying_scores(model), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), 1e-6)
    circuit = kit.token_ov(model, 1, 0)
    close(circuit, 50 * torch.eye(40), 1e-4)
    composed = {kind: kit.composition_scores(model, kind) for kind in "qkv"}
    for kind, scores in composed.items():
        scores[0, 0, 1, 0] -= 44**-0.5 if kind == "k" else 0.0  # one direction for place 0
        close(scores, torch.zeros(2, 2, 2, 2), 1e-6)


def test_the_model_by_hand_continues_what_it_has_read(kit):
    model = kit.induction_model(40, 24)
    tokens = distinct(6, 10, 40)
    logits = model(tokens)[0]
    p = logits.softmax(-1)[:, 10:-1].gather(-1, tokens[:, 11:, None])
    assert bool((p > 1 - 1e-6).all())
    start, state = model(tokens[:, :7])
    rest, _ = model(tokens[:, 7:], state)
    close(torch.cat([start, rest], 1), logits, 1e-4)
    seen = torch.tensor([[3, 3, 5, 3]])
    p = model(seen)[0][0, -1].softmax(-1)  # after 3 came a 3 and a 5, half each
    close(p[[3, 5]], torch.tensor([0.5, 0.5]), 1e-4)
    first = torch.tensor([[7, 3, 5, 1, 7]])  # place 0 has no token before, and is no copy
    assert int(model(first)[0][0, -1].argmax()) == 3
    assert model.config.count_parameters() == model.count_parameters()


def test_making_the_model_draws_no_random_numbers(kit):
    torch.manual_seed(0)
    kit.induction_model(5, 8)
    after = torch.randn(3)
    torch.manual_seed(0)
    assert torch.equal(after, torch.randn(3))


# circuits in the weights


def test_qk_circuits_are_the_scores(kit):
    """√d · scores = x A xᵀ on what the attention reads, at each distance where positions rotate."""
    for kind in ("gpt2", "llama"):
        model, tokens = without_biases(tiny(kit, kind)), ids()
        with kit.capture(model, "*.mixer.scores", "*.resid_pre") as seen:
            model(tokens)
        for layer, head in ((0, 1), (2, 2), (1, 0)):
            block = model.stack.blocks[layer]
            x = block.mixer_residual.norm(seen[f"stack.blocks.{layer}.resid_pre"])
            scores = seen[f"stack.blocks.{layer}.mixer.scores"][:, head] * block.mixer.d_head**0.5
            for i, j in ((0, 0), (5, 2), (6, 6), (4, 3)):
                distance = i - j if kind == "llama" else 0
                a = kit.qk_circuit(model, layer, head, distance=distance, fold=False)
                found = torch.einsum("bd,de,be->b", x[:, i], a, x[:, j])
                close(scores[:, i, j], found)
                assert int(torch.linalg.matrix_rank(a)) == 4


def test_a_negative_distance_is_a_key_that_comes_later(kit):
    model = tiny(kit, "llama")
    mixer = model.stack.blocks[0].mixer
    q = mixer.q_proj.weight[:4].mT.detach()
    k = mixer.k_proj.weight[:4].mT.detach()
    turn = mixer.position.rotate
    wanted = turn(q, torch.full((D,), 3)) @ turn(k, torch.full((D,), 5)).mT
    close(kit.qk_circuit(model, 0, 0, distance=-2, fold=False), wanted)


def test_ov_circuits_are_what_heads_write(kit):
    for kind in ("gpt2", "llama"):
        model, tokens = without_biases(tiny(kit, kind)), ids()
        with kit.capture(model, "*.mixer.pattern", "*.resid_pre") as seen:
            model(tokens)
        for layer, head in ((0, 1), (2, 2), (1, 0)):
            block = model.stack.blocks[layer]
            x = block.mixer_residual.norm(seen[f"stack.blocks.{layer}.resid_pre"])
            pattern = seen[f"stack.blocks.{layer}.mixer.pattern"][:, head]
            found = pattern @ x @ kit.ov_circuit(model, layer, head, fold=False)
            close(found, block.mixer.head_outputs(x)[:, head])


def test_a_norm_folded_in_is_the_norm_up_to_a_factor(kit):
    """norm(x) A norm(x)ᵀ = x A' xᵀ / (σ σ'), and the output with the factor of the connection."""
    for kind in ("gpt2", "llama", "multiplier"):
        model = without_biases(tiny(kit, kind))
        x = torch.randn(5, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        norm = model.stack.blocks[1].mixer_residual.norm
        centred = x if kind == "llama" else x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1) + norm.eps).sqrt()
        raw, folded = (kit.qk_circuit(model, 1, 2, fold=each) for each in (False, True))
        close(norm(x) @ raw @ norm(x).mT, x @ folded @ x.mT / spread[:, None] / spread)
        raw, folded = (kit.ov_circuit(model, 1, 2, fold=each) for each in (False, True))
        factor = 0.5 if kind == "multiplier" else 1.0
        close(factor * norm(x) @ raw, x @ folded / spread[:, None])


def test_token_circuits_speak_of_tokens(kit):
    model = without_biases(tiny(kit, "llama"))
    some = torch.tensor([3, 11, 5])
    e, last = model.embed.weight, model.stack.final_norm
    norm = model.stack.blocks[1].mixer_residual.norm
    sizes = (e.square().mean(-1) + norm.eps).sqrt()
    wanted = norm(e) @ kit.qk_circuit(model, 1, 3, distance=2, fold=False) @ norm(e).mT
    found = kit.token_qk(model, 1, 3, distance=2)
    close(found / sizes[:, None] / sizes, wanted)
    close(kit.token_qk(model, 1, 3, some, distance=2), found[some][:, some])
    written = norm(e) @ kit.ov_circuit(model, 1, 3, fold=False)  # (V, D)
    spread = (written.square().mean(-1) + last.eps).sqrt()
    whole = kit.token_ov(model, 1, 3)
    logits = model.head(last(written)[None], e)[0]
    close(logits * (sizes * spread)[:, None], whole, 1e-8)
    close(kit.token_ov(model, 1, 3, some), whole[some][:, some])


def test_a_copying_score_is_that_of_all_eigenvalues(kit):
    for kind in ("gpt2", "llama", "multiplier"):
        model = tiny(kit, kind)
        found = kit.copying_scores(model)
        for layer, head in ((0, 0), (2, 1)):
            values = np.linalg.eigvals(kit.token_ov(model, layer, head).detach().numpy())
            wanted = values.real.sum() / np.abs(values).sum()
            assert abs(float(found[layer, head]) - wanted) < 1e-6
            assert -1 <= wanted <= 1


def test_what_suppresses_has_the_opposite_score(kit):
    model = tiny(kit, "gpt2")
    before = kit.copying_scores(model)[1, 1]
    with torch.no_grad():
        model.stack.blocks[1].mixer.out_proj.weight.neg_()
    assert abs(kit.copying_scores(model)[1, 1] + before) < 1e-6
    known = kit.induction_model(9, 8)
    with torch.no_grad():
        known.stack.blocks[1].mixer.out_proj.weight.neg_()
    assert abs(kit.copying_scores(known)[1, 0] + 1) < 1e-6


def test_random_heads_copy_nothing_on_average(kit):
    m = kit.models
    torch.manual_seed(0)
    layer = m.Layer(m.Attention(8, d_head=8), m.NoFFN())
    config = m.TransformerConfig(60, 64, decoder=[layer] * 6)
    model = m.build(config.replace(tie_embeddings=False))
    assert abs(float(kit.copying_scores(model).mean())) < 0.1


def test_composition_is_the_norm_of_the_whole_product(kit):
    for kind in ("gpt2", "llama", "multiplier"):
        model = tiny(kit, kind)
        n_heads = model.stack.blocks[0].mixer.n_heads
        for which in "qkv":
            scores = kit.composition_scores(model, which)
            for first, h, m, g in ((0, 0, 1, 2), (0, 1, 2, 0), (1, 2, 2, 1)):
                wrote = kit.ov_circuit(model, first, h)
                qk = kit.qk_circuit(model, m, g)
                product, read = {
                    "q": (wrote @ qk, qk),
                    "k": (qk @ wrote.mT, qk),
                    "v": (wrote @ kit.ov_circuit(model, m, g), kit.ov_circuit(model, m, g)),
                }[which]
                wanted = product.norm() / (wrote.norm() * read.norm())
                assert abs(float(scores[first, h, m, g]) - float(wanted)) < 1e-6
            later = torch.ones(3, 3).triu(1).bool()
            assert bool(((scores > 0).all(3).all(1) == later).all())
            assert scores.shape == (3, n_heads, 3, n_heads)


def test_random_heads_compose_as_their_size_says(kit):
    m = kit.models
    torch.manual_seed(0)
    layer = m.Layer(m.Attention(4, d_head=16), m.NoFFN())
    model = m.build(m.TransformerConfig(20, 128, decoder=[layer] * 3))
    for kind in "qkv":
        scores = kit.composition_scores(model, kind)
        found = scores[scores > 0].mean() * 128**0.5
        assert 0.95 < float(found) < 1.05


def test_heads_exchanged_are_the_same_model(kit):
    """A head's number says nothing: with their weights two heads exchange all their scores."""
    model, tokens = tiny(kit, "gpt2"), ids(3, 9, high=4)
    other = copy.deepcopy(model)
    order = [2, 0, 1]
    with torch.no_grad():
        mixer = other.stack.blocks[1].mixer
        for name in ("q_proj", "k_proj", "v_proj"):
            for part in (getattr(mixer, name).weight, getattr(mixer, name).bias):
                part.copy_(part.unflatten(0, (3, 4))[order].flatten(0, 1))
        out = mixer.out_proj.weight
        out.copy_(out.unflatten(1, (3, 4))[:, order].flatten(1))
    close(other(tokens)[0], model(tokens)[0])
    a, b = (kit.prefix_matching_scores(each, tokens) for each in (model, other))
    close(a[1][order], b[1])
    close(a[[0, 2]], b[[0, 2]])
    assert abs(kit.copying_scores(other)[1, 0] - kit.copying_scores(model)[1, 2]) < 1e-6


# what is refused, in words


@pytest.mark.untyped
def test_bad_arguments_are_refused_in_words():
    model, mixed, tokens = tiny(KIT, "gpt2"), tiny(KIT, "hybrid"), ids()
    m, c = models, circuits
    plain = m.Layer(m.Attention(3, qk_norm=m.Norm("rms")), m.FFN(16))
    normed = m.build(m.TransformerConfig(V, D, decoder=[plain]))
    bad = {
        "vocab_size must be": lambda: c.repeated_tokens(0, 3),
        "first must be from 0 to 4": lambda: c.repeated_tokens(5, 3, first=5),
        "tokens must hold what": lambda: c.prefix_matching_scores(model, torch.arange(5)[None]),
        "tokens must have shape": lambda: c.previous_token_scores(model, tokens[0]),
        "attention in every layer": lambda: c.previous_token_scores(mixed, tokens),
        "in layers .0, 1, 2. that have heads": lambda: c.qk_circuit(model, 3, 0),
        "must be from 0 to 2": lambda: c.ov_circuit(model, 0, 3),
        "distance is for heads with rotary": lambda: c.qk_circuit(model, 0, 0, distance=1),
        "norms of queries and keys": lambda: c.qk_circuit(normed, 0, 0),
        "fold needs the norm before": lambda: c.ov_circuit(tiny(KIT, "post"), 0, 0),
        "kind must be one of": lambda: c.composition_scores(model, "o"),
        "as many heads in every layer": lambda: c.composition_scores(mixed, "q"),
        "tokens must have shape .T,.": lambda: c.token_qk(model, 0, 0, tokens),
        "tokens must be from 0 to 18": lambda: c.token_ov(model, 0, 0, torch.tensor([V])),
        "model must be a DecoderOnly": lambda: c.copying_scores(torch.nn.Linear(2, 2)),
        "max_len must be from 2": lambda: c.induction_model(5, 1),
        "sharpness must be from 1": lambda: c.induction_model(5, sharpness=0.0),
    }
    for message, call in bad.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()
    assert c.qk_circuit(tiny(KIT, "post"), 0, 0, fold=False).shape == (D, D)


# the shipped models


def test_the_shipped_model_has_a_head_for_the_previous_token():
    model = shipped().model
    tokens = circuits.repeated_tokens(
        model.config.vocab_size, 24, 2, generator=torch.Generator().manual_seed(0)
    )
    previous = circuits.previous_token_scores(model, tokens)
    assert float(previous.max()) > 0.5


def test_smollm2_has_induction_heads():
    """On random tokens, where no text helps: several heads look behind the copy."""
    model = pretrained.load("smollm2-135m").model
    tokens = circuits.repeated_tokens(
        model.config.vocab_size, 20, 1, generator=torch.Generator().manual_seed(0)
    )
    matching = circuits.prefix_matching_scores(model, tokens)
    previous = circuits.previous_token_scores(model, tokens)
    assert int((matching > 0.5).sum()) >= 3 and float(matching.median()) < 0.1
    first = int((previous > 0.5).any(1).nonzero()[0])
    assert first < int((matching > 0.5).any(1).nonzero()[0])
    with pytest.raises(ValueError, match="tokens are needed for more than 8192"):
        circuits.token_ov(model, 0, 0)


CHECKS = checks(globals())
