"""The page of conspicuous.py: what honest networks look like, what lies look like beside them, and whom a client refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import torch

from leakbench.defense.refuse import RefuseConspicuous
from leakbench.measure.conspicuous import percentile
from leakbench.scripts import markdown_table

__all__ = ["page_of", "refused_by", "thresholds_from"]

SEEN = {"rows_alike": "rows alike", "d_snr": "D-SNR", "lit_alone": "lit alone", "loss": "loss"}
JUDGED = ("rows_alike", "d_snr", "lit_alone")
PLACE = ["dataset", "model", "rounds", "batch"]
HEADS = ["data", "network", "rounds", "B"]
LEVEL, AT = 0.99, 8

PAGE = """# What clients can see of a model that a server lies about

`python results/conspicuous.py` writes this page from conspicuous.csv, a row for each batch. Networks are honest: 20 random
initialisations (0 rounds), or one after {rounds} undefended rounds of 10 clients with 20 local iterations each. A lie is what a
server that knows the batch size makes of the first. Batches are of one client each, {honest} of honest networks, {lied} of a lie.

- Rows alike: the mean |cosine| between two rows of a weight. D-SNR: one example's gradient norm over the sum of the others'
  (Garov et al., arXiv:2306.03013). Lit alone: of the rows of a biased linear layer before a ReLU or hardtanh that any example
  lights, the share that exactly one does. Of each the largest over layers counts. `-`: no such layer, or one example.
- A layer that is added (imprint) also changes the architecture, which a client sees without any threshold.
- `refuse_conspicuous` refuses above {thresholds}; at the last two it looks from
  batches of {least} on. Of any network below the largest {level:.0%} quantile at B = {at} is: {largest}.
  Of its rows a trained network shows one value, whose spread is not seen here; there more room is left.

## Whom a client refuses

{findings}

The thresholds are taken from the same networks as the false alarms, so that these are no forecast of others'.

## Honest networks

Median / 95 % / 99 % over batches; the share of batches refused is that of false alarms.

{honest_table}

## Lies beside honest networks

Medians over batches, in brackets their percentile among the honest batches of the same network, rounds and B (none where
the honest network has no such layer); the share of batches refused, and by each statistic alone.

{lies_table}
"""


def refused_by(rows: pd.DataFrame, part: RefuseConspicuous) -> pd.DataFrame:
    """Return, for each batch, whether it is refused by each statistic, and by any."""
    many = torch.tensor(rows["batch"].to_numpy())
    told = {name: torch.tensor(rows[name].to_numpy(dtype=float)) for name in JUDGED}
    found = {name: part.refuses({name: values}, many).numpy() for name, values in told.items()}
    return pd.DataFrame({**found, "any": part.refuses(told, many).numpy()}, index=rows.index)


def thresholds_from(rows: pd.DataFrame) -> dict[str, float]:
    """Return {statistic: the largest 99 % quantile over honest networks at B = 8}, from which the defaults are taken."""
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
        rounds=rows["rounds"].max(),
        honest=honest.groupby(PLACE).size().max(),
        lied=lied.groupby([*PLACE, "server"]).size().max(),
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
    beside = dict(iter(honest.groupby(PLACE)))
    for key, found in lied.groupby([*PLACE, "server"], sort=False):
        placed = (_placed(float(found[name].dropna().median()), beside[key[:-1]][name]) for name in SEEN)
        yield [*key, *placed, *(f"{found[f'refused_{name}'].mean():.2f}" for name in ("any", *JUDGED))]


def _placed(value: float, honest: pd.Series) -> str:
    at = percentile(value, honest)
    return _number(value) if at is None else f"{_number(value)} ({at:.0f})"


def _listed(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{SEEN[name]} {value:.2f}" for name, value in values.items() if value is not None)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
