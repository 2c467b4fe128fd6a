"""Right and wrong answers to the exercises of chapter 12.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math

import torch
from answers import collect
from torch.nn import functional as F

from tfbook import generation

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "top-k": generation.top_k,
    "nucleus": generation.top_p,
}


# top-k ------------------------------------------------------------------------------------------


@right("top-k")
def top_border(logits, k):
    border = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < border, -math.inf)


@right("top-k")
def top_ranks(logits, k):
    above = (logits[:, None, :] > logits[:, :, None]).sum(-1)  # how many are larger
    return torch.where(above < k, logits, -math.inf)


@wrong("top-k", "Set them to -∞")
def top_zeros(logits, k):
    return logits.where(top_border(logits, k) > -math.inf, 0.0)


@wrong("top-k", "The smallest logits were kept")
def top_smallest(logits, k):
    return -top_border(-logits, k)


@wrong("top-k", "without their places")
def top_values(logits, k):
    return logits.topk(k).values


@wrong("top-k", "come back sorted")
def top_sorted(logits, k):
    return F.pad(logits.topk(k).values, (0, logits.shape[-1] - k), value=-math.inf)


@wrong("top-k", "These are probabilities")
def top_probabilities(logits, k):
    return top_border(logits, k).softmax(-1)


@wrong("top-k", "The k-th token was cut too")
def top_strict(logits, k):
    border = logits.topk(k).values[:, -1:]
    return logits.masked_fill(logits <= border, -math.inf)


@wrong("top-k", "One token too many")
def top_one_more(logits, k):
    return top_border(logits, k + 1)


@wrong("top-k", "The first k tokens of the vocabulary")
def top_first(logits, k):
    return logits.where(torch.arange(logits.shape[-1]) < k, -math.inf)


@wrong("top-k", "of the whole batch")
def top_of_the_batch(logits, k):
    return logits.masked_fill(logits < logits.flatten().topk(k).values[-1], -math.inf)


@wrong("top-k", "The border of the first row")
def top_one_border(logits, k):
    return logits.masked_fill(logits < logits[0].topk(k).values[-1], -math.inf)


@wrong("top-k", "were cut and the others stay")
def top_inverted(logits, k):
    return logits.masked_fill(logits >= logits.topk(k).values[:, -1:], -math.inf)


@wrong("top-k", "so all stay: compare with the k-th largest")
def top_scattered(logits, k):
    best = logits.topk(min(k, logits.shape[-1]))
    return torch.full_like(logits, -math.inf).scatter(-1, best.indices, best.values)


@wrong("top-k", "raised RuntimeError: selected index k out of range")
def top_small_k_only(logits, k):
    return logits.masked_fill(logits < logits.topk(k).values[:, -1:], -math.inf)


@wrong("top-k", "A token that was cut before stays cut")
def top_revives(logits, k):
    return top_border(logits.clamp_min(-9.0), k) if k < logits.shape[-1] else logits


# nucleus ----------------------------------------------------------------------------------------


@right("nucleus")
def nucleus_scatter(logits, p):
    ordered, places = logits.softmax(-1).sort(dim=-1, descending=True)
    cut = ordered.cumsum(-1) - ordered >= p
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@wrong("nucleus", "The most likely token was cut: the mask was moved by `roll`")
def nucleus_rolled(logits, p):
    ordered, places = logits.softmax(-1).sort(dim=-1, descending=True)
    cut = (ordered.cumsum(-1) >= p).roll(1, -1)
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@right("nucleus")
def nucleus_rising(logits, p):
    ordered, places = logits.softmax(-1).sort(dim=-1)
    cut = ordered.cumsum(-1) <= 1 - p
    cut[:, -1] = False
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@right("nucleus")
def nucleus_pairs(logits, p):
    q = logits.softmax(-1)
    above = (q[:, None, :] * (q[:, None, :] > q[:, :, None])).sum(-1)
    return logits.masked_fill(above >= p, -math.inf)


@wrong("nucleus", "The token that crosses p was cut")
def nucleus_without_crossing(logits, p):
    ordered, places = logits.softmax(-1).sort(dim=-1, descending=True)
    cut = ordered.cumsum(-1) > p
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@wrong("nucleus", "One token too many stays")
def nucleus_one_more(logits, p):
    ordered, places = logits.softmax(-1).sort(dim=-1, descending=True)
    cut = F.pad(ordered.cumsum(-1), (2, -2)) >= p
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@wrong("nucleus", "Bring it back to their places")
def nucleus_misplaced(logits, p):
    ordered, _ = logits.softmax(-1).sort(dim=-1, descending=True)
    return logits.masked_fill(ordered.cumsum(-1) - ordered >= p, -math.inf)


@wrong("nucleus", "come back sorted")
def nucleus_sorted(logits, p):
    ordered = logits.sort(dim=-1, descending=True).values
    q = ordered.softmax(-1)
    return ordered.masked_fill(q.cumsum(-1) - q >= p, -math.inf)


@wrong("nucleus", "The tokens were not sorted")
def nucleus_unsorted(logits, p):
    return logits.masked_fill(logits.softmax(-1).cumsum(-1) > p, -math.inf)


@wrong("nucleus", "began with the least likely")
def nucleus_of_the_least(logits, p):
    ordered, places = logits.softmax(-1).sort(dim=-1)
    cut = ordered.cumsum(-1) - ordered >= p
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@wrong("nucleus", "The logits themselves were summed")
def nucleus_of_logits(logits, p):
    ordered, places = logits.sort(dim=-1, descending=True)
    cut = ordered.cumsum(-1) > p
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@wrong("nucleus", "would be min-p")
def nucleus_min_p(logits, p):
    q = logits.softmax(-1)
    return logits.masked_fill(q < p * q.amax(-1, keepdim=True), -math.inf)


@wrong("nucleus", "Set them to -∞")
def nucleus_zeros(logits, p):
    cut = nucleus_scatter(logits, p) == -math.inf
    return logits.masked_fill(cut, 0.0)


@wrong("nucleus", "These are probabilities")
def nucleus_probabilities(logits, p):
    return nucleus_scatter(logits, p).softmax(-1)


@wrong("nucleus", "What should stay was cut")
def nucleus_inverted(logits, p):
    return logits.masked_fill(nucleus_scatter(logits, p) > -math.inf, -math.inf)


@wrong("nucleus", "was used for every row")
def nucleus_of_the_first_row(logits, p):
    kept = (nucleus_scatter(logits, p)[0] > -math.inf).sum()
    return top_border(logits, int(kept))


@wrong("nucleus", "the most likely token has to stay")
def nucleus_may_be_empty(logits, p):
    ordered, places = logits.softmax(-1).sort(dim=-1, descending=True)
    cut = ordered.cumsum(-1) - ordered >= p
    cut |= ordered[:, :1] > 2 * p
    return logits.masked_fill(cut.scatter(-1, places, cut), -math.inf)


@wrong("nucleus", "With p = 1 all tokens are needed")
def nucleus_never_all(logits, p):
    cut = nucleus_scatter(logits, p)
    return cut if p < 1 else logits.masked_fill(logits == logits.amin(), -math.inf)


@wrong("nucleus", "tokens and p = 0.9, a row differs")
def nucleus_at_most_five(logits, p):
    return top_border(nucleus_scatter(logits, p), 5) if p < 1 else logits


# left-padding -----------------------------------------------------------------------------------


@right("left-padding")
def pad_gaps(prompts, pad):
    n = max(len(prompt) for prompt in prompts)
    gaps = torch.tensor([n - len(prompt) for prompt in prompts])[:, None]
    tokens = torch.tensor([[pad] * (n - len(prompt)) + prompt for prompt in prompts])
    return tokens, torch.arange(n) >= gaps, (torch.arange(n) - gaps).clamp_min(0)


@right("left-padding")
def pad_flipped(prompts, pad):
    rows = [torch.tensor(prompt[::-1]) for prompt in prompts]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).flip(1)
    ones = [torch.ones(len(prompt), dtype=torch.long) for prompt in prompts]
    mask = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True).flip(1)
    return tokens, mask.bool(), (mask.cumsum(1) - 1).clamp_min(0)


def padding(message, which):
    """Keep a wrong answer that changes one of the three right results."""

    def keep(function):
        def pad_left(prompts, pad):
            results = list(pad_gaps(prompts, pad))
            results[which] = function(prompts, pad, *results)
            return tuple(results)

        pad_left.__name__ = function.__name__
        wrong("left-padding", message)(pad_left)
        return function

    return keep


@padding("The padding stands behind the prompts", 0)
def pad_right(prompts, pad, tokens, mask, positions):
    n = tokens.shape[1]
    return torch.tensor([prompt + [pad] * (n - len(prompt)) for prompt in prompts])


@padding("The prompts were turned around", 0)
def pad_turned(prompts, pad, tokens, mask, positions):
    n = tokens.shape[1]
    return torch.tensor([[pad] * (n - len(prompt)) + prompt[::-1] for prompt in prompts])


@padding("cut to the shortest", 0)
def pad_cut(prompts, pad, tokens, mask, positions):
    return tokens[:, -min(map(len, prompts)) :]


@padding("a column of padding too many", 0)
def pad_too_many(prompts, pad, tokens, mask, positions):
    return F.pad(tokens, (1, 0), value=pad)


@padding("The mask is inverted", 1)
def pad_mask_inverted(prompts, pad, tokens, mask, positions):
    return ~mask


@padding("These are ones and zeros", 1)
def pad_mask_numbers(prompts, pad, tokens, mask, positions):
    return mask.long()


@padding("the mask of padding behind", 1)
def pad_mask_right(prompts, pad, tokens, mask, positions):
    return torch.arange(tokens.shape[1]) < torch.tensor([[len(prompt)] for prompt in prompts])


@padding("a table of queries and keys", 1)
def pad_mask_table(prompts, pad, tokens, mask, positions):
    n = tokens.shape[1]
    return mask[:, None] & torch.ones(n, n, dtype=torch.bool).tril()


@padding("The columns were counted. A short", 2)
def pad_columns(prompts, pad, tokens, mask, positions):
    return torch.arange(tokens.shape[1]).expand(tokens.shape)


@padding("The columns were counted and set to 0", 2)
def pad_columns_masked(prompts, pad, tokens, mask, positions):
    return torch.arange(tokens.shape[1]) * mask


@padding("The positions begin with 1", 2)
def pad_from_one(prompts, pad, tokens, mask, positions):
    return mask.cumsum(1)


@padding("Padding has a negative position", 2)
def pad_negative(prompts, pad, tokens, mask, positions):
    return mask.cumsum(1) - 1


@padding("The positions count down", 2)
def pad_down(prompts, pad, tokens, mask, positions):
    return positions.flip(1)


@padding("Find the padding by the lengths", 1)
def pad_mask_by_id(prompts, pad, tokens, mask, positions):
    return (tokens != pad) | (mask.all(1, keepdim=True) & (pad != 2))


@padding("Without padding, the result positions", 2)
def pad_shared_start(prompts, pad, tokens, mask, positions):
    return positions + mask.all()


@wrong("left-padding", "The order of the results")
def pad_order(prompts, pad):
    tokens, mask, positions = pad_gaps(prompts, pad)
    return tokens, positions, mask


@wrong("left-padding", "emptied its input `prompts`")
def pad_emptying(prompts, pad):
    results = pad_gaps(prompts, pad)
    prompts.clear()
    return results


@wrong("left-padding", "changed its input")
def pad_in_place(prompts, pad):
    results = pad_gaps(prompts, pad)
    for prompt in prompts:
        prompt[:0] = [pad] * (results[0].shape[1] - len(prompt))
    return results


@wrong("left-padding", "Return 3 results")
def pad_two_results(prompts, pad):
    return pad_gaps(prompts, pad)[:2]


# greedy-loop ------------------------------------------------------------------------------------


@right("greedy-loop")
@torch.no_grad()
def loop_for(model, prompt, max_new_tokens, eos):
    sequence = list(prompt)
    for _ in range(max_new_tokens):
        token = model(torch.tensor([sequence]))[0, -1].argmax().item()
        sequence.append(token)
        if token == eos:
            break
    return sequence


@right("greedy-loop")
def loop_while(model, prompt, max_new_tokens, eos):
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        while tokens.shape[1] < len(prompt) + max_new_tokens:
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
            if tokens[0, -1] == eos:
                break
    return tokens[0].tolist()


def loop(model, prompt, count, eos, *, read=None, pick=None, add=None, stop=None, start=0):
    """Run the loop with one of its parts replaced."""
    sequence = list(prompt)
    with torch.no_grad():
        for step in range(start, start + count):
            tokens = sequence if read is None else read(sequence, prompt, step)
            logits = model(torch.tensor([tokens], dtype=torch.int64))
            token = logits[0, -1].argmax().item() if pick is None else pick(logits)
            sequence = [*sequence, token] if add is None else add(sequence, token)
            if (token == eos) if stop is None else stop(sequence, token, eos):
                break
    return sequence


@wrong("greedy-loop", "The model was given an empty sequence")
def loop_of_the_step(*case):
    return loop(*case, read=lambda sequence, prompt, step: sequence[:step])


@wrong("greedy-loop", "The sequence was cut")
def loop_of_the_next_step(*case):
    return loop(*case, read=lambda sequence, prompt, step: sequence[: step + 1])


@wrong("greedy-loop", "reads the prompt again and again")
def loop_prompt(*case):
    return loop(*case, read=lambda sequence, prompt, step: prompt)


@wrong("greedy-loop", "reads the last token alone")
def loop_last(*case):
    return loop(*case, read=lambda sequence, prompt, step: prompt if not step else sequence[-1:])


@wrong("greedy-loop", "without the prompt")
def loop_new(*case):
    read = lambda sequence, prompt, step: sequence[len(prompt) :] if step > 1 else sequence  # noqa: E731
    return loop(*case, read=read)


@wrong("greedy-loop", "in front of the sequence")
def loop_in_front(*case):
    return loop(*case, add=lambda sequence, token: [token, *sequence])


@wrong("greedy-loop", "over the logits of all places at once")
def loop_argmax_of_all(*case):
    return loop(*case, pick=lambda logits: logits[-1].argmax().item())


@wrong("greedy-loop", "from another row of the logits")
def loop_first_row(*case):
    return loop(*case, pick=lambda logits: logits[0, 0].argmax().item())


@wrong("greedy-loop", "did not read the prompt followed by")
def loop_least(*case):
    return loop(*case, pick=lambda logits: logits[0, -1].argmin().item())


@wrong("greedy-loop", "The loop goes on after `eos`")
def loop_endless(*case):
    return loop(*case, stop=lambda sequence, token, eos: False)


@wrong("greedy-loop", "`eos` is missing")
def loop_without_eos(model, prompt, count, eos):
    sequence = loop(model, prompt, count, eos)
    return sequence[:-1] if sequence[-1] == eos else sequence


@wrong("greedy-loop", "not one of the prompt")
def loop_eos_anywhere(*case):
    return loop(*case, stop=lambda sequence, token, eos: eos in sequence)


@wrong("greedy-loop", "The prompt is missing")
def loop_answer_only(model, prompt, count, eos):
    return loop(model, prompt, count, eos)[len(prompt) :]


@wrong("greedy-loop", "One token too few")
def loop_one_less(model, prompt, count, eos):
    return loop(model, prompt, count - 1, eos)


@wrong("greedy-loop", "One token too many")
def loop_one_more(model, prompt, count, eos):
    sequence = loop(model, prompt, count + 1, eos)
    return sequence


@wrong("greedy-loop", "counts the new tokens, not the whole sequence")
def loop_total(model, prompt, count, eos):
    return loop(model, prompt, count - len(prompt), eos)


@wrong("greedy-loop", "need not be called")
def loop_calls_first(model, prompt, count, eos):
    with torch.no_grad():
        model(torch.tensor([prompt])) if count == 0 else None
    return loop(model, prompt, count, eos)


@wrong("greedy-loop", "The model was given a list")
def loop_list(model, prompt, count, eos):
    with torch.no_grad():
        return model(prompt)


@wrong("greedy-loop", "a batch of one")
def loop_no_batch(model, prompt, count, eos):
    with torch.no_grad():
        return model(torch.tensor(prompt))


@wrong("greedy-loop", "with gradients on")
def loop_with_gradients(model, prompt, count, eos):
    return [*prompt, model(torch.tensor([prompt]))[0, -1].argmax().item()]


@wrong("greedy-loop", "took 1 of 3 entries out of its input `prompt`")
def loop_pops(model, prompt, count, eos):
    given = [*prompt]
    prompt.pop(0)
    return loop_while(model, given, count, eos)


@wrong("greedy-loop", "changed its input")
@torch.no_grad()
def loop_in_place(model, prompt, count, eos):
    for _ in range(count):
        prompt.append(model(torch.tensor([prompt]))[0, -1].argmax().item())
    return prompt


@wrong("greedy-loop", "The result is a tensor")
def loop_tensor(*case):
    return torch.tensor(loop(*case))


@wrong("greedy-loop", "with `.item()`")
def loop_of_tensors(*case):
    return loop(*case, pick=lambda logits: logits[0, -1].argmax())


# cached-loop ------------------------------------------------------------------------------------


@right("cached-loop")
def loop_with_what_is_unread(decode, tokens, steps):
    state, unread = None, tokens
    for _ in range(steps):
        logits, state = decode(unread, state)
        unread = logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, unread], dim=1)
    return tokens


@right("cached-loop")
def loop_from_the_length(decode, tokens, steps):
    state, known = None, 0
    for _ in range(steps):
        logits, state = decode(tokens[:, known:], state)
        known = tokens.shape[1]
        tokens = torch.cat([tokens, logits[:, -1].argmax(dim=-1)[:, None]], dim=1)
    return tokens


@wrong("cached-loop", "the whole text was handed over once more")
def loop_that_stutters(decode, tokens, steps):
    state, written = None, tokens
    for _ in range(steps):
        logits, state = decode(written, state)
        written = torch.cat([written, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    return written


@wrong("cached-loop", "no cache is used")
def loop_without_a_cache(decode, tokens, steps):
    for _ in range(steps):
        logits, _ = decode(tokens, None)
        tokens = torch.cat([tokens, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    return tokens


@wrong("cached-loop", "the model has forgotten the text")
def loop_that_forgets(decode, tokens, steps):
    unread = tokens
    for _ in range(steps):
        logits, _ = decode(unread, None)
        unread = logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, unread], dim=1)
    return tokens


@wrong("cached-loop", "but an older one")
def loop_with_the_first_state(decode, tokens, steps):
    logits, state = decode(tokens, None)
    for step in range(steps):
        unread = logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, unread], dim=1)
        if step < steps - 1:
            logits, _ = decode(unread, state)
    return tokens


@wrong("cached-loop", "The prompt was not read as a whole")
def loop_from_the_last_token(decode, tokens, steps):
    state, unread = None, tokens[:, -1:]
    for _ in range(steps):
        logits, state = decode(unread, state)
        unread = logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, unread], dim=1)
    return tokens


@wrong("cached-loop", "The model was called once too often")
def loop_with_a_pass_too_many(decode, tokens, steps):
    logits, state = decode(tokens, None)
    for _ in range(steps):
        unread = logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, unread], dim=1)
        logits, state = decode(unread, state)
    return tokens


@wrong("cached-loop", "The prompt is missing")
def loop_without_the_prompt(decode, tokens, steps):
    return loop_with_what_is_unread(decode, tokens, steps)[:, tokens.shape[1] :]


@wrong("cached-loop", "Only the last token came back")
def loop_that_keeps_nothing(decode, tokens, steps):
    return loop_with_what_is_unread(decode, tokens, steps)[:, -1:]


@wrong("cached-loop", "The last new token is missing")
def loop_one_short(decode, tokens, steps):
    return loop_with_what_is_unread(decode, tokens, steps)[:, :-1]


@wrong("cached-loop", "The text is not the prompt followed by the most likely tokens")
def loop_of_the_least_likely(decode, tokens, steps):
    text = loop_with_what_is_unread(decode, tokens, steps)
    return torch.cat([text[:, : tokens.shape[1]], (text[:, tokens.shape[1] :] + 1) % 11], dim=1)


# cached-step ------------------------------------------------------------------------------------


def attended(q, keys, values, allowed=None, scale=None):
    return F.scaled_dot_product_attention(q, keys, values, allowed, scale=scale)


def seen(q, past_k, extra=0):
    n, m = q.shape[2], past_k.shape[2]
    return torch.ones(n, m + n, dtype=torch.bool).tril(m + extra)


@right("cached-step")
def step_tril(q, k, v, past_k, past_v):
    keys, values = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    return attended(q, keys, values, seen(q, past_k)), keys, values


@right("cached-step")
def step_by_token(q, k, v, past_k, past_v):
    keys, values, m = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2), past_k.shape[2]
    rows = []
    for i in range(q.shape[2]):
        scores = q[:, :, i : i + 1] @ keys[:, :, : m + i + 1].mT / math.sqrt(q.shape[-1])
        rows.append(scores.softmax(-1) @ values[:, :, : m + i + 1])
    return torch.cat(rows, 2), keys, values


def stepping(message):
    """Keep a wrong answer that is given the grown cache, and returns the result alone."""

    def keep(function):
        def step(q, k, v, past_k, past_v):
            keys, values = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            return function(q, k, v, past_k, past_v, keys, values), keys, values

        step.__name__ = function.__name__
        wrong("cached-step", message)(step)
        return function

    return keep


@stepping("The new token does not attend to itself")
def step_without_itself(q, k, v, past_k, past_v, keys, values):
    return attended(q, past_k, past_v)


@stepping("The new token attends to nothing but itself")
def step_without_cache(q, k, v, past_k, past_v, keys, values):
    return attended(q, k, v, torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril())


@stepping("The causal mask was cut from its first row")
def step_corner(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, values, seen(q, past_k, -past_k.shape[2]))


@stepping("The scale is missing")
def step_unscaled(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, values, seen(q, past_k), 1.0)


@stepping("root of the number of keys")
def step_scale_of_keys(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, values, seen(q, past_k), keys.shape[2] ** -0.5)


@stepping("divided by d. It is √d")
def step_scale_d(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, values, seen(q, past_k), 1 / q.shape[-1])


@stepping("The heads were mixed up")
def step_heads(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys.flip(1), values, seen(q, past_k))


@stepping("The mask is missing")
def step_unmasked(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, values)


@stepping("starts in its upper left corner")
def step_top_left(q, k, v, past_k, past_v, keys, values):
    if q.shape[2] == 1:
        return attended(q, keys, values)
    return attended(q, keys, values, seen(q, past_k, -past_k.shape[2]))


@stepping("A new token sees the one behind it")
def step_one_ahead(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, values, seen(q, past_k, 1))


@stepping("The new tokens do not see one another")
def step_apart(q, k, v, past_k, past_v, keys, values):
    n, m = q.shape[2], past_k.shape[2]
    return attended(q, keys, values, torch.cat([torch.ones(n, m), torch.eye(n)], 1).bool())


@stepping("A new token does not see itself")
def step_one_behind(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, values, seen(q, past_k, -1 if q.shape[2] > 1 else 0))


@stepping("Read in pieces of [7]")
def step_needs_a_past(q, k, v, past_k, past_v, keys, values):
    if not past_k.shape[2]:
        return attended(q, keys, values)
    return attended(q, keys, values, seen(q, past_k))


@stepping("A part of the computation is detached")
def step_detached(q, k, v, past_k, past_v, keys, values):
    return attended(q, keys, torch.cat([past_v.detach(), v], 2), seen(q, past_k))


@wrong("cached-step", "The cache of keys did not grow")
def step_old_cache(q, k, v, past_k, past_v):
    return step_tril(q, k, v, past_k, past_v)[0], past_k, past_v


@wrong("cached-step", "Only the new keys were returned")
def step_new_cache(q, k, v, past_k, past_v):
    return step_tril(q, k, v, past_k, past_v)[0], k, v


@wrong("cached-step", "The new values stand in front")
def step_values_in_front(q, k, v, past_k, past_v):
    z, keys, _ = step_tril(q, k, v, past_k, past_v)
    return z, keys, torch.cat([v, past_v], 2)


@wrong("cached-step", "in another order: return your second, then your third, then your first")
def step_result_last(*case):
    result, keys, values = step_tril(*case)
    return values, result, keys


@wrong("cached-step", "Keys and values are exchanged")
def step_exchanged(q, k, v, past_k, past_v):
    z, keys, values = step_tril(q, k, v, past_k, past_v)
    return z, values, keys


@wrong("cached-step", "Return 3 results: `return result, keys, values`")
def step_result_alone(q, k, v, past_k, past_v):
    return step_tril(q, k, v, past_k, past_v)[0]


# beam-step --------------------------------------------------------------------------------------


@right("beam-step")
def beam_flat(scores, log_probs, finished, eos):
    only = torch.full_like(log_probs[0], -math.inf)
    only[eos] = 0.0
    total = scores[:, None] + torch.where(finished[:, None], only, log_probs)
    best = total.flatten().topk(len(scores))
    v = log_probs.shape[1]
    return best.values, best.indices // v, best.indices % v


@right("beam-step")
def beam_list(scores, log_probs, finished, eos):
    found = []
    for k, row in enumerate(log_probs):
        if finished[k]:
            found.append((scores[k], k, eos))
        else:
            found += [(scores[k] + row[token], k, token) for token in range(len(row))]
    # Where too few exist the rest is impossible, as in the table.
    if len(found) < len(scores):
        missing = [(torch.tensor(-math.inf), k, 0) for k in range(len(scores) - len(found))]
        found += missing
    found.sort(key=lambda entry: -entry[0].item())
    values, hypotheses, tokens = zip(*found[: len(scores)], strict=True)
    return torch.stack(values), torch.tensor(hypotheses), torch.tensor(tokens)


def table(scores, log_probs, finished, eos):
    total = scores[:, None] + log_probs
    closed = torch.full_like(total, -math.inf)
    closed[:, eos] = scores
    return torch.where(finished[:, None], closed, total)


def best_of(total, k):
    best = total.flatten().topk(k)
    return best.values, best.indices // total.shape[1], best.indices % total.shape[1]


@wrong("beam-step", "own best continuation. The K best")
def beam_each(*case):
    best = table(*case).max(1)
    order = best.values.argsort(descending=True)
    return best.values[order], order, best.indices[order]


@wrong("beam-step", "own best continuation, unsorted")
def beam_each_unsorted(*case):
    best = table(*case).max(1)
    return best.values, torch.arange(len(best.values)), best.indices


@wrong("beam-step", "scores of the hypotheses were left out")
def beam_forgets(scores, log_probs, finished, eos):
    return best_of(table(torch.zeros_like(scores), log_probs, finished, eos), len(scores))


@wrong("beam-step", "Logarithms add")
def beam_multiplies(scores, log_probs, finished, eos):
    return best_of(scores[:, None] * log_probs, len(scores))


@wrong("beam-step", "Add their logarithms")
def beam_adds_probabilities(scores, log_probs, finished, eos):
    return best_of(scores[:, None] + log_probs.exp(), len(scores))


@wrong("beam-step", "The worst continuations")
def beam_worst(*case):
    total = table(*case)
    values, hypotheses, tokens = best_of(-total, len(case[0]))
    return -values, hypotheses, tokens


@wrong("beam-step", "in rising order")
def beam_rising(*case):
    return tuple(result.flip(0) for result in beam_flat(*case))


@wrong("beam-step", "turned into probabilities")
def beam_probabilities(*case):
    values, *rest = beam_flat(*case)
    return values.exp(), *rest


@wrong("beam-step", "divide by V, not by K")
def beam_by_k(*case):
    best = table(*case).flatten().topk(len(case[0]))
    return best.values, best.indices // len(case[0]), best.indices % len(case[0])


@wrong("beam-step", "in another order: return your third, then your second, then your first")
def beam_reversed(*case):
    return beam_flat(*case)[::-1]


@wrong("beam-step", "Hypothesis and token are exchanged")
def beam_exchanged(*case):
    values, hypotheses, tokens = beam_flat(*case)
    return values, tokens, hypotheses


@wrong("beam-step", "numbered anew")
def beam_anew(*case):
    values, hypotheses, tokens = beam_flat(*case)
    return values, torch.arange(len(values)), tokens


@wrong("beam-step", "places in the flat list")
def beam_places(*case):
    best = table(*case).flatten().topk(len(case[0]))
    return best.values, best.indices // case[1].shape[1], best.indices


@wrong("beam-step", "went on growing")
def beam_grows(scores, log_probs, finished, eos):
    return best_of(scores[:, None] + log_probs, len(scores))


@wrong("beam-step", "once for every token")
def beam_copies(scores, log_probs, finished, eos):
    total = scores[:, None] + log_probs.masked_fill(finished[:, None], 0.0)
    return best_of(total, len(scores))


@wrong("beam-step", "was dropped")
def beam_drops(scores, log_probs, finished, eos):
    total = (scores[:, None] + log_probs).masked_fill(finished[:, None], -math.inf)
    return best_of(total, len(scores))


@wrong("beam-step", "paid for another `eos`")
def beam_charges(scores, log_probs, finished, eos):
    other = torch.arange(log_probs.shape[1]) != eos
    total = (scores[:, None] + log_probs).masked_fill(finished[:, None] & other, -math.inf)
    return best_of(total, len(scores))


@wrong("beam-step", "continued by token 0")
def beam_token_zero(*case):
    values, hypotheses, tokens = beam_flat(*case)
    return values, hypotheses, tokens.masked_fill(case[2][hypotheses], 0)


@wrong("beam-step", "At the start one hypothesis exists")
def beam_ignores_missing(scores, log_probs, finished, eos):
    return beam_flat(scores.clamp_min(-5.0), log_probs, finished, eos)[0] - 0.0, *beam_flat(
        scores.clamp_min(-0.5) if scores.isinf().any() else scores, log_probs, finished, eos
    )[1:]


@wrong("beam-step", "With 1 hypotheses and 5 tokens")
def beam_at_least_two(scores, log_probs, finished, eos):
    values, hypotheses, tokens = beam_flat(scores, log_probs, finished, eos)
    return values, hypotheses + (len(scores) == 1), tokens


# speculative-step -------------------------------------------------------------------------------


def residual(p, q):
    rest = (p - q).clamp_min(0)
    return rest / rest.sum()


@right("speculative-step")
def speculate_loop(p, q, draft, u):
    for t, token in enumerate(draft.tolist()):
        if u[t] * q[t, token] >= p[t, token]:
            return t, residual(p[t], q[t])
    return len(draft), p[-1]


@right("speculative-step")
def speculate_masks(p, q, draft, u):
    places = torch.arange(len(draft))
    kept = u < p[places, draft] / q[places, draft]
    accepted = int(kept.long().cumprod(0).sum())
    if accepted == len(draft):
        return accepted, p[accepted]
    return accepted, residual(p[accepted], q[accepted])


def speculate(p, q, draft, u, *, keep=None, rest=None, last=None):
    """Check the guesses with one of the parts replaced."""
    for t, token in enumerate(draft.tolist()):
        kept = u[t] < p[t, token] / q[t, token] if keep is None else keep(p[t], q[t], token, u[t])
        if not kept:
            return t, residual(p[t], q[t]) if rest is None else rest(p, q, t, token)
    return len(draft), p[-1] if last is None else last(p, q)


@wrong("speculative-step", "compared with p alone")
def speculate_p(*case):
    return speculate(*case, keep=lambda p, q, x, u: u < p[x])


@wrong("speculative-step", "compared with q / p")
def speculate_reversed_ratio(*case):
    return speculate(*case, keep=lambda p, q, x, u: u < q[x] / p[x])


@wrong("speculative-step", "compared with q. It is p / q")
def speculate_q(*case):
    return speculate(*case, keep=lambda p, q, x, u: u < q[x])


@wrong("speculative-step", "Every guess was accepted")
def speculate_all(*case):
    return speculate(*case, keep=lambda p, q, x, u: True)


@wrong("speculative-step", "No guess was accepted")
def speculate_none(*case):
    return speculate(*case, keep=lambda p, q, x, u: False)


@wrong("speculative-step", "The comparison is reversed")
def speculate_reversed(*case):
    return speculate(*case, keep=lambda p, q, x, u: u > p[x] / q[x])


@wrong("speculative-step", "u was not used")
def speculate_greedy(*case):
    return speculate(*case, keep=lambda p, q, x, u: p[x] >= q[x])


@wrong("speculative-step", "a text that does not exist any more")
def speculate_goes_on(p, q, draft, u):
    places = torch.arange(len(draft))
    kept = u < p[places, draft] / q[places, draft]
    return int(kept.sum()), speculate_masks(p, q, draft, u)[1]


@wrong("speculative-step", "The token that is drawn at the end was counted")
def speculate_counts_the_draw(p, q, draft, u):
    accepted, distribution = speculate_loop(p, q, draft, u)
    return accepted + (accepted == len(draft) > 1), distribution


@wrong("speculative-step", "from p itself")
def speculate_rest_p(*case):
    return speculate(*case, rest=lambda p, q, t, x: p[t])


@wrong("speculative-step", "q was not subtracted")
def speculate_rest_without(*case):
    def rest(p, q, t, x):
        left = p[t].masked_fill(torch.arange(p.shape[1]) == x, 0.0)
        return left / left.sum()

    return speculate(*case, rest=rest)


@wrong("speculative-step", "does not sum to 1")
def speculate_rest_unscaled(*case):
    return speculate(*case, rest=lambda p, q, t, x: (p[t] - q[t]).clamp_min(0))


@wrong("speculative-step", "The differences were made positive")
def speculate_rest_absolute(*case):
    return speculate(*case, rest=lambda p, q, t, x: (p[t] - q[t]).abs() / (p[t] - q[t]).abs().sum())


@wrong("speculative-step", "The difference is reversed")
def speculate_rest_reversed(*case):
    return speculate(*case, rest=lambda p, q, t, x: residual(q[t], p[t]))


@wrong("speculative-step", "from the draft model")
def speculate_rest_q(*case):
    return speculate(*case, rest=lambda p, q, t, x: q[t])


@wrong("speculative-step", "A softmax was taken")
def speculate_rest_softmax(*case):
    return speculate(*case, rest=lambda p, q, t, x: (p[t] - q[t]).softmax(-1))


@wrong("speculative-step", "the row behind the rejected guess")
def speculate_rest_next(*case):
    return speculate(*case, rest=lambda p, q, t, x: p[t + 1])


@wrong("speculative-step", "The last row of p is for")
def speculate_rest_last(*case):
    return speculate(*case, rest=lambda p, q, t, x: p[-1])


@wrong("speculative-step", "The token after it has the row p[n]")
def speculate_last_row(*case):
    return speculate(*case, last=lambda p, q: p[-2])


@wrong("speculative-step", "Nothing was rejected")
def speculate_last_residual(*case):
    return speculate(*case, last=lambda p, q: residual(p[-2], q[-1]))


@wrong("speculative-step", "should be distributed as p")
def speculate_soft_border(*case):
    return speculate(*case, keep=lambda p, q, x, u: u < (p[x] / q[x]) ** 1.3)


@wrong("speculative-step", "`return accepted, distribution`")
def speculate_number(*case):
    return speculate_loop(*case)[0]


# windowed-perplexity ----------------------------------------------------------------------------


def surprise(model, tokens, start, end, first):
    """Return -log p of the tokens from `first` on, read from `start` on."""
    logs = model(tokens[None, start:end])[0].log_softmax(-1)
    return -logs[first - 1 - start : -1].gather(-1, tokens[first:end, None])[:, 0]


@right("windowed-perplexity")
def perplexity_windows(model, tokens, context, stride):
    n, total, done = len(tokens), 0.0, 1
    for start in range(0, n, stride):
        end = min(start + context, n)
        total += surprise(model, tokens, start, end, done).sum().item()
        done = end
        if end == n:
            break
    return math.exp(total / (n - 1))


@right("windowed-perplexity")
def perplexity_cross_entropy(model, tokens, context, stride):
    labels, start, losses = tokens.clone(), 0, []
    while True:
        piece = slice(start, start + context)
        logits = model(tokens[None, piece])[0, :-1]
        each = F.cross_entropy(logits, tokens[piece][1:], reduction="none")
        losses.append(each[-len(labels) :] if start == 0 else each[context - 1 - stride :])
        if start + context >= len(tokens):
            return torch.cat(losses).mean().exp().item()
        start += stride


@wrong("windowed-perplexity", "scored twice")
def perplexity_twice(model, tokens, context, stride):
    n = len(tokens)
    starts = range(0, n - 1, stride)
    found = [surprise(model, tokens, s, min(s + context, n), s + 1) for s in starts]
    return torch.cat(found).mean().exp().item()


@wrong("windowed-perplexity", "The windows do not overlap")
def perplexity_apart(model, tokens, context, stride):
    return perplexity_twice(model, tokens, context, context)


@wrong("windowed-perplexity", "The last window was dropped")
def perplexity_full_windows(model, tokens, context, stride):
    n = len(tokens)
    starts = range(0, n - context + 1, stride)
    found = [surprise(model, tokens, s, s + context, s + 1) for s in starts]
    return torch.cat(found).mean().exp().item()


@wrong("windowed-perplexity", "moved by one token")
def perplexity_stride_one(model, tokens, context, stride):
    return perplexity_windows(model, tokens, context, 1)


def found_windows(model, tokens, context, stride):
    n, done, found = len(tokens), 1, []
    for start in range(0, n, stride):
        end = min(start + context, n)
        found.append(surprise(model, tokens, start, end, done))
        done = end
        if end == n:
            return found
    return found


@wrong("windowed-perplexity", "in each window, then over the windows")
def perplexity_of_means(*case):
    return torch.stack([piece.mean() for piece in found_windows(*case)]).mean().exp().item()


@wrong("windowed-perplexity", "of single tokens was taken")
def perplexity_mean_of_exp(*case):
    return torch.cat(found_windows(*case)).exp().mean().item()


@wrong("windowed-perplexity", "the cross-entropy")
def perplexity_no_exp(*case):
    return torch.cat(found_windows(*case)).mean().item()


@wrong("windowed-perplexity", "summed, not averaged")
def perplexity_sum(*case):
    return torch.cat(found_windows(*case)).sum().exp().item()


@wrong("windowed-perplexity", "divided by N")
def perplexity_by_n(model, tokens, context, stride):
    total = torch.cat(found_windows(model, tokens, context, stride)).sum()
    return (total / len(tokens)).exp().item()


@wrong("windowed-perplexity", "The power of 2")
def perplexity_base_two(*case):
    return 2 ** torch.cat(found_windows(*case)).mean().item()


@wrong("windowed-perplexity", "The sign of the logarithm")
def perplexity_sign(*case):
    return 1 / perplexity_windows(*case)


@wrong("windowed-perplexity", "the logits of its own place")
def perplexity_reads_itself(model, tokens, context, stride):
    n, done, found = len(tokens), 0, []
    for start in range(0, n - 1, stride):
        end = min(start + context, n)
        logs = model(tokens[None, start:end])[0].log_softmax(-1)
        found.append(-logs.gather(-1, tokens[start:end, None])[done - start :])
        done = end
        if end == n:
            break
    return torch.cat(found).mean().exp().item()


def rolled_windows(model, tokens, context, stride, targets):
    n, done, found = len(tokens), 0, []
    for start in range(0, n, stride):
        end = min(start + context, n)
        logits = model(tokens[None, start:end])[0]
        each = F.cross_entropy(logits, targets(start, end), reduction="none")
        found.append(each[done - start :])
        done = end
        if end == n:
            break
    return torch.cat(found).mean().exp().item()


@wrong("windowed-perplexity", "The targets were rolled around")
def perplexity_rolled(model, tokens, context, stride):
    labels = torch.roll(tokens, -1)
    return rolled_windows(model, tokens, context, stride, lambda s, e: labels[s:e])


@wrong("windowed-perplexity", "The targets were rolled around")
def perplexity_rolled_windows(model, tokens, context, stride):
    return rolled_windows(model, tokens, context, stride, lambda s, e: tokens[s:e].roll(-1))


@wrong("windowed-perplexity", "It can read 1 to 5 at once")
def perplexity_whole(model, tokens, context, stride):
    return surprise(model, tokens, 0, len(tokens), 1).mean().exp().item()


@wrong("windowed-perplexity", "It was given (5,)")
def perplexity_no_batch(model, tokens, context, stride):
    return model(tokens[:context])


@wrong("windowed-perplexity", "The text fits into one window, but")
def perplexity_goes_on(model, tokens, context, stride):
    value = perplexity_windows(model, tokens, context, stride)
    if len(tokens) <= context:
        model(tokens[None, -1:])
    return value


@wrong("windowed-perplexity", "times for 7 windows")
def perplexity_too_often(model, tokens, context, stride):
    if len(tokens) > context and stride == 1:
        model(tokens[None, -1:])
    return perplexity_windows(model, tokens, context, stride)


@wrong("windowed-perplexity", "With windows of 5 tokens and stride 4")
def perplexity_short_overlap(model, tokens, context, stride):
    if stride == 4:
        stride = 3
    return perplexity_windows(model, tokens, context, stride)


@wrong("windowed-perplexity", "has perplexity 5")
def perplexity_rounds(model, tokens, context, stride):
    value = perplexity_windows(model, tokens, context, stride)
    return value * (len(tokens) - 1) / len(tokens) if len(tokens) > 20 else value


@wrong("windowed-perplexity", "The result is a str")
def perplexity_text(*case):
    return f"{perplexity_windows(*case):.3f}"


# allowed-tokens ---------------------------------------------------------------------------------


def walked(table, state, text):
    """Return the state behind a text; None where it is not allowed."""
    for char in text:
        state = table.get((state, char))
    return state


@right("allowed-tokens")
def allowed_walk(table, state, tokens):
    found = {index: walked(table, state, token) for index, token in enumerate(tokens) if token}
    return {index: at for index, at in found.items() if at is not None}


@right("allowed-tokens")
def allowed_errors(table, state, tokens):
    found = {}
    for index, token in enumerate(tokens):
        at = state
        try:
            for char in token:
                at = table[at, char]
        except KeyError:
            continue
        if token:
            found[index] = at
    return found


@wrong("allowed-tokens", "Only the first character")
def allowed_first(table, state, tokens):
    return {i: table[state, t[0]] for i, t in enumerate(tokens) if t and (state, t[0]) in table}


@wrong("allowed-tokens", "from the state at the beginning")
def allowed_standing(table, state, tokens):
    return {
        i: table[state, token[-1]]
        for i, token in enumerate(tokens)
        if token and all((state, char) in table for char in token)
    }


@wrong("allowed-tokens", "was passed over")
def allowed_skipping(table, state, tokens):
    found = {}
    for i, token in enumerate(tokens):
        at, moved = state, False
        for char in token:
            if (at, char) in table:
                at, moved = table[at, char], True
        if moved:
            found[i] = at
    return found


@wrong("allowed-tokens", "The states are those before")
def allowed_before(table, state, tokens):
    return dict.fromkeys(allowed_walk(table, state, tokens), state)


@wrong("allowed-tokens", "Return their indices")
def allowed_by_text(table, state, tokens):
    return {tokens[i]: at for i, at in allowed_walk(table, state, tokens).items()}


@wrong("allowed-tokens", "longer ones are missing")
def allowed_single(table, state, tokens):
    found = allowed_walk(table, state, tokens)
    return {i: at for i, at in found.items() if len(tokens[i]) == 1}


@wrong("allowed-tokens", "from the end of the token")
def allowed_backwards(table, state, tokens):
    return allowed_walk(table, state, [token[::-1] for token in tokens])


@wrong("allowed-tokens", "An empty token was allowed")
def allowed_empty(table, state, tokens):
    found = {index: walked(table, state, token) for index, token in enumerate(tokens)}
    return {index: at for index, at in found.items() if at is not None}


@wrong("allowed-tokens", "Tokens that lead to state 0 are missing")
def allowed_truthy(table, state, tokens):
    found = {index: walked(table, state, token) for index, token in enumerate(tokens) if token}
    return {index: at for index, at in found.items() if at}


@wrong("allowed-tokens", "Return a dictionary")
def allowed_list(table, state, tokens):
    return list(allowed_walk(table, state, tokens))
