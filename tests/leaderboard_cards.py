"""Cards for the leaderboard tests: a small measured one, and copies with changed fields."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakbench.core.progress import Reporter
from leakbench.leaderboard.asked import CardSizes
from leakbench.leaderboard.card import Card, CardPoint
from leakbench.leaderboard.make import make_card
from leakbench.leaderboard.read import text_of
from leakbench.study.study import Execution

__all__ = ["SMALL", "changed", "everywhere", "small_card", "with_points"]

SMALL = """--attack lmmse --victims 10 --taps type-2 --protocols paper --train-rounds 0 --candidates 20
--trials 100"""


def small_card(runs: Path) -> Card:
    """Measure the card of `SMALL`: signs on digits, a linear attack at one leakage point, without training."""
    asked = CardSizes(victims=10, taps=("type-2",), protocols=("paper",), train_rounds=0, candidates=20, trials=100)
    return make_card(asked, "sign", "digits", "lmmse", Execution(runs, None, Reporter(quiet=True)))


def changed(card: Card, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return the path of a copy of a card whose fields were changed by `change`."""
    fields = json.loads(text_of(card))
    change(fields)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def everywhere(
    card: Card, name: str, asr: float, identified: float, accuracy: float, verdict: str = "inconclusive"
) -> Card:
    """Return a card with the same numbers at all leakage points, by both protocols and for both attackers."""

    def share(value: float) -> tuple[float, float, float]:
        return value, max(0.0, value - 0.2), min(1.0, value + 0.2)

    cell, point = card.cells[0], card.cells[0].points[0]
    found: dict[str, Any] = {"asr": share(asr), "identified": share(identified), "verdict": verdict}
    found |= {"null_asr": share(0.0), "candidates": 10, "chance": 0.1}
    points = [dataclasses.replace(point, name=f"type-{n}", **found) for n in (2, 1, 0)]
    cells = tuple(
        dataclasses.replace(cell, attacker=attacker, protocol=protocol, points=tuple(points))
        for attacker in ("oblivious", "aware")
        for protocol in ("paper", "live")
    )
    trained = dataclasses.replace(card.accuracy, value=share(accuracy))
    return dataclasses.replace(
        card, defense=dataclasses.replace(card.defense, name=name), cells=cells, accuracy=trained
    )


def with_points(card: Card, change: Callable[[CardPoint], CardPoint]) -> Card:
    """Return a card with every leakage point changed."""
    cells = (dataclasses.replace(cell, points=tuple(map(change, cell.points))) for cell in card.cells)
    return dataclasses.replace(card, cells=tuple(cells))
