"""SmolLM2 and MiniLM in the parts of this book against `transformers`, on the same weights.

Setting: float32, one thread, no gradients. `transformers` runs with its fastest attention here
(sdpa); both models hold the same tensors, so that memory and its alignment are the same. SmolLM2: a
forward pass as each library is called by default, which returns the logits of all tokens and a
filled cache; a prefill that returns the last logits only; decoding token by token, a growing cache
against a growing one and a preallocated one against a preallocated one; and a whole generation by
each library's own function with its own choice of cache. MiniLM: sentence vectors of real sentences
of mixed lengths, from strings to normalised vectors, tokenizing and padding included;
`transformers` takes them in their order and sorted by length, sentence-transformers (where it is
installed) sorts them itself.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import MIB, machine, peak_memory, time_ratios
from tfbook import data, pretrained
from tfbook.attention import DynamicCache, StaticCache
from tfbook.generation import generate

OURS, THEIRS = "tfbook", "transformers"
PROMPTS = {128: 7, 512: 3}  # length: rounds
NEW = 24
SENTENCES, BATCH = 128, 32
LEAST = 1.0  # times as fast as the other
LOADING = 2.0  # seconds


def _theirs(smol: pretrained.Pretrained) -> torch.nn.Module:
    """Make their model around our tensors; only what they arrange otherwise is copied."""
    import transformers

    transformers.logging.set_verbosity_error()
    weights = pretrained.weights_to(smol.model.state_dict(), smol.config, "llama")
    c = smol.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.choice("d_ff"),
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.choice("n_heads"),
        num_key_value_heads=c.choice("n_kv_heads"),
        max_position_embeddings=c.max_len,
        rms_norm_eps=c.choice("norm_eps"),
        rope_parameters={"rope_type": "default", "rope_theta": c.choice("base")},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def _row(
    what: str,
    functions: dict[str, Callable[[], object]],
    other: str,
    count: int,
    rounds: int,
    unit: str = "tokens/s",
) -> dict[str, object]:
    """Compare ours with another one, interleaved."""
    taken = time_ratios(functions, other, rounds)
    speed = 1 / taken[OURS]["ratio"]
    return {
        "what": what,
        "against": other,
        unit: count / taken[other]["ms"] * 1e3,
        f"our {unit}": count / taken[OURS]["ms"] * 1e3,
        "unit": unit,
        "times as fast": speed,
        "spread": [1 / ratio for ratio in reversed(taken[OURS]["spread"])],
        "target": {"limit": LEAST, "met": speed >= LEAST},
        "MiB": peak_memory(functions[other]) / MIB,
        "our MiB": peak_memory(functions[OURS]) / MIB,
    }


def _smollm(prompts: dict[int, int]) -> list[dict[str, object]]:
    smol = pretrained.load("smollm2-135m")
    mine, theirs = smol.model, _theirs(smol)
    text = smol.encode(data.shakespeare()[: 8 * max(prompts)])
    rows = []
    for n, rounds in prompts.items():
        ids = text[:, :n]
        calls = {
            THEIRS: lambda ids=ids: theirs(ids).logits,
            OURS: lambda ids=ids: mine(ids)[0],
        }
        assert (calls[THEIRS]() - calls[OURS]()).abs().max() < 1e-3
        rows.append(_row(f"forward {n}", calls, THEIRS, n, rounds))
        calls = {
            THEIRS: lambda ids=ids: theirs(ids, use_cache=True, logits_to_keep=1).logits,
            OURS: lambda ids=ids: mine(ids, last=True)[0],
        }
        rows.append(_row(f"prefill {n}", calls, THEIRS, n, rounds))
        for kind in ("growing", "static"):
            calls = _decoders(mine, theirs, ids, kind)
            rows.append(_row(f"decode after {n}, {kind}", calls, THEIRS, NEW, max(rounds, 7)))
    ids = text[:, : min(prompts)]
    options = dict(do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW)
    calls = {
        THEIRS: lambda: theirs.generate(
            ids, attention_mask=torch.ones_like(ids), pad_token_id=2, **options
        ),
        OURS: lambda: generate(mine, ids, max_new_tokens=NEW),
    }
    rows.append(_row(f"generate after {ids.shape[1]}", calls, THEIRS, NEW, 5))
    return rows


def _decoders(mine, theirs, ids: Tensor, kind: str) -> dict[str, Callable[[], object]]:
    """Return loops that feed the same tokens one by one to a filled cache of a kind."""
    import transformers

    longest = ids.shape[1] + NEW
    if kind == "static":  # room for all that will come: written in place, nothing is copied
        cache = transformers.StaticCache(theirs.config, max_cache_len=longest)
        room = mine.empty_state(1, cache=StaticCache(longest))
    else:
        cache = transformers.DynamicCache(config=theirs.config)
        room = mine.empty_state(1, cache=DynamicCache())
    theirs(ids[:, :-1], past_key_values=cache, use_cache=True)
    _, start = mine(ids[:, :-1], room, last=True)
    tokens = ids[:, -1:].expand(1, NEW)

    def decode_theirs():
        for i in range(NEW):
            found = theirs(tokens[:, i : i + 1], past_key_values=cache, use_cache=True).logits
        _rewind(cache)
        return found

    def decode_mine():
        state = start
        for i in range(NEW):
            found, state = mine(tokens[:, i : i + 1], state, last=True)
        if kind == "static":  # nobody goes on from these tokens, so the next run may overwrite them
            for layer in start.layers:
                layer.mixer.room.filled = start.length
        return found

    assert (decode_theirs() - decode_mine()).abs().max() < 1e-3
    return {THEIRS: decode_theirs, OURS: decode_mine}


def _rewind(cache) -> None:
    """Forget the last NEW tokens in a cache of theirs; a static one has no method for it."""
    for layer in cache.layers:
        if hasattr(layer, "crop"):
            layer.crop(-NEW)
        else:
            layer.cumulative_length.sub_(NEW)


def _minilm(count: int) -> list[dict[str, object]]:
    import transformers

    mini = pretrained.load("minilm-l6")
    folder = pretrained.find_package("minilm-l6")[0].parent
    bert = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [english for english, _ in data.english_french()][:count]

    def embed(texts):
        found = []
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(texts[start : start + BATCH], padding=True, return_tensors="pt")
            hidden = bert(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None].float()
            found.append(functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1))
        return torch.cat(found)

    in_order, by_length = f"{THEIRS}, in order", f"{THEIRS}, by length"
    calls = {
        in_order: lambda: embed(texts),
        by_length: lambda: embed(sorted(texts, key=len)),
        OURS: lambda: mini.embed(texts, batch_size=BATCH),
    }
    assert (calls[in_order]() - calls[OURS]()).abs().max() < 1e-4
    if encode := _sentence_transformer(folder):
        calls["sentence-transformers"] = lambda: encode(texts)
        assert (calls["sentence-transformers"]() - calls[OURS]()).abs().max() < 1e-4
    what = f"embed {len(texts)} sentences"
    ours = calls.pop(OURS)
    return [
        _row(what, {other: call, OURS: ours}, other, len(texts), 5, "texts/s")
        for other, call in calls.items()
    ]


def _sentence_transformer(folder) -> Callable[[list[str]], Tensor] | None:
    """Return their encoder for the same weights, or None where the library is missing."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(
        texts, batch_size=BATCH, convert_to_tensor=True, show_progress_bar=False
    )


def _loading() -> list[dict[str, object]]:
    rows = []
    for name in pretrained.names():
        pretrained.load(name)  # decodes what was not decoded yet
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            pretrained.load(name)
            taken.append(time.perf_counter() - start)
        seconds = sorted(taken)[2]
        rows.append(
            {
                "what": f"load {name}",
                "seconds": seconds,
                "target": {"limit": LOADING, "met": seconds <= LOADING},
            }
        )
    return rows


@torch.no_grad()
def run(prompts: dict[int, int] | None = None, sentences: int = SENTENCES) -> dict[str, object]:
    """Measure loading, SmolLM2 and MiniLM.

    Args:
        prompts: rounds for each length of prompt; ``PROMPTS`` when omitted.
        sentences: how many sentences to embed.

    Returns:
        The setting, the machine and one row for each comparison.
    """
    import transformers

    rows = _smollm(prompts or PROMPTS) + _minilm(sentences)
    setting = {"dtype": "float32", "attention": "sdpa", "new_tokens": NEW, "batch": BATCH}
    setting["transformers"] = transformers.__version__
    return {"setting": setting, "machine": machine(), "loading": _loading(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    lines = []
    for row in results["loading"]:
        limit, met = row["target"]["limit"], row["target"]["met"]
        lines.append(f"{row['what']:<22} {row['seconds']:.2f} s ≤{limit:g}{' ' if met else '!'}")
    lines += [
        "",
        f"{'what':<26} {'against':<24} {'theirs':>9} {'ours':>9} {'':<9} {'× as fast':>10} "
        f"{'MiB':>7} {'our MiB':>8}",
    ]
    for row in results["rows"]:
        limit, met = row["target"]["limit"], row["target"]["met"]
        speed = f"{row['times as fast']:.2f} ≥{limit:g}{' ' if met else '!'}"
        unit = row["unit"]
        lines.append(
            f"{row['what']:<26} {row['against']:<24} {row[unit]:>9.1f} {row[f'our {unit}']:>9.1f} "
            f"{unit:<9} {speed:>10} {row['MiB']:>7.1f} {row['our MiB']:>8.1f}"
        )
    return "\n".join(lines)
