"""What does a dictionary of a small language model show, and what does it not?

The shipped model of `shakespeare` predicts the next character. Dictionaries of `features`
directions, of which a row may use `k`, are trained on what it does with the text of its own
training: sparse autoencoders on the stream behind layer `layer`, transcoders on what the
feed-forward network of layer `network` makes of its input. Layers are counted from 0. All numbers
are from another part of the text.

The same is done with the same model whose weights have changed places, each matrix, each norm and
the table of embeddings by itself, so that it has learnt nothing: the control. `dictionaries` holds,
for each part, each model and each seed, the share of the variance that is not reproduced, how many
features a row uses, what share is never used, and the loss of the model as it is, with the
dictionary in place, and with the mean row in place. `without_help`: the same for autoencoders that
were trained without the term for dead features.

`looks` is what the features look like. Of those that are on in at least `few` rows: in what share
do nine in ten of the twenty rows with the largest values stand at the same character
(`alike_1`), or behind the same three (`alike_3`). `detection`: how well one number tells apart the
rows before which property of the next character (`PROPERTIES`) comes true: the value of the best
feature (for each seed), of the best of the stream's own numbers, or along the difference of means;
all chosen on rows of training.

`steering`: what is added to the stream behind the layer, at lengths that are shares of its mean
length. For each property: the difference of means; for each seed the direction of the feature that
tells the property best apart, that of the feature that moves it most out of the ten best, and a
random direction. The log holds the mean probability of the wanted characters, the divergence among
all others, and the loss.

Explained in: chapters/05_architecture_deeper, section "The residual stream".
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tfbook import data, pretrained
from tfbook.data import rows as windows_of
from tfbook.interpret import (
    SparseDictionary,
    dictionary_rows,
    fidelity,
    fit_dictionary,
    mean_difference,
    recovered_loss,
    separation,
    shuffled,
    steering_effects,
)

__all__ = ["PROPERTIES", "SMOKE", "labels_of", "run"]

SMOKE = {
    "features": 24, "k": 4, "windows": 16, "held": 6, "context": 64, "seeds": (0,), "steps": 3,
    "few": 1, "lengths": (0.0, 0.5),
}  # fmt: skip
CARD = {
    "model": "sparse autoencoders and transcoders with {features} features, {size:,} parameters "
    "each, on layers {layer} and {network} of the shipped model",
    "data": "the rows of {windows} windows of {context} characters of Shakespeare",
    "batch": "batches of {batch:,} rows",
    "rate": "rate {rate:g}, falling at the end",
}
# What the next character is.
PROPERTIES: dict[str, Callable[[str], bool]] = {
    "a capital": str.isupper,
    "a vowel": lambda c: c.lower() in "aeiou",
    "the end of a line": lambda c: c == "\n",
}
TOP, SHORTLIST, ALIKE = 20, 10, 0.9
STRIDE = 8  # of the rows on which a feature is chosen


def labels_of(characters: Sequence[str], name: str) -> Tensor:
    """Return which characters have a property, (V,)."""
    return torch.tensor([PROPERTIES[name](c) for c in characters])


def alike(z: Tensor, keys: Tensor, few: int) -> list[float]:
    """Return how alike the rows are where a feature is largest.

    z: features (R, F); keys: what stands at each row, (R,).
    Returns: for each feature that is on in at least `few` rows, the share of its largest rows that
        have the commonest key.
    """
    found = []
    for column in z.T:
        if int((column > 0).sum()) >= few:
            top = column.topk(min(TOP, len(column))).indices
            top = top[column[top] > 0]
            found.append(keys[top].mode().values.eq(keys[top]).double().mean().item())
    return found


def codes(tokens: Tensor, many: int, vocabulary: int) -> Tensor:
    """Return a number for the last `many` characters at each place, (B · N,); −1s come first."""
    found = torch.zeros_like(tokens)
    for i in range(many):
        earlier = torch.full_like(tokens, vocabulary)
        earlier[:, i:] = tokens[:, : tokens.shape[1] - i]
        found = found * (vocabulary + 1) + earlier
    return found.flatten()


def measured(dictionary, model, tokens, layer, part) -> dict:
    """Measure a dictionary on windows (B, N + 1)."""
    x, y = dictionary_rows(model, tokens[:, :-1], layer, part)
    found = fidelity(dictionary, x, y if part == "ffn" else None)
    loss = recovered_loss(model, dictionary, tokens, layer, part)
    return {
        "unexplained": round(found.unexplained, 4), "used": round(found.used, 2),
        "dead": round(found.dead, 4), "clean": round(loss.clean, 4),
        "spliced": round(loss.spliced, 4), "mean_row": round(loss.ablated, 4),
    }  # fmt: skip


def looks(z: Tensor, tokens: Tensor, few: int, vocabulary: int) -> dict:
    """Measure what the features z (R, F) of a text (B, N) look like."""
    found: dict = {}
    for many in (1, 3):
        shares = alike(z, codes(tokens, many, vocabulary), few)
        found[f"alike_{many}"] = round(sum(s >= ALIKE for s in shares) / max(len(shares), 1), 4)
        found["looked_at"] = len(shares)
    return found


def area(before: Tensor, after: Tensor, labels: Sequence[Tensor]) -> float:
    """Choose the column that tells rows (R, F) of training best apart; measure it on others."""
    best = int(separation(before, labels[0][::STRIDE]).argmax())
    return round(separation(after[:, best : best + 1], labels[1]).item(), 4)


def detection(rows: Sequence[Tensor], z: Sequence[Sequence[Tensor]], properties: dict) -> dict:
    """Measure how well one number tells each property apart.

    rows: of training and of the other text, (R, d); z: for each seed the features of every
        `STRIDE`th row of training, and of all others.
    """
    found: dict = {}
    for name, labels in properties.items():
        along = mean_difference(rows[0], labels[0])
        both = [torch.cat([each, -each], -1) for each in (rows[0][::STRIDE], rows[1])]
        found[name] = {
            "best feature": [area(*each, labels) for each in z],
            "best of the stream": area(*both, labels),
            "difference of means": round(
                separation((rows[1] @ along)[:, None], labels[1]).item(), 4
            ),
        }
    return found


def steer(model, texts, layer, rows, labels, dictionaries, wanted, lengths, generator) -> dict:
    """Measure directions, as the module says.

    texts: of training, and another one, of which every second window is read, (B, N + 1).
    rows, labels: of training, (R, d) and (R,).
    wanted: characters (V,).
    """
    tap, unit = f"stack.blocks.{layer}.resid_post", rows.norm(dim=-1).mean().item()
    strengths = [round(each * unit, 4) for each in lengths]

    def effects(direction):
        found = steering_effects(model, texts[1][::2], tap, direction, strengths, wanted)
        names = ("wanted", "others", "loss")
        return {name: [round(each, 4) for each in getattr(found, name).tolist()] for name in names}

    log: dict = {
        "unit": round(unit, 3),
        "difference of means": [effects(mean_difference(rows, labels))],
        "best feature": [], "feature that moves most": [], "random direction": [],
    }  # fmt: skip
    for dictionary in dictionaries:
        z, directions = dictionary.encode(rows[::STRIDE]).detach(), dictionary.directions.detach()
        order = separation(z, labels[::STRIDE]).argsort(descending=True)[:SHORTLIST]
        log["best feature"].append(effects(directions[order[0]]))
        moved = [
            steering_effects(model, texts[0][:4], tap, directions[f], [strengths[-1] / 2], wanted)
            for f in order
        ]
        most = int(torch.stack([each.wanted[0] for each in moved]).argmax())
        log["feature that moves most"].append(effects(directions[order[most]]))
        drawn = torch.randn(directions.shape[1], generator=generator)
        log["random direction"].append(effects(drawn))
    return log


def train(x, y, part, seed, *, features, k, **how) -> SparseDictionary:
    """Train one dictionary on rows (R, d)."""
    generator = torch.Generator().manual_seed(seed)
    d_out = y.shape[-1] if part == "ffn" else None
    made = SparseDictionary(x.shape[-1], features, k, d_out, generator=generator)
    fit_dictionary(made, x, y if part == "ffn" else None, generator=generator, **how)
    return made.requires_grad_(False)


def run(
    *,
    layer: int = 1,
    network: int = 3,
    features: int = 512,
    k: int = 16,
    windows: int = 160,
    held: int = 16,
    context: int = 256,
    seeds: Sequence[int] = (0, 1),
    steps: int = 500,
    batch: int = 512,
    rate: float = 4e-3,
    few: int = 20,
    lengths: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6),
) -> tuple[dict, None]:
    """Train and measure the dictionaries, then steer with them."""
    loaded = pretrained.load("shakespeare")
    vocabulary = loaded.config.vocab_size
    characters = [loaded.tokenizer.id_to_token(i) for i in range(vocabulary)]
    texts = []  # of training, and another one: (B, context + 1)
    for split, many in (("train", windows), ("test", held)):
        ids = torch.tensor(loaded.tokenizer.encode(data.shakespeare(split)).ids)
        every = windows_of(ids, context)
        texts.append(every[:: max(len(every) // many, 1)][:many])
    tokens, following = ([t[:, :-1] for t in texts], [t[:, 1:].flatten() for t in texts])
    properties = {
        name: [labels_of(characters, name)[each] for each in following] for name in PROPERTIES
    }
    generator = torch.Generator().manual_seed(0)
    models = {
        "trained": loaded.model,
        "shuffled weights": shuffled(loaded.model, generator=generator),
    }
    how = {"features": features, "k": k, "steps": steps, "batch": batch, "lr": rate}
    log: dict = {
        "settings": {
            "layer": layer, "network": network, "features": features, "k": k,
            "windows": len(texts[0]), "held": len(texts[1]), "context": context, "steps": steps,
            "batch": batch, "rate": rate, "few": few, "lengths": list(lengths),
        },
        "seeds": list(seeds), "dictionaries": {"stream": {}, "ffn": {}}, "looks": {},
        "detection": {}, "without_help": [], "steering": {},
    }  # fmt: skip
    for name, model in models.items():
        x, y = dictionary_rows(model, tokens[0], network, "ffn")
        made = [train(x, y, "ffn", seed, **how) for seed in seeds]
        found = [measured(each, model, texts[1], network, "ffn") for each in made]
        log["dictionaries"]["ffn"][name] = found
        log["settings"]["size_transcoder"] = sum(w.numel() for w in made[0].parameters())
        x, _ = dictionary_rows(model, tokens[0], layer)
        made = [train(x, x, "stream", seed, **how) for seed in seeds]
        found = [measured(each, model, texts[1], layer, "stream") for each in made]
        log["dictionaries"]["stream"][name] = found
        log["settings"]["size"] = sum(w.numel() for w in made[0].parameters())
        other, _ = dictionary_rows(model, tokens[1], layer)
        z = [(each.encode(x[::STRIDE]), each.encode(other)) for each in made]
        log["looks"][name] = [looks(each, tokens[1], few, vocabulary) for _, each in z]
        log["detection"][name] = detection((x, other), z, properties)
        if name == "trained":
            bare = [train(x, x, "stream", seed, auxiliary=0.0, **how) for seed in seeds]
            log["without_help"] = [measured(b, model, texts[1], layer, "stream") for b in bare]
            for each in PROPERTIES:
                wanted, labels = labels_of(characters, each), properties[each][0]
                log["steering"][each] = steer(
                    model, texts, layer, x, labels, made, wanted, lengths, generator
                )
    return log, None
