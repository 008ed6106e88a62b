"""The layers that read the input and that answer, on networks whose registration says otherwise, and labels read from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakbench.attack.slots.labels import LastLayer
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network
from leakbench.core.working_copy import copied
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters
from leakbench.models.conversion import EQUALS, convert_norms, convert_parts, order_layers
from leakbench.models.copies import as_type, in_double
from leakbench.models.layers import Classifier, classifier_of, first_layer, last_layer
from leakbench.models.trainable import with_trainable
from tests.torch_nn_layers import ODD, network

SHAPE, CLASSES = (1, 4, 4), 5


class Net(nn.Module):
    """A list of layers that is registered first and runs first, a head, and a head that is registered last.

    Args:
        answer: (network, features (n, 8)) -> logits.
    """

    def __init__(self, answer: Callable[[Any, Tensor], Any], act: Callable[[Tensor], Tensor] = torch.sigmoid) -> None:
        super().__init__()
        self.answer, self.act = answer, act
        self.head = nn.Linear(8, CLASSES)
        self.layers = nn.ModuleList([nn.Linear(16, 8), nn.Linear(8, 8)])
        self.wide, self.matrix = nn.Linear(8, 2 * CLASSES), nn.Parameter(torch.randn(CLASSES, 8))
        self.norm, self.temperature = nn.BatchNorm1d(CLASSES), nn.Parameter(torch.tensor(1.5))
        self.spare = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = self.act(layer(x))
        return self.answer(self, x)


def _aside(net: Any, h: Tensor) -> Tensor:
    net.spare(h)
    return net.head(h)


def _cosine(net: Any, h: Tensor) -> Tensor:
    return 10 * nn.functional.linear(nn.functional.normalize(h), nn.functional.normalize(net.matrix))


HEADS: dict[str, tuple[Callable[[Any, Tensor], Any], Classifier | None, str | None]] = {
    "plain": (lambda n, h: n.head(h), Classifier("head.weight", "head.bias", False), "head."),
    "another head runs for nothing": (_aside, Classifier("head.weight", "head.bias", False), "head."),
    "divided by a temperature": (
        lambda n, h: n.head(h) / n.temperature,
        Classifier("head.weight", "head.bias", False),
        "head.",
    ),
    "probabilities": (
        lambda n, h: n.head(h).log_softmax(1),
        Classifier("head.weight", "head.bias", False),
        "head.",
    ),
    "with three times another bias": (
        lambda n, h: n.head(h) + 3 * n.spare.bias,
        Classifier("head.weight", "head.bias", False),
        "head.",
    ),
    "a product with a matrix": (lambda n, h: h @ n.matrix.mT, Classifier("matrix", None, False), None),
    "minus the logits": (lambda n, h: -n.head(h), Classifier("head.weight", None, True), "head."),
    "normalised logits": (
        lambda n, h: n.norm(n.head(h)),
        Classifier(None, "norm.bias", True),
        "head.",
    ),
    "the mean of two heads": (
        lambda n, h: (n.head(h) + n.spare(h)) / 2,
        Classifier("spare.weight", "spare.bias", False),
        "spare.",
    ),
    "cosine": (_cosine, None, None),
    "maxout": (lambda n, h: n.wide(h).reshape(-1, CLASSES, 2).amax(2), None, "wide."),
    "cut at zero": (lambda n, h: torch.relu(n.head(h) - 0.2), None, "head."),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_classifier_is_the_layer_of_which_the_logits_are_linear(name: str) -> None:
    answer, classifier, last = HEADS[name]
    torch.manual_seed(0)
    model = Net(answer)
    assert classifier_of(model, SHAPE) == classifier
    assert (first_layer(model, SHAPE), last_layer(model, SHAPE)) == ("layers.0.", last)


def test_two_classes_have_a_classifier() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Sigmoid(), nn.Linear(8, 2))
    assert classifier_of(model, SHAPE) == Classifier("3.weight", "3.bias", False)


def test_another_parameter_of_the_same_name_is_seen() -> None:
    model = Net(lambda n, h: n.head(h * n.temperature))
    assert classifier_of(model, SHAPE) == Classifier("head.weight", "head.bias", False)
    model.temperature = nn.Parameter(torch.tensor(-1.5))
    assert classifier_of(model, SHAPE) == Classifier("head.weight", "head.bias", True)


def _view(model: nn.Module, labels: Tensor) -> View:
    model = convert_norms(convert_parts(model.eval()))
    x = torch.rand(len(labels), 1, labels.shape[1], *SHAPE, generator=generator(0, "inputs"))
    sent = Network(model, parameters(model), engine="reference")
    targets = one_hot(labels, CLASSES)[:, None, None]
    update = leak("type-1", sent, x[:, None], targets, 0.1, Stations(), Clock(0, 0, 1, 1), None)
    return View("type-1", sent, update, labels.shape[1], SHAPE, CLASSES, 0.1)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("act", [torch.sigmoid, torch.tanh, lambda h: nn.functional.layer_norm(h, (8,))])
def test_the_label_of_one_example_is_right_or_is_searched(name: str, act: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    y = torch.arange(CLASSES)[:, None]
    guess = LastLayer()(_view(Net(HEADS[name][0], act), y), tuple(generator(i, "labels") for i in range(CLASSES)))
    assert guess.joint == (HEADS[name][1] is None)
    assert guess.joint or torch.equal(guess.targets.argmax(-1), y)


@pytest.mark.parametrize("name", ["plain", "normalised logits", "cosine", "maxout"])
def test_the_labels_of_a_batch_are_right_or_are_searched(name: str) -> None:
    torch.manual_seed(0)
    y = torch.tensor([[0, 2, 2], [1, 3, 4]])
    guess = LastLayer()(_view(Net(HEADS[name][0], torch.tanh), y), (generator(0, "labels"), generator(1, "labels")))
    assert guess.joint == (HEADS[name][1] is None)
    assert guess.joint or torch.equal(guess.targets.argmax(-1), y)


def test_the_trained_head_is_the_one_that_answers() -> None:
    torch.manual_seed(0)
    model = with_trainable(Net(HEADS["plain"][0]), "head", generator(0, "rule"), SHAPE)
    assert list(parameters(model)) == ["head.weight", "head.bias"]
    with pytest.raises(InputError, match="trainable: got 'head', but the network has no separate last layer"):
        with_trainable(Net(_cosine), "head", generator(0, "rule"), SHAPE)


def test_a_first_layer_behind_a_change_of_the_input_is_not_read() -> None:
    class Shifted(nn.Module):
        def __init__(self, twice: bool) -> None:
            super().__init__()
            self.a, self.o, self.twice = nn.Linear(16, 16), nn.Linear(16, CLASSES), twice

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.o(self.a(self.a(x)) if self.twice else self.a((x - 0.5) / 0.25))

    assert first_layer(Shifted(True), SHAPE) is None and first_layer(Shifted(False), SHAPE) is None


def test_the_last_layer_is_the_one_of_the_last_use() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.b(self.a(x.flatten(1))))

    assert last_layer(Again(), SHAPE) == "a."


def test_modules_are_listed_in_the_order_of_use_with_a_list_and_unused_heads() -> None:
    model = Net(HEADS["plain"][0])
    order = order_layers(model, torch.rand(2, *SHAPE))
    assert order[-6:] == [f"{n}.{p}" for n in ("layers.0", "layers.1", "head") for p in ("weight", "bias")]
    children = [name for name, _ in model.named_children()]
    assert children[-2:] == ["layers", "head"] and [n for n, _ in model.named_parameters()][-2:] == order[-2:]


CONVERTED = [
    "GRU",
    "RNN",
    "LSTMCell",
    "GRUCell",
    "RNNCell",
    "Hardsigmoid",
    "RReLU",
    "temperature",
    "weight_norm",
    "pruned",
]


@pytest.mark.parametrize("name", [*CONVERTED, "spectral_norm", "norm_not_affine", "norm_without_momentum"])
def test_converted_networks_have_the_gradients_of_pytorch(name: str) -> None:
    theirs = network(name).eval()
    x = torch.rand(3, 1, 8, 8, generator=generator(0, "inputs"))
    y = torch.arange(3)
    theirs(x)  # Some keep a computed weight, which Python cannot copy.
    ours = convert_norms(convert_parts(copied(theirs)))
    values = {name: p.detach() for name, p in ours.named_parameters()}

    def loss(p: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(ours, p, (one[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(values, x, y)
    for place in range(3):
        wanted = torch.autograd.grad(
            nn.functional.cross_entropy(theirs(x[[place]]), y[[place]]), list(theirs.parameters())
        )
        for (parameter, own), their in zip(found.items(), wanted, strict=True):
            torch.testing.assert_close(own[place].reshape(their.shape), their, rtol=1e-4, atol=1e-6, msg=parameter)


@pytest.mark.parametrize("kind", EQUALS)
def test_a_replaced_activation_computes_the_same(kind: type[nn.Module]) -> None:
    x = torch.linspace(-8, 8, 65)
    torch.testing.assert_close(convert_parts(kind().eval())(x), kind().eval()(x))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
@pytest.mark.parametrize("shape", [(3, 2, 4), (3, 4)])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"batch_first": True}])
def test_a_recurrent_layer_starts_from_zeros(kind: Any, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    theirs = kind(4, 5, **options)
    x = torch.rand(shape, generator=generator(0, "inputs"))
    for found, wanted in zip(convert_parts(copied(theirs))(x), theirs(x), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_module_that_runs_twice_in_a_list_still_does() -> None:
    act = nn.Tanh()
    theirs = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), act, nn.Linear(8, CLASSES), act)
    x = torch.rand(2, *SHAPE, generator=generator(0, "inputs"))
    torch.testing.assert_close(convert_parts(copied(theirs))(x), theirs(x))


def test_a_copy_in_double_precision_has_no_other_numbers() -> None:
    model = ODD["attributes"]()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    found = as_type(model, torch.float64)(x)
    assert found.dtype == torch.float64 and model.scale.dtype == torch.float32
    torch.testing.assert_close(found.float(), model(x.float()))
    plain = nn.Linear(3, 2)
    assert in_double(plain, {"weight", "bias"}) is plain and in_double(model, set()) is not model


def test_a_network_that_keeps_its_activations_is_copied() -> None:
    model = nn.Linear(3, 2)
    model.kept = {"features": [model(torch.rand(1, 3))]}
    made = copied(model)
    assert not made.kept["features"][0].requires_grad
    assert torch.equal(made.kept["features"][0], model.kept["features"][0]) and model.kept["features"][0].requires_grad
