"""What happens to what people want when a policy is pushed towards a model of what they prefer?

A question names a thing. A reply should say that this thing is ready, and politely, "thanks , the
lamp is ready". How good a reply is can be told exactly here, by :func:`worth`: 2 points if the
right thing and no other is named, and up to 1 for politeness. A first polite word is worth 0.7, a
second one 0.3 more; each further one costs 0.5.

First a small decoder learns replies from a grammar, in which one reply in five names a wrong thing
and polite words are few: this is the reference. Then pairs of its replies are compared, each by
Bradley and Terry's rule from the worth of the two, and a reward model learns from `pairs`
comparisons. It never sees the worth. Last, the reference is pushed towards this reward in two ways:
by taking the best of n of its replies, and by policy gradient, without a penalty and with one of
`penalty` times the divergence from the reference. In "second round" the reward model learns from as
many comparisons again, of replies of the pushed policy, and the gradient begins anew with it.

The log holds for each seed the share of fresh comparisons that the reward model orders as the worth
does (`agreement`), of reference replies and of replies of the pushed policy; the mean and the
standard deviation of reward and worth over replies of the reference (`reference`). Under `best of
n`, for each n of `sizes`, and under each way of `ways`, for each look at the policy, stand the
divergence from the reference in nats a reply (`kl`), the reward in standard deviations above the
reference's mean (`reward`), the `worth`, the mean number of `polite` words and of `words`, and the
share of replies with the right thing (`right`). `replies` are three of each way's last ones.

Source: [gao2023scaling], who also let a known reward stand for what people want.
Explained in: chapters/18_practice_deeper, section "A reward model and its hacking".
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tfbook.experiments.long_sums import learn
from tfbook.models import FFN, Attention, DecoderOnly, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.practice import (
    RewardModel,
    Rollout,
    answer_batch,
    answer_loss,
    bradley_terry_loss,
    group_advantages,
    reference_drift,
    rollout_loss,
    sample_rollout,
)
from tfbook.training import IGNORE

__all__ = [
    "PENALTY", "SMOKE", "WORDS", "grammar", "learn_reward", "model_of", "polite", "push", "run",
    "texts_of", "worth", "write",
]  # fmt: skip

THINGS = "lamp clock chair boat piano camera violin ladder".split()
POLITE = "please thanks kindly sorry".split()
WORDS = [".", ",", "the", "is", "ready", *THINGS, *POLITE, "?"]  # "." ends a reply
STOP, LONGEST, GROUP, QUESTIONS = 0, 16, 8, 8
SHARES, WRONG = (0.45, 0.35, 0.17, 0.03), 0.2  # of 0 to 3 polite words; of wrong things
PENALTY = 0.2
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SMOKE = {"seeds": (0,), "steps": 2, "judge_steps": 2, "pairs": 8, "pushes": 2, "every": 1,
         "n_best": 1024, "tests": 2}  # fmt: skip
CARD = {
    "model": "policy and reward model of 2 layers, width 48, {parameters:,} parameters",
    "data": "replies from a grammar; {pairs:,} comparisons",
    "steps": "{steps} steps for replies, {judge_steps} for the reward, {pushes} of gradient",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}, policy gradient {PUSH_RATE:g}",
}
BATCH, RATE, PUSH_RATE = 64, 2e-3, 1e-3


def model_of(seed: int = 0) -> DecoderOnly:
    """Make the policy, untrained."""
    torch.manual_seed(seed)
    layer = Layer(Attention(4, position=Rotary()), FFN(128, "swiglu"), norm=Norm("rms"))
    return build(TransformerConfig(len(WORDS), 48, decoder=[layer] * 2, init="gpt2"))


def polite(reply: Sequence[str]) -> int:
    """Count the polite words of a reply."""
    return sum(word in POLITE for word in reply)


def worth(thing: str, reply: Sequence[str]) -> float:
    """Say how good a reply is, at most 3: what nobody can measure outside of an experiment."""
    named, count = {word for word in reply if word in THINGS}, polite(reply)
    manners = (0.0, 0.7, 1.0)[count] if count < 3 else 1.0 - 0.5 * (count - 2)
    return 2.0 * (named == {thing}) + manners


def grammar(n: int, generator: torch.Generator) -> list[tuple[str, list[str]]]:
    """Draw things that are asked for, and replies as the reference learns them."""
    found = []
    for _ in range(n):
        thing, other = (int(i) for i in torch.randint(len(THINGS), (2,), generator=generator))
        wrong, count, before = torch.rand(3, generator=generator).tolist()
        count = sum(count > sum(SHARES[: i + 1]) for i in range(3))
        drawn = torch.randint(len(POLITE), (count,), generator=generator).tolist()
        courtesy = [POLITE[i] for i in drawn]
        first = round(before * count)  # how many stand in front
        reply = [*courtesy[:first], *([","] if first else []), "the"]
        reply += [THINGS[other if wrong < WRONG else thing], "is", "ready", *courtesy[first:], "."]
        found.append((THINGS[thing], reply))
    return found


def ids_of(thing: str, reply: Sequence[str] = ()) -> list[int]:
    """Return the ids of a question, and of its reply."""
    return [WORDS.index(word) for word in (thing, "?", *reply)]


def texts_of(rollout: Rollout) -> list[tuple[str, list[str]]]:
    """Return what was asked and what was replied, as words."""
    found = []
    for inputs, targets in zip(rollout.inputs.tolist(), rollout.targets.tolist(), strict=True):
        found.append((WORDS[inputs[0]], [WORDS[i] for i in targets if i != IGNORE]))
    return found


def write(model: nn.Module, n: int, seed: int, *, group: int = 2) -> Rollout:
    """Let a policy reply n times, `group` times to each question; rewards are 0."""
    chosen = torch.randint(
        len(THINGS), (n // group,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    prompts = [ids_of(THINGS[i]) for i in chosen]
    return sample_rollout(
        model.eval(), prompts, lambda i, new: 0.0, group=group, max_new_tokens=LONGEST,
        stop=[STOP], seed=seed,
    )  # fmt: skip


def scores(judge: RewardModel, texts: Sequence[tuple[str, Sequence[str]]]) -> Tensor:
    """Return the reward of each reply, (B,)."""
    ids = [ids_of(thing, reply) for thing, reply in texts]
    longest = max(map(len, ids))
    mask = torch.tensor([[i < len(row) for i in range(longest)] for row in ids])
    return judge(torch.tensor([row + [0] * (longest - len(row)) for row in ids]), mask)


def compared(rollout: Rollout, generator: torch.Generator) -> list[tuple]:
    """Let each two replies to a question be compared; return those preferred and the others."""
    texts, pairs = texts_of(rollout), []
    for one, other in zip(texts[::2], texts[1::2], strict=True):
        first = 1 / (1 + math.exp(worth(*other) - worth(*one)))  # Bradley and Terry
        won = torch.rand((), generator=generator).item() < first
        pairs.append((one, other) if won else (other, one))
    return pairs


def learn_reward(start: DecoderOnly, pairs: list[tuple], seed: int, steps: int) -> RewardModel:
    """Train a reward model, from the weights of a policy, on comparisons alone."""
    judge, generator = RewardModel(copy.deepcopy(start)), torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        some = torch.randint(
            len(pairs), (min(BATCH // 2, len(pairs)),), generator=generator
        ).tolist()
        both = scores(judge, [pairs[i][0] for i in some] + [pairs[i][1] for i in some])
        return bradley_terry_loss(*both.chunk(2))

    learn(judge, loss, steps, rate=RATE / 2)
    return judge


@torch.no_grad()
def look(
    policy: DecoderOnly, reference: DecoderOnly, judge: RewardModel, scale: dict, n: int, seed: int
) -> tuple[dict, list[str]]:
    """Measure what a policy replies now, and show three replies."""
    rollout = write(policy, n, seed)
    texts, drawn = texts_of(rollout), rollout.targets != IGNORE
    far = reference_drift(policy(rollout.inputs)[0], reference(rollout.inputs)[0], drawn)
    measured = summary(texts, scores(judge, texts), scale)
    measured["kl"] = round(far.item() * drawn.sum().item() / len(texts), 3)
    return measured, [f"{thing}? {' '.join(reply)}" for thing, reply in texts[:6:2]]


def summary(texts: Sequence[tuple], rewards: Tensor, scale: dict) -> dict:
    """Return the means over replies."""
    n = len(texts)
    things = [{w for w in reply if w in THINGS} == {thing} for thing, reply in texts]
    return {
        "reward": round((rewards.mean().item() - scale["reward"]) / scale["reward_std"], 3),
        "worth": round(sum(worth(*each) for each in texts) / n, 3),
        "polite": round(sum(polite(reply) for _, reply in texts) / n, 2),
        "words": round(sum(len(reply) for _, reply in texts) / n, 2),
        "right": round(sum(things) / n, 3),
    }


def best(texts: list[tuple], rewards: Tensor, scale: dict, n: int) -> dict:
    """Return what the best of n has, in the mean over groups of n replies."""
    groups = rewards[: len(rewards) // n * n].view(-1, n)
    chosen = groups.argmax(1) + n * torch.arange(len(groups))
    found = summary([texts[i] for i in chosen.tolist()], rewards[chosen], scale)
    return found | {"kl": round(math.log(n) - (n - 1) / n, 3)}


def push(
    reference: DecoderOnly, judge: RewardModel, scale: dict, seed: int, *, penalty: float,
    pushes: int, every: int, tests: int,
) -> tuple[DecoderOnly, list[dict], list[str]]:  # fmt: skip
    """Push the reference towards a reward by policy gradient, and look at it on the way."""
    policy, seen, shown = copy.deepcopy(reference), [], []
    optimizer = torch.optim.AdamW(policy.parameters(), lr=PUSH_RATE, weight_decay=0.0)
    for step in range(pushes + 1):
        if step % every == 0:
            found, shown = look(policy, reference, judge, scale, tests, 50_000)
            seen.append(found | {"step": step})
        if step == pushes:
            break
        rollout = write(policy, QUESTIONS * GROUP, 1000 * seed + step, group=GROUP)
        with torch.no_grad():
            rewards = scores(judge, texts_of(rollout)) / scale["reward_std"]
        better = group_advantages(rewards.view(-1, GROUP)).flatten()
        rollout = rollout._replace(rewards=rewards, advantages=better)
        optimizer.zero_grad()
        loss = rollout_loss(policy, rollout, length=LONGEST, reference=reference, kl_weight=penalty)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return policy, seen, shown


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = 400, judge_steps: int = 200,
    pairs: int = 1000, pushes: int = 60, every: int = 6, n_best: int = 4096, tests: int = 128,
) -> tuple[dict, None]:  # fmt: skip
    """Learn the replies, the reward, and push, with each seed.

    Returns:
        the log: lists over `seeds`.
    """
    settings = {"steps": steps, "judge_steps": judge_steps, "pairs": pairs, "pushes": pushes}
    log: dict = {"settings": settings | {"penalty": PENALTY}, "seeds": list(seeds)}
    log |= {"reference": [], "agreement": [], "best of n": [], "ways": {}, "replies": {}}

    def keep(way: str, seen: list[dict], shown: list[str]) -> None:
        log["ways"].setdefault(way, []).append(seen)
        log["replies"].setdefault(way, []).append(shown)

    for seed in seeds:
        generator, reference = torch.Generator().manual_seed(seed), model_of(seed)
        log["settings"]["parameters"] = sum(x.numel() for x in reference.parameters())

        replies = [(ids_of(*each), 2) for each in grammar(4000, generator)]

        def imitate(step: int, model=reference, generator=generator, replies=replies) -> Tensor:
            some = torch.randint(len(replies), (BATCH,), generator=generator).tolist()
            total, count = answer_loss(model, answer_batch([replies[i] for i in some]))
            return total / count

        learn(reference, imitate, steps)
        asked = compared(write(reference, 2 * pairs, 100 + seed), generator)
        judge = learn_reward(reference, asked, seed, judge_steps)
        texts = texts_of(write(reference, n_best, 200 + seed))
        with torch.no_grad():
            rewards = scores(judge, texts)
        scale = {"reward": rewards.mean().item(), "reward_std": rewards.std().item()}
        log["reference"].append(summary(texts, rewards, scale))
        log["best of n"].append([{"n": n} | best(texts, rewards, scale, n) for n in SIZES])
        how = {"pushes": pushes, "every": every, "tests": tests}
        pushed, *found = push(reference, judge, scale, seed, penalty=0.0, **how)
        keep("no penalty", *found)
        _, *found = push(reference, judge, scale, seed, penalty=PENALTY, **how)
        keep("penalty", *found)
        theirs = write(pushed, 2 * pairs, 300 + seed)
        log["agreement"].append([agreement(judge, texts), agreement(judge, texts_of(theirs))])
        again = learn_reward(reference, asked + compared(theirs, generator), seed, judge_steps)
        with torch.no_grad():
            anew = scores(again, texts)
        scale = {"reward": anew.mean().item(), "reward_std": anew.std().item()}
        _, *found = push(reference, again, scale, seed, penalty=0.0, **how)
        keep("second round", *found)
    return log, None


@torch.no_grad()
def agreement(judge: RewardModel, texts: list[tuple]) -> float:
    """Return the share of pairs of unequal worth that the reward orders as the worth does."""
    rewards, worths = scores(judge, texts), torch.tensor([worth(*each) for each in texts])
    apart, wanted = rewards[::2] - rewards[1::2], worths[::2] - worths[1::2]
    unequal = wanted.abs() > 1e-6
    return round(((apart > 0) == (wanted > 0))[unequal].float().mean().nan_to_num(0.5).item(), 3)
