"""Recognition: known results for pictures that a person would or would not recognise, and the distances against references."""

import dataclasses
import math

import pandas as pd
import pytest
import torch
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.cell import Request, resolve_cell
from leakbench.core.rng import generator
from leakbench.data.find import load_dataset
from leakbench.measure.metrics import ssim
from leakbench.measure.rates import RECOGNISED
from leakbench.measure.recognised import (
    BLUR,
    MOST,
    RECOGNISED_COLUMNS,
    SAME_CLASS,
    RecognitionGallery,
    gallery_of,
    high_passed,
    recognised,
    score_recognised,
    ssim_to_all,
)
from leakbench.measure.truth import VictimTruth

DATA = resolve_cell(Request(dataset="faces", attack="identification", train_rounds=0), None).data
CHOSEN = torch.arange(0, len(DATA.train_targets), 6)
OWN = DATA.train_inputs[CHOSEN]
GALLERY = RecognitionGallery(DATA.train_inputs, torch.arange(len(DATA.train_targets)))


def share(answers: Tensor) -> float:
    return float(recognised(answers, OWN, CHOSEN, GALLERY)[0].double().mean())


def noise(deviation: float) -> Tensor:
    return deviation * torch.randn(OWN.shape, generator=generator(0, "noise"))


@pytest.mark.parametrize(
    ("name", "answers", "least"),
    [
        ("itself", OWN, 1.0),
        ("noise of deviation .1", OWN + noise(0.1), 1.0),
        # Clamped to 1, a bright picture loses its lightest parts.
        ("brightness up by .2, an RMSE above eta", OWN + 0.2, 0.9),
        ("half of its contrast", 0.5 + 0.5 * (OWN - 0.5), 0.75),
        ("two fifths of it, the rest the mean picture", 0.4 * OWN + 0.6 * DATA.train_inputs.mean(0), 0.75),
        ("three fifths of it, the rest another picture", 0.6 * OWN + 0.4 * OWN.roll(1, 0), 0.6),
    ],
)
def test_most_originals_are_recognised_after_a_small_change(name: str, answers: Tensor, least: float) -> None:
    assert share(answers) >= least, name


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("the picture of another", DATA.public_inputs[: len(OWN)]),
        ("the next one in the gallery", OWN.roll(1, 0)),
        ("the negative", 1 - OWN),
        ("the mean picture", DATA.train_inputs.mean(0).expand_as(OWN)),
        ("noise alone", noise(0.3) + 0.5),
        ("black", torch.zeros_like(OWN)),
        ("its own mean value", OWN.mean((1, 2, 3), keepdim=True).expand_as(OWN)),
        ("no answer", torch.full_like(OWN, math.nan)),
    ],
)
def test_other_pictures_are_not_recognised(name: str, answers: Tensor) -> None:
    assert share(answers[: len(OWN)]) == 0.0, name


def test_a_tie_is_not_recognised_and_a_copy_in_the_gallery_is_not_a_tie() -> None:
    """Half way between two pictures neither is closer. The original itself, by number or by pixels, is not among the others."""
    one, other = OWN[:1], OWN[1:2]
    numbers = torch.tensor([-1])
    answer = 0.5 * (one + other)
    for truth in (one, other):
        assert not recognised(
            answer, truth, numbers, RecognitionGallery(torch.cat([one, other, other]), torch.arange(3))
        )[0]
    found, many = recognised(one, one, numbers, RecognitionGallery(torch.cat([one, one, other]), torch.arange(3)))
    assert found.tolist() == [True] and many.tolist() == [1]


def test_a_distance_that_differs_by_rounding_alone_is_a_tie() -> None:
    """A picture and the same one of half its contrast have one high-passed and scaled picture, up to rounding."""
    for n in range(12):
        own = OWN[n : n + 1].double()
        gallery = RecognitionGallery(0.25 + 0.5 * own, torch.tensor([-2]))
        assert not recognised(own, own, torch.tensor([-1]), gallery)[0]


def test_a_constant_picture_is_not_recognised_although_its_original_is_constant() -> None:
    grey = torch.full_like(OWN[:1], 0.5)
    assert not recognised(grey, grey, torch.tensor([-1]), GALLERY)[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_picture_with_one_pixel_that_is_not_finite_is_not_recognised(value: float) -> None:
    answer = OWN[:1].clone()
    answer[0, 0, 0, 0] = value
    assert not recognised(answer, OWN[:1], CHOSEN[:1], GALLERY)[0]


def test_without_another_picture_nothing_is_recognised() -> None:
    found, many = recognised(OWN[:1], OWN[:1], torch.tensor([0]), RecognitionGallery(OWN[:1], torch.tensor([0])))
    assert found.tolist() == [False] and many.tolist() == [0]


def test_both_distances_have_to_agree() -> None:
    """Against a slow reference, for blends of two pictures: for some blends only one of the two distances is smaller."""
    one, other = OWN[:10].double(), OWN[10:20].double()
    alone = 0
    for n in range(10):
        gallery = RecognitionGallery(OWN[10 + n : 11 + n], torch.tensor([-2]))
        for keep in (0.4, 0.45, 0.5, 0.55):
            answer = (keep * one[n] + (1 - keep) * other[n] ** 1.5)[None]
            by_ssim = ssim(answer[None], one[None, n : n + 1]) > ssim(answer[None], other[None, n : n + 1])
            sharp, *both = (
                high_passed(x) / high_passed(x).square().mean().sqrt() for x in (answer, one[n][None], other[n][None])
            )
            near, far = ((sharp - x).square().mean() for x in both)
            found = bool(recognised(answer, one[n : n + 1], torch.tensor([-1]), gallery)[0])
            assert found == (bool(by_ssim) and bool(near < far))
            alone += bool(by_ssim) != bool(near < far)
    assert alone


def test_ssim_to_all_equals_the_ssim_of_each_pair() -> None:
    rng = generator(1, "pictures")
    x, y = torch.rand(3, 3, 14, 11, generator=rng).double(), torch.rand(5, 3, 14, 11, generator=rng).double()
    slow = torch.stack([ssim(x[n].expand_as(y)[None], y[None])[0] for n in range(3)])
    torch.testing.assert_close(ssim_to_all(x, y), slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(32, 32), (28, 40)])
def test_the_high_pass_removes_a_constant_and_passes_half_of_one_and_a_half_cycles(shape: tuple[int, int]) -> None:
    """A wave of f cycles per pixel keeps 1 - exp(-2 (pi sigma f)^2) of its amplitude, away from the border."""
    assert float(high_passed(torch.full((1, 2, *shape), 0.7).double()).abs().max()) < 1e-12
    sigma, side = BLUR * min(shape), 400
    assert math.sqrt(math.log(2) / 2) / (math.pi * BLUR) == pytest.approx(1.5, abs=0.001)
    for cycles in (1.5, 6.0):
        wave = torch.cos(2 * math.pi * cycles / min(shape) * (torch.arange(shape[1]) - shape[1] // 2)).double()
        passed = high_passed(wave.expand(1, 1, *shape))[0, 0, 0]
        weights = torch.exp(-torch.arange(-side, side + 1).double().square() / (2 * sigma**2))
        inside = weights[side - shape[1] // 2 : side - shape[1] // 2 + shape[1]]
        centre = 1 - float((inside * wave).sum() / inside.sum())
        assert float(passed[shape[1] // 2]) == pytest.approx(centre, abs=1e-9)
        assert centre == pytest.approx(1 - math.exp(-2 * (math.pi * sigma * cycles / min(shape)) ** 2), abs=0.02)


def test_the_rows_have_each_member_of_a_batch_and_the_baseline() -> None:
    """Members in the order of the truth; the baseline guess is the best one by success on public data."""
    inputs, examples = OWN[:6].reshape(3, 2, *DATA.shape), CHOSEN[:6].reshape(3, 2)
    real = VictimTruth(torch.tensor([2, 0, 1]), inputs, torch.zeros(3, 2, dtype=torch.int64), examples, torch.zeros(3))
    ordered = inputs.clone()
    ordered[0, 1] = math.nan
    ordered[2] = ordered[2].flip(0)
    guesses = torch.zeros(6, *DATA.shape)
    guesses[5] = inputs[0, 1]  # The cell's victim 2, which is in the first lane.
    null = NullAttack({"guess": guesses, "other": inputs.flatten(0, 1)}, {}, {}, "guess", "other")
    rows = score_recognised(ordered, real, null.guesses[null.best_for_success], GALLERY)
    assert list(rows.columns) == list(RECOGNISED_COLUMNS)
    assert rows["recognised"].tolist() == [1, 0, 1, 1, 0, 0]
    assert rows["null_recognised"].tolist() == [0, 1, 0, 0, 0, 0]
    assert (rows["gallery"] == len(GALLERY.inputs) - 1).all()
    ranked = score_recognised(None, real, null.guesses[null.best_for_success], GALLERY)
    assert ranked["recognised"].isna().all()
    pd.testing.assert_frame_equal(ranked.drop(columns="recognised"), rows.drop(columns="recognised"))
    assert rows[SAME_CLASS].isna().all()  # This gallery has no test pictures.
    absent = score_recognised(ordered, real, null.guesses[null.best_for_success], None)
    assert absent.isna().all(axis=None) and len(absent) == 6


def test_chance_is_one_over_the_number_of_pictures() -> None:
    """Random pixels are as close to any picture as to the original: chance is at most 1 / (others + 1)."""
    rng = generator(2, "pictures")
    pictures, answers = torch.rand(20, 1, 11, 11, generator=rng), torch.rand(2000, 1, 11, 11, generator=rng)
    found, many = recognised(
        answers,
        pictures[:1].expand_as(answers),
        torch.zeros(2000, dtype=torch.int64),
        RecognitionGallery(pictures, torch.arange(20)),
    )
    assert (many == 19).all() and 0 < int(found.sum()) <= 2000 / 20 + 3 * math.sqrt(2000 / 20)


def test_the_gallery_depends_on_the_seed_and_has_a_maximal_size() -> None:
    first, again, other = gallery_of(DATA, 0), gallery_of(DATA, 0), gallery_of(DATA, 1)
    assert first is not None and again is not None and other is not None
    assert torch.equal(first.examples, again.examples) and not torch.equal(first.examples, other.examples)
    assert torch.equal(first.inputs, DATA.train_inputs[first.examples])
    rng = generator(3, "pictures")
    many = RecognitionGallery(torch.rand(MOST + 5, 1, 11, 11, generator=rng), torch.arange(MOST + 5))
    assert recognised(many.inputs[:1], many.inputs[:1], many.examples[:1], many)[1].tolist() == [MOST]


def test_another_picture_of_the_same_class_is_a_second_baseline() -> None:
    """Class 0 has a blurred copy of each original among the test pictures, class 1 has strangers, class 2 has none."""
    inputs = OWN[:6].reshape(6, 1, *DATA.shape)
    labels, examples = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 3, 0, 1, 0, 1])
    real = VictimTruth(torch.arange(6), inputs, labels[:, None], examples[:, None], torch.zeros(6))
    # Example 0 takes the first picture of its class and example 3, of two pictures, the second.
    tests = torch.cat([0.8 * OWN[:2] + 0.1, DATA.public_inputs[:2]])
    gallery = RecognitionGallery(OWN[6:], torch.arange(6, len(OWN)) + 1000, tests, torch.tensor([0, 0, 1, 1]))
    rows = score_recognised(inputs, real, torch.zeros(6, *DATA.shape), gallery)
    assert rows[SAME_CLASS].tolist()[:4] == [1, 1, 0, 0] and rows[SAME_CLASS].isna().tolist()[4:] == [True, True]
    assert rows["recognised"].tolist() == [1] * 6


def test_a_data_set_with_several_labels_has_no_other_picture_of_the_class() -> None:
    several = dataclasses.replace(DATA, test_targets=torch.zeros(len(DATA.test_targets), 3))
    assert gallery_of(several, 0).tests is None  # type: ignore[union-attr]
    assert torch.equal(gallery_of(DATA, 0).tests, DATA.test_inputs)  # type: ignore[union-attr, arg-type]


@pytest.mark.data
def test_a_photograph_of_the_same_person_is_recognised_more_often_than_chance() -> None:
    """On LFW, about 1 % of test photographs of the victim's person, where chance has .1 %."""
    data = load_dataset("lfw")[2]
    gallery = gallery_of(data, 0)
    assert gallery is not None
    victims, count = data.victims, len(data.victims)
    own, labels = data.train_inputs[victims][:, None], data.train_targets[victims][:, None]
    real = VictimTruth(torch.arange(count), own, labels, victims[:, None], torch.zeros(count))
    rows = score_recognised(None, real, data.public_inputs[:1].expand(count, *data.shape), gallery)
    assert 0.004 <= rows[SAME_CLASS].mean() <= 0.02
    assert rows[RECOGNISED.baseline].mean() <= 0.002
