"""Writes a manifest that a test changed on purpose with a matching checksum, as a run would have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.storage.manifest import sealed


def reseal(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a run's folder."""
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest)), encoding="utf-8")
