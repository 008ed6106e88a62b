"""Input errors are one line without terminal control characters, for any quoted text."""

import pickle

import pytest

from leakbench.core.errors import FEW, MANY, BusyError, DamagedError, InputError, nearest


@pytest.mark.parametrize("between", ["\n", "\r\n", "\x0b", "\x1d", "\x85", "\u2028"])
def test_quoted_text_does_not_break_the_line(between: str):
    for error in (InputError(f"a{between}b"), BusyError(f"a{between}b"), DamagedError(f"a{between}b", "mend")):
        assert len(str(error).splitlines()) == 1 and str(error).isprintable()


def test_terminal_control_characters_are_escaped():
    assert str(InputError("column \x1b[2J: got \x07")) == "column \ufffd[2J: got \ufffd"


def test_plain_words_are_unchanged():
    for text in ("row 1: a  b", "path 'ä ö/\u00a0': got 3", "x \u2264 3"):
        assert str(InputError(text)) == text


def test_many_names_are_listed_by_a_command_and_few_in_the_message():
    few, many = ["mnist", "faces"], [f"name_{n:02d}" for n in range(MANY + 1)]
    assert nearest("x", few, "leakbench list") == "; known: faces, mnist"
    assert nearest("x", many, "leakbench list") == "; `leakbench list` lists the names"
    assert nearest("name_07x", many, "leakbench list") == "; did you mean 'name_07'?"
    assert nearest("x", many).startswith("; known: name_00, ")


def test_a_part_of_a_few_names_suggests_them_all():
    assert nearest("table", ["b_table_10", "a_table_1", "labels"]) == "; did you mean 'a_table_1' or 'b_table_10'?"
    assert nearest("le_10", ["table_1", "table_10"]) == "; did you mean 'table_10'?"
    assert nearest("name", [f"name_{n}" for n in range(FEW + 1)]) == "; did you mean 'name_6'?"


def test_an_error_of_a_worker_is_returned_unchanged():
    assert str(pickle.loads(pickle.dumps(InputError("victims: got 0")))) == "victims: got 0"
