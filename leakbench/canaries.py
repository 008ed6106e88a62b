"""The audit of any training loop with canaries: each is included with probability 1/2, and its score guesses whether it was.

The bounds are those of `leakbench.auditing.one_run` (Steinke, Nasr and Jagielski, NeurIPS 2023, arXiv:2305.08846). The canaries are
gradients, which the loop clips and sums with those of its examples, or examples, which the loop trains on. In both cases the loop
must give a unit that is left out the same treatment as one that was never there.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leakbench.auditing.bounds import CONFIDENCE, Reals
from leakbench.auditing.one_run import OneRun, audit_one_run, default_choices, family_start
from leakbench.core.errors import InputError, check_file
from leakbench.core.imported import reason_of
from leakbench.core.rng import generator
from leakbench.core.typed import typed_arguments
from leakbench.core.types import Parameters, plain_tensor, without_wrapper
from leakbench.core.untrusted import bounded_text, said
from leakbench.core.words import epsilon_text
from leakbench.core.working_copy import working_copies
from leakbench.federated.canaries import Canaries, draw_canaries, inclusion
from leakbench.privacy.mechanism import Mechanism

__all__ = [
    "ExampleCanaries",
    "GradientCanaries",
    "TrainingAudit",
    "audit",
    "examples",
    "gradients",
    "read_scores",
]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs (B, ...), labels (B,)) -> losses (B,)."""

CROSS_ENTROPY: Loss = partial(nn.functional.cross_entropy, reduction="none")

FEWEST = 10
"""Least number of canaries."""

MOST = 10_000_000
"""Largest number of canary gradients, which take 17 bytes in each tensor that has a coordinate for each."""

LEAST_CONFIDENCE = 0.875
"""Smallest confidence of an audit."""

UNLIKELY = 1e-9
"""Probability of a number of included canaries below which they were not included with probability 1/2."""

NORM = 100.0
"""Default norm of a canary's gradient in each tensor."""

LARGEST = 1e30
"""Largest score of one release. A diverged training has infinite ones."""

MOST_BYTES = 200_000_000
"""Largest file of scores."""


@dataclass(frozen=True)
class TrainingAudit:
    """The audit of a training, compared with a claimed epsilon.

    Args:
        audit: The lower bounds of the training's epsilon.
        claimed: The claimed epsilon at the same delta; None without a claim.
    """

    audit: OneRun
    claimed: float | None

    @property
    def lower_bound(self) -> float:
        """The larger of the two lower bounds; both hold together at the audit's confidence."""
        return max(self.audit.lower_bound, self.audit.lower_bound_family or 0.0)

    @property
    def verdict(self) -> Literal["holds", "violated", "no claim"]:
        """Whether the lower bound exceeds the claimed epsilon."""
        if self.claimed is None:
            return "no claim"
        return "violated" if self.lower_bound > self.claimed else "holds"

    @property
    def reason(self) -> str:
        """The reason of the verdict."""
        if self.claimed is None:
            return "no epsilon to compare with was given"
        how = "more" if self.verdict == "violated" else "not more"
        return f"the audited lower bound {self.lower_bound:.4g} is {how} than the claimed {epsilon_text(self.claimed, '.4g')}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**self.audit.as_dict(), "claimed": self.claimed, "verdict": self.verdict, "reason": self.reason}

    def __str__(self) -> str:
        """Return the text that `leakbench audit --scores` prints."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        yield f"verdict: {self.verdict}: {self.reason}"
        yield from (f"  {line}" for line in self.audit.lines())


@typed_arguments
def audit(
    scores: Reals | Tensor | Sequence[float],
    included: Any,
    *,
    claimed: float | None = None,
    delta: float = 1e-5,
    unit: str = "example",
    family: Mechanism | None = None,
    confidence: float = CONFIDENCE,
) -> TrainingAudit:
    """Audit a training from the scores of its canaries.

    Equal scores are ranked at random, since the order of the canaries may depend on their inclusion.

    Args:
        scores: (m,), the score of each canary; high scores suggest its inclusion.
        included: (m,), bool, drawn independently with probability 1/2.
        claimed: Epsilon to compare with, at `delta`, for a unit that is added or removed.
        delta: Delta of the epsilons, in (0, 1).
        unit: What a canary is, such as `example` or `client`.
        family: The training as Gaussian noise on a sum, with its rate and steps, for a second bound in this family. The noise is
            unknown; the multiplier is where the search starts. None for the bound without assumptions only.
        confidence: In [0.875, 1).

    Returns:
        The lower bounds and the verdict.

    Raises:
        InputError: For a value outside its range, too few canaries, or a number of included ones that is not possible for draws
            with probability 1/2.
    """
    try:
        scores, included = (
            plain_tensor("canaries", name, each).cpu() if isinstance(each, Tensor | np.ndarray) else each
            for name, each in (("scores", scores), ("included", included))
        )
        scores, included = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"scores: got values that are not numbers ({error}), expected a score and an inclusion for each canary"
        ) from None
    if not np.isin(included, (0, 1)).all():
        raise InputError("included: got numbers other than 0 and 1, expected whether the training included each canary")
    included = included.astype(bool)
    count = len(included) if included.ndim == 1 else 0
    if count < FEWEST:
        raise InputError(f"canaries: got shape {included.shape}, expected at least {FEWEST}; 1000 find more")
    if claimed is not None and not 0 <= claimed < math.inf:
        raise InputError(f"claimed: got {claimed}, expected a finite epsilon of at least 0")
    if not LEAST_CONFIDENCE <= confidence < 1:
        raise InputError(f"confidence: got {confidence}, expected a number in [{LEAST_CONFIDENCE}, 1)")
    if stats.binomtest(int(included.sum()), count, 0.5).pvalue < UNLIKELY:
        raise InputError(
            f"included: got {int(included.sum())} of {count} canaries, expected about half; include each with probability 1/2"
        )
    if scores.shape != included.shape:
        raise InputError(f"scores: got shape {scores.shape}, expected {included.shape}, a score for each canary")
    order = np.random.default_rng(0).permutation(count)
    found = audit_one_run(scores[order], included[order], delta, unit, default_choices(count), family, confidence)
    return TrainingAudit(found, claimed)


@dataclass
class GradientCanaries:
    """Canary gradients of a training, and their scores so far.

    Call `join` once in each step, on the gradients of single examples before the clip, and `score` on what the step released.

    Args:
        directions: The canaries, with one coordinate of each tensor.
        rate: Probability, in (0, 1], that a step uses an included canary; that of the examples.
        steps: Number of steps so far.
        scores: (m,), the sums over the releases so far of the inner products with the canaries' directions of length 1.
        releases: Number of releases so far.
        probed: Number of them that `leakbench.probe` scored.
        moved: Names of the parameters that moved in the step that the probe scored last.
        lost: Number of releases in which a canary's place is not finite.
    """

    directions: Canaries
    rate: float
    steps: int = 0
    scores: Tensor = field(default_factory=lambda: torch.zeros(0))
    releases: int = 0
    probed: int = 0
    moved: set[str] = field(default_factory=set)
    lost: int = 0

    def __post_init__(self) -> None:
        self.scores = torch.zeros(len(self.directions.included), dtype=torch.float64)

    @property
    def included(self) -> Tensor:
        """(m,), bool, whether the training includes each canary."""
        return self.directions.included

    @typed_arguments
    def join(self, grads: Mapping[str, Tensor]) -> Parameters:
        """Return the gradients of a step's examples and, after them, of the canaries that the step uses.

        Args:
            grads: {p: (B, *p)}, the gradient of each example before the clip; B may be 0. None, of a parameter that is not
                trained, is left out.

        Returns:
            {p: (B + c, *p)}. Clip each of the B + c, sum them, add the noise, and divide by the same number as before.

        Raises:
            InputError: For parameters of other names or shapes than those of the canaries.
        """
        given = {n: plain_tensor("canaries", n, g) for n, g in grads.items() if g is not None}
        counts = {n: len(g) for n, g in given.items() if g.dim()}
        if len(set(counts.values())) > 1:
            raise InputError(f"canaries: got {counts}, expected a gradient of each example for each parameter")
        if whole := next((n for n, g in given.items() if not g.is_floating_point()), None):
            raise InputError(f"canaries: {whole!r} has numbers of type {given[whole].dtype}, expected floating ones")
        rng = generator(self.directions.seed, "canary participation", self.steps)
        uses = torch.rand(len(self.included), generator=rng) < self.rate
        ids = (uses & self.included).nonzero()[:, 0]
        own = self.updates(ids, {n: g.new_zeros(g.shape[1:]) for n, g in given.items()})
        self.steps += 1
        return {n: torch.cat([g, own[n]]) for n, g in given.items()}

    def updates(self, ids: Tensor, like: Mapping[str, Tensor]) -> Parameters:
        """Return the gradients {p: (n, *p)} of some canaries, with the types and devices of {p: (*p)}.

        Raises:
            InputError: For parameters of other names or shapes than those of the canaries.
        """
        names = self._names({n: tuple(p.shape) for n, p in like.items()})
        found = self.directions.updates(ids, {names[n]: p for n, p in like.items()})
        return {n: found[names[n]][:, 0] for n in like}

    @typed_arguments
    def score(self, released: Mapping[str, Tensor], known: Mapping[str, Tensor] | None = None) -> None:
        """Add a release to the scores.

        Args:
            released: {p: (*p)}, the noisy sum or mean of a step's gradients. For an observer of models, the weights before minus
                the weights after a step, or after the whole training.
            known: {p: (*p)}, the part of it that the clipped gradients of the examples are, without canaries and noise, for a
                larger bound: an epsilon also holds against an attacker that knows all other examples. None for an attacker
                that does not; in small networks, the examples hide most canaries from it. It may not depend on the canaries
                of the step: a clip that adapts to them shows them.

        Raises:
            InputError: For parameters of other names or shapes than those of the canaries.
        """
        products = self._products(released)
        if known is not None:
            products -= self._products(known)
        # A training without a clip diverges. Its last releases say nothing, and the ones before show the canaries.
        self.scores = self.scores + torch.nan_to_num(products, nan=0.0).clamp(-LARGEST, LARGEST)
        self.releases += 1
        self.lost += not bool(products.isfinite().all())

    def started(self, model: nn.Module) -> None:
        """Check the names and shapes of a model's parameters, for `leakbench.probe`."""
        self._names({n: tuple(p.shape) for n, p in model.named_parameters()})
        self.moved = set()

    def stepped(self, model: nn.Module, moved: Collection[str]) -> None:
        """Add a step of a probed training to the scores: the gradients that its optimizer used.

        An optimizer of parameters that did not move yet belongs to the same step.

        Args:
            model: The model.
            moved: Names of the parameters of the optimizer.
        """
        again = bool(self.moved) and self.moved.isdisjoint(moved)
        self.moved = self.moved.union(moved) if again else set(moved)
        # Another optimizer's gradients may be old ones, which it scored or has yet to use.
        parameters = dict(model.named_parameters())
        self.score(
            {n: torch.zeros_like(p) if p.grad is None or n not in moved else p.grad for n, p in parameters.items()}
        )
        self.releases -= again
        self.probed += not again

    def ended(self, model: nn.Module) -> None:
        """Check that the canaries took part in the probed training.

        Raises:
            InputError: If `join` was not called in each step.
        """
        self._check_joined()

    def _check_joined(self) -> None:
        if self.probed > self.steps:
            raise InputError(
                f"canaries: the training {'did not always call' if self.steps else 'never called'} join, got {self.probed} steps "
                f"and {self.steps} calls; expected canaries.join(grads) in each step"
            )

    @typed_arguments
    def audit(
        self,
        claimed: float | None = None,
        *,
        delta: float = 1e-5,
        unit: str = "example",
        gaussian: bool = False,
        confidence: float = CONFIDENCE,
    ) -> TrainingAudit:
        """Audit the training so far.

        Args:
            claimed: Epsilon to compare with, at `delta`, for a unit that is added or removed.
            delta: Delta of the epsilons, in (0, 1).
            unit: What a canary is.
            gaussian: Whether to assume Gaussian noise on the sum of each step, for a second, larger bound.
            confidence: In [0.875, 1).

        Raises:
            InputError: Before the first release, for a probed training that did not call `join` in each step, and for a value
                outside its range.
        """
        if not self.releases:
            raise InputError("canaries: got no release, expected score(released) in each step")
        self._check_joined()
        if gaussian and not self.steps and self.rate < 1:
            raise InputError("gaussian: got True, but the number of steps is not known without `join`; expected False")
        if self.lost:
            warnings.warn(
                f"canaries: {self.lost} of {self.releases} releases were not finite; NaN says nothing about a canary, so that the"
                " bound may be too small",
                stacklevel=3,
            )
        steps = max(1, self.steps)
        family = Mechanism(family_start(self.rate, steps), self.rate, steps) if gaussian else None
        return audit(
            self.scores.numpy(),
            self.included.numpy(),
            claimed=claimed,
            delta=delta,
            unit=unit,
            family=family,
            confidence=confidence,
        )

    def _products(self, released: Mapping[str, Tensor]) -> Tensor:
        arrays = {n: plain_tensor("canaries", n, r) for n, r in released.items() if r is not None}
        names = self._names({n: tuple(r.shape) for n, r in arrays.items()})
        return self.directions.products({names[n]: r for n, r in arrays.items()})

    def _names(self, given: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """Return {name: the name that the canaries were drawn for}; they differ where only one has the prefix of a wrapper.

        Args:
            given: {p: *p}, the shapes.

        Raises:
            InputError: For a tensor of the canaries that is missing or has another shape.
        """
        drawn, names = self.directions.shapes, {n: n for n in given}
        if not drawn.keys() <= names.keys():
            inner = {without_wrapper(n): n for n in drawn}
            names = {n: inner.get(without_wrapper(n), n) for n in given}
        found = {names[n]: shape for n, shape in given.items()}
        for name, shape in drawn.items():
            if name not in found:
                raise InputError(
                    f"canaries: got {list(given)[:3]} without {name!r}, expected the names that the canaries were drawn for"
                )
            if found[name] != shape:
                raise InputError(
                    f"canaries: got the shape {found[name]} of {name!r}, expected {shape}, for which the canaries were drawn"
                )
        return names


@typed_arguments
def gradients(
    model: nn.Module | Mapping[str, Tensor],
    count: int = 1000,
    *,
    rate: float = 1.0,
    norm: float = NORM,
    seed: int | None = None,
) -> GradientCanaries:
    """Draw canary gradients for a training, each with one large coordinate in each tensor (Dirac canaries).

    Two canaries share no coordinate of a tensor that has enough of them.

    Args:
        model: The model, whose trained parameters have the names of the gradients; or {p: (*p)}.
        count: m, the number of canaries.
        rate: Probability, in (0, 1], that a step uses an example, at which the steps use the included canaries.
        norm: Norm of a canary's gradient in each tensor; above the loop's clip.
        seed: Seed of the inclusion and the coordinates, not to be used for the training's noise; None for a new one from the
            system.

    Raises:
        InputError: For a value outside its range.
    """
    if count < FEWEST:
        raise InputError(f"count: got {count}, expected at least {FEWEST} canaries")
    if count > MOST:
        raise InputError(f"count: got {count}, expected at most {MOST} canaries; 1000 are enough")
    if not 0 < rate <= 1:
        raise InputError(f"rate: got {rate}, expected a probability in (0, 1]")
    if not 0 < norm < LARGEST:
        raise InputError(f"norm: got {norm}, expected a positive number above the clip of the loop")
    like = {n: p for n, p in model.named_parameters() if p.requires_grad} if isinstance(model, nn.Module) else model
    if not like:
        raise InputError("model: got no trained parameter, expected at least one")
    if lazy := next((n for n, p in like.items() if is_lazy(p)), None):
        raise InputError(f"model: {lazy!r} has no shape yet, expected a model that has taken an input")
    like = {n: plain_tensor("model", n, p) for n, p in like.items()}
    drawn = draw_canaries(like, count, _seed(seed))
    return GradientCanaries(dataclasses.replace(drawn, norm=norm), rate)


@dataclass
class ExampleCanaries:
    """Canary examples of a training, and their losses.

    Add `added` to the training examples, call `score` after the training, and before it if you can.

    Args:
        inputs: (m, *s), of all canaries.
        labels: (m,), of all canaries.
        included: (m,), bool, whether the training includes each canary.
        losses: (m,) of each call of `score`.
        steps: Number of steps of the training that `leakbench.probe` records or recorded last.
        fewest: Number of losses that an audit needs; within such a training, and after one that failed, more than there are.
    """

    inputs: Tensor
    labels: Tensor
    included: Tensor
    losses: list[Tensor] = field(default_factory=list)
    steps: int = 0
    fewest: int = 1

    @property
    def added(self) -> tuple[Tensor, Tensor]:
        """Inputs (k, *s) and labels (k,) of the included canaries."""
        return self.inputs[self.included], self.labels[self.included]

    @property
    def scores(self) -> Tensor:
        """(m,), minus the last losses; after several calls, the first losses minus the last."""
        if not self.losses:
            raise InputError("canaries: got no losses, expected score(model) after the training")
        if len(self.losses) < self.fewest:
            raise InputError(
                "canaries: got no losses after the probed training, expected a block that ends without an error"
            )
        return (self.losses[0] if len(self.losses) > 1 else 0.0) - self.losses[-1]

    @typed_arguments
    @torch.no_grad()
    def score(self, model: nn.Module, loss: Loss = CROSS_ENTROPY) -> None:
        """Compute the loss of each canary, included or not, with the model in eval mode.

        Args:
            model: The model.
            loss: (outputs, labels) -> the loss of each example (B,).

        Raises:
            InputError: For a loss that returns one number for a batch, inputs that the model does not take, and labels that are
                not its classes.
        """
        found = []
        with working_copies(model, loss) as (own, own_loss):
            own.eval()
            like = next(own.parameters(), None)
            if like is None:
                raise InputError("model: got no parameter, expected a model that the training changes")
            place = like if self.inputs.is_floating_point() else like.device
            for some, y in zip(torch.split(self.inputs, 256), torch.split(self.labels, 256), strict=True):
                x = some.to(place, copy=True)
                each = self._losses(own, own_loss, x, y.to(like.device, copy=True), loss is CROSS_ENTROPY)
                if each.shape != (len(y),):
                    raise InputError(f"loss: got shape {tuple(each.shape)}, expected ({len(y)},), one for each example")
                found.append(each.double().cpu())
        each = torch.cat(found)
        if lost := int(each.isnan().sum()):
            warnings.warn(
                f"canaries: {lost} of {len(each)} losses are NaN and count as 0, so that the bound may be too small",
                stacklevel=3,
            )
        self.losses.append(torch.nan_to_num(each, nan=0.0).clamp(-LARGEST, LARGEST))

    def _losses(self, model: nn.Module, loss: Loss, x: Tensor, y: Tensor, of_classes: bool) -> Tensor:
        try:
            outputs = model(x)
            # Torch ends the process's use of a GPU at such a label, and takes -100 for one to leave out.
            if of_classes and y.dim() == 1 and not 0 <= int(y.min()) <= int(y.max()) < outputs.shape[1]:
                raise InputError(
                    f"labels: got {int(y.min())} to {int(y.max())}, expected 0 to {outputs.shape[1] - 1}, the classes of the model"
                )
            return loss(outputs, y)
        except InputError:
            raise
        except Exception as error:  # A user's model may fail in any way.
            raise InputError(
                f"canaries: the model or the loss fails on inputs {tuple(x.shape)} and labels {tuple(y.shape)}: {reason_of(error)}"
            ) from error

    def started(self, model: nn.Module) -> None:
        """Compute the losses before a probed training."""
        self.score(model)
        self.steps, self.fewest = 0, len(self.losses) + 1

    def stepped(self, model: nn.Module, moved: Collection[str]) -> None:
        """Count a step; the losses before and after the training are scored."""
        self.steps += 1

    def ended(self, model: nn.Module) -> None:
        """Compute the losses after a probed training.

        Raises:
            InputError: If the training had no step.
        """
        if not self.steps:
            raise InputError("canaries: got no step of the model within the probe, expected the training")
        self.score(model)

    @typed_arguments
    def audit(
        self,
        claimed: float | None = None,
        *,
        delta: float = 1e-5,
        unit: str = "example",
        confidence: float = CONFIDENCE,
    ) -> TrainingAudit:
        """Audit the training from the losses.

        Args:
            claimed: Epsilon to compare with, at `delta`, for an example that is added or removed.
            delta: Delta of the epsilons, in (0, 1).
            unit: What a canary is.
            confidence: In [0.875, 1).

        Raises:
            InputError: Before the first call of `score`, after a probed training that failed, and for a value outside its range.
        """
        scores, included = self.scores.numpy(), self.included.numpy()
        return audit(scores, included, claimed=claimed, delta=delta, unit=unit, confidence=confidence)


@typed_arguments
def examples(
    inputs: Tensor, *, classes: int | None = None, labels: Tensor | None = None, seed: int | None = None
) -> ExampleCanaries:
    """Draw which canary examples a training includes.

    Args:
        inputs: (m, *s), examples that are not in the training set.
        classes: Number of classes, for random labels, which a model can only memorise.
        labels: (m,), labels to use instead.
        seed: Seed of the inclusion and the labels; None for a new one from the system.

    Raises:
        InputError: For too few examples, too few classes, or unless exactly one of `classes` and `labels` is given.
    """
    for name, array in {"inputs": inputs, "labels": labels}.items():
        if array is not None and not array.dim():
            raise InputError(f"{name}: got one number, expected a first axis of canaries")
    inputs = plain_tensor("canaries", "inputs", inputs)
    labels = None if labels is None else plain_tensor("canaries", "labels", labels)
    if len(inputs) < FEWEST:
        raise InputError(f"inputs: got {len(inputs)}, expected at least {FEWEST} canaries")
    if (classes is None) == (labels is None):
        raise InputError("classes: expected either the number of classes or labels")
    if classes is not None and not 1 <= classes <= MOST:
        raise InputError(f"classes: got {classes}, expected at least 1, the number of classes of the model")
    seed = _seed(seed)
    if labels is None:
        labels = torch.randint(0, int(classes or 0), (len(inputs),), generator=generator(seed, "canary labels"))
    if len(labels) != len(inputs):
        raise InputError(f"labels: got {len(labels)}, expected {len(inputs)}, one for each canary")
    return ExampleCanaries(inputs, labels, inclusion(len(inputs), seed))


def _seed(given: int | None) -> int:
    return secrets.randbits(63) if given is None else given


WORDS = {"1": True, "true": True, "0": False, "false": False}
"""{word of the column `included`: its value}."""


def read_scores(path: Path) -> tuple[Reals, Any]:
    """Return the scores (m,) and the inclusions (m,) from a CSV file with the columns `score` and `included`.

    Raises:
        InputError: For a file that is not such a table, with the line.
    """
    check_file("scores", path)
    try:
        text = bounded_text(path, MOST_BYTES).removeprefix("\ufeff")
        table = csv.DictReader(text.splitlines(), skipinitialspace=True)
        rows, columns = list(table), table.fieldnames or []
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"scores: {path}: {said(error)}") from None
    if not rows or not {"score", "included"} <= set(rows[0]):
        raise InputError(f"scores: {path}: expected lines under the header score,included")
    twice = next((name for name in ("score", "included") if columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"scores: {path}: got {columns.count(twice)} columns {twice!r}, expected one; remove or rename the others"
        )
    scores, included = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
    for line, row in enumerate(rows):
        word = (row["included"] or "").strip().lower()
        try:
            scores[line], included[line] = float(row["score"] or "nothing"), WORDS[word.removesuffix(".0")]
            if not math.isfinite(scores[line]):
                raise ValueError
        except (KeyError, ValueError):
            got = said(f"{row['score']},{row['included']}")
            raise InputError(
                f"scores: {path}, line {line + 2}: got {got}, expected a finite number, and 1 or 0 for included"
            ) from None
    return scores, included
