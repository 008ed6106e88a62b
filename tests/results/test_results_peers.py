"""results/checks/peer_scorers.csv and .md cover the current cases, and agree with each other."""

import csv
from collections import Counter

from leakbench.conformance import MEASURES, all_cases
from leakbench.conformance.contract import AVERAGED
from tests.published_files import published_file

NAMES = (*MEASURES, *(f"overall {name}" for name in AVERAGED), "untouched")
ROWS = list(csv.DictReader(published_file("peer_scorers.csv").read_text(encoding="utf-8").splitlines()))


def test_every_case_was_given_to_every_peer() -> None:
    """With today's expected numbers; an added or changed case makes the measurement old."""
    cases = {made.name: {str(known) for known in made.known.values()} for made in all_cases()}
    for scorer in ("leakbench", "breaching", "GradAttack", "LeakPro, modular", "LeakPro, loaders"):
        rows = [row for row in ROWS if row["scorer"] == scorer]
        assert [row["case"] for row in rows] == list(cases)
        for row in rows:
            said = {row["expected"]} | {row["expected"].removeprefix(f"{name} ") for name in NAMES}
            assert said & cases[row["case"]] or said == {""} or row["case"] == "lpips: range"
            assert (row["outcome"] in ("passed", "failed")) == bool(row["expected"])


def test_rows_name_the_code_that_was_run() -> None:
    """Each has a commit and the code; a scorer that was not run has a reason, and what was read instead."""
    assert all(row["commit"] and row["function"] for row in ROWS)
    not_run = [row for row in ROWS if row["outcome"].startswith("not run")]
    assert not_run and all(
        row["outcome"].startswith("not run: ") and row["got"].startswith("read: ") for row in not_run
    )


def test_the_page_counts_the_rows_of_the_table() -> None:
    page = (published_file("peer_scorers.md")).read_text(encoding="utf-8")
    box = next(line for line in page.splitlines() if line.startswith("> - **Verdict:**"))
    for scorer in {row["scorer"] for row in ROWS if row["scorer"]}:
        outcomes = Counter(row["outcome"].partition(":")[0] for row in ROWS if row["scorer"] == scorer)
        line = next(line for line in page.splitlines() if line.startswith(f"| {scorer} | "))
        failed, passed = outcomes["failed"], outcomes["passed"]
        assert f"{scorer} {failed} of {passed + failed}" in box
        assert line.endswith(" | ".join(str(outcomes[o]) for o in ("passed", "failed", "not measured")) + " |")
