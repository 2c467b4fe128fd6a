r"""How well do decoders of two sizes add four digits when they write their working down?

A question is a sum of four digits from 1 to 9, "3+8+5+7=". An answer with working adds them one
after the other, in an order that is drawn for each text, and writes each total down:
"8+3=11+7=18+5=23". Each text ends with a new line. There are up to 24 ways to one answer, so
two samples seldom agree in every token, and may still agree in the end. The difficult part is to
use each digit once. A direct answer is the last total alone, "23".

Decoders are trained on texts that are drawn anew for each batch: "large", a decoder with half as
many layers, "small", with each seed, and one as small that answers directly.

The log holds for each model a list over its seeds: the share of 1,000 new questions that end with
the right number, by the most likely tokens (`greedy`) and by one sample at temperature 1
(`sampled`), and the mean length of a sampled answer in tokens (`tokens`). The weights, rounded to
16 bits before anything is measured, stand under "large.0.", "small.0.", "small.1." and so on.

Explained in: chapters/18_practice_deeper, section "Compute at test time".
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tfbook import experiments
from tfbook.generation import GREEDY, Sampling, generate
from tfbook.models import FFN, Attention, DecoderOnly, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.optimization import schedule
from tfbook.practice import answer_batch, answer_loss, arithmetic_tokenizer

__all__ = [
    "MODELS", "SMOKE", "draw", "is_right", "learn", "model_of", "read", "run", "said", "test",
    "text_batch", "train", "trained",
]  # fmt: skip

SMOKE = {"seeds": (0,), "steps": 2, "large_steps": 2, "n_test": 4}
CARD = {
    "model": "decoders of width {WIDTH}, 4 layers, {large:,} parameters, or 2 layers, "
    "{small:,} parameters",
    "data": "sums of four digits, drawn anew",
    "steps": "{steps:,} steps, the large one {large_steps:,}",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}, rising and then falling",
}
WIDTH, BATCH, RATE, HOW_MANY, LONGEST = 48, 64, 3e-3, 4, 24
# Name → layers, whether the working is written.
MODELS: dict[str, tuple[int, bool]] = {
    "large": (4, True), "small": (2, True), "small, direct": (2, False),
}  # fmt: skip
TOKENIZER = arithmetic_tokenizer()
STOP = TOKENIZER.token_to_id("\n")


def model_of(name: str, seed: int = 0) -> DecoderOnly:
    """Make one of `MODELS`, untrained."""
    torch.manual_seed(seed)
    layer = Layer(Attention(4, position=Rotary()), FFN(128, "swiglu"), norm=Norm("rms"))
    config = TransformerConfig(
        TOKENIZER.get_vocab_size(), WIDTH, decoder=[layer] * MODELS[name][0], init="gpt2"
    )
    return build(config)


def trained(name: str, seed: int = 0) -> DecoderOnly:
    """Return "large", or "small" with a seed, as the shipped run left it."""
    model, found, start = model_of(name), experiments.weights("long_sums"), f"{name}.{seed}."
    kept = {k.removeprefix(start): x.float() for k, x in found.items() if k.startswith(start)}
    model.load_state_dict(kept)
    return model.eval()


def draw(
    n: int, generator: torch.Generator, *, working: bool = True
) -> tuple[list[str], list[str], list[str]]:
    """Draw questions, texts that answer them rightly, and the right last numbers."""
    questions, texts, right = [], [], []
    for digits in torch.randint(1, 10, (n, HOW_MANY), generator=generator).tolist():
        order = torch.randperm(HOW_MANY, generator=generator).tolist()
        total, text = digits[order[0]], str(digits[order[0]])
        for i in order[1:]:
            total += digits[i]
            text += f"+{digits[i]}={total}"
        questions.append("+".join(map(str, digits)) + "=")
        texts.append(f"{text if working else total}\n")
        right.append(str(total))
    return questions, texts, right


def read(text: str) -> str:
    """Return the last number of an answer that ends, else nothing."""
    return text[:-1].rpartition("=")[2] if text.endswith("\n") else ""


def is_right(question: str, text: str) -> bool:
    """Say whether the last number of an answer is the sum."""
    return read(text) == str(sum(map(int, question[:-1].split("+"))))


def text_batch(questions: Sequence[str], texts: Sequence[str]):
    """Return inputs, and targets on the answers alone."""
    ids = [
        (TOKENIZER.encode(q).ids, TOKENIZER.encode(a).ids)
        for q, a in zip(questions, texts, strict=True)
    ]
    return answer_batch([(q + a, len(q)) for q, a in ids])


def learn(
    model: nn.Module, loss: Callable[[int], Tensor], steps: int, *, rate: float = RATE
) -> None:
    """Take so many steps on what `loss` gives for each of them."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    factor = schedule("cosine", steps=steps, warmup=min(50, steps // 10))
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        falling.step()
    model.eval()


def said(model: nn.Module, questions: Sequence[str], *, seed: int = 0, sampling=None) -> list[str]:
    """Let a model answer each question once, at temperature 1 or by another `sampling`."""
    prompts = [TOKENIZER.encode(q).ids for q in questions]
    sampling = Sampling() if sampling is None else sampling
    written = generate(
        model.eval(), prompts, max_new_tokens=LONGEST, sampling=sampling, stop=[STOP], seed=seed
    ).tokens
    return [TOKENIZER.decode(new) for new in written]


def train(name: str, seed: int, steps: int) -> DecoderOnly:
    """Train one of `MODELS` on texts that are right."""
    model, generator = model_of(name, seed), torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        questions, texts, _ = draw(BATCH, generator, working=MODELS[name][1])
        total, count = answer_loss(model, text_batch(questions, texts))
        return total / count

    learn(model, loss, steps)
    for x in model.parameters():
        x.data = x.data.half().float()
    return model


def test(model: nn.Module, n: int, *, seed: int = 10_000) -> dict[str, float]:
    """Ask a model n new questions, once by the most likely tokens and once by a sample."""
    questions, _, _ = draw(n, torch.Generator().manual_seed(seed))
    greedy, drawn = said(model, questions, sampling=GREEDY), said(model, questions)
    return {
        "greedy": round(sum(map(is_right, questions, greedy)) / n, 3),
        "sampled": round(sum(map(is_right, questions, drawn)) / n, 3),
        "tokens": round(sum(map(len, drawn)) / n, 2),
    }


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = 600, large_steps: int = 900,
    n_test: int = 1000,
) -> tuple[dict, dict[str, Tensor]]:  # fmt: skip
    """Train the large decoder and the direct one with the first seed, the small one with each."""
    log: dict = {"settings": {"steps": steps, "large_steps": large_steps}, "seeds": list(seeds)}
    weights, first = {}, seeds[:1]
    for name in MODELS:
        for seed in seeds if name == "small" else first:
            model = train(name, seed, large_steps if name == "large" else steps)
            for key, value in test(model, n_test).items():
                log.setdefault(key, {}).setdefault(name, []).append(value)
            if name != "small, direct":
                state = model.state_dict().items()
                weights |= {f"{name}.{seed}.{key}": x.half() for key, x in state}
        log["settings"][name] = sum(x.numel() for x in model.parameters())
    return log, weights
