"""What `show` says of a server: what it does, what each of its fields means, and the threat that follows."""

import dataclasses

import pytest
from click.testing import CliRunner

from leakbench.attack import Attack
from leakbench.attack.recipe import SERVER
from leakbench.cli import commands
from leakbench.meanings import meanings, purpose
from leakbench.recipe import resolve


@dataclasses.dataclass
class Said:
    """Do this, of a: kind.

    More words. one: the first, as in two: not a label. two, three: both
    of them (see there). four: the last.

    five: of its own paragraph; one: said before.
    """

    one: int = 1
    two: int = 2
    three: int = 3
    four: int = 4
    five: int = 5
    six: int = 6


@dataclasses.dataclass
class Bare:
    """Nothing to choose."""


def test_a_meaning_ends_where_the_next_begins_or_the_paragraph_ends():
    assert purpose(Said) == "Do this, of a: kind."
    assert meanings(Said) == {
        "one": "the first, as in two: not a label",
        "two": "both of them (see there)",
        "three": "both of them (see there)",
        "four": "the last",
        "five": "of its own paragraph",
    }
    assert meanings(Bare) == {}


@pytest.mark.parametrize("name", SERVER.parts)
def test_every_field_of_a_server_is_explained(name):
    fields = {field.name for field in dataclasses.fields(SERVER.parts[name])}
    assert meanings(SERVER.parts[name]).keys() == fields
    assert purpose(SERVER.parts[name]).endswith(".")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "loki",
            [
                "    bins: 256  # k, the number of bins of one client",
                "    gain: 1.0  # size of the return path",
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
