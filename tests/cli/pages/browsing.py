"""A headless Chromium for tests of pages, and what they look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no Chromium with its driver here")

FLAGS = ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
         "disable-component-update", "disable-sync", "window-size=1300,1400")  # fmt: skip
SECONDS = 2.0  # until the page is there


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for each in FLAGS:
        options.add_argument(f"--{each}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=str(DRIVER)))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path) -> float:
    """Open a page; the seconds until all that it does at first is done."""
    browser.get_log("browser")
    browser.get(page.as_uri())
    took = browser.execute_script("return performance.now()")
    assert [each["message"] for each in browser.get_log("browser")] == []
    return float(took) / 1e3


def in_time(browser: Any, page: Path) -> bool:
    """Whether a page opens in time, once of three times: the machine may be doing something else."""
    return any(opened(browser, page) < SECONDS for _ in range(3))


@contextmanager
def on_phone(browser: Any) -> Iterator[None]:
    """The browser with a screen as narrow as a phone's."""
    screen = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def luminance(colour: str) -> float:
    """The relative luminance of rgb(r, g, b), roughly."""
    red, green, blue = (int(each) / 255 for each in colour[4:-1].split(","))
    return float(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2)
