"""A cell's defense with all its noise, or all its clips, multiplied by one factor, as a sweep varies them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pydantic import ValidationError

from leakbench.cell.cell import Cell, identified
from leakbench.cell.network import probe_of
from leakbench.core.errors import InputError
from leakbench.core.types import Fact
from leakbench.defense import Defense, facts_at
from leakbench.defense.transform import STATIONS
from leakbench.privacy.decay import Scaled

__all__ = ["check_louder", "louder", "wider", "with_factors"]


def with_factors(cell: Cell, noise: float | None, clip: float | None) -> Cell:
    """Return the cell with the noise multipliers of its defense times `noise` and its clip norms times `clip`.

    The name of the defense gets the factors. Noise that is calibrated to a clip changes with the clip, as sigma C does.

    Args:
        noise: Factor of the noise multipliers, in `leakbench.core.words.FACTOR_RANGE`; None does not change them.
        clip: Factor of the clip norms, in `leakbench.core.words.FACTOR_RANGE`; None does not change them.

    Raises:
        InputError: For a defense without noise or clips that the factor changes.
    """
    changes = []
    defense = cell.defense
    if noise is not None:
        check_louder(cell, "noise-factor", some=True)
        defense, changes = louder(defense, noise), [f"noise x {noise:g}"]
    if clip is not None:
        _check_wider(cell)
        defense, changes = wider(defense, clip), [*changes, f"clip x {clip:g}"]
    if not changes:
        return cell
    # The paper's printed values belong to the original noise and clip.
    defense = dataclasses.replace(defense, printed={})
    names = {**cell.names, "defense": f"{cell.names['defense']} ({', '.join(changes)})"}
    return identified(dataclasses.replace(cell, defense=defense, names=names))


def _times(part: Any, field: str, factor: float) -> Any:
    """Return a part with one of its numbers or schedules multiplied by a factor."""
    value = getattr(part, field)
    try:
        return dataclasses.replace(part, **{field: Scaled(value, factor) if callable(value) else value * factor})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"factor: {factor:g} times {field} {value}: {message}") from None


def louder(defense: Defense, factor: float) -> Defense:
    """Return the defense with the noise multiplier of each transform and of the claim multiplied by a factor."""

    def scaled(part: Any, field: str) -> Any:
        return part if getattr(part, field, None) is None else _times(part, field, factor)

    stations: dict[str, Any] = {
        name: tuple(scaled(t, "multiplier") for t in getattr(defense, name)) for name in STATIONS
    }
    fields = {f.name for f in dataclasses.fields(defense.claim)}  # type: ignore[arg-type]
    claim = scaled(defense.claim, "noise_multiplier") if "noise_multiplier" in fields else defense.claim
    return dataclasses.replace(defense, **stations, claim=claim)


def wider(defense: Defense, factor: float) -> Defense:
    """Return the defense with the norm of each fixed clip, the field that its `scales_clip` names, multiplied by a factor."""

    def scaled(part: Any) -> Any:
        field = getattr(part, "scales_clip", "")
        return _times(part, field, factor) if field else part

    stations: dict[str, Any] = {name: tuple(scaled(t) for t in getattr(defense, name)) for name in STATIONS}
    return dataclasses.replace(defense, **stations)


def check_louder(cell: Cell, field: str, some: bool = False) -> None:
    """Raise InputError if a transform adds noise that does not follow the noise multipliers.

    Args:
        field: Name of the option, for the message.
        some: Whether to raise it for a defense without noise too.
    """
    pairs = [(plain, other) for plain, other in _pairs(cell, louder(cell.defense, 2.0)) if plain.std > 0]
    if some and not pairs:
        raise InputError(
            f"{field}: defense {cell.names['defense']!r} adds no noise; choose one that does, or leave --{field} out"
        )
    if not all(math.isclose(other.std, 2 * plain.std, rel_tol=1e-6) for plain, other in pairs):
        raise InputError(
            f"{field}: the noise of defense {cell.names['defense']!r} follows other settings than a multiplier; "
            "set these in a recipe of your own"
        )


def _check_wider(cell: Cell) -> None:
    pairs = [(plain, other) for plain, other in _pairs(cell, wider(cell.defense, 2.0)) if plain.kind == "clip"]
    if not pairs:
        raise InputError(
            f"clip-factor: defense {cell.names['defense']!r} has no clip; choose one that has, or leave --clip-factor out"
        )
    if not all(math.isclose(other.norm, 2 * plain.norm, rel_tol=1e-6) for plain, other in pairs):
        raise InputError(
            f"clip-factor: the clip of defense {cell.names['defense']!r} has no fixed norm (`scales_clip` of its part); set it in "
            "your recipe"
        )


def _pairs(cell: Cell, changed: Defense) -> list[tuple[Fact, Fact]]:
    """Return pairs of every fact of the first moment, before and after the change."""
    probe = probe_of(cell.defense, cell.data, cell.settings)
    now = cell.defense.clock(probe.federation, 0)
    before, after = (facts_at(defense, probe, now) for defense in (cell.defense, changed))
    return [pair for station, done in before.items() for pair in zip(done, after[station], strict=True)]
