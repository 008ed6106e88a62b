"""The folder that an attack on somebody's update leaves: rows and answers as of a run, a manifest, and a page."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from leakbench import __version__
from leakbench.own.assumed import assumed, with_notes
from leakbench.own.attacked import attack_seen
from leakbench.own.attacker import Attacker
from leakbench.own.normalised import normals
from leakbench.own.seen import Seen
from leakbench.own.table import Outcome, Row, numbers
from leakbench.progress import Reporter
from leakbench.provenance import versions
from leakbench.recipe import describe
from leakbench.report.own import OWN, own_report_into
from leakbench.store import SCHEMA, Run, content_hash, open_run, tensor_hash

__all__ = ["attacked_into"]


def _identity(points: Sequence[tuple[Seen, Attacker]], names: Mapping[str, str], command: str) -> dict[str, Any]:
    """Return what the manifest says from the start; its hash is of all that the answers depend on.

    Args:
        names: Of the dataset, the defense and the attack.
        command: That repeats it.
    """
    attacker = points[0][1]
    recipes = {"attack": attacker.attack} | ({} if attacker.defense is None else {"defense": attacker.defense})
    settings = {
        "taps": {seen.view.tap: _how(seen) for seen, _ in points},
        "success": attacker.eta,
        "seed": attacker.seed,
    } | ({} if attacker.budget is None else {"budget": attacker.budget})
    content = {
        "schema": SCHEMA,
        "version": __version__,
        "kind": OWN,
        "names": dict(names),
        "recipes": {name: describe(recipe) for name, recipe in recipes.items()},
        "data": None if attacker.data is None else attacker.data.content,
        "settings": settings,
        "shown": [_shown(seen) for seen, _ in points],
    }
    return {
        "kind": OWN,
        "hash": content_hash(content),
        "cell": dict(names),
        "seed": attacker.seed,
        "device": "cpu",
        "command": command,
        "versions": versions(),
        "recipes": content["recipes"],
        "settings": settings,
    }


def attacked_into(
    folder: Path,
    points: Mapping[str, tuple[Seen, Attacker]],
    names: Mapping[str, str],
    command: str,
    note: str = "",
    reporter: Reporter | None = None,
    began: float | None = None,
) -> dict[str, Outcome]:
    """Attack {leakage point: what is seen there, by whom}, write the folder, and return what came of each.

    An attack that was interrupted resumes from the searches in the folder, if the update, the model and all options are the same.

    Args:
        note: What to say on the page beside what is assumed, a sentence a line. Raises InputError for a folder that holds
            something else, before anything is attacked.
        reporter: Shows the progress; None makes one.
        began: When a budget began, by `time.monotonic`; None for now.
    """
    each = list(points.values())
    with open_run(folder, _identity(each, names, command)) as run:
        found = {}
        for tap, (seen, attacker) in points.items():
            # A finished attack that is run again starts over: its folder keeps no searches.
            store = None if run.manifest["complete"] else _Kept(run, tap)
            spent = 0.0 if store is None else store.spent
            notes = note or "\n".join(assumed(seen, attacker, True))
            outcome = attack_seen(seen, attacker, reporter, store, spent, began)
            found[tap] = with_notes(outcome, seen, attacker, notes)
        rows = [
            Row(
                tap,
                1,
                found[tap],
                seen.view.victims,
                seen.view.examples,
                "\n".join(filter(None, [found[tap].assumptions, found[tap].note])),
            )
            for tap, (seen, _) in points.items()
        ]
        _write(run, rows, [seen for seen, _ in each])
    return found


@dataclass
class _Kept:
    """The searches of one leakage point, as files in `parts/` of a run's folder, and the seconds that they took."""

    run: Run
    tap: str
    _since: float = field(default_factory=time.perf_counter)
    _one: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spent(self) -> float:
        """Seconds until the last save, of this process and of earlier ones."""
        return float(self.run.manifest["phases"].get(self._phase, 0.0))

    @property
    def _phase(self) -> str:
        return f"attack {self.tap}"

    def read(self, name: str) -> dict[str, Tensor] | None:
        """Return the tensors; None if they are missing or damaged."""
        path = f"parts/{self.tap}.{name}.safetensors"
        with self._one:
            return self.run.read_tensors(path) if self.run.has(path) else None

    def write(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Keep tensors in place of earlier ones of the same name; searches on several threads wait for each other."""
        with self._one:
            now = time.perf_counter()
            self.run.add_seconds(self._phase, now - self._since)
            self._since = now
            self.run.write_tensors(f"parts/{self.tap}.{name}.safetensors", tensors)


def _how(seen: Seen) -> dict[str, Any]:
    view = seen.view
    return {
        "victims": view.victims,
        "shape": list(view.shape),
        "classes": view.classes,
        **{k: v for k, v in dataclasses.asdict(seen.training).items() if k != "note"},
        "reads": view.knowledge.reads,
    }


def _shown(seen: Seen) -> list[str]:
    """Return the hashes of what leaked, of the network, and of the truth, which a score depends on."""
    network = seen.view.network
    truth = {} if seen.inputs is None or seen.labels is None else {"inputs": seen.inputs, "labels": seen.labels}
    modes = [name for name, module in network.model.named_modules() if module.training]
    return [
        *(tensor_hash(t) for t in (seen.view.update, network.parameters, network.statistics, truth)),
        content_hash([repr(network.model), modes, [repr(normal) for normal in normals(network.model)]]),
    ]


def _write(run: Run, rows: Sequence[Row], points: Sequence[Seen]) -> Path:
    """Write rows.parquet where anything was scored, reconstructions.safetensors, and report.html; return the page's path.

    Args:
        rows: What came of each leakage point, whose note holds a sentence a line. reconstructions.safetensors:
            `<tap>.round1.reconstruction` (V, M, *s), in the order of `.truth` where there is one, and `.labels` (V, M), the
            attacker's.
    """
    tensors: dict[str, Tensor] = {}
    scored: list[pd.DataFrame] = []
    for row, seen in zip(rows, points, strict=True):
        if row.outcome is None:
            continue
        key = f"{row.tap}.round{row.round}"
        found = row.outcome
        tensors[f"{key}.labels"] = found.answer.labels
        tensors[f"{key}.reconstruction"] = found.answer.inputs if found.matched is None else found.matched
        if found.rows is not None and seen.inputs is not None:
            tensors[f"{key}.truth"] = seen.inputs.float()
            scored.append(found.rows.assign(verdict=(found.summary or {}).get("verdict")))
    if scored:
        run.write_rows("rows.parquet", pd.concat(scored, ignore_index=True))
    run.write_tensors("reconstructions.safetensors", tensors)
    run.manifest["summary"] = {
        "cell": run.manifest["cell"],
        "taps": {row.tap: row.outcome.summary for row in rows if row.outcome and row.outcome.summary},
        "notes": {f"{row.tap}.{n}": line for row in rows for n, line in enumerate(row.note.split("\n")) if line},
        "distance": {row.tap: numbers(row.outcome.distance) for row in rows if row.outcome},
    }
    run.manifest["complete"] = True
    run.save()
    run.forget("parts/")
    return own_report_into(run)
