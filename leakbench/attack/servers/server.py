"""What a server is to an attack: it may tamper with the model that it sends, and remembers how."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.federated.view import Knowledge, Public, View
from leakbench.part import part
from leakbench.types import Network

__all__ = ["HONEST", "Honest", "Isolates", "Server", "lies"]


HONEST = "none: the server sends the model as it is"
"""Why there is none of what only a server that lies has."""


@runtime_checkable
class Server(Protocol):
    """Tampers with the model that it sends, or does not."""

    @property
    def threat(self) -> str:
        """`honest`, `malicious parameters` or `malicious architecture`; stands over every table."""

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Any]:
        """Return the network that is sent, and the secret that the readout will need."""


def lies(server: Server) -> bool:
    """Say whether a server sends another model than the one that it has."""
    return server.threat != "honest"


@runtime_checkable
class Isolates(Protocol):
    """A secret that makes one example's view of a batch's, so that any attack on one example reads it."""

    def isolated(self, view: View) -> tuple[View, Tensor]:
        """Return the view of one example, and (V,) for which victims there is one."""


@part("server.honest")
class Honest:
    """Follow the protocol."""

    @property
    def threat(self) -> str:
        """The plain case."""
        return "honest"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Any]:
        """Send the network as it is."""
        return network, None
