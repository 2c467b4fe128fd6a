"""expert_routing: where a linear router sends words, and what evens it out."""

import math
from collections import Counter
from collections.abc import Sequence

from tfbook.teaching.explorables._base import Explorable, boolean, number, whole, wrapped
from tfbook.teaching.explorables._chance import uniforms

TITLE = "Which expert gets which word?"
EXPERTS = 4
LETTERS = "ABCD"
UPDATES = 100  # of the bias, at most
REACH = 2.5  # of a router input, either way
# Word, kind, and the two numbers that the router sees; many more of one kind than of another.
TOKENS = (
    ("The", "function", 0.7, 1.9),
    ("cook", "noun", 1.5, 0.9),
    ("and", "function", -0.5, 1.9),
    ("the", "function", 0.9, 1.2),
    ("boy", "noun", 1.9, 0.5),
    ("cut", "verb", -1.4, 1.0),
    ("7", "number", -0.7, -1.6),
    ("onions", "noun", 2.0, 0.1),
    ("in", "function", -0.1, 1.4),
    ("the", "function", 0.4, 1.6),
    ("kitchen", "noun", 1.5, -0.4),
    (",", "punctuation", 1.0, -1.4),
    ("of", "function", -0.8, 1.3),
    ("which", "function", -0.3, 0.8),
    ("the", "function", 0.6, 0.9),
    ("boy", "noun", 1.7, 0.7),
    ("dropped", "verb", -1.8, 0.3),
    ("3", "number", -1.2, -0.9),
    ("on", "function", -0.6, 0.9),
    ("the", "function", 0.2, 1.1),
    ("floor", "noun", 1.3, 0.2),
    ("to", "function", -0.9, 1.7),
    ("see", "verb", -1.2, 0.5),
    (".", "punctuation", 1.3, -1.0),
)
STOPS = {
    "temperature": [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10],
    "capacity": [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4],
    "rate": [0.001, 0.003, 0.01, 0.02, 0.05, 0.1],
}


def expert_routing(
    tokens: Sequence | None = None,
    *,
    turn: float = 0,
    temperature: float = 1,
    noise: float = 0,
    seed: int = 0,
    top_k: int = 1,
    capacity: float = 1.25,
    balance: bool = False,
    steps: int = 0,
    rate: float = 0.01,
) -> Explorable:
    r"""Return a figure of a router that sends words to 4 experts, and of the load they get.

    Expert $i$ has a direction $w_i$; the four stand at right angles and are turned together. Its
    logit for a token is $z_i = w_i \cdot x / \tau$, with noise added if there is any, its
    probability $p_i$ the softmax. A token goes to its `top_k` experts. Each takes at most
    $C = \lceil c k T / E \rceil$ of the $T$ tokens: first choices come first, in order of the text,
    then second choices; what finds no room is dropped.

    With $f_i$ the share of the choices that fell on expert $i$ and $P_i$ its mean probability the
    balancing loss is $E \sum_i f_i P_i$, 1 when both are even; the z-loss is the mean square of
    $\log \sum_i e^{z_i}$. The bias needs no loss: experts are chosen by $p_i + b_i$, and after each
    batch $b_i$ rises by $u$ for those with less than the mean load and falls for those with more.

    Args:
        tokens: 2 to 40 of (word, kind, x, y), x and y from -2.5 to 2.5; words of a sentence with
            inputs made by hand when omitted.
        turn: Degrees by which the experts' directions are turned, 0 to 90.
        temperature: $\tau$, 0.1 to 10.
        noise: Standard deviation of what is added to a logit, 0 to 2.
        seed: Of the noise, 0 to 9999.
        top_k: Experts for each token, 1 or 2.
        capacity: Capacity factor $c$, 0.25 to 4.
        balance: Whether experts are chosen with the bias.
        steps: Updates of the bias so far, on the same batch, 0 to 100.
        rate: Step $u$ of the bias, 0.001 to 0.1.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [shazeer2017outrageously], [fedus2022switch], [zoph2022stmoe], [wang2024auxiliary].
    Explained in: chapters/08_architectural_variants, section "Do they work?".
    """
    words = _checked(TOKENS if tokens is None else tokens)
    checks = {
        "turn": number("turn", 0, 90),
        "temperature": number("temperature", 0.1, 10),
        "noise": number("noise", 0, 2),
        "seed": whole("seed", 0, 9999),
        "top_k": whole("top_k", 1, 2),
        "capacity": number("capacity", 0.25, 4),
        "balance": boolean("balance"),
        "steps": whole("steps", 0, UPDATES),
        "rate": number("rate", 0.001, 0.1),
    }
    given = {
        "turn": turn, "temperature": temperature, "noise": noise, "seed": seed, "top_k": top_k,
        "capacity": capacity, "balance": balance, "steps": steps, "rate": rate,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}

    def results(now: dict) -> dict:
        return _results(now, words)

    def text(now: dict) -> str:
        found = results(now)
        bias = "without a bias"
        if now["balance"]:
            bias = f"with a bias after {now['steps']} update{'s' * (now['steps'] != 1)}"
        kinds = []
        for i, letter in enumerate(LETTERS):
            sent = Counter(
                kind for (_, kind, *_), row in zip(words, found["chosen"], strict=True) if i in row
            )
            told = ", ".join(f"{count} {kind}" for kind, count in sent.most_common()) or "nothing"
            kinds.append(f"{letter}: {told}.")
        return wrapped(f"""{TITLE}

        {len(words)} words, {EXPERTS} experts, {now["top_k"]} for each word, {bias}. An expert takes
        {found["room"]} at most; {found["dropped"]} of {len(words) * now["top_k"]} choices are
        dropped. {" ".join(kinds)}

        The balancing loss is {found["balancing_loss"]:.3f}, the z-loss {found["z_loss"]:.3f}; the
        fullest expert gets {found["most"]:.2f} times the mean.

        In the page the router is turned, sharpened and disturbed, and a button updates the bias of
        each expert by the sign of what it lacks.""")

    data = {
        "title": TITLE, "tokens": [list(row) for row in words], "experts": list(LETTERS),
        "stops": STOPS, "updates": UPDATES,
    }  # fmt: skip
    return Explorable(
        "expert_routing", data=data, state=state, checks=checks, results=results, text=text
    )


def _checked(tokens: object) -> list[tuple[str, str, float, float]]:
    """Return the tokens, each checked."""
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise TypeError(f"tokens must be a list of (word, kind, x, y), got {type(tokens).__name__}")
    if not 2 <= len(tokens) <= 40:
        raise ValueError(f"tokens must be 2 to 40, got {len(tokens)}")
    found = []
    for i, row in enumerate(tokens):
        wanted = f"tokens[{i}] must be (word, kind, x, y)"
        if not isinstance(row, (tuple, list)):
            raise TypeError(f"{wanted}, got {type(row).__name__}")
        if len(row) != 4:
            raise ValueError(f"{wanted}, got {len(row)} items")
        for name, given in zip(("word", "kind"), row, strict=False):
            if not isinstance(given, str) or not given.strip():
                raise TypeError(f"tokens[{i}] {name} must be a text, got {given!r}")
        place = [number(f"tokens[{i}] {name}", -REACH, REACH)(x)
                 for name, x in zip("xy", row[2:], strict=True)]  # fmt: skip
        found.append((row[0], row[1], *place))
    return found


def directions(turn: float) -> list[tuple[float, float]]:
    """Return the directions of the experts."""
    angles = [math.radians(turn + 90 * i) for i in range(EXPERTS)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def logits(now: dict, words: list) -> list[list[float]]:
    """Return the router's logits, a row for each token."""
    chance = uniforms(now["seed"], 2 * EXPERTS * len(words))
    rows = []
    for t, (_, _, x, y) in enumerate(words):
        row = []
        for i, (u, v) in enumerate(directions(now["turn"])):
            one, two = chance[2 * (EXPERTS * t + i) :][:2]
            gauss = math.sqrt(-2 * math.log(one)) * math.cos(2 * math.pi * two)
            row.append((u * x + v * y) / now["temperature"] + now["noise"] * gauss)
        rows.append(row)
    return rows


def _softmax(row: list[float]) -> list[float]:
    powers = [math.exp(z - max(row)) for z in row]
    return [p / sum(powers) for p in powers]


def choose(shares: list[list[float]], bias: list[float], top_k: int) -> list[list[int]]:
    """Return the experts of each token, the best first; the earlier one where two are equal."""
    return [
        sorted(range(EXPERTS), key=lambda i: (-(row[i] + bias[i]), i))[:top_k]  # noqa: B023
        for row in shares
    ]


def counts(chosen: list[list[int]]) -> list[int]:
    """Return how many choices fell on each expert."""
    found = Counter(i for row in chosen for i in row)
    return [found[i] for i in range(EXPERTS)]


def loads(shares: list[list[float]], now: dict) -> tuple[list[list[int]], list[list[float]]]:
    """Return the load and the bias after 0, 1, ... updates."""
    bias, history, biases = [0.0] * EXPERTS, [], []
    mean = len(shares) * now["top_k"] / EXPERTS
    for _ in range(UPDATES + 1):
        load = counts(choose(shares, bias, now["top_k"]))
        history.append(load)
        biases.append(list(bias))
        lacks = [(mean > n) - (mean < n) for n in load]
        bias = [b + now["rate"] * sign for b, sign in zip(bias, lacks, strict=True)]
    return history, biases


def _results(now: dict, words: list) -> dict:
    rows = logits(now, words)
    shares = [_softmax(row) for row in rows]
    count, k = len(words), now["top_k"]
    history, biases = loads(shares, now)
    bias = biases[now["steps"]] if now["balance"] else [0.0] * EXPERTS
    chosen = choose(shares, bias, k)
    load = counts(chosen)
    room = math.ceil(now["capacity"] * k * count / EXPERTS)
    taken, kept = [0] * EXPERTS, [[False] * k for _ in words]
    for place in range(k):
        for t, row in enumerate(chosen):
            if taken[row[place]] < room:
                taken[row[place]] += 1
                kept[t][place] = True
    f = [n / (k * count) for n in load]
    p = [math.fsum(row[i] for row in shares) / count for i in range(EXPERTS)]
    sums = [math.log(sum(map(math.exp, row))) for row in rows]
    return {
        "chosen": chosen,
        "kept": kept,
        "load": load,
        "taken": taken,
        "room": room,
        "dropped": k * count - sum(taken),
        "lost": sum(not any(row) for row in kept),
        "f": f,
        "p": p,
        "bias": bias,
        "balancing_loss": EXPERTS * sum(x * y for x, y in zip(f, p, strict=True)),
        "z_loss": sum(s * s for s in sums) / count,
        "most": max(load) * EXPERTS / (k * count),
        "loads": history,
    }
