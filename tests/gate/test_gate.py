"""`leakbench gate`: a weakened defense fails, an unchanged one passes; reports for pull requests and JUnit."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import called
from made_rows import make_rows

from leakbench.core.errors import InputError
from leakbench.gate.baseline import baseline_of, kept_of
from leakbench.gate.gate import GateCheck, GateLimits, _risen, gate, junit, lines, markdown
from leakbench.storage.store import content_hash, read_manifest
from leakbench.summary.compare import Difference, differences

DEFENSE = """
title: A clip and noise of {sigma} times its norm
cite: none
unit: example
example: [{{clip_whole: {{norm: 1.0}}}}, {{gaussian_noise: {{multiplier: {sigma}, to: each}}}}]
claim: {{none: {{reason: a test}}}}
"""

Runs = Callable[..., Path]

EXAMPLE = Path(__file__).parents[2] / "examples" / "github" / "leakage.yml"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[Any, ...], Path]]:
    """Return the folder of this module's recipes, and its runs by request."""
    return tmp_path_factory.mktemp("recipes"), {}


@pytest.fixture
def runs(
    measured: tuple[Path, dict[tuple[Any, ...], Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Runs:
    """Return a run of a cell behind noise of that sigma, in a separate folder.

    A cell is measured once for all tests, and copied. With `again` it is measured again.
    """
    home, known = measured

    def of(sigma: float, seed: int = 0, victims: int = 20, again: bool = False, **more: Any) -> Path:
        folder = tmp_path / f"run-{sigma:g}-{seed}-{victims}-{len(list(tmp_path.iterdir()))}"
        key = (sigma, seed, victims, *more.items())
        if not again and key in known:
            return Path(shutil.copytree(known[key], folder))
        recipe = home / f"sigma_{sigma:g}.yaml".replace("0.", "0_")
        recipe.write_text(DEFENSE.format(sigma=sigma), encoding="utf-8")
        asked = f"run --quiet --json --dataset digits --attack lmmse --taps type-2 --train-rounds 0 --candidates 20 --seed {seed}"
        options = [word for name, value in more.items() for word in (f"--{name}", str(value))]
        line = [*asked.split(), "--defense", str(recipe), "--victims", str(victims), "--out", str(folder), *options]
        code, _, err = called(monkeypatch, capsys, *line)
        assert code == 0, err
        if not again:
            known[key] = Path(shutil.copytree(folder, home / f"run-{len(known)}"))
        return folder

    return of


def file_of(folder: Path) -> Path:
    path = folder.with_suffix(".json")
    path.write_text(json.dumps(baseline_of(folder)), encoding="utf-8")
    return path


def by_name(checks: list[GateCheck]) -> dict[str, GateCheck]:
    return {check.name: check for check in checks}


@pytest.mark.slow
def test_an_unchanged_defense_passes_and_a_hundredth_of_the_noise_fails(runs: Runs) -> None:
    before = file_of(runs(1.0))
    assert all(check.holds for check in gate(runs(1.0, again=True), before, GateLimits()))
    weak = runs(0.01)
    checks = by_name(gate(weak, before, GateLimits()))
    found = checks["type-2 identified"]
    assert not found.holds
    now, then = pd.read_parquet(weak / "rows.parquet"), kept_of(before)[0]
    broke = now["victim"][(now["identified"] == 1) & (then["identified"] != 1)]
    assert found.victims == tuple(sorted(broke)) and len(found.victims) > 5
    # An improved defense passes too.
    assert all(check.holds for check in gate(runs(1.0), file_of(weak), GateLimits()))


@pytest.mark.long
def test_twenty_seeds_pass_unchanged_and_fail_weakened(runs: Runs) -> None:
    """Other noise for the same victims is impossible (a seed draws the victims too), so the same cell runs again."""
    for seed in range(20):
        before = file_of(runs(1.0, seed))
        assert all(check.holds for check in gate(runs(1.0, seed, again=True), before, GateLimits())), seed
        assert not all(check.holds for check in gate(runs(0.01, seed), before, GateLimits())), seed


def test_a_round_is_compared_with_the_same_round_of_a_baseline_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    then = pd.concat([make_rows(12, round=n, label_guess=0, null_rmse=0.5) for n in (0, 5)], ignore_index=True)
    now = then[then["round"] == 5].assign(success=True)
    told = {"attack": "cpl", "settings": {}}
    monkeypatch.setattr(
        "leakbench.gate.gate.kept_of", lambda path: ({"now": now, "then": then}[path.name], "digits", told)
    )
    checks = by_name(gate(Path("now"), Path("then"), GateLimits()))
    assert checks["type-1 asr"].victims == tuple(range(12)) and not checks["type-1@0"].holds


@pytest.mark.slow
def test_a_folder_and_its_file_are_the_same_baseline(runs: Runs) -> None:
    before, now = runs(1.0), runs(0.01)
    path = file_of(before)
    folder, file = gate(now, before, GateLimits()), gate(now, path, GateLimits())
    assert [(c.name, c.holds, c.victims) for c in folder] == [(c.name, c.holds, c.victims) for c in file]
    assert path.stat().st_size < 4000
    rmse = json.loads(path.read_text())["rows"]["rmse"]
    assert len({*rmse}) > 1 and all(value == round(value, 4) for value in rmse)


@pytest.mark.slow
def test_an_attacker_that_sees_less_of_each_gradient_is_different(runs: Runs) -> None:
    """Otherwise a weaker attack would make a defense seem better."""
    before, now = runs(1.0, observations=3), runs(1.0)
    for baseline in (before, file_of(before)):
        with pytest.raises(
            InputError, match="observations: '3' before, '1' now: another attack; write the baseline again"
        ):
            gate(now, baseline, GateLimits())


@pytest.mark.slow
def test_changes_of_the_system_are_reported(runs: Runs) -> None:
    now = runs(1.0, **{"leak-model": "lenet_dlg_relu", "learning-rate": 0.5})
    checks = by_name(gate(now, runs(1.0), GateLimits()))
    assert {name: check.said for name, check in checks.items() if "system" in check.said} == {
        "leak_model": "'lenet_cpl' before, 'lenet_dlg_relu' now: not the same system",
        "federation.learning_rate": "'0.05' before, '0.5' now: not the same system",
    }


@pytest.mark.slow
def test_few_victims_are_reported(runs: Runs) -> None:
    checks = by_name(gate(runs(0.01, victims=3), runs(1.0, victims=3), GateLimits()))
    assert checks["type-2 identified"].holds
    assert checks["type-2 identified"].said.endswith("3 victims are too few to see a rise")
    blind = sum(check.blind for check in checks.values())
    assert blind and lines(list(checks.values()))[-1] == (
        f"gate: passed; {blind} of {len(checks)} checks have too few victims to fail"
    )


def tampered(folder: Path, name: str, **changes: Any) -> Path:
    """Write a baseline file of a run with changed columns or other fields, as if measured so."""
    kept = baseline_of(folder)
    del kept["checksum"]
    for key, value in changes.items():
        (kept["rows"] if key in kept["rows"] else kept)[key] = value
    kept["checksum"] = content_hash(kept)
    path = folder.parent / f"{name}.json"
    path.write_text(json.dumps(kept), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_rise_is_found_by_a_corrected_one_sided_sign_test(runs: Runs) -> None:
    """With 10 victims and two measures at 5 % / 2, six gains without a loss are needed: 2^-6 < .025 < 2^-5; five are not enough."""
    folder = runs(1.0, victims=10)
    for rose in (5, 6):
        now = tampered(folder, f"now{rose}", success=[i < rose for i in range(10)], identified=[0.0] * 10)
        before = tampered(folder, f"before{rose}", success=[False] * 10, identified=[0.0] * 10)
        check = by_name(gate(now, before, GateLimits()))["type-2 asr"]
        assert check.holds is (rose == 5)
        assert ("not by enough victims to tell it from chance (6 of 10" in check.said) is (rose == 5)


def test_a_changed_number_in_a_baseline_is_refused(runs: Runs) -> None:
    folder = runs(1.0)
    path = tampered(folder, "changed")
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept_of(path)
    path.write_text(json.dumps({**kept, "epsilon": 0.1}), encoding="utf-8")
    with pytest.raises(InputError, match=f"^baseline: {path}: checksum: does not fit the rest"):
        kept_of(path)
    del kept["checksum"]
    path.write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(InputError, match="checksum: does not fit the rest"):
        kept_of(path)


@pytest.mark.slow
def test_a_missing_leakage_point_fails_and_a_new_one_is_reported(runs: Runs) -> None:
    one, both = runs(1.0), runs(1.0, **{"taps": "type-2,type-1", "leak-batch": 1})
    missing, more = (
        by_name(gate(one, both, GateLimits()))["type-1@0"],
        by_name(gate(both, one, GateLimits()))["type-1@0"],
    )
    assert (missing.holds, missing.said) == (False, "in the baseline, not in the run")
    assert (more.holds, more.said) == (True, "not in the baseline, nothing to compare")


def test_a_baseline_of_another_attack_is_refused(runs: Runs) -> None:
    folder = runs(1.0)
    with pytest.raises(InputError, match="other attacks"):
        gate(folder, tampered(folder, "other", attack="cpl 00000000"), GateLimits())


def test_max_epsilon_limits_the_valid_epsilon_and_fails_without_one(runs: Runs) -> None:
    """A small claim does not help if the valid epsilon is missing or large."""
    folder = runs(1.0)
    for epsilon, holds in ((None, False), (9.0, False), (7.0, True)):
        check = by_name(gate(tampered(folder, f"eps{epsilon}", epsilon=epsilon), folder, GateLimits(max_epsilon=8.0)))[
            "max-epsilon"
        ]
        assert check.holds is holds
    manifest = read_manifest(folder)["summary"]
    assert baseline_of(folder)["epsilon"] == manifest["epsilon"]["valid"]


def test_limits_apply_with_any_baseline(runs: Runs) -> None:
    run = runs(0.01)
    rows = pd.read_parquet(run / "rows.parquet")
    asr = float(rows["success"].mean())
    checks = by_name(gate(run, run, GateLimits(max_asr=asr, min_accuracy=0.5, max_epsilon=8.0)))
    assert checks["type-2 max-asr"].holds
    assert not by_name(gate(run, run, GateLimits(max_asr=asr - 0.01)))["type-2 max-asr"].holds
    # Without training, the run has no accuracy and no valid epsilon.
    assert not checks["min-accuracy"].holds and "nothing was trained" in checks["min-accuracy"].said
    assert checks["max-epsilon"].said.endswith("at most 8 is allowed")


@pytest.mark.slow
def test_a_baseline_of_other_victims_is_refused(runs: Runs) -> None:
    with pytest.raises(InputError, match="attacked different examples"):
        gate(runs(1.0), runs(1.0, seed=1), GateLimits())


def test_from_the_command_line(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before, weak = runs(1.0), runs(0.01)
    code, out, _ = called(monkeypatch, capsys, "baseline", str(before))
    kept = tmp_path / "baseline.json"
    kept.write_text(out, encoding="utf-8")
    page, suite = tmp_path / "gate.md", tmp_path / "gate.xml"
    reports = ["--markdown", str(page), "--junit", str(suite)]
    code, out, err = called(monkeypatch, capsys, "gate", str(weak), "--baseline", str(kept), *reports)
    assert (code, err) == (1, "")
    assert "FAILED  example gradient (type-2) identified: " in out
    assert "victims that broke: " in out and out.endswith("checks failed\n")
    assert "| **failed** | example gradient (type-2) identified |" in page.read_text(encoding="utf-8")
    found = ElementTree.parse(suite).getroot()
    assert found.get("failures") == str(len(found.findall("testcase/failure"))) != "0"
    code, out, _ = called(monkeypatch, capsys, "gate", str(before), "--baseline", str(kept))
    assert (code, out.splitlines()[-1]) == (0, "gate: passed")


@pytest.mark.long
def test_the_example_of_a_workflow_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the baseline from its first lines; with a hundredth of the noise the gate is the step that fails."""
    monkeypatch.chdir(tmp_path)
    steps = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["jobs"]["gate"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("leakbench ")]
    assert [words[1] for words in commands] == ["run", "gate"]

    def each(sigma: float) -> list[int]:
        Path("my_defense.yaml").write_text(DEFENSE.format(sigma=sigma), encoding="utf-8")
        return [called(monkeypatch, capsys, *words[1:])[0] for words in commands]

    Path("my_defense.yaml").write_text(DEFENSE.format(sigma=1.0), encoding="utf-8")
    assert called(monkeypatch, capsys, *commands[0][1:])[0] == 0
    Path("leakage-baseline.json").write_text(called(monkeypatch, capsys, "baseline", "run")[1], encoding="utf-8")
    Path("run").rename("before")
    assert each(1.0) == [0, 0]
    Path("run").rename("same")
    assert each(0.01) == [0, 1]
    assert Path("gate.md").is_file()
    assert Path("gate.xml").is_file()


@pytest.mark.parametrize("option", ["markdown", "junit"])
def test_a_page_cannot_be_a_folder(
    option: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, place = str(runs(1.0, victims=2)), tmp_path / "place"
    place.mkdir()
    code, out, err = called(monkeypatch, capsys, "gate", run, "--baseline", run, f"--{option}", str(place))
    assert (code, out, err) == (2, "", f"leakbench: {option}: {str(place)!r} is a folder, expected a file\n")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no file or folder"),
        ("", "cannot be read"),
        ("[1]", "is not a baseline (write one by `leakbench baseline RUN > kept.json`)"),
        ('{"leakbench baseline": 2}', "is not a baseline"),
        ('{"leakbench baseline": 1, "examples": 2, "rows": {}}', "dataset is missing"),
    ],
)
def test_files_that_are_not_baselines_are_refused_in_one_line(
    text: str | None,
    says: str,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run, kept = runs(1.0, victims=2), tmp_path / "kept.json"
    if text is not None:
        kept.write_text(text, encoding="utf-8")
    code, out, err = called(monkeypatch, capsys, "gate", str(run), "--baseline", str(kept))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--max-asr", "1.5"), "max-asr: got 1.5, expected a share from 0 to 1"),
        (("--min-accuracy", "nan"), "min-accuracy: got nan"),
        (("--max-epsilon", "-1"), "max-epsilon: got -1, expected 0 or more"),
        (("--max-epsilon", "few"), "'few' is not a valid float"),
    ],
)
def test_wrong_limits_are_one_line(
    given: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, "gate", "run", "--baseline", "run", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_untrusted_text_is_escaped() -> None:
    """In Markdown and in XML, for names of folders and of leakage points."""
    checks = [GateCheck("type-2 <b>", False, "a | b & <script>", (1,))]
    page = markdown(checks, "<i>run</i>")
    assert "<" not in page and "a \\| b &amp; &lt;script>" in page
    suite = ElementTree.fromstring(junit(checks, 'a"<b>'))
    assert suite.get("name") == 'leakbench gate a"<b>'
    assert suite.find("testcase/failure").get("message") == "a | b & <script>; victims that broke: 1"  # type: ignore[union-attr]
    assert lines(checks)[-1] == "gate: 1 of 1 checks failed"


def of_networks(success: np.ndarray, network: np.ndarray) -> pd.DataFrame:
    """Return the rows of a run at one leakage point, with one example a victim."""
    each = np.arange(len(success))
    rows = pd.DataFrame({"tap": "type-2", "round": 0, "victim": each, "member": 0, "example": each, "label": 0})
    return rows.assign(
        eta=0.1, candidates=9, failure_reason="", label_guess=0, success=success, identified=0.0, network=network
    )


def risen(now: pd.DataFrame, before: pd.DataFrame, level: float) -> GateCheck:
    found: Difference = next(
        d for d in differences((now, "digits"), (before, "digits"), ("now", "before")) if d.measure == "asr"
    )
    return _risen(found, now, before, level)


def test_a_rise_on_a_few_networks_is_not_told_from_chance() -> None:
    """Rises of .9, .3, .3, .3 and .3 are significant at 5 %, but not at a sixth of it; those of .4 each are at both."""
    network, turn = np.arange(100) % 5, np.arange(100) // 5
    before = of_networks(turn < 0, network)
    uneven, even = of_networks(turn < np.where(network == 0, 18, 6), network), of_networks(turn < 8, network)
    assert not risen(uneven, before, 0.05).holds and not risen(even, before, 0.05 / 6).holds
    check = risen(uneven, before, 0.05 / 6)
    assert check.holds and "too differently on 5 networks to tell it from chance" in check.said
    # The one-sided sign test of 42 rises and no fall has p = 2^-42.
    for level, why in ((1.5 * 0.5**42, "too differently on 5 networks"), (0.9 * 0.5**42, "not by enough victims")):
        assert why in risen(uneven, before, level).said
    # On one network the same victims are enough.
    assert not risen(uneven.assign(network=0), before.assign(network=0), 0.05 / 6).holds


def test_a_baseline_keeps_the_networks_of_its_victims(runs: Runs, tmp_path: Path) -> None:
    run = runs(1.0)
    kept = baseline_of(run)
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(kept), encoding="utf-8")
    rows, _, _ = kept_of(path)
    assert list(rows["network"]) == list(kept_of(run)[0]["network"])
    assert rows["network"].nunique() > 1
