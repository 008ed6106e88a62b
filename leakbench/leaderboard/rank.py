"""Which defense stands where: by what the attacker who knows it gets above chance, and among equals by accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leakbench.leaderboard.card import Card, Point
from leakbench.leaderboard.point import rounded
from leakbench.summary.verdict_words import NO_LEAK

__all__ = ["EVERYWHERE", "Standing", "above_chance", "comparable", "points_of", "standings"]

TAPS = ("type-2", "type-1", "type-0")

EVERYWHERE = [(protocol, tap) for protocol in ("paper", "live") for tap in TAPS]
"""Where a defense is measured to be ranked: at all leakage points by both protocols."""


@dataclass(frozen=True)
class Standing:
    """A card with its rank, 1 the best, shared among equals; None where it is not measured everywhere.

    leak: what the aware attacker gets above chance, the mean over `EVERYWHERE`, from 0 to 1.
    clear: whether the verdict on every point of that attacker is `no leak found`.
    """

    card: Card
    rank: int | None
    leak: float | None
    clear: bool


def standings(cards: Iterable[Card]) -> list[Standing]:
    """Return cards of one data set and size, ranked; those that are not measured everywhere last, without a rank.

    Those come first where the aware attacker's verdict is `no leak found` at every leakage point by both protocols; then by
    `leak`, to two digits; then by accuracy.
    """
    found = [_standing(card) for card in cards]
    ranked = sorted(
        (each for each in found if each.leak is not None), key=lambda each: (_key(each), each.card.defense.name)
    )
    keys = [_key(each) for each in ranked]
    placed = [dataclasses.replace(each, rank=1 + keys.index(key)) for each, key in zip(ranked, keys, strict=True)]
    return placed + sorted((each for each in found if each.leak is None), key=lambda each: each.card.defense.name)


def comparable(cards: Iterable[Card]) -> list[list[Card]]:
    """Return cards by data set, attack and size: only such as agree in all of these are ranked beside each other."""
    groups: dict[str, list[Card]] = {}
    for card in cards:
        same = (card.dataset.name, card.dataset.content, card.attack.name, card.attack.content, card.asked)
        groups.setdefault(repr(same), []).append(card)
    return [groups[same] for same in sorted(groups)]


def points_of(card: Card, attacker: str, protocol: str, tap: str) -> list[Point]:
    """Return what an attacker got at a leakage point by a protocol, one for each round; none where it was not measured."""
    cells = [cell for cell in card.cells if (cell.attacker, cell.protocol) == (attacker, protocol)]
    return [point for cell in cells for point in cell.points if point.name.partition("@")[0] == tap]


def above_chance(points: Sequence[Point]) -> float:
    """Return the mean of the shares that are rebuilt and that are identified above what is without any gradient, from 0 to 1.

    A victim that is reconstructed counts as identified, whatever the ranking says. 0 where no leak was found; the largest of
    several rounds.
    """
    return max(_above(point) for point in points)


def _above(point: Point) -> float:
    if point.verdict == NO_LEAK:
        return 0.0
    shares = [(point.asr, point.null_asr[0]), (point.identified, point.chance)]
    rebuilt, identified = (None if share is None else _over(share[0], guess) for share, guess in shares)
    if rebuilt is None:
        # An attacker that neither reconstructs nor ranks has shown nothing.
        return 1.0 if identified is None else identified
    return (rebuilt + max(rebuilt, identified or 0.0)) / 2


def _over(share: float, guess: float) -> float:
    """Return which part of what a guess leaves is had above it."""
    return max(0.0, (share - guess) / (1 - guess)) if guess < 1 else 0.0


def _standing(card: Card) -> Standing:
    points = [points_of(card, "aware", *where) for where in EVERYWHERE]
    if not all(points):
        return Standing(card, None, None, False)
    leak = rounded(sum(map(above_chance, points)) / len(points))
    return Standing(card, None, leak, all(p.verdict == NO_LEAK for some in points for p in some))


def _key(standing: Standing) -> tuple[bool, float, float]:
    assert standing.leak is not None  # noqa: S101 - said to mypy; it holds by construction
    accuracy = standing.card.accuracy.value
    return not standing.clear, round(standing.leak, 2), -1.0 * (accuracy[0] if accuracy else 0.0)
