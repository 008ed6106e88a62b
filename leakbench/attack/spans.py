"""Which inputs of an attention layer a gradient contains: the span of the gradient of its projections.

The gradient of a projection z = x W of tokens x_1 ... x_n is the sum of the products x_t delta_t^T, so that its columns lie in the
span of the inputs x_t. If there are fewer tokens than numbers in an input, and the deltas are independent, both spans are equal,
and an input of the batch can be recognised (Petrov et al., "DAGER", NeurIPS 2024, section 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakbench.core.types import Parameters
from leakbench.models.language import LanguageModel

__all__ = [
    "ATTENTION",
    "HIDDEN",
    "Layer",
    "Probe",
    "Span",
    "entering_of",
    "layer_of",
    "probes_of",
    "span_of",
    "trains_first",
]

ATTENTION = (("c_attn",), ("query", "key", "value"), ("q_proj", "k_proj", "v_proj"), ("query_key_value",))
"""Names of the projections of one attention layer that have the same input, in each kind of transformer."""

HIDDEN = (("mlp.c_fc",), ("intermediate.dense",), ("mlp.gate_proj", "mlp.up_proj"), ("mlp.dense_h_to_4h",))
"""Names of the first linear layers after the attention of a block, likewise."""

LORA = ".lora_B.default"
"""End of the name of the second matrix of LoRA, whose input is the first one's output."""


@dataclass(frozen=True)
class Probe:
    """Projections with the same input.

    Args:
        module: Name of a module with this input.
        weights: Names of the parameters that multiply it.
        outer: Whether a weight is stored as (input, output), as GPT-2 does.
    """

    module: str
    weights: tuple[str, ...]
    outer: bool


def probes_of(
    model: LanguageModel, trained: Sequence[str], groups: tuple[tuple[str, ...], ...] = ATTENTION
) -> list[tuple[Probe, ...]]:
    """Return the probes of each block's attention layer, in order; only those whose weights are trained.

    Args:
        model: The network.
        trained: Names of the trained parameters.
        groups: Names of the layers, `ATTENTION` or `HIDDEN`.
    """
    return list(_layers(model, trained, groups).values())


def trains_first(model: LanguageModel, trained: Sequence[str]) -> bool:
    """Return whether the first two attention layers of a network are trained: their gradients have the inputs' spans."""
    every = list(_layers(model, [name for name, _ in model.named_parameters()], ATTENTION))[:2]
    return len(every) == 2 and list(_layers(model, trained, ATTENTION))[:2] == every


def _layers(
    model: LanguageModel, trained: Sequence[str], groups: tuple[tuple[str, ...], ...]
) -> dict[str, tuple[Probe, ...]]:
    """Return {name of the module: probes} of `probes_of`."""
    modules = dict(model.named_modules())
    layers: dict[str, list[Probe]] = {}
    for name, module in modules.items():
        for group in groups:
            if not name.endswith(f".{group[0]}"):
                continue
            parent = name.removesuffix(f".{group[0]}")
            plain = tuple(w for n in group if (w := _weight(modules, f"{parent}.{n}")) in trained)
            found = [Probe(name, plain, _outer(module))] if plain else []
            low = (f"{parent}.{n}{LORA}" for n in group)
            found += [Probe(n, (f"{n}.weight",), False) for n in low if f"{n}.weight" in trained]
            if found:
                layers[parent] = found
    return {parent: tuple(found) for parent, found in layers.items()}


def _weight(modules: dict[str, nn.Module], name: str) -> str:
    """Return the name of the weight of a projection, which LoRA moves into `base_layer`."""
    return f"{name}.base_layer.weight" if f"{name}.base_layer" in modules else f"{name}.weight"


def _outer(module: nn.Module) -> bool:
    """Return whether a layer stores its weight as (input, output)."""
    return type(getattr(module, "base_layer", module)).__name__ == "Conv1D"


class _Reached(Exception):
    """The last probe has been reached, so that the rest of the network need not run."""


@contextmanager
def _watched(model: nn.Module, probes: tuple[Probe, ...], entered: dict[str, Tensor]) -> Iterator[None]:
    hooks = []
    try:
        for probe in probes:

            def note(_: nn.Module, arguments: tuple[Any, ...], name: str = probe.module) -> None:
                entered[name] = arguments[0]
                if len(entered) == len(probes):
                    raise _Reached

            hooks.append(model.get_submodule(probe.module).register_forward_pre_hook(note))
        yield
    except _Reached:
        pass
    finally:
        for hook in hooks:
            hook.remove()


def entering_of(
    model: LanguageModel,
    parameters: Parameters,
    probes: tuple[Probe, ...],
    tokens: Tensor,
    places: Tensor | None = None,
    seen: Tensor | None = None,
) -> list[Tensor]:
    """Return the inputs (n, S, d) of each probe for tokens (n, S).

    Args:
        model: The network.
        parameters: Its parameters.
        probes: The probes of one layer.
        tokens: Numbers of tokens (n, S).
        places: Position (n, S) of each token in its sentence; None for 0 to S - 1.
        seen: (n, S, S) bool, which tokens a token sees; None for what the network lets it see.
    """
    entered: dict[str, Tensor] = {}
    with torch.no_grad(), _watched(model, probes, entered):
        functional_call(model, parameters, (tokens,), {"places": places, "seen": seen})
    return [entered[probe.module] for probe in probes]


MARGIN, NOISY_MARGIN = 8.0, 2.0
"""Margins of `Span` with rounding errors, and with noise, whose estimate is closer: 1.1 was the largest measured factor."""


@dataclass(frozen=True)
class Span:
    """The span of the inputs of a probe.

    Args:
        basis: (d, r) float64, orthonormal columns.
        tilts: (r,), by how much errors turn each column: with rounding errors, the largest singular value outside as a share of
            the column's; with known noise, the tangent of the expected angle.
        margin: Factor between the largest distance of an input of the batch and its estimate.
    """

    basis: Tensor
    tilts: Tensor
    margin: float = MARGIN

    @property
    def rank(self) -> int:
        """Dimension r of the span."""
        return self.basis.shape[1]

    @property
    def gap(self) -> float:
        """Ratio of the smallest singular value inside to the largest one outside."""
        return 1 / float(self.tilts.amax())

    @property
    def room(self) -> float:
        """Expected distance of an unrelated input: the square root of the share of dimensions outside."""
        return float((1 - self.rank / self.basis.shape[0]) ** 0.5)

    def outside(self, inputs: Tensor) -> Tensor:
        """Return the part (..., d) of inputs (..., d) outside of the span, as a share of their lengths, in their own precision."""
        unit = inputs / inputs.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(inputs.dtype).tiny)
        basis = self.basis.to(unit)
        outside: Tensor = unit - unit @ basis @ basis.T
        return outside

    def share(self, inputs: Tensor, tolerance: float, moved: Tensor | None = None) -> Tensor:
        """Return the distance (...) of inputs (..., d) from the span, as a share of the allowed one.

        An input of the batch has coordinates c in the basis, and errors move it by about sqrt(sum (c * tilt)^2).

        Local steps change the weights and with them the input, about along the line from the first weights to the last ones. Then
        the distance is that of the line, and its curvature is allowed, as a share `CURVED` of its length.

        Args:
            inputs: The inputs at the first weights.
            tolerance: Largest allowed distance, as a share of `room`.
            moved: The same inputs at the weights after the update; None for an update of one step.
        """
        wide = inputs.to(self.basis)
        curved: Tensor | float = 0.0
        if moved is not None:
            way = moved.to(wide) - wide
            outside, left = (x - x @ self.basis @ self.basis.T for x in (wide, way))
            tiny = torch.finfo(wide.dtype).tiny
            curved = CURVED * way.norm(dim=-1) / wide.norm(dim=-1).clamp_min(tiny)
            step = -(outside * left).sum(-1, keepdim=True) / left.square().sum(-1, keepdim=True).clamp_min(tiny)
            wide = wide + step.clamp(0, 1) * way
        unit = wide / wide.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(wide.dtype).tiny)
        inside = unit @ self.basis
        distance = (1 - inside.square().sum(-1)).clamp_min(0).sqrt()
        # Both the client and the attacker compute the input with rounding errors. A gradient in single precision that is converted
        # keeps its errors, which are about as large as a share of its largest direction.
        rounding = ROUNDINGS * max(torch.finfo(inputs.dtype).eps, float(self.tilts.amin()))
        allowed = self.margin * ((inside * self.tilts).norm(dim=-1) + rounding) + curved
        share: Tensor = distance / allowed.clamp_max(tolerance * self.room)
        return share


CURVED = 0.5
"""Largest distance from the line on which local steps move an input, as a share of its length; .34 was the largest measured."""

ROUNDINGS = 16
"""Rounding errors of an input, in units of its type's precision."""

GAP = 3.0
"""Ratio of neighbouring singular values that separates a span from rounding errors; inside a spectrum it is about 1 to 2."""

ROUNDING = 1e-5
"""Singular values below this share of the largest one may be rounding errors."""


def span_of(gradients: Sequence[Tensor], noise: float | None = None) -> Span | None:
    """Return the span of the columns of gradients (d, k) of the same inputs.

    With known noise, see `_noisy_span`. Else its dimension is where the singular values fall to rounding errors: at the largest
    ratio of neighbours, at least `GAP`, whose second value is below `ROUNDING` of the first singular value. Gradients of exactly
    low rank end in zeros.

    Args:
        gradients: The gradients.
        noise: Standard deviation of Gaussian noise on each number; None or 0 for rounding errors alone.

    Returns:
        None without such a fall, since noise fills the span up; and for a span of d - 1 dimensions, in which the outputs of layer
        normalisation are anyway, since their mean is constant.
    """
    whole = torch.cat([g.double() for g in gradients], 1)
    if not whole.isfinite().all() or not whole.any():
        return None
    if noise:
        return _noisy_span(whole, noise)
    # A column is rounded in proportion to its length. With equal lengths all columns have the same rounding errors, and small ones
    # show directions that the errors of large ones would cover.
    norms = whole.norm(dim=0)
    whole = whole[:, norms > 0] / norms[norms > 0]
    basis, values, _ = torch.linalg.svd(whole, full_matrices=False)
    values = torch.cat([values, values.new_zeros(1)])[: whole.shape[0]]
    if len(values) < 2:
        return None
    floor = torch.finfo(torch.float64).eps * values[0]
    ratios = values[:-1].clamp_min(floor) / values[1:].clamp_min(floor)
    ratios = ratios.masked_fill(values[1:] > ROUNDING * values[0], 0.0)
    rank = int(ratios.argmax()) + 1
    if float(ratios[rank - 1]) < GAP or rank >= whole.shape[0] - 1:
        return None
    return Span(basis[:, :rank], values[rank].clamp_min(floor) / values[:rank])


def _noisy_span(whole: Tensor, noise: float) -> Span | None:
    """Return the span of a matrix (d, k) of low rank under Gaussian noise of a known standard deviation s.

    The largest singular value of noise alone is s (sqrt(d) + sqrt(k)), with fluctuations of the law of Tracy and Widom (Johnstone,
    2001). Larger ones are signal. In units of s sqrt(k) and with c = d / k, a singular value t of the signal becomes
    y = sqrt((1 + t^2) (c + t^2)) / t, and its left vector is turned by the angle with sin^2 = c (1 + t^2) / (t^2 (t^2 + c))
    (Benaych-Georges and Nadakuditi, 2012).

    Returns:
        None without signal, and for a span of d - 1 dimensions.
    """
    rows, columns = whole.shape
    share = rows / columns
    basis, values, _ = torch.linalg.svd(whole, full_matrices=False)
    squares = (values / noise).square() / columns
    edge, spread = (1 + share**0.5) ** 2, (1 + share**0.5) ** (4 / 3) * share ** (-1 / 6) * columns ** (-2 / 3)
    rank = int((squares > edge + FLUCTUATIONS * spread).sum())
    if rank == 0 or rank >= rows - 1:
        return None
    middle = squares[:rank] - 1 - share
    signal = (middle + (middle.square() - 4 * share).clamp_min(0).sqrt()) / 2
    turned = share * (1 + signal) / (signal * (signal + share))
    floor = torch.finfo(torch.float32).eps * float(values[0]) / values[:rank]
    return Span(basis[:, :rank], (turned / (1 - turned)).sqrt().maximum(floor), NOISY_MARGIN)


FLUCTUATIONS = 3.0
"""Standard deviations of the largest singular value of noise above which a singular value is signal."""


@dataclass(frozen=True)
class Layer:
    """A layer with the spans of its inputs.

    Args:
        tolerance: Largest allowed distance from a span, as a share of the distance of an unrelated input.
    """

    probes: tuple[Probe, ...]
    spans: tuple[Span, ...]
    tolerance: float

    def distance(self, entered: list[Tensor], moved: list[Tensor] | None = None) -> Tensor:
        """Return the largest distance (n, S) of inputs (n, S, d) of the probes, as a share of the allowed one; see `Span.share`."""
        ends: Sequence[Tensor | None] = [None] * len(entered) if moved is None else moved
        each = zip(entered, self.spans, ends, strict=True)
        return torch.stack([span.share(x, self.tolerance, end) for x, span, end in each]).amax(0)

    def outside(self, entered: list[Tensor]) -> Tensor:
        """Return the parts (n, S * k) of inputs (n, S, d) outside of the spans."""
        pairs = zip(entered, self.spans, strict=True)
        return torch.cat([span.outside(x).flatten(1) for x, span in pairs], 1)


def layer_of(
    update: Parameters, probes: tuple[Probe, ...], tolerance: float, noise: float | None = None
) -> Layer | None:
    """Return a layer with the spans in an update {p: (1, *p)}; None if an input has no span.

    Args:
        update: The update.
        probes: The probes of the layer.
        tolerance: See `Layer`.
        noise: See `span_of`.
    """
    spans = []
    for probe in probes:
        gradients = [update[name][0] for name in probe.weights]
        span = span_of(gradients if probe.outer else [g.T for g in gradients], noise)
        if span is None:
            return None
        spans.append(span)
    return Layer(probes, tuple(spans), tolerance)
