"""Tries the reliability promises, records the results, and prints the table; see the package."""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.reliability.points import POINTS, Point
from tests.reliability.tally import Tally

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "checks" / "reliability.csv"
FIELDS = ("point", "tried", "failed", "seconds", "figures", "commit", "date")


def main() -> int:
    """Return 1 if a case failed."""
    names = [point.name for point in POINTS]
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("points", nargs="*", metavar="POINT", help=f"of {', '.join(names)}; all of them by default")
    parser.add_argument("--short", action="store_true", help="the version of the ordinary suite; nothing is recorded")
    parser.add_argument("--report", action="store_true", help="print the table of what is recorded")
    asked = parser.parse_args()
    unknown = [name for name in asked.points if name not in names]
    if unknown:
        parser.error(f"unknown promise {unknown[0]!r}: expected one of {', '.join(names)}")
    if asked.report:
        print(table(recorded()))
        return 0
    failed = 0
    for point in POINTS:
        if asked.points and point.name not in asked.points:
            continue
        tally, seconds = tried(point, not asked.short)
        print(f"{point.name}: {tally.tried} tried, {len(tally.failures)} failed, {seconds:.0f} s", flush=True)
        for line in tally.failures:
            print(f"  {line}", flush=True)
        failed += len(tally.failures)
        if not asked.short:
            record(point, tally, seconds)
    return 1 if failed else 0


def tried(point: Point, full: bool) -> tuple[Tally, float]:
    """Try one promise in a separate folder; return its tally and the wall seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"leakbench-{point.name}-") as scratch:
        tally = point.check(full, Path(scratch))
    return tally, time.monotonic() - began


def recorded() -> dict[str, dict[str, str]]:
    """Return {promise: its record}."""
    if not RECORD.exists():
        return {}
    with RECORD.open(newline="", encoding="utf-8") as file:
        return {row["point"]: row for row in csv.DictReader(file)}


def record(point: Point, tally: Tally, seconds: float) -> None:
    """Replace the record of a promise."""
    rows = recorded()
    rows[point.name] = {
        "point": point.name,
        "tried": str(tally.tried),
        "failed": str(len(tally.failures)),
        "seconds": f"{seconds:.0f}",
        "figures": "; ".join(tally.figures),
        "commit": _commit(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }
    with RECORD.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[point.name] for point in POINTS if point.name in rows)


def _commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "?"


def table(rows: dict[str, dict[str, str]]) -> str:
    """Return the table of docs/reliability.md; the measured figures of each promise are in the recorded CSV."""
    lines = ["| point | promise | tried | failed | time | date |", "| --- | --- | --- | --- | --- | --- |"]
    for number, point in enumerate(POINTS, 1):
        row = rows.get(point.name)
        found = ["not measured", "", "", ""]
        if row is not None:
            found = [row["tried"], row["failed"], _duration(int(row["seconds"])), row["date"]]
        lines.append(f"| {number} {point.name} | {point.promise} | {' | '.join(found)} |")
    return "\n".join(lines)


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    sys.exit(main())
