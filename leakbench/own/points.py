"""From what a probe heard to what an attacker sees of it: single examples' gradients, and what the step or the steps send."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.imported import said
from leakbench.own.attacker import Attacker
from leakbench.own.heard import Heard
from leakbench.own.leak import Named, Trained, leaked, truth_of
from leakbench.own.normalised import Normal, Numbers, normal_of, unnormalised
from leakbench.own.observed import Observed
from leakbench.own.seen import Seen
from leakbench.own.stepped import UNROLLED
from leakbench.own.suited import suited
from leakbench.types import Parameters

__all__ = ["added", "check_heard", "examples_of", "points_of"]

CURE = "pass normalise=(mean, std) as they were normalised"


def check_heard(heard: Heard, observed: Observed) -> None:
    """Raise InputError where nothing was heard, where a step or a batch could not be, and for batches shown after their step."""
    if heard.fault:
        raise InputError(f"probe: a step could not be heard: {heard.fault}; the training went on without the probe")
    if observed.fault:
        raise InputError(f"probe: observe could not show a batch: {observed.fault}")
    if not heard.gradient:
        raise InputError("probe: no optimizer of PyTorch stepped on this model's parameters within the block")
    left = len(observed.inputs) - sum(len(step.labels) for step in heard.steps)
    if (left or heard.late) and any(step.batch == 0 for step in heard.steps):
        raise InputError(
            "probe: a batch was observed after its step; call probe.observe before the step's backward pass"
        )


def examples_of(heard: Heard, observed: Observed) -> Parameters:
    """Return {p: (B, *p)}, single examples' gradients in the first step, as Opacus or `observe` shows them; {} where none does."""
    return heard.samples or observed.examples


def added(heard: Heard) -> Parameters:
    """Return {p: (*p)}, what the steps added to the weights; {} where there was none."""
    return {name: p - heard.before[name] for name, p in heard.after.items()}


def points_of(
    model: nn.Module,
    heard: Heard,
    observed: Observed,
    attacker: Attacker,
    shape: tuple[int, ...] | None,
    classes: int | None,
    victims: int,
    normalise: tuple[Numbers, Numbers] | None,
    batch: int | None = None,
) -> dict[str, tuple[Seen, Attacker]]:
    """Return {leakage point: what is seen there, and the attacker that suits the network}.

    Args:
        model: Without its wrappers. Else as `Probe.leak`, whose errors it raises.
    """
    check_heard(heard, observed)
    if victims < 1:
        raise InputError(f"victims: got {victims}, expected 1 or more")
    shape, classes = _sizes(model, observed, shape, classes)
    normal = None if normalise is None else normal_of(*normalise, shape)
    found: dict[str, Seen] = {}
    examples = examples_of(heard, observed)
    if examples and not heard.mixes:
        many = min(victims, len(next(iter(examples.values()))))
        each = [{name: g[v] for name, g in examples.items()} for v in range(many)]
        arrays, alone = _truth(heard, 0, many, normal), Trained(mode=heard.mode)
        truth = None if arrays is None else truth_of(arrays, many, 1, shape, classes)
        found["type-2"] = leaked(model, each, shape, classes, alone, heard.before, "type-2", truth, normal)
    how, update = _trained(heard, examples, batch)
    behind = how.batch * how.steps
    arrays = _truth(heard, how.steps, behind, normal)
    truth = None if arrays is None else truth_of(arrays, 1, behind, shape, classes)
    found["type-1"] = leaked(model, [update], shape, classes, how, heard.before, "type-1", truth, normal)
    return {tap: (seen, suited(attacker, seen)[0]) for tap, seen in found.items()}


def _sizes(
    model: nn.Module, observed: Observed, shape: tuple[int, ...] | None, classes: int | None
) -> tuple[tuple[int, ...], int]:
    if shape is not None and classes is not None:
        return shape, classes
    if not observed.inputs:
        raise InputError("probe: the shape of inputs and the classes are not known; pass both, or call probe.observe")
    x = observed.inputs[0][:1]
    if classes is None:
        mode = {name: module.training for name, module in model.named_modules()}
        try:
            with torch.no_grad():
                answer = model.eval()(x.to(next(model.parameters())))
        except Exception as error:
            raise InputError(
                f"probe: the model fails on an observed input of {tuple(x.shape)}: {said(error)}"
            ) from None
        finally:
            for name, module in model.named_modules():
                module.training = mode[name]
        if not isinstance(answer, Tensor) or answer.dim() != 2:
            raise InputError("probe: the model does not answer one input with (1, classes); pass shape and classes")
        classes = int(answer.shape[1])
    return shape or tuple(x.shape[1:]), classes


def _trained(heard: Heard, examples: Parameters, given: int | None) -> tuple[Trained, Parameters]:
    steps, mode = heard.steps, heard.mode
    sizes = {step.batch for step in steps}
    if given is not None:
        shown = sizes - {0, given}
        if given < 1:
            raise InputError(f"batch: got {given}, expected 1 or more")
        if shown:
            several = ", ".join(map(str, sorted(shown)))
            raise InputError(f"batch: got {given}, but {several} examples were observed in a step")
        sizes = {given}
    if sizes == {0} and len(steps) == 1 and examples:
        sizes = {len(next(iter(examples.values())))}
    if len(sizes) != 1 or sizes == {0}:
        several = ", ".join(str(size or "none") for size in sorted(sizes))
        cure = "pass batch=B, or call probe.observe(x, y, loss_fn) in each step, with batches alike"
        raise InputError(
            f"probe: batch sizes heard: {several}; {cure}{', or hear one step: probe(model, steps=1)' * (len(steps) > 1)}"
        )
    batch = sizes.pop()
    if len(steps) == 1:
        return Trained(batch, mode=mode), heard.gradient
    odd = next((step.odd for step in steps if step.odd), "")
    rates = {rate for step in steps for rate in step.rates}
    if not odd and len(rates) > 1:
        odd = f"at learning rates {', '.join(f'{rate:g}' for rate in sorted(rates))}"
    if not odd and len({step.optimizer for step in steps}) > 1:
        odd = "of several optimizers"
    if odd:
        raise InputError(
            f"probe: {len(steps)} steps {odd} are not what an attacker unrolls; hear one step: probe(model, steps=1)"
        )
    return Trained(batch, len(steps), rates.pop(), UNROLLED[steps[0].optimizer], mode), added(heard)


def _truth(heard: Heard, steps: int, examples: int, normal: Normal | None) -> Named | None:
    """Return inputs (n, *s) and labels (n,) of the first examples, of so many steps at least; None where not all were observed.

    Raises InputError for inputs outside of [0, 1].
    """
    seen = heard.steps[: max(1, steps)]
    if any(step.batch == 0 for step in seen):
        return None
    inputs = torch.cat([x for step in seen for x in step.inputs])[:examples].float()
    labels = torch.cat([y for step in seen for y in step.labels])[:examples]
    if len(labels) < examples:
        return None
    return {"inputs": unnormalised(inputs, normal, "probe", CURE), "labels": labels}
