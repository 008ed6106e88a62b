"""Updates with extreme numbers, half precision, and untrusted array files."""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import called
from own_network import CLASSES, SHAPE, batch, build, gradient
from safetensors.torch import save_file
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.external.arrays import as_parameters, read_arrays
from leakbench.external.assumptions import assumptions, contradiction, distance_of_guess
from leakbench.external.attack import _setup, attack_trace
from leakbench.external.attacker import AttackerOptions
from leakbench.external.scoring import seconds_per_gradient
from leakbench.external.trace import Trace, Training
from leakbench.federated.searches import Searches, search_name

MODELS = """
from torch import nn
def build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
"""


def called_on(update: dict[str, Tensor], folder: Path, patch: pytest.MonkeyPatch, capsys: Any, *more: str) -> Any:
    """Call `leakbench attack` on an update of one example; return (exit code, stdout, stderr)."""
    model, (x, y) = build(), batch(1)
    (folder / "number_models.py").write_text(MODELS, encoding="utf-8")
    save_file({n: p.detach() for n, p in model.named_parameters()}, folder / "before.safetensors")
    save_file({"inputs": x, "labels": y}, folder / "truth.safetensors")
    save_file(update, folder / "update.safetensors")
    patch.chdir(folder)
    patch.delitem(sys.modules, "number_models", raising=False)
    files = [f"--{name}={name}.safetensors" for name in ("before", "update", "truth")]
    given = ["--model", "number_models:build", "--shape", "1,8,8", "--classes", "10", *files]
    return called(patch, capsys, "attack", *given, *more)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["autoleak", "cpl", "inverting_gradients_short", "analytic_fc"])
def test_an_update_with_overflowing_squares_is_reported_and_written(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its distance is infinite, which JSON cannot represent."""
    update = {n: g * 1e30 for n, g in gradient(build(), *batch(1)).items()}
    given = ["--attack", attack, *([] if attack == "analytic_fc" else ["--iterations", "2"])]
    code, out, err = called_on(update, tmp_path, monkeypatch, capsys, *given, "--json", "--quiet", "--out", "found")
    assert (code, err) == (0, "")
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found["distance"] == [None] or attack in ("inverting_gradients_short", "analytic_fc")
    assert "whose square overflows single precision: searches cannot measure a distance" in found["note"]
    assert "of its length: the update is 1e+30 times it" in found["note"] and "nan" not in found["note"]
    assert json.loads((tmp_path / "found" / "manifest.json").read_text("utf-8"))["complete"]
    assert (tmp_path / "found" / "report.html").is_file()


def test_the_size_of_a_large_update_is_reported() -> None:
    model, (x, y) = build(), batch(1)
    update = {n: g * 1e17 for n, g in gradient(model, x, y).items()}
    seen = Trace(model, [update], SHAPE, CLASSES, Training(), None, "type-1", (x[None], y[None]))
    assert "the update is 1e+17 times it" in "".join(contradiction(seen, AttackerOptions("cpl")()))
    for times in (1e30, 1e-30):  # Squares outside of single precision's range.
        view = dataclasses.replace(
            seen.view, update={n: (g.double() * times / 1e17).float() for n, g in seen.view.update.items()}
        )
        assert [float(t) for t in distance_of_guess(view, x[None], y[None])] == pytest.approx(
            [abs(times - 1) / times, times, 1], 1e-3
        )


def test_a_zero_update_shows_nothing_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The closed form has no distance there, which JSON cannot represent."""
    update = {n: g * 0 for n, g in gradient(build(), *batch(1)).items()}
    code, out, err = called_on(
        update, tmp_path, monkeypatch, capsys, "--attack", "analytic_fc", "--json", "--out", "found"
    )
    assert (code, err) == (0, "")
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found["distance"] == [None]
    assert "the update is zero everywhere, which leaks nothing about the examples" in found["note"]
    assert "of its length" not in found["note"]
    summary = json.loads((tmp_path / "found" / "manifest.json").read_text("utf-8"))["summary"]
    assert summary["distance"] == {"type-1": [None]} and (tmp_path / "found" / "report.html").is_file()


def test_zero_updates_among_others_are_counted() -> None:
    model, (x, y) = build(), batch(2)
    updates = [gradient(model, x[:1], y[:1]), {n: torch.zeros_like(p) for n, p in model.named_parameters()}]
    seen = Trace(model, updates, SHAPE, CLASSES, Training(), None, "type-1", (x[:, None], y[:, None]))
    attacker = AttackerOptions("cpl")()
    assert "1 of 2 updates are zero everywhere, which leaks nothing about the examples" in assumptions(seen, attacker)
    assert "".join(contradiction(seen, attacker)) == ""


def test_a_wrong_truth_among_several_is_reported() -> None:
    model, (x, y) = build(), batch(3)
    updates = [gradient(model, x[i : i + 1], y[i : i + 1]) for i in (0, 1, 0)]
    seen = Trace(model, updates, SHAPE, CLASSES, Training(), None, "type-1", (x[:, None], y[:, None]))
    assert "of its length, of 1 of 3 updates: was it changed" in "".join(contradiction(seen, AttackerOptions("cpl")()))


@pytest.mark.parametrize(("dtype", "share"), [(torch.bfloat16, "0.39%"), (torch.float16, "0.05%")])
def test_half_precision_is_reported(dtype: torch.dtype, share: str) -> None:
    """Its rounding does not contradict the truth; a sum does, also in half precision."""
    model, (x, y) = build(), batch(4)
    right = {n: g.to(dtype).float() for n, g in gradient(model, x, y).items()}
    attacker, truth = AttackerOptions("cpl")(), (x[None], y[None])
    seen = Trace(model, [right], SHAPE, CLASSES, Training(4), None, "type-1", truth)
    name = str(dtype).removeprefix("torch.")
    lines = assumptions(seen, attacker)
    assert f"the update has numbers of {name}, each rounded by up to {share}" in lines
    assert "".join(contradiction(seen, attacker)) == ""
    if dtype == torch.bfloat16:
        assert lines[-1].endswith(f"of its length, as numbers of {name} make it")
    summed = Trace(model, [{n: 4 * g for n, g in right.items()}], SHAPE, CLASSES, Training(4), None, "type-1", truth)
    assert "the update is 4 times it" in "".join(contradiction(summed, attacker))
    exact = Trace(model, [gradient(model, x, y)], SHAPE, CLASSES, Training(4), None, "type-1", truth)
    signs = Trace(model, [{n: g.sign() for n, g in right.items()}], SHAPE, CLASSES, Training(4), None, "type-1", truth)
    assert not any(name in line for one in (exact, signs) for line in assumptions(one, attacker))


def test_weights_of_half_precision_are_reported() -> None:
    """The rounding of weights is large compared with a small update."""
    model, (x, y) = build().bfloat16(), batch(4)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p, g in zip(model.parameters(), gradient(build(), x, y).values(), strict=True):
        p.data.sub_((0.1 * g).bfloat16())
    added = {n: p.detach().float() - before[n].float() for n, p in model.named_parameters()}
    seen = Trace(build(), [added], SHAPE, CLASSES, Training(4, 1, 0.1), before, "type-1", (x[None], y[None]))
    lines = assumptions(seen, AttackerOptions("cpl")())
    assert any(
        line.startswith("the weights are numbers of bfloat16, which rounds the update by up to") for line in lines
    )
    assert "".join(contradiction(seen, AttackerOptions("cpl")())) == "" and lines[-1].endswith(
        "as numbers of bfloat16 make it"
    )


def test_a_small_step_of_float32_weights_contradicts_nothing() -> None:
    model, (x, y) = build(), batch(4)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    added = {n: (before[n] - 1e-6 * g) - before[n] for n, g in gradient(model, x, y).items()}
    seen = Trace(model, [added], SHAPE, CLASSES, Training(4, 1, 1e-6), None, "type-1", (x[None], y[None]))
    assert float(distance_of_guess(seen.view, x[None], y[None])[0]) > 1e-3
    assert "".join(contradiction(seen, AttackerOptions("cpl")())) == ""
    clipped = Trace(
        model,
        [{n: 0.8 * g for n, g in added.items()}],
        SHAPE,
        CLASSES,
        Training(4, 1, 1e-6),
        None,
        "type-1",
        (x[None], y[None]),
    )
    assert "times it (a clip" in "".join(contradiction(clipped, AttackerOptions("cpl")()))


@pytest.mark.parametrize(
    ("times", "said"), [(0.0, True), (0.3, True), (0.7, False), (1.0, False), (1.6, False), (3.0, True)]
)
def test_noise_of_a_different_defense_is_reported(times: float, said: bool, tmp_path: Path) -> None:
    """By its length, which is known to 2 % for 1,210 numbers: a factor of two is reported as another noise."""
    told_of = tmp_path / "mine.yaml"
    stations = "client: [{clip_whole: {norm: 100.0}}, {gaussian_noise: {multiplier: 0.001, to: each}}]"
    told_of.write_text(f"title: mine\ncite: nobody\nunit: client\n{stations}\n", encoding="utf-8")
    model, (x, y) = build(), batch(2)
    rng = torch.Generator().manual_seed(4)
    # The learning rate is 1.
    update = {n: -g + times * 0.1 * torch.randn(g.shape, generator=rng) for n, g in gradient(model, x, y).items()}
    seen = Trace(model, [update], SHAPE, CLASSES, Training(2, 1, 1.0), None, "type-1", (x[None], y[None]))
    line = "".join(contradiction(seen, AttackerOptions("autoleak", str(told_of))()))
    assert ("was it applied, with these numbers" in line) == said, line


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_labels_must_be_integers(dtype: torch.dtype) -> None:
    model, (x, y) = build(), batch(1)
    given: dict[str, Any] = {"shape": SHAPE, "classes": CLASSES, "attack": "analytic_fc"}
    with pytest.raises(InputError, match=rf"truth: labels are \(1,\) of {dtype}, expected whole numbers"):
        leakbench.attack_update(model, gradient(model, x, y), truth=(x, y.to(dtype)), **given)


def changed(local: int, central: int, value: int) -> Callable[[Path], None]:
    """Write another number into the headers of every member of an archive, as if another program had written it."""

    def act(path: Path) -> None:
        np.savez(path, **{n: g.numpy() for n, g in gradient(build(), *batch(1)).items()})
        held = bytearray(path.read_bytes())
        for sign, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
            place = held.find(sign)
            while place >= 0:
                held[place + offset : place + offset + 2] = struct.pack("<H", value)
                place = held.find(sign, place + 4)
        path.write_bytes(held)

    return act


def odd(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello to all")


def deflated(path: Path) -> None:
    np.savez_compressed(path, a=np.zeros(100))
    held = bytearray(path.read_bytes())
    began = 30 + sum(struct.unpack("<HH", held[26:30]))
    held[began : began + 8] = b"\xff" * 8
    path.write_bytes(held)


def alone(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones(3))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (odd, "the magic string is not correct"),
        (changed(6, 8, 1), "is encrypted"),
        (changed(8, 10, 97), "compression method is not supported"),
        (deflated, "Error -3 while decompressing"),
        (alone, "File is not a zip file"),
    ],
    ids=["odd", "encrypted", "compression", "deflate", "npy"],
)
def test_an_archive_that_cannot_be_read_is_one_line(act: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    path = tmp_path / "u.npz"
    act(path)
    with pytest.raises(InputError, match=r"update: .*u\.npz cannot be read: ") as error:
        read_arrays("update", path)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("factor", "said"), [(0.0, True), (0.05, True), (1.0, False), (40.0, True)])
def test_the_truth_contradicts_a_defense_that_was_not_applied(factor: float, said: bool) -> None:
    """An undefended gradient declared as defended would seem not to leak: an adaptive attacker trusts the declared noise."""
    model, (x, y) = build(), batch(1)
    attacker = AttackerOptions("cpl", defense="fed_sdp_client_valid", knows="defense")()
    clean = gradient(model, x, y)
    truth = (x[None], y[None])
    noise = attacker.view(Trace(model, [clean], SHAPE, CLASSES, Training(), None, "type-1", truth)).noise
    assert noise is not None
    rng = torch.Generator().manual_seed(5)
    sent = {n: g + factor * noise * torch.randn(g.shape, generator=rng) for n, g in clean.items()}
    line = "".join(contradiction(Trace(model, [sent], SHAPE, CLASSES, Training(), None, "type-1", truth), attacker))
    assert ("its noise makes it" in line) == said, line


def test_numpy_arrays_are_accepted_from_python_and_files() -> None:
    model, (x, y) = build(), batch(1)
    clean = gradient(model, x, y)
    arrays = {n: g.numpy() for n, g in clean.items()}
    weights = {n: p.detach().numpy() for n, p in model.named_parameters()}
    asked: dict[str, Any] = {"shape": SHAPE, "classes": CLASSES, "attack": "analytic_fc"}
    one = leakbench.attack_update(model, clean, **asked).answer.inputs
    assert torch.equal(leakbench.attack_update(model, arrays, before=weights, **asked).answer.inputs, one)  # type: ignore[arg-type]


# Effects of a budget, and missing reconstructions


def test_a_search_without_time_is_not_reported_as_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()
    begin = Searches.begin

    def counted(searches: Searches, method: Any) -> Any:
        begun.append(search_name(method))
        return begin(searches, method)

    monkeypatch.setattr(Searches, "begin", counted)
    x, y = batch(2)
    found = leakbench.attack_update(
        build(), gradient(build(), x, y), shape=SHAPE, classes=CLASSES, batch=2, budget=1e-3, success=1e-6, truth=(x, y)
    )
    searched = [name for name in found.answer.stages if name != "analytic fc"]
    assert found.answer.not_begun and searched == begun
    (tried,) = (line for line in str(found).splitlines() if line.startswith("searches tried: "))
    assert tried == f"searches tried: {', '.join(found.answer.stages)}"
    assert f"not begun within the budget: {found.answer.not_begun[0]}" in found.note


def test_fewer_candidates_because_of_a_budget_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first gradient, which also prepares the network, takes longer than the others and predicts nothing."""
    x, y = batch(3)
    each = [gradient(build(), x[v : v + 1], y[v : v + 1]) for v in range(3)]
    seen = Trace(build(), each, SHAPE, CLASSES, Training(), tap="type-2", truth=(x[:, None], y[:, None]))
    who = AttackerOptions("analytic_fc", dataset="digits", budget=1.0)
    attacker = who.with_public(who())
    times = iter([0.0, 5.0, 6.0, 6.01, 7.0, 7.02, 8.0, 8.01, *([9.0, 9.01] * 9)])
    clock = SimpleNamespace(perf_counter=lambda: next(times))
    with monkeypatch.context() as patch:
        patch.setattr("leakbench.external.scoring.time", clock)
        assert seconds_per_gradient(seen.view, 100.0) == pytest.approx(0.01)
    monkeypatch.setattr("leakbench.external.attack.seconds_per_gradient", lambda view, budget: 0.01)
    line = "identification among 10 of 453 candidates because of the budget"
    found = attack_trace(seen, attacker, Reporter(quiet=True))
    assert found.summary is not None and found.summary["candidates"] == 10
    assert line in str(found).splitlines() and line in found.note
    whole = attack_trace(seen, dataclasses.replace(attacker, budget=None), Reporter(quiet=True))
    assert whole.summary is not None and whole.summary["candidates"] == 453 and "because" not in str(whole)


def test_nan_is_not_called_a_reconstruction(tmp_path: Path) -> None:
    nothing = {name: torch.zeros_like(p) for name, p in build().named_parameters()}
    given = {"shape": SHAPE, "classes": CLASSES, "attack": "analytic_fc"}
    with pytest.warns(UserWarning, match="zero everywhere"):
        found = leakbench.attack_update(build(), nothing, out=tmp_path / "out", **given)
    assert not bool(found.answer.inputs.isfinite().any())
    assert str(found).startswith("ATTACK FAILED: no reconstruction.")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "ATTACK FAILED: the attack analytic_fc made no reconstruction." in page and "pictures below" not in page


def test_python_prints_and_warns_like_the_command() -> None:
    nothing = {name: torch.zeros_like(p) for name, p in build().named_parameters()}
    given = {"shape": SHAPE, "classes": CLASSES, "attack": "analytic_fc"}
    with pytest.warns(UserWarning, match="the update is zero everywhere, which leaks nothing"):
        found = leakbench.attack_update(build(), nothing, **given)
    assert "warning: the update is zero everywhere, which leaks nothing" in " ".join(str(found).split())
    assert "note: the attacker's public examples are synthetic" in " ".join(str(found).split())
    x, y = batch(1)
    long = {name: g * 1e30 for name, g in gradient(build(), x, y).items()}
    with pytest.warns(UserWarning, match="whose square overflows single precision"):
        leakbench.attack_update(build(), long, **given)


def test_an_attack_limited_by_iterations_reports_it() -> None:
    """The update belongs to another example, so nothing is found."""
    x, y = batch(2)
    seen = Trace(
        build(), [gradient(build(), x[:1], y[:1])], SHAPE, CLASSES, Training(), truth=(x[None, 1:], y[None, 1:])
    )
    limited = _setup(AttackerOptions(iterations=5)())
    assert (limited.attack, limited.shortened, limited.strongest) == ("autoleak", "--iterations 5", False)
    assert (
        _setup(AttackerOptions()()).shortened == "" and _setup(AttackerOptions("cpl", iterations=5)()).shortened == ""
    )
    found = attack_trace(seen, AttackerOptions(iterations=1, success=1e-6)(), Reporter(quiet=True))
    assert found.summary is not None
    assert "autoleak was limited by --iterations 1" in found.summary["verdict_reason"]


def test_equal_victims_are_not_called_independent() -> None:
    x, y = batch(1)
    given = {"shape": SHAPE, "classes": CLASSES, "attack": "analytic_fc", "tap": "type-2"}
    each = [gradient(build(), x, y)] * 3
    with pytest.warns(UserWarning, match="only 1 of 3 victims have different examples"):
        found = leakbench.attack_update(build(), each, truth=(x.expand(3, 1, *SHAPE), y.expand(3, 1)), **given)
    assert found.verdict == "reconstructs" and "warning: only 1 of 3 victims" in str(found)
    x, y = batch(2)
    each = [gradient(build(), x[v : v + 1], y[v : v + 1]) for v in range(2)]
    assert "different examples" not in str(
        leakbench.attack_update(build(), each, truth=(x[:, None], y[:, None]), **given)
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": build}, "model: got .*, expected a torch.nn.Module"),
        ({"update": "update.npz"}, "update: got 'update.npz' of type str, expected a mapping of names to tensors"),
        ({"before": 3}, "before: got 3 of type int"),
        ({"shape": 8}, "shape: got 8 of type int, expected a list of whole numbers"),
        ({"shape": (1, 0, 8)}, "shape: got .* expected whole numbers above 0"),
        ({"truth": ("a", "b")}, "truth: 'inputs': got a value of type str"),
        ({"truth": (torch.zeros(1, 1), None)}, "truth: 'labels': got a value of type NoneType"),
        ({"truth": 3}, "truth: got 3 of type int"),
        ({"data_dir": 3}, "data_dir: got 3 of type int, expected a string, a path or None"),
        ({"shape": "1,8,8"}, "shape: got '1,8,8' of type str"),
        ({"classes": "10"}, "classes: got '10' of type str, expected a whole number"),
        ({"learning_rate": "0.1"}, "learning_rate: got '0.1' of type str, expected a number"),
        ({"seed": None}, "seed: got None of type NoneType, expected a whole number"),
        ({"seed": 1.5}, "seed: got 1.5 of type float"),
        ({"seed": True}, "seed: got True of type bool"),
        ({"success": True}, "success: got True of type bool, expected a string, a number or None"),
        ({"success": "close"}, "success: got 'close', expected a threshold like"),
        ({"attack": None}, "attack: got None of type NoneType, expected a string"),
        ({"defense": 3}, "defense: got 3 of type int"),
    ],
)
def test_arguments_of_another_type_are_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    given = {"model": build(), "update": gradient(build(), *batch(1)), "shape": SHAPE, "classes": CLASSES}
    with pytest.raises(InputError, match=message) as refused:
        leakbench.attack_update(**{**given, "attack": "analytic_fc", **changed})
    assert "\n" not in str(refused.value)


def test_a_threshold_may_use_the_words_of_the_command() -> None:
    x, y = batch(1)
    given = {"shape": list(SHAPE), "classes": CLASSES, "attack": "analytic_fc", "truth": (x, y), "success": "rmse<=0.2"}
    found = leakbench.attack_update(build(), gradient(build(), x, y), **given)
    assert found.rows is not None and set(found.rows["eta"]) == {0.2}


@pytest.mark.parametrize(
    ("renamed", "hint"),
    [
        ({"0.bias": None}, "expected an array for each trained parameter"),
        ({"0.bias": None, "2.bias": "0.bais"}, "did you mean '0.bais'?"),
        ({"0.bias": "0.bais"}, "did you mean '0.bais'?"),
        ({"0.weight": "1.weight", "0.bias": "1.bias"}, "did you mean '1.weight'?"),
        ({"0.weight": "conv.kernel"}, "known: conv.kernel"),
        ({"0.weight": "x", "2.weight": "0.weights"}, "known: x"),  # The only one of this shape.
    ],
)
def test_a_missing_parameter_is_not_taken_for_another_one(renamed: dict[str, str | None], hint: str) -> None:
    """A name that belongs to another parameter of the model is never suggested."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    given = {renamed.get(n, n): torch.zeros_like(p) for n, p in model.named_parameters()}
    given.pop(None, None)  # type: ignore[call-overload]
    with pytest.raises(InputError) as refused:
        as_parameters("update", model, given)  # type: ignore[arg-type]
    assert f"is missing; {hint}" in str(refused.value)


def test_a_further_array_is_not_taken_for_a_parameter() -> None:
    model = nn.Linear(2, 3)
    given = {n: torch.zeros_like(p) for n, p in model.named_parameters()} | {"biass": torch.zeros(3)}
    with pytest.raises(InputError, match=r"^update: 'biass' .* whose trained parameters are all given; leave it out$"):
        as_parameters("update", model, given)
