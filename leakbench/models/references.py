"""Names of networks outside the catalog: those with a hash for a cell, those of its identity, and those for readers."""

from __future__ import annotations

from leakbench.models.external import ExternalNetwork
from leakbench.models.folder import FOLDER, NetworkFolder

__all__ = ["identity_of", "named", "reference_of", "shown"]


def reference_of(name: str) -> NetworkFolder | ExternalNetwork | None:
    """Return the network outside the catalog that a name means; None for a name of the catalog."""
    return NetworkFolder.of(name) or ExternalNetwork.of(name)


def identity_of(name: str) -> str:
    """Return a network's name for the identity of a cell: the hash of its files or code, without a path."""
    folder = NetworkFolder.of(name)
    return named(name) if folder is None else f"{FOLDER}{folder.sha256}"


def named(name: str) -> str:
    """Return a network's name for a manifest: the folder's own name or the builder, and the whole hash."""
    reference = reference_of(name)
    return name if reference is None else f"{_label(reference)}@{reference.sha256}"


def shown(name: str) -> str:
    """Return a network's name for reports: the folder's own name or the builder, and the start of the hash."""
    reference = reference_of(name)
    return name if reference is None else f"{_label(reference)}@{reference.sha256[:8]}"


def _label(reference: NetworkFolder | ExternalNetwork) -> str:
    if isinstance(reference, NetworkFolder):
        return f"{FOLDER}{reference.path.resolve().name}"
    return reference.builder
