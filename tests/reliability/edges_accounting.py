"""Epsilons and their bounds at extreme sigma, q, delta and steps: known values, ordered upper bounds, and no hang."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from leakbench.core.errors import InputError
from leakbench.privacy.accountants import ACCOUNTANTS, best
from leakbench.privacy.bounds import gaussian_robustness, reconstruction_robustness
from leakbench.privacy.compositions import COMPOSITIONS
from leakbench.privacy.mechanism import Mechanism
from tests.reliability.tally import Tally

__all__ = ["try_accounting"]

DELTA = 1e-5
KAPPAS = (0.0, 0.001, 0.5, 1.0)
SLOWEST = 60.0
"""Seconds that one number may take on a busy machine."""


def try_accounting(tally: Tally, full: bool) -> None:
    """Try the grid; if not `full`, only the cases with a closed form."""
    _closed_forms(tally)
    _refusals(tally)
    slowest = 0.0
    for sigma in (1e-6, 1e-3, 0.01, 0.1, 1.0, 1e3, 1e9) if full else ():
        for rate in (1e-9, 1e-5, 0.01, 1 - 1e-16, 1.0):
            for steps in (1, 10_000):
                for sampling in ("poisson", "fixed", "visible"):
                    began = time.monotonic()
                    with tally.case(f"accounting: sigma {sigma:g}, q {rate:g}, {steps} steps, {sampling}"):
                        _bounds(Mechanism(sigma, rate, steps, sampling))  # type: ignore[arg-type]
                        if time.monotonic() - began > SLOWEST:
                            raise AssertionError(f"took {time.monotonic() - began:.0f} s")
                    slowest = max(slowest, time.monotonic() - began)
    if full:
        tally.figures.append(f"slowest epsilon with its bound {slowest:.0f} s")


def _bounds(one: Mechanism) -> None:
    """Raise if an epsilon is not a number >= 0, or if a bound on attacks is below the success without any release."""
    epsilon, name = best((one,), DELTA)
    if not epsilon >= 0 or name not in ACCOUNTANTS:
        raise AssertionError(f"epsilon {epsilon} by {name}")
    if one.noise_multiplier >= 1e9 and epsilon > 1e-3:
        raise AssertionError(f"epsilon {epsilon} behind noise of {one.noise_multiplier:g}")
    if one.sampling == "poisson":
        for printed in ("moments_2017", *(n for n in COMPOSITIONS if n in ACCOUNTANTS)):
            if not ACCOUNTANTS[printed]((one,), DELTA) >= 0:
                raise AssertionError(f"{printed} is {ACCOUNTANTS[printed]((one,), DELTA)}")
    try:
        gammas = reconstruction_robustness(KAPPAS, (one,))
    except (
        ArithmeticError,
        MemoryError,
        ValueError,
    ):  # As documented; tables then print the reason instead of a bound.
        if one.noise_multiplier >= 1:
            raise
        return
    whole = gaussian_robustness(KAPPAS, math.sqrt(one.steps) / one.noise_multiplier)
    if not (gammas >= KAPPAS).all() or not (gammas <= 1).all():
        raise AssertionError(f"bounds {gammas.tolist()}")
    if not (gammas <= np.maximum(whole, 1.3 * np.asarray(KAPPAS)) + 2e-3).all():
        raise AssertionError(f"bounds {gammas.tolist()}, above those without sampling, {whole.tolist()}")


def _closed_forms(tally: Tally) -> None:
    for name, accountant in ACCOUNTANTS.items():
        for said, mechanisms, stated in (
            ("no mechanism", (), 0.0),
            ("no step", (Mechanism(1.0, 0.5, 0),), 0.0),
            ("no step of no noise", (Mechanism(0.0, 0.5, 0),), 0.0),
            ("q = 0", (Mechanism(0.0, 0.0, 9),), 0.0),
            ("infinite noise", (Mechanism(math.inf, 1.0, 9),), 0.0),
            ("no noise", (Mechanism(0.0, 1e-9, 1),), math.inf),
            ("less noise than any is counted for", (Mechanism(1e-7, 0.5, 1),), math.inf),
            ("no noise together with idle mechanisms", (Mechanism(0.0, 0.0, 9), Mechanism(0.0, 0.5, 1)), math.inf),
        ):
            with tally.case(f"accounting: {name}, {said}"):
                found = (
                    accountant(mechanisms, DELTA) if mechanisms or name in ("rdp", "pld", "moments_2017") else stated
                )
                if found != stated:
                    raise AssertionError(f"epsilon {found}, expected {stated}")
        for delta in (1e-300, 1e-16, 1 - 1e-16):
            with tally.case(f"accounting: {name}, delta {delta!r}"):
                found = accountant((Mechanism(2.0, 1.0, 1),), delta)
                beyond = (
                    name == "pld" and delta < 1e-14
                )  # Less than the truncated part of its losses: `best` then uses `rdp`.
                if (
                    not found >= 0
                    or (found == math.inf) != beyond
                    or best((Mechanism(2.0, 1.0, 1),), delta)[0] == math.inf
                ):
                    raise AssertionError(f"epsilon {found}")
    for kappa, stated in ((0.0, 0.0), (1.0, 1.0)):
        with tally.case(f"accounting: gamma({kappa})"):
            for sigma in (1.0, 1e9):
                if reconstruction_robustness(kappa, (Mechanism(sigma, 1.0, 1),)) != stated:
                    raise AssertionError(f"at sigma {sigma}")


def _refusals(tally: Tally) -> None:
    one = (Mechanism(1.0, 0.5, 1),)
    for name, accountant in ACCOUNTANTS.items():
        for delta in (0.0, 1.0, -1e-5, math.nan, math.inf):
            _refused(tally, f"{name}, delta {delta}", "delta", lambda a=accountant, d=delta: a(one, d))
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("noise_multiplier", {"noise_multiplier": math.nan}),
        ("noise_multiplier", {"noise_multiplier": -1.0}),
        ("sampling_rate", {"sampling_rate": math.nan}),
        ("sampling_rate", {"sampling_rate": 1 + 1e-15}),
        ("steps", {"steps": -1}),
    )
    for field, given in wrong:
        fields = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "steps": 1, **given}
        _refused(tally, f"a mechanism of {given}", field, lambda f=fields: Mechanism(**f))
    for kappa in (math.nan, -0.1, 1.1, math.inf):
        _refused(tally, f"kappa {kappa}", "kappa", lambda k=kappa: reconstruction_robustness(k, one))


def _refused(tally: Tally, said: str, field: str, attempt: Any) -> None:
    with tally.case(f"accounting: {said}"):
        try:
            found = attempt()
        except InputError as error:
            if not str(error).startswith(f"{field}: got") or "\n" in str(error):
                raise AssertionError(str(error)) from None
            return
        raise AssertionError(f"{found}, expected a refusal")
