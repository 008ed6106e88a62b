"""SPEAR's parts against closed forms: zeros in noise, updates that cannot be read, and the fit to zero rows."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from leakbench.attack.methods import spear as module
from leakbench.attack.methods.spear import WIDEST, Spear
from leakbench.core.rng import generator

ROWS, WIDTH, MANY = 60, 40, 3
EPS = torch.finfo(torch.float64).eps


def random(*many: int, seed: int = 0) -> Tensor:
    return torch.randn(*many, generator=generator(seed, "spear")).double()


def layer(weight: Tensor) -> module._Layer:
    return module._Layer(
        weight, random(len(weight), seed=1), random(*weight.shape, seed=2), random(len(weight), seed=3)
    )


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Return the inputs of the search for directions: unit rows, and the tolerance of each for zero."""
    calls: list[tuple[Tensor, Tensor]] = []

    def columns(
        self: Spear, rows: Tensor, within: Tensor, many: int, rng: torch.Generator, *_: object
    ) -> Iterator[Tensor]:
        calls.append((rows, within))
        return iter(())

    monkeypatch.setattr(Spear, "_columns", columns)
    return calls


def spectrum(values: Tensor, seed: int = 4) -> Tensor:
    """Return a matrix (ROWS, WIDTH) with these singular values."""
    left, right = (torch.linalg.qr(random(n, WIDTH, seed=seed + n))[0] for n in (ROWS, WIDTH))
    return left * values @ right.T


@pytest.mark.parametrize("tolerance", [4.0, 7.0])
def test_a_row_is_zero_within_a_number_of_noise_deviations(seen, tolerance):
    """For an inactive example's column q, its value on row i is N(0, sum_j q_j^2 / s_j^2 sd^2 / |L_i|^2),
    with q random of length 1.
    """
    sd = 1e-3
    x, z = torch.rand(MANY, WIDTH, generator=generator(5, "x")).double(), random(ROWS, MANY, seed=6)
    z[torch.rand(ROWS, MANY, generator=generator(7, "zero")) < 0.5] = 0
    z = z[z.any(1)]
    weight = z @ x
    noisy = weight + sd * random(*weight.shape, seed=8)
    one = module._Layer(noisy, z.sum(1), weight, z.sum(1))
    Spear(tolerance=tolerance)._batch(one, MANY, generator(0, "s"))
    rows, within = seen[0]
    left, scale, right = torch.linalg.svd(noisy, full_matrices=False)
    wide = tolerance * sd * float((1 / scale[:MANY]).square().mean().sqrt())
    lengths = left[:, :MANY].norm(dim=1)
    lit = lengths > wide / WIDEST
    assert int(lit.sum()) > 0
    torch.testing.assert_close(within, wide / lengths[lit], rtol=0.05, atol=0)
    torch.testing.assert_close(rows, left[lit, :MANY] / lengths[lit, None])
    # Inactive examples deviate as expected: about one deviation of the present noise, over all of them.
    q = torch.linalg.inv(x @ right[:MANY].T / scale[:MANY])
    q = q / q.norm(dim=0)
    off = ((rows @ q) / (within / tolerance)[:, None])[z[lit] == 0]
    assert float(off.square().mean().sqrt()) == pytest.approx(1, abs=0.4)
    assert (off.abs() < tolerance * 1.5).all()


def test_a_row_without_an_active_example_is_left_out(seen):
    """Any row is left out if its noise is more than a tenth of it."""
    sd, z = 1e-3, random(ROWS, MANY, seed=6)
    z[[4, 9]] = 0
    weight = z @ torch.rand(MANY, WIDTH, generator=generator(5, "x")).double() + sd * random(ROWS, WIDTH, seed=8)
    Spear()._batch(layer(weight), MANY, generator(0, "s"))
    assert len(seen[0][0]) == ROWS - 2
    assert (seen[0][1] < WIDEST).all()


@pytest.mark.parametrize(("share", "there"), [(1.01, True), (0.99, False)])
def test_updates_within_the_noise_are_not_searched(seen, share, there):
    """The M-th singular value must be twice the largest expected from noise of the observed deviation: sd (sqrt n + sqrt d)."""
    beyond = 1e-3
    deviation = beyond * ((WIDTH - MANY) / ((ROWS - MANY) * (WIDTH - MANY))) ** 0.5
    least = 2 * deviation * (ROWS**0.5 + WIDTH**0.5) * share
    values = torch.full((WIDTH,), beyond).double()
    values[:MANY] = torch.tensor([5.0, 2.0, least])
    inputs, sure = Spear(tolerance=0.1)._batch(layer(spectrum(values)), MANY, generator(0, "s"))
    assert bool(seen) == there
    assert inputs.shape == (MANY, WIDTH) and inputs.isnan().all() and (sure == -torch.inf).all()


@pytest.mark.parametrize(("share", "there"), [(1.1, True), (0.9, False)])
def test_without_noise_rounding_is_used_as_noise(seen, share, there):
    """eps of the largest singular value for each coordinate, if the residual is smaller."""
    values = torch.zeros(WIDTH).double()
    values[:MANY] = torch.tensor([5.0, 2.0, 2 * 5.0 * EPS * (ROWS**0.5 + WIDTH**0.5) * share])
    diagonal = torch.zeros(ROWS, WIDTH).double()  # It has an exact decomposition.
    diagonal[:WIDTH] = values.diag()
    Spear(tolerance=0.1)._batch(layer(diagonal), MANY, generator(0, "s"))
    assert bool(seen) == there


def test_fewer_rows_than_examples_are_not_searched(seen):
    """Two rows give two examples; a third example is spread over all others, and too small in each."""
    sd, right = 1e-3, torch.linalg.qr(random(WIDTH, WIDTH))[0]
    left = torch.zeros(ROWS, MANY).double()
    left[0, 0], left[1, 1], left[2:, 2] = 1, 1, (ROWS - 2) ** -0.5
    least = 2.5 * sd * (ROWS**0.5 + WIDTH**0.5)
    for third, rows in ((least, 2), (10 * least, ROWS)):
        weight = left * torch.tensor([1.0, 1.0, third]) @ right[:MANY] + sd * random(ROWS, WIDTH, seed=8)
        inputs, _ = Spear()._batch(layer(weight), MANY, generator(0, "s"))
        assert [len(shown) for shown, _ in seen] == ([] if rows < MANY else [rows])
        assert inputs.isnan().all()


def exact() -> tuple[module._Layer, Tensor]:
    """Return a layer without noise in which each example is active on each row with probability 1/2, and its inputs."""
    x, weight = torch.rand(MANY, WIDTH, generator=generator(5, "x")).double(), random(ROWS, WIDTH, seed=6)
    offset = -weight.sum(1) / 2
    z = random(ROWS, MANY, seed=7).where(weight @ x.T + offset[:, None] > 0, 0.0)
    return module._Layer(z @ x, z.sum(1), weight, offset), x


@pytest.mark.parametrize(("sparse", "there"), [(0.1, True), (0.9, False)])
def test_a_direction_with_too_few_zero_rows_is_rejected(sparse, there):
    one, x = exact()
    inputs, sure = Spear(sparse=sparse, draws=2000)._batch(one, MANY, generator(0, "s"))
    assert bool(inputs.isfinite().all()) == bool((sure > -torch.inf).all()) == there
    if there:
        assert torch.cdist(x, inputs).amin(1).max() < 1e-6


def test_the_default_tolerance_separates_noise_rows_from_example_rows():
    """The certificate is near one, at a noise where a tolerance of one deviation confuses many zeros and active examples."""
    one, x = exact()
    sd = 2e-3
    noisy = module._Layer(one.weight + sd * random(ROWS, WIDTH, seed=9), one.bias, one.sent, one.offset)
    inputs, sure = Spear(draws=2000)._batch(noisy, MANY, generator(0, "s"))
    assert torch.cdist(x, inputs).amin(1).max() < 0.3
    assert sure.mean() > 0.96


def test_the_reconstruction_with_the_best_certificate_is_kept(monkeypatch):
    """True columns among others; one row's sign is wrong, so nothing reaches the certificate that ends the search."""
    one, x = exact()
    offset = one.offset.clone()
    offset[3] += 100 if (one.sent @ x.T + offset[:, None])[3].min() < 0 else -100
    one = module._Layer(one.weight, one.bias, one.sent, offset)
    _, scale, right = torch.linalg.svd(one.weight, full_matrices=False)
    true = torch.linalg.inv(x @ right[:MANY].T / scale[:MANY])

    def columns(
        self: Spear, rows: Tensor, within: Tensor, many: int, rng: torch.Generator, *_: object
    ) -> Iterator[Tensor]:
        yield from (random(MANY, MANY, seed=31), true / true.norm(dim=0), random(MANY, MANY, seed=32))

    monkeypatch.setattr(Spear, "_columns", columns)
    inputs, sure = Spear(certain=1.0)._batch(one, MANY, generator(0, "s"))
    torch.testing.assert_close(inputs, x)
    assert 1 - 2 / ROWS < sure.min() < 1


def planted(noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit rows (n, M) with different noise, their deviations (n,), and the true directions (M, M)."""
    truth = torch.linalg.qr(random(MANY, MANY, seed=11))[0] + 0.2 * random(MANY, MANY, seed=12)
    truth = truth / truth.norm(dim=1, keepdim=True)
    found, many = [], 20
    for direction in truth:  # Rows that are zero along it.
        some = random(many, MANY, seed=len(found) + 20)
        found.append(some - (some @ direction)[:, None] * direction)
    rows = torch.cat(found)
    rows = rows / rows.norm(dim=1, keepdim=True)
    deviation = noise * 10 ** (-torch.rand(len(rows), generator=generator(13, "d")).double())
    return rows + deviation[:, None] * random(*rows.shape, seed=14), deviation, truth


def test_a_direction_is_fitted_again_to_its_zero_rows():
    """The smallest singular vector of these rows, each over its own noise: by eigenvectors, and closer to the truth than before."""
    rows, deviation, truth = planted(1e-3)
    within = 4 * deviation
    before = truth + 5e-4 * random(MANY, MANY, seed=15)
    before = before / before.norm(dim=1, keepdim=True)
    found = module._independent(before, rows, within, MANY)
    assert found.shape == (MANY, MANY)
    for one, old, true in zip(found, before, truth, strict=True):
        still = (rows @ old).abs() < within
        assert 5 < int(still.sum()) < len(rows)
        weighted = rows[still] / within[still, None]
        least = torch.linalg.eigh(weighted.T @ weighted)[1][:, 0]
        assert float((one @ least).abs()) == pytest.approx(1, abs=1e-12)
        plain = torch.linalg.eigh(rows[still].T @ rows[still])[1][:, 0]
        assert float((one @ plain).abs()) < 1 - 1e-10
        assert 1 - float((one @ true).abs()) < 0.5 * (1 - float((old @ true).abs()))


def test_a_direction_in_the_span_of_those_before_is_left_out():
    """By a twentieth of its length, before and after the fit; earlier ones have priority, and there are at most M."""
    rows, deviation, truth = planted(1e-9)
    basis = torch.linalg.svd(truth[:2])[2][2]
    inside = truth[0] + truth[1] + 0.03 * basis
    for near in (inside / inside.norm(), truth[0], -truth[1]):
        found = module._independent(torch.stack([truth[0], truth[1], near, truth[2]]), rows, 4 * deviation, MANY)
        assert [int((truth @ one).abs().argmax()) for one in found] == [0, 1, 2]
    again = module._independent(torch.stack([*truth, *truth]), rows, 4 * deviation, MANY)
    assert len(again) == MANY
    assert len(module._independent(truth[:2], rows, 4 * deviation, MANY)) == 2


def test_a_direction_that_the_fit_turns_into_an_earlier_one_is_left_out():
    """A direction a tenth from the first is fitted to the first one's rows; a repeated direction is not a second example."""
    first, second, third = torch.eye(3).double()
    angle = torch.linspace(-1, 1, 20).double()[:, None]
    beside = angle.sin() * second + angle.cos() * third
    others = angle.cos() * first + angle.sin() * third
    near = (first + 0.1 * second) / 1.01**0.5
    found = module._independent(
        torch.stack([first, near]), torch.cat([beside, others]), torch.full((40,), 0.2).double(), 3
    )
    torch.testing.assert_close(found.abs(), first[None])
