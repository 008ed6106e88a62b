"""The evidence for a verdict on a leakage point, from its rows and from how they were measured."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from leakbench.attack import Attack, attack_on
from leakbench.attack.doubts import BUDGET
from leakbench.attack.servers.server import lies
from leakbench.cell import Cell
from leakbench.cell.victim_mode import leaks_by_batch
from leakbench.core.request import run_words
from leakbench.defense.augmentation import is_random
from leakbench.measure.measures import RMSE, deciding
from leakbench.measure.rates import ASR, IDENTIFIED, RECOGNISED
from leakbench.measure.rates import EXACT as EXACT_MATCH
from leakbench.measure.recognised import SAME_CLASS
from leakbench.measure.statistics import exact_low, proportion
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.storage.summary import Tap
from leakbench.summary.tables import comes_back
from leakbench.summary.verdict import (
    EXACT,
    LEAST_NETWORKS,
    LEAST_VICTIMS,
    STRONGEST,
    Evidence,
    above_baseline,
    whole_victims,
)
from leakbench.summary.warnings import WORDS

__all__ = ["Setup", "evidence_of", "is_strongest", "networks_in", "setup_of"]

CONFIDENCE = 0.95
"""Confidence level of the rates that a verdict excludes, one-sided."""

LARGER = "use a larger data set, such as digits or mnist"
"""What helps where a data set holds fewer victims than a verdict needs."""

SHORTER = ("iterations", "evaluations")
"""Fields of a request that give an attack less work than its recipe does."""


@dataclass(frozen=True)
class Setup:
    """How a leakage point was measured, as far as rows do not record it; the defaults are the weakest evidence.

    Args:
        attack, strongest, adaptive, live, shortened, gaps: As in `Evidence`.
        command: Command of the run that would decide an inconclusive verdict; empty without one.
    """

    attack: str = "unknown"
    strongest: bool = False
    adaptive: bool = False
    live: bool = False
    shortened: str = ""
    gaps: tuple[str, ...] = ()
    command: str = ""


def setup_of(cell: Cell, batch: int) -> Setup:
    """Return how a cell measures a leakage point at which `batch` examples leak together."""
    gaps = [_doubt(cell, batch)]
    if lies(cell.attack.server):
        gaps.append("another tampered model may show more")
    if (pool := len(cell.data.victims)) < LEAST_VICTIMS:
        gaps.append(f"{cell.names['dataset']} holds {pool} victims, fewer than {LEAST_VICTIMS}: {LARGER}")
    undefended = not (cell.defense.network or cell.defense.inputs or cell.defense.stations.transforms)
    setup = Setup(
        attack=cell.names["attack"],
        strongest=is_strongest(cell.attack),
        adaptive=undefended or cell.attack.knows == "defense",
        live=cell.settings.protocol == "live",
        shortened=_shortened(cell),
        gaps=tuple(filter(None, gaps)),
    )
    return dataclasses.replace(setup, command=_command(cell, setup))


def _doubt(cell: Cell, batch: int) -> str:
    """Return why the ranking of candidates may miss part of the leak at a leakage point; empty without such a reason."""
    s = cell.settings
    if cell.defense.network:
        # A ranking by the mean of a random network may miss leaks in its random part.
        return "the ranking goes by the mean path of a network that draws at random"
    if any(map(is_random, cell.defense.inputs)):
        return "the ranking compares the gradients of originals, and examples are changed at random before theirs is computed"
    if batch > 1 and s.federation.client_optimizer == "adam":
        return "the ranking treats the leak as a mean over examples, but the clients' Adam sends a quotient"
    if batch > 1 and leaks_by_batch(s.victim_mode, s.leaking, cell.data.layout, cell.data.outputs):
        return (
            "the ranking takes each candidate's gradient by its own statistics, not by those of the batch that leaked"
        )
    if batch > 1 and s.protocol == "live" and s.federation.local_iterations > 1:
        # The inputs of the last layer in the first step are in the row space of its update, which identifies them.
        return "the ranking reads the first of several local iterations, and where it cannot, it takes all as one step"
    return ""


def _shortened(cell: Cell) -> str:
    """Return the option that gives `autoleak` less work than it has in the catalog; empty where none does."""
    if cell.request is None or cell.names["attack"] != STRONGEST or is_strongest(cell.attack):
        return ""
    limits = {name: getattr(cell.request, name) for name in SHORTER}
    return " ".join(f"--{name} {value}" for name, value in limits.items() if value is not None)


def _command(cell: Cell, setup: Setup) -> str:
    """Return the command of a run that would decide; empty where the data set holds too few victims."""
    if cell.request is None:
        return ""
    asked, networks = cell.settings.victims, cell.settings.networks
    complete = setup.strongest and setup.adaptive and cell.settings.budget is None
    enough = complete and asked >= LEAST_VICTIMS and networks >= LEAST_NETWORKS
    victims = min(4 * asked if enough else max(asked, LEAST_VICTIMS), len(cell.data.victims))
    if victims < LEAST_VICTIMS or (enough and victims <= asked):
        return ""
    decided = {"victims": victims, "networks": max(networks, LEAST_NETWORKS), "knows": "defense", "attack": STRONGEST}
    words = run_words(cell.request, (*decided, *SHORTER, "budget"))
    words += [] if cell.data_dir is None else ["--data-dir", str(cell.data_dir)]
    return shlex.join([*words, *(word for name, value in decided.items() for word in (f"--{name}", str(value)))])


def is_strongest(attack: Attack) -> bool:
    """Return whether an attack searches as `autoleak` does in the catalog on such data, no less and no shorter."""
    return any(attack.method == attack_on(kind, STRONGEST)[1].method for kind in attack.needs.kinds)


def networks_in(group: pd.DataFrame) -> int:
    """Return how many networks the victims of a leakage point are spread over."""
    return int(group["network"].nunique())


def evidence_of(group: pd.DataFrame, found: Tap, setup: Setup) -> Evidence:
    """Return the evidence for a verdict.

    Args:
        group: The rows of a leakage point.
        found: Its measurements.
        setup: How they were measured.
    """
    ranks_only = bool((group["failure_reason"] == RANKS_ONLY).all())
    first = group[IDENTIFIED.column].dropna()
    doubts = found.doubts or {}
    return Evidence(
        victims=int(group["victim"].nunique()),
        networks=1 if setup.live else networks_in(group),
        attack=setup.attack,
        strongest=setup.strongest,
        adaptive=setup.adaptive,
        ranks_only=ranks_only,
        live=setup.live,
        unanswered=float(group["failure"].mean()),
        above=() if ranks_only else tuple(_above(group, found)),
        higher=() if ranks_only else tuple(_higher(found)),
        identified=whole_victims(first.sum()),
        ranked=len(first),
        candidates=found.candidates or 1,
        shortened=setup.shortened,
        gaps=setup.gaps,
        cuts={WORDS[why]: victims for why, victims in doubts.items() if why == BUDGET},
        doubts={WORDS.get(why, why): victims for why, victims in doubts.items() if why != BUDGET},
        exact=_exact(group),
        limits=dict(_limits(group, ranks_only)),
    )


def _above(group: pd.DataFrame, found: Tap) -> Iterator[str]:
    """Yield which measurements of the reconstructions are significantly above the baseline guess's."""
    batch, network = group["batch"].to_numpy(), group["network"]
    share, guess = found.interval(ASR.name), found.interval(ASR.baseline)
    if share is not None and guess is not None and above_baseline(share, guess):
        yield f"the ASR {share[0]:.2f} is significantly above the baseline guess's {guess[0]:.2f}"
    ruler = deciding(group)
    closer, low, _ = proportion((group[ruler.name] < group[ruler.baseline]).to_numpy(), batch, network=network)
    if low > 0.5:
        yield f"{100 * closer:.0f} % of the reconstructions are closer than the baseline guess, significantly more than half"
    if EXACT_MATCH.column in group:
        share = proportion(group[EXACT_MATCH.column].fillna(0.0).to_numpy(), batch, network=network)
        guess = proportion(group[EXACT_MATCH.baseline].to_numpy(), batch)
        if above_baseline(share, guess):
            yield f"{100 * share[0]:.0f} % of the sentences are exact, significantly more than in the baseline guess"
    if comes_back(group):
        yield "features or whole records are right significantly more often than in the baseline guess and at random"
    if RECOGNISED.column in group and group[RECOGNISED.column].notna().any():
        share = proportion(group[RECOGNISED.column].to_numpy(dtype=float), batch, network=network)
        # Another picture of the victim's class shows nothing about the victim either.
        names = (RECOGNISED.baseline, SAME_CLASS)
        guesses = [proportion(group[name].to_numpy(dtype=float), batch) for name in names]
        if all(above_baseline(share, guess) for guess in guesses):
            recognised = f"{100 * share[0]:.0f} % of the reconstructions are recognised"
            yield f"{recognised}, significantly more than the baseline guess's {100 * guesses[0][0]:.0f} %"


def _higher(found: Tap) -> Iterator[str]:
    """Yield which measurements are above the baseline guess's, significantly or not."""
    if found.asr is not None and found.null_asr_high is not None and found.asr > found.null_asr_high:
        yield f"the ASR {found.asr:.2f} is above the interval of the baseline guess's"
    if found.rmse is not None and found.null_rmse is not None and found.rmse < found.null_rmse:
        yield "the median RMSE is below the baseline guess's"
    apart, guess = found.edit_distance, found.null_edit_distance
    if apart is not None and guess is not None and apart < guess:
        yield "the median edit distance is below the baseline guess's"


def _exact(group: pd.DataFrame) -> int:
    """Return the number of examples that are reconstructed exactly."""
    if EXACT_MATCH.column in group:
        return int(group[EXACT_MATCH.column].fillna(0.0).sum())
    return int((group[RMSE.name] <= EXACT * group[RMSE.baseline]).sum())


def _limits(group: pd.DataFrame, ranks_only: bool) -> Iterator[tuple[str, float]]:
    if not ranks_only:
        yield ASR.name, _limit(group, ASR.column)
        if RECOGNISED.column in group and group[RECOGNISED.column].notna().any():
            yield RECOGNISED.name, _limit(group, RECOGNISED.column)
    if group[IDENTIFIED.column].notna().any():
        yield IDENTIFIED.name, _limit(group.dropna(subset=[IDENTIFIED.column]), IDENTIFIED.column)


def _limit(group: pd.DataFrame, column: str) -> float:
    """Return the one-sided upper limit of a rate by Clopper and Pearson (1934).

    Members of a batch are not independent; where there are successes, victims of one network are not either.
    """
    outcome = group[column].fillna(0.0).to_numpy(dtype=float)
    network = group["network"]
    return 1.0 - exact_low(1.0 - outcome, group["batch"].to_numpy(), 2 * CONFIDENCE - 1, network=network)
