"""Servers that choose a first layer's values, and the content of rows of such a layer."""

import dataclasses

import pytest
import torch
from torch import Tensor

from leakbench.attack.methods.rows import Rows
from leakbench.attack.servers.first_layer import QuantileRows, TrapWeights
from leakbench.attack.servers.server import Server
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import build, one_hot, parameters

SHAPE, CLASSES = (1, 10, 10), 4


def pictures(*many: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(*many, *SHAPE, generator=rng) * (torch.rand(*many, *SHAPE, generator=rng) > 0.5)


PUBLIC = Public(pictures(500, seed=7), torch.zeros(500, dtype=torch.int64))


def honest() -> Network:
    model = build("mlp_1000", SHAPE, CLASSES, generator(0, "m"))
    return Network(model, parameters(model))


def sent(server: Server, examples: int = 8) -> Network:
    return server(honest(), PUBLIC, Knowledge(examples=examples), generator(0, "server"))[0]


def view(network: Network, many: int = 8, victims: int = 4) -> tuple[View, Tensor]:
    x = pictures(victims, 1, 1, many, seed=many)
    y = one_hot(torch.arange(many).expand(victims, 1, 1, -1) % CLASSES, CLASSES)
    update = leak("type-1", network, x, y, 0.1, Stations(), Clock(0, 0, 1, 1), None)
    return View("type-1", network, update, many, SHAPE, CLASSES, 0.1), x[:, 0, 0]


def right(found: Tensor, truth: Tensor) -> Tensor:
    """Return (V, M): which reconstructions equal a truth to 1e-3."""
    apart = (found[:, :, None] - truth[:, None]).flatten(3).square().mean(3).sqrt()
    return apart.nan_to_num(nan=torch.inf).amin(2) < 1e-3


def test_rows_activated_by_one_example_equal_it_and_agreeing_rows_come_first():
    """By the rows that the truth activates: examples alone in several rows are reconstructed, once each, before any mixture."""
    network = sent(QuantileRows())
    shown, x = view(network)
    found = Rows()((shown,), generators(0, "v", [(v,) for v in range(4)]))
    ratio = right(found.inputs, x)
    lit = x.flatten(2) @ network.parameters["1.weight"].T + network.parameters["1.bias"] > 0
    alone = (lit & (lit.sum(1, keepdim=True) == 1)).sum(2)  # (V, M): rows with one example.
    assert (ratio.sum(1) >= (alone >= 2).sum(1)).all()
    for v in range(4):
        sure = found.certainty[v] >= 2
        assert ratio[v][sure].all()
        assert len({tuple(answer.flatten()[:5].tolist()) for answer in found.inputs[v][sure]}) == int(sure.sum())
    assert ratio.double().mean() > 0.9


def test_a_quantile_activates_one_in_n():
    network = sent(QuantileRows(), examples=20)
    lit = PUBLIC.inputs.flatten(1) @ network.parameters["1.weight"].T + network.parameters["1.bias"] > 0
    assert float(lit.float().mean()) == pytest.approx(0.05, abs=0.005)
    assert QuantileRows().threat == TrapWeights().threat == "malicious parameters"


def test_trap_weights_are_half_negative_and_s_times_as_large():
    weight = sent(TrapWeights(s=0.7, deviation=0.5)).parameters["1.weight"]
    assert ((weight > 0).sum(1) == 50).all()
    down, up = weight[weight < 0].abs().mean(), weight[weight > 0].mean()
    assert float(up / down) == pytest.approx(0.7, abs=0.02)
    assert float(down) == pytest.approx(0.5 * (2 / torch.pi) ** 0.5, abs=0.01)
    assert not sent(TrapWeights()).parameters["1.bias"].any()


def test_a_malicious_layer_reads_more_than_an_honest_one():
    rngs = generators(0, "v", [(v,) for v in range(4)])
    shares = []
    for network in (honest(), sent(QuantileRows(), 50)):
        shown, x = view(network, 50)
        shares.append(float(right(Rows()((shown,), rngs).inputs, x).double().mean()))
    assert shares[0] < shares[1] - 0.2


def test_wrong_input_is_refused():
    convolved = build("lenet_cpl", (1, 10, 10), CLASSES, generator(0, "m"))
    network = Network(convolved, parameters(convolved))
    for server, name in ((TrapWeights(), "trap"), (QuantileRows(), "quantile_rows")):
        with pytest.raises(InputError, match=f"{name}: it rewrites a biased linear first layer"):
            server(network, PUBLIC, Knowledge(), generator(0, "s"))
    with pytest.raises(InputError, match="got 1, expected two"):
        QuantileRows()(honest(), Public(PUBLIC.inputs[:1], PUBLIC.labels[:1]), Knowledge(), generator(0, "s"))


def test_a_zero_gradient_has_no_reconstruction():
    shown, _ = view(honest(), 2, 1)
    dark = dataclasses.replace(shown, update={n: torch.zeros_like(u) for n, u in shown.update.items()})
    found = Rows()((dark,), generators(0, "v", [(0,)]))
    assert found.inputs.isnan().all()
    assert (found.certainty == -torch.inf).all()
