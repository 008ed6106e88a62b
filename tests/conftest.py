"""Settings of all tests: no network, an empty home folder, no published data unless `-m data` selects them."""

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.offline import BEFORE, python_path
from tests.offline.loopback_only import refuse_network

if TYPE_CHECKING:
    from leakbench.leaderboard.card import Card

FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "LOCALAPPDATA", "APPDATA")
"""Variables that name folders of the user other than the home folder."""

LIBRARIES = ("MPLCONFIGDIR", "TORCH_HOME", "SKLEARN_DATA", "SCIKIT_LEARN_DATA")
"""Variables that name folders in which libraries keep files of the user."""

NEEDS_DATA = "needs published data sets (LEAKBENCH_DATA=FOLDER python -m pytest -m data)"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests from the network, the user's files, GPUs and published data, also in the processes that they start."""
    refuse_network()
    # The expected numbers were computed on CPUs.
    if not _is_wanted(config, "cuda"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if BEFORE not in os.environ:  # In a worker of pytest-xdist, the process that started it has done this.
        config.stash[HOME] = isolate(keep_data=_is_wanted(config, "data"))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Delete the tests' home folder."""
    if home := config.stash.get(HOME, None):
        shutil.rmtree(home, ignore_errors=True)


HOME = pytest.StashKey[str]()


def isolate(keep_data: bool) -> str:
    """Change the environment of this process and its children; return the new, empty home folder."""
    home = tempfile.mkdtemp(prefix="leakbench-tests-")
    path = [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    changed: dict[str, str | None] = {"HOME": home, "USERPROFILE": home, "PYTHONPATH": python_path(*path)}
    changed |= dict.fromkeys((*FOLDERS, *LIBRARIES, *([] if keep_data else ["LEAKBENCH_DATA"])))
    os.environ[BEFORE] = json.dumps({name: os.environ.get(name) for name in changed})
    set_variables(changed)
    return home


def set_variables(values: dict[str, str | None]) -> None:
    """Set environment variables; None unsets one."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _is_wanted(config: pytest.Config, mark: str) -> bool:
    """Say whether `-m` selects a mark: it names the mark, and not after `not`."""
    return re.search(rf"(?<!not )\b{mark}\b", config.option.markexpr) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Skip the tests that need published data if the data are missing."""
    if not os.environ.get("LEAKBENCH_DATA"):
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(pytest.mark.skip(reason=NEEDS_DATA))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for each reason."""
    skipped = (report.longrepr for report in terminalreporter.stats.get("skipped", []))
    reasons = Counter(told[2].removeprefix("Skipped: ") if isinstance(told, tuple) else str(told) for told in skipped)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of published data sets, in $LEAKBENCH_DATA; only tests with the mark `data` have it."""
    return Path(os.environ["LEAKBENCH_DATA"])


# The tests' tensors are small: a second thread waits more than it works, and on a busy machine it waits long.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def without_waiting_for_the_disk():
    """Leave the tests' files in the system's memory: no test can check that they survive a power cut."""
    before = os.fsync
    os.fsync = lambda _: None
    yield
    os.fsync = before


@pytest.fixture(autouse=True, scope="session")
def fits_of_the_tests(tmp_path_factory):
    """Cache fits outside of the user's own cache, also in child processes."""
    before = os.environ.get("LEAKBENCH_FITS")
    os.environ["LEAKBENCH_FITS"] = str(tmp_path_factory.mktemp("fits"))
    yield
    if before is None:
        del os.environ["LEAKBENCH_FITS"]
    else:
        os.environ["LEAKBENCH_FITS"] = before


@pytest.fixture(autouse=True, scope="session")
def without_pages():
    """Let `leakbench run` skip its page, which takes as long as the measurement of a tiny cell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakbench.api.report_into", lambda run: run.folder / "report.html")
        yield


@pytest.fixture(scope="module")
def with_pages():
    """Let `leakbench run` write its page, for the modules that read it."""
    from leakbench.report.page import report_into  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakbench.api.report_into", report_into)
        yield


@pytest.fixture(scope="session")
def measured_card(tmp_path_factory) -> "tuple[Path, Card]":
    """Return a small card and the folder of its runs."""
    from tests.leaderboard_cards import small_card  # noqa: PLC0415

    runs = tmp_path_factory.mktemp("runs")
    return runs, small_card(runs)
