"""Keeps the tests, and the Python programs that they start, from the network: this folder is on their PYTHONPATH."""

import json
import os
from pathlib import Path

__all__ = ["BEFORE", "FOLDER", "environment_before", "python_path"]

BEFORE = "LEAKBENCH_TESTS_BEFORE"
"""Variable with the values, as JSON, of the tests' variables in the user's environment."""

FOLDER = Path(__file__).parent


def python_path(*folders: Path) -> str:
    """Return a PYTHONPATH for a child process of a test: the folder that blocks the network, then these folders."""
    return os.pathsep.join(map(str, (FOLDER, *folders)))


def environment_before() -> dict[str, str]:
    """Return the user's environment, for the few children that install packages and need an index and its cache."""
    changed = json.loads(os.environ[BEFORE])
    now = {name: value for name, value in os.environ.items() if name not in changed and name != BEFORE}
    return now | {name: value for name, value in changed.items() if value is not None}
