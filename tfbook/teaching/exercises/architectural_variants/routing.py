"""The exercises of chapter 08 on experts: gates with room for so many, and a bias on the choice."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, numbers, parts

# gates-with-room --------------------------------------------------------------------------------


def gates_with_room(logits: torch.Tensor, top_k: int, room: int) -> torch.Tensor:
    """Return the weight of every expert for every token.

    Each token asks for the top_k experts with the largest logits; their weights are the softmax of
    these top_k logits. An expert serves at most `room` tokens. First choices of all tokens come
    first, in the order of the text, then all second choices, and so on. Who finds no room is
    dropped: its weight is 0, and the other weights stay as they are.

    logits: (T, E), no two of a row alike. top_k: 1 ... E. room: at least 1.
    Returns: (T, E), 0 where an expert does not treat a token.
    """
    ...


def _gates(logits: torch.Tensor, top_k: int, room: int, slip: str = "") -> torch.Tensor:
    values, chosen = logits.topk(top_k, -1)
    weights = torch.softmax(values, -1)
    if slip == "all":
        weights = torch.softmax(logits, -1).gather(-1, chosen)
    taken = [0] * logits.shape[-1]
    gates = torch.zeros_like(logits)
    places = [(t, i) for i in range(top_k) for t in range(len(logits))]
    if slip == "text":
        places.sort()
    for t, i in places:
        expert = int(chosen[t, i])
        if taken[expert] < room or slip == "everyone":
            gates[t, expert] = weights[t, i]
            taken[expert] += 1
    if slip == "again":
        gates = gates / gates.sum(-1, keepdim=True).clamp_min(1e-9)
    return gates


def _slips(logits: torch.Tensor, top_k: int, room: int) -> dict[str, torch.Tensor]:
    return {
        sentence: _gates(logits, top_k, room, slip)
        for slip, sentence in (
            ("all", "The softmax runs over all experts. It runs over the chosen ones alone, so "
                    "that the weights of a token whose choices are served sum to 1."),
            ("everyone", "Some expert serves more tokens than there is room for."),
            ("text", "Places were given token by token. All first choices come before any second "
                     "choice."),
            ("again", "After dropping, the weights were divided by their sum. What is dropped is "
                      "lost; the other weights stay as they are."),
        )
    }  # fmt: skip


def _gates_check(make: Any, logits: torch.Tensor, top_k: int, room: int) -> None:
    wanted = _gates(logits, top_k, room)
    slips = {
        words: slip for words, slip in _slips(logits, top_k, room).items()
        if not torch.allclose(slip, wanted)
    }  # fmt: skip
    expect(
        make(logits, top_k, room), wanted,
        "The weight stands in the column of its expert, and is 0 where it treats no such token.",
        given={"logits": logits, "top_k": top_k, "room": room}, mistakes=slips,
    )  # fmt: skip


def _gates_plenty(make: Any) -> None:
    """With room for all, each token has top_k weights that sum to 1."""
    _gates_check(make, numbers(4, 5, seed=811), 2, 8)


def _gates_scarce(make: Any) -> None:
    """With little room, first choices come first, and who finds none is dropped."""
    crowded = torch.tensor(
        [[1.0, 2.0, 0.1], [2.0, 1.0, 0.2], [2.5, 0.3, 1.2], [0.6, 1.9, 0.5], [2.2, 1.4, 0.7]],
        dtype=torch.float64,
    )
    _gates_check(make, crowded, 2, 2)
    _gates_check(make, crowded, 1, 1)


def _gates_three(make: Any) -> None:
    """Third choices come after second ones."""
    _gates_check(make, numbers(6, 4, seed=830), 3, 3)


GATES_WITH_ROOM = Exercise(
    name="gates-with-room",
    title="A router with room for so many",
    level=3,
    section='chapters/08_architectural_variants, section "Do they work?"',
    stub=gates_with_room,
    properties=(_gates_plenty, _gates_scarce, _gates_three),
    hints=(
        "Leave the room out first. `topk` gives values and indices: which of the two goes through "
        "the softmax, and which says where the weights stand?",
        "In which order are places given? Two loops suffice; which of them is the outer one?",
        "Keep a count for each expert. The outer loop runs over first, second, ... choices, the "
        "inner one over tokens; a place is written only while the count is below `room`.",
    ),
)

# biased-choice ----------------------------------------------------------------------------------


def choose_with_bias(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts with a bias that evens out their loads.

    logits: (T, E). bias: (E,). top_k: how many experts a token passes.
    Returns: the chosen experts (T, top_k), the best first, and their weights (T, top_k), which sum
    to 1.
    """
    scores = torch.sigmoid(logits) + bias
    chosen = scores.topk(top_k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True)


def _biased(make: Any, bias: torch.Tensor, otherwise: str) -> None:
    logits = numbers(5, 4, seed=834)
    scores = torch.sigmoid(logits)
    chosen = (scores + bias).topk(2, -1).indices
    raw = scores.gather(-1, chosen)
    given = {"logits": logits, "bias": bias, "top_k": 2}
    found, weights = parts(make(logits, bias, 2), "chosen", "weights")
    expect(found, chosen, "The bias decides who is chosen.", what="The choice", given=given)
    mistakes = {
        "The weights do not sum to 1: divide them by their sum.": raw,
        "The weights are a softmax. They are sigmoids, divided by their sum.":
            torch.softmax(logits.gather(-1, chosen), -1),
    }  # fmt: skip
    expect(weights, raw / raw.sum(-1, keepdim=True), otherwise, what="The weights", given=given,
           mistakes=mistakes)  # fmt: skip


def _biased_none(make: Any) -> None:
    """Without a bias, the weights are the sigmoids of the chosen logits over their sum."""
    _biased(make, torch.zeros(4, dtype=torch.float64), "There is no bias, and the weights differ.")


def _biased_some(make: Any) -> None:
    """The bias decides who is chosen, and has no part in what the answer is worth."""
    bias = torch.tensor([0.5, -0.4, 0.3, 0.0], dtype=torch.float64)
    _biased(make, bias, "With the bias, the weights of the same experts change. The bias is there "
                        "for the choice alone.")  # fmt: skip


BIASED_CHOICE = Exercise(
    name="biased-choice",
    title="A bias that does too much",
    level=2,
    section='chapters/08_architectural_variants, section "Do they work?"',
    stub=choose_with_bias,
    properties=(_biased_none, _biased_some),
    hints=(
        "Give one expert a very large bias. What should change in the output of the layer, and "
        "what does change?",
        "Two things are computed from the scores: who is chosen, and with which weight. Which of "
        "them is the bias meant for?",
        "Keep two names apart: `scores`, what a router thinks of an expert, and by what they are "
        "ranked.",
    ),
    broken=True,
)

EXERCISES = (GATES_WITH_ROOM, BIASED_CHOICE)
