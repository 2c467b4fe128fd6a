"""The exercise of chapter 02 on attention over a stream of keys."""

import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers, plain_attention


def streaming_attention(
    q: torch.Tensor, chunks: Iterator[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """Compute attention for one query over keys and values that arrive in chunks.

    The result is softmax(k q / √d)ᵀ v over all keys of all chunks, but no more than one chunk is
    in memory: keep a running maximum of the scores, a running sum of exponentials and a running
    weighted sum of values.

    q: (d,). chunks: an iterator, read once, over pairs k (c, d) and v (c, e); the number of keys
    c ≥ 1 varies from chunk to chunk, and there is at least one chunk.
    Returns: (e,).
    """
    ...


class _Stream:
    """An iterator over fresh chunks that notices when an earlier chunk is still alive."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor, sizes: tuple[int, ...]) -> None:
        self.pairs = list(zip(k.split(sizes), v.split(sizes), strict=True))
        self.served: list[Any] = []
        self.kept = False

    def __iter__(self) -> "_Stream":
        return self

    def __next__(self) -> tuple[torch.Tensor, ...]:
        # The loop variable of the reader still holds the latest chunk at this moment.
        self.kept |= any(chunk() is not None for pair in self.served[:-1] for chunk in pair)
        if len(self.served) == len(self.pairs):
            raise StopIteration
        fresh = tuple(x.clone() for x in self.pairs[len(self.served)])
        self.served.append([weakref.ref(x) for x in fresh])
        return fresh

    def __repr__(self) -> str:
        if sum(len(k) for k, _ in self.pairs) > 12:
            return f"{len(self.pairs)} chunks"
        return "\n".join(f"k = {k.tolist()}, v = {v.tolist()}" for k, v in self.pairs)


def _stream_case(order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> tuple[torch.Tensor, ...]:
    """Return a query and five pairs, sorted so that `order` counts scores upwards."""
    q, k, v = numbers(3, seed=41), numbers(5, 3, seed=43), numbers(5, 2, seed=47)
    rank = (k @ q).argsort()[torch.tensor(order)]
    return q, k[rank], v[rank]


def _online(
    q: torch.Tensor, stream: _Stream, *, total_factor: float = 1.0, output_factor: float = 1.0
) -> torch.Tensor:
    """Run the recurrence with its rescaling to the power of a factor: 1 right, 0 left out."""
    top, total, output = -math.inf, 0.0, 0.0
    for k, v in stream.pairs:
        scores = k @ q / math.sqrt(len(q))
        new = max(top, scores.max().item())
        shift = 0.0 if top == -math.inf else top - new
        exps = (scores - new).exp()
        total = total * math.exp(shift * total_factor) + exps.sum()
        output = output * math.exp(shift * output_factor) + exps @ v
        top = new
    return output / total


def _stream_once(attend: Any) -> None:
    """One chunk gives softmax attention."""
    q, k, v = _stream_case()
    a = torch.softmax(k @ q / math.sqrt(3), 0)
    raw = (k @ q / math.sqrt(3)).exp()
    expect(
        attend(q, _Stream(k, v, (5,))),
        a @ v,
        "One chunk that holds all keys should give softmax attention.",
        mistakes={
            "The scale is missing: divide the scores by √d.": torch.softmax(k @ q, 0) @ v,
            "The scores were divided by d. The scale is √d.": torch.softmax(k @ q / 3, 0) @ v,
            "The weighted sum of the values was not divided by the sum of the exponentials.":
                (raw @ v, raw / raw.max() @ v),
        },
    )


def _stream_chunks(attend: Any) -> None:
    """Several chunks give attention over all of their keys, whatever order the scores come in."""
    for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)):
        q, k, v = _stream_case(order)
        stream = _Stream(k, v, (2, 1, 2))
        parts = [plain_attention(q[None], *pair)[0] for pair in stream.pairs]
        forgot = "When a larger score arrives, what was gathered so far refers to the old maximum"
        expect(
            attend(q, stream),
            plain_attention(q[None], k, v)[0],
            "The chunks are not combined to one softmax over all keys.",
            mistakes={
                "Each chunk got a softmax of its own and the results were averaged. A chunk counts "
                "by its sum of exponentials: keep one running sum and divide once, at the end.":
                    torch.stack(parts).mean(0),
                "Each chunk got a softmax of its own and the results were added. Divide once, at "
                "the end, by the sum of all exponentials.": torch.stack(parts).sum(0),
                "The result is attention over the last chunk alone.": parts[-1],
                "The result is attention over the first chunk alone.": parts[0],
                f"{forgot}: multiply the sum and the weighted values by exp(old - new).":
                    _online(q, stream, total_factor=0, output_factor=0),
                f"{forgot}. You rescaled the sum of exponentials but not the weighted values.":
                    _online(q, stream, output_factor=0),
                f"{forgot}. You rescaled the weighted values but not the sum of exponentials.":
                    _online(q, stream, total_factor=0),
                "The rescaling goes the wrong way: the factor is exp(old - new), at most one.":
                    _online(q, stream, total_factor=-1, output_factor=-1),
            },
        )


def _stream_cuts(attend: Any) -> None:
    """Where the stream is cut does not matter."""
    q, k, v = _stream_case((1, 3, 0, 4, 2))
    wanted = plain_attention(q[None], k, v)[0]
    for sizes in ((1, 1, 1, 1, 1), (3, 2), (1, 4)):
        expect(attend(q, _Stream(k, v, sizes)), wanted)


def _stream_extremes(attend: Any) -> None:
    """Scores of plus and minus 10 000 stay finite."""
    q, k, v = _stream_case((2, 0, 4, 1, 3))
    for k_large in (k * 1e4, k - 1e4 * q, k + 1e4 * q):
        expect(
            attend(q, _Stream(k_large, v, (2, 1, 2))),
            plain_attention(q[None], k_large, v)[0],
            "The exponentials overflow or all vanish: subtract the running maximum of the scores "
            "before taking the exponential.",
        )


def _stream_memory(attend: Any) -> None:
    """No more than one chunk is kept."""
    keys = 101
    largest = 0

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    q, k, v = (numbers(*shape, seed=53) for shape in ((3,), (keys, 3), (keys, 2)))
    wanted = plain_attention(q[None], k, v)[0]
    stream = _Stream(k, v, (5,) * 20 + (1,))
    with Watch(), torch.no_grad():
        result = attend(q, stream)
    if stream.kept or largest >= keys:
        raise Wrong(
            "Your function holds earlier chunks while it asks for the next one, so its memory "
            "grows with the stream. Three things are enough: the largest score so far, the sum of "
            "exponentials and the weighted sum of values."
        )
    expect(result, wanted)


STREAMING_ATTENTION = Exercise(
    name="streaming-attention",
    title="Attention over a stream",
    level=3,
    section='chapters/02_attention_deeper, section "The same function, computed four ways"',
    stub=streaming_attention,
    properties=(_stream_once, _stream_chunks, _stream_cuts, _stream_extremes, _stream_memory),
    hints=(
        "Without the maximum it would be easy: add up exp(score) and exp(score)·v over the chunks "
        "and divide once at the end. What has to change when you subtract the largest score seen "
        "so far?",
        "Both sums contain the factor exp(-maximum). A new maximum changes that factor for "
        "everything gathered before.",
        "For each chunk: `new = max(top, scores.max())`, multiply both sums by `exp(top - new)`, "
        "add the terms with `exp(scores - new)`, set `top = new`. Start with top = -∞.",
    ),
)

EXERCISES = (STREAMING_ATTENTION,)
