"""Fuzzes all readers: with atheris, each in a separate process with limits on time and memory.

With hypothesis for the short version.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.reliability.readers import READERS, Reader
from tests.reliability.tally import Tally

__all__ = ["damaged", "fuzz", "look"]

SECONDS_OF_ONE = 10
MEGABYTES = 1024


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Yield variants of a content: bytes changed, removed, repeated, inserted; truncated."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found)))
        long = draw(st.integers(0, 40))
        new = draw(st.one_of(st.binary(max_size=8), st.sampled_from(PIECES), st.just(bytes(found[at : at + long]) * 2)))
        found[at : at + long] = new
    return bytes(found)


PIECES = (
    *(
        b"",
        b"\n",
        b"\x00",
        b"-1",
        b"nan",
        b"1e999",
        b"9" * 40,
        b"9" * 400,
        b"null",
        b"{}",
        b"[",
        b"]",
        b'"',
        b": ",
        b"&a",
        b"*a",
    ),
    *(
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"../",
        b"!!python/name:os.system",
        b"\xed\xa0\x80",
        b"1_0",
        b"0x10",
        b"---",
    ),
)


def look(tally: Tally, reader: Reader, name: str, folder: Path, examples: int) -> None:
    """Read some damaged contents in this process."""
    for number, seed in enumerate(reader.seeds()[:3]):

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(damaged(seed))
        def read(content: bytes) -> None:
            reader(content, folder)

        with tally.case(f"{name}, seed {number}"):
            reader.accepts(seed, folder)
            read()


def fuzz(tally: Tally, seconds: float, scratch: Path) -> None:
    """Fuzz all readers for this long together; without atheris this is a failure."""
    if importlib.util.find_spec("atheris") is None:
        tally.expect(False, "atheris is not there: pip install 'leakbench[fuzz]'")
        return
    for name, reader in READERS.items():
        for number, seed in enumerate(reader.seeds()):
            with tally.case(f"{name}, seed {number}"):
                reader.accepts(seed, scratch)
        _one(tally, name, reader, seconds / len(READERS), scratch)


def _one(tally: Tally, name: str, reader: Reader, seconds: float, scratch: Path) -> None:
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else scratch
    folder = root / f"leakbench-fuzz-{name.replace(' ', '-')}"
    kept = folder.with_name(folder.name + ".scratch")
    try:
        for place in (folder, kept):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        for number, seed in enumerate(reader.seeds()):
            (folder / f"seed{number}").write_bytes(seed)
        command = [
            *(sys.executable, "-m", "tests.reliability.fuzzed", name, str(folder), "-print_final_stats=1"),
            *(f"-max_total_time={seconds:.0f}", f"-timeout={SECONDS_OF_ONE}", f"-rss_limit_mb={MEGABYTES}"),
            *(f"-artifact_prefix={scratch}/{name.replace(' ', '-')}-", "-max_len=20000"),
        ]
        # A shell in between: a process starts with the peak memory of its parent, which libFuzzer would count.
        through = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *command]
        done = subprocess.run(through, capture_output=True, text=True, errors="replace", check=False)
    finally:
        for place in (folder, kept):
            shutil.rmtree(place, ignore_errors=True)
    said = done.stdout + done.stderr
    executed = int((re.findall(r"number_of_executed_units:\s+(\d+)", said) or ["0"])[-1])
    memory = (re.findall(r"peak_rss_mb:\s+(\d+)", said) or ["?"])[-1]
    tally.tried += max(0, executed - 1)
    tally.expect(done.returncode == 0 and executed > 0, f"{name}: {_why(said, done.returncode)}")
    tally.figures.append(f"{name}: {executed:,} contents, {memory} MiB at most")


def _why(said: str, code: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Warning): |==\d+== ?ERROR", line)]
    return f"exit code {code}: {' | '.join(told[-2:] or lines[-2:])}"[:400]
