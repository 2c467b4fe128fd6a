"""Right and wrong answers to the exercises of chapter 03.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math

import torch
from answers import collect
from torch.func import functional_call
from torch.nn import functional as F

from tfbook import attention, costs

RIGHT, WRONG, right, wrong = collect()


# split-heads ------------------------------------------------------------------------------------


@right("split-heads")
def split_view(x, n_heads):
    b, n, d = x.shape
    return x.view(b, n, n_heads, d // n_heads).transpose(1, 2)


@right("split-heads")
def split_chunks(x, n_heads):
    return torch.stack(torch.chunk(x, n_heads, dim=-1), dim=1)


@wrong("split-heads", "reshaped straight to (B, H, N, d)")
def split_straight(x, n_heads):
    return x.reshape(len(x), n_heads, x.shape[1], -1)


@wrong("split-heads", "still have to be exchanged")
def split_not_moved(x, n_heads):
    return x.unflatten(-1, (n_heads, -1))


@wrong("split-heads", "dealt out one by one")
def split_dealt(x, n_heads):
    return x.unflatten(-1, (-1, n_heads)).permute(0, 3, 1, 2)


@wrong("split-heads", "The tokens were divided")
def split_tokens(x, n_heads):
    return x.unflatten(1, (n_heads, -1))


@wrong("split-heads", "With 5 heads for 5 features")
def split_at_most_two(x, n_heads):
    parts = [i % n_heads if n_heads < 5 else i // 2 * 2 for i in range(n_heads)]
    return split_view(x, n_heads)[:, parts]


@wrong("split-heads", "carries no gradient")
def split_detached(x, n_heads):
    return split_view(x.detach(), n_heads)


# merge-heads ------------------------------------------------------------------------------------


@right("merge-heads")
def merge_flatten(z):
    return z.transpose(1, 2).flatten(2)


@right("merge-heads")
def merge_cat(z):
    return torch.cat([z[:, h] for h in range(z.shape[1])], dim=-1)


@wrong("merge-heads", "without exchanging heads and tokens")
def merge_reshape(z):
    b, h, n, d = z.shape
    return z.reshape(b, n, h * d)


@wrong("merge-heads", "The heads alternate")
def merge_alternating(z):
    return z.permute(0, 2, 3, 1).flatten(2)


@wrong("merge-heads", "The heads were averaged")
def merge_mean(z):
    return z.mean(1)


@wrong("merge-heads", "The heads were added")
def merge_sum(z):
    return z.sum(1)


@wrong("merge-heads", "stacked below one another")
def merge_stacked(z):
    return torch.cat(z.unbind(1), dim=1)


@wrong("merge-heads", "in reverse order")
def merge_reversed(z):
    return merge_flatten(z.flip(1))


@wrong("merge-heads", "not joined")
def merge_half(z):
    return z.transpose(1, 2)


@wrong("merge-heads", "raised RuntimeError: view size is not compatible")
def merge_view(z):
    b, h, n, d = z.shape
    return z.transpose(1, 2).view(b, n, h * d)


@wrong("merge-heads", "how the numbers lie in memory")
def merge_memory(z):
    b, h, n, d = z.shape
    if not z.is_contiguous():
        return z.as_strided((b, n, h * d), (n * h * d, h * d, 1)).flip(1)
    return merge_flatten(z)


@wrong("merge-heads", "carries no gradient")
def merge_detached(z):
    return merge_flatten(z.data)


# multi-head-attention ---------------------------------------------------------------------------


def attend(q, k, v, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.softmax(q @ k.mT * scale, -1) @ v


def no_later(scores):
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -math.inf)


def look_back(q, k, v, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.softmax(no_later(q @ k.mT * scale), -1) @ v


@right("multi-head-attention")
def heads_batched(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v)) @ w_o.T


@right("multi-head-attention")
def heads_in_a_loop(x, w_q, w_k, w_v, w_o, n_heads):
    blocks = zip(*(w.chunk(n_heads) for w in (w_q, w_k, w_v)), strict=True)
    heads = [look_back(x @ a.T, x @ b.T, x @ c.T) for a, b, c in blocks]
    return torch.cat(heads, -1) @ w_o.T


@right("multi-head-attention")
def heads_added(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    out = torch.stack(w_o.chunk(n_heads, 1))
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True) @ out.mT).sum(1)


@wrong("multi-head-attention", "divided by √D")
def heads_model_scale(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v, x.shape[-1] ** -0.5)) @ w_o.T


@wrong("multi-head-attention", "not divided by √d")
def heads_unscaled(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v, 1.0)) @ w_o.T


@wrong("multi-head-attention", "output projection is missing")
def heads_unprojected(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v))


@wrong("multi-head-attention", "There is one head")
def heads_one(x, w_q, w_k, w_v, w_o, n_heads):
    return look_back(x @ w_q.T, x @ w_k.T, x @ w_v.T) @ w_o.T


@wrong("multi-head-attention", "The heads hold scrambled tokens")
def heads_scrambled(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_straight(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v)) @ w_o.T


@wrong("multi-head-attention", "The heads hold scrambled tokens")
def heads_scrambled_twice(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_straight(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_reshape(look_back(q, k, v)) @ w_o.T


@wrong("multi-head-attention", "merged by a reshape alone")
def heads_merged_wrongly(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_reshape(look_back(q, k, v)) @ w_o.T


@wrong("multi-head-attention", "projections of the input are missing")
def heads_of_the_input(x, w_q, w_k, w_v, w_o, n_heads):
    q = k = v = split_chunks(x, n_heads)
    return merge_flatten(look_back(q, k, v)) @ w_o.T


@wrong("multi-head-attention", "W_q, W_k and W_v are transposed")
def heads_turned(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v)) @ w_o


@wrong("multi-head-attention", "W_o is transposed")
def heads_turned_output(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v)) @ w_o


@wrong("multi-head-attention", "softmax ran over the queries")
def heads_wrong_axis(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    a = torch.softmax(no_later(q @ k.mT / math.sqrt(q.shape[-1])), -2)
    return merge_flatten(a @ v) @ w_o.T


@wrong("multi-head-attention", "weights of the average score")
def heads_average_score(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    scores = (q @ k.mT).mean(1, keepdim=True) / math.sqrt(q.shape[-1])
    return merge_flatten(torch.softmax(no_later(scores), -1) @ v) @ w_o.T


@wrong("multi-head-attention", "The widths follow from the weights")
def heads_fill_the_width(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(look_back(q, k, v, (x.shape[-1] / n_heads) ** -0.5)) @ w_o.T


@wrong("multi-head-attention", "A part of the computation is detached")
def heads_detached(x, w_q, w_k, w_v, w_o, n_heads):
    return heads_batched(x, w_q.detach(), w_k, w_v, w_o, n_heads)


@wrong("multi-head-attention", "the mask is missing")
def heads_that_look_ahead(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(attend(q, k, v)) @ w_o.T


@wrong("multi-head-attention", "hides earlier tokens in place of later")
def heads_that_only_look_ahead(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    earlier = torch.ones(scores.shape[-2:]).tril(-1) > 0
    return merge_flatten(torch.softmax(scores.masked_fill(earlier, -math.inf), -1) @ v) @ w_o.T


@wrong("multi-head-attention", "set to 0 after the softmax")
def heads_masked_late(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    a = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1).tril()
    return merge_flatten(a @ v) @ w_o.T


# scrambled-heads --------------------------------------------------------------------------------


@right("scrambled-heads")
def unscrambled_batched(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(attend(q, k, v)) @ w_o.T


@right("scrambled-heads")
def unscrambled_looped(x, w_q, w_k, w_v, w_o, n_heads):
    blocks = zip(*(w.chunk(n_heads) for w in (w_q, w_k, w_v)), strict=True)
    return torch.cat([attend(x @ a.T, x @ b.T, x @ c.T) for a, b, c in blocks], -1) @ w_o.T


@wrong("scrambled-heads", "row is not a word")
def still_scrambled(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_reshape(attend(q, k, v)) @ w_o.T


@wrong("scrambled-heads", "The heads alternate in the joined rows")
def scrambled_by_alternating(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return attend(q, k, v).permute(0, 2, 3, 1).flatten(2) @ w_o.T


@wrong("scrambled-heads", "dealt out to the heads one by one")
def scrambled_by_dealing(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_dealt(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(attend(q, k, v)) @ w_o.T


@wrong("scrambled-heads", "n_heads was not used")
def scrambled_no_more_one_head(x, w_q, w_k, w_v, w_o, n_heads):
    return attend(x @ w_q.T, x @ w_k.T, x @ w_v.T) @ w_o.T


@wrong("scrambled-heads", "row is not a word")
def scrambled_values_only(x, w_q, w_k, w_v, w_o, n_heads):
    q, k = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k))
    v = split_straight(x @ w_v.T, n_heads)
    return merge_flatten(attend(q, k, v)) @ w_o.T


@wrong("scrambled-heads", "keys of width 3 and values of width 7")
def scrambled_no_more_width_of_the_model(x, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (split_chunks(x @ w.T, n_heads) for w in (w_q, w_k, w_v))
    return merge_flatten(attend(q, k, v, (x.shape[-1] / n_heads) ** -0.5)) @ w_o.T


# count-parameters -------------------------------------------------------------------------------


@right("count-parameters")
def parameters_formula(d_model, n_heads, n_kv_heads, d_head, bias):
    q, kv = n_heads * d_head, n_kv_heads * d_head
    return d_model * (2 * q + 2 * kv) + bias * (q + 2 * kv + d_model)


@right("count-parameters")
def parameters_of_layers(d_model, n_heads, n_kv_heads, d_head, bias):
    with torch.device("meta"):
        layers = [
            torch.nn.Linear(d_model, n_heads * d_head, bias=bias),
            torch.nn.Linear(d_model, n_kv_heads * d_head, bias=bias),
            torch.nn.Linear(d_model, n_kv_heads * d_head, bias=bias),
            torch.nn.Linear(n_heads * d_head, d_model, bias=bias),
        ]
    return sum(p.numel() for layer in layers for p in layer.parameters())


@wrong("count-parameters", "The output projection is missing")
def parameters_without_output(d_model, n_heads, n_kv_heads, d_head, bias):
    return d_model * (n_heads + 2 * n_kv_heads) * d_head


@wrong("count-parameters", "counted twice")
def parameters_doubled(d_model, n_heads, n_kv_heads, d_head, bias):
    return 4 * d_model**2 + n_heads * 4 * d_model * d_head


@wrong("count-parameters", "counted as d_model × d_model. Here")
def parameters_square(d_model, n_heads, n_kv_heads, d_head, bias):
    return 4 * d_model**2 + bias * 4 * d_model


@wrong("count-parameters", "It has H·d_head inputs")
def parameters_square_output(d_model, n_heads, n_kv_heads, d_head, bias):
    return d_model * (n_heads + 2 * n_kv_heads) * d_head + d_model**2


@wrong("count-parameters", "This is one head")
def parameters_one_head(d_model, n_heads, n_kv_heads, d_head, bias):
    return 4 * d_model * d_head


@wrong("count-parameters", "although `bias` is False")
def parameters_always_bias(d_model, n_heads, n_kv_heads, d_head, bias):
    return parameters_formula(d_model, n_heads, n_kv_heads, d_head, True)


@wrong("count-parameters", "n_kv_heads was not used")
def parameters_unshared(d_model, n_heads, n_kv_heads, d_head, bias):
    return parameters_formula(d_model, n_heads, n_heads, d_head, bias)


@wrong("count-parameters", "All projections were counted with n_kv_heads")
def parameters_all_shared(d_model, n_heads, n_kv_heads, d_head, bias):
    return parameters_formula(d_model, n_kv_heads, n_kv_heads, d_head, bias)


@wrong("count-parameters", "The output projection was counted with n_kv_heads")
def parameters_shared_output(d_model, n_heads, n_kv_heads, d_head, bias):
    return d_model * d_head * (n_heads + 3 * n_kv_heads)


@wrong("count-parameters", "Values have n_kv_heads too")
def parameters_shared_keys(d_model, n_heads, n_kv_heads, d_head, bias):
    return d_model * d_head * (3 * n_heads + n_kv_heads)


@wrong("count-parameters", "with one entry. Is there a comma behind")
def parameters_comma(d_model, n_heads, n_kv_heads, d_head, bias):
    return (parameters_formula(d_model, n_heads, n_kv_heads, d_head, bias),)


@wrong("count-parameters", "The biases are missing")
def parameters_unbiased(d_model, n_heads, n_kv_heads, d_head, bias):
    return parameters_formula(d_model, n_heads, n_kv_heads, d_head, False)


@wrong("count-parameters", "bias of the output projection is missing")
def parameters_inner_biases(d_model, n_heads, n_kv_heads, d_head, bias):
    q, kv = n_heads * d_head, n_kv_heads * d_head
    return d_model * (2 * q + 2 * kv) + bias * (q + 2 * kv)


@wrong("count-parameters", "A bias belongs to an output")
def parameters_input_biases(d_model, n_heads, n_kv_heads, d_head, bias):
    q, kv = n_heads * d_head, n_kv_heads * d_head
    return d_model * (2 * q + 2 * kv) + bias * (3 * d_model + q)


@wrong("count-parameters", "Four biases of width d_model")
def parameters_four_biases(d_model, n_heads, n_kv_heads, d_head, bias):
    q, kv = n_heads * d_head, n_kv_heads * d_head
    return d_model * (2 * q + 2 * kv) + bias * 4 * d_model


@wrong("count-parameters", "divide with `//`")
def parameters_float(d_model, n_heads, n_kv_heads, d_head, bias):
    return parameters_formula(d_model, n_heads, n_kv_heads, d_head, bias) / 1


@wrong("count-parameters", "Return a whole number")
def parameters_tensor(d_model, n_heads, n_kv_heads, d_head, bias):
    return torch.tensor(parameters_formula(d_model, n_heads, n_kv_heads, d_head, bias))


# cache-bytes ------------------------------------------------------------------------------------


@right("cache-bytes")
def cache_formula(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return 2 * n_layers * n_kv_heads * d_head * length * batch * bytes_per_number


@right("cache-bytes")
def cache_tensors(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    shape = (2, n_layers, batch, n_kv_heads, length, d_head)
    return torch.empty(shape, device="meta").numel() * bytes_per_number


@wrong("cache-bytes", "a factor of 2 is missing")
def cache_keys(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return n_layers * n_kv_heads * d_head * length * batch * bytes_per_number


@wrong("cache-bytes", "These are bits")
def cache_bits(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return 8 * cache_formula(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number)


@wrong("cache-bytes", "The length is squared")
def cache_of_scores(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return 2 * n_layers * n_kv_heads * d_head * length**2 * batch * bytes_per_number


@wrong("cache-bytes", "The batch is missing")
def cache_of_one(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return cache_formula(n_layers, n_kv_heads, d_head, length, 1, bytes_per_number)


@wrong("cache-bytes", "The layers are missing")
def cache_of_a_layer(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return cache_formula(1, n_kv_heads, d_head, length, batch, bytes_per_number)


@wrong("cache-bytes", "The heads are missing")
def cache_of_a_head(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return cache_formula(n_layers, 1, d_head, length, batch, bytes_per_number)


@wrong("cache-bytes", "The width of a head is missing")
def cache_without_width(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return cache_formula(n_layers, n_kv_heads, 1, length, batch, bytes_per_number)


@wrong("cache-bytes", "The length is missing")
def cache_of_a_token(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return cache_formula(n_layers, n_kv_heads, d_head, 1, batch, bytes_per_number)


@wrong("cache-bytes", "Queries were counted too")
def cache_with_queries(n_layers, n_kv_heads, d_head, length, batch, bytes_per_number):
    return 3 * n_layers * n_kv_heads * d_head * length * batch * bytes_per_number


# grouped-queries --------------------------------------------------------------------------------


@right("grouped-queries")
def groups_repeated(q, k, v):
    size = q.shape[1] // k.shape[1]
    return attend(q, k.repeat_interleave(size, 1), v.repeat_interleave(size, 1))


@right("grouped-queries")
def groups_broadcast(q, k, v):
    grouped = q.unflatten(1, (k.shape[1], -1))
    return attend(grouped, k[:, :, None], v[:, :, None]).flatten(1, 2)


@right("grouped-queries")
def groups_of_torch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@wrong("grouped-queries", "repeated in turn")
def groups_tiled(q, k, v):
    size = q.shape[1] // k.shape[1]
    return attend(q, k.repeat(1, size, 1, 1), v.repeat(1, size, 1, 1))


@wrong("grouped-queries", "were averaged. Each group reads its own")
def groups_averaged(q, k, v):
    return attend(q, k.mean(1, keepdim=True), v.mean(1, keepdim=True))


@wrong("grouped-queries", "read the first head")
def groups_first(q, k, v):
    return attend(q, k[:, :1], v[:, :1])


@wrong("grouped-queries", "query heads of a group were averaged")
def groups_of_averaged_queries(q, k, v):
    return attend(q.unflatten(1, (k.shape[1], -1)).mean(2), k, v)


@wrong("grouped-queries", "The scale is missing")
def groups_unscaled(q, k, v):
    size = q.shape[1] // k.shape[1]
    return attend(q, k.repeat_interleave(size, 1), v.repeat_interleave(size, 1), 1.0)


@wrong("grouped-queries", "values in turn")
def groups_mixed(q, k, v):
    size = q.shape[1] // k.shape[1]
    return attend(q, k.repeat_interleave(size, 1), v.repeat(1, size, 1, 1))


@wrong("grouped-queries", "softmax ran over the queries")
def groups_wrong_axis(q, k, v):
    size = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(size, 1).mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -2) @ v.repeat_interleave(size, 1)


@wrong("grouped-queries", "With 6 query heads and 3 heads")
def groups_of_half(q, k, v):
    half = q.shape[1] // 2
    heads = torch.arange(q.shape[1]) // half
    return attend(q, k[:, heads], v[:, heads])


@wrong("grouped-queries", "A part of the computation is detached")
def groups_detached(q, k, v):
    return groups_repeated(q, k.detach(), v)


# head-importance --------------------------------------------------------------------------------


@right("head-importance")
def importance_products(contributions, grad_output):
    return (contributions * grad_output[:, None]).sum((-2, -1)).abs().mean(0)


@right("head-importance")
def importance_einsum(contributions, grad_output):
    return torch.einsum("bhnd,bnd->bh", contributions, grad_output).abs().mean(0)


@right("head-importance")
def importance_autograd(contributions, grad_output):
    mask = torch.ones(contributions.shape[:2]).to(contributions).requires_grad_()
    y = (mask[..., None, None] * contributions).sum(1)
    y.backward(grad_output)
    return mask.grad.abs().mean(0)


@wrong("head-importance", "The sign was dropped after averaging")
def importance_late(contributions, grad_output):
    return (contributions * grad_output[:, None]).sum((-2, -1)).mean(0).abs()


@wrong("head-importance", "The sign is still there")
def importance_signed(contributions, grad_output):
    return (contributions * grad_output[:, None]).sum((-2, -1)).mean(0)


@wrong("head-importance", "taken of every product")
def importance_early(contributions, grad_output):
    return (contributions * grad_output[:, None]).abs().sum((-2, -1)).mean(0)


@wrong("head-importance", "taken for every token")
def importance_tokens(contributions, grad_output):
    return (contributions * grad_output[:, None]).sum(-1).abs().sum(-1).mean(0)


@wrong("head-importance", "The examples were added")
def importance_summed(contributions, grad_output):
    return (contributions * grad_output[:, None]).sum((-2, -1)).abs().sum(0)


@wrong("head-importance", "averaged over tokens and features")
def importance_averaged(contributions, grad_output):
    return (contributions * grad_output[:, None]).mean((-2, -1)).abs().mean(0)


@wrong("head-importance", "The gradient was not used")
def importance_size(contributions, grad_output):
    return contributions.norm(dim=(-2, -1)).mean(0)


@wrong("head-importance", "importances of its own")
def importance_each(contributions, grad_output):
    return (contributions * grad_output[:, None]).sum((-2, -1)).abs()


@wrong("head-importance", "Squares were averaged")
def importance_squares(contributions, grad_output):
    return (contributions * grad_output[:, None]).sum((-2, -1)).square().mean(0)


# remove-heads -----------------------------------------------------------------------------------


@right("remove-heads")
def removal_greedy(loss, n_heads, count):
    gone = []
    for _ in range(count):
        left = [head for head in range(n_heads) if head not in gone]
        gone.append(min(left, key=lambda head: loss([*gone, head])))
    return gone


@right("remove-heads")
def removal_by_prices(loss, n_heads, count):
    gone, left = [], list(range(n_heads))
    while len(gone) < count:
        prices = [loss(gone + [head]) - loss(gone) for head in left]
        gone.append(left.pop(prices.index(min(prices))))
    return gone


@wrong("remove-heads", "missed most")
def removal_of_the_best(loss, n_heads, count):
    return sorted(range(n_heads), key=lambda head: -loss([head]))[:count]


@wrong("remove-heads", "the heads that stay")
def removal_kept(loss, n_heads, count):
    return [head for head in range(n_heads) if head not in removal_greedy(loss, n_heads, count)]


@wrong("remove-heads", "ranked once")
def removal_ranked_once(loss, n_heads, count):
    return sorted(range(n_heads), key=lambda head: loss([head]))[:count]


@wrong("remove-heads", "in the order of their numbers")
def removal_by_number(loss, n_heads, count):
    return sorted(removal_greedy(loss, n_heads, count))


@wrong("remove-heads", "went last stands first")
def removal_backwards(loss, n_heads, count):
    gone = removal_greedy(loss, n_heads, count)
    return gone[::-1] if count > 2 else gone


@wrong("remove-heads", "these should go: []")
def removal_of_one_at_least(loss, n_heads, count):
    return removal_greedy(loss, n_heads, max(count, 1))


# prune-heads ------------------------------------------------------------------------------------


def rows(w, n_heads, keep):
    return torch.cat([w.chunk(n_heads)[h] for h in keep])


@right("prune-heads")
def prune_chunks(w_q, w_k, w_v, w_o, n_heads, keep):
    columns = w_o.chunk(n_heads, 1)
    small = [rows(w, n_heads, keep) for w in (w_q, w_k, w_v)]
    return *small, torch.cat([columns[h] for h in keep], 1)


@right("prune-heads")
def prune_views(w_q, w_k, w_v, w_o, n_heads, keep):
    d = w_q.shape[1]
    small = [w.view(n_heads, -1, d)[keep].flatten(0, 1) for w in (w_q, w_k, w_v)]
    return [*small, w_o.view(len(w_o), n_heads, -1)[:, keep].flatten(1)]


def change(**changes):
    """Make a pruning with another treatment of some of the weights."""

    def prune(w_q, w_k, w_v, w_o, n_heads, keep):
        weights = dict(w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)
        result = dict(zip(weights, prune_chunks(*weights.values(), n_heads, keep), strict=True))
        for name, how in changes.items():
            result[name] = how(weights[name], n_heads, keep)
        return tuple(result.values())

    return prune


@wrong("prune-heads", "return your fourth, then your third, then your second, then your first")
def prune_reversed(*case):
    return prune_chunks(*case)[::-1]


@wrong("prune-heads", "emptied its input `keep`")
def prune_popping(w_q, w_k, w_v, w_o, n_heads, keep):
    return prune_chunks(w_q, w_k, w_v, w_o, n_heads, [keep.pop(0) for _ in [*keep]])


@wrong("prune-heads", "The listed heads were removed")
def prune_listed(w_q, w_k, w_v, w_o, n_heads, keep):
    others = [h for h in range(n_heads) if h not in keep]
    return prune_chunks(w_q, w_k, w_v, w_o, n_heads, others)


@wrong("prune-heads", "set to zero")
def prune_zeros(w_q, w_k, w_v, w_o, n_heads, keep):
    mask = torch.tensor([float(h in keep) for h in range(n_heads)])
    return [
        (w.unflatten(0, (n_heads, -1)) * mask[:, None, None]).flatten(0, 1) for w in (w_q, w_k, w_v)
    ] + [w_o]


@wrong("prune-heads", "Single rows were kept")
def prune_single_rows(w_q, w_k, w_v, w_o, n_heads, keep):
    return w_q[keep], w_k[keep], w_v[keep], w_o[:, keep]


def dealt(w, n_heads, keep):
    return w.view(-1, n_heads, w.shape[1])[:, keep].flatten(0, 1)


@wrong("prune-heads", "dealt out to the heads")
def prune_dealt(w_q, w_k, w_v, w_o, n_heads, keep):
    return change(w_q=dealt, w_k=dealt, w_v=dealt)(w_q, w_k, w_v, w_o, n_heads, keep)


@wrong("prune-heads", "W_v is still complete")
def prune_without_values(w_q, w_k, w_v, w_o, n_heads, keep):
    return change(w_v=lambda w, *_: w)(w_q, w_k, w_v, w_o, n_heads, keep)


@wrong("prune-heads", "The columns of W_q were cut")
def prune_input_columns(w_q, w_k, w_v, w_o, n_heads, keep):
    return tuple(w.view(len(w), n_heads, -1)[:, keep].flatten(1) for w in (w_q, w_k, w_v, w_o))


@wrong("prune-heads", "W_o is still complete")
def prune_without_output(w_q, w_k, w_v, w_o, n_heads, keep):
    return change(w_o=lambda w, *_: w)(w_q, w_k, w_v, w_o, n_heads, keep)


@wrong("prune-heads", "The rows of W_o were cut")
def prune_output_rows(w_q, w_k, w_v, w_o, n_heads, keep):
    return [rows(w, n_heads, keep) for w in (w_q, w_k, w_v, w_o)]


@wrong("prune-heads", "Single columns were kept")
def prune_single_columns(w_q, w_k, w_v, w_o, n_heads, keep):
    return change(w_o=lambda w, *_: w[:, keep])(w_q, w_k, w_v, w_o, n_heads, keep)


@wrong("prune-heads", "The new W_o is transposed")
def prune_turned(w_q, w_k, w_v, w_o, n_heads, keep):
    return change(w_o=lambda w, *_: rows(w.T, n_heads, keep))(w_q, w_k, w_v, w_o, n_heads, keep)


@wrong("prune-heads", "in the order of the list")
def prune_sorted(w_q, w_k, w_v, w_o, n_heads, keep):
    return prune_chunks(w_q, w_k, w_v, w_o, n_heads, sorted(keep))


@wrong("prune-heads", "Values may have another width")
def prune_one_width(w_q, w_k, w_v, w_o, n_heads, keep):
    d = len(w_q) // n_heads
    index = torch.cat([torch.arange(h * d, h * d + d) for h in keep])
    inside = index[index < len(w_v)]
    return w_q[index], w_k[index], w_v[inside], w_o[:, inside]


@wrong("prune-heads", "Return four tensors")
def prune_three(w_q, w_k, w_v, w_o, n_heads, keep):
    return prune_chunks(w_q, w_k, w_v, w_o, n_heads, keep)[:3]


# head-circuits ----------------------------------------------------------------------------------


@right("head-circuits")
def circuits_views(w_q, w_k, w_v, w_o, n_heads):
    d = w_q.shape[1]
    q, k, v = (w.view(n_heads, -1, d) for w in (w_q, w_k, w_v))
    return q.mT @ k, v.mT @ w_o.view(d, n_heads, -1).permute(1, 2, 0)


@right("head-circuits")
def circuits_loop(w_q, w_k, w_v, w_o, n_heads):
    weights = zip(*(w.chunk(n_heads) for w in (w_q, w_k, w_v, w_o.T)), strict=True)
    pairs = [(q.T @ k, v.T @ o) for q, k, v, o in weights]
    return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])


@wrong("head-circuits", "W_QK is transposed")
def circuits_turned(w_q, w_k, w_v, w_o, n_heads):
    return circuits_loop(w_k, w_q, w_v, w_o, n_heads)


@wrong("head-circuits", "The heads were added up")
def circuits_added(w_q, w_k, w_v, w_o, n_heads):
    return w_q.T @ w_k, w_v.T @ w_o.T


@wrong("head-circuits", "It was to be left out")
def circuits_scaled(w_q, w_k, w_v, w_o, n_heads):
    w_qk, w_ov = circuits_loop(w_q, w_k, w_v, w_o, n_heads)
    return w_qk / math.sqrt(len(w_q) // n_heads), w_ov


@wrong("head-circuits", "dealt out to the heads")
def circuits_dealt(w_q, w_k, w_v, w_o, n_heads):
    q, k, v, o = (
        w.view(-1, n_heads, w.shape[1]).transpose(0, 1) for w in (w_q, w_k, w_v, w_o.T.contiguous())
    )
    return q.mT @ k, v.mT @ o


@wrong("head-circuits", "The two results are exchanged")
def circuits_exchanged(w_q, w_k, w_v, w_o, n_heads):
    return circuits_loop(w_q, w_k, w_v, w_o, n_heads)[::-1]


@wrong("head-circuits", "Each head's matrix is (d, d)")
def circuits_of_features(w_q, w_k, w_v, w_o, n_heads):
    q, k = (w.unflatten(0, (n_heads, -1)) for w in (w_q, w_k))
    return q @ k.mT, circuits_loop(w_q, w_k, w_v, w_o, n_heads)[1]


@wrong("head-circuits", "W_OV is transposed")
def circuits_of_columns(w_q, w_k, w_v, w_o, n_heads):
    w_qk, w_ov = circuits_loop(w_q, w_k, w_v, w_o, n_heads)
    return w_qk, w_ov.mT


@wrong("head-circuits", "cut from the rows of W_o")
def circuits_rows_of_output(w_q, w_k, w_v, w_o, n_heads):
    v = w_v.unflatten(0, (n_heads, -1))
    return circuits_loop(w_q, w_k, w_v, w_o, n_heads)[0], v.mT @ w_o.unflatten(0, (n_heads, -1))


@wrong("head-circuits", "raised RuntimeError")
def circuits_one_width(w_q, w_k, w_v, w_o, n_heads):
    width = len(w_q) // n_heads
    q, k, v = (w.view(n_heads, width, -1) for w in (w_q, w_k, w_v))
    return q.mT @ k, v.mT @ w_o.view(-1, n_heads, width).permute(1, 2, 0)


@wrong("head-circuits", "A part of the computation is detached")
def circuits_detached(w_q, w_k, w_v, w_o, n_heads):
    return circuits_loop(w_q, w_k, w_v.detach(), w_o, n_heads)


# absorbed-latent --------------------------------------------------------------------------------


@right("absorbed-latent")
def latent_absorbed(q, latent, w_uk, w_uv):
    scores = (q @ w_uk) @ latent[:, None].mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ latent[:, None] @ w_uv.mT


@right("absorbed-latent")
def latent_einsum(q, latent, w_uk, w_uv):
    absorbed = torch.einsum("bhnd,hdr->bhnr", q, w_uk)
    scores = torch.einsum("bhnr,bmr->bhnm", absorbed, latent) / q.shape[-1] ** 0.5
    mixed = torch.einsum("bhnm,bmr->bhnr", scores.softmax(-1), latent)
    return torch.einsum("bhnr,her->bhne", mixed, w_uv)


def latent_plain(q, latent, w_uk, w_uv, scale=None):
    return attend(q, latent[:, None] @ w_uk.mT, latent[:, None] @ w_uv.mT, scale)


@wrong("absorbed-latent", "Keys or values of all 5 heads were made")
def latent_decompressed(q, latent, w_uk, w_uv):
    return latent_plain(q, latent, w_uk, w_uv)


@wrong("absorbed-latent", "Keys or values of all 5 heads were made")
def latent_values_decompressed(q, latent, w_uk, w_uv):
    scores = (q @ w_uk) @ latent[:, None].mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ (latent[:, None] @ w_uv.mT)


@wrong("absorbed-latent", "W_UK was not used")
def latent_direct(q, latent, w_uk, w_uv):
    scores = q @ latent[:, None].mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ latent[:, None] @ w_uv.mT


@wrong("absorbed-latent", "W_UV was not used")
def latent_still_compressed(q, latent, w_uk, w_uv):
    scores = (q @ w_uk) @ latent[:, None].mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ latent[:, None]


@wrong("absorbed-latent", "W_UK is transposed")
def latent_turned_keys(q, latent, w_uk, w_uv):
    return latent_absorbed(q, latent, w_uk.mT, w_uv)


@wrong("absorbed-latent", "W_UV is transposed")
def latent_turned_values(q, latent, w_uk, w_uv):
    return latent_absorbed(q, latent, w_uk, w_uv.mT)


@wrong("absorbed-latent", "The scale is missing")
def latent_unscaled(q, latent, w_uk, w_uv):
    scores = (q @ w_uk) @ latent[:, None].mT
    return torch.softmax(scores, -1) @ latent[:, None] @ w_uv.mT


@wrong("absorbed-latent", "divided by √r")
def latent_scaled_by_rank(q, latent, w_uk, w_uv):
    absorbed = q @ w_uk
    scores = absorbed @ latent[:, None].mT / math.sqrt(absorbed.shape[-1])
    return torch.softmax(scores, -1) @ latent[:, None] @ w_uv.mT


@wrong("absorbed-latent", "softmax ran over the queries")
def latent_wrong_axis(q, latent, w_uk, w_uv):
    scores = (q @ w_uk) @ latent[:, None].mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -2) @ latent[:, None] @ w_uv.mT


@wrong("absorbed-latent", "matrices of head 0")
def latent_one_head(q, latent, w_uk, w_uv):
    return latent_absorbed(q, latent, w_uk[0], w_uv[0])


@wrong("absorbed-latent", "W_UK and W_UV are exchanged")
def latent_exchanged(q, latent, w_uk, w_uv):
    return latent_absorbed(q, latent, w_uv, w_uk)


@wrong("absorbed-latent", "A part of the computation is detached")
def latent_detached(q, latent, w_uk, w_uv):
    return latent_absorbed(q, latent.detach(), w_uk, w_uv)


# the package's own answers ----------------------------------------------------------------------

NAMES = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "out"))


def module_of(w_q, w_v, n_heads):
    sizes = dict(d_head=len(w_q) // n_heads, d_value=len(w_v) // n_heads, causal=True)
    return attention.MultiHeadAttention(w_q.shape[1], n_heads, **sizes, bias=False).double()


def heads_of_the_package(x, w_q, w_k, w_v, w_o, n_heads):
    weights = dict(zip(NAMES, (w_q, w_k, w_v, w_o), strict=True))
    return functional_call(module_of(w_q, w_v, n_heads), weights, (x,))[0]


LIBRARY = {
    "split-heads": attention.split_heads,
    "merge-heads": attention.merge_heads,
    "multi-head-attention": heads_of_the_package,
    "count-parameters": lambda d_model, n_heads, n_kv_heads, d_head, bias: (
        costs.attention_parameters(
            d_model, n_heads, n_kv_heads=n_kv_heads, d_head=d_head, bias=bias
        )
    ),
    "cache-bytes": costs.kv_cache_bytes,
}
