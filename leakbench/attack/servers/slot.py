"""Slot `server`: the servers that a recipe chooses among."""

from __future__ import annotations

from leakbench.attack.servers.first_layer import QuantileRows, TrapWeights
from leakbench.attack.servers.fishing import Fishing
from leakbench.attack.servers.imprint import Imprint
from leakbench.attack.servers.loki import Loki
from leakbench.attack.servers.server import Honest, Server

__all__ = ["SERVERS"]

SERVERS: dict[str, type[Server]] = {
    "honest": Honest,
    "imprint": Imprint,
    "loki": Loki,
    "trap": TrapWeights,
    "quantile_rows": QuantileRows,
    "fishing": Fishing,
}
