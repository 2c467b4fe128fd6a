"""Right and wrong answers to the exercises of chapter 09.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import torch
from answers import collect

from tfbook.efficient import state_recurrent
from tfbook.recurrent import delta_recurrent

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "delta-chunk": lambda q, k, v, beta, state: delta_recurrent(q, k, v, beta, state=state),
    "joined-chunks": lambda q, k, v, keep, chunk: state_recurrent(
        q, k, v, log_decay=torch.full((len(q),), keep, dtype=q.dtype).log()
    )[0],
}


# delta-chunk ------------------------------------------------------------------------------------


@right("delta-chunk")
def chunk_by_a_loop(q, k, v, beta, state):
    read = []
    for q_t, k_t, v_t, b in zip(q, k, v, beta, strict=True):
        state = state + torch.outer(k_t, b * (v_t - k_t @ state))
        read.append(q_t @ state)
    return torch.stack(read), state


def chunk_with(q, k, v, beta, state, *, below=1.0, old=1.0, diagonal=0, read=1.0, kept=1.0):
    system = torch.eye(len(k), dtype=k.dtype) + below * (beta[:, None] * (k @ k.mT)).tril(-1)
    u = torch.linalg.inv(system) @ (beta[:, None] * (v - old * k @ state))
    return (q @ k.mT).tril(diagonal) @ u + read * q @ state, kept * state + k.mT @ u


@right("delta-chunk")
def chunk_by_an_inverse(*given):
    return chunk_with(*given)


@wrong("delta-chunk", "entries below its diagonal")
def chunk_without_its_own(*given):
    return chunk_with(*given, below=0.0)


@wrong("delta-chunk", "the right side needs it")
def chunk_without_what_stood(*given):
    return chunk_with(*given, old=0.0)


@wrong("delta-chunk", "beta is missing")
def chunk_without_beta(q, k, v, beta, state):
    return chunk_with(q, k, v, torch.ones_like(beta), state)


@wrong("delta-chunk", "before its own token was written")
def chunk_read_early(*given):
    return chunk_with(*given, diagonal=-1)


@wrong("delta-chunk", "do not read the state from before")
def chunk_read_alone(*given):
    return chunk_with(*given, read=0.0)


@wrong("delta-chunk", "missing in the new one")
def chunk_that_drops(*given):
    return chunk_with(*given, kept=0.0)


@wrong("delta-chunk", "Return two things")
def chunk_of_one_thing(*given):
    return chunk_with(*given)[0]


# joined-chunks ----------------------------------------------------------------------------------


def chunks_with(q, k, v, keep, chunk, fade):
    state, read = k.new_zeros(k.shape[1], v.shape[1]), []
    for begin in range(0, len(q), chunk):
        rows = slice(begin, begin + chunk)
        place = torch.arange(len(q[rows]), dtype=q.dtype)
        mask = (keep ** (place[:, None] - place)).tril()
        read.append((q[rows] @ k[rows].mT * mask) @ v[rows] + fade(keep, place) * (q[rows] @ state))
        left = mask[-1, :, None]
        state = keep ** len(left) * state + (left * k[rows]).mT @ v[rows]
    return torch.cat(read)


@right("joined-chunks")
def chunks_mended(*given):
    return chunks_with(*given, lambda keep, place: keep ** (place[:, None] + 1))


@right("joined-chunks")
def chunks_as_a_mask(q, k, v, keep, chunk):
    place = torch.arange(len(q), dtype=q.dtype)
    return (q @ k.mT * (keep ** (place[:, None] - place)).tril()) @ v


@wrong("joined-chunks", "as it was at the border")
def chunks_as_given(*given):
    return chunks_with(*given, lambda keep, place: 1)


@wrong("joined-chunks", "one token too little")
def chunks_one_short(*given):
    return chunks_with(*given, lambda keep, place: keep ** place[:, None])


@wrong("joined-chunks", "Inside of a chunk nothing fades")
def chunks_level_inside(q, k, v, keep, chunk):
    state, read = k.new_zeros(k.shape[1], v.shape[1]), []
    for q_c, k_c, v_c in zip(q.split(chunk), k.split(chunk), v.split(chunk), strict=True):
        place = torch.arange(len(q_c), dtype=q.dtype)[:, None]
        read.append((q_c @ k_c.mT).tril() @ v_c + keep ** (place + 1) * (q_c @ state))
        left = keep ** (len(q_c) - 1 - place)
        state = keep ** len(q_c) * state + (left * k_c).mT @ v_c
    return torch.cat(read)


@wrong("joined-chunks", "not read at all")
def chunks_alone(*given):
    return chunks_with(*given, lambda keep, place: 0)


# found-by-place ---------------------------------------------------------------------------------


def places_with(k, v, keep, erase, write, order="fade, erase, write"):
    S = torch.zeros(len(k), k.shape[2], v.shape[2], dtype=k.dtype)
    for t in range(k.shape[1]):
        k_t, v_t = k[:, t, None], v[:, t, None]
        for part in order.split(", "):
            if part == "fade":
                S = keep * S
            elif part == "erase":
                S = S - erase * k_t.mT @ (k_t @ S)
            else:
                S = S + write * k_t.mT @ v_t
    return ((k @ S @ v.mT).argmax(-1) == torch.arange(k.shape[1])).double().mean(0)


@right("found-by-place")
def places_by_a_loop(k, v, keep, erase, write):
    return places_with(k, v, keep, erase, write)


@right("found-by-place")
def places_by_a_matrix(k, v, keep, erase, write):
    S = torch.zeros(len(k), k.shape[2], v.shape[2], dtype=k.dtype)
    for t in range(k.shape[1]):
        k_t = k[:, t, :, None]
        S = keep * (torch.eye(k.shape[2], dtype=k.dtype) - erase * k_t @ k_t.mT) @ S
        S = S + write * k_t @ v[:, t, None]
    return ((k @ S @ v.mT).argmax(-1) == torch.arange(k.shape[1])).float().mean(0)


@wrong("found-by-place", "not multiplied by keep")
def places_without_fading(*given):
    return places_with(*given, order="erase, write")


@wrong("found-by-place", "not taken off")
def places_without_erasing(*given):
    return places_with(*given, order="fade, write")


@wrong("found-by-place", "before erasing")
def places_written_first(*given):
    return places_with(*given, order="fade, write, erase")


@wrong("found-by-place", "asked for as soon as")
def places_asked_at_once(k, v, keep, erase, write):
    S, found = torch.zeros(len(k), k.shape[2], v.shape[2], dtype=k.dtype), []
    for t in range(k.shape[1]):
        k_t = k[:, t, None]
        S = keep * S
        S = S - erase * k_t.mT @ (k_t @ S) + write * k_t.mT @ v[:, t, None]
        found.append(((k_t @ S @ v.mT).argmax(-1)[:, 0] == t).double().mean())
    return torch.stack(found)


# hybrid-layers ----------------------------------------------------------------------------------


@right("hybrid-layers")
def layers_by_trying(n_layers, cache_per_token, state, length, room):
    fits = [
        a
        for a in range(n_layers + 1)
        if a * cache_per_token * length + (n_layers - a) * state <= room
    ]
    a = max(fits)
    return ["attention" if (i - 1) * a % n_layers < a else "state" for i in range(n_layers)]


@right("hybrid-layers")
def layers_by_a_formula(n_layers, cache_per_token, state, length, room):
    more = cache_per_token * length - state
    a = n_layers if more <= 0 else min(n_layers, (room - n_layers * state) // more)
    places = {(-(-n_layers * j // a) + 1) % n_layers for j in range(a)}
    return ["attention" if i in places else "state" for i in range(n_layers)]


def counted(n_layers, cache, state, room, others):
    return max(a for a in range(n_layers + 1) if a * cache + others(a) * state <= room)


def spread(a, n_layers):
    return layers_by_trying(n_layers, 1, 0, 1, a)


@wrong("hybrid-layers", "cache of one token")
def layers_of_one_token(n_layers, cache_per_token, state, length, room):
    return layers_by_trying(n_layers, cache_per_token, state, 1, room)


@wrong("hybrid-layers", "was forgotten")
def layers_with_free_states(n_layers, cache_per_token, state, length, room):
    return layers_by_trying(n_layers, cache_per_token, 0, length, room)


@wrong("hybrid-layers", "was counted as well")
def layers_with_all_states(n_layers, cache_per_token, state, length, room):
    a = counted(n_layers, cache_per_token * length, state, room, lambda a: n_layers)
    return spread(a, n_layers)


@wrong("hybrid-layers", "all attention stands in front")
def layers_in_front(*given):
    return sorted(layers_by_trying(*given))


@wrong("hybrid-layers", "all attention stands behind")
def layers_behind(*given):
    return sorted(layers_by_trying(*given), reverse=True)


@wrong("hybrid-layers", "attention begins with the first layer")
def layers_from_the_first(*given):
    chosen = layers_by_trying(*given)
    return chosen[1:] + chosen[:1]


@wrong("hybrid-layers", "attention ends with the last layer")
def layers_to_the_last(*given):
    chosen = layers_by_trying(*given)
    return chosen[2:] + chosen[:2]
