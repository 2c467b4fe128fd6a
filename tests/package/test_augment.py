"""Changes to examples: what they change, how often, and what they must leave alone."""

import math

import pytest
import torch
from torch.nn import functional

from tfbook.data import augment


def gen(seed=3):
    return torch.Generator().manual_seed(seed)


IDS = torch.randint(5, 31, (13, 37), generator=gen())
IDS[:, 0], IDS[:, -3:] = 1, 0  # a beginning, and padding
IMAGES = torch.rand(11, 3, 7, 5, generator=gen()) + 0.5
WAVES = torch.randn(11, 997, generator=gen()) * torch.arange(1, 12)[:, None]
SPECTRA = torch.rand(11, 17, 23, generator=gen()) + 0.5
KEEP = (0, 1)

CHANGES = {
    "drop_words": lambda g: augment.drop_words(IDS, 0.3, replacement=3, keep=KEEP, generator=g),
    "swap_words": lambda g: augment.swap_words(IDS, 0.3, keep=KEEP, generator=g),
    "mask_spans": lambda g: augment.mask_spans(IDS, 0.3, replacement=3, keep=KEEP, generator=g)[0],
    "flip": lambda g: augment.flip(IMAGES, generator=g),
    "crop": lambda g: augment.crop(IMAGES, 2, generator=g),
    "cutout": lambda g: augment.cutout(IMAGES, 3, generator=g),
    "mixup": lambda g: augment.mixup(IMAGES, torch.eye(11), alpha=1.0, generator=g)[0],
    "add_noise": lambda g: augment.add_noise(WAVES, 13.0, generator=g),
    "shift": lambda g: augment.shift(WAVES, 7, generator=g),
    "mask_spectrogram": lambda g: augment.mask_spectrogram(
        SPECTRA, frequencies=5, times=7, generator=g
    ),
}
INPUT = {"IDS": IDS, "IMAGES": IMAGES, "WAVES": WAVES, "SPECTRA": SPECTRA}
COPIES = {name: value.clone() for name, value in INPUT.items()}


@pytest.mark.parametrize("name", CHANGES)
def test_the_generator_decides_and_the_input_stays(name):
    one, same, other = (CHANGES[name](gen(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    (given,) = [x for x in INPUT.values() if x.shape == one.shape]
    assert one.dtype == given.dtype
    assert not torch.equal(one, given)
    for key, value in INPUT.items():
        assert torch.equal(value, COPIES[key])


@pytest.mark.parametrize("name", CHANGES)
def test_each_example_is_changed_in_its_own_way(name):
    """Rows that were equal before are not all equal after."""
    one = {key: value[:1].expand_as(value).clone() for key, value in INPUT.items()}
    calls = {
        "drop_words": lambda: augment.drop_words(one["IDS"], 0.3, replacement=3, generator=gen()),
        "swap_words": lambda: augment.swap_words(one["IDS"], 0.3, generator=gen()),
        "mask_spans": lambda: augment.mask_spans(one["IDS"], 0.3, replacement=3, generator=gen())[
            0
        ],
        "flip": lambda: augment.flip(one["IMAGES"], generator=gen()),
        "crop": lambda: augment.crop(one["IMAGES"], 2, generator=gen()),
        "cutout": lambda: augment.cutout(one["IMAGES"], 3, generator=gen()),
        "mixup": lambda: augment.mixup(one["IMAGES"], torch.eye(11), alpha=1.0, generator=gen())[1],
        "add_noise": lambda: augment.add_noise(one["WAVES"], 13.0, generator=gen()),
        "shift": lambda: augment.shift(one["WAVES"], 7, generator=gen()),
        "mask_spectrogram": lambda: augment.mask_spectrogram(
            one["SPECTRA"], frequencies=5, times=7, generator=gen()
        ),
    }
    found = calls[name]()
    assert not torch.equal(found, found[:1].expand_as(found))


def test_nothing_is_changed_where_nothing_is_asked_for():
    assert torch.equal(augment.drop_words(IDS, 0.0, replacement=3), IDS)
    assert torch.equal(augment.swap_words(IDS, 0.0), IDS)
    assert torch.equal(augment.mask_spans(IDS, 0.0, replacement=3)[0], IDS)
    assert torch.equal(augment.flip(IMAGES, rate=0.0), IMAGES)
    assert torch.equal(augment.crop(IMAGES, 0), IMAGES)
    assert torch.equal(augment.cutout(IMAGES, 0), IMAGES)
    assert torch.equal(augment.shift(WAVES, 0), WAVES)
    assert torch.equal(augment.mask_spectrogram(SPECTRA, frequencies=0, times=0), SPECTRA)


# Text


def test_dropped_words_become_the_replacement_at_the_rate():
    ids = torch.full((101, 103), 7)
    dropped = augment.drop_words(ids, 0.23, replacement=3, generator=gen())
    assert set(dropped.unique().tolist()) == {3, 7}
    gone = (dropped == 3).double().mean().item()
    assert gone == pytest.approx(0.23, abs=5 * math.sqrt(0.23 * 0.77 / ids.numel()))


@pytest.mark.parametrize("name", ["drop_words", "swap_words", "mask_spans"])
def test_words_to_keep_stay_in_their_places(name):
    changed = CHANGES[name](gen())
    kept = torch.isin(IDS, torch.tensor(KEEP))
    assert torch.equal(changed[kept], IDS[kept])
    assert not torch.isin(changed[~kept], torch.tensor(KEEP)).any()


def test_swapping_keeps_the_words_of_a_row_and_moves_as_many_as_asked():
    ids = torch.stack([torch.randperm(31, generator=gen(s)) + 2 for s in range(7)])
    ids[:, :2] = 0
    swapped = augment.swap_words(ids, 0.4, keep=(0,), generator=gen())
    assert torch.equal(swapped.sort(-1).values, ids.sort(-1).values)
    moved = (swapped != ids).sum(-1)
    assert (moved == 2 * round(0.4 * 29 / 2)).all()
    for before, after in zip(ids, swapped, strict=True):  # pairs change places, no more than that
        for place in (before != after).nonzero().flatten().tolist():
            other = (before == after[place]).nonzero().item()
            assert after[other] == before[place]


def test_spans_cover_the_share_that_is_asked_for():
    for rate in (0.15, 0.5):
        changed, gone = augment.mask_spans(IDS, rate, replacement=3, keep=KEEP, generator=gen())
        assert torch.equal(gone, changed != IDS)
        assert (gone.sum(-1) == round(rate * (37 - 4))).all()
        assert (changed[gone] == 3).all()


@pytest.mark.parametrize("mean", [1.0, 3.0, 7.0])
def test_spans_have_the_mean_length_that_is_asked_for(mean):
    """With few of them, they seldom meet or reach the end."""
    ids = torch.full((31, 4001), 7)
    _, gone = augment.mask_spans(ids, 0.05, replacement=3, mean_length=mean, generator=gen())
    runs = (functional.pad(gone.int(), (1, 0)).diff(dim=-1) == 1).sum()
    assert gone.sum().item() / runs.item() == pytest.approx(mean, rel=0.1)


# Images


def test_flipping_twice_is_no_flip_and_half_of_them_are():
    assert torch.equal(augment.flip(augment.flip(IMAGES, rate=1), rate=1), IMAGES)
    assert torch.equal(augment.flip(IMAGES, rate=1)[..., 0], IMAGES[..., -1])
    many = torch.arange(2.0).expand(997, 1, 1, 2)
    turned = (augment.flip(many, generator=gen())[:, 0, 0, 0] == 1).double().mean().item()
    assert turned == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(997))


def test_a_crop_moves_an_image_and_fills_with_zeros():
    seen = set()
    for image, moved in zip(
        IMAGES.repeat(13, 1, 1, 1),
        augment.crop(IMAGES.repeat(13, 1, 1, 1), 2, generator=gen()),
        strict=True,
    ):
        fits = []
        for down in range(-2, 3):
            for right in range(-2, 3):
                expected = torch.zeros_like(image)
                rows = slice(max(down, 0), 7 + min(down, 0))
                columns = slice(max(right, 0), 5 + min(right, 0))
                source = image[
                    :, max(-down, 0) : 7 - max(down, 0), max(-right, 0) : 5 - max(right, 0)
                ]
                expected[:, rows, columns] = source
                if torch.equal(expected, moved):
                    fits.append((down, right))
        assert len(fits) == 1
        seen.update(fits)
    assert len(seen) == 25  # all moves occur


def test_cutout_is_one_square_the_same_in_all_channels():
    big = torch.ones(1009, 3, 11, 13)
    hole = augment.cutout(big, 5, generator=gen()) == 0
    assert torch.equal(hole[:, 0], hole[:, 2])
    sizes = hole[:, 0].flatten(1).sum(-1)
    assert sizes.max() == 25 and sizes.min() >= 9  # it sticks out at the edges
    assert torch.equal(hole[:, 0].any(1).sum(-1) * hole[:, 0].any(2).sum(-1), sizes)  # a rectangle
    assert hole[:, 0].any(0).all()  # anywhere


def test_mixup_mixes_targets_as_it_mixes_inputs():
    x = torch.eye(13).double()
    mixed, targets = augment.mixup(x, x, alpha=0.7, generator=gen())
    assert torch.equal(mixed, targets)
    torch.testing.assert_close(mixed.sum(-1), torch.ones(13).double())
    assert (mixed.diagonal() > 0).all() and ((mixed > 0).sum(-1) <= 2).all()
    assert ((mixed > 0).sum(0) <= 2).all()  # each is the partner of one


def test_the_share_of_mixup_is_beta_distributed():
    n = 4001
    for alpha in (0.2, 1.0, 4.0):
        x = torch.arange(float(n)).double()[:, None]
        mixed, targets = augment.mixup(
            x * 0 + 1, torch.eye(2).double()[torch.arange(n) % 2], alpha=alpha, generator=gen()
        )
        share = targets[::2, 0][targets[::2, 1] > 0]  # of those whose partner is of the other class
        assert len(share) > n / 5
        assert share.mean().item() == pytest.approx(0.5, abs=0.05)
        assert share.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.12)
        assert torch.equal(mixed, torch.ones(n, 1).double()) or (mixed - 1).abs().max() < 1e-12


# Sound


@pytest.mark.parametrize("snr", [-7.0, 0.0, 13.0])
def test_noise_has_the_loudness_that_is_asked_for_in_each_example(snr):
    noise = augment.add_noise(WAVES.double(), snr, generator=gen()) - WAVES.double()
    measured = 10 * (WAVES.double().square().mean(-1) / noise.square().mean(-1)).log10()
    torch.testing.assert_close(measured, torch.full((11,), snr).double(), rtol=1e-9, atol=1e-9)
    correlation = functional.cosine_similarity(noise[:-1], noise[1:])
    assert correlation.abs().max() < 5 / math.sqrt(997)


def test_silence_stays_silent():
    assert torch.equal(augment.add_noise(torch.zeros(2, 31), 3.0), torch.zeros(2, 31))


def test_a_shift_moves_the_sound_and_fills_with_zeros():
    waves = WAVES[:, :31].repeat(17, 1)
    seen = set()
    for before, after in zip(waves, augment.shift(waves, 4, generator=gen()), strict=True):
        fits = [
            by
            for by in range(-4, 5)
            if torch.equal(after, torch.roll(functional.pad(before, (4, 4)), by)[4:-4])
        ]
        assert len(fits) == 1
        seen.update(fits)
    assert seen == set(range(-4, 5))


def test_a_masked_spectrogram_lacks_a_band_and_a_stretch():
    hidden = (
        augment.mask_spectrogram(torch.ones(397, 17, 23), frequencies=5, times=7, generator=gen())
        == 0
    )
    bands, stretches = hidden.all(2), hidden.all(1)  # (B, F), (B, T)
    assert torch.equal(hidden, bands[:, :, None] | stretches[:, None, :])
    for found, widest, n in ((bands, 5, 17), (stretches, 7, 23)):
        widths = found.sum(-1)
        assert widths.unique().tolist() == list(range(widest + 1))
        assert widths.double().mean().item() == pytest.approx(widest / 2, rel=0.1)
        starts = (functional.pad(found.int(), (1, 0)).diff(dim=-1) == 1).sum(-1)
        assert starts.max() == 1  # one piece
        assert found.any(0).all() and found.shape[1] == n  # anywhere, the edges too


def test_several_bands_hide_more():
    one, three = (
        (
            augment.mask_spectrogram(SPECTRA, frequencies=5, times=7, bands=n, generator=gen()) == 0
        ).sum()
        for n in (1, 3)
    )
    assert three > one
    assert torch.equal(augment.mask_spectrogram(SPECTRA, frequencies=5, times=7, bands=0), SPECTRA)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: augment.drop_words(IDS, 1.0, replacement=3),
            ValueError,
            "rate must be from 0 up to below",
        ),
        (
            lambda: augment.drop_words(IDS, 0.1, replacement=-1),
            ValueError,
            "replacement must be at least 0",
        ),
        (
            lambda: augment.drop_words(IDS[0], 0.1, replacement=3),
            ValueError,
            r"ids must have shape \(B, N\)",
        ),
        (lambda: augment.swap_words(IDS.float(), 0.1), TypeError, "ids must be integers"),
        (
            lambda: augment.mask_spans(IDS, 0.1, replacement=3, mean_length=0.5),
            ValueError,
            "at least 1",
        ),
        (lambda: augment.flip(IMAGES, rate="half"), TypeError, "rate must be a number"),
        (lambda: augment.flip(torch.rand(3, 3)), ValueError, "images needs at least 3 dimensions"),
        (lambda: augment.crop(IMAGES, -1), ValueError, "padding must be at least 0"),
        (lambda: augment.cutout(IMAGES, 2.5), TypeError, "size must be an integer"),
        (lambda: augment.mixup(IMAGES, torch.eye(3)), ValueError, "must be as many, got 11 and 3"),
        (
            lambda: augment.mixup(IMAGES, torch.eye(11), alpha=0.0),
            ValueError,
            "alpha must be finite",
        ),
        (
            lambda: augment.mixup(IMAGES, torch.arange(11)),
            TypeError,
            "targets must have a floating-point",
        ),
        (lambda: augment.add_noise(WAVES, math.inf), ValueError, "snr_db must be finite"),
        (lambda: augment.add_noise(WAVES, "loud"), TypeError, "snr_db must be a number"),
        (lambda: augment.shift(WAVES[0], 3), ValueError, "waves needs at least 2 dimensions"),
        (
            lambda: augment.mask_spectrogram(SPECTRA, frequencies=18, times=7),
            ValueError,
            "frequencies must be at most 17, got 18",
        ),
        (
            lambda: augment.mask_spectrogram(SPECTRA, frequencies=1, times=24),
            ValueError,
            "times must be at",
        ),
    ],
)
def test_bad_changes_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
