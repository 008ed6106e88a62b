"""A probe around any training loop: it hears what an attacker would see of it, and measures how much that leaks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from leakbench.errors import InputError
from leakbench.own.assumed import assumed, with_notes
from leakbench.own.attack import warn_of_contradiction
from leakbench.own.attacked import attack_seen
from leakbench.own.attacker import Attacker
from leakbench.own.folder import attacked_into
from leakbench.own.heard import Heard, listener, unwrapped_model
from leakbench.own.normalised import Numbers
from leakbench.own.observed import Observed, show
from leakbench.own.points import added, check_heard, examples_of, points_of
from leakbench.own.saved import save_heard
from leakbench.own.seen import Seen
from leakbench.own.table import Outcome
from leakbench.own.who import Who
from leakbench.types import Parameters
from leakbench.words import seconds

__all__ = ["Probe", "probe"]

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Probe:
    """What was heard of one training; within the block, of its steps so far.

    Args:
        model: As it was given.
        most: How many steps are heard; None: all within the block.
    """

    model: nn.Module
    heard: Heard = field(default_factory=Heard)
    observed: Observed = field(default_factory=Observed)
    most: int | None = None

    def observe(self, x: Tensor, y: Tensor, loss_fn: Loss) -> None:
        """Show a batch of a step: x (B, *s), y (B,); by it answers are scored, and single examples have gradients.

        Call it before the step's backward pass, of each microbatch where gradients are accumulated.

        The training goes on whatever it is given; what could not be shown `leak` and `save` say.

        Args:
            y: Classes, or (B, classes) of ones and zeros.
            loss_fn: As `torch.nn.functional.cross_entropy`, of logits and y; it is called with batches of one.
        """
        if self.most is not None and len(self.heard.steps) >= self.most:
            self.heard.late = True
            return
        inner = unwrapped_model(self.model)
        # Opacus' hooks would take a second pass for one of the training's; it has these gradients anyway.
        show(self.observed, x, y, inner, None if hasattr(self.model, "disable_hooks") else loss_fn)

    @property
    def steps(self) -> int:
        """How many steps were heard."""
        return len(self.heard.steps)

    @property
    def before(self) -> Parameters:
        """{name: array} of parameters and buffers as the first step found them."""
        return self.heard.before

    @property
    def update(self) -> Parameters:
        """{p: (*p)}, what the steps added to the weights; {} before the first was made."""
        return added(self.heard)

    @property
    def gradient(self) -> Parameters:
        """{p: (*p)}, by which the first step was made, as `.grad` held it."""
        return self.heard.gradient

    @property
    def examples(self) -> Parameters:
        """{p: (B, *p)}, single examples' gradients in the first step, as Opacus or `observe` shows them; {} where neither does."""
        return examples_of(self.heard, self.observed)

    def leak(
        self,
        shape: tuple[int, ...] | None = None,
        classes: int | None = None,
        *,
        batch: int | None = None,
        attack: str = "autoleak",
        knows: str | None = None,
        iterations: int | None = None,
        budget: str | float | None = None,
        defense: str | None = None,
        dataset: str | None = None,
        data_dir: Path | None = None,
        success: float | None = None,
        seed: int = 0,
        victims: int = 10,
        normalise: tuple[Numbers, Numbers] | None = None,
        out: Path | None = None,
    ) -> dict[str, Outcome]:
        """Attack what was heard: {leakage point: what came of it}.

        type-2 is the gradients of the first step's first examples, `victims` at most; type-1 the gradient of a single step, or
        what several added to the weights. Answers are scored where `observe` was called in every step. shape (*s), classes,
        batch: None where `observe` was called: as its inputs are, as the model answers them, and how many examples were observed
        in each step. The other arguments are those of `attack_update`; of normalised inputs, `normalise` says by which mean and
        deviation.

        Warns where what was observed is not what the gradient came of: a loss that is no mean, microbatches that are not divided, a
        clip, another batch; and of the reason where single examples' gradients could not be computed.

        Raises InputError where nothing was heard, for a batch that was observed after its step, for labels that are no classes, and
        where several steps were not of one batch size by plain SGD or Adam.

        Args:
            budget: The most seconds of the attack at each leakage point, also as `60s` or `2m`; None: no limit.
            out: a folder for a page, rows and answers, as `leakbench attack --out` writes them; it may not hold anything else.
        """
        who = Who(attack, defense, dataset, data_dir, success, seed, knows, iterations, None, seconds("budget", budget))
        points = self._points(who.with_public(who()), shape, classes, victims, normalise, batch)
        if "type-2" not in points and self.observed.note:
            warnings.warn(f"type-2 is left out: {self.observed.note}", stacklevel=2)
        for seen, knowing in points.values():
            warn_of_contradiction(seen, knowing, stacklevel=3)
        if out is None:
            return {
                tap: with_notes(attack_seen(*point), *point, "\n".join(assumed(*point, True)))
                for tap, point in points.items()
            }
        return attacked_into(Path(out), points, who.names, "leakbench.probe")

    def save(self, folder: str | Path) -> None:
        """Write what was heard, for `leakbench attack`: before.safetensors, update.safetensors (of one step its gradient), where
        they were shown example/00000.safetensors and on, and truth.safetensors where every step was observed.

        What an earlier save left there is replaced. Raises InputError for a file by one of these names that no probe wrote, where
        nothing was heard, and for a batch that was observed after its step.
        """
        check_heard(self.heard, self.observed)
        many = len(next(iter(self.examples.values()), ()))
        files = {f"example/{v:05d}.safetensors": {name: g[v] for name, g in self.examples.items()} for v in range(many)}
        if all(step.batch for step in self.heard.steps):
            inputs = torch.cat([x for step in self.heard.steps for x in step.inputs])
            labels = torch.cat([y for step in self.heard.steps for y in step.labels])
            files["truth.safetensors"] = {"inputs": inputs, "labels": labels}
        files["update.safetensors"] = self.gradient if self.steps == 1 else self.update
        save_heard(Path(folder), files | {"before.safetensors": self.before})

    def _points(
        self,
        attacker: Attacker,
        shape: tuple[int, ...] | None,
        classes: int | None,
        victims: int,
        normalise: tuple[Numbers, Numbers] | None,
        batch: int | None = None,
    ) -> dict[str, tuple[Seen, Attacker]]:
        model = unwrapped_model(self.model)
        return points_of(model, self.heard, self.observed, attacker, shape, classes, victims, normalise, batch)


@contextmanager
def probe(model: nn.Module, steps: int | None = None) -> Iterator[Probe]:
    """Hear every optimizer of PyTorch that steps on the model's parameters within this block, the first `steps` of its steps.

    They start from the weights that the first step finds, whatever was loaded within the block. `leak` and `save` are called after
    the block; within it they are of the steps so far. Of Opacus' `GradSampleModule` it takes the gradients of single examples by
    itself; elsewhere `Probe.observe` shows them.
    """
    if steps is not None and steps < 1:
        raise InputError(f"steps: got {steps}, expected 1 or more")
    found = Probe(model, most=steps)
    begins, ends = listener(unwrapped_model(model), found.heard, found.observed, steps)
    handles = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
