"""The exercises of chapter 12 on growing a sequence: the greedy loop and a step of beam search."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, parts

# greedy-loop ------------------------------------------------------------------------------------


def generate(
    model: Callable[[torch.Tensor], torch.Tensor], prompt: list[int], max_new_tokens: int, eos: int
) -> list[int]:
    """Continue a prompt with the most likely token, one after another.

    At every step the model reads the prompt and all tokens chosen so far. Stop after the token
    `eos` was chosen, or after max_new_tokens tokens. No gradients are needed.

    model: from tokens (1, N), int64, to logits (1, N, V); the last row predicts the next token.
    prompt: the ids to start from, at least one. max_new_tokens: how many to add at most. eos: the
    token that ends a sequence.
    Returns: the prompt and the new tokens, `eos` included if it was chosen, as a list of ints.
    """
    ...


def _watched(
    prompt: list[int], script: list[int], vocabulary: int, calls: list[int]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a model that continues `prompt` with `script`, and names a wrong input."""

    def model(tokens: Any) -> torch.Tensor:
        if not isinstance(tokens, torch.Tensor):
            raise Wrong(
                f"The model was given a {type(tokens).__name__}. It reads a tensor of shape (1, N):"
                " `torch.tensor([sequence])`.", got=tokens,
            )
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.dtype != torch.int64:
            raise Wrong(
                f"The model was given shape {tuple(tokens.shape)} and dtype "
                f"{str(tokens.dtype).removeprefix('torch.')}. It reads int64 tokens of shape "
                "(1, N), a batch of one.", got=tokens,
            )
        if torch.is_grad_enabled():
            raise Wrong(
                "The model was called with gradients on: every step would keep its activations. "
                "Run the loop under `torch.no_grad()`."
            )
        calls.append(tokens.shape[1])
        wanted = [*prompt, *script[: len(calls) - 1]]
        got = tokens[0].tolist()
        if got != wanted:
            other_rows = [(script[len(calls) - 2] + 1 + i) % vocabulary for i in range(len(got))]
            slips = {
                "The model was given an empty sequence. The prompt comes first: do not cut it by "
                "the number of the step.": got == [],
                "The chosen tokens were not appended: the model reads the prompt again and again.":
                    got == prompt,
                "The sequence was cut, as in `sequence[:i]`. The model reads all of it.":
                    got == wanted[: len(got)],
                "The model reads the last token alone. Without a cache it needs the whole "
                "sequence.": got == wanted[-1:],
                "The model reads the new tokens without the prompt.": got == wanted[len(prompt) :],
                "The new token was put in front of the sequence. It comes last.":
                    got == [*reversed(script[: len(calls) - 1]), *prompt],
                "The argmax went over the logits of all places at once. Take the last row first, "
                "`logits[0, -1]`.": got[:-1] == wanted[:-1] and got[-1] >= vocabulary,
                "The token was read from another row of the logits. The last row predicts the "
                "next token.": got[:-1] == wanted[:-1] and got[-1] in other_rows,
            }
            message = next((words for words, true in slips.items() if true), "")
            raise Wrong(
                message or "The model did not read the prompt followed by the tokens it chose.",
                got=got, wanted=wanted,
            )
        # The rows before the last predict other tokens, so that it shows which row was used.
        logits = torch.zeros(1, len(got), vocabulary)
        step = len(calls) - 1
        for place in range(len(got)):
            logits[0, place, (script[step] + 1 + place) % vocabulary] = 9.0 + place
        logits[0, -1] = 0.0
        logits[0, -1, script[step]] = 5.0
        return logits

    return model


def _greedy_answer(
    generate: Any, prompt: list[int], script: list[int], count: int, eos: int
) -> None:
    """Raise `Wrong` unless the answer is the prompt followed by the script, up to `eos`."""
    calls: list[int] = []
    filler = [*script, *[(script[-1] + 1) % 7] * count]  # what the model says if asked further
    kept = list(prompt)
    got = generate(_watched(kept, filler, 11, calls), prompt, count, eos)
    given = {"prompt": kept, "max_new_tokens": count, "eos": eos}
    wanted = [*kept, *script]
    message = ""
    if isinstance(got, torch.Tensor):
        message = "The result is a tensor. Return a list of ints."
    elif not isinstance(got, list):
        message = f"The result is a {type(got).__name__}. Return a list of ints."
    elif not all(isinstance(token, int) for token in got):
        message = "The list holds something else than ints: take the number with `.item()`."
    elif got != wanted:
        slips = {
            "The prompt is missing: the result holds it too.": script,
            "`eos` is missing: it was chosen, so it belongs to the result.":
                wanted[:-1] if script[-1:] == [eos] else None,
            "The loop goes on after `eos`: stop when it was chosen.":
                [*kept, *filler[:count]] if script[-1:] == [eos] else None,
            "Nothing was added.": kept,
            "One token too few: max_new_tokens counts the new tokens.": wanted[:-1],
            "One token too many: stop after max_new_tokens.": [*wanted, filler[len(script)]],
            "The loop stopped too early. A chosen `eos` ends it, not one of the prompt.":
                wanted[: len(got)] if eos in kept else None,
        }
        message = next((words for words, slip in slips.items() if got == slip), "")
        if not message and len(got) == count:
            message = "max_new_tokens counts the new tokens, not the whole sequence."
        message = message or "The sequence is not the prompt and the most likely tokens."
    if message:
        raise Wrong(message, given=given, got=got, wanted=wanted)


def _greedy_steps(generate: Any) -> None:
    """Each step reads everything so far, and the last row of the logits decides."""
    _greedy_answer(generate, [3, 1, 4], [6, 2, 5, 9], 4, 10)


def _greedy_stops(generate: Any) -> None:
    """The loop ends with `eos`."""
    _greedy_answer(generate, [3, 1], [6, 2, 8], 7, 8)
    _greedy_answer(generate, [5], [0], 3, 0)


def _greedy_prompt(generate: Any) -> None:
    """An `eos` in the prompt does not stop the loop."""
    _greedy_answer(generate, [8, 3, 8], [6, 7, 5], 3, 8)
    _greedy_answer(generate, [8], [6, 8], 4, 8)


def _greedy_limit(generate: Any) -> None:
    """At most max_new_tokens are added, however long the prompt is, and perhaps none."""
    _greedy_answer(generate, [1, 2, 3, 4, 5, 6], [7, 7], 2, 0)

    def model(tokens: Any) -> torch.Tensor:
        raise Wrong("With max_new_tokens = 0 the model need not be called.")

    got = generate(model, [4, 2], 0, 0)
    if got != [4, 2]:
        raise Wrong("With max_new_tokens = 0 the prompt comes back.", got=got, wanted=[4, 2])


GREEDY_LOOP = Exercise(
    name="greedy-loop",
    title="One token at a time",
    level=2,
    section='chapters/12_generation, section "One token at a time"',
    stub=generate,
    properties=(_greedy_steps, _greedy_stops, _greedy_prompt, _greedy_limit),
    hints=(
        "The sequence grows, and at every step the model reads all of it. Which row of the logits "
        "predicts the next token?",
        "`model(torch.tensor([sequence]))[0, -1]` are the logits of the next token. Append the "
        "argmax as an int, and leave the loop when it is `eos`.",
        "The loop of the chapter does all of it but two things: it takes and returns a list, and "
        "it runs under `torch.no_grad()`.",
    ),
)

# beam-step --------------------------------------------------------------------------------------


def beam_step(
    scores: torch.Tensor, log_probs: torch.Tensor, finished: torch.Tensor, eos: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose the K best continuations of K hypotheses.

    A hypothesis continued by a token has the score of the hypothesis plus the token's log
    probability. A finished hypothesis has one continuation, the token `eos`, which costs nothing:
    its score stays. Of all continuations of all hypotheses the K with the highest scores are kept.

    scores: (K,), sums of log probabilities. log_probs: (K, V), of the next token after each
    hypothesis. finished: (K,), boolean. eos: the token that ends a sequence.
    Returns: the K new scores in falling order, the hypothesis each continues, and its token, each
    (K,); the last two int64.
    """
    ...


def _beam(
    scores: torch.Tensor, log_probs: torch.Tensor, finished: torch.Tensor, eos: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = []
    for k in range(len(scores)):
        for token in range(log_probs.shape[1]):
            cost = log_probs[k, token].item()
            if finished[k]:
                cost = 0.0 if token == eos else -math.inf
            found.append((scores[k].item() + cost, k, token))
    found.sort(key=lambda entry: -entry[0])
    best = found[: len(scores)]
    return (
        torch.tensor([score for score, _, _ in best], dtype=scores.dtype),
        torch.tensor([k for _, k, _ in best]),
        torch.tensor([token for _, _, token in best]),
    )


def _logs(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows).double().log()


def _beam_results(step: Any, case: tuple[Any, ...], mistakes: Any, otherwise: str) -> None:
    """Compare the three results, the known slips first."""
    got = parts(step(*case), "scores", "hypotheses", "tokens")
    wanted = _beam(*case)
    names = "The first result, the scores,", "The second result, the hypotheses,", "The tokens"
    for index, what in enumerate(names):
        expect(
            got[index], wanted[index], otherwise, what=what,
            mistakes={words: slip[index] for words, slip in mistakes.items()
                      if len(slip) > index and slip[index] is not None},
        )


def _beam_best(step: Any) -> None:
    """The best continuations of all hypotheses together are kept."""
    scores, none = torch.tensor([-1.0, -1.2, -2.5]).double(), torch.zeros(3).bool()
    log_probs = _logs(
        (0.30, 0.40, 0.20, 0.10), (0.05, 0.05, 0.80, 0.10), (0.01, 0.96, 0.02, 0.01)
    )
    case = scores, log_probs, none, 0
    total = scores[:, None] + log_probs
    right = _beam(*case)
    own = total.max(1)
    alone = log_probs.flatten().topk(3)
    linear = (scores[:, None] * log_probs).flatten().topk(3)
    mixed = (scores[:, None] + log_probs.exp()).flatten().topk(3)
    flat = total.flatten().topk(3)
    _beam_results(step, case, {
        "Each hypothesis kept its own best continuation. The K best of all continuations stay, "
        "several of the same hypothesis among them.": (own.values.sort(descending=True).values,),
        "Each hypothesis kept its own best continuation, unsorted. The K best of all "
        "continuations stay, in falling order.": (own.values,),
        "The scores of the hypotheses were left out: add them to the log probabilities.":
            (alone.values,),
        "The score was multiplied with the log probability. Logarithms add.": (linear.values,),
        "The probabilities were added to the scores. Add their logarithms.": (mixed.values,),
        "The worst continuations were kept.": (total.flatten().sort().values[:3],),
        "The scores are in rising order.": (right[0].flip(0),),
        "The scores were turned into probabilities. Keep the sums of logarithms.":
            (right[0].exp(),),
        "Index and token come from a flat list of K·V continuations with V for each hypothesis: "
        "divide by V, not by K.": (None, flat.indices // 3, flat.indices % 3),
        "Hypothesis and token are exchanged: the quotient by V is the hypothesis, the remainder "
        "the token.": (None, right[2], right[1]),
        "The hypotheses were numbered anew, 0 to K - 1. Return the one that each continues.":
            (None, torch.arange(3)),
        "These are places in the flat list. Return the token, the remainder by V.":
            (None, flat.indices, flat.indices),
    }, "The best continuations have other scores.")


def _beam_finished(step: Any) -> None:
    """A finished hypothesis stays as it is, once."""
    scores = torch.tensor([-2.0, -1.1, -1.9]).double()
    finished = torch.tensor([False, True, False])
    log_probs = _logs((0.5, 0.1, 0.4), (0.3, 0.3, 0.4), (0.2, 0.6, 0.2))
    case = scores, log_probs, finished, 2
    total = scores[:, None] + log_probs
    copied = torch.where(finished[:, None], scores[:, None], total)
    dropped = total.masked_fill(finished[:, None], -math.inf)
    charged = total.clone()
    charged[1, :2] = -math.inf
    first = dropped.clone()
    first[1, 0] = scores[1]
    _beam_results(step, case, {
        "A finished hypothesis went on growing. Its one continuation is `eos`, at no cost.":
            (total.flatten().topk(3).values,),
        "A finished hypothesis was kept once for every token. Only `eos` continues it; the others "
        "are impossible, -∞.": (copied.flatten().topk(3).values,),
        "A finished hypothesis was dropped. It competes with the others, with the score it has.":
            (dropped.flatten().topk(3).values,),
        "The finished hypothesis paid for another `eos`. Its score stays.":
            (charged.flatten().topk(3).values,),
        "The finished hypothesis was continued by token 0. It is continued by `eos`.":
            (None, None, first.flatten().topk(3).indices % 3),
    }, "Hypothesis 1 is finished: its score stays, and its token is `eos`.")


def _beam_start(step: Any) -> None:
    """Hypotheses that do not exist yet have the score -∞ and are not chosen."""
    scores = torch.tensor([0.0, -math.inf, -math.inf]).double()
    log_probs = _logs(*[(0.15, 0.35, 0.05, 0.45)] * 3)
    _beam_results(
        step, (scores, log_probs, torch.zeros(3).bool(), 3), {},
        "At the start one hypothesis exists, and its three best continuations are wanted.",
    )


def _beam_sizes(step: Any) -> None:
    """Any number of hypotheses and tokens, and all hypotheses may be finished."""
    generator = torch.Generator("cpu").manual_seed(476)
    for k, v in ((1, 5), (5, 7), (4, 3)):
        log_probs = torch.randn(k, v, generator=generator, dtype=torch.float64).log_softmax(-1)
        scores = -torch.rand(k, generator=generator, dtype=torch.float64)
        finished = torch.rand(k, generator=generator) < 0.4
        _beam_results(
            step, (scores, log_probs, finished, v - 1), {},
            f"With {k} hypotheses and {v} tokens the result differs.",
        )
    all_done = torch.tensor([-2.0, -1.0]).double(), _logs(*[(0.25, 0.75)] * 2)
    _beam_results(
        step, (*all_done, torch.ones(2).bool(), 0), {},
        "Where all hypotheses are finished they stay, the best first.",
    )


BEAM_STEP = Exercise(
    name="beam-step",
    title="A step of beam search",
    level=2,
    section='chapters/12_generation, section "Beam search"',
    stub=beam_step,
    properties=(_beam_best, _beam_finished, _beam_start, _beam_sizes),
    hints=(
        "Write the scores of all K·V continuations into one table, and let the whole table "
        "compete.",
        "Before that, give a finished hypothesis the log probabilities 0 for `eos` and -∞ for the "
        "rest. In the flattened table, V neighbours belong to one hypothesis.",
        "`torch.where(finished[:, None], …, log_probs)` chooses a row for each hypothesis. After "
        "`flatten().topk(K)`, which parts of an index are its quotient and its remainder by V?",
    ),
)

EXERCISES = (GREEDY_LOOP, BEAM_STEP)
