"""Errors of input are one line that no terminal obeys, whatever they quote."""

import pickle

import pytest

from leakbench.errors import BusyError, DamagedError, InputError


@pytest.mark.parametrize("between", ["\n", "\r\n", "\x0b", "\x1d", "\x85", "\u2028"])
def test_what_is_quoted_ends_no_line(between: str):
    for error in (InputError(f"a{between}b"), BusyError(f"a{between}b"), DamagedError(f"a{between}b", "mend")):
        assert len(str(error).splitlines()) == 1 and str(error).isprintable()


def test_a_terminal_is_told_nothing():
    assert str(InputError("column \x1b[2J: got \x07")) == "column \ufffd[2J: got \ufffd"


def test_words_stay_as_they_are():
    for text in ("row 1: a  b", "path 'ä ö/\u00a0': got 3", "x \u2264 3"):
        assert str(InputError(text)) == text


def test_an_error_of_a_worker_comes_back_as_it_was():
    assert str(pickle.loads(pickle.dumps(InputError("victims: got 0")))) == "victims: got 0"
