"""The registry of attention variants: what is true of each, and what is not.

A module adds its variants with :func:`register`. The property suite in ``tests/package`` then tests
every property a variant claims, and demands a counterexample for every one it lacks.

Explained in: chapters/02_attention.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tfbook._checks import check_callable

#: The properties that a variant declares to have or to lack: name → what it says.
PROPERTIES: Mapping[str, str] = {
    "exact": "equals softmax(q kᵀ / √d) v",
    "weights": "returns its weights: non-negative, each row sums to 1, and they mix the values",
    "lse": "returns the log-sum-exp of its scores, and parts merge exactly",
    "convex": "each output lies in the convex hull of the values",
    "query_equivariance": "permuting queries permutes outputs",
    "key_value_invariance": "permuting keys together with their values changes nothing",
    "query_independence": "a query's output does not depend on the other queries",
    "causal": "the future changes no past output and receives no gradient from it",
    "alignment": "causal is aligned to the last key when n ≠ m",
    "mask": "a masked key counts as if it were absent",
    "bias": "a bias is added to the scores, and −∞ in it blocks",
    "scale": "a scale multiplies the scores",
    "default_scale": "without a scale, the scores are divided by √d",
    "key_shift": "adding one vector to all keys changes nothing",
    "proportional": "a bias b multiplies a weight by exp(b), as exp(b) copies of the key would",
    "score_shift": "adding one number to all scores of a query changes nothing",
    "value_linear": "the output is linear in the values",
    "extreme_logits": "scores of ±10⁴ give finite, sharp weights and finite gradients",
    "half_precision": "float16 and bfloat16 stay finite, near the float64 result",
    "empty_rows": "a query without an allowed key gives zeros and zero gradient",
    "small_sizes": "sizes of 1 and of 0 work",
    "broadcasting": "leading dimensions broadcast",
    "strides": "the memory layout of the inputs does not matter",
    "purity": "no input is changed, and a second call gives the same",
    "gradients": "first derivatives agree with finite differences, through every argument",
    "second_derivatives": "second and forward-mode derivatives exist and agree",
    "compile": "works under torch.compile without a graph break",
    "vmap": "works under torch.vmap, and so does its gradient",
    "autocast": "works under torch.autocast",
}


@dataclass(frozen=True)
class Variant:
    """One form of attention, with the properties it has and those it lacks.

    Attributes:
        name: its key in the registry.
        fn: the function, with the signature of :func:`tfbook.attention.attend`.
        has: names out of ``PROPERTIES``.
        lacks: the other names, each with the reason.
        parameters: weights ``fn`` takes by keyword, each with its shape in the letters d_q, d_k
            and d_hidden; the caller owns them.
        options: further keyword arguments, each with the value it is tested with.
        flops: ``flops(n, m, d_k, d_v, causal=False, **options) -> (scores, mix)``, what one head
            costs; None where each query meets each key, 2 n m d_k and 2 n m d_v.
        keeps: ``keeps(n, m, d_k, d_v, causal=False, **options) -> (weights, queries, keys)``, the
            numbers that the backward pass needs: of all pairs, 0 where no weights are formed; of
            a query head beside them; and of a head of keys and values. None for q, k and v with
            the weights, where the variant has weights, or else a number for each query.
    """

    name: str
    fn: Callable[..., object]
    has: frozenset[str]
    lacks: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    flops: Callable[..., tuple[int, int]] | None = None
    keeps: Callable[..., tuple[int, int, int]] | None = None

    def __post_init__(self):
        """Refuse an entry that leaves a property open.

        Raises:
            ValueError: unless each property is in exactly one of ``has`` and ``lacks``.
        """
        lacks = frozenset(self.lacks)
        wrong = {
            "undeclared": PROPERTIES.keys() - self.has - lacks,
            "in both has and lacks": self.has & lacks,
            "unknown": (self.has | lacks) - PROPERTIES.keys(),
        }
        for problem, names in wrong.items():
            if names:
                raise ValueError(f"variant {self.name!r}: properties {problem}: {sorted(names)}")


#: What is registered: name → :class:`Variant`.
VARIANTS: dict[str, Variant] = {}


def register(
    name: str,
    fn: Callable[..., object],
    *,
    lacks: Mapping[str, str] | None = None,
    parameters: Mapping[str, tuple[str, ...]] | None = None,
    options: Mapping[str, object] | None = None,
    flops: Callable[..., tuple[int, int]] | None = None,
    keeps: Callable[..., tuple[int, int, int]] | None = None,
) -> Variant:
    """Add a variant to the registry, where the property suite and the modules find it.

    Those of :mod:`tfbook.efficient` are added when that room is opened, as every model does.

    It claims every property that ``lacks`` does not name; the suite tests both.

    Args:
        name: its key in ``VARIANTS``.
        fn: the function, with the signature of :func:`tfbook.attention.attend`.
        lacks: properties it does not have, each with the reason.
        parameters: weights ``fn`` takes by keyword, with their shapes, see :class:`Variant`.
        options: further keyword arguments, with the values they are tested with.
        flops: what one head costs, see :class:`Variant`; None for all pairs.
        keeps: what one head keeps for the backward pass, see :class:`Variant`.

    Returns:
        The new entry.

    Raises:
        TypeError: if the name is no string, or fn, flops or keeps no function.
        ValueError: if the name is taken, or ``lacks`` names an unknown property.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    check_callable("fn", fn)
    for each, count in (("flops", flops), ("keeps", keeps)):
        if count is not None:
            check_callable(each, count)
    for each, value in (("lacks", lacks), ("parameters", parameters), ("options", options)):
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"{each} must be a dictionary, got {type(value).__name__}")
    if name in VARIANTS:
        raise ValueError(f"a variant named {name!r} is registered already")
    lacks = dict(lacks or {})
    has = frozenset(PROPERTIES) - frozenset(lacks)
    given = dict(parameters or {}), dict(options or {})
    VARIANTS[name] = Variant(name, fn, has, lacks, *given, flops, keeps)
    return VARIANTS[name]
