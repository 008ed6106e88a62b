"""External updates: files, refusals, the attacker's view, the command, the probe in a training loop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import called
from own_network import CLASSES, SHAPE, batch, build, gradient
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from leakbench.external.arrays import read_arrays
from leakbench.external.trace import Trace, Training

EXAMPLES = Path(__file__).parents[2] / "examples" / "own_update"


def normed() -> nn.Module:
    torch.manual_seed(1)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))
    body[1].running_mean += 0.5
    return body


@pytest.mark.parametrize("made", [build, normed])
def test_the_truth_reproduces_the_update(made: Callable[[], nn.Module]) -> None:
    """The leak equals an update of leakbench's own clients, also for several steps, with running statistics."""
    model, (x, y) = made().eval(), batch(6)
    one = Trace(model, [gradient(model, x, y)], SHAPE, CLASSES, Training(6)).view
    targets = nn.functional.one_hot(y, CLASSES).float()[None]
    for name, g in one.respond(x[None], targets).items():
        torch.testing.assert_close(g, one.update[name], rtol=1e-4, atol=1e-6)
    trained = made().eval()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for i in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x[2 * i : 2 * i + 2]), y[2 * i : 2 * i + 2]).backward()
        optimizer.step()
    before = {n: p.detach() for n, p in model.named_parameters()}
    delta = {n: p.detach() - before[n] for n, p in trained.named_parameters()}
    three = Trace(model, [delta], SHAPE, CLASSES, Training(2, 3, 0.1)).view
    assert (three.examples, three.knowledge.examples, three.knowledge.reads) == (6, 6, "weights")
    for name, g in three.respond(x[None], targets).items():
        torch.testing.assert_close(g, three.update[name], rtol=1e-3, atol=1e-5)


def test_several_updates_are_attacked_together_and_scored() -> None:
    model, (x, y) = build(), batch(3)
    updates = [gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(3)]
    found = leakbench.attack_update(
        model, updates, shape=SHAPE, classes=CLASSES, truth=(x[:, None], y[:, None]), attack="analytic_fc", success=0.05
    )
    assert found.summary is not None
    assert (found.summary["asr"], found.summary["victims"], found.summary["candidates"]) == (1.0, 3, 3)
    torch.testing.assert_close(found.answer.inputs, x[:, None], atol=1e-4, rtol=0)
    alone = leakbench.attack_update(model, updates[0], shape=SHAPE, classes=CLASSES, attack="analytic_fc")
    assert alone.summary is None
    torch.testing.assert_close(alone.answer.inputs, found.answer.inputs[:1], atol=1e-6, rtol=0)


def test_one_candidate_gives_no_identification() -> None:
    model, (x, y) = build(), batch(1)
    given: dict[str, Any] = {"shape": SHAPE, "classes": CLASSES, "attack": "analytic_fc", "truth": (x[None], y[None])}
    summary = leakbench.attack_update(model, gradient(model, x, y), **given).summary
    assert summary is not None and summary["identified"] is None


@pytest.mark.docs
def test_training_loops_of_other_programs_are_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, EXAMPLES / "plain_pytorch.py", tmp_path], check=True)
    monkeypatch.chdir(EXAMPLES)
    files = [f"--{name}={tmp_path / name}.safetensors" for name in ("before", "update", "truth")]
    given = ["--model", "network:build", "--shape", "1,8,8", "--classes", "10", "--attack", "cpl", "--json", "--quiet"]
    out = tmp_path / "answers.safetensors"
    code, printed, err = called(monkeypatch, capsys, "attack", *given, *files, "--out", str(out))
    assert (code, err) == (0, "")
    assert json.loads(printed)["measured"]["rmse"] < 0.01
    answers, truth = load_file(out), load_file(tmp_path / "truth.safetensors")
    torch.testing.assert_close(answers["type-1.round1.inputs"][0], truth["inputs"], atol=0.02, rtol=0)


def test_an_opacus_loop_is_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    subprocess.run([sys.executable, "-W", "ignore", EXAMPLES / "opacus_loop.py", tmp_path], check=True)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from network import build as network  # noqa: PLC0415

    read = {n: read_arrays(n, tmp_path / f"{n}.safetensors") for n in ("before", "example", "truth_of_example")}
    truth = read["truth_of_example"]["inputs"], read["truth_of_example"]["labels"]
    found = leakbench.attack_update(
        network(), read["example"], before=read["before"], shape=SHAPE, classes=CLASSES, tap="type-2", truth=truth
    )
    assert found.summary is not None and found.summary["asr"] == 1.0


def test_a_model_that_does_not_take_the_shape_is_named() -> None:
    model, (x, y) = build(), batch(1)
    with pytest.raises(InputError, match=r"shape: the model fails on an input of \(1, 1, 9, 9\): RuntimeError"):
        leakbench.attack_update(model, gradient(model, x, y), shape=(1, 9, 9), classes=CLASSES)


@pytest.mark.slow
def test_finished_runs_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    small = [
        "--attack",
        "cpl",
        "--victims",
        "2",
        "--iterations",
        "1",
        "--train-rounds",
        "0",
        "--candidates",
        "5",
        "--quiet",
    ]
    for defense in ("none", "sign"):
        called(
            monkeypatch,
            capsys,
            "run",
            "--dataset",
            "digits",
            "--defense",
            defense,
            *small,
            "--taps",
            "type-2",
            "--out",
            str(tmp_path / defense),
        )
    rows = leakbench.read(tmp_path)
    assert list(rows["defense"]) == ["none"] * 2 + ["sign"] * 2
    assert list(rows)[:5] == ["run", "hash", "dataset", "defense", "attack"]
    damaged = (tmp_path / "none" / "rows.parquet").read_bytes()[:-1]
    (tmp_path / "none" / "rows.parquet").write_bytes(damaged)
    with pytest.raises(InputError, match=r"rows\.parquet"):
        leakbench.read(tmp_path)
    with pytest.raises(InputError, match="read: no finished run in"):
        (tmp_path / "empty").mkdir()
        leakbench.read(tmp_path / "empty")


# Unsuitable input: each is one line that names the field, with exit code 2, and nothing is written.

MODELS = """
from torch import nn
def build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
def fails(): raise RuntimeError("no disk")
def number(): return 3
def empty(): return nn.Flatten()
"""


def write(folder: Path, **changed: Any) -> None:
    model, (x, y) = build(), batch(1)
    (folder / "own_models.py").write_text(MODELS, encoding="utf-8")
    save_file({n: p.detach() for n, p in model.named_parameters()}, folder / "before.safetensors")
    save_file(gradient(model, x, y), folder / "update.safetensors")
    save_file({"inputs": x, "labels": y}, folder / "truth.safetensors")


def again(change: Callable[[dict[str, Tensor]], Mapping[str, Tensor]], name: str = "update") -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / f"{name}.safetensors"
        save_file(dict(change(load_file(path))), path)

    return act


def without(name: str) -> Callable[[Path], None]:
    return again(lambda arrays: {n: a for n, a in arrays.items() if n != name})


WRONG: list[tuple[str, list[str], Callable[[Path], Any]]] = [
    ("update: the model's parameter '1.bias' (16,) is missing", [], without("1.bias")),
    ("update: 'extra' (2,) is not a parameter of the model", [], again(lambda a: {**a, "extra": torch.ones(2)})),
    ("update: '1.bias' has the shape (3,), the model's parameter (16,)", [], again(lambda a: {**a, "1.bias": torch.ones(3)})),
    ("'1.bias' has numbers that are not finite", [], again(lambda a: {**a, "1.bias": a["1.bias"] * torch.nan})),
    ("'1.bias' has numbers of type torch.int64", [], again(lambda a: {**a, "1.bias": torch.ones(16, dtype=torch.long)})),
    ("'1.bias' has complex numbers", [], again(lambda a: {**a, "1.bias": torch.ones(16, dtype=torch.complex64)})),
    ("before: the model's parameter '3.weight'", [], again(lambda a: {n: t for n, t in a.items() if n != "3.weight"}, "before")),
    ("update: u.pt may be a pickle, which can run code", ["--update", "u.pt"], lambda f: (f / "u.pt").touch()),
    ("update: u.npy may be a pickle", ["--update", "u.npy"], lambda f: (f / "u.npy").touch()),
    ("update: no file or folder 'u.safetensors'", ["--update", "u.safetensors"], lambda f: None),
    ("update: got 'u.csv', expected a .safetensors or .npz file", ["--update", "u.csv"], lambda f: (f / "u.csv").touch()),
    ("u.safetensors cannot be read", ["--update", "u.safetensors"], lambda f: (f / "u.safetensors").write_bytes(b"abc")),
    ("u.safetensors cannot be read", ["--update", "u.safetensors"],
     lambda f: (f / "u.safetensors").write_bytes((f / "update.safetensors").read_bytes()[:-9])),
    ("u.npz cannot be read", ["--update", "u.npz"], lambda f: (f / "u.npz").write_bytes(b"PK")),
    ("u.npz cannot be read", ["--update", "u.npz"],
     lambda f: np.savez(f / "u.npz", a=np.array([{}], dtype=object), allow_pickle=True)),
    ("u.safetensors holds no arrays", ["--update", "u.safetensors"], lambda f: save_file({}, f / "u.safetensors")),
    ("shape: got '8x8'", ["--shape", "8x8"], lambda f: None),
    ("truth: inputs have the shape (1, 1, 8, 8), expected (1, 1, 1, 9, 9)", ["--shape", "1,9,9"], lambda f: None),
    ("classes: got 7, expected 10: the model answers one input with (1, 10)", ["--classes", "7"], lambda f: None),
    ("batch: got 0", ["--batch", "0"], lambda f: None),
    ("local-iterations: a gradient is of one step", ["--local-iterations", "2"], lambda f: None),
    ("learning-rate: got -1", ["--learning-rate", "-1"], lambda f: None),
    ("learning-rate: got nan", ["--learning-rate", "nan"], lambda f: None),
    ("tap: got 'type-4'", ["--tap", "type-4"], lambda f: None),
    ("tap: type-2 is one example's gradient", ["--tap", "type-2", "--batch", "2"], lambda f: None),
    ("after: expected --before and --learning-rate", ["AFTER"], lambda f: None),
    ("attack: unknown name 'cpll'", ["--attack", "cpll"], lambda f: None),
    ("attack: it needs labels", ["--attack", "cpl_oracle_labels"], lambda f: None),
    ("attack: its server tampers", ["--attack", "imprint"], lambda f: None),
    ("attack: it needs candidates", ["--attack", "identification"], lambda f: None),
    ("defense: unknown name 'fed_cpd'", ["--defense", "fed_cpd"], lambda f: None),
    ("dataset: unknown name 'digit'", ["--dataset", "digit"], lambda f: None),
    ("dataset: 'cancer' has inputs of", ["--dataset", "cancer"], lambda f: None),
    ("truth: inputs have the shape", ["--batch", "2"], lambda f: None),
    ("truth: got the arrays inputs, expected inputs and labels", [], again(lambda a: {"inputs": a["inputs"]}, "truth")),
    ("expected numbers in [0, 1]; divide 8-bit", [], again(lambda a: {**a, "inputs": a["inputs"] * 255}, "truth")),
    ("truth: labels go from 12 to 12", [], again(lambda a: {**a, "labels": a["labels"] * 0 + 12}, "truth")),
    ("truth: labels are (1,) of torch.float32", [], again(lambda a: {**a, "labels": a["labels"].float()}, "truth")),
    ("model: 'own_models:fails' failed: RuntimeError: no disk", ["--model", "own_models:fails"], lambda f: None),
    ("model: 'own_models:number' returned int", ["--model", "own_models:number"], lambda f: None),
    ("model: 'own_models:empty' returned Flatten", ["--model", "own_models:empty"], lambda f: None),
    ("model: 'own_models:nobody' cannot be imported", ["--model", "own_models:nobody"], lambda f: None),
    ("out: got 'answers.pt'", ["--out", "answers.pt"], lambda f: None),
    ("success: ", ["--success", "rmse>0.1"], lambda f: None),
]  # fmt: skip


@pytest.mark.parametrize(("says", "changed", "act"), WRONG, ids=[f"{i}" for i in range(len(WRONG))])
def test_unsuitable_input_is_refused_in_one_line(
    says: str,
    changed: list[str],
    act: Callable[[Path], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path)
    act(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    given = {"--model": "own_models:build", "--shape": "1,8,8", "--classes": "10", "--attack": "cpl"}
    given |= {f"--{name}": f"{name}.safetensors" for name in ("before", "update", "truth")}
    if changed == ["AFTER"]:
        given |= {"--after": given.pop("--update")}
    else:
        given |= dict(zip(changed[::2], changed[1::2], strict=True))
    before = sorted(tmp_path.iterdir())
    code, out, err = called(monkeypatch, capsys, "attack", *(word for pair in given.items() for word in pair))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert says in err
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before
