"""Boxes: what JupyterLab's sanitiser lets through, and what is seen on light and dark."""

import re

import pytest

from tfbook.teaching import boxes

GROUNDS = ((255, 255, 255), (17, 17, 17))


def luminance(rgb):
    """Relative luminance of a colour, as WCAG defines it."""
    shares = [x / 255 for x in rgb]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    """The ratio of WCAG between two colours."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_edges_stand_out_on_white_and_on_black():
    for name, rgb in boxes.COLOURS.items():
        assert boxes.colour(name) == f"#{bytes(rgb).hex()}"
        for ground in GROUNDS:
            assert contrast(rgb, ground) >= 3, name


def test_a_box_has_plain_colours_only():
    for name in boxes.COLOURS:
        assert not re.search(r"var\(|currentColor|inherit|!important", boxes.box(name))
        assert f"border-left: 4px solid {boxes.colour(name)};" in boxes.box(name)


@pytest.mark.untyped
def test_an_unknown_colour_is_refused():
    for make in (boxes.box, boxes.colour):
        with pytest.raises(ValueError, match="one of green, red, blue, grey, got 'mauve'"):
            make("mauve")
