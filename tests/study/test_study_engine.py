"""Tables, frontiers and cards measured by an engine: the rows of one process, each cell once, and errors in one line."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from leaderboard_cards import small_card

from leakbench.cell import Request
from leakbench.cli.options import engine_from, places_from
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.core.provenance import versions
from leakbench.frontier.frontier import frontier
from leakbench.leaderboard.make import make_card
from leakbench.reproduce.reproduce import reproduce
from leakbench.reproduce.table import Table, read_table
from leakbench.study.engines import tasks_by
from leakbench.study.process import ProcessEngine
from leakbench.study.rows import on_cpu
from leakbench.study.study import Execution, Job, versions_of
from leakbench.study.task import Task, TaskOutcome
from leakbench.study.work import measure

TABLE = """
title: Signs on digits
given: {dataset: digits, attack: identification, victims: 4, networks: 1, taps: [type-2], train_rounds: 0, candidates: 10}
rows:
  - {name: none, given: {defense: none}}
  - {name: sign, given: {defense: sign}}
  - {name: signs again, given: {defense: sign}}
"""

TIMES = ("wall_minutes", "minutes")


@dataclass(frozen=True)
class Here:
    """An engine whose only worker is this process; it ends tasks in reverse order and fails those of one defense."""

    threads: int = 1
    gpus_per_cell: float = 0.0
    fails: str = ""
    seen: list[Task] = field(default_factory=list)

    def __call__(self, tasks: Iterable[Task]) -> Generator[TaskOutcome, None, None]:
        for task in reversed(list(tasks)):
            self.seen.append(task)
            failed = TaskOutcome(task.key, "failed", error="no such luck")
            yield failed if task.request.defense == self.fails else measure(task)


def table(folder: Path) -> Table:
    path = folder / "signs.yaml"
    path.write_text(TABLE, encoding="utf-8")
    return read_table(str(path))


def rows_of(asked: Table, folder: Path, engine: Any) -> tuple[list[str], pd.DataFrame]:
    """Return (names of the rows in the order of their end, all rows)."""
    said: list[str] = []
    rows = reproduce(
        *(asked, "full", "", {}, folder / "out"),
        Execution(folder / "runs", None, Reporter(quiet=True), engine),
        lambda row: said.append(row["row"]),
    )
    return said, rows.drop(columns=[name for name in TIMES if name in rows])


@pytest.mark.slow
def test_an_engine_gives_the_rows_of_one_process_and_measures_a_shared_cell_once(tmp_path: Path) -> None:
    asked, here = table(tmp_path), Here()
    alone = rows_of(asked, tmp_path / "alone", None)
    said, rows = rows_of(asked, tmp_path / "engine", here)
    assert alone[0] == ["none", "sign", "signs again"] and sorted(said) == sorted(alone[0]) and said[-1] == "none"
    pd.testing.assert_frame_equal(rows, alone[1])
    assert [task.request.defense for task in here.seen] == ["sign", "none"]
    assert all(task.runs.is_absolute() and "leakbench reproduce" in task.command for task in here.seen)
    # Finished cells are not handed out again.
    assert rows_of(asked, tmp_path / "engine", here)[0] == [] and len(here.seen) == 2


def test_rows_that_fail_are_named_and_the_others_are_kept(tmp_path: Path) -> None:
    asked = table(tmp_path)
    with pytest.raises(InputError, match=r"^2 of 3 rows failed; sign.*: no such luck \(what is measured is kept"):
        rows_of(asked, tmp_path, Here(fails="sign"))
    rows = pd.read_csv(tmp_path / "out" / "signs.csv")
    assert list(rows["row"]) == ["none"] and json.loads(rows["versions"][0]) == versions()
    again = Here()
    assert sorted(rows_of(asked, tmp_path, again)[0]) == ["sign", "signs again"] and len(again.seen) == 1


def test_a_cell_counts_as_done_when_its_row_is_in_the_csv(tmp_path: Path) -> None:
    """The progress of an engine does not run ahead of the rows."""
    written, csv = list[tuple[str, int]](), tmp_path / "out" / "signs.csv"

    class Stream(io.StringIO):
        def write(self, line: str) -> int:
            written.append((line, len(pd.read_csv(csv)) if csv.exists() else 0))
            return len(line)

    execution = Execution(tmp_path / "runs", None, Reporter(stream=Stream(), every=0.0), Here())
    reproduce(table(tmp_path), "full", "", {}, tmp_path / "out", execution, lambda _: None)
    counts = [(line[: len("cells: 0 of 2")], rows) for line, rows in written if line.startswith("cells: ")]
    assert counts == [("cells: 0 of 2", 0), ("cells: 1 of 2", 2), ("cells: 2 of 2", 3)]


@pytest.mark.slow
def test_a_frontier_and_a_card_are_measured_by_an_engine(tmp_path: Path) -> None:
    """The engine measures the requested cells: no other folder appears."""
    request = Request(dataset="cancer", knows="defense", taps=("type-1",), attack="cpl", victims=2, train_rounds=1)
    request = dataclasses.replace(request, clients=4, clients_per_round=2, leak_batch=1, candidates=5, iterations=2)
    found = []
    for folder, engine in ((tmp_path / "alone", None), (tmp_path / "engine", Here())):
        rows = frontier(
            *(request, ("noise_gaussian",), (0.5,), 2, 9, folder, "leakbench frontier"),
            *(Execution(folder / "runs", None, Reporter(quiet=True), engine), lambda _: None, True),
        )
        found.append((rows.drop(columns=list(TIMES)), sorted(path.name for path in (folder / "runs").iterdir())))
    pd.testing.assert_frame_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    card = small_card(tmp_path / "cards")
    here = Here()
    by = Execution(tmp_path / "by engine", None, Reporter(quiet=True), here)
    same = make_card(card.asked, "sign", "digits", "lmmse", by)
    assert (same.hash, same.cells) == (card.hash, card.cells) and len(here.seen) == len(card.cells)
    assert len(list((tmp_path / "by engine").iterdir())) == len(list((tmp_path / "cards").iterdir()))


def test_a_user_recipe_reaches_a_worker_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Here(fails="nothing")
    asked = Request(defense="mine.yaml", dataset="digits", lpips_weights=Path("weights"))
    job = Job("row", list, (asked,), "leakbench")
    with pytest.raises(InputError, match="1 of 1 rows failed"):
        list(Execution(tmp_path, None, Reporter(quiet=True), here)([job]))
    assert here.seen[0].request.defense == str(tmp_path / "mine.yaml")
    assert here.seen[0].request.lpips_weights == tmp_path / "weights"


def test_a_cell_for_a_gpu_needs_an_engine_with_one(tmp_path: Path) -> None:
    job = Job("row", list, (Request(device="cuda"),), "leakbench")
    with pytest.raises(InputError, match="cell 'row': device: got 'cuda'; add --gpus-per-cell"):
        list(Execution(tmp_path, None, Reporter(quiet=True), Here())([job]))


def test_an_engine_with_gpus_places_every_cell_on_one(tmp_path: Path) -> None:
    """Tables, frontiers and cards say nothing about devices; their rows are then made of the finished cells here."""

    @dataclass
    class OnGpus:
        threads: int = 1
        gpus_per_cell: float = 0.5
        seen: list[Task] = field(default_factory=list)

        def __call__(self, tasks: Iterable[Task]) -> Generator[TaskOutcome, None, None]:
            for task in tasks:
                self.seen.append(task)
                yield TaskOutcome(task.key, "done")

    engine, asked = OnGpus(), (Request(defense="none"), Request(defense="sign"))
    job = Job("row", lambda: "its rows", asked, "leakbench")
    assert list(Execution(tmp_path, None, Reporter(quiet=True), engine)([job])) == [(job, "its rows")]
    assert [task.request for task in engine.seen] == [dataclasses.replace(each, device="cuda") for each in asked]


def test_a_cell_with_a_device_of_its_own_keeps_it(tmp_path: Path) -> None:
    """An engine without a GPU for such a cell is refused, and a cell of a grid for the CPU by an engine with GPUs."""
    job = Job("row", list, (Request(device="cuda:1"),), "leakbench")
    with pytest.raises(InputError, match="add --gpus-per-cell"):
        list(Execution(tmp_path, None, Reporter(quiet=True), Here())([job]))
    engine = Here(fails="none", gpus_per_cell=0.5)
    with pytest.raises(InputError, match="1 of 1 rows failed"):
        list(
            Execution(tmp_path, None, Reporter(quiet=True), engine)(
                [Job("row", list, (Request(device="cuda:1", defense="none"),), "leakbench")]
            )
        )
    assert [task.request.device for task in engine.seen] == ["cuda:1"]
    with pytest.raises(InputError, match=r"^gpus-per-cell: got 0.5, but cell 'a' computes on 'cpu'"):
        tasks_by(engine, [("a", Request(device="cpu"))], tmp_path, None)


def test_rows_of_a_cpu_are_those_whose_versions_name_no_device() -> None:
    """Also of tables without rows, without the column, and with a column of nothing."""
    rows = pd.DataFrame({"cell": ["a", "b", "c"], "versions": ['{"torch": "2"}', '{"device": "cuda (x)"}', math.nan]})
    assert on_cpu(rows)["cell"].tolist() == ["a", "c"]
    for few in (rows[:0], rows[["cell"]], rows.assign(versions=math.nan), rows[:0].astype({"versions": float})):
        pd.testing.assert_frame_equal(on_cpu(few), few)


def test_the_versions_of_a_row_are_those_of_its_runs() -> None:
    """They name a GPU, and each version if a run was continued with another."""
    old, new = {**versions(), "torch": "2.11.0"}, {**versions(), "torch": "2.14.1"}
    on_gpu, on_cpu = {**old, "device": "cuda (NVIDIA H100)"}, {**new, "device": "cpu"}
    plain = json.loads(versions_of([{"versions": new, "computed": [on_cpu]}]))
    assert plain == new
    found = json.loads(versions_of([{"versions": old, "computed": [on_gpu, on_cpu]}, {"versions": new}]))
    assert found == {**new, "torch": "2.11.0, 2.14.1", "device": "cuda (NVIDIA H100), cpu"}
    assert json.loads(versions_of([{"versions": found}, {"versions": old}])) == found


@pytest.mark.parametrize("name", ["flower_epsilons", "fed_alpha_cdp_table_9"])
def test_requests_that_no_engine_can_measure_are_refused(name: str, tmp_path: Path) -> None:
    from leakbench.reproduce.published import read_any  # noqa: PLC0415
    from leakbench.reproduce.reproduce import check_engine  # noqa: PLC0415

    check_engine(read_any(name), None)
    with pytest.raises(InputError, match=r"^engine: .*leave --engine out"):
        check_engine(read_any(name), ProcessEngine(1))


def test_places_need_an_engine(tmp_path: Path) -> None:
    none = {"address": None, "workers": None, "threads": None, "gpus_per_cell": 0.0}
    assert places_from(None, (), **none) is None and engine_from(tmp_path, None, None) is None
    for given, option in (
        ({"workers": 2}, "workers"),
        ({"workers": 0}, "workers"),
        ({"threads": 2}, "threads-per-cell"),
        ({"address": "a:1"}, "address"),
    ):
        with pytest.raises(InputError, match=f"^{option}: got it without --engine"):
            places_from(None, (), **none | given)
    with pytest.raises(InputError, match=r"^slurm: got it without --engine"):
        places_from(None, ("partition=gpu",), **none)
    with pytest.raises(InputError, match=r"^engine: got 'proces'; did you mean 'process'"):
        places_from("proces", (), **none)
    found = engine_from(tmp_path, "process", places_from("process", (), **none | {"workers": 2, "threads": 1}))
    assert isinstance(found, ProcessEngine) and (found.workers, found.threads) == (2, 1)
