"""Flower's strategies without an engine: one client after another, or all by the vectorised trainer.

Leakage points at the server.
"""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'leakbench[flower]'")

from flower_apps import CLASSES, RATE, asked, batches, client, fed_avg, network, trained
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from leakbench.core.errors import InputError
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.share import ShareOfNoise
from leakbench.flower import DefenseMod, InProcessGrid, ProbeStrategy, TapGrid, UpdateTapMod, VectorisedGrid
from leakbench.flower.leaks import read_leaks

CLIENT = Defense(
    title="-", cite="-", unit="client", client=(ClipWhole(norm=0.1), GaussianNoise(multiplier=1.0, to="each"))
)
EXAMPLE = Defense(title="-", cite="-", unit="example", example=(ClipWhole(norm=0.01),))


def plain(clients, rounds):
    """Return the weights of FedAvg in plain PyTorch."""
    state = {n: p.detach().clone() for n, p in network().named_parameters()}
    for number in range(1, rounds + 1):
        each = []
        for one in range(clients):
            model = network()
            model.load_state_dict(state)
            descent = torch.optim.SGD(model.parameters(), lr=RATE)
            for x, y in zip(*batches(one, number), strict=True):
                descent.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                descent.step()
            each.append(model.state_dict())
        state = {n: torch.stack([one[n] for one in each]).mean(0) for n in state}
    return {n: p.numpy() for n, p in state.items()}


def apart(one, other):
    return max(float(np.abs(one[n] - other[n]).max()) for n in one)


def vectorised(clients, recipe="none", **options):
    return VectorisedGrid(network(), batches, RATE, clients, CLASSES, recipe, **options)


def size(leak):
    return float(np.sqrt(sum(((a - leak.sent[n]).astype(np.float64) ** 2).sum() for n, a in leak.arrays.items())))


@pytest.mark.parametrize("make", [lambda n: InProcessGrid(client(), n), vectorised], ids=["in process", "vectorised"])
def test_a_strategy_equals_a_plain_training_loop(make):
    reference = plain(5, 3)
    assert apart(reference, {n: p.detach().numpy() for n, p in network().named_parameters()}) > 0.01
    assert apart(reference, trained(make(5), fed_avg(5), 3)) < 1e-6


def test_both_grids_draw_the_same_noise():
    by_mods = trained(InProcessGrid(client(DefenseMod(CLIENT, seed=3)), 3), fed_avg(3), 2)
    assert apart(by_mods, trained(vectorised(3, CLIENT, seed=3), fed_avg(3), 2)) < 1e-6
    assert apart(by_mods, trained(vectorised(3, CLIENT, seed=4), fed_avg(3), 2)) > 1e-3


def test_a_share_of_noise_is_divided_by_the_clients_of_the_round(tmp_path):
    share = dataclasses.replace(CLIENT, client=(ClipWhole(norm=0.01), ShareOfNoise(multiplier=1.0)))
    trained(TapGrid(vectorised(25, share), tmp_path), fed_avg(25))
    drawn = np.concatenate(
        [(leak.arrays["1.weight"] - leak.sent["1.weight"]).ravel() for leak in read_leaks(tmp_path, "type-0")]
    )
    assert drawn.std() == pytest.approx(0.01 / 5, rel=0.2)  # Including the clipped update itself.


def test_a_leakage_point_uses_the_round_of_the_message_or_counts(tmp_path):
    grid = TapGrid(InProcessGrid(client(), 1), tmp_path)
    for number in (5, 7, None):
        list(grid.send_and_receive([asked(number=number)]))
    assert [leak.round for leak in read_leaks(tmp_path, "type-0")] == [3, 5, 7]


def test_defenses_inside_the_local_steps_run_vectorised(tmp_path):
    trained(TapGrid(vectorised(3, EXAMPLE), tmp_path), fed_avg(3))
    bound = RATE * 2 * 0.01  # Two steps along means of gradients of at most .01.
    assert all(0.1 * bound < size(leak) <= bound * 1.001 for leak in read_leaks(tmp_path, "type-0"))
    trained(TapGrid(vectorised(3), tmp_path), fed_avg(3))
    assert all(size(leak) > 5 * bound for leak in read_leaks(tmp_path, "type-0"))


def test_messages_with_different_arrays_are_trained_separately():
    grid, first = vectorised(2), network().state_dict()
    second = {n: p + 0.1 for n, p in first.items()}
    replies = list(grid.send_and_receive([asked(2, arrays=first), asked(3, arrays=second)]))
    for node, sent, reply in zip((2, 3), (first, second), replies, strict=True):
        [alone] = vectorised(2).send_and_receive([asked(node, arrays=sent)])
        mine, other = reply.content["arrays"], alone.content["arrays"]
        assert all(np.allclose(mine[n].numpy(), other[n].numpy(), atol=1e-7) for n in sent)
        assert reply.metadata.src_node_id == node
        assert reply.content["metrics"]["num-examples"] == 6


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda given: InProcessGrid(client(DefenseMod(CLIENT), given=given), 3), "1 of the updates was"),
        (lambda given: VectorisedGrid(network(), given, RATE, 3, CLASSES, CLIENT), "1 of the updates was"),
        (
            lambda given: VectorisedGrid(network(), given, RATE, 3, CLASSES, EXAMPLE),
            r"\d+ of the example gradients were",
        ),
    ],
)
def test_members_that_are_not_finite_are_counted_in_a_warning(made, what):
    def given(client, number):
        x, y = batches(client, number)
        return x * (np.nan if client == 1 else 1.0), y

    with pytest.warns(UserWarning, match=rf"^round 1: {what} not finite and counted as zero$"):
        trained(made(given), fed_avg(3), 1)


def test_each_client_replies_with_its_own_update():
    both = vectorised(2).send_and_receive([asked(2), asked(3)])
    for node, reply in zip((2, 3), both, strict=True):
        [alone] = vectorised(2).send_and_receive([asked(node)])
        mine, other = (one.content["arrays"]["1.weight"].numpy() for one in (reply, alone))
        assert np.allclose(mine, other, atol=1e-7)
        assert reply.metadata.src_node_id == node


def test_apps_that_cannot_be_vectorised_are_refused():
    with pytest.raises(InputError, match="server station"):
        vectorised(2, "flower_fixed_server")
    with pytest.raises(InputError, match="batch normalisation in train mode"):
        VectorisedGrid(network(batch_norm=True).train(), batches, RATE, 2, CLASSES)
    uneven = VectorisedGrid(network(), lambda c, r: batches(c, r, batch=2 + c), RATE, 2, CLASSES)
    with pytest.raises(InputError, match=r"batches: got the shapes \[\(2, 2, 1, 4, 4\), \(2, 3, 1, 4, 4\)\]"):
        trained(uneven, fed_avg(2))
    other = VectorisedGrid(nn.Sequential(nn.Linear(16, 3)), batches, RATE, 2, CLASSES)
    with pytest.raises(InputError, match=r"model: its parameters \['0.weight', '0.bias'\] are not among"):
        trained(other, fed_avg(2))


def test_other_messages_go_to_the_app():
    app = ClientApp()
    app.evaluate()(lambda message, context: Message(message.content, reply_to=message))
    grid = vectorised(2, client_app=app)
    [reply] = grid.send_and_receive([Message(asked().content, 3, "evaluate")])
    assert reply.metadata.src_node_id == 3


def test_clients_keep_their_state_and_no_record_of_others():
    """A strategy sends one content to all; records that one client writes into it are not visible to the next."""
    app = ClientApp()
    seen = []

    @app.train()
    def train(message, context):
        seen.append((message.content["config"].get("mine"), int(context.state.get("count", {"n": 0})["n"])))
        message.content["config"]["mine"] = 1
        message.content["arrays"].clear()
        context.state["count"] = MetricRecord({"n": seen[-1][1] + 1})
        return Message(message.content, reply_to=message)

    grid = InProcessGrid(app, 2)
    question = asked()
    for node in (2, 3, 2):
        grid.answer(Message(question.content, node, "train"))
    assert seen == [(None, 0), (None, 0), (None, 1)]
    assert list(question.content["config"]) == ["server-round"] and len(question.content["arrays"]) == 4


def test_messages_can_be_pushed_and_pulled(tmp_path):
    grid = TapGrid(InProcessGrid(client(), 2), tmp_path)
    ids = list(grid.push_messages([asked(2), asked(3)]))
    assert [reply.metadata.src_node_id for reply in grid.pull_messages(ids[1:])] == [3]
    assert [reply.metadata.src_node_id for reply in grid.pull_messages(ids)] == [2]
    assert [leak.node for leak in read_leaks(tmp_path, "type-0")] == [2, 3]


def test_an_unknown_node_and_zero_clients_are_refused():
    with pytest.raises(InputError, match="dst_node_id: got 9, expected one of 2 nodes from 2"):
        InProcessGrid(client(), 2).answer(asked(9))
    with pytest.raises(InputError, match="clients: got 0"):
        InProcessGrid(client(), 0)


def test_exceptions_of_a_client_are_raised():
    def broken(client, number):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        InProcessGrid(client(given=broken), 1).answer(asked())


@pytest.mark.parametrize(
    ("wrap", "mods", "arriving_clipped"),
    [
        (lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 0.01, 3), (), False),
        (lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 0.01, 3), (fixedclipping_mod,), True),
        (
            lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(
                inner, 1.0, 3, initial_clipping_norm=0.01, clipped_count_stddev=5.0
            ),
            (),
            False,
        ),
    ],
    ids=["server, fixed", "client, fixed", "server, adaptive"],
)
def test_flower_wrappers_are_observed_at_the_server_and_inside(wrap, mods, arriving_clipped, tmp_path):
    grid = TapGrid(InProcessGrid(client(UpdateTapMod(tmp_path), *mods), 3), tmp_path)
    within = wrap(ProbeStrategy(fed_avg(3), tmp_path, "behind"))
    trained(grid, ProbeStrategy(within, tmp_path, "before"))
    taps = ("type-0", "type-1", "behind", "before")
    arrived, left, behind, before = (read_leaks(tmp_path, tap) for tap in taps)
    assert len(arrived) == len(left) == len(behind) == len(before) == 3
    assert [size(leak) for leak in before] == [size(leak) for leak in arrived]
    for one, other in zip(arrived, sorted(left, key=lambda leak: leak.node), strict=True):
        assert all(a.tobytes() == other.arrays[n].tobytes() for n, a in one.arrays.items())
    assert all((size(leak) < 0.0101) == arriving_clipped for leak in arrived)
    assert all(size(leak) == pytest.approx(0.01, rel=1e-3) for leak in behind)


def test_a_user_probe_is_called_before_replies_are_aggregated():
    told = []
    strategy = ProbeStrategy(fed_avg(2), lambda number, sent, replies: told.append((number, list(sent), len(replies))))
    trained(InProcessGrid(client(), 2), strategy, 2)
    names = [name for name, _ in network().named_parameters()]
    assert told == [(1, names, 2), (2, names, 2)]


def test_a_probe_writes_replies_and_sent_arrays_of_each_round(tmp_path):
    trained(TapGrid(InProcessGrid(client(), 2), tmp_path), ProbeStrategy(fed_avg(2), tmp_path, "before"), 2)
    for number in (1, 2):
        arrived, before = (read_leaks(tmp_path, tap, number) for tap in ("type-0", "before"))
        assert len(arrived) == len(before) == 2
        for one, other in zip(arrived, before, strict=True):
            assert all(a.tobytes() == other.sent[n].tobytes() for n, a in one.sent.items())


def test_an_app_that_waits_for_too_many_clients_is_reported(monkeypatch):
    """FedAvg waits for two clients, and in one process no second one connects."""
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: None)
    state = ArrayRecord(network().state_dict())
    with pytest.raises(InputError, match=r"clients: got 1, fewer than the app waits for"):
        FedAvg().start(InProcessGrid(client(), clients=1), state, num_rounds=1)
