"""Right and wrong answers to the exercises of chapter 08.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math
import statistics

import torch
from answers import collect

from tfbook import models

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "gates-with-room": lambda logits, top_k, room: models.route(
        logits, top_k, capacity=room
    ).gates(),
    "biased-choice": lambda logits, bias, top_k: (
        (found := models.route(logits, top_k, kind="sigmoid", bias=bias)).chosen, found.weights
    ),
}  # fmt: skip


# seed-difference --------------------------------------------------------------------------------


@right("seed-difference")
def difference_of_means(plain, changed):
    error = statistics.variance(plain) / len(plain) + statistics.variance(changed) / len(changed)
    return statistics.mean(changed) - statistics.mean(plain), math.sqrt(error)


@right("seed-difference")
def difference_by_tensors(plain, changed):
    one, other = torch.tensor(plain).double(), torch.tensor(changed).double()
    error = (one.var() / len(one) + other.var() / len(other)).sqrt()
    return (other.mean() - one.mean()).item(), error.item()


@wrong("seed-difference", "The sign is turned")
def difference_turned(plain, changed):
    change, error = difference_of_means(plain, changed)
    return -change, error


@wrong("seed-difference", "how far single runs differ")
def difference_of_runs(plain, changed):
    error = math.sqrt(statistics.variance(plain) + statistics.variance(changed))
    return statistics.mean(changed) - statistics.mean(plain), error


@wrong("seed-difference", "were divided by n")
def difference_of_populations(plain, changed):
    error = statistics.pvariance(plain) / len(plain) + statistics.pvariance(changed) / len(changed)
    return statistics.mean(changed) - statistics.mean(plain), math.sqrt(error)


@wrong("seed-difference", "Independent errors add as squares")
def difference_of_errors(plain, changed):
    error = sum(statistics.stdev(x) / math.sqrt(len(x)) for x in (plain, changed))
    return statistics.mean(changed) - statistics.mean(plain), error


@wrong("seed-difference", "its term is missing")
def difference_from_a_law(plain, changed):
    error = statistics.stdev(changed) / math.sqrt(len(changed))
    return statistics.mean(changed) - statistics.mean(plain), error


@wrong("seed-difference", "take the root")
def difference_squared(plain, changed):
    change, error = difference_of_means(plain, changed)
    return change, error**2


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
