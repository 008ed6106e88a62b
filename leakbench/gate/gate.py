"""Whether a run passes: no more leaks than its baseline had, and none of the limits that were set is passed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import in_table, markdown_table
from leakbench.core.words import epsilon_text
from leakbench.gate.baseline import OF_ATTACK, changed, kept_of
from leakbench.measure.measures import EDIT_DISTANCE, deciding
from leakbench.measure.rates import ASR, EXACT, IDENTIFIED, ROUGE_1
from leakbench.storage.rows_file import points_in, rows_at
from leakbench.summary.compare import Difference, answered, differences

__all__ = ["GateCheck", "GateLimits", "gate", "junit", "lines", "markdown"]

OF_TEXTS = {each.name: each.baseline for each in (EDIT_DISTANCE, EXACT, ROUGE_1)}
"""{measure of texts: its column for the baseline guess}."""

LEAKS = {rate.name: rate.column for rate in (ASR, IDENTIFIED)} | {name: name for name in OF_TEXTS}
"""{measure of a comparison: its column}; more is a worse defense, and a lower edit distance."""

LEVEL = 0.05
"""Level at which a rise is significant; shared by all measures that are checked for a rise."""


@dataclass(frozen=True)
class GateLimits:
    """Limits that a run must satisfy for every baseline; None for no limit.

    Args:
        max_asr: At each leakage point.
        min_accuracy: After the last round.
        max_epsilon: Largest valid epsilon of the released models.
    """

    max_asr: float | None = None
    min_accuracy: float | None = None
    max_epsilon: float | None = None


@dataclass(frozen=True)
class GateCheck:
    """One thing that was checked: what, whether it holds, and in words what was found.

    Args:
        victims: Who broke.
        blind: Whether there are too few victims for it to fail.
    """

    name: str
    holds: bool
    said: str
    victims: tuple[int, ...] = ()
    blind: bool = False


def gate(run: Path, baseline: Path, limits: GateLimits) -> list[GateCheck]:
    """Return every check of a finished run against a baseline, which is a run's folder or a file.

    A measure rose if the 95 % interval of the paired difference is above zero, and both the exact one-sided sign test over
    victims and, over several networks, Student's one-sided test over their mean differences reject at 5 %, divided by the number
    of measures. Of texts, exact sentences and ROUGE-1 must not have risen, and the edit distance must not have fallen, by the
    same tests. A leakage point of the baseline must be in the run. Other settings that
    changed are reported.

    Raises:
        InputError: The two runs attacked different examples, or with different attacks, or one saw more of each gradient.
    """
    rows, data, told = kept_of(run)
    before, before_data, once = kept_of(baseline)
    if told["attack"] != once["attack"]:
        raise InputError(
            f"baseline: {baseline} was attacked by {once['attack']}, the run by {told['attack']}: other attacks, or one that was "
            "changed; write the baseline again"
        )
    measure = deciding(rows)
    if deciding(before) is not measure:
        raise InputError(
            f"baseline: {baseline} has no {measure.heading} of its examples: another kind of data; write the baseline again"
        )
    others = changed(told["settings"], once["settings"])
    for name in OF_ATTACK:
        if name in others:
            raise InputError(
                f"baseline: {baseline}: {name}: {others[name]}: another attack; write the baseline again, or run with what it has"
            )
    found = differences((rows, data), (before, before_data), (str(run), str(baseline)))
    leaks = [d for d in found if d.measure in LEAKS]
    checks = [_risen(d, rows, before, LEVEL / max(1, len(leaks))) for d in leaks]
    return [
        *checks,
        *_alone(rows, before),
        *_within(rows, told, limits),
        *(GateCheck(name, True, f"{what}: not the same system") for name, what in others.items()),
    ]


def _alone(rows: pd.DataFrame, before: pd.DataFrame) -> list[GateCheck]:
    """Return a check for each leakage point that only one of the two has: one that is missing hides what it would show."""
    now, then = points_in(rows), points_in(before)
    missing = [GateCheck(point.key, False, "in the baseline, not in the run") for point in then if point not in now]
    more = [GateCheck(point.key, True, "not in the baseline, nothing to compare") for point in now if point not in then]
    return missing + more


def _risen(d: Difference, rows: pd.DataFrame, before: pd.DataFrame, level: float) -> GateCheck:
    column, distance = LEAKS[d.measure], d.measure == EDIT_DISTANCE.name
    more = d.high < 0 if distance else d.low > 0
    # The p-values are two-sided; that of a rise alone is half of it.
    risen = more and max(d.sign, d.networks_p or 0.0) / 2 < level
    point = next(point for point in points_in(rows) if d.point in (point.key, point.tap))
    now, then = (rows_at(r, point).sort_values(["victim", "member"]) for r in (rows, before))
    # A victim without a reconstruction now, whose number is NaN, did not break.
    mine, theirs = now[column].to_numpy(float), answered(then, column).to_numpy(float)
    broke = now[mine < theirs if distance else mine > theirs]
    victims = tuple(sorted(set(broke["victim"].astype(int))))
    said = (
        f"{d.second:.2f} before, {d.first:.2f} now ({d.difference:+.2f}, 95 % interval [{d.low:+.2f}, {d.high:+.2f}])"
    )
    if column in OF_TEXTS:
        said += f"; baseline guess {now[OF_TEXTS[column]].mean():.2f}"
    # As many victims have to rise, and none to fall, for the sign test to see it.
    least = math.floor(math.log2(1 / level)) + 1
    few = ""
    if d.victims < least:
        few = f"; {d.victims} victims are too few to see a {'fall' if distance else 'rise'}"
    elif more and not risen:
        what, how, none = ("closer", "for", "is less") if distance else ("more", "by", "falls")
        few = f"; {what} than before, but "
        if d.sign / 2 < level:
            few += f"too differently on {d.networks} networks to tell it from chance"
        else:
            few += f"not {how} enough victims to tell it from chance ({least} of {d.victims}, if none {none})"
    return GateCheck(f"{d.point} {d.measure}", not risen, said + few, victims if risen else (), blind=d.victims < least)


def _within(rows: pd.DataFrame, told: dict[str, Any], limits: GateLimits) -> list[GateCheck]:
    checks = []
    if limits.max_asr is not None:
        for point in points_in(rows):
            asr = float((rows_at(rows, point)[ASR.column] == 1).mean())
            said = f"{asr:.2f}, at most {limits.max_asr:g} is allowed"
            name = point.tap if rows["round"].nunique() == 1 else point.key
            checks.append(GateCheck(f"{name} max-asr", asr <= limits.max_asr, said))
    if limits.min_accuracy is not None:
        accuracy = told["accuracy"]
        said = "nothing was trained" if accuracy is None else f"{accuracy:.3f}"
        holds = accuracy is not None and accuracy >= limits.min_accuracy
        checks.append(GateCheck("min-accuracy", holds, f"{said}, at least {limits.min_accuracy:g} is asked for"))
    if limits.max_epsilon is not None:
        epsilon = told["epsilon"]
        said = "no valid epsilon" if epsilon is None else f"{epsilon_text(epsilon, '.4g')} of the released models"
        holds = epsilon is not None and epsilon <= limits.max_epsilon
        checks.append(GateCheck("max-epsilon", holds, f"{said}, at most {limits.max_epsilon:g} is allowed"))
    return checks


def lines(checks: list[GateCheck]) -> list[str]:
    """Return a line a check, failures with who broke, and the sum."""
    said = [f"{'ok    ' if c.holds else 'FAILED'}  {_name(c)}: {c.said}{_who(c)}" for c in checks]
    failed, blind = sum(not c.holds for c in checks), sum(c.blind for c in checks)
    unseen = f"; {blind} of {len(checks)} checks have too few victims to fail" if blind else ""
    return [*said, f"gate: {'passed' if not failed else f'{failed} of {len(checks)} checks failed'}{unseen}"]


def markdown(checks: list[GateCheck], name: str) -> str:
    """Return a page for a pull request."""
    failed = sum(not c.holds for c in checks)
    head = f"### leakbench gate: {'passed' if not failed else 'failed'} ({_text(name)})"
    rows = [("passed" if c.holds else "**failed**", _text(_name(c)), _text(c.said + _who(c))) for c in checks]
    return "\n".join([head, "", markdown_table(("", "check", "found"), rows)]) + "\n"


def junit(checks: list[GateCheck], name: str) -> str:
    """Return a JUnit test suite, a case a check."""
    failed = sum(not c.holds for c in checks)
    suite = ElementTree.Element(
        "testsuite", name=f"leakbench gate {name}", tests=str(len(checks)), failures=str(failed)
    )
    for c in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="leakbench.gate", name=c.name)
        if not c.holds:
            ElementTree.SubElement(case, "failure", message=c.said + _who(c))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _name(check: GateCheck) -> str:
    """Return the name of a check for a reader; JUnit keeps the key of the leakage point."""
    point, space, what = check.name.partition(" ")
    return f"{point_name(point)}{space}{what}"


def _who(check: GateCheck) -> str:
    return f"; victims that broke: {', '.join(map(str, check.victims))}" if check.victims else ""


def _text(words: str) -> str:
    """Return words that stay words in a Markdown table."""
    return in_table(words)
