"""The command line. Tables and JSON go to stdout, progress and errors to stderr; bad input is one line and exit code 2."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from leakbench import __version__
from leakbench.errors import InputError

__all__ = ["main"]

INTERRUPTED = 130
BUG = 70
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def main() -> None:
    """Run the command line; the entry point of the `leakbench` script."""
    debug = "--debug" in sys.argv
    try:
        commands.main(args=[a for a in sys.argv[1:] if a != "--debug"], standalone_mode=False, prog_name="leakbench")
    except InputError as error:
        _fail(str(error), debug)
    except click.ClickException as error:
        _fail(error.format_message(), debug)
    except OSError as error:
        _fail(f"{error.filename2 or error.filename or 'file system'}: {error.strerror or error}", debug)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; what is finished is kept, the same command goes on from there", debug, INTERRUPTED)
    except Exception as error:  # whatever was not foreseen is one line too
        _fail(f"a bug in leakbench ({type(error).__name__}: {error}); --debug shows where", debug, BUG)


def _fail(message: str, debug: bool, code: int = 2) -> None:
    if debug:
        raise  # noqa: PLE0704 - only ever called while an exception is handled
    click.echo(f"leakbench: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _help_alone(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, invoke_without_command=True
)
@click.version_option(__version__)
@click.pass_context
def commands(context: click.Context) -> None:
    """Measure what gradients leak in federated learning, what a defense costs, and whether its epsilon is true."""
    _help_alone(context)


def _words(field: str, text: str) -> tuple[str, ...]:
    words = tuple(word for word in text.replace(" ", "").split(",") if word)
    if not words:
        raise InputError(f"{field}: got {text!r}, expected words with commas between them")
    return words


def _success(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"\s*rmse\s*<=\s*([0-9.eE+-]+|nan|inf)\s*", text)
    try:
        return float(found[1]) if found else _bad_success(text)
    except ValueError:
        return _bad_success(text)


def _bad_success(text: str) -> float:
    raise InputError(f"success: got {text!r}, expected a threshold like 'rmse<=0.1'")


NAME = "name in the catalog, or a .yaml of your own"
OF_DATASET = "[default: the dataset's]"


def _with(options: list[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_federation_options = _with(
    [
        click.option("--defense", default="none", show_default=True, help=NAME),
        click.option("--dataset", default="faces", show_default=True, help=NAME),
        click.option("--model", help="the network that is trained [default: cnn for pictures, mlp for tables]"),
        click.option("--victim-mode", help="train or eval: how clients run batch normalisation, which needs it said"),
        click.option(
            "--init",
            default="default",
            show_default=True,
            help="first weights: each network's own, torch, kaiming, xavier, uniform:<a>",
        ),
        click.option("--train-rounds", type=int, help=f"rounds of training, 0 trains nothing {OF_DATASET}"),
        click.option("--clients", type=int, help=f"how many there are, N {OF_DATASET}"),
        click.option("--clients-per-round", type=int, help=f"how many take part in a round, K_t {OF_DATASET}"),
        click.option("--local-iterations", type=int, help=f"steps of a client in a round, L {OF_DATASET}"),
        click.option("--batch", type=int, help=f"examples in a step, B {OF_DATASET}"),
        click.option("--dropout", type=float, help=f"probability that a sampled client fails {OF_DATASET}"),
        click.option("--epsilon", type=float, help="choose the noise that spends this valid epsilon (at delta 1e-5)"),
        click.option("--stop-at-epsilon", type=float, help="train only the rounds whose valid epsilon is at most this"),
        click.option("--stop-at-delta", type=float, help="the delta of --stop-at-epsilon [default: 1e-5]"),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option(
            "--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]"
        ),
    ]
)

PROTOCOL = "paper: the leak is from a sigmoid LeNet at random weights, L = 1; live: from the model that is trained"
_attack_options = _with(
    [
        click.option("--attack", default="cpl", show_default=True, help=NAME),
        click.option("--protocol", default="paper", show_default=True, help=PROTOCOL),
        click.option(
            "--leak-model", help="paper protocol: the network that leaks [default: lenet_cpl, or mlp_sigmoid]"
        ),
        click.option("--taps", default="type-2,type-1,type-0", show_default=True, help="leakage points; also: global"),
        click.option("--victims", type=int, default=10, show_default=True, help="victims at each leakage point"),
        click.option("--iterations", type=int, help="iterations of an attack that searches [default: the recipe's]"),
        click.option(
            "--leak-batch",
            type=click.IntRange(min=1),
            help="examples in one leaked batch at types 1 and 0 [default: B]",
        ),
        click.option("--leak-rounds", default="0", show_default=True, help="live: rounds before the leak, as 0,1,last"),
        click.option(
            "--join-rounds", is_flag=True, help="live: hand all leak rounds of the same examples to one attack"
        ),
        click.option(
            "--reads", default="gradient", show_default=True, help="updates as: gradient, weights (in float32)"
        ),
        click.option("--success", help="what counts as a reconstruction, like 'rmse<=0.1' [default: calibrated]"),
        click.option("--candidates", type=int, default=1000, show_default=True, help="k of identification among k"),
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ..."),
        click.option("--lpips-weights", type=FOLDER, help="folder with torchvision's squeezenet or alexnet weights"),
    ]
)


@commands.command()
@_federation_options
@_attack_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="the run's folder [default: runs/DATASET-DEFENSE-ATTACK-HASH]"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of the table")
@click.option("--quiet", is_flag=True, help="no progress")
def run(out: Path | None, as_json: bool, quiet: bool, data_dir: Path | None, **given: Any) -> None:
    """Train a federation with a defense, attack it at its leakage points, and print one table.

    The same command goes on where it was cut short. Without options: an undefended embedded cell, offline.
    """
    from leakbench.budget import prepare  # noqa: PLC0415
    from leakbench.cell import Request, identity  # noqa: PLC0415
    from leakbench.experiment import execute  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415
    from leakbench.report.page import write_report  # noqa: PLC0415
    from leakbench.store import open_run  # noqa: PLC0415

    given.update(taps=_words("taps", given["taps"]), leak_rounds=_words("leak-rounds", given["leak_rounds"]))
    given["success"] = _success(given["success"])
    reporter = Reporter(quiet=quiet)
    cell = prepare(Request(**given), data_dir, reporter)
    folder = out or Path("runs") / cell.name
    with open_run(folder, identity(cell, shlex.join(["leakbench", *sys.argv[1:]]))) as opened:
        summary = execute(cell, opened, reporter)
        page = write_report(folder)
    reporter.close()
    if as_json:
        click.echo(json.dumps(summary, indent=1))
        return
    _print_table(summary)
    click.echo(f"rows: {folder / 'rows.parquet'}   report: {page}")


def _print_table(summary: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415

    from leakbench.report.table import print_table  # noqa: PLC0415

    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(columns) if columns.isdecimal() else 120
    print_table(summary, Console(width=width, highlight=False))


@commands.command("list")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="print a list of objects")
def list_(kind: str | None, as_json: bool) -> None:
    """List the catalog, or one KIND of it: attacks, defenses, datasets."""
    from leakbench.catalog import KINDS, list_kind  # noqa: PLC0415
    from leakbench.errors import nearest  # noqa: PLC0415

    if kind is not None and kind not in KINDS:
        raise InputError(f"list: unknown kind {kind!r}{nearest(kind, list(KINDS))}")
    chosen = {k: list_kind(k) for k in KINDS if kind in (None, k)}
    if as_json:
        click.echo(json.dumps(chosen[kind] if kind else chosen, indent=1, ensure_ascii=False))
        return
    if kind == "defenses":
        _print_defenses()
        return
    for name, entries in chosen.items():
        click.echo(f"{name}:")
        for entry in entries:
            click.echo(f"  {entry['name']:<44}{entry['title']}\n  {'':<44}{entry['cite']}")


def _print_defenses() -> None:
    from leakbench.overview import overview  # noqa: PLC0415

    click.echo(
        "epsilon at delta 1e-5 in the federation of the data set mnist; of `valid`, who sees released models; type-0, -1,"
    )
    click.echo("-2, who reads one client there; ?, not worked out for this version of the recipe (`leakbench epsilon`)")
    heads = ("defense", "acts at", "unit", "claimed", "valid", "type-0", "type-1", "type-2")
    widths = (42, 18, 9, 9, 9, 9, 9, 7)
    click.echo("".join(f"{head:<{width}}" for head, width in zip(heads, widths, strict=True)))
    for name, recipe, row in overview():
        known = ("?",) * 7 if row is None else dataclasses.astuple(row)[1:8]
        click.echo("".join(f"{text:<{width}}" for text, width in zip((name, *known), widths, strict=True)))
        click.echo(f"  {recipe.title} | {recipe.cite}")
        if row is not None and row.reason:
            click.echo(f"  none: {row.reason}")


@commands.command()
@click.argument("name")
def show(name: str) -> None:
    """Show the recipe NAME: title, citation, note, and each part with the file and line of its code."""
    from leakbench.catalog import show as lines  # noqa: PLC0415

    for line in lines(name):
        click.echo(line)


@commands.command()
@click.option("--out", type=click.Path(path_type=Path), help="write there instead of to stdout")
def schema(out: Path | None) -> None:
    """Write the JSON Schema of recipes, with which editors complete and check them."""
    from leakbench.catalog import schema as build  # noqa: PLC0415
    from leakbench.store import write_atomically  # noqa: PLC0415

    text = json.dumps(build(), indent=1) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        write_atomically(out, lambda path: path.write_text(text, encoding="utf-8"))


@commands.command()
@_federation_options
@click.option("--delta", type=float, default=1e-5, show_default=True, help="of the valid epsilon")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def epsilon(delta: float, as_json: bool, data_dir: Path | None, **given: Any) -> None:
    """Print the claimed and the valid epsilon of a defense, for each observer, without training."""
    from leakbench.accounting import cell_epsilon  # noqa: PLC0415
    from leakbench.budget import prepare  # noqa: PLC0415
    from leakbench.cell import Request  # noqa: PLC0415
    from leakbench.experiment import hand_out  # noqa: PLC0415

    cell = prepare(Request(**given), data_dir, delta=delta)
    rounds = cell.settings.federation.rounds if cell.settings.stop_after is None else cell.settings.stop_after
    found = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None, delta).as_dict()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(
        f"{cell.names['defense']} on {cell.names['dataset']}, {rounds} rounds, unit: one {found['unit']}, delta {delta:g}"
    )
    click.echo(f"  claimed  {_number(found['claimed'])}  {found['claimed_formula']}")
    for caveat in found["caveats"]:
        click.echo(f"           but {caveat}")
    click.echo(f"  valid    {_number(found['valid'])}  {found['reason']}")
    for tap, at in found["by_tap"].items():
        click.echo(f"  {tap:<7}  {_number(at['valid'])}  {at['reason']}")


@commands.command()
@_federation_options
@click.option("--delta", type=float, default=1e-5, show_default=True, help="of every epsilon")
@click.option("--trials", type=int, help="with and without a canary each [default: 1000000 drawn or 1000 executed]")
@click.option("--callable", "function", help="audit your function package.module:name on one client's update instead")
@click.option("--sigma", type=float, help="of --callable: its noise multiplier, as stated")
@click.option("--clip", type=float, help="of --callable: the L2 bound of an update, as stated")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def audit(as_json: bool, **given: Any) -> None:
    """Audit a defense by its own code: is its noise what it says, and which epsilon is it at least?

    A function gets {parameter: float32 array} and returns such a dict; a second argument `seed` (int) or `rng` (numpy
    Generator) is the source of its noise. The current folder is importable.
    """
    from leakbench.auditing import audit as run_audit  # noqa: PLC0415

    own = {name: given.pop(name) for name in ("data_dir", "delta", "trials", "function", "sigma", "clip")}
    found = run_audit(given, **own)
    for line in [json.dumps(found.as_dict(), indent=1)] if as_json else found.lines():
        click.echo(line)


def _number(value: float | None) -> str:
    return "  none" if value is None else f"{value:6.3f}"


@commands.command()
@click.option("--scorer", help="your scorer package.module:name [default: leakbench's own]")
@click.option("--lpips-weights", type=FOLDER, help="folder with torchvision's squeezenet, alexnet or vgg16 weights")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def conformance(scorer: str | None, lpips_weights: Path | None, as_json: bool) -> None:
    """Hold a scorer of reconstructions against known answers; exit 1 where a case failed.

    A scorer gets (truth, answer), dicts of the numpy arrays inputs (V, B, C, H, W) and labels (V, B), and returns a dict
    of what it measures: rmse, psnr, ssim, lpips, success, label_accuracy, matched, asr, overall. The current folder is
    importable.
    """
    from leakbench.conformance.command import as_dict, lines  # noqa: PLC0415
    from leakbench.conformance.command import conformance as hold  # noqa: PLC0415

    results = hold(scorer, lpips_weights)
    for line in [json.dumps(as_dict(scorer, results), indent=1)] if as_json else lines(scorer, results):
        click.echo(line)
    if any(result.outcome == "failed" for result in results):
        sys.exit(1)


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Write report.html into the FOLDER of a finished run and print its table."""
    from leakbench.report.page import write_report  # noqa: PLC0415
    from leakbench.store import read_manifest  # noqa: PLC0415

    page = write_report(folder)
    _print_table(read_manifest(folder)["summary"])
    click.echo(f"report: {page}")


@commands.command()
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="print a list of objects")
def compare(one: Path, other: Path, as_json: bool) -> None:
    """Compare two finished runs on the same victims: ONE minus OTHER, with a paired bootstrap's interval."""
    from leakbench.compare import as_dicts, lines  # noqa: PLC0415
    from leakbench.compare import compare as differences  # noqa: PLC0415

    found = differences(one, other)
    for line in [json.dumps(as_dicts(found), indent=1)] if as_json else lines(found):
        click.echo(line)


@commands.group(invoke_without_command=True)
@click.pass_context
def data(context: click.Context) -> None:
    """Data sets: where they lie, fetching them, checking them."""
    _help_alone(context)


@data.command("list")
@click.option("--data-dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def data_list(data_dir: Path | None, as_json: bool) -> None:
    """List the data sets and where each was found."""
    from leakbench.data.commands import list_datasets  # noqa: PLC0415

    _print_rows(list_datasets(data_dir), as_json)


@data.command("fetch")
@click.argument("name")
@click.option("--data-dir", type=click.Path(path_type=Path))
def data_fetch(name: str, data_dir: Path | None) -> None:
    """Fetch the data set NAME from its official place, checked by sha256."""
    from leakbench.data.commands import fetch_dataset  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415

    reporter = Reporter()
    folder = fetch_dataset(name, data_dir, reporter)
    reporter.close()
    click.echo(f"{name}: {'embedded, nothing to fetch' if folder is None else folder}")


@data.command("verify")
@click.argument("name")
@click.option("--data-dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def data_verify(name: str, data_dir: Path | None, as_json: bool) -> None:
    """Check every file of the data set NAME against its sha256; exit 1 where one differs."""
    from leakbench.data.commands import verify_dataset  # noqa: PLC0415

    rows = verify_dataset(name, data_dir)
    _print_rows(rows, as_json)
    if not all(row["ok"] for row in rows):
        sys.exit(1)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for row in rows:
        click.echo("  ".join(str(value) for value in row.values()))
