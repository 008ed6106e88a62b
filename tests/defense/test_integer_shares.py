"""Integer messages of clients and their modular sum, as parts of a defense."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import leakbench
from leakbench.cell import Request, probe_of
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Signal
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.correlated import CorrelatedNoise
from leakbench.defense.discrete import IntegerShares, least_bits, random_signs, rotate_back
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.sensitivity import L2Max
from leakbench.defense.share import ShareOfNoise
from leakbench.experiment.leak_noise import leak_facts, noise_std
from leakbench.privacy.accountants import best
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.epsilon import Epsilon
from leakbench.privacy.mechanism import Mechanism

CLIP = 2.0
NOISES = ("discrete_gaussian", "skellam")


def clock(cohort: int, round_number: int = 0) -> Clock:
    return Clock(round_number, 0, 3, 1, cohort=cohort, clients=2 * cohort)


def updates(cohort: int, size: int = 30, scale: float = 1.0) -> Signal:
    rows = scale * torch.randn(cohort, 1, size, generator=generators(0, "updates", [(0,)])[0])
    return Signal({"w": rows[..., :24].reshape(cohort, 1, 4, 6), "b": rows[..., 24:]})


def flat(signal: Signal) -> Tensor:
    return torch.cat([g.flatten(2) for g in signal.grads.values()], -1)


def sent(part: IntegerShares, signal: Signal, now: Clock, seed: int = 0) -> Signal:
    rngs = generators(seed, "noise", [(lane,) for lane in range(signal.lanes)])
    return part(ClipWhole(norm=CLIP)(signal, now, rngs), now, rngs)


def read(part: IntegerShares, messages: Signal, now: Clock) -> Tensor:
    """The server's sum (d,)."""
    after = part.at_server(messages.gathered(messages.lanes), now, generators(0, "server", [(0,)]))
    assert after.members == messages.lanes
    return flat(after)[0].sum(0)


@pytest.mark.parametrize("noise", NOISES)
def test_without_noise_the_server_reads_the_sum_of_the_clipped_updates(noise: Any) -> None:
    part, now, signal = IntegerShares(multiplier=0.0, noise=noise, bits=20), clock(5), updates(5, scale=3.0)
    exact = flat(ClipWhole(norm=CLIP)(signal, now, None)).sum((0, 1))
    messages = sent(part, signal, now)
    step = part.rounding(ClipWhole(norm=CLIP)(signal, now, None), now).step
    assert (read(part, messages, now) - exact).norm() <= step * math.sqrt(32 * 5)
    assert not torch.allclose(read(part, messages, now), exact, atol=step / 1000, rtol=0)  # It is on the grid.


@pytest.mark.parametrize("bits", [12, 18])
@pytest.mark.parametrize("noise", NOISES)
def test_each_message_has_one_share_of_the_noise_and_the_sum_has_all(noise: Any, bits: int) -> None:
    part, cohort = IntegerShares(multiplier=3.0, noise=noise, bits=bits), 4
    now, still = clock(cohort), Signal({"w": torch.zeros(cohort, 1, 4096)})
    messages = sent(part, still, now)
    share = messages.facts[-1].std
    assert share == pytest.approx(3.0 * CLIP / math.sqrt(cohort))
    near = pytest.approx(share, rel=0.05)
    assert [float(row.std()) for row in messages.grads["w"]] == [near] * cohort
    assert float(read(part, messages, now).std()) == pytest.approx(3.0 * CLIP, rel=0.05)


def test_the_sum_is_read_modulo_a_power_of_two() -> None:
    part, now = IntegerShares(multiplier=0.0, bits=8), clock(2)
    step = part.rounding(ClipWhole(norm=CLIP)(updates(2), now, None), now).step
    many = Signal({n: g[:1].repeat(60, *[1] * (g.dim() - 1)) for n, g in updates(2).grads.items()})
    exact = flat(ClipWhole(norm=CLIP)(many, now, None)).sum((0, 1))
    found = read(part, sent(part, many, now), now)
    # Sixty equal updates in a modulus for two wrap around, so that no coordinate of the rotated sum is above half of it.
    assert found.norm() <= 2**7 * step * math.sqrt(32) < exact.norm()


def test_a_diverged_update_is_sent_as_zero() -> None:
    part, now, signal, zero = IntegerShares(multiplier=1.0), clock(3), updates(3), updates(3)
    signal.grads["b"][1, 0, 2] = torch.nan
    for g in zero.grads.values():
        g[1] = 0
    messages = sent(part, signal, now)
    assert torch.equal(flat(messages), flat(sent(part, zero, now)))
    assert messages.zeroed["update"].tolist() == [0, 1, 0]
    assert read(part, messages, now).isfinite().all()


def test_the_deterministic_part_of_a_message_is_the_clipped_update() -> None:
    part, now = IntegerShares(multiplier=1.0), clock(3)
    clipped = ClipWhole(norm=CLIP)(updates(3), now, None)
    assert torch.equal(flat(part(clipped, now, None)), flat(clipped))
    assert torch.equal(flat(part.at_server(clipped.gathered(3), now, None)), flat(clipped.gathered(3)))


def test_the_rotation_is_another_one_in_each_round_and_the_server_knows_it() -> None:
    part, signal = IntegerShares(multiplier=0.0, bits=10), updates(3)
    seen = [sent(part, signal, clock(3, r)) for r in (0, 1)]
    assert not torch.equal(flat(seen[0]), flat(seen[1]))
    exact = flat(ClipWhole(norm=CLIP)(signal, clock(3), None)).sum((0, 1))
    for r, messages in enumerate(seen):
        assert (read(part, messages, clock(3, r)) - exact).norm() < 0.5
    assert (read(part, seen[0], clock(3, 1)) - exact).norm() > 0.01  # Read with another rotation, it is off the grid.


def test_bits_that_cannot_hold_the_sum_and_clips_that_differ_are_refused() -> None:
    with pytest.raises(InputError, match=r"integer_shares: bits: got 2, expected at least 6 for 100 clients"):
        sent(IntegerShares(multiplier=1.0, bits=2), updates(100), clock(100))
    with pytest.raises(InputError, match=r"no clip before it"):
        IntegerShares(multiplier=1.0)(updates(2), clock(2), None)
    several = dataclasses.replace(updates(2), sensitivity=torch.tensor([1.0, 2.0]))
    with pytest.raises(InputError, match=r"differs between clients"):
        IntegerShares(multiplier=1.0)(several, clock(2), None)


def test_the_step_is_the_least_one_for_its_bits() -> None:
    part, now = IntegerShares(multiplier=1.0, bits=12), clock(10)
    rounding = part.rounding(ClipWhole(norm=CLIP)(updates(10), now, None), now)
    variance = (CLIP / rounding.step) ** 2 / 10
    assert least_bits(rounding, variance, 10) == 12
    assert least_bits(dataclasses.replace(rounding, step=rounding.step / 2), 4 * variance, 10) == 13


def recipe(**fields: Any) -> Defense:
    plain = {"title": "t", "cite": "c", "unit": "client", "aggregation": "secure"}
    client = (ClipWhole(norm=CLIP), IntegerShares(multiplier=3.0))
    return Defense(**plain | {"client": client} | fields)


def test_messages_are_read_under_secure_aggregation_alone_and_by_nothing_before() -> None:
    with pytest.raises(ValueError, match=r"aggregation: the messages of integer_shares .* expected secure"):
        recipe(aggregation="plain")
    late = (*recipe().client, GaussianNoise(multiplier=1.0, to="each"))
    with pytest.raises(ValueError, match=r"client: gaussian_noise comes after integer_shares"):
        recipe(client=late)
    with pytest.raises(ValueError, match=r"client: got integer_shares and integer_shares"):
        recipe(client=(*recipe().client, IntegerShares(multiplier=1.0)))
    assert [type(t).__name__ for t in recipe().stations.server] == ["ModularSum"]


@pytest.mark.parametrize("noise", NOISES)
def test_the_epsilon_counts_one_share_at_the_client_and_all_in_the_sum(noise: Any) -> None:
    cell = plan(Request(dataset="digits", defense=f"distributed_{noise}"), None)
    network = probe_of(cell.defense, cell.data, cell.settings).network
    signal = Signal({n: torch.ones(1, 1, *p.shape) for n, p in network.parameters.items()})
    now = cell.defense.clock(cell.settings.federation, 0)
    for transform in cell.defense.client:
        signal = transform(signal, now, None)
    integer, rounds = signal.facts[-1].integer, cell.settings.federation.rounds
    assert integer is not None
    found = leakbench.epsilon(dataset="digits", defense=f"distributed_{noise}").epsilon
    for point, shares in (("type-1", 1), ("type-0", now.cohort)):
        expected = best((DiscreteMechanism(integer, shares, 1.0, rounds),), found.delta)[0]
        assert found.by_tap[point].without_draw == pytest.approx(expected, rel=1e-9)
    # Rounding makes an update longer, so that the epsilon is above that of the same Gaussian noise.
    gaussian = best((Mechanism(6.0, 1.0, rounds),), found.delta)[0]
    assert found.without_draw is not None
    assert gaussian < found.without_draw < 1.3 * gaussian


def test_noise_after_the_modular_sum_is_not_calibrated_to_the_clip() -> None:
    """Updates along one coordinate of the rotated sum: a third one makes it wrap around, and it moves by more than the clip."""
    silent, now = IntegerShares(multiplier=0.0, bits=6, noise="skellam"), clock(5)
    along = rotate_back(torch.eye(64, dtype=torch.float64)[0], random_signs(64, generator(0, "rotation", 0)), 64)
    several = [
        Signal({"w": CLIP * along.float().expand(5, 1, 64) * (torch.arange(5) < n).reshape(5, 1, 1)}) for n in (2, 3)
    ]
    two, three = (read(silent, sent(silent, signal, now), now) for signal in several)
    moved = (three - two).norm()
    assert moved > 1.5 * CLIP
    for noise in (GaussianNoise(multiplier=6.0, to="sum"), CorrelatedNoise(multiplier=6.0)):
        some = recipe(client=(ClipWhole(norm=CLIP), silent), server=(noise,))
        assert accounted(some).valid is None
        assert accounted(some).by_tap["type-0"].valid is None
    # Noise at the server adds nothing to the epsilon of the clients' noise, and takes nothing from it.
    loud = recipe(server=(GaussianNoise(multiplier=60.0, to="sum"),))
    assert accounted(loud).valid == accounted(recipe()).valid


def test_a_scale_that_follows_the_data_has_no_epsilon_behind_integers_either() -> None:
    some = recipe(client=(ClipWhole(norm=CLIP), L2Max(), IntegerShares(multiplier=6.0)))
    found = accounted(some)
    assert found.valid is None
    assert "data-dependent sensitivity" in found.reason


def accounted(defense: Defense, **federation: Any) -> Epsilon:
    cell = plan(Request(dataset="digits", **federation), None)
    return cell_epsilon(defense, cell.data, cell.settings, hand_out(cell), None, 1e-5)


Law: TypeAlias = tuple[int, NDArray[np.float64]]
"""(first point of a grid, probabilities of it and the next ones)."""


def clipped_noise(mean: float, std: float, step: float, largest: float) -> Law:
    """Return the law of min(mean + N(0, std^2), largest) on a grid."""
    reach = int(12 * std / step)
    points = np.arange(-reach, reach + 1) * step
    places = np.rint(np.minimum(points + mean, largest) / step).astype(int)
    law = np.zeros(places[-1] - places[0] + 1)
    np.add.at(law, places - places[0], np.exp(-((points / std) ** 2) / 2))
    return int(places[0]), law / law.sum()


def added(one: Law, other: Law) -> Law:
    """Return the law of a sum, with the relative precision of every probability, which a Fourier transform loses."""
    law = np.convolve(one[1], other[1])
    kept = np.nonzero(law > 1e-60)[0]
    return one[0] + other[0] + int(kept[0]), law[kept[0] : kept[-1] + 1]


def epsilon_of_one_coordinate(clients: int, std: float, largest: float, delta: float) -> float:
    """Return the epsilon of the sum of noisy updates after a clip at `largest`, where all others are 1, and one is 1 or 0."""
    own = std / math.sqrt(clients)
    step = 1 / round(5 / own)
    alike = clipped_noise(1.0, own, step, largest)
    others, doubled, left = None, alike, clients - 1
    while left:
        others = (doubled if others is None else added(others, doubled)) if left % 2 else others
        doubled, left = added(doubled, doubled), left // 2
    assert others is not None
    laws = added(others, alike), added(others, clipped_noise(0.0, own, step, largest))
    first = min(law[0] for law in laws)
    size = max(law[0] + len(law[1]) for law in laws) - first
    p, q = (np.pad(law[1], (law[0] - first, size - (law[0] - first) - len(law[1]))) for law in laws)
    low, high = 0.0, 500.0
    for _ in range(50):
        middle = (low + high) / 2
        exceeds = max((a - math.exp(middle) * b).clip(0).sum() for a, b in ((p, q), (q, p))) > delta
        low, high = (middle, high) if exceeds else (low, middle)
    return high


@pytest.mark.parametrize("clients", [16, 1000])
def test_the_clip_of_rounding_takes_the_noise_of_others_from_an_update_with_noise(clients: int) -> None:
    """In one coordinate, the clip removes half of the noise of each update at the bound: the sum shows more than the noise allows.

    Without the clip, the exact epsilon is that of the noise of all clients together.
    """
    noise, rounded = ShareOfNoise(multiplier=0.5), IntegerShares(multiplier=1e-3)
    exact = [epsilon_of_one_coordinate(clients, 0.5, largest, 1e-5) for largest in (math.inf, 1.0)]
    together = best((Mechanism(0.5, 1.0, 1),), 1e-5)[0]
    assert exact[0] == pytest.approx(together, rel=0.01)
    assert exact[1] > 1.5 * together
    clip = ClipWhole(norm=1.0)
    federation: dict[str, Any] = {"clients": clients, "clients_per_round": clients, "train_rounds": 1}
    once, twice = (
        accounted(recipe(client=client), **federation).valid
        for client in ((clip, noise, rounded), (clip, noise, clip, rounded))
    )
    assert once is not None
    assert once == twice
    assert once >= exact[1]


def test_the_released_sum_has_no_larger_epsilon_than_the_sum_that_shows_who_took_part() -> None:
    found = leakbench.epsilon("distributed_discrete_gaussian", dataset="mnist", noise_factor=0.1).epsilon
    seen = found.by_tap["type-0"].valid
    assert found.valid is not None
    assert seen is not None
    assert found.valid <= seen * (1 + 1e-9)
    assert found.without_draw is not None
    assert found.valid <= found.without_draw


def test_an_attacker_that_knows_the_defense_knows_the_noise_at_both_points() -> None:
    cell = plan(Request(dataset="digits", defense="distributed_skellam"), None)
    network = probe_of(cell.defense, cell.data, cell.settings).network
    facts, cohort = leak_facts(cell, network, 0), cell.settings.federation.clients_per_round
    share = 6.0 * 4.0 / math.sqrt(cohort)
    assert noise_std(facts, "type-1", 5, 1, 1, 0.1) == pytest.approx(share / 0.1)
    assert noise_std(facts, "type-0", 5, cohort, 1, 0.1) == pytest.approx(share / math.sqrt(cohort) / 0.1)


def test_the_epsilon_says_where_rounding_makes_updates_longer() -> None:
    some = recipe(client=(ClipWhole(norm=CLIP), IntegerShares(multiplier=3.0, bits=6)))
    assert "6 bits are few for 10 clients and this noise: rounding makes an update" in accounted(some).reason
    assert "bits" not in accounted(recipe()).reason
