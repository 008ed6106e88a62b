"""Without flwr everything works except leakbench.flower, whose error explains in one line how to install it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import called
from torch import nn

from leakbench.core.errors import InputError

HOME = Path(__file__).parents[2]
INSTALL = "pip install 'leakbench[flower]'"


@pytest.fixture
def without_flwr(monkeypatch):
    """Hide flwr and the modules that imported it."""
    for name in [n for n in sys.modules if n == "flwr" or n.startswith(("flwr.", "leakbench.flower."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)


@pytest.mark.parametrize(
    "name",
    [
        "DefenseMod",
        "UpdateTapMod",
        "StepProbeMod",
        "ProbeStrategy",
        "TapGrid",
        "attach",
        "InProcessGrid",
        "VectorisedGrid",
    ],
)
def test_a_missing_flwr_is_one_line(without_flwr, name):
    import leakbench.flower  # noqa: PLC0415

    with pytest.raises(InputError) as raised:
        getattr(leakbench.flower, name)
    assert INSTALL in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_prints_the_line_and_exits_with_2(without_flwr, tmp_path, monkeypatch, capsys):
    asked = ("flower", str(tmp_path), "--model", "a:b", "--shape", "1,8,8", "--classes", "10")
    code, out, err = called(monkeypatch, capsys, *asked)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and INSTALL in err


def test_an_unknown_name_is_an_attribute_error(without_flwr):
    import leakbench.flower  # noqa: PLC0415

    with pytest.raises(AttributeError, match="no attribute 'DefenceMod'"):
        _ = leakbench.flower.DefenceMod


def test_observe_needs_no_flwr_and_does_nothing_without_a_probe(without_flwr):
    from leakbench.flower import observe  # noqa: PLC0415

    model, losses = nn.Linear(3, 2), []
    assert observe(torch.rand(2, 3), torch.tensor([0, 1]), model, lambda *arguments: losses.append(arguments)) is None
    assert losses == [] and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_the_command_line_imports_no_flwr():
    """In a separate process in which an import of flwr or ray is an error."""
    script = (
        "import sys\n"
        "sys.modules['flwr'] = sys.modules['ray'] = None\n"
        "import leakbench.cli, leakbench.flower, leakbench.execute\n"
        "print('fine')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=HOME, capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
