"""Whether the verdicts on a card follow from its own numbers, and whether each of its cells and leakage points stands there once.

The rank is by verdicts, so that who writes a better one would stand first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakbench.errors import InputError
from leakbench.leaderboard.card import Card, Measured, Point
from leakbench.summary.verdict import STRONGEST, Evidence, above_baseline, verdict, whole_victims
from leakbench.summary.verdict_words import FAILED, INCONCLUSIVE, NO_LEAK, RECONSTRUCTS

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
            raise InputError(f"{place}: {name} appears twice")


def check_verdicts(card: Card) -> None:
    """Raise InputError, with the field, for a verdict that does not follow from the numbers next to it.

    The rules are those of `leakbench.summary.verdict`, applied to what a card keeps of the evidence. `reconstructs` may rest on
    single victims and `inconclusive` on warnings of the search, for which a card has no numbers, so these two are also accepted.
    """
    for cell in card.cells:
        for point in cell.points:
            for why in _against(point, cell, card):
                place = f"cells.{cell.attacker}.{cell.protocol}.{point.name}"
                raise InputError(f"{place}.verdict: got {point.verdict!r}, but {why}")


def _against(point: Point, cell: Measured, card: Card) -> Iterator[str]:
    """Yield what rules a point's verdict out."""
    if abs(point.chance - 1 / point.candidates) > HALF_DIGIT:
        yield f"chance is {point.chance:g}, expected {1 / point.candidates:.4f}, one of {point.candidates} candidates"
    found = verdict(_evidence(point, cell, card))
    accepted = {found.word, RECONSTRUCTS}
    if found.word == NO_LEAK:
        accepted.add(INCONCLUSIVE)
    if found.word == INCONCLUSIVE and point.asr is None:
        accepted.add(FAILED)
    if point.verdict not in accepted:
        yield f"its numbers give {found.word!r}: {found.reason}"


def _evidence(point: Point, cell: Measured, card: Card) -> Evidence:
    """Return the evidence that a card keeps of a point; what rounding may have moved counts for the card."""
    ranked = point.identified is not None
    share = point.identified[0] + HALF_DIGIT if point.identified is not None else 0.0
    return Evidence(
        victims=point.victims,
        networks=point.networks if cell.protocol == "paper" else 1,
        attack=card.attack.name,
        strongest=card.attack.name == STRONGEST,
        adaptive=cell.attacker == "aware",
        ranks_only=point.asr is None,
        live=cell.protocol == "live",
        # The median RMSE is missing where at least half of the examples have no answer.
        unanswered=float(point.rmse is None and point.asr is not None),
        above=tuple(_above(point)),
        higher=tuple(_higher(point)),
        identified=whole_victims(share * point.victims),
        ranked=point.victims if ranked else 0,
        candidates=point.candidates,
    )


def _above(point: Point) -> Iterator[str]:
    if point.asr is not None and above_baseline([end - HALF_DIGIT for end in point.asr], point.null_asr):
        yield f"the ASR {_text(point.asr)} is above the baseline guess's {_text(point.null_asr)}"


def _higher(point: Point) -> Iterator[str]:
    if point.asr is not None and point.asr[0] > point.null_asr[2] + HALF_DIGIT:
        yield f"the ASR {_text(point.asr)} is above the baseline guess's interval {_text(point.null_asr)}"
    if point.rmse is not None and (point.null_rmse is None or point.rmse[0] < point.null_rmse - HALF_DIGIT):
        null = "which is missing" if point.null_rmse is None else f"{point.null_rmse:g}"
        yield f"the median RMSE {point.rmse[0]:g} is below the baseline guess's, {null}"


def _text(share: tuple[float, float, float]) -> str:
    return f"{share[0]:g} [{share[1]:g}, {share[2]:g}]"
