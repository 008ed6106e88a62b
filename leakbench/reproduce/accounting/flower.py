"""What Flower's programs give as epsilon, and what a tight accountant gives for the same steps.

The programs are the script of its documentation and its accountant since 1.35.

The script gives Rényi divergences of sampling without replacement, a bound for who replaces one client, the noise multiplier z
= noise / clip. To replace a client moves the clipped sum by up to two clips, so that z / 2 were right there. The accountant feeds
z alike where clients are drawn without replacement; with Poisson samples and add or remove one client, one clip is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leakbench.errors import InputError, nearest
from leakbench.privacy.accountants import pld, rdp
from leakbench.privacy.claim import FlowerClaim
from leakbench.privacy.mechanism import Mechanism
from leakbench.reproduce.accounting.readings import Row, row_of, schedule_of
from leakbench.reproduce.accounting.table import Claim

__all__ = ["flower_epsilons"]

PROGRAMS = ("script", "without replacement", "poisson")
"""The documentation's script; the accountant by how it is told that clients are sampled."""


def flower_epsilons(claim: Claim) -> Iterator[Row]:
    """Yield the tight epsilon of each adjacency; a number is reproduced where it is at least that epsilon by privacy losses.

    given: `program`, one of `PROGRAMS`; `noise_multiplier` z; `delta`; `federation`; `within`, how near the formula is to what
    the program gave, which is the claim.  Raises InputError for another program, or where the formula is not that program's.
    """
    given = claim.given
    if given["program"] not in PROGRAMS:
        raise InputError(f"program: got {given['program']!r}{nearest(given['program'], PROGRAMS)}")
    formula = by_program(given)
    if abs(formula - claim.claimed) > given["within"]:
        raise InputError(f"{claim.name}: printed: got {claim.claimed:g}, its formula gives {formula:.6g}")
    schedule, z = schedule_of(given), given["noise_multiplier"]
    q, rounds = schedule.client_rate, schedule.rounds
    # Where all others send -C and the one +C or -C, the pair of Poisson sampling at z / 2 is attained: no bound is lower.
    replaced = ("one client replaced", Mechanism(z / 2, q, rounds))
    zeroed = ("one client's update made zero", Mechanism(z, q, rounds, "fixed"))
    added = ("one client added or removed", Mechanism(z, q, rounds))
    for name, one in (added,) if given["program"] == "poisson" else (replaced, zeroed):
        tight, losses = rdp((one,), given["delta"]), pld((one,), given["delta"])
        why = f"the epsilon of {name} is {losses:.4g}"
        yield row_of(name, one in (replaced[1], added[1]), formula, (tight, losses), claim.claimed >= losses, why)


def by_program(given: Mapping[str, Any]) -> float:
    """Return the epsilon as the program computes it."""
    schedule, z, delta = schedule_of(given), given["noise_multiplier"], given["delta"]
    if given["program"] == "script":
        return float(FlowerClaim(noise_multiplier=z, delta=delta)(schedule).epsilon or 0.0)
    import dp_accounting  # noqa: PLC0415  (takes a second)
    from absl import logging  # noqa: PLC0415
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    if given["program"] == "poisson":
        sampled, said = RdpAccountant(), logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)  # It warns of each order whose series it breaks off.
        try:
            mechanism = Mechanism(z, schedule.client_rate, schedule.rounds)
            return float(sampled.compose(mechanism.event()).get_epsilon(delta))
        finally:
            logging.set_verbosity(said)
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    sizes, gaussian = (schedule.clients, schedule.clients_per_round), dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(*sizes, gaussian), schedule.rounds)
    return float(accountant.get_epsilon(delta))
