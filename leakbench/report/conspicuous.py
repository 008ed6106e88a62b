"""What clients could see of a model that a lying server sent: a line that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["conspicuous"]

SAID = {"rows_alike": "rows alike", "d_snr": "D-SNR", "lit_alone": "rows lit by one example alone", "loss": "loss"}
"""The statistics that are numbers."""


def conspicuous(summary: Mapping[str, Any]) -> list[str]:
    """Return one line of what clients could see, each with its percentile among honest models; none of an honest server."""
    found = summary.get("conspicuous")
    if not found:
        return []
    built = "another architecture" if found["architecture"]["value"] else "the architecture is the honest one's"
    parts = [f"{said} {_placed(found[name])}" for name, said in SAID.items() if found[name]["value"] is not None]
    return [f"clients could see: {'; '.join([built, *parts])} (percentiles are among honest models)"]


def _placed(found: Mapping[str, float | None]) -> str:
    value, percentile = found["value"], found["percentile"]
    if percentile is None:
        return f"{value:.3g}, which no honest one has"
    return f"{value:.3g}, percentile {percentile:.0f}, honest {found['honest_median']:.3g}"
