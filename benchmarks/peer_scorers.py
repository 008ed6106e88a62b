"""How the scorers of breaching, GradAttack and LeakPro fare in `leakbench conformance`: results/checks/peer_scorers.md and .csv.

    python -m benchmarks.peer_scorers CHECKOUTS [--out results/checks]

CHECKOUTS holds git checkouts of breaching, GradAttack and LeakPro, and of what their scores are computed by and is not
installed: torchmetrics and ignite with `utilities` (lightning_utilities), and torchmetrics-0.6.0, which GradAttack asks for.
"""

from __future__ import annotations

import argparse
import csv
import logging
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.peer_page import NEEDED, NOT_RUN, SCORERS, commit, page
from leakbench.conformance import CaseResult, all_cases, conform
from leakbench.conformance.command import OwnScorer
from leakbench.core.scripts import existing, one_line

COLUMNS = ("peer", "commit", "scorer", "function", "case", "outcome", "got", "expected", "why")


def scored(name: str, checkouts: Path) -> list[CaseResult]:
    """Return the result of every case; call it in a separate process, since peers replace modules."""
    from benchmarks.peer_adapters.breaching import BreachingBenchmark  # noqa: PLC0415
    from benchmarks.peer_adapters.gradattack import GradAttackScript  # noqa: PLC0415
    from benchmarks.peer_adapters.leakpro import LeakProClient, LeakProLoaders  # noqa: PLC0415

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    makers: dict[str, Any] = {
        "leakbench": lambda *_: OwnScorer(),
        "breaching": BreachingBenchmark,
        "breaching, raising": lambda folder, weights: BreachingBenchmark(folder, weights, raises=True),
        "GradAttack": GradAttackScript,
        "LeakPro, modular": LeakProClient,
        "LeakPro, loaders": LeakProLoaders,
    }
    with tempfile.TemporaryDirectory() as weights:
        scorer = makers[name](checkouts, Path(weights))
        cases = all_cases(Path(weights))
        if name.endswith("raising"):
            cases = tuple(c for c in cases if c.name.endswith(("no answer", "with a failure")))
        return list(conform(scorer, cases))


def main() -> None:
    """Ask every scorer and write both files."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("checkouts", type=Path)
    asked.add_argument("--out", type=Path, default=Path("results/checks"))
    given = asked.parse_args()
    root = Path(__file__).resolve().parent.parent
    checkouts = given.checkouts.resolve()
    peers = {peer for peer, *_ in SCORERS.values()}
    existing("--out", given.out)
    for needed in ("", *sorted(peers - {"leakbench"}), *NEEDED):
        existing("CHECKOUTS", checkouts / needed)
    commits = {peer: commit(root if peer == "leakbench" else checkouts / peer) for peer in peers}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = {name: pool.apply(scored, (name, checkouts)) for name in SCORERS}
    with (given.out / "peer_scorers.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for name, results in found.items():
            peer, function, _ = SCORERS[name]
            for r in results:
                what = r.outcome + (f": {r.reason}" if r.reason else "")
                table.writerow([peer, commits[peer], name, function, r.case, what, r.got, r.expected, r.why])
        for peer, function, case, why, fact in NOT_RUN:
            table.writerow([peer, commits[peer], "", function, case, f"not run: {why}", f"read: {fact}", "", ""])
    text = "\n".join(page(found, commits, checkouts)) + "\n"
    (given.out / "peer_scorers.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    one_line(main)
