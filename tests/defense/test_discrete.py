"""Updates for secure aggregation: transform against SciPy, rounding and its norm, modular sums, sizes of the modulus."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard as scipy_hadamard

from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.defense.discrete import (
    decode,
    encode,
    finest_step,
    hadamard,
    least_bits,
    mean_squared_error,
    padded,
    random_signs,
    rotate,
    rotate_back,
    round_to_grid,
    wrap,
)
from leakbench.defense.integer_noise import discrete_gaussian, skellam
from leakbench.privacy.discrete import Rounding


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_the_transform_is_the_matrix_of_scipy(size: int) -> None:
    vectors = torch.randn(3, 2, size, dtype=torch.float64, generator=generator(0, "vectors"))
    expected = vectors.numpy() @ scipy_hadamard(size) / math.sqrt(size)
    np.testing.assert_allclose(hadamard(vectors).numpy(), expected, atol=1e-13)
    torch.testing.assert_close(hadamard(hadamard(vectors)), vectors)


def test_the_transform_needs_a_power_of_two() -> None:
    with pytest.raises(InputError, match=r"vectors: got 6 coordinates, expected a power of two"):
        hadamard(torch.zeros(2, 6))


def test_sizes_are_padded_to_powers_of_two() -> None:
    assert [padded(n) for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 4, 8, 1024]


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 70), seed=st.integers(0, 1000))
def test_a_rotation_keeps_lengths_and_has_an_inverse(size: int, seed: int) -> None:
    rng = generator(seed, "rotation")
    signs = random_signs(padded(size), rng)
    vectors = torch.randn(2, 3, size, dtype=torch.float64, generator=rng)
    rotated = rotate(vectors, signs)
    assert rotated.shape == (2, 3, padded(size))
    torch.testing.assert_close(rotated.norm(dim=-1), vectors.norm(dim=-1))
    torch.testing.assert_close(rotate_back(rotated, signs, size), vectors)


def test_a_rotation_flattens_a_long_coordinate() -> None:
    signs = random_signs(1024, generator(0, "signs"))
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(signs.mean()) < 4 / 32
    spike = torch.zeros(1, 1000)
    spike[0, 17] = 5.0
    torch.testing.assert_close(rotate(spike, signs).abs(), torch.full((1, 1024), 5 / 32))


@pytest.mark.parametrize("beta", [0.0, 0.1, math.exp(-0.5), 0.99])
@pytest.mark.parametrize("step", [0.01, 0.3, 3.0])
def test_rounded_vectors_are_at_most_as_long_as_promised(beta: float, step: float) -> None:
    rounding = Rounding(clip=1.0, step=step, dimension=16, beta=beta)
    vectors = torch.nn.functional.normalize(torch.randn(400, 5, 16, generator=generator(1, "vectors")), dim=-1)
    rounded = round_to_grid(vectors, rounding, generator(2, "rounding"))
    assert rounded.dtype == torch.int64
    assert rounded.double().norm(dim=-1).max() <= rounding.l2
    assert rounded.double().abs().sum(-1).max() <= rounding.l1
    assert (rounded * step - vectors).abs().max() < step * (1 + 1e-6)


def test_rounding_is_repeated_where_it_is_too_long() -> None:
    # Nine coordinates of 1/6 of a step: without a limit the norm exceeds this bound in a known share of cases.
    rounding = Rounding(clip=0.5, step=1.0, dimension=9, beta=0.9)
    vectors = torch.full((20_000, 9), 1 / 6, dtype=torch.float64)
    free = round_to_grid(vectors, Rounding(0.5, 1.0, 9, beta=0.0), generator(3, "rounding")).double()
    limited = round_to_grid(vectors, rounding, generator(3, "rounding")).double()
    too_long = free.norm(dim=-1) > rounding.l2
    assert 0.01 < too_long.double().mean() <= rounding.beta
    torch.testing.assert_close(limited[~too_long], free[~too_long])
    assert limited.norm(dim=-1).max() <= rounding.l2


def test_rounding_without_a_limit_is_unbiased() -> None:
    rounding = Rounding(clip=2.0, step=1.0, dimension=4, beta=0.0)
    vector = torch.tensor([0.25, -0.75, 1.5, 0.0], dtype=torch.float64)
    rounded = round_to_grid(vector.expand(40_000, 4), rounding, generator(4, "rounding")).double()
    torch.testing.assert_close(rounded.mean(0), vector, atol=0.011, rtol=0)
    part = torch.tensor([0.25, 0.25, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(rounded.var(0), part * (1 - part), atol=0.01, rtol=0)


@pytest.mark.parametrize("value", [1.01, math.nan, math.inf])
def test_a_vector_beyond_the_clip_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"vectors: got an L2 norm of .*, expected at most the clip 1"):
        round_to_grid(torch.tensor([[value, 0.0]]), Rounding(1.0, 0.5, 2), generator(0, "rounding"))


@settings(max_examples=50, deadline=None)
@given(value=st.integers(-(2**40), 2**40), bits=st.integers(1, 30))
def test_a_wrapped_value_is_congruent_and_in_range(value: int, bits: int) -> None:
    modulus = 2**bits
    wrapped = int(wrap(torch.tensor([value]), modulus))
    assert (wrapped - value) % modulus == 0
    assert -modulus / 2 <= wrapped < modulus / 2


def test_sums_of_wrapped_messages_are_wrapped_sums() -> None:
    values = torch.randint(-1000, 1000, (7, 5), generator=generator(5, "values"))
    assert torch.equal(wrap(wrap(values, 256).sum(0), 256), wrap(values.sum(0), 256))


@pytest.mark.parametrize("noise", [discrete_gaussian, skellam])
def test_the_server_reads_the_mean_with_the_stated_error(noise) -> None:
    lanes, clients, size, variance = 30, 8, 50, 9.0
    rounding = Rounding(clip=1.0, step=0.01, dimension=64, beta=0.0)
    rng = generator(6, "round")
    vectors = torch.randn(lanes, clients, size, generator=rng) / 7
    signs = random_signs(64, rng)
    messages = encode(vectors, rounding, signs, rng)
    messages = messages + noise(tuple(messages.shape), variance, rng)
    bits = least_bits(rounding, variance, clients)
    total = wrap(wrap(messages, 2**bits).sum(1), 2**bits)
    assert torch.equal(total, messages.sum(1))
    clipped = vectors.double() * (1 / vectors.double().norm(dim=-1, keepdim=True)).clamp_max(1)
    assert (clipped.norm(dim=-1) < vectors.norm(dim=-1) - 1e-3).any()
    errors = decode(total, rounding, signs, clients, size) - clipped.mean(1)
    bound = mean_squared_error(rounding, variance, clients)
    measured = float(errors.square().mean())
    # Rounding adds between 0 and 1/4 of a squared step; the 1,500 squares have a relative deviation of 4 %.
    assert 0.85 * bound * 9 / 9.25 < measured < 1.12 * bound


def test_signs_must_match_the_rounding() -> None:
    with pytest.raises(InputError, match=r"signs: got 8, expected the dimension 16 of the rounding"):
        encode(torch.zeros(1, 5), Rounding(1.0, 0.1, 16), torch.ones(8), generator(0, "rounding"))


def test_the_modulus_follows_the_recipe_of_the_paper() -> None:
    rounding, variance, clients = Rounding(clip=1.0, step=0.01, dimension=1024), 25.0, 100
    deviation = math.sqrt((100 * 100) ** 2 / 1024 + 25.25 * 100)
    assert least_bits(rounding, variance, clients, deviations=4) == math.ceil(math.log2(8 * deviation)) == 12


@settings(max_examples=50, deadline=None)
@given(
    bits=st.integers(8, 24),
    clients=st.integers(1, 500),
    std=st.floats(1e-3, 10),
    size=st.integers(0, 20),
    deviations=st.sampled_from([3.0, 4.0]),
)
def test_the_finest_step_needs_exactly_the_bits(
    bits: int, clients: int, std: float, size: int, deviations: float
) -> None:
    step = finest_step(1.0, std, 2**size, bits, clients, deviations)
    for factor, expected in ((1 + 1e-6, bits), (1 - 1e-6, bits + 1)):
        rounding = Rounding(1.0, step * factor, 2**size)
        assert least_bits(rounding, (std / rounding.step) ** 2, clients, deviations) == expected


def test_too_few_bits_for_any_step_are_refused() -> None:
    with pytest.raises(InputError, match=r"bits: got 5, expected at least 6 for 100 clients"):
        finest_step(1.0, 1.0, 16, 5, 100)
    assert finest_step(1.0, 1.0, 16, 6, 100) > 0


@pytest.mark.parametrize("noise", [discrete_gaussian, skellam])
def test_wrap_around_is_as_rare_as_stated(noise) -> None:
    # Equal updates, the worst case: the sum is as long as the clip allows. Three deviations: at most 2.2 % of coordinates.
    clients, size, variance = 20, 256, 4.0
    step = finest_step(1.0, math.sqrt(variance) * 0.02, size, 8, clients, 3.0)
    rounding = Rounding(1.0, step, size, beta=0.0)
    variance *= (0.02 / step) ** 2
    wrapped = []
    for seed in range(20):
        rng = generator(seed, "wrap")
        update = torch.nn.functional.normalize(torch.randn(1, size, generator=rng), dim=-1)
        signs = random_signs(size, rng)
        messages = encode(update.expand(clients, size), rounding, signs, rng)
        total = (messages + noise((clients, size), variance, rng)).sum(0)
        wrapped.append((wrap(total, 256) != total).double().mean())
    assert 0 < float(torch.stack(wrapped).mean()) < 2 * math.exp(-(3.0**2) / 2)
