"""Which choices of architecture can be seen in the loss, on a small model and a small budget?

A decoder learns to predict the next character of Shakespeare: four layers with layer norms before
their parts, GELU, rotary positions, no biases. Each other model differs from it in one thing, and
reads the same batches with the same seed at the same rate. Models that would have more parameters
have fewer somewhere else, but for "SwiGLU, wider" and the experts: these do as much work for a
character (but for the router's) and own more. "One shared layer" owns less.

`models[name]` holds what each owns (`parameters`), what one character passes (`active`), the FLOPs
of its way forward in a window of 64 (`flops`), and the losses on 54,400 characters of another split
in nats a character, one for each seed (`losses`). With the same data, `rates[name][rate]` are
losses at other rates, where 99 stands for all that is no number or larger. `tried[rate]` is the
search for the rate of the plain model, with another seed.

`loads[way]` tells how three ways of training eight experts share their work: for each 20 steps the
shares of the experts of one layer, each the mean over these steps (`shares`), and how many times
the mean the fullest expert gets, over all layers (`fullest`). The weights are those of the first
run of "8 experts, bias".

Source: [narang2021transformer], who ask the same of 223 million parameters.
Explained in: chapters/08_architectural_variants, section "How large is luck?".
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tfbook.attention import GatedAttention, SinkAttention
from tfbook.blocks import (
    MixtureOfExperts,
    deep_norm,
    draw_deep_norm,
    routing_losses,
    update_biases,
    with_deep_norm,
)
from tfbook.data import rows
from tfbook.experiments.warmup import letters
from tfbook.models import (
    FFN,
    Attention,
    Experts,
    Layer,
    NextToken,
    Norm,
    Rotary,
    TransformerConfig,
    active_parameters,
    build,
    share,
)
from tfbook.optimization import schedule

__all__ = ["CHANGES", "SMOKE", "config_of", "model_of", "run", "train"]

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 48, 4, 4, 64, 8
INNER, LARGEST, SEARCH_SEED, PIECE, SEEN = 4 * WIDTH, 99.0, 1000, 20, 2
SMOKE = {
    "names": ("plain", "8 experts, bias"), "seeds": (0,), "steps": 20, "most_seeds": 2,
    "search": (0.004, 0.008), "stressed": ("plain",), "rates": (0.016,),
}  # fmt: skip
CARD = {
    "model": "decoders, {LAYERS} layers of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {rate:g}; {most_seeds} seeds for the plain model",
}


def ffn(size: int = INNER, kind: str = "gelu") -> FFN:
    """Return a feed-forward part without biases."""
    return FFN(size, kind, bias=False)


def experts(count: int, used: int, size: int, **choices: object) -> Experts:
    """Return experts that do the work of the plain network."""
    return Experts(size, count, used, "gelu", bias=False, **choices)


PLAIN = Layer(Attention(HEADS, position=Rotary(), bias=False), ffn(), norm=Norm(bias=False))
QK = replace(PLAIN.mixer, qk_norm=Norm("rms"))
MIXED = experts(8, 2, INNER // 2)
# Name → what a layer has, or what is done to the config.
CHANGES: dict[str, Layer | Callable[[TransformerConfig], TransformerConfig]] = {
    "plain": PLAIN,
    "RMSNorm": replace(PLAIN, norm=Norm("rms")),
    "post-norm": replace(PLAIN, place="post"),
    "norms on both sides": replace(PLAIN, place="both"),
    "no norms": replace(PLAIN, place="none"),
    "no last norm": lambda config: replace(config, final_norm=False),
    "DeepNorm": with_deep_norm,
    "SwiGLU": replace(PLAIN, ffn=ffn(INNER * 2 // 3, "swiglu")),
    "SwiGLU, wider": replace(PLAIN, ffn=ffn(INNER, "swiglu")),
    "QK-norm": replace(PLAIN, mixer=QK),
    "learned sink": PLAIN,
    "gated output": replace(PLAIN, ffn=ffn(INNER - WIDTH // 2)),
    "parallel": replace(PLAIN, parallel=True, one_norm=True),
    "one shared layer": lambda config: replace(config, decoder=share(config.decoder, 1)),
    "8 experts": replace(PLAIN, ffn=MIXED),
    "8 experts, loss": replace(PLAIN, ffn=MIXED),
    "8 experts, bias": replace(PLAIN, ffn=replace(MIXED, balanced=True)),
    "16 fine experts": replace(PLAIN, ffn=experts(16, 4, INNER // 4, balanced=True)),
    "15 fine, 1 shared": replace(
        PLAIN, ffn=experts(15, 3, INNER // 4, n_shared=1, balanced=True)
    ),
}  # fmt: skip
WAYS = ("8 experts", "8 experts, loss", "8 experts, bias")
STRESSED = ("plain", "post-norm", "no norms", "QK-norm", "norms on both sides", "no last norm")


def config_of(name: str) -> TransformerConfig:
    """Return the description of a model, but for a sink or a gate."""
    change, vocabulary = CHANGES[name], int(letters("train").max()) + 1
    layers = [change if isinstance(change, Layer) else PLAIN] * LAYERS
    head = NextToken(tie_embeddings=False)
    made = TransformerConfig(vocabulary, WIDTH, decoder=layers, head=head)
    return made if isinstance(change, Layer) else change(made)


def model_of(name: str) -> nn.Module:
    """Return an untrained model; what comes out of a linear map is as large as what goes in."""
    made = build(config_of(name))
    for block in made.stack.blocks:
        if name == "learned sink":
            block.mixer.attend = SinkAttention(HEADS)
        if name == "gated output":
            choices = {"causal": True, "position": block.mixer.position, "bias": False}
            block.mixer = GatedAttention(WIDTH, HEADS, gate_bias=False, **choices)
    for path, weight in made.named_parameters():
        if weight.ndim == 2 and "sink" not in path:
            nn.init.normal_(weight, std=1.0 if "embed" in path else weight.shape[1] ** -0.5)
    if name == "DeepNorm":
        draw_deep_norm(made.stack, deep_norm(n_decoder=LAYERS)["decoder"].beta)
    return made


@torch.no_grad()
def held_out(model: nn.Module) -> float:
    """Return the loss on the other split in nats a character, at most `LARGEST`."""
    model.eval()
    windows = rows(letters("valid"), CONTEXT)[:850]
    losses = [F.cross_entropy(model(part[:, :-1])[0].mT, part[:, 1:]) for part in windows.split(85)]
    loss = torch.stack(losses).mean().item()
    return round(loss, 4) if loss < LARGEST else LARGEST  # what is no number any more, too


def train(
    name: str, model: nn.Module, steps: int, seed: int, rate: float, warmup: int | None = None,
    strength: float = 0.01, bias_step: float = 0.01,
) -> list[Tensor]:  # fmt: skip
    """Train a model; return for each step the shares of its experts, (layers, experts).

    The seed alone decides the order of the text: all models of a seed read the same windows. The
    rate rises for a tenth of the steps, or for `warmup` of them. `strength` is the factor of the
    balancing loss, of "8 experts, loss", and `bias_step` moves the biases of "8 experts, bias".
    """
    windows = rows(letters("train"), CONTEXT)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    course = schedule("cosine", steps=steps, warmup=steps // 10 if warmup is None else warmup)
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, course)
    mixtures = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]
    shares = []
    for step in range(steps):
        batch = windows[order[step * BATCH : (step + 1) * BATCH]]  # (BATCH, CONTEXT + 1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[:, :-1])[0].mT, batch[:, 1:])
        if name == "8 experts, loss":
            loss = loss + strength * routing_losses(model).balance
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        course.step()
        if mixtures:
            loads = torch.stack([part.routing.load for part in mixtures])
            shares.append(loads / loads.sum(-1, keepdim=True))
            if mixtures[0].router.choice_bias is not None:
                update_biases(model, bias_step)
    return shares


def prices(name: str) -> dict[str, int]:
    """Return what a model owns, what one character passes, and the FLOPs of a character."""
    model, config = model_of(name), config_of(name)
    owned = sum(weight.numel() for weight in model.parameters())
    idle = config.count_parameters() - active_parameters(config)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.arange(CONTEXT)[None] % 60)
    flops = counter.get_total_flops() // CONTEXT
    return {"parameters": owned, "active": owned - idle, "flops": flops}


def tell(shares: Sequence[Tensor]) -> dict[str, list]:
    """Return means of shares over pieces of a run."""
    pieces = [torch.stack(shares[i : i + PIECE]) for i in range(0, len(shares), PIECE)]
    return {
        "shares": [[round(x, 4) for x in part[:, SEEN].mean(0).tolist()] for part in pieces],
        "fullest": [round((part.amax(-1).mean() * part.shape[-1]).item(), 3) for part in pieces],
    }


def run(
    *, names: Sequence[str] = tuple(CHANGES), seeds: Sequence[int] = (0, 1, 2, 3),
    most_seeds: int = 32, steps: int = 240, search: Sequence[float] = (0.003, 0.006, 0.012, 0.024),
    stressed: Sequence[str] = STRESSED, rates: Sequence[float] = (4, 10),
) -> tuple[dict, dict[str, Tensor]]:  # fmt: skip
    """Search the rate of the plain model, then train all models at it.

    Args:
        names: the models, "plain" and "8 experts, bias" among them.
        seeds: of all models but the plain one.
        most_seeds: of the plain model.
        steps: of each run.
        search: rates to be tried.
        stressed: models that are trained at other rates, too.
        rates: these, in multiples of the one that was found; two seeds each.
    """

    def learned(name: str, seed: int, rate: float) -> tuple[float, nn.Module, list[Tensor]]:
        torch.manual_seed(seed)
        model = model_of(name)
        shares = train(name, model, steps, seed, rate)
        return held_out(model), model, shares

    tried = {rate: learned("plain", SEARCH_SEED, rate)[0] for rate in search}
    rate = min(tried, key=lambda each: tried[each])
    found, loads, weights = {}, {}, {}
    for name in names:
        found[name] = prices(name) | {"losses": []}
        for seed in range(most_seeds) if name == "plain" else seeds:
            loss, model, shares = learned(name, seed, rate)
            found[name]["losses"].append(loss)
            if seed == seeds[0] and name in WAYS:
                loads[name] = tell(shares)
            if seed == seeds[0] and name == "8 experts, bias":
                weights = {key: value.clone() for key, value in model.state_dict().items()}
    other = {
        name: {
            f"{times:g}": [learned(name, seed, times * rate)[0] for seed in seeds[:2]]
            for times in rates
        }
        for name in stressed
    }
    sizes = [each["parameters"] for each in found.values()]
    return {
        "settings": {"steps": steps, "rate": rate, "smallest": min(sizes), "largest": max(sizes)},
        "seeds": list(seeds), "most_seeds": most_seeds, "piece": PIECE, "layer": SEEN,
        "tried": {f"{key:g}": value for key, value in tried.items()},
        "models": found, "rates": other, "loads": loads,
    }, weights  # fmt: skip
