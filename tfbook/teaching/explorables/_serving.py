"""continuous_batching: requests of unlike lengths in batches filled once, or all the time."""

from functools import cache
from typing import NamedTuple

from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
from tfbook.serving import Server, paged_waste, static_batches
from tfbook.teaching.explorables._base import Explorable, one_of, whole, wrapped
from tfbook.teaching.explorables._chance import uniforms

TITLE = "Many requests in one batch"
POLICIES = {"static": "static, filled once", "continuous": "continuous, filled anew"}
ANSWERS = {"equal": "all alike", "mixed": "mixed", "heavy": "a few very long"}
PAGES = [1, 2, 4, 8, 16]
REQUESTS = 16
MOST_SLOTS = 8


class Span(NamedTuple):
    """A request in its slot: a token a step from `start` on, until `done`; it leaves at `end`."""

    request: int
    slot: int
    start: int
    done: int
    end: int


def continuous_batching(
    policy: str = "static",
    *,
    answers: str = "heavy",
    slots: int = 4,
    page_size: int = 4,
    step: int = 10,
    seed: int = 9,
) -> Explorable:
    r"""Return a figure of 16 requests that share the slots of a batch, step by step.

    In a step the model makes one token for each slot. A batch that is filled once goes on until
    its longest answer ends, and computes tokens for nothing in the slots of the others; it also
    sets rows of keys and values aside for the longest prompt with the longest answer in each slot.
    A batch that is filled anew takes the next request as soon as a slot is free, and a cache in
    pages of $s$ rows leaves less than one page of each request empty. The numbers of the second
    kind are those of a :class:`tfbook.serving.Server` that serves these requests.

    Args:
        policy: "static" (filled once) or "continuous" (filled anew for every token).
        answers: "equal", "mixed" or "heavy" (a few very long): how the answers' lengths are drawn.
        slots: Requests that run at once, 1 to 8.
        page_size: s, 1, 2, 4, 8 or 16.
        step: The step that is looked at, from 0; at most the last one.
        seed: Of the requests that are drawn, 1 to 9999.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Example:
        >>> figure = continuous_batching("static", answers="heavy", slots=4)
        >>> figure.steps, figure.wasted, figure.useful
        (77, 177, 131)
        >>> figure.policy = "continuous"
        >>> figure.steps, figure.wasted, figure.useful
        (36, 0, 131)

    Source: [yu2022orca], [kwon2023efficient].
    Explained in: chapters/17_hardware, section "Serving many".
    """
    checks = {
        "policy": one_of("policy", *POLICIES),
        "answers": one_of("answers", *ANSWERS),
        "slots": whole("slots", 1, MOST_SLOTS),
        "page_size": _page_size,
        "step": whole("step", 0, 1000),
        "seed": whole("seed", 1, 9999),
    }
    given = {
        "policy": policy, "answers": answers, "slots": slots, "page_size": page_size, "step": step,
        "seed": seed,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}
    data = {
        "title": TITLE, "policies": POLICIES, "answers": ANSWERS, "pages": PAGES,
        "requests": REQUESTS, "most_slots": MOST_SLOTS,
    }  # fmt: skip
    return Explorable(
        "continuous_batching", data=data, state=state, checks=checks, results=_results, text=_text
    )


def _page_size(value):
    value = whole("page_size", 1, PAGES[-1])(value)
    if value not in PAGES:
        raise ValueError(f"page_size must be one of {PAGES}, got {value}")
    return value


@cache
def requests(answers: str, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of the prompts and those that are asked for, at least 2 of each request."""
    drawn = uniforms(seed, 2 * REQUESTS)
    lengths = {
        "equal": lambda u: 12, "mixed": lambda u: 2 + int(22 * u),
        "heavy": lambda u: 2 + int(38 * u * u * u),
    }[answers]  # fmt: skip
    prompts = tuple(2 + int(14 * u) for u in drawn[:REQUESTS])
    return prompts, tuple(map(lengths, drawn[REQUESTS:]))


def static(prompts, asked, slots: int) -> list[Span]:
    """Return who is where in batches that are filled once."""
    spans, start = [], 0
    for first in range(0, len(prompts), slots):
        part = slice(first, first + slots)
        steps = static_batches(prompts[part], asked[part], slots).steps
        spans += [
            Span(first + i, i, start, start + tokens - 1, start + steps)
            for i, tokens in enumerate(asked[part])
        ]
        start += steps
    return spans


@cache
def served(prompts, asked, slots: int, page_size: int) -> tuple[list[Span], int]:
    """Let a server serve the requests; return who is where, and the most pages held at once."""
    config = TransformerConfig(2, 2, decoder=[Layer(Attention(1), FFN(2))])
    pages = sum(-(-(p + n) // page_size) for p, n in zip(prompts, asked, strict=True))
    server = Server(
        build(config).eval(), n_pages=pages, page_size=page_size, max_running=slots, share=False
    )
    for tokens, new in zip(prompts, asked, strict=True):
        server.submit([0] * tokens, new)
    places: dict[int, tuple[int, int]] = {}  # of who runs: slot and first step
    spans = []
    while server.busy:
        now, before = server.stats.steps, server.stats.slots
        found = server.step()
        for each in found[len(found) - (server.stats.slots - before) :]:  # first tokens left out
            if each.request not in places:
                taken = {slot for slot, _ in places.values()}
                places[each.request] = min(set(range(slots)) - taken), now
        for each in [each for each in found if each.last]:
            slot, start = places.pop(each.request)
            spans.append(Span(each.request, slot, start, now + 1, now + 1))
    return sorted(spans), server.stats.most_pages


def _results(now: dict) -> dict:
    prompts, asked = requests(now["answers"], now["seed"])
    slots, size = now["slots"], now["page_size"]
    counted = static_batches(prompts, asked, slots)
    is_static = now["policy"] == "static"
    if is_static:
        spans, peak = static(prompts, asked, slots), counted.held
    else:
        spans, pages = served(prompts, asked, slots, size)
        peak = pages * size
    steps = max(span.end for span in spans)
    step = min(now["step"], steps - 1)
    running = [span for span in spans if span.start <= step < span.end]
    rows = [prompts[s.request] + min(step + 1, s.done) - s.start for s in running]
    if is_static:
        held = [_set_aside(prompts, asked, slots, span.request) for span in running]
        empty = 1 - sum(rows) / sum(held)
    else:
        held = [-(-n // size) * size for n in rows]
        empty = paged_waste(rows, size)
    computed = sum(span.end - span.start for span in spans)
    return {
        "step_shown": step,
        "spans": [list(span) for span in spans],
        "steps": steps,
        "computed": computed,
        "useful": counted.useful,
        "wasted": computed - counted.useful,
        "tokens_a_step": counted.useful / steps,
        "finished": sum(span.done <= step + 1 for span in spans),
        "mean_end": sum(span.done for span in spans) / len(spans),
        "running": [[s.request, s.slot, n, h] for s, n, h in zip(running, rows, held, strict=True)],
        "held": sum(held),
        "empty": empty,
        "peak": peak,
    }


def _set_aside(prompts, asked, slots: int, request: int) -> int:
    """Rows for each sequence of the batch of a request."""
    part = slice(request // slots * slots, request // slots * slots + slots)
    return static_batches(prompts[part], asked[part], slots).reserved // len(prompts[part])


def _text(now: dict) -> str:
    found = _results(now)
    other = _results(now | {"policy": "continuous" if now["policy"] == "static" else "static"})
    kept = "set aside" if now["policy"] == "static" else f"in pages of {now['page_size']} rows"
    return wrapped(f"""{TITLE}

    {REQUESTS} requests share {now["slots"]} slots of a batch: {POLICIES[now["policy"]]}.
    All are served after {found["steps"]} steps (with the other kind after {other["steps"]}), in
    which {found["computed"]} tokens are computed; {found["wasted"]} of them nobody asked for. In
    step {found["step_shown"]} the cache holds {found["held"]} rows {kept}, and
    {found["empty"]:.0%} of them are empty.

    In the page you choose how the batch is filled, how unlike the answers are and how large a page
    is, and move through the steps; each slot is a line with a box for each request.""")
