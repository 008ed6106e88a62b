"""Wrong input is one line on stderr that names the field or the file, exit code 2, nothing on stdout, and no files left."""

import errno
import gzip
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from command_line import called
from resealed import reseal

from leakbench.core.errors import InputError
from leakbench.data import commands as data_commands
from leakbench.data import find
from leakbench.storage.rows_file import read_rows, write_rows
from tests.published_files import published_file

SMALL = ["--attack", "cpl", "--victims", "2", "--iterations", "1", "--train-rounds", "0", "--taps", "type-2"]

OWN = {"title": "mine", "cite": "nobody", "unit": "example"}
CLIP = {"clip_layers": {"norm": 4.0}}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Use an empty working folder, a fresh cache, no data folder, no network, one thread."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in (find, data_commands):
        monkeypatch.setattr(module, "fetch_origin", no_network)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def no_network(*_: object) -> Path:
    raise InputError("no network in this test")


def contents() -> dict[str, bytes | None]:
    """Return everything in the working folder, {path: content, None for a folder}."""
    return {str(p): None if p.is_dir() else p.read_bytes() for p in Path().rglob("*")}


@pytest.fixture
def refused(monkeypatch, capsys):
    """Return a function that runs a command, checks its refusal, and returns the line."""

    def check(*arguments: str) -> str:
        before = contents()
        code, out, err = called(monkeypatch, capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("leakbench: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert "bug" not in err
        assert contents() == before
        return err

    return check


def names_all(line: str, words: str) -> bool:
    """Say whether the line contains every one of the words, with `|` between them."""
    return all(word in line for word in words.split("|"))


BN = "--attack inverting_gradients_batch_norm --victim-mode train"
"""An attack that compares statistics of batch normalisation."""

OPTIONS = [
    ("--attack clp", "attack|'clp'|did you mean 'cpl'"),
    ("--knows defence", "knows|'defence'|did you mean 'defense'"),
    ("--attack zzz", "attack|'zzz'|`leakbench list attacks` lists the names"),
    ("--defense fed_cpd", "defense|'fed_cpd'|did you mean 'fed_cdp'"),
    ("--dataset mnits", "dataset|'mnits'|did you mean 'mnist'"),
    ("--attack mine.txt", "attack|'mine.txt'|ends in .yaml"),
    ("--attack mine.yaml", "attack|no file 'mine.yaml'"),
    ("--defense ./no/mine.yaml", "defense|no file './no/mine.yaml'"),
    ("--model cnnn", "model|'cnnn'|did you mean 'cnn'"),
    ("--model torchvision:resnet19", "model|'torchvision:resnet19'|did you mean 'resnet1"),
    ("--model no.such:build", "model|'no.such:build' cannot be imported"),
    ("--leak-model torchvision:resnet18 --victim-mode eval", "leakbench: leak-model: 'torchv|3 channels|(1, 25, 25)"),
    (
        "--leak-model convnet_no_norm --size 8",
        "leakbench: leak-model: 'conv|at least 9 x 9|(1, 8, 8)|give --size 16, or 'mlp'",
    ),
    ("--model cnn --size 8", "leakbench: model: 'cnn'|at least 10 x 10|(1, 8, 8)|--size 16"),
    (
        "--leak-model vit_tiny --size 24 --trainable blocks:1",
        "leakbench: trainable: got 'blocks:1'|--model cnn has no blocks|both --model and --leak-model, such as vit_tiny",
    ),
    (
        "--targets mask",
        "targets: got 'mask', but 'faces' has no targets|leave it out|--dataset|cancer (radius); cifar10",
    ),
    ("--dataset cancer --targets mask", "targets: unknown name 'mask' for 'cancer'; known: radius"),
    ("--dataset folder:", "leakbench: dataset: got 'folder:' without a path, expected folder:PATH"),
    (
        "--proximal -1",
        "proximal: got -1, expected a number from 1e-30 to 1e30 with --algorithm fedprox, as 0.01, and 0 with",
    ),
    (
        "--iterations 5 --attack r_gap",
        "iterations: got 5, but the attack 'r_gap' does not search; leave out --iterations",
    ),
    ("--size 4", "size|got 4|at least 8"),
    ("--size 20 --dataset cancer", "size|got 20|'cancer' holds no pictures"),
    ("--statistics exact", "statistics|'exact'"),
    ("--statistics running", "statistics|'running'|--victim-mode train"),
    (
        "--leak-model resnet18_batch_norm --victim-mode train --taps type-1 --statistics given",
        "statistics|'given'|no prior of batch normalization|--attack inverting_gradients_batch_norm",
    ),
    (f"{BN} --leak-model resnet18_batch_norm --taps global --statistics given", "statistics|several clients at global"),
    (
        f"{BN} --model resnet18_batch_norm --taps type-1 --protocol live --local-iterations 2 --statistics inferred",
        "statistics|got 'inferred'|2 local iterations|expected batch, running or proxy",
    ),
    *(
        (
            f"{BN} --leak-model resnet18_batch_norm --taps type-1 --defense oasis --statistics {choice}",
            f"statistics|got '{choice}'|the defense changes the examples|expected batch, running or proxy",
        )
        for choice in ("given", "inferred")
    ),
    ("--leak-model lenet", "leak-model|'lenet'|did you mean 'lenet_"),
    ("--model convnet", "victim-mode|'convnet'|--victim-mode train|--victim-mode eval"),
    ("--model convnet --victim-mode evla", "victim-mode|'evla'|did you mean 'eval'"),
    ("--victim-mode eval", "victim-mode|got 'eval'|leave it out"),
    ("--leak-model convnet --victim-mode train", "victim-mode|no single example|type-2|--taps type-1"),
    ("--model convnet --victim-mode train --defense fed_cdp", "victim-mode|no single example|example station"),
    (
        "--leak-model vit_tiny",
        "leakbench: leak-model: 'vit_tiny'|25 x 25|multiples of 4|--size 24, or --dataset cifar10",
    ),
    ("--model vit_tiny", "leakbench: model: 'vit_tiny'|25 x 25|multiples of 4|--size 24"),
    ("--init he", "init|'he'|default, torch, kaiming, xavier or uniform:<a>"),
    ("--protocol papr", "protocol|'papr'|did you mean 'paper'"),
    ("--taps type-3", "taps|'type-3'"),
    ("--taps type-2,typ", "taps|'typ'"),
    ("--taps ,", "taps|','"),
    ("--leak-rounds ,", "leak-rounds|','"),
    ("--atack cpl", "--atack|--attack"),
    ("--victims two", "--victims|'two'|integer"),
    ("--victims 1.5", "--victims|'1.5'|integer"),
    ("--victims", "--victims"),
    ("--victims 0", "victims|got 0|at least 1"),
    ("--victims -3", "victims|got -3|at least 1"),
    ("--victims 9999", "victims|got 9999|'faces' holds"),
    ("--iterations 0", "iterations|got 0|at least 1"),
    ("--iterations 99999999999", "iterations|got 99999999999|at most 1000000"),
    ("--train-rounds 99999999999", "train-rounds|got 99999999999|at most 1000000000"),
    ("--reads weights", "reads|type-2|--taps type-1"),
    ("--train-rounds -1", "train-rounds|got -1|at least 0"),
    ("--clients 0", "clients|got 0|at least 1"),
    ("--clients-per-round 9999", "clients-per-round|got 9999|more than there are clients"),
    ("--clients 2 --clients-per-round 3", "clients-per-round|got 3|2"),
    ("--local-iterations 0", "local-iterations|got 0|at least 1"),
    ("--batch 0", "batch|got 0|at least 1"),
    ("--batch 9999", "batch|got 9999|examples that a client holds"),
    ("--leak-batch 0", "leakbench: leak-batch: got 0, expected at least 1"),
    ("--leak-batch 9999 --taps type-1", "leak-batch|9999|examples"),
    ("--candidates 1", "candidates|got 1|at least 2"),
    ("--seed -1", "seed|got -1|at least 0"),
    ("--seed x", "--seed|'x'"),
    ("--train-rounds 1 --leak-rounds 1", "leak-rounds|paper|--protocol live"),
    ("--protocol live --train-rounds 3 --leak-rounds 4", "leak-rounds|got 4|only 3 rounds"),
    ("--protocol live --leak-rounds -1", "leak-rounds|'-1'|last"),
    ("--protocol live --leak-rounds first", "leak-rounds|'first'|last"),
    ("--leak-rounds first", "leak-rounds|'first'|expected round numbers|last"),
    ("--modle convnet", "No such option|Did you mean '--model'?"),
    ("--success foo", "success|'foo'|rmse<=0.1"),
    ("--success rmse<0.1", "success|'rmse<0.1'|rmse<=0.1"),
    ("--success rmse<=", "success|rmse<=0.1"),
    ("--success rmse<=nan", "success|nan|0 < RMSE <= 1"),
    ("--success rmse<=inf", "success|inf|0 < RMSE <= 1"),
    ("--success rmse<=0", "success|0.0|0 < RMSE <= 1"),
    ("--success rmse<=-.1", "success|-0.1|0 < RMSE <= 1"),
    ("--device gpu", "device|'gpu'|try cpu"),
    ("--data-dir no --dataset mnist", "--data-dir|'no'"),
    ("--data-dir no", "--data-dir|'no'"),
    ("--lpips-weights no", "--lpips-weights|'no'"),
    ("--dataset mnist", "mnist|no network|leakbench data fetch mnist|faces"),
    ("--dataset cancer --leak-model lenet_cpl", "model|'lenet_cpl'|pictures|mlp_sigmoid"),
    ("stray", "stray"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=[options for options, _ in OPTIONS])
def test_an_option_of_run(options, words, refused):
    assert names_all(refused("run", *SMALL, *options.split()), words)


@pytest.mark.parametrize("command", ["gate", "baseline"])
def test_a_missing_folder_is_that_of_a_run(command, refused):
    assert "Missing argument 'FOLDER'. Give the folder of a finished run." in refused(command)


def test_a_missing_graphics_card(refused, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert names_all(refused("run", "--device", "cuda", *SMALL), "device|'cuda'|try cpu")


RECIPES = [
    ("", "None|mapping"),
    ("- a\n- b\n", "mapping"),
    (
        "title: [unclosed\n",
        "in line 2, column 1, while parsing a list in [ ] that begins in line 1, column 8",
    ),
    ("title: a\n\tcite: b\n", "not valid YAML|line 2"),
    ("title: !!python/object/apply:os.getcwd []\n", "not valid YAML|python/object"),
    ("cite: c\nunit: example\n", "missing|'title'"),
    ("title: t\nunit: example\n", "missing|'cite'"),
    ("title: t\ncite: c\n", "missing|'unit'"),
    ("title: 3\ncite: c\nunit: example\n", "title|string|3"),
    ("title: t\ncite:\nunit: example\n", "cite|string|None"),
    ("title: t\ncite: c\nunit: user\n", "unit|'example' or 'client'|'user'"),
    ("title: t\ncite: c\nunit: example\ntitle: u\n", "'title' appears twice|line 4"),
    (
        "title: t\ncite: c\nunit: example\nexample:\n- {clip_layers: {norm: 1, norm: 2}}\n",
        "'norm' appears twice|line 5",
    ),
]


@pytest.mark.parametrize(("text", "words"), RECIPES)
def test_a_user_recipe(text, words, refused):
    Path("own.yaml").write_text(text)
    assert names_all(refused("run", "--defense", "own.yaml", *SMALL), "own.yaml|" + words)


def test_a_recipe_that_is_not_text(refused):
    Path("own.yaml").write_bytes(b"title: \xff\xfe\n")
    assert names_all(refused("run", "--defense", "own.yaml", *SMALL), "own.yaml|utf-8")


FIELDS = [
    ({"exmaple": []}, "unknown field 'exmaple'|did you mean 'example'"),
    ({"example": CLIP}, "example|tuple"),
    ({"example": "clip_layers"}, "example|tuple"),
    ({"example": [{"clip_layer": {"norm": 4.0}}]}, "example.0|'clip_layer'|did you mean 'clip_layers'"),
    ({"example": ["clip_layers"]}, "example.0|clip_layers|missing field 'norm'"),
    ({"example": [{"clip_layers": 4.0}]}, "example.0|clip_layers|got 4.0|mapping"),
    ({"example": [{"clip_layers": {"norm": float("nan")}}]}, "example.0|clip_layers|norm|finite|nan"),
    ({"example": [{"clip_layers": {"norm": float("inf")}}]}, "example.0|clip_layers|norm|finite|inf"),
    ({"example": [CLIP, {"clip_whole": {"norm": -4.0}}]}, "example.1|clip_whole|norm|greater than 0|-4.0"),
    ({"example": [{"clip_layers": {"norm": 0}}]}, "example.0|clip_layers|norm|greater than 0|got 0"),
    ({"example": [{"clip_layers": {"norm": "4"}}]}, "example.0|clip_layers|norm|number|'4'"),
    ({"example": [{"clip_layers": {"nrom": 4.0}}]}, "example.0|clip_layers|'nrom'|did you mean 'norm'"),
    ({"example": [{**CLIP, "l2_max": {}}]}, "example.0|one part"),
    ({"client": [CLIP, {"gaussian_noise": {"multiplier": -1.0, "to": "sum"}}]}, "client.1|multiplier|-1.0"),
    ({"client": [CLIP, {"gaussian_noise": {"multiplier": 1.0, "to": "all"}}]}, "client.1|to|'each', 'sum' or 'mean'"),
    ({"batches": "random"}, "batches|'fixed', 'split' or 'poisson'|'random'"),
    ({"claim": "moments"}, "claim|moments|missing field"),
    ({"claim": {"moments": {"unit": "example", "noise_multiplier": 6.0, "delta": 1.5}}}, "claim|delta|less than 1|1.5"),
    ({"claim": {"magic": {}}}, "claim|'magic'|moments"),
]


@pytest.mark.parametrize(("fields", "words"), FIELDS)
def test_a_field_of_a_defense(fields, words, refused):
    Path("own.yaml").write_text(yaml.safe_dump({**OWN, **fields}))
    assert names_all(refused("run", "--defense", "own.yaml", *SMALL), "own.yaml|" + words)


NOISE = {"gaussian_noise": {"multiplier": 1.0, "to": "sum"}}


@pytest.mark.parametrize("command", ["run", "epsilon"])
@pytest.mark.parametrize(
    ("steps", "words"),
    [([NOISE], "gaussian_noise|no clip|uncalibrated"), (["l2_max"], "l2_max|no clip|clip_layers")],
    ids=["noise", "l2_max"],
)
def test_noise_or_its_scale_without_a_clip(command, steps, words, refused):
    Path("own.yaml").write_text(yaml.safe_dump({**OWN, "example": steps}))
    assert names_all(refused(command, "--defense", "own.yaml", *(SMALL if command == "run" else ())), words)


ATTACK = {
    "title": "mine",
    "cite": "nobody",
    "method": {
        "gradient_matching": {"labels": "joint", "start": "normal", "distance": "squared_l2", "descent": "lbfgs"}
    },
}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("labels", "jiont", "labels|'jiont'|did you mean 'joint'"),
        ("start", {"patterned": {"tile": 0}}, "start|patterned|tile|1|got 0"),
        ("stop", {"iterations": {"limit": 2.5}}, "stop|iterations|limit|integer|2.5"),
        ("space", None, "space|None|pixels"),
        ("colour", "red", "'colour'|labels"),
    ],
)
def test_a_field_of_an_attack(field, value, words, refused):
    method = {**ATTACK["method"]["gradient_matching"], field: value}
    Path("own.yaml").write_text(yaml.safe_dump({**ATTACK, "method": {"gradient_matching": method}}))
    assert names_all(refused("run", *SMALL, "--attack", "own.yaml"), "own.yaml|method|" + words)


ROLES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}


def idx(*shape: int) -> bytes:
    """Return a gzipped idx file of zeros."""
    count = int(torch.Size(shape).numel())
    sizes = b"".join(n.to_bytes(4, "big") for n in shape)
    return gzip.compress(bytes([0, 0, 8, len(shape)]) + sizes + bytes(count))


def test_a_file_of_mnist_with_another_checksum(refused):
    for file in ROLES.values():
        path = Path("data/mnist", file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(idx(2, 28, 28))
    line = refused("run", "--dataset", "mnist", "--data-dir", "data", *SMALL)
    assert names_all(line, "data/mnist/train-images-idx3-ubyte.gz|sha256|expected 440fcabf|fetch it again")


def test_one_file_of_mnist_that_is_missing(refused):
    Path("data/mnist").mkdir(parents=True)
    Path("data/mnist", ROLES["train_labels"]).write_bytes(b"")
    line = refused("run", "--dataset", "mnist", "--data-dir", "data", *SMALL)
    assert names_all(line, "data/mnist/train-images-idx3-ubyte.gz|missing")


def own_dataset(damage: bytes | None = None, **fields: object) -> str:
    """Write a user's data set into `data/own`, its training pictures replaced by `damage`; return its recipe."""
    files = {
        "train_images": idx(6, 9, 9),
        "train_labels": idx(6),
        "test_images": idx(2, 9, 9),
        "test_labels": idx(2),
    }
    if damage is not None:
        files["train_images"] = damage
    Path("data/own").mkdir(parents=True)
    form: dict[str, object] = {"class_names": ["a", "b"]}
    for role, content in files.items():
        Path("data/own", ROLES[role]).write_bytes(content)
        form[role] = {"file": ROLES[role], "sha256": hashlib.sha256(content).hexdigest()}
    recipe = {
        "title": "mine",
        "cite": "nobody",
        "license": "none",
        "format": {"idx": form},
        "federation": {"clients": 2, "clients_per_round": 1, "rounds": 1, "batch": 1, "examples_per_client": 3},
        "origin": {"layouts": ["own"], "marker": "*.gz", "megabytes": 1.0, "mirrors": ["https://invalid.invalid/"]},
    }
    Path("own.yaml").write_text(yaml.safe_dump({**recipe, **fields}))
    return "own.yaml"


def test_a_truncated_gzip_file(refused):
    line = refused("run", "--dataset", own_dataset(idx(6, 9, 9)[:-9]), "--data-dir", "data", *SMALL)
    assert names_all(line, "data/own/train-images-idx3-ubyte.gz|not a whole gzip file")


def test_a_file_with_wrong_content(refused):
    line = refused("run", "--dataset", own_dataset(idx(6, 9)), "--data-dir", "data", *SMALL)
    assert names_all(line, "data/own/train-images-idx3-ubyte.gz|not an idx file of 3 dimensions")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"federation": {"rounds": 1, "batch": 4, "examples_per_client": 3}}, "federation|batch|got 4|3"),
        ({"federation": {"rounds": -1, "batch": 1, "examples_per_client": 3}}, "federation|rounds|got -1"),
        ({"federation": {"round": 1}}, "federation|'round'|did you mean 'rounds'"),
        ({"origin": {"layouts": ["../own"]}}, "origin"),
        ({"format": {"idx": {"train_images": {"file": "a.gz", "sha256": "00"}}}}, "format|idx|sha256"),
        ({"format": {"tiff": {}}}, "format|'tiff'|idx"),
        ({"license": None}, "license|string"),
    ],
)
def test_a_field_of_a_data_set(fields, words, refused):
    line = refused("run", "--dataset", own_dataset(**fields), "--data-dir", "data", *SMALL)
    assert names_all(line, "own.yaml|" + words)


def test_out_is_a_file(refused):
    Path("taken").write_text("mine")
    assert names_all(refused("run", "--out", "taken", *SMALL), "out|'taken'|--out")


def test_out_is_below_a_file(refused):
    Path("taken").write_text("mine")
    assert names_all(refused("run", "--out", "taken/run", *SMALL), "out|'taken/run'|--out")


def test_out_may_not_be_written_to(refused, tmp_path):
    folder = Path("closed")
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    assert names_all(refused("run", "--out", "closed/run", *SMALL), "out|'closed/run'|--out")


def test_out_contains_other_files(refused):
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    assert names_all(refused("run", "--out", "full", *SMALL), "out|'full'|holds no run|--out")


@pytest.fixture
def finished(monkeypatch, capsys, with_pages) -> Path:
    """Return the folder of a finished run."""
    code, _, _ = called(monkeypatch, capsys, "run", "--out", "run", "--quiet", *SMALL)
    assert code == 0
    return Path("run")


@pytest.mark.slow
def test_out_contains_another_cell(refused, finished):
    line = refused("run", "--out", str(finished), *SMALL, "--seed", "1")
    assert names_all(line, "out|'run'|another cell|--out")


def damage_manifest(folder: Path, **fields: object) -> None:
    reseal(folder, {**json.loads((folder / "manifest.json").read_text()), **fields})


@pytest.mark.slow
def test_a_damaged_manifest(refused, finished):
    whole = (finished / "manifest.json").read_bytes()
    again = ("run", "--out", str(finished), *SMALL)
    for damaged in (whole[: len(whole) // 2], b"", b"[]", b"\xff\xfe"):
        (finished / "manifest.json").write_bytes(damaged)
        assert names_all(refused(*again), "run/manifest.json|move")
    (finished / "manifest.json").write_bytes(whole)
    (finished / "manifest.json").write_text(json.dumps({**json.loads(whole), "schema": 99}))
    assert names_all(refused(*again), "run/manifest.json|schema 99|move")
    (finished / "manifest.json").write_bytes(whole.replace(b'"seed": 0', b'"seed": 1', 1))
    assert names_all(refused(*again), "run/manifest.json|checksum|move")
    unsealed = {name: value for name, value in json.loads(whole).items() if name != "checksum"}
    (finished / "manifest.json").write_text(json.dumps(unsealed))
    assert names_all(refused(*again), "run/manifest.json|checksum|move")
    for field in ("hash", "files", "phases", "complete"):
        (finished / "manifest.json").write_bytes(whole)
        damage_manifest(finished, **{field: None})
        assert names_all(refused(*again), f"run/manifest.json|{field}|move")


def test_a_report_of_a_run_without_rows(refused, finished):
    (finished / "rows.parquet").unlink()
    assert names_all(refused("report", str(finished)), "run/rows.parquet|is missing|run the cell again")


def test_a_comparison_with_a_run_without_rows(refused, finished):
    (finished / "rows.parquet").unlink()
    assert names_all(refused("compare", str(finished), str(finished)), "run/rows.parquet|is missing|run the cell again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("report run run --out run/report.html", "out|'run/report.html'|a file of the run in"),
        ("report run run --out run/manifest.json", "out|'run/manifest.json'|ends in .html"),
        ("schema --out run/manifest.json", "out|'run/manifest.json'|a file of the run in"),
        ("schema --out run/rows.parquet", "out|'run/rows.parquet'|a file of the run in"),
        ("leaderboard --out run/report.html", "out|'run/report.html'|a file of the run in"),
        (
            "gate other --baseline other --markdown run/manifest.json",
            "markdown|'run/manifest.json'|a file of the run in",
        ),
        ("gate other --baseline other --junit run/rows.parquet", "junit|'run/rows.parquet'|a file of the run in"),
    ],
)
def test_a_run_s_file_is_never_written_over(command, words, refused, finished):
    shutil.copytree(finished, "other")
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert names_all(refused(*command.split()), words)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report run", "compare run run"])
def test_rows_written_by_another_program(command, refused, finished):
    write_rows(finished / "rows.parquet", read_rows(finished / "rows.parquet").assign(rmse=0.5))
    assert names_all(refused(*command.split()), "run/rows.parquet|is not what the run wrote|run the cell again")


COMMANDS = [
    ("conformance --lpips-weights .", "lpips-weights|'.'|not found"),
    ("frobnicate", "frobnicate"),
    ("epsilon --delta 2", "delta|2.0|(0, 1)"),
    ("epsilon --delta 0", "delta|0.0|(0, 1)"),
    ("epsilon --delta nan", "delta|nan|(0, 1)"),
    ("epsilon --defense fed_cpd", "defense|did you mean 'fed_cdp'"),
    ("epsilon --clients 0", "clients|got 0"),
    ("report", "FOLDER"),
    ("report no", "'no'|folder of a run"),
    ("report .", "'.'|folder of a run"),
    ("report --out x", "FOLDER"),
    ("data verify mnits", "dataset|'mnits'|did you mean 'mnist'"),
    ("data verify mnist", "'mnist'|leakbench data fetch mnist"),
    ("data fetch mnits", "dataset|'mnits'|did you mean 'mnist'"),
    ("data fetch mnist", "no network"),
    ("data list --data-dir no", "--data-dir|'no'"),
    ("data frobnicate", "frobnicate"),
    ("data verify", "NAME"),
    ("list attack", "list|'attack'|did you mean 'attacks'"),
    ("show clp", "show|'clp'|did you mean 'cpl'"),
    ("show mine.yaml", "show|no file 'mine.yaml'"),
    ("show", "NAME"),
    ("schema --out .", "."),
]


@pytest.mark.parametrize(("command", "words"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_another_command(command, words, refused):
    assert names_all(refused(*command.split()), words)


def test_a_report_of_a_file(refused):
    Path("taken").write_text("mine")
    assert names_all(refused("report", "taken"), "taken")


def test_an_unexpected_error_is_one_line_too(monkeypatch, capsys, tmp_path):
    """It is a bug of leakbench, also where a library raises it, unless other code was called, such as a user's part."""
    monkeypatch.setattr("leakbench.catalog.list_kind", "not a function")
    code, out, err = called(monkeypatch, capsys, "list")
    assert (code, out) == (70, "")
    assert err == "leakbench: a bug in leakbench (TypeError: 'str' object is not callable); --debug shows where\n"
    monkeypatch.setattr("leakbench.catalog.list_kind", partial(json.loads, "two\nlines"))
    _, _, err = called(monkeypatch, capsys, "list")
    assert err.startswith("leakbench: a bug in leakbench (") and err.count("\n") == 1
    own = tmp_path / "own_part.py"
    own.write_text("import json\n\ndef part(kind):\n    return json.loads(kind + '?')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("leakbench.catalog.list_kind", importlib.import_module("own_part").part)
    code, out, err = called(monkeypatch, capsys, "list")
    assert (code, out) == (70, "")
    assert err.startswith(f"leakbench: an error in {own}, line 4 (JSONDecodeError: ") and err.count("\n") == 1


def test_debug_shows_the_place(monkeypatch, capsys):
    with pytest.raises(InputError, match="unknown name 'clp'"):
        called(monkeypatch, capsys, "--debug", "show", "clp")


@pytest.mark.parametrize("command", [[], ["data"], ["--help"], ["run", "--help"]], ids=" ".join)
def test_help_is_not_an_error(command, monkeypatch, capsys):
    code, out, err = called(monkeypatch, capsys, *command)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: leakbench")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1:strict"])
@pytest.mark.parametrize(("arguments", "code"), [(["report", "\u017co\u0142\u0105d\u017a"], 2), (["show", "geyer"], 0)])
def test_a_terminal_without_unicode_shows_question_marks(encoding, arguments, code, tmp_path):
    env = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    line = [sys.executable, "-m", "leakbench", *arguments]
    found = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert found.returncode == code and b"UnicodeEncodeError" not in found.stderr and b"bug" not in found.stderr
    assert code == 0 or (found.stderr.count(b"\n") == 1 and (b"?" in found.stderr or encoding.startswith("ascii")))


def test_a_full_disk_names_the_file(monkeypatch, capsys, tmp_path):
    name = "geyer_table_1_rounds"
    published = published_file(f"{name}.csv")
    (tmp_path / f"{name}.csv").write_bytes(published.read_bytes())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("leakbench.storage.atomic.os.fsync", full)
    code, out, err = called(monkeypatch, capsys, "reproduce", name, "--page", "--out", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"leakbench: {tmp_path / name}.md: No space left on device\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [f"{name}.csv"]
