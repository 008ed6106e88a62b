"""Which inputs a client ranks as important, round by round, without noise: Figures 3 and 4 of the priority paper.

    python studies/priority_importance.py [--data-dir FOLDER] [--page]

Writes priority_importance.csv, .md and .png into its own folder; with `--page` only the page, from the existing CSV.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from shared.options import checked, parser
from shared.rows import store_of
from torch import Tensor

from leakbench.box import box_of
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator
from leakbench.core.scripts import markdown_table, one_line
from leakbench.core.types import Clock, Generators, Network, Signal
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.defense.importance import IMPORTANCE
from leakbench.defense.nbafl import Calibrated
from leakbench.federated.simulate import train
from leakbench.measure.statistics import difference_interval
from leakbench.models import build, parameters
from leakbench.reproduce.agreement import mean_test
from leakbench.reproduce.verdict import ORDER, Compared, decided

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "papers"
SETTINGS = HERE / "recipes" / "priority" / "mnist_iid.yaml"
SHARE, CENTRE, ROUNDS, SEEDS = 0.1, 18, 4, 3
CALIBRATION = Calibrated(norm=20.0, epsilon=10.0, delta=0.01)
METHODS = ("sensitivity", "variance")


@dataclass
class Recorder:
    """A step of a client that changes nothing and records the importance of its inputs: {method: [(lanes, features)]}."""

    kept: dict[str, list[Tensor]] = field(default_factory=lambda: {method: [] for method in METHODS})

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Rank the inputs, except in a rehearsal (without generators)."""
        if rngs is not None:
            for method, kept in self.kept.items():
                kept.append(IMPORTANCE.parts[method]()(signal, CALIBRATION.uplink(clock, CALIBRATION.epsilon)))
        return signal


def measured(data_dir: Path | None) -> Iterator[tuple[int, Tensor, list[dict[str, Tensor]]]]:
    """Yield (seed, the mean example of each client (N, 28, 28), of each round {method: (N, 28, 28)})."""
    _, recipe, data = load_dataset(str(SETTINGS), data_dir)
    plain, f = resolve("defenses", Defense, "none")[1], recipe.federation
    for seed in range(SEEDS):
        partition = f.partition(data.train_targets, f.clients, f.examples_per_client, generator(seed, "partition"))
        recorder = Recorder()
        model = build("mlp_256", data.shape, data.classes, generator(seed, "model"))
        defense = dataclasses.replace(plain, client=(recorder,))
        found, seen = [], 0
        network = Network(model, parameters(model))
        for now in train(network, data, partition, f, defense, seed, stop_after=ROUNDS):
            parts = {method: torch.cat(kept[seen:]) for method, kept in recorder.kept.items()}
            seen = len(recorder.kept[METHODS[0]])
            found.append({method: part.view(-1, *data.shape[1:]) for method, part in parts.items()})
            print(f"seed {seed}, round {now.round + 1}: accuracy {now.accuracy:.3f}", flush=True)
        means = data.train_inputs[partition.of(torch.arange(f.clients))].mean(1)[:, 0]
        yield seed, means, found


def outside(importance: Tensor, end: str) -> Tensor:
    """Return (N,): the share of the most or least important inputs that is outside the centre; ties count in part."""
    edge = (importance.shape[1] - CENTRE) // 2
    far = torch.ones(importance.shape[1:], dtype=torch.float64)
    far[edge:-edge, edge:-edge] = 0
    flat = importance.flatten(1).double() * (1 if end == "least" else -1)
    many = int(SHARE * flat.shape[1])
    last = flat.kthvalue(many, dim=1, keepdim=True).values
    sure, tied = (flat < last).double(), (flat == last).double()
    weight = sure + tied * (many - sure.sum(1, keepdim=True)) / tied.sum(1, keepdim=True)
    return (weight * far.flatten()).sum(1) / many


def draw(mean: Tensor, rounds: list[dict[str, Tensor]], path: Path) -> None:
    """Draw the mean example of the first client, and below it the importance of its inputs in each round; dark is unimportant."""
    figure = Figure(figsize=(1.5 * (1 + ROUNDS) + 0.3, 3.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 1 + ROUNDS, squeeze=False)
    for place, method in enumerate(METHODS):
        panels[place, 0].axis("off")
        for number, found in enumerate(rounds):
            axes = panels[place, 1 + number]
            # A few inputs are far above the others: the 99 % quantile is the brightest, so that the others can be distinguished.
            shown = found[method][0]
            axes.imshow(shown, cmap="gray", vmin=0, vmax=float(shown.flatten().quantile(0.99)) or 1.0)
            axes.set_title(f"{method}, round {number + 1}", fontsize=8)
    panels[0, 0].axis("on")
    panels[0, 0].imshow(mean, cmap="gray")
    panels[0, 0].set_title("its mean example", fontsize=8)
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=150, metadata={"Software": None})


def page(rows: pd.DataFrame) -> str:
    """Return the page: the positions of the least and the most important inputs."""
    by_seed = rows.groupby(["method", "round", "seed"], sort=False)[["least", "most"]].mean()
    chance = 1 - CENTRE**2 / 28**2
    shares, claims = [], []
    for (method, number), found in by_seed.groupby(level=["method", "round"], sort=False):
        value, low, high = difference_interval((found["least"] - found["most"]).to_numpy())
        shares.append((method, number, *(f"{found[end].mean():.3f}" for end in ("least", "most"))))
        test = mean_test(value, low, high, SEEDS)
        claims.append(Compared(f"{method}, {number}", ORDER, 0.0, value, low, high, test=test, units=f"{SEEDS} seeds"))
    claims = decided(claims)
    reproduced = sum(claim.verdict == "reproduced" for claim in claims)
    box = "\n".join(
        box_of(
            "The outer pixels are unimportant to a client (the paper's Figures 3 and 4).",
            f"{'Yes' if reproduced == len(claims) else 'Partly'}: reproduced for {reproduced} of {len(claims)} methods and rounds.",
            f"{len(METHODS)} measures of importance, {rows['round'].nunique()} rounds, {rows['client'].nunique()} clients,"
            f" {rows['seed'].nunique()} seeds.",
            "MNIST only, without noise; the paper's own settings are unknown.",
            "python studies/priority_importance.py",
        )
    )
    lines = [
        (*share, f"{c.value:.3f} [{c.low:.3f}, {c.high:.3f}]", f"**{c.verdict}**")
        for share, c in zip(shares, claims, strict=True)
    ]
    table = markdown_table(("by", "round", "least", "most", "least - most [95 % CI]", "verdict"), lines)
    return f"""# Figures 3 and 4 of priority-based noise: which inputs a client ranks as important

{box}
M. Talaei and I. Izadi, "Adaptive Differential Privacy in Federated Learning, A Priority-Based
Approach", arXiv 2401.02453, 2024, Figures 3 and 4. `python studies/priority_importance.py` measures and
draws this page again.

MNIST without noise, `mlp_256`, ten clients of 600 examples. The paper's own settings are not available,
so these are the settings of [Figures 5 to 8](priority_figures.md). The r of the sensitivity is that of
NbAFL's noise at epsilon 10; at epsilon 100, as of the noise on all weights, r changes the prediction
for one or two of a client's 200 examples only. The first client of seed 0:

![which inputs are important](priority_importance.png)

The paper states that the outer region, which is dark, has no significant effect. The table shows the
share of the {100 * SHARE:.0f} % least and most important inputs that is outside the central {CENTRE} x {CENTRE} pixels
({chance:.3f} by chance; ties count in part). It is the mean over ten clients, with the 95 % t interval over
{SEEDS} seeds. The claim is reproduced if more of the least than of the most important inputs are outside,
by a two-sided t test at 1 % after Holm's correction over this page.

{table}
"""


def main() -> None:
    """Measure, draw, write."""
    given = checked(parser(__doc__, "--data-dir", "--page").parse_args())
    store = store_of(RESULTS / "priority_importance.csv")
    if not given.page:
        torch.set_num_threads(1)
        rows = []
        for seed, means, rounds in measured(given.data_dir):
            if seed == 0:
                draw(means[0], rounds, RESULTS / "priority_importance.png")
            for number, found in enumerate(rounds):
                for method, importance in found.items():
                    least, most = (outside(importance, end).tolist() for end in ("least", "most"))
                    for client, (low, high) in enumerate(zip(least, most, strict=True)):
                        row = {"method": method, "round": number + 1, "seed": seed, "client": client}
                        rows.append({**row, "least": low, "most": high})
        store.write(pd.DataFrame(rows).sort_values(["method", "round"], kind="stable"))
    (RESULTS / "priority_importance.md").write_text(page(store.existing.read()))


if __name__ == "__main__":
    one_line(main)
