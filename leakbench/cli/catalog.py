"""The commands of the catalog: what there is, one recipe in full, the schema of recipes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from leakbench.core.errors import InputError

__all__ = ["list_", "schema", "show"]


@click.command("list")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(kind: str | None, as_json: bool) -> None:
    """List the catalog, or one KIND of it: attacks, defenses, datasets or models."""
    from leakbench.catalog import KINDS, list_kind  # noqa: PLC0415
    from leakbench.core.errors import nearest  # noqa: PLC0415
    from leakbench.models.overview import list_models  # noqa: PLC0415

    kinds = [*KINDS, "models"]
    if kind is not None and kind not in kinds:
        raise InputError(f"list: unknown kind {kind!r}{nearest(kind, kinds)}")
    chosen = {k: list_models() if k == "models" else list_kind(k) for k in kinds if kind in (None, k)}
    if as_json:
        click.echo(json.dumps(chosen[kind] if kind else chosen, indent=1, ensure_ascii=False))
        return
    if kind == "defenses":
        _print_defenses()
        return
    models = chosen.pop("models", None)
    for name, entries in chosen.items():
        click.echo(f"{name}:")
        for entry in entries:
            click.echo(f"  {entry['name']:<44}{entry['title']}\n  {'':<44}{entry['cite']}")
    if models is not None:
        _print_models(models)


def _print_models(entries: list[dict[str, Any]]) -> None:
    from leakbench.models.overview import CLASSES, SHAPE, SIGNS, TEXTS  # noqa: PLC0415

    shape = " x ".join(map(str, SHAPE))
    texts = f"texts of {TEXTS[0]} of {TEXTS[1]:,} tokens in {SIGNS}"
    click.echo(
        f"models: (parameters for inputs of {shape} in {CLASSES} classes, or {texts}; activation; normalisation)"
    )
    for entry in entries:
        if entry["parameters"] is None:
            known = "not installed: pip install 'leakbench[text]'"
        else:
            known = f"{entry['parameters']:<12,}{entry['activation']:<9}{entry['normalisation']}"
        click.echo(f"  {entry['name']:<44}{known}\n  {'':<44}{entry['title']}")


def _print_defenses() -> None:
    from leakbench.overview import overview  # noqa: PLC0415

    click.echo(
        "epsilon at delta 1e-5 in the federation of the data set mnist: claimed; valid, and without the draw, of the released"
    )
    click.echo(
        "models; valid at each leakage point; ?: not computed for this version of the recipe (`leakbench epsilon`)"
    )
    click.echo("leakage points: type-0 server-side update, type-1 client update, type-2 example gradient")
    heads = ("defense", "acts at", "unit", "claimed", "valid", "without", "type-0", "type-1", "type-2")
    widths = (42, 18, 9, 9, 9, 9, 9, 9, 7)
    click.echo("".join(f"{head:<{width}}" for head, width in zip(heads, widths, strict=True)))
    for name, recipe, row in overview():
        known = ("?",) * 8 if row is None else dataclasses.astuple(row)[1:9]
        click.echo("".join(f"{text:<{width}}" for text, width in zip((name, *known), widths, strict=True)))
        click.echo(f"  {recipe.title} | {recipe.cite}")
        if row is not None and row.reason:
            click.echo(f"  none: {row.reason}")


@click.command()
@click.argument("name")
def show(name: str) -> None:
    """Show the recipe NAME: title, citation, note, and its parts.

    Each part is printed with the file and line of its code.
    """
    from leakbench.core.errors import nearest  # noqa: PLC0415
    from leakbench.core.recipe import is_path, names  # noqa: PLC0415

    # Before PyTorch is imported.
    known = [known for kind in ("attacks", "defenses", "datasets") for known in names(kind)]
    if not is_path(name) and name not in known:
        raise InputError(f"show: unknown name {name!r}{nearest(name, known, 'leakbench list')}")
    from leakbench.catalog import show as lines  # noqa: PLC0415

    for line in lines(name):
        click.echo(line)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="File to write instead of stdout.")
def schema(out: Path | None) -> None:
    """Print the JSON Schema of recipes, for completion and checks in an editor."""
    from leakbench.catalog import schema as build  # noqa: PLC0415
    from leakbench.storage.atomic import write_text  # noqa: PLC0415
    from leakbench.storage.manifest_file import check_spared  # noqa: PLC0415

    text = json.dumps(build(), indent=1) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        check_spared("out", out)
        write_text(out, text)
