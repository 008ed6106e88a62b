"""The page of conspicuous.py: statistics of honest and malicious models, and which of them a client refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import torch

from leakbench.box import box_of
from leakbench.core.scripts import markdown_table
from leakbench.defense.refuse import RefuseConspicuous
from leakbench.measure.conspicuous import percentile

__all__ = ["page_of", "refused_by", "thresholds_from"]

SEEN = {"rows_alike": "rows alike", "d_snr": "D-SNR", "lit_alone": "lit alone", "loss": "loss"}
JUDGED = ("rows_alike", "d_snr", "lit_alone")
PLACE = ["dataset", "model", "rounds", "batch"]
HEADS = ["data", "network", "rounds", "B"]
LEVEL, AT = 0.99, 8

PAGE = """# What a client can see of a malicious server's model

{box}
`python studies/conspicuous.py` writes this page from conspicuous.csv, which has a row for each batch.
Honest networks: 20 random initialisations (0 rounds), or one network after {rounds} undefended rounds of
10 clients with 20 local iterations each. Malicious models: each is made from the first initialisation by
a server that knows the batch size. A batch is of one client: {honest} batches for honest networks, {lied}
for malicious ones. {fewer}{same}

`scale_mia` and `seer` learn from public images, `scale_mia` once and `seer` once for each batch size;
the rows do not cover other trainings. Batches of 64 were measured for the network of `seer` alone.

- *Rows alike*: the mean |cosine| between two rows of a weight.
- *D-SNR*: one example's gradient norm divided by the sum of the others' (Garov et al.,
  arXiv:2306.03013).
- *Lit alone*: the rows of a biased linear layer before a ReLU or hardtanh that exactly one example
  activates, as a share of the rows that any example activates.
- Each statistic is the largest over layers. `-`: the network has no such layer, or the batch has one
  example.
- A layer that is added (imprint) also changes the architecture. A client sees this without a threshold.
- `refuse_conspicuous` refuses above {thresholds}. It uses the last two from batches of {least} on.
- The largest {level:.0%} quantile of any network below, at B = {at}: {largest}.
- Of a trained network, rows alike has one value only. Its spread is unknown, so its threshold leaves
  more room.

## What a client refuses

{findings}

The thresholds are chosen on the networks whose false alarms are counted here, so these rates do not
predict the false alarms of other networks.

## Honest networks

Median / 95 % / 99 % over batches. `refused`: the share of batches refused, which is the rate of false
alarms.

{honest_table}

## Malicious models compared with honest networks

Medians over batches. In brackets: the percentile among the honest batches of the same network, rounds
and B (empty if the honest network has no such layer). Then the share of batches refused, by any
statistic and by each alone.

{lies_table}
"""


def refused_by(rows: pd.DataFrame, part: RefuseConspicuous) -> pd.DataFrame:
    """Return, for each batch, whether it is refused by each statistic, and by any."""
    many = torch.tensor(rows["batch"].to_numpy())
    told = {name: torch.tensor(rows[name].to_numpy(dtype=float)) for name in JUDGED}
    found = {name: part.refuses({name: values}, many).numpy() for name, values in told.items()}
    return pd.DataFrame({**found, "any": part.refuses(told, many).numpy()}, index=rows.index)


def thresholds_from(rows: pd.DataFrame) -> dict[str, float]:
    """Return {statistic: the largest 99 % quantile over honest networks at B = 8}, the source of the defaults."""
    honest = rows[(rows["server"] == "honest") & (rows["batch"] == AT)]
    quantiles = honest.groupby(PLACE)[list(JUDGED)].quantile(LEVEL)
    return {name: float(quantiles[name].max()) for name in JUDGED}


def page_of(rows: pd.DataFrame) -> str:
    """Return the page of the batches' rows."""
    part = RefuseConspicuous()
    refused = refused_by(rows, part).add_prefix("refused_")
    rows = pd.concat([rows, refused], axis=1)
    honest, lied = rows[rows["server"] == "honest"], rows[rows["server"] != "honest"]
    return PAGE.format(
        box=_box(honest, lied),
        rounds=rows["rounds"].max(),
        honest=honest.groupby(PLACE).size().max(),
        lied=lied.groupby([*PLACE, "server"]).size().max(),
        fewer=_fewer(honest),
        same=_same(lied),
        thresholds=_listed({name: getattr(part, name) for name in JUDGED}),
        largest=_listed(thresholds_from(rows)),
        level=LEVEL,
        at=AT,
        least=part.least,
        findings="\n".join(f"- {line}" for line in (*_alarms(honest), *_caught(lied))),
        honest_table=markdown_table([*HEADS, *SEEN.values(), "refused"], _honest(honest)),
        lies_table=markdown_table(
            [*HEADS, "server", *SEEN.values(), "refused", *(f"by {SEEN[n]}" for n in JUDGED)], _lies(lied, honest)
        ),
    )


def _box(honest: pd.DataFrame, lied: pd.DataFrame) -> str:
    shares = lied.groupby(["server", "batch"])["refused_any"].mean()
    by_server = [(server, shares[server]) for server in lied["server"].unique()]
    each = "; ".join(f"{name} {found.min():.2f} to {found.max():.2f}" for name, found in by_server)
    alarms = honest.groupby("batch")["refused_any"].mean()
    most = honest.groupby([*PLACE, "batch"])["refused_any"].mean().max()
    false = f"at most {alarms.max():.4f} (B = {alarms.idxmax()}); for a single network: at most {most:.3f}"
    verdict = f"Share refused, over batch sizes: {each}. False alarms over all honest networks: {false}."
    return "\n".join(
        box_of(
            "A client recognises a malicious server's model by statistics of the model on its own batch.",
            verdict,
            f"{len(honest)} batches of honest networks and {len(distinct(lied))} of malicious models.",
            "The thresholds come from the same honest networks. The servers do not adapt to the client's check.",
            "python studies/conspicuous.py",
        )
    )


def distinct(lied: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of malicious models without those that repeat all rows of the same network and server at fewer rounds."""
    found: dict[tuple[Any, ...], list[pd.DataFrame]] = {}
    for (*key, _), rows in lied.groupby(["dataset", "model", "server", "rounds"]):
        values = rows[["batch", *SEEN]].reset_index(drop=True)
        earlier = found.setdefault(tuple(key), [])
        if not any(values.equals(other[values.columns].reset_index(drop=True)) for other in earlier):
            earlier.append(rows)
    return pd.concat([rows for groups in found.values() for rows in groups])


def _same(lied: pd.DataFrame) -> str:
    """Return the paragraph on malicious models that are the same at several rounds; empty without such models."""
    repeated = lied.drop(distinct(lied).index)
    if repeated.empty:
        return ""
    names = " and ".join(f"`{name}`" for name in repeated["server"].unique())
    many, rounds = f"{len(repeated)} of the {len(lied)} rows", repeated["rounds"].max()
    return (
        f"\n\nThe models of {names} are the same at 0 and {rounds} rounds. The evidence above\n"
        f"counts their batches once: {many} of malicious models repeat others."
    )


def _fewer(honest: pd.DataFrame) -> str:
    """Return the sentence on honest networks with fewer batches, or without training; empty without such networks."""
    fewer = [
        f"{own['dataset'].iloc[0]}, {own['model'].iloc[0]}: {own.groupby(PLACE).size().max()}"
        for _, own in honest.groupby(PLACE[:2])
        if not own["rounds"].any()
    ]
    return f"Fewer, and only at random weights: {'; '.join(fewer)}." if fewer else ""


def _alarms(honest: pd.DataFrame) -> Iterator[str]:
    for size, found in honest.groupby("batch"):
        shares = {_place(key): float(each.mean()) for key, each in found.groupby(PLACE[:3])["refused_any"]}
        worst = max(shares, key=lambda place: shares[place])
        where = f", at most {shares[worst]:.3f} ({worst})" if shares[worst] else ""
        yield f"Honest, B = {size}: {found['refused_any'].mean():.4f} of {len(found)} batches{where}."


def _caught(lied: pd.DataFrame) -> Iterator[str]:
    for server, found in lied.groupby("server", sort=False):
        each = (
            f"{of_size['refused_any'].mean():.2f} at B = {size} (by "
            + ", ".join(f"{SEEN[name]} {of_size[f'refused_{name}'].mean():.2f}" for name in JUDGED)
            + ")"
            for size, of_size in found.groupby("batch")
        )
        yield f"{server}: {'; '.join(each)}."


def _place(key: Any) -> str:
    data, network, rounds, *_ = key
    return f"{data}, {network}, {rounds} rounds"


def _honest(honest: pd.DataFrame) -> Iterator[list[object]]:
    for key, found in honest.groupby(PLACE, sort=False):
        spread = (" / ".join(_number(float(found[name].quantile(at))) for at in (0.5, 0.95, LEVEL)) for name in SEEN)
        yield [*key, *(cell.replace("- / - / -", "-") for cell in spread), f"{found['refused_any'].mean():.3f}"]


def _lies(lied: pd.DataFrame, honest: pd.DataFrame) -> Iterator[list[object]]:
    of_honest = dict(iter(honest.groupby(PLACE)))
    for key, found in lied.groupby([*PLACE, "server"], sort=False):
        placed = (_placed(float(found[name].dropna().median()), of_honest[key[:-1]][name]) for name in SEEN)
        yield [*key, *placed, *(f"{found[f'refused_{name}'].mean():.2f}" for name in ("any", *JUDGED))]


def _placed(value: float, honest: pd.Series) -> str:
    at = percentile(value, honest)
    return _number(value) if at is None else f"{_number(value)} ({at:.0f})"


def _listed(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{SEEN[name]} {value:.2f}" for name, value in values.items() if value is not None)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
