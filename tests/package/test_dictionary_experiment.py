"""The run behind "Dictionaries" and "Steering": how looks are counted, and what the log holds."""

import pytest
import torch

from tfbook import experiments, pretrained
from tfbook.data import rows, shakespeare
from tfbook.experiments import dictionary
from tfbook.interpret.dictionaries import dictionary_rows
from tfbook.interpret.steering import mean_difference, steering_effects

LOG = experiments.log("dictionary")
SET = LOG["settings"]
LOSSES = {"clean", "spliced", "mean_row"}


def test_rows_are_alike_if_they_stand_at_one_character():
    keys = torch.arange(60) % 3
    z = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)) / 10
    z[keys == 1, 0] += 1  # on where the key is 1
    z[:, 1] = 0
    z[:5, 1] = 1  # on in few rows
    assert dictionary.alike(z, keys, 20)[0] == 1
    assert len(dictionary.alike(z, keys, 20)) == 2
    assert dictionary.alike(z, keys, 20)[1] < 0.8


def test_codes_are_equal_where_the_last_characters_are():
    tokens = torch.tensor([[1, 2, 3, 1, 2, 3, 2, 3]])
    found = dictionary.codes(tokens, 3, 5)
    assert found[2] == found[5] and len(set(found.tolist())) == 7
    assert torch.equal(dictionary.codes(tokens, 1, 5), tokens.flatten())


def test_a_column_is_chosen_on_one_text_and_measured_on_another():
    labels = [torch.arange(64) % 16 < 8, torch.arange(10) % 2 == 0]
    before = torch.stack([torch.zeros(8), labels[0][:: dictionary.STRIDE].float()], -1)
    after = torch.stack([labels[1].float(), 1 - labels[1].float()], -1)
    assert dictionary.area(before, after, labels) == 0


def test_properties_are_those_of_the_characters():
    found = dictionary.labels_of(["A", "e", "\n", " ", "U", "z"], "a vowel")
    assert found.tolist() == [True, True, False, False, True, False]
    found = dictionary.labels_of(["A", "e", "\n", " ", "U", "z"], "a capital")
    assert found.tolist() == [True, False, False, False, True, False]


def test_the_log_has_every_dictionary_and_every_direction():
    seeds = len(LOG["seeds"])
    for part in ("stream", "ffn"):
        for runs in LOG["dictionaries"][part].values():
            assert len(runs) == seeds
            for each in runs:
                assert each.keys() >= LOSSES and 0 < each["unexplained"] < 1
                assert each["used"] <= SET["k"] + 0.01
    for found in LOG["steering"].values():
        for ways in ("best feature", "feature that moves most", "random direction"):
            assert len(found[ways]) == seeds
        for each in found["difference of means"]:
            assert len(each["wanted"]) == len(SET["lengths"])
            assert each["others"][0] == 0


@pytest.mark.slow
def test_the_difference_of_means_does_what_the_log_says():
    """Made anew from fewer rows."""
    loaded = pretrained.load("shakespeare")
    texts = [
        rows(torch.tensor(loaded.tokenizer.encode(shakespeare(split)).ids), SET["context"])
        for split in ("train", "test")
    ]
    characters = [loaded.tokenizer.id_to_token(i) for i in range(loaded.config.vocab_size)]
    wanted = dictionary.labels_of(characters, "a capital")
    train = texts[0][::100]
    x, _ = dictionary_rows(loaded.model, train[:, :-1], SET["layer"])
    toward = mean_difference(x, wanted[train[:, 1:].flatten()])
    told = LOG["steering"]["a capital"]
    strength = SET["lengths"][3] * told["unit"]
    tap = f"stack.blocks.{SET['layer']}.resid_post"
    held = texts[1][:: len(texts[1]) // SET["held"]][: SET["held"]][::2]
    found = steering_effects(loaded.model, held, tap, toward, [0.0, strength], wanted)
    expected = told["difference of means"][0]["wanted"]
    assert found.wanted[0].item() == pytest.approx(expected[0], abs=0.001)
    assert found.wanted[1].item() == pytest.approx(expected[3], rel=0.15)
