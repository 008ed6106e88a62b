"""Tasks: the losses of heads against PyTorch's own, targets in one vector, and what counts as a right answer."""

import pytest
import torch
from torch import nn

from leakbench.core.errors import InputError
from leakbench.core.task import CLASSIFICATION, Head, Heads, heads_of, is_classification, task_of, with_task

CLASSES, LABELS, NUMBERS = (
    Head("class", "classes", 4),
    Head("labels", "labels", 3),
    Head("age", "numbers", 2, center=(0.5, 0.25)),
)
MASK, PARTS = Head("mask", "labels", 1, (2, 3)), Head("parts", "classes", 5, (2, 3))
SEVERAL = Heads((PARTS, NUMBERS, LABELS))


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_each_head_has_the_loss_of_pytorch() -> None:
    z, y = torch.randn(6, 4, generator=rng()), torch.arange(6) % 4
    hot = nn.functional.one_hot(y, 4).float()
    torch.testing.assert_close(CLASSES.losses(z, hot), nn.functional.cross_entropy(z, y, reduction="none"))
    z, t = torch.randn(6, 3, generator=rng()), (torch.rand(6, 3, generator=rng()) > 0.5).float()
    by_torch = nn.functional.binary_cross_entropy_with_logits(z, t, reduction="none").mean(1)
    torch.testing.assert_close(LABELS.losses(z, t), by_torch)
    torch.testing.assert_close(
        Head("x", "numbers", 3).losses(z, t), nn.functional.mse_loss(z, t, reduction="none").mean(1)
    )


def test_heads_of_places_are_means_over_the_pixels() -> None:
    z, y = torch.randn(4, 5, 2, 3, generator=rng()), torch.randint(5, (4, 2, 3), generator=rng())
    by_torch = nn.functional.cross_entropy(z, y, reduction="none").flatten(1).mean(1)
    torch.testing.assert_close(PARTS.losses(z, nn.functional.one_hot(y, 5).float()), by_torch)
    z, t = torch.randn(4, 1, 2, 3, generator=rng()), (torch.rand(4, 2, 3, generator=rng()) > 0.5).float()
    by_torch = nn.functional.binary_cross_entropy_with_logits(z[:, 0], t, reduction="none").flatten(1).mean(1)
    torch.testing.assert_close(MASK.losses(z, t[..., None]), by_torch)


def outputs_and_targets() -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    outputs = tuple(torch.randn(4, *head.output, generator=rng()) for head in SEVERAL.heads)
    targets = SEVERAL.decided(SEVERAL.possible(torch.randn(4, SEVERAL.size, generator=rng())))
    return outputs, targets


def test_the_losses_of_several_heads_are_added_in_every_form_of_output() -> None:
    outputs, targets = outputs_and_targets()
    parts = SEVERAL.split(targets)
    total = sum(head.losses(z, t) for head, z, t in zip(SEVERAL.heads, outputs, parts, strict=True))
    x = torch.zeros(4, 1)
    flat = torch.cat([z.movedim(1, -1).flatten(1) for z in outputs], 1)
    for form in (outputs, list(outputs), dict(zip("abc", outputs, strict=True)), flat):
        torch.testing.assert_close(SEVERAL.losses(form, x, targets), total)


def test_targets_survive_being_split_and_joined() -> None:
    _, targets = outputs_and_targets()
    whole = targets.reshape(2, 2, -1)
    assert torch.equal(SEVERAL.joined(SEVERAL.split(whole)), whole)
    assert [tuple(part.shape[2:]) for part in SEVERAL.split(whole)] == [(2, 3, 5), (2,), (3,)]


def test_free_numbers_become_possible_targets() -> None:
    parts = SEVERAL.split(SEVERAL.possible(3 * torch.randn(7, SEVERAL.size, generator=rng())))
    torch.testing.assert_close(parts[0].sum(-1), torch.ones(7, 2, 3))
    assert ((parts[2] > 0) & (parts[2] < 1)).all()
    start = SEVERAL.split(SEVERAL.start(torch.zeros(1, SEVERAL.size)))
    assert torch.equal(start[1][0], torch.tensor([0.5, 0.25]))


def test_the_error_is_zero_for_the_truth_and_counts_wrong_pixels() -> None:
    _, targets = outputs_and_targets()
    assert torch.equal(SEVERAL.error(targets, targets), torch.zeros(4))
    mask = Heads((MASK,))
    truth = torch.zeros(1, 6)
    guess = torch.tensor([[1.0, 0, 0, 1, 0, 0]])
    torch.testing.assert_close(mask.error(guess, truth), torch.tensor([2 / 6]))
    assert mask.error(torch.full((1, 6), torch.nan), truth).isnan().all()
    one = Heads((CLASSES,))
    hot = torch.eye(4)
    assert one.error(hot[[1, 2]], hot[[1, 3]]).tolist() == [0, 1]
    assert one.error(torch.full((1, 4), torch.nan), hot[:1]).isnan().all()


def test_the_usual_guess_is_the_most_frequent_answer_and_the_median() -> None:
    hot = torch.eye(4)
    public = torch.cat(
        [hot[[0, 2, 2]], torch.tensor([[1.0, 0, 0], [1, 0, 1], [0, 0, 1]]), torch.tensor([[0.1], [0.2], [0.9]])], 1
    )
    heads = Heads((CLASSES, LABELS, Head("age", "numbers", 1)))
    torch.testing.assert_close(heads.usual(public), torch.tensor([0, 0, 1.0, 0, 1, 0, 1, 0.2]))


def test_right_answers_of_heads() -> None:
    x = torch.zeros(2, 1)
    right, asked = Heads((LABELS,)).answered(
        torch.tensor([[1.0, -1, 2], [torch.nan, 1, 1]]), x, torch.tensor([[1.0, 1, 1]] * 2)
    )
    assert right.tolist() == [2, 0] and asked.tolist() == [3, 3]
    numbers = Heads((Head("age", "numbers", 1, center=(0.0,)),))
    right, asked = numbers.answered(torch.tensor([[1.0], [0.0]]), x, torch.tensor([[1.0], [2.0]]))
    assert float(right.sum() / asked.sum()) == pytest.approx(1 - 4 / 5)  # 1 - residual / total squares


def test_an_output_that_is_not_finite_explains_less_than_nothing() -> None:
    """Its own R^2 counts as -1, so that the mean over all outputs is a number."""
    numbers = Heads((Head("age", "numbers", 1, center=(0.0,)),))
    outputs = torch.tensor([[1.0], [torch.nan], [torch.inf]])
    right, asked = numbers.answered(outputs, torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [3.0]]))
    assert (right.tolist(), asked.tolist()) == ([1, -4, -9], [1, 4, 9])


def test_the_accuracy_of_several_heads_is_their_mean() -> None:
    heads = Heads((MASK, CLASSES))
    mask, named = torch.ones(1, 1, 2, 3), torch.tensor([[1.0, 0, 0, 0]])
    targets = torch.cat([torch.tensor([[1.0, 1, 1, 0, 0, 0]]), torch.tensor([[0.0, 1, 0, 0]])], 1)
    right, asked = heads.answered((mask, named), torch.zeros(1, 1), targets)
    assert float(right.sum() / asked.sum()) == pytest.approx(0.25)  # (3 / 6 + 0) / 2


def test_a_function_of_a_user_gets_targets_in_pytorchs_shapes() -> None:
    shapes = []

    def loss(outputs: tuple[torch.Tensor, ...], targets: tuple[torch.Tensor, ...]) -> torch.Tensor:
        shapes.append([tuple(t.shape[1:]) for t in targets])
        return nn.functional.cross_entropy(outputs[0], targets[0]) + 3 * (outputs[1] - targets[1]).square().mean()

    outputs, targets = outputs_and_targets()
    own = Heads(SEVERAL.heads, loss, "mine:loss")
    found = own.losses(outputs, torch.zeros(4, 1), targets)
    assert shapes == [[(5, 2, 3), (2,), (3,)]]
    parts = SEVERAL.split(targets)
    expected = PARTS.losses(outputs[0], parts[0]) + 3 * (outputs[1] - parts[1]).square().mean(1)
    torch.testing.assert_close(found, expected)


def test_a_function_of_a_user_that_fails_or_returns_something_else_is_refused() -> None:
    """A loss for each label would be added up in silence otherwise."""

    def failing(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("my own error")

    def each_label(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square()

    for loss, message in (
        (failing, "loss: mine:loss fails on one example: RuntimeError: my own error"),
        (each_label, r"loss: mine:loss returns the shape \(1, 4\) for one example, expected a tensor with its loss"),
        (lambda output, target: 1.0, "loss: mine:loss returns a float for one example"),
    ):
        with pytest.raises(InputError, match=message):
            Heads((CLASSES,), loss, "mine:loss").losses(torch.zeros(2, 4), torch.zeros(2, 1), torch.zeros(2, 4))  # type: ignore[arg-type]


def test_the_blind_guess_needs_no_data() -> None:
    heads = Heads((CLASSES, Head("labels", "labels", 2), Head("numbers", "numbers", 1, (), (0.5,))))
    assert heads.blind().tolist() == [[1, 0, 0, 0, 0, 0, 0.5]]


def test_outputs_of_other_shapes_are_refused_in_one_line() -> None:
    with pytest.raises(
        InputError, match=r"model: its outputs for one example have the shapes \[\(3,\)\], expected class \(4,\)"
    ):
        Heads((CLASSES,)).losses(torch.zeros(2, 3), torch.zeros(2, 1), torch.zeros(2, 4))


def test_a_network_without_a_task_names_classes() -> None:
    model = nn.Linear(2, 3)
    assert is_classification(model) and heads_of(model) is None and task_of(model) == CLASSIFICATION
    assert heads_of(with_task(model, Heads((CLASSES,)))) == Heads((CLASSES,)) and not is_classification(model)
