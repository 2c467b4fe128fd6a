"""Right and wrong answers to the exercises of chapter 18.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import numpy as np
import torch
from answers import collect

from tfbook.practice import dpo_loss, grpo_loss
from tfbook.practice.verifiable import Rollout

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {}


# mended-batch -----------------------------------------------------------------------------------


def batch_of(question, answer, pad_to, *, shift=1, fill=-100, asked=None):
    ids = question + answer
    inputs = ids[: len(ids) - shift]
    targets = [-100] * (len(question) - shift) + answer if asked is None else asked
    return inputs + [0] * (pad_to - len(inputs)), targets + [fill] * (pad_to - len(targets))


@right("mended-batch")
def moved_and_ignored(question, answer, pad_to):
    return batch_of(question, answer, pad_to)


@right("mended-batch")
def token_by_token(question, answer, pad_to):
    ids, inputs, targets = question + answer, [0] * pad_to, [-100] * pad_to
    for t in range(len(ids) - 1):
        inputs[t] = ids[t]
        if t + 1 >= len(question):
            targets[t] = ids[t + 1]
    return inputs, targets


@wrong("mended-batch", "Nothing is mended yet")
def as_it_was(question, answer, pad_to):
    return batch_of(question, answer, pad_to, shift=0, fill=0)


@wrong("mended-batch", "asked for the token that it reads")
def only_padding(question, answer, pad_to):
    return batch_of(question, answer, pad_to, shift=0)


@wrong("mended-batch", "padding is still asked for token 0")
def only_moved(question, answer, pad_to):
    return batch_of(question, answer, pad_to, fill=0)


@wrong("mended-batch", "The question is asked for as well")
def question_too(question, answer, pad_to):
    return batch_of(question, answer, pad_to, asked=(question + answer)[1:])


@wrong("mended-batch", "is asked for nothing")
def without_the_first(question, answer, pad_to):
    return batch_of(question, answer, pad_to, asked=[-100] * len(question) + answer[1:])


@wrong("mended-batch", "places, and should have")
def not_filled_up(question, answer, pad_to):
    ids = question + answer
    return ids[:-1], [-100] * (len(question) - 1) + answer


# merge-adapter ----------------------------------------------------------------------------------


@right("merge-adapter")
def one_after_the_other(weight, adapters):
    merged = weight.clone()
    for a, b, alpha, share in adapters:
        merged += share * alpha / len(a) * (b @ a)
    return merged


@right("merge-adapter")
def as_one_product(weight, adapters):
    downs = torch.cat([a for a, *_ in adapters])
    ups = torch.cat([share * alpha / len(a) * b for a, b, alpha, share in adapters], dim=1)
    return weight + ups @ downs


@wrong("merge-adapter", "not divided by the rank")
def without_the_rank(weight, adapters):
    return weight + sum(share * alpha * (b @ a) for a, b, alpha, share in adapters)


@wrong("merge-adapter", "its own rank")
def with_the_first_rank(weight, adapters):
    rank = len(adapters[0][0])
    return weight + sum(share * alpha / rank * (b @ a) for a, b, alpha, share in adapters)


@wrong("merge-adapter", "shares are not used")
def without_shares(weight, adapters):
    return weight + sum(alpha / len(a) * (b @ a) for a, b, alpha, _ in adapters)


@wrong("merge-adapter", "frozen matrix is missing")
def updates_alone(weight, adapters):
    return sum(share * alpha / len(a) * (b @ a) for a, b, alpha, share in adapters)


@wrong("merge-adapter", "compute a new one")
def in_place(weight, adapters):
    for a, b, alpha, share in adapters:
        weight += share * alpha / len(a) * (b @ a)
    return weight


# own-classifier ---------------------------------------------------------------------------------


def divided(lines, seed, copies=False):
    pairs = [line.split("\t") for line in lines]
    kept = {}
    for i, (label, text) in enumerate(pairs):
        kept.setdefault(i if copies else text.lower(), (text, int(label)))
    found = list(kept.values())
    order = np.random.default_rng(seed).permutation(len(found))
    n, mixed = len(found) // 5, [found[i] for i in order]
    return mixed[2 * n :], mixed[n : 2 * n], mixed[:n]


def owned(lines, make, fit, hits, rates, seed, *, chosen_by="valid", copies=False, one=None):
    train, valid, test = divided(lines, seed, copies)
    models = {rate: fit(one or make(), train, rate) for rate in rates}
    by = {"valid": valid, "train": train, "test": test}[chosen_by]
    best = max(rates, key=lambda rate: hits(models[rate], by).mean())
    return best, float(hits(models[best], test).mean())


@right("own-classifier")
def by_validation(lines, make, fit, hits, rates, seed=0):
    return owned(lines, make, fit, hits, rates, seed)


@right("own-classifier")
def rate_by_rate(lines, make, fit, hits, rates, seed=0):
    train, valid, test = divided(lines, seed)
    best = (-1.0, None, None)
    for rate in rates:
        model = fit(make(), train, rate)
        share = hits(model, valid).mean()
        if share > best[0]:
            best = (share, rate, model)
    return best[1], float(np.mean(hits(best[2], test)))


@wrong("own-classifier", "chosen by the sentences that were trained on")
def by_training(lines, make, fit, hits, rates, seed=0):
    return owned(lines, make, fit, hits, rates, seed, chosen_by="train")


@wrong("own-classifier", "test the chosen model once")
def by_the_test(lines, make, fit, hits, rates, seed=0):
    return owned(lines, make, fit, hits, rates, seed, chosen_by="test")


@wrong("own-classifier", "comes again in other capitals")
def with_copies(lines, make, fit, hits, rates, seed=0):
    return owned(lines, make, fit, hits, rates, seed, copies=True)


@wrong("own-classifier", "a new one for each rate")
def one_model_for_all(lines, make, fit, hits, rates, seed=0):
    return owned(lines, make, fit, hits, rates, seed, one=make())


@wrong("own-classifier", "Test sentences were trained on")
def trained_on_all(lines, make, fit, hits, rates, seed=0):
    train, valid, test = divided(lines, seed)
    model = fit(make(), train + valid + test, rates[1])
    return rates[1], float(hits(model, test).mean())


@wrong("own-classifier", "not the ones wanted")
def trained_on_validation(lines, make, fit, hits, rates, seed=0):
    train, valid, test = divided(lines, seed)
    model = fit(make(), train + valid, rates[1])
    return rates[1], float(hits(model, test).mean())


@wrong("own-classifier", "should be whole numbers")
def labels_as_texts(lines, make, fit, hits, rates, seed=0):
    def fitted(model, examples, rate):
        return fit(model, [(text, str(label)) for text, label in examples], rate)

    return owned(lines, make, fitted, hits, rates, seed)


@wrong("own-classifier", "The rate should be")
def the_smallest(lines, make, fit, hits, rates, seed=0):
    train, _, test = divided(lines, seed)
    model = fit(make(), train, min(rates))
    return min(rates), float(hits(model, test).mean())


@wrong("own-classifier", "share of test examples")
def how_good_in_validation(lines, make, fit, hits, rates, seed=0):
    train, valid, _ = divided(lines, seed)
    model = fit(make(), train, 0.1)
    return 0.1, float(hits(model, valid).mean()) - 0.01


@wrong("own-classifier", "Return two numbers")
def the_rate_alone(lines, make, fit, hits, rates, seed=0):
    return owned(lines, make, fit, hits, rates, seed)[0]


# preference-weight ------------------------------------------------------------------------------


@right("preference-weight")
def by_the_formula(chosen, rejected, reference_chosen, reference_rejected, beta):
    h = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    return beta * torch.sigmoid(-h)


@right("preference-weight")
def by_autograd(chosen, rejected, reference_chosen, reference_rejected, beta):
    chosen = chosen.clone().requires_grad_()
    loss = dpo_loss(chosen, rejected, reference_chosen, reference_rejected, beta=beta).loss
    return -torch.autograd.grad(loss * len(chosen), chosen)[0]


@wrong("preference-weight", "sign of h is turned")
def turned_around(chosen, rejected, reference_chosen, reference_rejected, beta):
    h = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    return beta * torch.sigmoid(h)


@wrong("preference-weight", "factor beta is missing")
def without_beta(chosen, rejected, reference_chosen, reference_rejected, beta):
    h = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    return torch.sigmoid(-h)


@wrong("preference-weight", "The reference is missing")
def without_the_reference(chosen, rejected, reference_chosen, reference_rejected, beta):
    return beta * torch.sigmoid(-beta * (chosen - rejected))


@wrong("preference-weight", "Inside of the logistic function")
def with_beta_outside(chosen, rejected, reference_chosen, reference_rejected, beta):
    return beta * torch.sigmoid(-((chosen - reference_chosen) - (rejected - reference_rejected)))


# group-loss -------------------------------------------------------------------------------------


def loss_of(log_probs, old, drawn, rewards, group, longest, *, slip=""):
    groups = rewards.view(-1, group)
    mean = rewards.mean() if slip == "batch" else groups.mean(1, keepdim=True)
    gain = (groups - mean).flatten()[:, None]
    ratio = (log_probs - old.detach()).exp()
    each = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    each = {"free": ratio * gain, "clip": ratio.clamp(0.8, 1.2) * gain}.get(slip, each)
    each = each if slip == "padding" else each * drawn
    if slip == "length":
        return -(each.sum(1) / drawn.sum(1)).mean()
    return (1 if slip == "sign" else -1) * each.sum() / (len(rewards) * longest)


@right("group-loss")
def in_five_lines(*given):
    return loss_of(*given)


@right("group-loss")
def by_the_package(log_probs, old, drawn, rewards, group, longest):
    groups = rewards.view(-1, group)
    gain = (groups - groups.mean(1, keepdim=True)).flatten()
    targets = torch.where(drawn, 1, -100)
    rollout = Rollout(targets.clamp(min=0), targets, old, rewards, gain)
    return grpo_loss(log_probs, rollout, length=longest)


@wrong("group-loss", "that of all rewards")
def mean_of_the_batch(*given):
    return loss_of(*given, slip="batch")


@wrong("group-loss", "Nothing is clipped")
def without_clip(*given):
    return loss_of(*given, slip="free")


@wrong("group-loss", "the smaller of the two")
def clipped_alone(*given):
    return loss_of(*given, slip="clip")


@wrong("group-loss", "without a token count")
def with_padding(*given):
    return loss_of(*given, slip="padding")


@wrong("group-loss", "by its own length")
def the_first_form(*given):
    return loss_of(*given, slip="length")


@wrong("group-loss", "The sign is turned")
def upside_down(*given):
    return loss_of(*given, slip="sign")


@wrong("group-loss", "carries no gradient")
def detached(*given):
    return loss_of(*given).detach()
