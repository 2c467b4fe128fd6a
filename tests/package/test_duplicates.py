"""Near-duplicates: the estimate against the truth, and the pairs against all pairs compared."""

import math
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbook import data
from tfbook.data import bands_for, jaccard, minhash, near_duplicates, shingles, without_duplicates

ENGLISH = [english for english, _ in data.english_french()[:397]]


def test_shingles_are_runs_of_words():
    assert shingles("A b  c\nA") == {"a b c", "b c a"}
    assert shingles("a b c", k=1) == {"a", "b", "c"}
    assert shingles("one Two") == {"one two"} and shingles(" \n") == frozenset()
    assert shingles("x x x x x") == {"x x x"}


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_jaccard_is_a_share_and_symmetric(one, other):
    value = jaccard(one, other)
    assert value == jaccard(other, one) and 0 <= value <= 1
    assert (value == 1) == (one == other)
    if one or other:
        assert value == sum(x in other for x in one) / len(list(one) + [x for x in other - one])


def test_the_share_of_equal_hashes_estimates_the_similarity():
    for shared in (0, 3, 20, 50, 90, 100):
        one = {f"a{i}" for i in range(100)}
        other = {f"a{i}" for i in range(shared)} | {f"b{i}" for i in range(100 - shared)}
        truth = jaccard(one, other)
        n = 4096
        found = (minhash(one, n) == minhash(other, n)).mean()
        assert found == pytest.approx(truth, abs=4.5 * math.sqrt(truth * (1 - truth) / n) + 1e-3)


def test_the_hash_functions_are_different_ones():
    signature = minhash({"one item"}, 997)
    assert len(set(signature.tolist())) > 990
    assert signature.astype(float).mean() == pytest.approx(2**30, rel=0.1)  # uniform
    pair = [minhash({f"x{i}"}, 997).astype(float) for i in range(2)]
    assert abs(np.corrcoef(*pair)[0, 1]) < 5 / math.sqrt(997)


def test_a_signature_is_of_the_set_and_of_its_seed():
    assert np.array_equal(minhash(["a", "b", "a"]), minhash(["b", "a"]))
    assert not np.array_equal(minhash(["a"], seed=1), minhash(["a"], seed=2))
    both = np.minimum(minhash(["a"]), minhash(["b"]))  # of a union the smaller ones
    assert np.array_equal(minhash(["a", "b"]), both)
    assert (minhash([], 5) == 2**31 - 1).all()


def test_signatures_are_the_same_in_every_process():
    code = "from tfbook.data.duplicates import minhash; print(minhash(['a', 'bé'], 7).tolist())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(minhash(["a", "bé"], 7).tolist())


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9, 1.0])
def test_enough_bands_to_find_a_pair_at_the_threshold_and_no_more(threshold):
    n = 120
    b = bands_for(threshold, n)
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    chance = {d: 1 - (1 - threshold ** (n // d)) ** d for d in divisors}
    assert chance[b] >= 0.99 and all(chance[d] < 0.99 for d in divisors if d < b)
    assert bands_for(0.001, 7) == 7


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_the_pairs_are_those_of_comparing_all_with_all(threshold):
    texts = [*ENGLISH, *[text.replace("the", "a") for text in ENGLISH[::5]], "", " "]
    sets = [shingles(text) for text in texts]
    truth = {
        (i, j): jaccard(sets[i], sets[j])
        for i, j in combinations(range(len(texts)), 2)
        if sets[i] and sets[j] and sets[i] & sets[j]
    }
    truth = {pair: value for pair, value in truth.items() if value >= threshold}
    found = near_duplicates(texts, threshold)
    assert len(truth) > 25
    assert {(i, j): value for i, j, value in found}.items() <= truth.items()  # none is wrong
    assert len(found) >= 0.98 * len(truth)  # at the threshold itself 1 % may be missed
    assert found == sorted(found)


def test_equal_texts_are_always_found():
    texts = ENGLISH[:31] + [text.upper() + " " for text in ENGLISH[:31]]
    pairs = {(i, j) for i, j, value in near_duplicates(texts, 1.0) if value == 1}
    assert {(i, i + 31) for i in range(31)} <= pairs


def test_of_what_is_kept_no_two_are_alike_and_what_goes_is_like_one_kept():
    texts = [*ENGLISH, *[text.replace("the", "a") for text in ENGLISH[::5]]]
    kept = without_duplicates(texts, 0.6)
    pairs = {(i, j) for i, j, _ in near_duplicates(texts, 0.6)}
    assert not pairs & set(combinations(kept, 2))
    for j in set(range(len(texts))) - set(kept):
        assert any((i, j) in pairs for i in kept)
    assert kept == sorted(kept) and kept[0] == 0
    assert len(kept) < len(texts) - 25


def test_a_chain_of_likes_keeps_its_ends():
    """B is like A and like C, A is not like C: B goes."""
    words = [f"w{i}" for i in range(40)]
    chain = [" ".join(words[i : i + 30]) for i in (0, 4, 8)]
    ab, ac = (jaccard(shingles(chain[0]), shingles(text)) for text in chain[1:])
    assert ac < 0.6 < ab
    assert without_duplicates(chain, 0.6) == [0, 2]


def test_texts_without_words_are_no_duplicates():
    assert near_duplicates(["", "", " "]) == []
    assert without_duplicates(["", ""]) == [0, 1]
    assert near_duplicates([]) == []


@pytest.mark.untyped
def test_bad_texts_and_thresholds_are_refused():
    with pytest.raises(TypeError, match="one string; write"):
        near_duplicates("a text")
    with pytest.raises(TypeError, match="text must be a string, got int"):
        near_duplicates(["a", 3])
    for threshold in (0, 1.5):
        with pytest.raises(ValueError, match="threshold must be above 0 and at most 1"):
            near_duplicates(["a"], threshold)
    with pytest.raises(TypeError, match="threshold must be a number, got str"):
        bands_for("0.8", 128)
    with pytest.raises(ValueError, match="k must be at least 1"):
        shingles("a", k=0)
    with pytest.raises(ValueError, match="n_hashes must be from 1 to"):
        minhash(["a"], 0)
    with pytest.raises(TypeError, match="items must be strings, got int"):
        minhash([3])
    with pytest.raises(TypeError, match="other must be a set, got list"):
        jaccard({1}, [1])
