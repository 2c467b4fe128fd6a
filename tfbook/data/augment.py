"""More examples out of those there are: changes that leave the label right, for text, image, sound.

Each function takes a batch, draws for every example anew, and returns a new tensor of the same
shape and dtype. Whether a change leaves the label right is a matter of the task: a mirrored cat is
a cat, a mirrored b is a d. All that is drawn comes from a generator on the CPU: the same one gives
the same changes on every device.

Explained in: chapters/11_training_deeper, section "More data from the same data".
"""

from collections.abc import Collection

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tfbook._checks import check_float, check_ids, check_number, check_tensor

__all__ = [
    "add_noise",
    "crop",
    "cutout",
    "drop_words",
    "flip",
    "mask_spans",
    "mask_spectrogram",
    "mixup",
    "shift",
    "swap_words",
]

Generator = torch.Generator | None


# Text


def drop_words(
    ids: Int[Tensor, "B N"],
    rate: float,
    *,
    replacement: int,
    keep: Collection[int] = (),
    generator: Generator = None,
) -> Int[Tensor, "B N"]:
    """Replace each token by a chance of `rate`: word dropout.

    Args:
        ids: (B, N).
        rate: chance of a token to go, from 0 up to below 1.
        replacement: what it becomes, such as ``tfbook.data.UNK``.
        keep: tokens that stay, such as padding and the ends of a sentence.
        generator: of what is drawn.

    Returns:
        (B, N).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if rate is out of range, replacement negative, or ids have another shape.

    Example:
        >>> ids = torch.tensor([[1, 5, 6, 7, 2, 0]])
        >>> g = torch.Generator().manual_seed(0)
        >>> drop_words(ids, 0.5, replacement=3, keep=(0, 1, 2), generator=g)
        tensor([[1, 5, 3, 3, 2, 0]])

    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_ids("ids", ids)
    check_number("rate", rate, 0, below=1)
    check_number("replacement", replacement, 0, whole=True)
    gone = (_uniform(ids.shape, ids, generator) < rate) & ~_among(ids, keep)  # (B, N)
    return ids.masked_fill(gone, replacement)


def swap_words(
    ids: Int[Tensor, "B N"],
    rate: float,
    *,
    keep: Collection[int] = (),
    generator: Generator = None,
) -> Int[Tensor, "B N"]:
    """Exchange round(rate · n / 2) pairs of tokens in each row, n the tokens that may move.

    Args:
        ids: (B, N).
        rate: share of the tokens that change places, from 0 up to below 1.
        keep: tokens that stay where they are, such as padding.
        generator: of what is drawn.

    Returns:
        (B, N), in each row the same tokens.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if rate is out of range or ids have another shape.

    Example:
        >>> ids = torch.tensor([[1, 5, 6, 7, 8, 2]])
        >>> swap_words(ids, 0.5, keep=(1, 2), generator=torch.Generator().manual_seed(2))
        tensor([[1, 6, 5, 7, 8, 2]])

    Source: [wei2019eda]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_ids("ids", ids)
    check_number("rate", rate, 0, below=1)
    swapped = ids.clone()  # (B, N)
    free = ~_among(ids, keep)
    for row, mobile in zip(swapped, free, strict=True):
        places = mobile.nonzero().flatten()  # (n,)
        order = places[torch.randperm(len(places), generator=generator).to(places.device)]
        count = round(rate * len(places) / 2)
        one, other = order[:count], order[count : 2 * count]
        row[one], row[other] = row[other].clone(), row[one].clone()
    return swapped


def mask_spans(
    ids: Int[Tensor, "B N"],
    rate: float,
    *,
    replacement: int,
    mean_length: float = 3.0,
    keep: Collection[int] = (),
    generator: Generator = None,
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Replace runs of tokens, until round(rate · n) of the n tokens of a row are gone.

    A run begins anywhere with equal chance; its length is geometric with the given mean, cut at the
    end of what is asked for, at the end of the row, and at a token that is to stay.

    Args:
        ids: (B, N).
        rate: share of the tokens, those to keep not counted, from 0 up to below 1.
        replacement: what each becomes, such as a mask token.
        mean_length: of a run, at least 1.
        keep: tokens that stay, such as padding.
        generator: of what is drawn.

    Returns:
        The changed ids (B, N), and where they were changed, boolean (B, N).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if a number is out of range or ids have another shape.

    Source: [joshi2020spanbert]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_ids("ids", ids)
    check_number("rate", rate, 0, below=1)
    check_number("replacement", replacement, 0, whole=True)
    check_number("mean_length", mean_length, above=0)
    if mean_length < 1:
        raise ValueError(f"mean_length must be at least 1, got {mean_length}")
    free = ~_among(ids, keep).cpu()  # (B, N)
    gone = torch.zeros_like(free)
    for hidden, open_ in zip(gone, free, strict=True):
        places = open_.nonzero().flatten().tolist()
        wanted = round(rate * len(places))
        while (missing := wanted - int(hidden.sum())) > 0:
            start = places[int(torch.randint(len(places), (), generator=generator))]
            length = _geometric(mean_length, generator)
            for place in range(start, min(start + length, len(hidden))):
                if not open_[place] or missing == 0:
                    break
                missing -= int(not hidden[place])
                hidden[place] = True
    gone = gone.to(ids.device)
    return ids.masked_fill(gone, replacement), gone


# Images


def flip(
    images: Shaped[Tensor, "B *C H W"], *, rate: float = 0.5, generator: Generator = None
) -> Shaped[Tensor, "B *C H W"]:
    """Mirror each image, left to right, by a chance of `rate`.

    Args:
        images: (B, ..., H, W).
        rate: the chance, from 0 to 1.
        generator: of what is drawn.

    Returns:
        (B, ..., H, W).

    Raises:
        TypeError: if images are no tensor or rate no number.
        ValueError: if rate is out of range or there are fewer than 3 dimensions.

    Source: [krizhevsky2012imagenet]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_tensor("images", images, min_dims=3)
    if rate != 1 or isinstance(rate, bool):
        check_number("rate", rate, 0, below=1)
    turned = _uniform(images.shape[:1], images, generator) < rate  # (B,)
    return torch.where(_spread(turned, images), images.flip(-1), images)


def crop(
    images: Shaped[Tensor, "B *C H W"], padding: int, *, generator: Generator = None
) -> Shaped[Tensor, "B *C H W"]:
    """Move each image by up to `padding` pixels in both directions; what comes in is 0.

    That is a random crop of the image after zeros were laid around it.

    Args:
        images: (B, ..., H, W).
        padding: the most that it moves, in pixels.
        generator: of what is drawn.

    Returns:
        (B, ..., H, W).

    Raises:
        TypeError: if images are no tensor or padding is no integer.
        ValueError: if padding is negative or there are fewer than 3 dimensions.

    Source: [krizhevsky2012imagenet]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_tensor("images", images, min_dims=3)
    check_number("padding", padding, 0, whole=True)
    height, width = images.shape[-2:]
    wide = torch.nn.functional.pad(images, (padding,) * 4)  # (B, ..., H + 2p, W + 2p)
    begins = torch.randint(2 * padding + 1, (len(images), 2), generator=generator).tolist()
    moved = [
        image[..., top : top + height, left : left + width]
        for image, (top, left) in zip(wide, begins, strict=True)
    ]
    return torch.stack(moved) if moved else images.clone()


def cutout(
    images: Shaped[Tensor, "B *C H W"], size: int, *, generator: Generator = None
) -> Shaped[Tensor, "B *C H W"]:
    """Set a square of each image to 0, its middle anywhere in the image, so it may stick out.

    Args:
        images: (B, ..., H, W).
        size: of the square, in pixels.
        generator: of what is drawn.

    Returns:
        (B, ..., H, W).

    Raises:
        TypeError: if images are no tensor or size is no integer.
        ValueError: if size is negative or there are fewer than 3 dimensions.

    Source: [devries2017cutout]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_tensor("images", images, min_dims=3)
    check_number("size", size, 0, whole=True)
    inside = []
    for n in images.shape[-2:]:
        start = torch.randint(n, (len(images), 1), generator=generator) - size // 2  # (B, 1)
        place = torch.arange(n)  # (n,)
        inside.append((place >= start) & (place < start + size))  # (B, n)
    hole = (inside[0][:, :, None] & inside[1][:, None, :]).to(images.device)  # (B, H, W)
    hole = hole.view(len(images), *(1,) * (images.ndim - 3), *images.shape[-2:])
    return images.masked_fill(hole, 0)


def mixup(
    x: Float[Tensor, "B ..."],
    targets: Float[Tensor, "B ..."],
    *,
    alpha: float = 0.2,
    generator: Generator = None,
) -> tuple[Float[Tensor, "B ..."], Float[Tensor, "B ..."]]:
    """Mix each example with another one of the batch, and their targets in the same proportion.

    x̃_i = λ_i x_i + (1 − λ_i) x_π(i), ỹ_i = λ_i y_i + (1 − λ_i) y_π(i), λ_i ~ Beta(α, α), π a
    random permutation.

    Args:
        x: (B, ...), images, spectrograms or embeddings.
        targets: (B, C), probabilities of classes: ``one_hot(labels).float()``.
        alpha: α; small, and most examples stay nearly as they are; 1, and λ is uniform.
        generator: of what is drawn.

    Returns:
        The mixed x and targets.

    Raises:
        TypeError: if x or targets are not floating point, or alpha is no number.
        ValueError: if alpha is not positive, or x and targets differ in B.

    Source: [zhang2018mixup]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_float("x", x, min_dims=1)
    check_float("targets", targets, min_dims=1)
    check_number("alpha", alpha, above=0)
    if len(x) != len(targets):
        raise ValueError(f"x and targets must be as many, got {len(x)} and {len(targets)}")
    # PyTorch draws from a beta distribution with the global generator only; NumPy with any.
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    share = torch.from_numpy(rng.beta(alpha, alpha, len(x)))  # (B,)
    other = torch.randperm(len(x), generator=generator).to(x.device)  # (B,)

    def mix(values: Tensor) -> Tensor:
        part = _spread(share.to(values), values)
        return part * values + (1 - part) * values[other]

    return mix(x), mix(targets)


# Sound


def add_noise(
    waves: Float[Tensor, "B *C T"], snr_db: float, *, generator: Generator = None
) -> Float[Tensor, "B *C T"]:
    """Add white noise, so much weaker than the sound as the signal-to-noise ratio says.

    SNR = 10 log₁₀(mean(x²) / mean(noise²)) decibel, for each example. Silence stays silent.

    Args:
        waves: (B, ..., T).
        snr_db: in decibel; 0 is as loud as the sound, 20 a tenth of its amplitude.
        generator: of what is drawn.

    Returns:
        (B, ..., T).

    Raises:
        TypeError: if waves are not floating point or snr_db is no number.
        ValueError: if snr_db is not finite or there are fewer than 2 dimensions.

    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_float("waves", waves, min_dims=2)
    check_number("snr_db", snr_db)
    noise = torch.randn(waves.shape, generator=generator, dtype=torch.float64)
    loudness, hiss = (
        values.double().flatten(1).square().mean(-1).sqrt().cpu() for values in (waves, noise)
    )  # (B,), root mean squares
    factor = loudness / hiss * 10 ** (-snr_db / 20)
    return waves + (noise * _spread(factor, noise)).to(waves)


def shift(
    waves: Shaped[Tensor, "B *C T"], most: int, *, generator: Generator = None
) -> Shaped[Tensor, "B *C T"]:
    """Move each sound in time by up to `most` samples, earlier or later; what comes in is 0.

    Args:
        waves: (B, ..., T).
        most: samples.
        generator: of what is drawn.

    Returns:
        (B, ..., T).

    Raises:
        TypeError: if waves are no tensor or most is no integer.
        ValueError: if most is negative or there are fewer than 2 dimensions.

    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_tensor("waves", waves, min_dims=2)
    check_number("most", most, 0, whole=True)
    length = waves.shape[-1]
    wide = torch.nn.functional.pad(waves, (most, most))  # (B, ..., T + 2 most)
    begins = torch.randint(2 * most + 1, (len(waves),), generator=generator).tolist()
    moved = [wave[..., start : start + length] for wave, start in zip(wide, begins, strict=True)]
    return torch.stack(moved) if moved else waves.clone()


def mask_spectrogram(
    spectra: Float[Tensor, "B *C F T"],
    *,
    frequencies: int,
    times: int,
    bands: int = 1,
    generator: Generator = None,
) -> Float[Tensor, "B *C F T"]:
    """Set bands of frequencies and stretches of time to 0: SpecAugment without its time warping.

    Each band is f bins wide, f uniform on 0 ... `frequencies`, and begins anywhere that it fits;
    likewise each stretch of time.

    Args:
        spectra: (B, ..., F, T), such as log-mel spectrograms with mean 0.
        frequencies: the widest band, in bins, at most F.
        times: the longest stretch, in frames, at most T.
        bands: how many of each.
        generator: of what is drawn.

    Returns:
        (B, ..., F, T).

    Raises:
        TypeError: if spectra are not floating point or a count is no integer.
        ValueError: if a count is negative or too large, or there are fewer than 3 dimensions.

    Source: [park2019specaugment]
    Explained in: chapters/11_training_deeper, section "More data from the same data".
    """
    check_float("spectra", spectra, min_dims=3)
    check_number("bands", bands, 0, whole=True)
    hidden = torch.zeros(len(spectra), *spectra.shape[-2:], dtype=torch.bool)  # (B, F, T)
    for name, widest, n in zip(
        ("frequencies", "times"), (frequencies, times), spectra.shape[-2:], strict=True
    ):
        check_number(name, widest, 0, whole=True)
        if widest > n:
            raise ValueError(f"{name} must be at most {n}, got {widest}")
        for _ in range(bands):
            width = torch.randint(widest + 1, (len(spectra), 1), generator=generator)  # (B, 1)
            room = (n - width + 1) * _uniform(width.shape, width, generator)
            start = room.long()  # (B, 1), 0 ... n − width
            place = torch.arange(n)  # (n,)
            inside = (place >= start) & (place < start + width)  # (B, n)
            hidden |= inside[:, :, None] if name == "frequencies" else inside[:, None, :]
    hidden = hidden.view(len(spectra), *(1,) * (spectra.ndim - 3), *spectra.shape[-2:])
    return spectra.masked_fill(hidden.to(spectra.device), 0)


def _uniform(shape: torch.Size, like: Tensor, generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator).to(like.device)


def _among(ids: Tensor, keep: Collection[int]) -> Tensor:
    return torch.isin(ids, torch.tensor(list(keep), dtype=ids.dtype, device=ids.device))


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """Give (B,) the dimensions of (B, ...)."""
    return values.view(-1, *(1,) * (like.ndim - 1))


def _geometric(mean: float, generator: Generator) -> int:
    """Draw from 1, 2, ... with P(k) = (1 − p)^(k−1) p, p = 1/mean."""
    length = 1
    while torch.rand((), generator=generator) >= 1 / mean:
        length += 1
    return length
