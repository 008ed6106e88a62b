"""The page of conspicuous models matches its rows, and the defense's thresholds follow from them."""

import sys
from types import ModuleType

import pandas as pd
import pytest

from leakbench.defense.refuse import RefuseConspicuous
from tests.published_files import STUDIES, published_file

VIT = "vit_tiny_patch8 adapters:r=64"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    sys.modules.pop("conspicuous_page", None)
    import conspicuous_page  # noqa: PLC0415

    return conspicuous_page


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.read_csv(published_file("conspicuous.csv"))


def test_the_page_is_rendered_from_its_rows(made: ModuleType, rows: pd.DataFrame) -> None:
    """Rendered again from the CSV the page is the same, and a changed row changes it."""
    kept = (published_file("conspicuous.md")).read_text()
    assert made.page_of(rows) == kept
    assert made.page_of(rows.assign(d_snr=0.5)) != kept


def test_thresholds_are_above_the_statistics_of_honest_networks(made: ModuleType, rows: pd.DataFrame) -> None:
    """At or above the largest 99 % quantile.

    For D-SNR and active rows within a tenth of it, so malicious models are still detected.
    """
    part = RefuseConspicuous()
    for name, largest in made.thresholds_from(rows).items():
        assert getattr(part, name) >= largest
        assert name == "rows_alike" or getattr(part, name) <= 1.1 * largest
    refused = made.refused_by(rows, part)
    honest = rows["server"] == "honest"
    assert refused[honest & (rows["batch"] == 1)]["any"].mean() == 0
    assert refused[honest].groupby([rows[key] for key in made.PLACE])["any"].mean().max() <= 0.03
    # Rows of equal direction are refused in each batch; SEER is accepted in some and refused in others.
    alike = rows["server"].str.startswith("imprint") | rows["server"].isin(["scale_mia", "peftleak"])
    assert refused[alike]["rows_alike"].all()
    seer = rows["server"] == "seer"
    assert not refused[seer][["rows_alike", "d_snr"]].any().any()
    assert 0 < refused[seer & (rows["batch"] > 1)]["lit_alone"].mean() < 1


def test_every_network_is_measured_with_its_malicious_versions(rows: pd.DataFrame) -> None:
    pairs = {key: set(found["server"]) for key, found in rows.groupby(["dataset", "model"])}
    assert {data for data, _ in pairs} == {"mnist", "cifar10", "lfw", "adult"}
    for (_, model), servers in pairs.items():
        of_cnn = {"imprint, sparse", "imprint, cumulative", "fishing"}
        of_others = {"mlp_1000": {"trap", "quantile_rows"}, "cnn_fc_1024": {"scale_mia"}, "mlp_256": {"seer"}}
        lies = {"cnn": of_cnn, VIT: {"peftleak"}, **of_others}.get(model, set())
        assert servers == {"honest", *lies}
    many = rows.groupby(["dataset", "model", "rounds", "batch", "server"]).size()
    assert set(rows["batch"]) == {1, 8, 32, 64}
    assert set(rows[rows["batch"] == 64]["model"]) == {"mlp_256"}
    honest = many[many.index.get_level_values("server") == "honest"]
    slow = honest.index.get_level_values("model") == VIT
    assert set(honest[~slow]) == {80}
    assert set(honest[slow]) == {20}
    assert set(many[many.index.get_level_values("server") != "honest"]) == {20}
    assert rows[rows["batch"] == 1][["d_snr", "lit_alone"]].isna().all().all()


def test_models_that_are_the_same_at_both_rounds_count_once(made: ModuleType, rows: pd.DataFrame) -> None:
    """SEER and Scale-MIA do not depend on the trained network; a changed row makes the model of another round another one."""
    lied = rows[rows["server"] != "honest"]
    repeated = lied.drop(made.distinct(lied).index)
    assert repeated.groupby("server").size().to_dict() == {"scale_mia": 60, "seer": 80}
    assert set(repeated["rounds"]) == {10}
    changed = lied.copy()
    changed.loc[repeated.index[0], "loss"] += 1
    assert len(made.distinct(changed)) in (len(made.distinct(lied)) + 60, len(made.distinct(lied)) + 80)


def test_accepted_models_are_not_counted(made: ModuleType) -> None:
    """By hand: above a threshold and large enough, above it and too small, parallel rows in any batch, and nothing to detect."""
    part = RefuseConspicuous(rows_alike=0.5, d_snr=1.0, lit_alone=None)
    rows = pd.DataFrame(
        {
            "batch": [8, 1, 1, 8],
            "rows_alike": [0.1, 0.1, 0.9, 0.1],
            "d_snr": [2.0, 2.0, float("nan"), float("nan")],
            "lit_alone": [0.9] * 4,
        }
    )
    found = made.refused_by(rows, part)
    assert found["any"].tolist() == [True, False, True, False]
    assert found["d_snr"].tolist() == [True, False, False, False]
    assert not found["lit_alone"].any()
