"""Packaging: the wheel runs alone, minimum versions are real, the newest versions pass, imports are fast."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

from tests.offline import environment_before
from tests.reliability.tally import Tally

ROOT = Path(__file__).parents[2]
NEWEST_PYTHONS = ("3.14", "3.13", "3.12")
"""Newer Python versions, the newest one with wheels of torch first."""

IMPORT_S, HELP_S = 0.5, 0.3


def check(full: bool, scratch: Path) -> Tally:
    """Try the packaging, see the module; about half an hour at full length, since the suite runs in two new environments."""
    tally = Tally()
    _declared(tally)
    _lean(tally)
    if full:
        _quick(tally)
        clone = scratch / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        wheel = _built(tally, clone, scratch)
        if wheel is not None:
            _alone(tally, wheel, scratch)
        _suites(tally, clone, scratch)
    return tally


def _declared(tally: Tally) -> None:
    """The files that pyproject.toml names exist, and each dependency has a minimum version and no pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for source in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]:
        tally.expect((ROOT / source).exists(), f"pyproject.toml takes {source} into the wheel, which is not there")
    tally.expect((ROOT / "leakbench" / "py.typed").exists(), "leakbench/py.typed is not there")
    for needed in project["project"]["dependencies"]:
        tally.expect(re.fullmatch(r"[\w-]+>=[\d.]+", needed) is not None, f"{needed!r} is not a minimum version")


def _lean(tally: Tally) -> None:
    """`import leakbench` and every `--help` do not import torch, pandas or other slow packages."""
    for words in ([], ["--help"], ["run", "--help"], ["attack", "--help"], ["sweep", "--help"]):
        code = (
            "import sys\nimport leakbench\n"
            + (
                f"from leakbench.cli import main\nsys.argv[1:] = {words!r}\ntry:\n main()\nexcept SystemExit: pass\n"
                if words
                else ""
            )
            + "sys.stderr.write(' '.join(m for m in ('torch', 'pandas', 'numpy', 'matplotlib') if m in sys.modules))"
        )
        told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        tally.expect(told.stderr == "", f"{' '.join(['leakbench', *words])} imports {told.stderr}")


def _quick(tally: Tally) -> None:
    for name, words, most in (
        ("import", ["-c", "import leakbench"], IMPORT_S),
        ("--help", ["-m", "leakbench", "--help"], HELP_S),
    ):
        seconds = []
        for _ in range(7):
            began = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True)
            seconds.append(time.perf_counter() - began)
        found = statistics.median(seconds)
        tally.expect(found < most, f"{name}: {found:.2f} s, expected under {most}")
        tally.figures.append(f"{name} {found:.2f} s")


def _built(tally: Tally, clone: Path, scratch: Path) -> Path | None:
    """Build the sdist and from it the wheel, as `build` does; neither may print a warning."""
    made = scratch / "dist"
    told = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(made), str(clone)],
        env=environment_before(),
        capture_output=True,
        text=True,
        check=False,
    )
    said = told.stdout + told.stderr
    if "No module named build" in said:
        tally.figures.append("`build` is not installed: no package was built")
        return None
    tally.expect(told.returncode == 0, f"build: {said.strip().splitlines()[-1:]}")
    lines = [
        line
        for line in said.splitlines()
        if re.search(r"\bwarning\b", line, re.I) and "find-links" not in line and "Location" not in line
    ]
    tally.expect(not lines, f"build warns: {lines[:1]}")
    wheels, sdists = list(made.glob("*.whl")), list(made.glob("*.tar.gz"))
    if not (wheels and sdists):
        return None
    with zipfile.ZipFile(wheels[0]) as held, tarfile.open(sdists[0]) as sent:
        names, kept = held.namelist(), sent.getnames()
    tally.expect("leakbench/py.typed" in names, "the wheel has no py.typed")
    tally.expect(
        not any(name.startswith(("tests/", "results/", "studies/")) for name in names),
        "the wheel holds tests or results",
    )
    tally.expect(any(name.endswith("/leakbench/py.typed") for name in kept), "the sdist has no py.typed")
    tally.figures.append(
        f"wheel {wheels[0].stat().st_size / 1e6:.1f} MB, sdist {sdists[0].stat().st_size / 1e6:.1f} MB"
    )
    return wheels[0]


def _alone(tally: Tally, wheel: Path, scratch: Path) -> None:
    """In a fresh environment, an empty folder and an empty home the wheel lists its catalog and runs the embedded cell."""
    python = _environment(
        scratch / "alone", f"{sys.version_info.major}.{sys.version_info.minor}", [str(wheel)], "highest"
    )
    if python is None:
        tally.figures.append("uv is not installed: the wheel was not installed")
        return
    far, home = scratch / "far", scratch / "home"
    far.mkdir()
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "OMP_NUM_THREADS": "1"}
    program = str(python.with_name("leakbench"))
    for words, wanted in (
        (["list", "defenses"], "fed_alpha_cdp"),
        (["list", "attacks"], "cpl"),
        (["run", "--iterations", "20", "--victims", "2", "--out", "run"], "ASR"),
        (["report", "run"], "report.html"),
    ):
        told = subprocess.run([program, *words], cwd=far, env=environment, capture_output=True, text=True, check=False)
        tally.expect(
            told.returncode == 0 and wanted in told.stdout,
            f"the wheel alone: leakbench {' '.join(words)}: {told.stderr[-200:]!r}",
        )
    manifest = far / "run" / "manifest.json"
    tally.expect(
        manifest.exists() and json.loads(manifest.read_text())["complete"], "the wheel alone: its run is not complete"
    )


def _suites(tally: Tally, clone: Path, scratch: Path) -> None:
    """The suite passes with the lowest versions and the oldest Python, and with the newest versions and the newest Python."""
    wanted = [("3.11", "lowest-direct")]
    newest = next((version for version in NEWEST_PYTHONS if _python(version)), None)
    wanted += [] if newest is None else [(newest, "highest")]
    for version, resolution in wanted:
        python = _environment(scratch / resolution, version, [f"{clone}[test]"], resolution)
        if python is None:
            tally.figures.append(f"uv or Python {version} is not installed: {resolution} not tried")
            continue
        environment = {**os.environ, "PYTHONPATH": str(clone)}
        told = subprocess.run(
            [str(python), "-m", "pytest"], cwd=clone, env=environment, capture_output=True, text=True, check=False
        )
        lines = told.stdout.strip().splitlines() or [told.stderr.strip()[-200:]]
        last = lines[-1].strip("= ")
        failed = "; ".join(line for line in lines if line.startswith(("FAILED", "ERROR")))
        tally.expect(told.returncode == 0, f"the suite on {resolution} with Python {version}: {last}: {failed}")
        tally.figures.append(f"{resolution} on Python {version}: {last}")


def _python(version: str) -> str | None:
    """Return a Python of this version, on the path or from pyenv; None if it is not installed."""
    home = environment_before().get("HOME", "")
    places = sorted(Path(home).glob(f".pyenv/versions/{version}.*/bin/python")) if home else []
    return str(places[-1]) if places else shutil.which(f"python{version}")


def _environment(place: Path, version: str, packages: list[str], resolution: str) -> Path | None:
    """Make an environment with uv and return its Python; None without uv or that Python version."""
    uv = shutil.which("uv") or ("" if importlib.util.find_spec("uv") is None else "uv")
    found = _python(version)
    if not uv or found is None:
        return None
    program = [uv] if uv != "uv" else [sys.executable, "-m", "uv"]
    subprocess.run([*program, "venv", "-q", "--python", found, str(place)], env=environment_before(), check=True)
    python = place / "bin" / "python"
    subprocess.run(
        [*program, "pip", "install", "-q", "--python", str(python), "--resolution", resolution, *packages],
        env=environment_before(),
        check=True,
    )
    return python
