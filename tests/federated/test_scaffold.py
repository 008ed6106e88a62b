"""SCAFFOLD against a plain loop, and what its control variates do to an epsilon."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.cell import Request, resolve_cell
from leakbench.cell.accounting import cell_epsilon, ledger_of
from leakbench.cell.cell import Cell, hand_out
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Network, Parameters
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.partition import Partition
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.federated import scaffold, simulate
from leakbench.federated.sampling import draw_batches, draw_clients
from leakbench.federated.simulate import Round, from_tensors, to_tensors
from leakbench.models import parameters

RATE, CLIENTS, COHORT, STEPS = 0.1, 4, 2, 3
FEDERATION = Federation(
    4,
    4,
    20,
    clients=CLIENTS,
    clients_per_round=COHORT,
    local_iterations=STEPS,
    learning_rate=RATE,
    algorithm="scaffold",
)
PLAIN = Defense(title="t", cite="c", unit="example")


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def network() -> Network:
    model = module()
    return Network(model, {n: p.detach() for n, p in parameters(model).items()})


def small() -> tuple[Dataset, Partition]:
    _, recipe, data = load_dataset("cancer")
    cut = {f"{split}_inputs": getattr(data, f"{split}_inputs")[:, :6].double() for split in ("train", "test")}
    data = dataclasses.replace(data, **cut, class_names=("a", "b", "c"))
    return data, recipe.federation.partition(data.train_targets, CLIENTS, 20, generator(0, "partition"))


def gradient(weights: Parameters, x: Tensor, y: Tensor) -> Parameters:
    model = module()
    model.load_state_dict(weights)
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return {n: p.grad.detach() for n, p in model.named_parameters() if p.grad is not None}


def by_hand(data: Dataset, handed: Partition, rounds: int) -> tuple[Parameters, Parameters, list[Parameters]]:
    """Return (x, c, c_i) after Algorithm 1 of Karimireddy et al. with option II and a global learning rate of 1."""
    x = {n: p.clone() for n, p in network().parameters.items()}
    c = {n: torch.zeros_like(p) for n, p in x.items()}
    each = [{n: torch.zeros_like(p) for n, p in x.items()} for _ in range(CLIENTS)]
    for t in range(rounds):
        moved, changed = [], []
        for client in draw_clients(CLIENTS, COHORT, "fixed", 0, t).tolist():
            held = handed.of(torch.tensor([client]))[0]
            places = draw_batches("fixed", 20, STEPS, 4, (generator(0, "batches", t, client),)).positions[0]
            y = {n: p.clone() for n, p in x.items()}
            for batch in places:
                g = gradient(y, data.train_inputs[held[batch]], data.train_targets[held[batch]])
                y = {n: p - RATE * (g[n] - each[client][n] + c[n]) for n, p in y.items()}
            new = {n: each[client][n] - c[n] + (x[n] - y[n]) / (STEPS * RATE) for n in x}
            moved.append({n: y[n] - x[n] for n in x})
            changed.append({n: new[n] - each[client][n] for n in x})
            each[client] = new
        x = {n: p + sum(d[n] for d in moved) / COHORT for n, p in x.items()}
        c = {n: p + COHORT / CLIENTS * sum(d[n] for d in changed) / COHORT for n, p in c.items()}
    return x, c, each


def trained(federation: Federation = FEDERATION, defense: Defense = PLAIN, done: Round | None = None) -> list[Round]:
    data, handed = small()
    return list(simulate.train(network(), data, handed, federation, defense, 0, done))


def test_training_follows_algorithm_1() -> None:
    data, handed = small()
    last = trained()[-1]
    x, c, each = by_hand(data, handed, 4)
    for name, p in x.items():
        torch.testing.assert_close(last.parameters[name], p, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(last.memory[f"{scaffold.OF_SERVER}{name}"], c[name], rtol=1e-10, atol=1e-12)
        ours = last.memory[f"{scaffold.OF_CLIENTS}{name}"]
        torch.testing.assert_close(ours, torch.stack([one[name] for one in each]), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(ours.mean(0), c[name], rtol=1e-9, atol=1e-12)
    plain = trained(dataclasses.replace(FEDERATION, algorithm="fedavg"))[-1]
    assert not torch.allclose(plain.parameters["0.weight"], last.parameters["0.weight"])


def test_a_resumed_training_has_the_control_variates() -> None:
    whole = trained()
    row = {
        n: float(getattr(whole[1], n)) for n in ("round", "accuracy", "loss", "between_client_variance", "update_scale")
    }
    resumed = trained(done=from_tensors(to_tensors(whole[1]), row | whole[1].members))
    assert [r.round for r in resumed] == [2, 3]
    for name, p in whole[-1].parameters.items():
        assert torch.equal(resumed[-1].parameters[name], p)


def test_control_variates_follow_from_what_was_sent() -> None:
    """With noise at the client, c_i is the mean direction of the noisy update, to the last digit."""
    noisy = dataclasses.replace(
        PLAIN, unit="client", client=(ClipWhole(norm=0.1), GaussianNoise(multiplier=1.0, to="each"))
    )
    first = trained(dataclasses.replace(FEDERATION, rounds=1), noisy)[0]
    taking = draw_clients(CLIENTS, COHORT, "fixed", 0, 0)
    for name, p in network().parameters.items():
        controls = first.memory[f"{scaffold.OF_CLIENTS}{name}"]
        step = first.parameters[name] - p
        torch.testing.assert_close(controls[taking].mean(0), -step / (STEPS * RATE), rtol=1e-9, atol=1e-12)
        assert torch.equal(controls.count_nonzero(), controls[taking].count_nonzero())


def test_the_server_noise_reaches_its_control_variate() -> None:
    """C follows from the noisy step of the model, so that it releases nothing else."""
    noisy = dataclasses.replace(
        PLAIN, unit="client", client=(ClipWhole(norm=0.1),), server=(GaussianNoise(multiplier=1.0, to="sum"),)
    )
    first = trained(dataclasses.replace(FEDERATION, rounds=1), noisy)[0]
    for name, p in network().parameters.items():
        step = first.parameters[name] - p
        wanted = -COHORT / CLIENTS * step / (STEPS * RATE)
        torch.testing.assert_close(first.memory[f"{scaffold.OF_SERVER}{name}"], wanted, rtol=1e-9, atol=1e-12)


def cell(**fields: object) -> Cell:
    asked: dict[str, object] = {
        "dataset": "digits",
        "attack": "cpl",
        "taps": ("type-1",),
        "device": "cpu",
        "train_rounds": 3,
    }
    return resolve_cell(Request(**asked | fields), None)  # type: ignore[arg-type]


def epsilon(some: Cell, defense: Defense | None = None) -> tuple[float | None, str]:
    found = cell_epsilon(defense or some.defense, some.data, some.settings, hand_out(some), None)
    return found.valid, found.reason


@pytest.mark.parametrize("defense", ["fed_cdp_valid", "fed_sdp_valid"])
def test_control_variates_of_noisy_updates_cost_nothing(defense: str) -> None:
    one, other = cell(defense=defense), cell(defense=defense, algorithm="scaffold")
    assert epsilon(one) == epsilon(other)
    assert epsilon(one)[0] is not None


def test_noise_of_the_server_alone_does_not_cover_control_variates() -> None:
    some = cell(algorithm="scaffold", local_iterations=1)
    bare = Defense(
        title="t",
        cite="c",
        unit="example",
        example=(ClipWhole(norm=1.0),),
        client=(ClipWhole(norm=0.1),),
        server=(GaussianNoise(multiplier=1.0, to="sum"),),
    )
    assert epsilon(some, bare)[0] is None


def test_the_noise_of_other_clients_does_not_count_with_control_variates() -> None:
    some = cell(algorithm="scaffold", local_iterations=1, defense="fed_cdp_valid")
    schedule, _ = ledger_of(some.defense, some.data, some.settings, hand_out(some))
    assert schedule.control_variates
    secure = dataclasses.replace(some.defense, aggregation="secure")
    found = cell_epsilon(secure, some.data, some.settings, hand_out(some), None).by_tap["type-0"]
    assert "control variate of SCAFFOLD carries its own noisy update into later sums" in found.reason


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"momentum": 0.9}, "algorithm: scaffold takes plain SGD"),
        ({"client_optimizer": "adam"}, "algorithm: scaffold takes plain SGD"),
        ({"proximal": 0.1}, "proximal: got it with --algorithm scaffold"),
        ({"protocol": "live", "leak_rounds": ("0", "2")}, "leak-rounds: got 0,2 with --algorithm scaffold"),
    ],
)
def test_what_scaffold_does_not_take_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cell(algorithm="scaffold", **fields)


def test_too_many_control_variates_are_refused() -> None:
    with pytest.raises(InputError, match="algorithm: scaffold stores a control variate for each of 1000000000 clients"):
        scaffold.first_controls({"w": torch.zeros(1)}, 10**9)


@pytest.mark.parametrize("aggregation", ["plain", "secure", "shuffled"])
def test_other_clients_show_their_noise_again(aggregation: str) -> None:
    """Client 2's later update contains the noise of its earlier one, which then does not hide client 1 any more."""
    noisy = Defense(
        title="t",
        cite="c",
        unit="client",
        cohorts="fixed",
        aggregation=aggregation,  # type: ignore[arg-type]
        client=(ClipWhole(norm=1.0), GaussianNoise(multiplier=1.0, to="each")),
    )
    sizes = {"clients": 40, "clients_per_round": 10, "train_rounds": 10}
    plain, scaffold = (cell(**sizes, algorithm=name) for name in ("fedavg", "scaffold"))
    found = [cell_epsilon(noisy, c.data, c.settings, hand_out(c), None) for c in (plain, scaffold)]
    assert found[0].sigma_effective == pytest.approx(10**0.5)
    assert found[1].sigma_effective == 1.0 and found[1].by_tap["type-0"].sigma_effective == 1.0
    assert found[1].valid == found[1].by_tap["type-1"].valid
    assert "no other client's noise counts" in found[1].reason


def test_a_later_round_betrays_the_noise_of_another_client() -> None:
    """Two rounds of N = 4, K = 2: the sum of the second one makes the first one tell more than its whole noise allows."""
    rng, n, deviation = torch.Generator().manual_seed(0), 400_000, 0.5

    def seen(own: float) -> Tensor:
        noises = [deviation * torch.randn(n, generator=rng, dtype=torch.float64) for _ in range(4)]
        first = own + noises[0] + noises[1]  # Client 2 has a gradient of zero.
        control, second_own = -first / 4, -noises[1]
        second = (second_own - control).clamp(-1, 1) + (0 - control).clamp(-1, 1) + noises[2] + noises[3]
        return first + (second - (first / 4).clamp(-1, 1) - first / 4) / 3

    with_it, without = (float((seen(own) > 1.0).double().mean()) for own in (1.0, 0.0))
    one = 2 * deviation**2
    alone = [float(torch.special.ndtr(torch.tensor((own - 1.0) / one**0.5))) for own in (1.0, 0.0)]
    assert with_it == pytest.approx(alone[0], abs=0.02) and without < alone[1] - 0.005
