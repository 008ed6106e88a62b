"""Defenses beyond the gradient: Soteria's masks, PRECODE's bottleneck, and aggregation that shows only sums."""

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from leakbench.cell import Cell, Request, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Generators, Local, Network, Parameters, Sampling, Signal
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, FactProbe, facts_at
from leakbench.defense.clip import ClipWhole
from leakbench.defense.network import extended
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.precode import Precode, VariationalBottleneck
from leakbench.defense.soteria import Soteria, representation_scores
from leakbench.defense.transform import Stations
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, draw_victims, view_of
from leakbench.federated.client import Examples, client_update, example_signal, mean_update
from leakbench.federated.leakage import leak
from leakbench.federated.sampling import drawn
from leakbench.federated.simulate import accuracy, train
from leakbench.federated.view import View
from leakbench.models import MODELS, build, one_hot, parameters

CLOCK = Clock(0, 0, 1, 1)
SHAPE = (1, 10, 10)
CLASSES = 3


def plain(name: str = "lenet_cpl", shape: tuple[int, ...] = SHAPE) -> nn.Sequential:
    model = build(name, shape, CLASSES, generator(0, "model"))
    assert isinstance(model, nn.Sequential)
    return model


def network(model: nn.Module) -> Network:
    return Network(model, parameters(model))


def examples(lanes: int, batch: int, steps: int = 1, shape: tuple[int, ...] = SHAPE) -> Examples:
    rng = generator(1, "data")
    inputs = torch.rand(lanes, steps, batch, *shape, generator=rng)
    labels = torch.randint(CLASSES, (lanes, steps, batch), generator=rng)
    return Examples(inputs, one_hot(labels, CLASSES), torch.ones(lanes, steps, batch), batch)


def far(a: Parameters, b: Parameters) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


# Soteria


def slow_scores(model: nn.Sequential, x: Tensor) -> Tensor:
    """Return |d r_i / d x| / (r_i + 0.1) of one input, feature by feature, by plain autograd."""
    leaf = x.clone().requires_grad_()
    r = model[:-1](leaf[None])[0]
    norms = [torch.autograd.grad(r[i], leaf, retain_graph=True)[0].norm() for i in range(len(r))]
    return torch.stack(norms) / (r.detach() + 0.1)


def slow_kept(scores: Tensor, share: float) -> Tensor:
    """The released rule: features strictly below the percentile are removed; linear interpolation, written out."""
    ordered = scores.abs().sort().values
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return scores.abs() >= ordered[low] + (place - low) * (ordered[high] - ordered[low])


def masked(station: str, share: float, net: Network, given: Examples) -> Signal:
    """Return the output of the station with Soteria."""
    plain_signal = example_signal(net, given, 0)
    signal = plain_signal if station == "example" else plain_signal.mean()
    local = Local(net, given.inputs[:, 0], given.targets[:, 0], given.weights[:, 0])
    return Soteria(share=share)(dataclasses.replace(signal, local=local), CLOCK, None)


@pytest.mark.parametrize("name", ["lenet_cpl", "cnn", "mlp"])
@pytest.mark.parametrize("share", [0.01, 0.6])
def test_soteria_masks_what_a_slow_loop_masks(name: str, share: float) -> None:
    """Two lanes of two examples: at `example` each has its own columns, at `batch` those of the summed scores."""
    model, given = plain(name), examples(2, 2)
    net = network(model)
    each, batch = masked("example", share, net, given), masked("batch", share, net, given)
    bare = example_signal(net, given, 0).grads
    key = list(bare)[-1] if name == "cnn" else list(bare)[-2]
    for lane in range(2):
        scores = [slow_scores(model, given.inputs[lane, 0, b]) for b in range(2)]
        for member in range(2):
            expected = bare[key][lane, member] * slow_kept(scores[member], share)
            torch.testing.assert_close(each.grads[key][lane, member], expected)
        expected = bare[key][lane].mean(0) * slow_kept(scores[0] + scores[1], share)
        torch.testing.assert_close(batch.grads[key][lane, 0], expected)
    assert all(torch.equal(each.grads[n], bare[n]) for n in bare if n != key)


def test_soteria_in_every_lane_uses_the_network_of_that_lane() -> None:
    """After one local iteration each client has different weights, and its scores use these weights."""
    model, given = plain("mlp"), examples(2, 1)
    own = {n: torch.stack([p, 2 * p]) for n, p in parameters(model).items()}
    scores = representation_scores(
        Local(Network(model, own, shared=False), given.inputs[:, 0], given.targets[:, 0]), model[-1]
    )
    for lane in range(2):
        twin = build("mlp", SHAPE, CLASSES, generator(0, "model"))
        twin.load_state_dict({n: p[lane] for n, p in own.items()})
        torch.testing.assert_close(scores[lane, 0], slow_scores(twin, given.inputs[lane, 0, 0]))  # type: ignore[arg-type]


def test_chunks_of_features_change_no_score() -> None:
    """One feature at a time or all at once."""
    model, given = plain("mlp"), examples(1, 2)
    local = Local(network(model), given.inputs[:, 0], given.targets[:, 0])
    torch.testing.assert_close(
        representation_scores(local, model[-1], budget=1), representation_scores(local, model[-1], budget=10**12)
    )


@pytest.mark.parametrize("station", ["example", "batch"])
def test_a_share_of_zero_masks_nothing_and_of_one_leaves_one_column(station: str) -> None:
    """No score is strictly below the smallest one; all but one are strictly below the largest."""
    net, given = network(plain()), examples(1, 1)
    bare = example_signal(net, given, 0).grads
    nothing, everything = (masked(station, share, net, given).grads for share in (0.0, 1.0))
    assert all(torch.equal(nothing[n], bare[n]) for n in bare)
    assert int((everything[list(bare)[-2]][0, 0] != 0).any(0).sum()) == 1


def test_padding_does_not_change_a_shared_mask() -> None:
    """An example of weight 0 does not change the batch's mask."""
    net, given = network(plain("mlp")), examples(1, 3)
    weights = torch.tensor([[[1.0, 1.0, 0.0]]])
    other = given.inputs.clone()
    other[:, :, 2] = 0.3
    stations = Stations(batch=(Soteria(share=0.5),))
    updates = [
        mean_update(net, dataclasses.replace(given, inputs=x, weights=weights), 0.1, stations, CLOCK, None).grads
        for x in (given.inputs, other)
    ]
    assert far(*updates) == 0


def test_a_layer_can_be_named() -> None:
    """The middle layer of the MLP, named 3, instead of the last, named 5."""
    net, given = network(plain("mlp")), examples(1, 1)
    local = Local(net, given.inputs[:, 0], given.targets[:, 0])
    signal = dataclasses.replace(example_signal(net, given, 0), local=local)
    after = Soteria(share=0.5, layer="3")(signal, CLOCK, None).grads
    assert [n for n in after if not torch.equal(after[n], signal.grads[n])] == ["3.weight"]
    with pytest.raises(InputError, match=r"layer: got '9', expected last or one of 1, 3, 5"):
        Soteria(share=0.5, layer="9")(signal, CLOCK, None)


def test_an_adaptive_attacker_differentiates_through_soterias_mask() -> None:
    """On a guess the mask is constant: finite gradients, and none for a masked column's part of the distance."""
    net, given = network(plain()), examples(2, 1)
    stations = Stations(example=(Soteria(share=0.6),))
    x, y = given.inputs[:, None], given.targets[:, None]
    update = leak("type-1", net, x, y, 0.1, stations, CLOCK, None)
    view = View("type-1", net, update, 1, SHAPE, CLASSES, 0.1, stations=stations)
    guess = (given.inputs[:, 0] * 0.9).requires_grad_()
    answer = view.respond(guess, given.targets[:, 0])
    key = list(answer)[-2]
    zero = (answer[key] == 0).all(1)
    assert 0.5 < float(zero.float().mean()) < 0.7
    (into,) = torch.autograd.grad(answer[key].square().sum(), guess)
    assert into.isfinite().all()
    assert (into != 0).any()
    assert not answer[key].transpose(1, 2)[zero].any()


def test_soteria_must_be_before_noise_and_at_a_client() -> None:
    """After a noise its mask would show the plain examples; the server has no examples; a convolution has no columns."""
    net, given = network(plain()), examples(1, 1)
    local = Local(net, given.inputs[:, 0], given.targets[:, 0])
    signal = dataclasses.replace(example_signal(net, given, 0), local=local)
    noised = GaussianNoise(0.0, "each")(ClipWhole(1.0)(signal, CLOCK, None), CLOCK, None)
    with pytest.raises(InputError, match="before the noise"):
        Soteria(share=0.5)(noised, CLOCK, None)
    with pytest.raises(InputError, match="no examples"):
        Soteria(share=0.5)(dataclasses.replace(signal, local=None), CLOCK, None)
    bare = nn.Sequential(nn.Conv2d(1, 3, 10), nn.Flatten())
    with pytest.raises(InputError, match=r"no fully connected layer \(nn.Linear\)"):
        Soteria(share=0.5)(
            dataclasses.replace(signal, local=dataclasses.replace(local, network=network(bare))), CLOCK, None
        )


@pytest.mark.parametrize("share", [1.01, -0.1, math.nan])
def test_a_share_must_be_between_0_and_1(share: float) -> None:
    """1.01, -0.1 and NaN are refused when the part is built."""
    with pytest.raises(ValueError, match="share"):
        Soteria(share=share)


@pytest.mark.parametrize("station", ["client", "server"])
def test_soteria_is_accepted_only_within_a_local_iteration(station: str) -> None:
    """A recipe with Soteria at another station is refused in one line."""
    with pytest.raises(ValueError, match="expected at the example or batch station"):
        Defense(title="t", cite="c", unit="example", **{station: (Soteria(share=0.5),)})  # type: ignore[arg-type]


def test_a_mask_that_mixes_a_batch_has_no_epsilon() -> None:
    """An example's own mask before the clip breaks nothing; a mask for the whole batch does, and no epsilon follows."""
    model = build("mlp", (9,), 2, torch.Generator())
    federation = Federation(1, 5, 20, clients=30, clients_per_round=10, local_iterations=1)
    probe = FactProbe(network(model), (9,), 2, federation)
    mask, noise = Soteria(share=0.5), GaussianNoise(1.0, "sum")
    own = Defense(title="t", cite="c", unit="example", example=(mask, ClipWhole(1.0)), batch=(noise,))
    shared = Defense(title="t", cite="c", unit="example", example=(ClipWhole(1.0),), batch=(mask, noise))
    first = facts_at(own, probe, CLOCK)["example"][0]
    assert (first.kind, first.reason) == ("other", "")
    assert "whole private batch" in facts_at(shared, probe, CLOCK)["batch"][0].reason


# PRECODE


def bottleneck(width: int = 8, beta: float = 1e-3, name: str = "lenet_cpl") -> VariationalBottleneck:
    model = Precode(width, beta)(plain(name), SHAPE, CLASSES, generator(0, "extension"))
    assert isinstance(model, VariationalBottleneck)
    return model


def unsampled(model: VariationalBottleneck) -> nn.Sequential:
    """The same network without sampling: the encoder's half for the mean, then the decoder."""
    width = model.draws
    half = nn.Linear(model.encoder.in_features, width)
    half.load_state_dict({"weight": model.encoder.weight[:width], "bias": model.encoder.bias[:width]})
    return nn.Sequential(model.features, half, model.decoder, model.classifier)


def test_without_draws_and_penalty_it_is_the_network_without_sampling() -> None:
    """beta = 0 and draws of 0: the same logits and the same gradients of every weight that both have."""
    model, given = bottleneck(beta=0.0), examples(2, 3)
    twin = unsampled(model)
    ours, theirs = example_signal(network(model), given, 0).grads, example_signal(network(twin), given, 0).grads
    named = {"0": "features", "2": "decoder", "3": "classifier"}
    for name, g in theirs.items():
        block, _, rest = name.partition(".")
        if block == "1":
            both = ours[f"encoder.{rest}"]
            torch.testing.assert_close(both[:, :, :8], g)
            assert not both[:, :, 8:].any()
        else:
            torch.testing.assert_close(ours[f"{named[block]}.{rest}"], g)
    x = given.inputs[0, 0]
    torch.testing.assert_close(model(x), twin(x))


def test_the_gradient_is_that_of_the_entropy_and_beta_times_the_divergence() -> None:
    """Plain autograd with torch.distributions: entropy at mean + std * draws, plus beta KL(N(mean, std^2) || N(0, 1)) in bits."""
    model, given = bottleneck(beta=0.5), examples(1, 2)
    net, rngs = network(model), generators(0, "draws", [(0,)])
    draws = drawn(net, given.weights, rngs)
    assert draws is not None
    found = example_signal(net, dataclasses.replace(given, draws=draws), 0).grads
    for member in range(2):
        mean, spread = model.encoder(model.features(given.inputs[0, 0, member : member + 1])).chunk(2, -1)
        code = torch.distributions.Normal(mean, nn.functional.softplus(spread))
        logits = model.classifier(model.decoder(mean + code.scale * draws[0, 0, member]))
        divergence = torch.distributions.kl_divergence(code, torch.distributions.Normal(0.0, 1.0)).sum() / math.log(2)
        loss = nn.functional.cross_entropy(logits, given.targets[0, 0, member : member + 1]) + 0.5 * divergence
        expected = torch.autograd.grad(loss, list(model.parameters()))
        for (name, _), g in zip(model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(found[name][0, member], g, rtol=1e-4, atol=1e-6)


def test_the_mean_gradient_contains_the_penalty_and_the_draws() -> None:
    """Without an example station one backward pass computes the batch; it is the mean of the examples' gradients."""
    net, given = network(bottleneck(beta=0.5)), examples(2, 3)
    given = dataclasses.replace(given, draws=drawn(net, given.weights, generators(0, "draws", [(0,), (1,)])))
    each = example_signal(net, given, 0).mean().grads
    whole = mean_update(net, given, 0.1, Stations(), CLOCK, None).grads
    for n, g in each.items():
        torch.testing.assert_close(whole[n], g, rtol=1e-4, atol=1e-6)


def test_only_the_new_layers_are_new() -> None:
    """The network's own layers keep their weights; the bottleneck's are uniform within 1 / sqrt(fan-in), from the generator."""
    before, model = plain(), bottleneck()
    assert torch.equal(model.classifier.weight, before[-1].weight)
    assert torch.equal(model.features[0].weight, before[0].weight)
    assert 0.9 < float(model.encoder.weight.detach().abs().max()) * model.encoder.in_features**0.5 <= 1
    assert torch.equal(model.encoder.weight, bottleneck().encoder.weight)
    other = Precode(8)(plain(), SHAPE, CLASSES, generator(1, "extension"))
    assert not torch.equal(model.encoder.weight, other.encoder.weight)
    assert isinstance(model, Sampling)


def test_draws_are_standard_normal_one_for_each_example_and_iteration() -> None:
    """Mean 0, std 1, no two of 2 lanes x 3 iterations x 4 examples alike."""
    net = network(bottleneck(width=4000))
    draws = drawn(net, torch.ones(2, 3, 4), generators(0, "draws", [(0,), (1,)]))
    assert draws is not None
    assert draws.shape == (2, 3, 4, 4000)
    assert float(draws.std()) == pytest.approx(1.0, rel=0.01)
    assert (torch.corrcoef(draws.flatten(0, 2)) - torch.eye(24)).abs().max() < 0.1


def test_draws_of_a_lane_do_not_depend_on_other_lanes() -> None:
    """Alone, or padded to the larger Poisson batch of another lane."""
    net = network(bottleneck())
    weights = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    both = drawn(net, weights, generators(0, "draws", [(0,), (1,)]))
    alone = drawn(net, weights[:1, :, :2], generators(0, "draws", [(0,)]))
    assert both is not None
    assert alone is not None
    assert torch.equal(both[0, :, :2], alone[0])
    assert not both[0, :, 2].any()


def test_no_generators_and_plain_networks_draw_nothing() -> None:
    """An attacker's guess uses the mean; a network without sampling draws nothing."""
    weights = torch.ones(1, 1, 1)
    assert drawn(network(bottleneck()), weights, None) is None
    assert drawn(network(plain()), weights, generators(0, "draws", [(0,)])) is None


def test_accuracy_is_deterministic_and_needs_no_draw() -> None:
    """Two evaluations are equal; the logits are those of the mean."""
    net, given = network(bottleneck()), examples(1, 20)
    inputs, labels = given.inputs[0, 0], given.targets[0, 0].argmax(-1)
    first = accuracy(net.model, net.parameters, inputs, labels)
    assert first == accuracy(net.model, net.parameters, inputs, labels)
    assert first[0] == float((unsampled(net.model)(inputs).argmax(1) == labels).float().mean())  # type: ignore[arg-type]


def test_draws_differ_between_victims_and_agree_between_leakage_points() -> None:
    """Two victims with the same example leak differently; type-2 and type-1 of one example are the same gradient."""
    net, given = network(bottleneck()), examples(1, 1)
    x, y = (t[:, None].expand(2, *[-1] * (t.dim())) for t in (given.inputs, given.targets))
    draws = [generators(0, "leak draws", [(0,), (1,)]) for _ in range(2)]
    two = leak("type-2", net, x, y, 0.1, Stations(), CLOCK, None, draws[0])
    one = leak("type-1", net, x, y, 0.1, Stations(), CLOCK, None, draws[1])
    mean = leak("type-1", net, x, y, 0.1, Stations(), CLOCK, None)
    for n in two:
        torch.testing.assert_close(two[n], one[n])
        torch.testing.assert_close(mean[n][0], mean[n][1])
    assert max(float((u[0] - u[1]).abs().max()) for u in one.values()) > 1e-3
    assert {n: u.shape[1:] for n, u in one.items()} == {n: p.shape for n, p in net.parameters.items()}


def test_the_draws_do_not_hide_the_features_of_one_example() -> None:
    """The bottleneck's first layer has a bias: its weights' gradient over its bias's is the features, for any draws."""
    model, given = bottleneck(), examples(1, 1)
    draws = generators(0, "leak draws", [(0,)])
    x, y = given.inputs[:, None], given.targets[:, None]
    seen = leak("type-1", network(model), x, y, 0.1, Stations(), CLOCK, None, draws)
    row = int(seen["encoder.bias"][0].abs().argmax())
    read = seen["encoder.weight"][0, row] / seen["encoder.bias"][0, row]
    torch.testing.assert_close(read, model.features(given.inputs[0, 0])[0], rtol=1e-4, atol=1e-5)


def test_training_draws_from_its_own_generators() -> None:
    """The draws change the model, the same seed gives the same rounds, and noise elsewhere does not change the draws."""
    _, recipe, digits = load_dataset("digits")
    plain_model = build("mlp", digits.shape, digits.classes, generator(0, "model"))
    model = extended((Precode(8),), plain_model, digits.shape, digits.classes, generator(0, "model extension"))
    handed = recipe.federation.partition(digits.train_targets, 4, 20, generator(0, "partition"))
    federation = Federation(2, 4, 20, clients=4, clients_per_round=2, local_iterations=2, learning_rate=0.1)
    defense = Defense(title="t", cite="c", unit="example")

    def last(defense: Defense, seed: int = 0) -> Parameters:
        return list(train(network(model), digits, handed, federation, defense, seed))[-1].parameters

    tiny = dataclasses.replace(defense, client=(ClipWhole(1e3), GaussianNoise(1e-7, "each")))
    assert far(last(defense), last(defense)) == 0
    assert 0 < far(last(defense), last(tiny)) < 1e-2


@pytest.mark.parametrize("name", [name for name, made in MODELS.items() if not made.texts and made.heads is None])
def test_every_network_of_the_catalog_takes_a_bottleneck(name: str) -> None:
    """Pictures of 16 x 16; the last layer is still the last in the order of the parameters, where labels are read."""
    shape = (1, 16, 16)
    model = Precode(8)(plain(name, shape), shape, CLASSES, torch.Generator())
    assert model(torch.rand(2, *shape)).shape == (2, CLASSES)
    matrices = [p for p in parameters(model).values() if p.dim() > 1]
    assert matrices[-1].shape[0] == CLASSES


def test_a_network_without_a_last_linear_layer_is_refused() -> None:
    """One line that says what was expected."""
    for model in (nn.Sequential(nn.Flatten(), nn.Linear(100, 3), nn.Softmax(-1)), nn.Linear(100, 3), bottleneck()):
        with pytest.raises(InputError, match=r"expected a sequence that ends with a fully connected layer"):
            Precode()(model, SHAPE, CLASSES, torch.Generator())
    with pytest.raises(ValueError, match="width"):
        Precode(width=0)
    with pytest.raises(ValueError, match="beta"):
        Precode(beta=-1.0)


def cell(**asked: object) -> Cell:
    return resolve_cell(Request(**{"attack": "cpl", "victims": 3, "train_rounds": 0, "leak_batch": 2, **asked}), None)  # type: ignore[arg-type]


def test_both_networks_of_a_cell_get_the_bottleneck() -> None:
    """The trained and the leaking network; the rest of their weights equals that of a cell without the defense."""
    with_it, without = cell(defense="precode"), cell(defense="none")
    for trained in (True, False):
        model, weights = fresh_network(with_it, trained)
        bare = fresh_network(without, trained)[1]
        assert isinstance(model, VariationalBottleneck)
        assert all(torch.equal(weights[f"features.{n}"], p) for n, p in list(bare.items())[:2])


# Secure aggregation


def test_under_secure_aggregation_type_0_and_global_show_the_mean_update() -> None:
    """For a whole cell: the mean of the single clients' updates; type-1 stays one client's update."""
    some = cell(defense="secure_aggregation")
    model, weights = fresh_network(some, trained=False)
    sent, everyone = Sent(Network(model, weights)), torch.arange(3)
    views = {}
    for tap in ("type-1", "type-0", "global"):
        views[tap] = view_of(some, tap, 0, draw_victims(some, tap, 0, hand_out(some)), everyone, sent)
    clients = some.settings.federation.clients_per_round
    assert [(v.cohort, v.examples) for v in views.values()] == [(1, 2), (clients, 2 * clients), (clients, 2 * clients)]
    assert far(views["type-0"].update, views["global"].update) == 0
    indices = draw_victims(some, "type-0", 0, hand_out(some)).indices
    inputs, labels = some.data.train_inputs[indices], some.data.train_targets[indices]
    each = leak(
        "type-1",
        sent.network,
        inputs.flatten(0, 1)[:, None],
        one_hot(labels, some.data.classes).flatten(0, 1)[:, None],
        0.1,
        Stations(),
        CLOCK,
        None,
    )
    for n, u in views["type-0"].update.items():
        torch.testing.assert_close(u, each[n].reshape(3, clients, *u.shape[1:]).mean(1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(views["type-1"].update[n], each[n][::clients], rtol=1e-4, atol=1e-6)


def test_without_it_type_0_is_one_clients_update() -> None:
    """The defense `none`: a cohort of one."""
    some = cell(defense="none")
    assert draw_victims(some, "type-0", 0, hand_out(some)).indices.shape == (3, 1, 1, 2)


def test_the_sum_contains_the_noise_of_every_client() -> None:
    """sigma C = 24 by each of K = 5 clients: 24 / sqrt(5) on the mean update, in gradient units 1 / learning rate of that."""
    some = cell(defense="secure_aggregation_sdp_client")
    model, weights = fresh_network(some, trained=False)
    victims = draw_victims(some, "type-0", 0, hand_out(some))
    assert victims.indices.shape[1] == 5
    view = view_of(some, "type-0", 0, victims, torch.arange(3), Sent(Network(model, weights)))
    noise = torch.cat([u.flatten() for u in view.update.values()])
    assert float(noise.std()) == pytest.approx(24 / math.sqrt(5) / view.learning_rate, rel=0.03)


def test_the_live_protocol_counts_the_clients_behind_a_sum() -> None:
    """5 victims' sums of 5 clients need more clients than there are; without secure aggregation they do not."""
    asked = {"victims": 5, "protocol": "live", "leak_batch": 2}
    with pytest.raises(InputError, match="5 need 25 clients in the live protocol"):
        cell(defense="secure_aggregation", **asked)
    assert cell(defense="none", **asked).settings.victims == 5
    assert cell(defense="secure_aggregation", taps=("type-1",), **asked).settings.victims == 5


@dataclasses.dataclass(frozen=True)
class OfSums:
    """A user's part that says that it acts on the sum alone."""

    acts_on: ClassVar[str] = "sum"

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        return signal


def test_a_server_that_sees_only_sums_accepts_each_part_that_acts_on_sums() -> None:
    secure = {"title": "t", "cite": "c", "unit": "client", "aggregation": "secure"}
    assert Defense(server=(OfSums(),), **secure).server == (OfSums(),)  # type: ignore[arg-type]


def test_a_server_that_sees_only_sums_cannot_clip_updates() -> None:
    """Under secure aggregation the server can only add noise to the sum; a clip belongs to the client."""
    secure = {"title": "t", "cite": "c", "unit": "client", "aggregation": "secure"}
    with pytest.raises(ValueError, match="it sees no single update"):
        Defense(server=(ClipWhole(1.0), GaussianNoise(1.0, "sum")), **secure)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="it sees no single update"):
        Defense(client=(ClipWhole(1.0),), server=(GaussianNoise(1.0, "each"),), **secure)  # type: ignore[arg-type]
    assert Defense(client=(ClipWhole(1.0),), server=(GaussianNoise(1.0, "sum"),), **secure).shows_sum("type-0")  # type: ignore[arg-type]


def test_secure_aggregation_trains_as_plain_aggregation_does() -> None:
    """It changes what the observers see, not the sum: bit-identical rounds."""
    _, recipe, digits = load_dataset("digits")
    handed = recipe.federation.partition(digits.train_targets, 4, 20, generator(0, "partition"))
    federation = Federation(1, 4, 20, clients=4, clients_per_round=2, local_iterations=2, learning_rate=0.1)
    secure = resolve("defenses", Defense, "secure_aggregation_sdp_client")[1]
    model = build("mlp", digits.shape, digits.classes, generator(0, "model"))
    states = [
        list(train(network(model), digits, handed, federation, d, 0))[-1].parameters
        for d in (secure, dataclasses.replace(secure, aggregation="plain"))
    ]
    assert far(*states) == 0


def test_an_update_of_a_sampling_network_goes_through_the_client_station() -> None:
    """An infinite clip at the client changes nothing of PRECODE's update."""
    net, given = network(bottleneck()), examples(2, 2, steps=2)
    given = dataclasses.replace(given, draws=drawn(net, given.weights, generators(0, "draws", [(0,), (1,)])))
    bare = client_update(net, given, 0.1, Stations(), CLOCK, None).grads
    clipped = client_update(net, given, 0.1, Stations(client=(ClipWhole(1e9),)), CLOCK, None).grads
    assert far(bare, clipped) == 0
