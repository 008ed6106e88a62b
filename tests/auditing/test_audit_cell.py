"""The audit against the ledger: two ways to the same noise multiplier, for the whole catalog and other defenses."""

import dataclasses
from dataclasses import dataclass

import pytest

from leakbench.auditing.cell import audit_cell
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.cell import hand_out
from leakbench.core.recipe import names
from leakbench.core.types import Clock, Generators, Signal
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.privacy.accountants import pld
from leakbench.privacy.mechanism import Mechanism

DELTA = 1e-5

# One of each kind; `pytest -m long` audits the others.
FIRST = (
    "none",
    "fed_cdp",
    "fed_cdp_valid",
    "fed_cdp_layers_valid",
    "fed_cdp_as_released",
    "fed_alpha_cdp",
    "fed_alpha_cdp_linear_valid",
    "fed_sdp_server",
    "fed_sdp_client",
    "fed_sdp_client_valid",
    "fed_sdp_as_released",
    "geyer",
    "geyer_valid",
    "dssgd_noise",
)


def cell(**asked: object) -> Cell:
    return resolve_cell(Request(**asked), None)  # type: ignore[arg-type]


def with_defense(**fields: object) -> Cell:
    plain = cell()
    own = Defense(title="mine", cite="me", unit="example", **fields)  # type: ignore[arg-type]
    return dataclasses.replace(plain, defense=own)


WHOLE_CATALOG = [n if n in FIRST else pytest.param(n, marks=pytest.mark.long) for n in names("defenses")]


AT_LEAST = (
    *("adaclip", "adaclip_as_released", "adaclip_client", "nbafl", "priority_public_valid", "priority_sensitivity"),
    *("quantile", "quantile_valid", "quantile_client", "quantile_client_valid"),
)
"""For these the ledger ignores noise that it cannot prove to add up, or uses the worst state of a memory."""


IN_MEMORY = ("priority_sensitivity", "quantile", "quantile_client")
"""Their guarantee breaks from one use to the next, which a single release does not show."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE_CATALOG)
def test_measured_and_accounted_multipliers_agree(name: str) -> None:
    """The ledger's multiplier from the parts' declared facts equals that of their code within 1 %, or a guarantee is missing."""
    some = cell(defense=name)
    accounted = cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)
    found = audit_cell(some, DELTA, 100)
    if accounted.valid is None:
        assert found.verdict == "no guarantee"
        assert found.reason.startswith(accounted.reason.removeprefix("none: "))
        shown = not (found.noise_data_independent and found.clip_holds and found.sigma_measured)
        assert shown or name in IN_MEMORY
    else:
        if (
            found.sigma_measured is None
        ):  # The sent coordinates are random too, and the check cannot distinguish that from noise.
            assert name == "dssgd_valid"
            assert not found.noise_data_independent
        elif name in AT_LEAST:
            assert found.sigma_measured > 1.01 * (accounted.sigma_effective or 0.0)
        else:
            assert found.sigma_measured == pytest.approx(accounted.sigma_effective, rel=0.01)
        # Noise that changes over rounds is audited as one release at its weakest.
        assert (found.valid == accounted.valid) == ("for one release" not in found.reason)
        assert found.verdict in ("holds", "violated")


def test_only_the_own_noise_of_an_example_counts_in_poisson_batches() -> None:
    """The batch size is visible, so only the example's own noise counts: sigma 2, not 2 sqrt(B)."""
    noise = GaussianNoise(multiplier=2.0, to="each")
    found = audit_cell(with_defense(example=(ClipWhole(norm=1.0), noise), batches="poisson"), DELTA, 20_000)
    assert found.sigma_measured == pytest.approx(2.0, rel=0.01)
    assert found.verdict == "holds"
    assert "visible" in found.reason
    assert found.valid is not None
    assert found.lower_bound_family is not None
    assert 0.5 * found.valid < found.lower_bound_family <= found.valid


@dataclass(frozen=True)
class Decaying:
    """Noise with a multiplier of 8 that loses 1 in each round."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add it."""
        return GaussianNoise(multiplier=8.0 - clock.round, to="sum")(signal, clock, rngs)


def test_noise_that_decays_is_audited_where_it_is_least() -> None:
    """Round 4 of 5 has 4: one release of it, compared with the epsilon of one release."""
    found = audit_cell(with_defense(example=(ClipWhole(norm=1.0),), batch=(Decaying(),)), DELTA, 20_000)
    assert found.sigma_measured == pytest.approx(4.0, rel=0.01)
    assert found.valid == pytest.approx(pld((Mechanism(4.0, 1.0, 1),), DELTA), rel=1e-6)
    assert "one release" in found.reason
    assert found.verdict == "holds"


def test_a_clip_after_the_noise_keeps_the_epsilon() -> None:
    """A clip after the noise bends the difference, so the trials run the transforms; the ledger's epsilon holds."""
    steps = (ClipWhole(norm=1.0), GaussianNoise(multiplier=1.0, to="each"), ClipWhole(norm=1.0))
    found = audit_cell(with_defense(example=steps, batches="split"), DELTA, 400)
    assert not found.noise_data_independent
    assert found.valid == pytest.approx(pld((Mechanism(1.0, 1.0, 1),), DELTA), rel=1e-6)
    assert found.verdict == "holds"


def test_a_guarantee_that_the_code_breaks_is_violated() -> None:
    """A part that declares more noise than it adds: the ledger believes it, the audit finds it."""
    lying = with_defense(example=(ClipWhole(norm=1.0),), batch=(Overstated(),), batches="split")
    found = audit_cell(lying, DELTA, 20_000)
    assert found.sigma_measured == pytest.approx(0.5, rel=0.01)
    assert found.verdict == "violated"
    assert found.valid is not None
    assert found.lower_bound > found.valid


@dataclass(frozen=True)
class Overstated:
    """Declares 10 and adds 0.5."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise, declare another."""
        after = GaussianNoise(multiplier=0.5, to="sum")(signal, clock, rngs)
        said = dataclasses.replace(after.facts[-1], std=10.0)
        return dataclasses.replace(after, facts=(*after.facts[:-1], said))


def test_an_audit_without_a_round_has_no_epsilon() -> None:
    """Without a release, an epsilon does not exist; the check of the noise is still reported."""
    found = audit_cell(cell(defense="fed_cdp_valid", train_rounds=0), DELTA, 100)
    assert found.verdict == "no guarantee"
    assert found.reason.startswith("no round was trained")
    assert found.sigma_measured == pytest.approx(6.0, rel=0.01)


def test_the_same_seed_gives_the_same_audit() -> None:
    """All randomness comes from the seed."""
    first, again, other = (audit_cell(cell(defense="fed_cdp_valid", seed=s), DELTA, 1000) for s in (0, 0, 1))
    assert first == again
    assert first != other
