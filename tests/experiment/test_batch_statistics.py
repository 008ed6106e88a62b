"""The statistics of batch normalisation that an attacker has: what they are, and that the true examples have them."""

import dataclasses

import pytest
import torch
from torch import nn

from leakbench.attack.slots.batch_norm import BatchNormStatistics
from leakbench.core.types import Network
from leakbench.experiment.statistics import attacker_network, attacker_statistics
from leakbench.federated.view import Public, View
from leakbench.models import one_hot, parameters
from leakbench.models.batch_norm import BatchNorm, in_client_mode, mixes_examples

VICTIMS, BATCH, SHAPE, CLASSES = 3, 2, (1, 6, 6), 4


def _network():
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 3, 3),
        BatchNorm(3),
        nn.Sigmoid(),
        nn.Conv2d(3, 5, 3),
        BatchNorm(5),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    ]
    model = nn.Sequential(*layers).eval()
    model(torch.zeros(1, *SHAPE))
    model[1].running_mean.uniform_(0.1, 0.5)
    model[1].running_var.uniform_(0.5, 1.5)
    model = in_client_mode(model, "train")
    return Network(model, parameters(model))


def _inputs():
    return torch.rand(VICTIMS, BATCH, *SHAPE, generator=torch.Generator().manual_seed(1))


def _public():
    return Public(
        torch.rand(10, *SHAPE, generator=torch.Generator().manual_seed(2)), torch.zeros(10, dtype=torch.int64)
    )


def test_given_statistics_are_those_of_each_layers_input():
    network, x = _network(), _inputs()
    found = attacker_statistics(network, "given", x, _public())
    first = torch.stack([network.model[0](batch) for batch in x]).transpose(1, 2).flatten(2)  # (V, C, values)
    torch.testing.assert_close(found["1.running_mean"], first.mean(2))
    torch.testing.assert_close(found["1.running_var"], first.var(2, correction=0))
    assert found["4.running_mean"].shape == (VICTIMS, 5)


def test_a_server_solves_the_running_statistics_for_those_of_the_batch():
    network, x = _network(), _inputs()
    given, inferred = (attacker_statistics(network, choice, x, _public()) for choice in ("given", "inferred"))
    assert given.keys() == inferred.keys()
    for name, statistic in given.items():
        torch.testing.assert_close(inferred[name], statistic, rtol=1e-4, atol=1e-5)


def test_proxy_statistics_do_not_depend_on_the_victims():
    one, other = (attacker_statistics(_network(), "proxy", x, _public()) for x in (_inputs(), 1 - _inputs()))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one["1.running_mean"].shape == (VICTIMS, 3)


def test_the_truth_has_the_given_statistics_and_not_those_of_a_proxy():
    network, x = _network(), _inputs()
    view = View(
        "type-1",
        network,
        {n: p[None].expand(VICTIMS, *p.shape) for n, p in network.parameters.items()},
        BATCH,
        SHAPE,
        4,
        0.1,
    )
    prior, lanes = BatchNormStatistics(2.0), torch.arange(VICTIMS)
    for choice, exact in (("given", True), ("inferred", True), ("proxy", False), ("batch", False)):
        seen = dataclasses.replace(view, statistics=attacker_statistics(network, choice, x, _public()))
        penalty = prior(x, seen, lanes)
        assert bool((penalty < 1e-3).all()) == exact, (choice, penalty)
        # A penalty of some victims compares them with their own statistics.
        torch.testing.assert_close(prior(x[1:], seen, lanes[1:]), penalty[1:])
        torch.testing.assert_close(prior(x[1:], seen.of(lanes[1:]), lanes[:-1]), penalty[1:])


def test_only_an_attacker_that_normalises_as_the_victim_did_explains_the_update():
    network, x = _network(), _inputs()
    y = one_hot(torch.arange(VICTIMS * BATCH).reshape(VICTIMS, BATCH) % CLASSES, CLASSES)
    like = {n: p[None].expand(VICTIMS, *p.shape) for n, p in network.parameters.items()}
    view = View("type-1", network, like, BATCH, SHAPE, CLASSES, 0.1)
    update = view.respond(x, y)
    running = attacker_network(network, "running")
    assert not mixes_examples(running.model)
    assert mixes_examples(network.model)
    other = dataclasses.replace(view, network=running).respond(x, y)
    assert attacker_network(network, "given") is network
    assert not any(torch.allclose(update[n], other[n], rtol=0.01) for n in update if n.endswith("0.weight"))


@pytest.mark.parametrize("choice", ["batch", "running"])
def test_an_attacker_without_more_has_the_running_statistics_of_the_server(choice):
    assert attacker_statistics(_network(), choice, _inputs(), _public()) is None
