"""Rankings behind Soteria use the coordinates that were sent, without computing a mask for each candidate."""

import dataclasses

import pytest
import torch

from leakbench.attack.public_gradients import before_mask, flat
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.classes import Classes
from leakbench.core.types import Network
from leakbench.defense import soteria
from leakbench.defense.clip import ClipWhole
from leakbench.defense.soteria import Soteria
from leakbench.defense.transform import Stations
from leakbench.federated.view import Public, View
from leakbench.models import build, one_hot, parameters

V, SHAPE, CLASSES = 3, (1, 8, 8), 4


def view() -> View:
    """Return the leak of three random pictures behind Soteria; the candidates are 20 pictures that include them."""
    rng = torch.Generator().manual_seed(0)
    model = build("lenet_cpl", SHAPE, CLASSES, rng)
    shown = Public(torch.rand(20, *SHAPE, generator=rng), torch.arange(20) % CLASSES)
    empty = {n: p.new_zeros(V, *p.shape) for n, p in model.named_parameters()}
    blind = View(
        *("type-2", Network(model, parameters(model)), empty, 1, SHAPE, CLASSES, 0.1),
        stations=Stations(example=(Soteria(0.6),)),
        candidates=shown,
        public=shown,
    )
    targets = one_hot(shown.labels[:V, None], CLASSES)
    return dataclasses.replace(blind, update=blind.respond(shown.inputs[:V, None], targets))


def test_the_score_is_the_squared_distance_over_the_sent_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """No candidate's mask is computed, and each victim is found among the candidates."""
    seen = view()
    monkeypatch.setattr(soteria, "representation_scores", None)
    scores = Candidates()((seen,), ()).scores
    assert scores.argmax(1).tolist() == [0, 1, 2]
    assert seen.candidates is not None
    bare = dataclasses.replace(seen, stations=Stations())
    alike = bare.of(torch.zeros(20, dtype=torch.int64))
    every = flat(alike.respond(seen.candidates.inputs[:, None], one_hot(seen.candidates.labels[:, None], CLASSES)))
    for victim, y in enumerate(flat(seen.update)):
        sent = y != 0
        assert 0 < int(sent.sum()) < sent.numel()
        apart = (y[sent] - every[:, sent]).square().sum(1)
        torch.testing.assert_close(y.square().sum() - scores[victim], apart, atol=1e-4, rtol=1e-3)
    assert Classes()((seen,), ()).scores.argmax(1).tolist() == [0, 1, 2]


def test_other_defenses_and_batches_are_compared_as_before() -> None:
    seen = view()
    assert before_mask(seen) is not None
    assert before_mask(dataclasses.replace(seen, stations=Stations())) is None
    both = Stations(example=(Soteria(0.6), ClipWhole(1.0)))
    assert before_mask(dataclasses.replace(seen, stations=both)) is None
    assert before_mask(dataclasses.replace(seen, tap="type-1", batch=2)) is None
