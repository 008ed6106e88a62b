"""Settings of a run other than its recipes: what makes an attack another, and what may change with the system that is guarded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from leakbench.inside import said

__all__ = ["OF_ATTACK", "are_settings", "changed", "settings_of"]

OF_ATTACK = ("protocol", "join_rounds", "reads", "observations", "networks", "budget")
"""What the attacker sees of a gradient, at which networks, and for how long; with other values it is another attack."""

EARLIER = {"networks": 1, "budget": None}
"""Values of settings that baselines from before there were these settings do not have."""

OF_NO_MATTER = (
    "part",
    *("taps", "leak_rounds", "victims", "candidates", "success"),  # Which the rows say.
    *("seed", "device", "engine", "lpips", "pictures"),
)


def settings_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell's manifest as {name: text, number, bool or None}, those of its federation with a dot."""
    settings = manifest["settings"]
    federation = settings.get("federation")
    every = {
        **{name: value for name, value in settings.items() if name not in ("federation", *OF_NO_MATTER)},
        **{f"federation.{name}": v for name, v in (federation if isinstance(federation, dict) else {}).items()},
    }
    every.pop("federation.part", None)
    return {n: json.dumps(v, sort_keys=True) if isinstance(v, (dict, list)) else v for n, v in every.items()}


def are_settings(value: Any) -> bool:
    """Say whether a field of a baseline is what `settings_of` returns."""
    return isinstance(value, dict) and all(type(v) in (str, int, float, bool, type(None)) for v in value.values())


def changed(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: what it was and is} of the settings that both have and that differ."""
    then = {**EARLIER, **then}
    return {
        name: f"{said(then[name])} before, {said(now[name])} now"
        for name in now
        if name in then and now[name] != then[name]
    }
