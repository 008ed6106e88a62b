"""The mode, `train` or `eval`, in which clients compute their gradients; only batch normalisation depends on it.

In `train`, each batch uses its own statistics, as in the training of clients. In `eval`, it uses the running statistics that the
server sent, which do not change. Many papers measure attacks in `eval`, where they are much easier. A request has to choose the
mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import nn

from leakbench.core.errors import InputError
from leakbench.defense import Defense
from leakbench.defense.transform import name_of
from leakbench.federated.client import NO_EXAMPLE
from leakbench.models import architecture
from leakbench.models.batch_norm import depends_on_mode
from leakbench.models.external import ExternalNetwork, first_weights
from leakbench.models.shapes import Shape

__all__ = ["check_mode", "leaks_by_batch"]


def leaks_by_batch(mode: str | None, name: str, shape: Shape, classes: int) -> bool:
    """Return whether a network in a mode normalises each batch by the batch's own statistics.

    Args:
        name: Name of the network.
        shape: Shape of one input.
    """
    return mode == "train" and _depends(name, shape, classes)


@lru_cache
def _depends(name: str, shape: Shape, classes: int) -> bool:
    if ExternalNetwork.of(name) is not None:
        with first_weights(torch.Generator()):
            return depends_on_mode(architecture(name).builder(shape, classes))
    with torch.device("meta"):  # Builds the layers without their weights.
        return depends_on_mode(architecture(name).builder(shape, classes))


def check_mode(
    mode: str | None, networks: Mapping[str, nn.Module], leaking: str, taps: tuple[str, ...], defense: Defense
) -> None:
    """Raise InputError for a mode that is missing, not needed, or does not fit the rest of a cell.

    Args:
        networks: {name: network}, the networks that are trained or leak.
        leaking: Name of the network that leaks.
    """
    dependent = [name for name, model in networks.items() if depends_on_mode(model)]
    if not dependent:
        if mode is not None:
            raise InputError(
                f"victim-mode: got {mode!r}, but nothing in {' or '.join(networks)} depends on it; leave it out"
            )
        return
    name = dependent[0]
    if mode is None:
        raise InputError(
            f"victim-mode: {name!r} has batch normalisation, whose gradient depends on it; expected --victim-mode train"
            " (the batch's own statistics) or --victim-mode eval (the running ones that the server sent)"
        )
    if mode == "train":
        _check_train(name, leaking in dependent and "type-2" in taps, defense)


def _check_train(name: str, reads_an_example: bool, defense: Defense) -> None:
    if defense.example:
        raise InputError(
            f"victim-mode: {name!r}: {NO_EXAMPLE}, which the defense acts on (example station); choose"
            " --victim-mode eval or a model with group norm"
        )
    single = [name_of(transform) for transform in defense.batch if getattr(transform, "by_example", False)]
    if single:
        raise InputError(
            f"victim-mode: {name!r}: {NO_EXAMPLE}, nor separate features, which {single[0]} reads; choose"
            " --victim-mode eval or a model with group norm"
        )
    if defense.batches == "poisson":
        raise InputError(
            f"victim-mode: {name!r}: in train mode the statistics of a Poisson batch, which may be empty and is padded, are"
            " not defined; choose --victim-mode eval or a model with group norm"
        )
    if reads_an_example:
        raise InputError(
            f"victim-mode: {name!r}: {NO_EXAMPLE}, which type-2 reads; choose --victim-mode eval, or --taps type-1 (with"
            " --leak-batch 1 for a batch of one example)"
        )
