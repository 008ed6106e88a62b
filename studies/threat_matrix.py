"""Compare defenses against an honest and a malicious server: the cells of servers_matrix.csv as one matrix.

    python studies/threat_matrix.py

Writes threat_matrix.md to results/servers from the existing rows; `leakbench reproduce servers_matrix` measures them. A second
table has the rows of the servers that need a network of their own, from servers_learned.csv and fine_tuning.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from leakbench.box import box_of, caveats_of, evidence_of, leaks_counted
from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import markdown_table, one_line
from leakbench.core.verdict_words import LEAKING
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.file import body_of
from leakbench.reproduce.page import on_one_network
from leakbench.reproduce.published import rows_of
from leakbench.reproduce.table import Table, table_of
from leakbench.study.rows import RowStore, of_table
from leakbench.study.stale import stale_lines, stale_names

RESULTS = Path(__file__).parents[1] / "results" / "servers"

TAPS = ("type-2", "type-1", "type-0", "global")
SERVERS = {"honest": "honest", "lying": "malicious"}
"""{server in the names of cells: its name on the page}."""

UNDEFENDED = "undefended"
"""The row that is not a defense."""

TEXT = """# Defenses against an honest and a malicious server

{box}
The share of images that are reconstructed to an RMSE of at most eta, by an honest-but-curious server and by a malicious one: MNIST,
CPL's LeNet at random weights, ten victims, one image for each client. `type-0` with secure aggregation and `global` are means of
four clients. `*`: no image is reconstructed, but victims are identified. `**`: the evidence is inconclusive. `no answer`: the
readout found nothing to output, which is not evidence against a leak. [servers_matrix.md](servers_matrix.md) has each cell with
its interval, baseline guess, bound and reference. The malicious server imprints the model. It can also stay honest, so that the
larger of both shares counts.

{caution}{table}

{above}
A malicious server does not read the {first}, which is inside the client: the column shows what its model makes one example's
gradient reveal.
"""

OTHERS = """
## Servers that need a network of their own

`scale_mia` and `seer` need a network that ends with two or more fully connected layers, and `peftleak` needs adapters of a vision
transformer. LeNet has neither, so that these servers have no column in the matrix. Their batches, numbers of victims and
thresholds of success also differ. Only the defenses below were measured: the other defenses of the matrix are not shown to stop
these servers. *Outputs that pick*: the share of outputs that are nearer to their example than to 499 others. `seer` outputs at
most one image of 64, matched to the nearest, so that an output picks an example by chance in 64 / (64 + 499) = .114. A row of
`seer` that is not above this share has no evidence of a leak. Its precision shows nothing, because a fixed public digit is right
in more batches. Intervals, baselines and rankings are in [servers_learned.md](servers_learned.md) and
[fine_tuning.md](fine_tuning.md); [adapter_patches.md](adapter_patches.md) has PEFTLeak behind a clip and noise.

{table}
"""


def matrix(
    rows: pd.DataFrame,
    caution: Sequence[str] = (),
    stale: Mapping[str, Sequence[str]] | None = None,
    others: pd.DataFrame | None = None,
) -> str:
    """Return the page for the rows of servers_matrix.csv.

    Args:
        rows: The rows.
        caution: The lines above the matrix, as of `caution`.
        stale: Names of stale cells by reason.
        others: The rows of servers that need a network of their own; None without the second table.
    """
    rows = rows.assign(
        defense=rows["cell"].str.rsplit(", ", n=1).str[0], server=rows["cell"].str.rsplit(", ", n=1).str[1]
    )
    heads = [f"{point_name(tap)}, {SERVERS[server]}" for tap in TAPS for server in SERVERS]
    lines = []
    for defense in rows["defense"].unique():
        own = rows[rows["defense"] == defense].set_index(["point", "server"])
        lines.append([defense, *(shown(own, tap, server) for tap in TAPS for server in SERVERS)])
    above = int(rows["above"].sum())
    said = f"{above or 'None'} of {len(rows)} cells {'is' if above <= 1 else 'are'} above its bound or reference."
    before = "".join(f"{line}\n" for line in caution)
    page = TEXT.format(
        box="\n".join(box(rows, stale or {})),
        caution=before,
        table=markdown_table(["defense", *heads], lines),
        above=said,
        first=point_name("type-2"),
    )
    return page if others is None else page + OTHERS.format(table=table_of_others(others))


def table_of_others(rows: pd.DataFrame) -> str:
    """Return the table of the servers that need a network of their own, a line for each row."""
    heads = ["server and defense", "leakage point", "images recovered", "outputs that pick", "precision"]
    heads += ["patches read", "baseline ASR"]
    rows = rows.reindex(columns=["row", "point", "asr", "picked", "precision", "patches_read", "null_asr"])
    # Precision is the share of the outputs that are recovered images, so that asr / precision is the share with an output.
    rows["picks"] = rows["picked"] * rows["precision"] / rows["asr"]
    shares = ("asr", "picks", "precision", "patches_read", "null_asr")
    lines = (
        [row["row"], point_name(row["point"]), *(text_of(row[name]) for name in shares)] for _, row in rows.iterrows()
    )
    return markdown_table(heads, lines)


def rows_of_others() -> pd.DataFrame:
    """Return the rows of servers_learned.csv, and those of PEFTLeak in fine_tuning.csv."""
    learned, tuned = (pd.read_csv(RESULTS / f"{name}.csv") for name in ("servers_learned", "fine_tuning"))
    return pd.concat([learned, tuned[tuned["row"].str.startswith("peftleak")]], ignore_index=True)


def box(rows: pd.DataFrame, stale: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the box at the top of the page."""
    leaking = rows[rows["verdict"].isin(LEAKING)]
    here = set(leaking.loc[leaking["point"] == "type-1", "defense"])
    defenses = [name for name in dict.fromkeys(rows["defense"]) if name != UNDEFENDED]
    clear = [name for name in defenses if name not in here]
    verdict = (
        f"{len(defenses) - len(clear)} of {len(defenses)} defenses leak to at least one server at the {point_name('type-1')}; "
        f"without a significant leak there: {', '.join(clear) or 'none'}. {leaks_counted(rows['verdict'])}"
    )
    caveat = " ".join([*caveats_of(stale, rows), "Few victims: most points without a leak are inconclusive."])
    claim = "Which defense stops an honest-but-curious server, which a malicious one, at which leakage point?"
    return box_of(claim, verdict, evidence_of(rows), caveat, "leakbench reproduce servers_matrix")


def caution(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return which rows are stale and which were measured on one network, as the page of the table says."""
    return [*stale_lines(list(rows_of(table, rows))), *on_one_network(table, rows)]


def shown(rows: pd.DataFrame, tap: str, server: str) -> str:
    """Return the share at one point, `-` where it was not measured."""
    if (tap, server) not in rows.index:
        return "-"
    row = rows.loc[[(tap, server)]].iloc[0]
    mark = {"identifies": "*", "inconclusive": "**", "attack failed": " (no answer)"}.get(str(row["verdict"]), "")
    return f"{row['asr']:.2f}{mark}"


def main() -> None:
    """Write the page."""
    rows = RowStore(RESULTS / "servers_matrix.csv", of_table("servers")).existing.read()
    table = table_of(*body_of("servers_matrix"))
    page = matrix(rows, caution(table, rows), stale_names(list(rows_of(table, rows))), rows_of_others())
    (RESULTS / "threat_matrix.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
