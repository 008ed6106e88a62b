"""Identification by a defense's selection, by the nearest neighbour of the reconstruction, and the choice between both."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from leakbench.attack.posterior import missed
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.reconstructed import certain, chosen, explains, nearest
from leakbench.attack.rankings.selected import mask_likelihood, selects, value_likelihood, without_selection
from leakbench.cell import Request, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.prune import PruneRandom, PruneThreshold
from leakbench.defense.transform import Stations, Transform
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, aware, candidates, draw_victims, view_of
from leakbench.federated.view import View
from leakbench.measure.recognised import high_passed, scaled
from leakbench.measure.truth import VictimTruth
from leakbench.scoring.rankings import identified_first
from leakbench.scoring.scores_rankings import IDENTIFIED_BY, score_rankings

VICTIMS = 12


def shown(transform: Transform, batch: int = 1, observations: int = 1, knows: bool = True) -> tuple[View, Tensor]:
    """Return the updates of `VICTIMS` digit clients after a transform at the client station, candidates,
    and each victim's position.
    """
    asked = Request(dataset="digits", attack="identification", victims=VICTIMS, train_rounds=0, leak_batch=batch)
    some = resolve_cell(dataclasses.replace(asked, candidates=200, observations=observations), None)
    some = dataclasses.replace(some, defense=dataclasses.replace(some.defense, client=(transform,)))
    victims = draw_victims(some, "type-1", 0, hand_out(some))
    sent = Sent(Network(*fresh_network(some, trained=False)))
    view = view_of(some, "type-1", 0, victims, torch.arange(VICTIMS), sent)
    among, own = candidates(some, victims)
    view = aware(view, some) if knows else dataclasses.replace(view, stations=Stations())
    return dataclasses.replace(view, candidates=among), own


def share(view: View, own: Tensor) -> float:
    return float((Candidates()((view,), ()).scores.argmax(1) == own).double().mean())


@pytest.mark.parametrize(
    "transform",
    [
        PruneRandom(0.1, 0.0001),
        PruneRandom(0.02),
        PruneRandom(0.1, 0.0001, noise=0.001),
        PruneThreshold(0.9),
    ],
)
def test_the_sent_coordinates_identify_the_victim(transform: Transform) -> None:
    view, own = shown(transform)
    assert selects(view)
    assert share(view, own) == 1.0


def test_an_attacker_that_does_not_know_the_selection_is_misled_by_short_gradients() -> None:
    """Nine tenths of the coordinates are missing: the squared distance over all of them prefers candidates with short gradients."""
    view, own = shown(PruneRandom(0.1, 0.0001), knows=False)
    assert not selects(view)
    assert share(view, own) < 0.5


def test_in_a_batch_the_sent_coordinates_rank_above_chance() -> None:
    view, own = shown(PruneRandom(0.3, 0.0001), batch=2)
    assert share(view, own) > 0.25


def test_scores_of_releases_with_different_selections_add_up() -> None:
    view, _ = shown(PruneRandom(0.1, 0.0001))
    rest = dataclasses.replace(view, update={n: u.roll(1, 0) for n, u in view.update.items()})
    both = Candidates()((view, rest), ()).scores
    torch.testing.assert_close(both, Candidates()((view,), ()).scores + Candidates()((rest,), ()).scores)


def test_only_selections_are_ignored_for_a_candidate_in_a_batch() -> None:
    view, _ = shown(PruneThreshold(0.5))
    clip = ClipWhole(1.0)
    view = dataclasses.replace(view, stations=dataclasses.replace(view.stations, client=(PruneThreshold(0.5), clip)))
    assert without_selection(view).client == (clip,)


def test_the_mask_likelihood_is_that_of_the_most_likely_probabilities() -> None:
    """Six of eight coordinates could be sent and three were: 3 log(1/2) + 3 log(1/2).

    The others were not sent, which is certain.
    """
    sent = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0]]).bool()
    could = torch.tensor(
        [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1], [1] * 8, [0] * 8]
    ).bool()
    scores = mask_likelihood(sent, could)[0].tolist()
    alike = 3 * math.log(3 / 8) + 5 * math.log(5 / 8)
    assert scores == pytest.approx([6 * math.log(1 / 2), 0.0, alike, alike, alike])


def test_the_value_likelihood_is_gaussian_or_of_the_most_likely_noise() -> None:
    y = torch.tensor([[1.0, 0.0, -2.0, 0.0]])
    g = torch.tensor([[1.0, 9.0, -2.0, 9.0], [2.0, 0.0, -2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert value_likelihood(y, g, 0.5)[0].tolist() == pytest.approx([0.0, -2.0, -10.0])
    exact, near, far = value_likelihood(y, g, None)[0].tolist()
    assert exact == pytest.approx(-math.log(1e-12 * 2.5)) and near == pytest.approx(math.log(2)) and far < near
    nothing = value_likelihood(torch.zeros(1, 4), g, None)
    assert nothing.tolist() == [[0.0, 0.0, 0.0]]


def pictures(many: int, seed: int) -> Tensor:
    return torch.rand(many, 1, 5, 5, generator=generator(seed, "pictures"))


CANDIDATES, PUBLIC = pictures(300, 0), pictures(200, 1)


def test_the_nearest_candidate_of_any_member_of_the_batch_comes_first() -> None:
    inputs = pictures(4 * 3, 2).reshape(4, 3, 1, 5, 5)
    inputs[0, 2], inputs[1, 0] = CANDIDATES[7] + 0.02, CANDIDATES[8]
    inputs[1, 1:], inputs[2] = math.nan, math.nan
    found = nearest(inputs, CANDIDATES)
    assert found.scores[:2].argmax(1).tolist() == [7, 8]
    mine, theirs = (scaled(high_passed(x.double())) for x in (inputs[3], CANDIDATES))
    slow = -(mine[:, None] - theirs[None]).square().flatten(2).mean(2).sqrt().amin(0)
    torch.testing.assert_close(found.scores[3], slow)
    rows = nearest(inputs[3].flatten(1)[None], CANDIDATES.flatten(1)).scores[0]
    slow = -(inputs[3][:, None] - CANDIDATES[None]).square().flatten(2).mean(2).sqrt().amin(0)
    torch.testing.assert_close(rows, slow.double())
    assert found.scores[2].isnan().all()
    assert certain(found, PUBLIC, CANDIDATES).tolist() == [True, True, False, False]


def test_an_unrelated_picture_is_certain_about_once_in_201() -> None:
    """Sharp, shrunk towards the mean, and the mean itself."""
    others = pictures(4000, 3)[:, None]
    sure = certain(nearest(others, CANDIDATES), PUBLIC, CANDIDATES).double().mean()
    assert sure < 5 / 201
    for keep in (0.3, 0.0):
        dull = 0.5 + keep * (others - 0.5)
        assert certain(nearest(dull, CANDIDATES), PUBLIC, CANDIDATES).double().mean() < 5 / 201


def test_copies_of_candidates_and_duplicates_do_not_make_it_certain() -> None:
    inputs = CANDIDATES[:10, None] + 0.01
    copies = torch.cat([PUBLIC, CANDIDATES[5:6]])
    assert certain(nearest(inputs, CANDIDATES), copies, CANDIDATES).all()
    twice = torch.cat([CANDIDATES, CANDIDATES])
    assert not certain(nearest(CANDIDATES[:10, None], twice), PUBLIC, twice).any()
    assert not certain(nearest(inputs, CANDIDATES[:1]), PUBLIC, CANDIDATES[:1]).any()


def test_each_victim_has_one_chosen_candidate_so_chance_is_one_in_k() -> None:
    likelihood, reconstruction = (
        Ranking(torch.tensor([[1.0, 0.0], [1.0, 0.0]])),
        Ranking(torch.tensor([[0.0, 1.0]] * 2)),
    )
    assert chosen(likelihood, reconstruction, torch.tensor([True, False])).scores.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_other_batch_members_among_the_candidates_are_not_wrong() -> None:
    """The victim of lane 0 is candidate 1, the other batch member is candidate 2; the latter's higher score does not count."""
    labels = torch.zeros(2, 2, dtype=torch.int64)
    examples = torch.tensor([[11, 12], [10, 19]])
    real = VictimTruth(
        torch.arange(2), torch.zeros(2, 2, 1), labels, examples, torch.tensor([1, 0]), torch.tensor([10, 11, 12])
    )
    assert real.others is not None and real.others.tolist() == [[False, False, True], [False, False, False]]
    scores = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    assert identified_first(scores, real).tolist() == [1.0, 0.0]
    assert identified_first(scores, dataclasses.replace(real, shown=None)).tolist() == [0.0, 0.0]
    answers = {name: Ranking(scores) for name in ("identified", IDENTIFIED_BY[0])}
    answers["label_ranked"] = Ranking(torch.zeros(2, 1))
    rows = score_rankings(answers, torch.tensor([10, 11, 12]), torch.zeros(1, dtype=torch.int64), real)
    assert rows["identified_by_likelihood"].tolist()[::2] == [1.0, 0.0]
    assert rows["identified_by_reconstruction"].isna().all() and math.isnan(rows["identified_by_likelihood"][1])


def test_a_reconstruction_that_explains_the_leak_is_trusted_unless_noise_hides_it() -> None:
    """The truth with a small error explains it; the public mean, a wrong picture and the truth behind strong noise do not."""
    view, _ = shown(PruneThreshold(0.0), batch=2)
    some = pictures_of_digits(VICTIMS * 3).reshape(VICTIMS, 3, *view.shape)
    real, wrong = some[:, :2], some[:, 1:]
    labels = torch.zeros(VICTIMS, 2, dtype=torch.int64)
    targets = torch.nn.functional.one_hot(labels, view.classes).float()
    seen = dataclasses.replace(view, update=view.respond(real, targets))
    public = pictures_of_digits(100)
    answer = answer_of((real + 0.001).clamp(0, 1), labels)
    assert explains((seen,), answer, public).all()
    for other in (wrong, public.mean(0).expand_as(real), torch.full_like(real, math.nan)):
        assert not explains((seen,), answer_of(other, labels), public).any()
    noisy = {n: u + torch.randn(u.shape, generator=generator(7, n)) for n, u in seen.update.items()}
    assert not explains((dataclasses.replace(seen, update=noisy),), answer, public).any()


def test_a_reconstruction_must_explain_99_percent_and_all_members() -> None:
    """At least 99 % of what the public mean leaves unexplained; a member without a label counts as missing."""
    view, _ = shown(PruneThreshold(0.0))
    real, public = pictures_of_digits(VICTIMS).reshape(VICTIMS, 1, *view.shape), pictures_of_digits(100)
    labels = torch.zeros(VICTIMS, 1, dtype=torch.int64)
    targets = torch.nn.functional.one_hot(labels, view.classes).float()
    seen = dataclasses.replace(view, update=view.respond(real, targets))
    mean = public.mean(0).expand_as(real)
    most = missed(seen, answer_of(mean.contiguous(), labels))[0]
    verdicts: dict[bool, set[bool]] = {True: set(), False: set()}
    for towards in (0.01, 0.3, 0.6):
        answer = answer_of(torch.lerp(real, mean, towards), labels)
        left = missed(seen, answer)[0] / most
        for explained, share in zip(explains((seen,), answer, public).tolist(), left.tolist(), strict=True):
            verdicts[share <= 0.01].add(explained)
    assert verdicts == {True: {True}, False: {False}}
    assert not explains((seen,), answer_of(real, labels - 1), public).any()


def pictures_of_digits(many: int) -> Tensor:
    return resolve_cell(Request(dataset="digits", attack="identification", train_rounds=0), None).data.public_inputs[
        :many
    ]


def answer_of(inputs: Tensor, labels: Tensor) -> Reconstruction:
    nothing = torch.zeros(1)
    return Reconstruction(inputs, labels, *(nothing,) * 5, (0,), nothing)
