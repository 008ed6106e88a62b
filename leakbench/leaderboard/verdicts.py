"""Whether the verdicts on a card follow from its own numbers, and whether each of its cells and leakage points stands there once.

The rank is by verdicts, so that who writes a better one would stand first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakbench.errors import InputError
from leakbench.leaderboard.card import Card, Measured, Point
from leakbench.summary.verdict import (
    LEAST_NETWORKS,
    LEAST_VICTIMS,
    STRONGEST,
    above_baseline,
    above_chance,
    whole_victims,
)
from leakbench.summary.verdict_words import FAILED, IDENTIFIES, LEAKING, NO_LEAK, RECONSTRUCTS

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
    """Raise InputError, with the field, for a verdict that the numbers next to it rule out.

    The rules are those of `leakbench.summary.verdict`. `reconstructs` may rest on single victims and `inconclusive` on warnings
    of the search, for which a card has no numbers. `no leak found` is refused where numbers leak, where there are too few
    victims or networks, and where the attacker is not `autoleak` with the defense known to it.
    """
    for cell in card.cells:
        for point in cell.points:
            for why in (*_against(point), *(_against_no_leak(point, cell, card) if point.verdict == NO_LEAK else ())):
                place = f"cells.{cell.attacker}.{cell.protocol}.{point.name}"
                raise InputError(f"{place}.verdict: got {point.verdict!r}, but {why}")


def _against(point: Point) -> Iterator[str]:
    """Yield what rules a point's verdict out."""
    if abs(point.chance - 1 / point.candidates) > HALF_DIGIT:
        yield f"chance is {point.chance:g}, expected {1 / point.candidates:.4f}, one of {point.candidates} candidates"
    rebuilt = point.asr is not None and above_baseline([end - HALF_DIGIT for end in point.asr], point.null_asr)
    if rebuilt and point.verdict != RECONSTRUCTS:
        yield f"the ASR {_text(point.asr)} is above the baseline guess's {_text(point.null_asr)}, expected {RECONSTRUCTS!r}"
    told = _told(point)
    if told and point.verdict not in LEAKING:
        yield f"identified {_text(point.identified)} is more than chance, expected {IDENTIFIES!r} or {RECONSTRUCTS!r}"
    if point.verdict == IDENTIFIES and not told:
        yield f"identified {_text(point.identified)} is not more than chance, expected another verdict"
    if point.verdict == FAILED and point.rmse is not None:
        yield f"the median RMSE is {point.rmse[0]:g}, so that half of the answers are there; expected another verdict"
    if point.verdict not in (*LEAKING, FAILED) and point.rmse is None and point.asr is not None:
        yield f"there is no median RMSE, expected {FAILED!r}"


def _against_no_leak(point: Point, cell: Measured, card: Card) -> Iterator[str]:
    """Yield what a card lacks for `no leak found`."""
    if cell.attacker != "aware":
        yield "the attacker does not know the defense"
    if card.attack.name != STRONGEST:
        yield f"the attack is {card.attack.name}, expected {STRONGEST}"
    networks = point.networks if cell.protocol == "paper" else 1
    if networks < LEAST_NETWORKS:
        yield f"the victims are spread over {networks} networks, expected at least {LEAST_NETWORKS}"
    if point.victims < LEAST_VICTIMS:
        yield f"there are {point.victims} victims, expected at least {LEAST_VICTIMS}"
    if point.asr is None or point.identified is None:
        yield "it has no ASR or no identification rate, expected both"
    elif point.asr[0] > point.null_asr[2] + HALF_DIGIT:
        yield f"the ASR {_text(point.asr)} is above the baseline guess's interval {_text(point.null_asr)}"
    if point.rmse is not None and (point.null_rmse is None or point.rmse[0] < point.null_rmse - HALF_DIGIT):
        yield f"the median RMSE {point.rmse[0]:g} is below the baseline guess's, {_number(point.null_rmse)}"


def _told(point: Point) -> bool:
    share = None if point.identified is None else point.identified[0]
    return share is not None and above_chance(
        whole_victims((share + HALF_DIGIT) * point.victims), point.victims, 1 / point.candidates
    )


def _text(share: tuple[float, float, float] | None) -> str:
    return "nothing" if share is None else f"{share[0]:g} [{share[1]:g}, {share[2]:g}]"


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:g}"
