"""The origin of a fit, which is a hash of everything that it depends on, and the function that learns or reads a stored fit."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakbench.attack.learn.sources import sources
from leakbench.core.answers import Fit
from leakbench.core.fitted import Fits, Fitted, Origin
from leakbench.core.recipe import describe
from leakbench.core.task import task_content
from leakbench.core.types import Parameters
from leakbench.federated.view import Public, View
from leakbench.models.batch_norm import mixes_examples
from leakbench.storage.store import content_hash, tensor_hash

__all__ = ["learned", "learned_by", "origin_of"]

CODE = ("defense", "federated", "models", "engine/rows.py", "core/rng.py", "core/types.py")
"""Code of the package, apart from the part's imports from `leakbench.attack`, that any fit may run; a change makes another fit."""


def origin_of(
    part: str, module: str, fields: Mapping[str, Any], public: Public, views: tuple[View, ...] = ()
) -> Origin:
    """Return the origin of what a part learns from public examples and, if it reads them, from views.

    For a view, everything counts that determines the gradient of a single example: the weights and statistics of the network; its
    loss; the stations that the attacker runs, with their clock; the noise; and the leakage point. Two leakage points between which
    nothing acts have the same origin. Neither the observed updates nor the victims count. The version of PyTorch counts, since
    another version may sum in another order.

    Args:
        part: Name of the part.
        module: `__name__` of the part's module.
        fields: The fields of the part that matter.
        public: The public examples.
        views: The views that the part reads.
    """
    origin = {
        "part": part,
        "fields": content_hash(dict(fields)),
        "public examples": tensor_hash({"inputs": public.inputs, "labels": public.labels} | _answers(public)),
        "code": _code(module),
        "torch": torch.__version__,
    }
    if views:
        origin["weights"] = content_hash([_weights(view) for view in views])
        origin["task"] = content_hash([task_content(view.network.model) for view in views])
        origin["defense"] = content_hash([_defense(view) for view in views])
        origin["noise"] = content_hash([view.noise for view in views])
        origin["leakage point"] = content_hash([_place(view) for view in views])
    return origin


def learned(view: View, origin: Origin, public: Public, make: Callable[[], Parameters]) -> tuple[Parameters, Fit]:
    """Return what `make` learns from public examples, {name: tensor}, and its cost; a stored fit of this origin is read instead.

    Args:
        view: Its `fits` store fits; the tensors move to its device.
        origin: The origin of the fit.
        public: The public examples.
        make: Learns the tensors.

    Raises:
        InputError: If the stored fit has another origin.
    """

    return learned_by(view.fits, origin, public, make, view.like)


def learned_by(
    fits: Fits, origin: Origin, public: Public, make: Callable[[], Parameters], like: Tensor
) -> tuple[Parameters, Fit]:
    """Return the same as `learned` from a source of fits, with tensors on the device of `like`; a server has no view."""

    def fit() -> Fitted:
        began = time.perf_counter()
        tensors = make()
        return Fitted(origin, tensors, Fit(time.perf_counter() - began, len(public.labels)))

    fitted = fits(origin, fit)
    return fitted.read(origin, like), fitted.fit


def _answers(public: Public) -> dict[str, Tensor]:
    return {} if public.answers is None else {"answers": public.answers}


def _weights(view: View) -> list[str]:
    network = view.network
    tensors = ({**network.frozen, **network.parameters}, network.statistics, network.memory)
    return [repr(network.model), str(mixes_examples(network.model)), *map(tensor_hash, tensors)]


def _acting(view: View) -> dict[str, Any]:
    """Return {station before the leakage point: its description} of the stations that do anything."""
    return {name: describe(does) for name, does in vars(view.stations.before(view.tap)).items() if does}


def _defense(view: View) -> list[Any]:
    acting = _acting(view)
    return [acting, dataclasses.asdict(view.clock) if acting else None]


def _place(view: View) -> list[Any]:
    """Return the shapes of an update and whether it consists of gradients.

    The learning rate counts only if a station acts on the update, which is in its units.
    """
    scaled = not {"client", "server"}.isdisjoint(_acting(view))
    return [list(view.shape), view.classes, view.examples, view.learning_rate if scaled else None, view.of_gradients]


def _code(module: str) -> str:
    package = Path(__file__).parent.parent.parent
    digest = hashlib.sha256()
    for name, source in sources(module).items():
        digest.update(name.encode() + source)
    for place in (package / name for name in CODE):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else (place,):
            digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()
