"""The checks of the project on classification: counts, a new head, two rates, their search."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers

WHERE = "chapters/project_classification"

# project-counts ---------------------------------------------------------------------------------


def count_words(
    tokens: torch.Tensor, labels: torch.Tensor, vocab: int, n_classes: int
) -> torch.Tensor:
    """Count which words the sentences of each class hold, and return logarithms of their shares.

    share(w in c) = (how often w stands in sentences of class c + 1) / (how many words these
    sentences have + V).

    tokens: (n, N), int64, the labelled sentences. labels: (n,), int64. vocab: V. n_classes: C.
    Returns: ln share, (C, V), float32.
    """
    ...


def _counted(
    tokens: torch.Tensor, labels: torch.Tensor, vocab: int, n_classes: int, *, add: float = 1.0
) -> torch.Tensor:
    counts = torch.zeros(n_classes, vocab)
    for sentence, label in zip(tokens.tolist(), labels.tolist(), strict=True):
        for word in sentence:
            counts[label, word] += 1
    return ((counts + add) / (counts.sum(1, keepdim=True) + add * vocab)).log()


def _counts_values(count: Any) -> None:
    """Each row holds the shares of the words within one class."""
    tokens = torch.tensor([[0, 1, 1, 3], [2, 2, 3, 3], [0, 3, 1, 0]])
    labels = torch.tensor([0, 1, 0])
    right = _counted(tokens, labels, 5, 2)
    shares = right.exp()
    plain = _counted(tokens, labels, 5, 2, add=0.0)
    seen = torch.tensor([[2.0, 2, 0, 2, 0], [0, 0, 1, 1, 0]]) + 1
    counts = torch.tensor([[3.0, 3, 0, 2, 0], [0, 0, 2, 2, 0]])
    expect(
        count(tokens, labels, 5, 2),
        right,
        "Count the words of each class, add 1 to each count, and divide by the words of the class "
        "plus V.",
        tolerance=1e-5,
        mistakes={
            "Words that a class has never shown have the logarithm -∞: one of them would rule the "
            "class out. Add 1 to each count.": plain,
            "These are shares. Return their logarithms, which can be added.": shares,
            "The shares sum to 1 over the classes. They should sum to 1 over the words of a class.":
                ((counts + 1) / (counts + 1).sum(0)).log(),
            "Each sentence counted a word once. Count it as often as it stands there.":
                (seen / seen.sum(1, keepdim=True)).log(),
            "V is missing below: with 1 added to each of V counts, the sum grows by V.":
                ((counts + 1) / counts.sum(1, keepdim=True)).log(),
            "The counts were divided by all words of both classes. Each class has its own number.":
                ((counts + 1) / (counts.sum() + 5)).log(),
            "The classes are exchanged.": right.flip(0),
            "These are the logarithms of the counts. Divide first.": (counts + 1).log(),
            "Rows and columns are exchanged: (C, V) has a row for each class.": right.mT,
        },
    )


def _counts_sizes(count: Any) -> None:
    """Any number of classes, one without a sentence among them."""
    generator = torch.Generator("cpu").manual_seed(651)
    for n, length, vocab, classes in ((1, 3, 4, 2), (20, 7, 11, 5)):
        tokens = torch.randint(0, vocab, (n, length), generator=generator)
        labels = torch.randint(0, classes - 1, (n,), generator=generator)
        expect(
            count(tokens, labels, vocab, classes), _counted(tokens, labels, vocab, classes),
            f"With {classes} classes, the last without a sentence, a share differs.",
            tolerance=1e-5,
        )


COUNTS = Exercise(
    name="project-counts",
    title="Which words speak for which class?",
    level=2,
    section=f'{WHERE}, section "Step 1: what the labels alone can do"',
    stub=count_words,
    properties=(_counts_values, _counts_sizes),
    hints=(
        "One table of counts, a row for each class. Then one division for each row.",
        "`torch.bincount(tokens[labels == c].flatten(), minlength=vocab)` counts the words of "
        "class c.",
        "`counts = torch.stack([...]) + 1` over the classes; "
        "`(counts / counts.sum(1, keepdim=True)).log()`.",
    ),
)

# project-transfer -------------------------------------------------------------------------------


def transfer(body: dict[str, torch.Tensor], model: torch.nn.Module) -> list[str]:
    """Give a model the weights of a pretrained one, except those of the head.

    Each weight whose name does not begin with "head." goes into the parameter of the model with
    that name, as a copy. A weight that the model has no parameter for, or one of another shape,
    raises a ValueError.

    body: weights by name, as from `state_dict()`. model: changed in place.
    Returns: the names of the parameters that kept their own values, sorted.
    """
    ...


def _body() -> dict[str, torch.Tensor]:
    shapes = {"embed.weight": (5, 3), "layer.weight": (3, 3), "layer.bias": (3,),
              "norm.weight": (3,), "norm.bias": (3,), "head.weight": (5, 3), "head.bias": (5,)}
    found = {name: numbers(*shape, seed=661 + i, dtype=torch.float32)
             for i, (name, shape) in enumerate(shapes.items())}
    return found


def _model(n_classes: int = 5) -> torch.nn.Module:
    model = torch.nn.Module()
    model.embed, model.layer = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 3)
    model.norm = torch.nn.LayerNorm(3)
    model.pooler, model.head = torch.nn.Linear(3, 2), torch.nn.Linear(3, n_classes)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.fill_(20.0 + i)
    return model


KEPT = ["head.bias", "head.weight", "pooler.bias", "pooler.weight"]


def _transfer_values(transfer: Any) -> None:
    """The body is copied, and head and pooler stay as they were."""
    body, model, before = _body(), _model(), _model().state_dict()
    transfer(body, model)
    for name, value in model.state_dict().items():
        mine = name in KEPT
        wanted = before[name] if mine else body[name]
        if torch.equal(value, wanted):
            continue
        message = f"`{name}` does not hold the pretrained weight."
        if mine:
            message = f"`{name}` was changed, but it is no part of the body."
            if name.startswith("head."):
                message = f"`{name}` was overwritten. The old head answers another question."
        raise Wrong(message, got=value, wanted=wanted)


def _transfer_names(transfer: Any) -> None:
    """The names of what stayed fresh come back."""
    got = transfer(_body(), _model(2))
    if isinstance(got, list | tuple | set) and sorted(got) == sorted(set(_body()) - set(KEPT)):
        raise Wrong("These are the names that were copied. Return those that kept their values.",
                    got=got, wanted=KEPT)
    if got != KEPT:
        words = "They are a sorted list of the parameters that kept their own values."
        if not isinstance(got, list):
            words = f"The names came back as a {type(got).__name__}. Return a sorted list."
        elif sorted(got) == ["head.bias", "head.weight"]:
            words = "The pooler kept its values too: it is not in the body."
        raise Wrong(words, got=got, wanted=KEPT)


def _transfer_copies(transfer: Any) -> None:
    """What is trained afterwards leaves the pretrained weights alone."""
    body, kept, model = _body(), _body(), _model(2)
    trained = {name: parameter for name, parameter in model.named_parameters()}
    transfer(body, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    for name, value in body.items():
        if not torch.equal(value, kept[name]):
            raise Wrong(
                f"`{name}` of the pretrained body changed when the model was trained: they share "
                "their memory. Copy the numbers.", got=value, wanted=kept[name],
            )
    for name, parameter in model.named_parameters():
        if parameter is not trained[name]:
            raise Wrong(
                f"`{name}` is another parameter than before. An optimizer that was made before "
                "would train the old one: write into it with `copy_`."
            )


def _transfer_errors(transfer: Any) -> None:
    """A weight that does not fit is refused."""
    strange = {**_body(), "layer9.weight": torch.zeros(3)}
    odd = {**_body(), "layer.bias": torch.zeros(1)}
    for body, words in (
        (strange, "The model has no `layer9.weight`, and this body has one: another architecture. "
                  "Raise a ValueError."),
        (odd, "`layer.bias` has shape (1,) here and (3,) in the model. Raise a ValueError; `copy_` "
              "alone would stretch it."),
    ):
        try:
            transfer(body, _model(2))
        except Wrong as wrong:
            if isinstance(wrong.__cause__, ValueError):
                continue
            raise
        raise Wrong(words)


TRANSFER = Exercise(
    name="project-transfer",
    title="Another head on the same body",
    level=2,
    section=f'{WHERE}, section "Step 3: another head on the same body"',
    stub=transfer,
    properties=(_transfer_values, _transfer_names, _transfer_copies, _transfer_errors),
    hints=(
        "Go through the weights of the body. Which of them does the model want, and what if it has "
        "no place for one?",
        "`dict(model.named_parameters())` finds a parameter by its name. Under `torch.no_grad()`, "
        "`parameter.copy_(weight)` writes into it.",
        "Collect the names that were written in a set; return "
        "`sorted(name for name in own if name not in written)`.",
    ),
)

# project-groups ---------------------------------------------------------------------------------


def rate_groups(
    model: torch.nn.Module, fresh: list[str], fresh_lr: float, body_lr: float, decay: float
) -> list[dict]:
    """Sort the parameters into groups for an optimizer.

    Parameters whose name stands in `fresh` learn with fresh_lr, all others with body_lr. Those with
    two dimensions or more decay, the others (biases, norms) do not. A parameter that is frozen
    (requires_grad is False) is in no group, each other one in exactly one.

    model: any module. fresh: names of parameters. fresh_lr: their learning rate. body_lr: that of
    the others. decay: weight decay.
    Returns: dictionaries with "params", a list, "lr" and "weight_decay".
    """
    ...


def _groups_each(groups: Any) -> None:
    """Every parameter has the learning rate and the decay of its kind, once."""
    model = _model(2)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    got = groups(model, list(KEPT), 0.1, 0.01, 0.5)
    if not isinstance(got, list) or not all(
        isinstance(group, dict) and {"params", "lr", "weight_decay"} <= set(group) for group in got
    ):
        raise Wrong("Return a list of dictionaries with the keys params, lr and weight_decay.")
    found: dict[str, tuple[float, float]] = {}
    for group in got:
        for parameter in list(group["params"]):
            name = names.get(id(parameter))
            if name is None:
                raise Wrong("A group holds something that is no parameter of the model.")
            if name in found:
                raise Wrong(f"`{name}` stands in two groups. It would be moved twice.")
            found[name] = (group["lr"], group["weight_decay"])
    for name, parameter in model.named_parameters():
        new, matrix = name in KEPT, parameter.ndim >= 2
        wanted = (0.1 if new else 0.01, 0.5 if matrix else 0.0)
        if name not in found:
            raise Wrong(f"`{name}` is in no group. It would never be trained.")
        lr, weight_decay = found[name]
        if lr != wanted[0]:
            where = "stands in `fresh`" if new else "does not stand in `fresh`"
            raise Wrong(f"`{name}` has the learning rate {lr}. It should be {wanted[0]}: the name "
                        f"{where}.")
        if weight_decay != wanted[1]:
            shape = tuple(parameter.shape)
            raise Wrong(f"`{name}` has the weight decay {weight_decay}. It should be {wanted[1]}: "
                        f"its shape is {shape}. What has two dimensions or more decays, and "
                        "nothing else, whatever its name is.")


def _groups_frozen(groups: Any) -> None:
    """What is frozen is left out, and the groups suit an optimizer."""
    model = _model(2)
    model.layer.requires_grad_(False)
    got = groups(model, list(KEPT), 0.1, 0.01, 0.5)
    chosen = [id(parameter) for group in got for parameter in list(group["params"])]
    frozen = {id(parameter) for parameter in model.layer.parameters()}
    if frozen & set(chosen):
        raise Wrong("A frozen parameter is in a group: weight decay needs no gradient and could "
                    "still move it. Leave out what has requires_grad = False.")
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in chosen]
    if missing:
        raise Wrong(f"`{missing[0]}` is in no group, though it is not frozen.")
    torch.optim.AdamW(groups(model, list(KEPT), 0.1, 0.01, 0.5))


GROUPS = Exercise(
    name="project-groups",
    title="Two rates, and what decays",
    level=3,
    section=f'{WHERE}, section "Step 4: fine-tune"',
    stub=rate_groups,
    properties=(_groups_each, _groups_frozen),
    hints=(
        "Two questions for each parameter: is its name in `fresh`, and does it have two "
        "dimensions?",
        "Four groups, one for each pair of answers. `model.named_parameters()` gives names and "
        "parameters.",
        "Put each parameter that is not frozen into "
        "`kinds.setdefault((name in fresh, p.ndim >= 2), [])`, then make a dictionary of each "
        "kind.",
    ),
)

# project-search ---------------------------------------------------------------------------------


def search(score: Callable[[float], float], rate: float) -> dict[float, float]:
    """Look for the best learning rate until both sides are worse.

    Begin with rate / 3, rate and 3 * rate. As long as the smallest rate tried is better than all
    others, try a third of it; as long as the largest is, try three times it. Each rate is scored
    once, for a score costs a training run.

    score: from a rate to an accuracy; more is better. rate: in the middle of the first three.
    Returns: a dictionary from each rate that was tried to its score, the smallest rate first.
    """
    ...


def _hill(powers: dict[int, float], otherwise: Callable[[int], float]) -> Any:
    """Return a score over 0.01 · 3ᵏ, by k, and the list in which it writes the k it was asked."""
    asked: list[int] = []

    def score(rate: Any) -> float:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0:
            raise Wrong("`score` takes a rate, a number above 0.", got=rate)
        power = math.log(rate / 0.01, 3)
        k = round(power)
        if abs(power - k) > 1e-6:
            raise Wrong(
                "Starting at 0.01, the rates are 0.01 times or divided by 3, 9, 27, … Another one "
                "was tried.", got=rate,
            )
        if len(asked) > 20:
            raise Wrong("More than 20 rates were tried. Stop as soon as both ends are worse.")
        asked.append(k)
        return powers.get(k, otherwise(k))

    return score, asked


def _search_case(search: Any, powers: dict[int, float], wanted: list[int], words: str) -> None:
    score, asked = _hill(powers, lambda k: 0.5 - 0.001 * abs(k))
    got = search(score, 0.01)
    given = {"rate": 0.01, "scores": {f"{0.01 * 3**k:.2g}": s for k, s in powers.items()}}
    rates = {0.01 * 3**k: powers[k] for k in wanted}
    if not isinstance(got, dict):
        raise Wrong(
            f"The result is a {type(got).__name__}. Return a dictionary from each rate to its "
            "score.", given=given, got=got, wanted=rates,
        )
    if len(asked) != len(set(asked)):
        raise Wrong(
            "A rate was scored twice. Look into the dictionary: each score costs a training run.",
            given=given, got=[0.01 * 3**k for k in asked],
        )
    if sorted(asked) != wanted:
        raise Wrong(words, given=given, got=[0.01 * 3**k for k in sorted(asked)],
                    wanted=list(rates))
    if list(got) != sorted(got):
        raise Wrong("The rates should stand in rising order.", given=given, got=got, wanted=rates)
    pairs = zip(got.items(), rates.items(), strict=False)
    if len(got) != len(rates) or any(
        not math.isclose(a, b, rel_tol=1e-6) or s != t for (a, s), (b, t) in pairs
    ):
        raise Wrong("The dictionary should hold each rate that was tried, with its score.",
                    given=given, got=got, wanted=rates)


def _search_inside(search: Any) -> None:
    """Three rates are enough where the middle one is best."""
    _search_case(
        search, {-1: 0.7, 0: 0.9, 1: 0.8}, [-1, 0, 1],
        "The middle one of the first three rates is the best: both sides are worse already.",
    )


def _search_further(search: Any) -> None:
    """Where an end is best, the search goes on beyond it, up or down."""
    _search_case(
        search, {-1: 0.6, 0: 0.7, 1: 0.8, 2: 0.9, 3: 0.85}, [-1, 0, 1, 2, 3],
        "The best rate lay at the upper end. Try three times it, until the largest rate is not the "
        "best any more, and no further.",
    )
    _search_case(
        search, {-3: 0.8, -2: 0.95, -1: 0.9, 0: 0.7, 1: 0.6}, [-3, -2, -1, 0, 1],
        "The best rate lay at the lower end. Try a third of it, until the smallest rate is not the "
        "best any more, and no further.",
    )


def _search_level(search: Any) -> None:
    """An end that is only as good as another rate is not better."""
    _search_case(
        search, {-1: 0.6, 0: 0.9, 1: 0.9}, [-1, 0, 1],
        "The largest rate is as good as the one before it, which is not better. Stop there, or a "
        "level stretch would never end.",
    )


SEARCH = Exercise(
    name="project-search",
    title="Until both sides are worse",
    level=2,
    section=f'{WHERE}, section "Step 4: fine-tune"',
    stub=search,
    properties=(_search_inside, _search_further, _search_level),
    hints=(
        "When is the smallest of the rates that were tried better than all others?",
        "Keep the scores in a dictionary by rate. `min(found)` is the smallest rate, and "
        "`sorted(found.values())` has the two best scores at its end.",
        "Two loops, one for each end. At the upper one: `while found[max(found)] > max(s for r, s "
        "in found.items() if r != max(found)):` score three times the largest rate.",
    ),
)

EXERCISES = (COUNTS, TRANSFER, SEARCH, GROUPS)
