"""next_token_sampling: what temperature, top-k, top-p and min-p leave of real distributions."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tfbook.generation import Sampling, draw
from tfbook.teaching.explorables._alignment import tokens as checked_tokens
from tfbook.teaching.explorables._base import Explorable, number, vector, whole, wrapped
from tfbook.teaching.explorables._chance import uniforms

TITLE = "Choosing the next token"
MAX_PROMPTS, MAX_SHOWN, MAX_DRAWS = 12, 100, 10_000
GROWTH = 1.12  # each group of the tail reaches from a rank to 1.12 times that rank
OTHERS = "…"
LEAST = math.log(1e-300)  # below the smallest float a group weighs nothing


def pack_next_tokens(
    prompt: str,
    logits,
    tokens: Sequence[str] | Callable[[int], str],
    *,
    shown: int = 40,
) -> dict:
    """Return the distribution of the next token as a small dictionary that JSON can hold.

    The likeliest tokens stand with their names; all others in groups of neighbouring ranks, each
    with its size and the log of its mean probability. Within a group the probabilities hardly
    differ, so that what the figure computes from them is right to about three digits.

    Args:
        prompt: The text before the token.
        logits: `(V,)`, or log-probabilities; -inf for what cannot come.
        tokens: The text of each token, as a list or a function of its number.
        shown: How many stand with their names, 2 to 100.

    Returns:
        `prompt`, `tokens`, `log_probs` (nats) and `rest`, a list of [count, log-probability].

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if a number is NaN or out of range, or there are fewer than `shown` tokens.

    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    if not isinstance(prompt, str) or not prompt:
        raise TypeError(f"prompt must be a string with something in it, got {prompt!r}")
    whole("shown", 2, MAX_SHOWN)(shown)
    if hasattr(logits, "tolist"):
        logits = logits.tolist()
    if not logits or any(isinstance(x, (list, tuple, bool, str)) for x in logits):
        raise TypeError("logits must be a list of numbers, one for each token")
    if any(math.isnan(x) or x == math.inf for x in logits):
        raise ValueError("logits must be finite, or -inf for what cannot come")
    if not callable(tokens) and len(tokens) != len(logits):
        raise ValueError(
            f"tokens must be as many as logits, got {len(tokens)} and {len(logits)} logits"
        )
    logs = torch.tensor(logits, dtype=torch.double).log_softmax(0)
    order = logs.argsort(descending=True, stable=True)[: (logs > -math.inf).sum()].tolist()
    if len(order) < shown:
        raise ValueError(f"logits must allow at least shown = {shown} tokens, got {len(order)}")
    name = tokens if callable(tokens) else tokens.__getitem__
    logs = logs[order]
    rest, start = [], shown
    while start < len(order):
        end = min(len(order), max(start + 1, math.floor(GROWTH * start)))
        mean = logs[start:end].logsumexp(0).item() - math.log(end - start)
        rest.append([end - start, round(max(mean, LEAST), 4)])
        start = end
    return {
        "prompt": prompt,
        "tokens": [name(i) for i in order[:shown]],
        "log_probs": [round(max(x, LEAST), 4) for x in logs[:shown].tolist()],
        "rest": rest,
    }


def next_token_sampling(
    prompts: Sequence[Mapping],
    *,
    prompt: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 0.9,
    min_p: float = 0.0,
    seed: int = 0,
    draws: int = 20,
) -> Explorable:
    r"""Return a figure of the next token's distribution before and after what is cut from it.

    The log-probabilities are divided by the temperature $T$; top-k keeps the $k$ likeliest tokens,
    top-p the fewest of these whose probabilities sum to $p$, min-p those at least that many times
    as probable as the likeliest; what is kept is scaled to sum to 1. Draws use one stream of
    numbers for each seed, so other settings show what the same luck would have brought.

    Args:
        prompts: One to twelve dictionaries from `pack_next_tokens`.
        prompt: Which of them, from 0.
        temperature: From 0.1 to 5.
        top_k: 0 to as many as are listed; 0 is off.
        top_p: From 0.01 to 1; 1 is off.
        min_p: From 0 to 1; 0 is off.
        seed: 0 to 9999.
        draws: How many tokens have been drawn, 0 to 10 000.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or a prompt holds no distribution.

    Source: [holtzman2020curious], [fan2018hierarchical], [nguyen2024turning].
    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Sequence):
        raise TypeError(f"prompts must be a list of dictionaries, got {type(prompts).__name__}")
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise ValueError(f"prompts must be 1 to {MAX_PROMPTS} dictionaries, got {len(prompts)}")
    kept = [_checked(f"prompts[{i}]", p) for i, p in enumerate(prompts)]
    checks = {
        "prompt": whole("prompt", 0, len(kept) - 1),
        "temperature": number("temperature", 0.1, 5),
        "top_k": whole("top_k", 0, min(len(p["tokens"]) for p in kept)),
        "top_p": number("top_p", 0.01, 1),
        "min_p": number("min_p", 0, 1),
        "seed": whole("seed", 0, 9999),
        "draws": whole("draws", 0, MAX_DRAWS),
    }
    given = (prompt, temperature, top_k, top_p, min_p, seed, draws)
    state = {name: check(v) for (name, check), v in zip(checks.items(), given, strict=True)}

    def results(now: dict) -> dict:
        chosen = kept[now["prompt"]]
        n = len(chosen["tokens"])
        before = logits_of(chosen)
        after = warped(before, now).softmax(0)
        kept_ones = after > 0
        mass = (before / now["temperature"]).softmax(0)[kept_ones].sum().item()
        drawn = drawn_entries(chosen, after, now)
        names = [chosen["tokens"][i] if i < n else OTHERS for i in drawn]
        return {
            "probabilities": after[:n].tolist(),
            "kept": kept_ones.sum().item(),
            "mass": min(1.0, mass),
            "entropy": torch.special.entr(after).sum().item(),
            "entropy_before": torch.special.entr(before.softmax(0)).sum().item(),
            "tally": {name: names.count(name) for name in dict.fromkeys(names)},
            "drawn": names[-1] if names else None,
        }

    def text(now: dict) -> str:
        chosen, found = kept[now["prompt"]], results(now)
        pairs = list(zip(chosen["tokens"], chosen["log_probs"], strict=True))[:12]
        first = ", ".join(
            f"“{_seen(token)}” {math.exp(x):.3f} → {p:.3f}"
            for (token, x), p in zip(pairs, found["probabilities"], strict=False)
        )
        many = sum(c for c, _ in entries_of(chosen))
        cuts = ", ".join(
            f"{label} {now[key]:g}"
            for key, label, off in (("top_k", "top-k", 0), ("top_p", "top-p", 1),
                                    ("min_p", "min-p", 0))
            if now[key] != off
        )  # fmt: skip
        tally = ", ".join(
            f"“{_seen(name)}” {count} time{'s' if count > 1 else ''}"
            for name, count in found["tally"].items()
        )
        return wrapped(f"""{TITLE}

        After “{chosen["prompt"]}” the model gives each of {many:,} tokens a probability. At
        temperature {now["temperature"]:g} with {cuts or "nothing cut"}, {found["kept"]:,} tokens
        are kept, which had {found["mass"]:.3f} of the probability; the entropy goes from
        {found["entropy_before"]:.3f} to {found["entropy"]:.3f} nats. The likeliest, before →
        after: {first}.{f" Of {now['draws']} draws: {tally}." if tally else ""}

        In the page you choose among {len(kept)} prompts, move temperature, top-k, top-p and min-p,
        see what is cut, and draw.""")

    data = {"title": TITLE, "prompts": kept, "max_draws": MAX_DRAWS, "others": OTHERS}
    return Explorable(
        "next_token_sampling", data=data, state=state, checks=checks, results=results, text=text
    )


def entries_of(prompt: Mapping) -> list[tuple[int, float]]:
    """Return (count, log-probability) of every listed token and every group, likeliest first."""
    return [(1, x) for x in prompt["log_probs"]] + [(c, x) for c, x in prompt["rest"]]


def logits_of(prompt: Mapping) -> Tensor:
    """Return the log-probability of every token, (V,), float64, likeliest first."""
    counts, logs = zip(*entries_of(prompt), strict=True)
    logs = torch.tensor(logs, dtype=torch.double)
    return logs.repeat_interleave(torch.tensor(counts))


def warped(logits: Tensor, now: Mapping) -> Tensor:
    """Return the logits as the package cuts them with the present settings, (V,)."""
    sampling = Sampling(
        temperature=now["temperature"],
        top_k=now["top_k"] or None,
        top_p=now["top_p"] if now["top_p"] < 1 else None,
        min_p=now["min_p"] or None,
    )
    return sampling(logits)


def drawn_entries(prompt: Mapping, p: Tensor, now: Mapping) -> list[int]:
    """Return which listed token or group each draw falls on; `p` is that of every token, (V,)."""
    counts = [count for count, _ in entries_of(prompt)]
    masses = torch.stack([part.sum() for part in p.split(counts)])
    uniform = torch.tensor(uniforms(now["seed"], now["draws"]), dtype=torch.double)
    return draw(masses.log().expand(now["draws"], -1), uniform).tolist()


def _seen(token: str) -> str:
    """Return a token with its spaces and line breaks visible."""
    return token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or "∅"


def _checked(name: str, prompt) -> dict:
    if not isinstance(prompt, Mapping):
        raise TypeError(f"{name} must be a dictionary, got {type(prompt).__name__}")
    if missing := {"prompt", "tokens", "log_probs", "rest"} - set(prompt):
        raise ValueError(f"{name} must have {', '.join(sorted(missing))}")
    if not isinstance(prompt["prompt"], str) or not prompt["prompt"]:
        raise TypeError(f"{name} prompt must be a string with something in it")
    names = checked_tokens(f"{name} tokens", prompt["tokens"], 2, MAX_SHOWN)
    logs = vector(f"{name} log_probs", len(names), -1000, 0)(prompt["log_probs"])
    rest = []
    for i, group in enumerate(prompt["rest"]):
        if not isinstance(group, (list, tuple)) or len(group) != 2:
            raise ValueError(f"{name} rest[{i}] must be [count, log-probability], got {group!r}")
        count = whole(f"{name} rest[{i}] count", 1, 10_000_000)(group[0])
        rest.append([count, number(f"{name} rest[{i}] log-probability", -1000, 0)(group[1])])
    falling = logs + [x for _, x in rest]
    if any(a < b for a, b in zip(falling, falling[1:], strict=False)):
        raise ValueError(f"{name} log_probs and then rest must fall")
    total = math.fsum(c * math.exp(x) for c, x in [*((1, x) for x in logs), *rest])
    if abs(total - 1) > 0.01:
        raise ValueError(f"{name} must hold probabilities that sum to 1, got {total:.3f}")
    return {"prompt": prompt["prompt"], "tokens": names, "log_probs": logs, "rest": rest}
