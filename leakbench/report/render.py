"""Pages from templates: one file each, escaped, with the words and numbers of the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from leakbench.core.leakage_points import point_name
from leakbench.report.words import interval, number

__all__ = ["figure", "render"]


def render(template: str, **values: Any) -> str:
    """Return the page of a template next to this file; a missing value is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, interval=interval, figure=figure, point=point_name, pretty=_pretty)
    page: str = environment.get_template(template).render(**values)
    return page


def figure(value: Any) -> str:
    """Return a claimed or measured value, which may be a number, a word or None, as text."""
    return "n/a" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False)
