"""Steps 5 to 7 of the Shakespeare lab: a decoder, what it is to learn, a probe for its mask."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_gradients,
    expect_tensor,
    numbers,
)

# lab-decoder ------------------------------------------------------------------------------------


def decoder(vocab_size: int, d_model: int, n_layers: int, n_heads: int) -> torch.nn.Module:
    """Build a model that reads characters and scores, after each of them, which comes next.

    The result is a module: module(tokens) takes ids (B, N), N up to 256, and returns the logits
    (B, N, V). What it says at a place depends on that place and all before it, on their order too,
    and on nothing behind it. Before training it knows nothing: it gives all characters about the
    same probability, with a loss within 0.1 of ln V.

    vocab_size: V. d_model: size of the residual stream. n_layers: blocks, each with weights of its
    own. n_heads: attention heads of a block.
    Returns: the module.
    """
    ...


def _made(make: Any, n_layers: int = 2, *, vocab_size: int = 13) -> torch.nn.Module:
    torch.manual_seed(11)
    model = make(vocab_size, 24, n_layers, 2)
    if not isinstance(model, torch.nn.Module):
        raise Wrong(f"The result is a {type(model).__name__}. Return a torch.nn.Module.")
    return model.eval()


def _logits(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the model's logits for tokens, or say in words what came instead."""
    try:
        with torch.no_grad():
            logits = model(tokens)
    except Exception as error:
        words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.150}"
        if "tuple" in words:
            words += (
                ". A block returns two things, its output and a state, and you need the output "
                "alone: `x, _ = block(x)`."
            )
        raise Wrong(f"The model raised {words}", given={"tokens": tokens}) from error
    if isinstance(logits, tuple | list):
        raise Wrong(
            "The model returned several things. Return the logits alone; the parts of the package "
            "return a state besides, which you leave out."
        )
    expect_tensor(logits, (*tokens.shape, logits.shape[-1]), torch.float32, what="The output")
    return logits


def _tokens(*shape: int, v: int = 13, seed: int = 3) -> torch.Tensor:
    return torch.randint(v, shape, generator=torch.Generator().manual_seed(seed))


def _decoder_shape(make: Any) -> None:
    """Tokens (B, N) become logits (B, N, V), for N up to 256."""
    model = _made(make)
    for shape in ((3, 7), (1, 1), (1, 256)):
        logits = _logits(model, _tokens(*shape))
        expect_tensor(logits, (*shape, 13), torch.float32, what=f"The output for tokens {shape}")


def _decoder_causal(make: Any) -> None:
    """No logits change when a later character changes."""
    model, tokens = _made(make), _tokens(1, 9)
    before = _logits(model, tokens)
    for place in (8, 4, 1):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 5) % 13
        moved = (_logits(model, other) - before).abs().amax(-1)[0]
        if moved[:place].max() > 1e-5:
            raise Wrong(
                f"Character {place} was changed, and the logits at places before it changed: the "
                "model sees what it is to predict. Does the attention have `causal=True`?",
                given={"tokens": tokens, "changed place": place}, got=moved,
            )


def _decoder_past(make: Any) -> None:
    """The last logits depend on every earlier character, and on their order."""
    model, tokens = _made(make, 1), torch.tensor([[1, 2, 3, 4, 5, 6]])
    before = _logits(model, tokens)[0, -1]
    for place in range(6):
        other = tokens.clone()
        other[0, place] = 9
        if (_logits(model, other)[0, -1] - before).abs().max() < 1e-7:
            raise Wrong(
                f"Character {place} of 6 was changed, and the last logits stay as they were. Can "
                "every place look at all before it?", given={"tokens": tokens},
            )
    swapped = torch.tensor([[3, 2, 1, 4, 5, 6]])
    if (_logits(model, swapped)[0, -1] - before).abs().max() < 1e-6:
        raise Wrong(
            "Two earlier characters changed places, and the last logits stay as they were: the "
            "model does not know where a character stands. Give it positions.",
            given={"tokens": tokens, "swapped": swapped},
        )


def _decoder_layers(make: Any) -> None:
    """Every layer has weights of its own, and all weights are used."""
    sizes = [sum(p.numel() for p in _made(make, n).parameters()) for n in (1, 2, 3)]
    each = [after - before for before, after in zip(sizes, sizes[1:], strict=False)]
    given = {"d_model": 24, "n_layers": [1, 2, 3]}
    if each[0] != each[1] or each[0] < 8 * 24**2:
        raise Wrong(
            f"One layer more adds {each[0]:,} parameters, and another one {each[1]:,}. Both should "
            "add those of one block: attention alone has 4 d² of them, and the feed-forward "
            "network as many or more. Is `n_layers` used, and is each block a new one?",
            given=given, got=sizes,
        )
    model = _made(make)
    model(_tokens(2, 9)).square().sum().backward()
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if unused:
        raise Wrong(f"These weights have no part in the output: {', '.join(unused[:4])}.")


def _decoder_start(make: Any) -> None:
    """Before training, all characters are about equally likely: the loss is close to ln V."""
    model = _made(make, vocab_size=63)
    logits = _logits(model, _tokens(4, 64, v=63))
    # The mean loss if every character came next equally often: without chance in the targets.
    loss = (logits.logsumexp(-1) - logits.mean(-1)).mean().item()
    if not loss - math.log(63) < 0.1:
        raise Wrong(
            "Before training, the mean loss over all characters should be within 0.1 of ln 63, and "
            "it is larger: the model prefers some characters before it has read any text. Its "
            "logits are too large. Draw smaller weights for the last linear map, "
            "`nn.init.normal_(self.head.weight, std=0.02)`, or for the embedding if the two share "
            "their weights.",
            given={"V": 63}, got=loss, wanted=math.log(63),
        )


LAB_DECODER = Exercise(
    name="lab-decoder",
    title="A decoder from its parts",
    level=3,
    section='chapters/lab_shakespeare, section "Step 5: the decoder"',
    stub=decoder,
    properties=(_decoder_shape, _decoder_causal, _decoder_past, _decoder_layers, _decoder_start),
    hints=(
        "From below: an embedding, the blocks, a normalisation, a linear map to V logits. Where do "
        "positions come in, and where is the future hidden?",
        "`Block(mixer, feed_forward, norm=RMSNorm, place='pre')` is one layer. Its mixer is "
        "`MultiHeadAttention(d_model, n_heads, causal=True, position=…)`. A block returns its "
        "output and a state. Keep the blocks in a `torch.nn.ModuleList`.",
        "In `__init__`: `self.embed = nn.Embedding(vocab_size, d_model)`, `self.blocks = "
        "nn.ModuleList(Block(MultiHeadAttention(d_model, n_heads, causal=True, "
        "position=RotaryPositions(d_model // n_heads)), FeedForward(d_model, 4 * d_model), "
        "norm=RMSNorm, place='pre') for _ in range(n_layers))`, a norm and a linear head, whose "
        "weights `nn.init.normal_(self.head.weight, std=0.02)` makes small. In `forward`: `for "
        "block in self.blocks: x, _ = block(x)`.",
    ),
)

# lab-causality ----------------------------------------------------------------------------------


def leaks(
    model: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor, vocab_size: int
) -> bool:
    """Tell whether a model lets any place see a character behind it.

    Change characters and look at the logits in front of them. Differences up to 1e-5 are rounding.

    model: from tokens (1, N) to logits (1, N, V). tokens: (1, N), int64. vocab_size: V, ids are
    below it.
    Returns: True if some logits depend on a character behind their place.
    """
    ...


def _causal_logits(tokens: torch.Tensor) -> torch.Tensor:
    """Score by running sums: each place sees itself and all before it."""
    table = numbers(7, 7, seed=811)
    return (table[tokens] + 0.1 * tokens[..., None]).cumsum(1)


def _behind(tokens: torch.Tensor, size: float, first: int, last: int) -> torch.Tensor:
    """Return a leak from places first to last (counted behind) to each place."""
    n = tokens.shape[1]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    sees = ((j - i >= first) & (j - i <= last)).double()
    return size * (tokens.double() @ sees.T)[..., None]


def _probe(leaks: Any, tokens: list[int], leak: Any, wanted: bool, message: str) -> None:
    row = torch.tensor([tokens])

    def model(tokens: torch.Tensor) -> torch.Tensor:
        if not isinstance(tokens, torch.Tensor) or tokens.shape != row.shape:
            raise Wrong("Give the model tokens of the shape that came in, (1, N).", got=tokens)
        if tokens.is_floating_point() or tokens.min() < 0 or tokens.max() >= 7:
            raise Wrong("The model was given what is no id: they go from 0 to V - 1.", got=tokens)
        return _causal_logits(tokens) + leak(tokens)

    got = leaks(model, row, 7)
    if not isinstance(got, bool):
        raise Wrong(f"The result is a {type(got).__name__}. Return True or False.", got=got)
    if got != wanted:
        raise Wrong(message, given={"tokens": row}, got=got, wanted=wanted)


ROW = [3, 1, 4, 1, 5, 2]


def _leaks_none(leaks: Any) -> None:
    """A causal model is not suspected, whatever the rounding."""
    _probe(
        leaks, ROW, lambda t: 0.0, False,
        "The model is causal. A changed character may change the logits at its own place and "
        "behind it: compare those in front of it.",
    )
    _probe(
        leaks, ROW, lambda t: 1e-8 * t.sum(), False,
        "The logits differ by less than 1e-6, which is rounding: another length of a sum is enough "
        "for that. Compare with a tolerance of 1e-5.",
    )


def _leaks_all(leaks: Any) -> None:
    """A model that sees everything is found out."""
    _probe(
        leaks, ROW, lambda t: _behind(t, 1.0, 1, 9), True, "Every place sees all behind it, and "
        "it was not noticed.",
    )


def _leaks_some(leaks: Any) -> None:
    """So is a model that sees one character too many, anywhere, and only a little."""
    cases = (
        (lambda t: _behind(t, 0.01, 1, 1),
         "Each place sees the next character, as with a mask whose diagonal is one too high, and "
         "it was not noticed."),
        (lambda t: _behind(t, 0.01, 3, 9),
         "Each place sees what is three places or more behind it, and it was not noticed. Look at "
         "all places in front of the changed one."),
        (lambda t: torch.nn.functional.pad(0.01 * t[:, 1:2, None].double(), (0, 0, 0, 5)),
         "The first place sees the second character, and it was not noticed. Change every "
         "character in turn, not the last ones only."),
        (lambda t: torch.nn.functional.pad(0.01 * t[:, 5:6, None].double(), (0, 0, 4, 1)),
         "The last place but one sees the last character, and it was not noticed. Change the last "
         "character too."),
    )
    for leak, message in cases:
        _probe(leaks, ROW, leak, True, message)


def _leaks_same(leaks: Any) -> None:
    """A change really changes the character, whichever stands there."""
    for token in (0, 1, 3, 6):
        _probe(
            leaks, [token] * 4, lambda t: _behind(t, 0.5, 1, 3), True,
            f"All characters are {token}, and a model that sees behind was not noticed. Does your "
            "change put there what stood there before?",
        )


LAB_CAUSALITY = Exercise(
    name="lab-causality",
    title="Does it see the future?",
    level=2,
    section='chapters/lab_shakespeare, section "Step 7: is it sane?"',
    stub=leaks,
    properties=(_leaks_none, _leaks_all, _leaks_some, _leaks_same),
    hints=(
        "If character j is changed, which logits may change, and which must not?",
        "Go through all j from 1 on. Put another id at place j of a copy, run the model again, and "
        "compare the logits at the places before j.",
        "`other = tokens.clone()`; `other[0, j] = (other[0, j] + 1) % vocab_size`; it leaks if "
        "`(model(other)[0, :j] - before[0, :j]).abs().max().item() > 1e-5` for some j.",
    ),
)

# lab-loss ---------------------------------------------------------------------------------------


def loss_of(
    model: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor
) -> torch.Tensor:
    """Compute the mean surprise of a model at the characters it is to predict, in nats.

    The model reads all but the last character of each row. The targets are all but the first.

    model: from tokens (B, N) to logits (B, N, V). batch: (B, N + 1), int64.
    Returns: the mean of -ln p(target) over all places of all rows, a tensor of shape ().
    """
    ...


def _loss_case() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.tensor([[1, 4, 2, 0, 3], [2, 2, 4, 1, 0], [0, 3, 3, 1, 4]])
    return numbers(6, 6, seed=823), tokens


def _reader(table: torch.Tensor, rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    x = rows[:, :-1]

    def model(tokens: torch.Tensor) -> torch.Tensor:
        if not isinstance(tokens, torch.Tensor) or not torch.equal(tokens, x):
            whole = isinstance(tokens, torch.Tensor) and torch.equal(tokens, rows)
            raise Wrong(
                "The model read whole rows. The last character has no target: leave it out."
                if whole else "The model read something else than all but the last of each row.",
                got=tokens, wanted=x,
            )
        return table[tokens].cumsum(1)

    return model


def _loss_values(loss: Any) -> None:
    """Each place is scored against its own target."""
    table, rows = _loss_case()
    x, y = rows[:, :-1], rows[:, 1:]
    logits = table[x].cumsum(1)
    ce = torch.nn.functional.cross_entropy
    right = ce(logits.flatten(0, 1), y.flatten())
    flat = logits.flatten(0, 1)
    chance = flat.softmax(-1).gather(1, y.reshape(-1, 1))
    try:
        got = loss(_reader(table, rows), rows)
    except Wrong as wrong:
        if not re.search(r"target (size|batch_size|tensor)", str(wrong)):
            raise
        raise Wrong(
            "`cross_entropy` refused the shapes. It takes a list of M predictions, logits (M, V) "
            "with targets (M,), and you have B rows of N each: make one list of all B · N places, "
            "`.flatten(0, 1)` for the logits and `.flatten()` for the targets.",
            given={"batch": rows}, got=str(wrong),
        ) from wrong
    expect(
        got,
        right,
        "Average -ln p(target) over all places of all rows.",
        what="The loss",
        given={"batch": rows},
        mistakes={
            "The targets were shifted twice: all but the first are the next characters already.":
                ce(logits[:, :-1].flatten(0, 1), y[:, 1:].flatten()),
            "The logits were scored against the characters that the model has read.":
                ce(flat, x.flatten()),
            "Only the last place was scored. Every place has a target, N for the price of one.":
                ce(logits[:, -1], y[:, -1]),
            "This is the sum. The loss is the mean over all places.": right * y.numel(),
            "The sum was divided by the rows alone. Divide by the number of targets.":
                right * y.shape[1],
            "The softmax was applied twice: `cross_entropy` expects logits.":
                ce(flat.softmax(-1), y.flatten()),
            "`reshape` does not exchange axes: (B, N, V) became (B, V, N) with the scores of "
            "different places mixed up. Flatten the first two axes, or transpose.":
                ce(logits.reshape(3, 6, 4), y),
            "These are bits. Train in nats, as chapter 11 does; change to bits when you report.":
                right / math.log(2),
            "The sign is reversed: training would make the targets unlikely.": -right,
            "The logarithm is missing: this is the mean of p or of 1 - p.":
                (chance.mean(), 1 - chance.mean()),
        },
    )


def _loss_gradients(loss: Any) -> None:
    """Gradients reach the model."""
    table, rows = _loss_case()
    expect_gradients(lambda table: loss(_reader(table, rows), rows), table=table)


LAB_LOSS = Exercise(
    name="lab-loss",
    title="The loss of a batch",
    level=1,
    section='chapters/lab_shakespeare, section "Step 6: the loss"',
    stub=loss_of,
    properties=(_loss_values, _loss_gradients),
    hints=(
        "A row of N + 1 characters poses N questions. Which slice of it is read, and which slice "
        "holds the answers?",
        "`torch.nn.functional.cross_entropy` takes logits (M, V) and targets (M,): make one long "
        "list of all places of all rows.",
        "`t.flatten(0, 1)` joins the first two axes of a tensor. The function differs in one line "
        "from that of chapter 11, whose model returns a state besides.",
    ),
)

EXERCISES = (LAB_DECODER, LAB_CAUSALITY, LAB_LOSS)
