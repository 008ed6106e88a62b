"""The page of noise against its bounds matches its rows, and its measurements follow their description."""

import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from leakbench.attack.search.whitening import of_examples, one_over_f
from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.core.types import Network
from leakbench.experiment.leak_noise import leak_facts, noise_std
from leakbench.experiment.stage_train import fresh_network
from tests.published_files import STUDIES, published_file

TABLE = published_file("noise_bounds.csv")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(STUDIES))
    for name in ("noise_bounds", "noise_bounds_page", "noise_bounds_floors"):
        sys.modules.pop(name, None)
    import noise_bounds  # noqa: PLC0415
    import noise_bounds_floors  # noqa: PLC0415
    import noise_bounds_page  # noqa: PLC0415

    return noise_bounds, noise_bounds_floors, noise_bounds_page


def row(**changed: float | str) -> dict[str, float | str]:
    found = {
        "row": "a",
        "attack": "whitened",
        "std": 0.1,
        "limit": 100,
        "victims": 40,
        "public": 292,
        "floor_victims": 4,
    }
    found |= {"asr": 0.5, "asr_low": 0.4, "asr_high": 0.6, "asr_exact_low": 0.35, "asr_bound": 0.9, "null_asr": 0.1}
    found |= {"rmse": 0.2, "rms": 0.2, "rms_low": 0.19, "rms_high": 0.21, "null_rmse": 0.25}
    found |= {"floor_deviation": 0.1, "floor_one_over_f": 0.1, "floor_public": 0.1}
    return {**found, "prior_one_over_f": 0.25, "prior_public": 0.2, **changed}


def test_rows_within_their_bounds_are_not_reported_as_violations(scripts) -> None:
    said = list(scripts[2].judged(pd.DataFrame([row(), row(std=0.3)])))
    assert len(said) == 4
    assert all(line.endswith("in none of 2 rows.") for line in said)
    assert all(line.count("in none of 2 rows") == 2 for line in said[1:])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"asr": 0.95}, "above the reconstruction bound of `whitened` at 0.1 (0.95, bound 0.90)."),
        ({"asr": 1.0, "asr_exact_low": 0.91}, "bound of `whitened` at 0.1 (1.00, bound 0.90, significantly)."),
        ({"asr_bound": 1.0}, "1.00, which excludes nothing, at noise 0.1."),
        ({"floor_deviation": 0.205}, "below it, but not significantly, of `whitened` at 0.1."),
        ({"floor_one_over_f": 0.22}, "a 1 / f spectrum: significantly below it is the RMS of `whitened` at 0.1;"),
        (
            {"floor_public": 0.22},
            "the public covariance: significantly below it is the RMS of `whitened` at 0.1;",
        ),
    ],
)
def test_violations_are_reported(changed: dict[str, float], says: str, scripts) -> None:
    rows = pd.DataFrame([row(**changed), row(std=0.3)])
    assert [line for line in scripts[2].judged(rows) if says in line]
    assert says in scripts[2].page_of(rows)


def test_the_error_is_the_root_of_the_mean_square(scripts) -> None:
    """Squares 1 and 3: mean 2, standard error 1, t with one degree of freedom 12.71."""
    rms, low, high = scripts[0].error_of([1.0, 3**0.5])
    assert (rms**2, low, high**2) == pytest.approx((2.0, 0.0, 2 + 12.7062), rel=1e-4)
    many = np.full(50, 0.3)
    assert scripts[0].error_of(many) == pytest.approx((0.3, 0.3, 0.3))
    assert scripts[0].error_of([*many, math.nan]) == (math.inf,) * 3
    assert scripts[0].error_of([0.3])[2] == math.inf


def test_every_recipe_gives_the_noise_of_its_row(scripts) -> None:
    for std in scripts[0].STDS:
        recipe = STUDIES / "recipes" / f"clip_4_noise_{f'{std:g}'.replace('.', '_')}.yaml"
        cell = prepare(Request(dataset="digits", taps=("type-2",), victims=1, defense=str(recipe)), None)
        facts = leak_facts(cell, Network(*fresh_network(cell, trained=False)), 0)
        assert noise_std(facts, "type-2", 1, 1, 1, 0.1) == pytest.approx(std)
        assert [f.norm for f in facts["example"] if f.kind == "clip"] == [4.0]


@pytest.mark.parametrize("kind", ["one_over_f", "public"])
def test_the_root_equals_the_whitening(kind: str, scripts) -> None:
    like = torch.rand(20, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    white = one_over_f((3, 4, 4), like) if kind == "one_over_f" else of_examples(like, 1e-4)
    z = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(scripts[1].root_of(white) @ z.flatten(), white.apply(z).flatten())


def small() -> Cell:
    recipe = STUDIES / "recipes" / "clip_4_noise_0_01.yaml"
    given = {
        "dataset": "digits",
        "taps": ("type-2",),
        "victims": 3,
        "attack": "whitened_public",
        "defense": str(recipe),
    }
    return prepare(Request(**given), None)


def test_floors_of_a_small_set(scripts, tmp_path: Path) -> None:
    """They rise with the noise up to the prior's deviation, and the stored information gives them again."""
    found = scripts[1].floors(small(), tmp_path, 2, (0.001, 0.01, 10.0))
    for name in ("one_over_f", "public"):
        low, middle, high = found[f"floor_{name}"]
        assert 0 < low < middle < high == pytest.approx(found[f"prior_{name}"][0], rel=0.05)
    assert found["floor_victims"] == [2] * 3
    kept = sorted(tmp_path.glob("information-*/*.npy"))
    assert [path.name for path in kept] == ["0.npy", "1.npy"]
    assert scripts[1].floors(small(), tmp_path, 2, (0.001, 0.01, 10.0)) == found
    np.save(kept[0], 100 * np.load(kept[0]))
    assert scripts[1].floors(small(), tmp_path, 2, (0.001,))["floor_public"][0] < found["floor_public"][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "whitend"], "only: no row's name contains 'whitend'"),
        (["--data-dir", "/nowhere"], "--data-dir: no folder '/nowhere'"),
        (["--set", "victims=many"], "set: victims: got 'many'"),
        (["--set", "victims=2", "--set", "candidates=50"], "--set: measures a trial, which would take the place of"),
    ],
)
def test_wrong_input_is_refused(words: list[str], says: str, scripts, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["studies/noise_bounds.py", *words])
    with pytest.raises(SystemExit, match="2"):
        scripts[0].one_line(scripts[0].main)
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.skipif(not TABLE.exists(), reason="not measured yet")
def test_the_page_is_rendered_from_its_rows(scripts) -> None:
    rows, kept = pd.read_csv(TABLE), (published_file("noise_bounds.md")).read_text()
    assert scripts[2].page_of(rows) == kept
    assert scripts[2].page_of(rows.assign(rms=0.001)) != kept
    assert list(rows["row"]) == [name for name in scripts[0].cells() if name in set(rows["row"])]


@pytest.mark.skipif(not TABLE.exists(), reason="not measured yet")
def test_the_figure_is_drawn(scripts, tmp_path: Path) -> None:
    scripts[2].draw(pd.read_csv(TABLE), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
