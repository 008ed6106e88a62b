"""Patches that PEFTLeak reads from the adapters of a vision transformer, by width, batch size, clip and noise.

    python studies/adapter_patches.py [--data-dir FOLDER] [--only TEXT] [--page]

Writes adapter_patches.csv and adapter_patches.md to results/servers; with `--page` only the page, from the existing rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from shared.options import checked, parser
from shared.rows import measured, store_of
from torch import Tensor

from leakbench.attack.methods.adapter_rows import AdapterRows, Patch, read_patches, read_pictures
from leakbench.attack.servers.peftleak import PatchBins, patches_of
from leakbench.box import box_of
from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.scripts import markdown_table, one_line
from leakbench.core.types import Network
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import draw_victims, public_examples, sent_to_clients, truth, view_of
from leakbench.federated.view import View
from leakbench.limits.reference import alone_patches
from leakbench.measure.statistics import proportion
from leakbench.reproduce.choose import chosen
from leakbench.study.rows import Row

RESULTS = Path(__file__).parents[1] / "results" / "servers"
RECIPES = Path(__file__).parent / "recipes"

NETWORK, BATCHES, TOLERANCE = "vit_tiny_patch8", 5, 0.02
READ, NEAR = 0.01, 0.05
"""RMSE up to which a patch is read, and up to which it is near."""


@dataclass(frozen=True)
class Setting:
    """One row: width of the adapters, batch size, and a recipe of a defense that the attacker knows or not."""

    width: int
    batch: int
    defense: str = "none"
    knows: Literal["oblivious", "defense"] = "oblivious"
    attack: str = "peftleak"


def _recipe(name: str) -> str:
    return str(RECIPES / f"{name}.yaml")


CLIP, WEAK, STRONG = (_recipe(f"clip_4{noise}") for noise in ("", "_sum_sigma_0_000001", "_sum_sigma_0_00001"))
LOUD, LOUDER, LOUDEST = (_recipe(f"peftleak_loud{gain}") for gain in ("", "_100", "_1000"))

SETTINGS = {
    **{f"r = {r}, B = {b}": Setting(r, b) for b in (8, 32) for r in (64, 8)},
    "r = 64, B = 8, clip 4": Setting(64, 8, CLIP),
    "loud, r = 64, B = 8": Setting(64, 8, attack=LOUD),
    "gain 100, r = 64, B = 8": Setting(64, 8, attack=LOUDER),
    "gain 1000, r = 64, B = 8": Setting(64, 8, attack=LOUDEST),
    "loud, r = 64, B = 8, sigma 1e-6, oblivious": Setting(64, 8, WEAK, attack=LOUD),
    **{
        f"{gain}, r = 64, B = 8, sigma {sigma}, adaptive": Setting(64, 8, noise, "defense", attack)
        for gain, attack in {"loud": LOUD, "gain 100": LOUDER, "gain 1000": LOUDEST}.items()
        for sigma, noise in {"1e-6": WEAK, "1e-5": STRONG}.items()
    },
}

TEXT = """# Patches that PEFTLeak reads from adapters: CIFAR-10, patches of 8 x 8

{box}
`python studies/adapter_patches.py` writes this page from adapter_patches.csv. The network is `{network}`:
16 patches, 12 blocks, and adapters of width r after each attention and each MLP. The server replaces all
its weights, so that one network is enough. Each row has {batches} updates of one client with B images.

- *Read*, *near*: the share of the patches for which some bin contains them to an RMSE of {read} or
  {near}. Interval by batch.
- *Law*: the expected share of patches that are alone in their bin.
- *Precision*: the share of the bins with an answer (adaptive: of the patches that count) that contain a
  patch to an RMSE of {near}.
- *Baseline*: the share of patches to which the mean public patch of their position has an RMSE of at
  most {near}, without any gradient.
- *Loud*: the outputs of the adapters are a hundred times as large (gain 10), so that noise hides less.
  *Gain 100*, *gain 1000*: a thousand and ten thousand times as large.
- *Sigma*: noise of this multiplier on the sum of examples that are clipped at 4.
- *Adaptive*: the attacker knows the size of the noise. The row counts the patches that were read as the
  attack returns them: grouped to at most B pictures, each patch its posterior mean. The patches that the
  attack fills in do not count. The other rows count the contents of bins.

{table}

The rows of an adapter share one gradient with the head and all other adapters, so that noise far below
that of any DP guarantee reduces this reading, and does not end it. An adaptive attacker reads {weak:.2f} of the
patches at sigma 1e-6 and {strong:.2f} at sigma 1e-5 with the best of the three gains, and has {near_weak:.2f} and
{near_strong:.2f} of them near. Precision has a reference: the mean public patch of a position is near one of
the B patches there in at most B times the baseline ({chance:.2f} for B = 8). A larger gain leaves less
to the noise. Without noise, it reads fewer patches, because rounding errors spoil the reading. No gain between
the three, no layout of the frozen weights against noise, and no reading of several rounds was measured, so
that these rows are not evidence of protection. Pruning, signs and several local iterations were not measured
either.
"""


def measure(name: str, data_dir: Path | None) -> list[Row]:
    """Return the row of a setting."""
    s = SETTINGS[name]
    request = Request(
        dataset="cifar10",
        attack=s.attack,
        defense=s.defense,
        knows=s.knows,
        model=NETWORK,
        leak_model=NETWORK,
        trainable=f"adapters:r={s.width}",
        victims=BATCHES,
        leak_batch=s.batch,
        taps=("type-1",),
        train_rounds=0,
        candidates=BATCHES,
        networks=1,
    )
    cell = prepare(request, data_dir)
    sent = sent_to_clients(cell, Network(*fresh_network(cell, False, 0)), "type-1")
    victims = draw_victims(cell, "type-1", 0, hand_out(cell))
    inputs = truth(cell, "type-1", victims)[0]
    view = view_of(cell, "type-1", 0, victims, torch.arange(len(inputs)), sent)
    bins, method = sent.secret, cell.attack.method
    assert isinstance(method, AdapterRows)
    own = torch.stack([patches_of(each, bins.patch) for each in inputs])
    public = patches_of(public_examples(cell, 2000).inputs, bins.patch).mean(0)
    patches = read_patches(view, bins, TOLERANCE) if view.noise is None else posterior(view, bins, method)
    apart = nearest(patches, own)
    lanes = np.arange(len(apart)).repeat(apart[0].numel())
    read = proportion((apart <= READ).flatten().numpy(), lanes)
    near = proportion((apart <= NEAR).flatten().numpy(), lanes)
    answers = int(patches.possible.sum())
    return [
        {
            "row": name,
            "width": s.width,
            "batch": s.batch,
            "batches": BATCHES,
            "patches": apart.numel(),
            **dict(zip(("read", "read_low", "read_high"), read, strict=True)),
            **dict(zip(("near", "near_low", "near_high"), near, strict=True)),
            "law": alone_patches(bins, s.batch),
            "answers": answers,
            "precision": correct(patches, own) / answers if answers else None,
            "baseline": float(((own - public).square().mean(3).sqrt() <= NEAR).double().mean()),
        }
    ]


def posterior(view: View, bins: PatchBins, method: AdapterRows) -> Patch:
    """Return the patches that were read, as the attack returns them: each is its posterior mean."""
    pictures, read = (each.flatten(0, 1) for each in read_pictures(view, bins, method))
    values, known = patches_of(pictures, bins.patch), patches_of(read.to(pictures), bins.patch).bool().all(2)
    place = torch.arange(values.shape[1]).expand(known.shape)
    lanes = (view.victims, -1)
    none = values.new_zeros(view.victims, view.examples * values.shape[1])
    return Patch(
        values.reshape(*lanes, values.shape[2]), place.reshape(lanes), none[..., None], known.reshape(lanes), none
    )


def distances(patches: Patch, own: Tensor) -> Tensor:
    """Return the RMSE (V, bins, B) of each bin's content to the patches (V, B, P, v) at its position, or infinity."""
    there = patches.place[..., None, None].expand(-1, -1, 1, own.shape[3])
    apart = [
        (patches.values - own[:, b].gather(1, there[:, :, 0])).square().mean(2).sqrt() for b in range(own.shape[1])
    ]
    return torch.stack(apart, 2).masked_fill(~patches.possible[..., None], torch.inf)


def nearest(patches: Patch, own: Tensor) -> Tensor:
    """Return the RMSE (V, B, P) of the patches (V, B, P, v) to the nearest content of a bin of their position."""
    apart = distances(patches, own)
    each = [apart.masked_fill((patches.place != p)[..., None], torch.inf).amin(1) for p in range(own.shape[2])]
    return torch.stack(each, 2)


def correct(patches: Patch, own: Tensor) -> int:
    """Return the number of bins that contain a patch to an RMSE of `NEAR`."""
    return int((distances(patches, own).amin(2) <= NEAR).sum())


def page(rows: pd.DataFrame) -> str:
    """Return the page for these rows."""
    heads = ["row", "read [95 % CI]", "law", "near [95 % CI]", "precision", "baseline", "patches"]
    lines = [
        [
            row["row"],
            share_of(row, "read"),
            f"{row['law']:.2f}",
            share_of(row, "near"),
            "-" if pd.isna(row["precision"]) else f"{row['precision']:.2f}",
            f"{row['baseline']:.2f}",
            f"{row['patches']:,}",
        ]
        for _, row in rows.iterrows()
    ]
    shares = rows.set_index("row")["read"]
    noisy = {
        name: rows[rows["row"].str.endswith(f"sigma {sigma}, adaptive")]
        for name, sigma in {"weak": "1e-6", "strong": "1e-5"}.items()
    }
    weak, strong = (own["read"].max() for own in noisy.values())
    exact = [name for name in shares.index if "sigma" not in name and "gain" not in name]
    verdict = (
        f"Share of the patches read: {'; '.join(f'{shares[name]:.2f} ({name})' for name in exact)}. Behind noise of sigma 1e-6 "
        f"and 1e-5, an adaptive attacker reads {weak:.2f} and {strong:.2f} with the best of three gains (r = 64, B = 8)."
    )
    box = box_of(
        "A server reads the images of a client that trains only adapters of a frozen vision transformer.",
        verdict,
        f"{len(rows)} rows, {BATCHES} updates a row, 1 network, 1 seed.",
        f"{BATCHES} batches a row: the intervals are wide.",
        "python studies/adapter_patches.py",
    )
    return TEXT.format(
        box="\n".join(box),
        network=NETWORK,
        batches=BATCHES,
        read=READ,
        near=NEAR,
        table=markdown_table(heads, lines),
        chance=8 * rows.loc[rows["batch"] == 8, "baseline"].max(),
        weak=weak,
        strong=strong,
        **{f"near_{name}": own["near"].max() for name, own in noisy.items()},
    )


def share_of(row: pd.Series, name: str) -> str:
    """Return a share with its interval."""
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def main() -> None:
    """Measure, and write the page."""
    given = checked(parser(__doc__, "--data-dir", "--only", "--page").parse_args())
    torch.set_num_threads(1)
    store = store_of(RESULTS / "adapter_patches.csv", list(SETTINGS))
    if not given.page:
        measured(
            store,
            chosen(SETTINGS, given.only),
            lambda name: measure(name, given.data_dir),
            lambda row: f"{row['read']:.2f} read, law {row['law']:.2f}",
        )
    (RESULTS / "adapter_patches.md").write_text(page(store.existing.read()), encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
