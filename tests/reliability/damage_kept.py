"""Damage to files outside of runs: tables as CSV, baselines of a gate, fits and decoded data. None may give a different number."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakbench.attack.fit_store import FitStore
from leakbench.core.answers import Fit
from leakbench.core.errors import InputError
from leakbench.core.fitted import Fitted
from leakbench.data.cache import Cache
from leakbench.gate.baseline import kept_of
from leakbench.reproduce.published import read_any
from leakbench.study.rows import RowFormat, RowStore, of_table
from tests.published_files import RESULTS, published_file
from tests.reliability.edges_runs import called
from tests.reliability.harm import harms
from tests.reliability.tally import Tally

__all__ = ["check_caches", "check_csv", "check_json"]


TABLE = "fed_alpha_cdp_table_10"


def check_csv(tally: Tally, place: Path, flips: int, cuts: int) -> None:
    """Damage a table's CSV: it is refused by name, or gives the same rows. Files older than checksums are still read."""
    place.mkdir(parents=True)
    read = [path for path in sorted(RESULTS.glob("*/*.csv")) if _is_table(path.stem)]
    for path in read if cuts else read[:1]:
        with tally.case(f"{path.name} as it was committed"):
            rows = RowStore(path, _kind(path.stem)).read()
            store = RowStore(place / path.name, _kind(path.stem))
            store.write(rows)
            again = store.read()
            if rows.to_csv() != again.to_csv():
                raise AssertionError("its rows are others with checksums")
    path = place / f"{TABLE}.csv"
    store = RowStore(path, _kind(TABLE))
    store.write(RowStore(published_file(path.name), _kind(TABLE)).read().head(4))
    _each(tally, path, flips, cuts, lambda: store.read().to_csv())


def _is_table(name: str) -> bool:
    try:
        return bool(_kind(name))
    except InputError:
        return False


def _kind(name: str) -> RowFormat:
    return read_any(name).format if name != "frontier" else of_table("claims")


def check_json(tally: Tally, place: Path, run: Path, flips: int, cuts: int) -> None:
    """Damage the baseline of a run: it is refused by name, or gives the same rows."""
    place.mkdir(parents=True)
    path = place / "baseline.json"
    path.write_text(called("baseline", str(run))[1], encoding="utf-8")

    def read() -> str:
        rows, data, told = kept_of(path)
        return f"{rows.to_csv()} {data} {told}"

    _each(tally, path, flips, cuts, read)


def check_caches(tally: Tally, place: Path, flips: int, cuts: int) -> None:
    """Damage decoded data and fits: they are made again, with the same content."""
    arrays = {"inputs": np.arange(60.0).reshape(3, 20), "labels": np.arange(3)}
    cache = Cache(place / "decoded", lambda _: None)

    def decoded() -> str:
        return repr({name: (a.dtype.str, a.tolist()) for name, a in cache("a", lambda: arrays).items()})

    decoded()
    _each(tally, place / "decoded" / "a.npz", flips, cuts, decoded, refused=False)
    origin = {"method": "made here", "seed": 0}

    def fitted() -> str:
        made = Fitted(origin, {"w": torch.arange(20.0)}, Fit(1.0, 2))
        found = FitStore(place / "fits", warn=lambda _: None)(origin, lambda: made)
        return repr((found.origin, {n: t.tolist() for n, t in found.tensors.items()}, found.fit.public))

    fitted()
    (kept_fit,) = (place / "fits").iterdir()
    _each(tally, kept_fit, flips, cuts, fitted, refused=False)


def _each(tally: Tally, path: Path, flips: int, cuts: int, read: Callable[[], Any], refused: bool = True) -> None:
    """Damage a file in every way; the reader returns the same content, or a line with the file's name if it may refuse."""
    content, before, rng, told = path.read_bytes(), read(), random.Random(0), 0
    for harm in harms(rng, len(content), flips, cuts):
        if harm.name == "missing" and path.suffix == ".csv":  # Without rows, they are measured.
            continue
        harm.do(path)
        case = f"{path.name}, {harm.name}"
        try:
            found = read()
            tally.expect(found == before, f"{case}: other figures were read")
        except InputError as error:
            told += 1
            one = refused and path.name in str(error) and "\n" not in str(error)
            tally.expect(one, f"{case}: said {str(error)[:200]!r}")
        except Exception as error:
            tally.expect(False, f"{case}: {type(error).__name__}: {str(error)[:200]}")
        path.write_bytes(content)
    if flips > 100 and refused:
        tally.figures.append(f"{path.name}: {told} times refused by its name")
