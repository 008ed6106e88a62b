"""Clients with momentum, weight decay and FedProx's proximal term: torch's numbers, and the exact units of what leaks."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.cell import Request, hand_out, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.types import Clock, Network, Parameters
from leakbench.data.recipe import Federation
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, draw_victims, view_of
from leakbench.federated.leakage import leak, rounded
from leakbench.federated.optimizer import linear_steps, regularised
from leakbench.federated.view import View
from leakbench.models import parameters

RATE = 0.1
PLAIN = Stations()


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def network() -> Network:
    model = module()
    return Network(model, {n: p.detach() for n, p in parameters(model).items()})


def examples(steps: int, lanes: int = 2, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Return inputs (V, 1, L, B, 6) and soft targets (V, 1, L, B, 3)."""
    rng = torch.Generator().manual_seed(1)
    inputs = torch.rand(lanes, 1, steps, batch, 6, generator=rng, dtype=torch.float64)
    return inputs, torch.randn(lanes, 1, steps, batch, 3, generator=rng, dtype=torch.float64).softmax(-1)


def clock(steps: int, **fields: float) -> Clock:
    return dataclasses.replace(Clock(0, 0, 1, steps), **fields)  # type: ignore[arg-type]


def in_torch(inputs: Tensor, targets: Tensor, optimizer: str, proximal: float = 0.0, **settings: float) -> Parameters:
    """Return the weights after torch's own optimizer used inputs (L, B, *s)."""
    model = module()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=RATE, **settings)
    for x, y in zip(inputs, targets, strict=True):
        steps.zero_grad()
        away = sum((p - start[n]).square().sum() for n, p in model.named_parameters())
        (nn.functional.cross_entropy(model(x), y) + proximal / 2 * away).backward()  # type: ignore[no-untyped-call]
        steps.step()
    return {n: p.detach() for n, p in model.named_parameters()}


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("SGD", {"momentum": 0.9}),
        ("SGD", {"weight_decay": 0.3}),
        ("SGD", {"momentum": 0.5, "weight_decay": 0.3}),
        ("SGD", {"proximal": 0.7}),
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "proximal": 0.7}),
        ("Adam", {"weight_decay": 0.3}),
    ],
)
def test_clients_follow_torch(steps: int, optimizer: str, settings: dict[str, float]) -> None:
    """W_L = kept W_0 - rate * length * leak, for each of two clients."""
    net, (inputs, targets) = network(), examples(steps)
    now = clock(steps, client_optimizer=optimizer.lower(), **settings)  # type: ignore[arg-type]
    found = leak("type-1", net, inputs, targets, RATE, PLAIN, now, None)
    how = linear_steps(now, RATE, steps)
    for lane in range(2):
        after = in_torch(inputs[lane, 0], targets[lane, 0], optimizer, **settings)
        for name, start in net.parameters.items():
            ours = how.kept * start - RATE * how.length * found[name][lane]
            torch.testing.assert_close(ours, after[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "fields",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.3},
        {"proximal": 0.7, "weight_decay": 0.1},
        {"proximal": 3e6},  # Times the learning rate, .3: the term is as large as the gradients.
        {"proximal": 3e6, "momentum": 0.5},
    ],
)
def test_a_leak_is_in_units_of_a_gradient(fields: dict[str, float]) -> None:
    """For a short learning rate all gradients are the first one, which then is the update, with every setting."""
    net, (inputs, targets) = network(), examples(6)
    inputs, targets = inputs[:, :, :1].expand(-1, -1, 6, -1, -1), targets[:, :, :1].expand(-1, -1, 6, -1, -1)
    wanted = leak("type-1", net, inputs[:, :, :1], targets[:, :, :1], RATE, PLAIN, clock(1), None)
    found = leak("type-1", net, inputs, targets, 1e-7, PLAIN, clock(6, **fields), None)
    for name, g in wanted.items():
        torch.testing.assert_close(found[name], g, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize(("decay", "proximal"), [(0.0, 2.0), (3.0, 0.0), (3.0, 2.0)])
def test_steps_with_a_constant_gradient_are_a_geometric_series(steps: int, decay: float, proximal: float) -> None:
    """w_t - w_0 = r (w_(t-1) - w_0) - rate (g + decay w_0), with r = 1 - rate (decay + proximal)."""
    how = linear_steps(clock(steps, weight_decay=decay, proximal=proximal), RATE, steps)
    left = (1 - RATE * (decay + proximal)) ** steps
    assert how.length == pytest.approx((1 - left) / (RATE * (decay + proximal)), rel=1e-12)
    assert how.kept == pytest.approx(1 - decay / (decay + proximal) * (1 - left), rel=1e-12)


@pytest.mark.parametrize("where", ["lanes", "own"])
def test_weight_decay_is_subtracted_from_a_sum_of_clients_with_networks_of_their_own(where: str) -> None:
    """The mean update over K clients has the decay of their mean weights."""
    victims, cohort = 2 if where == "lanes" else 1, 3
    net, rng = network(), torch.Generator().manual_seed(5)
    lanes = victims * cohort
    own = {n: p + 0.1 * torch.randn(lanes, *p.shape, generator=rng, dtype=p.dtype) for n, p in net.parameters.items()}
    if where == "lanes":
        net = dataclasses.replace(net, parameters=own, shared=False)
    else:
        net = dataclasses.replace(net, own={"0.weight": own["0.weight"]})
    x, y = examples(1, lanes=lanes)
    x, y = x.reshape(victims, cohort, *x.shape[2:]), y.reshape(victims, cohort, *y.shape[2:])
    wanted, found = (leak("global", net, x, y, RATE, PLAIN, clock(1, weight_decay=d), None) for d in (0.0, 0.3))
    for name, g in wanted.items():
        torch.testing.assert_close(found[name], g, rtol=1e-10, atol=1e-12)


def test_plain_steps_keep_their_numbers() -> None:
    assert linear_steps(clock(7), RATE, 7) == dataclasses.replace(linear_steps(clock(1), RATE, 7))
    assert (linear_steps(clock(7), RATE, 7).length, linear_steps(clock(7), RATE, 7).kept) == (7, 1.0)


def test_proximal_steps_on_a_quadratic() -> None:
    """With gradients a (w - b), FedProx contracts by 1 - rate (a + mu) to (a b + mu w_0) / (a + mu)."""
    start, a, b, mu = torch.tensor([[[2.0]]], dtype=torch.float64), 3.0, -1.0, 5.0
    net = Network(nn.Identity(), {"w": start[0, 0]})
    here, now = net, clock(4, proximal=mu)
    for _ in range(4):
        w = here.parameters["w"].reshape(1, 1, 1)
        direction = regularised({"w": a * (w - b)}, here, net, now)
        here = here.moved({"w": direction["w"][:, 0]}, 0.05)
    rest = (a * b + mu * 2.0) / (a + mu)
    assert float(here.parameters["w"]) == pytest.approx(rest + (2.0 - rest) * (1 - 0.05 * (a + mu)) ** 4, rel=1e-12)


def test_the_unrolled_update_has_the_derivative_of_finite_differences() -> None:
    net, (inputs, targets) = network(), examples(3, lanes=1)
    now = clock(3, momentum=0.9, weight_decay=0.2, proximal=0.4)

    def value(x: Tensor) -> Tensor:
        found = leak("type-1", net, x, targets, RATE, PLAIN, now, None)
        return torch.stack([(g * (1 + i)).sum() for i, g in enumerate(found.values())]).sum()

    assert torch.autograd.gradcheck(value, inputs.clone().requires_grad_(), eps=1e-6, atol=1e-6)


def view(steps: int, stations: Stations = PLAIN, **fields: float) -> tuple[View, Tensor, Tensor]:
    net, (inputs, targets) = network(), examples(steps)
    now = clock(steps, **fields)
    update = leak("type-1", net, inputs, targets, RATE, stations, now, None)
    seen = View("type-1", net, update, 2, (6,), 3, RATE, local_steps=steps, clock=now, stations=stations)
    return seen, inputs.flatten(1, 3), targets.flatten(1, 3)


@pytest.mark.parametrize("stations", [PLAIN, Stations(client=(ClipWhole(norm=0.01),))])
def test_an_attacker_unrolls_every_setting(stations: Stations) -> None:
    """The truth's own update is the observed one, also behind a clip of the update."""
    seen, inputs, targets = view(4, stations, momentum=0.9, weight_decay=0.2, proximal=0.4)
    for name, g in seen.respond(inputs, targets).items():
        torch.testing.assert_close(g, seen.update[name], rtol=1e-12, atol=1e-14)


def test_a_clip_also_scales_what_weight_decay_added() -> None:
    clip = Stations(client=(ClipWhole(norm=0.01),))
    assert view(1, weight_decay=0.2)[0].of_gradients and view(2, clip, momentum=0.9)[0].of_gradients
    assert not view(1, clip, weight_decay=0.2)[0].of_gradients


def test_a_coarser_view_is_as_long_with_momentum() -> None:
    """One step of the coarser view moves as far as the client, if its gradient does not change."""
    seen, _, _ = view(4, momentum=0.9)
    one = seen.coarser(1)
    assert one.learning_rate == pytest.approx(RATE * linear_steps(seen.clock, RATE, 4).length)
    assert (one.batch, one.clock.momentum, one.examples) == (8, 0.0, seen.examples)


def test_differences_of_weights_are_read_with_weight_decay() -> None:
    net, (inputs, targets) = network(), examples(3)
    now = clock(3, weight_decay=0.2, momentum=0.5)
    found = leak("type-1", net, inputs, targets, RATE, PLAIN, now, None)
    how = linear_steps(now, RATE, 3)
    read = rounded(found, net.parameters, RATE * how.length, how.kept)
    for name, g in found.items():
        torch.testing.assert_close(read[name], g, rtol=1e-9, atol=1e-12)


def test_weights_of_clients_with_momentum_are_read_at_the_length_of_their_steps() -> None:
    """Two steps with momentum .9 are 1 + 1.9 steps long, and single precision rounds differences of weights of this size."""

    def seen(reads: str) -> View:
        asked = {"dataset": "digits", "attack": "cpl", "taps": ("type-1",), "protocol": "live", "train_rounds": 0}
        asked |= {"victims": 2, "clients": 4, "clients_per_round": 2, "local_iterations": 2, "device": "cpu"}
        some = resolve_cell(Request(**asked, momentum=0.9, reads=reads), None)  # type: ignore[arg-type]
        victims = draw_victims(some, "type-1", 0, hand_out(some))
        return view_of(some, "type-1", 0, victims, torch.arange(2), Sent(Network(*fresh_network(some, True))))

    exact, read = seen("gradient"), seen("weights")
    for name, w in exact.network.parameters.items():
        found, (right, plain) = read.update[name], (exact.learning_rate * length for length in (2.9, 2.0))
        by_hand, other = ((w - (w - length * exact.update[name])) / length for length in (right, plain))
        torch.testing.assert_close(found, by_hand, rtol=1e-6, atol=0)
        assert not w.any() or not torch.allclose(found, other, rtol=1e-6, atol=0), name


def cell_hash(**fields: object) -> str:
    request = Request(dataset="digits", attack="cpl", taps=("type-1",), device="cpu", **fields)  # type: ignore[arg-type]
    return resolve_cell(request, None).hash


def test_defaults_keep_the_identity_and_settings_change_it() -> None:
    plain = cell_hash()
    assert cell_hash(momentum=0.0, weight_decay=0.0, algorithm="fedavg") == plain
    others = [cell_hash(momentum=0.9), cell_hash(weight_decay=0.1), cell_hash(proximal=0.1)]
    assert len({plain, *others}) == 4
    assert cell_hash(proximal=0.1, algorithm="fedprox") == others[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"momentum": 1.0}, "momentum: got 1.0, expected a number at least 0 and below 1"),
        (
            {"momentum": 0.9, "client_optimizer": "adam"},
            "momentum: got 0.9 with --client-optimizer adam, expected 0, or sgd",
        ),
        ({"weight_decay": -0.1}, "weight-decay: got -0.1, expected 0"),
        ({"algorithm": "fedprox"}, "proximal: not given, expected a number > 0 with --algorithm fedprox"),
        (
            {"algorithm": "fedprox", "proximal": 0.0},
            "proximal: got 0, expected a number .* with --algorithm fedprox",
        ),
        (
            {"proximal": -1.0},
            "proximal: got -1, expected a number .* with --algorithm fedprox, as 0.01, and 0 with another",
        ),
        ({"algorithm": "fedavg", "proximal": 0.1}, "proximal: got it with --algorithm fedavg"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        cell_hash(**fields)


def test_a_federation_checks_its_settings() -> None:
    with pytest.raises(ValueError, match=r"momentum: got 0\.9 with the optimizer adam"):
        Federation(3, 4, 20, momentum=0.9, client_optimizer="adam")
    with pytest.raises(ValueError, match="proximal: got 0 with fedprox"):
        Federation(3, 4, 20, algorithm="fedprox")
