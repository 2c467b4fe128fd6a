"""The exercises of chapter 02 that build a layer or mend one."""

import itertools
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tfbook.teaching.exercises._spec import (
    Exercise,
    NotStarted,
    Wrong,
    expect,
    expect_tensor,
    numbers,
    plain_attention,
)

# causal-attention -------------------------------------------------------------------------------


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend with a causal mask: each query reads its own key and the keys before it.

    q: (B, n, d). k: (B, n, d). v: (B, n, e).
    Returns: (B, n, e).
    """
    n, d = q.shape[-2:]
    later = torch.ones(n, n).triu(1).bool()
    scores = (q @ k.mT / math.sqrt(d)).masked_fill(later, -math.inf)
    return torch.softmax(scores, dim=1) @ v


def _triangle(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def _three(n: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return numbers(2, n, 3, seed=71), numbers(2, n, 3, seed=72), numbers(2, n, 2, seed=73)


def _causal_past(attend: Any) -> None:
    """Changing a word changes no output before it."""
    q, k, v = _three()
    before = attend(q, k, v)
    expect_tensor(before, (2, 5, 2), torch.float64, what="The result")
    at = torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])[:, None]
    moved = (attend(q + at, k + at, v + at) - before)[:, :3].abs().amax((0, 2)) > 1e-9
    if moved.any():
        word = int(moved.nonzero()[0])
        raise Wrong(
            f"Word 3 was changed, and the output of word {word}, which stands before it, moved: "
            "the future leaks into the past. Over which scores does each softmax run?"
        )


def _causal_itself(attend: Any) -> None:
    """The first word reads itself, with weight 1."""
    q, k, v = _three()
    expect(
        attend(q, k, v)[:, :1], v[:, :1],
        "The first word may read itself and nothing else, so its output is its own value.",
        mistakes={
            "The first word may read nothing, not even itself: the diagonal belongs to what is "
            "allowed.": (
                v.mean(1, keepdim=True), torch.full((2, 1, 2), math.nan), torch.zeros(2, 1, 2),
            ),
        },
    )


def _causal_whole(attend: Any) -> None:
    """Each output is the average over the word itself and all words before it."""
    q, k, v = _three()
    scores = q @ k.mT / math.sqrt(3)
    expect(
        attend(q, k, v),
        plain_attention(q, k, v, _triangle(5)),
        "The result is not softmax attention over each word and those before it.",
        mistakes={
            "The weights were taken out after the softmax, so those that are left do not add up to "
            "1: take out the scores.": torch.softmax(scores, -1) * _triangle(5) @ v,
            "The forbidden scores were set to 0. exp(0) is 1, so they still get weight.":
                torch.softmax(scores * _triangle(5), -1) @ v,
            "The scale is lost: divide the scores by √d.":
                torch.softmax((q @ k.mT).masked_fill(~_triangle(5), -math.inf), -1) @ v,
        },
    )  # fmt: skip


def _causal_extreme(attend: Any) -> None:
    """Later words get nothing, however large their scores are."""
    q, k, v = _three()
    q = q.abs() + 1.0
    far = k.clone()
    far[:, 4] = 3e9
    expect(
        attend(q, far, v)[:, :4],
        plain_attention(q, far, v, _triangle(5))[:, :4],
        "A later word with a very large score gets through: a number such as -1e9 can be "
        "outweighed. What is left out has the score -∞.",
    )


CAUSAL_ATTENTION = Exercise(
    name="causal-attention",
    title="A mask that lets something through",
    level=2,
    section='chapters/02_attention, section "Masks: who may look at whom"',
    stub=causal_attention,
    properties=(_causal_past, _causal_itself, _causal_whole, _causal_extreme),
    hints=(
        "Print the weights of a batch of one sentence: which of its sums are 1, and should be?",
        "Which axis of `scores` held the keys when it was a table, and which one does in a batch?",
        "An axis can be counted from the end of `scores.shape`: what is its last axis?",
    ),
    broken=True,
)

# self-attention-layer ---------------------------------------------------------------------------


def self_attention_layer(d_model: int, d_k: int, d_v: int) -> torch.nn.Module:
    """Build a causal self-attention layer with three matrices and no biases.

    d_model: width of a token. d_k: width of a query and of a key. d_v: width of a value.
    Returns: a module that maps x (..., n, d_model) to (..., n, d_v).
    """
    ...


def _layer(build: Any, *sizes: int) -> nn.Module:
    module = build(*sizes)
    if not isinstance(module, nn.Module):
        raise Wrong(
            f"The result is a {type(module).__name__}. Hand over the class of your layer, "
            "or a function that returns one: an `nn.Module`.",
            given=dict(zip(("d_model", "d_k", "d_v"), sizes, strict=True)), got=module,
        )  # fmt: skip
    return module.double()


def _call(module: nn.Module, x: torch.Tensor, d_v: int) -> torch.Tensor:
    y = module(x)
    if y is None:
        raise NotStarted
    expect_tensor(y, (*x.shape[:-1], d_v), torch.float64, what="The output of the layer")
    return y


def _layer_shapes(build: Any) -> None:
    """Tokens of width d_model go in, outputs of width d_v come out."""
    module = _layer(build, 5, 3, 2)
    _call(module, numbers(4, 5, seed=81), 2)
    _call(module, numbers(2, 3, 4, 5, seed=82), 2)


def _layer_parameters(build: Any) -> None:
    """The layer learns three matrices and nothing else."""
    shapes = sorted(sorted(p.shape) for p in _layer(build, 7, 3, 2).parameters())
    if shapes == [[2], [2, 7], [3], [3], [3, 7], [3, 7]]:
        raise Wrong("The three maps have biases. Leave them out: `bias=False`.")
    if shapes != [[2, 7], [3, 7], [3, 7]]:
        raise Wrong(
            "The layer should have three parameters: two matrices from 7 to 3 for queries and "
            f"keys, one from 7 to 2 for values. It has the shapes {shapes}. Are the matrices "
            "parameters of the module, and made in `__init__`?",
            got=shapes, wanted=[[2, 7], [3, 7], [3, 7]],
        )  # fmt: skip


def _layer_past(build: Any) -> None:
    """Changing a token changes no output before it."""
    module = _layer(build, 5, 3, 2)
    x = numbers(6, 5, seed=83)
    other = x.index_fill(0, torch.tensor([4]), 2.0)
    moved = (module(other) - module(x))[:4].abs().max().item()
    if not moved < 1e-9:
        raise Wrong(
            "Token 4 was changed and an output before it moved: the future leaks into the past. "
            "Mask the scores of later tokens."
        )


def _layer_formula(build: Any) -> None:
    """The output is causal scaled dot-product attention of the three projections."""
    module = _layer(build, 7, 3, 2)
    x = numbers(4, 7, seed=84)
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=85 + index))
    flat = [p.detach() if p.shape[0] == 7 else p.detach().T for p in module.parameters()]
    v = next(x @ w for w in flat if w.shape[1] == 2)
    a, b = (x @ w for w in flat if w.shape[1] == 3)
    mask, got = _triangle(4), _call(module, x, 2)
    slips: dict[str, list[torch.Tensor]] = {}
    for q, k in itertools.permutations((a, b)):
        dots = (q @ k.T).masked_fill(~mask, -math.inf)
        right = torch.softmax(dots / math.sqrt(3), -1) @ v
        if torch.allclose(got.detach(), right, rtol=1e-6, atol=1e-9):
            return
        for words, slip in {
            "The scale is missing: divide the scores by √d_k.": torch.softmax(dots, -1) @ v,
            "The scores were divided by √d_model. A query is d_k wide.":
                torch.softmax(dots / math.sqrt(7), -1) @ v,
            "The scores were divided by √d_v. A query is d_k wide.":
                torch.softmax(dots / math.sqrt(2), -1) @ v,
        }.items():  # fmt: skip
            slips.setdefault(words, []).append(slip)
    expect(
        got, right, "The output is not causal attention of the three projections.",
        mistakes={words: tuple(found) for words, found in slips.items()}, given={"x": x},
    )  # fmt: skip


def _layer_learns(build: Any) -> None:
    """In 200 steps it learns to say, at each place, which token stood first."""
    generator = torch.Generator("cpu").manual_seed(87)

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        kinds = torch.randint(4, (size, 5), generator=generator)
        places = F.one_hot(torch.arange(5), 5).expand(size, 5, 5)
        x = torch.cat([F.one_hot(kinds, 4), places], dim=-1).double()
        return x, kinds[:, :1].expand(size, 5)

    module = _layer(build, 9, 4, 4)
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=88 + index))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    with torch.enable_grad():
        for _ in range(200):
            x, first = batch(64)
            optimizer.zero_grad()
            F.cross_entropy(module(x).flatten(0, 1), first.flatten()).backward()
            optimizer.step()
    x, first = batch(256)
    share = (module(x).argmax(-1) == first).double().mean().item()
    if share < 0.95:
        raise Wrong(
            f"After 200 steps it names the first token in {share:.0%} of the places, and should in "
            "nearly all. Does a gradient reach all three matrices?",
            got=round(share, 2), wanted="at least 0.95",
        )  # fmt: skip


SELF_ATTENTION_LAYER = Exercise(
    name="self-attention-layer",
    called="SelfAttention",
    title="A layer that learns",
    level=3,
    section='chapters/02_attention, section "Exercises"',
    stub=self_attention_layer,
    properties=(_layer_shapes, _layer_parameters, _layer_past, _layer_formula, _layer_learns),
    hints=(
        "`nn.Linear(d_model, d_k, bias=False)` is one of the three matrices. Make them in "
        "`__init__`, use them in `forward`.",
        "In `forward`: three projections, then the four steps, with the mask on the scores. The "
        "number of tokens is `x.shape[-2]`.",
        "A batch has axes in front: `transpose(-2, -1)` exchanges the last two of the keys only.",
    ),
    warm=("torch._dynamo",),  # loaded by the first optimizer of PyTorch, in seconds
)

# circle-matrices --------------------------------------------------------------------------------

KINDS = ("rock", "paper", "scissors")
BEATEN = [2, 0, 1]  # rock beats scissors, paper beats rock, scissors beat paper


def circle_matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write matrices with which each word names the colour of the kind that it beats.

    A word is seven numbers, each 0 or 1: rock, paper, scissors; red, green, blue, white.
    Each example has all three kinds. Rock beats scissors, paper beats rock, scissors beat paper.
    Returns: W_q and W_k, (7, d_k), and W_v, (7, 4).
    The largest number of an output is its colour.
    """
    ...


def _matrices(build: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = build()
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise Wrong("Return three matrices: `return W_q, W_k, W_v`.", got=found)
    for name, w in zip(("W_q", "W_k", "W_v"), found, strict=True):
        if not isinstance(w, torch.Tensor) or w.ndim != 2 or len(w) != 7:
            raise Wrong(
                f"{name} should be a tensor with seven rows, one for each number of a word.",
                got=tuple(w.shape) if isinstance(w, torch.Tensor) else w, wanted="(7, …)",
            )  # fmt: skip
    q, k, v = (w.detach().double() for w in found)
    if q.shape != k.shape:
        raise Wrong(
            "W_q and W_k should have as many columns: a query meets a key in a dot product.",
            got=(tuple(q.shape), tuple(k.shape)),
        )
    if v.shape[1] != 4:
        raise Wrong("W_v should have four columns, one for each colour.", got=tuple(v.shape))
    return q, k, v


def _circle() -> tuple[torch.Tensor, torch.Tensor]:
    """Return rock, paper and scissors in all 64 colourings, (64, 3, 7), and what they name."""
    colours = torch.cartesian_prod(*3 * [torch.arange(4)])
    x = torch.cat([torch.eye(3).expand(64, 3, 3), F.one_hot(colours, 4)], dim=-1)
    return x.double(), colours[:, BEATEN]


def _circle_shapes(build: Any) -> None:
    """W_q and W_k have one shape, (7, d_k); W_v has the shape (7, 4)."""
    _matrices(build)


def _circle_reads(build: Any) -> None:
    """Each kind gives more than half of its weight to the kind that it beats, in any colours."""
    (q, k, _), (x, _) = _matrices(build), _circle()
    weights = torch.softmax((x @ q) @ (x @ k).mT / math.sqrt(q.shape[1]), dim=-1)
    for reader, beaten in enumerate(BEATEN):
        if weights[:, reader, beaten].min() > 0.5:
            continue
        mean = weights[:, reader].mean(dim=0)
        most, said = int(mean.argmax()), ", ".join(f"{w:.2f}" for w in mean.tolist())
        if torch.equal(q, k):
            why = "W_q and W_k are one matrix, so rock gives paper the score that paper gives rock."
        elif (weights - weights[:1]).abs().max() > 1e-6:
            why = "It changes with the colours: rows 3 to 6 of W_q and W_k can stay 0."
        elif most == beaten or mean.max() - mean.min() < 0.2:
            why = "The direction may be right, but the scores lie close together: longer queries."
        elif most == reader:
            why = "So it reads itself."
        else:
            why = "So it reads the kind that beats it: the circle runs the other way."
        raise Wrong(
            f"{KINDS[reader].capitalize()} should read {KINDS[beaten]}. Its weights of rock, paper "
            f"and scissors are {said}. {why}",
            got=mean, wanted=f"more than 0.5 for {KINDS[beaten]}",
        )  # fmt: skip


def _circle_value(build: Any) -> None:
    """What a word hands over is its colour, whatever its kind."""
    *_, v = _matrices(build)
    for colour, name in enumerate(("red", "green", "blue", "white")):
        for kind in range(3):
            value = v[kind] + v[3 + colour]
            others = torch.cat([value[:colour], value[colour + 1 :]])
            if not value[colour] > others.max() + 1e-9:
                why = "The row of a colour should be largest at its own place."
                if v[:3].abs().max() > 0:
                    why = "The kind has a part in it: rows 0 to 2 of W_v can stay 0."
                raise Wrong(
                    f"The value of a {name} {KINDS[kind]} is not largest at {name}. {why}",
                    got=value, wanted=f"the largest at number {colour}",
                )  # fmt: skip


def _circle_right(build: Any) -> None:
    """In all 64 colourings each word names the right colour."""
    (q, k, v), (x, wanted) = _matrices(build), _circle()
    weights = torch.softmax((x @ q) @ (x @ k).mT / math.sqrt(q.shape[1]), dim=-1)
    right = ((weights @ x @ v).argmax(dim=-1) == wanted).sum().item()
    if right < wanted.numel():
        raise Wrong(
            f"{right} of {wanted.numel()} colours are right. The words that are read least still "
            "outvote: longer queries, or rows of W_v that are alike long.",
            got=right, wanted=wanted.numel(),
        )  # fmt: skip


CIRCLE_MATRICES = Exercise(
    name="circle-matrices",
    title="A circle, by hand",
    level=2,
    section='chapters/02_attention, section "Do all three matrices matter?"',
    stub=circle_matrices,
    properties=(_circle_shapes, _circle_reads, _circle_value, _circle_right),
    hints=(
        "Row 0 of W_q is what rock asks, row 2 of W_k what scissors answer. Their dot product must "
        "be larger than that with the rows of rock and paper.",
        "Take three axes, one a kind: with `W_k[:3] = torch.eye(3)` each kind answers along its "
        "own axis. Along which does rock ask?",
        "Rock asks with `W_q[0] = torch.tensor([0.0, 0.0, 9.0])`. The values hand over the colour: "
        "`W_v[3:] = torch.eye(4)`.",
    ),
)

EXERCISES = (CAUSAL_ATTENTION, SELF_ATTENTION_LAYER, CIRCLE_MATRICES)
