"""Takes the README's picture of a study's page: `python docs/screenshots.py STUDY`.

STUDY is a results folder with its `report.html` (`python -m raybench.report STUDY` writes it). The
picture is `docs/report_light.png`: the page's top in its light theme. With `--all FOLDER` it writes
there what a change of the page is looked at by: two widths, two themes, print, an opened trial.
Needs Chromium and `pip install playwright`; takes no network.
"""

import argparse
import io
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from raybench.results.store import PAGE_FILE

PICTURE = Path(__file__).with_name("report_light.png")
TOP = (1280, 1000)
"""Pixels of the README's picture."""
WIDTHS, THEMES = (360, 1280), ("light", "dark")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the picture, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="a results folder with its report.html")
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every view, for a look at them")
    options = parser.parse_args(arguments)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        parser.error("no chromium on the path; install it (apt-get install chromium)")
    if not (options.study / PAGE_FILE).is_file():
        parser.error(f"{options.study}: holds no {PAGE_FILE}; run python -m raybench.report on it")
    address = (options.study / PAGE_FILE).resolve().as_uri()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if options.all is None:
            _readme(browser, address)
        else:
            options.all.mkdir(parents=True, exist_ok=True)
            _every_view(browser, address, options.all)
        browser.close()
    return 0


def _readme(browser: Browser, address: str) -> None:
    page = _opened(browser, address, TOP, "light")
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} KB")


def _every_view(browser: Browser, address: str, folder: Path) -> None:
    for width in WIDTHS:
        for theme in THEMES:
            page = _opened(browser, address, (width, 900), theme)
            page.screenshot(path=folder / f"{width}_{theme}.png", full_page=True)
            button = page.locator(".trials tbody button").first
            if button.is_visible():
                button.click()
                page.screenshot(path=folder / f"{width}_{theme}_trial.png")
    page = _opened(browser, address, (794, 1123), "dark")  # A4
    page.emulate_media(media="print")
    page.screenshot(path=folder / "print.png", full_page=True)
    page.pdf(path=folder / "print.pdf", format="A4")


def _opened(browser: Browser, address: str, size: tuple[int, int], theme: Any) -> Page:
    """Open the page in a window of its own, without a network."""
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme=theme, offline=True
    )
    page.goto(address)
    return page


if __name__ == "__main__":
    sys.exit(main())
