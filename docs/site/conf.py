"""How Sphinx makes a site of the pages of docs/: `make site`, where every warning is an error."""

from __future__ import annotations

from importlib.metadata import version as installed

project = "onnxfuse"
version = release = installed("onnxfuse")
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"onnxfuse {release}"
myst_heading_anchors = 4  # links to headings, as GitHub has them
exclude_patterns = ["site"]
nitpicky = True
