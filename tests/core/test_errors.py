"""Input errors are one line without terminal control characters, for any quoted text."""

import pickle

import pytest

from leakbench.core.errors import BusyError, DamagedError, InputError


@pytest.mark.parametrize("between", ["\n", "\r\n", "\x0b", "\x1d", "\x85", "\u2028"])
def test_quoted_text_does_not_break_the_line(between: str):
    for error in (InputError(f"a{between}b"), BusyError(f"a{between}b"), DamagedError(f"a{between}b", "mend")):
        assert len(str(error).splitlines()) == 1 and str(error).isprintable()


def test_terminal_control_characters_are_escaped():
    assert str(InputError("column \x1b[2J: got \x07")) == "column \ufffd[2J: got \ufffd"


def test_plain_words_are_unchanged():
    for text in ("row 1: a  b", "path 'ä ö/\u00a0': got 3", "x \u2264 3"):
        assert str(InputError(text)) == text


def test_an_error_of_a_worker_is_returned_unchanged():
    assert str(pickle.loads(pickle.dumps(InputError("victims: got 0")))) == "victims: got 0"
