"""`python -m leakbench` and the script `leakbench`: the command line, which can be told to end from its first import on."""

import signal
import sys

from leakbench.ending import INTERRUPTED, listening, said

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    told = None
    try:
        with listening() as told:
            from leakbench.cli import main as commands  # noqa: PLC0415

            commands()
    except KeyboardInterrupt:  # On the way out of what listens itself.
        sys.stderr.write(f"leakbench: {said()}\n")
        sys.exit(INTERRUPTED)
    finally:  # All is done or said: nothing more to break off with a traceback.
        if told is None or not told.to_end:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
