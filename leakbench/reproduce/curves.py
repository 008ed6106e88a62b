"""Accuracy over rounds: claims of a paper that some rows are above others, tested seed by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from leakbench.core.part import Text, part
from leakbench.measure.statistics import difference_interval
from leakbench.reproduce.agreement import mean_test
from leakbench.reproduce.verdict import DIFFERENT, LEAST_SEEDS, NONE, ORDER, Compared, without_test

__all__ = ["Order", "Rounds", "ordered", "rounds_of"]

Names = Annotated[tuple[Text, ...], Field(min_length=1)]


@part
class Order:
    """A claim that the sum of the accuracies of some rows is above that of others, as a table's file has it.

    Args:
        says: The claim in words.
        more: Names of the rows above.
        less: Names of the other rows.
        rounds: Rounds whose mean accuracy is compared: all, or the first or last few, the window.
        apart: Why the order gets no verdict, such as one that the paper does not claim; empty for a claim of the paper.
    """

    says: Text
    more: Names
    less: Names
    rounds: Literal["all", "first", "last"] = "all"
    apart: str = ""


@dataclass(frozen=True)
class Rounds:
    """What a table says of curves: how many rounds `first` and `last` are, {a panel of the figure: its rows}, and claims."""

    window: int
    panels: Mapping[str, tuple[str, ...]]
    orders: tuple[Order, ...]


def rounds_of(row: Mapping[Any, Any]) -> NDArray[np.floating]:
    """Return (seeds, rounds), the accuracies that a row of a CSV has kept as JSON."""
    return np.array(json.loads(str(row["accuracies"])), dtype=np.float64)


def ordered(
    rounds: Rounds, rows: pd.DataFrame, smaller: Mapping[str, str], collapsed: Mapping[str, str]
) -> list[Compared]:
    """Return each claim of an order whose rows were measured: the difference in points of accuracy and its 95 % t interval.

    The seeds of all rows share what is drawn, so differences are taken seed by seed. `decided` gives the verdicts.

    Args:
        rounds: The claims.
        rows: The measured rows.
        smaller: {cell that was not measured at full size: how it differs}, which decides no order.
        collapsed: {cell with a training that did not learn: the reason why no test is made}.
    """
    kept = {str(row["cell"]): rounds_of(row) for row in rows.to_dict("records")}
    found = []
    for order in rounds.orders:
        if not {*order.more, *order.less} <= kept.keys():
            continue
        many = min(len(kept[name]) for name in (*order.more, *order.less))
        scores = {name: _mean(kept[name][:many], order.rounds, rounds.window) for name in (*order.more, *order.less)}
        apart = 100 * (sum(scores[name] for name in order.more) - sum(scores[name] for name in order.less))
        value, low, high = difference_interval(apart)
        span = "" if order.rounds == "all" else f", {order.rounds} {rounds.window} rounds"
        row = Compared(f"{order.says}{span}", ORDER, 0.0, value, low, high)
        if order.apart:
            found.append(replace(row, verdict=NONE, reason=order.apart))
        elif many < LEAST_SEEDS or smaller.keys() & {*order.more, *order.less}:
            seeds = "one seed" if many == 1 else f"{many} seeds of at least {LEAST_SEEDS}"
            why = dict.fromkeys(smaller[name] for name in (*order.more, *order.less) if name in smaller)
            found.append(
                replace(row, verdict=DIFFERENT, reason="; ".join([*([seeds] if many < LEAST_SEEDS else []), *why]))
            )
        else:
            why = dict.fromkeys(collapsed[name] for name in (*order.more, *order.less) if name in collapsed)
            tested = replace(row, test=mean_test(value, low, high, many), units=f"{many} seeds")
            found.append(without_test(tested, "; ".join(why)))
    return found


def _mean(accuracies: NDArray[np.floating], span: str, window: int) -> NDArray[np.floating]:
    """Return (seeds,), the mean over all rounds, the first or the last few."""
    of = {"all": slice(None), "first": slice(window), "last": slice(-window, None)}[span]
    found: NDArray[np.floating] = accuracies[:, of].mean(1)
    return found
