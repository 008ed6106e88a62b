"""Grids of sweeps."""

from __future__ import annotations

from tests.bad.case import Case, written

GRID = """given: {dataset: digits, attack: lmmse, taps: [type-2], train_rounds: 0, victims: 2, candidates: 20}
each:
  defense: [none, sign]
  seed: [0, 1]
"""


def _of(text: str | bytes, *says: str) -> Case:
    return Case("sweep --quiet mine.yaml", says, written("mine.yaml", text))


def _grid(old: str, new: str, *says: str) -> Case:
    assert old in GRID
    return _of(GRID.replace(old, new, 1), "mine.yaml", *says)


CASES = (
    _of("", "mine.yaml"),
    _of("- 1\n", "mine.yaml"),
    _of("given: {", "mine.yaml"),
    _of(b"\xff\xfe", "mine.yaml"),
    _of(GRID + "given: {}\n", "mine.yaml", "given"),
    _grid("given:", "givn:", "givn"),
    _grid("dataset: digits", "dataset: digit", "digit"),
    _grid("dataset: digits", "dataset: [digits]", "dataset"),
    _grid("attack: lmmse", "attak: lmmse", "attak"),
    _grid("train_rounds: 0", "train_rounds: -1", "-1"),
    _grid("train_rounds: 0", "train-rounds: 0", "train-rounds"),
    _grid("victims: 2", "victims: two", "victims", "two"),
    _grid("victims: 2", "victims: 2.5", "victims", "2.5"),
    _grid("victims: 2", "victims: true", "victims"),
    _grid("taps: [type-2]", "taps: 3", "taps"),
    _grid("taps: [type-2]", "taps: [type-9]", "taps", "type-9"),
    _grid("defense: [none, sign]", "defense: [none, sgin]", "sgin"),
    _grid("defense: [none, sign]", "defense: none", "defense"),
    _grid("defense: [none, sign]", "defense: []", "defense"),
    _grid("defense: [none, sign]", "defense: [none, ../../mine.yaml]", "../../mine.yaml"),
    _grid("seed: [0, 1]", "seed: {a: [1]}", "seed"),
    _grid("seed: [0, 1]", "seed: [0, x]", "seed", "x"),
    _grid("seed: [0, 1]", "null: [0, 1]", "setting", "None"),
    _grid("seed: [0, 1]", "true: [0, 1]", "setting", "True"),
    _grid("seed: [0, 1]", "noise: {whole: {}, tenth: {noise_facter: 0.1}}", "noise_facter"),
    _grid("seed: [0, 1]", "noise: {whole: 3}", "noise"),
    _grid("each:\n  defense: [none, sign]\n  seed: [0, 1]\n", "each: 3\n", "each"),
    _grid("each:\n  defense: [none, sign]\n  seed: [0, 1]\n", "rows: []\n", "rows"),
    _grid("each:\n  defense: [none, sign]\n  seed: [0, 1]\n", "rows: [{name: a}, {name: a}]\n", "row 2"),
    _grid("each:\n  defense: [none, sign]\n  seed: [0, 1]\n", "rows: [{name: a, victims: 3}]\n", "victims"),
    _grid("each:\n  defense: [none, sign]\n  seed: [0, 1]\n", "rows: [{name: null}]\n", "name", "None"),
    Case("sweep --quiet mine.yaml --workers 0", ("workers", "0"), written("mine.yaml", GRID)),
    Case("sweep --quiet mine.yaml --engine slurm", ("engine", "slurm", "submitit"), written("mine.yaml", GRID)),
    Case("sweep --quiet mine.yaml --address here", ("address",), written("mine.yaml", GRID)),
    Case("sweep --quiet mine.yaml --gpus-per-cell -1", ("gpus-per-cell", "-1"), written("mine.yaml", GRID)),
)
