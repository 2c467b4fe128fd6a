"""What becomes of the translator of chapter 01 with a Transformer, byte pairs, and beam search?

A small encoder-decoder of this package learns English to French from the pairs of
`tfbook.data.english_french`. Both languages share one vocabulary of byte pairs and one table of
embeddings; batches hold sentences of about one length; the labels are smoothed. Of each run the
weights with the lowest validation loss are kept, and those of the first seed are shipped.

Three others translate the same test sentences: the recurrent translator of chapter 01, whose tokens
are words; the same kind of network on the byte pairs, so that the tokens are no difference; and a
memory, which looks up the training sentence that is most like the asked one and gives its
translation as it stands.

    from tfbook.experiments import translator
    model, tokenizer = translator.trained()
    translator.translate(model, tokenizer, ["Open the panel."])

Explained in: chapters/13_language_deeper, section "Translating real sentences".
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tfbook import experiments
from tfbook.data import (
    BOS,
    EOS,
    PAD,
    UNK,
    Loader,
    bucketed,
    byte_pair_tokenizer,
    english_french,
    pad_batch,
)
from tfbook.experiments import translation
from tfbook.generation import beam_search, generate
from tfbook.metrics import bleu, chrf
from tfbook.models import (
    FFN,
    Attention,
    Layer,
    Rotary,
    Tokens,
    Transformer,
    TransformerConfig,
    build,
)
from tfbook.optimization import schedule
from tfbook.recurrent import Seq2Seq
from tfbook.training import Monitoring, fit, translation_loss

__all__ = ["SMOKE", "alignment", "make_tokenizer", "run", "trained", "translate", "words"]

VOCAB = 1500
LAYER = Layer(Attention(4, position=Rotary()), FFN(256), dropout=0.2)
CONFIG = TransformerConfig(
    VOCAB,
    128,
    encoder=[LAYER] * 2,
    decoder=[LAYER.with_cross()] * 2,
    embedding=Tokens(dropout=0.2),
)
RECURRENT = {"d_embed": 80, "d_hidden": 96}  # as in chapter 01
BATCH, RATE = 16, 2e-3  # sentences
LONGEST = 72  # tokens, in training
MOST = 100  # tokens of a translation
BEAMS = ((1, 1.0), (4, 1.0), (4, 0.0))  # how many, and the length penalty
EVERY = 3  # beams are tried on each third test sentence
SMOKE = {
    "seeds": (0,),
    "steps": 2,
    "recurrent_seeds": (0,),
    "epochs": 1,
    "n_pairs": 64,
    "tested": 4,
    "n_examples": 1,
    "most": 6,
}
CARD = {
    "model": "encoder-decoder, 2 layers of width 128 each, {parameters[transformer]:,} parameters",
    "data": "{pairs[train]:,} English-French sentence pairs",
    "rate": "rate {RATE:g}",
}

Pair = tuple[str, str]


def make_tokenizer() -> Tokenizer:
    """Learn byte pairs from the English and the French training sentences together."""
    texts = [text for pair in english_french("train") for text in pair]
    return byte_pair_tokenizer(texts, vocab_size=VOCAB)


def trained() -> tuple[Transformer, Tokenizer]:
    """Return the shipped model, ready to translate, and its tokenizer."""
    model = build(CONFIG)
    model.load_state_dict(experiments.weights("translator"))
    return model.eval(), make_tokenizer()


@torch.no_grad()
def translate(
    model: Transformer,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    n_beams: int = 1,
    length_penalty: float = 1.0,
    most: int = MOST,
) -> list[str]:
    """Translate sentences, greedily or with beams.

    Args:
        model: in evaluation mode.
        tokenizer: of both languages.
        sentences: English.
        n_beams: 1 is greedy.
        length_penalty: see :func:`tfbook.generation.beam_search`.
        most: tokens of a translation.

    Returns:
        French, in the order of the sentences.
    """
    rows = [tokenizer.encode(sentence).ids + [EOS] for sentence in sentences]
    found: list[list[int]] = [[] for _ in rows]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    size = 64 if n_beams == 1 else 1
    for chosen in (order[i : i + size] for i in range(0, len(order), size)):
        source, _ = pad_batch([rows[i] for i in chosen])  # (B, M)
        state = model.remember(source, mask=source != PAD)
        prompts, asked = [[BOS]] * len(chosen), {"max_new_tokens": most, "stop": [EOS]}
        if n_beams == 1:
            written = generate(model, prompts, state=state, **asked).tokens
        else:
            asked |= {"n_beams": n_beams, "length_penalty": length_penalty}
            written = [
                best.tokens for best, *_ in beam_search(model, prompts, state=state, **asked)
            ]
        for i, tokens in zip(chosen, written, strict=True):
            found[i] = tokens
    return tokenizer.decode_batch(found)


@torch.no_grad()
def alignment(
    model: Transformer, tokenizer: Tokenizer, source: str, target: str
) -> tuple[list[str], list[str], list[Tensor]]:
    """Let the decoder write a given translation, and return where it looked at each step.

    Returns:
        tokens of the source (M) and of the target (N), both with the end, and the weights of the
        attention between the two: for each layer (H, N, M).
    """
    read, write = tokenizer.encode(source), tokenizer.encode(target)
    ids = torch.tensor([[BOS, *write.ids]])  # (1, N): at each step the token before is read
    weights = model.attention_weights(torch.tensor([[*read.ids, EOS]]), ids)
    names = [[tokenizer.decode([i]) for i in side.ids] + ["<eos>"] for side in (read, write)]
    return names[0], names[1], [layer[0] for layer in weights.cross]


def words(text: str) -> str:
    """Write a French text as chapter 01 cuts it: small letters, a space between all tokens."""
    cut = _french()
    pieces = cut.pre_tokenizer.pre_tokenize_str(cut.normalizer.normalize_str(text))
    return " ".join(piece for piece, _ in pieces)


def memory(pairs: Sequence[Pair], sentences: Sequence[str]) -> list[str]:
    """Give for each sentence the French of the pair whose English has the most alike words.

    Alike is the cosine of the counts of words, each weighted by ln(pairs / pairs that have it).
    """
    cut = translation.tokenizers()[0]

    def counts(text: str) -> Counter:
        pieces = cut.pre_tokenizer.pre_tokenize_str(cut.normalizer.normalize_str(text))
        return Counter(piece for piece, _ in pieces)

    known = [counts(english) for english, _ in pairs]
    having = Counter(word for each in known for word in each)
    place = {word: i for i, word in enumerate(having)}
    rarity = torch.tensor([math.log(len(pairs) / n) for n in having.values()])  # (W,)

    def rows(texts: list[Counter]) -> Tensor:
        table = torch.zeros(len(texts), len(place))
        for row, each in zip(table, texts, strict=True):
            for word, n in each.items():
                if word in place:
                    row[place[word]] = n
        return torch.nn.functional.normalize(table * rarity, dim=-1)

    nearest = (rows([counts(text) for text in sentences]) @ rows(known).T).argmax(dim=-1)
    return [pairs[i][1] for i in nearest.tolist()]


def train(pairs: list[Pair], valid: list[Pair], tokenizer: Tokenizer, steps: int, seed: int):
    """Train one model; return it with its best weights, and its losses."""
    torch.manual_seed(seed)
    model = build(CONFIG)
    examples, held = _examples(pairs, tokenizer), _examples(valid, tokenizer)
    examples = [each for each in examples if max(map(len, each)) <= LONGEST]
    lengths = [len(target) for _, target in examples]
    loader = Loader(
        examples,
        lambda generator: bucketed(lengths, BATCH, generator=generator),
        collate=_collate,
        seed=seed,
    )

    def measure(model: Transformer, chosen: list) -> float:
        batches = [_collate(chosen[i : i + BATCH]) for i in range(0, len(chosen), BATCH)]
        found = [translation_loss(model, batch, pad_id=PAD) for batch in batches]
        return sum(loss.item() for loss, _ in found) / sum(n for _, n in found)

    history = fit(
        model,
        loader,
        loss=partial(translation_loss, pad_id=PAD, label_smoothing=0.1),
        optimizer=torch.optim.AdamW(
            model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01
        ),
        schedule=schedule("cosine", steps=steps, warmup=steps // 10),
        steps=steps,
        clip=1.0,
        monitoring=Monitoring(
            evaluate=lambda model: measure(model, held),
            every=max(1, steps // 12),
            patience=steps,  # never stop, but go back to the best weights
        ),
        progress=False,
    )
    model.eval()
    with torch.no_grad():
        again = measure(model, examples[:: len(examples) // min(len(held), len(examples))])
    return model, {
        "steps": [each["after"] for each in history.evaluations],
        "valid": [round(each["loss"], 4) for each in history.evaluations],
        "train": round(again, 4),  # of training sentences, as many, without dropout
    }


def run(
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 2200,
    recurrent_seeds: tuple[int, ...] = (0, 1),
    epochs: int = 14,
    n_pairs: int | None = None,
    tested: int | None = None,
    n_examples: int = 12,
    most: int = MOST,
) -> tuple[dict, dict[str, Tensor]]:
    """Train the translators, and measure each on the same test sentences.

    Args:
        seeds: one Transformer for each.
        steps: of its training.
        recurrent_seeds: one recurrent network on the same tokens for each.
        epochs: of their training.
        n_pairs: how many pairs of sentences to learn from; all when omitted.
        tested: how many test sentences; all when omitted.
        n_examples: how many of them are kept with their alignments.
        most: tokens of a translation.

    Returns:
        the log, `scores` in it by name, one entry for each seed: BLEU and chrF of the texts, and
        of what :func:`words` makes of them, also by length of the source; `beams`, likewise, for
        every third sentence; and the weights of the first Transformer in half precision.
    """
    pairs, valid = english_french("train")[:n_pairs], english_french("valid")[:n_pairs]
    test = english_french("test")[:tested]
    sources, references = [list(side) for side in zip(*test, strict=True)]
    english = translation.tokenizers()[0]
    lengths = [len(english.encode(source).ids) for source in sources]

    def score(hypotheses: list[str], every: int = 1) -> dict:
        texts = [hypotheses, references[::every]]
        pieces = [[words(text) for text in side] for side in texts]
        return {
            "bleu": round(bleu(*texts).score, 3),
            "chrf": round(chrf(*texts), 3),
            "length": round(bleu(*texts).length / bleu(*texts).reference_length, 4),
        } | _score_words(*pieces, lengths[::every])

    tokenizer = make_tokenizer()
    scores: dict[str, list] = {name: [] for name in ("transformer", "recurrent", "words")}
    scores["memory"] = [score(memory(pairs, sources))]
    beams: dict[str, list] = {f"{n_beams}, {penalty}": [] for n_beams, penalty in BEAMS}
    curves, kept = [], {}
    for seed in seeds:
        model, curve = train(pairs, valid, tokenizer, steps, seed)
        curves.append(curve)
        first = not kept
        if first:
            kept = {name: w.half() for name, w in model.state_dict().items()}
            model.load_state_dict(kept)  # what is logged is what the shipped weights do
        written = translate(model, tokenizer, sources, most=most)
        scores["transformer"].append(score(written))
        for n_beams, penalty in BEAMS:
            asked = {"n_beams": n_beams, "length_penalty": penalty, "most": most}
            found = translate(model, tokenizer, sources[::EVERY], **asked)
            beams[f"{n_beams}, {penalty}"].append(score(found, EVERY))
        if first:
            chosen = [i for i, length in enumerate(lengths) if 6 <= length <= 14][:n_examples]
            examples = [_example(model, tokenizer, *test[i], written[i]) for i in chosen]

    recurrent_losses = []
    fits = [pair for pair in pairs if max(len(tokenizer.encode(t).ids) for t in pair) < LONGEST]
    for seed in recurrent_seeds:
        torch.manual_seed(seed)
        model = Seq2Seq(VOCAB, VOCAB, **RECURRENT, dropout=0.2)
        curve = translation.train(model, fits, valid, (tokenizer, tokenizer), epochs, seed)
        recurrent_losses.append(min(curve["valid"]))
        scores["recurrent"].append(score(_recurrent(model, tokenizer, sources, most)))
    old, *cut = translation.trained()
    told = translation.translate(old, *cut, sources)
    kept_words = [" ".join(t for t in entry["target"] if t != "<eos>") for entry in told]
    scores["words"].append(_score_words(kept_words, [words(text) for text in references], lengths))
    unknown = [cut[1].encode(text).ids for text in references]
    log = {
        "config": CONFIG.to_dict(),
        "settings": {"steps": steps, "batch": BATCH, "longest": LONGEST, "epochs": epochs},
        "seeds": list(seeds),
        "recurrent_seeds": list(recurrent_seeds),
        "pairs": {"train": len(pairs), "valid": len(valid), "test": len(test)},
        "parameters": {
            "transformer": sum(w.numel() for w in kept.values()),
            "recurrent": sum(w.numel() for w in model.parameters()),
            "words": sum(w.numel() for w in old.parameters()),
        },
        "curves": curves,
        "recurrent_losses": recurrent_losses,
        "buckets": [list(bucket) for bucket in translation.BUCKETS],
        "scores": scores,
        "beams": beams,
        "unknown": round(
            sum(row.count(UNK) for row in unknown) / sum(len(row) for row in unknown), 4
        ),
        "examples": examples,
    }
    return log, kept


@cache
def _french() -> Tokenizer:
    return translation.tokenizers()[1]


def _examples(pairs: Sequence[Pair], tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Return the source and its end, and the target between its begin and its end."""
    return [
        ([*tokenizer.encode(english).ids, EOS], [BOS, *tokenizer.encode(french).ids, EOS])
        for english, french in pairs
    ]


def _collate(chosen: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    sources, targets = zip(*chosen, strict=True)
    return pad_batch(sources)[0], pad_batch(targets)[0]


def _score_words(hypotheses: list[str], references: list[str], lengths: list[int]) -> dict:
    """Score texts whose tokens have spaces between them; None where no sentence is so long."""
    by_length = []
    for low, high in translation.BUCKETS:
        chosen = [i for i, length in enumerate(lengths) if low <= length <= high]
        texts = [[side[i] for i in chosen] for side in (hypotheses, references)]
        by_length.append(round(bleu(*texts, tokenize="none").score, 3) if chosen else None)
    return {
        "word_bleu": round(bleu(hypotheses, references, tokenize="none").score, 3),
        "word_chrf": round(chrf(hypotheses, references), 3),
        "by_length": by_length,
    }


def _recurrent(model: Seq2Seq, tokenizer: Tokenizer, sources: list[str], most: int) -> list[str]:
    rows = [tokenizer.encode(source).ids + [EOS] for source in sources]
    ids, _ = model.translate(*pad_batch(rows), max_len=most)
    return tokenizer.decode_batch(ids.tolist())  # leaves the special tokens out


def _example(model, tokenizer, source: str, reference: str, written: str) -> dict:
    """Return a translation with the mean weights of the last layer's heads, for the viewer."""
    read, wrote, weights = alignment(model, tokenizer, source, written)
    rows = [[round(w, 3) for w in row] for row in weights[-1].mean(dim=0).tolist()]
    return {"source": read, "target": wrote, "reference": reference, "weights": rows}
