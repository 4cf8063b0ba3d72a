"""The text that the renderers hand to the build: one C++17 translation unit under one name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """`text` is a translation unit, which may include the headers of `tiles/`; `symbol`, a C identifier, names it.

    `flags`, in gcc spelling, are those of its target; without any it runs on every machine of the architecture.
    """

    symbol: str
    text: str
    flags: tuple[str, ...] = ()
