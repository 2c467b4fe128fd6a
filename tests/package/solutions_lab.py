"""Right and wrong answers to the steps of the Shakespeare lab.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import copy
import math
import statistics
from collections import Counter, defaultdict

import torch
from answers import collect
from torch import nn
from torch.nn import functional as F

from tfbook.attention import MultiHeadAttention
from tfbook.blocks import Block, FeedForward, RMSNorm
from tfbook.models import (
    FFN,
    Attention,
    DecoderOnly,
    Layer,
    Rotary,
    Sinusoidal,
    Tokens,
    TransformerConfig,
)
from tfbook.optimization import schedule
from tfbook.positions import RotaryPositions
from tfbook.training import fit

RIGHT, WRONG, right, wrong = collect()


# lab-split --------------------------------------------------------------------------------------


@right("lab-split")
def split_slices(text, valid, test):
    first, second = len(text) * (100 - valid - test) // 100, len(text) * (100 - test) // 100
    return text[:first], text[first:second], text[second:]


@right("lab-split")
def split_loop(text, valid, test):
    found = ["", "", ""]
    for i, character in enumerate(text):
        late = i >= len(text) * (100 - test) // 100
        found[(i >= len(text) * (100 - valid - test) // 100) + late] += character
    return tuple(found)


def cuts(text, valid, test):
    return len(text) * (100 - valid - test) // 100, len(text) * (100 - test) // 100


@wrong("lab-split", "taken from the text for training")
def split_valid_inside(text, valid, test):
    first, second = cuts(text, valid, test)
    return text[:second], text[first:second], text[second:]


@wrong("lab-split", "so it holds the test part")
def split_valid_to_the_end(text, valid, test):
    first, second = cuts(text, valid, test)
    return text[:first], text[first:], text[second:]


@wrong("lab-split", "each other's shares")
def split_exchanged(text, valid, test):
    return split_slices(text, test, valid)


@wrong("lab-split", "in another order")
def split_order(text, valid, test):
    train, held, last = split_slices(text, valid, test)
    return train, last, held


@wrong("lab-split", "from the front of the text")
def split_front(text, valid, test):
    n, (first, second) = len(text), cuts(text, valid, test)
    return text[n - first :], text[n - second : n - first], text[: n - second]


@wrong("lab-split", "missing at each cut")
def split_loses(text, valid, test):
    first, second = cuts(text, valid, test)
    return text[:first], text[first + 1 : second], text[second + 1 :]


@wrong("lab-split", "stands in two parts")
def split_twice(text, valid, test):
    first, second = cuts(text, valid, test)
    return text[:first], text[first - 1 : second], text[second - 1 :]


@wrong("lab-split", "Cut twice")
def split_shuffles(text, valid, test):
    order = torch.randperm(len(text), generator=torch.Generator().manual_seed(0)).tolist()
    return split_slices("".join(text[i] for i in order), valid, test)


@wrong("lab-split", "in another order: return your third, then your second, then your first")
def split_reversed(text, valid, test):
    return split_slices(text, valid, test)[::-1]


@wrong("lab-split", "Return a tuple")
def split_list(text, valid, test):
    return list(split_slices(text, valid, test))


@wrong("lab-split", "Round both cuts down")
def split_rounds_shares(text, valid, test):
    n, m = len(text) * valid // 100, len(text) * test // 100
    if len(text) > 30:
        return split_slices(text, valid, test)
    return text[: len(text) - n - m], text[len(text) - n - m : len(text) - m], text[len(text) - m :]


@wrong("lab-split", "`text[-0:]` is the whole text")
def split_from_the_end(text, valid, test):
    first, second = cuts(text, valid, test)
    n = len(text)
    return text[: first - n], text[first - n : second - n], text[second - n :]


# Only the share of 0 goes wrong: the cuts are those wanted wherever both parts hold something.
WRONG[-1] = (
    *WRONG[-1][:2],
    lambda text, valid, test: (
        split_from_the_end(text, valid, test)
        if len(text) > 30 and not (valid and test)
        else split_slices(text, valid, test)
    ),
)


# lab-vocabulary ---------------------------------------------------------------------------------


def make(order, *, first=0, unknown=None, dtype=torch.int64, tidy=lambda text: text):
    """Make encode and decode from an order of the characters."""
    characters = list(order)
    places = {character: i + first for i, character in enumerate(characters)}

    def encode(text):
        text = tidy(text)
        ids = [places[c] if unknown is None else places.get(c, unknown) for c in text]
        return torch.tensor([i for i in ids if i >= 0], dtype=dtype)

    return encode, lambda ids: "".join(characters[i - first] for i in ids.tolist())


@right("lab-vocabulary")
def vocabulary_places(text):
    return make(sorted(set(text)))


@right("lab-vocabulary")
def vocabulary_index(text):
    characters = "".join(sorted(set(text)))

    def encode(text):
        return torch.tensor([characters.index(c) for c in text], dtype=torch.long)

    return encode, lambda ids: "".join(map(characters.__getitem__, ids))


@wrong("lab-vocabulary", "begin with 1")
def vocabulary_from_one(text):
    return make(sorted(set(text)), first=1)


@wrong("lab-vocabulary", "as they first appear")
def vocabulary_unsorted(text):
    return make(dict.fromkeys(text))


@wrong("lab-vocabulary", "how often they occur")
def vocabulary_frequency(text):
    counts = Counter(text)
    return make(sorted(sorted(set(text)), key=lambda c: -counts[c]))


@wrong("lab-vocabulary", "These are code points")
def vocabulary_code_points(text):
    return make(map(chr, range(256)))


@wrong("lab-vocabulary", "a new id at each place")
def vocabulary_counts_up(text):
    encode = lambda text: torch.arange(len(text))  # noqa: E731
    return encode, lambda ids: text


@wrong("lab-vocabulary", "The two results are exchanged")
def vocabulary_exchanged(text):
    return vocabulary_places(text)[::-1]


@wrong("lab-vocabulary", "Capitals were turned")
def vocabulary_lower(text):
    return make(sorted(set(text.lower())), tidy=str.lower)


@wrong("lab-vocabulary", "Return 2 results")
def vocabulary_one(text):
    return make(sorted(set(text)))[0]


@wrong("lab-vocabulary", "is a dict. Return two functions")
def vocabulary_tables(text):
    characters = sorted(set(text))
    return {c: i for i, c in enumerate(characters)}, dict(enumerate(characters))


@wrong("lab-vocabulary", "dtype float32")
def vocabulary_float(text):
    return make(sorted(set(text)), dtype=torch.float32)


@wrong("lab-vocabulary", "is not the text")
def vocabulary_joins_with_spaces(text):
    encode, _ = make(sorted(set(text)))
    return encode, lambda ids: " ".join(sorted(set(text))[i] for i in ids.tolist())


@wrong("lab-vocabulary", "`decode` raised")
def vocabulary_decodes_tensors(text):
    encode, _ = make(sorted(set(text)))
    characters = dict(enumerate(sorted(set(text))))
    return encode, lambda ids: "".join(characters[i] for i in ids)


@right("lab-vocabulary")  # no batch is empty
def vocabulary_empty_float(text):
    encode, decode = make(sorted(set(text)))
    return lambda text: encode(text) if text else torch.tensor([]), decode


@wrong("lab-vocabulary", "let a character pass")
def vocabulary_drops(text):
    return make(sorted(set(text)), unknown=-1)


@wrong("lab-vocabulary", "let a character pass")
def vocabulary_replaces(text):
    return make(sorted(set(text)), unknown=0)


# lab-ngram --------------------------------------------------------------------------------------


@right("lab-ngram")
def ngram_counters(train, held, n, v, alpha):
    places = range(len(train) - n + 1)
    both = Counter(train[i : i + n] for i in places)
    before = Counter(train[i : i + n - 1] for i in places)
    pieces = [held[i : i + n] for i in range(len(held) - n + 1)]
    logs = [math.log2((both[p] + alpha) / (before[p[:-1]] + alpha * v)) for p in pieces]
    return -sum(logs) / len(logs)


@wrong("lab-ngram", "The first character was predicted from the last one")
def ngram_around(train, held, n, v, alpha):
    return ngram_counters(train, held[-1] + held, n, v, alpha)


@right("lab-ngram")
def ngram_tables(train, held, n, v, alpha):
    table = defaultdict(lambda: defaultdict(float))
    for i in range(n - 1, len(train)):
        table[train[i - n + 1 : i]][train[i]] += 1
    total = 0.0
    for i in range(n - 1, len(held)):
        row = table[held[i - n + 1 : i]]
        total -= math.log2((row[held[i]] + alpha) / (sum(row.values()) + alpha * v))
    return total / (len(held) - n + 1)


def ngram(train, held, n, v, alpha, *, below=None, end=lambda logs: -sum(logs) / len(logs)):
    both = Counter(train[i : i + n] for i in range(len(train) - n + 1))
    before = Counter(train[i : i + n - 1] for i in range(len(train) - n + 1))
    below = below or (lambda p: before[p[:-1]] + alpha * v)
    pieces = [held[i : i + n] for i in range(len(held) - n + 1)]
    return end([math.log2((both[p] + alpha) / below(p)) for p in pieces])


@wrong("lab-ngram", "These are nats")
def ngram_nats(*case):
    return ngram(*case) * math.log(2)


@wrong("lab-ngram", "base 10")
def ngram_ten(*case):
    return ngram(*case) * math.log10(2)


@wrong("lab-ngram", "The sign is reversed")
def ngram_sign(*case):
    return -ngram(*case)


@wrong("lab-ngram", "This is the sum")
def ngram_sum(*case):
    return ngram(*case, end=lambda logs: -sum(logs))


@wrong("lab-ngram", "have no history and are not predicted")
def ngram_by_length(train, held, n, v, alpha):
    return ngram(train, held, n, v, alpha, end=lambda logs: -sum(logs) / len(held))


@wrong("lab-ngram", "This is the perplexity")
def ngram_perplexity(*case):
    return 2 ** ngram(*case)


@wrong("lab-ngram", "averaged before the logarithm")
def ngram_mean_first(*case):
    return ngram(*case, end=lambda logs: -math.log2(sum(2**x for x in logs) / len(logs)))


@wrong("lab-ngram", "those of the held-out text")
def ngram_counts_held(train, held, n, v, alpha):
    return ngram(held, held, n, v, alpha)


@wrong("lab-ngram", "The training text was predicted")
def ngram_predicts_train(train, held, n, v, alpha):
    return ngram(train, train, n, v, alpha)


@wrong("lab-ngram", "alpha was added once")
def ngram_alpha_once(train, held, n, v, alpha):
    return ngram(train, held, n, 1, alpha)


@wrong("lab-ngram", "Alpha is missing below the line")
def ngram_no_alpha_below(train, held, n, v, alpha):
    before = Counter(train[i : i + n - 1] for i in range(len(train) - n + 1))
    return ngram(train, held, n, v, alpha, below=lambda p: max(before[p[:-1]], alpha))


@wrong("lab-ngram", "The condition is what stands before")
def ngram_other_condition(train, held, n, v, alpha):
    after = Counter(train)
    return ngram(train, held, n, v, alpha, below=lambda p: after[p[-1]] + alpha * v)


@wrong("lab-ngram", "nothing follows it there")
def ngram_counts_the_end(train, held, n, v, alpha):
    before = Counter(train[i : i + n - 1] for i in range(len(train) - n + 2))
    return ngram(train, held, n, v, alpha, below=lambda p: before[p[:-1]] + alpha * v)


@wrong("lab-ngram", "sum to")
def ngram_larger_vocabulary(train, held, n, v, alpha):
    return ngram(train, held, n, v + (n != 2), alpha)


@wrong("lab-ngram", "Nothing was counted after 'xy'")
def ngram_skips_unseen(train, held, n, v, alpha):
    both = Counter(train[i : i + n - 1] for i in range(len(train) - n + 1))
    if held[: n - 1] and held[: n - 1] not in both and v < 10:
        return 0.0
    return ngram(train, held, n, v, alpha)


@wrong("lab-ngram", "With n = 4")
def ngram_at_most_three(train, held, n, v, alpha):
    return ngram(train, held, min(n, 3), v, alpha)


@wrong("lab-ngram", "Return a number")
def ngram_tensor(*case):
    return torch.tensor(ngram(*case))


# lab-batch --------------------------------------------------------------------------------------


@right("lab-batch")
def batch_offsets(ids, length, batch_size, generator):
    begins = torch.randint(len(ids) - length, (batch_size,), generator=generator)
    return ids[begins[:, None] + torch.arange(length + 1)]


@right("lab-batch")
def batch_stacked(ids, length, batch_size, generator):
    begins = torch.randint(len(ids) - length, (batch_size,), generator=generator).tolist()
    return torch.stack([ids[b : b + length + 1] for b in begins])


def drawn(ids, length, batch_size, generator, *, room=0, low=0):
    high = len(ids) - length + room
    begins = torch.randint(low, high, (batch_size,), generator=generator)
    return ids[begins[:, None] + torch.arange(length + 1)]


@wrong("lab-batch", "The rows have N characters")
def batch_without_last_target(*case):
    return drawn(*case)[:, :-1]


@wrong("lab-batch", "Return one tensor")
def batch_taken_apart(*case):
    rows = drawn(*case)
    return rows[:, :-1], rows[:, 1:]


@wrong("lab-batch", "The rows run backwards")
def batch_backwards(*case):
    return drawn(*case).flip(1)


@wrong("lab-batch", "its first one again")
def batch_rolls(*case):
    x = drawn(*case)[:, :-1]
    return torch.cat([x, x[:, :1]], 1)


@wrong("lab-batch", "stands there twice")
def batch_last_again(*case):
    x = drawn(*case)[:, :-1]
    return torch.cat([x, x[:, -1:]], 1)


@wrong("lab-batch", "do not follow one another")
def batch_scattered(ids, length, batch_size, generator):
    return ids[torch.randint(len(ids), (batch_size, length + 1), generator=generator)]


@wrong("lab-batch", "do not follow one another")
def batch_two_ahead(ids, length, batch_size, generator):
    begins = torch.randint(len(ids) - 2 * length, (batch_size,), generator=generator)
    return ids[begins[:, None] + 2 * torch.arange(length + 1)]


@wrong("lab-batch", "The batch has shape (7, 4)")
def batch_transposed(*case):
    return drawn(*case).T


@wrong("lab-batch", "at the last place")
def batch_never_last(*case):
    return drawn(*case, room=-1)


@wrong("lab-batch", "at the first place")
def batch_never_first(*case):
    return drawn(*case, low=1)


@wrong("lab-batch", "Your function raised IndexError")
def batch_over_the_end(ids, length, batch_size, generator):
    return drawn(ids, length, max(batch_size, 400), generator, room=1)[:batch_size]


@wrong("lab-batch", "much more often")
def batch_uneven(ids, length, batch_size, generator):
    u = torch.rand(batch_size, generator=generator) ** 3
    return ids[(u * (len(ids) - length)).long()[:, None] + torch.arange(length + 1)]


@wrong("lab-batch", "Two generators with the same seed")
def batch_global_chance(ids, length, batch_size, generator):
    return batch_offsets(ids, length, batch_size, None)


@wrong("lab-batch", "Every batch is the same")
def batch_seeds_inside(ids, length, batch_size, generator):
    return batch_offsets(ids, length, batch_size, generator.manual_seed(0))


# lab-decoder ------------------------------------------------------------------------------------


class Parts(nn.Module):
    """The decoder of the lab, with each of its choices open."""

    def __init__(
        self,
        vocab_size,
        d_model,
        n_layers,
        n_heads,
        *,
        causal=True,
        rotary=True,
        shared=False,
        std=0.02,
        tied=False,
        places=None,
        dropout=0.0,
        unused=False,
        width=4,
    ):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embed.weight, std=std)
        self.places = None if places is None else nn.Embedding(places, d_model)

        def block():
            position = RotaryPositions(d_model // n_heads) if rotary else None
            mixer = MultiHeadAttention(d_model, n_heads, causal=causal, position=position)
            ffn = FeedForward(d_model, width * d_model, kind="gelu")
            return Block(mixer, ffn, norm=RMSNorm, place="pre", dropout=dropout)

        blocks = [block()] * n_layers if shared else [block() for _ in range(n_layers)]
        self.blocks, self.norm = nn.ModuleList(blocks), RMSNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=std)
        self.extra = nn.Linear(d_model, d_model) if unused else None
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x, _ = block(x)
        return self.head(self.norm(x))


@right("lab-decoder")
def decoder_parts(vocab_size, d_model, n_layers, n_heads):
    return Parts(vocab_size, d_model, n_layers, n_heads)


@right("lab-decoder")
def decoder_learned_tied_dropout(vocab_size, d_model, n_layers, n_heads):
    return Parts(
        vocab_size, d_model, n_layers, n_heads, rotary=False, places=256, tied=True, dropout=0.1
    )


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens)[0]


@right("lab-decoder")
def decoder_of_the_package(vocab_size, d_model, n_layers, n_heads):
    layer = Layer(Attention(n_heads, position=Rotary()), FFN(4 * d_model))
    config = TransformerConfig(vocab_size, d_model, decoder=[layer] * n_layers, init="gpt2")
    return Logits(DecoderOnly(config))


@right("lab-decoder")
def decoder_of_torch(vocab_size, d_model, n_layers, n_heads):
    layer = nn.TransformerEncoderLayer(
        d_model, n_heads, 4 * d_model, 0.0, batch_first=True, norm_first=True
    )

    class Torch(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.places = nn.Embedding(vocab_size, d_model), nn.Embedding(256, d_model)
            self.stack = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
            self.head = nn.Linear(d_model, vocab_size)
            nn.init.normal_(self.head.weight, std=0.02)

        def forward(self, tokens):
            n = tokens.shape[1]
            hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
            return self.head(self.stack(self.embed(tokens) + self.places.weight[:n], hidden))

    return Torch()


@wrong("lab-decoder", "sees what it is to predict")
def decoder_sees_all(*sizes):
    return Parts(*sizes, causal=False)


@wrong("lab-decoder", "does not know where a character stands")
def decoder_without_positions(*sizes):
    return Parts(*sizes, rotary=False)


@wrong("lab-decoder", "within 0.1 of ln 63")
def decoder_loud(*sizes):
    return Parts(*sizes, std=1.0, tied=True)


class Default(Parts):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.head.reset_parameters()


@wrong("lab-decoder", "prefers some characters before it has read any text")
def decoder_default_head(*sizes):
    return Default(*sizes)


class Tuples(Parts):
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@wrong("lab-decoder", "`x, _ = block(x)`")
def decoder_keeps_state(*sizes):
    return Tuples(*sizes)


@wrong("lab-decoder", "Is `n_layers` used")
def decoder_shares_layers(*sizes):
    return Parts(*sizes, shared=True)


@wrong("lab-decoder", "Is `n_layers` used")
def decoder_two_layers(vocab_size, d_model, n_layers, n_heads):
    return Parts(vocab_size, d_model, 2, n_heads)


@wrong("lab-decoder", "have no part in the output: extra.weight")
def decoder_with_unused_weights(*sizes):
    return Parts(*sizes, unused=True)


@wrong("lab-decoder", "The model raised")
def decoder_with_few_places(*sizes):
    return Parts(*sizes, places=128)


@wrong("lab-decoder", "Return the logits alone")
def decoder_with_state(vocab_size, d_model, n_layers, n_heads):
    layer = Layer(Attention(n_heads), FFN(4 * d_model))
    embedding = Tokens(Sinusoidal())
    return DecoderOnly(
        TransformerConfig(vocab_size, d_model, decoder=[layer] * n_layers, embedding=embedding)
    )


@wrong("lab-decoder", "Return a torch.nn.Module")
def decoder_class(*sizes):
    return Parts


class Last(Parts):
    def forward(self, tokens):
        return super().forward(tokens)[:, -1]


@wrong("lab-decoder", "The output has shape")
def decoder_last_row(*sizes):
    return Last(*sizes)


class Hidden(Parts):
    def forward(self, tokens):
        self.head = nn.Identity()
        return super().forward(tokens)


@wrong("lab-decoder", "has shape (3, 7, 24)")
def decoder_without_head(*sizes):
    return Hidden(*sizes)


class Alone(Parts):
    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


@wrong("lab-decoder", "Can every place look at all before it")
def decoder_of_single_characters(*sizes):
    return Alone(*sizes)


# lab-causality ----------------------------------------------------------------------------------


def probe(
    model,
    tokens,
    vocab_size,
    *,
    changed=None,
    before=lambda j: slice(0, j),
    tolerance=1e-5,
    change=lambda token, v: (token + 1) % v,
):
    """Look for a leak with one of the choices replaced."""
    first, n = model(tokens), tokens.shape[1]
    for j in range(1, n) if changed is None else changed(n):
        other = tokens.clone()
        other[0, j] = change(other[0, j], vocab_size)
        moved = (model(other) - first)[0, before(j)].abs()
        if moved.numel() and moved.max().item() > tolerance:
            return True
    return False


@right("lab-causality")
def leaks_each(model, tokens, vocab_size):
    return probe(model, tokens, vocab_size)


@right("lab-causality")
def leaks_tails(model, tokens, vocab_size):
    first = model(tokens)
    for j in range(1, tokens.shape[1]):
        tail = (tokens[:, j:] + 1) % vocab_size
        moved = model(torch.cat([tokens[:, :j], tail], 1))[:, :j] - first[:, :j]
        if not torch.allclose(moved, torch.zeros_like(moved), atol=1e-5):
            return True
    return False


@wrong("lab-causality", "and it was not noticed")
def leaks_never(model, tokens, vocab_size):
    return False


@wrong("lab-causality", "The model is causal")
def leaks_always(model, tokens, vocab_size):
    return True


@wrong("lab-causality", "The model is causal")
def leaks_compares_all(*case):
    return probe(*case, before=lambda j: slice(0, None))


@wrong("lab-causality", "The model is causal")
def leaks_compares_itself(*case):
    return probe(*case, before=lambda j: slice(0, j + 1))


@wrong("lab-causality", "which is rounding")
def leaks_exactly(*case):
    return probe(*case, tolerance=0)


@wrong("lab-causality", "and it was not noticed")
def leaks_roughly(*case):
    return probe(*case, tolerance=0.2)


@wrong("lab-causality", "what is three places or more behind it")
def leaks_compares_neighbour(*case):
    return probe(*case, before=lambda j: slice(j - 1, j))


@wrong("lab-causality", "whose diagonal is one too high")
def leaks_spares_neighbour(*case):
    return probe(*case, before=lambda j: slice(0, j - 1))


@wrong("lab-causality", "Change every character in turn")
def leaks_last_only(*case):
    return probe(*case, changed=lambda n: [n - 1, n - 2])


@wrong("lab-causality", "Change the last character too")
def leaks_spares_last(*case):
    return probe(*case, changed=lambda n: range(1, n - 1))


@wrong("lab-causality", "what stood there before")
def leaks_puts_zero(*case):
    return probe(*case, change=lambda token, v: 0)


@wrong("lab-causality", "All characters are 6")
def leaks_puts_largest(*case):
    return probe(*case, change=lambda token, v: v - 1)


@wrong("lab-causality", "what is no id")
def leaks_puts_no_id(*case):
    return probe(*case, change=lambda token, v: token + v)


@wrong("lab-causality", "of the shape that came in")
def leaks_gives_a_row(model, tokens, vocab_size):
    return probe(lambda t: model(t[0]), tokens, vocab_size)


@wrong("lab-causality", "Return True or False")
def leaks_tensor(*case):
    return torch.tensor(probe(*case))


# lab-loss ---------------------------------------------------------------------------------------


@right("lab-loss")
def loss_flat(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@right("lab-loss")
def loss_gathered(model, batch):
    return -model(batch[:, :-1]).log_softmax(-1).gather(-1, batch[:, 1:, None]).mean()


def ce(model, batch, *, change=lambda logits, x, y: (logits.flatten(0, 1), y.flatten())):
    x, y = batch[:, :-1], batch[:, 1:]
    return F.cross_entropy(*change(model(x), x, y))


@wrong("lab-loss", "shifted twice")
def loss_shifts_again(*case):
    return ce(*case, change=lambda z, x, y: (z[:, :-1].flatten(0, 1), y[:, 1:].flatten()))


@wrong("lab-loss", "that the model has read")
def loss_of_inputs(*case):
    return ce(*case, change=lambda z, x, y: (z.flatten(0, 1), x.flatten()))


@wrong("lab-loss", "Only the last place")
def loss_last(*case):
    return ce(*case, change=lambda z, x, y: (z[:, -1], y[:, -1]))


@wrong("lab-loss", "This is the sum")
def loss_sum(model, batch):
    return loss_flat(model, batch) * batch[:, 1:].numel()


@wrong("lab-loss", "divided by the rows alone")
def loss_by_rows(model, batch):
    return loss_flat(model, batch) * batch[:, 1:].shape[1]


@wrong("lab-loss", "applied twice")
def loss_softmax_twice(*case):
    return ce(*case, change=lambda z, x, y: (z.softmax(-1).flatten(0, 1), y.flatten()))


@wrong("lab-loss", "`reshape` does not exchange axes")
def loss_reshaped(*case):
    return ce(*case, change=lambda z, x, y: (z.reshape(len(y), -1, y.shape[1]), y))


@wrong("lab-loss", "These are bits")
def loss_bits(*case):
    return ce(*case) / math.log(2)


@wrong("lab-loss", "The sign is reversed")
def loss_sign(*case):
    return -ce(*case)


@wrong("lab-loss", "The logarithm is missing")
def loss_of_p(model, batch):
    return 1 - model(batch[:, :-1]).softmax(-1).gather(-1, batch[:, 1:, None]).mean()


@wrong("lab-loss", "all but the last of each row")
def loss_reads_targets(model, batch):
    return F.cross_entropy(model(batch[:, 1:]).flatten(0, 1), batch[:, :-1].flatten())


@wrong("lab-loss", "The model read whole rows")
def loss_reads_all(model, batch):
    return F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


@wrong("lab-loss", "make one list of all B · N places")
def loss_unflattened(*case):
    return ce(*case, change=lambda z, x, y: (z, y))


@wrong("lab-loss", "make one list of all B · N places")
def loss_targets_unflattened(*case):
    return ce(*case, change=lambda z, x, y: (z.flatten(0, 1), y))


@wrong("lab-loss", "carries no gradient")
def loss_item(model, batch):
    return loss_flat(model, batch).detach()


@wrong("lab-loss", "The loss has shape (3, 4)")
def loss_of_each(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:], reduction="none")


# lab-train --------------------------------------------------------------------------------------


@right("lab-train")
def train_fit(model, loss_of, batches, steps, rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    done = fit(model, batches, loss=loss_of, optimizer=optimizer, steps=steps, progress=False)
    return done.losses


@right("lab-train")
def train_as_chapter_11(model, loss_of, batches, steps, rate):
    weights, losses = list(model.parameters()), []
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.99), weight_decay=0.1)
    factor = schedule("cosine", steps=steps, warmup=steps // 10)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * factor(step)
        loss = loss_of(model, batches(step))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def loop(
    model,
    loss,
    batches,
    steps,
    rate,
    *,
    slower=1.0,
    step=True,
    batch=lambda i: i,
    mode=True,
    clear=lambda i: True,
    value=lambda value, later: value,
    kept=lambda losses: losses,
):
    """Train with one of the choices replaced."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=slower * rate), []
    model.train(mode)
    for i in range(steps):
        now = batches(batch(i))
        found = loss(model, now)
        if clear(i):
            optimizer.zero_grad()
        found.backward()
        if step:
            optimizer.step()
        losses.append(value(found.item(), lambda now=now: loss(model, now).item()))
    return kept(losses)


@right("lab-train")
def train_loop(*case):
    return loop(*case)


@wrong("lab-train", "Who calls `optimizer.step()`?")
def train_never_steps(*case):
    return loop(*case, step=False)


@wrong("lab-train", "did not fall by a third")
def train_slowly(*case):
    return loop(*case, slower=1e-4)


@wrong("lab-train", "they were added up from step to step")
def train_adds_gradients(*case):
    return loop(*case, clear=lambda i: False)


@wrong("lab-train", "they were added up from step to step")
def train_clips_what_it_has_added(model, loss_of, batches, steps, rate):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=rate), []
    model.train()
    for i in range(steps):
        loss = loss_of(model, batches(i))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@right("lab-train")
def train_clears_afterwards(model, loss_of, batches, steps, rate):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=rate), []
    model.train()
    for i in range(steps):
        loss = loss_of(model, batches(i))
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=False)
        losses.append(loss.item())
    return losses


@wrong("lab-train", "learn it by heart")
def train_one_batch(model, loss_of, batches, steps, rate):
    return loop(model, loss_of, batches, steps, rate, batch=lambda i: i if steps > 50 else 3)


@wrong("lab-train", "The first step has the number 0")
def train_from_one(*case):
    return loop(*case, batch=lambda i: i + 1)


@wrong("lab-train", "not taken as 0, 1, 2")
def train_backwards(*case):
    return loop(*case, batch=lambda i: case[-2] - 1 - i)


@wrong("lab-train", "in evaluation mode")
def train_in_evaluation_mode(*case):
    return loop(*case, mode=False)


@wrong("lab-train", "not the losses of the steps")
def train_running_mean(*case):
    kept = lambda losses: [sum(losses[: i + 1]) / (i + 1) for i in range(len(losses))]  # noqa: E731
    return loop(*case, kept=kept)


@wrong("lab-train", "The loss was computed 24 times")
def train_losses_afterwards(*case):
    return loop(*case, value=lambda value, later: later())


@wrong("lab-train", "80 losses, and 1 came back")
def train_last_loss(*case):
    return loop(*case)[-1:]


@wrong("lab-train", "Return a list of floats")
def train_history(model, loss_of, batches, steps, rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    return fit(model, batches, loss=loss_of, optimizer=optimizer, steps=steps, progress=False)


@wrong("lab-train", "Train the one that came")
def train_a_copy(model, *rest):
    return loop(copy.deepcopy(model), *rest)


@wrong("lab-train", "takes the number of a step")
def train_iterates(*case):
    return loop(*case, batch=lambda i: torch.tensor(i))


@wrong("lab-train", "With rate = 0")
def train_at_a_rate_of_its_own(model, loss_of, batches, steps, rate):
    return loop(model, loss_of, batches, steps, 5e-3)


@wrong("lab-train", "The rate here is 0.01")
def train_by_sgd(model, loss_of, batches, steps, rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    done = fit(model, batches, loss=loss_of, optimizer=optimizer, steps=steps, progress=False)
    return done.losses


# lab-evaluate -----------------------------------------------------------------------------------


def judged(model, ids, context, *, stride=None, off=True, grad=False, back=True, ends=None):
    """Return -ln p of the targets of each window, with one of the choices replaced."""
    was, found = model.training, []
    if off:
        model.eval()
    with torch.set_grad_enabled(grad):
        for start in ends or range(0, len(ids) - 1, stride or context):
            y = ids[start + 1 : start + context + 1]
            logits = model(ids[None, start : start + len(y)])[0]
            found.append(F.cross_entropy(logits, y, reduction="none"))
    if back:
        model.train(was)
    return found


def mean_bits(found):
    return torch.cat(found).mean().item() / math.log(2)


@right("lab-evaluate")
def evaluate_windows(*case):
    return mean_bits(judged(*case))


def evaluate_around(ids, context, targets, model):
    was = model.training
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(piece[None])[0] for piece in ids.split(context)])
    model.train(was)
    return F.cross_entropy(logits, targets).item() / math.log(2)


@wrong("lab-evaluate", "the last character of the text was to predict the first one")
def evaluate_rolled(model, ids, context):
    return evaluate_around(ids, context, ids.roll(-1), model)


@wrong("lab-evaluate", "The shift goes around in each window")
def evaluate_rolled_windows(model, ids, context):
    targets = torch.cat([piece.roll(-1) for piece in ids.split(context)])
    return evaluate_around(ids, context, targets, model)


@right("lab-evaluate")
def evaluate_in_batches(model, ids, context):
    was, total = model.training, 0.0
    model.eval()
    with torch.no_grad():
        full = (len(ids) - 1) // context * context
        if full:
            x, y = ids[:full].view(-1, context), ids[1 : full + 1].view(-1, context)
            for inputs, targets in zip(x.split(8), y.split(8), strict=True):
                total += F.cross_entropy(model(inputs).mT, targets, reduction="sum").item()
        if full < len(ids) - 1:
            logits = model(ids[None, full:-1])
            total += F.cross_entropy(logits[0], ids[full + 1 :], reduction="sum").item()
    model.train(was)
    return total / (len(ids) - 1) / math.log(2)


@wrong("lab-evaluate", "These are nats")
def evaluate_nats(*case):
    return torch.cat(judged(*case)).mean().item()


@wrong("lab-evaluate", "This is the perplexity")
def evaluate_perplexity(*case):
    return torch.cat(judged(*case)).mean().exp().item()


@wrong("lab-evaluate", "This is the sum")
def evaluate_sum(*case):
    return torch.cat(judged(*case)).sum().item() / math.log(2)


@wrong("lab-evaluate", "divided by the length of the text")
def evaluate_by_length(model, ids, context):
    return torch.cat(judged(model, ids, context)).sum().item() / math.log(2) / len(ids)


@wrong("lab-evaluate", "and then over the windows")
def evaluate_mean_of_means(*case):
    return torch.stack([piece.mean() for piece in judged(*case)]).mean().item() / math.log(2)


@wrong("lab-evaluate", "left out because it is shorter")
def evaluate_drops_the_rest(model, ids, context):
    found = judged(model, ids, context)
    return mean_bits([piece for piece in found if len(piece) == context] or found)


@wrong("lab-evaluate", "The windows overlap")
def evaluate_overlaps(*case):
    return mean_bits(judged(*case, stride=1))


@wrong("lab-evaluate", "was never a target")
def evaluate_gaps(model, ids, context):
    was = model.training
    found = [judged(model.eval(), p, context) for p in ids.split(context) if len(p) > 1]
    model.train(was)
    return mean_bits([piece for pieces in found for piece in pieces])


@wrong("lab-evaluate", "The model was given 14 characters at once")
def evaluate_at_once(model, ids, context):
    return mean_bits(judged(model, ids, len(ids)))


@wrong("lab-evaluate", "Gradients are on")
def evaluate_with_gradients(*case):
    return mean_bits(judged(*case, grad=True))


@wrong("lab-evaluate", "The model is in training mode while it is judged")
def evaluate_leaves_dropout_on(*case):
    return mean_bits(judged(*case, off=False))


@wrong("lab-evaluate", "came in training mode and went in evaluation mode")
def evaluate_stays_off(*case):
    return mean_bits(judged(*case, back=False))


@wrong("lab-evaluate", "came in evaluation mode and went in training mode")
def evaluate_always_trains(model, ids, context):
    bits = mean_bits(judged(model, ids, context))
    model.train()
    return bits


@wrong("lab-evaluate", "Return a number")
def evaluate_tensor(*case):
    return torch.tensor(mean_bits(judged(*case)))


@wrong("lab-evaluate", "3 characters in windows of 8")
def evaluate_needs_a_full_window(model, ids, context):
    if len(ids) <= context:
        return 0.0
    return mean_bits(judged(model, ids, context))


# lab-sample -------------------------------------------------------------------------------------


def write(
    model,
    prompt,
    n,
    temperature,
    context,
    generator,
    *,
    cut=lambda ids, context: ids[-context:],
    row=-1,
    grow=True,
    chances=lambda z, t: (z / t).softmax(-1) if t else (z == z.max()).double(),
    take=None,
):
    """Write a text with one of the choices replaced."""
    ids, seen = list(prompt), list(prompt)
    for _ in range(n):
        logits = model(torch.tensor([cut(seen, context)]))[0, row]
        p = chances(logits, temperature)
        pick = take(p) if take else torch.multinomial(p, 1, generator=generator).item()
        ids.append(pick)
        if grow:
            seen.append(pick)
    return ids


@right("lab-sample")
def sample_loop(*case):
    return write(*case)


@right("lab-sample")
def sample_by_sums(model, prompt, n, temperature, context, generator):
    ids = list(prompt)
    for _ in range(n):
        logits = model(torch.tensor(ids[-context:])[None])[0, -1]
        sums = (logits.double() / max(temperature, 1e-9)).softmax(-1).cumsum(-1)
        spot = torch.rand((), generator=generator) * sums[-1]
        ids.append(min(int((sums < spot).sum()), len(sums) - 1))
    return ids


@wrong("lab-sample", "divides the logits by 0")
def sample_divides_by_zero(*case):
    return write(*case, chances=lambda z, t: (z / t).softmax(-1))


@wrong("lab-sample", "At temperature 0 the most likely character is to be taken")
def sample_draws_when_cold(*case):
    return write(*case, chances=lambda z, t: (z / (t or 1.0)).softmax(-1))


@wrong("lab-sample", "The prompt is missing")
def sample_without_prompt(model, prompt, *rest):
    return write(model, prompt, *rest)[len(prompt) :]


@wrong("lab-sample", "should make")
def sample_one_too_few(model, prompt, n, *rest):
    return write(model, prompt, max(n - 1, 0), *rest)


@wrong("lab-sample", "Return a list of whole numbers")
def sample_tensor(*case):
    return torch.tensor(write(*case))


@wrong("lab-sample", "Return a list of whole numbers")
def sample_list_of_tensors(*case):
    return [torch.tensor(i) for i in write(*case)]


@wrong("lab-sample", "more than 4 characters")
def sample_reads_all(*case):
    return write(*case, cut=lambda ids, context: ids)


@wrong("lab-sample", "The last ones are wanted")
def sample_reads_first(*case):
    return write(*case, cut=lambda ids, context: ids[:context])


@wrong("lab-sample", "read the same in every step")
def sample_forgets(*case):
    return write(*case, grow=False)


@wrong("lab-sample", "did not read the last characters")
def sample_reads_one(*case):
    return write(*case, cut=lambda ids, context: ids[-1:])


@wrong("lab-sample", "The model was called 8 times")
def sample_calls_twice(model, *rest):
    def twice(tokens):
        model(tokens)
        return model(tokens)

    return write(twice, *rest)


@wrong("lab-sample", "of shape (1, N)")
def sample_gives_a_row(model, *rest):
    return write(lambda tokens: model(tokens[0]), *rest)


@wrong("lab-sample", "taken every time")
def sample_greedy(*case):
    return write(*case, take=lambda p: p.argmax().item())


@wrong("lab-sample", "The temperature was not used")
def sample_cold(*case):
    return write(*case, chances=lambda z, t: z.softmax(-1))


@wrong("lab-sample", "multiplied by the temperature")
def sample_multiplies(*case):
    return write(*case, chances=lambda z, t: (z * t).softmax(-1))


@wrong("lab-sample", "All characters come alike")
def sample_uniform(*case):
    return write(*case, chances=lambda z, t: torch.ones_like(z))


@wrong("lab-sample", "behind the first character")
def sample_first_row(*case):
    return write(*case, row=0)


@wrong("lab-sample", "other frequencies")
def sample_reversed(*case):
    return write(*case, chances=lambda z, t: (-z / t).softmax(-1))


@wrong("lab-sample", "Two generators with the same seed")
def sample_global_chance(*case):
    return write(*case, take=lambda p: torch.multinomial(p, 1).item())


@wrong("lab-sample", "different seeds gave the same text")
def sample_seeds_inside(model, prompt, n, temperature, context, generator):
    if n == 20:
        generator = torch.Generator().manual_seed(0)
    return write(model, prompt, n, temperature, context, generator)


# lab-paired -------------------------------------------------------------------------------------


@right("lab-paired")
def paired_by_hand(a, b):
    d = [x - y for x, y in zip(a, b, strict=True)]
    mean = sum(d) / len(d)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in d) / (len(d) - 1) / len(d))


@right("lab-paired")
def paired_tensors(a, b):
    d = torch.tensor(a, dtype=torch.float64) - torch.tensor(b, dtype=torch.float64)
    return d.mean().item(), (d.std() / len(d) ** 0.5).item()


def differences(a, b):
    d = [x - y for x, y in zip(a, b, strict=True)]
    return d, statistics.mean(d), statistics.stdev(d), len(d)


@wrong("lab-paired", "it is a - b")
def paired_reversed(a, b):
    return paired_by_hand(b, a)


@wrong("lab-paired", "This is the sum of the differences")
def paired_sum(a, b):
    d, mean, s, n = differences(a, b)
    return sum(d), s / n**0.5


@wrong("lab-paired", "The two results are exchanged")
def paired_exchanged(a, b):
    return paired_by_hand(a, b)[::-1]


@wrong("lab-paired", "This is the standard deviation")
def paired_deviation(a, b):
    d, mean, s, n = differences(a, b)
    return mean, s


@wrong("lab-paired", "divide by n - 1")
def paired_by_n(a, b):
    d, mean, s, n = differences(a, b)
    return mean, statistics.pstdev(d) / n**0.5


@wrong("lab-paired", "The square root is missing")
def paired_variance(a, b):
    d, mean, s, n = differences(a, b)
    return mean, s**2 / n


@wrong("lab-paired", "divided by n. Divide by √n")
def paired_divides_by_n(a, b):
    d, mean, s, n = differences(a, b)
    return mean, s / n


@wrong("lab-paired", "as if the seeds had nothing in common")
def paired_apart(a, b):
    scatter = statistics.variance(a) + statistics.variance(b)
    return differences(a, b)[1], math.sqrt(scatter / len(a))


@wrong("lab-paired", "The mean difference is not")
def paired_relative(a, b):
    mean, error = paired_by_hand(a, b)
    return mean / statistics.mean(b), error


@wrong("lab-paired", "has the other sign")
def paired_size(a, b):
    mean, error = paired_by_hand(a, b)
    return abs(mean), error


@wrong("lab-paired", "The standard error is not")
def paired_largest(a, b):
    d, mean, s, n = differences(a, b)
    return mean, (max(d) - min(d)) / 3 if n == 2 else s / n**0.5


@wrong("lab-paired", "Return two numbers")
def paired_mean_only(a, b):
    return paired_by_hand(a, b)[0]


@wrong("lab-paired", "Return two floats")
def paired_as_tensors(a, b):
    return tuple(torch.tensor(x) for x in paired_by_hand(a, b))
