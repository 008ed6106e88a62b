"""Whatever a command finds around it, its rows are whole, its line is said and its exit code means what it always does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leakbench.cell.numbers import MOST_ROUNDS
from leakbench.rows_file import read_rows

HOME = Path(__file__).parent.parent

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
    """Run a line of a shell in a folder."""
    ours = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    environment = {**os.environ, **ours, **variables}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("list > /dev/full", "leakbench: stdout: No space left on device\n"),
        (
            "list --json > /dev/full",
            "leakbench: stdout or file system: No space left on device\n",
        ),  # Nothing held back.
        ("run --dataset nope 2> /dev/full", ""),
        ("list > /dev/full 2> /dev/full", ""),
    ],
)
def test_a_full_stream_is_named_and_the_exit_code_is_2(tmp_path: Path, line: str, said: str) -> None:
    ended = shell(f"{LEAKBENCH} {line}", tmp_path)
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_takes_no_file_of_the_run_for_itself(tmp_path: Path, closed: str) -> None:
    ended = shell(f"{RUN} {closed}", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(read_rows(tmp_path / "run" / "rows.parquet")) == 12
    assert shell(f"{LEAKBENCH} report run", tmp_path).returncode == 0, (
        "no file of the run is what it was not written as"
    )


def test_a_variable_that_a_library_stumbles_over_is_not_ours(tmp_path: Path) -> None:
    ended = shell(RUN, tmp_path, MPLBACKEND="nobackend", SOURCE_DATE_EPOCH="abc", XDG_CACHE_HOME="here")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "a cache whose place is not absolute is not made"


def test_a_signal_after_all_is_done_changes_no_exit_code(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = shell(f'exec {sys.executable} -c "$PROGRAM"', tmp_path, PROGRAM=ENDS)
    assert ended.returncode == 0, f"{signal.Signals(-ended.returncode)!r} after {time.monotonic() - began:.1f} s"


def test_a_run_in_a_runs_parts_is_refused_as_the_first_would_remove_it(tmp_path: Path) -> None:
    assert shell(RUN, tmp_path).returncode == 0
    ended = shell(RUN.replace("--out run", "--out run/parts"), tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2,
        "leakbench: out: 'run/parts' is where the run in 'run' keeps its parts; give another --out\n",
    )
    assert not (tmp_path / "run" / "parts").exists()


def test_more_rounds_than_anybody_trains_for_are_refused_at_once(tmp_path: Path) -> None:
    ended = shell(RUN.replace("--train-rounds 1", f"--train-rounds {MOST_ROUNDS + 1}"), tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2,
        f"leakbench: train-rounds: got {MOST_ROUNDS + 1}, expected at most {MOST_ROUNDS}\n",
    )
    assert not list(tmp_path.iterdir())
