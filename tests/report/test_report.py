import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from resealed import reseal
from rich.console import Console
from safetensors.torch import save_file

from leakbench.auditing.verdict import Audit
from leakbench.box import caveats_of
from leakbench.core.errors import InputError
from leakbench.core.leakage_points import point_name
from leakbench.report import print_table, write_report
from leakbench.report.cards import cards
from leakbench.report.finished import read_finished
from leakbench.report.gallery import shown_size, shrinks
from leakbench.report.page import core_table
from leakbench.report.plots import gallery_plot
from leakbench.report.words import batches, factors, made_of
from leakbench.storage.rows_file import write_rows
from leakbench.storage.store import checksum
from leakbench.storage.summary import Summary, Tap

pytestmark = pytest.mark.usefixtures("with_pages")

AUDITED = Audit(True, 3.46, 6.0, True, 0.5537, 0.7474, 0.5618, 1.025, 0.95, 1000, "violated", "more than is claimed")

POINTS = (("type-2", 1), ("type-1", 3), ("type-0", 3))

TAP: dict[str, Any] = {
    "round": 0, "batch": 1, "victims": 4, "failures": 1,
    "asr": 0.85, "asr_low": 0.64, "asr_high": 0.948, "null_asr": 0.05, "null_asr_low": 0.009, "null_asr_high": 0.236,
    "identified": 0.95, "candidates": 1000, "eta": 0.1319, "rmse": 0.0193, "null_rmse": 0.1823, "psnr": 34.28,
    "ssim": 0.967, "lpips": None, "label_accuracy": 1.0, "label_ranked": 0.93, "iterations": 25, "seconds": 12.5,
    "verdict": "reconstructs",
}  # fmt: skip


def summary_of(points: tuple[tuple[str, int], ...] = POINTS) -> dict[str, Any]:
    absent = "n/a: backbone weights not found; pass --lpips-weights DIR"
    by_tap = {
        "type-2": {"valid": 8.02, "reason": "every use is seen", "q": 1.0, "steps": 100, "participations": 100},
        "type-1": {
            "valid": None,
            "reason": "none: trusts the server",
            "q": None,
            "steps": None,
            "participations": None,
        },
    }
    return {
        "cell": {"defense": "fed_cdp", "attack": "cpl", "dataset": "faces", "seed": 3, "hash": "ab12" * 16},
        "accuracy": 0.9512, "rounds": 2, "threat": "honest", "protocol": "paper",
        "epsilon": {"claimed": 0.5989, "valid": 8.02, "reason": "Gaussian", "unit": "example", "delta": 1e-5,
                    "observer": "global", "by_tap": by_tap},
        "taps": {name: {**TAP, "batch": members} for name, members in points},
        "notes": {f"taps.{name}.lpips": absent for name, _ in points},
        "claims": [{"what": "ASR at type-2", "claimed": 1.0, "measured": 0.85, "source": "Table 3", "comment": None}],
        "folder": "runs/one",
    }  # fmt: skip


def rows_of(points: tuple[tuple[str, int], ...], victims: int) -> pd.DataFrame:
    rows = [
        {"tap": tap.partition("@")[0], "round": int(tap.partition("@")[2] or 0), "victim": v, "batch": v, "member": m,
         "failure": v == 3, "failure_reason": "the search diverged" if v == 3 else "",
         "rmse": np.nan if v == 3 else 0.0123 + 0.1 * v, "success": v == 0, "network": 0, "eta": 0.1319, "null_rmse": 0.18,
         "null_success": False, "example": v, "label": v, "label_guess": v, "candidates": 1000, "identified": 1.0}
        for tap, members in points for v in range(victims) for m in range(members)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def run_folder(
    folder: Path,
    shape: tuple[int, ...] = (1, 6, 6),
    victims: int = 4,
    rounds: int = 2,
    summary: dict[str, Any] | None = None,
) -> Path:
    summary = summary or summary_of()
    points = tuple((name, tap["batch"]) for name, tap in summary["taps"].items())
    manifest = {
        "hash": "ab12" * 16, "seed": 3, "device": "cpu", "command": "leakbench run --attack cpl",
        "complete": True, "cell": summary["cell"],
        "versions": {"leakbench": "0.1.0", "torch": "2.15"}, "settings": {"victims": victims},
        "recipes": {"attack": {"title": "CPL"}, "defense": {"title": "Fed-CDP"}, "dataset": {"title": "faces"}},
        "summary": summary, "phases": {"attack type-2": 12.5}, "files": {"model.safetensors": "c0ffee"},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rows.parquet", rows_of(points, victims))
    columns = ("round", "accuracy", "loss", "between_client_variance", "update_scale")
    write_rows(
        folder / "rounds.parquet",
        pd.DataFrame([[r, 0.5 + 0.1 * r, 1.0, np.nan, 0.3] for r in range(rounds)], columns=columns),
    )
    tensors = {}
    for name, members in points:
        tap, _, leak = name.partition("@")
        truth = torch.rand(victims, members, *shape, generator=torch.Generator().manual_seed(members))
        answer = truth * 0.9
        answer[3:] = torch.nan
        tensors[f"{tap}.round{leak or 0}.truth"], tensors[f"{tap}.round{leak or 0}.reconstruction"] = truth, answer
    save_file(tensors, folder / "reconstructions.safetensors")
    for name in ("rows.parquet", "rounds.parquet", "reconstructions.safetensors"):
        manifest["files"][name] = checksum(folder / name)  # type: ignore[index]
    reseal(folder, manifest)
    return folder


def at_noise(folder: Path, multiplier: float, asr: float) -> Path:
    """Return the folder of a run at a noise level; more noise gives worse reconstructions."""
    summary = summary_of()
    name = "none" if not multiplier else f"mine (noise x {multiplier:g})"
    summary["cell"]["defense"] = name
    for tap in summary["taps"].values():
        tap["asr"] = asr
    summary["accuracy"] = asr / 2
    run_folder(folder, summary=summary)
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    noise = [{"part": "GaussianNoise", "multiplier": multiplier}] if multiplier else []
    manifest["cell"] = {"defense": name, "attack": "cpl", "dataset": "faces", "seed": 3}
    manifest["recipes"]["defense"] = {"title": name, "batch": noise}
    manifest["hash"] = f"{int(100 * multiplier):064d}"
    rows = pd.read_parquet(folder / "rows.parquet")
    rows["rmse"] = rows["rmse"] * (1 + multiplier)
    write_rows(folder / "rows.parquet", rows)
    manifest["files"]["rows.parquet"] = checksum(folder / "rows.parquet")
    reseal(folder, manifest)
    return folder


class Page(HTMLParser):
    """Collects the links and text of a page, and checks that tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.resources: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.shown = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)
        self.resources += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag == "img":
            self.images.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.shown += data


def page_of(folder: Path) -> Page:
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_the_page_shows_the_results_of_the_run(tmp_path: Path) -> None:
    page = page_of(run_folder(tmp_path))
    shown = " ".join(page.shown.split())
    for number in ("0.85 [0.64, 0.95]", "0.05 [0.01, 0.24]", "0.0193", "0.1823", "34.3", "0.97", "25", "0.599", "8.02"):
        assert number in shown
    assert "accuracy 0.951 after 2 rounds threat: honest-but-curious protocol: paper" in shown
    assert "and server-side update (type-0): backbone weights not found; pass --lpips-weights DIR" in shown
    assert "the search diverged" in shown and "no answer" in shown
    assert "none: trusts the server" in shown and "Table 3" in shown
    for provenance in ("ab12" * 16, "leakbench run --attack cpl", "torch 2.15", "Fed-CDP", "c0ffee", "attack type-2"):
        assert provenance in shown


def test_the_page_is_self_contained_and_accessible(tmp_path: Path) -> None:
    html = write_report(run_folder(tmp_path)).read_text(encoding="utf-8")
    page = Page(html)
    assert page.resources and all(resource.startswith("data:image/png;base64,") for resource in page.resources)
    assert not {"link", "iframe", "object", "metadata"} & set(page.tags)
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert not re.search(r"@import|url\((?!#)|https?:", html)
    assert "Content-Security-Policy\" content=\"default-src 'none'" in html
    assert all(image["alt"] for image in page.images)
    assert '<meta name="viewport" content="width=device-width' in html and '<html lang="en">' in html


def test_equal_runs_give_equal_pages(tmp_path: Path) -> None:
    first, second = (write_report(run_folder(tmp_path / name)).read_bytes() for name in ("one", "two"))
    again = write_report(tmp_path / "one").read_bytes()
    assert first == second == again


def test_the_page_starts_with_the_verdict_and_the_first_facts(tmp_path: Path) -> None:
    """The heading is the verdict in its colour; accuracy and epsilon come before the table of leakage points."""
    page = page_of(run_folder(tmp_path))
    html = (tmp_path / "report.html").read_text()
    assert page.tags[page.tags.index("main") :][:6] == ["main", "p", "b", "b", "b", "b"]
    first = html[html.index("<h1") : html.index("</h1>")]
    assert '<h1 class="headline reconstructs"><span class="word">RECONSTRUCTS</span>' in first
    assert "from one client&#39;s updates of 3 images each (baseline guess: 5 % of 12)" in first
    order = [html.index(text) for text in ("<h1", ">Accuracy<", ">Valid epsilon<", ">Claimed epsilon<", 'id="points"')]
    assert order == sorted(order)
    assert '<dd class="value">8.02</dd><dd class="note">for one example at delta 1e-05' in html


def test_an_undertrained_network_and_its_chance_level_are_among_the_first_facts() -> None:
    summary = summary_of() | {"chance": 0.0487, "undertrained": "2 of the data set's 60 rounds"}
    accuracy, *_ = cards(Summary.of(summary), None)
    assert (accuracy.value, accuracy.tone) == ("0.951", "inconclusive")
    assert accuracy.note == "after 2 rounds, chance 0.049; undertrained: 2 of the data set's 60 rounds"
    trained, *_ = cards(Summary.of(summary | {"undertrained": ""}), None)
    assert (trained.note, trained.tone) == ("after 2 rounds, chance 0.049", "")


def test_an_audited_epsilon_is_a_lower_bound_among_the_first_facts() -> None:
    found = {card.label: card.value for card in cards(Summary.of(summary_of()), AUDITED)}
    assert found["Audited epsilon"] == "≥ 0.747" and found["Claimed epsilon"] == "0.599"
    assert "Audited epsilon" not in {card.label for card in cards(Summary.of(summary_of()), None)}
    person = summary_of()
    person["epsilon"] = {**person["epsilon"], "unit": "person with at most 5 examples at no more than one client"}
    for of, words in ((summary_of(), "lower bound, 95 %"), (person, "lower bound for one example, 95 %")):
        note = {card.label: card.note for card in cards(Summary.of(of), AUDITED)}["Audited epsilon"]
        assert note.startswith(words)


def test_the_table_has_six_columns_and_the_others_are_on_demand(tmp_path: Path) -> None:
    summary = summary_of()
    headings, lines = core_table(Summary.of(summary))
    assert [heading for heading, _ in headings] == [
        "leakage point",
        "verdict",
        "ASR [95% CI]",
        "baseline ASR",
        "identified",
        "RMSE",
    ]
    assert lines[1] == ["client update (type-1)", "reconstructs", "0.85 [0.64, 0.95]", "0.05", "0.95", "0.0193"]
    html = write_report(run_folder(tmp_path, summary=summary)).read_text()
    every = html[html.index("<summary>All measures</summary>") :]
    every = every[: every.index("</details>")]
    assert all(f">{heading}<" in every for heading in ("PSNR", "SSIM", "label ranked", "victims", "eta", "seconds"))
    assert ">LPIPS<" not in every and "n/a" not in every


def test_a_core_column_without_any_value_is_left_out_and_a_table_has_its_features() -> None:
    summary = summary_of()
    for tap in summary["taps"].values():
        tap["identified"] = None
    assert "identified" not in [heading for heading, _ in core_table(Summary.of(summary))[0]]
    for tap in summary["taps"].values():
        tap.update(identified=0.5, random_feature_accuracy=0.4, feature_accuracy=0.9, null_feature_accuracy=0.6)
    headings = [heading for heading, _ in core_table(Summary.of(summary))[0]]
    assert headings[2:] == ["ASR [95% CI]", "features right", "baseline features", "identified"]


def test_the_gallery_shows_each_original_once(tmp_path: Path) -> None:
    page = page_of(run_folder(tmp_path))
    html = (tmp_path / "report.html").read_text()
    titles = re.findall(r'<div class="gallery picture few" data-name="([^"]*)">', html)
    assert titles == ["Example gradient (type-2)", "Client update (type-1) and server-side update (type-0)"]
    labels = re.findall(r'<span class="label">([^<]*)</span>', html)
    assert labels[:2] == ["original", "reconstruction"]
    assert labels[-3:] == ["original", "client update (type-1)", "server-side update (type-0)"]
    alts = [image["alt"] for image in page.images]
    assert alts.count("victim 1, example 0: the original") == 2
    assert "victim 1, example 2: reconstruction at server-side update (type-0), RMSE 0.112" in alts
    assert not any("victim 3, example 0: reconstruction" in str(alt) for alt in alts)


def test_a_tile_is_at_least_96_pixels_wide_and_enlarges_pixels_by_a_whole_factor(tmp_path: Path) -> None:
    for side in (6, 28, 32, 47, 64, 96, 100, 224):
        width, height = shown_size((3, side, side))
        assert width == height >= 96
        assert width % (side // shrinks((3, side, side))) == 0
    assert shown_size((1, 12, 6)) == (96, 192)
    assert shown_size((30,))[0] >= 96
    images = page_of(run_folder(tmp_path)).images
    assert {(image["width"], image["height"]) for image in images} == {("96", "96")}


def test_figures_can_be_downloaded_and_the_page_works_without_a_script(tmp_path: Path) -> None:
    """A script adds the buttons, so a page without scripts has no dead buttons."""
    html = write_report(run_folder(tmp_path)).read_text()
    assert re.findall(r'<svg class="chart" data-name="([^"]*)"', html) == ["threshold-curve", "training-curve"]
    body, script = html.split("<script>")
    assert "<button" not in body and "hidden" not in re.sub(r"<style>.*?</style>", "", body, flags=re.DOTALL)
    assert "Download ${name} as ${kind}" in script
    assert "image-rendering: pixelated" in body and "@media print" in body and "prefers-color-scheme: dark" in body


def test_every_number_may_be_absent(tmp_path: Path) -> None:
    summary = summary_of()
    for tap in summary["taps"].values():
        tap.update({name: None for name in tap if name not in ("round", "batch", "victims", "verdict")})
        tap["verdict"] = "inconclusive"
    summary.update(
        accuracy=None, notes={"accuracy": "no round", "epsilon.claimed": "none: the paper gives none"}, claims=[]
    )
    summary["epsilon"].update(claimed=None, valid=None, reason="none: no clip", delta=None, unit=None)
    shown = page_of(run_folder(tmp_path, summary=summary)).shown
    assert (
        "none: no clip" in shown
        and "Claimed: none: the paper gives none" in shown
        and "n/a" in shown
        and "None" not in shown
    )


def test_tabular_one_victim_no_round(tmp_path: Path) -> None:
    page = page_of(run_folder(tmp_path, shape=(30,), victims=1, rounds=0))
    assert "each cell one feature" in page.shown and "No round was trained" in page.shown
    assert "victim 0, example 0: the original" in [image["alt"] for image in page.images]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 8, 8), (4, 3, 3)])
def test_pictures_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert len(page_of(run_folder(tmp_path, shape=shape)).images) > 10


def test_several_rounds_of_the_live_protocol(tmp_path: Path) -> None:
    summary = summary_of((("type-2@0", 1), ("type-1@0", 5), ("type-2@10", 1)))
    for name, tap in summary["taps"].items():
        tap["round"] = int(name.partition("@")[2])
    shown = page_of(run_folder(tmp_path, summary=summary)).shown
    assert "Example gradient (type-2) after 0 rounds" in shown and "Example gradient (type-2) after 10 rounds" in shown
    assert "For each batch, 1 more example is not shown" in " ".join(shown.split())
    axes = gallery_plot([read_finished(tmp_path)]).axes
    assert {" ".join(each.get_ylabel().split()) for each in axes} - {"", "original"} == set(
        map(point_name, summary["taps"])
    )


def test_names_are_escaped(tmp_path: Path) -> None:
    summary = summary_of()
    summary["cell"]["defense"] = "<script>alert(1)</script>"
    summary["notes"] = {"taps.type-2.ssim": "<b>&"}
    folder = run_folder(tmp_path, summary=summary)
    html = write_report(folder).read_text(encoding="utf-8")
    assert "<script>alert" not in html and "&lt;b&gt;&amp;" in html


@pytest.mark.parametrize("name", ["manifest.json", "rows.parquet", "rounds.parquet", "reconstructions.safetensors"])
@pytest.mark.parametrize("harm", ["missing", "cut short"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, harm: str) -> None:
    path = run_folder(tmp_path) / name
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InputError, match=name):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    rows = pd.read_parquet(folder / "rows.parquet")
    write_rows(folder / "rows.parquet", rows.assign(rmse=0.0, success=True))
    with pytest.raises(InputError, match=r"rows\.parquet: is not what the run wrote"):
        write_report(folder)


def test_a_run_without_a_summary_is_refused(tmp_path: Path) -> None:
    manifest = json.loads((run_folder(tmp_path) / "manifest.json").read_text())
    del manifest["summary"]
    reseal(tmp_path, manifest)
    with pytest.raises(InputError, match="not finished; run the same command again to resume"):
        write_report(tmp_path)


def printed(summary: dict[str, Any], width: int, verbose: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_table(Summary.of(summary), console, verbose)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line) for line in text.splitlines()) <= width
    return str(text)


def test_a_run_without_training_names_the_rounds_of_its_epsilons() -> None:
    said = "nothing was trained (--train-rounds 0): these epsilons are for 0 rounds"
    assert said in printed({**summary_of(), "rounds": 0}, 200) and said not in printed(summary_of(), 200)


def test_all_columns_of_a_leakage_point_are_on_one_line_at_160_columns() -> None:
    summary = summary_of()
    for tap in summary["taps"].values():
        tap.update(recognised=0.9, null_recognised=0.02)
    text = printed(summary, 160)
    row = next(line for line in text.splitlines() if line.startswith("example gradient"))
    expected = "example gradient (type-2) 0.85 [0.64, 0.95] 0.05 0.90 (0.02) 0.0193 0.1823 34.3 0.97 1.00 0.95 0.93 25"
    assert row.split()[: len(expected.split())] == expected.split()
    assert "epsilon: claimed 0.599 | valid 8.02: Gaussian" in text
    assert "valid against an attacker at client update (type-1): none: trusts the server" in text
    points = "example gradient (type-2), client update (type-1) and server-side update (type-0)"
    assert f"LPIPS at {points}: backbone weights not found" in " ".join(text.split())


def test_only_empty_columns_are_left_out_on_the_terminal() -> None:
    summary = summary_of()
    assert "LPIPS" not in printed(summary, 120).partition("LPIPS at ")[0]
    summary["taps"]["type-0"]["lpips"] = 0.125
    text = printed(summary, 120)
    assert "LPIPS" in text and "0.125" in text and "n/a" in text


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_terminal_cuts_no_number(width: int) -> None:
    text = printed(summary_of(), width)
    for number in ("0.85 [0.64, 0.95]", "0.0193", "0.1823", "34.3", "0.97", "0.95"):
        assert number in text
    assert "…" not in text


def test_the_terminal_escapes_markup() -> None:
    summary = summary_of()
    summary["taps"]["type-2"].update(verdict="inconclusive", verdict_reason="[red]mine[/red]")
    summary["notes"] = {"accuracy": "[bold]none[/bold]"}
    text = printed(summary, 120)
    assert text.count("[red]mine[/red]") == 2 and "[bold]none[/bold]" in text


@pytest.mark.parametrize("width", [80, 100])
def test_the_core_table_has_six_columns_and_fits(width: int) -> None:
    text = printed(summary_of(), width, verbose=False)
    row = next(line for line in text.splitlines() if line.startswith("client update"))
    assert row.replace("(type-1)", "").split()[2:] == [
        "0.85",
        "[0.64,",
        "0.95]",
        "0.05",
        "0.95",
        "0.0193",
        "reconstructs",
    ]
    assert text.splitlines()[0].startswith("RECONSTRUCTS: ")
    assert "PSNR" not in text and "lpips" not in text and "-v also prints 1 note, " in text


@pytest.mark.parametrize(("asr", "recognised", "shown"), [(0.85, 0.9, False), (0.0, 0.9, True), (0.0, 0.0, False)])
def test_the_core_table_has_recognition_where_the_verdict_follows_from_it(
    asr: float, recognised: float, shown: bool
) -> None:
    """Above the baseline guess, while success is not."""
    summary = summary_of()
    tap = summary["taps"]["type-2"]
    tap.update(recognised=recognised, null_recognised=0.0, asr=asr, asr_low=asr, asr_high=asr)
    assert (f"{recognised:.2f} (0.00)" in printed(summary, 100, verbose=False)) == shown
    assert (f"{recognised:.2f} (0.00)" in str(core_table(Summary.of(summary)))) == shown


def test_the_core_table_of_records_has_their_features() -> None:
    summary = summary_of()
    for tap in summary["taps"].values():
        tap.update(psnr=None, ssim=None, feature_accuracy=0.81, null_feature_accuracy=0.53, random_feature_accuracy=0.4)
    text = printed(summary, 80, verbose=False)
    assert "features" in text and "0.81" in text and "0.53" in text and "RMSE" not in text


def test_warnings_need_verbose() -> None:
    summary = {**summary_of(), "warnings": ["type-1: it is stuck", "training diverged"]}
    assert "-v also prints 1 warning and 1 note, " in printed(summary, 100, verbose=False)
    assert "warning: client update (type-1): it is stuck" in printed(summary, 100)
    assert all("warning: training diverged" in printed(summary, 100, verbose) for verbose in (False, True))


def test_the_terminal_table_without_values() -> None:
    summary = summary_of()
    whole = (
        "round",
        "batch",
        "victims",
        "networks",
        "observations",
        "clients",
        "local_iterations",
        "local_batch",
        "verdict",
    )
    for tap in summary["taps"].values():
        tap.update({name: None for name in tap if name not in whole})
    summary.update(accuracy=None)
    del summary["epsilon"]
    assert "accuracy n/a after 2 rounds" in printed(summary, 120)
    assert "rmse" not in printed({**summary, "taps": {}}, 120)


def summary_with_bounds() -> dict[str, Any]:
    summary = summary_of()
    limits = {
        "asr_bound": 0.31,
        "identified_bound": 0.0021,
        "label_bound": 0.14,
        "label_ranked_bound": 0.12,
        "rmse_floor": 0.2345,
    }
    summary["taps"]["type-2"].update(limits, seen={"sigma": 2.0, "releases": 1, "before": []})
    for name in ("type-1", "type-0"):
        summary["taps"][name].update(dict.fromkeys([*limits, "seen"]))
        summary["notes"].update({f"taps.{name}.{field}": "none: trusts the server" for field in limits})
    summary["notes"]["taps.type-2.rmse_floor"] = "the prior is a Gaussian"
    summary["violations"] = [{"tap": "type-2", "measure": "asr", "value": 0.85, "low": 0.62, "bound": 0.31}]
    return summary


def test_bounds_are_below_the_table(tmp_path: Path) -> None:
    """One line for the point that has them; the reasons for the others appear with epsilon."""
    summary = summary_with_bounds()
    summary["taps"]["type-2"]["null_rmse"] = 0.3
    line = (
        "example gradient (type-2): at most ASR 0.31, identified 0.0021, label 0.14, label ranked 0.12 by the valid epsilon of what"
        " was seen"
    )
    floor = (
        "example gradient (type-2): RMSE at least 0.2345 on average (the table has the median) by Fisher information, "
        "for an attacker that knows only the deviation of such examples' values"
    )
    folder = run_folder(tmp_path, summary=summary)
    texts = (" ".join(text.split()) for text in (printed(summary, 120), page_of(folder).shown))
    for text in texts:
        assert line in text and floor in text
        assert "rmse_floor at example gradient (type-2): the prior is a Gaussian" in text
        assert "_bound at" not in text and "no bound" not in text and "rmse_floor at client" not in text


def test_a_floor_above_a_guess_is_not_printed(tmp_path: Path) -> None:
    """An attacker that guesses without a gradient knows more than the floor's prior, so the floor is not informative."""
    summary = summary_with_bounds()
    summary["taps"]["type-2"]["null_rmse"] = 0.2
    said = printed(summary, 120)
    assert (
        "example gradient (type-2): no floor of RMSE that says anything: a guess without any gradient has 0.2000"
        in said
    )
    assert "RMSE at least" not in said


def test_fields_without_a_value_for_one_reason_share_a_line() -> None:
    summary = summary_of()
    summary["notes"] |= {f"taps.type-2.{field}": "the attack ranks" for field in ("rmse", "psnr", "ssim")}
    assert "RMSE, PSNR, SSIM at example gradient (type-2): the attack ranks" in printed(summary, 200)


def test_deviations_from_the_claim_are_shown_with_the_claim(tmp_path: Path) -> None:
    """On the terminal and on the page."""
    summary = summary_of()
    summary["epsilon"]["caveats"] = ["the claim counts 8 steps, here 12 releases are accounted"]
    assert "not as claimed: the claim counts 8 steps, here 12 releases are accounted" in printed(summary, 120)
    shown = " ".join(page_of(run_folder(tmp_path, summary=summary)).shown.split())
    assert "differs from the one that the claim accounts for: the claim counts 8 steps" in shown


def test_terms_of_bounds_are_defined_only_where_there_are_bounds(tmp_path: Path) -> None:
    terms = ("<dt>at most</dt>", "<dt>RMSE at least</dt>")
    without = write_report(run_folder(tmp_path / "without")).read_text()
    summary = summary_with_bounds()
    summary["taps"]["type-2"]["null_rmse"] = 0.3
    bounded = write_report(run_folder(tmp_path / "bounded", summary=summary)).read_text()
    assert not any(term in without for term in terms) and all(term in bounded for term in terms)


def test_a_reason_not_shown_elsewhere_is_printed() -> None:
    summary = summary_with_bounds()
    for field in ("identified_bound", "label_bound"):
        summary["taps"]["type-2"][field] = None
        summary["notes"][f"taps.type-2.{field}"] = "none: alike"
    assert "example gradient (type-2): no bound on identified, label: alike" in printed(summary, 120)


def test_a_broken_bound_is_an_error(tmp_path: Path) -> None:
    summary = summary_with_bounds()
    line = (
        "error: example gradient (type-2): ASR 0.85 (at least 0.62, with 95 % confidence in all bounds of the run) is above its "
        "bound 0.31: "
        "the guarantee does not hold, or a bug is here"
    )
    assert line in " ".join(printed(summary, 120).split())
    page = page_of(run_folder(tmp_path, summary=summary))
    assert line in " ".join(page.shown.split())
    assert line not in " ".join(page_of(run_folder(tmp_path / "sound", summary=summary_of())).shown.split())


@pytest.mark.parametrize(
    ("grid", "short", "words"),
    [
        ((1, 1, 3), "3", ""),
        ((1, 5, 1), "5 x 1", " (L = 5 local iterations of B = 1)"),
        ((2, 1, 3), "2 x 1 x 3", " (K = 2 clients, each B = 3)"),
        ((2, 5, 3), "2 x 5 x 3", " (K = 2 clients, each L = 5 local iterations of B = 3)"),
    ],
)
def test_a_batch_shows_its_iterations_and_clients(grid: tuple[int, ...], short: str, words: str) -> None:
    """On the page and below the terminal's table; for an older summary without the information, only the number."""
    tap = {"batch": math.prod(grid), **dict(zip(("clients", "local_iterations", "local_batch"), grid, strict=True))}
    assert factors(Tap.model_validate(tap)) == short
    assert factors(Tap(batch=15)) == "15"
    assert made_of(Tap.model_validate(tap)) == words
    summary = {"taps": {"type-1": {**TAP, **tap}}}
    assert f"each in a leak of {math.prod(grid)} examples{words}, 1 of " in batches(Summary.of(summary))


def test_the_limits_over_all_networks_are_printed_for_shares_near_0_and_1() -> None:
    """No success on five networks: .45. One network shows nothing about others."""
    summary = summary_of()
    for tap in summary["taps"].values():
        tap.update(networks=5, asr=0.0, identified=1.0, recognised=None)
    said = (
        "Intervals near 0 and 1 are for networks like these 5; over all networks: ASR up to 0.45; identification at least 0.55"
        " (95 % confidence)."
    )
    for verbose in (True, False):
        assert " ".join(printed(summary, 100, verbose=verbose).split()).count(said) == 1
    different = {**summary, "taps": {**summary["taps"], "type-1": {**summary["taps"]["type-1"], "asr": 1.0}}}
    text = " ".join(printed(different, 100).split())
    assert (
        "client update (type-1): intervals near 0 and 1 are for networks like these 5; over all networks: ASR and"
        in text
    )
    for changes in ({"networks": 1}, {"networks": 5, "asr": 0.5, "identified": 0.5}):
        for tap in summary["taps"].values():
            tap.update(changes)
        assert "over all networks" not in printed(summary, 100)


def test_a_page_has_the_largest_distance_over_all_networks() -> None:
    rows = pd.DataFrame(
        {"cell": ["a", "b", "c"], "networks": [5, 10, 1], "asr": [0.0, 1.0, 0.0], "identified": [0.5, 0.5, math.nan]}
    )
    [caveat] = caveats_of({}, rows)
    assert "(2 of 3 cells): over all networks, such a share can be up to 0.45 away from 0 or 1" in caveat
    assert caveats_of({}, rows.assign(asr=0.5)) == caveats_of({}, rows.drop(columns="networks")) == []
