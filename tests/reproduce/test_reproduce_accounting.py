"""Tables of accounting: `leakbench reproduce` computes what is in results/; verdicts, resumed runs, wrong input."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from command_line import called

from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.core.recipe import construct
from leakbench.privacy.accountants import pld
from leakbench.privacy.claims_composed import sequence
from leakbench.reproduce import plans
from leakbench.reproduce.accounting.measure import COUNTS, computed, first
from leakbench.reproduce.accounting.page import accounting_page, judged
from leakbench.reproduce.accounting.table import COUNTED, AccountingClaim, AccountingTable, readings
from leakbench.reproduce.file import studies_folder, table_names
from leakbench.reproduce.published import read_any
from leakbench.reproduce.reproduce import reproduce
from leakbench.study.study import Execution
from tests.published_files import STUDIES, published_file

TABLES = {name: table for name in table_names() if isinstance(table := read_any(name), AccountingTable)}
NUMBERS = ["formula", "renyi", "losses"]


def committed(name: str) -> pd.DataFrame:
    return pd.read_csv(published_file(f"{name}.csv"))


def claim_of(table: str, name: str) -> AccountingClaim:
    [found] = [claim for claim in TABLES[table].claims if claim.name == name]
    return found


def with_readings(claim: AccountingClaim, **names: bool) -> AccountingClaim:
    """Return a claim with only the named readings, stated by the paper or not."""
    kept = [{**r, "stated": names[r["name"]]} for r in claim.given["readings"] if r["name"] in names]
    return dataclasses.replace(claim, given={**claim.given, "readings": kept})


def judge(claim: AccountingClaim, rows: list[dict[str, Any]] | None = None) -> tuple[str, str]:
    [found] = judged(AccountingTable("t", "", "", (claim,)), pd.DataFrame(computed(claim) if rows is None else rows))
    return found.verdict, found.reason


CHEAP = {
    "fed_alpha_cdp_table_6": ["Fed-SDP, cancer", "Fed-CDP and Fed-alphaCDP, cancer"],
    "fed_alpha_cdp_table_7": ["Fed-alphaCDP, cancer"],
    "fed_alpha_cdp_table_8_rounds": ["staircase, cancer", "cyclic, adult"],
    "fed_alpha_cdp_table_11_budgets": ["advanced, mnist", "zCDP, mnist"],
    "geyer_table_1_rounds": ["100 clients"],
    "flower_epsilons": ["script, q = 1, z = 1, 10 rounds", "accountant, without replacement, q = 1, z = 1, 10 rounds"],
}


@pytest.mark.slow
@pytest.mark.parametrize("table", CHEAP)
def test_computed_rows_equal_those_in_results(table: str) -> None:
    rows = committed(table)
    for name in CHEAP[table]:
        found = pd.DataFrame(computed(claim_of(table, name)))
        kept = rows[rows["cell"] == name].reset_index(drop=True)
        same = ["cell", "reading", "stated", "claimed", *NUMBERS, "gives", "reason"]
        pd.testing.assert_frame_equal(
            found[same].fillna({"reason": ""}),
            kept[same].fillna({"reason": ""}),
            check_dtype=False,
            rtol=1e-5,
            atol=2e-6,
        )


@pytest.mark.parametrize("name", TABLES)
def test_every_claim_is_in_results_under_its_hash(name: str) -> None:
    """A changed YAML line has another hash, so its old row no longer belongs to it."""
    rows = committed(name)
    assert list(dict.fromkeys(rows["cell"])) == [claim.name for claim in TABLES[name].claims]
    for claim in TABLES[name].claims:
        mine = rows[rows["cell"] == claim.name]
        assert set(mine["hash"]) == {claim.hash} and set(mine["claimed"]) == {claim.claimed}


@pytest.mark.parametrize("name", TABLES)
def test_pages_are_rendered_from_the_rows(name: str) -> None:
    rows, page = committed(name), (published_file(f"{name}.md")).read_text(encoding="utf-8")
    assert accounting_page(TABLES[name], rows) == page
    assert accounting_page(TABLES[name], rows.assign(losses=0.125)) != page
    assert (rows["losses"].isna() | (rows["losses"] <= rows["renyi"] + 1e-6)).all()


@pytest.mark.parametrize(
    "name", [name for name, table in TABLES.items() if "flower" not in name and "geyer" not in name]
)
def test_a_reading_gives_a_number_if_its_formula_gives_it(name: str) -> None:
    rows, within = committed(name), TABLES[name].claims[0].given.get("within", 0)
    near = (rows["claimed"] - rows["formula"]).abs() <= within
    assert list(rows["gives"] == 1) == list(near)
    assert list(rows["reason"].isna()) == list(near)
    assert (rows.groupby("cell")["stated"].sum() == 1).all()


NEVER = {
    "fed_alpha_cdp_table_6": {"Fed-CDP and Fed-alphaCDP, cancer"},
    "fed_alpha_cdp_table_7": set(),
    "fed_alpha_cdp_table_8_rounds": {
        *(f"{policy}, {data}" for policy in ("linear", "staircase", "exponential") for data in ("lfw", "adult")),
        *("cyclic, cifar10", "cyclic, adult"),
    },
    "fed_alpha_cdp_table_11_budgets": set(),
    "fed_alpha_cdp_table_11_rounds": {"cyclic / advanced, mnist", "cyclic / zCDP, mnist"},
}


@pytest.mark.parametrize("name", NEVER)
def test_these_numbers_follow_from_no_reading(name: str) -> None:
    best = committed(name).groupby("cell")["gives"].max()
    assert set(best.index[best == 0]) == NEVER[name]
    unexplained = {claim.name for claim in judged(TABLES[name], committed(name)) if "by no reading" in claim.reason}
    assert unexplained == NEVER[name]


def test_verdicts_of_all_tables() -> None:
    """Each printed number counts once, with any number of readings."""
    found = {name: [claim.verdict for claim in judged(table, committed(name))] for name, table in TABLES.items()}
    words = ("reproduced", "contradicted", "different setting")
    assert {name: tuple(map(verdicts.count, words)) for name, verdicts in found.items()} == {
        "fed_alpha_cdp_table_6": (0, 10, 0),
        "fed_alpha_cdp_table_7": (0, 5, 0),
        "fed_alpha_cdp_table_8_rounds": (1, 19, 0),
        "fed_alpha_cdp_table_11_budgets": (0, 4, 0),
        "fed_alpha_cdp_table_11_rounds": (2, 14, 0),
        "geyer_table_1_rounds": (0, 0, 3),
        "flower_epsilons": (5, 4, 0),
    }


def test_only_stated_settings_reproduce_a_number() -> None:
    """Fed-SDP on Adult: .303 follows from T + 1 rounds; T rounds give .2919."""
    claim = claim_of("fed_alpha_cdp_table_6", "Fed-SDP, adult")
    assert judge(claim) == ("contradicted", "given by 11 steps, 10 are counted; given by 'T + 1 rounds'")
    alone = with_readings(claim, **{"T rounds": True})
    assert judge(alone)[1].endswith("; given by no reading that was tried")
    assert judge(with_readings(claim, **{"T rounds": False, "T + 1 rounds": True})) == ("reproduced", "")
    assert judge(dataclasses.replace(claim, claimed=0.292))[0] == "reproduced"
    assert judge(dataclasses.replace(claim, apart="of another kind"))[0] == "different setting"


def test_the_round_of_a_budget_is_the_one_that_exceeds_it() -> None:
    """A budget that ends with a whole round is exceeded in the next."""
    claim = with_readings(
        claim_of("fed_alpha_cdp_table_8_rounds", "cyclic, adult"), **{"sigma as stated, q = B / |D_i|": True}
    )
    [row] = computed(claim)
    assert row["formula"] == 9 and row["reason"].startswith("epsilon 0.1486 of the budget 0.276 after round 7 of 10")
    never = dataclasses.replace(claim, given={**claim.given, "budget": 1e6})
    assert pd.isna(computed(never)[0]["formula"])


def test_flowers_number_is_reproduced_if_it_is_at_least_the_valid_one() -> None:
    claim = claim_of("flower_epsilons", "script, q = 1, z = 1, 10 rounds")
    first, second = computed(claim)
    assert (first["losses"], second["losses"]) == (pytest.approx(46.2112, abs=1e-3), pytest.approx(17.8566, abs=1e-3))
    assert judge(claim) == (
        "undecided",
        "the source names none of these: one client replaced: 46.21 (does not hold); one client's update made zero: 17.86 (holds)",
    )
    # A source that names its adjacency is held to it.
    for adjacency, verdict in (
        ("one client replaced", "contradicted"),
        ("one client's update made zero", "reproduced"),
    ):
        assert judge(dataclasses.replace(claim, given={**claim.given, "adjacency": adjacency}))[0] == verdict
    with pytest.raises(InputError, match="adjacency: got 'one example', expected unnamed or one client replaced or"):
        computed(dataclasses.replace(claim, given={**claim.given, "adjacency": "one example"}))
    quiet = {**claim.given, "noise_multiplier": 4.0, "within": 100.0}
    assert judge(dataclasses.replace(claim, claimed=46.3, given=quiet))[0] == "reproduced"
    with pytest.raises(InputError, match=r"printed: got 20, its formula gives 20\.7565"):
        computed(dataclasses.replace(claim, claimed=20.0))
    with pytest.raises(InputError, match="program: input should be 'script', 'without replacement' or 'poisson'"):
        construct(COUNTED["flower_epsilons"], {**claim.given, "program": "scirpt"})


@pytest.mark.parametrize(
    ("gives", "stated", "verdict"),
    [
        ((1, 1), (0, 0), "reproduced"),
        ((1, 0), (0, 0), "undecided"),
        ((0, 1), (0, 0), "undecided"),
        ((0, 0), (0, 0), "contradicted"),
        ((1, 0), (1, 0), "reproduced"),
        ((0, 1), (1, 0), "contradicted"),
        ((0, 1), (1, 1), "reproduced"),
    ],
)
def test_a_number_without_a_stated_reading_is_compared_under_each(
    gives: tuple[int, int], stated: tuple[int, int], verdict: str
) -> None:
    claim = claim_of("flower_epsilons", "script, q = 1, z = 1, 10 rounds")
    rows = [
        {
            "cell": claim.name,
            "reading": f"reading {n}",
            "stated": stated[n],
            "gives": gives[n],
            "reason": "",
            "formula": 1.0,
        }
        | {"renyi": 3.0, "losses": 2.0 + n}
        for n in range(2)
    ]
    found, reason = judge(claim, rows)
    assert found == verdict
    if verdict != "reproduced" and not any(stated):
        assert "reading 0: 2 " in reason and "reading 1: 3 " in reason  # Both values are printed.


def test_flowers_number_is_compared_with_privacy_losses() -> None:
    """A number between the two is not below the spent epsilon."""
    claim = claim_of("flower_epsilons", "accountant, Poisson, q = .1, z = 1, 100 rounds")
    [row] = computed(claim)
    assert row["losses"] < 7.7 < row["renyi"]
    between = dataclasses.replace(claim, claimed=7.7, given={**claim.given, "within": 1.0})
    assert judge(between)[0] == "reproduced"
    below = dataclasses.replace(between, claimed=row["losses"] - 0.01, given={**claim.given, "within": 2.0})
    assert judge(below)[0] == "contradicted"


def test_the_losses_of_a_round_include_all_its_steps() -> None:
    claim = with_readings(
        claim_of("fed_alpha_cdp_table_8_rounds", "cyclic, adult"), **{"sigma as stated, q = B / |D_i|": True}
    )
    short = dataclasses.replace(claim, claimed=1.0, given={**claim.given, "losses": True})
    [reading] = readings(short.facts)
    one, steps = reading.schedule, reading.schedule.local_iterations
    singly = [step for m in sequence(reading.part.unit, reading.part.noise_multiplier, one) for step in [m] * m.steps]
    of_a_round = [dataclasses.replace(step, steps=1) for step in singly[:steps]]
    assert sum(m.steps for m in first(tuple(of_a_round), steps)) == steps > 1
    [row] = computed(short)
    assert row["losses"] == pytest.approx(pld(tuple(of_a_round), short.given["delta"]), rel=1e-4)
    assert row["losses"] > 1.001 * pld(tuple(of_a_round[:-1]), short.given["delta"])


SMALL = {
    "kind": "accounting",
    "counts": "flower_epsilons",
    "title": "A small table",
    "text": "Of nothing.",
    "given": {"delta": 1e-5, "within": 1.0, "program": "script", "adjacency": "unnamed", "noise_multiplier": 1.0}
    | {"federation": {"local_iterations": 1, "batch": 1, "examples_per_client": 1, "copies": 1.0, "most_copies": 1}
       | {"client_sampling": "poisson", "batch_sampling": "poisson", "tensors": 1, "clients": 4, "clients_per_round": 4}
       | {"rounds": 1}},
    "rows": [{"name": "a", "printed": 5.3}, {"name": "b", "printed": 5.4}],
}  # fmt: skip


def small(folder: Path, **changes: Any) -> AccountingTable:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}), encoding="utf-8")
    table = read_any(str(path))
    assert isinstance(table, AccountingTable)
    return table


def account(table: AccountingTable, out: Path, told: list[str], only: str = "", again: bool = False) -> None:
    here = Execution(out, None, Reporter(quiet=True))
    reproduce(table, "quick", only, {}, out, here, lambda row: told.append(row["cell"]), again)


def told_by(table: AccountingTable, out: Path, **asked: Any) -> list[str]:
    told: list[str] = []
    account(table, out, told, **asked)
    return list(dict.fromkeys(told))


def test_a_claim_is_computed_once(tmp_path: Path) -> None:
    table = small(tmp_path)
    assert told_by(table, tmp_path, only="b") == ["b"]
    assert "Not computed yet: a." in (tmp_path / "small.md").read_text()
    assert told_by(table, tmp_path) == ["a"]
    before = (tmp_path / "small.csv").read_bytes()
    assert told_by(table, tmp_path) == [] and (tmp_path / "small.csv").read_bytes() == before
    assert list(pd.read_csv(tmp_path / "small.csv")["cell"].unique()) == ["a", "b"]
    assert told_by(table, tmp_path, only="a", again=True) == ["a"]
    # Only a changed line, or a line of another version, is computed again.
    other = small(tmp_path, rows=[{"name": "a", "printed": 5.3}, {"name": "b", "printed": 5.5}])
    assert told_by(other, tmp_path) == ["b"]


def test_another_version_computes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = small(tmp_path)
    assert told_by(table, tmp_path) == ["a", "b"]
    monkeypatch.setattr("leakbench.reproduce.accounting.table.versions", lambda: {"dp-accounting": "9"})
    assert told_by(table, tmp_path) == ["a", "b"]


def test_a_killed_table_repeats_no_finished_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, begun = small(tmp_path), list[str]()

    def killed(claim: AccountingClaim) -> Any:
        begun.append(claim.name)
        if claim.name == "b":
            raise KeyboardInterrupt
        return computed(claim)

    monkeypatch.setattr(plans, "computed", killed)
    with pytest.raises(KeyboardInterrupt):
        account(table, tmp_path, [])
    monkeypatch.setattr(plans, "computed", computed)
    assert begun == ["a", "b"] and told_by(table, tmp_path) == ["b"]


def test_the_command_computes_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path)
    given = ("reproduce", str(tmp_path / "small.yaml"), "--out", str(tmp_path))
    code, out, _ = called(monkeypatch, capsys, *given, "--only", "a")
    assert code == 0 and "a, one client replaced: claimed 5.3, formula" in out
    page = tmp_path / "small.md"
    page.unlink()
    code, out, _ = called(monkeypatch, capsys, *given, "--page")
    assert (code, out) == (0, f"page: {page}\n") and "# A small table" in page.read_text()
    # Both scales have the same numbers: nothing is computed for the other.
    code, out, _ = called(monkeypatch, capsys, *given, "--only", "a", "--scale", "full")
    assert code == 0 and "a, one client" not in out
    code, _, err = called(monkeypatch, capsys, *given, "--set", "victims=2")
    assert (code, err.count("\n")) == (2, 1) and "set: an accounting table" in err
    code, out, _ = called(monkeypatch, capsys, "reproduce")
    assert code == 0 and all(name in out for name in TABLES)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "acounting"}, "kind: got 'acounting'; did you mean 'accounting'?"),
        ({"counts": "epsilon"}, "counts: got 'epsilon'; did you mean 'epsilons'?"),
        ({"rows": [{"name": "a"}]}, "row 'a': missing field 'printed'"),
        ({"rows": [{"name": "a", "printed": 1, "claim": {}}]}, "row 'a': unknown field 'claim'"),
        (
            {"rows": [{"name": "a", "printed": {"mnits": 1}}], "data": {"mnist": {}}},
            "'mnits' is not in data; did you mean",
        ),
        ({"rows": [{"name": "a", "printed": 1}] * 2}, "rows: two are called 'a'"),
        ({"scale": "full"}, "unknown field 'scale'"),
    ],
)
def test_a_wrong_table_is_named_with_its_field(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        small(tmp_path, **changes)
    assert says in str(caught.value) and "small.yaml" in str(caught.value)


def test_an_unknown_field_of_a_reading_is_named() -> None:
    claim = claim_of("fed_alpha_cdp_table_7", "Fed-alphaCDP, cancer")
    wrong = {**claim.given, "readings": [{"name": "r", "claim": {}, "state": True}]}
    with pytest.raises(InputError, match="reading 'r': unknown field 'state'; did you mean 'stated'"):
        computed(dataclasses.replace(claim, given=wrong))


def test_tables_are_shipped_and_all_kinds_are_computed() -> None:
    assert studies_folder() == STUDIES
    assert list(COUNTS) == list(COUNTED)
    assert {claim.counts for table in TABLES.values() for claim in table.claims} == set(COUNTED)


def test_a_page_elsewhere_has_no_link_to_pages_that_are_not_there(tmp_path: Path) -> None:
    table = next(iter(TABLES.values()))
    page = accounting_page(table, committed(table.name), tmp_path / "own rows")
    assert "](../" not in page and "docs/papers.md of leakbench" in page
    assert f"--out '{tmp_path}/own rows'" in page
