"""The page in a real browser: it draws, says nothing to the console, asks the network for nothing, and works."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from conftest import START, MakeStudy, Study
from hysweep.report import write_page

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
TRACE = ".scatterlayer .trace"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a file. Whatever the console said or the network was asked for fails the test in the end."""
    said: list[str] = []

    def asked(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            said.append(request.url)

    def open_(path: Path, *, scheme: str = "light", width: int = 1280) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
        page.on("request", asked)
        page.goto(path.as_uri())
        return page

    yield open_
    for context in browser.contexts:
        context.close()
    assert said == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_draws(quickstart: Study, open_page: Open, tmp_path: Path, scheme: str, width: int) -> None:
    page = open_page(write_page(quickstart.directory, now=START + 900), scheme=scheme, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out sideways
    draw_all(page)
    page.evaluate("scrollTo(0, 0)")
    picture = tmp_path / f"report-{scheme}-{width}.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 50_000


def test_sorting_and_filtering(quickstart: Study, open_page: Open) -> None:
    page = open_page(write_page(quickstart.directory, now=START + 900))
    trials = "#leaderboard tbody tr:not([hidden]) th"

    def shown() -> list[str]:
        return [text.split()[0] for text in page.locator(trials).all_inner_texts()]

    assert shown() == ["1", "0", "4", "5", "2", "3"]
    rates = page.get_by_role("button", name="lr")
    rates.first.click()
    assert shown() == ["2", "4", "0", "1", "5", "3"]
    assert page.locator("#leaderboard th[aria-sort=ascending]").inner_text() == "lr"
    rates.first.click()
    assert shown() == ["3", "5", "1", "0", "4", "2"]
    page.locator("#leaderboard thead button", has_text="value").click()
    assert shown()[-1] == "5"  # a trial without a value is last whichever way
    page.locator("#leaderboard thead button", has_text="value").click()
    assert shown()[-1] == "5"
    page.get_by_label("Filter the trials").fill("CISPO comp")
    assert shown() == ["1"]
    assert page.locator("#leaderboard-count").inner_text() == "1 of 6 trials"
    page.get_by_label("Filter the trials").fill("")
    assert len(shown()) == 6


def test_no_button_sends_data_anywhere(quickstart: Study, open_page: Open) -> None:
    page = open_page(write_page(quickstart.directory, now=START + 900))
    page.locator("[data-figure=curve-score]").scroll_into_view_if_needed()
    page.locator("[data-figure=curve-score] .modebar-btn").first.wait_for(state="attached")
    titles = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)")
    assert set(titles) == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_boxes_take_a_group_out_of_the_figures(quickstart: Study, open_page: Open) -> None:
    page = open_page(write_page(quickstart.directory, now=START + 900))
    plot = page.locator("[data-figure=curve-score]")
    plot.scroll_into_view_if_needed()
    plot.locator(TRACE).first.wait_for(state="attached")
    before = plot.locator(TRACE).count()
    page.get_by_role("checkbox", name="cispo").uncheck()
    page.get_by_role("checkbox", name="pruned").uncheck()
    assert plot.locator(TRACE).count() == before - 2
    page.get_by_role("checkbox", name="cispo").check()
    assert plot.locator(TRACE).count() == before - 1


def test_of_many_trials_the_best_are_drawn_until_all_are_asked_for(make_study: MakeStudy, open_page: Open) -> None:
    study = make_study()
    for i in range(50):
        study.trial({"algorithm": "grpo", "trainer.learning_rate": (i + 1) / 1e4}, steps=3)
    page = open_page(write_page(study.directory))
    plot = page.locator("[data-figure=curve-score]")
    plot.scroll_into_view_if_needed()
    plot.locator(TRACE).first.wait_for(state="attached")
    points = "() => document.querySelector('[data-figure=curve-score]').data.reduce((n, t) => n + t.x.length, 0)"
    assert page.evaluate(points) == 25 * 4
    page.get_by_label("Curves of").select_option("all 50")
    assert page.evaluate(points) == 50 * 4


def test_data_can_be_read_and_taken_away(quickstart: Study, open_page: Open) -> None:
    page = open_page(write_page(quickstart.directory, now=START + 900))
    figure = page.locator("figure", has=page.locator("[data-figure=curve-score]"))
    figure.locator("summary").click()
    assert figure.locator("table").is_visible()
    with page.expect_download() as download:
        figure.locator("a.csv").click()
    assert download.value.suggested_filename == "curve-score.csv"
    link = figure.locator("a.csv").get_attribute("href")
    rows = list(csv.reader(io.StringIO(unquote(link.partition(",")[2]))))
    assert rows[0] == ["trial", "point", "step", "value"]
    assert len(rows) == 1 + 40 + 40 + 12 + 3 + 21
    assert [r[2] for r in rows if r[0] == "3"] == ["1", "2", "3"]


def test_the_command_can_be_copied(quickstart: Study, open_page: Open) -> None:
    page = open_page(write_page(quickstart.directory, now=START + 900))
    button = page.locator("button[data-copy=again]")
    button.click()
    page.wait_for_function("button => button.textContent !== 'Copy'", arg=button.element_handle())


def test_hostile_text_does_nothing(hostile: Study, open_page: Open) -> None:
    page = open_page(write_page(hostile.directory))
    draw_all(page)
    plot = page.locator("[data-figure=curve-score] .nsewdrag")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    for share in (0.2, 0.4, 0.6, 0.8):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.4 * box["height"])
        page.wait_for_timeout(100)
    assert page.locator("img").count() == 0


def draw_all(page: Any) -> None:
    """Bring every figure into view, as a reader would."""
    figures = page.locator("[data-figure]")
    for i in range(figures.count()):
        figures.nth(i).scroll_into_view_if_needed()
        figures.nth(i).locator(TRACE).first.wait_for(state="attached")


def test_curves_are_drawn_against_hours_and_back(quickstart: Study, open_page: Open) -> None:
    page = open_page(write_page(quickstart.directory, now=START + 900))
    plot = page.locator("[data-figure=curve-score]")
    plot.scroll_into_view_if_needed()
    plot.locator(TRACE).first.wait_for(state="attached")
    reach = (
        "Math.max(...document.querySelector('[data-figure=curve-score]').data.flatMap((t) => t.x.filter((x) => x > 0)))"
    )
    assert page.evaluate(reach) == 40
    page.locator("#against").select_option("hours")
    assert page.evaluate(reach) != 40
    assert "hours" in (plot.locator(".xtitle").text_content() or "")
    page.locator("#against").select_option("step")
    assert page.evaluate(reach) == 40


def test_the_search_is_drawn(make_study: MakeStudy, open_page: Open) -> None:
    study = make_study()
    for i in range(12):
        point = {"algorithm": ("grpo", "rloo")[i % 2], "trainer.learning_rate": (i + 1) / 1e4, "rollout.n": 2 + i}
        study.trial(point, steps=4, best=0.5 + i / 40)
    page = open_page(write_page(study.directory, now=START + 9000))
    for name in ("history", "importances", "parallel", "choice-0", "contour", "timeline"):
        plot = page.locator(f"[data-figure={name}]")
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for(state="attached")
    assert "PED-ANOVA" in page.locator("figure", has=page.locator("[data-figure=importances]")).inner_text()
    assert page.locator("[data-figure=importances] .bars .point").count() == 3
    assert page.locator("[data-figure=contour] .contourlayer").count() == 1
    narrow = open_page(study.directory.report_file, width=390)
    narrow.locator("[data-figure=parallel]").scroll_into_view_if_needed()
    narrow.locator("[data-figure=parallel] .xtick text").first.wait_for(state="attached")
    widths = "all => all.map(text => text.getBoundingClientRect().width)"
    found = narrow.eval_on_selector_all("[data-figure=parallel] .xtick text", widths)
    assert len(found) == 4 and all(found), "each axis has its name"
