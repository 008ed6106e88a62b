"""A prior with a component at every public example, and a search that alternates with its denoiser, against closed forms."""

import dataclasses
import hashlib
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.learn import mixture as module
from leakbench.attack.learn.mixture import Mixture, fitted, mirrored, mixture_of, whitening_of
from leakbench.attack.methods.plug_and_play import PlugAndPlay
from leakbench.attack.slots import denoiser, space_mixture
from leakbench.attack.slots.denoiser import WEIGHTS, Denoising, DiffusersDenoiser, MixtureDenoiser
from leakbench.attack.slots.labels import Given
from leakbench.attack.slots.space import Pixels
from leakbench.attack.slots.space_mixture import MixtureSpace
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations
from leakbench.core.errors import InputError
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.federated.view import Public, View


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "test"), dtype=torch.float64)


def small(share: float = 0.6, size: int = 5, rank: int = 2) -> Mixture:
    """Return a mixture of seven components in two of five directions."""
    directions = torch.linalg.qr(random(size, size))[0].T[:rank]
    return mixture_of(random(7, size, seed=1) @ torch.diag(random(size, seed=2).sigmoid()), directions, share)


def dense(mixture: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return the means (K, d) and the covariance (d, d) of the components."""
    axes = mixture.directions.numpy()
    covariance = np.eye(axes.shape[1]) + axes.T @ np.diag(mixture.variances.numpy() - 1) @ axes
    return mixture.means.numpy() @ axes, covariance


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_the_energy_is_that_of_the_components_of_scipy(noise: float) -> None:
    mixture, z = small(), random(4, 3, 5, seed=3)
    means, covariance = dense(mixture)
    wide = covariance + noise**2 * np.eye(5)
    density = np.mean([multivariate_normal(mean, wide).pdf(z.numpy()) for mean in means], 0)
    expected = -np.log(density) - 5 / 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(mixture.energy(z, noise), expected)


def test_the_mixture_is_as_wide_as_the_gaussian_that_it_replaces() -> None:
    z = random(30, 4, seed=4)
    z = (z - z.mean(0)) / z.std(0, correction=0)
    mixture = mixture_of(z, torch.eye(4, dtype=torch.float64)[:3], 0.7)
    means, covariance = dense(mixture)
    whole = covariance + means.T @ means / 30
    np.testing.assert_allclose(means.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(np.diag(whole), 1)


def test_without_directions_it_is_a_standard_normal_distribution() -> None:
    mixture, z = small(rank=0), random(6, 5)
    torch.testing.assert_close(mixture.energy(z), z.square().sum(-1) / 2)
    torch.testing.assert_close(mixture.denoised(z, 0.5), z / 1.25)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_the_denoiser_follows_the_gradient_of_the_noisy_density(noise: float) -> None:
    """Tweedie's formula: the posterior mean is z plus noise^2 times the gradient of the log-density of noisy inputs."""
    mixture, z = small(), random(8, 5, seed=5).requires_grad_()
    (slope,) = torch.autograd.grad(mixture.energy(z, noise).sum(), z)
    torch.testing.assert_close(mixture.denoised(z, noise), (z - noise**2 * slope).detach(), check_dtype=False)


def faces(count: int = 60, seed: int = 0) -> Tensor:
    """Return images of two kinds, in random strengths: far from Gaussian."""
    rng = generator(seed, "faces")
    kinds = torch.rand(2, 1, 6, 6, generator=generator(0, "kinds"))
    kind, strength = torch.randint(2, (count,), generator=rng), torch.rand(count, 1, 1, 1, generator=rng)
    noise = 0.02 * torch.randn(count, 1, 6, 6, generator=rng)
    return (0.2 + kinds[kind] * (0.4 + 0.2 * strength) + noise).clamp(0, 1)


def view(inputs: Tensor) -> View:
    public = Public(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    shape = tuple(inputs.shape[1:])
    update = {"w": torch.zeros(2, 3, dtype=inputs.dtype)}
    return View("type-2", Network(nn.Linear(1, 1), {"w": torch.zeros(3)}), update, 1, shape, 4, 0.1, public=public)


def test_the_denoiser_is_better_than_the_input_and_than_the_gaussian() -> None:
    """Unseen images with noise in all directions, in the directions in which the mixture is not Gaussian."""
    known, fresh = faces(), faces(80, seed=1)
    white, mixture = whitening_of(known), fitted(known)
    z = white.invert(fresh - white.mean).flatten(1)
    noisy = z + torch.randn(z.shape, generator=generator(2, "noise"))
    missed = [(some - z) @ mixture.directions.T for some in (noisy, noisy / 2, mixture.denoised(noisy, 1.0))]
    errors = [float(each.square().mean()) for each in missed]
    assert errors[2] < 0.95 * errors[1]
    assert errors[1] < 0.5 * errors[0]
    unlikely = [float(each.energy(z).mean()) for each in (Mixture(z[:0], z[:1, :0], z[0, :0]), mixture)]
    assert unlikely[1] < unlikely[0] - 1


def test_gaussian_examples_leave_a_gaussian() -> None:
    rng = generator(0, "gaussian")
    found = fitted(torch.randn(400, 3, generator=rng) @ torch.tensor([[1.0, 0.5, 0], [0, 1, 0.2], [0, 0, 1]]))
    z = torch.randn(1000, 3, generator=rng)
    assert float((found.energy(z) - z.square().sum(1) / 2).abs().mean()) < 0.1


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_a_few_examples_are_enough(count: int) -> None:
    assert fitted(faces(count)).energy(torch.zeros(2, 36)).isfinite().all()


def test_mirror_images_count_as_examples() -> None:
    """A prior of images from their mirror images is the same; tables have none."""
    known = faces(20)
    one, other = (whitening_of(x) for x in (known, known.flip(-1)))
    torch.testing.assert_close(one.mean, one.mean.flip(-1))
    z = random(3, 1, 6, 6).float()
    lengths = [white.invert(white.mean + z - white.mean).flatten(1).norm(dim=1) for white in (one, other)]
    torch.testing.assert_close(*lengths, rtol=1e-3, atol=1e-3)
    assert len(mirrored(torch.rand(5, 4))) == 5


def test_a_weight_of_zero_and_shapes() -> None:
    for inputs in (faces(), torch.rand(40, 5, generator=generator(0, "table"))):
        seen = view(inputs)
        space, free = MixtureSpace()(seen), MixtureSpace(weight=0.0)(seen)
        x = inputs[:4].reshape(2, 2, *inputs.shape[1:])
        z = space.encode(x)
        torch.testing.assert_close(space.decode(z), x, rtol=1e-3, atol=1e-3)
        targets = torch.zeros(2, 2, 4)
        mixture = fitted(inputs)
        torch.testing.assert_close(space.energy(z, targets), mixture.energy(z).sum(1))
        assert free.energy(z, targets).tolist() == [0, 0]


def test_the_fit_reads_public_examples_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other victims leave the same fit, and the examples of the fit are those of the view's public ones."""
    read: list[Tensor] = []

    def recorded(inputs: Tensor) -> Mixture:
        read.append(inputs)
        return fitted(inputs)

    monkeypatch.setattr(space_mixture, "fitted", recorded)
    known, z = faces(), torch.ones(1, 1, 36)
    seen = view(known)
    other = dataclasses.replace(seen, update={"w": torch.ones(2, 3)}, labels=torch.ones(2, 1, dtype=torch.int64))
    values = [MixtureSpace()(each).energy(z, torch.zeros(1, 1, 4)) for each in (seen, other, seen)]
    assert values[0] == values[1] == values[2]
    assert all(torch.equal(inputs, known) for inputs in read)
    assert not torch.equal(MixtureSpace(public=30)(seen).energy(z, torch.zeros(1, 1, 4)), values[0])
    with pytest.raises(InputError, match="got no public example, which 'mixture' needs"):
        MixtureSpace()(dataclasses.replace(seen, public=None))


class Linear(View):
    """A view whose gradient is linear in the input."""

    def respond(self, inputs, targets, lanes=None, by_what_leaked=False, hidden=None):
        return {"w": inputs.flatten(1) @ MAP.T.to(inputs)}


MAP = random(4, 5, seed=9)


def linear(noise: float = 0.3) -> Linear:
    """Return two victims of a table with five columns, of which four combinations leak with noise."""
    public = 0.5 + 0.1 * random(200, 5, seed=6) @ random(5, 5, seed=7)
    x = public[:2] + 0.05
    observed = x @ MAP.T + noise * random(2, 4, seed=8)
    seen = {f.name: getattr(view(public), f.name) for f in dataclasses.fields(View)}
    given = {"update": {"w": observed}, "noise": noise, "labels": torch.zeros(2, 1, dtype=torch.int64)}
    return Linear(**{**seen, **given})


@pytest.mark.parametrize(("first", "last"), [(1.0, 1.0), (0.5, 0.5), (3.0, 0.7)])
def test_it_reaches_the_posterior_mean_of_a_linear_gaussian_problem(
    first: float, last: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANKS", ())  # N(0, I) is the only candidate.
    seen = linear()
    attack = PlugAndPlay(
        denoiser=MixtureDenoiser(),
        start=Constant(value=0.5),
        labels=Given(),
        stop=Iterations(240),
        rounds=120,
        first=first,
        last=last,
    )
    found = attack((seen,), (generator(0, "a"), generator(0, "b")))
    known = seen.public.inputs
    mean, apart = known.mean(0), known - known.mean(0)
    covariance = apart.T @ apart / len(known) + module.TABLE_FLOOR * torch.eye(5)
    gain = covariance @ MAP.T @ torch.linalg.inv(MAP @ covariance @ MAP.T + seen.noise**2 * torch.eye(4))
    expected = mean + (seen.update["w"] - mean @ MAP.T) @ gain.T
    torch.testing.assert_close(found.inputs[:, 0], expected.clamp(0, 1), rtol=0, atol=2e-3)
    assert len(found.snapshots) == len(found.iterates) == 120
    assert found.snapshots[-1] == len(found.trajectory) == 240
    assert (found.spent[1:] >= found.spent[:-1]).all()
    again = attack((seen,), (generator(0, "a"), generator(0, "b")))
    assert torch.equal(found.inputs, again.inputs)


def test_the_dual_is_scaled_when_the_deviation_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds with deviations 2 and 1, written out; the denoiser halves its input."""
    seen, entered = linear(), []

    def halved(z: Tensor, noise: float) -> Tensor:
        entered.append((z, noise))
        return z / 2

    monkeypatch.setattr(MixtureDenoiser, "__call__", lambda self, view: Denoising(Pixels()(view), halved))
    attack = PlugAndPlay(
        denoiser=MixtureDenoiser(),
        start=Constant(value=0.5),
        labels=Given(),
        stop=Iterations(4),
        rounds=2,
        first=2.0,
        last=1.0,
    )
    attack((seen,), (generator(0, "a"), generator(0, "b")))
    (one, _), (two, last) = entered
    near = one / 2 - one / 8
    known = MAP.T @ MAP / seen.noise**2 + torch.eye(5)
    expected = (seen.update["w"] @ MAP / seen.noise**2 + near[:, 0]) @ torch.linalg.inv(known)
    torch.testing.assert_close((two - one / 8)[:, 0], expected, rtol=0, atol=1e-4)
    assert last == 1.0


def test_fewer_iterations_than_rounds() -> None:
    attack = PlugAndPlay(denoiser=MixtureDenoiser(), start=Constant(value=0.5), labels=Given(), stop=Iterations(3))
    found = attack((linear(),), (generator(0, "a"), generator(0, "b")))
    assert found.snapshots == (1, 2, 3)
    assert attack.between(3) == 2


class Noise(nn.Module):
    """A stub of a diffusion model of black images: what it sees is noise alone."""

    def __init__(self, kept: Tensor) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(1))
        self.kept, self.config, self.steps = kept, types.SimpleNamespace(sample_size=6, in_channels=1), []

    def forward(self, images: Tensor, step: int) -> types.SimpleNamespace:
        self.steps.append(step)
        kept = self.kept[step]
        return types.SimpleNamespace(sample=(images + kept.sqrt()) / (1 - kept).sqrt())


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DiffusersDenoiser, Noise]:
    """Return a denoiser of a folder with weights, and the model that the package reads from it."""
    path = tmp_path / WEIGHTS
    path.parent.mkdir()
    save_file({"a": torch.zeros(1)}, path)
    kept = (1 - torch.linspace(1e-4, 0.02, 1000)).cumprod(0)
    model = Noise(kept)

    def scheduler(prediction: str = "epsilon") -> types.SimpleNamespace:
        return types.SimpleNamespace(alphas_cumprod=kept, config=types.SimpleNamespace(prediction_type=prediction))

    def read(result):
        def from_pretrained(folder: str, **options: object) -> object:
            assert options["local_files_only"] is True
            assert options["subfolder"] == "scheduler" or options["use_safetensors"] is True
            return result

        return types.SimpleNamespace(from_pretrained=from_pretrained)

    package = types.SimpleNamespace(UNet2DModel=read(model), DDPMScheduler=read(scheduler()))
    monkeypatch.setattr(denoiser.importlib, "import_module", lambda name: package)
    return DiffusersDenoiser(folder=str(tmp_path), sha256=hashlib.sha256(path.read_bytes()).hexdigest()), model


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_a_diffusion_model_removes_its_noise(pipeline: tuple[DiffusersDenoiser, Noise], noise: float) -> None:
    part, model = pipeline
    denoising = part(view(faces()))
    z = noise * torch.randn(2, 1, 36, generator=generator(0, "z"))
    assert denoising.estimate(z, noise).abs().max() < 0.02 * noise * 10
    (step,) = model.steps
    assert abs(float(((1 - model.kept[step]) / model.kept[step]).sqrt()) - 2 * noise) < 0.02


def test_a_folder_without_a_usable_model_is_refused(
    pipeline: tuple[DiffusersDenoiser, Noise], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part, _ = pipeline
    seen = view(faces())
    with pytest.raises(InputError, match=r"images of shape \(1, 6, 6\), got inputs of \(5,\)"):
        part(view(torch.rand(4, 5)))
    with pytest.raises(InputError, match="sha256: got 000"):
        dataclasses.replace(part, sha256="0" * 64)(seen)
    with pytest.raises(InputError, match="not found; expected a folder in the format of diffusers"):
        dataclasses.replace(part, folder=str(tmp_path / "none"))(seen)

    kept = (tmp_path / WEIGHTS).read_bytes()
    save_file({"b": torch.zeros(1)}, tmp_path / WEIGHTS)
    digest = hashlib.sha256((tmp_path / WEIGHTS).read_bytes()).hexdigest()
    with pytest.raises(InputError, match="do not have the same tensors, for example 'a'"):
        dataclasses.replace(part, sha256=digest)(seen)
    (tmp_path / WEIGHTS).write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be read by diffusers"):
        dataclasses.replace(part, sha256=hashlib.sha256(b"junk").hexdigest())(seen)
    (tmp_path / WEIGHTS).write_bytes(kept)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(denoiser.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"pip install 'leakbench\[diffusers\]'"):
        part(seen)


@pytest.mark.parametrize(("name", "method"), [("mixture_public", "GradientMatching"), ("plug_and_play", "PlugAndPlay")])
def test_the_recipes_know_the_defense_and_public_examples(name: str, method: str) -> None:
    attack = resolve("attacks", Attack, name)[1]
    assert type(attack.method).__name__ == method
    assert (attack.needs.public, attack.needs.labels, attack.knows) == (3000, False, "defense")


def test_the_prior_with_one_kind_of_image_is_that_of_the_whitened_space() -> None:
    """On tables, which have no mirror images, both spaces have the same coordinates."""
    table = torch.rand(40, 5, generator=generator(0, "table"))
    seen, x = view(table), table[:2, None]
    torch.testing.assert_close(MixtureSpace()(seen).encode(x), Whitened(source="public")(seen).encode(x))
