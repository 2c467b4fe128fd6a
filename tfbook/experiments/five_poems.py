"""What does a chat model write for one order under five settings?

SmolLM2-135M as it is gets the order "Write a poem about the sea." and writes 60 tokens, with one
seed: in the chat template at a temperature of 1.5, greedily, at 0.7 with top-p 0.9 and at 0.3 with
top-p 0.9, and at 0.7 with top-p 0.9 without the template. No text may end. By the letters of
`WAYS` the log holds the texts, and in `surprise` the mean surprise of their tokens in nats, by the
model's own probabilities at temperature 1 without a cut. One text of each way is an example.

Explained in: chapters/12_generation, section "What to do".
"""

import torch

from tfbook import pretrained
from tfbook.generation import GREEDY, Sampling, generate

__all__ = ["SMOKE", "WAYS", "run"]

CALM = Sampling(temperature=0.7, top_p=0.9)
WAYS = {  # letter: whether the order stands in the template, and how tokens are chosen
    "A": (True, Sampling(temperature=1.5)),
    "B": (False, CALM),
    "C": (True, GREEDY),
    "D": (True, CALM),
    "E": (True, Sampling(temperature=0.3, top_p=0.9)),
}
SMOKE = {"new": 1, "ways": "BC"}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "one order",
    "steps": "nothing is trained; {new} tokens are written behind it",
    "batch": "",
    "rate": "",
}


@torch.no_grad()
def run(
    order: str = "Write a poem about the sea.", *, new: int = 60, seed: int = 1, ways: str = "ABCDE"
) -> tuple[dict, None]:
    """Return the log: `new` tokens behind the order, for each of the ways."""
    language = pretrained.load("smollm2-135m")
    in_form = language.chat([{"role": "user", "content": order}])
    log: dict = {"texts": {}, "surprise": {}}
    for letter in ways:
        in_template, rule = WAYS[letter]
        out = generate(
            language.model,
            language.encode(in_form if in_template else order),
            max_new_tokens=new,
            sampling=rule,
            seed=seed,
            stop=[],
        )
        log["texts"][letter] = language.decode(out.tokens[0], special=True)
        log["surprise"][letter] = round(-sum(out.log_probs[0]) / new, 3)
    return log | {"settings": {"new": new, "seed": seed}}, None
