"""What is true of caches, sampling, generation, beam search and speculation, as checks.

A check is `check(kit)`, with the modules under test as a kit's attributes; it raises AssertionError
when the property does not hold. The checks run over the package (test_generation.py) and over
planted bugs (test_generation_mutants.py). No check compares with another library. Sizes are
distinct primes where they may be, models are float64 with random weights.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType

import fresh
import torch
from model_properties import uniform
from multihead_properties import close, normal, randomised
from torch import Tensor, nn

V, LENGTH = 23, 11
CUTS = ([1] * LENGTH, [LENGTH - 1, 1], [1, LENGTH - 1], [3, 1, 7], [5, 4, 2])
POSITIONS = "sinusoidal learned rotary t5 alibi shaw transformer-xl none".split()
# What a family of models chooses, at toy size.
SMALL = {"vocab_size": V, "d_model": 24, "n_layers": 3, "n_heads": 4, "d_ff": 29}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}
CHECKS: dict[str, Callable[["Kit"], None]] = {}


class Kit:
    """The modules of one package, and models built with them."""

    MODULES = {
        "beam": "tfbook.generation.beam",
        "caches": "tfbook.attention.caches",
        "config": "tfbook.models.config",
        "generation": "tfbook.generation",
        "models": "tfbook.models",
        "sampling": "tfbook.generation.sampling",
        "speculative": "tfbook.generation.speculative",
    }

    def __init__(self, package: str):
        self.package = package

    def __getattr__(self, name: str) -> ModuleType:
        if name not in self.MODULES:
            raise AttributeError(name)
        return fresh.copy_of(self.package, self.MODULES[name])

    def decoder(self, *, seed: int = 0, **choices: object) -> nn.Module:
        """Make a decoder-only model."""
        usual = {"max_len": 31, "position": "rotary", "tie_embeddings": False}
        model = self.models.build(uniform(self.models, **(SMALL | usual | choices)))
        return lively(model, seed)

    def translator(self, *, seed: int = 0, **choices: object) -> nn.Module:
        """Make an encoder-decoder."""
        return self.decoder(seed=seed, kind="encoder-decoder", n_decoder_layers=2, **choices)

    def caches_of(self, length: int) -> dict[str, object]:
        """One cache of each kind, none of which forgets within the length."""
        return {
            "dynamic": self.caches.DynamicCache(),
            "static": self.caches.StaticCache(length),
            "sliding": self.caches.SlidingCache(length),
        }


def lively(model: nn.Module, seed: int) -> nn.Module:
    """Draw all weights such that what is said next hangs on what came long before."""
    model = randomised(model, seed).eval()
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.data += 1
        elif name.endswith("bias"):
            weight.data *= 0.3
        elif "embed" in name:
            weight.data *= weight.shape[-1] ** 0.5
        elif "mixer" in name or "cross" in name:
            weight.data *= 2
    return model


def check(run: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Put the function below among the checks."""
    CHECKS[run.__name__] = run
    return run


def ids(*shape: int, seed: int = 3, high: int = V) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(high, shape, generator=generator)


@torch.no_grad()
def piecewise(model: nn.Module, tokens: Tensor, cut: list[int], state=None, mask=None):
    """Return the logits of a sequence that is read in pieces, and the last state."""
    found, start = [], 0
    for size in cut:
        own = None if mask is None else mask[:, start : start + size]
        logits, state = model.decode(tokens[:, start : start + size], state, mask=own)
        found.append(logits)
        start += size
    return torch.cat(found, dim=1), state


# Sampling: rules written out, one number at a time.


@check
def test_temperature_raises_probabilities_to_a_power(kit):
    p = normal(3, 7).softmax(-1)
    wanted = p ** (1 / 0.3)
    got = kit.sampling.temperature(p.log() + 5, 0.3).softmax(-1)
    close(got, wanted / wanted.sum(-1, keepdim=True))


@check
def test_top_k_keeps_the_largest_and_what_ties_with_the_last(kit):
    logits = torch.tensor([[3.0, 1.0, 3.0, 2.0, 1.0], [0.0, 5.0, 4.0, 4.0, 4.0]])
    for k in range(1, 8):
        got = kit.sampling.top_k(logits, k)
        for row, kept in zip(logits.tolist(), got.tolist(), strict=True):
            border = sorted(row, reverse=True)[min(k, 5) - 1]
            assert kept == [x if x >= border else -math.inf for x in row]


@check
def test_top_p_keeps_the_smallest_set_that_reaches_p(kit):
    logits = normal(5, 13)
    for p in (1e-9, 0.1, 0.5, 0.9, 0.999, 1.0):
        kept = kit.sampling.top_p(logits, p)
        for row, left in zip(logits.softmax(-1).tolist(), kept.tolist(), strict=True):
            order, mass, wanted = sorted(range(13), key=lambda i: -row[i]), 0.0, set()
            for token in order:
                if mass < p:
                    wanted.add(token)
                    mass += row[token]
            assert {i for i, x in enumerate(left) if x > -math.inf} == wanted
    close(kit.sampling.top_p(logits, 1.0), logits)


@check
def test_top_p_takes_the_lower_id_of_two_equals(kit):
    kept = kit.sampling.top_p(torch.zeros(1, 8), 0.5).softmax(-1)
    assert kept.tolist() == [[0.25] * 4 + [0.0] * 4]
    kept = kit.sampling.top_p(torch.tensor([[0.1, 0.4, 0.1, 0.4]]).log(), 0.85)
    assert (kept > -math.inf).tolist() == [[True, True, False, True]]


@check
def test_min_p_keeps_what_is_near_the_most_probable(kit):
    p = torch.tensor([[0.02, 0.4, 0.1, 0.08, 0.4], [0.2, 0.2, 0.2, 0.2, 0.2]]).double()
    for share in (0.2, 0.04, 1.0):
        kept = kit.sampling.min_p(p.log() - 3, share) > -math.inf
        rule = p >= share * p.amax(-1, keepdim=True) * (1 - 1e-12)
        assert kept.tolist() == rule.tolist()


@check
def test_a_repeated_token_is_punished_once_and_padding_not_at_all(kit):
    logits = normal(3, 7)
    tokens = torch.tensor([[0, 2, 2, 5], [1, 1, 1, 1], [6, 6, 3, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 1, 1]]).bool()
    got = kit.sampling.repetition_penalty(logits, tokens, 1.7, mask=mask)
    for row in range(3):
        seen = set(tokens[row][mask[row]].tolist())
        for token, (before, after) in enumerate(zip(logits[row], got[row], strict=True)):
            factor = (1.7 if before < 0 else 1 / 1.7) if token in seen else 1.0
            close(after, before * factor)


@check
def test_warp_applies_temperature_then_top_k_then_top_p_then_min_p(kit):
    sampling, logits = kit.sampling, 2 * normal(4, 17)
    got = sampling.Sampling(temperature=1.7, top_k=9, top_p=0.8, min_p=0.1)(logits)
    wanted = sampling.top_k(sampling.temperature(logits, 1.7), 9)
    wanted = sampling.min_p(sampling.top_p(wanted, 0.8), 0.1)
    close(got, wanted)
    assert (sampling.Sampling()(logits) == logits).all()


@check
def test_a_penalty_comes_first_and_counts_what_each_row_has_seen(kit):
    sampling, logits = kit.sampling, 2 * normal(3, 7)
    seen = [[0, 2, 2], [5], [1, 6]]
    choices = {"temperature": 0.6, "top_k": 4, "top_p": 0.9}
    got = sampling.Sampling(repetition_penalty=1.7, **choices)(logits, seen)
    for row, ids, found in zip(logits, seen, got, strict=True):
        punished = torch.tensor(
            [x * 1.7 if x < 0 else x / 1.7 for x in row.tolist()], dtype=row.dtype
        )
        changed = torch.where(torch.tensor([i in ids for i in range(7)]), punished, row)
        close(found, sampling.Sampling(**choices)(changed))
    rule = sampling.Sampling(rule=lambda x: -x, repetition_penalty=1.7)
    close(rule(logits, seen), -sampling.Sampling(repetition_penalty=1.7)(logits, seen))


@check
def test_at_temperature_0_all_is_on_the_most_likely_token(kit):
    logits = torch.tensor([[3.0, 1.0, 3.0], [-2.0, -math.inf, -1.0]])
    for sampling in (kit.sampling.GREEDY, kit.sampling.Sampling(temperature=0.0)):
        assert sampling(logits).softmax(-1).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        assert not sampling.draws
    assert kit.sampling.Sampling(temperature=1e-3).draws


@check
def test_draw_gives_each_token_its_share_of_the_numbers(kit):
    p = torch.tensor([0.0, 3.0, 0.0, 1.0, 4.0, 0.0]).double() / 8
    numbers = (torch.arange(800) + 0.5).double() / 800
    drawn = kit.sampling.draw(p.log().expand(800, 6), numbers)
    assert Counter(drawn.tolist()) == {1: 300, 3: 100, 4: 400}
    ends = torch.tensor([0.0, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert kit.sampling.draw(p.log().expand(2, 6), ends).tolist() == [1, 4]


@check
def test_draw_ends_on_a_possible_token_however_the_sum_is_rounded(kit):
    last = torch.full((64,), math.nextafter(1.0, 0.0), dtype=torch.float64)
    logits = torch.cat([normal(64, 97), torch.full((64, 3), -math.inf).double()], dim=1)
    assert kit.sampling.draw(logits, last).max() < 97


# Caches


@check
def test_every_cut_and_every_cache_give_the_whole_with_every_position(kit):
    tokens = ids(2, LENGTH)
    for position in POSITIONS:
        model = kit.decoder(position=position, n_kv_heads=2, n_layers=2)
        whole, _ = piecewise(model, tokens, [LENGTH])
        caches = kit.caches_of(LENGTH).values()
        for cut, cache in [(cut, None) for cut in CUTS] + [(CUTS[3], cache) for cache in caches]:
            state = None if cache is None else model.empty_state(2, cache=cache)
            got, state = piecewise(model, tokens, cut, state)
            close(got, whole, atol=1e-10)
            assert state.length == LENGTH


@check
def test_a_state_can_be_continued_twice_and_is_not_changed(kit):
    model, tokens = kit.decoder(), ids(2, LENGTH)
    other = (tokens + 1) % V
    wanted, _ = piecewise(model, tokens, [LENGTH])
    fork, _ = piecewise(model, torch.cat([tokens[:, :4], other[:, 4:]], dim=1), [LENGTH])
    for cache in kit.caches_of(LENGTH).values():
        _, start = piecewise(model, tokens[:, :4], [4], model.empty_state(2, cache=cache))
        _, ahead = piecewise(model, tokens[:, 4:7], [1, 2], start)
        close(piecewise(model, other[:, 4:], [3, 4], start)[0], fork[:, 4:], atol=1e-10)
        close(piecewise(model, tokens[:, 7:], [4], ahead)[0], wanted[:, 7:], atol=1e-10)
        close(piecewise(model, tokens[:, 4:], [7], start)[0], wanted[:, 4:], atol=1e-10)


@check
def test_chosen_rows_go_on_by_themselves(kit):
    model, tokens = kit.decoder(position="learned"), ids(5, LENGTH)
    mask = torch.ones(5, LENGTH).bool()
    mask[1, :3] = mask[4, :2] = False
    rows = torch.tensor([4, 1, 1])
    for cache in kit.caches_of(LENGTH).values():
        state = model.empty_state(5, cache=cache)
        whole, _ = piecewise(model, tokens, [LENGTH], state, mask)
        _, state = piecewise(model, tokens[:, :6], [6], state, mask[:, :6])
        for _ in range(2):  # the second continuation starts beside the first
            got, _ = piecewise(model, tokens[rows, 6:], [2, 3], state.select(rows))
            close(got, whole[rows, 6:], atol=1e-10)


@check
def test_going_back_is_as_if_nothing_had_been_read(kit):
    model, tokens = kit.decoder(position="t5"), ids(2, LENGTH)
    whole, _ = piecewise(model, tokens, [LENGTH])
    for cache in kit.caches_of(LENGTH + 4).values():
        _, state = piecewise(model, ids(2, 9, seed=8), [9], model.empty_state(2, cache=cache))
        _, state = piecewise(model, tokens, [3, 5], state.truncate(0))
        close(piecewise(model, tokens[:, 2:], [9], state.truncate(2))[0], whole[:, 2:], atol=1e-10)
        assert state.truncate(2).length == 2


@check
def test_a_sliding_cache_is_exact_for_a_model_that_sees_no_further(kit):
    tokens = ids(2, LENGTH)
    for position, window in itertools.product(POSITIONS, (1, 2, 5)):
        model = kit.decoder(position=position, window=window, n_layers=2)
        whole, _ = piecewise(model, tokens, [LENGTH])
        for cut in CUTS[2:4]:
            state = model.empty_state(2, cache=kit.caches.SlidingCache(window))
            got, state = piecewise(model, tokens, cut, state)
            close(got, whole, atol=1e-10)
            assert state.layers[0].mixer.length == window - 1


@check
def test_sinks_stay_where_they_were(kit):
    """One layer, so that what a token sees decides everything."""
    tokens, window, sinks = ids(2, LENGTH), 3, 2
    row, column = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    seen = (column <= row) & ((column > row - window) | (column < sinks))
    for position in ("rotary", "alibi", "t5", "shaw", "transformer-xl"):
        model = kit.decoder(position=position, n_layers=1)
        with torch.no_grad():
            whole, _ = model.decode(tokens, None, mask=seen[None])
        state = model.empty_state(2, cache=kit.caches.SlidingCache(window, sinks=sinks))
        got, state = piecewise(model, tokens, [1] * LENGTH, state)
        close(got, whole, atol=1e-10)
        assert state.layers[0].mixer.length == sinks + window - 1


@check
def test_a_sliding_cache_remembers_which_keys_were_padding(kit):
    tokens, mask = ids(2, LENGTH), torch.ones(2, LENGTH).bool()
    mask[1, :3] = False
    model = kit.decoder(window=5, n_layers=2)
    whole, _ = piecewise(model, tokens, [LENGTH], None, mask)
    for cut in ([4] + [1] * 7, [1] * LENGTH):
        state = model.empty_state(2, cache=kit.caches.SlidingCache(5))
        got, _ = piecewise(model, tokens, cut, state, mask)
        close(got[0], whole[0], atol=1e-10)
        close(got[1, 3:], whole[1, 3:], atol=1e-10)


@check
def test_what_each_cache_holds_is_what_the_formula_says(kit):
    model, tokens = kit.decoder(n_kv_heads=2, window=5), ids(3, LENGTH)
    one = 2 * 3 * 3 * 2 * 6 * 8  # k and v, layers, sequences, heads, numbers, bytes
    holds = {
        "dynamic": lambda n: n,
        "static": lambda n: 13,
        "sliding": lambda n: min(n, 4),
    }
    caches = kit.caches_of(13) | {"sliding": kit.caches.SlidingCache(5)}
    for name, cache in caches.items():
        state, n = model.empty_state(3, cache=cache), 0
        for size in (1, 3, 1, 6):
            _, state = piecewise(model, tokens[:, n : n + size], [size], state)
            n += size
            assert state.nbytes == holds[name](n) * one
            if name != "static":  # no view of something larger
                keys = state.layers[0].mixer.k
                assert keys.untyped_storage().nbytes() <= 2 * keys.nbytes


@check
def test_a_static_cache_writes_where_it_stands(kit):
    model, tokens = kit.decoder(), ids(1, LENGTH)
    state = model.empty_state(1, cache=kit.caches.StaticCache(LENGTH))
    places = set()
    for i in range(LENGTH):
        _, state = piecewise(model, tokens[:, i : i + 1], [1], state)
        places.add(state.layers[0].mixer.k.data_ptr())
    assert len(places) == 1


# Generation


def by_hand(model, prompt: list[int], n: int, stop: int | None = None) -> list[int]:
    """Greedy decoding as in a lecture: read everything again for each token."""
    sequence = list(prompt)
    for _ in range(n):
        with torch.no_grad():
            logits, _ = model.decode(torch.tensor([sequence]), None)
        sequence.append(int(logits[0, -1].argmax()))
        if sequence[-1] == stop:
            break
    return sequence[len(prompt) :]


PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [10, 11]]


@check
def test_greedy_takes_the_most_likely_token_of_a_full_pass_each_time(kit):
    for position in ("learned", "sinusoidal", "rotary", "t5"):
        model = kit.decoder(position=position, seed=2)
        wanted = [by_hand(model, prompt, 7) for prompt in PROMPTS]
        assert kit.generation.generate(model, PROMPTS, max_new_tokens=7).tokens == wanted
        for prompt, tokens in zip(PROMPTS, wanted, strict=True):
            assert kit.generation.generate(model, prompt, max_new_tokens=7).tokens == [tokens]


@check
def test_every_cache_generates_the_same(kit):
    model = kit.decoder(seed=4)
    wanted = kit.generation.generate(model, PROMPTS, max_new_tokens=9).tokens
    for cache in kit.caches_of(14).values():
        got = kit.generation.generate(model, PROMPTS, max_new_tokens=9, cache=cache)
        assert got.tokens == wanted


class Counting:
    """A model that counts what it is asked to read."""

    def __init__(self, model):
        self.model, self.read = model, []

    def decode(self, tokens, state=None, *, mask=None, last=False):
        self.read.append(tuple(tokens.shape))
        return self.model.decode(tokens, state, mask=mask, last=last)


@check
def test_each_token_is_read_once_and_the_last_not_at_all(kit):
    model = Counting(kit.decoder())
    kit.generation.generate(model, PROMPTS, max_new_tokens=6)
    assert model.read == [(4, 5)] + [(4, 1)] * 5


def circle(kit, n: int = 7):
    """0 → 1 → … → n − 1 → 0, with certainty."""
    return kit.generation.TableModel(100 * torch.eye(n).roll(1, dims=1))


@check
def test_it_stops_at_an_id_a_sequence_or_when_told_and_says_so(kit):
    model, generate = circle(kit), kit.generation.generate
    prompts = [[0], [4, 5], [2]]
    for stop, wanted in (
        (6, [[1, 2, 3, 4, 5, 6], [6], [3, 4, 5, 6]]),
        ([3, 6], [[1, 2, 3], [6], [3]]),
        ([(2, 3), [6, 0], [1, 0]], [[1, 2, 3], [6, 0], [3, 4, 5, 6, 0]]),
        ([(3, 2), 6], [[1, 2, 3, 4, 5, 6], [6], [3, 4, 5, 6]]),
        (lambda new: len(new) == 2, [[1, 2], [6, 0], [3, 4]]),
    ):
        got = generate(model, prompts, max_new_tokens=6, stop=stop)
        assert (got.tokens, got.finished) == (wanted, [True] * 3)
    got = generate(model, prompts, max_new_tokens=2, stop=6)
    assert (got.tokens, got.finished) == ([[1, 2], [6], [3, 4]], [False, True, False])
    assert got.sequences == [[0, 1, 2], [4, 5, 6], [2, 3, 4]]


@check
def test_a_sequence_that_stops_leaves_the_batch_and_changes_no_other(kit):
    model = kit.decoder(seed=6)
    for options in ({}, {"sampling": kit.sampling.Sampling(temperature=1.3), "seed": 5}):
        free = kit.generation.generate(model, PROMPTS, max_new_tokens=9, **options)
        first = free.tokens[1][1]
        counted = Counting(model)
        cut = kit.generation.generate(counted, PROMPTS, max_new_tokens=9, stop=first, **options)
        for whole, part in zip(free.tokens, cut.tokens, strict=True):
            end = whole.index(first) + 1 if first in whole else len(whole)
            assert part == whole[:end]
        assert counted.read[-1][0] < 4


@check
def test_log_probabilities_are_those_of_a_full_pass(kit):
    model = kit.decoder(position="learned", seed=7)
    sampling = kit.sampling.Sampling(temperature=2.0, top_k=5, repetition_penalty=1.3)
    got = kit.generation.generate(model, PROMPTS, max_new_tokens=6, sampling=sampling, seed=1)
    for prompt, sequence, found in zip(got.prompts, got.sequences, got.log_probs, strict=True):
        with torch.no_grad():
            logits, _ = model.decode(torch.tensor([sequence]), None)
        full = logits[0].log_softmax(-1)[range(len(sequence) - 1), sequence[1:]]
        close(torch.tensor(found, dtype=torch.float64), full[len(prompt) - 1 :], atol=1e-10)
        close(kit.generation.score(model, sequence)[0], full, atol=1e-10)


def unlikely(counts: Counter, wanted: dict, draws: int) -> float:
    """Return the largest deviation of a count from what is expected, in standard deviations."""
    assert set(counts) <= {key for key, p in wanted.items() if p > 0}
    return max(
        abs(counts[key] - draws * p) / math.sqrt(draws * p * (1 - p))
        for key, p in wanted.items()
        if 0 < p < 1
    )


@check
def test_pairs_of_tokens_come_as_often_as_their_probabilities_say(kit):
    p, draws = (1.5 * normal(5, 5)).softmax(-1), 8000
    model = kit.generation.TableModel(p.log())
    sampling = kit.sampling.Sampling(temperature=0.7, top_k=3)
    got = kit.generation.generate(
        model, [[3]] * draws, max_new_tokens=2, sampling=sampling, seed=11
    )
    q = kit.sampling.top_k(kit.sampling.temperature(p.log(), 0.7), 3).softmax(-1)
    pairs = {(a, b): float(q[3, a] * q[a, b]) for a in range(5) for b in range(5)}
    assert unlikely(Counter(map(tuple, got.tokens)), pairs, draws) < 4


@check
def test_a_seed_repeats_and_another_does_not(kit):
    model = kit.decoder(seed=8)

    def run(seed=None, **choices):
        sampling = kit.sampling.Sampling(**choices)
        return kit.generation.generate(
            model, PROMPTS, max_new_tokens=9, sampling=sampling, seed=seed
        ).tokens

    generator = torch.Generator().manual_seed(3)
    assert run(3) == run(3) != run(4)
    first = run(generator)
    assert run(generator) != first  # it goes on where it was
    assert run(generator.manual_seed(3)) == first
    torch.manual_seed(3)
    assert run() == first != run()
    after = torch.random.get_rng_state()
    run(temperature=0.0)  # no chance, so no random numbers
    assert torch.equal(torch.random.get_rng_state(), after)


@check
def test_a_row_draws_what_it_would_draw_alone_with_its_own_seed(kit):
    model, sampling = kit.decoder(seed=8), kit.sampling.Sampling(temperature=1.5)
    options = {"max_new_tokens": 9, "sampling": sampling}
    together = kit.generation.generate(model, PROMPTS, seed=5, **options).tokens
    assert together[:2] == kit.generation.generate(model, PROMPTS[:2], seed=5, **options).tokens
    for row, prompt in enumerate(PROMPTS):
        alone = kit.generation.generate(model, prompt, seed=5 + row, **options)
        assert alone.tokens == [together[row]]
        assert [*kit.generation.stream(model, prompt, seed=5 + row, **options)] == together[row]
    seeds = [5 + row for row in reversed(range(len(PROMPTS)))]
    turned = kit.generation.generate(model, PROMPTS[::-1], seed=seeds, **options)
    assert turned.tokens == together[::-1]


@check
def test_a_mask_takes_the_padding_off_whichever_side_it_is_on(kit):
    model = kit.decoder(seed=4)
    wanted = kit.generation.generate(model, PROMPTS, max_new_tokens=5).tokens
    for left in (True, False):
        filled = [[0] * (5 - len(p)) * left + p + [0] * (5 - len(p)) * (not left) for p in PROMPTS]
        mask = torch.tensor([[True] * len(p) + [False] * (5 - len(p)) for p in PROMPTS])
        mask = mask.flip(1) if left else mask
        padded = torch.tensor(filled)
        got = kit.generation.generate(model, padded, mask=mask, max_new_tokens=5)
        assert (got.tokens, got.prompts) == (wanted, PROMPTS)
        row = kit.generation.stream(model, padded[2:3], mask=mask[2:3], max_new_tokens=5)
        assert list(row) == wanted[2]


@check
def test_cropped_to_half_a_context_each_goes_on_as_by_hand(kit):
    for position in ("learned", "rotary"):
        model = kit.decoder(position=position, seed=4, max_len=7)
        prompts = [[1, 2, 3], [*range(2, 13)], [5, 4, 3, 2, 1, 0, 1], [9]]
        wanted = []
        for prompt in prompts:
            seen, new = list(prompt), []
            for _ in range(17):
                seen = seen[-4:] if len(seen) > 7 else seen
                new += by_hand(model, seen, 1)
                seen.append(new[-1])
            wanted.append(new)
        got = kit.generation.generate(model, prompts, max_new_tokens=17, crop=True)
        assert (got.tokens, got.prompts) == (wanted, prompts)
        stop = wanted[1][3]  # a row that stops leaves, and the others go on
        cut = kit.generation.generate(model, prompts, max_new_tokens=17, crop=True, stop=stop)
        assert cut.tokens == [[*row, stop][: [*row, stop].index(stop) + 1][:17] for row in wanted]


@check
def test_with_a_sliding_cache_a_text_goes_on_behind_the_context(kit):
    for position in ("rotary", "t5"):
        short, long = (
            kit.decoder(position=position, window=5, seed=4, max_len=n) for n in (11, 99)
        )
        wanted = kit.generation.generate(long, PROMPTS, max_new_tokens=40).tokens
        cache = kit.caches.SlidingCache(5)
        got = kit.generation.generate(short, PROMPTS, max_new_tokens=40, cache=cache)
        assert got.tokens == wanted


@check
def test_repetition_is_punished_over_prompt_and_new_tokens_but_not_padding(kit):
    # Token 4 is always best, then 3, 2, 1, 0: a strong penalty makes each appear once.
    model = kit.generation.TableModel(torch.arange(1.0, 6.0).repeat(5, 1))
    sampling = kit.sampling.Sampling(temperature=0.0, repetition_penalty=100.0)
    for pad_id in (0, 4):
        for prompt, wanted in ((0, [4, 3, 2, 1]), (1, [4, 3, 2, 0])):
            got = kit.generation.generate(
                model, [[2, 2, 2], [prompt]], max_new_tokens=4, sampling=sampling, pad_id=pad_id
            )
            assert got.tokens == [[4, 3, 1, 0], wanted]


@check
def test_tokens_are_reported_as_they_come_and_a_stream_is_lazy(kit):
    model, told = kit.decoder(seed=9), []
    got = kit.generation.generate(
        model, PROMPTS, max_new_tokens=5, on_token=lambda *pair: told.append(pair)
    )
    assert told == [(row, got.tokens[row][step]) for step in range(5) for row in range(4)]
    counted = Counting(model)
    tokens = kit.generation.stream(counted, PROMPTS[0], max_new_tokens=5)
    assert counted.read == []
    first = next(tokens)
    assert counted.read == [(1, 3)]
    assert [first, *tokens] == got.tokens[0]


@check
def test_a_rule_of_ones_own_is_what_is_drawn_from(kit):
    model = kit.decoder(seed=9)
    sampling = kit.sampling.Sampling(
        rule=lambda logits: logits.masked_fill(torch.arange(V) % 5 != 1, -math.inf)
    )
    got = kit.generation.generate(model, PROMPTS, max_new_tokens=4, sampling=sampling, seed=0)
    assert {token % 5 for tokens in got.tokens for token in tokens} == {1}


@check
def test_an_encoder_decoder_generates_from_what_it_remembers(kit):
    sources, mask = ids(3, 7), torch.ones(3, 7).bool()
    mask[1, 5:] = mask[2, 2:] = False
    for position in ("sinusoidal", "t5"):
        model = kit.translator(position=position, seed=3)
        wanted = []
        for source, real in zip(sources, mask, strict=True):
            target = [[0]]
            for _ in range(6):
                with torch.no_grad():
                    logits = model(source[real][None], torch.tensor(target))
                target[0].append(int(logits[0, -1].argmax()))
            wanted.append(target[0][1:])
        for cache in (None, kit.caches.StaticCache(7), kit.caches.DynamicCache()):
            with torch.no_grad():
                state = model.remember(sources, mask=mask, cache=cache)
            got = kit.generation.generate(model, [[0]] * 3, max_new_tokens=6, state=state)
            assert got.tokens == wanted


# Scores


@check
def test_sequences_of_different_lengths_are_scored_as_each_alone(kit):
    for position in ("learned", "t5", "rotary"):
        model, sequences = kit.decoder(position=position), [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
        got = kit.generation.score(model, sequences, pad_id=4)
        assert got.shape == (3, 4)
        for row, sequence in zip(got, sequences, strict=True):
            n = len(sequence) - 1
            close(row[:n], kit.generation.score(model, sequence)[0], atol=1e-10)
            assert (row[n:] == 0).all()


@check
def test_windows_score_each_token_once_with_enough_before_it(kit):
    model, tokens = kit.decoder(max_len=None, n_layers=1), ids(2, 17)
    for context, stride in ((5, 4), (6, 2), (2, 1), (30, 29)):
        got = kit.generation.score(model, tokens, context=context, stride=stride)
        assert got.shape == (2, 16)
        for i in range(16):  # token i + 1, in the first window that holds it
            start = next(s for s in range(0, 17, stride) if s + context > i + 1)
            with torch.no_grad():
                logits, _ = model.decode(tokens[:, start : i + 1], None)
            wanted = logits[:, -1].log_softmax(-1)[range(2), tokens[:, i + 1]]
            close(got[:, i], wanted, atol=1e-10)


@check
def test_a_long_text_is_scored_in_pieces_as_at_once(kit):
    model, tokens = kit.decoder(max_len=None, n_layers=1), ids(2, 601)
    mask = torch.ones(2, 601).bool()
    mask[1, 300:] = False
    with torch.no_grad():
        logits, _ = model.decode(tokens, None)
    wanted = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    close(kit.generation.score(model, tokens), wanted, atol=1e-10)
    got = kit.generation.score(model, [tokens[0].tolist(), tokens[1, :300].tolist()])
    close(got, wanted.masked_fill(~mask[:, 1:], 0), atol=1e-10)
    counted = Counting(model)
    kit.generation.score(counted, tokens)
    assert max(rows for _, rows in counted.read) < 300


@check
def test_perplexity_is_v_for_a_model_that_knows_nothing_and_1_for_one_that_knows(kit):
    nothing = kit.generation.TableModel(torch.zeros(7, 7))
    assert math.isclose(kit.generation.perplexity(nothing, [0, 3, 3, 1]), 7.0, rel_tol=1e-6)
    assert kit.generation.perplexity(circle(kit), [5, 6, 0, 1]) == 1.0


@check
def test_perplexity_weighs_every_token_alike(kit):
    p = normal(5, 5).softmax(-1)
    model = kit.generation.TableModel(p.log())
    sequences = [[0, 1, 2, 3], [4, 0]]
    surprise = [-math.log(p[a, b]) for s in sequences for a, b in itertools.pairwise(s)]
    got = kit.generation.perplexity(model, sequences)
    assert math.isclose(got, math.exp(sum(surprise) / 4), rel_tol=1e-12)


# Beam search


def everything(model, prompt: list[int], n: int, stop: int, vocab: int) -> Iterator[tuple]:
    """Yield every continuation that can end, with its log-probability."""
    for size in range(1, n + 1):
        for tokens in itertools.product(range(vocab), repeat=size):
            if stop in tokens[:-1] or (size < n and tokens[-1] != stop):
                continue
            with torch.no_grad():
                logits, _ = model.decode(torch.tensor([[*prompt, *tokens[:-1]]]), None)
            rows = logits[0, len(prompt) - 1 :].log_softmax(-1)
            yield tokens, float(rows[range(size), list(tokens)].sum())


@check
def test_wide_enough_it_is_exhaustive_search(kit):
    vocab, n, stop = 3, 4, 2
    model = kit.decoder(vocab_size=vocab, seed=12, n_layers=1)
    every = list(everything(model, [0, 1], n, stop, vocab))
    assert abs(sum(math.exp(log_prob) for _, log_prob in every) - 1) < 1e-9
    for penalty in (0.0, 0.6, 1.0, 2.0, -0.5):
        scores = sorted(((lp / len(t) ** penalty, t) for t, lp in every), reverse=True)
        (got,) = kit.beam.beam_search(
            model, [0, 1], n_beams=len(every), max_new_tokens=n, stop=stop, length_penalty=penalty
        )
        assert [tuple(h.tokens) for h in got] == [tokens for _, tokens in scores]
        for h, (score, tokens) in zip(got, scores, strict=True):
            assert abs(h.score - score) < 1e-9
            assert h.finished == (tokens[-1] == stop)


def trap(kit):
    """A table where the likeliest first token leads nowhere: greedy 0.6 · 0.21, else 0.4 · 0.9."""
    p = torch.full((5, 5), 0.2, dtype=torch.float64)
    p[0] = torch.tensor([0.0, 0.6, 0.4, 0.0, 0.0], dtype=torch.float64)
    p[1] = torch.tensor([0.21, 0.2, 0.2, 0.2, 0.19], dtype=torch.float64)
    p[2] = torch.tensor([0.02, 0.02, 0.02, 0.9, 0.04], dtype=torch.float64)
    return kit.generation.TableModel(p.log())


@check
def test_two_beams_find_what_one_misses(kit):
    model = trap(kit)
    (one,) = kit.beam.beam_search(model, [0], n_beams=1, max_new_tokens=2)
    (two,) = kit.beam.beam_search(model, [0], n_beams=2, max_new_tokens=2)
    assert one[0].tokens == kit.generation.generate(model, [0], max_new_tokens=2).tokens[0]
    assert math.isclose(math.exp(one[0].log_prob), 0.6 * 0.21)
    assert (two[0].tokens, math.isclose(math.exp(two[0].log_prob), 0.36)) == ([2, 3], True)


@check
def test_one_beam_is_greedy_and_every_beam_has_its_log_probability(kit):
    model = kit.decoder(seed=13)
    greedy = kit.generation.generate(model, PROMPTS, max_new_tokens=6, stop=7).tokens
    found = kit.beam.beam_search(model, PROMPTS, n_beams=1, max_new_tokens=6, stop=7)
    assert [h.tokens for (h,) in found] == greedy
    # Not with a length penalty: beside a stop, though likeliest, a longer text may score higher.
    p = torch.tensor([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.0, 1.0]]).double()
    table, options = kit.generation.TableModel(p.log()), {"max_new_tokens": 3, "stop": 2}
    assert kit.generation.generate(table, [0], **options).tokens == [[2]]
    for penalty, wanted in ((0.0, [2]), (-1.0, [2]), (1.0, [1, 1, 1])):
        options["length_penalty"] = penalty
        ((h,),) = kit.beam.beam_search(table, [0], n_beams=1, **options)
        assert h.tokens == wanted
    for cache in (None, kit.caches.StaticCache(11)):
        found = kit.beam.beam_search(model, PROMPTS[:2], n_beams=4, max_new_tokens=6, cache=cache)
        for prompt, beams in zip(PROMPTS, found, strict=False):
            assert len(beams) == 4 and len({tuple(h.tokens) for h in beams}) == 4
            assert sorted(beams, key=lambda h: -h.score) == beams
            for h in beams:
                scores = kit.generation.score(model, prompt + h.tokens)[0, len(prompt) - 1 :]
                assert math.isclose(h.log_prob, float(scores.sum()), abs_tol=1e-9)


@check
def test_the_search_ends_when_nothing_can_come_in_and_not_before(kit):
    for seed in range(5):
        model = kit.generation.TableModel(normal(5, 5, seed=seed))
        for penalty in (0.0, 1.0, 3.0, -1.0):
            options = {"n_beams": 3, "stop": 2, "length_penalty": penalty}
            steps = []
            (got,) = kit.beam.beam_search(
                model, [0], max_new_tokens=8, on_step=lambda *s, to=steps: to.append(s), **options
            )
            *_, (alive, finished) = steps
            assert got == finished
            if alive:  # it ended early: go on from each by hand, as far as the bound allows
                best = max(h.log_prob for h in alive)
                lengths = range(len(alive[0].tokens) + 1, 9)
                assert max(best / n**penalty for n in lengths) <= finished[-1].score
            elif len(steps) < 8:
                assert all(h.finished for h in finished)
            for alive, finished in steps[:-1]:  # and had reason to go on at each step before
                best, lengths = alive[0].log_prob, range(len(alive[0].tokens) + 1, 9)
                reach = max(best / n**penalty for n in lengths)
                assert len(finished) < 3 or reach > finished[-1].score


@check
def test_beams_of_an_encoder_decoder_look_at_their_own_source(kit):
    model, sources = kit.translator(seed=5), ids(3, 7)
    with torch.no_grad():
        state = model.remember(sources)
        alone = [model.remember(source[None]) for source in sources]
    options = {"n_beams": 3, "max_new_tokens": 5}
    together = kit.beam.beam_search(model, [[0]] * 3, state=state, **options)
    assert len({tuple(found[0].tokens) for found in together}) == 3
    for found, own in zip(together, alone, strict=True):
        (wanted,) = kit.beam.beam_search(model, [0], state=own, **options)
        assert [h.tokens for h in found] == [h.tokens for h in wanted]


# Speculation


@check
def test_accepting_and_redrawing_give_p_whatever_q_is(kit):
    speculative = kit.speculative
    p, q = (2 * normal(7, 5, seed=1)).softmax(-1), (2 * normal(7, 5, seed=2)).softmax(-1)
    q[3] = p[3]
    p[0, 2], q[1, 3], p[2, 1], q[2, 1] = 0.0, 0.0, 0.0, 0.0
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    kept = q * speculative.accept_probability(p, q)
    rest = speculative.residual_distribution(p, q)
    close(kept + (1 - kept.sum(-1, keepdim=True)) * rest, p)
    close(kept.sum(-1), torch.minimum(p, q).sum(-1))


class OneMore(Exception):
    """Raised where a run wants one more random number than it was given."""


def exact_distribution(kit, monkey, run) -> dict:
    """Return the exact distribution of what a run returns, whose decisions all change at 1/2.

    Then the middles of the two halves stand for all numbers, and every path is taken.
    """
    found, open_paths = Counter(), [()]
    while open_paths:
        path = open_paths.pop()
        numbers = iter(path)

        def uniform(_, numbers=numbers):
            try:
                return next(numbers)
            except StopIteration:
                raise OneMore from None

        monkey.uniform = uniform
        try:
            found[run()] += 0.5 ** len(path)
        except OneMore:
            open_paths += [(*path, 0.25), (*path, 0.75)]
    return found


@check
def test_speculation_has_exactly_the_models_distribution(kit):
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    q = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    model, draft = (kit.generation.TableModel(table.double().log()) for table in (p, q))
    chance, sampling = kit.speculative._Chance, kit.sampling.Sampling()
    original = chance.uniform

    def run():
        return tuple(
            kit.speculative.speculative_generate(
                model, draft, [1, 0], max_new_tokens=3, n_draft=2, sampling=sampling
            ).tokens
        )

    try:
        found = exact_distribution(kit, chance, run)
    finally:
        chance.uniform = original
    for tokens in itertools.product(range(3), repeat=3):
        wanted = math.prod(float(p[a, b]) for a, b in itertools.pairwise((0, *tokens)))
        assert abs(found[tokens] - wanted) < 1e-12, tokens


@check
def test_speculation_draws_from_the_warped_distribution(kit):
    p, q = (normal(2, 5, 5) * 1.5).softmax(-1)
    model, draft = (kit.generation.TableModel(table.log()) for table in (p, q))
    sampling = kit.sampling.Sampling(temperature=0.4, top_k=4, top_p=0.95)
    steps = kit.sampling
    want = steps.top_p(steps.top_k(steps.temperature(p.log(), 0.4), 4), 0.95).softmax(-1)
    generator, draws, found = torch.Generator().manual_seed(2), 600, Counter()
    for _ in range(draws):
        got = kit.speculative.speculative_generate(
            model, draft, [2], max_new_tokens=2, n_draft=1, sampling=sampling, seed=generator
        )
        found[tuple(got.tokens)] += 1
    pairs = {(a, b): float(want[2, a] * want[a, b]) for a in range(5) for b in range(5)}
    assert unlikely(found, pairs, draws) < 4


def drafts(kit, model):
    return {
        "first": kit.speculative.FirstLayers(model, 1),
        "ngram": kit.speculative.NGramDraft(3, V),
        "itself": model,
        "other": kit.decoder(seed=99, n_layers=1),
        "none": kit.speculative.NGramDraft(2, V, text=[]),
    }


@check
def test_at_temperature_0_it_says_what_greedy_says_with_any_draft(kit):
    for seed, position, prompt in ((1, "rotary", [1, 2, 3, 1, 2]), (2, "learned", [7])):
        model = kit.decoder(seed=seed, position=position)
        wanted = by_hand(model, prompt, 12)
        for draft in drafts(kit, model).values():
            for n_draft, cache in ((1, None), (5, kit.caches.StaticCache(30))):
                told = []
                got = kit.speculative.speculative_generate(
                    model,
                    draft,
                    prompt,
                    max_new_tokens=12,
                    n_draft=n_draft,
                    cache=cache,
                    on_token=told.append,
                )
                assert got.tokens == told == wanted


@check
def test_a_penalty_counts_the_guesses_before_each_place(kit):
    sampling = kit.sampling.Sampling(temperature=0.0, repetition_penalty=1.5)
    for seed in (1, 2, 3):
        model = kit.decoder(seed=seed)
        options = {"max_new_tokens": 12, "sampling": sampling}
        (wanted,) = kit.generation.generate(model, [1, 2, 3], **options).tokens
        plain = kit.generation.generate(model, [1, 2, 3], max_new_tokens=12).tokens
        assert [wanted] != plain  # or the penalty was not seen
        for draft in drafts(kit, model).values():
            got = kit.speculative.speculative_generate(
                model, draft, [1, 2, 3], n_draft=4, **options
            )
            assert got.tokens == wanted


@check
def test_a_draft_that_is_the_model_is_always_right(kit):
    model = kit.decoder(seed=3)
    for temperature in (0.0, 1.0):
        sampling = kit.sampling.Sampling(temperature=temperature)
        got = kit.speculative.speculative_generate(
            model, model, [1, 2], max_new_tokens=13, n_draft=3, sampling=sampling, seed=1
        )
        assert (got.drafted, got.accepted, got.passes) == (9, 9, 4)
        assert (got.acceptance, got.tokens_per_pass) == (1.0, 13 / 4)


@check
def test_a_stop_among_the_accepted_ends_it_there(kit):
    model = circle(kit, 11)
    got = kit.speculative.speculative_generate(
        model, model, [0], max_new_tokens=20, n_draft=6, stop=[(3, 4)]
    )
    assert (got.tokens, got.finished, got.passes) == ([1, 2, 3, 4], True, 1)


@check
def test_neither_model_reads_a_token_twice_that_was_kept(kit):
    model = circle(kit, 11)
    reader, guesser = Counting(model), Counting(model)
    kit.speculative.speculative_generate(reader, guesser, [0, 1, 2], max_new_tokens=8, n_draft=3)
    assert reader.read == [(1, 2), (1, 4), (1, 4)]
    assert guesser.read == [(1, 3), (1, 1), (1, 1), (1, 2), (1, 1), (1, 1)]


@check
def test_first_layers_is_the_model_without_the_others(kit):
    model = kit.decoder(seed=5)
    draft, tokens = kit.speculative.FirstLayers(model, 2), ids(2, 7)
    small = kit.decoder(n_layers=2)
    names = dict(model.named_parameters())
    small.load_state_dict({name: names[name] for name in small.state_dict()})
    with torch.no_grad():
        close(draft.decode(tokens)[0], small.decode(tokens)[0])
        got, _ = piecewise(draft, tokens, [3, 1, 3], draft.empty_state(2))
        close(got, small.decode(tokens)[0], atol=1e-10)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in draft.parameters()} < own
    assert len(model.stack.blocks) == 3


@check
def test_an_ngram_draft_counts_what_followed_the_longest_match(kit):
    draft = kit.speculative.NGramDraft(3, 7, text=[0, 1, 2, 5, 1, 3])
    for seen, wanted in (
        ([0, 1], {2: 1.0}),  # in the text
        ([4, 1], {2: 0.5, 3: 0.5}),  # no pair: after 1 alone
        ([4, 5, 4, 5, 4], {5: 1.0}),  # here, not in the text
        ([0, 1, 4, 0, 1], {2: 0.5, 4: 0.5}),
        ([2, 0], {1: 1.0}),
    ):
        logits, state = draft.decode(torch.tensor([seen]), last=True)
        p = logits[0, -1].softmax(-1)
        close(p, torch.tensor([wanted.get(i, 0.0) for i in range(7)]), atol=1e-6)
        assert state.length == len(seen)
        halves = draft.decode(torch.tensor([seen[1:]]), draft.decode(torch.tensor([seen[:1]]))[1])
        close(halves[0][0, -1], logits[0, -1], atol=1e-6)
    nothing, _ = draft.decode(torch.tensor([[6]]))
    assert (nothing == -math.inf).all()
