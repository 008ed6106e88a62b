"""Ranks attributes of a record by public mean gradients: accuracy equals theory; some attributes cannot be ranked."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from small_table import FEATURES, dataset, layout, records
from torch import Tensor, nn

from leakbench.attack.rankings.attributes import Attributes
from leakbench.attack.rankings.groups import Groups, explained, group_means
from leakbench.core.answers import Ranking
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.data.attributes import attributes_of, commonest, values_of
from leakbench.data.dataset import Feature
from leakbench.data.find import load_dataset
from leakbench.federated.view import Public, View
from leakbench.measure.statistics import wilson
from leakbench.models import parameters
from leakbench.privacy.bounds import Seen, gaussian_robustness
from leakbench.report.columns import page_columns
from leakbench.scoring.scores import VictimTruth
from leakbench.scoring.scores_rankings import score_attributes
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.limits import violations
from leakbench.summary.rankings import attribute_bounds, attribute_fields, attribute_notes

pytestmark = pytest.mark.usefixtures("with_pages")

WORK, SEX = FEATURES[1], FEATURES[3]
WIDTH = 7


def view_of(public: Public, noise: float | None = None) -> View:
    """Return a view in which only the shapes of the update matter."""
    model = nn.Linear(WIDTH, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator(0, "weights")))
    network = Network(model, parameters(model))
    update = {n: p[None] for n, p in network.parameters.items()}
    return View("type-2", network, update, 1, (WIDTH,), 2, 0.1, public=public, noise=noise, columns=layout())


def gradients(view: View, public: Public) -> Tensor:
    y = nn.functional.one_hot(public.labels, 2).float()[:, None]
    return torch.cat([g.flatten(1) for g in view.respond(public.inputs[:, None], y).values()], 1).detach()


def seeing(view: View, flat: Tensor) -> View:
    sizes = [u[0].numel() for u in view.update.values()]
    pieces = zip(view.update.items(), flat.split(sizes, 1), strict=True)
    return replace(view, update={n: piece.reshape(-1, *u.shape[1:]) for (n, u), piece in pieces})


def two_records() -> Public:
    """Return records that differ only in the sex, with one label."""
    inputs = torch.tensor([[0.5, 1, 0, 0, 0.5, 1, 0], [0.5, 1, 0, 0, 0.5, 0, 1]])
    return Public(inputs, torch.tensor([1, 1]))


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_accuracy_for_two_values_equals_the_theory_of_the_noise(ratio: float) -> None:
    """The rate is Phi(d / (2 s)), within the binomial's range of 1 in 10,000."""
    public = two_records()
    g = gradients(view_of(public), public)
    std, own = float((g[0] - g[1]).norm()) / ratio, torch.arange(4000) % 2
    seen = g[own] + std * torch.randn(4000, g.shape[1], generator=generator(1, "noise"))
    scores = Attributes(("sex",))((seeing(view_of(public, std), seen),), ()).of("sex").scores
    low, high = binom.interval(0.9999, 4000, norm.cdf(ratio / 2))
    assert low <= int((scores.argmax(1) == own).sum()) <= high


def test_the_score_is_the_posterior_summed_over_the_label() -> None:
    """Slow reference: the Gaussian density at the mean of each label and value, weighted by its share."""
    inputs = records(40, 3)
    public = Public(inputs, torch.randint(2, (40,), generator=generator(0, "labels")))
    view = view_of(public, 0.7)
    g, values = gradients(view, public), values_of(inputs, WORK)
    y = torch.randn(5, g.shape[1], generator=generator(0, "seen"))
    density = torch.zeros(5, 3)
    for c in range(2):
        for a in range(3):
            group = (public.labels == c) & (values == a)
            distance = (y - g[group].mean(0)).square().sum(1)
            density[:, a] += group.float().mean() * torch.exp(-distance / (2 * 0.7**2))
    scores = Attributes(("work", "sex"))((seeing(view, y),), ()).of("work").scores
    torch.testing.assert_close(scores.softmax(1), density / density.sum(1, keepdim=True), rtol=1e-3, atol=1e-4)


def test_without_known_noise_the_score_is_the_best_cosine_over_labels() -> None:
    """The length of the observed update does not matter."""
    inputs = torch.cat([two_records().inputs] * 2)
    public = Public(inputs, torch.tensor([0, 0, 1, 1]))
    view = view_of(public)
    g = gradients(view, public)
    scores = Attributes(("sex",))((seeing(view, 1e3 * g),), ()).of("sex").scores
    cosine = nn.functional.cosine_similarity(g[:, None], g[None], dim=2).reshape(4, 2, 2).amax(1)
    torch.testing.assert_close(scores, cosine)
    assert scores.argmax(1).tolist() == [0, 1, 0, 1]


@given(looks=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_n_observations_equal_one_with_noise_over_root_n(looks: int, seed: int) -> None:
    public = two_records()
    view = view_of(public, 0.5)
    drawn = torch.randn(looks, 4, gradients(view, public).shape[1], generator=generator(seed, "looks"))
    many = Attributes(("sex",))(tuple(seeing(view, y) for y in drawn), ()).of("sex").scores
    once = replace(view, noise=0.5 / math.sqrt(looks))
    torch.testing.assert_close(
        many, Attributes(("sex",))((seeing(once, drawn.mean(0)),), ()).of("sex").scores, rtol=1e-3, atol=1e-3
    )


def test_an_update_of_pure_noise_gives_the_commonest_value() -> None:
    """If the noise is far larger than all gradients, only the public shares matter."""
    inputs = records(60, 4)
    public = Public(inputs, torch.zeros(60, dtype=torch.int64))
    view = view_of(public, 1e4)
    y = 1e4 * torch.randn(50, gradients(view, public).shape[1], generator=generator(0, "seen"))
    scores = Attributes(("work",))((seeing(view, y),), ()).of("work").scores
    shares = torch.bincount(values_of(inputs, WORK)) / 60
    torch.testing.assert_close(scores.softmax(1), shares.expand(50, 3), rtol=0, atol=0.01)


def test_a_value_without_a_public_record_is_never_chosen() -> None:
    """Records with an unknown category count for none of its values."""
    inputs = records(40, 5, unknown=0.5)
    inputs = inputs[values_of(inputs, WORK) != 1]
    public = Public(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    for noise in (None, 0.5):
        view = view_of(public, noise)
        scores = Attributes(("work",))((seeing(view, gradients(view, public)),), ()).of("work").scores
        assert (scores[:, 1] == -torch.inf).all()
        assert scores[:, [0, 2]].isfinite().all()
    nobody = Public(inputs[values_of(inputs, WORK) < 0], public.labels[:3])
    nobody = Public(nobody.inputs[:3], nobody.labels)
    scores = Attributes(("work",))((seeing(view_of(nobody), torch.ones(2, 16)),), ()).of("work").scores
    assert (scores == -torch.inf).all()


def test_updates_that_cannot_be_ranked_are_refused() -> None:
    public = two_records()
    view = view_of(public)
    with pytest.raises(InputError, match=r"the table has no category 'age' \(it has work, sex\)"):
        Attributes(("age",))((view,), ())
    with pytest.raises(InputError, match=r"no category 'sex' \(it has none\)"):
        Attributes(("sex",))((replace(view, columns=None),), ())
    with pytest.raises(InputError, match="ranked of one record, got 3 behind one update"):
        Attributes(("sex",))((replace(view, tap="type-1", batch=3),), ())
    with pytest.raises(InputError, match="got no public example, which 'attributes' needs"):
        Attributes(("sex",))((replace(view, public=None),), ())
    scores = Attributes(("sex",))((seeing(view, torch.full((2, 16), torch.nan)),), ()).of("sex").scores
    assert not scores.isfinite().any()


def test_group_means_do_not_depend_on_chunks() -> None:
    """The mean of each group; an empty group has the mean of all, a share of 0 and a score of -inf."""
    g, groups = torch.randn(7, 3, generator=generator(0, "g")), torch.tensor([0, 2, 0, 2, 2, 0, 0])
    found = group_means(g.split(3), groups, 3)
    expected = torch.stack([g[groups == 0].mean(0), g.mean(0), g[groups == 2].mean(0)])
    torch.testing.assert_close(found.means, expected)
    torch.testing.assert_close(found.shares, torch.tensor([4 / 7, 0.0, 3 / 7]))
    view = view_of(two_records())
    assert explained(view, g, Groups(found.means, found.shares))[:, 1].eq(-torch.inf).all()
    with pytest.raises(ValueError, match="gradients: got none"):
        group_means([], groups, 3)


def test_attributes_of_a_set_follow_its_recipe() -> None:
    """The attributes that its recipe names, else all categories of at most 20 values; pictures and numbers have none."""
    data = dataset()
    assert attributes_of(data) == (WORK, SEX)
    assert attributes_of(data, ("sex",)) == (SEX,)
    wide = Feature("land", 7, 28, tuple(map(str, range(21))))
    assert attributes_of(replace(data, features=(*FEATURES, wide))) == (WORK, SEX)
    assert attributes_of(replace(data, features=(*FEATURES, wide)), ("land",)) == (wide,)
    assert attributes_of(load_dataset("cancer", None)[2]) == attributes_of(load_dataset("digits", None)[2]) == ()
    with pytest.raises(InputError, match="sensitive: no category 'sexx' in the set 'small'"):
        attributes_of(data, ("sexx",))
    with pytest.raises(InputError, match="no category 'sex' in the set 'digits'; it has no categories"):
        attributes_of(load_dataset("digits", None)[2], ("sex",))


def test_a_recipe_that_names_no_category_of_its_set_is_refused(tmp_path: Path) -> None:
    plain = yaml.safe_load((Path(__file__).parents[2] / "datasets" / "cancer.yaml").read_text())
    wrong = tmp_path / "mine.yaml"
    wrong.write_text(yaml.safe_dump({**plain, "sensitive": ["sex"]}))
    with pytest.raises(InputError, match="sensitive: no category 'sex'"):
        load_dataset(str(wrong), None)


def test_values_and_the_commonest() -> None:
    inputs = records(50, 6, unknown=0.5)
    inputs[0, 1:4] = 0
    values = values_of(inputs, WORK)
    assert values[0] == -1
    assert all((v < 0) == (x[1:4].sum() == 0) and (v < 0 or x[1 + v] == 1) for v, x in zip(values, inputs, strict=True))
    data = replace(dataset(), train_inputs=inputs[:30], test_inputs=inputs[30:], victims=torch.arange(10))
    shares = []
    for some in (values[:10], values[30:]):
        known = some[some >= 0]
        shares.append(float(torch.bincount(known).max()) / len(known))
    assert commonest(data, WORK) == max(shares)
    blank = torch.zeros(5, WIDTH)
    assert math.isnan(commonest(replace(data, train_inputs=inputs * 0, test_inputs=blank), WORK))


def scored(members: int = 1) -> pd.DataFrame:
    """Return four victims: right, wrong, tied, with unknown work."""
    inputs = torch.zeros(4, members, WIDTH)
    inputs[0, 0, 1] = inputs[1, 0, 2] = inputs[2, 0, 3] = 1
    labels = torch.zeros(4, members, dtype=torch.int64)
    truth = VictimTruth(torch.arange(4), inputs, labels, labels, torch.arange(4))
    scores = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    rows = score_attributes({"attribute": Ranking(scores)} if members == 1 else {}, (WORK,), [0.6], truth)
    who = np.repeat(np.arange(4), members)
    return rows.assign(victim=who, batch=who, member=np.tile(np.arange(members), 4))


def test_rows_and_summary() -> None:
    """The three victims with a known value count as 1, 0 and 1/2 right."""
    rows = scored().assign(network=0)
    assert rows["attribute_work"].tolist() == pytest.approx([1.0, 0.0, 0.5, np.nan], nan_ok=True)
    assert rows["null_attribute_work"].tolist() == [0.6] * 4
    low, high = wilson(1.5, 3)
    expected = {"work": {"right": 0.5, "low": low, "high": high, "null": 0.6, "bound": None}}
    assert attribute_fields(rows) == expected
    assert attribute_notes("t", attribute_fields(rows)) == {}
    unknown = attribute_fields(rows.assign(attribute_work=np.nan))
    assert unknown is not None and unknown["work"]["right"] is None
    why = attribute_notes("t", unknown)
    assert why.keys() == {f"taps.t.attributes.work.{field}" for field in ("right", "low", "high")}
    assert set(why.values()) == {"no victim has a known value that a public record has"}
    assert attribute_fields(rows[["victim", "batch", "member"]]) == {}


def test_batches_have_no_attributes_and_a_note() -> None:
    rows = scored(2)
    assert rows["attribute_work"].isna().all()
    assert attribute_fields(rows) is None
    assert attribute_notes("t", None)["taps.t.attributes"].startswith("the update is of several records")


def test_the_bound_is_relative_to_the_best_constant_guess() -> None:
    """60 % by guessing, sigma 2: Phi(Phi^-1(.6) + 1 / 2); 40 of 40 right is a violation, 30 of 40 is not."""

    def held(right: list[float], sigma: float) -> tuple[float | None, list[str]]:
        rows = pd.DataFrame(
            {"attribute_work": right, "null_attribute_work": 0.6, "victim": range(40), "member": 0, "network": 0}
        )
        found = attribute_bounds(attribute_fields(rows), Seen(sigma, 1))
        assert found is not None
        return found["work"]["bound"], [v.measure for v in violations("t", Tap(attributes=found), rows)]

    bound, broken = held([1.0] * 40, 2.0)
    assert bound == pytest.approx(float(gaussian_robustness(0.6, 0.5)))
    assert broken == ["attribute work"]
    assert held([1.0] * 30 + [0.0] * 10, 2.0)[1] == []
    assert attribute_bounds(None, Seen(2.0, 1)) is None
    assert attribute_bounds({}, Seen(2.0, 1)) == {}
    nothing = {"work": {"right": 1.0, "low": 0.9, "high": 1.0, "null": 0.6, "bound": None}}
    assert attribute_bounds(nothing, None) == nothing
    assert violations("t", Tap(attributes={}), pd.DataFrame({"victim": [0]})) == []


def test_the_page_has_a_column_for_each() -> None:
    told = {"work": {"right": 0.5, "low": 0.4, "high": 0.6, "null": 0.3, "bound": 0.9}}
    summary = Summary.of({"taps": {"type-2": {"attributes": told}, "type-1": {"attributes": None}}})
    column = page_columns(summary)[-1]
    assert column.heading == "work ranked"
    assert column.text(summary.taps["type-2"]) == "0.50 [0.40, 0.60] (baseline 0.30, at most 0.90)"
    assert column.text(summary.taps["type-1"]) == "n/a"


ROW = (
    "{age}, Private, {weight}, Bachelors, 13, Never-married, Sales, Wife, {race}, {sex}, 0, 0, {hours}, Cuba, {income}"
)


def census(folder: Path, **changes: object) -> Path:
    """Write a synthetic census of 400 people in Adult's format, and its recipe."""
    rng = np.random.default_rng(0)
    people = [
        ROW.format(
            age=rng.integers(20, 70), weight=rng.integers(1000, 9000), hours=rng.integers(20, 60),
            race=rng.choice(["Black", "White"], p=[0.3, 0.7]), sex=rng.choice(["Female", "Male"]),
            income=rng.choice(["<=50K", ">50K"]),
        )
        for _ in range(400)
    ]  # fmt: skip
    (folder / "census").mkdir()
    files = {}
    for role, part_ in (("data", people[:300]), ("test", people[300:])):
        content = "\n".join(part_) + "\n"
        (folder / "census" / f"adult.{role}").write_text(content)
        files[role] = {"file": f"adult.{role}", "sha256": hashlib.sha256(content.encode()).hexdigest()}
    recipe = folder / "census.yaml"
    plain = {
        "title": "t", "cite": "c", "license": "l", "format": {"adult_csv": files},
        "federation": {"rounds": 0, "batch": 3, "examples_per_client": 30},
        "origin": {"layouts": ["census"], "marker": "adult.[dt]*", "megabytes": 1.0, "mirrors": []},
    }  # fmt: skip
    recipe.write_text(yaml.safe_dump({**plain, **changes}))
    return recipe


@pytest.mark.slow
def test_a_run_on_a_table_ranks_its_attributes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a defense nearly all are right, and no attribute is ranked behind a batch; under noise the bound holds."""
    dataset_recipe = census(tmp_path, sensitive=["sex", "race"])
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path))
    noise = tmp_path / "flat.yaml"
    noise.write_text(
        "title: t\ncite: c\nunit: example\n"
        "example: [{clip_whole: {norm: 4.0}}, {gaussian_noise: {multiplier: 0.5, to: each}}]\n"
    )
    options = f"run --dataset {dataset_recipe} --attack identification --train-rounds 0 --victims 60 --leak-batch 2"
    found = {}
    for name, defense, taps in (("bare", "none", "type-2,type-1"), ("noisy", str(noise), "type-2")):
        more = ["--taps", taps, "--candidates", "60", "--defense", defense, "--out", str(tmp_path / name)]
        code, out, err = called(monkeypatch, capsys, *options.split(), *more, "--json", "--quiet")
        assert code == 0, err
        found[name] = json.loads(out)
    sex, race = (found["bare"]["taps"]["type-2"]["attributes"][name] for name in ("sex", "race"))
    assert sex["low"] > 0.8
    assert sex["bound"] is None
    assert 0.5 <= sex["null"] < 0.6 < race["null"] < 0.8
    assert found["bare"]["taps"]["type-1"]["attributes"] is None
    assert "taps.type-1.attributes" in found["bare"]["notes"]
    assert found["bare"]["notes"]["taps.type-2.attributes.sex.bound"].startswith("none: ")
    rows = pd.read_parquet(tmp_path / "bare" / "rows.parquet")
    assert sex["right"] == pytest.approx(rows["attribute_sex"].mean())
    assert "sex ranked" in (tmp_path / "bare" / "report.html").read_text()
    sex = found["noisy"]["taps"]["type-2"]["attributes"]["sex"]
    assert sex["bound"] == pytest.approx(float(gaussian_robustness(sex["null"], 2.0)))
    assert sex["low"] < sex["bound"]
    assert found["noisy"]["violations"] == []
