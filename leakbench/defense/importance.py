"""Slot `importance` of `priority_noise`: importance of each input feature for a model whose first layer is fully connected.

M. Talaei and I. Izadi, "Adaptive Differential Privacy in Federated Learning: A Priority-Based Approach", arXiv 2401.02453, 2024.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.recipe import Slot
from leakbench.core.types import Local, Parameters, Signal
from leakbench.defense.nbafl import sent_weights

__all__ = ["IMPORTANCE", "Central", "Importance", "Sensitivity", "Variance", "first_weight", "local_model"]

MOST_ACTIVATIONS = 4_000_000
"""Largest number of hidden activations in memory at once (16 MB, about the size of the cache)."""


@runtime_checkable
class Importance(Protocol):
    """Ranks the input features of each client's local model."""

    @property
    def secret(self) -> str:
        """Why a mask by this importance breaks a guarantee; empty if the mask is public."""

    def __call__(self, signal: Signal, std: float) -> Tensor:
        """Return the importance of each feature, (lanes, features); higher is more important.

        Args:
            signal: The clients' updates before their clip, one member per lane, with the clients' examples (`local`).
            std: Standard deviation of the noise on every weight.
        """


MASK = "a mask computed from private data shows in the noise"


@part("importance.variance")
class Variance:
    """Rank by i = sum over j of the variance of {w_ij after training, w_ij as sent} (eq. 6): a quarter of the squared change.

    A mean over j, or a sample variance, gives the same order.
    """

    @property
    def secret(self) -> str:
        """The mask follows the client's own gradients."""
        return MASK

    def __call__(self, signal: Signal, std: float) -> Tensor:
        """Return (lanes, features)."""
        change = signal.grads[first_weight(signal)][:, 0]
        return change.detach().square().sum(1) / 4


@part("importance.sensitivity")
class Sensitivity:
    """Rank by i = |accuracy - accuracy with r added to every first-layer weight that leaves input i|, r = std * sqrt(2 / pi).

    r is the mean absolute value of the noise (section III-C), here of the noise on every weight. The accuracy is that of the local
    model on the examples that the client trained on in this round.
    """

    @property
    def secret(self) -> str:
        """The mask follows the client's own accuracy."""
        return MASK

    @torch.no_grad()
    def __call__(self, signal: Signal, std: float) -> Tensor:
        """Return (lanes, features); raises InputError for a model that is not a `torch.nn.Sequential`."""
        local, name = _local_of(signal), first_weight(signal)
        hidden, rest, weights = _after_first_layer(local.network.model, name, local_model(signal), local.inputs)
        labels, lane = local.targets.argmax(-1), torch.arange(signal.lanes)[:, None, None]

        def right(outputs: Tensor, truth: Tensor) -> Tensor:
            logits: Tensor = vmap(lambda p, z: functional_call(rest, p, (z,)))(weights, outputs)
            return (logits.argmax(-1) == truth).to(outputs.dtype)

        before = right(hidden, labels)
        raised = local.inputs.flatten(2).transpose(1, 2) * (std * math.sqrt(2 / math.pi))
        found = torch.zeros_like(raised[:, :, 0])
        # An input of 0 changes no activation, and most pixels are 0: only the examples in which a feature is not 0 are evaluated.
        counts = (raised != 0).sum(2).amax(0)
        for some in torch.split(counts.argsort(descending=True), max(1, MOST_ACTIVATIONS // hidden.numel())):
            most = int(counts[some].max())
            which = (raised[:, some] != 0).to(torch.uint8).topk(most, dim=2).indices
            shift = raised[:, some].gather(2, which)
            after = right(hidden[lane, which] + shift[..., None], labels[lane, which])
            found[:, some] = (after - before[lane, which]).sum(2).abs() / labels.shape[1]
        return found


@part("importance.central")
class Central:
    """Rank by distance to the centre of an image, or to the middle column of a table: nearer features are more important.

    The rule is public. No two features have the same importance, so the mask is the same at every client and in every round.
    """

    @property
    def secret(self) -> str:
        """Empty: the mask does not depend on data."""
        return ""

    def __call__(self, signal: Signal, std: float) -> Tensor:
        """Return (lanes, features), the rank of each feature by distance to the centre; the nearest has the highest rank."""
        first_weight(signal)
        shape = _local_of(signal).inputs.shape[2:]
        sides = [torch.linspace(-1, 1, side) for side in (shape[1:] if len(shape) == 3 else shape)]
        distance = torch.stack(torch.meshgrid(*sides, indexing="ij")).square().sum(0).expand(shape).flatten()
        rank = distance.argsort(descending=True, stable=True).argsort()
        return rank.float().expand(signal.lanes, -1).to(next(iter(signal.grads.values())).device)


IMPORTANCE = Slot("importance", ("leakbench.defense",))


def _local_of(signal: Signal) -> Local:
    if signal.local is None:
        raise InputError("the client's own examples are not at hand; only a client can rank its input features")
    return signal.local


def first_weight(signal: Signal) -> str:
    """Return the name of the first layer's weights, which have shape (hidden, features).

    Raises:
        InputError: If the first layer is not fully connected, or the client's examples are missing.
    """
    features = _local_of(signal).inputs.shape[2:].numel()
    name = next((n for n, g in signal.grads.items() if g.dim() > 3), next(iter(signal.grads)))
    shape = tuple(signal.grads[name].shape[2:])
    if len(shape) != 2 or shape[1] != features:
        raise InputError(
            f"priority_noise: the first layer {name!r} has weights of shape {shape}, expected a fully connected one"
            f" on {features} input features (use --model mlp_256 or mlp; --leak-model mlp_sigmoid for the paper protocol)"
        )
    return name


def local_model(signal: Signal) -> Parameters:
    """Return each client's weights after its training and before any clip, {p: (lanes, *p)}."""
    return {n: (signal.grads[n] + sent)[:, 0] for n, sent in sent_weights(signal).items()}


def _after_first_layer(
    model: nn.Module, name: str, weights: Parameters, inputs: Tensor
) -> tuple[Tensor, nn.Sequential, Parameters]:
    """Return (first layer's outputs (lanes, M, hidden), the layers after it, their parameters {p: (lanes, *p)})."""
    if not isinstance(model, nn.Sequential):
        raise InputError(f"priority_noise: sensitivity takes a torch.nn.Sequential, got {type(model).__name__}")
    layer = name.removesuffix(".weight")
    hidden = inputs.flatten(2) @ weights[name].transpose(1, 2)
    if (bias := weights.get(f"{layer}.bias")) is not None:
        hidden = hidden + bias[:, None]
    rest = model[list(dict(model.named_children())).index(layer) + 1 :]
    return hidden, rest, {n: weights[n] for n, _ in rest.named_parameters()}
