"""What do drawn guesses of a rounded model bring, against the formula?

The model is SmolLM2-135M as it is; each draft is the same model with all matrices rounded, 32
weights at a time, to whole multiples of a step, in 3, 4 or 6 bits. After each of two prompts 48
tokens are written by speculative decoding, drawn without a temperature or cut, with four guesses a
pass; no text may end. The log holds, for each number of bits,

* `overlap`: the sum over the vocabulary of the smaller of the two probabilities, the chance that a
  guess is accepted; its mean over the places of two texts that the model drew without a draft;
* `yields`: for each number of guesses, tokens and passes of both texts together.

It does not show seconds: here the rounded weights are numbers of 32 bits as the others.

Explained in: chapters/12_generation_deeper, section "Drafts of rounded weights".
"""

import copy

import torch
from torch import Tensor

from tfbook import pretrained
from tfbook.generation import Sampling, generate, speculative_generate

__all__ = ["PROMPTS", "SMOKE", "rounded", "run"]

PROMPTS = ("To be, or not to be,", "Once upon a time, there was a")
SMOKE = {"prompts": PROMPTS[:1], "bits": (4,), "guesses": (1,), "new": 2, "layers": 0}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "{texts} beginnings of texts, {new} tokens written behind each",
    "steps": "nothing is trained; the drafts are the model with rounded weights",
    "batch": "",
    "rate": "",
}


def rounded(weights: Tensor, bits: int, group: int = 32) -> Tensor:
    """Return weights as multiples of a step, `group` neighbours with one step."""
    parts = weights.reshape(-1, group)
    step = parts.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((parts / step.clamp_min(1e-12)).round() * step).reshape(weights.shape)


@torch.no_grad()
def run(
    prompts: tuple[str, ...] = PROMPTS,
    *,
    bits: tuple[int, ...] = (3, 4, 6),
    guesses: tuple[int, ...] = (4,),
    new: int = 48,
    layers: int | None = None,
) -> tuple[dict, None]:
    """Return the log.

    Args:
        prompts: beginnings.
        bits: of a weight of the draft.
        guesses: in a pass.
        new: tokens behind each prompt.
        layers: how many matrices are rounded; all when omitted, and with 0 the draft is the model.
    """
    language = pretrained.load("smollm2-135m")
    model, free = language.model, Sampling()
    starts = [language.encode(prompt) for prompt in prompts]
    drawn = [
        generate(model, ids, max_new_tokens=new, sampling=free, seed=1, stop=[]).tokens[0]
        for ids in starts
    ]
    log: dict = {"overlap": {}, "yields": {}}
    for n_bits in bits:
        draft = copy.deepcopy(model) if layers != 0 else model
        matrices = [w for w in draft.parameters() if w.ndim == 2]
        for w in matrices[:layers]:
            w.copy_(rounded(w, n_bits))
        shared = []
        for ids, tokens in zip(starts, drawn, strict=True):
            whole = torch.cat([ids, torch.tensor([tokens])], 1)
            scores = [m.decode(whole)[0][0, ids.shape[1] - 1 : -1] for m in (model, draft)]
            p, q = (each.softmax(-1) for each in scores)
            shared.append(torch.minimum(p, q).sum(-1))
        log["overlap"][str(n_bits)] = round(torch.cat(shared).mean().item(), 4)
        log["yields"][str(n_bits)] = []
        for n in guesses:
            made = [
                speculative_generate(
                    model, draft, ids, n_draft=n, max_new_tokens=new, sampling=free, seed=1
                )
                for ids in starts
            ]
            tokens, passes = sum(len(m.tokens) for m in made), sum(m.passes for m in made)
            log["yields"][str(n_bits)].append([tokens, passes])
    log["settings"] = {"texts": len(prompts), "new": new, "guesses": list(guesses)}
    return log, None
