"""The recipes of the catalog: the paper's federations, and mistakes in a user's own recipe."""

import pytest

from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder, construct, describe, load, names, resolve
from leakbench.data.partition import Iid, Shards
from leakbench.data.recipe import DatasetRecipe, Federation, Origin

NAMES = [
    *("adult", "cancer", "celeba", "cifar10", "cifar100", "digits", "faces", "femnist", "lfw", "mnist"),
    *("omniglot", "reviews", "tiny_imagenet"),
]


def test_the_catalog():
    assert names("datasets") == NAMES
    for name in NAMES:
        _, recipe = resolve("datasets", DatasetRecipe, name)
        assert recipe.title and recipe.cite and recipe.license
        assert len((catalog_folder("datasets") / f"{name}.yaml").read_text().splitlines()) <= 30
        assert describe(recipe) == describe(resolve("datasets", DatasetRecipe, name)[1])


@pytest.mark.parametrize(
    ("name", "batch", "rounds", "examples"),
    [
        ("mnist", 5, 100, 500),
        ("cifar10", 4, 100, 400),
        ("lfw", 3, 60, 300),
        ("adult", 3, 10, 300),
        ("cancer", 4, 3, 400),
    ],
)
def test_the_papers_federations(name, batch, rounds, examples):
    """N = 1000, 10 % a round, L = 100: one pass over a client's data a round."""
    federation = resolve("datasets", DatasetRecipe, name)[1].federation
    assert (federation.clients, federation.clients_per_round, federation.local_iterations) == (1000, 100, 100)
    assert (federation.batch, federation.rounds, federation.examples_per_client) == (batch, rounds, examples)
    assert federation.learning_rate == (0.2 if name == "cancer" else 0.05)
    assert federation.partition == (Shards() if name == "mnist" else Iid())
    assert federation.batch * federation.local_iterations == federation.examples_per_client


GOOD = """
title: mine
cite: me
license: mine
format: {embedded: {set: digits, sha256: '%s'}}
federation: {rounds: 1, batch: 2, examples_per_client: 4, clients: 3, clients_per_round: 2}
""" % ("0" * 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title: mine", "titel: mine"), "unknown field 'titel'; did you mean 'title'"),
        (("license: mine\n", ""), "missing field 'license'"),
        (("batch: 2", "bacth: 2"), "federation: unknown field 'bacth'; did you mean 'batch'"),
        (("batch: 2, ", ""), "federation: missing field 'batch'"),
        (("batch: 2", "batch: 5"), r"batch: got 5, expected at most examples_per_client \(4\)"),
        (("clients_per_round: 2", "clients_per_round: 4"), r"clients_per_round: got 4, expected at most clients \(3\)"),
        (("batch: 2", "batch: 0"), "batch: .*greater than or equal to 1, got 0"),
        (("batch: 2", "batch: '2'"), "batch: .*integer, got '2'"),
        (("clients: 3", "clients: 3, learning_rate: .inf"), "learning_rate: .*finite"),
        (("clients: 3", "clients: 3, partition: iit"), "partition: unknown part 'iit'; did you mean 'iid'"),
        (("clients: 3", "clients: 3, partition: {dirichlet: {alpha: -1.0}}"), "dirichlet: alpha: .*greater than 0"),
        (("embedded:", "embeded:"), "format: unknown part 'embeded'; did you mean 'embedded'"),
        (("set: digits", "set: letters"), "embedded: set: .*'faces', 'digits', 'cancer' or 'reviews', got 'letters'"),
        (("0" * 64, "beef"), "embedded: sha256: .*pattern"),
        (("cite: me", "cite: me\norigin: {layouts: [mine]}"), "origin: missing field 'marker'"),
        (("title: mine", "title: mine\ntitle: again"), "'title' appears twice"),
        (("federation: {", "federation: ["), "not valid YAML"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_field(tmp_path, change, message):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load(DatasetRecipe, path).federation.partition == Iid()
    path.write_text(GOOD.replace(*change))
    with pytest.raises(InputError, match=message) as caught:
        load(DatasetRecipe, path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_defaults_are_the_papers():
    assert construct(Federation, {"rounds": 3, "batch": 4, "examples_per_client": 400}).clients == 1000


def origin(**changed) -> Origin:
    fields = {"layouts": ["a/b/c", "d"], "marker": "*", "megabytes": 1.0, "mirrors": ["https://example.org/x/"]}
    return construct(Origin, {**fields, **changed})


def test_every_tail_of_a_layout_is_searched_longest_first():
    assert origin().candidates == ("a/b/c", "b/c", "c", "d", ".")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mirrors", ["file:///etc/"]),
        ("mirrors", ["https://example.org/no-slash"]),
        ("layouts", ["/absolute"]),
        ("layouts", ["../up"]),
        ("archive_sha256", "beef"),
        ("megabytes", 0.0),
    ],
)
def test_wrong_origins_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        origin(**{field: value})
