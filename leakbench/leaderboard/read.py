"""Cards as files: JSON with sorted keys, read strictly; intervals must follow from the card's own shares.

Without that check a forged card with wide intervals would make every repetition pass.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leakbench.bounded import bounded_text
from leakbench.errors import InputError
from leakbench.leaderboard.card import Card
from leakbench.leaderboard.verdicts import check_once, check_verdicts
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED
from leakbench.measure.statistics import share_of_networks, wilson
from leakbench.recipe import construct
from leakbench.store import write_atomically
from leakbench.strict_json import strict_json
from leakbench.summary.verdict_words import current_word

__all__ = ["path_of", "read_card", "read_cards", "text_of", "write_card"]

SHARES = (ASR.name, IDENTIFIED.name, LABEL_RANKED.name)
"""Shares of a leakage point's victims; those of a batch's members are of the victims too, but not by Wilson's formula."""

HALF_DIGIT = 1e-3
"""What the rounding of a share to four digits can move the ends of its interval, and more."""


def _check_intervals(card: Card) -> None:
    """Raise InputError, with the field, for an interval that does not follow from its share and its number."""
    for place, given, number, right in _shares(card):
        share, *ends = given
        low, high = _interval(place, share, number, right)
        if any(abs(one - other) > HALF_DIGIT for one, other in zip(ends, (low, high), strict=True)):
            got, of = f"[{ends[0]:g}, {ends[1]:g}]", f"[{low:.4f}, {high:.4f}]"
            raise InputError(
                f"{place}: got the interval {got}, expected {of}, that of a share of {share:g} of {number}"
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
        or abs(sum(right) - share * number) > HALF_DIGIT * number
    ):
        raise InputError(
            f"{place}: got {list(right)} by network, expected numbers that add up to a share of {share:g} of {number}"
        )
    return share_of_networks(right, sizes)[1:]


def _shares(card: Card) -> Iterator[tuple[str, tuple[float, float, float], int, tuple[float, ...]]]:
    for cell in card.cells:
        for point in cell.points:
            shares = [share[0] for share in (point.asr, point.identified) if share is not None]
            if point.excluded is not None and point.excluded < max(shares, default=0.0) - HALF_DIGIT:
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
    if card.accuracy is not None and card.accuracy.value is not None:
        yield "accuracy.value", card.accuracy.value, card.accuracy.examples, ()


FORMER_WARNINGS = {
    ": leaks at ": ": reconstructs at ",
    ": tells who the victims are at ": ": identifies at ",
    ": identifies the victims at ": ": identifies at ",
    ": half of the victims got no answer at ": ": attack failed at ",
    ": the attack has no answer for half of the examples or more at ": ": attack failed at ",
}
"""{how a warning of an earlier version words a verdict: how it is worded today}."""

LARGEST = 1_000_000
"""Bytes of a card; they take about 20,000."""


def path_of(folder: Path, card: Card) -> Path:
    """Return where a card lies."""
    return folder / card.dataset.name / f"{card.defense.name}.json"


def text_of(card: Card) -> str:
    """Return a card as JSON: keys sorted, one value a line but short lists, which stand in one."""
    return _written(dataclasses.asdict(card), "") + "\n"


def write_card(folder: Path, card: Card) -> Path:
    """Write a card into its place below a folder, whole or not at all."""
    path, text = path_of(folder, card), text_of(card)
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))
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
        card = construct(Card, _current(fields))
        check_once(card)
        _check_intervals(card)
        check_verdicts(card)
        return card
    except (InputError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None


def _current(fields: Any) -> Any:
    """Return the fields of a card with verdicts of today's scale; what is not a card stays as it is, to be refused."""
    if isinstance(fields, dict):
        for cell in _dicts(fields.get("cells")):
            for point in _dicts(cell.get("points")):
                if isinstance(point.get("verdict"), str):
                    point["verdict"] = current_word(point["verdict"])
        warnings = fields.get("warnings")
        if isinstance(warnings, list):
            fields["warnings"] = [_current_warning(w) if isinstance(w, str) else w for w in warnings]
    return fields


def _current_warning(text: str) -> str:
    for before, now in FORMER_WARNINGS.items():
        text = text.replace(before, now)
    return text


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def read_cards(folder: Path) -> list[Card]:
    """Read all cards below a folder, each in DATASET/DEFENSE.json; raises InputError for another place, and where there is none."""
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
