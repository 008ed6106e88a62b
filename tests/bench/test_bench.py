"""`python -m benchmarks`: its counts, its references, which do the same work, and its output."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from command_line import called as called_with
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import __main__ as command
from benchmarks.speed import attack, costs, ways
from benchmarks.speed import bench as keys
from benchmarks.speed.attack import search_alone
from benchmarks.speed.bench import AIMED, KEYS, Bench
from benchmarks.speed.figure import Figure, absent
from benchmarks.speed.machine import Machine, machine
from benchmarks.speed.operations import gradient_operations, layer_products, matching_operations
from benchmarks.speed.page import check_page, page, write_page
from benchmarks.speed.plain import local_training, per_example_step, plain_step
from benchmarks.speed.rounds import plain_round
from benchmarks.speed.size import QUICK
from benchmarks.speed.task import (
    BATCH,
    CHECKED,
    CLASSES,
    RATE,
    SHAPE,
    BenchTask,
    check_same,
    defense,
    fresh_model,
    made_up,
    our_update,
    task,
)
from benchmarks.speed.timing import ONE
from leakbench.attack import Attack
from leakbench.attack.slots.stop import Iterations
from leakbench.core.errors import InputError
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipLayers
from leakbench.defense.transform import Stations
from leakbench.engine.chain import chain_of
from leakbench.federated.leakage import leak
from leakbench.federated.simulate import train
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters
from leakbench.reproduce.cost import Arms, in_turns

SMALL = (1, 12, 12)


def called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Run `python -m benchmarks` with these arguments; return (exit code, stdout, stderr)."""
    return called_with(monkeypatch, capsys, *arguments, command=command.bench)


@pytest.fixture(scope="module")
def small() -> BenchTask:
    return task(3, CHECKED, population=10, examples=600)


def test_a_layer_is_counted_by_hand() -> None:
    """The CNN: 26 x 26 places of 9 numbers, 11 x 11 of 288, one of 1,600."""
    products = (26 * 26 * 9 * 32, 11 * 11 * 288 * 64, 1600 * 10)
    assert layer_products(fresh_model(), SHAPE, CLASSES) == products
    assert gradient_operations((10, 100)) == 2 * (2 * 10 + 3 * 100)
    assert matching_operations((10, 100)) == 2 * (5 * 10 + 7 * 100)


@pytest.mark.parametrize("name", [pytest.param("cnn", marks=pytest.mark.long), "lenet_cpl", "mlp"])
def test_counts_are_those_of_a_plain_backward(name: str) -> None:
    """As counted by PyTorch for autograd through the model itself."""
    model = build(name, (1, 16, 16), 4, generator(0, "model"), "default")
    with FlopCounterMode(display=False) as counted:
        loss = torch.nn.functional.cross_entropy(model(torch.rand(1, 1, 16, 16)), torch.tensor([1]))
        torch.autograd.grad(loss, list(model.parameters()))
    assert counted.get_total_flops() == gradient_operations(layer_products(model, (1, 16, 16), 4))


@pytest.mark.parametrize("name", ["cnn", "lenet_cpl", "mlp"])
def test_matching_counts_are_those_of_a_double_backward(name: str) -> None:
    """Only products count, which need no derivative by the weights; the backward pass through strides multiplies zeros too;
    at 18 x 18 every pool covers its input exactly.
    """
    model = build(name, (1, 18, 18), 4, generator(0, "model"), "default")
    weights, chain = {n: p.detach() for n, p in model.named_parameters()}, chain_of(model)
    assert chain is not None
    x = torch.rand(1, 1, 1, 18, 18, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        layers = chain.gradient(weights, True, x, torch.eye(4)[None, :1], torch.ones(1, 1))
        distance = torch.stack([g.square().sum() for f in layers for g in f.each().values()]).sum()
        torch.autograd.grad(distance, x)
    more = counted.get_total_flops() / matching_operations(layer_products(model, (1, 18, 18), 4))
    assert more == 1 if name == "mlp" else 1 <= more < 1.1


def test_ratios_are_of_the_faster_reference_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With synthetic times: 8 s and 6 s with one thread, each further reference a second more, ours 2 and 4."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    rounds, private = (importlib.import_module(f"benchmarks.speed.{name}") for name in ("rounds", "private"))

    def timed(arms: Arms, repeats: int, warm: bool = True) -> list[dict[str, float]]:
        ours, *_ = [n for n in arms if n in ("ours", "fed_cdp")]
        others = [n for n in arms if n.removesuffix(ONE) != ours]
        made = {n: (6.0 if n.endswith(ONE) else 8.0) + i // 2 for i, n in enumerate(others)} | {ours: 2.0}
        return [made | ({f"{ours}{ONE}": 4.0} if f"{ours}{ONE}" in arms else {})] * repeats

    size = dataclasses.replace(QUICK, clients=2, iterations=2, few=4, steps=2, repeats=2)
    for module in (rounds, private):
        monkeypatch.setattr(module, "in_turns", timed)
        monkeypatch.setattr(module, "task", lambda clients, steps: task(clients, steps, population=10, examples=600))
    plain = rounds.round_vs_plain(size)
    assert plain.values == (3.0, 3.0) and plain.parts["times, one thread each"] == 1.5
    assert private.dp_over_nonprivate(size).values == (0.25, 0.25)
    monkeypatch.setattr(private, "check_way", lambda made, kind: None)
    monkeypatch.setattr(private, "private_step", lambda kind, model: (model, None))
    opacus = private._vs_opacus(size)  # Our engine trains four clients in that time.
    assert opacus.values == (12.0, 12.0) and opacus.parts["times, one thread each"] == 6.0
    assert opacus.parts["ours, ms an iteration"] == 1000 * 2.0 / 8


@pytest.mark.slow
def test_the_attack_s_ratio_is_of_the_faster_reference_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With synthetic times: 8 s one by one, 6 with one thread, ours 2 and 4."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    together, alone = attack._timed_together, attack._timed_alone

    def timed_alone(*given: Any) -> tuple[Any, dict[str, float]]:
        made = {f"{arm}{threads}": 6.0 if threads else 8.0 for arm in ("alone", "lean") for threads in ("", ONE)}
        return alone(*given)[0], made | {f"{name}, an evaluation": 0.5 for name in made}

    spent = {"together": 2.0, f"together{ONE}": 4.0}
    monkeypatch.setattr(attack, "_timed_together", lambda leak: (together(leak)[0], spent))
    monkeypatch.setattr(attack, "_timed_alone", timed_alone)
    found = attack.attack_speedup(dataclasses.replace(QUICK, victims=2, turns=2, outer=1), "digits", None)
    assert found.values == (3.0, 3.0) and found.parts["times, one thread each"] == 1.5


def test_an_evaluation_lasts_until_its_slowest_share_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([[1.0, 3.0], [4.0, 2.0]])

    class Made(dict[int, list[float]]):
        def __getitem__(self, step: int) -> list[float]:
            return {1: next(shares)}[step]

    monkeypatch.setattr(attack, "TimedDescent", lambda made=attack.TimedDescent: made(Made()))
    monkeypatch.setattr(attack, "ceiling", lambda: 1e9)
    found = attack.attack_floor_ratio(dataclasses.replace(QUICK, lanes=2, repeats=2), "digits", None)
    floor = found.parts["MFLOP a victim"] * 1e6 / 1e9
    assert found.values == pytest.approx((1.5 / floor, 2.0 / floor))


def test_the_evaluations_until_eta_are_those_of_the_first_snapshot_within_it() -> None:
    """The first victim at the second snapshot, the second at once and away again, the third at the end, the fourth never.

    A snapshot has the best point before its step, to which the evaluations of the step before led; the last also that after it.
    """
    leak = attack.leaked("digits", None, 4, 1)
    far = torch.tensor([[0.5, 0.0, 0.5, 0.5], [0.0, 0.5, 0.5, 0.5], [0.0, 0.5, 0.0, 0.5]])
    spent = torch.tensor([[20], [40], [61]]).expand(3, 4)
    answer = dataclasses.replace(
        leak.attack((leak.view,), leak.rngs),
        iterates=(leak.real + far.reshape(3, 4, *[1] * (leak.real.dim() - 1)))[:, :, None],
        spent=spent,
        evaluations=spent[-1],
    )
    assert leak.eta < 0.5
    assert attack._spent_to_eta(leak, answer).tolist() == [20, 0, 61, math.inf]


def test_a_search_that_ends_within_eta_counts_all_its_evaluations() -> None:
    """With one outer step, the only snapshot has the point after it."""
    leak = attack.leaked("digits", None, 3, 1)
    answer = leak.attack((leak.view,), leak.rngs)
    assert answer.spent.tolist() == [answer.evaluations.tolist()]
    sure = dataclasses.replace(leak, eta=1.0)
    assert attack._spent_to_eta(sure, answer).tolist() == answer.evaluations.tolist()


def test_a_single_search_ends_where_it_is_told_to() -> None:
    """After the second outer step."""
    seen, real = view(1)
    truth, start = {n: u[0] for n, u in seen.update.items()}, real[0] + 0.1
    targets, network = torch.eye(4, dtype=torch.float64)[:1], seen.network
    whole = search_alone(network.model, network.parameters, truth, start, targets, 20)
    asked: list[torch.Tensor] = []

    def until(x: torch.Tensor) -> bool:
        asked.append(x)
        return len(asked) == 2

    found = search_alone(network.model, network.parameters, truth, start, targets, 20, until=until)
    assert torch.equal(found.inputs, asked[1]) and found.evaluations < whole.evaluations


def test_exponents_are_those_of_the_law() -> None:
    """Seconds of 2 V^.9 B^.7 P^.4 N^.2 give these exponents, and intervals of no length."""
    law = {"victims": 0.9, "batch": 0.7, "parameters": 0.4, "pixels": 0.2}
    counts = [attacked.counts() for attacked in costs.FULL]
    times = [2.0 * math.prod(count[name] ** power for name, power in law.items()) for count in counts]
    found = costs.fitted(counts, times)
    assert found.exponents == pytest.approx(law) and found.scale == pytest.approx(2.0)
    assert found.halves == pytest.approx(dict.fromkeys(law, 0.0), abs=1e-9) and found.apart == pytest.approx(1.0)


def test_intervals_of_exponents_contain_them() -> None:
    """With errors of 10 %, in about 950 of 1,000 fits; fewer than 930 have a probability of .2 %."""
    rng, counts = np.random.default_rng(0), [attacked.counts() for attacked in costs.FULL]
    inside = 0
    for _ in range(1000):
        times = [count["victims"] ** 0.9 * float(np.exp(rng.normal(0, 0.1))) for count in counts]
        found = costs.fitted(counts, times)
        inside += abs(found.exponents["victims"] - 0.9) <= found.halves["victims"]
    assert inside >= 930


@pytest.mark.parametrize("sizes", [costs.FULL, costs.FEW])
def test_the_sizes_of_attacks_tell_the_exponents_apart(sizes: tuple[costs.Attacked, ...]) -> None:
    rows = np.array([[1.0, *np.log(list(attacked.counts().values()))] for attacked in sizes])
    assert len(rows) > 5 and np.linalg.matrix_rank(rows - [1, *rows[:, 1:].mean(0)] + [1, 0, 0, 0, 0]) == 5
    assert costs.BASE in sizes


@pytest.mark.slow
def test_an_evaluation_is_timed_at_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a made-up law of 5 V B^2 / 1000 seconds, half and twice as much in two of three repeats; and with a real evaluation."""
    assert costs._seconds(costs.Attacked(2, 2, 4, 16)) > 0
    calls = collections.Counter[costs.Attacked]()

    def seconds(attacked: costs.Attacked) -> float:
        calls[attacked] += 1
        return (0.5, 2.0, 1.0)[calls[attacked] - 1] * 5 * attacked.victims * attacked.batch**2 / 1000

    monkeypatch.setattr(costs, "_seconds", seconds)
    found = costs.evaluation_ms(dataclasses.replace(QUICK, rarely=3))
    assert found.values == pytest.approx((160.0, 640.0, 320.0))
    for name, power in {"victims": 1, "batch": 2, "parameters": 0, "pixels": 0}.items():
        assert found.parts[f"exponent of the {name}"] == pytest.approx(power, abs=1e-9)
    assert found.parts["ms by the fit at these sizes"] == pytest.approx(320)
    assert found.parts["ms with batches of one example, which the fit does not cover"] == pytest.approx(80)


def test_pictures_have_three_channels() -> None:
    assert costs.Attacked(side=8, channels=2).counts()["pixels"] == 192


@pytest.mark.parametrize("seconds", [[1.0, 4.0, 2.0], [4.0, 1.0, 2.0]])
def test_all_victims_wait_for_the_slowest_share(seconds: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second evaluations count, since the first ones fill caches."""
    timed = attack.TimedDescent({0: [9.0] * 3, 1: seconds})
    monkeypatch.setattr(costs, "TimedDescent", lambda: timed)
    monkeypatch.setattr(costs.GradientMatching, "__call__", lambda *_: None)
    assert costs._seconds(costs.Attacked(2, 2, 4, 16)) == 4.0


def test_arms_take_turns() -> None:
    order: list[str] = []
    taken = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    assert [list(t) for t in taken] == [["a", "b"]] * 2


def test_the_plain_loop_is_our_update(small: BenchTask) -> None:
    model, (inputs, labels) = fresh_model(), small.held(0)
    theirs = local_training(model, small.start, plain_step(model, RATE), inputs, labels, BATCH, CHECKED)
    check_same("plain", our_update(small, (), inputs, labels, CHECKED), theirs)
    with pytest.raises(RuntimeError, match=r"plain does other work than ours: 0\.weight differs by"):
        check_same("plain", our_update(small, (ClipLayers(1.0),), inputs, labels, CHECKED), theirs)


def test_the_plain_round_is_our_round(small: BenchTask) -> None:
    """If both use the same batches: all of a client's examples in one."""
    whole = dataclasses.replace(small.federation, batch=500, local_iterations=1, clients=3)
    same = dataclasses.replace(small, federation=whole)
    model = fresh_model()
    step = plain_step(model, RATE)
    theirs = plain_round(same, model, step, batch=500)
    network = Network(small.model, small.start)
    after = next(train(network, same.data, same.partition, whole, defense("none"), 0)).parameters
    for name, p in after.items():
        moved = p - small.start[name]
        assert torch.allclose(moved, theirs[name], rtol=0, atol=1e-3 * float(moved.abs().max())), name


@pytest.mark.parametrize("way", ways.WAYS)
def test_private_references_do_the_same_work(way: str, small: BenchTask) -> None:
    """With an active clip, without noise."""
    if way != "vmap":
        pytest.importorskip("opacus")
    ways.check_way(small, way)


@pytest.mark.parametrize("way", ways.WAYS)
def test_private_references_add_the_noise_of_fed_cdp(way: str, small: BenchTask) -> None:
    """Each of B examples gets 6 * 4, so their mean has 24 / sqrt(B)."""
    if way != "vmap":
        pytest.importorskip("opacus")
    model, step = ways.private_step(way, small.model)
    inputs, labels = small.held(0)
    torch.manual_seed(0)
    with ways.without_hook_warnings():
        update = local_training(model, small.start, step, inputs, labels, BATCH, 1)
    drawn = torch.cat([u.flatten() for u in update.values()]) / RATE
    assert math.isclose(float(drawn.std()), 24 / BATCH**0.5, rel_tol=0.02)


def test_a_wrong_implementation_is_found(small: BenchTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "per_example_step", lambda m, rate, clip, sigma: per_example_step(m, rate, 2 * clip, 0.0))
    with pytest.raises(RuntimeError, match="vmap does other work"):
        ways.check_way(small, "vmap")


def view(victims: int) -> tuple[View, torch.Tensor]:
    data = made_up(victims, 1, SMALL, 4)
    model = build("lenet_dlg", SMALL, 4, generator(0, "leak model"), "default").double()
    network = Network(model, parameters(model))
    inputs = data.train_inputs.double().reshape(victims, 1, 1, 1, *SMALL)
    targets = one_hot(data.train_targets, 4).double().reshape(victims, 1, 1, 1, 4)
    update = leak("type-2", network, inputs, targets, 0.1, Stations(), Clock(0, 0, 1, 1), None)
    return View("type-2", network, update, 1, SMALL, 4, 0.1), inputs[:, 0, 0]


@pytest.mark.parametrize("lean", [False, True])
def test_searches_alone_and_together_agree(lean: bool) -> None:
    """The same start, labels and stop give the same picture, with as many evaluations."""
    seen, _ = view(3)
    attack = resolve("attacks", Attack, "cpl")[1].method
    attack = dataclasses.replace(attack, stop=Iterations(limit=2))  # type: ignore[type-var]
    rngs = generators(0, "t", [(v,) for v in range(3)])
    targets, start = attack.labels(seen, rngs).targets, attack.start(seen, rngs)  # type: ignore[attr-defined]
    together = attack((seen,), generators(0, "t", [(v,) for v in range(3)]))
    for v in range(3):
        truth = {n: u[v] for n, u in seen.update.items()}
        network = seen.network
        alone = search_alone(network.model, network.parameters, truth, start[v], targets[v], 2, lean)
        assert torch.allclose(alone.inputs.clamp(0, 1), together.inputs[v], atol=1e-6)
        assert alone.evaluations == int(together.evaluations[v])


def test_a_single_search_stops_if_it_cannot_move() -> None:
    """At the truth one step takes one evaluation; a second one evaluates its last point."""
    seen, real = view(1)
    truth = {n: u[0] for n, u in seen.update.items()}
    targets = torch.eye(4, dtype=torch.float64)[:1]
    network = seen.network
    found = search_alone(network.model, network.parameters, truth, real[0], targets, 300)
    assert found.evaluations == 2
    assert torch.equal(found.inputs, real[0])


def test_a_single_search_returns_its_best_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps lead far away, so the start is the best."""
    monkeypatch.setattr(torch.optim, "LBFGS", partial(torch.optim.LBFGS, lr=1e4, max_iter=1))
    seen, real = view(1)
    truth, start = {n: u[0] for n, u in seen.update.items()}, real[0] + 0.01
    targets = torch.eye(4, dtype=torch.float64)[:1]
    found = search_alone(seen.network.model, seen.network.parameters, truth, start, targets, 2)
    assert torch.equal(found.inputs, start)


def test_a_figure_has_its_spread() -> None:
    found = Figure("times", "this over that", (3.0, 1.0, 2.0, 9.0), {"this, s": 4.0}).as_dict()
    assert found is not None
    assert (found["minimum"], found["median"], found["maximum"]) == (1.0, 2.5, 9.0)
    assert absent("no such package").as_dict() is None


def measured(quick: bool = False, load: float = 0.0) -> Bench:
    figures = {"ranking_seconds": Figure("s", "ranked", (1.0,)), "round_vs_flower": absent("no Flower")}
    return Bench(figures, whole(load), quick, "python -m benchmarks")


def test_the_page_names_measured_and_missing_figures() -> None:
    text = page(measured())
    assert "Measured by `python -m benchmarks`" in text
    assert "| `ranking_seconds` | 1 | 1 | 1 | s | <= 5 | 1 | ranked |" in text
    assert "- `round_vs_flower`: not measured: no Flower" in text
    assert "trial" not in text and "Warning" not in text
    busy = page(measured(quick=True, load=1000.0))
    assert "**A trial (`--quick`)" in busy and "**Warning: load was 1000.0 on" in busy


def test_parts_without_a_value_are_shown() -> None:
    """For example of searches that fail, next to those of other packages."""
    failed = Figure("s", "until eta", (), {"other, s to eta": 3.5}, "most searches failed")
    found = dataclasses.replace(measured(), figures={**measured().figures, "seconds_to_eta": failed})
    text = page(found)
    assert "- `seconds_to_eta`: not measured: most searches failed" in text
    assert "| `seconds_to_eta` | other, s to eta | 3.5 |" in text
    assert "seconds_to_eta: until eta\n    3.5       other, s to eta" in "\n".join(keys._about(found))
    assert "round_vs_flower" not in "\n".join(keys._about(found))


def test_a_page_without_a_figure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.speed.private.find_spec", lambda _: None)
    words = ["--quick", "--only", "dp_vs_opacus", "--page", str(tmp_path)]
    with pytest.raises(InputError, match="page: got no figure, since every key is null"):
        CliRunner().invoke(command.bench, words, catch_exceptions=False)
    assert not any(tmp_path.iterdir())


def test_a_page_keeps_what_was_not_measured_again_on_the_same_machine(tmp_path: Path) -> None:
    first, again = measured(), Figure("s", "ranked", (2.0,), command="python -m benchmarks --only ranking_seconds")
    spread = Figure("times", "rounds", (3.0, 4.0), {"ours, s": 1.5}, command="python -m benchmarks")
    write_page(dataclasses.replace(first, figures={**first.figures, "round_vs_plain": spread}), tmp_path)
    write_page(dataclasses.replace(first, figures={"ranking_seconds": again}), tmp_path)
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "| `ranking_seconds` | 2 | 2 | 2 |" in text and "| `round_vs_plain` | 3 | 3.5 | 4 |" in text
    assert "- `python -m benchmarks --only ranking_seconds`: `ranking_seconds`" in text
    assert "- `python -m benchmarks`: `round_vs_plain`" in text and "| ours, s | 1.5 |" in text
    # Figures that cannot be measured now are kept.
    write_page(dataclasses.replace(first, figures={"round_vs_plain": absent("no such package")}), tmp_path)
    assert "| `round_vs_plain` | 3 | 3.5 | 4 |" in (tmp_path / "bench.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["cpu", "cores", "threads", "versions"])
def test_a_page_of_another_machine_stays_as_it_is(name: str, tmp_path: Path) -> None:
    """A trial does not replace the page of a full bench either."""
    here = machine(0.0)
    write_page(dataclasses.replace(measured(), machine=here), tmp_path)
    check_page(tmp_path, quick=False)
    with pytest.raises(
        InputError, match=r"bench.json is of another scale \(--quick or not\); give another folder, or remove it"
    ):
        check_page(tmp_path, quick=True)
    read = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    read["machine"][name] = "another"
    (tmp_path / "bench.json").write_text(json.dumps(read), encoding="utf-8")
    with pytest.raises(InputError, match=f"bench.json is of another {name};"):
        check_page(tmp_path, quick=False)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no JSON"])
def test_files_of_other_origin_are_refused_before_measuring(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bench.json").write_text(text, encoding="utf-8")
    code, out, err = called(monkeypatch, capsys, "--quick", "--page", str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "bench.json was not written by `python -m benchmarks`; give another folder, or remove it" in err
    assert (tmp_path / "bench.json").read_text(encoding="utf-8") == text


def test_half_the_cores_in_use_is_not_busy() -> None:
    all_threads = whole(0.0)
    assert not whole(all_threads.cores / 2).warnings()
    assert whole(all_threads.cores / 2 + 0.1).warnings()
    [few] = dataclasses.replace(all_threads, threads=1, cores=4).warnings()
    assert few == "PyTorch has 1 of 4 threads (OMP_NUM_THREADS): the aims are for all"


def whole(load: float) -> Machine:
    """Simulate a machine on which PyTorch has all cores."""
    here = machine(load)
    return dataclasses.replace(here, threads=here.cores)


def test_the_function_of_a_key_has_its_name() -> None:
    assert tuple(function.__name__ for _, function in AIMED.values()) == KEYS


TINY = dataclasses.replace(
    QUICK, victims=2, outer=1, lanes=2, clients=2, iterations=2, few=2, steps=2, repeats=2, turns=2
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "QUICK", TINY)
    for name in ("private", "rounds"):
        module = importlib.import_module(f"benchmarks.speed.{name}")
        monkeypatch.setattr(module, "task", lambda clients, steps: task(clients, steps, population=10, examples=600))


@pytest.mark.usefixtures("tiny")
def test_packages_that_are_not_installed_give_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    gone = ("opacus", "flwr", "ray")
    for name in ("private", "flower"):
        module = importlib.import_module(f"benchmarks.speed.{name}")
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in gone else found(name))
    asked = ("--quick", "--json", "--only", "dp_vs_opacus", "--only", "round_vs_flower")
    code, out, _ = called(monkeypatch, capsys, *asked)
    assert code == 0
    said = json.loads(out)
    assert said["figures"] == {"dp_vs_opacus": None, "round_vs_flower": None}
    assert said["missing"]["dp_vs_opacus"] == "Opacus is not installed: pip install 'leakbench[bench]'"
    assert said["missing"]["round_vs_flower"] == "flwr and ray not installed: pip install 'leakbench[bench]'"


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_keys_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chosen = ("attack_speedup", "attack_floor_ratio", "dp_over_nonprivate", "alpha_over_dp", "flat_over_nonprivate")
    chosen += ("round_vs_plain", "flop_efficiency")
    only = [word for key in chosen for word in ("--only", key)]
    code, out, _ = called(monkeypatch, capsys, "--quick", "--page", str(tmp_path), *only)
    assert code == 0
    written = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert tuple(written["figures"]) == chosen
    for key, figure in written["figures"].items():
        assert len(figure["values"]) == 2, key
        assert 0 < figure["minimum"] <= figure["median"] <= figure["maximum"] < math.inf, key
        assert f"{key} " in out and f"| `{key}` |" in (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert written["quick"] and "--quick" in written["command"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--only", "atack_speedup"), "only: unknown key 'atack_speedup'; did you mean 'attack_speedup'?"),
        (("--repeats", "0"), "repeats: got 0, expected at least 1"),
        (("--outer", "0"), "outer: got 0, expected at least 1"),
        (("--dataset", "lwf"), "did you mean 'lfw'?"),
        (("--page", "nowhere"), "'nowhere' does not exist"),
        (
            ("--only", "ranking_seconds", "--dataset", "lfw"),
            "dataset: got lfw, which only attack_speedup, attack_floor_ratio and seconds_to_eta would use, and --only leaves "
            "that out",
        ),
        (("--only", "attack_floor_ratio", "--outer", "3"), "outer: got 3, which only attack_speedup would use"),
    ],
)
def test_wrong_input_is_one_line(
    given: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, "--quick", *given)
    assert (code, out) == (2, "")
    assert says in err.splitlines()[-1]
