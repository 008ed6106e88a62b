"""The pages in a headless browser: sorting, downloads and a slider; readable on a phone, in dark mode and with a screen reader."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from leakbench.report import write_report, write_together
from tests.report.test_report import at_noise

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install 'leakbench[browser]'")

CHROMIUM = os.environ.get("LEAKBENCH_BROWSER") or next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell"))
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium or google-chrome on the path; LEAKBENCH_BROWSER may name one"
)

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

CONTRAST = """
() => {
  const numbers = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  const texts = "p, li, th, td, h1, h2, h3, dt, dd, figcaption, caption, summary, button, pre, code, footer, label, output," +
    ".tile, .missing, .hit, text";
  for (const element of document.querySelectorAll(texts)) {
    if (!element.textContent.trim()) continue;
    const style = getComputedStyle(element);
    const colour = numbers(element.tagName === "text" ? style.fill : style.color);
    const [light, dark] = [luminance(colour), luminance(ground(element))].sort((a, b) => b - a);
    const key = `${element.tagName}.${element.className.baseVal ?? element.className}`;
    found[key] = Math.min(found[key] ?? 99, (light + 0.05) / (dark + 0.05));
  }
  return found;
}
"""

UNNAMED = """
() => [...document.querySelectorAll("img, svg, [role=img], input, [role=region]")].filter((e) =>
  !(e.getAttribute("alt") || e.getAttribute("aria-label") || (e.labels && e.labels.length))).map((e) => e.outerHTML.slice(0, 99))
"""

SQUEEZED = """
() => [...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, pre, .said") &&
  e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 99))
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the page of one run, of two, and of three noise levels given out of order."""
    folder = tmp_path_factory.mktemp("pages")
    runs = [at_noise(folder / f"at{noise:g}", noise, asr) for noise, asr in ((2.0, 0.1), (0.0, 0.9), (0.5, 0.4))]
    return {
        "one": write_report(runs[2]),
        "two": write_together(runs[:2], folder / "two.html"),
        "levels": write_together(runs, folder / "levels.html"),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def shown(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Open a page by name; it must have requested no other file and logged nothing on the console."""
    said: list[str] = []
    contexts = []

    def show(name: str, size: dict[str, int] = DESKTOP, scheme: str = "light") -> Any:
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        own = f"file://{pages[name]}"
        page.on("request", lambda r: said.append(r.url[:90]) if r.url != own and r.url[:5] != "data:" else None)
        page.goto(own)
        return page

    yield show
    for context in contexts:
        context.close()
    assert said == []


@pytest.mark.parametrize("name", ["one", "two", "levels"])
def test_a_page_is_accessible(shown: Any, name: str) -> None:
    """Headings in order, a name for every picture, contrast of text, no content wider than a phone."""
    for size, scheme in ((DESKTOP, "light"), (PHONE, "dark")):
        page = shown(name, size, scheme)
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert page.evaluate(UNNAMED) == []
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 10
        assert {what: ratio for what, ratio in contrasts.items() if ratio < 4.5} == {}
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate(SQUEEZED) == []
        # Ids are unique, and references have a target.
        named = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
        assert len(named) == len(set(named))
        used = page.evaluate("[...document.querySelectorAll('use')].map((u) => u.getAttribute('xlink:href').slice(1))")
        assert used and set(used) <= set(named)


def test_a_heading_sorts_by_mouse_and_by_key(shown: Any) -> None:
    """Numbers are sorted as numbers, missing ones last in both directions; the heading shows the direction."""
    page = shown("one")

    def column() -> list[str]:
        place = "table[data-sortable] tbody tr td:nth-child(5)"
        return [
            str(text) for text in page.evaluate(f"[...document.querySelectorAll('{place}')].map((e) => e.textContent)")
        ]

    heading = page.locator("table[data-sortable] th", has_text="RMSE").first
    before = column()
    assert before.count("n/a") == 7
    heading.locator("button").click()
    rising = [float(text) for text in column() if text != "n/a"]
    assert rising == sorted(rising) and column()[-7:] == ["n/a"] * 7 and column() != before
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    falling = [float(text) for text in column() if text != "n/a"]
    assert falling == rising[::-1] and column()[-7:] == ["n/a"] * 7
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator("table[data-sortable] th button").first.click()
    assert heading.get_attribute("aria-sort") is None
    assert page.locator("p[role=status]").inner_text() == "Sorted by leakage point, ascending."


def test_the_slider_moves_pictures_and_numbers(shown: Any) -> None:
    """From no noise to most; with the arrow keys, and with the numbers of each run as in its own table."""
    page = shown("levels")
    slider = page.locator("input[type=range]")
    seen = []
    for _ in range(3):
        now = page.locator(".stack .now img").first
        seen.append(
            (
                slider.get_attribute("aria-valuetext"),
                page.locator("div[data-level]:not([hidden]) tbody td.number").first.inner_text(),
                page.locator("div[data-level]:not([hidden]) .value").first.inner_text(),
                now.get_attribute("alt"),
            )
        )
        assert now.evaluate("(e) => getComputedStyle(e.parentElement).opacity") == "1"
        assert page.locator(".stack").first.locator("[aria-hidden=false]").count() == 1
        assert page.locator("output").inner_text() == seen[-1][0]
        slider.focus()
        page.keyboard.press("ArrowRight")
    who = "victim 0, example 0: reconstruction at example gradient (type-2)"
    assert seen == [
        ("no defense", "0.90 [0.64, 0.95]", "0.450", f"{who}, no defense, RMSE 0.012"),
        ("noise × 0.5", "0.40 [0.64, 0.95]", "0.200", f"{who}, noise × 0.5, RMSE 0.018"),
        ("noise × 2", "0.10 [0.64, 0.95]", "0.050", f"{who}, noise × 2, RMSE 0.037"),
    ]


@pytest.mark.parametrize("name", ["one", "two", "levels"])
@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_every_figure_can_be_downloaded(shown: Any, name: str, kind: str) -> None:
    """Charts and galleries, as a picture that needs no style sheet and is not empty."""
    page = shown(name)
    figures = page.locator("svg.chart, .gallery").count()
    buttons = page.locator(".save button", has_text=kind)
    assert buttons.count() == figures > 1
    for place in range(figures):
        with page.expect_download() as started:
            buttons.nth(place).click()
        file = Path(started.value.path())
        assert started.value.suggested_filename.endswith(f".{kind.lower()}")
        if kind == "SVG":
            text = file.read_text(encoding="utf-8")
            drawing = ElementTree.fromstring(text)
            assert drawing.tag == "{http://www.w3.org/2000/svg}svg" and drawing.get("width") and len(list(drawing)) > 0
            assert "var(--" not in text and "currentColor" not in text.split(">", 1)[0]
        else:
            with Image.open(file) as picture:
                assert picture.width > 300 and len(picture.convert("RGB").getcolors(1 << 24)) > 20


def test_a_table_that_scrolls_has_a_shadow_until_its_end(shown: Any) -> None:
    page = shown("one", PHONE)
    page.locator("summary", has_text="All measures").click()
    cue = page.locator(".cue", has=page.locator("table.measures")).first
    assert "more-right" in cue.get_attribute("class")
    cue.locator(".scroll").evaluate("(region) => region.scrollTo({ left: region.scrollWidth, behavior: 'instant' })")
    page.wait_for_function("(cue) => !cue.classList.contains('more-right')", arg=cue.element_handle())


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["one", "two", "levels"])
def test_tables_of_first_facts_are_not_cut_off(shown: Any, name: str, size: dict[str, int]) -> None:
    """The tables of at most six columns fit without scrolling, and tiles are at least 96 pixels wide."""
    page = shown(name, size)
    cut = "[...document.querySelectorAll('table.core')].filter((t) => t.offsetWidth > t.closest('.scroll').clientWidth + 1).length"
    assert page.locator("table.core").count() > 0 and page.evaluate(cut) == 0
    narrow = "[...document.querySelectorAll('.tile')].filter((t) => t.offsetWidth < 96).length"
    assert page.locator(".tile").count() > 0 and page.evaluate(narrow) == 0


def test_without_a_script_everything_is_on_the_page(browser: Any, pages: dict[str, Path]) -> None:
    """Only sorting, shadows, downloads and the slider need a script."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{pages['one']}")
    assert page.locator("h1").inner_text().startswith("RECONSTRUCTS")
    assert page.locator("button").count() == 0 and page.locator("table[data-sortable]").is_visible()
    assert page.locator(".tile img").first.is_visible() and page.locator("svg.chart").first.is_visible()
    context.close()
