"""Canaries of any training loop: coverage over sound loops, broken loops, hidden inclusion, and scores from a file."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import called
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import leakbench
from leakbench import canaries
from leakbench.auditing.one_run import Guesses, family_lower_bound
from leakbench.core.errors import InputError
from leakbench.core.types import Parameters
from leakbench.privacy.accountants import best
from leakbench.privacy.mechanism import Mechanism

DELTA = 1e-5
LIKE = {"w": torch.zeros(150, 10), "b": torch.zeros(10)}
LAYERS = {str(layer): torch.zeros(1000) for layer in range(9)}
NOISE, RATE, STEPS, BATCH = 3.0, 0.25, 20, 8


def claim(noise: float = NOISE, steps: int = STEPS) -> float:
    return best((Mechanism(noise, RATE, steps),), DELTA)[0]


def clipped(grads: Parameters, norm: float) -> Parameters:
    """Return the gradients {p: (B, *p)}, each with a norm of at most `norm` over all tensors."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factors = (norm / norms.clamp_min(1e-12)).clamp(max=1.0)
    return {n: g * factors.reshape(-1, *[1] * (g.dim() - 1)) for n, g in grads.items()}


def trained(
    seed: int, noise: float = NOISE, clips: bool = True, by_layer: bool = False, steps: int = STEPS
) -> canaries.GradientCanaries:
    """Return the canaries of a hand-written DP-SGD loop on the loss of a quadratic with noisy examples, clip 1."""
    like = LAYERS if by_layer else LIKE
    found = canaries.gradients(like, 1000, rate=RATE, seed=seed)
    rng, weights = torch.Generator().manual_seed(seed), dict(like)
    for _ in range(steps):
        grads = {n: w + 0.1 * torch.randn(BATCH, *w.shape, generator=rng) for n, w in weights.items()}
        grads = found.join(grads)
        if by_layer:
            grads = {n: clipped({n: g}, 1.0)[n] for n, g in grads.items()}
        elif clips:
            grads = clipped(grads, 1.0)
        sums = {n: g.sum(0) + noise * torch.randn(g.shape[1:], generator=rng) for n, g in grads.items()}
        found.score(sums)
        weights = {n: w - 0.1 * sums[n] / BATCH for n, w in weights.items()}
    return found


def test_gradient_canaries_are_far_and_join_after_the_examples() -> None:
    """At rate 1 every included canary joins, each with one coordinate of its own in each tensor with enough of them."""
    found = canaries.gradients(LIKE, 100, norm=7.0, seed=0)
    joined = found.join({n: torch.ones(3, *p.shape) for n, p in LIKE.items()})
    count = int(found.included.sum())
    assert joined["w"].shape == (3 + count, 150, 10) and joined["b"].shape == (3 + count, 10)
    assert (joined["w"][:3] == 1).all()
    far = joined["w"][3:].flatten(1)
    assert ((far != 0).sum(1) == 1).all() and (far.abs().sum(1) == 7).all()
    assert len(far.abs().argmax(1).unique()) == count


def test_an_empty_batch_gets_canaries_too() -> None:
    """A Poisson batch can be empty."""
    found = canaries.gradients(LIKE, 100, seed=0)
    assert len(found.join({n: torch.zeros(0, *p.shape) for n, p in LIKE.items()})["w"]) == int(found.included.sum())


def test_each_included_canary_is_drawn_at_the_rate_and_the_others_never() -> None:
    """The score without noise and examples is the number of a canary's steps, for a clip of 1."""
    found = canaries.gradients(LIKE, 1000, rate=RATE, seed=1)
    for _ in range(200):
        grads = found.join({n: torch.zeros(0, *p.shape) for n, p in LIKE.items()})
        found.score({n: g.sum(0) for n, g in clipped(grads, 1.0).items()})
    shares = found.scores / 200
    assert 440 < int(found.included.sum()) < 560
    assert (shares[~found.included] == 0).all()
    assert float(shares[found.included].mean()) == pytest.approx(RATE, rel=0.02)
    spread = math.sqrt(RATE * (1 - RATE) / 200)
    assert float(shares[found.included].std()) == pytest.approx(spread, rel=0.15)


def test_the_inclusion_is_independent_of_the_coordinates_and_of_other_seeds() -> None:
    """Its correlations with places, signs, its neighbours and another seed are those of coins."""
    one, other = (canaries.gradients({"w": torch.zeros(5000)}, 4000, seed=s) for s in (1, 2))
    coins = one.included.double()
    for series in (one.directions.places["w"], one.directions.signs["w"], coins.roll(1), other.included):
        assert abs(np.corrcoef(coins, series.double())[0, 1]) < 4 / 4000**0.5


def test_scores_do_not_read_the_inclusion() -> None:
    """The same releases give the same scores, whichever canaries were included."""
    one, other = (canaries.gradients(LIKE, 100, seed=3) for _ in range(2))
    object.__setattr__(other.directions, "included", ~other.directions.included)
    released = {n: torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) for n, p in LIKE.items()}
    for found in (one, other):
        found.score(released)
    assert torch.equal(one.scores, other.scores)
    assert not torch.equal(one.included, other.included)
    inputs = torch.randn(50, 4)
    model = nn.Linear(4, 3)
    first, second = (canaries.examples(inputs, labels=torch.zeros(50, dtype=torch.int64), seed=s) for s in (0, 1))
    for examples in (first, second):
        examples.score(model)
    assert torch.equal(first.scores, second.scores) and not torch.equal(first.included, second.included)


def test_sound_loops_are_accused_in_at_most_five_of_a_hundred() -> None:
    """200 trainings of one step at rate 1 whose noise is exactly the claimed one: both bounds together, at 95 %."""
    truth, wrong, bounds = best((Mechanism(NOISE, 1.0, 1),), DELTA)[0], 0, []
    for seed in range(200):
        found = canaries.gradients({"w": torch.zeros(600)}, 400, seed=seed)
        rng = torch.Generator().manual_seed(seed)
        grads = clipped(found.join({"w": torch.randn(4, 600, generator=rng)}), 1.0)
        found.score({"w": grads["w"].sum(0) + NOISE * torch.randn(600, generator=rng)})
        audit = found.audit(truth, gaussian=True)
        wrong += audit.verdict == "violated"
        bounds.append(audit.lower_bound)
    assert wrong <= 10
    assert np.mean(bounds) > 0.1 * truth


@pytest.mark.statistics
def test_sound_loops_with_sampling_are_accused_in_at_most_five_of_a_hundred() -> None:
    """200 trainings of 20 steps at a quarter of the examples."""
    audits = [trained(seed).audit(claim(), gaussian=True) for seed in range(200)]
    assert sum(audit.verdict == "violated" for audit in audits) <= 10
    assert np.mean([audit.lower_bound for audit in audits]) > 0.2 * claim()


def test_chance_is_accused_in_at_most_five_of_a_hundred() -> None:
    """Scores without any relation to the inclusion, and a claim of 0, where each bound above 0 is wrong."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(200):
        scores, included = rng.standard_normal(300), rng.random(300) < 0.5
        wrong += canaries.audit(scores, included, claimed=0.0).verdict == "violated"
    assert 0 < wrong <= 10


def test_equal_scores_in_the_order_of_the_inclusion_show_nothing() -> None:
    """A file that is sorted by inclusion must not make ties right guesses."""
    included = np.arange(1000) >= 500
    assert canaries.audit(np.zeros(1000), included).lower_bound < 0.3


@pytest.mark.parametrize("broken", [{"noise": 0.0}, {"clips": False}, {"noise": NOISE / 3}, {"by_layer": True}])
def test_broken_loops_are_found(broken: dict[str, float]) -> None:
    """Noise forgotten, clip forgotten, a third of the noise, and a clip of each of nine tensors with the noise of one."""
    assert trained(0).audit(claim(), gaussian=True).verdict == "holds"
    assert trained(0, **broken).audit(claim(), gaussian=True).verdict == "violated"


def test_what_the_examples_add_is_subtracted_from_a_score() -> None:
    """Large gradients of examples hide a canary from an attacker that does not know them, and not from one that does."""
    rng, verdicts = torch.Generator().manual_seed(0), []
    blind, knowing = (canaries.gradients({"w": torch.zeros(1000)}, 1000, seed=0) for _ in range(2))
    for _ in range(5):
        examples = clipped({"w": 30 * torch.randn(900, 1000, generator=rng)}, 30.0)
        known = {"w": examples["w"].sum(0)}
        own = clipped(knowing.join({"w": torch.zeros(0, 1000)}), 1.0)["w"].sum(0)
        released = {"w": known["w"] + own + 0.5 * torch.randn(1000, generator=rng)}
        blind.score(released)
        knowing.score(released, known)
    verdicts = [found.audit(1.0).verdict for found in (blind, knowing)]
    assert verdicts == ["holds", "violated"]


def test_a_diverged_loop_is_audited_from_its_finite_releases() -> None:
    """Without a clip the weights become NaN; the releases before show the canaries."""
    found = trained(0, clips=False, noise=0.1, steps=5)
    found.score({n: torch.full(p.shape, math.nan) for n, p in LIKE.items()})
    found.score({n: torch.full(p.shape, math.inf) for n, p in LIKE.items()})
    assert bool(found.scores.isfinite().all())
    with pytest.warns(UserWarning, match="2 of 7 releases were not finite"):
        clean = found.audit(claim(steps=5), gaussian=True)
    assert clean.audit.canaries == 1000


def test_losses_that_are_nan_are_counted() -> None:
    found = canaries.examples(torch.full((20, 2), torch.nan), classes=3, seed=0)
    with pytest.warns(UserWarning, match="20 of 20 losses are NaN"):
        found.score(nn.Linear(2, 3))


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("probed", [False, True])
def test_canaries_in_opacus_are_clipped_and_get_its_noise(probed: bool) -> None:
    """As the page shows: joined after the backward pass; the step releases each as clip / expected batch size."""
    pytest.importorskip("opacus")
    from opacus import GradSampleModule  # noqa: PLC0415
    from opacus.optimizers import DPOptimizer  # noqa: PLC0415

    torch.manual_seed(0)
    model = GradSampleModule(nn.Linear(40, 10))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=4)
    found = canaries.gradients(model, 200, rate=0.5, seed=0)
    optimizer.zero_grad()
    x = torch.zeros(4, 40)  # Only the bias gets a gradient, which has no canary.
    nn.functional.cross_entropy(model(x), torch.zeros(4, dtype=torch.int64)).backward()
    joined = found.join({n: p.grad_sample for n, p in model.named_parameters()})
    for n, p in model.named_parameters():
        p.grad_sample = joined[n]
    if probed:
        with leakbench.probe(model, canaries=found):
            optimizer.step()
    else:
        optimizer.step()
        found.score({n: p.grad for n, p in model.named_parameters()})
    used = len(joined["_module.weight"]) - 4
    assert used > 20
    assert torch.allclose(found.scores.sort().values[-used:], torch.tensor(0.25, dtype=torch.float64), atol=1e-4)
    assert (found.scores.sort().values[:-used] == 0).all()


def test_example_canaries_that_a_model_memorises_are_found() -> None:
    """A model that is fitted to the included canaries violates epsilon 1; one that is not holds."""
    torch.manual_seed(0)
    inputs = torch.randn(200, 400)
    memorised = canaries.examples(inputs, classes=10, seed=5)
    x, y = memorised.added
    assert len(x) == int(memorised.included.sum()) and torch.equal(y, memorised.labels[memorised.included])
    model = nn.Linear(400, 10)
    model.train()
    memorised.score(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    memorised.score(model)
    assert model.training
    assert torch.allclose(memorised.scores, memorised.losses[0] - memorised.losses[1])
    assert memorised.audit(1.0).verdict == "violated"
    others = canaries.examples(inputs, classes=10, seed=5)
    others.included = torch.rand(200, generator=torch.Generator().manual_seed(9)) < 0.5
    others.score(model)
    assert torch.equal(others.scores, -others.losses[0])
    assert others.audit(1.0).verdict == "holds"


def test_the_result_has_the_claim_and_the_verdict() -> None:
    """Also as JSON; without a claim there is none."""
    rng = np.random.default_rng(0)
    included = rng.random(500) < 0.5
    found = leakbench.canaries.audit(included + 0.1 * rng.standard_normal(500), included, claimed=1.0, unit="client")
    assert found.verdict == "violated"
    assert str(found).startswith("verdict: violated: the audited lower bound")
    assert "unit: one client" in str(found) and "not guarantee privacy" in str(found)
    assert {"lower_bound", "claimed", "verdict", "canaries"} <= json.loads(json.dumps(found.as_dict())).keys()
    assert canaries.audit(included, included).verdict == "no claim"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: canaries.gradients(LIKE, 3), "count: got 3"),
        (lambda: canaries.gradients(LIKE, 50, rate=0), "rate: got 0"),
        (lambda: canaries.gradients(LIKE, 50, norm=-1), "norm: got -1"),
        (lambda: canaries.gradients({}, 50), "model: got no trained parameter"),
        (lambda: canaries.gradients(LIKE, 50).join({"b": torch.zeros(1, 10)}), "canaries: got .'b'. without 'w'"),
        (lambda: canaries.gradients(LIKE, 50).audit(1.0), "canaries: got no release"),
        (lambda: canaries.examples(torch.zeros(20, 2)), "classes: expected either"),
        (lambda: canaries.examples(torch.zeros(5, 2), classes=2), "inputs: got 5"),
        (lambda: canaries.examples(torch.zeros(20, 2), labels=torch.zeros(3)), "labels: got 3"),
        (lambda: canaries.examples(torch.zeros(20, 2), classes=2).audit(), "canaries: got no losses"),
        (lambda: canaries.gradients(LIKE, 10**12), "count: got 1000000000000, expected at most"),
        (lambda: canaries.gradients({"w": 3}, 50).join({}), "canaries: got"),
        (lambda: canaries.gradients({"w": "three"}, 50), "model: 'w': got a value of type str"),
        (lambda: canaries.gradients(nn.LazyLinear(3), 50), "model: 'weight' has no shape yet"),
        (lambda: canaries.examples(torch.tensor(1.0), classes=2), "inputs: got one number"),
        (lambda: canaries.examples(torch.zeros(20, 2), labels=torch.tensor(1)), "labels: got one number"),
        (lambda: canaries.examples(torch.zeros(20, 2), classes=0), "classes: got 0, expected at least 1"),
        (lambda: canaries.examples(torch.zeros(20, 2), classes=2).score(nn.ReLU()), "model: got no parameter"),
        (lambda: canaries.audit(np.zeros(100), np.arange(100)), "included: got numbers other than 0 and 1"),
        (lambda: canaries.audit(np.zeros(100), np.arange(100) % 2, confidence=2), "confidence: got 2, expected"),
        (lambda: canaries.audit(np.zeros(100), np.ones(100)), "included: got 100 of 100"),
        (lambda: canaries.audit(np.zeros(99), np.arange(100) % 2), "scores: got shape"),
        (lambda: canaries.audit(np.zeros(100), np.arange(100) % 2, claimed=math.inf), "claimed: got inf"),
        (lambda: canaries.audit(np.zeros(3), np.zeros(3)), "canaries: got shape"),
        (lambda: canaries.audit(torch.zeros(20, device="meta"), np.arange(20) % 2), "'scores' is on the meta device"),
        (lambda: canaries.audit(np.zeros(20) + 1j, np.arange(20) % 2), "'scores' has complex numbers"),
        (lambda: canaries.examples(torch.zeros(20, 2, device="meta"), classes=2), "'inputs' is on the meta device"),
        (lambda: canaries.examples(torch.zeros(20, 2, dtype=torch.cfloat), classes=2), "'inputs' has complex numbers"),
        (
            lambda: canaries.gradients(LIKE, 50).join({"w": torch.zeros(3, 150, 10).long(), "b": torch.zeros(3, 10)}),
            "'w' has numbers of type torch.int64",
        ),
        (
            lambda: canaries.gradients(LIKE, 50).join({"w": torch.zeros(3, 150, 10), "b": torch.zeros(4, 10)}),
            "got .'w': 3, 'b': 4., expected",
        ),
    ],
)
def test_wrong_input_is_refused(wrong, message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()


def test_a_loss_of_the_whole_batch_is_refused_and_the_mode_stays() -> None:
    model = nn.Linear(2, 3).train()
    with pytest.raises(InputError, match="loss: got shape"):
        canaries.examples(torch.zeros(20, 2), classes=3).score(model, nn.functional.cross_entropy)
    assert model.training


def written(path: Path, noise: float) -> str:
    """Write the scores of 1,000 canaries, and return the name of the file."""
    rng = np.random.default_rng(0)
    included = rng.random(1000) < 0.5
    scores = included + noise * rng.standard_normal(1000)
    lines = [f"{i},{s},{int(b)}" for i, (s, b) in enumerate(zip(scores, included, strict=True))]
    path.write_text("\n".join(["canary,score,included", *lines, ""]), encoding="utf-8")
    return str(path)


def test_the_command_compares_the_scores_of_a_file_with_a_claim(monkeypatch, capsys, tmp_path: Path) -> None:
    """The exit code is 1 if the bound is more than the claim."""
    loud, quiet = written(tmp_path / "loud.csv", 0.3), written(tmp_path / "quiet.csv", 30.0)
    code, out, _ = called(monkeypatch, capsys, "audit", "--scores", loud, "--claimed", "2", "--delta", "1e-6")
    assert code == 1 and out.startswith("verdict: violated") and "delta 1e-06" in out
    code, out, _ = called(monkeypatch, capsys, "audit", "--scores", quiet, "--claimed", "2", "--json")
    assert code == 0 and json.loads(out)["verdict"] == "holds"
    code, out, _ = called(monkeypatch, capsys, "audit", "--scores", quiet)
    assert code == 0 and out.startswith("verdict: no claim")


def test_the_command_adds_the_bound_of_the_gaussian_family(monkeypatch, capsys, tmp_path: Path) -> None:
    """It equals the function's with the same family, and needs scores."""
    path = written(tmp_path / "loud.csv", 0.5)
    code, out, _ = called(monkeypatch, capsys, "audit", "--scores", path, "--gaussian", "0.5, 4", "--json")
    family = Mechanism(1.0, 0.5, 4)
    expected = canaries.audit(*canaries.read_scores(Path(path)), family=family).as_dict()
    found = json.loads(out)
    assert code == 0 and found["lower_bound_family"] == pytest.approx(expected["lower_bound_family"])
    assert found["lower_bound_family"] > found["lower_bound"]
    code, _, err = called(monkeypatch, capsys, "audit", "--gaussian", "0.5,4")
    assert code == 2 and "gaussian: got '0.5,4', expected only with --scores" in err


def test_a_probe_scores_gradient_canaries_in_every_step_also_those_it_does_not_record() -> None:
    """The scores equal those of a loop that calls `score` itself; a step of another model counts not."""
    scores = []
    for probed in (False, True):
        torch.manual_seed(0)
        model, other = nn.Linear(150, 10), nn.Linear(2, 1)
        optimizer, second = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
        found = canaries.gradients(model, 100, seed=0)
        with leakbench.probe(model, steps=1, canaries=found if probed else None):
            for _ in range(3):
                other(torch.ones(1, 2)).sum().backward()
                second.step()
                grads = found.join({n: torch.zeros(0, *p.shape) for n, p in model.named_parameters()})
                for n, p in model.named_parameters():
                    p.grad = grads[n].sum(0) + torch.randn(p.shape)
                optimizer.step()
                if not probed:
                    found.score({n: p.grad for n, p in model.named_parameters()})
        assert found.releases == 3
        scores.append(found.scores)
    assert torch.equal(*scores)
    assert found.audit(1.0, gaussian=True).verdict in {"holds", "violated"}


def test_a_probe_scores_example_canaries_before_and_after_the_training() -> None:
    """And not after a training that failed."""
    model, found = nn.Linear(4, 3), canaries.examples(torch.randn(20, 4), classes=3, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with leakbench.probe(model, canaries=found):
        for _ in range(2):
            nn.functional.cross_entropy(model(found.added[0]), found.added[1]).backward()
            optimizer.step()
    assert len(found.losses) == 2 and (found.scores[found.included].mean() > 0)
    again = canaries.examples(torch.randn(20, 4), classes=3, seed=0)
    with pytest.raises(RuntimeError, match="stopped"), leakbench.probe(model, canaries=again):
        raise RuntimeError("stopped")
    assert len(again.losses) == 1


def test_canaries_of_another_model_are_refused_before_the_training() -> None:
    with (
        pytest.raises(InputError, match="expected the names that the canaries were drawn for"),
        leakbench.probe(nn.Linear(2, 1), canaries=canaries.gradients(LIKE, 100, seed=0)),
    ):
        pytest.fail("the block began")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dataset", "mnist"), "scores: got --dataset as well"),
        (("--callable", "a:b"), "scores: got --callable as well"),
        (("--sigma", "1"), "scores: got --sigma as well"),
        (("--into", "."), "scores: got --into as well"),
        (("--claimed", "-1"), "claimed: got -1.0"),
        (("--delta", "1"), "delta: got 1.0"),
        *(
            (("--gaussian", wrong), f"gaussian: got '{wrong}'")
            for wrong in ("0,5", "1.5,5", ".5,0", ".5", "a,b", ".5,1.5", "nan,5", ".5,1e9")
        ),
    ],
)
def test_scores_take_only_a_claim_and_delta_and_a_family(monkeypatch, capsys, tmp_path, options, message) -> None:
    code, _, err = called(monkeypatch, capsys, "audit", "--scores", written(tmp_path / "s.csv", 1.0), *options)
    assert code == 2 and message in err


def test_a_claim_without_scores_is_refused(monkeypatch, capsys) -> None:
    code, _, err = called(monkeypatch, capsys, "audit", "--claimed", "1")
    assert code == 2 and "claimed: got 1, expected only with --scores" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lines under the header"),
        ("a,b\n1,1\n", "expected lines under the header"),
        ("score,included\n", "expected lines under the header"),
        ("score,included\n1,1\nx,1\n", "line 3: got 'x,1'"),
        ("score,included\n1,maybe\n", "line 2: got '1,maybe'"),
        ("score,included\n1\n", "line 2: got '1,None'"),
        ("score,included\nnan,1\n" + "1,0\n" * 20 + "1,1\n" * 20, "line 2: got 'nan,1', expected a finite number"),
        ("score,included\n1,1\n1e400,0\n", "line 3: got '1e400,0', expected a finite number"),
        ("score,included\n1,1\n", "expected at least 10"),
    ],
)
def test_a_damaged_file_of_scores_is_refused(monkeypatch, capsys, tmp_path, text, message) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text, encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, "audit", "--scores", str(path))
    assert code == 2 and message in err and len(err.splitlines()) == 1
    path.write_bytes(b"\xff\xfe\x00score")
    assert called(monkeypatch, capsys, "audit", "--scores", str(path))[0] == 2


def test_a_file_of_scores_may_be_written_by_a_spreadsheet_or_pandas(monkeypatch, capsys, tmp_path) -> None:
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    rows = [(0.1 * n, n % 2) for n in range(40)]
    plain.write_text("score,included\n" + "".join(f"{s},{i}\n" for s, i in rows), encoding="utf-8")
    other.write_text("\ufeffscore, included\n" + "".join(f"{s}, {float(i)}\n" for s, i in rows), encoding="utf-8")
    printed = [called(monkeypatch, capsys, "audit", "--scores", str(path)) for path in (plain, other)]
    assert printed[0][:2] == printed[1][:2] and printed[0][0] == 0


def test_the_family_needs_the_number_of_steps() -> None:
    own = canaries.gradients({"w": torch.zeros(500)}, 20, rate=0.5)
    own.score({"w": torch.zeros(500)})
    with pytest.raises(InputError, match=r"gaussian: got True, but the number of steps is not known"):
        own.audit(gaussian=True)


def stepped(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Take one step on random gradients."""
    for p in model.parameters():
        p.grad = torch.randn(p.shape)
    for optimizer in optimizers:
        optimizer.step()


def test_a_probed_loop_that_does_not_join_in_each_step_is_refused() -> None:
    """Otherwise its canaries took no part, and the audit would say `holds`."""
    model = nn.Linear(150, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for joins, message in ((0, "never called join, got 3 steps and 0 calls"), (2, "did not always call join")):
        found = canaries.gradients(model, 100, seed=0)
        with pytest.raises(InputError, match=message), leakbench.probe(model, canaries=found):
            for step in range(3):
                if step < joins:
                    found.join({n: torch.zeros(0, *p.shape) for n, p in model.named_parameters()})
                stepped(model, optimizer)
        with pytest.raises(InputError, match=message):
            found.audit(1.0)


def test_a_refused_probe_leaves_no_hooks_behind() -> None:
    before = [dict(hooks) for hooks in (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)]
    with (
        pytest.raises(InputError, match="expected the names"),
        leakbench.probe(nn.Linear(2, 1), canaries=canaries.gradients(LIKE, 100, seed=0)),
    ):
        pytest.fail("the block began")
    assert [dict(hooks) for hooks in (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)] == before


def test_example_canaries_of_a_probe_without_a_training_are_refused() -> None:
    """Of an empty block, and of one that failed; one loss after a training without a probe is enough."""
    model, inputs = nn.Linear(4, 3), torch.randn(20, 4)
    empty, failed, plain = (canaries.examples(inputs, classes=3, seed=0) for _ in range(3))
    with pytest.raises(InputError, match="canaries: got no step"), leakbench.probe(model, canaries=empty):
        pass
    with pytest.raises(RuntimeError, match="stopped"), leakbench.probe(model, canaries=failed):
        stepped(model, torch.optim.SGD(model.parameters(), 0.1))
        raise RuntimeError("stopped")
    for found in (empty, failed):
        with pytest.raises(InputError, match="canaries: got no losses after the probed training"):
            found.audit(1.0)
    plain.score(model)
    assert plain.audit(1.0).verdict == "holds"


def test_canaries_of_a_model_with_the_same_names_and_other_shapes_are_refused() -> None:
    """A smaller one would end in an index error, and a larger one would be scored at wrong coordinates."""
    found = canaries.gradients(nn.Linear(20, 10), 100, seed=0)
    for width in (15, 40):
        other = nn.Linear(width, 10)
        with pytest.raises(InputError, match=r"got the shape \(10, \d+\) of 'weight', expected \(10, 20\)"):
            found.join({n: torch.zeros(2, *p.shape) for n, p in other.named_parameters()})
        with pytest.raises(InputError, match="got the shape"):
            found.updates(torch.tensor([0]), dict(other.named_parameters()))
        with pytest.raises(InputError, match="got the shape"):
            found.score(dict(other.named_parameters()))
        with pytest.raises(InputError, match="got the shape"), leakbench.probe(other, canaries=found):
            pytest.fail("the block began")
    assert found.steps == found.releases == 0


@pytest.mark.parametrize("drawn_for_wrapper", [False, True])
def test_a_wrapper_makes_no_difference_to_gradient_canaries(drawn_for_wrapper: bool) -> None:
    """Drawn for the wrapper or the model inside, and joined and probed with the other one."""
    inner = nn.Linear(150, 10)
    wrapper = nn.DataParallel(inner)
    drawn, probed = (wrapper, inner) if drawn_for_wrapper else (inner, wrapper)
    found, plain = (canaries.gradients(model, 100, seed=0) for model in (drawn, inner))
    joined = found.join({n: torch.zeros(1, *p.shape) for n, p in probed.named_parameters()})
    expected = plain.join({n: torch.zeros(1, *p.shape) for n, p in inner.named_parameters()})
    assert list(joined) == [n for n, _ in probed.named_parameters()]
    assert all(torch.equal(*pair) for pair in zip(joined.values(), expected.values(), strict=True))
    optimizer = torch.optim.SGD(inner.parameters(), 0.1)
    with leakbench.probe(probed, canaries=found):
        stepped(inner, optimizer)
    plain.score({n: p.grad for n, p in inner.named_parameters()})
    assert torch.equal(found.scores, plain.scores) and found.scores.any()


def test_two_optimizers_of_one_step_are_scored_once() -> None:
    """Each with the gradients of its own parameters: the sum is that of one optimizer, and so is the number of releases."""
    model = nn.Sequential(nn.Linear(40, 10), nn.Linear(10, 20))
    first, second = (torch.optim.SGD(layer.parameters(), 0.1) for layer in model)
    found, plain = (canaries.gradients(model, 100, seed=0) for _ in range(2))
    with leakbench.probe(model, canaries=found):
        for _ in range(3):
            found.join({n: torch.zeros(0, *p.shape) for n, p in model.named_parameters()})
            stepped(model, first, second)
            plain.score({n: p.grad for n, p in model.named_parameters()})
    assert found.releases == found.steps == 3
    assert torch.allclose(found.scores, plain.scores)


def test_an_optimizer_that_does_not_step_is_not_scored() -> None:
    """Its gradients are those of an earlier step."""
    model = nn.Sequential(nn.Linear(40, 10), nn.Linear(10, 20))
    first = torch.optim.SGD(model[0].parameters(), 0.1)
    found, plain = (canaries.gradients(model, 100, seed=0) for _ in range(2))
    with leakbench.probe(model, canaries=found):
        for _ in range(2):
            found.join({n: torch.zeros(0, *p.shape) for n, p in model.named_parameters()})
            stepped(model, first)
            grads = {n: p.grad if n.startswith("0") else torch.zeros_like(p) for n, p in model.named_parameters()}
            plain.score(grads)
    assert found.releases == 2 and torch.equal(found.scores, plain.scores)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: "abc", "canaries: got 'abc' of type str, expected canaries of leakbench.canaries or None"),
        (lambda: canaries.examples(torch.zeros(20, 5), classes=3), r"the loss fails on inputs \(20, 5\)"),
        (lambda: canaries.examples(torch.zeros(20, 4), classes=9, seed=0), "labels: got 0 to 8, expected 0 to 2"),
        (lambda: canaries.examples(torch.zeros(20, 4), labels=torch.full((20,), -100)), "labels: got -100 to -100"),
    ],
)
def test_a_probe_refuses_canaries_that_its_model_does_not_take(given, message: str) -> None:
    with pytest.raises(InputError, match=message), leakbench.probe(nn.Linear(4, 3), canaries=given()):
        pytest.fail("the block began")


def test_the_search_of_the_family_reaches_many_steps(monkeypatch, capsys, tmp_path: Path) -> None:
    """Its start has an epsilon of a few: 200,000 steps at 1/4 are nearly one Gaussian, whose bound has a closed form."""
    path = written(tmp_path / "loud.csv", 0.3)
    found = [
        json.loads(called(monkeypatch, capsys, "audit", "--scores", path, "--gaussian", family, "--json")[1])
        for family in ("0.25,200000", "1,1")
    ]
    many, one = (each["lower_bound_family"] for each in found)
    assert 0.9 * one < many < 1.02 * one
    own = canaries.gradients({"w": torch.zeros(2000)}, 1000, rate=0.25, seed=0)
    own.steps, own.releases, own.scores = 200_000, 200_000, own.included + 0.3 * torch.randn(1000)
    family = own.audit(gaussian=True).audit.lower_bound_family
    assert family is not None and 0.9 * one < family < 1.02 * one


def test_the_family_says_that_guesses_contradict_it_and_that_it_was_not_computed(monkeypatch, capsys, tmp_path) -> None:
    """Canaries that are used in 3e-5 of the trainings cannot all be guessed, even without noise; a rate near 0 has no epsilon."""
    loud, quiet = written(tmp_path / "loud.csv", 0.3), written(tmp_path / "quiet.csv", 30.0)
    code, out, _ = called(monkeypatch, capsys, "audit", "--scores", loud, "--gaussian", "1e-5,3", "--claimed", "100")
    assert code == 0 and "in the Gaussian family: the guesses contradict this rate and these steps; a lower" in out
    assert "0 in the Gaussian" not in out
    _, out, _ = called(monkeypatch, capsys, "audit", "--scores", quiet, "--gaussian", "1e-320,5")
    assert "in the Gaussian family: not computed; a lower" in out


def test_a_family_that_guesses_contradict_is_told_from_one_with_little_noise() -> None:
    """Without noise, three steps at 1/1000 show the inclusion of 0.3 % of the canaries: that allows 560 right guesses, not 700."""
    for correct, contradicts in ((560, False), (600, False), (700, True)):
        found = family_lower_bound([Guesses(1000, 1000, correct)], Mechanism(1.0, 1e-3, 3), DELTA, 0.01)
        assert found is not None and (found == math.inf) == contradicts


@pytest.mark.parametrize("delta", ["0", "1", "nan"])
def test_delta_has_one_range_with_a_family(monkeypatch, capsys, tmp_path, delta: str) -> None:
    path = written(tmp_path / "s.csv", 1.0)
    code, _, err = called(monkeypatch, capsys, "audit", "--scores", path, "--gaussian", ".5,4", "--delta", delta)
    assert code == 2 and "expected a number in (0, 1)" in err
