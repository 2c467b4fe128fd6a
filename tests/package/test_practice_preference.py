"""Preferences, checked rewards, several answers, intervals: against sums and enumerations."""

import copy
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from practice_kit import DOUBLE, KIT, checks, close, decoder, ids, normal, trained
from torch import nn

NO = -100


@pytest.fixture
def kit():
    return KIT


def adam(rate):
    return lambda model: torch.optim.Adam(model.parameters(), rate)


def targets(*rows):
    return torch.tensor(rows)


# preferences


def test_the_log_probability_of_an_answer_is_a_sum_of_its_tokens(kit):
    logits = normal(2, 3, 5)
    asked = targets([NO, 4, 2], [1, NO, NO])
    p = logits.softmax(-1)
    got = kit.sequence_log_probs(logits, asked)
    close(got, torch.stack([(p[0, 1, 4] * p[0, 2, 2]).log(), p[1, 0, 1].log()]))
    each = kit.token_log_probs(logits, asked)
    assert ((each == 0) == (asked == NO)).all()
    close(kit.sequence_log_probs(logits, torch.full((2, 3), NO)), torch.zeros(2, dtype=DOUBLE))


def test_the_log_probability_of_a_sequence_is_that_of_generation(kit):
    model, tokens = decoder(kit), ids(2, 7)
    got = kit.token_log_probs(model(tokens[:, :-1])[0], tokens[:, 1:])
    close(got.detach(), kit.generation.score(model, tokens), 1e-5)


def test_dpo_is_its_formula(kit):
    a, b, c, d = (normal(5, seed=i) for i in range(4))
    for beta, eps in ((0.1, 0.0), (0.7, 0.2)):
        found = kit.dpo_loss(a, b, c, d, beta=beta, label_smoothing=eps)
        h = beta * ((a - c) - (b - d))
        wanted = -((1 - eps) * h.sigmoid().log() + eps * (-h).sigmoid().log()).mean()
        close(found.loss, wanted)
        close(found.chosen - found.rejected, h)


def test_the_gradient_of_dpo_is_that_of_the_paper(kit):
    a, b, c, d = (normal(5, seed=i).requires_grad_() for i in range(4))
    kit.dpo_loss(a, b, c, d, beta=0.3).loss.backward()
    h = 0.3 * ((a - c) - (b - d)).detach()
    weight = 0.3 * (-h).sigmoid() / 5  # β σ(−h), of a mean of five
    close(a.grad, -weight)
    close(b.grad, weight)
    assert c.grad is None and d.grad is None
    assert torch.autograd.gradcheck(
        lambda x, y: kit.dpo_loss(x, y, c.detach(), d.detach(), label_smoothing=0.1).loss,
        (a.detach().requires_grad_(), b.detach().requires_grad_()),
    )


def test_a_pair_far_apart_has_no_infinite_loss(kit):
    far = torch.tensor([1e6], dtype=DOUBLE)
    zero = torch.zeros(1, dtype=DOUBLE)
    assert kit.dpo_loss(far, zero, zero, zero).loss == 0
    assert kit.dpo_loss(zero, far, zero, zero).loss == pytest.approx(1e5)
    assert kit.bradley_terry_loss(far, zero) == 0


def test_dpo_trains_the_policy_and_leaves_the_reference(kit):
    model = decoder(kit)
    reference = copy.deepcopy(model)
    kit.add_lora(model, 2)
    question = [1, 2, 3]
    pair = tuple(kit.answer_batch([(question + new, 3)]) for new in ([4, 5, 6], [7, 8, 9]))

    def loss(model, batch):
        return kit.preference_loss(model, batch, reference=reference)

    assert loss(model, pair)[0].item() == pytest.approx(math.log(2), abs=1e-5)
    fit = {"steps": 25, "progress": False, "loss": loss}
    found = kit.training.fit(model, [pair], optimizer=lambda m: torch.optim.Adam(
        [p for p in m.parameters() if p.requires_grad], 0.02), **fit)  # fmt: skip
    assert found.losses[-1] < 0.5 * found.losses[0]
    own, theirs = (
        kit.sequence_log_probs(m(each.inputs)[0], each.targets).item()
        for m in (model, reference) for each in pair[:1]
    )  # fmt: skip
    assert own > theirs
    logits = [m(pair[0].inputs)[0].detach() for m in (model, reference)]
    assert kit.reference_drift(*logits) > 0.01


def test_drift_is_the_divergence_of_each_counted_token(kit):
    p, q = normal(2, 3, 5), normal(2, 3, 5, seed=1)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    each = torch.tensor([
        [sum(a * math.log(a / b) for a, b in zip(x.softmax(-1).tolist(), y.softmax(-1).tolist(),
                                                 strict=True)) for x, y in zip(*rows, strict=True)]
        for rows in zip(p, q, strict=True)], dtype=DOUBLE)  # fmt: skip
    close(kit.reference_drift(p, q, mask), each[mask].mean())
    close(kit.reference_drift(p, q), each.mean())
    close(kit.reference_drift(p, p + 3.0), torch.zeros((), dtype=DOUBLE))


def test_a_reward_is_that_of_the_last_token_and_learns_comparisons(kit):
    model = kit.RewardModel(decoder(kit))
    tokens = ids(2, 7)
    mask = torch.arange(7) < torch.tensor([[5], [7]])
    assert (model(tokens, mask) == 0).all()
    trained(model.reward)
    alone = model(tokens[:1, :5])
    close(model(tokens, mask)[:1], alone, 1e-5)
    hidden = model.model.stack.finish(model.model.hidden_states(tokens)[-1])
    close(model(tokens), hidden[:, -1] @ model.reward.weight[0], 1e-6)
    other = tokens.clone()
    other[:, -1] += 1 - 2 * (other[:, -1] > 0).long()

    def loss(model, pair):
        return kit.bradley_terry_loss(model(pair[0]), model(pair[1]))

    found = kit.training.fit(model, [(tokens, other)], loss=loss, steps=30, progress=False,
                             optimizer=adam(0.01))  # fmt: skip
    assert (model(tokens) > model(other)).all() and found.losses[-1] < 0.2


def test_strengths_that_made_the_comparisons_have_the_smallest_loss(kit):
    strength = torch.tensor([0.0, 0.7, -1.1], dtype=DOUBLE)
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]

    def expected(r):
        return sum(torch.sigmoid(strength[i] - strength[j]) * kit.bradley_terry_loss(
            r[i : i + 1], r[j : j + 1]) for i, j in pairs)  # fmt: skip

    r = strength.clone().requires_grad_()
    (grad,) = torch.autograd.grad(expected(r), r)
    close(grad, torch.zeros(3, dtype=DOUBLE))
    close(kit.bradley_terry_loss(strength[:1], strength[1:2], margin=0.3),
          (1 + (strength[1] - strength[0] + 0.3).exp()).log())  # fmt: skip


# GRPO


def rollout(kit, rewards=((1.0, 0.0, 0.0), (1.0, 1.0, 0.0)), by_std=False, seed=0):
    """Return six answers of lengths 1 … 4 with known advantages."""
    lengths = [1, 4, 2, 3, 1, 2]
    rewards = torch.tensor(rewards, dtype=DOUBLE)
    asked = torch.full((6, 5), NO)
    for i, n in enumerate(lengths):
        asked[i, 1 : 1 + n] = torch.arange(n)
    drawn = asked != NO
    old = torch.where(drawn, -normal(6, 5, seed=seed).abs(), 0.0)
    better = kit.group_advantages(rewards, by_std=by_std).flatten()
    inputs = torch.zeros(6, 5, dtype=torch.long)
    return kit.Rollout(inputs, asked, old, rewards.flatten(), better)


def test_advantages_are_against_the_own_group(kit):
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]], dtype=DOUBLE)
    plain = kit.group_advantages(rewards)
    close(plain[0], torch.tensor([0.75, -0.25, -0.25, -0.25], dtype=DOUBLE))
    assert (plain[1] == 0).all()
    first = kit.group_advantages(rewards, by_std=True)
    close(first[0], plain[0] / (0.5 + 1e-4))  # of 1, 0, 0, 0 over n − 1
    assert (first[1] == 0).all()
    # What nearly everybody gets right is blown up by the deviation, and only by it.
    rare = torch.tensor([[1.0] * 15 + [0.0], [1.0] * 8 + [0.0] * 8], dtype=DOUBLE)
    gone = [kit.group_advantages(rare, by_std=each).abs().amax(1) for each in (True, False)]
    assert gone[0][0] > 3 * gone[0][1] and gone[1][0] < 2 * gone[1][1]


def by_hand(kit, now, made, form, clip, w, reference, length):
    """Sum up token by token, in Python."""
    total = 0.0
    for i in range(6):
        places = [t for t in range(5) if made.targets[i, t] != NO]
        part = 0.0
        for t in places:
            ratio = math.exp(now[i, t] - made.old[i, t])
            a = made.advantages[i].item()
            gain = min(ratio * a, min(max(ratio, 1 - clip[0]), 1 + clip[1]) * a)
            d = (reference[i, t] - now[i, t]).item()
            part += gain - w * (math.exp(d) - d - 1)
        total += part / (len(places) if form == "first" else length)
    return -total / 6


def test_both_forms_are_their_formulas(kit):
    now, near = -normal(6, 5, seed=4).abs(), -normal(6, 5, seed=5).abs()
    for form, clip, w, length in (
        ("first", (0.2, 0.2), 0.0, None), ("first", (0.1, 0.3), 0.5, None),
        ("corrected", (0.2, 0.2), 0.0, 4), ("corrected", (0.1, 0.3), 0.5, None),
    ):  # fmt: skip
        made = rollout(kit, by_std=form == "first")
        got = kit.grpo_loss(now, made, form=form, clip=clip, kl_weight=w, reference=near,
                            length=length)  # fmt: skip
        wanted = by_hand(kit, now, made, form, clip, w, near, length or 5)
        assert got.item() == pytest.approx(wanted, rel=1e-12)


def test_a_wrong_answer_pays_for_its_length_in_the_corrected_form_only(kit):
    made = rollout(kit)
    for form, alike in (("first", False), ("corrected", True)):
        now = made.old.clone().requires_grad_()
        kit.grpo_loss(now, made, form=form).backward()
        long, short = now.grad[1, 1], now.grad[2, 1]  # both wrong, of 4 and of 2 tokens
        assert long > 0 and short > 0
        assert (long == short) == alike
        if not alike:
            assert short == pytest.approx(2 * long.item())


def test_where_nothing_has_moved_the_gradient_is_that_of_reinforce(kit):
    made = rollout(kit)
    now = made.old.clone().requires_grad_()
    kit.grpo_loss(now, made).backward()
    drawn = made.targets != NO
    close(now.grad, -(made.advantages[:, None] * drawn) / (6 * 5))


def test_a_ratio_beyond_the_clip_gets_no_gradient_where_it_would_gain(kit):
    made = rollout(kit)
    for sign in (1, -1):
        moved = made.old + sign * 0.5 * (made.targets != NO)
        now = moved.clone().requires_grad_()
        kit.grpo_loss(now, made).backward()
        drawn = made.targets != NO
        gained = drawn & (made.advantages[:, None] * sign > 0)
        assert (now.grad[gained] == 0).all() and (now.grad[drawn & ~gained] != 0).all()


def test_k3_has_the_divergence_as_its_mean_and_varies_less(kit):
    p = normal(7).log_softmax(-1)
    q = (p + 0.2 * normal(7, seed=1)).log_softmax(-1)
    exact = (p.exp() * (p - q)).sum()
    each = kit.k3(p, q)
    close((p.exp() * each).sum(), exact)
    assert (each >= 0).all()
    k1 = p - q
    assert (p.exp() * (each - exact) ** 2).sum() < 0.1 * (p.exp() * (k1 - exact) ** 2).sum()
    assert (kit.k3(p, p) == 0).all()


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_sum_is_right_in_one_way_only(a, b):
    question = f"{a}+{b}="
    assert KIT.check_sum(question, f"{a + b}\n") == 1
    for wrong in (f"{a + b}", f"{a + b + 1}\n", f" {a + b}\n", f"0{a + b}\n", "", f"{a + b}\n\n"):
        assert KIT.check_sum(question, wrong) == 0


def arithmetic(kit, seed=0, n_layers=1):
    torch.manual_seed(seed)
    m = kit.models
    layer = m.Layer(m.Attention(2, position=m.Rotary(), bias=False),
                    m.FFN(32, "swiglu", bias=False), norm=m.Norm("rms"))  # fmt: skip
    return m.build(m.TransformerConfig(13, 16, decoder=[layer] * n_layers))


def test_a_rollout_holds_what_was_drawn_and_what_it_was_worth(kit):
    model, tokenizer = arithmetic(kit).train(), kit.arithmetic_tokenizer()
    prompts = [tokenizer.encode(q).ids for q in ("1+2=", "13+4=")]
    seen = []

    def reward(i, new):
        seen.append((i, new))
        return float(len(new))

    state = torch.get_rng_state()
    made = kit.sample_rollout(model, prompts, reward, group=3, max_new_tokens=4, stop=[0], seed=7)
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert [i for i, _ in seen] == [0, 0, 0, 1, 1, 1]
    assert made.rewards.tolist() == [len(new) for _, new in seen]
    for row, (i, new) in enumerate(seen):
        drawn = made.targets[row][made.targets[row] != NO].tolist()
        assert drawn == new
        whole = torch.tensor([prompts[i] + new])
        model.eval()
        scores = kit.generation.score(model, whole)[0, len(prompts[i]) - 1 :]
        close(made.old[row][made.targets[row] != NO], scores, 1e-4)
    close(made.advantages.view(2, 3), kit.group_advantages(made.rewards.view(2, 3)))
    again = kit.sample_rollout(model, prompts, reward, group=3, max_new_tokens=4, stop=[0], seed=7)
    assert torch.equal(again.targets, made.targets)


@pytest.mark.parametrize("form", ["first", "corrected"])
def test_sums_are_learned_from_a_checker_alone(kit, form):
    """Two questions that the model may answer by chance: rewards rise to nearly all."""
    model, tokenizer = arithmetic(kit), kit.arithmetic_tokenizer()
    questions = ["1+2=", "2+2="]
    sampler = kit.Sampler(
        model, questions, lambda q, text: kit.check_sum(q, text) + 0.2 * (text[:1] == "3"),
        tokenizer=tokenizer, batch=4, group=12, max_new_tokens=2, stop=0, inner=2,
        by_std=form == "first",
    )  # fmt: skip

    def loss(model, made):
        return kit.rollout_loss(model, made, form=form, length=2)

    kit.training.fit(model, sampler, loss=loss, steps=60, progress=False, clip=1.0,
                     optimizer=adam(0.02))  # fmt: skip
    assert len(sampler.rewards) == 30
    assert np.mean(sampler.rewards[-5:]) > 0.4 > 2 * np.mean(sampler.rewards[:3])


def test_a_rollout_serves_several_steps_and_follows_from_its_number(kit):
    model, tokenizer = arithmetic(kit), kit.arithmetic_tokenizer()
    given = {"tokenizer": tokenizer, "batch": 2, "group": 2, "max_new_tokens": 2, "stop": 0}
    sampler, other = (kit.Sampler(model, ["1+2=", "2+2="], kit.check_sum, inner=2, **given)
                      for _ in range(2))  # fmt: skip
    first, second, third = (sampler(i) for i in range(3))
    assert first is second and not torch.equal(first.targets, third.targets)
    assert torch.equal(other(2).targets, third.targets)


def test_a_student_comes_near_its_teacher_on_its_own_answers(kit):
    teacher, student, tokenizer = arithmetic(kit, 5), arithmetic(kit, 6), kit.arithmetic_tokenizer()
    sampler = kit.Sampler(student, ["1+2=", "5+2="], lambda q, text: 0.0, tokenizer=tokenizer,
                          batch=2, group=8, max_new_tokens=3, stop=0)  # fmt: skip
    made = sampler(0)
    logits = [m(made.inputs)[0] for m in (student, teacher)]
    drawn = made.targets != NO
    got = kit.on_policy_distillation(student, made, teacher=teacher)
    p, q = (x.log_softmax(-1)[drawn] for x in logits)
    close(got, (p.exp() * (p - q)).sum(-1).mean(), 1e-5)
    got.backward()
    assert all(p.grad is None for p in teacher.parameters())

    def loss(model, batch):
        return kit.on_policy_distillation(model, batch, teacher=teacher)

    found = kit.training.fit(student, sampler, loss=loss, steps=40, progress=False,
                             optimizer=adam(0.02))  # fmt: skip
    assert found.losses[-1] < 0.3 * found.losses[0]


# several answers


def test_the_best_and_the_most_frequent_are_chosen(kit):
    assert kit.best_of(["a", "b", "c"], [1.0, 3.0, 2.0]) == "b"
    assert kit.best_of(["a", "b"], [1.0, 1.0]) == "a"
    assert kit.majority([2, 3, 1, 3, 1]) == 3 and kit.majority(["x"]) == "x"
    assert [kit.within_budget([5, 7, 4], n) for n in (0, 4, 5, 11, 12, 16)] == [0, 0, 1, 1, 2, 3]


def test_the_curve_of_k_is_that_of_all_subsets(kit):
    answers, right = [["a", "b", "a", "c", "b"], ["x", "y", "y", "y", "z"]], ["a", "x"]
    for rule in ("any", "majority"):
        got = kit.accuracy_curve(answers, right, [1, 3, 5], rule=rule, draws=3000)
        for k, share in zip((1, 3, 5), got, strict=True):
            exact = []
            for given_, wanted in zip(answers, right, strict=True):
                for chosen in itertools.permutations(given_, k):
                    most = Counter(chosen).most_common(1)[0][0]  # the first of equal ones
                    exact.append(wanted in chosen if rule == "any" else most == wanted)
            assert share == pytest.approx(np.mean(exact), abs=0.03)
    one = kit.accuracy_curve(answers, right, [2], rule="any", draws=3000)[0]
    assert one == pytest.approx(np.mean([kit.pass_at_k(5, n, 2) for n in (2, 1)]), abs=0.03)


# intervals


def test_pass_at_k_is_the_share_of_all_subsets(kit):
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                sets = list(itertools.combinations(range(n), k))
                wanted = np.mean([min(each) < c for each in sets])
                assert kit.pass_at_k(n, c, k) == pytest.approx(wanted, abs=1e-12)
    # Without bias: its mean over samples is the chance itself; the plain one is too low.
    p, n, k = 0.3, 7, 4
    chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(w * kit.pass_at_k(n, c, k) for c, w in enumerate(chance))
    assert mean == pytest.approx(1 - (1 - p) ** k)
    assert sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(chance)) < mean - 0.02


def test_the_interval_of_a_share_solves_its_equation_and_holds_it(kit):
    z = 1.959963984540054
    for right, n in ((0, 20), (3, 20), (20, 20), (511, 1000)):
        p, low, high = kit.wilson_interval(right, n)
        assert p == right / n and 0 <= low <= p <= high <= 1
        for end in (low, high):
            if 0 < end < 1:  # |p − end| is z standard deviations at the end
                assert abs(p - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-9)
    assert kit.wilson_interval(3, 20, confidence=0.5).low > kit.wilson_interval(3, 20).low
    for p, n in ((0.05, 30), (0.5, 17), (0.9, 50)):
        held = [w for c in range(n + 1) if (i := kit.wilson_interval(c, n)).low <= p <= i.high
                for w in [math.comb(n, c) * p**c * (1 - p) ** (n - c)]]  # fmt: skip
        assert 0.91 < sum(held) < 0.99


def test_the_interval_of_a_mean_is_that_of_the_normal_law_and_pairs_are_narrower(kit):
    values = normal(400).tolist()
    mean, low, high = kit.bootstrap_interval(values)
    error = np.std(values) / 20
    assert mean == pytest.approx(np.mean(values))
    assert low == pytest.approx(mean - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.25 * error)
    assert kit.bootstrap_interval(values, np.median).value == pytest.approx(np.median(values))
    assert kit.bootstrap_interval(values, seed=1) == kit.bootstrap_interval(values, seed=1)
    other = (torch.tensor(values) - 0.1 + 0.05 * normal(400, seed=3)).tolist()
    found = kit.paired_interval(values, other)
    assert 0.08 < found.low < found.value < found.high < 0.12
    assert found.high - found.low < 0.1 * (high - low)
    assert kit.bootstrap_interval([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_a_planted_copy_is_found_whole_and_chance_is_not(kit):
    generator = np.random.default_rng(0)
    words = [f"w{i}" for i in range(50)]
    train = [" ".join(generator.choice(words, 200)) for _ in range(5)]
    test = [" ".join(generator.choice(words, 60)) for _ in range(4)]
    assert kit.find_copies(test, train) == []
    stolen = train[3].split()[20:37]
    clean = test[2].split()
    test[2] = " ".join(clean[:9]) + " " + ", ".join(stolen).upper() + "! " + " ".join(clean[9:])
    assert kit.find_copies(test, train) == [kit.Copied(2, 3, 9, 17)]
    assert kit.find_copies(test, train, n=17) and not kit.find_copies(test, train, n=18)
    assert [c.words for c in kit.find_copies([train[0]], train)] == [200]
    twice = " ".join([*stolen, "new", *stolen])
    assert [(c.start, c.words) for c in kit.find_copies([twice], train)] == [(0, 17), (18, 17)]


@pytest.mark.untyped
def test_what_does_not_fit_is_refused_in_words(kit):
    one, two = torch.zeros(1), torch.zeros(2)
    made = rollout(kit)
    for make, error, words in (
        (lambda: kit.dpo_loss(one, two, one, one), ValueError, "rejected must have shape"),
        (lambda: kit.dpo_loss(one, one, one, one, beta=0.0), ValueError, "beta"),
        (lambda: kit.dpo_loss(one, one, one, one, label_smoothing=0.5), ValueError, "label_smo"),
        (lambda: kit.bradley_terry_loss(one, one.double()), TypeError, "same dtype"),
        (lambda: kit.sequence_log_probs(normal(1, 2, 3), targets([3, 0])), ValueError,
         "from 0 to 2 or -100, got 3"),
        (lambda: kit.reference_drift(normal(1, 2, 3), normal(1, 2, 4)), ValueError, "reference"),
        (lambda: kit.reference_drift(normal(1, 2, 3), normal(1, 2, 3), torch.zeros(1, 2).bool()),
         ValueError, "at least one token"),
        (lambda: kit.RewardModel(nn.Linear(2, 2)), TypeError, "DecoderOnly"),
        (lambda: kit.RewardModel(decoder(kit))(ids(1, 3), torch.tensor([[False, True, True]])),
         ValueError, "padding on the right"),
        (lambda: kit.preference_loss(len, (1, 2), reference=len), TypeError, "two Examples"),
        (lambda: kit.group_advantages(torch.zeros(3, 1)), ValueError, "G ≥ 2"),
        (lambda: kit.group_advantages(torch.full((1, 2), math.nan)), ValueError, "finite"),
        (lambda: kit.grpo_loss(made.old, made, form="second"), ValueError, "form must be one of"),
        (lambda: kit.grpo_loss(made.old, made, kl_weight=1.0), ValueError, "needs reference="),
        (lambda: kit.grpo_loss(made.old[:, :2], made), ValueError, "log_probs must have shape"),
        (lambda: kit.check_sum("3*4=", "12"), ValueError, "must be a sum"),
        (lambda: kit.pass_at_k(3, 4, 1), ValueError, "right must be from 0 to 3"),
        (lambda: kit.pass_at_k(3, 1, 4), ValueError, "k must be from 1 to 3"),
        (lambda: kit.wilson_interval(1, 0), ValueError, "n must be"),
        (lambda: kit.bootstrap_interval([1.0]), ValueError, "at least 2"),
        (lambda: kit.bootstrap_interval([1.0, math.nan]), ValueError, "values must be"),
        (lambda: kit.paired_interval([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "2 numbers"),
        (lambda: kit.find_copies("abc", ["d"]), TypeError, "test must be a list"),
        (lambda: kit.best_of([], []), ValueError, "at least one"),
        (lambda: kit.best_of([1], [1.0, 2.0]), ValueError, "as many as answers"),
        (lambda: kit.majority([[1], [1]]), TypeError, "hashable"),
        (lambda: kit.accuracy_curve([[1, 2]], [1], [3]), ValueError, "sizes must be from 1 to 2"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            make()


CHECKS = checks(globals())
