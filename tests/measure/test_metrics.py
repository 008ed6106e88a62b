import hashlib
import time
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.data import lfw_subset
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from sklearn.datasets import load_digits
from torch import Tensor

from leakbench.measure.measures import undefined
from leakbench.measure.metrics import load_lpips, match, pairwise_rmse, psnr, rmse, ssim, success_threshold


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=seeded(seed))


def reordered(reconstruction: Tensor, order: Tensor) -> Tensor:
    return torch.stack([r[o] for r, o in zip(reconstruction, order, strict=True)])


@pytest.mark.parametrize("cycle", [(1, 2, 0), (2, 0, 1), (0, 1, 2)])
def test_match_undoes_a_cycle_of_three(cycle: tuple[int, ...]) -> None:
    # A cycle of two is its own inverse and would hide an inverse permutation.
    truth = pictures(2, 3, 1, 4, 4)
    reconstruction = truth[:, list(cycle)]
    assert rmse(reordered(reconstruction, match(reconstruction, truth)), truth).max() == 0


def test_match_undoes_random_orders_lane_by_lane() -> None:
    truth = pictures(50, 7, 5)
    shuffles = torch.stack([torch.randperm(7, generator=seeded(v)) for v in range(50)])
    reconstruction = reordered(truth, shuffles) + 0.01 * (pictures(50, 7, 5, seed=1) - 0.5)
    assert torch.equal(match(reconstruction, truth), shuffles.argsort(1))


def test_match_is_one_to_one_and_least_in_total() -> None:
    truth, reconstruction = pictures(1, 4, 6), pictures(1, 4, 6, seed=1)
    cost = pairwise_rmse(truth[0], reconstruction[0]).square()
    best = min(permutations(range(4)), key=lambda order: sum(cost[m, r] for m, r in enumerate(order)))
    assert match(reconstruction, truth).tolist() == [list(best)]


def test_match_minimises_the_squared_error() -> None:
    """Two errors of .51 have a lower MSE than errors of 1 and 0, and a higher RMSE in total."""
    truth = torch.tensor([[[0.0, 0.0], [0.5, 0.1]]])
    reconstruction = torch.tensor([[[0.5, 0.1], [1.0, 0.0]]])
    assert match(reconstruction, truth).tolist() == [[0, 1]]
    crossed = [rmse(reordered(reconstruction, torch.tensor([o])), truth).sum() for o in ([1, 0], [0, 1])]
    assert crossed[0] < crossed[1]


def test_match_assigns_the_worst_truth_to_a_missing_reconstruction() -> None:
    truth = torch.tensor([[[0.0], [1.0], [0.5]]])
    reconstruction = torch.tensor([[[torch.nan], [0.5], [0.4]]])
    order = match(reconstruction, truth)
    assert sorted(order[0].tolist()) == [0, 1, 2]
    assert order[0].tolist() == [2, 0, 1]  # The missing reconstruction is assigned where a finite one would gain least.
    assert rmse(reordered(reconstruction, order), truth).isnan().tolist() == [[False, True, False]]


def test_rmse_grows_in_proportion_and_is_not_normalised_by_the_data() -> None:
    truth = torch.full((1, 1, 3, 8, 8), 0.5)
    error = pictures(1, 1, 3, 8, 8) - 0.5
    scores = [float(rmse(truth + scale * error, truth)) for scale in (1.0, 1e-2, 1e-4)]
    assert scores == pytest.approx([float(error.square().mean().sqrt()) * s for s in (1.0, 1e-2, 1e-4)], rel=1e-3)


def test_scores_are_taken_on_clamped_pixels() -> None:
    truth = torch.tensor([[[0.0, 1.0]]])
    assert rmse(torch.tensor([[[-5.0, 7.0]]]), truth).tolist() == [[0.0]]
    assert float(rmse(torch.ones(1, 1, 2), torch.zeros(1, 1, 2))) == 1.0
    assert rmse(truth, torch.tensor([[[-0.5, 1.5]]])).tolist() == [[0.0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_nan_pixel_means_no_reconstruction(bad: float) -> None:
    truth = pictures(1, 2, 3, 16, 16)
    reconstruction = truth.clone()
    reconstruction[0, 1, 2, 15, 15] = bad
    for score in (rmse, psnr, ssim):
        assert score(reconstruction, truth).isnan().tolist() == [[False, True]]


@pytest.mark.parametrize("score", [rmse, psnr, ssim, match])
def test_shapes_that_would_broadcast_are_refused(score: object) -> None:
    with pytest.raises(ValueError, match="reconstruction: got shape"):
        score(pictures(2, 1, 1, 16, 16), pictures(2, 3, 1, 16, 16))  # type: ignore[operator]


def test_psnr_equals_scikit_image_and_is_capped() -> None:
    truth, reconstruction = pictures(1, 5, 1, 12, 12), pictures(1, 5, 1, 12, 12, seed=1)
    expected = [
        peak_signal_noise_ratio(t.double().numpy(), r.double().numpy(), data_range=1)
        for t, r in zip(truth[0], reconstruction[0], strict=True)
    ]
    assert psnr(reconstruction, truth)[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert psnr(truth, truth).tolist() == [[100.0] * 5]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 11, 17)])
def test_ssim_equals_scikit_image(shape: tuple[int, ...]) -> None:
    truth = pictures(60, 2, *shape)
    noise = pictures(60, 2, *shape, seed=1) - 0.5
    strength = torch.linspace(0, 1, 60).reshape(60, 1, 1, 1, 1)
    reconstruction = (truth + strength * noise).clamp(0, 1)
    reconstruction[0] = 0.25  # A constant picture has no variance.
    ours = ssim(reconstruction, truth).flatten()
    pairs = zip(truth.flatten(0, 1), reconstruction.flatten(0, 1), strict=True)
    theirs = [
        structural_similarity(
            t.numpy(),
            r.numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for t, r in pairs
    ]
    assert np.abs(ours.numpy() - np.array(theirs)).max() < 1e-5
    assert torch.allclose(ssim(truth, truth), torch.ones(60, 2, dtype=torch.float64))


def test_scores_that_are_not_defined_for_a_shape() -> None:
    assert undefined((3, 32, 32)) == {} and undefined((1, 11, 11)) == {}
    assert "smaller than the 11x11 window" in undefined((1, 8, 8))["ssim"] and "lpips" not in undefined((1, 8, 8))
    assert set(undefined((30,))) == {"ssim", "lpips"}
    assert set(undefined((4, 32, 32))) == {"lpips"}
    nothing = ssim(pictures(2, 3, 1, 8, 8), pictures(2, 3, 1, 8, 8))
    assert nothing.isnan().all() and nothing.shape == (2, 3)
    assert ssim(pictures(2, 3, 30), pictures(2, 3, 30)).isnan().all()


def test_pairwise_rmse_is_exact_for_near_duplicates() -> None:
    a = pictures(4, 3, 32, 32)
    b = a + 1e-5
    expected = (a[:, None].double() - b[None].double()).square().flatten(2).mean(2).sqrt()
    assert torch.allclose(pairwise_rmse(a, b), expected, rtol=0, atol=1e-7)


def test_success_threshold_of_three_known_points() -> None:
    examples = torch.tensor([[0.0], [0.1], [0.4]])  # Distances .1, .3, .4.
    assert success_threshold(examples, seeded(), quantile=0.5) == pytest.approx(0.3)
    repeated = examples[[0, 0, 0, 1, 1, 2]]
    assert success_threshold(repeated, seeded(), quantile=0.5) == pytest.approx(0.3)
    assert success_threshold(repeated, seeded(), quantile=0.0) == pytest.approx(0.1)


def test_success_threshold_over_chunks_equals_all_pairs() -> None:
    examples = pictures(1100, 6)
    all_pairs = torch.pdist(examples.double()) / 6**0.5
    expected = np.quantile(all_pairs.numpy(), 0.001)
    assert success_threshold(examples, seeded()) == pytest.approx(expected, abs=1e-9)


def test_success_threshold_is_of_three_thousand_examples_at_most() -> None:
    examples = pictures(3100, 1)
    assert success_threshold(examples, seeded()) == success_threshold(examples, seeded(), 3000)


def test_success_threshold_refuses_examples_without_distances() -> None:
    with pytest.raises(ValueError, match="got 1 distinct"):
        success_threshold(torch.zeros(5, 2), seeded())
    with pytest.raises(ValueError, match="not finite"):
        success_threshold(torch.tensor([[0.0], [torch.nan]]), seeded())


def test_success_threshold_of_the_embedded_data() -> None:
    faces = torch.tensor(lfw_subset()[:100])
    digits = torch.tensor(load_digits().images) / 16
    assert success_threshold(faces, seeded()) == pytest.approx(0.132, abs=0.001)
    assert success_threshold(digits, seeded()) == pytest.approx(0.129, abs=0.001)


@pytest.mark.slow
def test_success_threshold_is_quick() -> None:
    examples = pictures(3000, 3072)
    start = time.process_time()
    success_threshold(examples, seeded())
    assert time.process_time() - start < 8  # Seconds of CPU time; about a second of wall time on two idle cores.


def backbone(folder: Path) -> Path:
    from torchvision.models import squeezenet1_1  # noqa: PLC0415

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = squeezenet1_1().state_dict()
    file = folder / "weights.pth"
    torch.save(weights, file)
    return file.rename(folder / f"squeezenet1_1-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}.pth")


def test_lpips_reports_why_it_is_absent(tmp_path: Path) -> None:
    reason = "n/a: backbone weights not found; pass --lpips-weights DIR"
    assert load_lpips(None) == reason == load_lpips(tmp_path) == load_lpips(tmp_path / "no such folder")
    file = backbone(tmp_path)
    file.rename(tmp_path / "squeezenet1_1-00000000.pth")
    damaged = load_lpips(tmp_path)
    assert isinstance(damaged, str) and "is damaged" in damaged


def test_lpips_with_a_random_backbone(tmp_path: Path) -> None:
    import lpips  # noqa: PLC0415

    file = backbone(tmp_path)
    before = torch.get_rng_state()
    score = load_lpips(tmp_path)
    assert callable(score) and torch.equal(before, torch.get_rng_state())

    truth, other = pictures(2, 3, 1, 28, 28), pictures(2, 3, 1, 28, 28, seed=1)
    assert score(truth, truth).abs().max() == 0
    distance = score(other, truth)
    assert distance.shape == (2, 3) and bool((distance > 0).all())

    # The same weights in lpips itself, with the inputs of its documentation: three channels in [-1, 1].
    with pytest.warns(UserWarning):
        network = lpips.LPIPS(net="squeeze", pnet_rand=True, verbose=False)
    weights = torch.load(file, weights_only=True)
    for name, value in network.net.state_dict().items():
        value.copy_(weights["features." + name.split(".", 1)[1]])
    enlarged = [torch.nn.functional.interpolate(x, (64, 64), mode="bilinear") for x in (other[0], truth[0])]
    expected = network(*(x.repeat(1, 3, 1, 1) for x in enlarged), normalize=True).flatten()
    assert torch.allclose(distance[0].float(), expected, atol=1e-6)

    assert score(pictures(2, 3, 30), pictures(2, 3, 30)).isnan().all()
    other[1, 2] = torch.nan
    assert score(other, truth).isnan().tolist() == [[False] * 3, [False, False, True]]


def test_a_measure_is_declared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry gives the column of the rows, the median of the summary and the columns of the pages."""
    from leakbench.measure import measures  # noqa: PLC0415
    from leakbench.report import columns, rows  # noqa: PLC0415
    from leakbench.scoring import scores  # noqa: PLC0415
    from leakbench.summary import notes, tap  # noqa: PLC0415

    for module in (scores, tap, notes, columns, rows):
        assert module.MEASURES is measures.MEASURES
    names = [measure.name for measure in measures.MEASURES]
    assert names == ["rmse", "psnr", "ssim", "lpips"] and set(names) <= set(scores.COLUMNS)
    assert {measure.heading for measure in measures.MEASURES} <= {column.heading for column in columns.COLUMNS}
    assert {measure.heading for measure in measures.MEASURES} <= {column.heading for column in rows.COLUMNS}
    assert [measure.worst for measure in measures.MEASURES] == [np.inf, -np.inf, -np.inf, np.inf]
