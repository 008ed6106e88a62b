"""The released sum of a round moves by at most its stated bound when one unit's data become as bad as they can be.

The noise has the same seed, so that the difference of two sums is what the unit contributes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, names, resolve
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.partition import Iid
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, FactProbe, phases
from leakbench.defense.adaclip import AdaClip, AdaClipReleased
from leakbench.defense.recipe import TRANSFORM
from leakbench.defense.transform import STATIONS
from leakbench.federated.simulate import train
from leakbench.models import build, parameters
from leakbench.privacy.calibration import CHANGES, calibrated
from tests.reliability.edges_mechanisms import BEFORE, FORMS

VALUES = (math.nan, math.inf, -math.inf, 3e38, 1e30, 1e20, -1e5)
CLIENTS, EXAMPLES, BATCH = 4, 8, 4
STARTS = (AdaClip, AdaClipReleased)


def federation(unit: str) -> Federation:
    """Return a federation in which all clients take part; for one example, of one local iteration, whose sum is released."""
    steps = 2 if unit == "client" else 1
    sizes = {"clients": CLIENTS, "clients_per_round": CLIENTS, "examples_per_client": EXAMPLES, "batch": BATCH}
    return Federation(rounds=1, local_iterations=steps, learning_rate=0.1, **sizes)


@cache
def data() -> Dataset:
    whole = load_dataset("digits")[2]
    inputs, targets = whole.train_inputs[: CLIENTS * EXAMPLES], whole.train_targets[: CLIENTS * EXAMPLES]
    few = {"test_inputs": whole.test_inputs[:4], "test_targets": whole.test_targets[:4]}
    return dataclasses.replace(whole, train_inputs=inputs, train_targets=targets, **few)


def network() -> Network:
    model = build("mlp_sigmoid", data().shape, data().classes, generator(0, "model"))
    return Network(model, parameters(model))


def bound_of(defense: Defense) -> float | None:
    """Return the bound of one unit's contribution to the sum, as the ledger uses it; None if it does not state one there.

    What follows a noise, such as pruning, may enlarge the difference of two noisy sums, but does not change the guarantee.
    """
    whole = federation(defense.unit)
    facts = phases(defense, FactProbe(network(), data().shape, data().classes, whole))[0].facts
    noises, _ = calibrated(facts, defense.unit, BATCH)
    own = {"example": STATIONS, "client": STATIONS[2:]}[defense.unit]
    kinds = [fact.kind for station in own for fact in facts.get(station, ()) if not fact.keeps_noise]
    noisy = [place for place, kind in enumerate(kinds) if kind == "noise"]
    if not noises or any(kind in CHANGES for kind in kinds[noisy[0] :]):
        return None
    rounded = [n.integer.l2 * n.integer.step for n in noises if n.integer is not None]
    return max(noises[0].bound, *rounded) if rounded else noises[0].bound


def released(defense: Defense, rows: Tensor, value: float | None) -> tuple[dict[str, Tensor], Tensor]:
    """Return the sum of a round's updates with its noise, and the uses of each example; `value` replaces some rows."""
    plain, whole, net = data(), federation(defense.unit), network()
    inputs = plain.train_inputs.clone()
    if value is not None:
        inputs[rows] = value
    handed = Iid()(plain.train_targets, CLIENTS, EXAMPLES, generator(0, "partition"))
    now = next(train(net, dataclasses.replace(plain, train_inputs=inputs), handed, whole, defense, 0))
    moved = {n: CLIENTS * (p.double() - net.parameters[n].double()) for n, p in now.parameters.items()}
    return moved, now.counts.uses


def check(defense: Defense, value: float, bound: float) -> None:
    """Assert that one unit with bad data moves the sum by at most the bound, and an example that is not drawn by nothing."""
    handed = Iid()(data().train_targets, CLIENTS, EXAMPLES, generator(0, "partition"))
    rows = handed.of(torch.tensor([1]))[0]
    most = bound * (1.0 if defense.unit == "client" else federation("example").learning_rate / BATCH)
    if defense.unit == "example":
        uses = released(defense, rows, None)[1][rows]
        unused = rows[uses == 0][:1]
        one, other = (released(defense, unused, v)[0] for v in (None, value))
        assert all(torch.equal(g, other[n]) for n, g in one.items())
        rows = rows[uses > 0][:1]
    # A unit that is not finite counts as zero, as if it were not there; the other values differ from this by their contribution.
    zero, bad = (released(defense, rows, v)[0] for v in (math.nan, value))
    moved = float(torch.stack([(bad[n] - g).square().sum() for n, g in zero.items()]).sum().sqrt())
    noise = max(float(g.abs().max()) for g in zero.values())
    size = sum(g.numel() for g in zero.values())
    assert moved <= most * (1 + 1e-4) + 1e-6 * noise * size**0.5


def recipes() -> Iterator[tuple[str, Defense, float]]:
    """Yield the catalog's defenses that state a bound of the released sum."""
    for name in names("defenses"):
        defense = resolve("defenses", Defense, name)[1]
        bound = None if defense.network or adaptive(defense) else bound_of(defense)
        if bound is not None:
            yield name, defense, bound


def adaptive(defense: Defense) -> bool:
    """Return whether the bound is one of other coordinates than those of the sum."""
    return any(isinstance(t, STARTS) for t in defense.stations.transforms)


QUICK = ("fed_sdp_valid", "fed_sdp_client_valid", "fed_cdp_valid", "fed_sdp_client_layers_valid", "flower_fixed_server")


@pytest.mark.parametrize("name", QUICK)
def test_one_unit_moves_the_sum_of_a_recipe_by_at_most_its_bound(name: str) -> None:
    defense = resolve("defenses", Defense, name)[1]
    bound = bound_of(defense)
    assert bound is not None
    for value in (math.nan, math.inf, 1e30):
        check(defense, value, bound)


@pytest.mark.slow
def test_one_unit_moves_the_sum_of_every_recipe_by_at_most_its_bound() -> None:
    found = list(recipes())
    assert len(found) > 20
    for name, defense, bound in found:
        for value in (math.nan, 3e38, -1e5):
            try:
                check(defense, value, bound)
            except AssertionError as error:
                raise AssertionError(f"{name} with {value}") from error


PARTS = [(name, form) for name, forms in FORMS.items() for form in forms if name not in ("conceal", "censor")]
NUMBERS = [(n, f) for n, f in PARTS if not any(v in (1e9, 1e30, 1e-15, 1e-30) for v in f.values())]


@st.composite
def chains(draw: st.DrawFn) -> tuple[Any, dict[str, tuple[Any, ...]]]:
    """Draw a unit and up to three parts at each of its stations, the last one a noise with a clip somewhere before it."""
    unit = draw(st.sampled_from(["example", "client"]))
    clips = [p for p in NUMBERS if p[0].startswith(("clip", "sign", "percentile_filter"))]
    noise = st.sampled_from([("gaussian_noise", {"multiplier": 1.0, "to": to}) for to in ("each", "sum")])
    middle = draw(st.lists(st.sampled_from(NUMBERS), max_size=2))
    places = [draw(st.sampled_from(clips)), *middle, draw(noise)]
    stations = draw(st.lists(st.integers(0, 1), min_size=len(places), max_size=len(places)).map(sorted))
    own = STATIONS[:2] if unit == "example" else STATIONS[2:]
    found: dict[str, tuple[Any, ...]] = {name: () for name in own}
    for (name, form), place in zip(places, stations, strict=True):
        parts = (*BEFORE.get(name, ()), {name: form})
        found[own[place]] += tuple(construct(TRANSFORM.parts[n], f) for part in parts for n, f in part.items())
    return unit, found


def check_chain(chain: tuple[Any, dict[str, tuple[Any, ...]]], value: float) -> None:
    unit, stations = chain
    batches = "poisson" if unit == "example" else "fixed"
    secure = "secure" if any(hasattr(t, "at_server") for t in stations.get("client", ())) else "plain"
    try:
        defense = Defense(title="t", cite="c", unit=unit, batches=batches, aggregation=secure, **stations)  # type: ignore[arg-type]
        bound = None if adaptive(defense) else bound_of(defense)
    except (InputError, ValueError):
        bound = None
    assume(bound is not None)
    check(defense, value, bound)  # type: ignore[arg-type]


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chains(), st.sampled_from(VALUES))
def test_one_unit_moves_the_sum_of_a_random_chain_by_at_most_its_bound(chain: Any, value: float) -> None:
    check_chain(chain, value)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chains(), st.sampled_from(VALUES))
def test_one_unit_moves_the_sum_of_many_random_chains_by_at_most_its_bound(chain: Any, value: float) -> None:
    check_chain(chain, value)
