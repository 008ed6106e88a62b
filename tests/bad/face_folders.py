"""Folders that contain other photographs than a recipe accepts, or no photographs."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from tests.bad.case import Case
from tests.bad.picture_files import RUN, recipe

PEOPLE = {"Ann_A": 4, "Bob_B": 4, "Zoe_Z": 4}


def _jpeg(level: int = 0, size: tuple[int, int] = (250, 250), form: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (level, 128, 0)).save(stream, form)
    return stream.getvalue()


def _album() -> dict[str, bytes]:
    return {
        f"{person}/{person}_{i:04}.jpg": _jpeg(30 * i + len(person))
        for person, count in PEOPLE.items()
        for i in range(1, count + 1)
    }


def _huge_png(side: int = 60_000) -> bytes:
    """Return a small file that decodes to a picture with the given number of pixels on each side."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def _faces(
    changed: Mapping[str, bytes | None],
    *says: str,
    accept: bool = True,
    after: Callable[[Path], Any] = lambda folder: None,
    **fields: Any,
) -> Case:
    """Write an album with changed files; `accept` it by its listing, so that only its content is wrong."""

    def write(folder: Path) -> None:
        files = {name: content for name, content in (_album() | dict(changed)).items() if content is not None}
        for name, content in files.items():
            path = folder / "data" / "mine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        of = [name.partition("/")[0] for name in files]
        used = sorted(name for name in files if of.count(name.partition("/")[0]) >= 4 and name.endswith(".jpg"))
        lines = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in used)
        sha = hashlib.sha256(lines.encode()).hexdigest() if accept else "0" * 64
        form = {"accepted": {"mine": sha}, "minimum": 4, "side": 8, **fields}
        recipe(folder, {"face_folders": form}, "*/*.jpg")
        after(folder / "data" / "mine")

    return Case(RUN.replace("--victims 2", "--victims 2 --candidates 3"), says, write)


FIRST = "Ann_A/Ann_A_0001.jpg"
JPEG = _jpeg()


def _locked_away(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to("/nowhere/at/all.jpg")


CASES = (
    _faces({}, "12 photographs", "accepted", accept=False),
    _faces({FIRST: None}, "8 photographs", "accepted", accept=False),
    _faces({name: None for name in _album()}, "mine", accept=False, after=lambda f: f.mkdir(parents=True)),
    _faces({name: None for name in _album() if "01.jpg" not in name}, "0 photographs", accept=False),
    _faces({FIRST: _jpeg(7)}, "photographs", accept=False),
    _faces({"Ann_A/Ann_A_0005.jpg": JPEG}, "13 photographs", accept=False),
    _faces({FIRST: b""}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: b"no picture"}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: JPEG[: len(JPEG) // 2]}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: JPEG[:20]}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: b"\xff\xd8\xff\xd9"}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: b"%PDF-1.7"}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: b"<svg onload='x'/>"}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: _huge_png()}, "Ann_A_0001.jpg", "not a readable picture"),
    _faces({FIRST: _jpeg(size=(20, 20))}, "Ann_A_0001.jpg"),
    _faces({}, "Ann_A_0001.jpg", after=_locked_away),
    _faces({FIRST: None}, "Ann_A_0001.jpg", after=lambda f: (f / FIRST).mkdir()),
    _faces({}, "mine.yaml", "crop", crop=[189, 61]),
    _faces({}, "mine.yaml", "crop", crop=[0]),
    _faces({}, "mine.yaml", "side", side=0),
    _faces({}, "mine.yaml", "minimum", minimum=0),
    _faces({}, "mine.yaml", "test_share", test_share=1.5),
    _faces({}, "mine.yaml", "accepted", accepted={"mine": "abc"}),
    _faces({}, "mine.yaml", "accepted", accepted={}),
)
