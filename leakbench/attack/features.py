"""What entered a fully connected layer, read from the layer's own gradient.

A linear layer z = W h + b has, for one example with d = dL/dz, the gradients dW = d h^T and db = d. So h and d follow exactly
where there is a bias (Phong et al., TIFS 2018, section 3; Geiping et al., NeurIPS 2020, proposition 3.1). Without a bias dW fixes
both up to one scalar. In the last layer d = softmax(W h + b) - y is itself a function of h, which leaves one equation for that
scalar (the first step of R-GAP: Zhu and Blaschko, ICLR 2021, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.front import FullyConnected, fully_connected
from leakbench.attack.search.label_counts import label_counts
from leakbench.attack.slots.labels import LastLayer
from leakbench.defense.clip import ClipWhole
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.batch_norm import mixes_examples
from leakbench.types import Generators

__all__ = ["Features", "read", "readable"]


MOST = 16
"""How many examples of a batch are separated: their M^2 unknowns are solved for with matrices of as many rows."""


@dataclass(frozen=True)
class Features:
    """What entered a layer for the M examples of V victims: up to R candidates, of which the attacker has to choose one.

    layer: which layer.  entered: (R, V, M, d), NaN where nothing could be read.  cotangents: (R, V, M, d), the derivative of each
    example's loss by it.  labels: (R, V, M) int64.
    """

    layer: FullyConnected
    entered: Tensor
    cotangents: Tensor
    labels: Tensor


def readable(view: View) -> FullyConnected | None:
    """Return the first fully connected layer whose input a view shows, None where it shows none or no search is needed.

    One gradient is needed, of one local iteration, without noise, and no transform of a defense but one scale for all tensors:
    quotients of gradients do not change under it. A network that normalises over its batch is left out. For M > 1 examples only
    the last layer can be read, and only if there are more than M classes, at most `MOST` examples and no defense.
    """
    transforms = view.stations.before(view.tap).transforms
    plain = view.of_gradients and view.local_steps == 1 and not view.noise and not view.unknown and view.secret is None
    if not plain or mixes_examples(view.network.model) or not all(isinstance(t, ClipWhole) for t in transforms):
        return None
    layers = fully_connected(view.network, view.shape)
    if view.examples > 1:
        mixed = view.network.draws or transforms
        few = view.examples < view.classes and view.examples <= MOST
        usable = tuple(a for a in layers if a.last and few and not mixed)
    else:
        labelled = bool(layers) and layers[-1].last
        # Without a bias the length of h follows only from a gradient that nothing has scaled.
        usable = tuple(a for a in layers if labelled and not a.drawn and (a.biased or (a.last and not transforms)))
    # What enters a layer before all parameters is the input itself, which `analytic_fc` reads.
    return usable[0] if usable and usable[0].names else None


def read(view: View, layer: FullyConnected, rngs: Generators) -> Features:
    """Return what entered a layer that is `readable`."""
    with torch.no_grad():
        if view.examples > 1:
            return _of_batch(view, layer, rngs)
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


ITERATIONS = 60
"""Steps of Levenberg and Marquardt's method at most."""
EXACT = 1e-3
"""Root of the mean squared residual, in units of what leaked, up to which separated features are taken for right."""


def _of_batch(view: View, layer: FullyConnected, rngs: Generators) -> Features:
    """Return what entered the last layer for each of M examples, in ascending order of their labels.

    M dW = D^T H and M db = D^T 1, with D = softmax(H W^T + b) - Y. The rows of H are in the span of the first M right singular
    vectors of dW, H = A V^T, so that the M^2 numbers A are to be found: by Levenberg and Marquardt's method, from the D
    in which all examples have the mean probabilities. NaN where the equations are missed by more than the share `EXACT`.
    """
    like = view.update[f"{layer.name}weight"]
    targets = _counted(view, rngs).double()
    found = [
        _separated(view.of(torch.tensor([lane], device=like.device)), layer, targets[lane])
        for lane in range(view.victims)
    ]
    entered = torch.stack([h for h, _ in found]).to(like)
    delta = torch.stack([d for _, d in found]).to(like)
    weight = view.network.parameters[f"{layer.name}weight"]
    cotangents = delta @ weight
    return Features(layer, entered[None], cotangents[None], targets.argmax(-1)[None])


def _counted(view: View, rngs: Generators) -> Tensor:
    """Return the labels (V, M, classes) in ascending order, by public examples where there are any."""
    if view.public is None or not len(view.public.labels):
        return LastLayer()(view, rngs).targets
    counts = label_counts(view, rngs)
    classes = torch.arange(view.classes, device=counts.device).expand_as(counts)
    return one_hot(
        classes.flatten().repeat_interleave(counts.flatten()).reshape(len(counts), view.examples), view.classes
    )


def _separated(view: View, layer: FullyConnected, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features (M, d) and the derivatives of the loss by the logits (M, classes) for one victim."""
    examples = view.examples
    seen = examples * view.update[f"{layer.name}weight"][0].double()
    shown = examples * view.update[f"{layer.name}bias"][0].double() if layer.biased else None
    basis = torch.linalg.svd(seen, full_matrices=False)[2][:examples]
    onto = seen @ basis.mT  # (classes, M)
    scale = onto.square().mean().sqrt()

    def delta_of(a: Tensor) -> Tensor:
        return _logits(view, layer, (a @ basis)[None])[0].softmax(-1) - targets

    def residual(a: Tensor) -> Tensor:
        delta = delta_of(a.reshape(examples, examples))
        parts = [(delta.mT @ a.reshape(examples, examples) - onto).flatten() / scale]
        if shown is not None:
            parts.append((delta.sum(0) - shown) / shown.square().mean().sqrt())
        return torch.cat(parts)

    mean = (
        (shown + targets.sum(0)) / examples
        if shown is not None
        else targets.new_full((view.classes,), 1 / view.classes)
    )
    start = torch.linalg.lstsq((mean - targets).mT, onto, driver="gelsd").solution.flatten()
    a, rest = _least_squares(residual, start)
    a = a.reshape(examples, examples)
    exact = rest.square().mean().sqrt() <= EXACT
    entered = torch.where(exact, a @ basis, torch.nan)
    return entered, torch.where(exact, delta_of(a), torch.nan)


def _least_squares(residual: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point (n,) of least |residual|^2 near a start, and the residual there, by Levenberg and Marquardt's method."""
    point, rest, damping = start, residual(start), 1e-3
    for _ in range(ITERATIONS):
        slope: Tensor = torch.func.jacrev(residual)(point)
        normal, down = slope.mT @ slope, slope.mT @ rest
        better = False
        for _ in range(10):
            step = torch.linalg.lstsq(
                normal + damping * torch.diag(normal.diagonal().clamp_min(1e-12)), -down[:, None], driver="gelsd"
            ).solution[:, 0]
            new = residual(point + step)
            if new.square().sum() < rest.square().sum():
                better = True
                break
            damping *= 4
        if not better:
            break
        converged = rest.square().sum() - new.square().sum() <= 1e-9 * rest.square().sum()
        point, rest, damping = point + step, new, damping / 5
        if converged or new.abs().max() < 1e-10:
            break
    return point, rest
