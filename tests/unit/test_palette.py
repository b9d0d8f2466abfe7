"""Colours of pictures are readable on light and dark pages, and stay apart for the colour-blind."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from peagle.palette import BAD, FINE, INK, SERIES, WARN

LIGHT, DARK = "#ffffff", "#0d1117"
Vector = npt.NDArray[np.float64]
COLOURS = {*SERIES.values(), FINE, WARN, BAD}
# Machado, Oliveira and Fernandes, 2009: linear RGB as seen without one kind of cone.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(color: str) -> Vector:
    channels = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2.1."""
    return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(color))


def lab(rgb: Vector) -> Vector:
    """CIE L*a*b* of linear RGB."""
    x, y, z = np.cbrt(XYZ @ rgb.clip(0, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("page", [LIGHT, DARK])
@pytest.mark.parametrize("color", sorted({INK, *COLOURS}))
def test_every_colour_stands_out_from_both_pages(color: str, page: str) -> None:
    darker, lighter = sorted((luminance(color), luminance(page)))
    assert (lighter + 0.05) / (darker + 0.05) >= 3.0, "WCAG 2.1 asks 3:1 of graphics"


@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_colours_stay_apart(sight: str) -> None:
    seen = {color: lab(SIGHTS[sight] @ linear(color)) for color in COLOURS}
    close = {pair for pair in combinations(sorted(seen), 2) if np.linalg.norm(seen[pair[0]] - seen[pair[1]]) < 14}
    assert close == set()


def test_red_and_amber_are_of_no_series() -> None:
    assert not {WARN, BAD} & set(SERIES.values())
