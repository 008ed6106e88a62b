"""docs/adding.md promises that a part, a format and a measure take one source file each, and a table one YAML file.

The code blocks of the page are written into a copy of the package, and one table measures them all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]

CLIP = '''"""A clip by the largest coordinate."""

from typing import ClassVar

from torch import Tensor

from leakbench.defense.by_norm import Norms, Scaling, clip_factor, scale_by_norm, whole_norm
from leakbench.core.part import Bound, part
from leakbench.core.types import Clock, Fact, Generators, Signal


@part("transform.clip_half")
class ClipHalf:
    """Scale each member to half of `norm` at most."""

    scales_clip: ClassVar[str] = "norm"

    norm: Bound

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        half = self.norm / 2
        factor = clip_factor(whole_norm(norms), half)
        return Scaling(dict.fromkeys(norms, factor), factor.new_full(factor.shape[:1], half), (Fact("clip", norm=half),))
'''

MEASURE = """LARGEST_ERROR = Measure(
    "largest_error",
    "largest error",
    "Median largest error of a pixel or feature, in [0, 1].",
    2,
    True,
    lambda reconstruction, truth: (reconstruction - truth).abs().flatten(2).amax(2),
)

"""

TABLE = """title: Five additions
given: {dataset: ./blobs.yaml, attack: ./by_layer.yaml, iterations: 3, victims: 2, networks: 1, taps: [type-2],
        train_rounds: 0, candidates: 10}
rows:
  - {name: none, given: {defense: none}}
  - {name: half, given: {defense: ./half.yaml}}
"""

HALF = "title: Half\ncite: me\nunit: example\nexample: [{clip_half: {norm: 0.01}}]\n"


def blocks() -> dict[str, str]:
    """Return {file name: code} of the page's blocks with a title."""
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    return dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', page, re.DOTALL))


def as_part(code: str, name: str) -> str:
    """Return the code of a user's part as it is written in a checkout."""
    code, changed = re.subn(r"^@dataclass\(frozen=True\)$", f'@part("{name}")', code, flags=re.MULTILINE)
    assert changed == 1
    return code.replace("from dataclasses import dataclass\n", "from leakbench.core.part import part\n", 1)


def copied(folder: Path) -> Path:
    """Return the folder with a copy of the package and links to the catalog."""
    shutil.copytree(ROOT / "leakbench", folder / "leakbench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("attacks", "defenses", "datasets", "results", "studies"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, code = copied(tmp_path_factory.mktemp("additions")), blocks()
    package = folder / "leakbench"
    (package / "attack/slots/by_layer.py").write_text(as_part(code["my_distance.py"], "distance.by_layer"))
    (package / "defense/clip_half.py").write_text(CLIP)
    (package / "data/npz.py").write_text(as_part(code["my_format.py"], "format.npz"))
    measures = package / "measure/measures.py"
    head, tail = measures.read_text().split("MEASURES = (", 1)
    measures.write_text(f"{head}{MEASURE}MEASURES = ({tail.replace(')', ', LARGEST_ERROR)', 1)}")
    for name, text in {"blobs.py": code["blobs.py"], "by_layer.yaml": code["by_layer.yaml"]}.items():
        (folder / name).write_text(text)
    (folder / "half.yaml").write_text(HALF)
    (folder / "five.yaml").write_text(TABLE)
    run(folder, "blobs.py")
    return folder


@pytest.mark.slow
def test_five_additions_are_measured_by_one_table(place: Path) -> None:
    said = run(
        place,
        "-m",
        "leakbench",
        "reproduce",
        "./five.yaml",
        "--scale",
        "full",
        "--data-dir",
        ".",
        "--out",
        "out",
        "--quiet",
    )
    assert "none: ASR" in said and "half: ASR" in said
    rows = pd.read_csv(place / "out/five.csv")
    assert (
        list(rows["row"]) == ["none", "half"]
        and set(rows["dataset"]) == {"blobs"}
        and set(rows["attack"]) == {"by_layer"}
    )
    for folder in (place / "runs").iterdir():
        kept = pd.read_parquet(folder / "rows.parquet")
        assert (kept["largest_error"] >= kept["rmse"]).all()
    page = run(place, "-m", "leakbench", "report", *map(str, sorted((place / "runs").glob("*none*"))[:1]))
    report = next((place / "runs").glob("*none*/report.html")).read_text(encoding="utf-8")
    assert "largest error" in report and page


@pytest.mark.slow
def test_identities_contain_the_names_of_additions_and_factors_scale_them(place: Path) -> None:
    program = (
        "from leakbench.cell.factors import wider; from leakbench.defense import Defense;"
        "from leakbench.core.recipe import describe, resolve; half = resolve('defenses', Defense, 'half.yaml')[1];"
        "print(describe(half)['example'], describe(wider(half, 2.0))['example'])"
    )
    half, wide = "[{'part': 'ClipHalf', 'norm': 0.01}]", "[{'part': 'ClipHalf', 'norm': 0.02}]"
    assert run(place, "-c", program).strip() == f"{half} {wide}"
