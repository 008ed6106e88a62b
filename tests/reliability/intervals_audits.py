"""Measures how often `leakbench audit` reports a violation for a sound mechanism: Gaussian sums of known epsilon."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta

from leakbench.auditing.bounds import both_ways, gaussian_shift
from leakbench.auditing.cell import audit_cell
from leakbench.auditing.trials import drawn
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.core.rng import generator
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.privacy.claim import NoClaim
from leakbench.privacy.mechanism import Mechanism
from tests.reliability.tally import Tally

__all__ = ["KINDS", "check_audits", "check_limits"]

ALLOWED = 0.05

SIGMAS = (0.5, 10.0)

CLIP = ClipWhole(norm=1.0)


@dataclass(frozen=True)
class Kind:
    """How a mechanism samples: fields of the defense, of the request, where its noise is added; trials: an upper limit."""

    defense: dict[str, Any]
    request: Callable[[np.random.Generator], dict[str, int]]
    stations: Callable[[GaussianNoise], dict[str, Any]]
    to: str = "sum"
    trials: int = 10_000_000


def _server(noise: GaussianNoise) -> dict[str, Any]:
    return {"server": (CLIP, noise)}


def _client(noise: GaussianNoise) -> dict[str, Any]:
    return {"client": (CLIP, noise)}


def _example(noise: GaussianNoise) -> dict[str, Any]:
    return {"example": (CLIP,), "batch": (noise,)}


def _bent(noise: GaussianNoise) -> dict[str, Any]:
    return {"client": (CLIP, noise, ClipWhole(norm=4.0))}


def _cohorts(rng: np.random.Generator) -> dict[str, int]:
    return {"clients_per_round": int(rng.integers(1, 20)), "train_rounds": int(rng.integers(1, 40))}


def _batches(rng: np.random.Generator) -> dict[str, int]:
    return {
        "batch": int(rng.integers(1, 60)),
        "local_iterations": int(rng.integers(1, 20)),
        "train_rounds": int(rng.integers(1, 10)),
    }


def _everybody(rng: np.random.Generator) -> dict[str, int]:
    return {"clients_per_round": 20, "train_rounds": int(rng.integers(1, 40))}


def _one(rng: np.random.Generator) -> dict[str, int]:
    return {"clients_per_round": 1, "train_rounds": int(rng.integers(1, 40))}


CLIENT, EXAMPLE = {"unit": "client"}, {"unit": "example"}

KINDS = {
    "every client": Kind({**CLIENT, "cohorts": "fixed"}, _everybody, _server),
    "Poisson cohorts": Kind({**CLIENT, "cohorts": "poisson"}, _cohorts, _server),
    "fixed cohorts": Kind({**CLIENT, "cohorts": "fixed"}, _cohorts, _server),
    "each client's own noise": Kind({**CLIENT, "cohorts": "poisson"}, _cohorts, _client, "each"),
    "Poisson batches": Kind({**EXAMPLE, "batches": "poisson"}, _batches, _example),
    "fixed batches": Kind({**EXAMPLE, "batches": "fixed"}, _batches, _example),
    "split batches": Kind({**EXAMPLE, "batches": "split"}, _batches, _example),
    "a clip after the noise": Kind({**CLIENT, "cohorts": "fixed"}, _one, _bent, "each", 200),
}
"""Trials of the last one run the defense's own code, since the part after its noise bends it; this takes ten seconds. Trials of the
others are drawn."""

BENT = list(KINDS)[-1]


def sound(name: str, seed: int) -> Cell:
    """Return a cell whose valid epsilon is true, with a random sigma of `SIGMAS` and random sampling."""
    kind, rng = KINDS[name], np.random.default_rng([22, seed])
    sigma = float(np.exp(rng.uniform(*np.log(SIGMAS))))
    noise = GaussianNoise(multiplier=sigma, to=kind.to)  # type: ignore[arg-type]
    defense = Defense(title="t", cite="c", claim=NoClaim(reason="a test"), **kind.defense, **kind.stations(noise))
    cell = resolve_cell(Request(dataset="digits", seed=seed, **kind.request(rng)), None)  # type: ignore[arg-type]
    return dataclasses.replace(cell, defense=defense)


def upper_limit(wrong: int, tried: int) -> float:
    """Return the one-sided 95 % Clopper-Pearson limit."""
    return float(beta.ppf(0.95, wrong + 1, tried - wrong)) if wrong < tried else 1.0


def check_audits(tally: Tally, tries: int, trials: int) -> None:
    """Audit random sound mechanisms: the rate of false violations is at most 5 % at 95 % confidence."""
    violated: list[str] = []
    near: dict[str, list[float]] = {name: [] for name in KINDS}
    for seed in range(tries):
        name = BENT if seed % 40 == 39 else list(KINDS)[seed % (len(KINDS) - 1)]
        cell = sound(name, seed)
        found = audit_cell(cell, 1e-5, min(trials, KINDS[name].trials))
        with tally.case(f"{name}, seed {seed}"):
            assert found.valid is not None and found.noise_data_independent == (name != BENT), found.reason
        if found.valid is None:
            continue
        bounds = max(found.lower_bound, found.lower_bound_family or 0.0)
        if found.verdict != "holds" or bounds > found.valid:
            violated.append(f"{name}, seed {seed}: {found.reason}")
        near[name].append(bounds / found.valid if found.valid > 0 else 0.0)
    limit = upper_limit(len(violated), tries)
    tally.expect(
        limit <= ALLOWED or tries < 100, f"{len(violated)} of {tries} sound mechanisms violated: at most {limit:.3f}"
    )
    tally.expect(tries >= 100 or not violated, f"sound mechanisms in violation: {violated[:3]}")
    shown = ", ".join(f"{name} {np.median(found):.2f}" for name, found in near.items() if found)
    tally.figures.append(
        f"audit: {len(violated)} of {tries} sound mechanisms violated, at most {limit:.2%} at 95 % confidence; bound over valid "
        f"epsilon, median: {shown}"
    )


def check_limits(tally: Tally, tries: int, trials: int) -> None:
    """Try the case where the bound is tight: the shift of a Gaussian with known noise, from both directions' rates together."""
    rng, wrong = np.random.default_rng(23), 0
    for seed in range(tries):
        sigma = float(np.exp(rng.uniform(*np.log(SIGMAS))))
        scores = drawn(Mechanism(sigma, 1.0, 1), trials, generator(seed, "limits"))
        shift = max(float(gaussian_shift(r)) for r in both_ways(scores.present, scores.absent, gaussian_shift))
        wrong += shift > 1 / sigma
    limit = upper_limit(wrong, tries)
    tally.expect(
        limit <= ALLOWED or tries < 100,
        f"the shift of {wrong} of {tries} Gaussians was overstated: at most {limit:.3f}",
    )
    tally.expect(wrong < tries, "every shift was overstated")
    tally.figures.append(
        f"shift of a Gaussian overstated in {wrong} of {tries}, at most {limit:.2%} at 95 % confidence"
    )
