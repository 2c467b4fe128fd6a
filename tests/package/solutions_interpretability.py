"""Right and wrong answers to the exercises of chapter 10.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import torch
from answers import collect

from tfbook.interpret import rollout

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {"mended-rollout": rollout}


# same-output ------------------------------------------------------------------------------------


def along(weights, values, *, ones=True, reach=1.0, step=None):
    columns = [values, torch.ones(len(values), 1, dtype=values.dtype)]
    known = torch.cat(columns if ones else columns[:1], 1)
    change = torch.linalg.svd(known, full_matrices=True)[0][:, -1]
    options = []
    for way in (change, -change):
        down = way < -1e-12
        far = float((weights[down] / -way[down]).min()) if bool(down.any()) else 1.0
        options.append(weights + way * (reach * far if step is None else step))
    return max(options, key=lambda new: float((new - weights).abs().sum()))


@right("same-output")
def to_the_edge(weights, values):
    return along(weights, values)


@right("same-output")
def nearly_to_the_edge(weights, values):
    return along(weights, values, reach=0.98)


@wrong("same-output", "should sum to 1")
def another_sum(weights, values):
    return along(weights, values, ones=False)


@wrong("same-output", "one is negative")
def too_far(weights, values):
    return along(weights, values, reach=1.5)


@wrong("same-output", "The output has changed")
def turned_around(weights, values):
    return weights.flip(0)


@wrong("same-output", "differ by 0.05")
def the_same_weights(weights, values):
    return weights.clone()


@wrong("same-output", "differ by 0.05")
def a_tiny_step(weights, values):
    return along(weights, values, step=1e-4)


# mended-rollout ---------------------------------------------------------------------------------


def rolled(patterns, *, join=torch.mean, keep=1.0, scale=True, left=True):
    eye = torch.eye(patterns.shape[-1], dtype=patterns.dtype)
    found = eye
    for pattern in join(patterns, dim=1):
        step = pattern + keep * eye
        step = step / step.sum(-1, keepdim=True) if scale else step
        found = step @ found if left else found @ step
    return found


@right("mended-rollout")
def mended(patterns):
    return rolled(patterns)


@right("mended-rollout")
def by_halves(patterns):
    steps = [(x + torch.eye(len(x), dtype=x.dtype)) / 2 for x in patterns.mean(1).flip(0)]
    return torch.linalg.multi_dot(steps) if len(steps) > 1 else steps[0]


@wrong("mended-rollout", "the rows grow")
def still_growing(patterns):
    return rolled(patterns, scale=False)


@wrong("mended-rollout", "read backwards")
def still_turned(patterns):
    return rolled(patterns, left=False)


@wrong("mended-rollout", "residual connection is gone")
def without_residual(patterns):
    return rolled(patterns, keep=0.0)


@wrong("mended-rollout", "heads were summed")
def summed(patterns):
    return rolled(patterns, join=torch.sum)


# induction-score --------------------------------------------------------------------------------


@right("induction-score")
def score_by_tensors(tokens, pattern):
    ids, weights = torch.tensor(tokens), torch.tensor(pattern, dtype=torch.float64)
    asked = torch.zeros_like(weights, dtype=torch.bool)
    asked[:, 1:] = ids[:, None] == ids[None, :-1]
    asked = asked.tril()
    return float((weights * asked).sum(-1)[asked.any(-1)].mean())


def score(tokens, pattern, *, shift=1, every=False, one=False, ahead=False):
    found, n = [], len(tokens)
    for i in range(n):
        keys = [
            j
            for j in range(n if ahead else i + 1)
            if 0 <= j - shift < n and tokens[j - shift] == tokens[i] and (shift or j < i)
        ]
        keys = keys[-1:] if one else keys
        if keys or every:
            found.append(sum(pattern[i][j] for j in keys))
    return sum(found) / len(found)


@right("induction-score")
def score_by_loops(tokens, pattern):
    return score(tokens, pattern)


@wrong("induction-score", "earlier copies themselves")
def score_of_copies(tokens, pattern):
    return score(tokens, pattern, shift=0)


@wrong("induction-score", "what stood before")
def score_of_what_stood_before(tokens, pattern):
    return score(tokens, pattern, shift=-1)


@wrong("induction-score", "nothing to find")
def score_of_all_queries(tokens, pattern):
    return score(tokens, pattern, every=True)


@wrong("induction-score", "more than once")
def score_of_the_last(tokens, pattern):
    return score(tokens, pattern, one=True)


@wrong("induction-score", "after the query")
def score_with_the_future(tokens, pattern):
    return score(tokens, pattern, ahead=True)


@wrong("induction-score", "take it out with")
def score_as_a_tensor(tokens, pattern):
    return torch.tensor(score(tokens, pattern))


# patching-grid ----------------------------------------------------------------------------------


def grid(layers, read, clean, corrupted, *, deep=True, fresh=True, behind=0, share=None):
    def passed(x):
        return [x := layer(x) for layer in layers]

    goods, bads = [clean, *passed(clean)], [corrupted, *passed(corrupted)]
    good, bad = read(goods[-1]), read(bads[-1])
    share = share or (lambda patched: (patched - bad) / (good - bad))
    rows = []
    for i in range(len(layers)):
        at, cells = i + behind, []
        x = bads[at].clone()
        for place in range(len(clean)):
            x = bads[at].clone() if fresh else x
            x[place] = goods[at if deep else 0][place]
            y = x
            for layer in layers[at:]:
                y = layer(y)
            cells.append(share(read(y)))
        rows.append(cells)
    return torch.tensor(rows, dtype=clean.dtype)


@right("patching-grid")
def grid_by_loops(*given):
    return grid(*given)


@right("patching-grid")
def grid_from_the_end(layers, read, clean, corrupted):
    """Each exchange as a run of its own, the last layer first."""

    def run(x, first, last):
        for layer in layers[first:last]:
            x = layer(x)
        return x

    best, worst = read(run(clean, 0, None)), read(run(corrupted, 0, None))
    found = []
    for i in reversed(range(len(layers))):
        good, bad = run(clean, 0, i), run(corrupted, 0, i)
        mixed = [
            torch.cat([bad[:row], good[row : row + 1], bad[row + 1 :]]) for row in range(len(bad))
        ]
        found.insert(0, [(read(run(x, i, None)) - worst) / (best - worst) for x in mixed])
    return torch.tensor(found, dtype=clean.dtype)


@wrong("patching-grid", "Clean and corrupted are exchanged")
def grid_of_noise(layers, read, clean, corrupted):
    return 1 - grid(layers, read, corrupted, clean)


@wrong("patching-grid", "stays patched")
def grid_that_keeps(*given):
    return grid(*given, fresh=False)


@wrong("patching-grid", "after layer l")
def grid_behind(*given):
    return grid(*given, behind=1)


@wrong("patching-grid", "the same depth")
def grid_of_embeddings(*given):
    return grid(*given, deep=False)


@wrong("patching-grid", "Nothing is mended yet")
def grid_with_another_loop(*given):
    """Right for one layer, where the clean stream has one depth only, and both faults beyond."""
    return grid(*given, fresh=len(given[0]) == 1, deep=False)


def ends(layers, read, clean, corrupted):
    for layer in layers:
        clean, corrupted = layer(clean), layer(corrupted)
    return read(clean), read(corrupted)


@wrong("patching-grid", "not divided")
def grid_undivided(*given):
    _, bad = ends(*given)
    return grid(*given, share=lambda patched: patched - bad)


@wrong("patching-grid", "what there is to bring back")
def grid_divided_by_clean(*given):
    good, bad = ends(*given)
    return grid(*given, share=lambda patched: (patched - bad) / good)


@wrong("patching-grid", "missing still")
def grid_of_what_is_missing(*given):
    good, bad = ends(*given)
    return grid(*given, share=lambda patched: (good - patched) / (good - bad))


# lost-on-path -----------------------------------------------------------------------------------


def path(
    parts, read, clean, corrupted, sender, receiver, *,
    hold=True, stays=False, later=True, only=True, lost=None,
):  # fmt: skip
    """Compute what is lost by one path; each option is a mistake."""

    def added(x):
        given = []
        for part in parts:
            given.append(part(x))
            x = x + given[-1]
        return given, x

    (good, end), (bad, other) = added(clean), added(corrupted)
    mixed = [bad[k] if k == sender else each for k, each in enumerate(good)]
    heard = clean
    for k in range(receiver):
        heard = heard + (mixed[k] if hold or k == sender else parts[k](heard))
    x = clean + sum((mixed if stays else good)[:receiver]) + parts[receiver](heard)
    if not only:
        x = clean + sum(mixed[: sender + 1])
        for part in parts[sender + 1 : receiver + 1]:
            x = x + part(x)
    for k in range(receiver + 1, len(parts)):
        x = x + (parts[k](x) if later else good[k])
    lost = lost or (lambda good, bad, new: (good - new) / (good - bad))
    return lost(read(end), read(other), read(x))


@right("lost-on-path")
def path_by_sums(*given):
    return path(*given)


@right("lost-on-path")
def path_by_differences(parts, read, clean, corrupted, sender, receiver):
    """The receiver's stream is the clean one and the sender's difference."""

    def before(x, last):
        for part in parts[:last]:
            x = x + part(x)
        return x

    at, from_other = before(clean, sender), before(corrupted, sender)
    change = parts[sender](from_other) - parts[sender](at)
    x = before(clean, receiver)
    x = x + parts[receiver](x + change)
    for part in parts[receiver + 1 :]:
        x = x + part(x)
    best, worst = read(before(clean, None)), read(before(corrupted, None))
    return (best - read(x)) / (best - worst)


@wrong("lost-on-path", "All parts after the sender")
def path_of_everybody(*given):
    return path(*given, only=False)


@wrong("lost-on-path", "sender and receiver have reacted")
def path_with_go_betweens(*given):
    return path(*given, hold=False)


@wrong("lost-on-path", "has stayed in the stream")
def path_that_stays(*given):
    return path(*given, stays=True)


@wrong("lost-on-path", "were held, too")
def path_to_a_frozen_end(*given):
    return path(*given, later=False)


@wrong("lost-on-path", "Clean and corrupted are exchanged")
def path_turned_around(parts, read, clean, corrupted, sender, receiver):
    return path(parts, read, corrupted, clean, sender, receiver)


@wrong("lost-on-path", "not divided")
def path_undivided(*given):
    return path(*given, lost=lambda good, bad, new: good - new)


@wrong("lost-on-path", "what there is to lose")
def path_divided_by_clean(*given):
    return path(*given, lost=lambda good, bad, new: (good - new) / good)


@wrong("lost-on-path", "share that is left")
def path_of_what_is_left(*given):
    return path(*given, lost=lambda good, bad, new: (new - bad) / (good - bad))


# leaky-probe ------------------------------------------------------------------------------------


def selective(
    rows, labels, types, coins, *, tested=False, per_row=False, all_fit=False, truth=None, sign=1
):
    n = len(rows)
    fit, test = torch.arange(n if all_fit else n // 2), torch.arange(0 if tested else n // 2, n)
    control = coins[torch.arange(n) % len(coins)] if per_row else coins[types]

    def accuracy(y, judged):
        means = torch.stack([rows[fit][y[fit] == k].mean(0) for k in (0, 1)])
        said = torch.cdist(rows[test], means).argmin(1)
        return float((said == judged[test]).double().mean())

    judged = control if truth is None else truth
    return sign * (accuracy(labels, labels) - accuracy(control, judged))


@right("leaky-probe")
def probe_by_distances(rows, labels, types, coins):
    return selective(rows, labels, types, coins)


@right("leaky-probe")
def probe_by_the_middle(rows, labels, types, coins):
    """The class on whose side of the middle a row lies."""
    half = len(rows) // 2

    def accuracy(y):
        low, high = (rows[:half][y[:half] == k].mean(0) for k in (0, 1))
        said = (rows[half:] - (low + high) / 2) @ (high - low) > 0
        return (said.long() == y[half:]).sum().item() / (len(rows) - half)

    return accuracy(labels) - accuracy(coins[types])


@wrong("leaky-probe", "learned by heart counts")
def probe_tested_on_all(*given):
    return selective(*given, tested=True)


@wrong("leaky-probe", "a coin of its own")
def probe_with_a_coin_a_row(*given):
    return selective(*given, per_row=True)


@wrong("leaky-probe", "All rows were used")
def probe_fitted_on_all(*given):
    return selective(*given, tested=True, all_fit=True)


@wrong("leaky-probe", "tested on the labels")
def probe_judged_by_labels(rows, labels, types, coins):
    return selective(rows, labels, types, coins, truth=labels)


@wrong("leaky-probe", "sign is turned")
def probe_turned(*given):
    return selective(*given, sign=-1)
