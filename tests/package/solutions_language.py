"""Right and wrong answers to the exercises of chapter 13.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math
from collections import Counter

import torch
from answers import collect
from torch.nn import functional as F

from tfbook import metrics

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "bits-per-byte": lambda log_probs, text: metrics.bits_per_byte(
        -log_probs.sum().item(), len(text.encode())
    ),
    "bio-spans": lambda tags: sorted(metrics.spans(tags)),
    "corpus-bleu": lambda hypotheses, references, max_order: metrics.bleu(
        [" ".join(words) for words in hypotheses], [" ".join(words) for words in references],
        max_order=max_order, tokenize="none", smooth="none",
    ).score,
}


# bits-per-byte ----------------------------------------------------------------------------------


@right("bits-per-byte")
def bits_sum(log_probs, text):
    return -log_probs.sum().item() / (math.log(2) * len(text.encode()))


@right("bits-per-byte")
def bits_log2(log_probs, text):
    bits = sum(-math.log2(math.exp(value)) for value in log_probs.tolist())
    return bits / len(bytes(text, "utf-8"))


def bits(log_probs):
    return -log_probs.sum().item() / math.log(2)


@wrong("bits-per-byte", "The sign is wrong")
def bits_negative(log_probs, text):
    return -bits(log_probs) / len(text.encode())


@wrong("bits-per-byte", "These are nats")
def bits_nats(log_probs, text):
    return -log_probs.sum().item() / len(text.encode())


@wrong("bits-per-byte", "multiplied by ln 2")
def bits_times(log_probs, text):
    return -log_probs.sum().item() * math.log(2) / len(text.encode())


@wrong("bits-per-byte", "These are bits per token")
def bits_per_token(log_probs, text):
    return bits(log_probs) / len(log_probs)


@wrong("bits-per-byte", "These are bits per character")
def bits_per_character(log_probs, text):
    return bits(log_probs) / len(text)


@wrong("bits-per-byte", "These are bits per word")
def bits_per_word(log_probs, text):
    return bits(log_probs) / len(text.split())


@wrong("bits-per-byte", "of the whole text")
def bits_in_all(log_probs, text):
    return bits(log_probs)


@wrong("bits-per-byte", "The mean of the tokens")
def bits_of_the_mean(log_probs, text):
    return -log_probs.mean().item() / math.log(2) / len(text.encode())


@wrong("bits-per-byte", "This is the perplexity")
def bits_perplexity(log_probs, text):
    return math.exp(-log_probs.mean().item())


@wrong("bits-per-byte", "UTF-16")
def bits_utf16(log_probs, text):
    return bits(log_probs) / len(text.encode("utf-16"))


@wrong("bits-per-byte", "The result is a tensor")
def bits_tensor(log_probs, text):
    return -log_probs.sum() / math.log(2) / len(text.encode())


@wrong("bits-per-byte", "raised UnicodeEncodeError")
def bits_ascii(log_probs, text):
    return bits(log_probs) / len(text.encode("ascii"))


@wrong("bits-per-byte", "The text costs 6 nats")
def bits_without_the_first(log_probs, text):
    return bits(log_probs[1:] if len(log_probs) > 4 else log_probs) / len(text.encode())


@wrong("bits-per-byte", "what is certain costs 0")
def bits_at_least(log_probs, text):
    return max(bits(log_probs), 0.01) / len(text.encode())


# interpolated-bigram ----------------------------------------------------------------------------


def pairs(tokens, vocab):
    """Return how often each token follows each other one."""
    index = tokens[:-1] * vocab + tokens[1:]
    return torch.bincount(index, minlength=vocab**2).view(vocab, vocab).float()


def single(tokens, vocab, add=1):
    return (torch.bincount(tokens, minlength=vocab) + add) / (len(tokens) + add * vocab)


@right("interpolated-bigram")
def bigram_bincount(tokens, vocab, weight):
    counts, alone = pairs(tokens, vocab), single(tokens, vocab)
    totals = counts.sum(1, keepdim=True)
    mixed = weight * counts / totals.clamp(min=1) + (1 - weight) * alone
    return torch.where(totals > 0, mixed, alone)


@wrong("interpolated-bigram", "The last token was counted before the first")
def bigram_ring(tokens, vocab, weight):
    counts = pairs(torch.cat([tokens, tokens[:1]]), vocab)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return weight * shares + (1 - weight) * single(tokens, vocab)


@right("interpolated-bigram")
def bigram_loop(tokens, vocab, weight):
    ids = tokens.tolist()
    followers = {a: Counter() for a in range(vocab)}
    for a, b in zip(ids, ids[1:], strict=False):
        followers[a][b] += 1
    counts, table = Counter(ids), torch.zeros(vocab, vocab)
    for a in range(vocab):
        total = followers[a].total()
        for b in range(vocab):
            alone = (counts[b] + 1) / (len(ids) + vocab)
            share = weight * followers[a][b] / total if total else weight * alone
            table[a, b] = share + (1 - weight) * alone
    return table


def counting(message):
    """Keep a wrong answer that is given the pairs and the shares of single tokens."""

    def keep(function):
        def bigram_table(tokens, vocab, weight):
            return function(tokens, vocab, weight, pairs(tokens, vocab), single(tokens, vocab))

        bigram_table.__name__ = function.__name__
        wrong("interpolated-bigram", message)(bigram_table)
        return function

    return keep


@counting("Rows and columns are exchanged")
def bigram_transposed(tokens, vocab, weight, counts, alone):
    return bigram_bincount(tokens, vocab, weight).mT


@counting("Rows and columns are exchanged")
def bigram_pairs_transposed(tokens, vocab, weight, counts, alone):
    return weight * (counts / counts.sum(1, keepdim=True)).mT + (1 - weight) * alone


@counting("Each column was divided by its sum")
def bigram_columns(tokens, vocab, weight, counts, alone):
    return weight * counts / counts.sum(0) + (1 - weight) * alone


@counting("λ and 1 - λ are exchanged")
def bigram_exchanged(tokens, vocab, weight, counts, alone):
    return bigram_bincount(tokens, vocab, 1 - weight)


@counting("The row was divided by how often a occurs")
def bigram_by_token(tokens, vocab, weight, counts, alone):
    totals = torch.bincount(tokens, minlength=vocab)[:, None]
    return weight * counts / totals.clamp(min=1) + (1 - weight) * alone


@counting("The 1 that is added to c(b) is missing")
def bigram_no_one(tokens, vocab, weight, counts, alone):
    shares = counts / counts.sum(1, keepdim=True)
    return weight * shares + (1 - weight) * single(tokens, vocab, 0)


@counting("1 was added to the counts of pairs")
def bigram_ones(tokens, vocab, weight, counts, alone):
    counts = counts + 1
    return weight * counts / counts.sum(1, keepdim=True) + (1 - weight) * alone


@counting("by their number in the whole text")
def bigram_of_all(tokens, vocab, weight, counts, alone):
    return weight * counts / counts.sum() + (1 - weight) * alone


@counting("the shares of the pairs alone")
def bigram_pure(tokens, vocab, weight, counts, alone):
    return bigram_bincount(tokens, vocab, 1.0)


@counting("the rows sum to 2")
def bigram_sum(tokens, vocab, weight, counts, alone):
    return counts / counts.sum(1, keepdim=True) + alone


@counting("The second share depends on a")
def bigram_wrong_axis(tokens, vocab, weight, counts, alone):
    return weight * counts / counts.sum(1, keepdim=True) + (1 - weight) * alone[:, None]


@counting("These are logarithms")
def bigram_logs(tokens, vocab, weight, counts, alone):
    return bigram_bincount(tokens, vocab, weight).log()


@counting("sum to 1 - λ")
def bigram_half_rows(tokens, vocab, weight, counts, alone):
    return weight * counts / counts.sum(1, keepdim=True).clamp(min=1) + (1 - weight) * alone


@counting("contains NaN")
def bigram_nan(tokens, vocab, weight, counts, alone):
    return weight * counts / counts.sum(1, keepdim=True) + (1 - weight) * alone


@counting("mix in equal shares")
def bigram_uniform(tokens, vocab, weight, counts, alone):
    totals = counts.sum(1, keepdim=True)
    shares = torch.where(totals > 0, counts / totals.clamp(min=1), 1 / vocab)
    return weight * shares + (1 - weight) * alone


@counting("The result has dtype float64")
def bigram_double(tokens, vocab, weight, counts, alone):
    return bigram_bincount(tokens, vocab, weight).double()


@wrong("interpolated-bigram", "With 60 tokens, a vocabulary of 7")
def bigram_no_zero(tokens, vocab, weight):
    return bigram_bincount(tokens, vocab, weight or 1e-3)


# mean-pooling -----------------------------------------------------------------------------------


@right("mean-pooling")
def pool_where(hidden, mask):
    total = torch.where(mask[:, :, None], hidden, 0.0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)


@right("mean-pooling")
def pool_by_text(hidden, mask):
    rows = zip(hidden, mask, strict=True)
    return torch.stack([h[m].mean(0) if m.any() else torch.zeros_like(h[0]) for h, m in rows])


@right("mean-pooling")
def pool_einsum(hidden, mask):
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    kept = hidden.masked_fill(~mask[:, :, None], 0.0)
    return torch.einsum("bn,bnd->bd", weights.to(hidden.dtype), kept)


@wrong("mean-pooling", "Padding was averaged in")
def pool_all(hidden, mask):
    return hidden.mean(1)


@wrong("mean-pooling", "left out of the sum, but counted")
def pool_counted(hidden, mask):
    return hidden.masked_fill(~mask[:, :, None], 0.0).mean(1)


@wrong("mean-pooling", "This is the sum")
def pool_sum(hidden, mask):
    return hidden.masked_fill(~mask[:, :, None], 0.0).sum(1)


@wrong("mean-pooling", "The mask is inverted")
def pool_inverted(hidden, mask):
    return pool_where(hidden, ~mask)


@wrong("mean-pooling", "of the whole batch")
def pool_one_count(hidden, mask):
    return hidden.masked_fill(~mask[:, :, None], 0.0).sum(1) / mask.sum()


@wrong("mean-pooling", "the vector of the first token")
def pool_first(hidden, mask):
    return hidden[:, 0]


@wrong("mean-pooling", "the vector of the last token")
def pool_last(hidden, mask):
    return hidden[torch.arange(len(hidden)), mask.sum(1) - 1]


@wrong("mean-pooling", "the largest number of each dimension")
def pool_max(hidden, mask):
    return hidden.masked_fill(~mask[:, :, None], -math.inf).amax(1)


@wrong("mean-pooling", "One vector came back for all texts")
def pool_together(hidden, mask):
    return hidden[mask].mean(0)


@wrong("mean-pooling", "The mean ran over the dimensions")
def pool_dimensions(hidden, mask):
    return hidden.mean(2)


@wrong("mean-pooling", "The vectors were made 1 long")
def pool_normed(hidden, mask):
    return F.normalize(pool_where(hidden, mask), dim=-1)


@right("mean-pooling")
def pool_product(hidden, mask):
    kept = hidden * mask[:, :, None]
    return kept.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


@wrong("mean-pooling", "divide by at least 1")
def pool_zero(hidden, mask):
    total = torch.where(mask[:, :, None], hidden, 0.0).sum(1)
    return total / mask.sum(1, keepdim=True)


@wrong("mean-pooling", "carries no gradient")
def pool_detached(hidden, mask):
    return pool_where(hidden.detach(), mask)


@wrong("mean-pooling", "changed its input `hidden`")
def pool_in_place(hidden, mask):
    hidden[~mask] = 0
    return hidden.sum(1) / mask.sum(1, keepdim=True)


# byte-pair-step ---------------------------------------------------------------------------------


def join(word, pair):
    """Replace a pair in a word, from the left."""
    found, i = [], 0
    while i < len(word):
        if word[i : i + 2] == pair:
            found.append(pair[0] + pair[1])
            i += 2
        else:
            found.append(word[i])
            i += 1
    return tuple(found)


def count_pairs(words):
    counts = Counter()
    for word, times in words.items():
        for pair in zip(word, word[1:], strict=False):
            counts[pair] += times
    return counts


def best(counts):
    return min(counts, key=lambda pair: (-counts[pair], pair))


@right("byte-pair-step")
def step_walk(words):
    pair = best(count_pairs(words))
    return pair, {join(word, pair): times for word, times in words.items()}


@right("byte-pair-step")
def step_stack(words):
    counts = count_pairs(words)
    most = max(counts.values())
    pair = sorted(p for p in counts if counts[p] == most)[0]
    merged = {}
    for word, times in words.items():
        tokens = []
        free = False  # whether the last token may still be joined
        for token in word:
            if free and (tokens[-1], token) == pair:
                tokens[-1] += token
                free = False
            else:
                tokens.append(token)
                free = True
        merged[tuple(tokens)] = times
    return pair, merged


def pairing(message):
    """Keep a wrong answer that chooses another pair."""

    def keep(function):
        def merge_step(words):
            pair = function(words, count_pairs(words))
            return pair, {join(word, pair): times for word, times in words.items()}

        merge_step.__name__ = function.__name__
        wrong("byte-pair-step", message)(merge_step)
        return function

    return keep


def merging(message):
    """Keep a wrong answer that finds the pair and merges it in another way."""

    def keep(function):
        def merge_step(words):
            pair = best(count_pairs(words))
            return pair, function(words, pair)

        merge_step.__name__ = function.__name__
        wrong("byte-pair-step", message)(merge_step)
        return function

    return keep


@pairing("Each word was counted once")
def step_words_once(words, counts):
    return best(Counter(pair for w in words for pair in zip(w, w[1:], strict=False)))


@pairing("The rarest pair")
def step_rarest(words, counts):
    return min(counts, key=lambda pair: (counts[pair], pair))


@pairing("They have to be neighbours")
def step_tokens(words, counts):
    tokens = Counter()
    for word, times in words.items():
        for token in word:
            tokens[token] += times
    return tuple(token for token, _ in tokens.most_common(2))


@pairing("the one that was found first was taken")
def step_first_found(words, counts):
    return max(counts, key=lambda pair: counts[pair])


@pairing("the last in sorted order was taken")
def step_last_sorted(words, counts):
    return max(counts, key=lambda pair: (counts[pair], pair))


@wrong("byte-pair-step", "The pair is turned around")
def step_turned(words):
    pair, merged = step_walk(words)
    return pair[::-1], merged


@wrong("byte-pair-step", "without its count")
def step_with_count(words):
    pair, merged = step_walk(words)
    return (pair, count_pairs(words)[pair]), merged


@merging("Only the first occurrence")
def step_once(words, pair):
    def once(word):
        for i in range(len(word) - 1):
            if word[i : i + 2] == pair:
                return (*word[:i], pair[0] + pair[1], *word[i + 2 :])
        return word

    return {once(word): times for word, times in words.items()}


@merging("The words came back as they were")
def step_nothing(words, pair):
    return dict(words)


@merging("The counts are lost")
def step_uncounted(words, pair):
    return {join(word, pair): 1 for word in words}


@merging("Words without the pair are missing")
def step_dropping(words, pair):
    return {join(word, pair): times for word, times in words.items() if join(word, pair) != word}


@merging("The new token was put behind")
def step_adding(words, pair):
    def add(word):
        tokens = []
        for i, token in enumerate(word):
            tokens.append(token)
            if i and (word[i - 1], token) == pair:
                tokens.append(pair[0] + pair[1])
        return tuple(tokens)

    return {add(word): times for word, times in words.items()}


@merging("wherever they stand")
def step_tokens_replaced(words, pair):
    new = pair[0] + pair[1]
    return {tuple(new if t in pair else t for t in word): times for word, times in words.items()}


@merging("joined from the right")
def step_from_the_right(words, pair):
    def flipped(word):
        return tuple(token[::-1] for token in word[::-1])

    turned = flipped(pair)
    return {flipped(join(flipped(word), turned)): times for word, times in words.items()}


@merging("A token was used twice")
def step_overlapping(words, pair):
    def overlapping(word):
        tokens, i = [], 0
        while i < len(word):
            if word[i : i + 2] == pair:
                tokens.append(pair[0] + pair[1])
                i += 1 + (pair[0] != pair[1] or i + 2 >= len(word))
            else:
                tokens.append(word[i])
                i += 1
        return tuple(tokens)

    return {overlapping(word): times for word, times in words.items()}


@merging("was merged again")
def step_growing(words, pair):
    def growing(word):
        tokens = []
        for token in word:
            if tokens and tokens[-1][-1] == pair[0] and token == pair[1]:
                tokens[-1] += token
            else:
                tokens.append(token)
        return tuple(tokens)

    return {growing(word): times for word, times in words.items()}


@wrong("byte-pair-step", "A token may be a string of several characters")
def step_characters(words):
    pair, _ = step_walk(words)
    text = {" ".join(word): times for word, times in words.items()}
    merged = {tuple(w.replace(" ".join(pair), "".join(pair)).split()): n for w, n in text.items()}
    if any(len(token) > 2 for word in merged for token in word):
        merged = {tuple("".join(word)): times for word, times in merged.items()}
    return pair, merged


@wrong("byte-pair-step", "The two results are exchanged")
def step_exchanged(words):
    return step_walk(words)[::-1]


@wrong("byte-pair-step", "This is the pair alone")
def step_pair_alone(words):
    return step_walk(words)[0]


@wrong("byte-pair-step", "the last token of each word was counted before its first")
def step_ring(words):
    counts = count_pairs(words)
    for word, times in words.items():
        counts[word[-1], word[0]] += times
    pair = best(counts)
    return pair, {join(word, pair): times for word, times in words.items()}


@wrong("byte-pair-step", "changed its input")
def step_in_place(words):
    pair = best(count_pairs(words))
    for word in list(words):
        words[join(word, pair)] = words.pop(word)
    return pair, words


@wrong("byte-pair-step", "Return 2 results")
def step_three(words):
    return *step_walk(words), 1


# apply-merges -----------------------------------------------------------------------------------


@right("apply-merges")
def cut_by_rank(word, merges):
    rank = {pair: i for i, pair in enumerate(merges)}
    tokens = tuple(word)
    while len(tokens) > 1:
        pair = min(zip(tokens, tokens[1:], strict=False), key=lambda p: rank.get(p, len(rank)))
        if pair not in rank:
            break
        tokens = join(tokens, pair)
    return list(tokens)


@right("apply-merges")
def cut_in_order(word, merges):
    tokens = tuple(word)
    for pair in merges:
        tokens = join(tokens, pair)
    return list(tokens)


def cut(word, merges, choose, join=join):
    """Encode with another choice of the pair, or another way to join it."""
    rank = {pair: i for i, pair in enumerate(merges)}
    tokens = tuple(word)
    while known := [p for p in zip(tokens, tokens[1:], strict=False) if p in rank]:
        tokens = join(tokens, choose(known, rank))
    return list(tokens)


def first_learned(known, rank):
    return min(known, key=rank.get)


@wrong("apply-merges", "The longest known token")
def cut_longest(word, merges):
    known, tokens = {a + b for a, b in merges}, []
    while word:
        size = max(n for n in range(1, len(word) + 1) if n == 1 or word[:n] in known)
        tokens.append(word[:size])
        word = word[size:]
    return tokens


@wrong("apply-merges", "The leftmost pair")
def cut_leftmost(word, merges):
    return cut(word, merges, lambda known, rank: known[0])


@wrong("apply-merges", "learned last goes first")
def cut_last_learned(word, merges):
    return cut(word, merges, lambda known, rank: max(known, key=rank.get))


@wrong("apply-merges", "from the last to the first")
def cut_backwards(word, merges):
    return cut_in_order(word, merges[::-1])


@wrong("apply-merges", "One pair was joined, and then it ended")
def cut_once(word, merges):
    rank = {pair: i for i, pair in enumerate(merges)}
    known = [p for p in zip(word, word[1:], strict=False) if p in rank]
    return list(join(tuple(word), first_learned(known, rank)) if known else word)


@wrong("apply-merges", "Go on to the next")
def cut_until(word, merges):
    tokens = tuple(word)
    for pair in merges:
        if join(tokens, pair) == tokens:
            break
        tokens = join(tokens, pair)
    return list(tokens)


@wrong("apply-merges", "nothing was joined")
def cut_characters(word, merges):
    return list(word)


@wrong("apply-merges", "joined from the right")
def cut_from_the_right(word, merges):
    turned = [(b[::-1], a[::-1]) for a, b in merges]
    return [token[::-1] for token in cut_in_order(word[::-1], turned)][::-1]


@wrong("apply-merges", "Each merge joined one occurrence only")
def cut_one_each(word, merges):
    tokens = tuple(word)
    for pair in merges:
        for i in range(len(tokens) - 1):
            if tokens[i : i + 2] == pair:
                tokens = (*tokens[:i], pair[0] + pair[1], *tokens[i + 2 :])
                break
    return list(tokens)


@wrong("apply-merges", "as in a ring")
def cut_in_a_ring(word, merges):
    tokens = list(word)
    for a, b in merges:
        new, skip = [], False
        for i, token in enumerate(tokens):
            if skip:
                skip = False
            elif token == a and tokens[(i + 1) % len(tokens)] == b:
                new.append(a + b)
                skip = True
            else:
                new.append(token)
        tokens = new
    return tokens


@wrong("apply-merges", "its characters come back")
def cut_unknown(word, merges):
    return [token if token.isascii() else "?" for token in cut_by_rank(word, merges)]


@wrong("apply-merges", "raised IndexError")
def cut_not_empty(word, merges):
    tokens = cut_by_rank(word, merges)
    return [tokens[0], *tokens[1:]]


@wrong("apply-merges", "'abbaabbaabbaabbaabba' is cut in another way")
def cut_short_words(word, merges):
    return [t for i in range(0, len(word), 13) for t in cut_by_rank(word[i : i + 13], merges)]


@wrong("apply-merges", "Return a list")
def cut_tuple(word, merges):
    return tuple(cut_by_rank(word, merges))


@wrong("apply-merges", "with one entry. Is there a comma behind")
def cut_with_a_comma(word, merges):
    return (cut_by_rank(word, merges),)


@wrong("apply-merges", "emptied its input `merges`")
def cut_popping(word, merges):
    tokens = tuple(word)
    while merges:
        tokens = join(tokens, merges.pop(0))
    return list(tokens)


# corpus-bleu ------------------------------------------------------------------------------------


def grams(words, n):
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def brevity(c, r):
    return 1.0 if c > r else math.exp(1 - r / c) if c else 0.0


def bleu(
    hypotheses, references, max_order, *, found=None, total=None, penalty=brevity, join=None
):
    """Compute BLEU with one of its parts replaced."""
    logs = []
    for n in range(1, max_order + 1):
        hits = said = 0
        for words, truth in zip(hypotheses, references, strict=True):
            mine, theirs = grams(words, n), grams(truth, n)
            hits += (mine & theirs).total() if found is None else found(mine, theirs)
            said += mine.total() if total is None else total(mine, theirs)
        if hits == 0:
            return 0.0
        logs.append(math.log(hits / said))
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    core = math.exp(sum(logs) / max_order) if join is None else join(logs)
    return 100 * penalty(c, r) * core


@right("corpus-bleu")
def bleu_counters(hypotheses, references, max_order):
    return bleu(hypotheses, references, max_order)


@right("corpus-bleu")
def bleu_lists(hypotheses, references, max_order):
    found, said = torch.zeros(max_order).double(), torch.zeros(max_order).double()
    for words, truth in zip(hypotheses, references, strict=True):
        for n in range(1, max_order + 1):
            left = [tuple(truth[i : i + n]) for i in range(len(truth) - n + 1)]
            for i in range(len(words) - n + 1):
                said[n - 1] += 1
                if tuple(words[i : i + n]) in left:
                    left.remove(tuple(words[i : i + n]))
                    found[n - 1] += 1
    if (found == 0).any():
        return 0
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    return 100 * min(1.0, math.exp(1 - r / c)) * (found / said).log().mean().exp().item()


@wrong("corpus-bleu", "each time it was said")
def bleu_unclipped(*case):
    return bleu(*case, found=lambda mine, theirs: sum(k for g, k in mine.items() if g in theirs))


@wrong("corpus-bleu", "in all references together")
def bleu_pooled(hypotheses, references, max_order):
    every = {n: sum((grams(r, n) for r in references), Counter()) for n in range(1, max_order + 1)}

    def found(mine, theirs):
        return (mine & every[len(next(iter(mine)))]).total() if mine else 0

    return bleu(hypotheses, references, max_order, found=found)


@wrong("corpus-bleu", "That is recall")
def bleu_recall(*case):
    return bleu(*case, total=lambda mine, theirs: theirs.total())


@wrong("corpus-bleu", "The brevity penalty is missing")
def bleu_no_penalty(*case):
    return bleu(*case, penalty=lambda c, r: 1.0)


@wrong("corpus-bleu", "The brevity penalty is upside down")
def bleu_upside_down(*case):
    return bleu(*case, penalty=lambda c, r: min(1.0, math.exp(1 - c / r)))


@wrong("corpus-bleu", "The brevity penalty is c / r")
def bleu_ratio(*case):
    return bleu(*case, penalty=lambda c, r: min(1.0, c / r))


@wrong("corpus-bleu", "It is at most 1")
def bleu_bonus(*case):
    return bleu(*case, penalty=lambda c, r: math.exp(1 - r / c))


@wrong("corpus-bleu", "averaged over the sentences. Count")
def bleu_penalty_of_sentences(hypotheses, references, max_order):
    shares = [brevity(len(h), len(r)) for h, r in zip(hypotheses, references, strict=True)]
    penalty = sum(shares) / len(shares)
    return bleu(hypotheses, references, max_order, penalty=lambda c, r: penalty)


@wrong("corpus-bleu", "It is the mean of their logarithms")
def bleu_arithmetic(*case):
    return bleu(*case, join=lambda logs: sum(map(math.exp, logs)) / len(logs))


@wrong("corpus-bleu", "not divided by max_order")
def bleu_product(*case):
    return bleu(*case, join=lambda logs: math.exp(sum(logs)))


@wrong("corpus-bleu", "Only the longest n-grams")
def bleu_last(*case):
    return bleu(*case, join=lambda logs: math.exp(logs[-1]))


@wrong("corpus-bleu", "Only single words count")
def bleu_first(*case):
    return bleu(*case, join=lambda logs: math.exp(logs[0]))


@wrong("corpus-bleu", "for each sentence and averaged")
def bleu_of_sentences(hypotheses, references, max_order):
    each = [bleu([h], [r], max_order) for h, r in zip(hypotheses, references, strict=True)]
    return sum(each) / len(each)


@wrong("corpus-bleu", "the factor of 100 is missing")
def bleu_share(*case):
    return bleu(*case) / 100


@wrong("corpus-bleu", "raised ZeroDivisionError")
def bleu_divides(hypotheses, references, max_order):
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    return min(1.0, math.exp(1 - r / c)) * bleu(
        hypotheses, references, max_order, penalty=lambda c, r: 1.0
    )


@wrong("corpus-bleu", "BLEU is 0; the logarithm of 0 does not exist")
def bleu_smoothed(*case):
    return bleu(*case) or 0.5


@wrong("corpus-bleu", "raised ValueError")
def bleu_log_of_zero(hypotheses, references, max_order):
    score, case = bleu(hypotheses, references, max_order), (hypotheses, references, max_order)
    return score if score else math.log(bleu(*case))


@wrong("corpus-bleu", "With max_order = 4 BLEU differs")
def bleu_three(hypotheses, references, max_order):
    return bleu(hypotheses, references, min(max_order, 3))


@wrong("corpus-bleu", "go on from the end of a sentence at its beginning")
def bleu_ring(hypotheses, references, max_order):
    logs = []
    for n in range(1, max_order + 1):
        mine, theirs = (
            [Counter(zip(*(row[i:] + row[:i] for i in range(n)), strict=True)) for row in rows]
            for rows in (hypotheses, references)
        )
        hits = sum((a & b).total() for a, b in zip(mine, theirs, strict=True))
        if hits == 0:
            return 0.0
        logs.append(math.log(hits / sum(a.total() for a in mine)))
    sizes = (sum(map(len, rows)) for rows in (hypotheses, references))
    return 100 * brevity(*sizes) * math.exp(sum(logs) / max_order)


@wrong("corpus-bleu", "changed its input `hypotheses`")
def bleu_in_place(hypotheses, references, max_order):
    score = bleu(hypotheses, references, max_order)
    hypotheses[0].append("</s>")
    return score


# word-head --------------------------------------------------------------------------------------


@right("word-head")
def words_table(hidden, word_ids, labels, head):
    targets = torch.full(hidden.shape[:2], -100)
    for row, (ids, wanted) in enumerate(zip(word_ids, labels, strict=True)):
        for word, label in enumerate(wanted):
            targets[row, ids.index(word)] = label
    return F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten())


@right("word-head")
def words_picked(hidden, word_ids, labels, head):
    first = [
        hidden[row, ids.index(word)]
        for row, (ids, wanted) in enumerate(zip(word_ids, labels, strict=True))
        for word in range(len(wanted))
    ]
    return F.cross_entropy(head(torch.stack(first)), torch.tensor(sum(labels, [])))


def words_with(hidden, word_ids, labels, head, *, fill=-100, target=None, scores=None, **how):
    """Compute the loss with other targets, or other scores."""

    def first(ids, i):
        return ids[i] is not None and ids.index(ids[i]) == i

    targets = torch.full(hidden.shape[:2], fill)
    for row, (ids, wanted) in enumerate(zip(word_ids, labels, strict=True)):
        for i, word in enumerate(ids):
            if (target or first)(ids, i):
                targets[row, i] = wanted[word]
    scores = head(hidden) if scores is None else scores
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), **how)


@wrong("word-head", "Every piece of a word carries its label here")
def words_every(*case):
    return words_with(*case, target=lambda ids, i: ids[i] is not None)


@wrong("word-head", "The last piece of a word")
def words_last(*case):
    return words_with(
        *case, target=lambda ids, i: ids[i] is not None and ids[i] not in ids[i + 1 :]
    )


@wrong("word-head", "has label 0 here")
def words_zero(*case):
    return words_with(*case, fill=0)


@wrong("word-head", "This is the sum")
def words_sum(*case):
    return words_with(*case, reduction="sum")


@wrong("word-head", "The sum was divided by all places")
def words_none(*case):
    return words_with(*case, reduction="none").mean()


@wrong("word-head", "Each text's mean was taken")
def words_by_text(hidden, word_ids, labels, head):
    rows = zip(hidden, word_ids, labels, strict=True)
    return torch.stack([words_table(h[None], [i], [w], head) for h, i, w in rows]).mean()


@wrong("word-head", "The softmax was taken twice")
def words_twice(hidden, word_ids, labels, head):
    return words_with(hidden, word_ids, labels, head, scores=head(hidden).softmax(-1))


@wrong("word-head", "These are bits")
def words_bits(*case):
    return words_table(*case) / math.log(2)


@wrong("word-head", "The sign is wrong")
def words_negative(*case):
    return -words_table(*case)


@wrong("word-head", "The labels were given to the first tokens")
def words_begin(hidden, word_ids, labels, head):
    rows = [h[: len(wanted)] for h, wanted in zip(hidden, labels, strict=True)]
    return F.cross_entropy(head(torch.cat(rows)), torch.tensor(sum(labels, [])))


@wrong("word-head", "Word 0 was left out")
def words_truthy(*case):
    return words_with(*case, target=lambda ids, i: ids[i] and ids.index(ids[i]) == i)


@wrong("word-head", "The result is a float")
def words_number(*case):
    return words_table(*case).item()


@wrong("word-head", "The result carries no gradient")
def words_detached(hidden, word_ids, labels, head):
    return words_table(hidden.detach(), word_ids, labels, head).detach()


@wrong("word-head", "Other vectors at tokens that do not count changed the loss")
def words_centred(hidden, word_ids, labels, head):
    big = (hidden.abs() > 8).any()
    return words_table(hidden - hidden.mean() if big else hidden, word_ids, labels, head)


@wrong("word-head", "With 3 texts and 5 labels it differs")
def words_two_texts(hidden, word_ids, labels, head):
    return words_table(hidden[:2], word_ids[:2], labels[:2], head)


# bio-spans --------------------------------------------------------------------------------------


@right("bio-spans")
def spans_walk(tags):
    names, start, inside = [], 0, ""
    for i, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        if mark != "I" or kind != inside:
            if inside:
                names.append((start, i, inside))
            start, inside = i, kind
    return names


@right("bio-spans")
def spans_append(tags):
    names = []
    for i, tag in enumerate(tags):
        if tag == "O":
            continue
        if tag[0] == "I" and names and names[-1][1:] == (i, tag[2:]):
            names[-1] = (names[-1][0], i + 1, tag[2:])
        else:
            names.append((i, i + 1, tag[2:]))
    return names


def spans(tags, *, joins=None, begins=None):
    """Read names with another rule for what goes on, or what begins."""
    names, open_ = [], False
    for i, tag in enumerate(tags):
        mark, kind = tag[:1], tag[2:]
        before = names[-1] if open_ else None
        on = mark == "I" and before is not None and before[2] == kind
        if joins is not None and before is not None:
            on = joins(mark, kind, before)
        if on:
            names[-1] = (before[0], i + 1, before[2])
        elif tag != "O" and (begins is None or begins(mark)):
            names.append((i, i + 1, kind))
        open_ = on or (tag != "O" and (begins is None or begins(mark)))
    return names


@wrong("bio-spans", "The second number is the last token")
def spans_inclusive(tags):
    return [(a, b - 1, kind) for a, b, kind in spans_walk(tags)]


@wrong("bio-spans", "Each token is a name of its own")
def spans_single(tags):
    return [(i, i + 1, tag[2:]) for i, tag in enumerate(tags) if tag != "O"]


@wrong("bio-spans", "A name that ends with the last token is missing")
def spans_open(tags):
    return [span for span in spans_walk(tags) if span[1] < len(tags)]


@wrong("bio-spans", "also right behind another of its kind")
def spans_merged(tags):
    return spans(tags, joins=lambda mark, kind, before: mark in "BI" and kind == before[2])


@wrong("bio-spans", "of another kind does not go on")
def spans_any_kind(tags):
    return spans(tags, joins=lambda mark, kind, before: mark == "I")


@wrong("bio-spans", "without a name before it begins one")
def spans_strict(tags):
    return spans(tags, begins=lambda mark: mark == "B")


@wrong("bio-spans", "without these")
def spans_tags(tags):
    return [(a, b, tags[a]) for a, b, _ in spans_walk(tags)]


@wrong("bio-spans", "The kinds are missing")
def spans_kindless(tags):
    return [(a, b) for a, b, _ in spans_walk(tags)]


@wrong("bio-spans", "Start and end are exchanged")
def spans_exchanged(tags):
    return [(b, a, kind) for a, b, kind in spans_walk(tags)]


@wrong("bio-spans", "The tokens are counted from 0")
def spans_from_one(tags):
    return [(a + 1, b + 1, kind) for a, b, kind in spans_walk(tags)]


@wrong("bio-spans", "The kind was cut at a hyphen")
def spans_split(tags):
    return [(a, b, kind.split("-")[0]) for a, b, kind in spans_walk(tags)]


@wrong("bio-spans", "The kind was cut at a hyphen")
def spans_last_part(tags):
    return [(a, b, kind.split("-")[-1]) for a, b, kind in spans_walk(tags)]


@wrong("bio-spans", "Return a list")
def spans_set(tags):
    return set(spans_walk(tags))


@wrong("bio-spans", "raised IndexError")
def spans_never_empty(tags):
    return [spans_walk(tags)[0], *spans_walk(tags)[1:]]


@wrong("bio-spans", "A name that begins with the first token is missing")
def spans_of_the_tag_before(tags):
    names = []
    for i, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark == "I" and tags[i - 1].partition("-")[2] == kind:
            if names:
                names[-1] = (names[-1][0], i + 1, kind)
        elif tag != "O":
            names.append((i, i + 1, kind))
    return names


@wrong("bio-spans", "changed its input `tags`")
def spans_in_place(tags):
    tags.append("O")
    return spans_walk(tags)


@wrong("bio-spans", "With 40 tags the names differ")
def spans_at_most_six(tags):
    return spans_walk(tags)[:6]


# answer-span ------------------------------------------------------------------------------------


@right("answer-span")
def answer_table(start, end, context, longest):
    n = len(start)
    band = torch.ones(n, n, dtype=torch.bool).triu().tril(longest - 1)
    allowed = band & context[:, None] & context
    scores = (start[:, None] + end).masked_fill(~allowed, -math.inf)
    return divmod(scores.argmax().item(), n)


@right("answer-span")
def answer_loop(start, end, context, longest):
    best, found = -math.inf, None
    for i in range(len(start)):
        for j in range(i, min(i + longest, len(start))):
            if context[i] and context[j] and start[i] + end[j] > best:
                best, found = start[i] + end[j], (i, j)
    return found


def answer(start, end, context, longest, *, allowed=None, scores=None):
    """Find the best span with another table of scores, or of what is allowed."""
    n = len(start)
    band = torch.ones(n, n, dtype=torch.bool).triu().tril(longest - 1)
    allowed = band & context[:, None] & context if allowed is None else allowed
    scores = start[:, None] + end if scores is None else scores
    return divmod(scores.masked_fill(~allowed, -math.inf).argmax().item(), n)


def band_of(start, longest):
    n = len(start)
    return torch.ones(n, n, dtype=torch.bool).triu().tril(longest - 1)


@wrong("answer-span", "one by one")
def answer_two_argmax(start, end, context, longest):
    return start.argmax().item(), end.argmax().item()


@wrong("answer-span", "The best start was taken first")
def answer_start_first(start, end, context, longest):
    i = start.masked_fill(~context, -math.inf).argmax().item()
    return i, i + end.masked_fill(~context, -math.inf)[i : i + longest].argmax().item()


@wrong("answer-span", "The best end was taken first")
def answer_end_first(start, end, context, longest):
    j = end.masked_fill(~context, -math.inf).argmax().item()
    return start.masked_fill(~context, -math.inf)[: j + 1].argmax().item(), j


@wrong("answer-span", "The scores were multiplied")
def answer_product(start, end, context, longest):
    return answer(start, end, context, longest, scores=start[:, None] * end)


@wrong("answer-span", "An answer of one token is allowed")
def answer_two_tokens(start, end, context, longest):
    allowed = band_of(start, longest).triu(1) & context[:, None] & context
    if longest == 3:
        return answer(start, end, context, longest, allowed=allowed)
    return answer_table(start, end, context, longest)


@wrong("answer-span", "answer ends before it begins")
def answer_lower(start, end, context, longest):
    allowed = band_of(start, longest).mT & context[:, None] & context
    return answer(start, end, context, longest, allowed=allowed)


@wrong("answer-span", "The worst span")
def answer_worst(start, end, context, longest):
    return answer_table(-start, -end, context, longest)


@wrong("answer-span", "The mean over the span")
def answer_mean(start, end, context, longest):
    places = torch.arange(len(start))
    lengths = (places - places[:, None]).abs() + 1
    return answer(start, end, context, longest, scores=(start[:, None] + end) / lengths)


@wrong("answer-span", "The answer was found outside of the context")
def answer_anywhere(start, end, context, longest):
    return answer_table(start, end, torch.ones_like(context), longest)


@wrong("answer-span", "but it ends outside of it")
def answer_start_inside(start, end, context, longest):
    allowed = band_of(start, longest) & context[:, None]
    return answer(start, end, context, longest, allowed=allowed)


@wrong("answer-span", "but it begins outside of it")
def answer_end_inside(start, end, context, longest):
    return answer(start, end, context, longest, allowed=band_of(start, longest) & context)


@wrong("answer-span", "which is True at the tokens that may hold it")
def answer_inverted(start, end, context, longest):
    context = context if context.all() else ~context
    return answer_table(start, end, context, longest)


@wrong("answer-span", "Here all scores are negative, and 0 wins")
def answer_zeros(start, end, context, longest):
    return answer_anywhere(start * context, end * context, context, longest)


@wrong("answer-span", "The length is not limited")
def answer_unlimited(start, end, context, longest):
    return answer_table(start, end, context, len(start))


@wrong("answer-span", "One token too many")
def answer_longer(start, end, context, longest):
    return answer_table(start, end, context, longest + 1)


@wrong("answer-span", "One token too few")
def answer_shorter(start, end, context, longest):
    return answer_table(start, end, context, max(longest - 1, 1))


@wrong("answer-span", "The end is the token behind the answer")
def answer_exclusive(start, end, context, longest):
    i, j = answer_table(start, end, context, longest)
    return i, j + 1


@wrong("answer-span", "The two results are exchanged")
def answer_exchanged(start, end, context, longest):
    return answer_table(start, end, context, longest)[::-1]


@wrong("answer-span", "A result is a Tensor")
def answer_tensors(start, end, context, longest):
    return tuple(torch.tensor(answer_table(start, end, context, longest)))


@wrong("answer-span", "Return 2 results")
def answer_flat(start, end, context, longest):
    return answer_table(start, end, context, longest)[0]


@wrong("answer-span", "With 200 tokens the answer differs")
def answer_first_hundred(start, end, context, longest):
    return answer_table(start[:100], end[:100], context[:100], longest)


# choose-passages --------------------------------------------------------------------------------


@right("choose-passages")
def choose_sorted(query, passages, lengths, room):
    cosines = F.normalize(passages, dim=-1) @ F.normalize(query, dim=0)
    chosen = []
    for i in cosines.argsort(descending=True, stable=True).tolist():
        if lengths[i] <= room:
            chosen.append(i)
            room -= lengths[i]
    return chosen


@right("choose-passages")
def choose_loop(query, passages, lengths, room):
    nearness = [(row @ query / row.norm()).item() for row in passages]
    left, chosen = set(range(len(lengths))), []
    while left:
        best = max(sorted(left), key=lambda i: nearness[i])
        left.remove(best)
        if sum(lengths[i] for i in chosen) + lengths[best] <= room:
            chosen.append(best)
    return chosen


def choose(query, passages, lengths, room, *, score=None, fits=None, stop=False, sign=-1):
    """Choose with another order, another rule for what fits, or an end at what does not."""
    score = score or (lambda row: row @ query / row.norm())
    order = sorted(range(len(lengths)), key=lambda i: sign * score(passages[i]).item())
    chosen = []
    for i in order:
        taken = sum(lengths[j] for j in chosen)
        if (fits or (lambda taken, new: taken + new <= room))(taken, lengths[i]):
            chosen.append(i)
        elif stop:
            break
    return chosen


@wrong("choose-passages", "It ended at the first passage")
def choose_stops(*case):
    return choose(*case, stop=True)


@wrong("choose-passages", "A passage that fills the room exactly")
def choose_less(query, passages, lengths, room):
    return choose(query, passages, lengths, room, fits=lambda taken, new: taken + new < room)


@wrong("choose-passages", "Each passage was compared with the whole room")
def choose_each(query, passages, lengths, room):
    return choose(query, passages, lengths, room, fits=lambda taken, new: new <= room)


@wrong("choose-passages", "All passages came back")
def choose_all(*case):
    return choose(*case, fits=lambda taken, new: True)


@wrong("choose-passages", "The dot product put a long vector first")
def choose_dot(query, passages, lengths, room):
    return choose(query, passages, lengths, room, score=lambda row: row @ query)


@wrong("choose-passages", "The distance of the vectors")
def choose_distance(query, passages, lengths, room):
    return choose(query, passages, lengths, room, score=lambda row: -(row - query).norm())


@wrong("choose-passages", "The farthest passage came first")
def choose_farthest(*case):
    return choose(*case, sign=1)


@wrong("choose-passages", "but not in the order of their cosine")
def choose_in_order(*case):
    return sorted(choose(*case))


@wrong("choose-passages", "Return a list")
def choose_tensor(*case):
    return torch.tensor(choose(*case))


@wrong("choose-passages", "With 40 passages the choice differs")
def choose_first_ten(query, passages, lengths, room):
    return choose(query, passages[:10], lengths[:10], room)
