"""A wrong table is refused in one line with exit code 2: its file, the field, the given value; nothing is written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import called

from leakbench.reproduce.file import body_of

CELLS: dict[str, Any] = {
    "title": "A small table",
    "text": "Of digits.",
    "given": {
        "dataset": "digits",
        "attack": "cpl",
        "victims": 2,
        "taps": ["type-2"],
        "train_rounds": 0,
        "iterations": 1,
    },
    "rows": [{"name": "a"}, {"name": "b"}],
}

FIELDS = {
    "title": (3, True, [1], {"one": 1}, None, ""),
    "text": (3, True, [1], {"one": 1}, None),
    "cite": (3, [1], None),
    "found": (3, [1], None),
    "columns": (3, [1], {"one": 1}, None, "claim"),
    "kind": (3, [1], {"one": 1}, None, "cell"),
    "given": (3, "word", [1], None),
    "quick": (3, "word", [1], None, {"seeds": 1.5}, {"seeds": 0}, {"victims": "many"}, {"victim": 1}),
    "apart": (3, "word", [1], None, {"one": "x"}, {"asr": 3}),
    "seeds": (1.5, "2", 0, -1, True, None, [1], 10**9),
    "most_seeds": (1.5, "2", 0, -1, True, None, [1], 10**9, 2),
    "pictures": (1.5, "2", -1, True, None, [1]),
    "repeats": (1.5, "2", -1, True, None, [1], 2),
    "window": (1.5, "2", -1, True, None, [1], 2),
    "curves": (3, "word", [1], None, {"one": 1}, {"one": "a"}, {"one": ["c"]}, {"one": [1]}),
    "orders": (3, "word", [1], None, {"one": 1}, [{"says": "x", "more": ["a"], "less": ["b"]}]),
    "rows": (3, "word", [1], None, {"one": 1}, [], [None]),
}

OF_A_ROW = {
    "name": (3, True, [1], {"one": 1}, None, ""),
    "given": (3, "word", [1], None),
    "each": (3, "word", [1], None, {"victims": 3}, {"victims": None}),
    "printed": (3, "word", [1], None, {"asr": 3}, {"asr": ["x"]}),
    "claim": (
        *(3, "word", [1], None, {"asr": "x"}, {"asr": None}, {"asr": True}, {"asr": [1]}, {"asr": float("nan")}),
        *({"asr": float("inf")}, {"assr": 1}, {"type-2": {"asr": "x"}}, {"type-2": {"assr": 1}}, {1: 1}),
        *({"type-1": {"asr": 1}}, {"type-2@3": {"asr": 1}}, {"typ-2": {"asr": 1}}, {"asr": {"asr": 1}}),
    ),
    "aim": ("x", True, [1], float("nan"), -1, 2),
    "apart": (3, "word", [1], None, {"one": "x"}, {"asr": 3}),
    "because": (3, [1], None),
    "seeds": (1.5, "2", 0, -1, True, None, [1]),
    "most_seeds": (1.5, "2", 0, -1, True, None, [1], 2),
    "quick": (True, 3, "word", [1], None, {"seeds": "2"}, {"victims": 1.5}),
}

OF_A_CELL = {
    "victims": (1.5, "2", True, None, [1], 0, -1),
    "candidates": (1.5, "2"),
    "taps": (3, None, ["type-3"], [1.5], []),
    "leak_rounds": (3, None, [1.5], [-1]),
    "dataset": (3, None, ["digits"], "digit"),
    "attack": (3, None, ["cpl"], "clp"),
    "defense": (3, None, ["none"], "nobody"),
    "model": (3, ["mlp"], "mlpp"),
    "protocol": (3, None, "papr"),
    "knows": (3, "all"),
    "learning_rate": ("fast", True, [1], float("nan"), 0),
    "noise_factor": ("loud", [1], float("inf"), float("nan"), 0, -1),
    "join_rounds": (1, "yes", None),
    "success": ("x", True, float("nan"), 2),
    "lpips_weights": (3, [1]),
    "seed": (1.5, "x", None, -1),
    "device": (3, None),
}


def wrong(of: dict[str, tuple[Any, ...]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in of.items() for value in values]


def refuse(body: Any, monkeypatch: Any, capsys: Any, folder: Path) -> str:
    """Give a table to `reproduce`, check the refusal, and return the line."""
    monkeypatch.chdir(folder)
    text = body if isinstance(body, str) else yaml.safe_dump(body)
    Path("mine.yaml").write_text(text, encoding="utf-8")
    code, out, err = called(monkeypatch, capsys, "reproduce", "mine.yaml", "--out", "out", "--runs", "runs")
    assert (code, out) == (2, ""), err
    assert err.startswith("leakbench: ") and err.count("\n") == 1 and "bug" not in err
    assert sorted(path.name for path in folder.iterdir()) == ["mine.yaml"]
    return err


@pytest.mark.parametrize(("name", "value"), wrong(FIELDS))
def test_a_field_of_a_table(name: str, value: Any, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    line = refuse({**CELLS, name: value}, monkeypatch, capsys, tmp_path)
    assert "mine.yaml: " in line and name in line


@pytest.mark.parametrize(("name", "value"), wrong(OF_A_ROW))
def test_a_field_of_a_row(name: str, value: Any, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    row = {"name": "a", name: value}
    line = refuse({**CELLS, "rows": [row]}, monkeypatch, capsys, tmp_path)
    assert "mine.yaml: " in line and "row" in line and name in line


@pytest.mark.parametrize(("name", "value"), wrong(OF_A_CELL))
def test_a_field_of_a_cell(name: str, value: Any, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    line = refuse({**CELLS, "given": {**CELLS["given"], name: value}}, monkeypatch, capsys, tmp_path)
    assert "row 'a': " in line and name.replace("_", "-") in line.replace("_", "-")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": []}, "rows: got none, expected at least one"),
        ({"repeats": 2}, "repeats: goes with columns: cost, got columns: claims"),
        ({"columns": "cost"}, "columns: cost goes with repeats"),
        ({"columns": "cost", "repeats": 2, "pictures": 1}, "pictures: a table with repeats"),
        ({"columns": "cost", "repeats": 2, "seeds": 2}, "seeds: a table with repeats"),
        ({"columns": "cost", "repeats": 2, "curves": {"x": ["a"]}}, "curves: a table with repeats"),
        ({"columns": "cost", "repeats": 2, "rows": [{"name": "a", "aim": 0.5}]}, "row 'a': aim"),
        (
            {"columns": "cost", "repeats": 2, "rows": [{"name": "a", "claim": {"type-2": {"cost_ratio": 2}}}]},
            "'type-2' is not a leakage point",
        ),
        ({"pictures": 1, "curves": {"x": ["a"]}}, "pictures, curves: both"),
        ({"pictures": 1, "given": {"pictures": False}}, "row 'a': pictures: got false, so the figure"),
        ({"orders": [{"says": "x", "more": ["a"], "less": ["b"]}]}, "orders: requires curves"),
        ({"window": 3}, "window: requires curves"),
        ({"most_seeds": 5}, "row 'a': seeds: got 1 with most_seeds, expected at least 3"),
        ({"seeds": 5, "most_seeds": 4}, "row 'a': most_seeds: got 4, expected at least seeds, 5"),
        (
            {
                "seeds": 3,
                "most_seeds": 5,
                "curves": {"x": ["a"]},
                "orders": [{"says": "x", "more": ["a"], "less": ["b"]}],
            },
            "most_seeds: orders compare rows seed by seed",
        ),
        ({"curves": {"x": ["a"]}, "orders": [{"says": 3, "more": ["a"], "less": ["b"]}]}, "orders: says"),
        ({"curves": {"x": ["a"]}, "orders": [{"says": "x", "more": [], "less": ["b"]}]}, "orders: more"),
        ({"curves": {"x": ["a"]}, "orders": [{"says": "x", "more": "a", "less": ["b"]}]}, "orders: more"),
        (
            {"curves": {"x": ["a"]}, "orders": [{"says": "x", "more": ["a"], "less": ["b"], "rounds": 3}]},
            "orders: rounds",
        ),
        (
            {"curves": {"x": ["a"]}, "orders": [{"says": "x", "more": ["a"], "less": ["b"], "rounds": "lst"}]},
            "orders: rounds: input should be 'all', 'first' or 'last', got 'lst'",
        ),
        ({"rows": [{"name": "{b}", "each": {"victims": [1]}}]}, "row '{b}': name: its braces hold no setting"),
        ({"rows": [{"name": "{", "each": {"victims": [1]}}]}, "row '{': name: its braces"),
        (
            {"rows": [{"name": "a", "claim": {"type-1": {"asr": 1}}}]},
            "'type-1' is not a leakage point of the cell; did",
        ),
    ],
)
def test_fields_that_contradict_each_other(
    changes: Any, says: str, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    assert f"mine.yaml: {says}" in refuse({**CELLS, **changes}, monkeypatch, capsys, tmp_path).replace(
        "mine.yaml: row 'a': claim: 'type", "mine.yaml: 'type"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title: a\ntitle: b\n", "not valid YAML: field 'title' appears twice"),
        ("title: a\ngiven: {victims: 1, victims: 2}\n", "not valid YAML: field 'victims' appears twice"),
        ("rows: [", "not valid YAML"),
        ("- a\n", "expected the fields of a table, got list"),
        ("", "expected the fields of a table, got NoneType"),
        ("when: 2024-13-45\n", "cannot be read"),
        ("{[1]: 2}\n", "not valid YAML"),
        ("a: &a [*a]\n", "not valid YAML: an alias inside its own definition"),
        ("1: 2\n", "unknown field 1"),
        ("text: a\n", "missing field 'title'"),
    ],
)
def test_files_that_are_not_tables(text: str, says: str, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    assert f"mine.yaml: {says}" in refuse(text, monkeypatch, capsys, tmp_path)


def test_a_table_that_is_not_text(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"title: \xff\n")
    code, _, err = called(monkeypatch, capsys, "reproduce", str(tmp_path / "mine.yaml"), "--page")
    assert code == 2 and "mine.yaml: cannot be read" in err


def test_fields_of_another_mapping_are_not_duplicates(tmp_path: Path) -> None:
    """`<<` merges fields, and fields written in the same mapping override them."""
    from leakbench.reproduce.table import read_table  # noqa: PLC0415

    text = (
        "title: t\ntext: x\ngiven: &g {dataset: digits, victims: 1}\nrows: [{name: a, given: {<<: *g, victims: 2}}]\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    assert read_table(str(tmp_path / "mine.yaml")).lines[0].given == {"dataset": "digits", "victims": 2}


def test_a_list_of_a_cell_may_be_words(tmp_path: Path) -> None:
    """Fields of a cell are read as those of a grid: lists as words with commas, thresholds and times as on the command line."""
    from leakbench.reproduce.table import read_table  # noqa: PLC0415

    words = {"taps": "type-2,type-1", "leak_rounds": [0], "success": "rmse<=0.1", "budget": "2m"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**CELLS, "given": words}))
    [request] = read_table(str(tmp_path / "mine.yaml")).lines[0].requests("full", {})
    assert (request.taps, request.leak_rounds) == (("type-2", "type-1"), ("0",))
    assert (request.success, request.budget) == (0.1, 120)


def accounting(name: str, path: tuple[Any, ...], value: Any) -> Any:
    """Return a table of accounting with one changed value."""
    body = copy.deepcopy(body_of(name)[1])
    at = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return body


ROUNDS, EPSILONS, GEYER, FLOWER = (
    *("fed_alpha_cdp_table_8_rounds", "fed_alpha_cdp_table_6"),
    *("geyer_table_1_rounds", "flower_epsilons"),
)
READING = ("rows", 0, "given", "readings")

ACCOUNTING: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    (ROUNDS, ("title",), (3, None)),
    (ROUNDS, ("counts",), (3, [1], None)),
    (ROUNDS, ("given",), (3, [1], None)),
    (ROUNDS, ("data",), (3, [1], None, {"mnist": 3})),
    (ROUNDS, ("data", "mnist", "federation"), (3, [1], None)),
    (ROUNDS, ("data", "mnist", "budget"), ("x", None, 0, -1, float("nan"))),
    (ROUNDS, ("data", "mnist", "losses"), (3, "x")),
    (ROUNDS, ("data", "mnist", "examples"), ("x", 0, 1.5)),
    (ROUNDS, ("data", "mnist", "budgte"), (1,)),
    (ROUNDS, ("given", "delta"), ("x", 2, 0)),
    (ROUNDS, ("given", "federation"), ({}, {"clients": 3})),
    (ROUNDS, ("given", "federation", "clients"), ("x", 1.5, 0, None)),
    (ROUNDS, ("given", "federation", "clinets"), (3,)),
    (ROUNDS, ("rows",), (3, [], [1], None)),
    (ROUNDS, ("rows", 0, "name"), (3, None, [1])),
    (ROUNDS, ("rows", 0, "printed"), ("x", None, [1], True, {}, {"mnits": 1}, {"mnist": "x"})),
    (ROUNDS, ("rows", 0, "printed", "mnist"), (1.5, 0, -1, 101, float("nan"), None)),
    (ROUNDS, ("rows", 0, "apart"), (3, [1])),
    (ROUNDS, READING, (3, [], [1], None)),
    (ROUNDS, (*READING, 0, "name"), (3, None)),
    (
        ROUNDS,
        (*READING, 0, "claim"),
        (3, {}, {"moments": 3}, {"momets": {}}, {"geyer": {}}, {"moments": {"unit": "x"}}),
    ),
    (ROUNDS, (*READING, 0, "stated"), (3, "yes")),
    (ROUNDS, (*READING, 0, "only"), (3, "mnist")),
    (ROUNDS, (*READING, 0, "because"), (3, "{x}", "{")),
    (EPSILONS, ("given", "within"), ("x", -1, None)),
    (GEYER, ("rows", 0, "given", "releases"), (3, [], [0], ["x"])),
    (GEYER, ("rows", 0, "given", "agent"), (3, None, {}, {"sigma": 1.12, "clients_per_round": 0})),
    (GEYER, ("rows", 0, "given", "communication"), ("x", 0, 10**9)),
    (FLOWER, ("given", "delta"), (3, None)),
    (FLOWER, ("data",), ({},)),
]

CASES = [(table, path, value) for table, path, values in ACCOUNTING for value in values]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "path", "value"), CASES)
def test_a_field_of_a_table_of_accounting(
    table: str, path: tuple[Any, ...], value: Any, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    line = refuse(accounting(table, path, value), monkeypatch, capsys, tmp_path)
    assert "mine.yaml: " in line
    named = [key for key in path if isinstance(key, str) and key not in ("data", "given", "rows", "mnist")]
    assert all(key in line for key in named[-1:]), line


def test_a_users_file_with_the_name_of_a_table_of_leakbench(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    """Its rows would replace published ones."""
    (tmp_path / "attacks").mkdir()
    own, rows = tmp_path / "autoleak.yaml", tmp_path / "attacks" / "autoleak.csv"
    own.write_text(yaml.safe_dump(CELLS), encoding="utf-8")
    rows.write_text("kept\n", encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, "reproduce", str(own), "--out", str(tmp_path))
    assert code == 2
    assert f"table: {str(own)!r} has the name of a table of leakbench, 'autoleak'; rename the file" in err
    assert rows.read_text(encoding="utf-8") == "kept\n"


def test_a_table_of_leakbench_may_be_given_by_its_path(monkeypatch: Any) -> None:
    path, body = body_of("autoleak")
    monkeypatch.chdir(path.parent)
    assert body_of("autoleak.yaml") == (path, body) == body_of(str(path))
