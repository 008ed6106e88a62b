"""The sentences and notes that the terminal and the page share, so that both say the same."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from leakbench.attack.servers.server import HONEST
from leakbench.core.leakage_points import listed, point_name
from leakbench.measure.measures import EDIT_DISTANCE, MEASURES
from leakbench.measure.metrics_tables import NO_FEATURES
from leakbench.measure.rates import ASR, IDENTIFIED, RATES, RECOGNISED, Rate
from leakbench.measure.statistics import networks_limit
from leakbench.measure.unanswered import (
    CLASS_ABSENT,
    DIVERGED,
    NONE_GIVEN,
    NOT_CAUGHT,
    NOT_FINITE,
    NOT_ISOLATED,
    REFUSED,
    SILENT,
)
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.limits import BOUNDS
from leakbench.summary.tap import LEARNS_NOTHING
from leakbench.summary.texts import distance_of
from leakbench.summary.threat import MEANS, printed_threat

__all__ = [
    "UNANSWERED",
    "all_networks",
    "batches",
    "conspicuous",
    "factors",
    "gives_fewer",
    "interval",
    "made_of",
    "notes",
    "number",
    "over_networks",
    "over_rounds",
    "spanned",
    "training",
    "warnings",
    "why_unanswered",
]


def factors(tap: Tap) -> str:
    """Return the size of the leaking batch as `B`, `L x B` or `K x L x B`: K clients of L local iterations of B examples."""
    clients, steps, batch = tap.clients, tap.local_iterations, tap.local_batch
    if clients > 1:
        return f"{clients} x {steps} x {batch}"
    return f"{steps} x {batch}" if steps > 1 else str(tap.batch)


def made_of(tap: Tap) -> str:
    """Return the same in words, in brackets; empty where the examples are one batch of one client."""
    clients, steps, batch = tap.clients, tap.local_iterations, tap.local_batch
    each = f"L = {steps} local iterations of B = {batch}" if steps > 1 else f"B = {batch}"
    if clients > 1:
        return f" (K = {clients} clients, each {each})"
    return f" ({each})" if steps > 1 else ""


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for the eye, or `n/a`."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def interval(tap: Tap, field: str) -> str:
    """Return a share with its interval, `0.85 [0.64, 0.95]`."""
    return spanned(*(tap.value(name) for name in (field, f"{field}_low", f"{field}_high")))


def spanned(*ends: float | None) -> str:
    """Return (share, low, high) as `0.85 [0.64, 0.95]`, or the share alone."""
    share, low, high = map(number, ends)
    return share if "n/a" in (share, low, high) else f"{share} [{low}, {high}]"


def over_networks(summary: Summary) -> list[str]:
    """Return the limits over all networks of the shares near 0 or 1, a sentence for leakage points with the same ones.

    It names these points, unless all have the same ones.
    """
    points: dict[str, list[str]] = {}
    for name, tap in summary.taps.items():
        points.setdefault(_over_networks(tap), []).append(point_name(name))
    if len(points) == 1:
        return list(filter(None, points))
    return [f"{listed(names)}: {text[0].lower()}{text[1:]}" for text, names in points.items() if text]


def _over_networks(tap: Tap) -> str:
    found: dict[str, list[str]] = {}
    for rate in (ASR, RECOGNISED, IDENTIFIED):
        share = tap.value(rate.name)
        limit = None if share is None else networks_limit(share, tap.networks)
        if share is not None and limit is not None:
            end = "at least" if share > limit else "up to"
            found.setdefault(f"{end} {limit:.2f}", []).append(rate.words.removesuffix(" (baseline)"))
    if not found:
        return ""
    limits = "; ".join(f"{listed(names)} {end}" for end, names in found.items())
    return f"Intervals near 0 and 1 are for networks like these {tap.networks}; over all networks: {limits} (95 % confidence)."


def all_networks(tap: Tap, rates: Iterable[Rate]) -> str:
    """Return for which networks an upper limit of rates is, and the largest over all networks; empty where they are the same."""
    shares = (tap.value(rate.name) for rate in rates)
    limits = [limit for s in shares if s is not None and s < 0.5 and (limit := networks_limit(s, tap.networks))]
    if not limits:
        return ""
    return f"for networks like these {tap.networks}; up to {100 * max(limits):.0f} % over all networks"


def batches(summary: Summary) -> str:
    """Return the numbers of victims and examples, what counts as success, and how many examples have no answer."""
    groups: dict[str, list[str]] = {}
    for name, tap in summary.taps.items():
        success = (
            f"success: {distance_of(tap).heading} <= {number(tap.eta, 3)}; identified among {tap.candidates} candidates"
        )
        many, members = tap.victims, tap.batch
        who = f"{many} victims{_spread(summary, tap)}" + (
            "" if members == 1 else f", each in a leak of {members} examples{made_of(tap)}"
        )
        looks = f", {tap.observations} observations of each" if tap.observations > 1 else ""
        lost = tap.failures
        all_of = f" of {many * members} examples" if many and members and members > 1 else ""
        unanswered = f"{lost}{all_of} without a reconstruction{_why(summary, tap)}{_precision(summary, tap)}"
        batch = f"{who}{looks}, {'ranked and not reconstructed' if lost is None else unanswered}"
        groups.setdefault(f"{batch}; {success}", []).append(point_name(name))
    return "\n".join(f"{listed(names)}: {text}" for text, names in groups.items())


def _spread(summary: Summary, tap: Tap) -> str:
    """Return the number of networks, or trainings, over which the victims of a leakage point are spread."""
    if summary.protocol == "live":
        return " of one training"
    return " on one network" if tap.networks == 1 else f" over {tap.networks} networks"


UNANSWERED = {
    REFUSED: "clients refused to send {victims} of {all} updates and sent zeros instead",
    DIVERGED: "the leak of {victims} of {all} victims, or the network that they received, is not finite",
    SILENT: "nothing but zeros leaked of {victims} of {all} victims",
    CLASS_ABSENT: "class {fished}, for which the server fishes, is not in {victims} of {all} batches",
    NOT_CAUGHT: "the server isolated no example of class {fished}, for which it fishes, in {victims} of {all} batches",
    NOT_ISOLATED: "{examples} are others than the one that the server isolates in a batch",
    NONE_GIVEN: "the attack found nothing for {examples}",
    NOT_FINITE: "{examples} of the reconstructions are not finite",
}
"""{why examples have no answer: in words}, in the order of `leakbench.measure.unanswered`'s cases."""


def why_unanswered(summary: Summary, tap: Tap, why: str) -> str:
    """Return in words why examples of a leakage point have no reconstruction; an unknown key, as in older runs, unchanged."""
    counts = (tap.unanswered or {}).get(why)
    if why not in UNANSWERED or counts is None:
        return why
    return UNANSWERED[why].format(**counts, all=tap.victims, fished=summary.fished)


def _why(summary: Summary, tap: Tap) -> str:
    found = [why_unanswered(summary, tap, why) for why in tap.unanswered or {}]
    return f" ({'; '.join(found)})" if found else ""


def gives_fewer(summary: Summary, tap: Tap) -> bool:
    """Say whether precision says more than the ASR: the server lies, or some examples have an answer and some have none."""
    return tap.precision is not None and (bool(tap.failures) or summary.threat != "honest")


def _precision(summary: Summary, tap: Tap) -> str:
    if tap.precision is None or not gives_fewer(summary, tap):
        return ""
    given = tap.victims * tap.batch - (tap.failures or 0)
    return f"; precision {tap.precision:.2f} ({round(tap.precision * given)} of {given} reconstructions right)"


def warnings(summary: Summary) -> list[str]:
    """Return the warnings of a run, each once, with the names of its leakage points."""
    points: dict[str, list[str]] = {}
    for line in summary.warnings:
        point, _, rest = line.partition(": ")
        of_point = rest and point_name(point) != point
        points.setdefault(rest if of_point else line, []).extend([point_name(point)] if of_point else [])
    return [f"{listed(named)}: {line}" if named else line for line, named in points.items()]


def over_rounds(summary: Summary) -> list[str]:
    """Return a line for each leakage point that leaked in several rounds: its success in each, and the worst."""
    lines = []
    curves: Mapping[str, Mapping[str, Any]] = summary.over_rounds or {}
    for tap, curve in curves.items():
        rate = IDENTIFIED if curve[ASR.name][0] is None else ASR
        found = curve[rate.name]
        at = ", ".join(f"{n}: {number(value)}" for n, value in zip(curve["rounds"], found, strict=True))
        most = "as much after each" if len(set(found)) == 1 else f"most leaked after {curve['worst']}"
        lines.append(f"{point_name(tap)} over the rounds: {rate.heading} after {at}; {most}")
    return lines


def training(summary: Summary) -> str:
    """Return the line of accuracy, rounds, threat and protocol."""
    rounds = summary.rounds
    accuracy = f"accuracy {number(summary.accuracy, 3)} after {rounds} {'round' if rounds == 1 else 'rounds'}"
    threat = f"threat: {printed_threat(str(summary.threat))}{_letter(summary)}"
    line = f"{accuracy} | {threat} | protocol: {summary.protocol}{_networks(summary)}"
    told = summary.knowledge
    if not told:
        return line
    granted = [name.replace("_", " ") for name in ("batch_size", "learning_rate") if told[name]]
    defense = "the defense's recipe" if told["defense"] else "nothing of the defense"
    labels = f"labels {told['labels']}" + ("; logits given" if told.get("logits") == "given" else "")
    labels += f"; batch statistics: {told['statistics']}" if told.get("statistics") else ""
    return f"{line} | the attacker knows: model, {', '.join(granted)}, {defense}; {labels}; public: {told['public']}"


def _letter(summary: Summary) -> str:
    """Return the threat model by Carletti et al.; nothing of a run from before there were letters."""
    found = summary.threat_letter
    return f" ({found}: {MEANS[found]})" if found in MEANS else ""


def _networks(summary: Summary) -> str:
    """Return which network leaks, and how the leak was taken where that was chosen."""
    leaking = summary.leak_model or summary.model
    mode, init = summary.victim_mode, summary.init or "default"
    return "".join(
        (
            f" | the leak is from {leaking}" if leaking else "",
            " | clients step by Adam" if summary.client_optimizer == "adam" else "",
            f" | momentum {summary.momentum:g}" if summary.momentum else "",
            f" | weight decay {summary.weight_decay:g}" if summary.weight_decay else "",
            f" | FedProx with proximal {summary.proximal:g}" if summary.algorithm == "fedprox" else "",
            " | SCAFFOLD" if summary.algorithm == "scaffold" else "",
            f" | {summary.epochs} epochs of a client" if summary.epochs else "",
            f" | availability {summary.availability}" if summary.availability else "",
            f" | victims in {mode} mode" if mode else "",
            f" | init: {init}" if init != "default" else "",
            f" | trained: {summary.trainable}" if summary.trainable else "",
            f" | loss: {summary.loss.partition('@')[0].replace('_', ' ')}" if summary.loss else "",
            " | updates read as weights" if summary.reads == "weights" else "",
            " | all rounds seen by one attack" if summary.join_rounds else "",
        )
    )


UNSAID = ("rmse_floor", "rmse_floor_unbiased", "seen")
"""Fields that are absent for the same reason as the bounds next to them."""


SAID_BY_VERDICT = ("verdict_command", "guaranteed", "gallery", "identified_by_reconstruction")
"""Fields whose missing values the verdict, or a column next to them, explains."""


def _headings() -> dict[str, str]:
    """Return {field of a leakage point: its name in a note}."""
    named = {each.name: (each.heading, each.baseline) for each in (*MEASURES, EDIT_DISTANCE, *RATES)}
    named[RECOGNISED.name] = (RECOGNISED.name, RECOGNISED.baseline)  # Its heading has the baseline in brackets.
    found = {name: heading for name, (heading, _) in named.items()}
    found |= {baseline: f"baseline {heading}" for heading, baseline in named.values() if baseline}
    return found | {f"nearest_{name}": f"nearest {named[name][0]}" for name in (EDIT_DISTANCE.name, "rouge_l")}


HEADINGS = _headings()


def notes(summary: Summary, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return [(the field that has no value or needs a note, and where; the reason)], fields with the same reason joined.

    Args:
        without: Fields of leakage points that are not shown, so that they need no note.
    """
    grouped: dict[tuple[str, str], list[str]] = {}
    bounds = {bound.field for bound in BOUNDS}
    for key, reason in summary.notes.items():
        area, _, rest = key.partition(".")
        if area == "epsilon" and summary.has_epsilon:
            continue  # printed next to the number itself
        name, _, field = rest.partition(".")
        if area == "taps" and (
            field in bounds
            or field.endswith(".bound")
            or (field in UNSAID and (name not in summary.taps or summary.taps[name].value(field) is None))
        ):
            continue  # printed among the bounds
        if field in ("asr_ideal", "rmse_ideal", "alone_expected"):
            continue  # printed among the bounds, if any
        if area == "taps" and (field in SAID_BY_VERDICT or field.startswith("excluded_")):
            continue
        if reason in (NO_FEATURES, LEARNS_NOTHING, HONEST) or (area == "taps" and field.partition(".")[0] in without):
            continue  # images, attacks that do not learn, and honest servers do not have this number
        what, where = (HEADINGS.get(field, field), name) if area == "taps" else (key, "")
        grouped.setdefault((what, reason.removeprefix("n/a: ")), []).append(point_name(where))
    together: dict[tuple[str, str], list[str]] = {}
    for (what, reason), places in grouped.items():
        together.setdefault((listed(named) if (named := [*filter(None, places)]) else "", reason), []).append(what)
    lines = []
    for (where, reason), several in together.items():
        what = ", ".join(filter(None, several))
        lines.append((f"{what} at {where}" if what and where else what or where, reason))
    return lines


SAID = {"rows_alike": "rows alike", "d_snr": "D-SNR", "lit_alone": "rows lit by one example alone", "loss": "loss"}
"""The statistics that are numbers."""


def conspicuous(summary: Summary) -> list[str]:
    """Return one line of what clients could see, each with its percentile among honest models; none of an honest server."""
    found = summary.conspicuous
    if not found:
        return []
    built = "another architecture" if found["architecture"]["value"] else "the architecture is the honest one's"
    parts = [f"{said} {_placed(found[name])}" for name, said in SAID.items() if found[name]["value"] is not None]
    return [f"clients could see: {'; '.join([built, *parts])} (percentiles are among honest models)"]


def _placed(found: Mapping[str, float | None]) -> str:
    value, percentile = found["value"], found["percentile"]
    if percentile is None:
        return f"{value:.3g}, which no honest one has"
    return f"{value:.3g}, percentile {percentile:.0f}, honest {found['honest_median']:.3g}"
