"""Right and wrong answers to the exercises of chapter 11.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math

import torch
from answers import collect
from torch.nn import functional as F

from tfbook import training
from tfbook.optimization import schedules

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "smoothed-loss": lambda logits, targets, epsilon: training.cross_entropy(
        logits, targets, label_smoothing=epsilon
    ),
    "noam-factor": lambda step, d_model, warmup: schedules.noam(
        step, d_model=d_model, warmup=warmup
    ),
    "packed-targets": lambda tokens, documents: library_targets(tokens, documents),
}


# token-mean -------------------------------------------------------------------------------------


@right("token-mean")
def mean_chosen(losses, mask):
    return losses[mask].sum() / mask.sum().clamp(min=1)


@right("token-mean")
def mean_where(losses, mask):
    count = mask.sum()
    total = torch.where(mask, losses, 0.0).sum()
    return total / count if count > 0 else total


@wrong("token-mean", "at padding were averaged too")
def mean_of_all(losses, mask):
    return losses.mean()


@wrong("token-mean", "not of places")
def mean_of_places(losses, mask):
    return losses.where(mask, 0.0).mean()


@wrong("token-mean", "The mean of each sequence was taken first")
def mean_of_means(losses, mask):
    return (losses.where(mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)).mean()


@wrong("token-mean", "This is the sum")
def mean_summed(losses, mask):
    return losses[mask].sum()


@wrong("token-mean", "by the number of sequences")
def mean_of_sequences(losses, mask):
    return losses[mask].sum() / len(losses)


@wrong("token-mean", "The mask is inverted")
def mean_inverted(losses, mask):
    return mean_chosen(losses, ~mask)


@wrong("token-mean", "These are the means of the sequences")
def mean_rows(losses, mask):
    return losses.where(mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)


@wrong("token-mean", "a product with the mask does not take them away")
def mean_product(losses, mask):
    return (losses * mask).sum() / mask.sum().clamp(min=1)


@wrong("token-mean", "the model is sure. They count")
def mean_of_nonzero(losses, mask):
    kept = losses.where(mask, 0.0)
    return kept.sum() / (kept != 0).sum().clamp(min=1)


@wrong("token-mean", "contains NaN. Without a token the mean is 0")
def mean_of_nothing(losses, mask):
    return losses[mask].mean()


@wrong("token-mean", "carries no gradient")
def mean_item(losses, mask):
    return torch.tensor(mean_chosen(losses, mask).item(), dtype=losses.dtype)


@wrong("token-mean", "changed its input `losses`")
def mean_in_place(losses, mask):
    losses[~mask] = 0
    return losses.sum() / mask.sum().clamp(min=1)


@wrong("token-mean", "The result is a float")
def mean_float(losses, mask):
    return mean_chosen(losses, mask).item()


# smoothed-loss ----------------------------------------------------------------------------------


@right("smoothed-loss")
def smooth_mixed(logits, targets, epsilon):
    logs = logits.log_softmax(-1)
    hit = logs.gather(1, targets[:, None]).mean()
    return -(1 - epsilon) * hit - epsilon * logs.mean()


@right("smoothed-loss")
def smooth_labels(logits, targets, epsilon):
    q = F.one_hot(targets, logits.shape[1]) * (1 - epsilon) + epsilon / logits.shape[1]
    return F.cross_entropy(logits, q)


@right("smoothed-loss")
def smooth_torch(logits, targets, epsilon):
    return F.cross_entropy(logits, targets, label_smoothing=epsilon)


def smooth_with(logits, targets, hit, miss):
    """Compute the loss with one label at the target and another elsewhere."""
    q = torch.full_like(logits, miss).scatter(1, targets[:, None], hit)
    return -(q * logits.log_softmax(-1)).sum(-1).mean()


@wrong("smoothed-loss", "The labels were not smoothed")
def smooth_not(logits, targets, epsilon):
    return F.cross_entropy(logits, targets)


@wrong("smoothed-loss", "among the other classes only")
def smooth_others(logits, targets, epsilon):
    return smooth_with(logits, targets, 1 - epsilon, epsilon / (logits.shape[1] - 1))


@wrong("smoothed-loss", "The labels do not sum to 1")
def smooth_too_little(logits, targets, epsilon):
    return smooth_with(logits, targets, 1 - epsilon, epsilon / logits.shape[1])


@wrong("smoothed-loss", "The labels sum to more than 1")
def smooth_too_much(logits, targets, epsilon):
    share = epsilon / logits.shape[1]
    return smooth_with(logits, targets, 1 + share, share)


@wrong("smoothed-loss", "ε was given to every class whole")
def smooth_whole(logits, targets, epsilon):
    return smooth_with(logits, targets, 1 - epsilon, epsilon)


@wrong("smoothed-loss", "The targets play no part")
def smooth_no_target(logits, targets, epsilon):
    logs = logits.log_softmax(-1)
    terms = -(1 - epsilon) * logs.sum(-1) + epsilon / logits.shape[1] * logs.sum(-1)
    return terms.mean()


@wrong("smoothed-loss", "The minus stands before the first term only")
def smooth_minus(logits, targets, epsilon):
    spread = logits.log_softmax(-1).mean()
    return (1 - epsilon) * F.cross_entropy(logits, targets) + epsilon * spread


@wrong("smoothed-loss", "The sign is wrong")
def smooth_sign(logits, targets, epsilon):
    return -smooth_mixed(logits, targets, epsilon)


@wrong("smoothed-loss", "ε and 1 - ε are exchanged")
def smooth_exchanged(logits, targets, epsilon):
    return smooth_mixed(logits, targets, 1 - epsilon)


@wrong("smoothed-loss", "added up over the rows")
def smooth_sum(logits, targets, epsilon):
    return F.cross_entropy(logits, targets, label_smoothing=epsilon, reduction="sum")


@wrong("smoothed-loss", "averaged over the classes, too")
def smooth_mean_classes(logits, targets, epsilon):
    q = F.one_hot(targets, logits.shape[1]) * (1 - epsilon) + epsilon / logits.shape[1]
    return -(q * logits.log_softmax(-1)).mean()


@wrong("smoothed-loss", "this is the divergence")
def smooth_divergence(logits, targets, epsilon):
    q = F.one_hot(targets, logits.shape[1]) * (1 - epsilon) + epsilon / logits.shape[1]
    return F.kl_div(logits.log_softmax(-1), q, reduction="batchmean")


@wrong("smoothed-loss", "The probabilities were smoothed")
def smooth_probabilities(logits, targets, epsilon):
    p = (1 - epsilon) * logits.softmax(-1) + epsilon / logits.shape[1]
    return F.nll_loss(p.log(), targets)


@wrong("smoothed-loss", "These are the losses of the rows")
def smooth_rows(logits, targets, epsilon):
    return F.cross_entropy(logits, targets, label_smoothing=epsilon, reduction="none")


@wrong("smoothed-loss", "the logarithm of 0 is -∞")
def smooth_log_of_softmax(logits, targets, epsilon):
    logs = logits.softmax(-1).log()
    hit = logs.gather(1, targets[:, None]).mean()
    return -(1 - epsilon) * hit - epsilon * logs.mean()


@wrong("smoothed-loss", "With ε = 1 the loss differs")
def smooth_ends(logits, targets, epsilon):
    return smooth_mixed(logits, targets, epsilon if epsilon < 1 else 0.0)


@wrong("smoothed-loss", "With 1 rows, 2 classes and ε = 0.1")
def smooth_squeezed(logits, targets, epsilon):
    return smooth_mixed(logits, targets, epsilon if logits.shape[1] > 2 else 0.0)


@wrong("smoothed-loss", "carries no gradient")
def smooth_detached(logits, targets, epsilon):
    return smooth_mixed(logits.detach(), targets, epsilon)


# noam-factor ------------------------------------------------------------------------------------


@right("noam-factor")
def noam_min(step, d_model, warmup):
    s = max(step, 1)
    return d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)


@right("noam-factor")
def noam_branches(step, d_model, warmup):
    peak = 1 / math.sqrt(d_model * warmup)
    if step <= warmup:
        return peak * max(step, 1) / warmup
    return peak * math.sqrt(warmup / step)


@wrong("noam-factor", "ZeroDivisionError")
def noam_from_zero(step, d_model, warmup):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


@wrong("noam-factor", "times the larger branch")
def noam_max(step, d_model, warmup):
    s = max(step, 1)
    return d_model**-0.5 * max(s**-0.5, s * warmup**-1.5)


@wrong("noam-factor", "The factor d^-½ is missing")
def noam_no_model(step, d_model, warmup):
    return noam_min(step, 1, warmup)


@wrong("noam-factor", "The factor is d^½")
def noam_root_up(step, d_model, warmup):
    return noam_min(step, 1, warmup) * d_model**0.5


@wrong("noam-factor", "The factor is 1/d")
def noam_over_d(step, d_model, warmup):
    return noam_min(step, 1, warmup) / d_model


@wrong("noam-factor", "The rise is s / w. It is")
def noam_plain_rise(step, d_model, warmup):
    s = max(step, 1)
    return d_model**-0.5 * min(s**-0.5, s / warmup)


@wrong("noam-factor", "The rise is s / √w")
def noam_rise_of_a_root(step, d_model, warmup):
    s = max(step, 1)
    return d_model**-0.5 * min(s**-0.5, s / warmup**0.5)


@wrong("noam-factor", "before s = w that is the rise")
def noam_positive_power(step, d_model, warmup):
    s = max(step, 1)
    return d_model**-0.5 * min(s**-0.5, s * warmup**1.5)


@wrong("noam-factor", "s is one too large")
def noam_plus_one(step, d_model, warmup):
    return noam_min(step + 1, d_model, warmup)


@wrong("noam-factor", "d_model and warmup are exchanged")
def noam_exchanged(step, d_model, warmup):
    return noam_min(step, warmup, d_model)


@wrong("noam-factor", "The learning rate stays after the warm-up")
def noam_flat(step, d_model, warmup):
    return noam_min(min(step, warmup), d_model, warmup)


@wrong("noam-factor", "goes on rising")
def noam_rising(step, d_model, warmup):
    return d_model**-0.5 * max(step, 1) * warmup**-1.5


@wrong("noam-factor", "The fall is 1/s")
def noam_fast_fall(step, d_model, warmup):
    s = max(step, 1)
    return d_model**-0.5 * min(1 / s if s > 20 else 1.0, s * warmup**-1.5)


@wrong("noam-factor", "so it is wasted")
def noam_zero(step, d_model, warmup):
    return noam_min(step, d_model, warmup) if step else 0.0


@wrong("noam-factor", "The result is a tensor")
def noam_tensor(step, d_model, warmup):
    return torch.tensor(noam_min(step, d_model, warmup))


@wrong("noam-factor", "With d = 128 and w = 7")
def noam_branches_cross(step, d_model, warmup):
    peak = (d_model * warmup) ** -0.5
    return noam_min(step, d_model, warmup) if step != warmup or step > 3999 else peak / 2


# adamw-step -------------------------------------------------------------------------------------


@right("adamw-step")
def adamw_by_hand(weight, gradient, m, v, step, lr, betas, eps, decay):
    b1, b2 = betas
    m = b1 * m + (1 - b1) * gradient
    v = b2 * v + (1 - b2) * gradient.square()
    move = m / (1 - b1**step) / ((v / (1 - b2**step)).sqrt() + eps)
    return weight - lr * (move + decay * weight), m, v


@right("adamw-step")
def adamw_of_torch(weight, gradient, m, v, step, lr, betas, eps, decay):
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr, betas, eps, weight_decay=decay)
    state = {"step": torch.tensor(step - 1.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.state[parameter].update(state)
    parameter.grad = gradient
    optimizer.step()
    return parameter.detach(), state["exp_avg"], state["exp_avg_sq"]


def adam(weight, gradient, m, v, step, lr, betas, eps, decay, *, means=None, move=None):
    """Take a step with one of its parts replaced."""
    b1, b2 = betas
    old = m, v
    m = b1 * m + (1 - b1) * gradient
    v = b2 * v + (1 - b2) * gradient.square()
    if means is not None:
        m, v = means(*old, gradient, b1, b2, m, v)
    if move is not None:
        return move(weight, gradient, m, v, step, lr, b1, b2, eps, decay), m, v
    change = m / (1 - b1**step) / ((v / (1 - b2**step)).sqrt() + eps)
    return weight - lr * (change + decay * weight), m, v


def adaming(message, part):
    """Keep a wrong answer that replaces the means or the move."""

    def keep(function):
        def adamw_step(weight, gradient, m, v, step, lr, betas, eps, decay):
            case = weight, gradient, m, v, step, lr, betas, eps, decay
            return adam(*case, **{part: function})

        adamw_step.__name__ = function.__name__
        wrong("adamw-step", message)(adamw_step)
        return function

    return keep


@adaming("β₁ and 1 - β₁ are exchanged", "means")
def adam_exchanged(m, v, g, b1, b2, new_m, new_v):
    return (1 - b1) * m + b1 * g, new_v


@adaming("the whole gradient was added", "means")
def adam_momentum(m, v, g, b1, b2, new_m, new_v):
    return b1 * m + g, new_v


@adaming("m came back as it was", "means")
def adam_old_m(m, v, g, b1, b2, new_m, new_v):
    return m, new_v


@adaming("β₂ was used for m", "means")
def adam_one_beta(m, v, g, b1, b2, new_m, new_v):
    return b2 * m + (1 - b2) * g, new_v


@adaming("v is the mean of the gradient itself", "means")
def adam_no_square(m, v, g, b1, b2, new_m, new_v):
    return new_m, b2 * v + (1 - b2) * g


@adaming("the gradient's absolute value", "means")
def adam_absolute(m, v, g, b1, b2, new_m, new_v):
    return new_m, b2 * v + (1 - b2) * g.abs()


@adaming("v is the mean of m²", "means")
def adam_square_of_mean(m, v, g, b1, b2, new_m, new_v):
    return new_m, b2 * v + (1 - b2) * new_m.square()


@adaming("v is a running sum of squares", "means")
def adam_adagrad(m, v, g, b1, b2, new_m, new_v):
    return new_m, v + g.square()


@adaming("v came back as it was", "means")
def adam_old_v(m, v, g, b1, b2, new_m, new_v):
    return new_m, v


@adaming("The step goes uphill", "move")
def adam_uphill(w, g, m, v, t, lr, b1, b2, eps, decay):
    move = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)
    return w + lr * (move - decay * w)


@adaming("m and v were used without the correction", "move")
def adam_uncorrected(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * (m / (v.sqrt() + eps) + decay * w)


@adaming("v was used without the correction", "move")
def adam_v_uncorrected(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * (m / (1 - b1**t) / (v.sqrt() + eps) + decay * w)


@adaming("1 - β in place of 1 - βᵗ", "move")
def adam_no_power(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * (m / (1 - b1) / ((v / (1 - b2)).sqrt() + eps) + decay * w)


@adaming("The correction is one step off", "move")
def adam_next_step(w, g, m, v, t, lr, b1, b2, eps, decay):
    t = t + 1
    return w - lr * (m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps) + decay * w)


@adaming("ε stands under the root", "move")
def adam_eps_inside(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * (m / (1 - b1**t) / (v / (1 - b2**t) + eps).sqrt() + decay * w)


@adaming("The root is missing", "move")
def adam_no_root(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * (m / (1 - b1**t) / (v / (1 - b2**t) + eps) + decay * w)


@adaming("The gradient itself was divided", "move")
def adam_rmsprop(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * (g / ((v / (1 - b2**t)).sqrt() + eps) + decay * w)


@adaming("This is the change", "move")
def adam_change(w, g, m, v, t, lr, b1, b2, eps, decay):
    return -lr * (m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps) + decay * w)


def adam_move(g, m, v, t, b1, b2, eps):
    return m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)


@adaming("The weight does not decay", "move")
def adam_plain(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * adam_move(g, m, v, t, b1, b2, eps)


@adaming("The decay lacks the learning rate", "move")
def adam_decay_alone(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * adam_move(g, m, v, t, b1, b2, eps) - decay * w


@adaming("The decay shrinks the weight after the step", "move")
def adam_decay_after(w, g, m, v, t, lr, b1, b2, eps, decay):
    return (w - lr * adam_move(g, m, v, t, b1, b2, eps)) * (1 - lr * decay)


@adaming("The decay makes the weight grow", "move")
def adam_growth(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w * (1 + lr * decay) - lr * adam_move(g, m, v, t, b1, b2, eps)


@adaming("The decay is a constant pull", "move")
def adam_l1(w, g, m, v, t, lr, b1, b2, eps, decay):
    return w - lr * (adam_move(g, m, v, t, b1, b2, eps) + decay * w.sign())


@wrong("adamw-step", "Weight decay was added to the gradient. That is L2")
def adam_l2(weight, gradient, m, v, step, lr, betas, eps, decay):
    return adam(weight, gradient + decay * weight, m, v, step, lr, betas, eps, 0.0)


@wrong("adamw-step", "was added to the gradient and divided by √v̂ like the rest: that is L2")
def adam_l2_in_the_step(weight, gradient, m, v, step, lr, betas, eps, decay):
    _, m_kept, v_kept = adam(weight, gradient, m, v, step, lr, betas, eps, 0.0)
    moved = adam(weight, gradient + decay * weight, m, v, step, lr, betas, eps, 0.0)[0]
    return moved, m_kept, v_kept


@wrong("adamw-step", "m came back corrected")
def adam_corrected(weight, gradient, m, v, step, lr, betas, eps, decay):
    weight, m, v = adam(weight, gradient, m, v, step, lr, betas, eps, decay)
    return weight, m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)


@wrong("adamw-step", "in another order: weight, m, v")
def adam_order(weight, gradient, m, v, step, lr, betas, eps, decay):
    weight, m, v = adam(weight, gradient, m, v, step, lr, betas, eps, decay)
    return m, v, weight


@wrong("adamw-step", "in another order: return your third, then your second, then your first")
def adamw_reversed(*case):
    return adamw_by_hand(*case)[::-1]


@wrong("adamw-step", "changed its input `m`")
def adam_in_place(weight, gradient, m, v, step, lr, betas, eps, decay):
    m.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
    return weight, m, v


@wrong("adamw-step", "At step 1, with shape (2, 3, 5), weight differs")
def adam_of_rows(weight, gradient, m, v, step, lr, betas, eps, decay):
    new, m, v = adam(weight, gradient, m, v, step, lr, betas, eps, decay)
    return (new if new.ndim < 2 else new.flip(0)), m, v


# clip-norm --------------------------------------------------------------------------------------


@right("clip-norm")
def clip_squares(gradients, limit):
    length = sum(g.square().sum() for g in gradients).sqrt()
    factor = limit / length.clamp(min=limit)
    return [g * factor for g in gradients], length


@right("clip-norm")
def clip_of_torch(gradients, limit):
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, g in zip(parameters, gradients, strict=True):
        parameter.grad = g.clone()
    length = torch.nn.utils.clip_grad_norm_(parameters, limit)
    return [parameter.grad for parameter in parameters], length


@right("clip-norm")
def clip_norms(gradients, limit):
    length = torch.stack([g.norm() for g in gradients]).norm()
    if length > limit:
        gradients = [g * limit / length for g in gradients]
    return gradients, length


def clipping(message):
    """Keep a wrong answer that is given the right length and the factor."""

    def keep(function):
        def clip_norm(gradients, limit):
            length = clip_squares(gradients, limit)[1]
            return function(gradients, limit, length), length

        clip_norm.__name__ = function.__name__
        wrong("clip-norm", message)(clip_norm)
        return function

    return keep


def lengthening(message):
    """Keep a wrong answer with the right gradients and another length."""

    def keep(function):
        def clip_norm(gradients, limit):
            return clip_squares(gradients, limit)[0], function(gradients, limit)

        clip_norm.__name__ = function.__name__
        wrong("clip-norm", message)(clip_norm)
        return function

    return keep


@lengthening("The lengths of the tensors were added")
def clip_length_sum(gradients, limit):
    return sum(g.norm() for g in gradients)


@lengthening("The root is missing")
def clip_length_squared(gradients, limit):
    return sum(g.square().sum() for g in gradients)


@lengthening("the lengths of the single tensors")
def clip_lengths(gradients, limit):
    return torch.stack([g.norm() for g in gradients])


@lengthening("the length of the longest tensor")
def clip_length_largest(gradients, limit):
    return max(g.norm() for g in gradients)


@lengthening("This is the largest number")
def clip_largest(gradients, limit):
    return max(g.abs().max() for g in gradients)


@lengthening("The absolute values were added")
def clip_absolute(gradients, limit):
    return sum(g.abs().sum() for g in gradients)


@lengthening("The squares were averaged")
def clip_rms(gradients, limit):
    return torch.cat([g.flatten() for g in gradients]).square().mean().sqrt()


@lengthening("the length after clipping")
def clip_length_after(gradients, limit):
    return clip_squares(clip_squares(gradients, limit)[0], limit)[1]


@lengthening("The second result, the length, is a float")
def clip_length_float(gradients, limit):
    return clip_squares(gradients, limit)[1].item()


@clipping("Nothing was shortened")
def clip_nothing(gradients, limit, length):
    return gradients


@clipping("Each tensor was shortened by itself")
def clip_each(gradients, limit, length):
    return [g * (limit / g.norm().clamp(min=limit)) for g in gradients]


@clipping("Each tensor was made as long as the limit")
def clip_each_to_the_limit(gradients, limit, length):
    return [g * limit / g.norm() for g in gradients]


@clipping("Each number was cut off")
def clip_values(gradients, limit, length):
    return [g.clamp(-limit, limit) for g in gradients]


@clipping("The factor is upside down")
def clip_upside_down(gradients, limit, length):
    return [g * (length / limit).clamp(min=1) for g in gradients]


@clipping("but not multiplied by the limit")
def clip_to_one(gradients, limit, length):
    return [g / length.clamp(min=1) for g in gradients]


@clipping("but not divided by their length")
def clip_times_limit(gradients, limit, length):
    return [g * limit for g in gradients] if length > limit else gradients


@clipping("the squared length in it")
def clip_over_square(gradients, limit, length):
    return [g * limit / length**2 for g in gradients]


@clipping("was set to 0")
def clip_drop(gradients, limit, length):
    return [g * (length <= limit) for g in gradients]


@clipping("A short gradient was made as long as the limit")
def clip_always(gradients, limit, length):
    return [g * limit / length for g in gradients]


@clipping("A short gradient was shortened further")
def clip_smaller(gradients, limit, length):
    return [g * min(limit / length, length / limit) for g in gradients]


@clipping("contains NaN. The length is 0")
def clip_zero(gradients, limit, length):
    return [g / length * min(limit, length) for g in gradients]


@clipping("With 1 tensors and the limit 0.1")
def clip_at_least(gradients, limit, length):
    return clip_squares(gradients, max(limit, 0.5))[0]


@wrong("clip-norm", "The two results are exchanged")
def clip_exchanged(gradients, limit):
    return clip_squares(gradients, limit)[::-1]


@wrong("clip-norm", "took 1 of 3 entries out of its input `gradients`")
def clip_popping(gradients, limit):
    results = clip_squares(gradients, limit)
    gradients.pop()
    return results


@wrong("clip-norm", "changed its input")
def clip_in_place(gradients, limit):
    length = clip_squares(gradients, limit)[1]
    for g in gradients:
        g.mul_(limit / length.clamp(min=limit))
    return gradients, length


@wrong("clip-norm", "Return 2 results")
def clip_gradients_only(gradients, limit):
    return clip_squares(gradients, limit)[0]


@wrong("clip-norm", "one tensor for each gradient")
def clip_flat(gradients, limit):
    clipped, length = clip_squares(gradients, limit)
    return torch.cat([g.flatten() for g in clipped]), length


# packed-targets ---------------------------------------------------------------------------------


def goes_on(documents):
    """Return where the next place belongs to the same document, (B, N − 1)."""
    return (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)


@right("packed-targets")
def pack_where(tokens, documents):
    targets = torch.full_like(tokens, -100)
    targets[:, :-1] = tokens[:, 1:].where(goes_on(documents), -100)
    return targets


@right("packed-targets")
def pack_padded(tokens, documents):
    behind = F.pad(documents[:, 1:], (0, 1), value=-2)
    ahead = F.pad(tokens[:, 1:], (0, 1), value=-100)
    return torch.where((behind == documents) & (documents != -1), ahead, -100)


def library_targets(tokens, documents):
    """Let the package shift each document by itself; it knows borders only as padding."""
    targets = torch.full_like(tokens, -100)
    for number in documents.unique().tolist():
        if number >= 0 and tokens.shape[1] > 1:
            shifted = training.next_tokens(tokens, documents == number).targets
            targets[:, :-1] = torch.where(shifted == -100, targets[:, :-1], shifted)
    return targets


def packing(message):
    """Keep a wrong answer that is given the tokens one place ahead, -100 at the end."""

    def keep(function):
        def packed_targets(tokens, documents):
            return function(tokens, documents, F.pad(tokens[:, 1:], (0, 1), value=-100))

        packed_targets.__name__ = function.__name__
        wrong("packed-targets", message)(packed_targets)
        return function

    return keep


def inside(documents):
    return F.pad(goes_on(documents), (0, 1))


@packing("The last place of a document predicts the first token of the next")
def pack_across(tokens, documents, ahead):
    return ahead


@packing("The targets are the tokens themselves")
def pack_unshifted(tokens, documents, ahead):
    return tokens.where(inside(documents), -100)


@packing("shifted the wrong way")
def pack_backwards(tokens, documents, ahead):
    before = F.pad(tokens[:, :-1], (1, 0), value=-100)
    return before.where(F.pad(goes_on(documents), (1, 0)), -100)


@wrong("packed-targets", "The shift goes around: one document")
def pack_rolled_borders(tokens, documents):
    goes_on = (documents.roll(-1, 1) == documents) & (documents >= 0)
    return tokens.roll(-1, 1).where(goes_on, -100)


@packing("predicts the first token of the row")
def pack_rolled(tokens, documents, ahead):
    same = documents.roll(-1, 1) == documents
    same[:, -1] = True
    return tokens.roll(-1, 1).where(same & (documents >= 0), -100)


@packing("The first place of each document has no target")
def pack_first(tokens, documents, ahead):
    return ahead.where(F.pad(goes_on(documents), (1, 0)), -100)


@packing("two tokens ahead")
def pack_two(tokens, documents, ahead):
    return F.pad(tokens[:, 2:], (0, 2), value=-100).where(inside(documents), -100)


@packing("One column is missing")
def pack_short(tokens, documents, ahead):
    return tokens[:, 1:].where(goes_on(documents), -100)


@packing("the target is -100, which the loss leaves out")
def pack_zeros(tokens, documents, ahead):
    return ahead.where(inside(documents), 0)


@packing("Only the borders have targets")
def pack_borders(tokens, documents, ahead):
    return ahead.where(~inside(documents), -100)


@packing("Padding has to predict padding")
def pack_padding(tokens, documents, ahead):
    same = F.pad(documents[:, 1:] == documents[:, :-1], (0, 1))
    return ahead.where(same, -100)


@packing("The last token of a row has to predict padding")
def pack_into_padding(tokens, documents, ahead):
    behind = F.pad(documents[:, 1:], (0, 1), value=-2)
    return ahead.where((documents >= 0) & ((behind == documents) | (behind == -1)), -100)


@packing("Token 0 is a token like any other")
def pack_by_id(tokens, documents, ahead):
    return ahead.where(inside(documents) & (ahead != 0), -100)


@packing("With 1 rows of 1 places")
def pack_at_least_two(tokens, documents, ahead):
    return ahead.where(inside(documents), -100) if tokens.shape[1] > 1 else tokens


@wrong("packed-targets", "changed its input `tokens`")
def pack_in_place(tokens, documents):
    tokens[:, :-1] = tokens[:, 1:].where(goes_on(documents), -100)
    tokens[:, -1] = -100
    return tokens


# accumulated-gradient ---------------------------------------------------------------------------


@right("accumulated-gradient")
def sum_grad(loss, weight, batches):
    summed, count = torch.zeros_like(weight), 0
    for batch in batches:
        total, n = loss(weight, batch)
        summed = summed + torch.autograd.grad(total, weight)[0]
        count += n
    return summed / count


@right("accumulated-gradient")
def sum_backward(loss, weight, batches):
    weight.grad, count = None, 0
    for batch in batches:
        total, n = loss(weight, batch)
        total.backward()
        count += n
    return weight.grad / count


@right("accumulated-gradient")
def sum_copy(loss, weight, batches):
    copy = weight.detach().clone().requires_grad_()
    counts = []
    for batch in batches:
        total, n = loss(copy, batch)
        counts.append(n)
        total.backward()
    return copy.grad / sum(counts)


def each_gradient(loss, weight, batches):
    """Return the gradients of the sums, and the numbers of tokens."""
    found = [loss(weight, batch) for batch in batches[:0]]
    for batch in batches:
        total, n = loss(weight, batch)
        found.append((torch.autograd.grad(total, weight)[0], n))
    return [g for g, _ in found], [n for _, n in found]


def summing(message):
    """Keep a wrong answer that is given the gradients and the numbers of tokens."""

    def keep(function):
        def accumulate(loss, weight, batches):
            return function(*each_gradient(loss, weight, batches))

        accumulate.__name__ = function.__name__
        wrong("accumulated-gradient", message)(accumulate)
        return function

    return keep


@summing("Each batch's mean was taken and the means averaged")
def sum_mean_of_means(gradients, counts):
    return sum(g / max(n, 1) for g, n in zip(gradients, counts, strict=True)) / len(counts)


@summing("The means of the batches were added up")
def sum_of_means(gradients, counts):
    return sum(g / max(n, 1) for g, n in zip(gradients, counts, strict=True))


@summing("This is the gradient of the sum")
def sum_undivided(gradients, counts):
    return sum(gradients)


@summing("The sum was divided by the number of batches")
def sum_over_batches(gradients, counts):
    return sum(gradients) / len(gradients)


@summing("Only the last batch")
def sum_last(gradients, counts):
    return gradients[-1] / counts[-1]


@summing("Only the first batch")
def sum_first(gradients, counts):
    return gradients[0] / counts[0]


@summing("by the tokens of the last batch")
def sum_over_last(gradients, counts):
    return sum(gradients) / counts[-1]


@summing("as many tokens as the largest batch")
def sum_over_padded(gradients, counts):
    return sum(gradients) / (max(counts) * len(counts))


@summing("points downhill")
def sum_negative(gradients, counts):
    return -sum(gradients) / sum(counts)


@summing("contains NaN. With (2, 0, 3) tokens")
def sum_weighted_means(gradients, counts):
    shares = [n / sum(counts) for n in counts]
    pairs = zip(gradients, counts, shares, strict=True)
    return sum(share * g / torch.tensor(n) for g, n, share in pairs)


@wrong("accumulated-gradient", "An old gradient is in the result")
def sum_stale(loss, weight, batches):
    count = 0
    for batch in batches:
        total, n = loss(weight, batch)
        total.backward()
        count += n
    return weight.grad.clone() / count


@wrong("accumulated-gradient", "still waited for its gradient")
def sum_at_once(loss, weight, batches):
    found = [loss(weight, batch) for batch in batches]
    mean = sum(total for total, _ in found) / sum(n for _, n in found)
    return torch.autograd.grad(mean, weight)[0]


@wrong("accumulated-gradient", "The tokens can be counted on the way")
def sum_twice(loss, weight, batches):
    with torch.no_grad():
        count = sum(loss(weight.detach(), batch)[1] for batch in batches[:1])
    gradients, counts = [], []
    for batch in batches:
        total, n = loss(weight, batch)
        gradients.append(torch.autograd.grad(total, weight)[0])
        counts.append(n)
    return sum(gradients) / max(sum(counts), count)


@wrong("accumulated-gradient", "The gradient has shape ()")
def sum_loss_itself(loss, weight, batches):
    return sum(loss(weight, batch)[0].detach() for batch in batches)


@wrong("accumulated-gradient", "The gradient is a tuple")
def sum_tuple(loss, weight, batches):
    total, n = loss(weight, batches[0])
    return torch.autograd.grad(total / n, weight)


# token-budget -----------------------------------------------------------------------------------


def by_length(lengths):
    return sorted(range(len(lengths)), key=lambda i: lengths[i])


@right("token-budget")
def plan_appending(lengths, budget):
    batches = []
    for i in by_length(lengths):
        if batches and (len(batches[-1]) + 1) * lengths[i] <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


@right("token-budget")
def plan_ahead(lengths, budget):
    order, batches = by_length(lengths), []
    while order:
        most = 1
        while most < len(order) and (most + 1) * lengths[order[most]] <= budget:
            most += 1
        batches.append(order[:most])
        order = order[most:]
    return batches


def plan(lengths, budget, *, order=None, fits=None, first=None):
    """Plan with one of its parts replaced."""
    batches = [] if first is None else first
    for i in by_length(lengths) if order is None else order:
        held = [lengths[j] for j in batches[-1]] if batches else []
        cost = (len(held) + 1) * lengths[i] if fits is None else fits(held, lengths[i])
        if batches and cost <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


@wrong("token-budget", "The tokens were added up, without padding")
def plan_tokens(lengths, budget):
    return plan(lengths, budget, fits=lambda held, n: sum(held) + n)


@wrong("token-budget", "as they come")
def plan_unsorted(lengths, budget):
    def fits(held, n):
        return (len(held) + 1) * max([*held, n])

    return plan(lengths, budget, order=range(len(lengths)), fits=fits)


@wrong("token-budget", "from the longest to the shortest")
def plan_longest_first(lengths, budget):
    def fits(held, n):
        return (len(held) + 1) * max([*held, n])

    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return plan(lengths, budget, order=order, fits=fits)


@wrong("token-budget", "These are the lengths")
def plan_lengths(lengths, budget):
    return [[lengths[i] for i in batch] for batch in plan(lengths, budget)]


@wrong("token-budget", "These are places in the sorted list")
def plan_places(lengths, budget):
    return plan(sorted(lengths), budget)


@wrong("token-budget", "The last batch is missing")
def plan_open(lengths, budget):
    batches, batch = [], []
    for i in by_length(lengths):
        if batch and (len(batch) + 1) * lengths[i] > budget:
            batches.append(batch)
            batch = []
        batch.append(i)
    return batches


@wrong("token-budget", "An empty batch comes first")
def plan_empty(lengths, budget):
    return [[], *plan(lengths, budget)]


@wrong("token-budget", "With a budget of 5 each sequence is alone")
def plan_pairs(lengths, budget):
    return plan(lengths, max(budget, 6))


@wrong("token-budget", "compare with ≤")
def plan_strict(lengths, budget):
    return plan(lengths, budget - 1)


@wrong("token-budget", "The cost was compared before the sequence joined")
def plan_late(lengths, budget):
    return plan(lengths, budget, fits=lambda held, n: len(held) * n)


@wrong("token-budget", "The new one is the longest")
def plan_old_longest(lengths, budget):
    return plan(lengths, budget, fits=lambda held, n: (len(held) + 1) * max(held, default=0))


@wrong("token-budget", "the same number of sequences")
def plan_fixed(lengths, budget):
    most, order = budget // max(lengths), by_length(lengths)
    return [order[i : i + most] for i in range(0, len(order), most)]


@wrong("token-budget", "The sequences that did not fit are missing")
def plan_dropping(lengths, budget):
    batches = plan(lengths, budget)
    return batches[:1] + [batch[1:] for batch in batches[1:]]


@wrong("token-budget", "the shortest sequences come first")
def plan_reversed(lengths, budget):
    return plan(lengths, budget)[::-1]


@wrong("token-budget", "Of equally long sequences")
def plan_last_of_equals(lengths, budget):
    return plan(lengths, budget, order=sorted(range(len(lengths)), key=lambda i: (lengths[i], -i)))


@wrong("token-budget", "emptied its input `lengths`")
def plan_popping(lengths, budget):
    batches = plan(lengths, budget)
    while lengths:
        lengths.pop()
    return batches


@wrong("token-budget", "changed its input `lengths`")
def plan_sorting(lengths, budget):
    batches = plan(lengths, budget)
    lengths.sort()
    return batches


@wrong("token-budget", "raised ValueError: max()")
def plan_never_empty(lengths, budget):
    return plan(lengths, budget) if max(lengths) <= budget else []


@wrong("token-budget", "Return a list")
def plan_tuple(lengths, budget):
    return tuple(plan(lengths, budget))


# flat-loss --------------------------------------------------------------------------------------


def short(
    model, loss_of, batches, steps, rate, factor, *, zero="before", piled=False, early=0,
    scheduled=True, uphill=False, tensors=False,
):  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, maximize=uphill)
    losses, share = [], 1.0
    for step in range(steps):
        share = share * factor(step + early) if piled else factor(step + early)
        optimizer.param_groups[0]["lr"] = rate * share if scheduled else rate
        loss = loss_of(model, batches(step))
        if zero == "before":
            optimizer.zero_grad()
        loss.backward()
        if zero == "between":
            optimizer.zero_grad()
        optimizer.step()
        losses.append(loss if tensors else loss.item())
    return losses


@right("flat-loss")
def flat_mended(model, loss_of, batches, steps, rate, factor):
    return short(model, loss_of, batches, steps, rate, factor)


@right("flat-loss")
def flat_cleared_at_the_end(model, loss_of, batches, steps, rate, factor):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * factor(step)
        loss = loss_of(model, batches(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@wrong("flat-loss", "all factors so far")
def flat_with_one_fault_mended(model, loss_of, batches, steps, rate, factor):
    return short(model, loss_of, batches, steps, rate, factor, piled=True)


@wrong("flat-loss", "the new gradients are cleared")
def flat_with_the_other_mended(model, loss_of, batches, steps, rate, factor):
    return short(model, loss_of, batches, steps, rate, factor, zero="between")


@wrong("flat-loss", "never cleared")
def flat_without_clearing(model, loss_of, batches, steps, rate, factor):
    return short(model, loss_of, batches, steps, rate, factor, zero="never")


@wrong("flat-loss", "The schedule is not used")
def flat_without_schedule(model, loss_of, batches, steps, rate, factor):
    return short(model, loss_of, batches, steps, rate, factor, scheduled=False)


@wrong("flat-loss", "steps count from 0")
def flat_one_ahead(model, loss_of, batches, steps, rate, factor):
    return short(model, loss_of, batches, steps, rate, factor, early=1)


@wrong("flat-loss", "The weights after four steps differ")
def flat_uphill(model, loss_of, batches, steps, rate, factor):
    return short(model, loss_of, batches, steps, rate, factor, uphill=True)


@wrong("flat-loss", "Return one list")
def flat_with_the_model(model, loss_of, batches, steps, rate, factor):
    return model, short(model, loss_of, batches, steps, rate, factor)


# rate-search ------------------------------------------------------------------------------------


def search(run, rates, *, left=True, right=True, most=30, counts_nan=True, again=False, best=min):
    def loss_of(rate):
        loss = run(rate)
        return math.inf if counts_nan and math.isnan(loss) else loss

    told = {rate: loss_of(rate) for rate in rates}
    for _ in range(most):
        found = best(told, key=told.get)
        if found == max(told) and right:
            told[3 * found] = loss_of(3 * found)
        elif found == min(told) and left:
            told[found / 3] = loss_of(found / 3)
        else:
            break
        if again:
            told = {rate: loss_of(rate) for rate in told}
    return best(told, key=told.get)


def first_not_beaten(told, key):
    """The smallest as a loop finds it that starts with the last: nan is never beaten."""
    found, *others = reversed(told)
    for rate in others:
        found = rate if key(rate) < key(found) else found
    return found


@right("rate-search")
def search_widened(run, rates):
    return search(run, rates)


@right("rate-search")
def search_with_lists(run, rates):
    rates, losses = list(rates), [run(rate) for rate in rates]
    while True:
        losses = [math.inf if math.isnan(loss) else loss for loss in losses]
        at = losses.index(min(losses))
        if at == len(rates) - 1:
            rates.append(rates[-1] * 3)
            losses.append(run(rates[-1]))
        elif at == 0:
            rates.insert(0, rates[0] / 3)
            losses.insert(0, run(rates[0]))
        else:
            return rates[at]


@wrong("rate-search", "Try three times the largest")
def search_among_the_given(run, rates):
    return search(run, rates, most=0)


@wrong("rate-search", "Try a third of the smallest")
def search_to_the_right_only(run, rates):
    return search(run, rates, left=False)


@wrong("rate-search", "Go on")
def search_once_more(run, rates):
    return search(run, rates, most=1)


@wrong("rate-search", "no comparison with it is true")
def search_that_takes_nan_for_best(run, rates):
    return search(run, rates, counts_nan=False, best=first_not_beaten)


@wrong("rate-search", "A rate was tried twice")
def search_that_repeats(run, rates):
    return search(run, rates, again=True)


@wrong("rate-search", "More rates were tried than needed")
def search_everywhere(run, rates):
    return search(run, [rates[0] / 9, rates[0] / 3, *rates, 3 * rates[-1], 9 * rates[-1]])


@wrong("rate-search", "This is the largest rate that runs")
def search_for_the_highest(run, rates):
    return rates[-1]


# train-loop -------------------------------------------------------------------------------------


def loop(
    model, loss_of, batches, steps, rate, warmup, clip, *, zero=True, how="norm", warm=True,
    fall=True, late=False, decay=0.1, kind=torch.optim.AdamW, after=False,
):  # fmt: skip
    weights, losses, lengths = list(model.parameters()), [], []
    optimizer = kind(weights, lr=rate, betas=(0.9, 0.99), weight_decay=decay)
    for step in range(steps):
        at = step + late
        share = 0.5 * (1 + math.cos(math.pi * (at - warmup) / (steps - warmup))) if fall else 1.0
        if at < warmup:
            share = (at + 1) / (warmup + 1) if warm else 1.0
        optimizer.param_groups[0]["lr"] = rate * share
        loss = loss_of(model, batches(step))
        if zero:
            optimizer.zero_grad()
        loss.backward()
        length = torch.stack([w.grad.norm() for w in weights]).norm()
        if how == "norm":
            torch.nn.utils.clip_grad_norm_(weights, clip)
        elif how == "value":
            torch.nn.utils.clip_grad_value_(weights, clip)
        optimizer.step()
        losses.append(loss.item())
        lengths.append(min(length.item(), clip) if after else length.item())
    return losses, lengths


@right("train-loop")
def loop_in_one(model, loss_of, batches, steps, rate, warmup, clip):
    return loop(model, loss_of, batches, steps, rate, warmup, clip)


@right("train-loop")
def loop_with_a_scheduler(model, loss_of, batches, steps, rate, warmup, clip):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.1)
    course = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (s + 1) / (warmup + 1)
        if s < warmup
        else 0.5 * (1 + math.cos(math.pi * (s - warmup) / (steps - warmup))),
    )
    found = []
    for step in range(steps):
        loss = loss_of(model, batches(step))
        model.zero_grad()
        loss.backward()
        length = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        course.step()
        found.append((loss.detach(), length))
    losses, lengths = zip(*found, strict=True)
    return list(losses), list(lengths)


def _slip(message, **choices):
    def slipped(model, loss_of, batches, steps, rate, warmup, clip):
        return loop(model, loss_of, batches, steps, rate, warmup, clip, **choices)

    slipped.__name__ = "loop_with_" + "_".join(choices)
    wrong("train-loop", message)(slipped)


_slip("still there", zero=False)
_slip("is not clipped", how="none")
_slip("clipped by itself", how="value")
_slip("warm-up is missing", warm=False)
_slip("fall is missing", fall=False)
_slip("one step ahead", late=True)
_slip("do not decay", decay=0.0)
_slip("Adam with a penalty", kind=torch.optim.Adam)
_slip("after clipping", after=True)


@wrong("train-loop", "numbered from 0")
def loop_from_batch_one(model, loss_of, batches, steps, rate, warmup, clip):
    return loop(model, loss_of, lambda s: batches(s + 1), steps, rate, warmup, clip)


@wrong("train-loop", "Return two lists")
def loop_that_returns_losses(model, loss_of, batches, steps, rate, warmup, clip):
    return loop(model, loss_of, batches, steps, rate, warmup, clip)[0]


@wrong("train-loop", "one number for each of 7 steps")
def loop_that_stops_early(model, loss_of, batches, steps, rate, warmup, clip):
    losses, lengths = loop(model, loss_of, batches, steps, rate, warmup, clip)
    return losses[:-1], lengths
