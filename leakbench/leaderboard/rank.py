"""Rank defenses: those without a leak by accuracy, then the others by the leak to the adaptive attacker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.verdict_words import NO_LEAK
from leakbench.leaderboard.card import Card, CardPoint
from leakbench.leaderboard.point import rounded
from leakbench.summary.utility import accuracy_above_chance

__all__ = ["EVERYWHERE", "Standing", "above_chance", "comparable", "points_of", "standings"]

TAPS = ("type-2", "type-1", "type-0")

EVERYWHERE = [(protocol, tap) for protocol in ("paper", "live") for tap in TAPS]
"""Leakage points and protocols at which a ranked defense is measured."""


@dataclass(frozen=True)
class Standing:
    """A card with its rank.

    Args:
        rank: 1 for the best, shared among equals; None where the defense is not measured everywhere or undertrained.
        leak: Excess of the adaptive attacker over chance, the mean over `EVERYWHERE`, from 0 to 1; None where it is not measured
            everywhere.
        clear: Whether the verdict on every point of that attacker is `no leak found`.
        learned: Whether the network of every training is significantly more accurate than the majority class; True where nothing
            was trained.
    """

    card: Card
    rank: int | None
    leak: float | None
    clear: bool
    learned: bool = True


def standings(cards: Iterable[Card]) -> list[Standing]:
    """Return cards of one data set and size, ranked.

    First defenses with `no leak found` for the adaptive attacker at every leakage point by both protocols, by accuracy; then the
    others by `leak`, to two digits, and by accuracy. Defenses with an undertrained network follow in the same order,
    then those that are not measured everywhere, both without a rank.
    """
    found = sorted(map(_standing, cards), key=lambda each: each.card.defense.name)
    measured = sorted((each for each in found if each.leak is not None), key=_key)
    ranked = [each for each in measured if each.learned]
    keys = [_key(each) for each in ranked]
    placed = [dataclasses.replace(each, rank=1 + keys.index(key)) for each, key in zip(ranked, keys, strict=True)]
    return [*placed, *(e for e in measured if not e.learned), *(e for e in found if e.leak is None)]


def comparable(cards: Iterable[Card]) -> list[list[Card]]:
    """Return cards grouped by data set, attack and size: only cards that agree in all of them are ranked together."""
    groups: dict[str, list[Card]] = {}
    for card in cards:
        same = (card.dataset.name, card.dataset.content, card.attack.name, card.attack.content, card.asked)
        groups.setdefault(repr(same), []).append(card)
    return [groups[same] for same in sorted(groups)]


def points_of(card: Card, attacker: str, protocol: str, tap: str) -> list[CardPoint]:
    """Return the points of an attacker at a leakage point by a protocol, one for each round; empty where not measured."""
    cells = [cell for cell in card.cells if (cell.attacker, cell.protocol) == (attacker, protocol)]
    return [point for cell in cells for point in cell.points if LeakagePoint.of(point.name).tap == tap]


def above_chance(points: Sequence[CardPoint]) -> float:
    """Return the mean excess of reconstruction and identification over the baseline guess, from 0 to 1.

    A reconstructed victim counts as identified, also if its rank is low. The excess is 0 where no leak was found; among several
    rounds the largest counts.
    """
    return max(_above(point) for point in points)


def _above(point: CardPoint) -> float:
    if point.verdict == NO_LEAK:
        return 0.0
    shares = [(point.asr, point.null_asr[0]), (point.identified, point.chance)]
    reconstructed, identified = (None if share is None else _over(share[0], guess) for share, guess in shares)
    if reconstructed is None:
        # An attacker that neither reconstructs nor ranks gives no evidence: the defense counts as leaking all.
        return 1.0 if identified is None else identified
    return (reconstructed + max(reconstructed, identified or 0.0)) / 2


def _over(share: float, guess: float) -> float:
    """Return the share's excess over the guess, as a part of the largest possible excess."""
    return max(0.0, (share - guess) / (1 - guess)) if guess < 1 else 0.0


def _standing(card: Card) -> Standing:
    points = [points_of(card, "aware", *where) for where in EVERYWHERE]
    if not all(points):
        return Standing(card, None, None, False)
    leak = rounded(sum(map(above_chance, points)) / len(points))
    known = card.accuracy
    learned = all(accuracy_above_chance(each, known.examples, known.majority) for each in known.of_trainings)
    return Standing(card, None, leak, all(p.verdict == NO_LEAK for some in points for p in some), learned)


def _key(standing: Standing) -> tuple[bool, float, float]:
    assert standing.leak is not None  # noqa: S101 - said to mypy; it holds by construction
    accuracy = standing.card.accuracy.value
    return not standing.clear, round(standing.leak, 2), -1.0 * (accuracy[0] if accuracy else 0.0)
