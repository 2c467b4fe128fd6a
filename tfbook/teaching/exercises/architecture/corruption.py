"""The exercises of chapter 05 on texts with holes: BERT's masked tokens and T5's spans."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, parts

# mask-tokens ------------------------------------------------------------------------------------


def mask_tokens(
    tokens: torch.Tensor, special: torch.Tensor, choice: torch.Tensor, fate: torch.Tensor,
    random_tokens: torch.Tensor, mask_id: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Corrupt tokens the way BERT's training does, and say what is to be predicted.

    A token that is not special is chosen where choice < 0.15. What becomes of a chosen token is
    drawn too: where fate < 0.8 it becomes the mask token, where 0.8 ≤ fate < 0.9 it becomes the
    random token at its place, and elsewhere it stays. All chosen tokens are to be predicted.

    tokens: (B, N), int64. special: (B, N), True at tokens such as [CLS] and padding. choice: (B,
    N), uniform between 0 and 1. fate: (B, N), likewise. random_tokens: (B, N), int64. mask_id: the
    id of the mask token.
    Returns: the corrupted tokens and the labels, both (B, N); a label is the original token where
    it is to be predicted and -100 elsewhere.
    """
    ...


def _corrupted(
    tokens: Any, special: Any, choice: Any, fate: Any, random_tokens: Any, mask_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = (choice < 0.15) & ~special
    inputs = torch.where(chosen & (fate < 0.8), mask_id, tokens)
    inputs = torch.where(chosen & (fate >= 0.8) & (fate < 0.9), random_tokens, inputs)
    return inputs, torch.where(chosen, tokens, -100)


def _mask_case() -> tuple[torch.Tensor, ...]:
    """Return one token of every kind, in every combination of kinds that matters."""
    tokens = torch.tensor([[11, 12, 13, 14, 15, 16, 17], [21, 22, 23, 24, 25, 26, 27]])
    special = torch.zeros(2, 7).bool()
    special[:, 0] = True
    choice = torch.tensor(
        [[0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.9], [0.1, 0.1, 0.1, 0.8, 0.3, 0.1, 0.2]]
    )
    fate = torch.tensor(
        [[0.1, 0.5, 0.85, 0.95, 0.5, 0.85, 0.95], [0.95, 0.05, 0.88, 0.3, 0.9, 0.2, 0.9]]
    )
    return tokens, special, choice, fate, tokens + 40


def _mask_labels(mask: Any) -> None:
    """All chosen tokens are to be predicted, and no others."""
    tokens, special, choice, fate, random_tokens = case = _mask_case()
    inputs, right = _corrupted(*case, 99)
    chosen = right != -100
    blank = torch.full_like(tokens, -100)
    expect(
        parts(mask(*case, 99), "inputs", "labels")[1],
        right,
        "A label is the original token where one was chosen, and -100 elsewhere.",
        what="The second result, the labels,",
        mistakes={
            "The labels hold the corrupted tokens. The model has to predict the original ones.":
                torch.where(chosen, inputs, -100),
            "Every token is to be predicted. Where nothing was chosen the label is -100, which the "
            "loss ignores.": (tokens, torch.where(special, -100, tokens)),
            "Only tokens that became the mask token have a label. Those that were replaced at "
            "random or left alone were chosen too.":
                torch.where(chosen & (fate < 0.8), tokens, blank),
            "The chosen tokens that stay as they are have no label. They are to be predicted too.":
                torch.where(chosen & (fate < 0.9), tokens, blank),
            "Special tokens were chosen: [CLS], [SEP] and padding are left alone.":
                torch.where(choice < 0.15, tokens, blank),
            "Only special tokens were chosen: `special` marks those to leave alone.":
                torch.where((choice < 0.15) & special, tokens, blank),
            "The labels are inverted: -100 stands where a token was chosen.":
                torch.where(chosen, -100, tokens),
            "The two results are exchanged: return the corrupted tokens first.": inputs,
            "A token is chosen where choice < 0.15, not where it is above.":
                torch.where((choice >= 0.15) & ~special, tokens, blank),
            "What is not to be predicted should have the label -100.": tokens * chosen,
        },
    )


def _mask_inputs(mask: Any) -> None:
    """Of the chosen tokens 80 % become the mask, 10 % another token, 10 % stay."""
    tokens, special, choice, fate, random_tokens = case = _mask_case()
    right, labels = _corrupted(*case, 99)
    chosen = labels != -100
    replaced = torch.where(chosen & (fate >= 0.9), random_tokens, tokens)
    expect(
        parts(mask(*case, 99), "inputs", "labels")[0],
        right,
        "A chosen token becomes the mask where fate < 0.8, the random token where it is below 0.9, "
        "and stays otherwise.",
        what="The first result, the corrupted tokens,",
        mistakes={
            "All chosen tokens became the mask token. Of ten, one is replaced by a random token "
            "and one stays.": torch.where(chosen, 99, tokens),
            "No token was replaced at random: where 0.8 ≤ fate < 0.9 the random token goes in.":
                torch.where(chosen & (fate < 0.8), 99, tokens),
            "No chosen token stays: those with fate ≥ 0.9 are left as they are.":
                torch.where(chosen & (fate < 0.8), 99, torch.where(chosen, random_tokens, tokens)),
            "The last two cases are exchanged: below 0.9 the token is replaced, from 0.9 on it "
            "stays.": torch.where(chosen & (fate < 0.8), 99, replaced),
            "Tokens that were not chosen were corrupted. `fate` matters for chosen tokens only.":
                (torch.where(fate < 0.8, 99, torch.where(fate < 0.9, random_tokens, tokens)),
                 torch.where(chosen & (fate < 0.8), 99,
                             torch.where((fate >= 0.8) & (fate < 0.9), random_tokens, tokens))),
            "Nothing was corrupted.": tokens,
        },
    )


def _mask_shares(mask: Any) -> None:
    """Over many tokens the shares are 12 %, 1.5 % and 1.5 %."""
    generator = torch.Generator("cpu").manual_seed(466)
    tokens = torch.randint(5, 50, (11, 700), generator=generator)
    case = (
        tokens, tokens < 7, *torch.rand(2, 11, 700, generator=generator),
        torch.randint(5, 50, (11, 700), generator=generator),
    )
    inputs, labels = _corrupted(*case, 3)
    got = parts(mask(*case, 3), "inputs", "labels")
    what = ("The first result, the corrupted tokens,", "The second result, the labels,")
    for value, right, words in zip(got, (inputs, labels), what, strict=True):
        expect(value, right, "With 7700 tokens the result differs.", what=words)


MASK_TOKENS = Exercise(
    name="mask-tokens",
    title="Hide tokens the way BERT does",
    level=2,
    section='chapters/05_architecture_deeper, section "Encoder only: BERT"',
    stub=mask_tokens,
    properties=(_mask_labels, _mask_inputs, _mask_shares),
    hints=(
        "First find which tokens are chosen. That alone decides the labels.",
        "Then `fate` divides the chosen ones into three: masked, replaced, kept. `torch.where` "
        "writes the mask token or the random token without changing `tokens`.",
        "`chosen = (choice < 0.15) & ~special`; "
        "`inputs = torch.where(chosen & (fate < 0.8), mask_id, tokens)`, then the same for the "
        "random tokens; `labels = torch.where(chosen, tokens, -100)`.",
    ),
)

# span-corruption --------------------------------------------------------------------------------


def corrupt_spans(
    tokens: torch.Tensor, noise: torch.Tensor, sentinels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut spans out of a sequence the way T5's training does.

    A span is a run of neighbouring tokens where `noise` is True. In the input, span number s is
    replaced by the one token sentinels[s]. The target lists, for every span, its sentinel and the
    tokens that were cut out; it ends with the sentinel that comes after those in use.

    tokens: (N,), int64. noise: (N,), boolean. sentinels: (S,), int64, more than there are spans.
    Returns: the input and the target, 1-D, int64.
    """
    ...


def _spans(
    tokens: torch.Tensor, noise: torch.Tensor, sentinels: torch.Tensor, *, before: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut as asked, or as if a token before the first one had been cut, too."""
    inputs: list[int] = []
    targets: list[int] = []
    used = 0
    for token, cut in zip(tokens.tolist(), noise.tolist(), strict=True):
        if cut and not before:
            inputs.append(int(sentinels[used]))
            targets.append(int(sentinels[used]))
            used += 1
        (targets if cut else inputs).append(token)
        before = cut
    return torch.tensor(inputs), torch.tensor([*targets, int(sentinels[used])])


def _span_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1, 0]).bool()
    return torch.arange(11, 20), noise, torch.tensor([99, 98, 97, 96])


def _span_inputs(corrupt: Any) -> None:
    """In the input one sentinel stands for each span."""
    tokens, noise, sentinels = _span_case()
    right, target = _spans(tokens, noise, sentinels)
    each = tokens.clone()
    each[noise] = sentinels[:3]
    expect(
        parts(corrupt(tokens, noise, sentinels), "inputs", "targets")[0],
        right,
        "The kept tokens should stay in order, with one sentinel in place of each span.",
        what="The first result, the input,",
        mistakes={
            "Each token of a span got a sentinel of its own. A span of two tokens becomes one "
            "sentinel.": each,
            "Each token of a span was replaced by the span's sentinel. The whole span becomes one "
            "token.": torch.tensor([11, 12, 99, 99, 15, 16, 17, 98, 19]),
            "The same sentinel stands for every span. Span number s gets sentinels[s].":
                torch.tensor([11, 12, 99, 15, 16, 17, 99, 19]),
            "The spans were cut out without a trace. A sentinel marks each place.": tokens[~noise],
            "The input holds what was cut out. Either the two results are exchanged, or the kept "
            "tokens were replaced: `noise` marks those to cut.":
                (target, target[:-1], torch.tensor([99, 13, 14, 98, 18])),
            "The sentinel stands in front of its span, but the span is still there.":
                torch.tensor([11, 12, 99, 13, 14, 15, 16, 17, 98, 18, 19]),
            "The sentinels were used from the last to the first.":
                torch.tensor([11, 12, 96, 15, 16, 17, 97, 19]),
            "The sentinels start with sentinels[1]. The first span gets sentinels[0].":
                torch.tensor([11, 12, 98, 15, 16, 17, 97, 19]),
        },
    )


def _span_targets(corrupt: Any) -> None:
    """The target lists sentinels and what they stand for, and ends with one sentinel more."""
    tokens, noise, sentinels = _span_case()
    right = _spans(tokens, noise, sentinels)[1]
    expect(
        parts(corrupt(tokens, noise, sentinels), "inputs", "targets")[1],
        right,
        "Each span should come after its own sentinel, and one more sentinel ends the target.",
        what="The second result, the target,",
        mistakes={
            "The last sentinel is missing: the next unused one says that there are no more spans.":
                right[:-1],
            "The last sentinel of the target is one that was used. It is the next one.":
                torch.cat([right[:-1], torch.tensor([98])]),
            "The sentinels are missing: the model could not say which span it fills.":
                (tokens[noise], torch.cat([tokens[noise], torch.tensor([97])])),
            "The target is the whole sequence, as for BART. T5's target is what was cut out.":
                (tokens, torch.cat([tokens, torch.tensor([97])])),
            "A sentinel comes after its span. It stands before it.":
                (torch.tensor([13, 14, 99, 18, 98, 97]), torch.tensor([13, 14, 99, 18, 98])),
            "Each token has the sentinel of its span before it. A span has one sentinel.":
                torch.tensor([99, 13, 99, 14, 98, 18, 97]),
            "Each token of a span got a sentinel of its own.":
                torch.tensor([99, 13, 98, 14, 97, 18, 96]),
        },
    )


def _span_edges(corrupt: Any) -> None:
    """Spans may stand at both ends, there may be none, and one may cover everything."""
    tokens, sentinels = torch.arange(21, 27), torch.tensor([50, 51, 52, 53])
    for pattern in ("110010", "011011", "110101", "000000", "111111"):
        noise = torch.tensor([mark == "1" for mark in pattern])
        for got, right, what in zip(
            parts(corrupt(tokens, noise, sentinels), "inputs", "targets"),
            _spans(tokens, noise, sentinels), ("input", "target"), strict=True,
        ):
            around = _spans(tokens, noise, sentinels, before=bool(noise[-1]))
            expect(
                got, right, f"Cut where there is a 1 in {pattern}, the {what} differs.",
                what=f"Cut where there is a 1 in {pattern}, the {what}",
                mistakes={
                    "The first token was taken to go on with a span at the end: an index of -1 and "
                    "`roll` go around. A span may begin with the first token.": around,
                },
            )


def _span_lossless(corrupt: Any) -> None:
    """Input and target together hold every token once, whatever the ids."""
    generator = torch.Generator("cpu").manual_seed(467)
    for _ in range(5):
        tokens = torch.randint(0, 4, (23,), generator=generator)
        noise = torch.rand(23, generator=generator) < 0.4
        sentinels = torch.arange(100, 124)
        got = parts(corrupt(tokens, noise, sentinels), "inputs", "targets")
        for value, right in zip(got, _spans(tokens, noise, sentinels), strict=True):
            expect(
                value, right, "Tokens may repeat: find the spans by `noise`, not by the ids.",
                what="With tokens that repeat, a result",
            )


SPAN_CORRUPTION = Exercise(
    name="span-corruption",
    title="Cut out spans the way T5 does",
    level=3,
    section='chapters/05_architecture_deeper, section "Text to text: T5 and BART"',
    stub=corrupt_spans,
    properties=(_span_inputs, _span_targets, _span_edges, _span_lossless),
    hints=(
        "A span begins where `noise` is True and was not True one place earlier.",
        "Walk through the tokens once. Where a span begins, write its sentinel into both lists; "
        "then a cut token goes into the target, a kept one into the input.",
        "`if cut and not before: inputs.append(s); targets.append(s)` with `s = sentinels[used]`, "
        "then `used += 1`; at the end `targets.append(sentinels[used])`.",
    ),
)

EXERCISES = (MASK_TOKENS, SPAN_CORRUPTION)
