"""A phase of a product: by tensor cores where they have the type, else by the arithmetic of threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxfuse.ir.kernel import Phase
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.gpu.product_block import ProductBlock
from onnxfuse.schedule.gpu.product_cores import ProductByCores
from onnxfuse.schedule.gpu.product_groups import ProductByGroups
from onnxfuse.schedule.gpu.product_threads import ProductByThreads
from onnxfuse.schedule.gpu.products import MatrixProduct
from onnxfuse.target import Gpu


def product_phase(p: MatrixProduct, places: Mapping[str, Place], target: Gpu) -> Phase:
    """The phase of a product."""
    block: type[ProductBlock] = ProductByCores if p.tile.core is not None else ProductByThreads
    block = ProductByGroups if p.tile.grouped else block
    return replace(block(p, places).phase(target), library=p.library)
