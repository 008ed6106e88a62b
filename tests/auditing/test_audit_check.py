"""The coupled-noise check measures noise of every convention, and detects noise that cannot be trusted."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from probes import probe
from torch import Tensor

from leakbench.auditing.bounds import both_ways, direct_epsilon
from leakbench.auditing.canary import Neighbours, direction
from leakbench.auditing.coupled import Coupled, check
from leakbench.auditing.noise import measure
from leakbench.auditing.release import DefenseRelease
from leakbench.auditing.trials import executed
from leakbench.auditing.verdict import Stated, judge
from leakbench.core.rng import generator, normal
from leakbench.core.types import Clock, Fact, Generators, Signal
from leakbench.data.recipe import Federation
from leakbench.defense.by_norm import member_norms, scaled, whole_norm
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.sensitivity import L2Max
from leakbench.defense.transform import Stations
from leakbench.privacy.mechanism import Mechanism

SHAPES = {"first": (32, 1, 3, 3), "second": (64, 16, 3, 3), "bias": (10,)}
CLOCK = Clock(0, 0, 1, 1)
PROBE = probe(Federation(rounds=1, batch=2, examples_per_client=2))
WHOLE, LAYERS, L2_MAX = ClipWhole(norm=4.0), ClipLayers(norm=4.0), L2Max()
M = math.sqrt(3)


def noise(to: str) -> GaussianNoise:
    return GaussianNoise(multiplier=6.0, to=to)  # type: ignore[arg-type]


def release(members: int, unit: str = "example", **stations: tuple[object, ...]) -> DefenseRelease:
    return DefenseRelease(Stations(**stations), unit, members, CLOCK, 0, PROBE)  # type: ignore[arg-type]


def found(members: int, unit: str = "example", **stations: tuple[object, ...]) -> Coupled:
    return check(release(members, unit, **stations), SHAPES, generator(0, "test"))


@pytest.mark.parametrize(
    ("stations", "sigma"),
    [
        ({"example": (WHOLE,), "batch": (noise("sum"),)}, 6.0),
        ({"example": (LAYERS,), "batch": (noise("sum"),)}, 6 / M),
        ({"example": (LAYERS,), "batch": (noise("mean"),)}, 6 * 5 / M),
        ({"example": (LAYERS, noise("each"))}, 6 * math.sqrt(5) / M),
        # One example can turn a clipped mean of 5 around: it moves the sum by 2 x 5 x C.
        ({"batch": (WHOLE, noise("mean"))}, 6 / 2),
        ({"batch": (WHOLE, noise("sum"))}, 6 / 10),
    ],
)
def test_the_true_multiplier_of_every_convention(stations: dict[str, tuple[object, ...]], sigma: float) -> None:
    """Noise over the effect of one of 5 examples, within 1 %, for every convention of sigma."""
    seen = found(5, **stations)
    assert seen.sigma == pytest.approx(sigma, rel=0.01)
    assert seen.independent
    assert seen.gaussian
    assert seen.clip_holds
    assert seen.noise.even


def test_noise_for_a_client_counts_at_the_client_and_the_server() -> None:
    """The same noise at each of 4 clients adds up to twice that of the server."""
    server = found(4, "client", server=(LAYERS, noise("sum")))
    client = found(4, "client", client=(LAYERS, noise("each")))
    assert server.sigma == pytest.approx(6 / M, rel=0.01)
    assert client.sigma == pytest.approx(2 * 6 / M, rel=0.01)
    assert found(1, "client", client=(LAYERS, noise("each"))).sigma == pytest.approx(6 / M, rel=0.01)


def test_missing_noise_and_missing_clip() -> None:
    """No clip and no noise; a clip alone; noise alone."""
    nothing, clip = found(2), found(2, example=(WHOLE,))
    bare = found(2, batch=(GaussianNoise(multiplier=6.0, to="sum", uncalibrated=True),))
    assert (nothing.sigma, nothing.clip_holds, nothing.moved) == (0.0, False, math.inf)
    assert (clip.sigma, clip.clip_holds) == (0.0, True)
    assert clip.moved == pytest.approx(4.0)
    assert (bare.sigma, bare.clip_holds, bare.independent) == (0.0, False, True)
    assert bare.noise.gaussian


@dataclass(frozen=True)
class MedianScale:
    """Noise in proportion to the median norm of the members, as in Geyer et al."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Set the sensitivity."""
        norms = torch.stack([g.flatten(2).norm(dim=2) for g in signal.grads.values()]).square().sum(0).sqrt()
        return signal.replace(signal.grads, norms.median(1).values, Fact("scale"))


@pytest.mark.parametrize(
    "stations", [{"example": (LAYERS, L2_MAX, noise("each"))}, {"example": (WHOLE, MedianScale(), noise("each"))}]
)
def test_a_scale_from_the_data_is_found(stations: dict[str, tuple[object, ...]]) -> None:
    """l2-max and a median: the difference under one seed differs from that under another."""
    seen = found(5, **stations)
    assert not seen.independent
    assert seen.sigma is None
    assert seen.clip_holds


@dataclass(frozen=True)
class Swelling:
    """Adds noise whose std grows by `share` where a member's norm is above 1000."""

    share: float

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip the whole at 4 and add the noise."""
        large = (whole_norm(member_norms(signal)) > 1000).float()
        clipped = WHOLE(signal, clock, rngs)
        grads = {n: g + scaled(normal(g, rngs, 1), 1 + self.share * large) for n, g in clipped.grads.items()}
        return clipped.replace(grads, None, Fact("other"))


@pytest.mark.parametrize(("share", "independent"), [(0.0, True), (3e-4, False), (0.1, False)])
def test_noise_that_grows_by_a_thousandth_is_found(share: float, independent: bool) -> None:
    """The check distinguishes differences of 1e-5 of a release's norm from rounding."""
    assert found(1, example=(Swelling(share),)).independent is independent


@pytest.mark.parametrize("error", [0.02, 0.1])
def test_imprecisely_known_noise_lowers_the_lower_bound(error: float) -> None:
    """The noise is assumed three standard errors stronger than measured: the same draws, a smaller epsilon."""
    through = release(1, example=(WHOLE, noise("each")))
    seen = check(through, SHAPES, generator(0, "test"))
    stated, once = Stated(None, None, "none: not asked", "one release"), Mechanism(1.0, 1.0, 1)

    def bound(error: float) -> float:
        less = dataclasses.replace(seen, error=error)
        answer = judge(through, less, once, stated, None, 100_000, 1e-5, generator(1, "test")).lower_bound_family
        assert answer is not None
        return answer

    assert bound(error) < bound(error - 0.01)


@dataclass(frozen=True)
class Added:
    """Adds random values."""

    kind: str

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add noise that is additive, but not independent Gaussian noise of one strength."""
        grads = {name: g + self.draw(name, normal(g, rngs, 1)) for name, g in signal.grads.items()}
        return signal.replace(grads, None, Fact("other"))

    def draw(self, name: str, z: Tensor) -> Tensor:
        if self.kind == "sign":
            return z.sign()
        if self.kind == "one number for all":
            return z.flatten(2)[:, :, :1].reshape(z.shape[0], z.shape[1], *[1] * (z.dim() - 2)).expand(z.shape)
        if self.kind == "none in one tensor":
            return z * (name != "bias")
        return z * (0.5 if name == "second" else 1.0)


@pytest.mark.parametrize("kind", ["sign", "one number for all"])
def test_noise_that_is_not_independent_gaussian_is_found(kind: str) -> None:
    """It is additive nevertheless."""
    seen = found(2, example=(WHOLE, Added(kind)))
    assert seen.independent
    assert not seen.gaussian


def test_unequal_tensors_are_measured_separately() -> None:
    """A clip at 4 allows a canary in the tensor with half the noise; a tensor without noise gives no protection."""
    seen = found(1, example=(WHOLE, Added("half")))
    assert not seen.noise.even
    assert seen.sigma == pytest.approx(0.5 / 4, rel=0.01)
    bare = found(1, example=(WHOLE, Added("none in one tensor")))
    assert bare.noise.missing
    assert bare.sigma == 0


def test_l2_max_reveals_a_norm_of_1_05_among_norms_of_1() -> None:
    """5 examples of layer norm 1, and one of 1.05 or none: the noise reveals it.

    A published audit has 4.91 from 2 x 1000 trials.
    """
    of = release(5, example=(LAYERS, L2_MAX, noise("each")))
    absent = {
        n: u.index_fill(0, torch.tensor([0]), 0.0)[None] for n, u in direction(SHAPES, 5, generator(0, "test")).items()
    }
    canary = direction(SHAPES, 1, generator(1, "test"))
    present = {n: a.clone().index_copy(1, torch.tensor([0]), 1.05 * canary[n][None]) for n, a in absent.items()}
    neighbours = Neighbours(present, absent)
    scores = executed(of, neighbours, 1000)
    rates = both_ways(scores.present, scores.absent, lambda r: direct_epsilon(r, 1e-5))
    assert max(float(direct_epsilon(r, 1e-5)) for r in rates) >= 3


def test_measured_noise_does_not_depend_on_the_input() -> None:
    """Gradients of norm 10^6 under the noise do not change its std."""
    of = release(2, example=(noise_alone(),))
    inputs = {n: 1e3 * torch.ones(1, 2, *s) for n, s in SHAPES.items()}
    assert float(measure(of, inputs, range(8)).std[0]) == pytest.approx(math.sqrt(2) * 3, rel=0.01)


def noise_alone() -> GaussianNoise:
    return GaussianNoise(multiplier=3.0, to="each", uncalibrated=True)


@pytest.mark.parametrize("unit", ["example", "client"])
def test_different_seeds_draw_different_noise(unit: str) -> None:
    stations = {"example": {"example": (WHOLE, noise("each"))}, "client": {"client": (WHOLE, noise("each"))}}[unit]
    zero = {n: torch.zeros(1, 1, *shape) for n, shape in SHAPES.items()}
    one = release(1, unit, **stations)
    drawn = [dataclasses.replace(one, seed=seed)(zero, range(1)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_both_worlds_and_score_learning_use_separate_seeds() -> None:
    """No seed is used twice: not between the worlds, nor for learning the score."""
    seeds: list[int] = []
    through = release(1, example=(WHOLE, noise("each")))

    class Noted:
        members, seeded = 1, True

        def __call__(self, inputs: dict[str, Tensor], several: range) -> Tensor:
            seeds.append(len(several))
            used.append(list(several))
            return through(inputs, several)

    used: list[list[int]] = []
    pair = check(through, SHAPES, generator(0, "test")).telling
    executed(Noted(), pair, 60)
    learned, drawn = used[:2], [s for batch in used[2:] for s in batch]
    assert learned[0] == learned[1]
    assert len(drawn) == len(set(drawn)) == 120
    assert not set(drawn) & set(learned[0])


@dataclass(frozen=True)
class Softened:
    """Scales a member of norm r to log(1 + r): a bound that grows slowly without end."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Scale."""
        norms = whole_norm(member_norms(signal))
        factor = norms.log1p() / norms.clamp_min(1e-30)
        return signal.replace({n: scaled(g, factor) for n, g in signal.grads.items()}, None, Fact("other"))


def test_a_growing_bound_is_not_a_clip() -> None:
    seen = found(1, example=(Softened(), Added("half")))
    assert not seen.clip_holds
    assert seen.sigma == 0
