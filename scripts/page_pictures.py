"""Pictures of pages for docs/, made by a headless Chromium: python scripts/page_pictures.py [NAME.png ...]."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selenium import webdriver

from onnxfuse.runtime import process

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models" / "build"
FLAGS = ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "disable-sync")
SIZE = (1240, 1080)
CHOOSE = "const n = view.nodes('.fused').filter((n) => {words}.test(n.data('label')))[0]; n.select(); n.emit('tap')"
SELECT = CHOOSE.replace("{words}", "/Softmax|ReduceMax/")
CONV = CHOOSE.replace("{words}", "/Conv/")
TIMES = f"document.getElementById('heat').click(); {CONV}"
TAP = "views.after.nodes('.fused')[3].select(); views.after.nodes('.fused')[3].emit('tap')"
# Of each picture: the model, the verb that makes the page, the colour scheme, and what is clicked.
PICTURES = {
    "page.png": ("demo-bert", "explain", "light", SELECT),
    "page-dark.png": ("demo-bert", "explain", "dark", SELECT),
    "profile.png": ("demo-bert", "profile", "light", ""),
    "diff.png": ("demo-bert", "diff", "light", TAP),
    "bert-base.png": ("bert-base.decomposed", "explain", "light", SELECT),
    "detector.png": ("yolo-v4-boxes.decomposed", "explain", "light", TIMES),
}


def arguments(verb: str, model: str, made: str) -> tuple[str, ...]:
    """The command line of a verb that makes a page."""
    return {
        "explain": ("explain", model),
        "profile": ("profile", model, made, "--threads", "1"),
        "diff": ("diff", model, made),
    }[verb]


def main(names: Sequence[str]) -> None:
    """Write the pictures that are named, or all whose models are in models/build."""
    with tempfile.TemporaryDirectory() as place:
        browser = opened()
        for name in names or PICTURES:
            stem, verb, scheme, click = PICTURES[name]
            model = MODELS / f"{stem}.onnx"
            if not model.exists():
                print(f"{name} needs {model}: python -m models {stem}")
                continue
            page = paged(Path(place), model, verb)
            browser.execute_cdp_cmd(
                "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            )
            browser.get(page.as_uri())
            if click:
                browser.execute_script(click)
            browser.save_screenshot(str(ROOT / "docs" / name))
        browser.quit()


def paged(folder: Path, model: Path, verb: str) -> Path:
    """The page of a verb about a model, made once."""
    page, made = folder / f"{model.stem}.{verb}.html", f"{model.stem}.fused.onnx"
    if page.exists():
        return page
    if not (folder / model.name).exists():
        (folder / model.name).symlink_to(model)
    if verb != "explain" and not (folder / made).exists():
        onnxfuse(folder, "optimize", model.name, made, "--no-gain")
    onnxfuse(folder, *arguments(verb, model.name, made), "--report", page.name)
    return page


def onnxfuse(folder: Path, *arguments: str) -> None:
    """Run the program in a folder."""
    process.run((sys.executable, "-m", "onnxfuse_cli", *arguments), cwd=folder)


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
    main(sys.argv[1:])
