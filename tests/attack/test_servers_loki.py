"""LOKI separates the sum of a cohort's updates into clients; a shared imprint with as many rows does not."""

import pytest
import torch

from leakbench.attack.methods.rows import Rows
from leakbench.attack.servers.imprint import Imprint
from leakbench.attack.servers.loki import Loki
from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import one_hot
from tests.attack.test_servers_imprint import CLOCK, PUBLIC, SHAPE, honest, pictures, recovered, rngs

SUMS, CLIENTS, BATCH, BINS = 3, 10, 8, 128


def summed(server, x, stations=None, lanes=None):
    """Return the view of V sums over K clients with B pictures each (V, K, B, *s)."""
    knowledge = Knowledge(clients=CLIENTS, examples=CLIENTS * BATCH)
    network, secret = server(honest(), PUBLIC, knowledge, torch.Generator().manual_seed(3))
    y = one_hot(torch.arange(BATCH).expand(*x.shape[:3]) % 3, 3).double()[:, :, None]
    update = leak("global", network, x[:, :, None], y, 0.1, stations or Stations(), CLOCK, lanes)
    return View("global", network, update, BATCH, SHAPE, 3, 0.1, cohort=CLIENTS, secret=secret)


def share(server, x):
    """Return the share of reconstructed pictures, and its standard error over sums."""
    view = summed(server, x)
    found = recovered(Rows()((view,), rngs(len(x))).inputs, x.flatten(1, 2), 0.004).double().mean(1)
    return float(found.mean()), float(found.std()) / len(x) ** 0.5


def test_the_pictures_of_each_client_follow_the_law_of_its_batch():
    x = pictures(SUMS, CLIENTS, BATCH)
    by_itself, all_together = ((1 - 1 / BINS) ** (n - 1) for n in (BATCH, CLIENTS * BATCH))
    found, error = share(Loki(bins=BINS), x)
    assert abs(found - by_itself) < 4 * error + 0.02
    shared, error = share(Imprint(bins=BINS), x)
    assert abs(shared - all_together) < 4 * error + 0.03
    assert by_itself - all_together > 0.3


def test_a_client_changes_only_its_own_columns():
    """The sum's block c is the mean over all clients of the update that client c would have sent alone."""
    x = pictures(1, CLIENTS, BATCH)
    view = summed(Loki(bins=16), x)
    y = one_hot(torch.arange(BATCH)[None] % 3, 3).double()[None, None]
    for client in (0, 7):
        own = view.network.of_client(client)
        assert own.own == {}
        alone = leak("type-1", own, x[:, client][:, None, None], y, 0.1, Stations(), CLOCK, None)
        block = alone["rows.weight"][0].unflatten(1, (CLIENTS, -1))
        assert (block.abs().sum((0, 2)) > 0).tolist() == [place == client for place in range(CLIENTS)]
        whole = view.update["rows.weight"][0].unflatten(1, (CLIENTS, -1))
        torch.testing.assert_close(whole[:, client], block[:, client] / CLIENTS)


def test_without_secure_aggregation_all_clients_get_the_same():
    network, bins = Loki(bins=16)(honest(), PUBLIC, Knowledge(), torch.Generator())
    assert (network.own, bins.clients) == ({}, 1)
    x = pictures(2, 4, 1)
    y = one_hot(torch.zeros(2, 4, 1, dtype=torch.int64), 3).double()[:, :, None]
    assert leak("global", network, x[:, :, None], y, 0.1, Stations(), CLOCK, None)["rows.bias"].shape == (2, 16)


def test_noise_on_the_sum_is_drawn_once_and_noise_of_clients_separately():
    x = pictures(1, CLIENTS, BATCH)
    stations = Stations(client=(ClipWhole(norm=1.0),), server=(GaussianNoise(multiplier=2.0, to="sum"),))
    lanes = generators(0, "leak noise", [(0, 0, k) for k in range(CLIENTS)])
    noisy = summed(Loki(bins=64), x, stations, lanes).update["rows.weight"]
    quiet = summed(Loki(bins=64), x, Stations(client=(ClipWhole(norm=1.0),))).update["rows.weight"]
    own = Stations(client=(ClipWhole(norm=1.0), GaussianNoise(multiplier=1.0, to="each")))
    apart = summed(Loki(bins=64), x, own, lanes).update["rows.weight"] - quiet
    # Each client draws separately, so K noises on a mean of K have 1 / sqrt(K).
    assert abs(float(apart.std()) * CLIENTS**0.5 * 0.1 - 1) < 0.02
    spread = float((noisy - quiet).std()) * CLIENTS * 0.1  # In units of a gradient: divided by K and the learning rate.
    assert abs(spread / 2.0 - 1) < 0.02


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="quantiles of public examples, got 1"):
        Loki()(honest(), Public(PUBLIC.inputs[:1], PUBLIC.labels[:1]), Knowledge(), torch.Generator())
    with pytest.raises(InputError, match="sends each client another model"):
        summed(Loki(bins=4), pictures(1, CLIENTS, BATCH), Stations(server=(ClipWhole(norm=1.0),)))
