"""The batched L-BFGS against `torch.optim.LBFGS`, victim by victim."""

import pytest
import torch
from torch import Tensor

from leakbench.attack.search.lbfgs import Lbfgs


def rugged(points: Tensor, shift: Tensor) -> Tensor:
    """Return a non-convex function (v, d) -> (v,) that differs between victims."""
    x = points - shift
    return (x.square() * torch.linspace(0.5, 4, x.shape[1], dtype=x.dtype)).sum(1) + (3 * x).sin().sum(1)


def slow_reference(start: Tensor, shift: Tensor, outer: int) -> tuple[list[float], Tensor, int]:
    """Return the values of every evaluation, the end point and the number of evaluations of torch's own optimiser."""
    x = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([x])
    seen: list[float] = []

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = rugged(x[None], shift[None])[0]
        value.backward()
        seen.append(float(value.detach()))
        return value

    for _ in range(outer):
        optimiser.step(closure)
    return seen, x.detach(), len(seen)


def test_every_victim_follows_torch() -> None:
    """Ten victims with different functions and starts: same values in the same order, same end, same evaluations."""
    rng = torch.Generator().manual_seed(1)
    start = torch.randn(10, 7, generator=rng, dtype=torch.float64) * torch.arange(1, 11)[:, None]
    shift = torch.randn(10, 7, generator=rng, dtype=torch.float64)
    start[3] = shift[3] * 0 + 1e-12  # The curvature differs from the first step on.
    seen: list[list[float]] = [[] for _ in range(10)]

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        leaf = points.clone().requires_grad_()
        values = rugged(leaf, shift[lanes])
        (gradient,) = torch.autograd.grad(values.sum(), leaf)
        for lane, value in zip(lanes.tolist(), values.tolist(), strict=True):
            seen[lane].append(value)
        return values.detach(), gradient

    search = Lbfgs(start.clone())
    for _ in range(4):
        search.step(objective)
    for victim in range(10):
        values, end, count = slow_reference(start[victim], shift[victim], 4)
        assert len(seen[victim]) == count == int(search.evaluations[victim])
        torch.testing.assert_close(
            torch.tensor(seen[victim], dtype=torch.float64),
            torch.tensor(values, dtype=torch.float64),
            rtol=1e-4,
            atol=1e-9,
        )
        torch.testing.assert_close(search.points[victim], end, rtol=1e-3, atol=1e-5)


def test_a_search_ends_when_a_step_is_too_short() -> None:
    """On 50 x^2 from 1 at rate .1 the first move is -100 / 100 * .1: below a tolerance of .2, though its direction is 100 long."""
    searches = []

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        return 50 * points.square().sum(1), 100 * points

    for tolerance in (0.2, 0.05):
        start = torch.ones(1, 1, dtype=torch.float64)
        search = Lbfgs(start.clone(), learning_rate=0.1, inner=4, tolerance_change=tolerance)
        search.step(objective)
        x = start.clone().requires_grad_()
        slow = torch.optim.LBFGS([x], lr=0.1, max_iter=4, tolerance_change=tolerance)

        def closure(x: Tensor = x, slow: torch.optim.LBFGS = slow) -> Tensor:
            slow.zero_grad()
            value = 50 * x.square().sum()
            value.backward()
            return value

        slow.step(closure)
        assert float(search.points) == pytest.approx(float(x.detach()))
        searches.append(search)
    assert float(searches[0].points) == pytest.approx(0.9)
    assert [int(s.iterations) for s in searches] == [1, 4]


def test_a_search_ends_when_the_value_no_longer_changes() -> None:
    """On 1e-5 x^2 a short step changes less than the tolerance while the gradient is far from zero: it ends as torch's does."""
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.LBFGS([x], lr=0.01)
    count = 0

    def closure() -> Tensor:
        nonlocal count
        count += 1
        reference.zero_grad()
        value = 1e-5 * x.square().sum()
        value.backward()
        return value

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        return 1e-5 * points.square().sum(1), 2e-5 * points

    search = Lbfgs(torch.ones(1, 3, dtype=torch.float64), learning_rate=0.01)
    for _ in range(2):
        reference.step(closure)
        search.step(objective)
        assert int(search.evaluations) == count
        torch.testing.assert_close(search.points[0], x.detach())
    assert count == 4


def test_history_wraps_around() -> None:
    """With a history of 3 the ring buffer drops the oldest pair, as torch's list does."""
    start, shift = torch.full((1, 5), 2.0, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.float64)
    x = start[0].clone().requires_grad_()
    reference = torch.optim.LBFGS([x], history_size=3)

    def closure() -> Tensor:
        reference.zero_grad()
        value = rugged(x[None], shift)[0]
        value.backward()
        return value

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        leaf = points.clone().requires_grad_()
        values = rugged(leaf, shift)
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    search = Lbfgs(start.clone(), history=3)
    for _ in range(3):
        reference.step(closure)
        search.step(objective)
        torch.testing.assert_close(search.points[0], x.detach(), rtol=1e-8, atol=1e-10)


def test_finished_victims_leave_without_changing_the_others() -> None:
    """Dropping victims changes nothing for those that stay."""
    start = torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(4, 3)
    shift = torch.zeros(4, 3, dtype=torch.float64)
    alone, together = Lbfgs(start[[1, 3]].clone()), Lbfgs(start.clone())

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        leaf = points.clone().requires_grad_()
        values = rugged(leaf, shift[: len(leaf)])
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    together.step(objective)
    alone.step(objective)
    together.keep(torch.tensor([1, 3]))
    together.step(objective)
    alone.step(objective)
    torch.testing.assert_close(together.points, alone.points, rtol=0, atol=0)


def test_a_victim_is_the_same_alone_and_with_others() -> None:
    """Also where it waits or refuses pairs while others store theirs, with a history that is full."""
    rng = torch.Generator().manual_seed(2)
    start = torch.randn(6, 5, generator=rng, dtype=torch.float64) * torch.arange(1, 7)[:, None]

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        leaf = points.clone().requires_grad_()
        values = rugged(leaf, torch.zeros(1, 5, dtype=leaf.dtype))
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    def search(points: Tensor) -> Lbfgs:
        found = Lbfgs(points.clone(), history=3, inner=6, tolerance_change=0.02)
        for _ in range(4):
            found.step(objective)
        return found

    together = search(start)
    assert len(set(together.stored.tolist())) > 1
    assert together.stored.max() > 3
    for victim in range(6):
        alone = search(start[[victim]])
        assert together.evaluations[victim] == alone.evaluations[0]
        assert together.stored[victim] == alone.stored[0]
        torch.testing.assert_close(together.points[victim], alone.points[0], rtol=1e-9, atol=1e-12)


def test_directions_are_those_of_the_recursion_over_the_pairs() -> None:
    """Nocedal and Wright, Algorithm 7.4, on histories of different lengths, one of them full and wrapped around, to 1e-9."""
    rng = torch.Generator().manual_seed(11)
    curvature = torch.rand(3, 40, generator=rng, dtype=torch.float64) * 9 + 0.1
    ends = torch.tensor([3, 7, 16])
    pairs: list[list[tuple[Tensor, Tensor]]] = [[], [], []]
    search = Lbfgs(torch.randn(3, 40, generator=rng, dtype=torch.float64), history=6, inner=1, tolerance_change=0.0)
    last = was = search.points.clone()
    for step in range(16):
        search.settled |= step >= ends
        moving, before = (step < ends).tolist(), search.points.clone()
        gradient = curvature * before
        search.step(lambda points, lanes: ((curvature[lanes] * points.square()).sum(1) / 2, curvature[lanes] * points))
        for lane in range(3):
            if moving[lane] and step:
                y, s = gradient[lane] - last[lane], before[lane] - was[lane]
                pairs[lane] = [*pairs[lane], (s, y)][-6:] if s @ y > 1e-10 else pairs[lane]
            if moving[lane] and len(pairs[lane]) > 1:
                expected = recursion(gradient[lane], pairs[lane])
                torch.testing.assert_close(search.direction[lane], expected, rtol=1e-9, atol=1e-12)
        last, was = gradient, before


def recursion(gradient: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    q, factors = -gradient.clone(), []
    for s, y in reversed(pairs):
        factors.append((s @ q) / (y @ s))
        q = q - factors[-1] * y
    s, y = pairs[-1]
    q = q * (s @ y) / (y @ y)
    for (s, y), a in zip(pairs, reversed(factors), strict=True):
        q = q + s * (a - (y @ q) / (y @ s))
    return q


def test_a_victim_without_a_descent_direction_never_moves_again() -> None:
    """One gradient's square is below the least change that counts (1e-9), although the gradient is above its limit (1e-7)."""

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        slope = torch.tensor([[1e-6], [1.0]], dtype=torch.float64)[lanes]
        return (slope * points).sum(1), slope.expand_as(points)

    search = Lbfgs(torch.ones(2, 1, dtype=torch.float64))
    search.step(objective)
    assert search.settled.tolist() == [True, False]
    assert search.points[0] == 1 and search.points[1] < 1
