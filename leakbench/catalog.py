"""The catalog as a user sees it: lists, one recipe with its parts and where their code stands, and the JSON Schema of recipes."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from leakbench.attack import Attack
from leakbench.core.errors import InputError, check_file, nearest
from leakbench.core.recipe import catalog_folder, is_path, names, recipe_name, resolve
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.summary.threat import printed_threat, threat

__all__ = ["KINDS", "descriptions", "list_kind", "purpose", "schema", "show"]

KINDS: dict[str, type[Any]] = {"attacks": Attack, "defenses": Defense, "datasets": DatasetRecipe}


def purpose(part: type[Any]) -> str:
    """Return the first line of a part's docstring."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def descriptions(part: type[Any]) -> dict[str, str]:
    """Return the description of each field of a part that has one.

    Args:
        part: A dataclass whose fields are `Annotated[..., Field(description=...)]`.

    Returns:
        Sentences by the names of the fields, in their order.
    """
    hints = get_type_hints(part, include_extras=True)
    found = {}
    for field in dataclasses.fields(part):
        texts = [
            extra.description
            for extra in get_args(hints[field.name])
            if isinstance(extra, FieldInfo) and extra.description
        ]
        if texts:
            found[field.name] = texts[-1]
    return found


def list_kind(kind: str) -> list[dict[str, str]]:
    """Return [{name, title, cite}] of one folder of the catalog."""
    found = []
    for name in names(kind):
        recipe = resolve(kind, KINDS[kind], name)[1]
        found.append({"name": name, "title": recipe.title, "cite": recipe.cite})
    return found


def show(name: str) -> Iterator[str]:
    """Yield the lines that describe a recipe: its file, title, citation, note, and each part with file:line.

    For an attack, the lines also have comments on its server and the server's fields, and its threat model.
    """
    kind = _kind_of(name)
    _, recipe = resolve(kind, KINDS[kind], name)
    path = Path(name) if is_path(name) else catalog_folder(kind) / f"{name}.yaml"
    yield f"{path.stem} ({kind[:-1]}, {path})"
    if not isinstance(recipe, Attack):
        yield from _fields(recipe, "  ")
        return
    for field in dataclasses.fields(recipe):
        described = _server if field.name == "server" else _field
        yield from described(field.name, getattr(recipe, field.name), "  ")
    yield f"  threat: {printed_threat(threat(recipe))}"


def _server(name: str, server: Any, indent: str) -> Iterator[str]:
    part = type(server)
    head, *_ = _field(name, server, indent)
    yield head
    yield f"{indent}  # {purpose(part)}"
    described = descriptions(part)
    for field in dataclasses.fields(server):
        comment = f"  # {described[field.name]}" if field.name in described else ""
        yield f"{indent}  {field.name}: {getattr(server, field.name)}{comment}"


def _kind_of(name: str) -> str:
    if is_path(name):
        check_file("show", name)
        problems = []
        for kind, cls in KINDS.items():
            try:
                resolve(kind, cls, name)
            except InputError as error:
                problems.append((kind, str(error)))
                continue
            return kind
        # The kind whose fields the file has; several kinds share title, cite and note.
        keys = set(re.findall(r"^(\w+):", Path(name).read_text(encoding="utf-8", errors="replace"), re.MULTILINE))
        shared = {kind: len(keys & {field.name for field in dataclasses.fields(cls)}) for kind, cls in KINDS.items()}
        raise InputError(max(problems, key=lambda problem: shared[problem[0]])[1])
    for kind in KINDS:
        if name in names(kind):
            return kind
    known = [n for kind in KINDS for n in names(kind)]
    raise InputError(f"show: unknown name {name!r}{nearest(name, known, 'leakbench list')}")


def _fields(value: Any, indent: str) -> Iterator[str]:
    for field in dataclasses.fields(value):
        yield from _field(field.name, getattr(value, field.name), indent)


def _field(name: str, value: Any, indent: str) -> Iterator[str]:
    if value is None or value in ((), {}, ""):
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        yield f"{indent}{name}: {recipe_name(cls) or cls.__name__}  ({cls.__name__}, {_where(cls)})"
        yield from _fields(value, indent + "  ")
    elif isinstance(value, tuple) and any(dataclasses.is_dataclass(v) for v in value):
        yield f"{indent}{name}:"
        for item in value:
            yield from _field("-", item, indent + "  ")
    else:
        yield f"{indent}{name}: {' '.join(value.split()) if isinstance(value, str) else value}"


def _where(cls: type[Any]) -> str:
    path = Path(inspect.getsourcefile(cls) or "?")
    package = Path(__file__).parent.parent
    shown = path.relative_to(package) if path.is_relative_to(package) else path
    return f"{shown}:{inspect.getsourcelines(cls)[1]}"


def schema() -> dict[str, Any]:
    """Return one JSON Schema that checks any recipe; editors take it to complete and underline."""
    forms = [_inlined(TypeAdapter(cls).json_schema(schema_generator=_Inlining), {}) for cls in KINDS.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "leakbench recipe: an attack, a defense or a dataset",
        "anyOf": forms,
    }


class _Inlining(GenerateJsonSchema):
    """Writes a part's definitions where they are used: a reference holds only at the top of the schema that it was made for."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """Return the JSON Schema of one field or part."""
        inlined: JsonSchemaValue = _inlined(super().generate_inner(schema), {})
        return inlined


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    definitions = {**definitions, **node.get("$defs", {})}
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions:
        return _inlined(definitions[name], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items() if key != "$defs"}
