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
def groups_kinds(model, head_lr, body_lr, decay):
    def kind(name, p):
        rates = head_lr if name.startswith("head.") else body_lr, decay if p.ndim >= 2 else 0.0
        return rates if p.requires_grad else None

    return grouped(model, kind)


@right("project-groups")
def groups_single(model, head_lr, body_lr, decay):
    return [
        {"params": [p], "lr": head_lr if name.split(".")[0] == "head" else body_lr,
         "weight_decay": decay * (p.ndim > 1)}
        for name, p in model.named_parameters() if p.requires_grad
    ]


def grouping(message):
    """Keep a wrong answer about the kinds."""

    def keep(function):
        def rate_groups(model, head_lr, body_lr, decay):
            return grouped(model, lambda name, p: function(name, p, head_lr, body_lr, decay))

        rate_groups.__name__ = function.__name__
        wrong("project-groups", message)(rate_groups)
        return function

    return keep


def rate(name, head_lr, body_lr):
    return head_lr if name.startswith("head.") else body_lr


@grouping("has the learning rate 0.1. It should be 0.01")
def groups_exchanged(name, p, head_lr, body_lr, decay):
    return rate(name, body_lr, head_lr), decay if p.ndim >= 2 else 0.0


@grouping("has the learning rate 0.01. It should be 0.1")
def groups_one_rate(name, p, head_lr, body_lr, decay):
    return body_lr, decay if p.ndim >= 2 else 0.0


@grouping("has the weight decay 0.5. It should be 0.0")
def groups_all_decay(name, p, head_lr, body_lr, decay):
    return rate(name, head_lr, body_lr), decay


@grouping("has the weight decay 0.0. It should be 0.5")
def groups_vectors_decay(name, p, head_lr, body_lr, decay):
    return rate(name, head_lr, body_lr), decay if p.ndim < 2 else 0.0


@grouping("It would never be trained")
def groups_no_vectors(name, p, head_lr, body_lr, decay):
    return (rate(name, head_lr, body_lr), decay) if p.ndim >= 2 else None


@grouping("A frozen parameter is in a group")
def groups_frozen(name, p, head_lr, body_lr, decay):
    return rate(name, head_lr, body_lr), decay if p.ndim >= 2 else 0.0


@wrong("project-groups", "stands in two groups")
def groups_twice(model, head_lr, body_lr, decay):
    return groups_kinds(model, head_lr, body_lr, decay) + [
        {"params": list(model.head.parameters()), "lr": head_lr, "weight_decay": 0.0}
    ]


@wrong("project-groups", "Return a list of dictionaries")
def groups_lists(model, head_lr, body_lr, decay):
    return [list(model.parameters())]


@wrong("project-groups", "no parameter of the model")
def groups_names(model, head_lr, body_lr, decay):
    names = [name for name, _ in model.named_parameters()]
    return [{"params": names, "lr": head_lr, "weight_decay": decay}]


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


@wrong("project-interval", "The ends differ")
def interval_clamped(right, n, z):
    low, high = interval_formula(right, n, z)
    return (0.0 if right < n / 2 + 1 else low), min(high, 0.99)
