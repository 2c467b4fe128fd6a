"""Put what happened on one text into the run on another, and see whether the answer goes along.

Two prompts that differ in one thing only, a clean and a corrupted one, and a number that tells the
answers apart. An activation of the clean run that is put into the corrupted one and brings the
clean answer back carried the difference, or enough of it. Path patching asks the same of a path:
what a sender tells a receiver directly, while everything between them is held.

Explained in: chapters/10_interpretability, section "Activation patching".
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_callable,
    check_choice,
    check_float,
    check_generator,
    check_ids,
    check_list,
    check_number,
    check_shape,
    check_tensor,
)
from tfbook.interpret.ablation import Head, check_heads
from tfbook.interpret.capturing import capture, patched, taps
from tfbook.interpret.lens import attentions
from tfbook.training import evaluating

__all__ = [
    "Site",
    "activation_patching",
    "head_site",
    "logit_difference",
    "patch_sites",
    "path_patching",
    "random_heads",
]

Metric = Callable[[Tensor], Tensor | float]
DIRECTIONS = ("denoise", "noise")


class Site(NamedTuple):
    """A place in a model: a tap, and perhaps only some of its heads and rows.

    Attributes:
        tap: its name, as :func:`tfbook.interpret.taps` lists them.
        heads: which heads; all when omitted. Keys and values have as many as there are key-value
            heads.
        places: which rows of the sequence; all when omitted. Of scores and patterns the queries.

    Explained in: chapters/10_interpretability, section "Activation patching".
    """

    tap: str
    heads: Sequence[int] | None = None
    places: Sequence[int] | None = None


def head_site(layer: int, head: int, what: str = "z", places: Sequence[int] | None = None) -> Site:
    """Return the site of one head: what it found, or its queries, keys, values or pattern.

    Args:
        layer: its layer, counted from 0.
        head: its number; for "k" and "v" that of the key-value head.
        what: "z", "q", "k", "v", "scores" or "pattern".
        places: which rows; all when omitted.

    Raises:
        TypeError: for a number that is no integer, or places that are no list.
        ValueError: for a negative number, or an unknown name.

    Example:
        >>> head_site(3, 1, "k").tap
        'stack.blocks.3.mixer.k'

    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    check_number("layer", layer, 0, whole=True)
    check_number("head", head, 0, whole=True)
    check_choice("what", what, ("z", "q", "k", "v", "scores", "pattern"))
    site = Site(f"stack.blocks.{layer}.mixer.{what}", (head,), places)
    _check_numbers(site)
    return site


def patch_sites(
    model: nn.Module, sites: Sequence[Site], source: Mapping[str, Tensor]
) -> AbstractContextManager[None]:
    """Let what passed some sites in another run pass them inside a ``with``.

    Args:
        model: a model with taps.
        sites: where; the rest of a tap passes as it is.
        source: what passed the taps in the other run, by name, as :func:`capture` gives it. It has
            the shape of what it replaces, so both runs have as many rows and tokens.

    Returns:
        The context.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a site that is not there; and, from the model's call, for another shape.

    Explained in: chapters/10_interpretability, section "Activation patching".
    """
    known = taps(model)
    _check_sites("sites", sites, known)
    if not isinstance(source, Mapping):
        raise TypeError(f"source must map names of taps, got {type(source).__name__}")
    by_tap = {site.tap: [each for each in sites if each.tap == site.tap] for site in sites}
    for tap in by_tap:
        if tap not in source:
            raise ValueError(f"source must hold {tap}, it holds {', '.join(source) or 'nothing'}")
        check_tensor(f"source[{tap!r}]", source[tap])

    def put(tap):
        def change(x):
            new = x.clone()
            for site in by_tap[tap]:
                where = _where(site, x)
                new[where] = source[tap][where]
            return new

        return change

    def checked(tap):
        change = put(tap)

        def check(x):
            check_shape(f"source[{tap!r}]", source[tap], x.shape, "that of what passes now")
            return change(x)

        return check

    return patched(model, {tap: checked(tap) for tap in by_tap})


def logit_difference(
    logits: Float[Tensor, "B N V"],
    right: Int[Tensor, " B"],
    wrong: Int[Tensor, " B"],
    *,
    place: int = -1,
) -> Float[Tensor, " B"]:
    """Return by how much the logit of the right token leads over that of the wrong one.

    It is the logarithm of the ratio of their probabilities, whatever the other tokens get.

    Args:
        logits: (B, N, V).
        right: the token that fits, (B,).
        wrong: the token that does not, (B,).
        place: the row that predicts it.

    Returns:
        One number for each row, (B,).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit.

    Example:
        >>> logits = torch.tensor([[[0.0, 3.0, 1.0]]])
        >>> logit_difference(logits, torch.tensor([1]), torch.tensor([2]))
        tensor([2.])

    Source: [wang2022interpretability]
    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    check_float("logits", logits)
    if logits.ndim != 3 or 0 in logits.shape:
        raise ValueError(f"logits must have shape (B, N, V), got {tuple(logits.shape)}")
    batch, n, vocab_size = logits.shape
    check_number("place", place, -n, n - 1, whole=True)
    for name, chosen in (("right", right), ("wrong", wrong)):
        check_tensor(name, chosen, min_dims=1)
        check_ids(name, chosen[None], vocab_size)
        check_shape(name, chosen, (batch,), "(B,)")
    rows = torch.arange(batch, device=logits.device)
    return logits[rows, place, right] - logits[rows, place, wrong]


def activation_patching(
    model: nn.Module,
    clean: Int[Tensor, "B N"],
    corrupted: Int[Tensor, "B N"],
    metric: Metric,
    sites: Sequence[Site | Sequence[Site]],
    *,
    direction: str = "denoise",
    control: Int[Tensor, "B N"] | None = None,
) -> Float[Tensor, " S"]:
    """Return for each site which share of the difference between two prompts it carries.

    "denoise" runs the corrupted prompt with the site's clean activation and asks what comes back:
    (m(patched) − m(corrupted)) / (m(clean) − m(corrupted)). "noise" runs the clean prompt with the
    corrupted activation and asks what is lost: (m(clean) − m(patched)) / (the same). Both are 0
    where the site does nothing and 1 where it does everything. The first finds what is enough,
    the second what is needed: of two copies of a message each is enough and none is needed.

    Args:
        model: a decoder, or an encoder with a head of tokens.
        clean: the prompt, (B, N).
        corrupted: the other, token by token beside it, (B, N).
        metric: gets logits (B, N, V), and returns a number.
        sites: each a :class:`Site`, or a list of sites that are patched together.
        direction: "denoise" or "noise".
        control: another prompt, (B, N), whose activations are put there instead: what is found with
            those of any prompt says nothing about these two.

    Returns:
        One share for each entry of ``sites``.

    Raises:
        TypeError: for a wrong type.
        ValueError: for prompts of different shapes, a site that is not there, an unknown direction,
            or a metric that does not tell the prompts apart.

    Cost: two runs, three with a control, and one for each entry of ``sites``.

    Source: [wang2022interpretability], [vig2020investigating]
    Explained in: chapters/10_interpretability, section "Activation patching".
    """
    groups = _read_groups("sites", sites, taps(model))
    check_choice("direction", direction, DIRECTIONS)
    wanted = [site for group in groups for site in group]
    with evaluating(model):
        good, bad, sources = _both_runs(model, clean, corrupted, metric, wanted)
        denoise = direction == "denoise"
        tokens, source = (corrupted, sources[0]) if denoise else (clean, sources[1])
        if control is not None:
            check_ids("control", control)
            check_shape("control", control, clean.shape, "that of clean")
            with capture(model, *dict.fromkeys(site.tap for site in wanted)) as source:
                model(control)
        start, sign = (bad, 1) if denoise else (good, -1)
        found = []
        for group in groups:
            with patch_sites(model, group, source):
                after = _measure(model, tokens, metric)
            found.append(sign * (after - start) / (good - bad))
    return torch.tensor(found)


def path_patching(
    model: nn.Module,
    clean: Int[Tensor, "B N"],
    corrupted: Int[Tensor, "B N"],
    metric: Metric,
    senders: Sequence[Site | Sequence[Site]],
    receivers: Sequence[Site],
    *,
    through_ffn: bool = False,
) -> Float[Tensor, " S"]:
    """Return for each sender how much the answer hangs on what it tells the receivers directly.

    On the clean prompt the sender gives its corrupted activation, while all other heads (and the
    feed-forward parts, unless ``through_ffn``) give their clean ones: so the receivers hear of it
    along the stream alone. What reaches them then is put into a clean run in which everything else
    is free, and the effect is (m(clean) − m(patched)) / (m(clean) − m(corrupted)).

    Args:
        model: a decoder or an encoder, all of whose mixers are multi-head attention.
        clean: the prompt, (B, N).
        corrupted: the other, token by token beside it, (B, N).
        metric: gets logits (B, N, V), and returns a number.
        senders: each a :class:`Site`, or a list of them: what heads found (taps ``z``), or
            "stack.blocks.0.resid_pre" for the embeddings.
        receivers: sites that hear it, together: queries, keys or values of heads, or for the answer
            itself the last stream, "stack.blocks.<last>.resid_post".
        through_ffn: whether feed-forward parts between them may pass it on, as in the source.

    Returns:
        One effect for each entry of ``senders``; 0 where no path leads from it to the receivers.

    Raises:
        TypeError: for a wrong type.
        ValueError: for prompts of different shapes, a site that is not there or cannot be a sender,
            a layer without heads, or a metric that does not tell the prompts apart.

    Cost: two runs, and two for each entry of ``senders``.

    Source: [wang2022interpretability], [goldowskydill2023localizing]
    Explained in: chapters/10_interpretability_deeper, section "Path by path".
    """
    known, found = taps(model), attentions(model)
    groups = _read_groups("senders", senders, known)
    _check_sites("receivers", receivers, known)
    check_bool("through_ffn", through_ffn)
    z = [f"stack.blocks.{i}.mixer.z" for i in range(len(model.stack.blocks))]
    if len(found) < len(z):
        raise ValueError(f"model must have heads in every layer, it has them in {list(found)}")
    first = "stack.blocks.0.resid_pre"
    for site in (site for group in groups for site in group):
        if site.tap not in (*z, first):
            raise ValueError(f"senders must be taps z or {first}, got {site.tap}")
    heard = [site.tap for site in receivers]
    if held := [tap for tap in heard if tap in z]:
        raise ValueError(f"receivers must not be what heads found, which is held, got {held[0]}")
    everything = [Site(tap) for tap in (*z, first)]
    with evaluating(model):
        kept = _FeedForwards(model, () if through_ffn else model.stack.blocks)
        good, bad, sources = _both_runs(model, clean, corrupted, metric, everything, kept)
        effects = []
        for group in groups:
            held = _with_sites(group, *sources)
            with kept.held(), patched(model, held), capture(model, *heard) as told:
                model(clean)
            with patch_sites(model, receivers, told):
                after = _measure(model, clean, metric)
            effects.append((good - after) / (good - bad))
    return torch.tensor(effects)


class _FeedForwards:
    """What feed-forward parts gave in the clean run, to be held at that."""

    def __init__(self, model, blocks):
        self.parts, self.found = [block.ffn for block in blocks], {}

    def keep(self):
        """Let them be watched inside a ``with``."""
        return self._hooked(lambda part: lambda *given: self.found.__setitem__(part, given[-1]))

    def held(self):
        """Let them give what they gave inside a ``with``."""
        return self._hooked(lambda part: lambda *given: self.found[part])

    def _hooked(self, hook):
        stack = ExitStack()
        for part in self.parts:
            stack.callback(part.register_forward_hook(hook(part)).remove)
        return stack


def _with_sites(group, clean, corrupted):
    """Return the clean activations of all heads, with the senders' places corrupted."""
    first = [tap for tap in clean if tap.endswith("resid_pre")]
    held = {tap: x for tap, x in clean.items() if tap not in first or tap in [s.tap for s in group]}
    for site in group:
        where = _where(site, held[site.tap])
        held[site.tap] = held[site.tap].clone()
        held[site.tap][where] = corrupted[site.tap][where]
    return held


def _both_runs(model, clean, corrupted, metric, sites, kept=None):
    """Return the metric of both prompts, and what passed the sites in both runs."""
    check_ids("clean", clean)
    check_ids("corrupted", corrupted)
    check_shape("corrupted", corrupted, clean.shape, "that of clean")
    check_callable("metric", metric)
    names, numbers, sources = dict.fromkeys(site.tap for site in sites), [], []
    for tokens in (corrupted, clean):  # the clean run last: that is what is kept
        with ExitStack() as stack:
            seen = stack.enter_context(capture(model, *names))
            if kept is not None:
                stack.enter_context(kept.keep())
            numbers.append(_measure(model, tokens, metric))
        sources.append({name: seen[name] for name in names})
    if abs(numbers[1] - numbers[0]) < 1e-9:
        raise ValueError(f"metric must tell the prompts apart, got {numbers[1]:g} for both")
    return numbers[1], numbers[0], (sources[1], sources[0])


def _measure(model, tokens, metric) -> float:
    out = model(tokens)
    value = metric(out[0] if isinstance(out, tuple) else out)
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"metric must return a number, got {kind}")
    if not math.isfinite(value):
        raise ValueError(f"metric must return a finite number, got {value}")
    return float(value)


def random_heads(
    model: nn.Module,
    n: int,
    *,
    without: Collection[Head] = (),
    generator: torch.Generator | None = None,
) -> list[Head]:
    """Draw heads, for the question whether any others would have done the same.

    Args:
        model: a decoder or an encoder.
        n: how many, all different.
        without: heads that are not to be drawn.
        generator: source of randomness.

    Returns:
        Pairs (layer, head), in order.

    Raises:
        TypeError: for a wrong type.
        ValueError: if there are not so many, or one of ``without`` is not there.

    Explained in: chapters/10_interpretability, section "The circuit as a whole".
    """
    found = attentions(model)
    check_heads("without", without, found)
    check_generator(generator)
    gone = {tuple(pair) for pair in without}
    left = [(i, h) for i in found for h in range(found[i].n_heads) if (i, h) not in gone]
    check_number("n", n, 1, len(left), whole=True)
    chosen = torch.randperm(len(left), generator=generator)[:n].tolist()
    return sorted(left[each] for each in chosen)


def _where(site: Site, x: Tensor) -> tuple:
    """Return the index of a site in what passes its tap, (B, N, D) or (B, H, N, …)."""
    with_heads = x.ndim == 4
    if site.heads is not None and not with_heads:
        raise ValueError(f"site {site.tap} has no heads, got heads {list(site.heads)}")
    sizes = {"head": x.shape[1] if with_heads else 0, "place": x.shape[-2]}
    for name, chosen in (("head", site.heads), ("place", site.places)):
        for each in chosen or ():
            low = 0 if name == "head" else -sizes[name]
            check_number(f"a {name} of {site.tap}", each, low, sizes[name] - 1, whole=True)
    places = slice(None) if site.places is None else list(site.places)
    if not with_heads:
        return (slice(None), places)
    if site.heads is None:
        return (slice(None), slice(None), places)
    heads = list(site.heads)
    if site.places is None:
        return (slice(None), heads)
    return (slice(None), torch.tensor(heads)[:, None], torch.tensor(places))


def _check_numbers(site: Site) -> None:
    for name, chosen in (("heads", site.heads), ("places", site.places)):
        if chosen is not None:
            check_list(f"{name} of a site", chosen)
            for each in chosen:
                check_number(f"one of the {name} of a site", each, whole=True)


def _check_sites(name: str, sites: object, known: Mapping[str, nn.Module]) -> None:
    check_list(name, sites)
    if not len(sites) or isinstance(sites, Site):
        raise ValueError(f"{name} must be a list of at least one Site, got {sites!r}")
    for site in sites:
        if not isinstance(site, Site):
            raise TypeError(f"{name} must hold Sites, got {type(site).__name__}")
        if site.tap not in known:
            raise ValueError(f"{name} must be taps of the model, got {site.tap!r}")
        _check_numbers(site)


def _read_groups(name: str, sites: object, known: Mapping[str, nn.Module]) -> list[list[Site]]:
    """Return lists of sites, one for each entry."""
    check_list(name, sites)
    if not len(sites) or isinstance(sites, Site):
        raise ValueError(f"{name} must be a list of at least one Site, got {sites!r}")
    groups = [[each] if isinstance(each, Site) else each for each in sites]
    for group in groups:
        _check_sites(name, group, known)
    return [list(group) for group in groups]
