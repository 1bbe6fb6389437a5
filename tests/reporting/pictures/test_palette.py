"""Colours are told apart from whatever lies behind them, light and dark."""

from __future__ import annotations

import pytest

from pytest_ecornn.reporting.pictures import palette

MIN_CONTRAST = 4.5  # of WCAG 2, for texts


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("background", palette.BACKGROUNDS)
@pytest.mark.parametrize("ink", palette.INKS)
def test_every_ink_is_legible_on_every_background(ink: str, background: str, scheme: int) -> None:
    assert contrast(palette.INKS[ink][scheme], palette.BACKGROUNDS[background][scheme]) >= MIN_CONTRAST


def test_the_style_has_both_schemes_of_what_is_asked_for() -> None:
    light, dark = palette.style_sheet(["fill-ink", "interval"]).split("\n@media (prefers-color-scheme: dark)")
    assert light == ".fill-ink { fill: #1f2328 }"
    assert ".fill-ink { fill: #e6edf3 }" in dark
    assert ".stroke-grid { stroke: #d8dce0 }" in palette.style_sheet()


def test_a_colour_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"expected one of the colours page, .*, got 'pink'"):
        palette.fill_class("pink")


def test_colours_of_series_begin_anew_after_the_last() -> None:
    assert palette.series_colour(len(palette.SERIES) + 1) == palette.series_colour(1) == "red"
    assert set(palette.SERIES) == set(palette.INKS)
