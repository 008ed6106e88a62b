"""Before training, the attack is tried on one victim: unsuitable requests are refused before time is spent."""

from pathlib import Path

import pytest

from leakbench import execute
from tests.command_line import called

LIVE = [
    *("--dataset", "digits", "--protocol", "live", "--taps", "type-1", "--victims", "2", "--clients", "4"),
    *("--local-iterations", "3", "--batch", "2", "--train-rounds", "1"),
]


def recipe(folder: Path, **method: str) -> str:
    fields = {
        "labels": "joint",
        "start": "uniform",
        "distance": "squared_l2",
        "descent": "lbfgs",
        "stop": "{iterations: {limit: 2}}",
    }
    said = "\n".join(f"    {name}: {value}" for name, value in (fields | method).items())
    path = folder / "mine.yaml"
    path.write_text(f"title: mine\ncite: none\nmethod:\n  gradient_matching:\n{said}\nserver: honest\n")
    return str(path)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"priors": "[{batch_norm: {weight: 1.0}}]"}, "priors: batch_norm needs a model with batch normalisation"),
        ({"local_steps": "2"}, "local_steps: got 2, expected a divisor of the 3 local iterations"),
    ],
)
def test_a_misfit_is_refused_before_training(method, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(execute, "train_federation", lambda *_: pytest.fail("it was trained"))
    run = tmp_path / "run"
    code, out, err = called(
        monkeypatch, capsys, "run", *LIVE, "--attack", recipe(tmp_path, **method), "--out", str(run), "--quiet"
    )
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["identification", "cpl"])
def test_a_suitable_request_is_rehearsed_once_and_trained(attack, tmp_path, monkeypatch, capsys):
    rehearsed = []
    rehearse = execute.rehearse
    monkeypatch.setattr(execute, "rehearse", lambda *given: rehearsed.append(rehearse(*given)))
    short = ("--iterations", "1") if attack == "cpl" else ()
    line = ("run", *LIVE, "--attack", attack, *short, "--out", str(tmp_path / "run"), "--quiet", "--candidates", "5")
    assert called(monkeypatch, capsys, *line)[0] == 0
    assert called(monkeypatch, capsys, *line)[0] == 0
    assert rehearsed == [None]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--dataset", "faces", "--attack", "feature_inversion"), "got a view that does not show one"),
        (
            ("--dataset", "faces", "--attack", "cocktail_party", "--leak-model", "lenet_cpl"),
            "with which this network does not begin",
        ),
        (("--dataset", "digits", "--attack", "cocktail_party", "--leak-model", "mlp_100"), "got 120 examples"),
    ],
)
def test_a_leakage_point_that_cannot_be_read_is_refused_before_another_is_attacked(
    more, said, tmp_path, monkeypatch, capsys
):
    """Under the paper protocol the attacks come first: type-2 would be attacked for nothing."""
    monkeypatch.setattr(execute, "attack_leak", lambda *_: pytest.fail("it was attacked"))
    line = ("run", "--victims", "2", "--train-rounds", "0", "--leak-batch", "30" if "faces" in more else "120")
    code, out, err = called(monkeypatch, capsys, *line, *more, "--out", str(tmp_path / "run"), "--quiet")
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "run").exists()
