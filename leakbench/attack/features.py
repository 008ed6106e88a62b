"""Reads the inputs of a fully connected layer from the layer's own gradient.

A linear layer z = W h + b has, for one example with d = dL/dz, the gradients dW = d h^T and db = d. With a bias, h and d follow
exactly (Phong et al., TIFS 2018, section 3; Geiping et al., NeurIPS 2020, proposition 3.1). Without a bias, dW determines both up
to one scalar. In the last layer d = softmax(W h + b) - y is itself a function of h, which gives one equation for that scalar (the
first step of R-GAP: Zhu and Blaschko, ICLR 2021, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.batch_features import separable, separated
from leakbench.attack.clock import Until
from leakbench.attack.front import FullyConnected, answering_layer, fully_connected, outputs_of, quotient
from leakbench.core.task import is_classification
from leakbench.core.types import Generators
from leakbench.defense.clip import ClipWhole
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.batch_norm import mixes_examples

__all__ = ["Features", "labels_of", "read", "readable"]


@dataclass(frozen=True)
class Features:
    """Candidates for the inputs of one layer: up to R for each of the M examples of V victims. The attacker chooses among them.

    Args:
        layer: The layer.
        entered: Inputs of the layer (R, V, M, d); NaN if nothing could be read.
        cotangents: Derivatives (R, V, M, d) of each example's loss by them.
        labels: (R, V, M) int64.
        cut: (V,) bool, victims whose separation a limit on seconds ended; None for no victim.
    """

    layer: FullyConnected
    entered: Tensor
    cotangents: Tensor
    labels: Tensor
    cut: Tensor | None = None


def readable(view: View) -> FullyConnected | None:
    """Return the first fully connected layer whose inputs can be read without a search.

    The view must show one gradient of one local iteration, without noise. The defense may only scale all tensors by the same
    factor, since quotients of gradients do not change then. The network must not normalise over its batch. For M > 1 examples, see
    `leakbench.attack.batch_features`.

    Returns:
        None if no layer qualifies, if it is the first layer of the network, which `analytic_fc` reads, or if the network does not
            name classes.
    """
    if not is_classification(view.network.model):
        return None
    if view.examples > 1:
        return separable(view)
    transforms = view.stations.before(view.tap).transforms
    plain = view.of_gradients and view.local_steps == 1 and not view.noise and not view.unknown and view.secret is None
    if not plain or mixes_examples(view.network.model) or not all(isinstance(t, ClipWhole) for t in transforms):
        return None
    layers = fully_connected(view.network, view.shape)
    labelled = answering_layer(view.network, view.shape) is not None
    # Without a bias, the length of h follows only from a gradient that was not scaled.
    usable = tuple(a for a in layers if labelled and not a.drawn and (a.biased or (a.last and not transforms)))
    return usable[0] if usable and not usable[0].first else None


def read(view: View, layer: FullyConnected, rngs: Generators, until: Until | None = None) -> Features:
    """Return the inputs of a layer that `readable` returned.

    Args:
        view: The view of V victims.
        layer: The layer.
        rngs: Victim v draws from rngs[v]; for batches only.
        until: When the separation of batches must end; None for no limit.
    """
    with torch.no_grad():
        if view.examples > 1:
            entered, cotangents, labels, cut = separated(view, layer, rngs, until)
            return Features(layer, entered[None], cotangents[None], labels[None], cut)
        if layer.last:
            return _of_last(view, layer)
        entered, delta = quotient(view, layer)
        last = answering_layer(view.network, view.shape)
        assert last is not None  # noqa: S101 - for mypy; a layer is readable only where one answers
        labels = _of_last(view, last).labels[:1]
        cotangents = _through(view, layer, delta)
        return Features(layer, entered[None, :, None], cotangents[None, :, None], labels)


def labels_of(view: View, rngs: Generators) -> Tensor | None:
    """Return the label (V, 1) of one example, from the features of a readable layer; None if no layer is readable."""
    layer = readable(view) if view.examples == 1 else None
    return None if layer is None else read(view, layer, rngs).labels[0]


def _through(view: View, layer: FullyConnected, delta: Tensor) -> Tensor:
    """Return W^T dL/dz, (V, d) for (V, k)."""
    weight = view.network.parameters[f"{layer.name}weight"]
    return delta @ weight if view.network.shared else torch.einsum("vk,vkd->vd", delta, weight)


def _of_last(view: View, layer: FullyConnected) -> Features:
    """Return the inputs of the last layer for one example, whose label follows from dL/dz = softmax(z) - y."""
    weight = view.update[f"{layer.name}weight"]
    if layer.biased:
        entered, delta = quotient(view, layer)
        entered, delta = entered[None], delta[None]
    else:
        entered, delta = _roots(view, layer)
    labels = torch.stack([_label(view, layer, h, d) for h, d in zip(entered, delta, strict=True)])
    cotangents = torch.stack([_through(view, layer, d) for d in delta.to(weight)])
    return Features(layer, entered.to(weight)[:, :, None], cotangents[:, :, None], labels[:, :, None])


def _label(view: View, layer: FullyConnected, entered: Tensor, delta: Tensor) -> Tensor:
    """Return (V,): the class y for which softmax(z) - y has the direction of dL/dz, whose length a clip may have changed."""
    chances = outputs_of(view, layer, entered).softmax(-1)
    expected = chances[:, None] - torch.eye(view.classes, dtype=chances.dtype, device=chances.device)
    cosine = torch.nn.functional.cosine_similarity(expected, delta.double()[:, None], dim=-1)
    return cosine.nan_to_num(nan=-1.0).argmax(1)


LENGTHS = torch.logspace(-4, 7, 2201, dtype=torch.float64)
"""Lengths of h between which roots are bracketed."""


def _roots(view: View, layer: FullyConnected) -> tuple[Tensor, Tensor]:
    """Return h (R, V, d) and dL/dz (R, V, classes) of a last layer without a bias: dW = a v^T, |v| = 1, and h = t v.

    Row y of (softmax(z) - one_hot(y)) t = a is t (1 - p_y(t)) = |a_y|, with one or more roots t. With more than two classes, the
    other rows decide between the roots and the signs of v. With two classes they do not, and all roots are candidates.
    """
    gradient = view.update[f"{layer.name}weight"].double()
    longest = gradient.square().sum(2).argmax(1)
    lanes = torch.arange(view.victims, device=gradient.device)
    v = torch.nn.functional.normalize(gradient[lanes, longest], dim=1)
    a = torch.einsum("vkd,vd->vk", gradient, v)
    candidates = []
    for sign in (1.0, -1.0):
        own, along = sign * v, sign * a
        label = along.argmin(1)
        for t in _crossings(view, layer, own, -along[lanes, label], label):
            chances = outputs_of(view, layer, t[:, None] * own).softmax(-1)
            delta = chances - one_hot(label, view.classes).to(chances)
            apart = (delta * t[:, None] - along).square().sum(1) / along.square().sum(1)
            # Features after a ReLU or a sigmoid are not negative, which determines the sign of v.
            impossible = own.amax(1) <= 1e-6 * own.abs().amax(1)
            apart = torch.where(t.isfinite() & ~impossible, apart, torch.inf)
            mixed = ((own > 0).any(1) & (own < 0).any(1)).to(apart)
            candidates.append((apart + 1e-9 * mixed, t[:, None] * own, along / t[:, None]))
    apart = torch.stack([f[0] for f in candidates])
    order = apart.argsort(dim=0, stable=True)
    least = apart.gather(0, order)
    many = max(1, int(((least <= 1e-4) & (least <= 100 * least[:1] + 1e-8)).sum(0).max()))
    picks = order[:many]
    h, d = torch.stack([f[1] for f in candidates])[picks, lanes], torch.stack([f[2] for f in candidates])[picks, lanes]
    none = ~(least[:many] <= 1e-2)[..., None]
    return h.masked_fill(none, torch.nan), d.masked_fill(none, torch.nan)


def _crossings(view: View, layer: FullyConnected, v: Tensor, length: Tensor, label: Tensor) -> list[Tensor]:
    """Return up to three roots t (V,) of t (1 - p_label(t v)) = length, NaN where there are fewer."""
    slope, base = outputs_of(view, layer, v), outputs_of(view, layer, torch.zeros_like(v))
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
    roots = []
    for number in range(3):
        place = (change.cumsum(1) == number + 1).int().argmax(1)
        exists = change.sum(1) > number
        low, high = grid.gather(1, place[:, None]), grid.gather(1, place[:, None] + 1)
        first = missed(low)
        for _ in range(60):
            middle = (low + high) / 2
            same = missed(middle) * first > 0
            low, high = torch.where(same, middle, low), torch.where(same, high, middle)
        roots.append(torch.where(exists, ((low + high) / 2)[:, 0], torch.nan))
    return roots
