"""A member that is not finite, or too long for single precision, is bounded as every other one is.

The parts are those of the slot, so that a new part is checked without a change here (its numbers are in `FORMS`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Fact, Local, Network, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.recipe import TRANSFORM
from leakbench.defense.transform import STATIONS, Transform, apply
from leakbench.models import build, parameters
from leakbench.privacy.calibration import calibrated
from tests.probes import facts_of
from tests.reliability.edges_mechanisms import BEFORE, FORMS

SHAPE, CLASSES = (1, 2, 2), 3
LANES, MEMBERS = 2, 3
CLOCK = Clock(0, 0, 1, 1, cohort=LANES, clients=LANES, examples_per_client=MEMBERS)
VALUES = (math.inf, -math.inf, math.nan, 3e38, -3e38, 1e30, 1e20, 1e-20, 1e-30, 1e-40, 1.5e-45)
NETWORK = build("mlp_sigmoid", SHAPE, CLASSES, torch.Generator().manual_seed(0))
SENT = Network(NETWORK, parameters(NETWORK))


def chain(name: str, form: dict[str, Any]) -> tuple[Transform, ...]:
    """Return a part after the parts that it needs."""
    parts = (*BEFORE.get(name, ()), {name: form})
    return tuple(construct(TRANSFORM.parts[n], fields) for part in parts for n, fields in part.items())


def signal(station: str) -> Signal:
    """Return plain gradients of several lanes, as they arrive at a station."""
    members = MEMBERS if station in ("example", "server") else 1
    rng = torch.Generator().manual_seed(1)
    grads = {n: torch.randn(LANES, members, *p.shape, generator=rng) for n, p in SENT.parameters.items()}
    local = Local(SENT, torch.rand(LANES, MEMBERS, *SHAPE, generator=rng), torch.eye(CLASSES).expand(LANES, -1, -1))
    return Signal(grads, local=None if station == "server" else local, kind="example" if members > 1 else "update")


def bound_of(facts: tuple[Fact, ...]) -> float:
    """Return the bound that the ledger reads in the facts: that of the last clip."""
    return next((fact.norm for fact in reversed(facts) if fact.kind == "clip"), math.inf)


def stating() -> list[tuple[str, dict[str, Any], str]]:
    """Return (part, its numbers, station) for every part of the slot that states a bound there."""
    assert set(FORMS) == set(TRANSFORM.parts), "a new part needs its numbers in FORMS"
    found = []
    for name, forms in FORMS.items():
        for form in forms:
            for station in ("example", "client", "server"):
                part = construct(TRANSFORM.parts[name], form)
                if station not in getattr(part, "stations", STATIONS):
                    continue
                try:
                    facts = apply(chain(name, form), signal(station), CLOCK, None).facts
                except InputError:
                    continue
                scaled = name in (
                    "clip_median",
                    "clip_inverted",
                    "l2_max",
                )  # Bounds from the data, which the ledger refuses.
                if bound_of(facts) < math.inf or scaled:
                    found.append((name, form, station))
    return found


STATING = stating()


def test_the_parts_that_state_a_bound_are_found() -> None:
    assert {"clip_whole", "clip_layers", "sign", "adaclip", "nbafl_uplink", "integer_shares"} <= {s[0] for s in STATING}


def replaced(plain: Signal, where: tuple[int, int], value: float, place: int | None) -> Signal:
    """Return the signal with `value` in one coordinate of one member, or in all of them without a place."""
    grads = {n: g.clone() for n, g in plain.grads.items()}
    for g in grads.values():
        size = g[where].numel()
        if place is None:
            g[where] = value
        elif 0 <= place < size:
            g[where].view(-1)[place] = value
        place = None if place is None else place - size
        if place is not None and place < 0:
            break
    return dataclasses.replace(plain, grads=grads)


def norms(grads: dict[str, Tensor]) -> Tensor:
    """Return (lanes, members), in double precision."""
    return torch.stack([g.double().flatten(2).square().sum(2) for g in grads.values()]).sum(0).sqrt()


def in_bounded_coordinates(name: str, after: Signal) -> dict[str, Tensor]:
    """Return what the part bounds: the gradients, AdaClip's scaled ones, or NbAFL's weights."""
    if name.startswith("adaclip"):  # m is 0 and s the same in all coordinates at the first use.
        size, first = sum(p.numel() for p in SENT.parameters.values()), (1e-5 * 1e-3) ** 0.5
        return {n: g / (first * size**0.5) for n, g in after.grads.items()}
    if name in (
        "nbafl_uplink",
        "priority_noise",
    ):  # Two uploads, each at most C long, differ by 2 C, which the fact states.
        return {n: 2 * (g + SENT.parameters[n]) for n, g in after.grads.items()}
    return after.grads


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(STATING),
    st.sampled_from(VALUES),
    st.none() | st.integers(0, sum(p.numel() for p in SENT.parameters.values()) - 1),
    st.integers(0, LANES - 1),
    st.integers(0, MEMBERS - 1),
)
def test_every_stated_bound_holds_for_every_member(
    stated: tuple[str, dict[str, Any], str], value: float, place: int | None, lane: int, member: int
) -> None:
    """A member with one or only bad coordinates is bounded, and all other members are what they are next to a zero member."""
    name, form, station = stated
    plain = signal(station)
    where = (lane, min(member, plain.members - 1))
    bad, zero = replaced(plain, where, value, place), replaced(plain, where, 0.0, None)
    after = apply(chain(name, form), bad, CLOCK, None)
    lengths, bound = norms(in_bounded_coordinates(name, after)), bound_of(after.facts)
    assert lengths.isfinite().all() and (lengths <= bound * (1 + 1e-5)).all()
    noisy, without = (
        apply(chain(name, form), s, CLOCK, generators(0, "noise", [(i,) for i in range(LANES)])) for s in (bad, zero)
    )
    rest = [*noisy.grads.values(), *noisy.memory.values()]
    assert all(bool(t.isfinite().all()) for t in rest if float(form.get("multiplier", 1.0)) < 1e9)
    if not math.isfinite(value):
        assert all(torch.equal(g, without.grads[n]) for n, g in noisy.grads.items())
        assert sum(int(n.sum()) for n in noisy.zeroed.values()) == 1
    if name in (
        "clip_median",
        "clip_inverted",
        "integer_shares",
    ):  # One member moves the median; rounding draws by itself.
        return
    others = torch.ones(plain.lanes, plain.members, dtype=torch.bool)
    others[where] = False
    assert all(torch.equal(g[others], without.grads[n][others]) for n, g in noisy.grads.items())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_padding_does_not_count_as_a_member(value: float) -> None:
    plain = signal("example")
    weights = torch.ones(LANES, MEMBERS)
    weights[:, 2] = 0
    assert plain.local is not None
    padded = dataclasses.replace(plain, local=dataclasses.replace(plain.local, weights=weights))
    for member, count in ((0, 1), (2, 0)):
        after = ClipWhole(norm=1.0)(replaced(padded, (1, member), value, 3), CLOCK, None)
        assert after.zeroed["example"].tolist() == [0, count]


def test_members_that_two_parts_find_are_added() -> None:
    first, second = torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]])
    signal = Signal({"w": torch.ones(1, 3, 2)}).without(first).without(second)
    assert [n.tolist() for n in signal.zeroed.values()] == [[3]]


@dataclasses.dataclass(frozen=True)
class Loose:
    """A clip of a user's own that forgets members that are not finite."""

    careful: bool
    knows_nan: bool = False
    norm: float = 1.0

    def __call__(self, signal: Signal, clock: Clock, rngs: Any) -> Signal:
        signal = signal.finite() if self.careful else signal
        if self.knows_nan:
            signal = dataclasses.replace(signal, grads={n: g.where(~g.isnan(), 0) for n, g in signal.grads.items()})
        long = sum(g.flatten(2).square().sum(2) for g in signal.grads.values())
        factor = (1 / torch.as_tensor(long).sqrt().clamp_min(1))[:, :, None]
        grads = {n: (g.flatten(2) * factor).reshape(g.shape) for n, g in signal.grads.items()}
        return signal.replace(grads, torch.ones(signal.lanes), Fact("clip", norm=self.norm))


@pytest.mark.parametrize(("unit", "station"), [("example", "example"), ("client", "client"), ("client", "server")])
def test_the_ledger_notices_a_clip_that_a_member_passes(unit: Any, station: str) -> None:
    federation = Federation(rounds=1, batch=2, examples_per_client=4, clients=3, clients_per_round=2)
    for careful, knows_nan in ((True, False), (False, False), (False, True)):
        steps = {station: (Loose(careful, knows_nan), GaussianNoise(multiplier=1.0, to="each"))}
        facts = facts_of(Defense(title="t", cite="c", unit=unit, **steps), federation)  # type: ignore[arg-type]
        noises, reason = calibrated(facts, unit, 2)
        assert bool(noises) == careful
        assert careful or "Loose lets a member that is not finite pass its clip" in reason


def test_a_part_that_states_no_bound_may_pass_members_that_are_not_finite_to_a_clip() -> None:
    federation = Federation(rounds=1, batch=2, examples_per_client=4, clients=3, clients_per_round=2)
    steps = (Loose(False, norm=math.inf), ClipWhole(norm=1.0), GaussianNoise(multiplier=1.0, to="each"))
    noises, reason = calibrated(
        facts_of(Defense(title="t", cite="c", unit="client", client=steps), federation), "client", 2
    )
    assert noises and not reason


def additive() -> list[tuple[str, dict[str, Any], str]]:
    """Return (part, its numbers, station) of all parts that state nothing but noise."""
    found = []
    for name, form in ((name, form) for name, forms in FORMS.items() for form in forms[:1]):
        for station in ("example", "client", "server"):
            steps = chain(name, form)
            if station not in getattr(steps[-1], "stations", STATIONS):
                continue
            try:
                before = apply(steps[:-1], signal(station), CLOCK, None)
                after = steps[-1](before, CLOCK, None)
            except InputError:
                continue
            if {fact.kind for fact in after.facts[len(before.facts) :]} <= {"noise", "uncalibrated_noise"}:
                found.append((name, form, station))
    return found


@pytest.mark.parametrize(("name", "form", "station"), additive())
def test_a_part_that_states_nothing_but_noise_only_adds_it(name: str, form: dict[str, Any], station: str) -> None:
    """A part that also clips, rounds or saturates would take noise from the members, which the ledger counts."""
    steps = chain(name, form)
    small = apply(steps[:-1], signal(station), CLOCK, None)
    # Noise may have made the members longer than their bound.
    large = dataclasses.replace(small, grads={n: 100 * g for n, g in small.grads.items()})
    one, other = (steps[-1](s, CLOCK, generators(0, "noise", [(i,) for i in range(LANES)])) for s in (small, large))
    for n, g in one.grads.items():
        torch.testing.assert_close(other.grads[n] - g, 99 * small.grads[n], rtol=1e-3, atol=1e-3)
