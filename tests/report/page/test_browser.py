"""The page in a real browser without a network: behavior, requests and accessibility."""

import os
import re
import shutil
from pathlib import Path

import pytest
from pages import HOSTILE

from raybench.report.answer import summary_of
from raybench.report.page.document import write_page
from raybench.report.study import load
from tests.made_results import curve, results_folder, run_line

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser is led by Playwright: pip install playwright"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path: apt-get install chromium (.ci/run does)"
)
COLORS = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def wait_for(tab, expression: str) -> None:
    """Wait until an expression is true; the page's policy forbids Playwright's own wait."""
    while not tab.evaluate(expression):
        tab.wait_for_timeout(50)


@pytest.fixture
def opened(browser, file):
    """Return a function that opens a file; fail on console messages, errors and requests."""
    contexts, faults = [], []

    def open_page(path: Path = file, **settings):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | settings))
        context.set_offline(True)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: faults.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: faults.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page_url = path.as_uri()
        tab.on(
            "request",
            lambda request: (
                request.url.partition("#")[0] == page_url
                or request.url.startswith("data:")
                or faults.append(f"request: {request.url}")
            ),
        )
        tab.goto(page_url)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def names(tab):
    return tab.locator(".trials tbody th").all_inner_texts()


def column(tab, title):
    heads = tab.locator(".trials thead th").all_inner_texts()
    number = [head.strip(" ▲▼") for head in heads].index(title)
    return tab.locator(f".trials tbody tr > :nth-child({number + 1})").all_inner_texts()


def test_the_trial_table_is_sorted_and_filtered(opened):
    tab = opened()
    head = tab.get_by_role("button", name="target after [s]")
    head.focus()
    tab.keyboard.press("Enter")
    seconds = [text for text in column(tab, "target after [s]") if text != "-"]
    assert seconds == sorted(seconds, key=lambda text: float(text.rstrip("*")))
    assert column(tab, "target after [s]")[-1] == "-"  # missing values last
    sorted_by = tab.locator("th[aria-sort]")
    assert sorted_by.get_attribute("aria-sort") == "ascending"
    tab.keyboard.press("Enter")
    assert sorted_by.get_attribute("aria-sort") == "descending"
    falling = [text for text in column(tab, "target after [s]") if text != "-"]
    assert falling == seconds[::-1]
    assert column(tab, "target after [s]")[-1] == "-"
    everything = names(tab)
    tab.get_by_label("find").fill("CONFIRM 0000")
    assert len(names(tab)) == 3
    assert "1 to 3 of 3" in tab.locator(".trials [role=status]").inner_text()
    tab.get_by_label("find").fill("nothing of that kind")
    assert names(tab) == []
    assert "None of" in tab.locator(".trials [role=status]").inner_text()
    tab.get_by_label("find").fill("")
    assert names(tab) == everything
    tab.get_by_label("find").fill("failed: error")
    assert {name.split()[0] for name in names(tab)} == {"broken"}


def test_a_trial_opens_from_table_links_figures_and_its_address(opened):
    tab = opened()
    dialog = tab.get_by_role("dialog")
    button = tab.locator(".trials tbody button").first
    button.focus()
    tab.keyboard.press("Enter")
    text = dialog.inner_text()
    assert "Trial 0000" in text
    assert "raybench train" in text
    assert """--set 'objective={"target": 0.9}'""" in text
    assert dialog.get_by_role("img").get_attribute("aria-label").endswith("s of training.")
    address = tab.url
    assert re.search(r"#s1-t\d+$", address)
    tab.keyboard.press("Escape")
    assert dialog.count() == 0
    assert tab.evaluate("document.activeElement === document.querySelector('.trials tbody button')")
    for hostile in HOSTILE[:4]:  # hostile names are shown literally
        tab.locator(".trials tbody button", has_text=hostile).first.click()
        assert hostile in dialog.inner_text()
        tab.keyboard.press("Escape")
    wait_for(tab, "location.hash === ''")  # the browser reports the closing later
    tab.goto(address)
    assert "Trial 0000" in dialog.inner_text()
    tab.keyboard.press("Escape")
    for mark in ("h1 a", "#s1-curves [data-trial='0000']"):
        tab.locator(mark).first.dispatch_event("click")
        assert "Trial 0000" in dialog.inner_text()
        tab.keyboard.press("Escape")


def test_the_page_is_accessible_and_begins_with_the_answer(opened):
    tab = opened(viewport={"width": 360, "height": 740})
    tree = tab.locator("body").aria_snapshot()
    first = [line.strip() for line in tree.splitlines() if "link" not in line and "url" not in line]
    assert first[0] == "- banner:"
    assert first[1].lstrip("-' ").startswith("heading")
    assert "PyTorch" in first[1]
    assert "[level=1]" in first[1]
    module, reason = "axe_playwright_python.sync_playwright", "pip install axe-playwright-python"
    axe = pytest.importorskip(module, reason=reason).Axe()
    violations = axe.run(tab).response["violations"]
    tab.locator(".trials tbody button").first.click()
    violations += axe.run(tab, context="dialog").response["violations"]
    serious = [fault for fault in violations if fault["impact"] in ("serious", "critical")]
    assert [(fault["id"], fault["nodes"][0]["html"]) for fault in serious] == []


def test_the_page_fits_every_width_and_theme_and_prints_without_controls(opened):
    tab = opened()
    for theme, color in COLORS.items():
        tab.emulate_media(color_scheme=theme)
        for width, height in ((360, 740), (1280, 900)):
            tab.set_viewport_size({"width": width, "height": height})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate(BACKGROUND) == color
    assert tab.pdf(format="A4").startswith(b"%PDF")
    tab.emulate_media(media="print")
    assert tab.evaluate(BACKGROUND) == COLORS["light"]
    assert not tab.get_by_label("find").is_visible()
    assert tab.locator("h1").is_visible()
    tab.set_viewport_size({"width": 720, "height": 1100})  # A4 within margins
    assert tab.evaluate("document.documentElement.scrollWidth") <= 720


def test_answer_and_figures_are_shown_without_scripts(opened):
    tab = opened(java_script_enabled=False)
    assert "PyTorch" in tab.locator("h1").inner_text()
    assert tab.locator("figure svg").first.is_visible()


@pytest.mark.all
def test_a_thousand_trials_are_paginated(opened, tmp_path):
    lines = []
    for number in range(1000):
        name = f"{number:05d}"
        lines += curve(name, [0.2, 0.7])
        seconds = 5.0 + number % 97 if number % 3 else None
        lines.append(run_line(name, seconds, learning_rate=1e-5 * (1 + number)))
    results_folder(tmp_path, lines)
    path = write_page(load(tmp_path), tmp_path)
    tab = opened(path)
    wait_for(tab, "performance.getEntriesByName('first-contentful-paint')[0]?.startTime > 0")
    assert "1 to 50 of 1,000" in tab.locator(".trials [role=status]").inner_text()
    tab.get_by_role("button", name="target after [s]").click()
    assert column(tab, "target after [s]")[0] == "5.00"
    tab.get_by_role("button", name="Next").click()
    assert "51 to 100" in tab.locator(".trials [role=status]").inner_text()
    tab.get_by_label("find").fill("00500")
    assert names(tab) == ["00500"]
    tab.locator(".trials tbody button").first.click()
    assert "Trial 00500" in tab.get_by_role("dialog").inner_text()


def test_the_page_of_an_empty_study_opens(opened, tmp_path):
    nothing = results_folder(tmp_path, [])
    tab = opened(write_page(nothing, tmp_path))
    assert tab.locator("h1").inner_text() == summary_of(nothing).lines[0]
