"""`python -m leakbench` and the script `leakbench`: the command line, which handles signals from its first import on."""

import signal
import sys

from leakbench.core.process import INTERRUPTED, SIGNALS, listening, put_right, said

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    put_right()
    try:
        with listening():
            from leakbench.cli import main as commands  # noqa: PLC0415

            commands()
    except KeyboardInterrupt:  # On the way out of what listens itself.
        sys.stderr.write(f"leakbench: {said()}\n")
        sys.exit(INTERRUPTED)
    finally:  # All is done or said: nothing is left to break off, and the exit code is that of what was done.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
