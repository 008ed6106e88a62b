"""Damage to every file of a run, finished or interrupted: readers refuse it by name, and the run's command measures it again."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import leakbench
from leakbench.core.errors import InputError
from tests.reliability.edges_runs import called
from tests.reliability.harm import ANOTHER, Harm, harms
from tests.reliability.same import differences, results
from tests.reliability.tally import Tally

__all__ = ["check_runs", "run_in"]

RUN = (
    *("run", "--dataset", "cancer", "--attack", "cpl", "--iterations", "2", "--victims", "2", "--candidates", "3"),
    *("--defense", "fed_cdp", "--train-rounds", "2", "--clients", "2", "--clients-per-round", "2"),
    *("--local-iterations", "1", "--quiet"),
)

AUDIT = (
    *("audit", "--defense", "fed_cdp", "--dataset", "cancer", "--train-rounds", "2", "--clients", "2"),
    *("--clients-per-round", "2", "--local-iterations", "1", "--trials", "100", "--into"),
)

Said = tuple[int, str, str]


def check_runs(tally: Tally, place: Path, run: Path, flips: int, cuts: int) -> None:
    """Damage every file of a run, copied from `run`, in every way; flips, cuts: how often each, without cuts of one file only."""
    whole, other = place / "whole" / "run", place / "other" / "run"
    shutil.copytree(run, whole)
    if cuts:
        tally.expect(run_in(other, "--seed", "1")[0] == 0, "the run of another seed")
        tally.expect(called(*AUDIT, str(whole))[0] == 0, "the audit")
        tally.expect(called("report", str(whole))[0] == 0, "the report")
    rng, came = random.Random(0), Counter[str]()
    shown = {how: _plain(READERS[how](whole)[1], whole) for how in (READERS if cuts else ("compare",))}
    names = sorted(path.name for path in whole.iterdir() if path.name != ".lock")
    for name in names if cuts else ("rows.parquet",):
        content = (other / name).read_bytes() if (other / name).exists() else None
        for number, harm in enumerate(harms(rng, (whole / name).stat().st_size, flips, cuts, content)):
            folder = place / f"harmed{number}" / "run"
            _harmed(tally, whole, shown, folder, name, harm, came)
            shutil.rmtree(folder.parent)
    if cuts:
        how = ", ".join(f"{count} {what}" for what, count in came.items())
        tally.figures.append(f"files of a run harmed: {', '.join(names)}; {how}")
        _parts(tally, place / "parts", run, rng, flips, cuts)


def run_in(folder: Path, *more: str) -> Said:
    """Run the cell in a folder, which the cell knows only by name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder.parent):
        return called(*RUN, *more, "--out", folder.name)


def _harmed(
    tally: Tally, whole: Path, shown: Mapping[str, str], folder: Path, name: str, harm: Harm, came: Counter[str]
) -> None:
    """Damage one file, read the folder in every way, then run the command again; shown: {reader: its output for the intact run}."""
    shutil.copytree(whole, folder)
    harm.do(folder / name)
    case, another = f"{name}, {harm.name}", harm.name == ANOTHER
    # Another run's manifest is intact, but does not match the files; without a manifest the folder is not a run.
    named = str(folder) if name == "manifest.json" and (another or harm.name == "missing") else name
    for how, before in shown.items():
        code, out, err = READERS[how](folder)
        unread = code == 0 and _plain(out, folder) == before
        told = code == 2 and err.count("\n") == 1 and named in err and "Traceback" not in err
        if how == "runs":  # It lists a damaged run as damaged, and a folder without a manifest is not a run.
            told = code == 0 and ("damaged" in out or "no run in" in out)
        tally.expect(unread or told, f"{case}, {how}: exit code {code}, said {err[-300:]!r}")
        came[f"refused by {how}"] += not unread
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    harm.do(folder / name)
    code, _, err = run_in(folder)
    if name == "manifest.json":  # Only the manifest says which run it was.
        tally.expect(code == 2 and err.count("\n") == 1, f"{case}, run: exit code {code}, said {err[-300:]!r}")
        came["refused by run"] += 1
        return
    if name == "audit.json":
        tally.expect(code == 2 and name in err, f"{case}, run: exit code {code}, said {err[-300:]!r}")
        code, _, err = called(*AUDIT, str(folder))
        code = code or called("report", str(folder))[0]
    tally.expect(code == 0 and name in err, f"{case}, again: exit code {code}, said {err[-300:]!r}")
    came["made again"] += 1
    with tally.case(f"{case}, again"):
        if said := differences(results(folder), results(whole)):
            raise AssertionError(said)


def _plain(text: str, folder: Path) -> str:
    return text.replace(str(folder), "FOLDER").replace(str(folder.parent), "PLACE")


def _read(folder: Path) -> Said:
    try:
        return 0, leakbench.read(folder).to_csv(), ""
    except InputError as error:
        return 2, "", f"{error}\n"
    except Exception as error:
        return 70, "", repr(error)


READERS: dict[str, Callable[[Path], Said]] = {
    "report": lambda folder: called("report", str(folder)),
    "compare": lambda folder: called("compare", str(folder), str(folder)),
    "baseline": lambda folder: called("baseline", str(folder)),
    "runs": lambda folder: called("runs", str(folder)),
    "leakbench.read": _read,
}
"""Readers of a run's folder, except the run itself."""


def _parts(tally: Tally, place: Path, whole: Path, rng: random.Random, flips: int, cuts: int) -> None:
    """Damage the finished files of an interrupted run, and resume it."""
    cut = place / "cut" / "run"
    with _cut_short(9):
        run_in(cut)
    known = json.loads((cut / "manifest.json").read_text(encoding="utf-8"))["files"]
    # Nothing is read from a chunk whose rows do not exist yet.
    finished = [cut / name for name in known if "type-" not in name or name.rpartition(".")[0] + ".parquet" in known]
    tally.expect(len(finished) >= 4, f"cut short: only {len(finished)} files")
    for path in finished:
        for number, harm in enumerate(harms(rng, path.stat().st_size, flips // 3, cuts // 2)):
            folder = place / f"harmed{number}" / "run"
            shutil.copytree(cut, folder)
            (folder / f".{path.name}.abc.tmp").write_bytes(b"left by a killed process")
            harm.do(folder / path.relative_to(cut))
            code, _, err = run_in(folder)
            case = f"{path.relative_to(cut)} of a run cut short, {harm.name}"
            tally.expect(code == 0 and path.name in err, f"{case}: exit code {code}, said {err[-300:]!r}")
            with tally.case(case):
                if said := differences(results(folder), results(whole)):
                    raise AssertionError(said)
            shutil.rmtree(folder.parent)


def _cut_short(files: int) -> Any:
    """Return a context that interrupts this process, as Ctrl-C does, before this many files have their names."""
    replace, count = Path.replace, iter(range(files))

    def replaced(self: Path, target: Path) -> Path:
        if next(count, None) is None:
            raise KeyboardInterrupt
        return replace(self, target)

    return mock.patch.object(Path, "replace", replaced)
