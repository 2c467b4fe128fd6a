"""Every attention variant of the registry against every property, had or lacked."""

import functools
import shutil
import sysconfig
from pathlib import Path

import counterexamples_hashed
import counterexamples_linear
import counterexamples_sparse
import fresh
import pytest
import torch
from attention_properties import (
    CHECKS,
    DOUBLE,
    Bound,
    Case,
    close,
    gradients,
    torch_may_warn,
    weights_of,
)
from torch.nn import functional

from benchmarks.measure import peak_memory
from tfbook.attention import (
    PROPERTIES,
    VARIANTS,
    Variant,
    attend,
    masked_softmax,
    merge_partials,
    register,
    scores_of,
)

CLAIMED = [
    pytest.param(
        variant,
        check,
        marks=[pytest.mark.untyped] * check.untyped,
        id=f"{variant.name}-{check.name.removeprefix('test_')}",
    )
    for variant in VARIANTS.values()
    for check in CHECKS.values()
    if check.property in variant.has
]
LACKED = [(name, slug) for name, variant in VARIANTS.items() for slug in variant.lacks]


@pytest.fixture(scope="module")
def plain():
    """The registry as a reader has it, without the tests' check of shapes."""
    return fresh.attention("plain_tfbook").VARIANTS


@pytest.mark.parametrize(("variant", "check"), CLAIMED)
def test_variant_has(variant, check, plain):
    fn = plain[variant.name].fn if check.untyped else variant.fn
    check(Bound(fn, variant))


@pytest.mark.slow
@pytest.mark.untyped
@pytest.mark.skipif(
    not (shutil.which("g++") and Path(sysconfig.get_path("include"), "Python.h").exists()),
    reason="torch.compile's default backend needs g++ and Python's headers",
)
def test_the_reference_compiles_to_machine_code(plain, monkeypatch):
    config = "torch._inductor.config"
    monkeypatch.setattr(f"{config}.compile_threads", 1)  # no processes beside this one
    # Else ten programs are compiled to find out what the processor knows.
    monkeypatch.setattr(f"{config}.cpp.vec_isa_ok", False)
    q, k, v = Case().qkv()
    with torch_may_warn():
        compiled = torch.compile(plain["reference"].fn, fullgraph=True)
        close(compiled(q, k, v, causal=True), attend(q, k, v, causal=True))


# Counterexamples: for each property that some variant lacks, an example in which it fails.


def differs(one, other):
    assert (one - other).abs().max() > 0.01


def not_exact(bound):
    q, k, v = Case().qkv()
    differs(bound(q, k, v), attend(q, k, v))


def no_weights(bound):
    with pytest.raises(ValueError, match="return_weights"):
        bound(*Case().qkv(), return_weights=True)


def no_mergeable_lse(bound):
    q, k, v = Case().qkv()
    if bound.options.get("top") is None:
        with pytest.raises(ValueError, match="return_lse"):
            bound(q, k, v, return_lse=True)
        return
    parts = [
        bound(q, k[..., p, :], v[..., p, :], return_lse=True) for p in ([0, 1, 2], [3, 4, 5, 6])
    ]
    merged, _ = merge_partials(*zip(*parts, strict=True))
    differs(merged, bound(q, k, v))


def no_default_scale(bound):
    q, k, _ = Case().qkv()
    narrow = bound.weights(q, k)
    wide = {
        name: functional.pad(
            narrow[name], [n for size in reversed(shape) for n in (0, 9 * (size != "d_hidden"))]
        )
        for name, shape in bound.parameters.items()
    }
    q_wide, k_wide = (functional.pad(x, (0, 9)) for x in (q, k))
    close(weights_of(bound, q_wide, k_wide, **wide), weights_of(bound, q, k, **narrow))


def key_shift_matters(bound):
    q, k, v = Case().qkv()
    differs(bound(q, k + 3, v), bound(q, k, v))


def copies_displace_other_keys(bound):
    q, k, v = Case().qkv()
    k_more, v_more = (torch.cat([x, x[..., :1, :]], dim=-2) for x in (k, v))
    bias = torch.zeros(5, 7, dtype=DOUBLE)
    bias[:, 0] = torch.tensor(2.0).log()
    differs(bound(q, k_more, v_more), bound(q, k, v, bias=bias))


def first_derivatives_only(bound):
    q, k, v = Case(e=3).qkv(grad=True)
    (slope,) = torch.autograd.grad(bound(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.autograd.grad(slope.sum(), q)


COUNTEREXAMPLES = {
    "exact": not_exact,
    "weights": no_weights,
    "lse": no_mergeable_lse,
    "default_scale": no_default_scale,
    "key_shift": key_shift_matters,
    "proportional": copies_displace_other_keys,
    "second_derivatives": first_derivatives_only,
}


# Those of variants that need an example of their own: (variant, property) → example.
OWN = counterexamples_sparse.OWN | counterexamples_linear.OWN | counterexamples_hashed.OWN


@pytest.mark.parametrize(("name", "slug"), LACKED)
def test_variant_lacks(name, slug):
    example = OWN.get((name, slug)) or COUNTEREXAMPLES[slug]
    example(Bound(VARIANTS[name].fn, VARIANTS[name]))


def test_an_own_example_belongs_to_a_property_that_is_lacked():
    assert set(OWN) <= set(LACKED)


FORMING = [name for name, variant in VARIANTS.items() if scores_of(variant.fn) is not None]


def test_a_function_without_scores_returns_no_weights():
    assert all("weights" in VARIANTS[name].lacks for name in set(VARIANTS) - set(FORMING))


@pytest.mark.parametrize("name", FORMING)
def test_a_function_is_the_softmax_of_the_scores_it_forms(name):
    case, variant = Case(m=5), VARIANTS[name]
    q, k, v = case.qkv()
    chosen = functools.partial(variant.fn, **variant.options, **Bound(None, variant).weights(q, k))
    form, mask = scores_of(chosen), case.mask()
    mask[2] = False
    for options in (
        {},
        {"mask": mask},
        {"causal": True, "bias": case.normal(5, 5)},
        {"mask": mask, "scale": 0.3},
    ):
        scores = form(q, k, **options)
        assert scores.shape == (2, 5, 5)
        close(masked_softmax(scores) @ v, chosen(q, k, v, **options))


def test_a_function_that_says_nothing_of_its_scores_has_none():
    assert scores_of(lambda q, k, v: v) is None
    assert scores_of(functools.partial(max, 3)) is None


@pytest.mark.parametrize("name", VARIANTS)
def test_every_property_is_declared_once(name):
    variant = VARIANTS[name]
    assert variant.has | set(variant.lacks) == set(PROPERTIES)
    assert not variant.has & set(variant.lacks)


def test_every_property_has_a_check():
    assert {check.property for check in CHECKS.values()} == set(PROPERTIES)


def test_an_entry_that_leaves_a_property_open_is_refused():
    with pytest.raises(ValueError, match="undeclared: .*'vmap'"):
        Variant("half", attend, frozenset(set(PROPERTIES) - {"vmap"}))


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register("reference", attend)


def test_an_unknown_property_cannot_be_lacked():
    with pytest.raises(ValueError, match="unknown: .*'wings'"):
        register("new", attend, lacks={"wings": "it cannot fly"})
    assert "new" not in VARIANTS


# What single variants promise beyond the properties.


@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("cols", [1, 3, 64])
def test_the_size_of_the_tiles_does_not_matter(rows, cols):
    q, k, v = inputs = Case(n=11, m=13).qkv(grad=True)
    wanted = attend(q, k, v, causal=True)
    for got in (
        VARIANTS["rows"].fn(q, k, v, causal=True, rows=rows),
        VARIANTS["online"].fn(q, k, v, causal=True, rows=rows, cols=cols),
    ):
        close(got, wanted)
        for mine, theirs in zip(gradients(got, inputs), gradients(wanted, inputs), strict=True):
            close(mine, theirs)


def test_top_k_with_every_key_is_plain_attention():
    q, k, v = Case().qkv()
    close(VARIANTS["topk"].fn(q, k, v, top=7), attend(q, k, v))
    close(VARIANTS["topk"].fn(q, k, v, top=70), attend(q, k, v))


def test_top_k_keeps_k_keys():
    q, k, v = Case().qkv()
    _, weights = VARIANTS["topk"].fn(q, k, v, top=2, return_weights=True)
    assert ((weights > 0).sum(-1) == 2).all()


def test_top_k_chooses_among_the_allowed_keys_only():
    q, k, v = Case().qkv()
    _, weights = VARIANTS["topk"].fn(q, k, v, top=2, causal=True, return_weights=True)
    assert ((weights > 0).sum(-1) == 2).all()  # the first query sees three keys of seven
    assert (weights.triu(3) == 0).all()


def test_queries_and_keys_of_different_size():
    q, k, v = Case().qkv()
    for name in ("bilinear", "additive"):
        bound = Bound(VARIANTS[name].fn, VARIANTS[name])
        assert bound(q[..., :2], k, v).shape == (2, 5, 2)


def test_weights_and_lse_come_in_this_order():
    q, k, v = Case().qkv()
    output, weights, lse = attend(q, k, v, return_weights=True, return_lse=True)
    assert (output.shape, weights.shape, lse.shape) == ((2, 5, 2), (2, 5, 7), (2, 5))


def test_partials_merge_in_any_grouping():
    q, k, v = Case().qkv()
    parts = [
        attend(q, k[..., p, :], v[..., p, :], return_lse=True) for p in ([0, 4], [1, 2, 6], [3, 5])
    ]
    left = merge_partials(
        *zip(merge_partials(*zip(*parts[:2], strict=True)), parts[2], strict=True)
    )
    at_once = merge_partials(*zip(*parts, strict=True))
    for one, other in zip(left, at_once, strict=True):
        close(one, other)


def test_a_part_without_keys_adds_nothing_to_a_merge():
    q, k, v = Case().qkv()
    some = attend(q, k, v, return_lse=True)
    none = attend(q, k[..., :0, :], v[..., :0, :], return_lse=True)
    for one, other in zip(merge_partials(*zip(some, none, strict=True)), some, strict=True):
        close(one, other)
    output, lse = merge_partials(*zip(none, none, strict=True))
    assert (output == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize(
    ("name", "tiles"), [("rows", {"rows": 8}), ("online", {"rows": 8, "cols": 32})]
)
def test_memory_grows_with_the_length_not_with_its_square(name, tiles):
    def peak(n):
        q, k, v = (torch.randn(n, 8, requires_grad=True) for _ in range(3))
        return peak_memory(
            lambda: VARIANTS[name].fn(q, k, v, causal=True, **tiles).sum().backward()
        )

    assert peak(512) <= 4.2 * peak(128)
