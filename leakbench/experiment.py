"""Run one cell: attack at every leakage point, train the federation, and write each finished piece to the run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from leakbench.accounting import cell_epsilon
from leakbench.attack.candidates import Candidates
from leakbench.attack.null import NullAttack, null_attack
from leakbench.cell import Cell, Settings
from leakbench.errors import InputError
from leakbench.federated.client import Network
from leakbench.federated.partition import Partition
from leakbench.federated.simulate import Round, from_tensors, to_tensors, train
from leakbench.metrics import Score, load_lpips, success_threshold
from leakbench.models import build, parameters
from leakbench.rng import generator, generators
from leakbench.scores import Truth, score
from leakbench.store import Run
from leakbench.summary import summarise
from leakbench.types import Parameters, Reconstruction
from leakbench.victims import Sent, Victims, aware, draw_victims, truth, view_of

__all__ = ["Progress", "execute"]

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""(phase, done, total): called after each piece of work."""

WHOLE = ("rows.parquet", "rounds.parquet", "reconstructions.safetensors", "model.safetensors")

ROUND_COLUMNS = ("round", "accuracy", "loss", "between_client_variance", "update_scale")


@dataclass(frozen=True)
class Judge:
    """What answers are scored by: the threshold of success, and LPIPS or the reason why there is none."""

    eta: float
    lpips: Score | str


@contextmanager
def _timed(run: Run, phase: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        run.add_seconds(phase, time.perf_counter() - started)


def execute(cell: Cell, run: Run, progress: Progress, lpips_weights: Path | None = None) -> dict[str, Any]:
    """Do whatever of the cell is not yet in the run's folder and return its summary; what was cut short goes on where it stopped.

    Pieces are as small as one round of training or one chunk of victims, each written whole before the next begins.
    """
    if run.manifest["complete"] and all([run.has(name) for name in WHOLE]):
        return dict(run.manifest["summary"])
    run.manifest["complete"] = False
    s = cell.settings
    recipe = cell.recipe.federation
    with _timed(run, "prepare"):
        rng = generator(s.seed, "partition")
        partition = recipe.partition(cell.data.train_targets, s.federation.clients, s.examples_per_client, rng)
        pool = cell.data.train_inputs[cell.data.victims]
        eta = s.success if s.success is not None else success_threshold(pool, generator(s.seed, "eta"))
        judge = Judge(eta, load_lpips(lpips_weights))
    if s.protocol == "live":
        _train(cell, run, partition, progress)
    for round_number in s.leak_rounds:
        sent = _sent(cell, run, round_number)
        for tap in s.taps:
            _attack(cell, run, judge, partition, sent, tap, round_number, progress)
    if s.protocol == "paper":
        _train(cell, run, partition, progress)
    return _finish(cell, run, partition)


def _finish(cell: Cell, run: Run, partition: Partition) -> dict[str, Any]:
    """Put the pieces together, write the summary, and only then let the pieces go."""
    pieces = [f"parts/{tap}.round{n}." for n in cell.settings.leak_rounds for tap in cell.settings.taps]
    found = {
        p: sorted(
            n.removesuffix(".parquet") for n in run.manifest["files"] if n.startswith(p) and n.endswith(".parquet")
        )
        for p in pieces
    }
    rows = pd.concat(
        [run.read_rows(f"{name}.parquet") for names in found.values() for name in names], ignore_index=True
    )
    tensors: dict[str, Tensor] = {}
    for piece, names in found.items():
        held = [run.read_tensors(f"{name}.safetensors") for name in names]
        key = piece.removeprefix("parts/")
        for kind, dim in (("reconstruction", 0), ("truth", 0), ("trajectory", 1)):
            tensors[key + kind] = torch.cat([h[kind] for h in held], dim)
    run.write_rows("rows.parquet", rows)
    run.write_tensors("reconstructions.safetensors", tensors)
    rounds = run.read_rows("rounds.parquet")
    counted = {n: t for n, t in run.read_tensors("model.safetensors").items() if n.startswith("counts.")}
    largest = {"example": "updates", "uses": "uses", "client": "rounds"}
    most = {name: int(counted[f"counts.{key}"].max()) for name, key in largest.items()} if counted else None
    epsilon = cell_epsilon(cell.defense, cell.data, cell.settings, partition, most).as_dict()
    folder = str(run.folder)
    run.manifest["summary"] = summarise(cell, rows, rounds, epsilon, run.manifest["phases"], folder)
    run.manifest["complete"] = True
    run.save()
    run.forget("parts/")
    return dict(run.manifest["summary"])


def _candidates(cell: Cell, victims: Tensor) -> Tensor:
    """Return k candidate examples: the victims (V,) themselves, then others from whom they were drawn."""
    s, data = cell.settings, cell.data
    others = data.victims[~torch.isin(data.victims, victims)]
    more = others[torch.randperm(len(others), generator=generator(s.seed, "candidates"))]
    return torch.cat([victims, more])[: max(s.candidates, len(victims))]


def _null(cell: Cell, labels: Tensor, eta: float) -> NullAttack:
    """Let the null attacker, who is told the labels (n,), guess n examples from the public split."""
    public = cell.data.test_inputs, cell.data.test_targets
    return null_attack(*public, len(labels), labels, eta, generator(cell.settings.seed, "null"))


def _sent(cell: Cell, run: Run, round_number: int) -> Sent:
    """Return the model of a leak: the sigmoid LeNet at random weights, or in the live protocol the one that was trained so far."""
    s = cell.settings
    live = s.protocol == "live"
    model, start = _fresh(cell, live)
    weights = run.read_tensors(f"model.round{round_number}.safetensors") if live else start
    network = Network(model, {n: weights[n].to(s.device) for n in start})
    return Sent(*cell.attack.server(network, generator(s.seed, "server")))


def _fresh(cell: Cell, trained: bool) -> tuple[torch.nn.Module, Parameters]:
    s = cell.settings
    purpose, name = ("model", s.model) if trained else ("leak model", s.leak_model)
    model = build(name, cell.data.shape, cell.data.classes, generator(s.seed, purpose)).to(s.device)
    return model, parameters(model)


def _attack(
    cell: Cell,
    run: Run,
    judge: Judge,
    partition: Partition,
    sent: Sent,
    tap: str,
    round_number: int,
    progress: Progress,
) -> None:
    """Attack the victims of one tap in chunks, writing each chunk's rows and reconstructions."""
    victims = draw_victims(cell, tap, round_number, partition)
    total = len(victims.indices)
    null: NullAttack | None = None
    name = f"attack {tap}" + (f" at round {round_number}" if cell.settings.protocol == "live" else "")
    for lanes in torch.split(torch.arange(total), _chunk(cell, sent, victims.indices[0].numel())):
        piece = f"parts/{tap}.round{round_number}.{int(lanes[0]):05d}"
        if not (run.has(f"{piece}.parquet") and run.has(f"{piece}.safetensors")):
            with _timed(run, name):
                null = null or _null(cell, truth(cell, tap, victims)[1].flatten(), judge.eta)
                rows, tensors = _attack_chunk(cell, judge, null, victims, sent, tap, round_number, lanes)
            run.write_tensors(f"{piece}.safetensors", tensors)
            run.write_rows(f"{piece}.parquet", rows)
        progress(name, int(lanes[-1]) + 1, total)


def _attack_chunk(
    cell: Cell,
    judge: Judge,
    null: NullAttack,
    victims: Victims,
    sent: Sent,
    tap: str,
    round_number: int,
    lanes: Tensor,
) -> tuple[pd.DataFrame, dict[str, Tensor]]:
    view = view_of(cell, tap, round_number, victims, lanes, sent)
    rngs = generators(cell.settings.seed, f"attack {tap}", [(round_number, int(v)) for v in lanes])
    answer = cell.attack.method((view,), rngs)
    if not isinstance(answer, Reconstruction):
        raise InputError(f"attack: method {type(cell.attack.method).__name__} ranks; `run` takes one that reconstructs")
    device = torch.device(cell.settings.device)
    pool = _candidates(cell, victims.indices[:, 0, 0, 0])
    public = _public(cell, device)
    candidates = (cell.data.train_inputs[pool].to(device), cell.data.train_targets[pool].to(device))
    ranking = Candidates()(aware(view, cell), *candidates, public)
    inputs, labels, examples = truth(cell, tap, victims)
    real = Truth(lanes, inputs[lanes].to(device), labels[lanes].to(device), examples[lanes])
    rows, ordered = score(tap, round_number, answer, ranking, null, real, judge.eta, judge.lpips)
    return rows, {"reconstruction": ordered, "truth": real.inputs, "trajectory": answer.trajectory}


def _public(cell: Cell, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a few hundred public examples, for what stands in for a victim's unknown fellows."""
    inputs, targets = cell.data.test_inputs, cell.data.test_targets
    chosen = torch.randperm(len(targets), generator=generator(cell.settings.seed, "public"))[:256]
    return inputs[chosen].to(device), targets[chosen].to(device)


def _chunk(cell: Cell, sent: Sent, examples: int, budget: int = 3_000_000_000) -> int:
    """Return how many victims fit side by side into `budget` bytes: gradients, twice differentiated, and 200 vectors of history."""
    weights = sum(p.numel() for p in sent.network.parameters.values())
    pixels = examples * int(torch.Size(cell.data.shape).numel())
    steps = cell.settings.federation.local_iterations if cell.settings.protocol == "live" else 1
    per_victim = 4 * (weights * 6 * (steps + 1) + pixels * (200 + 400))
    return max(1, min(100, budget // per_victim))


def _train(cell: Cell, run: Run, partition: Partition, progress: Progress) -> None:
    """Train the federation round by round; each round's state is on disk before the next begins."""
    s = cell.settings
    if run.has("rounds.parquet") and run.has("model.safetensors") and all(run.has(n) for n in _leak_models(s)):
        return
    model, start = _fresh(cell, trained=True)
    done, rows = _checkpoint(run)
    if s.protocol == "live" and 0 in s.leak_rounds and not run.has("model.round0.safetensors"):
        run.write_tensors("model.round0.safetensors", start)
    began = time.perf_counter()
    rounds = train(model, start, cell.data, partition, s.federation, cell.defense, s.seed, torch.device(s.device), done)
    for now in rounds:
        done = now
        rows = [*rows, {name: float(getattr(now, name)) for name in ROUND_COLUMNS}]
        if s.protocol == "live" and now.round + 1 in s.leak_rounds:
            run.write_tensors(f"model.round{now.round + 1}.safetensors", now.parameters)
        run.add_seconds("train", time.perf_counter() - began)
        began = time.perf_counter()
        _write_checkpoint(run, now, rows)
        progress("train", now.round + 1, s.federation.rounds)
    run.write_tensors("model.safetensors", to_tensors(done) if done else {f"model.{n}": p for n, p in start.items()})
    run.write_rows("rounds.parquet", pd.DataFrame(rows, columns=list(ROUND_COLUMNS)).astype({"round": int}))


def _leak_models(s: Settings) -> list[str]:
    return [f"model.round{n}.safetensors" for n in s.leak_rounds] if s.protocol == "live" else []


def _write_checkpoint(run: Run, now: Round, rows: list[dict[str, float]]) -> None:
    name = f"parts/train.{now.round:05d}.safetensors"
    history = torch.tensor([[row[c] for c in ROUND_COLUMNS] for row in rows], dtype=torch.float64)
    run.write_tensors(name, {**to_tensors(now), "rounds": history})
    # The round before goes only when this one is safely in the manifest.
    older = [n for n in run.manifest["files"] if n.startswith("parts/train.") and n != name]
    for left in older:
        run.forget(left)


def _checkpoint(run: Run) -> tuple[Round | None, list[dict[str, float]]]:
    """Return the last finished round and the rows so far; (None, []) where training has not begun."""
    names = sorted((n for n in run.manifest["files"] if n.startswith("parts/train.")), reverse=True)
    for name in names:
        if run.has(name):
            held = run.read_tensors(name)
            rows = [dict(zip(ROUND_COLUMNS, row, strict=True)) for row in held["rounds"].tolist()]
            return from_tensors(held, rows[-1]), rows
    return None, []
