"""The whitened space and the likelihood: covariances and logarithms of densities in closed form."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from leakbench.attack.search import whitening
from leakbench.attack.search.whitening import (
    PIXEL_VARIANCE,
    Whitening,
    fitting_floor,
    of_examples,
    one_over_f,
    unexplained,
)
from leakbench.attack.slots.distance import Likelihood
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.cell import Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.types import Network
from leakbench.execute import _sent, hand_out
from leakbench.experiment.victims import aware, draw_victims, view_of
from leakbench.federated.view import Public, View

DOUBLE = torch.zeros(1, dtype=torch.float64)


def dense(white: Whitening) -> Tensor:
    """Return W as a matrix (d, d), column by column."""
    size = white.mean.numel()
    return white.apply(torch.eye(size).double().reshape(size, *white.mean.shape)).flatten(1).T


def covariance(white: Whitening) -> Tensor:
    return dense(white) @ dense(white).T


def view(shape: tuple[int, ...], public: Tensor | None = None, noise: float | None = None) -> View:
    update = {"w": torch.zeros(2, 3, dtype=torch.float64)}
    known = None if public is None else Public(public, torch.zeros(len(public), dtype=torch.int64))
    network = Network(torch.nn.Linear(1, 1), {"w": torch.zeros(3)})
    return View("type-1", network, update, 2, shape, 4, 0.1, public=known, noise=noise)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 4, 6), (2, 5, 3)])
def test_one_over_f_has_the_variance_of_pictures_and_an_inverse(shape):
    white = one_over_f(shape, DOUBLE)
    assert float(covariance(white).diagonal().mean()) == pytest.approx(PIXEL_VARIANCE)
    assert set(white.mean.flatten().tolist()) == {0.5}
    z = torch.rand(3, *shape, dtype=torch.float64)
    torch.testing.assert_close(white.invert(white.apply(z)), z)


def test_one_over_f_falls_with_the_square_of_the_frequency():
    """A cosine of frequency (3, 4) has 1 / 26 of the variance of the constant; vertical and horizontal ones are equal."""
    white = one_over_f((1, 8, 8), DOUBLE)
    z = torch.zeros(3, 1, 8, 8, dtype=torch.float64)
    z[0, 0, 0, 0] = z[1, 0, 3, 4] = z[2, 0, 4, 3] = 1
    constant, one, other = white.apply(z).flatten(1).square().sum(1).tolist()
    assert constant / one == pytest.approx(26)
    assert one == pytest.approx(other)
    picture = white.apply(z)[1, 0]
    place = (torch.arange(8) + 0.5).double() * torch.pi / 8
    wave = torch.outer(torch.cos(3 * place), torch.cos(4 * place))
    torch.testing.assert_close(picture / picture[0, 0], wave / wave[0, 0])


def test_colours_share_the_variance():
    """The shares of the variance: 2.6 for grey, .3 for red against blue, .1 for green against both, of three."""
    white = covariance(one_over_f((3, 1, 1), DOUBLE)) / PIXEL_VARIANCE
    for direction, share in (([1, 1, 1], 2.6), ([1, 0, -1], 0.3), ([1, -2, 1], 0.1)):
        unit = torch.tensor(direction).double() / torch.tensor(direction).double().norm()
        assert float(unit @ white @ unit) == pytest.approx(share)


def test_directions_without_examples_get_a_share_of_the_base():
    """W W^T = covariance + floor * B B^T, also for fewer examples than dimensions, with W's inverse."""
    base = one_over_f((1, 3, 3), DOUBLE)
    x = torch.rand(4, 1, 3, 3, dtype=torch.float64)
    white = of_examples(x, 0.2, base)
    torch.testing.assert_close(covariance(white), torch.cov(x.flatten(1).T, correction=0) + 0.2 * covariance(base))
    torch.testing.assert_close(white.invert(white.apply(x)), x)


def test_the_floor_maximises_the_likelihood_of_the_other_half(monkeypatch):
    """By torch's own Gaussian density; examples of the base itself leave a large floor, examples in a plane almost none."""
    base, generator = one_over_f((1, 3, 3), DOUBLE), torch.Generator().manual_seed(1)
    z = torch.randn(8, 1, 3, 3, dtype=torch.float64, generator=generator)
    x, floors = 0.5 + base.apply(z), (1.0, 0.3, 0.1, 0.01)
    lost = []
    for floor in floors:
        total = 0.0
        for known, new in ((x[::2], x[1::2]), (x[1::2], x[::2])):
            spread = covariance(of_examples(known, floor, base))
            of = torch.distributions.MultivariateNormal(known.mean(0).flatten(), spread)
            total -= float(of.log_prob(new.flatten(1)).mean())
        lost.append(total)
    monkeypatch.setattr(whitening, "FLOORS", floors)
    assert fitting_floor(x, base) == floors[lost.index(min(lost))]
    found = torch.tensor(unexplained(x, base, floors)) - 2 * torch.tensor(lost)
    torch.testing.assert_close(found - found[0], torch.zeros(4), atol=1e-4, rtol=0)
    plane = 0.5 + base.apply((torch.randn(40, 2, generator=generator).double() @ z[:2].flatten(1)).reshape(-1, 1, 3, 3))
    assert fitting_floor(plane, base) == 0.01
    assert fitting_floor(x[:1], base) == 1.0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 12))
def test_the_space_of_examples_is_the_root_of_their_covariance(seed, count):
    """Also for fewer examples than dimensions: W W^T = covariance + floor I. For many examples W is triangular, else symmetric."""
    x = torch.rand(count, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    white, floor = of_examples(x, 0.01), 0.01 * torch.eye(6).double()
    flat = x.flatten(1)
    expected = torch.cov(flat.T, correction=0) if count > 1 else torch.zeros(6, 6).double()
    torch.testing.assert_close(covariance(white), expected + floor)
    root = dense(white)
    torch.testing.assert_close(root, root.T if count <= 3 else root.tril())
    torch.testing.assert_close(white.mean, x.mean(0))
    torch.testing.assert_close(white.invert(white.apply(x)), x)


def test_a_wide_root_leaves_out_its_zeros(monkeypatch):
    """The same map and the same derivative for stripes of different heights as for the whole matrix, with fewer products."""
    generator = torch.Generator().manual_seed(2)
    x, z = torch.rand(9, 11, generator=generator).double(), torch.randn(3, 11, generator=generator).double()
    results, operations = [], []
    for wide in (12, 11):
        monkeypatch.setattr(whitening, "WIDE", wide)
        white = of_examples(x, 0.01)
        with FlopCounterMode(display=False) as counter:
            moved = white.apply(z.requires_grad_())
        operations.append(counter.get_total_flops())
        results.append((moved.detach(), *torch.autograd.grad((moved**3).sum(), z)))
    assert operations == [2 * 3 * 11 * 11, 2 * 3 * (2 * 2 + 3 * 5 + 3 * 8 + 3 * 11)]
    for whole, striped in zip(*results, strict=True):
        torch.testing.assert_close(striped, whole)


@pytest.mark.parametrize("count", [3, 40])
def test_small_variances_are_exact_in_single_precision(count):
    """Where the examples hardly differ, W is the root of the floor: the inverse of W makes the unit matrix of their covariance.

    Products in float32 would have errors of 1e-7, a tenth of the floor.
    """
    x = torch.rand(count, 8, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 1.0, *[1e-6] * 6])
    white, floor = of_examples(x, 1e-6), 1e-6 * torch.eye(8).double()
    expected = torch.cov(x.double().T, correction=0) + floor
    inverse = white.invert(torch.eye(8)).double()
    torch.testing.assert_close(inverse.T @ expected @ inverse, torch.eye(8).double(), atol=5e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [3, 40])
def test_half_precision_has_a_root(count, dtype):
    x = torch.rand(count, 8, generator=torch.Generator().manual_seed(3)).to(dtype)
    white = of_examples(x, 0.1)
    assert white.apply(x).dtype == white.invert(x).dtype == dtype
    torch.testing.assert_close(white.invert(white.apply(x)), x, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("source", ["one_over_f", "public"])
def test_encode_inverts_decode_and_the_energy_is_the_squared_length(source):
    public = torch.rand(5, 1, 4, 4, dtype=torch.float64)
    coordinates = Whitened(source=source, weight=3.0)(view((1, 4, 4), public))
    x = torch.rand(2, 2, 1, 4, 4, dtype=torch.float64)
    z = coordinates.encode(x)
    assert z.shape == (2, 2, 16)
    torch.testing.assert_close(coordinates.decode(z), x)
    targets = torch.eye(4).double()[:2].expand(2, 2, 4)
    torch.testing.assert_close(coordinates.energy(z, targets), 1.5 * z.flatten(1).square().sum(1))
    torch.testing.assert_close(coordinates.energy(torch.zeros_like(z), targets), torch.zeros(2).double())
    torch.testing.assert_close(
        coordinates.decode(torch.zeros_like(z))[0, 0], public.mean(0) if source == "public" else x[0, 0] * 0 + 0.5
    )


def test_the_prior_by_class_is_centred_at_the_mean_of_the_class():
    """Minus the logarithm of N(mean of the class, covariance within classes + floor), without its constant, for each example."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    x = torch.rand(7, 1, 2, 2, dtype=torch.float64) + labels[:, None, None, None]
    shown = view((1, 2, 2))
    shown = dataclasses.replace(shown, public=Public(x, labels))
    space = Whitened(source="public", by_class=True, floor=0.01)(shown)
    means = torch.stack([x[labels == c].mean(0) for c in range(3)] + [x.mean(0)])  # No public example has class 3.
    apart = (x - means[labels]).flatten(1)
    prior = apart.T @ apart / 7 + 0.01 * torch.eye(4).double()
    guess, targets = torch.rand(1, 2, 1, 2, 2, dtype=torch.float64), torch.eye(4).double()[None, [1, 3]]
    of = torch.distributions.MultivariateNormal(means[[1, 3]].flatten(1), prior)
    constant = -torch.logdet(2 * torch.pi * prior) / 2
    expected = -(of.log_prob(guess[0].flatten(1)) - constant).sum()
    torch.testing.assert_close(space.energy(space.encode(guess), targets), expected[None])
    torch.testing.assert_close(space.decode(space.encode(guess)), guess)


@pytest.mark.parametrize("source", ["one_over_f", "usual"])
def test_the_prior_by_class_needs_examples_of_the_classes(source):
    with pytest.raises(InputError, match="by_class needs public examples"):
        Whitened(source=source, by_class=True)(view((1, 4, 4), torch.rand(3, 1, 4, 4)))


def test_tables_have_a_covariance_and_no_spectrum():
    with pytest.raises(InputError, match="one_over_f needs pictures"):
        Whitened()(view((5,)))
    with pytest.raises(InputError, match="public example"):
        Whitened(source="public")(view((5,)))
    x = torch.rand(2, 2, 5, dtype=torch.float64)
    coordinates = Whitened(source="public")(view((5,), torch.rand(9, 5, dtype=torch.float64)))
    torch.testing.assert_close(coordinates.decode(coordinates.encode(x)), x)


@pytest.mark.parametrize(("noise", "deviation"), [(None, 0.5), (0.1, 0.5), (2.0, 2.0)])
def test_the_likelihood_is_that_of_gaussian_noise_above_a_floor(noise, deviation):
    """Minus the logarithm of the density, without its constant."""
    guess, seen = torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    density = torch.distributions.Normal(guess, deviation)
    constant = torch.distributions.Normal(0.0, deviation).log_prob(torch.tensor(0.0)).double()
    found = Likelihood(floor=0.5)({"w": guess}, {"w": seen}, view((1, 4, 4), noise=noise))
    torch.testing.assert_close(found, -(density.log_prob(seen) - constant).sum(1))


def test_only_an_adaptive_attacker_knows_the_noise():
    """Fed-CDP at type-2: 6 times the sensitivity, which a layer-wise clip at 4 allows, on each coordinate."""
    cell = resolve_cell(
        Request(defense="fed_cdp", attack="cpl", dataset="digits", victims=2, candidates=5, taps=("type-2",)), None
    )
    victims = draw_victims(cell, "type-2", 0, hand_out(cell))
    blind = view_of(cell, "type-2", 0, victims, torch.arange(2), _sent(cell, None, None))
    assert blind.noise is None
    assert aware(blind, cell).noise == pytest.approx(24.0)
    plain = dataclasses.replace(cell, defense=resolve_cell(Request(dataset="digits"), None).defense)
    assert aware(blind, plain).noise is None


def test_only_the_public_prior_reads_public_examples():
    """Of 300 public examples only the last one differs, and it moves the mean."""
    assert (Whitened().needs.public, Whitened(source="public", public=300).needs.public) == (0, 300)
    public = torch.zeros(300, 1, 4, 4, dtype=torch.float64)
    public[-1] = 1
    coordinates = Whitened(source="public", public=300)(view((1, 4, 4), public))
    torch.testing.assert_close(
        coordinates.decode(torch.zeros(2, 2, 16).double()), torch.full((2, 2, 1, 4, 4), 1 / 300).double()
    )
