"""Write results/checks/audits.md: how often audits of trainings are right, on DP-SGD of which the epsilon is known.

    python studies/audits.py [--only TEXT] [--page]

Needs no data: each training is a loop of 20 steps on the digits of scikit-learn, with 1000 canary gradients. Writes audits.csv,
audits.md and audits.png into results/checks; with `--page` only the page and the figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats
from shared.options import parser
from shared.rows import measured, store_of
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakbench import canaries
from leakbench.box import box_of
from leakbench.core.scripts import markdown_table, one_line
from leakbench.core.types import Parameters
from leakbench.core.words import epsilon_text
from leakbench.privacy.accountants import best
from leakbench.privacy.mechanism import Mechanism
from leakbench.reproduce.choose import chosen
from leakbench.reproduce.reproduce import write_index
from leakbench.reproduce.table_figures import COLOURS
from leakbench.storage.atomic import write_atomically
from leakbench.study.rows import Row

RESULTS = Path(__file__).parents[1] / "results" / "checks"

RATE, STEPS, CLIP, DELTA, CANARIES = 0.25, 20, 1.0, 1e-5, 1000

EXAMPLES = 500
"""Number of training examples."""

SOUND, BROKEN = 200, 50
"""Number of trainings of a row."""

SETTING = {"steps": STEPS, "rate": RATE, "clip": CLIP, "canaries": CANARIES, "examples": EXAMPLES}

NOISES = (1.0, 2.0, 4.0, 8.0)

DPI = 110


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Args:
        noise: Claimed noise multiplier.
        share: Share of the noise that it adds.
        clips: `example`: each example's gradient is clipped; `tensor`: each tensor of it to the same bound; `none`.
        observed: Whether the auditor knows what the examples add.
    """

    noise: float
    share: float = 1.0
    clips: str = "example"
    observed: bool = True


LOOPS: Mapping[str, Loop] = {
    **{f"sound, noise {noise:g}": Loop(noise) for noise in NOISES},
    **{f"sound, noise {noise:g}, other examples unknown": Loop(noise, observed=False) for noise in NOISES[:2]},
    "half of the noise": Loop(4.0, share=0.5),
    "a quarter of the noise": Loop(4.0, share=0.25),
    "no noise": Loop(4.0, share=0.0),
    "clip of each tensor": Loop(4.0, clips="tensor"),
    "no clip": Loop(4.0, clips="none"),
}

TEXT = """# Audits of trainings whose epsilon is known

{box}
![Lower bounds against the epsilon](audits.png)

DP-SGD of {steps} steps on {examples} digits of scikit-learn: a network with four hidden layers of 64
units, Poisson batches at a rate of {rate:g}, clip {clip:g}, {canaries:,} canary gradients. The epsilon is the
ledger's, at a delta of 1e-5. Both bounds are at 95 % confidence together, so that a sound training may
be found `violated` in 5 of 100.

- *without assumptions*: mean over the trainings, with the range of nine in ten.
- *Gaussian family*: the same for the bound that assumes Gaussian noise with this rate and these steps.
- *violated*: share of the trainings whose larger bound exceeds the epsilon, with its 95 % interval.

{table}

Broken loops claim the epsilon of noise 4. *Clip of each tensor*: the canaries are in the 4 tensors with
at least {canaries:,} coordinates of 10, so that the clip lets a canary pass with twice the bound, as with half
of the noise. A bound below the epsilon does not show that a training is private.
"""


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return the first images (n, 64), in [0, 1], and their labels (n,)."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[:EXAMPLES] / 16, dtype=torch.float32), torch.tensor(labels[:EXAMPLES])


def clipped(grads: Parameters, loop: Loop) -> Parameters:
    """Return the gradients {p: (B, *p)} as the loop clips them."""
    norms = {n: g.flatten(1).norm(dim=1) for n, g in grads.items()}
    whole = torch.stack(list(norms.values())).norm(dim=0)
    if loop.clips == "none":
        return grads
    per = dict.fromkeys(grads, whole) if loop.clips == "example" else norms
    return {
        n: g * (CLIP / per[n].clamp_min(1e-12)).clamp(max=1.0).reshape(-1, *[1] * (g.dim() - 1))
        for n, g in grads.items()
    }


def trained(loop: Loop, seed: int) -> canaries.GradientCanaries:
    """Return the canaries of one training."""
    rng = torch.Generator().manual_seed(seed)
    inputs, labels = digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 10))
    weights = {n: p.detach() for n, p in model.named_parameters()}
    found = canaries.gradients(weights, CANARIES, rate=RATE, seed=seed)

    def loss(own: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, own, (x[None],)), y[None])

    for _ in range(STEPS):
        batch = torch.rand(len(labels), generator=rng) < RATE
        joined = clipped(found.join(vmap(grad(loss), (None, 0, 0))(weights, inputs[batch], labels[batch])), loop)
        sums = {
            n: g.sum(0) + loop.share * loop.noise * CLIP * torch.randn(g.shape[1:], generator=rng)
            for n, g in joined.items()
        }
        known = {n: g[: batch.sum()].sum(0) for n, g in joined.items()} if loop.observed else None
        found.score(sums, known)
        weights = {n: w - sums[n] / (RATE * len(labels)) for n, w in weights.items()}
    return found


def epsilon(loop: Loop) -> float:
    """Return the epsilon that a loop claims."""
    return best((Mechanism(loop.noise, RATE, STEPS),), DELTA)[0]


def measure(name: str) -> list[Row]:
    """Return the row of a loop."""
    loop = LOOPS[name]
    many, claimed = SOUND if name.startswith("sound") else BROKEN, epsilon(loop)
    # Loops with the same seeds would share the inclusion of the canaries and the draws of the noise.
    first = SOUND * list(LOOPS).index(name)
    audits = [trained(loop, first + seed).audit(claimed, delta=DELTA, gaussian=True) for seed in range(many)]
    bounds = {
        "plain": np.array([a.audit.lower_bound for a in audits]),
        "family": np.array([a.audit.lower_bound_family for a in audits]),
    }
    spread = {
        f"{kind}_{what}": of(values)
        for kind, values in bounds.items()
        for what, of in (
            ("mean", np.mean),
            ("low", lambda v: np.quantile(v, 0.05)),
            ("high", lambda v: np.quantile(v, 0.95)),
        )
    }
    violated = sum(a.verdict == "violated" for a in audits)
    return [{"loop": name, "trainings": many, "epsilon": claimed, **spread, "violated": violated}]


def lines(rows: pd.DataFrame) -> Iterator[list[str]]:
    """Yield the lines of the table."""
    for _, row in rows.iterrows():
        low, high = stats.binomtest(int(row["violated"]), int(row["trainings"])).proportion_ci(method="wilson")
        bounds = [
            f"{row[f'{kind}_mean']:.2f} [{row[f'{kind}_low']:.2f}, {row[f'{kind}_high']:.2f}]"
            for kind in ("plain", "family")
        ]
        share = f"{row['violated'] / row['trainings']:.3f} [{low:.3f}, {high:.3f}]"
        yield [row["loop"], str(row["trainings"]), epsilon_text(row["epsilon"]), *bounds, share]


def page(rows: pd.DataFrame) -> str:
    """Return the page of all rows."""
    sound = rows[rows["loop"].str.startswith("sound")]
    broken = rows.drop(sound.index)
    table = markdown_table(
        ["loop", "trainings", "epsilon", "without assumptions", "Gaussian family", "violated"], list(lines(rows))
    )
    always = broken[broken["violated"] == broken["trainings"]]["loop"]
    seldom = broken.drop(always.index)
    others = [f"{row['loop']} in {row['violated']} of {row['trainings']}" for _, row in seldom.iterrows()]
    box = box_of(
        "The lower bound of an audit of one training exceeds the valid epsilon in at most 5 % of sound trainings, and finds broken "
        "ones.",
        f"It did in {sound['violated'].sum()} of {sound['trainings'].sum()} sound trainings, at most "
        f"{(sound['violated'] / sound['trainings']).max():.3f} in a row. Found in every training: "
        f"{', '.join(always) or 'none'}. Others: {', '.join(others) or 'none'}.",
        f"{len(rows)} loops, {rows['trainings'].sum():,} trainings.",
        "One small network and one kind of canary.",
        "python studies/audits.py",
    )
    return TEXT.format(box="\n".join(box), table=table, **SETTING)


def drawn(rows: pd.DataFrame) -> Figure:
    """Return the figure: both bounds of the sound loops against the epsilon."""
    figure = Figure(figsize=(5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sound = rows[rows["loop"].str.match(r"^sound, noise [\d.]+$")].sort_values("epsilon")
    for number, (kind, label) in enumerate((("plain", "without assumptions"), ("family", "Gaussian family"))):
        mean = sound[f"{kind}_mean"]
        ends = [mean - sound[f"{kind}_low"], sound[f"{kind}_high"] - mean]
        axes.errorbar(
            sound["epsilon"] + 0.08 * number, mean, ends, color=COLOURS[number], marker="os"[number], label=label
        )
    axes.plot(sound["epsilon"], sound["epsilon"], color="black", ls="--", label="epsilon")
    axes.set(xlabel="valid epsilon", ylabel="audited lower bound")
    axes.set_xticks(list(sound["epsilon"]), [f"{e:.2g}" for e in sound["epsilon"]])
    axes.legend()
    return figure


def main() -> None:
    """Measure the loops, and write the rows, the page and the figure."""
    given = parser(__doc__, "--only", "--page").parse_args()
    store = store_of(RESULTS / "audits.csv", list(LOOPS), first=("loop",))
    if not given.page:
        measured(
            store,
            chosen(list(LOOPS), given.only),
            measure,
            lambda row: f"violated {row['violated']} of {row['trainings']}",
        )
    rows = store.existing.read()
    text = page(rows)
    write_atomically(RESULTS / "audits.md", lambda file: file.write_text(text, encoding="utf-8"))
    write_atomically(
        RESULTS / "audits.png",
        lambda file: drawn(rows).savefig(file, dpi=DPI, format="png", metadata={"Software": None}),
    )
    write_index(RESULTS.parent)


if __name__ == "__main__":
    one_line(main)
