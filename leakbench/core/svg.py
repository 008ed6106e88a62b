"""Curves as inline SVG: text as text, few digits, and colours that follow the light or dark page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["COLOURS", "DASHES", "INK", "QUIET", "SERIES", "drawn", "inline"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8478c", "#8a6d00", "#3b3fb0")
"""Okabe and Ito's palette for colour-blind readers; its light colours are darker here, so that thin lines are readable on white."""

SERIES = tuple(f"#0000a{place}" for place in range(6))
"""Placeholder colours of lines; on the page they are the style sheet's `--series-0` and so on, in light and dark."""
DASHES = ("-", "--", "-.", ":")
"""Lines differ in their dashes too, so that colour is not needed to tell them apart."""
INK, QUIET = "#010101", "#020202"
"""Placeholders of the colours of text and of quiet text; on the page they follow the style sheet."""

ON_PAGE = {INK: "currentColor", QUIET: "var(--quiet)"} | {c: f"var(--series-{n})" for n, c in enumerate(SERIES)}

STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": QUIET,
    "grid.alpha": 0.25,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}

NUMBER = re.compile(r"(?<!opacity: )(?<![\d.])-?\d+\.\d{2,}(?:e-?\d+)?")
"""A coordinate whose digits are reduced; text between tags is left alone."""
UNREFERENCED = re.compile(r' id="([^"]*)"')


@contextmanager
def drawn(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of a size in inches; its style ends with the block, so `inline` belongs inside."""
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def inline(figure: Figure, name: str, meaning: str) -> Markup:
    """Return a figure as an `<svg>` element; equal figures give equal text.

    Args:
        figure: Figure of `drawn`.
        name: Unique on the page: a prefix of the identifiers in the figure, and the name of its downloads.
        meaning: Description for a screen reader.
    """
    written = StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
            written, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    text = written.getvalue()
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None  # noqa: S101 - for mypy; Matplotlib always writes it
    body = re.sub(r"^.*?<svg[^>]*>|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    used = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', body))
    kept = {one or other for one, other in used}
    body = UNREFERENCED.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in kept else "", body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    for colour, on_page in ON_PAGE.items():
        body = body.replace(colour, on_page)
    body = re.sub(
        r"font: ([\d.]+px) [^;\"]*|font-family: [^;\"]*; ", lambda f: f"font-size: {f[1]}" if f[1] else "", body
    )
    body = re.sub(r' transform="rotate\(-?0 [^"]*"', "", body)
    body = re.sub(r"<[^>]*>", lambda tag: NUMBER.sub(lambda n: f"{float(n[0]):.1f}".removesuffix(".0"), tag[0]), body)
    body = re.sub(r">\s+<", "><", body)
    # Matplotlib escapes the texts of its SVG, and the line below escapes ours.
    head = f'<svg class="chart" data-name="{escape(name)}" viewBox="{_rounded(box[1])}" role="img" aria-label="{escape(meaning)}">'
    return Markup(f"{head}{body}")  # noqa: S704 - see above


def _rounded(numbers: str) -> str:
    return " ".join(f"{float(number):g}" for number in numbers.split())
