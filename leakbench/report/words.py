"""The columns, sentences and notes that the terminal and the page share, so that both say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from leakbench.measure.metrics_tables import NO_FEATURES
from leakbench.report.bounds import FIELDS
from leakbench.report.members import made_of
from leakbench.summary.fits import LEARNS_NOTHING

__all__ = [
    "COLUMNS",
    "Column",
    "batches",
    "caveats",
    "epsilons",
    "interval",
    "notes",
    "number",
    "over_rounds",
    "reading",
    "training",
]

Tap: TypeAlias = Mapping[str, Any]
Summary: TypeAlias = Mapping[str, Any]


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for the eye, or `n/a`."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Column:
    """One column of the table of leakage points: its heading, what it means, and its text for one point."""

    heading: str
    meaning: str
    text: Callable[[Tap], str]


def interval(tap: Tap, field: str) -> str:
    """Return a share with its interval, `0.85 [0.64, 0.95]`."""
    share, low, high = (number(tap.get(name)) for name in (field, f"{field}_low", f"{field}_high"))
    return share if "n/a" in (share, low, high) else f"{share} [{low}, {high}]"


def _plain(field: str, digits: int = 2) -> Callable[[Tap], str]:
    return lambda tap: number(tap.get(field), digits)


COLUMNS = (
    Column(
        "ASR [95% CI]",
        "Attack success rate: the share of attacked examples rebuilt to an RMSE of at most eta, where two different "
        "examples of this data set come that close once in a thousand pairs. A search that fails or diverges counts as "
        "a failure. The interval is Wilson's; members of one batch are not counted as independent.",
        lambda tap: interval(tap, "asr"),
    ),
    Column(
        "null ASR",
        "The same for the null attacker, who reads no gradient: the best guess from public data and the victim's label. Only what "
        "lies above it has leaked.",
        _plain("null_asr"),
    ),
    Column(
        "RMSE",
        "Median root mean squared error of pixels or features in [0, 1]; lower is a better reconstruction. Of failed "
        "attacks it measures how the search ended, not protection: a higher RMSE than the null attacker's protects no "
        "better than an equal one.",
        _plain("rmse", 4),
    ),
    Column("null RMSE", "Median RMSE of the null attacker's guess.", _plain("null_rmse", 4)),
    Column("PSNR", "Median peak signal-to-noise ratio in dB, capped at 100; higher is closer.", _plain("psnr", 1)),
    Column("SSIM", "Median structural similarity (Wang et al. 2004), 1 for equal pictures.", _plain("ssim")),
    Column(
        "LPIPS", "Median learned perceptual distance (Zhang et al. 2018), 0 for equal pictures.", _plain("lpips", 3)
    ),
    Column("label acc.", "Share of examples whose label the attacker names rightly.", _plain("label_accuracy")),
    Column(
        "identified",
        "Share of victims whom the attacker picks out of a list of candidates that holds them; it needs far less "
        "leakage than a picture.",
        _plain("identified"),
    ),
    Column(
        "label ranked",
        "Share of victims whose label comes first when all classes are ranked by public mean gradients, by an attacker who "
        "knows the defense, whatever the attack. To be read beside the share of the commonest class. Of a batch it is the label "
        "of the first example, which even who knows how many there are of each class cannot tell from its fellows'.",
        _plain("label_ranked"),
    ),
    Column(
        "iterations",
        "Median iterations until an example was rebuilt to within eta, to stay so.",
        _plain("iterations", 0),
    ),
)
"""As in the terminal; the leakage point stands before them."""

# That one attack failed is no protection, so the sentence claims none.
_VERDICTS = {
    "leaks": "leaks at",
    "no reconstruction": "answers with no reconstruction at",
    "attack failed": "gave no finite answer for half of the victims or more (which protects nobody) at",
    "identifies": "is not shown to rebuild the examples but tells who they are at",
    "unclear": "shows neither a leak nor protection at",
    "protected": "gave this attack no more than the null attacker has at",
}


def reading(summary: Summary) -> str:
    """Return the result in one sentence, from the verdict of each leakage point."""
    cell = summary["cell"]
    found: dict[str, list[str]] = {}
    for name, tap in summary["taps"].items():
        verdict = tap.get("verdict") or "unclear"
        beside = f"ASR {number(tap.get('asr'))}, null attacker {number(tap.get('null_asr'))}"
        if tap.get("feature_accuracy") is not None:
            guess = f"null attacker {number(tap.get('null_feature_accuracy'))}"
            beside += f"; features right {number(tap['feature_accuracy'])}, {guess}"
        if verdict in ("identifies", "no reconstruction"):
            beside = f"identified {interval(tap, 'identified')} of {tap.get('victims')} among {tap.get('candidates')}"
        found.setdefault(verdict, []).append(f"{name} ({beside})")
    ordered = sorted(found, key=lambda verdict: (*_VERDICTS, verdict).index(verdict))
    parts = [f"{_VERDICTS.get(verdict, f'is {verdict} at')} {_listed(found[verdict])}" for verdict in ordered]
    subject = f"Training on {cell['dataset']} with the defense {cell['defense']}, read by the attack {cell['attack']}"
    return f"{subject}, {'; '.join(parts) or 'was attacked at no leakage point'}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def batches(summary: Summary) -> str:
    """Return how many victims and examples stand behind the numbers, what counts as success, and how many failed."""
    groups: dict[str, list[str]] = {}
    for name, tap in summary["taps"].items():
        success = f"success: RMSE <= {number(tap.get('eta'), 3)}; identified among {tap.get('candidates')} candidates"
        many, members = tap.get("victims"), tap.get("batch")
        who = (
            f"{many} victims" if members == 1 else f"{many} victims, each in a leak of {members} examples{made_of(tap)}"
        )
        looks = f", {tap['observations']} looks at each" if tap.get("observations", 1) > 1 else ""
        batch = f"{who}{looks}, {tap.get('failures')} without an answer"
        groups.setdefault(f"{batch}; {success}", []).append(name)
    return "\n".join(f"{', '.join(names)}: {text}" for text, names in groups.items())


def over_rounds(summary: Summary) -> list[str]:
    """Return a line for each tap that leaked at several rounds: its success at each, and the worst."""
    lines = []
    for tap, curve in (summary.get("over_rounds") or {}).items():
        measure, name = ("asr", "ASR") if curve["asr"][0] is not None else ("identified", "identified")
        at = ", ".join(f"{n}: {number(value)}" for n, value in zip(curve["rounds"], curve[measure], strict=True))
        most = "as much after each" if len(set(curve[measure])) == 1 else f"most leaked after {curve['worst']}"
        lines.append(f"{tap} over the rounds: {name} after {at}; {most}")
    return lines


def training(summary: Summary) -> str:
    """Return the line of accuracy, rounds, threat and protocol."""
    rounds = summary["rounds"]
    accuracy = f"accuracy {number(summary['accuracy'], 3)} after {rounds} {'round' if rounds == 1 else 'rounds'}"
    line = f"{accuracy} | threat: {summary['threat']} | protocol: {summary['protocol']}{_networks(summary)}"
    told = summary.get("knowledge")
    if not told:
        return line
    granted = [name.replace("_", " ") for name in ("batch_size", "learning_rate") if told[name]]
    defense = "the defense's recipe" if told["defense"] else "nothing of the defense"
    labels = f"labels {told['labels']}" + ("; logits given" if told.get("logits") == "given" else "")
    return f"{line} | the attacker knows: model, {', '.join(granted)}, {defense}; {labels}; public: {told['public']}"


def _networks(summary: Summary) -> str:
    """Return which network leaks, and how the leak was taken where that was chosen."""
    leaking = summary.get("leak_model") or summary.get("model")
    mode, init = summary.get("victim_mode"), summary.get("init", "default")
    return "".join(
        (
            f" | the leak is from {leaking}" if leaking else "",
            f" | victims in {mode} mode" if mode else "",
            f" | init: {init}" if init != "default" else "",
            " | updates read as weights" if summary.get("reads") == "weights" else "",
            " | all rounds seen by one attack" if summary.get("join_rounds") else "",
        )
    )


@dataclass(frozen=True)
class Observed:
    """One line of epsilon: valid against whom, and why; numbers as text."""

    observer: str
    valid: str
    reason: str
    q: str
    steps: str
    participations: str

    @property
    def text(self) -> str:
        """The number and its reason; a reason that says there is none stands alone."""
        if self.reason.startswith(f"{self.valid}:") or not self.reason:
            return self.reason or self.valid
        return f"{self.valid}: {self.reason}"


def epsilons(summary: Summary) -> tuple[str, list[Observed]]:
    """Return (what is claimed, [the valid epsilon of the released models, then of each leakage point])."""
    epsilon = summary.get("epsilon")
    if not epsilon:
        return "n/a", []
    released = _observed(f"{epsilon.get('observer') or 'global'} (released models)", epsilon)
    taps = [_observed(name, tap) for name, tap in (epsilon.get("by_tap") or {}).items()]
    claimed = _epsilon(epsilon.get("claimed"))
    return summary["notes"].get("epsilon.claimed", claimed) if claimed == "none" else claimed, [released, *taps]


def caveats(summary: Summary) -> list[str]:
    """Return in what the training is not the one that the claim accounts for, a sentence each; nothing where none claims."""
    epsilon = summary.get("epsilon") or {}
    return list(epsilon.get("caveats") or [])


def _observed(observer: str, found: Tap) -> Observed:
    q, steps, times = found.get("q"), found.get("steps"), found.get("participations")
    if isinstance(times, Mapping):
        times = ", ".join(f"{_count(value)} {name}" for name, value in times.items() if value is not None)
    participations = times if isinstance(times, str) else _count(times)
    share = "n/a" if q is None else f"{q:.3g}"
    return Observed(
        observer, _epsilon(found.get("valid")), found.get("reason") or "", share, _count(steps), participations
    )


def _epsilon(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else f"{value:.3g}"


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.6g}"


UNSAID = ("rmse_floor", "rmse_floor_unbiased", "seen")
"""Fields whose absence has the reason of the bounds beside them."""


def notes(summary: Summary, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return [(what has no value, or needs a word, and where; the reason)], equal reasons together.

    without: fields of leakage points that are not shown, so that nobody misses them.
    """
    grouped: dict[tuple[str, str], list[str]] = {}
    for key, reason in summary["notes"].items():
        area, _, rest = key.partition(".")
        if area == "epsilon" and summary.get("epsilon"):
            continue  # said beside the number itself
        name, _, field = rest.partition(".")
        if area == "taps" and (
            field in FIELDS or field.endswith(".bound") or (field in UNSAID and summary["taps"][name][field] is None)
        ):
            continue  # said among the bounds
        if reason in (NO_FEATURES, LEARNS_NOTHING) or (area == "taps" and field.partition(".")[0] in without):
            continue  # pictures, or who does not learn, have no such column
        what, where = (field, name) if area == "taps" else (key, "")
        grouped.setdefault((what, reason.removeprefix("n/a: ")), []).append(where)
    lines = []
    for (what, reason), places in grouped.items():
        where = ", ".join(filter(None, places))
        lines.append((f"{what} at {where}" if what and where else what or where, reason))
    return lines
