"""The numbers that the paper of a defense prints, each with our measurement."""

from __future__ import annotations

from typing import Any

import pandas as pd

from leakbench.cell import Cell

__all__ = ["claims"]


def claims(cell: Cell, taps: dict[str, Any], rounds: pd.DataFrame, epsilon: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the paper prints for this defense and dataset, each beside our measurement, with what must be known of it."""
    dataset, of_paper = cell.names["dataset"], cell.recipe.federation.rounds
    trained = f"measured after {len(rounds)} rounds, the paper's are {of_paper}" if len(rounds) != of_paper else ""
    found = []
    for what, by_dataset in cell.defense.printed.items():
        if dataset not in by_dataset:
            continue
        measured, comment = None, ""
        if what == "accuracy":
            measured, comment = None if rounds.empty else float(rounds["accuracy"].iloc[-1]), trained
        elif what == "epsilon":
            measured = epsilon["claimed"]
            comment = "; ".join(
                c for c in (trained, "by the paper's formula; valid: " + _or_none(epsilon["valid"])) if c
            )
        elif (tap := _first_at(taps, what.removeprefix("rmse "))) is not None:
            measured, comment = tap["rmse"], f"batch {tap['batch']}; a median here, one picture there"
            if by_dataset[dataset] > tap["null_rmse"]:
                comment += (
                    f"; the printed value is not better than a guess without any gradient ({tap['null_rmse']:.3f})"
                )
        found.append(
            {
                "what": what,
                "claimed": by_dataset[dataset],
                "measured": measured,
                "source": cell.defense.printed_by or cell.defense.cite,
                "comment": comment,
            }
        )
    return found


def _first_at(taps: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return what was measured at a leakage point, where it leaked in several rounds at the first."""
    return next((tap for key, tap in taps.items() if key.partition("@")[0] == name), None)


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
