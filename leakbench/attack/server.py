"""Slot `server`: what the server does to the model before the clients see it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from leakbench.types import Parameters, part

__all__ = ["SERVERS", "Honest", "Server"]


@runtime_checkable
class Server(Protocol):
    """Tampers with the model that it sends, or does not."""

    @property
    def threat(self) -> str:
        """`honest`, `malicious parameters` or `malicious architecture`; stands over every table."""

    def __call__(
        self, model: nn.Module, parameters: Parameters, rng: torch.Generator
    ) -> tuple[nn.Module, Parameters, Any]:
        """Return the model and parameters that are sent, and the secret that the readout will need."""


@part
class Honest:
    """Keep to the protocol."""

    @property
    def threat(self) -> str:
        """The plain case."""
        return "honest"

    def __call__(
        self, model: nn.Module, parameters: Parameters, rng: torch.Generator
    ) -> tuple[nn.Module, Parameters, Any]:
        """Send the model as it is."""
        return model, parameters, None


SERVERS: dict[str, type[Server]] = {"honest": Honest}
