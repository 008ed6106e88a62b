"""Files of other versions are refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from leakbench.core.hashes import checksum, content_hash
from leakbench.storage.manifest import FORMAT, sealed
from leakbench.storage.rows_file import KEY, ROWS_VERSION
from tests.reliability.edges_runs import called
from tests.reliability.tally import Tally

__all__ = ["check_versions"]


def check_versions(tally: Tally, place: Path, whole: Path, full: bool) -> None:
    """Try manifest and rows of this version and of both of its neighbours at full length; else only of the next one."""
    manifest = json.loads((whole / "manifest.json").read_text(encoding="utf-8"))
    shown = called("compare", str(whole), str(whole))[1]
    for version in (FORMAT - 1, FORMAT, FORMAT + 1) if full else (FORMAT + 1,):
        folder = _copy(whole, place / f"manifest{version}", manifest | {"schema": version})
        _read(tally, folder, whole, shown, f"a manifest of version {version}", version == FORMAT)
    for version in (ROWS_VERSION - 1, ROWS_VERSION, ROWS_VERSION + 1) if full else (ROWS_VERSION + 1,):
        folder = _copy(whole, place / f"rows{version}", manifest)
        path = folder / "rows.parquet"
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, KEY: str(version).encode()}), path)
        changed = {**manifest, "files": {**manifest["files"], path.name: checksum(path)}}
        (folder / "manifest.json").write_text(json.dumps(sealed(changed)), encoding="utf-8")
        _read(tally, folder, whole, shown, f"rows of version {version}", version == ROWS_VERSION)


def _copy(whole: Path, folder: Path, manifest: dict[str, Any]) -> Path:
    """Copy a run, with a manifest whose checksum fits."""
    shutil.copytree(whole, folder)
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    text = json.dumps({**content, "checksum": content_hash(content)})
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    return folder


def _read(tally: Tally, folder: Path, whole: Path, shown: str, name: str, known: bool) -> None:
    code, out, err = called("compare", str(folder), str(whole))
    if known:
        tally.expect(code == 0 and out == shown, f"{name}: exit code {code}, said {err[-300:]!r}")
    else:
        tally.expect(code == 2 and err.count("\n") == 1 and "version" in err, f"{name}: exit code {code}, said {err!r}")
