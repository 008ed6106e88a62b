"""The answer of a run in its first lines: the verdict on the worst leakage point, the others, accuracy, epsilon.

The terminal, the HTML report and `leakbench.run` share these words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from leakbench.core.leakage_points import LeakagePoint, after_rounds, listed, point_name
from leakbench.core.verdict_words import FAILED, IDENTIFIES, INCONCLUSIVE, NO_LEAK, RECONSTRUCTS, VERDICTS
from leakbench.measure.rates import ASR, FEATURES, IDENTIFIED, RECOGNISED, Rate, upper_limit
from leakbench.report.epsilons import audited_training, caveats, epsilons, for_one_example, not_covered
from leakbench.report.verdicts import guaranteed
from leakbench.report.words import all_networks, number, why_unanswered
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.texts import distance_of
from leakbench.summary.verdict import above_baseline

if TYPE_CHECKING:
    from leakbench.auditing.verdict import Audit

__all__ = ["COLOURS", "STYLES", "Finding", "Headline", "headline", "headline_html", "is_above_baseline"]

STYLES = {
    RECONSTRUCTS: "bold red",
    IDENTIFIES: "bold dark_orange",
    NO_LEAK: "bold green",
    INCONCLUSIVE: "bold yellow",
    FAILED: "bold bright_black",
}
"""{verdict: its style on a terminal}. The word is always printed too."""

COLOURS = {
    RECONSTRUCTS: "#c1272d",
    IDENTIFIES: "#c05000",
    INCONCLUSIVE: "#8a6d00",
    FAILED: "#656d76",
    NO_LEAK: "#00704f",
}
"""{verdict: its colour in a notebook}. The word is always shown too."""

AS_ABOVE = "as above"
"""A reason that the first finding has too."""

REASONED = (NO_LEAK, INCONCLUSIVE, FAILED)
"""Verdicts whose result is a reason rather than a count."""

FIRST = ("type-1", "type-0", "type-2", "global")
"""Which leakage point is the headline where several leak equally: first what every client sends."""


@dataclass(frozen=True)
class Finding:
    """The verdict that some leakage points share, in words.

    Args:
        points: Keys of the leakage points, as the summary names them.
        word: The verdict.
        result: What was measured, as "10 of 10 images"; for a reason that the first finding has too, "as above".
        place: Where it was measured, as "from one client's update".
        beside: The number to compare with, as "baseline guess: 0 of 10"; empty without a comparison.
        command: The command that would decide; empty without one.
        guaranteed: What the valid epsilon of the leak guarantees, a sentence; empty without a guarantee.
        caveat: How the finding must not be read, one or two sentences; empty without a caveat.
    """

    points: tuple[str, ...]
    word: str
    result: str
    place: str
    beside: str = ""
    command: str = ""
    guaranteed: str = ""
    caveat: str = ""

    @property
    def text(self) -> str:
        """The finding without its verdict, as "10 of 10 images from one client's update (baseline guess: 0 of 10)"."""
        return " ".join(filter(None, (self.result, self.place, self.beside and f"({self.beside})")))

    @property
    def line(self) -> str:
        """The finding as a headline, as "RECONSTRUCTS: 10 of 10 images from one client's update (...)"."""
        return f"{self.word.upper()}: {self.text}"

    @property
    def names(self) -> str:
        """The leakage points, as a sentence lists them."""
        return listed([point_name(point) for point in self.points])

    @property
    def where(self) -> str:
        """The leakage points before their verdict; a count is that of each of them."""
        return f"{self.names}, each" if len(self.points) > 1 and self.result != AS_ABOVE else self.names

    @property
    def short(self) -> str:
        """The finding below another's headline, as "example gradient (type-2): reconstructs 10 of 10 images"."""
        return f"{self.where}: {self.word}{' ' if self.word in (RECONSTRUCTS, IDENTIFIES) else ': '}{self.result}"


@dataclass(frozen=True)
class Headline:
    """The answer of a run.

    Args:
        findings: The verdicts, the worst first; each leakage point is in one.
        accuracy: Accuracy with the chance level, as "Accuracy: 0.83 (chance 0.05)"; empty where none was measured.
        epsilon: Claimed, valid and audited epsilon in one line; empty where none was computed.
    """

    findings: tuple[Finding, ...]
    accuracy: str
    epsilon: str

    @property
    def verdict(self) -> str:
        """The verdict on the worst leakage point; `inconclusive` without any."""
        return self.findings[0].word if self.findings else INCONCLUSIVE

    def lines(self) -> list[str]:
        """Return the headline as plain text, a line each."""
        first, *others = self.findings or (None,)
        return [
            *([first.line] if first else []),
            *(finding.short for finding in others if finding),
            *dict.fromkeys(finding.caveat for finding in self.findings if finding.caveat),
            *filter(None, (self.accuracy, self.epsilon)),
        ]


def headline(summary: Summary, audit: Audit | None = None, external: bool = False) -> Headline:
    """Return the answer of a run, or of an attack on external updates.

    Args:
        summary: As `leakbench run --json` prints it.
        audit: Audit of the run's defense; None without one.
        external: Whether the updates are external.

    Returns:
        The verdicts, the worst first, then accuracy and epsilon.
    """
    taps = dict(sorted(summary.taps.items(), key=lambda item: _badness(*item)))
    found: list[Finding] = []
    for name, tap in taps.items():
        one = _finding(summary, name, tap)
        one = _external(one, name, tap) if external else one
        # The first stays alone: its place is in the sentence.
        same = next((n for n, other in enumerate(found) if n and _alike(one, other)), None)
        if same is None:
            found.append(one)
        else:
            found[same] = replace(found[same], points=(*found[same].points, name))
    # A long reason is said once.
    found[1:] = [
        replace(one, result=AS_ABOVE) if one.result == found[0].result and one.word in REASONED else one
        for one in found[1:]
    ]
    worst = found[0].points[0] if found else ""
    return Headline(tuple(found), _accuracy(summary), _epsilon(summary, audit, worst))


def _alike(one: Finding, other: Finding) -> bool:
    return replace(one, points=(), place="") == replace(other, points=(), place="")


def _badness(name: str, tap: Tap) -> tuple[float, ...]:
    """Return a key that sorts the worst leakage point first."""
    word, key = tap.verdict, LeakagePoint.of(name).tap
    measured = IDENTIFIED if word == IDENTIFIES else ASR
    found, excluded = (tap.value(field) or 0.0 for field in (measured.name, measured.excluded))
    place = FIRST.index(key) if key in FIRST else len(FIRST)
    return ((*VERDICTS, word).index(word), -float(found), -float(excluded), place)


def headline_html(lines: Sequence[str], verdict: str) -> str:
    """Return the lines of a headline for a notebook, the first in the colour of the verdict."""
    first, *others = map(escape, lines)
    return "<p>" + "<br>".join([f'<b style="color:{COLOURS[verdict]}">{first}</b>', *others]) + "</p>"


def _finding(summary: Summary, name: str, tap: Tap) -> Finding:
    word = tap.verdict
    reason = (tap.verdict_reason or "no reason is recorded").partition("; ")[0]
    limits, beside = _limits(tap), ""
    if word == RECONSTRUCTS:
        result, beside = _reconstructed(tap, reason)
    elif word == IDENTIFIES:
        among = f"{tap.candidates or 0:,}"
        result = f"{_count(tap.identified, tap.victims, 'victims')} among {among} candidates"
        beside = f"chance: 1 in {among}"
    elif word == NO_LEAK:
        result = f"at most {listed([f'{rate} {done}' for rate, _, done in limits])}" if limits else reason
        beside = (
            f"more is excluded at 95 % {all_networks(tap, (ASR, RECOGNISED, IDENTIFIED))}".rstrip() if limits else ""
        )
    elif word == FAILED:
        why = next(iter(tap.unanswered or {}), "")
        result, cause = reason, why_unanswered(summary, tap, why) if why else ""
        beside = "; ".join(filter(None, (cause, "this is not evidence against a leak")))
    else:
        could = listed([f"{do} up to {rate}" for rate, do, _ in limits]) if limits else ""
        result = f"{reason}; could still {could}" if could else reason
    command = tap.verdict_command or ""
    return Finding((name,), word, result, _place(name, tap), beside, command, guaranteed(tap))


def _external(found: Finding, name: str, tap: Tap) -> Finding:
    """Return a finding about external updates: what was reconstructed of them, also where this decides nothing."""
    point, after = _place_of(name)
    victims, batch = tap.victims, tap.batch
    if victims == 1:
        place = f"from this {point}"
    else:
        place = f"from {victims} {point}s" + ("" if batch == 1 else f" of {batch} {_noun(tap)} each")
    found = replace(found, place=f"{place}{after}", command="")
    if found.word != INCONCLUSIVE:
        return found
    total, reason = victims * batch, found.result.partition("; could still")[0]
    beside = [f"baseline guess: {_count(tap.null_asr, total)}"]
    measure = distance_of(tap)
    values = (tap.value(field) for field in (measure.name, measure.baseline))
    apart, guess = (math.inf if value is None else value for value in values)
    if tap.asr and tap.null_asr and apart < guess:
        beside.append(f"median {measure.heading} {apart:.4f}, baseline guess {guess:.4f}")
        within = f"{measure.heading} <= {tap.eta:.3g}"
        caveat = f"The baseline guess is within the success threshold too ({within}); use a smaller one."
    elif tap.asr:
        caveat = f"No verdict follows: {reason}."
    else:
        caveat = f"A failed attack is not protection. No verdict follows: {reason}."
        if apart < guess:  # It may still show what the example was.
            beside.append(f"closer than the baseline guess: median {measure.heading} {apart:.4f} against {guess:.4f}")
    result = f"{_count(tap.asr, total, _noun(tap))} reconstructed"
    return replace(found, result=result, beside="; ".join(beside), caveat=caveat)


def _place_of(name: str) -> tuple[str, str]:
    """Return a leakage point as a sentence has it, and the rounds after which it leaked: ("client update", " after 2 rounds")."""
    point = LeakagePoint.of(name)
    return point_name(point.tap).partition(" (")[0], after_rounds(*point.rounds)


def _reconstructed(tap: Tap, reason: str) -> tuple[str, str]:
    """Return (what was reconstructed, what the baseline guess reaches), by the first measurement that is above the baseline."""
    total, noun = tap.victims * tap.batch, _noun(tap)
    if is_above_baseline(tap, ASR):
        return _count(tap.asr, total, noun), f"baseline guess: {_count(tap.null_asr, total)}"
    if is_above_baseline(tap, FEATURES):
        right, guess = (f"{100 * tap.value(field):.0f} %" for field in (FEATURES.name, FEATURES.baseline))
        return f"{right} of the features of {total} {noun}", f"baseline guess: {guess}"
    if is_above_baseline(tap, RECOGNISED):
        guess = _count(tap.null_recognised, total)
        return f"{_count(tap.recognised, total, noun)} recognisably", f"baseline guess: {guess}"
    return reason.partition(", significantly")[0], ""


def is_above_baseline(tap: Tap, rate: Rate) -> bool:
    """Say whether a measurement is above the baseline guess's, significantly where its interval is known."""
    share, guess = tap.value(rate.name), tap.value(rate.baseline)
    if share is None or guess is None:
        return False
    interval = tap.interval(rate.name)
    if interval is None:
        return bool(share > guess)
    return above_baseline(interval, tap.interval(rate.baseline) or (guess, guess, guess))


def _count(share: float | None, total: int, noun: str = "") -> str:
    """Return a share of a total as "9 of 10 images"; in percent where equally likely candidates count in part."""
    share = share or 0.0
    number_of, noun = share * total, noun.removesuffix("s") if total == 1 else noun
    many = (
        f"{number_of:.0f} of {total}" if abs(number_of - round(number_of)) < 0.01 else f"{100 * share:.0f} % of {total}"
    )
    return f"{many} {noun}".rstrip()


def _noun(tap: Tap) -> str:
    if tap.random_feature_accuracy is not None:
        return "records"
    return "images" if tap.gallery is not None or tap.psnr is not None else "examples"


def _limits(tap: Tap) -> list[tuple[str, str, str]]:
    """Return [(rate that the evidence does not exclude, in whole percents rounded up, what to do, what is done)]."""
    noun = _noun(tap)
    found = [
        (f"{upper_limit(limit)} of the {'victims' if rate is IDENTIFIED else noun}", rate.do, rate.done)
        for rate in (ASR, RECOGNISED, IDENTIFIED)
        if (limit := tap.value(rate.excluded)) is not None
        # A smaller guarantee has its own sentence.
        and not (rate is IDENTIFIED and tap.guaranteed is not None and tap.guaranteed < limit)
    ]
    # Reconstruction and recognition often have the same limit, which is given once.
    return [limit for place, limit in enumerate(found) if all(limit[0] != before[0] for before in found[:place])]


def _place(name: str, tap: Tap) -> str:
    """Return where the attacker read, as "from one client's update"."""
    point, clients = LeakagePoint.of(name), tap.clients
    one, many = f"one {point_name(point.tap)}", f"several {point_name(point.tap)}"
    if point.tap == "type-2":
        one = many = "one example's gradient"
    elif point.tap == "type-1":
        one, many = "one client's update", "one client's updates"
    elif point.tap == "type-0" and clients == 1:
        one, many = "one client's update at the server", "one client's updates at the server"
    elif point.tap == "type-0":
        one, many = f"the sum of {clients} clients' updates", f"sums of {clients} clients' updates"
    elif point.tap == "global":
        one, many = "the global update", "global updates"
    batch = tap.batch
    where = one if batch == 1 else f"{many} of {batch} {_noun(tap)} each"
    return f"from {where}{after_rounds(*point.rounds)}"


def _accuracy(summary: Summary) -> str:
    """Return accuracy with the chance level and why the network is undertrained, where it is."""
    accuracy = summary.accuracy
    if accuracy is None:
        return "Accuracy: not measured, nothing was trained" if summary.rounds == 0 else ""
    chance = summary.chance
    beside = "" if chance is None else f" (chance {number(chance)})"
    why = summary.undertrained
    return f"Accuracy: {number(accuracy)}{beside}{f', undertrained: {why}' if why else ''}"


def _epsilon(summary: Summary, audit: Audit | None, worst: str) -> str:
    """Return the claimed, the valid and the audited epsilon in one line, and the valid one at the worst leakage point."""
    epsilon = summary.epsilon
    claimed, observed = epsilons(summary)
    if not observed:
        return ""
    released = observed[0]
    of_one = for_one_example(summary)
    audited = "" if audit is None else f"audited at least {_audited(audit):.3g}{of_one} ({audit.verdict})"
    if claimed.startswith("none") and released.valid == "none":
        reason = claimed if claimed.startswith("none: no defense") else released.reason or claimed
        return "; ".join(filter(None, (f"Epsilon: none ({_reason(reason)})", audited)))
    differs = " for another training than this one" if caveats(summary) else ""
    said = f"claimed {claimed.replace('none: ', 'none, ')}{differs}"
    if released.valid == "none":
        valid = f"valid none ({_reason(released.reason)})"
    else:
        delta = f" at delta {epsilon.delta:g}" if epsilon.delta else ""
        valid = f"valid {released.valid} for one {epsilon.unit} in the released models{delta}"
    at = next((one for one in observed[1:] if one.observer == LeakagePoint.of(worst).tap), None)
    here = "" if at is None or at.valid == released.valid else f"{at.valid} at the {point_name(at.observer)}"
    line = f"Epsilon: {'; '.join(filter(None, (said, valid, here, audited, audited_training(summary))))}"
    return ". ".join([line, *(sentence.removesuffix(".") for sentence in not_covered(summary))])


def _audited(audit: Audit) -> float:
    """Return the largest epsilon that the audit shows to be exceeded."""
    return max(audit.lower_bound, audit.lower_bound_family or 0.0)


def _reason(text: str) -> str:
    """Return the reason for a missing epsilon, without the word none."""
    return text.removeprefix("none: ") or "no reason is recorded"
