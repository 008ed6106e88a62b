"""The Fisher-information floor against explicit Jacobians and the closed form of a linear model."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from leakbench.core.errors import InputError
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.client import Network
from leakbench.federated.view import View
from leakbench.limits.fisher import fisher_information, rmse_floor
from leakbench.models import build, one_hot, parameters


def view_of(model: nn.Module, shape: tuple[int, ...], tap: str, stations: Stations, batch: int = 1) -> View:
    network = Network(model, parameters(model))
    update = {n: p[None].repeat(2, *[1] * p.dim()) for n, p in network.parameters.items()}
    return View(tap, network, update, batch, shape, 3, learning_rate=0.1, stations=stations)


def examples(batch: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(2)
    inputs = torch.rand(2, batch, *shape, generator=rng, dtype=torch.float64)
    return inputs, one_hot(torch.arange(2 * batch).reshape(2, batch) % 3, 3).double()


@pytest.mark.slow
@pytest.mark.parametrize(
    "stations",
    [Stations(), Stations(example=(ClipWhole(0.05),)), Stations(example=(ClipLayers(0.01),)), Stations(batch=(ClipWhole(0.01),))],
)  # fmt: skip
@pytest.mark.parametrize(("tap", "batch"), [("type-2", 1), ("type-1", 3)])
def test_information_equals_an_explicit_jacobian(stations: Stations, tap: str, batch: int) -> None:
    """tr(J^T J) / (std^2 d) of the released gradient with regard to the first example."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(8, 3)).double()
    view = view_of(model, (1, 5, 5), tap, stations, batch)
    x, y = examples(batch, (1, 5, 5))

    def released(first: Tensor) -> Tensor:
        inputs = torch.cat([first[:, None], x[:, 1:]], 1)
        return torch.cat([g.flatten(1) for g in view.respond(inputs, y).values()], 1)

    jacobian = jacrev(released)(x[:, 0]).reshape(2, -1, 2, 25)
    exact = [float(jacobian[v, :, v].square().sum()) / (0.3**2 * 25) for v in range(2)]
    found = fisher_information(view, x, y, std=0.3, probes=1500, rng=torch.Generator().manual_seed(0))
    assert found.tolist() == pytest.approx(exact, rel=0.05)
    single = [fisher_information(view, x, y, 0.3, 1, torch.Generator().manual_seed(seed)) for seed in range(300)]
    assert torch.stack(single).mean(0).tolist() == pytest.approx(exact, rel=0.2)


def test_the_closed_form_of_a_linear_model() -> None:
    """W x + b: the gradient is r x^T and r, r = softmax(W x + b) - y, so J holds r_i delta_jk + H_ik x_j and H = S W."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double()
    x, y = examples(1, (6,))
    weights, bias = (p.detach() for p in model.parameters())
    logits = x[:, 0] @ weights.T + bias
    p = logits.softmax(1)
    r = p - y[:, 0]
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    h = spread @ weights
    own, crossed = 6 * r.square().sum(1), 2 * torch.einsum("vi,vij,vj->v", r, h, x[:, 0])
    exact = own + crossed + h.square().sum((1, 2)) * (1 + x[:, 0].square().sum(1))
    view = view_of(model, (6,), "type-2", Stations())
    found = fisher_information(view, x, y, std=0.5, probes=3000, rng=torch.Generator().manual_seed(0))
    assert found.tolist() == pytest.approx((exact / (0.25 * 6)).tolist(), rel=0.03)


def test_noise_divides_the_information_and_the_generator_determines_it() -> None:
    model = build("mlp_sigmoid", (9,), 3, torch.Generator().manual_seed(1)).double()
    view, (x, y) = view_of(model, (9,), "type-2", Stations()), examples(1, (9,))

    def at(std: float, seed: int) -> Tensor:
        return fisher_information(view, x, y, std, 40, torch.Generator().manual_seed(seed))

    assert at(0.2, 0).tolist() == pytest.approx((at(0.1, 0) / 4).tolist())
    assert torch.equal(at(1.0, 3), at(1.0, 3))
    assert not torch.equal(at(1.0, 3), at(1.0, 4))


def test_each_lane_has_its_own_parameters() -> None:
    """Two victims at two models give the same values as each alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 4), nn.Sigmoid(), nn.Linear(4, 3)).double()
    shared, (x, y) = view_of(model, (9,), "type-2", Stations()), examples(1, (9,))
    both = {n: torch.stack([p, 2 * p]) for n, p in shared.network.parameters.items()}
    view = dataclasses.replace(shared, network=Network(model, both, shared=False))
    found = fisher_information(view, x, y, 1.0, 1500, torch.Generator().manual_seed(0))
    for v in range(2):
        own = dataclasses.replace(shared, network=Network(model, {n: p[v] for n, p in both.items()}))
        alone = fisher_information(own, x[v : v + 1], y[v : v + 1], 1.0, 3000, torch.Generator().manual_seed(9))
        assert float(found[v]) == pytest.approx(float(alone), rel=0.05)


@pytest.mark.parametrize(("std", "floor"), [(0.01, 0.040), (0.1, 0.235), (1.0, 0.288)])
def test_floors_equal_earlier_measurements(std: float, floor: float) -> None:
    """A gradient of the paper's CNN on 28 x 28, clipped at 4, had tr(J^T J) / d = .061; the prior's deviation is .289."""
    assert rmse_floor(0.0613 / std**2, 1 / 12) == pytest.approx(floor, abs=6e-4)


def test_floors_at_extreme_values() -> None:
    assert rmse_floor(4.0) == 0.5
    assert rmse_floor(0.0, 0.25) == 0.5
    assert rmse_floor(0.0) == math.inf


@pytest.mark.parametrize(("std", "probes"), [(0.0, 3), (-1.0, 3), (math.nan, 3), (1.0, 0)])
def test_invalid_numbers_are_refused(std: float, probes: int) -> None:
    model = build("mlp_sigmoid", (9,), 3, torch.Generator())
    x, y = examples(1, (9,))
    with pytest.raises(InputError, match=r"^(std|probes): got"):
        fisher_information(view_of(model, (9,), "type-2", Stations()), x, y, std, probes, torch.Generator())


@pytest.mark.parametrize(
    ("stations", "clients", "expected"),
    [(Stations(example=(ClipWhole(0.05),)), 1, 5), (Stations(), 1, 15), (Stations(), 3, 5)],
)
def test_gradients_that_a_defense_keeps_apart_limit_the_probes_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch, stations: Stations, clients: int, expected: int
) -> None:
    """Three examples or clients of 14 float32 numbers: 15 probes have 840 bytes of sums, 5 probes as many of single gradients."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    view = dataclasses.replace(view_of(model, (6,), "type-0", stations, batch=3 // clients), cohort=clients)
    chunks: list[int] = []
    monkeypatch.setattr("leakbench.limits.fisher.APART", 15 * 4 * 14)
    monkeypatch.setattr(
        "leakbench.limits.fisher._pulled", lambda *a: (chunks.append(len(a[3])), torch.ones(len(a[3])))[1]
    )
    fisher_information(view, *examples(3, (6,)), std=0.3, probes=15, rng=torch.Generator())
    assert max(chunks) == expected and sum(chunks) == 30


def test_the_information_does_not_depend_on_how_many_gradients_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)).double()
    view = view_of(model, (6,), "type-1", Stations(example=(ClipWhole(0.05),)), batch=3)
    whole = fisher_information(view, *examples(3, (6,)), 0.3, 7, torch.Generator().manual_seed(1))
    monkeypatch.setattr("leakbench.limits.fisher.APART", 1)
    one_by_one = fisher_information(view, *examples(3, (6,)), 0.3, 7, torch.Generator().manual_seed(1))
    torch.testing.assert_close(one_by_one, whole, rtol=1e-9, atol=0)
