"""One reader, fuzzed by atheris: python -m tests.reliability.fuzzed READER FOLDER [options of libFuzzer].

FOLDER contains the initial inputs and receives the new ones; put it in memory (/dev/shm), since each input is written to disk.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

from tests.reliability.readers import READERS

if __name__ == "__main__":
    name, folder, *options = sys.argv[1:]
    reader, scratch = READERS[name], Path(tempfile.mkdtemp(dir=folder + ".scratch"))
    # A reader imports its modules at its first input; only these imports are instrumented, so read once here.
    with atheris.instrument_imports(include=["leakbench", "yaml", "pickle", "tarfile", "zipfile"]):
        for seed in reader.seeds():
            reader(seed, scratch)
    atheris.Setup([sys.argv[0], folder, *options], lambda content: reader(content, scratch))
    atheris.Fuzz()
