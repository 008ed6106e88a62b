"""A page from its template: everything in one file, escaped, with the words and numbers of the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from leakbench.report.members import factors
from leakbench.report.words import interval, number

__all__ = ["render"]


def render(template: str, **said: Any) -> str:
    """Return the page of a template beside this file; a name that it needs and that is not said is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, interval=interval, figure=_figure, factors=factors, pretty=_pretty)
    page: str = environment.get_template(template).render(**said)
    return page


def _figure(value: Any) -> str:
    """Return a claimed or measured value, which may be a number, a word or nothing."""
    return "n/a" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False)
