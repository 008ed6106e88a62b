"""Descriptions of the fields of parts, in `show` and in the schema of recipes."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_type_hints

import pytest
from click.testing import CliRunner
from pydantic import Field

from leakbench.attack import Attack
from leakbench.catalog import KINDS, descriptions, purpose, schema
from leakbench.cli import commands
from leakbench.core.behaviour import part_name
from leakbench.core.recipe import Slot, resolve
from leakbench.defense.noise import GaussianNoise
from leakbench.privacy.decay import DECAY


@dataclasses.dataclass
class Described:
    """Do this: first.

    More words.
    """

    one: Annotated[int, Field(description="The first, as in two: text.")] = 1
    two: Annotated[Annotated[int, Field(ge=0)], Field(description="The second.")] = 2
    three: Annotated[int, Field(ge=0)] = 3
    four: int = 4


def test_a_description_is_that_of_the_annotation():
    assert purpose(Described) == "Do this: first."
    assert descriptions(Described) == {"one": "The first, as in two: text.", "two": "The second."}


def test_the_schema_of_recipes_has_the_descriptions():
    texts = json.dumps(schema())
    assert descriptions(GaussianNoise)["multiplier"] in texts


def inner(hint: Any) -> Iterator[Any]:
    """Yield the slots and the dataclasses in the annotation of a field."""
    for each in get_args(hint):
        if isinstance(each, Slot) or (isinstance(each, type) and dataclasses.is_dataclass(each)):
            yield each
        else:
            yield from inner(each)


def parts_in_recipes() -> list[type[Any]]:
    """Return the recipes and all parts that their fields accept, and the parts of these."""
    waiting, names = [*KINDS.values(), *DECAY.parts.values()], {}
    while waiting:
        cls = waiting.pop()
        if cls not in names:
            names[cls] = part_name(cls)
            for hint in get_type_hints(cls, include_extras=True).values():
                for each in (hint, *inner(hint)):
                    waiting += each.parts.values() if isinstance(each, Slot) else [each] if part_name(each) else []
    return sorted(names, key=lambda cls: names[cls])


@pytest.mark.parametrize("part", parts_in_recipes(), ids=part_name)
def test_every_field_of_a_part_is_explained(part):
    hints = get_type_hints(part, include_extras=True)
    explained = descriptions(part)
    for field in dataclasses.fields(part):
        # A field that holds parts is explained by them.
        assert any(inner(hints[field.name])) or explained[field.name].endswith(".")
    assert purpose(part).endswith(".")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "loki",
            [
                "    bins: 256  # k, the number of bins of one client.",
                "    gain: 1.0  # Size of the return path.",
                "  threat: malicious architecture (G: changes the model, has public data)",
            ],
        ),
        ("trap", ["  threat: malicious parameters (F: changes the model)"]),
        ("rows", ["    # Follow the protocol.", "  threat: honest-but-curious (C: knows how clients train)"]),
    ],
)
def test_show_describes_a_server(name, lines):
    shown = CliRunner().invoke(commands, ["show", name]).stdout.splitlines()
    for line in lines:
        assert line in shown
    server = resolve("attacks", Attack, name)[1].server
    assert f"    # {purpose(type(server))}" in shown
