"""Accuracy with more noise on the least or on the most important inputs: the grid of priority.yaml against the paper.

    python results/priority.py [--data-dir FOLDER] [--page]

Writes priority.csv, priority.md and priority.png beside itself; with `--page` only the page and figure, from the CSV that is there.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats
from shared.options import checked, parser

from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, Probe, phases
from leakbench.federated.simulate import train
from leakbench.models import build, parameters
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Schedule
from leakbench.recipe import construct
from leakbench.rng import generator
from leakbench.scripts import markdown_table, one_line
from leakbench.types import Network

HERE = Path(__file__).parent
LEVEL = 0.05


def defense_of(grid: dict[str, Any], curve: dict[str, Any]) -> Defense:
    """Return the defense of one curve; the fields that it leaves open are the grid's."""
    calibration = {**grid["calibration"], **({"epsilon": curve["epsilon"]} if "epsilon" in curve else {})}
    client: list[Any] = []
    if "importance" in curve:
        client = [{"priority_noise": {**curve, "calibration": calibration}}]
    elif curve:
        client = [{"nbafl_uplink": {"calibration": calibration}}]
    return construct(Defense, {"title": "a curve", "cite": grid["cite"], "unit": "client", "client": client})


def network_of(grid: dict[str, Any], data: Dataset, seed: int) -> Network:
    """Return the network at its first weights."""
    model = build(grid["model"], data.shape, data.classes, generator(seed, "model"))
    return Network(model, parameters(model))


def measure(grid: dict[str, Any], data: Dataset) -> Iterator[dict[str, Any]]:
    """Yield one row for each seed, curve and round; all curves of a seed share their model, clients and batches."""
    f = construct(Federation, grid["federation"])
    for seed in grid["seeds"]:
        partition = f.partition(data.train_targets, f.clients, f.examples_per_client, generator(seed, "partition"))
        for name, curve in grid["curves"].items():
            began = time.process_time()
            for now in train(network_of(grid, data, seed), data, partition, f, defense_of(grid, curve), seed):
                yield {"seed": seed, "curve": name, "round": now.round + 1, "accuracy": now.accuracy}
            print(f"seed {seed}, {name}: {now.accuracy:.3f}, {time.process_time() - began:.1f} s", flush=True)


def epsilon_of(grid: dict[str, Any], data: Dataset, name: str) -> Epsilon:
    """Return what the ledger says of one curve's defense in this federation."""
    f, defense = construct(Federation, grid["federation"]), defense_of(grid, grid["curves"][name])
    probe = Probe(network_of(grid, data, 0), data.shape, data.classes, f)
    shared = ("clients", "clients_per_round", "rounds", "local_iterations", "batch", "examples_per_client")
    schedule = Schedule(
        **{field: getattr(f, field) for field in shared},
        copies=1.0,  # Of an example at several clients; the unit here is a client.
        most_copies=1,
        client_sampling="fixed",
        batch_sampling="fixed",
        tensors=len(probe.network.parameters),
    )
    return epsilon(phases(defense, probe), defense.unit, defense.claim, schedule)


def scores(rows: pd.DataFrame, rounds: str, window: int) -> pd.DataFrame:
    """Return the mean accuracy over `all`, the `first` or the `last` rounds: seeds x curves."""
    last = rows["round"].max()
    low, high = {"all": (1, last), "first": (1, window), "last": (last - window + 1, last)}[rounds]
    return rows[rows["round"].between(low, high)].pivot_table("accuracy", "seed", "curve")


def verdict(differences: pd.Series) -> tuple[str, float]:
    """Return (verdict, two-sided p) of the paired t test over seeds: `holds`, `reversed`, or `not decided` at LEVEL."""
    p = float(stats.ttest_1samp(differences, 0.0).pvalue) if differences.std() > 0 else float(differences.mean() == 0)
    if math.isnan(p) or p >= LEVEL:
        return "not decided", p
    return ("holds" if differences.mean() > 0 else "reversed"), p


def judged(grid: dict[str, Any], rows: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Yield the cells of a line for each claim: `CLAIM`."""
    for claim in grid["claims"]:
        which = claim.get("rounds", "all")
        found = scores(rows, which, grid["window"])
        differences = found[claim["more"]].sum(axis=1) - found[claim["less"]].sum(axis=1)
        more, less = (" + ".join(f"{found[c].mean():.3f}" for c in claim[side]) for side in ("more", "less"))
        seeds = ", ".join(f"{100 * d:+.1f}" for d in differences)
        word, p = verdict(differences)
        yield str(claim["figure"]), claim["says"], which, more, less, seeds, f"{word} (p = {p:.3f})"


def listed(grid: dict[str, Any], data: Dataset, rows: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Yield the cells of a line for each curve: accuracy, claimed and valid epsilon."""
    whole, last = (scores(rows, rounds, grid["window"]) for rounds in ("all", "last"))
    for name, curve in grid["curves"].items():
        base = curve.get("epsilon", grid["calibration"]["epsilon"])
        claimed = f"{base:g} / {curve['epsilon_selected']:g}" if "importance" in curve else f"{base:g}" if curve else ""
        found = epsilon_of(grid, data, name)
        valid = found.reason if found.valid is None else f"{found.valid:.3g}"
        yield name, f"{whole[name].mean():.3f}", f"{last[name].mean():.3f}", claimed, valid


CLAIM = ("figure", "the paper says", "rounds", "more", "less", "more - less, by seed", "verdict")

PAGE = """# {title}

{cite}. `{command}` writes this page from `priority.yaml`.

{DATASET}, `{model}`, N = K_t = {clients} clients of {examples_per_client} examples, T = {rounds} rounds of
L = {local_iterations} iterations, batch {batch}, learning rate {learning_rate}; accuracy on {test_examples:,} test examples;
{many} seeds, which all curves share (model, clients, batches). NbAFL's noise at C = {norm:g}, delta = {delta:g},
epsilon = {epsilon:g}; `at 10`: epsilon 10 for the first-layer weights of the chosen inputs. The paper's own numbers of all these
are lost in the copy at hand, so orders are compared, not values.

![accuracy over rounds](priority.png)

## Claims

Differences in points of accuracy, seed by seed; `holds`, `reversed`: paired t test over the seeds, two-sided, at {level:g}, not
corrected for the number of claims. Rounds: the accuracy is the mean over `all`, or over the `first` or `last` {window}.
The rows on the first rounds, on the three epsilons added up and on a public ranking were written after a first look at the curves.

{judged}

## Every curve

Claimed: the paper's epsilon for one exposure at its delta, for the other weights / for the chosen ones. Valid: for one client
at delta 1e-5 over all rounds, observer of released models, by the ledger: of noises of two sizes the smaller counts.

{listed}
"""


def page(grid: dict[str, Any], data: Dataset, rows: pd.DataFrame) -> str:
    """Return the page: what was claimed, measured, and what the epsilons are."""
    fields = {**grid, **grid["federation"], **grid["calibration"], "DATASET": grid["dataset"].upper(), "level": LEVEL}
    curve = ("curve", "accuracy, all rounds", f"last {grid['window']}", "epsilon claimed", "valid")
    tables = {
        "judged": markdown_table(CLAIM, judged(grid, rows)),
        "listed": markdown_table(curve, listed(grid, data, rows)),
    }
    return PAGE.format(**fields, **tables, many=len(grid["seeds"]))


def draw(grid: dict[str, Any], rows: pd.DataFrame, path: Path) -> None:
    """Draw the mean over seeds of the accuracy over rounds, with the range over seeds, a panel for each figure."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, (title, names) in zip(figure.subplots(2, 2, sharey=True).flat, grid["panels"].items(), strict=True):
        for name, dash in zip(names, ("-", "--", "-.", ":"), strict=False):
            found = rows[rows["curve"] == name].pivot_table("accuracy", "round", "seed")
            panel.plot(found.index, found.mean(axis=1), dash, label=name)
            panel.fill_between(found.index, found.min(axis=1), found.max(axis=1), alpha=0.15)
        panel.set_title(title)
        panel.set_xlabel("round")
        panel.set_ylabel("accuracy")
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=90, metadata={"Software": None})


def main() -> None:
    """Measure, judge, draw."""
    given = checked(parser(__doc__, "--data-dir", "--page").parse_args())
    torch.set_num_threads(1)
    grid = yaml.safe_load((HERE / "priority.yaml").read_text())
    data = load_dataset(grid["dataset"], given.data_dir)[2]
    many = grid["test_examples"]
    data = dataclasses.replace(data, test_inputs=data.test_inputs[:many], test_targets=data.test_targets[:many])
    if not given.page:
        pd.DataFrame(measure(grid, data)).to_csv(HERE / "priority.csv", index=False)
    rows = pd.read_csv(HERE / "priority.csv")
    (HERE / "priority.md").write_text(page(grid, data, rows))
    draw(grid, rows, HERE / "priority.png")


if __name__ == "__main__":
    one_line(main)
