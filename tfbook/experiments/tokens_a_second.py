"""How many tokens a second does one core write: without a cache, with it, in batches, with guesses?

SmolLM2-135M as it is, float32, one thread. All ways go on from 128 tokens that have been read:

* a pass over them all, which gives one more token without a cache (`uncached`, as `seen`);
* with a cache, a pass over more tokens of the text (`passes`, one value for each of `rows`), and
  the products with the model's matrices alone, on as many rows (`products`);
* with a cache for each, one more token of several copies of the text (`batches`, as `texts`);
* a text of `new` tokens, greedy, one token a pass or with up to `n_draft` guesses a pass, which a
  look-up of the last two tokens proposes (`ahead`). Three beginnings: one that goes round in a
  circle, an order to repeat a passage, in the chat template, and a scene of Shakespeare.

Guesses leave the texts as they are; `same` says whether they did. `rate` and `traffic` are what the
core does at best, FLOPs a second in a product of two matrices and bytes a second that a product
with one row fetches. Of all rounds the log holds the fastest, in seconds of the one thread: other
programs that share the memory can only slow one down.

It does not show another machine: with more cores or a GPU the same ways are further apart.

Explained in: chapters/12_generation_deeper, section "Tokens a second".
"""

from collections.abc import Callable
from time import process_time

import torch
from torch import Tensor, nn

from tfbook import data, pretrained

__all__ = ["SMOKE", "beginnings", "guess", "run", "write_ahead"]

SEEN = 128
PROMPT = "To be, or not to be,"
PAIR = " I am a good friend to me. I am a good friend to you."
SMOKE = {"seen": (4,), "rows": (1, 2), "texts": (2,), "new": 2, "rounds": 1, "size": 32}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters in float32",
    "data": "texts of {SEEN} tokens that are continued",
    "steps": "nothing is trained; the fastest of {rounds} rounds",
    "batch": "",
    "rate": "",
}


def beginnings(language: pretrained.Pretrained) -> dict[str, Tensor]:
    """Return the three beginnings by name, (1, t), of 128 tokens each or a few more."""
    _, _, scenes = data.shakespeare("test").partition("\n\n")
    circle = torch.cat([language.encode(PROMPT), *[language.encode(PAIR)] * 8], 1)
    words = scenes[:340].rsplit(" ", 1)[0]
    order = [{"role": "user", "content": f"Repeat this passage word by word:\n{words}"}]
    return {
        "a circle": circle[:, :SEEN],
        "quoting": language.encode(language.chat(order)),
        "a scene": language.encode(scenes[:1500])[:, :SEEN],
    }


def guess(ids: list[int], n: int) -> list[int]:
    """Return up to n tokens that followed the last two when they last occurred."""
    for at in range(len(ids) - 3, -1, -1):
        if ids[at : at + 2] == ids[-2:]:
            return ids[at + 2 : at + 2 + n]
    return []


def write_ahead(
    model: nn.Module, ids: list[int], state: object, new: int, n: int
) -> tuple[list[int], int]:
    """Continue a text greedily with guesses; return the new tokens and the number of passes.

    Args:
        model: decodes.
        ids: the text.
        state: what remains of reading all of it but the last token.
        new: how many tokens to write.
        n: guesses in a pass; 0 for none.
    """
    ids, begun, passes = list(ids), len(ids), 0
    while len(ids) < begun + new:
        draft = guess(ids, n)
        logits, state = model.decode(torch.tensor([ids[-1:] + draft]), state)
        own = logits[0].argmax(-1).tolist()  # what the model chooses after each
        right = 0
        while right < len(draft) and draft[right] == own[right]:
            right += 1
        passes += 1
        ids += own[: right + 1]  # the guesses that were right, and one more
        state = state.truncate(len(ids) - 1)
    return ids[begun : begun + new], passes


def _timed(action: Callable[[], object]) -> float:
    begun = process_time()
    action()
    return process_time() - begun


@torch.no_grad()
def run(
    *,
    seen: tuple[int, ...] = (8, SEEN),
    rows: tuple[int, ...] = (1, 2, 4, 5, 8, 16, 32, 64),
    texts: tuple[int, ...] = (4, 16),
    new: int = 24,
    n_draft: int = 4,
    rounds: int = 9,
    size: int = 1024,
) -> tuple[dict, None]:
    """Time all ways in turn, `rounds` times, and return the fastest of each.

    Args:
        seen: lengths of the text that a pass without a cache reads.
        rows: tokens of a pass with a cache.
        texts: how many share a pass.
        new: tokens that are written with guesses and without.
        n_draft: guesses in a pass.
        rounds: how often each way is timed.
        size: of the matrices that show what the core does at best.
    """
    language = pretrained.load("smollm2-135m")
    model, begun = language.model, beginnings(language)
    _, _, scenes = data.shakespeare("test").partition("\n\n")
    text = language.encode(scenes[:1500])
    _, state = model.decode(text[:, :SEEN])
    matrices = [w for w in model.parameters() if w.ndim == 2]
    torch.manual_seed(0)
    square, tall, vector = torch.randn(size, size), torch.randn(32 * size, size), torch.randn(size)

    def products(n: int) -> None:
        for w in matrices:
            torch.mm(torch.ones(n, w.shape[1]), w.T)

    ways: dict[tuple, Callable[[], object]] = {
        ("rate",): lambda: torch.mm(square, square),
        ("traffic",): lambda: torch.mv(tall, vector),
    }
    for n in seen:
        ways["uncached", n] = lambda n=n: model.decode(text[:, :n])
    for n in rows:
        ways["passes", n] = lambda n=n: model.decode(text[:, SEEN : SEEN + n], state)
        ways["products", n] = lambda n=n: products(n)
    for n in texts:
        copies = state.select(torch.zeros(n, dtype=torch.long))
        following = text[:, SEEN : SEEN + 1].expand(n, -1)
        ways["batches", n] = lambda x=following, s=copies: model.decode(x, s)
    ahead = {}
    for name, ids in begun.items():
        _, read = model.decode(ids[:, :-1])
        start = ids[0].tolist()
        plain, _ = write_ahead(model, start, read, new, 0)
        found, passes = write_ahead(model, start, read, new, n_draft)
        ahead[name] = {"tokens": new, "passes": passes, "same": found == plain,
                       "text": language.decode(found)}  # fmt: skip
        for n in (0, n_draft):
            ways["ahead", name, n] = lambda a=start, b=read, n=n: write_ahead(model, a, b, new, n)

    seconds = {way: min(_timed(action) for _ in range(2)) for way, action in ways.items()}
    for _ in range(rounds - 1):
        for way, action in ways.items():
            seconds[way] = min(seconds[way], _timed(action))
    for name, each in ahead.items():
        each["seconds"] = [round(seconds["ahead", name, n], 4) for n in (0, n_draft)]
    log = {
        "settings": {"seen": list(seen), "rows": list(rows), "texts": list(texts), "new": new,
                     "n_draft": n_draft, "rounds": rounds},
        "rate": round(2 * size**3 / seconds["rate",]),
        "traffic": round(tall.nbytes / seconds["traffic",]),
        **{
            kind: [round(seconds[kind, n], 4) for n in counts]
            for kind, counts in (("uncached", seen), ("passes", rows), ("products", rows),
                                 ("batches", texts))
        },
        "ahead": ahead,
    }  # fmt: skip
    return log, None
