"""Colours of every picture: dashboards, their preview, and reports of measurements.

Every colour has a contrast of at least 3:1 on light and on dark pages. Any two stay apart for people who cannot tell
red from green. A test holds both.
"""

from typing import Any

INK = "#7a7f87"
"""Text, axes and grids."""
FINE = "#04a464"
WARN = "#cc7a00"
BAD = "#e0363e"
"""`WARN` and `BAD` mark thresholds that an operator must act on, and nothing else."""
SERIES = {
    "blue": "#478cfa",
    "purple": "#9e2eb8",
    "green": FINE,
    "olive": "#646426",
    "teal": "#1ba1bb",
    "indigo": "#5647fa",
    "grey": "#696969",
}
"""Colours of series, by name, in the order of use."""
SETTINGS: Any = {
    "text.color": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.prop_cycle": f"cycler('color', {list(SERIES.values())})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    # Without a fixed salt, the same result would give a different file each time.
    "svg.hashsalt": "peagle",
}
"""Matplotlib's settings of every picture."""
