"""A damaged CSV of rows is refused in one line with exit code 2 that names the file; names are read back unchanged."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import called

from leakbench.core.errors import InputError
from leakbench.study.rows import ACCOUNTING, RowFormat, RowStore, of_table
from tests.published_files import published_file, without, written_by_hand

Lines = list[list[str]]

PAGES = {
    "claims": "leakage_batches",
    "points": "fed_alpha_cdp_table_3",
    "cost": "fed_alpha_cdp_table_9",
    "curves": "priority_figures",
    "strongest": "strongest_noise",
    "leaks": "largest_noise_leak",
    "servers": "servers_spear",
    "accuracy": "fed_alpha_cdp_table_2",
    "accounting": "geyer_table_1_rounds",
    "frontier": "frontier_cancer",
}


def with_cell(lines: Lines, column: str, value: str, row: int = 1) -> Lines:
    at = lines[0].index(column)
    return [[value if i == at and place == row else c for i, c in enumerate(line)] for place, line in enumerate(lines)]


def text(lines: Lines) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


ANY: dict[str, Callable[[Lines], str]] = {
    "empty": lambda _: "",
    "blank": lambda _: "\n\n",
    "cut off": lambda lines: text(lines)[:-9],
    "a field less": lambda lines: text([*lines[:-1], lines[-1][:-1]]),
    "a field more": lambda lines: text([*lines[:-1], [*lines[-1], "1"]]),
    "a row twice": lambda lines: text([*lines, lines[-1]]),
    "a column twice": lambda lines: text([[*line, line[0]] for line in lines]),
    "a column without a name": lambda lines: text([[*line, ""] for line in lines]),
    "no cell": lambda lines: text(without(lines, "cell")),
    "an empty cell": lambda lines: text(with_cell(lines, "cell", "")),
    "a quote that is open": lambda lines: text(lines) + '"open\n',
    "no head": lambda lines: text(lines[1:]),
}

OF: list[tuple[str, str, str | None]] = [
    *[("claims", "asr", value) for value in ("x", "nan", "2", "-1", None, "1;0")],
    *[("claims", "asr_low", value) for value in ("x", "7")],
    *[("claims", column, None) for column in ("row", "point", "victims", "batch", "candidates", "limit")],
    *[("claims", column, "many") for column in ("victims", "batch", "rmse", "minutes")],
    *[("claims", column, "") for column in ("victims", "row", "point")],
    *[("points", column, "no") for column in ("iterations", "epsilon_valid", "trained_accuracy", "scale")],
    ("cost", "cost_ratio", "fast"),
    *[
        ("curves", "accuracies", value)
        for value in ("x", "[]", "[[]]", "[[1], [1, 1]]", "[[2]]", '["x"]', "", None, "3")
    ],
    *[("claims", "victims", value) for value in ("inf", "-1", "0", "1.5", "1e300")],
    *[("points", "verdict", value) for value in ("safe", "1", "Reconstructs")],
    *[("points", column, value) for column, value in (("asr_high", "0.5"), ("identified_high", "0"))],
    ("servers", "networks", "1e16"),
    *[("points", "point", value) for value in ("type-9", "type-1@x", "type-1@1@2")],
    *[("points", "rmse_low", value) for value in ("-3", "-0.1")],
    *[("points", "versions", value) for value in ("[]", "x", '"2"')],
    *[("points", "resilient", value) for value in ("2", "-1", "0.5")],
    *[("points", "diverged", value) for value in ("-1", "99", "0.5", "inf")],
    *[("points", "rmse", value) for value in ("-3", "-inf")],
    *[("points", "wall_minutes", value) for value in ("-5", "inf")],
    *[("points", "epsilon_valid", value) for value in ("-1", "-inf")],
    *[("servers", column, "inf") for column in ("networks", "seeds", "candidates")],
    *[("strongest", "asr_bound", value) for value in ("x", "1.5", "inf")],
    ("strongest", "identified", None),
    ("servers", "minutes", None),
    ("servers", "identified", "x"),
    ("accuracy", "trained_accuracy", "1.2"),
    ("accuracy", "seeds", "x"),
    *[
        ("accounting", column, None)
        for column in ("formula", "renyi", "stated", "gives", "reason", "reading", "claimed")
    ],
    *[("accounting", column, "x") for column in ("formula", "losses", "stated", "gives", "claimed")],
    *[("accounting", column, "") for column in ("stated", "gives", "reading")],
    *[("frontier", "asked", value) for value in ("x", "{}", "[]", "", None, '{"taps": []}')],
    *[("frontier", column, None) for column in ("row", "point", "defense", "factor", "noise", "left_out", "verdict")],
    *[("frontier", column, None) for column in ("sigma", "identify_p", "epsilon_tap", "asr_low", "wall_minutes")],
    *[("frontier", column, "x") for column in ("factor", "noise", "identified", "victims", "epsilon_valid")],
    *[("frontier", column, "") for column in ("factor", "point", "victims", "identify_victims", "candidates")],
    ("frontier", "trained_accuracy", "-3"),
    ("frontier", "identify_victims", "inf"),
]


def refuse(kind: str, damaged: str, monkeypatch: Any, capsys: Any, folder: Path) -> str:
    """Write the CSV, request its page, check that it is refused and the file is unchanged, and return the line."""
    name = PAGES[kind]
    (folder / f"{name}.csv").write_text(damaged, encoding="utf-8")
    given = ["frontier", "--dataset", "cancer"] if kind == "frontier" else ["reproduce", name]
    code, out, err = called(monkeypatch, capsys, *given, "--page", "--out", str(folder))
    assert (code, out) == (2, ""), err
    assert err.startswith("leakbench: ") and err.count("\n") == 1 and "bug" not in err
    assert f"{name}.csv: " in err
    assert [path.name for path in folder.iterdir()] == [f"{name}.csv"]
    assert (folder / f"{name}.csv").read_text(encoding="utf-8") == damaged
    return err


def sealed(kind: str) -> Lines:
    """Return the rows as they were written."""
    with (published_file(f"{PAGES[kind]}.csv")).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def kept(path: Path, kind: RowFormat) -> Any:
    return RowStore(path, kind).read()


def lines_of(kind: str) -> Lines:
    return written_by_hand(f"{PAGES[kind]}.csv")


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("damage", ANY)
def test_a_damaged_file(damage: str, kind: str, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    said = refuse(kind, ANY[damage](lines_of(kind)), monkeypatch, capsys, tmp_path)
    assert f"{PAGES[kind]}.csv: " in said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attack", None),
        ("batch", "x"),
        ("clients", 1.5),
        ("candidates", "x"),
        ("identify", []),
        ("seeds", "1"),
        ("taps", [1]),
    ],
)
def test_a_size_of_another_type(field: str, value: Any, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    """The sizes that all rows of a frontier share are those of a request."""
    lines = lines_of("frontier")
    asked = json.loads(lines[1][lines[0].index("asked")]) | {field: value}
    damaged = text(with_cell(lines, "asked", json.dumps(asked)))
    assert ": asked" in refuse("frontier", damaged, monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(
    "changed", ['{"victims": "x"}', '{"foo": 1}', '{"taps": 1}', '{"victims": 1.5}', '{"seed": null}']
)
def test_a_trial_that_no_command_measures(changed: str, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    """The column of a trial has numbers of a request."""
    head, *lines = lines_of("claims")
    damaged = text([[*head, "changed"], *([*line, changed] for line in lines)])
    assert "row 1: changed: got " in refuse("claims", damaged, monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(("kind", "column", "value"), OF)
def test_a_damaged_cell(
    kind: str, column: str, value: str | None, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    """Change a value in the first row, or remove the column."""
    lines = lines_of(kind)
    damaged = without(lines, column) if value is None else with_cell(lines, column, value)
    assert column in refuse(kind, text(damaged), monkeypatch, capsys, tmp_path)


def test_a_cell_changed_behind_a_checksum(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    """A number that fits its column, but not the row's checksum."""
    damaged = with_cell(sealed("accounting"), "gives", "12", row=3)
    assert "row 3: checksum: does not fit the rest" in refuse(
        "accounting", text(damaged), monkeypatch, capsys, tmp_path
    )


def test_a_damaged_file_is_not_resumed(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "geyer_table_1_rounds.csv").write_text("cell,hash\n100 clients,1\n", encoding="utf-8")
    code, out, err = called(monkeypatch, capsys, "reproduce", "geyer_table_1_rounds", "--out", str(tmp_path))
    assert (code, out) == (2, "") and "column 'claimed' is missing" in err


@pytest.mark.parametrize("name", ["NA", "1", "true", "null", "None", "1e5", "nan", "001", ""])
def test_names_are_read_back_unchanged(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"row,cell,point,hash\n{name},{name},type-2,{name}\n")
    if not name:
        with pytest.raises(InputError, match="row 1: row: got nothing"):
            kept(path, of_table("accuracy"))
        return
    [row] = kept(path, of_table("accuracy")).to_dict("records")
    assert (row["row"], row["cell"], row["hash"]) == (name, name, name)


def test_numbers_are_read_back_unchanged(tmp_path: Path) -> None:
    """Integers stay integers, others are the nearest double; empty stays empty, and infinite stays infinite."""
    path = tmp_path / "t.csv"
    path.write_text("row,cell,point,seeds,rmse,rmse_high\na,a,type-2,3,0.1,inf\nb,b,type-2,4,,0.30000000000000004\n")
    rows = kept(path, of_table("accuracy"))
    assert list(rows["seeds"]) == [3, 4] and rows["seeds"].dtype == int
    assert rows["rmse"].isna().tolist() == [False, True] and rows["rmse_high"].tolist() == [float("inf"), 0.1 + 0.2]
    rows.to_csv(tmp_path / "again.csv", index=False)
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", PAGES)
def test_published_rows_are_read(kind: str) -> None:
    if kind != "frontier":
        from leakbench.reproduce.published import read_any  # noqa: PLC0415

        assert len(kept(published_file(f"{PAGES[kind]}.csv"), read_any(PAGES[kind]).format))


def test_an_empty_table_has_its_first_columns(tmp_path: Path) -> None:
    assert list(kept(tmp_path / "t.csv", ACCOUNTING)) == ["cell", "hash"]


def test_two_commands_on_one_folder_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one command computes a claim, another one computes and writes the next claim."""
    from leakbench.core.progress import Reporter  # noqa: PLC0415
    from leakbench.reproduce import plans  # noqa: PLC0415
    from leakbench.reproduce.published import read_any  # noqa: PLC0415
    from leakbench.reproduce.reproduce import reproduce  # noqa: PLC0415
    from leakbench.study.study import Execution  # noqa: PLC0415

    here = Execution(tmp_path, None, Reporter(quiet=True))
    table, plain = read_any("geyer_table_1_rounds"), plans.computed
    rows = kept(published_file("geyer_table_1_rounds.csv"), ACCOUNTING)

    def known(claim: Any) -> Any:
        return rows[rows["cell"] == claim.name].to_dict("records")

    def meanwhile(claim: Any) -> Any:
        monkeypatch.setattr(plans, "computed", known)
        reproduce(table, "quick", "1000 clients", {}, tmp_path, here, lambda _: None)
        return known(claim)

    monkeypatch.setattr(plans, "computed", meanwhile)
    reproduce(table, "quick", "100 clients", {}, tmp_path, here, lambda _: None)
    monkeypatch.setattr(plans, "computed", plain)
    found = kept(tmp_path / "geyer_table_1_rounds.csv", ACCOUNTING)
    assert list(dict.fromkeys(found["cell"])) == ["100 clients", "1000 clients"]
    assert "1000 clients" in (tmp_path / "geyer_table_1_rounds.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("stale", [None, "old"])
def test_a_page_that_is_missing_or_old_is_written_again(
    stale: str | None, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    given = ["reproduce", "geyer_table_1_rounds", "--out", str(tmp_path), "--only", "100 clients"]
    assert called(monkeypatch, capsys, *given)[0] == 0
    page = tmp_path / "geyer_table_1_rounds.md"
    whole = page.read_bytes()
    page.unlink() if stale is None else page.write_text(stale)
    assert called(monkeypatch, capsys, *given)[0] == 0
    assert page.read_bytes() == whole


def test_the_csv_of_a_script_has_checksums_and_needs_no_list_of_text_columns(tmp_path: Path) -> None:
    """Text columns of any name are read back; a changed value and a cut line are refused, a CSV without checksums is read."""
    path = tmp_path / "rows.csv"
    store = RowStore(path, RowFormat(("wrapper",)), by="wrapper", typed=False)
    rows = store.replace("a", [{"wrapper": "a", "why": "none: no noise", "share": 0.25, "victims": 3}])
    rows = store.replace("b", [{"wrapper": "b", "why": None, "share": 1.0, "victims": 4}])
    written = path.read_text(encoding="utf-8")
    assert store.read().to_dict("list") | {"why": None} == rows.to_dict("list") | {"why": None}
    assert store.read()["why"].tolist()[0] == "none: no noise"
    path.write_text(written.replace("0.25", "0.75"), encoding="utf-8")
    with pytest.raises(InputError, match="row 1: checksum: does not fit the rest"):
        store.read()
    path.write_text(written[:-5], encoding="utf-8")
    with pytest.raises(InputError, match="its last line is cut off"):
        store.read()
    path.write_text("wrapper,share\na,0.5\n", encoding="utf-8")
    assert store.read().to_dict("list") == {"wrapper": ["a"], "share": [0.5]}
