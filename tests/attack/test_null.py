import inspect

import pytest
import torch
from skimage.data import lfw_subset
from sklearn.datasets import load_digits
from torch import Tensor

from leakbench.attack.null.pictures import null_attack
from leakbench.measure.metrics import success_threshold


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PUBLIC = torch.tensor([[0.0, 0.0], [0.0, 0.2], [0.0, 0.1], [1.0, 0.8], [0.9, 0.8]])
TARGETS = torch.tensor([0, 0, 0, 1, 1])


def left_out(guess_of: object, count: int) -> Tensor:
    others = [[j for j in range(count) if j != i] for i in range(count)]
    return torch.stack([guess_of(i, torch.tensor(other)) for i, other in enumerate(others)])  # type: ignore[operator]


def test_the_baseline_never_gets_the_truth() -> None:
    expected = ["public_inputs", "public_targets", "victims", "known_labels", "eta", "rng"]
    assert list(inspect.signature(null_attack).parameters) == expected


def test_guesses_are_the_means_and_one_public_example() -> None:
    null = null_attack(PUBLIC, TARGETS, victims=3, known_labels=torch.tensor([1, 0, 1]), eta=0.1, rng=seeded())
    assert torch.allclose(null.guesses["public mean"], PUBLIC.mean(0).expand(3, 2))
    expected = torch.stack([PUBLIC[3:].mean(0), PUBLIC[:3].mean(0), PUBLIC[3:].mean(0)])
    assert torch.allclose(null.guesses["class mean"], expected)
    assert torch.equal(null.guesses["single example"], PUBLIC[2].expand(3, 2))  # Within .1 of two others.


def test_each_public_example_is_judged_by_guesses_that_did_not_see_it() -> None:
    null = null_attack(PUBLIC, TARGETS, victims=1, known_labels=torch.tensor([0]), eta=0.1, rng=seeded())

    def public_mean(i: int, others: Tensor) -> Tensor:
        return (PUBLIC[i] - PUBLIC[others].mean(0)).square().mean().sqrt()

    def class_mean(i: int, others: Tensor) -> Tensor:
        return (PUBLIC[i] - PUBLIC[others[TARGETS[others] == TARGETS[i]]].mean(0)).square().mean().sqrt()

    for name, guesser in (("public mean", public_mean), ("class mean", class_mean)):
        rmse = left_out(guesser, 5)
        assert null.mean_rmse[name] == pytest.approx(float(rmse.mean()), abs=1e-6)
        assert null.success_rate[name] == pytest.approx(float((rmse <= 0.1).float().mean()))
    assert null.success_rate["single example"] == 0.5  # Two of the four others.
    assert null.best_for_success == null.best_for_rmse == "class mean"


def test_the_best_for_success_need_not_be_the_best_for_rmse() -> None:
    spread = torch.cat([torch.zeros(8, 1), torch.linspace(0.2, 1, 12)[:, None]])
    null = null_attack(spread, torch.zeros(20, dtype=torch.int64), victims=1, known_labels=None, eta=0.05, rng=seeded())
    assert null.best_for_success == "single example" and null.best_for_rmse == "public mean"


def test_ties_go_to_the_lower_rmse_and_eta_itself_is_within() -> None:
    spread = torch.cat([torch.zeros(8, 1), torch.linspace(0.2, 1, 12)[:, None]])
    null = null_attack(spread, torch.zeros(20, dtype=torch.int64), victims=1, known_labels=None, eta=2.0, rng=seeded())
    assert set(null.success_rate.values()) == {1.0}
    assert null.best_for_success == null.best_for_rmse
    pair, one_class = torch.tensor([[0.0], [0.5]]), torch.zeros(2, dtype=torch.int64)
    assert null_attack(pair, one_class, 1, None, eta=0.5, rng=seeded()).success_rate["public mean"] == 1.0


def test_labels_that_are_not_known_or_not_public() -> None:
    null = null_attack(PUBLIC, TARGETS, victims=2, known_labels=None, eta=0.1, rng=seeded())
    assert set(null.guesses) == {"public mean", "single example"}
    null = null_attack(PUBLIC, TARGETS, victims=2, known_labels=torch.tensor([7, 1]), eta=0.1, rng=seeded())
    assert torch.allclose(null.guesses["class mean"][0], PUBLIC.mean(0))
    assert torch.allclose(null.guesses["class mean"][1], PUBLIC[3:].mean(0))


def test_a_class_of_one_is_judged_by_the_public_mean() -> None:
    public, targets = torch.tensor([[0.0], [0.2], [1.0]]), torch.tensor([0, 0, 1])
    null = null_attack(public, targets, victims=1, known_labels=torch.tensor([1]), eta=0.1, rng=seeded())
    assert null.mean_rmse["class mean"] == pytest.approx((0.2 + 0.2 + 0.9) / 3)
    assert null.guesses["class mean"].tolist() == [[1.0]]


def test_the_baseline_with_few_or_no_public_examples() -> None:
    null = null_attack(PUBLIC[:1], TARGETS[:1], victims=2, known_labels=None, eta=0.1, rng=seeded())
    assert all(torch.equal(guess, PUBLIC[:1].expand(2, 2)) for guess in null.guesses.values())
    with pytest.raises(ValueError, match="public_inputs: got no example"):
        null_attack(PUBLIC[:0], TARGETS[:0], victims=2, known_labels=None, eta=0.1, rng=seeded())


def test_the_single_example_is_one_of_a_thousand_and_the_same_for_the_same_seed() -> None:
    public = torch.rand(4000, 3, generator=seeded(1))
    targets = torch.zeros(4000, dtype=torch.int64)
    first, second = (
        null_attack(public, targets, victims=1, known_labels=None, eta=0.1, rng=seeded(2)) for _ in range(2)
    )
    assert torch.equal(first.guesses["single example"], second.guesses["single example"])
    candidates = public[torch.randperm(4000, generator=seeded(2))[:1000]]
    assert bool((candidates == first.guesses["single example"]).all(1).any())


@pytest.mark.parametrize("name", ["faces", "digits"])
def test_the_floor_of_the_embedded_data(name: str) -> None:
    if name == "faces":
        inputs, targets = torch.tensor(lfw_subset()[:100])[:, None], torch.zeros(100, dtype=torch.int64)
    else:
        inputs, targets = torch.tensor(load_digits().images)[:, None] / 16, torch.tensor(load_digits().target)
    eta = success_threshold(inputs, seeded())
    null = null_attack(
        inputs, targets, victims=1, known_labels=torch.zeros(1, dtype=torch.int64), eta=eta, rng=seeded()
    )
    assert 0.03 <= null.success_rate[null.best_for_success] <= 0.1
