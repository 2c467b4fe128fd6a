"""Which texts are nearly the same? MinHash, and what is left when duplicates go.

Two texts are compared as sets of shingles, runs of k words, by their Jaccard similarity
J(A, B) = |A ∩ B| / |A ∪ B|. Over all pairs that is too much: a signature of a few numbers for each
text tells which pairs are worth a look.

Explained in: chapters/11_training_deeper, section "More data from the same data".
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from itertools import combinations

import numpy as np

from tfbook._checks import check_list, check_number

__all__ = ["bands_for", "jaccard", "minhash", "near_duplicates", "shingles", "without_duplicates"]

PRIME = 2**31 - 1  # products of two numbers below it fit into 64 bits
SHINGLE = 3


def shingles(text: str, k: int = SHINGLE) -> frozenset[str]:
    """Return the runs of k words of a text, without regard to capitals and spaces.

    A text of fewer than k words is one shingle, one without words has none.

    Raises:
        TypeError: if text is no string or k no integer.
        ValueError: if k is below 1.

    Example:
        >>> sorted(shingles("To be, or not to be"))
        ['be, or not', 'not to be', 'or not to', 'to be, or']

    Source: [broder1997resemblance]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    check_number("k", k, 1, whole=True)
    words = text.lower().split()
    runs = range(max(len(words) - k + 1, 1) if words else 0)
    return frozenset(" ".join(words[i : i + k]) for i in runs)


def jaccard(one: Set, other: Set) -> float:
    """Return |A ∩ B| / |A ∪ B|, and 1 for two empty sets.

    Raises:
        TypeError: if one is no set.

    Example:
        >>> jaccard({1, 2, 3}, {2, 3, 4})
        0.5

    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    for name, value in (("one", one), ("other", other)):
        if not isinstance(value, Set):
            raise TypeError(f"{name} must be a set, got {type(value).__name__}")
    union = len(one | other)
    return len(one & other) / union if union else 1.0


def minhash(items: Iterable[str], n_hashes: int = 128, *, seed: int = 0) -> np.ndarray:
    """Return the signature of a set: for each of n hash functions the smallest hash of its items.

    Two sets have the same smallest hash with probability J(A, B), since each item of the union is
    equally likely to be the smallest. So the share of places in which two signatures agree
    estimates J, with a standard error of √(J (1 − J) / n).

    The functions are h(x) = (a x + b) mod (2³¹ − 1) with a, b drawn once from the seed; x is a
    hash of the item that is the same in every process.

    Args:
        items: the set; repeated items count once.
        n_hashes: n.
        seed: of the functions; compare signatures of one seed only.

    Returns:
        (n_hashes,) uint64; 2³¹ − 1 everywhere for the empty set.

    Raises:
        TypeError: if a number is no integer, or an item no string.
        ValueError: if n_hashes is below 1 or seed negative.

    Example:
        >>> a, b = minhash("abcdefgh"), minhash("abcdefxy")
        >>> round(float((a == b).mean()), 2), jaccard(set("abcdefgh"), set("abcdefxy"))
        (0.6, 0.6)

    Source: [broder1997resemblance]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_number("n_hashes", n_hashes, 1, 2**20, whole=True)
    check_number("seed", seed, 0, whole=True)
    if not isinstance(items, str):  # which is its characters
        check_list("items", items, sized=False)
    digests = [_digest(item) for item in items]
    signature = np.full(n_hashes, PRIME, dtype=np.uint64)
    if not digests:
        return signature
    rng = np.random.default_rng(seed)
    a, b = rng.integers(1, PRIME, (2, n_hashes, 1), dtype=np.uint64)  # (n, 1) each
    x = np.array(digests, dtype=np.uint64)  # (items,)
    return ((a * x + b) % np.uint64(PRIME)).min(axis=1)  # (n,)


def bands_for(threshold: float, n_hashes: int) -> int:
    """Return into how many bands to cut signatures, to find pairs of at least this similarity.

    With b bands of r = n / b hashes a pair is looked at if all hashes of one band agree, which has
    probability 1 − (1 − J^r)^b: small below, large above J ≈ (1/b)^(1/r). Of the divisors of n, the
    smallest b is taken that finds a pair at the threshold with probability 0.99 or more, or n.

    Args:
        threshold: J, above 0 and at most 1.
        n_hashes: n.

    Raises:
        TypeError: if a number has the wrong type.
        ValueError: if one is out of range.

    Example:
        >>> bands_for(0.8, 128)
        32

    Source: [leskovec2014mining]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    _check_threshold(threshold)
    check_number("n_hashes", n_hashes, 1, 2**20, whole=True)
    for b in range(1, n_hashes + 1):
        if n_hashes % b == 0 and 1 - (1 - threshold ** (n_hashes // b)) ** b >= 0.99:
            return b
    return n_hashes


def near_duplicates(
    texts: Sequence[str],
    threshold: float = 0.8,
    *,
    k: int = SHINGLE,
    n_hashes: int = 128,
    seed: int = 0,
) -> list[tuple[int, int, float]]:
    """Return the pairs of texts that are nearly the same, and how similar they are.

    Texts whose signatures agree in a band are compared; only pairs whose own Jaccard similarity,
    not its estimate, reaches the threshold are returned. So none is wrong, and one at the threshold
    is missed with probability 0.01 at most, a more similar one with less. O(shingles · n_hashes)
    and a comparison for each candidate.

    Args:
        texts: any number.
        threshold: J, above 0 and at most 1.
        k: words of a shingle.
        n_hashes: of a signature.
        seed: of the hash functions.

    Returns:
        (i, j, J) with i < j, in order. Texts without words are no duplicates of each other.

    Raises:
        TypeError: if a text is no string, or a number has the wrong type.
        ValueError: if a number is out of range.

    Example:
        >>> texts = ["the cat sat on the mat", "a dog", "The cat sat on  the mat", "the dog"]
        >>> near_duplicates(texts)
        [(0, 2, 1.0)]

    Source: [broder1997resemblance], [lee2022deduplicating]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, got one string; write [text]")
    check_list("texts", texts)
    n_bands = bands_for(threshold, n_hashes)
    sets = [shingles(text, k) for text in texts]
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for i, items in enumerate(sets):
        if items:
            signature = minhash(items, n_hashes, seed=seed)
            for band, part in enumerate(signature.reshape(n_bands, -1)):
                buckets[band, part.tobytes()].append(i)
    candidates = {pair for members in buckets.values() for pair in combinations(members, 2)}
    found = ((i, j, jaccard(sets[i], sets[j])) for i, j in sorted(candidates))
    return [(i, j, similarity) for i, j, similarity in found if similarity >= threshold]


def without_duplicates(texts: Sequence[str], threshold: float = 0.8, **choices: int) -> list[int]:
    """Return the indices of texts to keep, so that no two of them are nearly the same.

    From the first on, a text is kept unless it is a near-duplicate of one that is kept.

    Args:
        texts: any number.
        threshold: see :func:`near_duplicates`.
        choices: k, n_hashes and seed, see :func:`near_duplicates`.

    Returns:
        Indices in order.

    Raises:
        TypeError: as :func:`near_duplicates`.
        ValueError: as :func:`near_duplicates`.

    Example:
        >>> without_duplicates(["to be or not to be", "a dog", "To be or not to be"])
        [0, 1]

    Source: [lee2022deduplicating]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    earlier = defaultdict(list)
    for i, j, _ in near_duplicates(texts, threshold, **choices):
        earlier[j].append(i)
    kept: dict[int, None] = {}
    for j in range(len(texts)):
        if not any(i in kept for i in earlier[j]):
            kept[j] = None
    return list(kept)


def _digest(item: str) -> int:
    if not isinstance(item, str):
        raise TypeError(f"items must be strings, got {type(item).__name__}")
    raw = hashlib.blake2b(item.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(raw, "big") % PRIME


def _check_threshold(threshold: object) -> None:
    check_number("threshold", threshold, high=1, above=0)
