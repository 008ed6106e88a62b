"""`leakbench flower`: from a user's app folder to the table, and refusals."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import called
from documented import follow

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'leakbench[flower]'")

HOME = Path(__file__).parents[2]
APP = HOME / "examples" / "flower" / "app"
NOISY = 'defense="fed_sdp_client_valid"'


@pytest.fixture
def flower(monkeypatch, capsys, tmp_path):
    """Call the command on the example app, or another one."""

    def call(*more, app=APP, model="digits_app.task:build", shape="1,8,8"):
        monkeypatch.setattr(sys, "path", list(sys.path))
        # Workers of pytest-xdist have 80 columns, which are too few for the table.
        monkeypatch.setenv("COLUMNS", "140")
        words = (
            "--model",
            model,
            "--shape",
            shape,
            "--classes",
            "10",
            "--clients",
            "3",
            "--out",
            str(tmp_path / "out"),
        )
        return called(monkeypatch, capsys, "flower", str(app), *words, *more)

    return call


def measured(flower, *more):
    code, out, err = flower("--rounds", "1", "--dataset", "digits", "--json", *more)
    assert code == 0, err
    return {row["tap"]: row for row in json.loads(out)}


def test_an_undefended_app_leaks_everywhere(flower, tmp_path):
    found = measured(flower)
    assert list(found) == ["type-2", "type-1", "type-0"]
    for row in found.values():
        # The app's clients hold digits of all examples, also public ones.
        note = "1 of the 450 public examples of 'digits' are true examples and left out, since an attacker has no private ones"
        lines = row["note"].split("\n")
        assert (row["round"], row["victims"], row["examples"], lines[0]) == (1, 3, 1, note)
        assert "the search " in lines[1] and len(lines) == 2
        assert row["measured"]["asr"] == 1 and row["measured"]["rmse"] < 0.01
        assert row["measured"]["null_asr"] < 0.5
    assert (tmp_path / "out" / "rebuilt.safetensors").is_file()


@pytest.mark.parametrize("name", ["sent/letter.txt", "rebuilt.safetensors", "notes.md"])
def test_a_folder_with_files_of_the_users_own_is_refused_before_the_app_runs(flower, tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine", encoding="utf-8")
    code, out, err = flower("--rounds", "1")
    assert (code, out) == (2, "") and err.startswith("leakbench: out: ") and err.count("\n") == 1
    assert [p.name for p in (tmp_path / "out").rglob("*") if p.is_file()] == [path.name]
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_second_run_replaces_the_first(flower, tmp_path):
    measured(flower, "--attack", "cpl_grey")
    before = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "out" / "type-1" / "round00001-node2.safetensors").rename(
        tmp_path / "out" / "type-1" / "round00007-node2.safetensors"
    )
    measured(flower, "--attack", "cpl_grey")
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_a_defended_app_leaks_only_inside_the_client(flower):
    found = measured(flower, "--run-config", NOISY, "--defense", "fed_sdp_client_valid")
    assert {tap: row["measured"]["asr"] for tap, row in found.items()} == {"type-2": 1, "type-1": 0, "type-0": 0}


def test_the_table_shows_the_leak_of_each_point(flower):
    code, out, err = flower("--rounds", "2", "--leak-rounds", "last", "--attack", "cpl_grey")
    assert code == 0, err
    assert out.startswith("RECONSTRUCTS: 3 of 3 images from 3 client updates (baseline guess: 0 of 3)\n")
    points = ["example gradient (type-2)", "client update (type-1)", "server-side update (type-0)"]
    table = out.partition("─\n")[2].splitlines()[: len(points)]
    assert [line.startswith(point) for point, line in zip(points, table, strict=True)] == [True] * 3
    assert "leaks:" in out


@pytest.fixture
def silent(tmp_path):
    """Write the example app without the line `observe`, under another name."""
    app = tmp_path / "silent"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "digits_app").rename(app / "silent_app")
    for path in (app / "pyproject.toml", *(app / "silent_app").glob("*.py")):
        text = path.read_text(encoding="utf-8").replace("digits_app", "silent_app")
        path.write_text("".join(line for line in text.splitlines(True) if "observe(x" not in line), encoding="utf-8")
    return app


def test_an_app_without_observe_has_reconstructions_without_scores(flower, silent):
    code, out, err = flower("--rounds", "1", "--json", "--batch", "1", app=silent, model="silent_app.task:build")
    assert code == 0, err
    found = {row["tap"]: row for row in json.loads(out)}
    assert "does not call leakbench.flower.observe" in found["type-2"]["note"] and found["type-2"]["victims"] == 0
    assert found["type-1"]["measured"] is None and "no score" in found["type-1"]["note"]
    assert len(found["type-1"]["distance"]) == 3
    code, _, err = flower("--rounds", "1", app=silent, model="silent_app.task:build")
    assert code == 2 and "pass --batch" in err


OLD = """
import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from torch import nn

from leakbench.flower import observe


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16).eval(), nn.Sigmoid(), nn.Linear(16, 10))


def weights(model):
    return [tensor.numpy() for tensor in model.state_dict().values()]


class Client(NumPyClient):
    def __init__(self, partition):
        self.rng = torch.Generator().manual_seed(partition)

    def fit(self, parameters, config):
        model = build()
        state = zip(model.state_dict(), map(torch.tensor, parameters), strict=True)
        model.load_state_dict(dict(state))
        x, y = torch.rand(1, 1, 8, 8, generator=self.rng), torch.randint(10, (1,), generator=self.rng)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        observe(x, y, model, nn.functional.cross_entropy)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        return weights(model), 1, {}


def server_fn(context):
    start = ndarrays_to_parameters(weights(build()))
    strategy = FedAvg(fraction_evaluate=0.0, initial_parameters=start)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=context.run_config["num-server-rounds"]))


client = ClientApp(client_fn=lambda context: Client(context.node_config["partition-id"]).to_client())
server = ServerApp(server_fn=server_fn)
"""


@pytest.mark.filterwarnings("ignore")
def test_an_app_of_the_older_kind_with_numbered_arrays(flower, tmp_path):
    """Its server queries clients from several threads."""
    (tmp_path / "old_app.py").write_text(OLD, encoding="utf-8")
    project = '[tool.flwr.app.components]\nserverapp = "old_app:server"\nclientapp = "old_app:client"\n'
    (tmp_path / "pyproject.toml").write_text(
        project + "[tool.flwr.app.config]\nnum-server-rounds = 1\n", encoding="utf-8"
    )
    code, out, err = flower("--attack", "analytic_fc", "--json", app=tmp_path, model="old_app:build")
    assert code == 0, err
    found = {row["tap"]: row["measured"] for row in json.loads(out)}
    assert {tap: measured["asr"] for tap, measured in found.items()} == {"type-2": 1, "type-1": 1, "type-0": 1}


@pytest.mark.parametrize(
    ("more", "options", "says"),
    [
        ((), {"model": "digits_app.task:nothing"}, "model: 'digits_app.task:nothing' cannot be imported"),
        (
            (),
            {"model": "digits_app.task:load_digits"},
            "model: 'digits_app.task:load_digits' returned Bunch, expected a torch.nn.Module",
        ),
        (
            (),
            {"model": "torch.nn:Flatten"},
            "model: 'torch.nn:Flatten' returned Flatten, expected a torch.nn.Module with parameters",
        ),
        ((), {"shape": "8;8"}, "shape: got '8;8'"),
        ((), {"shape": "1,4,4"}, "shape: got (1, 4, 4), but the app trains on inputs of (1, 8, 8)"),
        (("--run-config", "lr=1"), {}, "run-config: the app's config has no 'lr'"),
        (("--run-config", "defense=none"), {}, "run-config: got 'defense=none', expected KEY=VALUE"),
        (("--run-config", 'defense="fed_cdp"'), {}, "acts at the example station"),
        (("--leak-rounds", "7"), {}, "leak-rounds: got '7', expected some of [1]"),
        (("--attack", "cpl_oracle_labels"), {}, "attack: it needs labels"),
        (("--attack", "imprint"), {}, "tampers with the model"),
        (("--attack", "identification"), {}, "attack: it needs candidates"),
        (("--dataset", "faces"), {}, "dataset: 'faces' has inputs of (1, 25, 25)"),
        ((), {"app": HOME / "tests"}, "no pyproject.toml, expected a Flower app"),
        ((), {"app": HOME}, "tool.flwr.app.components has no 'serverapp'"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(flower, more, options, says):
    code, _, err = flower("--rounds", "1", *more, **options)
    [line] = [line for line in err.splitlines() if line.startswith("leakbench: ")]
    assert code == 2 and says in line, line
    assert "Traceback" not in err


def test_the_commands_of_the_page_print_its_output(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = follow("flower.md", lambda *arguments: called(monkeypatch, capsys, *arguments))
    assert [command.split()[:3] for command in done] == [["leakbench", "flower", "."]] * 2


@pytest.mark.flower
def test_a_deployment_on_loopback_equals_the_run_in_process():
    """SuperLink, two SuperNodes, two runs of two rounds: bits, attacks and weights, which the script checks itself.

    The environment with Flower need not be the active one.
    """
    command = [sys.executable, str(HOME / "examples" / "flower" / "deploy.py"), "--rounds", "2"]
    paths = os.pathsep.join([str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])])
    elsewhere = [
        folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != Path(sys.executable).parent
    ]
    own = {**os.environ, "PYTHONPATH": paths, "PATH": os.pathsep.join(elsewhere)}
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bit-identical: True") == 2
