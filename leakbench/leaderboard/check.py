"""Whether a card repeats: it asks for the cells whose hashes it has, and measured again they give its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from leakbench.cell import Request
from leakbench.cell.budget import plan, prepare
from leakbench.cell.resolve import with_examples
from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder
from leakbench.core.recipe import names as catalog_names
from leakbench.data.find import Load
from leakbench.data.kept import KeptData
from leakbench.leaderboard.asked import Asking, asking, audit_command, card_command, hash_of, request_of, settings_of
from leakbench.leaderboard.card import Card, Measured, contents_of, sources_of
from leakbench.leaderboard.make import make_card
from leakbench.leaderboard.read import read_cards
from leakbench.measure.measures import EDIT_DISTANCE, RMSE
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED, fields_of
from leakbench.study.stale import COLUMN, Published, Today, changed_versions, stale_reason, together, versions_in
from leakbench.study.study import Execution

__all__ = [
    "check",
    "differences",
    "identity_differences",
    "outside",
    "published_cards",
    "stale",
]


Make: TypeAlias = Callable[..., Card]

ROUNDING, RELATIVE = 1e-3, 0.02
"""How far numbers may lie apart where all is made with the same, absolute and relative to the card's."""

ELSEWHERE = 0.05
"""How far, relative, a number without an interval may lie apart where not all is the same."""

INTERVALS = (
    *fields_of((ASR, IDENTIFIED, LABEL_RANKED)),
    "features",
    "records",
    "exact",
    RMSE.name,
    EDIT_DISTANCE.name,
    "value",
)
"""Fields of [value, low, high]."""

FREE = ("warnings", "comment", "reason", "failures", "caveats", "label", "claimed_by", "by_network", "by_seed")
"""Fields that follow from numbers, or are numbers without an interval, and so may differ where not all is made with the same."""


def check(card: Card, execution: Execution, make: Make = make_card) -> list[str]:
    """Return in what a card does not repeat, a line each; nothing where it repeats.

    Its cells are run only where they are the card's, or read where they are finished.
    Raises InputError where a name on it is not known, or its data are not there.
    """
    names = (card.defense.name, card.dataset.name, card.attack.name)
    for kind, name in zip(("defenses", "datasets", "attacks"), names, strict=True):
        if name not in catalog_names(kind):
            raise InputError(
                f"check: the card's {kind[:-1]} {name!r} is not in the catalog at {catalog_folder(kind)}; put its recipe there"
            )
    cells = asking(card.asked, *names, execution.data_dir)
    if found := list(identity_differences(card, cells)):
        return found
    again = make(card.asked, *names, execution)
    return list(differences(card, again))


def identity_differences(card: Card, cells: list[Asking]) -> Iterator[str]:
    """Yield in what a card is not of the cells that it asks for here, the cause before the hash that follows from it.

    Of a card that was measured with other behaviour versions no hash is compared: all of them differ.
    """
    cell = cells[-1].cell
    of = (card.asked, card.defense.name, card.dataset.name)
    repeat = card_command(*of, card.attack.name)
    versions = changed_versions(versions_in(card.settings), together(each.cell for each in cells))
    if versions:
        changed = ", ".join(f"{name} {then} -> {now}" for name, (then, now) in versions.items())
        yield f"the card is stale: {changed}; measure it again: {repeat}"
    for what, source in sources_of(cell).items():
        on_card = getattr(card, what)
        for field in dataclasses.fields(source):
            yield from _unlike(f"{what}.{field.name}", getattr(on_card, field.name), getattr(source, field.name))
    settings = settings_of(cells)
    for name in sorted({*settings, *card.settings} - ({COLUMN} if versions else set())):
        yield from _unlike(f"settings.{name}", card.settings.get(name), settings.get(name))
    on_card = [(f"cells.{c.attacker}.{c.protocol}", c) for c in card.cells]
    here = [(f"cells.{c.attacker}.{c.protocol}", c) for c in cells]
    yield from _unlike("cells", [name for name, _ in on_card], [name for name, _ in here])
    for (name, measured), (_, each) in zip(on_card, here, strict=False):
        if not versions:
            yield from _unlike(f"{name}.hash", measured.hash, each.cell.hash)
        yield from _unlike(f"{name}.command", measured.command, each.command)
        yield from _unlike(f"{name}.network", measured.network, each.cell.settings.leaking)
    if not versions:
        yield from _unlike("hash", card.hash, hash_of(cells, card.asked))
    yield from _unlike("epsilon.audited.command", card.epsilon.audited.command, audit_command(*of))
    yield from _unlike("repeat", card.repeat, repeat)


def differences(card: Card, again: Card) -> Iterator[str]:
    """Yield in what a card is not what was measured again.

    With the same versions on the same kind of machine, numbers agree up to rounding. Else each number with an interval is inside
    the other's interval, other numbers are near, and verdicts are equal. Only the card states how it was made, so that a false
    statement must not gain more than this.
    """
    same = card.made_with == again.made_with
    one, other = (dataclasses.asdict(each) for each in (card, again))
    for each in (one, other):
        del each["made_with"]
    yield from _between("", one, other, same)


def _between(place: str, one: Any, other: Any, same: bool) -> Iterator[str]:
    field = place.rpartition(".")[2]
    if not same and field in FREE:
        return
    if field in INTERVALS and ".by_network." not in place and isinstance(one, tuple) and isinstance(other, tuple):
        near = all(map(_near, one, other)) if same else _inside(one, other[0]) and _inside(other, one[0])
        if not near:
            yield from _unlike(place, one, other)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _between(f"{place}.{key}" if place else key, one.get(key), other.get(key), same)
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _between(f"{place}.{_called(left, number)}", left, right, same)
    elif isinstance(one, float) and isinstance(other, float):
        if not (_near(one, other) if same else abs(one - other) <= max(ROUNDING, ELSEWHERE * abs(one))):
            yield from _unlike(place, one, other)
    else:
        yield from _unlike(place, one, other)


def _called(item: Any, number: int) -> str:
    """Return how one of several is called: a cell by attacker and protocol, a leakage point by its name."""
    if isinstance(item, Mapping) and "attacker" in item:
        return f"{item['attacker']}.{item['protocol']}"
    return str(item["name"]) if isinstance(item, Mapping) and "name" in item else str(number)


def _near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= max(ROUNDING, RELATIVE * abs(one))


def _inside(interval: tuple[float | None, ...], value: float | None) -> bool:
    _, low, high = interval
    return value is not None and (low is None or value >= low - ROUNDING) and (high is None or value <= high + ROUNDING)


def _unlike(place: str, one: Any, other: Any) -> Iterator[str]:
    if one != other:
        yield f"{place}: the card has {_shown(one)}, here it is {_shown(other)}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_shown, value))}]"
    return "nothing" if value is None else str(value)


KINDS = {"defense": "defenses", "dataset": "datasets", "attack": "attacks"}
"""{what a card is of: the part of the catalog that it is in}."""


def outside(card: Card) -> str:
    """Return the recipe of a card that is not in the catalog, as `defense 'mine'`; empty where all are."""
    found = (
        (what, getattr(card, what).name)
        for what, kind in KINDS.items()
        if getattr(card, what).name not in catalog_names(kind)
    )
    return next((f"{what} {name!r}" for what, name in found), "")


def stale(card: Card) -> list[str]:
    """Return in what a card was not measured with the catalog and the behaviour of today, a sentence each.

    Nothing is known of a card with a recipe `outside` the catalog.
    Only data that come with leakbench are read. Another release alone does not make a card stale: its changes have other behaviour
    versions.
    """
    if outside(card):
        return []
    load = KeptData(offline=True)
    changed = [
        f"its {what} has changed since the card was measured"
        for what, content in _contents(card, load).items()
        if content != getattr(card, what).content
    ]
    reasons = dict.fromkeys(stale_reason(_published(card, cell, None), load) for cell in card.cells)
    return [*changed, *filter(None, reasons)]


def _contents(card: Card, load: Load) -> dict[str, str]:
    """Return {`defense`, `dataset`, `attack`: the hash of its content today}, as far as every machine knows it."""
    request = _request(card, card.cells[-1])
    try:
        cell = plan(request, load=load)
        if cell.recipe.origin is None:
            cell = with_examples(cell, request.dataset, None, load=load)
    except InputError:  # What is asked for is refused today, which `stale_reason` states.
        return {}
    return {what: content for what, content in contents_of(cell).items() if content}


def published_cards(folder: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the cells of every card below a folder, one row for each attacker and protocol."""
    for card in read_cards(folder):
        for cell in card.cells:
            yield _published(card, cell, data_dir)


def _published(card: Card, cell: Measured, data_dir: Path | None) -> Published:
    def today(load: Load) -> Today:
        prepared = prepare(_request(card, cell), data_dir, load=load)
        return Today(prepared.hash, together([prepared]))

    return Published(
        page="leaderboard",
        row=f"{card.dataset.name}/{card.defense.name}, {cell.attacker} attacker, protocol {cell.protocol}",
        hash=cell.hash,
        dataset=card.dataset.name,
        today=today,
        requests=lambda: [_request(card, cell)],
        recorded=versions_in(card.settings),
        again=card.repeat,
    )


def _request(card: Card, cell: Measured) -> Request:
    of = (card.defense.name, card.dataset.name, card.attack.name)
    return request_of(card.asked, *of, cell.attacker, cell.protocol)
