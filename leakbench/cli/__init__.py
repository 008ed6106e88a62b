"""The command line. Tables and JSON go to stdout, progress and errors to stderr; bad input is one line and exit code 2."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

if "OMP_WAIT_POLICY" not in os.environ:
    # Waiting threads that spin for milliseconds take the cores of a shared machine from other work.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import click

from leakbench import __version__
from leakbench.cli.catalog import list_, schema, show
from leakbench.cli.conformance import conformance
from leakbench.cli.data import data
from leakbench.cli.external import attack
from leakbench.cli.flower import flower
from leakbench.cli.frontier import frontier
from leakbench.cli.gate import baseline, gate
from leakbench.cli.leaderboard import card, leaderboard
from leakbench.cli.options import help_alone
from leakbench.cli.privacy import audit, epsilon
from leakbench.cli.reproduce import reproduce
from leakbench.cli.run import compare, plot, report, run
from leakbench.cli.runs import runs
from leakbench.cli.sweep import sweep
from leakbench.core.errors import InputError, out_of_memory, wanted
from leakbench.core.process import INTERRUPTED, full, listening, said
from leakbench.engine.memory import keep_freed_memory

__all__ = ["main"]

BUG = 70
LOWERED = ("--clients-per-round", "--leak-batch", "--victims", "--candidates")
"""Options whose smaller values need less memory."""


def main(command: click.Command | None = None, name: str = "leakbench") -> None:
    """Run the command line; the entry point of the `leakbench` script.

    Args:
        command: Another command whose errors end as those of leakbench do; None for all of leakbench.
        name: What its help calls it.
    """
    debug = "--debug" in sys.argv
    keep_freed_memory()
    with listening() as told:
        try:
            code = (command or commands).main(
                args=[a for a in sys.argv[1:] if a != "--debug"], standalone_mode=False, prog_name=name
            )
            if code:  # With standalone_mode=False, click returns the code of `Context.exit` and does not exit.
                sys.exit(code)
        except InputError as error:
            _fail(str(error), debug)
        except click.ClickException as error:
            _fail(_message(error), debug)
        except (KeyboardInterrupt, click.Abort):
            _fail(said(), debug, INTERRUPTED)
        except Exception as error:  # Unforeseen errors are one line too.
            if told.to_end:  # Half-way through a library that makes another error of it.
                _fail(said(), debug, INTERRUPTED)
            if isinstance(error, OSError):
                where = error.filename2 or error.filename or full() or "stdout or file system"
                _fail(f"{where}: {error.strerror or error}", debug)
            if out_of_memory(error):  # Of what is not done for some victims or clients at a time.
                _fail(f"memory: not enough{wanted(error)}; {_lower()}", debug)
            _fail(f"{_culprit(error)} ({type(error).__name__}: {error}); --debug shows where", debug, BUG)


def _culprit(error: Exception) -> str:
    """Return whose mistake an unforeseen error is: that of leakbench, or of the innermost line of code that no library has."""
    home, libraries = Path(__file__).parents[1], set(map(Path, sysconfig.get_paths().values()))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(home):
            break
        if file.is_file() and not any(file.is_relative_to(library) for library in libraries):
            return f"an error in {file}, line {frame.lineno}"
    return "a bug in leakbench"


def _message(error: click.ClickException) -> str:
    """Return the message of click, with the closest option only, ranges as other checks print them, and what a folder is."""
    if isinstance(error, click.BadParameter) and error.param is not None:
        wrong = re.fullmatch(r"(?P<given>.+) is not (in the range .*|a valid (?P<kind>\w+) range\.)", error.message)
        kind = error.param.type
        if wrong and isinstance(kind, click.IntRange | click.FloatRange):
            limits = [
                f"at {word} {limit}" for word, limit in (("least", kind.min), ("most", kind.max)) if limit is not None
            ]
            number = {None: "", "integer": "a whole number of ", "float": "a number of "}[wrong["kind"]]
            return f"{error.param.opts[0].lstrip('-')}: got {wrong['given']}, expected {number}{' and '.join(limits)}"
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        close = get_close_matches(error.option_name, error.possibilities, n=1, cutoff=0)
        error = click.NoSuchOption(error.option_name, possibilities=close, ctx=error.ctx)
    folder = isinstance(error, click.MissingParameter) and error.param is not None and error.param.name == "folder"
    return error.format_message() + (" Give the folder of a finished run." if folder else "")


def _lower() -> str:
    """Return what takes less memory, of the options that the command has which was called."""
    called = next((commands.commands[word] for word in sys.argv[1:] if word in commands.commands), commands)
    options = {name for parameter in called.params for name in parameter.opts}
    lowered = [name for name in LOWERED if name in options]
    if lowered:
        several = " or ".join(filter(None, [", ".join(lowered[:-1]), lowered[-1]]))
        return f"lower {several}, or take a smaller network"
    if "--update" in options:
        return "attack fewer updates at a time, or take a smaller network"
    return "end other programs, or take a machine with more"


def _fail(message: str, debug: bool, code: int = 2) -> None:
    if debug:
        raise  # noqa: PLE0704 - only ever called while an exception is handled
    with suppress(OSError):  # Of a stderr that takes nothing more.
        click.echo(f"leakbench: {' '.join(message.split())}", err=True)
    full()
    sys.exit(code)


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; click adds an empty line to an interrupt, which only the ^C of a terminal needs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            if sys.stderr.isatty():
                raise
            raise click.Abort from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
    epilog="Add --debug to any command to see the traceback of an error.",
)
@click.version_option(__version__)
@click.pass_context
def commands(context: click.Context) -> None:
    """Measure what gradients leak in federated learning, what a defense costs, and whether its epsilon is valid."""
    help_alone(context)


for command in (
    run,
    attack,
    sweep,
    list_,
    show,
    schema,
    epsilon,
    audit,
    conformance,
    reproduce,
    frontier,
    flower,
    runs,
    report,
    plot,
    compare,
    baseline,
    gate,
    card,
    leaderboard,
    data,
):
    commands.add_command(command)
