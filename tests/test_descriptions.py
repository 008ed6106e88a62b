"""Descriptions of the fields of parts, in `show` and in the schema of recipes."""

import dataclasses
import json
from typing import Annotated

import pytest
from click.testing import CliRunner
from pydantic import Field

from leakbench.attack import Attack
from leakbench.attack.recipe import SERVER
from leakbench.catalog import descriptions, purpose, schema
from leakbench.cli import commands
from leakbench.defense.noise import GaussianNoise
from leakbench.recipe import resolve


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


@pytest.mark.parametrize("name", SERVER.parts)
def test_every_field_of_a_server_is_explained(name):
    fields = {field.name for field in dataclasses.fields(SERVER.parts[name])}
    assert descriptions(SERVER.parts[name]).keys() == fields
    assert purpose(SERVER.parts[name]).endswith(".")


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
        ("rows", ["    # Follow the protocol.", "  threat: honest (C: knows how clients train)"]),
    ],
)
def test_show_says_what_a_server_does(name, lines):
    shown = CliRunner().invoke(commands, ["show", name]).stdout.splitlines()
    for line in lines:
        assert line in shown
    server = resolve("attacks", Attack, name)[1].server
    assert f"    # {purpose(type(server))}" in shown
