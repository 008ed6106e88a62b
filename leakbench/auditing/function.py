"""A user's own defense as a Python function: import, calls with copied arrays, and checks of the returned arrays."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.imported import import_function, reason_of
from leakbench.core.types import Parameters

__all__ = ["CallableRelease", "callable_release", "load_callable"]

Randomness = Literal["none", "seed", "generator"]


@dataclass(frozen=True)
class CallableRelease:
    """A function of one client's update, from {parameter: float32 array} to a dict with the same keys and shapes.

    The function receives copies of the arrays, which it may change.

    Args:
        takes: Kind of its second argument: `seed`, an int from 0 to 2^32 - 1; `generator`, a numpy.random.Generator; or `none`.
        keyword: Name of this argument if it is keyword-only, else empty.

    Raises:
        InputError: In a call, if the function fails or returns something else.
    """

    function: Callable[..., Any]
    takes: Randomness
    keyword: str = ""
    seed: int = 0
    members: int = 1

    @property
    def seeded(self) -> bool:
        """Whether the same seed gives the same noise."""
        return self.takes != "none"

    def __call__(self, inputs: Parameters, seeds: Sequence[int]) -> Tensor:
        """Return the function's result for each lane, one call after another, (lanes, coordinates)."""
        arrays = {n: g[:, 0].numpy() for n, g in inputs.items()}
        several = len(next(iter(arrays.values()))) > 1
        return torch.stack([self._one(arrays, lane if several else 0, seed) for lane, seed in enumerate(seeds)])

    def _one(self, arrays: Mapping[str, Any], lane: int, seed: int) -> Tensor:
        number = (7_368_787 * self.seed + seed) % 2**32
        drawn = {"none": (), "seed": (number,), "generator": (np.random.default_rng(number),)}[self.takes]
        more, named = ((), {self.keyword: drawn[0]}) if self.keyword and drawn else (drawn, {})
        update = {n: a[lane].copy() for n, a in arrays.items()}
        try:
            # The function's prints must not mix with the audit's output.
            with np.errstate(all="ignore"), redirect_stdout(sys.stderr):
                returned = self.function(update, *more, **named)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise InputError(f"callable: it raised {reason_of(error)}") from None
        return torch.cat([torch.from_numpy(a).flatten() for a in _checked(returned, arrays)])


def _checked(returned: Any, arrays: Mapping[str, Any]) -> list[Any]:
    if not isinstance(returned, Mapping):
        raise InputError(f"callable: it returned {type(returned).__name__}, expected a dict {{parameter: array}}")
    if set(returned) != set(arrays):
        raise InputError(f"callable: it returned the keys {sorted(map(str, returned))}, expected {sorted(arrays)}")
    found = []
    for name, array in arrays.items():
        try:
            given = np.asarray(returned[name])
        except Exception as error:
            raise InputError(f"callable: for {name!r} it returned no array ({reason_of(error)})") from None
        if given.dtype.kind not in "fiu":
            raise InputError(f"callable: for {name!r} it returned {given.dtype}, expected an array of real numbers")
        value = given.astype(np.float64)
        if value.shape != array.shape[1:]:
            raise InputError(f"callable: for {name!r} it returned the shape {value.shape}, expected {array.shape[1:]}")
        if not np.isfinite(value).all():
            raise InputError(f"callable: for {name!r} it returned NaN or infinity, expected finite numbers")
        found.append(value)
    return found


def load_callable(path: str, folder: str) -> CallableRelease:
    """Import a function `package.module:name`.

    A second argument named `seed`, or annotated int, receives a seed. One named `rng` or `generator`, or annotated
    numpy.random.Generator, receives a generator, by position or by name. Any other keeps its default.

    Args:
        path: Name of the function.
        folder: Folder to import from, in addition to Python's path.

    Raises:
        InputError: If the import fails, or for a function with other arguments.
    """
    function = import_function("callable", path, folder)
    return CallableRelease(function, *_randomness(path, function))


def callable_release(function: Callable[..., Any]) -> CallableRelease:
    """Return the release of a function, as `load_callable` does; raises InputError for a function with other arguments."""
    return CallableRelease(function, *_randomness(getattr(function, "__name__", repr(function)), function))


def _randomness(path: str, function: Callable[..., Any]) -> tuple[Randomness, str]:
    """Return the source of a function's noise, and the argument's name if it is keyword-only."""
    try:
        arguments = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "none", ""
    places = [a for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    needed = [a.name for a in arguments if a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    named = [a for a in arguments if a.kind is a.KEYWORD_ONLY and _drawn_from(a) != "none"]
    second = places[1] if len(places) > 1 else named[0] if named else None
    takes: Randomness = "none" if second is None else _drawn_from(second)
    expected = 1 if takes == "none" else 2
    if (not places and not any(a.kind == a.VAR_POSITIONAL for a in arguments)) or len(needed) > expected:
        raise InputError(
            f"callable: {path!r} takes ({', '.join(a.name for a in arguments)}), expected (update) or (update, seed)"
        )
    return takes, second.name if second is not None and second.kind is second.KEYWORD_ONLY else ""


def _drawn_from(argument: inspect.Parameter) -> Randomness:
    annotation = "" if argument.annotation is argument.empty else str(argument.annotation)
    if argument.name in ("rng", "generator") or "Generator" in annotation:
        return "generator"
    return "seed" if argument.name == "seed" or argument.annotation in (int, "int") else "none"
