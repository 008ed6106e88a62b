"""Notes on a training from its rows."""

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd

from leakbench.summary.notes import training_notes


def notes(scales: list[float], on_dropout: str = "skip") -> dict[str, str]:
    settings = SimpleNamespace(canaries=0, stop_after=None, federation=SimpleNamespace(rounds=len(scales)))
    cell: Any = SimpleNamespace(settings=settings, defense=SimpleNamespace(on_dropout=on_dropout))
    rounds = pd.DataFrame({"round": range(len(scales)), "loss": 1.0, "update_scale": scales})
    return training_notes(cell, rounds)


def test_rounds_that_changed_nothing_are_counted() -> None:
    assert notes([0.1, 0.2]) == {}
    found = notes([0.0, 0.1, 0.0, math.nan], "abort")
    assert found == {
        "rounds": "1 of 4 were aborted, since a client failed; 2 of 4 changed nothing: no client took part, or all updates were 0"
    }
