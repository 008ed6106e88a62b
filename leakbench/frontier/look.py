"""How the lines of a frontier look: told apart by marker and dashes as well as by colour, on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakbench import svg

__all__ = [
    "BOTTOM",
    "GRID",
    "HEIGHT",
    "INK",
    "LABELS",
    "LARGE",
    "LEFT",
    "MUTED",
    "PAPER",
    "RIGHT",
    "SMALL",
    "TALL",
    "USUAL",
    "WIDTH",
    "Look",
    "looks_of",
    "with_dark",
]

PAPER, INK, MUTED, GRID = "#ffffff", "#1c2128", "#656d76", "#e3e6ea"

WIDTH, HEIGHT = 5.5, 6.0
"""Inches; 5.5 are 396 points, so that a letter of 8 points has 8 pixels where the figure is as wide as a phone."""

LEFT, RIGHT, LABELS = (0.105, 0.295), (0.445, 0.245), 0.735
"""Shares of the width: where each panel begins and how wide it is; where the labels begin."""

BOTTOM, TALL = 0.175, 0.645
"""Shares of the height: where the panels begin, and how tall they are."""

SMALL, USUAL, LARGE = 7.5, 8.5, 10.5

COLOURS = (*svg.COLOURS, "#c1272d")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d", "8", "H")

DARK = {PAPER: "#0d1117", INK: "#e6edf3", MUTED: "#9198a1", GRID: "#2a313c"} | dict(
    zip(COLOURS, ("#4aa8e0", "#ff8c42", "#2fc79a", "#e07fbd", "#d2ab2a", "#8f93ff", "#ff6b70"), strict=True)
)
"""{a colour on a light page: what it becomes on a dark one}."""


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of a line.

    Args:
        place: Which one it is, from 0 on.
    """

    colour: str
    marker: str
    dashes: str
    place: int


def looks_of(defenses: Sequence[str]) -> dict[str, Look]:
    """Return a look for each defense, no two alike up to 98 of them, by colour and marker alone."""
    sizes = len(COLOURS), len(MARKERS), len(svg.DASHES)
    return {
        name: Look(
            COLOURS[i % sizes[0]], MARKERS[(i + i // sizes[1]) % sizes[1]], svg.DASHES[i // sizes[0] % sizes[2]], i
        )
        for i, name in enumerate(defenses)
    }


def with_dark(svg: str) -> str:
    """Return an SVG of matplotlib's that follows the reader's dark pages; one that knows no such rules shows it as it was."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    head, tag, rest = svg.partition("<defs>")
    return f"{head}{style}\n {tag}{rest}" if tag else svg
