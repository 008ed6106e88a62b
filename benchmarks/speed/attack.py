"""Gradient matching: many victims together compared with one after another, and one evaluation with its arithmetic."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from benchmarks.speed.figure import Figure
from benchmarks.speed.operations import ceiling, layer_products, matching_operations
from benchmarks.speed.peers import Leak, peers_to_eta, share
from benchmarks.speed.size import Size
from benchmarks.speed.timing import ONE, either_way, least, median, one_thread_each
from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.search.lbfgs import Objective
from leakbench.attack.slots.descent import Search, Terms
from leakbench.attack.slots.stop import Iterations
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.answers import Reconstruction
from leakbench.core.recipe import resolve
from leakbench.core.rng import generators
from leakbench.core.types import Generators, Network, Parameters
from leakbench.engine.replayed import AFTER, TRIED
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, draw_victims, truth, view_of
from leakbench.federated.view import View
from leakbench.measure.closeness import eta_of
from leakbench.reproduce.cost import with_threads

__all__ = ["TimedDescent", "attack_floor_ratio", "attack_speedup", "search_alone", "seconds_to_eta"]

T = TypeVar("T")

EVALUATIONS = 5
"""Number of evaluations in a row whose mean is one repeat of `attack_floor_ratio`, after the first ones."""

WARM = AFTER + TRIED + 1
"""Number of evaluations until they are replayed and no longer compared."""

LEAN = 5
"""Outer iterations of a single search without the derivatives by the weights, which times only one evaluation."""


@dataclass(frozen=True)
class Leaked:
    """CPL's view of V victims at type-2, the true inputs `real` (V, *s), and the RMSE of success `eta`."""

    cell: Cell
    view: View
    attack: GradientMatching
    real: Tensor
    eta: float

    @property
    def rngs(self) -> Generators:
        """New generators, one per victim, so that every search has the same start."""
        return generators(0, "bench", [(v,) for v in range(self.view.victims)])

    def error(self, answers: Tensor, lanes: Tensor) -> Tensor:
        """Return the RMSE (n,) of answers (n, *s) for the victims in `lanes` (n,)."""
        return (answers.clamp(0, 1) - self.real[lanes]).flatten(1).square().mean(1).sqrt()

    def success(self, answers: Tensor, lanes: Tensor) -> float:
        """Return the ASR of answers (n, *s) for the victims in `lanes` (n,)."""
        return float((self.error(answers, lanes) <= self.eta).float().mean())


def leaked(dataset: str, data_dir: Path | None, victims: int, outer: int) -> Leaked:
    """Return the leak of a data set's undefended examples from the papers' LeNet, with at most all possible victims."""
    asked = Request(dataset=dataset, attack="cpl", victims=1, taps=("type-2",))
    few = resolve_cell(asked, data_dir)
    many = min(victims, len(few.data.victims))
    cell = dataclasses.replace(few, settings=dataclasses.replace(few.settings, victims=many))
    model, weights = fresh_network(cell, trained=False)
    drawn = draw_victims(cell, "type-2", 0, hand_out(cell))
    view = view_of(cell, "type-2", 0, drawn, torch.arange(many), Sent(Network(model, weights)))
    method = cell.attack.method
    assert isinstance(method, GradientMatching)
    attack = dataclasses.replace(method, stop=Iterations(limit=outer))
    eta = eta_of(cell.data, cell.settings.seed, None)
    return Leaked(cell, view, attack, truth(cell, "type-2", drawn)[0][:, 0], eta)


def attack_speedup(size: Size, dataset: str, data_dir: Path | None) -> Figure:
    """Return the ratio of the seconds per victim of `torch.optim.LBFGS`, one by one, to those of all victims together.

    Each repeat searches all together, then a different sample of them one by one.
    """
    leak = leaked(dataset, data_dir, size.victims, size.outer)
    victims = leak.view.victims
    turns = min(size.turns, victims)
    order = torch.linspace(0, victims - 1, min(victims, size.alone * turns)).round().long()
    dataclasses.replace(leak.attack, stop=Iterations(limit=1))((leak.view,), leak.rngs)  # warm
    starts = _Starts(leak)
    starts.search(0, 1)
    taken: list[dict[str, float]] = []
    found: dict[int, Alone] = {}
    together: Reconstruction | None = None
    for turn in range(turns):
        together, spent = _timed_together(leak)
        alone, seconds = _timed_alone(starts, order[turn::turns].tolist(), size.outer)
        taken.append(spent | seconds)
        found |= alone
    assert together is not None
    return Figure(
        "times",
        f"CPL on {leak.cell.names['dataset']}, {size.outer} outer iterations at most: torch.optim.LBFGS one by one"
        f" ({len(found)} victims; with our threads or with one, whichever is faster) over {victims} victims together, seconds"
        " a victim, the same starts, labels and stop",
        tuple(least(t, ["alone"]) / t["together"] for t in taken),
        _parts(leak, taken, found, together),
    )


@dataclass
class _Starts:
    """The starts of a leak's searches, for single victims."""

    leak: Leaked

    def __post_init__(self) -> None:
        rngs = self.leak.rngs
        self.targets = self.leak.attack.labels(self.leak.view, rngs).targets
        self.start = self.leak.attack.start(self.leak.view, rngs)

    def search(
        self, victim: int, outer: int, lean: bool = False, until: Callable[[Tensor], bool] | None = None
    ) -> Alone:
        """Search for one victim with torch.optim.LBFGS."""
        network = self.leak.view.network
        own = {n: u[victim] for n, u in self.leak.view.update.items()}
        start, targets = self.start[victim], self.targets[victim]
        return search_alone(network.model, network.parameters, own, start, targets, outer, lean, until)


def _timed_together(leak: Leaked) -> tuple[Reconstruction, dict[str, float]]:
    """Search for all together; return the last reconstruction, and {name with the threads: seconds per victim}."""
    spent = {}
    for name, search in either_way({"together": partial(leak.attack, (leak.view,), leak.rngs)}).items():
        began = time.perf_counter()
        answer = search()
        spent[name] = (time.perf_counter() - began) / leak.view.victims
    return answer, spent


def _timed_alone(starts: _Starts, victims: list[int], outer: int) -> tuple[dict[int, Alone], dict[str, float]]:
    """Search for some victims one by one; return {victim: reconstruction}, and {reference: seconds per victim or evaluation}."""
    references: dict[str, Callable[[], list[Alone]]] = {
        "alone": lambda: [starts.search(victim, outer) for victim in victims],
        "lean": lambda: [starts.search(victims[0], min(LEAN, outer), lean=True)],
    }
    spent, found = {}, dict[int, Alone]()
    for name, work in either_way(references).items():
        began = time.perf_counter()
        several = work()
        seconds = time.perf_counter() - began
        spent[name] = seconds / len(several)
        spent[f"{name}, an evaluation"] = seconds / sum(a.evaluations for a in several)
        found |= dict(zip(victims, several, strict=True)) if name == "alone" else {}
    return found, spent


def _parts(
    leak: Leaked, taken: list[dict[str, float]], found: dict[int, Alone], together: Reconstruction
) -> dict[str, float]:
    lanes = torch.tensor(sorted(found))
    answers = torch.cat([found[int(v)].inputs for v in lanes])
    return {
        "together, s a victim": median(taken, "together"),
        **{
            f"{label}{threads}, ms an evaluation": median(taken, f"{arm}{threads}, an evaluation") * 1e3
            for arm, label in (("alone", "one by one"), ("lean", "the same without the derivatives by the weights"))
            for threads in ("", ONE)
            if arm + threads in taken[0]
        },
        **one_thread_each(taken, ["alone"], "together"),
        "one by one, ASR": leak.success(answers, lanes),
        "together, ASR of the same victims": leak.success(together.inputs[lanes, 0], lanes),
        "together, ASR of all": leak.success(together.inputs[:, 0], torch.arange(leak.view.victims)),
        "one by one, evaluations a victim": sum(a.evaluations for a in found.values()) / len(found),
        "together, evaluations of the same victims": float(together.evaluations[lanes].float().mean()),
        "together, evaluations of all": float(together.evaluations.float().mean()),
    }


def attack_floor_ratio(size: Size, dataset: str, data_dir: Path | None) -> Figure:
    """Return the ratio of the seconds of one evaluation, of the distance and its derivative, to those of its arithmetic.

    Each repeat measures the ceiling and then evaluations, so that both are of the same load of the machine.
    """
    leak = leaked(dataset, data_dir, size.lanes, 2)
    shape, classes = leak.view.shape, leak.view.classes
    operations = matching_operations(layer_products(leak.view.network.model, shape, classes))
    victims, tops, each = leak.view.victims, list[float](), list[float]()
    for _ in range(size.repeats):
        tops.append(ceiling())
        descent = TimedDescent()
        dataclasses.replace(leak.attack, descent=descent)((leak.view,), leak.rngs)
        # Shares of the victims run side by side; the evaluations of step 0 fill caches.
        each.append(max(descent.taken[1]) / victims)
    return Figure(
        "times",
        f"one evaluation of gradient matching, {victims} victims of {leak.cell.names['dataset']} together, over its arithmetic"
        " at the ceiling of a large product of matrices",
        tuple(seconds / (operations / top) for seconds, top in zip(each, tops, strict=True)),
        {
            "MFLOP a victim": operations / 1e6,
            "ceiling, GFLOP/s": statistics.median(tops) / 1e9,
            "ms a victim": statistics.median(each) * 1e3,
        },
    )


TO_ETA = ("cpl", "whitened")
"""Attacks whose time until success is measured."""


def seconds_to_eta(size: Size, dataset: str, data_dir: Path | None) -> Figure:
    """Return the seconds per victim until a reconstruction of CPL is a success.

    All victims are searched together to the end. A victim's time is the share of the search's time that its evaluations took until
    the first point within eta, of those after each of the first 40 outer iterations. `whitened` is left out for tables. The parts
    have the same of breaching and LeakPro for some of the victims, if these packages are installed.
    """
    leak = leaked(dataset, data_dir, size.alone_to_eta * 4, size.to_eta)
    starts, parts, seconds = _Starts(leak), dict[str, float](), list[float]()
    peers, reasons = _peers(leak, starts, size)
    first = size.peers if peers else 0
    lanes = torch.arange(leak.view.victims)
    for name in TO_ETA if len(leak.view.shape) == 3 else TO_ETA[:1]:
        method = resolve("attacks", Attack, name)[1].method
        assert isinstance(method, GradientMatching)
        attack = dataclasses.replace(method, stop=Iterations(limit=size.to_eta))
        dataclasses.replace(attack, stop=Iterations(limit=1))((leak.view,), leak.rngs)  # warm
        timed = [_timed_search(attack, leak) for _ in range(size.rarely)]
        each, answer = [seconds for seconds, _ in timed], timed[-1][1]
        spent = _spent_to_eta(leak, answer)
        if torch.get_num_threads() > 1:  # As the references below, which use one thread.
            alone = with_threads(1, partial(_timed_search, attack, leak))[0]
            parts |= _middles({f"{name}, s to eta{ONE}": [n * alone for n in spent.tolist()]})
        for which, some in _some(spent.tolist(), first).items():
            parts |= _middles({f"{name}, s to eta{which}": [n * statistics.median(each) for n in some]})
            parts |= _middles({f"{name}, evaluations to eta{which}": some})
            parts[f"{name}, share of the victims that reach eta{which}"] = share(some)
        parts[f"{name}, RMSE at the end"] = float(leak.error(answer.inputs[:, 0], lanes).median())
        seconds = [statistics.median(spent.tolist()) * s for s in each] if name == "cpl" else seconds
    parts |= _one_by_one(leak, starts, size.alone_to_eta, size.to_eta, first)
    reached = all(map(math.isfinite, seconds))
    why = f"most of the {leak.view.victims} searches of CPL did not reach eta in {size.to_eta} outer iterations"
    return Figure(
        "s",
        f"CPL on {leak.cell.names['dataset']}, {leak.view.victims} victims together: median seconds a victim until the RMSE"
        f" is at most {leak.eta:.3g} (eta); a victim's time is its number of evaluations times the mean time of one in the search"
        + "".join(f"; {reason}" for reason in reasons),
        tuple(seconds) if reached else (),
        parts | peers,
        "" if reached else why,
    )


def _timed_search(attack: GradientMatching, leak: Leaked) -> tuple[float, Reconstruction]:
    """Return the mean seconds of an evaluation of a search of all victims together, and its reconstruction."""
    began = time.perf_counter()
    answer = attack((leak.view,), leak.rngs)
    return (time.perf_counter() - began) / float(answer.evaluations.sum()), answer


def _spent_to_eta(leak: Leaked, answer: Reconstruction) -> Tensor:
    """Return (V,), the gradient evaluations of each victim until its first point within eta; infinite if none is.

    A snapshot is the best point before the step that its evaluations include, so that those of the previous one led to it. After
    the end of a search, it may also be the point after the last step, so that all count.
    """
    error = (answer.iterates[:, :, 0] - leak.real).flatten(2).square().mean(2).sqrt()
    within = error <= leak.eta
    first = within.to(torch.int8).argmax(0)[None]
    before = torch.cat([torch.zeros_like(answer.spent[:1]), answer.spent[:-1]])
    after = answer.spent.gather(0, first)[0]
    spent = torch.where(after == answer.evaluations, after, before.gather(0, first)[0]).double()
    return spent.masked_fill(~within.any(0), torch.inf)


def _one_by_one(leak: Leaked, starts: _Starts, count: int, outer: int, first: int) -> dict[str, float]:
    """Return the parts of `torch.optim.LBFGS` for `count` victims, one after another, with CPL's starts.

    Args:
        first: Number of victims that breaching and LeakPro search too.
    """
    taken: list[float] = []
    evaluations: list[float] = []
    for victim in range(min(count, leak.view.victims)):
        within = partial(_within, leak, torch.tensor([victim]))
        began = time.perf_counter()
        found = with_threads(1, partial(starts.search, victim, outer, lean=True, until=within))
        seconds = time.perf_counter() - began
        taken.append(seconds if within(found.inputs) else math.inf)
        evaluations.append(found.evaluations if within(found.inputs) else math.inf)
    parts = dict[str, float]()
    for which, some in _some(list(zip(taken, evaluations, strict=True)), first).items():
        times, counts = zip(*some, strict=True)
        parts |= _middles({f"torch.optim.LBFGS one by one, one thread, s to eta{which}": times})
        parts |= _middles({f"torch.optim.LBFGS, evaluations to eta{which}": counts})
        parts[f"torch.optim.LBFGS, share of {len(times)} that reach eta"] = share(times)
    return parts


def _some(values: Sequence[T], first: int) -> dict[str, Sequence[T]]:
    """Return the values of all victims, and of the first ones, which breaching and LeakPro search too."""
    return {"": values} | ({f", first {first}": values[:first]} if first else {})


def _middles(several: dict[str, Sequence[float]]) -> dict[str, float]:
    """Return the medians that are finite: those that most victims reach."""
    middles = {name: statistics.median(values) for name, values in several.items()}
    return {name: middle for name, middle in middles.items() if math.isfinite(middle)}


def _peers(leak: Leaked, starts: _Starts, size: Size) -> tuple[dict[str, float], list[str]]:
    """Return the parts of breaching and LeakPro for the first victims, and why some are left out."""
    if not size.peers:
        return {}, ["breaching and LeakPro are left out with --quick"]
    if len(leak.view.shape) != 3 or leak.view.shape[0] != 3:
        return {}, ["breaching and LeakPro are left out, since their total variation needs three channels"]
    network = leak.view.network
    model = copy.deepcopy(network.model)
    model.load_state_dict({n: p.detach() for n, p in network.parameters.items()})
    leaks = [
        Leak(
            model,
            {n: u[victim] for n, u in leak.view.update.items()},
            starts.targets[victim].argmax(1),
            leak.real[victim : victim + 1],
            leak.view.classes,
            partial(_error, leak, torch.tensor([victim])),
        )
        for victim in range(min(size.peers, leak.view.victims))
    ]
    return peers_to_eta(leaks, leak.eta, size.peer_evaluations)


def _error(leak: Leaked, lanes: Tensor, answers: Tensor) -> float:
    return float(leak.error(answers, lanes))


def _within(leak: Leaked, lanes: Tensor, answers: Tensor) -> bool:
    return leak.success(answers, lanes) == 1


@dataclass
class _Timed:
    """Searches that do not move; each step evaluates a few times and records the seconds of one evaluation.

    The first step has as many evaluations as it takes until they are replayed.
    """

    points: Tensor
    evaluations: Tensor
    settled: Tensor
    taken: dict[int, list[float]]
    steps: int = 0

    def step(self, objective: Objective) -> Tensor:
        """Evaluate."""
        lanes = torch.arange(len(self.points))
        many = EVALUATIONS if self.steps else WARM
        began = time.perf_counter()
        for _ in range(many):
            values, _ = objective(self.points, lanes)
        self.taken.setdefault(self.steps, []).append((time.perf_counter() - began) / many)
        self.steps += 1
        return values

    def keep(self, lanes: Tensor) -> None:
        """Keep all searches, which end together."""


@dataclass(frozen=True)
class TimedDescent:
    """A descent that records {step: seconds of one evaluation of each share of the victims}.

    Args:
        inner: The largest number of evaluations in one iteration, such as that of a search that is replayed.
    """

    taken: dict[int, list[float]] = field(default_factory=dict)
    inner: int = 4 * AFTER

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Begin."""
        nothing = torch.zeros(len(start), dtype=torch.int64)
        return _Timed(start, nothing, nothing.bool(), self.taken)


@dataclass(frozen=True)
class Alone:
    """The result of a single search: the inputs (1, *s) of least distance, not clamped, and the number of gradient evaluations."""

    inputs: Tensor
    evaluations: int


def search_alone(
    model: nn.Module,
    parameters: Parameters,
    truth: Parameters,
    start: Tensor,
    targets: Tensor,
    outer: int,
    lean: bool = False,
    until: Callable[[Tensor], bool] | None = None,
) -> Alone:
    """Search one victim's input from `start` (1, *s) with soft labels `targets` (1, classes), `outer` steps at most.

    Args:
        truth: {p: (*p)}, the leaked gradient. Ends as our searches do: when the distance is no longer finite, or when a step took
            one evaluation, after which every further one stays where it is; the authors go on evaluating there.
        lean: Whether to skip the derivatives of the distance by the weights, which the authors' `backward` computes without use.
        until: Takes the inputs (1, *s) after each outer step and ends the search; None to search on.
    """
    guess = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([guess])
    net = copy.deepcopy(model)
    net.load_state_dict({n: p.detach() for n, p in parameters.items()})
    leaked = [truth[name] for name, _ in net.named_parameters()]
    evaluations, before = 0, 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = torch.mean(torch.sum(-targets * torch.log_softmax(net(guess), -1), 1))
        gradient = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        distance = torch.zeros(())
        for g, t in zip(gradient, leaked, strict=True):
            distance = distance + ((g - t) ** 2).sum()
        distance.backward(inputs=[guess] if lean else None)  # type: ignore[no-untyped-call]
        return distance

    best, least = start, math.inf
    for _ in range(outer):
        here, before = guess.detach().clone(), evaluations
        value = float(optimizer.step(closure).detach())  # type: ignore[no-untyped-call]
        if value < least:
            best, least = here, value
        if until is not None and until(guess.detach()):
            return Alone(guess.detach().clone(), evaluations)
        if not math.isfinite(value) or evaluations == before + 1:
            break
    last = float(closure().detach())
    return Alone(guess.detach().clone() if last < least else best, evaluations)
