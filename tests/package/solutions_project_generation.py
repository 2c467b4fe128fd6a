"""Right and wrong answers to the checks of the project on generation.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import difflib
import math

import torch
from answers import collect

from tfbook import generation

RIGHT, WRONG, right, wrong = collect()


# project-loop -----------------------------------------------------------------------------------


@right("project-loop")
def loop_for(read, prompt, n, choose, stop):
    new = []
    for _ in range(n):
        new.append(choose(read(prompt + new)))
        if new[-1] == stop:
            break
    return new


@right("project-loop")
def loop_while(read, prompt, n, choose, stop):
    ids = list(prompt)
    while len(ids) < len(prompt) + n and (len(ids) == len(prompt) or ids[-1] != stop):
        ids = [*ids, choose(read(ids))]
    return ids[len(prompt) :]


@wrong("project-loop", "The prompt is in the result")
def loop_whole(read, prompt, n, choose, stop):
    return prompt + loop_for(read, prompt, n, choose, stop)


@wrong("project-loop", "Only the last id was read")
def loop_last(read, prompt, n, choose, stop):
    return loop_for(lambda ids: read(ids[-1:]), prompt, n, choose, stop)


@wrong("project-loop", "each time the prompt alone was")
def loop_prompt_only(read, prompt, n, choose, stop):
    return loop_for(lambda ids: read(prompt), prompt, n, choose, stop)


@wrong("project-loop", "later only the new ids were read")
def loop_forgets_prompt(read, prompt, n, choose, stop):
    return loop_for(lambda ids: read(ids[len(prompt) :] or prompt), prompt, n, choose, stop)


@wrong("project-loop", "stand before the prompt")
def loop_in_front(read, prompt, n, choose, stop):
    def turned(ids):
        return read(ids[len(prompt) :] + prompt)

    return loop_for(turned, prompt, n, choose, stop)


@wrong("project-loop", "One id is missing")
def loop_short(read, prompt, n, choose, stop):
    return loop_for(read, prompt, n - 1, choose, stop)


@wrong("project-loop", "one id too many")
def loop_long(read, prompt, n, choose, stop):
    return loop_for(read, prompt, n + 1, choose, stop)


@wrong("project-loop", "for `choose` to say")
def loop_greedy(read, prompt, n, choose, stop):
    return loop_for(read, prompt, n, lambda logits: int(logits.argmax()), stop)


@wrong("project-loop", "changed its input `prompt`")
def loop_appends(read, prompt, n, choose, stop):
    for _ in range(n):
        prompt.append(choose(read(prompt)))
        if prompt[-1] == stop:
            break
    return prompt[-n:]


@wrong("project-loop", "The text goes on behind the stop")
def loop_endless(read, prompt, n, choose, stop):
    return loop_for(read, prompt, n, choose, None)


@wrong("project-loop", "The stop is missing")
def loop_drops_stop(read, prompt, n, choose, stop):
    return [i for i in loop_for(read, prompt, n, choose, stop) if i != stop]


@wrong("project-loop", "Only a new id that is the stop ends it")
def loop_any_stop(read, prompt, n, choose, stop):
    new = []
    for _ in range(n):
        new.append(choose(read(prompt + new)))
        if stop in prompt + new:
            break
    return new


@wrong("project-loop", "the loop ended there")
def loop_stop_first(read, prompt, n, choose, stop):
    new = []
    while len(new) < n and stop not in prompt + new:
        new.append(choose(read(prompt + new)))
    return new


@wrong("project-loop", "With n = 0")
def loop_at_least_one(read, prompt, n, choose, stop):
    return loop_for(read, prompt, max(n, 1), choose, stop)


# project-chances --------------------------------------------------------------------------------


def nucleus(p, top_p):
    ordered, places = p.sort(descending=True)
    kept = ordered.cumsum(0) - ordered < top_p
    return p * torch.zeros_like(kept).scatter(0, places, kept)


def best(p, k):
    return p * (p >= p.topk(min(k, len(p))).values[-1])


def whole(p):
    return p / p.sum()


@right("project-chances")
def chances_steps(logits, temperature, top_k, top_p):
    p = (logits / temperature).softmax(-1)
    return whole(nucleus(whole(best(p, top_k)), top_p))


@right("project-chances")
def chances_package(logits, temperature, top_k, top_p):
    sampling = generation.Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    return sampling(logits).softmax(-1)


@wrong("project-chances", "The most likely token was cut: the mask was moved by `roll`")
def chances_rolled(logits, temperature, top_k, top_p):
    p = whole(best((logits / temperature).softmax(-1), top_k))
    ordered, places = p.sort(descending=True)
    cut = (ordered.cumsum(-1) >= top_p).roll(1)
    return whole(p.masked_fill(cut.scatter(0, places, cut), 0.0))


@wrong("project-chances", "multiplied by T")
def chances_times(logits, temperature, top_k, top_p):
    return chances_steps(logits, 1 / temperature, top_k, top_p)


@wrong("project-chances", "The temperature is missing")
def chances_cold(logits, temperature, top_k, top_p):
    return chances_steps(logits, 1.0, top_k, top_p)


@wrong("project-chances", "The temperature came last")
def chances_late(logits, temperature, top_k, top_p):
    return whole(chances_steps(logits, 1.0, top_k, top_p) ** (1 / temperature))


@wrong("project-chances", "or came behind it")
def chances_exchanged(logits, temperature, top_k, top_p):
    p = (logits / temperature).softmax(-1)
    return whole(best(nucleus(p, top_p), top_k))


@wrong("project-chances", "was not made to sum to 1")
def chances_not_between(logits, temperature, top_k, top_p):
    p = (logits / temperature).softmax(-1)
    return whole(nucleus(best(p, top_k), top_p))


@wrong("project-chances", "The token that crosses p was cut")
def chances_tight(logits, temperature, top_k, top_p):
    p = whole(best((logits / temperature).softmax(-1), top_k))
    ordered, places = p.sort(descending=True)
    kept = ordered.cumsum(0) <= top_p
    return whole(p * torch.zeros_like(kept).scatter(0, places, kept))


@wrong("project-chances", "does not sum to 1")
def chances_not_whole(logits, temperature, top_k, top_p):
    return nucleus(whole(best((logits / temperature).softmax(-1), top_k)), top_p)


@wrong("project-chances", "does not sum to 1")
def chances_never_whole(logits, temperature, top_k, top_p):
    p = (logits / temperature).softmax(-1)
    return p * (chances_steps(logits, temperature, top_k, top_p) > 0)


@wrong("project-chances", "These are logarithms")
def chances_log(logits, temperature, top_k, top_p):
    return chances_steps(logits, temperature, top_k, top_p).log()


@wrong("project-chances", "come back sorted")
def chances_sorted(logits, temperature, top_k, top_p):
    return chances_steps(logits, temperature, top_k, top_p).sort(descending=True).values


@wrong("project-chances", "The cut to k tokens had no effect")
def chances_no_k(logits, temperature, top_k, top_p):
    return chances_steps(logits, temperature, len(logits), top_p)


@wrong("project-chances", "The nucleus is missing")
def chances_no_p(logits, temperature, top_k, top_p):
    return chances_steps(logits, temperature, top_k, 1.0)


@wrong("project-chances", "raised RuntimeError")
def chances_large_k(logits, temperature, top_k, top_p):
    logits.topk(top_k)
    return chances_steps(logits, temperature, top_k, top_p)


@wrong("project-chances", "NaN")
def chances_overflow(logits, temperature, top_k, top_p):
    p = whole((logits / temperature).exp())
    return whole(nucleus(whole(best(p, top_k)), top_p))


# project-penalty --------------------------------------------------------------------------------


def occurred(logits, ids):
    seen = torch.zeros(len(logits), dtype=torch.bool)
    seen[torch.tensor(ids, dtype=torch.int64)] = True
    return seen


def changed(logits, by):
    return torch.where(logits > 0, logits / by, logits * by)


@right("project-penalty")
def penalty_where(logits, ids, penalty):
    return torch.where(occurred(logits, ids), changed(logits, penalty), logits)


@right("project-penalty")
def penalty_package(logits, ids, penalty):
    return generation.repetition_penalty(logits[None], torch.tensor([ids]).long(), penalty)[0]


@wrong("project-penalty", "Negative logits were divided")
def penalty_divides(logits, ids, penalty):
    return torch.where(occurred(logits, ids), logits / penalty, logits)


@wrong("project-penalty", "the positive ones grew")
def penalty_multiplies(logits, ids, penalty):
    return torch.where(occurred(logits, ids), logits * penalty, logits)


@wrong("project-penalty", "the wrong way round")
def penalty_rewards(logits, ids, penalty):
    return penalty_where(logits, ids, 1 / penalty)


@wrong("project-penalty", "punished twice")
def penalty_each_time(logits, ids, penalty):
    for i in ids:
        logits = penalty_where(logits, [i], penalty)
    return logits


@wrong("project-penalty", "Tokens that did not occur were changed")
def penalty_others(logits, ids, penalty):
    return torch.where(occurred(logits, ids), logits, changed(logits, penalty))


@wrong("project-penalty", "All tokens were changed")
def penalty_all(logits, ids, penalty):
    return changed(logits, penalty)


@wrong("project-penalty", "Only the last id")
def penalty_last(logits, ids, penalty):
    return penalty_where(logits, ids[-1:], penalty)


@wrong("project-penalty", "The penalty was subtracted")
def penalty_subtracts(logits, ids, penalty):
    return torch.where(occurred(logits, ids), logits - penalty, logits)


@wrong("project-penalty", "were ruled out")
def penalty_forbids(logits, ids, penalty):
    return logits.masked_fill(occurred(logits, ids), -math.inf)


@wrong("project-penalty", "These are probabilities")
def penalty_softmax(logits, ids, penalty):
    return penalty_where(logits, ids, penalty).softmax(-1)


@wrong("project-penalty", "changed its input `logits`")
def penalty_in_place(logits, ids, penalty):
    logits[:] = penalty_where(logits, ids, penalty)
    return logits


@wrong("project-penalty", "raised IndexError")
def penalty_empty(logits, ids, penalty):
    ids[0]
    return penalty_where(logits, ids, penalty)


# project-distinct -------------------------------------------------------------------------------


def grams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


@right("project-distinct")
def distinct_set(texts, n):
    found = [gram for words in texts for gram in grams(words, n)]
    return len(set(found)) / len(found) if found else 0.0


@right("project-distinct")
def distinct_zip(texts, n):
    runs = [zip(*(words[i:] for i in range(n)), strict=False) for words in texts]
    found = [" ".join(gram) for run in runs for gram in run]
    return len(set(found)) / max(len(found), 1)


@wrong("project-distinct", "go on from the end of a text at its beginning")
def distinct_ring(texts, n):
    found = [gram for words in texts for gram in grams(words + words[: n - 1], n)]
    return len(set(found)) / max(len(found), 1)


@wrong("project-distinct", "the mean over the texts")
def distinct_mean(texts, n):
    return sum(distinct_set([words], n) for words in texts) / len(texts)


@wrong("project-distinct", "from one text into the next")
def distinct_across(texts, n):
    return distinct_set([[word for words in texts for word in words]], n)


@wrong("project-distinct", "The number of words stands below")
def distinct_over_words(texts, n):
    return len({g for w in texts for g in grams(w, n)}) / sum(len(words) for words in texts)


@wrong("project-distinct", "single words, whatever n")
def distinct_words(texts, n):
    return distinct_set(texts, 1)


@wrong("project-distinct", "one word too many")
def distinct_longer(texts, n):
    return distinct_set(texts, n + 1)


@wrong("project-distinct", "that are repeated. The others are wanted")
def distinct_repeated(texts, n):
    return 1 - distinct_set(texts, n)


@wrong("project-distinct", "that occur once were counted")
def distinct_once(texts, n):
    found = [gram for words in texts for gram in grams(words, n)]
    return sum(found.count(gram) == 1 for gram in found) / len(found)


@wrong("project-distinct", "The last n-gram of each text is missing")
def distinct_no_last(texts, n):
    found = [gram for words in texts for gram in grams(words, n)[:-1]]
    return len(set(found)) / len(found)


@wrong("project-distinct", "They overlap")
def distinct_blocks(texts, n):
    found = [gram for words in texts for gram in grams(words, n)[::n]]
    return len(set(found)) / len(found)


@wrong("project-distinct", "This is how many there are")
def distinct_count(texts, n):
    return float(len({gram for words in texts for gram in grams(words, n)}))


@wrong("project-distinct", "turn it over")
def distinct_turned(texts, n):
    return 1 / distinct_set(texts, n)


@wrong("project-distinct", "The sets of the texts were added up")
def distinct_added(texts, n):
    found = [gram for words in texts for gram in grams(words, n)]
    return sum(len(set(grams(words, n))) for words in texts) / len(found)


@wrong("project-distinct", "raised ZeroDivisionError")
def distinct_divides(texts, n):
    found = [gram for words in texts for gram in grams(words, n)]
    return len(set(found)) / len(found)


@wrong("project-distinct", "With n = 1")
def distinct_pairs(texts, n):
    return distinct_set(texts, 2)


# project-quote ----------------------------------------------------------------------------------


@right("project-quote")
def quote_grow(text, source):
    best = ""
    for i in range(len(text)):
        while i + len(best) < len(text) and text[i : i + len(best) + 1] in source:
            best = text[i : i + len(best) + 1]
    return best


@right("project-quote")
def quote_halve(text, source):
    """A stretch of n exists only where one of n − 1 does: search for n by halving."""

    def of_length(n):
        found = (text[i : i + n] for i in range(len(text) - n + 1) if text[i : i + n] in source)
        return next(found, None)

    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if of_length(middle) is None:
            high = middle - 1
        else:
            low = middle
    return of_length(low) or ""


@wrong("project-quote", "A later one is longer")
def quote_stops(text, source):
    for i in range(len(text)):
        n = 0
        while i + n < len(text) and text[i : i + n + 1] in source:
            n += 1
        if n:
            return text[i : i + n]
    return ""


@wrong("project-quote", "Return a str")
def quote_length(text, source):
    return len(quote_grow(text, source))


@wrong("project-quote", "The spaces at the ends were cut off")
def quote_strips(text, source):
    return quote_grow(text, source).strip()


@wrong("project-quote", "missing at the end")
def quote_short(text, source):
    return quote_grow(text, source)[:-1]


@wrong("project-quote", "missing at the beginning")
def quote_late(text, source):
    return quote_grow(text, source)[1:]


@wrong("project-quote", "That is a single word")
def quote_word(text, source):
    return max((word for word in text.split() if word in source.split()), key=len, default="")


@wrong("project-quote", "Only whole words were compared")
def quote_whole_words(text, source):
    return quote_grow(text, source).strip().rpartition(" ")[0]


@wrong("project-quote", "A line break is a character")
def quote_lines(text, source):
    return max((quote_grow(line, source) for line in text.split("\n")), key=len)


@wrong("project-quote", "were taken for the same")
def quote_any_case(text, source):
    found = quote_grow(text.lower(), source.lower())
    place = text.lower().index(found)
    return text[place : place + len(found)]


@wrong("project-quote", "at the end of the text")
def quote_misses_end(text, source):
    return quote_grow(text[:-1], source) if text[:-1] not in source else quote_grow(text, source)


@wrong("project-quote", "the last was taken")
def quote_last(text, source):
    best = ""
    for i in range(len(text)):
        for j in range(i + max(len(best), 1), len(text) + 1):
            if text[i:j] not in source:
                break
            best = text[i:j]
    return best


@wrong("project-quote", "The first in the source was taken")
def quote_source_order(text, source):
    if len(source) > 1000:
        return quote_grow(text, source)
    return quote_grow(source, text)


@wrong("project-quote", "another stretch came back")
def quote_junk(text, source):
    """What difflib takes for junk in long texts are its most frequent characters."""
    if len(source) < 200:
        return quote_grow(text, source)
    found = difflib.SequenceMatcher(None, text, source[:2000]).find_longest_match()
    return text[found.a : found.a + found.size]
