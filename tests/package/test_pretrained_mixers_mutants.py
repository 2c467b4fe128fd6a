"""How hybrids and experts are read, proved: planted bugs, most caught without a pass of theirs."""

from types import SimpleNamespace

import fresh
import pytest
from fresh import Mutant
from test_pretrained_mixers import CHECKS

MIXED, NAMES = "tfbook.pretrained.mixed", "tfbook.pretrained.part_names"
CONVERSION, DECODERS = "tfbook.pretrained.conversion", "tfbook.pretrained.decoders"
PASS, BACK = "a_whole_pass_gives_their_logits", "names_and_numbers_come_back"
LIST = "the_layers_are_those_of_the_list"
MUTANTS = [
    Mutant(
        "gates taken for what they gate",
        MIXED,
        '{"gate": value[..., 0::2], "up": value[..., 1::2]}',
        '{"gate": value[..., 1::2], "up": value[..., 0::2]}',
        BACK,
        "gpt_oss",
    ),
    Mutant(
        "gate and up one after the other and not in turns",
        MIXED,
        "torch.stack(both, -1).flatten(-2)",
        "torch.cat(both, -1)",
        BACK,
        "gpt_oss",
    ),
    Mutant(
        "experts written in reverse",
        MIXED,
        "{part: torch.stack(values) for part",
        "{part: torch.stack(values[::-1]) for part",
        BACK,
        "gpt_oss",
    ),
    Mutant(
        "filters written without the columns that they see",
        CONVERSION,
        "        return value[:, None]\n",
        "        return value\n",
        BACK,
        "mamba",
    ),
    Mutant(
        "the number of a layer for that of an expert",
        CONVERSION,
        'replace("{i}", "{}").format(*numbers)',
        'replace("{i}", numbers[0] if numbers else "")',
        BACK,
        "mixtral",
    ),
    Mutant(
        "windows in the other layers",
        DECODERS,
        "return i % 2 == 1",
        "return i % 2 == 0",
        LIST,
        "gpt_oss",
    ),
    Mutant(
        "experts one layer too early",
        MIXED,
        "(i + 1) % step",
        "i % step",
        LIST,
        "qwen3_moe",
    ),
    Mutant(
        "layers that the file names plain have experts",
        MIXED,
        "if i in plain or",
        "if",
        LIST,
        "qwen3_moe",
    ),
    Mutant(
        "an attention in the wrong place of each period",
        MIXED,
        "part if i % period == offset else other",
        "part if (i + 1) % period == offset else other",
        LIST,
        "jamba",
    ),
    Mutant(
        "experts where there is one",
        MIXED,
        'several = settings.get("num_experts", 1) > 1',
        'several = settings.get("num_experts", 1) >= 1',
        LIST,
        "jamba without experts",
    ),
    Mutant(
        "weights that sum to 1",
        MIXED,
        'experts = _experts(settings, ffn, router="softmax") if several',
        'experts = _experts(settings, ffn, router="top_k") if several',
        PASS,
        "jamba",
    ),
    Mutant(
        "the gate of an expert under the other name",
        NAMES,
        '("w1", "w3", "w2")',
        '("w3", "w1", "w2")',
        PASS,
        "mixtral",
    ),
    Mutant(
        "the second factor of a gate without the 1",
        "tfbook.blocks.feed_forward",
        "torch.sigmoid(1.702 * gate) * (up + 1)",
        "torch.sigmoid(1.702 * gate) * up",
        PASS,
        "gpt_oss",
    ),
]


def kit_of(package, edits=None):
    return SimpleNamespace(pretrained=fresh.copies(package, ["tfbook.pretrained"], edits))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = kit_of("sick_pretrained", mutant.edits)
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[mutant.caught_by](sick, mutant.variant)


def test_the_copy_without_a_bug_passes():
    healthy = kit_of("healthy_pretrained")
    for name, variant in {(mutant.caught_by, mutant.variant) for mutant in MUTANTS}:
        CHECKS[name](healthy, variant)


def test_most_bugs_fall_without_a_pass_of_theirs():
    assert sum(mutant.caught_by != PASS for mutant in MUTANTS) >= 0.6 * len(MUTANTS)
