"""Dictionaries: rows of a model written as sums of few directions out of many.

A sparse autoencoder writes rows of the stream as such sums; a transcoder does so with what a
feed-forward network makes of its input. Both are one layer with as many features as one likes, of
which each row may use k.

Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_choice,
    check_device,
    check_dtype,
    check_float,
    check_generator,
    check_ids,
    check_number,
    check_same,
    check_shape,
)
from tfbook.interpret.capturing import capture, patched
from tfbook.interpret.lens import check_summed
from tfbook.models import DecoderOnly
from tfbook.training import causal_loss, evaluating

__all__ = [
    "DictionaryHistory",
    "Fidelity",
    "Recovery",
    "SparseDictionary",
    "dictionary_rows",
    "fidelity",
    "fit_dictionary",
    "recovered_loss",
    "spliced",
]

Part = Literal["stream", "ffn"]
PARTS = ("stream", "ffn")
CHUNK = 16  # sequences of one call of a model


class SparseDictionary(nn.Module):
    """Write a row as a sum of at most k directions: a top-k sparse autoencoder, or a transcoder.

    z = TopK(ReLU(E (x − μ) / σ + b)), ŷ = μ' + σ' (Σ_f z_f d_f + c)

    with directions d_f of length 1. Of the F numbers in z all but the k largest are 0. A sparse
    autoencoder has y = x; a transcoder reads one thing and writes another.

    Args:
        d_in: size of a row x.
        n_features: F, how many directions there are.
        k: how many a row may use.
        d_out: size of a row y; when omitted, the dictionary is an autoencoder.
        generator: source of the first weights.
        dtype: of the weights.
        device: where they lie.

    Attributes:
        encoder: the weights E and b of the features, (F, d_in) and (F,).
        directions: d_f, (F, d_out).
        offset: c, (d_out,).
        mean_in, scale_in, mean_out, scale_out: μ and σ, which :meth:`standardize` sets.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> dictionary = SparseDictionary(8, 32, 4, generator=torch.Generator().manual_seed(0))
        >>> z = dictionary.encode(torch.randn(10, 8))
        >>> z.shape, bool(((z > 0).sum(-1) <= 4).all())
        (torch.Size([10, 32]), True)

    Cost: F (d_in + d_out + 1) + d_out parameters, 2 F (d_in + d_out) FLOPs a row.

    Source: [gao2024scaling], transcoders: [dunefsky2024transcoders]
    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """

    def __init__(
        self,
        d_in: int,
        n_features: int,
        k: int,
        d_out: int | None = None,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        """Draw the directions; an autoencoder begins by reading along what it writes."""
        super().__init__()
        check_number("d_in", d_in, 1, whole=True)
        check_number("n_features", n_features, 1, whole=True)
        check_number("k", k, 1, n_features, whole=True)
        if d_out is not None:
            check_number("d_out", d_out, 1, whole=True)
        check_generator(generator)
        check_dtype(dtype)
        check_device(device)
        self.k, self.reads_itself = k, d_out is None
        d_out = d_in if d_out is None else d_out
        made = {"dtype": dtype, "device": device}
        directions = _unit(torch.randn(n_features, d_out, generator=generator))
        read = directions
        if not self.reads_itself:
            read = _unit(torch.randn(n_features, d_in, generator=generator))
        self.directions = nn.Parameter(directions.to(**made))
        self.encoder = nn.Linear(d_in, n_features, **made)
        self.offset = nn.Parameter(torch.zeros(d_out, **made))
        with torch.no_grad():
            self.encoder.weight.copy_(read)
            self.encoder.bias.zero_()
        for side, size in (("in", d_in), ("out", d_out)):
            self.register_buffer(f"mean_{side}", torch.zeros(size, **made))
            self.register_buffer(f"scale_{side}", torch.ones((), **made))

    @torch.no_grad()
    def standardize(self, x: Float[Tensor, "R D"], y: Float[Tensor, "R E"] | None = None) -> None:
        """Set μ to the mean row and σ to the root of the mean variance of a number, for x and y.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or rows that do not differ.
        """
        x, y = self._rows(x, y)
        for side, rows in (("in", x), ("out", y)):
            mean = rows.mean(0)
            scale = (rows - mean).square().mean().sqrt()
            if not scale > 0 or not scale.isfinite():
                raise ValueError(f"{'x' if side == 'in' else 'y'} must have rows that differ")
            getattr(self, f"mean_{side}").copy_(mean)
            getattr(self, f"scale_{side}").copy_(scale)

    def scores(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B F"]:
        """Return what all features would say, before the k largest are chosen.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit.
        """
        check_float("x", x, min_dims=1)
        check_shape("x", x, (*x.shape[:-1], len(self.mean_in)), "(…, d_in)")
        check_same(**{"x": x, "the weights": self.encoder.weight})
        return self.encoder((x - self.mean_in) / self.scale_in).relu()

    def encode(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B F"]:
        """Return the features z of rows x; same errors as :meth:`scores`."""
        return _largest(self.scores(x), self.k)

    def decode(self, z: Float[Tensor, "*B F"]) -> Float[Tensor, "*B E"]:
        """Return the rows that features write.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit.
        """
        check_float("z", z, min_dims=1)
        check_shape("z", z, (*z.shape[:-1], len(self.directions)), "(…, n_features)")
        check_same(**{"z": z, "the weights": self.directions})
        return self.mean_out + self.scale_out * (z @ self.directions + self.offset)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B E"]:
        """Return ŷ for rows x; same errors as :meth:`scores`."""
        return self.decode(self.encode(x))

    def _rows(self, x, y):
        """Return x and y, after a check; an autoencoder's y is x."""
        if (y is None) != self.reads_itself:
            wanted = "no y" if self.reads_itself else "rows y to be written"
            raise ValueError(f"y does not fit: this dictionary needs {wanted}")
        check_float("x", x)
        check_shape("x", x, (*x.shape[:1], len(self.mean_in)), "(R, d_in)")
        if not len(x):
            raise ValueError("x must have at least one row, got none")
        y = x if y is None else y
        check_float("y", y)
        check_shape("y", y, (len(x), len(self.mean_out)), "(R, d_out)")
        check_same(**{"x": x, "y": y, "the weights": self.directions})
        return x, y


class DictionaryHistory(NamedTuple):
    """What a training of a dictionary went through.

    Attributes:
        unexplained: share of a batch's variance that is not reproduced, before each step, (S,).
        dead: share of features that no row used in the steps that count, after each step, (S,).

    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """

    unexplained: Float[Tensor, " S"]
    dead: Float[Tensor, " S"]


def fit_dictionary(
    dictionary: SparseDictionary,
    x: Float[Tensor, "R D"],
    y: Float[Tensor, "R E"] | None = None,
    *,
    steps: int = 1000,
    batch: int = 256,
    lr: float = 1e-3,
    auxiliary: float = 1 / 32,
    dead_after: int = 50,
    standardize: bool = True,
    generator: torch.Generator | None = None,
) -> DictionaryHistory:
    """Train a dictionary on rows, in batches drawn at random.

    loss = ‖y − ŷ‖² / V + auxiliary · ‖e − ê‖² / V, with V the variance of y, e = y − ŷ the error,
    and ê what the d_out / 2 largest of the **dead** features make of it: those that no row has used
    for ``dead_after`` steps. Without that term a dead feature has no gradient and stays dead. Adam;
    the rate falls to 0 over the last fifth. Directions are kept at length 1, and gradients along
    them are taken off.

    Args:
        dictionary: trained in place.
        x: rows to read, (R, d_in).
        y: rows to write, (R, d_out), for a transcoder.
        steps: how many.
        batch: rows of a step.
        lr: the highest rate, at most 1.
        auxiliary: weight of the second term, 0 for none.
        dead_after: after how many steps without use a feature counts as dead.
        standardize: first set means and scales by x and y; False to train further.
        generator: source of the batches.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or a shape that does not fit.

    Cost: 6 F (d_in + d_out) FLOPs a row, a third more with dead features.

    Source: [gao2024scaling]
    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """
    _check_dictionary(dictionary)
    x, y = dictionary._rows(x, y)
    check_number("steps", steps, 1, whole=True)
    check_number("batch", batch, 1, whole=True)
    check_number("lr", lr, high=1, above=0)
    check_number("auxiliary", auxiliary, 0)
    check_number("dead_after", dead_after, 1, whole=True)
    check_bool("standardize", standardize)
    check_generator(generator)
    if standardize:
        dictionary.standardize(x, None if dictionary.reads_itself else y)
    variance = (y - y.mean(0)).square().mean()  # of one number
    optimizer = torch.optim.Adam(dictionary.parameters(), lr=lr)
    falls = max(steps // 5, 1)
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (steps - s) / falls))
    unused = torch.zeros(len(dictionary.directions), dtype=torch.long, device=x.device)
    found = torch.empty(2, steps)
    for step in range(steps):
        chosen = torch.randint(len(x), (batch,), generator=generator).to(x.device)
        rows, wanted = x[chosen], y[chosen]
        scores = dictionary.scores(rows)
        z = _largest(scores, dictionary.k)
        error = wanted - dictionary.decode(z)
        loss = main = error.square().mean() / variance
        dead = unused >= dead_after
        if auxiliary and bool(dead.any()):
            loss = main + auxiliary * _of_dead(dictionary, scores, dead, error) / variance
        optimizer.zero_grad()
        loss.backward()
        _keep_length(dictionary)
        optimizer.step()
        course.step()
        with torch.no_grad():
            dictionary.directions.copy_(_unit(dictionary.directions))
        unused = torch.where((z > 0).any(0), 0, unused + 1)
        found[0, step] = main.detach()
        found[1, step] = (unused >= dead_after).float().mean()
    return DictionaryHistory(*found)


def _of_dead(dictionary, scores, dead, error):
    """Return how much of the error the dead features leave, where they alone are asked."""
    many = min(int(dead.sum()), max(error.shape[-1] // 2, 1))
    z = _largest(scores * dead, many)
    made = dictionary.scale_out * (z @ dictionary.directions)
    return (error.detach() - made).square().mean()


@torch.no_grad()
def _keep_length(dictionary):
    """Take off the part of the gradient that would only change how long a direction is."""
    directions, gradient = dictionary.directions, dictionary.directions.grad
    gradient -= (gradient * directions).sum(-1, keepdim=True) * directions


class Fidelity(NamedTuple):
    """How well a dictionary writes rows, and with how much.

    Attributes:
        unexplained: Σ ‖y − ŷ‖² / Σ ‖y − ȳ‖², 0 for a perfect copy, 1 for the mean row.
        used: features that are on in a row, the mean, often called L0.
        dead: share of the features that are on in no row.
        density: in what share of the rows each feature is on, (F,).

    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """

    unexplained: float
    used: float
    dead: float
    density: Float[Tensor, " F"]


@torch.no_grad()
def fidelity(
    dictionary: SparseDictionary,
    x: Float[Tensor, "R D"],
    y: Float[Tensor, "R E"] | None = None,
) -> Fidelity:
    """Measure a dictionary on rows, best on others than those it was trained on.

    Args:
        dictionary: to be measured.
        x: rows to read, (R, d_in).
        y: rows to write, (R, d_out), for a transcoder.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or rows that do not differ.

    Example:
        >>> dictionary = SparseDictionary(3, 6, 3)
        >>> with torch.no_grad():
        ...     _ = dictionary.directions.copy_(torch.cat([torch.eye(3), -torch.eye(3)]))
        ...     _ = dictionary.encoder.weight.copy_(dictionary.directions)
        >>> x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 4.0, -1.0]])
        >>> fidelity(dictionary, x)[:3]
        (0.0, 2.5, 0.16666666666666666)

    Source: [gao2024scaling]
    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """
    _check_dictionary(dictionary)
    x, y = dictionary._rows(x, y)
    spread = float((y - y.mean(0)).double().square().sum())
    if not spread > 0:
        raise ValueError("y must have rows that differ, or nothing has to be explained")
    lost, on = 0.0, torch.zeros(len(dictionary.directions), dtype=torch.long, device=x.device)
    for rows, wanted in zip(x.split(1024), y.split(1024), strict=True):
        z = dictionary.encode(rows)
        lost += float((wanted - dictionary.decode(z)).double().square().sum())
        on += (z > 0).sum(0)
    never = float((on == 0).double().mean())
    return Fidelity(lost / spread, float(on.sum()) / len(x), never, on / len(x))


def dictionary_rows(
    model: DecoderOnly, tokens: Int[Tensor, "B N"], layer: int, part: Part = "stream"
) -> tuple[Float[Tensor, "R D"], Float[Tensor, "R D"]]:
    """Return what a dictionary is trained on: rows x to read, and rows y to write.

    For "stream" both are the stream behind the layer. For "ffn" x is what the feed-forward network
    of the layer reads, behind its norm, and y is what it adds to the stream.

    Args:
        model: a decoder with pre-norm layers; its weights get no gradients.
        tokens: (B, N), without padding.
        layer: the number of the layer, from 0.
        part: "stream" or "ffn".

    Returns:
        x and y, both (B · N, d_model).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit, or a post-norm model.

    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """
    block = _block(model, layer, part)
    check_ids("tokens", tokens, model.config.vocab_size)
    mid, post = _taps(layer)
    found = []
    with evaluating(model):
        for chunk in tokens.split(CHUNK):
            with capture(model, mid, post) as seen:
                model(chunk)
            if part == "stream":
                found.append((seen[post], seen[post]))
            else:
                found.append((block.ffn_residual.enter(seen[mid]), seen[post] - seen[mid]))
    x, y = (torch.cat(each).flatten(0, 1) for each in zip(*found, strict=True))
    return x, y


def spliced(
    model: DecoderOnly, dictionary: SparseDictionary, layer: int, part: Part = "stream"
) -> AbstractContextManager[None]:
    """Let a model run through a dictionary: the stream behind a layer, or its ffn, is replaced.

    Args:
        model: a decoder with pre-norm layers.
        dictionary: an autoencoder for "stream", a transcoder for "ffn".
        layer: the number of the layer, from 0.
        part: "stream" or "ffn".

    Returns:
        What ``with`` enters.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number that does not fit, or a dictionary of another kind or size.

    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """
    _block(model, layer, part)
    _check_fits(dictionary, model, part)
    return _replaced(model, dictionary, layer, part)


@contextmanager
def _replaced(model, write, layer: int, part: str) -> Iterator[None]:
    """Replace what a layer writes by what a function makes of the rows that are read."""
    block, kept, (mid, post) = model.stack.blocks[layer], {}, _taps(layer)

    def keep(x):
        kept["mid"] = x
        return x

    def put(x):
        if part == "stream":
            return write(x)
        before = kept.pop("mid")
        return before + write(block.ffn_residual.enter(before))

    with patched(model, {mid: keep, post: put}):
        yield


class Recovery(NamedTuple):
    """What a model loses when a dictionary stands in for a part of it, in nats a token.

    Attributes:
        clean: loss of the model as it is.
        spliced: loss with the dictionary in place.
        ablated: loss with the mean row in place of all rows.
        share: (ablated − spliced) / (ablated − clean), 1 for a perfect copy, 0 for the mean row.

    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """

    clean: float
    spliced: float
    ablated: float
    share: float


def recovered_loss(
    model: DecoderOnly,
    dictionary: SparseDictionary,
    tokens: Int[Tensor, "B N"],
    layer: int,
    part: Part = "stream",
) -> Recovery:
    """Return how much of a model's loss a dictionary keeps, between the mean row and the rows.

    Args:
        model: a decoder with pre-norm layers.
        dictionary: an autoencoder for "stream", a transcoder for "ffn".
        tokens: (B, N), of which all but the first in each row are predicted, N at least 2.
        layer: the number of the layer, from 0.
        part: "stream" or "ffn".

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit, or where the mean row costs nothing.

    Source: [gao2024scaling]
    Explained in: chapters/10_interpretability_deeper, section "Dictionaries".
    """
    _block(model, layer, part)
    _check_fits(dictionary, model, part)
    check_ids("tokens", tokens, model.config.vocab_size)
    if tokens.shape[1] < 2:
        raise ValueError(f"tokens must have at least two in a row, got {tuple(tokens.shape)}")
    mean = dictionary_rows(model, tokens[:, :-1], layer, part)[1].mean(0)
    with evaluating(model):
        clean = _loss(model, tokens)
        with spliced(model, dictionary, layer, part):
            through = _loss(model, tokens)
        with _replaced(model, lambda x: mean.expand_as(x), layer, part):
            without = _loss(model, tokens)
    if without == clean:
        raise ValueError(f"the mean row at layer {layer} changes no loss: there is no share of it")
    return Recovery(clean, through, without, (without - through) / (without - clean))


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def _largest(scores: Float[Tensor, "*B F"], k: int) -> Float[Tensor, "*B F"]:
    """Return the scores with all but the k largest of each row set to 0."""
    values, places = scores.topk(k, dim=-1)
    return torch.zeros_like(scores).scatter(-1, places, values)


def _taps(layer: int) -> tuple[str, str]:
    return f"stack.blocks.{layer}.resid_mid", f"stack.blocks.{layer}.resid_post"


def _block(model: object, layer: object, part: object) -> nn.Module:
    """Return a layer of a model, after a check."""
    check_summed(model)
    check_number("layer", layer, 0, len(model.stack.blocks) - 1, whole=True)
    check_choice("part", part, PARTS)
    return model.stack.blocks[layer]


def _check_dictionary(dictionary: object) -> None:
    if not isinstance(dictionary, SparseDictionary):
        raise TypeError(f"dictionary must be a SparseDictionary, got {type(dictionary).__name__}")


def _check_fits(dictionary: object, model: DecoderOnly, part: str) -> None:
    _check_dictionary(dictionary)
    d = model.config.d_model
    sizes = (len(dictionary.mean_in), len(dictionary.mean_out))
    if sizes != (d, d):
        raise ValueError(f"dictionary must read and write rows of {d} numbers, got {sizes}")
    if dictionary.reads_itself != (part == "stream"):
        kind = "an autoencoder" if part == "stream" else "a transcoder, with d_out"
        raise ValueError(f"dictionary must be {kind} for the part {part!r}")
    check_same(**{"dictionary": dictionary.directions, "model": model.embed.weight})


def _loss(model: DecoderOnly, tokens: Tensor) -> float:
    """Return the mean loss of all predictions, in nats."""
    parts = [causal_loss(model, chunk) for chunk in tokens.split(CHUNK)]
    return sum(float(loss) for loss, _ in parts) / sum(count for _, count in parts)
