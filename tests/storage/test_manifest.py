"""A manifest with wrong fields is refused in one line, however many there are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from leakbench.core.errors import DamagedError
from leakbench.storage.manifest_file import read_manifest


@pytest.mark.parametrize("wrong", [{"warnings": [1] * 50_000}, {"notes": {str(n): 1 for n in range(50_000)}}])
def test_many_wrong_values_are_counted_and_not_listed(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Listing 50,000 errors would take three seconds on a fast machine, and a gigabyte for a million."""
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 2, "files": {}, "summary": wrong}), encoding="utf-8")
    began = time.process_time()
    with pytest.raises(DamagedError, match="50,000 of its values have other types than a run writes") as refused:
        read_manifest(tmp_path)
    assert time.process_time() - began < 2
    assert "\n" not in str(refused.value)


def test_a_manifest_of_more_bytes_than_any_run_writes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(" " * 20_000_001, encoding="utf-8")
    with pytest.raises(DamagedError, match="more than 20,000,000 bytes"):
        read_manifest(tmp_path)
