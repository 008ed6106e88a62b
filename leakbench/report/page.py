"""The page of one run: a self-contained HTML file that loads nothing from the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from leakbench.auditing.verdict import Audit
from leakbench.core.leakage_points import LeakagePoint, point_name
from leakbench.measure.measures import deciding
from leakbench.report.audited import audit_command, audit_of
from leakbench.report.bounds import bounds, seen_at, violations
from leakbench.report.cards import cards
from leakbench.report.columns import COUNTS, VERDICT, PointColumn, core_columns, page_columns, with_values
from leakbench.report.epsilons import REALISED, WITHOUT_DRAW, Observed, caveats, epsilons, not_covered
from leakbench.report.figures import anytime_figure, rounds_figure, threshold_figure, training_figure
from leakbench.report.finished import Finished, read_finished
from leakbench.report.gallery import galleries
from leakbench.report.headline import headline
from leakbench.report.render import figure, render
from leakbench.report.rows import victims
from leakbench.report.verdicts import verdicts
from leakbench.report.words import conspicuous, notes, over_networks, over_rounds, training, warnings, why_unanswered
from leakbench.storage.store import AFTER, Run, finished_run
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.limits import VERBATIM
from leakbench.summary.threat import LETTERS

__all__ = [
    "EVALUATIONS",
    "Chart",
    "PageLine",
    "below_thresholds",
    "core_table",
    "headlines",
    "kind_of",
    "measures",
    "page_text",
    "report_into",
    "write_report",
]

THREATS = "The threat models of Carletti et al. (SoK: Gradient Inversion Attacks in FL, USENIX Security 2025): "

ISOLATED = "A fishing server isolates one example of a batch of B and leaves the others alone, so that the ASR is at most 1 / B."

ALONE = (
    "An imprint sorts the examples behind an update into bins by one number, such as their brightness. It reads exactly"
    " those that share their bin with no other example."
)

IDEAL = (
    "A server that obtains the whole clipped and noised gradient of an example in a single row and answers with the posterior"
    " mean under a Gaussian of public examples."
)

PERCENTILE = (
    "The share, in percent, of models from an honest server that show a client less of the same than the model that"
    " was sent. Models that show as much count half."
)

D_SNR = (
    "The norm of the largest gradient in a batch over the sum of the norms of all others, in the layer where that is"
    " largest (Garov et al., ICLR 2024). Far above 1, one example dominates the batch."
)


def _legend(summary: Summary) -> dict[str, str]:
    """Return {term: its definition} of the terms that the page of a run uses outside its columns."""
    taps = summary.taps.values()
    seen = summary.conspicuous or {}
    bins = any(tap.alone_expected is not None for tap in taps)
    words = {
        "threat A to H": (
            summary.threat_letter,
            THREATS + "; ".join(f"{letter} {means}" for letter, means in LETTERS.items()) + ".",
        ),
        "by construction": (summary.fished is not None, ISOLATED),
        "alone in its bin": (bins, ALONE),
        "verbatim": (
            bins,
            f"Reconstructed to an RMSE of at most {VERBATIM:g}, a quarter of a step of an 8-bit pixel.",
        ),
        "ideal server": (any(tap.asr_ideal is not None for tap in taps), IDEAL),
        "percentile": (seen, PERCENTILE),
        "D-SNR": ((seen.get("d_snr") or {}).get("value") is not None, D_SNR),
    }
    return {word: meaning for word, (used, meaning) in words.items() if used}


EVALUATIONS = (
    "A success counts from the evaluation after which the attacker's best guess, by its own distance, remains within eta. The"
    " curve ends at the ASR."
)


def below_thresholds(rows: pd.DataFrame) -> str:
    """Return the caption of the curve of the ASR of these rows against the threshold of success."""
    return (
        f"The ASR if another {deciding(rows).heading} counted as success. Only a curve above the grey one, the baseline guess,"
        " shows a leak."
    )


@dataclass(frozen=True)
class Chart:
    """One figure of the page with its title and caption."""

    title: str
    svg: Markup
    caption: str


@dataclass(frozen=True)
class PageLine:
    """One line at the top of a page.

    Args:
        word: Verdict, printed before the text; empty where the text contains it.
        text: The finding in words.
        tone: Class of the colour.
    """

    word: str
    text: str
    tone: str


def write_report(folder: Path, redact: bool = False) -> Path:
    """Write `report.html` into the folder of a finished run; equal files give an equal page.

    Reads manifest.json, rows.parquet, rounds.parquet, reconstructions.safetensors, and audit.json if it exists.

    Args:
        folder: Run folder.
        redact: Whether to leave the pictures out.

    Returns:
        Path of the page.

    Raises:
        InputError: If a file is missing or cannot be read.
    """
    with finished_run(folder) as run:
        return report_into(run, redact)


def report_into(run: Run, redact: bool = False) -> Path:
    """Write `report.html` into a run folder that this process has locked, as `write_report` does."""
    return run.write_text("report.html", page_text(read_finished(run.folder, redact)))


def headlines(summary: Summary, audit: Audit | None = None, external: bool = False) -> list[PageLine]:
    """Return the verdict at each leakage point, the one that leaks most first.

    Args:
        external: As of `headline`.
    """
    findings = headline(summary, audit, external).findings
    first, *others = findings or (None,)
    if first is None:
        return [PageLine("", "Nothing was attacked.", "")]
    found = [PageLine(first.word, first.text, _tone(first.word))]
    found += [PageLine("", _capital(other.short), _tone(other.word)) for other in others if other is not None]
    return found + [PageLine("", caveat, "") for caveat in dict.fromkeys(one.caveat for one in findings) if caveat]


def _tone(word: str) -> str:
    """Return the class of the colour of a verdict."""
    return word.replace(" ", "-")


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def core_table(summary: Summary) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return (headings with their kind, lines) of the table of leakage points, at most six columns."""
    core = (VERDICT, *core_columns(summary))
    headings = [("leakage point", ""), *((column.heading, kind_of(column)) for column in core)]
    return headings, [[point_name(name), *(column.text(tap) for column in core)] for name, tap in summary.taps.items()]


def kind_of(column: PointColumn) -> str:
    """Return the class of a column's cells on a page."""
    return "number" if column.numeric else "verdict"


def measures(columns: Sequence[PointColumn], taps: Sequence[Tap]) -> list[list[str]]:
    """Return a line for each column: its heading, then its text at each leakage point."""
    return [[column.heading, *(column.text(tap) for tap in taps)] for column in columns]


def page_text(run: Finished) -> str:
    """Return the page of a run."""
    manifest, summary = run.manifest, run.summary
    claimed, observed = epsilons(summary)
    audit = audit_of(run.folder, manifest)
    points = run.points()
    columns = with_values((*page_columns(summary), *COUNTS), summary)
    core_headings, core_lines = core_table(summary)
    # The page cannot contain its own checksum.
    files = {name: checksum for name, checksum in manifest.get("files", {}).items() if name not in AFTER}
    return render(
        "report.html.jinja",
        manifest=manifest,
        summary=summary,
        headlines=headlines(summary, audit),
        cards=cards(summary, audit),
        core_headings=core_headings,
        core_lines=core_lines,
        over_networks=over_networks(summary),
        points=[point_name(name) for name in summary.taps],
        columns=columns,
        measures=measures(columns, list(summary.taps.values())),
        verdicts=verdicts(summary),
        training=training(summary).split(" | "),
        conspicuous=conspicuous(summary),
        epsilon=summary.epsilon,
        caveats=caveats(summary),
        not_covered=not_covered(summary),
        claimed=claimed,
        observed=observed,
        observers=[point_name(line.observer) for line in observed],
        epsilons=[[point_name(line.observer), line.valid, line.reason] for line in observed],
        epsilon_measures=_epsilon_measures(observed),
        audit=None if audit is None else list(audit.lines()),
        audit_command=audit_command(manifest),
        notes=notes(summary),
        bounds=(limits := bounds(summary)),
        limited=any("at most " in line for line in limits),
        floored=any("RMSE at least" in line for line in limits),
        violations=violations(summary),
        warnings=warnings(summary),
        failures=_failures(run.rows, summary),
        claims=[
            [c.what, figure(c.claimed), figure(c.measured), c.source or "", c.comment or ""]
            for c in summary.claims or ()
        ],
        legend=_legend(summary),
        galleries=galleries(run.arrays, run.rows),
        victims=victims({point_name(name): rows for name, rows in points.items()}),
        charts=_charts(run, points),
        trained=len(run.rounds) > 0,
        files=files,
    )


def _charts(run: Finished, points: Mapping[str, pd.DataFrame]) -> list[Chart]:
    """Return the figures of a run that have something to show."""
    summary = run.summary
    seen = seen_at(summary)
    bound = " A thin line is the upper bound on any attack at its leakage point." if seen else ""
    rounds_said = " ".join(f"{line}." for line in over_rounds(summary))
    spent = summary.epsilon.by_round
    renyi = (
        " Epsilon after each round is an upper bound by integer Rényi orders, computed at once for all rounds; the valid epsilon,"
        " by the tightest accountant, is below its last point."
        if spent
        else ""
    )
    found = (
        (
            "ASR against threshold",
            threshold_figure(points, seen),
            f"{below_thresholds(run.rows)} The grey curve is the guess of least {deciding(run.rows).heading}; the cross is"
            f" the guess that is best at eta.{bound}",
        ),
        (
            "ASR against work",
            anytime_figure(summary.taps),
            EVALUATIONS,
        ),
        (
            "Leakage over the rounds of training",
            rounds_figure(summary.over_rounds or {}),
            f"{rounds_said} Bands are 95 % intervals.",
        ),
        (
            "Training",
            training_figure(_with_epsilon(run.rounds, summary)),
            "Test accuracy of the global model after each round. V_c is the variance between the clients' updates; U_s is the scale"
            f" of the merged update.{renyi}",
        ),
    )
    return [Chart(title, svg, caption) for title, svg, caption in found if svg is not None]


def _epsilon_measures(observed: Sequence[Observed]) -> list[list[str]]:
    """Return a line for each field of the epsilons, the observers as columns."""
    fields = {
        "valid epsilon": "valid",
        WITHOUT_DRAW: "without_draw",
        REALISED: "realised",
        "sampling rate q": "q",
        "releases": "steps",
        "participations": "participations",
    }
    lines = [[heading, *(str(getattr(line, field)) for line in observed)] for heading, field in fields.items()]
    return [line for line in lines if set(line[1:]) != {"n/a"}]


def _failures(rows: pd.DataFrame, summary: Summary) -> list[list[str]]:
    """Return [leakage point, round, reason, number of examples] for each kind of failure, in the order of the rows."""
    failed = rows[rows["failure"].astype(bool)]
    kinds = zip(failed["tap"], failed["round"], failed["failure_reason"].fillna(""), strict=True)
    at = {(LeakagePoint.of(name).tap, tap.round): tap for name, tap in summary.taps.items()}
    return [
        [
            point_name(tap),
            str(leak),
            why_unanswered(summary, at.get((tap, leak), Tap()), why) or "no reason given",
            f"{n:,}",
        ]
        for (tap, leak, why), n in Counter(kinds).items()
    ]


def _with_epsilon(rounds: pd.DataFrame, summary: Summary) -> pd.DataFrame:
    """Return the rounds with the valid epsilon that is spent after each, if there is one."""
    spent = summary.epsilon.by_round or []
    return rounds.assign(epsilon=pd.Series(spent, rounds.index)) if spent and len(spent) == len(rounds) else rounds
