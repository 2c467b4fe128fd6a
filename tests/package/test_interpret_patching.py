"""Patching: against streams put together by hand, and a model whose circuit is known."""

import pytest
import torch
from test_interpret_lens import KIT, MODELS, checks, close, ids, shipped, tiny

from tfbook import pretrained
from tfbook.interpret import indirect_object, patching


@pytest.fixture
def kit():
    return KIT


def lead(right, wrong, kit=KIT):
    """Return a metric: how far one token leads over another at the end."""

    def metric(logits):
        size = len(logits)
        chosen = (torch.full((size,), each) for each in (right, wrong))
        return float(kit.logit_difference(logits, *chosen).mean().detach())

    return metric


def close_numbers(got, wanted, atol=1e-6):
    torch.testing.assert_close(got, torch.tensor(wanted), atol=atol, rtol=0.0)


# activations


def test_a_share_is_that_of_a_run_put_together_by_hand(kit):
    for kind in ("gpt2", "llama"):
        model, clean, corrupted, metric = tiny(kit, kind), ids(), ids(seed=9), lead(3, 5, kit)
        good, bad = (metric(model(each)[0]) for each in (clean, corrupted))
        with kit.capture(model, "*") as seen:
            model(clean)
        seen = dict(seen)
        z, stream, q = (f"stack.blocks.1.{name}" for name in ("mixer.z", "resid_mid", "mixer.q"))

        def head(x, seen=seen, z=z):
            x = x.clone()
            x[:, 2] = seen[z][:, 2]
            return x

        def rows(x, seen=seen, stream=stream):
            x = x.clone()
            x[:, [1, 4]] = seen[stream][:, [1, 4]]
            return x

        def one(x, seen=seen, q=q):
            x = x.clone()
            for h, i in ((0, 3), (0, 6), (2, 3), (2, 6)):
                x[:, h, i] = seen[q][:, h, i]
            return x

        cases = {
            kit.head_site(1, 2): {z: head},
            kit.Site(stream, None, (1, 4)): {stream: rows},
            kit.Site(q, (0, 2), (3, -1)): {q: one},
        }
        wanted = []
        for change in (*cases.values(), {z: head, stream: rows}):
            with kit.patched(model, change):
                wanted.append((metric(model(corrupted)[0]) - bad) / (good - bad))
        sites = [*cases, [kit.head_site(1, 2), kit.Site(stream, None, (1, 4))]]
        found = kit.activation_patching(model, clean, corrupted, metric, sites)
        close_numbers(found, wanted)


def test_what_carries_everything_has_share_one(kit):
    for kind in MODELS:
        model, clean, corrupted, metric = tiny(kit, kind), ids(), ids(seed=9), lead(3, 5, kit)
        last = len(model.stack.blocks) - 1
        sites = [
            kit.Site("stack.blocks.0.resid_pre"),
            kit.Site(f"stack.blocks.{last}.resid_post", None, (-1,)),
            kit.Site(f"stack.blocks.{last}.resid_post", None, (0, 1)),  # not where it is read
        ]
        for direction in ("denoise", "noise"):
            found = kit.activation_patching(
                model, clean, corrupted, metric, sites, direction=direction
            )
            close_numbers(found, [1.0, 1.0, 0.0])


def test_both_directions_are_one_another_with_prompts_exchanged(kit):
    model, clean, corrupted, metric = tiny(kit, "gpt2"), ids(), ids(seed=9), lead(3, 5, kit)
    sites = [kit.head_site(layer, head) for layer in range(3) for head in range(3)]
    noise = kit.activation_patching(model, clean, corrupted, metric, sites, direction="noise")
    other = kit.activation_patching(model, corrupted, clean, metric, sites)
    close(noise, other, 1e-6)
    assert float((noise - kit.activation_patching(model, clean, corrupted, metric, sites)).abs()
                 .max()) > 1e-3  # fmt: skip


def test_two_copies_are_enough_each_and_neither_is_needed(kit):
    """The pair a b stands there twice: either half of the evidence will do, by its sign."""
    model = kit.induction_model(12, 12)
    clean = torch.tensor([[1, 2, 5, 1, 2, 6, 1]])
    corrupted = torch.tensor([[1, 3, 5, 1, 3, 6, 1]])

    def metric(logits):
        return 1.0 if lead(2, 3, kit)(logits) > -0.5 else -1.0

    sites = [kit.Site("stack.blocks.0.resid_pre", None, (place,)) for place in (1, 4)]
    found = kit.activation_patching(model, clean, corrupted, metric, [*sites, sites])
    close_numbers(found, [1.0, 1.0, 1.0])
    found = kit.activation_patching(
        model, clean, corrupted, metric, [*sites, sites], direction="noise"
    )
    close_numbers(found, [0.0, 0.0, 1.0])


# the circuit that is known


def prompts_of_induction():
    """Return "a b x y a", and the same with another word for the first a, or for b."""
    clean = torch.tensor([[1, 2, 5, 6, 1]])
    return clean, torch.tensor([[4, 2, 5, 6, 1]]), torch.tensor([[1, 3, 5, 6, 1]])


def test_patching_finds_the_circuit_of_induction(kit):
    model = kit.induction_model(12, 12)
    clean, other_a, other_b = prompts_of_induction()
    heads = [kit.head_site(layer, head) for layer in (0, 1) for head in (0, 1)]
    told = kit.head_site(0, 0, places=(1,))
    for direction in ("denoise", "noise"):
        given = {"direction": direction}
        found = kit.activation_patching(
            model, clean, other_a, lead(2, 7, kit), [*heads, told], **given
        )
        close_numbers(found, [1.0, 0.0, 1.0, 0.0, 1.0])
        found = kit.activation_patching(model, clean, other_b, lead(2, 3, kit), heads, **given)
        close_numbers(found, [0.0, 0.0, 1.0, 0.0])


def test_another_prompt_brings_nothing_back(kit):
    """Only what the control has in common with the clean prompt has an effect."""
    model = kit.induction_model(12, 12)
    clean, other_a, _ = prompts_of_induction()
    told = [kit.head_site(0, 0, places=(1,)), kit.Site("stack.blocks.0.resid_pre")]
    controls = {(9, 8, 7, 3, 9): 0.0, (9, 8, 7, 3, 8): 0.0, (1, 8, 7, 3, 9): 1.0}
    for prompt, wanted in controls.items():
        found = kit.activation_patching(
            model, clean, other_a, lead(2, 10, kit), told[:1], control=torch.tensor([prompt])
        )
        close_numbers(found, [wanted])
    tiny_one, metric = tiny(kit, "gpt2"), lead(3, 5, kit)
    control = ids(seed=11)
    good, bad, other = (metric(tiny_one(each)[0]) for each in (ids(), ids(seed=9), control))
    for direction, wanted in {
        "denoise": (other - bad) / (good - bad),
        "noise": (good - other) / (good - bad),
    }.items():
        found = kit.activation_patching(
            tiny_one, ids(), ids(seed=9), metric, told[1:], direction=direction, control=control
        )
        close_numbers(found, [wanted])


def test_paths_are_those_of_induction(kit):
    """Head (0, 0) speaks to the keys of head (1, 0); tokens speak to its values and queries."""
    model = kit.induction_model(12, 12)
    clean, other_a, other_b = prompts_of_induction()
    last = kit.Site("stack.blocks.1.resid_post")
    embedding = kit.Site("stack.blocks.0.resid_pre")
    senders = [kit.head_site(0, 0), kit.head_site(0, 1), embedding]
    wanted = {"q": [0.0, 0.0, 0.0], "k": [1.0, 0.0, 0.0], "v": [0.0, 0.0, 0.0]}
    for what, effects in wanted.items():
        receivers = [kit.head_site(1, 0, what)]
        found = kit.path_patching(model, clean, other_a, lead(2, 7, kit), senders, receivers)
        close_numbers(found, effects)
    for what, effect in {"q": 0.0, "k": 0.0, "v": 1.0}.items():
        receivers = [kit.head_site(1, 0, what)]
        found = kit.path_patching(model, clean, other_b, lead(2, 3, kit), senders, receivers)
        close_numbers(found, [0.0, 0.0, effect])
    found = kit.path_patching(
        model, clean, other_b, lead(2, 3, kit), [kit.head_site(1, 0), *senders], [last]
    )
    close_numbers(found, [1.0, 0.0, 0.0, 0.0])
    asks = torch.tensor([[1, 2, 5, 6, 9]])
    found = kit.path_patching(
        model, clean, asks, lead(2, 7, kit), senders, [kit.head_site(1, 0, "q")]
    )
    close_numbers(found, [0.0, 0.0, 1.0])


# paths


def test_a_path_is_the_stream_put_together_by_hand(kit):
    """What a later head hears: the clean stream, and what the sender's heads write otherwise."""
    for kind in ("gpt2", "llama", "multiplier", "parallel"):
        model, clean, corrupted, metric = tiny(kit, kind), ids(), ids(seed=9), lead(3, 5, kit)
        runs = []
        for tokens in (clean, corrupted):
            with kit.capture(model, "*") as seen:
                model(tokens)
            runs.append(dict(seen))
        first, block = model.stack.blocks[0], model.stack.blocks[2]
        name = "stack.blocks.0.mixer.z"
        told = torch.zeros_like(runs[0][name])
        told[:, 1, 3:] = (runs[1][name] - runs[0][name])[:, 1, 3:]
        n_heads = first.mixer.n_heads
        weight = first.mixer.out_proj.weight.unflatten(1, (n_heads, -1))  # (D, H, d_value)
        written = torch.einsum("bhnv,dhv->bnd", told, weight)
        written = written * (0.5 if kind == "multiplier" else 1.0)
        stream = runs[0]["stack.blocks.2.resid_pre"] + written
        q = block.mixer.q_proj(block.mixer_residual.norm(stream))
        q = q.unflatten(-1, (n_heads, -1)).transpose(1, 2)  # (B, H, N, d_head)

        def put(x, q=q):
            x = x.clone()
            x[:, 2] = q[:, 2]
            return x

        good, bad = (metric(model(each)[0]) for each in (clean, corrupted))
        with kit.patched(model, {"stack.blocks.2.mixer.q": put}):
            after = metric(model(clean)[0])
        found = kit.path_patching(
            model,
            clean,
            corrupted,
            metric,
            [kit.head_site(0, 1, places=range(3, 7))],
            [kit.head_site(2, 2, "q")],
        )
        assert abs(after - good) > 1e-4
        close_numbers(found, [(good - after) / (good - bad)])


def test_feed_forward_parts_pass_it_on_where_they_may(kit):
    """Layer by layer by hand: heads give what they gave, feed-forward parts compute."""
    model, clean, corrupted, metric = tiny(kit, "gpt2"), ids(), ids(seed=9), lead(3, 5, kit)
    runs = []
    for tokens in (clean, corrupted):
        with kit.capture(model, "*.mixer.z", "stack.blocks.0.resid_pre") as seen:
            model(tokens)
        runs.append(dict(seen))
    x = runs[0]["stack.blocks.0.resid_pre"]
    for i, block in enumerate(model.stack.blocks):
        z = runs[0][f"stack.blocks.{i}.mixer.z"].clone()
        if i == 1:
            z[:, 0] = runs[1]["stack.blocks.1.mixer.z"][:, 0]
        x = x + block.mixer.out_proj(z.transpose(1, 2).flatten(-2))
        x = x + block.ffn(block.ffn_residual.norm(x))
    after = metric(model.head(model.stack.final_norm(x), model.embed.weight))
    good, bad = (metric(model(each)[0]) for each in (clean, corrupted))
    given = (model, clean, corrupted, metric, [kit.head_site(1, 0)])
    last = [kit.Site("stack.blocks.2.resid_post")]
    through = kit.path_patching(*given, last, through_ffn=True)
    close_numbers(through, [(good - after) / (good - bad)])
    direct = kit.path_patching(*given, last)
    assert not torch.allclose(through, direct)


def test_all_senders_together_are_the_corrupted_run(kit):
    for kind in ("gpt2", "llama", "parallel"):
        model, clean, corrupted, metric = tiny(kit, kind), ids(), ids(seed=9), lead(3, 5, kit)
        n_heads = model.stack.blocks[0].mixer.n_heads
        heads = [kit.head_site(i, h) for i in range(3) for h in range(n_heads)]
        everything = [*heads, kit.Site("stack.blocks.0.resid_pre")]
        found = kit.path_patching(
            model, clean, corrupted, metric, [everything, heads],
            [kit.Site("stack.blocks.2.resid_post")], through_ffn=True,
        )  # fmt: skip
        close_numbers(found[:1], [1.0])
        assert abs(float(found[1]) - 1) > 1e-3


def test_no_path_leads_back(kit):
    model, clean, corrupted, metric = tiny(kit, "gpt2"), ids(), ids(seed=9), lead(3, 5, kit)
    senders = [kit.head_site(2, 0), kit.head_site(1, 1)]
    receivers = [kit.head_site(1, head, "k") for head in range(3)]
    for through in (False, True):
        found = kit.path_patching(
            model, clean, corrupted, metric, senders, receivers, through_ffn=through
        )
        close_numbers(found, [0.0, 0.0], 0.0)


def test_patching_leaves_a_model_as_it_was(kit):
    model, clean, corrupted, metric = tiny(kit, "gpt2"), ids(), ids(seed=9), lead(3, 5, kit)
    model.train()
    wanted = model(clean)[0]

    def fails(logits):
        raise RuntimeError("in the metric")

    site = kit.head_site(0, 1)
    for run in (kit.activation_patching, kit.path_patching):
        more = [[kit.head_site(1, 0, "q")]] if run is kit.path_patching else []
        run(model, clean, corrupted, metric, [site], *more)
        with pytest.raises(RuntimeError, match="in the metric"):
            run(model, clean, corrupted, fails, [site], *more)
    assert torch.equal(model(clean)[0], wanted)
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert all(module.training for module in model.modules())
    assert all(weight.grad is None for weight in model.parameters())


# controls, and the difference of two logits


def test_a_difference_of_logits_is_the_logarithm_of_a_ratio(kit):
    logits = torch.randn(4, 5, 9, generator=torch.Generator().manual_seed(0))
    right, wrong = ids(1, 4, 1, 9)[0], ids(1, 4, 3, 9)[0]
    for place in (-1, 2):
        p = logits[:, place].softmax(-1)
        wanted = (p[range(4), right] / p[range(4), wrong]).log()
        close(kit.logit_difference(logits, right, wrong, place=place), wanted, 1e-5)


def test_random_heads_are_others_and_all_alike(kit):
    model = tiny(kit, "llama")
    circuit, seen = [(0, 1), (2, 5)], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        drawn = kit.random_heads(model, 4, without=circuit, generator=generator)
        assert len(set(drawn)) == 4 and drawn == sorted(drawn) and not set(drawn) & set(circuit)
        seen += drawn
    assert len(set(seen)) == 16 and max(map(seen.count, set(seen))) < 3 * 200 * 4 / 16
    again = kit.random_heads(model, 4, generator=torch.manual_seed(3))
    assert again == kit.random_heads(model, 4, generator=torch.manual_seed(3))


# what is refused, in words


@pytest.mark.untyped
def test_bad_arguments_are_refused_in_words():
    model, clean, corrupted, metric = tiny(KIT, "gpt2"), ids(), ids(seed=9), lead(3, 5)
    p, site = patching, patching.head_site(0, 1)
    stream = p.Site("stack.blocks.0.resid_mid")
    given = (model, clean, corrupted, metric)
    bad = {
        "sites must be a list of at least one": lambda: p.activation_patching(*given, []),
        "sites must be a list of at least one Site, got Site": lambda: p.activation_patching(
            *given, site
        ),
        "sites must be taps of the model": lambda: p.activation_patching(*given, [p.Site("z")]),
        "sites must hold Sites": lambda: p.activation_patching(*given, [[3]]),
        "a head of stack.blocks.0.mixer.z must be from 0 to 2": lambda: p.activation_patching(
            *given, [p.head_site(0, 3)]
        ),
        "a place of stack.blocks.0.mixer.z must be from -7 to 6": lambda: p.activation_patching(
            *given, [p.head_site(0, 1, places=(7,))]
        ),
        "resid_mid has no heads": lambda: p.activation_patching(
            *given, [stream._replace(heads=[0])]
        ),
        "direction must be one of": lambda: p.activation_patching(*given, [site], direction="up"),
        "corrupted must have shape": lambda: p.activation_patching(
            model, clean, clean[:, 1:], metric, [site]
        ),
        "control must have shape": lambda: p.activation_patching(*given, [site], control=clean[:2]),
        "must tell the prompts apart": lambda: p.activation_patching(
            model, clean, clean, metric, [site]
        ),
        "metric must return a number": lambda: p.activation_patching(
            model, clean, corrupted, lambda logits: logits, [site]
        ),
        "metric must return a finite number": lambda: p.activation_patching(
            model, clean, corrupted, lambda logits: torch.nan, [site]
        ),
        "senders must be taps z or": lambda: p.path_patching(*given, [stream], [stream]),
        "receivers must not be what heads found": lambda: p.path_patching(*given, [site], [site]),
        "must have heads in every layer": lambda: p.path_patching(
            tiny(KIT, "hybrid"), *given[1:], [p.head_site(1, 0)], [stream]
        ),
        "source must hold stack.blocks.0.mixer.z": lambda: p.patch_sites(model, [site], {}),
        "what must be one of": lambda: p.head_site(0, 0, "w"),
        "places of a site must be a list": lambda: p.head_site(0, 0, places=3),
        "n must be from 1 to 9": lambda: p.random_heads(model, 10),
        "place must be": lambda: p.logit_difference(
            torch.zeros(1, 2, 3), *ids(2, 1, 0, 3), place=2
        ),
        "right must be from 0 to 2": lambda: p.logit_difference(
            torch.zeros(1, 2, 3), torch.tensor([3]), torch.tensor([0])
        ),
    }  # fmt: skip
    for message, call in bad.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()
    with (
        pytest.raises(ValueError, match="source.*must have shape"),
        p.patch_sites(model, [site], {site.tap: torch.zeros(1)}),
    ):
        model(clean)


# who received it: names


@pytest.fixture(scope="module")
def smol():
    return pretrained.load("smollm2-135m")


@pytest.mark.parametrize("corrupt", ["swap", "other"])
@pytest.mark.parametrize("template", indirect_object.TEMPLATES)
def test_prompts_stand_token_by_token_beside_each_other(smol, template, corrupt):
    generator = torch.Generator().manual_seed(0)
    prompts = indirect_object.indirect_object_prompts(
        smol, 6, template=template, corrupt=corrupt, generator=generator
    )
    assert prompts.clean.shape == prompts.corrupted.shape
    different = prompts.clean != prompts.corrupted
    place = prompts.places
    assert bool(different[:, place["repeated"]].all()) and int(different.sum()) == 6
    first, second, repeated = (
        prompts.clean[:, place[each]] for each in ("first", "second", "repeated")
    )
    assert torch.equal(prompts.wrong, repeated) and bool((first != second).all())
    assert torch.equal((repeated == first).long(), torch.tensor([0, 1] * 3))
    assert torch.equal(prompts.right, torch.where(repeated == first, second, first))
    instead = prompts.corrupted[:, place["repeated"]]
    assert torch.equal(instead, prompts.right) == (corrupt == "swap")
    assert corrupt == "swap" or not bool(((instead == first) | (instead == second)).any())
    assert prompts.texts[0] == smol.decode(prompts.clean[0])
    assert place["end"] == prompts.clean.shape[1] - 1


def test_smollm2_knows_who_received_it(smol):
    generator = torch.Generator().manual_seed(0)
    prompts = indirect_object.indirect_object_prompts(smol, 4, generator=generator)
    with torch.no_grad():
        good, bad = (
            prompts.metric(smol.model(each)[0]) for each in (prompts.clean, prompts.corrupted)
        )
    assert good > 1 and bad < -1
    place = prompts.places
    sites = [
        patching.Site("stack.blocks.0.resid_pre", None, (place["repeated"],)),
        patching.Site("stack.blocks.0.resid_pre", None, (place["first"], place["second"])),
        patching.Site("stack.blocks.29.resid_post", None, (place["end"],)),
    ]
    found = patching.activation_patching(
        smol.model, prompts.clean, prompts.corrupted, prompts.metric, sites
    )
    close_numbers(found, [1.0, 0.0, 1.0], 1e-4)


@pytest.mark.untyped
def test_bad_prompts_are_refused_in_words(smol):
    make = indirect_object.indirect_object_prompts
    bad = {
        "template must have": lambda: make(smol, 2, template="When{A} and{B} came"),
        "template must have .A., .B. and .S. once": lambda: make(smol, 2, template="{S}{A}{B}"),
        "names must hold three that are one token": lambda: make(smol, 2, names=["Mary", "John"]),
        "corrupt must be one of": lambda: make(smol, 2, corrupt="all"),
        "language must be a Pretrained": lambda: make(smol.model, 2),
        "n must be from 1": lambda: make(smol, 0),
        "names must hold three": lambda: make(shipped(), 2),
    }
    for message, call in bad.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()


CHECKS = checks(globals())
