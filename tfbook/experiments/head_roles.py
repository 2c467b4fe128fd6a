"""What do the heads of the circuit attend to, write and pass on, in 48 pairs of prompts?

SmolLM2-135M reads the pairs of prompts of three templates, as in `explained_heads`; in half of them
the second name gives, in half the first. Nothing is trained.

`map` holds for each template the share of every head of the upper `layers`, the mean over its
pairs: the corrupted prompt is run with the output that this one head had in the clean one. All
other numbers are of `HEADS`, for each template and pair. `shares` compares three sources of that
output: the clean prompt, and an unrelated one in which the name in the same place gives ("same
order") or the other name ("other order"). `weights` are the attention weights in the clean prompt,
of the last token on the first one, on the right name, on the first mention of the other, on the
giver and on itself, and of the giver on what followed his first mention ("followed"). `raises` says
in logits, against the mean of all tokens, what the head's output at the last token adds to the
right and to the wrong name. `writes` is what it adds to the difference of the two in the clean
prompt less in the corrupted one, as a share of the gap. `values` are the lengths of the value that
the last token takes from the first token and from the right name.

Explained in: chapters/10_interpretability, section "From layers to heads".
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tfbook import pretrained
from tfbook.interpret import (
    TEMPLATES,
    Prompts,
    capture,
    direct_logits,
    head_site,
    indirect_object_prompts,
    logit_difference,
    patch_sites,
    unembed,
)

__all__ = ["HEADS", "PLACES", "SMOKE", "run"]

SMOKE = {"prompts": 2, "templates": 1, "layers": (29,)}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "{prompts} pairs of prompts for each of {templates} templates",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
HEADS = (
    (16, 0), (17, 4), (18, 6), (19, 2), (20, 0), (23, 0), (23, 1), (23, 2), (23, 3), (23, 7),
    (24, 4), (29, 0), (29, 1),
)  # fmt: skip
PLACES = ("first", "right", "other", "giver", "itself")  # what the last token may attend to
Runs = Mapping[str, Mapping[str, Tensor]]


def tag(layer: int, head: int) -> str:
    """Return the name of a head."""
    return f"L{layer}H{head}"


def rounded(x: Tensor) -> list:
    """Return numbers for the log, nested as they were."""
    return [rounded(each) for each in x] if x.ndim else round(x.item(), 4)


def passed(model, tokens: Tensor) -> Mapping[str, Tensor]:
    """Return what heads gave, what entered each layer, the weights and the values."""
    with capture(model, *(f"*.{what}" for what in ("mixer.z", "resid_pre"))) as seen:
        model(tokens, last=True)
    return dict(seen)


def lead_with(model, prompts: Prompts, layer: int, head: int, x: Tensor, source: Mapping) -> Tensor:
    """Return the lead of each prompt, from what enters a layer, with one head's output from source.

    The layers below are the same with and without the patch, so they need not run again.
    """
    with patch_sites(model, [head_site(layer, head)], source):
        for block in model.stack.blocks[layer:]:
            x, _ = block(x)
    return logit_difference(unembed(model, x[:, -1:]), prompts.right, prompts.wrong)


def places_of(prompts: Prompts) -> dict[str, Tensor]:
    """Return the places of `PLACES` in each clean prompt, (B,)."""
    first, second = prompts.places["first"], prompts.places["second"]
    size = len(prompts.clean)
    right = torch.where(prompts.clean[:, first] == prompts.right, first, second)
    return {
        "first": torch.zeros(size, dtype=torch.long),
        "right": right,
        "other": first + second - right,
        "giver": torch.full((size,), prompts.places["repeated"]),
        "itself": torch.full((size,), prompts.places["end"]),
    }


def raised(model, z: Tensor, layer: int, head: int, size: Tensor, asked: Tensor) -> Tensor:
    """Return how an output of one head raises tokens against the mean of all, (B, A).

    z: (B, d_head), its output at the last token; size: (B,), of the final vector; asked: (B, A).
    """
    mixer = model.stack.blocks[layer].mixer
    width = z.shape[-1]
    out = z @ mixer.out_proj.weight[:, head * width : (head + 1) * width].T  # (B, D)
    logits = (out / size[:, None] * model.stack.final_norm.weight) @ model.embed.weight.T
    return logits.gather(1, asked) - logits.mean(1, keepdim=True)


def looks_of(model, prompts: Prompts) -> tuple[dict, dict]:
    """Return the weights of `HEADS`, and the lengths of the values, for each clean prompt."""
    with capture(model, "*.mixer.pattern", "*.mixer.v") as seen:
        model(prompts.clean, last=True)
    at, each, end = places_of(prompts), torch.arange(len(prompts.clean)), prompts.places["end"]
    weights, values = {}, {}
    for layer, head in HEADS:
        name = f"stack.blocks.{layer}.mixer."
        pattern, value = seen[name + "pattern"][:, head], seen[name + "v"]
        value = value[:, head * value.shape[1] // seen[name + "pattern"].shape[1]].norm(dim=-1)
        found = {place: pattern[each, end, at[place]] for place in PLACES}
        found["followed"] = pattern[each, at["giver"], at["other"] + 1]
        weights[tag(layer, head)] = {key: rounded(x) for key, x in found.items()}
        values[tag(layer, head)] = {
            key: rounded(value[each, at[key]]) for key in ("first", "right")
        }
    return weights, values


def of_template(model, prompts: Prompts, others: Prompts, layers: Sequence[int]) -> dict:
    """Return all numbers of one template."""
    runs: Runs = {
        "clean": passed(model, prompts.clean),
        "corrupted": passed(model, prompts.corrupted),
        "same order": passed(model, others.clean),
    }
    runs["other order"] = {name: x.roll(1, 0) for name, x in runs["same order"].items()}
    good, bad = (
        logit_difference(model(x, last=True)[0], prompts.right, prompts.wrong)
        for x in (prompts.clean, prompts.corrupted)
    )

    def share(layer: int, head: int, source: str) -> Tensor:
        x = runs["corrupted"][f"stack.blocks.{layer}.resid_pre"]
        return (lead_with(model, prompts, layer, head, x, runs[source]) - bad) / (good - bad)

    n_heads = model.stack.blocks[0].mixer.n_heads
    found: dict = {
        "map": [
            [round(share(n, h, "clean").mean().item(), 4) for h in range(n_heads)] for n in layers
        ],
        "shares": {
            tag(*each): {
                source: rounded(share(*each, source))
                for source in ("clean", "same order", "other order")
            }
            for each in HEADS
        },
    }
    found["weights"], found["values"] = looks_of(model, prompts)
    direct = [
        direct_logits(model, x, prompts.right, prompts.wrong).heads()
        for x in (prompts.clean, prompts.corrupted)
    ]
    written = (direct[0] - direct[1]) / (good - bad)  # (L, H, B)
    found["writes"] = {tag(*each): rounded(written[each]) for each in HEADS}
    x = runs["clean"][f"stack.blocks.{len(model.stack.blocks) - 1}.resid_pre"]
    size = model.stack.blocks[-1](x)[0][:, -1].square().mean(-1).sqrt()
    asked = torch.stack([prompts.right, prompts.wrong], 1)
    found["raises"] = {}
    for layer, head in HEADS:
        z = runs["clean"][f"stack.blocks.{layer}.mixer.z"][:, head, -1]
        by = raised(model, z, layer, head, size, asked)
        found["raises"][tag(layer, head)] = {"right": rounded(by[:, 0]), "wrong": rounded(by[:, 1])}
    return found


@torch.no_grad()
def run(
    *, prompts: int = 16, templates: int = 3, layers: Sequence[int] = tuple(range(14, 30))
) -> tuple[dict, None]:
    """Ask all heads for their share, and those of the circuit for all the rest."""
    language = pretrained.load("smollm2-135m")
    settings = {"prompts": prompts, "templates": templates, "layers": list(layers)}
    log: dict = {"settings": settings}
    for template in TEMPLATES[:templates]:
        pairs, others = (
            indirect_object_prompts(
                language, prompts, template=template, generator=torch.Generator().manual_seed(seed)
            )
            for seed in (0, 7)
        )
        for key, value in of_template(language.model, pairs, others, layers).items():
            log.setdefault(key, []).append(value)
    return log, None
