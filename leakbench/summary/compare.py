"""Compare two runs: the effect of another defense or attack on the same victims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import binomtest

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint, listed, point_name
from leakbench.core.rng import generator
from leakbench.measure.measures import EDIT_DISTANCE, RMSE, deciding
from leakbench.measure.rates import ASR, EXACT, FEATURES, IDENTIFIED, LABELS, RECORDS, ROUGE_1
from leakbench.measure.statistics import networks_test, paired_means, paired_shares
from leakbench.scoring.rankings import ONE_EACH
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.storage.manifest import needed
from leakbench.storage.rows_file import points_in, read_rows, rows_at
from leakbench.storage.store import read_manifest, written
from leakbench.storage.summary import Summary

__all__ = [
    "DIFFERS",
    "ENOUGH",
    "ERRORS",
    "NOTES",
    "RULERS",
    "SAME",
    "SAME_RULER",
    "Difference",
    "answered",
    "as_dicts",
    "check_same",
    "compare",
    "compare_lists",
    "differences",
    "differs",
    "digits_of",
    "left_out",
    "lines",
    "mean_accuracy",
    "moved",
    "rows_of",
    "sentence",
]

SAME = ["tap", "round", "victim", "member", "example", "label"]
"""Columns that must be equal for two rows to have the same example."""

RULERS = ("eta", "candidates")
"""Settings that must be equal so that both runs score the same reconstruction alike."""

SAME_RULER = 1e-5
"""Largest relative difference of equal thresholds: another number of threads adds the same numbers in another order."""

ERRORS = {measure.name: measure for measure in (RMSE, EDIT_DISTANCE)}
"""{measure of which less is a better attack: itself}; texts have the second, all other data the first."""

SCORES = (*ERRORS, FEATURES.name, ROUGE_1.name)
"""Measures with more values per example than 0 and 1."""

TIE = 1e-9
"""Up to where a victim's means in two runs are called the same: they are sums of floats in different orders."""

ENOUGH = 10
"""Fewest victims for which an interval without zero is called a difference, if the sign test agrees at 5 %. With fewer victims, or
few that differ, a bootstrap is not reliable."""


@dataclass(frozen=True)
class Difference:
    """The mean of one measure at one leakage point in two runs, and the first minus the second with its 95 % interval.

    Args:
        point: The tap, and where it leaked at several rounds, `tap@round`.
        measure: `asr` | `identified` | `label_accuracy` | `label_ranked` | `rmse`, of texts `edit_distance` | `exact_match` |
            `rouge_1`, and of tables `feature_accuracy` | `record_match`; without an answer an RMSE or an edit distance is the null
            attacker's, whose guess everybody has, and a feature, a record or a sentence is wrong.
        victims: V, who are drawn with replacement, whole batches at a time.
        sign: p-value of the exact two-sided sign test over the victims who fare better in one run; with single examples
            McNemar's.
        networks: Number of networks that the victims were attacked on. The interval is for networks that could be drawn; for one
            it is about the victims of this network only.
        networks_p: p-value of Student's two-sided test over the networks' mean differences; None for one network.
    """

    point: str
    measure: str
    victims: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    sign: float
    networks: int = 1
    networks_p: float | None = None

    @property
    def change(self) -> tuple[float, float, float]:
        """The second minus the first with its 95 % interval, as every text prints it."""
        return 0.0 - self.difference, 0.0 - self.high, 0.0 - self.low  # Not -x, which prints a zero as -0.00.


def compare(one: Path, other: Path) -> list[Difference]:
    """Return the differences at every leakage point of two finished runs, over the victims they share and their networks.

    Raises InputError where they attacked different examples, or have no leakage point in common.
    """
    return differences(rows_of(one), rows_of(other), (str(one), str(other)))


def compare_lists(firsts: Sequence[Path], others: Sequence[Path]) -> list[Difference]:
    """Return the differences of two lists of finished runs, over the victims of all of them.

    Args:
        firsts: Run folders.
        others: As many run folders; each attacked the same victims as its counterpart.

    Returns:
        The differences. A victim that several runs of a list attacked at a leakage point counts once, with all its rows. For
        one run each, those of `compare`.

    Raises:
        InputError: Where counterparts attacked different examples, or a list has a run twice.
    """
    if len(firsts) == 1:
        return compare(firsts[0], others[0])
    sides, seeds = [], []
    for folders in (firsts, others):
        manifests = [read_manifest(folder) for folder in folders]
        hashes = [manifest.get("hash") for manifest in manifests]
        if len(set(hashes)) < len(hashes):
            raise InputError("compare: a list has a run twice; expected each run once, as of different seeds")
        sides.append([rows_of(folder) for folder in folders])
        for folder, manifest in zip(folders, manifests, strict=True):
            needed(folder / "manifest.json", manifest, "seed")
        seeds.append([int(manifest["seed"]) for manifest in manifests])
    for one, other, mine, theirs in zip(firsts, others, *sides, strict=True):
        differences(mine, theirs, (str(one), str(other)))
    data = {name for side in sides for _, name in side}
    if len(data) > 1:
        raise InputError(f"compare: the runs are of the data sets {', '.join(sorted(data))}; expected the same in all")
    names = (f"{len(firsts)} runs", f"{len(others)} runs")
    return differences((_pooled(sides[0], seeds[0]), data.pop()), (_pooled(sides[1], seeds[1]), sides[1][0][1]), names)


def _pooled(runs: Sequence[tuple[pd.DataFrame, str]], seeds: Sequence[int]) -> pd.DataFrame:
    """Return the rows of several runs, their victims and networks numbered on.

    A victim of an earlier run keeps its number. So does a network of an earlier run with the same seed: it has the same first
    weights.
    """
    pooled, first = [], 0
    networks: dict[tuple[int, int], int] = {}
    numbers: dict[tuple[Any, ...], int] = {}  # Rows of the same example are not independent, even in different runs.
    for (rows, _), seed in zip(runs, seeds, strict=True):
        victims = rows.loc[rows["member"] == 0, ["tap", "round", "victim", "example"]]
        mine = {
            (tap, leak, victim): numbers.get((tap, leak, example), first + victim)
            for tap, leak, victim, example in victims.itertuples(index=False)
        }
        for tap, leak, victim, example in victims.itertuples(index=False):
            numbers.setdefault((tap, leak, example), mine[tap, leak, victim])
        keys = rows[["tap", "round", "victim"]].itertuples(index=False, name=None)
        network = [networks.setdefault((seed, draw), len(networks)) for draw in rows["network"]]
        pooled.append(rows.assign(victim=[mine[key] for key in keys], network=network))
        first += int(rows["victim"].max()) + 1
    return pd.concat(pooled, ignore_index=True)


def differences(
    one: tuple[pd.DataFrame, str], other: tuple[pd.DataFrame, str], names: tuple[str, str]
) -> list[Difference]:
    """Return what `compare` does of (the rows, the data set) of each, by these names."""
    (rows, data), (others, other_data) = one, other
    if data != other_data:
        raise InputError(
            f"compare: the runs are of the data sets {data!r} and {other_data!r}; expected the same in both"
        )
    points, theirs = points_in(rows), points_in(others)
    shared = [p for p in points if p in theirs]
    if not shared:
        raise InputError(f"compare: {names[0]!r} and {names[1]!r} have no leakage point at the same round in common")
    several = rows.groupby("tap")["round"].nunique()
    named = {point: point if several[point.tap] > 1 else LeakagePoint(point.tap) for point in shared}
    return [found for point, name in named.items() for found in _at(name, _of(rows, point), _of(others, point))]


def left_out(one: Path, other: Path) -> list[str]:
    """Return the leakage points, `tap@round`, of two finished runs that only one of them has."""
    mine, theirs = (points_in(rows_of(folder)[0]) for folder in (one, other))
    return [point.key for point in (*mine, *theirs) if (point in mine) != (point in theirs)]


NOTES = (
    "first, second: means over the examples, while the table of one run has medians. An example without a reconstruction counts as",
    "not reconstructed, with no feature or word right, and with the RMSE or the edit distance of the baseline guess; its label",
    "counts. A lower RMSE or edit distance is a better attack; for all other measures a higher value is.",
    "networks: draws of the first weights, or trainings, that the victims were attacked on. difference: second minus first.",
    "95 % interval by a bootstrap over whole batches; for shares one victim that gains and one that loses are added, because few",
    "victims without a difference do not exclude one. Over several networks it is at least as wide as Student's over their mean",
    "differences, so that it holds for other networks too. Over one network it is about victims of this network only.",
    "sign: p of the exact two-sided sign test over the victims (whole batches) that differ, on these networks.",
    f"differs: the interval excludes 0, sign is below .05, and there are {ENOUGH} victims or more.",
)


DIFFERS = "differs"

LEAKS = {rate.name: rate.words for rate in (ASR, IDENTIFIED, FEATURES)} | {n: m.heading for n, m in ERRORS.items()}
"""{measure of a leak: its name in a sentence}; the first that differs is named."""


def differs(d: Difference) -> bool:
    """Say whether a difference is called one, by its interval, its sign test and how many victims there are."""
    return not (d.low <= 0 <= d.high or d.victims < ENOUGH or d.sign >= 0.05)


def digits_of(d: Difference) -> int:
    """Return how many digits of a measure are printed."""
    return 4 if d.measure in ERRORS else 2


def moved(first: float, second: float, digits: int = 2) -> str:
    """Return how a number changes, as "fell from 1.00 to 0.10"."""
    before, after = f"{first:.{digits}f}", f"{second:.{digits}f}"
    if before == after:
        return f"stayed at {before}"
    return f"{'fell' if second < first else 'rose'} from {before} to {after}"


def sentence(found: Sequence[Difference], accuracies: tuple[float | None, float | None]) -> str:
    """Return what changed from the first run to the second, in one sentence.

    Args:
        found: Differences, the first run minus the second.
        accuracies: Accuracy of both runs; None where nothing was trained.

    Returns:
        A clause for each leakage point with its first measure of `LEAKS` that changed significantly; then accuracy.
    """
    points = dict.fromkeys(d.point for d in found)
    chosen = [
        next((d for m in LEAKS for d in found if (d.point, d.measure) == (p, m) and differs(d)), None) for p in points
    ]
    clauses = [f"at the {point_name(d.point)} {_change(d)}" for d in chosen if d is not None]
    if not clauses:
        shared = listed([point_name(point) for point in points])
        clauses = [f"no measured difference in leakage is significant (compared: {shared})"]
    before, after = accuracies
    if before is not None and after is not None:
        clauses.append(f"accuracy {moved(before, after)}")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _change(d: Difference) -> str:
    digits = digits_of(d)
    change, low, high = (f"{value:+.{digits}f}" for value in d.change)
    only = ", for victims of one network only" if d.networks == 1 else ""
    return f"{LEAKS[d.measure]} {moved(d.first, d.second, digits)} (difference {change} [{low}, {high}]{only})"


def lines(found: list[Difference], accuracies: tuple[float | None, float | None] = (None, None)) -> Iterator[str]:
    """Yield what changed in one sentence, then the differences as a table, then what the columns mean."""
    yield sentence(found, accuracies)
    yield ""
    heads = f"{'victims':>8}{'networks':>10}{'first':>8}{'second':>8}{'difference':>12}"
    width = max(len("leakage point"), *(len(point_name(d.point)) for d in found)) + 2
    yield f"{'leakage point':<{width}}{'measure':<18}{heads}  {'95 % interval':<18}{'sign':>6}"
    for d in found:
        clear = f"  {DIFFERS}" if differs(d) else ""
        digits = digits_of(d)
        change, low, high = (f"{value:+.{digits}f}" for value in d.change)
        numbers = f"{d.victims:>8}{d.networks:>10}{d.first:>8.{digits}f}{d.second:>8.{digits}f}{change:>12}"
        interval = f"[{low}, {high}]"
        yield f"{point_name(d.point):<{width}}{d.measure:<18}{numbers}  {interval:<18}{d.sign:>6.3f}{clear}"
    yield ""
    yield from NOTES


def rows_of(folder: Path) -> tuple[pd.DataFrame, str]:
    """Return (the rows, the data set) of a finished run; raises InputError for another."""
    manifest: dict[str, Any] = read_manifest(folder)
    if not manifest.get("complete"):
        raise InputError(f"compare: the run in {str(folder)!r} is not finished; run the same command again to resume")
    needed(folder / "manifest.json", manifest, "files", "cell.dataset")
    return read_rows(written(folder, manifest, "rows.parquet")), str(manifest["cell"]["dataset"])


def mean_accuracy(folders: Sequence[Path]) -> float | None:
    """Return the mean accuracy of finished runs; None where one of them trained nothing."""
    found = [Summary.of(read_manifest(folder)["summary"]).accuracy for folder in folders]
    known = [accuracy for accuracy in found if accuracy is not None]
    return sum(known) / len(known) if len(known) == len(found) else None


def _of(rows: pd.DataFrame, point: LeakagePoint) -> pd.DataFrame:
    return rows_at(rows, point).sort_values(SAME).reset_index(drop=True)


def check_same(point: str, rows: pd.DataFrame, others: pd.DataFrame) -> None:
    """Raise InputError where two runs attacked different examples at a leakage point, or measured with another ruler."""
    one_by_one, theirs = (some.sort_values(SAME).reset_index(drop=True) for some in (rows, others))
    if not one_by_one[SAME].equals(theirs[SAME]):
        raise InputError(
            f"compare: at {point} the runs attacked different examples; expected the same data set, seed, victims and batch"
        )
    for ruler in RULERS:
        one, other = rows[ruler].iloc[0], others[ruler].iloc[0]
        if not math.isclose(one, other, rel_tol=SAME_RULER):
            raise InputError(
                f"compare: at {point} the runs have {ruler} {one:g} and {other:g}; expected the same in both"
            )


def _at(point: LeakagePoint, rows: pd.DataFrame, others: pd.DataFrame) -> Iterator[Difference]:
    check_same(point.tap, rows, others)
    rows = rows.assign(network=_networks(rows, others))
    outcomes = {}
    if not any((r["failure_reason"] == RANKS_ONLY).all() for r in (rows, others)):
        told, others_told = (r["label"] == r["label_guess"] for r in (rows, others))
        outcomes[ASR.name] = (rows[ASR.column], others[ASR.column])
        outcomes[LABELS.name] = (told, others_told)
        for score in (deciding(rows.columns).name, FEATURES.name, RECORDS.name, EXACT.name, ROUGE_1.name):
            if score in rows and score in others:
                outcomes[score] = (answered(rows, score), answered(others, score))
    first = rows["member"] == 0
    for ranked in ONE_EACH:
        if ranked not in rows or ranked not in others:  # A run of before labels were ranked.
            continue
        one, other = rows[ranked][first], others[ranked][first]
        known = one.notna() & other.notna()  # A class without a public example cannot be ranked.
        if known.any():
            outcomes[ranked] = (one[known], other[known])
    for measure, (a, b) in outcomes.items():
        x, y = (values.to_numpy(dtype=float) for values in (a, b))
        victims, network = (rows.loc[a.index, name].to_numpy() for name in ("victim", "network"))
        rng = generator(0, f"compare {measure}")
        interval = paired_means if measure in SCORES else paired_shares
        difference, low, high = interval(x, y, victims, rng, network=network)
        sign, over = _sign_test(pd.Series(x - y).groupby(victims).mean()), networks_test(x, y, network)
        count, networks = len(np.unique(victims)), len(np.unique(network))
        yield Difference(
            point.key, measure, count, x.mean(), y.mean(), difference, low, high, sign, networks,
            None if math.isnan(over) else over,
        )  # fmt: skip


def _networks(rows: pd.DataFrame, others: pd.DataFrame) -> NDArray[np.int64]:
    """Return the group (n,) of networks that each example of two runs was attacked on.

    Networks of the two runs that share an example are in one group, so that groups are independent.
    """
    mine, theirs = (np.unique(some["network"], return_inverse=True)[1] for some in (rows, others))
    count = int(mine.max()) + 1
    size = count + int(theirs.max()) + 1
    shared = coo_array((np.ones(len(mine)), (mine, count + theirs)), shape=(size, size))
    groups: NDArray[np.int64] = connected_components(shared, directed=False)[1][mine]
    return groups


def answered(rows: pd.DataFrame, score: str) -> pd.Series:
    """Return the scores (n,) in a column; an example without a reconstruction has what that counts as."""
    return rows[score].fillna(rows[ERRORS[score].baseline] if score in ERRORS else 0.0)


def _sign_test(gains: pd.Series) -> float:
    """Return the two-sided p-value of the signs of what each victim gains; 1 where none differs."""
    more, less = int((gains > TIE).sum()), int((gains < -TIE).sum())
    return float(binomtest(more, more + less).pvalue) if more + less else 1.0


def as_dicts(found: list[Difference]) -> list[dict[str, Any]]:
    """Return plain data for JSON: `difference` is the first run minus the second; `change` is the second minus the first."""
    changes = ("change", "change_low", "change_high")
    return [asdict(d) | dict(zip(changes, d.change, strict=True)) for d in found]
