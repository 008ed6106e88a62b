"""Attacks on tables: softmax categories, standard columns, labels from an oracle, and pooled searches."""

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_table import FEATURES, dataset, layout, records
from torch import Tensor

from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.pooling import Least, Mean, Median
from leakbench.attack.slots.space_tables import SoftCategories, StandardColumns
from leakbench.attack.slots.start_tables import StandardUniform
from leakbench.attack.slots.stop import Iterations
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from leakbench.core.rng import generators
from leakbench.core.types import Network
from leakbench.federated.view import View
from leakbench.measure.metrics_tables import table_scores
from leakbench.models import build, one_hot, parameters

pytestmark = pytest.mark.usefixtures("with_pages")

COLUMNS = layout()


def small_view(victims: int = 2, members: int = 1, labels: bool = True) -> tuple[View, Tensor]:
    """Return the leak of TabLeak's network for records of the small table, and those records."""
    data = dataset(40)
    inputs = data.train_inputs[: victims * members].reshape(victims, members, 7)
    true = data.train_targets[: victims * members].reshape(victims, members)
    model = build("mlp_100", (7,), 2, torch.Generator().manual_seed(0))
    blank = View("type-1", Network(model, parameters(model)), {"none": torch.zeros(victims)}, members, (7,), 2, 0.1)
    update = {n: u.detach() for n, u in blank.respond(inputs, one_hot(true, 2)).items()}
    told = {"columns": layout(40), "labels": true if labels else None}
    return dataclasses.replace(blank, update=update, **told), inputs  # type: ignore[arg-type]


def picture_view() -> View:
    return dataclasses.replace(small_view()[0], columns=None, shape=(1, 1, 7))


def of_catalog(name: str, limit: int, **changes: object) -> GradientMatching:
    method = resolve("attacks", Attack, name)[1].method
    assert isinstance(method, GradientMatching)
    return dataclasses.replace(method, stop=Iterations(limit), **changes)  # type: ignore[arg-type]


def test_soft_categories_by_hand() -> None:
    """z = 0: logits are the public frequencies, numbers the middle; with plain logits all categories are equally likely."""
    z = torch.zeros(1, 1, 7, dtype=torch.float64)
    frequency = COLUMNS.mean[1:4]
    view = dataclasses.replace(small_view()[0], columns=COLUMNS)
    soft = SoftCategories(temperature=0.5)(view).decode(z)[0, 0]
    expected = (frequency / 0.5).exp() / (frequency / 0.5).exp().sum()
    torch.testing.assert_close(soft[1:4], expected)
    assert soft[[0, 4]].tolist() == [0.5, 0.5]
    plain = SoftCategories(standardized=False)(view).decode(z)[0, 0]
    torch.testing.assert_close(plain[1:4], torch.full((3,), 1 / 3, dtype=torch.float64))
    clamped = SoftCategories(numbers="clamp")(view).decode(z + 100)[0, 0]
    assert clamped[[0, 4]].tolist() == [1.0, 1.0]
    number = SoftCategories()(view).decode(z + math.log(3))[0, 0, 0]
    assert float(number) == pytest.approx(0.75)


@given(seed=st.integers(0, 10_000), standardized=st.booleans(), temperature=st.sampled_from([0.5, 1.0, 2.0]))
@settings(max_examples=40, deadline=None)
def test_soft_categories_are_distributions_and_encode_is_the_inverse(
    seed: int, standardized: bool, temperature: float
) -> None:
    """Every category sums to 1, every value is in [0, 1], and decode undoes encode."""
    view = dataclasses.replace(small_view(3, 2)[0], columns=COLUMNS)
    space = SoftCategories(temperature=temperature, standardized=standardized)(view)
    z = 4 * torch.randn(3, 2, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = space.decode(z)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    for f in COLUMNS.categories:
        torch.testing.assert_close(x[..., f.start : f.stop].sum(-1), torch.ones(3, 2, dtype=torch.float64))
    torch.testing.assert_close(space.decode(space.encode(x)), x, atol=1e-5, rtol=1e-4)
    assert space.energy(z, torch.zeros(3, 1, 2)).tolist() == [0, 0, 0]


def test_standard_columns_are_affine_and_answer_one_category() -> None:
    """x = mean + deviation * z and its inverse; an answer has one 1 per category, also if several columns are above 1."""
    view = dataclasses.replace(small_view()[0], columns=COLUMNS)
    space = StandardColumns()(view)
    z = torch.randn(2, 1, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(space.decode(z), COLUMNS.mean + COLUMNS.deviation * z)
    torch.testing.assert_close(space.encode(space.decode(z)), z)
    wild = torch.tensor([[[-2.0, 1.5, 3.0, 1.2, 9.0, -4.0, -3.0]]])
    assert space.answer(wild).tolist() == [[[0, 0, 1, 0, 1, 0, 1]]]


def test_a_start_is_within_one_deviation() -> None:
    """U(-1, 1) in deviations about the mean, different for each victim; soft: inside the simplex."""
    view = small_view(2, 3)[0]
    assert view.columns is not None
    rngs = generators(0, "attack", [(0,), (1,)])
    plain = StandardUniform()(view, rngs)
    z = (plain - view.columns.mean) / view.columns.deviation
    assert plain.shape == (2, 3, 7)
    assert float(z.abs().max()) <= 1 + 1e-6
    assert float(z.abs().max()) > 0.8
    assert not torch.equal(plain[0], plain[1])
    alone = StandardUniform()(
        dataclasses.replace(view, update={n: u[1:] for n, u in view.update.items()}),
        generators(0, "attack", [(1,)]),
    )
    assert torch.equal(alone[0], plain[1])
    soft = StandardUniform(soft=True)(view, generators(0, "attack", [(0,), (1,)]))
    torch.testing.assert_close(soft[..., 1:4].sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(soft[..., 0], z[..., 0].sigmoid().float())


def test_starts_are_on_both_sides_of_the_mean() -> None:
    """700 draws of U(-1, 1) in deviations cover nearly the whole interval, on both sides of 0."""
    view = small_view(2, 10)[0]
    assert view.columns is not None
    drawn = torch.cat([StandardUniform()(view, generators(seed, "attack", [(0,), (1,)])) for seed in range(5)])
    z = (drawn - view.columns.mean) / view.columns.deviation
    assert float(z.min()) < -0.95
    assert float(z.max()) > 0.95
    assert float(z.mean()) == pytest.approx(0.0, abs=0.1)


def test_parts_that_need_a_table_refuse_pictures() -> None:
    """Each part says in one line that it needs a table."""
    guesses, values = torch.rand(3, 2, 1, 7), torch.rand(3, 2)
    for use in (
        lambda: SoftCategories()(picture_view()),
        lambda: StandardColumns()(picture_view()),
        lambda: StandardUniform()(picture_view(), ()),
        lambda: Median()(guesses, values, picture_view()),
        lambda: Mean()(guesses, values, picture_view()),
    ):
        with pytest.raises(InputError, match="needs a table, got inputs of shape"):
            use()


def pooled(part: Median | Mean | Least, guesses: Tensor, values: Tensor) -> Tensor:
    return part(guesses, values, dataclasses.replace(small_view(guesses.shape[1])[0], columns=COLUMNS))


def test_pooling_takes_the_median_and_the_mean_of_each_column() -> None:
    """Three guesses for one record; of four, the lower of the two middle ones, as in the released code."""
    numbers = torch.tensor([0.1, 0.2, 0.6, 0.9])
    guesses = torch.tensor([0.0, 1, 0, 0, 0.5, 1, 0]).repeat(4, 1, 1, 1)
    guesses[:, 0, 0, 0] = numbers
    values = torch.tensor([[3.0], [1.0], [2.0], [4.0]])
    assert pooled(Median(), guesses[:3], values[:3])[0, 0, 0] == pytest.approx(0.2)
    assert pooled(Median(), guesses, values)[0, 0, 0] == pytest.approx(0.2)
    assert pooled(Mean(), guesses, values)[0, 0, 0] == pytest.approx(0.45)
    assert pooled(Least(), guesses, values)[0, 0, 0] == pytest.approx(0.2)


@given(seed=st.integers(0, 10_000), many=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_pooling_finds_the_order_of_every_guess(seed: int, many: int) -> None:
    """The same batch in many orders pools to itself, in the order of the best guess, also for 3-cycles."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.stack([records(3, seed + v) for v in range(2)])
    truth[..., 4] = torch.tensor([0.0, 0.5, 1.0])  # No two records of a batch are alike.
    orders = torch.stack([torch.stack([torch.randperm(3, generator=rng) for _ in range(2)]) for _ in range(many)])
    guesses = torch.stack([torch.stack([truth[v][order[v]] for v in range(2)]) for order in orders])
    values = torch.rand(many, 2, generator=rng)
    best = Least()(guesses, values, picture_view())
    for part in (Median(), Mean()):
        torch.testing.assert_close(pooled(part, guesses, values), best)


def test_a_search_that_diverged_is_not_pooled() -> None:
    """A guess whose distance is not finite does not move the median and is never the best."""
    guesses = torch.tensor([0.2, 1, 0, 0, 0.5, 1, 0]).repeat(3, 1, 1, 1)
    guesses[0] = 1.0 - guesses[0]
    values = torch.tensor([[math.nan], [2.0], [3.0]])
    for part in (Median(), Mean(), Least()):
        torch.testing.assert_close(pooled(part, guesses, values), guesses[1])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), [("tableak", {"restarts": 2}), ("inverting_gradients_table", {})])
def test_records_of_a_small_table_are_reconstructed(name: str, changes: dict[str, object]) -> None:
    """One record's gradient gives all features; a batch of two gives most, in any order."""
    for members, limit in ((1, 150), (2, 300)):
        view, truth = small_view(3, members)
        answer = of_catalog(name, limit, **changes)((view,), generators(0, "attack", [(v,) for v in range(3)]))
        found = table_scores(answer.inputs, truth, layout(40))
        assert float(found.feature_accuracy.mean()) > (0.99 if members == 1 else 0.8)
        for f in FEATURES:
            if f.values:
                assert answer.inputs[..., f.start : f.stop].sum(-1).unique().tolist() == [1.0]
        assert answer.steps.tolist() == [limit * int(str(changes.get("restarts", 1)))] * 3
        assert torch.equal(answer.iterates[-1], answer.inputs)
        assert view.labels is not None
        assert torch.equal(answer.labels, view.labels)


def test_victims_do_not_depend_on_the_others() -> None:
    """The second of three victims has the same reconstruction alone as among the three."""
    view, _ = small_view(3, 2)
    method = of_catalog("tableak", 20, restarts=3)
    together = method((view,), generators(0, "attack", [(v,) for v in range(3)]))
    assert view.labels is not None
    one = dataclasses.replace(view, update={n: u[1:2] for n, u in view.update.items()}, labels=view.labels[1:2])
    alone = method((one,), generators(0, "attack", [(1,)]))
    torch.testing.assert_close(alone.inputs[0], together.inputs[1], atol=1e-4, rtol=1e-4)


def test_wrong_fields_are_refused() -> None:
    """A temperature of zero, another bound, an unknown pooling."""
    plain = {"labels": "given", "start": "uniform", "distance": "cosine", "descent": "adam"}
    for part, fields, message in (
        (SoftCategories, {"temperature": 0.0}, "temperature"),
        (SoftCategories, {"numbers": "tanh"}, "numbers"),
        (GradientMatching, {**plain, "pooling": "mode"}, "unknown part 'mode'"),
    ):
        with pytest.raises(InputError, match=message):
            construct(part, fields)


def test_the_network_of_tableak() -> None:
    """Two hidden layers of 100 on 105 columns: 20,902 parameters, uniform within one over the root of the number of inputs."""
    model = build("mlp_100", (105,), 2, torch.Generator().manual_seed(0))
    weights = parameters(model)
    assert sum(w.numel() for w in weights.values()) == 105 * 100 + 100 + 100 * 100 + 100 + 100 * 2 + 2
    first = weights["1.weight"]
    assert float(first.abs().max()) <= 105**-0.5
    assert float(first.std()) == pytest.approx(105**-0.5 / 3**0.5, rel=0.02)
    assert float(model(torch.rand(3, 105)).detach().std()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tableak", "inverting_gradients_table"])
def test_from_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On cancer, table, summary and page have features and records, and labels are given; pictures are refused."""

    def run(dataset_name: str) -> None:
        line = (
            f"leakbench run --quiet --attack {name} --dataset {dataset_name} --iterations 3 --victims 2 --leak-batch 2"
        )
        rest = f"--candidates 9 --taps type-1 --train-rounds 0 --json --out {tmp_path / dataset_name}"
        monkeypatch.setattr("sys.argv", [*line.split(), *rest.split()])
        main()

    run("cancer")
    summary = json.loads(capsys.readouterr().out)
    tap = summary["taps"]["type-1"]
    rows = pd.read_parquet(tmp_path / "cancer" / "rows.parquet")
    assert tap["feature_accuracy"] == pytest.approx(rows["feature_accuracy"].mean())
    assert 0 < tap["random_feature_accuracy"] < tap["null_feature_accuracy"] < 1
    assert summary["knowledge"]["labels"] == "given"
    assert "features right" in (tmp_path / "cancer" / "report.html").read_text()
    with pytest.raises(SystemExit) as refused:
        run("digits")
    assert refused.value.code == 2
    assert "needs tables" in capsys.readouterr().err
