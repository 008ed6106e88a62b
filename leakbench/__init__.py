"""leakbench: the benchmark of gradient-leakage attacks and defenses in federated learning."""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakbench import canaries
    from leakbench.api import audit, compare, epsilon, run, sweep
    from leakbench.external.training_probe import probe
    from leakbench.external.update import attack_update
    from leakbench.report.own_rows import read
    from leakbench.report.result import Result

__all__ = [
    "Result",
    "__version__",
    "attack_update",
    "audit",
    "canaries",
    "compare",
    "epsilon",
    "probe",
    "read",
    "run",
    "sweep",
]

__version__ = "0.1.0"

WHERE = {
    "Result": "leakbench.report.result",
    "attack_update": "leakbench.external.update",
    "audit": "leakbench.api",
    "canaries": "leakbench.canaries",
    "compare": "leakbench.api",
    "epsilon": "leakbench.api",
    "probe": "leakbench.external.training_probe",
    "read": "leakbench.report.own_rows",
    "run": "leakbench.api",
    "sweep": "leakbench.api",
}
"""{public name: the module that defines it, or that it is, which imports torch or pandas}."""


def __getattr__(name: str) -> Any:
    """Import what needs torch or pandas when it is first used."""
    if name not in WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Some libraries draw from Python's generator while they are imported, and the user's training may use it.
    state = random.getstate()
    try:
        module = import_module(WHERE[name])
    finally:
        random.setstate(state)
    return getattr(module, name, module)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
