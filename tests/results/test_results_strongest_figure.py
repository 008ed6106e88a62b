"""The page of the strongest attacker matches its rows, and its figure is drawn from them."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core.errors import InputError
from leakbench.core.recipe import names
from leakbench.core.types import Network
from leakbench.experiment.leak_noise import leak_facts, noise_std
from leakbench.experiment.stage_train import fresh_network
from tests.published_files import STUDIES, published_file

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "strongest-attacker.md"
TABLE = published_file("strongest_figure.csv")
MODULES = ("strongest_figure", "strongest_figure_draw", "strongest_figure_faces", "strongest_figure_numbers")
BLANK = "".join(f"<!-- {name} -->\nold\n<!-- end -->\nprose\n" for name in ("setting", "numbers", "found", "attacks"))

measured = pytest.mark.skipif(not TABLE.exists(), reason="not measured yet")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(STUDIES))
    for name in (*MODULES, "strongest_figure_page"):
        sys.modules.pop(name, None)
    import strongest_figure  # noqa: PLC0415
    import strongest_figure_draw  # noqa: PLC0415
    import strongest_figure_faces  # noqa: PLC0415
    import strongest_figure_numbers  # noqa: PLC0415
    import strongest_figure_page  # noqa: PLC0415

    return SimpleNamespace(
        main=strongest_figure,
        draw=strongest_figure_draw,
        faces=strongest_figure_faces,
        numbers=strongest_figure_numbers,
        page=strongest_figure_page,
    )


@pytest.fixture
def elsewhere(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Copy the files that the script reads, so that the real ones cannot change."""
    for folder in ("results", "docs"):
        (tmp_path / folder).mkdir()
    shutil.copytree(STUDIES / "recipes", tmp_path / "studies" / "recipes")
    (tmp_path / "docs" / "strongest-attacker.md").write_text(BLANK)
    monkeypatch.setattr(scripts.main, "HERE", tmp_path / "studies")
    monkeypatch.setattr(scripts.main, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(scripts.main, "DOCS", tmp_path / "docs")
    return tmp_path


def row(what: str, sigma: float = 0.1, **changed: object) -> dict[str, object]:
    found: dict[str, object] = {"row": f"{what}, sigma {sigma:g}", "what": what, "sigma": sigma, "victims": 100}
    found |= {"asr": 0.5, "asr_low": 0.4, "asr_high": 0.6, "null_asr": 0.1, "null_asr_high": 0.2, "asr_bound": 0.9}
    found |= {"rmse": 0.15, "null_rmse": 0.2, "eta": 0.14, "limit": 50, "candidates": 1000, "public": 292}
    found |= {"identified": 0.02, "identified_low": 0.01, "identified_high": 0.05, "identified_bound": 0.6}
    found |= {"label_accuracy": 0.4, "label_low": 0.3, "label_high": 0.5, "label_bound": 0.8, "null_label": 0.25}
    return {**found, "violated": np.nan, "face_rmse": 0.13, "minutes": 1.0, "hash": "0", **changed}


def small() -> pd.DataFrame:
    return pd.DataFrame([row("identification"), row("labels"), row("cpl", asr=0.1), row("whitened")])


def test_the_best_attack_of_a_column_is_below_it(scripts) -> None:
    rows = pd.DataFrame([row("cpl", asr=0.5), row("dlg", asr=0.5, victims=10), row("whitened", asr=0.3)])
    found = scripts.numbers.number(rows, "asr", 0.1)
    assert (found.who, found.value, found.guess, found.bound, found.leaks) == ("cpl", 0.5, 0.1, 0.9, True)
    assert scripts.numbers.number(rows, "asr", 1.0) is None
    assert scripts.numbers.number(rows, "identified", 0.1) is None


@pytest.mark.parametrize(
    ("under", "changed", "leaks"),
    [
        ("asr", {"asr_low": 0.09}, False),
        ("asr", {"null_asr_high": 0.5}, False),
        ("asr", {}, True),
        # Of 100 victims one is identified by chance with probability .095, two with .005.
        ("identified", {"identified": 0.01}, False),
        ("identified", {"identified": 0.02}, True),
        # Binomial, 100 at .25: 36 or more with probability .0094, 35 or more .0164.
        ("label", {"label_accuracy": 0.36}, True),
        ("label", {"label_accuracy": 0.35}, False),
    ],
)
def test_results_better_than_a_guess(under: str, changed: dict[str, float], leaks: bool, scripts) -> None:
    what = {"asr": "cpl", "identified": "identification", "label": "labels"}[under]
    assert scripts.numbers.number(pd.DataFrame([row(what, **changed)]), under, 0.1).leaks is leaks


def test_blocks_are_rewritten_and_prose_is_kept(scripts) -> None:
    page = scripts.page.filled(BLANK, small())
    assert "old" not in page
    assert page.count("prose") == 4
    assert (
        "| 0.1 | 0.4 | **0.50 [0.40, 0.60], `whitened`** | 0.10 | 0.90 | **0.020 [0.010, 0.050]** | 0.001 | 0.600 |"
        in page
    )
    assert "| `cpl` | not measured | not measured | not measured | not measured | 0.10; 0.150; 0.130 |" in page
    assert "Significantly above its bound: nothing, of 4 cells." in page
    assert scripts.page.filled(page, small()) == page


def test_violations_of_a_bound_are_named(scripts) -> None:
    page = scripts.page.filled(BLANK, pd.DataFrame([row("cpl", violated="asr"), row("whitened")]))
    assert "Significantly above its bound: cpl, sigma 0.1 (asr), of 2 cells." in page


def test_an_attack_that_fails_undefended_shows_nothing(scripts) -> None:
    rows = pd.DataFrame(
        [row("cpl", 0.0), row("dlg", 0.0, asr_low=0.05), row("dlg", 6.0, asr_low=0.05), row("whitened")]
    )
    page = scripts.page.filled(BLANK, rows)
    assert "more than a guess: `dlg` nowhere, not even undefended (that it fails" in page
    assert "`cpl` at sigma 0; `whitened` at sigma 0.1." in page


def test_without_noise_there_is_no_bound(scripts) -> None:
    page = scripts.page.filled(BLANK, pd.DataFrame([row("cpl", 0.0, asr_bound=np.nan)]))
    assert "`cpl`** | 0.10 | none |" in page


def test_a_page_without_a_block_is_refused(scripts) -> None:
    with pytest.raises(InputError, match="no block '<!-- found -->'"):
        scripts.page.filled(BLANK.replace("<!-- found -->", ""), small())


def test_every_column_has_the_noise_of_its_name(scripts) -> None:
    for sigma, defense in scripts.numbers.SIGMAS.items():
        recipe = defense if defense == "none" else str(STUDIES / "recipes" / f"{defense}.yaml")
        cell = prepare(Request(dataset="digits", taps=("type-2",), victims=1, defense=recipe), None)
        facts = leak_facts(cell, Network(*fresh_network(cell, trained=False)), 0)
        std = noise_std(facts, "type-2", 1, 1, 1, 0.1)
        assert std == (pytest.approx(scripts.numbers.CLIP * sigma) if sigma else "none: no noise")
        norms = [f.norm for f in facts["example"] if f.kind == "clip"]
        assert norms == ([scripts.numbers.CLIP] if sigma else [])


def test_every_cell_can_be_requested(scripts) -> None:
    """A column's cells are selected by its name alone."""
    assert set(scripts.numbers.PICTURES) < set(scripts.main.MEASURED)
    for given in scripts.main.MEASURED.values():
        assert Request(**{**scripts.main.GIVEN, **given}).attack in names("attacks")
    listed = list(scripts.main.cells())
    assert len(listed) == len(set(listed))
    for point in ("undefended", "sigma 0.025", "sigma 6"):
        assert [name for name in listed if point in name] == [f"{what}, {point}" for what in scripts.main.MEASURED]


def test_the_sheet_keeps_its_pictures(scripts, tmp_path: Path) -> None:
    sheet, picture = (
        scripts.faces.Sheet(tmp_path / "faces.png"),
        torch.linspace(-0.1, 1.1, 3 * 32 * 32).reshape(3, 32, 32),
    )
    sheet.put("truth", None, picture)
    sheet.put("cpl", 6.0, picture.flip(1))
    sheet.put("dlg", 6.0, torch.full_like(picture, torch.nan))
    sheet.save()
    again = scripts.faces.Sheet(tmp_path / "faces.png")
    shown = again.get("truth")
    assert shown is not None
    np.testing.assert_allclose(shown / 255, picture.clamp(0, 1).permute(1, 2, 0), atol=0.5 / 255 + 1e-6)
    np.testing.assert_array_equal(again.get("cpl", 6.0), shown[::-1])
    assert again.get("dlg", 6.0) is None
    assert again.get("mean") is None


def test_a_sheet_of_another_size_is_refused(scripts, tmp_path: Path) -> None:
    from matplotlib.image import imsave  # noqa: PLC0415

    imsave(tmp_path / "faces.png", np.zeros((4, 4, 4)))
    with pytest.raises(InputError, match=r"faces.png: got \(4, 4, 4\), expected"):
        scripts.faces.Sheet(tmp_path / "faces.png")


def test_the_face_is_the_first_victim(scripts, tmp_path: Path) -> None:
    sheet = scripts.faces.Sheet(tmp_path / "faces.png")
    grey = torch.tensor([0.2, 0.8])[:, None, None, None, None].expand(2, 1, 3, 32, 32)
    tensors = {"type-2.round0.truth": grey, "type-2.round0.reconstruction": grey.flip(0)}
    rows = pd.DataFrame({"victim": [0, 1], "rmse": [0.6, 0.5]})
    run = SimpleNamespace(read_tensors=lambda _: tensors, read_rows=lambda _: rows)
    cell = SimpleNamespace(data=SimpleNamespace(public_inputs=torch.full((2, 3, 32, 32), 0.4)))
    assert scripts.main._shown(run, cell, sheet, "whitened", 0.1) == 0.6
    shown = {name: sheet.get(*name) for name in (("truth", None), ("mean", None), ("whitened", 0.1))}
    assert [int(tile[0, 0, 0]) for tile in shown.values()] == [51, 102, 204]


@pytest.mark.slow
def test_the_figure_with_few_rows(scripts, tmp_path: Path) -> None:
    sheet = scripts.faces.Sheet(tmp_path / "faces.png")
    scripts.draw.draw(small(), sheet, tmp_path / "empty.png")
    sheet.put("whitened", 0.1, torch.ones(3, 32, 32))
    scripts.draw.draw(small(), sheet, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "empty.png").read_bytes()


@pytest.mark.slow
def test_small_cells_are_measured_written_and_drawn(scripts, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line, on embedded digits; then again from the stored rows, to the same page."""
    monkeypatch.setattr(scripts.main, "GIVEN", {**scripts.main.GIVEN, "dataset": "digits", "candidates": 50})
    few = {what: {**given, "victims": 4} for what, given in scripts.main.MEASURED.items()}
    monkeypatch.setattr(scripts.main, "MEASURED", few)
    runs = ["--runs", str(elsewhere / "runs")]
    for only in ("labels, sigma 0.1", "identification, sigma 0.1"):
        monkeypatch.setattr(sys, "argv", ["strongest_figure.py", "--only", only, *runs])
        scripts.main.main()
    rows = pd.read_csv(elsewhere / "results" / "strongest_figure.csv")
    assert list(rows["row"]) == ["identification, sigma 0.1", "labels, sigma 0.1"]
    assert rows["asr"].isna().tolist() == [True, False]
    assert (rows["label_low"] <= rows["label_accuracy"]).tolist() == [False, True]
    page, figure = elsewhere / "docs" / "strongest-attacker.md", elsewhere / "docs" / "strongest-attacker.png"
    written = page.read_text()
    assert "Victim identified: more than a guess" in written
    figure.unlink()
    monkeypatch.setattr(sys, "argv", ["strongest_figure.py", "--page", "--runs", str(elsewhere / "none")])
    scripts.main.main()
    assert not figure.exists()
    monkeypatch.setattr(sys, "argv", ["strongest_figure.py", "--page", *runs])
    scripts.main.main()
    assert page.read_text() == written
    assert figure.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "whitend"], "only: no row's name contains 'whitend'"),
        (["--data-dir", "/nowhere"], "--data-dir: no folder '/nowhere'"),
        (["--page"], "results/strongest_figure.csv does not exist; measure first"),
    ],
)
def test_wrong_input_is_refused(words, says, scripts, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    before = sorted(elsewhere.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["studies/strongest_figure.py", *words])
    with pytest.raises(SystemExit, match="2"):
        scripts.main.one_line(scripts.main.main)
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert sorted(elsewhere.rglob("*")) == before


def test_nothing_is_measured_for_a_page_without_a_block(scripts, elsewhere, monkeypatch, capsys) -> None:
    (elsewhere / "docs" / "strongest-attacker.md").write_text("nothing")
    monkeypatch.setattr(sys, "argv", ["studies/strongest_figure.py", "--runs", str(elsewhere / "runs")])
    with pytest.raises(SystemExit, match="2"):
        scripts.main.one_line(scripts.main.main)
    assert "strongest-attacker.md: no block '<!-- setting -->'" in capsys.readouterr().err
    assert not (elsewhere / "runs").exists()


@measured
def test_the_page_is_rendered_from_its_rows(scripts) -> None:
    rows, kept = pd.read_csv(TABLE), PAGE.read_text()
    assert scripts.page.filled(kept, rows) == kept
    assert scripts.page.filled(kept, rows.assign(rmse=0.001)) != kept
    assert scripts.page.filled(kept, rows.assign(identified_bound=0.001)) != kept
    assert list(rows["row"]) == [name for name in scripts.main.cells() if name in set(rows["row"])]
    assert len(kept.splitlines()) <= 200


def test_the_links_of_the_page_have_targets() -> None:
    """Into this repository."""
    linked = [part.partition(")")[0] for part in PAGE.read_text().split("](")[1:]]
    assert "../results/attacks/noise_bounds.md" in linked
    for link in set(linked):
        assert (PAGE.parent / link).exists()
