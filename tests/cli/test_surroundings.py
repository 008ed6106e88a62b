"""In unusual environments, a command's rows are complete, its messages are printed and its exit code has its usual meaning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leakbench.core.errors import InputError
from leakbench.storage.rows_file import read_rows
from leakbench.storage.store import finished_run, open_run
from tests.offline import python_path

HOME = Path(__file__).parents[2]

LEAKBENCH = f"{sys.executable} -m leakbench"

RUN = (
    f"{LEAKBENCH} run --dataset digits --attack lmmse --train-rounds 1 --victims 12 --candidates 20 --taps type-2"
    " --quiet --out run"
)

ENDS = """
import os, signal, sys
from leakbench import __main__ as script
sys.argv = ["leakbench", "--version"]
script.main()
os.kill(os.getpid(), signal.SIGTERM)
"""


def shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in a folder."""
    ours = {"PYTHONPATH": python_path(HOME), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    environment = {**os.environ, **ours, **variables}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("list > /dev/full", "leakbench: stdout: No space left on device\n"),
        # The output is not buffered.
        ("list --json > /dev/full", "leakbench: stdout or file system: No space left on device\n"),
        ("run --dataset nope > /dev/full 2> /dev/full", ""),
    ],
)
def test_a_full_stream_is_named_and_the_exit_code_is_2(tmp_path: Path, line: str, said: str) -> None:
    ended = shell(f"{LEAKBENCH} {line}", tmp_path)
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_not_replaced_by_a_file_of_the_run(tmp_path: Path, closed: str) -> None:
    ended = shell(f"{RUN} {closed}", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(read_rows(tmp_path / "run" / "rows.parquet")) == 12
    with finished_run(tmp_path / "run") as run:
        assert all(run.has(name) for name in list(run.manifest["files"])), "a line of the command went into a file"


@pytest.mark.slow
def test_environment_variables_that_break_a_library_do_not_stop_a_run(tmp_path: Path) -> None:
    ended = shell(RUN, tmp_path, MPLBACKEND="nobackend", SOURCE_DATE_EPOCH="abc", XDG_CACHE_HOME="here")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "a cache whose place is not absolute is not made"


def test_a_signal_after_the_end_does_not_change_the_exit_code(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = shell(f'exec {sys.executable} -c "$PROGRAM"', tmp_path, PROGRAM=ENDS)
    assert ended.returncode == 0, f"{signal.Signals(-ended.returncode)!r} after {time.monotonic() - began:.1f} s"


def test_a_run_in_the_parts_folder_of_another_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {"hash": "one", "command": "run"}) as run:
        run.write_text("parts/first.txt", "done")
        refused = pytest.raises(
            InputError, match=r"run/parts' is where the run in '.*run' keeps its parts; give another --out"
        )
        with refused, open_run(tmp_path / "run" / "parts", {"hash": "other", "command": "run"}):
            pytest.fail("it is opened")
        assert [path.name for path in (tmp_path / "run" / "parts").iterdir()] == ["first.txt"]
