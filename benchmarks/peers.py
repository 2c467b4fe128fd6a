"""What other libraries compute too: the same weights and inputs, first the results, then the time.

Setting: forward, float32, one thread, each library's own path for processors without a GPU, the
fastest where it has several. Libraries that are not installed are left out and named. Besides
`transformers`, which the tests need, these are ``pip install mambapy einops`` and, without what it
asks for, ``pip install --no-deps fla-core``, whose files for reading run without triton, and
``pip install torch_geometric``.
"""

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import machine, time_ratios
from benchmarks.rows import HEADS, SIZE
from benchmarks.rows import table as write
from tfbook.attention import merge_heads, split_heads
from tfbook.blocks import MixtureOfExperts
from tfbook.efficient import attend_window, state_chunked
from tfbook.graphs import GraphAttention, graph_mask
from tfbook.recurrent import (
    Mamba2Mixer,
    MambaMixer,
    TimeMix,
    delta_chunked,
    retention_decays,
)

D_MODEL = HEADS * SIZE
LENGTHS = {512: 5, 2048: 3}  # length: rounds
TOLERANCE = 1e-4  # of the largest number of the output
OURS = "tfbook"
WINDOW, NEIGHBOURS = 512, 16

Call = Callable[[], Tensor]


class Peer(NamedTuple):
    """Something that a library computes as well.

    Attributes:
        what: it is.
        packages: that must be there.
        make: from a length to our call and theirs, by name.
    """

    what: str
    packages: tuple[str, ...]
    make: Callable[[int], tuple[Call, dict[str, Call]]]


def _drawn(module: nn.Module, seed: int = 0, std: float = 0.1) -> nn.Module:
    """Return a module with all weights drawn anew, for at their first values some do nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(std=std, generator=generator)
    return module.eval()


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _renamed(theirs: nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    return {names.get(name, name): weight for name, weight in theirs.state_dict().items()}


# mixers with their weights

MAMBA_NAMES = {
    "A_log": "log_rate",
    "D": "skip",
    "dt_bias": "delta_bias",
    "norm.weight": "gain",
    "dt_proj.weight": "delta_proj.weight",
    "dt_proj.bias": "delta_bias",
    "conv1d.weight": "conv.weight",
    "conv1d.bias": "conv.bias",
}


def _same_mamba(ours: nn.Module, theirs: nn.Module) -> nn.Module:
    weights = _renamed(theirs, MAMBA_NAMES)
    weights["conv.weight"] = weights["conv.weight"][:, 0]
    ours.load_state_dict(weights)
    return ours.eval()


def _mamba(n: int) -> tuple[Call, dict[str, Call]]:
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=2, hidden_size=D_MODEL, num_hidden_layers=1)
    theirs = _drawn(MambaModel(config).layers[0].mixer)
    ours, x = _same_mamba(MambaMixer(D_MODEL), theirs), _normal(1, n, D_MODEL)
    return lambda: ours(x)[0], {"transformers": lambda: theirs(x)}


def _mambapy(n: int) -> tuple[Call, dict[str, Call]]:
    from mambapy.mamba import MambaBlock, MambaConfig

    theirs = {
        f"mambapy, {how}": MambaBlock(MambaConfig(D_MODEL, 1, pscan=how == "scan"))
        for how in ("scan", "loop")
    }
    for each in theirs.values():
        _drawn(each)
    ours = _same_mamba(MambaMixer(D_MODEL), theirs["mambapy, loop"])
    x = _normal(1, n, D_MODEL)
    return lambda: ours(x)[0], {name: partial(each, x) for name, each in theirs.items()}


def _mamba2(n: int) -> tuple[Call, dict[str, Call]]:
    from transformers import Mamba2Config, Mamba2Model

    config = Mamba2Config(
        vocab_size=2, hidden_size=D_MODEL, num_hidden_layers=1, num_heads=2 * HEADS,
        head_dim=SIZE, state_size=128, n_groups=1, chunk_size=64,
    )  # fmt: skip
    theirs = _drawn(Mamba2Model(config).layers[0].mixer)
    ours, x = _same_mamba(Mamba2Mixer(D_MODEL), theirs), _normal(1, n, D_MODEL)
    return lambda: ours(x)[0], {"transformers": lambda: theirs(x)}


def _rwkv(n: int) -> tuple[Call, dict[str, Call]]:
    from transformers import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention

    theirs = _drawn(RwkvSelfAttention(RwkvConfig(hidden_size=D_MODEL, context_length=n)))
    names = {f"{long}.weight": f"{long[0]}_proj.weight" for long in ("key", "value", "receptance")}
    names |= {f"time_mix_{long}": f"mix_{long[0]}" for long in ("key", "value", "receptance")}
    weights = _renamed(theirs, names | {"output.weight": "out_proj.weight"})
    ours = TimeMix(D_MODEL).eval()
    ours.load_state_dict({name: weight.squeeze() for name, weight in weights.items()})
    x = _normal(1, n, D_MODEL)
    return lambda: ours(x)[0], {"transformers": lambda: theirs(x)[0]}


def _longformer(n: int) -> tuple[Call, dict[str, Call]]:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=D_MODEL, num_attention_heads=HEADS, num_hidden_layers=1,
        attention_window=[WINDOW], attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs, x = _drawn(LongformerSelfAttention(config, 0)), _normal(1, n, D_MODEL)
    nobody = torch.zeros(1, n, dtype=torch.bool)
    given = {"is_index_masked": nobody, "is_index_global_attn": nobody, "is_global_attn": False}

    def ours() -> Tensor:
        parts = theirs.query, theirs.key, theirs.value
        q, k, v = (split_heads(part(x), HEADS) for part in parts)
        return merge_heads(attend_window(q, k, v, window=WINDOW // 2 + 1))

    return ours, {"transformers": lambda: theirs(x, torch.zeros(1, n), **given)[0]}


# experts


def _experts(kind: str, n_experts: int, top_k: int, n: int) -> tuple[Call, dict[str, Call]]:
    from transformers import MixtralConfig, OlmoeConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

    d_ff = 2048 // top_k
    sizes = {"hidden_size": D_MODEL, "intermediate_size": d_ff, "num_experts_per_tok": top_k}
    if kind == "mixtral":
        make = MixtralSparseMoeBlock
        config = MixtralConfig(**sizes, num_local_experts=n_experts, router_jitter_noise=0.0)
    else:
        make, config = OlmoeSparseMoeBlock, OlmoeConfig(**sizes, num_experts=n_experts)
    config._experts_implementation = "eager"
    theirs = _drawn(make(config))
    router = "top_k" if kind == "mixtral" else "softmax"
    ours = MixtureOfExperts(
        D_MODEL, d_ff, n_experts, top_k, kind="swiglu", bias=False, router=router
    ).eval()
    with torch.no_grad():
        ours.router.proj.weight.copy_(theirs.gate.weight)
        both = theirs.experts.gate_up_proj, theirs.experts.down_proj
        for expert, gate_up, down in zip(ours.experts, *both, strict=True):
            gate, up = gate_up.chunk(2)
            expert.gate_proj.weight.copy_(gate)
            expert.up_proj.weight.copy_(up)
            expert.down_proj.weight.copy_(down)
    x = _normal(1, n, D_MODEL)

    def by(way: str) -> Tensor:
        config._experts_implementation = way
        return theirs(x)

    ways = "eager", "grouped_mm"
    return lambda: ours(x), {f"transformers, {way}": partial(by, way) for way in ways}


# functions


def _rows(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q, k and v (1, HEADS, n, SIZE), keys of length 1."""
    q, k, v = _normal(3, 1, HEADS, n, SIZE, seed=n)
    return q, functional.normalize(k, dim=-1), v


def _fla(name: str) -> ModuleType:
    """Load a file for reading of fla by its place, without the package, which needs triton."""
    folder = Path(importlib.util.find_spec("fla").submodule_search_locations[0])
    path = folder / "ops" / name / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_{name}_naive", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _linear(n: int) -> tuple[Call, dict[str, Call]]:
    library, (q, k, v) = _fla("linear_attn"), _rows(n)
    theirs = [x.transpose(1, 2) for x in (q, k, v)]
    return lambda: state_chunked(q * SIZE**-0.5, k, v)[0], {
        "fla, chunks": lambda: library.naive_chunk_linear_attn(*theirs).transpose(1, 2)
    }


def _retention(n: int) -> tuple[Call, dict[str, Call]]:
    library, (q, k, v) = _fla("retention"), _rows(n)
    decay = retention_decays(HEADS).float().log()[:, None].expand(1, HEADS, n)
    return lambda: state_chunked(q * SIZE**-0.5, k, v, log_decay=decay)[0], {
        "fla, all pairs": lambda: library.naive_retention(q, k, v)
    }


def _delta(n: int) -> tuple[Call, dict[str, Call]]:
    library, (q, k, v) = _fla("delta_rule"), _rows(n)
    beta = torch.sigmoid(_normal(1, HEADS, n, seed=1))
    return lambda: delta_chunked(q * SIZE**-0.5, k, v, beta)[0], {
        "fla, chunks": lambda: library.delta_rule_chunkwise(q, k, v, beta)[0],
        "fla, loop": lambda: library.delta_rule_recurrence(q, k, v, beta)[0],
    }


def _gated_delta(n: int) -> tuple[Call, dict[str, Call]]:
    ours, theirs, given = _gated(n)
    run = _fla("gated_delta_rule").naive_chunk_gated_delta_rule
    return ours, {"fla, chunks": lambda: run(*theirs, **given)[0].transpose(1, 2)}


def _qwen(n: int) -> tuple[Call, dict[str, Call]]:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    ours, theirs, given = _gated(n)
    run = torch_chunk_gated_delta_rule
    return ours, {"transformers": lambda: run(*theirs, **given)[0].transpose(1, 2)}


def _gated(n: int) -> tuple[Call, list[Tensor], dict[str, Tensor]]:
    """Return our gated delta rule, and what others take: (1, n, HEADS, ·)."""
    q, k, v = _rows(n)
    beta = torch.sigmoid(_normal(1, HEADS, n, seed=1))
    decay = functional.logsigmoid(_normal(1, HEADS, n, seed=2) + 3)
    theirs, given = [x.transpose(1, 2) for x in (q, k, v)], {"g": decay, "beta": beta}
    given = {name: x.transpose(1, 2) for name, x in given.items()}
    ours = partial(delta_chunked, q * SIZE**-0.5, k, v, beta, log_decay=decay)
    return lambda: ours()[0], theirs, given


# graphs


def _graph(n: int) -> tuple[Call, dict[str, Call]]:
    from torch_geometric.nn import GATConv

    generator = torch.Generator().manual_seed(n)
    edges = torch.randint(n, (n * NEIGHBOURS // 2, 2), generator=generator)
    mask = graph_mask(edges, n)
    target, source = (mask & ~torch.eye(n, dtype=torch.bool)).nonzero().T
    theirs = _drawn(GATConv(D_MODEL, SIZE, heads=HEADS))
    ours = GraphAttention(D_MODEL, HEADS).eval()
    with torch.no_grad():
        ours.k_proj.weight.copy_(theirs.lin.weight)
        ours.a_q.copy_(theirs.att_dst[0])
        ours.a_k.copy_(theirs.att_src[0])
        ours.bias.copy_(theirs.bias)
    x, pairs = _normal(1, n, D_MODEL), torch.stack([source, target])
    return lambda: ours(x, mask=mask)[0], {"torch_geometric": lambda: theirs(x[0], pairs)[None]}


PEERS = (
    Peer("Mamba", ("transformers",), _mamba),
    Peer("Mamba", ("mambapy",), _mambapy),
    Peer("Mamba-2", ("transformers",), _mamba2),
    Peer("RWKV", ("transformers",), _rwkv),
    Peer("Longformer's window", ("transformers",), _longformer),
    Peer("Mixtral, 2 of 8", ("transformers",), partial(_experts, "mixtral", 8, 2)),
    Peer("OLMoE, 8 of 64", ("transformers",), partial(_experts, "olmoe", 64, 8)),
    Peer("linear attention", ("fla", "einops"), _linear),
    Peer("retention", ("fla", "einops"), _retention),
    Peer("delta rule", ("fla", "einops"), _delta),
    Peer("gated delta rule", ("fla", "einops"), _gated_delta),
    Peer("gated delta rule", ("transformers",), _qwen),
    Peer("GAT", ("torch_geometric",), _graph),
)


def _compared(peer: Peer, n: int, rounds: int) -> Iterator[dict[str, object]]:
    """Compare the results of one peer, then the times of those that agree."""
    ours, theirs = peer.make(n)
    wanted = ours()
    apart = {name: _distance(call(), wanted) for name, call in theirs.items()}
    agreeing = {name: call for name, call in theirs.items() if apart[name] <= TOLERANCE}
    times = time_ratios({OURS: ours} | agreeing, OURS, rounds) if agreeing else {}
    for name, distance in apart.items():
        taken = times.get(name)
        yield {
            "n": n,
            "what": peer.what,
            "against": name,
            "ms": taken and taken["ms"],
            "our ms": taken and times[OURS]["ms"],
            "ratio": taken and 1 / taken["ratio"],
            "apart": distance,
            "agrees": distance <= TOLERANCE,
        }


def _distance(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, by the largest number; infinite where shapes differ."""
    if found.shape != wanted.shape:
        return float("inf")
    return float((found - wanted).abs().max() / wanted.abs().max())


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure against every library that is there, at each length.

    Args:
        lengths: rounds for each length, multiples of 512, as Longformer wants; ``LENGTHS`` when
            omitted.

    Returns:
        The setting, the machine, one row for each comparison with our time by theirs, and what was
        left out, for which package. Where results differ by more than the tolerance, no time is
        taken.
    """
    rows, left_out = [], {}
    with torch.no_grad():
        for peer in PEERS:
            if missing := [each for each in peer.packages if not importlib.util.find_spec(each)]:
                left_out.setdefault(", ".join(missing), []).append(peer.what)
                continue
            for n, rounds in (lengths or LENGTHS).items():
                rows += _compared(peer, n, rounds)
    setting = {
        "batch": 1, "d_model": D_MODEL, "heads": HEADS, "dtype": "float32",
        "tolerance": TOLERANCE, "window": WINDOW, "neighbours": NEIGHBOURS,
    }  # fmt: skip
    return {"setting": setting, "machine": machine(), "rows": rows, "left out": left_out}


def table(results: dict[str, object]) -> str:
    """Write the results as a table, with what was left out below."""
    shown = [
        row | {"apart": f"{row['apart']:.0e}{'' if row['agrees'] else '!'}"}
        for row in results["rows"]
    ]
    text = write(
        "tfbook's time by the other's, same round; apart: largest difference by largest number",
        shown,
        [
            ("n", "n", ">5"),
            ("what", "what", "<19"),
            ("against", "against", "<24"),
            ("ms", "ms", ">8"),
            ("our ms", "our ms", ">8"),
            ("ratio", "ratio", ">6"),
            ("apart", "apart", ">7"),
        ],
    )
    left = [f"left out, not installed: {name}" for name in results["left out"]]
    return "\n".join([text, *left])
