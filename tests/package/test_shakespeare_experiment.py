"""The lab's models: counting by hand, runs that go on, and the shipped model against its log."""

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tfbook import data, experiments
from tfbook.data import rows
from tfbook.experiments import shakespeare
from tfbook.generation import Sampling, generate
from tfbook.pretrained import loading

TEXT = np.array([int(c) for c in "0120123012010220130120310021"])  # an alphabet of four, V = 4
V = 4


# n-grams


def by_hand(history, character, order):
    """Kneser-Ney by its definition, one n-gram after another, with the discounts that it finds."""
    whole = tuple(TEXT.tolist())

    def grams(k):
        return [whole[i : i + k] for i in range(len(whole) - k + 1)]

    def probability(h, c, k, top):
        if k == 0:
            return 1 / V
        if top:
            counts = Counter(grams(k))
        else:
            counts = Counter(gram[1:] for gram in set(grams(k + 1)))
        n = [sum(count == i for count in counts.values()) for i in range(1, 5)]
        cut = [0.5, 0.5, 0.5]
        if all(n):
            y = n[0] / (n[0] + 2 * n[1])
            cut = [max(0, i - (i + 1) * y * n[i] / n[i - 1]) for i in (1, 2, 3)]
        taken = {gram: min(cut[min(count, 3) - 1], count) for gram, count in counts.items()}
        h = h[len(h) - k + 1 :]
        begun = [gram for gram in counts if gram[:-1] == h]
        shorter = probability(h[1:], c, k - 1, False)
        if not begun:
            return shorter
        left = sum(taken[gram] for gram in begun)
        kept = counts[(*h, c)] - taken.get((*h, c), 0)
        return (kept + left * shorter) / sum(counts[gram] for gram in begun)

    return probability(history, character, order, True)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_n_grams_are_kneser_neys_by_its_definition(order):
    for history in ((0, 1), (2, 2), (3, 3), (1, 2)):
        for character in range(V):
            ids = np.array([*history, character])
            losses, _ = shakespeare.kneser_ney(TEXT, {"it": ids}, 3, V)
            wanted = by_hand(history, character, order)
            assert losses[order]["it"] == pytest.approx(-math.log(wanted))


def test_probabilities_of_all_next_characters_sum_to_one():
    generator = np.random.default_rng(0)
    train = generator.integers(0, 5, 400)
    for history in generator.integers(0, 7, (6, 4)):  # 5 and 6 never occurred
        total = 0.0
        for character in range(7):
            ids = np.array([*history, character])
            losses, _ = shakespeare.kneser_ney(train, {"it": ids}, 5, 7)
            total = total + np.exp([-losses[k]["it"] for k in range(1, 6)])
        np.testing.assert_allclose(total, 1)


def test_the_number_of_n_grams_is_that_of_different_ones():
    _, counted = shakespeare.kneser_ney(TEXT, {"it": TEXT}, 3, V)
    text = TEXT.tolist()
    for k, found in counted.items():
        assert found == len({tuple(text[i : i + k]) for i in range(len(text) - k + 1)})


# models and training


def test_a_fresh_model_of_ours_passes_its_embedding_on():
    model = shakespeare.make_model("ours", shakespeare.RECIPES["ours"], 63)
    states = model.hidden_states(torch.randint(63, (2, 5)))
    assert all(torch.equal(states[0], state) for state in states)


def test_the_three_are_of_one_size():
    sizes = {
        name: sum(
            w.numel() for w in shakespeare.make_model(name, recipe, 63).parameters()
        )
        for name, recipe in shakespeare.RECIPES.items()
        if name != "shipped"
    }  # fmt: skip
    assert max(sizes.values()) / min(sizes.values()) < 1.06
    assert sizes["ours"] == min(sizes.values())


def test_the_lstm_goes_on_from_its_state():
    model = shakespeare.CharacterLSTM(5, 3, 7)
    tokens = torch.randint(5, (2, 11))
    whole, _ = model(tokens)
    start, state = model(tokens[:, :4])
    rest, _ = model(tokens[:, 4:], state)
    torch.testing.assert_close(torch.cat([start, rest], 1), whole)


def small(folder, steps=4, name="ours"):
    recipe = replace(shakespeare.RECIPES[name], steps=steps, d_model=16, d_ff=24, batch=2)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(7, (1000,), generator=generator)
    valid = rows(ids[:600], shakespeare.CONTEXT)
    return shakespeare.Training(name, recipe, ids, valid, folder, seed=0, vocab_size=7)


@pytest.mark.parametrize("name", ["ours", "plain", "lstm"])
def test_a_training_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, name):
    whole, first = small(tmp_path / "whole", name=name), small(tmp_path / "cut", name=name)
    for steps in (2, 4):
        whole.go_on(steps)
    first.go_on(2)
    second = small(tmp_path / "cut", name=name)
    second.go_on(2)  # there is nothing to do
    second.go_on(4)
    for key in ("steps", "tokens", "train", "valid"):
        assert getattr(second.curve, key) == getattr(whole.curve, key)
    assert second.curve.seconds[1] > second.curve.seconds[0] > 0
    for mine, other in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)


# what was shipped


@pytest.fixture(scope="module")
def log():
    return experiments.log("shakespeare")


@pytest.fixture(scope="module")
def shipped():
    return loading.load("shakespeare")


def test_the_shipped_model_has_the_logged_loss(log, shipped):
    ids = torch.tensor(shipped.tokenizer.encode(data.shakespeare("valid")).ids)
    found = shakespeare.measure(shipped.model, rows(ids, shakespeare.CONTEXT))
    assert found == pytest.approx(log["final"]["shipped"]["valid"], abs=1e-3)
    assert shipped.model.count_parameters() == log["parameters"]["shipped"]
    assert shipped.config.n_layers == 4 and shipped.config.kind == "decoder"


def test_the_shipped_model_writes_what_is_logged(log, shipped):
    sample = log["sample"]
    found = generate(
        shipped.model,
        shipped.encode(sample["prompt"]),
        max_new_tokens=24,
        sampling=Sampling(temperature=sample["temperature"]),
        seed=sample["seed"],
    )
    assert sample["text"].startswith(sample["prompt"] + shipped.decode(found.tokens[0])[:8])


def test_the_shipped_model_reads_beyond_the_length_it_was_trained_on(shipped):
    ids = torch.tensor(shipped.tokenizer.encode(data.shakespeare("test")[:4097]).ids)
    short = shakespeare.measure(shipped.model, rows(ids, 256))
    long = shakespeare.measure(shipped.model, rows(ids, 1024))
    assert long < short


def test_characters_that_it_never_saw_are_named(shipped):
    with pytest.raises(ValueError, match="63 characters that the model knows.*got '_ß'"):
        shipped.encode("Stra_ße")
    assert shipped.decode(shipped.encode("To be,\nor not")[0]) == "To be,\nor not"
    assert shipped.tokens("o\n") == ["o", "\n"]


def test_a_changed_file_is_refused(monkeypatch, tmp_path):
    for path in experiments.RESULTS.glob("shakespeare.*"):
        raw = bytearray(path.read_bytes())
        if path.suffix == ".safetensors":
            raw[-1] ^= 1
        (tmp_path / path.name).write_bytes(raw)
    monkeypatch.setattr(loading, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match="shakespeare.safetensors is damaged.*get it anew"):
        loading.load("shakespeare")


def test_loading_draws_no_random_numbers():
    before = torch.get_rng_state()
    model = loading.load("shakespeare", dtype=torch.bfloat16).model
    assert torch.equal(torch.get_rng_state(), before)
    assert {w.dtype for w in model.parameters()} == {torch.bfloat16} and not model.training


def test_it_writes_from_the_command_line():
    command = "generate shakespeare --prompt KATE: --tokens 9".split()
    done = subprocess.run(
        [sys.executable, "-m", "tfbook", *command], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("KATE:") and len(done.stdout.rstrip("\n")) > 5


def test_the_log_tells_of_the_same_time_and_text_for_all(log):
    final = log["final"]
    assert final["ours"]["seconds"] == pytest.approx(final["plain"]["seconds"], rel=0.05)
    for name, curve in log["curves"].items():
        assert curve["steps"][-1] == final[name]["steps"] == log["settings"][name]["steps"]
        assert curve["seconds"] == sorted(curve["seconds"])
        assert curve["valid"][-1] == pytest.approx(final[name]["valid"], abs=2e-3)
        whole = final[name]["last_tenth"]
        assert min(final[name]["valid"], final[name]["test"]) <= whole
        assert final[name]["bits_per_character"] == pytest.approx(whole / math.log(2), abs=2e-4)
    orders = {k: each["valid"] for k, each in final["ngram"].items()}
    assert str(log["best_order"]) == min(orders, key=orders.get)
    assert json.dumps(log["settings"])


def test_what_the_book_teaches_makes_a_better_model_in_the_same_time(log):
    final = {
        name: each["last_tenth"] for name, each in log["final"].items() if "last_tenth" in each
    }
    assert final["shipped"] < final["ours"] < final["plain"] - 0.03 < final["uniform"]
