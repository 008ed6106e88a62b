"""Test that no measurement is above its bound, and that a bound detects a tenth of the stated noise.

    python studies/bounds_hold.py [--data-dir FOLDER] [--runs FOLDER] [--only TEXT] [--page]

Each defense that has a bound is attacked by the rankings of `identification` twice: as it is, and with its Gaussian noise divided
by ten. The recipe, the ledger and the attacker still assume the full noise. Writes bounds_hold.csv and bounds_hold.md into the
folder of this script; with `--page` only the page, from the existing rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from bounds_hold_page import page_of
from shared.options import checked, parser
from shared.rows import measured, store_of
from torch import Tensor

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core.rng import normal
from leakbench.core.scripts import one_line
from leakbench.core.types import Generators
from leakbench.reproduce.choose import chosen
from leakbench.study.rows import Row
from leakbench.study.study import executed
from leakbench.summary.limits import BOUNDS

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attacks"

DATASETS = ("mnist", "lfw", "adult")
DEFENSES = (
    *("fed_cdp", "fed_cdp_valid", "fed_cdp_layers_valid", "fed_cdp_flat", "fed_cdp_as_released_flat"),
    *("fed_alpha_cdp", "fed_alpha_cdp_flat", "fed_sdp_client", "fed_sdp_valid", "fed_sdp_server"),
    "flower_fixed_client",
    *(f"recipes/clip_4_sigma_{sigma}.yaml" for sigma in ("0_3", "1", "3", "6")),
)
GIVEN: dict[str, Any] = {"attack": "identification", "victims": 500, "train_rounds": 0, "candidates": 1000}

COPIED = (
    "identified",
    "identified_low",
    "identified_high",
    "label_ranked",
    "member_tpr",
    *(bound.field for bound in BOUNDS),
)
"""Fields that are copied from the summary of a leakage point."""


@contextmanager
def a_tenth_of_the_noise() -> Iterator[None]:
    """Let `gaussian_noise` draw a tenth of the standard deviation that it states."""

    def quiet(like: Tensor, rngs: Generators | None, members: int) -> Tensor:
        return normal(like, rngs, members) / 10

    with patch("leakbench.defense.noise.normal", quiet):
        yield


def cells() -> dict[str, tuple[str, str, bool]]:
    """Return {name of a cell: (data set, defense, whether its noise is a tenth)}."""
    found = {}
    for dataset in DATASETS:
        for defense in DEFENSES:
            for tenth in (False, True):
                name = f"{dataset}, {Path(defense).stem}, {'a tenth' if tenth else 'as said'}"
                found[name] = (dataset, defense, tenth)
    return found


def measure(name: str, data_dir: Path | None, runs: Path) -> list[Row]:
    """Run one cell, or read it if it is complete, and return a row for each of its leakage points."""
    dataset, defense, tenth = cells()[name]
    recipe = str(HERE / defense) if defense.endswith(".yaml") else defense
    cell = prepare(Request(**{**GIVEN, "dataset": dataset, "defense": recipe}), data_dir)
    folder = runs / ("a_tenth" if tenth else "as_said")
    with (
        a_tenth_of_the_noise() if tenth else nullcontext(),
        executed(cell, folder, f"studies/bounds_hold.py: {name}") as (summary, _),
    ):
        pass
    broken: dict[str, list[str]] = {}
    for found in summary.violations:
        broken.setdefault(found.tap, []).append(found.measure)
    return [
        {
            "row": f"{name}, {point}",
            "cell": name,
            "dataset": dataset,
            "defense": cell.names["defense"],
            "tenth": tenth,
            "point": point,
            "victims": tap.victims,
            "batch": tap.batch,
            **{key: tap.value(key) for key in COPIED},
            "above": " ".join(broken.get(point, ())),
            "hash": cell.hash[:12],
        }
        for point, tap in summary.taps.items()
    ]


def main() -> None:
    """Measure and write; or only write."""
    asked, table = (
        checked(parser(__doc__, "--data-dir", "--runs", "--only", "--page").parse_args()),
        RESULTS / "bounds_hold.csv",
    )
    torch.set_num_threads(1)
    names = chosen(cells(), asked.only)
    store = store_of(table, list(cells()), ("row", "cell"))
    if asked.page:
        rows = store.existing.read()
    else:

        def of(name: str) -> list[Row]:
            return measure(name, asked.data_dir, asked.runs)

        rows = measured(store, names, of, lambda row: f"above its bound: {row['above'] or 'none'}")
    there_are = set(rows["cell"])
    lacking = [name.removesuffix(", as said") for name in cells() if name.endswith("as said") and name not in there_are]
    (RESULTS / "bounds_hold.md").write_text(page_of(rows, lacking), encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
