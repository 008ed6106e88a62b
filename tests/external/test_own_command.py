"""`leakbench attack`: files that it writes or keeps, and its messages on interruption and lack of memory."""

from __future__ import annotations

import errno
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import called
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leakbench import cli
from leakbench.core.process import NOTHING, SAID, said
from leakbench.external.training_probe import save_files

SHAPE, CLASSES = (1, 8, 8), 10

MODELS = """
from torch import nn
def build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
def lazy(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.Sigmoid(), nn.Linear(16, 10))
def lazy_norm(): return nn.Sequential(nn.Conv2d(1, 4, 3), nn.LazyBatchNorm2d(affine=False), nn.Flatten())
def interrupted(): raise KeyboardInterrupt
"""


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    return dict(zip((n for n, _ in model.named_parameters()), found, strict=True))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a model and the files of one victim; the command runs there."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    x, y = torch.rand(1, *SHAPE), torch.tensor([3])
    (tmp_path / "command_models.py").write_text(MODELS, encoding="utf-8")
    save_file({n: p.detach() for n, p in model.named_parameters()}, tmp_path / "before.safetensors")
    save_file(gradient(model, x, y), tmp_path / "update.safetensors")
    save_file({"inputs": x, "labels": y}, tmp_path / "truth.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "command_models", raising=False)
    return tmp_path


def attacked(monkeypatch: pytest.MonkeyPatch, capsys: Any, *flags: str, **changed: str) -> tuple[int, str, str]:
    """Call `leakbench attack` with these options instead of the usual ones; "" omits an option."""
    given = {"model": "command_models:build", "shape": "1,8,8", "classes": "10", "attack": "cpl", "iterations": "2"}
    given |= {name: f"{name}.safetensors" for name in ("before", "update", "truth")} | changed
    words = [word for name, value in given.items() if value for word in (f"--{name}", value)]
    return called(monkeypatch, capsys, "attack", *words, *flags)


def held(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in str(p)}


@pytest.mark.parametrize("name", ["before", "update", "truth", "another"])
def test_existing_files_are_not_overwritten(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "another.safetensors").write_bytes(b"mine")
    before = held(place)
    code, out, err = attacked(monkeypatch, capsys, out=f"./{name}.safetensors")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"out: '{name}.safetensors' is there already and is not overwritten" in err
    assert held(place) == before


def test_reconstructions_are_not_written_into_the_folder_of_updates(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "sent").mkdir()
    (place / "update.safetensors").rename(place / "sent" / "0.safetensors")
    before = held(place)
    code, _, err = attacked(monkeypatch, capsys, update="sent", out="sent/answers.safetensors")
    assert code == 2 and "is one of the files that are read from its folder" in err
    assert held(place) == before
    code, _, err = attacked(monkeypatch, capsys, update="sent", out="new/below/answers.safetensors")
    assert code == 0
    # On a slow machine, an estimate of the time is printed.
    assert not [line for line in err.splitlines() if not line.startswith("estimated at most")]
    assert set(load_file("new/below/answers.safetensors")) == {"type-1.round1.inputs", "type-1.round1.labels"}


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("update.safetensors/answers.safetensors", "Not a directory"),
        ("below/" + "n" * 244 + ".safetensors", "File name too long"),
        ("shut/answers.safetensors", "Permission denied"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_attacked(
    out: str, why: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message uses the given name, and no folder is left behind."""
    if "shut" in out:  # The superuser may write anyway.

        def shut(*_: Any, **named: Any) -> Any:
            raise PermissionError(errno.EACCES, why, f"{named['dir']}/.answers.safetensors.abc.tmp")

        monkeypatch.setattr("tempfile.mkstemp", shut)
    monkeypatch.setattr("leakbench.external.update.UpdateFiles.read", lambda _: pytest.fail("it went on"))
    before = held(place)
    code, printed, err = attacked(monkeypatch, capsys, out=out)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert f"out: cannot write to {out!r}: {why}; give another --out" in err and ".tmp" not in err
    assert held(place) == before and not (place / "below").exists() and not (place / "shut").exists()


@pytest.mark.parametrize("name", ["lazy", "lazy_norm"])
def test_a_lazy_network_is_refused(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = attacked(monkeypatch, capsys, model=f"command_models:{name}", before="", out="found")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "model: '1." in err and f"of command_models:{name} has no shape yet, since its module is lazy; pass" in err
    assert not (place / "found").exists()


def test_an_attack_that_is_interrupted_before_its_first_save_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = attacked(monkeypatch, capsys, model="command_models:interrupted", out="found")
    assert (code, out, err.strip()) == (130, "", f"leakbench: {NOTHING}")
    assert not (place / "found").exists()


@pytest.mark.parametrize(
    ("words", "files", "wanted"),
    [
        (["run"], ["runs/a/manifest.json", "runs/a/parts/.0.tmp"], NOTHING),
        (["run"], ["runs/a/rows.parquet", "runs/a/report.html"], NOTHING),
        (["run"], ["runs/a/rows.parquet"], SAID),
        (["run"], ["runs/a/parts/0.parquet"], SAID),
        (["run", "--out=b"], ["runs/a/parts/0.parquet"], NOTHING),
        (["run", "--out=b"], ["b/rows.parquet", "b/report.html"], SAID),
        (["attack", "--out", "b"], ["b/parts/0.safetensors"], SAID),
    ],
)
def test_the_message_on_interruption_says_whether_there_is_work_to_resume(
    words: list[str], files: list[str], wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in files:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    monkeypatch.setattr(sys, "argv", ["leakbench", *words])
    assert said() == wanted


def test_the_message_on_interruption_depends_on_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    alone = "interrupted; `leakbench attack` keeps nothing and starts over; with --out FOLDER it can be resumed"
    for words, wanted in (
        (["run", "--out", "attack"], NOTHING),
        (["run"], NOTHING),
        (["sweep", "grid.yaml"], SAID),
        (["--debug", "epsilon"], "interrupted; `leakbench epsilon` keeps nothing and starts over"),
        (["audit", "--into", "run"], "interrupted; `leakbench audit` keeps nothing and starts over"),
        (["attack", "--out", "folder"], NOTHING),
        (["attack", "--out=folder"], NOTHING),
        (["attack", "--out", "answers.safetensors"], alone),
        (["attack", "--update", "out.npz"], alone),
    ):
        monkeypatch.setattr(sys, "argv", ["leakbench", *words])
        assert said() == wanted
    monkeypatch.setattr(sys, "argv", ["benchmarks/__main__.py", "--dataset", "lfw"])
    assert said() == "interrupted; `python -m benchmarks` keeps nothing and starts over"


def test_a_memory_error_names_only_options_of_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(**_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(cli.commands, "main", lacking)
    lines = {}
    for name, command in cli.commands.commands.items():
        code, _, lines[name] = called(monkeypatch, capsys, "--debugged", name)
        named = {word.strip(",;") for word in lines[name].split() if word.startswith("--")}
        assert code == 2 and named <= {option for parameter in command.params for option in parameter.opts}, name
    enough = "leakbench: memory: not enough;"
    assert lines["attack"] == f"{enough} attack fewer updates at a time, or take a smaller network\n"
    assert lines["run"].startswith(f"{enough} lower --clients-per-round, --leak-batch, --victims or --candidates, or")
    assert lines["flower"] == f"{enough} lower --victims, or take a smaller network\n"
    assert lines["report"] == f"{enough} end other programs, or take a machine with more\n"


def test_without_a_truth_a_folder_has_its_page_and_reconstructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing scores are not damage: the page is written again, and commands that read the runs next to it do not fail."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    (tmp_path / "truthless.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n", encoding="utf-8"
    )
    save_file({n: torch.randn(p.shape) for n, p in model.named_parameters()}, tmp_path / "update.safetensors")
    monkeypatch.chdir(tmp_path)
    words = "attack --model truthless:build --shape 1,8,8 --classes 10 --attack analytic_fc --update update.safetensors"
    code, _, err = called(monkeypatch, capsys, *words.split(), "--out", "found")
    assert (code, err) == (0, "")
    assert "data:image/png" in (tmp_path / "found" / "report.html").read_text(encoding="utf-8")
    assert called(monkeypatch, capsys, "report", "found")[0] == 0
    assert called(monkeypatch, capsys, "runs", ".")[0] == 0


def test_only_the_owner_may_read_reconstructions(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_files(place / "heard", {"truth.safetensors": {"inputs": torch.zeros(1)}})
    assert attacked(monkeypatch, capsys, out="found.safetensors")[0] == 0
    assert attacked(monkeypatch, capsys, out="page")[0] == 0
    files = [place / "heard" / "truth.safetensors", place / "found.safetensors", *(place / "page").iterdir()]
    assert {oct(path.stat().st_mode & 0o077) for path in files} == {"0o0"}


def test_a_folder_of_reconstructions_is_not_a_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attacked(monkeypatch, capsys, out="found")[0] == 0
    is_none = "found/manifest.json: the folder of an own update, expected that of a run; use `leakbench report found`"
    for line in ("report found found found", "baseline found", "gate found --baseline found", "audit --into found"):
        code, out, err = called(monkeypatch, capsys, *line.split(), *["--defense", "fed_cdp"] * ("audit" in line))
        assert (code, out, err.count("\n")) == (2, "", 1) and is_none in err, line


def test_the_table_defines_success(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = attacked(monkeypatch, capsys, "-v", dataset="digits")
    assert code == 0 and re.search(
        r"^success is an RMSE of at most 0\.1\d+; identified among \d+ candidates$", out, re.M
    )
    assert re.search(r"^success is an RMSE of at most 0\.1$", attacked(monkeypatch, capsys, "-v")[1], re.M)


def test_limits_of_the_attack_are_applied_and_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A budget that ends at once leaves one iteration and reports it; wrong limits are one line."""
    code, _, err = attacked(monkeypatch, capsys, attack="inverting_gradients", iterations="", budget="0.001")
    assert code == 0
    assert err.startswith("estimated at most ") and "for 1 victim; of --budget 0.001 no time is left" in err
    assert "stopped by the budget before it had ended" in err
    code, _, err = attacked(monkeypatch, capsys, iterations="", evaluations="45", budget="10m")
    assert code == 0 and "--budget 600" in err and "stopped by the budget" not in err
    for option, value in (("budget", "nan"), ("evaluations", "3")):
        code, out, err = attacked(monkeypatch, capsys, iterations="", **{option: value})
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"leakbench: {option}: got ")


def test_the_verdict_comes_first(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 80 columns: the verdict and its evidence, then the table; the part not tried appears only if no leak is stated."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = attacked(monkeypatch, capsys, iterations="")
    assert code == 0
    assert out.startswith("RECONSTRUCTS: 1 of 1 image from this client update (baseline guess: 0 of 1)\n")
    assert "Not tried" not in out and max(map(len, out.splitlines())) <= 80
    noise = {name: torch.randn_like(array) for name, array in load_file("update.safetensors").items()}
    save_file(noise, place / "update.safetensors")
    code, out, _ = attacked(monkeypatch, capsys)
    found = " ".join(out.split())
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert found.startswith(
        "INCONCLUSIVE: 0 of 1 image reconstructed from this client update (baseline guess: 0 of 1) "
    )
    assert "A failed attack is not protection." in found
    assert "Not tried: autoleak, the strongest attack, an attacker with real public examples (--dataset)" in found
    assert "warning: the truth's own gradient differs from the update" in found
    code, out, _ = attacked(monkeypatch, capsys, truth="")
    assert code == 0 and out.startswith("NOT SCORED: 1 reconstruction, but no true examples to compare with. Without")


def test_a_baseline_guess_within_the_threshold_is_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = attacked(monkeypatch, capsys, iterations="", success="rmse<=0.9")
    found = " ".join(out.split())
    assert code == 0 and found.startswith("INCONCLUSIVE: 1 of 1 image reconstructed from this client update")
    assert "The baseline guess is within the success threshold too (RMSE <= 0.9); use a smaller one." in found
