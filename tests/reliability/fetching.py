"""Fetching from servers that drop, stall, redirect and lie: no corrupt file is accepted, and every available file is fetched."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

from leakbench.core.errors import InputError
from leakbench.data.checks import File
from leakbench.data.fetch import TRIES, download, fetch_origin
from leakbench.data.pictures import Idx
from leakbench.data.recipe import Origin
from tests.data.test_data_formats import ROLES, pack, sha, tiny_faces, tiny_idx
from tests.reliability.archives import archives
from tests.reliability.faults import TIMEOUT, Fault, faults
from tests.reliability.lying import Server, certificate, content_of, served
from tests.reliability.tally import Tally

SIZE = 300_000
MOST_S = 12.0
"""Largest number of seconds for one download at these timeouts, without pauses, for any behaviour of the server."""


def check(full: bool, scratch: Path) -> Tally:
    """Try every fault at 40 places, alone and before a good mirror; sets, archives, processes; about ten minutes at full length."""
    tally = Tally()
    with served() as server:
        for seed in range(40 if full else 1):
            _faults(tally, server, scratch / f"faults{seed}", seed, full)
        _sets(tally, server, scratch / "sets", 100 if full else 2)
        _archives(tally, server, scratch / "archives")
        _at_once(tally, server, scratch / "threads", 8 if full else 2)
    tls = certificate(scratch / "tls")
    if tls is None:
        tally.figures.append("openssl is not installed: https was not tried")
    else:
        _encrypted(tally, scratch / "https", tls)
    if full:
        with served() as server:
            _processes(tally, server, scratch / "processes")
    return tally


def _faults(tally: Tally, server: Server, place: Path, seed: int, full: bool) -> None:
    """Try every fault alone, then (at full length) before a good mirror, and after a part of another file."""
    rng, content = random.Random(seed), content_of(seed, SIZE)
    for number, fault in enumerate(faults(content, rng, server)):
        if not full and _is_slow(fault):
            continue
        name = f"{seed}/{number}"
        address = server.does(name, fault.does)
        _one(tally, fault, [address], place / name, content, server)
        if full and not (_is_slow(fault) and seed % 8):
            well = server.does(f"well/{name}", lambda a, c=content: a.whole(c))
            again = server.does(f"{name}/first", fault.does)
            _one(
                tally,
                Fault(f"{fault.name}, then a mirror", fault.does, True),
                [again, well],
                place / f"{name}m",
                content,
                server,
            )
            stale = place / f"{name}s" / "a.bin.part"
            stale.parent.mkdir(parents=True)
            stale.write_bytes(rng.randbytes(rng.randrange(1, 2 * SIZE)))
            if fault.name == "whole":
                stale_fault = Fault("after a part of another file", fault.does, True)
                _one(tally, stale_fault, [server.does(f"{name}/s", fault.does)], stale.parent, content, server)


def _is_slow(fault: Fault) -> bool:
    return any(word in fault.name for word in ("silent", "byte by byte"))


def _one(tally: Tally, fault: Fault, addresses: list[str], place: Path, content: bytes, server: Server) -> None:
    """Download once: the result is a good file or one line, never another file, in bounded time and requests."""
    target, before, waited = place / "a.bin", len(server.state.log), list[float]()
    began, told = time.monotonic(), ""
    try:
        download(addresses, target, sha(content), None, TIMEOUT, 20 * SIZE, waited.append)
    except Exception as error:
        told = str(error)
        tally.expect(isinstance(error, InputError), f"{fault.name}: {type(error).__name__}: {told[:200]}")
    seconds, asked = time.monotonic() - began, len(server.state.log) - before
    there = target.read_bytes() if target.exists() else None
    name = f"{fault.name}: "
    tally.expect(there in (None, content), f"{name}a corrupt file was accepted")
    tally.expect(
        (there is not None) == fault.good,
        f"{name}expected {'the file' if fault.good else 'no file'}, {told or 'got it'}",
    )
    if told:
        tally.expect(
            "\n" not in told and fault.said in told, f"{name}said {told!r}, expected one line with {fault.said!r}"
        )
        tally.expect(len(told) < 600, f"{name}said {len(told)} characters")
    tally.expect(seconds < MOST_S, f"{name}took {seconds:.1f} s")
    tally.expect(asked <= 8 * TRIES * len(addresses), f"{name}asked {asked} times")
    tally.expect(sum(waited) <= 4 * 60.0, f"{name}would have waited {sum(waited):.0f} s")
    if "Retry-After of 7" in name:
        tally.expect(waited[:1] == [7.0], f"{name}waited {waited}")
    if "Retry-After of a date in" in name and "mirror" not in name:
        tally.expect(bool(waited) and 15 < waited[0] <= 20, f"{name}waited {waited}")


def _served_set(server: Server, place: Path, name: str, wrap: Callable[[bytes, str], None]) -> tuple[Idx, Origin]:
    """Serve the files of a tiny set, each wrapped by `wrap`."""
    source = place / "source"
    source.mkdir(parents=True)
    form = tiny_idx(source)
    for file in form.files:
        wrap((source / file.file).read_bytes(), f"{name}/{file.file}")
    return form, Origin(layouts=(f"{name}/raw",), marker="*", megabytes=1.0, mirrors=(server.url(f"{name}/"),))


def _sets(tally: Tally, server: Server, place: Path, count: int) -> None:
    """Fetch whole sets, each file behind a random fault: the set is right, or one line, and no wrong file is left."""
    right = 0
    for seed in range(count):
        rng = random.Random(seed)

        def wrap(content: bytes, name: str, rng: random.Random = rng) -> None:
            known = [f for f in faults(content, rng, server) if not _is_slow(f)]
            server.does(name, rng.choice(known if rng.random() < 0.3 else [f for f in known if f.good]).does)

        form, origin = _served_set(server, place / str(seed), f"set{seed}", wrap)
        root, told = place / str(seed) / "root", ""
        try:
            fetch_origin(form, origin, root, None, TIMEOUT, lambda _: None)
        except InputError as error:
            told = str(error)
        checks = form.check(root / f"set{seed}/raw")
        tally.expect(all(c.ok or not c.got for c in checks), f"set {seed}: a corrupt file was accepted")
        tally.expect(all(c.ok for c in checks) == (not told), f"set {seed}: {told or 'a file is missing'}")
        tally.expect("\n" not in told, f"set {seed}: more than one line")
        right += not told
    tally.figures.append(f"{right} of {count} sets with a fault a file fetched whole, the others refused")


def _archives(tally: Tally, server: Server, place: Path) -> None:
    """Unpack hostile archives: each is refused in one line, with nothing written inside or outside the folder."""
    source = place / "source"
    source.mkdir(parents=True)
    form = tiny_faces(source)
    for name, content, good in archives(source):
        server.does(f"{name}.tgz", lambda a, c=content: a.whole(c))
        root, told = place / name / "deep" / "root", ""
        origin = Origin(
            layouts=("tiny/raw",), marker="*", megabytes=0.01, mirrors=(server.url(""),), archive=f"{name}.tgz"
        )
        try:
            fetch_origin(form, origin, root, None, TIMEOUT, lambda _: None)
        except InputError as error:
            told = str(error)
        left = sorted(str(p.relative_to(place / name)) for p in (place / name).rglob("*") if not p.is_dir())
        if good:
            tally.expect(not told and form.check(root / "tiny/raw")[0].ok, f"archive, {name}: {told}")
        else:
            tally.expect(bool(told) and "\n" not in told, f"archive, {name}: was taken, or not in one line: {told!r}")
            tally.expect(left == [], f"archive, {name}: left {left[:3]}")


def _at_once(tally: Tally, server: Server, place: Path, count: int) -> None:
    """Fetch the same set several times at once: all succeed, and each file is requested once."""
    form, origin = _served_set(
        server, place, "once", lambda c, n: server.does(n, lambda a: (time.sleep(0.05), a.whole(c))[0]) and None
    )
    told: list[str] = []

    def fetch() -> None:
        try:
            fetch_origin(form, origin, place / "root", None, 5.0)
        except Exception as error:
            told.append(str(error))

    threads = [threading.Thread(target=fetch) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.expect(not told, f"{count} at once: {told[:1]}")
    tally.expect(all(c.ok for c in form.check(place / "root/once/raw")), f"{count} at once: not one good copy")
    often = [server.asked(f"once/{file.file}") for file in form.files]
    tally.expect(often == [1] * len(often), f"{count} at once: files were asked for {often} times")
    left = sorted(p.name for p in (place / "root").rglob("*") if p.is_file())
    tally.expect(left == sorted(f.file for f in form.files), f"{count} at once: left {left}")


def _encrypted(tally: Tally, place: Path, tls: tuple[Path, Path]) -> None:
    """Fetch by https: a trusted certificate, an untrusted one, and redirections, which must stay on https."""
    content = content_of(1, SIZE)
    with served(tls) as safe, served() as plain:
        good = safe.does("good", lambda a: a.whole(content))
        bare = plain.does("good", lambda a: a.whole(content))
        elsewhere = safe.url("good", host="localhost")
        to = lambda address: lambda a: a.head(302, Location=address, Content_Length=0)  # noqa: E731
        cases = (
            ("https", good, True, ""),
            ("https to https of another host", safe.does("other", to(elsewhere)), True, ""),
            ("https to http", safe.does("down", to(bare)), False, "expected https"),
            ("http of this machine to https", plain.does("up", to(good)), True, ""),
            (
                "https, cut once",
                safe.does("cut", lambda a: a.whole(content, 99_999 if not a.number else None)),
                True,
                "",
            ),
            (
                "https, silent once",
                safe.does("still", lambda a: a.silence(3) if not a.number else a.whole(content)),
                True,
                "",
            ),
        )
        with mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(tls[0])}):
            for name, address, had, said in cases:
                _one(tally, Fault(name, lambda a: None, had, said), [address], place / name, content, safe)
        asked = len(plain.state.log)
        stranger = Fault("https of a stranger's certificate", lambda a: None, False, "certificate")
        _one(tally, stranger, [good], place / "x", content, safe)
        bare = Fault("http of another machine", lambda a: None, False, "expected an address of https")
        _one(tally, bare, ["http://192.0.2.1/a"], place / "y", content, safe)
        asked_all = len(plain.state.log)
        tally.expect(asked_all == asked == 1, f"http was asked {asked_all} times, expected once, before https")


RECIPE = """
title: tiny
cite: made here
license: none
format:
  idx:
{files}
    class_names: [a, b]
federation: {{rounds: 1, batch: 1, examples_per_client: 2, clients: 2, clients_per_round: 2}}
origin: {{layouts: [tiny/raw], marker: "*.gz", megabytes: 1.0, mirrors: ["{mirror}"]}}
"""


def _processes(tally: Tally, server: Server, place: Path) -> None:
    """Fetch in four processes at once, and kill one of them midway: one good copy, and no file is requested twice."""
    place.mkdir(parents=True)
    pixels = pack(np.random.default_rng(0).integers(0, 256, (20_000, 4, 4), "uint8"))
    contents = dict(zip(ROLES, (pixels, pack(_labels(20_000)), pixels, pack(_labels(20_000))), strict=True))
    for role, content in contents.items():
        server.does(f"{role}.gz", lambda a, c=content: (time.sleep(0.3), _slowly(a, c))[0])
    files = "".join(f"    {r}: {{file: {r}.gz, sha256: {sha(c)}}}\n" for r, c in contents.items())
    recipe = place / "tiny_idx.yaml"
    recipe.write_text(RECIPE.format(files=files, mirror=server.url("")), encoding="utf-8")
    form = Idx(**{r: File(file=f"{r}.gz", sha256=sha(c)) for r, c in contents.items()}, class_names=("a", "b"))
    for name, killed in (("at-once", False), ("killed", True)):
        root, before = place / name, len(server.state.log)
        running = [_command(recipe, root) for _ in range(4)]
        if killed:
            time.sleep(0.1)
            while not list(root.rglob("*.part")):
                time.sleep(0.01)
            held = running.pop(0)
            held.send_signal(signal.SIGKILL)
            held.wait()
        said = [process.communicate(timeout=120)[1] for process in running]
        codes = [process.returncode for process in running]
        tally.expect(codes == [0] * len(codes), f"processes, {name}: exit codes {codes}, {said}")
        tally.expect(all(c.ok for c in form.check(root / "tiny/raw")), f"processes, {name}: not one good copy")
        left = sorted(p.name for p in root.rglob("*") if p.is_file())
        tally.expect(left == sorted(f"{r}.gz" for r in ROLES), f"processes, {name}: left {left}")
        asked = len(server.state.log) - before
        tally.expect(asked <= len(ROLES) + killed, f"processes, {name}: {asked} requests for {len(ROLES)} files")
    tally.figures.append("4 processes on one set: one good copy, each file asked for once")


def _labels(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (count,), "uint8")


def _slowly(asked: object, content: bytes) -> None:
    start = asked.start  # type: ignore[attr-defined]
    if start == len(content):
        asked.whole(content)  # type: ignore[attr-defined]
        return
    headers = {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
    asked.head(206 if start else 200, Content_Length=len(content) - start, **headers)  # type: ignore[attr-defined]
    for at in range(start, len(content), 20_000):
        asked.body(content[at : at + 20_000])  # type: ignore[attr-defined]
        time.sleep(0.02)


def _command(recipe: Path, root: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "leakbench", "data", "fetch", str(recipe), "--data-dir", str(root)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
