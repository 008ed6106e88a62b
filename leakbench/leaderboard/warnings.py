"""What a reader of a card has to know before its numbers: what leaks, what is not as claimed, what the evidence lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leakbench.leaderboard.card import Epsilon, Measured, Point
from leakbench.summary.verdict_words import FAILED, IDENTIFIES, RECONSTRUCTS

__all__ = ["warnings_of"]

SHOWN = (RECONSTRUCTS, IDENTIFIES, FAILED)
"""Verdicts on a leakage point that are warnings of its card."""


def warnings_of(cells: Sequence[Measured], summaries: Sequence[Mapping[str, Any]], epsilon: Epsilon) -> tuple[str, ...]:
    """Return the warnings of a card; those of single cells stand with them."""
    return (
        *(f"not as claimed: {caveat}" for caveat in epsilon.caveats),
        *_of_audit(epsilon),
        *(
            f"{cell.attacker} attacker, protocol {cell.protocol}: {said} at {', '.join(points)}"
            for cell in cells
            for said, points in _shown(cell).items()
        ),
        *(
            f"{cell.attacker} attacker, protocol {cell.protocol}: {said} ({', '.join(points)})"
            for cell in cells
            if cell.attacker == "aware"
            for said, points in _doubted(cell).items()
        ),
        *_weaker(cells),
        *_trained_otherwise(summaries),
    )


def _of_audit(epsilon: Epsilon) -> Iterator[str]:
    if epsilon.audited.verdict == "violated":
        yield f"audit: violated: {epsilon.audited.reason}"
    elif epsilon.audited.verdict == "no guarantee" and epsilon.claimed is not None:
        yield f"no guarantee: an epsilon of {epsilon.claimed:.4g} is claimed, none is valid"


def _shown(cell: Measured) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for point in cell.points:
        if point.verdict in SHOWN:
            found.setdefault(point.verdict, []).append(point.name)
    return found


def _doubted(cell: Measured) -> dict[str, list[str]]:
    """Return {what weakens the evidence of a cell: at which leakage points}; of how many victims stands with the cell."""
    found: dict[str, list[str]] = {}
    for warning in cell.warnings:
        point, _, said = warning.partition(": ")
        found.setdefault(re.sub(r" \(\d+ of \d+ victims\)$", "", said), []).append(point)
    return found


def _weaker(cells: Sequence[Measured]) -> Iterator[str]:
    """Say where who knows the defense got less than who does not: then more was to be had than the aware attacker shows."""
    aware = {(cell.protocol, p.name): p for cell in cells if cell.attacker == "aware" for p in cell.points}
    for cell in cells:
        if cell.attacker == "oblivious":
            for point in cell.points:
                other = aware.get((cell.protocol, point.name))
                if other is not None and _less(other, point):
                    yield f"protocol {cell.protocol}, {point.name}: the aware attacker rebuilds fewer than the oblivious one"


def _less(one: Point, other: Point) -> bool:
    return one.asr is not None and other.asr is not None and one.asr[0] < other.asr[0]


def _trained_otherwise(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    found = sorted({summary["accuracy"] for summary in summaries if summary["accuracy"] is not None})
    if len(found) > 1:
        yield f"accuracy differs between the cells, from {found[0]:.4f} to {found[-1]:.4f}; the last one's is shown"
