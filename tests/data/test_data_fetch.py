"""Downloads, from a server on this machine: whole, resumed, damaged, from the next mirror; and safe unpacking."""

import hashlib
import io
import random
import re
import stat
import tarfile
import threading
import warnings
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.data.cifar import Cifar100Python
from leakbench.data.fetch import download, fetch_origin
from leakbench.data.recipe import Origin
from leakbench.data.tiny_imagenet import TinyImageNet
from leakbench.data.unpack import unpack
from tests.data import made_sets
from tests.data.test_data_formats import ROLES, tiny_faces, tiny_idx

CONTENT = random.Random(0).randbytes(700_000)
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; a name in `cuts` is cut once after each of these numbers of bytes; logs (path, Range, status)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: dict[str, list[int]] = {}
        self.log: list[tuple[str, str | None, int]] = []
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        content = self.server.files.get(name)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        status = 404 if content is None else 416 if start >= len(content) > 0 else 206 if start else 200
        self.server.log.append((name, wanted, status))
        self.send_response(status)
        body = content[start:] if content is not None and status != 416 else b""
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(content or b'')}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cuts = self.server.cuts.get(name)
        self.wfile.write(body[: cuts.pop(0)] if cuts else body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        running.files["a.bin"] = CONTENT
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "new" / "a.bin"


def statuses(server: Server) -> list[int]:
    return [status for _, _, status in server.log]


def only_file(target: Path) -> bool:
    return [p.name for p in target.parent.iterdir()] == [target.name]


def test_a_whole_download_reports_its_progress(server, target):
    seen = []
    download([server.url + "a.bin"], target, SHA, lambda *report: seen.append(report))
    assert target.read_bytes() == CONTENT and only_file(target)
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_cut_is_resumed_at_once(server, target):
    server.cuts["a.bin"] = [300_000, 200_000]
    download([server.url + "a.bin"], target, SHA)
    assert target.read_bytes() == CONTENT and only_file(target)
    assert [wanted for _, wanted, _ in server.log] == [None, "bytes=300000-", "bytes=500000-"]


def test_a_download_that_ended_earlier_is_resumed(server, target):
    server.cuts["a.bin"] = [300_000, 0, 0, 0, 0]
    waited = []
    with pytest.raises(InputError, match=r"cut off after 300,000 of 700,000 bytes, 4 times without getting on"):
        download([server.url + "a.bin"], target, SHA, sleep=waited.append)
    assert waited == [0, 0.5, 1, 2]
    assert target.with_name("a.bin.part").stat().st_size == 300_000 and not target.exists()
    download([server.url + "a.bin"], target, SHA)
    assert target.read_bytes() == CONTENT and server.log[-1] == ("a.bin", "bytes=300000-", 206)


def test_a_server_that_ignores_range_sends_all_again(server, target):
    target.parent.mkdir()
    target.with_name("a.bin.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    download([server.url + "a.bin"], target, SHA)
    assert target.read_bytes() == CONTENT and statuses(server) == [200]


def test_a_complete_part_is_used(server, target):
    target.parent.mkdir()
    target.with_name("a.bin.part").write_bytes(CONTENT)
    download([server.url + "a.bin"], target, SHA)
    assert target.read_bytes() == CONTENT and statuses(server) == [416]


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * 800_000, b"x" * 700_000])
def test_a_part_of_another_file_is_started_over(server, target, stale):
    target.parent.mkdir()
    target.with_name("a.bin.part").write_bytes(stale)
    download([server.url + "a.bin"], target, SHA)
    assert target.read_bytes() == CONTENT and only_file(target)


def test_a_wrong_checksum_deletes_the_download(server, target):
    server.files["a.bin"] = b"something else"
    with pytest.raises(InputError, match=r"a\.bin: http.*a\.bin: wrong checksum: .* what came was deleted") as caught:
        download([server.url + "a.bin"], target, SHA)
    assert list(target.parent.iterdir()) == [] and statuses(server) == [200] and "\n" not in str(caught.value)


def test_the_next_mirror_is_tried(server, target):
    server.files["wrong/a.bin"] = b"something else"
    urls = [server.url + path for path in ("none/a.bin", "wrong/a.bin", "a.bin")]
    download(urls, target, SHA)
    assert target.read_bytes() == CONTENT and statuses(server) == [404, 200, 200]


def test_the_next_mirror_resumes_a_partial_download(server, target):
    server.files["first/a.bin"] = CONTENT
    server.cuts["first/a.bin"] = [400_000, 0, 0, 0, 0]
    download([server.url + "first/a.bin", server.url + "a.bin"], target, SHA, sleep=lambda _: None)
    assert target.read_bytes() == CONTENT and server.log[-1] == ("a.bin", "bytes=400000-", 206)


def test_failures_of_all_mirrors_are_reported_in_one_line(server, target):
    closed = Server()
    closed.server_close()
    urls = [server.url + "none", closed.url + "a.bin"]
    with pytest.raises(InputError, match=r"none: HTTP 404 Not Found; http.*a\.bin: .*refused") as caught:
        download(urls, target, SHA)
    assert "\n" not in str(caught.value)


def test_a_silent_server_is_abandoned_after_the_timeout(target):
    # It accepts connections and never responds.
    with Server() as silent, pytest.raises(InputError, match=r"timed out|stalled"):
        download([silent.url + "a.bin"], target, SHA, timeout=0.2, sleep=lambda _: None)


def origin(server: Server, **fields: str) -> Origin:
    return Origin(layouts=("tiny/raw",), marker="*", megabytes=1.0, mirrors=(server.url,), **fields)


def test_only_missing_or_wrong_files_are_fetched(server, tmp_path):
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    form = tiny_idx(source)
    server.files = {p.name: p.read_bytes() for p in source.iterdir()}
    folder = fetch_origin(form, origin(server), root)
    assert folder == root / "tiny/raw" and len(form(folder).train_targets) == 6
    assert [name for name, _, _ in server.log] == [f"{role}.gz" for role in ROLES]
    (folder / "test_labels.gz").write_bytes(b"damaged")
    (folder / "train_labels.gz").unlink()
    server.log.clear()
    fetch_origin(form, origin(server), root)
    assert [name for name, _, _ in server.log] == ["train_labels.gz", "test_labels.gz"]
    server.log.clear()
    fetch_origin(form, origin(server), root)
    assert server.log == []


def archive(folder: Path, top: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as packed:
        packed.add(folder, top)
    return stream.getvalue()


def test_an_archive_is_unpacked_and_damage_is_repaired(server, tmp_path):
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    form = tiny_faces(source)
    server.files["faces.tgz"] = archive(source, "raw")
    where = origin(server, archive="faces.tgz")
    folder = fetch_origin(form, where, root)
    assert len(form(folder).train_targets) == 12
    assert [p.name for p in folder.parent.iterdir()] == ["raw"]
    (folder / "Ann_A" / "Ann_A_0001.jpg").write_bytes(b"damaged")
    (folder / "notes.txt").write_text("the user's own")
    fetch_origin(form, where, root)
    assert form.check(folder)[0].ok and (folder / "notes.txt").exists()


def test_an_archive_of_something_else_is_refused(server, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    form = tiny_faces(source)
    (source / "Ann_A" / "Ann_A_0001.jpg").write_bytes(b"another")
    server.files["faces.tgz"] = archive(source, "raw")
    with pytest.raises(InputError, match="fetched, but its content is not what was expected"):
        fetch_origin(form, origin(server, archive="faces.tgz"), tmp_path / "root")
    server.files["faces.tgz"] = archive(source, "top")
    with pytest.raises(InputError, match="holds no folder 'raw'"):
        fetch_origin(form, origin(server, archive="faces.tgz"), tmp_path / "other")


@pytest.mark.parametrize("content", [b"no archive", "cut"])
def test_a_broken_archive_is_refused_and_deleted(server, tmp_path, content):
    source = tmp_path / "source"
    source.mkdir()
    form = tiny_faces(source)
    server.files["faces.tgz"] = archive(source, "raw")[:-200] if content == "cut" else content
    with pytest.raises(InputError, match=r"faces\.tgz: not a whole, safe archive"):
        fetch_origin(form, origin(server, archive="faces.tgz"), tmp_path / "root")
    assert list((tmp_path / "root" / "tiny").iterdir()) == []


def test_an_archive_cannot_write_outside(server, tmp_path):
    form = tiny_idx(tmp_path)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as packed:
        entry = tarfile.TarInfo("../../escaped.txt")
        packed.addfile(entry, io.BytesIO(b""))
    server.files["evil.tgz"] = stream.getvalue()
    with pytest.raises(InputError, match="not a whole, safe archive"):
        fetch_origin(form, origin(server, archive="evil.tgz"), tmp_path / "root")
    assert not list(tmp_path.rglob("escaped.txt"))


LINK, DEVICE, FILE = tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.REGTYPE


@pytest.mark.parametrize(
    ("entries", "most", "files", "words"),
    [
        ([("raw/a", FILE, 0), ("raw/b", LINK, 0)], 10_000, 9, "holds 'raw/b', which is a link or a device"),
        ([("raw/a", DEVICE, 0)], 10_000, 9, "holds 'raw/a', which is a link or a device"),
        ([(f"raw/{i}", FILE, 0) for i in range(4)], 10_000, 3, "more than 10,000 bytes or 3 files"),
        ([("raw/a", FILE, 9_000), ("raw/b", FILE, 2_000)], 10_000, 9, "more than 10,000 bytes or 9 files"),
    ],
)
def test_an_archive_contains_only_plain_files_up_to_a_limit(entries, most, files, words, tmp_path, monkeypatch):
    monkeypatch.setattr("leakbench.data.unpack.MOST_FILES", files)
    form, path = tiny_idx(tmp_path), tmp_path / "some.tgz"
    with tarfile.open(path, mode="w:gz") as packed:
        for name, kind, size in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = kind, size, "a"
            packed.addfile(entry, io.BytesIO(bytes(size)))
    with pytest.raises(InputError, match=re.escape(words)):
        unpack(path, tmp_path / "raw", form, most)
    assert not (tmp_path / "raw").exists()


def test_a_root_that_cannot_be_written_is_named(server, tmp_path):
    form = tiny_idx(tmp_path)
    (tmp_path / "root").write_text("a file")
    with pytest.raises(InputError, match=r"root.*: cannot be written"):
        fetch_origin(form, origin(server), tmp_path / "root")


def zipped(folder: Path, top: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir(top)
        for path in sorted(folder.rglob("*")):
            packed.write(path, f"{top}/{path.relative_to(folder).as_posix()}")
    return stream.getvalue()


def test_a_zip_archive_is_fetched_and_unpacked(server, tmp_path):
    [fields] = made_sets.tiny_imagenet(tmp_path / "source", 2, 2, 2).values()
    form = construct(TinyImageNet, fields)
    server.files["tiny.zip"] = zipped(tmp_path / "source", "raw")
    folder = fetch_origin(form, origin(server, archive="tiny.zip"), tmp_path / "root")
    assert len(form(folder).train_targets) == 4 and [p.name for p in folder.parent.iterdir()] == ["raw"]
    server.files["cut.zip"] = server.files["tiny.zip"][:-100]
    with pytest.raises(InputError, match=r"cut\.zip: not a whole, safe archive"):
        fetch_origin(form, origin(server, archive="cut.zip"), tmp_path / "other")
    (tmp_path / "source/val/images/val_0.JPEG").unlink()
    server.files["few.zip"] = zipped(tmp_path / "source", "raw")
    with pytest.raises(InputError, match=r"few\.zip: val: number of pictures: fetched, but .* \(1\); it was deleted"):
        fetch_origin(form, origin(server, archive="few.zip"), tmp_path / "third")


def test_files_with_an_md5_are_fetched_only_in_their_archive(server, tmp_path):
    [fields] = made_sets.cifar100(tmp_path / "source", 4, 4).values()
    form = construct(Cifar100Python, fields)
    server.files["cifar.tgz"] = archive(tmp_path / "source", "raw")
    sha256 = hashlib.sha256(server.files["cifar.tgz"]).hexdigest()
    packed = origin(server, archive="cifar.tgz", archive_sha256=sha256)
    assert len(form(fetch_origin(form, packed, tmp_path / "root")).train_targets) == 4
    with pytest.raises(InputError, match="archive: missing; such a set is fetched only by its archive"):
        fetch_origin(form, origin(server), tmp_path / "other")


def entry(name: str, mode: int = stat.S_IFREG | 0o644, flags: int = 0) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr, made.flag_bits = mode << 16, flags
    return made


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(entry("../../escaped.txt"), b"")], "holds '../../escaped.txt', expected names below"),
        ([(entry("/escaped.txt"), b"")], "holds '/escaped.txt', expected names below"),
        ([(entry("raw\\..\\escaped.txt"), b"")], "expected names below"),
        ([(entry("raw/a", stat.S_IFLNK | 0o777), b"/etc/passwd")], "holds 'raw/a', which is a link or a device"),
        ([(entry("raw/a", stat.S_IFIFO), b"")], "holds 'raw/a', which is a link or a device"),
        ([(entry("raw/a"), b""), (entry("raw/a"), b"")], "holds 'raw/a' twice, or a file as a folder"),
        ([(entry("raw/a"), b""), (entry("raw/a/b"), b"")], "holds 'raw/a/b' twice, or a file as a folder"),
        ([(entry("raw/a"), bytes(9_000)), (entry("raw/b"), bytes(2_000))], "unpacks to more than 10,000 bytes"),
        ([(entry(f"raw/{i}"), b"") for i in range(4)], "holds more than 3 files"),
    ],
)
def test_a_zip_archive_contains_only_plain_files_up_to_a_limit(entries, words, tmp_path, monkeypatch):
    monkeypatch.setattr("leakbench.data.unpack.MOST_FILES", 3)
    form, path = tiny_idx(tmp_path), tmp_path / "place" / "some.zip"
    path.parent.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of names that appear twice.
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for made, content in entries:
                packed.writestr(made, content, zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match=re.escape(words)):
        unpack(path, path.parent / "raw", form, 10_000)
    assert list(path.parent.iterdir()) == [] and not list(tmp_path.parent.rglob("escaped.txt"))


def test_a_zip_bomb_that_states_a_small_size_is_stopped_at_the_limit(tmp_path):
    """A megabyte of zeros whose headers state ten bytes."""
    form, path = tiny_idx(tmp_path), tmp_path / "place" / "bomb.zip"
    path.parent.mkdir()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("raw/a", bytes(1_000_000))
    size = (1_000_000).to_bytes(4, "little")
    path.write_bytes(stream.getvalue().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(InputError, match=r"bomb\.zip: not a whole, safe archive"):
        unpack(path, path.parent / "raw", form, 10_000)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_archive_of_another_compression_is_refused(tmp_path, method):
    form, path = tiny_idx(tmp_path), tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w", method) as packed:
        packed.writestr("raw/a", b"some text")
    with pytest.raises(InputError, match="compressed by another method than deflate"):
        unpack(path, tmp_path / "raw", form, 10_000)
