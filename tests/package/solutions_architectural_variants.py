"""Right and wrong answers to the exercises of chapter 08.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math
import statistics

import torch
from answers import collect

from tfbook import blocks

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "gates-with-room": lambda logits, top_k, room: blocks.route(
        logits, top_k, capacity=room
    ).gates(),
    "biased-choice": lambda logits, bias, top_k: (
        (found := blocks.route(logits, top_k, kind="sigmoid", bias=bias)).chosen, found.weights
    ),
}  # fmt: skip


# two-small-models -------------------------------------------------------------------------------


def by_means(plain, changed):
    variances = statistics.variance(plain) + statistics.variance(changed)
    return statistics.mean(changed) - statistics.mean(plain), math.sqrt(variances / len(plain))


def judged(train, plain, changed, seeds, difference=by_means):
    """Judge two models by the seeds, with the difference and its error as one pleases."""
    by, error = difference(*([train(name, seed) for seed in seeds] for name in (plain, changed)))
    return by, error, "clear" if abs(by) > 3 * error else "not clear"


@right("two-small-models")
def models_judged(train, plain, changed, seeds):
    return judged(train, plain, changed, seeds)


@right("two-small-models")
def models_judged_by_tensors(train, plain, changed, seeds):
    losses = torch.tensor([[train(name, s) for s in seeds] for name in (plain, changed)]).double()
    by = (losses[1].mean() - losses[0].mean()).item()
    error = (losses.var(1).sum() / len(seeds)).sqrt().item()
    return by, error, "not clear" if abs(by / error) <= 3 else "clear"


@wrong("two-small-models", "with every seed of the list")
def models_with_seeds_of_their_own(train, plain, changed, seeds):
    return judged(train, plain, changed, range(len(seeds)))


@wrong("two-small-models", "with every seed of the list")
def models_trained_twice(train, plain, changed, seeds):
    return judged(train, plain, changed, [*seeds, *seeds])


@wrong("two-small-models", "The sign is turned")
def models_turned(train, plain, changed, seeds):
    return judged(train, changed, plain, seeds)


@wrong("two-small-models", "difference of two single runs varies")
def models_by_single_runs(train, plain, changed, seeds):
    def single(one, other):
        by, error = by_means(one, other)
        return by, error * math.sqrt(len(one))

    return judged(train, plain, changed, seeds, single)


@wrong("two-small-models", "was divided by n")
def models_as_populations(train, plain, changed, seeds):
    def population(one, other):
        variances = statistics.pvariance(one) + statistics.pvariance(other)
        return by_means(one, other)[0], math.sqrt(variances / len(one))

    return judged(train, plain, changed, seeds, population)


@wrong("two-small-models", "Both are: their variances add up")
def models_with_one_sure_mean(train, plain, changed, seeds):
    def sure(one, other):
        return by_means(one, other)[0], statistics.stdev(one) / math.sqrt(len(one))

    return judged(train, plain, changed, seeds, sure)


@wrong("two-small-models", "taken seed by seed")
def models_in_pairs(train, plain, changed, seeds):
    def paired(one, other):
        apart = [y - x for x, y in zip(one, other, strict=True)]
        return statistics.mean(apart), statistics.stdev(apart) / math.sqrt(len(apart))

    return judged(train, plain, changed, seeds, paired)


@wrong("two-small-models", "not with the number")
def models_by_the_number(train, plain, changed, seeds):
    def numbered(one, other):
        by, error = by_means(one, other)
        return by, error / math.sqrt(len(one))

    return judged(train, plain, changed, seeds, numbered)


@wrong("two-small-models", "take the root")
def models_by_squares(train, plain, changed, seeds):
    def squared(one, other):
        by, error = by_means(one, other)
        return by, error**2

    return judged(train, plain, changed, seeds, squared)


@wrong("two-small-models", "compare its size with the error")
def models_judged_by_sign(train, plain, changed, seeds):
    by, error, _ = judged(train, plain, changed, seeds)
    return by, error, "clear" if by > 3 * error else "not clear"


@wrong("two-small-models", "clear beyond three")
def models_judged_early(train, plain, changed, seeds):
    by, error, _ = judged(train, plain, changed, seeds)
    return by, error, "clear" if abs(by) > 2 * error else "not clear"


# gates-with-room --------------------------------------------------------------------------------


def gates(logits, top_k, room, order="choices", over="chosen", again=False):
    values, chosen = logits.topk(top_k, dim=-1)
    scores = values.softmax(-1) if over == "chosen" else logits.softmax(-1).gather(-1, chosen)
    made, counts = torch.zeros_like(logits), torch.zeros(logits.shape[1])
    rows, places = range(len(logits)), range(top_k)
    pairs = [(t, i) for i in places for t in rows]
    if order == "text":
        pairs = [(t, i) for t in rows for i in places]
    for t, i in pairs:
        if counts[chosen[t, i]] < room:
            counts[chosen[t, i]] += 1
            made[t, chosen[t, i]] = scores[t, i]
    return made / made.sum(-1, keepdim=True).clamp_min(1e-12) if again else made


@right("gates-with-room")
def gates_in_two_loops(logits, top_k, room):
    return gates(logits, top_k, room)


@right("gates-with-room")
def gates_by_counting(logits, top_k, room):
    values, chosen = logits.topk(top_k, dim=-1)
    asked = torch.nn.functional.one_hot(chosen.T.flatten(), logits.shape[1])  # choices first
    before = (asked.cumsum(0) * asked).sum(-1)  # 1 for the first who asks
    kept = (before <= room).view(top_k, -1).T
    return torch.zeros_like(logits).scatter(1, chosen, values.softmax(-1) * kept)


@wrong("gates-with-room", "runs over all experts")
def gates_of_all(logits, top_k, room):
    return gates(logits, top_k, room, over="all")


@wrong("gates-with-room", "more tokens than there is room for")
def gates_without_limit(logits, top_k, room):
    return gates(logits, top_k, len(logits))


@wrong("gates-with-room", "before any second")
def gates_in_order_of_text(logits, top_k, room):
    return gates(logits, top_k, room, order="text")


@wrong("gates-with-room", "What is dropped is lost")
def gates_shared_out_again(logits, top_k, room):
    return gates(logits, top_k, room, again=True)


@wrong("gates-with-room", "in the column of its expert")
def gates_in_order_of_choice(logits, top_k, room):
    made = torch.zeros_like(logits)
    made[:, :top_k] = logits.topk(top_k, dim=-1).values.softmax(-1)
    return made


# biased-choice ----------------------------------------------------------------------------------


@right("biased-choice")
def bias_on_the_choice(logits, bias, top_k):
    scores = torch.sigmoid(logits)
    chosen = (scores + bias).topk(top_k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True)


@right("biased-choice")
def bias_taken_back(logits, bias, top_k):
    scores = torch.sigmoid(logits) + bias
    chosen = scores.argsort(dim=-1, descending=True)[:, :top_k]
    weights = (scores - bias).gather(-1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True)


@wrong("biased-choice", "The bias is there for the choice alone")
def bias_on_both(logits, bias, top_k):
    scores = torch.sigmoid(logits) + bias * 1.0
    weights, chosen = scores.topk(top_k, dim=-1)
    return chosen, weights / weights.sum(-1, keepdim=True)


@wrong("biased-choice", "The bias decides who is chosen")
def bias_forgotten(logits, bias, top_k):
    weights, chosen = torch.sigmoid(logits).topk(top_k, dim=-1)
    return chosen, weights / weights.sum(-1, keepdim=True)


@wrong("biased-choice", "divide them by their sum")
def bias_without_a_sum(logits, bias, top_k):
    scores = torch.sigmoid(logits)
    chosen = (scores + bias).topk(top_k, dim=-1).indices
    return chosen, scores.gather(-1, chosen)


@wrong("biased-choice", "The weights are a softmax")
def bias_with_a_softmax(logits, bias, top_k):
    chosen = (torch.sigmoid(logits) + bias).topk(top_k, dim=-1).indices
    return chosen, logits.gather(-1, chosen).softmax(-1)
