"""YAML recipes to frozen dataclasses, strictly: a mistyped field is refused in one line with file, field and nearest name.

A slot is written as a part's name (`space: pixels`) or a part's name with its fields (`start: {patterned: {tile: 2}}`).
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from leakbench.core.behaviour import FIRST, behaviour_of, identity_name, part_name
from leakbench.core.errors import InputError, check_file, nearest
from leakbench.core.hashes import content_hash
from leakbench.core.untrusted import MOST_BYTES, bounded_text, parse_yaml

__all__ = [
    "FOLDER",
    "Slot",
    "acting",
    "catalog_folder",
    "check_name",
    "construct",
    "content_of",
    "describe",
    "is_path",
    "load",
    "names",
    "nested",
    "own_recipes",
    "read_yaml",
    "recipe_name",
    "resolve",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Slot:
    """Let a field of a recipe be written as the name of a part, alone or with the part's fields.

    The parts are those of leakbench whose class is declared as `@part("SLOT.NAME")`, and a user's own from the entry-point
    group `leakbench.parts`, which are called `SLOT.NAME` there.

    Args:
        name: The slot's name, as `transform`.
        within: Modules with the parts, or packages of such modules.
        without: Parts that this field does not take.
    """

    name: str
    within: tuple[str, ...]
    without: tuple[str, ...] = ()

    @property
    def parts(self) -> Mapping[str, type[Any]]:
        """{name: class} of leakbench's own parts."""
        return {name: cls for name, cls in _parts(self.name, self.within).items() if name not in self.without}

    def __call__(self, value: Any) -> Any:
        """Return the part of a field's value; raises PydanticCustomError for another value."""
        if dataclasses.is_dataclass(value):
            return value
        if isinstance(value, str):
            value = {value: {}}
        if not isinstance(value, Mapping) or len(value) != 1:
            raise PydanticCustomError(
                "slot", "{text}", {"text": f"got {value!r}, expected one part{nearest('', list(self.parts))}"}
            )
        [(key, fields)] = value.items()
        own = _own_parts(self.name)
        if key not in own and key not in self.parts:
            known = [*self.parts, *own]
            raise PydanticCustomError("slot", "{text}", {"text": f"unknown part {key!r}{nearest(str(key), known)}"})
        try:
            part = _loaded(own[key]) if key in own else self.parts[key]
            return construct(part, {} if fields is None else fields)
        except InputError as error:
            raise PydanticCustomError("slot", "{text}", {"text": f"{key}: {error}"}) from None

    def forms(self) -> list[dict[str, Any]]:
        """Return the JSON Schemas of the field's values: each of leakbench's own parts, with its fields or only its name."""
        found: list[dict[str, Any]] = []
        for key, cls in self.parts.items():
            schema = TypeAdapter(cls).json_schema()
            form = {"type": "object", "properties": {key: schema}, "required": [key], "additionalProperties": False}
            found += [form, *([] if schema.get("required") else [{"const": key}])]
        return found

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": self.forms()}


@lru_cache
def _parts(slot: str, within: tuple[str, ...]) -> Mapping[str, type[Any]]:
    """Return {name: class} of the parts of a slot that these modules declare; raises TypeError where two have one name."""
    found: dict[str, type[Any]] = {}
    for place in within:
        module = importlib.import_module(place)
        inside = [f"{place}.{each.name}" for each in pkgutil.iter_modules(getattr(module, "__path__", ()))]
        for each in (module, *map(importlib.import_module, inside)):
            declared = (
                value for value in vars(each).values() if isinstance(value, type) and value.__module__ == each.__name__
            )
            for cls in declared:
                kind, _, name = (part_name(cls) or "").rpartition(".")
                if kind != slot:
                    continue
                if name in found:
                    raise TypeError(
                        f"{slot}.{name}: both {found[name].__qualname__} and {cls.__qualname__} have this name"
                    )
                found[name] = cls
    return found


@lru_cache
def _own_parts(slot: str) -> Mapping[str, EntryPoint]:
    """Return {name: entry point} of the parts of other packages; a part is imported only when a recipe names it."""
    points = entry_points(group="leakbench.parts")
    return {p.name.split(".", 1)[1]: p for p in points if p.name.startswith(slot + ".")}


def _loaded(point: EntryPoint) -> type[Any]:
    """Return the class of an entry point; raises InputError where it cannot be imported or is not a dataclass."""
    package = f" of the package {point.dist.name}" if point.dist else ""
    said = f"part {point.name!r}{package}"
    try:
        cls = point.load()
    except Exception as error:
        raise InputError(
            f"{said} cannot be imported ({type(error).__name__}: {error}); install the package again or uninstall it"
        ) from None
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise InputError(f"{said}: got {point.value}, expected a frozen dataclass")
    return cls


def recipe_name(cls: type[Any]) -> str | None:
    """Return the name of a part's class in recipes, also of a user's own part; None for a class without a name."""
    slot, _, name = (part_name(cls) or "").rpartition(".")
    if slot:
        return name
    value = f"{cls.__module__}:{cls.__qualname__}"
    return next((p.name.split(".", 1)[1] for p in entry_points(group="leakbench.parts") if p.value == value), None)


def construct(cls: type[T], fields: Any) -> T:
    """Build a part or a recipe from a mapping of its fields; raise InputError with the field and the accepted values."""
    if not isinstance(fields, Mapping):
        raise InputError(f"got {fields!r}, expected a mapping of fields")
    known = [f.name for f in dataclasses.fields(cast(Any, cls))]
    for key in fields:
        if key not in known:
            raise InputError(f"unknown field {key!r}{nearest(str(key), known)}")
    try:
        return cls(**_tuples(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        if first["type"] in ("missing", "missing_argument"):
            raise InputError(f"missing field {where!r}") from None
        message = first["msg"][0].lower() + first["msg"][1:]
        value = list(first["input"]) if isinstance(first["input"], tuple) else first["input"]
        got = "" if first["type"] == "slot" else f", got {value!r}"
        raise InputError(f"{where}: {message}{got}" if where else f"{message}{got}") from None


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def read_yaml(path: Path) -> Any:
    """Return the data of a YAML file; raises InputError, with the file, for one that cannot be read or is not YAML."""
    try:
        return parse_yaml(bounded_text(path, MOST_BYTES))
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {_mistake(error)}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _mistake(error: Exception) -> str:
    """Return an error of YAML in one line: what is wrong, where, and where the part began that it is in."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None or error.problem_mark is None:
        return " ".join(str(error).split())
    # The parser's own text quotes a line and points below it, which one line of a message cannot show.
    problem = " ".join(error.problem.split()).replace("'<stream end>'", "the end of the file")
    text = f"{problem} in {_place(error.problem_mark)}"
    if not error.context or error.context_mark is None:
        return text
    part = error.context.replace("a flow sequence", "a list in [ ]").replace("a flow mapping", "a mapping in { }")
    return f"{text}, {part} that begins in {_place(error.context_mark)}"


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def load(cls: type[T], path: Path) -> T:
    """Read one recipe file into `cls` (which must have `title` and `cite`); every error is one line that starts with the file."""
    if not re.fullmatch("[a-z][a-z0-9_]*", path.stem):
        raise InputError(
            f"{path}: got the file name {path.stem!r}, expected small letters, digits and _, since it is the name"
        )
    fields = read_yaml(path)
    try:
        return construct(cls, fields)
    except (InputError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None


def catalog_folder(kind: str) -> Path:
    """Return the folder of `attacks`, `defenses` or `datasets`: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "catalog" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise InputError(f"catalog: no folder {kind!r} next to {package}; reinstall leakbench")


def names(kind: str) -> list[str]:
    """Return the names in a folder of the catalog, sorted: the file name is the name."""
    return sorted(p.stem for p in catalog_folder(kind).glob("*.yaml"))


def is_path(name: str) -> bool:
    """Return whether the name of a recipe or of a table is the path of a user's own file."""
    return name.endswith((".yaml", ".yml"))


DATASETS = "datasets"

FOLDER = "folder:"
"""Start of the name of a data set that is a folder of the user's own pictures, as `folder:path/to/pictures`."""


def own_recipes(given: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, str]:
    """Return {field: name} of the recipes in fields of a cell that are a user's own files, and of folders of pictures.

    Args:
        given: Fields of a request.
        place: Returns the new path of a path; a file with the fields says which folder its paths begin in.
    """
    named = {slot: given.get(slot) for slot in ("defense", "attack", "dataset")}
    own = {slot: place(name) for slot, name in named.items() if isinstance(name, str) and is_path(name)}
    if isinstance(folder := named["dataset"], str) and folder.startswith(FOLDER):
        own["dataset"] = FOLDER + place(folder.removeprefix(FOLDER))
    return own


def resolve(kind: str, cls: type[T], name: str) -> tuple[str, T]:
    """Return (name, recipe) for a catalog name, a path to a user's own `.yaml` file, or a data set `folder:PATH`."""
    check_name(kind, name)
    if kind == DATASETS and name.startswith(FOLDER):
        return cast(tuple[str, T], cast(Any, cls).of_folder(name.removeprefix(FOLDER)))
    if is_path(name):
        return Path(name).stem, load(cls, Path(name))
    return name, load(cls, catalog_folder(kind) / f"{name}.yaml")


def check_name(kind: str, name: str, option: str | None = None) -> None:
    """Raise InputError for a name that is not in the catalog, or a file that does not exist; torch is not imported.

    Args:
        kind: Folder of the catalog, as `defenses`.
        name: What was given.
        option: The option that was given, if it is not called as one recipe of the kind.
    """
    option = option or kind[:-1]
    if kind == DATASETS and name.startswith(FOLDER):
        _check_folder(option, name.removeprefix(FOLDER))
        return
    if is_path(name):
        check_file(option, name)
        return
    known = names(kind)
    if name not in known:
        here = next((f for f in (Path(kind) / f"{name}.yaml", Path(f"{name}.yaml")) if _is_file(f)), None)
        if here is not None:
            raise InputError(
                f"{option}: {name!r} is not in the catalog at {catalog_folder(kind)}; give the path ./{here.as_posix()}, or "
                "install the checkout by pip install -e ."
            )
        near = nearest(name, known, f"leakbench list {kind}")
        raise InputError(
            f"{option}: unknown name {name!r}{near} (or a path that ends in .yaml{', or folder:PATH' if kind == DATASETS else ''})"
        )


def _check_folder(option: str, path: str) -> None:
    """Raise InputError, with the option, for the path in `folder:PATH` that is not a folder."""
    if not path:
        raise InputError(f"{option}: got {FOLDER!r} without a path, expected {FOLDER}PATH, as {FOLDER}pictures")
    place = Path(path).expanduser()
    if place.is_file():
        raise InputError(f"{option}: {path!r} is a file, expected a folder; unpack it, or give the folder that has it")
    if not place.is_dir():
        raise InputError(f"{option}: no folder {path!r}; give the folder of the classes' folders")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # A name too long for a file, or with a zero byte in it.
        return False


PROSE = ("title", "cite", "note", "printed", "printed_by", "page")
"""Fields of a recipe that change no result and no identity: texts, and a paper's printed numbers."""

LATER: Mapping[str, tuple[Any, ...]] = {"inputs": ([], ()), "cohort_groups": (1,)}
"""{field of a recipe that came after results were published: its values without effect}: with them it keeps its identity."""


def describe(value: Any) -> Any:
    """Return a part or recipe as plain data for hashes and manifests: its name, its fields, its version if above 1.

    The version is that of its behaviour, see `leakbench.core.behaviour`.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        version = behaviour_of(type(value))
        return {"part": identity_name(type(value)), **fields, **({"behaviour": version} if version > FIRST else {})}
    if isinstance(value, tuple | list):
        return [describe(v) for v in value]
    if isinstance(value, Mapping):
        return {k: describe(v) for k, v in value.items()}
    return value


def content_of(recipe: Mapping[str, Any]) -> str:
    """Return the sha256 of a recipe's description without titles, citations, notes and printed numbers.

    Args:
        recipe: A recipe as plain data, as in the result of `describe` and in a manifest.
    """
    return content_hash(acting(recipe))


def acting(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a described recipe without the fields that change no result, and without `LATER` ones that have no effect."""
    return {n: value for n, value in recipe.items() if n not in PROSE and value not in LATER.get(n, ())}


def nested(cls: type[Any]) -> BeforeValidator:
    """Return the annotation that builds `cls` from a mapping; an error in a nested field has the field's name."""

    def build(value: Any) -> Any:
        if not isinstance(value, Mapping):
            if value is None or isinstance(value, cls):
                return value
            known = ", ".join(field.name for field in dataclasses.fields(cls))
            text = f"got {value!r}, expected a mapping of its fields ({known})"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        try:
            return construct(cls, value)
        except InputError as error:
            raise PydanticCustomError("slot", "{text}", {"text": str(error)}) from None

    return BeforeValidator(build)
