"""SPEAR's parts against closed forms: what vanishes in noise, when there is nothing to read, and the fit to rows that vanish."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from leakbench.attack.methods import spear as module
from leakbench.attack.methods.spear import WIDEST, Spear
from leakbench.rng import generator

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
    """What the search for directions is given, instead of the search: unit rows, and within what each vanishes."""
    calls: list[tuple[Tensor, Tensor]] = []

    def columns(
        self: Spear, rows: Tensor, within: Tensor, many: int, rng: torch.Generator, *_: object
    ) -> Iterator[Tensor]:
        calls.append((rows, within))
        return iter(())

    monkeypatch.setattr(Spear, "_columns", columns)
    return calls


def spectrum(values: Tensor, seed: int = 4) -> Tensor:
    """Return a matrix (ROWS, WIDTH) of these singular values."""
    left, right = (torch.linalg.qr(random(n, WIDTH, seed=seed + n))[0] for n in (ROWS, WIDTH))
    return left * values @ right.T


@pytest.mark.parametrize("tolerance", [4.0, 7.0])
def test_a_row_vanishes_within_so_many_deviations_of_the_noise_on_it(seen, tolerance):
    """Of an inactive example's column q that on row i is N(0, sum_j q_j^2 / s_j^2 sd^2 / |L_i|^2), q of length 1 and random."""
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
    # Of truly inactive examples that is as it should be: about one deviation of what is there, over all of them.
    q = torch.linalg.inv(x @ right[:MANY].T / scale[:MANY])
    q = q / q.norm(dim=0)
    off = ((rows @ q) / (within / tolerance)[:, None])[z[lit] == 0]
    assert float(off.square().mean().sqrt()) == pytest.approx(1, abs=0.4)
    assert (off.abs() < tolerance * 1.5).all()


def test_a_row_on_which_nobody_is_active_tells_nobody_apart(seen):
    """It is left out where its noise is more than a tenth of it, whichever row it is."""
    sd, z = 1e-3, random(ROWS, MANY, seed=6)
    z[[4, 9]] = 0
    weight = z @ torch.rand(MANY, WIDTH, generator=generator(5, "x")).double() + sd * random(ROWS, WIDTH, seed=8)
    Spear()._batch(layer(weight), MANY, generator(0, "s"))
    assert len(seen[0][0]) == ROWS - 2
    assert (seen[0][1] < WIDEST).all()


@pytest.mark.parametrize(("share", "there"), [(1.01, True), (0.99, False)])
def test_what_lies_in_the_noise_is_not_searched(seen, share, there):
    """The M-th singular value has to be twice the largest that noise of the deviation beyond it has: sd (sqrt n + sqrt d)."""
    beyond = 1e-3
    deviation = beyond * ((WIDTH - MANY) / ((ROWS - MANY) * (WIDTH - MANY))) ** 0.5
    least = 2 * deviation * (ROWS**0.5 + WIDTH**0.5) * share
    values = torch.full((WIDTH,), beyond).double()
    values[:MANY] = torch.tensor([5.0, 2.0, least])
    inputs, sure = Spear(tolerance=0.1)._batch(layer(spectrum(values)), MANY, generator(0, "s"))
    assert bool(seen) == there
    assert inputs.shape == (MANY, WIDTH) and inputs.isnan().all() and (sure == -torch.inf).all()


@pytest.mark.parametrize(("share", "there"), [(1.1, True), (0.9, False)])
def test_without_noise_rounding_stands_for_it(seen, share, there):
    """eps of the largest singular value a coordinate, where what is beyond is less than that."""
    values = torch.zeros(WIDTH).double()
    values[:MANY] = torch.tensor([5.0, 2.0, 2 * 5.0 * EPS * (ROWS**0.5 + WIDTH**0.5) * share])
    diagonal = torch.zeros(ROWS, WIDTH).double()  # So that its decomposition is exact.
    diagonal[:WIDTH] = values.diag()
    Spear(tolerance=0.1)._batch(layer(diagonal), MANY, generator(0, "s"))
    assert bool(seen) == there


def test_fewer_rows_than_examples_are_not_searched(seen):
    """Two rows hold two examples; a third is spread over all others, each of which holds too little of it."""
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
    """Return a layer without noise, on each of whose rows an example is active or not as a coin falls, and its inputs."""
    x, weight = torch.rand(MANY, WIDTH, generator=generator(5, "x")).double(), random(ROWS, WIDTH, seed=6)
    offset = -weight.sum(1) / 2
    z = random(ROWS, MANY, seed=7).where(weight @ x.T + offset[:, None] > 0, 0.0)
    return module._Layer(z @ x, z.sum(1), weight, offset), x


@pytest.mark.parametrize(("sparse", "there"), [(0.1, True), (0.9, False)])
def test_a_direction_along_which_too_few_rows_vanish_is_none(sparse, there):
    one, x = exact()
    inputs, sure = Spear(sparse=sparse, draws=2000)._batch(one, MANY, generator(0, "s"))
    assert bool(inputs.isfinite().all()) == bool((sure > -torch.inf).all()) == there
    if there:
        assert torch.cdist(x, inputs).amin(1).max() < 1e-6


def test_by_default_all_rows_vanish_that_hold_noise_and_few_that_hold_an_example():
    """The certificate is near one in a noise where one deviation calls a third of the zeros active, and forty active ones zero."""
    one, x = exact()
    sd = 2e-3
    noisy = module._Layer(one.weight + sd * random(ROWS, WIDTH, seed=9), one.bias, one.sent, one.offset)
    inputs, sure = Spear(draws=2000)._batch(noisy, MANY, generator(0, "s"))
    assert torch.cdist(x, inputs).amin(1).max() < 0.3
    assert sure.mean() > 0.96


def test_the_answer_of_the_best_certificate_is_kept(monkeypatch):
    """Of true columns between others; one row's sign is told wrongly, so that nothing reaches the certificate that ends it."""
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
    """Return unit rows (n, M) in noise, each of its own deviation, the deviations (n,), and the true directions (M, M)."""
    truth = torch.linalg.qr(random(MANY, MANY, seed=11))[0] + 0.2 * random(MANY, MANY, seed=12)
    truth = truth / truth.norm(dim=1, keepdim=True)
    found, many = [], 20
    for direction in truth:  # Rows that vanish along it.
        some = random(many, MANY, seed=len(found) + 20)
        found.append(some - (some @ direction)[:, None] * direction)
    rows = torch.cat(found)
    rows = rows / rows.norm(dim=1, keepdim=True)
    deviation = noise * 10 ** (-torch.rand(len(rows), generator=generator(13, "d")).double())
    return rows + deviation[:, None] * random(*rows.shape, seed=14), deviation, truth


def test_a_direction_is_fitted_anew_to_the_rows_that_vanish():
    """The least singular vector of these rows, each over its own noise: by eigenvectors, and nearer to the truth than before."""
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
    """By a twentieth of its length, before the fit and after it; the first ones first, and no more than M."""
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
    """A tenth beside the first, which is fitted to the first one's rows: twice the same is no second example."""
    first, second, third = torch.eye(3).double()
    angle = torch.linspace(-1, 1, 20).double()[:, None]
    beside = angle.sin() * second + angle.cos() * third
    others = angle.cos() * first + angle.sin() * third
    near = (first + 0.1 * second) / 1.01**0.5
    found = module._independent(
        torch.stack([first, near]), torch.cat([beside, others]), torch.full((40,), 0.2).double(), 3
    )
    torch.testing.assert_close(found.abs(), first[None])
