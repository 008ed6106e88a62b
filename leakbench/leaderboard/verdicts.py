"""Whether the verdicts on a card follow from its own numbers, and whether each of its cells and leakage points stands there once.

The rank is by verdicts, so that who writes a better one would stand first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakbench.errors import InputError
from leakbench.leaderboard.card import Card, Point
from leakbench.summary.verdict import LEAST_VICTIMS, above_chance, above_null

__all__ = ["check_once", "check_verdicts"]

HALF_DIGIT = 1e-4
"""What the rounding of two numbers to four digits can move their difference."""


def check_once(card: Card) -> None:
    """Raise InputError, with the field, for a cell, a leakage point of a cell, or an asked word that a card has twice."""
    cells = [f"{cell.attacker}.{cell.protocol}" for cell in card.cells]
    _once("cells", cells)
    for name, cell in zip(cells, card.cells, strict=True):
        _once(f"cells.{name}.points", [point.name for point in cell.points])
    for name in ("taps", "protocols", "leak_rounds"):
        _once(f"asked.{name}", getattr(card.asked, name))


def _once(place: str, names: Sequence[object]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{place}: {name} stands twice")


def check_verdicts(card: Card) -> None:
    """Raise InputError, with the field, for a verdict that the numbers beside it rule out.

    The rules are those of `leakbench.summary.verdict`. `leaks` may rest on single victims and `unclear` on a search's doubts, of
    which a card has no numbers; a `protected` beside which numbers leak, or too few victims stand, is refused.
    """
    for cell in card.cells:
        for point in cell.points:
            for why in _against(point):
                place = f"cells.{cell.attacker}.{cell.protocol}.{point.name}"
                raise InputError(f"{place}.verdict: got {point.verdict!r}, but {why}")


def _against(point: Point) -> Iterator[str]:
    """Yield what rules a point's verdict out."""
    if abs(point.chance - 1 / point.candidates) > HALF_DIGIT:
        yield f"chance is {point.chance:g}, expected {1 / point.candidates:.4f}, one of {point.candidates} candidates"
    rebuilt = point.asr is not None and above_null(_loosely(point.asr, point.null_asr))
    if rebuilt and point.verdict != "leaks":
        yield f"the ASR {_text(point.asr)} lies above the null attacker's {_text(point.null_asr)}, expected 'leaks'"
    told = _told(point)
    if told and point.verdict not in ("leaks", "identifies"):
        yield f"identified {_text(point.identified)} is more than chance, expected 'identifies' or 'leaks'"
    if point.verdict == "identifies" and not told:
        yield f"identified {_text(point.identified)} is not more than chance, expected another"
    if point.verdict == "attack failed" and point.rmse is not None:
        yield f"the median RMSE is {point.rmse[0]:g}, expected another: half of the answers are there"
    if point.verdict == "no reconstruction" and point.asr is not None:
        yield f"the ASR is {_text(point.asr)}, expected another: something was rebuilt"
    if point.verdict in ("protected", "unclear") and point.rmse is None:
        yield "there is no median RMSE, expected 'attack failed'"
    if point.verdict == "protected":
        yield from _against_protected(point)


def _against_protected(point: Point) -> Iterator[str]:
    if point.victims < LEAST_VICTIMS:
        yield f"there are {point.victims} victims, expected at least {LEAST_VICTIMS}"
    if point.asr is None or point.identified is None:
        yield "it has no ASR or nothing identified, expected both"
    elif point.asr[0] > point.null_asr[2] + HALF_DIGIT:
        yield f"the ASR {_text(point.asr)} lies above the null attacker's interval {_text(point.null_asr)}"
    if point.rmse is not None and (point.null_rmse is None or point.rmse[0] < point.null_rmse - HALF_DIGIT):
        yield f"the median RMSE {point.rmse[0]:g} is below the null attacker's, {_number(point.null_rmse)}"


def _loosely(asr: tuple[float, float, float], null: tuple[float, float, float]) -> dict[str, float]:
    """Return the numbers that decide whether an ASR is above the null's, as far below as rounding may have moved them."""
    low = {"asr": asr[0] - HALF_DIGIT, "asr_low": asr[1] - HALF_DIGIT}
    return {**low, "null_asr": null[0], "null_asr_high": null[2]}


def _told(point: Point) -> bool:
    share = None if point.identified is None else point.identified[0]
    return share is not None and above_chance(round(share * point.victims), point.victims, 1 / point.candidates)


def _text(share: tuple[float, float, float] | None) -> str:
    return "nothing" if share is None else f"{share[0]:g} [{share[1]:g}, {share[2]:g}]"


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:g}"
