"""Pictures of pages for docs/, made by a headless Chromium: python scripts/page_pictures.py [MODEL]."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver

from onnxfuse.runtime import process

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "disable-sync")
SIZE = (1240, 1080)
SELECT = "const n = view.nodes().filter((n) => n.data('label').includes('ReduceMax'))[0]; n.select(); n.emit('tap')"
TAP = "views.after.nodes('.fused')[3].select(); views.after.nodes('.fused')[3].emit('tap')"
# Of each picture: the page, the colour scheme, and what is clicked.
PICTURES = {
    "page.png": ("explain.html", "light", SELECT),
    "page-dark.png": ("explain.html", "dark", SELECT),
    "profile.png": ("profile.html", "light", ""),
    "diff.png": ("diff.html", "light", TAP),
}


def main(model: Path) -> None:
    """Write the pictures of a model and of what becomes of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / model.name).write_bytes(model.read_bytes())
        made = f"{model.stem}.fused.onnx"
        for verb in (
            ("optimize", model.name, made, "--no-gain"),
            ("explain", model.name, "--report", "explain.html"),
            ("profile", model.name, made, "--threads", "1", "--report", "profile.html"),
            ("diff", model.name, made, "--report", "diff.html"),
        ):
            process.run((sys.executable, "-m", "onnxfuse_cli", *verb), cwd=folder)
        browser = opened()
        for name, (page, scheme, click) in PICTURES.items():
            browser.execute_cdp_cmd(
                "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            )
            browser.get((folder / page).as_uri())
            if click:
                browser.execute_script(click)
            browser.save_screenshot(str(ROOT / "docs" / name))
        browser.quit()


def opened() -> Any:
    """A browser with a window of the pictures' size."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    size = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return browser


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models" / "build" / "demo-bert.onnx")
