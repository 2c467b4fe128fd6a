"""What do 60 steps on one play change in a language model that has read the web?

SmolLM2-135M learns to go on with the first 150,000 characters of the Shakespeare of `tfbook.data`,
nearly all of one play, by adapters of rank 8 on all its projections: what
`python -m tfbook finetune FOLDER --data play.txt` does, with shorter windows and fewer steps. The
last tenth of the text is not learned from.

The log holds, after each number of steps of `at`, the loss on that last tenth (`held`) and on
sentences out of film reviews (`elsewhere`), in nats a token; and for each of `beginnings` what the
model writes before and after (`samples`).

Source: [hu2022lora]
Explained in: chapters/18_practice, section "Low-rank adapters".
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from tfbook import data, pretrained
from tfbook.data import rows
from tfbook.generation import Sampling, generate
from tfbook.optimization import schedule
from tfbook.practice import (
    count_trained,
    make_tuning,
    read_examples,
    resolve_tuning,
    tuning_groups,
)
from tfbook.training import Monitoring, causal_loss, evaluating, fit

__all__ = ["BEGINNINGS", "SMOKE", "other_text", "run"]

CONTEXT, BATCH = 128, 4
BEGINNINGS = ("CORIOLANUS:\n", "The train was late, and")
SMOKE = {"steps": 2, "every": 2, "n_characters": 3000, "context": 16, "words": 3}
CARD = {
    "model": "SmolLM2-135M, 134,515,008 parameters, with adapters of rank {rank}",
    "data": "{n_characters:,} characters of a play",
    "batch": "batches of {BATCH} windows of {context} tokens",
}


def other_text() -> str:
    """Return sentences out of film reviews, which the model is not taught."""
    return "\n".join(text for text, _ in data.movie_sentiment("test")[::10])


def run(
    *,
    steps: int = 60,
    every: int = 20,
    n_characters: int = 150_000,
    context: int = CONTEXT,
    rank: int = 8,
    words: int = 60,
) -> tuple[dict, None]:
    """Fine-tune on the play, and look on the way at what is learned and what is lost."""
    language = pretrained.load("smollm2-135m")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "play.txt"
        path.write_text(data.shakespeare()[:n_characters], encoding="utf-8")
        examples = read_examples(path)
        asked = {"data": str(path), "lora": rank, "context": context, "batch": BATCH}
        choices = resolve_tuning(asked | {"steps": steps}, examples.kind)
        task = make_tuning(choices, examples)
    model = task.model
    others = torch.tensor(language.tokenizer.encode(other_text()).ids)
    others = rows(others[: 16 * context + 1], context).split(BATCH)

    def elsewhere(model) -> float:
        parts = [causal_loss(model, batch) for batch in others]
        return sum(x.item() for x, _ in parts) / sum(count for _, count in parts)

    def written() -> list[str]:
        now = replace(language, model=model.model)
        sampling = Sampling(temperature=0.8, top_p=0.95)
        drawn = (
            generate(now, text, max_new_tokens=words, sampling=sampling, seed=0)
            for text in BEGINNINGS
        )
        return [language.decode(each.tokens[0]) for each in drawn]

    def look(model) -> dict[str, float]:
        return {"held": task.evaluate(model)["loss"], "elsewhere": elsewhere(model)}

    with evaluating(model), torch.no_grad():
        looks, samples = [look(model)], {"before": written()}
    found = fit(
        model,
        task.batches,
        loss=task.loss,
        optimizer=torch.optim.AdamW(tuning_groups(model, choices), betas=(0.9, 0.99)),
        steps=steps,
        schedule=schedule("linear", steps=steps, warmup=choices["warmup"]),
        clip=choices["clip"],
        seed=choices["seed"],
        monitoring=Monitoring(evaluate=look, every=every),
        progress=False,
    )
    with evaluating(model), torch.no_grad():
        samples["after"] = written()
    trained, total = count_trained(model)
    log = {
        "settings": {"steps": steps, "rank": rank, "context": context, "seed": choices["seed"]},
        "rate": choices["lr"],
        "trained": trained,
        "total": total,
        "at": [0, *(each["after"] for each in found.evaluations)],
        "beginnings": list(BEGINNINGS),
        "samples": samples,
    }
    for name in ("held", "elsewhere"):
        log[name] = [round(each[name], 4) for each in looks + found.evaluations]
    return log, None
