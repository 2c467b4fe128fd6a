"""The exercises of chapter 09 on states: chunks, corrected and joined, and a hybrid."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_plain, numbers

# delta-chunk ------------------------------------------------------------------------------------


def delta_chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read and write a chunk by the delta rule, all its tokens at once.

    Token t writes u_t under its key, where u_t + beta_t · sum over s < t of (k_t · k_s) u_s is
    beta_t (v_t − k_t S_0): a triangular system. S_0 is the state before the chunk. A query reads
    the state after its own token was written.

    q: (n, d). k: (n, d), of length 1. v: (n, e). beta: (n,), from 0 to 1. state: (d, e), S_0.
    Returns: what the queries read, (n, e), and the state after the chunk, (d, e).
    """
    ...


def _corrected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, state: torch.Tensor,
    slip: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    start, read = state, []
    for q_t, k_t, v_t, b in zip(q, k, v, beta, strict=True):
        said = k_t @ (start if slip == "alone" else state)
        if slip == "fresh":
            said = said - k_t @ start
        if slip == "early":
            read.append(q_t @ state)
        state = state + torch.outer(k_t, (1.0 if slip == "whole" else b) * (v_t - said))
        if slip == "border":
            read.append(q_t @ (state - start))
        elif slip != "early":
            read.append(q_t @ state)
    return torch.stack(read), state - start if slip == "lost" else state


_SLIPS = {
    "alone": "What earlier tokens of the chunk wrote is not taken off: the system has entries "
             "below its diagonal too.",
    "fresh": "What stood in the state before the chunk is not taken off: the right side needs it.",
    "whole": "beta is missing: it is on the right side and on the entries below the diagonal.",
    "early": "Each query read before its own token was written: its own pair is allowed too.",
    "border": "The queries do not read the state from before the chunk.",
    "lost": "The state from before the chunk is missing in the new one.",
}  # fmt: skip


def _chunk_check(make: Any, seed: int, *, start: float = 1.0, own: float = 0.5) -> None:
    given = {
        "q": numbers(4, 3, seed=seed),
        "k": torch.nn.functional.normalize(numbers(4, 3, seed=seed + 1), dim=-1),
        "v": numbers(4, 2, seed=seed + 2),
        "beta": torch.tensor([1.0, own, 1.0, own], dtype=torch.float64),
        "state": start * numbers(3, 2, seed=seed + 3),
    }
    found = make(*given.values())
    wanted = _corrected(**given)
    slips = {words: _corrected(**given, slip=slip) for slip, words in _SLIPS.items()}
    what = ("what the queries read", "the state after the chunk")
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise Wrong(f"Return two things: {what[0]}, and {what[1]}.", got=found)
    for i, name in enumerate(what):
        mistakes = {
            words: one[i] for words, one in slips.items() if not torch.allclose(one[i], wanted[i])
        }
        expect(
            found[i], wanted[i], f"This is {name}: it should be what the loop gives.",
            given=given, mistakes=mistakes,
        )  # fmt: skip


def _chunk_first(make: Any) -> None:
    """The first chunk, which begins with an empty state."""
    _chunk_check(make, 905, start=0.0, own=1.0)


def _chunk_share(make: Any) -> None:
    """With beta below 1, only a share of the difference is written."""
    _chunk_check(make, 915, start=0.0)


def _chunk_later(make: Any) -> None:
    """A later chunk goes on with the state that it gets."""
    _chunk_check(make, 925)


DELTA_CHUNK = Exercise(
    name="delta-chunk",
    title="A chunk at once",
    level=3,
    section='chapters/09_hybrids_deeper, section "Corrections in chunks"',
    stub=delta_chunk,
    properties=(_chunk_first, _chunk_share, _chunk_later),
    hints=(
        "Write the equations for three tokens below each other. Which number stands before u_1 in "
        "the second, and which before u_1 and u_2 in the third?",
        "The numbers before the u are a matrix of n rows: 1 on the diagonal, 0 above. Below it "
        "stand inner products of keys; row t has a factor. `tril(-1)` keeps what is below.",
        "`torch.linalg.solve_triangular` solves such a system for all columns of v at once. Then "
        "u stands where v stood in linear attention, and a state from before is read as well.",
    ),
)

# joined-chunks ----------------------------------------------------------------------------------


def joined_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: float, chunk: int
) -> torch.Tensor:
    """Read a state that fades to `keep` with each token, chunk by chunk.

    Inside of a chunk all tokens are read at once, under a mask; the state carries over what the
    chunks before have written.

    q: (n, d). k: (n, d). v: (n, e). keep: from 0 to 1. chunk: tokens in a chunk.
    Returns: (n, e), what each query reads after the key and value of its own token were written.
    """
    state, read = k.new_zeros(k.shape[1], v.shape[1]), []
    for begin in range(0, len(q), chunk):
        rows = slice(begin, begin + chunk)
        place = torch.arange(len(q[rows]), dtype=q.dtype)
        mask = (keep ** (place[:, None] - place)).tril()
        read.append((q[rows] @ k[rows].mT * mask) @ v[rows] + q[rows] @ state)
        left = mask[-1, :, None]  # what is left of each pair at the end of the chunk
        state = keep ** len(left) * state + (left * k[rows]).mT @ v[rows]
    return torch.cat(read)


def _joined(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: float, chunk: int, slip: str = ""
) -> torch.Tensor:
    state, read = k.new_zeros(k.shape[1], v.shape[1]), []
    for t in range(len(q)):
        if slip == "between" and t % chunk == 0:
            state = 0 * state
        state = keep * state + torch.outer(k[t], v[t])
        read.append(q[t] @ state)
    return torch.stack(read)


def _joined_check(make: Any, keep: float, chunk: int) -> None:
    q, k, v = (numbers(7, size, seed=940 + size) for size in (3, 3, 2))
    k = k + 0.5
    given = {"q": q, "k": k, "v": v, "keep": keep, "chunk": chunk}
    fades = {
        "Inside of a chunk nothing fades: its mask needs a power of keep for each age.":
            _unfaded(**given, inside=1.0),
        "What the chunks before have written does not fade inside of the chunk: each of its tokens "
        "reads the state as it was at the border.": _unfaded(**given, power=None),
        "What the chunks before have written is not read at all.": _joined(**given, slip="between"),
        "What was carried over fades one token too little: the first token of a chunk lets it fade "
        "once already.": _unfaded(**given, power=0),
    }  # fmt: skip
    wanted = _joined(**given)
    mistakes = {words: x for words, x in fades.items() if not torch.allclose(x, wanted)}
    expect(
        make(q, k, v, keep, chunk), wanted,
        "It should be what the token-by-token form gives.", given=given, mistakes=mistakes,
    )  # fmt: skip


def _unfaded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: float, chunk: int,
    power: int | None = 1, inside: float | None = None,
) -> torch.Tensor:  # fmt: skip
    state, start, read = k.new_zeros(k.shape[1], v.shape[1]), None, []
    for t in range(len(q)):
        if t % chunk == 0:
            start, own = state, torch.zeros_like(state)
        fade = 1.0 if power is None else keep ** (t % chunk + power)
        own = (keep if inside is None else inside) * own + torch.outer(k[t], v[t])
        state = keep * state + torch.outer(k[t], v[t])
        read.append(q[t] @ (fade * start + own))
    return torch.stack(read)


def _joined_one(make: Any) -> None:
    """One chunk for all tokens is the masked form."""
    _joined_check(make, 0.5, 7)


def _joined_plain(make: Any) -> None:
    """Without forgetting, chunks give what the whole gives."""
    _joined_check(make, 1.0, 3)


def _joined_fading(make: Any) -> None:
    """With forgetting too, and the last chunk may be shorter."""
    _joined_check(make, 0.5, 3)
    _joined_check(make, 0.8, 2)


JOINED_CHUNKS = Exercise(
    name="joined-chunks",
    title="A chunk that remembers too well",
    level=3,
    section='chapters/09_hybrids, section "Retention: attention that fades"',
    stub=joined_chunks,
    properties=(_joined_one, _joined_plain, _joined_fading),
    hints=(
        "Run it with keep = 1: it is right. So the fault is in a place where something should fade "
        "and does not. Three things fade; find them.",
        "Take chunks of 3 and the last token of the second chunk. How often has a pair of the "
        "first chunk faded by then, and how often in the code?",
        "The term with the state needs a factor for each token of the chunk, a column of powers of "
        "`keep`. Its first entry is not 1.",
    ),
    broken=True,
)

# found-by-place ---------------------------------------------------------------------------------


def found_by_place(
    k: torch.Tensor, v: torch.Tensor, keep: float, erase: float, write: float
) -> torch.Tensor:
    """Write facts one after the other, and look at the end which of them are found.

    The state begins with 0. With each fact it is multiplied by `keep`; then the part `erase` of
    what stands under the key is taken off; then the key with `write` times the value is added. A
    fact is found if, of the n values, its own has the largest dot product with what its key reads
    from the last state.

    k: (tries, n, d), keys of length 1. v: (tries, n, e).
    keep: a number. erase: a number. write: a number.
    Returns: (n,), the share of the tries in which each fact is found, oldest first.
    """
    ...


def _by_place(
    k: torch.Tensor, v: torch.Tensor, keep: float, erase: float, write: float, slip: str = ""
) -> torch.Tensor:
    state = k.new_zeros(k.shape[0], k.shape[2], v.shape[2])
    found = []
    for t in range(k.shape[1]):
        key, value = k[:, t, :, None], v[:, t, None]  # (tries, d, 1), (tries, 1, e)
        add = write * key * value
        state = (1.0 if slip == "level" else keep) * state
        if slip == "late":
            state = state + add
        if slip != "kept":
            state = state - erase * key * (key * state).sum(1, keepdim=True)
        if slip != "late":
            state = state + add
        if slip == "soon":
            read = (key * state).sum(1, keepdim=True)
            found.append((read @ v.mT).argmax(-1)[:, 0] == t)
    if slip != "soon":
        nearest = (k @ state @ v.mT).argmax(-1)
        found = list((nearest == torch.arange(k.shape[1])).unbind(1))
    return torch.stack(found).to(k.dtype).mean(1)


_PLACE_SLIPS = {
    "level": "The state is not multiplied by keep.",
    "kept": "What stands under the key is not taken off.",
    "late": "The new fact was written before erasing, so a part of it was taken off again.",
    "soon": "Each fact was asked for as soon as it was told. Ask for all of them at the end.",
}


def _place_check(make: Any, **rule: float) -> None:
    k = torch.nn.functional.normalize(numbers(40, 12, 4, seed=951), dim=-1)
    v = torch.nn.functional.normalize(numbers(40, 12, 6, seed=952), dim=-1)
    given = {"k": k, "v": v, **rule}
    wanted = _by_place(**given)
    slips = {words: _by_place(**given, slip=slip) for slip, words in _PLACE_SLIPS.items()}
    mistakes = {words: x for words, x in slips.items() if not torch.allclose(x, wanted)}
    found = make(*given.values())
    if isinstance(found, torch.Tensor):
        found = found.to(wanted.dtype)
    expect(
        found, wanted, "It should be the share of tries in which each fact is found.",
        given=given, mistakes=mistakes,
    )  # fmt: skip


def _place_adding(make: Any) -> None:
    """Without forgetting and erasing it is linear attention."""
    _place_check(make, keep=1.0, erase=0.0, write=1.0)


def _place_fading(make: Any) -> None:
    """A decay factor acts before each fact is written."""
    _place_check(make, keep=0.7, erase=0.0, write=1.0)


def _place_erasing(make: Any) -> None:
    """What stands under the key is taken off before writing."""
    _place_check(make, keep=1.0, erase=1.0, write=1.0)
    _place_check(make, keep=0.9, erase=0.5, write=0.5)


FOUND_BY_PLACE = Exercise(
    name="found-by-place",
    title="Found, by place",
    level=2,
    section='chapters/09_hybrids, section "Five states, three tasks"',
    stub=found_by_place,
    properties=(_place_adding, _place_fading, _place_erasing),
    hints=(
        "Begin with recalled() of this chapter, which draws its keys and values itself. Which of "
        "its lines is the update, and which line does erasing need before it?",
        "The first axis counts the tries, so every try has its own state. The key of fact t as a "
        "row of each try is k[:, t, None], with the shape (tries, 1, d).",
        "What stands under the key is the row `k_t @ S`. Under the key it is taken off as an outer "
        "product, with `k_t.mT` in front. After the loop, ask with all keys at once.",
    ),
)

# hybrid-layers ----------------------------------------------------------------------------------


def hybrid_layers(
    n_layers: int, cache_per_token: int, state: int, length: int, room: int
) -> list[str]:
    """Choose the layers of a hybrid that fits into a memory.

    Take as many layers of attention as fit when `length` tokens have been read, and states of fixed
    size for the others. Spread the attention evenly, from the second layer on: with a of them,
    layer i (from 0) is attention where (i − 1) · a % n_layers is smaller than a.

    n_layers: how many layers. cache_per_token: numbers that a layer of attention keeps for each
    token. state: numbers that another layer keeps. length: tokens. room: numbers that fit, enough
    for states alone.
    Returns: a list of n_layers words, "attention" or "state".
    """
    ...


def _chosen(
    n_layers: int, cache_per_token: int, state: int, length: int, room: int, slip: str = ""
) -> list[str]:
    cache = cache_per_token * (1 if slip == "token" else length)
    count = 0
    for a in range(n_layers + 1):
        others = n_layers if slip == "all" else 0 if slip == "free" else n_layers - a
        if a * cache + others * state <= room:
            count = a
    if slip == "front":
        return ["attention"] * count + ["state"] * (n_layers - count)
    if slip == "back":
        return ["state"] * (n_layers - count) + ["attention"] * count
    places = range(n_layers)
    first = {"early": 0, "late": -1}.get(slip, 1)
    return ["attention" if (i - first) * count % n_layers < count else "state" for i in places]


_LAYER_SLIPS = {
    "token": "The cache of one token was counted. It holds all `length` tokens.",
    "free": "The layers with a state need room too: theirs was forgotten.",
    "all": "A layer of attention has a cache and no state: its state was counted as well.",
    "front": "The number is right, but all attention stands in front. Spread it evenly.",
    "back": "The number is right, but all attention stands behind. Spread it evenly.",
    "early": "The number and the distances are right, but attention begins with the first layer: "
             "the rule has i − 1, so that one layer stands below that can join neighbours.",
    "late": "The number and the distances are right, but attention ends with the last layer: the "
            "rule has i − 1, so that attention begins low in the stack, with the second layer.",
}  # fmt: skip


def _layers_check(make: Any, **given: int) -> None:
    wanted = _chosen(**given)
    found = {words: _chosen(**given, slip=slip) for slip, words in _LAYER_SLIPS.items()}
    mistakes = {words: one for words, one in found.items() if one != wanted}
    expect_plain(make, given, wanted, "Count the numbers that each choice holds.",
                 mistakes=mistakes)  # fmt: skip


def _layers_some(make: Any) -> None:
    """As many layers of attention as fit beside the states of the others."""
    _layers_check(make, n_layers=8, cache_per_token=10, state=100, length=100, room=2700)
    _layers_check(make, n_layers=4, cache_per_token=2, state=50, length=100, room=395)
    _layers_check(make, n_layers=6, cache_per_token=4, state=300, length=100, room=2110)


def _layers_edges(make: Any) -> None:
    """All of them in a large memory, none in a small one."""
    _layers_check(make, n_layers=4, cache_per_token=8, state=64, length=10, room=10_000)
    _layers_check(make, n_layers=4, cache_per_token=8, state=64, length=100_000, room=300)


HYBRID_LAYERS = Exercise(
    name="hybrid-layers",
    title="A hybrid that fits",
    level=2,
    section='chapters/09_hybrids_deeper, section "A hybrid within a memory"',
    stub=hybrid_layers,
    properties=(_layers_some, _layers_edges),
    hints=(
        "Suppose a layers are attention. How many numbers do they hold after `length` tokens, and "
        "how many the n_layers − a others?",
        "Try a = 0, 1, 2, … and keep the largest that fits. A cache may also be smaller than a "
        "state.",
        "For the order, go through i with the rule of the task; with a = 2 of 8 it gives attention "
        "in the layers 1 and 5. In Python -1 % 8 is 7.",
    ),
)

EXERCISES = (DELTA_CHUNK, JOINED_CHUNKS, FOUND_BY_PLACE, HYBRID_LAYERS)
