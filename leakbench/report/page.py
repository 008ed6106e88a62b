"""The page of one run: one self-contained HTML file that opens anywhere and asks nobody for anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.report.audited import audit_command, audit_of
from leakbench.report.bounds import bounds, seen_at, violations
from leakbench.report.columns import page_columns
from leakbench.report.conspicuous import conspicuous
from leakbench.report.epsilons import caveats, epsilons
from leakbench.report.figures import anytime_figure, rounds_figure, threshold_figure, training_figure
from leakbench.report.finished import Finished, read_finished
from leakbench.report.gallery import galleries
from leakbench.report.legend import legend
from leakbench.report.render import render
from leakbench.report.rows import victims
from leakbench.report.verdicts import verdicts
from leakbench.report.words import notes, over_rounds, reading, training, why_unanswered
from leakbench.store import AFTER, Run, finished_run

__all__ = ["report_into", "write_report"]


def write_report(folder: Path, redact: bool = False) -> Path:
    """Write `report.html` into the folder of a finished run and return its path.

    redact: leave the pictures out.
    Reads manifest.json, rows.parquet, rounds.parquet, reconstructions.safetensors, and audit.json where it is there; equal
    files give an equal page. Raises InputError that names the file which is missing or cannot be read.
    """
    with finished_run(folder) as run:
        return report_into(run, redact)


def report_into(run: Run, redact: bool = False) -> Path:
    """Write `report.html` into a run's folder that this process holds, as `write_report` does."""
    return run.write_text("report.html", _page(read_finished(run.folder, redact)))


def _page(run: Finished) -> str:
    manifest, summary = run.manifest, run.summary
    claimed, observed = epsilons(summary)
    audit = audit_of(run.folder, manifest)
    points = run.points()
    # The page cannot know its own checksum.
    files = {name: checksum for name, checksum in manifest.get("files", {}).items() if name not in AFTER}
    return render(
        "report.html.jinja",
        manifest=manifest,
        summary=summary,
        columns=page_columns(summary),
        reading=reading(summary),
        verdicts=verdicts(summary),
        training=training(summary).split(" | "),
        conspicuous=conspicuous(summary),
        epsilon=summary.get("epsilon") or {},
        caveats=caveats(summary),
        claimed=claimed,
        observed=observed,
        audit=None if audit is None else list(audit.lines()),
        audit_command=audit_command(manifest),
        notes=notes(summary),
        bounds=bounds(summary),
        violations=violations(summary),
        failures=_failures(run.rows, summary),
        legend=legend(summary),
        galleries=galleries(run.arrays, run.rows),
        victims=victims(points),
        training_figure=training_figure(_with_epsilon(run.rounds, summary)),
        over_rounds=over_rounds(summary),
        rounds_figure=rounds_figure(summary.get("over_rounds") or {}),
        anytime_figure=anytime_figure(summary["taps"]),
        threshold_figure=threshold_figure(points, seen_at(summary)),
        files=files,
    )


def _failures(rows: pd.DataFrame, summary: Mapping[str, Any]) -> list[tuple[str, int, str, int]]:
    """Return [(tap, round, reason, how many examples)], in the order of the rows."""
    failed = rows[rows["failure"].astype(bool)]
    kinds = zip(failed["tap"], failed["round"], failed["failure_reason"].fillna(""), strict=True)
    at = {(name.partition("@")[0], tap["round"]): tap for name, tap in summary["taps"].items()}
    return [
        (tap, leak, why_unanswered(summary, at.get((tap, leak), {}), why) or "no reason given", n)
        for (tap, leak, why), n in Counter(kinds).items()
    ]


def _with_epsilon(rounds: pd.DataFrame, summary: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rounds with the valid epsilon that is spent after each, where there is one."""
    spent = (summary.get("epsilon") or {}).get("by_round") or []
    return rounds.assign(epsilon=spent) if spent and len(spent) == len(rounds) else rounds
