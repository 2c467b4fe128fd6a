"""The exercises of chapter 05 on wiring: the layer of an encoder, and who depends on whom."""

from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_gradients, numbers

# encoder-layer ----------------------------------------------------------------------------------


def encoder_layer(
    x: torch.Tensor,
    attend: Callable[[torch.Tensor], torch.Tensor],
    network: Callable[[torch.Tensor], torch.Tensor],
    norm_1: Callable[[torch.Tensor], torch.Tensor],
    norm_2: Callable[[torch.Tensor], torch.Tensor],
    place: str,
) -> torch.Tensor:
    """Wire attention, feed-forward network and two normalisations into a layer of an encoder.

    Each of the two sublayers has a residual connection: its output is added to its own input. With
    place "post", as in 2017, the sum is normalised. With place "pre" the sum is left alone, and
    what the sublayer reads is normalised. The first sublayer is attention.

    x: (B, N, D). attend: self-attention, (B, N, D) to (B, N, D). network: the feed-forward
    network, likewise. norm_1: the normalisation of the first sublayer. norm_2: that of the second.
    place: "post" or "pre".
    Returns: (B, N, D).
    """
    ...


def _wire_parts(width: int, tokens: int, seed: int = 421) -> tuple[Any, Any, Any, Any]:
    """Return four fixed functions whose order of application shows in the result."""
    mix, w, (s_1, b_1), (s_2, b_2) = (
        numbers(tokens, tokens, seed=seed), numbers(width, width, seed=seed + 1),
        numbers(2, width, seed=seed + 2), numbers(2, width, seed=seed + 3),
    )

    def norm(scale: torch.Tensor, shift: torch.Tensor) -> Callable[..., torch.Tensor]:
        width = (scale.shape[-1],)
        return lambda x: torch.nn.functional.layer_norm(x, width, 1 + scale / 2, shift, 1e-5)

    def network(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w) + x.square()

    return lambda x: mix @ x, network, norm(s_1, b_1), norm(s_2, b_2)


def _post(x: Any, attend: Any, network: Any, norm_1: Any, norm_2: Any) -> torch.Tensor:
    z = norm_1(x + attend(x))
    return norm_2(z + network(z))


def _pre(x: Any, attend: Any, network: Any, norm_1: Any, norm_2: Any) -> torch.Tensor:
    z = x + attend(norm_1(x))
    return z + network(norm_2(z))


def _wire_post(layer: Any) -> None:
    """Post-norm: z = norm_1(x + attend(x)), then norm_2(z + network(z))."""
    x, parts = numbers(1, 3, 4, seed=425), _wire_parts(4, 3)
    attend, network, norm_1, norm_2 = parts
    a = attend(x)
    z = norm_1(x + a)
    expect(
        layer(x, *parts, "post"),
        _post(x, *parts),
        "With place \"post\" each sublayer's output is added to its own input, and the sum is "
        "normalised.",
        given={"x": x, "place": "post"},
        mistakes={
            "The second residual adds what attention returned. It adds the input of the network, "
            "z = norm_1(x + attend(x)): otherwise the path of x ends after the first sublayer.":
                norm_2(network(z) + a),
            "The second residual adds x. It adds the input of the network, "
            "z = norm_1(x + attend(x)).": norm_2(x + network(z)),
            "The second residual is missing: nothing is added to what the network returns.":
                (norm_2(network(z)), network(z)),
            "The first residual is missing: nothing is added to what attention returns.":
                _post(x, lambda x: attend(x) - x, network, norm_1, norm_2),
            "Both residuals are missing.": norm_2(network(norm_1(a))),
            "The last normalisation is missing: the sum z + network(z) goes through norm_2.":
                z + network(z),
            "norm_1 and norm_2 are exchanged.": _post(x, attend, network, norm_2, norm_1),
            "norm_1 is used twice. The second sublayer has norm_2.":
                _post(x, attend, network, norm_1, norm_1),
            "This is pre-norm. With place \"post\" the normalisation comes after the addition.":
                _pre(x, *parts),
            "What the sublayer returns was normalised, before the addition. Normalise the sum.":
                x + norm_1(a) + norm_2(network(x + norm_1(a))),
            "The network reads x + attend(x). The sum goes through norm_1 first.":
                (norm_2(x + a + network(x + a)), norm_2(network(x + a))),
            "Both sublayers read x. The network reads what the first sublayer made.":
                (norm_2(z + network(x)), norm_2(norm_1(x + a) + network(x))),
            "The network comes before attention.":
                norm_2(norm_1(x + network(x)) + attend(norm_1(x + network(x)))),
        },
    )


def _wire_pre(layer: Any) -> None:
    """Pre-norm: z = x + attend(norm_1(x)), then z + network(norm_2(z))."""
    x, parts = numbers(1, 3, 4, seed=426), _wire_parts(4, 3)
    attend, network, norm_1, norm_2 = parts
    h = norm_1(x)
    z = x + attend(h)
    expect(
        layer(x, *parts, "pre"),
        _pre(x, *parts),
        "With place \"pre\" the sublayer reads the normalised input, and its output is added to "
        "the input as it was.",
        given={"x": x, "place": "pre"},
        mistakes={
            "This is post-norm. With place \"pre\" the normalisation comes before the sublayer, "
            "and nothing is normalised after the addition.": _post(x, *parts),
            "What attention found never reaches the result: the second residual adds x, not z.":
                (x + network(norm_2(z)), x + network(x + attend(x)), x + network(norm_2(z - x))),
            "The residual adds the normalised input. It adds the input as it was, so that the path "
            "of x has no normalisation in it.":
                (h + attend(h) + network(norm_2(h + attend(h))),
                 norm_2(h + attend(h)) + network(norm_2(h + attend(h)))),
            "norm_2 was not used: the network reads norm_2(z).": z + network(z),
            "norm_1 was not used: attention reads norm_1(x).":
                x + attend(x) + network(norm_2(x + attend(x))),
            "No normalisation was used.": x + attend(x) + network(x + attend(x)),
            "norm_1 and norm_2 are exchanged.": _pre(x, attend, network, norm_2, norm_1),
            "norm_1 is used twice. The second sublayer has norm_2.":
                _pre(x, attend, network, norm_1, norm_1),
            "Both sublayers read x, in parallel. Here the network reads what the first sublayer "
            "made.": (x + attend(h) + network(norm_2(x)), x + attend(h) + network(h)),
            "The result was normalised once more. The last normalisation belongs behind the whole "
            "stack, not into each layer.": (norm_2(_pre(x, *parts)), norm_1(_pre(x, *parts))),
            "The residuals are missing: nothing is added to what the sublayers return.":
                network(norm_2(attend(h))),
        },
    )


def _wire_once(layer: Any) -> None:
    """Attention, network and normalisations are each applied once."""
    parts, x = _wire_parts(3, 5, seed=431), numbers(2, 5, 3, seed=427)
    for place, right in (("post", _post), ("pre", _pre)):
        counts = [0] * 4

        def counting(index: int, counts: list[int] = counts) -> Callable[..., torch.Tensor]:
            def part(x: torch.Tensor) -> torch.Tensor:
                counts[index] += 1
                return parts[index](x)

            return part

        got = layer(x, *(counting(i) for i in range(4)), place)
        names = dict(zip(("attend", "network", "norm_1", "norm_2"), counts, strict=True))
        if set(counts) != {1}:
            name, count = next((name, count) for name, count in names.items() if count != 1)
            raise Wrong(
                f"`{name}` was called {count} times with place \"{place}\". A layer runs each part "
                "once: keep the result in a variable.",
                got=count, wanted=1,
            )
        expect(got, right(x, *parts), "With another batch and other parts the result differs.")


def _wire_gradients(layer: Any) -> None:
    """Gradients pass through both wirings."""
    parts = _wire_parts(3, 2, seed=441)
    for place in ("post", "pre"):
        expect_gradients(lambda x, place=place: layer(x, *parts, place),
                         x=numbers(1, 2, 3, seed=428))


ENCODER_LAYER = Exercise(
    name="encoder-layer",
    title="Wire a layer of an encoder",
    level=2,
    section='chapters/05_architecture_deeper, section "The residual stream"',
    stub=encoder_layer,
    properties=(_wire_post, _wire_pre, _wire_once, _wire_gradients),
    hints=(
        "Give the output of the first sublayer, residual and all, a name of its own: z. The second "
        "sublayer knows z and nothing else.",
        "Post: z is norm_1 of a sum. Pre: z is a sum, and what attention reads went through "
        "norm_1. The second half repeats this with z in the place of x.",
        "Post: `z = norm_1(x + attend(x))`, then `norm_2(z + network(z))`. Pre: "
        "`z = x + attend(norm_1(x))`, then `z + network(norm_2(z))`.",
    ),
)

# block-that-trains ------------------------------------------------------------------------------


def pre_norm_block(
    x: torch.Tensor,
    attend: Callable[[torch.Tensor], torch.Tensor],
    network: Callable[[torch.Tensor], torch.Tensor],
    norm_1: Callable[[torch.Tensor], torch.Tensor],
    norm_2: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Pass a stream through a block with pre-norm.

    x: (B, N, D). attend: (B, N, D) to (B, N, D). network: likewise.
    norm_1: the norm of the first part. norm_2: of the second.
    Returns: (B, N, D).
    """
    x = norm_1(x)
    x = x + attend(x)
    x = norm_2(x)
    return x + network(x)


def _trains_zeros(block: Any) -> None:
    """Parts that write zeros leave the stream as it is."""
    x = numbers(1, 3, 4, seed=433)
    norm_1, norm_2 = _wire_parts(4, 3)[2:]
    expect(
        block(x, torch.zeros_like, torch.zeros_like, norm_1, norm_2),
        x,
        "Both parts wrote zeros, and what comes out is not what went in: the path beside the parts "
        "is not free.",
        given={"x": x},
    )


def _trains_values(block: Any) -> None:
    """Pre-norm: z = x + attend(norm_1(x)), then z + network(norm_2(z))."""
    x, parts = numbers(1, 3, 4, seed=434), _wire_parts(4, 3)
    attend, network, norm_1, norm_2 = parts
    z = x + attend(norm_1(x))
    expect(
        block(x, *parts),
        _pre(x, *parts),
        "Each part reads the norm of the stream, and its output is added to the stream.",
        given={"x": x},
        mistakes={
            "Attention reads the stream as it is: its norm is missing.":
                (bare := x + attend(x)) + network(norm_2(bare)),
            "The network reads the stream as it is: its norm is missing.": z + network(z),
            "The network reads norm_2(x). It reads what attention has added to, norm_2(z).":
                z + network(norm_2(x)),
            "Both parts read through the same norm; each has its own.": z + network(norm_1(z)),
            "The sum begins with x twice: the network's output is added to z.":
                x + network(norm_2(z)),
        },
    )  # fmt: skip


BLOCK_THAT_TRAINS = Exercise(
    name="block-that-trains",
    title="It trains, and is wrong",
    level=2,
    section='chapters/05_architecture, section "Pre-norm or post-norm?"',
    stub=pre_norm_block,
    properties=(_trains_zeros, _trains_values),
    hints=(
        "Let both parts write zeros. What should come out of a block with pre-norm, and what does?",
        "Follow the output of each norm with a finger: who reads it, and is it ever added to?",
        "Call the norm's output `h`. Which part reads `h`, and what must its output be added to?",
    ),
    broken=True,
)

# dependencies -----------------------------------------------------------------------------------


def dependencies(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """Tell which rows of the input each row of the output depends on, by gradients.

    Output row i depends on input row j if some number of row i has a gradient other than zero with
    respect to some number of row j, at this x.

    function: from (N, D) to (M, E), differentiable. x: (N, D), a point without gradient.
    Returns: (M, N), boolean; True at (i, j) where output row i depends on input row j.
    """
    ...


def _reach(function: Any, x: torch.Tensor) -> torch.Tensor:
    jacobian = torch.autograd.functional.jacobian(function, x)  # (M, E, N, D)
    return (jacobian != 0).flatten(3).any(-1).any(1)


def _attention_of(mask: torch.Tensor, seed: int) -> Any:
    w = numbers(3, 3, seed=seed)

    def function(x: torch.Tensor) -> torch.Tensor:
        scores = (x @ w @ x.mT).masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, -1) @ x

    return function


def _reach_causal(depends: Any) -> None:
    """In causal attention, a token depends on itself and on earlier tokens."""
    lower = torch.ones(4, 4).tril().bool()
    x = numbers(4, 3, seed=451)
    expect(
        depends(_attention_of(lower, 452), x),
        lower,
        "Output token i should depend on the input tokens 0, ..., i.",
        mistakes={
            "The answer is transposed: row i is about output row i, column j about input row j.":
                lower.mT.contiguous(),
            "The answer is inverted: True marks a dependence.": ~lower,
            "The diagonal is missing: a token depends on itself too.": lower.tril(-1),
            "Every output row got the dependences of all of them together. Take the gradient of "
            "one output row at a time.": torch.ones(4, 4).bool(),
        },
    )


def _reach_sizes(depends: Any) -> None:
    """The output may have more or fewer rows than the input, and rows of another width."""
    memory = numbers(3, 5, seed=453)
    pooled = torch.tensor([[True, True, False, False, False], [False, False, True, True, True]])
    x = numbers(5, 3, seed=454)

    def pool(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:2].sum(0), x[2:].prod(0)]) @ memory

    expect(
        depends(pool, x), pooled,
        "Two output rows, made of the input rows 0 to 1 and 2 to 4.",
        mistakes={"The answer is transposed: it has a row for each output row.":
                  pooled.mT.contiguous()},
    )
    repeated = torch.tensor([[True, False], [False, True], [True, False]])
    expect(
        depends(lambda x: torch.sin(x[[0, 1, 0]])[:, :1], numbers(2, 3, seed=455)), repeated,
        "Three output rows, made of the input rows 0, 1 and 0.",
    )


def _reach_cancel(depends: Any) -> None:
    """Slopes of opposite sign do not cancel."""
    lower = torch.ones(3, 3).tril().bool()
    inner = _attention_of(lower, 456)

    def opposed(x: torch.Tensor) -> torch.Tensor:
        y = inner(x)
        return torch.cat([y, -y], -1)

    x = numbers(3, 3, seed=457)
    words = (
        "Slopes of opposite sign cancelled: each row of this function ends with the negatives of "
        "its first numbers, so the sum of a row never changes. Take the gradient of every single "
        "number, or of a sum with different weights."
    )
    nothing = torch.zeros(3, 3).bool()
    expect(depends(opposed, x), lower, words, mistakes={words: nothing})
    difference = torch.tensor([[1.0, -1.0], [2.0, -2.0], [-1.0, 1.0]]).double()
    expect(
        depends(lambda x: inner(x @ difference @ torch.ones(2, 3).double() + x), x), lower,
        "Slopes with respect to the features of one input row must not be added up.",
    )
    expect(
        depends(lambda x: x @ torch.tensor([[1.0], [-1.0], [0.0]]).double(), x),
        torch.eye(3).bool(),
        "Slopes of opposite sign cancelled: each output is the difference of two features of one "
        "input row. Compare every slope with zero before you put them together.",
    )


def _reach_weak(depends: Any) -> None:
    """A weak dependence is one, and none is none."""
    chain = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])

    def faint(x: torch.Tensor) -> torch.Tensor:
        rows = [x[0] + 1e-9 * x[1], 1e-9 * x[1] * x[2], torch.ones(2).double()]
        return torch.stack(rows)

    expect(
        depends(faint, numbers(3, 2, seed=458)),
        chain,
        "Row 0 depends on row 1 by a slope of 1e-9, and row 2 is a constant.",
    )


def _reach_clean(depends: Any) -> None:
    """The input is left without a gradient."""
    x = numbers(2, 3, seed=459)
    expect(depends(lambda x: x.flip(0) * x, x), torch.ones(2, 2).bool())
    if x.requires_grad or x.grad is not None:
        raise Wrong(
            "The input `x` was left requiring a gradient. Work with a copy: "
            "`x.detach().clone().requires_grad_()`."
        )


DEPENDENCIES = Exercise(
    name="dependencies",
    title="Who can see whom?",
    level=3,
    section='chapters/05_architecture_deeper, section "The decoder"',
    stub=dependencies,
    properties=(_reach_causal, _reach_sizes, _reach_cancel, _reach_weak, _reach_clean),
    hints=(
        "A gradient of zero for every number of input row j says that output row i does not move "
        "with it.",
        "The gradient of the sum of a row can be zero although none of its numbers' gradients is. "
        "Take all of them: `torch.autograd.functional.jacobian(function, x)` has shape "
        "(M, E, N, D).",
        "`jacobian = torch.autograd.functional.jacobian(function, x)`; "
        "`(jacobian != 0).any(-1).any(1)`.",
    ),
)

EXERCISES = (ENCODER_LAYER, BLOCK_THAT_TRAINS, DEPENDENCIES)
