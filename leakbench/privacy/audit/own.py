"""A user's own defense as a Python function, audited as one client's update."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from leakbench.errors import InputError
from leakbench.privacy.accountants import best
from leakbench.privacy.audit.coupled import Coupled, check
from leakbench.privacy.audit.unseeded import check_unseeded
from leakbench.privacy.audit.verdict import Audit, Stated, judge
from leakbench.privacy.mechanism import Mechanism
from leakbench.rng import generator
from leakbench.types import Parameters

__all__ = ["CallableRelease", "audit_callable", "load_callable"]

Randomness = Literal["none", "seed", "generator"]


@dataclass(frozen=True)
class CallableRelease:
    """A function on one client's update: {parameter: float32 array} to a dict with the same keys and shapes.

    takes: what its second argument is: `seed`, an int from 0 to 2^32 - 1; `generator`, a numpy.random.Generator; or `none`.
    It gets arrays of its own, which it may change. Raises InputError where it fails or returns something else.
    """

    function: Callable[..., Any]
    takes: Randomness
    seed: int = 0
    members: int = 1

    @property
    def seeded(self) -> bool:
        """Whether the same seed gives the same noise."""
        return self.takes != "none"

    def __call__(self, inputs: Parameters, seeds: Sequence[int]) -> Tensor:
        """Return what the function returns for each lane, one call after another, (lanes, coordinates)."""
        arrays = {n: g[:, 0].numpy() for n, g in inputs.items()}
        several = len(next(iter(arrays.values()))) > 1
        return torch.stack([self._one(arrays, lane if several else 0, seed) for lane, seed in enumerate(seeds)])

    def _one(self, arrays: Mapping[str, Any], lane: int, seed: int) -> Tensor:
        number = (7_368_787 * self.seed + seed) % 2**32
        more = {"none": (), "seed": (number,), "generator": (np.random.default_rng(number),)}[self.takes]
        update = {n: a[lane].copy() for n, a in arrays.items()}
        try:
            # What it prints must not mix with the audit's own output.
            with np.errstate(all="ignore"), redirect_stdout(sys.stderr):
                returned = self.function(update, *more)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise InputError(f"callable: it raised {_said(error)}") from None
        return torch.cat([torch.from_numpy(a).flatten() for a in _checked(returned, arrays)])


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


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
            raise InputError(f"callable: for {name!r} it returned no array ({_said(error)})") from None
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
    """Import `package.module:name`, with `folder` importable too; raises InputError where that fails.

    A second positional argument named `seed`, or annotated int, gets a seed; one named `rng` or `generator`, or annotated
    numpy.random.Generator, gets a generator; another one keeps its default.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise InputError(f"callable: got {path!r}, expected package.module:name")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            function: Any = importlib.import_module(module)
        for word in name.split("."):
            function = getattr(function, word)
    except (Exception, SystemExit) as error:
        raise InputError(f"callable: {path!r} cannot be imported: {_said(error)}") from None
    if not callable(function):
        raise InputError(f"callable: {path!r} is a {type(function).__name__}, expected a function")
    return CallableRelease(function, _randomness(path, function))


def _randomness(path: str, function: Callable[..., Any]) -> Randomness:
    try:
        arguments = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "none"
    places = [a for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    needed = [a.name for a in arguments if a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    second = places[1] if len(places) > 1 else None
    takes: Randomness = "none"
    if second is not None:
        annotation = "" if second.annotation is second.empty else str(second.annotation)
        if second.name in ("rng", "generator") or "Generator" in annotation:
            takes = "generator"
        elif second.name == "seed" or second.annotation in (int, "int"):
            takes = "seed"
    expected = 1 if takes == "none" else 2
    if (not places and not any(a.kind == a.VAR_POSITIONAL for a in arguments)) or len(needed) > expected:
        raise InputError(
            f"callable: {path!r} takes ({', '.join(a.name for a in arguments)}), expected (update) or (update, seed)"
        )
    return takes


def audit_callable(
    release: CallableRelease,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    delta: float,
    trials: int | None,
    sigma: float | None,
    clip: float | None,
) -> Audit:
    """Audit a function as one release of one client's update, q = 1, zero-out adjacency.

    sigma: the noise multiplier that is stated, from which the claimed epsilon follows.  clip: the L2 bound that is stated; a
    function without a seed needs it for a valid epsilon. What counts as valid follows from the measurement, not from the
    code, which nobody read: it is the epsilon of the Gaussian noise that was found.
    """
    rng = generator(seed, "audit")
    release = dataclasses.replace(release, seed=seed)
    found = (check if release.seeded else check_unseeded)(release, shapes, rng)
    bound = found.moved if release.seeded else clip
    valid, missing = None, _missing(found, bound)
    if not missing and bound:
        multiplier = found.sigma if release.seeded and found.sigma else float(found.noise.std.min()) / bound
        value = best((Mechanism(multiplier, 1.0, 1),), delta)[0]
        valid, missing = (value, "") if value < math.inf else (None, "so little noise gives no finite epsilon")
    claimed = None if sigma is None else best((Mechanism(sigma, 1.0, 1),), delta)[0]
    scope = "all is of one release of one client's update; valid as far as these checks see"
    stated = Stated(claimed, valid, missing, scope)
    result = judge(release, found, Mechanism(1.0, 1.0, 1), stated, sigma, trials, delta, rng)
    return result if clip is None else _against_clip(result, found, clip)


def _missing(found: Coupled, bound: float | None) -> str:
    if not found.clip_holds:
        return "no clip"
    if found.noise.missing:
        return "no noise"
    if not found.independent:
        return "the noise depends on the data"
    if not found.noise.gaussian:
        return "the noise is not independent Gaussian noise"
    return "" if bound else "without a seed the clip's bound cannot be measured; state it with --clip, or take a seed"


def _against_clip(result: Audit, found: Coupled, clip: float) -> Audit:
    least = 0.0 if found.moved is None else found.moved * (1 - 5 * found.error)
    if not math.isfinite(least) or least <= 1.01 * clip:
        return result
    reason = f"one update moves the release by {found.moved:.4g}, more than the stated clip {clip:g}; {result.reason}"
    return dataclasses.replace(result, clip_holds=False, verdict="violated", reason=reason)
