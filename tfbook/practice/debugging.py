"""A checklist for a model that does not learn: each function looks for one fault, and measures.

What is found says what is wrong, where, what was measured and what a healthy model shows, and what
to try. An empty list is good news about this fault and about nothing else. No function changes the
model: its weights, gradients, modes and random numbers are afterwards what they were.

Explained in: chapters/18_practice, section "A checklist that finds the fault".
"""

import copy
import math
from collections.abc import Callable
from statistics import median

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_callable,
    check_module,
    check_number,
    check_token_mask,
)
from tfbook.attention import split_heads
from tfbook.interpret import capture, taps
from tfbook.practice.findings import Finding, check_tokens, logits_of, read_loss, unchanged
from tfbook.training import causal_loss, evaluating

__all__ = [
    "checklist",
    "dead_heads",
    "entropy_collapse",
    "forgotten_eval",
    "gradient_flow",
    "leaks",
    "start_loss",
    "stuck_on_one_batch",
]

Loss = Callable[[nn.Module], Tensor | tuple[Tensor, int]]


@torch.no_grad()
def leaks(
    model: nn.Module,
    tokens: Int[Tensor, "B N"],
    *,
    mask: Bool[Tensor, "B N"] | None = None,
    tolerance: float = 1e-4,
) -> list[Finding]:
    """Change the future and see whether the past answers: a causal model must not.

    For every place the tokens behind it are exchanged for others, and the logits up to it compared.
    With a mask the tokens that it hides are exchanged too, which no other place may notice.

    Args:
        model: a decoder: logits (B, N, V), alone or as the first of several.
        tokens: (B, N), at least 2 columns.
        mask: True = token.
        tolerance: the largest change allowed, in standard deviations of the logits.

    Returns:
        The first place that sees ahead, and that padding is seen, if they are.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a shape that does not fit.

    Cost: N forward passes.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_tokens(tokens)
    check_number("tolerance", tolerance, above=0)
    given = {}
    if mask is not None:
        check_token_mask(mask, tokens.shape)
        given["mask"] = mask
    found = []
    with evaluating(model):
        plain = logits_of(model(tokens, **given))  # (B, N, V)
        scale, vocab_size = plain.std().clamp(min=1e-12), plain.shape[-1]
        others = (tokens + 1) % vocab_size
        for place in range(tokens.shape[1] - 1):
            behind = torch.arange(tokens.shape[1], device=tokens.device) > place  # (N,)
            changed = logits_of(model(torch.where(behind, others, tokens), **given))
            gap = ((changed - plain)[:, : place + 1].abs().amax() / scale).item()
            if not gap <= tolerance:
                found.append(Finding(
                    "the model sees the future", f"place {place}", gap,
                    f"at most {tolerance:g} standard deviations of the logits",
                    "is the causal mask there, and the right way round (True = allowed, lower "
                    "triangle)? does a norm or a convolution reach over places?",
                ))  # fmt: skip
                break
        if mask is not None and not mask.all():
            changed = logits_of(model(torch.where(mask, tokens, others), **given))
            gap = ((changed - plain)[mask].abs().amax() / scale).item()
            if not gap <= tolerance:
                found.append(Finding(
                    "padding changes what is said of tokens", "the mask", gap,
                    f"at most {tolerance:g} standard deviations of the logits",
                    "hand the padding mask to every attention; mind that True = token",
                ))  # fmt: skip
    return found


def forgotten_eval(model: nn.Module, tokens: Int[Tensor, "B N"]) -> list[Finding]:
    """Ask twice and compare: a model that is used must not be in training mode.

    Args:
        model: a model of tokens.
        tokens: (B, N).

    Returns:
        One finding, if a part is in training mode or the two answers differ.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a shape that does not fit.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_tokens(tokens, 1)
    with unchanged(), torch.no_grad():
        one, other = (logits_of(model(tokens)) for _ in range(2))
    gap = (one - other).abs().amax().item()
    training = [name for name, part in model.named_modules() if part.training]
    if not training and gap == 0:
        return []
    return [Finding(
        "the model is in training mode" if training else "the model answers by chance",
        (training[0] or "the model") if training else "the logits", gap,
        "the same answer twice, all parts in evaluation mode",
        "model.eval() before it is used, model.train() before it learns on",
    )]  # fmt: skip


def start_loss(
    model: nn.Module, loss: Loss, vocab_size: int, *, tolerance: float = 0.1
) -> list[Finding]:
    """Compare the loss before training with ln V, that of knowing nothing.

    Args:
        model: freshly drawn.
        loss: of the model, a mean in nats or a sum and a count.
        vocab_size: V, classes that are told apart.
        tolerance: how far off it may be, as a share of ln V.

    Returns:
        One finding, if it is further off.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of its range, or a loss that is no number.

    Source: [karpathy2019recipe]
    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_callable("loss", loss)
    check_number("vocab_size", vocab_size, 2, 2**40, whole=True)
    check_number("tolerance", tolerance, above=0)
    with evaluating(model):
        value = read_loss(loss(model)).item()
    wanted = math.log(vocab_size)
    if abs(value - wanted) <= tolerance * wanted:
        return []
    low = value < wanted
    return [Finding(
        f"the first loss is too {'low' if low else 'high'}", "before training", value,
        f"ln {vocab_size} = {wanted:.3f}",
        "does the model see its targets, or is the loss divided by too much?" if low else
        "logits are too large: draw the head smaller, check the scale and the norm before it",
    )]  # fmt: skip


@torch.no_grad()
def dead_heads(
    model: nn.Module, tokens: Int[Tensor, "B N"], *, share: float = 1e-3
) -> list[Finding]:
    """Find heads that add next to nothing to the stream.

    What a head adds is z_h W_out^h; its root mean square is compared with the median of all heads.

    Args:
        model: with multi-head attention of this package.
        tokens: (B, N).
        share: below which share of the median a head is dead.

    Returns:
        A finding for each dead head.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a model without such attention.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_tokens(tokens, 1)
    check_number("share", share, above=0, below=1)
    sizes = {}
    with evaluating(model), capture(model, "*.z") as seen:
        model(tokens)
    for tap, z in seen.items():  # (B, H, N, d_value)
        mixer = model.get_submodule(tap.removesuffix(".z"))
        parts = split_heads(mixer.out_proj.weight, z.shape[1]).mT  # (H, d_value, d_model)
        added = (z @ parts).square().mean((0, 2, 3)).sqrt()  # (H,)
        sizes |= {(tap, h): size for h, size in enumerate(added.tolist())}
    middle = median(sizes.values())
    return [
        Finding(
            "a head adds next to nothing",
            f"{tap.removesuffix('.z')}, head {h}",
            size / middle if middle else 0.0,
            f"at least {share:g} of the median head",
            "was it initialised, or pruned? is its weight decayed to 0, its mask all False?",
        )  # fmt: skip
        for (tap, h), size in sizes.items()
        if not size > share * middle
    ]


@torch.no_grad()
def entropy_collapse(
    model: nn.Module, tokens: Int[Tensor, "B N"], *, share: float = 0.05
) -> list[Finding]:
    """Find layers whose heads all look at one key each: no gradient tells them where else to look.

    The entropy of a query's weights is taken as a share of ln m, m the keys that it may see, and
    the mean over queries and heads of a layer compared with ``share``. Single heads that look at
    one place, such as the token before, are common and no fault.

    Args:
        model: with taps ``pattern``: a decoder, or an encoder without padding.
        tokens: (B, N), at least 2 columns.
        share: below which a layer has collapsed.

    Returns:
        A finding for each layer that has.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a model without such taps.

    Source: [zhai2023stabilizing]
    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_tokens(tokens)
    check_number("share", share, above=0, below=1)
    causal = getattr(getattr(model, "config", None), "kind", "decoder") == "decoder"
    found = []
    with evaluating(model), capture(model, *taps(model, "*.pattern")) as seen:
        model(tokens)
    for tap, weights in seen.items():  # (B, H, N, N)
        n = weights.shape[-1]
        keys = torch.arange(1, n + 1) if causal else torch.full((n,), n)  # (N,)
        several = keys > 1
        entropy = torch.special.entr(weights.float()).sum(-1).cpu()  # (B, H, N)
        mean = (entropy[..., several] / keys[several].log()).mean().item()
        if not mean >= share:
            found.append(Finding(
                "attention has collapsed onto single keys", tap.removesuffix(".pattern"), mean,
                f"at least {share:g} of the entropy of even attention",
                "normalise queries and keys (qk_norm), lower the rate, lengthen the warm-up",
            ))  # fmt: skip
    return found


def gradient_flow(
    model: nn.Module, loss: Loss, *, low: float = 0.01, high: float = 100.0
) -> list[Finding]:
    """Compare the gradients of the layers: none far below the others, none far above.

    Of each block the root mean square of the gradient of its matrices is taken, and compared with
    the median of all blocks.

    Args:
        model: with layers named "….blocks.0.…" and so on.
        loss: of the model, a number or a sum and a count.
        low: below this share of the median a gradient vanishes.
        high: above this multiple of it a gradient explodes.

    Returns:
        A finding for each layer whose gradient vanishes, explodes, or is missing or not finite.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a model without such layers, or a loss that is no number.

    Source: [karpathy2019recipe]
    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_callable("loss", loss)
    check_number("low", low, 0, below=1)
    check_number("high", high, above=1)
    named = {n: w for n, w in model.named_parameters() if w.ndim >= 2 and ".blocks." in f".{n}"}
    layers = {n: f".{n}".split(".blocks.")[1].split(".")[0] for n in named}
    if not named:
        raise ValueError("model must have layers named blocks.0, blocks.1, …, got none")
    trained = {name: weight for name, weight in named.items() if weight.requires_grad}
    with unchanged():
        value = read_loss(loss(model))
        grads = {}
        if trained and value.requires_grad:
            all_of = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
            grads = dict(zip(trained, all_of, strict=True))
    sizes = {}
    for layer in dict.fromkeys(layers.values()):
        own = [grads.get(name) for name in named if layers[name] == layer]
        there = [each.flatten() for each in own if each is not None]
        sizes[layer] = torch.cat(there).square().mean().sqrt().item() if there else 0.0
    usual = [size for size in sizes.values() if math.isfinite(size) and size > 0]
    middle = median(usual) if usual else math.nan
    found = []
    for layer, size in sizes.items():
        if size == 0:
            what = "no gradient reaches a layer"
            advice = "is it frozen, detached, under no_grad? is its branch multiplied by 0?"
        elif not math.isfinite(size):
            what, advice = (
                "a gradient is not finite",
                "look for a division by 0, a log of 0, inf − inf",
            )
        elif size < low * middle:
            what = "the gradient vanishes"
            advice = "residual connections, pre-norm, another initialisation"
        elif size > high * middle:
            what, advice = (
                "the gradient explodes",
                "clip it, lower the rate, scale the initialisation",
            )
        else:
            continue
        share = size / middle if middle else 0.0
        found.append(Finding(what, f"layer {layer}", share, f"from {low:g} to {high:g} of the "
                             "median layer", advice))  # fmt: skip
    return found


def stuck_on_one_batch(
    model: nn.Module, loss: Loss, *, steps: int = 150, lr: float = 0.01, share: float = 0.1
) -> list[Finding]:
    """Train a copy on one batch: a model that cannot learn even that by heart has a fault.

    Args:
        model: as it is before training.
        loss: of the model on one batch, always the same: a mean, or a sum and a count.
        steps: of Adam.
        lr: its rate.
        share: of the first loss that has to be left at most.

    Returns:
        One finding, if more is left, or the loss does not depend on any weight.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of its range, or a loss that is no number.

    Source: [karpathy2019recipe]
    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_callable("loss", loss)
    check_number("steps", steps, 1, 10**6, whole=True)
    check_number("lr", lr, 0, 1e6, above=0)
    check_number("share", share, above=0, below=1)
    other = copy.deepcopy(model).eval()  # dropout would leave a loss
    weights = [weight for weight in other.parameters() if weight.requires_grad]
    first = last = math.nan
    with unchanged():
        optimizer = torch.optim.Adam(weights, lr=lr) if weights else None
        for step in range(steps + 1):
            value = read_loss(loss(other))
            last = value.item()
            first = last if step == 0 else first
            if optimizer is None or not value.requires_grad or not math.isfinite(last):
                break
            if step < steps:
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
    if last <= share * first:
        return []
    last = last if math.isfinite(last) else math.inf
    return [Finding(
        "one batch cannot be learned by heart", f"after {step} steps", last,
        f"at most {share:g} of the first loss, {first:.4g}",
        "are weights frozen or detached, do inputs and targets belong together, is the rate right?",
    )]  # fmt: skip


def checklist(
    model: nn.Module, tokens: Int[Tensor, "B N"], *, fresh: bool = False
) -> list[Finding]:
    """Look for every fault that a decoder and a batch of tokens can show, the cheapest first.

    Training mode, leaks, heads, entropy, gradients, one batch by heart; and with ``fresh`` the loss
    before training.

    Args:
        model: a decoder of this package.
        tokens: (B, N), at least 4 columns, one more than the model reads.
        fresh: whether it was not trained yet.

    Returns:
        What was found.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a shape that does not fit.

    Cost: N forward passes, and 150 steps of training on the batch.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_module("model", model)
    check_tokens(tokens, 4)
    check_bool("fresh", fresh)

    def loss(model):
        return causal_loss(model, tokens)

    inputs = tokens[:, :-1]
    found = forgotten_eval(model, inputs) + leaks(model, inputs)
    if fresh:
        found += start_loss(model, loss, model.config.vocab_size)
    found += dead_heads(model, inputs) + entropy_collapse(model, inputs)
    return found + gradient_flow(model, loss) + stuck_on_one_batch(model, loss)
