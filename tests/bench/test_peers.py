"""Searches of other packages: their hand-over and their times, with small fakes, and with the packages where they are installed."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.speed import attack, peers
from benchmarks.speed.peers import PEERS, Leak, Peer, Stopwatch, peers_to_eta
from benchmarks.speed.size import QUICK
from leakbench.reproduce.cost import with_threads

SHAPE = (3, 6, 6)
CLASSES = 4


def leak(seed: int = 0) -> Leak:
    """Return the leak of an image from a small network with smooth activations."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(216, CLASSES))
    inputs, label = torch.rand(1, *SHAPE), torch.tensor([2])
    loss = nn.functional.cross_entropy(model(inputs), label)
    names = [name for name, _ in model.named_parameters()]
    # The order of the update is not that of the parameters.
    update = dict(reversed(list(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))))

    def error(x: torch.Tensor) -> float:
        return float((x.clamp(0, 1) - inputs).square().mean().sqrt())

    return Leak(model, update, label, inputs, CLASSES, error)


def halving(optimizer: Callable[..., torch.optim.Optimizer], clock: list[float], steps: int) -> torch.Tensor:
    """Search zero from .4 by steps that halve the point; an evaluation takes one second of the clock."""
    point = torch.full((1, 2), 0.4).requires_grad_()
    search = optimizer([point])

    def closure() -> torch.Tensor:
        search.zero_grad()
        clock[0] += 1
        loss = point.square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        search.step(closure)
    return point.detach()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [7.0]
    monkeypatch.setattr(peers.time, "perf_counter", lambda: now[0])
    return now


def sgd(points: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(points, lr=0.25)


def lbfgs(points: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Two evaluations in a step. The first step moves once: by 1 / |g|_1 * .25 = .156 of .4."""
    return torch.optim.LBFGS(points, lr=0.25, max_iter=2, max_eval=2)


def test_the_first_success_is_timed_without_the_comparison(clock: list[float]) -> None:
    """.4, .2, .1, .05: the third step is within .06. A comparison takes 100 seconds of the clock, which do not count."""

    def error(x: torch.Tensor) -> float:
        clock[0] += 100
        return float(x.square().mean().sqrt())

    watch = Stopwatch(error, 0.06)
    watch.run(lambda: halving(sgd, clock, 5))
    assert (watch.seconds, watch.evaluations, watch.whole) == (3, 3, 5)
    assert watch.final == pytest.approx(0.4 / 32)
    never = Stopwatch(error, 0.001)
    never.run(lambda: halving(sgd, clock, 5))
    assert (never.seconds, never.evaluations, never.whole) == (math.inf, math.inf, 5)


def test_a_point_that_leaves_the_threshold_again_was_a_success_once(clock: list[float]) -> None:
    errors = iter([0.5, 0.01, 0.5, 0.5])
    watch = Stopwatch(lambda _: next(errors), 0.1)
    watch.run(lambda: halving(sgd, clock, 3))
    assert (watch.seconds, watch.evaluations, watch.whole, watch.final) == (2, 2, 3, 0.5)


def test_evaluations_of_lbfgs_are_counted(clock: list[float]) -> None:
    """Several in one step: the clock counts the closures."""
    watch = Stopwatch(lambda x: float(x.abs().max()), 0.3)
    watch.run(lambda: halving(lbfgs, clock, 4))
    assert watch.evaluations == watch.seconds == 2
    assert watch.steps == 4 < watch.whole


def test_no_step_is_compared_after_a_search() -> None:
    watch = Stopwatch(lambda _: 0.0, 0.1)
    watch.run(lambda: halving(sgd, [0.0], 1))

    def fail() -> torch.Tensor:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        watch.run(fail)
    halving(sgd, [0.0], 3)
    assert watch.steps == 1


def install(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """Put a fake module, and the packages that contain it, in the place of an installed one."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(".".join(parts[:count])))
    for item, value in contents.items():
        setattr(sys.modules[name], item, value)


class FakeBreaching:
    """Has breaching's interface, and records what it is handed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        attacks = SimpleNamespace(prepare_attack=self.prepare)
        install(monkeypatch, "breaching", get_attack_config=self.config, attacks=attacks)

    def config(self, attack: str) -> Any:
        print("Loading attack configuration")
        kind, optimizer, steps = {
            "invertinggradients": ("optimization", "adam", 24000),
            "deepleakage": ("joint-optimization", "L-BFGS", 1200),
        }[attack]
        optim = SimpleNamespace(optimizer=optimizer, max_iterations=steps)
        return SimpleNamespace(attack_type=kind, optim=optim)

    def prepare(self, model: nn.Module, loss: nn.Module, config: Any) -> Any:
        def reconstruct(payload: Any, shared: Any, secrets: Any) -> Any:
            self.calls.append((config, payload[0], shared[0]))
            assert "ClassAttack" not in secrets
            print("Recovered labels")
            optimizer = torch.optim.Adam([start := torch.zeros(1, *SHAPE).requires_grad_()])
            optimizer.step(lambda: torch.zeros(()))  # type: ignore[arg-type, return-value]
            return {"data": start.detach()}, {}

        return SimpleNamespace(reconstruct=reconstruct)


class FakeLeakPro:
    """Has LeakPro's interface; its client computes the gradient of the images of its loader, times `scale`.

    An error in a step ends the search and is only logged. A reconstruction that was never similar to the true image has no
    `final_best`, which is read nevertheless.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scale: float = 1.0, broken: bool = False) -> None:
        self.steps: list[int] = []
        fake = self

        class InvertingGradients:
            def __init__(self, model: nn.Module, client_loader: Any, mean: Any, std: Any, configs: Any) -> None:
                Path("leakpro_output").mkdir()
                self.model, self.loader, self.configs = model, client_loader, configs

            def prepare_attack(self) -> None:
                [(inputs, label)] = self.loader
                loss = nn.functional.cross_entropy(self.model(inputs), label)
                gradient = torch.autograd.grad(loss, list(self.model.parameters()))
                self.client_gradient = [-scale * self.configs.optimizer.lr * g for g in gradient]
                self.reconstruction_loader = object()

            def run_attack(self) -> Iterator[None]:
                fake.steps.append(self.configs.at_iterations)
                best = SimpleNamespace(dataset=SimpleNamespace(reconstruction=torch.ones(1, *SHAPE)))
                optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
                for _ in range(self.configs.at_iterations - broken):
                    optimizer.step()
                    self.best_reconstruction = best
                assert self.final_best is self.reconstruction_loader  # type: ignore[attr-defined]
                yield

        config = lambda: SimpleNamespace(at_iterations=8000, optimizer=SimpleNamespace(lr=0.01))  # noqa: E731
        module = "leakpro.attacks.gia_attacks.invertinggradients"
        install(monkeypatch, module, InvertingGradients=InvertingGradients, InvertingConfig=config)


def test_breaching_is_handed_the_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inverting Gradients is given the label; DLG searches for it, and refuses a given one."""
    fake, given = FakeBreaching(monkeypatch), leak()
    inverting, dlg = (PEERS[f"breaching, {name}"] for name in ("Inverting Gradients", "DLG by L-BFGS"))
    inverting.prepare(given, 8000)()
    dlg.prepare(given, 8000)()
    (config, payload, shared), (joint, _, unlabelled) = fake.calls
    assert (config.optim.max_iterations, joint.optim.max_iterations) == (8000, 400)
    assert unlabelled["metadata"]["labels"] is None and shared["metadata"]["labels"].tolist() == [2]
    assert shared["metadata"]["num_data_points"] == 1
    for gradient, (name, p), sent in zip(
        shared["gradients"], given.model.named_parameters(), payload["parameters"], strict=True
    ):
        assert torch.equal(gradient, given.update[name]) and torch.equal(sent, p)
    about = payload["metadata"]
    assert (about.shape, about.classes, about["task"]) == (SHAPE, CLASSES, "classification")
    assert (about.mean, about.std) == ((0, 0, 0), (1, 1, 1))


def test_leakpro_is_handed_the_leak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder that it creates is not in the user's."""
    monkeypatch.chdir(tmp_path)
    fake, peer = FakeLeakPro(monkeypatch), PEERS["LeakPro, Inverting Gradients"]
    assert torch.equal(peer.prepare(leak(), 9000)(), torch.ones(1, *SHAPE))
    peer.prepare(leak(), 7)()
    assert fake.steps == [8000, 7]
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    assert not list(tmp_path.iterdir())


def test_another_gradient_of_leakpro_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLeakPro(monkeypatch, scale=1.01)
    with pytest.raises(RuntimeError, match=r"LeakPro's client computes another gradient: 0\.weight differs"):
        PEERS["LeakPro, Inverting Gradients"].prepare(leak(), 1)


def test_a_search_of_leakpro_that_stops_at_an_error_did_not_fail_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLeakPro(monkeypatch, broken=True)
    with pytest.raises(RuntimeError, match="LeakPro's search ended after 6 of 7 steps"):
        PEERS["LeakPro, Inverting Gradients"].prepare(leak(), 7)()


def test_a_package_that_fails_is_left_out_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it fails when it is imported, as with a broken driver, lacks what is read, or fails in a search."""
    FakeLeakPro(monkeypatch, broken=True)
    install(monkeypatch, "breaching")
    parts, reasons = peers_to_eta([leak()], 0.1, 5)
    assert parts == {} and len(reasons) == 3
    assert reasons[0].startswith("breaching, Inverting Gradients is left out, since breaching failed (AttributeError: ")
    assert reasons[2] == (
        "LeakPro, Inverting Gradients is left out, since leakpro failed (RuntimeError: LeakPro's search ended after 39 of 40 steps)"
    )
    FakeLeakPro(monkeypatch)
    parts, reasons = peers_to_eta([leak()], 0.1, 5)
    assert parts["LeakPro, Inverting Gradients, share of 1 that reach eta"] == 0 and len(reasons) == 2

    def import_module(name: str) -> ModuleType:
        raise OSError("driver mismatch")

    monkeypatch.setattr(peers.importlib, "import_module", import_module)
    assert peers_to_eta([leak()], 0.1, 5)[1][0].endswith("since breaching failed (OSError: driver mismatch)")


def test_searches_of_the_packages_do_not_depend_on_the_draws_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials and searches, with a seed for each victim."""
    draws: list[list[float]] = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        each: list[float] = []
        peer = Peer(
            "torch", "", lambda *_, each=each: lambda: each.append(float(torch.rand(()))) or torch.zeros(1, *SHAPE)
        )
        peers._searches(peer, [leak(), leak()], 0.1, 5)
        draws.append(each)
    assert draws[0] == draws[1]
    assert draws[0][-1] != draws[0][-2]


def absent(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Make packages fail to import."""
    real = importlib.import_module

    def import_module(name: str) -> ModuleType:
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name)

    monkeypatch.setattr(peers.importlib, "import_module", import_module)


def test_a_package_that_is_not_installed_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "breaching", "leakpro")
    parts, reasons = peers_to_eta([leak()], 0.1, 5)
    assert parts == {}
    assert reasons[0] == "breaching is left out (No module named 'breaching'): pip install breaching"
    assert len(reasons) == 2 and reasons[1].endswith(peers.LEAKPRO.args[1])


def test_each_peer_has_its_parts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The fakes of breaching end near 0 after one evaluation, which is a success for two of three victims."""
    FakeBreaching(monkeypatch)
    absent(monkeypatch, "leakpro")
    leaks = [leak(seed) for seed in range(3)]
    state = torch.get_rng_state()
    finals = sorted(each.error(torch.zeros(1, *SHAPE)) for each in leaks)
    parts, reasons = peers_to_eta(leaks, (finals[1] + finals[2]) / 2, 5)
    name = "breaching, Inverting Gradients"
    assert parts[f"{name}, share of 3 that reach eta"] == pytest.approx(2 / 3)
    assert parts[f"{name}, evaluations to eta"] == 1
    assert parts[f"{name}, s to eta"] > 0 < parts[f"{name}, s of a whole search"]
    assert parts[f"{name}, RMSE at the end"] == pytest.approx(finals[1])
    assert [reason.partition(" ")[0] for reason in reasons] == ["leakpro"]
    assert torch.equal(torch.get_rng_state(), state) and capsys.readouterr().out == ""
    never, _ = peers_to_eta(leaks, finals[0] / 2, 5)
    assert never[f"{name}, share of 3 that reach eta"] == 0 and f"{name}, s to eta" not in never


def test_the_packages_are_handed_the_first_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients are those of the network and the images at the attacker's label."""
    few = attack.leaked("digits", None, 3, 1)
    coloured = dataclasses.replace(few, view=dataclasses.replace(few.view, shape=(3, *few.view.shape[1:])))
    handed: list[Any] = []
    monkeypatch.setattr(attack, "peers_to_eta", lambda *given: handed.append(given) or ({"s": 1.0}, ["none"]))
    size = dataclasses.replace(QUICK, peers=2, peer_evaluations=9)
    assert attack._peers(coloured, attack._Starts(few), size) == ({"s": 1.0}, ["none"])
    [(leaks, eta, evaluations)] = handed
    assert (len(leaks), eta, evaluations) == (2, few.eta, 9)
    for each in leaks:
        loss = nn.functional.cross_entropy(each.model(each.inputs), each.label)
        gradients = torch.autograd.grad(loss, list(each.model.parameters()))
        for (name, _), gradient in zip(each.model.named_parameters(), gradients, strict=True):
            assert torch.allclose(gradient, each.update[name], atol=1e-6)
        assert each.error(each.inputs) == 0 and each.error(each.inputs + 9) > 0
    assert attack._peers(few, attack._Starts(few), size)[1] == [
        "breaching and LeakPro are left out, since their total variation needs three channels"
    ]


def test_medians_of_searches_that_mostly_fail_are_left_out() -> None:
    """Those of the first victims too, which have a part only if the packages search them."""
    values = [3.0, math.inf, 1.0, 2.0, math.inf]
    assert {which: list(some) for which, some in attack._some(values, 2).items()} == {
        "": values,
        ", first 2": values[:2],
    }
    assert list(attack._some(values, 0)) == [""]
    assert attack._middles({"a": values, "b": values[:2], "c": values[3:4]}) == {"a": 3.0, "c": 2.0}


def answer(iterates: torch.Tensor, spent: torch.Tensor, evaluations: torch.Tensor) -> Any:
    return SimpleNamespace(iterates=iterates, inputs=iterates[-1], spent=spent, evaluations=evaluations)


def test_seconds_until_eta_are_evaluations_times_the_mean_time_of_one(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three victims reach eta after 4, 10 and 2 of 10, 10 and 5 evaluations. Searches take 50 and 100 s, so that one takes 2 and
    4 s, 3 s in the middle."""
    few = attack.leaked("digits", None, 3, 1)
    real = few.real[None, :, None]
    far = real + 1
    iterates = torch.cat([far, torch.where(torch.tensor([1, 0, 1]).reshape(1, 3, 1, 1, 1, 1) > 0, real, far), real])
    spent = torch.tensor([[4, 4, 2], [5, 6, 3], [10, 10, 5]])
    monkeypatch.setattr(attack.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(attack, "leaked", lambda *_: few)

    seconds = itertools.cycle([0, 50, 100, 125])  # Warm, twice, and with one thread.

    def searched(self: Any, views: Any, rngs: Any) -> Any:
        clock[0] += next(seconds)
        return answer(iterates, spent, torch.tensor([10, 10, 5]))

    def alone(self: Any, victim: int, outer: int, lean: bool = False, until: Any = None) -> Any:
        assert lean
        clock[0] += 7 + victim
        return attack.Alone(few.real[victim : victim + 1] + (victim == 1), 30 + victim)

    monkeypatch.setattr(attack.GradientMatching, "__call__", searched)
    monkeypatch.setattr(attack._Starts, "search", alone)
    size = dataclasses.replace(QUICK, peers=0, alone_to_eta=3, rarely=2)
    figure = with_threads(2, lambda: attack.seconds_to_eta(size, "digits", None))
    assert figure.values == (8.0, 16.0) and figure.reason == ""
    for name in ("cpl", "whitened"):
        assert figure.parts[f"{name}, evaluations to eta"] == 4
        assert figure.parts[f"{name}, s to eta"] == 12
        assert figure.parts[f"{name}, s to eta, one thread"] == 20
        assert figure.parts[f"{name}, share of the victims that reach eta"] == 1
    assert figure.parts["torch.optim.LBFGS one by one, one thread, s to eta"] == 9
    assert figure.parts["torch.optim.LBFGS, evaluations to eta"] == 32
    assert figure.parts["torch.optim.LBFGS, share of 3 that reach eta"] == pytest.approx(2 / 3)
    iterates[:, 1:] += 1
    never = attack.seconds_to_eta(size, "digits", None)
    assert never.values == () and never.reason.startswith("most of the 3 searches of CPL did not reach eta")
    assert never.parts["cpl, share of the victims that reach eta"] == pytest.approx(1 / 3)
    assert never.parts["torch.optim.LBFGS, evaluations to eta"] == 32 and "cpl, s to eta" not in never.parts


@pytest.mark.slow
def test_a_trial_leaves_the_packages_out() -> None:
    figure = attack.seconds_to_eta(QUICK, "digits", None)
    assert "breaching and LeakPro are left out with --quick" in figure.said
    assert not any("first" in part or "LeakPro" in part for part in figure.parts)
    assert figure.parts["cpl, s to eta"] == pytest.approx(figure.median)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PEERS)
def test_the_packages_search(name: str) -> None:
    """Their own code on a small network, from the gradient in their parameters' order; DLG reconstructs the image."""
    pytest.importorskip(PEERS[name].module, reason=PEERS[name].install)
    given, dlg = leak(), "DLG" in name
    torch.manual_seed(0)
    before = given.error(torch.rand(1, *SHAPE))
    watch = Stopwatch(given.error, 0.05)
    watch.run(PEERS[name].prepare(given, 800 if dlg else 100))
    assert watch.steps == (40 if dlg else 100)
    assert watch.final < before
    if dlg:
        assert watch.final < 0.05 and watch.evaluations >= 20
