"""Whether the intervals on a card are those of its own shares: who writes wider ones would have every number pass as repeated."""

from __future__ import annotations

from collections.abc import Iterator

from leakbench.errors import InputError
from leakbench.leaderboard.card import Card
from leakbench.measure.statistics import share_of_networks, wilson

__all__ = ["check_intervals"]

SHARES = ("asr", "identified", "label_ranked")
"""Shares of a leakage point's victims; those of a batch's members are of the victims too, but not by Wilson's formula."""

HALF_DIGIT = 1e-3
"""What the rounding of a share to four digits can move the ends of its interval, and more."""


def check_intervals(card: Card) -> None:
    """Raise InputError, with the field, for an interval that does not follow from its share and its number."""
    for place, given, number, right in _shares(card):
        share, *ends = given
        low, high = _interval(place, share, number, right)
        if any(abs(one - other) > HALF_DIGIT for one, other in zip(ends, (low, high), strict=True)):
            got, of = f"[{ends[0]:g}, {ends[1]:g}]", f"[{low:.4f}, {high:.4f}]"
            raise InputError(
                f"{place}: got the interval {got}, expected {of}, that of a share of {share:g} of {number}"
            )


def _interval(place: str, share: float, number: int, right: tuple[float, ...]) -> tuple[float, float]:
    """Return the interval of a share of so many, of which `right` are of each network; () for one network."""
    if not right:
        return wilson(share * number, number)
    sizes = [len(range(first, number, len(right))) for first in range(len(right))]
    if (
        any(many > size for many, size in zip(right, sizes, strict=True))
        or abs(sum(right) - share * number) > HALF_DIGIT * number
    ):
        raise InputError(
            f"{place}: got {list(right)} by network, expected numbers that add up to a share of {share:g} of {number}"
        )
    return share_of_networks(right, sizes)[1:]


def _shares(card: Card) -> Iterator[tuple[str, tuple[float, float, float], int, tuple[float, ...]]]:
    for cell in card.cells:
        for point in cell.points:
            shares = [share[0] for share in (point.asr, point.identified) if share is not None]
            if point.excluded is not None and point.excluded < max(shares, default=0.0) - HALF_DIGIT:
                raise InputError(
                    f"cells.{cell.attacker}.{cell.protocol}.{point.name}.excluded: got {point.excluded:g}, expected at least the"
                    f" rate that was measured, {max(shares):g}"
                )
            for name in SHARES:
                share = getattr(point, name)
                if share is not None and (name != "asr" or point.batch == 1):
                    place = f"cells.{cell.attacker}.{cell.protocol}.{point.name}.{name}"
                    right = point.by_network.get(name, ())  # type: ignore[call-overload]
                    if len(right) != (point.networks if point.networks > 1 else 0):
                        raise InputError(
                            f"{place}: got numbers of {len(right)} networks, expected one for each of {point.networks}, and"
                            " none for one network"
                        )
                    yield place, share, point.victims, right
    if card.accuracy is not None and card.accuracy.value is not None:
        yield "accuracy.value", card.accuracy.value, card.accuracy.examples, ()
