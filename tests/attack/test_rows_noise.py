"""Known noise in rows and bins: how much of it a reconstruction contains, and which rows may still be an input."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.methods.bins import EMPTY, SURE
from leakbench.attack.methods.rows import Rows
from leakbench.attack.search.shrinkage import shrinkage_of
from leakbench.attack.servers.imprint import Bins
from leakbench.core.rng import generator, generators
from leakbench.core.types import Network
from leakbench.defense.clip import ClipLayers
from leakbench.defense.transform import Stations
from leakbench.federated.view import Public, View
from leakbench.models import parameters

D, K, S, TOLERANCE = 16, 40, 0.02, 0.01
CLIP = Stations(example=(ClipLayers(norm=1.0),))


def view(weight: Tensor, bias: Tensor, **told: object) -> View:
    """Return the view of one victim, with two examples, whose layer leaked weight (K, d) and bias (K,)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(D, K)).double()
    update = {"1.weight": weight[None], "1.bias": bias[None]}
    shown = View("type-1", Network(model, parameters(model)), update, 2, (D,), K, 0.1)
    return dataclasses.replace(shown, **told)  # type: ignore[arg-type]


def bins(cumulative: bool = False, functional: Tensor | None = None) -> Bins:
    edges = torch.linspace(0, 1, K + 1).double()
    w = torch.full((D,), 1 / D).double() if functional is None else functional
    return Bins("1", w, edges[:-1], edges[1:], torch.tensor([1.0, -1.0]).double().repeat(K // 2), cumulative)


def planted(row: int, x: Tensor, size: float = 3.0, cumulative: bool = False) -> tuple[Tensor, Tensor]:
    """Return the gradients of a layer with only one occupied bin."""
    weight, bias = torch.zeros(K, D).double(), torch.zeros(K).double()
    for each in range(row + 1) if cumulative else (row,):
        sign = 1.0 if each % 2 == 0 else -1.0
        weight[each], bias[each] = sign * size * x, sign * size
    return weight, bias


def example(h: float, seed: int = 0) -> Tensor:
    """Return values whose mean is h."""
    x = torch.rand(D, generator=generator(seed, "x")).double() * 0.2
    return x - x.mean() + h


@pytest.mark.parametrize("cumulative", [False, True])
def test_the_noise_on_a_reconstruction_is_that_of_its_gradient_over_its_scale(cumulative):
    """sigma / |db| for a quotient, sigma mid / |w . dW| for a reading by the bin; root two times that for a difference of rows."""
    weight, bias = planted(20, example(0.51), 3.0, cumulative)
    times = 2**0.5 if cumulative else 1.0
    by_bias = Rows()._bins(view(weight, bias, noise=S), bins(cumulative))
    assert float(by_bias.noise[0, 20]) == pytest.approx(S * times / 3)
    by_bin = Rows(scale="bin")._bins(view(weight, bias, noise=S), bins(cumulative))
    assert float(by_bin.noise[0, 20]) == pytest.approx(S * times * 0.5125 / (3 * 0.51))
    told = Rows()._bins(view(weight, bias, noise=S, stations=CLIP), bins(cumulative))
    assert torch.equal(told.noise, by_bin.noise)
    assert by_bias.certainty[0].isfinite().nonzero()[:, 0].tolist() == [20]
    first = Rows()._first(view(weight, bias, noise=S))
    assert float(first.noise[0, 20]) == pytest.approx(S / 3)


def test_the_reconstruction_is_the_posterior_mean_in_that_noise():
    """By the dense formula, for a bin and for a first layer's row."""
    public = Public(torch.rand(60, D, generator=generator(1, "p")).double(), torch.zeros(60, dtype=torch.int64))
    x, rngs = example(0.51), generators(0, "v", [(0,)])
    weight, bias = planted(20, x, 0.3)
    prior = shrinkage_of(public.inputs)
    covariance = torch.cov(public.inputs.T, correction=0) + prior.rest * torch.eye(D).double()
    gain = covariance @ torch.linalg.inv(covariance + (S / 0.3) ** 2 * torch.eye(D).double())
    expected = public.inputs.mean(0) + gain @ (x - public.inputs.mean(0))
    for secret in (bins(), None):
        shown = view(weight, bias, noise=S, public=public, secret=secret)
        torch.testing.assert_close(Rows()((shown,), rngs).inputs[0, 0], expected)
    assert (expected - x).abs().max() > 0.003
    silent = view(weight, bias, public=public, secret=bins())
    torch.testing.assert_close(Rows()((silent,), rngs).inputs[0, 0], x)


@pytest.mark.parametrize("above", [True, False])
def test_h_may_be_outside_its_bin_by_five_deviations_of_noise(above):
    """|w| times the noise on the values, and |h| times that on the bias; by the bin's own scale h is in its middle anyway."""
    w = torch.rand(D, generator=generator(2, "w")).double()
    w = w / w.sum()
    secret, noise = bins(functional=w), S / 3
    lower, upper, width = 0.5, 0.525, 0.025
    for share, there in ((0.999, True), (1.001, False)):
        # h = edge +- (tolerance width + 5 noise (|w| + h)), solved for h.
        step = (TOLERANCE * width + SURE * noise * w.norm()) * share
        rate = SURE * noise * share
        h = (upper + step) / (1 - rate) if above else (lower - step) / (1 + rate)
        weight, bias = planted(20, torch.full((D,), float(h)).double())
        read = Rows()._bins(view(weight, bias, noise=S), secret)
        assert bool(read.certainty[0, 20].isfinite()) == there
    by_bin = Rows(scale="bin")._bins(view(weight, bias, noise=S), secret)
    assert bool(by_bin.certainty[0, 20].isfinite())


@pytest.mark.parametrize("secret", [bins(), None])
@pytest.mark.parametrize("noise", [S, None])
def test_values_may_be_outside_the_input_range_by_five_deviations(secret, noise):
    slack = TOLERANCE + SURE * (noise or 0.0) / 3
    for share, there in ((0.99, True), (1.01, False)):
        for low in (True, False):
            x = example(0.51)
            x[0] = -slack * share if low else 1 + slack * share
            x[1:] += (0.51 * D - x.sum()) / (D - 1)
            weight, bias = planted(20, x)
            shown = view(weight, bias, noise=noise)
            read = Rows()._first(shown) if secret is None else Rows()._bins(shown, secret)
            assert bool(read.certainty[0, 20].isfinite()) == there


@pytest.mark.parametrize("secret", [bins(), None])
def test_a_row_as_short_as_noise_is_empty(secret):
    """|dW|^2 of noise is d sigma^2 with a deviation of sqrt(2 d) sigma^2: a row five deviations above it is occupied."""
    x = example(0.51)
    most = S * (D + SURE * (2 * D) ** 0.5) ** 0.5
    for share, there in ((0.99, False), (1.01, True)):
        weight, bias = planted(20, x, most * share / float(x.norm()))
        shown = view(weight, bias, noise=S)
        read = Rows(tolerance=10)._first(shown) if secret is None else Rows(tolerance=10)._bins(shown, secret)
        assert bool(read.certainty[0, 20].isfinite()) == there


@pytest.mark.parametrize("secret", [bins(), None])
def test_a_row_of_a_hundred_thousandth_of_the_largest_is_rounding(secret):
    x = example(0.51)
    other, _ = planted(10, example(0.26))
    for share, there in ((0.99, False), (1.01, True)):
        size = share * EMPTY * float(other.norm()) / float(x.norm())
        weight, bias = (a + b for a, b in zip(planted(10, example(0.26)), planted(20, x, size), strict=True))
        read = Rows()._first(view(weight, bias)) if secret is None else Rows()._bins(view(weight, bias), secret)
        assert read.certainty[0].isfinite().nonzero()[:, 0].tolist() == ([10, 20] if there else [10])


def test_unknown_noise_is_estimated_from_a_quarter_of_the_bins():
    """If most bins must be empty; with fewer than two bins for each example no bin is known to be empty."""
    x, rng = example(0.51), generator(3, "n")
    weight, bias = planted(20, x)
    weight = weight + S * torch.randn(K, D, generator=rng).double()
    sizes = (weight.norm(dim=1) / D**0.5).sort().values
    quarter = sizes.quantile(0.25)
    read = Rows()._bins(view(weight, bias), bins())
    assert float(read.noise[0, 20]) == pytest.approx(float(quarter) / 3)
    assert float(Rows()._bins(view(weight, bias, batch=19), bins()).noise[0, 20]) > 0
    assert float(Rows()._bins(view(weight, bias, batch=20), bins()).noise[0, 20]) == 0
