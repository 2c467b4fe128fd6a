"""The exercises of chapter 11 on a step: how long it is, and where it goes."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_plain, numbers, parts

# noam-factor ------------------------------------------------------------------------------------


def noam(step: int, d_model: int, warmup: int) -> float:
    """Return the learning rate of the Transformer paper, d^−½ · min(s^−½, s · w^−1.5).

    The loop counts its steps from 0, and s is that count; but step 0 counts as s = 1, since the
    power of 0 does not exist and a step with learning rate 0 would be wasted.

    step: from 0. d_model: d. warmup: w, the steps of the rise.
    Returns: the learning rate, a float.
    """
    ...


def _noam(s: float, d: float, w: float) -> float:
    return d**-0.5 * min(s**-0.5, s * w**-1.5)


def _noam_slips(s: int, d: int, w: int) -> dict[str, float]:
    return {
        "This is d^-½ times the larger branch. The smaller one is wanted: before s = w that is "
        "the rise, s · w^-1.5, after it the fall.": d**-0.5 * max(s**-0.5, s * w**-1.5),
        "The factor d^-½ is missing.": min(s**-0.5, s * w**-1.5),
        "The factor is d^½. A wider model takes smaller steps: d^-½.":
            d**0.5 * min(s**-0.5, s * w**-1.5),
        "The factor is 1/d. It is 1/√d.": min(s**-0.5, s * w**-1.5) / d,
        "The rise is s / w. It is s · w^-1.5, so that both branches meet at s = w.":
            d**-0.5 * min(s**-0.5, s / w),
        "The rise is s / √w. It is s · w^-1.5, so that both branches meet at s = w.":
            d**-0.5 * min(s**-0.5, s / w**0.5),
        "The fall is 1/s. It is 1/√s.": d**-0.5 * min(1 / s, s * w**-1.5),
        "s is one too large. Only step 0 counts as 1, all others as what they are.":
            _noam(s + 1, d, w),
        "d_model and warmup are exchanged.": _noam(s, w, d),
        "The sum of the two was taken. The smaller one is wanted, `min`.":
            d**-0.5 * (s**-0.5 + s * w**-1.5),
    }


def _noam_rise(rate: Any) -> None:
    """Until the warm-up ends, the learning rate rises along a line."""
    for step in (2, 10, 20):
        expect_plain(
            rate, {"step": step, "d_model": 96, "warmup": 40}, _noam(step, 96, 40),
            f"At step {step} of a warm-up of 40 the learning rate is d^-½ · s · w^-1.5.",
            mistakes=_noam_slips(step, 96, 40),
        )


def _noam_fall(rate: Any) -> None:
    """After the warm-up it falls like 1/√s."""
    for step in (90, 4000):
        expect_plain(
            rate, {"step": step, "d_model": 96, "warmup": 40}, _noam(step, 96, 40),
            f"At step {step}, after a warm-up of 40, the learning rate is d^-½ · s^-½.",
            mistakes={
                "The learning rate stays after the warm-up. It falls like 1/√s.": (96 * 40) ** -0.5,
                "The learning rate goes on rising: the smaller of the two branches is wanted.":
                    96**-0.5 * step * 40**-1.5,
                **_noam_slips(step, 96, 40),
            },
        )


def _noam_start(rate: Any) -> None:
    """Step 0 counts as 1."""
    for d, w in ((64, 40), (512, 4000)):
        expect_plain(
            rate, {"step": 0, "d_model": d, "warmup": w}, _noam(1, d, w),
            "Step 0 has the learning rate of step 1.",
            mistakes={"The first step has the learning rate 0, so it is wasted. Count it as 1.":
                      0.0},
        )


def _noam_peak(rate: Any) -> None:
    """At the end of the warm-up stands the peak, 1 / √(d · w)."""
    for d, w in ((512, 4000), (128, 7), (33, 1)):
        for step in (w, 1, 2, w + 1):
            expect_plain(
                rate, {"step": step, "d_model": d, "warmup": w}, _noam(step, d, w),
                f"With d = {d} and w = {w} the learning rate at step {step} differs.",
            )


NOAM_FACTOR = Exercise(
    name="noam-factor",
    title="The learning rate of 2017",
    level=1,
    section='chapters/11_training_deeper, section "The learning rate over time"',
    stub=noam,
    properties=(_noam_rise, _noam_fall, _noam_start, _noam_peak),
    hints=(
        "Which of the two branches is the smaller one before s = w, and which after it?",
        "`0 ** -0.5` raises an error. What is s when step is 0?",
        "`s = max(step, 1)`; `d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)`.",
    ),
)

# adamw-step -------------------------------------------------------------------------------------


def adamw_step(
    weight: torch.Tensor, gradient: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int,
    lr: float, betas: tuple[float, float], eps: float, decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take one step of AdamW.

    m and v are running means of the gradient and of its square. As both began with 0, they are
    divided by 1 − β₁ᵗ and 1 − β₂ᵗ, t the number of the step, before they are used. The weight moves
    by −η (m̂ / (√v̂ + ε) + λ w), w being the weight before the step.

    weight: any shape. gradient: the same shape. m: the mean before this step. v: likewise. step: t,
    from 1. lr: η. betas: β₁ and β₂. eps: ε. decay: λ.
    Returns: the new weight, the new m, and the new v.
    """
    ...


ADAM_NAMES = ("weight", "m", "v")


def _adamw(
    w: Any, g: Any, m: Any, v: Any, t: int, lr: float, betas: tuple[float, float], eps: float,
    decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    move = (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)) ** 0.5 + eps)
    return w - lr * (move + decay * w), m, v


def _adam_case(*shape: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Return weights, gradients that are not 0, and means as they could be."""
    w, g, m = (numbers(*shape, seed=seed + i) for i in range(3))
    return w, g + torch.where(g < 0, -0.5, 0.5), m / 2, numbers(*shape, seed=seed + 3) ** 2 + 0.1


def _adam_means(take: Any) -> None:
    """Both means move a little towards the new gradient."""
    w, g, m, v = _adam_case(3, seed=511)
    case = (w, g, m, v, 4, 0.1, (0.9, 0.8), 0.01, 0.5)
    right = _adamw(*case)
    got = parts(take(*case), *ADAM_NAMES)
    decayed = g + 0.5 * w
    expect(
        got[1], right[1], "m becomes β₁ m + (1 - β₁) g.", what="The new m",
        mistakes={
            "β₁ and 1 - β₁ are exchanged: the mean keeps most of what it was.": 0.1 * m + 0.9 * g,
            "m keeps β₁ of itself, but the whole gradient was added. Add 1 - β₁ of it.":
                0.9 * m + g,
            "m is a running sum. It keeps β₁ of what it was.": (m + g, m + 0.1 * g),
            "Weight decay was added to the gradient. That is L2, where the decay is divided by √v̂ "
            "too; in AdamW it stays out of both means.": 0.9 * m + 0.1 * decayed,
            "m came back corrected. Only the step uses m̂; the next step needs m itself.":
                right[1] / (1 - 0.9**4),
            "m came back as it was.": m,
            "β₂ was used for m.": 0.8 * m + 0.2 * g,
            "The results are in another order: weight, m, v.": (right[0], right[2]),
        },
    )
    expect(
        got[2], right[2], "v becomes β₂ v + (1 - β₂) g².", what="The new v",
        mistakes={
            "v is the mean of the gradient itself. It is that of its square.": 0.8 * v + 0.2 * g,
            "v is the mean of the gradient's absolute value. It is that of its square.":
                0.8 * v + 0.2 * g.abs(),
            "v is the mean of m². It is that of the gradient's square.":
                0.8 * v + 0.2 * right[1] ** 2,
            "β₂ and 1 - β₂ are exchanged: the mean keeps most of what it was.":
                0.2 * v + 0.8 * g**2,
            "v is a running sum of squares. It keeps β₂ of what it was.":
                (v + g**2, 0.8 * v + g**2),
            "Weight decay was added to the gradient. That is L2.": 0.8 * v + 0.2 * decayed**2,
            "v came back corrected. Only the step uses v̂; the next step needs v itself.":
                right[2] / (1 - 0.8**4),
            "β₁ was used for v.": 0.9 * v + 0.1 * g**2,
            "v came back as it was.": v,
        },
    )


def _adam_move(take: Any) -> None:
    """Without decay the weight moves by −η m̂ / (√v̂ + ε)."""
    w, g, m, v = _adam_case(3, seed=517)
    case = (w, g, m, v, 3, 0.1, (0.9, 0.7), 0.2, 0.0)
    right, new_m, new_v = _adamw(*case)
    m_hat, v_hat = new_m / (1 - 0.9**3), new_v / (1 - 0.7**3)
    late = (new_m / (1 - 0.9**2)) / ((new_v / (1 - 0.7**2)) ** 0.5 + 0.2)
    expect(
        parts(take(*case), *ADAM_NAMES)[0], right,
        "The weight should move by -η m̂ / (√v̂ + ε), with the new m and v.", what="The new weight",
        mistakes={
            "The step goes uphill: subtract it.": w + 0.1 * m_hat / (v_hat**0.5 + 0.2),
            "m and v were used without the correction: divide by 1 - βᵗ.":
                w - 0.1 * new_m / (new_v**0.5 + 0.2),
            "v was used without the correction: divide it by 1 - β₂ᵗ.":
                w - 0.1 * m_hat / (new_v**0.5 + 0.2),
            "m was used without the correction: divide it by 1 - β₁ᵗ.":
                w - 0.1 * new_m / (v_hat**0.5 + 0.2),
            "The correction divides by 1 - β in place of 1 - βᵗ.":
                w - 0.1 * (new_m / 0.1) / ((new_v / 0.3) ** 0.5 + 0.2),
            "The correction is one step off: t is `step`, which counts from 1.":
                (w - 0.1 * late,
                 w - 0.1 * (new_m / (1 - 0.9**4)) / ((new_v / (1 - 0.7**4)) ** 0.5 + 0.2)),
            "ε stands under the root. It is added to √v̂.": w - 0.1 * m_hat / (v_hat + 0.2) ** 0.5,
            "The root is missing: divide by √v̂.": w - 0.1 * m_hat / (v_hat + 0.2),
            "ε is missing.": w - 0.1 * m_hat / v_hat**0.5,
            "The gradient itself was divided by √v̂. The step goes along its mean, m̂.":
                w - 0.1 * g / (v_hat**0.5 + 0.2),
            "The means from before the step were used. The new gradient joins them first.":
                w - 0.1 * (m / (1 - 0.9**3)) / ((v / (1 - 0.7**3)) ** 0.5 + 0.2),
            "The learning rate is missing.": w - m_hat / (v_hat**0.5 + 0.2),
            "This is the change. Return the weight after it.": -0.1 * m_hat / (v_hat**0.5 + 0.2),
        },
    )


def _adam_decay(take: Any) -> None:
    """The decay is η λ w, whatever the gradient is."""
    w, g, m, v = _adam_case(3, seed=523)
    case = (w, 10 * g, m, v, 2, 0.2, (0.9, 0.8), 0.01, 0.6)
    right = _adamw(*case)[0]
    moved = _adamw(*case[:-1], 0.0)[0]
    expect(
        parts(take(*case), *ADAM_NAMES)[0], right,
        "Besides Adam's step the weight shrinks by η λ w.", what="The new weight",
        mistakes={
            "The weight does not decay.": moved,
            "Weight decay was added to the gradient and divided by √v̂ like the rest: that is L2. "
            "Where gradients are large it hardly shrinks the weight.":
                _adamw(w, 10 * g + 0.6 * w, *case[2:-1], 0.0)[0],
            "The decay lacks the learning rate: it is η λ w.": moved - 0.6 * w,
            "The decay shrinks the weight after the step. λ w is that of the weight before it.":
                moved * (1 - 0.2 * 0.6),
            "The decay makes the weight grow: subtract it.": moved + 0.2 * 0.6 * w,
            "The decay is a constant pull, as from the sum of |w|. It is λ w.":
                moved - 0.2 * 0.6 * w.sign(),
            "The decay has a factor of 2. It is η λ w.": moved - 2 * 0.2 * 0.6 * w,
        },
    )


def _adam_run(take: Any) -> None:
    """Over many steps, for any shape, the path is AdamW's."""
    for shape in ((), (2, 3, 5)):
        w, g, _, _ = _adam_case(*shape, seed=531)
        m = v = torch.zeros_like(w)
        for t in range(1, 7):
            case = (w, g * (1.5 - t / 3), m, v, t, 0.05, (0.9, 0.999), 1e-8, 0.1)
            right = _adamw(*case)
            for got, want, name in zip(parts(take(*case), *ADAM_NAMES), right, ADAM_NAMES,
                                       strict=True):
                expect(got, want, f"At step {t}, with shape {shape}, {name} differs.",
                       what=f"At step {t}, {name}")
            w, m, v = right


ADAMW_STEP = Exercise(
    name="adamw-step",
    title="A step of AdamW",
    level=2,
    section='chapters/11_training, section "A step for every weight: Adam"',
    stub=adamw_step,
    properties=(_adam_means, _adam_move, _adam_decay, _adam_run),
    warm=("torch._dynamo",),  # loaded by the first optimizer of PyTorch, in seconds
    hints=(
        "Four lines: m, v, what is added because of the gradient, what is added because of the "
        "weight. The last two do not meet before the subtraction.",
        "m̂ and v̂ are for this step alone: m and v go back as they are. `m * b + g * (1 - b)` makes "
        "a new tensor, `m.mul_(b)` would change the caller's.",
        "Try it on paper: at step 1 with a weight of 1, a gradient of 0.5, lr = 0.01 and decay = "
        "0.1, m̂ / √v̂ is 1. Where must the weight be?",
    ),
)

EXERCISES = (NOAM_FACTOR, ADAMW_STEP)
