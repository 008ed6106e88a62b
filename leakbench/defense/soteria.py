"""Soteria: hide the features of the representation from which an attacker reconstructs an input most easily."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from leakbench.core.errors import InputError
from leakbench.core.part import Fraction, Text, part
from leakbench.core.types import Clock, Fact, Generators, Local, Parameters, Signal
from leakbench.defense.guess import surviving
from leakbench.defense.transform import Transform
from leakbench.models.batch_norm import mixes_examples

__all__ = ["Soteria", "representation_scores"]

OFFSET = 0.1
"""Added to a feature in the denominator by the released code, so that a feature of zero has a score."""

BYTES = 8_000
"""Memory of a backward pass per number of the input, measured on the convolutional networks of `leakbench.models`."""


@part("transform.soteria")
class Soteria:
    """Set the columns of one layer's weight gradient that belong to a share of its input features r to zero.

    Sun et al., CVPR 2021, Algorithm 1, prunes the features with the largest |r_i (d r_i / d x)^-1|. The released code takes the
    smallest |d r_i / d x| / (r_i + 0.1) for these, and so does this part. At the `example` station, each example has its own
    mask, from its own scores. At the `batch` station, all examples share one mask, from the sum of their scores, as in the
    released code.

    The cost is one backward pass for each feature and example.
    """

    # Its mask belongs to the gradient of a batch.
    stations: ClassVar[tuple[str, ...]] = ("example", "batch")
    # Its scores are those of single examples.
    by_example: ClassVar[bool] = True

    share: Annotated[
        Fraction,
        Field(
            description=(
                "Share of the features to prune: those whose score is strictly below this quantile (linear interpolation)."
            )
        ),
    ]
    layer: Annotated[
        Text,
        Field(description="Name of the defended layer in the network, or `last` for the last fully connected one."),
    ] = "last"

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Mask the gradient. The mask is a constant when the signal is differentiated.

        Raises:
            InputError: If the station has no examples, if noise came before, or if the network does not have the layer.
        """
        local = signal.local
        if local is None:
            raise InputError("soteria: this station has no examples; put it at the example or the batch station")
        if mixes_examples(local.network.model):
            raise InputError(
                "soteria: in train mode batch normalisation makes each example's features depend on its batch, so that"
                " a single example has no score; choose --victim-mode eval"
            )
        if any(fact.kind in ("noise", "uncalibrated_noise") for fact in signal.facts):
            raise InputError(
                "soteria: its mask shows the examples bare, past the noise before it; put it before the noise"
            )
        name = self._defended(local.network.model)
        scores = representation_scores(local, local.network.model.get_submodule(name))
        own = signal.members == local.inputs.shape[1]
        if not own:
            real = 1.0 if local.weights is None else (local.weights > 0).to(scores)[..., None]
            scores = (scores * real).sum(1, keepdim=True)
        kept = scores.abs() >= scores.abs().quantile(self.share, dim=-1, keepdim=True)
        key = f"{name}.weight"
        grads = {**signal.grads, key: signal.grads[key] * kept.unsqueeze(-2).to(scores)}
        # An example's own mask is a function of that example, and a later clip bounds the result. A shared mask mixes the batch.
        reason = (
            "" if own else "data-dependent mask: which columns are zero (Soteria) depends on the whole private batch"
        )
        return signal.replace(grads, signal.sensitivity, Fact("other", reason=reason))

    @property
    def runs_network(self) -> Literal[True]:
        """See `leakbench.defense.transform.RunsNetwork`."""
        return True

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: the mask of the leaked gradient."""
        return surviving(self, seen)

    def _defended(self, model: nn.Module) -> str:
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise InputError(
                "soteria: the network has no fully connected layer (nn.Linear) to defend; choose another --model"
            )
        if self.layer != "last" and self.layer not in linear:
            raise InputError(f"soteria: layer: got {self.layer!r}, expected last or one of {', '.join(linear)}")
        return linear[-1] if self.layer == "last" else self.layer


def representation_scores(local: Local, layer: nn.Module, budget: int = 1_000_000_000) -> Tensor:
    """Return |d r_i / d x| / (r_i + 0.1) of every example, (lanes, B, features), where r is the input of `layer`.

    Args:
        budget: Approximate number of bytes for the backward passes that run at once; lanes beyond it run one after another.

    Returns:
        The scores, without a derivative.
    """
    lanes = len(local.inputs)
    together = min(lanes, max(1, budget // (BYTES * local.inputs[0].numel())))
    pieces = [_some_lanes(local, torch.arange(lanes)[n : n + together]) for n in range(0, lanes, together)]
    return torch.cat([_scores(piece, layer, budget) for piece in pieces])


def _some_lanes(local: Local, lanes: Tensor) -> Local:
    network = local.network
    if not network.shared:
        network = replace(network, parameters={n: p[lanes] for n, p in network.parameters.items()})
    return replace(local, network=network, inputs=local.inputs[lanes])


def _scores(local: Local, layer: nn.Module, budget: int) -> Tensor:
    network, inputs = local.network, local.inputs.detach()
    weights = {name: p.detach() for name, p in network.parameters.items()}

    def representation(parameters: Parameters, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = layer.register_forward_pre_hook(lambda _, entering: seen.append(entering[0]))
        try:
            functional_call(network.model, {**parameters, **network.statistics}, (x[None],))
        finally:
            handle.remove()
        return seen[-1].flatten()

    def squares(parameters: Parameters, x: Tensor, directions: Tensor) -> Tensor:
        back = vjp(lambda at: representation(parameters, at), x)[1]
        rows: Tensor = vmap(back)(directions)[0]
        return rows.flatten(1).square().sum(1)

    def everywhere(function: Callable[..., Tensor], *more: Tensor) -> Tensor:
        shared = (None,) * len(more)
        each = vmap(function, in_dims=(None, 0, *shared))
        found: Tensor = vmap(each, in_dims=(network.axis, 0, *shared))(weights, inputs, *more)
        return found

    features = everywhere(representation)
    at_once = max(1, budget // (BYTES * inputs.numel()))
    directions = torch.eye(features.shape[-1], dtype=inputs.dtype, device=inputs.device)
    norms = torch.cat([everywhere(squares, some) for some in torch.split(directions, at_once)], -1).sqrt()
    return norms / (features + OFFSET)
