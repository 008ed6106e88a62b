"""The stage of a run that trains; each round's state is on disk before the next begins."""

from __future__ import annotations

import dataclasses
import time

import pandas as pd
import torch
from torch import nn

from leakbench.cell import Cell
from leakbench.cell.network import build_for
from leakbench.core.progress import Progress, begin, saying, ticking
from leakbench.core.rng import generator
from leakbench.core.types import Network, Parameters, sent_memory
from leakbench.data.partition import Partition
from leakbench.defense.network import extended
from leakbench.federated.canaries import draw_canaries
from leakbench.federated.simulate import MEMBERS, Round, from_tensors, sent_tensors, to_tensors, train
from leakbench.models import parameters
from leakbench.models.batch_norm import in_client_mode
from leakbench.storage.store import Run

__all__ = ["ROUND_COLUMNS", "fresh_network", "leaked_model", "train_federation"]

FIGURES = ("round", "accuracy", "loss", "between_client_variance", "update_scale")

ROUND_COLUMNS = (*FIGURES, *MEMBERS)


def leaked_model(round_number: int) -> str:
    """Return the name of the file with the model that leaks in the live protocol after `round_number` rounds."""
    return f"model.round{round_number}.safetensors"


def fresh_network(cell: Cell, trained: bool, number: int = 0) -> tuple[nn.Module, Parameters]:
    """Return the network that is trained, or the one that leaks in the `paper` protocol, at its first weights.

    The network is in the mode of the clients. Layers that the defense adds have a separate generator, so the other weights are the
    same as without the defense.

    Args:
        cell: The cell.
        trained: Whether to return the network that is trained.
        number: Draw of the first weights, counted from 0.
    """
    s = cell.settings
    again = (number,) if number else ()  # The first draw is that of a cell with one network.
    purpose, name = ("model", s.model) if trained else ("leak model", s.leak_model)
    first = generator(s.seed, purpose, *again)
    plain = build_for(cell.data, s, name, first)
    rng = generator(s.seed, f"{purpose} extension", *again)
    whole = extended(cell.defense.network, plain, cell.data.layout, cell.data.outputs, rng)
    model = in_client_mode(whole, s.victim_mode).to(s.device)
    return model, parameters(model)


def train_federation(cell: Cell, run: Run, partition: Partition, progress: Progress) -> None:
    """Train the rounds that are not in the run's folder, and write rounds.parquet and model.safetensors."""
    s = cell.settings
    leaks = s.leak_rounds if s.protocol == "live" else ()
    if all(run.has(name) for name in ("rounds.parquet", "model.safetensors", *map(leaked_model, leaks))):
        return
    model, start = fresh_network(cell, trained=True)
    done, rows = _checkpoint(run, leaks)
    if 0 in leaks:
        run.write_tensors(leaked_model(0), sent_tensors(start, {}))
    began = time.perf_counter()
    total = s.federation.rounds if s.stop_after is None else s.stop_after
    there = done.round + 1 if done else 0
    begin(progress, "train", there, total, f"round {there + 1}")
    network = Network(model, start, engine=s.engine)
    say, working = saying(progress), ticking(progress)
    canaries = draw_canaries(start, s.canaries, s.seed) if s.canaries else None
    options = (done, s.stop_after, lambda line: say(f"train: {line}"), lambda: working("", None), canaries)
    rounds = train(network, cell.data, partition, s.federation, cell.defense, s.seed, *options)
    for now in rounds:
        done = now
        rows = [*rows, {name: float(getattr(now, name)) for name in FIGURES} | now.members]
        if now.round + 1 in leaks:
            run.write_tensors(leaked_model(now.round + 1), sent_tensors(now.parameters, sent_memory(now.memory)))
        run.add_seconds("train", time.perf_counter() - began)
        began = time.perf_counter()
        _write_checkpoint(run, now, rows)
        progress("train", now.round + 1, total)
    # Without what the server keeps to itself: noise that can be subtracted from the model.
    done = done and dataclasses.replace(done, memory=sent_memory(done.memory))
    run.write_tensors("model.safetensors", to_tensors(done) if done else sent_tensors(start, {}))
    run.write_rows("rounds.parquet", pd.DataFrame(rows, columns=list(ROUND_COLUMNS)).astype({"round": int}))


def _write_checkpoint(run: Run, now: Round, rows: list[dict[str, float]]) -> None:
    name = f"parts/train.{now.round:05d}.safetensors"
    history = torch.tensor([[row[c] for c in ROUND_COLUMNS] for row in rows], dtype=torch.float64)
    run.write_tensors(name, {**to_tensors(now), "rounds": history})
    # The checkpoint of the previous round is removed after this one is in the manifest.
    older = [n for n in run.manifest["files"] if n.startswith("parts/train.") and n != name]
    for left in older:
        run.forget(left)


def _checkpoint(run: Run, leaks: tuple[int, ...]) -> tuple[Round | None, list[dict[str, float]]]:
    """Return the last finished round and the rows so far, or (None, []) to start over.

    Training starts over if a model that leaks after an earlier round is missing, since it has to be trained again.
    """
    names = sorted((n for n in run.manifest["files"] if n.startswith("parts/train.")), reverse=True)
    for name in names:
        if run.has(name):
            held = run.read_tensors(name)
            rows = [dict(zip(ROUND_COLUMNS, row, strict=True)) for row in held["rounds"].tolist()]
            last = from_tensors(held, rows[-1])
            due = [leaked_model(n) for n in leaks if n <= last.round + 1]
            return (last, rows) if all(map(run.has, due)) else (None, [])
    return None, []
