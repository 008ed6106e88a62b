"""DCS-2's concealed examples against a slow loop, the gradient that it sends, and a search that finds its private numbers."""

import dataclasses
import math

import pytest
import torch
from probes import leaked
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from leakbench.attack.methods.gradient_matching import GradientMatching, Points
from leakbench.attack.slots.descent import LbfgsDescent
from leakbench.attack.slots.distance import SquaredL2
from leakbench.attack.slots.labels import Given
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations
from leakbench.cell import Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.defense.dcs2 import Conceal, Revealed, concealed, joined_to_concealed
from leakbench.defense.guess import Hides, on_a_guess
from leakbench.defense.transform import Stations
from leakbench.models import build, parameters

NOW = Clock(0, 0, 1, 1)


def slow_gradient(model: nn.Module, x: Tensor, y: Tensor, graph: bool = False) -> dict[str, Tensor]:
    """Return the gradient of the mean soft cross-entropy by plain autograd."""
    loss = nn.functional.cross_entropy(model(x), y)
    found = torch.autograd.grad(loss, list(model.parameters()), create_graph=graph)
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def signal(lanes: int = 2, batch: int = 2) -> tuple[nn.Module, Signal]:
    """Return a network in double precision and the mean gradients of batches."""
    model = build("mlp_sigmoid", (1, 4, 4), 3, torch.Generator().manual_seed(0)).double()
    rng = torch.Generator().manual_seed(1)
    inputs = torch.rand(lanes, batch, 1, 4, 4, generator=rng).double()
    targets = torch.eye(3).double()[torch.randint(3, (lanes, batch), generator=rng)]
    each = [slow_gradient(model, x, y) for x, y in zip(inputs, targets, strict=True)]
    grads = {n: torch.stack([g[n] for g in each])[:, None] for n in each[0]}
    network = Network(model, {n: p.detach() for n, p in parameters(model).items()})
    return model, Signal(grads, averaged=batch, local=Local(network, inputs, targets))


def slow_concealed(model: nn.Module, x: Tensor, y: Tensor, start: Tensor, k: Tensor, part: Conceal) -> Tensor:
    """The released loop for one client, with torch's optimizer and schedule."""
    wanted = torch.cat([g.flatten() for g in slow_gradient(model, x, y).values()])
    u = (start / part.deviation).clone().requires_grad_()
    adam = torch.optim.Adam([u], lr=part.rate)
    turns = [part.iterations // share for share in (2.667, 1.6, 1.142)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, turns, gamma=0.1)
    for _ in range(part.iterations):
        adam.zero_grad()
        own = torch.cat([g.flatten() for g in slow_gradient(model, u * part.deviation, k, graph=True).values()])
        far = (u - x / part.deviation).flatten(1).norm(dim=1).mean()
        logits = model(x).detach()
        near = ((model(u * part.deviation) - logits).norm(dim=1) / logits.norm(dim=1)).mean()
        loss = 1 - torch.cosine_similarity(own, wanted, dim=0) + torch.exp(-part.far * far) + part.near * near
        loss.backward()
        adam.step()
        if far > part.enough:
            break
        schedule.step()
    return u.detach() * part.deviation


@pytest.mark.parametrize("enough", [6.0, 300.0])
def test_concealed_examples_are_those_of_a_slow_loop(enough: float) -> None:
    """Two lanes that stop at different steps, or not at all; the learning rate falls three times."""
    model, before = signal()
    part = Conceal(iterations=40, enough=enough, rate=0.3)
    rng = torch.Generator().manual_seed(2)
    start = torch.rand(2, 2, 1, 4, 4, generator=rng).double()
    start[1] *= 2
    labels = torch.eye(3).double()[torch.randint(3, (2, 2), generator=rng)]
    found = concealed(part, before.local, before.grads, start, labels)
    for lane in range(2):
        x, y = before.local.inputs[lane], before.local.targets[lane]
        torch.testing.assert_close(found[lane], slow_concealed(model, x, y, start[lane], labels[lane], part))


@pytest.mark.parametrize(("weight", "divisor"), [(0.7, 3), (1.0, 2), (0.0, 2)])
def test_the_gradient_that_is_sent_is_a_mean_with_the_concealed_examples(weight: float, divisor: int) -> None:
    """With labels of which the share `weight` is the concealed one; a weight of 0 or 1 leaves two losses."""
    model, before = signal(lanes=1)
    examples, labels = torch.rand(1, 2, 1, 4, 4).double(), torch.eye(3).double()[None, :2]
    sent = joined_to_concealed(Conceal(weight=weight, projected=False), before, examples, labels)
    mixed = weight * labels[0] + (1 - weight) * before.local.targets[0]
    added = slow_gradient(model, examples[0], mixed)
    for name, g in before.grads.items():
        torch.testing.assert_close(sent[name][0, 0], (g[0, 0] + added[name]) / divisor)


def test_padding_has_no_concealed_example() -> None:
    """A member of weight zero changes nothing, whatever it holds; its concealed example does not count either."""
    _, before = signal(lanes=2, batch=1)
    local = before.local
    rng = torch.Generator().manual_seed(4)
    part = Conceal(iterations=10)
    start, labels = (
        torch.rand(2, 2, 1, 4, 4, generator=rng).double(),
        torch.eye(3).double()[[0, 1, 2, 0]].reshape(2, 2, 3),
    )
    padded = Local(
        local.network,
        torch.cat([local.inputs, torch.rand(2, 1, 1, 4, 4, generator=rng).double()], 1),
        torch.cat([local.targets, labels[:, 1:]], 1),
        torch.tensor([[1.0, 0.0]]).double().expand(2, -1),
    )
    alone = concealed(part, local, before.grads, start[:, :1], labels[:, :1])
    found = concealed(part, padded, before.grads, start, labels)
    torch.testing.assert_close(found[:, :1], alone)
    sent = joined_to_concealed(part, before, alone, labels[:, :1])
    for name, g in joined_to_concealed(part, dataclasses.replace(before, local=padded), found, labels).items():
        torch.testing.assert_close(g, sent[name])


def test_a_concealed_example_starts_from_noise_with_a_share_of_the_private_one(monkeypatch) -> None:
    """Noise with the mean and deviation of the pixels, and one label of each class about as often."""
    _, before = signal(lanes=60)
    starts = {}

    def seen(how: Conceal, local: Local, private: dict, start: Tensor, labels: Tensor) -> Tensor:
        starts.update(start=start, labels=labels)
        return start

    monkeypatch.setattr("leakbench.defense.dcs2.concealed", seen)
    part = Conceal(weight=0.6)
    part(before, NOW, generators(0, "noise", [(lane,) for lane in range(60)]))
    noise = (starts["start"] - 0.4 * before.local.inputs) / 0.6
    assert float(noise.mean()) == pytest.approx(part.mean, abs=0.03)
    assert float(noise.std()) == pytest.approx(part.deviation, rel=0.05)
    assert abs(float(torch.corrcoef(torch.stack([noise.flatten(), before.local.inputs.flatten()]))[0, 1])) < 0.08
    assert bool((starts["labels"].sum(2) == 1).all())
    assert float((starts["labels"].mean((0, 1)) - 1 / 3).abs().max()) < 0.13


def test_a_gradient_that_points_away_is_projected_by_the_quadratic_program() -> None:
    """A private gradient turned around: v minimises v^2 (|g|^2 + .001) / 2 + v <g, sent> over v >= .5."""
    _, before = signal(lanes=1)
    turned = dataclasses.replace(before, grads={n: -0.2 * g for n, g in before.grads.items()})
    examples, labels = before.local.inputs, before.local.targets
    bare, sent = (joined_to_concealed(Conceal(projected=p), turned, examples, labels) for p in (False, True))
    g, s, after = (torch.cat([x.flatten() for x in of.values()]) for of in (turned.grads, bare, sent))
    assert float(g @ s) < 0
    found = minimize_scalar(
        lambda v: v**2 * (float(g @ g) + 1e-3) / 2 + v * float(g @ s), bounds=(0.5, 100), method="bounded"
    )
    torch.testing.assert_close(after, s + found.x * g, rtol=1e-3, atol=1e-4)
    same = joined_to_concealed(Conceal(), before, examples, labels)
    assert all(
        torch.equal(same[n], s)
        for n, s in joined_to_concealed(Conceal(projected=False), before, examples, labels).items()
    )


def test_each_lane_draws_its_own_start_and_nothing_is_done_without_draws() -> None:
    """One lane of two is what it is alone; without generators the gradient stays, and no clip holds."""
    _, before = signal()
    before = dataclasses.replace(before, sensitivity=torch.ones(2))
    part = Conceal(iterations=5)
    both = part(before, NOW, generators(0, "noise", [(0,), (1,)]))
    local = dataclasses.replace(before.local, inputs=before.local.inputs[1:], targets=before.local.targets[1:])
    alone = dataclasses.replace(before, grads={n: g[1:] for n, g in before.grads.items()}, local=local)
    second = part(alone, NOW, generators(0, "noise", [(1,)]))
    for name, g in second.grads.items():
        torch.testing.assert_close(g[0], both.grads[name][1])
    still = part(before, NOW, None)
    assert all(torch.equal(g, before.grads[n]) for n, g in still.grads.items())
    assert both.sensitivity is None
    assert both.facts[-1].raw


def test_the_private_numbers_of_the_concealed_examples_give_the_leak() -> None:
    """At the true example, concealed example and label, an attacker's guess is what was sent; it has a derivative in all."""
    _, before = signal(lanes=2, batch=1)
    part = Conceal(iterations=20)
    rng = torch.Generator().manual_seed(3)
    labels = torch.eye(3).double()[torch.randint(3, (2, 1), generator=rng)]
    c = concealed(part, before.local, before.grads, torch.rand(2, 1, 1, 4, 4, generator=rng).double(), labels)
    sent = joined_to_concealed(part, before, c, labels)
    spread = part.enough * part.deviation / math.sqrt(16)
    numbers = torch.cat([(c.flatten(2) - part.mean) / spread, 10 * labels], 2).flatten(1).requires_grad_()
    assert isinstance(part, Hides)
    revealed = on_a_guess(Stations(batch=(part,)), {n: g[:, 0] for n, g in sent.items()}, numbers).batch[0]
    assert isinstance(revealed, Revealed)
    guess = revealed(before, NOW, None).grads
    for name, g in guess.items():
        torch.testing.assert_close(g, sent[name])
    (slope,) = torch.autograd.grad(sum(g.square().sum() for g in guess.values()), numbers)
    assert slope[:, :16].abs().min() > 0


def test_a_search_starts_with_the_labels_that_the_gradient_shows() -> None:
    """Rows of the last layer with negative sums: the lowest is the private label, the other one that of the concealed example."""
    seen = {"weight": torch.tensor([[[-3.0], [1.0], [-2.0]], [[-3.0], [2.0], [1.0]]])}
    start = Conceal().hidden(seen, 1, (2,), 3)
    assert start.tolist() == [[0, 0, 0, 0, 1], [0, 0, 1, 0, 0]]
    assert not Conceal().hidden(seen, 2, (2,), 3).any()
    assert Conceal().hidden(seen, 2, (2,), 3).shape == (2, 10)


def test_only_an_attacker_that_knows_the_defense_searches_its_numbers() -> None:
    """At the update, not at type-2, which leaks before the batch station."""
    stations = {"batch": (Conceal(iterations=2),)}
    view, inputs, targets = leaked(stations)
    start = view.hidden()
    assert start is not None
    assert start.shape == (3, inputs[0, 0].numel() + 10)
    bare, there = view.respond(inputs, targets), view.respond(inputs, targets, by_what_leaked=True, hidden=start)
    assert any(not torch.allclose(bare[n], there[n]) for n in bare)
    assert leaked(stations, knows="oblivious")[0].hidden() is None
    assert leaked(stations, "type-2")[0].hidden() is None
    assert dataclasses.replace(view, local_steps=2).hidden() is None
    adam = dataclasses.replace(view.clock, client_optimizer="adam")
    assert dataclasses.replace(view, clock=adam).hidden() is None


def test_the_private_numbers_of_two_parts_are_refused() -> None:
    """All parts would read the same numbers; at type-2 neither has acted."""
    stations = {"batch": (Conceal(iterations=2), Conceal(iterations=2))}
    with pytest.raises(InputError, match="defense: got 2 parts with private numbers"):
        leaked(stations)[0].hidden()
    assert leaked(stations, "type-2")[0].hidden() is None


def test_an_attack_that_knows_the_defense_searches_the_concealed_examples() -> None:
    """The same search finds one of three images with them, and none without; where it finds none, its errors say nothing."""
    errors = {}
    for knows in ("defense", "oblivious"):
        view, inputs, targets = leaked({"batch": (Conceal(iterations=20),)}, knows=knows)
        view = dataclasses.replace(view.to(torch.float64), labels=targets.argmax(-1))
        attack = GradientMatching(
            labels=Given(),
            start=Constant(value=0.5),
            distance=SquaredL2(),
            descent=LbfgsDescent(),
            stop=Iterations(limit=30),
        )
        found = attack((view,), generators(0, "start", [(0,), (1,), (2,)])).inputs
        errors[knows] = (found - inputs).square().flatten(1).mean(1).sqrt()
    assert float(errors["defense"].min()) < 0.1
    assert float(errors["oblivious"].min()) > 0.2


def test_hidden_numbers_are_the_last_coordinates_of_a_search() -> None:
    """With labels given and searched, and two restarts of two victims."""
    hidden = torch.arange(6.0).reshape(2, 3)
    z, logits = torch.rand(4, 1, 5), torch.rand(4, 1, 2)
    for joint in (False, True):
        points = Points(None, z.shape[1:], logits, joint, hidden)  # type: ignore[arg-type]
        joined = points.joined(z)
        found, targets, numbers = points.split(joined, torch.arange(4))
        assert torch.equal(found, z)
        torch.testing.assert_close(targets, logits.softmax(-1) if joint else logits)
        assert numbers is not None
        assert torch.equal(numbers, hidden.repeat(2, 1))
        without = dataclasses.replace(points, hidden=None)
        assert without.split(without.joined(z), torch.arange(4))[2] is None


def test_it_needs_the_examples_of_a_batch() -> None:
    """Not the server, and not the tokens of texts."""
    _, before = signal()
    with pytest.raises(InputError, match="put it at the batch station"):
        Conceal()(dataclasses.replace(before, local=None), NOW, None)
    local = dataclasses.replace(before.local, inputs=torch.ones(2, 2, 3, dtype=torch.int64))
    with pytest.raises(InputError, match="tokens of texts"):
        Conceal()(dataclasses.replace(before, local=local), NOW, None)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dataset": "reviews", "attack": "bag_of_words", "taps": ("type-2",)}, "conceal: got the tokens of texts"),
        (
            {
                "dataset": "faces",
                "attack": "cpl",
                "leak_model": "resnet18_batch_norm",
                "victim_mode": "train",
                "taps": ("type-1",),
            },
            "conceal: it does not run batch normalisation",
        ),
    ],
)
def test_texts_and_batch_normalisation_are_refused_before_a_run(asked: dict, message: str) -> None:
    """Texts also at a leakage point before the batch station, where the part would never run."""
    with pytest.raises(InputError, match=message):
        resolve_cell(Request(defense="dcs2", victims=1, candidates=2, **asked), None)
