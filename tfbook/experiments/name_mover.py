"""Which parts of SmolLM2 carry a name to the end of a sentence, and how much do they explain?

SmolLM2-135M reads pairs of prompts of three templates, "When Mary and John went to the store, John
gave a drink to" and the same with Mary as the giver. The lead is the logit of the name that should
follow less that of the other one. Nothing is trained.

Part by part, what passed in the first prompt is put into the run on the second; a share is how much
of the difference of the two leads comes back. The log holds in `grid` the shares of the stream that
enters each layer, of what its attention and of what its network adds, for each layer and token of
the pair `TOLD`; in `heads` those of each head of the layers `late`, the mean over pairs with other
names, for every template, and in `top` the heads of the largest mean. `controls` are
the shares of the first of them with the activations of unrelated prompts, and of as many heads
drawn at random. `feeders` are the shares of the lead that the first heads' queries owe to each head
of the layers `early` directly, in the pair `TOLD` (path patching).

Then heads are switched off in the first prompt: `off` holds the lead that is left without the first
heads and without as many random ones, by what is put in their place; `backup` what heads write
towards the lead before and after. In `kept` only so many heads of the largest shares see the prompt
and all others see one with other names: the lead of each of `many` prompts. `looks` says where the
heads `MOVED` look then: the mean weight of the last token on the name that should follow, on the
first mention of the other one and on its second.

`words` asks in `asked` prompts which tokens made the answer: by rollout, by input × gradient, and
by taking each embedding away. "found" says how many of the three names are among the three tokens
of the largest size, "right" what the name that should follow gets, with its sign.

Explained in: chapters/10_interpretability, section "From layers to heads".
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tfbook import pretrained
from tfbook.interpret import (
    TEMPLATES,
    Prompts,
    ablated,
    activation_patching,
    capture,
    direct_logits,
    head_site,
    indirect_object_prompts,
    logit_difference,
    patched,
    path_patching,
    patterns,
    random_heads,
    rollout,
    times_gradient,
    unembed,
)

__all__ = ["HOW", "KINDS", "SMOKE", "TOLD", "grid_of", "heads_of", "run", "the_pair"]

SMOKE = {
    "prompts": 1, "layers": (29,), "late": (29,), "early": (28,), "templates": 1, "draws": 1,
    "kept": (2,), "many": 2, "asked": 1,
}  # fmt: skip
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "{prompts} pairs of prompts for each of {templates} templates",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
TOLD = (
    "When Mary and John went to the store, John gave a drink to",
    "When Mary and John went to the store, Mary gave a drink to",
)
KINDS = ("stream", "attention", "network")
HOW = ("zero", "mean", "resample")
TOP = 16  # heads that are named
MOVERS = 3  # of which the rest is asked
OTHERS = 5  # draws of unrelated prompts
MOVED = ((23, 0), (23, 1), (23, 7))  # heads that look at one of the two names


def the_pair(language: pretrained.Pretrained) -> Prompts:
    """Return the pair of prompts of the chapter."""
    clean, corrupted = (language.encode(text) for text in TOLD)
    right, wrong = (language.encode(f" {name}")[0] for name in ("Mary", "John"))
    places = {"first": 1, "second": 3, "repeated": 9, "end": 13}
    return Prompts(clean, corrupted, right, wrong, places, TOLD[:1])


def both_runs(model, prompts: Prompts) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what passes streams and heads in the clean and in the corrupted prompts."""
    seen = []
    for tokens in (prompts.clean, prompts.corrupted):
        with capture(model, "stack.blocks.*.resid_*", "*.mixer.z") as passed:
            model(tokens, last=True)
        seen.append(dict(passed))
    return seen[0], seen[1]


def share_of(model, prompts: Prompts, x: Tensor, layer: int, change: dict, ends: tuple) -> Tensor:
    """Return which share of the difference comes back, for rows (S · B) of a changed block."""
    with patched(model.stack.blocks[layer], change):
        x, _ = model.stack.blocks[layer](x)
    for block in model.stack.blocks[layer + 1 :]:
        x, _ = block(x)
    logits = unembed(model, x[:, -1:])  # (S · B, 1, V)
    times = len(x) // len(prompts.right)
    lead = logit_difference(logits, prompts.right.repeat(times), prompts.wrong.repeat(times))
    clean, corrupted = ends
    return (lead.view(times, -1).mean(1) - corrupted) / (clean - corrupted)


def ends_of(model, prompts: Prompts) -> tuple[float, float]:
    """Return the mean lead in the clean and in the corrupted prompts."""
    both = (prompts.clean, prompts.corrupted)
    return tuple(prompts.metric(model(tokens, last=True)[0]) for tokens in both)


def grid_of(model, prompts: Prompts, layers: Sequence[int]) -> dict[str, list[list[float]]]:
    """Return the shares of each kind, by layer and token.

    Tokens before the first that differs have had no chance to carry anything: their share is 0.
    """
    clean, corrupted = both_runs(model, prompts)
    ends, n = ends_of(model, prompts), prompts.clean.shape[1]
    first = int((prompts.clean != prompts.corrupted).any(0).nonzero()[0])
    places = torch.arange(first, n)
    found = {kind: [] for kind in KINDS}
    for layer in layers:
        good, bad = (
            [seen[f"stack.blocks.{layer}.resid_{name}"] for name in ("pre", "mid", "post")]
            for seen in (clean, corrupted)
        )
        for kind in KINDS:
            i = KINDS.index(kind)
            new = bad[0] if kind == "stream" else bad[i]  # (B, N, D)
            put = good[0] if kind == "stream" else bad[i - 1] + good[i] - good[i - 1]
            rows = new.repeat(len(places), 1, 1, 1)  # (S, B, N, D)
            for row, place in zip(rows, places, strict=True):
                row[:, place] = put[:, place]
            rows = rows.flatten(0, 1)
            start = rows if kind == "stream" else bad[0].repeat(len(places), 1, 1)
            change = {} if kind == "stream" else {("resid_mid", "resid_post")[i - 1]: rows}
            shares = share_of(model, prompts, start, layer, change, ends)
            found[kind].append([0.0] * first + [round(each, 4) for each in shares.tolist()])
    return found


def heads_of(model, prompts: Prompts, layers: Sequence[int]) -> list[list[float]]:
    """Return the share of each head, put in at all tokens."""
    clean, corrupted = both_runs(model, prompts)
    ends, found = ends_of(model, prompts), []
    for layer in layers:
        good, bad = (seen[f"stack.blocks.{layer}.mixer.z"] for seen in (clean, corrupted))
        rows = bad.repeat(bad.shape[1], 1, 1, 1, 1)  # (H, B, H, N, d_value)
        for head, row in enumerate(rows):
            row[:, head] = good[:, head]
        start = corrupted[f"stack.blocks.{layer}.resid_pre"].repeat(len(rows), 1, 1)
        change = {"mixer.z": rows.flatten(0, 1)}
        found.append(share_of(model, prompts, start, layer, change, ends).tolist())
    return [[round(each, 4) for each in row] for row in found]


def lead_without(model, prompts: Prompts, heads: Sequence, how: str, others: Tensor) -> float:
    """Return the lead in the clean prompts without some heads."""
    with ablated(model, heads, how=how, reference=None if how == "zero" else others):
        return prompts.metric(model(prompts.clean, last=True)[0])


def written(model, prompts: Prompts) -> Tensor:
    """Return what each head writes towards the lead, the mean over prompts, (L, H)."""
    return direct_logits(model, prompts.clean, prompts.right, prompts.wrong).heads().mean(-1)


def by_template(
    language, draw: Callable, layers: Sequence[int], templates: int
) -> tuple[list, list, list]:
    """Return the prompts of each template, their leads, and the shares of their heads."""
    made = [draw(template) for template in TEMPLATES[:templates]]
    leads = [[round(each, 3) for each in ends_of(language.model, one)] for one in made]
    return made, leads, [heads_of(language.model, one, layers) for one in made]


@torch.no_grad()
def run(
    *,
    prompts: int = 2,
    templates: int = 3,
    layers: Sequence[int] = tuple(range(30)),
    late: Sequence[int] = tuple(range(30)),
    early: Sequence[int] = tuple(range(15, 23)),
    draws: int = 5,
    kept: Sequence[int] = (0, 1, 2, 4, 8, 16, 32, 64, 128, 268, 270),
    many: int = 16,
    asked: int = 24,
) -> tuple[dict, None]:
    """Read all prompts, exchange parts one by one, and switch heads off."""
    language = pretrained.load("smollm2-135m")
    model = language.model

    def draw(template: str, seed: int = 0, count: int = prompts) -> Prompts:
        generator = torch.Generator().manual_seed(seed)
        return indirect_object_prompts(language, count, template=template, generator=generator)

    made, leads, heads = by_template(language, draw, late, templates)
    mean = torch.tensor(heads).mean(0)  # (late, H)
    order = mean.flatten().argsort(descending=True).tolist()
    ranked = [(late[each // mean.shape[1]], each % mean.shape[1]) for each in order]
    movers, one = ranked[:MOVERS], made[0]
    log = {
        "settings": {"prompts": prompts, "templates": templates, "late": list(late),
            "early": list(early)},
        "leads": leads, "heads": heads,
        "top": [
            [*ranked[i], round(mean.flatten()[order[i]].item(), 4)]
            for i in range(min(TOP, len(ranked)))
        ],
        "grid": grid_of(model, the_pair(language), layers),
        "places": dict(one.places),
    }  # fmt: skip
    others = [draw(TEMPLATES[0], seed) for seed in range(7, 7 + OTHERS)]
    log["controls"] = controls(model, one, movers, draws, others)
    queries = [head_site(layer, head, "q", (-1,)) for layer, head in movers if layer > max(early)]
    n_heads = mean.shape[1]
    senders = [head_site(i, h, places=(-1,)) for i in early for h in range(n_heads)]
    if queries:
        pair = the_pair(language)
        ends = (pair.clean, pair.corrupted, pair.metric)
        paths = path_patching(model, *ends, senders, queries)
        log["feeders"] = [[round(x, 4) for x in row] for row in paths.view(-1, n_heads).tolist()]
    others = draw(TEMPLATES[0], 11, 2 * prompts).clean
    log["off"] = switched_off(model, one, movers, others, draws)
    before = written(model, one)
    with ablated(model, movers, how="mean", reference=others):
        after = written(model, one)
    log["backup"] = {
        name: [[round(x, 3) for x in row] for row in found.tolist()]
        for name, found in (("before", before), ("after", after))
    }
    everything = [(i, h) for i in range(len(model.stack.blocks)) for h in range(n_heads)]
    ranked += [pair for pair in everything if pair not in ranked]
    fresh, strange = draw(TEMPLATES[0], 5, many), draw(TEMPLATES[0], 13, many).clean
    log["kept"], log["looks"] = {}, {}
    for count in kept:
        with ablated(model, ranked[count:], how="resample", reference=strange):
            log["kept"][str(count)], log["looks"][str(count)] = led_and_looked(model, fresh)
    log["words"] = words_of(model, draw(TEMPLATES[0], 21, asked))
    return log, None


def led_and_looked(model, prompts: Prompts) -> tuple[list[float], list[float]]:
    """Return the lead of each prompt, and where the heads `MOVED` look from the last token."""
    logits = model(prompts.clean, last=True)[0]
    leads = logit_difference(logits, prompts.right, prompts.wrong)
    seen = patterns(model, prompts.clean)  # (L, B, H, N, N)
    rows = torch.stack([seen[layer, :, head, -1] for layer, head in MOVED]).mean(0)  # (B, N)
    same = [prompts.clean == name[:, None] for name in (prompts.right, prompts.wrong)]
    again = torch.zeros_like(same[1])
    again[:, prompts.places["repeated"]] = True
    looks = [(rows * at).sum(-1).mean().item() for at in (same[0], same[1] & ~again, again)]
    return [round(x, 3) for x in leads.tolist()], [round(x, 4) for x in looks]


def words_of(model, prompts: Prompts) -> dict[str, dict[str, list[float]]]:
    """Return how many names each attribution finds, and what it gives to the one that follows."""
    mean, found = model.embed.weight.mean(0), {}
    for tokens, right, wrong in zip(prompts.clean, prompts.right, prompts.wrong, strict=True):

        def lead(out, right=right, wrong=wrong):
            return out[0][:, -1, right] - out[0][:, -1, wrong]

        n, tokens = len(tokens), tokens[None]
        rows = model.embed.weight[tokens].repeat(n, 1, 1)
        rows[range(n), range(n)] = mean
        with patched(model, {"stack.blocks.0.resid_pre": rows}):
            gone = lead(model(tokens.repeat(n, 1)))
        (slope,) = times_gradient(model, lead, tokens, at="*.0.resid_pre").values()
        votes = {
            "rollout": rollout(patterns(model, tokens)[:, 0])[-1],
            "input × gradient": slope[0].sum(-1),
            "taken away": lead(model(tokens)) - gone,
        }
        named = {int(i) for name in (right, wrong) for i in (tokens[0] == name).nonzero()}
        for method, vote in votes.items():
            kept = found.setdefault(method, {"found": [], "right": []})
            kept["found"].append(len(named & {*vote.abs().topk(len(named)).indices.tolist()}))
            kept["right"].append(round(vote[tokens[0] == right].item(), 3))
    return found


def controls(model, prompts: Prompts, movers: Sequence, draws: int, others: Sequence) -> dict:
    """Return the shares of the heads together, with other prompts' activations, and at random."""
    ends = (model, prompts.clean, prompts.corrupted, prompts.metric)
    sites = [[head_site(*pair) for pair in movers]]
    generator = torch.Generator().manual_seed(3)
    chance = [
        [head_site(*pair) for pair in random_heads(model, len(movers), generator=generator)]
        for _ in range(draws)
    ]
    return {
        "together": round(activation_patching(*ends, sites).item(), 4),
        "other prompts": [
            round(activation_patching(*ends, sites, control=other.clean).item(), 4)
            for other in others
        ],
        "random heads": [round(x, 4) for x in activation_patching(*ends, chance).tolist()],
    }


def switched_off(model, prompts: Prompts, movers: Sequence, others: Tensor, draws: int) -> dict:
    """Return the lead that is left, for each way, without the heads and without random ones."""
    generator = torch.Generator().manual_seed(5)
    chance = [
        random_heads(model, len(movers), without=movers, generator=generator) for _ in range(draws)
    ]
    return {
        how: {
            "alone": [round(lead_without(model, prompts, [m], how, others), 3) for m in movers],
            "together": round(lead_without(model, prompts, movers, how, others), 3),
            "random": [round(lead_without(model, prompts, h, how, others), 3) for h in chance],
        }
        for how in HOW
    }
