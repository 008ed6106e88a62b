"""The adjacency of a valid epsilon is the one that the clip supports, checked on the results of the transforms themselves."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from scipy import optimize
from scipy.stats import norm

from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan
from leakbench.cell.cell import hand_out
from leakbench.core.recipe import names, resolve
from leakbench.core.types import Fact, Local, Network, Parameters, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.nbafl import clip_weights
from leakbench.defense.transform import apply
from leakbench.privacy.accountants import pld
from leakbench.privacy.calibration import calibrated
from leakbench.privacy.ledger import Phase, Schedule
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.observers import observations
from leakbench.privacy.of_clients import TWO_ADJACENCIES
from tests.privacy.test_privacy_epsilon import valid
from tests.probes import probe

CLIENTS = Federation(rounds=5, batch=2, examples_per_client=40, clients=10, clients_per_round=5)

OF_WEIGHTS = {"client": (Fact("clip", norm=8.0, rescales=True, replaced=True), Fact("noise", std=24.0, each=True))}
AT_SERVER = {"client": OF_WEIGHTS["client"][:1], "server": (Fact("noise", std=24.0),)}


def length(grads: Parameters) -> float:
    return float(torch.cat([g.flatten() for g in grads.values()]).double().norm())


def updates(seed: int, scale: float, network: Network) -> Parameters:
    rng = torch.Generator().manual_seed(seed)
    return {n: scale * torch.randn(1, 1, *p.shape, generator=rng) for n, p in network.parameters.items()}


def sent(factor: float) -> tuple[Network, Local]:
    """Return a network whose weights are `factor` times the initial ones, with the data of a client."""
    network = probe(CLIENTS).network
    network = dataclasses.replace(network, parameters={n: factor * p for n, p in network.parameters.items()})
    return network, Local(network, torch.full((1, 2, 1, 28, 28), 0.5), torch.full((1, 2, 10), 0.1))


@pytest.mark.parametrize("factor", [0.1, 100.0])
def test_clipped_weights_of_replaced_data_are_near_each_other_but_may_be_far_from_no_update(factor: float) -> None:
    bound, results = 3.0, []
    network, local = sent(factor)
    for seed, scale in [(0, 0.0), (1, 0.01), (2, 1.0), (3, 1e3)]:
        grads = updates(seed, scale, network)
        results += [clip_weights(Signal({n: s * g for n, g in grads.items()}, local=local), bound) for s in (1, -1)]
    for one in results:
        for other in results:
            assert length({n: g - other.grads[n] for n, g in one.grads.items()}) <= 2 * bound * (1 + 1e-5)
        (fact,) = one.facts
        assert (fact.norm, fact.replaced) == (2 * bound, True)
    farthest = max(length(result.grads) for result in results)
    assert (farthest > 2 * bound) == (factor == 100.0)


def test_every_clip_of_the_catalog_bounds_what_its_fact_says() -> None:
    """An update is at most `norm` long, or with `replaced` at most `norm` away from another one, whatever was sent before."""
    checked, (network, local) = set(), sent(100.0)
    for name in names("defenses"):
        _, defense = resolve("defenses", Defense, name)
        # AdaClip's norm is in other coordinates, and the ranking of features takes another network.
        if name.startswith(("adaclip", "priority")):
            continue
        clock = dataclasses.replace(defense.clock(CLIENTS, 0), local_iterations=CLIENTS.local_iterations)
        results = []
        for seed, scale in [(0, 0.0), (1, 1e-3), (2, 1e3)]:
            signal = Signal(updates(seed, scale, network), local=local)
            for transform in defense.client:
                before, signal = signal, apply((transform,), signal, clock, None)
                clips = [f for f in signal.facts[len(before.facts) :] if f.kind == "clip" and f.norm < math.inf]
                results += [(type(transform), fact, signal.grads) for fact in clips]
        for kind, fact, grads in results:
            checked.add((kind.__name__, fact.replaced))
            others = [other for k, _, other in results if k == kind]
            apart = max(length({n: g - other[n] for n, g in grads.items()}) for other in others)
            assert (apart if fact.replaced else length(grads)) <= fact.norm * (1 + 1e-4), name
    assert {("NbaflUplink", True), ("ClipWhole", False), ("ClipLayers", False), ("Sign", False)} <= checked


@pytest.mark.parametrize("changes", [{}, {"cohorts": "poisson"}, {"aggregation": "secure", "server": ()}])
@pytest.mark.parametrize("name", ["nbafl", "priority_public_valid", "fed_sdp_client_valid"])
def test_epsilons_of_clipped_weights_are_for_replaced_data(name: str, changes: dict[str, Any]) -> None:
    cell = plan(Request(defense=name, dataset="digits"))
    defense = dataclasses.replace(cell.defense, **changes)
    found = cell_epsilon(defense, cell.data, cell.settings, hand_out(cell), None)
    for reason in [found.reason, *(found.by_tap[tap].reason for tap in ("type-1", "type-0"))]:
        assert ("replacement adjacency: the clip bounds the weights" in reason) == (name != "fed_sdp_client_valid")
        assert ("zero-out" in reason or "add-or-remove" in reason) == (name == "fed_sdp_client_valid")


def test_a_poisson_draw_does_not_hide_a_client_whose_update_has_no_bound() -> None:
    """For T = 1: delta = q (Phi(s / 2 - e / s) - exp(e) Phi(-s / 2 - e / s)), s = 8 / 24, which is the pair of a visible draw."""
    hidden = valid({"server": (Fact("clip", norm=8.0), Fact("noise", std=24.0))}, "client", rounds=1)
    found = valid(AT_SERVER, "client", rounds=1)
    q, s = 0.1, 8 / 24

    def excess(e: float) -> float:
        return float(q * (norm.cdf(s / 2 - e / s) - math.exp(e) * norm.cdf(-s / 2 - e / s)) - 1e-5)

    assert found.valid == pytest.approx(optimize.brentq(excess, 0, 20), rel=1e-3)
    assert hidden.valid is not None and found.valid is not None and hidden.valid < found.valid
    assert "the observer sees it; replacement adjacency" in found.reason
    # In a cohort of a fixed size, another client is in the place of one that is not drawn, and its weights are as near.
    fixed = valid(AT_SERVER, "client", rounds=1, client_sampling="fixed")
    assert fixed.valid == pytest.approx(pld((Mechanism(3.0, 0.1, 1, "fixed"),), 1e-5), rel=1e-9)
    assert "hidden from the observer; replacement adjacency" in fixed.reason


def test_correlated_noise_on_clipped_weights_is_for_replaced_data() -> None:
    facts = {"server": (OF_WEIGHTS["client"][0], Fact("noise", std=5.0, training=24.0))}
    found = valid(facts, "client", client_sampling="fixed", rounds=4)
    assert found.sigma_effective == 3.0
    assert "replacement adjacency" in found.reason and "zero-out" not in found.reason + found.by_tap["type-0"].reason


def test_noise_counts_under_one_adjacency_only() -> None:
    """A weaker noise whose clip bounds updates counts instead of a stronger one for replaced data."""
    both = (*OF_WEIGHTS["client"], Fact("clip", norm=4.0), Fact("noise", std=8.0, each=True))
    noises, why = calibrated({"client": both}, "client", 5)
    assert not why
    assert [(n.bound, n.std, n.replaced) for n in noises] == [(4.0, 8.0, False)]
    # A later clip that does not only project may separate what was near; so it counts by itself.
    wider = (OF_WEIGHTS["client"][0], Fact("clip", norm=40.0), Fact("noise", std=8.0, each=True))
    ((noise,), _) = calibrated({"client": wider}, "client", 5)
    assert (noise.bound, noise.replaced) == (40.0, False)
    pruned = (OF_WEIGHTS["client"][0], Fact("other"), Fact("noise", std=8.0, each=True))
    assert calibrated({"client": pruned}, "client", 5)[0] == ()
    at_example = calibrated({"example": OF_WEIGHTS["client"]}, "example", 5)
    assert at_example[0] == () and "whole client only" in at_example[1]


def test_rounds_under_two_adjacencies_have_no_epsilon() -> None:
    """A bound for removed data is half of that for replaced data, and a bound for replaced data is none for removed data."""
    schedule = Schedule(10, 5, 2, 1, 2, 40, 1.0, 1, "fixed", "poisson", 3)
    facts = (AT_SERVER, {"server": (Fact("clip", norm=8.0), Fact("noise", std=24.0))})
    for order in (facts, facts[::-1]):
        found = observations([Phase(f, 1, 1, True, 5) for f in order], "client", schedule)
        assert set(found.values()) == {f"none: {TWO_ADJACENCIES}"}
