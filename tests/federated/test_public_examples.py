"""Public examples: what is computed of them once, and what a copy keeps."""

from __future__ import annotations

import dataclasses
import pickle

import torch

from leakbench.attack.public import channel_moments
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.federated.view import Public, View
from leakbench.models import build, parameters


def public(dtype: torch.dtype = torch.float32) -> Public:
    rng = generator(0, "public")
    return Public(torch.rand(20, 3, 8, 8, generator=rng, dtype=dtype), torch.arange(20) % 4)


def view(known: Public, dtype: torch.dtype = torch.float32) -> View:
    model = build("mlp", (3, 8, 8), 4, generator(0, "model"), "default").to(dtype)
    network = Network(model, parameters(model))
    update = {name: torch.zeros(1, *p.shape, dtype=dtype) for name, p in network.parameters.items()}
    return View("type-2", network, update, 1, (3, 8, 8), 4, 0.1, public=known)


def test_each_key_is_computed_once() -> None:
    known, calls = public(), list[Public]()
    assert known.once("a", lambda p: calls.append(p) or len(calls)) == 1  # type: ignore[func-returns-value]
    assert known.once("a", lambda p: calls.append(p) or len(calls)) == 1  # type: ignore[func-returns-value]
    assert known.once("b", lambda p: calls.append(p) or len(calls)) == 2  # type: ignore[func-returns-value]
    assert calls == [known, known]
    assert known.first(5) is known.first(5) and len(known.first(5).labels) == 5 and len(known.first(19).labels) == 19
    assert known.first(20) is known is known.first(21)


def test_searches_share_a_prior_of_the_same_settings_only() -> None:
    known = public()
    one, again = (Whitened(source="public", weight=w)._prior(view(known))[0] for w in (1.0, 2.0))
    assert one is again
    others = [
        Whitened(source="public", floor=0.1)._prior(view(known))[0],
        Whitened(source="public", by_class=True)._prior(view(known))[0],
        Whitened(source="public", public=10)._prior(view(known))[0],
        Whitened(source="public")._prior(view(known, torch.float64))[0],
    ]
    assert len({id(white) for white in (one, *others)}) == 5
    assert others[3].mean.dtype == torch.float64

    class Other(Whitened):
        pass

    assert Other(source="public")._prior(view(known))[0] is not one


def test_copies_of_other_examples_compute_again() -> None:
    known = public()
    channel_moments(known)
    other = dataclasses.replace(known, inputs=known.inputs * 2)
    assert torch.allclose(channel_moments(other)[0], 2 * channel_moments(known)[0])
    Whitened(source="public")._prior(view(known))
    copy = pickle.loads(pickle.dumps(known))
    assert torch.equal(copy.inputs, known.inputs) and not copy.found and known.found
