"""The threat model that stands over every table: derived from what an attack's parts need and from its server."""

import pytest

from leakbench.attack import Attack
from leakbench.recipe import construct
from leakbench.summary.threat import MEANS, letter


@pytest.mark.parametrize(
    ("method", "server", "expected"),
    [
        ("spear", "honest", "C"),
        ("lmmse", "honest", "D"),
        ("analytic_fc", "trap", "F"),
        ("analytic_fc", "imprint", "G"),
        ("rows", "trap", "G"),
        ("rows", "loki", "G"),
    ],
)
def test_the_letter_follows_from_the_parts(method, server, expected):
    assert letter(construct(Attack, {"title": "t", "cite": "c", "method": method, "server": server})) == expected
    assert expected in MEANS
