"""Records the public interface: commands and options, Python functions, recipes, and the parts that each slot accepts.

`python -m tests.frozen_commands` adds new entries to `frozen_commands.json` next to this file. It refuses to write while a
recorded entry is missing or different: to change an entry on purpose, delete its line in the JSON first.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click
import yaml

import leakbench
from leakbench.api import Comparison, Epsilons
from leakbench.auditing.verdict import Audit
from leakbench.catalog import schema
from leakbench.cli import commands as leakbench_command
from leakbench.core.leakage_points import TAPS
from leakbench.core.recipe import catalog_folder, names
from leakbench.core.request import ENGINES, KNOWS, PROTOCOLS, READS, FederationFields, Fields, Request
from leakbench.external.training_probe import Probe
from leakbench.federated.optimizer import OPTIMIZERS
from leakbench.log import TRACKERS
from leakbench.models import MODELS
from leakbench.report.plots import FIGURES, KINDS
from leakbench.report.result import Pictures
from leakbench.reproduce.file import table_names
from leakbench.study.sweep import Swept

__all__ = ["COMMAND", "NULL", "RECORDED", "Tree", "current", "differences", "parts", "record"]

RECORDED = Path(__file__).with_suffix(".json")

COMMAND = "python -m tests.frozen_commands"

Tree: TypeAlias = Mapping[str, Any]
"""Nested mappings whose leaves are texts."""

CATALOG = ("attacks", "defenses", "datasets")

NULL = "null"
"""A leaf that is never a difference: whether a small run has a number can depend on the processor's rounding."""

PROSE = ("title", "cite", "note")
"""Fields of a recipe that do not change any result."""

RETURNED = (Audit, Comparison, Epsilons, Pictures, Probe, Swept)
"""Classes of the results of public functions, next to `leakbench.Result`."""

WORDS = {
    "engines": ENGINES,
    "figures": KINDS,
    "files of figures": FIGURES,
    "knows": KNOWS,
    "networks": MODELS,
    "optimizers": OPTIMIZERS,
    "protocols": PROTOCOLS,
    "reads": READS,
    "tables": table_names(),
    "trackers": TRACKERS,
    "taps": TAPS,
}
"""Names that options accept as text."""


def current() -> dict[str, Any]:
    """Return all recorded facts except the parts of recipes, which take seconds to collect."""
    return {
        "commands": dict(sorted(_commands(leakbench_command, ""))),
        "python": _python(),
        "recipes": {kind: {name: _slots(kind, name) for name in names(kind)} for kind in CATALOG},
        "words": {what: dict.fromkeys(sorted(accepted), "accepted") for what, accepted in WORDS.items()},
    }


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    yield (
        name or "leakbench",
        dict(each for parameter in command.params for each in _spellings(parameter.to_info_dict())),
    )
    for word, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {word}".strip())


def _spellings(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (spelling, facts) of each option and argument, without its help and its destination."""
    kind, flag = info["type"], info.get("is_flag", False) and not info["secondary_opts"]
    facts = ["flag" if flag else kind["name"]]
    facts += [f"{name} {kind[name]}" for name in ("choices", "exists", "min", "max") if kind.get(name)]
    facts += [name for name in ("required", "multiple", "count", "hidden") if info.get(name)]
    facts += [f"nargs {info['nargs']}"] if info["nargs"] != 1 else []
    facts += [f"variable {info['envvar']}"] if info["envvar"] else []
    facts += [f"default {info['default']}"] if info["default"] is not None and not flag else []
    for spelling in (*info["opts"], *info["secondary_opts"]):
        yield spelling if info["param_type_name"] == "option" else spelling.upper(), ", ".join(facts)


def _python() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"leakbench": dict.fromkeys(sorted(leakbench.__all__), "exported")}
    for name in leakbench.__all__:
        value = getattr(leakbench, name)
        if inspect.isclass(value):
            found[name] = dict(_members(value))
        elif callable(value):
            found[name] = dict(_signature(value))
    found |= {each.__name__: dict(_members(each)) for each in RETURNED}
    found["Request"] = {field.name: f"default {field.default!r}" for field in dataclasses.fields(Request)}
    found |= {each.__name__: {name: "" for name in sorted(each.__annotations__)} for each in (FederationFields, Fields)}
    return found


def _members(value: type[Any]) -> Iterator[tuple[str, str]]:
    for name, member in sorted(inspect.getmembers_static(value)):
        if not name.startswith("_"):
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            parameters = (
                ", ".join(" ".join(each).strip() for each in _signature(function))
                if inspect.isfunction(function)
                else ""
            )
            yield name, f"method ({parameters})" if inspect.isfunction(function) else "attribute"
    if dataclasses.is_dataclass(value):
        yield from ((field.name, "attribute") for field in dataclasses.fields(value) if not field.name.startswith("_"))


def _signature(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield (parameter, its kind and default)."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield f"**{parameter.name}", f"{parameter.annotation}"
        else:
            how = "by name" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
            default = "" if parameter.default is inspect.Parameter.empty else f"default {parameter.default!r}"
            yield parameter.name, f"{how} {default}".strip()


def _slots(kind: str, name: str) -> dict[str, str]:
    """Return {field: its value in the file} of a recipe, without prose."""
    read = yaml.safe_load((catalog_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8"))
    return {field: json.dumps(value, ensure_ascii=False) for field, value in read.items() if field not in PROSE}


def parts(found: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return {part: {field: kind and default}} of all parts in the schema of recipes, and {slot: names accepted}.

    Args:
        found: What `leakbench schema` prints.
    """
    collected: dict[str, dict[str, str]] = {}
    for kind, form in zip(CATALOG, found["anyOf"], strict=True):
        _collect(kind, form, collected)
    return dict(sorted(collected.items()))


def _collect(place: str, form: Mapping[str, Any], into: dict[str, dict[str, str]]) -> None:
    fields = form.get("properties", {})
    mine = {
        field: f"default {json.dumps(inner['default'])}" if "default" in inner else "required"
        for field, inner in fields.items()
    }
    if into.setdefault(place, mine) != mine:
        raise ValueError(f"{place}: two parts with this name have different fields; record them apart")
    for field, inner in fields.items():
        for part, of_part in _parts_of(inner):
            into.setdefault(f"{place}.{field}", {})[part] = "accepted"
            _collect(part, of_part, into)


def _parts_of(form: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (name, schema) of each part that a field accepts, alone, in a list or as one of several."""
    for inner in (form, *form.get("anyOf", ())):
        if inner is not form or "anyOf" not in form:
            properties = inner.get("properties", {})
            if len(properties) == 1 and inner.get("required") == list(properties):
                yield from properties.items()
        if inner is not form:
            yield from _parts_of(inner) if "anyOf" in inner or "items" in inner else ()
    if "items" in form and isinstance(form["items"], Mapping):
        yield from _parts_of(form["items"])


def differences(recorded: Tree, now: Tree, added: bool = True, place: str = "") -> Iterator[str]:
    """Yield the differences between a tree and the recorded one, one line each.

    Args:
        recorded: Tree in the JSON.
        now: Tree of this version.
        added: Whether new entries also count.
        place: Path to both.
    """
    for name in sorted({*recorded, *now}):
        where = f"{place} {name}".strip()
        if name not in now:
            yield f"{where}: removed or renamed"
        elif name not in recorded:
            if added:
                yield f"{where}: not recorded yet"
        elif isinstance(recorded[name], Mapping) and isinstance(now[name], Mapping):
            yield from differences(recorded[name], now[name], added, where)
        elif recorded[name] != now[name] and NULL not in (recorded[name], now[name]):
            yield f"{where}: {now[name]!r}, recorded {recorded[name]!r}"


def record(path: Path, now: Tree) -> int:
    """Write new entries into a JSON; refuse if a recorded entry is missing or different now. Returns the exit code."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if changed := list(differences(before, now, added=False)):
        print("nothing was written; to change these on purpose, delete their lines in the JSON", *changed, sep="\n")
        return 1
    path.write_text(json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"recorded: {path}", *differences(before, now), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(record(RECORDED, {**current(), "parts": parts(schema())}))
