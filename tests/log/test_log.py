"""A run's figures in a tracker: which, at what step, and one line if the tracker is not installed."""

from __future__ import annotations

import json
import sys
import types
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import called

from leakbench.log import log
from leakbench.log.log import figures_of
from leakbench.storage.summary import Summary

SMALL = ["run", "--dataset", "digits", "--attack", "cpl", "--victims", "2", "--iterations", "1", "--candidates", "5"]
SMALL += [
    "--train-rounds",
    "2",
    "--clients",
    "4",
    "--clients-per-round",
    "2",
    "--local-iterations",
    "1",
    "--taps",
    "type-2",
]


def test_figures_without_a_number_are_left_out() -> None:
    tap = {"round": 3, "asr": 0.5, "null_asr": 0.1, "rmse": None, "null_rmse": 0.2, "identified": None}
    summary = {"taps": {"type-1@3": tap}, "epsilon": {"claimed": None, "valid": 2.5}, "rounds": 2}
    found = list(figures_of(Summary.of(summary), pd.DataFrame({"round": [0, 1], "accuracy": [0.25, float("nan")]})))
    assert found == [
        ("accuracy", 0.25, 1),
        ("type-1/round3/asr", 0.5, 3),
        ("type-1/round3/null_asr", 0.1, 3),
        ("type-1/round3/null_rmse", 0.2, 3),
        ("epsilon/valid", 2.5, 2),
    ]


@pytest.mark.parametrize(
    ("tracker", "says"),
    [
        ("tensorbord", "log: got 'tensorbord'; did you mean 'tensorboard'?"),
        ("mlflow", "log: mlflow is not installed; pip install mlflow"),
        ("wandb", "log: wandb is not installed; pip install wandb"),
    ],
)
def test_a_missing_tracker_is_refused_in_one_line(
    tracker: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(log, "find_spec", lambda name: None)
    code, out, err = called(monkeypatch, capsys, *SMALL, "--out", str(tmp_path / "run"), "--log", tracker)
    assert (code, out, err) == (2, "", f"leakbench: {says}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_mlflow_gets_the_cell_and_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A stub module records the calls."""
    noted: dict[str, Any] = {"metrics": {}}

    @contextmanager
    def start_run(run_name: str) -> Any:
        noted["run"] = run_name
        yield types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))

    stood_in: Any = types.ModuleType("mlflow")
    stood_in.set_experiment = lambda name: noted.update(experiment=name)
    stood_in.start_run = start_run
    stood_in.log_params = lambda given: noted.update(given=given)
    stood_in.log_metric = lambda what, number, step: noted["metrics"].update({(what, step): number})
    monkeypatch.setitem(sys.modules, "mlflow", stood_in)
    monkeypatch.setattr(log, "find_spec", lambda name: True)
    place = tmp_path / "run"
    code, out, _ = called(monkeypatch, capsys, *SMALL, "--quiet", "--out", str(place), "--log", "mlflow")
    assert code == 0 and out.endswith("log: mlflow run 7 of the experiment leakbench\n")
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    assert (noted["run"], noted["given"]["hash"]) == ("run", manifest["hash"])
    assert noted["metrics"]["type-2/asr", 0] == manifest["summary"]["taps"]["type-2"]["asr"]
    assert noted["metrics"]["accuracy", 2] == manifest["summary"]["accuracy"]


def test_wandb_gets_rising_steps_and_the_verdicts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A stub module records the calls; an offline run of W&B has no address."""
    recorded: dict[str, Any] = {"steps": [], "summary": {}, "finished": 0}

    def log_step(numbers: dict[str, float], step: int) -> None:
        recorded["steps"].append((step, numbers))

    def init(**given: Any) -> Any:
        recorded["given"] = given
        finish = lambda: recorded.update(finished=recorded["finished"] + 1)  # noqa: E731
        return types.SimpleNamespace(log=log_step, summary=recorded["summary"], finish=finish, url=None)

    module: Any = types.ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(log, "find_spec", lambda name: True)
    place = tmp_path / "run"
    code, out, _ = called(monkeypatch, capsys, *SMALL, "--quiet", "--out", str(place), "--log", "wandb")
    assert code == 0 and out.endswith(f"log: wandb sync {place / 'wandb'}\n")
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    point = manifest["summary"]["taps"]["type-2"]
    assert recorded["given"]["dir"] == str(place) and recorded["given"]["config"]["hash"] == manifest["hash"]
    assert [step for step, _ in recorded["steps"]] == [0, 1, 2] and recorded["finished"] == 1
    assert recorded["steps"][0][1]["type-2/asr"] == point["asr"]
    assert recorded["steps"][2][1]["accuracy"] == manifest["summary"]["accuracy"]
    assert recorded["summary"] == {"type-2/verdict": point["verdict"]}


def test_tensorboard_reads_the_written_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    place = tmp_path / "run"
    assert called(monkeypatch, capsys, *SMALL, "--quiet", "--out", str(place), "--log", "tensorboard")[0] == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    found = EventAccumulator(str(place / "tensorboard")).Reload()
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    assert [each.step for each in found.Scalars("accuracy")] == [1, 2]
    assert found.Scalars("type-2/asr")[0].value == pytest.approx(manifest["summary"]["taps"]["type-2"]["asr"])
