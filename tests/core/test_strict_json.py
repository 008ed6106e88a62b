"""Strict JSON: no NaN, no repeated name, no control characters in text that will be shown."""

import json

import pytest

from leakbench.core.untrusted import strict_json


def test_standard_json_is_read_unchanged():
    data = {"a": [1, 2.5, None, True, "text\n"], "b": {"a": "ä"}}
    assert strict_json(json.dumps({**data, "a": data["a"][:4]})) == {**data, "a": data["a"][:4]}


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_nan_and_infinity_are_refused(text: str):
    with pytest.raises(ValueError, match="is not a number of JSON"):
        strict_json(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]'])
def test_a_repeated_name_is_refused_at_any_depth(text: str):
    with pytest.raises(ValueError, match="'a' appears twice"):
        strict_json(text)


def test_control_characters_are_replaced():
    assert strict_json('{"\\u001b[31m": ["\\u0007"]}') == {"\ufffd[31m": ["\ufffd"]}


def test_a_whole_number_beyond_the_range_of_floats_is_an_error() -> None:
    """It would raise an OverflowError where it is divided."""
    with pytest.raises(ValueError, match=r"^10000000000000000000\.\.\. has 401 digits, more than a float can hold$"):
        strict_json(f'{{"a": {10**400}}}')
    assert strict_json(f"[{10**300}, -7]") == [10**300, -7]
