"""Slot `distance`: how far the gradient of a guess is from the observed one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.squared_distances import Guess, SquaredDistances
from leakbench.core.part import NonNegative, Positive, part
from leakbench.core.recipe import Slot
from leakbench.core.types import Parameters
from leakbench.defense.guess import unlikelihood
from leakbench.engine.matched import SHORTEST
from leakbench.federated.view import View

__all__ = [
    "DISTANCE",
    "Cosine",
    "CosineByLayer",
    "Distance",
    "Likelihood",
    "MeasuresLikelihood",
    "SquaredL2",
    "Tag",
]


@runtime_checkable
class Distance(Protocol):
    """Compares the gradients of guesses with the observed ones; depends on its arguments alone, since searches replay it."""

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return distances (V,), differentiable in `guess`.

        Args:
            guess: Gradients {p: (V, *p)} of the guesses.
            observed: Observed gradients {p: (V, *p)}.
            view: What else the attacker knows, such as the noise of a defense.
        """


@runtime_checkable
class MeasuresLikelihood(Distance, Protocol):
    """A distance that is minus the logarithm of a likelihood, so that minus that of a prior can be added to it."""

    likelihood: Literal[True]


@part("distance.squared_l2")
class SquaredL2:
    """Sum the squared differences over all layers (DLG: Zhu et al., NeurIPS 2019, eq. 4; CPL the same)."""

    def of_one_example(self, squares: SquaredDistances, guess: Guess, view: View) -> Tensor:
        """Return the distances (n,) of guesses from gradients of one example."""
        return squares(*guess)

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return distances (V,)."""
        each: list[Tensor] = [_SquaredLength.apply((g - observed[name]).flatten(1)) for name, g in guess.items()]
        return torch.stack(each).sum(0)


class _SquaredLength(torch.autograd.Function):
    """|r|^2 of each row (V, d): like `r.square().sum(1)`, with half as many passes over memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vecdot(rows, rows)
        return length

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        pulled: Tensor = rows * (2 * gradients[0][:, None])
        return pulled


@part("distance.cosine")
class Cosine:
    """Compute 1 - <a, b> / (|a| |b|) over all layers together (Geiping et al., NeurIPS 2020, eq. 4; cost `sim` of their code).

    The distance is between 0 (the same direction) and 2. It ignores length: a clip that scales all layers alike changes nothing. A
    gradient of length zero has no direction and counts as orthogonal, distance 1; the authors' code divides by zero.
    """

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return distances (V,)."""
        product = sum((g * observed[name]).flatten(1).sum(1) for name, g in guess.items())
        lengths = _length(guess) * _length({name: observed[name] for name in guess})
        return 1 - product / lengths

    def of_one_example(self, squares: SquaredDistances, guess: Guess, view: View) -> Tensor:
        """Return the distances (n,) of guesses from gradients of one example."""
        return squares.one_minus_cosine(*guess)


@part("distance.cosine_by_layer")
class CosineByLayer:
    """Compute the mean over the layers of 1 - <a, b> / (|a| |b|), with a and b of one layer (LAMP: Balunovic et al., NeurIPS 2022).

    A layer has no direction if its length is zero or below the rounding errors of the whole gradient. As for `cosine`, it counts as
    orthogonal to one with a direction; two layers without a direction have distance 0. The bias of an attention layer's keys has
    none: it changes no output, so that its gradient is rounding errors, which would weigh as much as any other layer.
    """

    behaviour = 2

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return distances (V,)."""
        empty = [_without_direction(gradients) for gradients in (guess, {name: observed[name] for name in guess})]
        each = []
        for name, g in guess.items():
            one, other = (found[name] for found in empty)
            apart = Cosine()({name: g}, observed, view)
            each.append(apart.masked_fill(one | other, 1.0).masked_fill(one & other, 0.0))
        return torch.stack(each).mean(0)


def _without_direction(gradients: Parameters) -> dict[str, Tensor]:
    """Return (V,) bool for each layer: whether it is shorter than the rounding errors of the whole gradient."""
    lengths = {name: torch.linalg.vector_norm(g.detach().flatten(1), dim=1) for name, g in gradients.items()}
    whole = torch.linalg.vector_norm(torch.stack(list(lengths.values())), dim=0)
    return {name: length < torch.finfo(length.dtype).eps * whole for name, length in lengths.items()}


@part("distance.tag")
class Tag:
    """Compute the sum over the layers of |a - b|_2^2 + alpha w |a - b|_1 (TAG: Deng et al., Findings of EMNLP 2021, eq. 3).

    The weight w of a layer falls from 1 at the first layer in equal steps to 1 / n at the last of n, as in the reimplementation
    `breaching`; the paper only states that layers near the input have larger factors.
    """

    alpha: Annotated[NonNegative, Field(description="Factor of the sum of absolute differences.")] = 0.1
    falling: Annotated[bool, Field(description="Whether w falls; otherwise it is 1 for all layers.")] = True

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return distances (V,)."""
        each = []
        for place, (name, g) in enumerate(guess.items()):
            rest = (g - observed[name]).flatten(1)
            weight = 1 - place / len(guess) if self.falling else 1.0
            each.append(rest.square().sum(1) + self.alpha * weight * rest.abs().sum(1))
        return torch.stack(each).sum(0)


def _length(gradients: Parameters) -> Tensor:
    """Return lengths (V,), the shortest one for shorter ones: the root has no derivative at zero."""
    squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
    return squares.clamp_min(SHORTEST).sqrt()


@part("distance.likelihood")
class Likelihood:
    """Compute |a - b|^2 / (2 s^2) over all layers, minus the log-likelihood of noise with standard deviation s.

    s is the deviation of the defense's noise on each coordinate. A transform that the attacker knows may compute the likelihood
    of the observed gradient itself (`leakbench.defense.guess.Explains`, for example signs); its value is then used.
    """

    floor: Annotated[
        Positive,
        Field(
            description=(
                "Smallest value of s, for rounding and for everything that the model of the guess leaves out. s has this value if "
                "the attacker does not know the defense, or if the defense is not additive Gaussian noise."
            )
        ),
    ] = 1e-3

    @property
    def likelihood(self) -> Literal[True]:
        """See `MeasuresLikelihood`."""
        return True

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return distances (V,)."""
        known = self.told(guess, observed, view)
        return SquaredL2()(guess, observed, view) / self._divisor(view) if known is None else known

    def of_one_example(self, squares: SquaredDistances, guess: Guess, view: View) -> Tensor:
        """Return the distances (n,) of guesses from gradients of one example, with or without Gaussian noise."""
        return squares(*guess) / self._divisor(view)

    def _divisor(self, view: View) -> float:
        return 2 * max(self.floor, view.noise or 0.0) ** 2

    def told(self, guess: Parameters, observed: Parameters, view: View) -> Tensor | None:
        """Return distances (V,) with the defense as the attacker knows it; None if it does not give a likelihood."""
        # Transforms after this leakage point have not acted on the update.
        value = unlikelihood(view.stations.before(view.tap), guess, observed)
        if value is None and view.noise:
            value = SquaredL2()(guess, observed, view) / self._divisor(view)
        return value


DISTANCE = Slot("distance", ("leakbench.attack.slots",))
