"""How many channels the runtime puts into a block, where it computes images in blocks of channels."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper

BLOCKED = "com.microsoft.nchwc"  # the domain of its operators on such images
_FEWEST = 4  # channels that it puts into blocks


@cache
def channels_of_a_block() -> int:
    """The number on this machine; 0 where the runtime has no such operators, or is not installed."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, _FEWEST, 1, 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("ReorderInput", ["x"], ["y"], domain=BLOCKED)], "g", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(BLOCKED, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    try:
        from onnxfuse.runtime.engine import open_session, options, run  # noqa: PLC0415  models are built without it

        opened = open_session(model.SerializeToString(), options(lean=True))
        (made,) = run(opened, {"x": np.zeros((1, _FEWEST, 1, 1), np.float32)})
    except Exception:  # the runtime of another machine may not know the operator, or is not there
        return 0
    return int(made.shape[1])
