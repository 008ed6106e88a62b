"""The page of fishing, from the rows that `fishing.py` measured."""

from __future__ import annotations

import pandas as pd

from leakbench.scripts import markdown_table

__all__ = ["NETWORKS", "ROWS", "name_of", "page"]

NETWORKS = {
    "lenet_cpl": ("lenet_cpl", 0),
    "cnn": ("cnn", 0),
    "cnn trained": ("cnn", 10),
    "mlp_relu": ("mlp_relu", 0),
    "mlp_relu trained": ("mlp_relu", 10),
}
"""{what a row calls it: (network, after how many rounds)}."""

ROWS = [
    (network, by, kind)
    for network in NETWORKS
    for by in ("class", "feature")
    for kind in ("drawn", "unique", "of one class")
    if (by, kind) not in (("class", "of one class"), ("feature", "unique"))
    and not (by == "feature" and network.startswith("cnn"))
]
"""(network, what is fished by, batches): by class of batches as drawn or where it is unique, by feature as drawn or of one class.
The CNN's last layer has no bias for a threshold."""

HEADS = (
    *("network", "by", "batches", "of", "expected", "exactly one", "none", "honest", "as it leaked", "isolated, least"),
    *("AutoLeak on", "RMSE, median", "ASR"),
)

PAGE = """# Fishing on CIFAR-10

Y. Wen et al., "Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification", ICML 2022, arXiv:2202.00580.
`python results/fishing.py` writes this page from its rows; `fishing.csv` has a row a batch. A row is measured again by
`--only "NETWORK, BY, BATCHES"`.

CIFAR-10, batches of 32, FedSGD at type-1, no defense, class 0. The server rewrites the last layer, by class or by the feature and
threshold that 5,000 public examples (of the test split) make likeliest to catch one. Batches: *drawn* from all examples;
*unique*: one of class 0 and 31 of others; *of one class*: all of class 0, which the server is told (share 1). *Trained*: after
10 rounds of 10 clients.

Expected: the chance of catching exactly one example, by the public ones. Exactly one: of how many batches that held. None:
nobody of class 0 was caught. Cosines to the gradient of the example that was caught, over batches with exactly one: *honest*, of
the batch's gradient at the network that was not rewritten, median; *as it leaked*, of the batch's gradient, at the network that was
sent, least; *isolated*, of what the attacker makes of it, least. AutoLeak gets the first {inverted} of these as single
examples; ASR: RMSE at most {eta:.3f}.

{table}

{said}
"""


def name_of(network: str, by: str, kind: str) -> str:
    """Return the name of a row."""
    return f"{network}, {by}, {kind}"


def alone(rows: pd.DataFrame) -> pd.Series:
    """Say of which batches exactly one example was caught, of class c."""
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
    return PAGE.format(table=table, inverted=most, eta=rows["eta"].iloc[0], said=said(rows))


def said(rows: pd.DataFrame) -> str:
    """Return what follows from the rows, in numbers that they give."""
    one = rows[alone(rows)]
    under = int((one["isolated"] < 0.999).sum())
    by = {kind: rows[rows["row"].str.endswith(f"{kind}, drawn")] for kind in ("class", "feature")}
    lines = [
        f"Of {len(one)} batches that caught exactly one, the isolated gradient's cosine is below .999 in {under}.",
        "In batches as drawn a feature singles out one example no better than the class does:",
        f"{alone(by['feature']).mean():.2f} of batches against {alone(by['class']).mean():.2f}.",
        "Whoever of another class lies beyond the threshold is caught too, and the likeliest threshold silences hardly anybody.",
        "No last layer can prevent this, since the gradients of two labels at the same features differ by their rows alone;",
        "the feature attack is one on clients of one class. Where the feature is a ReLU's and zero, the one that was caught moves",
        "nothing below the last layer, and its features, in row c, are all that leaks.",
    ]
    return "\n".join(lines)
