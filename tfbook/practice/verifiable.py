"""Rewards that a program can check: GRPO on the model's own answers, and distillation on them.

A group of answers to each question is sampled and checked. What is better than its group becomes
likelier. There is no second network that guesses a baseline: the group's mean is one.

Explained in: chapters/18_practice, section "Learning from a checker".
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_callable,
    check_choice,
    check_float,
    check_generator,
    check_list,
    check_module,
    check_number,
    check_same,
    check_shape,
)
from tfbook.data import char_tokenizer, seeded
from tfbook.generation import Sampling, generate, read_prompts
from tfbook.practice.finetuning import answer_batch
from tfbook.practice.preference import reference_drift, token_log_probs
from tfbook.training import IGNORE, evaluating

__all__ = [
    "FORMS",
    "Rollout",
    "Sampler",
    "arithmetic_tokenizer",
    "check_sum",
    "on_policy_distillation",
    "group_advantages",
    "grpo_loss",
    "k3",
    "rollout_loss",
    "sample_rollout",
    "sums",
]

FORMS = ("first", "corrected")
EPS = 1e-4


class Rollout(NamedTuple):
    """Answers that a model gave, and what they were worth.

    Attributes:
        inputs: tokens (B, N).
        targets: the tokens that were drawn, (B, N), IGNORE elsewhere.
        old: ln p of each of them when it was drawn, (B, N), 0 elsewhere.
        rewards: (B,).
        advantages: (B,).

    Explained in: chapters/18_practice, section "Learning from a checker".
    """

    inputs: Int[Tensor, "B N"]
    targets: Int[Tensor, "B N"]
    old: Float[Tensor, "B N"]
    rewards: Float[Tensor, " B"]
    advantages: Float[Tensor, " B"]


def sums(
    n: int, *, largest: int = 9, generator: torch.Generator | None = None
) -> list[tuple[str, str]]:
    """Draw questions such as "3+8=" with their answers, "11".

    Args:
        n: how many.
        largest: the largest number that is added, from 0.
        generator: source of randomness.

    Returns:
        Pairs of question and answer.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of its range.

    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    check_number("n", n, 1, 10**7, whole=True)
    check_number("largest", largest, 1, 10**12, whole=True)
    check_generator(generator)
    drawn = torch.randint(largest + 1, (n, 2), generator=generator).tolist()
    return [(f"{a}+{b}=", str(a + b)) for a, b in drawn]


def arithmetic_tokenizer() -> Tokenizer:
    r"""Return the tokenizer of sums: ten digits, "+", "=" and the new line that ends an answer.

    Example:
        >>> arithmetic_tokenizer().encode("3+8=11\n").ids
        [5, 1, 10, 12, 3, 3, 0]

    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    return char_tokenizer("0123456789+=\n")


def check_sum(question: str, answer: str) -> float:
    r"""Return 1 if an answer is right and ends there, else 0.

    Args:
        question: such as "3+8=".
        answer: what a model wrote, the new line that ends it included.

    Raises:
        TypeError: if one is no text.
        ValueError: if the question is no sum.

    Example:
        >>> check_sum("3+8=", "11\n"), check_sum("3+8=", "11"), check_sum("3+8=", "011\n")
        (1.0, 0.0, 0.0)

    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    for name, text in (("question", question), ("answer", answer)):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string, got {type(text).__name__}")
    parts = question.removesuffix("=").split("+")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"question must be a sum such as '3+8=', got {question!r:.40}")
    return float(answer == f"{int(parts[0]) + int(parts[1])}\n")


def group_advantages(
    rewards: Float[Tensor, "P G"], *, by_std: bool = False
) -> Float[Tensor, "P G"]:
    """Return by how much each answer is better than its group: A = r − mean, perhaps over std.

    Dividing by the standard deviation, as GRPO first did, blows up the questions that nearly
    everyone answers alike, the very easy and the very hard ones. In a group of equal rewards
    nothing is better, and A is 0.

    Args:
        rewards: G answers to each of P questions, (P, G).
        by_std: whether to divide by the group's standard deviation (+ 10⁻⁴).

    Returns:
        (P, G), rows with mean 0.

    Raises:
        TypeError: for a wrong type.
        ValueError: for another shape, groups of one, or rewards that are not finite.

    Source: [shao2024deepseekmath], without the deviation: [liu2025understanding]
    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    check_float("rewards", rewards)
    check_bool("by_std", by_std)
    if rewards.ndim != 2 or rewards.shape[1] < 2 or not len(rewards):
        raise ValueError(f"rewards must have shape (P, G) with G ≥ 2, got {tuple(rewards.shape)}")
    if not rewards.isfinite().all():
        raise ValueError("rewards must be finite, got inf or nan")
    better = rewards - rewards.mean(1, keepdim=True)
    return better / (rewards.std(1, keepdim=True) + EPS) if by_std else better


def k3(log_probs: Float[Tensor, "*B"], reference: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Estimate KL(π ‖ π_ref) of one drawn token: e^d − d − 1, d = ln π_ref − ln π.

    Its mean over tokens drawn from π is the divergence, as that of −d is; but it is never below 0,
    and where the two are close it varies far less.

    Args:
        log_probs: ln π of what was drawn from π, (...).
        reference: ln π_ref of the same, (...); no gradient goes there.

    Returns:
        (...).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that differ.

    Source: [schulman2020approximating]
    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    check_float("log_probs", log_probs)
    check_float("reference", reference)
    check_shape("reference", reference, log_probs.shape, "that of log_probs")
    check_same(log_probs=log_probs, reference=reference)
    d = reference.detach() - log_probs
    return d.exp() - d - 1


def grpo_loss(
    log_probs: Float[Tensor, "B N"],
    rollout: Rollout,
    *,
    form: str = "corrected",
    clip: tuple[float, float] = (0.2, 0.2),
    length: int | None = None,
    reference: Float[Tensor, "B N"] | None = None,
    kl_weight: float = 0.0,
) -> Float[Tensor, ""]:
    """Return what makes better answers likelier, in the first form or the corrected one.

    Each drawn token has ℓ = min(ρ A, clip(ρ, 1 − a, 1 + b) A) − w k3, ρ = π / π_old. The first form
    takes the mean of each answer and then of all, −1/B Σ_i 1/|o_i| Σ_t ℓ: a wrong answer is
    punished less for each token the longer it is, so wrong answers grow. The corrected form divides
    every sum by one constant, −1/(B · L) Σ_i Σ_t ℓ, whatever the answers' lengths.

    Args:
        log_probs: ln π of the drawn tokens now, (B, N).
        rollout: which tokens were drawn, with what probability and advantage. For the first form
            advantages are divided by the deviation, see :func:`group_advantages`.
        form: "first" or "corrected".
        clip: a and b: beyond 1 − a and 1 + b a ratio gains nothing more.
        length: L, the longest answer allowed, so that it is the same in all batches; when omitted
            the columns of this one. The first form has no use for it.
        reference: ln π_ref of the same tokens, (B, N); needed with ``kl_weight``.
        kl_weight: w.

    Returns:
        One number; its value means little, its gradient is what counts.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that do not fit, an unknown form, or a number out of its range.

    Source: [shao2024deepseekmath], corrected: [liu2025understanding], ratio: [schulman2017proximal]
    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    _check_rollout(rollout)
    check_float("log_probs", log_probs)
    check_shape("log_probs", log_probs, rollout.targets.shape, "that of the rollout's targets")
    check_choice("form", form, FORMS)
    if not isinstance(clip, tuple | list) or len(clip) != 2:
        raise TypeError(f"clip must be two numbers, got {clip!r:.40}")
    check_number("clip[0]", clip[0], 0, 1)
    check_number("clip[1]", clip[1], 0)
    check_number("kl_weight", kl_weight, 0, 1e18)
    length = rollout.targets.shape[1] if length is None else length
    check_number("length", length, 1, 2**40, whole=True)
    drawn = rollout.targets != IGNORE  # (B, N)
    ratio = (log_probs - rollout.old).exp()  # ρ, and 1 where nothing was drawn
    gain = rollout.advantages[:, None].to(log_probs.dtype)  # (B, 1)
    each = torch.minimum(ratio * gain, ratio.clamp(1 - clip[0], 1 + clip[1]) * gain)
    if kl_weight:
        if reference is None:
            raise ValueError("kl_weight needs reference=, the log-probabilities to stay near to")
        each = each - kl_weight * k3(log_probs, reference)
    each = each.masked_fill(~drawn, 0.0)
    if form == "first":
        return -(each.sum(1) / drawn.sum(1).clamp(min=1)).mean()
    return -each.sum() / (len(each) * length)


def rollout_loss(
    model: Callable[[Tensor], tuple[Tensor, object]],
    rollout: Rollout,
    *,
    form: str = "corrected",
    clip: tuple[float, float] = (0.2, 0.2),
    length: int | None = None,
    reference: Callable[[Tensor], tuple[Tensor, object]] | None = None,
    kl_weight: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the loss of a model on a rollout, for :func:`tfbook.training.fit`.

    Args:
        model: the policy, like :class:`tfbook.models.DecoderOnly`.
        rollout: of :func:`sample_rollout`.
        form: see :func:`grpo_loss`.
        clip: see :func:`grpo_loss`.
        length: see :func:`grpo_loss`.
        reference: a model to stay near to; needed with ``kl_weight``.
        kl_weight: see :func:`grpo_loss`.

    Raises:
        TypeError: for a wrong type.
        ValueError: as :func:`grpo_loss`.

    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    _check_rollout(rollout)
    check_callable("model", model)
    log_probs, near = token_log_probs(model(rollout.inputs)[0], rollout.targets), None
    if reference is not None:
        check_callable("reference", reference)
        with torch.no_grad():
            near = token_log_probs(reference(rollout.inputs)[0], rollout.targets)
    choices = {"form": form, "clip": clip, "length": length}
    return grpo_loss(log_probs, rollout, reference=near, kl_weight=kl_weight, **choices)


@torch.no_grad()
def sample_rollout(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    reward: Callable[[int, list[int]], float],
    *,
    group: int,
    max_new_tokens: int,
    stop: Sequence[int] = (),
    by_std: bool = False,
    seed: int = 0,
) -> Rollout:
    """Let a model answer each question several times, and have the answers checked.

    Args:
        model: a decoder of this package; its mode is as before afterwards.
        prompts: ids of P questions.
        reward: of the number of a question and the new ids, the stop included.
        group: G, answers to each question.
        max_new_tokens: how long an answer may be.
        stop: ids that end one.
        by_std: see :func:`group_advantages`.
        seed: of the draws.

    Returns:
        P · G answers, those to one question one after the other.

    Raises:
        TypeError: for a wrong type, or a reward that is no number.
        ValueError: for groups of one, or prompts that generation refuses.

    Cost: P · G answers generated, and one forward pass over all of them.

    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    check_module("model", model)
    prompts = read_prompts(prompts, name="prompts")
    check_list("stop", stop)
    check_callable("reward", reward)
    check_number("group", group, 2, 2**20, whole=True)
    check_number("max_new_tokens", max_new_tokens, 1, 2**20, whole=True)
    check_number("seed", seed, 0, 2**62, whole=True)
    many = [list(prompt) for prompt in prompts for _ in range(group)]
    with evaluating(model):
        written = generate(
            model,
            many,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(),
            stop=list(stop) or None,
            seed=seed,
        ).tokens
        found = [reward(i // group, new) for i, new in enumerate(written)]
        for value in found:
            check_number("what reward returns", value)
        pairs = [(old + new, len(old)) for old, new in zip(many, written, strict=True)]
        device = next(model.parameters()).device
        inputs, targets = (x.to(device) for x in answer_batch(pairs))
        old = token_log_probs(model(inputs)[0], targets)
    rewards = torch.tensor(found, dtype=old.dtype, device=device)  # (P · G,)
    better = group_advantages(rewards.view(-1, group), by_std=by_std).flatten()
    return Rollout(inputs, targets, old, rewards, better)


class Sampler:
    """Rollouts of a model while it learns, as batches for :func:`tfbook.training.fit`.

    Batch i is a rollout of the model as it is then, on questions that i decides; each rollout
    serves ``inner`` steps, in which the ratio ρ leaves 1.

    Args:
        model: the one that is trained.
        questions: texts to draw from.
        reward: of a question and an answer, both as texts.
        tokenizer: of both.
        batch: questions of a rollout.
        group: answers to each.
        max_new_tokens: how long an answer may be.
        stop: the id that ends one.
        inner: steps on each rollout.
        by_std: see :func:`group_advantages`.
        seed: of everything that is drawn.

    Attributes:
        rewards: the mean reward of each rollout so far.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of its range, or no questions.

    Explained in: chapters/18_practice, section "Learning from a checker".
    """

    def __init__(
        self,
        model: nn.Module,
        questions: Sequence[str],
        reward: Callable[[str, str], float],
        *,
        tokenizer: Tokenizer,
        batch: int,
        group: int,
        max_new_tokens: int,
        stop: int,
        inner: int = 1,
        by_std: bool = False,
        seed: int = 0,
    ):
        """Keep all of it."""
        check_module("model", model)
        check_list("questions", questions)
        check_callable("reward", reward)
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"tokenizer must be a Tokenizer, got {type(tokenizer).__name__}")
        for name, value in (("batch", batch), ("inner", inner)):
            check_number(name, value, 1, 2**20, whole=True)
        check_number("stop", stop, 0, whole=True)
        if not len(questions):
            raise ValueError("questions must hold at least one, got none")
        self.model, self.questions, self.reward = model, list(questions), reward
        self.tokenizer, self.batch, self.inner, self.seed = tokenizer, batch, inner, seed
        self.choices = {"group": group, "max_new_tokens": max_new_tokens, "stop": [stop]}
        self.choices["by_std"] = by_std
        self.rewards, self._last = [], None

    def __call__(self, number: int) -> Rollout:
        """Return the rollout for a step."""
        if self._last is None or number % self.inner == 0:
            self._last = self._draw(number)
            self.rewards.append(self._last.rewards.mean().item())
        return self._last

    def _draw(self, number: int) -> Rollout:
        generator = seeded(self.seed, number)
        chosen = torch.randint(len(self.questions), (self.batch,), generator=generator).tolist()
        asked = [self.questions[i] for i in chosen]
        prompts = [self.tokenizer.encode(text).ids for text in asked]

        def reward(i, new):
            return self.reward(asked[i], self.tokenizer.decode(new))

        seed = int(torch.randint(2**40, (), generator=generator))
        return sample_rollout(self.model, prompts, reward, seed=seed, **self.choices)


def on_policy_distillation(
    model: Callable[[Tensor], tuple[Tensor, object]],
    rollout: Rollout,
    *,
    teacher: Callable[[Tensor], tuple[Tensor, object]],
) -> Float[Tensor, ""]:
    """Bring a student to its teacher where the student itself goes: mean KL(student ‖ teacher).

    The texts are the student's, so it learns to come back from its own mistakes, which a teacher's
    texts never show. The divergence is taken at each drawn token over the whole vocabulary; what
    was drawn gets no gradient.

    Args:
        model: the student.
        rollout: its answers; rewards do not matter.
        teacher: a decoder with the same vocabulary.

    Returns:
        Nats a token.

    Raises:
        TypeError: for a wrong type.
        ValueError: for vocabularies that differ.

    Source: [agarwal2024policy]
    Explained in: chapters/18_practice, section "Learning from a checker".
    """
    _check_rollout(rollout)
    check_callable("model", model)
    check_callable("teacher", teacher)
    with torch.no_grad():
        wanted = teacher(rollout.inputs)[0]
    return reference_drift(model(rollout.inputs)[0], wanted, rollout.targets != IGNORE)


def _check_rollout(rollout: object) -> None:
    if not isinstance(rollout, Rollout):
        raise TypeError(f"rollout must be a Rollout, got {type(rollout).__name__}")
    for name in ("old", "rewards", "advantages"):
        check_float(f"rollout.{name}", getattr(rollout, name))
    check_shape("rollout.old", rollout.old, rollout.targets.shape, "that of its targets")
    check_shape("rollout.advantages", rollout.advantages, (len(rollout.targets),), "(B,)")
