"""Never an engine inside an engine: its workers would wait for places that their own sweep holds."""

from __future__ import annotations

import os
import sys

from leakbench.errors import InputError

__all__ = ["INSIDE", "refuse_inside"]

INSIDE = "LEAKBENCH_SWEEP_WORKER"
"""Set for the workers of a sweep, to the name of their engine."""


def refuse_inside() -> None:
    """Raise InputError in a worker of a sweep, and in a task or an actor of Ray."""
    engine = os.environ.get(INSIDE)
    if engine is None and _in_ray():
        engine = "ray"
    if engine is not None:
        raise InputError(f"sweep: this is a worker of the engine {engine} already; start the sweep outside of it")


def _in_ray() -> bool:
    """Say whether this is a worker of Ray; where nobody has imported Ray it is none."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return False
    return ray.get_runtime_context().get_task_id() is not None
