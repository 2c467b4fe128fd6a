"""Ways to continue a text: the search is the package's, and the run holds what is compared."""

import pytest
import torch

from tfbook import experiments, generation
from tfbook.experiments import written_ways
from tfbook.models import FFN, Attention, Layer, Rotary, TransformerConfig, build


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    layer = Layer(Attention(2, position=Rotary()), FFN(32))
    made = build(TransformerConfig(23, 16, decoder=[layer])).eval()
    for weight in made.parameters():
        weight.data.mul_(2)  # so that continuations differ in probability
    return made.requires_grad_(False)


def test_beams_side_by_side_find_what_a_search_of_each_text_finds(model):
    ids = torch.randint(23, (5, 6), generator=torch.Generator().manual_seed(1))
    wanted = [
        generation.beam_search(model, row[None], n_beams=3, max_new_tokens=7)[0][0].tokens
        for row in ids
    ]
    assert written_ways.beams_of_each(model, ids, 3, 7) == [list(row) for row in wanted]
    assert written_ways.beams_of_each(model, ids, 1, 7) != [list(row) for row in wanted]


def test_a_token_that_is_forbidden_does_not_come(model):
    ids = torch.randint(23, (5, 6), generator=torch.Generator().manual_seed(1))
    free = written_ways.beams_of_each(model, ids, 2, 7)
    ends = {row[2] for row in free}
    held = written_ways.beams_of_each(model, ids, 2, 7, sorted(ends))
    assert not ends & {token for row in held for token in row}


def test_a_text_repeats_where_a_run_comes_twice():
    assert written_ways.repeats([*range(8), 9, *range(8)])
    assert written_ways.repeats([1] * 9)
    assert not written_ways.repeats([*range(7), 9, *range(7)])
    assert not written_ways.repeats([1] * 8)


def test_the_shipped_run_holds_what_is_compared():
    log = experiments.log("written_ways")
    ways = ["four beams", *written_ways.WAYS, "people"]
    means = [sum(log["surprise"][way]) / 16 for way in ways]
    assert means == sorted(means)  # from the search for the probable to people
    repeated = [sum(log["repeats"][way]) for way in ways]
    assert repeated[1] > repeated[2] >= repeated[3] == repeated[4] == repeated[5] == 0
    assert repeated[0] >= 4
