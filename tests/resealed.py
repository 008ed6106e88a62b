"""A manifest that a test has changed on purpose, with the checksum that belongs to it: as if a run had written it so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.manifest import sealed


def reseal(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a run's folder."""
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest)), encoding="utf-8")
