"""induction_head: two heads, set by hand, that continue what they have read before."""

import math
import re
from collections.abc import Sequence

from tfbook.teaching.explorables._base import Explorable, boolean, whole, wrapped

TITLE = "Two heads that copy what came next"
WORDS = ("a", "red", "fox", "saw", "a", "blue", "bird", "and", "a", "red")
EXAMPLES = (
    "a red fox saw a blue bird and a red",
    "Mrs Potts lit the lamp and Mr Hill thanked Mrs",
    "one two three one two three one two",
    "each word here stands only once",
)
SHARP = 50.0  # of interpret.induction_model: scores and logits of what is found
PASSED = 2.0  # times SHARP: by how much every query passes over place 0
MAX_WORDS, MAX_LETTERS, TIE = 16, 16, 1e-9
MANY = 3  # with more words than these they are counted
SPACE = re.compile(r"[ \t\r\n]+")


def induction_head(
    tokens: Sequence[str] = WORDS, *, token: int = -1, first_head: bool = True
) -> Explorable:
    """Return a figure of the smallest induction circuit, on words that the reader may change.

    The weights are those of :func:`tfbook.interpret.induction_model`. The head of layer 0 looks at
    the place before and writes its word beside the word that stands there. The head of layer 1 asks
    for places with its own word as the word before, and predicts the word that stands at them.
    Without the first head all places look alike to the second.

    Args:
        tokens: 1 to 16 words of at most 16 characters, without spaces.
        token: the place whose next word is predicted; the last when omitted.
        first_head: whether the head of layer 0 writes.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or a word is too long, empty or holds a space.

    Source: [elhage2021mathematical], [olsson2022context].
    Explained in: chapters/10_interpretability, section "Induction heads".
    """
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise TypeError(f"tokens must be a list of words, got {type(tokens).__name__}")
    for word in tokens:
        if not isinstance(word, str):
            raise TypeError(f"tokens must be a list of words, got {type(word).__name__} in it")
        if len(_split(word)) != 1 or SPACE.search(word):
            raise ValueError(f"tokens must be words without spaces, got {word!r}")
    n = len(_split(_text(" ".join(tokens))))
    token = whole("token", -n, n - 1)(token) % n
    checks = {
        "text": _text,
        "token": whole("token", 0, MAX_WORDS - 1),
        "first_head": boolean("first_head"),
    }
    state = {
        "text": " ".join(tokens),
        "token": token,
        "first_head": checks["first_head"](first_head),
    }
    data = {
        "title": TITLE, "examples": EXAMPLES, "sharp": SHARP, "passed": PASSED,
        "max_words": MAX_WORDS, "max_letters": MAX_LETTERS,
    }  # fmt: skip
    return Explorable(
        "induction_head", data=data, state=state, checks=checks, results=_results, text=_told
    )


def _told(now: dict) -> str:
    found = _results(now)
    words, i = found["words"], found["place"]
    looks = "; ".join(
        f"“{words[j]}” ({j}) {w:.2f}" for j, w in enumerate(found["weights"]) if w >= 0.005
    )
    says = _named(found["answer"])
    top = max(found["probabilities"].values())
    earlier = "It is new here."
    if found["wanted"]:
        earlier = f"Earlier, “{words[i]}” was followed by {_named(found['wanted'])}."
    return wrapped(f"""{TITLE}

    The text: {" ".join(words)}. The head of layer 0 {"writes" if now["first_head"] else "is off"}.
    At “{words[i]}” ({i}) the head of layer 1 looks at {looks}. It predicts {says}
    ({top:.3f}{" each" if len(found["answer"]) > 1 else ""}). {earlier}

    In the page the words can be changed, another place chosen and the first head switched off.""")


def _named(words: Sequence[str]) -> str:
    if len(words) > MANY:
        return f"one of {len(words)} words alike"
    return " or ".join(f"“{word}”" for word in words)


def _split(text: str) -> list[str]:
    return [word for word in SPACE.split(text) if word]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text must be words, got {type(value).__name__}")
    words = _split(value)
    if not 1 <= len(words) <= MAX_WORDS:
        raise ValueError(f"text must have 1 to {MAX_WORDS} words, got {len(words)}")
    if long := [word for word in words if len(word) > MAX_LETTERS]:
        raise ValueError(f"text must have words of at most {MAX_LETTERS} letters, got {long[0]!r}")
    return " ".join(words)


def _softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [p / sum(powers) for p in powers]


def _results(now: dict) -> dict:
    words = _split(now["text"])
    n, i = len(words), min(now["token"], len(words) - 1)
    vocabulary = list(dict.fromkeys(words))

    def look_back(place: int) -> list[float]:
        """Return where the head of layer 0 looks: its score for the place before is SHARP."""
        return _softmax([SHARP * (j == place - 1) for j in range(place + 1)])

    def mixed(weights: Sequence[float]) -> list[float]:
        """Return how much of each word of the vocabulary is in a mixture of places."""
        places = enumerate(weights)
        found = dict.fromkeys(vocabulary, 0.0)
        for j, weight in places:
            found[words[j]] += weight
        return list(found.values())

    nothing = [0.0] * len(vocabulary)
    before = [mixed(look_back(j)) if now["first_head"] else nothing for j in range(n)]
    own = vocabulary.index(words[i])
    scores = [SHARP * (before[j][own] - PASSED * (j == 0)) for j in range(i + 1)]
    weights = _softmax(scores)
    said = mixed(weights)
    logits = [SHARP * share for share in said]
    probabilities = _softmax(logits)
    wanted = dict.fromkeys(words[j + 1] for j in range(i) if words[j] == words[i])
    written = [None if not sum(parts) else vocabulary[parts.index(max(parts))] for parts in before]
    return {
        "words": words,
        "place": i,
        "first_weights": look_back(i),
        "before": written,
        "scores": scores,
        "weights": weights,
        "logits": dict(zip(vocabulary, logits, strict=True)),
        "probabilities": dict(zip(vocabulary, probabilities, strict=True)),
        "answer": [
            word for word, x in zip(vocabulary, logits, strict=True) if x >= max(logits) - TIE
        ],
        "wanted": list(wanted),
        "found": sum(p for w, p in zip(vocabulary, probabilities, strict=True) if w in wanted),
    }
