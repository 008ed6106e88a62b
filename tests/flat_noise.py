"""Digits behind a defense with flat noise: each example's gradient is clipped at 4 and gets noise of the same size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import called

FLAT = """
title: t
cite: c
unit: example
example: [{clip_whole: {norm: 4.0}}, {gaussian_noise: {multiplier: 1.0, to: each}}]
"""


def runs_behind_flat_noise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[dict[str, Any], Path]]:
    """Return `run(name, *options)`, which runs such a cell from the command line and returns (summary, folder)."""
    recipe = tmp_path / "flat.yaml"
    recipe.write_text(FLAT)

    def run(name: str, *options: str) -> tuple[dict[str, Any], Path]:
        cell = ("--dataset", "digits", "--train-rounds", "0", "--defense", str(recipe), "--out", str(tmp_path / name))
        code, out, said = called(monkeypatch, capsys, "run", *cell, "--json", "--quiet", *options)
        assert code == 0, said
        return json.loads(out), tmp_path / name

    return run
