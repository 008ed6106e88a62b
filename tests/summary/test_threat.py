"""The threat model above every table follows from the needs of an attack's parts and from its server."""

import pytest

from leakbench.attack import Attack
from leakbench.core.recipe import construct
from leakbench.summary.threat import MEANS, letter


@pytest.mark.parametrize(
    ("method", "server", "expected"),
    [
        ("spear", "honest", "C"),
        ("r_gap", "honest", "C"),
        ("cocktail_party", "honest", "C"),
        ("lmmse", "honest", "D"),
        ("analytic_fc", "trap", "F"),
        ("analytic_fc", "imprint", "G"),
        ("rows", "trap", "F"),
        ("rows", "quantile_rows", "G"),
        ("rows", "loki", "G"),
        ("adapter_rows", "peftleak", "G"),
        ("latent_rows", "scale_mia", "G"),
        ("projection", "seer", "G"),
    ],
)
def test_the_letter_of_the_threat_model_follows_from_the_parts(method, server, expected):
    assert letter(construct(Attack, {"title": "t", "cite": "c", "method": method, "server": server})) == expected
    assert expected in MEANS


@pytest.mark.parametrize(
    ("statistics", "expected"), [("given", "E"), ("inferred", "E"), ("running", "D"), ("proxy", "D")]
)
def test_the_statistics_of_the_victims_are_a_letter_of_their_own(statistics, expected):
    attack = construct(Attack, {"title": "t", "cite": "c", "method": "lmmse", "server": "honest"})
    assert letter(attack, statistics) == expected and expected in MEANS


def test_an_attacker_that_knows_a_noise_needs_public_data():
    recipe = {"title": "t", "cite": "c", "method": "rows", "server": "trap", "knows": "defense"}
    assert letter(construct(Attack, recipe)) == "G"
