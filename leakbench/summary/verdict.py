"""The verdict on a leakage point: a pure function of the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scipy.stats import binomtest

from leakbench.core.verdict_words import FAILED, IDENTIFIES, INCONCLUSIVE, NO_LEAK, RECONSTRUCTS

__all__ = [
    "CAUTION",
    "EXACT",
    "LEAST_COMPARED",
    "LEAST_NETWORKS",
    "LEAST_VICTIMS",
    "LEVEL",
    "STRONGEST",
    "Evidence",
    "Verdict",
    "above_baseline",
    "above_chance",
    "by_chance",
    "verdict",
    "whole_victims",
    "within_chance",
]

STRONGEST = "autoleak"
"""The attack whose failure counts as evidence."""

LEAST_VICTIMS = 100
"""Without a success among so many victims, a rate of 3 % is excluded at 95 %."""

LEAST_NETWORKS = 5
"""How much leaks differs between draws of the first weights; fewer draws say little about another network."""

LEAST_COMPARED = 4
"""Number of victims from which a success above the baseline guess is significant by itself. By Fisher's exact test, 3 of 3 against
none of 3 has p = 1 / 20, and 4 of 4 against none of 4 has p = 1 / 70. With fewer,
their identification must be significant too, or one of them be `EXACT`."""

EXACT = 0.01
"""RMSE of an exact reconstruction, as a share of the baseline guess's. No guess without a gradient comes so near by chance: in d
dimensions, the part of a ball within a hundredth of its radius is 100^-d."""

FEW = (
    f"but on fewer than {LEAST_COMPARED} victims, without a significant identification, an exact sentence, or an RMSE of at most"
    f" {100 * EXACT:g} % of the baseline guess's"
)
"""Why a measurement above the baseline guess's does not state a leak by itself, for too few victims."""

LEVEL = 0.01
"""A leak is stated where chance reaches as many identified victims less often than this."""

CAUTION = 0.05
"""That no leak was found is stated only where chance reaches as many at least this often. Between the two, neither is stated: a
level that is cautious for one statement is bold for the other."""


@dataclass(frozen=True)
class Evidence:
    """What a verdict on one leakage point depends on.

    Args:
        victims: Number of victims.
        networks: Number of networks, each with its own draw of the first weights. One training counts as one network.
        attack: Name of the attack.
        strongest: Whether the attack is `autoleak` as the catalog has it.
        adaptive: Whether the attacker knows the defense; true without a defense.
        ranks_only: Whether the attack only ranks candidates.
        live: Whether the leak is from a training; a run has one training.
        unanswered: Share of the examples without an answer, in [0, 1].
        above: Measurements that are significantly above the baseline guess's, in words.
        higher: Measurements that are above the baseline guess's, but not significantly, in words.
        identified: Number of victims that were identified.
        ranked: Number of victims for which candidates were ranked.
        candidates: Number of candidates, among them the victim.
        shortened: Option that gave `autoleak` less work than it has in the catalog, with its value; empty for none.
        gaps: Other reasons why a failure of the attack is weak evidence, which another run with these data does not remove.
        cuts: {warning of a search that a budget stopped: number of victims}; a run without the budget does not have it.
        doubts: {other warning of the search: number of victims}.
        exact: Number of examples that are reconstructed exactly, see `EXACT`.
        limits: {measurement: upper limit of its rate}, one-sided at 95 %.
    """

    victims: int
    networks: int
    attack: str
    strongest: bool
    adaptive: bool
    ranks_only: bool = False
    live: bool = False
    unanswered: float = 0.0
    above: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    identified: int = 0
    ranked: int = 0
    candidates: int = 1000
    shortened: str = ""
    gaps: tuple[str, ...] = ()
    cuts: Mapping[str, int] = field(default_factory=dict)
    doubts: Mapping[str, int] = field(default_factory=dict)
    exact: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def few(self) -> bool:
        """Whether the victims are too few to be significantly above a baseline by their rates.

        A victim counts once, however many examples its batch has: they come back together or not at all.
        """
        return not self.exact and self.victims < LEAST_COMPARED


@dataclass(frozen=True)
class Verdict:
    """A verdict with its reason.

    Args:
        word: One of `leakbench.core.verdict_words.VERDICTS`.
        reason: Why, in one line; where several reasons apply the most important comes first.
        excluded: {measurement: rate above which it is excluded at 95 %}; empty where a leak was found or the attack failed.
        decidable: Whether a run of `autoleak` with enough victims and networks would decide what this evidence does not.
    """

    word: str
    reason: str
    excluded: Mapping[str, float]
    decidable: bool = False


def verdict(evidence: Evidence) -> Verdict:
    """Return the verdict that follows from the evidence.

    `reconstructs`: a measurement of the reconstructions is significantly above the baseline guess's, on at least `LEAST_COMPARED`
    victims, with a significant identification, or with an exact reconstruction. `identifies`: more victims
    are identified than by chance, by a one-sided binomial test at `LEVEL`. `attack failed`: at least half of the examples have no
    answer. `no leak found`: none of these, and the same test does not reject chance at `CAUTION` either, by `autoleak` that knows
    the defense, on at least `LEAST_VICTIMS` victims over at least `LEAST_NETWORKS` networks, without a warning of the search.
    Otherwise `inconclusive`.
    """
    identifies = above_chance(evidence.identified, evidence.ranked, 1 / evidence.candidates)
    if evidence.above and (identifies or not evidence.few):
        return Verdict(RECONSTRUCTS, "; ".join(evidence.above), {})
    if identifies:
        return Verdict(IDENTIFIES, f"{_identified(evidence)}, significantly more than by chance", {})
    lacking = list(_lacking(evidence))
    decidable = bool(lacking) and all(supplied for _, supplied in lacking)
    if evidence.unanswered >= 0.5 and not evidence.ranks_only:
        reason = f"the attack has no answer for {100 * evidence.unanswered:.0f} % of the examples"
        return Verdict(FAILED, reason, {}, decidable and not evidence.strongest)
    if lacking:
        return Verdict(INCONCLUSIVE, "; ".join(reason for reason, _ in lacking), evidence.limits, decidable)
    reason = f"nothing is significantly above the baseline guess or chance, {_size(evidence)}"
    return Verdict(NO_LEAK, reason, evidence.limits)


def _lacking(evidence: Evidence) -> Iterator[tuple[str, bool]]:
    """Yield what the evidence lacks, the most important first, and whether the deciding run would supply it."""
    yield from ((f"{measurement}, {FEW}", True) for measurement in evidence.above)
    if not evidence.adaptive:
        yield "the attacker does not know the defense", True
    if evidence.ranks_only:
        yield f"the attack {evidence.attack} only ranks candidates and reconstructs nothing", True
    elif evidence.shortened:
        yield f"{evidence.attack} was limited by {evidence.shortened}", True
    elif not evidence.strongest:
        yield f"the attack is {evidence.attack}, not the catalog's autoleak with its own budget", True
    for gap in evidence.gaps:
        yield gap, False
    for warnings, supplied in ((evidence.cuts, True), (evidence.doubts, False)):
        for warning, victims in warnings.items():
            yield f"warning of the search for {_count(victims, 'victim')}: {warning}", supplied
    if not evidence.ranked:
        yield "no candidates were ranked", False
    elif evidence.ranked < evidence.victims:
        yield f"no candidate has a finite score for {_count(evidence.victims - evidence.ranked, 'victim')}", False
    if evidence.victims < LEAST_VICTIMS:
        yield f"{_count(evidence.victims, 'victim')}, at least {LEAST_VICTIMS} are needed", True
    if evidence.networks < LEAST_NETWORKS:
        unit = "training" if evidence.live else "network"
        yield f"{_count(evidence.networks, unit)}, at least {LEAST_NETWORKS} are needed", not evidence.live
    if not within_chance(evidence.identified, evidence.ranked, 1 / evidence.candidates):
        yield f"{_identified(evidence)}, which is significant at {CAUTION:g} but not at {LEVEL:g}", True
    higher = () if evidence.above else evidence.higher
    yield from ((f"{measurement}, but not significantly", True) for measurement in higher)


def _identified(evidence: Evidence) -> str:
    p = by_chance(evidence.identified, evidence.ranked, 1 / evidence.candidates)
    return (
        f"{evidence.identified} of {_count(evidence.ranked, 'victim')} are identified among {evidence.candidates} candidates "
        f"(p = {p:.1g})"
    )


def _size(evidence: Evidence) -> str:
    return f"{_count(evidence.victims, 'victim')} over {_count(evidence.networks, 'network')}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def above_baseline(share: Sequence[float], guess: Sequence[float]) -> bool:
    """Return whether a share's interval is above the baseline guess's estimate, and the baseline's interval below the share.

    For equal rates of .05, the rule is met in at most 3 % of runs with up to 50 victims. For equal rates of one half, where a share
    varies most, it is met in up to 15 % of runs with 4 victims and 12 % with more; with fewer, see `LEAST_COMPARED`.

    Args:
        share: The share in [0, 1] and the ends of its 95 % interval.
        guess: The same for the baseline guess.
    """
    return bool(share[1] > guess[0] and share[0] > guess[2])


def whole_victims(identified: float) -> int:
    """Return how many victims were identified: equally likely candidates count in part, parts that make no whole victim as none."""
    return int(identified + 1e-6)


def by_chance(right: int, victims: int, chance: float) -> float:
    """Return the probability that chance identifies at least as many: one-sided exact binomial test; 1 for no victims."""
    return float(binomtest(right, victims, chance, "greater").pvalue) if victims else 1.0


def above_chance(right: int, victims: int, chance: float) -> bool:
    """Return whether so many identified victims are significantly more than by chance, at `LEVEL`."""
    return by_chance(right, victims, chance) < LEVEL


def within_chance(right: int, victims: int, chance: float) -> bool:
    """Return whether so many identified victims are not significantly more than by chance, at `CAUTION`."""
    return by_chance(right, victims, chance) >= CAUTION
