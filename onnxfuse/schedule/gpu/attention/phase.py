"""A phase of attention: by tensor cores where they have the type, else by the arithmetic of threads."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.kernel import Phase
from onnxfuse.schedule.analysis.attention import Attention
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.gpu.attention.cores import ByCores
from onnxfuse.schedule.gpu.attention.parts import KeySplits
from onnxfuse.schedule.gpu.attention.threads import ByThreads
from onnxfuse.schedule.gpu.tiles import CoreTile, ThreadTile, tile_of
from onnxfuse.target import Gpu


def attention_phase(
    a: Attention, places: Mapping[str, Place], target: Gpu, parts: KeySplits | None = None
) -> Phase | None:
    """The phase of an attention, or of parts of its keys; None where no tile fits it."""
    tile = tile_of(a, target)
    if isinstance(tile, CoreTile):
        return ByCores(a, tile, places, parts).phase(target)
    return ByThreads(a, tile, places, parts).phase(target) if isinstance(tile, ThreadTile) else None
