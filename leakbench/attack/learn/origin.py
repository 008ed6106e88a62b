"""How a part learns: what its fit depends on, each thing by a hash of its content, and the one place where it is asked for."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from leakbench.answers import Fit
from leakbench.attack.learn.sources import sources
from leakbench.federated.view import Public, View
from leakbench.fitted import Fitted, Origin
from leakbench.recipe import describe
from leakbench.store import content_hash, tensor_hash
from leakbench.types import Parameters

__all__ = ["learned", "origin_of"]

CODE = ("defense", "federated", "models", "gram.py", "rng.py", "types.py")
"""What of this package every fit may run, beside what its part imports of `leakbench.attack`: a change there is another fit."""


def origin_of(
    part: str, module: str, fields: Mapping[str, Any], public: Public, views: tuple[View, ...] = ()
) -> Origin:
    """Return the origin of what `part`, by its own `fields`, learns of public examples and, where it reads them, of views.

    Args:
        module: The `__name__` of the one in which the part stands. PyTorch's version counts too, since another sums in another
            order. Of a view counts what an example would leak alone: the weights and statistics of the network, the stations that
            the attacker runs with their clock, the noise, and where they stand. Two taps between which nothing acts are one
            origin. Nothing that leaked counts, nor do the victims.
    """
    found = {
        "part": part,
        "fields": content_hash(dict(fields)),
        "public examples": tensor_hash({"inputs": public.inputs, "labels": public.labels}),
        "code": _code(module),
        "torch": torch.__version__,
    }
    if views:
        found["weights"] = content_hash([_weights(view) for view in views])
        found["defense"] = content_hash([_defense(view) for view in views])
        found["noise"] = content_hash([view.noise for view in views])
        found["leakage point"] = content_hash([_place(view) for view in views])
    return found


def learned(view: View, origin: Origin, public: Public, make: Callable[[], Parameters]) -> tuple[Parameters, Fit]:
    """Return what `make` learns of public examples, {name: tensor}, and what that took; kept of this origin, it is not made anew.

    Args:
        view: Whose `fits` are asked, and on whose device it is used. Raises InputError where what was kept is of something else.
    """

    def fit() -> Fitted:
        began = time.perf_counter()
        tensors = make()
        return Fitted(origin, tensors, Fit(time.perf_counter() - began, len(public.labels)))

    fitted = view.fits(origin, fit)
    return fitted.read(origin, next(iter(view.update.values()))), fitted.fit


def _weights(view: View) -> list[str]:
    network = view.network
    tensors = (network.parameters, network.statistics, network.memory)
    return [repr(network.model), str(network.model.training), *map(tensor_hash, tensors)]


def _acting(view: View) -> dict[str, Any]:
    """Return {station before the tap: what it does}, of those that do anything."""
    return {name: describe(does) for name, does in vars(view.stations.before(view.tap)).items() if does}


def _defense(view: View) -> list[Any]:
    acting = _acting(view)
    return [acting, dataclasses.asdict(view.clock) if acting else None]


def _place(view: View) -> list[Any]:
    """Return the grid behind the leak, and whether it is of gradients; the length of a step only where a station acts on the
    update, which is in its units.
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
