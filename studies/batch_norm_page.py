"""The page of batch normalisation against gradient inversion, from the rows that `batch_norm.py` measured."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from leakbench.box import box_of
from leakbench.core.scripts import markdown_table
from leakbench.measure.statistics import difference_interval, mean_interval, proportion

__all__ = ["BATCHES", "KNOWLEDGE", "NETWORKS", "STAGES", "STEPS", "complete", "page"]

STAGES = ("early", "late")
STEPS = {"early": 0, "late": 300}
"""{stage: number of training steps before the leak}."""

BATCHES = (1, 4)
NETWORKS = 5
"""Number of draws of the first weights that can be measured."""


@dataclass(frozen=True)
class Known:
    """What an attacker does with the statistics of batch normalisation.

    Args:
        normalised: The statistics that normalise a guess.
        prior: The statistics that the prior compares a guess with; empty without the prior.
    """

    normalised: str
    prior: str = ""


KNOWLEDGE = {
    ("eval", "batch"): Known("the server's, as the victim did"),
    ("train", "batch"): Known("its own, as the victim did"),
    ("train", "running"): Known("the server's"),
    ("train", "proxy"): Known("its own", "64 public faces"),
    ("train", "given"): Known("its own", "the victim's batch"),
}
"""{(mode of the victims, choice of `leakbench.experiment.statistics`): what the attacker does}."""


SOURCES = (
    (
        "Geiping et al., NeurIPS 2020, arXiv:2003.14053",
        "Measured in eval mode only ([issue 6](https://github.com/JonasGeiping/invertinggradients/issues/6) of the code).",
        "The rows of eval mode have this setting, with another network.",
    ),
    (
        "Yin et al., CVPR 2021, arXiv:2104.07586",
        "A prior on statistics of batch normalization is part of an attack on batches of ImageNet.",
        "Not the same quantity. Here the prior makes a small difference or none, whichever statistics it has.",
    ),
    (
        "Huang et al., NeurIPS 2021, arXiv:2112.00059",
        "Without the private statistics and labels, attacks are much weaker. The main results are with both"
        " ([issue 4](https://github.com/Princeton-SysML/GradAttack/issues/4) of the code).",
        "Not the same quantity (ResNet-18, CIFAR-10, LPIPS, two assumptions at once). Direction: the same for an attacker that"
        " takes the server's statistics. For one that takes the guess's own, the private statistics make a small difference or"
        " none. The assumption of labels was not varied here.",
    ),
    (
        "Hatamizadeh et al., 2022, arXiv:2202.06924",
        "Attacks of the literature are impractical where clients update the statistics; a new attack works there.",
        "Not the same quantity. An attack that takes the server's statistics fails here too. One that computes them as the"
        " client did succeeds for one image.",
    ),
    (
        "Du et al., 2024, arXiv:2404.05403",
        "Leakage is largest early in training and depends on the network.",
        "Not the same quantity. Direction: the attacks are closer early than late, at this effort. One network was measured.",
    ),
    (
        "Fan et al., 2025, arXiv:2506.08435",
        "Clients' data can be reconstructed in realistic settings.",
        "Not the same quantity. Direction: some images after training, and one image of a batch in train mode.",
    ),
    (
        "Valadi et al., 2025, arXiv:2508.19819, version 1",
        "Eval mode makes attacks much easier. In train mode, only wide and shallow networks with skip connections and"
        " normalization before the activation are attacked.",
        "Not the same quantity. Direction: in batches of 4 eval mode is easier; for one image it takes fewer iterations, and"
        " the result is about as close. This network is wide and shallow, without skip connections.",
    ),
)
"""(source, what it states, how this page compares)."""

TEXT = """# Batch normalization: who knows the statistics of a batch

{box}
`python studies/batch_norm.py` writes this page from batch_norm.csv, which has a row for each image.

The network is `lenet_dlg_gelu_batch_norm`: three convolutions of 12 channels, each with batch
normalization and GELU. The images are LFW at 32 x 32. The server is honest and reads the gradient of
one client's batch (type-1), without a defense. The true labels are given, as the papers on these
statistics assume. All rows of a batch size attack the same images; there are {each} batches for each
draw of the first weights. *Early* is at the first weights. *Late* is the same network after {steps}
steps of SGD in train mode (batches of 64, rate 0.3), with a test accuracy of {low:.2f} to {high:.2f};
the victims are among the training examples.

The search is the same in every row: Inverting Gradients with {iterations:,} iterations of signed Adam
and a total variation of .01. It differs in the statistics that normalize the guess. `proxy` and `given`
add the prior of Huang et al. with its weight of .005. A trial with 200 iterations, which has no rows
here, showed a large difference between the modes for one image: only the attack on eval mode had
converged.

{table}

- *victim*: the mode of the client. In eval mode it normalizes by the running statistics that the server
  sent, in train mode by those of its batch.
- *RMSE*: the mean over images with a 95 % interval over networks; *baseline* is the best guess from
  public faces and the label, without a gradient.
- *better*: the share of images that are closer than the baseline guess. *ASR*: the share within eta
  ({eta:.3f}), with a 95 % interval over networks.
- *difference*: the RMSE minus that of the attacker that normalizes by the guess's own statistics, paired
  by batch, with a 95 % interval over networks. It compares with train mode also in the rows of eval mode.
- *distance*: the median cosine distance to the observed gradient, of the result and of the true images
  in the attacker's network. A distance of the true images above 0 means that the attacker's network
  does not explain the gradient.

## Why the guess needs no statistics

In train mode, the statistics of a batch are functions of the batch. A search over the whole batch
computes them from its guess, as the client did from its examples. The true images then have a distance of
0 to the observed gradient, without any knowledge of the statistics. An attacker that takes the
running statistics instead computes another function. The true images do not explain the gradient there, so
that no search can find them by matching gradients. Results of both attackers are called attacks without
knowledge of the statistics, which may be one reason for contradicting statements.

In batches of {batch}, train mode is harder than eval mode even if the statistics are given. For one image, the
prior of the victim's statistics makes no significant difference at first weights, and the result is a
little worse with it after training (column *difference*).

The statistics that a server solves from a client's running statistics (`inferred`) differ from those of the
batch (`given`) by at most {inferred:.0e} of their length. They are the same attacker, so `inferred` has no row.
Those of public faces (`proxy`) differ by {proxy_early:.2f} early and {proxy_late:.2f} late (medians, one image).

## Published statements

No sentence is quoted. No number is compared, because no source measures the same quantity.

{sources}

## What is excluded

- The searches do not converge: the *distance* of the result is above that of the true images, most of all
  in train mode and late. A row without a reconstruction is not protection, and the late rows do not show that
  trained networks are safe.
- The labels are given. An attacker that counts them is wrong about many of them late.
- One small network, one data set, one local iteration, batches of 1, and {batch} on one network. Several local iterations, deep
  networks, larger batches and other weights of the prior were not measured.
- Five networks for one image a batch, with wide intervals. Intervals at B = {batch} are those of four batches of one network.
- In eval mode, the late network was trained in train mode, so that its running statistics fit the data.
"""

HEADS = (
    "B",
    "batches x networks",
    "leak",
    "victim",
    "guess normalized by",
    "prior",
    "RMSE [95 % CI]",
    "baseline",
    "better",
    "ASR [95 % CI]",
    "difference",
)


def page(rows: pd.DataFrame) -> str:
    """Return the page; cells of networks that lack another row of their batch size are left out.

    Args:
        rows: One for each image, as `batch_norm.py` writes them.
    """
    rows = complete(rows)
    groups = {
        (batch, stage, *known): rows[
            (rows["batch"] == batch)
            & (rows["stage"] == stage)
            & (rows["mode"] == known[0])
            & (rows["statistics"] == known[1])
        ]
        for batch in BATCHES
        for stage in STAGES
        for known in KNOWLEDGE
    }
    groups = {key: group for key, group in groups.items() if len(group) and len(groups[(*key[:2], "train", "batch")])}
    lines = [_line(key, group, groups[(*key[:2], "train", "batch")]) for key, group in groups.items()]
    late, given = rows[rows["stage"] == "late"], rows[rows["statistics"] == "given"]
    main = rows[rows["batch"] == BATCHES[0]]
    proxies = {stage: main[main["stage"] == stage]["error_proxy"].median() for stage in STAGES}
    return TEXT.format(
        box="\n".join(_box(groups, rows)),
        each=main["victim"].nunique() // main["network"].nunique(),
        steps=STEPS["late"],
        low=late["accuracy"].min(),
        high=late["accuracy"].max(),
        table=markdown_table([*HEADS, "distance, true images"], lines),
        eta=rows["eta"].iloc[0],
        inferred=given["error_inferred"].max(),
        proxy_early=proxies["early"],
        proxy_late=proxies["late"],
        sources=markdown_table(("source", "states", "here"), SOURCES),
        iterations=rows["iterations"].max(),
        batch=max(BATCHES),
    )


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of networks and batch sizes with all of their cells."""
    cells = rows.drop_duplicates("row").groupby(["batch", "network"]).size()
    wanted = cells.groupby("batch").transform("max")
    whole = cells[cells == wanted].index
    return rows[pd.MultiIndex.from_frame(rows[["batch", "network"]]).isin(whole)]


def _by_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each batch, and its network."""
    return rows.groupby("victim")[["rmse", "null_rmse", "network", "distance", "distance_of_truth"]].mean()


def _line(key: tuple[int, str, str, str], rows: pd.DataFrame, own: pd.DataFrame) -> list[str]:
    known, means, others = KNOWLEDGE[key[2], key[3]], _by_batch(rows), _by_batch(own)
    apart = difference_interval(means["rmse"] - others["rmse"], network=means["network"])
    return [
        *(
            str(key[0]),
            f"{len(means)} x {means['network'].nunique()}",
            key[1],
            key[2],
            known.normalised,
            known.prior or "-",
        ),
        "{:.3f} [{:.3f}, {:.3f}]".format(*mean_interval(means["rmse"], network=means["network"])),
        f"{means['null_rmse'].mean():.3f}",
        _better(rows),
        "{:.2f} [{:.2f}, {:.2f}]".format(*_asr(rows)),
        "-" if key[2:] == ("train", "batch") else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*apart),
        f"{means['distance'].median():.4f}, {abs(means['distance_of_truth'].median()):.4f}",
    ]


def _asr(rows: pd.DataFrame) -> tuple[float, float, float]:
    return proportion(rows["rmse"] <= rows["eta"], rows["victim"], network=rows["network"])


def _box(groups: dict[tuple[int, str, str, str], pd.DataFrame], rows: pd.DataFrame) -> list[str]:
    def mean(stage: str, mode: str, statistics: str, column: str = "rmse") -> str:
        return f"{_by_batch(groups[BATCHES[0], stage, mode, statistics])[column].mean():.3f}"

    main = rows[rows["batch"] == BATCHES[0]]
    return box_of(
        "An attacker has to know the statistics of the victim's batch to invert a network in train mode.",
        "No: an attacker normalizes its guess by the guess's own statistics, as the client did. For one image at first weights,"
        f" the RMSE is then {mean('early', 'train', 'batch')}, against {mean('early', 'train', 'given')} with the victim's"
        f" statistics and {mean('early', 'eval', 'batch')} in eval mode (baseline guess:"
        f" {mean('early', 'train', 'batch', 'null_rmse')}). A guess that is normalized by the server's statistics fails"
        f" ({mean('early', 'train', 'running')}). After training the three have {mean('late', 'train', 'batch')},"
        f" {mean('late', 'train', 'given')} and {mean('late', 'eval', 'batch')}. In batches of {BATCHES[1]}, eval mode alone is"
        " attacked at this effort.",
        f"{rows['row'].nunique()} cells; {main['victim'].nunique()} images on {main['network'].nunique()} networks for one image a"
        f" batch, {rows[rows['batch'] == BATCHES[1]]['victim'].nunique()} batches of {BATCHES[1]} on one network; one seed.",
        "One small network and one data set. The searches have not converged, so that a failure is not protection.",
        "python studies/batch_norm.py",
    )


def _better(rows: pd.DataFrame) -> str:
    """Return the share of images that are closer than the baseline guess."""
    return f"{(rows['rmse'] < rows['null_rmse']).mean():.2f}"
