"""Objectives and denoising: their properties, PyTorch's losses, real models, what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_properties import CHECKS, PARTS, B, Kit, N, V, ids, normal
from model_properties import randomised, uniform
from torch.nn import functional

from tfbook import models, training
from tfbook.models import build
from tfbook.training import Example, causal_loss, cross_entropy, masked_loss, translation_loss

NAMES = [name for name, part in PARTS.items() if part in ("objectives", "denoising")]


@pytest.mark.parametrize("name", NAMES)
def test_properties(name):
    CHECKS[name](Kit("tfbook"))


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=3),
    eps=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    hidden=st.floats(0, 0.9),
    reduction=st.sampled_from(["mean", "sum", "none"]),
)
def test_cross_entropy_is_pytorchs(shape, eps, hidden, reduction):
    logits, targets = normal(*shape, V).requires_grad_(), ids(*shape)
    targets = targets.masked_fill(torch.rand(shape) < hidden, -100)
    if not (targets != -100).any():
        targets = targets.masked_fill(targets == -100, 3)
    ours = cross_entropy(logits, targets, label_smoothing=eps, reduction=reduction)
    theirs = functional.cross_entropy(
        logits.reshape(-1, V),
        targets.reshape(-1),
        label_smoothing=eps,
        ignore_index=-100,
        reduction=reduction,
    )
    torch.testing.assert_close(ours, theirs.reshape(ours.shape))
    mine, other = (
        torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (ours, theirs)
    )
    torch.testing.assert_close(mine, other)


def test_smoothed_targets_are_what_pytorch_aims_at():
    logits, targets = normal(N, V), ids(N)
    q = training.smooth_targets(targets, V, 0.3).double()
    theirs = functional.cross_entropy(logits, targets, label_smoothing=0.3)
    torch.testing.assert_close(functional.cross_entropy(logits, q), theirs, rtol=1e-6, atol=1e-6)


def test_distillation_is_pytorchs_divergence():
    student, teacher = normal(N, V), normal(N, V, seed=1)
    theirs = functional.kl_div(
        (student / 3).log_softmax(-1), (teacher / 3).softmax(-1), reduction="batchmean"
    )
    torch.testing.assert_close(training.distillation(student, teacher, temperature=3.0), 9 * theirs)


def test_small_integers_and_half_precision_are_fine():
    logits, targets = normal(B, N, V).bfloat16(), ids(B, N).to(torch.int32)
    close = cross_entropy(logits.float(), targets)
    torch.testing.assert_close(cross_entropy(logits, targets).float(), close, rtol=0.02, atol=0.02)


@pytest.mark.untyped
def test_the_loss_compiles_to_one_graph():
    compiled = torch.compile(cross_entropy, backend="aot_eager", fullgraph=True)
    logits, targets = normal(B, N, V), ids(B, N)
    torch.testing.assert_close(compiled(logits, targets), cross_entropy(logits, targets))


# --- with the package's models ------------------------------------------------------------------


def model(kind, **choices):
    sizes = {"n_decoder_layers": 1} if kind == "encoder-decoder" else {}
    config = uniform(models, V, 12, 1, 3, 17, kind=kind, max_len=19, **sizes | choices)
    return randomised(build(config)).eval()


def test_a_decoder_cannot_see_what_it_is_asked_for():
    decoder, tokens = model("decoder"), ids(1, N)
    tokens[0, 1:] = 4

    def losses(tokens):
        inputs, targets = training.next_tokens(tokens)
        return cross_entropy(decoder(inputs)[0], targets, reduction="none")[0]

    other = tokens.clone()
    other[0, 4] = 5
    changed = (losses(other) - losses(tokens)).abs() > 1e-9
    # Token 4 is what place 3 is asked for; from place 4 on it has been read.
    assert changed.tolist() == [False] * 3 + [True] * 3
    inputs, targets = training.next_tokens(tokens)
    logits = [decoder(x)[0][0, 3] for x in (inputs, training.next_tokens(other).inputs)]
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_padding_changes_no_loss_of_a_decoder(left):
    decoder, tokens = model("decoder", position="learned"), ids(2, N)
    mask = torch.ones(2, N, dtype=torch.bool)
    short = slice(3, None) if left else slice(None, 4)
    mask[1] = False
    mask[1, short] = True
    loss, count = causal_loss(decoder, tokens, mask=mask)
    alone = [causal_loss(decoder, tokens[:1]), causal_loss(decoder, tokens[1:, short])]
    torch.testing.assert_close(loss, alone[0][0] + alone[1][0])
    assert count == alone[0][1] + alone[1][1]


def test_teacher_forcing_is_one_pass_for_as_many_as_there_are_tokens():
    both = model("encoder-decoder")
    source, target = ids(1, 5) % (V - 1) + 1, ids(1, N, seed=1) % (V - 1) + 1
    loss, count = translation_loss(both, (source, target), pad_id=0, label_smoothing=0.1)
    each = [
        translation_loss(both, (source, target[:, :t]), pad_id=0, label_smoothing=0.1)[0]
        for t in range(2, N + 1)
    ]
    torch.testing.assert_close(loss, each[-1])
    steps = torch.stack(each).diff(prepend=torch.zeros(1, dtype=loss.dtype))
    for t in range(N - 1):
        last = both(source, target[:, : t + 1])[0, -1]
        one = cross_entropy(last, target[0, t + 1], label_smoothing=0.1)
        torch.testing.assert_close(steps[t], one)
    assert count == N - 1


def test_a_masked_model_learns_from_hidden_tokens_with_padding():
    encoder, tokens = model("encoder", head="mlm"), ids(2, N) % (V - 2) + 1
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[1, 4:] = False
    tokens[1, 4:] = 0
    task = training.mask_tokens(
        tokens,
        mask_id=V - 1,
        vocab_size=V,
        special=(0,),
        share=0.6,
        generator=torch.Generator().manual_seed(1),
    )
    loss, count = masked_loss(encoder, task, mask=mask)
    rows = [Example(task.inputs[:1], task.targets[:1]), Example(*(x[1:, :4] for x in task))]
    alone = [masked_loss(encoder, row) for row in rows]
    torch.testing.assert_close(loss, alone[0][0] + alone[1][0])
    assert count == alone[0][1] + alone[1][1] > 0


def test_gradients_added_up_over_batches_are_those_of_one_batch():
    decoder, tokens = model("decoder"), ids(5, N)
    mask = torch.ones(5, N, dtype=torch.bool)
    mask[3, 2:] = False

    def gradient(pieces):
        decoder.zero_grad()
        counts = 0
        for rows in pieces:
            loss, count = causal_loss(decoder, tokens[rows], mask=mask[rows])
            loss.backward()
            counts += count
        return torch.cat([w.grad.flatten() / counts for w in decoder.parameters()])

    torch.testing.assert_close(gradient([slice(0, 2), slice(2, 5)]), gradient([slice(0, 5)]))


@settings(max_examples=60)
@given(
    row=st.lists(st.integers(0, 50), min_size=2, max_size=40),
    share=st.floats(0, 1),
    mean_length=st.floats(1, 10),
    seed=st.integers(0, 2**31),
)
def test_any_sequence_is_put_together_again(row, share, mean_length, seed):
    sentinels = range(100, 150)
    inputs, targets = training.corrupt_spans(
        row,
        sentinels=sentinels,
        share=share,
        mean_length=mean_length,
        generator=torch.Generator().manual_seed(seed),
    )
    assert training.fill_spans(inputs, targets, sentinels=sentinels) == row
    if all(token not in sentinels for token in row):
        extra = len(set(inputs) & set(sentinels))
        assert len(inputs) + len(targets) == len(row) + 2 * extra + 1


@settings(max_examples=40)
@given(
    row=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    share=st.floats(0, 0.99),
    seed=st.integers(0, 2**31),
)
def test_noise_invents_nothing(row, share, seed):
    generator = torch.Generator().manual_seed(seed)

    def is_part(short, long):
        rest = iter(long)
        return all(token in rest for token in short)

    filled = training.infill(row, mask_id=99, share=share, generator=generator)
    assert is_part([token for token in filled if token != 99], row)
    assert len([token for token in filled if token != 99]) == len(row) - round(share * len(row))
    assert is_part(training.delete_tokens(row, share=share, generator=generator), row)
    for moved in (
        training.permute_sentences(row, end_id=3, generator=generator),
        training.rotate(row, generator=generator),
    ):
        assert sorted(moved) == sorted(row)


MISTAKES = {
    "integer logits": (
        lambda: cross_entropy(torch.ones(2, 3).long(), torch.ones(2).long()),
        TypeError,
        "logits must have a floating-point dtype",
    ),
    "real targets": (
        lambda: cross_entropy(torch.ones(2, 3), torch.ones(2)),
        TypeError,
        "targets must be integers, got torch.float32",
    ),
    "batch axis cut": (
        lambda: cross_entropy(torch.ones(2, 5, 3), torch.ones(1, 5).long()),
        ValueError,
        r"targets must have shape that of the logits without V = \(2, 5\), got \(1, 5\)",
    ),
    "target too large": (
        lambda: cross_entropy(torch.ones(2, 3), torch.tensor([0, 3])),
        ValueError,
        "targets must be from 0 to 2, or -100 to be ignored, got 3",
    ),
    "smoothing": (
        lambda: cross_entropy(torch.ones(1, 3), torch.tensor([0]), label_smoothing=1.5),
        ValueError,
        "label_smoothing must be from 0 to 1, got 1.5",
    ),
    "reduction": (
        lambda: cross_entropy(torch.ones(1, 3), torch.tensor([0]), reduction="max"),
        ValueError,
        "reduction must be one of mean, sum, none, sequences, got 'max'",
    ),
    "smooth targets": (
        lambda: training.smooth_targets(torch.tensor([-100]), 3, 0.1),
        ValueError,
        "targets must be from 0 to 2, got -100",
    ),
    "one token": (
        lambda: training.next_tokens(torch.ones(2, 1).long()),
        ValueError,
        "tokens must have at least 2 columns",
    ),
    "mask of numbers": (
        lambda: training.next_tokens(torch.ones(2, 3).long(), torch.ones(2, 3)),
        TypeError,
        "mask must be boolean with True = token, got torch.float32",
    ),
    "pairs": (
        lambda: training.info_nce(torch.ones(2, 3), torch.ones(3, 3)),
        ValueError,
        r"a and b must be \(B, D\), got \(2, 3\) and \(3, 3\)",
    ),
    "temperature": (
        lambda: training.info_nce(torch.ones(2, 3), torch.ones(2, 3), temperature=0),
        ValueError,
        "temperature must be finite and above 0, got 0",
    ),
    "teacher of another size": (
        lambda: training.distillation(torch.ones(2, 3), torch.ones(2, 4)),
        ValueError,
        r"teacher must have shape the student's = \(2, 3\), got \(2, 4\)",
    ),
    "all special": (
        lambda: training.mask_tokens(
            torch.zeros(1, 2).long(), mask_id=2, vocab_size=3, special=(0, 1)
        ),
        ValueError,
        "special must leave an ordinary token",
    ),
    "token out of the vocabulary": (
        lambda: training.mask_tokens(torch.full((1, 2), 7), mask_id=2, vocab_size=3),
        ValueError,
        "tokens must be from 0 to 2, got 7 to 7",
    ),
    "few sentinels": (
        lambda: training.corrupt_spans(range(20), sentinels=[90, 91], share=0.5),
        ValueError,
        "sentinels must be 4 distinct tokens that do not occur",
    ),
    "sentinels that occur": (
        lambda: training.corrupt_spans(range(20), sentinels=[3, 91]),
        ValueError,
        "that do not occur",
    ),
    "short spans": (
        lambda: training.corrupt_spans(range(20), sentinels=[90, 91], mean_length=0.5),
        ValueError,
        "mean_length must be at least 1, got 0.5",
    ),
    "a tensor": (
        lambda: training.rotate(torch.ones(3).long()),
        TypeError,
        "tokens must be a list of integers",
    ),
    "text": (lambda: training.infill("abc", mask_id=1), TypeError, "tokens must be a list of int"),
    "nothing": (lambda: training.rotate([]), ValueError, "tokens must hold at least 1 tokens"),
    "all deleted": (
        lambda: training.delete_tokens([1], share=1.0),
        ValueError,
        "share must be from 0 up to below 1, got 1.0",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


def test_a_loss_of_guessing_is_the_logarithm_of_the_choices():
    loss = cross_entropy(torch.zeros(B, N, V), ids(B, N), label_smoothing=0.3)
    assert loss.item() == pytest.approx(math.log(V))
