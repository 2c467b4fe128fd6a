"""The run behind the birth of induction: what its texts are, who can copy, what the log shows."""

import math

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import induction_birth
from tfbook.experiments.induction_birth import LENGTH, MODELS, PIECE, VOCABULARY, Smeared
from tfbook.interpret import induction_model, previous_token_scores

LOG = experiments.log("induction_birth")


def drawn(batch=200, seed=0, table=None):
    table = induction_birth.pairs() if table is None else table
    return induction_birth.stream(table, batch, torch.Generator().manual_seed(seed))


def test_a_piece_is_repeated_and_its_places_are_told():
    tokens, known = drawn()
    sizes = set()
    for row, places in zip(tokens, known, strict=True):
        size = int(places.nonzero()[0]) - 1
        assert torch.equal(row[size:], row[:-size]) and bool(places[size + 1 :].all())
        sizes.add(size)
    assert sizes == set(range(PIECE[0], PIECE[1] + 1))


def test_next_tokens_follow_the_table():
    """Each token has one that follows it, with the chance 0.9, until the piece ends."""
    table = torch.full((VOCABULARY, VOCABULARY), 0.1 / (VOCABULARY - 1))
    table[torch.arange(VOCABULARY), (torch.arange(VOCABULARY) + 5) % VOCABULARY] = 0.9
    tokens, _ = drawn(400, table=table)
    follows = tokens[:, 1:] == (tokens[:, :-1] + 5) % VOCABULARY
    assert follows[:, : PIECE[0] - 1].double().mean().item() == pytest.approx(0.9, abs=0.02)
    assert torch.equal(tokens, drawn(400, table=table)[0])


def test_pairs_are_shares():
    table = induction_birth.pairs()
    assert table.min() > 0 and torch.allclose(table.sum(-1), torch.ones(VOCABULARY))


def test_smeared_keys_hold_the_key_before():
    torch.manual_seed(0)
    plain = torch.nn.Linear(6, 4)
    smeared, x = Smeared(plain), torch.randn(2, 5, 6)
    smeared.share.data.fill_(-1.0)
    share, keys = 1 / (1 + math.e), plain(x)
    for i in range(5):
        before = keys[:, i - 1] if i else torch.zeros(2, 4)
        wanted = share * keys[:, i] + (1 - share) * before
        torch.testing.assert_close(smeared(x)[:, i], wanted)


def test_the_models_are_what_their_names_say():
    parts = {name: induction_birth.model_of(name) for name in MODELS}
    blocks = {name: list(model.stack.blocks) for name, model in parts.items()}
    assert [len(b) for b in blocks.values()] == [1, 1, 2]
    assert not any(list(b.ffn.parameters()) for each in blocks.values() for b in each)
    smeared = [isinstance(b[0].mixer.k_proj, Smeared) for b in blocks.values()]
    assert smeared == [False, True, False]


@pytest.fixture(scope="module")
def looks():
    return induction_birth.Looks(induction_birth.pairs(), 8)


def test_who_copies_is_seen_on_random_tokens_and_at_repeats(looks):
    """The model whose weights are set by hand copies, and has nothing of the pairs."""
    model = induction_model(VOCABULARY, LENGTH)
    seen = looks.numbers(model)
    assert seen["random"] < seen["random_first"] - 5
    assert seen["repeats"] < seen["others"] - 5 and seen["in_context"] < 0
    scores = looks.scores(model)
    assert scores["prefix"].argmax() == 2 and scores["prefix"][1, 0] > 0.99
    assert scores["previous"].argmax() == 0
    found = looks.found(model)
    assert (found["induction"], found["previous"]) == ([1, 0], [0, 0])
    assert found["prefix_without_previous"] < 0.2
    effects = looks.effects(model)
    assert effects[:, 0].abs().min() > 0.1 and effects[:, 1].abs().max() < 1e-3


def test_losses_are_those_of_the_places_they_name(looks):
    """A model that is sure of one token is right where that token stands, and nowhere else."""

    class Says(torch.nn.Module):
        def forward(self, tokens):
            scores = torch.zeros(*tokens.shape, VOCABULARY)
            scores[..., 7] = 50.0
            return scores, None

    seen, right = looks.numbers(Says()), looks.tokens == 7
    for name, places in (("repeats", looks.known), ("others", ~looks.known)):
        places = places[:, 1:]
        wanted = 50 * (1 - right[:, 1:][places].double().mean().item())
        assert seen[name] == pytest.approx(wanted, abs=1e-3)
    late, early = right[:, 40:48].double().mean(), right[:, 1:8].double().mean()
    assert seen["in_context"] == pytest.approx(50 * (early - late).item(), abs=1e-3)


def test_a_jump_is_the_first_look_beyond_the_limit():
    seen = {
        "random_first": [4.2, 4.2, 4.3, 4.3], "random": [4.2, 3.5, 3.2, 1.0],
        "prefix": [[[0.1], [0.2]], [[0.1], [0.4]], [[0.2], [0.3]], [[0.1], [0.5]]],
    }  # fmt: skip
    assert induction_birth._jump(seen, 20) == {"loss": 40, "prefix": None}


def test_the_log_has_every_model_seed_and_look():
    looked, effects = len(LOG["after"]), len(LOG["effects_after"])
    assert LOG["models"] == list(MODELS)
    for key in ("loss", "repeats", "others", "in_context", "random", "random_first", "prefix"):
        assert list(LOG[key]) == list(MODELS)
        for runs in LOG[key].values():
            assert [len(run) for run in runs] == [looked] * len(LOG["settings"]["seeds"])
    for name, runs in LOG["effects"].items():
        wanted = (effects, MODELS[name]["layers"], induction_birth.HEADS)
        assert {torch.tensor(run).shape for run in runs} == {wanted}
    assert list(LOG["composition"]) == [n for n, choice in MODELS.items() if choice["layers"] > 1]


def test_no_model_knows_more_than_there_is_to_know():
    for name in MODELS:
        for run in range(len(LOG["settings"]["seeds"])):
            assert min(LOG["random_first"][name][run]) > math.log(VOCABULARY) - 0.02
            assert min(LOG["others"][name][run]) > LOG["entropy_of_pairs"] - 0.05


def test_two_layers_copy_and_one_does_not():
    """The part of the result that the book leans on, for every seed."""
    jumps = LOG["jump"]
    assert all(jump == {"loss": None, "prefix": None} for jump in jumps["1 layer"])
    for early, late in zip(jumps["1 layer, smeared keys"], jumps["2 layers"], strict=True):
        assert 0 < early["loss"] < late["loss"] and 0 < early["prefix"] < late["prefix"]


def test_the_heads_are_needed_after_the_jump_and_not_before():
    at = LOG["effects_after"].index(200)
    for run, found in zip(LOG["effects"]["2 layers"], LOG["found"]["2 layers"], strict=True):
        for (layer, head), nats in ((found["induction"], 0.5), (found["previous"], 1.5)):
            before, after = run[at][layer][head], run[-1][layer][head]
            assert after > nats and before < 0.25 * after


def test_the_weights_are_those_of_the_log():
    model = induction_birth.model_of("2 layers")
    model.load_state_dict(experiments.weights("induction_birth"))
    looks = induction_birth.Looks(induction_birth.pairs(), LOG["settings"]["tests"])
    assert looks.numbers(model)["random"] == pytest.approx(
        LOG["random"]["2 layers"][0][-1], abs=0.01
    )
    scores = previous_token_scores(model, looks.random)
    logged = torch.tensor(LOG["previous"]["2 layers"][0][-1])
    torch.testing.assert_close(scores, logged, atol=2e-3, rtol=0)
