"""The attacker of external updates: its attack, what it knows of the defense, and its public examples."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakbench.attack import Attack, attack_on
from leakbench.attack.evaluations import with_evaluations
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.needs import TEXT
from leakbench.attack.slots.labels import Joint, LastLayerCounts, Solved, with_labels
from leakbench.attack.slots.stop import limited
from leakbench.cell import KNOWS
from leakbench.cell.fit import check_kind
from leakbench.core.errors import InputError, nearest
from leakbench.core.recipe import resolve
from leakbench.core.request import BATCH, MOST_ITERATIONS
from leakbench.core.rng import generator
from leakbench.core.words import check_success
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset, without_examples
from leakbench.data.recipe import DatasetRecipe, Federation
from leakbench.data.vocabulary import Vocabulary
from leakbench.defense import Defense, FactProbe
from leakbench.defense.augmentation import copies_of, is_random
from leakbench.defense.facts import facts_at
from leakbench.experiment.leak_noise import noise_std
from leakbench.experiment.statistics import proxy_statistics
from leakbench.external.network import mixes_batch
from leakbench.external.trace import Trace
from leakbench.federated.optimizer import linear_steps
from leakbench.federated.view import Public, View
from leakbench.measure.closeness import eta_of
from leakbench.measure.measures import EDIT_DISTANCE, RMSE
from leakbench.models.layers import classifier_of
from leakbench.summary.verdict import STRONGEST

__all__ = ["Attacker", "AttackerOptions", "checked_texts", "without_truth"]

STATISTICS = (BATCH, "proxy", "inferred")
"""Statistics of batch normalisation that the attacker of an external update can have (`leakbench.experiment.statistics`)."""

SYNTHETIC = 256
"""Number of public examples that are generated if no dataset is named."""

SUCCESS = 0.1
"""RMSE of inputs in [0, 1] up to which a reconstruction counts as a success, if no dataset is named."""

SAME = 1e-4
"""Largest difference of two inputs in [0, 1] that are the same example; undoing a normalisation rounds."""

SEARCHED = "no trained layer answers with the class: autoleak searches labels with the inputs"
SOLVED = "the network has other targets than classes: they follow from its last layer, or are searched with the inputs"
COUNTED = "features of the last layer can be negative: autoleak counts labels by public examples, not by their signs"


@dataclass(frozen=True)
class Attacker:
    """An attacker with its recipes and data.

    Args:
        attack: Recipe of the attack.
        defense: Recipe of the defense that was applied to the updates; None for none.
        data: Dataset of its public examples, which also calibrates success; None for synthetic examples.
        success: RMSE up to which a reconstruction counts as a success; None for the dataset's threshold, else `SUCCESS`.
        seed: Seed of all random numbers.
        evaluations: Most gradient evaluations of each victim; None for no limit.
        budget: Most seconds of the attack; None for no limit.
        untried: Attackers that may reconstruct more than this one.
        shortened: Option that gives `autoleak` less work than its recipe, with its value; empty for none.
        statistics: One of `STATISTICS`, the statistics of batch normalisation with which a guess is compared.
        adapted: How `for_network` changed the attack, in a sentence; empty for no change.
    """

    attack: Attack
    defense: Defense | None = None
    data: Dataset | None = None
    success: float | None = None
    seed: int = 0
    evaluations: int | None = None
    budget: float | None = None
    untried: tuple[str, ...] = ()
    shortened: str = ""
    statistics: str = BATCH
    adapted: str = ""

    @cached_property
    def eta(self) -> float:
        """The threshold of success, an RMSE."""
        if self.data is None:
            return SUCCESS if self.success is None else self.success
        return eta_of(self.data, self.seed, self.success)

    def public(self, shape: tuple[int, ...], classes: int) -> Public:
        """Return the public examples.

        Raises:
            InputError: For a dataset of another shape or with more classes.
        """
        rng = generator(self.seed, "public")
        if self.data is None:
            return Public(_synthetic(shape, rng), torch.arange(SYNTHETIC) % classes)
        if self.data.kind == TEXT and self.data.shape != shape:
            given, length = (",".join(map(str, sizes)) for sizes in (shape, self.data.shape))
            raise InputError(f"tokens: got {given}, {self.data.name!r} has sentences of {length}")
        if self.data.shape != shape or self.data.classes > classes:
            raise InputError(
                f"dataset: {self.data.name!r} has inputs of {self.data.shape} and {self.data.classes} classes, the app"
                f" {shape} and {classes}"
            )
        chosen = torch.randperm(len(self.data.public_targets), generator=rng)
        return Public(self.data.public_inputs[chosen], self.data.public_targets[chosen])

    def view(self, trace: Trace) -> View:
        """Return the view of this attacker, which knows the defense if its recipe says so."""
        view = trace.view if self.attack.knows == "oblivious" else self.informed_view(trace)
        if self.statistics == BATCH:
            return view
        if self.statistics == "inferred":
            statistics = trace.solved
        else:
            like = view.like.new_zeros(view.victims, view.examples, *view.shape)
            public, _ = without_truth(self.public(trace.shape, sys.maxsize), trace.inputs)
            statistics = proxy_statistics(view.network, public, like)
        known = dataclasses.replace(view.knowledge, statistics=self.statistics)
        return dataclasses.replace(view, statistics=statistics, knowledge=known)

    def informed_view(self, trace: Trace) -> View:
        """Return the view of an attacker that knows the defense, if there is one."""
        view, how = trace.view, trace.training
        if self.defense is None:
            return view
        random = [type(a).__name__.lower() for a in self.defense.inputs if is_random(a)]
        if random:
            raise InputError(
                f"defense: {', '.join(random)} changes examples at random, which is not undone for an own update; leave out"
                " --defense, and compare with the changed examples"
            )
        federation = Federation(
            rounds=view.clock.round + 1,
            batch=how.batch,
            examples_per_client=how.batch,
            clients=1,
            clients_per_round=1,
            local_iterations=how.steps,
            learning_rate=how.rate,
        )
        facts = facts_at(self.defense, FactProbe(view.network, view.shape, view.classes, federation), view.clock)
        members = how.batch * copies_of(self.defense.inputs)
        length = linear_steps(view.clock, how.rate, how.steps).length
        std = noise_std(facts, view.tap, members, 1, how.steps, how.rate, how.optimizer, length)
        drawn = any("noise" in fact.kind for station in facts.values() for fact in station)
        noise, unknown = (None, std if drawn else "") if isinstance(std, str) else (std, "")
        known = dataclasses.replace(view.knowledge, defense=True)
        return dataclasses.replace(view, stations=self.defense.stations, noise=noise, unknown=unknown, knowledge=known)

    def for_network(self, trace: Trace, vocabulary: Path | None = None) -> Attacker:
        """Return the attacker for the network of a trace: `autoleak` determines labels as the network allows it.

        If `evaluations` is given, the searches also share that number on this network. Other attacks than `autoleak` are
        published ones and keep their labels.

        Args:
            trace: What was recorded.
            vocabulary: The user's file with the tokens, for messages; None for none.

        Raises:
            InputError: For too few evaluations.
        """
        view, found = trace.view, self
        self._check_kind(trace, vocabulary)
        self._check_statistics(trace)
        if trace.heads is not None:
            found = found._with_method(with_labels(self.attack.method, Solved()), SOLVED)
        elif isinstance(self.attack.method, AutoLeak) and trace.texts is None:
            answering = classifier_of(view.network.model, view.shape, view.update)
            if answering is None:
                found = found._with_method(with_labels(self.attack.method, Joint()), SEARCHED)
            elif answering.signed:
                found = found._with_method(with_labels(self.attack.method, LastLayerCounts()), COUNTED)
        if self.evaluations is None:
            return found
        method = with_evaluations(found.attack.method, self.evaluations, view.network.model, view.shape)
        return found._with_method(method, found.adapted)

    def _check_statistics(self, trace: Trace) -> None:
        """Raise InputError for statistics that the attack does not read, or that the update does not have."""
        if self.statistics == BATCH:
            return
        got = f"statistics: got {self.statistics!r}, but"
        if not mixes_batch(trace.view.network.model):
            raise InputError(
                f"{got} the network was not trained by its batches' statistics; leave it out, or give --victim-mode train"
            )
        if not self.attack.needs.statistics:
            raise InputError(
                f"{got} this attack has no prior of batch normalization that reads them; try --attack"
                " inverting_gradients_batch_norm"
            )
        if self.statistics == "inferred" and (trace.training.steps > 1 or (self.defense and self.defense.inputs)):
            raise InputError(
                f"{got} these are of one batch of unchanged examples; expected one local step without a defense of the examples,"
                " or proxy"
            )

    def _check_kind(self, trace: Trace, vocabulary: Path | None) -> None:
        """Raise InputError if the network, the dataset and the attack do not read the same kind of data."""
        data, model = self.data, trace.texts
        decides, examples = (RMSE, "pictures or tables") if model is None else (EDIT_DISTANCE, "texts")
        check_success(self.success, decides.name, f"the update is of {examples}")
        if model is None and data is not None and data.kind == TEXT:
            raise InputError(
                f"dataset: {data.name!r} holds texts, but the network is not a language model of leakbench"
            )
        if model is None:
            return
        data = checked_texts(data)
        if vocabulary is not None and data.tokens > model.tokens:
            raise InputError(
                f"vocabulary: {vocabulary}: has {data.tokens} tokens, the network only {model.tokens}; give the network's own"
            )
        if vocabulary is not None and data.padding != model.padding:
            raise InputError(
                f"vocabulary: {vocabulary}: fills up sentences with token {data.padding}, the network with {model.padding}; give"
                f" the network's own, or build LanguageModel(..., padding={data.padding})"
            )
        if data.tokens > model.tokens:
            raise InputError(
                f"dataset: {data.name!r} has {data.tokens} tokens, the network only {model.tokens}; --vocabulary gives its own"
            )
        if data.padding != model.padding:
            raise InputError(
                f"model: padding: got token {model.padding}, expected {data.padding}, which fills up the sentences of"
                f" {data.name!r}; build LanguageModel(..., padding={data.padding})"
            )
        check_kind(self.attack, data, (self.attack.title, data.name))

    def _with_method(self, method: Any, adapted: str) -> Attacker:
        return dataclasses.replace(self, attack=dataclasses.replace(self.attack, method=method), adapted=adapted)


def checked_texts(data: Dataset | None) -> Dataset:
    """Return a data set of texts; raises InputError for another one, and for none."""
    if data is None or data.kind != TEXT:
        got = "nothing" if data is None else repr(data.name)
        raise InputError(f"dataset: got {got}, expected texts, whose tokens the network has, such as reviews")
    return data


def _synthetic(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Return images (n, C, H, W) with the 1 / f amplitudes of natural ones, or uniform records (n, F), in [0, 1]."""
    noise = torch.randn(SYNTHETIC, *shape, generator=rng)
    if len(shape) != 3:
        return torch.rand(SYNTHETIC, *shape, generator=rng)
    rows, columns = torch.meshgrid(torch.fft.fftfreq(shape[1]), torch.fft.rfftfreq(shape[2]), indexing="ij")
    frequency = (rows**2 + columns**2).sqrt().clamp_min(1 / max(shape[1:]))
    smooth = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=shape[1:])
    spread = smooth.flatten(1).std(1).reshape(-1, 1, 1, 1)
    images: Tensor = (0.5 + 0.25 * smooth / spread).clamp(0, 1)
    return images


def without_truth(public: Public, inputs: Tensor | None) -> tuple[Public, int]:
    """Remove the true inputs from the public examples, since an attacker does not have private examples.

    Args:
        public: The public examples.
        inputs: The true inputs (V, M, *s); None if unknown.

    Returns:
        The public examples that remain, and the number of removed ones.

    Raises:
        InputError: If no public example remains.
    """
    if inputs is None:
        return public, 0
    examples, truth = public.inputs.flatten(1), inputs.flatten(0, 1).flatten(1)
    means, remain = examples.mean(1), torch.ones(len(examples), dtype=torch.bool)
    for one in truth.to(examples):
        # The means of two examples differ by at most their largest difference.
        near = ((means - one.mean()).abs() <= 2 * SAME).nonzero()[:, 0]
        remain[near[(examples[near] - one).abs().amax(1) <= SAME]] = False
    if not bool(remain.any()):
        raise InputError(f"dataset: all of its {len(remain)} public examples are the truth's own; expected another one")
    removed = len(remain) - int(remain.sum())
    return (public.at(remain) if removed else public), removed


@dataclass(frozen=True)
class AttackerOptions:
    """An attacker as options name it: names of the catalog or paths of recipes.

    Args:
        attack: Name or path of the attack.
        defense: Name or path of the defense that was applied; None for none.
        dataset: Dataset of the public examples; None for synthetic ones.
        data_dir: Folder with the datasets.
        success: RMSE up to which a reconstruction counts as a success; None for the dataset's threshold.
        seed: Seed of all random numbers.
        knows: `oblivious` or `defense`; None for what the attack's recipe says.
        iterations: Most iterations of a search; None for the recipe's number.
        evaluations: Most gradient evaluations of each victim; None for no limit.
        budget: Most seconds of the attack; None for no limit.
        statistics: One of `STATISTICS`.
    """

    attack: str = "autoleak"
    defense: str | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    success: float | None = None
    seed: int = 0
    knows: str | None = None
    iterations: int | None = None
    evaluations: int | None = None
    budget: float | None = None
    statistics: str = BATCH

    @staticmethod
    def pop_from(options: dict[str, Any]) -> AttackerOptions:
        """Remove the attacker's options from those of a command, and return them."""
        names = [field.name for field in dataclasses.fields(AttackerOptions)]
        return AttackerOptions(**{name: options.pop(name) for name in names if name in options})

    @property
    def names(self) -> dict[str, str]:
        """The names of the dataset, the defense and the attack on a page."""
        return {"dataset": self.dataset or "own data", "defense": self.defense or "none told", "attack": self.attack}

    def __call__(self) -> Attacker:
        """Return the attacker without its public data, which `with_public` loads.

        Raises:
            InputError: For an unknown name, and for a number outside its range.
        """
        check_success(self.success)
        if self.seed < 0:
            raise InputError(f"seed: got {self.seed}, expected at least 0")
        if self.evaluations is not None and self.evaluations < 1:
            raise InputError(f"evaluations: got {self.evaluations}, expected at least 1")
        if self.dataset is not None:
            resolve("datasets", DatasetRecipe, self.dataset)
        if self.statistics not in STATISTICS:
            raise InputError(
                f"statistics: got {self.statistics!r}, expected {' or '.join(STATISTICS)}; the running ones are those of"
                " --victim-mode eval"
            )
        limits = {"iterations": self.iterations, "evaluations": self.evaluations}
        shortened = " ".join(f"--{name} {value}" for name, value in limits.items() if value is not None)
        return Attacker(
            self._attack(),
            None if self.defense is None else resolve("defenses", Defense, self.defense)[1],
            success=self.success,
            seed=self.seed,
            evaluations=self.evaluations,
            budget=self.budget,
            untried=tuple(self._untried()),
            shortened=shortened if self.attack == STRONGEST else "",
            statistics=self.statistics,
        )

    def _untried(self) -> Iterator[str]:
        """Yield the attackers that may reconstruct more."""
        if self.attack != STRONGEST:
            yield f"{STRONGEST}, the strongest attack"
        elif self.iterations is not None or self.evaluations is not None:
            yield f"{STRONGEST} without a limit"
        if self.defense is not None and self.knows == "oblivious":
            yield "an attacker that knows the defense"
        if self.dataset is None:
            yield "an attacker with real public examples (--dataset)"
        yield "several updates of the same examples"
        yield "a malicious server"

    def with_public(self, attacker: Attacker, words: Vocabulary | None = None) -> Attacker:
        """Return the attacker with the dataset of its public examples.

        Args:
            attacker: The attacker.
            words: The tokens of the network, in which the dataset's texts are read; None for the dataset's own.

        Raises:
            InputError: If the dataset is missing, or has no texts for the tokens.
        """
        data = None if self.dataset is None else load_dataset(self.dataset, self.data_dir)[2]
        if words is not None:
            data = checked_texts(data).tokenised(words)
        return dataclasses.replace(attacker, data=data)

    def known_tokens(self, words: Vocabulary | None) -> tuple[int, int]:
        """Return (number of tokens, number of the one that fills up a sentence) of a network of texts.

        Args:
            words: The tokens of the network; None for those of the dataset.

        Raises:
            InputError: Without tokens and a dataset of texts.
        """
        if words is not None:
            return words.size, words.padding
        data = checked_texts(None if self.dataset is None else without_examples(self.dataset, self.data_dir)[2])
        return data.tokens, data.padding

    def _attack(self) -> Attack:
        kind = "" if self.dataset is None else without_examples(self.dataset, self.data_dir)[2].kind
        name, recipe = attack_on(kind, self.attack)
        if self.knows is not None:
            if self.knows not in KNOWS:
                raise InputError(
                    f"knows: got {self.knows!r}, expected {' or '.join(KNOWS)}{nearest(self.knows, KNOWS)}"
                )
            recipe = dataclasses.replace(recipe, knows=self.knows)  # type: ignore[arg-type]
        if self.iterations is None:
            return recipe
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise InputError(f"iterations: got {self.iterations}, expected 1 to {MOST_ITERATIONS}")
        method = limited(recipe.method, self.iterations)
        if method is None:
            raise InputError(
                f"iterations: got {self.iterations}, but the attack {name!r} does not search; leave it out"
            )
        return dataclasses.replace(recipe, method=method)
