"""Features that enter a fully connected layer are read from gradients, and inputs are searched that have these features."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.features import Features, read, readable
from leakbench.attack.front import Front, fully_connected
from leakbench.attack.methods import feature_inversion
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.stage import Reconstructs, Stage
from leakbench.attack.posterior import missed, posterior_of_features, prior_of
from leakbench.attack.slots.descent import LbfgsDescent
from leakbench.attack.slots.distance import SquaredL2
from leakbench.attack.slots.labels import LastLayer
from leakbench.attack.slots.priors import TotalVariation
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.types import Clock, Generators, Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.precode import Precode
from leakbench.defense.transform import Stations
from leakbench.engine import replayed
from leakbench.engine.side_by_side import Pieces
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, View
from leakbench.models import build, one_hot, parameters

V, SHAPE, CLASSES = 4, (1, 6, 6), 5


def generators(count: int = V):
    return tuple(torch.Generator().manual_seed(v) for v in range(count))


def truth(examples: int = 1, labels: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(V, examples, *SHAPE, generator=generator).double()
    if labels is None:
        return x, torch.arange(V * examples).reshape(V, examples) % CLASSES
    return x, torch.tensor(labels).expand(V, -1)


def network(activation: type[nn.Module] = nn.Sigmoid, bias: bool = True, classes: int = CLASSES) -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 6, 3, padding=1, bias=bias), activation(), nn.Flatten(), nn.Linear(216, classes, bias)]
    return nn.Sequential(*layers).double().eval()


def view(model: nn.Module, examples: int = 1, labels: tuple[int, ...] | None = None, **changes) -> View:
    """Return the leak of V victims that share a network."""
    x, y = truth(examples, labels)
    classes = changes.pop("classes", CLASSES)
    empty = {n: p.new_zeros(V, *p.shape) for n, p in model.named_parameters()}
    tap = "type-2" if examples == 1 else "type-1"
    blind = View(tap, Network(model, parameters(model)), empty, examples, SHAPE, classes, 0.1, **changes)
    return dataclasses.replace(blind, update=blind.respond(x, one_hot(y, classes).double()))


def precode_view(seed: int = 0) -> View:
    """Return the leak behind a bottleneck that draws random numbers."""
    model = Precode(width=8)(network(nn.Tanh), SHAPE, CLASSES, torch.Generator().manual_seed(seed)).double().eval()
    x, y = truth()
    blind = View(
        "type-2", Network(model, parameters(model)), {}, 1, SHAPE, CLASSES, 0.1, knowledge=Knowledge(defense=True)
    )
    grid = (V, 1, 1, 1)
    update = leak(
        "type-2", blind.network, x.reshape(*grid, *SHAPE), one_hot(y, CLASSES).double().reshape(*grid, CLASSES), 0.1,
        Stations(), Clock(0, 0, 1, 1), None, generators(),
    )  # fmt: skip
    return dataclasses.replace(blind, update=update)


def entering(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the input of the last layer of a sequence."""
    return model[:-1](inputs.flatten(0, 1)).reshape(*inputs.shape[:2], -1).detach()


def test_fully_connected_layers_are_found_in_the_order_in_which_they_run():
    model = Precode(width=8)(network(), SHAPE, CLASSES, torch.Generator()).double().eval()
    found = fully_connected(Network(model, parameters(model)), SHAPE)
    assert [(a.name, a.biased, a.last, a.drawn) for a in found] == [
        ("encoder.", True, False, False),
        ("decoder.", True, False, True),
        ("classifier.", True, True, True),
    ]
    assert found[0].names == ("features.0.weight", "features.0.bias")
    vit = build("vit_tiny", (3, 32, 32), 10, torch.Generator().manual_seed(0))
    only = fully_connected(Network(vit, parameters(vit)), (3, 32, 32))
    assert [a.last for a in only] == [True]  # The others get one vector for each token.


class Twice(nn.Module):
    """A network with a linear layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Conv2d(1, 1, 1), nn.Linear(36, 36), nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.middle(self.middle(self.first(x).flatten(1)).sigmoid()))
        return answer


def test_layers_that_run_twice_or_are_not_trained_are_left_out():
    def found(model: nn.Module) -> list[tuple[str, bool]]:
        return [(layer.name, layer.biased) for layer in fully_connected(Network(model, parameters(model)), SHAPE)]

    assert found(Twice().double()) == [("last.", True)]
    frozen = network()
    frozen[-1].bias.requires_grad_(False)
    assert found(frozen) == [("3.", False)]
    frozen[-1].weight.requires_grad_(False)
    assert found(frozen) == []


class Tied(nn.Module):
    """A network with one weight in two layers; `called` says whether both are layers or one is a function."""

    def __init__(self, called: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.called = called
        self.first, self.middle, self.again = nn.Conv2d(1, 1, 1), nn.Linear(36, 36), nn.Linear(36, 36)
        self.last = nn.Linear(36, CLASSES)
        self.again.weight = self.middle.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.middle(self.first(x).flatten(1)).sigmoid()
        hidden = self.again(hidden) if self.called else nn.functional.linear(hidden, self.middle.weight)
        answer: Tensor = self.last(hidden.sigmoid())
        return answer


@pytest.mark.parametrize("model", [Twice(), Tied(called=True), Tied(called=False)])
def test_a_weight_that_is_used_twice_is_not_read(model):
    """Its gradient is a sum over two inputs. The layer behind it is read, exactly."""
    model = model.double().eval()
    leaked = view(model)
    layer = readable(leaked)
    assert layer.name == "last."
    entered = []
    handle = model.last.register_forward_pre_hook(lambda _, given: entered.append(given[0].detach()))
    model(truth()[0].flatten(0, 1))
    handle.remove()
    torch.testing.assert_close(read(leaked, layer, generators()).entered[0, :, 0], entered[0])


def frozen_front(model: nn.Sequential) -> nn.Sequential:
    """Freeze all layers before the last one."""
    for p in model[:-1].parameters():
        p.requires_grad_(False)
    return model


@pytest.mark.parametrize("bias", [True, False])
def test_features_behind_frozen_layers_are_read(bias):
    """The layer before it is not trained, and its input is still not the network's input."""
    model = frozen_front(network(nn.Sigmoid, bias))
    leaked = view(model)
    assert set(leaked.update) == ({"3.weight", "3.bias"} if bias else {"3.weight"})
    layer = readable(leaked)
    assert (layer.name, layer.names, layer.first) == ("3.", (), False)
    torch.testing.assert_close(read(leaked, layer, generators()).entered[0], entering(model, truth()[0]))
    answer = dataclasses.replace(INVERSION, stop=Iterations(limit=100))((leaked,), generators())
    features = entering(model, answer.inputs.detach())
    apart = (features - entering(model, truth()[0])).norm() / entering(model, truth()[0]).norm()
    assert float(apart) < 0.01 and torch.equal(answer.labels, truth()[1])


def test_a_layer_of_the_networks_inputs_is_left_to_the_analytic_attack():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)).double().eval()
    [layer] = fully_connected(Network(model, parameters(model)), SHAPE)
    assert layer.first and layer.names == ()
    assert readable(view(model)) is None


def test_a_last_layer_whose_weight_is_used_twice_shows_no_features():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Linear(5, 5), nn.Sigmoid(), nn.Linear(5, 5))
    model[4].weight = model[2].weight
    assert [layer.name for layer in fully_connected(Network(model, parameters(model)), SHAPE)] == ["1."]
    assert readable(view(model.double().eval())) is None


def test_a_network_with_hooks_is_run_by_its_own_code():
    """A chain would omit the hooks."""
    model = network()
    layer = readable(view(model))
    assert Front.of(Network(model, parameters(model)), layer, SHAPE).chain is not None
    model.register_forward_pre_hook(lambda *_: None)
    assert Front.of(Network(model, parameters(model)), layer, SHAPE).chain is None


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.ReLU, nn.Tanh])
def test_with_a_bias_features_derivatives_and_labels_are_exact(activation):
    """Behind tanh features are negative too, where the sign rule for labels fails."""
    model = network(activation)
    leaked = view(model)
    found = read(leaked, readable(leaked), generators())
    x, y = truth()
    torch.testing.assert_close(found.entered[0], entering(model, x))
    assert torch.equal(found.labels[0], y)
    delta = model(x.flatten(0, 1)).softmax(-1).detach() - one_hot(y[:, 0], CLASSES)
    torch.testing.assert_close(found.cotangents[0, :, 0], delta @ model[-1].weight.detach())


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_one_root_is_exact_without_a_bias(classes):
    """With two classes there are several roots; more classes identify the right one."""
    model = network(nn.ReLU, bias=False, classes=classes)
    labels = truth()[1] % classes
    x = truth()[0]
    empty = {n: p.new_zeros(V, *p.shape) for n, p in model.named_parameters()}
    blind = View("type-2", Network(model, parameters(model)), empty, 1, SHAPE, classes, 0.1)
    leaked = dataclasses.replace(blind, update=blind.respond(x, one_hot(labels, classes).double()))
    found = read(leaked, readable(leaked), generators())
    apart = (found.entered - entering(model, x)).norm(dim=-1).nan_to_num(torch.inf).amin(0)
    assert float(apart.max()) < 1e-6
    best = (found.entered - entering(model, x)).norm(dim=-1).nan_to_num(torch.inf).argmin(0)
    assert torch.equal(found.labels.gather(0, best[None])[0], labels)
    assert classes == 2 or len(found.entered) == 1


def test_a_clip_of_the_whole_gradient_hides_no_feature_and_one_by_layers_is_left_alone():
    model = network()
    clipped = view(model, stations=Stations(example=(ClipWhole(norm=0.01),)))
    found = read(clipped, readable(clipped), generators())
    torch.testing.assert_close(found.entered[0], entering(model, truth()[0]))
    assert torch.equal(found.labels[0], truth()[1])
    assert readable(view(model, stations=Stations(example=(ClipLayers(norm=0.01),)))) is None
    # Without a bias the length of the features follows only from the length of the gradient, which the clip changed.
    assert readable(view(network(bias=False), stations=Stations(example=(ClipWhole(norm=0.01),)))) is None


def test_features_are_not_read_from_unsuitable_updates():
    model = network()
    assert readable(view(model, noise=0.1)) is None
    assert readable(dataclasses.replace(view(model, examples=2), local_steps=2, batch=1)) is None
    assert readable(view(model, examples=5)) is None  # As many examples as classes.
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)).double()
    assert readable(view(mlp)) is None  # No layer comes before this one: its input is the example.
    attack = FeatureInversion(start=Constant(value=0.5), descent=LbfgsDescent())
    with pytest.raises(InputError, match="feature_inversion reads the input"):
        attack((view(model, noise=0.1),), generators())


def test_examples_of_a_batch_are_separated_where_their_classes_occur_once():
    model = network(nn.Tanh)
    leaked = view(model, examples=3, labels=(0, 2, 3))
    found = read(leaked, readable(leaked), generators())
    x, y = truth(3, (0, 2, 3))
    assert torch.equal(found.labels[0], y)
    torch.testing.assert_close(found.entered[0], entering(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make", [lambda: view(network(nn.ReLU)), lambda: view(network(nn.ReLU), 3, (0, 2, 3)), precode_view]
)
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_the_front_has_the_gradients_that_leaked(make, engine):
    leaked = make()
    leaked = dataclasses.replace(leaked, network=dataclasses.replace(leaked.network, engine=engine))
    layer = readable(leaked)
    front = Front.of(leaked.network, layer, SHAPE)
    assert (front.chain is not None) == (engine == "fast")
    found = read(leaked, layer, generators())
    x, _ = truth(leaked.examples)
    entered, gradients = front(x, found.cotangents[0], torch.arange(V))
    torch.testing.assert_close(entered, found.entered[0], rtol=1e-4, atol=1e-5)
    assert sorted(gradients) == sorted(layer.names)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, leaked.update[name], rtol=1e-3, atol=1e-6)


def test_a_bottleneck_whose_features_have_both_signs_is_inverted_with_the_right_labels():
    leaked = precode_view()
    x, y = truth()
    start = Constant(value=0.5, deviation=0.1)
    search = GradientMatching(LastLayer(), start, SquaredL2(), LbfgsDescent(), stop=Iterations(limit=5))
    inversion = FeatureInversion(start=start, descent=LbfgsDescent(), stop=Iterations(limit=20))
    without = AutoLeak(stages=(Stage(method=search),))((leaked,), generators())
    found = AutoLeak(stages=(Stage(method=search), Stage(method=inversion)))((leaked,), generators())
    assert torch.equal(without.labels, y)
    assert torch.equal(found.labels, y)
    missed = [(answer.inputs - x).square().flatten(1).mean(1).sqrt() for answer in (without, found)]
    assert all(float(m.max()) < 0.02 for m in missed)


def test_a_victim_without_features_has_no_reconstruction_and_is_not_called_stuck():
    leaked = view(network())
    blank = {n: torch.cat([u[:1] * 0, u[1:]]) for n, u in leaked.update.items()}
    found = FeatureInversion(start=Constant(value=0.5), descent=LbfgsDescent(), stop=Iterations(limit=3))(
        (dataclasses.replace(leaked, update=blank),), generators()
    )
    assert found.inputs.isfinite().flatten(1).all(1).tolist() == [False, True, True, True]
    assert found.steps[0] == found.evaluations[0] == 0 and not found.spent[..., 0].any()
    assert (found.steps[1:] > 0).all() and (found.evaluations[1:] > 0).all() and (found.spent[..., 1:] > 0).all()
    assert (found.certainty[1:] < 0).all()  # Minus the value of the search.


INVERSION = FeatureInversion(start=Constant(value=0.5), descent=LbfgsDescent(), stop=Iterations(limit=5))


@pytest.mark.parametrize("first", ["right", "wrong"])
@pytest.mark.parametrize("wrong", [3.0, torch.nan])
def test_the_candidate_of_least_value_is_chosen_in_any_order(
    first: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two candidates for the features is wrong, or could not be read; its label differs."""
    leaked = view(network())

    def two(*arguments: Any) -> Features:
        right = read(*arguments)
        other = right.entered * wrong, right.cotangents, (right.labels + 1) % CLASSES
        pairs = zip((right.entered, right.cotangents, right.labels), other, strict=True)
        several = [torch.cat(pair if first == "right" else pair[::-1]) for pair in pairs]
        return dataclasses.replace(right, **dict(zip(("entered", "cotangents", "labels"), several, strict=True)))

    alone = INVERSION((leaked,), generators())
    monkeypatch.setattr(feature_inversion, "read", two)
    found = INVERSION((leaked,), generators())
    assert torch.equal(found.labels, truth()[1])
    torch.testing.assert_close(found.inputs, alone.inputs)
    assert (found.steps > 0).all()


class Doubled:
    """The identity, with an energy of 7."""

    def decode(self, z: Tensor) -> Tensor:
        return z

    def energy(self, z: Tensor, targets: Tensor) -> float:
        return 7.0


@pytest.mark.parametrize("sharpness", [None, (1.0, 100.0)])
def test_the_value_follows_its_docstring(sharpness: tuple[float, float] | None) -> None:
    """Half way the gradients' weight of 3 is halved, the prior's is a third, and the sharpness is 10; a tensor of zeros counts
    by its distance."""
    leaked = view(network(nn.ReLU))
    leaked = dataclasses.replace(leaked, update={**leaked.update, "0.bias": 0 * leaked.update["0.bias"]})
    features = read(leaked, readable(leaked), generators())
    prior = TotalVariation(weight=0.5)
    method = dataclasses.replace(INVERSION, weight=3.0, priors=(prior,), fading=(1 / 4, 1 / 9), sharpness=sharpness)
    misfit = feature_inversion._Misfit(method, leaked, features)
    misfit.space = Doubled()
    misfit.reach(0.5)
    x, lanes = (truth()[0] + 0.1).clamp(0, 1), torch.tensor([2, 0])
    entered, cotangents = features.entered[0], features.cotangents[0]
    front = Front.of(leaked.network, features.layer, SHAPE)
    front = front if sharpness is None else front.smoothed(torch.tensor(10.0), entered[lanes])
    h, gradients = front(x[lanes], cotangents[lanes], lanes)

    def apart(guess: Tensor, seen: Tensor) -> Tensor:
        return (guess - seen).flatten(1).square().sum(1)

    weight, bias = (leaked.update[name][lanes] for name in ("0.weight", "0.bias"))
    of_weight = apart(gradients["0.weight"], weight) / weight.flatten(1).square().sum(1)
    of_gradients = (of_weight + apart(gradients["0.bias"], bias)) / 2
    of_features = apart(h, entered[lanes]) / entered[lanes].flatten(1).square().sum(1)
    expected = of_features + 7 + 3 / 2 * of_gradients + prior(x[lanes], leaked, lanes) / 3
    torch.testing.assert_close(
        misfit(x[lanes], one_hot(truth()[1][lanes], CLASSES), x.new_zeros(2, 0), lanes), expected
    )


@pytest.mark.parametrize("sharpness", [None, (1.0, 100.0)])
def test_searches_whose_value_changes_are_not_cut_into_chunks(
    sharpness: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value depends on the share of finished iterations, which must be the same for all searches."""
    calls: list[Any] = []
    monkeypatch.setattr(feature_inversion, "cut_of", lambda views: calls.append(views) or Pieces(None))
    dataclasses.replace(INVERSION, sharpness=sharpness)((view(network(nn.ReLU)),), generators())
    assert len(calls) == (1 if sharpness is None else 0)


def test_a_search_whose_value_changes_is_replayed_with_its_new_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sharpness rises and the weights fall from iteration to iteration, in replays too."""
    method = dataclasses.replace(
        INVERSION,
        sharpness=(1.0, 100.0),
        fading=(0.1, 0.1),
        priors=(TotalVariation(weight=0.5),),
        stop=Iterations(limit=12),
    )
    monkeypatch.setattr(replayed, "AFTER", 10**9)
    plain = method((view(network(nn.ReLU)),), generators())
    count, replay = 0, replayed._Replay.__call__

    def counted(self: replayed._Replay, point: Tensor, wait: bool = True) -> tuple[Tensor, ...]:
        nonlocal count
        count += 1
        return replay(self, point, wait)

    monkeypatch.setattr(replayed._Replay, "__call__", counted)
    monkeypatch.setattr(replayed, "AFTER", 2)
    found = method((view(network(nn.ReLU)),), generators())
    assert torch.equal(found.inputs, plain.inputs)
    assert torch.equal(found.trajectory, plain.trajectory)
    assert count > 0.8 * float(plain.evaluations.max())


def test_finding_the_layers_leaves_no_hook_in_the_network():
    model = network()
    fully_connected(Network(model, parameters(model)), SHAPE)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def reconstruction(inputs: Tensor, labels: Tensor) -> Reconstruction:
    one = torch.ones(len(inputs), dtype=torch.int64)
    nothing = torch.zeros(len(inputs), 1).double()
    return Reconstruction(inputs, labels, nothing, nothing.mT, one, one, inputs[None], (1,), one[None])


@dataclasses.dataclass
class Fixed:
    """Always reconstructs the same inputs."""

    inputs: Tensor
    labels: Tensor

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        return reconstruction(self.inputs, self.labels)


def at_a_kink() -> tuple[View, Fixed, Fixed]:
    """Return the leak at a kink, a good reconstruction beyond it and a bad one before it.

    The last unit is inactive while the first pixel is darker than the second. If it is active, it dominates the gradients of
    the first layer, since its weight in the last layer is large.
    """
    first, last = nn.Linear(4, 5, bias=False), nn.Linear(5, 2)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last).double()
    with torch.no_grad():
        first.weight.copy_(torch.cat([torch.eye(4), torch.tensor([[1.0, -1.0, 0.0, 0.0]])]))
        last.weight.copy_(torch.tensor([[1.0, -1.0, 1.0, -1.0, 100.0], [-1.0, 1.0, -1.0, 1.0, -100.0]]) / 4)
        last.bias.zero_()
    shape, labels = (1, 2, 2), torch.tensor([[0]])
    x = torch.tensor([0.8, 0.801, 0.1, 0.9]).double().reshape(1, 1, *shape)
    empty = {n: p.new_zeros(1, *p.shape) for n, p in model.named_parameters()}
    blind = View("type-2", Network(model, parameters(model)), empty, 1, shape, 2, 0.1)
    leaked = dataclasses.replace(blind, update=blind.respond(x, one_hot(labels, 2).double()))
    good = x + torch.tensor([0.002, 0.0, 0.0, 0.0]).double().reshape(shape)
    bad = x + torch.tensor([-0.2, 0.1, 0.2, -0.2]).double().reshape(shape)
    return leaked, Fixed(good, labels), Fixed(bad, labels)


def test_on_a_network_with_kinks_the_features_choose_among_the_reconstructions():
    """A good reconstruction beyond a kink has a larger gradient distance than a bad one, and a smaller feature distance."""
    leaked, good, bad = at_a_kink()
    far = [float(apart / length) for apart, length in (missed(leaked, each((leaked,), ())) for each in (good, bad))]
    assert far[0] > 10 * far[1]
    inversion = FeatureInversion(start=Constant(value=0.5), descent=LbfgsDescent(inner=1), stop=Iterations(limit=1))

    def chosen(*methods: Reconstructs) -> Tensor:
        return AutoLeak(stages=tuple(Stage(method=m) for m in methods))((leaked,), generators(1)).inputs

    for stages in ((good, bad), (bad, good)):
        assert torch.equal(chosen(*stages), bad.inputs)  # Without a stage that reads features the gradients choose.
        assert torch.equal(chosen(*stages, inversion), good.inputs)


def test_a_reconstruction_whose_gradient_is_exact_is_kept():
    """Kinks do not change which reconstructions count as exact."""
    leaked, good, bad = at_a_kink()
    inversion = FeatureInversion(start=Constant(value=0.5), descent=LbfgsDescent(inner=1), stop=Iterations(limit=1))
    exact = Fixed(good.inputs - torch.tensor([0.002, 0.0, 0.0, 0.0]).double().reshape(1, 2, 2), good.labels)
    found = AutoLeak(stages=tuple(Stage(method=m) for m in (bad, exact, inversion)))((leaked,), generators(1))
    assert torch.equal(found.inputs, exact.inputs)
    assert found.steps.tolist() == [2]  # The inversion did not run.


def features_posterior(leaked: View, inputs: Tensor, labels: Tensor) -> Tensor | None:
    return posterior_of_features((leaked,), reconstruction(inputs, labels), prior_of(leaked))


def test_the_posterior_of_features_counts_the_units_that_are_active():
    model = network(nn.ReLU)
    leaked = view(model)
    x, y = truth()
    guesses = [(x + 0.1).clamp(0, 1), (x - 0.2).clamp(0, 1)]
    h = entering(model, x).flatten(1)
    shares = [(entering(model, x_).flatten(1) - h).square().sum(1) / h.square().sum(1) for x_ in guesses]
    prior = prior_of(leaked)
    energies = [prior.energy(prior.encode(x_), one_hot(y, CLASSES).double()) for x_ in guesses]
    one, other = (features_posterior(leaked, x_, y) for x_ in guesses)
    assert one is not None
    assert other is not None
    active = (h > 0).sum(1)
    assert (active < h.shape[1]).all()
    expected = active / 2 * (shares[0] / shares[1]).log() + energies[0] - energies[1]
    torch.testing.assert_close(one - other, expected, rtol=1e-4, atol=1e-4)


def test_several_candidates_are_judged_by_the_likeliest():
    """Without a bias and with two classes, one of several candidates for the features is exact."""
    model = network(nn.ReLU, bias=False, classes=2)
    leaked = view(model, labels=(1,), classes=2)
    x, y = truth(1, (1,))
    assert len(read(leaked, readable(leaked), generators()).entered) > 1
    right, wrong = (features_posterior(leaked, x_, y) for x_ in (x, (x + 0.1).clamp(0, 1)))
    assert (right < wrong).all()


def test_a_victim_without_features_is_not_judged_by_them():
    leaked = view(network(nn.ReLU))
    blank = dataclasses.replace(leaked, update={n: torch.cat([u[:1] * 0, u[1:]]) for n, u in leaked.update.items()})
    x, y = truth()
    found = features_posterior(blank, torch.cat([x[:3], x[3:] * torch.nan]), y)
    assert found.isnan().tolist() == [True, False, False, False]
    assert found.isinf().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "leaked",
    [
        pytest.param(lambda: view(network(nn.Sigmoid)), id="smooth"),
        pytest.param(lambda: view(network(nn.ReLU), 3, (0, 2, 3)), id="several examples"),
        pytest.param(lambda: view(network(nn.ReLU), noise=0.1), id="noise"),
    ],
)
def test_features_choose_only_if_they_are_exact_and_gradients_jump(leaked):
    shown = leaked()
    x, y = truth(shown.examples, (0, 2, 3) if shown.examples == 3 else None)
    assert features_posterior(shown, x, y) is None
