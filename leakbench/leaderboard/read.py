"""Cards as files: JSON with sorted keys, read strictly; intervals must follow from the card's own shares.

Without that check a forged card with wide intervals would make every repetition pass.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.untrusted import bounded_text, strict_json
from leakbench.core.verdict_words import FAILED, INCONCLUSIVE, NO_LEAK, RECONSTRUCTS
from leakbench.leaderboard.card import Card, CardPoint, Measured
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED
from leakbench.measure.statistics import accuracy_interval, share_of_networks, wilson
from leakbench.storage.atomic import write_text
from leakbench.summary.verdict import STRONGEST, Evidence, above_baseline, verdict, whole_victims

__all__ = [
    "check_once",
    "check_verdicts",
    "path_of",
    "read_card",
    "read_cards",
    "text_of",
    "write_card",
]


SHARES = (ASR.name, IDENTIFIED.name, LABEL_RANKED.name)
"""Shares of a leakage point's victims; those of a batch's members are of the victims too, but not by Wilson's formula."""

ROUNDED = 1e-3
"""What the rounding of a share to four digits can move the ends of its interval, and more."""


def _check_intervals(card: Card) -> None:
    """Raise InputError, with the field, for an interval that does not follow from its share and its number."""
    for place, given, number, right in _shares(card):
        share, *ends = given
        low, high = _interval(place, share, number, right)
        if any(abs(one - other) > ROUNDED for one, other in zip(ends, (low, high), strict=True)):
            got, of = f"[{ends[0]:g}, {ends[1]:g}]", f"[{low:.4f}, {high:.4f}]"
            raise InputError(
                f"{place}: got the interval {got}, expected {of}, that of a share of {share:g} of {number}"
            )


def _check_accuracy(card: Card) -> None:
    """Raise InputError for an accuracy that does not follow from the trainings of a card."""
    known, seeds = card.accuracy, card.asked.seeds
    if len(known.by_seed) != (seeds if seeds > 1 and known.value is not None else 0):
        raise InputError(
            f"accuracy.by_seed: got {len(known.by_seed)} numbers, expected one for each of several seeds, and none for one;"
            f" asked.seeds is {seeds}"
        )
    if any(right > known.examples for right in known.by_seed):
        raise InputError(f"accuracy.by_seed: got {list(known.by_seed)}, expected at most {known.examples} examples")
    if known.value is not None:
        right = accuracy_interval(known.of_trainings, known.examples)
        if any(abs(one - other) > ROUNDED for one, other in zip(known.value, right, strict=True)):
            got, of = (f"{value:.4f} [{low:.4f}, {high:.4f}]" for value, low, high in (known.value, right))
            raise InputError(
                f"accuracy.value: got the interval {got}, expected {of}, that of {len(known.of_trainings)} trainings"
            )


def _interval(place: str, share: float, number: int, right: tuple[float, ...]) -> tuple[float, float]:
    """Return the interval of a share of `number` victims.

    Args:
        right: How many were right on each network, () for one network.
    """
    if not right:
        return wilson(share * number, number)
    sizes = [len(range(first, number, len(right))) for first in range(len(right))]
    if (
        any(many > size for many, size in zip(right, sizes, strict=True))
        or abs(sum(right) - share * number) > ROUNDED * number
    ):
        raise InputError(
            f"{place}: got {list(right)} by network, expected numbers that add up to a share of {share:g} of {number}"
        )
    return share_of_networks(right, sizes)[1:]


def _shares(card: Card) -> Iterator[tuple[str, tuple[float, float, float], int, tuple[float, ...]]]:
    for cell in card.cells:
        for point in cell.points:
            shares = [share[0] for share in (point.asr, point.identified) if share is not None]
            if point.excluded is not None and point.excluded < max(shares, default=0.0) - ROUNDED:
                raise InputError(
                    f"cells.{cell.attacker}.{cell.protocol}.{point.name}.excluded: got {point.excluded:g}, expected at least the"
                    f" rate that was measured, {max(shares):g}"
                )
            for name in SHARES:
                share = getattr(point, name)
                if share is not None and (name != ASR.name or point.batch == 1):
                    place = f"cells.{cell.attacker}.{cell.protocol}.{point.name}.{name}"
                    right = point.by_network.get(name, ())  # type: ignore[call-overload]
                    if len(right) != (point.networks if point.networks > 1 else 0):
                        raise InputError(
                            f"{place}: got numbers of {len(right)} networks, expected one for each of {point.networks}, and"
                            " none for one network"
                        )
                    yield place, share, point.victims, right


LARGEST = 1_000_000
"""Bytes of a card; they take about 20,000."""


def path_of(folder: Path, card: Card) -> Path:
    """Return where a card lies."""
    return folder / card.dataset.name / f"{card.defense.name}.json"


def text_of(card: Card) -> str:
    """Return a card as JSON with sorted keys and one value a line; a short list is on one line."""
    return _written(dataclasses.asdict(card), "") + "\n"


def write_card(folder: Path, card: Card) -> Path:
    """Write a card into its place below a folder, whole or not at all."""
    path, text = path_of(folder, card), text_of(card)
    write_text(path, text)
    return path


def read_card(path: Path) -> Card:
    """Read one card; raises InputError in one line, with the file and the field, for any other file."""
    try:
        fields = strict_json(bounded_text(path, LARGEST))
    except FileNotFoundError:
        raise InputError(f"card: no file {str(path)!r}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as a card ({error})") from None
    try:
        card = construct(Card, fields)
        check_once(card)
        _check_intervals(card)
        _check_accuracy(card)
        check_verdicts(card)
        return card
    except (InputError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None


def read_cards(folder: Path) -> list[Card]:
    """Read all cards below a folder, each in DATASET/DEFENSE.json; raises InputError for another place, and without a card."""
    if not folder.is_dir():
        raise InputError(f"cards: no folder {str(folder)!r}")
    found = sorted(folder.glob("*/*.json"))
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if ".json" in path.name.lower() and path not in found and not hidden:
            raise InputError(
                f"{path}: would be no card of the page, expected at DATASET/DEFENSE.json in {str(folder)!r}"
            )
    cards = []
    for path in found:
        card = read_card(path)
        if path_of(folder, card) != path:
            place = path_of(Path(), card)
            raise InputError(f"{path}: is the card of {card.defense.name} on {card.dataset.name}, expected at {place}")
        cards.append(card)
    if not cards:
        raise InputError(f"cards: no DATASET/DEFENSE.json in {str(folder)!r}; `leakbench card` writes them")
    return cards


def _written(value: Any, indent: str) -> str:
    deeper = indent + " "
    if isinstance(value, dict) and value:
        lines = [f"{deeper}{json.dumps(key)}: {_written(value[key], deeper)}" for key in sorted(value)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(each, dict) or len(str(each)) > 20 for each in value):
        return "[\n" + ",\n".join(f"{deeper}{_written(each, deeper)}" for each in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


HALF_DIGIT = 1e-4
"""What the rounding of two numbers to four digits can move their difference."""


def check_once(card: Card) -> None:
    """Raise InputError, with the field, for a cell, a leakage point of a cell, or an asked word that a card has twice."""
    cells = [f"{cell.attacker}.{cell.protocol}" for cell in card.cells]
    _once("cells", cells)
    for name, cell in zip(cells, card.cells, strict=True):
        _once(f"cells.{name}.points", [point.name for point in cell.points])
    for name in ("taps", "protocols", "leak_rounds"):
        _once(f"asked.{name}", getattr(card.asked, name))


def _once(place: str, names: Sequence[object]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{place}: {name} appears twice")


def check_verdicts(card: Card) -> None:
    """Raise InputError, with the field, for a verdict that does not follow from the numbers next to it.

    The rules are those of `leakbench.summary.verdict`, applied to what a card keeps of the evidence. `reconstructs` may rest on
    single victims and `inconclusive` on warnings of the search, for which a card has no numbers, so these two are also accepted.
    """
    for cell in card.cells:
        for point in cell.points:
            for why in _against(point, cell, card):
                place = f"cells.{cell.attacker}.{cell.protocol}.{point.name}"
                raise InputError(f"{place}.verdict: got {point.verdict!r}, but {why}")


def _against(point: CardPoint, cell: Measured, card: Card) -> Iterator[str]:
    """Yield what rules a point's verdict out."""
    if abs(point.chance - 1 / point.candidates) > HALF_DIGIT:
        yield f"chance is {point.chance:g}, expected {1 / point.candidates:.4f}, one of {point.candidates} candidates"
    found = verdict(_evidence(point, cell, card))
    accepted = {found.word, RECONSTRUCTS}
    if found.word == NO_LEAK:
        accepted.add(INCONCLUSIVE)
    if found.word == INCONCLUSIVE and point.asr is None:
        accepted.add(FAILED)
    if point.verdict not in accepted:
        yield f"its numbers give {found.word!r}: {found.reason}"


def _evidence(point: CardPoint, cell: Measured, card: Card) -> Evidence:
    """Return the evidence that a card keeps of a point; what rounding may have moved counts for the card."""
    ranked = point.identified is not None
    share = point.identified[0] + HALF_DIGIT if point.identified is not None else 0.0
    return Evidence(
        victims=point.victims,
        networks=point.networks if cell.protocol == "paper" else 1,
        attack=card.attack.name,
        strongest=card.attack.name == STRONGEST,
        adaptive=cell.attacker == "aware",
        ranks_only=point.asr is None,
        live=cell.protocol == "live",
        # The median error is missing where at least half of the examples have no answer.
        unanswered=float(point.error[1] is None and point.asr is not None),
        above=tuple(_above(point)),
        higher=tuple(_higher(point)),
        identified=whole_victims(share * point.victims),
        ranked=point.victims if ranked else 0,
        candidates=point.candidates,
    )


def _above(point: CardPoint) -> Iterator[str]:
    if point.asr is not None and above_baseline([end - HALF_DIGIT for end in point.asr], point.null_asr):
        yield f"the ASR {_text(point.asr)} is above the baseline guess's {_text(point.null_asr)}"


def _higher(point: CardPoint) -> Iterator[str]:
    if point.asr is not None and point.asr[0] > point.null_asr[2] + HALF_DIGIT:
        yield f"the ASR {_text(point.asr)} is above the baseline guess's interval {_text(point.null_asr)}"
    heading, found, guess = point.error
    if found is not None and (guess is None or found < guess - HALF_DIGIT):
        null = "which is missing" if guess is None else f"{guess:g}"
        yield f"the median {heading} {found:g} is below the baseline guess's, {null}"


def _text(share: tuple[float, float, float]) -> str:
    return f"{share[0]:g} [{share[1]:g}, {share[2]:g}]"
