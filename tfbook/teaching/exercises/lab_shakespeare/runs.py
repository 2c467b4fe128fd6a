"""Steps 9 to 11 of the Shakespeare lab: an honest number, a text, a difference with its error."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Slip, Wrong, expect_plain, numbers

# lab-evaluate -----------------------------------------------------------------------------------


def bits_per_character(model: torch.nn.Module, ids: torch.Tensor, context: int) -> float:
    """Measure how well a model predicts a text, every character but the first counting once.

    The text is read in windows that do not overlap: the first predicts characters 1 to `context`
    from characters 0 to `context` - 1, the second begins at character `context`, and so on. The
    last window may be shorter. The model is in evaluation mode meanwhile, afterwards in the mode
    in which it came, and no gradients are kept.

    model: from tokens (B, n), n up to `context`, to logits (B, n, V). ids: (T,), int64, the text.
    context: the length of a window.
    Returns: the mean of -log2 p(character), a float.
    """
    ...


class _Reader(torch.nn.Module):
    """A causal model that watches how it is used; in training mode it gives other logits."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or not tokens.numel():
            shape = tuple(getattr(tokens, "shape", ()))
            raise Wrong(f"The model reads (B, n), with at least one character. It got {shape}.")
        if tokens.shape[1] > self.longest:
            raise Wrong(
                f"The model was given {tokens.shape[1]} characters at once. It reads "
                f"{self.longest} at most."
            )
        if torch.is_grad_enabled():
            raise Wrong(
                "Gradients are on while the model reads, which takes memory for every layer of a "
                "long text. Use `torch.no_grad()`."
            )
        if self.training:
            raise Wrong(
                "The model is in training mode while it is judged: dropout would be on. Call "
                "`model.eval()` first."
            )
        return _scores(tokens)


def _scores(tokens: torch.Tensor) -> torch.Tensor:
    table = numbers(5, 5, seed=841)
    return table[tokens] + 0.5 * table[tokens].cumsum(1)


def _surprises(ids: torch.Tensor, context: int, stride: int) -> list[torch.Tensor]:
    """Return -ln p of the targets of each window."""
    found = []
    for start in range(0, len(ids) - 1, stride):
        x, y = ids[None, start : start + context], ids[start + 1 : start + context + 1]
        logs = _scores(x[:, : len(y)])[0].log_softmax(-1)
        found.append(-logs.gather(1, y[:, None])[:, 0])
    return found


def _text(n: int, seed: int) -> torch.Tensor:
    return torch.randint(5, (n,), generator=torch.Generator().manual_seed(seed))


def _evaluate_case(evaluate: Any, ids: torch.Tensor, context: int, *, words: str) -> None:
    each = _surprises(ids, context, context)
    right = torch.cat(each).mean().item() / math.log(2)
    full = [piece for piece in each if len(piece) == context]
    slips = {
        "These are nats. Divide by ln 2.": right * math.log(2),
        "This is the perplexity. The bits are its logarithm to base 2.": 2**right,
        "This is the sum. Divide by the number of characters that were predicted.":
            right * (len(ids) - 1),
        "The sum was divided by the length of the text. The first character is not predicted.":
            right * (len(ids) - 1) / len(ids),
        "The shift goes around: the last character of the text was to predict the first one. "
        "Nothing stands behind the last character.": _around(ids, context, len(ids)),
        "The shift goes around in each window: its last target was its first character. It is the "
        "first one of the next window.": _around(ids, context, context),
        "The mean was taken for each window and then over the windows, so that the characters of a "
        "short window count more.":
            torch.stack([piece.mean() for piece in each]).mean().item() / math.log(2),
        "The last window was left out because it is shorter. Its characters count too.":
            torch.cat(full).mean().item() / math.log(2) if full else math.nan,
        "The windows overlap by more than the one character between them.":
            torch.cat(_surprises(ids, context, 1)).mean().item() / math.log(2),
        "The first character of each window was never a target. A window's last target is the "
        "first character of the next.": _gaps(ids, context),
    }
    expect_plain(
        lambda ids, context: evaluate(_Reader(context).eval(), ids, context),
        {"ids": ids, "context": context}, right, words, mistakes=slips,
    )


def _around(ids: torch.Tensor, context: int, length: int) -> float:
    """Return the bits if the targets go around in each stretch of this length."""
    logs = torch.cat([_scores(piece[None])[0].log_softmax(-1) for piece in ids.split(context)])
    targets = torch.cat([piece.roll(-1) for piece in ids.split(length)])
    return -logs.gather(1, targets[:, None]).mean().item() / math.log(2)


def _gaps(ids: torch.Tensor, context: int) -> float:
    """Return the bits if windows of `context` characters are cut and predicted each by itself."""
    logs = []
    for piece in ids.split(context):
        if len(piece) > 1:
            scores = _scores(piece[None, :-1])[0].log_softmax(-1)
            logs.append(-scores.gather(1, piece[1:, None])[:, 0])
    return torch.cat(logs).mean().item() / math.log(2) if logs else math.nan


def _evaluate_windows(evaluate: Any) -> None:
    """Each character but the first is predicted once, in windows that lie side by side."""
    _evaluate_case(
        evaluate, _text(15, 1), 4, words="15 characters in windows of 4 give 14 predictions.",
    )


def _evaluate_lengths(evaluate: Any) -> None:
    """Any length works: one window that is not full, and windows that fit exactly."""
    for n, context in ((3, 8), (2, 1), (9, 4), (10, 4), (300, 7)):
        _evaluate_case(
            evaluate, _text(n, n), context,
            words=f"{n} characters in windows of {context}: {n - 1} predictions are wanted.",
        )


def _evaluate_mode(evaluate: Any) -> None:
    """The model comes back in the mode in which it came."""
    for training in (True, False):
        model = _Reader(4).train(training)
        evaluate(model, _text(9, 2), 4)
        if model.training != training:
            mode, now = ("training", "evaluation") if training else ("evaluation", "training")
            raise Wrong(
                f"The model came in {mode} mode and went in {now} mode. Remember "
                "`model.training` and put it back with `model.train(…)`."
            )


LAB_EVALUATE = Exercise(
    name="lab-evaluate",
    title="Bits per character of a whole text",
    level=2,
    section='chapters/lab_shakespeare, section "Step 9: one honest number"',
    stub=bits_per_character,
    properties=(_evaluate_windows, _evaluate_lengths, _evaluate_mode),
    hints=(
        "A window of inputs from s to s + context has targets one place further. Which characters "
        "does a loop over s = 0, context, 2·context, … predict?",
        "`x = ids[s : s + context]`, `y = ids[s + 1 : s + context + 1]`; at the end of the text y "
        "may be one shorter than x. Add up sums, and divide once.",
        "`was = model.training; model.eval()`; under `torch.no_grad()`, for s in `range(0, "
        "len(ids) - 1, context)`: `total += F.cross_entropy(model(x[None, : len(y)])[0], y, "
        "reduction='sum').item()`; then `model.train(was)`; return `total / (len(ids) - 1) / "
        "math.log(2)`.",
    ),
)

# lab-sample -------------------------------------------------------------------------------------


def sample(
    model: Callable[[torch.Tensor], torch.Tensor],
    prompt: list[int],
    n: int,
    temperature: float,
    context: int,
    generator: torch.Generator,
) -> list[int]:
    """Continue a text by drawing one character after another.

    Each is drawn with the probabilities softmax(logits / temperature), where the logits are those
    behind the last `context` characters so far, or behind all if there are fewer. At temperature 0
    the most likely character is taken.

    model: from tokens (1, N) to logits (1, N, V). prompt: ids, at least one. n: how many to add.
    temperature: 0 or above. context: what the model can read. generator: where chance
    comes from.
    Returns: the prompt and the new ids, a list.
    """
    ...


def _ring(calls: list[list[int]], table: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a model that scores by the last two characters, and writes down what it reads."""

    def model(tokens: Any) -> torch.Tensor:
        if not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or tokens.shape[0] != 1:
            shape = tuple(getattr(tokens, "shape", ()))
            raise Wrong(f"The model reads tokens of shape (1, N). It was given {shape}.")
        calls.append(tokens[0].tolist())
        return table[tokens] + 0.5 * table[tokens].roll(1, 1)

    return model


def _drawn(sample: Any, model: Any, prompt: list[int], n: int, context: int, seed: int = 0,
           temperature: float = 1.0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    got = sample(model, list(prompt), n, temperature, context, generator)
    if not isinstance(got, list) or not all(type(i) is int for i in got):
        kind = type(got).__name__
        raise Wrong(f"The result is a {kind}. Return a list of whole numbers.", got=got)
    return got


def _sample_length(sample: Any) -> None:
    """The prompt comes back with n ids behind it."""
    prompt, table = [2, 0, 1], numbers(4, 4, seed=851)
    for n in (5, 1, 0):
        got = _drawn(sample, _ring([], table), prompt, n, 8)
        if len(got) == n:
            raise Wrong("The prompt is missing: return it with the new ids behind it.", got=got)
        if len(got) != 3 + n or got[:3] != prompt:
            raise Wrong(
                f"A prompt of 3 and {n} new ids should make {3 + n}, the prompt in front.",
                given={"prompt": prompt, "n": n}, got=got,
            )


def _sample_reads(sample: Any) -> None:
    """The model reads the last characters, as many as it can, the new ones among them."""
    prompt, table = [2, 0, 1], numbers(4, 4, seed=852)
    for context in (8, 4, 2):
        calls: list[list[int]] = []
        got = _drawn(sample, _ring(calls, table), prompt, 4, context)
        wanted = [got[:end][-context:] for end in range(3, 7)]
        if calls == wanted:
            continue
        given = {"prompt": prompt, "n": 4, "context": context}
        if any(len(call) > context for call in calls):
            message = f"The model was given more than {context} characters. Cut: `ids[-context:]`."
        elif calls == [got[:end][:context] for end in range(3, 7)]:
            message = "The model was given the first characters. The last ones are wanted."
        elif len(calls) != 4:
            message = f"The model was called {len(calls)} times for 4 new characters."
        elif all(call == calls[0] for call in calls):
            message = "The model read the same in every step: append what was drawn first."
        else:
            message = "The model did not read the last characters of the text so far."
        raise Wrong(message, given=given, got=calls, wanted=wanted)


def _sample_chances(sample: Any) -> None:
    """Characters come as often as softmax(logits / temperature) says."""
    table = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 2.0], [-1.0, 0.5, 1.5]])
    prompt = [1, 0]
    logits = table[0] + 0.5 * table[1]
    generator = torch.Generator().manual_seed(4)
    draws = []
    for _ in range(600):
        got = sample(_ring([], table), list(prompt), 1, 2.0, 8, generator)
        draws.append(got[-1])
    if min(draws) < 0 or max(draws) > 2:
        raise Wrong("An id was drawn that is none of the vocabulary.", got=sorted(set(draws)))
    found = torch.tensor(draws).bincount(minlength=3) / 600
    wanted = (logits / 2).softmax(-1)
    if (found - wanted).abs().max() < 0.07:
        return
    slips = {
        "The most likely character was taken every time. Draw it.":
            torch.nn.functional.one_hot(logits.argmax(), 3).float(),
        "The temperature was not used.": logits.softmax(-1),
        "The logits were multiplied by the temperature. Divide them.": (logits * 2).softmax(-1),
        "All characters come alike: the logits were not used.": torch.full((3,), 1 / 3),
        "The logits behind the first character were used. The last row counts.":
            ((table[1] + 0.5 * table[0]) / 2).softmax(-1),
        "The probabilities were divided by the temperature, which changes nothing once they sum to "
        "1 again. Divide the logits.": logits.softmax(-1),
    }
    distances = {words: (found - chances).abs().max().item() for words, chances in slips.items()}
    best = min(distances, key=lambda words: distances[words])
    message = best if distances[best] < 0.05 else "The characters come with other frequencies."
    raise Wrong(
        message, given={"prompt": prompt, "temperature": 2.0, "logits": logits}, got=found,
        wanted=wanted,
    )


def _sample_cold(sample: Any) -> None:
    """At temperature 0 the most likely character is taken."""
    table, prompt = numbers(5, 5, seed=853), [1, 3]
    wanted, model = list(prompt), _ring([], table)
    for _ in range(6):
        wanted.append(int(model(torch.tensor([wanted]))[0, -1].argmax()))
    try:
        got = _drawn(sample, model, prompt, 6, 8, temperature=0.0)
    except Wrong as wrong:
        if "raised" not in str(wrong):
            raise
        raise Wrong(
            "At temperature 0 your function divides the logits by 0 and has no probabilities to "
            "draw with. Take the most likely character there: `logits.argmax().item()`.",
            given={"prompt": prompt, "temperature": 0.0}, got=str(wrong),
        ) from wrong
    if got != wanted:
        raise Wrong(
            "At temperature 0 the most likely character is to be taken in every step.",
            given={"prompt": prompt, "temperature": 0.0}, got=got, wanted=wanted,
        )


def _sample_chance(sample: Any) -> None:
    """All chance comes from the generator."""
    table = torch.zeros(5, 5)
    torch.manual_seed(1)
    one = _drawn(sample, _ring([], table), [0], 20, 8, seed=3)
    torch.manual_seed(2)
    other = _drawn(sample, _ring([], table), [0], 20, 8, seed=3)
    if one != other:
        raise Wrong(
            "Two generators with the same seed gave different texts. Pass `generator=generator` "
            "to `torch.multinomial`.", got=other, wanted=one,
        )
    if one == _drawn(sample, _ring([], table), [0], 20, 8, seed=4):
        raise Wrong("Generators with different seeds gave the same text.", got=one)


LAB_SAMPLE = Exercise(
    name="lab-sample",
    title="Let it write",
    level=2,
    section='chapters/lab_shakespeare, section "Step 10: let it write"',
    stub=sample,
    properties=(_sample_length, _sample_reads, _sample_chances, _sample_chance, _sample_cold),
    hints=(
        "What does the model read in step t, which row of its output says what comes next, and "
        "what happens to the character that was drawn?",
        "`ids[-context:]` is the end of a list. `torch.multinomial(p, 1, generator=generator)` "
        "draws a place of p.",
        "In a loop: `logits = model(torch.tensor([ids[-context:]]))[0, -1]`; `p = (logits / "
        "temperature).softmax(-1)`; `ids.append(torch.multinomial(p, 1, "
        "generator=generator).item())`, where `ids = list(prompt)`.",
    ),
)

# lab-paired -------------------------------------------------------------------------------------


def paired(a: list[float], b: list[float]) -> tuple[float, float]:
    """Compare two choices that were tried with the same seeds.

    Seed i gave a[i] with one choice and b[i] with the other. What matters is how the n differences
    d[i] = a[i] - b[i] scatter: the standard error of their mean is s / √n, where s² is the sum of
    the squared distances from the mean, divided by n - 1.

    a: results of one choice, one for each seed. b: those of the other. n is at least 2.
    Returns: the mean difference and its standard error, two floats.
    """
    ...


def _paired(a: list[float], b: list[float]) -> tuple[float, float]:
    n, d = len(a), [x - y for x, y in zip(a, b, strict=True)]
    mean = sum(d) / n
    return mean, math.sqrt(sum((x - mean) ** 2 for x in d) / (n - 1) / n)


def _compare(paired: Any, a: list[float], b: list[float]) -> None:
    given = {"a": a, "b": b}
    got = paired(list(a), list(b))
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong("Return two numbers, the mean difference and its standard error.", got=got)
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in got):
        kinds = ", ".join(type(x).__name__ for x in got)
        raise Wrong(f"The results are of the types {kinds}. Return two floats.", got=got)
    mean, error = _paired(a, b)
    n = len(a)

    def alike(x: float, y: float) -> bool:
        return math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9)

    def variance(x: list[float]) -> float:
        return sum((v - sum(x) / n) ** 2 for v in x) / (n - 1)

    if alike(got[0], mean) and alike(got[1], error):
        return
    slips = (
        (got[0], -mean, "The difference has the other sign: it is a - b."),
        (got[0], mean * n, "This is the sum of the differences. Divide by n."),
        (got[0], error, "The two results are exchanged: first the mean, then its error."),
        (got[1], error * math.sqrt(n), "This is the standard deviation of the differences. The "
         "error of their mean is smaller, by √n."),
        (got[1], error * math.sqrt((n - 1) / n), "The squares were divided by n. The mean was "
         "estimated from the same numbers, so divide by n - 1."),
        (got[1], error**2, "The square root is missing."),
        (got[1], error / math.sqrt(n), "The standard deviation was divided by n. Divide by √n."),
        (got[1], math.sqrt((variance(a) + variance(b)) / n), "The scatter of a and of b was added, "
         "as if the seeds had nothing in common. Take the differences first."),
    )
    found = (
        words for value, slip, words in slips
        if alike(value, slip) and not (alike(slip, mean) and value is got[0])
    )
    if words := next(found, ""):
        raise Slip(words, given=given, got=tuple(got), wanted=(mean, error))
    wrong = "The mean difference" if not alike(got[0], mean) else "The standard error"
    raise Wrong(
        f"{wrong} is not what was wanted.", given=given, got=tuple(got), wanted=(mean, error)
    )


def _paired_numbers(paired: Any) -> None:
    """The mean of the differences, and the standard error of that mean."""
    _compare(paired, [2.9, 3.3, 3.1], [2.6, 2.9, 2.9])


def _paired_steady(paired: Any) -> None:
    """Where every seed shows the same difference, the error is 0, however the seeds differ."""
    _compare(paired, [1.0, 5.0, 2.0, 4.0], [2.0, 6.0, 3.0, 5.0])


def _paired_sizes(paired: Any) -> None:
    """Two seeds are enough for an error, and many are welcome."""
    _compare(paired, [2.0, 1.0], [1.5, 1.25])
    a, b = (numbers(20, seed=seed).tolist() for seed in (861, 862))
    _compare(paired, a, b)


LAB_PAIRED = Exercise(
    name="lab-paired",
    title="A difference and its error",
    level=1,
    section='chapters/lab_shakespeare, section "Step 11: one question of your own"',
    stub=paired,
    properties=(_paired_numbers, _paired_steady, _paired_sizes),
    hints=(
        "Take the differences first, seed by seed. What do the seeds' own ups and downs do then?",
        "Mean: the sum of d divided by n. Variance: squared distances from the mean, summed, "
        "divided by n - 1. The error of the mean: the root of variance / n.",
        "`d = [x - y for x, y in zip(a, b)]`; `mean = sum(d) / len(d)`; `error = "
        "math.sqrt(sum((x - mean) ** 2 for x in d) / (len(d) - 1) / len(d))`.",
    ),
)

EXERCISES = (LAB_EVALUATE, LAB_SAMPLE, LAB_PAIRED)
