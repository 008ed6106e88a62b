"""R-GAP solves each layer exactly, says where equations are missing, and refuses what it cannot invert."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.doubts import RANK
from leakbench.attack.methods.r_gap import RGap, _Layer, _solver
from leakbench.attack.one_step import likeliest
from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.transform import Stations
from leakbench.engine.patches import Kernel
from leakbench.engine.steps import Affine
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters
from leakbench.models.cnn6 import cnn6

V, SHAPE, CLASSES = 3, (2, 8, 8), 4


def chain(activation: nn.Module, bias: bool = False) -> nn.Sequential:
    """Return convolutions with and without stride and padding, a hidden and a last linear layer, all with enough outputs."""
    torch.manual_seed(2)
    layers = [
        nn.Conv2d(2, 16, 4, stride=2, padding=2, bias=bias),
        activation,
        nn.Conv2d(16, 20, 3, padding=1, bias=bias),
        activation,
        nn.Flatten(),
        nn.Linear(500, 30, bias=bias),
        activation,
        nn.Linear(30, CLASSES, bias=bias),
    ]
    return nn.Sequential(*layers).double().eval()


def view(model: nn.Module, examples: int = 1, stations: Stations | None = None) -> tuple[View, Tensor]:
    """Return the leak of V victims, and their inputs."""
    rng = torch.Generator().manual_seed(5)
    x = torch.rand(V, 1, 1, examples, *SHAPE, generator=rng).double()
    y = one_hot(torch.randint(CLASSES, (V, 1, 1, examples), generator=rng), CLASSES).double()
    network = Network(model, parameters(model))
    update = leak("type-1", network, x, y, 0.1, stations or Stations(), Clock(0, 0, 1, 1), None)
    used = stations or Stations()
    return View("type-1", network, update, examples, SHAPE, CLASSES, 0.1, stations=used), x[:, 0, 0]


def rngs() -> tuple[torch.Generator, ...]:
    return generators(0, "v", [(v,) for v in range(V)])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.2), nn.Sigmoid(), nn.Tanh()], ids=["leaky", "sigmoid", "tanh"])
def test_one_example_is_exact(activation: nn.Module, bias: bool) -> None:
    """Convolutions with stride and padding and a hidden linear layer, with and without biases: within 1e-6 in float64."""
    shown, x = view(chain(activation, bias))
    answer = RGap()((shown,), rngs())
    torch.testing.assert_close(answer.inputs, x, rtol=0, atol=1e-6)
    assert not answer.doubts[RANK].any()
    assert RGap().applies(shown)


def test_relus_leave_equations_out() -> None:
    """Many channels leave enough active outputs; with few channels the doubt `rank` says that equations are missing."""
    torch.manual_seed(1)
    wide = nn.Sequential(nn.Conv2d(2, 40, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 64, CLASSES)).double()
    shown, x = view(wide)
    torch.testing.assert_close(RGap()((shown,), rngs()).inputs, x, rtol=0, atol=1e-6)
    narrow = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, CLASSES)).double()
    shown, x = view(narrow)
    answer = RGap()((shown,), rngs())
    assert answer.doubts[RANK].all()
    assert answer.inputs.isfinite().all()
    assert (answer.inputs - x).abs().flatten(1).amax(1).min() > 1e-2


def test_a_layer_with_fewer_equations_than_inputs_has_the_doubt() -> None:
    """A stride of 4 with kernels of 2 leaves pixels unread, which no equation contains; the read ones are exact."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 12, 2, stride=4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(48, CLASSES)
    ).double()
    shown, x = view(model)
    answer = RGap()((shown,), rngs())
    assert answer.doubts[RANK].all()
    read = torch.zeros(8, 8, dtype=torch.bool)
    for row in (0, 1, 4, 5):
        read[row, [0, 1, 4, 5]] = True
    torch.testing.assert_close(answer.inputs[..., read], x[..., read], rtol=0, atol=1e-6)
    assert (answer.inputs[..., ~read].abs() < 1e-9).all()


def test_the_doubt_is_that_of_the_chosen_reconstruction() -> None:
    """Of several roots, each victim has the doubt of its own likeliest one."""
    answer = RGap()((view(chain(nn.Tanh()))[0],), rngs())
    sure = [torch.tensor([[0.0], [1.0], [0.0]]), torch.tensor([[1.0], [0.0], [2.0]])]
    doubted = [torch.tensor([True, True, False]), torch.tensor([False, False, True])]
    roots = [dataclasses.replace(answer, certainty=c, doubts={RANK: d}) for c, d in zip(sure, doubted, strict=True)]
    assert likeliest(roots).doubts[RANK].tolist() == [False, True, True]


def test_the_normal_matrix_is_that_of_the_layer() -> None:
    """The sum over places equals the product of the matrix that the layer's map has on unit inputs."""
    kernel = Kernel((3, 2), (2, 1), (1, 1))
    step, weight = Affine("w", None, kernel), torch.randn(5, 3, 3, 2).double()
    layer = _Layer.of(step, (5, 4, 3), {"w": weight})
    units = torch.eye(60).double().reshape(1, 60, 5, 4, 3)
    rows = step({"w": weight}, True, units).answer[0].flatten(1)
    torch.testing.assert_close(layer.normal, rows @ rows.T)


def test_the_solver_counts_what_is_missing() -> None:
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)).double()
    solve, lack = _solver(matrix.T @ matrix, 1e-6)
    assert lack == 3
    x = matrix.T @ torch.ones(6).double()
    torch.testing.assert_close(solve(matrix.T @ (matrix @ x)), x)
    whole = torch.randn(9, 9, generator=torch.Generator().manual_seed(0)).double()
    solve, lack = _solver(whole.T @ whole, 1e-6)
    assert lack == 0
    torch.testing.assert_close(solve(whole.T @ (whole @ x)), x)


def test_networks_without_shared_weights_and_victims_alone_agree() -> None:
    shown, x = view(chain(nn.LeakyReLU(0.2)))
    own = {n: p.expand(V, *p.shape).clone() for n, p in shown.network.parameters.items()}
    apart = dataclasses.replace(shown, network=dataclasses.replace(shown.network, parameters=own, shared=False))
    torch.testing.assert_close(RGap()((apart,), rngs()).inputs, x, rtol=0, atol=1e-6)


def test_a_clip_of_the_whole_update_stops_only_a_network_without_a_last_bias() -> None:
    """The quotient with the bias does not change by a scale; without a bias the length of the last gradient is needed."""
    clip = Stations(example=(ClipWhole(norm=1e-2),))
    shown, x = view(chain(nn.LeakyReLU(0.2), bias=True), stations=clip)
    with_bias = RGap()((shown,), rngs()).inputs
    assert (with_bias - x).abs().amax() < 1e-6
    bare, _ = view(chain(nn.LeakyReLU(0.2)), stations=clip)
    with pytest.raises(InputError, match="r_gap reads the gradient of one example, without noise"):
        RGap()((bare,), rngs())
    assert not RGap().applies(bare)
    layers, _ = view(chain(nn.LeakyReLU(0.2), bias=True), stations=Stations(example=(ClipLayers(norm=1e-2),)))
    assert not RGap().applies(layers)


def test_noise_that_the_attacker_does_not_know_of_spoils_the_recursion() -> None:
    """Noise of 1e-6 of the gradient's size leaves the picture recognisable, noise of its size leaves nothing."""
    shown, x = view(chain(nn.LeakyReLU(0.2)))

    def error(share: float) -> float:
        rng = torch.Generator().manual_seed(7)
        update = {
            n: u + share * u.square().mean().sqrt() * torch.randn(u.shape, generator=rng).double()
            for n, u in shown.update.items()
        }
        answer = RGap()((dataclasses.replace(shown, update=update),), rngs())
        return float((answer.inputs - x).square().mean().sqrt().nan_to_num(nan=torch.inf))

    assert error(1e-6) < 0.05
    assert error(1.0) > 0.2


def test_what_it_cannot_invert_is_refused() -> None:
    two, _ = view(chain(nn.LeakyReLU(0.2)), examples=2)
    with pytest.raises(InputError, match="reads the gradient of one example"):
        RGap()((two,), rngs())
    pooled = nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)).double()
    shown, _ = view(pooled)
    with pytest.raises(InputError, match="such as max pooling"):
        RGap()((shown,), rngs())
    noisy = dataclasses.replace(view(chain(nn.Tanh()))[0], noise=0.1)
    with pytest.raises(InputError, match="without noise"):
        RGap()((noisy,), rngs())


def test_layers_with_too_many_inputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither memory nor time would be enough for all equations of large pictures: `autoleak` then leaves it out."""
    shown, _ = view(chain(nn.LeakyReLU(0.2)))
    monkeypatch.setattr("leakbench.attack.methods.r_gap.MOST", 500)
    assert RGap().applies(shown)
    monkeypatch.setattr("leakbench.attack.methods.r_gap.MOST", 499)
    assert not RGap().applies(shown)
    with pytest.raises(InputError, match="got 500, expected at most 499"):
        RGap()((shown,), rngs())


def test_only_layers_with_weights_have_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution of 128 inputs with 1,024 outputs solves equations for 128 numbers; the activation behind it solves none."""
    torch.manual_seed(3)
    layers = [nn.Conv2d(2, 16, 3, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(1024, CLASSES)]
    shown, x = view(nn.Sequential(*layers).double().eval())
    monkeypatch.setattr("leakbench.attack.methods.r_gap.MOST", 128)
    assert RGap().applies(shown)
    torch.testing.assert_close(RGap()((shown,), rngs()).inputs, x, rtol=0, atol=1e-6)
    monkeypatch.setattr("leakbench.attack.methods.r_gap.MOST", 127)
    assert not RGap().applies(shown)


def test_an_update_that_is_not_finite_gives_no_reconstruction() -> None:
    """Only the victim whose update is not finite lacks a reconstruction."""
    shown, x = view(chain(nn.LeakyReLU(0.2)))
    update = {n: u.clone() for n, u in shown.update.items()}
    update["2.weight"][1, 0, 0, 0, 0] = torch.nan
    answer = RGap()((dataclasses.replace(shown, update=update),), rngs())
    assert answer.inputs[1].isnan().all()
    torch.testing.assert_close(answer.inputs[[0, 2]], x[[0, 2]], rtol=0, atol=1e-6)


def test_cnn6_has_the_layers_of_the_paper() -> None:
    model = cnn6((3, 32, 32), 10)
    assert sum(p.numel() for p in model.parameters()) == 154_256
    sides = [model[: 2 * k](torch.zeros(1, 3, 32, 32)).shape[1:] for k in range(7)]
    assert [tuple(s) for s in sides] == [
        (3, 32, 32), (12, 17, 17), (36, 9, 9), (36, 9, 9), (36, 9, 9), (64, 5, 5), (128, 5, 5),
    ]  # fmt: skip
    assert all(layer.negative_slope == 0.2 for layer in model if isinstance(layer, nn.LeakyReLU))
