"""Models that ONNX Runtime saved after its own optimizations, in the layouts that operators of ONNX have.

At its highest level the runtime moves images into layouts of its own, and saves operators that only it knows: they, and
all between them, would stay as they are. With operators of ONNX the model is what it was before, runs on any machine,
and the runtime chooses its layouts again for what stays with it.
"""

from __future__ import annotations

import onnx

from onnxfuse.load.saved.blocks import without_blocks
from onnxfuse.load.saved.channels_last import channels_second
from onnxfuse.load.tensors import Payloads

__all__ = ("relaid",)


def relaid(proto: onnx.ModelProto, payloads: Payloads, opset: int) -> None:
    """Give images the layout of ONNX, in place."""
    without_blocks(proto, payloads, opset)
    channels_second(proto.graph)
