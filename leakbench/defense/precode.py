"""PRECODE: a variational bottleneck before the last layer, so that gradients depend on new random numbers in each step."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.part import Count, NonNegative, part
from leakbench.core.types import Parameters

__all__ = ["Precode", "VariationalBottleneck"]


class VariationalBottleneck(nn.Module):
    """A network with a bottleneck: features -> (mean, std) of k numbers -> code -> the same number of features -> classifier.

    `forward(inputs)` evaluates the mean of the code; `forward(inputs, draws)` evaluates mean + std * draws, with the penalty. The
    class follows `leakbench.core.types.Sampling` and `ShowsDraws`.
    """

    def __init__(self, features: nn.Module, classifier: nn.Linear, width: int, beta: float) -> None:
        super().__init__()
        self.draws = width
        self.beta = beta
        self.features = features
        self.encoder = nn.Linear(classifier.in_features, 2 * width)
        self.decoder = nn.Linear(width, classifier.in_features)
        self.classifier = classifier

    def forward(self, inputs: Tensor, draws: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits (n, classes); with draws (n, k) also each example's penalty (n,), beta times the divergence in bits.

        KL(N(mean, std^2) || N(0, 1)) = sum over k of (mean^2 + std^2 - 1 - 2 log std) / 2 nats.
        """
        mean, spread = self.encoder(self.features(inputs)).chunk(2, dim=-1)
        if draws is None:
            logits: Tensor = self.classifier(self.decoder(mean))
            return logits
        std = nn.functional.softplus(spread)
        divergence = 0.5 * (mean.square() + std.square() - 1 - 2 * std.log()).sum(-1) / math.log(2)
        return self.classifier(self.decoder(mean + std * draws)), self.beta * divergence

    def drawn_for(self, parameters: Parameters, gradient: Parameters) -> Tensor:
        """Return the random numbers (k,) of the one example of a gradient {p: (*p)}; zeros where the gradient does not show them.

        The input of a biased linear layer is a quotient of two of its gradients (Geiping et al., NeurIPS 2020, proposition 3.1).
        The decoder's input is the code. The encoder's input is the features, from which mean and std follow. The draws are
        (code - mean) / std, so the gradient shows them exactly, although the paper treats them as hidden.
        """
        code, features = (_entering(gradient, layer) for layer in ("decoder", "encoder"))
        weight, bias = parameters["encoder.weight"], parameters["encoder.bias"]
        mean, spread = (features @ weight.T + bias).chunk(2, dim=-1)
        return ((code - mean) / nn.functional.softplus(spread)).nan_to_num(0.0, 0.0, 0.0)


def _entering(gradient: Parameters, layer: str) -> Tensor:
    """Return the input (n,) of a biased linear layer, by least squares over its rows: dW = db x^T."""
    largest = (
        gradient[f"{layer}.bias"].abs().amax()
    )  # The division keeps squares of small gradients from becoming zero.
    weight, bias = gradient[f"{layer}.weight"] / largest, gradient[f"{layer}.bias"] / largest
    return bias @ weight / bias.square().sum()


@part("network.precode")
class Precode:
    """Put a variational bottleneck between the features and the last layer (Scheliga et al., WACV 2022, section 4).

    As in the released code, std is a softplus, the divergence is in bits, and PyTorch's uniform(+-1 / sqrt(fan-in)) initialises
    the new layers. The layers before and after the bottleneck keep their weights.
    """

    behaviour = 2

    width: Annotated[Count, Field(description="Number k of values in the latent code, 256 in the paper.")] = 256
    beta: Annotated[NonNegative, Field(description="Weight of the divergence in the loss, 0.001 in the paper.")] = 1e-3

    def __call__(self, model: nn.Module, shape: tuple[int, ...], classes: int, rng: torch.Generator) -> nn.Module:
        """Return the network with its bottleneck; raises InputError unless it is a Sequential that ends with nn.Linear."""
        last = model[-1] if isinstance(model, nn.Sequential) and len(model) else model
        if not isinstance(model, nn.Sequential) or not isinstance(last, nn.Linear):
            raise InputError(
                f"precode: got a network that ends with {type(last).__name__}, expected a sequence that ends with a fully"
                " connected layer (nn.Linear), before which the bottleneck goes; choose another --model"
            )
        whole = VariationalBottleneck(model[:-1], last, self.width, self.beta)
        with torch.no_grad():
            for layer in (whole.encoder, whole.decoder):
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=rng)
                layer.bias.uniform_(-bound, bound, generator=rng)
        return whole
