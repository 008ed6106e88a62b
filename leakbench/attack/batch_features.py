"""Batches in the gradient of a fully connected layer: the span of the layer's inputs, its members, and each member's input.

M examples with features H (M, d) and derivatives D (M, k) of their losses by the layer's output give dW = D^T H / M. If D has
rank M, the rows of dW and of H span the same space (Kariyappa et al., ICML 2023, section 4; Dimitrov et al., SPEAR, NeurIPS 2024,
section 3). So an example with features outside that space is not in the batch. For the first M right singular vectors V of dW,
H = A V^T. The M^2 unknown numbers A solve the equations given by the gradients of the layer and of those after it.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, islice
from math import comb

import torch
from torch import Tensor
from torch.func import functional_call, grad, jacfwd

from leakbench.attack.clock import Until
from leakbench.attack.front import FullyConnected, fully_connected
from leakbench.attack.public import has_public, public_of
from leakbench.attack.slots.labels import LastLayer, LastLayerCounts
from leakbench.core.types import Generators, Parameters
from leakbench.defense.by_norm import ByNorm
from leakbench.federated.separations import Separation
from leakbench.federated.view import Public, View
from leakbench.models import one_hot
from leakbench.models.batch_norm import mixes_examples
from leakbench.models.copies import in_double
from leakbench.models.layers import classifier_of

__all__ = ["decided", "in_span", "separable", "separated", "spanned"]

MOST, MOST_HIDDEN = 16, 8
"""Largest numbers of examples that are separated at the last layer and at other layers. M^2 unknowns need matrices with as many
rows. At other layers, every equation also needs a pass through the layers that follow."""


def spanned(view: View) -> FullyConnected | None:
    """Return the first fully connected layer whose gradient shows the span of the features of a batch.

    The update must consist of gradients without noise, and the defense may only scale examples, clients or layers. The layer must
    have at least as many outputs as there are examples, and more inputs. The last layer needs one more output, since the
    derivatives by its outputs sum to zero for each example.

    In an update of several local steps, the span holds the features of each step at the weights of that step. Those of the first
    step are at the sent weights, which the attacker knows, so that the span shows the examples of the first step. It shows
    all examples if no trained layer is before it, since its inputs then stay the same while a client trains, in every epoch.

    Returns:
        None if no layer qualifies.
    """
    known = view.of_gradients and not view.noise and not view.unknown and view.secret is None
    if not known or mixes_examples(view.network.model):
        return None
    if not all(isinstance(transform, ByNorm) for transform in view.stations.before(view.tap).transforms):
        return None
    for layer in fully_connected(view.network, view.shape):
        outputs, inputs = view.network.parameters[f"{layer.name}weight"].shape[-2:]
        many = _largest_rank(view, layer)
        if not layer.drawn and many <= outputs - layer.last and many < inputs:
            return layer
    return None


def _largest_rank(view: View, layer: FullyConnected) -> int:
    """Return the largest rank of the inputs of a layer in an update: the number of uses of examples at different weights."""
    uses = 1 if view.tap == "type-2" else view.cohort * view.local_steps * view.batch
    return uses if layer.names else uses // view.epochs


def separable(view: View) -> FullyConnected | None:
    """Return the layer of `spanned` if it can be separated; else None.

    It needs few examples, whose labels a classifier shows, one local iteration and no defense.
    """
    plain = view.local_steps == 1 and not view.stations.before(view.tap).transforms and not view.network.draws
    layer = spanned(view) if plain else None
    if classifier_of(view.network.model, view.shape, view.update) is None:  # The labels of the members are unknown.
        return None
    return layer if layer is not None and view.examples <= (MOST if layer.last else MOST_HIDDEN) else None


def in_span(view: View, layer: FullyConnected, candidates: Public, public: Public) -> tuple[Tensor, Tensor]:
    """Score candidates by the share of their features outside the span that a layer shows.

    Features of length zero, such as those of a black image, are in every span. They say nothing and count as outside.

    Args:
        view: The view of V victims.
        layer: A layer that `spanned` returned.
        candidates: The k candidates.
        public: P public examples that are not in a batch.

    Returns:
        Minus the logarithm (V, k) of the share of the features' length outside the span; and (V,) bool, whether the smallest
        share decides: if it is below `CLEAR` times the 1 % quantile of the public examples' shares. It does not decide if numbers
        are not finite, because the model has diverged.
    """
    scores, sure = [], []
    alike: tuple[Tensor, Tensor] | None = None
    for lane in range(view.victims):
        view.tick()
        one = view.of(torch.tensor([lane], device=candidates.inputs.device))
        behind = _Behind(one, layer)
        observed = behind.observed[behind.weight]
        # The victims of one network have the same features.
        entered, usual = alike or (behind.features(candidates.inputs), behind.features(public.inputs))
        alike = (entered, usual) if view.network.shared else None
        if not all(bool(numbers.isfinite().all()) for numbers in (observed, entered, usual)):
            scores.append(observed.new_full((len(entered),), torch.nan))
            sure.append(torch.zeros((), dtype=torch.bool, device=observed.device))
            continue
        basis, least = _basis(observed, _largest_rank(view, layer)), SHORT * usual.norm(dim=1).median()
        own, others = (_outside(features, basis, least) for features in (entered, usual))
        scores.append(-own.clamp_min(LEAST).log())
        sure.append(own.min() < CLEAR * others.quantile(0.01))
    return torch.stack(scores), torch.stack(sure)


def decided(view: View, candidates: Public) -> Tensor:
    """Return (V,) bool, whether the span of a victim's batch shows which candidates are in it."""
    layer = spanned(view) if view.examples > 1 else None
    if layer is None or not has_public(view):
        return torch.zeros(view.victims, dtype=torch.bool, device=candidates.inputs.device)
    return in_span(view, layer, candidates, public_of(view, "candidates"))[1]


CLEAR = 0.1
"""Largest quotient of a member's share outside the span and that of public examples."""
LEAST = 1e-12
"""Share outside the span below which it consists of rounding errors."""
SHORT = 1e-3
"""Length, as a share of the median, below which features say nothing."""
RANK = 1e-7
"""A singular value below this share of the first is a rounding error, so that fewer directions than examples are known."""


def _outside(features: Tensor, basis: Tensor, least: Tensor) -> Tensor:
    """Return the share (n,) of features' length (n, d) outside the span of orthonormal rows (M, d); 1 for lengths up to `least`."""
    left, length = features - features @ basis.mT @ basis, features.norm(dim=1)
    return torch.where(length > least, left.norm(dim=1) / length, 1.0)


def _basis(gradient: Tensor, many: int) -> Tensor:
    """Return the first right singular vectors (many, d) of a matrix (k, d) as orthonormal rows."""
    basis: Tensor = torch.linalg.svd(gradient, full_matrices=False)[2][:many]
    return basis


ITERATIONS = 60
"""Largest number of steps of Levenberg and Marquardt's method."""
EXACT = 1e-3
"""Largest root mean square residual, in units of the observed gradients, at which separated features are accepted."""
STARTS, FEWER = 8, 2
"""Number of starts of the search for one victim, with the counted labels and with other labels."""
LABELS = 20
"""Largest number of ways to distribute the examples over the classes at which all of them are tried."""


def separated(
    view: View, layer: FullyConnected, rngs: Generators, until: Until | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the inputs of a layer for each of M examples, in ascending order of their labels.

    Levenberg and Marquardt's method finds the M^2 numbers A for which the gradients of the layer and of those after it equal the
    observed ones. It starts at public examples in the span. For the last layer, it first starts at the D in which all examples
    have the mean probabilities. The labels are counted (`label_counts`). If no start explains the observed gradients and there
    are few ways to distribute the examples over the classes, the other ways are tried as well.

    Args:
        view: The view of V victims.
        layer: A layer that `separable` returned.
        rngs: Victim v draws its starts from rngs[v].
        until: When the searches must end; each victim gets an equal share of the time. None for no limit. A victim whose
            separation the view already contains is not separated again.

    Returns:
        Features (V, M, d) and derivatives (V, M, d) of each example's loss by them, NaN if the residual is above `EXACT`; labels
        (V, M); and (V,) bool, whether the limit ended the search before the equations were solved.
    """
    like, cache = view.update[f"{layer.name}weight"], view.separations
    ones = [view.of(torch.tensor([lane], device=like.device)) for lane in range(view.victims)]
    keys = ["" if cache is None else _key(one, layer) for one in ones]
    separations = {} if cache is None else {lane: cache.kept[key] for lane, key in enumerate(keys) if key in cache.kept}
    missing = [lane for lane in range(view.victims) if lane not in separations]
    counted = _counted(view, rngs) if missing else torch.empty(0)
    for place, lane in enumerate(missing):
        before, late = rngs[lane].get_state(), None if until is None else until.share(len(missing) - place)
        separations[lane] = _separated(_Behind(ones[lane], layer), counted[lane], rngs[lane], late)
        if cache is not None:
            cache.keep(keys[lane], separations[lane], drew=not torch.equal(before, rngs[lane].get_state()))
    each = [separations[lane] for lane in range(view.victims)]
    entered, cotangents = (torch.stack([getattr(one, n) for one in each]).to(like) for n in ("entered", "cotangents"))
    cut = torch.tensor([one.cut for one in each], device=like.device)
    return entered, cotangents, torch.stack([one.labels for one in each]), cut


def _key(one: View, layer: FullyConnected) -> str:
    """Return a hash of what a separation depends on: the layer, and the network and update of one victim."""
    digest = hashlib.sha256(layer.name.encode())
    own = {} if one.network.shared else one.network.parameters
    for name, tensor in (*own.items(), *one.update.items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _counted(view: View, rngs: Generators) -> Tensor:
    """Return the labels (V, M) in ascending order, with public examples if there are any."""
    return (LastLayerCounts() if has_public(view) else LastLayer())(view, rngs).targets.argmax(-1)


def _separated(behind: _Behind, counted: Tensor, rng: torch.Generator, late: Until | None) -> Separation:
    """Return the separation of one victim's batch."""
    observed = behind.observed[behind.weight]
    unread = observed.new_full((behind.examples, observed.shape[1]), torch.nan)
    none, over = Separation(unread, unread, counted), late or _never
    if not all(bool(g.isfinite().all()) for g in behind.observed.values()) or not observed.any():
        return none
    if over():
        return replace(none, cut=True)
    sizes, basis = behind.directions(behind.weight)
    if sizes[behind.examples - 1] <= RANK * sizes[0]:  # For example, only the sum of two equal examples is known.
        return none
    best = (torch.inf, unread, counted)
    for labels in _assignments(counted, behind.view.classes):
        if over():
            break
        residual = behind.residual(basis, labels)
        for start in islice(behind.starts(basis, labels, rng), STARTS if labels is counted else FEWER):
            a, rest = _least_squares(residual, start.flatten(), over)
            missed = float(rest.square().mean().sqrt())
            # Two starts that end at the same small residual show the size of the rounding errors in the observed gradients.
            again = missed <= EXACT and abs(missed - best[0]) <= 0.01 * missed
            if missed < best[0]:
                best = (missed, a.reshape(start.shape) @ basis, labels)
            if again or missed <= EXACT / 100 or over():
                break
        if best[0] <= EXACT:
            break
    missed, entered, labels = best
    solved = missed <= EXACT
    if not solved:
        entered = torch.full_like(entered, torch.nan)
    return Separation(entered, behind.cotangents(entered, labels), labels, cut=not solved and over())


def _never() -> bool:
    return False


def _assignments(counted: Tensor, classes: int) -> Iterator[Tensor]:
    """Yield labels (M,) in ascending order: first the counted ones, then all others, the most similar first, if there are few."""
    yield counted
    if comb(classes + len(counted) - 1, len(counted)) > LABELS:
        return
    every = combinations_with_replacement(range(classes), len(counted))
    ways = [torch.tensor(way, device=counted.device) for way in every]
    for way in sorted(ways, key=lambda way: int((way - counted).abs().sum())):
        if not torch.equal(way, counted):
            yield way


class _Behind:
    """A fully connected layer and those after it, in one victim's network, in double precision."""

    def __init__(self, view: View, layer: FullyConnected) -> None:
        network = view.network
        self.view, self.layer, self.examples = view, layer, view.examples
        self.weight = f"{layer.name}weight"
        lanes = {n: p if network.shared else p[0] for n, p in network.parameters.items()}
        self.tensors = {
            n: t.double() if t.is_floating_point() else t
            for n, t in {**network.frozen, **network.statistics, **lanes}.items()
        }
        self.model = in_double(network.model, self.tensors)
        self.zero = next(iter(self.tensors.values())).new_zeros(view.examples, *view.shape, dtype=torch.float64)
        # The loss as a function of the layer's inputs does not depend on the layers before it.
        self.observed = {n: view.examples * u[0].double() for n, u in view.update.items() if n not in layer.names}
        self._directions: dict[str, tuple[Tensor, Tensor]] = {}

    def directions(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the singular values of a gradient and its first M right singular vectors; cached, since they take long."""
        if name not in self._directions:
            _, sizes, vectors = torch.linalg.svd(self.observed[name], full_matrices=False)
            self._directions[name] = sizes, vectors[: self.examples]
        return self._directions[name]

    def features(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the layer (n, d) for inputs (n, *s) of the network."""
        entered: list[Tensor] = []
        self._run(inputs.double(), {}, entered.append)
        return entered[0]

    def residual(self, basis: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function of A, flat (M^2,), that computes the difference of the gradients of H = A V^T from the observed ones.

        Each tensor is in units of its root mean square. A matrix is projected on the span of its first M right singular vectors:
        the observed gradient has nothing outside, and larger matrices would not fit into memory.
        """
        onto = {n: self.directions(n)[1] for n, g in self.observed.items() if g.dim() == 2}
        aims = {n: g @ onto[n].mT if n in onto else g for n, g in self.observed.items()}
        scales = {n: aim.square().mean().sqrt() for n, aim in aims.items()}

        def apart(a: Tensor) -> Tensor:
            self.view.tick()
            gradients = grad(self._loss)({n: self.tensors[n] for n in aims}, a.reshape(len(basis), -1) @ basis, labels)
            guesses = ((n, gradients[n] @ onto[n].mT if n in onto else gradients[n]) for n in aims if scales[n] > 0)
            return torch.cat([((guess - aims[n]) / scales[n]).flatten() for n, guess in guesses])

        return apart

    def starts(self, basis: Tensor, labels: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
        """Yield the starting points A (M, M) of the search; without end if there are public examples."""
        if self.layer.last:
            targets = one_hot(labels, self.view.classes).to(basis)
            bias = self.observed.get(f"{self.layer.name}bias")
            sums = targets.sum(0)
            mean = (bias + sums) / len(labels) if bias is not None else torch.full_like(sums, 1 / len(sums))
            yield torch.linalg.lstsq(
                (mean - targets).mT, self.observed[self.weight] @ basis.mT, driver="gelsd"
            ).solution
        if self.view.public is None or not has_public(self.view):
            return
        known = self.view.public.labels
        while True:
            order = torch.randperm(len(known), generator=rng)
            # Each class gets as many examples as it needs; if it has none, others take their place.
            rank = [order[(known[order] == label).nonzero()[:, 0]] for label in labels.tolist()]
            taken: dict[int, int] = {}
            picks = []
            for place, (label, own) in enumerate(zip(labels.tolist(), rank, strict=True)):
                number = taken.get(label, 0)
                taken[label] = number + 1
                picks.append(own[number % len(own)] if len(own) else order[place % len(order)])
            yield self.features(self.view.public.inputs[torch.stack(picks)]) @ basis.mT

    def cotangents(self, entered: Tensor, labels: Tensor) -> Tensor:
        """Return the derivatives (M, d) of each example's loss by the inputs of the layer."""
        answer: Tensor = grad(self._loss, argnums=1)({}, entered, labels)
        return answer

    def _loss(self, own: Parameters, entered: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the examples' losses."""
        logits = self._run(self.zero, own, lambda _: entered)
        return -logits.log_softmax(-1).gather(1, labels[:, None]).sum()

    def _run(self, inputs: Tensor, own: Parameters, visit: Callable[[Tensor], Tensor | None]) -> Tensor:
        """Run the network; `visit` gets the inputs of the layer and may return others in their place."""

        def hook(module: torch.nn.Module, entered: tuple[Tensor, ...]) -> tuple[Tensor] | None:
            other = visit(entered[0])
            return None if other is None else (other,)

        handle = self.model.get_submodule(self.layer.name.removesuffix(".")).register_forward_pre_hook(hook)
        try:
            logits: Tensor = functional_call(self.model, {**self.tensors, **own}, (inputs,))
            return logits
        finally:
            handle.remove()


def _least_squares(
    residual: Callable[[Tensor], Tensor], start: Tensor, over: Callable[[], bool]
) -> tuple[Tensor, Tensor]:
    """Return the point (n,) with the least |residual|^2 near a start, and the residual there, by Levenberg and Marquardt's method.

    Args:
        residual: (n,) -> residuals.
        start: (n,).
        over: Whether no further iteration may start.
    """
    point, rest, damping = start, residual(start), 1e-3
    for _ in range(ITERATIONS):
        if over():
            break
        with warnings.catch_warnings():
            # PyTorch scripts parts of its forward mode on first use.
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)
            slope: Tensor = jacfwd(residual)(point)
        normal, down = slope.mT @ slope, slope.mT @ rest
        better = False
        for _ in range(10):
            damped = normal + damping * torch.diag(normal.diagonal().clamp_min(1e-12))
            # A singular matrix gives NaN, which counts as not better.

            step = torch.linalg.solve_ex(damped, -down)[0]
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
