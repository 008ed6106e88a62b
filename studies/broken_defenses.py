"""Write results/broken_defenses.md: what defenses claim, what an adaptive attacker gets behind them, and why.

    python studies/broken_defenses.py

The numbers are the rows of attacks/broken_defenses.csv; `leakbench reproduce broken_defenses` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from leakbench.box import box_of, caveats_of, evidence_of
from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import markdown_table, one_line
from leakbench.reproduce.columns import interval
from leakbench.reproduce.file import body_of, results_folder, rows_path
from leakbench.reproduce.page import on_one_network
from leakbench.reproduce.published import rows_of
from leakbench.reproduce.reproduce import write_index
from leakbench.reproduce.table import table_of
from leakbench.storage.atomic import write_atomically
from leakbench.study.rows import RowStore
from leakbench.study.stale import stale_lines, stale_names

TABLE = "broken_defenses"
RESULTS = results_folder()


@dataclass(frozen=True)
class Claimed:
    """A defense on the page.

    Args:
        claim: What its source says that it does.
        why: Why the adaptive attacker gets what it gets.
    """

    claim: str
    why: str


DEFENSES: Mapping[str, Claimed] = {
    "noise_gaussian": Claimed(
        "Gaussian noise of variance 0.01 on the gradient stops reconstruction (Zhu et al. 2019).",
        "The largest coordinates of an unclipped gradient are far above the noise, and its likelihood weighs each coordinate.",
    ),
    "noise_laplace": Claimed(
        "Laplace noise of variance 0.01 on the gradient stops reconstruction (Zhu et al. 2019).",
        "As for Gaussian noise.",
    ),
    "prune_90": Claimed(
        "A gradient without its smallest 90 % shows no image; 20 % to 30 % are enough against DLG (Zhu et al. 2019).",
        "The remaining tenth has more numbers than an image, and shows which coordinates were pruned.",
    ),
    "prune_threshold": Claimed(
        "Pruning the smallest 80 % of a client's update stops reconstruction (Wei et al. 2023, section 4.1).",
        "As for single gradients: the attacker prunes its guess at the same coordinates.",
    ),
    "dssgd": Claimed(
        "Sending a random tenth of the coordinates above a threshold limits what leaks (Shokri and Shmatikov 2015).",
        "The tenth that is sent is exact, and shows which coordinates it has.",
    ),
    "sign": Claimed(
        "The sign of each coordinate hides the example (baseline of Wu et al. 2023).",
        "Each sign limits the guess to a half-space, and there are more signs than pixels.",
    ),
    "sign_client": Claimed(
        "The sign of a client's update hides its examples.",
        "As for the sign of a gradient.",
    ),
    "soteria": Claimed(
        "Pruning the features from which an input is reconstructed best hides it (Sun et al. 2021).",
        "The columns that were set to zero show the mask, and the layers before carry the image.",
    ),
    "soteria_as_released": Claimed(
        "As soteria, as its released code runs on a batch.",
        "As for soteria.",
    ),
    "precode": Claimed(
        "Random numbers in a bottleneck make the gradient useless for matching (Scheliga et al. 2022).",
        "The gradient of the bottleneck shows the random numbers exactly, by a quotient.",
    ),
}

TEXT = """# Broken defenses

{box}
What each defense claims, and what one search gets behind it from MNIST: without knowledge of the defense (*oblivious*), and with
its recipe (*adaptive*). Both know the network, its weights, the batch size and public examples; the update is that of one
example. The shares are of images that are reconstructed to an RMSE of at most eta. *Identified* is the share of victims that an
adaptive ranking picks among the candidates. {networks} [The rows](attacks/broken_defenses.md) have every other measure.

{caution}{table}

A defense that is not broken here is not shown to be safe: other attacks, other networks and longer searches were not tried. A
broken one may still work where a batch is larger, the network is trained or the attacker knows less than assumed here.
"""


def page(rows: pd.DataFrame, caution: Sequence[str] = (), stale: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the page for the rows of broken_defenses.csv.

    Args:
        rows: The rows.
        caution: Lines about stale rows, above the table.
        stale: Names of stale cells by reason.
    """
    rows = rows.assign(
        defense=rows["cell"].str.rsplit(", ", n=1).str[0], knows=rows["cell"].str.rsplit(", ", n=1).str[1]
    ).set_index(["defense", "knows"])
    share = interval("asr")
    names = list(dict.fromkeys(rows.index.get_level_values(0)))
    missing = [name for name in names if name not in DEFENSES]
    if missing:
        raise ValueError(f"DEFENSES: no claim of {', '.join(missing)}")
    lines = []
    for name in names:
        oblivious, adaptive = (rows.loc[[(name, knows)]].iloc[0].to_dict() for knows in ("oblivious", "defense"))
        lines.append(
            [
                f"`{name}`",
                point_name(str(adaptive["point"])),
                DEFENSES[name].claim,
                share(oblivious),
                share(adaptive),
                f"{adaptive['null_asr']:.2f}",
                f"{adaptive['identified']:.2f} of {adaptive['candidates']:,.0f}",
                str(adaptive["verdict"]),
                DEFENSES[name].why,
            ]
        )
    heads = ["defense", "point", "claim", "oblivious", "adaptive", "baseline guess", "identified", "verdict", "why"]
    aware = rows.xs("defense", level="knows")
    broken = int((aware["verdict"] == "reconstructs").sum())
    stopped = int((rows.xs("oblivious", level="knows")["verdict"] != "reconstructs").sum())
    verdict = (
        f"{broken} of {len(names)} defenses are broken by the adaptive attacker, whose verdict is `reconstructs`; the oblivious "
        f"one has that verdict for {len(names) - stopped}."
    )
    claim = "Defenses that claim to stop reconstruction stop an attacker that knows them."
    box = box_of(
        claim, verdict, evidence_of(rows), " ".join(caveats_of(stale or {}, rows)), f"leakbench reproduce {TABLE}"
    )
    networks = (
        f"Victims: {int(rows['victims'].min())} a row, over {int(rows['networks'].min())} networks at random weights."
    )
    return TEXT.format(
        box="\n".join(box),
        caution="".join(f"{line}\n" for line in caution),
        table=markdown_table(heads, lines),
        networks=networks,
    )


def read() -> tuple[pd.DataFrame, list[str], Mapping[str, Sequence[str]]]:
    """Return the published rows, the lines about stale ones, and their names by reason."""
    table = table_of(*body_of(TABLE))
    rows = RowStore(rows_path(RESULTS, TABLE), table.format).read()
    judged = list(rows_of(table, rows))
    return rows, [*stale_lines(judged), *on_one_network(table, rows)], stale_names(judged)


def main() -> None:
    """Write the page."""
    text = page(*read())
    write_atomically(RESULTS / f"{TABLE}.md", lambda file: file.write_text(text, encoding="utf-8"))
    write_index(RESULTS)


if __name__ == "__main__":
    one_line(main)
