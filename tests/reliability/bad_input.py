"""Wrong input ends in one line and exit code 2: a corpus of inputs, and fuzzing of each reader.

Both versions try every case of tests/bad in this process. Then the short version lets hypothesis damage a few good files for each
reader; the full version lets atheris fuzz all readers for one hour together.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.bad.corpus import KINDS
from tests.bad.tried import found_wrong
from tests.reliability.fuzzing import fuzz, look
from tests.reliability.readers import READERS
from tests.reliability.tally import Tally

__all__ = ["check"]

SECONDS = 3600.0
"""Seconds of fuzzing for all readers together; LEAKBENCH_FUZZ_SECONDS overrides it."""


def check(full: bool, scratch: Path) -> Tally:
    """Try the corpus; if `full`, also fuzz."""
    tally = Tally()
    for kind, cases in KINDS.items():
        for number, case in enumerate(cases):
            folder = scratch / f"{kind} {number}"
            folder.mkdir()
            said = f"{kind} {number}: {' '.join(case.arguments[-2:])}"
            with tally.case(said):
                wrong = found_wrong(case, folder)
                if wrong:
                    raise AssertionError(wrong)
        tally.figures.append(f"{len(cases)} of {kind}")
    if not full:
        for name, reader in READERS.items():
            look(tally, reader, name, scratch, 5)
    else:
        fuzz(tally, float(os.environ.get("LEAKBENCH_FUZZ_SECONDS", SECONDS)), scratch)
    return tally
