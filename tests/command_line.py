"""Calls the command line as the installed script does, within the tests' own process."""

import sys

import click
import pytest

from leakbench import cli


def called(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
    command: click.Command | None = None,
) -> tuple[int, str, str]:
    """Run `leakbench`, or another command, with these arguments; return (exit code, stdout, stderr)."""
    monkeypatch.setattr(sys, "argv", ["leakbench", *arguments])
    code = 0
    try:
        cli.main(command)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    return code, *capsys.readouterr()
