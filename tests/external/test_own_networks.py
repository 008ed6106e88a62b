"""Any network: layers in any order, heads that are not the last module, frozen, scalar and tied parameters, both modes of batch
normalisation; the reports on unsupported networks and on wrong assumptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from leakbench.external.assumptions import assumptions, distance_of_guess
from leakbench.external.attacker import COUNTED, SEARCHED, AttackerOptions
from leakbench.external.trace import Trace, Training
from leakbench.models.conversion import order_layers

SHAPE, CLASSES = (1, 8, 8), 10


class HeadFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(16, 10), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.body(x.flatten(1))))


class SpareHead(nn.Module):
    """A second head that does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(64, 16), nn.Linear(16, 10), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.body(x.flatten(1))))


class Tanh(nn.Module):
    """Features of either sign, on which the sign rule of labels fails; tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x.flatten(1))))))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.tensor(2.0)), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(x.flatten(1))


class FrozenHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.body(x.flatten(1))))


class FrozenBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.body(x.flatten(1))))


class Tokens(nn.Module):
    """A first linear layer that gets single rows of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(8, 8), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.each(x[:, 0])).flatten(1))


class Attention(nn.Module):
    """A module whose inner linear layer never runs as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x[:, 0], x[:, 0], x[:, 0])[0].flatten(1))


class Shifted(nn.Module):
    """A layer that subtracts the mean, so that the first linear layer does not get the input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.body((x.flatten(1) - 0.5) / 0.25)))


def convolved() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())


def normed() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))
    model[1].running_mean += 0.5
    return model


def examples(size: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.rand(size, *SHAPE, generator=rng), torch.randint(CLASSES, (size,), generator=rng)


def gradient(model: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> dict[str, Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = nn.functional.cross_entropy(model(x), y, reduction=reduction)
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(trained.items(), found, strict=True)}


def made(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return build()


@pytest.mark.slow
@pytest.mark.parametrize("build", [HeadFirst, SpareHead, Tanh, Scaled, FrozenHead, Shifted, convolved])
def test_one_example_is_reconstructed(build: Callable[[], nn.Module]) -> None:
    model, (x, y) = made(build), examples(1)
    found = leakbench.attack_update(
        model, gradient(model, x, y), shape=SHAPE, classes=CLASSES, truth=(x[None], y[None]), iterations=40
    )
    assert found.summary is not None
    assert (found.summary["asr"], found.summary["label_accuracy"]) == (1.0, 1.0)
    assert found.summary["rmse"] < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [HeadFirst, SpareHead, Tanh, Scaled, FrozenHead, FrozenBody, Tokens, Attention, Shifted, convolved, normed]
)
@pytest.mark.parametrize("attack", ["autoleak", "analytic_fc", "rows", "inverting_gradients_short"])
def test_each_attack_reconstructs_or_explains_why_not(build: Callable[[], nn.Module], attack: str) -> None:
    model, (x, y) = made(build).eval(), examples(1)
    given: dict[str, Any] = {"shape": SHAPE, "classes": CLASSES, "truth": (x[None], y[None]), "attack": attack}
    given |= {} if attack in ("analytic_fc", "rows") else {"iterations": 2}
    try:
        found = leakbench.attack_update(model, gradient(model, x, y), **given)
    except InputError as error:
        assert str(error).startswith(("attack: analytic_fc", "rows: it reads", "labels: the last layer"))
    else:
        assert found.answer.inputs.shape[-3:] == SHAPE


@pytest.mark.parametrize("build", [HeadFirst, Tanh, Scaled, FrozenBody, Attention, normed, convolved])
def test_the_truth_explains_the_update(build: Callable[[], nn.Module]) -> None:
    model, (x, y) = made(build).eval(), examples(4)
    seen = Trace(model, [gradient(model, x, y)], SHAPE, CLASSES, Training(4))
    assert float(distance_of_guess(seen.view, x[None], y[None])[0]) < 1e-5


def test_layers_have_the_order_in_which_they_run() -> None:
    model = made(SpareHead)
    model._modules["head"], model._modules["body"] = model._modules["body"], model._modules["head"]
    model = made(HeadFirst)
    order = order_layers(model, torch.rand(1, *SHAPE))
    assert [name for name, _ in model.named_children()] == ["body", "head"]
    assert order == ["body.weight", "body.bias", "head.weight", "head.bias"]
    spare = made(SpareHead)
    order = order_layers(spare, torch.rand(1, *SHAPE))
    assert order == ["spare.weight", "spare.bias", "body.weight", "body.bias", "head.weight", "head.bias"]
    assert [name for name, _ in spare.named_children()] == ["spare", "body", "head"]
    assert [name for name, _ in made(HeadFirst).named_children()] == ["head", "body"]


def test_the_users_model_is_unchanged() -> None:
    model, (x, y) = made(normed), examples(2)
    model.train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    _ = Trace(model, [gradient(model.eval(), x, y)], SHAPE, CLASSES, Training(2, mode="train")).view
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert isinstance(model[1], nn.BatchNorm2d)


@pytest.mark.parametrize("build", [HeadFirst, Tanh, FrozenHead])
def test_the_method_of_reading_labels_is_reported(build: Callable[[], nn.Module]) -> None:
    model, (x, y) = made(build), examples(1)
    seen = Trace(model, [gradient(model, x, y)], SHAPE, CLASSES, Training())
    expected = {HeadFirst: "", Tanh: COUNTED, FrozenHead: SEARCHED}[build]
    attacker = AttackerOptions("autoleak")().for_network(seen)
    assert attacker.adapted == expected
    assert (attacker.attack == AttackerOptions("autoleak")().attack) == (not expected)
    cpl = AttackerOptions("cpl")()
    assert cpl.for_network(seen) == cpl


def test_batch_normalisation_in_either_mode() -> None:
    model, (x, y) = made(normed), examples(4)
    for mode in ("train", "eval"):
        wanted = gradient(model.train(mode == "train"), x, y)
        seen = Trace(model, [wanted], SHAPE, CLASSES, Training(4, mode=mode))
        assert float(distance_of_guess(seen.view, x[None], y[None])[0]) < 1e-5
        other = Trace(model, [wanted], SHAPE, CLASSES, Training(4, mode="eval" if mode == "train" else "train"))
        assert float(distance_of_guess(other.view, x[None], y[None])[0]) > 0.05


def said_of(model: nn.Module, update: dict[str, Tensor], x: Tensor, y: Tensor, how: Training) -> str:
    seen = Trace(model, [update], SHAPE, CLASSES, how, None, "type-1", (x[None], y[None]))
    return "\n".join(assumptions(seen, AttackerOptions("cpl")()))


def test_wrong_assumptions_are_reported() -> None:
    model, (x, y) = made(HeadFirst), examples(4)
    right = gradient(model, x, y)
    assert "differs from the update" not in said_of(model, right, x, y, Training(4))
    summed = said_of(model, gradient(model, x, y, "sum"), x, y, Training(4))
    assert "differs from the update by 0.75 of its length: the update is 4 times it (a sum instead of a mean" in summed
    rate = said_of(model, {n: -0.1 * g for n, g in right.items()}, x, y, Training(4, 1, 0.05))
    assert "the update is 2 times it" in rate
    noisy = {n: g + g.std() * torch.randn_like(g) for n, g in right.items()}
    assert "was it changed, or are the weights" in said_of(model, noisy, x, y, Training(4))
    other = made(HeadFirst)
    nn.init.normal_(other.body.weight)
    assert "was it changed, or are the weights" in said_of(other, right, x, y, Training(4))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) * (1 if x.sum().item() > 0 else 2)


class Pair(Branches):
    def forward(self, x: Tensor) -> Any:
        return self.head(x.flatten(1)), x


class Two(Branches):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(x.flatten(1) * mask)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(4, 4), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).flatten(1))


class Cast(nn.Module):
    """A body that computes in half precision, with casts before and behind it."""

    def __init__(self, head: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16, dtype=torch.bfloat16), nn.Linear(16, CLASSES, dtype=head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1).bfloat16()).to(self.head.weight.dtype))


class Infinite(Branches):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) / 0


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (Branches, "model: its gradient cannot be computed and differentiated: RuntimeError"),
        (Pair, "model: it answers with a tuple"),
        (Two, "shape: the model fails on an input of .* TypeError: .* missing 1 required positional argument"),
        (Words, "shape: the model fails on an input of"),
        (Cast, r"model: got parameters of bfloat16 and float32, expected .* input of \(1, 1, 8, 8\)"),
        (
            partial(Cast, torch.bfloat16),
            "model: got parameters of bfloat16, expected a model that runs as model.float()",
        ),
        (Infinite, "model: it answers an input of zeros with numbers that are not finite"),
    ],
)
def test_a_network_that_cannot_be_attacked_is_refused(build: Callable[[], nn.Module], says: str) -> None:
    model = made(build)
    update = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with pytest.raises(InputError, match=says):
        _ = Trace(model, [update], SHAPE, CLASSES, Training()).view


def instanced(keeping: bool = True) -> nn.Module:
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=keeping)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))
    if keeping:
        norm.running_mean += 0.5
    return model


@pytest.mark.parametrize(("size", "tap", "frozen"), [(4, "type-1", False), (1, "type-2", False), (4, "type-1", True)])
def test_instance_normalisation_in_either_mode(size: int, tap: str, frozen: bool) -> None:
    """It normalises each input separately, so single examples have gradients in both modes."""
    model, (x, y) = made(instanced), examples(size)
    model[0].bias.requires_grad_(not frozen)  # The engine for gradients.
    kept = {name: t.clone() for name, t in model.named_buffers()}
    found = {}
    for mode in ("train", "eval"):
        wanted = gradient(model.train(mode == "train"), x, y)
        model.load_state_dict(kept, strict=False)
        found[mode] = {
            other: Trace(model, [wanted], SHAPE, CLASSES, Training(size, mode=other), None, tap, (x[None], y[None]))
            for other in ("train", "eval")
        }
    for mode, seen in ((m, s) for m, by in found.items() for s in (by[m],)):
        assert float(distance_of_guess(seen.view, x[None], y[None])[0]) < 1e-5
        assert (
            float(distance_of_guess(found[mode]["eval" if mode == "train" else "train"].view, x[None], y[None])[0])
            > 0.05
        )
    said = {mode: "\n".join(assumptions(by[mode], AttackerOptions("cpl")())) for mode, by in found.items()}
    assert "instance normalisation (1) computes by each input's own statistics; --victim-mode eval" in said["train"]
    assert "instance normalisation (1) computes by its running statistics; --victim-mode train" in said["eval"]
    assert model[1].running_mean is not None and not model.training


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["autoleak", "inverting_gradients_short"])
def test_instance_normalisation_in_train_mode_is_attacked_for_several_victims(attack: str) -> None:
    model, (x, y) = made(instanced).train(), examples(3)
    kept = {name: t.clone() for name, t in model.named_buffers()}
    updates = [gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(3)]
    model.load_state_dict(kept, strict=False)
    given: dict[str, Any] = {"shape": SHAPE, "classes": CLASSES, "truth": (x[:, None], y[:, None]), "iterations": 2}
    found = leakbench.attack_update(model, updates, victim_mode="train", attack=attack, **given)
    assert found.summary is not None and bool(found.answer.inputs.isfinite().all())
    assert all(torch.equal(t, kept[name]) for name, t in model.named_buffers())


def test_instance_normalisation_without_statistics_has_one_mode() -> None:
    model, (x, y) = made(lambda: instanced(False)), examples(2)
    for mode in ("train", "eval"):
        seen = Trace(model, [gradient(model, x, y)], SHAPE, CLASSES, Training(2, mode=mode))
        assert float(distance_of_guess(seen.view, x[None], y[None])[0]) < 1e-5
        assert "normalisation" not in "\n".join(assumptions(seen, AttackerOptions("cpl")()))
