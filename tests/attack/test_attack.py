"""Parts of an attack against closed forms, and the batched search against one victim at a time."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.search.lbfgs import Lbfgs, Objective
from leakbench.attack.slots.descent import LbfgsDescent, Terms, snapshot_iterations
from leakbench.attack.slots.distance import SquaredL2
from leakbench.attack.slots.labels import Joint, LastLayer
from leakbench.attack.slots.priors import TotalVariation
from leakbench.attack.slots.space import Coordinates, Pixels
from leakbench.attack.slots.start import Normal, Patterned, Uniform
from leakbench.attack.slots.stop import Iterations
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.data.find import load_dataset
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.models import build, one_hot, parameters


def leaked(
    victims: int, batch: int = 1, tap: str = "type-1", dtype: torch.dtype = torch.float64
) -> tuple[View, Tensor, Tensor]:
    """Real faces and their gradients at a sigmoid LeNet: (view, inputs (V, B, *s), labels (V, B))."""
    data = load_dataset("faces")[2]
    model = build("lenet_cpl", data.shape, data.classes, generator(0, "leak model"))
    network = Network(model, parameters(model))
    chosen = data.victims[: victims * batch].reshape(victims, batch)
    if batch > 1:  # With faces alone, all would have one label.
        chosen[:, 1] = torch.nonzero(data.train_targets != data.train_targets[chosen[0, 0]])[:victims, 0]
    x, y = data.train_inputs[chosen], data.train_targets[chosen]
    update = leak(
        tap,
        network,
        x[:, None, None],
        one_hot(y, data.classes)[:, None, None],
        0.05,
        Stations(),
        Clock(0, 0, 1, 1),
        None,
    )
    view = View(tap, network, {n: u.detach() for n, u in update.items()}, batch, data.shape, data.classes, 0.05)
    return view.to(dtype), x, y


def rngs(victims: int) -> tuple[torch.Generator, ...]:
    return generators(0, "attack", [(v,) for v in range(victims)])


def method(name: str, iterations: int) -> GradientMatching:
    found = resolve("attacks", Attack, name)[1].method
    assert isinstance(found, GradientMatching)
    return dataclasses.replace(found, stop=Iterations(limit=iterations))


def one_by_one(view: View, victim: int, start: Tensor, targets: Tensor, outer: int) -> list[float]:
    """Return the values of each evaluation of `torch.optim.LBFGS` on one victim, in DLG's original loop."""
    x = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([x])
    truth = {n: u[victim] for n, u in view.update.items()}
    seen: list[float] = []

    def closure() -> Tensor:
        optimiser.zero_grad()
        held = {n: p.clone().requires_grad_() for n, p in view.network.parameters.items()}
        logits = torch.func.functional_call(view.network.model, held, (x,))
        loss = -(targets * logits.log_softmax(-1)).sum(-1).mean()
        gradient = torch.autograd.grad(loss, list(held.values()), create_graph=True)
        distance = sum(((g - truth[n]) ** 2).sum() for n, g in zip(held, gradient, strict=True))
        assert isinstance(distance, Tensor)
        distance.backward()
        seen.append(float(distance.detach()))
        return distance

    for _ in range(outer):
        optimiser.step(closure)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpl", "idlg"])
def test_five_victims_together_follow_five_searches_of_torch(name: str) -> None:
    """CPL and iDLG in float64: every evaluation of the first 30 within 1e-3 of `torch.optim.LBFGS` on that victim alone."""
    view, _, _ = leaked(5)
    attack = method(name, 2)
    seen: list[list[float]] = [[] for _ in range(5)]

    @dataclasses.dataclass(frozen=True)
    class Watched:
        """The recipe's descent, with a record of all values."""

        def __call__(self, start: Tensor, terms: Terms) -> Lbfgs:
            search = LbfgsDescent()(start, terms)
            assert isinstance(search, Lbfgs)
            step = search.step

            def watched(objective: Objective) -> Tensor:
                def recorded(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
                    values, gradients = objective(points, lanes)
                    for lane, value in zip(lanes.tolist(), values.tolist(), strict=True):
                        seen[lane].append(value)
                    return values, gradients

                return step(recorded)

            search.step = watched  # type: ignore[method-assign]
            return search

    dataclasses.replace(attack, descent=Watched())((view,), rngs(5))
    guess = attack.labels(view, rngs(5)).targets
    start = attack.start(view, rngs(5))
    for victim in range(5):
        values = one_by_one(view, victim, start[victim], guess[victim], 2)
        assert len(values) >= 30
        torch.testing.assert_close(
            torch.tensor(seen[victim][:30], dtype=torch.float64),
            torch.tensor(values[:30], dtype=torch.float64),
            rtol=1e-3,
            atol=0,
        )


@pytest.mark.slow
def test_cpl_reconstructs_more_faces_than_dlg() -> None:
    """Undefended faces: after 6 iterations CPL is within RMSE 0.05 of every victim with every label right; DLG of fewer."""
    view, x, y = leaked(6, dtype=torch.float32)
    close = {}
    for name in ("cpl", "dlg"):
        answer = method(name, 6)((view,), rngs(6))
        assert isinstance(answer, Reconstruction)
        close[name] = int(((answer.inputs - x).square().flatten(1).mean(1).sqrt() < 0.05).sum())
        if name == "cpl":
            assert torch.equal(answer.labels, y)
    assert close["cpl"] == 6
    assert close["dlg"] < close["cpl"]


@pytest.mark.slow
def test_the_reconstruction_has_the_least_distance_not_the_last() -> None:
    """The certainty is at least that of the trajectory's minimum; the last snapshot is the reconstruction."""
    view, _, _ = leaked(3, dtype=torch.float32)
    answer = method("dlg", 6)((view,), rngs(3))
    best = answer.trajectory.nan_to_num(nan=torch.inf).amin(0)
    assert (
        -answer.certainty[:, 0] <= best
    ).all()  # It is smaller only if the last step, which no iteration evaluates, was the best.
    assert answer.snapshots == tuple(range(1, 7))
    torch.testing.assert_close(answer.iterates[-1], answer.inputs)


def test_a_diverged_search_gives_no_reconstruction() -> None:
    """An infinite leaked gradient gives NaN, not a picture; the search of the others continues as if they were alone."""
    view, attack = linear("type-1", batch=1), method("cpl", 4)
    view.update["weight"][1] *= -1  # A different label than its neighbours.
    whole = attack((view,), rngs(3))
    assert len(set(whole.labels.flatten().tolist())) == 2
    for victim in range(3):
        broken = {n: u.clone() for n, u in view.update.items()}
        broken["bias"][victim] = torch.inf
        answer = attack((dataclasses.replace(view, update=broken),), rngs(3))
        others = torch.arange(3) != victim
        assert answer.inputs[victim].isnan().all()
        torch.testing.assert_close(answer.inputs[others], whole.inputs[others])
        torch.testing.assert_close(answer.trajectory[:, others], whole.trajectory[:, others], equal_nan=True)


@dataclasses.dataclass
class Still:
    """A search that never moves."""

    points: Tensor
    evaluations: Tensor
    settled: Tensor

    def step(self, objective: Objective) -> Tensor:
        return objective(self.points, torch.arange(len(self.points)))[0]

    def keep(self, lanes: Tensor) -> None:
        self.points, self.evaluations, self.settled = self.points[lanes], self.evaluations[lanes], self.settled[lanes]


@dataclasses.dataclass(frozen=True)
class Opposite:
    """A descent to the negative of the start."""

    def __call__(self, start: Tensor, terms: Terms) -> Still:
        none = torch.zeros(len(start), dtype=torch.int64)
        return Still(-start, none, ~none.bool())


@dataclasses.dataclass(frozen=True)
class Weighted:
    """The identity, with the energy 3 |z|^2."""

    def __call__(self, view: View) -> Coordinates:
        return dataclasses.replace(Pixels()(view), energy=lambda z, _: 3 * z.flatten(1).square().sum(1))


@dataclasses.dataclass(frozen=True)
class Total:
    """The sum of the inputs as a penalty."""

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        return inputs.flatten(1).sum(1)


def rngs_after_labels(view: View) -> tuple[torch.Generator, ...]:
    """Return the three victims' generators after drawing the labels."""
    same = rngs(3)
    Joint()(view, same)
    return same


def test_a_diverged_search_has_no_snapshots() -> None:
    """Without a reconstruction in the end, no snapshot has one. The other victims keep their snapshots."""
    view = linear("type-1", batch=1)
    view.update["bias"][1] = torch.inf
    iterates = method("cpl", 4)((view,), rngs(3)).iterates
    assert len(iterates) == 4
    assert iterates[:, 1].isnan().all()
    assert iterates[:, [0, 2]].isfinite().all()


def test_the_reconstruction_is_the_end_point_of_the_search() -> None:
    """Inputs (clamped) and labels are those of the end; the certainty is minus the distance, the space's energy and the priors."""
    view = linear("type-1", batch=2)
    attack = GradientMatching(
        labels=Joint(),
        start=Normal(),
        distance=SquaredL2(),
        descent=Opposite(),
        space=Weighted(),
        priors=(Total(),),
        stop=Iterations(limit=1),
    )
    answer = attack((view,), rngs(3))
    same = rngs(3)
    logits, x = -Joint()(view, same).targets, -Normal()(view, same)
    torch.testing.assert_close(answer.inputs, x.clamp(0, 1))
    assert torch.equal(answer.labels, logits.argmax(-1))
    distance = SquaredL2()(view.respond(x, logits.softmax(-1)), view.update, view)
    value = distance + 3 * x.flatten(1).square().sum(1) + x.flatten(1).sum(1)
    torch.testing.assert_close(answer.certainty, -value[:, None].expand(3, 2))


def test_a_prior_counts_once_however_many_views_there_are() -> None:
    """With three views, the certainty is minus three distances and one penalty."""
    view = linear("type-1", batch=2)
    plain = GradientMatching(
        labels=Joint(), start=Normal(), distance=SquaredL2(), descent=Opposite(), stop=Iterations(limit=1)
    )
    with_prior = dataclasses.replace(plain, priors=(Total(),))
    distance = -plain((view,), rngs(3)).certainty[:, 0]
    penalty = -Normal()(view, rngs_after_labels(view)).flatten(1).sum(1)
    torch.testing.assert_close(-with_prior((view,) * 3, rngs(3)).certainty[:, 0], 3 * distance + penalty)


def test_several_views_add_their_distances() -> None:
    """Repeating a view doubles every distance; views of other victims are refused."""
    view, _, _ = leaked(2)
    once, twice = method("cpl", 1)((view,), rngs(2)), method("cpl", 1)((view, view), rngs(2))
    torch.testing.assert_close(twice.trajectory[0], 2 * once.trajectory[0])
    with pytest.raises(InputError, match="views"):
        method("cpl", 1)((view, leaked(3)[0]), rngs(2))


def test_victims_do_not_depend_on_the_others() -> None:
    """Victim 1 of three, and the same victim alone with its own generator, have the same start and reconstruction."""
    view, _, _ = leaked(3)
    alone = dataclasses.replace(view, update={n: u[1:2] for n, u in view.update.items()})
    together, single = method("cpl", 2)((view,), rngs(3)), method("cpl", 2)((alone,), rngs(3)[1:2])
    torch.testing.assert_close(together.inputs[1], single.inputs[0], rtol=1e-4, atol=1e-5)


def test_last_layer_reads_labels() -> None:
    """With one example, the label is right for all, faces and others."""
    data = load_dataset("faces")[2]
    view, _, y = leaked(8)
    assert torch.equal(LastLayer()(view, rngs(8)).targets.argmax(-1), y)
    some = torch.cat([torch.nonzero(data.train_targets == c)[:10, 0] for c in (0, 1)])
    x, y = data.train_inputs[some, None], data.train_targets[some, None]
    both = dataclasses.replace(view.to(torch.float32), update={})
    update = both.respond(x, one_hot(y, 2))
    assert torch.equal(LastLayer()(dataclasses.replace(both, update=update), rngs(20)).targets.argmax(-1), y)


def of_classifier(rows: Tensor, batch: int) -> View:
    """A view of row sums (V, classes) of the weight's gradient, of a classifier of two features between 0 and 1."""
    classes = rows.shape[1]
    model = torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.Linear(2, classes, bias=False))
    update = {"1.weight": rows[:, :, None].expand(-1, -1, 2) / 2}
    return View("type-1", Network(model, parameters(model)), update, batch, (2,), classes, 0.05)


def test_last_layer_counts_repeats() -> None:
    """Hand-made row sums of a batch of 4 with classes 1, 1, 1, 3 and equal shares: the counts are right."""
    rows = torch.tensor([[0.5, -2.7, 0.3, -0.7, 0.6]])
    assert LastLayer()(of_classifier(rows, 4), rngs(1)).targets.argmax(-1).tolist() == [[1, 1, 1, 3]]


def test_each_example_of_a_class_takes_one_share_of_its_row() -> None:
    """Rows of -.8 and -.1 for three examples give shares of -.3.

    After two, -.2 is still the lowest, so all three get this class.
    """
    rows = torch.tensor([[-0.8, -0.1, 0.9]])
    assert LastLayer()(of_classifier(rows, 3), rngs(1)).targets.argmax(-1).tolist() == [[0, 0, 0]]


def test_logits_of_joint_labels_are_standard_normal() -> None:
    """4,000 of them: half negative, of mean 0 and deviation 1."""
    view = dataclasses.replace(leaked(2)[0], batch=200, classes=10)
    logits = Joint()(view, rngs(2)).targets
    assert logits.shape == (2, 200, 10)
    assert float((logits < 0).double().mean()) == pytest.approx(0.5, abs=0.04)
    assert (float(logits.mean()), float(logits.std())) == pytest.approx((0.0, 1.0), abs=0.08)


def test_joint_labels_are_logits() -> None:
    """DLG searches for labels: its logits are standard normal, and differ between victims."""
    guess = Joint()(leaked(2)[0], rngs(2))
    assert guess.joint
    assert guess.targets.shape == (2, 1, 2)
    assert not torch.equal(guess.targets[0], guess.targets[1])


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 25, 25), (7,)])
@pytest.mark.parametrize("tile", [1, 2, 4])
def test_a_pattern_repeats(shape: tuple[int, ...], tile: int) -> None:
    """Along each side the start repeats with the patch's period, also if the tile does not divide the side."""
    view = dataclasses.replace(leaked(2)[0], shape=shape)
    start = Patterned(tile)(view, rngs(2))
    assert start.shape == (2, 1, *shape)
    period = -(-shape[-1] // tile)
    torch.testing.assert_close(start[..., period:], start[..., : shape[-1] - period])
    assert start.min() >= 0
    assert start.max() <= 1


def test_starts_have_their_distribution() -> None:
    """N(0, 1) and U(0, 1) by mean and standard deviation; each victim has its own start."""
    view = dataclasses.replace(leaked(4)[0], shape=(3, 32, 32))
    for start, mean, std in ((Normal(), 0.0, 1.0), (Uniform(), 0.5, 12**-0.5)):
        drawn = start(view, rngs(4))
        assert float(drawn.mean()) == pytest.approx(mean, abs=0.03)
        assert float(drawn.std()) == pytest.approx(std, rel=0.03)
        assert not torch.equal(drawn[0], drawn[1])


def test_distance_and_prior_closed_forms() -> None:
    """Squared L2 distances are summed over layers; total variation of a step edge."""
    guess, seen = (
        {"a": torch.ones(2, 3), "b": torch.zeros(2, 2)},
        {"a": torch.zeros(2, 3), "b": torch.full((2, 2), 2.0)},
    )
    assert SquaredL2()(guess, seen, leaked(1)[0]).tolist() == [11.0, 11.0]
    edge = torch.zeros(1, 1, 1, 4, 4)
    edge[..., 2:] = 1.0
    view, one = leaked(1)[0], torch.zeros(1, dtype=torch.int64)
    for either in (edge, edge.mT):
        assert float(TotalVariation(weight=3.0)(either, view, one)) == pytest.approx(3.0 * 4 / 12)
    assert float(TotalVariation(weight=3.0)(torch.rand(1, 1, 5), view, one)) == 0.0


def test_snapshots_cover_the_search() -> None:
    """Each of the first 40 iterations, then steps of 10 %, and always the last."""
    assert snapshot_iterations(3) == (1, 2, 3)
    at = snapshot_iterations(300)
    assert at[:40] == tuple(range(1, 41))
    assert at[-1] == 300
    assert all(b / a <= 1.1 + 1 / a for a, b in itertools.pairwise(at))


def test_identification_needs_the_gradient_to_find_the_victim() -> None:
    """Undefended, one example: all victims are found among all faces; pure noise finds almost none."""
    view, _x, _y = leaked(12, dtype=torch.float32)
    data = load_dataset("faces")[2]
    pool = data.victims
    view = dataclasses.replace(view, candidates=Public(data.train_inputs[pool], data.train_targets[pool]))
    assert torch.equal(Candidates()((view,), ()).scores.argmax(1), torch.arange(12))
    noise = {n: torch.randn(u.shape, generator=generator(0, n)) * 100 for n, u in view.update.items()}
    blind = Candidates()((dataclasses.replace(view, update=noise),), ())
    assert int((blind.scores.argmax(1) == torch.arange(12)).sum()) <= 2
    both = Candidates()((view, dataclasses.replace(view, update=noise)), ())
    added = Candidates()((view,), ()).scores + blind.scores
    torch.testing.assert_close(both.scores, added, rtol=1e-3, atol=1e-2)
    with pytest.raises(InputError, match="names none"):
        Candidates()((dataclasses.replace(view, candidates=None),), ())


def test_identification_behind_a_batch_beats_chance() -> None:
    """With two examples in each update, the first is found far more often than one in 75."""
    view, _, _ = leaked(12, batch=2, dtype=torch.float32)
    data = load_dataset("faces")[2]
    first = data.victims[:24].reshape(12, 2)[:, 0]
    others = data.victims[~torch.isin(data.victims, first)]
    pool = torch.cat([first, others])
    told = dataclasses.replace(
        view,
        candidates=Public(data.train_inputs[pool], data.train_targets[pool]),
        public=Public(data.test_inputs, data.test_targets),
    )
    assert int((Candidates()((told,), ()).scores.argmax(1) == torch.arange(12)).sum()) >= 4
    with pytest.raises(InputError, match="public"):
        Candidates()((dataclasses.replace(told, public=None),), ())


def linear(tap: str, batch: int) -> View:
    """A linear model of 12 weights, three random updates, 10 public examples and 8 candidates, in float64."""
    rng = generator(0, "linear")
    model = torch.nn.Linear(5, 2).double()
    weights = {n: torch.randn(p.shape, generator=rng, dtype=torch.float64) for n, p in model.named_parameters()}
    update = {n: torch.randn(3, *w.shape, generator=rng, dtype=torch.float64) for n, w in weights.items()}
    shown = torch.rand(18, 5, generator=rng, dtype=torch.float64), torch.randint(2, (18,), generator=rng)
    return View(
        tap,
        Network(model, weights),
        update,
        batch,
        (5,),
        2,
        0.1,
        public=Public(shown[0][:10], shown[1][:10]),
        candidates=Public(shown[0][10:], shown[1][10:]),
    )


def test_identification_behind_a_batch_is_the_gaussian_likelihood() -> None:
    """For M = 3: mean g / 3 + 2 / 3 m and covariance S + r, where r is the residual of one half of the sample given the other."""
    view = linear("type-1", batch=3)

    def gradients(some: Public) -> Tensor:
        found = []
        for x, y in zip(some.inputs, some.labels, strict=True):
            held = {n: p.clone().requires_grad_() for n, p in view.network.parameters.items()}
            loss = torch.nn.functional.cross_entropy(torch.func.functional_call(view.network.model, held, (x,)), y)
            found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(held.values()))]))
        return torch.stack(found)

    assert view.public is not None
    assert view.candidates is not None
    others = gradients(view.public)
    mean = others.mean(0)
    centred = others - mean
    first, second = centred[:5], centred[5:]
    left = second - second @ torch.linalg.pinv(first) @ first
    r = left.square().sum(1).mean() / 12
    precision = torch.linalg.inv(centred.T @ centred / 10 + r * torch.eye(12, dtype=torch.float64))
    observed = torch.cat([u.flatten(1) for u in view.update.values()], 1)
    away = observed[:, None] - (gradients(view.candidates) / 3 + 2 / 3 * mean)
    expected = -r * torch.einsum("vki,ij,vkj->vk", away, precision, away)
    scores = Candidates(chunk=3)((view,), ()).scores
    torch.testing.assert_close(scores - scores[:, :1], expected - expected[:, :1], rtol=1e-6, atol=1e-9)


def test_identification_reads_candidates_at_the_leakage_point() -> None:
    """The mean update has passed the server's station at type-0, but not at type-1."""
    stations = Stations(server=(ClipWhole(1e-3),))
    type_0, type_1, whole = (
        Candidates()((dataclasses.replace(linear(tap, batch=2), stations=stations),), ()).scores
        for tap in ("type-0", "type-1", "global")
    )
    assert torch.equal(whole, type_0)
    assert not torch.allclose(whole, type_1)
