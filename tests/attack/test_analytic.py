"""The closed form of a linear first layer: exact for one example, and no reconstruction without such a layer."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.methods.analytic import AnalyticFc
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network
from leakbench.data.find import load_dataset
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters
from leakbench.models.layers import first_layer


def seen(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> View:
    """Return the leak of batches x (V, B, *s) with labels y (V, B)."""
    network = Network(model, parameters(model))
    targets = one_hot(y, classes).to(x)
    leaked = leak("type-1", network, x[:, None, None], targets[:, None, None], 0.1, Stations(), Clock(0, 0, 1, 1), None)
    return View(
        "type-1", network, {n: u.detach() for n, u in leaked.items()}, y.shape[1], tuple(x.shape[2:]), classes, 0.1
    )


def victims_of(name: str, model: str, batch: int = 1) -> tuple[View, Tensor, Tensor]:
    """Return eight batches of a data set, and their leak at a network with random weights."""
    data = load_dataset(name)[2]
    built = build(model, data.shape, data.classes, generator(0, "leak model"))
    chosen = data.victims[: 8 * batch].reshape(8, batch)
    x, y = data.train_inputs[chosen], data.train_targets[chosen]
    return seen(built, x, y, data.classes), x, y


@pytest.mark.parametrize("dataset", ["digits", "faces", "cancer"])
@pytest.mark.parametrize("model", ["mlp", "mlp_256", "mlp_sigmoid"])
def test_one_example_is_reconstructed(dataset: str, model: str) -> None:
    """Pictures and tables from three networks with different later layers: within 1e-4, with label and certainty."""
    view, x, y = victims_of(dataset, model)
    answer = AnalyticFc()((view,), ())
    torch.testing.assert_close(answer.inputs, x, rtol=0, atol=1e-4)
    assert torch.equal(answer.labels, y)
    assert (answer.certainty <= 0).all()
    assert (answer.certainty > -1e-6).all()
    assert answer.steps.tolist() == [1] * 8


@pytest.mark.data
def test_mnist_digits_are_reconstructed() -> None:
    """The published digits, within 1e-4."""
    view, x, _ = victims_of("mnist", "mlp")
    torch.testing.assert_close(AnalyticFc()((view,), ()).inputs, x, rtol=0, atol=1e-4)


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_the_reconstruction_is_the_quotient_of_weight_and_bias_gradients(seed: int, scale: float) -> None:
    """Any gradients of the form db x^T give x; only the row with the largest |db| is read."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(3, 1, 6, generator=rng, dtype=torch.float64)
    view = seen(nn.Linear(6, 4).double(), x, torch.zeros(3, 1, dtype=torch.int64), 4)
    db = torch.randn(3, 4, generator=rng, dtype=torch.float64) * scale
    view.update["weight"], view.update["bias"] = db[:, :, None] * x, db
    for lane, row in enumerate(db.abs().argmin(1)):
        view.update["weight"][lane, row] = 7.0
    torch.testing.assert_close(AnalyticFc()((view,), ()).inputs, x)


def test_a_row_of_a_batch_is_a_weighted_mean() -> None:
    """Two examples: each reconstruction is between them; a row that only one example activates gives that example."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[5.0, -5.0], [-5.0, 5.0]]))
        model[0].bias.zero_()
    x = torch.tensor([[[0.9, 0.2], [0.1, 0.7]]], dtype=torch.float64)
    answer = AnalyticFc()((seen(model, x, torch.tensor([[0, 1]]), 2),), ())
    torch.testing.assert_close(answer.inputs.sort(1).values, x.sort(1).values)
    mixing = nn.Linear(6, 3).double()
    x = torch.rand(4, 2, 6, generator=generator(0, "x"), dtype=torch.float64)
    both = AnalyticFc()((seen(mixing, x, torch.tensor([[0, 0]] * 4), 3),), ()).inputs
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    assert ((both >= low - 1e-9) & (both <= high + 1e-9)).all()


def test_a_quotient_beyond_an_input_is_clamped() -> None:
    """If two examples nearly cancel in a row, quotients of 3, -2 and .25 become 1, 0 and .25."""
    view = seen(nn.Linear(3, 2).double(), torch.zeros(1, 1, 3, dtype=torch.float64), torch.tensor([[0]]), 2)
    view.update["weight"] = torch.tensor([[[1.5, -1.0, 0.125], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    view.update["bias"] = torch.tensor([[0.5, 0.1]], dtype=torch.float64)
    assert AnalyticFc()((view,), ()).inputs.tolist() == [[[1.0, 0.0, 0.25]]]


def test_networks_and_rows_without_a_closed_form_give_no_reconstruction() -> None:
    """A first layer that is a convolution, has no bias or is not first is refused; also a zero row and more examples than rows."""
    x, y = torch.rand(2, 1, 1, 6, 6), torch.zeros(2, 1, dtype=torch.int64)
    for model in (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(36, 4, bias=False), nn.Linear(4, 3)),
        nn.Sequential(nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 3)),
    ):
        with pytest.raises(InputError, match="does not begin"):
            AnalyticFc()((seen(model, x, y, 3),), ())
        assert first_layer(model, (1, 6, 6)) is None
    view = seen(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), x, y, 3)
    view.update["1.bias"][0] = 0.0
    answer = AnalyticFc()((view,), ())
    assert answer.inputs[0].isnan().all()
    assert answer.inputs[1].isfinite().all()
    x, y = torch.rand(2, 5, 6), torch.zeros(2, 5, dtype=torch.int64)
    many = AnalyticFc()((seen(nn.Linear(6, 3), x, y, 3),), ()).inputs
    assert many.isnan().flatten(2).any(2).tolist() == [[False, False, False, True, True]] * 2


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="unknown field 'row'"):
        construct(Attack, {"title": "a", "cite": "b", "method": {"analytic_fc": {"row": 1}}})


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reconstructs every victim of an MLP, which the recipe names; refuses convolutions, which autoleak skips.

    Refuses iterations.
    """
    line = "leakbench run --quiet --json --dataset digits --attack analytic_fc --victims 4 --candidates 9 --taps type-2"
    line = f"{line} --train-rounds 0 --out {tmp_path / 'run'}"
    mlp = line.split()
    monkeypatch.setattr("sys.argv", mlp)
    main()
    shown = json.loads(capsys.readouterr().out)["taps"]["type-2"]
    assert (shown["asr"], shown["failures"]) == (1.0, 0)
    rows = pd.read_parquet(tmp_path / "run" / "rows.parquet")
    assert set(rows["failure_reason"]) == {""}
    for wrong, said in (
        ([*mlp, "--iterations", "3"], "does not search; leave out --iterations"),
        ([*mlp, "--leak-model", "lenet_cpl"], "biased linear first layer"),
    ):
        monkeypatch.setattr("sys.argv", [*wrong, "--out", str(tmp_path / "other")])
        with pytest.raises(SystemExit):
            main()
        assert said in capsys.readouterr().err
        assert not (tmp_path / "other").exists()
