"""Run one cell: attack at every leakage point, train the federation, and join the results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from leakbench.auditing.cell import audit_training, valid_of_one
from leakbench.cell import Cell, hand_out
from leakbench.cell.accounting import cell_curve, cell_epsilon
from leakbench.cell.device import conditions
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.progress import Progress, planned, ticking
from leakbench.core.types import Network, sent_memory
from leakbench.data.partition import Partition
from leakbench.data.words import WORDS, words_of
from leakbench.experiment.attack_time import AttackTime
from leakbench.experiment.conspicuous import conspicuous_of
from leakbench.experiment.rehearsal import refuse_views, rehearse
from leakbench.experiment.stage_attack import CellLeak, Judge, attack_leak
from leakbench.experiment.stage_train import fresh_network, leaked_model, train_federation
from leakbench.experiment.victims import Sent, sent_to_clients
from leakbench.federated.canaries import inclusion
from leakbench.federated.simulate import CANARY_SCORES, counts_in, from_sent
from leakbench.limits.limits import limits_of
from leakbench.measure.closeness import eta_of
from leakbench.storage.manifest import check_shown
from leakbench.storage.store import AFTER, Run, add_environment, without_pictures
from leakbench.storage.summary import AuditedTraining, Summary
from leakbench.summary.summarise import summarise

__all__ = ["execute"]

WHOLE = ("rows.parquet", "rounds.parquet", "reconstructions.safetensors", "model.safetensors")


def execute(cell: Cell, run: Run, progress: Progress) -> Summary:
    """Run the parts of a cell that are not in the run's folder, and return its summary; an interrupted run is resumed.

    A part is one round of training or one chunk of victims, and is on disk before the next begins. The `paper` protocol attacks
    first, since its leak does not depend on the training.
    """
    files = [name for name in run.manifest["files"] if name not in AFTER]
    # A list, so that every file is checked.
    if run.manifest["complete"] and all([run.has(name) for name in {*WHOLE, *files}]):
        check_shown(run.folder / "manifest.json", run.manifest)
        return Summary.of(run.manifest["summary"]).replaced(folder=str(run.folder))
    if run.manifest["complete"]:  # A run that was not complete has its environment since it was opened.
        add_environment(run, [conditions(torch.device(cell.settings.device))])
    run.manifest["complete"] = False
    run.manifest.pop("summary", None)  # The summary belongs to files that have changed.
    s = cell.settings
    attacks = [s.point(tap, rounds[-1]).phase for rounds in s.leaks for tap in s.taps]
    planned(progress, ["train", *attacks] if s.protocol == "live" else [*attacks, "train"])
    working = ticking(progress)
    with run.timed("prepare"):
        working("preparation", None)
        partition = hand_out(cell)
        working("preparation", None)
        judge = Judge(eta_of(cell.data, s.seed, s.success), cell.lpips)
        working("preparation", None)
    if s.protocol == "live":
        if not run.manifest["files"]:
            working("rehearsal of the attack", None)
            rehearse(cell, partition, lambda tap: _sent(cell, run, None, tap), lambda: working("", None))
        train_federation(cell, run, partition, progress)
    elif not run.manifest["files"]:
        refuse_views(cell, partition, lambda tap: _sent(cell, run, None, tap))
    clock = AttackTime(s.budget, run, s.victims * len(s.leaks) * len(s.taps))
    for rounds in s.leaks:
        for tap in s.taps:
            for network in range(s.networks):
                sent = {number: _sent(cell, run, number, tap, network) for number in rounds}
                attack_leak(CellLeak(cell, partition, sent, tap, network), run, judge, progress, clock)
    if s.protocol == "paper":
        train_federation(cell, run, partition, progress)
    return _finish(cell, run, partition, lambda step: working(step, None))


def _sent(cell: Cell, run: Run, round_number: int | None, tap: str = "type-1", network: int = 0) -> Sent:
    """Return what the server sends: the honest network, or its change by a malicious server for a leakage point.

    Args:
        round_number: Number of rounds before; None for the first weights.
        network: Draw of the first weights, counted from 0.
    """
    return sent_to_clients(cell, _honest(cell, run, round_number, network), tap)


def _honest(cell: Cell, run: Run, round_number: int | None, network: int = 0) -> Network:
    """Return the network at random weights, or in the live protocol after `round_number` rounds of training."""
    live = cell.settings.protocol == "live"
    model, start = fresh_network(cell, live, network)
    weights, memory = start, dict[str, Tensor]()
    if live and round_number is not None:
        weights, memory = from_sent(run.read_tensors(leaked_model(round_number)))
    device = cell.settings.device
    return Network(
        model,
        {n: weights[n].to(device) for n in start},
        memory={n: m.to(device) for n, m in sent_memory(memory).items()},
        engine=cell.settings.engine,
    )


def _finish(cell: Cell, run: Run, partition: Partition, working: Callable[[str], None]) -> Summary:
    """Join the parts, write the summary, and then remove the parts.

    Args:
        working: Called with the name of each step.
    """
    working("results of all victims")
    rows, tensors = _joined(cell, run)
    run.write_tensors("reconstructions.safetensors", tensors)
    rounds = run.read_rows("rounds.parquet")
    largest = _largest(run)
    with run.timed("epsilon and bounds"):
        working("epsilon")
        epsilon = cell_epsilon(cell.defense, cell.data, cell.settings, partition, largest).as_dict()
        epsilon["by_round"] = cell_curve(cell.defense, cell.data, cell.settings, partition)
        working("bounds")
        limits = limits_of(cell, partial(_sent, cell, run), partition, lambda: working(""))
        working("check of what the server sent")
        seen = conspicuous_of(
            cell,
            lambda number, network: _sent(cell, run, number, network=network),
            lambda number: _honest(cell, run, number),
            partition,
        )
    working("summary and report")
    phases, folder = run.manifest["phases"], str(run.folder)
    summary = summarise(cell, rows, rounds, epsilon, limits, phases, folder, seen)
    verdicts = summary.verdicts
    points = zip(rows["tap"], rows["round"], strict=True)
    run.write_rows("rows.parquet", rows.assign(verdict=[verdicts[point] for point in points]))
    same, taps = _same_leaks(cell, run), summary.taps
    notes = {
        f"taps.{k}": f"shows the attacker the same bits as {v}: nothing acts between the two" for k, v in same.items()
    }
    # A copy of an answer took as long as the answer.
    copies = {key: taps[key].replaced(seconds=taps[first].seconds) for key, first in same.items()}
    summary = summary.replaced(taps=taps | copies, notes=summary.notes | notes)
    if (audited := _audited(cell, run, epsilon["delta"])) is not None:
        summary = summary.replaced(
            audited=audited, notes=summary.notes | {"audited": CHANGED.format(cell.defense.unit)}
        )
    run.manifest["summary"] = summary.as_dict()
    run.manifest["complete"] = True
    run.save()
    run.forget("parts/")
    return summary


CHANGED = "canary {}s took part in the training: its accuracy, and a leak of its models, are not those without canaries"


def _audited(cell: Cell, run: Run, delta: float) -> AuditedTraining | None:
    """Return the audit of the training by its canaries; None without them, a released round, or finite scores."""
    count, held = cell.settings.canaries, run.read_tensors("model.safetensors")
    if not count or CANARY_SCORES not in held:
        return None
    if not held[CANARY_SCORES].isfinite().all():
        return None
    scores, included = held[CANARY_SCORES].numpy(), inclusion(count, cell.settings.seed).numpy()
    found = audit_training(cell, scores, included, delta).as_dict()
    if cell.settings.examples_per_person > 1 and cell.defense.unit == "example":
        found["valid"] = valid_of_one(cell, delta)
    return AuditedTraining.model_validate(found)


def _joined(cell: Cell, run: Run) -> tuple[pd.DataFrame, dict[str, Tensor]]:
    """Return the rows of all parts, and {tap.round.what: tensor} over all victims, in the order of the victims."""
    rows: list[pd.DataFrame] = []
    tensors: dict[str, Tensor] = {}
    for rounds in cell.settings.leaks:
        for tap in cell.settings.taps:
            key = cell.settings.point(tap, rounds[-1]).file
            names = sorted(n for n in run.manifest["files"] if n.startswith(f"parts/{key}.") and n.endswith(".parquet"))
            each = [run.read_rows(name) for name in names]
            lanes = torch.cat([torch.from_numpy(piece["victim"].unique()) for piece in each])
            order = lanes.argsort()  # Victims of several networks are attacked network by network.
            rows.append(pd.concat(each, ignore_index=True).sort_values("victim", kind="stable"))
            held = [run.read_tensors(name.removesuffix("parquet") + "safetensors") for name in names]
            for what, axis in (("reconstruction", 0), ("truth", 0), ("trajectory", 1)):
                parts = [h[what] for h in held if what in h]
                if parts:
                    joined = torch.cat(_as_long(parts) if axis else parts, axis)
                    tensors[f"{key}.{what}"] = joined.index_select(axis, order)
    if cell.data.vocabulary is not None:
        sentences = {name: each for name, each in tensors.items() if name.endswith(("truth", "reconstruction"))}
        tensors[WORDS] = words_of(cell.data.vocabulary, sentences)
    return pd.concat(rows, ignore_index=True), tensors if cell.settings.pictures else without_pictures(tensors)


def _as_long(trajectories: list[Tensor]) -> list[Tensor]:
    """Return trajectories (iterations, V) of equal length, with NaN at the end of shorter ones."""
    longest = max(map(len, trajectories))
    return [nn.functional.pad(t, (0, 0, 0, longest - len(t)), value=torch.nan) for t in trajectories]


def _same_leaks(cell: Cell, run: Run) -> dict[str, str]:
    """Return {leakage point: an earlier leakage point with bit-identical views}."""
    first: dict[str, str] = {}
    same = {}
    for piece, digest in run.manifest.get("observations", {}).items():
        point = LeakagePoint.of(piece.removeprefix("parts/"))
        key = cell.settings.point(point.tap, point.rounds[-1]).key
        if first.setdefault(digest, key) != key:
            same[key] = first[digest]
    return same


def _largest(run: Run) -> dict[str, int] | None:
    """Return the counts of the training for the ledger; None without training."""
    counts = counts_in(run.read_tensors("model.safetensors"))
    if counts is None:
        return None
    return {"example": int(counts.updates.max()), "uses": int(counts.uses.max()), "client": int(counts.rounds.max())}
