"""What does alignment add to a translator that has to learn both together from few sentences?

Two recurrent encoder-decoders, alike but for one thing, learn English to French from the training
pairs of `tfbook.data.english_french`: in one the decoder looks at the source by Bahdanau's
attention, in the other it gets one fixed vector. Sentences of up to 25 source tokens are trained
on, test sentences of any length are asked for. Of each run the weights of the epoch with the lowest
validation loss are kept and tested; those of the attention model of the first seed are shipped.

    from tfbook.experiments import translation
    model, english, french = translation.trained()

Explained in: chapters/01_motivation_deeper, section "Trained on real sentences".
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from tfbook import experiments
from tfbook.data import BOS, EOS, PAD, SPECIALS, UNK, english_french, pad_batch, word_tokenizer
from tfbook.recurrent import Seq2Seq

__all__ = ["SMOKE", "batch_of", "run", "tokenizers", "trained", "translate"]

KINDS = ("bahdanau", None)
BUCKETS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 25), (26, 1000))  # source tokens
BATCH, RATE = 32, 4e-3
SIZES = {"vocab_size": 1700, "d_embed": 80, "d_hidden": 96}
SMOKE = {"seeds": (0,), "epochs": 1, "max_source": 4, "max_tested": 30, "n_examples": 2}
CARD = {
    "model": "encoder-decoder of GRUs, width {d_hidden}, with attention {parameters:,} parameters",
    "data": "{pairs[train]:,} English-French sentence pairs",
    "steps": "{epochs} epochs",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}

Pair = tuple[str, str]


class Batch(NamedTuple):
    """Some sentence pairs as tensors; the target stands there twice, shifted by one."""

    source: Tensor  # (B, M)
    lengths: Tensor  # (B,)
    target_in: Tensor  # (B, N): <bos> y_1 … y_n
    target_out: Tensor  # (B, N): y_1 … y_n <eos>


def tokenizers(vocab_size: int = SIZES["vocab_size"]) -> tuple[Tokenizer, Tokenizer]:
    """Make the English and the French tokenizer from the training pairs."""
    english, french = zip(*english_french("train"), strict=True)
    return tuple(word_tokenizer(texts, vocab_size=vocab_size) for texts in (english, french))


def batch_of(pairs: Sequence[Pair], english: Tokenizer, french: Tokenizer) -> Batch:
    """Turn sentence pairs into one batch; the source ends with <eos> as well."""
    sources = [english.encode(source).ids + [EOS] for source, _ in pairs]
    targets = [french.encode(target).ids for _, target in pairs]
    target_in, _ = pad_batch([[BOS, *ids] for ids in targets])
    target_out, _ = pad_batch([[*ids, EOS] for ids in targets])
    return Batch(*pad_batch(sources), target_in, target_out)


def trained() -> tuple[Seq2Seq, Tokenizer, Tokenizer]:
    """Return the shipped attention model, ready to translate, with its two tokenizers."""
    model = Seq2Seq(*[SIZES["vocab_size"]] * 2, SIZES["d_embed"], SIZES["d_hidden"])
    model.load_state_dict(experiments.weights("translation"))
    return model.eval(), *tokenizers()


def translate(
    model: Seq2Seq, english: Tokenizer, french: Tokenizer, sentences: Sequence[str]
) -> list[dict]:
    """Translate greedily; return source tokens, target tokens and weights for each sentence.

    The dictionaries have the keys `source`, `target` and, with attention, `weights`, a list of one
    row for each target token, as the alignment viewer takes them. Both sides end with <eos>, if
    the model came to an end.
    """
    sources = [english.encode(sentence) for sentence in sentences]
    ids, alignments = model.translate(*pad_batch([s.ids + [EOS] for s in sources]), max_len=50)
    found = []
    for i, source in enumerate(sources):
        written = [token for token in ids[i].tolist() if token != PAD]
        entry = {
            "source": [*source.tokens, SPECIALS[EOS]],
            "target": [french.id_to_token(token) for token in written],
        }
        if alignments is not None:
            weights = alignments[i, : len(written), : len(source.ids) + 1]
            entry["weights"] = [[round(w, 3) for w in row] for row in weights.tolist()]
        found.append(entry)
    return found


def batches(pairs: list[Pair], size: int, generator: torch.Generator) -> Iterator[list[Pair]]:
    """Yield all pairs once, in random batches of sentences that are about equally long."""
    order = torch.randperm(len(pairs), generator=generator).tolist()
    pools = [order[i : i + 10 * size] for i in range(0, len(order), 10 * size)]
    chunks = []
    for pool in pools:
        pool.sort(key=lambda i: len(pairs[i][0]))
        chunks += [pool[i : i + size] for i in range(0, len(pool), size)]
    for k in torch.randperm(len(chunks), generator=generator).tolist():
        yield [pairs[i] for i in chunks[k]]


def losses(model: Seq2Seq, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return each target token's loss in nats, and whether it was the best guess; padding is 0."""
    logits, _ = model(batch.source, batch.lengths, batch.target_in)  # (B, N, V)
    loss = F.cross_entropy(logits.mT, batch.target_out, ignore_index=PAD, reduction="none")
    right = (logits.argmax(dim=-1) == batch.target_out) & (batch.target_out != PAD)
    return loss, right  # (B, N) each


def train(
    model: Seq2Seq, pairs: list[Pair], valid: list[Pair], words: tuple, epochs: int, seed: int
) -> dict:
    """Train with Adam, clipped gradients and a falling rate; leave the best weights in the model.

    Returns:
        Losses in nats a token after each epoch, in training and on the validation pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    curve, best, best_weights = {"train": [], "valid": []}, float("inf"), {}
    for _ in range(epochs):
        model.train()
        total, count = 0.0, 0
        for chosen in batches(pairs, BATCH, generator):
            batch = batch_of(chosen, *words)
            loss, _ = losses(model, batch)
            n_tokens = int((batch.target_out != PAD).sum())
            optimizer.zero_grad()
            (loss.sum() / n_tokens).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total, count = total + loss.sum().item(), count + n_tokens
        schedule.step()
        now = measure(model, valid, words)["loss"]
        curve["train"].append(round(total / count, 4))
        curve["valid"].append(round(now, 4))
        if now < best:
            best, best_weights = now, {k: w.clone() for k, w in model.state_dict().items()}
    model.load_state_dict(best_weights)
    return curve


@torch.no_grad()
def measure(model: Seq2Seq, pairs: list[Pair], words: tuple) -> dict:
    """Return nats a token and the share of next tokens guessed, given the true ones before."""
    model.eval()
    batch = batch_of(pairs, *words)
    loss, right = losses(model, batch)
    n_tokens = int((batch.target_out != PAD).sum())
    return {
        "sentences": len(pairs),
        "tokens": n_tokens,
        "loss": loss.sum().item() / n_tokens,
        "accuracy": right.sum().item() / n_tokens,
    }


def overlap(model: Seq2Seq, pairs: list[Pair], words: tuple) -> float:
    """Return the share of the references' tokens that the greedy translations hold."""
    found = wanted = 0
    written = translate(model, *words, [source for source, _ in pairs])
    for (_, reference), entry in zip(pairs, written, strict=True):
        tokens = Counter(words[1].encode(reference).tokens)
        found += (tokens & Counter(entry["target"])).total()
        wanted += tokens.total()
    return found / wanted


def run(
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    epochs: int = 14,
    max_source: int = 25,
    max_tested: int = 1000,
    n_examples: int = 12,
    dropout: float = 0.2,
) -> tuple[dict, dict[str, Tensor]]:
    """Train both translators with every seed, test them by length, and translate a few sentences.

    Args:
        seeds: one run of each for each seed.
        epochs: passes over the training pairs.
        max_source: the longest training sentence, in tokens.
        max_tested: the longest test sentence, in tokens.
        n_examples: how many test sentences to translate: the first of 6 to 14 known tokens.
        dropout: share of numbers set to 0 in training.

    Returns:
        the log: under `models`, for "bahdanau" and "fixed", one entry a seed with its losses over
        epochs and the results for each bucket of source lengths; `examples` as `translate` gives
        them, with the reference; and the weights of the first attention model in half precision.
    """
    words = tokenizers()

    def length(pair: Pair) -> int:
        return len(words[0].encode(pair[0]).ids)

    def known(pair: Pair) -> bool:
        return UNK not in words[0].encode(pair[0]).ids

    pairs = [pair for pair in english_french("train") if length(pair) <= max_source]
    valid = [pair for pair in english_french("valid") if length(pair) <= max_source]
    test = [pair for pair in english_french("test") if length(pair) <= max_tested]
    by_length = {
        (low, high): chosen
        for low, high in BUCKETS
        if (chosen := [pair for pair in test if low <= length(pair) <= high])
    }
    asked = [pair for pair in test if 6 <= length(pair) <= 14 and known(pair)][:n_examples]
    models: dict[str, list] = {"bahdanau": [], "fixed": []}
    kept: dict[str, Tensor] = {}
    examples: list[dict] = []
    for kind in KINDS:
        for seed in seeds:
            torch.manual_seed(seed)
            sizes = (*[SIZES["vocab_size"]] * 2, SIZES["d_embed"], SIZES["d_hidden"])
            model = Seq2Seq(*sizes, attention=kind, dropout=dropout)
            curve = train(model, pairs, valid, words, epochs, seed)
            if not kept:
                kept = {name: w.half() for name, w in model.state_dict().items()}
                # What is logged is what the shipped half-precision weights do.
                model.load_state_dict(kept)
                examples = translate(model, *words, [source for source, _ in asked])
            results = [
                {key: round(value, 4) for key, value in measure(model, chosen, words).items()}
                | {"overlap": round(overlap(model, chosen, words), 4)}
                for chosen in by_length.values()
            ]
            models[kind or "fixed"].append({"curve": curve, "test": results})
    for entry, (_, reference) in zip(examples, asked, strict=True):
        entry["reference"] = words[1].encode(reference).tokens
    log = {
        "settings": SIZES | {"epochs": epochs, "dropout": dropout, "max_source": max_source},
        "seeds": list(seeds),
        "pairs": {"train": len(pairs), "valid": len(valid), "test": len(test)},
        "parameters": sum(w.numel() for w in kept.values()),
        "buckets": [list(bucket) for bucket in by_length],
        "models": models,
        "examples": examples,
    }
    return log, kept
