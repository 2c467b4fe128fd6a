"""write_page: a language model of the reader in one HTML file, without network and Python."""

import html
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfbook._checks import check_module, check_number
from tfbook.attention import MultiHeadAttention
from tfbook.blocks import GATES, Block, FeedForward, LayerNorm, RMSNorm
from tfbook.positions import RotaryPositions
from tfbook.pretrained import round_model
from tfbook.teaching.explorables._base import FOLDER
from tfbook.teaching.explorables._weights import pack_weights8

SCRIPTS = ("workers", "tensors", "language_model", "kept_model")
NEAR = 1e-4  # of logits, in float64: what is not rounding is another model
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: light-dark(#1c2733, #e6ebf1);
  --paper: light-dark(#fff, #14191f); --edge: light-dark(#8a94a0, #7d8894);
  --act: light-dark(#0b62a4, #6db6f2); --on: light-dark(#fff, #10151a); }}
body {{ max-width: 44rem; margin: 0 auto; padding: 1.5rem; color: var(--ink);
  background: var(--paper); font: 1.0625rem/1.6 system-ui, sans-serif; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; }}
label {{ display: block; margin-top: 0.9rem; font-weight: 600; }}
textarea, input[type=number] {{ box-sizing: border-box; color: inherit; background: inherit;
  border: 1px solid var(--edge); border-radius: 6px; padding: 0.4rem 0.6rem; font: inherit; }}
textarea, #text {{ width: 100%; font-family: ui-monospace, Menlo, Consolas, monospace; }}
input[type=range] {{ width: 100%; }}
button {{ min-height: 2.75rem; min-width: 6rem; margin: 1rem 0; border: 0; border-radius: 6px;
  color: var(--on); background: var(--act); font: inherit; font-weight: 600; cursor: pointer; }}
#text {{ box-sizing: border-box; min-height: 12rem; padding: 0.8rem; white-space: pre-wrap;
  border: 1px solid var(--edge); border-radius: 6px; overflow-wrap: anywhere; margin: 0; }}
#pace, #note, footer {{ font-size: 0.9rem; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{about}</p>
<label for="prompt">The text begins with</label>
<textarea id="prompt" rows="3" spellcheck="false" autocapitalize="off">
{prompt}</textarea>
<p id="note" role="status"></p>
<label for="temperature">Temperature: <span id="shown"></span></label>
<input id="temperature" type="range" min="0" max="1.5" step="0.1" value="0.8">
<label for="count">Characters to write</label>
<input id="count" type="number" min="1" max="5000" value="300">
<div><button id="write" type="button" disabled>Write</button> <span id="pace"></span></div>
<pre id="text" tabindex="0" aria-label="What the model wrote" data-state="empty"></pre>
</main>
<footer>
<p>{weights} weights in 8 bits each; the model reads the last {context} characters. All of it is in
this file: it works without a network, and nothing that you type leaves your machine.</p>
</footer>
<script type="application/json" id="file">{file}</script>
<script>
"use strict";
(() => {{
{script}
openPage(JSON.parse(document.getElementById("file").textContent));
}})();
</script>
</body>
</html>
"""


def write_page(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    characters: Sequence[str],
    context: int,
    prompt: str = "\n",
    title: str = "A language model in one file",
    about: str = "",
) -> Path:
    """Write a language model of characters into one HTML file that lets it write.

    The file opens from a disk without a network, in any browser. Its matrices are rounded to 8 bits
    a number, as :func:`tfbook.pretrained.round_model` rounds them, and the likeliest text that it
    writes is that of the rounded model in PyTorch.

    What is asked of the model: a table of the characters, to which positions may be added;
    :class:`tfbook.blocks.Block` after block, with norms before ("pre") or behind ("post") the
    sublayers, causal :class:`tfbook.attention.MultiHeadAttention` with rotary positions or none and
    :class:`tfbook.blocks.FeedForward`; a norm or none; scores from a linear map or from the table.
    Its parts are found by their classes, not by their names, and what they compute is compared with
    what the model says before anything is written.

    Args:
        model: from ids (B, N) to logits (B, N, V). It stays as it is.
        path: of the file; folders above it are made, and a file of that name is replaced.
        characters: V of them, in the order of their ids.
        context: how many characters the model reads at most.
        prompt: what stands in the field for the beginning of the text.
        title: of the page.
        about: a sentence or two below it.

    Returns:
        Where the file lies.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if the page cannot compute such a model; the message says which part is in the
            way. Also for characters that do not fit the model, or a prompt of others.

    Example:
        >>> import tempfile
        >>> block = Block(MultiHeadAttention(8, 2, causal=True), FeedForward(8, 32), place="pre")
        >>> class Small(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed, self.block = nn.Embedding(2, 8), block
        ...     def forward(self, ids):
        ...         return self.block(self.embed(ids))[0] @ self.embed.weight.T
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     where = f"{folder}/ab.html"
        ...     page = write_page(Small(), where, characters="ab", context=16, prompt="a")
        ...     page.name, page.stat().st_size < 60_000
        ('ab.html', True)

    Explained in: chapters/lab_shakespeare, section "Step 12: keep it".
    """
    check_module("model", model)
    check_number("context", context, 1, whole=True)
    for name, value in (("prompt", prompt), ("title", title), ("about", about)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    characters = list(characters)
    if not all(isinstance(c, str) and len(c) == 1 for c in characters):
        raise TypeError("characters must be single characters")
    if unknown := sorted(set(prompt) - set(characters)):
        raise ValueError(f"prompt must be made of the model's characters, got {unknown[0]!r}")
    if not prompt:
        raise ValueError("prompt must have at least one character")
    file = kept_file(model, characters, context)
    content = PAGE.format(
        title=html.escape(title),
        about=html.escape(about),
        prompt=html.escape(prompt),
        weights=f"{sum(p.numel() for p in model.parameters()):,}",
        context=context,
        # "<" would let a text end the script element.
        file=json.dumps(file, ensure_ascii=False).replace("<", "\\u003c"),
        script=_script(),
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", newline="\n")
    return path


def kept_file(model: nn.Module, characters: list[str], context: int) -> dict[str, Any]:
    """Return a model with 8 bits a number, as kept_model.js reads it."""
    rounded = round_model(model).double().eval()
    blocks = [part for part in rounded.modules() if isinstance(part, Block)]
    if not blocks:
        raise ValueError("model must have blocks of the class tfbook.blocks.Block, got none")
    inside = {part for block in blocks for part in block.modules()}
    outside = [part for part in rounded.modules() if part not in inside]
    embed = _one(outside, nn.Embedding, "num_embeddings", len(characters))
    if embed is None:
        raise ValueError(
            f"model must have one nn.Embedding of {len(characters)} rows, as many as characters"
        )
    head = _one(outside, nn.Linear, "out_features", len(characters))
    norms = [part for part in outside if isinstance(part, LayerNorm | RMSNorm)]
    if len(norms) > 1:
        raise ValueError(f"model may have one norm behind its blocks, got {len(norms)}")
    scale, places = _entrance(rounded, blocks, embed.weight, context)
    _compare(rounded, blocks, norms, embed if head is None else head, len(characters), context)

    tied = head is None or head.weight is embed.weight
    weights: dict[str, Tensor] = {"places": places.flatten()}
    weights |= {"embed.weight": embed.weight} | ({} if head is None else _named("head", head))
    if tied:  # the head is the table, perhaps with a bias
        weights.pop("head.weight", None)
    layers = [_layer(str(at), block, weights) for at, block in enumerate(blocks)]
    norm = _norm("norm", norms[0], weights) if norms else None
    tensors, data = pack_weights8({name: w.detach().float() for name, w in weights.items()})
    return {
        "characters": characters, "context": context, "scale": scale, "layers": layers,
        "norm": norm, "tied": tied, "tensors": tensors, "data": data,
    }  # fmt: skip


def _script() -> str:
    """Return the JavaScript of the page: the files of the live models, and the page's own."""
    text = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    text = re.sub(r"^import .*\n", "", text, flags=re.M)
    return re.sub(r"^export (?=const |function |async )", "", text, flags=re.M)


def _one(parts, kind, size, wanted):
    """Return the one part of a kind that has a size, or None."""
    found = [part for part in parts if isinstance(part, kind) and getattr(part, size) == wanted]
    return found[0] if len(found) == 1 else None


def _named(name, linear):
    """Return the weights of a linear map by their names."""
    bias = {} if linear.bias is None else {f"{name}.bias": linear.bias}
    return {f"{name}.weight": linear.weight, **bias}


def _ids(vocab, context, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (1, context), generator=generator)


@torch.no_grad()
def _entrance(model, blocks, table, context):
    """Return s and p, where x = s · table[ids] + p enters the first block."""
    seen: list[Tensor] = []
    hook = blocks[0].register_forward_pre_hook(lambda block, given: seen.append(given[0][0]))
    try:
        ids = [_ids(len(table), context, seed)[0] for seed in range(3)]
        shapes = {getattr(model(row[None]), "shape", None) for row in ids}
    finally:
        hook.remove()
    if shapes != {(1, context, len(table))}:
        raise ValueError(f"model must give logits (1, {context}, {len(table)}), got {shapes.pop()}")
    apart, moved = table[ids[0]] - table[ids[1]], seen[0] - seen[1]
    scale = ((apart * moved).sum() / apart.square().sum().clamp(min=1e-300)).item()
    places = seen[0] - scale * table[ids[0]]
    if not torch.allclose(seen[2], scale * table[ids[2]] + places, atol=NEAR):
        raise ValueError(
            "what enters the first block must be the row of a character, times a factor, plus a "
            "row of its place"
        )
    return scale, places


@torch.no_grad()
def _compare(model, blocks, norms, head, vocab, context):
    """Raise ValueError unless block after block, the norm and the head give the model's logits."""
    seen: list[Tensor] = []
    hook = blocks[0].register_forward_pre_hook(lambda block, given: seen.append(given[0]))
    try:
        logits = model(_ids(vocab, context, 7))
    finally:
        hook.remove()
    x = seen[0]
    for block in blocks:
        x, _ = block(x)
    for norm in norms:
        x = norm(x)
    found = x @ head.weight.mT + (0 if getattr(head, "bias", None) is None else head.bias)
    if not torch.allclose(found, logits, atol=NEAR):
        raise ValueError(
            "model must go from its blocks, one after the other, through its norm if it has one to "
            "its scores; it computes something else"
        )


def _layer(name, block, weights):
    """Return what a block is, and put its weights among the others."""
    mixer, ffn, place = block.mixer, block.ffn, block.mixer_residual.place
    wanted = {  # what the page computes → whether the block is so
        "no cross-attention": block.cross is None,
        "sublayers one after the other": not (block.parallel or block.one_norm),
        'place "pre" or "post"': place in ("pre", "post") and block.ffn_residual.place == place,
        "multiplier 1": block.mixer_residual.multiplier == block.ffn_residual.multiplier == 1,
        "MultiHeadAttention as its mixer": type(mixer) is MultiHeadAttention,
        "FeedForward as its network": type(ffn) is FeedForward and ffn.kind != "swiglu_clipped",
    }
    if all(wanted.values()):
        position = mixer.position
        wanted |= {
            "causal attention": mixer.causal,
            "as many heads for keys as for queries": mixer.n_kv_heads == mixer.n_heads,
            "values as long as keys": mixer.d_value == mixer.d_head,
            "no window": mixer.window is None,
            "norms of single heads": not mixer.qk_norm_whole,
            "rotary positions of whole heads, or none": position is None
            or (
                type(position) is RotaryPositions
                and position.scaling is None
                and position.rotated == mixer.d_head
            ),
        }
    if missing := [words for words, so in wanted.items() if not so]:
        raise ValueError(f"block {name} of the model must have {missing[0]}")
    maps = {
        "q": mixer.q_proj, "k": mixer.k_proj, "v": mixer.v_proj, "out": mixer.out_proj,
        "up": ffn.up_proj, "gate": ffn.gate_proj, "down": ffn.down_proj,
    }  # fmt: skip
    for part, linear in maps.items():
        if linear is not None:
            weights |= _named(f"{name}.{part}", linear)
    norms = {
        "mixerNorm": block.mixer_residual.norm, "ffnNorm": block.ffn_residual.norm,
        "qNorm": mixer.q_norm, "kNorm": mixer.k_norm,
    }  # fmt: skip
    return {
        "name": name, "place": place, "heads": mixer.n_heads, "size": mixer.d_head,
        "factor": mixer.scale or mixer.d_head**-0.5,
        "base": 0 if mixer.position is None else mixer.position.base,
        "layout": None if mixer.position is None else mixer.position.layout,
        "activation": GATES.get(ffn.kind, ffn.kind), "gated": ffn.gate_proj is not None,
        "norms": {
            part: _norm(f"{name}.{part}", norm, weights)
            for part, norm in norms.items() if norm is not None
        },
    }  # fmt: skip


def _norm(name, norm, weights):
    """Return what a norm is, and put its weights among the others."""
    if not isinstance(norm, LayerNorm | RMSNorm):
        raise ValueError(f"a norm must be LayerNorm or RMSNorm, got {type(norm).__name__}")
    weights[f"{name}.weight"] = norm.weight
    if getattr(norm, "bias", None) is not None:
        weights[f"{name}.bias"] = norm.bias
    return {"kind": "rms" if isinstance(norm, RMSNorm) else "layer", "eps": norm.eps}
