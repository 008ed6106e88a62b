"""Untrusted content is data: no code runs, no path escapes, no script reaches a page, nothing unpacks without a limit.

The short version leaves out most names and texts, the large bombs and the browser.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import pickle
import resource
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from leakbench.core.errors import InputError
from leakbench.core.hashes import checksum
from leakbench.report import write_report
from tests.bad.case import Case
from tests.bad.recipes import BILLION, DEFENSE
from tests.bad.tried import asked, found_wrong
from tests.reliability.tally import Tally
from tests.report.test_report import run_folder, summary_of
from tests.resealed import reseal

__all__ = ["check"]

PACKAGE = Path(__file__).parents[2] / "leakbench"

RUN = "run --quiet --dataset digits --attack lmmse --taps type-2 --train-rounds 0 --victims 2 --candidates 20"

ESCAPES = ("../../x", "../x.yaml", "/etc/passwd", "a/../../x", "..", "x\n../y", "\x1b[2Jx", "~/x", "file:///etc/passwd")

SCRIPT = "</td></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def check(full: bool, scratch: Path) -> Tally:
    """Try to escape from a name, an archive, a recipe, a page; and search the package for code that would allow it."""
    tally = Tally()
    _names(tally, scratch / "names", full)
    _yaml(tally, scratch / "yaml", full)
    _pickles(tally, scratch / "pickles")
    _bombs(tally, scratch / "bombs", full)
    _folders(tally, scratch / "folders")
    _pages(tally, scratch / "pages", full)
    _private(tally, scratch / "private")
    _source(tally)
    if full:
        told = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--select", "S", str(PACKAGE)],
            capture_output=True,
            text=True,
            check=False,
        )
        tally.expect(told.returncode == 0, f"ruff's security rules: {told.stdout[-200:]}")
    return tally


def _refused(
    tally: Tally, said: str, words: list[str], change: Callable[[Path], object], place: Path, *says: str
) -> None:
    """Count a command that must be refused in one line, with nothing written and no neighbour of `place` changed."""
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=place))
    with tally.case(said):
        wrong = found_wrong(Case(words, says, change), folder)
        assert not wrong, wrong
        left = [p.name for p in place.iterdir() if p != folder and p.name in ("x", "x.yaml", "y", "hacked")]
        assert not left, f"wrote {left} next to its folder"


def _names(tally: Tally, place: Path, full: bool) -> None:
    """Names never become paths."""
    for name in ESCAPES if full else ESCAPES[:2]:
        for words in (
            *(
                [*RUN.split(), option, name]
                for option in ("--defense", "--attack", "--dataset", "--model", "--leak-model")
            ),
            *([command, name] for command in ("show", "reproduce", "list")),
            ["data", "fetch", name],
            ["data", "verify", name],
            ["card", name, "digits"],
            ["frontier", "--dataset", name],
            ["epsilon", "--defense", name],
            ["audit", "--defense", name],
        ):
            _refused(tally, f"{' '.join(words[-2:])!r}", words, lambda folder: None, place)


def _yaml(tally: Tally, place: Path, full: bool) -> None:
    deep = "title: " + "[" * 5000 + "]" * 5000 + "\n"
    # Each with its required message: nearly all would also be refused later, as an unknown recipe, after the damage was done.
    many, tag, controls = "more than 100,000 values", "could not determine a constructor", "a control character"
    texts = {
        "a billion laughs": (many, BILLION + "title: *x9\n"),
        "laughs that are merged": (
            many,
            "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9) if n else ''}]}}\n" for n in range(9)),
        ),
        "an object of Python": (tag, "title: !!python/object/apply:os.system ['touch hacked']\n"),
        "a name of Python": (tag, "title: !!python/name:os.system\n"),
        "a new object": (tag, "title: !!python/object/new:os.system ['touch hacked']\n"),
        "a module": (tag, "title: !!python/module:os\n"),
        "five thousand lists": ("not valid YAML", deep),
        "six megabytes": ("more than 500,000 bytes", DEFENSE + "note: " + "x" * 6_000_000 + "\n"),
        "an alias in itself": ("an alias inside its own definition", "&a [*a]\n"),
        "a terminal's title": (controls, DEFENSE.replace("title: Mine", 'title: "\\e]0;owned\\a"')),
        "text that turns": (controls, DEFENSE.replace("title: Mine", 'title: "\\u202Egnp.exe"')),
    }
    for said, (why, text) in texts.items():
        for option in ("--defense", "--attack", "--dataset") if full else ("--defense",):
            write = _writes("mine.yaml", text.encode())
            _refused(tally, f"{option}: {said}", [*RUN.split(), option, "mine.yaml"], write, place, "mine.yaml", why)
        _refused(
            tally,
            f"grid: {said}",
            ["sweep", "--quiet", "mine.yaml"],
            _writes("mine.yaml", text.encode()),
            place,
            "mine.yaml",
            why,
        )
    _refused(
        tally, "a device as a recipe", [*RUN.split(), "--defense", "mine.yaml"], _links("mine.yaml", "/dev/zero"), place
    )


def _writes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _links(name: str, target: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).symlink_to(target)


class _Bomb:
    """A pickle that writes a file if it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("open('hacked', 'w').close()",)


MODEL = "import torch\ndef build(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
ATTACK = "attack --model network:build --shape 1,8,8 --classes 10 --attack cpl --update"


def _update(tally: Tally, said: str, name: str, content: bytes, place: Path, why: str = "") -> None:
    def write(folder: Path) -> None:
        (folder / "network.py").write_text(MODEL, encoding="utf-8")
        (folder / name).write_bytes(content)

    _refused(tally, said, [*ATTACK.split(), name], write, place, name, why)


def _pickles(tally: Tally, place: Path) -> None:
    """Updates are not pickles; a batch of CIFAR is a pickle that is not executed (tests/bad has its files)."""
    bomb = pickle.dumps(_Bomb())
    for name in ("u.pt", "u.pth", "u.pkl", "u.npy", "u.bin", "u.ckpt", "u.safetensors", "u.npz"):
        _update(tally, f"a pickle as {name}", name, bomb, place)
    stream = io.BytesIO()
    np.savez(stream, a=np.array([_Bomb()], dtype=object))
    _update(tally, "a pickle within a .npz", "u.npz", stream.getvalue(), place, "holds objects")


def _bombs(tally: Tally, place: Path, full: bool) -> None:
    """Unpack small files that expand to large ones; the memory use stays small."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 2_000_000_000 if full else 50_000_000
    _update(tally, "a .npz of zeros", "u.npz", _npz(size), place, "expected at most")
    head = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    _update(tally, "safetensors that say they are large", "u.safetensors", struct.pack("<Q", len(head)) + head, place)
    _update(tally, "safetensors with a head of a gigabyte", "u.safetensors", struct.pack("<Q", 2**30) + b"{", place)
    from tests.bad.picture_files import RUN as OF_FILES  # noqa: PLC0415
    from tests.bad.picture_files import recipe  # noqa: PLC0415

    def idx(folder: Path) -> None:
        import hashlib  # noqa: PLC0415

        (folder / "data" / "mine").mkdir(parents=True)
        packed = gzip.compress(bytes(size), mtime=0)
        (folder / "data" / "mine" / "a.gz").write_bytes(packed)
        named = {"file": "a.gz", "sha256": hashlib.sha256(packed).hexdigest()}
        files = dict.fromkeys(("train_images", "train_labels", "test_images", "test_labels"), named)
        recipe(folder, {"idx": {**files, "class_names": ["a", "b"]}}, "*.gz")

    _refused(tally, "a gz bomb", OF_FILES.split(), idx, place, "a.gz", "unpack to more than")

    def rows(folder: Path) -> None:
        manifest = json.loads((run_folder(folder / "run") / "manifest.json").read_text(encoding="utf-8"))
        path = folder / "run" / "rows.parquet"
        column = pa.array(np.zeros(41_000_000, np.int8))
        pq.write_table(pa.table({f"c{n}": column for n in range(5)}), path, compression="zstd")
        manifest["files"]["rows.parquet"] = checksum(path)
        (folder / "run" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    if full:
        _refused(
            tally, "205 million values in rows", ["report", "run"], rows, place, "rows.parquet", "expected at most"
        )
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    # The bombs themselves are made in this process.
    tally.figures.append(
        f"bombs of {size / 1e6:,.0f} MB: the process grew by {grown:,.0f} MiB, in which they were also made"
    )


def _npz(size: int) -> bytes:
    stream, array = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("a.npy", "w", force_zip64=True) as member,
    ):
        member.write(array.getvalue())
        for _ in range(size // 1_000_000):
            member.write(bytes(1_000_000))
    return stream.getvalue()


def _folders(tally: Tally, place: Path) -> None:
    """Untrusted run folders, journals and leaks name no file outside of themselves."""

    def naming(name: str) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            run_folder(folder / "run")
            path = folder / "run" / "manifest.json"
            manifest = json.loads(path.read_text(encoding="utf-8"))
            manifest["files"][name] = "0" * 64
            path.write_text(json.dumps(manifest), encoding="utf-8")

        return write

    for name in ("../../x", "/etc/passwd", "a/../../x", ".."):
        for command in ("report run", "baseline run", "compare run run"):
            _refused(
                tally,
                f"{command}: a manifest with {name}",
                command.split(),
                naming(name),
                place,
                "manifest.json",
                "expected names",
            )
    with tally.case("a leak that names another file"):
        _leak_elsewhere(place / "leaks")
    with tally.case("a journal that names another folder"):
        from leakbench.study.task import TaskOutcome, outcome_of  # noqa: PLC0415

        record = TaskOutcome("0" * 64, "done", "0" * 64, "../../x").as_dict() if hasattr(TaskOutcome, "as_dict") else {}
        for run in ("../../x", "/etc", "..", "a/b"):
            try:
                outcome_of({**record, "run": run})
            except (TypeError, ValueError):
                continue
            raise AssertionError(f"took the run {run!r}")


def _leak_elsewhere(folder: Path) -> None:
    from leakbench.flower.leaks import SENT, read_leaks  # noqa: PLC0415

    for sent in ("../../../etc/passwd", "0" * 15, "0" * 16 + "/x"):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "type-1").mkdir(parents=True)
        header = {"round": "1", "node-id": "1", SENT: sent}
        (folder / "type-1" / "round1-node1.safetensors").write_bytes(save({"a": np.ones(2, np.float32)}, header))
        try:
            read_leaks(folder, "type-1")
        except InputError:
            continue
        raise AssertionError(f"read {sent!r}")


def _pages(tally: Tally, place: Path, full: bool) -> None:
    """Any text that a page takes from a run, a recipe or a path stays text."""
    texts = list(_places(run_folder(place / "places")))[:: 1 if full else 12]
    pages = []
    for number, path in enumerate(texts):
        folder = place / f"{number}"
        run_folder(folder, summary=summary_of())
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        at = manifest
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = f"{at[path[-1]]}{SCRIPT}"
        reseal(folder, manifest)
        with tally.case(f"a script in {'.'.join(map(str, path))}"):
            try:
                page = write_report(folder)
            except InputError as error:
                assert len(str(error).splitlines()) == 1, error
                continue
            assert "<script>window" not in page.read_text(encoding="utf-8"), "a script is in the page"
            assert "<img src=x" not in page.read_text(encoding="utf-8"), "a picture of a stranger's is in the page"
            pages.append(page)
    tally.expect(len(pages) >= (20 if full else 3), f"only {len(pages)} pages were written")
    if full:
        _in_a_browser(tally, pages)


def _places(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each text of a manifest, except those of its files."""

    def walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if isinstance(value, str):
            yield path
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in pairs:
            yield from walk(item, (*path, key))

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for path in walk(manifest, ()):
        if path[0] not in ("files", "checksum", "schema"):
            yield path


def _in_a_browser(tally: Tally, pages: list[Path]) -> None:
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415

        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    except (ImportError, StopIteration):
        tally.figures.append("no browser here: pages were read, not shown")
        return
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page()
        for page in pages:
            shown.goto(page.as_uri())
            tally.expect(not shown.evaluate("'hacked' in window"), f"{page}: a script ran in a browser")
        browser.close()
    tally.figures.append(f"{len(pages)} pages with a script in one text each, shown by Chromium")


def _private(tally: Tally, place: Path) -> None:
    """Only the owner may read run folders (tests/experiment/test_no_pictures.py checks that runs without pictures contain none)."""
    place.mkdir(parents=True)
    code, _, err = asked([*RUN.split(), "--out", "run", "--no-pictures"], place)
    tally.expect(code == 0, f"a run without pictures: {err}")
    for path in (place / "run", *(place / "run").iterdir()):
        mode = stat.S_IMODE(path.stat().st_mode)
        tally.expect(mode & 0o077 == 0, f"{path.name}: mode {mode:o}, expected nothing for others")


FORBIDDEN = {"eval", "exec", "compile", "__import__"}
MODULES = {
    ("os", "system"),
    ("os", "popen"),
    ("marshal", "loads"),
    ("shelve", "open"),
    ("pickle", "load"),
    ("pickle", "loads"),
}


def _source(tally: Tally) -> None:
    """No call in the package executes a text, a shell, or a pickle; `torch.load` and `np.load` get the safe arguments."""
    paths = sorted(PACKAGE.rglob("*.py"))
    tally.figures.append(f"{len(paths)} of those tried are files of the package's source, looked through")
    for path in paths:
        wrong = [f"line {node.lineno}: {said}" for node, said in _calls(path) if said]
        tally.expect(not wrong, f"{path.name}: {'; '.join(wrong)}")


def _calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function, words = node.func, {k.arg: ast.unparse(k.value) for k in node.keywords}
        name = function.id if isinstance(function, ast.Name) else ""
        of = (ast.unparse(function.value), function.attr) if isinstance(function, ast.Attribute) else ("", "")
        said = ""
        if name in FORBIDDEN or of in MODULES:
            said = ast.unparse(function)
        elif of == ("torch", "load") and words.get("weights_only") != "True":
            said = "torch.load without weights_only"
        elif of == ("np", "load") and words.get("allow_pickle") != "False":
            said = "np.load without allow_pickle=False"
        elif of == ("yaml", "load") and "Loader" not in words:
            said = "yaml.load"
        elif words.get("shell") == "True":
            said = "a shell"
        yield node, said
