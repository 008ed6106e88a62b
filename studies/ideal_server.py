"""Fed-CDP's sigma against the number of releases, for a server that has a whole gradient in one row, on real examples.

    python studies/ideal_server.py [--data-dir FOLDER] [--page]

The server has one example's whole clipped gradient in one row and sees R releases of it with noise of sigma times the clip.
Writes ideal_server.csv and ideal_server.md into its own folder; with `--page` only the page, from the existing rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from scipy.integrate import quad
from scipy.stats import norm
from shared.options import parser
from shared.rows import store_of
from torch import Tensor

from leakbench.attack.search.shrinkage import shrinkage_of
from leakbench.box import box_of
from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core.scripts import markdown_table, one_line
from leakbench.limits.reference import DRAWS, PUBLIC, ideal
from leakbench.privacy.bounds import Seen
from leakbench.study.rows import Row

RESULTS = Path(__file__).parents[1] / "results" / "servers"

DATASETS = ("cifar10", "lfw", "mnist", "adult")
SIGMAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 6.0)
RELEASES = (1, 3, 10, 100, 1000)
VICTIMS, CANDIDATES = 200, 1000

TEXT = """# Fed-CDP's sigma against the number of releases, for the ideal server

{box}
Each example's gradient is clipped to C, and noise of sigma C is added to the sum. The most a server can
obtain is the whole clipped gradient of one example in one row, C (x, 1) / |(x, 1)|. From R releases of
the same example it reads x with an error of standard deviation sigma |(x, 1)| / sqrt(R). Its answer is
the posterior mean under a Gaussian fitted to {public:,} public examples, clamped to [0, 1]. A server
whose prior is better than this Gaussian may come closer.

- *RMSE*, *<= .05*, *<= .1*: the median RMSE and the shares within an RMSE of .05 and .1, over {victims}
  examples with {draws} noises each.
- *picked*: how often the nearest of 1,000 known candidates is the right one, over {victims} victims.
- *coded*: how often a server is right whose model gives each candidate its own direction.
- *bound*: the largest success of any attack at this sigma with a prior of 1 in 1,000 (Hayes,
  Mahloujifar, Balle, NeurIPS 2023).

{tables}

{picked}
sqrt(R) / sigma determines the bound: it reaches 10 % after {tenths} releases of
one example.
"""


def coded(shift: float) -> float:
    """Return how often the largest of `CANDIDATES` normal numbers is the one with this mean; the others have mean zero."""
    right = quad(lambda t: norm.pdf(t) * norm.cdf(t + shift) ** (CANDIDATES - 1), -9, 9, limit=200)[0]
    return float(min(1.0, right))


def picked(inputs: Tensor, sigma: float, rng: torch.Generator) -> float:
    """Return how often the server's noisy reading of one of inputs (1000, d) is nearest to that one."""
    victims = inputs[:VICTIMS]
    length = (victims.square().sum(1, keepdim=True) + 1).sqrt()
    read = victims + sigma * length * torch.randn(victims.shape, generator=rng)
    nearest = (2 * read @ inputs.T - inputs.square().sum(1)).argmax(1)
    return float((nearest == torch.arange(VICTIMS)).double().mean())


def measured(dataset: str, data_dir: Path | None) -> list[Row]:
    """Return the rows of one data set."""
    cell = prepare(Request(dataset=dataset, attack="identification", victims=2, train_rounds=0, candidates=2), data_dir)
    prior = shrinkage_of(cell.data.public_inputs[:PUBLIC].flatten(1))
    inputs = cell.data.train_inputs[cell.data.victims][:CANDIDATES].flatten(1)
    rows = []
    for sigma in SIGMAS:
        for releases in RELEASES:
            rng = torch.Generator().manual_seed(0)
            error = sigma / math.sqrt(releases)
            rmse, close = ideal(prior, inputs[:VICTIMS], error, 0.05, torch.Generator().manual_seed(1))
            _, near = ideal(prior, inputs[:VICTIMS], error, 0.1, torch.Generator().manual_seed(1))
            rows.append(
                {
                    "dataset": dataset,
                    "sigma": sigma,
                    "releases": releases,
                    "rmse": float(rmse.median()),
                    "within_0_05": float(close.mean()),
                    "within_0_1": float(near.mean()),
                    "picked": picked(inputs, error, rng),
                    "coded": coded(1 / error),
                    "bound": float(Seen(sigma, releases, ()).robustness([1 / CANDIDATES])[0]),
                }
            )
    return rows


def page(rows: pd.DataFrame) -> str:
    """Return the page for these rows."""
    tables = []
    for dataset in rows["dataset"].unique():
        own = rows[(rows["dataset"] == dataset) & rows["releases"].isin([1, 10, 100])]
        heads = ["sigma", "R", "RMSE", "<= .05", "<= .1", "picked", "coded", "bound"]
        columns = ["rmse", "within_0_05", "within_0_1", "picked", "coded", "bound"]
        lines = [
            [f"{row.sigma:g}", row.releases, *(f"{getattr(row, column):.3f}" for column in columns)]
            for row in own.itertuples()
        ]
        tables.append(f"## {dataset}\n\n{markdown_table(heads, lines)}")
    return TEXT.format(
        box=_box(rows),
        public=PUBLIC,
        victims=VICTIMS,
        draws=DRAWS,
        tables="\n\n".join(tables),
        picked="\n".join(f"- {line}" for line in _picked(rows)) + "\n",
        tenths=tenths(),
    )


def _box(rows: pd.DataFrame) -> str:
    at = {sigma: rows[(rows["sigma"] == sigma) & (rows["releases"] == 1)] for sigma in (0.03, 1.0)}
    many = rows[(rows["sigma"] == 1.0) & (rows["releases"] == 100)]
    return "\n".join(
        box_of(
            "The noise of Fed-CDP hides an example even from the most malicious server.",
            f"At sigma 1, one release lets any server identify a victim among 1,000 with probability at most"
            f" {at[1.0]['bound'].max():.3f}; 100 releases of the same example allow {many['bound'].max():.3f}. At sigma .03,"
            f" one release identifies {at[0.03]['picked'].min():.0%} to {at[0.03]['picked'].max():.0%}.",
            f"{rows['dataset'].nunique()} data sets, {VICTIMS} victims each, {len(rows)} rows. The bound is proven.",
            "`RMSE` and `picked` are of a simulated readout, not of a training. The shares within an RMSE are of a Gaussian"
            " prior; a better prior may come closer.",
            "python studies/ideal_server.py",
        )
    )


def _picked(rows: pd.DataFrame) -> Iterator[str]:
    """Yield, for each noise between none and enough, how often one release is enough to pick the candidate."""
    for sigma in (0.03, 0.1, 0.3, 1.0):
        one = rows[(rows["sigma"] == sigma) & (rows["releases"] == 1)]
        yield (
            f"Sigma {sigma:g}, one release: the right candidate is picked for {one['picked'].min():.3f} to"
            f" {one['picked'].max():.3f} of the victims; at most {one['within_0_1'].max():.3f} are within an RMSE of .1."
        )


def tenths() -> str:
    """Return the number of releases after which the bound reaches 10 % at a prior of 1 in 1,000."""
    shift = norm.ppf(0.1) - norm.ppf(1 / CANDIDATES)
    found = {sigma: math.ceil((sigma * shift) ** 2) for sigma in (1.0, 6.0)}
    return ", ".join(f"{releases} (sigma {sigma:g})" for sigma, releases in found.items())


def main() -> None:
    """Compute the rows and write the page."""
    asked = parser(__doc__, "--data-dir", "--page").parse_args()
    store = store_of(RESULTS / "ideal_server.csv")
    if not asked.page:
        rows = [row for dataset in DATASETS for row in measured(dataset, asked.data_dir)]
        store.write(pd.DataFrame(rows))
    (RESULTS / "ideal_server.md").write_text(page(store.existing.read()), encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
