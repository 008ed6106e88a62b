"""Write results/findings.md: findings with their numbers, intervals and limits, computed from the published rows.

    python studies/findings.py

A finding is stated only where its rows are current and significant; else the page says why it is not shown. Run it again after a
row has changed; a test checks that the page is what this script writes.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.box import range_of
from leakbench.cell.budget import plan
from leakbench.cell.network import probe_of
from leakbench.core.recipe import resolve
from leakbench.core.request import Request
from leakbench.core.scripts import one_line
from leakbench.core.verdict_words import LEAKING
from leakbench.defense import Defense, facts_at
from leakbench.frontier.answer import epsilon_or_reason
from leakbench.frontier.choose import main_rows, refusals
from leakbench.frontier.frontier import points_in, store_of
from leakbench.overview import Row as DefenseRow
from leakbench.overview import overview, recorded
from leakbench.reproduce.accounting.page import judged
from leakbench.reproduce.accounting.table import AccountingTable
from leakbench.reproduce.agreement import LEVEL
from leakbench.reproduce.columns import interval, text_of
from leakbench.reproduce.file import results_folder, rows_path
from leakbench.reproduce.page import claims_of, counted
from leakbench.reproduce.published import read_any, rows_of
from leakbench.reproduce.reproduce import write_index
from leakbench.reproduce.table import Table
from leakbench.reproduce.verdict import CONTRADICTED, REPRODUCED, UNDECIDED, Compared
from leakbench.storage.store import write_atomically
from leakbench.study.rows import RowFormat, RowStore
from leakbench.study.stale import Published, stale_names

RESULTS = results_folder()

ENOUGH = 50
"""Examples of one network below which a finding counts as not shown."""

MOST = 0.5
"""Share of a batch above which most of it is recovered."""

DATA = {"lfw": "LFW", "mnist": "MNIST", "cifar10": "CIFAR-10", "adult": "Adult"}

BUDGETS = tuple(f"fed_alpha_cdp_table_{name}" for name in ("6", "7", "8_rounds", "11_budgets", "11_rounds"))
"""Tables of the Fed-alphaCDP paper that are computed, not measured."""

STATED = "N = 1000, 10 %, Fed-SDP"
"""The cell of Table 4 whose noise is compared with its updates."""

TABLES = ("fed_alpha_cdp_table_4", "strongest_ranking", "servers_rows", "servers_secure", "servers_defenses")
NOT_LISTED = ("aware", "leakage_batches", "strongest_batches", "strongest_mnist", "strongest_noise", "leakage_updates")

HEAD = """# Findings

The strongest evidence in the [published rows](README.md), with intervals at 95 %, written by
`python studies/findings.py`. A finding is stated if its rows are current, its intervals exclude
chance, and it has at least {enough} examples or several networks; else its heading starts with
*Not shown*. {stated} of {all} are stated.
"""

REST = """## Not in this list

These pages have a clear answer but weaker evidence:
"""


@dataclass(frozen=True)
class Source:
    """The rows of a page, and the names of their cells that are stale."""

    page: str
    rows: pd.DataFrame
    stale: frozenset[str] = frozenset()

    def matching(self, pattern: str) -> pd.DataFrame:
        """Return the rows whose whole name matches a regular expression."""
        return self.rows[self.rows["row"].str.fullmatch(pattern)]

    def old(self, rows: pd.DataFrame) -> list[str]:
        """Return the reason not to state a finding from stale rows; empty where all are current."""
        number = int(rows["cell"].isin(self.stale).sum())
        return [f"{number} of {len(rows)} rows are stale, measured with an earlier version"] if number else []

    def doubts(self, rows: pd.DataFrame, key: str, chance: pd.Series | float) -> list[str]:
        """Return the reasons not to state that a leak of each of these rows is above chance; empty without any."""
        found = self.old(rows)
        equal = int(((rows[f"{key}_low"] <= chance) | ~rows["verdict"].isin(LEAKING)).sum())
        if equal:
            found.append(f"{equal} of {len(rows)} rows are not significantly above chance")
        few = int(((rows["victims"] * rows["batch"] < ENOUGH) & (rows["networks"].fillna(1) <= 1)).sum())
        if few:
            found.append(f"{few} of {len(rows)} rows have fewer than {ENOUGH} examples of one network")
        return found


@dataclass(frozen=True)
class Finding:
    """A statement with its numbers and its limits.

    Args:
        heading: The statement in short.
        claim: The statement as a sentence.
        numbers: A sentence with the numbers, which is true also if the statement is not.
        excludes: What the evidence does not show.
        pages: Paths of its pages from results/.
        doubts: Reasons not to state it.
    """

    heading: str
    claim: str
    numbers: str
    excludes: str
    pages: tuple[str, ...]
    doubts: Sequence[str] = ()

    def text(self, number: int) -> str:
        """Return its section."""
        heading = f"Not shown: {self.heading}" if self.doubts else self.heading
        claim = f"Not shown, because {'; '.join(self.doubts)}. To be shown: {self.claim}" if self.doubts else self.claim
        links = ", ".join(f"[{Path(page).stem}]({page})" for page in self.pages)
        items = (item(f"{claim} {self.numbers}"), f"- Source: {links}.", item(f"It does not show: {self.excludes}"))
        return "\n".join((f"## {number}. {heading}", "", *items))


@dataclass(frozen=True)
class Inputs:
    """The published rows that the findings follow from."""

    tables: dict[str, Source]
    frontiers: dict[str, Source]
    defenses: tuple[DefenseRow, ...]
    old_defenses: frozenset[str]
    wrappers: pd.DataFrame
    tableak: pd.DataFrame


def item(text: str) -> str:
    """Return an item of a list, wrapped at the width of the documentation."""
    return textwrap.fill(
        text, 100, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def share(row: pd.Series, key: str, digits: int = 2) -> str:
    """Return a share with its interval."""
    return interval(key, digits)(row.to_dict())


def accuracy(row: pd.Series) -> str:
    """Return an accuracy with its interval; `diverged` where no answer of any network is finite."""
    every = row.get("diverged") == row["seeds"]
    return "diverged in every training" if every else share(row, "trained_accuracy", 3)


def shares(rows: pd.DataFrame, key: str, digits: int = 2) -> str:
    """Return the share of each row with its data set."""
    return ", ".join(f"{share(row, key, digits)} on {DATA[row['dataset']]}" for _, row in rows.iterrows())


def sizes(rows: pd.DataFrame, what: str) -> str:
    """Return how many victims and networks each row has.

    Args:
        what: What a victim of these rows is, in the plural.
    """
    return f"{range_of(rows['victims'])} {what} on {range_of(rows['networks'])} networks each"


def epsilon(value: str) -> str:
    """Return an epsilon without more digits than a reader needs."""
    return value if value == "none" else epsilon_or_reason(value)


def printed_epsilons(inputs: Inputs) -> Finding:
    """Compare printed epsilons and rounds with the formulas that the paper states."""
    claims, doubts = [], []
    for name in BUDGETS:
        source = inputs.tables[name]
        claims += judged(accounting(name), source.rows)
        doubts += source.old(source.rows)
    wrong = [claim for claim in claims if claim.verdict == CONTRADICTED]
    other = [claim for claim in wrong if "given by '" in claim.reason]
    if 2 * len(wrong) <= len(claims):
        doubts.append(f"{len(wrong)} of {len(claims)} printed numbers do not follow, not most")
    first = judged(accounting(BUDGETS[0]), inputs.tables[BUDGETS[0]].rows)
    above = sum(claim.claimed >= claim.losses for claim in first)
    return Finding(
        "Most printed epsilons and rounds of the Fed-alphaCDP paper do not follow from its formulas",
        f"{len(wrong)} of {len(claims)} printed epsilons, budgets and rounds do not follow from the formula, sampling rate and "
        "rounds that the paper states.",
        f"Another reading gives {len(other)} of these {len(wrong)}, and no reading that was tried gives the other "
        f"{len(wrong) - len(other)}; the computation is exact, so that no interval is needed ({len(claims)} printed numbers).",
        f"that the epsilons are too small, because {above} of {len(first)} in Table 6 are at least the tight epsilon of the same "
        "noise, sampling and steps; nor as many independent errors, because a few choices (sampling rate, decay of the noise) "
        "explain most numbers.",
        tuple(inputs.tables[name].page for name in BUDGETS),
        doubts,
    )


def released_code(inputs: Inputs) -> Finding:
    """Compare claimed with valid epsilons of the recipes that follow released code."""
    of = {row.name: row for row in inputs.defenses if re.fullmatch(r"fed_(alpha_cdp\w*|cdp|sdp)_as_released", row.name)}
    wrong = [row for row in of.values() if row.valid == "none" or float(row.valid) > float(row.claimed)]
    old = sorted(inputs.old_defenses & of.keys())
    doubts = [f"{len(old)} of {len(of)} recipes have changed since they were computed"] if old else []
    if len(wrong) < len(of):
        doubts.append(f"only {len(wrong)} of {len(of)} recipes exceed their claim")
    none = [row for row in wrong if row.valid == "none"]
    silent = [row.name for row in none if row.reason == "no noise"]
    numbers = "; ".join(
        f"`{row.name}` claims {epsilon(row.claimed)} (for sigma {claim_of(row.name):g}) and has {epsilon(row.valid)} "
        f"(with sigma {noise_of(row.name):g})"
        for row in wrong
        if row not in none
    )
    stated = next(row for row in inputs.defenses if row.name == "fed_cdp")
    return Finding(
        "Recipes of Fed-alphaCDP's released code do not have the claimed epsilons",
        f"{len(wrong)} of {len(of)} recipes that follow the released code have a valid epsilon above the claimed one, or none.",
        f"In MNIST's federation {numbers or 'no recipe has a larger valid epsilon'}; {len(none)} have none, "
        f"{len(silent)} of them because no noise is added; epsilons are computed, so that no interval is needed.",
        "a leak, because an epsilon is an upper bound, and none means that no bound follows from the recipe; nor anything about "
        f"the paper's text, where `fed_cdp` claims {epsilon(stated.claimed)} and has {epsilon(stated.valid)}. "
        "`fed_cdp_as_released` follows lines that are commented out in a script that does not run. The paper's claim is for more "
        "noise than that script's, which alone explains a larger epsilon. The variants of Fed-alphaCDP share one reason.",
        ("defenses/defenses.md",),
        doubts,
    )


def noise_of(name: str) -> float:
    """Return the multiplier of the Gaussian noise of a recipe with one."""
    defense = resolve("defenses", Defense, name)[1]
    stations = (*defense.example, *defense.batch, *defense.client, *defense.server)
    [found] = [each.multiplier for each in stations if hasattr(each, "multiplier")]
    return float(found)


def claim_of(name: str) -> float:
    """Return the noise multiplier for which a recipe claims its epsilon."""
    claim: Any = resolve("defenses", Defense, name)[1].claim
    return float(claim.noise_multiplier)


@dataclass(frozen=True)
class NoiseOfARound:
    """The noise at the server of a federation, next to the updates that it is added to.

    Args:
        parameters: Number of parameters.
        layers: Number of layers, each of which is clipped.
        noise: Norm of the noise on the mean of a round's updates.
        update: Largest norm of that mean.
        rounds: Number of rounds.
    """

    parameters: int
    layers: int
    noise: float
    update: float
    rounds: int


def noise_of_a_round(request: Request) -> NoiseOfARound:
    """Return the norm of the noise that a defense adds at the server in a round, and of the updates that it clips there."""
    cell = plan(request)
    probe, federation = probe_of(cell.defense, cell.data, cell.settings), cell.settings.federation
    clip, noise = facts_at(cell.defense, probe, cell.defense.clock(federation, 0))["server"]
    sizes = [p.numel() for p in probe.network.parameters.values()]
    norm = noise.std * math.sqrt(sum(sizes)) / federation.clients_per_round
    return NoiseOfARound(sum(sizes), len(sizes), norm, clip.norm, federation.rounds)


def printed_accuracy(inputs: Inputs) -> Finding:
    """Compare the noise that Table 4 of Fed-alphaCDP states with the updates, and its accuracies with full trainings."""
    source = inputs.tables["fed_alpha_cdp_table_4"]
    table = read_any("fed_alpha_cdp_table_4")
    assert isinstance(table, Table)
    claims = claims_of(table, source.rows)
    wrong = [claim for claim in claims if claim.verdict == CONTRADICTED]
    right = [claim for claim in claims if claim.verdict == REPRODUCED]
    released = sum("as released" in claim.row for claim in claims)
    alike = sum(claim.verdict in (REPRODUCED, CONTRADICTED, UNDECIDED) for claim in claims)
    several = source.rows[(source.rows["scale"] == "full") & (source.rows["seeds"] > 1)]
    single = int(((source.rows["scale"] == "full") & (source.rows["seeds"] == 1)).sum())
    quick = set(source.rows.loc[source.rows["scale"] == "quick", "cell"])
    without = [f"{name.rpartition(', ')[0]}, non-private" for name in several["cell"]]
    reference = (
        " Undefended training of the same size was measured for fewer rounds only." if quick & {*without} else ""
    )
    doubts = source.old(several)

    def named(found: list[Compared], verdict: str) -> str:
        rows = f" ({'; '.join(claim.row for claim in found)})" if found else ""
        return f"{len(found) or 'none'} {'are' if len(found) > 1 else 'is'} {verdict}{rows}"

    step = noise_of_a_round(Request(**{**next(line.given for line in table.lines if line.name == STATED)}))
    if step.noise <= step.update:
        doubts.append(f"the noise of a round ({step.noise:.1f}) is not longer than an update ({step.update:.2f})")
    printed = {
        line.name: claim["accuracy"] for line in table.lines for claim in line.claims.values() if "accuracy" in claim
    }
    told = several[several["cell"].isin({STATED, *(claim.row for claim in (*wrong, *right))})]
    measured = "; ".join(
        f"{row['cell']}: measured {accuracy(row)}, printed {printed[row['cell']]:g}" for _, row in told.iterrows()
    )
    return Finding(
        "The noise that Table 4 of Fed-alphaCDP states for Fed-SDP is longer than any update",
        f"In {STATED}, noise of norm {step.noise:.1f} is added to the mean of a round's updates, which is at most "
        f"{step.update:.2f} long at any learning rate, because each of {step.layers} layers is clipped.",
        f"This is arithmetic with {step.parameters:,} parameters; in {step.rounds} rounds the noise adds up to a norm of about "
        f"{step.noise * math.sqrt(step.rounds):,.0f}. Table 4 prints {len(claims) - released} accuracies on MNIST, and "
        f"{released} of them are also compared with the noise of the released code: {alike} comparisons "
        f"{'was' if alike == 1 else 'were'} measured in the paper's setting. At a level of {LEVEL:.0%} after Holm's correction, "
        f"{named(wrong, CONTRADICTED)} and {named(right, REPRODUCED)}. Accuracies of {range_of(told['seeds'])} trainings each: "
        f"{measured}.",
        f"that nothing can be learned with this noise, because {step.rounds} updates of full length and one direction would add "
        f"up to {step.update * step.rounds:,.0f}; nor a contradiction by a test, because trainings at chance are not tested; nor "
        "the "
        "other cells: "
        f"{f'{single} of full size had one training, ' if single else ''}"
        f"{len(quick)} are smaller than the paper's, and the rest are not measured.{reference}",
        (source.page,),
        doubts,
    )


def calibrated_noise(inputs: Inputs) -> Finding:
    """Compare the usable settings of Fed-alphaCDP with those of Fed-CDP with calibrated noise."""
    source = inputs.frontiers["mnist"]
    usable, pairs = better(source.rows)
    both = pd.DataFrame([row for pair in pairs for row in pair])
    doubts = source.old(both) if len(both) else []
    if len(pairs) < usable or not pairs:
        doubts.append(f"{len(pairs)} of {usable} settings have a better one")
    each = "; ".join(
        f"{share(own, 'identified', 3)} identified at accuracy {share(own, 'trained_accuracy', 3)} instead of "
        f"{share(alpha, 'identified', 3)} at {share(alpha, 'trained_accuracy', 3)}"
        for alpha, own in pairs
    )
    epsilons = " and ".join(f"{own['epsilon_valid']:,.0f}" for _, own in pairs)
    victims = range_of(main_rows(source.rows)["identify_victims"])
    trainings = range_of(main_rows(source.rows)["seeds"])
    all_cancer, cancer = better(inputs.frontiers["cancer"].rows)
    return Finding(
        "Fed-CDP with calibrated noise leaks less than Fed-alphaCDP at similar accuracy on MNIST",
        f"For each of {usable} usable settings of `fed_alpha_cdp` on MNIST, a setting of `fed_cdp_valid` has at least the same "
        "mean accuracy and lets fewer victims be identified, by intervals of the identified share that do not overlap.",
        f"With {victims} victims on {range_of(main_rows(source.rows)['networks'])} networks, the settings have "
        f"{each or 'no pair'}.",
        f"that Fed-CDP protects there, because its valid epsilons are {epsilons or 'none'}; nor other data, because the same is "
        f"true of {len(cancer)} of {all_cancer} usable settings on the cancer records. Number of trainings behind an accuracy: "
        f"{trainings}. One small network and one learning rate were trained, and one attacker was used.",
        (source.page, inputs.frontiers["cancer"].page),
        doubts,
    )


def better(rows: pd.DataFrame) -> tuple[int, list[tuple[pd.Series, pd.Series]]]:
    """Return the number of usable settings of Fed-alphaCDP, and those that a setting of Fed-CDP dominates, each with it."""
    main = main_rows(rows)
    own = main[main["defense"] == "fed_cdp_valid"]
    alpha = main[(main["defense"] == "fed_alpha_cdp") & ~refusals(main).str.contains("accuracy")]
    pairs = []
    for _, row in alpha.iterrows():
        found = own[
            (own["trained_accuracy"] >= row["trained_accuracy"]) & (own["identified_high"] < row["identified_low"])
        ]
        if len(found):
            pairs.append((row, found.sort_values("identified").iloc[0]))
    return len(alpha), pairs


def repeated_noise(inputs: Inputs) -> Finding:
    """Find the largest noise at which one observation and many observations identify victims."""
    source = inputs.tables["strongest_ranking"]
    one, more = at_noise(source, "sigma"), at_noise(source, r"\d+ looks at sigma")
    once, often = largest(one), largest(more)
    first, many = one[once], more[often]
    doubts = source.doubts(first, "identified", 1 / first["candidates"])
    doubts += source.doubts(many, "identified", 1 / many["candidates"])
    if often <= once:
        doubts.append("several observations do not identify at larger noise than one")
    beyond = [sigma for sigma in one if sigma > once]
    limit = f"at sigma {min(beyond):g} one observation is not significant on at least one data set" if beyond else ""
    return Finding(
        "Noise that hides one gradient does not hide repeated observations of it",
        f"One noisy gradient identifies victims up to sigma {once:g}, {many['observations'].iloc[0]:.0f} observations of it "
        f"up to sigma {often:g}, among about a thousand candidates.",
        f"Identified by one at sigma {once:g}: {shares(first, 'identified', 3)}; by all at sigma {often:g}: "
        f"{shares(many, 'identified', 3)} ({sizes(source.rows.loc[[*first.index, *many.index]], 'victims')}).",
        f"larger noise: {limit or 'no larger sigma was measured'}, and many were measured up to sigma {max(more):g} there; "
        "[strongest_looks](attacks/strongest_looks.md) has fewer victims at sigma 6. Each "
        "observation is one example's clipped gradient of a small sigmoid network at random weights, and the victim is among "
        "the candidates.",
        (source.page,),
        doubts,
    )


def at_noise(source: Source, words: str) -> dict[float, pd.DataFrame]:
    """Return {sigma: the rows of both data sets} of the rows that have these words before their sigma."""
    rows = source.matching(rf"(lfw|mnist), {words} [\d.]+")
    return {float(sigma): found for sigma, found in rows.groupby(rows["row"].str.rpartition(" ")[2].astype(float))}


def largest(levels: dict[float, pd.DataFrame]) -> float:
    """Return the largest sigma at which every row identifies; the smallest one where none does."""
    found = [
        sigma
        for sigma, rows in levels.items()
        if (rows["verdict"].isin(LEAKING) & (rows["identified_low"] > 1 / rows["candidates"])).all()
    ]
    return max(found, default=min(levels))


def layer_wise_clip(inputs: Inputs) -> Finding:
    """Compare a clip of each layer with one of the whole gradient, at the same norm and noise."""
    source = inputs.tables["strongest_ranking"]
    layers, whole = at_noise(source, "layer-wise clip, sigma"), at_noise(source, "sigma")
    sigma = min(layers)
    first, second = layers[sigma], whole[sigma]
    doubts = source.doubts(first, "identified", 1 / first["candidates"]) + source.old(second)
    if not apart(first, second):
        doubts.append("intervals of the two clips overlap")
    alike = [each for each in layers if not apart(layers[each], whole[each])]
    return Finding(
        "A clip of each layer leaks more than a clip of the whole gradient at the same noise",
        f"At the same norm and sigma = {sigma:g}, an attacker identifies more victims behind a clip of each layer than behind "
        "one clip of the whole gradient.",
        f"Identified with a layer-wise clip: {shares(first, 'identified')}; with a flat clip: {shares(second, 'identified')} "
        f"({sizes(first, 'victims')}).",
        "a difference at equal epsilon, because the same noise also gives a layer-wise clip a larger valid epsilon; "
        + (
            f"nor at sigma {' and '.join(f'{each:g}' for each in alike)}, where intervals overlap. "
            if alike
            else "nor more noise. "
        )
        + "One example's gradient of one architecture at random weights was attacked.",
        (source.page,),
        doubts,
    )


def apart(above: pd.DataFrame, below: pd.DataFrame) -> bool:
    """Return whether the intervals of each data set's first row are above those of its second row."""
    second = below.set_index("dataset")["identified_high"]
    return all(row["identified_low"] > second[row["dataset"]] for _, row in above.iterrows())


def honest_layer(inputs: Inputs) -> Finding:
    """State what an honest server reads verbatim from a first layer of many rows."""
    source = inputs.tables["servers_rows"]
    rows = source.matching(r"\w+, honest, B = \d+")
    small, large = (rows[rows["batch"] == size] for size in (rows["batch"].min(), rows["batch"].max()))
    return Finding(
        "An honest server reads images and records verbatim from a wide first layer",
        f"From one undefended gradient of a batch of {small['batch'].iloc[0]:.0f}, an honest-but-curious server copies examples "
        "verbatim out of a fully connected first layer at random weights.",
        f"Verbatim shares: {shares(small, 'verbatim')} ({sizes(small, 'batches')}).",
        f"much for large batches, because with {large['batch'].iloc[0]:.0f} examples the shares are {shares(large, 'verbatim')}. "
        "The network starts with a fully connected layer of 1,000 rows, without a defense and before training; convolutional "
        "networks were not attacked this way.",
        (source.page,),
        source.doubts(small, "verbatim", 0.0),
    )


def sums_of_clients(inputs: Inputs) -> Finding:
    """State what a malicious server recovers from sums of clients."""
    source = inputs.tables["servers_secure"]
    rows = source.rows.assign(clients=source.rows["row"].str.rpartition("K = ")[2].astype(int))
    several = rows[rows["row"].str.startswith("loki") & (rows["victims"] > 1)].sort_values("clients")
    best = several.tail(1)
    row = best.iloc[0]
    shared = rows[rows["row"].str.startswith("shared")].sort_values("clients").iloc[-1]
    single = rows[rows["row"].str.startswith("loki") & (rows["victims"] == 1)]
    more = "".join(
        f" a sum of {each['clients']} clients was measured once ({share(each, 'asr')});"
        for _, each in single.iterrows()
    )
    return Finding(
        "Secure aggregation alone does not protect against a malicious server",
        "A malicious server that sends each client another model (LOKI) recovers images of single clients from a secure sum of "
        f"{row['clients']} clients.",
        f"It recovers {share(row, 'asr')} of the CIFAR-10 images in {row['victims']:.0f} sums of {row['batch']:.0f} images "
        f"({row['networks']:.0f} networks; baseline guess {text_of(row['null_asr'])}).",
        f"larger sums:{more} with one model for all clients the share in sums of {shared['clients']} is {share(shared, 'asr')}. "
        "No clip or noise acted, and a client that compares or inspects models was not modelled.",
        (source.page,),
        source.doubts(best, "asr", best["null_asr"]),
    )


def clips_and_pruning(inputs: Inputs) -> Finding:
    """State what a malicious server recovers behind clips and pruning."""
    source = inputs.tables["servers_defenses"]
    rows = source.matching(
        r"clip 4 of each example, oblivious|clip 4 of each client and noise at the server, oblivious"
        r"|layer-wise clip, defense|prune 90 %, defense"
    )
    doubts = source.doubts(rows, "asr", rows["null_asr"])
    if (rows["asr_low"] <= MOST).any():
        doubts.append(f"{int((rows['asr_low'] <= MOST).sum())} of {len(rows)} intervals include half of a batch")
    strong = source.matching(
        r"prune 99 %, defense|sigma \.01, defense|cumulative, prune 90 %, defense|prune 90 %, B = 64, defense"
    )
    each = "; ".join(f"{share(row, 'asr')} ({row['cell'].rpartition(',')[0]})" for _, row in rows.iterrows())
    limits = "; ".join(
        f"{share(row, 'asr')} ({row['cell'].rpartition(',')[0]}; verdict `{row['verdict']}`)"
        for _, row in strong.iterrows()
    )
    leaking = int(strong["verdict"].isin(LEAKING).sum())
    return Finding(
        f"Clips and pruning of 90 % do not stop a malicious server, at batches of {range_of(rows['batch'])}",
        f"An imprinted layer gives a malicious server most of a batch behind each of {len(rows)} defenses by clips or pruning.",
        f"Recovered shares: {each}; {sizes(rows, 'batches')}, {range_of(rows['batch'])} CIFAR-10 images a batch.",
        "that most of a batch is recovered behind stronger defenses, from larger batches, or by an imprint of the cumulative kind: "
        f"{limits}. {leaking} of these {len(strong)} leak by other measures than the share within eta. A client recognises an "
        "imprint by its added layer. Noise at the server acts after this attacker has read the update.",
        (source.page, "servers/conspicuous.md"),
        doubts,
    )


def flower_accountant(inputs: Inputs) -> Finding:
    """Compare the epsilons that Flower computes with tight ones."""
    source = inputs.tables["flower_epsilons"]
    claims = judged(accounting("flower_epsilons"), source.rows)
    without = [claim for claim in claims if "Poisson" not in claim.name]
    gives = source.rows.groupby("cell")["gives"].max()
    low = [claim for claim in without if not gives[claim.name]]
    least = source.rows.groupby("cell")["losses"].min()
    factors = [least[claim.name] / claim.claimed for claim in low]
    poisson = [claim for claim in claims if "Poisson" in claim.name]
    held = sum(claim.verdict == REPRODUCED for claim in poisson)
    doubts = source.old(source.rows) + ([] if low else ["no epsilon is too small under each adjacency"])
    return Finding(
        "Flower's epsilons for sampling without replacement can be too small",
        f"{len(low)} of {len(without)} epsilons that Flower's documented script and its accountant compute for sampling without "
        "replacement are below the tight epsilon under each adjacency that was tried.",
        (f"The tight epsilon is {min(factors):.1f} to {max(factors):.1f} times as large; " if factors else "")
        + f"{len(claims)} computed numbers, exact, so that no interval is needed.",
        f"an error for Poisson sampling, where {held} of {len(poisson)} epsilons are large enough; nor a wrong printed number, "
        "because Flower prints none. The federations are ours, and the documentation names no adjacency.",
        (source.page,),
        doubts,
    )


FINDINGS: tuple[Callable[[Inputs], Finding], ...] = (
    printed_epsilons,
    released_code,
    printed_accuracy,
    calibrated_noise,
    repeated_noise,
    layer_wise_clip,
    honest_layer,
    sums_of_clients,
    clips_and_pruning,
    flower_accountant,
)


def weaker(inputs: Inputs) -> list[str]:
    """Return a line for each page whose evidence is weaker, with the reason."""
    lines = []
    for name in NOT_LISTED:
        source = inputs.tables[name]
        cells = source.rows.drop_duplicates("cell")
        alone = int((cells["networks"].fillna(1) <= 1).sum()) if "networks" in cells else len(cells)
        lines.append(
            item(
                f"[{name}]({source.page}): {len(source.stale & set(cells['cell']))} of {len(cells)} cells are stale, {alone} are "
                f"of one network; {range_of(cells['victims'])} victims a row."
            )
        )
    priority = inputs.tables["priority_figures"]
    table = read_any("priority_figures")
    assert isinstance(table, Table)
    verdicts = counted(claim.verdict for claim in claims_of(table, priority.rows))
    lines.append(item(f"[priority_figures]({priority.page}): {verdicts}"))
    victims = range_of(inputs.wrappers["victims"])
    lines.append(
        item(f"[flower_wrappers](papers/flower_wrappers.md): {victims} victims a wrapper, one network, one round.")
    )
    records = inputs.tableak.groupby("row")["batch"]
    batches = range_of(records.size() / records.first())
    lines.append(item(f"[tableak](attacks/tableak.md): {batches} batches a row, one untrained network."))
    return lines


def page(inputs: Inputs) -> str:
    """Return the page."""
    found = [finding(inputs) for finding in FINDINGS]
    head = HEAD.format(enough=ENOUGH, stated=sum(not each.doubts for each in found), all=len(found))
    sections = [f"{each.text(number)}\n" for number, each in enumerate(found, 1)]
    return "\n".join((head, *sections, REST, *weaker(inputs))) + "\n"


def accounting(name: str) -> AccountingTable:
    """Return a table of accounting."""
    table = read_any(name)
    assert isinstance(table, AccountingTable)
    return table


def read() -> Inputs:
    """Return the published rows."""
    tables = {
        name: table_source(name) for name in (*BUDGETS, *TABLES, "flower_epsilons", "priority_figures", *NOT_LISTED)
    }
    frontiers = {name: frontier_source(f"frontier_{name}") for name in ("mnist", "cancer")}
    old = frozenset(name for name, _, row in overview() if row is None)
    wrappers, tableak = (
        RowStore(RESULTS / name, RowFormat((key,)), typed=False).read()
        for name, key in (("papers/flower_wrappers.csv", "wrapper"), ("attacks/tableak.csv", "row"))
    )
    return Inputs(tables, frontiers, tuple(recorded()), old, wrappers, tableak)


def table_source(name: str) -> Source:
    """Return the rows of a table, with those that are stale."""
    table = read_any(name)
    path = rows_path(RESULTS, name)
    rows = RowStore(path, table.format).read()
    return Source(path.with_suffix(".md").relative_to(RESULTS).as_posix(), rows, stale(rows_of(table, rows)))


def frontier_source(name: str) -> Source:
    """Return the rows of a frontier, with those that are stale."""
    rows = store_of(RESULTS / "frontier" / f"{name}.csv").read()
    return Source(f"frontier/{name}.md", rows, stale(points_in(name, rows)))


def stale(rows: Iterable[Published]) -> frozenset[str]:
    """Return the names of the stale cells."""
    return frozenset(name for found in stale_names(list(rows)).values() for name in found)


def main() -> None:
    """Write the page and the list of all pages."""
    text = page(read())
    write_atomically(RESULTS / "findings.md", lambda file: file.write_text(text, encoding="utf-8"))
    write_index(RESULTS)


if __name__ == "__main__":
    one_line(main)
