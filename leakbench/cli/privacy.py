"""The commands of privacy: a defense's epsilons, and their audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from leakbench.cli.options import FOLDER, check_fields, federation_options, quiet_option
from leakbench.core.errors import InputError
from leakbench.core.imported import check_importable
from leakbench.core.request import Request
from leakbench.core.untrusted import said
from leakbench.core.words import check_audit, check_delta

if TYPE_CHECKING:
    from leakbench.privacy.mechanism import Mechanism

__all__ = ["audit", "epsilon"]


@click.command()
@federation_options
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Delta of the valid epsilon.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def epsilon(delta: float, quiet: bool, as_json: bool, data_dir: Path | None, **given: Any) -> None:
    """Print the claimed and the valid epsilon of a defense.

    Prints one epsilon for each observer, without training. The sizes of the dataset come from its recipe; the data are
    not needed.
    """
    check_fields(given)
    check_delta(delta)
    from leakbench import api  # noqa: PLC0415

    found = api.epsilon(given.pop("defense"), delta=delta, data_dir=data_dir, quiet=quiet, **given)
    click.echo(json.dumps(found.as_dict(), indent=1) if as_json else str(found))


@click.command()
@federation_options
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Delta of every epsilon.")
@click.option(
    "--trials",
    type=int,
    show_default="1000000 drawn, 200000 trainings or 1000 executed",
    help="Number of trials with a canary, and as many without.",
)
@click.option(
    "--callable", "function", help="Audit your function package.module:name on one client update instead of a defense."
)
@click.option("--sigma", type=float, help="Noise multiplier that the function of --callable claims.")
@click.option("--clip", type=float, help="L2 bound of an update that the function of --callable claims.")
@click.option(
    "--scores", help="Audit a training by this CSV file of its canaries, with the columns score and included."
)
@click.option("--claimed", type=float, help="Epsilon that the training of --scores claims, at --delta.")
@click.option(
    "--gaussian",
    metavar="RATE,STEPS",
    help="Also bound the epsilon of --scores in the family of Gaussian noise on sums of Poisson batches, as in 0.01,500.",
)
@click.option("--into", type=FOLDER, help="Save the audit in this run folder, so that its report shows it.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(
    into: Path | None,
    as_json: bool,
    quiet: bool,
    scores: str | None,
    claimed: float | None,
    gaussian: str | None,
    **given: Any,
) -> None:
    """Audit a defense by running its code.

    Checks that its noise is as large as claimed, and computes a lower bound of its epsilon. A function of --callable
    takes {parameter: float32 array} and returns a dict with the same keys. Its second argument, `seed` (int) or `rng`
    (NumPy Generator), is the source of its noise. Modules in the current folder can be imported.

    With --scores, nothing is run: the scores of the canaries of a training, each included with probability 1/2, give a
    lower bound of its epsilon. The exit code is 1 if it is more than --claimed.
    """
    if scores is not None:
        _audit_scores(Path(scores), claimed, given["delta"], gaussian, as_json)
        return
    if claimed is not None:
        raise InputError(f"claimed: got {claimed:g}, expected only with --scores; a recipe states it")
    if gaussian is not None:
        raise InputError(f"gaussian: got {said(gaussian)}, expected only with --scores; a recipe states it")
    check_fields(given)
    own = {name: given.pop(name) for name in ("data_dir", "delta", "trials", "function", "sigma", "clip")}
    check_audit(own["delta"], own["trials"], own["function"] is not None, own["sigma"], own["clip"])
    if own["function"] is not None:
        check_importable("callable", own["function"], str(Path.cwd()))
    from leakbench import api  # noqa: PLC0415

    manifest = None if into is None else _run_of(into, given, own)
    found = api.audit(**given, **own, quiet=quiet)
    click.echo(json.dumps(found.as_dict(), indent=1) if as_json else str(found))
    if into is not None and manifest is not None:
        from leakbench.report.audited import keep_audit  # noqa: PLC0415

        click.echo(f"kept: {keep_audit(into, manifest, found)}; leakbench report {into} shows it", err=True)


WITH_SCORES = ("scores", "claimed", "delta", "gaussian", "as_json", "quiet")
"""The parameters that an audit of scores uses."""


def _audit_scores(path: Path, claimed: float | None, delta: float, gaussian: str | None, as_json: bool) -> None:
    """Print the audit of a file of scores, and end with exit code 1 if it violates the claim."""
    context = click.get_current_context()
    others = [n for n in context.params if n not in WITH_SCORES]
    for name in others:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = "callable" if name == "function" else name.replace("_", "-")
            raise InputError(
                f"scores: got --{option} as well, expected only --claimed, --delta, --gaussian and --json with it"
            )
    from leakbench import canaries  # noqa: PLC0415

    family = None if gaussian is None else _gaussian(gaussian)
    found = canaries.audit(*canaries.read_scores(path), claimed=claimed, delta=delta, unit="canary", family=family)
    click.echo(json.dumps(found.as_dict(), indent=1) if as_json else str(found))
    if found.verdict == "violated":
        context.exit(1)


MOST_STEPS = 1_000_000
"""Largest number of steps of a Gaussian family; its epsilon takes time."""


def _gaussian(given: str) -> Mechanism:
    """Return the mechanism of `RATE,STEPS`, with a noise multiplier at which the search of its family starts."""
    from leakbench.auditing.one_run import family_start  # noqa: PLC0415
    from leakbench.privacy.mechanism import Mechanism  # noqa: PLC0415

    try:
        rate, steps = (read(text) for read, text in zip((float, int), given.split(","), strict=True))
    except ValueError:
        rate, steps = 0.0, 0
    if not (0 < rate <= 1 and 1 <= steps <= MOST_STEPS):
        raise InputError(
            f"gaussian: got {said(given)}, expected RATE,STEPS with a rate in (0, 1] and 1 to {MOST_STEPS} steps, as in 0.01,500"
        )
    return Mechanism(family_start(rate, int(steps)), rate, int(steps))


def _run_of(folder: Path, given: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of the run that an audit is for; raises InputError where it is of another defense or federation."""
    from leakbench.cell.budget import plan  # noqa: PLC0415
    from leakbench.core.recipe import describe  # noqa: PLC0415
    from leakbench.report.audited import check_audited  # noqa: PLC0415
    from leakbench.storage.store import read_manifest  # noqa: PLC0415

    if own["function"] is not None:
        raise InputError("into: got --callable as well; an audit of a function is of no run")
    manifest = read_manifest(folder)
    cell = plan(Request(**given), own["data_dir"])
    audited = {
        "defense": describe(cell.defense),
        "dataset": cell.names["dataset"],
        "federation": describe(cell.settings.federation),
    }
    check_audited(folder, manifest, audited)
    return manifest
