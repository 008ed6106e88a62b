"""Damaged files of runs, sweeps, tables, baselines and caches are named and measured again, and never used."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.damage_kept import check_caches, check_csv, check_json
from tests.reliability.damage_runs import check_runs, run_in
from tests.reliability.damage_sweeps import check_sweeps
from tests.reliability.damage_versions import check_versions
from tests.reliability.tally import Tally

__all__ = ["check"]


def check(full: bool, scratch: Path) -> Tally:
    """Damage every file of a run, of a sweep, of tables and caches in dozens of ways; about ten minutes at full length."""
    tally = Tally()
    whole = scratch / "whole" / "run"
    tally.expect(run_in(whole)[0] == 0, "the run that is harmed")
    check_runs(tally, scratch / "runs", whole, *((8, 2) if full else (1, 0)))
    check_sweeps(tally, scratch / "sweeps", *((24, 6) if full else (1, 0)))
    check_csv(tally, scratch / "csv", *((1500, 150) if full else (5, 0)))
    check_json(tally, scratch / "json", whole, *((1500, 150) if full else (5, 0)))
    check_caches(tally, scratch / "caches", *((2000, 150) if full else (5, 0)))
    check_versions(tally, scratch / "versions", whole, full)
    return tally
