"""The functions of Python: measure a cell, account for and audit a defense, measure a grid, compare two runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import pandas as pd
import torch

from leakbench.auditing.cell import audit as audited
from leakbench.auditing.verdict import Audit
from leakbench.box import count_of
from leakbench.cell import Request, identity
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan, prepare
from leakbench.cell.cell import hand_out
from leakbench.cell.device import described
from leakbench.core.errors import InputError, nearest
from leakbench.core.leakage_points import point_name
from leakbench.core.progress import Reporter
from leakbench.core.request import FederationFields, Fields, request_of, run_words
from leakbench.core.typed import got, typed_arguments
from leakbench.execute import execute
from leakbench.log import check_tracker, log_run
from leakbench.privacy.epsilon import Epsilon
from leakbench.report.epsilons import epsilon_lines
from leakbench.report.finished import read_finished
from leakbench.report.page import report_into
from leakbench.report.result import Result
from leakbench.storage.store import check_out, content_hash, open_run
from leakbench.study.engines import Places, engine_of, tasks_by
from leakbench.study.grid import grid_of, read_grid
from leakbench.study.sweep import Swept
from leakbench.study.sweep import sweep as measured_cells
from leakbench.summary import compare as paired

__all__ = ["Comparison", "Epsilons", "audit", "compare", "epsilon", "run", "run_request", "sweep"]

SLOW = 5.0
"""Seconds after which `epsilon` begins to print its progress."""

Place: TypeAlias = str | Path

Runs: TypeAlias = Result | Place | Sequence[Result | Place]
"""A run or several: results or run folders."""


@typed_arguments
def run(
    *,
    out: Place | None = None,
    data_dir: Place | None = None,
    quiet: bool = False,
    log: str | None = None,
    **fields: Unpack[Fields],
) -> Result:
    """Train a federation with a defense, attack it at its leakage points, and return the result.

    The same call resumes an interrupted run, and reads a finished one. `leakbench run` does the same from the command line.

    Args:
        out: Run folder; None for `runs/DATASET-DEFENSE-ATTACK-HASH`.
        data_dir: Folder with the datasets; None for the variable LEAKBENCH_DATA, else the user's cache.
        quiet: Print no progress.
        log: Tracker that also gets the numbers: `tensorboard`, `mlflow` or `wandb`; None for none.
        **fields: Fields of `leakbench.core.request.Request` by name, such as `defense`, `attack`, `dataset`, `victims` and `seed`;
            the others have their defaults. Names of recipes are names of the catalog or paths of YAML files. The device is the
            CPU unless `device` names another; `device="auto"` takes a GPU where there is one.

    Returns:
        The finished run.

    Raises:
        InputError: For an unknown field, a value that does not fit, or missing data, in one line that says what is accepted.
    """
    request, data = request_of(fields), _path(data_dir)
    if out is not None and str(out) == "":
        raise InputError("out: got '', expected the name of a folder")
    if data is not None and not data.is_dir():
        raise InputError(f"data-dir: folder {str(data)!r} not found; expected the folder of the datasets")
    command = shlex.join(run_words(request))
    with closing(Reporter(quiet=quiet)) as reporter:
        return run_request(request, command, _path(out), data, reporter, log)[0]


def run_request(
    request: Request,
    command: str,
    out: Path | None,
    data_dir: Path | None,
    reporter: Reporter,
    log: str | None = None,
) -> tuple[Result, str | None]:
    """Measure the cell of a request, as `leakbench run` and `leakbench.run` do.

    Args:
        request: The request.
        command: Command that repeats the run, for its manifest.
        out: Run folder; None for `runs/` and the name of the cell, which has its hash.
        data_dir: Folder with the datasets; None for the variable LEAKBENCH_DATA, else the user's cache.
        reporter: Prints the progress.
        log: Name of a tracker, see `leakbench.log`.

    Returns:
        The finished run, and where the tracker wrote it; None without a tracker.

    Raises:
        InputError: For a value that does not fit, or missing data.
    """
    if log is not None:
        check_tracker(log)
    if out is not None:
        check_out(out)
    reporter.tick("preparation")
    cell = prepare(request, data_dir, reporter)
    if cell.settings.device != "cpu":
        reporter.say(f"device: {described(torch.device(cell.settings.device))}")
    folder = out or Path("runs") / cell.name
    with open_run(folder, identity(cell, command), own=out is None, say=reporter.say) as opened:
        if opened.manifest["complete"]:
            reporter.note(f"{folder}: complete, nothing is measured again")
        execute(cell, opened, reporter)
        report_into(opened)
        finished = read_finished(folder)
        where = None if log is None else log_run(log, folder, opened.manifest, finished.rounds)
    reporter.close()
    return Result(finished), where


@dataclass(frozen=True)
class Epsilons:
    """The epsilons of one defense in one federation; `print` shows what `leakbench epsilon` prints.

    Args:
        defense: Name of the defense.
        dataset: Name of the dataset.
        rounds: Number of training rounds.
        epsilon: Claimed epsilon, valid epsilon of the released models, and valid epsilon at each leakage point.
    """

    defense: str
    dataset: str
    rounds: int
    epsilon: Epsilon

    @property
    def claimed(self) -> float | None:
        """Epsilon that the paper prints for this setting; None where it claims none."""
        return self.epsilon.claimed

    @property
    def valid(self) -> float | None:
        """Epsilon of the released models for the mechanism as executed; None where no guarantee follows."""
        return self.epsilon.valid

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `leakbench epsilon --json` prints it."""
        return self.epsilon.as_dict()

    def table(self) -> pd.DataFrame:
        """Return the valid epsilons.

        Returns:
            A line for each observer, `released models` and the leakage points, with the columns valid (NaN where no guarantee
            follows), without_draw (participation as often as possible in every round), q, steps, sigma_effective and reason.
        """
        columns = ("valid", "without_draw", "q", "steps", "sigma_effective", "reason")
        found = {"released models": self.epsilon, **self.epsilon.by_tap}
        index = pd.Index(list(found), name="observer")
        table = pd.DataFrame([{c: getattr(at, c) for c in columns} for at in found.values()], index=index)
        return table.astype(dict.fromkeys(columns[:-1], "float64"))

    def __str__(self) -> str:
        """Return what `leakbench epsilon` prints."""
        e = self.epsilon
        head = (
            f"{self.defense} on {self.dataset}, {count_of(self.rounds, 'round')}, unit: one {e.unit}, delta {e.delta:g}"
        )
        return "\n".join([head, *epsilon_lines(self.as_dict())])


@typed_arguments
def epsilon(
    defense: str = "none",
    *,
    delta: float = 1e-5,
    data_dir: Place | None = None,
    quiet: bool = False,
    **federation: Unpack[FederationFields],
) -> Epsilons:
    """Return the claimed and the valid epsilon of a defense, for each observer, without training.

    Args:
        defense: Name in the catalog, or path of a recipe.
        delta: Delta of the valid epsilon, in (0, 1).
        data_dir: Folder with the datasets, for a recipe without recorded sizes; see `run`.
        quiet: Print no progress; an accounting of less than `SLOW` seconds prints none anyway.
        **federation: Fields of the federation by name, such as `dataset`, `train_rounds`, `clients` and `batch`.

    Returns:
        The epsilons.

    Raises:
        InputError: For an unknown field, or a value that does not fit.
    """
    request = _federation(defense, federation)
    with closing(Reporter(quiet=quiet, after=SLOW)) as reporter:
        cell = plan(request, _path(data_dir), delta=delta, accounting=reporter)
        settings = cell.settings
        rounds = settings.federation.rounds if settings.stop_after is None else settings.stop_after
        found = cell_epsilon(cell.defense, cell.data, settings, hand_out(cell), None, delta, reporter)
    return Epsilons(cell.names["defense"], cell.names["dataset"], rounds, found)


@typed_arguments
def audit(
    defense: str = "none",
    *,
    delta: float = 1e-5,
    trials: int | None = None,
    function: str | Callable[..., Any] | None = None,
    sigma: float | None = None,
    clip: float | None = None,
    data_dir: Place | None = None,
    quiet: bool = False,
    **federation: Unpack[FederationFields],
) -> Audit:
    """Audit a defense, or a function of the user's own, by running its code.

    Args:
        defense: Name in the catalog, or path of a recipe.
        delta: Delta of every epsilon, in (0, 1).
        trials: Number of trials with a canary, and as many without; None for 1,000,000 drawn, 200,000 whole trainings
            or 1,000 executed.
        function: Function to audit instead of a defense, or its name `package.module:name`. It takes
            {parameter: float32 array} and returns a dict with the same keys; its second argument, `seed` (int) or `rng` (NumPy
            Generator), is the source of its noise.
        sigma: Noise multiplier that the function claims.
        clip: L2 bound of an update that the function claims.
        data_dir: Folder with the datasets; see `run`.
        quiet: Print no progress.
        **federation: Fields of the federation by name, as of `epsilon`.

    Returns:
        The audit, with `verdict`, `lower_bound` and `valid`; `print` shows what `leakbench audit` prints.

    Raises:
        InputError: For an unknown field, a value that does not fit, or a function that fails.
    """
    request, folder = _federation(defense, federation), _path(data_dir)
    with closing(Reporter(quiet=quiet)) as reporter:
        return audited(request, folder, delta, trials, function, sigma, clip, reporter)


@typed_arguments
def sweep(
    grid: Place | Mapping[str, Any],
    *,
    engine: str = "process",
    address: str | None = None,
    workers: int | None = None,
    threads_per_cell: int | None = None,
    gpus_per_cell: float = 0.0,
    slurm: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    runs: Place = "runs",
    out: Place | None = None,
    data_dir: Place | None = None,
    quiet: bool = False,
    command: str = "leakbench.sweep",
) -> Swept:
    """Measure every cell of a grid and merge the results.

    A cell is measured once; the same call resumes an interrupted sweep. The engine `process` starts new processes of Python, so a
    script calls this function below `if __name__ == "__main__":`.

    Args:
        grid: YAML file, or a mapping with its fields: `given` for the fields of all cells, `each` for {field: its values}.
        engine: `process` (this machine), `ray` or `submitit` (SLURM).
        address: HOST:PORT of the head of a Ray cluster.
        workers: Number of cells that run in parallel; None for the number of cores.
        threads_per_cell: Number of threads of each cell; None for cores / workers.
        gpus_per_cell: Share of a GPU that each cell takes, in [0, 1].
        slurm: Parameters of sbatch for `submitit`.
        retry_failed: Whether to run failed cells again.
        runs: Folder of the measured cells, one folder per hash.
        out: Folder of the written tables; None for `sweeps/` and the name of the file, or of a mapping the hash of its cells.
        data_dir: Folder with the datasets; see `run`.
        quiet: Print no progress.
        command: Command that the manifests of the cells record.

    Returns:
        The numbers of measured and failed cells; `.table()` and `.rows` are the merged tables.

    Raises:
        InputError: For a wrong grid, an engine that is not installed, or a folder that another sweep writes to.
    """
    device = "cuda" if gpus_per_cell else "cpu"
    if isinstance(grid, Mapping):
        if not grid:
            raise InputError("grid: got an empty mapping, expected some of given, each and rows")
        read = grid_of(dict(grid), Path("grid"), device)
        name = f"grid-{content_hash([cell.key for cell in read.cells])[:8]}"
    else:
        read, name = read_grid(Path(grid), device), Path(grid).stem
    folder = Path("sweeps") / name if out is None else Path(out)
    places = Places(address, workers, threads_per_cell, gpus_per_cell, dict(slurm or {}))
    chosen = engine_of(engine, places, folder / "submitit")
    asked = [(cell.name, cell.request) for cell in read.cells]
    task = tasks_by(chosen, asked, Path(runs), _path(data_dir), f"{read.path}: ")
    with closing(Reporter(quiet=quiet)) as reporter:
        return measured_cells(
            read, chosen, lambda cell: task(cell.key, cell.request, command), Path(runs), folder, reporter, retry_failed
        )


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same victims; `print` shows what `leakbench compare` prints, the second run minus the first.

    Args:
        differences: Each measure at each leakage point of both runs; the fields `difference`, `low` and `high` are the first run
            minus the second.
        left_out: Leakage points that only one of the runs has.
        accuracies: Accuracy of the first and the second run, a mean over a list; None where nothing was trained.
    """

    differences: tuple[paired.Difference, ...]
    left_out: tuple[str, ...]
    accuracies: tuple[float | None, float | None] = (None, None)

    @property
    def text(self) -> str:
        """The differences for a reader."""
        return "\n".join(paired.lines(list(self.differences), self.accuracies))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return plain data, as `leakbench compare --json` prints it; `difference`, `low`, `high` are first minus second."""
        return paired.as_dicts(list(self.differences))

    def table(self) -> pd.DataFrame:
        """Return the differences.

        Returns:
            A line for each leakage point and measure, with the columns victims, first, second, difference (first minus second),
            low, high (its 95 % interval), sign (p-value of the sign test), networks (their number), networks_p (p-value of
            Student's test over their mean differences) and differs.
        """
        lines = [
            {**line, "differs": paired.differs(d)} for line, d in zip(self.as_dicts(), self.differences, strict=True)
        ]
        return pd.DataFrame(lines).set_index(["point", "measure"])

    def __str__(self) -> str:
        """Return what `leakbench compare` prints."""
        return self.text

    def _repr_html_(self) -> str:
        """Return the differences for a notebook."""
        changes = [d.change for d in self.differences]
        printed = self.table().rename(index=point_name, level="point").rename(columns={"difference": "second - first"})
        printed[["second - first", "low", "high"]] = changes
        table = printed.to_html(float_format="{:.3g}".format)
        sentence = paired.sentence(self.differences, self.accuracies)
        return f"<p><b>{escape(sentence)}</b></p>{table}"


@typed_arguments
def compare(a: Runs, b: Runs) -> Comparison:
    """Compare two runs on the same victims, or two lists of runs.

    Args:
        a: First run: a result or a run folder. A list of them is one run each for several seeds.
        b: Second run, or as many runs in the same order; each attacked the same victims as its counterpart.

    Returns:
        Means over the examples and their differences, with a paired bootstrap over the victims that is widened by the variance
        between networks. A victim that several runs of a list attacked at a leakage point counts once, with all its rows.
        Runs of one seed have the same networks.

    Raises:
        InputError: Where the runs attacked different examples or have no leakage point in common, or a list has a run twice.
    """
    firsts, seconds = _folders(a), _folders(b)
    if len(firsts) != len(seconds) or not firsts:
        raise InputError(f"compare: got {len(firsts)} and {len(seconds)} runs, expected as many in both lists")
    found = paired.compare_lists(firsts, seconds)
    alone = {point: None for one, other in zip(firsts, seconds, strict=True) for point in paired.left_out(one, other)}
    before, after = (paired.mean_accuracy(folders) for folders in (firsts, seconds))
    return Comparison(tuple(found), tuple(alone), (before, after))


def _folders(runs: Runs) -> list[Path]:
    several = [runs] if isinstance(runs, Result | str | Path) else runs
    for each in several:
        if not isinstance(each, Result | str | Path):
            raise InputError(f"compare: {got(each)}, expected a result of leakbench.run, or the path of a run folder")
    return [each.folder if isinstance(each, Result) else Path(each) for each in several]


def _federation(defense: str, fields: FederationFields) -> Request:
    """Return the request of a federation; raises InputError for a field that describes an attack."""
    known = [*FederationFields.__annotations__]
    for name in fields:
        if name not in known:
            raise InputError(f"unknown field {name!r}{nearest(name, known)}")
    return request_of({"defense": defense, **fields})


def _path(given: Place | None) -> Path | None:
    return None if given is None else Path(given)
