"""Behaviour versions: golden cells whose numbers may not change without a new one, and the rows that a new one makes stale."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from command_line import called
from golden_cells import CELLS, COMMAND, KEPT, cell_of, differences, numbers, unraised

from leakbench.attack.slots.distance import Cosine
from leakbench.cell import Request, resolve_cell
from leakbench.cell.behaviours import behaviours_of
from leakbench.cell.cell import identified
from leakbench.cli.reproduce import reproduce as command
from leakbench.core.behaviour import SHARED, raised, versions_of_parts
from leakbench.core.errors import AbsentError, InputError
from leakbench.core.part import part
from leakbench.core.progress import Reporter
from leakbench.core.recipe import content_of, describe
from leakbench.core.scripts import untagged
from leakbench.data.kept import KeptData
from leakbench.defense.clip import ClipLayers
from leakbench.frontier.frontier import published_points
from leakbench.leaderboard.card import sources_of
from leakbench.leaderboard.check import published_cards
from leakbench.models import MODELS
from leakbench.reproduce.page import page_of
from leakbench.reproduce.published import published, published_rows, read_any, rows_of
from leakbench.reproduce.table import Table
from leakbench.study.stale import Published, changes, checked, stale_names, versions_asked, versions_in
from tests.published_files import RESULTS, published_file

ROOT = Path(__file__).parents[2]
EMBEDDED = ("faces", "digits", "cancer")

GOLDEN: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))

HASHES = {
    ("none", "cpl", "faces"): "a01b46b450213d9a751a930d7a1e5ae23e266a9f58b493e3d14205ae387b0b3d",
    ("fed_sdp_client", "identification", "cancer"): "e756ef5447613fa9f4dba08e113155c4c0280f2da5779f5e91c0f549fd8413e8",
    ("dssgd", "analytic_fc", "digits"): "9ac41e450fcd79ac1e9190782f90740c4c7db1b9ae6d5d99e0119c37a706e229",
}
"""Identities with the first version of every behaviour, since prose is not part of them."""


@pytest.fixture(scope="module")
def rows() -> list[Published]:
    """Return all published rows whose data are included in leakbench, and those that need no data."""
    found = [
        *published_rows(RESULTS, None),
        *published_points(RESULTS, None),
        *published_cards(ROOT / "leaderboard", None),
    ]
    return [row for row in found if row.dataset in (*EMBEDDED, "")]


def states(rows: list[Published]) -> dict[str, list[Published]]:
    """Return {state: rows}, read offline."""
    found: dict[str, list[Published]] = {"current": [], "stale": [], "unknown": []}
    for each in checked(rows, KeptData(offline=True), Reporter(quiet=True)):
        found[each.state].append(each.published)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_numbers_change_only_with_a_behaviour_version(name: str, tmp_path: Path) -> None:
    assert name in GOLDEN, f"{name!r} is not in {KEPT.name}; write it by `{COMMAND}`"
    kept, cell = GOLDEN[name], cell_of(name)
    if cell.hash != kept["hash"]:
        now = raised(behaviours_of(cell))
        versions = f"behaviour versions {kept['behaviours'] or 'all 1'} then, {now or 'all 1'} now"
        pytest.fail(f"{name!r} has another identity ({versions}); write its numbers again by `{COMMAND}`")
    changed = unraised(kept, cell, numbers(cell, tmp_path))
    assert not changed, (
        f"{name!r}: numbers changed without a new behaviour version:\n  " + "\n  ".join(changed) + "\n"
        f"In play: {', '.join(sorted(behaviours_of(cell)))}.\n"
        "If the change is meant, raise the version of the piece that changed (`behaviour = 2` in a part's class, a number "
        f"of SHARED in leakbench/core/behaviour.py, `behaviour=2` in MODELS), then run `{COMMAND}`; `leakbench reproduce --stale` "
        "lists the published rows to measure again. Otherwise fix the change."
    )


def test_a_number_that_changes_is_found_unless_the_identity_changes_too() -> None:
    name = "noise_gaussian, lmmse"
    kept, cell = GOLDEN[name], cell_of(name)
    changed = {**kept["numbers"], "type-2: rmse": 2 * kept["numbers"]["type-2: rmse"]}
    assert [text.split()[:2] for text in unraised(kept, cell, changed)] == [["type-2:", "rmse"]]
    assert unraised({**kept, "hash": "0"}, cell, changed) == []
    assert list(differences({"type-2: asr": 0.5}, {"type-2: asr": 0.25})) == ["type-2: asr 0.25, kept 0.5"]
    assert list(differences({"epsilon valid": 1.0}, {"epsilon valid": 1.001})) and list(differences({"loss": 1.0}, {}))
    assert not list(differences({"type-2: rmse": 0.2}, {"type-2: rmse": 0.201}))


@pytest.mark.parametrize(("names", "identity"), HASHES.items())
def test_identities_of_the_first_versions_do_not_change(
    names: tuple[str, str, str], identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one network and the first version of every shared piece, an identity does not change between releases."""
    for piece in SHARED:
        monkeypatch.setitem(SHARED, piece, 1)
    defense, attack, dataset = names
    asked = Request(defense=defense, attack=attack, dataset=dataset, networks=1)
    assert resolve_cell(asked, None).hash == identity


def test_an_identity_depends_on_the_parts_of_a_recipe_and_not_on_its_prose() -> None:
    cell = resolve_cell(Request(defense="fed_sdp_client", attack="cpl", dataset="cancer"), None)
    words = {"title": "another title", "cite": "another citation", "note": "another note"}
    reworded = dataclasses.replace(
        cell,
        attack=dataclasses.replace(cell.attack, **words),
        defense=dataclasses.replace(cell.defense, **words, printed={}, printed_by=""),
    )
    assert identified(reworded).hash == cell.hash
    assert {each.content for each in sources_of(reworded).values()} == {
        each.content for each in sources_of(cell).values()
    }
    other = dataclasses.replace(cell.defense, client=cell.defense.client[:1])
    assert identified(dataclasses.replace(cell, defense=other)).hash != cell.hash
    assert content_of({"part": "A", "note": "x"}) == content_of({"part": "A"}) != content_of({"part": "B"})


@part
class First:
    size: int = 1


@part
class Second:
    behaviour = 2
    inner: First = First()


@part
class Third:
    behaviour: ClassVar[int] = 3
    inner: tuple[Second, ...] = (Second(),)


def test_a_part_declares_its_version_in_one_line() -> None:
    assert versions_of_parts(Third()) == {"First": 1, "Second": 2, "Third": 3}
    assert raised(versions_of_parts([First(), {"a": Second()}])) == {"Second": 2}
    assert describe(First()) == {"part": "First", "size": 1}
    assert describe(Second()) == {"part": "Second", "inner": describe(First()), "behaviour": 2}


@pytest.mark.parametrize("version", [0, True, "2", 1.5])
def test_a_version_that_is_not_an_integer_is_refused(version: Any) -> None:
    with pytest.raises(TypeError, match=r"Wrong: behaviour: got .*, expected a whole number >= 1"):
        part(type("Wrong", (), {"behaviour": version}))


def test_a_version_that_would_be_a_field_is_refused() -> None:
    with pytest.raises(TypeError, match="got a field, expected a line without annotation"):

        @part
        class Wrong:
            behaviour: int = 2


def test_every_shared_piece_enters_the_identity_of_the_cells_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"none": Request(attack="cpl", train_rounds=0), "fed_cdp": Request(defense="fed_cdp", attack="cpl")}
    before = {name: resolve_cell(request, None) for name, request in asked.items()}
    # The closed forms are of `autoleak` on vision transformers.
    always = {"local steps", "closed forms"}
    unused = {"none": {"training", "accounting", "bounds"} | always, "fed_cdp": always}
    for piece in list(SHARED):
        with monkeypatch.context() as patch:
            patch.setitem(SHARED, piece, 9)
            for name, request in asked.items():
                cell = resolve_cell(request, None)
                assert (cell.hash == before[name].hash) == (piece in unused[name]), (name, piece)
                now = raised(behaviours_of(before[name])) | ({} if piece in unused[name] else {piece: 9})
                assert behaviours_of(cell).get(piece) == (None if piece in unused[name] else 9)
                assert raised(behaviours_of(cell)) | now == raised(behaviours_of(cell))


def test_cells_whose_data_are_needed_for_a_version_are_named() -> None:
    """Targets are computed from examples, at any size."""
    for size in (None, 16):
        with pytest.raises(AbsentError, match="dataset 'digits'"):
            versions_asked([Request(dataset="digits", targets="mask", size=size, train_rounds=0)])


def test_the_version_of_a_partition_is_known_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(attack="cpl", train_rounds=0)
    before = resolve_cell(request, None)
    piece = type(before.recipe.federation.partition)
    monkeypatch.setattr(piece, "behaviour", 2, raising=False)
    assert resolve_cell(request, None).hash != before.hash
    assert versions_asked([request])[piece.__name__] == behaviours_of(before)[piece.__name__] == 2


def test_versions_are_those_of_the_pieces_that_a_cell_uses() -> None:
    """The network that is trained, the rankings of several victims, the fast engine, and the attributes of a table."""

    def used(attack: str = "cpl", **asked: Any) -> set[str]:
        return set(behaviours_of(resolve_cell(Request(attack=attack, **asked), None)))

    plain = used(dataset="digits", train_rounds=0, victims=2)
    assert {"rankings", "engine", "Candidates", "Classes", "network lenet_cpl"} <= plain
    assert not {"training", "network mlp", "Attributes", "accounting", "bounds"} & plain
    assert used(dataset="digits", train_rounds=1, victims=2) - plain == {"training", "network mlp"}
    assert plain - used(dataset="digits", train_rounds=0, victims=1) == {"rankings", "batches"}
    assert plain - used(dataset="digits", train_rounds=0, victims=2, leak_batch=1) == {"batches"}
    assert plain - used(dataset="digits", train_rounds=0, victims=2, engine="reference") == {"engine"}
    assert "Attributes" in used(dataset="cancer", train_rounds=0)
    live = {"dataset": "digits", "train_rounds": 1, "victims": 2, "protocol": "live", "leak_batch": 1}
    several = used(**live, local_iterations=3, taps=("type-1",))
    assert several - used(**live, local_iterations=1, taps=("type-1",)) == {"local steps", "batches"}
    assert "local steps" not in used(**live, local_iterations=3, taps=("type-2",))
    assert "local steps" not in used(**live, local_iterations=3, taps=("type-1",), client_optimizer="adam")
    assert "local steps" not in used("imprint", **live, local_iterations=3, taps=("type-1",))  # A malicious server.
    assert "local steps" not in used(**(live | {"victims": 1}), local_iterations=3, taps=("type-1",))


def test_a_network_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(attack="cpl", train_rounds=0)
    before = resolve_cell(request, None).hash
    monkeypatch.setitem(MODELS, "cnn", dataclasses.replace(MODELS["cnn"], behaviour=2))
    assert resolve_cell(request, None).hash == before  # It is not trained.
    monkeypatch.setitem(MODELS, "lenet_cpl", dataclasses.replace(MODELS["lenet_cpl"], behaviour=2))
    assert resolve_cell(request, None).hash != before


@pytest.mark.slow
def test_no_published_row_is_stale_unless_its_page_names_it(rows: list[Published]) -> None:
    assert len(rows) >= 200
    found = states(rows)
    assert not found["unknown"]
    for row in found["stale"]:
        page = published_file(f"{row.page}.md").read_text(encoding="utf-8")
        assert "another behaviour" in page or "changed since the measurement" in page or "has changed since" in page, (
            row
        )
        name = row.row.partition(",")[0] if row.page == "leaderboard" else row.row
        assert untagged(name) in page, row


def uses(row: Published, text: str) -> bool:
    """Say whether the defense of a row has a part, by the text of its recipe."""
    name = row.row.partition("/")[2].partition(",")[0] if row.page == "leaderboard" else row.row.partition(",")[0]
    return text in (ROOT / "defenses" / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_part_makes_exactly_the_rows_that_use_it_stale(
    rows: list[Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frontiers and cards name their rows by defense; the recipes show which of them clip layer by layer."""
    of_defenses = [row for row in rows if row.page == "leaderboard" or row.page.startswith("frontier")]
    monkeypatch.setattr(ClipLayers, "behaviour", 9, raising=False)
    found = checked(of_defenses, KeptData(offline=True), Reporter(quiet=True))
    stale = {each.published.row for each in found if "ClipLayers (then 1, today 9)" in each.reason}
    assert stale == {row.row for row in of_defenses if uses(row, "{clip_layers:")}
    assert 0 < len(stale) < len(of_defenses)
    assert all(each.state == "stale" for each in found if each.published.row in stale)


@pytest.mark.slow
def test_the_accounting_makes_printed_epsilons_and_noisy_rows_stale(
    rows: list[Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [row for row in rows if not row.dataset or row.page == "frontier_cancer"]
    monkeypatch.setitem(SHARED, "accounting", 9)
    found = checked(some, KeptData(offline=True), Reporter(quiet=True))
    now = {
        (each.published.page, each.published.row)
        for each in found
        if re.search(r"accounting \(.*today 9\)", each.reason)
    }
    assert {(row.page, row.row) for row in rows if not row.dataset} <= now
    assert {row for page, row in now if page == "frontier_cancer"} == {row.row for row in some if row.dataset} - {
        "none",
        "precode",
    }


@pytest.mark.slow
def test_a_page_names_its_stale_rows_without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table, kept = read_any("autoleak"), pd.read_csv(published_file("autoleak.csv"))
    assert isinstance(table, Table)
    monkeypatch.setattr(Cosine, "behaviour", 3, raising=False)
    lines = [line for line in page_of(table, kept).splitlines() if "Cosine (then 1, today 3)" in line]
    assert all(line.startswith("- measured with another behaviour of ") for line in lines)
    named = {name for line in lines for name in line.rpartition("): ")[2].removesuffix(".").split("; ")}
    using = {
        name for name in kept["attack"] if "cosine" in (ROOT / "attacks" / f"{name}.yaml").read_text(encoding="utf-8")
    }
    assert named == set(kept.loc[kept["attack"].isin(using), "cell"]) and using == {"autoleak"}
    today = json.dumps({"Cosine": 3, "rankings": 2, "accounting": 2})
    assert "Cosine (then" not in page_of(table, kept.assign(behaviours=today))
    found = {
        each.published.row: each
        for each in checked(published(table, RESULTS, None), KeptData(offline=True), Reporter(quiet=True))
    }
    assert {name for name, each in found.items() if "Cosine (then 1, today 3)" in each.reason} == named


TINY = """\
title: Tiny
given: {dataset: digits, attack: lmmse, victims: 2, taps: [type-2], train_rounds: 0, candidates: 10}
rows:
  - {name: noise, given: {defense: noise_gaussian}}
  - {name: none, given: {attack: analytic_fc, leak_model: mlp_sigmoid}}
"""


@pytest.fixture
def leakbench_reproduce(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs `leakbench reproduce` on a tiny table in a separate folder, and returns its output."""
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")

    def run(*words: str, code: int = 0) -> str:
        given = [
            str(tmp_path / "tiny.yaml"),
            "--out",
            str(tmp_path),
            "--runs",
            str(tmp_path / "runs"),
            *words,
        ]
        result = CliRunner().invoke(command, given)
        assert result.exit_code == code, result.output
        return result.stdout

    return run


@pytest.mark.slow
def test_stale_rows_of_a_table_are_measured_again_and_no_others(
    leakbench_reproduce: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leakbench_reproduce()
    first = pd.read_csv(tmp_path / "tiny.csv").set_index("cell")
    assert "Stale" not in (tmp_path / "tiny.md").read_text()
    assert "measured again: 0 of 2 rows" in leakbench_reproduce("--stale")

    monkeypatch.setattr("leakbench.defense.noise.GaussianNoise.behaviour", 2, raising=False)
    leakbench_reproduce("--page")
    text = (tmp_path / "tiny.md").read_text()
    assert "- measured with another behaviour of GaussianNoise (then 1, today 2): noise.\n" in text
    told = leakbench_reproduce("--stale")
    assert "noise: measured with another behaviour of GaussianNoise (then 1, today 2)" in told
    assert "measured again: 1 of 2 rows" in told
    again = pd.read_csv(tmp_path / "tiny.csv").set_index("cell")
    assert versions_in(again.loc["noise"].to_dict()) == versions_in(first.loc["noise"].to_dict()) | {"GaussianNoise": 2}
    assert again.loc["noise", "hash"] != first.loc["noise", "hash"]
    assert again.loc["none", "hash"] == first.loc["none", "hash"]
    assert "Stale" not in (tmp_path / "tiny.md").read_text()
    assert "measured again: 0 of 2 rows" in leakbench_reproduce("--stale")


@pytest.mark.slow
def test_stale_rows_without_data_are_counted_with_the_fetch_command(
    leakbench_reproduce: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If a change of behaviour makes such a row stale or its state is unknown, nothing is measured, and the exit code is 1."""
    leakbench_reproduce()
    before = (tmp_path / "tiny.csv").read_text()

    def absent(*_: Any, **__: Any) -> Any:
        raise AbsentError("not here")

    monkeypatch.setattr("leakbench.data.kept.load_dataset", absent)
    monkeypatch.setattr("leakbench.defense.noise.GaussianNoise.behaviour", 2, raising=False)
    told = leakbench_reproduce("--stale", code=1)
    assert "none: data not on this machine: digits" in told
    assert "noise: measured with another behaviour of GaussianNoise (then 1, today 2)" in told
    assert "measured again: 0 of 2 rows" in told
    assert (
        "not measured: 2 rows: the data of digits are not on this machine; `leakbench data fetch digits` brings them, "
        "`--data-dir FOLDER` names their folder"
    ) in told
    assert (tmp_path / "tiny.csv").read_text() == before
    given = ("reproduce", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path), "--stale")
    assert called(monkeypatch, capsys, *given)[0] == 1


def test_a_data_set_recipe_is_named_by_its_path_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "mine.yaml").write_text(
        "title: Mine\ngiven: {dataset: ../recipes/own.yaml, attack: lmmse}\nrows: [{name: none}]\n", encoding="utf-8"
    )
    table = read_any(str(tmp_path / "tables" / "mine.yaml"))
    [row] = rows_of(table, pd.DataFrame([{"cell": "none", "scale": "full"}]))
    assert row.data == "recipes/own.yaml"
    monkeypatch.chdir(tmp_path / "tables")
    assert row.data == str(tmp_path / "recipes" / "own.yaml")


def test_rows_of_a_recipe_without_sizes_are_unknown_without_data_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = yaml.safe_load((ROOT / "datasets" / "mnist.yaml").read_text(encoding="utf-8"))
    del recipe["sizes"]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\ngiven: {dataset: own.yaml, attack: lmmse}\nrows: [{name: none}]\n", encoding="utf-8"
    )
    table = read_any(str(tmp_path / "mine.yaml"))
    fetches = list[Any]()
    monkeypatch.setattr("leakbench.data.find.fetch_origin", lambda *_: fetches.append(1))
    [row] = rows_of(table, pd.DataFrame([{"cell": "none", "scale": "full", "hash": "0" * 12}]))
    [found] = checked([row], KeptData(offline=True), Reporter(quiet=True))
    assert (found.state, found.absent) == ("unknown", True)
    assert stale_names([row]) == {}
    assert not fetches


def test_lower_versions_are_changes_too() -> None:
    assert changes({"A": 2}, {"A": 1, "B": 1}) == ["A (then 2, today 1)"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--stale", "--scale", "full"), "stale: got --again, --set, --page or --scale as well"),
        (("--stale", "--again"), "stale: got --again"),
        (("--stale", "--only", "x"), "only: with --stale, expected a TABLE"),
        (("--stale", "--out", "nowhere"), "stale: no published rows in 'nowhere'"),
        (
            ("frontier_cancer", "--stale", "--out", str(RESULTS)),
            "table: got 'frontier_cancer', expected a table; it is a frontier, which `leakbench frontier .*` measures again",
        ),
    ],
)
def test_wrong_input_is_one_line(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CliRunner().invoke(command, words, catch_exceptions=False)
