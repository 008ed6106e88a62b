"""The Python functions: fields by name, results as tables, the same numbers as the command line."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
from command_line import called
from own_network import CLASSES, SHAPE, batch, build, gradient

import leakbench
from leakbench.api import run
from leakbench.core.errors import InputError
from leakbench.core.request import FIELDS, Fields, Request, request_of
from leakbench.core.words import seconds
from leakbench.report.latex import escaped, latex_table
from leakbench.report.plots import curve_plot
from leakbench.storage.summary import Summary

pytestmark = pytest.mark.usefixtures("with_pages")

HOME = Path(__file__).parents[2]

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "attack": "cpl",
    "victims": 2,
    "iterations": 3,
    "candidates": 5,
    "train_rounds": 1,
    "clients": 4,
    "clients_per_round": 2,
    "local_iterations": 1,
    "taps": ("type-2",),
    "networks": 1,
}


def options(fields: dict[str, Any]) -> list[str]:
    """Return the command-line options for some fields."""
    texts = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in fields.items()}
    return [word for name, text in texts.items() for word in (f"--{name.replace('_', '-')}", text)]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> leakbench.Result:
    return leakbench.run(out=tmp_path_factory.mktemp("api") / "run", quiet=True, **SMALL)


def test_the_public_names_are_listed_without_importing_torch() -> None:
    assert dir(leakbench) == sorted(leakbench.__all__)
    code = "import sys, leakbench; dir(leakbench); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_typed_fields_are_those_of_a_request() -> None:
    assert get_type_hints(Fields) == get_type_hints(Request)
    assert set(FIELDS) == set(Fields.__annotations__)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"victms": 3}, "unknown field 'victms'; did you mean 'victims'?"),
        ({"defence": "none"}, "unknown field 'defence'; did you mean 'defense'?"),
        ({"victims": "3"}, "victims: input should be a valid integer, got '3'"),
        ({"client_optimizer": "addam"}, "client-optimizer: got 'addam', expected sgd or adam; did you mean 'adam'?"),
        ({"dataset": "digit"}, "did you mean 'digits'?"),
        ({"budget": "60x"}, "budget: got '60x', expected a number of seconds above 0, as 60, 60s, 2m or 1h"),
        ({"data_dir": "nowhere"}, "data-dir: folder 'nowhere' not found"),
        ({"out": ""}, "out: got '', expected the name of a folder"),
        ({"log": "tensorbord"}, "log: got 'tensorbord'; did you mean 'tensorboard'?"),
    ],
)
def test_a_wrong_field_is_one_line_with_the_nearest_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as found:
        leakbench.run(**fields)
    assert message in str(found.value) and "\n" not in str(found.value)


def test_a_budget_is_words_or_any_number() -> None:
    assert request_of({"budget": "2m"}).budget == 120
    assert [seconds("budget", number) for number in (1e16, 1e-5, "1h")] == [1e16, 1e-5, 3600]
    with pytest.raises(InputError, match="expected a number of seconds"):
        seconds("budget", "\u0666\u0660s")


def test_numbers_are_refused_before_torch(tmp_path: Path) -> None:
    code = "import sys; from leakbench.__main__ import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    for words, message in (
        ("run --budget nan", "budget: got 'nan'"),
        ("run --out", "out: got ''"),
        ("frontier --dataset digits --budget nan", "budget: got 'nan'"),
    ):
        line = [*words.split(), *[""] * words.endswith("--out")]
        done = subprocess.run(
            [sys.executable, "-c", code, *line], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    with pytest.raises(InputError, match="grid: got an empty mapping"):
        leakbench.sweep({})


@pytest.mark.slow
def test_a_result_equals_the_content_of_its_folder(result: leakbench.Result) -> None:
    opened = leakbench.Result.open(result.folder)
    assert str(opened) == str(result) and opened.summary == result.summary
    pd.testing.assert_frame_equal(opened.rows, leakbench.read(result.folder))
    assert repr(opened) == f"<Result of {str(result.folder)!r}: {result.verdict}>"


def test_a_complete_run_is_read_again_and_says_so(result: leakbench.Result, capsys: pytest.CaptureFixture[str]) -> None:
    again = leakbench.run(out=result.folder, quiet=False, **SMALL)
    assert str(again) == str(result)
    assert f"{result.folder}: complete, nothing is measured again\n" in capsys.readouterr().err


def test_the_table_has_the_core_columns(result: leakbench.Result) -> None:
    table = result.table()
    assert list(table.index) == ["type-2"] and table.loc["type-2", "victims"] == 2
    assert table.loc["type-2", "asr"] == result.rows["success"].mean()
    assert table.loc["type-2", "verdict"] == result.verdict == result.verdicts["type-2"]


def test_pictures_are_in_the_order_of_the_rows(result: leakbench.Result) -> None:
    found = result.pictures["type-2"]
    assert found.truth.shape == found.reconstruction.shape == (2, 1, 1, 8, 8)
    rmse = ((found.truth - found.reconstruction.clip(0, 1)) ** 2).mean((1, 2, 3, 4)) ** 0.5
    assert rmse == pytest.approx(result.rows["rmse"].to_numpy(), abs=1e-5)
    without = leakbench.run(out=result.folder.parent / "without", quiet=True, pictures=False, **SMALL)
    assert without.pictures == {}


@pytest.mark.slow
def test_python_and_the_command_line_give_the_same_rows(
    result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = tmp_path / "run"
    code, out, _ = called(monkeypatch, capsys, "run", *options(SMALL), "--quiet", "--out", str(place))
    assert code == 0
    assert " ".join(out.split()).startswith(" ".join(str(result).split()))
    mine, theirs = (leakbench.read(folder).drop(columns="run") for folder in (result.folder, place))
    pd.testing.assert_frame_equal(mine, theirs)
    other = leakbench.run(out=tmp_path / "other", quiet=True, **{**SMALL, "seed": 1})
    assert other.rows["rmse"].tolist() != mine["rmse"].tolist()


def test_the_folder_is_named_by_its_content(
    result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = leakbench.run(quiet=True, **SMALL)
    assert found.folder.parent == Path("runs") and found.folder.name.startswith("digits-none-cpl-")
    assert found.rows.drop(columns="run").equals(result.rows.drop(columns="run"))
    assert found.finished.manifest["command"].startswith("leakbench run --attack cpl --dataset digits")


def test_epsilons_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = leakbench.epsilon("fed_cdp", dataset="faces", train_rounds=3)
    code, out, _ = called(
        monkeypatch, capsys, "epsilon", "--defense", "fed_cdp", "--dataset", "faces", "--train-rounds", "3"
    )
    assert (code, out) == (0, f"{found}\n")
    table = found.table()
    assert list(table.index) == ["released models", "type-2", "type-1", "type-0"]
    assert table.loc["released models", "valid"] == found.valid == found.as_dict()["valid"]
    assert leakbench.epsilon(dataset="faces").table()["valid"].isna().all()
    with pytest.raises(InputError, match="unknown field 'victims'"):
        leakbench.epsilon("fed_cdp", victims=3)  # type: ignore[call-arg]


def test_a_function_is_audited_as_it_is() -> None:
    def too_little(update: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        norm = sum(float((a**2).sum()) for a in update.values()) ** 0.5
        return {n: a / max(1.0, norm) + rng.normal(0, 0.5, a.shape) for n, a in update.items()}

    found = leakbench.audit(function=too_little, sigma=2.0, clip=1.0, dataset="digits", trials=200)
    assert found.verdict == "violated" and found.sigma_measured == pytest.approx(0.5, rel=0.2)
    assert str(found) == "\n".join(found.lines())
    with pytest.raises(InputError, match="sigma: got 2"):
        leakbench.audit("fed_cdp", sigma=2.0, dataset="digits")


def test_a_run_compared_with_itself_has_no_differences(result: leakbench.Result) -> None:
    found = leakbench.compare(result, str(result.folder))
    assert (found.table()["difference"] == 0).all() and not found.table()["differs"].any()
    assert "No measured difference in leakage is significant" in found._repr_html_()
    assert found.left_out == () and str(found) == found.text


@pytest.mark.slow
def test_lists_of_runs_are_compared_over_all_victims(result: leakbench.Result, tmp_path: Path) -> None:
    other = leakbench.run(out=tmp_path / "seed 1", quiet=True, **{**SMALL, "seed": 1})
    table = leakbench.compare([result, other], [result, other]).table()
    assert table.loc[("type-2", "rmse"), "victims"] == 4
    with pytest.raises(InputError, match="a list has a run twice"):
        leakbench.compare([result, result], [result, other])
    with pytest.raises(InputError, match="different examples"):
        leakbench.compare([result, other], [other, result])
    with pytest.raises(InputError, match="got 1 and 2 runs"):
        leakbench.compare(result, [result, other])


@pytest.mark.slow
def test_a_grid_may_be_a_mapping(result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.py").write_text(
        f"import leakbench\nif __name__ == '__main__':\n"
        f"    print(leakbench.sweep({{'given': {SMALL | {'taps': 'type-2'}!r}, 'each': {{'seed': [0]}}}}, workers=1, quiet=True)"
        ".table()['asr'].to_list())\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, "start.py"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [result.table().loc["type-2", "asr"]]
    with pytest.raises(InputError, match="grid: row 1: unknown field 'eech'"):
        leakbench.sweep({"rows": [{"eech": {}}]})


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png", ".html", ".csv", ".tex"])
def test_a_result_is_saved_by_its_suffix(result: leakbench.Result, tmp_path: Path, suffix: str) -> None:
    place = tmp_path / f"figure{suffix}"
    begins = {".pdf": b"%PDF", ".svg": b"<?xml", ".png": b"\x89PNG", ".html": b"<!doctype", ".csv": b"run,hash"}
    assert result.save(place) == place
    written = place.read_bytes()
    assert written.lower().startswith(begins.get(suffix, rb"\begin{table}").lower())
    assert place.stat().st_mode & 0o077 == 0  # Pictures of victims are private to their owner.
    assert result.save(place).read_bytes() == written and [*tmp_path.iterdir()] == [place]


def test_unsupported_saves_are_refused_in_one_line(result: leakbench.Result) -> None:
    for place, message in (("a.gif", "expected a name that ends in .pdf, .svg"), ("a", "expected a name that ends in")):
        with pytest.raises(InputError, match=message):
            result.save(place)
    with pytest.raises(InputError, match="did you mean 'curve'"):
        result.figure("curv")
    with pytest.raises(InputError, match="is a file of the run"):
        result.save(result.folder / "report.html")


def test_a_notebook_shows_verdict_table_and_pictures(result: leakbench.Result) -> None:
    html = result._repr_html_()
    assert result.headline.startswith(f"{result.verdict.upper()}: ") and escape(result.headline) in html
    assert "<table" in html and "example gradient (type-2)" in html and "data:image/png;base64," in html


def test_the_figures_of_the_command(
    result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = str(HOME / "results" / "frontier" / "frontier_cancer.csv")
    for kind, places in (("gallery", [str(result.folder)]), ("curve", [str(result.folder)]), ("frontier", [rows])):
        place = tmp_path / f"{kind}.svg"
        code, out, err = called(monkeypatch, capsys, "plot", *places, "--kind", kind, "-o", str(place))
        assert (code, out, err) == (0, f"figure: {place}\n", "") and "</svg>" in place.read_text(encoding="utf-8")
    for words, message in (
        (["--kind", "galery", "-o", "a.svg"], "kind: got 'galery'; did you mean 'gallery'?"),
        (["-o", "a.jpg"], "out: got 'a.jpg', expected a name that ends in .pdf, .svg, .png"),
        (["--kind", "frontier", "-o", "a.svg"], "found none; give a file"),
    ):
        code, _, err = called(monkeypatch, capsys, "plot", str(result.folder), *words)
        assert code == 2 and message in err and err.count("\n") == 1


def test_a_table_for_a_paper(
    result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = called(monkeypatch, capsys, "report", str(result.folder), "--latex")
    assert (code, out) == (0, result.latex() + "\n")
    assert r"example gradient (type-2) & " in out and out.count(r"\\") == 2 and "95 \\% CI" in out
    assert escaped("a_b & 50 % of $x^2 ~ {\\}") == (
        r"a\_b \& 50 \% of \$x\textasciicircum{}2 \textasciitilde{} \{\textbackslash{}\}"
    )
    other = {**result.summary, "cell": {**result.summary["cell"], "defense": "fed_cdp"}}
    both = latex_table([Summary.of(each) for each in (result.summary, other)])
    assert r"fed\_cdp & example gradient (type-2)" in both and "defense & leakage point" in both


def test_runs_in_a_table_have_distinct_names(
    result: leakbench.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (f"{rate:g}" for rate in (0.1, 0.25))
    table = latex_table(
        [result.finished.summary] * 2, [{"federation.learning_rate": one}, {"federation.learning_rate": other}]
    )
    lines = [line for line in table.splitlines() if "example gradient" in line]
    assert len({*lines}) == 2 and lines[0].split(" & ")[:3] == [f"    {one}", "example gradient (type-2)", "2"]
    code, _, err = called(monkeypatch, capsys, "report", *[str(result.folder)] * 2, "--latex")
    assert code == 2 and "are the same run; give each once" in err


def test_a_curve_has_one_dataset_and_one_threshold(result: leakbench.Result) -> None:
    run = result.finished
    cell = {**run.manifest["cell"], "dataset": "faces"}
    other = dataclasses.replace(run, manifest={**run.manifest, "cell": cell})
    with pytest.raises(InputError, match="the runs are of the data sets digits, faces"):
        curve_plot([run, other])
    with pytest.raises(InputError, match="the runs have success thresholds from"):
        curve_plot([run, dataclasses.replace(run, rows=run.rows.assign(eta=run.rows["eta"] + 0.01))])
    curve_plot([run, run])


def test_an_attacked_update_is_kept_in_a_folder(tmp_path: Path) -> None:
    model = build()
    x, y = batch(1)
    given: dict[str, Any] = {"shape": SHAPE, "classes": CLASSES, "truth": (x[None], y[None]), "attack": "cpl"}
    outcome = leakbench.attack_update(model, gradient(model, x, y), out=tmp_path / "kept", iterations=5, **given)
    again = leakbench.attack_update(model, gradient(model, x, y), iterations=5, **given)
    assert outcome.rows is not None and again.rows is not None and outcome.summary is not None
    assert outcome.rows["rmse"].tolist() == again.rows["rmse"].tolist()
    rows = leakbench.read(tmp_path / "kept")
    assert rows["rmse"].tolist() == outcome.rows["rmse"].tolist()
    assert set(rows["verdict"]) == {outcome.summary["verdict"]} and (tmp_path / "kept" / "report.html").is_file()
    with pytest.raises(InputError, match=r"use `leakbench report .*kept`"):
        leakbench.Result.open(tmp_path / "kept")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        leakbench.attack_update(model, gradient(model, x, y), out=tmp_path / "other", **given)


@pytest.mark.docs
def test_the_examples_of_the_page_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With fewer and smaller victims than the page has."""
    monkeypatch.chdir(tmp_path)
    small = {name: value for name, value in SMALL.items() if name != "attack"}
    monkeypatch.setattr(leakbench, "run", lambda **fields: run(**{**fields, **small}))
    page = (HOME / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2 and len(blocks[0].splitlines()) == 6
    for block in blocks:
        exec(block, {})
    assert (tmp_path / "figure.pdf").is_file() and "identified" in capsys.readouterr().out
