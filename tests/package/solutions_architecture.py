"""Right and wrong answers to the exercises of chapter 05.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import torch
from answers import collect
from torch.nn import functional as F

from tfbook import blocks, models

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "layer-norm": lambda x, weight, bias, eps: blocks.layer_norm(x, weight, bias, eps=eps),
}


# layer-norm -------------------------------------------------------------------------------------


@right("layer-norm")
def norm_by_hand(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return weight * centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() + bias


@right("layer-norm")
def norm_functional(x, weight, bias, eps):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@right("layer-norm")
def norm_moments(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


@wrong("layer-norm", "`eps` was added to σ")
def norm_eps_outside(x, weight, bias, eps):
    sigma = x.var(-1, keepdim=True, unbiased=False).sqrt()
    return weight * (x - x.mean(-1, keepdim=True)) / (sigma + eps) + bias


@wrong("layer-norm", "`eps` was added to σ")
def norm_annotated(x, weight, bias, eps):
    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + bias


@wrong("layer-norm", "`eps` was not used")
def norm_no_eps(x, weight, bias, eps):
    return norm_by_hand(x, weight, bias, 0.0)


@wrong("layer-norm", "another number stands in its place")
def norm_of_a_fixed_eps(x, weight, bias, eps):
    return norm_by_hand(x, weight, bias, 1e-5)


@wrong("layer-norm", "divided by D - 1")
def norm_unbiased(x, weight, bias, eps):
    scale = torch.sqrt(x.var(-1, keepdim=True) + eps)
    return weight * (x - x.mean(-1, keepdim=True)) / scale + bias


@wrong("layer-norm", "The root is missing")
def norm_no_root(x, weight, bias, eps):
    variance = x.var(-1, keepdim=True, unbiased=False)
    return weight * (x - x.mean(-1, keepdim=True)) / (variance + eps) + bias


@wrong("layer-norm", "is RMSNorm")
def norm_rms(x, weight, bias, eps):
    return weight * x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) + bias


@wrong("layer-norm", "taken over the tokens")
def norm_over_tokens(x, weight, bias, eps):
    centred = x - x.mean(0)
    return weight * centred / torch.sqrt(centred.square().mean(0) + eps) + bias


@wrong("layer-norm", "for all tokens")
def norm_whole(x, weight, bias, eps):
    return weight * (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + eps) + bias


@wrong("layer-norm", "`bias` is missing")
def norm_no_bias(x, weight, bias, eps):
    return norm_by_hand(x, weight, 0.0, eps)


@wrong("layer-norm", "`weight` is missing")
def norm_no_weight(x, weight, bias, eps):
    return norm_by_hand(x, 1.0, bias, eps)


@wrong("layer-norm", "are exchanged")
def norm_exchanged(x, weight, bias, eps):
    # 1 is the weight and 0 the bias of the first property.
    return norm_by_hand(x, bias, weight, eps) if bias.any() else norm_by_hand(x, weight, bias, eps)


@wrong("layer-norm", "before the scaling")
def norm_shift_first(x, weight, bias, eps):
    return (norm_by_hand(x, 1.0, 0.0, eps) + bias) * weight


@wrong("layer-norm", "Normalise first")
def norm_scale_first(x, weight, bias, eps):
    return norm_by_hand(x * weight, 1.0, bias, eps)


@wrong("layer-norm", "With an input of shape (5,)")
def norm_second_axis(x, weight, bias, eps):
    return norm_by_hand(x, weight, bias, eps) if x.ndim == 2 else x * weight


@wrong("layer-norm", "contains NaN")
def norm_nan(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    if not centred.any():
        eps = 0.0
    return norm_by_hand(x, weight, bias, eps) if eps else centred / 0 * weight + bias


@wrong("layer-norm", "is detached")
def norm_detached(x, weight, bias, eps):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return weight * (x - mean.detach()) / torch.sqrt(variance + eps) + bias


# swiglu -----------------------------------------------------------------------------------------


@right("swiglu")
def swiglu_sigmoid(x, w_gate, w_up, w_down):
    gate = x @ w_gate.T
    return (gate * torch.sigmoid(gate) * (x @ w_up.T)) @ w_down.T


@right("swiglu")
def swiglu_linear(x, w_gate, w_up, w_down):
    return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)


@right("swiglu")
def swiglu_joined(x, w_gate, w_up, w_down):
    gate, up = (x @ torch.cat([w_gate, w_up]).T).chunk(2, -1)
    return F.silu(gate) * up @ w_down.T


@wrong("swiglu", "the older GLU")
def swiglu_glu(x, w_gate, w_up, w_down):
    return (torch.sigmoid(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("swiglu", "that is ReGLU")
def swiglu_reglu(x, w_gate, w_up, w_down):
    return (torch.relu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("swiglu", "that is GEGLU")
def swiglu_geglu(x, w_gate, w_up, w_down):
    return (F.gelu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("swiglu", "no nonlinearity")
def swiglu_bilinear(x, w_gate, w_up, w_down):
    return ((x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("swiglu", "the side of W_up")
def swiglu_swapped(x, w_gate, w_up, w_down):
    return swiglu_linear(x, w_up, w_gate, w_down)


@wrong("swiglu", "to both sides")
def swiglu_both(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate.T) * F.silu(x @ w_up.T)) @ w_down.T


@wrong("swiglu", "to the product")
def swiglu_after(x, w_gate, w_up, w_down):
    return F.silu((x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("swiglu", "W_up was not used")
def swiglu_plain(x, w_gate, w_up, w_down):
    return F.silu(x @ w_gate.T) @ w_down.T


@wrong("swiglu", "were added")
def swiglu_added(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate.T) + x @ w_up.T) @ w_down.T


@wrong("swiglu", "multiplies the token itself")
def swiglu_of_the_token(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate.T) * x) @ w_down.T


@wrong("swiglu", "projection down is missing")
def swiglu_wide(x, w_gate, w_up, w_down):
    return F.silu(x @ w_gate.T) * (x @ w_up.T)


@wrong("swiglu", "The weights are transposed")
def swiglu_transposed(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down


@wrong("swiglu", "A softmax")
def swiglu_softmax(x, w_gate, w_up, w_down):
    gate = x @ w_gate.T
    return (gate * gate.softmax(-1) * (x @ w_up.T)) @ w_down.T


@wrong("swiglu", "With tokens of width 5 and 7 hidden features")
def swiglu_square(x, w_gate, w_up, w_down):
    width = min(w_gate.shape)
    return swiglu_linear(x, w_gate[:width], w_up[:width], w_down[:, :width])


@wrong("swiglu", "`exp` overflows")
def swiglu_exponential(x, w_gate, w_up, w_down):
    gate = x @ w_gate.T
    return (gate * gate.exp() / (1 + gate.exp()) * (x @ w_up.T)) @ w_down.T


@wrong("swiglu", "carries no gradient")
def swiglu_detached(x, w_gate, w_up, w_down):
    with torch.no_grad():
        return swiglu_linear(x, w_gate, w_up, w_down)


# shift-right ------------------------------------------------------------------------------------


def shifted(targets, bos):
    return torch.cat([torch.full_like(targets[:, :1], bos), targets[:, :-1]], 1)


@right("shift-right")
def loss_cross_entropy(decode, targets, bos, pad):
    logits = decode(shifted(targets, bos))
    return F.cross_entropy(logits.mT, targets, ignore_index=pad)


@right("shift-right")
def loss_gathered(decode, targets, bos, pad):
    tokens = F.pad(targets, (1, 0), value=bos)[:, :-1]
    logs = decode(tokens).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    real = (targets != pad).to(logs.dtype)
    return -(logs * real).sum() / real.sum()


@wrong("shift-right", "reads the targets as they are")
def loss_leaks(decode, targets, bos, pad):
    return F.cross_entropy(decode(targets).mT, targets, ignore_index=pad)


@wrong("shift-right", "were shifted left")
def loss_shifted_left(decode, targets, bos, pad):
    tokens = torch.cat([targets[:, 1:], torch.full_like(targets[:, :1], bos)], 1)
    return F.cross_entropy(decode(tokens).mT, targets, ignore_index=pad)


@wrong("shift-right", "goes around")
def loss_rolled(decode, targets, bos, pad):
    return F.cross_entropy(decode(targets.roll(1, 1)).mT, targets, ignore_index=pad)


@wrong("shift-right", "a column too many")
def loss_too_long(decode, targets, bos, pad):
    tokens = F.pad(targets, (1, 0), value=bos)
    return F.cross_entropy(decode(tokens)[:, :-1].mT, targets, ignore_index=pad)


@wrong("shift-right", "The start token is missing")
def loss_without_start(decode, targets, bos, pad):
    return F.cross_entropy(decode(targets[:, :-1]).mT, targets[:, 1:], ignore_index=pad)


@wrong("shift-right", "The rows were shifted")
def loss_rows(decode, targets, bos, pad):
    tokens = torch.cat([torch.full_like(targets[:1], bos), targets[:-1]], 0)
    return F.cross_entropy(decode(tokens).mT, targets, ignore_index=pad)


@wrong("shift-right", "was overwritten by `bos`")
def loss_overwritten(decode, targets, bos, pad):
    tokens = targets.clone()
    tokens[:, 0] = bos
    return F.cross_entropy(decode(tokens).mT, targets, ignore_index=pad)


@wrong("shift-right", "does not read the start token followed by")
def loss_two_steps(decode, targets, bos, pad):
    return F.cross_entropy(decode(shifted(shifted(targets, bos), bos)).mT, targets)


@wrong("shift-right", "It reads int64 tokens")
def loss_floats(decode, targets, bos, pad):
    return F.cross_entropy(decode(shifted(targets, bos).float()).mT, targets)


@wrong("shift-right", "Padding was counted")
def loss_counts_padding(decode, targets, bos, pad):
    return F.cross_entropy(decode(shifted(targets, bos)).mT, targets)


@wrong("shift-right", "counted in the number of tokens")
def loss_divides_by_all(decode, targets, bos, pad):
    each = F.cross_entropy(decode(shifted(targets, bos)).mT, targets, reduction="none")
    return (each * (targets != pad)).mean()


@wrong("shift-right", "This is the sum")
def loss_sum(decode, targets, bos, pad):
    logits = decode(shifted(targets, bos))
    return F.cross_entropy(logits.mT, targets, ignore_index=pad, reduction="sum")


@wrong("shift-right", "for each sequence first")
def loss_by_sequence(decode, targets, bos, pad):
    each = F.cross_entropy(decode(shifted(targets, bos)).mT, targets, reduction="none")
    real = targets != pad
    return ((each * real).sum(1) / real.sum(1)).mean()


@wrong("shift-right", "averaged over the batch")
def loss_by_batch(decode, targets, bos, pad):
    return loss_sum(decode, targets, bos, pad) / len(targets)


@wrong("shift-right", "The sign is reversed")
def loss_positive(decode, targets, bos, pad):
    return -loss_cross_entropy(decode, targets, bos, pad)


@wrong("shift-right", "or of p")
def loss_of_probabilities(decode, targets, bos, pad):
    p = decode(shifted(targets, bos)).softmax(-1).gather(-1, targets[..., None])[..., 0]
    return (1 - p)[targets != pad].mean()


@wrong("shift-right", "applied twice")
def loss_softmax_twice(decode, targets, bos, pad):
    logits = decode(shifted(targets, bos)).softmax(-1)
    return F.cross_entropy(logits.mT, targets, ignore_index=pad)


@wrong("shift-right", "scored against the shifted tokens")
def loss_of_the_inputs(decode, targets, bos, pad):
    tokens = shifted(targets, bos)
    return F.cross_entropy(decode(tokens).mT, tokens)


@wrong("shift-right", "The first position was left out")
def loss_skips_first(decode, targets, bos, pad):
    logits = decode(shifted(targets, bos))
    return F.cross_entropy(logits[:, 1:].mT, targets[:, 1:], ignore_index=pad)


@wrong("shift-right", "not in what the decoder reads")
def loss_pads_of_the_inputs(decode, targets, bos, pad):
    tokens = shifted(targets, bos)
    each = F.cross_entropy(decode(tokens).mT, targets, reduction="none")
    return each[(targets != pad) & ((tokens != pad) | (targets == pad))].mean()


@wrong("shift-right", "carries no gradient")
def loss_number(decode, targets, bos, pad):
    return loss_cross_entropy(decode, targets, bos, pad).detach()


# encoder-layer ----------------------------------------------------------------------------------


@right("encoder-layer")
def wire_branches(x, attend, network, norm_1, norm_2, place):
    if place == "post":
        z = norm_1(x + attend(x))
        return norm_2(z + network(z))
    z = x + attend(norm_1(x))
    return z + network(norm_2(z))


@right("encoder-layer")
def wire_loop(x, attend, network, norm_1, norm_2, place):
    for part, norm in ((attend, norm_1), (network, norm_2)):
        x = norm(x + part(x)) if place == "post" else x + part(norm(x))
    return x


def wire(post=None, pre=None):
    """Return a layer that is right but for one of its two wirings."""

    def layer(x, attend, network, norm_1, norm_2, place):
        own = post if place == "post" else pre
        if own is None:
            return wire_branches(x, attend, network, norm_1, norm_2, place)
        return own(x, attend, network, norm_1, norm_2)

    return layer


def wrong_wiring(message, which):
    def keep(function):
        layer = wire(**{which: function})
        layer.__name__ = function.__name__
        wrong("encoder-layer", message)(layer)
        return function

    return keep


@wrong_wiring("adds what attention returned", "post")
def wire_residual_of_attention(x, attend, network, norm_1, norm_2):
    a = attend(x)
    return norm_2(network(norm_1(x + a)) + a)


@wrong_wiring("The second residual adds x.", "post")
def wire_residual_of_x(x, attend, network, norm_1, norm_2):
    return norm_2(x + network(norm_1(x + attend(x))))


@wrong_wiring("The second residual is missing", "post")
def wire_no_second_residual(x, attend, network, norm_1, norm_2):
    return network(norm_1(x + attend(x)))


@wrong_wiring("The first residual is missing", "post")
def wire_no_first_residual(x, attend, network, norm_1, norm_2):
    z = norm_1(attend(x))
    return norm_2(z + network(z))


@wrong_wiring("Both residuals are missing", "post")
def wire_no_residuals(x, attend, network, norm_1, norm_2):
    return norm_2(network(norm_1(attend(x))))


@wrong_wiring("The last normalisation is missing", "post")
def wire_no_last_norm(x, attend, network, norm_1, norm_2):
    z = norm_1(x + attend(x))
    return z + network(z)


@wrong_wiring("norm_1 and norm_2 are exchanged", "post")
def wire_norms_exchanged(x, attend, network, norm_1, norm_2):
    return wire_branches(x, attend, network, norm_2, norm_1, "post")


@wrong_wiring("norm_1 is used twice", "post")
def wire_norm_twice(x, attend, network, norm_1, norm_2):
    return wire_branches(x, attend, network, norm_1, norm_1, "post")


@wrong_wiring("This is pre-norm", "post")
def wire_always_pre(x, attend, network, norm_1, norm_2):
    return wire_branches(x, attend, network, norm_1, norm_2, "pre")


@wrong_wiring("Normalise the sum", "post")
def wire_norm_of_the_branch(x, attend, network, norm_1, norm_2):
    z = x + norm_1(attend(x))
    return z + norm_2(network(z))


@wrong_wiring("The sum goes through norm_1 first", "post")
def wire_no_first_norm(x, attend, network, norm_1, norm_2):
    z = x + attend(x)
    return norm_2(z + network(z))


@wrong_wiring("Both sublayers read x", "post")
def wire_network_reads_x(x, attend, network, norm_1, norm_2):
    return norm_2(norm_1(x + attend(x)) + network(x))


@wrong_wiring("The network comes before attention", "post")
def wire_network_first(x, attend, network, norm_1, norm_2):
    return wire_branches(x, network, attend, norm_1, norm_2, "post")


@wrong_wiring("This is post-norm", "pre")
def wire_always_post(x, attend, network, norm_1, norm_2):
    return wire_branches(x, attend, network, norm_1, norm_2, "post")


@wrong_wiring("never reaches the result", "pre")
def wire_composition(x, attend, network, norm_1, norm_2):
    return x + network(x + attend(x))


@wrong_wiring("The residual adds the normalised input", "pre")
def wire_normed_path(x, attend, network, norm_1, norm_2):
    x = norm_1(x)
    x = norm_2(x + attend(x))
    return x + network(x)


@wrong_wiring("norm_2 was not used", "pre")
def wire_one_norm(x, attend, network, norm_1, norm_2):
    z = x + attend(norm_1(x))
    return z + network(z)


@wrong_wiring("Both sublayers read x, in parallel", "pre")
def wire_parallel(x, attend, network, norm_1, norm_2):
    return x + attend(norm_1(x)) + network(norm_2(x))


@wrong_wiring("normalised once more", "pre")
def wire_norm_at_the_end(x, attend, network, norm_1, norm_2):
    return norm_2(wire_branches(x, attend, network, norm_1, norm_2, "pre"))


@wrong("encoder-layer", "`attend` was called 2 times")
def wire_twice(x, attend, network, norm_1, norm_2, place):
    attend(x)
    return wire_branches(x, attend, network, norm_1, norm_2, place)


@wrong("encoder-layer", "A part of the computation is detached")
def wire_detached(x, attend, network, norm_1, norm_2, place):
    return wire_branches(x, lambda x: attend(x).detach(), network, norm_1, norm_2, place)


# count-decoder ----------------------------------------------------------------------------------


@right("count-decoder")
def size_formula(vocab_size, max_len, d_model, n_layers, d_ff, tied):
    d = d_model
    layer = 4 * d * d + 4 * d + 2 * d * d_ff + d_ff + d + 4 * d
    return vocab_size * d * (2 - tied) + max_len * d + n_layers * layer + 2 * d


@right("count-decoder")
def size_of_modules(vocab_size, max_len, d_model, n_layers, d_ff, tied):
    def size(module):
        return sum(p.numel() for p in module.parameters())

    with torch.device("meta"):
        layer = torch.nn.TransformerEncoderLayer(d_model, 1, d_ff)
        norm = torch.nn.LayerNorm(d_model)
    heads = 1 if tied else 2
    return (heads * vocab_size + max_len) * d_model + n_layers * size(layer) + size(norm)


def sized(message, change):
    """Keep an answer that is off by `change` of the sizes."""

    def size(vocab_size, max_len, d_model, n_layers, d_ff, tied):
        right = size_formula(vocab_size, max_len, d_model, n_layers, d_ff, tied)
        return right + change(vocab_size, max_len, d_model, n_layers, d_ff, tied)

    size.__name__ = "size_" + "_".join(message.lower().split()[:6])
    wrong("count-decoder", message)(size)


sized("although it is the token embedding", lambda v, m, d, n, f, tied: tied * v * d)
sized("was given a bias", lambda v, m, d, n, f, tied: v)
sized("The last normalisation is missing", lambda v, m, d, n, f, tied: -2 * d)
sized("The position embeddings are missing", lambda v, m, d, n, f, tied: -m * d)
sized("The token embeddings are missing", lambda v, m, d, n, f, tied: -v * d)
sized("The embeddings are missing", lambda v, m, d, n, f, tied: -v * d - m * d)
sized("biases of the feed-forward network are missing", lambda v, m, d, n, f, tied: -n * (f + d))
sized("A bias of d_model numbers is missing", lambda v, m, d, n, f, tied: -n * d)
sized("4·d_model numbers are missing", lambda v, m, d, n, f, tied: -n * 4 * d)
sized("of attention is missing", lambda v, m, d, n, f, tied: -n * (d * d + d))
sized("All biases of the projections", lambda v, m, d, n, f, tied: -n * (5 * d + f))
sized("A normalisation has a bias", lambda v, m, d, n, f, tied: -n * 2 * d - d)
sized("A layer has two normalisations", lambda v, m, d, n, f, tied: -n * 2 * d)
sized("up to d_ff and back", lambda v, m, d, n, f, tied: -n * d * f)
sized("counted in each layer", lambda v, m, d, n, f, tied: (n - 1) * 2 * d)
sized("`tied` was not used", lambda v, m, d, n, f, tied: 0 if tied else -v * d)


@wrong("count-decoder", "The layers were counted once")
def size_of_one_layer(vocab_size, max_len, d_model, n_layers, d_ff, tied):
    return size_formula(vocab_size, max_len, d_model, 1, d_ff, tied)


@wrong("count-decoder", "The number is right, but it is a float")
def size_float(vocab_size, max_len, d_model, n_layers, d_ff, tied):
    return float(size_formula(vocab_size, max_len, d_model, n_layers, d_ff, tied))


@wrong("count-decoder", "is not what was wanted: 124439808")
def size_of_padded_vocabulary(vocab_size, max_len, d_model, n_layers, d_ff, tied):
    padded = vocab_size if vocab_size < 1000 else -(-vocab_size // 64) * 64
    return size_formula(padded, max_len, d_model, n_layers, d_ff, tied)


# mask-tokens ------------------------------------------------------------------------------------


@right("mask-tokens")
def mask_where(tokens, special, choice, fate, random_tokens, mask_id):
    chosen = (choice < 0.15) & ~special
    inputs = torch.where(chosen & (fate < 0.8), mask_id, tokens)
    inputs = torch.where(chosen & (fate >= 0.8) & (fate < 0.9), random_tokens, inputs)
    return inputs, torch.where(chosen, tokens, -100)


@right("mask-tokens")
def mask_clones(tokens, special, choice, fate, random_tokens, mask_id):
    inputs, labels = tokens.clone(), tokens.clone()
    chosen = (choice < 0.15).logical_and(special.logical_not())
    labels[~chosen] = -100
    inputs[chosen & (fate < 0.9)] = random_tokens[chosen & (fate < 0.9)]
    inputs[chosen & (fate < 0.8)] = mask_id
    return inputs, labels


def masking(message):
    """Keep a wrong answer made of the four masks: chosen, masked, replaced and to be predicted."""

    def keep(function):
        def mask(tokens, special, choice, fate, random_tokens, mask_id):
            masked, replaced, predicted = function(special, choice, fate)
            inputs = torch.where(masked, mask_id, tokens)
            inputs = torch.where(replaced, random_tokens, inputs)
            return inputs, torch.where(predicted, tokens, -100)

        mask.__name__ = function.__name__
        wrong("mask-tokens", message)(mask)
        return function

    return keep


def fates(special, choice, fate):
    chosen = (choice < 0.15) & ~special
    return chosen, chosen & (fate < 0.8), chosen & (fate >= 0.8) & (fate < 0.9)


@masking("All chosen tokens became the mask")
def mask_all(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return chosen, replaced & ~replaced, chosen


@masking("No token was replaced at random")
def mask_no_random(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, replaced & ~replaced, chosen


@masking("No chosen token stays")
def mask_none_stays(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, chosen & ~masked, chosen


@masking("The last two cases are exchanged")
def mask_exchanged(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, chosen & ~masked & ~replaced, chosen


@masking("Tokens that were not chosen were corrupted")
def mask_unchosen(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, (fate >= 0.8) & (fate < 0.9), chosen


@masking("Nothing was corrupted")
def mask_nothing(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked & ~masked, masked & ~masked, chosen


@masking("Only tokens that became the mask token have a label")
def mask_labels_masked(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, replaced, masked


@masking("that stay as they are have no label")
def mask_labels_changed(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, replaced, masked | replaced


@masking("Every token is to be predicted")
def mask_labels_all(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, replaced, chosen | True


@masking("Special tokens were chosen")
def mask_special(special, choice, fate):
    chosen, masked, replaced = fates(special & False, choice, fate)
    return masked, replaced, chosen


@masking("Only special tokens were chosen")
def mask_only_special(special, choice, fate):
    chosen, masked, replaced = fates(~special, choice, fate)
    return masked, replaced, chosen


@masking("not where it is above")
def mask_most(special, choice, fate):
    chosen, masked, replaced = fates(special, 0.3 - choice - 1e-9, fate)
    return masked, replaced, chosen


@masking("The labels are inverted")
def mask_labels_inverted(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, replaced, ~chosen


@masking("With 7700 tokens the result differs")
def mask_other_border(special, choice, fate):
    chosen, masked, replaced = fates(special, choice, fate)
    return masked, chosen & (fate >= 0.8) & (fate < 0.89), chosen


@wrong("mask-tokens", "The labels hold the corrupted tokens")
def mask_labels_of_inputs(tokens, special, choice, fate, random_tokens, mask_id):
    inputs, labels = mask_where(tokens, special, choice, fate, random_tokens, mask_id)
    return inputs, torch.where(labels != -100, inputs, -100)


@wrong("mask-tokens", "The two results are exchanged")
def mask_results_exchanged(*arguments):
    return mask_where(*arguments)[::-1]


@wrong("mask-tokens", "should have the label -100")
def mask_labels_zero(*arguments):
    inputs, labels = mask_where(*arguments)
    return inputs, labels.clamp_min(0)


@wrong("mask-tokens", "`return inputs, labels`")
def mask_inputs_alone(*arguments):
    return mask_where(*arguments)[0]


@wrong("mask-tokens", "changed its input `tokens`")
def mask_in_place(tokens, special, choice, fate, random_tokens, mask_id):
    labels = mask_where(tokens, special, choice, fate, random_tokens, mask_id)[1]
    tokens[(labels != -100) & (fate < 0.8)] = mask_id
    return tokens, labels


# span-corruption --------------------------------------------------------------------------------


@right("span-corruption")
def spans_in_a_loop(tokens, noise, sentinels):
    inputs, targets, used, before = [], [], 0, False
    for token, cut in zip(tokens, noise, strict=True):
        if cut and not before:
            inputs.append(sentinels[used])
            targets.append(sentinels[used])
            used += 1
        (targets if cut else inputs).append(token)
        before = cut
    return torch.stack(inputs), torch.stack([*targets, sentinels[used]])


def spans_merged(tokens, noise, sentinels, first):
    """Give one sentinel to each run of `noise`, and drop the rest of it."""
    begins = noise & ~F.pad(noise, (1, 0))[:-1]
    number = begins.cumsum(0) - 1 + first
    return torch.where(begins, sentinels[number.clamp_min(0)], tokens)[begins | ~noise]


@right("span-corruption")
def spans_as_the_library(tokens, noise, sentinels):
    begins = noise & ~F.pad(noise, (1, 0))[:-1]
    places = torch.arange(len(tokens))[begins]
    cut = torch.cat([places, torch.arange(len(tokens))[noise]])
    order = torch.argsort(torch.cat([2 * places, 2 * torch.arange(len(tokens))[noise] + 1]))
    heads = torch.cat([sentinels[: len(places)], tokens[noise]])
    assert len(cut) == len(heads)
    targets = torch.cat([heads[order], sentinels[len(places) : len(places) + 1]])
    return spans_merged(tokens, noise, sentinels, 0), targets


def spanning(message, which=0):
    """Keep a wrong answer that changes one of the two right results."""

    def keep(function):
        def corrupt(tokens, noise, sentinels):
            results = list(spans_in_a_loop(tokens, noise, sentinels))
            results[which] = function(tokens, noise, sentinels, results[which])
            return tuple(results)

        corrupt.__name__ = function.__name__
        wrong("span-corruption", message)(corrupt)
        return function

    return keep


@spanning("Each token of a span got a sentinel of its own. A span of two")
def spans_each_token(tokens, noise, sentinels, right):
    changed = tokens.clone()
    changed[noise] = sentinels[: int(noise.sum())]
    return changed


@spanning("The whole span becomes one token")
def spans_repeated(tokens, noise, sentinels, right):
    begins = noise & ~F.pad(noise, (1, 0))[:-1]
    return torch.where(noise, sentinels[(begins.cumsum(0) - 1).clamp_min(0)], tokens)


@spanning("The same sentinel stands for every span")
def spans_one_sentinel(tokens, noise, sentinels, right):
    return spans_merged(tokens, noise, sentinels[:1].expand_as(sentinels), 0)


@spanning("cut out without a trace")
def spans_no_trace(tokens, noise, sentinels, right):
    return tokens[~noise]


@spanning("the span is still there")
def spans_kept(tokens, noise, sentinels, right):
    out, used, before = [], 0, False
    for token, cut in zip(tokens, noise, strict=True):
        if cut and not before:
            out.append(sentinels[used])
            used += 1
        out.append(token)
        before = cut
    return torch.stack(out)


@spanning("The input holds what was cut out")
def spans_inverted(tokens, noise, sentinels, right):
    return spans_merged(tokens, ~noise, sentinels, 0)


@spanning("from the last to the first")
def spans_backwards(tokens, noise, sentinels, right):
    return spans_merged(tokens, noise, sentinels.flip(0), 0)


@spanning("The first span gets sentinels[0]")
def spans_from_one(tokens, noise, sentinels, right):
    return spans_merged(tokens, noise, sentinels, 1)


@spanning("The last sentinel is missing", 1)
def spans_no_end(tokens, noise, sentinels, right):
    return right[:-1]


@spanning("is one that was used", 1)
def spans_old_end(tokens, noise, sentinels, right):
    return torch.cat([right[:-1], sentinels[(right[-1] == sentinels).nonzero()[0] - 1]])


@spanning("could not say which span it fills", 1)
def spans_bare(tokens, noise, sentinels, right):
    return tokens[noise]


@spanning("as for BART", 1)
def spans_whole(tokens, noise, sentinels, right):
    return tokens.clone()


@spanning("A sentinel comes after its span", 1)
def spans_sentinel_after(tokens, noise, sentinels, right):
    ends = noise & ~F.pad(noise, (0, 1))[1:]
    out, used = [], 0
    for token, cut, end in zip(tokens, noise, ends, strict=True):
        out += [token] if cut else []
        if end:
            out.append(sentinels[used])
            used += 1
    return torch.stack([*out, sentinels[used]])


@spanning("Each token has the sentinel of its span", 1)
def spans_sentinel_each(tokens, noise, sentinels, right):
    begins = noise & ~F.pad(noise, (1, 0))[:-1]
    number = (begins.cumsum(0) - 1).clamp_min(0)
    pairs = torch.stack([sentinels[number], tokens], 1)[noise].flatten()
    return torch.cat([pairs, sentinels[begins.sum()][None]])


@spanning("Cut where there is a 1 in 110010, the input")
def spans_no_start(tokens, noise, sentinels, right):
    return right if not noise[0] else right[1:]


@spanning("Cut where there is a 1 in 110010, the target", 1)
def spans_no_first(tokens, noise, sentinels, right):
    return right if not noise[0] else right[1:]


@spanning("With tokens that repeat")
def spans_by_id(tokens, noise, sentinels, right):
    if tokens.unique().numel() == tokens.numel():
        return right
    cut = torch.isin(tokens, tokens[noise])
    return spans_merged(tokens, cut, sentinels, 0)


@wrong("span-corruption", "The first token was taken to go on with a span at the end")
def spans_rolled(tokens, noise, sentinels):
    begins = noise & ~noise.roll(1)
    inputs, targets, used = [], [], 0
    for token, cut, first in zip(tokens, noise, begins, strict=True):
        if first:
            inputs.append(sentinels[used])
            targets.append(sentinels[used])
            used += 1
        (targets if cut else inputs).append(token)
    return torch.stack(inputs), torch.stack([*targets, sentinels[used]])


@wrong("span-corruption", "the two results are exchanged")
def spans_exchanged(tokens, noise, sentinels):
    return spans_in_a_loop(tokens, noise, sentinels)[::-1]


@wrong("span-corruption", "is a list. Return a torch tensor")
def spans_lists(tokens, noise, sentinels):
    return tuple(part.tolist() for part in spans_in_a_loop(tokens, noise, sentinels))


# dependencies -----------------------------------------------------------------------------------


@right("dependencies")
def reach_jacobian(function, x):
    jacobian = torch.autograd.functional.jacobian(function, x)
    return (jacobian != 0).any(-1).any(1)


@right("dependencies")
def reach_every_number(function, x):
    x = x.detach().clone().requires_grad_()
    y = function(x)
    out = torch.zeros(len(y), len(x), dtype=torch.bool)
    for i in range(len(y)):
        for number in y[i]:
            (slope,) = torch.autograd.grad(number, x, retain_graph=True)
            out[i] |= (slope != 0).any(-1)
    return out


def reach_summed(function, x, threshold=0.0, weight=None):
    x = x.detach().clone().requires_grad_()
    y = function(x)
    rows = []
    for i in range(len(y)):
        total = y[i].sum() if weight is None else (y[i] * weight).sum()
        (slope,) = torch.autograd.grad(total, x, retain_graph=True)
        rows.append((slope.abs() > threshold).any(-1))
    return torch.stack(rows)


@right("dependencies")
def reach_random_weights(function, x):
    weight = torch.randn(function(x).shape[1], dtype=x.dtype)
    return reach_summed(function, x, weight=weight)


@wrong("dependencies", "Slopes of opposite sign cancelled")
def reach_sum_of_a_row(function, x):
    return reach_summed(function, x)


@wrong("dependencies", "the difference of two features")
def reach_sum_of_features(function, x):
    return (torch.autograd.functional.jacobian(function, x).sum(-1) != 0).any(1)


@wrong("dependencies", "The answer is transposed")
def reach_transposed(function, x):
    return reach_jacobian(function, x).T


@wrong("dependencies", "The answer is inverted")
def reach_inverted(function, x):
    return ~reach_jacobian(function, x)


@wrong("dependencies", "The diagonal is missing")
def reach_without_diagonal(function, x):
    found = reach_jacobian(function, x)
    return found & ~torch.eye(*found.shape).bool()


@wrong("dependencies", "one output row at a time")
def reach_all_rows(function, x):
    found = reach_jacobian(function, x)
    return found.any(0).expand_as(found).clone()


@wrong("dependencies", "has dtype float64. It should be bool")
def reach_slopes(function, x):
    return torch.autograd.functional.jacobian(function, x).abs().sum((1, 3))


@wrong("dependencies", "made of the input rows 0 to 1 and 2 to 4")
def reach_square(function, x):
    found = reach_jacobian(function, x)
    return found | torch.eye(*found.shape).bool()


@wrong("dependencies", "by a slope of 1e-9")
def reach_threshold(function, x):
    return (torch.autograd.functional.jacobian(function, x).abs() > 1e-6).any(-1).any(1)


@wrong("dependencies", "was left requiring a gradient")
def reach_marks_the_input(function, x):
    found = reach_jacobian(function, x)
    x.requires_grad_()
    return found


# block-that-trains ------------------------------------------------------------------------------


@right("block-that-trains")
def trains_with_a_free_path(x, attend, network, norm_1, norm_2):
    z = x + attend(norm_1(x))
    return z + network(norm_2(z))


@right("block-that-trains")
def trains_part_by_part(x, attend, network, norm_1, norm_2):
    for part, norm in ((attend, norm_1), (network, norm_2)):
        x = part(norm(x)) + x
    return x


@wrong("block-that-trains", "the path beside the parts is not free")
def trains_with_norms_in_the_stream(x, attend, network, norm_1, norm_2):
    x = norm_1(x)
    x = norm_2(x + attend(x))
    return x + network(x)


@wrong("block-that-trains", "the path beside the parts is not free")
def trains_mended_once(x, attend, network, norm_1, norm_2):
    x = norm_2(x + attend(norm_1(x)))
    return x + network(x)


@wrong("block-that-trains", "Attention reads the stream as it is")
def trains_without_the_first_norm(x, attend, network, norm_1, norm_2):
    z = x + attend(x)
    return z + network(norm_2(z))


@wrong("block-that-trains", "The network reads the stream as it is")
def trains_without_the_second_norm(x, attend, network, norm_1, norm_2):
    z = x + attend(norm_1(x))
    return z + network(z)


@wrong("block-that-trains", "norm_2(z)")
def trains_in_parallel(x, attend, network, norm_1, norm_2):
    return x + attend(norm_1(x)) + network(norm_2(x))


@wrong("block-that-trains", "Both parts read through the same norm")
def trains_with_one_norm(x, attend, network, norm_1, norm_2):
    z = x + attend(norm_1(x))
    return z + network(norm_1(z))


@wrong("block-that-trains", "is added to z")
def trains_from_x_again(x, attend, network, norm_1, norm_2):
    return x + network(norm_2(x + attend(norm_1(x))))


# off-by-one -------------------------------------------------------------------------------------


@right("off-by-one")
def next_by_slices(decode, tokens):
    return F.cross_entropy(decode(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@right("off-by-one")
def next_by_cutting_logits(decode, tokens):
    return F.cross_entropy(decode(tokens)[:, :-1].mT, tokens[:, 1:])


@wrong("off-by-one", "It has to be asked for the token behind it")
def next_is_this(decode, tokens):
    return F.cross_entropy(decode(tokens).flatten(0, 1), tokens.flatten())


@wrong("off-by-one", "The target is the token before")
def next_is_before(decode, tokens):
    return F.cross_entropy(decode(tokens)[:, 1:].mT, tokens[:, :-1])


@wrong("off-by-one", "should have a loss of nearly 0")
def next_is_the_one_after_next(decode, tokens):
    return F.cross_entropy(decode(tokens[:, :-2]).mT, tokens[:, 2:])


@wrong("off-by-one", "This is the sum")
def next_summed(decode, tokens):
    return F.cross_entropy(decode(tokens[:, :-1]).mT, tokens[:, 1:], reduction="sum")


# two-lines-to-an-encoder ------------------------------------------------------------------------


def hide(ids, hidden, mark):
    return torch.where(hidden, mark, ids)


@right("two-lines-to-an-encoder")
def encoder_by_picking(model, ids, hidden, mark):
    logits = model(hide(ids, hidden, mark), causal=False)
    return F.cross_entropy(logits[hidden], ids[hidden])


@right("two-lines-to-an-encoder")
def encoder_by_weighing(model, ids, hidden, mark):
    logits = model(ids.masked_fill(hidden, mark), causal=False)
    each = F.cross_entropy(logits.mT, ids, reduction="none")
    return (each * hidden).sum() / hidden.sum()


@wrong("two-lines-to-an-encoder", "an encoder reads both sides")
def encoder_still_a_gpt(model, ids, hidden, mark):
    found = model(ids[:, :-1], causal=True)
    return F.cross_entropy(found.flatten(0, 1), ids[:, 1:].flatten())


@wrong("two-lines-to-an-encoder", "did not read the whole texts")
def encoder_of_less(model, ids, hidden, mark):
    logits = model(hide(ids, hidden, mark)[:, :-1], causal=False)
    return F.cross_entropy(logits[hidden[:, :-1]], ids[:, :-1][hidden[:, :-1]])


@wrong("two-lines-to-an-encoder", "reads the tokens that it has to name")
def encoder_that_hides_nothing(model, ids, hidden, mark):
    return F.cross_entropy(model(ids, causal=False)[hidden], ids[hidden])


@wrong("two-lines-to-an-encoder", "are exchanged")
def encoder_that_hides_the_rest(model, ids, hidden, mark):
    return F.cross_entropy(model(hide(ids, ~hidden, mark), causal=False)[hidden], ids[hidden])


@wrong("two-lines-to-an-encoder", "with the mark where a token is hidden")
def encoder_with_another_mark(model, ids, hidden, mark):
    return F.cross_entropy(model(hide(ids, hidden, 0), causal=False)[hidden], ids[hidden])


@wrong("two-lines-to-an-encoder", "need only be copied")
def encoder_asked_for_all(model, ids, hidden, mark):
    return F.cross_entropy(model(hide(ids, hidden, mark), causal=False).mT, ids)


@wrong("two-lines-to-an-encoder", "*not* hidden are asked for")
def encoder_asked_for_the_rest(model, ids, hidden, mark):
    return F.cross_entropy(model(hide(ids, hidden, mark), causal=False)[~hidden], ids[~hidden])


@wrong("two-lines-to-an-encoder", "is its own target")
def encoder_asked_for_the_next(model, ids, hidden, mark):
    logits = model(hide(ids, hidden, mark), causal=False)
    return F.cross_entropy(logits[hidden], ids.roll(-1, 1)[hidden])


@wrong("two-lines-to-an-encoder", "asked for the mark")
def encoder_asked_for_the_mark(model, ids, hidden, mark):
    logits = model(hide(ids, hidden, mark), causal=False)
    return F.cross_entropy(logits[hidden], hide(ids, hidden, mark)[hidden])


@wrong("two-lines-to-an-encoder", "This is the sum")
def encoder_summed(model, ids, hidden, mark):
    logits = model(hide(ids, hidden, mark), causal=False)
    return F.cross_entropy(logits[hidden], ids[hidden], reduction="sum")


@wrong("two-lines-to-an-encoder", "divided by all tokens")
def encoder_divided_by_all(model, ids, hidden, mark):
    logits = model(hide(ids, hidden, mark), causal=False)
    return (F.cross_entropy(logits.mT, ids, reduction="none") * hidden).mean()


# prefix-attention -------------------------------------------------------------------------------


def masked(q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def places(q):
    at = torch.arange(q.shape[-2])
    return at[:, None], at


@right("prefix-attention")
def prefix_by_two_reasons(q, k, v, prefix):
    i, j = places(q)
    return masked(q, k, v, (j <= i) | (j < prefix))


@right("prefix-attention")
def prefix_by_a_block(q, k, v, prefix):
    allowed = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    allowed[:, :prefix] = True
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return scores.softmax(dim=-1) @ v


@wrong("prefix-attention", "causal everywhere")
def prefix_forgotten(q, k, v, prefix):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@wrong("prefix-attention", "Every token reads every token")
def prefix_without_mask(q, k, v, prefix):
    return F.scaled_dot_product_attention(q, k, v)


@wrong("prefix-attention", "does not read the prompt")
def prefix_apart(q, k, v, prefix):
    i, j = places(q)
    return masked(q, k, v, (j < prefix) & (i < prefix) | (j <= i) & (j >= prefix))


@wrong("prefix-attention", "too short")
def prefix_too_short(q, k, v, prefix):
    i, j = places(q)
    return masked(q, k, v, (j <= i) | (j < prefix - 1))


@wrong("prefix-attention", "too long")
def prefix_too_long(q, k, v, prefix):
    i, j = places(q)
    return masked(q, k, v, (j <= i) | (j <= prefix))


@wrong("prefix-attention", "turned round")
def prefix_turned_round(q, k, v, prefix):
    i, j = places(q)
    return masked(q, k, v, (i <= j) | (i < prefix))


@wrong("prefix-attention", "Which columns may row i read")
def prefix_of_the_prompt_only(q, k, v, prefix):
    i, j = places(q)
    return masked(q, k, v, (j < max(prefix, 1)).expand(q.shape[-2], -1))


# small-gpt --------------------------------------------------------------------------------------


class SmallBlock(torch.nn.Module):
    """A block; what it leaves out is said by name."""

    def __init__(self, d_model, n_heads, without=()):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(d_model, n_heads, batch_first=True)
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(d_model), torch.nn.LayerNorm(d_model)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(d_model, 4 * d_model), torch.nn.ReLU(),
            torch.nn.Linear(4 * d_model, d_model),
        )
        self.without = without

    def forward(self, x):
        n = x.shape[1]
        later = None if "mask" in self.without else torch.ones(n, n).triu(1).bool()
        h = self.norm_1(x)
        found = self.attention(h, h, h, attn_mask=later, need_weights=False)[0]
        if "attention" in self.without:
            found = 0 * found
        if "residual" in self.without:
            return self.network(found)
        x = x + found
        return x + self.network(self.norm_2(x))


class SmallGPT(torch.nn.Module):
    """A GPT; what it leaves out is said by name."""

    def __init__(self, vocab_size, d_model, n_layers, n_heads, context, without=()):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab_size, d_model)
        self.position = torch.nn.Embedding(context, d_model)
        blocks = [SmallBlock(d_model, n_heads, without) for _ in range(n_layers)]
        self.blocks = blocks if "list" in without else torch.nn.ModuleList(blocks)
        self.norm, self.head = torch.nn.LayerNorm(d_model), torch.nn.Linear(d_model, vocab_size)
        self.without = without

    def forward(self, tokens):
        x = self.embed(tokens)
        if "positions" not in self.without:
            x = x + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@right("small-gpt")
def gpt_by_parts(*sizes):
    return SmallGPT(*sizes)


class PackageGPT(torch.nn.Module):
    """The package's model, which returns a state as well."""

    def __init__(self, config):
        super().__init__()
        self.model = models.build(config)

    def forward(self, tokens):
        return self.model(tokens)[0]


@right("small-gpt")
def gpt_of_the_package(vocab_size, d_model, n_layers, n_heads, context):
    layer = models.Layer(models.Attention(n_heads), models.FFN(4 * d_model), place="pre")
    config = models.TransformerConfig(
        vocab_size, d_model=d_model, decoder=[layer] * n_layers, max_len=context,
        embedding=models.Tokens(models.Learned()), head=models.NextToken(tie_embeddings=False),
    )  # fmt: skip
    return PackageGPT(config)


@wrong("small-gpt", "Is the attention causal?")
def gpt_without_mask(*sizes):
    return SmallGPT(*sizes, without=("mask",))


@wrong("small-gpt", "Where is the attention?")
def gpt_without_attention(*sizes):
    return SmallGPT(*sizes, without=("attention",))


@wrong("small-gpt", "does not know positions")
def gpt_without_positions(*sizes):
    return SmallGPT(*sizes, without=("positions",))


@wrong("small-gpt", "add its output to its input?")
def gpt_without_residual(*sizes):
    return SmallGPT(*sizes, without=("residual",))


@wrong("small-gpt", "Are the blocks in an `nn.ModuleList`")
def gpt_with_a_plain_list(*sizes):
    return SmallGPT(*sizes, without=("list",))


@wrong("small-gpt", "Hand over the class of your model")
def gpt_as_logits(vocab_size, d_model, n_layers, n_heads, context):
    return torch.zeros(2, context, vocab_size)
