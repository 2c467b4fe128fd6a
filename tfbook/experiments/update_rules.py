"""Which ways to update a state recall facts told once, those of a new story, and revised ones?

Five layers keep a state of 16 · 16 numbers and differ in nothing but what a token does to it
(`RULES`); a sixth has attention. A token is a pair: one half of its numbers embeds the key, the
other the value. There are three tasks. Told once: 32 keys get a value each. A new story: 15 keys
get a value each, then a mark comes, then the same keys get new values, in another order; these
count. Revised: 8 keys get a value four times, in mixed order, and the last one counts. Then the
keys are asked for in another order; a question reads and writes nothing. Attention has keys and
values of 4 numbers, so that its cache holds 256 numbers, too, after 32 tokens; its scores fall with
the distance, by a slope that is learned, so that it can tell which value is the last.

One network learns all tasks, in turns, with 8 pairs told once as the easy way in. Each rule tries
both rates with the first seed; the one that answers more, on sequences that are not used otherwise,
is used with all seeds. `CONTROLS` change one thing and keep the rate: a task alone, no slope, more
steps, larger states.

The log holds `recall[rule][seed]`, the shares of right answers for each of `counts` told once, for
the new story and for the revised; `rates[rule]`, what each rate reached, and `rate[rule]`, the
best; `decay[rule][seed]`, the mean factor by which a pair told once multiplies the state, and the
mark; `write[rule][seed]`, the mean share (of Mamba-2 the step) with which both are written. The
same for the controls: `controls[name][seed]`, as in `recall`, and `controls_decay[name][seed]`.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids, section "Five states, three tasks".
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.experiments.associative_recall import fit, pairs_of

__all__ = [
    "CONTROLS", "RULES", "SMOKE", "Memory", "Network", "numbers_of", "revised_of", "run",
    "story_of",
]  # fmt: skip

SMOKE = {
    "rules": ("attention", "delta rule"), "rates": (0.005,), "seeds": (0, 1), "steps": 4,
    "controls": ("attention without a slope", "linear attention, 576 numbers"),
}  # fmt: skip
CARD = {
    "model": "one layer of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "8 to 32 tokens with facts, then the questions",
    "batch": "batches of {BATCH} sequences",
    "rate": "for each layer the better of the rates {rates_first:g} and {rates_last:g}, rising, "
    "then falling",
}
WIDTH, SIDE, BATCH, PEOPLE, TOLD, STORY, MARK = 64, 16, 16, 8, 4, 15, 64
TASKS = (8, 32, "new story", "revised")
RULES = (
    "attention", "linear attention", "retention", "Mamba-2", "delta rule", "gated delta rule",
)  # fmt: skip
CONTROLS: dict[str, dict] = {  # name → the rule, and what is changed
    "retention, told once alone": {"rule": "retention", "tasks": (8, 32)},
    "attention without a slope": {"rule": "attention", "slope": False},
    "linear attention, twice the steps": {"rule": "linear attention", "times": 2},
    "linear attention, 576 numbers": {"rule": "linear attention", "side": 24},
    "linear attention, 1,024 numbers": {"rule": "linear attention", "side": 32},
}


class Memory(nn.Module):
    """Carries information from token to token: attention, or a state with one of the rules."""

    def __init__(self, rule: str, side: int = SIDE, slope: bool = True):
        """Make the maps; `rule` is one of RULES, `slope` says whether the scores fall."""
        super().__init__()
        self.rule, self.slope = rule, slope
        self.side = side // 4 if rule == "attention" else side
        self.to_qkv = nn.Linear(WIDTH, 3 * self.side, bias=False)
        self.out_proj = nn.Linear(self.side, WIDTH, bias=False)
        if rule in ("attention", "retention", "Mamba-2"):
            self.one = nn.Parameter(torch.tensor(-1.5 if rule == "attention" else -3.5))
        if "delta" in rule:
            self.write = nn.Linear(WIDTH, 1)
        if rule in ("Mamba-2", "gated delta rule"):
            self.step = nn.Linear(WIDTH, 1)
            nn.init.constant_(self.step.bias, -4.0)  # short steps: it begins by keeping

    def forward(self, x: Tensor, told: int) -> Tensor:
        """Mix the tokens (B, N, WIDTH), of which the first `told` are written, the others read."""
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        places = torch.arange(x.shape[1])
        age = (places[:, None] - places).clamp(min=0)
        hidden = (places > places[:, None]) | (places >= told)  # the future, and questions
        if self.rule == "attention":
            fall = functional.softplus(self.one) * age if self.slope else 0.0
            scores = q @ k.mT / self.side**0.5 - fall
            read = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
            return self.out_proj(read)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        log_keep, write = self.chosen(x)
        total = log_keep.masked_fill(places >= told, 0.0).cumsum(-1)
        fades = (total[:, :, None] - total[:, None]).masked_fill(hidden, -torch.inf).exp()
        written = write[..., None] * v
        if "delta" in self.rule:  # what the tokens write solves one equation each
            below = (write[..., None] * fades * (k @ k.mT)).tril(-1)
            written = torch.linalg.solve_triangular(below, written, upper=False, unitriangular=True)
        read = (fades * (q @ k.mT)) @ written
        return self.out_proj(functional.rms_norm(read, (self.side,)))

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return of each token the log of the share that it keeps, and how much it writes."""
        one = torch.ones(x.shape[:2])
        if self.rule == "linear attention":
            return 0 * one, one
        if self.rule == "retention":
            return -functional.softplus(self.one) * one, one
        if self.rule == "delta rule":
            return 0 * one, torch.sigmoid(self.write(x))[..., 0]
        step = functional.softplus(self.step(x))[..., 0]
        if self.rule == "Mamba-2":
            return -step * functional.softplus(self.one + 4.0), step
        return -step, torch.sigmoid(self.write(x))[..., 0]


class Block(nn.Module):
    """A memory and a feed-forward network, each behind a norm and added to its input."""

    def __init__(self, rule: str, **choices: object):
        """Make a layer with this rule."""
        super().__init__()
        self.memory = Memory(rule, **choices)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.ffn = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, told: int) -> Tensor:
        """Map the tokens (B, N, WIDTH)."""
        x = x + self.memory(self.norms[0](x), told)
        return x + self.ffn(self.norms[1](x))


class Network(nn.Module):
    """Tokens that are pairs, then keys; a layer; and scores of the values for each question."""

    def __init__(self, rule: str, **choices: object):
        """Make a network, untrained, whose layer has this rule; choices as in Memory."""
        super().__init__()
        self.keys, self.values = nn.Embedding(65, WIDTH // 2), nn.Embedding(64, WIDTH // 2)
        self.ask = nn.Parameter(torch.randn(WIDTH // 2))
        self.block = Block(rule, **choices)
        self.norm, self.to_value = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 64)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Read pairs (B, P) and questions (B, A); return scores (B, A, 64)."""
        pairs = torch.cat([self.keys(keys), self.values(values)], dim=-1)
        questions = torch.cat([self.keys(asked), self.ask.expand(*asked.shape, -1)], dim=-1)
        told = keys.shape[1]
        x = self.block(torch.cat([pairs, questions], dim=1), told)
        return self.to_value(self.norm(x[:, told:]))


def revised_of(size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw 8 keys that are told four values each, in mixed order; the keys again; last values."""
    chosen = torch.rand(size, 64, generator=draw).argsort(1)[:, :PEOPLE]
    which = torch.rand(size, PEOPLE * TOLD, generator=draw).argsort(1) % PEOPLE
    values = torch.randint(64, which.shape, generator=draw)
    order = torch.rand(size, PEOPLE, generator=draw).argsort(1)
    told = torch.arange(PEOPLE * TOLD)[:, None]
    last = torch.where(which[..., None] == torch.arange(PEOPLE), told, -1).amax(1)
    return (
        chosen.gather(1, which),
        values,
        chosen.gather(1, order),
        values.gather(1, last.gather(1, order)),
    )


def story_of(size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw 15 pairs of an old story, a mark, and the same keys with new values; these count."""
    old = torch.rand(size, 64, generator=draw).argsort(1)[:, :STORY]
    new = old.gather(1, torch.rand(size, STORY, generator=draw).argsort(1))
    keys = torch.cat([old, torch.full((size, 1), MARK), new], dim=1)
    values = torch.randint(64, keys.shape, generator=draw)
    values[:, STORY] = 0
    order = torch.rand(size, STORY, generator=draw).argsort(1)
    return keys, values, new.gather(1, order), values[:, -STORY:].gather(1, order)


def drawn(
    task: int | str, size: int, draw: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw sequences of a task: so many pairs told once, "new story" or "revised"."""
    if isinstance(task, int):
        return pairs_of(task, size, draw)
    return (story_of if task == "new story" else revised_of)(size, draw)


def numbers_of(rule: str, told: int) -> int:
    """Count the numbers that a layer holds after so many tokens."""
    return told * 2 * (SIDE // 4) if rule == "attention" else SIDE * SIDE


@torch.no_grad()
def right(net: Network, task: int | str, seed: int) -> float:
    """Return the share of right answers in 200 fresh sequences."""
    *given, wanted = drawn(task, 200, torch.Generator().manual_seed(seed))
    return round((net(*given).argmax(-1) == wanted).double().mean().item(), 4)


@torch.no_grad()
def chosen_by(net: Network) -> tuple[list[float], list[float]]:
    """Return the mean factor by which a pair told once multiplies the state, and the mark.

    The second list says how much both are written.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for task in (PEOPLE * TOLD, "new story"):
        keys, values, *_ = drawn(task, 200, torch.Generator().manual_seed(30_000))
        x = torch.cat([net.keys(keys), net.values(values)], dim=-1)
        log_keep, write = net.block.memory.chosen(net.block.norms[0](x))
        meant = keys == MARK if task == "new story" else keys != MARK
        for numbers, each in zip(found, (log_keep.exp(), write), strict=True):
            numbers.append(round(each[meant].mean().item(), 4))
    return found


def trained(
    rule: str, rate: float, seed: int, steps: int, *,
    tasks: Sequence[int | str] = TASKS, times: int = 1, **choices: object,
) -> Network:  # fmt: skip
    """Train a network on the tasks in turns, for so many times the steps."""
    torch.manual_seed(seed)
    net, draw = Network(rule, **choices), torch.Generator().manual_seed(seed)

    def loss_of(step):
        *given, wanted = drawn(tasks[step % len(tasks)], BATCH, draw)
        return functional.cross_entropy(net(*given).flatten(0, 1), wanted.flatten())

    fit(net, loss_of, times * steps, rate)
    return net


def run(
    *,
    rules: Sequence[str] = RULES,
    counts: Sequence[int] = (4, 8, 16, 32, 64),
    rates: Sequence[float] = (0.005, 0.015),
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 1000,
    controls: Sequence[str] = tuple(CONTROLS),
) -> tuple[dict, None]:
    """Train one layer with each rule, at its better rate with every seed; then the controls."""
    log: dict = {key: {} for key in ("recall", "rates", "rate", "parameters", "decay", "write")}

    def answers(nets):
        return [
            [right(net, task, 10_000 + seed) for task in (*counts, *TASKS[2:])]
            for seed, net in zip(seeds, nets, strict=True)
        ]

    for rule in rules:
        nets = {rate: trained(rule, rate, seeds[0], steps) for rate in rates}
        tried = {
            rate: sum(right(net, task, 20_000) for task in TASKS[1:]) / 3
            for rate, net in nets.items()
        }
        best = max(tried, key=lambda rate: tried[rate])
        nets = [nets[best], *(trained(rule, best, seed, steps) for seed in seeds[1:])]
        found = {
            "recall": answers(nets),
            "rates": {f"{rate:g}": round(share, 4) for rate, share in tried.items()},
            "rate": best,
            "parameters": sum(w.numel() for w in nets[0].parameters()),
        }
        if rule != "attention":
            found["decay"], found["write"] = zip(*map(chosen_by, nets), strict=True)
        for key, value in found.items():
            log[key][rule] = value
    log |= {"controls": {}, "controls_decay": {}}
    for name in controls:
        changed = dict(CONTROLS[name])
        rule = changed.pop("rule")
        rate = log["rate"].get(rule, rates[-1])
        nets = [trained(rule, rate, seed, steps, **changed) for seed in seeds]
        log["controls"][name] = answers(nets)
        if rule != "attention":
            log["controls_decay"][name] = [chosen_by(net)[0] for net in nets]
    parameters = log["parameters"].values()
    log |= {"smallest": min(parameters), "largest": max(parameters)}
    settings = {"rates": list(rates), "steps": steps}
    return {"settings": settings, "counts": list(counts), "seeds": list(seeds), **log}, None
