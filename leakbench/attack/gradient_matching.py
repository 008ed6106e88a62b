"""Gradient matching: search the inputs whose gradient is the leaked one.

GradientMatching = labels x space x start x distance x priors x descent x stop. Every published optimisation attack is one choice
of these; the loop is the same.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from leakbench.attack.descent import DESCENTS, Descent, descend
from leakbench.attack.distance import DISTANCES, Distance
from leakbench.attack.labels import LABELS, Labels
from leakbench.attack.priors import PRIORS, Prior
from leakbench.attack.space import SPACES, Coordinates, Pixels, Space
from leakbench.attack.start import STARTS, Start
from leakbench.attack.stop import STOPS, Iterations, Stop
from leakbench.errors import InputError
from leakbench.federated.leakage import View
from leakbench.recipe import slot
from leakbench.types import Count, Generators, Reconstruction, part

__all__ = ["GradientMatching"]


@part
class GradientMatching:
    """One search per victim, all victims side by side; several views of the same victims add their distances.

    local_steps: how many local iterations the attacker unrolls in the stead of L; None for all of them.
    """

    labels: Annotated[Labels, *slot("labels", LABELS)]
    start: Annotated[Start, *slot("start", STARTS)]
    distance: Annotated[Distance, *slot("distance", DISTANCES)]
    descent: Annotated[Descent, *slot("descent", DESCENTS)]
    space: Annotated[Space, *slot("space", SPACES)] = Pixels()
    priors: tuple[Annotated[Prior, *slot("priors", PRIORS)], ...] = ()
    stop: Annotated[Stop, *slot("stop", STOPS)] = Iterations()
    local_steps: Count | None = None

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct the V victims of the views; victim v draws from rngs[v].

        The answer is the guess of least distance that the search met, clamped to [0, 1]; NaN where the distance was never finite.
        """
        view = views[0]
        if any((v.victims, v.examples, v.shape) != (view.victims, view.examples, view.shape) for v in views):
            raise InputError("views: all must show the same victims with the same number of examples of one shape")
        if self.local_steps is not None:
            views = tuple(v.coarser(self.local_steps) for v in views)
            view = views[0]
        space = self.space(view)
        guess = self.labels(view, rngs)
        z = space.encode(self.start(view, rngs))
        shape, size = z.shape[1:], z[0].numel()
        point = torch.cat([z.flatten(1), guess.targets.flatten(1)], 1) if guess.joint else z.flatten(1)

        def split(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
            inputs = points[:, :size].reshape(-1, *shape)
            if not guess.joint:
                return inputs, guess.targets[lanes]
            return inputs, points[:, size:].reshape(-1, *guess.targets.shape[1:]).softmax(-1)

        def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                leaf = points.detach().requires_grad_()
                inputs, targets = split(leaf, lanes)
                values = self._value(views, space, inputs, targets, lanes)
                (gradients,) = torch.autograd.grad(values.sum(), leaf)
            return values.detach(), gradients

        found = descend(self.descent(point.detach()), objective, self.stop)
        everyone = torch.arange(view.victims, device=point.device)

        def picture(points: Tensor) -> Tensor:
            x = space.decode(split(points, everyone)[0]).clamp(0, 1)
            return torch.where(found.value.isfinite().reshape(-1, *[1] * (x.dim() - 1)), x, torch.nan)

        return Reconstruction(
            inputs=picture(found.best),
            labels=split(found.best, everyone)[1].argmax(-1),
            certainty=-found.value[:, None].expand(-1, view.examples),
            trajectory=found.trajectory,
            steps=found.steps,
            evaluations=found.evaluations,
            iterates=torch.stack([picture(points) for points in found.snapshots]),
            snapshots=found.at,
        )

    def _value(self, views: tuple[View, ...], space: Coordinates, z: Tensor, targets: Tensor, lanes: Tensor) -> Tensor:
        inputs = space.decode(z)
        value = space.energy(z)
        for view in views:
            value = value + self.distance(view.respond(inputs, targets, lanes), view.observed(lanes), view)
        for prior in self.priors:
            value = value + prior(inputs)
        return value
