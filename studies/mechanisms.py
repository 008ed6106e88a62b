"""Write results/checks/mechanisms.md: mechanisms that are deployed, with their epsilons claimed, valid by observer, and audited.

    python studies/mechanisms.py [--only TEXT] [--runs FOLDER] [--page]

Needs no data: every row is a federation on the digits of scikit-learn. Each row audits one release by many trials of the
defense's code, and a whole training by canaries. Writes mechanisms.csv and mechanisms.md; with `--page` only the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from shared.options import parser
from shared.rows import measured, store_of

import leakbench
from leakbench.box import box_of
from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import markdown_table, one_line
from leakbench.core.words import epsilon_text
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.reproduce import write_index
from leakbench.storage.atomic import write_atomically
from leakbench.study.rows import Row

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "checks"

MECHANISMS: Mapping[str, str] = {
    "Fed-SDP": "fed_sdp_valid",
    "Fed-CDP": "fed_cdp_valid",
    "independent noise, clients in turn": "recipes/turns.yaml",
    "trees": "dp_ftrl",
    "banded": "dp_ftrl_banded",
    "buffered": "dp_ftrl_buffered",
    "banded, groups in turn": "dp_ftrl_banded_sampled",
    "discrete Gaussian shares": "distributed_discrete_gaussian",
    "Skellam shares": "distributed_skellam",
    "shuffled Gaussian reports": "shuffled_gaussian",
}
"""{name of a row: name of a defense, or a file below this folder}."""

FEDERATION: dict[str, Any] = {"dataset": "digits", "noise_factor": 0.25, "clip_factor": 0.1}

ATTACKED: dict[str, Any] = {"attack": "cpl", "taps": ("type-2",), "victims": 1, "iterations": 1}
"""The smallest attack: the row is about the training."""

CANARIES, SEEDS = 1000, 5
"""Number of canaries of a training, and number of trainings of a row."""

POINTS = ("type-2", "type-1", "type-0")

TEXT = """# Epsilons of deployed mechanisms, claimed, valid and audited

{box}
{setting} The noise is a quarter of each recipe's, since an audit finds little of a small
epsilon. All epsilons are at a delta of 1e-5, for one client, for Fed-CDP for one example.

- *claimed*: what the source claims in this federation; most have claimed nothing for it.
- *valid*: for the released models, and against an attacker at each leakage point.
- *audited, release*: a lower bound at 95 % confidence from 200,000 or more trials of the defense's own code,
  next to the valid epsilon of what is audited: the whole run, or one round.
- *audited, training*: lower bounds at 95 % confidence from {canaries:,} canaries in one training, for the
  released models: the mean over {seeds} trainings with other seeds, and their range.

{table}

{scopes}

A lower bound far below the valid epsilon does not show privacy. Where each client adds its own noise,
each of the canary clients brings noise too, and the bound of a training finds little.
"""


def measure(name: str, runs: Path) -> list[Row]:
    """Return the row of a mechanism."""
    recipe = MECHANISMS[name]
    defense = str(HERE / recipe) if recipe.endswith(".yaml") else recipe
    found = leakbench.epsilon(defense, **FEDERATION)
    valid = found.table()["valid"]
    release = leakbench.audit(defense=defense, quiet=True, **FEDERATION)
    trainings = []
    for number in range(SEEDS):
        # Rows with the same seed would share the inclusion of the canaries and the draws of the noise.
        seed = SEEDS * list(MECHANISMS).index(name) + number
        out = runs / f"mechanisms-{Path(recipe).stem}-{seed}"
        run = leakbench.run(
            defense=defense, out=out, quiet=True, canaries=CANARIES, seed=seed, **FEDERATION, **ATTACKED
        )
        if (found_in := run.summary.get("audited")) is not None:
            trainings.append(max(found_in["lower_bound"], found_in["lower_bound_family"] or 0.0))
    return [
        {
            "mechanism": name,
            "defense": Path(recipe).stem,
            "unit": found.epsilon.unit,
            "claimed": found.claimed,
            "valid": valid["released models"],
            **{point: valid[point] for point in POINTS},
            "audited": max(release.lower_bound or 0.0, release.lower_bound_family or 0.0),
            "audited_valid": release.valid,
            "audit": release.verdict,
            "scope": release.reason.split("; ", 1)[-1],
            "trainings": len(trainings),
            "training_mean": float(np.mean(trainings)),
            "training_least": min(trainings),
            "training_most": max(trainings),
        }
    ]


def number(value: float | None) -> str:
    """Return an epsilon of the table."""
    return epsilon_text(value)


def page(rows: pd.DataFrame) -> str:
    """Return the page of all rows."""
    heads = ["mechanism", "claimed", "valid, released models", *(f"valid, {point_name(p)}" for p in POINTS)]
    heads += ["audited, release (its valid)", "audited, training"]
    lines = [
        [
            row["mechanism"],
            *(number(row[column]) for column in ("claimed", "valid", *POINTS)),
            f"{number(row['audited'])} ({number(row['audited_valid'])})",
            f"{number(row['training_mean'])} [{number(row['training_least'])}, {number(row['training_most'])}]",
        ]
        for _, row in rows.iterrows()
    ]
    broken = rows[
        (rows["audit"] == "violated")
        | (rows["audited"] > rows["audited_valid"])
        | (rows["training_most"] > rows["valid"])
    ]
    which = f": {', '.join(broken['mechanism'])}" if len(broken) else ""
    bare = rows[rows["type-1"].isna()]
    box = box_of(
        "The valid epsilons of deployed mechanisms hold for their code.",
        f"An audit contradicts {len(broken)} of {len(rows)}{which}. {len(bare)} of {len(rows)} have no epsilon at the "
        f"{point_name('type-1')}.",
        f"{len(rows)} mechanisms, {int(rows['trainings'].sum())} trainings.",
        "Audits are lower bounds for their canaries: they can refute an epsilon, not prove it.",
        "python studies/mechanisms.py",
    )
    scopes = [f"- {row['mechanism']}: {row['scope']}." for _, row in rows.iterrows()]
    return TEXT.format(
        box="\n".join(box),
        setting="20 clients, 10 in each of 10 rounds.",
        canaries=CANARIES,
        seeds=SEEDS,
        table=markdown_table(heads, lines),
        scopes="\n".join(["What the audits of a release are about:", "", *scopes]),
    )


def main() -> None:
    """Measure the mechanisms and write the rows and the page."""
    given = parser(__doc__, "--only", "--runs", "--page").parse_args()
    store = store_of(RESULTS / "mechanisms.csv", list(MECHANISMS), first=("mechanism",))
    if not given.page:
        names = chosen(list(MECHANISMS), given.only)
        measured(
            store,
            names,
            lambda name: measure(name, given.runs),
            lambda row: f"valid {number(row['valid'])}, audited {number(row['audited'])}",
        )
    text = page(store.existing.read())
    write_atomically(RESULTS / "mechanisms.md", lambda file: file.write_text(text, encoding="utf-8"))
    write_index(RESULTS.parent)


if __name__ == "__main__":
    one_line(main)
