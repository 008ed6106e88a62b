"""Clients that pass several times over their examples, in an order that the attacker does not know (Dimitrov et al., TMLR 2022)."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.descent import AdamDescent
from leakbench.attack.slots.distance import Cosine
from leakbench.attack.slots.epochs import EpochsAgree, of_one_epoch
from leakbench.attack.slots.labels import Given
from leakbench.attack.slots.labels_shuffled import Shuffled
from leakbench.attack.slots.start import Uniform
from leakbench.attack.slots.stop import Iterations
from leakbench.cell import Request, resolve_cell
from leakbench.cell.accounting import ledger_of
from leakbench.cell.cell import Cell, hand_out, leak_clock, leak_federation
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network
from leakbench.data.partition import Dirichlet, Iid, Shards, partition_of
from leakbench.defense.transform import Stations
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, draw_victims, truth, view_of
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.limits.guards import guards
from leakbench.models import one_hot, parameters

EPOCHS, EXAMPLES, BATCH, RATE = 3, 4, 2, 0.1


def network() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 20), nn.Sigmoid(), nn.Linear(20, 3)).double()
    return Network(model, {n: p.detach() for n, p in parameters(model).items()})


def seen(victims: int = 2, orders: bool = True, **fields: object) -> tuple[View, Tensor, Tensor]:
    """Return the view of clients with 4 examples (V, 4, 1, 3, 3), 3 epochs and batches of 2, and the truth."""
    net, rng = network(), torch.Generator().manual_seed(3)
    inputs = torch.rand(victims, EXAMPLES, 1, 3, 3, generator=rng, dtype=torch.float64)
    labels = torch.randint(3, (victims, EXAMPLES), generator=rng)
    order = [torch.randperm(EXAMPLES, generator=rng) if orders else torch.arange(EXAMPLES) for _ in range(EPOCHS)]
    used = torch.cat(order)
    steps = EPOCHS * EXAMPLES // BATCH
    x = inputs[:, used].reshape(victims, 1, steps, BATCH, 1, 3, 3)
    y = one_hot(labels[:, used], 3).double().reshape(victims, 1, steps, BATCH, 3)
    now = Clock(0, 0, 1, steps)
    update = leak("type-1", net, x, y, RATE, Stations(), now, None)
    view = View("type-1", net, update, BATCH, (1, 3, 3), 3, RATE, local_steps=steps, epochs=EPOCHS, clock=now,
                labels=labels)  # fmt: skip
    return dataclasses.replace(view, **fields), inputs, labels  # type: ignore[arg-type]


def test_a_guess_is_used_once_in_each_epoch() -> None:
    view, inputs, labels = seen(orders=False)
    assert view.examples == EXAMPLES
    for name, g in view.respond(inputs, one_hot(labels, 3).double()).items():
        torch.testing.assert_close(g, view.update[name], rtol=1e-12, atol=1e-14)


def test_epochs_apart_have_guesses_of_their_own() -> None:
    """The truth in its unknown order explains the update; the shared order does not."""
    view, inputs, labels = seen()
    apart = dataclasses.replace(view, apart=True)
    assert apart.examples == EPOCHS * EXAMPLES
    targets = one_hot(labels, 3).double()
    shared = view.respond(inputs, targets)
    same = apart.respond(torch.cat([inputs] * EPOCHS, 1), torch.cat([targets] * EPOCHS, 1))
    name = "1.weight"
    torch.testing.assert_close(shared[name], same[name])
    assert not torch.allclose(shared[name], view.update[name], rtol=1e-6)


@pytest.mark.parametrize(("steps", "batch", "epochs"), [(1, 4, 1), (3, 4, 3), (6, 2, 3)])
def test_coarser_steps_are_of_the_examples_of_an_epoch(steps: int, batch: int, epochs: int) -> None:
    view, inputs, labels = seen()
    coarse = view.coarser(steps)
    assert (coarse.batch, coarse.epochs, coarse.examples) == (batch, epochs, EXAMPLES)
    assert coarse.learning_rate * coarse.local_steps == pytest.approx(RATE * 6)
    coarse.respond(inputs, one_hot(labels, 3).double())
    with pytest.raises(InputError, match="local_steps: got 2, expected a divisor or a multiple of the 3 epochs"):
        view.coarser(2)


def plain_descent(net: Network, inputs: Tensor, targets: Tensor, steps: int, rate: float) -> dict[str, Tensor]:
    """Return the mean gradient of steps of gradient descent over all examples (n, *s), by a loop."""
    weights = {n: p.clone() for n, p in net.parameters.items()}
    for _ in range(steps):
        leaves = {n: w.detach().requires_grad_() for n, w in weights.items()}
        loss = nn.functional.cross_entropy(torch.func.functional_call(net.model, leaves, (inputs,)), targets)
        moves = torch.autograd.grad(loss, list(leaves.values()))
        weights = {n: w - rate * g for (n, w), g in zip(leaves.items(), moves, strict=True)}
    return {n: (net.parameters[n] - w.detach()) / (rate * steps) for n, w in weights.items()}


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_up_to_one_step_an_epoch_is_over_all_examples(steps: int) -> None:
    """Four epochs of two steps as fewer steps: gradient descent of the same length, for any order of the guess."""
    view, inputs, labels = seen()
    four = dataclasses.replace(view, local_steps=8, epochs=4, clock=Clock(0, 0, 1, 8))
    coarse = four.coarser(steps)
    assert (coarse.local_steps, coarse.batch, coarse.examples) == (steps, EXAMPLES, EXAMPLES)
    targets = one_hot(labels, 3).double()
    update = coarse.respond(inputs, targets)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = coarse.respond(inputs[:, order], targets[:, order])
    for victim in range(2):
        slow = plain_descent(four.network, inputs[victim], targets[victim], steps, RATE * 8 / steps)
        for name, g in update.items():
            torch.testing.assert_close(g[victim], slow[name], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(shuffled[name][victim], g[victim], rtol=1e-9, atol=1e-12)


def test_coarser_steps_of_epochs_apart_have_guesses_of_their_own() -> None:
    """Four epochs of two steps as one step an epoch, each over its own guess; as one step, all epochs have one guess."""
    view, _, labels = seen()
    four = dataclasses.replace(view, local_steps=8, epochs=4, clock=Clock(0, 0, 1, 8), apart=True)
    coarse = four.coarser(4)
    assert (coarse.apart, coarse.batch, coarse.examples) == (True, EXAMPLES, 4 * EXAMPLES)
    guess = torch.rand(2, 4 * EXAMPLES, 1, 3, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    targets = torch.cat([one_hot(labels, 3).double()] * 4, 1)
    x, y = guess.reshape(2, 1, 4, EXAMPLES, 1, 3, 3), targets.reshape(2, 1, 4, EXAMPLES, 3)
    expected = leak("type-1", four.network, x, y, RATE * 2, Stations(), Clock(0, 0, 1, 4), None)
    for name, g in coarse.respond(guess, targets).items():
        torch.testing.assert_close(g, expected[name], rtol=1e-9, atol=1e-12)
    one = four.coarser(1)
    assert (one.apart, one.examples) == (False, EXAMPLES)


def test_more_steps_are_closer_to_the_update() -> None:
    """At the true examples; the rest is the order, which no step over all examples has."""
    view, inputs, labels = seen(victims=8)
    four = dataclasses.replace(view, local_steps=8, epochs=4, clock=Clock(0, 0, 1, 8), learning_rate=1.0)
    net, rng = four.network, torch.Generator().manual_seed(5)
    used = torch.cat([torch.randperm(EXAMPLES, generator=rng) for _ in range(4)])
    targets = one_hot(labels, 3).double()
    x, y = inputs[:, used].reshape(8, 1, 8, BATCH, 1, 3, 3), targets[:, used].reshape(8, 1, 8, BATCH, 3)
    update = leak("type-1", net, x, y, 1.0, Stations(), four.clock, None)
    far = [
        sum(float((g - update[n]).square().sum()) for n, g in four.coarser(steps).respond(inputs, targets).items())
        for steps in (1, 2, 4)
    ]
    assert far[0] > 2 * far[1] > 4 * far[2]


def test_the_penalty_is_the_mean_over_pairs_of_epochs() -> None:
    view = dataclasses.replace(seen()[0], apart=True)
    guess = torch.rand(2, EPOCHS * EXAMPLES, 1, 3, 3, dtype=torch.float64)
    each = guess.reshape(2, EPOCHS, EXAMPLES, 9)
    for of, function in (("mean", lambda e: e.mean(1)), ("max", lambda e: e.amax(1))):
        pairs = [(function(each[:, i]) - function(each[:, j])).square().mean(1) for i in range(3) for j in range(3)]
        found = EpochsAgree(weight=5.0, of=of)(guess, view, torch.arange(2))  # type: ignore[arg-type]
        torch.testing.assert_close(found, 5 * torch.stack(pairs).mean(0))


def test_the_penalty_ignores_the_order_within_an_epoch() -> None:
    view, inputs, _ = seen()
    view = dataclasses.replace(view, apart=True)
    shuffled = torch.cat([inputs[:, torch.randperm(EXAMPLES)] for _ in range(EPOCHS)], 1)
    for of in ("mean", "max"):
        assert float(EpochsAgree(weight=1.0, of=of)(shuffled, view, torch.arange(2)).max()) < 1e-20  # type: ignore[arg-type]


def test_epochs_are_matched_and_averaged() -> None:
    view, inputs, _ = seen()
    view = dataclasses.replace(view, apart=True)
    orders = [torch.arange(EXAMPLES), torch.tensor([2, 0, 3, 1]), torch.tensor([3, 2, 1, 0])]
    noise = [0.01 * torch.randn(inputs.shape, dtype=torch.float64, generator=generator(0, "n", i)) for i in range(3)]
    each = torch.stack([x + n for x, n in zip([inputs] * 3, noise, strict=True)])
    found = of_one_epoch(torch.cat([each[e][:, order] for e, order in enumerate(orders)], 1), view)
    torch.testing.assert_close(found, each.mean(0))


def search(weight: float | None) -> GradientMatching:
    priors = () if weight is None else (EpochsAgree(weight=weight),)
    return GradientMatching(
        labels=Shuffled(of="given"), start=Uniform(), distance=Cosine(), descent=AdamDescent(box=True), priors=priors,
        stop=Iterations(limit=60),
    )  # fmt: skip


@pytest.mark.parametrize("weight", [None, 0.0, 1.0])
def test_a_search_returns_one_reconstruction_of_each_example(weight: float | None) -> None:
    view, inputs, labels = seen()
    answer = search(weight)((view,), tuple(generator(0, "a", v) for v in range(2)))
    assert answer.inputs.shape == inputs.shape and answer.iterates.shape[1:] == inputs.shape
    assert torch.equal(answer.labels.sort(1).values, labels.sort(1).values)
    assert answer.certainty.shape == labels.shape
    assert bool((answer.trajectory[-1] < 0.5 * answer.trajectory[0]).all())


def test_shuffled_labels_keep_their_counts() -> None:
    view, _, labels = seen()
    guess = Shuffled(of="given")(view, tuple(generator(0, "s", v) for v in range(2)))
    assert torch.equal(guess.targets.sum(1), one_hot(labels, 3).sum(1).to(guess.targets))
    orders = {
        tuple(Shuffled(of="given")(view, (generator(s, "o"),) * 2).targets.argmax(2)[0].tolist()) for s in range(8)
    }
    assert len(orders) > 1


def test_given_labels_do_not_show_the_order_of_an_epoch() -> None:
    """Each client's labels are ascending, and those of one epoch keep their order of use."""
    view, _, labels = seen()
    assert not torch.equal(labels, labels.sort(1).values)
    assert torch.equal(Given()(view, ()).targets.argmax(2), labels.sort(1).values)
    two = dataclasses.replace(view, cohort=2, labels=torch.tensor([[2, 1, 2, 0], [0, 2, 1, 0]]))
    assert Given()(two, ()).targets.argmax(2).tolist() == [[1, 2, 0, 2], [0, 2, 0, 1]]
    once = dataclasses.replace(view, epochs=1)
    assert torch.equal(Given()(once, ()).targets.argmax(2), labels)


def cell(**fields: object) -> Cell:
    asked = {
        "dataset": "digits",
        "attack": "cpl",
        "taps": ("type-1",),
        "protocol": "live",
        "device": "cpu",
        "victims": 2,
    }
    asked |= {"clients": 10, "clients_per_round": 5, "examples_per_client": 12, "batch": 3, "train_rounds": 2}
    return resolve_cell(Request(**asked | fields), None)  # type: ignore[arg-type]


def test_a_client_passes_over_all_its_examples() -> None:
    """L = E |D_i| / B, each example once in each pass, in another order."""
    some = cell(epochs=3)
    assert some.settings.federation.local_iterations == 12 and some.defense.batches == "split"
    victims = draw_victims(some, "type-1", 0, hand_out(some))
    passes = victims.indices.reshape(2, 3, 12)
    assert all(torch.equal(passes[:, e].sort(1).values, passes[:, 0].sort(1).values) for e in range(3))
    assert not torch.equal(passes[:, 0], passes[:, 1])
    inputs, _, indices = truth(some, "type-1", victims)
    assert indices.shape == (2, 12) and all(len(set(row.tolist())) == 12 for row in indices)
    view = view_of(some, "type-1", 0, victims, torch.arange(2), Sent(Network(*fresh_network(some, True))))
    assert (view.examples, view.epochs, view.knowledge.examples) == (12, 3, 12)
    assert inputs.shape[1] == view.examples and truth(some, "type-2", victims)[2].shape == (2, 1)


def test_the_leaked_batch_decides_the_iterations_of_a_leak() -> None:
    some = cell(epochs=2, leak_batch=6)
    assert (leak_federation(some).local_iterations, leak_clock(some, 0).local_iterations) == (4, 4)
    assert draw_victims(some, "type-1", 0, hand_out(some)).indices.shape == (2, 1, 4, 6)


def test_the_ledger_counts_one_use_in_each_epoch() -> None:
    some = cell(epochs=3)
    schedule, _ = ledger_of(some.defense, some.data, some.settings, hand_out(some))
    assert (schedule.batch_sampling, schedule.passes(), schedule.local_iterations) == ("split", 3, 12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 2, "batch": 5}, "epochs: got batches of 5 and 12 examples of a client"),
        ({"epochs": 2, "local_iterations": 3}, "epochs: got --local-iterations too"),
        ({"epochs": 2, "leak_batch": 5}, "leak-batch: got 5 with --epochs, expected a divisor"),
        ({"partition": "dirichlet"}, "partition: got 'dirichlet', expected iid"),
        ({"partition": "dirichlet:-1"}, "partition: got 'dirichlet:-1'"),
        ({"partition": "shard:2"}, "partition: got 'shard:2'"),
    ],
)
def test_wrong_numbers_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cell(**fields)


def test_defaults_keep_the_identity() -> None:
    plain, other = cell(), cell(epochs=4, local_iterations=None)
    assert plain.hash != other.hash
    assert cell(partition="iid").hash == plain.hash or plain.settings.federation.partition != Iid()


def test_words_name_partitions() -> None:
    assert partition_of("iid") == Iid() and partition_of("shards") == Shards()
    assert partition_of("shards:3") == Shards(3) and partition_of("dirichlet:0.1") == Dirichlet(alpha=0.1)


def test_small_alphas_give_clients_with_few_labels() -> None:
    def labels(partition: str) -> float:
        some = cell(partition=partition, clients=40)
        held = some.data.train_targets[hand_out(some).indices]
        return sum(len(row.unique()) for row in held) / len(held)

    assert labels("dirichlet:0.05") < 4
    assert labels("dirichlet:100") > 6


def test_a_bound_counts_the_release_of_each_epoch() -> None:
    """The update of four epochs has four noisy gradients of each example, which are one with half the noise."""
    deviations = []
    for epochs in (1, 4):
        fields = {"protocol": "live", "train_rounds": 1, "leak_rounds": ("0",), "batch": 4, "examples_per_client": 20}
        request = Request(dataset="digits", attack="cpl", taps=("type-1",), defense="fed_cdp", epochs=epochs, **fields)  # type: ignore[arg-type]
        some = resolve_cell(request, None)
        model, weights = fresh_network(some, trained=True)
        found = guards(some, Network(model, weights), 0, hand_out(some))
        deviations.append((found["type-1"].sigma, found["type-2"].sigma))
    (one, single), (four, same) = deviations
    assert one is not None and four == pytest.approx(one / 2) and single == same
