"""Training steps of the lab's models with tfbook against a bare loop around nn modules and SDPA.

Setting: float32, batches of 16 windows of 256 characters, AdamW (fused) with clipped gradients. The
other side is written the way nanoGPT is: one projection for queries, keys and values, one for gate
and inner layer, PyTorch's norms and attention, nothing checked, nothing kept, batches stacked from
random places of the text. Ours is `fit` with all that it does besides. Both hold the same weights,
and their losses are compared first. The time of a batch from the loader stands beside that of a
step, and so does Muon, which the other side does not have.

On one thread times are processor times; on two (`--threads 2`, on a quiet machine) they are wall
times.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import machine, time_ratios
from tfbook import data
from tfbook.data import Windows, char_tokenizer
from tfbook.experiments import shakespeare
from tfbook.models import DecoderOnly
from tfbook.optimization import decay_groups
from tfbook.training import causal_loss, fit

OURS, THEIRS, MUON = "tfbook", "nn + SDPA", "tfbook, Muon"
BATCH, STEPS, ROUNDS = 16, 4, 7
LEAST = 0.95  # times as fast
MOST = 0.02  # share of a step that a batch from the loader takes
MODELS = {"plain": "LayerNorm, GELU, learned positions", "ours": "RMSNorm, SwiGLU, RoPE, QK-norm"}


class BareBlock(nn.Module):
    """One layer, with the projections that read the same rows put into one."""

    def __init__(self, block: nn.Module, plain: bool):
        """Copy the weights of a block of ours."""
        super().__init__()
        mixer, ffn = block.mixer, block.ffn
        self.n_heads, self.plain, self.scale = mixer.n_heads, plain, mixer.scale
        self.norm1, self.norm2 = (
            _norm(residual.norm, plain) for residual in (block.mixer_residual, block.ffn_residual)
        )
        self.qkv = _joined(mixer.q_proj, mixer.k_proj, mixer.v_proj)
        self.out = _joined(mixer.out_proj)
        self.up = _joined(ffn.up_proj) if plain else _joined(ffn.gate_proj, ffn.up_proj)
        self.down = _joined(ffn.down_proj)
        if not plain:
            self.q_norm, self.k_norm = (_norm(norm, plain) for norm in (mixer.q_norm, mixer.k_norm))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x (B, N, d_model) after the layer."""
        batch, n, width = x.shape
        rows = self.qkv(self.norm1(x)).view(batch, n, 3, self.n_heads, -1)
        q, k, v = rows.permute(2, 0, 3, 1, 4)  # (B, H, N, d_head) each
        if not self.plain:
            q, k = (_turn(z, cos, sin) for z in (self.q_norm(q), self.k_norm(k)))
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        x = x + self.out(z.transpose(1, 2).reshape(batch, n, width))
        hidden = self.up(self.norm2(x))
        if self.plain:
            return x + self.down(functional.gelu(hidden))
        gate, inner = hidden.chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * inner)


class Bare(nn.Module):
    """The same model as one of ours, with its weights copied."""

    def __init__(self, ours: DecoderOnly, plain: bool):
        """Copy the weights of a model of ours."""
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(ours.embed.weight.detach().clone(), freeze=False)
        self.place = None
        if plain:
            table = ours.position.weight.detach().clone()
            self.place = nn.Embedding.from_pretrained(table, freeze=False)
        self.blocks = nn.ModuleList(BareBlock(block, plain) for block in ours.stack.blocks)
        self.norm = _norm(ours.stack.final_norm, plain)
        self.factor = ours.config.d_model**0.5 if ours.config.embedding.scale else 1.0
        d_head = ours.config.d_model // ours.config.choice("n_heads")
        frequencies = 10000.0 ** (-torch.arange(0, d_head, 2).double() / d_head)
        angles = torch.arange(shakespeare.CONTEXT)[:, None] * frequencies  # (N, d_head/2)
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, table.float().repeat(1, 2), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score what follows each token, (B, N, V)."""
        n = tokens.shape[1]
        x = self.embed(tokens) * self.factor
        if self.place is not None:
            x = x + self.place.weight[:n]
        for block in self.blocks:
            x = block(x, self.cos[:n], self.sin[:n])
        return functional.linear(self.norm(x), self.embed.weight)


def _norm(norm: nn.Module, plain: bool) -> nn.Module:
    new = nn.LayerNorm(norm.d_model) if plain else nn.RMSNorm(norm.d_model, eps=norm.eps)
    new.load_state_dict(norm.state_dict())
    return new


def _joined(*maps: nn.Linear) -> nn.Linear:
    """Put linear maps of the same rows into one."""
    rows, bias = sum(each.out_features for each in maps), maps[0].bias is not None
    new = nn.Linear(maps[0].in_features, rows, bias=bias)
    new.weight.data = torch.cat([each.weight.detach() for each in maps])
    if bias:
        new.bias.data = torch.cat([each.bias.detach() for each in maps])
    return new


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d/2)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


def _text() -> Tensor:
    tokenizer = char_tokenizer(data.shakespeare("all"))
    return torch.tensor(tokenizer.encode(data.shakespeare("train")).ids)


def _model(name: str) -> DecoderOnly:
    """Make a model whose weights are all random, those of the norms too."""
    torch.manual_seed(0)
    model = shakespeare.make_model(name, shakespeare.RECIPES[name], 63)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1 if parameter.ndim > 1 else 1.0)
    return model


def _their_loop(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    groups = decay_groups(model, 0.1)
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    model.train()

    def loop():
        for _ in range(STEPS):
            places = torch.randint(len(ids) - shakespeare.CONTEXT, (BATCH,))
            x = torch.stack([ids[i : i + shakespeare.CONTEXT] for i in places])
            y = torch.stack([ids[i + 1 : i + 1 + shakespeare.CONTEXT] for i in places])
            logits = model(x)
            loss = functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return loop


def _our_loop(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Callable:
    windows = Windows(ids, shakespeare.CONTEXT, batch_size=BATCH)
    choices = {"loss": causal_loss, "optimizer": optimizer, "steps": STEPS, "clip": 1.0}
    return lambda: fit(model, windows, progress=False, **choices)


def _check_equal(mine: nn.Module, theirs: nn.Module, ids: Tensor) -> None:
    batch = ids[: 4 * (shakespeare.CONTEXT + 1)].view(4, -1)
    total, count = causal_loss(mine, batch)
    logits = theirs(batch[:, :-1])
    other = functional.cross_entropy(logits.mT, batch[:, 1:])
    assert abs(total.item() / count - other.item()) < 1e-4, "the models differ"


def run(rounds: int = ROUNDS) -> dict[str, object]:
    """Measure both models and the loader.

    Returns:
        The setting, the machine and one row for each model.
    """
    ids, rows = _text(), []
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for name, what in MODELS.items():
        plain = name == "plain"
        model = _model(name)
        if not plain:  # pairs (i, i + d/2), as on the other side
            model = _half_layout(model)
        theirs = Bare(model, plain)
        _check_equal(model, theirs, ids)
        groups = decay_groups(model, 0.1)
        adamw = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
        loops = {THEIRS: _their_loop(theirs, ids), OURS: _our_loop(model, adamw, ids)}
        if not plain:
            other = _model(name)
            muon = shakespeare.make_optimizer(other, shakespeare.RECIPES[name])
            loops[MUON] = _our_loop(other, muon, ids)
        windows, number = Windows(ids, shakespeare.CONTEXT, batch_size=BATCH), iter(range(10**9))
        loops["loader"] = lambda w=windows, i=number: [w(next(i)) for _ in range(STEPS)]
        taken = time_ratios(loops, THEIRS, rounds, clock=clock)
        loading = taken["loader"]["ratio"] / taken[OURS]["ratio"]
        per_second = {
            loop: STEPS * BATCH * shakespeare.CONTEXT / taken[loop]["ms"] * 1e3
            for loop in loops
            if loop != "loader"
        }
        speed = 1 / taken[OURS]["ratio"]
        rows.append(
            {
                "model": name,
                "what": what,
                "tokens/s": per_second,
                "times as fast": speed,
                "target": {"limit": LEAST, "met": speed >= LEAST},
                "Muon": 1 / taken[MUON]["ratio"] if MUON in taken else None,
                "loader": {"share": loading, "limit": MOST, "met": loading <= MOST},
            }
        )
    setting = {"dtype": "float32", "batch": BATCH, "context": shakespeare.CONTEXT, "steps": STEPS}
    return {"setting": setting, "machine": machine(), "rows": rows}


def _half_layout(model: DecoderOnly) -> DecoderOnly:
    """Return a model with the same weights that rotates pairs (i, i + d/2)."""
    new = DecoderOnly(model.config.replace(layout="half"))
    new.load_state_dict(model.state_dict())
    return new


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    lines = [
        f"threads: {results['machine']['threads']}",
        f"{'model':<8} {'nn + SDPA':>10} {'tfbook':>8} {'tokens/s':<10} {'× as fast':>12} "
        f"{'with Muon':>10} {'loader, share of a step':>24}",
    ]
    for row in results["rows"]:
        limit, met = row["target"]["limit"], row["target"]["met"]
        speed = f"{row['times as fast']:.2f} ≥{limit:g}{' ' if met else '!'}"
        share = row["loader"]
        loader = f"{share['share']:.2%} ≤{share['limit']:.0%}{' ' if share['met'] else '!'}"
        muon = "" if row["Muon"] is None else f"{row['Muon']:.2f}"
        found = row["tokens/s"]
        lines.append(
            f"{row['model']:<8} {found[THEIRS]:>10,.0f} {found[OURS]:>8,.0f} {'':<10} {speed:>12} "
            f"{muon:>10} {loader:>24}"
        )
    return "\n".join(lines)
