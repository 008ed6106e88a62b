"""What entered a fully connected layer, read from the layer's own gradient.

A linear layer z = W h + b has, for one example with d = dL/dz, the gradients dW = d h^T and db = d. So h and d follow exactly
where there is a bias (Phong et al., TIFS 2018, section 3; Geiping et al., NeurIPS 2020, proposition 3.1). Without a bias dW fixes
both up to one scalar. In the last layer d = softmax(W h + b) - y is itself a function of h, which leaves one equation for that
scalar (the first step of R-GAP: Zhu and Blaschko, ICLR 2021, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.batch_features import separable, separated
from leakbench.attack.clock import Until
from leakbench.attack.front import FullyConnected, fully_connected
from leakbench.defense.clip import ClipWhole
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.batch_norm import mixes_examples
from leakbench.types import Generators

__all__ = ["Features", "read", "readable"]


@dataclass(frozen=True)
class Features:
    """What entered a layer for the M examples of V victims: up to R candidates, of which the attacker has to choose one.

    Args:
        layer: Which layer.
        entered: (R, V, M, d), NaN where nothing could be read.
        cotangents: (R, V, M, d), the derivative of each example's loss by it.
        labels: (R, V, M) int64.
        cut: (V,) bool, whom a limit on seconds kept from being read; None: nobody.
    """

    layer: FullyConnected
    entered: Tensor
    cotangents: Tensor
    labels: Tensor
    cut: Tensor | None = None


def readable(view: View) -> FullyConnected | None:
    """Return the first fully connected layer whose input a view shows, None where it shows none or no search is needed.

    One gradient is needed, of one local iteration, without noise, and no transform of a defense but one scale for all tensors:
    quotients of gradients do not change under it. A network that normalises over its batch is left out. For M > 1 examples see
    `leakbench.attack.batch_features`.
    """
    if view.examples > 1:
        return separable(view)
    transforms = view.stations.before(view.tap).transforms
    plain = view.of_gradients and view.local_steps == 1 and not view.noise and not view.unknown and view.secret is None
    if not plain or mixes_examples(view.network.model) or not all(isinstance(t, ClipWhole) for t in transforms):
        return None
    layers = fully_connected(view.network, view.shape)
    labelled = bool(layers) and layers[-1].last
    # Without a bias the length of h follows only from a gradient that nothing has scaled.
    usable = tuple(a for a in layers if labelled and not a.drawn and (a.biased or (a.last and not transforms)))
    # What enters a layer before all parameters is the input itself, which `analytic_fc` reads.
    return usable[0] if usable and usable[0].names else None


def read(view: View, layer: FullyConnected, rngs: Generators, until: Until | None = None) -> Features:
    """Return what entered a layer that is `readable`.

    Args:
        until: When the separation of batches has to end.
    """
    with torch.no_grad():
        if view.examples > 1:
            entered, cotangents, labels, cut = separated(view, layer, rngs, until)
            return Features(layer, entered[None], cotangents[None], labels[None], cut)
        if layer.last:
            return _of_last(view, layer)
        entered, delta = _quotient(view, layer)
        labels = _of_last(view, fully_connected(view.network, view.shape)[-1]).labels[:1]
        cotangents = _through(view, layer, delta)
        return Features(layer, entered[None, :, None], cotangents[None, :, None], labels)


def _quotient(view: View, layer: FullyConnected) -> tuple[Tensor, Tensor]:
    """Return h (V, d) and dL/dz (V, k) of a layer with a bias, h by least squares over the rows of dW = db h^T."""
    weight, bias = view.update[f"{layer.name}weight"].double(), view.update[f"{layer.name}bias"].double()
    largest = bias.abs().amax(1, keepdim=True)
    share = bias / largest  # Squares of small gradients would vanish.
    entered = torch.einsum("vk,vkd->vd", share, weight) / (share.square().sum(1, keepdim=True) * largest)
    return entered.to(view.update[f"{layer.name}weight"]), bias.to(view.update[f"{layer.name}bias"])


def _through(view: View, layer: FullyConnected, delta: Tensor) -> Tensor:
    """Return W^T dL/dz, (V, d) for (V, k)."""
    weight = view.network.parameters[f"{layer.name}weight"]
    return delta @ weight if view.network.shared else torch.einsum("vk,vkd->vd", delta, weight)


def _logits(view: View, layer: FullyConnected, entered: Tensor) -> Tensor:
    """Return W h + b, (V, ..., classes) for (V, ..., d), in float64."""
    own = view.network.parameters
    weight = own[f"{layer.name}weight"].double()
    weight = weight.expand(view.victims, *weight.shape[-2:])
    flat = entered.double().reshape(view.victims, -1, entered.shape[-1])
    logits = (flat @ weight.mT).reshape(*entered.shape[:-1], -1)
    if f"{layer.name}bias" in own:
        bias = own[f"{layer.name}bias"].double()
        bias = bias.expand(view.victims, bias.shape[-1])
        logits = logits + bias.reshape(view.victims, *[1] * (logits.dim() - 2), -1)
    return logits


def _of_last(view: View, layer: FullyConnected) -> Features:
    """Return what entered the last layer for one example, whose label then follows from dL/dz = softmax(z) - y."""
    weight = view.update[f"{layer.name}weight"]
    if layer.biased:
        entered, delta = _quotient(view, layer)
        entered, delta = entered[None], delta[None]
    else:
        entered, delta = _roots(view, layer)
    labels = torch.stack([_label(view, layer, h, d) for h, d in zip(entered, delta, strict=True)])
    cotangents = torch.stack([_through(view, layer, d) for d in delta.to(weight)])
    return Features(layer, entered.to(weight)[:, :, None], cotangents[:, :, None], labels[:, :, None])


def _label(view: View, layer: FullyConnected, entered: Tensor, delta: Tensor) -> Tensor:
    """Return (V,): the class y for which softmax(z) - y points most nearly along dL/dz, which a clip may have scaled."""
    chances = _logits(view, layer, entered).softmax(-1)
    expected = chances[:, None] - torch.eye(view.classes, dtype=chances.dtype, device=chances.device)
    cosine = torch.nn.functional.cosine_similarity(expected, delta.double()[:, None], dim=-1)
    return cosine.nan_to_num(nan=-1.0).argmax(1)


LENGTHS = torch.logspace(-4, 7, 2201, dtype=torch.float64)
"""Lengths of h among which roots are bracketed."""


def _roots(view: View, layer: FullyConnected) -> tuple[Tensor, Tensor]:
    """Return h (R, V, d) and dL/dz (R, V, classes) of a last layer without a bias: dW = a v^T, |v| = 1, and h = t v.

    Row y of (softmax(z) - one_hot(y)) t = a is t (1 - p_y(t)) = |a_y|, with one or more roots t. Of more than two classes the
    other rows tell roots and signs of v apart; of two they do not, and all roots are candidates.
    """
    seen = view.update[f"{layer.name}weight"].double()
    longest = seen.square().sum(2).argmax(1)
    lanes = torch.arange(view.victims, device=seen.device)
    v = torch.nn.functional.normalize(seen[lanes, longest], dim=1)
    a = torch.einsum("vkd,vd->vk", seen, v)
    found = []
    for sign in (1.0, -1.0):
        own, along = sign * v, sign * a
        label = along.argmin(1)
        for t in _crossings(view, layer, own, -along[lanes, label], label):
            chances = _logits(view, layer, t[:, None] * own).softmax(-1)
            delta = chances - one_hot(label, view.classes).to(chances)
            apart = (delta * t[:, None] - along).square().sum(1) / along.square().sum(1)
            # Features behind a ReLU or a sigmoid are not negative, and then the sign of v is known.
            impossible = own.amax(1) <= 1e-6 * own.abs().amax(1)
            apart = torch.where(t.isfinite() & ~impossible, apart, torch.inf)
            mixed = ((own > 0).any(1) & (own < 0).any(1)).to(apart)
            found.append((apart + 1e-9 * mixed, t[:, None] * own, along / t[:, None]))
    apart = torch.stack([f[0] for f in found])
    order = apart.argsort(dim=0, stable=True)
    least = apart.gather(0, order)
    many = max(1, int(((least <= 1e-4) & (least <= 100 * least[:1] + 1e-8)).sum(0).max()))
    picks = order[:many]
    h, d = torch.stack([f[1] for f in found])[picks, lanes], torch.stack([f[2] for f in found])[picks, lanes]
    none = ~(least[:many] <= 1e-2)[..., None]
    return h.masked_fill(none, torch.nan), d.masked_fill(none, torch.nan)


def _crossings(view: View, layer: FullyConnected, v: Tensor, length: Tensor, label: Tensor) -> list[Tensor]:
    """Return up to three roots t (V,) of t (1 - p_label(t v)) = length, NaN where there are fewer."""
    slope, base = _logits(view, layer, v), _logits(view, layer, torch.zeros_like(v))
    slope = slope - base

    def missed(t: Tensor) -> Tensor:
        """t: (V, n)."""
        z = base[:, None] + t[..., None] * slope[:, None]
        others = z.scatter(-1, label[:, None, None].expand(-1, z.shape[1], 1), -torch.inf).logsumexp(-1)
        own = z.gather(-1, label[:, None, None].expand(-1, z.shape[1], 1))[..., 0]
        # log(1 - p) without cancellation.
        rest = others - torch.logaddexp(others, own)
        return t.log() + rest - length[:, None].log()

    grid = LENGTHS.to(v.device).expand(len(v), -1)
    values = missed(grid)
    change = (values[:, 1:] * values[:, :-1] <= 0) & values[:, 1:].isfinite() & values[:, :-1].isfinite()
    found = []
    for number in range(3):
        place = (change.cumsum(1) == number + 1).int().argmax(1)
        exists = change.sum(1) > number
        low, high = grid.gather(1, place[:, None]), grid.gather(1, place[:, None] + 1)
        first = missed(low)
        for _ in range(60):
            middle = (low + high) / 2
            same = missed(middle) * first > 0
            low, high = torch.where(same, middle, low), torch.where(same, high, middle)
        found.append(torch.where(exists, ((low + high) / 2)[:, 0], torch.nan))
    return found
