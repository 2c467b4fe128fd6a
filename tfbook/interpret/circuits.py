"""What heads do by their weights and on random text: previous token, induction, copying.

A head has two circuits: which key a query meets (QK) and what it then writes (OV). Both are
products of two matrices, of no rank higher than a head's size, from the stream to the stream; with
the embedding on one side and the head of the model on the other they speak of tokens. Heads of
later layers read what earlier ones wrote, which makes a circuit of them.

Explained in: chapters/10_interpretability, section "Induction heads".
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_choice,
    check_generator,
    check_ids,
    check_number,
    check_tensor,
)
from tfbook.attention import MultiHeadAttention
from tfbook.blocks import LayerNorm, RMSNorm
from tfbook.interpret.ablation import check_heads, head_table
from tfbook.interpret.capturing import patterns
from tfbook.interpret.lens import attentions, check_decoder
from tfbook.models import (
    Attention,
    DecoderOnly,
    Layer,
    Learned,
    NextToken,
    NoFFN,
    Tokens,
    TransformerConfig,
    build,
)
from tfbook.training import evaluating

__all__ = [
    "composition_scores",
    "copying_scores",
    "duplicate_token_scores",
    "induction_model",
    "ov_circuit",
    "prefix_matching_scores",
    "previous_token_scores",
    "qk_circuit",
    "repeated_tokens",
    "token_ov",
    "token_qk",
]

MOST = 8192  # tokens of a full circuit, a matrix of as many rows and columns
MOST_TOKENS = 2**26  # of random text, half a gigabyte


def repeated_tokens(
    vocab_size: int,
    n: int,
    batch: int = 1,
    *,
    times: int = 2,
    first: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B N"]:
    """Return random tokens, each row's repeated: what follows can be known from before alone.

    Args:
        vocab_size: V; tokens are drawn from 0 … V − 1, all with the same chance.
        n: how many before they are repeated.
        batch: rows, B.
        times: how often they stand there.
        first: a token in front of each row, such as the one that begins texts; none when omitted.
        generator: source of randomness.

    Returns:
        (B, times · n), or one column more.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> tokens = repeated_tokens(50, 4, generator=torch.manual_seed(0))
        >>> torch.equal(tokens[:, :4], tokens[:, 4:])
        True

    Source: [olsson2022context]
    Explained in: chapters/10_interpretability, section "Induction heads".
    """
    sizes = {"vocab_size": vocab_size, "n": n, "batch": batch, "times": times}
    for name, size in sizes.items():
        check_number(name, size, 1, 2**31, whole=True)
    if n * batch * times > MOST_TOKENS:
        raise ValueError(
            f"n · batch · times must be at most {MOST_TOKENS}, got {n} · {batch} · {times}"
        )
    if first is not None:
        check_number("first", first, 0, vocab_size - 1, whole=True)
    check_generator(generator)
    tokens = torch.randint(vocab_size, (batch, n), generator=generator).repeat(1, times)
    return tokens if first is None else torch.cat([torch.full((batch, 1), first), tokens], dim=1)


def previous_token_scores(model: nn.Module, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "L H"]:
    """Return how much each head looks at the token before: the mean of a[i, i − 1] over i ≥ 1.

    Args:
        model: a decoder or an encoder, all of whose mixers are multi-head attention.
        tokens: (B, N), N ≥ 2, without padding; random ones tell heads that look at places from
            heads that look at words.

    Returns:
        From 0 to 1 for each head, (L, H).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or a model without such heads.

    Source: [olsson2022context]
    Explained in: chapters/10_interpretability, section "Induction heads".
    """
    return _looks(model, tokens, lambda same: torch.ones_like(same).tril(-1).triu(-1))


def duplicate_token_scores(model: nn.Module, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "L H"]:
    """Return how much each head looks at earlier copies of the token that asks.

    The sum of a[i, j] over j < i with token_j = token_i, as a mean over the places i that have such
    a j. Arguments and errors are those of :func:`prefix_matching_scores`.

    Returns:
        From 0 to 1 for each head, (L, H).

    Source: [wang2022interpretability]
    Explained in: chapters/10_interpretability, section "Induction heads".
    """
    return _looks(model, tokens, lambda same: same.tril(-1))


def prefix_matching_scores(model: nn.Module, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "L H"]:
    """Return how much each head looks at what followed the earlier copies of the token that asks.

    The sum of a[i, j] over 1 ≤ j ≤ i with token_{j−1} = token_i, as a mean over the places i that
    have such a j. An induction head looks there, and copies what it finds: the second part is asked
    by :func:`copying_scores`.

    Args:
        model: a decoder or an encoder, all of whose mixers are multi-head attention.
        tokens: (B, N), without padding, with tokens that come back: :func:`repeated_tokens`.

    Returns:
        From 0 to 1 for each head, (L, H).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, tokens that never come back, or a model without
            such heads.

    Example:
        >>> tokens = repeated_tokens(30, 12, batch=4, generator=torch.manual_seed(0))
        >>> prefix_matching_scores(induction_model(30), tokens)[1, 0].round(decimals=4)
        tensor(1.)

    Source: [olsson2022context]
    Explained in: chapters/10_interpretability, section "Induction heads".
    """

    def wanted(same: Bool[Tensor, "B N N"]) -> Bool[Tensor, "B N N"]:
        after = torch.zeros_like(same)
        after[..., 1:] = same[..., :-1]
        return after.tril()

    return _looks(model, tokens, wanted)


def _looks(
    model: nn.Module, tokens: Tensor, wanted: Callable[[Tensor], Tensor]
) -> Float[Tensor, "L H"]:
    """Return the mean weight on the wanted keys, over the queries that have one."""
    check_ids("tokens", tokens)
    if len(attentions(model)) < len(model.stack.blocks):
        raise ValueError("model must have multi-head attention in every layer")
    asked = wanted(tokens[:, :, None] == tokens[:, None, :])  # (B, N, N)
    queries = asked.any(-1)
    if not bool(queries.any()):
        raise ValueError("tokens must hold what the heads are to look at, got none such")
    with evaluating(model):
        found = patterns(model, tokens)  # (L, B, H, N, N)
    mass = (found * asked[:, None]).sum(-1)  # (L, B, H, N)
    return mass.transpose(1, 2)[:, :, queries].mean(-1)


def qk_circuit(
    model: nn.Module, layer: int, head: int, *, distance: int = 0, fold: bool = True
) -> Float[Tensor, "D D"]:
    """Return the matrix A by which a head compares rows of the stream: score_ij = x_i A x_jᵀ.

    A = W_q W_kᵀ, and with rotary positions W_q R W_kᵀ with the rotation R between them, which the
    distance i − j fixes. Left out are the scale 1/√d, the biases of the projections, which compare
    nothing, and what a position adds to the scores.

    Args:
        model: a decoder or an encoder.
        layer: counted from 0.
        head: of the queries; it meets the key-value head of its group.
        distance: i − j, with rotary positions.
        fold: take the norm before the attention into the matrix: its γ, and that a layer norm takes
            the mean off. What is left of the norm is a positive factor for each row.

    Returns:
        (d_model, d_model), of a rank of at most d_head.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a head that is not there, one with norms of queries and keys, which compares
            by no fixed matrix, a distance without rotary positions, or ``fold`` with a norm that
            does not stand before.

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability_deeper, section "Circuits in the weights".
    """
    q, k = _qk(model, layer, head, distance, fold)
    return q @ k.mT


def ov_circuit(
    model: nn.Module, layer: int, head: int, *, fold: bool = True
) -> Float[Tensor, "D D"]:
    """Return the matrix by which a head writes what it read: y_i = Σ_j a_ij x_j W_v W_out.

    Biases are left out: they add the same to each row, whatever is read.

    Args:
        model: a decoder or an encoder.
        layer: counted from 0.
        head: its number.
        fold: take the norm before the attention into the matrix, and the factor of the residual
            connection.

    Returns:
        (d_model, d_model), of a rank of at most d_value.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a head that is not there, or ``fold`` with a norm that stands elsewhere.

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability_deeper, section "Circuits in the weights".
    """
    v, out = _ov(model, layer, head, fold)
    return v @ out


def token_qk(
    model: DecoderOnly,
    layer: int,
    head: int,
    tokens: Int[Tensor, " T"] | None = None,
    *,
    distance: int = 0,
) -> Float[Tensor, "T T"]:
    """Return which token a head's query would meet in which key, if it read embeddings alone.

    E A Eᵀ with E the rows of the embedding and A of :func:`qk_circuit`, its norm folded in. Row:
    the token that asks, column: that which is found.

    Args:
        model: a decoder.
        layer: counted from 0.
        head: its number.
        distance: i − j, with rotary positions.
        tokens: which tokens, (T,); all when omitted, for vocabularies up to 8192.

    Raises:
        TypeError: for a wrong type.
        ValueError: as :func:`qk_circuit`, for a token out of range, or too large a vocabulary.

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability_deeper, section "Circuits in the weights".
    """
    embedded = _embedded(model, tokens)
    q, k = _qk(model, layer, head, distance, True)
    return (embedded @ q) @ (embedded @ k).mT


def token_ov(
    model: DecoderOnly, layer: int, head: int, tokens: Int[Tensor, " T"] | None = None
) -> Float[Tensor, "T T"]:
    """Return how a head that looks at a token changes the logits of all, if it read it alone.

    E W_v W_out U with U the head of the model, the γ of the last norm in it. Row: the token that
    is looked at, column: that whose logit changes. A head that copies has a large diagonal.

    Args:
        model: a decoder with pre-norm layers.
        layer: counted from 0.
        head: its number.
        tokens: which tokens, (T,); all when omitted, for vocabularies up to 8192.

    Raises:
        TypeError: for a wrong type.
        ValueError: as :func:`ov_circuit`, for a token out of range, or too large a vocabulary.

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability_deeper, section "Circuits in the weights".
    """
    embedded, read = _embedded(model, tokens), _read(model, tokens)
    v, out = _ov(model, layer, head, True)
    return (embedded @ v) @ (out @ read.mT)


@torch.no_grad()
def copying_scores(model: DecoderOnly) -> Float[Tensor, "L H"]:
    """Return how much each head copies: Σ Re λ / Σ |λ| over the eigenvalues λ of its token circuit.

    The circuit is that of :func:`token_ov` over the whole vocabulary. A direction of tokens with a
    positive real eigenvalue makes itself more likely, so 1 is a head that only copies, −1 one that
    only suppresses what it sees, and a random one is near 0. A product of matrices has the same
    eigenvalues other than 0 in the other order, so a matrix of d_value² numbers is enough.

    Args:
        model: a decoder with pre-norm layers and multi-head attention in each.

    Returns:
        From −1 to 1 for each head, (L, H); 0 for a head that writes nothing.

    Raises:
        TypeError: if model is no decoder.
        ValueError: for a model without such heads, or what :func:`ov_circuit` refuses.

    Cost: one product of V · d_model² numbers, and small ones for each head.

    Example:
        >>> copying_scores(induction_model(30))[:, 0]
        tensor([0., 1.])

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability_deeper, section "Circuits in the weights".
    """
    between = (_read(model).mT @ _embedded(model, None, whole=True)).double()  # (d_model, d_model)
    n_layers, n_heads = head_table(model)
    scores = torch.zeros(n_layers, n_heads)
    for layer in range(n_layers):
        for head in range(n_heads):
            v, out = (part.double() for part in _ov(model, layer, head, True))
            values = torch.linalg.eigvals(out @ between @ v)  # (d_value,)
            size = float(values.abs().sum())
            scores[layer, head] = float(values.real.sum()) / size if size > 0 else 0.0
    return scores


@torch.no_grad()
def composition_scores(
    model: nn.Module, kind: str, *, fold: bool = True
) -> Float[Tensor, "L H L H"]:
    """Return how much of what each head writes each later head reads.

    ‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms, with B the OV circuit of the earlier head and A what the
    later one reads with: kind "q" its queries, ‖B W_q W_kᵀ‖, kind "k" its keys, ‖W_q W_kᵀ Bᵀ‖,
    kind "v" its values, ‖B W_v W_out‖. Matrices of random directions have about 1/√d_model: what is
    near that is no sign of anything.

    Args:
        model: a decoder or an encoder with multi-head attention in every layer.
        kind: "q", "k" or "v".
        fold: as for :func:`qk_circuit`.

    Returns:
        score[l, h, m, g] for head h of layer l that writes and head g of layer m that reads; 0
        unless l < m, and where one of the two circuits is 0.

    Raises:
        TypeError: for a wrong type.
        ValueError: for an unknown kind, a model without such heads, or what :func:`qk_circuit`
            refuses.

    Cost: for each pair of heads products with matrices of d_head columns, none of d_model².

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability_deeper, section "Circuits in the weights".
    """
    check_choice("kind", kind, ("q", "k", "v"))
    check_bool("fold", fold)
    n_layers, n_heads = head_table(model)
    wrote = []  # of each layer the small factor of W_v and W_out itself, (H, d_value, …), and norms
    for layer in range(n_layers):
        pairs = [_ov(model, layer, head, fold) for head in range(n_heads)]
        left = torch.stack([_triangle(v) for v, _ in pairs])
        out = torch.stack([out for _, out in pairs])
        wrote.append((left, out, (left @ out).norm(dim=(-2, -1))))
    scores = torch.zeros(n_layers, n_heads, n_layers, n_heads)
    for m, g in ((m, g) for m in range(1, n_layers) for g in range(n_heads)):
        if kind == "v":
            left, right = _ov(model, m, g, fold)
        else:
            left, right = _qk(model, m, g, 0, fold)
            left, right = (left, right.mT) if kind == "q" else (right, left.mT)
        right = _triangle(right.mT).mT
        size = (_triangle(left) @ right).norm()
        for layer in range(m):
            first, out, norms = wrote[layer]
            product = (first @ (out @ left) @ right).norm(dim=(-2, -1))  # (H,)
            both = size * norms
            scores[layer, :, m, g] = torch.where(both > 0, product / both, 0.0)
    return scores


def _triangle(matrix: Tensor) -> Tensor:
    """Return a small matrix of the same inner products of columns, so of the same norms."""
    return torch.linalg.qr(matrix, mode="r").R


def _head_of(model: object, layer: object, head: object) -> MultiHeadAttention:
    """Return the attention in which a head is."""
    found = attentions(model)
    check_heads("(layer, head)", [(layer, head)], found)
    return found[layer]


@torch.no_grad()
def _qk(model, layer, head, distance, fold) -> tuple[Tensor, Tensor]:
    """Return both factors of a head's QK circuit, (d_model, d_head) each."""
    mixer = _head_of(model, layer, head)
    check_number("distance", distance, whole=True)
    if mixer.q_norm is not None:
        raise ValueError(
            "the head must compare by a fixed matrix, this one has norms of queries and keys"
        )
    group = head * mixer.n_kv_heads // mixer.n_heads
    q = mixer.q_proj.weight.unflatten(0, (mixer.n_heads, -1))[head].mT  # (d_model, d_head)
    k = mixer.k_proj.weight.unflatten(0, (mixer.n_kv_heads, -1))[group].mT
    if hasattr(mixer.position, "rotate"):
        check_number("distance", distance, -(2**20), 2**20, whole=True)
        place = torch.full((len(q),), abs(distance), device=q.device)
        at = (place, torch.zeros_like(place))
        at = at if distance >= 0 else at[::-1]
        q, k = mixer.position.rotate(q, at[0]), mixer.position.rotate(k, at[1])
    elif distance:
        raise ValueError(f"distance is for heads with rotary positions, got {distance}")
    before = _norm_before(model, layer, fold)
    return before(q), before(k)


@torch.no_grad()
def _ov(model, layer, head, fold) -> tuple[Tensor, Tensor]:
    """Return both factors of a head's OV circuit, (d_model, d_value) and (d_value, d_model)."""
    mixer = _head_of(model, layer, head)
    group = head * mixer.n_kv_heads // mixer.n_heads
    v = mixer.v_proj.weight.unflatten(0, (mixer.n_kv_heads, -1))[group].mT  # (d_model, d_value)
    out = mixer.out_proj.weight.unflatten(1, (mixer.n_heads, -1))[:, head].mT
    before = _norm_before(model, layer, fold)
    if fold:
        residual = model.stack.blocks[layer].mixer_residual
        with evaluating(model):
            out = residual.leave(torch.zeros_like(out), out)
    return before(v), out


def _norm_before(model, layer, fold) -> Callable[[Tensor], Tensor]:
    """Return what folds the norm before an attention into a matrix that reads the stream."""
    check_bool("fold", fold)
    if not fold:
        return lambda matrix: matrix
    residual = model.stack.blocks[layer].mixer_residual
    residual = getattr(residual, "inner", residual)
    if residual.place not in ("pre", "none"):
        raise ValueError(
            f"fold needs the norm before the attention, that of layer {layer} is at "
            f"{residual.place!r}; fold=False takes the weights as they are"
        )
    return lambda matrix: _folded(residual.norm, matrix)


def _folded(norm: nn.Module | None, matrix: Tensor) -> Tensor:
    """Return the matrix (d_model, …) that reads x as this one reads norm(x), up to its scale."""
    if norm is None:
        return matrix
    if not isinstance(norm, LayerNorm | RMSNorm):
        raise ValueError(f"fold needs a layer norm or an RMS norm, got {type(norm).__name__}")
    matrix = norm.weight[:, None] * matrix
    return matrix if isinstance(norm, RMSNorm) else matrix - matrix.mean(0)


@torch.no_grad()
def _embedded(model, tokens, *, whole=False) -> Tensor:
    """Return the rows of the embedding, (T, d_model), times its factor."""
    check_decoder(model)
    rows = _chosen(model.embed.weight, tokens, whole)
    scale = model._entrances[0].scale
    return rows if scale is None else rows * scale


@torch.no_grad()
def _read(model, tokens=None) -> Tensor:
    """Return the rows of the head, (T, d_model), with the norm behind the layers in them."""
    check_decoder(model)
    table = model.embed.weight if model.head.tied else model.head.weight
    rows = table if tokens is None else table[tokens]
    rows = rows if model.head.scale is None else rows * model.head.scale
    return _folded(model.stack.final_norm, rows.mT).mT


def _chosen(table: Tensor, tokens: object, whole: bool) -> Tensor:
    if tokens is None:
        if not whole and len(table) > MOST:
            raise ValueError(f"tokens are needed for more than {MOST} of them, got {len(table)}")
        return table
    check_tensor("tokens", tokens, min_dims=1)
    if tokens.ndim != 1:
        raise ValueError(f"tokens must have shape (T,), got {tuple(tokens.shape)}")
    check_ids("tokens", tokens[None], len(table))
    return table[tokens]


@torch.no_grad()
def induction_model(vocab_size: int, max_len: int = 64, *, sharpness: float = 50.0) -> DecoderOnly:
    """Return a model of two layers without feed-forward parts that continues what it has read.

    Its weights are set by hand. The stream of V + P + 1 + V + V numbers holds the token, the place,
    a 1, the token before, and what is predicted. Head 0 of layer 0 looks at the place before and
    writes that token where the token before has its part; head 0 of layer 1 asks for places whose
    token before is its own one, and writes their token into the last part, which alone is read at
    the end. Head 1 of each layer looks everywhere and writes nothing. After "a b … a" it says b.

    Args:
        vocab_size: V, from 2 to 1024.
        max_len: P, the longest sequence, from 2 to 1024.
        sharpness: how far the score of the key that is meant is above the others, and the logit of
            the token that is found.

    Returns:
        The model, in evaluation mode.

    Raises:
        TypeError: if a number is none.
        ValueError: for a number out of range.

    Example:
        >>> model = induction_model(10)
        >>> logits, _ = model(torch.tensor([[7, 3, 5, 1, 3]]))
        >>> int(logits[0, -1].argmax())
        5

    Source: [elhage2021mathematical], [olsson2022context]
    Explained in: chapters/10_interpretability, section "Induction heads".
    """
    check_number("vocab_size", vocab_size, 2, 1024, whole=True)
    check_number("max_len", max_len, 2, 1024, whole=True)
    check_number("sharpness", sharpness, 1, 1e4)
    v, p = vocab_size, max_len
    token, place, one, before, said = 0, v, v + p, v + p + 1, 2 * v + p + 1  # parts of the stream
    layers = [
        Layer(Attention(2, d_head=d_head, d_value=v, bias=False, scale=1.0), NoFFN(), place="none")
        for d_head in (p, v + 1)
    ]
    config = TransformerConfig(
        v,
        3 * v + p + 1,
        decoder=layers,
        embedding=Tokens(Learned()),
        head=NextToken(tie_embeddings=False),
        max_len=p,
    )
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn, and not used
        model = build(config)
    for weight in model.parameters():
        weight.zero_()
    first, second = (block.mixer for block in model.stack.blocks)
    _put(model.embed.weight, 0, token, v)
    _put(model.position.weight, 0, place, p)
    model.position.weight[:, one] = 1
    _put(first.q_proj.weight[: p - 1], 0, place + 1, p - 1, sharpness)  # place i asks for i − 1
    _put(first.k_proj.weight, 0, place, p)
    _put(first.out_proj.weight.mT, 0, before, v)
    _put(second.q_proj.weight, 0, token, v, sharpness)
    _put(second.k_proj.weight, 0, before, v)
    second.q_proj.weight[v, one] = sharpness  # every query …
    second.k_proj.weight[v, place] = -2  # … passes over place 0, which has no token before it
    _put(second.out_proj.weight.mT, 0, said, v)
    for mixer in (first, second):
        _put(mixer.v_proj.weight, 0, token, v)
    _put(model.head.weight, 0, said, v, sharpness)
    return model.eval()


def _put(weight: Tensor, row: int, column: int, n: int, value: float = 1.0) -> None:
    """Set n entries of a matrix, one below the other, along a diagonal."""
    index = torch.arange(n)
    weight[row + index, column + index] = value
