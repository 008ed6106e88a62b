"""The page of fishing, from the rows that `fishing.py` measured."""

from __future__ import annotations

import textwrap

import pandas as pd

from leakbench.box import box_of
from leakbench.core.scripts import markdown_table

__all__ = ["NETWORKS", "ROWS", "name_of", "page"]

NETWORKS = {
    "lenet_cpl": ("lenet_cpl", 0),
    "cnn": ("cnn", 0),
    "cnn trained": ("cnn", 10),
    "mlp_relu": ("mlp_relu", 0),
    "mlp_relu trained": ("mlp_relu", 10),
}
"""{name in a row: (network, rounds of training)}."""

ROWS = [
    (network, by, kind)
    for network in NETWORKS
    for by in ("class", "feature")
    for kind in ("drawn", "unique", "of one class")
    if (by, kind) not in (("class", "of one class"), ("feature", "unique"))
    and not (by == "feature" and network.startswith("cnn"))
]
"""(network, target, batches): by class in drawn or unique batches, by feature in drawn batches or in those of one class.
The CNN's last layer has no bias for a threshold."""

HEADS = (
    *("network", "by", "batches", "of", "expected", "exactly one", "none", "honest", "as it leaked", "isolated, least"),
    *("AutoLeak on", "RMSE, median", "ASR"),
)

PAGE = """# Fishing on CIFAR-10

{box}
Y. Wen et al., "Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification",
ICML 2022, arXiv:2202.00580. `python studies/fishing.py` writes this page from its rows; `fishing.csv`
has a row for each batch. `--only "NETWORK, BY, BATCHES"` measures a row again.

CIFAR-10, batches of 32, FedSGD, client update (type-1), no defense, class 0. The server rewrites the
last layer by class, or by the feature and threshold that most probably isolate one example, judged on
5,000 public examples (of the test split).

- *drawn*: the batch is drawn from all examples.
- *unique*: the batch has one example of class 0 and 31 of other classes.
- *of one class*: all examples are of class 0, and the server knows it (share 1).
- *trained*: the network after 10 rounds of 10 clients.

Columns:

- *expected*: the probability of isolating exactly one example, estimated on the public examples.
- *exactly one*, *none*: the share of batches in which exactly one example, or no example of class 0,
  was isolated.
- Cosines with the gradient of the isolated example, over batches with exactly one: *honest*, of the
  batch's gradient at the network before the rewrite (median); *as it leaked*, of the batch's gradient
  at the rewritten network (smallest); *isolated*, of the attacker's estimate (smallest).
- *AutoLeak on*: the number of isolated gradients that `autoleak` attacked as single examples, at most
  {inverted}. *ASR*: the share with an RMSE of at most {eta:.3f}.

{table}

{said}
"""


def name_of(network: str, by: str, kind: str) -> str:
    """Return the name of a row."""
    return f"{network}, {by}, {kind}"


def alone(rows: pd.DataFrame) -> pd.Series:
    """Return, for each batch, whether exactly one example was isolated, of class c."""
    return (rows["caught"] == 1) & (rows["others"] == 0)


def line(name: tuple[str, str, str], rows: pd.DataFrame) -> tuple[object, ...]:
    """Return the cells of one line."""
    one = rows[alone(rows)]
    tried = one["rmse"].dropna()
    success = f"{(tried <= rows['eta'].iloc[0]).mean():.2f}" if len(tried) else "n/a"
    shares = (f"{rows['chance'].iloc[0]:.2f}" if name[2] != "unique" else "1", f"{alone(rows).mean():.2f}")
    cosines = (f"{one['honest'].median():.3f}", f"{one['leaked'].min():.5f}", f"{one['isolated'].min():.5f}")
    shown = (f"{tried.median():.4f}" if len(tried) else "n/a", success)
    return (*name, len(rows), *shares, f"{(rows['caught'] == 0).mean():.2f}", *cosines, len(tried), *shown)


def page(rows: pd.DataFrame) -> str:
    """Return the page."""
    groups = {name_of(*row): rows[rows["row"] == name_of(*row)] for row in ROWS}
    held = [(row, groups[name_of(*row)]) for row in ROWS if len(groups[name_of(*row)])]
    most = max(len(found["rmse"].dropna()) for _, found in held)
    table = markdown_table(HEADS, (line(*each) for each in held))
    return PAGE.format(box=_box(rows, most), table=table, inverted=most, eta=rows["eta"].iloc[0], said=said(rows))


def _box(rows: pd.DataFrame, most: int) -> str:
    drawn, unique = (rows[rows["row"].str.endswith(f"class, {kind}")] for kind in ("drawn", "unique"))
    one = rows[alone(rows)]
    tried = one[one["rmse"].notna()]
    solved = int((tried["rmse"] <= tried["eta"]).sum())
    return "\n".join(
        box_of(
            "A server that rewrites the last layer isolates one example of a large batch.",
            f"By class: in {alone(unique).mean():.0%} of batches in which the class has one example, but in"
            f" {alone(drawn).mean():.0%} of drawn batches. "
            f"`autoleak` reconstructs {solved} of the {len(tried)} isolated examples that it attacks.",
            f"{len(rows)} batches of 32, {rows['row'].nunique()} rows.",
            f"CIFAR-10, one class, FedSGD and no defense. `autoleak` attacks at most {most} isolated examples of a row.",
            "python studies/fishing.py",
        )
    )


def said(rows: pd.DataFrame) -> str:
    """Return the conclusions, with numbers from the rows."""
    one = rows[alone(rows)]
    under = int((one["isolated"] < 0.999).sum())
    by = {kind: rows[rows["row"].str.endswith(f"{kind}, drawn")] for kind in ("class", "feature")}
    lines = [
        f"The isolated gradient's cosine is below .999 in {under} of {len(one)} batches with exactly one isolated example.",
        "In drawn batches, a feature isolates one example no more often than the class does:",
        f"{alone(by['feature']).mean():.2f} against {alone(by['class']).mean():.2f} of batches.",
        "Examples of other classes beyond the threshold are isolated too, and the most probable threshold excludes almost none.",
        "No last layer can prevent this, since the gradients of two labels at the same features differ by their rows alone.",
        "The feature attack therefore works on clients with one class. If the feature is the output of a ReLU and zero, the",
        "isolated example changes nothing below the last layer, and only its features, in row c, leak.",
    ]
    return textwrap.fill(" ".join(lines), 100)
