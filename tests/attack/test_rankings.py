"""The rankings next to every attack: one table defines each question, its inputs, and its right answers."""

import dataclasses
from typing import Any, ClassVar

import pytest
import torch
from small_table import FEATURES
from torch import Tensor

from leakbench.attack import Attack
from leakbench.attack.needs import Needs
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.classes import Classes
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.types import Generators, Network
from leakbench.experiment import rankings as asking
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, candidates, draw_victims, public_examples, view_of
from leakbench.federated.view import View
from leakbench.measure.truth import VictimTruth
from leakbench.scoring.rankings import ONE_EACH, RANKINGS, Question, told
from leakbench.scoring.scores import COLUMNS
from leakbench.storage.summary import Tap
from leakbench.summary.limits import BOUNDS

CATEGORIES = tuple(f for f in FEATURES if f.values)
LANES = torch.arange(3)


def truth(inputs: Tensor, labels: Tensor, own: Tensor) -> VictimTruth:
    return VictimTruth(torch.arange(len(own)), inputs, labels, labels, own)


def test_a_ranking_joins_its_questions() -> None:
    scores = torch.arange(10.0).reshape(2, 5)
    both = Ranking(scores, {"first": 2, "second": 3})
    assert torch.equal(both.of("first").scores, scores[:, :2])
    assert torch.equal(both.of("second").scores, scores[:, 2:])
    whole = Ranking(scores).of("any")
    assert torch.equal(whole.scores, scores) and not whole.parts
    with pytest.raises(ValueError, match="third"):
        both.of("third")


def test_victims_without_a_public_class_are_not_counted_as_wrong() -> None:
    """A class without a public example scores -inf; a candidate does only if the model diverged."""
    real = truth(torch.zeros(3, 1, 2), torch.tensor([[0], [1], [2]]), torch.tensor([0, 1, 2]))
    scores = torch.tensor([[1.0, 0.0, 0.0], [1.0, -torch.inf, 1.0], [0.0, 2.0, 2.0]])
    answers = {"identified": Ranking(scores), "label_ranked": Ranking(scores)}
    assert told(answers, "identified", real)["identified"].tolist() == [1.0, 0.0, 0.5]
    found = told(answers, "label_ranked", real)["label_ranked"]
    assert found.tolist() == pytest.approx([1.0, float("nan"), 0.5], nan_ok=True)


def test_each_attribute_has_a_column_unless_nothing_was_ranked() -> None:
    names = [f"attribute_{f.name}" for f in CATEGORIES]
    inputs = torch.zeros(2, 1, FEATURES[-1].stop)
    real = truth(inputs, torch.zeros(2, 1, dtype=torch.int64), torch.arange(2))
    absent = told({}, "attribute", real, CATEGORIES)
    assert list(absent) == names and all(column.isnan().all() for column in absent.values())
    for f in CATEGORIES:
        inputs[:, 0, f.start] = 1.0
    sizes = {f.name: len(f.values) for f in CATEGORIES}
    one_hot = torch.cat([torch.eye(2, many)[[0, 1]] for many in sizes.values()], 1)
    found = told({"attribute": Ranking(one_hot, sizes)}, "attribute", real, CATEGORIES)
    assert all(column.tolist() == [1.0, 0.0] for column in found.values())


def test_rows_and_bounds_follow_the_table() -> None:
    """The rows have a column for each question about one example; a bound starts from the question's own kappa."""
    assert set(ONE_EACH) < set(COLUMNS) and set(ONE_EACH) < set(RANKINGS)
    measured = Tap.model_construct(candidates=40, null_label=0.3, batch=2, null_asr_high=0.1)
    held = {bound.measure: bound for bound in BOUNDS}
    for name, kappa in (("identified", 1 / 40), ("label_ranked", 0.3)):
        assert held[name].kappa(measured) == RANKINGS[name].kappa(measured) == kappa
        assert held[name].said == RANKINGS[name].said
    assert RANKINGS["attribute"].kappa({"null": 0.6}) == 0.6


def cell(attack: str = "cpl", **asked: Any) -> Cell:
    usual = {"dataset": "digits", "victims": 3, "train_rounds": 0, "candidates": 20, "taps": ("type-2",)}
    return resolve_cell(Request(**{**usual, "attack": attack, **asked}), None)


def shown_of(some: Cell) -> tuple[tuple[View, ...], Any]:
    victims = draw_victims(some, "type-2", 0, hand_out(some))
    sent = Sent(Network(*fresh_network(some, trained=False)))
    return (view_of(some, "type-2", 0, victims, LANES, sent),), candidates(some, victims)[0]


NOTHING = torch.zeros(3, 1)
REBUILT = Reconstruction(torch.full((3, 1, 1, 8, 8), torch.nan), *(NOTHING,) * 6, (0,), NOTHING)


def test_each_ranking_gets_its_inputs_and_a_ranking_attack_is_used_for_its_question() -> None:
    some = cell()
    views, shown = shown_of(some)
    found = asking.rankings(some, views, shown, (), REBUILT, ())
    assert list(found) == ["identified", "label_ranked", "identified_by_likelihood", "identified_by_reconstruction"]
    given = dataclasses.replace(views[0], candidates=shown, public=public_examples(some, Classes.needs.public))
    assert torch.equal(found["identified"].scores, Candidates()((given,), ()).scores)
    assert torch.equal(found["label_ranked"].scores, Classes()((given,), ()).scores)
    own = Ranking(torch.ones(3, 20))
    for method, name in ((Candidates(), "identified"), (Classes(), "label_ranked")):
        ranks = dataclasses.replace(some, attack=Attack(title="t", cite="c", method=method))
        answers = asking.rankings(ranks, views, shown, (), own, ())
        assert answers[name] is own and set(answers) == set(found) - {"identified_by_reconstruction"}


@dataclasses.dataclass(frozen=True)
class Alone:
    """Reads one example, and as many public ones as it needs."""

    needs: ClassVar[Needs] = Needs(alone=True, public=7)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        public = views[0].public
        return Ranking(torch.zeros(views[0].victims, 0 if public is None else len(public.labels)))


def test_every_line_of_the_table_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked if it reads one example and several leaked together."""
    line = Question("new", lambda _: Alone(), lambda real, _: {"new": real.own}, lambda _: 0.5)
    monkeypatch.setitem(RANKINGS, "new", line)
    some = cell()
    views, shown = shown_of(some)
    assert asking.rankings(some, views, shown, (), REBUILT, ())["new"].scores.shape == (3, 7)
    batch = tuple(dataclasses.replace(view, tap="type-1", batch=2) for view in views)
    several = dataclasses.replace(
        REBUILT, inputs=REBUILT.inputs.expand(3, 2, 1, 8, 8), labels=torch.zeros(3, 2, dtype=torch.int64)
    )
    assert "new" not in asking.rankings(some, batch, shown, (), several, ())
