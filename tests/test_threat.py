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
        ("rows", "trap", "F"),
        ("rows", "quantile_rows", "G"),
        ("rows", "loki", "G"),
    ],
)
def test_the_letter_follows_from_the_parts(method, server, expected):
    assert letter(construct(Attack, {"title": "t", "cite": "c", "method": method, "server": server})) == expected
    assert expected in MEANS


def test_who_is_told_of_a_noise_reads_it_with_public_data():
    recipe = {"title": "t", "cite": "c", "method": "rows", "server": "trap", "knows": "defense"}
    assert letter(construct(Attack, recipe)) == "G"
