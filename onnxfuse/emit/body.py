"""The function body of a group: its own nodes under canonical names, so that equal groups share one function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onnxfuse.emit.block_transposes import in_blocks
from onnxfuse.emit.legal import legal
from onnxfuse.emit.spell import Spelling, refused
from onnxfuse.ir.dtype import BF16, F32, I64, DType
from onnxfuse.ir.graph import LIMIT, Attribute, Constant, Decision, Graph, Node, Refused, TensorType
from onnxfuse.ir.group import Group
from onnxfuse.ir.index import Index
from onnxfuse.ir.kernel import Kernel, Param
from onnxfuse.ir.layout import Layout, PadHigh
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import view_of

# Operators with bfloat16 kernels in ONNX Runtime on every CPU; all others are computed in float32 between casts.
# float16 needs none: the runtime itself inserts casts where its kernels are missing.
_ANY_HALF = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Shape", "Squeeze", "Transpose", "Unsqueeze"})


@dataclass(frozen=True, slots=True)
class Body:
    """The contents of a function.

    Inputs in0, in1, ... and outputs out0, out1, ... are the kernel's, in its order and layouts; other values are t0,
    t1, ...; `ops` are the operators of the group itself, `dtypes` the element types of inputs and outputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    ops: tuple[str, ...]
    dtypes: tuple[DType, ...]
    opset: int

    @property
    def text(self) -> str:
        """The body as text, one node per line: equal texts are equal functions."""
        head = f"opset {self.opset} ({', '.join(map(repr, self.dtypes))}) -> {len(self.outputs)}"
        return "\n".join([head, *map(node_text, self.nodes)])


def node_text(node: Node) -> str:
    """A node with all its attributes."""
    attrs = ", ".join(f"{k}={_attribute_text(v)}" for k, v in sorted(node.attrs.items()))
    return f"{', '.join(node.outputs)} = {node.key}({', '.join(node.inputs)}) {{{attrs}}}"


def _attribute_text(value: Attribute) -> str:
    if isinstance(value, Constant):
        return f"{value.dtype}{list(value.shape)}:{value.load().tobytes().hex()}"
    return repr(value.decode() if isinstance(value, bytes) else value)


def body(group: Group, kernel: Kernel, graph: Graph) -> Body | Decision:
    """The body of a group with the inputs and outputs of its kernel, or why it cannot be spelled (E-OPSET)."""
    try:
        return _Writer(group, kernel, graph).written()
    except Refused as refusal:
        told = refusal.decision
        return Decision(told.code, told.nodes or group.origin or (group.name,), told.reason, told.unlock)


class _Writer:
    """Builds one body: `names` maps values of the graph to those of the body."""

    def __init__(self, group: Group, kernel: Kernel, graph: Graph) -> None:
        self.group, self.kernel, self.graph = group, kernel, graph
        self.inputs = {f"in{i}": p for i, p in enumerate(kernel.inputs)}
        self.spell = Spelling(graph.opset, {name: p.layout.shape(self._logical(p)) for name, p in self.inputs.items()})
        self.params: dict[str, str] = {}
        for name, p in self.inputs.items():
            self.params.setdefault(p.value, name)
        self.names: dict[str, str] = {"": ""}
        self.direct = self._direct_outputs()

    def written(self) -> Body:
        """The finished body."""
        for node in self.group.nodes:
            self._node(node)
        outputs = tuple(f"out{i}" for i in range(len(self.kernel.outputs)))
        for name, p in zip(outputs, self.kernel.outputs, strict=True):
            if self.names.get(p.value) != name:
                self._output(name, p)
        in_blocks(self.spell, self._weights(), outputs)
        params = (*self.kernel.inputs, *self.kernel.outputs)
        return Body(
            tuple(self.inputs),
            outputs,
            _without_copies(self.spell.nodes, outputs),
            tuple(n.op for n in self.group.nodes),
            tuple(p.dtype for p in params),
            self.graph.opset,
        )

    def _weights(self) -> dict[str, tuple[int, ...]]:
        """Inputs that are constants in every call, with their shapes in storage."""
        weights = {name: p for name, p in self.inputs.items() if p.value in self.graph.constants}
        shapes = {name: p.layout.shape(self._logical(p)) for name, p in weights.items()}
        return {name: tuple(e.constant or 0 for e in shape) for name, shape in shapes.items()}

    def _direct_outputs(self) -> dict[str, str]:
        """Values that are outputs without a change of layout or type, by the name of the output."""
        direct: dict[str, str] = {}
        for i, p in enumerate(self.kernel.outputs):
            if not p.layout.steps and p.dtype == self._type(p.value).dtype:
                direct.setdefault(p.value, f"out{i}")
        return direct

    def _type(self, value: str) -> TensorType:
        found = self.graph.types.get(value)
        if found is None:
            raise refused(f"the type of {value} is not known")
        return found

    # Nodes ------------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        row = ROWS.find(node, self.graph.opset)
        spell = row.spell if row is not None else None
        problem = legal(node, self.graph) if node.standard and spell is None else None
        if problem is not None:
            raise Refused(problem)
        shaping = row.shape_inputs if row else ()
        typing = row.type_inputs if row else ()
        attrs = dict(node.attrs)
        inputs: list[str] = []
        for i, value in enumerate(node.inputs):
            if node.key == "Reshape" and i == 1 and not self._plain(value):
                shape, extra = self._reshape_target(node)
                attrs = {k: v for k, v in attrs.items() if k != "allowzero"} | extra
                inputs.append(shape)
            elif i in typing and spell is not None:
                inputs.append("")
            elif i in typing and value not in self.names:
                dtype = self._type(value).dtype
                inputs.append(self.spell.constant(Constant.of(np.zeros((), dtype.numpy), dtype)))
            else:
                inputs.append(self._read(value, shaping=i in shaping))
        if spell is not None:
            self.names.update(
                zip(node.outputs, spell(view_of(self.graph, node), self.spell, tuple(inputs)), strict=True)
            )
        else:
            self._add(node, inputs, attrs)

    def _add(self, node: Node, inputs: list[str], attrs: Mapping[str, Attribute]) -> None:
        """Add a node; between casts where the runtime has no bfloat16 kernel for it."""
        half = node.key not in _ANY_HALF and any(self._is_bf16(i) for i in node.inputs)
        if half:
            inputs = [
                self.spell.add("Cast", local, to=F32.onnx) if self._is_bf16(value) else local
                for value, local in zip(node.inputs, inputs, strict=True)
            ]
        outputs: list[str] = []
        casts: list[Node] = []
        for value in node.outputs:
            made = self.direct.get(value) or (self.spell.name() if value else "")
            self.names[value] = made
            if half and self._is_bf16(value):
                raw = self.spell.name()
                casts.append(Node("Cast", (raw,), (made,), {"to": BF16.onnx}))
                made = raw
            outputs.append(made)
        self.spell.nodes.append(Node(node.op, tuple(inputs), tuple(outputs), attrs, domain=node.domain))
        self.spell.nodes.extend(casts)

    def _is_bf16(self, value: str) -> bool:
        found = self.graph.types.get(value)
        return found is not None and found.dtype == BF16

    # Values -----------------------------------------------------------------------------------------------------------

    def _read(self, value: str, *, shaping: bool) -> str:
        """The body's name of a value; one that is no input of the kernel is a constant or computed from shapes."""
        if value in self.names:
            return self.names[value]
        constant = self.graph.constants.get(value)
        if shaping and constant is not None and constant.bytes <= LIMIT:
            return self.spell.constant(constant)
        if value in self.params:
            self.names[value] = self._undone(self.params[value])
            return self.names[value]
        if constant is not None:
            return self.spell.constant(constant)
        if value in self.graph.known:
            return self._integers(value)
        raise refused(f"{value} is no input of the kernel and neither constant nor an extent")

    def _logical(self, p: Param) -> tuple[Index, ...]:
        """The shape of a parameter over the symbols of the graph; the kernel may have renamed them."""
        known = self.graph.types.get(p.value)
        return known.shape if known is not None else p.shape

    def _undone(self, name: str) -> str:
        """An input of the body converted from its layout and storage type to the graph's tensor."""
        p = self.inputs[name]
        x = name
        wanted = self._type(p.value).dtype if p.value in self.graph.types else self.graph.constants[p.value].dtype
        dtype = F32 if p.dtype == BF16 and _cuts_or_pads(p.layout) else wanted
        if dtype != p.dtype:
            x = self.spell.add("Cast", x, to=dtype.onnx)
        x = self.spell.undo(x, p.layout, self._logical(p))
        return x if dtype == wanted else self.spell.add("Cast", x, to=wanted.onnx)

    def _integers(self, value: str) -> str:
        """A known integer tensor, from the extents of the inputs."""
        have = self.graph.types.get(value)
        dtype, rank = (have.dtype, len(have.shape)) if have is not None else (I64, 1)
        return self.spell.vector(self.graph.known[value], dtype, scalar=rank == 0)

    def _plain(self, value: str) -> bool:
        """Whether a shape input can be used as it is: computed inside the body, or constant."""
        known = self.graph.known.get(value)
        return (
            value in self.names
            or value in self.graph.constants
            or known is None
            or all(e.constant is not None for e in known)
        )

    def _reshape_target(self, node: Node) -> tuple[str, dict[str, Attribute]]:
        return self.spell.reshape_target(self._type(node.inputs[0]).shape, self._type(node.outputs[0]).shape)

    def _output(self, name: str, p: Param) -> None:
        """The conversion of an output to its layout and element type."""
        made = self._read(p.value, shaping=False)
        dtype = self._type(p.value).dtype
        half = BF16 in (dtype, p.dtype) and _cuts_or_pads(p.layout)
        if half:
            made, dtype = self.spell.add("Cast", made, to=F32.onnx), F32
        made = self.spell.apply(made, p.layout, self._logical(p), dtype)
        last = Node("Identity", (made,), (name,))
        if dtype != p.dtype:
            last = Node("Cast", (made,), (name,), {"to": p.dtype.onnx})
        self.spell.nodes.append(last)


def _cuts_or_pads(layout: Layout) -> bool:
    """Whether a layout needs Slice or Pad, which have no bfloat16 kernels."""
    return any(isinstance(step, PadHigh) for step in layout.steps)


def _without_copies(nodes: list[Node], outputs: tuple[str, ...]) -> tuple[Node, ...]:
    """The nodes without Identity nodes that copy a value to an output: the value is renamed instead."""
    made = {o for n in nodes for o in n.outputs}
    new: dict[str, str] = {}
    for n in nodes:
        if n.op == "Identity" and n.outputs[0] in outputs:
            inner = n.inputs[0]
            if inner in made and inner not in outputs and inner not in new:
                new[inner] = n.outputs[0]
    kept: list[Node] = []
    for n in nodes:
        if n.op == "Identity" and new.get(n.inputs[0]) == n.outputs[0]:
            continue
        ins, outs = (tuple(new.get(v, v) for v in values) for values in (n.inputs, n.outputs))
        kept.append(replace(n, inputs=ins, outputs=outs))
    return tuple(kept)
