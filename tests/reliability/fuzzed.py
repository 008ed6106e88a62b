"""One reader, fuzzed by atheris: python -m tests.reliability.fuzzed READER FOLDER [options of libFuzzer].

FOLDER has the files that it begins with and takes what it finds; it should lie in memory (/dev/shm), since each content is written.
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
    # A reader imports what it needs; that is watched, and not of the first content.
    with atheris.instrument_imports(include=["leakbench", "yaml", "pickle", "tarfile", "zipfile"]):
        for seed in reader.seeds():
            reader(seed, scratch)
    atheris.Setup([sys.argv[0], folder, *options], lambda content: reader(content, scratch))
    atheris.Fuzz()
