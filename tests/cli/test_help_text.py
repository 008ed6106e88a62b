"""The help of every command and option can be read on its own, in plain English."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from plain import hard_phrases

from leakbench.cli import commands

OTHER_WORDS = r"\b(?:picture|pictures|rebuild|rebuilt|data sets?|looks?|told|stands?|lies?)\b"
"""Words that must be replaced with the field's standard word."""


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _walk(inner, (*path, name))


COMMANDS = dict(_walk(commands, ("leakbench",)))
OPTIONS = {
    (*path, option.opts[0]): option
    for path, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
}


def _plain(text: str) -> None:
    found = [*hard_phrases(text), *re.findall(OTHER_WORDS, text, re.IGNORECASE)]
    assert not found, f"{found} in {text!r}"


def test_the_walk_reaches_groups_and_their_commands() -> None:
    assert ("leakbench", "data", "fetch") in COMMANDS
    assert ("leakbench", "run", "--defense") in OPTIONS
    assert ("leakbench", "data", "list", "--data-dir") in OPTIONS


@pytest.mark.parametrize("path", OPTIONS, ids=" ".join)
def test_the_help_of_an_option_is_a_sentence(path: tuple[str, ...]) -> None:
    text = OPTIONS[path].help
    assert text, "no help"
    assert text[0].isupper(), text
    assert text.endswith("."), text
    assert "[default" not in text, "click prints the default: use show_default"
    _plain(text)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_a_command_begins_with_one_line(path: tuple[str, ...]) -> None:
    text = COMMANDS[path].help
    assert text, "no help"
    first, _, rest = text.partition("\n")
    assert first[0].isupper(), first
    assert first.endswith("."), first
    assert not rest or rest.startswith("\n"), "the first sentence must be a separate paragraph"
    _plain(text)
    _plain(COMMANDS[path].epilog or "")


@pytest.mark.parametrize("path", [p for p in COMMANDS if len(p) == 2], ids=" ".join)
def test_the_overview_shows_the_whole_first_line(path: tuple[str, ...]) -> None:
    first = (COMMANDS[path].help or "").partition("\n")[0]
    assert len(first) <= 90
    with click.Context(commands, info_name="leakbench", terminal_width=110, max_content_width=110) as context:
        assert first in commands.get_help(context)
