"""A body as a model of its own, in which its kernels can be compared with what they stand for."""

from __future__ import annotations

import onnx

from onnxfuse.emit.calls import Held
from onnxfuse.emit.proto import value_info, without
from onnxfuse.load.inline import free_names


def alone(model: onnx.ModelProto, held: Held) -> onnx.ModelProto | None:
    """The body with what it reads from outside as inputs, weights as initializers, and the functions of the model.

    None where no kernel is in the body itself, or the type of something that it reads is not known.
    """
    if not held.planned.fused:
        return None
    graph = held.planned.plan.graph
    made = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    made.graph.CopyFrom(held.protos[-1])
    without(made.graph, "input")
    stored = {t.name: t for outer in (model.graph, *held.protos[1:-1]) for t in outer.initializer}
    read = free_names(held.protos[-1])
    made.graph.initializer.extend(stored[name] for name in sorted(read & stored.keys()))
    for name in (*(v.name for v in held.protos[-1].input), *sorted(read - stored.keys())):
        have = graph.types.get(name)
        if have is None:
            return None
        made.graph.input.append(value_info(name, have.dtype, have.shape))
    return made
