"""Sweeps: exactly the missing cells are measured, merged like single runs; errors are records; wrong input is one line."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from command_line import called
from resealed import reseal

from leakbench.cell import identity
from leakbench.cell.budget import prepare
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.core.request import request_of
from leakbench.execute import execute
from leakbench.storage.store import open_run
from leakbench.study import engines
from leakbench.study.grid import read_grid
from leakbench.study.journal import open_journal
from leakbench.study.sweep import Swept, sweep
from leakbench.study.sweep import whole as there
from leakbench.study.task import Task, TaskOutcome
from leakbench.study.work import measure

pytestmark = pytest.mark.usefixtures("with_pages")

HOME = Path(__file__).parents[2]

GIVEN = {
    "dataset": "digits",
    "attack": "cpl",
    "iterations": 1,
    "victims": 2,
    "candidates": 2,
    "taps": ["type-2"],
    "train_rounds": 1,
    "clients": 2,
    "clients_per_round": 2,
    "local_iterations": 1,
}

EACH = {"defense": ["none", "fed_cdp"], "seed": [0, 1]}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_grid(path: Path, **fields: object) -> Path:
    path.write_text(yaml.safe_dump({"given": GIVEN, **fields}), encoding="utf-8")
    return path


class Here:
    """An engine in this process that records its tasks, and may crash before a task."""

    def __init__(self, falls_at: int | None = None, backwards: bool = False) -> None:
        self.handed: list[str] = []
        self.falls_at, self.backwards = falls_at, backwards

    def __call__(self, tasks: Iterable[Task]) -> Iterator[TaskOutcome]:
        listed = list(tasks)
        for task in reversed(listed) if self.backwards else listed:
            if len(self.handed) == self.falls_at:
                raise KeyboardInterrupt
            self.handed.append(f"{task.request.defense} {task.request.seed}")
            yield measure(task)


def swept(folder: Path, engine: Here, grid: Path | None = None, retry_failed: bool = False) -> Swept:
    """Sweep in a folder, by default the four cells."""
    if grid is None:
        grid = write_grid(folder / "grid.yaml", each=EACH)
    read, runs = read_grid(grid), folder / "runs"
    say = Reporter(quiet=True)
    return sweep(read, engine, lambda c: Task(c.key, c.request, runs), runs, folder / "out", say, retry_failed)


def digests(folder: Path) -> dict[str, str]:
    """Return the checksums of the files that do not depend on the clock."""
    return {n: hashlib.sha256((folder / f"out/{n}.parquet").read_bytes()).hexdigest() for n in ("rows", "cells")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_thread) -> Path:
    """Return the folder of an uninterrupted sweep of four cells."""
    folder = tmp_path_factory.mktemp("whole")
    done = swept(folder, Here())
    assert (done.cells, done.there, done.run, done.found, done.failed) == (4, 0, 4, 0, 0)
    return folder


@pytest.mark.slow
def test_an_interrupted_sweep_measures_exactly_the_missing_cells(whole, tmp_path):
    cut, rest, third = Here(falls_at=2), Here(backwards=True), Here()
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, cut)
    assert not (tmp_path / "out/rows.parquet").exists()
    done = swept(tmp_path, rest)
    assert (cut.handed, rest.handed) == (["none 0", "none 1"], ["fed_cdp 1", "fed_cdp 0"])
    assert (done.there, done.run) == (2, 2)
    assert swept(tmp_path, third).there == 4
    assert third.handed == []
    assert digests(tmp_path) == digests(whole)


@pytest.mark.slow
def test_finished_cells_without_a_journal_line_are_not_measured_again(whole, tmp_path):
    """A driver may be killed between a cell's end and its line, or in the middle of a line."""
    (tmp_path / "runs").symlink_to(whole / "runs")
    before = {p: p.stat().st_mtime_ns for p in (whole / "runs").rglob("*.parquet")}
    lines = (whole / "out/cells.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/cells.jsonl").write_bytes(lines[0] + lines[1][:-20])
    done = swept(tmp_path, Here())
    assert (done.there, done.run, done.found) == (1, 0, 3)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert digests(tmp_path) == digests(whole)
    assert swept(tmp_path, Here()).there == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "left"),
    [
        *[(name, left) for name in ("rows.parquet", "manifest.json") for left in (0.9, None)],
        ("rows.parquet", 0),
        ("rounds.parquet", 0.5),
        ("reconstructions.safetensors", None),
        ("model.safetensors", 0),
    ],
)
def test_a_damaged_run_is_measured_again(name, left, tmp_path, capsys):
    grid = write_grid(tmp_path / "grid.yaml", each={"seed": [0, 1]})
    swept(tmp_path, Here(), grid)
    first = digests(tmp_path)
    path = sorted((tmp_path / "runs").glob(f"*/{name}"))[0]
    (path.parent / "report.html").write_text("figures of the damaged run")
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    again = Here()
    found = swept(tmp_path, again, grid)
    assert (found.run, found.failed) == (1, 0)
    assert len(again.handed) == 1
    assert f"{path}: " in capsys.readouterr().err
    assert digests(tmp_path) == first
    # Files without a manifest are not kept.
    assert (path.parent / "report.html").exists() == (name != "manifest.json")


WRONG = [
    ("kind", ["done"]),
    ("error", 3),
    *[("seconds", value) for value in ("1", 10**400)],
    *[("tries", value) for value in (0, 10**400)],
    ("fresh", 1),
    ("run", "../elsewhere"),
    ("hash", None),
    ("key", 1),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_an_unknown_line_of_the_journal_is_skipped(name, value, whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "out" / "cells.jsonl"
    first, *others = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    wrong = {**json.loads(first), name: value}
    wrong.pop("checksum", None)
    journal.write_text(json.dumps(wrong) + "\n" + "".join(others), encoding="utf-8")
    before = digests(whole)
    found = swept(tmp_path, Here())
    assert (found.there, found.run, found.found, found.failed) == (3, 0, 1, 0)
    assert digests(tmp_path) == before


def test_a_damaged_line_removes_recorded_failures(tmp_path):
    """The line may belong to the same cell, which was measured since then."""
    path = tmp_path / "cells.jsonl"
    with open_journal(path) as journal:
        journal.append(TaskOutcome("a", "failed", error="no such data"))
        journal.append(TaskOutcome("b", "done", "0" * 64, "b"))
        journal.append(TaskOutcome("a", "done", "1" * 64, "a"))
    with open_journal(path) as journal:
        assert {key: outcome.kind for key, outcome in journal.known.items()} == {"a": "done", "b": "done"}
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"1111', b'"1112'))
    with open_journal(path) as journal:
        assert {key: outcome.kind for key, outcome in journal.known.items()} == {"b": "done"}


def test_a_line_that_the_disk_refused_is_removed(tmp_path):
    path = tmp_path / "cells.jsonl"
    with open_journal(path) as journal:
        journal.append(TaskOutcome("a", "done", "0" * 64, "a"))
        whole, file = path.read_bytes(), journal._file
        taken = SimpleNamespace(seek=file.seek, truncate=file.truncate, write=lambda line: file.write(line[:20]))
        with pytest.raises(OSError, match="No space left") as raised:
            replace(journal, _file=taken).append(TaskOutcome("b", "done", "1" * 64, "b"))
        assert raised.value.filename == str(path)
        assert path.read_bytes() == whole and set(journal.known) == {"a"}
        journal.append(TaskOutcome("c", "done", "2" * 64, "c"))
    with open_journal(path) as journal:
        assert set(journal.known) == {"a", "c"}


def test_merged_rows_equal_those_of_single_runs(whole, tmp_path):
    rows, cells = (pd.read_parquet(whole / f"out/{name}.parquet") for name in ("rows", "cells"))
    assert cells["cell"].tolist() == [f"defense={d}, seed={s}" for d in EACH["defense"] for s in EACH["seed"]]
    assert set(cells["state"]) == {"done"}
    cell = prepare(request_of({**GIVEN, "defense": "fed_cdp", "seed": 1}), None)
    with open_run(tmp_path / "alone", identity(cell, "test")) as run:
        summary = execute(cell, run, lambda *_: None).as_dict()
    alone = pd.read_parquet(tmp_path / "alone/rows.parquet").drop(columns="fit_seconds")
    found = rows[rows["hash"] == cell.hash].reset_index(drop=True)
    assert found["cell"].unique().tolist() == ["defense=fed_cdp, seed=1"]
    pd.testing.assert_frame_equal(found[alone.columns], alone, check_exact=True)
    [line] = cells[cells["hash"] == cell.hash].to_dict("records")
    tap = summary["taps"]["type-2"]
    assert {name: line[name] for name in ("asr", "rmse", "null_rmse", "verdict")} == {
        name: tap[name] for name in ("asr", "rmse", "null_rmse", "verdict")
    }
    assert line["accuracy"] == summary["accuracy"]
    assert len(rows) == 4 * GIVEN["victims"]


def test_the_figures_of_a_cell_are_those_of_its_run(whole):
    cells = pd.read_parquet(whole / "out/cells.parquet")
    assert len(cells) == 4 and (cells["epsilon_claimed"] != cells["epsilon_valid"]).any()
    for _, cell in cells.iterrows():
        summary = json.loads((whole / "runs" / cell["run"] / "manifest.json").read_text("utf-8"))["summary"]
        tap, epsilon = summary["taps"][cell["point"]], summary["epsilon"]
        names = ("asr", "rmse", "null_rmse", "victims")
        wanted = {"accuracy": summary["accuracy"], **{name: tap[name] for name in names}}
        wanted |= {f"epsilon_{kind}": epsilon[kind] for kind in ("claimed", "valid")}
        found = {name: None if pd.isna(cell[name]) else cell[name] for name in wanted}
        assert found == wanted


@pytest.mark.parametrize(("name", "value"), [("complete", False), ("hash", "0" * 64)])
def test_unfinished_and_foreign_runs_are_not_cells(name, value, whole, tmp_path):
    shutil.copytree(whole / "runs", tmp_path / "runs")
    line = json.loads((whole / "out/cells.jsonl").read_text("utf-8").splitlines()[0])
    path = next(p for p in (tmp_path / "runs").glob("*/manifest.json") if p.parent.name == line["run"])
    manifest = json.loads(path.read_text("utf-8"))
    outcome = TaskOutcome(line["key"], "done", manifest["hash"], line["run"])
    assert there(outcome, tmp_path / "runs", pytest.fail)
    reseal(path.parent, {**manifest, name: value})
    assert not there(outcome, tmp_path / "runs", pytest.fail)


def test_compared_files_contain_no_wall_time(whole):
    for name in ("rows", "cells"):
        assert not [
            c for c in pd.read_parquet(whole / f"out/{name}.parquet").columns if "seconds" in c or "minutes" in c
        ]
    assert (pd.read_parquet(whole / "out/times.parquet")["seconds"] > 0).all()


def test_an_error_is_a_record_until_it_is_retried(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("title: t\ncite: c\nunit: example\nexample:\n- {clip_layers: {norm: 4.0}}\n")
    rows = [{"name": "too many", "given": {"victims": 99999}}, {"name": "one's own", "given": {"defense": "mine.yaml"}}]
    grid = write_grid(tmp_path / "grid.yaml", rows=rows)
    done = swept(tmp_path, Here(), grid)
    assert (done.run, done.failed) == (1, 1)
    cells = pd.read_parquet(tmp_path / "out/cells.parquet").set_index("cell")
    assert cells["state"].to_dict() == {"too many": "failed", "one's own": "done"}
    assert "victims: got 99999, the set 'digits' holds" in cells.loc["too many", "error"]
    assert cells["defense"].tolist() == ["none", "mine"]
    assert cells["given_victims"].tolist() == [99999, 2]
    assert len(pd.read_parquet(tmp_path / "out/rows.parquet")) == 2
    stands, again = Here(), Here()
    assert swept(tmp_path, stands, grid).failed == 1
    assert stands.handed == []
    assert swept(tmp_path, again, grid, retry_failed=True).failed == 1
    assert again.handed == ["none 0"]


def test_any_exception_of_a_cell_is_recorded(tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("leakbench.execute.execute", broken)
    [outcome] = Here()([Task("key", request_of(GIVEN), tmp_path)])
    assert (outcome.kind, outcome.error) == ("failed", "ZeroDivisionError: two lines")


@pytest.mark.parametrize(
    ("number", "place", "kind"),
    [
        (errno.ENOSPC, "elsewhere", "stopped"),
        (errno.EROFS, "elsewhere", "stopped"),
        (errno.EACCES, "runs/a", "stopped"),
        (errno.EACCES, "elsewhere", "failed"),
        (errno.ENOENT, "runs/a", "failed"),
    ],
)
def test_a_full_disk_ends_the_sweep_and_is_not_recorded(number, place, kind, tmp_path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / place))

    monkeypatch.setattr("leakbench.execute.execute", refused)
    if kind == "failed":
        assert swept(tmp_path, Here()).failed == 4
        return
    engine = Here()
    with pytest.raises(InputError, match=f"{place}: {os.strerror(number)}; what is finished is kept, the same command"):
        swept(tmp_path, engine)
    assert len(engine.handed) == 1
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "runs").exists()


def test_a_second_sweep_of_the_same_folder_is_refused(whole):
    with open_journal(whole / "out/cells.jsonl"), pytest.raises(InputError, match=r"^out: another sweep is writing to"):
        swept(whole, Here())


def test_equal_cells_are_measured_once(tmp_path):
    rows = [
        {"name": "a", "given": {"seed": 3}},
        {"name": "b", "given": {"seed": 3}},
        {"name": "c", "given": {"seed": 4}},
    ]
    grid = read_grid(write_grid(tmp_path / "grid.yaml", rows=rows))
    assert ([cell.name for cell in grid.cells], grid.same) == (["a", "c"], 1)


def test_a_changed_recipe_makes_another_cell(tmp_path):
    own = tmp_path / "mine.yaml"
    keys = []
    for norm in (4.0, 5.0):
        own.write_text(f"title: t\ncite: c\nunit: example\nexample:\n- {{clip_layers: {{norm: {norm}}}}}\n")
        keys += [c.key for c in read_grid(write_grid(tmp_path / "g.yaml", each={"defense": ["mine.yaml"]})).cells]
    assert keys[0] != keys[1]


def test_another_version_of_leakbench_measures_again(tmp_path, monkeypatch):
    grid = write_grid(tmp_path / "grid.yaml")
    [here] = read_grid(grid).cells
    monkeypatch.setattr("leakbench.study.grid.__version__", "0.0.0")
    [other] = read_grid(grid).cells
    assert here.key != other.key


@pytest.mark.parametrize(("share", "cells"), [(1.0, 2), (0.5, 4), (0.3, 6), (0.25, 8)])
def test_shares_set_the_number_of_cells_on_a_gpu(share, cells, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert engines.engine_of("process", engines.Places(gpus_per_cell=share), tmp_path).workers == cells
    with pytest.raises(InputError, match=f"workers: got {cells + 1}, but 2 GPUs hold {cells} at"):
        engines.engine_of("process", engines.Places(workers=cells + 1, gpus_per_cell=share), tmp_path)


def test_cells_run_where_the_engine_has_capacity(tmp_path):
    grid = write_grid(tmp_path / "grid.yaml")
    [cpu], [gpu] = (read_grid(grid, device).cells for device in ("cpu", "cuda"))
    assert (cpu.request.device, gpu.request.device) == ("cpu", "cuda")
    assert cpu.key != gpu.key


def test_fields_are_read_as_on_the_command_line():
    request = request_of({"taps": "type-2, type-1", "leak_rounds": [0, "last"], "success": "rmse<=0.1", "dropout": 0})
    assert (request.taps, request.leak_rounds, request.success) == (("type-2", "type-1"), ("0", "last"), 0.1)


# Commands as a user calls them


@pytest.fixture
def leakbench(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


def test_the_command_reports_its_work_and_exits_with_1_if_a_cell_failed(leakbench, monkeypatch):
    monkeypatch.setattr(engines.ProcessEngine, "__call__", lambda _, tasks: Here()(tasks))
    write_grid(Path("small.yaml"), each={"victims": [1, 99999]})
    code, out, err = leakbench("sweep", "small.yaml", "--json")
    said, lines = json.loads(out), err.splitlines()
    assert (code, said["run"], said["failed"]) == (1, 1, 1)
    assert lines[:2] == ["2 cells: 0 done, 2 missing", "cells: 0 of 2"]
    assert lines[2].startswith("failed: victims=99999: victims: got 99999")
    assert lines[-1].startswith("cells: 2 of 2, ")
    assert lines[-1].endswith(" elapsed, 1 failed")
    assert said["tables"] == [f"sweeps/small/{name}.parquet" for name in ("rows", "cells", "times")]
    code, out, err = leakbench("sweep", "small.yaml")
    assert (code, err) == (1, "2 cells: 1 done, 0 missing, 1 failed before (--retry-failed tries them again)\n")
    assert out.startswith("2 cells: 1 were there, 0 measured, 1 failed\n")


def test_an_unavailable_engine_is_refused_in_one_line(leakbench, monkeypatch, tmp_path):
    def refused(_: object, tasks: object) -> Iterator[TaskOutcome]:
        raise InputError("gpus-per-cell: got 1")
        yield

    monkeypatch.setattr(engines.ProcessEngine, "__call__", refused)
    write_grid(Path("small.yaml"))
    assert leakbench("sweep", "small.yaml") == (2, "", "leakbench: gpus-per-cell: got 1\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["small.yaml"]


def test_the_example_grid_is_valid():
    assert len(read_grid(HOME / "examples/sweep.yaml").cells) == 8


GRIDS = [
    ("- a\n", "expected the fields of a grid, got list"),
    ("given: [unclosed\n", "not valid YAML"),
    ("given: {victims: 1}\ngiven: {victims: 2}\n", "'given' appears twice"),
    ("givn: {}\n", "unknown field 'givn'; did you mean 'given'?"),
    ("given: 3\n", "given: got 3, expected fields of a cell"),
    ("given: {victms: 3}\n", "unknown field 'victms'; did you mean 'victims'?"),
    ("given: {victims: three}\n", "victims: input should be a valid integer, got 'three'"),
    ("given: {victims: true}\n", "victims: input should be a valid integer, got True"),
    ("given: {victims: 2.5}\n", "victims: input should be a valid integer"),
    ("given: {learning_rate: fast}\n", "learning_rate: input should be a valid number, got 'fast'"),
    ("given: {knows: all}\n", "knows: got 'all', expected oblivious or defense"),
    ("given: {taps: [type-3]}\n", "taps: got 'type-3'"),
    ("given: {success: foo}\n", "success: got 'foo'"),
    ("given: {defense: fed_cpd}\n", "defense: unknown name 'fed_cpd'; did you mean 'fed_cdp'?"),
    ("given: {attack: no.yaml}\n", "attack: no file"),
    ("each: [1]\n", "each: got [1], expected {setting: its values}"),
    ("each: {seed: 3}\n", "each: seed: got 3, expected a list of values"),
    ("each: {seed: []}\n", "each: seed: got [], expected a list of values"),
    ("each: {seed: [0, 1, 0]}\n", "row 1: each: seed: got 0 twice"),
    ("each: {sed: [1]}\n", "unknown field 'sed'; did you mean 'seed'?"),
    ("each: {taps: [[type-2]]}\n", "each: taps: expected words and numbers in its list"),
    ("each: {a b: [1]}\n", "each: got the setting 'a b'"),
    ("each: {seed: [1]}\nrows: []\n", "each: got rows too"),
    ("rows: []\n", "rows: got [], expected a list of rows"),
    ("rows: [3]\n", "row 1: got 3"),
    ("rows: [{nam: a}]\n", "row 1: unknown field 'nam'; did you mean 'name'?"),
    ("rows: [{name: a}, {name: a}]\n", "row 2: two cells are called 'a'"),
    (
        "rows: [{name: '{sed}', each: {seed: [1]}}]\n",
        "row 1: row '{sed}': name: its braces hold no setting of each; known: seed",
    ),
]


@pytest.mark.parametrize(("text", "words"), GRIDS)
def test_a_grid_that_is_wrong(text, words, leakbench, tmp_path):
    Path("grid.yaml").write_text(text)
    code, out, err = leakbench("sweep", "grid.yaml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("leakbench: grid.yaml: ")
    assert words in err
    assert [path.name for path in tmp_path.rglob("*")] == ["grid.yaml"]


OPTIONS = [
    ("no.yaml", "grid: no file 'no.yaml'"),
    ("--engine rey", "engine: got 'rey'; did you mean 'ray'?"),
    ("--workers 0", "workers: got 0, expected at least 1"),
    ("--threads-per-cell 0", "threads-per-cell: got 0, expected at least 1"),
    ("--gpus-per-cell 2", "gpus-per-cell: got 2, expected 0 to 1"),
    ("--gpus-per-cell -1", "gpus-per-cell: got -1, expected 0 to 1"),
    ("--gpus-per-cell 0.5", "gpus-per-cell: got 0.5, but this machine has no GPU"),
    ("--address a:1", "address: got 'a:1' with --engine process"),
    ("--engine ray --address here", "address: got 'here', expected HOST:PORT"),
    ("--engine submitit --address a:1", "address: got 'a:1', expected 'local' or nothing"),
    ("--slurm partition=gpu", "slurm: got it with --engine process"),
    ("--engine submitit --slurm partition", "slurm: got 'partition', expected NAME=VALUE"),
    ("cuda.yaml", "cuda.yaml: cell 'seed=0': device: got 'cuda'; add --gpus-per-cell"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_an_option_that_is_wrong(options, words, leakbench, tmp_path):
    if torch.cuda.is_available() and "GPU" in words:
        pytest.skip("this machine has one")
    write_grid(Path("grid.yaml"), each={"seed": [0]})
    Path("cuda.yaml").write_text("given: {device: cuda}\neach: {seed: [0]}\n")
    asked = options.split() if ".yaml" in options else ["grid.yaml", *options.split()]
    code, out, err = leakbench("sweep", *asked)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"leakbench: {words}")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cuda.yaml", "grid.yaml"]
