"""Mutation tests: a change of one sign or number in accounting, measures, clips or noise must make a test fail.

The full version lets mutmut change each line that `[tool.mutmut]` of pyproject.toml names, draws some of these mutants, and runs
the tests that cover each. Surviving mutants are listed, with the reason, in results/checks/mutants.csv. The short version changes
Wilson's
interval, operator by operator, and compares it with published values.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.reliability.tally import Tally

__all__ = ["check"]

ROOT = Path(__file__).parents[2]
SURVIVORS = ROOT / "results" / "checks" / "mutants.csv"

SAMPLE = 400
"""Number of drawn mutants; LEAKBENCH_MUTANTS overrides it."""

LEAST = 0.9
"""Smallest share of killed mutants."""

SURVIVED, UNTESTED = 0, 33
"""mutmut's codes of a mutant that no test detected, and of one that no test covered; both count as survived."""


def check(full: bool, scratch: Path) -> Tally:
    """Try mutants; if `full`, by mutmut in a copy of the tree."""
    tally = Tally()
    if not full:
        _by_hand(tally)
        return tally
    if importlib.util.find_spec("mutmut") is None:
        tally.expect(False, "mutmut is not there: pip install 'leakbench[mutation]'")
        return tally
    copy = scratch / "tree"
    _copy(copy)
    names = _names(copy)
    seed = int(os.environ.get("LEAKBENCH_MUTANTS_SEED", "1"))
    drawn = sorted(random.Random(seed).sample(names, min(int(os.environ.get("LEAKBENCH_MUTANTS", SAMPLE)), len(names))))
    _mutmut(copy, *drawn)
    codes = {name: code for name, code in _codes(copy).items() if name in set(drawn)}
    lived = sorted(name for name, code in codes.items() if code in (SURVIVED, UNTESTED))
    tally.tried += len(drawn)
    killed = 1 - len(lived) / len(drawn)
    tally.expect(
        killed >= LEAST,
        f"{killed:.1%} of {len(drawn)} mutants killed, expected {LEAST:.0%}: {', '.join(lived[:5])} ...",
    )
    tally.expect(len(codes) == len(drawn), f"{len(drawn) - len(codes)} mutants were not tried")
    changes = {name: _change(copy, name) for name in lived}
    listed = _listed()
    unknown = [name for name in lived if changes[name] not in listed]
    if unknown:
        _write_unknown(scratch, {name: changes[name] for name in unknown})
    tally.expect(
        not unknown,
        f"{len(unknown)} survivors are not in {SURVIVORS.name}, such as {[changes[n] for n in unknown[:3]]}",
    )
    kinds = Counter(listed[changes[name]] for name in lived if changes[name] in listed)
    reasons = "; ".join(f"{reason.replace('; ', ', ')} ({count})" for reason, count in kinds.most_common())
    tally.figures.append(
        f"{len(drawn)} of {len(names):,} mutants drawn, {killed:.1%} killed; survivors: {reasons or 'none'}"
    )
    return tally


def _copy(place: Path) -> None:
    """Copy the files that git tracks, in their current state."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def _mutmut(place: Path, *names: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", "1", *names]
    subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False)


def _names(place: Path) -> list[str]:
    """Have all mutants written, and return their names."""
    _mutmut(place, "leakbench.measure.statistics.x_wilson__mutmut_1")
    names = sorted(_codes(place, also_new=True))
    if not names:
        raise RuntimeError("mutmut wrote no mutants")
    return names


def _codes(place: Path, also_new: bool = False) -> dict[str, Any]:
    """Return {mutant: exit code of its tests}."""
    found: dict[str, Any] = {}
    for path in sorted((place / "mutants").rglob("*.meta")):
        found |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {name: code for name, code in found.items() if also_new or code is not None}


def _change(place: Path, name: str) -> str:
    """Return a mutant's change as `module.function: - line + line`; its number depends on every change of the file."""
    command = [sys.executable, "-m", "mutmut", "show", name]
    said = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False).stdout
    lines = [line[0] + " " + line[1:].strip() for line in said.splitlines() if re.match(r"[+-](?![+-])", line)]
    return f"{re.sub(r'__mutmut_[0-9]+$', '', name).removeprefix('leakbench.')}: {' '.join(lines)}"


def _listed() -> dict[str, str]:
    """Return {change: why no test detects it}."""
    with SURVIVORS.open(newline="", encoding="utf-8") as file:
        return {row["change"]: row["reason"] for row in csv.DictReader(file)}


def _write_unknown(place: Path, changes: dict[str, str]) -> None:
    """Write the changes without a reason next to the copy, where they are not deleted with it."""
    path = place.parent / "leakbench-unknown-mutants.txt"
    path.write_text("".join(f"{name}\n  {change}\n" for name, change in changes.items()), encoding="utf-8")


WILSON = {(0, 10): (0.0, 0.2775), (3, 10): (0.1078, 0.6032), (81, 263): (0.2553, 0.3662), (10, 10): (0.7225, 1.0)}
"""(successes, trials) to (low, high); those of 81 in 263 as Newcombe (Statistics in Medicine 17, 1998) prints them."""

OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}


def _by_hand(tally: Tally) -> None:
    """Change each operator and each number of Wilson's formula; the expected values must change too."""
    from leakbench.measure import statistics  # noqa: PLC0415

    source = Path(statistics.__file__).read_text(encoding="utf-8")
    tally.expect(_agrees(statistics.wilson), "wilson: other values than those that are published")
    for said, tree in _changed(source):
        scope = {**vars(statistics)}
        exec(compile(tree, "mutant", "exec"), scope)
        tally.expect(not _agrees(scope["wilson"]), f"wilson: {said} changes no published value")


def _changed(source: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield (the change, the changed function) for each operator of the formula."""
    count = len(_operators(_function(source)))
    for place in range(count):
        function = _function(source)
        node = _operators(function)[place]
        said = f"line {node.lineno}: {type(node.op).__name__}"
        node.op = OTHER[type(node.op)]()
        yield said, ast.fix_missing_locations(ast.Module([function], []))


def _function(source: str) -> ast.FunctionDef:
    [found] = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "wilson"]
    return found


def _operators(function: ast.FunctionDef) -> list[ast.BinOp]:
    return [node for node in ast.walk(function) if isinstance(node, ast.BinOp) and type(node.op) in OTHER]


def _agrees(wilson: Callable[[int, int], tuple[float, float]]) -> bool:
    try:
        found = [wilson(*counts) for counts in WILSON]
    except Exception:
        return False
    return all(
        not isinstance(end, complex) and abs(end - expected) < 1e-4
        for ends, limits in zip(found, WILSON.values(), strict=True)
        for end, expected in zip(ends, limits, strict=True)
    )
