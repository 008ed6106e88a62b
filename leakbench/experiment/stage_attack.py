"""The stage of a run that attacks each leakage point's victims in chunks; each chunk is on disk before the next begins."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import pandas as pd
import torch
from torch import Tensor

from leakbench.attack.clock import most_work
from leakbench.attack.fit_store import FitStore, fit_folder
from leakbench.attack.isolation import answered, readable
from leakbench.attack.looks import chooses
from leakbench.attack.null.pictures import NullAttack, null_attack
from leakbench.attack.null.texts import null_texts
from leakbench.attack.public_gradients import chunk_bytes
from leakbench.attack.rankings.classes import LARGEST
from leakbench.attack.recipe import Method
from leakbench.attack.servers.fishing import fished
from leakbench.attack.slots.stop import searches_of, watched
from leakbench.attack.undo import PUBLIC, undo, undone
from leakbench.cell import Cell, leak_clock, looks_at
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.progress import Progress, begin, saying, ticking
from leakbench.core.rng import generator, generators
from leakbench.core.types import Network
from leakbench.data.attributes import attributes_of, commonest
from leakbench.data.dataset import Dataset
from leakbench.data.partition import Partition
from leakbench.defense.augmentation import is_random
from leakbench.defense.refuse import RefuseConspicuous
from leakbench.engine.budget import lanes_within, memory_budget
from leakbench.engine.memory import RETAINED
from leakbench.engine.room import Room
from leakbench.engine.saved import activations, search_bytes
from leakbench.experiment.attack_time import AttackTime
from leakbench.experiment.rankings import likelihoods, rankings
from leakbench.experiment.victims import (
    Sent,
    Victims,
    candidate_examples,
    candidates,
    draw_victims,
    public_examples,
    truth,
    views_of,
)
from leakbench.federated.view import View
from leakbench.measure.closeness import closeness_of
from leakbench.measure.metrics import MOST_PAIRED, Score
from leakbench.measure.recognised import RecognitionGallery, gallery_of, score_recognised
from leakbench.measure.unanswered import explained
from leakbench.models.batch_norm import mixes_examples
from leakbench.scoring.scores import VictimTruth, no_reconstruction, score
from leakbench.scoring.scores_rankings import score_attributes, score_rankings
from leakbench.scoring.scores_tables import TableJudge, score_table, table_judge
from leakbench.scoring.scores_targets import score_targets
from leakbench.scoring.scores_texts import TextJudge, score_text, text_judge
from leakbench.storage.store import Run, without_pictures

__all__ = ["LOWER", "CellLeak", "Judge", "attack_leak", "needed_bytes"]

LOWER = "lower --leak-batch, --observations or the restarts of the attack, or take a smaller --leak-model"


PROCESS = 700_000_000
"""Bytes of a process with the libraries of leakbench, before any data."""


@dataclass(frozen=True)
class Judge:
    """The criteria of the scores: the threshold of success, and LPIPS or the reason for its absence."""

    eta: float
    lpips: Score | str


@dataclass(frozen=True)
class CellLeak:
    """One leakage point of one cell, with one draw of the first weights.

    Args:
        sent: {number of rounds before: what the server sent}, one or several.
        network: Draw of the first weights, counted from 0; victim v belongs to draw v modulo their number.
    """

    cell: Cell
    partition: Partition
    sent: dict[int, Sent]
    tap: str
    network: int = 0

    @property
    def round(self) -> int:
        """The last round, which is in the name of the leak."""
        return max(self.sent)

    @property
    def point(self) -> LeakagePoint:
        """The leakage point with its rounds."""
        return self.cell.settings.point(self.tap, self.round)

    @property
    def lanes(self) -> Tensor:
        """The positions (n,) int64 of the victims of this draw of the first weights among all V."""
        return torch.arange(self.network, self.cell.settings.victims, self.cell.settings.networks)

    def victims(self) -> Victims:
        """Draw the victims, which are the same in all rounds of the leak, with their examples in the first round."""
        return draw_victims(self.cell, self.tap, min(self.sent), self.partition)

    def views(self, victims: Victims, lanes: Tensor) -> tuple[View, ...]:
        """Return the attacker's views of the victims in `lanes`, one for each observation in each round."""
        each = (views_of(self.cell, self.tap, n, victims, lanes, sent) for n, sent in self.sent.items())
        return tuple(view for looks in each for view in looks)

    @property
    def name(self) -> str:
        """The start of the names of its chunks' files."""
        several = f".network{self.network}" if self.cell.settings.networks > 1 else ""
        return f"{self.point.file}{several}"


def attack_leak(leak: CellLeak, run: Run, judge: Judge, progress: Progress, clock: AttackTime) -> None:
    """Attack the victims of one leakage point at one draw of the first weights, in chunks, without those on disk.

    If memory is too small for a chunk, it and the following ones are halved.

    Args:
        progress: Called with the number of victims; within a chunk, a victim counts by the share of its iterations.
        clock: The remaining time of the attacks.

    Raises:
        InputError: If memory is too small for one victim.
    """
    victims, own = leak.victims(), leak.lanes
    total = len(victims.indices)
    before = sum(len(dataclasses.replace(leak, network=n).lanes) for n in range(leak.network))
    null = cache(partial(_null, leak, victims, judge.eta))
    back, gallery = (cache(partial(_undo, leak)), cache(partial(gallery_of, leak.cell.data, leak.cell.settings.seed)))
    phase = leak.point.phase
    fits = FitStore(fit_folder())
    say, working = saying(progress), ticking(progress)
    room = Room("victims", _chunk(leak, victims), LOWER, lambda line: say(f"{phase}: {line}"))
    missing = _missing(leak, run, len(own))
    if missing:
        _say_memory(leak, min(room.most, len(own)), victims, lambda line: say(f"{phase}: {line}"))
        begin(progress, phase, before + missing[0].start, total, f"victim {before + missing[0].start + 1}")
    elif before + len(own) == total:  # The victims of later networks may be on disk too.
        progress(phase, total, total)
    left = sum(gap.stop - gap.start for gap in missing)
    clock.done(len(own) - left)

    def attacked(where: slice) -> tuple[pd.DataFrame, dict[str, Tensor]]:
        lanes, since = own[where], clock.now()
        # The check on public examples follows the searches and takes as long as the searches for `checks` more victims.
        checks: int = getattr(leak.cell.attack.method, "twins", 0)
        searching, reached = len(lanes) / (len(lanes) + checks), 0.0

        def counted(share: float) -> float:
            """Return the number of finished victims, which never decreases, even if searches run in another order."""
            nonlocal reached
            # If the clock will stop a search, the share of its work is the share of its time.
            reached = max(reached, share, clock.passed(len(lanes), since))
            return float(before + where.start + reached * len(lanes))

        def tell(share: float) -> None:
            progress(phase, counted(searching * share), total)

        def tick(step: str = "", share: float | None = None) -> None:
            working(step, None if share is None else counted(searching + (1 - searching) * share))

        with run.timed(phase):
            views = tuple(dataclasses.replace(view, fits=fits, tick=tick) for view in leak.views(victims, lanes))
            twin = _twin(run, _piece(leak, where.start), views, lanes)
            if twin is not None:
                return run.read_rows(f"{twin}.parquet").assign(tap=leak.tap), run.read_tensors(f"{twin}.safetensors")

            def estimated(line: str) -> None:
                if not leak.network and where.start == missing[0].start:  # Once for each leakage point.
                    say(f"{phase}: {line}")

            pending, ready, ranked = left + total - before - len(own), dict[str, Ranking](), 0.0
            method = leak.cell.attack.method
            method = watched(method, tell, most_work(method, views))
            if clock.limit is not None and not leak.cell.attack.needs.candidates:
                # A ranking cannot be stopped, so rankings run first and the searches have the remaining time.
                began = clock.now()
                ready = _ranked(leak, victims, lanes, views)
                ranked = clock.now() - began
            method = clock.within(method, len(lanes), pending, since, estimated, ranked)
            return _attack_chunk(leak, judge, *null(), gallery(), victims, lanes, views, method, ready, back())

    for gap in missing:
        for where, (rows, tensors) in room(gap, attacked):
            piece = _piece(leak, where.start)
            run.write_tensors(f"{piece}.safetensors", tensors)
            run.write_rows(f"{piece}.parquet", rows)
            clock.done(where.stop - where.start)
            progress(phase, before + where.stop, total)


def _missing(leak: CellLeak, run: Run, total: int) -> list[slice]:
    """Return the positions of the draw's victims that are not in a complete chunk on disk.

    Each chunk records its number of victims, so the size of chunks may change between processes.
    """
    gaps, reached = [], 0
    prefix = _piece(leak, 0)[: -len("00000")]
    for name in sorted(n for n in list(run.manifest["files"]) if n.startswith(prefix) and n.endswith(".parquet")):
        piece = name.removesuffix(".parquet")
        if run.has(name) and run.has(f"{piece}.safetensors"):
            first = int(piece.removeprefix(prefix))
            gaps.append(slice(reached, first))
            reached = first + run.read_tensors(f"{piece}.safetensors")["trajectory"].shape[1]
        else:  # An incomplete chunk may have more victims than the new chunk with its name.
            run.forget(f"{piece}.")
    gaps.append(slice(reached, total))
    return [gap for gap in gaps if gap.start < gap.stop]


def _piece(leak: CellLeak, first: int) -> str:
    """Return the name, without its suffix, of the files of a chunk that starts with the victim `first`."""
    return f"parts/{leak.name}.{first:05d}"


def _twin(run: Run, piece: str, views: tuple[View, ...], lanes: Tensor) -> str | None:
    """Return the chunk of another leakage point with bit-identical views, if any, and record the hash of these views.

    Without a station between two leakage points, both leak the same update, and one attack is enough.
    """
    digest = hashlib.sha256()
    for view in views:
        grid = (view.cohort, view.local_steps, view.batch, view.learning_rate)
        # An adaptive attacker runs the stations before the leakage point.
        acting = [name for name, does in vars(view.stations.before(view.tap)).items() if does]
        digest.update(repr((view.examples, grid, acting, view.of_gradients, view.clock.round, lanes.tolist())).encode())
        for name, update in (*view.network.parameters.items(), *view.update.items()):
            digest.update(name.encode() + update.cpu().numpy().tobytes())
    seen = run.manifest.setdefault("observations", {})
    seen[piece] = digest.hexdigest()
    same = [p for p, d in seen.items() if p != piece and d == seen[piece]]
    return next((p for p in same if run.has(f"{p}.parquet") and run.has(f"{p}.safetensors")), None)


def _ranked(leak: CellLeak, victims: Victims, lanes: Tensor, views: tuple[View, ...]) -> dict[str, Ranking]:
    """Return the rankings that need no reconstruction."""
    cell = leak.cell
    rngs = generators(cell.settings.seed, "attack", [(leak.round, int(v)) for v in lanes])
    features = attributes_of(cell.data, cell.recipe.sensitive)
    return likelihoods(cell, views, candidates(cell, victims)[0], features, rngs)


def _attack_chunk(
    leak: CellLeak,
    judge: Judge,
    null: NullAttack,
    table: TableJudge | TextJudge | None,
    gallery: RecognitionGallery | None,
    victims: Victims,
    lanes: Tensor,
    views: tuple[View, ...],
    method: Method,
    ready: Mapping[str, Ranking],
    back: Callable[[Tensor], Tensor] | None,
) -> tuple[pd.DataFrame, dict[str, Tensor]]:
    cell = leak.cell
    rngs = generators(cell.settings.seed, "attack", [(leak.round, int(v)) for v in lanes])
    shown, own = candidates(cell, victims)
    granted = tuple(dataclasses.replace(v, candidates=shown if cell.attack.needs.candidates else None) for v in views)
    answer = answered(method, granted, rngs)
    if back is not None and isinstance(answer, Reconstruction):
        answer = undone(answer, back)
    features = attributes_of(cell.data, cell.recipe.sensitive)
    views[0].tick("identification of the victims")
    ranked = rankings(cell, views, shown, features, answer, rngs, ready)
    views[0].tick("scores")
    inputs, labels, examples = truth(cell, leak.tap, victims)
    real = VictimTruth(
        lanes,
        inputs[lanes].to(cell.settings.device),
        labels[lanes].to(cell.settings.device),
        examples[lanes],
        own[lanes],
        candidate_examples(cell, victims),
        None if cell.data.targets is None else cell.data.answers_of(examples[lanes]).to(cell.settings.device),
    )
    own_reconstruction = answer if isinstance(answer, Reconstruction) else None
    reconstruction = no_reconstruction(real) if own_reconstruction is None else own_reconstruction
    at = (leak.tap, leak.round)
    closeness = closeness_of(cell.data)
    rows, ordered = score(*at, own_reconstruction, ranked, null, real, judge.eta, judge.lpips, leak.network, closeness)
    read = torch.stack([readable(view) for view in views]).all(0)
    rows = explained(rows, _silent(views), _refuses(cell), fished(cell.attack.server), read)
    rows = rows.join(score_rankings(ranked, candidate_examples(cell, victims), cell.data.public_targets, real))
    rows = rows.join(score_attributes(ranked, features, [commonest(cell.data, f) for f in features], real))
    rows = rows.join(
        score_recognised(
            None if own_reconstruction is None else ordered, real, null.guesses[null.best_for_success], gallery
        )
    )
    answers = cell.data.public_answers
    if cell.data.targets is not None and answers is not None:
        rows = rows.join(score_targets(own_reconstruction, real, answers, cell.data.targets.heads, closeness))
    if isinstance(table, TextJudge):
        rows = rows.join(score_text(ordered, real, table))
    elif table is not None:
        draws = generators(cell.settings.seed, "random records", [(leak.round, int(v)) for v in lanes])
        rows = rows.join(score_table(reconstruction.inputs, real, table, draws))
    tensors = {"reconstruction": ordered, "truth": real.inputs, "trajectory": reconstruction.trajectory}
    return rows, tensors if cell.settings.pictures else without_pictures(tensors)


def _undo(leak: CellLeak) -> Callable[[Tensor], Tensor] | None:
    """Return the map from augmented examples to originals; None if nothing is random or the attacker does not know the defense."""
    cell, random = leak.cell, tuple(filter(is_random, leak.cell.defense.inputs))
    if not random or cell.attack.knows == "oblivious":
        return None
    rng = generator(cell.settings.seed, "undo")
    return undo(random, public_examples(cell, PUBLIC), cell.data.classes, leak_clock(cell, leak.round), rng)


def _silent(views: tuple[View, ...]) -> Tensor:
    """Return (V,), whether all observations of a victim are zero."""
    return torch.stack([(u.flatten(1) == 0).all(1) for view in views for u in view.update.values()]).all(0)


def _refuses(cell: Cell) -> bool:
    return any(isinstance(does, RefuseConspicuous) for does in cell.defense.stations.example)


def _null(leak: CellLeak, victims: Victims, eta: float) -> tuple[NullAttack, TableJudge | TextJudge | None]:
    """Return the baseline guess of all victims' examples from public examples and the labels, and the judge of tables or texts."""
    data = leak.cell.data
    labels = truth(leak.cell, leak.tap, victims)[1].flatten()
    rng = generator(leak.cell.settings.seed, "null")
    if data.vocabulary is not None:
        guessed = null_texts(data.public_inputs, len(labels), eta, data.vocabulary, rng)
        return guessed, text_judge(data, guessed)
    null = null_attack(data.public_inputs, data.public_targets, len(labels), labels, eta, rng)
    return null, table_judge(data, null, labels)


def _chunk(leak: CellLeak, victims: Victims) -> int:
    """Return the number of victims that fit into memory at once, with twice differentiated gradients and 200 vectors of history."""
    network = next(iter(leak.sent.values())).network
    weights = len(leak.sent) * sum(p.numel() for p in network.parameters.values())
    looks = looks_at(leak.cell, leak.tap)
    pixels = victims.indices[0].numel() * int(torch.Size(leak.cell.data.shape).numel())
    steps = victims.indices.shape[1] * victims.indices.shape[2]
    restarts = max(getattr(search, "restarts", 1) for search in searches_of(leak.cell.attack.method))
    # Observations share the guess's gradient unless the defense makes a choice; each is stored with its difference to the guess.
    gradients = 6 * (steps + 1) * (looks if chooses(leak.cell.defense.stations) else 1) + 2 * (looks - 1)
    per_victim = 4 * restarts * (weights * gradients + pixels * (200 + 400))
    if activations(network, leak.cell.data.shape):
        per_victim = restarts * _search_bytes(network, leak.cell.data.shape, victims)
    return lanes_within(memory_budget(torch.device(leak.cell.settings.device)), per_victim, most=100)


def _search_bytes(network: Network, shape: tuple[int, ...], victims: Victims) -> int:
    mixes = mixes_examples(network.model) or victims.indices.shape[2] > 1
    return search_bytes(network, shape, victims.indices[0].numel(), mixes)


def needed_bytes(network: Network, data: Dataset, searching: int) -> int:
    """Return an estimate of the peak memory of a run on large pictures, at least the measured peaks (docs/performance.md).

    Args:
        network: The network that leaks.
        data: The data set; two copies of it exist while it is read.
        searching: Bytes of the searches, which run before the rankings.
    """
    weights = sum(p.numel() for p in network.parameters.values())
    # The model, its parameters, the observed update and two flat copies of it.
    sent = 5 * 4 * weights
    ranking = 2 * 4 * min(data.classes * weights, LARGEST) + chunk_bytes(network, data.shape)
    pictures = 2 * 4 * math.prod(data.shape) * (len(data.train_targets) + len(data.test_targets))
    # The distances of pairs, from which the threshold of success follows: sorted copies, and others in float64. Measured: 34 bytes
    # for each value of a picture.
    pairs = 5 * 8 * math.prod(data.shape) * min(len(data.victims), MOST_PAIRED)
    return PROCESS + RETAINED + pictures + pairs + sent + max(searching, ranking)


def _say_memory(leak: CellLeak, lanes: int, victims: Victims, say: Callable[[str], None]) -> None:
    """Say once how much memory the search for some victims and the rankings take, for large pictures."""
    network, data = next(iter(leak.sent.values())).network, leak.cell.data
    if leak.network or not activations(network, data.shape):
        return
    restarts = max(getattr(search, "restarts", 1) for search in searches_of(leak.cell.attack.method))
    total = needed_bytes(network, data, lanes * restarts * _search_bytes(network, data.shape, victims))
    say(f"about {total / 1e9:.1f} GB of memory, {lanes} {'victim' if lanes == 1 else 'victims'} at a time")
