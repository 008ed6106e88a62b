"""An oracle gives the attacker the model's logits for the victims."""

import json

import pytest
import torch
from torch import nn

from leakbench.attack.slots.oracle_logits import OracleLogits
from leakbench.core.errors import InputError
from leakbench.core.types import Network
from leakbench.federated.view import View
from tests.command_line import called


def view(victims: int, shared: bool, logits: torch.Tensor | None) -> View:
    """Return a linear model of 3 inputs and 2 classes, f(x) = W x, with W = v + 1 for victim v if it is not shared."""
    model = nn.Linear(3, 2, bias=False).double()
    held = {"weight": torch.ones(2, 3).double()}
    if not shared:
        held = {"weight": torch.stack([(v + 1) * held["weight"] for v in range(victims)])}
    update = {"weight": torch.zeros(victims, 2, 3).double()}
    return View("type-1", Network(model, held, shared=shared), update, 2, (3,), 2, 0.1, logits=logits)


@pytest.mark.parametrize("shared", [True, False])
def test_the_prior_is_the_squared_distance_of_logits(shared):
    """Guesses of ones for victims 2 and 0, two examples: logits 3 (or 3 (v + 1)) in both classes against 1: 4 (3 s - 1)^2."""
    seen = view(3, shared, torch.ones(3, 2, 2).double())
    found = OracleLogits(weight=0.5)(torch.ones(2, 2, 3).double(), seen, torch.tensor([2, 0]))
    scale = torch.tensor([1.0, 1.0] if shared else [3.0, 1.0]).double()
    torch.testing.assert_close(found, 0.5 * 4 * (3 * scale - 1) ** 2)


def test_without_the_logits_it_is_refused():
    with pytest.raises(InputError, match="needs a view that shows the true logits"):
        OracleLogits(weight=1.0)(torch.ones(1, 2, 3).double(), view(1, True, None), torch.tensor([0]))


@pytest.mark.slow
def test_a_run_reports_given_logits_and_has_no_bound(tmp_path, monkeypatch, capsys):
    """Zero at the truth: with its logits the search ends closer than CPL; knowledge and bounds name the oracle."""
    line = "run --dataset digits --defense fed_cdp --victims 2 --iterations 2 --train-rounds 0 --taps type-2 --json --quiet"
    found = {}
    for attack in ("cpl", "cpl_oracle_logits"):
        code, out, _ = called(
            monkeypatch, capsys, *line.split(), "--attack", attack, "--out", str(tmp_path / attack), "--candidates", "5"
        )
        assert code == 0
        found[attack] = json.loads(out)
    assert [f["knowledge"]["logits"] for f in found.values()] == ["not given", "given"]
    assert found["cpl"]["taps"]["type-2"]["seen"] is not None
    assert found["cpl_oracle_logits"]["taps"]["type-2"]["seen"] is None
    assert "logits" in found["cpl_oracle_logits"]["notes"]["taps.type-2.seen"]
