"""Compare every published value of a commit with the working tree's: all CSVs and cards, by row, leakage point and measure.

    python studies/compare_published.py COMMIT

Both forms of a CSV are read: a column for each measure, and one line for each measure. A file is known by its name, wherever it
lies. Values that only one side has are counted by column. Ends with 1 if a value differs or is missing.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

DROPPED = {"checksum", "hash", "cell", "versions", "content", "behaviours", "left_out", "asked", "resilient"}
"""Columns that are no values: identities and how a row was made."""

LONG = {
    "value": "{}",
    "low": "{}_low",
    "high": "{}_high",
    "baseline": "null_{}",
    "baseline_low": "null_{}_low",
    "baseline_high": "null_{}_high",
    "bound": "{}_bound",
    "n": "{}_n",
}
"""{column of a table with a line for each measure: name of the same value among columns for each measure}."""

IDENTITY = ("row", "point", "reading", "cell")


def main() -> int:
    """Print what differs; returns 1 if anything does."""
    first = dict(_values(_committed(sys.argv[1])))
    now = dict(_values(_working()))
    differences = [key for key in first.keys() & now.keys() if not _same(first[key], now[key])]
    lost = [key for key in first.keys() - now.keys() if _said(first[key]) and key[-1] not in DROPPED]
    new = [key for key in now.keys() - first.keys() if _said(now[key]) and key[-1] not in DROPPED]
    for key in sorted(differences)[:40]:
        print(f"differs  {' | '.join(key)}: {first[key]!r} then, {now[key]!r} now")
    for what, keys in (("only then", lost), ("only now", new)):
        for (file, column), count in Counter((k[0], k[-1]) for k in keys).most_common(40):
            print(f"{what}  {file} {column}: {count} values")
    rows = len({key[:-1] for key in first if key in now})
    both = len(first.keys() & now.keys())
    print(
        f"rows compared {rows}, values {both}, differences {len(differences)}, only then {len(lost)}, only now {len(new)}"
    )
    return int(bool(differences or lost))


def _committed(commit: str) -> Iterator[tuple[str, str]]:
    for path in _git("ls-tree", "-r", "--name-only", commit).splitlines():
        if _published(path):
            yield path, _git("show", f"{commit}:{path}")


def _working() -> Iterator[tuple[str, str]]:
    for path in _git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if _published(path) and (ROOT / path).exists():
            yield path, (ROOT / path).read_text(encoding="utf-8")


def _git(*words: str) -> str:
    program = shutil.which("git")
    assert program is not None
    return subprocess.run([program, *words], cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout


def _published(path: str) -> bool:
    top, end = PurePosixPath(path).parts[0], PurePosixPath(path).suffix
    return (top == "results" and end == ".csv") or (top in ("leaderboard", "results") and end == ".json")


def _values(files: Iterator[tuple[str, str]]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield ((file, row, point, ..., measure), value)."""
    for path, text in files:
        name = PurePosixPath(path)
        if name.suffix == ".csv":
            yield from _of_csv(name.stem, text)
        elif name.stem != "bench":
            yield from _of_json((f"{name.parent.name}/{name.stem}",), json.loads(text))


def _of_csv(name: str, text: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    lines = list(csv.DictReader(io.StringIO(text)))
    long = bool(lines) and {"measure", "value"} <= lines[0].keys()
    seen: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        row, point = line.get("row") or line.get("cell") or "", line.get("point") or ""
        at = (name, row, point, line.get("reading") or "")
        where = (*at, str(0 if long else seen[at]))
        seen[at] += 1
        for column, value in line.items():
            if column in IDENTITY or column == "measure" or not value:
                continue
            measured = LONG[column].format(line["measure"]) if long and column in LONG else column
            yield (*where, measured), _number(value)


def _of_json(where: tuple[str, ...], found: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _of_json((*where, key), value)
    elif isinstance(found, list):
        for place, value in enumerate(found):
            yield from _of_json((*where, str(place)), value)
    elif found is not None:
        yield where, found


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return {"True": 1.0, "False": 0.0}.get(text, text)


def _said(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _same(then: Any, now: Any) -> bool:
    if isinstance(then, float) and isinstance(now, float):
        return then == now or (math.isnan(then) and math.isnan(now))
    return bool(then == now)


if __name__ == "__main__":
    sys.exit(main())
