"""Smooth versions of ReLUs and max pooling, with which a search can pass from one pattern of activations to another.

The gradients of a network with ReLUs and max pooling jump where a unit becomes active or another place becomes the largest. A
search stops at such jumps. The smooth chain has a(x) = x sigmoid(s x) instead of a ReLU, and the softmax-weighted mean of each
window instead of its maximum. Both tend to the original as the sharpness s grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.core.types import Parameters
from leakbench.engine.chain import Chain
from leakbench.engine.patches import Kernel
from leakbench.engine.steps import Bend, Flatten, MaxPool, Passed, Pointwise, Step

__all__ = ["smoothed"]


def smoothed(chain: Chain, sharpness: Tensor, answer: Tensor) -> Chain:
    """Return a chain with smooth ReLUs and pools.

    Args:
        chain: Layers whose output (K, B, d) is known.
        sharpness: (), the slope of the gates, in units of 1 / standard deviation of the numbers that enter them.
        answer: The known output (K, B, d). If the last layer is a ReLU, the output shows which of its units are active, and
            these units are linear.
    """
    steps: list[Step] = list(chain.steps)
    last = next((n for n in reversed(range(len(steps))) if not isinstance(steps[n], Flatten)), 0)
    known = _is_relu(steps[last])
    soft = [_smooth(step, sharpness) for n, step in enumerate(steps) if not (known and n == last)]
    return Chain((*soft, _KnownRelu(sharpness, answer > 0)) if known else tuple(soft))


def _smooth(step: Step, sharpness: Tensor) -> Step:
    if _is_relu(step):
        return _SmoothRelu(sharpness)
    if _is_windowed(step):
        assert isinstance(step, MaxPool)  # noqa: S101 - for mypy; true by `_is_windowed`
        return _SmoothMaxPool(sharpness, step.kernel)
    return step


def _is_relu(step: Step) -> bool:
    return isinstance(step, Pointwise) and type(step.function) is nn.ReLU


def _is_windowed(step: Step) -> bool:
    """Return whether a step pools windows that neither overlap nor exceed the image; other pools stay as they are."""
    return isinstance(step, MaxPool) and step.kernel.size == step.kernel.stride and step.kernel.padding == (0, 0)


def _slope(sharpness: Tensor, entering: Tensor) -> Tensor:
    """Return (K, B, 1, ...): the sharpness divided by the standard deviation of each example's numbers."""
    width = entering.detach().flatten(2).std(2, unbiased=False).clamp_min(torch.finfo(entering.dtype).tiny ** 0.5)
    return sharpness / width.reshape(*width.shape, *[1] * (entering.dim() - 2))


def _gated(sharpness: Tensor, entering: Tensor) -> tuple[Tensor, Tensor, Bend]:
    """Return a(x) = x sigmoid(s x), its derivative, and its second derivative as a bend; s counts as constant."""
    slope = _slope(sharpness, entering)
    scaled = slope * entering
    gate = scaled.sigmoid()

    def bend(tangent: Tensor, delta: Tensor) -> Tensor:
        return tangent * delta * slope * gate * (1 - gate) * (2 + scaled * (1 - 2 * gate))

    return entering * gate, gate * (1 + scaled * (1 - gate)), bend


@dataclass(frozen=True)
class _SmoothRelu:
    sharpness: Tensor

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        answer, derivative, bend = _gated(self.sharpness, entering)

        def through(delta: Tensor) -> Tensor:
            return delta * derivative

        return Passed(answer, through, through, bend=bend)


@dataclass(frozen=True)
class _KnownRelu:
    """A ReLU whose active units (K, B, d) are known. Gradients pass only these; `pull` passes all, so that others can wake up."""

    sharpness: Tensor
    active: Tensor

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        gated, derivative, _ = _gated(self.sharpness, entering)

        def through(delta: Tensor) -> Tensor:
            return delta * self.active

        def pull(delta: Tensor) -> Tensor:
            return delta * torch.where(self.active, 1.0, derivative)

        return Passed(torch.where(self.active, entering, gated), through, through, pull=pull)


@dataclass(frozen=True)
class _SmoothMaxPool:
    sharpness: Tensor
    kernel: Kernel

    def __call__(self, parameters: Parameters, shared: bool, entering: Tensor) -> Passed:
        lanes, members, height, width, channels = entering.shape
        rows, columns = self.kernel.size
        down, right = self.kernel.places(height, width)
        read = entering[:, :, : down * rows, : right * columns]
        windows = read.reshape(lanes, members, down, rows, right, columns, channels)
        slope = _slope(self.sharpness, entering)[..., None, None]
        # Both axes of a window share one softmax.
        scores = (slope * windows).movedim(3, 4)
        shares = scores.flatten(4, 5).softmax(4).reshape(scores.shape).movedim(4, 3)

        pooled = _within(shares * windows)[:, :, :, None, :, None]
        weights = shares * (1 + slope * (windows - pooled))
        rest = (0, 0, 0, width - right * columns, 0, height - down * rows)

        def back(delta: Tensor) -> Tensor:
            entered = (delta[:, :, :, None, :, None] * weights).reshape(read.shape)
            return torch.nn.functional.pad(entered, rest)

        def moved(tangent: Tensor) -> Tensor:
            return tangent[:, :, : down * rows, : right * columns].reshape(windows.shape)

        def push(tangent: Tensor) -> Tensor:
            return _within(moved(tangent) * weights)

        def bend(tangent: Tensor, delta: Tensor) -> Tensor:
            # With shares p and weights w: d w_i / d x_j = s (w_j (i = j) - p_i w_j + p_j (i = j) - p_j w_i).
            entered = moved(tangent)
            by_shares, by_weights = (
                entered - _within(entered * each)[:, :, :, None, :, None] for each in (shares, weights)
            )
            bent = delta[:, :, :, None, :, None] * slope * (weights * by_shares + shares * by_weights)
            return torch.nn.functional.pad(bent.reshape(read.shape), rest)

        return Passed(pooled[:, :, :, 0, :, 0], back, push, bend=bend)


def _within(windows: Tensor) -> Tensor:
    """Return the sums (K, B, H', W', C) over windows (K, B, H', k, W', k', C); one axis at a time takes a sixth of the time."""
    return windows.sum(5).sum(3)
