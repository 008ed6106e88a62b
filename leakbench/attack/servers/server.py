"""Slot `server`: a server may change the model that it sends, and remembers the change to read the gradients."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.core.fitted import Fits
from leakbench.core.part import part
from leakbench.core.types import Network
from leakbench.federated.view import Knowledge, Public, View

__all__ = ["HONEST", "Honest", "Isolates", "Learns", "Server", "lies"]


HONEST = "none: the server sends the model as it is"
"""Value of the columns that only a malicious server has, for an honest one."""


@runtime_checkable
class Server(Protocol):
    """Changes the model that it sends, or not."""

    @property
    def threat(self) -> str:
        """`honest`, `malicious parameters` or `malicious architecture`; reports show it with every table."""

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Any]:
        """Return the network to send, and the secret with which its gradients are read, if any.

        Args:
            network: The network of the federation.
            public: The public examples of the attacker.
            knowledge: What the attacker knows of clients and updates.
            rng: The generator.
        """


def lies(server: Server) -> bool:
    """Return whether a server sends a changed model."""
    return server.threat != "honest"


@runtime_checkable
class Learns(Protocol):
    """A server that learns from public examples what it sends; the runner gives it a source of stored fits."""

    def learn(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator, fits: Fits
    ) -> tuple[Network, Any]:
        """Return the same as the call of the server, with fits from a source."""


@runtime_checkable
class Isolates(Protocol):
    """A secret that turns the view of a batch into a view of one example, which any attack on single examples can read."""

    def isolated(self, view: View) -> tuple[View, Tensor]:
        """Return the view of one example, and (V,) bool, whether a victim's batch has one."""


@part("server.honest")
class Honest:
    """Follow the protocol."""

    @property
    def threat(self) -> str:
        """`honest`."""
        return "honest"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Any]:
        """Return the network unchanged."""

        return network, None
