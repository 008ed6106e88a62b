"""Matrix mechanisms against jax-privacy 2.0; run by name with `pytest -m long`, skipped without it."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from leakbench.privacy.accountants import pld
from leakbench.privacy.factorization import Banded, Buffered, amplified, squared_error
from leakbench.privacy.factorization_search import banded, buffered, dense, square_root
from leakbench.privacy.participation import SINGLE, Participation, sensitivity, toeplitz, toeplitz_sensitivity

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

PARTICIPATIONS = [SINGLE, Participation(), Participation(4), Participation(8), Participation(8, 3), Participation(5)]


@pytest.fixture(scope="module")
def mf() -> ModuleType:
    jax = pytest.importorskip("jax", reason="jax-privacy is not installed: pip install jax-privacy==2.0.0 'jax[cpu]'")
    package = pytest.importorskip("jax_privacy.matrix_factorization", reason="jax-privacy is not installed")
    jax.config.update("jax_enable_x64", True)
    return package


@pytest.mark.parametrize("participation", PARTICIPATIONS)
def test_sensitivities_are_equal(mf: ModuleType, participation: Participation) -> None:
    separation, most = participation.separation, participation.most
    columns = [
        square_root(50, 50).column(),
        banded(50, 7).column(),
        banded(50, 20, participation).column(),
        buffered(50, 3, participation).column(),
        Buffered(50, (0.3, 0.2), (0.9, 0.4)).column(),
    ]
    for column in columns:
        ours = toeplitz_sensitivity(column, participation)
        theirs = mf.toeplitz.minsep_sensitivity_squared(column, separation, most, 50, skip_checks=True)
        assert ours.exact and ours.value == pytest.approx(float(theirs) ** 0.5, rel=1e-6)
    generator = np.random.default_rng(0)
    for matrix in (np.tril(generator.random((30, 30))), np.tril(generator.normal(size=(30, 30)))):
        theirs = mf.sensitivity.get_min_sep_sensitivity_upper_bound(mf.sensitivity.jnp.array(matrix), separation, most)
        assert sensitivity(matrix, participation).value == pytest.approx(theirs, rel=1e-6)
    if separation > 1:
        matrix = np.tril(generator.normal(size=(30, 30))) * mf.sensitivity.banded_lower_triangular_mask(30, separation)
        theirs = mf.sensitivity.get_sensitivity_banded(mf.sensitivity.jnp.array(matrix), separation, most)
        assert sensitivity(np.asarray(matrix), participation).value == pytest.approx(theirs, rel=1e-6)


def test_a_column_of_any_signs_within_the_separation_is_equal(mf: ModuleType) -> None:
    made = Banded(30, (1.0, -0.4, 0.6))
    ours = made.sensitivity(Participation(4))
    theirs = mf.sensitivity.get_sensitivity_banded(mf.sensitivity.jnp.array(made.matrix()), 4)
    assert ours.exact and ours.value == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize(("rounds", "bands"), [(64, 2), (64, 16), (64, 64), (512, 8), (512, 32)])
def test_optimised_bands_are_equal(mf: ModuleType, rounds: int, bands: int) -> None:
    theirs = np.asarray(mf.toeplitz.optimize_banded_toeplitz(rounds, bands))
    ours = banded(rounds, bands)
    np.testing.assert_allclose(ours.coefficients, theirs / theirs[0], atol=1e-5)
    error = squared_error(ours, SINGLE)
    assert error.mean == pytest.approx(float(mf.toeplitz.loss(theirs, rounds)), rel=1e-6)
    each = np.asarray(mf.toeplitz.per_query_error(strategy_coef=np.array(ours.coefficients), n=rounds))
    np.testing.assert_allclose(ours.prefix_deviations() ** 2, each, rtol=1e-6)


@pytest.mark.parametrize(
    ("rounds", "participation"), [(64, SINGLE), (64, Participation(16)), (256, SINGLE), (256, Participation(64))]
)
def test_optimised_buffers_have_the_same_error(mf: ModuleType, rounds: int, participation: Participation) -> None:
    theirs = mf.buffered_toeplitz.optimize(
        n=rounds, min_sep=participation.separation, max_participations=participation.most, error="mean"
    )
    column = np.asarray(theirs.toeplitz_coefs(rounds))
    same = Buffered(rounds, tuple(np.asarray(theirs.output_scale)), tuple(np.asarray(theirs.buf_decay)))
    np.testing.assert_allclose(same.column(), column, rtol=1e-9)
    np.testing.assert_allclose(same.inverse_column(), theirs.inverse().toeplitz_coefs(rounds), rtol=1e-6, atol=1e-9)
    ours = buffered(rounds, len(same.decays), participation)
    assert squared_error(ours, participation).mean <= squared_error(same, participation).mean * (1 + 1e-6)


@pytest.mark.parametrize("made", [banded(20, 5), buffered(20, 3)], ids=["banded", "buffered"])
def test_streams_are_equal(mf: ModuleType, made: Any) -> None:
    z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inverse = toeplitz(made.inverse_column())
    state, released = made.start(z[0]), []
    for index in range(20):
        noise, state = made.correlate(z[index], state, index)
        released.append(noise)
    if isinstance(made, Banded):
        stream = mf.toeplitz.inverse_as_streaming_matrix(np.array(made.coefficients))
    else:
        build = mf.buffered_toeplitz.BufferedToeplitz.build
        stream = build(list(made.decays), list(made.weights)).inverse_as_streaming_matrix()
    theirs = np.asarray(stream.materialize(20))
    np.testing.assert_allclose(theirs, inverse, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(torch.stack(released).numpy(), theirs @ z.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("rounds", "groups"), [(100, 1), (100, 4), (97, 8), (3, 10)])
def test_sampled_groups_have_the_epsilon_of_jax_privacy(mf: ModuleType, rounds: int, groups: int) -> None:
    accounting = pytest.importorskip("jax_privacy.accounting", reason="jax-privacy is not installed")
    params = accounting.DpParams(
        noise_multipliers=2.0, num_samples=1000, delta=1e-5, batch_size=50, cycle_length=groups
    )
    theirs = accounting.DpsgdTrainingAccountant(accounting.PldAccountantConfig()).compute_epsilon(rounds, params)
    ours = pld((amplified(banded(rounds, min(rounds, groups)), 2.0, 0.05, groups),), 1e-5)
    assert ours == pytest.approx(float(theirs), rel=2e-3)


def test_the_dense_optimum_has_the_same_error(mf: ModuleType) -> None:
    theirs = np.asarray(mf.dense.optimize(32))
    error = np.linalg.norm(np.tri(32) @ np.linalg.inv(theirs)) ** 2 / 32 * np.linalg.norm(theirs, axis=0).max() ** 2
    assert squared_error(dense(32), SINGLE).mean == pytest.approx(error, rel=1e-4)
    assert squared_error(dense(32), SINGLE).mean <= error * (1 + 1e-9)
