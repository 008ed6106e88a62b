"""Every option is validated before any data set is searched: without data, the message names the option."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import torch
from command_line import called
from safetensors.torch import save_file
from torch import nn

from leakbench import api
from leakbench.cell.budget import plan
from leakbench.cli import commands
from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder
from leakbench.core.request import MODEL_NAMES, Request, check_word
from leakbench.core.words import DEVICES
from leakbench.data import commands as data_commands
from leakbench.data import find
from leakbench.defense import facts
from leakbench.federated.view import alone_by
from leakbench.models import MODELS as NETWORKS

BAD = {
    "max_epsilon": "0",
    "observer": "type-9",
    **dict.fromkeys(
        ("defense", "model", "leak_model", "victim_mode", "init", "trainable", "loss", "attack", "knows", "protocol"),
        "none_such",
    ),
    **dict.fromkeys(
        (
            "client_optimizer",
            "algorithm",
            "partition",
            "availability",
            "reads",
            "engine",
            "device",
            "success",
            "threshold",
            "tracker",
        ),
        "none_such",
    ),
    **dict.fromkeys(
        (
            "clients",
            "clients_per_round",
            "local_iterations",
            "epochs",
            "examples_per_client",
            "batch",
            "victims",
            "iterations",
            "evaluations",
            "networks",
        ),
        "0",
    ),
    "budget": "-1",
    "size": "0",
    "statistics": "none_such",
    "targets": "none_such",
    "scores": "none_such.csv",
    "claimed": "-1",
    "gaussian": "2,1",
    **dict.fromkeys(
        ("leak_batch", "tokens", "observations", "candidates", "seeds", "identify", "trials", "repeats", "outer"), "0"
    ),
    **dict.fromkeys(
        (
            "momentum",
            "weight_decay",
            "proximal",
            "learning_rate",
            "epsilon",
            "stop_at_epsilon",
            "seed",
            "train_rounds",
            "sigma",
            "clip",
            "canaries",
        ),
        "-1",
    ),
    **dict.fromkeys(("dropout", "stop_at_delta", "delta", "reach"), "2"),
    **dict.fromkeys(("noise_factor", "clip_factor", "examples_per_person"), "0"),
    **dict.fromkeys(("taps", "leak_rounds", "protocols", "defenses", "noise_factors", "scale", "only"), "none_such"),
    **dict.fromkeys(
        ("lpips_weights", "into", "data_dir", "page", "updates", "befores", "truth", "vocabulary"), "none_such"
    ),
    **dict.fromkeys(("out", "runs"), "a_file"),
    **{"dataset": "none_such", "function": "none_such", "changes": "victims=0", "checked": "none_such.json"},
    **{"builder": "none_such:build", "shape": "1,x", "classes": "1", "tap": "none_such", "mean": "x", "std": "x"},
    **{"workers": "0", "threads": "0", "gpus_per_cell": "-1", "slurm": "none_such", "address": "no/address"},
}
"""{parameter of a command: a value that no data set allows}."""

NO_BAD_VALUE = {
    "as_json",
    "quiet",
    "verbose",
    "as_latex",
    "help",
    "join_rounds",
    "pictures",
    "retry_failed",
    "again",
    "quick",
    "stale",
}
"""Parameters that are flags."""

ELSEWHERE = {
    # Without these, the base command would be a different one; their values are tested with the option itself.
    ("reproduce", "page"),
    ("frontier", "page"),
    ("attack", "afters"),
    ("attack", "targets"),
    ("attack", "loss"),
}
"""(command, parameter) after which the base command has nothing to check."""

GIVEN = {
    "run": ["--dataset", "mnist"],
    "epsilon": ["--dataset", "mnist", "--defense", "fed_cdp_valid"],
    "audit": ["--dataset", "mnist", "--defense", "fed_cdp_valid"],
    "frontier": ["--dataset", "mnist", "--defenses", "fed_cdp_valid"],
    "card": ["fed_cdp_valid", "mnist"],
    "reproduce": ["fed_alpha_cdp_table_1", "--out", "out"],
    "sweep": ["grid.yaml"],
    "attack": [
        *("--model", "options_first_models:build", "--update", "update.safetensors", "--shape", "1,28,28"),
        *("--classes", "10", "--dataset", "mnist", "--attack", "cpl"),
    ],
}
"""{command that reads a data set: arguments with which it would search for the data of MNIST}."""

MODELS = """
from torch import nn
def build(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""

Refused = Callable[..., str]


class Looked(Exception):
    """A data set was searched."""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that calls a command in a folder without data, and returns the line of the refusal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def look(*_: object) -> Path:
        raise Looked("a data set was looked for")

    # Imported before: a module first imported during the test would keep the replacement.
    for module in (find, data_commands):
        monkeypatch.setattr(module, "find_folder", look)
    Path("a_file").write_text("", encoding="utf-8")
    Path("grid.yaml").write_text("given: {dataset: mnist}\n", encoding="utf-8")
    Path("options_first_models.py").write_text(MODELS, encoding="utf-8")
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    save_file({name: torch.zeros_like(p) for name, p in model.named_parameters()}, "update.safetensors")

    def call(*arguments: str) -> str:
        code, out, err = called(monkeypatch, capsys, *arguments)
        assert (code, out) == (2, ""), (code, out, err)
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        assert "looked for" not in lines[0] and "data fetch" not in lines[0]
        return lines[0]

    return call


def cases() -> list[tuple[str, click.Option]]:
    """Return every option of every command that reads a data set."""
    return [
        (name, parameter)
        for name in GIVEN
        for parameter in commands.commands[name].params
        if isinstance(parameter, click.Option) and parameter.name not in NO_BAD_VALUE
    ]


@pytest.mark.parametrize("name", GIVEN)
def test_the_base_command_searches_for_data(
    name: str, refused: Refused, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the test below would show nothing."""
    if name in ("epsilon", "audit", "sweep"):
        pytest.skip("computed without data, or in a separate process")
    code, _, err = called(monkeypatch, capsys, name, *GIVEN[name])
    assert code == 70 and "a data set was looked for" in err


@pytest.mark.parametrize(("name", "option"), [pytest.param(n, o, id=f"{n} {o.opts[0]}") for n, o in cases()])
def test_a_bad_value_is_named_before_data_are_searched(name: str, option: click.Option, refused: Refused) -> None:
    assert option.name is not None
    if (name, option.name) in ELSEWHERE:
        pytest.skip("the option makes another command of it")
    line = refused(name, *GIVEN[name], option.opts[0], BAD[option.name])
    words = {option.opts[0], f"{option.opts[0].removeprefix('--')}:"}
    if name == "reproduce" and option.name == "changes":
        words = {"victims:"}
    assert any(word in line for word in words), line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--victims 60001", "victims: got 60001"),
        ("--victims 20 --candidates 10", "candidates: got 10"),
        ("--clients-per-round 2000", "clients-per-round: got 2000"),
        ("--batch 501", "batch: got 501"),
        ("--local-iterations 100000000", "local-iterations:"),
        ("--leak-rounds 1", "leak-rounds: got '1'"),
        ("--protocol live --leak-rounds 101", "leak-rounds: got 101"),
        ("--protocol live --victims 10 --clients 5", "victims: 10 need 10 clients"),
        ("--protocol live --leak-batch 501", "leak-batch: got 501"),
        ("--protocol live --join-rounds", "join-rounds: got the leak round 0"),
        ("--victim-mode eval", "victim-mode: got 'eval'"),
        ("--model convnet", "victim-mode: 'convnet'"),
        ("--observations 2", "observations: got 2"),
        ("--attack tableak", "attack: 'tableak' needs tables"),
        ("--attack lmmse", "attack: 'lmmse' reads what one example leaks"),
        ("--attack lmmse --iterations 5", "iterations: got 5, but the attack 'lmmse' does not search"),
        ("--epsilon 1", "epsilon: defense 'none'"),
        ("--epsilon 1 --noise-factor 2", "noise-factor: got --epsilon"),
        ("--noise-factor 2", "noise-factor: defense 'none' adds no noise"),
        ("--clip-factor 2", "clip-factor: defense 'none' has no clip"),
        ("--stop-at-epsilon 1", "stop-at-epsilon: defense 'none' has no valid epsilon"),
        ("--stop-at-delta 1e-5", "stop-at-delta: got it without --stop-at-epsilon"),
    ],
)
def test_options_that_do_not_fit_the_sizes_are_named_before_data_are_searched(
    words: str, named: str, refused: Refused
) -> None:
    assert f"leakbench: {named}" in refused("run", "--dataset", "mnist", *words.split())


@pytest.mark.parametrize("command", ["run", "epsilon"])
@pytest.mark.parametrize(
    ("words", "named"),
    [("--noise-factor 0", "noise-factor:"), ("--epsilon -1", "epsilon:"), ("--stop-at-epsilon -1", "stop-at-epsilon:")],
)
def test_numbers_are_checked_first_also_for_a_recipe_that_records_no_sizes(
    command: str, words: str, named: str, refused: Refused
) -> None:
    recipe = (catalog_folder("datasets") / "mnist.yaml").read_text(encoding="utf-8")
    Path("mine.yaml").write_text(re.sub(r"^sizes: .*\n", "", recipe, flags=re.MULTILINE), encoding="utf-8")
    assert named in refused(command, "--dataset", "mine.yaml", *words.split())


def test_options_of_a_cards_last_cell_are_named_before_data_are_searched(refused: Refused) -> None:
    """The live protocol is planned after the paper protocol."""
    line = refused("card", "fed_cdp_valid", "mnist", "--leak-rounds", "101")
    assert "leak-rounds: got 101" in line


@pytest.mark.parametrize("defense", ["fed_cdp_valid", "fed_sdp_client_valid", "none"])
def test_epsilons_need_no_data(
    defense: str, refused: Refused, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`refused` makes every search for data fail."""
    code, out, err = called(monkeypatch, capsys, "epsilon", "--defense", defense, "--dataset", "mnist", "--json")
    assert (code, err) == (0, "")
    assert (json.loads(out)["valid"] is None) == (defense == "none")


REMEDY = re.compile(r"(?:try|give|use|take|choose|add|or|such as),? (--[a-z-]+ [^\s,;()]+|[a-z0-9_]{3,})")
"""What a message suggests: an option with its value, or the name of a recipe."""


@pytest.mark.parametrize(
    "given",
    [
        *[
            f"{command} --defense {defense} {budget} --train-rounds 0"
            for command in ("epsilon", "run")
            for defense in ("fed_cdp_valid", "fed_sdp_valid")
            for budget in ("--epsilon 1e-9", "--epsilon 8")
        ],
        "run --defense fed_cdp_valid --canaries 20 --train-rounds 0",
        "epsilon --defense sign --epsilon 1",
        "epsilon --defense sign --stop-at-epsilon 1",
        "run --defense soteria --stop-at-epsilon 1",
        "run --attack lmmse --taps type-0 --leak-batch 1 --defense outpost --dataset digits --protocol live --clients 100",
        "run --attack lmmse --taps type-1 --leak-batch 1 --protocol live --local-iterations 3 --dataset digits",
        "run --attack lmmse --taps type-1 --leak-batch 4 --dataset digits",
        "run --device cuda:77",
        "run --device cuda",
        "run --device none_such",
    ],
)
def test_a_remedy_names_nothing_that_was_given(given: str, refused: Refused) -> None:
    """A suggestion that repeats the request hides the true reason."""
    if given.endswith("--device cuda") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    words = given.split()
    pairs = {" ".join(pair) for pair in itertools.pairwise(words)}
    line = refused(*words)
    suggested = REMEDY.findall(line)
    assert not {*pairs, *words} & {*suggested}, line
    if "valid epsilon" in line and "--train-rounds 0" in given:
        assert "no round was trained" in line and "--train-rounds 1" in line


def test_a_suggested_batch_leaves_one_example() -> None:
    assert alone_by(4, 4) == "--taps type-2, or --leak-batch 1"
    assert (
        alone_by(5, 1) == alone_by(12, 4) == "--taps type-2"
    )  # Several clients or steps, which no batch size changes.


@pytest.mark.parametrize(
    ("words", "remedies"),
    [
        ("--dataset digits --victims 1347", ("--candidates 1347", "--victims 1000")),
        ("--victims 20 --candidates 10", ("--candidates 20", "--victims 10")),
        ("--dataset digits --victims 100000", ("--victims 1347",)),
        ("--clients-per-round 2000", ("--clients 2000", "--clients-per-round 1000")),
        ("--batch 501", ("--batch 500", "--examples-per-client 501")),
        ("--protocol live --victims 10 --clients 5 --clients-per-round 5", ("--clients 10",)),
    ],
)
def test_a_limit_names_the_option_to_change_and_its_number(
    words: str, remedies: tuple[str, ...], refused: Refused
) -> None:
    """Each remedy alone ends this refusal: another option may be refused then, but not this one."""
    given = ["run", "--dataset", "mnist", *words.split()]
    line = refused(*given)
    for remedy in remedies:
        assert remedy in line
        option, number = remedy.split()
        changed = given.copy()
        if option in changed:
            changed[len(changed) - 1 - changed[::-1].index(option) + 1] = number
        else:
            changed += [option, number]
        fields = (option[2:].replace("-", "_") for option in changed[1::2])
        request = Request(**dict(zip(fields, map(_typed, changed[2::2]), strict=True)))
        try:
            plan(request)
        except InputError as error:
            assert str(error).partition(":")[0] != line.removeprefix("leakbench: ").partition(":")[0], error


def _typed(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


@pytest.mark.parametrize("budget", [(), ("--stop-at-epsilon", "0.5")])
def test_a_slow_accounting_prints_its_progress(
    budget: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise of each round, and then each observer; nothing within the first seconds, and nothing with --quiet."""
    asked = ("epsilon", "--defense", "fed_alpha_cdp_linear_valid", "--dataset", "digits", *budget)
    code, out, err = called(monkeypatch, capsys, *asked)
    assert (code, err) == (0, "")
    monkeypatch.setattr(api, "SLOW", 0.0)
    monkeypatch.setattr(facts, "REPORTED", 4)
    assert called(monkeypatch, capsys, *asked, "--quiet") == (0, out, "")
    code, same, err = called(monkeypatch, capsys, *asked)
    assert (code, same) == (0, out)
    assert "noise of each round: 4 of 10" in err
    assert "epsilon of each observer: 0 of 4" in err


WITHOUT_TORCH = """
import contextlib, io, json, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("blocked")


sys.meta_path.insert(0, Blocked())
from leakbench.cli import main

found = []
for arguments in json.load(sys.stdin):
    sys.argv, out, err = ["leakbench", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    found.append([code, out.getvalue(), err.getvalue()])
json.dump(found, sys.stdout)
"""

HEAVY = {"reproduce"}
"""Commands that read a table before they know which values are accepted."""


def test_a_bad_value_is_refused_without_pytorch(refused: Refused) -> None:
    """The import of PyTorch takes seconds, on a busy machine a minute."""
    chosen = [(n, o) for n, o in cases() if n not in HEAVY and (n, o.name) not in ELSEWHERE]
    commands_run = [[name, *GIVEN[name], option.opts[0], BAD[str(option.name)]] for name, option in chosen]
    commands_run += [["sweep", f"{name}.yaml"] for name in GRIDS]
    for name, text in GRIDS.items():
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=json.dumps(commands_run),
        capture_output=True,
        text=True,
        check=True,
    )
    late = [
        (words, err)
        for words, (code, out, err) in zip(commands_run, json.loads(done.stdout), strict=True)
        if code != 2 or out or len(err.strip().splitlines()) != 1
    ]
    assert not late


GRIDS = {
    "wrong_model": "given: {dataset: digits, model: none_such}",
    "wrong_word": "each: {protocol: [live, none_such]}",
    "wrong_rule": "rows:\n- {given: {trainable: none_such}}",
}
"""{name of a grid: its text with a wrong word}."""


def test_the_names_of_networks_and_devices_are_pytorchs_own() -> None:
    """They are listed a second time, where PyTorch is not imported."""
    assert tuple(NETWORKS) == MODEL_NAMES
    with pytest.raises(RuntimeError) as unknown:
        torch.device("none_such")
    known = re.search("one of (.*) device type", str(unknown.value))
    assert known is not None and {*known[1].split(", ")} | {"auto"} == {*DEVICES}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("model", name) for name in ("cnn", "torchvision:resnet18", "hf:folder", "torch.nn:Linear@w.safetensors")],
        *[("init", text) for text in ("default", "kaiming", "uniform:0.5")],
        *[("trainable", text) for text in ("all", "head", "blocks:2", "lora:r=8", "adapters:r=4")],
        *[("partition", text) for text in ("iid", "shards", "shards:2", "dirichlet:0.1")],
        *[("availability", text) for text in ("uniform", "beta:1,2", "diurnal:0.5")],
        *[("device", text) for text in ("auto", "cpu", "cuda", "cuda:3", "mps", "meta")],
        ("leak_rounds", ("0", "12", "last")),
        ("taps", ("type-0", "global")),
        ("leak_model", None),
    ],
)
def test_an_accepted_word_is_accepted_first_too(field: str, value: str) -> None:
    check_word(field, value)
