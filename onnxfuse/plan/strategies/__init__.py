"""The strategies by name (`--strategy`): functions from a `Space` to a `Cover`, most of them published algorithms.

Every file of this folder is a strategy; its function has the name of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from onnxfuse.config import SEARCHES
from onnxfuse.config import STRATEGIES as NAMES
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space

__all__ = ("STRATEGIES",)

STRATEGIES: Mapping[str, Callable[[Space], Cover]] = {
    name: getattr(import_module(f"{__name__}.{name}"), name) for name in NAMES if name not in SEARCHES
}
