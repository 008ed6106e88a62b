"""What the gradient of a fully connected layer shows of a batch: the span of what entered it, who lies in it, and each member.

M examples with the features H (M, d) and the derivatives D (M, k) of their losses by the layer's output give dW = D^T H / M. Where
D has rank M, the rows of dW and of H span the same space (Kariyappa et al., ICML 2023, section 4; Dimitrov et al., SPEAR, NeurIPS
2024, section 3). So an example whose features lie outside that space is not in the batch, and H = A V^T for the first M right
singular vectors V of dW, which leaves M^2 unknown numbers A for as many equations as the gradients of the layer and of those behind
it have.
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
from leakbench.attack.public import public_of
from leakbench.attack.search.label_counts import label_counts
from leakbench.attack.slots.labels import LastLayer
from leakbench.defense.by_norm import ByNorm
from leakbench.federated.view import Public, View
from leakbench.models import one_hot
from leakbench.models.batch_norm import mixes_examples
from leakbench.separations import Separation
from leakbench.types import Generators, Parameters

__all__ = ["decided", "in_span", "separable", "separated", "spanned"]

MOST, MOST_HIDDEN = 16, 8
"""How many examples of a batch are separated at the last layer and at others: M^2 unknowns are solved for with matrices of as
many rows, and at a layer before others every equation needs a pass through these."""


def spanned(view: View) -> FullyConnected | None:
    """Return the first fully connected layer whose gradient shows the span of the features of a batch; None where none does.

    What leaked has to be made of gradients at one set of weights, or the layer has to read the inputs, which stay the same while
    a client trains. It has no noise, and nothing acted on it but scales of examples, clients or layers. The layer has at least as
    many outputs as there are examples, and more inputs. The derivatives by the outputs of the last layer sum to zero for each
    example, so that it needs one output more.
    """
    known = view.of_gradients and not view.noise and not view.unknown and view.secret is None
    if not known or mixes_examples(view.network.model):
        return None
    if not all(isinstance(transform, ByNorm) for transform in view.stations.before(view.tap).transforms):
        return None
    for layer in fully_connected(view.network, view.shape):
        outputs, inputs = view.network.parameters[f"{layer.name}weight"].shape[-2:]
        shown = view.local_steps == 1 or not layer.names
        if shown and not layer.drawn and view.examples <= outputs - layer.last and view.examples < inputs:
            return layer
    return None


def separable(view: View) -> FullyConnected | None:
    """Return the layer of `spanned` for few enough examples of one local iteration and no defense; None else."""
    plain = view.local_steps == 1 and not view.stations.before(view.tap).transforms and not view.network.draws
    layer = spanned(view) if plain else None
    return layer if layer is not None and view.examples <= (MOST if layer.last else MOST_HIDDEN) else None


def in_span(view: View, layer: FullyConnected, shown: Public, public: Public) -> tuple[Tensor, Tensor]:
    """Score candidates by how far their features lie outside the span that a layer shows.

    Args:
        view: What leaked of V victims.
        layer: A layer of `spanned`.
        shown: The k candidates.
        public: P public examples, none of which is in a batch.

    Returns:
        Minus the logarithm (V, k) of the share of their features' length that lies outside; and (V,) bool, whether the least share
        decides: it is below `CLEAR` times that of all but a hundredth of the public examples. Nothing decides where numbers are not
        finite, as of a model that has diverged. Features without a length, as of a black picture, lie in every span, so that they
        say nothing and count as outside.
    """
    scores, sure = [], []
    alike: tuple[Tensor, Tensor] | None = None
    for lane in range(view.victims):
        view.tick()
        one = view.of(torch.tensor([lane], device=shown.inputs.device))
        behind = _Behind(one, layer)
        seen = behind.seen[behind.weight]
        # Of one network the features are the same for every victim.
        entered, usual = alike or (behind.features(shown.inputs), behind.features(public.inputs))
        alike = (entered, usual) if view.network.shared else None
        if not all(bool(numbers.isfinite().all()) for numbers in (seen, entered, usual)):
            scores.append(seen.new_full((len(entered),), torch.nan))
            sure.append(torch.zeros((), dtype=torch.bool, device=seen.device))
            continue
        basis, least = _basis(seen, view.examples), SHORT * usual.norm(dim=1).median()
        own, others = (_outside(features, basis, least) for features in (entered, usual))
        scores.append(-own.clamp_min(LEAST).log())
        sure.append(own.min() < CLEAR * others.quantile(0.01))
    return torch.stack(scores), torch.stack(sure)


def decided(view: View, shown: Public) -> Tensor:
    """Return (V,) bool, whose batch shows by its span who of the candidates is in it."""
    layer = spanned(view) if view.examples > 1 else None
    if layer is None or view.public is None or not len(view.public.labels):
        return torch.zeros(view.victims, dtype=torch.bool, device=shown.inputs.device)
    return in_span(view, layer, shown, public_of(view, "candidates"))[1]


CLEAR = 0.1
"""By which factor the features of a member lie nearer to the span than those of public examples."""
LEAST = 1e-12
"""Share outside the span below which there is only rounding."""
SHORT = 1e-3
"""Share of the usual length below which features say nothing."""
RANK = 1e-7
"""Share of the first singular value below which another is rounding, so that fewer directions than examples are known."""


def _outside(features: Tensor, basis: Tensor, least: Tensor) -> Tensor:
    """Return the share (n,) of the length of features (n, d) outside the span of orthonormal rows (M, d); 1 below `least`."""
    left, length = features - features @ basis.mT @ basis, features.norm(dim=1)
    return torch.where(length > least, left.norm(dim=1) / length, 1.0)


def _basis(seen: Tensor, many: int) -> Tensor:
    """Return the first right singular vectors (many, d) of a matrix (k, d), orthonormal rows."""
    basis: Tensor = torch.linalg.svd(seen, full_matrices=False)[2][:many]
    return basis


ITERATIONS = 60
"""Steps of Levenberg and Marquardt's method at most."""
EXACT = 1e-3
"""Root of the mean squared residual, in units of what leaked, up to which separated features are taken for right."""
STARTS, FEWER = 8, 2
"""From how many starts the search for one victim begins, with the counted labels and with others."""
LABELS = 20
"""Up to how many possible numbers of examples of each class all are tried."""


def separated(
    view: View, layer: FullyConnected, rngs: Generators, until: Until | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what entered a layer for each of M examples, in ascending order of their labels.

    The M^2 numbers A are found by Levenberg and Marquardt's method, so that the gradients of the layer and of those behind it are
    those that leaked. It starts at public examples in the span; for the last layer first at the D in which all examples have the
    mean probabilities. The labels are those counted in what leaked. Where none of the starts explains what leaked and there are few
    ways to share the examples out over the classes, the others are tried as well.

    Args:
        view: What leaked of V victims.
        layer: A layer of `separable`.
        rngs: Victim v draws its starts from rngs[v].
        until: When the searches have to end, of which each victim has an equal share; None for no limit. A victim that the view
            has a separation of already is not separated again.

    Returns:
        Features (V, M, d) and derivatives (V, M, d) of each example's loss by them, NaN where the equations are missed by more than
        the share `EXACT`; labels (V, M); and (V,) bool, whose search the limit ended before the equations were met.
    """
    like, kept = view.update[f"{layer.name}weight"], view.separations
    ones = [view.of(torch.tensor([lane], device=like.device)) for lane in range(view.victims)]
    keys = ["" if kept is None else _key(one, layer) for one in ones]
    found = {} if kept is None else {lane: kept.kept[key] for lane, key in enumerate(keys) if key in kept.kept}
    missing = [lane for lane in range(view.victims) if lane not in found]
    counted = _counted(view, rngs) if missing else torch.empty(0)
    for place, lane in enumerate(missing):
        before, late = rngs[lane].get_state(), None if until is None else until.share(len(missing) - place)
        found[lane] = _separated(_Behind(ones[lane], layer), counted[lane], rngs[lane], late)
        if kept is not None:
            kept.keep(keys[lane], found[lane], drew=not torch.equal(before, rngs[lane].get_state()))
    each = [found[lane] for lane in range(view.victims)]
    entered, cotangents = (torch.stack([getattr(one, n) for one in each]).to(like) for n in ("entered", "cotangents"))
    cut = torch.tensor([one.cut for one in each], device=like.device)
    return entered, cotangents, torch.stack([one.labels for one in each]), cut


def _key(one: View, layer: FullyConnected) -> str:
    """Return the hash of what is separated: the layer, and what leaked of one victim at its network."""
    digest = hashlib.sha256(layer.name.encode())
    own = {} if one.network.shared else one.network.parameters
    for name, tensor in (*own.items(), *one.update.items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _counted(view: View, rngs: Generators) -> Tensor:
    """Return the labels (V, M) in ascending order, by public examples where there are any."""
    if view.public is None or not len(view.public.labels):
        return LastLayer()(view, rngs).targets.argmax(-1)
    counts = label_counts(view, rngs)
    classes = torch.arange(view.classes, device=counts.device).expand_as(counts)
    return classes.flatten().repeat_interleave(counts.flatten()).reshape(len(counts), view.examples)


def _separated(behind: _Behind, counted: Tensor, rng: torch.Generator, late: Until | None) -> Separation:
    """Return the separation of one victim's batch."""
    seen = behind.seen[behind.weight]
    unread = seen.new_full((behind.examples, seen.shape[1]), torch.nan)
    none, over = Separation(unread, unread, counted), late or _never
    if not all(bool(g.isfinite().all()) for g in behind.seen.values()) or not seen.any():
        return none
    if over():
        return replace(none, cut=True)
    sizes, basis = behind.directions(behind.weight)
    if sizes[behind.examples - 1] <= RANK * sizes[0]:  # As of two equal examples: their sum is all that shows.
        return none
    best = (torch.inf, unread, counted)
    for labels in _assignments(counted, behind.view.classes):
        if over():
            break
        residual = behind.residual(basis, labels)
        for start in islice(behind.starts(basis, labels, rng), STARTS if labels is counted else FEWER):
            a, rest = _least_squares(residual, start.flatten(), over)
            missed = float(rest.square().mean().sqrt())
            # Two starts that end at the same small residual show where what leaked was rounded.
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
    """Yield labels (M,) in ascending order: first the counted ones, then all others if there are few, the likest first."""
    yield counted
    if comb(classes + len(counted) - 1, len(counted)) > LABELS:
        return
    every = combinations_with_replacement(range(classes), len(counted))
    ways = [torch.tensor(way, device=counted.device) for way in every]
    for way in sorted(ways, key=lambda way: int((way - counted).abs().sum())):
        if not torch.equal(way, counted):
            yield way


class _Behind:
    """The layers from a fully connected layer on, of one victim's network, in double precision."""

    def __init__(self, view: View, layer: FullyConnected) -> None:
        network = view.network
        self.view, self.layer, self.examples = view, layer, view.examples
        self.model, self.weight = network.model, f"{layer.name}weight"
        lanes = {n: p if network.shared else p[0] for n, p in network.parameters.items()}
        self.tensors = {
            n: t.double() if t.is_floating_point() else t for n, t in {**network.statistics, **lanes}.items()
        }
        self.zero = next(iter(self.tensors.values())).new_zeros(view.examples, *view.shape, dtype=torch.float64)
        # No loss depends on what does not stand behind the layer.
        self.seen = {n: view.examples * u[0].double() for n, u in view.update.items() if n not in layer.names}
        self._directions: dict[str, tuple[Tensor, Tensor]] = {}

    def directions(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the singular values of a gradient and its first M right singular vectors, which take long and are kept."""
        if name not in self._directions:
            _, sizes, vectors = torch.linalg.svd(self.seen[name], full_matrices=False)
            self._directions[name] = sizes, vectors[: self.examples]
        return self._directions[name]

    def features(self, inputs: Tensor) -> Tensor:
        """Return what enters the layer (n, d) for inputs (n, *s)."""
        entered: list[Tensor] = []
        self._run(inputs.double(), {}, entered.append)
        return entered[0]

    def residual(self, basis: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function of A, flat (M^2,), that tells how far the gradients of H = A V^T are from what leaked.

        Of each tensor in units of its root mean square. Of a matrix only the part in the span of its own first M right singular
        vectors, since nothing of what leaked lies outside, and larger ones would not fit into memory.
        """
        onto = {n: self.directions(n)[1] for n, g in self.seen.items() if g.dim() == 2}
        aims = {n: g @ onto[n].mT if n in onto else g for n, g in self.seen.items()}
        scales = {n: aim.square().mean().sqrt() for n, aim in aims.items()}

        def apart(a: Tensor) -> Tensor:
            self.view.tick()
            gradients = grad(self._loss)({n: self.tensors[n] for n in aims}, a.reshape(len(basis), -1) @ basis, labels)
            guesses = ((n, gradients[n] @ onto[n].mT if n in onto else gradients[n]) for n in aims if scales[n] > 0)
            return torch.cat([((guess - aims[n]) / scales[n]).flatten() for n, guess in guesses])

        return apart

    def starts(self, basis: Tensor, labels: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
        """Yield the A (M, M) at which searches begin, without an end where there are public examples."""
        if self.layer.last:
            targets = one_hot(labels, self.view.classes).to(basis)
            bias = self.seen.get(f"{self.layer.name}bias")
            sums = targets.sum(0)
            mean = (bias + sums) / len(labels) if bias is not None else torch.full_like(sums, 1 / len(sums))
            yield torch.linalg.lstsq((mean - targets).mT, self.seen[self.weight] @ basis.mT, driver="gelsd").solution
        if self.view.public is None or not len(self.view.public.labels):
            return
        known = self.view.public.labels
        while True:
            order = torch.randperm(len(known), generator=rng)
            # Of each class as many as are wanted, others where there are not enough.
            rank = [order[(known[order] == label).nonzero()[:, 0]] for label in labels.tolist()]
            taken: dict[int, int] = {}
            picks = []
            for place, (label, own) in enumerate(zip(labels.tolist(), rank, strict=True)):
                number = taken.get(label, 0)
                taken[label] = number + 1
                picks.append(own[number % len(own)] if len(own) else order[place % len(order)])
            yield self.features(self.view.public.inputs[torch.stack(picks)]) @ basis.mT

    def cotangents(self, entered: Tensor, labels: Tensor) -> Tensor:
        """Return the derivatives (M, d) of each example's loss by what enters the layer."""
        answer: Tensor = grad(self._loss, argnums=1)({}, entered, labels)
        return answer

    def _loss(self, own: Parameters, entered: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the examples' losses."""
        logits = self._run(self.zero, own, lambda _: entered)
        return -logits.log_softmax(-1).gather(1, labels[:, None]).sum()

    def _run(self, inputs: Tensor, own: Parameters, seen: Callable[[Tensor], Tensor | None]) -> Tensor:
        """Run the network; `seen` is called with what enters the layer, and may return something else to enter."""

        def hook(module: torch.nn.Module, entered: tuple[Tensor, ...]) -> tuple[Tensor] | None:
            other = seen(entered[0])
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
    """Return the point (n,) of least |residual|^2 near a start, and the residual there, by Levenberg and Marquardt's method.

    Args:
        over: Whether no further iteration may begin.
    """
    point, rest, damping = start, residual(start), 1e-3
    for _ in range(ITERATIONS):
        if over():
            break
        with warnings.catch_warnings():
            # PyTorch scripts parts of its own forward mode when it is first used.
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)
            slope: Tensor = jacfwd(residual)(point)
        normal, down = slope.mT @ slope, slope.mT @ rest
        better = False
        for _ in range(10):
            damped = normal + damping * torch.diag(normal.diagonal().clamp_min(1e-12))
            # A singular matrix gives no number, which is no better.
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
