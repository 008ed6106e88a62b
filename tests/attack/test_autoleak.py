"""autoleak, the worst case over several attacks: which victims each stage gets, and how the attacker chooses."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.doubts import OUTDONE, STUCK, UNCHECKED, UNCONVERGED, UNKNOWN, twins
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.lmmse import Lmmse
from leakbench.attack.methods.stage import Reconstructs, Stage
from leakbench.attack.needs import needs_of
from leakbench.attack.posterior import missed, posterior, prior_of
from leakbench.attack.slots.descent import LbfgsDescent
from leakbench.attack.slots.distance import Likelihood
from leakbench.attack.slots.labels import LastLayer
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations, searches_of
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.types import Generators, Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.sign import Sign
from leakbench.defense.transform import Stations
from leakbench.federated.view import Public, View
from leakbench.models import one_hot, parameters

V, SHAPE = 4, (1, 2, 2)


def truth() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(V, 1, *SHAPE, generator=generator).double(), torch.tensor([[0], [1], [2], [1]])


def view(noise: float | None = None) -> View:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    x, labels = truth()
    empty = {n: p.new_zeros(V, *p.shape) for n, p in model.named_parameters()}
    blind = View("type-2", Network(model, parameters(model)), empty, 1, SHAPE, 3, 0.1, noise=noise)
    return dataclasses.replace(blind, update=blind.respond(x, one_hot(labels, 3).double()), labels=labels)


@dataclasses.dataclass
class Stub:
    """Returns the truth, identified by its labels' positions, minus `off`; counts its calls."""

    off: Tensor
    asked: list[list[int]]

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        x, labels = truth()
        everyone, seen = view(), next(iter(views[0].update.values()))
        mine = [next(v for v in range(V) if torch.equal(u, next(iter(everyone.update.values()))[v])) for u in seen]
        self.asked.append(mine)
        assert [rng.initial_seed() for rng in rngs] == mine
        n = len(mine)
        inputs = (x[mine] + self.off[mine].reshape(-1, 1, 1, 1, 1)).clamp(0, 1)
        one = torch.ones(n, dtype=torch.int64)
        return Reconstruction(
            inputs=inputs,
            labels=labels[mine],
            certainty=torch.zeros(n, 1).double(),
            trajectory=torch.zeros(2, n).double(),
            steps=2 * one,
            evaluations=5 * one,
            iterates=torch.stack([inputs * 0, inputs]),
            snapshots=(1, 2),
            spent=torch.stack([one, 5 * one]),
        )


def leaking(*methods: Reconstructs) -> AutoLeak:
    """Return an ensemble whose stages run on every network."""
    return AutoLeak(stages=tuple(Stage(method=method) for method in methods))


def rngs() -> Generators:
    return tuple(torch.Generator().manual_seed(v) for v in range(V))


def test_later_stages_get_the_victims_that_are_not_reconstructed():
    first, second, third = (
        Stub(torch.tensor(off).double(), []) for off in ([0, 0.3, 0.3, 0], [0, 0, 0.2, 0], [0.4] * 4)
    )
    answer = leaking(first, second, third)((view(),), rngs())
    assert [s.asked for s in (first, second, third)] == [[[0, 1, 2, 3]], [[1, 2]], [[2]]]
    x, _ = truth()
    torch.testing.assert_close(answer.inputs[[0, 1, 3]], x[[0, 1, 3]])
    # The third is further off by its own distance.
    torch.testing.assert_close(answer.inputs[2], (x[2] + 0.2).clamp(0, 1))
    assert answer.steps.tolist() == [2, 4, 6, 2]
    assert answer.evaluations.tolist() == [5, 10, 15, 5]
    assert answer.snapshots == (1, 2, 3, 4, 5, 6)
    assert answer.spent.tolist() == [
        [1, 1, 1, 1],
        [5, 5, 5, 5],
        [5, 6, 6, 5],
        [5, 10, 10, 5],
        [5, 10, 11, 5],
        [5, 10, 15, 5],
    ]
    torch.testing.assert_close(answer.iterates[-1], answer.inputs)
    # Until the search ends, the previous reconstruction remains.
    torch.testing.assert_close(answer.iterates[2], answer.iterates[1])
    assert answer.trajectory.shape == (6, V)
    assert answer.trajectory[2:4].isnan().tolist() == [[True, False, False, True]] * 2


@pytest.mark.parametrize(
    ("where", "runs"), [("always", (1, 1, 1)), ("begins_linear", (1, 1, 0)), ("kinked", (0, 1, 1))]
)
def test_a_stage_runs_only_on_networks_it_supports(where, runs):
    """On a linear layer alone, before a ReLU, on a convolution with a ReLU; not on tables before a ReLU."""
    smooth, mixed = (
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()),
    )
    convolved = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    further = Stub(torch.zeros(V).double(), [])
    stage = Stage(method=further, where=where)
    assert [stage.runs_on(model.double(), SHAPE) for model in (smooth, mixed, convolved)] == [bool(r) for r in runs]
    rectified = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).double()
    assert stage.runs_on(rectified, (4,)) is (where != "kinked")
    plain = Stub(torch.tensor([0, 0.3, 0, 0]).double(), [])
    AutoLeak(stages=(Stage(method=plain), stage))((view(),), rngs())
    assert further.asked == ([[1]] if runs[0] else [])


def test_an_attack_that_learns_can_be_a_stage():
    """`lmmse` can replace a search; a ranking, which reconstructs no picture, is refused."""
    built = construct(AutoLeak, {"stages": [{"method": "lmmse"}]})
    assert isinstance(built.stages[0].method, Lmmse)
    assert needs_of(built).public == Lmmse().public
    with pytest.raises(InputError, match=r"stages\.0: method: unknown part 'candidates'"):
        construct(AutoLeak, {"stages": [{"method": "candidates"}]})
    with pytest.raises(InputError, match=r"stages\.0: where"):
        construct(AutoLeak, {"stages": [{"method": "lmmse", "where": "never"}]})


def test_under_noise_nothing_is_certain_and_every_stage_runs():
    stages = tuple(Stub(torch.zeros(V).double(), []) for _ in range(3))
    leaking(*stages)((view(noise=0.1),), rngs())
    assert [s.asked for s in stages] == [[[0, 1, 2, 3]]] * 3


def test_the_likeliest_reconstruction_wins_in_any_order():
    near, far = Stub(torch.full((V,), 0.1).double(), []), Stub(torch.full((V,), -0.3).double(), [])
    for stages in ((near, far), (far, near)):
        answer = leaking(*stages)((view(noise=0.01),), rngs())
        torch.testing.assert_close(answer.inputs, (truth()[0] + 0.1).clamp(0, 1))
        torch.testing.assert_close(answer.certainty[:, 0], -posterior((view(noise=0.01),), answer, prior_of(view())))


def test_a_missing_reconstruction_is_never_preferred():
    lost, found = Stub(torch.full((V,), torch.nan).double(), []), Stub(torch.full((V,), 0.5).double(), [])
    for stages in ((lost, found), (found, lost)):
        assert leaking(*stages)((view(),), rngs()).inputs.isfinite().all()


def test_an_ensemble_without_stages_is_refused():
    with pytest.raises(InputError, match="at least one"):
        leaking()((view(),), rngs())


def test_a_view_of_some_victims_shows_theirs():
    whole = view()
    own = {n: torch.stack([(v + 1) * p for v in range(V)]) for n, p in whole.network.parameters.items()}
    apart = dataclasses.replace(whole, network=dataclasses.replace(whole.network, parameters=own, shared=False))
    few = apart.of(torch.tensor([3, 1]))
    assert few.victims == 2
    assert few.labels is not None and few.labels.tolist() == [[1], [1]]
    for name, p in own.items():
        torch.testing.assert_close(few.network.parameters[name], p[[3, 1]])
        torch.testing.assert_close(few.update[name], whole.update[name][[3, 1]])
    assert few.logits is None


def searched(learning_rate: float = 1.0) -> AutoLeak:
    """Return one search by likelihood in pixels, from grey."""
    return leaking(
        GradientMatching(
            labels=LastLayer(),
            start=Constant(value=0.5, deviation=0.1),
            distance=Likelihood(),
            descent=LbfgsDescent(learning_rate=learning_rate),
            stop=Iterations(40),
        )
    )


def behind_a_defense(noise: float | None = 0.1, public: int = 3) -> View:
    """Return the four victims of `view` with some noise added, and public examples of each label."""
    shown = view(noise=noise)
    generator = torch.Generator().manual_seed(3)
    noisy = {n: u + 0.1 * torch.randn(u.shape, generator=generator).double() for n, u in shown.update.items()}
    examples = Public(torch.rand(public, *SHAPE, generator=generator).double(), torch.arange(public) % 3)
    return dataclasses.replace(shown, update=noisy, public=examples, labels=None)


def doubted(answer: Reconstruction) -> dict[str, list[bool]]:
    return {why: whom.tolist() for why, whom in answer.doubts.items() if whom.any()}


def test_a_sound_search_behind_noise_is_not_doubted():
    assert doubted(searched()((behind_a_defense(),), rngs())) == {}


def test_a_broken_optimiser_is_doubted():
    """Its steps are too short to move anything: it neither comes closer nor reconstructs undefended examples."""
    found = doubted(searched(learning_rate=1e-25)((behind_a_defense(),), rngs()))
    assert found == {STUCK: [True] * V, UNCONVERGED: [True] * V}


def test_steps_too_long_are_doubted():
    """They come closer now and then, and still reconstruct nothing."""
    assert UNCONVERGED in doubted(searched(learning_rate=50.0)((behind_a_defense(),), rngs()))


def test_a_search_with_a_less_likely_end_than_another_is_doubted():
    """A search for the likeliest reconstruction that ends at a less likely one than another stage is doubted for those victims."""
    good = Stub(torch.tensor([0.0, 0.0, 0.0, 0.3]).double(), [])
    whole = dataclasses.replace(view(noise=0.1), public=behind_a_defense().public)
    [search] = searches_of(searched(learning_rate=1e-25))
    doubts = leaking(good, search)._answered((whole,), rngs()).doubts
    prior = prior_of(whole)
    least = posterior((whole,), search((whole,), rngs()), prior)
    assert doubts[OUTDONE].tolist() == (posterior((whole,), good((whole,), rngs()), prior) < least - 1).tolist()
    assert doubts[OUTDONE].any()
    assert not leaking(good)._answered((whole,), rngs()).doubts[OUTDONE].any()


@pytest.mark.parametrize("better_first", [True, False])
def test_doubts_do_not_depend_on_the_order_of_two_searches(better_first):
    """The better search ends at the likeliest reconstruction, in either order."""
    [good], [broken] = searches_of(searched()), searches_of(searched(learning_rate=1e-25))
    stages = (good, broken) if better_first else (broken, good)
    doubts = leaking(*stages)._answered((behind_a_defense(),), rngs()).doubts
    assert not doubts[OUTDONE].any()


def test_without_enough_public_examples_nothing_was_checked():
    assert doubted(searched()((behind_a_defense(public=0),), rngs())) == {UNCHECKED: [True] * V}
    pairs = dataclasses.replace(behind_a_defense(public=1), tap="type-1", batch=2)
    assert twins(pairs, 3) is None


def test_unknown_randomness_is_doubted():
    shown = dataclasses.replace(behind_a_defense(noise=None), unknown="none: the noise depends on the data")
    assert UNKNOWN in doubted(searched()((shown,), rngs()))


def test_reconstructed_victims_are_not_doubted():
    """Undefended victims are reconstructed, so the attack needs no doubts."""
    bare = dataclasses.replace(view(), public=behind_a_defense().public, labels=None)
    assert doubted(searched()((bare,), rngs())) == {}


def test_the_checks_use_undefended_public_examples():
    """Three single ones, and a group of two for a batch of two; their leak is their own undefended gradient."""
    shown = dataclasses.replace(behind_a_defense(), stations=Stations(example=(ClipWhole(1e-3),)))
    found = twins(shown, 3)
    assert found is not None
    assert (found.victims, found.noise, found.stations) == (3, None, Stations())
    public = found.public
    assert public is not None
    own = found.respond(public.inputs[:, None], one_hot(public.labels[:, None], 3).double())
    for name, leaked in found.update.items():
        torch.testing.assert_close(leaked, own[name])
        assert float(leaked.abs().max()) > 1e-2
    pairs = twins(dataclasses.replace(shown, tap="type-1", batch=2), 3)
    assert pairs is not None
    assert (pairs.victims, pairs.examples) == (1, 2)


def test_pictures_are_judged_by_public_ones_where_there_are_any():
    """Otherwise by a spectrum that needs no public examples."""
    shown = behind_a_defense()
    z, targets = torch.rand(V, 1, 4).double(), torch.zeros(V, 1, 3).double()
    for public, space in ((shown.public, Whitened(source="public")), (None, Whitened())):
        known = dataclasses.replace(shown, public=public)
        torch.testing.assert_close(prior_of(known).decode(z), space(known).decode(z))
        torch.testing.assert_close(prior_of(known).energy(z, targets), space(known).energy(z, targets))


def test_unknown_noise_is_estimated():
    """For noise of unknown deviation, the closer reconstruction is likelier by half of p times the log ratio of distances."""
    shown = dataclasses.replace(behind_a_defense(noise=None), labels=None)
    answers = [Stub(torch.full((V,), off).double(), [])((view(),), rngs()) for off in (0.05, 0.2)]
    (near, _), (far, _) = (missed(shown, answer) for answer in answers)
    p = sum(u[0].numel() for u in shown.update.values())
    prior = prior_of(shown)
    less = [prior.energy(prior.encode(a.inputs), one_hot(a.labels, 3)) for a in answers]
    one, other = (posterior((shown,), answer, prior) for answer in answers)
    torch.testing.assert_close(one - other, p / 2 * (near / far).log() + less[0] - less[1])


def test_signs_are_judged_by_their_logistic_likelihood():
    """As in a search behind signs, and not by the squared distance of a soft sign from a hard one."""
    shown = dataclasses.replace(view(), stations=Stations(example=(Sign(),)))
    leaked = {n: u.sign() for n, u in shown.update.items()}
    seen = dataclasses.replace(shown, update=leaked)
    answer = Stub(torch.full((V,), 0.1).double(), [])((view(),), rngs())
    guess = seen.respond(answer.inputs, one_hot(answer.labels, 3).double(), by_what_leaked=True)
    prior = Whitened()(seen)
    expected = Likelihood()(guess, leaked, seen) + prior.energy(prior.encode(answer.inputs), one_hot(answer.labels, 3))
    torch.testing.assert_close(posterior((seen,), answer, prior), expected)


def test_progress_without_an_earlier_reconstruction_uses_the_search_value():
    """Its own best value counts from its first iteration on, for victims that the previous stage did not reconstruct."""
    lost = Stub(torch.tensor([torch.nan, torch.nan, 0.3, 0.3]).double(), [])
    answer = leaking(lost, Stub(torch.zeros(V).double(), []))((view(),), rngs())
    assert answer.snapshots == (1, 2, 3, 4)
    torch.testing.assert_close(answer.iterates[2, :2], answer.inputs[:2] * 0)
    torch.testing.assert_close(answer.iterates[2, 2:], answer.iterates[1, 2:])
    torch.testing.assert_close(answer.iterates[3], truth()[0])


def of_truth(off: float = 0.0) -> Reconstruction:
    return Stub(torch.full((V,), off).double(), [])((view(),), rngs())


def test_the_posterior_sums_all_views_and_one_prior():
    """Two releases, the second with twice the noise: minus log-likelihoods add, each by its own view."""
    near, far = view(noise=0.1), view(noise=0.2)
    far = dataclasses.replace(far, update={n: u + 0.3 for n, u in far.update.items()})
    prior, answer = prior_of(near), of_truth(0.1)
    energy = prior.energy(prior.encode(answer.inputs), one_hot(answer.labels, 3).double())
    alone = [posterior((shown,), answer, prior) - energy for shown in (near, far)]
    assert (alone[1] > alone[0]).all()
    torch.testing.assert_close(posterior((near, far), answer, prior), alone[0] + alone[1] + energy)


def test_an_exact_reconstruction_is_judged_only_by_its_prior():
    """Its distance is zero, and the unknown deviation is at least the likelihood's floor, not the rounding error."""
    answer, prior = of_truth(), prior_of(view())
    energy = prior.energy(prior.encode(answer.inputs), one_hot(answer.labels, 3).double())
    torch.testing.assert_close(posterior((view(),), answer, prior), energy, atol=1e-6, rtol=1e-9)


def test_the_distance_is_relative_to_the_length_of_the_observed_update():
    """The length is that of the observed update, for any guess."""
    expected = sum(u.flatten(1).square().sum(1) for u in view().update.values())
    for off in (0.0, 0.4):
        apart, length = missed(view(), of_truth(off))
        torch.testing.assert_close(length, expected)
        assert (apart > 0).all() == (off > 0)


def test_noise_in_one_of_several_views_makes_all_uncertain():
    plain, noisy = view(), view(noise=0.1)
    judged = leaking(Stub(torch.zeros(V).double(), []))
    assert judged._is_broken((plain, plain), of_truth(), prior_of(view())).all()
    assert not judged._is_broken((plain, noisy), of_truth(), prior_of(view())).any()


def test_a_reconstruction_must_match_every_view():
    other = dataclasses.replace(view(), update={n: u + 1 for n, u in view().update.items()})
    judged = leaking(Stub(torch.zeros(V).double(), []))
    assert judged._is_broken((view(),), of_truth(), prior_of(view())).all()
    assert not judged._is_broken((view(), other), of_truth(), prior_of(view())).any()


def test_only_victims_without_a_reconstruction_are_doubted():
    """Too few public examples doubt all victims, but three of four were reconstructed."""
    plain = leaking(Stub(torch.tensor([0, 0, 0, 0.3]).double(), []))(
        (dataclasses.replace(view(), public=None),), rngs()
    )
    assert plain.doubts[UNCHECKED].tolist() == [False, False, False, True]


@dataclasses.dataclass
class Moving:
    """Returns wrong reconstructions, and reports whether its search came closer than its start."""

    moves: bool

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        answer = Stub(torch.full((V,), 0.3).double(), [])((view(),), rngs)
        distance = torch.tensor([2.0, 1.0] if self.moves else [1.0, 2.0]).double()[:, None].expand(-1, V)
        return dataclasses.replace(answer, trajectory=distance, certainty=-distance.amin(0)[:, None])


@pytest.mark.parametrize(
    ("first", "second", "doubted_"), [(False, True, True), (True, False, True), (True, True, False)]
)
def test_a_stuck_stage_stays_doubted_after_later_stages(first, second, doubted_):
    doubts = leaking(Moving(first), Moving(second))._answered((view(),), rngs()).doubts
    assert doubts[STUCK].tolist() == [doubted_] * V


@dataclasses.dataclass
class Some:
    """Returns the public examples, in order, for the first `right` lanes, and grey for the others."""

    right: int

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        shown = views[0]
        inputs = shown.public.inputs[: shown.victims][:, None].clone()
        inputs[self.right :] = 0.5
        one = torch.ones(shown.victims, dtype=torch.int64)
        return Reconstruction(
            inputs=inputs,
            labels=shown.public.labels[: shown.victims][:, None],
            certainty=torch.zeros(shown.victims, 1).double(),
            trajectory=torch.zeros(1, shown.victims).double(),
            steps=one,
            evaluations=one,
            iterates=inputs[None],
            snapshots=(1,),
            spent=one[None],
        )


@pytest.mark.parametrize(("right", "doubt"), [(0, True), (1, True), (2, False), (3, False)])
def test_the_majority_of_public_examples_decides(right, doubt):
    """Three undefended public examples decide by majority."""
    found = leaking(Some(right))._of_twins(behind_a_defense(), rngs()[0])
    assert found[UNCONVERGED].tolist() == [doubt] * V


def test_fewer_coordinates_than_unknowns_certify_nothing():
    """If only three coordinates of an update are left, a reconstruction of four numbers matches them all,
    and is not called exact.
    """
    sparse = {n: torch.zeros_like(u) for n, u in view().update.items()}
    name = next(iter(sparse))
    judged, exact = leaking(Stub(torch.zeros(V).double(), [])), of_truth()
    for kept, certain in ((3, False), (4, True)):
        some = {n: u.clone() for n, u in sparse.items()}
        some[name].flatten(1)[:, :kept] = view().update[name].flatten(1)[:, :kept]
        shown = dataclasses.replace(view(), update=some)
        assert (missed(shown, exact)[1] > 0).all()
        found = AutoLeak(stages=judged.stages, broken=1e6)._is_broken((shown,), exact, prior_of(shown))
        assert found.tolist() == [certain] * V


def test_a_reconstruction_certified_by_few_coordinates_must_be_plausible():
    """Fifteen coordinates are fewer than four times the four numbers. Public examples here are near the middle of the range."""
    generator = torch.Generator().manual_seed(0)
    near = Public(0.5 + 0.01 * torch.randn(50, *SHAPE, generator=generator).double(), torch.arange(50) % 3)
    x, labels = truth()
    middling = torch.full_like(x, 0.5)
    for inputs, certain in ((x, False), (middling, True)):
        blind = dataclasses.replace(view(), public=near)
        shown = dataclasses.replace(blind, update=blind.respond(inputs, one_hot(labels, 3).double()))
        answer = dataclasses.replace(of_truth(), inputs=inputs)
        assert missed(shown, answer)[0].max() < 1e-20
        assert (
            leaking(Stub(torch.zeros(V).double(), []))._is_broken((shown,), answer, prior_of(shown)).tolist()
            == [certain] * V
        )


def test_a_reconstruction_certified_by_many_coordinates_may_be_implausible():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 12), nn.Sigmoid(), nn.Linear(12, 3)).double()
    x, labels = truth()
    near = Public(
        torch.full((50, *SHAPE), 0.5).double() + 1e-3 * torch.arange(50).reshape(-1, 1, 1, 1), torch.arange(50) % 3
    )
    empty = {n: p.new_zeros(V, *p.shape) for n, p in model.named_parameters()}
    blind = View("type-2", Network(model, parameters(model)), empty, 1, SHAPE, 3, 0.1, public=near)
    shown = dataclasses.replace(blind, update=blind.respond(x, one_hot(labels, 3).double()))
    assert leaking(Stub(torch.zeros(V).double(), []))._is_broken((shown,), of_truth(), prior_of(shown)).all()
