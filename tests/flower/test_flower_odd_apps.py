"""Flower apps that fail, diverge or train unusually: errors of user code are one line; unusual scores have a note."""

import errno
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from command_line import called
from safetensors.numpy import load_file

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'leakbench[flower]'")

from leakbench.core.imported import import_function
from leakbench.flower.leaks import read_leaks
from leakbench.flower.trace import TrainingOptions, trace_at

APP = Path(__file__).parents[1] / "odd_flower_app"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def odd(monkeypatch, capsys, tmp_path):
    """Call the command on the odd app with three clients, a case and the rest of its config; return (code, stdout, stderr)."""

    def call(case="", *more, model="odd_app:build", app=APP, attack="analytic_fc", **config):
        monkeypatch.setattr(sys, "path", list(sys.path))
        changes = [f"case='{case}'", *(f"{key}={value}" for key, value in config.items())]
        words = [word for change in changes for word in ("--run-config", change)]
        sizes = ("--shape", "1,4,4", "--classes", "3", "--clients", "3", "--attack", attack)
        out = ("--out", str(tmp_path / "out"), "--json")
        return called(monkeypatch, capsys, "flower", str(app), "--model", model, *sizes, *out, *words, *more)

    return call


@pytest.fixture
def rows(odd):
    """Return {leakage point: row} of a case that can be attacked."""

    def call(case="", *more, **options):
        code, out, err = odd(case, *more, **options)
        assert code == 0, err
        return {row["tap"]: row for row in json.loads(out)}

    return call


def refused(answer):
    """Return the one line of a refusal."""
    code, out, err = answer
    [line] = [line for line in err.splitlines() if line.startswith("leakbench: ")]
    assert (code, out) == (2, ""), line
    return line


def test_a_normal_app_leaks_without_a_note(rows):
    for row in rows().values():
        assert (row["victims"], row["note"], row["measured"]["asr"]) == (3, "", 1)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("raises", "app: its client 1 failed (train): ValueError: no such file"),
        ("exits", "app: its client 1 failed (train): SystemExit: 0"),
        ("server raises", "app: its server failed: RuntimeError: no such strategy"),
        ("server exits", "app: its server failed: SystemExit: 0"),
        ("short", "model: its parameter '3.bias' (3,) is not among the arrays that a client answers with"),
    ],
)
def test_an_exception_of_the_app_is_one_line(odd, case, says):
    assert says in refused(odd(case, only=-1 if case == "short" else 1))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("odd_app:build_wrongly", "model: 'odd_app:build_wrongly' failed: KeyError: 'no such network'"),
        ("odd_app:build_never", "model: 'odd_app:build_never' failed: SystemExit: 0"),
        ("odd_app:build_too_large", "shape: the model fails on an input of (1, 1, 4, 4): RuntimeError"),
    ],
)
def test_an_exception_of_the_builder_is_one_line(odd, model, says):
    assert says in refused(odd(model=model))


def test_debug_shows_the_place_in_the_app(odd, monkeypatch):
    with pytest.raises(ValueError, match="its client 1 failed") as raised:
        odd("raises", "--debug", only=1)
    assert str(raised.value.__cause__) == "no such file"


def test_an_older_strategy_that_continues_without_replies_hides_no_error(odd, tmp_path):
    shutil.copytree(APP, tmp_path / "older", ignore=shutil.ignore_patterns("__pycache__"))
    project = tmp_path / "older" / "pyproject.toml"
    text = project.read_text(encoding="utf-8").replace("odd_app:server", "odd_app:older")
    project.write_text(text.replace("odd_app:client", "odd_app:older_client"), encoding="utf-8")
    line = refused(odd(app=tmp_path / "older"))
    assert "failed (train): ValueError: no such file" in line


@pytest.mark.parametrize("text", ["[tool.flwr]\napp = 3", "tool = 1", "[tool.flwr.app]\nconfig = 1\ncomponents = 2"])
def test_a_project_of_other_tables_is_one_line(odd, tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert "expected a table" in refused(odd(app=tmp_path))


def test_a_batch_that_observe_cannot_show_is_one_line(odd):
    assert "observe: it could not show a batch: TypeError: got (1, 1, 4, 4) and (0)" in refused(odd("unpaired"))


def test_lazy_layers_are_shown_an_input(rows):
    found = rows(model="odd_app:build_lazily")
    assert {tap: row["measured"]["asr"] for tap, row in found.items()} == {"type-2": 1, "type-1": 1, "type-0": 1}


@pytest.mark.parametrize(
    ("case", "says"), [("empty", "their batches are empty"), ("idle", "no step was heard of them")]
)
def test_a_client_without_examples_is_left_out_with_a_note(rows, case, says):
    for row in rows(case, only=1).values():
        assert (row["victims"], row["note"]) == (2, f"1 of 3 clients left out: {says}")
        assert row["measured"]["asr"] == 1


def test_empty_batches_are_not_scored(rows):
    for row in rows("empty").values():
        assert (row["victims"], row["measured"]) == (0, None)
        assert row["note"] == "3 of 3 clients left out: their batches are empty"


def test_a_full_disk_is_not_reported_as_a_failure_of_the_app(odd, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("leakbench.storage.atomic.Path.replace", full)
    line = refused(odd())
    assert line.startswith(f"leakbench: {tmp_path / 'out'}") and line.endswith(": No space left on device")


def test_inputs_that_are_normalised_are_scored_in_the_unit_interval_by_mean_and_std(odd, rows, tmp_path):
    line = refused(odd("normalised"))
    assert "mean: inputs go from -1.9" in line and "out of [0, 1]" in line
    assert "pass --mean and --std" in line
    found = rows("normalised", "--mean", "0.5", "--std", "0.25", attack="autoleak")
    for tap, row in found.items():
        assert row["measured"]["asr"] == 1 and row["measured"]["rmse"] < 0.01, tap
        assert row["measured"]["null_rmse"] < 0.4
    answers = load_file(tmp_path / "out" / "rebuilt.safetensors")
    assert all(abs(answers[f"{tap}.round1.inputs"] - 0.5).max() <= 0.5 + 1e-6 for tap in found)


@pytest.mark.parametrize(
    ("case", "more", "says"),
    [
        ("pixels", (), "mean: inputs go from "),
        ("normalised", ("--mean", "0", "--std", "1"), "once their normalisation is undone, out of [0, 1]"),
        ("normalised", ("--mean", "0.5"), "std: expected --mean and --std together"),
        ("normalised", ("--mean", "0.5", "--std", "0"), "std: got [0.0], expected numbers above 0"),
        ("normalised", ("--mean", "0.5,0.5", "--std", "0.25"), "mean: got [0.5, 0.5], expected a finite number, or 1"),
    ],
)
def test_inputs_out_of_the_unit_interval_and_odd_numbers_are_one_line(odd, case, more, says):
    assert says in refused(odd(case, *more))


def test_a_client_with_infinite_numbers_is_left_out_with_a_note(rows):
    for row in rows("nan", only=1).values():
        assert row["victims"] == 2
        assert row["note"] == "1 of 3 clients left out: numbers that are not finite, in the observed inputs (inputs/0)"
        assert (row["measured"]["asr"], row["measured"]["identified"]) == (1, 1)


@pytest.mark.parametrize(
    ("case", "where"),
    [("nan", "the observed inputs (inputs/0)"), ("weights", "the weights that were sent (1.weight)")],
)
def test_clients_without_finite_numbers_are_not_scored(rows, case, where):
    for row in rows(case).values():
        assert (row["victims"], row["measured"], row["distance"]) == (0, None, None)
        assert row["note"] == f"3 of 3 clients left out: numbers that are not finite, in {where}"


@pytest.mark.parametrize("case", ["poisoned", "far"])
def test_an_infinite_update_is_left_out_although_its_gradients_are_finite(rows, case):
    found = rows(case, only=1)
    assert (found["type-2"]["victims"], found["type-2"]["note"]) == (3, "")
    for tap in ("type-1", "type-0"):
        assert found[tap]["victims"] == 2 and "in the update (1.weight)" in found[tap]["note"]


def test_rounds_after_a_client_diverged_are_not_scored(odd):
    code, out, err = odd("nan", "--leak-rounds", "all", only=1, **{"num-server-rounds": 2})
    assert code == 0, err
    second = [row for row in json.loads(out) if row["round"] == 2]
    assert [row["measured"] for row in second] == [None] * 3
    assert all(
        "3 of 3 clients left out: numbers that are not finite, in the weights that were sent" in row["note"]
        for row in second
    )


def odd_network():
    return import_function("model", "odd_app:build", str(APP))()


def attacked(rows, case, **config):
    """Return the notes at type-1, which type-0 has too, and type-2 has not, since its gradients precede the optimizer."""
    found = rows(case, **config)
    assert (found["type-2"]["note"], found["type-2"]["measured"]["asr"]) == ("", 1)
    assert found["type-1"]["note"] == found["type-0"]["note"]
    return found["type-1"]["note"].split("\n")


@pytest.mark.parametrize("case", ["nesterov", "momentum", "dampening", "betas"])
def test_the_first_step_of_momentum_is_read_exactly(rows, tmp_path, case):
    """With Nesterov's momentum it is 1.9 gradients long; Adam's averages begin with the second step."""
    assert attacked(rows, case) == [""]
    seen = trace_at(tmp_path / "out", "type-1", 1, odd_network(), (1, 4, 4), 3, TrainingOptions(), 3)
    for leak, update in zip(read_leaks(tmp_path / "out", "type-2"), seen.view.update["1.weight"], strict=True):
        gradient = torch.from_numpy(leak.arrays["step0/1.weight"])
        wanted = gradient / (gradient.abs() + 1e-8) if case == "betas" else gradient
        assert torch.allclose(update, wanted, atol=1e-5)


DIFFERS = "the truth's own gradient differs from the update by"


@pytest.mark.parametrize(
    ("case", "config", "ignored"),
    [
        ("maximize", {}, "maximize is left out of the steps that are unrolled"),
        ("decay of one", {}, "weight decay is left out"),
        ("groups", {}, "learning rates 0.01, 0.1 are taken for 0.01"),
        ("nesterov", {"steps": 3}, "momentum and nesterov are left out of the steps that are unrolled"),
        ("dampening", {"steps": 3}, "momentum and dampening are left out of the steps that are unrolled"),
        ("betas", {"steps": 3}, "betas is left out of the steps that are unrolled"),
        ("slower", {"steps": 3}, "learning rates 0.025, 0.05, 0.1 are taken for 0.1"),
    ],
)
def test_steps_that_cannot_be_unrolled_exactly_have_a_note(rows, case, config, ignored):
    notes = attacked(rows, case, **config)
    assert notes[0] == ignored and notes[1].startswith(DIFFERS)


@pytest.mark.parametrize(("case", "steps"), [("decay", 1), ("decay", 3), ("momentum", 3)])
def test_momentum_and_weight_decay_are_unrolled(rows, case, steps):
    """The truth's own update is the one that leaked, so there is no note."""
    assert rows(case, steps=steps)["type-1"]["note"] == ""


def test_uneven_batches_are_one_step_of_all_at_the_sum_of_the_rates(rows, tmp_path):
    """Two small steps at the rate r along means of gradients are one step along their mean at 2 r."""
    found = rows("uneven", steps=2, batch=2)
    assert "batches of [2, 3] are taken for one step of all" in found["type-1"]["note"]
    training = trace_at(tmp_path / "out", "type-1", 1, odd_network(), (1, 4, 4), 3, TrainingOptions(), 3).training
    assert (training.steps, training.batch, training.learning_rate) == (1, 5, pytest.approx(0.2))


@pytest.mark.parametrize("only", [0, 1])
def test_the_largest_group_of_equal_clients_is_attacked_together(rows, tmp_path, only):
    found = rows("larger", only=only, batch=2)
    assert (found["type-1"]["victims"], found["type-0"]["victims"]) == (2, 2)
    seen = trace_at(tmp_path / "out", "type-1", 1, odd_network(), (1, 4, 4), 3, TrainingOptions(), 3)
    assert (seen.view.victims, seen.training.batch, seen.left_out) == (2, 2, 1)


def test_the_attack_gets_the_round_counted_from_zero(rows, tmp_path):
    """Schedules of noise and the attack's draws depend on it."""
    rows("", **{"num-server-rounds": 2})
    for number in (1, 2):
        seen = trace_at(tmp_path / "out", "type-1", number, odd_network(), (1, 4, 4), 3, TrainingOptions(), 3)
        assert (seen.view.clock.round, seen.view.clock.rounds) == (number - 1, number)


def test_a_summed_loss_is_contradicted_by_the_truth(rows):
    [note] = attacked(rows, "sum", batch=3)
    assert note.startswith(DIFFERS) and "the update is 3 times it (a sum instead of a mean" in note


@pytest.mark.parametrize("rate", [1e-2, 1e-5])
def test_rounding_of_weights_contradicts_nothing(rows, rate):
    assert attacked(rows, "", rate=rate) == [""]


def test_autoleak_is_suited_to_the_network(rows):
    for row in rows("signed", model="odd_app:build_signed", attack="autoleak").values():
        assert row["note"].startswith("features of the last layer can be negative: autoleak counts labels")
        assert (row["measured"]["asr"], row["measured"]["label_accuracy"]) == (1, 1)


def test_integer_buffers_are_accepted(rows):
    for row in rows("masked", model="odd_app:build_masked").values():
        assert (row["victims"], row["note"], row["measured"]["asr"]) == (3, "", 1)


def test_the_gradient_of_a_step_with_a_closure_is_recorded(rows, tmp_path):
    for row in rows("closure").values():
        assert (row["victims"], row["note"], row["measured"]["asr"]) == (3, "", 1)
    for leak in read_leaks(tmp_path / "out", "type-2"):
        step, [one] = leak.arrays["step0/1.weight"], leak.arrays["example/1.weight"]
        assert abs(step - one).max() < 1e-6 and leak.said["local-steps"] == "1"


def test_batch_normalisation_is_attacked_in_train_mode(rows):
    """In train mode, as the observed model was: the truth then matches the update; with running statistics it does not."""
    words = {"model": "odd_app:build_mixing", "attack": "cpl", "batch": 2}
    few = ("--iterations", "2", "--victims", "1")
    heard, told = (rows("mixing", *few, *more, **words) for more in ((), ("--victim-mode", "eval")))
    assert "batch normalisation in train mode" in heard["type-2"]["note"] and heard["type-2"]["measured"] is None
    for tap in ("type-1", "type-0"):
        assert "computes by its batch's statistics; --victim-mode eval has the other" in heard[tap]["note"]
        assert "computes by its running statistics" in told[tap]["note"]
        assert DIFFERS not in heard[tap]["note"] and DIFFERS in told[tap]["note"]
