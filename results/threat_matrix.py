"""Which threat each defense withstands: the cells of servers_matrix.csv as one matrix.

    python results/threat_matrix.py

Writes threat_matrix.md beside itself from the rows that are there; they are measured by `leakbench reproduce servers_matrix`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from leakbench.reproduce.file import body_of
from leakbench.reproduce.kept import kept, of_table
from leakbench.reproduce.page import on_one_network
from leakbench.reproduce.rows import there
from leakbench.reproduce.stale import rows_of, stale_lines
from leakbench.reproduce.table import Table, table_of
from leakbench.scripts import markdown_table, one_line

HERE = Path(__file__).parent

TAPS = ("type-2", "type-1", "type-0", "global")
SERVERS = ("honest", "lying")

TEXT = """# Which threat a defense withstands

The share of pictures that come back to an RMSE of at most eta, by a server that keeps to the protocol and by one that
lies: MNIST, CPL's LeNet at random weights, ten victims, one picture a client; `type-0` under secure aggregation and
`global` are means of four clients. A star is a point where victims are told apart from other candidates though no
picture comes back; two are a point where the evidence is inconclusive; `no answer` is a point where the
readout found nothing to answer with, which is no evidence against a leak. Each cell is a row of
[servers_matrix.md](servers_matrix.md) with its interval, baseline guess, bound and reference. A lie is one lie, an
imprint; a server that may lie may also keep to the protocol, so that the larger of both counts.

{caution}{table}

{above}
A lying server does not read `type-2`, which is inside the client: the column says what its model makes one example's
gradient show.
"""


def matrix(rows: pd.DataFrame, caution: Sequence[str] = ()) -> str:
    """Return the page for the rows of servers_matrix.csv.

    caution: The lines above the matrix, as of `caution`.
    """
    rows = rows.assign(
        defense=rows["cell"].str.rsplit(", ", n=1).str[0], server=rows["cell"].str.rsplit(", ", n=1).str[1]
    )
    heads = [f"{tap}, {server}" for tap in TAPS for server in SERVERS]
    lines = []
    for defense in rows["defense"].unique():
        own = rows[rows["defense"] == defense].set_index(["point", "server"])
        lines.append([defense, *(shown(own, tap, server) for tap in TAPS for server in SERVERS)])
    above = int(rows["above"].sum())
    said = f"Of {len(rows)} cells {above or 'none'} {'is' if above <= 1 else 'are'} above its bound or reference."
    before = "".join(f"{line}\n" for line in caution)
    return TEXT.format(caution=before, table=markdown_table(["defense", *heads], lines), above=said)


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
    rows = kept(there(HERE / "servers_matrix.csv"), of_table("servers"))
    page = matrix(rows, caution(table_of(*body_of("servers_matrix")), rows))
    (HERE / "threat_matrix.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
