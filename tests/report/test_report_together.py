"""Several runs on one page, the size limit of a page, and audits saved next to a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from resealed import reseal
from safetensors.numpy import load_file, save_file

from leakbench.auditing.verdict import Audit
from leakbench.cli import commands
from leakbench.cli.options import federation_options
from leakbench.core.errors import InputError
from leakbench.report import write_report, write_together
from leakbench.report.audited import AUDIT, AUDITED_OPTIONS, audit_command, check_audited, keep_audit
from leakbench.report.finished import read_finished
from leakbench.report.gallery import BUDGET, fitting, galleries, picture, picture_bytes
from leakbench.report.levels import noise_of
from leakbench.report.plots import LINES as LINES_OF_FIGURES
from leakbench.report.plots import TOKENS, Plot, _sentence, gallery_plot
from leakbench.report.rows import LINES, victims
from leakbench.storage.rows_file import write_rows
from leakbench.storage.store import checksum
from tests.report.test_report import POINTS, at_noise, rows_of, run_folder, summary_of

FOUND = Audit(True, 3.46, 6.0, True, 0.5537, 0.7474, 0.5618, 1.025, 0.95, 1000, "violated", "more than is claimed")


def changed(folder: Path, **fields: Any) -> Path:
    """Change fields of a run's manifest."""
    reseal(folder, json.loads((folder / "manifest.json").read_text()) | fields)
    return folder


def test_two_runs_are_shown_side_by_side(tmp_path: Path) -> None:
    one, two = at_noise(tmp_path / "one", 0.0, 0.9), at_noise(tmp_path / "two", 2.0, 0.1)
    found = CliRunner().invoke(commands, ["report", str(one), str(two)], catch_exceptions=False)
    path = tmp_path / "compare-one-two.html"
    assert found.output == f"report: {path}\n"
    page = path.read_text()
    heading = page[page.index("<h1") : page.index("</h1>")]
    assert "From no defense to mine (noise × 2): no measured difference in leakage is significant" in heading
    assert "accuracy fell from 0.45 to 0.05" in heading
    assert page.index("<h1") < page.index("victim 1, example 0") < page.index('id="differences"')
    who = "victim 1, example 0: reconstruction at example gradient (type-2)"
    alts = [f"{who}, {name}" for name in ("no defense", "mine (noise × 2)")]
    assert all(page.count(alt) == 1 for alt in alts)
    assert path.read_bytes() == write_together([one, two], tmp_path / "again.html").read_bytes()


def of_texts(folder: Path, answer: int) -> Path:
    """Change a run to one on sentences of two tokens: token 1, and token `answer` where the original has token 2."""
    rows = pd.read_parquet(folder / "rows.parquet")
    rows = rows.assign(edit_distance=rows["rmse"], null_edit_distance=0.9, rmse=np.nan, null_rmse=np.nan)
    write_rows(folder / "rows.parquet", rows)
    arrays = load_file(folder / "reconstructions.safetensors")
    for name, array in arrays.items():
        last = 2.0 if name.endswith(".truth") else float(answer)
        arrays[name] = np.broadcast_to(np.float32([1, last]), (*array.shape[:2], 2)).copy()
    names = {"names": {"1": "good", "2": "film", "3": "bad"}, "special": [0]}
    arrays["tokens"] = np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)
    save_file(arrays, folder / "reconstructions.safetensors")
    manifest = json.loads((folder / "manifest.json").read_text())
    for tap in manifest["summary"]["taps"].values():
        tap["null_edit_distance"] = 0.9
    for name in ("rows.parquet", "reconstructions.safetensors"):
        manifest["files"][name] = checksum(folder / name)
    return changed(folder, files=manifest["files"], summary=manifest["summary"])


def test_a_figure_of_texts_has_their_tokens_in_the_colours_of_the_report(tmp_path: Path) -> None:
    run = of_texts(at_noise(tmp_path / "run", 0.0, 0.5), 3)
    panels = gallery_plot([read_finished(run)], examples=1).axes
    drawn = [{text.get_text(): text.get_color() for text in axes.texts} for axes in panels]
    original, found = {"good": TOKENS[""], "film": TOKENS[""]}, {"good": TOKENS["right"], "bad": TOKENS["wrong"]}
    assert drawn[:2] == [original, found] and all(tokens in (original, found) for tokens in drawn)
    assert not any(axes.images for axes in panels)


def test_a_long_sentence_of_a_figure_ends_in_dots() -> None:
    axes = Plot().subplots()
    _sentence(axes, [("wordwordword", "")] * 40)
    assert len(axes.texts) == LINES_OF_FIGURES * 3 + 1 and axes.texts[-1].get_text() == "..."


def test_runs_on_texts_show_sentences_and_no_pictures(tmp_path: Path) -> None:
    runs = [of_texts(at_noise(tmp_path / f"{noise}", noise, 0.5), answer) for noise, answer in ((0.0, 2), (2.0, 3))]
    right, wrong = '<span class="token right">film</span>', '<span class="token wrong">bad</span>'
    page = write_together(runs, tmp_path / "two.html").read_text()
    assert "data:image/png" not in page and "Each token of a reconstruction is" in page
    assert "The ASR if another edit distance counted as success" in page and "RMSE that counts as success" not in page
    tiles = page[page.index("victim 0, example 0: the original: good film") :]
    assert tiles.index(right) < tiles.index(wrong) and ", noise × 2" not in tiles[: tiles.index(right)]
    more = of_texts(at_noise(tmp_path / "more", 4.0, 0.5), 3)
    page = write_together([*runs, more], tmp_path / "three.html").read_text()
    assert "data:image/png" not in page and right in page and page.count('<div class="gallery texts strip') == 2


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ({"hash": "other", "cell": {"defense": "none", "attack": "cpl", "dataset": "digits"}}, "data sets"),
        ({"summary": None}, "not finished"),
    ],
)
def test_incomparable_runs_are_refused(tmp_path: Path, harm: dict[str, Any], said: str) -> None:
    one, two = at_noise(tmp_path / "one", 0.0, 0.9), at_noise(tmp_path / "two", 2.0, 0.1)
    changed(two, **harm)
    if harm.get("summary", 0) is None:
        manifest = json.loads((two / "manifest.json").read_text())
        del manifest["summary"]
        reseal(two, manifest)
    with pytest.raises(InputError, match=said):
        write_together([one, two])
    assert not list(tmp_path.glob("*.html"))


def test_repeated_runs_other_victims_and_repeated_noise_are_refused(tmp_path: Path) -> None:
    one = at_noise(tmp_path / "one", 1.0, 0.9)
    with pytest.raises(InputError, match="the same run; give each once"):
        write_together([one, one])
    fewer = changed(run_folder(tmp_path / "fewer", victims=3), hash="other")
    with pytest.raises(InputError, match="attacked different examples"):
        write_together([one, fewer])
    levels = [at_noise(tmp_path / f"{n}", n, 0.5) for n in (0.0, 2.0)]
    again = changed(at_noise(tmp_path / "again", 1.0, 0.5), hash="another")
    again_summary = json.loads((again / "manifest.json").read_text())["files"]
    changed(again, files=again_summary | {"model.safetensors": "beef"})
    with pytest.raises(InputError, match="have the same noise"):
        write_together([one, *levels, again])


def test_levels_of_other_cells_are_refused(tmp_path: Path) -> None:
    runs = [at_noise(tmp_path / f"{n}", n, 0.5) for n in (0.0, 1.0, 2.0)]
    whole = json.loads((runs[1] / "manifest.json").read_text())
    changed(runs[1], settings={"victims": 4, "candidates": 7})
    with pytest.raises(InputError, match="differ in candidates"):
        write_together(runs)
    changed(runs[1], **whole)
    clip = {"title": "x", "batch": [{"part": "ClipWhole", "norm": 2.0}, {"part": "GaussianNoise", "multiplier": 1.0}]}
    changed(runs[1], recipes=whole["recipes"] | {"defense": clip})
    with pytest.raises(InputError, match="differ in more than their noise"):
        write_together(runs)
    changed(runs[1], **(whole | {"recipes": whole["recipes"] | {"attack": {"title": "DLG"}}}))
    with pytest.raises(InputError, match="of the attacks"):
        write_together(runs)


def test_noise_of_a_recipe() -> None:
    assert noise_of({"example": [{"part": "ClipWhole", "norm": 4.0}]}) == 0
    assert noise_of({"client": [{"multiplier": 6.0}], "batch": [{"multiplier": 0.5}]}) == 6
    decayed = {"part": "Scaled", "inner": {"part": "Linear", "start": 15.0, "end": 3.0}, "factor": 0.1}
    assert noise_of({"batch": [{"multiplier": decayed}]}) == pytest.approx(1.5)


def test_out_needs_several_runs(tmp_path: Path) -> None:
    one = at_noise(tmp_path / "one", 1.0, 0.9)
    with pytest.raises(InputError, match="expected only with several runs"):
        CliRunner().invoke(
            commands, ["report", str(one), "--out", "x.html"], catch_exceptions=False, standalone_mode=False
        )
    with pytest.raises(InputError, match="is a folder"):
        write_together([one, at_noise(tmp_path / "two", 2.0, 0.1)], tmp_path)


def test_a_thousand_victims_stay_below_five_megabytes(tmp_path: Path) -> None:
    """Colour noise, which does not compress, in batches: the page names what it omits."""
    folder = run_folder(tmp_path, shape=(3, 32, 32), victims=1000)
    page = write_report(folder).read_text()
    assert 1_000_000 < len(page) < 5_000_000
    assert re.search(r"The first \d+ of 1,000 victims", page)
    assert "of 7,000 lines, one for each example under attack" in page


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 224, 224), (30,)])
@pytest.mark.parametrize(("many", "batch", "points"), [(1000, 1, 3), (1000, 50, 3), (2, 8, 40)])
def test_a_page_shows_as_many_examples_as_fit(shape: tuple[int, ...], many: int, batch: int, points: int) -> None:
    shapes = [(many, batch, *shape)] * 2 * points
    shown, members = fitting(shapes)
    assert 1 <= shown <= 24 and 1 <= members <= 4
    if (shown, members) != (1, 1):
        assert shown * members * len(shapes) * picture_bytes(shape) <= BUDGET


def test_a_picture_takes_at_most_its_estimated_size() -> None:
    rng = np.random.default_rng(0)
    for shape in ((3, 32, 32), (3, 224, 200), (1, 28, 28)):
        assert len(picture(rng.random(shape))) <= 1.1 * picture_bytes(shape)


def test_the_lines_of_victims_are_limited_and_equal_the_rows() -> None:
    rows = rows_of(POINTS, 1000)
    points = {name: rows[rows["tap"] == name] for name, _ in POINTS}
    found = victims(points)
    assert found.examples == 7000 and LINES - 7 < len(found.lines) <= LINES
    assert [heading for heading, _ in found.headings][:5] == ["leakage point", "victim", "example", "success", "RMSE"]
    assert found.lines[:2] == [
        ["type-2", "0", "0", "yes", "0.0123", "0.1800", "0", "0", "1.00"],
        ["type-2", "1", "0", "no", "0.1123", "0.1800", "1", "1", "1.00"],
    ]
    assert {line[0] for line in found.lines} == {"type-2", "type-1", "type-0"}


def test_a_selection_of_many_rounds_is_shown() -> None:
    arrays = {
        f"type-2.round{n}.{kind}": np.full((2, 1, 1, 4, 4), 0.5)
        for n in range(30)
        for kind in ("truth", "reconstruction")
    }
    rows = rows_of((("type-2", 1),), 2)
    titles = [gallery.title for gallery in galleries(arrays, rows)]
    assert len(titles) == 8
    assert titles[0] == "Example gradient (type-2) after 0 rounds"
    assert titles[-1] == "Example gradient (type-2) after 29 rounds"


def test_an_audit_is_saved_and_shown(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert "computed, not audited" in write_report(folder).read_text()
    keep_audit(folder, manifest, FOUND)
    page = write_report(folder).read_text()
    assert "verdict: violated: more than is claimed" in page and "computed, not audited" not in page
    keep_audit(folder, manifest | {"hash": "f" * 64}, FOUND)
    with pytest.raises(InputError, match="is of another cell"):
        write_report(folder)
    (folder / AUDIT).write_text("{")
    with pytest.raises(InputError, match="is not what the run wrote; audit again"):
        write_report(folder)


def test_an_audit_of_another_defense_is_not_saved(tmp_path: Path) -> None:
    manifest = {
        "recipes": {"defense": {"a": 1}},
        "cell": {"dataset": "faces"},
        "settings": {"federation": {"rounds": 2, "leaks": [1]}},
    }
    same = {"defense": {"a": 1}, "dataset": "faces", "federation": {"rounds": 2, "leaks": (1,)}}
    check_audited(tmp_path, manifest, same)
    for what, other in (("defense", {"a": 2}), ("dataset", "digits"), ("federation", {"rounds": 3})):
        with pytest.raises(InputError, match=f"another {what}"):
            check_audited(tmp_path, manifest, same | {what: other})


def test_the_command_of_an_audit_has_the_federation_of_the_run() -> None:
    cell = summary_of()["cell"]
    command = "leakbench run --defense 'my own.yaml' --noise-factor=0.1 --attack cpl --victims 5 --seed 3 --quiet"
    said = audit_command({"command": command, "cell": cell})
    assert said == "leakbench audit --defense 'my own.yaml' --noise-factor=0.1 --seed 3 --into FOLDER"
    of_table = audit_command(
        {"command": "leakbench reproduce table", "cell": cell | {"defense": "fed_cdp (noise x 2)"}}
    )
    assert of_table == "leakbench audit --defense fed_cdp --dataset faces --into FOLDER"

    def nothing() -> None: ...

    options = federation_options(nothing).__click_params__  # type: ignore[attr-defined]
    assert {option.opts[0] for option in options} == set(AUDITED_OPTIONS)


def test_a_comparison_starts_with_the_change_of_each_leakage_point(tmp_path: Path) -> None:
    """The change is the second run minus the first, with its interval; one measure for each point, then the accuracy."""
    runs = []
    for name, noise in (("one", 0.0), ("two", 2.0)):
        folder = at_noise(run_folder(tmp_path / name, victims=20), noise, 0.9 - noise / 4)
        manifest = json.loads((folder / "manifest.json").read_text())
        run_folder(folder, victims=20)
        rows = pd.read_parquet(folder / "rows.parquet").assign(failure=False, rmse=0.1 + noise / 10, success=not noise)
        write_rows(folder / "rows.parquet", rows)
        files = json.loads((folder / "manifest.json").read_text())["files"]
        reseal(folder, manifest | {"files": files | {"rows.parquet": checksum(folder / "rows.parquet")}})
        runs.append(folder)
    page = write_together(runs).read_text()
    heading = page[page.index("<h1") : page.index("</h1>")]
    assert "at the client update (type-1) ASR fell from 1.00 to 0.00 (difference -1.00 [-1.00, " in heading
    assert heading.count("at the ") == 3 and heading.endswith("accuracy fell from 0.45 to 0.20.")
    assert '<td role="cell" class="number" data-label="change">-1.00</td>' in page
    assert '<td role="cell" class="differs" data-label="">differs</td>' in page
