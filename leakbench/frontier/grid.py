"""Plan the points of a frontier: every defense, and defenses with noise at every factor on their noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leakbench.cell import Cell, Request
from leakbench.cell.budget import plan
from leakbench.cell.factors import check_louder
from leakbench.core.errors import InputError, check_file, nearest
from leakbench.core.recipe import is_path, names
from leakbench.core.words import factors_of

__all__ = [
    "DEFAULT",
    "DEFENSES",
    "FACTORS",
    "IDENTIFY",
    "OUT",
    "SEEDS",
    "Point",
    "defenses_of",
    "factors_of",
    "points_of",
]

DEFENSES = (
    "none",
    "fed_cdp",
    "fed_cdp_valid",
    "fed_alpha_cdp",
    "adaclip",
    "noise_gaussian",
    "fed_sdp_client",
    "fed_sdp_client_valid",
    "flower_fixed_client",
    "fed_sdp_server",
    "fed_sdp_valid",
    "prune_threshold",
    "sign",
    "precode",
)
"""The best-known defense of each kind and its variant with a valid epsilon: noise on examples, at clients, at the server; none."""

FACTORS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
"""From the papers' own noise, with which little is learned, to noise that does not stop the attack."""

DEFAULT = Request(victims=20, leak_batch=1, taps=("type-1",))
"""Request of `leakbench frontier` without options. A test compares it, and the next three, with the command's options."""

IDENTIFY, SEEDS, OUT = 1000, 1, Path("frontier")
"""Default number of identified victims, number of trainings and folder of the pages."""


@dataclass(frozen=True)
class Point:
    """A defense at a factor on its noise, 1 for the recipe's own noise.

    Args:
        noise: Whether the defense has noise that a factor changes.
    """

    defense: str
    factor: float = 1.0
    noise: bool = False

    @property
    def name(self) -> str:
        """Name of the row."""
        return f"{Path(self.defense).stem}, x {self.factor:g}" if self.noise else Path(self.defense).stem


def defenses_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names of defenses or paths of recipes; `all`: the default defenses and then the others of the catalog.

    Raises:
        InputError: A name is unknown or is given twice.
    """
    known = names("defenses")
    if tuple(words) == ("all",):
        return (*DEFENSES, *(name for name in known if name not in DEFENSES))
    for word in words:
        if is_path(word):
            check_file("defenses", word)
        elif word not in known:
            raise InputError(f"defenses: unknown name {word!r}{nearest(word, known, 'leakbench list defenses')}")
    stems = [Path(word).stem for word in words]
    for word in stems:
        if stems.count(word) > 1:
            raise InputError(f"defenses: {word!r} is given twice")
    return tuple(words)


def points_of(request: Request, factors: Sequence[float], data_dir: Path | None) -> list[Point]:
    """Return the points of a request's defense: one for each factor where it has noise, else one.

    Raises:
        InputError: The defense does not fit the data or the attack.
    """
    if _reached(plan(request, data_dir)):
        return [Point(request.defense, factor, noise=True) for factor in factors]
    return [Point(request.defense)]


def _reached(cell: Cell) -> bool:
    """Return whether the cell's defense has noise and a factor changes all of it."""
    try:
        check_louder(cell, "noise-factors", some=True)
    except InputError:
        return False
    return True
