"""The result of an audit: its numbers, and whether they contradict the stated epsilons."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from leakbench.auditing.bounds import CONFIDENCE, both_ways, direct_epsilon, gaussian_shift
from leakbench.auditing.coupled import Coupled
from leakbench.auditing.family import family_epsilon
from leakbench.auditing.release import Release
from leakbench.auditing.trials import Scores, affordable, drawn, executed
from leakbench.core.progress import Progress, unreported
from leakbench.core.words import epsilon_text
from leakbench.privacy.mechanism import Mechanism, Mixture

__all__ = ["Audit", "Stated", "judge", "lower_bounds"]

DRAWN = 1_000_000
"""Default number of trials of each world in closed form."""


@dataclass(frozen=True)
class Stated:
    """The stated epsilons of the audited mechanism, for the same steps and delta as the trials.

    Args:
        claimed: Claimed epsilon; None without a claim.
        valid: Valid epsilon; None for the reason in `missing`.
        scope: Description of the releases.
    """

    claimed: float | None
    valid: float | None
    missing: str
    scope: str


@dataclass(frozen=True)
class Audit:
    """The result of an audit. The fields are the keys of its JSON and contain neither NaN nor infinity.

    The epsilons and bounds are all of the whole run, or all of one release; `reason` says which.

    Args:
        noise_data_independent: Whether the noise is the same on neighbouring inputs.
        sigma_measured: Standard deviation of the noise divided by the largest distance that one unit moves a release; None if it
            cannot be measured.
        sigma_recipe: Noise multiplier of the claim.
        clip_holds: Whether this distance is bounded.
        lower_bound: Audited lower bound of the epsilon at `confidence`, without assumptions.
        lower_bound_family: Audited lower bound for Gaussian noise of unknown standard deviation; None for other noise. Both bounds
            hold together at `confidence`.
        claimed: Claimed epsilon.
        valid: Valid epsilon.
        trials: Number of trials with the canary, and of trials without it.
    """

    noise_data_independent: bool
    sigma_measured: float | None
    sigma_recipe: float | None
    clip_holds: bool
    lower_bound: float
    lower_bound_family: float | None
    claimed: float | None
    valid: float | None
    confidence: float
    trials: int
    verdict: Literal["holds", "violated", "no guarantee"]
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return the text that `leakbench audit` prints."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        yield f"verdict: {self.verdict}: {self.reason}"
        yield f"  noise    {'independent of the data' if self.noise_data_independent else 'depends on the data'}"
        yield f"  sigma    measured {_shown(self.sigma_measured)}, stated {_shown(self.sigma_recipe)}"
        yield f"  clip     {'holds' if self.clip_holds else 'does not hold'}"
        yield f"  epsilon  claimed {_shown(self.claimed)}, valid {_shown(self.valid)}"
        family = f"{_shown(self.lower_bound_family)} in the Gaussian family"
        yield f"  audited  at least {_shown(self.lower_bound)} without assumptions, {family}"
        yield f"           at {self.confidence:.0%} confidence, 2 x {self.trials} trials"


def _shown(value: float | None) -> str:
    return epsilon_text(value, ".4g")


def lower_bounds(scores: Scores, delta: float, family: Mechanism | Mixture | None) -> tuple[float, float | None]:
    """Return the lower bound without assumptions, and the one in a family (None without a family)."""
    direct = both_ways(scores.present, scores.absent, lambda rates: direct_epsilon(rates, delta))
    lower = max(float(direct_epsilon(rates, delta)) for rates in direct)
    if family is None:
        return lower, None
    return lower, family_epsilon(both_ways(scores.present, scores.absent, gaussian_shift), family, delta)


def judge(
    release: Release,
    found: Coupled,
    mechanism: Mechanism | Mixture,
    stated: Stated,
    sigma_recipe: float | None,
    trials: int | None,
    delta: float,
    rng: torch.Generator,
    progress: Progress = unreported,
    scores: Scores | None = None,
) -> Audit:
    """Run the trials and compare their lower bounds with the stated epsilons.

    Args:
        found: Result of the check; Gaussian noise allows trials in closed form.
        mechanism: Sampling, rate and steps of the stated epsilons.
        sigma_recipe: Noise multiplier of the claim.
        trials: Number of trials of each world; None for the default.
        scores: Scores of trials of `mechanism` that were made before; None to make them.
    """
    noisy = found.sigma is not None and 0 < found.sigma < math.inf
    if scores is not None:
        count, family = len(scores.present), mechanism
    elif found.sigma is not None and found.gaussian and release.seeded:
        # Slightly more noise than measured keeps the result a lower bound.
        sigma = min(found.sigma * (1 + 3 * found.error), 1e9)
        family = mechanism.with_noise(sigma)
        count = trials or DRAWN
        scores = drawn(family, count, rng)
    else:
        count = trials or affordable(found.telling)
        family = mechanism.with_noise(1.0)
        scores = executed(release, found.telling, count, progress)
    lower, within = lower_bounds(scores, delta, family if noisy and found.gaussian else None)
    audited, how = lower, "audited"
    if within is not None and within > lower:
        audited, how = within, "audited in the Gaussian family"
    verdict, reason = _verdict(audited, how, stated)
    return Audit(
        noise_data_independent=found.independent,
        sigma_measured=found.sigma if found.sigma != math.inf else None,
        sigma_recipe=sigma_recipe,
        clip_holds=found.clip_holds,
        lower_bound=lower,
        lower_bound_family=within,
        claimed=stated.claimed,
        valid=stated.valid,
        confidence=CONFIDENCE,
        trials=count,
        verdict=verdict,
        reason="; ".join(filter(None, [reason, _findings(found), stated.scope])),
    )


def _verdict(audited: float, how: str, stated: Stated) -> tuple[Literal["holds", "violated", "no guarantee"], str]:
    over = stated.claimed is not None and audited > stated.claimed
    claim = f"the claimed {_shown(stated.claimed)}" if stated.claimed is not None else ""
    compared = f"{_shown(audited)} {how}, {'more' if over else 'not more'} than {claim}" if claim else ""
    if stated.valid is None:
        return "no guarantee", "; ".join(filter(None, [stated.missing.removeprefix("none: "), compared]))
    if audited > stated.valid:
        return "violated", f"{_shown(audited)} {how}, more than the valid {_shown(stated.valid)}"
    if over:
        return "violated", f"{compared}; the valid {_shown(stated.valid)} is not violated"
    return "holds", f"{_shown(audited)} {how}, not more than the valid {_shown(stated.valid)}"


def _findings(found: Coupled) -> str:
    findings = []
    if not bool((found.noise.std > 0).any()):
        findings.append("no noise was found")
    elif found.noise.missing:
        findings.append("some tensors have no noise")
    elif not found.independent:
        findings.append("what the same noise adds differs between neighbouring inputs")
    elif not found.noise.gaussian:
        findings.append("the noise is not independent Gaussian noise")
    if not found.clip_holds:
        findings.append("no clip: a larger canary moves the release farther without end")
    return "; ".join(findings)
