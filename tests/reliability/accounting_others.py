"""Agreement with other accountants on a grid: dp-accounting with events built here, and Opacus's two if it is installed."""

from __future__ import annotations

import importlib.util
import itertools
import math
import warnings

import numpy as np

from leakbench.privacy.accountants import ORDERS as OUR_ORDERS
from leakbench.privacy.accountants import ORDERS_2017, moments_2017, pld, rdp
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.renyi import divergences, epsilon_at
from tests.reliability.tally import Tally

__all__ = ["check_dp_accounting", "check_opacus"]

DELTAS = (1e-5, 1e-3)

GRID = tuple(itertools.product((0.01, 0.1, 0.5, 1.0), (0.7, 1.0, 2.0, 6.0), (1, 30, 300)))
"""q, sigma, steps."""

ORDERS = tuple(range(2, 64))

MOST = 20.0
"""Largest epsilon at which losses are compared: above, dp-accounting's usual grid takes minutes and Opacus gives no number."""

PRV_ERROR = 0.01
"""Epsilon error requested from Opacus's PRV accountant; it fails if the grid for this error is too large."""


def check_dp_accounting(tally: Tally, thinned: int) -> None:
    """Compare our accountants with those of dp-accounting on its own events; thinned: every n-th cell, at one delta."""
    from dp_accounting import (  # noqa: PLC0415
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SampledWithoutReplacementDpEvent,
    )
    from dp_accounting.pld import PLDAccountant  # noqa: PLC0415
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    apart = {"rdp": 0.0, "pld": 0.0}
    cells, deltas = GRID[::thinned], DELTAS[: 2 if thinned == 1 else 1]
    for q, sigma, steps in cells:
        for delta in deltas:
            large = rdp((Mechanism(sigma, q, steps),), delta) > MOST
            ours = (Mechanism(sigma, q, steps),)
            theirs = PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
            said = f"q={q:g} sigma={sigma:g} steps={steps} delta={delta:g}"
            with np.errstate(all="ignore"):
                expected = RdpAccountant(ORDERS).compose(theirs, steps).get_epsilon(delta)
            found = float(epsilon_at(ORDERS, steps * divergences(ours, ORDERS)[0], delta, "tight"))
            close = math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
            tally.expect(close, f"rdp at the same orders, {said}: {found}, dp-accounting {expected}")
            apart["rdp"] = max(apart["rdp"], abs(found - expected) / max(expected, 0.1))
            with np.errstate(all="ignore"):
                expected = RdpAccountant(OUR_ORDERS).compose(theirs, steps).get_epsilon(delta)
            found = rdp(ours, delta)
            # Its series at orders that are not integers ends early, which makes them larger.
            tally.expect(found <= expected * (1 + 1e-9) + 1e-9, f"rdp, {said}: {found}, dp-accounting {expected}")
            with np.errstate(all="ignore"):
                expected = (
                    RdpAccountant([a for a in OUR_ORDERS if a == int(a)]).compose(theirs, steps).get_epsilon(delta)
                )
            tally.expect(found <= expected + 1e-9, f"rdp, {said}: {found}, at integer orders {expected}")
            if not large:
                with np.errstate(all="ignore"):
                    expected = PLDAccountant().compose(theirs, steps).get_epsilon(delta)
                found = pld(ours, delta)
                # The grid of losses is coarser above 5.
                close = math.isclose(found, expected, rel_tol=2e-3, abs_tol=1e-3)
                tally.expect(close, f"pld, {said}: {found}, dp-accounting {expected}")
                apart["pld"] = max(apart["pld"], abs(found - expected) / max(expected, 0.1))
            if q < 1 and steps <= 30 and not large:
                replaced = RdpAccountant(ORDERS, neighboring_relation=NeighboringRelation.REPLACE_ONE)
                # Replacing one unit moves a sum by twice a clip.
                fixed = SampledWithoutReplacementDpEvent(1000, round(1000 * q), GaussianDpEvent(sigma / 2))
                most = replaced.compose(fixed, steps).get_epsilon(delta)
                found = pld((Mechanism(sigma, q, steps, "fixed"),), delta)
                tally.expect(
                    found <= most + 1e-3, f"fixed q={q:g} sigma={sigma:g}: {found}, replacing one costs {most}"
                )
    shown = ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
    tally.figures.append(f"dp-accounting: {len(deltas) * len(cells)} cells, at most apart {shown} (relative)")


def check_opacus(tally: Tally, thinned: int) -> None:
    """Compare with Opacus's Rényi accountant at its own orders, and with its PRV accountant within the requested error."""
    if importlib.util.find_spec("opacus") is None:
        tally.figures.append("Opacus: not installed here, not tried")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant  # noqa: PLC0415
    cells, untried, apart = GRID[::thinned], 0, {"rdp": 0.0, "prv": 0.0}
    for q, sigma, steps in cells:
        mechanism = Mechanism(sigma, q, steps)
        total = steps * divergences([mechanism], ORDERS)[0]
        for delta in DELTAS:
            theirs = RDPAccountant()
            theirs.history = [(sigma, q, steps)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = theirs.get_epsilon(delta, alphas=list(ORDERS))
            found = float(epsilon_at(ORDERS, total, delta, "tight"))
            # Ours is 0 if a divergence is so small that no epsilon is needed.
            close = math.isclose(found, max(expected, 0.0), rel_tol=1e-6, abs_tol=1e-9) or found == 0 < expected
            tally.expect(close, f"divergences q={q:g} sigma={sigma:g} steps={steps}: {found}, Opacus {expected}")
            apart["rdp"] = max(apart["rdp"], abs(found - expected) / expected if found else 0.0)
            tally.expect(
                rdp((mechanism,), delta) <= expected + 1e-9, f"rdp q={q:g} sigma={sigma:g}: more than Opacus's"
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                least = theirs.get_epsilon(delta, alphas=list(ORDERS_2017))
            old = moments_2017((mechanism,), delta)
            tally.expect(
                old >= least - 1e-9, f"moments q={q:g} sigma={sigma:g}: {old} under the tight conversion's {least}"
            )
            found = pld((mechanism,), delta) if expected <= MOST else math.inf
            if found > MOST:
                untried += 1
                continue
            prv = PRVAccountant()
            prv.history = [(sigma, q, steps)]
            with tally.case(f"pld q={q:g} sigma={sigma:g} steps={steps} delta={delta:g}"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                other = float(prv.get_epsilon(delta, eps_error=PRV_ERROR))
                apart["prv"] = max(apart["prv"], abs(found - other))
                assert abs(found - other) <= PRV_ERROR + 2e-3 * max(1.0, found), f"{found}, PRV {other}"
    tally.figures.append(
        f"Opacus: {2 * len(cells)} cells, Rényi {apart['rdp']:.1e} apart (relative), PRV {apart['prv']:.4f} (it was asked for "
        f"{PRV_ERROR:g}; {untried} cells of epsilon above {MOST:g} left out)"
    )
