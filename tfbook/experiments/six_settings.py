"""How does one beginning go on under six ways of choosing the next token?

SmolLM2-135M as it is reads "To be, or not to be," and writes 24 tokens: greedily, at a temperature
of 0.7, at 1, and at 1 with top-k 40, with top-p 0.9 and with min-p 0.05; each with the seeds 1 and
2, which greedy decoding does not use. No text may end. The log holds the texts by the names of
`SETTINGS`, and in `outside` how many of the tokens of each lie outside top-p 0.9 of the model's own
distribution. Two texts a setting are examples: which setting people prefer they do not show.

Explained in: chapters/12_generation_deeper, section "Sixteen texts, four ways".
"""

import torch

from tfbook import pretrained
from tfbook.generation import GREEDY, Sampling, generate, top_p

__all__ = ["SETTINGS", "SMOKE", "run"]

SETTINGS = {
    "greedy": GREEDY,
    "τ = 0.7": Sampling(temperature=0.7),
    "τ = 1": Sampling(),
    "τ = 1, top-k 40": Sampling(top_k=40),
    "τ = 1, top-p 0.9": Sampling(top_p=0.9),
    "τ = 1, min-p 0.05": Sampling(min_p=0.05),
}
SMOKE = {"new": 1, "ways": ("greedy", "τ = 1")}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "one prompt of 8 tokens",
    "steps": "nothing is trained; {new} tokens are written behind it",
    "batch": "",
    "rate": "",
}


@torch.no_grad()
def run(
    prompt: str = "To be, or not to be,",
    *,
    new: int = 24,
    seeds: tuple[int, ...] = (1, 2),
    ways: tuple[str, ...] = tuple(SETTINGS),
) -> tuple[dict, None]:
    """Return the log: `new` tokens behind the prompt, for each way and seed."""
    language = pretrained.load("smollm2-135m")
    ids = language.encode(prompt).expand(len(seeds), -1)
    log: dict = {"texts": {}, "outside": {}}
    for way in ways:
        out = generate(
            language.model,
            ids,
            max_new_tokens=new,
            sampling=SETTINGS[way],
            seed=list(seeds),
            stop=[],
        )
        tokens = torch.tensor(out.tokens)
        scores = language.model.decode(torch.cat([ids, tokens], 1))[0][:, ids.shape[1] - 1 : -1]
        kept = top_p(scores, 0.9).gather(-1, tokens[..., None]).isfinite()[..., 0]
        log["texts"][way] = [language.decode(row) for row in out.tokens]
        log["outside"][way] = (~kept).sum(-1).tolist()
    return log | {"settings": {"new": new, "seeds": list(seeds)}}, None
