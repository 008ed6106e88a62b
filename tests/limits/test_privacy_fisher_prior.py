"""The Fisher-information floor of a Gaussian prior: closed forms, explicit Jacobians, the scalar floor, simulations."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import jacrev

from leakbench.core.errors import InputError
from leakbench.core.types import Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.view import View
from leakbench.limits.fisher import rmse_floor
from leakbench.limits.fisher_prior import information_matrix, prior_floors
from leakbench.models import one_hot, parameters


def view_of(model: nn.Module, tap: str, stations: Stations, batch: int = 1) -> View:
    network = Network(model, parameters(model))
    update = {n: p[None].repeat(2, *[1] * p.dim()) for n, p in network.parameters.items()}
    return View(tap, network, update, batch, (1, 5, 5), 3, learning_rate=0.1, stations=stations)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(8, 3)).double()


def examples(batch: int) -> tuple[Tensor, Tensor]:
    inputs = torch.rand(2, batch, 1, 5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return inputs, one_hot(torch.arange(2 * batch).reshape(2, batch) % 3, 3).double()


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    "stations", [Stations(), Stations(example=(ClipWhole(0.05),)), Stations(example=(ClipLayers(0.01),))]
)
@pytest.mark.parametrize(("tap", "batch"), [("type-2", 1), ("type-1", 3)])
def test_information_against_an_explicit_jacobian(stations: Stations, tap: str, batch: int) -> None:
    """The mean of J^T J of the released gradient with regard to the first example."""
    view, (x, y) = view_of(network(), tap, stations, batch), examples(batch)

    def released(first: Tensor) -> Tensor:
        inputs = torch.cat([first[:, None], x[:, 1:]], 1)
        return torch.cat([g.flatten(1) for g in view.respond(inputs, y).values()], 1)

    jacobian = jacrev(released)(x[:, 0]).reshape(2, -1, 2, 25)
    own = [jacobian[v, :, v] for v in range(2)]
    exact = (own[0].T @ own[0] + own[1].T @ own[1]) / 2
    torch.testing.assert_close(information_matrix(view, x, y), exact)


def test_each_lane_has_its_own_parameters() -> None:
    """The mean of two victims at two models is the mean of each alone."""
    shared, (x, y) = view_of(network(), "type-2", Stations()), examples(1)
    both = {n: torch.stack([p, 2 * p]) for n, p in shared.network.parameters.items()}
    view = dataclasses.replace(shared, network=Network(shared.network.model, both, shared=False))
    alone = []
    for v in range(2):
        own = dataclasses.replace(shared, network=Network(shared.network.model, {n: p[v] for n, p in both.items()}))
        alone.append(information_matrix(own, x[v : v + 1], y[v : v + 1]))
    assert not torch.allclose(alone[0], alone[1])
    torch.testing.assert_close(information_matrix(view, x, y), (alone[0] + alone[1]) / 2)


@pytest.mark.parametrize("rank", [3, 6, 8])
def test_the_closed_form_of_a_linear_release(rank: int) -> None:
    """For y = A x + noise, the posterior's covariance is S - S A^T (A S A^T + std^2 I)^{-1} A S, S = W W^T."""
    release, root, std = drawn(0, 4, 6), drawn(1, 6, rank), 0.7
    cov = root @ root.T
    inner = release @ cov @ release.T + std**2 * torch.eye(4)
    left = cov - cov @ release.T @ torch.linalg.solve(inner, release @ cov)
    assert prior_floors(release.T @ release, root, [std]) == pytest.approx([float(left.trace() / 6) ** 0.5])


def test_the_best_linear_estimate_attains_the_floor() -> None:
    """In a simulation, the posterior mean of z + noise has the floor's error on average, another estimate a larger one."""
    release, root, std = drawn(0, 4, 6), drawn(1, 6, 6), 0.7
    x = drawn(2, 40_000, 6) @ root.T
    seen = x @ release.T + std * drawn(3, 40_000, 4)
    cov = root @ root.T
    gain = cov @ release.T @ torch.linalg.inv(release @ cov @ release.T + std**2 * torch.eye(4))
    (floor,) = prior_floors(release.T @ release, root, [std])
    assert float((seen @ gain.T - x).square().mean()) ** 0.5 == pytest.approx(floor, rel=0.01)
    assert float((seen @ gain.T * 0.8 - x).square().mean()) ** 0.5 > 1.01 * floor


def test_it_equals_the_scalar_floor_for_equal_features() -> None:
    """W = .2 I and J^T J = .03 I."""
    found = prior_floors(0.03 * torch.eye(7), 0.2 * torch.eye(7), [0.01, 0.1, 1.0])
    assert found == pytest.approx([rmse_floor(0.03 / std**2, 0.04) for std in (0.01, 0.1, 1.0)])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7), st.floats(0.01, 1.0))
def test_properties(seed: int, rank: int, std: float) -> None:
    """It falls as the noise falls, never exceeds the prior's deviation and converges to it, and a larger leak lowers it."""
    release, root = drawn(seed, 3, 5), drawn(seed + 1, 5, rank)
    known, alone = release.T @ release, float(root.square().sum() / 5) ** 0.5
    found = prior_floors(known, root, [std, 2 * std, 1e6])
    assert 0 <= found[0] <= found[1] <= found[2] <= alone * (1 + 1e-9)
    assert found[2] == pytest.approx(alone)
    more = drawn(seed + 2, 2, 5)
    assert prior_floors(known + more.T @ more, root, [std])[0] <= found[0] * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_the_scalar_floor_of_one_deviation_is_never_larger(seed: int, std: float) -> None:
    """The mean of inverses is at least the inverse of the mean."""
    release = drawn(seed, 3, 5)
    known = release.T @ release
    (found,) = prior_floors(known, 0.3 * torch.eye(5), [std])
    assert found >= rmse_floor(float(known.trace()) / (5 * std**2), 0.09) * (1 - 1e-9)


@pytest.mark.parametrize(("leaks", "above"), [((0.0, 1.0), True), ((1.0, 1.0), False)])
def test_a_covariance_may_raise_or_lower_the_scalar_floor_of_its_pixel_variance(
    leaks: tuple[float, float], above: bool
) -> None:
    """If only variables that are known beforehand leak, using only the mean of variances gives a lower floor, else a higher one."""
    root = torch.diag(torch.tensor([1.99, 0.01]).sqrt())
    (found,) = prior_floors(torch.diag(torch.tensor(leaks)), root, [0.5])
    scalar = rmse_floor(sum(leaks) / (2 * 0.5**2), 1.0)
    assert (found > scalar) == above


def test_too_few_inputs_raise_the_floor() -> None:
    """The floor of the mean information is at most the root mean square of the single floors."""
    each = [drawn(s, 2, 5) for s in range(4)]
    grams = [a.T @ a for a in each]
    alone = [prior_floors(g, torch.eye(5), [0.3])[0] for g in grams]
    (together,) = prior_floors(sum(grams) / 4, torch.eye(5), [0.3])
    assert together < math.sqrt(sum(a * a for a in alone) / 4)


@pytest.mark.parametrize(
    ("information", "root", "stds", "says"),
    [
        (torch.eye(3), torch.eye(2), [1.0], "information and root: got shapes"),
        (torch.ones(3, 2), torch.eye(3), [1.0], "information and root: got shapes"),
        (torch.eye(3), torch.ones(3), [1.0], "information and root: got shapes"),
        (torch.eye(3) * math.nan, torch.eye(3), [1.0], "information and root: got values that are not finite"),
        (torch.eye(3), torch.eye(3), [1.0, 0.0], "stds: got"),
        (torch.eye(3), torch.eye(3), [math.nan], "stds: got"),
    ],
)
def test_inconsistent_shapes_and_numbers_are_refused(
    information: Tensor, root: Tensor, stds: list[float], says: str
) -> None:
    with pytest.raises(InputError, match=f"^{says}"):
        prior_floors(information, root, stds)


def test_no_victims_are_refused() -> None:
    x, y = examples(1)
    with pytest.raises(InputError, match=r"^inputs: got no victims"):
        information_matrix(view_of(network(), "type-2", Stations()), x[:0], y[:0])
