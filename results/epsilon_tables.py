"""Printed epsilons and rounds beside what follows from epsilon_tables.yaml: epsilon_TABLE.csv, epsilon_TABLE.md.

python results/epsilon_tables.py [TABLE ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import optimize

from leakbench.errors import InputError, nearest
from leakbench.privacy.accountants import ORDERS_2017, pld, rdp
from leakbench.privacy.claim import CLAIMS, CompositionClaim, GeyerClaim, MomentsClaim
from leakbench.privacy.claims_composed import sequence
from leakbench.privacy.compositions import composition_costs
from leakbench.privacy.curve import composition_curve, rounds_within, step_divergences
from leakbench.privacy.ledger import Schedule
from leakbench.privacy.mechanism import Mechanism, Mechanisms, merged
from leakbench.privacy.renyi import INTEGER_ORDERS, Reals, epsilon_at
from leakbench.recipe import construct
from leakbench.scripts import markdown_table, one_line

HERE = Path(__file__).parent
WHOLE_2017 = tuple(int(a) for a in ORDERS_2017 if a == int(a))
COLUMNS = ["claim", "data", "reading", "printed", "formula", "renyi", "losses", "verdict", "reason"]

Row = dict[str, Any]
Composed = MomentsClaim | CompositionClaim


def schedule_of(grid: Row, data: str, **changes: Any) -> Schedule:
    """Return the federation of one data set, with some fields changed."""
    facts = {name: value for name, value in grid["federations"][data].items() if name != "examples"}
    return Schedule(**{**grid["federation"], **facts, **changes})


@lru_cache(maxsize=16)
def divergences_after(mechanisms: Mechanisms, orders: tuple[int, ...]) -> Reals:
    """Return (S, A): the Rényi divergence spent after each step; many cells share one sequence."""
    return step_divergences(mechanisms, orders)


def curve(claim: Composed, mechanisms: Mechanisms) -> Reals:
    """Return (S,): what the claim's own formula gives after each single step."""
    if isinstance(claim, CompositionClaim):
        return composition_curve(claim.composition, mechanisms, claim.delta, claim.digits)
    return epsilon_at(WHOLE_2017, divergences_after(mechanisms, WHOLE_2017), claim.delta, "old")


def first(mechanisms: Mechanisms, steps: int) -> Mechanisms:
    """Return the first steps of a sequence."""
    singly = (dataclasses.replace(m, steps=1) for m in mechanisms for _ in range(m.steps))
    return merged(m for m, _ in zip(singly, range(steps), strict=False))


def steps_that_give(printed: float, within: float, claim: Composed, one: Mechanism) -> str:
    """Return how many steps of one mechanism give a printed epsilon, of up to twice as many as it has."""
    found = curve(claim, (dataclasses.replace(one, steps=2 * one.steps),))
    steps = 1 + np.flatnonzero(np.abs(found - printed) <= within)
    given = "no number of" if not steps.size else f"{steps[0]}" if steps.size == 1 else f"{steps[0]} to {steps[-1]}"
    return f"given by {given} steps, {one.steps} are counted"


def epsilons(table: Row, grid: Row) -> Iterator[Row]:
    """Yield the rows of a table of epsilons: one for each claim, data set and reading."""
    for claim, data, name, reading, part in readings(table):
        schedule = schedule_of(grid, data, **({"rounds": table["rounds"][data]} if "rounds" in table else {}))
        if reading.get("pooled"):  # q = B K_t / |D| instead of B / |D_i|.
            batch, everyone = schedule.batch * schedule.clients_per_round, grid["federations"][data]["examples"]
            schedule = dataclasses.replace(schedule, batch=batch, examples_per_client=everyone)
        claimed = part(schedule)
        [one], printed = claimed.mechanisms, claim["printed"][data]
        follows = claimed.epsilon is not None and abs(claimed.epsilon - printed) <= table["within"]
        why = reading.get("because") or steps_that_give(printed, table["within"], part, one)
        # Of a sum without sampling the amplified epsilon is that of the sum alone.
        alone = composition_costs((Mechanism(one.noise_multiplier, 1.0, 1),), part.delta)[0, 0]
        bounds = (account((one,), grid["delta"]) for account in (rdp, pld))
        reason = "" if follows else why.format(alone=alone)
        yield row(claim["name"], data, name, printed, claimed.epsilon, *bounds, reason)


def rounds(table: Row, grid: Row) -> Iterator[Row]:
    """Yield the rows of a table of rounds; a round that is begun counts, and none (nan) where the budget outlasts all."""
    for claim, data, name, reading, part in readings(table):
        schedule = schedule_of(grid, data)
        trained, each = schedule.rounds, schedule.local_iterations
        if reading.get("flat"):  # Every local iteration as a round of its own.
            schedule = dataclasses.replace(schedule, rounds=trained * each, local_iterations=1)
        mechanisms = sequence(part.unit, part.noise_multiplier, schedule)
        after, budget, printed = curve(part, mechanisms), claim["budget"][data], claim["printed"][data]
        fit = rounds_within(after, budget)
        found = math.ceil(fit / each) if fit < len(after) else math.nan
        spent = divergences_after(mechanisms, INTEGER_ORDERS)[printed * each - 1]
        tight = float(epsilon_at(INTEGER_ORDERS, spent, grid["delta"], "tight"))
        losses = pld(first(mechanisms, printed * each), grid["delta"]) if data in table["losses"] else math.nan
        last = printed if fit < len(after) else trained
        why = f"epsilon {after[last * each - 1]:.4g} of the budget {budget:g} after round {last} of {trained}"
        yield row(claim["name"], data, name, printed, found, tight, losses, "" if found == printed else why)


def geyer(table: Row, grid: Row) -> Iterator[Row]:
    """Yield the rows of Geyer et al., Table 1: sigma is looked for, and the released agent is put beside."""
    for claim, releases in itertools.product(table["claims"], table["releases"]):
        sigma, cohort, printed = claim["agent"]["sigma"], claim["agent"]["clients_per_round"], claim["rounds"]
        agent = GeyerClaim(noise_multiplier=sigma, epsilon=table["epsilon"], delta=claim["delta"], releases=releases)
        # 508.5 clients a round on average: counted in halves, since only their ratio to all clients enters.
        mean = round(2 * claim["communication"] / printed)
        schedule = schedule_of(grid, "mnist", clients=2 * claim["clients"], clients_per_round=mean)
        ends = (dataclasses.replace(schedule, rounds=printed + more) for more in (0, 1))
        low, high = (optimize.brentq(excess, 0.3, 30.0, args=(agent, end), xtol=1e-9) for end in ends)
        found = dataclasses.replace(agent, noise_multiplier=(low + high) / 2)
        own = f"no sigma is printed; {low:.4f} to {high:.4f} would give it"
        for part, halves, least in ((found, mean, low), (agent, 2 * cohort, sigma)):
            longer = dataclasses.replace(schedule, clients_per_round=halves, rounds=2000)
            last = rounds_within(part.deltas(longer), part.delta)
            one = Mechanism(least, longer.client_rate, releases * printed)
            bounds = (account((one,), part.delta) for account in (rdp, pld))
            name = f"{'sigma looked for' if part is found else 'released agent'}, {releases} a round"
            other = "" if last == printed else f"sigma {sigma:g} and {cohort} clients a round stop elsewhere"
            yield row(
                claim["name"], f"delta' {part.delta:g}", name, printed, last, *bounds, own if part is found else other
            )


def excess(sigma: float, claim: GeyerClaim, schedule: Schedule) -> float:
    """Return the logarithm of delta after the last round, over its threshold."""
    return math.log(dataclasses.replace(claim, noise_multiplier=sigma).deltas(schedule)[-1] / claim.delta)


def readings(table: Row) -> Iterator[tuple[Row, str, str, Row, Composed]]:
    """Yield (claim, data set, name of the reading, reading, its claim part) of every row of a table."""
    for claim in table["claims"]:
        for data, (name, reading) in itertools.product(claim["printed"], claim["readings"].items()):
            if data in reading.get("only", [data]):
                [(part, fields)] = reading["claim"].items()
                yield claim, data, name, reading, construct(CLAIMS[part], fields)


def row(*cells: Any) -> Row:
    """Return one row: the cells of all columns but the verdict; the reason is empty where a cell follows."""
    return dict(zip(COLUMNS, (*cells[:-1], "does not follow" if cells[-1] else "follows", cells[-1]), strict=True))


def measure(name: str, grid: Row) -> pd.DataFrame:
    """Return all rows of one table, as its CSV has them."""
    table = grid["tables"][name]
    kinds = {"epsilons": epsilons, "rounds": rounds, "geyer": geyer}
    return pd.DataFrame(kinds[table["kind"]](table, grid), columns=COLUMNS).round(6)


def page(table: Row, grid: Row, rows: pd.DataFrame) -> str:
    """Return the page: the command, what the columns are, how many cells follow, every row."""
    cells = rows.assign(follows=rows["verdict"] == "follows").groupby(["claim", "data"], sort=False)["follows"].any()
    none = "; ".join(f"{claim} {data}" for claim, data in cells.index[~cells])
    lines = [
        f"# {table['title']}\n",
        f"`{grid['command']}` writes this page from `epsilon_tables.yaml`, which has the printed values.\n",
        f"{', '.join(table['cite'])}.\n",
        f"{table['text'].strip()}\n",
        f"Of {len(cells)} cells {cells.sum()} follow from one of their readings. From none: {none or '-'}.\n",
    ]
    heads = ("claim", "data", "reading", "printed", "formula", "tight Rényi", "privacy losses", "verdict")
    return "\n".join([*lines, markdown_table(heads, map(line, rows.to_dict("records")))]) + "\n"


def line(row: dict[Any, Any]) -> tuple[str, ...]:
    """Return the cells of one row of the page."""
    numbers = (f"{row['printed']:g}", *(shown(row[column]) for column in ("formula", "renyi", "losses")))
    why = f": {row['reason']}" if row["reason"] else ""
    return (row["claim"], row["data"], row["reading"].replace("|", r"\|"), *numbers, row["verdict"] + why)


def shown(number: float) -> str:
    """Return a number of the page; a dash where there is none."""
    if math.isnan(number):
        return "-"
    return f"{number:.0f}" if number == int(number) else f"{number:.4f}" if number < 1000 else f"{number:.2g}"


def main() -> None:
    """Compute and write the tables."""
    grid = yaml.safe_load((HERE / "epsilon_tables.yaml").read_text())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(grid["tables"]))
    asked = parser.parse_args().tables
    for name in asked:
        if name not in grid["tables"]:
            raise InputError(f"TABLE: unknown name {name!r}{nearest(name, list(grid['tables']))}")
    for name in asked or grid["tables"]:
        rows = measure(name, grid)
        rows.to_csv(HERE / f"epsilon_{name}.csv", index=False)
        (HERE / f"epsilon_{name}.md").write_text(page(grid["tables"][name], grid, rows))


if __name__ == "__main__":
    one_line(main)
