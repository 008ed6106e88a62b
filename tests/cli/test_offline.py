"""The test suite itself: no test reaches the network, or a file of the user."""

import errno
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from leakbench.data.cache import user_cache
from tests.conftest import NEEDS_DATA
from tests.offline import BEFORE

ROOT = Path(__file__).parents[2]
ELSEWHERE = "192.0.2.1"
"""A reserved address without a host (RFC 5737)."""

CHILD = f"""
import socket
with socket.socket() as here:
    here.settimeout(5)
    try:
        here.connect(({ELSEWHERE!r}, 80))
    except OSError as error:
        print(error.errno, "the tests use no network" in str(error))
"""


def test_a_connection_to_another_machine_is_refused() -> None:
    with socket.socket() as client, pytest.raises(OSError, match="the tests use no network"):
        client.connect((ELSEWHERE, 80))
    with socket.socket(socket.AF_INET6) as client, pytest.raises(OSError, match="the tests use no network"):
        client.connect(("2001:db8::1", 80))
    with socket.socket(type=socket.SOCK_DGRAM) as client, pytest.raises(OSError, match="the tests use no network"):
        client.sendto(b"", (ELSEWHERE, 53))
    with pytest.raises(OSError, match="the tests use no network"):
        socket.getaddrinfo("example.org", 80)
    with pytest.raises(urllib.error.URLError, match="the tests use no network"):
        urllib.request.urlopen("https://example.org/", timeout=5)


def test_a_connection_to_this_machine_is_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            with socket.create_connection((host, server.getsockname()[1]), timeout=5) as client:
                assert client.getpeername() == server.getsockname()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs sockets that are files (AF_UNIX)")
def test_a_connection_to_a_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # The path of such a socket may have at most about 100 characters.
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("socket")
        server.listen()
        client.connect("socket")
        assert client.getpeername() == "socket"


def test_a_child_process_is_refused_too() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EHOSTUNREACH), "True"]


def test_home_and_cache_are_not_the_user_s() -> None:
    before = json.loads(os.environ[BEFORE])
    assert Path.home().name.startswith("leakbench-tests-")
    assert str(Path.home()) != before["HOME"]
    assert user_cache() is not None and user_cache().is_relative_to(Path.home())


@pytest.mark.skipif("LEAKBENCH_TESTS_INNER" not in os.environ, reason="run by the test of a whole session")
def test_inner_session_writes() -> None:
    """Write to places where a careless test would, in a separate session, which the next test starts."""
    assert "LEAKBENCH_DATA" not in os.environ
    cache = user_cache()
    assert cache is not None
    for folder in (Path.home(), cache, Path.home() / ".config" / "matplotlib"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "written").write_text("by a test")


@pytest.mark.slow
def test_a_session_leaves_the_user_s_folders_untouched(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")}
    for place in places.values():
        place.mkdir()
    data = tmp_path / "data"
    data.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in (BEFORE, "PYTHONPATH")},
        **{name: str(place) for name, place in places.items()},
        **{"LEAKBENCH_DATA": str(data), "LEAKBENCH_TESTS_INNER": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    }
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", __file__]
    chosen = ["-k", "inner_session or data_is_skipped"]
    done = subprocess.run([*command, *chosen], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"skipped 1: {NEEDS_DATA}" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout.splitlines()[-1]
    assert [path for place in (*places.values(), data) for path in place.rglob("*")] == []


@pytest.mark.data
def test_a_test_of_published_data_is_skipped_without_them(data_dir: Path) -> None:
    assert data_dir.is_dir()
