"""Random numbers: each lane draws its own, on the CPU or by counters."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from leakbench.core.rng import drawn_on, generator, generators, keyed, normal, uniform
from leakbench.core.types import Generators

CPU = torch.device("cpu")

counted = pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_philox_normal_"), reason="this PyTorch has no counter-based generator"
)


def lanes(*numbers: int, seed: int = 1) -> Generators:
    return generators(seed, "noise", [(n,) for n in numbers])


def test_each_lane_draws_from_its_own_generator_and_lanes_that_share_one_draw_together() -> None:
    shared = lanes(0) * 3
    assert torch.equal(normal(torch.zeros(3, 5, 4), shared, 2), torch.randn(3, 2, 4, generator=lanes(0)[0]))
    apart = normal(torch.zeros(3, 5, 4), lanes(0, 1, 2), 2)
    for lane in range(3):
        assert torch.equal(apart[lane], torch.randn(2, 4, generator=lanes(lane)[0]))


def test_numbers_of_a_seed_are_always_the_same() -> None:
    """Published rows were measured with these seeds."""
    assert generator(0, "noise", 1).initial_seed() == 3136146697272329583
    assert drawn_on(mixed := lanes(0, 1), torch.device("mps")) is mixed


def test_without_generators_there_is_no_noise() -> None:
    assert torch.equal(normal(torch.ones(2, 3, 4), None, 5), torch.zeros(2, 5, 4))
    assert torch.equal(uniform(torch.ones(2, 3, 4), None, 5), torch.full((2, 5, 4), 0.5))


@pytest.mark.parametrize("draws", [lambda rngs: rngs, pytest.param(lambda rngs: keyed(rngs, CPU), marks=counted)])
def test_a_wrong_number_of_lanes_is_refused(draws) -> None:
    with pytest.raises(ValueError, match="rngs: got 3 generators, expected one for each of 2 lanes"):
        normal(torch.zeros(2, 1, 4), draws(lanes(0, 1, 2)), 1)


def test_noise_for_a_cpu_and_of_an_older_pytorch_is_drawn_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rngs = lanes(0, 1)
    assert drawn_on(rngs, CPU) is rngs
    monkeypatch.setattr(torch.ops, "aten", object())
    assert drawn_on(rngs, torch.device("cuda")) is rngs


@counted
def test_noise_for_a_gpu_is_drawn_by_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakbench.core.rng.keyed", lambda rngs, device: (len(rngs), device.type))
    assert drawn_on(lanes(0, 1), torch.device("cuda")) == (2, "cuda")


@counted
def test_a_lane_has_the_same_counted_numbers_in_any_company() -> None:
    """Three draws of different shapes by three lanes together, by one alone and by two in another order."""
    shapes = ((3, 7), (1,), (5, 2, 2))

    def drawn(*numbers: int) -> list[torch.Tensor]:
        rngs = keyed(lanes(*numbers), CPU)
        return [normal(torch.zeros(len(numbers), 1, *shape), rngs, 2) for shape in shapes]

    together, alone, turned = drawn(0, 1, 2), drawn(1), drawn(2, 0)
    for several, one, two in zip(together, alone, turned, strict=True):
        assert torch.equal(several[1], one[0])
        assert torch.equal(several[[2, 0]], two)


@counted
def test_counted_numbers_are_new_in_each_draw_lane_seed_and_round() -> None:
    """Also if the same generators are asked again, which then draw other keys."""
    like, rngs = torch.zeros(2, 1, 1000), lanes(0, 1)
    first, second, other = keyed(rngs, CPU), keyed(rngs, CPU), keyed(lanes(0, 1, seed=2), CPU)
    found = torch.cat([normal(like, some, 1) for some in (first, first, second, other)]).flatten(1)
    assert (torch.corrcoef(found) - torch.eye(8)).abs().max() < 0.15
    assert torch.equal(normal(like, keyed(lanes(0, 1), CPU), 1).flatten(1), found[:2])


@counted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counted_numbers_are_standard_normal(dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov's test of 200,000 numbers, two lanes and two draws."""
    rngs = keyed(lanes(0, 1), CPU)
    like = torch.zeros(2, 1, 50_000, dtype=dtype)
    found = torch.cat([normal(like, rngs, 1) for _ in range(2)])
    assert found.dtype == dtype
    assert kstest(found.flatten().double().numpy(), "norm").pvalue > 1e-3
    assert found.abs().max() < 7
    assert kstest(uniform(like, rngs, 1).flatten().double().numpy(), "uniform").pvalue > 1e-3
