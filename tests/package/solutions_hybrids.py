"""Right and wrong answers to the exercises of chapter 09.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import torch
from answers import collect

from tfbook.attention import state_recurrent
from tfbook.recurrent import delta_recurrent

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "delta-state": lambda keys, values, keep, beta: delta_recurrent(
        keys, keys, values, beta, log_decay=keep.log()
    )[1],
    "joined-chunks": lambda q, k, v, keep, chunk: state_recurrent(
        q, k, v, log_decay=torch.full((len(q),), keep, dtype=q.dtype).log()
    )[0],
}


# delta-state ------------------------------------------------------------------------------------


@right("delta-state")
def delta_by_rows(keys, values, keep, beta):
    state = torch.zeros(keys.shape[1], values.shape[1], dtype=keys.dtype)
    for k, v, g, b in zip(keys, values, keep, beta, strict=True):
        state = g * state
        state = state + torch.outer(k, b * (v - k @ state))
    return state


@right("delta-state")
def delta_by_matrices(keys, values, keep, beta):
    eye = torch.eye(keys.shape[1], dtype=keys.dtype)
    state = torch.zeros(keys.shape[1], values.shape[1], dtype=keys.dtype)
    for k, v, g, b in zip(keys[:, :, None], values[:, None], keep, beta, strict=True):
        state = (eye - b * k @ k.mT) @ (g * state) + b * k @ v
    return state


def delta_with(step):
    def made(keys, values, keep, beta):
        state = torch.zeros(keys.shape[1], values.shape[1], dtype=keys.dtype)
        for row in zip(keys, values, keep, beta, strict=True):
            state = step(state, *row)
        return state

    return made


@wrong("delta-state", "does not fade")
def delta_without_fading(*given):
    return delta_with(lambda s, k, v, g, b: s + torch.outer(k, b * (v - k @ s)))(*given)


@wrong("delta-state", "were only added")
def delta_adding(*given):
    return delta_with(lambda s, k, v, g, b: g * s + torch.outer(k, b * v))(*given)


@wrong("delta-state", "before the state had faded")
def delta_reading_early(*given):
    return delta_with(lambda s, k, v, g, b: g * s + torch.outer(k, b * (v - k @ s)))(*given)


@wrong("delta-state", "on the value alone")
def delta_half(*given):
    return delta_with(lambda s, k, v, g, b: g * s + torch.outer(k, b * v - k @ (g * s)))(*given)


@wrong("delta-state", "beta is missing")
def delta_whole(*given):
    return delta_with(lambda s, k, v, g, b: g * s + torch.outer(k, v - k @ (g * s)))(*given)


@wrong("delta-state", "(d, e)")
def delta_turned(*given):
    return delta_by_rows(*given).mT


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


# hybrid-layers ----------------------------------------------------------------------------------


@right("hybrid-layers")
def layers_by_trying(n_layers, cache_per_token, state, length, room):
    fits = [
        a
        for a in range(n_layers + 1)
        if a * cache_per_token * length + (n_layers - a) * state <= room
    ]
    a = max(fits)
    return ["attention" if i * a % n_layers < a else "state" for i in range(n_layers)]


@right("hybrid-layers")
def layers_by_a_formula(n_layers, cache_per_token, state, length, room):
    more = cache_per_token * length - state
    a = n_layers if more <= 0 else min(n_layers, (room - n_layers * state) // more)
    places = {-(-n_layers * j // a) for j in range(a)}
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


@wrong("hybrid-layers", "the first layer comes first")
def layers_from_the_last(*given):
    return layers_by_trying(*given)[::-1]
