"""Labels by ranking the classes: accuracy equals the theory for known noise, for one example and for batches."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_line import called
from flat_noise import runs_behind_flat_noise
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from torch import Tensor, nn

from leakbench.attack.public_gradients import gradients_alone
from leakbench.attack.rankings import classes as classes_module
from leakbench.attack.rankings.classes import Classes
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.federated.view import Public, View
from leakbench.measure.statistics import wilson
from leakbench.models import parameters

FEATURES = 4


def network(classes: int) -> Network:
    model = nn.Linear(FEATURES, classes)
    rng = generator(0, "weights")
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=rng))
    return Network(model, parameters(model))


def alike(classes: int, each: int = 3) -> Public:
    """Return public examples that are identical within each class."""
    inputs = torch.rand(classes, FEATURES, generator=generator(0, "inputs"))
    labels = torch.arange(classes).repeat(each)
    return Public(inputs[labels], labels)


def blank(classes: int, public: Public, batch: int = 1, noise: float | None = None) -> View:
    """Return a view in which only the shapes of the update matter."""
    some = network(classes)
    update = {n: p[None] for n, p in some.parameters.items()}
    tap = "type-2" if batch == 1 else "type-1"
    return View(tap, some, update, batch, (FEATURES,), classes, 0.1, public=public, noise=noise)


def means(view: View) -> Tensor:
    """Return the gradient (classes, p) of each class with identical examples."""
    assert view.public is not None
    one = replace(view, tap="type-2")
    x, y = view.public.inputs[: view.classes, None], torch.eye(view.classes)[:, None]
    return torch.cat([g.flatten(1) for g in one.respond(x, y).values()], 1).detach()


def seeing(view: View, flat: Tensor) -> View:
    """Return the view of victims whose updates are the rows of (V, p)."""
    sizes = [u[0].numel() for u in view.update.values()]
    pieces = flat.split(sizes, 1)
    shown = {n: piece.reshape(-1, *u.shape[1:]) for (n, u), piece in zip(view.update.items(), pieces, strict=True)}
    return replace(view, update=shown)


def right(view: View, looks: int, std: float, victims: int = 4000) -> tuple[int, int]:
    """Return the number of correct labels for this many victims of classes 0 and 1."""
    rng = generator(1, "noise", looks)
    label = torch.arange(victims) % 2
    clean = means(view)[label]
    noisy = [clean + std * torch.randn(clean.shape, generator=rng) for _ in range(looks)]
    scores = Classes()(tuple(seeing(view, y) for y in noisy), ()).scores
    return int((scores.argmax(1) == label).sum()), victims


@pytest.mark.parametrize(("ratio", "looks"), [(0.3, 1), (1.0, 1), (3.0, 1), (0.5, 4), (0.2, 25)])
def test_accuracy_for_two_classes_equals_the_theory_of_the_noise(ratio: float, looks: int) -> None:
    """Phi(sqrt(n) d / (2 s)) for n observations of two means at distance d, within the binomial's range of 1 in 10,000."""
    view = blank(2, alike(2))
    g = means(view)
    std = float((g[0] - g[1]).norm()) / ratio
    found, victims = right(replace(view, noise=std), looks, std)
    low, high = binom.interval(0.9999, victims, norm.cdf(math.sqrt(looks) * ratio / 2))
    assert low <= found <= high


@given(looks=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_n_observations_equal_one_with_noise_over_root_n(looks: int, seed: int) -> None:
    view = blank(3, alike(3), noise=0.5)
    drawn = torch.randn(looks, 7, means(view).shape[1], generator=generator(seed, "looks"))
    many = Classes()(tuple(seeing(view, y) for y in drawn), ()).scores
    once = Classes()((seeing(replace(view, noise=0.5 / math.sqrt(looks)), drawn.mean(0)),), ()).scores
    torch.testing.assert_close(many, once, rtol=1e-4, atol=1e-3)


def test_the_score_is_the_posterior_of_gaussian_classes() -> None:
    """Up to terms that do not depend on the class: the density of the observation under each class, times its public share."""
    public = alike(3)
    keep = torch.tensor([0, 1, 2, 3, 3 + 1, 6])  # Shares 3/6, 2/6, 1/6.
    view = blank(3, Public(public.inputs[keep], public.labels[keep]), noise=0.7)
    y = torch.randn(5, means(view).shape[1], generator=generator(0, "seen"))
    shares = torch.bincount(public.labels[keep], minlength=3) / 6
    density = -(y[:, None] - means(view)).square().sum(2) / (2 * 0.7**2) + shares.log()
    scores = Classes()((seeing(view, y),), ()).scores
    torch.testing.assert_close(scores.log_softmax(1), density.log_softmax(1), rtol=1e-4, atol=1e-4)


def test_without_known_noise_the_score_is_the_cosine() -> None:
    """The length of the observed update does not matter; the class of its direction comes first."""
    view = blank(5, alike(5))
    y = 1e3 * means(view)
    scores = Classes()((seeing(view, y),), ()).scores
    torch.testing.assert_close(scores, nn.functional.cosine_similarity(y[:, None], means(view)[None], dim=2))
    assert scores.argmax(1).tolist() == [0, 1, 2, 3, 4]


def test_a_class_without_a_public_example_is_never_chosen() -> None:
    public = alike(3)
    few = Public(public.inputs[public.labels != 1], public.labels[public.labels != 1])
    for batch, noise in ((1, None), (1, 0.5), (4, 0.5)):
        view = blank(3, few, batch, noise)
        scores = Classes()((seeing(view, torch.randn(6, means(view).shape[1])),), ()).scores
        assert (scores[:, 1] == -torch.inf).all()
        assert scores[:, [0, 2]].isfinite().all()


def batches(view: View, many: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return shares (n, classes) of batches drawn at the public shares, and the update (n, p) of such a batch."""
    rng = generator(seed, "batches")
    labels = torch.randint(view.classes, (many, view.batch), generator=rng)
    shares = nn.functional.one_hot(labels, view.classes).float().mean(1)
    clean = shares @ means(view)
    return shares, clean + (view.noise or 0.0) * torch.randn(clean.shape, generator=rng)


@pytest.mark.parametrize("noise", [0.05, 0.3, 2.0])
def test_behind_a_batch_the_shares_are_those_of_the_best_linear_estimator(noise: float) -> None:
    """Against least squares on 50,000 simulated batches of 4, which does not use the model."""
    view = blank(3, alike(3), batch=4, noise=noise)
    shares, seen = batches(view, 50_000, 0)
    design = torch.cat([seen, torch.ones(len(seen), 1)], 1).double()
    fitted = torch.linalg.lstsq(design, shares.double()).solution
    truth, y = batches(view, 200, 1)
    slow = torch.cat([y, torch.ones(len(y), 1)], 1).double() @ fitted
    scores = Classes()((seeing(view, y),), ()).scores
    assert float((scores - slow).abs().max()) < 0.03
    assert float((scores - truth).square().mean()) <= 1.02 * float((slow - truth).square().mean())


def test_classes_of_identical_examples_are_counted_exactly_in_a_batch() -> None:
    view = blank(4, alike(4), batch=6)
    shares, seen = batches(view, 50, 2)
    torch.testing.assert_close(Classes()((seeing(view, seen),), ()).scores, shares, rtol=0, atol=1e-3)


def test_gradients_too_large_to_keep_are_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same result as with stored gradients."""
    view = blank(3, alike(3, each=30), batch=4, noise=0.3)
    shown = seeing(view, batches(view, 20, 3)[1])
    kept = Classes()((shown,), ()).scores
    monkeypatch.setattr(classes_module, "fitting", lambda view, budget: 4)
    torch.testing.assert_close(Classes()((shown,), ()).scores, kept)


def test_updates_that_cannot_be_ranked_are_refused() -> None:
    """Missing public examples are refused; a gradient that is not finite has no label."""
    for public in (None, Public(torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.int64))):
        with pytest.raises(InputError, match="public: got no public example, which 'classes' needs"):
            Classes()((replace(blank(2, alike(2)), public=public),), ())
    for batch in (1, 3):
        view = blank(3, alike(3), batch, 0.5)
        scores = Classes()((seeing(view, torch.full((2, means(view).shape[1]), torch.nan)),), ()).scores
        assert not scores.isfinite().any()


@pytest.mark.slow
def test_every_run_ranks_the_classes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With an attack that searches, at strong noise: right more often than the commonest class, within its bound."""
    run = runs_behind_flat_noise(monkeypatch, capsys, tmp_path)
    options = (
        "--attack inverting_gradients --iterations 1 --victims 100 --candidates 100 --taps type-2,type-1 --networks 1"
    )
    summary, folder = run("run", *options.split(), "--leak-batch", "3")
    alone, batch = summary["taps"]["type-2"], summary["taps"]["type-1"]
    rows = pd.read_parquet(folder / "rows.parquet")
    told = rows[rows["tap"] == "type-2"]["label_ranked"]
    assert set(told) <= {0.0, 1.0}
    assert alone["label_ranked"] == pytest.approx(told.mean())
    assert (alone["label_ranked_low"], alone["label_ranked_high"]) == wilson(float(told.sum()), 100)
    assert alone["null_label"] < alone["label_ranked_low"] < alone["label_ranked_bound"] < 0.5
    assert alone["label_ranked_bound"] == pytest.approx(float(norm.cdf(norm.ppf(alone["null_label"]) + 1)))
    assert batch["label_ranked_bound"] < batch["label_bound"]
    assert summary["violations"] == []
    code, out, _ = called(monkeypatch, capsys, "report", "-v", str(folder))
    assert code == 0
    assert "label ranked" in " ".join(out.split())


def test_an_interrupted_iteration_keeps_derivatives_on() -> None:
    """Gradients of public examples are iterated without derivatives, but the code that uses them has derivatives on."""
    view = blank(3, alike(3))
    walk = gradients_alone(view, alike(3), chunk=1)
    first = next(walk)
    assert torch.is_grad_enabled()
    assert not first.requires_grad
    assert len(list(walk)) == 8
