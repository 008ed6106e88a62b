"""A closed form: the input of a biased linear first layer is the quotient of two gradients."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.layers import first_layer

__all__ = ["AnalyticFc"]


@part("method.analytic_fc")
class AnalyticFc:
    """Compute x = dW_i / db_i, row by row (Phong et al., TIFS 2018, section 3; Geiping et al., NeurIPS 2020, proposition 3.1).

    Row i of a first layer W x + b has the gradient dW_i = db_i x^T, so any row with db_i != 0 gives one example exactly. The row
    with the largest |db_i| loses the fewest digits. For M > 1 examples, each row contains a mean weighted by their db_i, and the
    M rows with the largest |db_i| are the reconstructions. A row that only one example activates contains just this example.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims from the mean of the observations of a release, in [0, 1].

        Each release gives a reconstruction. The result is the one whose gradients are nearest to the observed ones over all
        releases. The certainty is minus the squared distance of these gradients.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Returns:
            NaN if the row's db is zero, and for more examples than the layer has rows.

        Raises:
            InputError: If the model does not begin with a biased linear layer, apart from flattening.
        """
        if first_layer(views[0].network.model, views[0].shape) is None:
            raise InputError(
                "attack: analytic_fc reads a biased linear first layer, with which this network does not begin; choose one"
                " that does (mlp), or another attack"
            )
        means = tuple(view for view, _ in averaged(views))
        answers = [answered_at_once(means, _inputs(view), rngs) for view in means]
        return likeliest(answers)


def _inputs(view: View) -> Tensor:
    name = first_layer(view.network.model, view.shape)
    weight, bias = view.update[f"{name}weight"], view.update[f"{name}bias"]
    inputs = weight.new_full((view.victims, view.examples, weight.shape[2]), torch.nan)
    rows = bias.abs().topk(min(view.examples, bias.shape[1]), dim=1).indices
    quotient = weight.gather(1, rows[..., None].expand(-1, -1, weight.shape[2])) / bias.gather(1, rows)[..., None]
    inputs[:, : rows.shape[1]] = torch.where(quotient.isfinite(), quotient, torch.nan)
    return inputs.clamp(0, 1).reshape(view.victims, view.examples, *view.shape)
