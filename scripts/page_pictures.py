"""Pictures of the page of a build for docs/, made by a headless Chromium: python scripts/page_pictures.py [MODEL]."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from selenium import webdriver

from onnxfuse.pipeline import optimize
from onnxfuse.report.page import text_of
from onnxfuse.report.sections import page_of

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "disable-sync")
SIZE = (1240, 1080)
SELECT = "const n = view.nodes().filter((n) => n.data('label').includes('Softmax'))[0]; n.select(); n.emit('tap')"


def main(model: Path) -> None:
    """Write docs/page.png and docs/page-dark.png."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    result = optimize(model, stop_after="render")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        document = result.to_json("explain", drawing=True)
        document["model"]["path"] = model.name
        page.write_text(text_of(page_of(document), "html"), encoding="utf-8")
        for name, scheme in (("page.png", "light"), ("page-dark.png", "dark")):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            size = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(page.as_uri())
            browser.execute_script(SELECT)
            browser.save_screenshot(str(ROOT / "docs" / name))
    browser.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models" / "build" / "demo-bert.onnx")
