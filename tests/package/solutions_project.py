"""Right and wrong answers to the checks of the project on classification.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math

import torch
from answers import collect

RIGHT, WRONG, right, wrong = collect()


# project-counts ---------------------------------------------------------------------------------


def counts_of(tokens, labels, vocab, n_classes):
    rows = [tokens[labels == c].flatten().bincount(minlength=vocab) for c in range(n_classes)]
    return torch.stack(rows).float()


@right("project-counts")
def counts_bincount(tokens, labels, vocab, n_classes):
    counts = counts_of(tokens, labels, vocab, n_classes) + 1
    return (counts / counts.sum(1, keepdim=True)).log()


@right("project-counts")
def counts_one_hot(tokens, labels, vocab, n_classes):
    words = torch.nn.functional.one_hot(tokens, vocab).sum(1).float()
    classes = torch.nn.functional.one_hot(labels, n_classes).float()
    return (classes.mT @ words + 1).log().log_softmax(-1)


def counted(message):
    """Keep a wrong answer that is given the counts."""

    def keep(function):
        def count_words(tokens, labels, vocab, n_classes):
            return function(counts_of(tokens, labels, vocab, n_classes), tokens, labels)

        count_words.__name__ = function.__name__
        wrong("project-counts", message)(count_words)
        return function

    return keep


@counted("would rule the class out")
def counts_unsmoothed(counts, tokens, labels):
    return (counts / counts.sum(1, keepdim=True)).log()


@counted("These are shares")
def counts_shares(counts, tokens, labels):
    return (counts + 1) / (counts + 1).sum(1, keepdim=True)


@counted("sum to 1 over the classes")
def counts_columns(counts, tokens, labels):
    return ((counts + 1) / (counts + 1).sum(0)).log()


@counted("Each sentence counted a word once")
def counts_documents(counts, tokens, labels):
    n, v = counts.shape
    seen = torch.nn.functional.one_hot(tokens, v).amax(1)
    rows = torch.stack([seen[labels == c].sum(0) for c in range(n)]) + 1.0
    return (rows / rows.sum(1, keepdim=True)).log()


@counted("V is missing below")
def counts_no_v(counts, tokens, labels):
    return ((counts + 1) / counts.sum(1, keepdim=True)).log()


@counted("all words of both classes")
def counts_of_all(counts, tokens, labels):
    return ((counts + 1) / (counts.sum() + counts.shape[1])).log()


@counted("The classes are exchanged")
def counts_flipped(counts, tokens, labels):
    return ((counts + 1) / (counts + 1).sum(1, keepdim=True)).log().flip(0)


@counted("the logarithms of the counts")
def counts_log(counts, tokens, labels):
    return (counts + 1).log()


@counted("Rows and columns are exchanged")
def counts_transposed(counts, tokens, labels):
    return ((counts + 1) / (counts + 1).sum(1, keepdim=True)).log().mT


@wrong("project-counts", "The result has shape (1, 4)")
def counts_seen_classes(tokens, labels, vocab, n_classes):
    n_classes = int(labels.max()) + 1
    return counts_bincount(tokens, labels, vocab, n_classes)


# project-transfer -------------------------------------------------------------------------------


@right("project-transfer")
@torch.no_grad()
def transfer_copy(body, model):
    own, written = dict(model.named_parameters()), set()
    for name, weight in body.items():
        if name.startswith("head."):
            continue
        if name not in own or own[name].shape != weight.shape:
            raise ValueError(f"no place for {name} {tuple(weight.shape)}")
        own[name].copy_(weight)
        written.add(name)
    return sorted(set(own) - written)


@right("project-transfer")
def transfer_load(body, model):
    body = {name: weight for name, weight in body.items() if not name.startswith("head.")}
    try:
        missing, unexpected = model.load_state_dict(body, strict=False)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if unexpected:
        raise ValueError(f"no place for {unexpected}")
    return sorted(missing)


@wrong("project-transfer", "The old head answers another question")
@torch.no_grad()
def transfer_head_too(body, model):
    for name, parameter in model.named_parameters():
        if name in body and parameter.shape == body[name].shape:
            parameter.copy_(body[name])
    return transfer_copy(body, model)


@wrong("project-transfer", "does not hold the pretrained weight")
def transfer_nothing(body, model):
    return ["head.bias", "head.weight", "pooler.bias", "pooler.weight"]


@wrong("project-transfer", "came back as a tuple. Return a sorted list")
def transfer_tuple(body, model):
    return tuple(transfer_copy(body, model))


@wrong("project-transfer", "the names that were copied")
def transfer_copied_names(body, model):
    kept = transfer_copy(body, model)
    return sorted(set(dict(model.named_parameters())) - set(kept))


@wrong("project-transfer", "The pooler kept its values too")
def transfer_head_names(body, model):
    return [name for name in transfer_copy(body, model) if name.startswith("head.")]


@wrong("project-transfer", "a sorted list")
def transfer_unsorted(body, model):
    return transfer_copy(body, model)[::-1]


@wrong("project-transfer", "they share their memory")
def transfer_shared(body, model):
    kept = transfer_copy(body, model)
    for name, parameter in model.named_parameters():
        if name not in kept:
            parameter.data = body[name]
    return kept


@wrong("project-transfer", "is another parameter than before")
def transfer_replaced(body, model):
    kept = transfer_copy(body, model)
    for name in ("layer.weight", "layer.bias"):
        setattr(model.layer, name[6:], torch.nn.Parameter(body[name].clone()))
    return kept


@wrong("project-transfer", "another architecture. Raise a ValueError")
def transfer_ignores(body, model):
    own = dict(model.named_parameters())
    return transfer_copy({name: w for name, w in body.items() if name in own}, model)


@wrong("project-transfer", "`copy_` alone would stretch it")
@torch.no_grad()
def transfer_stretches(body, model):
    own, written = dict(model.named_parameters()), set()
    for name, weight in body.items():
        if name.startswith("head."):
            continue
        if name not in own:
            raise ValueError(name)
        own[name].copy_(weight)
        written.add(name)
    return sorted(set(own) - written)


@wrong("project-transfer", "raised KeyError")
def transfer_key_error(body, model):
    own = dict(model.named_parameters())
    [own[name] for name in body]
    return transfer_copy(body, model)


# project-groups ---------------------------------------------------------------------------------


def grouped(model, kind):
    """Make a group of each kind, a pair of learning rate and decay; None leaves it out."""
    found = {}
    for name, parameter in model.named_parameters():
        key = kind(name, parameter)
        if key is not None:
            found.setdefault(key, []).append(parameter)
    return [{"params": p, "lr": lr, "weight_decay": decay} for (lr, decay), p in found.items()]


@right("project-groups")
def groups_kinds(model, fresh, fresh_lr, body_lr, decay):
    def kind(name, p):
        rates = fresh_lr if name in fresh else body_lr, decay if p.ndim >= 2 else 0.0
        return rates if p.requires_grad else None

    return grouped(model, kind)


@right("project-groups")
def groups_single(model, fresh, fresh_lr, body_lr, decay):
    return [
        {"params": [p], "lr": fresh_lr if name in set(fresh) else body_lr,
         "weight_decay": decay * (p.ndim > 1)}
        for name, p in model.named_parameters() if p.requires_grad
    ]


def grouping(message):
    """Keep a wrong answer about the kinds."""

    def keep(function):
        def rate_groups(model, fresh, fresh_lr, body_lr, decay):
            def rate(new=fresh_lr, old=body_lr, *, which=lambda name: name in fresh):
                return lambda name: new if which(name) else old

            return grouped(model, lambda name, p: function(name, p, rate, decay))

        rate_groups.__name__ = function.__name__
        wrong("project-groups", message)(rate_groups)
        return function

    return keep


def matrices(p, decay):
    return decay if p.ndim >= 2 else 0.0


@grouping("has the learning rate 0.1. It should be 0.01")
def groups_all_fresh(name, p, rate, decay):
    return rate(which=lambda name: True)(name), matrices(p, decay)


@grouping("has the learning rate 0.01. It should be 0.1")
def groups_one_rate(name, p, rate, decay):
    return rate(which=lambda name: False)(name), matrices(p, decay)


@grouping("`pooler.weight` has the learning rate 0.01. It should be 0.1")
def groups_head_only(name, p, rate, decay):
    return rate(which=lambda name: name.startswith("head."))(name), matrices(p, decay)


@grouping("has the weight decay 0.5. It should be 0.0")
def groups_all_decay(name, p, rate, decay):
    return rate()(name), decay


@grouping("`norm.weight` has the weight decay 0.5. It should be 0.0: its shape is (3,)")
def groups_by_name(name, p, rate, decay):
    return rate()(name), decay if name.endswith("weight") else 0.0


@grouping("has the weight decay 0.0. It should be 0.5")
def groups_vectors_decay(name, p, rate, decay):
    return rate()(name), decay if p.ndim < 2 else 0.0


@grouping("It would never be trained")
def groups_no_vectors(name, p, rate, decay):
    return (rate()(name), decay) if p.ndim >= 2 else None


@grouping("A frozen parameter is in a group")
def groups_frozen(name, p, rate, decay):
    return rate()(name), matrices(p, decay)


@wrong("project-groups", "stands in two groups")
def groups_twice(model, fresh, fresh_lr, body_lr, decay):
    return groups_kinds(model, fresh, fresh_lr, body_lr, decay) + [
        {"params": list(model.head.parameters()), "lr": fresh_lr, "weight_decay": 0.0}
    ]


@wrong("project-groups", "Return a list of dictionaries")
def groups_lists(model, fresh, fresh_lr, body_lr, decay):
    return [list(model.parameters())]


@wrong("project-groups", "no parameter of the model")
def groups_names(model, fresh, fresh_lr, body_lr, decay):
    names = [name for name, _ in model.named_parameters()]
    return [{"params": names, "lr": fresh_lr, "weight_decay": decay}]


# project-search ---------------------------------------------------------------------------------


@right("project-search")
def search_two_loops(score, rate):
    found = {r: score(r) for r in (rate / 3, rate, 3 * rate)}
    while found[min(found)] > max(s for r, s in found.items() if r != min(found)):
        found[min(found) / 3] = score(min(found) / 3)
    while found[max(found)] > max(s for r, s in found.items() if r != max(found)):
        found[3 * max(found)] = score(3 * max(found))
    return dict(sorted(found.items()))


@right("project-search")
def search_list(score, rate):
    tried = [(r, score(r)) for r in (rate / 3, rate, 3 * rate)]
    while True:
        best = max(s for _, s in tried)
        winners = [r for r, s in tried if s == best]
        if winners == [tried[0][0]]:
            tried.insert(0, (winners[0] / 3, score(winners[0] / 3)))
        elif winners == [tried[-1][0]]:
            tried.append((3 * winners[0], score(3 * winners[0])))
        else:
            return dict(tried)


def searched(score, rate, *, low=True, high=True, better=lambda a, b: a > b, more=0):
    """Search with one of the choices replaced."""
    found = {r: score(r) for r in (rate / 3, rate, 3 * rate)}

    def best(end):
        return better(found[end], max(s for r, s in found.items() if r != end))

    while low and best(min(found)):
        found[min(found) / 3] = score(min(found) / 3)
    while high and best(max(found)):
        found[3 * max(found)] = score(3 * max(found))
    for _ in range(more):
        found[3 * max(found)] = score(3 * max(found))
    return dict(sorted(found.items()))


@wrong("project-search", "The best rate lay at the upper end")
def search_three(score, rate):
    return searched(score, rate, low=False, high=False)


@wrong("project-search", "The best rate lay at the lower end")
def search_up(score, rate):
    return searched(score, rate, low=False)


@wrong("project-search", "both sides are worse already")
def search_one_too_many(score, rate):
    return searched(score, rate, more=1)


@wrong("project-search", "is not better. Stop there")
def search_level(score, rate):
    return searched(score, rate, better=lambda a, b: a >= b)


@wrong("project-search", "More than 20 rates")
def search_on(score, rate):
    return searched(score, rate, better=lambda a, b: True)


@wrong("project-search", "A rate was scored twice")
def search_scores_again(score, rate):
    return {r: score(r) for r in searched(score, rate)}


@wrong("project-search", "is a float. Return a dictionary")
def search_best(score, rate):
    found = searched(score, rate)
    return max(found, key=found.get)


@wrong("project-search", "in rising order")
def search_unsorted(score, rate):
    return dict(sorted(searched(score, rate).items(), reverse=True))


@wrong("project-search", "Another one was tried")
def search_tens(score, rate):
    return {r: score(r) for r in (rate / 10, rate, 10 * rate)}


@wrong("project-search", "with its score")
def search_shares(score, rate):
    found = searched(score, rate)
    return {r: s / max(found.values()) for r, s in found.items()}


# project-confusion ------------------------------------------------------------------------------


@right("project-confusion")
def confusion_bincount(predicted, labels, n_classes):
    places = labels * n_classes + predicted
    return places.bincount(minlength=n_classes**2).view(n_classes, n_classes)


@right("project-confusion")
def confusion_compare(predicted, labels, n_classes):
    classes = torch.arange(n_classes)
    return ((labels == classes[:, None])[:, None] & (predicted == classes[:, None])).sum(-1)


@wrong("project-confusion", "Rows and columns are exchanged")
def confusion_transposed(predicted, labels, n_classes):
    return confusion_bincount(labels, predicted, n_classes)


@wrong("project-confusion", "only once")
def confusion_once(predicted, labels, n_classes):
    table = torch.zeros(n_classes, n_classes, dtype=torch.int64)
    table[labels, predicted] += 1
    return table


@wrong("project-confusion", "These are shares")
def confusion_shares(predicted, labels, n_classes):
    table = confusion_bincount(predicted, labels, n_classes)
    return table / table.sum(1, keepdim=True)


@wrong("project-confusion", "Only the right answers")
def confusion_diagonal(predicted, labels, n_classes):
    return confusion_bincount(predicted, labels, n_classes).diag().diag()


@wrong("project-confusion", "Only the mistakes")
def confusion_mistakes(predicted, labels, n_classes):
    return confusion_bincount(predicted, labels, n_classes).fill_diagonal_(0)


@wrong("project-confusion", "The result has dtype float32")
def confusion_float(predicted, labels, n_classes):
    return confusion_bincount(predicted, labels, n_classes).float()


@wrong("project-confusion", "raised RuntimeError")
def confusion_seen(predicted, labels, n_classes):
    return (labels * n_classes + predicted).bincount().view(n_classes, n_classes)


@wrong("project-confusion", "With 500 examples")
def confusion_small(predicted, labels, n_classes):
    return confusion_bincount(predicted, labels, n_classes).clamp(max=9)


# project-interval -------------------------------------------------------------------------------


def middle_and_reach(right, n, z):
    p, scale = right / n, 1 + z**2 / n
    middle = (p + z**2 / (2 * n)) / scale
    return middle, z / scale * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))


@right("project-interval")
def interval_formula(right, n, z):
    middle, reach = middle_and_reach(right, n, z)
    return middle - reach, middle + reach


@right("project-interval")
def interval_quadratic(right, n, z):
    # The ends are where (p - q)² = z² q (1 - q) / n.
    p, s = right / n, z * z / n
    root = math.sqrt((2 * p + s) ** 2 - 4 * (1 + s) * p * p)
    return (2 * p + s - root) / (2 + 2 * s), (2 * p + s + root) / (2 + 2 * s)


@wrong("project-interval", "which has no width where p is 0 or 1")
def interval_wald(right, n, z):
    p = right / n
    reach = z * math.sqrt(p * (1 - p) / n)
    return p - reach, p + reach


@wrong("project-interval", "The two ends are exchanged")
def interval_exchanged(right, n, z):
    return interval_formula(right, n, z)[::-1]


@wrong("project-interval", "the middle and the reach")
def interval_parts(right, n, z):
    return middle_and_reach(right, n, z)


@wrong("project-interval", "The ends lie around p")
def interval_around_p(right, n, z):
    _, reach = middle_and_reach(right, n, z)
    return right / n - reach, right / n + reach


@wrong("project-interval", "The reach was not divided")
def interval_wide(right, n, z):
    middle, reach = middle_and_reach(right, n, z)
    return middle - reach * (1 + z * z / n), middle + reach * (1 + z * z / n)


@wrong("project-interval", "z is missing")
def interval_no_z(right, n, z):
    middle, reach = middle_and_reach(right, n, z)
    return middle - reach / z, middle + reach / z


@wrong("project-interval", "in per cent")
def interval_percent(right, n, z):
    low, high = interval_formula(right, n, z)
    return 100 * low, 100 * high


@wrong("project-interval", "The middle was not divided")
def interval_middle(right, n, z):
    middle, reach = middle_and_reach(right, n, z)
    return middle * (1 + z * z / n) - reach, middle * (1 + z * z / n) + reach


def brackets(right, n, z, *, two, four):
    p, scale = right / n, 1 + z**2 / n
    middle = (p + two) / scale
    reach = z / scale * math.sqrt(p * (1 - p) / n + four)
    return middle - reach, middle + reach


@wrong("project-interval", "The middle has z² divided by 2n")
def interval_half_n(right, n, z):
    return brackets(right, n, z, two=z**2 / 2 * n, four=z**2 / (4 * n**2))


@wrong("project-interval", "Under the root z² is divided by 4n²")
def interval_quarter_n(right, n, z):
    return brackets(right, n, z, two=z**2 / (2 * n), four=z**2 / 4 * n**2)


@wrong("project-interval", "Put what stands below the line into brackets")
def interval_no_brackets(right, n, z):
    return brackets(right, n, z, two=z**2 / 2 * n, four=z**2 / 4 * n**2)


@wrong("project-interval", "The square root is missing")
def interval_no_root(right, n, z):
    middle, reach = middle_and_reach(right, n, z)
    scale = 1 + z**2 / n
    return middle - reach**2 * scale / z, middle + reach**2 * scale / z


@wrong("project-interval", "The middle is right, and the reach is not")
def interval_half(right, n, z):
    middle, reach = middle_and_reach(right, n, z)
    return middle - reach / 2, middle + reach / 2


@wrong("project-interval", "The reach is right, and the middle is not")
def interval_from_a_half(right, n, z):
    _, reach = middle_and_reach(right, n, z)
    return 0.5 - reach, 0.5 + reach


@wrong("project-interval", "Neither the middle nor the reach")
def interval_clamped(right, n, z):
    low, high = interval_formula(right, n, z)
    return (0.0 if right < n / 2 + 1 else low), min(high, 0.99)
