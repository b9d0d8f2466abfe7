"""Colours of pictures are readable on light and dark pages."""

import pytest

from peagle.bench.core.plots import INK, STYLES

LIGHT, DARK = "#ffffff", "#0d1117"


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2.1."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", [LIGHT, DARK])
@pytest.mark.parametrize("color", [INK, *(style["color"] for style in STYLES.values())])
def test_every_colour_stands_out_from_both_pages(color: str, page: str) -> None:
    darker, lighter = sorted((luminance(color), luminance(page)))
    assert (lighter + 0.05) / (darker + 0.05) >= 3.0, "WCAG 2.1 asks 3:1 of graphics"
