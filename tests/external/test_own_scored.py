"""The attacker of an external update: its random numbers, its knowledge, and the truth for its scores."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from own_network import CLASSES, SHAPE, batch, build, gradient
from torch import Tensor

import leakbench
from leakbench.cell import Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.external.assumptions import assumptions, overlap
from leakbench.external.attack import _scored
from leakbench.external.attacker import Attacker, AttackerOptions, without_truth
from leakbench.external.scoring import reserve
from leakbench.external.trace import Trace, Training
from leakbench.federated.view import Public
from leakbench.measure.metrics import success_threshold

VICTIMS = 4
CLIP = {"title": "mine", "cite": "nobody", "unit": "example", "example": [{"clip_whole": {"norm": 1e-3}}]}


def gradients(norm: float | None = None) -> list[dict[str, Tensor]]:
    """Return the gradients of the victims' one example each, clipped to a norm."""
    model, (x, y) = build(), batch(VICTIMS)
    found = []
    for i in range(VICTIMS):
        each = gradient(model, x[i : i + 1], y[i : i + 1])
        length = torch.cat([g.flatten() for g in each.values()]).norm()
        times = 1.0 if norm is None else float((norm / length).clamp_max(1.0))
        found.append({n: times * g for n, g in each.items()})
    return found


def attacked(updates: list[dict[str, Tensor]], **given: Any) -> Any:
    x, y = batch(VICTIMS)
    shown = {"shape": SHAPE, "classes": CLASSES, "truth": (x[:, None], y[:, None]), "tap": "type-2"}
    return leakbench.attack_update(build(), updates, **{**shown, "attack": "analytic_fc", **given})


@pytest.mark.parametrize(("dataset", "candidates"), [(None, VICTIMS), ("digits", VICTIMS + 450)])
def test_every_victim_is_ranked_among_all_candidates(dataset: str | None, candidates: int) -> None:
    """Its position among them is shuffled."""
    found = attacked(gradients(), dataset=dataset)
    assert (found.summary["candidates"], found.summary["identified"]) == (candidates, 1.0)


def test_victims_are_identified_by_the_reconstruction_too_and_pictures_recognised_as_in_a_run() -> None:
    """Recognition needs other pictures of the same shape, which only a data set has."""
    torch.manual_seed(0)
    faces = resolve_cell(Request(dataset="faces", attack="identification", train_rounds=0), None).data
    shape, x, y = faces.shape, faces.train_inputs[:VICTIMS, None], faces.train_targets[:VICTIMS, None]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(math.prod(shape), faces.classes))
    updates = [gradient(model, x[i], y[i]) for i in range(VICTIMS)]
    given = {"shape": shape, "classes": faces.classes, "truth": (x, y), "tap": "type-2"}
    found = leakbench.attack_update(model, updates, attack="analytic_fc", dataset="faces", **given).summary
    assert [found[way] for way in ("identified_by_likelihood", "identified_by_reconstruction", "recognised")] == [
        1.0
    ] * 3
    assert found["null_recognised"] < 1.0
    unnamed = leakbench.attack_update(model, updates, attack="analytic_fc", **given).summary
    assert unnamed["recognised"] is None and unnamed["identified_by_reconstruction"] == 1.0


def test_candidates_are_ranked_by_defended_gradients_for_every_attack(tmp_path: Path) -> None:
    """As in every run. With unclipped gradients, the shortest candidate would be chosen for every clipped one."""
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CLIP), encoding="utf-8")
    given = {"attack": "cpl", "knows": "oblivious", "iterations": 1}
    found = attacked(gradients(1e-3), defense=str(tmp_path / "mine.yaml"), **given)
    assert found.summary["identified"] == 1.0
    with pytest.warns(UserWarning, match="a clip"):
        untold = attacked(gradients(1e-3), **given)
    assert untold.summary["identified"] == pytest.approx(1 / VICTIMS)


def test_an_oblivious_attack_does_not_get_the_defense(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CLIP), encoding="utf-8")
    seen = Trace(build(), gradients(1e-3), SHAPE, CLASSES, Training(), tap="type-2")
    oblivious, aware = (
        AttackerOptions("cpl", str(tmp_path / "mine.yaml"), knows=knows)().view(seen)
        for knows in ("oblivious", "defense")
    )
    assert (oblivious.knowledge.defense, oblivious.stations.example) == (False, ())
    assert aware.knowledge.defense and len(aware.stations.example) == 1


def test_draws_of_an_attack_depend_on_its_seed_and_the_victim() -> None:
    given = {"attack": "inverting_gradients_short", "iterations": 1}
    one, again, other = (attacked(gradients(), seed=seed, **given).answer.inputs for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert ((one - other).abs().flatten(1).amax(1) > 0.5).all()  # A synthetic public set from another seed changes .01.
    twice = attacked([gradients()[0]] * VICTIMS, truth=None, **given).answer.inputs
    assert not torch.isclose(twice[0], twice[1], atol=1e-3).all()


def test_the_success_threshold_is_the_data_sets_or_the_requested_one() -> None:
    digits = attacked(gradients(), dataset="digits").rows["eta"]
    data = of_digits().data
    assert data is not None
    assert set(digits) == {success_threshold(data.train_inputs[data.victims], generator(0, "eta"))}
    assert set(attacked(gradients()).rows["eta"]) == {0.1}
    assert set(attacked(gradients(), dataset="digits", success=0.2).rows["eta"]) == {0.2}


def test_synthetic_pictures_are_not_black() -> None:
    """The baseline guess is the picture closest to all of them, and its distance is in the rows."""
    x, _ = batch(VICTIMS)
    null = attacked(gradients()).rows["null_rmse"]
    black = x.square().mean((1, 2, 3)).sqrt()
    assert (torch.tensor(null.to_numpy(), dtype=torch.float32) < black).all()


def of_digits() -> Attacker:
    """Return the attacker with the public examples of digits."""
    who = AttackerOptions("analytic_fc", dataset="digits")
    return who.with_public(who())


def public_digits(n: int) -> tuple[Tensor, Tensor]:
    public = of_digits().public(SHAPE, CLASSES)
    return public.inputs[:n], public.labels[:n]


def test_victims_are_removed_from_the_public_examples() -> None:
    """Otherwise each victim would have a copy among the candidates, and fits on public examples would have used it."""
    model, (x, y) = build(), public_digits(VICTIMS)
    updates = [gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(VICTIMS)]
    rounded = (x[:, None] + 5e-5).clamp_max(1.0)
    summary = attacked(updates, truth=(rounded, y[:, None]), dataset="digits").summary
    assert (summary["candidates"], summary["identified"]) == (450, 1.0)
    attacker = of_digits()
    seen = Trace(model, updates, SHAPE, CLASSES, Training(), tap="type-2", truth=(rounded, y[:, None]))
    own = (
        "4 of the 450 public examples of 'digits' are true examples and left out, since an attacker has no private ones"
    )
    assert list(overlap(seen, attacker)) == [own] and own in assumptions(seen, attacker)
    private = Trace(
        model, gradients(), SHAPE, CLASSES, Training(), tap="type-2", truth=tuple(t[:, None] for t in batch(VICTIMS))
    )
    assert not list(overlap(private, attacker))


def test_an_attacker_without_public_examples_is_refused() -> None:
    public = Public(*public_digits(3))
    kept, left_out = without_truth(public, public.inputs[:2, None] + 5e-4)
    assert (kept is public, left_out) == (True, 0)
    kept, left_out = without_truth(public, public.inputs[:2, None])
    assert (len(kept.inputs), len(kept.labels), left_out) == (1, 1, 2) and torch.equal(kept.inputs[0], public.inputs[2])
    with pytest.raises(InputError, match="dataset: all of its 3 public examples are the truth's own"):
        without_truth(public, public.inputs[None])


@pytest.mark.parametrize(
    ("success", "recognised", "checks"),
    [
        ([True, True], None, False),
        ([True, False], None, True),
        ([True, False], [0.0, 1.0], False),
        ([True, False], [1.0, 0.0], True),
        ([False, False], [1.0, math.nan], True),
    ],
)
def test_searches_are_checked_unless_every_example_leaked(
    success: list[bool], recognised: list[float] | None, checks: bool
) -> None:
    """A reconstruction, or a recognised one, is a leak; an example whose recognition is not known is not."""
    rows = pd.DataFrame({"success": success} | ({} if recognised is None else {"recognised": recognised}))
    calls: list[Any] = []
    quiet: Any = type("Quiet", (), {"tick": lambda *_: None, "close": lambda *_: None})()
    answer: Any = object()
    score: Any = lambda _: (rows, torch.zeros(1))  # noqa: E731
    _scored(score, answer, lambda given: calls.append(given) or given, quiet)  # type: ignore[func-returns-value]
    assert calls == [answer] * checks


@pytest.mark.parametrize(("examples", "gradients"), [(1, 6 * 3 + 3), (2, 6 * 3 * 2 + 3 + 256)])
def test_the_time_for_scores_counts_their_gradients_and_is_at_most_half_of_the_budget(
    examples: int, gradients: int
) -> None:
    """Six for each reconstruction, one for each candidate, and for a batch 256 public examples; a quarter and 2 % more."""
    view, attacker = SimpleNamespace(victims=3, examples=examples), SimpleNamespace(budget=1000.0, data=None)
    assert reserve(view, attacker, 0.1) == (pytest.approx(1.25 * 0.1 * gradients + 20), 3)  # type: ignore[arg-type]
    assert reserve(view, attacker, 30.0) == (500.0, 3)  # type: ignore[arg-type]
