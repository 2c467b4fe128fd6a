"""How much do nine heads with a story bring back, in 48 pairs of prompts with many names?

SmolLM2-135M reads pairs of prompts of three templates, as in `name_mover`; in half of the pairs the
first name gives, in half the second. Nothing is trained. All numbers are shares of the difference
of a pair's two leads.

`rows` puts a row of the last token into the corrupted run: that of the clean prompt, or that of an
unrelated prompt in which the name at the same place gives, or at the other place. `sets` does the
same with groups of heads; "random" are as many heads as `NINE`, drawn anew for each of `draws`.
"lost" is what the clean prompt loses with what these heads gave in the corrupted one. `paths` are
the mean shares of some paths, for each template. `off` is what the clean prompt loses without
heads, if zeros stand in their place, their mean over unrelated prompts, or what they gave in the
corrupted one. `movers` says for each pair, in logits, what the name movers write towards the lead,
how far it falls with their mean in their place, and what the opponent writes before and after.

Explained in: chapters/10_interpretability_deeper, section "Switching heads off".
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tfbook import pretrained
from tfbook.interpret import (
    TEMPLATES,
    Prompts,
    Site,
    ablated,
    capture,
    direct_logits,
    head_site,
    indirect_object_prompts,
    logit_difference,
    patch_sites,
    path_patching,
    random_heads,
)

__all__ = ["GROUPS", "NINE", "SMOKE", "run"]

SMOKE = {"prompts": 1, "templates": 1, "draws": 1}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "{prompts} pairs of prompts for each of {templates} templates",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
PLACE = ((16, 0), (17, 4), (19, 2), (20, 0))
MOVERS = ((23, 0), (23, 1), (23, 2), (23, 7))
NINE = (*PLACE, *MOVERS, (23, 3))
LEFT_OUT = ((24, 4), (29, 0), (29, 1))  # of large shares, and without a story
GROUPS = {"L23H3": ((23, 3),), "L19H2, L20H0": PLACE[2:], "nine": NINE}
OFF = {"L23H3": ((23, 3),), "L1H5": ((1, 5),), "L24H4": ((24, 4),), "nine": NINE}
Source = Mapping[str, Tensor]


def leads(model, prompts: Prompts, tokens: Tensor) -> Tensor:
    """Return the lead of each prompt, (B,)."""
    return logit_difference(model(tokens, last=True)[0], prompts.right, prompts.wrong)


def passed(model, tokens: Tensor) -> Source:
    """Return what heads found and what entered each layer."""
    with capture(model, "*.mixer.z", "*.resid_pre") as seen:
        model(tokens, last=True)
    return dict(seen)


def shares(model, prompts: Prompts, sites: Sequence[Site], ends: tuple, runs: Mapping) -> dict:
    """Return what comes back by each of several runs, and what is lost, for each pair."""
    (good, bad), found = ends, {}
    for name in ("clean", "same place", "other place"):
        with patch_sites(model, sites, runs[name]):
            back = leads(model, prompts, prompts.corrupted) - bad
        found[name] = rounded(back / (good - bad))
    with patch_sites(model, sites, runs["corrupted"]):
        found["lost"] = rounded((good - leads(model, prompts, prompts.clean)) / (good - bad))
    return found


def rounded(x: Tensor) -> list[float]:
    """Return numbers for the log."""
    return [round(each, 4) for each in x.tolist()]


def paths_of(model, prompts: Prompts) -> dict[str, float]:
    """Return the mean shares of some paths."""
    ends = (model, prompts.clean, prompts.corrupted, prompts.metric)
    last, giver = [prompts.places["end"]], [prompts.places["repeated"]]
    two = [head_site(layer, head, places=last) for layer, head in PLACE[2:]]
    values = [head_site(layer, 0, "v", giver) for layer in (19, 20)]
    movers = [head_site(layer, head, "q", last) for layer, head in MOVERS]
    asked = {
        "L20H0 to the movers": (two[1], movers),
        "L19H2 to the movers": (two[0], movers),
        "both to the movers": (two, movers),
        "both to L23H3": (two, [head_site(23, 3, "q", last)]),
        "L17H4 to both": (head_site(17, 4, places=giver), values),
        "name to L23H3": (
            Site("stack.blocks.0.resid_pre", places=giver),
            [head_site(23, 1, "v", giver)],
        ),
    }
    return {
        name: round(path_patching(*ends, [sender], heard, through_ffn=True).item(), 4)
        for name, (sender, heard) in asked.items()
    }


def off_of(model, prompts: Prompts, groups: Mapping, ends: tuple, runs: Mapping, others) -> dict:
    """Return what is lost without heads, by what stands in their place."""
    (good, bad), found = ends, {}
    for name, heads in groups.items():
        found[name] = {}
        sites = [head_site(*each) for each in heads]
        for how, switched in (
            ("zero", ablated(model, heads, how="zero")),
            ("mean", ablated(model, heads, how="mean", reference=others)),
            ("resample", patch_sites(model, sites, runs["corrupted"])),
        ):
            with switched:
                lost = good - leads(model, prompts, prompts.clean)
            found[name][how] = rounded(lost / (good - bad))
    return found


def movers_of(model, prompts: Prompts, good: Tensor, others: Tensor) -> dict[str, list[float]]:
    """Return what name movers and the opponent write, with and without the name movers."""

    def written() -> Tensor:  # (L, H, B)
        return direct_logits(model, prompts.clean, prompts.right, prompts.wrong).heads()

    before = written()
    with ablated(model, MOVERS, how="mean", reference=others):
        after, left = written(), leads(model, prompts, prompts.clean)
    return {
        "write": rounded(sum(before[each] for each in MOVERS)),
        "fall": rounded(good - left),
        "opponent": rounded(before[24, 4]),
        "opponent after": rounded(after[24, 4]),
    }


@torch.no_grad()
def run(*, prompts: int = 16, templates: int = 3, draws: int = 5) -> tuple[dict, None]:
    """Put rows and heads of other runs into all prompts, and switch heads off."""
    language = pretrained.load("smollm2-135m")
    model = language.model
    generator = torch.Generator().manual_seed(3)
    chance = [
        random_heads(model, len(NINE), without=(*NINE, *LEFT_OUT), generator=generator)
        for _ in range(draws)
    ]
    log = {"settings": {"prompts": prompts, "templates": templates, "draws": draws}}
    log |= {name: [] for name in ("leads", "rows", "sets", "random", "paths", "off", "movers")}
    for template in TEMPLATES[:templates]:
        pairs, others = (
            indirect_object_prompts(
                language, prompts, template=template, generator=torch.Generator().manual_seed(seed)
            )
            for seed in (0, 7)
        )
        ends = tuple(leads(model, pairs, each) for each in (pairs.clean, pairs.corrupted))
        runs = {
            "clean": passed(model, pairs.clean),
            "corrupted": passed(model, pairs.corrupted),
            "same place": passed(model, others.clean),
        }
        runs["other place"] = {tap: x.roll(1, 0) for tap, x in runs["same place"].items()}
        last = [pairs.places["end"]]
        log["leads"].append([rounded(each) for each in ends])
        log["rows"].append({
            str(n): shares(
                model, pairs, [Site(f"stack.blocks.{n}.resid_pre", places=last)], ends, runs
            )
            for n in (23, 26)
        })  # fmt: skip
        sites = {name: [head_site(*each) for each in heads] for name, heads in GROUPS.items()}
        log["sets"].append(
            {name: shares(model, pairs, each, ends, runs) for name, each in sites.items()}
        )
        log["random"].append([
            shares(model, pairs, [head_site(*each) for each in heads], ends, runs)
            for heads in chance
        ])  # fmt: skip
        log["paths"].append(paths_of(model, pairs))
        groups = OFF | {f"random {i}": heads for i, heads in enumerate(chance)}
        log["off"].append(off_of(model, pairs, groups, ends, runs, others.clean))
        log["movers"].append(movers_of(model, pairs, ends[0], others.clean))
    return log, None
