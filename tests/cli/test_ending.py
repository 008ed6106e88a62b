"""A command that gets a signal ends in seconds, during any work, with the line that explains how to resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import called

from leakbench.cli import commands
from leakbench.core import process as ending
from leakbench.core.process import INTERRUPTED, SAID
from tests.offline import python_path

HOME = Path(__file__).parents[2]

START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    " signal.signal(signal.SIGHUP, signal.SIG_DFL); from leakbench.core import process as ending;"
)
"""A shell that starts the tests in the background lets its children ignore SIGINT, and `nohup` SIGHUP."""

ASLEEP = """
ending.SECONDS = 15
with ending.listening() as told:
    try:
        print('begun', flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        print('cleaned', told.to_end, flush=True)
        raise SystemExit(130)
time.sleep(0.2)
"""

DEAF = """
ending.SECONDS = 0.3
with ending.listening():
    while True:
        try:
            print('begun', flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            pass
"""

IMPORTING = """
with ending.listening():
    import waits_for_ever
"""


def told(program: str, folder: Path, *numbers: signal.Signals) -> tuple[int, str, str, float]:
    """Run a program, send it signals after its start; return (exit code, stdout, stderr, seconds since the signals)."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{START} import time\n{program}"],
        cwd=folder,
        env={"PYTHONPATH": python_path(HOME, folder), "HOME": os.environ["HOME"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        began = time.monotonic()
        for number in numbers:
            process.send_signal(number)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    return process.returncode, out, err, time.monotonic() - began


@pytest.mark.parametrize("number", ending.SIGNALS)
def test_it_cleans_up_and_a_second_signal_does_not_disturb_that(number: signal.Signals, tmp_path: Path) -> None:
    assert told(ASLEEP, tmp_path, number, signal.SIGTERM)[:3] == (INTERRUPTED, "cleaned True\n", "")


@pytest.mark.parametrize("number", ending.SIGNALS)
def test_code_that_ignores_signals_ends_in_time_with_its_line(number: signal.Signals, tmp_path: Path) -> None:
    code, _, err, seconds = told(DEAF, tmp_path, number)
    assert (code, err) == (INTERRUPTED, f"leakbench: {SAID}\n")
    assert seconds < 5


@pytest.mark.slow
@pytest.mark.parametrize("number", ending.SIGNALS)
def test_a_signal_that_another_thread_got_wakes_the_first(number: signal.Signals, tmp_path: Path) -> None:
    """As the system may deliver one of two simultaneous signals."""
    other = (
        "import threading\n"
        f"threading.Thread(target=lambda: time.sleep(1) or signal.pthread_kill(threading.get_ident(), {number})).start()\n"
    )
    code, out, err, seconds = told(f"{other}{ASLEEP}", tmp_path)
    assert (code, out, err) == (INTERRUPTED, "cleaned True\n", "")
    assert seconds < 10


def test_an_import_is_not_interrupted_but_ends_with_the_process(tmp_path: Path) -> None:
    """Interrupting the import of PyTorch, in which Python calls C++ that calls Python, would abort."""
    text = "import time\nprint('begun', flush=True)\ntry:\n    time.sleep(60)\nfinally:\n    print('broken off')\n"
    (tmp_path / "waits_for_ever.py").write_text(text)
    code, out, err, _ = told(IMPORTING, tmp_path, signal.SIGTERM)
    assert (code, out, err) == (INTERRUPTED, "", f"leakbench: {SAID}\n")


def test_an_interrupt_without_a_terminal_adds_no_empty_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.commands["runs"], "callback", interrupted)
    code, out, err = called(monkeypatch, capsys, "runs")
    assert (code, out, err) == (
        INTERRUPTED,
        "",
        "leakbench: interrupted; `leakbench runs` keeps nothing and starts over\n",
    )


def test_a_signal_that_was_ignored_stays_so(tmp_path: Path) -> None:
    """As `nohup` does with SIGHUP."""
    program = f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{ASLEEP.replace('60', '0.3')}print('done')"
    assert told(program, tmp_path, signal.SIGHUP)[:3] == (0, "done\n", "")


def test_the_grace_period_is_below_the_promised_seconds() -> None:
    assert ending.SECONDS < 5
